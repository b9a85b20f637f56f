/* Records compared with those of before. See match.h. */
#include "controller/match.h"

#include <string.h>

bool dt_match_room(dt_match *m, uint32_t n_ext, uint32_t n_inner, uint32_t n_rec, uint32_t n_number) {
    uint32_t ext = m->cap_ext;
    return dt_grow(&m->ext, &ext, n_ext, sizeof *m->ext) && dt_grow(&m->ext_id, &m->cap_ext, n_ext, sizeof *m->ext_id) &&
           dt_grow(&m->out_id, &m->cap_inner, n_inner, sizeof *m->out_id) && dt_grow(&m->site, &m->cap_rec, n_rec, sizeof *m->site) &&
           dt_grow(&m->number, &m->cap_number, n_number, sizeof *m->number);
}

void dt_match_begin(dt_match *m) {
    if (++m->epoch == 0) {
        if (m->n_slot) memset(m->slot, 0, m->n_slot * sizeof *m->slot);
        m->epoch = 1;
    }
    m->at = m->rec = m->n_ext = m->n_inner = m->n_number = 0;
}

void dt_match_free(dt_match *m) {
    dt_free(m->ext);
    dt_free(m->ext_id);
    dt_free(m->out_id);
    dt_free(m->site);
    dt_free(m->number);
    dt_free(m->slot);
    memset(m, 0, sizeof *m);
}

bool dt_match_slots(dt_match *m, uint32_t id) {
    uint32_t n = m->n_slot ? m->n_slot : 1024;
    while (n <= id) n *= 2;
    uint64_t *t = dt_realloc(m->slot, n * sizeof *t);
    if (!t) return false;
    memset(t + m->n_slot, 0, (n - m->n_slot) * sizeof *t);
    m->slot = t;
    m->n_slot = n;
    return true;
}

/* The first use of value e from outside: it must be ready, and lie as the plans expect it. */
static const char *take_ext(dt_match *m, uint32_t e, uint32_t id) {
    dt_gvalue *v = dt_match_slot(m, id) && !dt_match_knows(m, id) ? dt_engine_value(id) : NULL;
    if (!v || !v->ready || !v->part) return "another value";
    if (!dt_match_lies(m->ext_layout, m->ext_any, e, v)) return "another layout";
    v->uses++;
    v->number = e;
    m->ext[e] = v;
    m->ext_id[e] = id;
    m->n_ext = e + 1;
    m->slot[id] = dt_match_tag(m, e);
    return NULL;
}

static void untake_ext(dt_match *m, uint32_t down_to) {
    while (m->n_ext > down_to) {
        m->n_ext--;
        m->slot[m->ext_id[m->n_ext]] = 0;
        m->ext[m->n_ext]->uses--;
    }
}

bool dt_match_call(dt_match *m, const uint64_t *w, dt_why *y) {
    const uint64_t *s = m->word + m->at;
    y->input = -1;
    if (w[0] != s[0] || w[1] != s[1]) {
        y->text = "another call";
        return false;
    }
    uint32_t n_in = dt_rec_n_in(w[0]), n_out = dt_rec_n_out(w[0]), n_number = m->n_number, n_ext = m->n_ext;
    const uint64_t *in = w + 3, *out = in + n_in;
    s += 2;
    for (uint32_t k = 0; k < n_in; k++) {
        uint32_t value = (uint32_t)s[k], id = (uint32_t)in[k];
        y->text = NULL;
        switch (s[k] >> 32) {
        case DT_KNOWN: y->text = id < m->n_slot && m->slot[id] == dt_match_tag(m, value) ? NULL : "another value"; break;
        case DT_FIRST: y->text = take_ext(m, value, id); break;
        case DT_NUMBER: m->number[n_number++] = in[k]; break;
        default: break;
        }
        if (DT_LIKELY(!y->text)) continue;
        y->input = (int)k;
        untake_ext(m, n_ext);
        return false;
    }
    for (uint32_t k = 0; k < n_out; k++) {
        if (!dt_match_slot(m, (uint32_t)out[k])) {
            untake_ext(m, n_ext);
            y->text = "out of host memory";
            return false;
        }
    }
    for (uint32_t k = 0; k < n_out; k++) {
        m->slot[out[k]] = dt_match_tag(m, DT_INNER + m->n_inner);
        m->out_id[m->n_inner++] = (uint32_t)out[k];
    }
    m->n_number = n_number;
    m->site[m->rec++] = (uint32_t)w[2];
    m->at += 2 + n_in;
    return true;
}
