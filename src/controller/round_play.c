/* The commits of a round that is replayed: the values that they make and read. The rest is round.c's.
 *
 * Where one simulated device stands for all (dt_plan.n_alike), what a commit makes does not become a dt_gvalue: memory, and where in it, is all that a later commit wants (dt_held).
 * Most values of a large pipeline's step live from a stage's forward to its backward, ten thousands at a time, and a record each on cache lines of its own costs more than all else.
 * What outlives the round, is read by a plan whose devices each do something of their own, or is there when the round does not go on, becomes a dt_gvalue then.
 *
 * A value goes when the client has dropped it and the last commit that reads it has run; which one that is, the script knows. Controller thread only. */
#include <string.h>

#include "controller/round_script.h"

dt_play dt_the_play;
static dt_play *const a = &dt_the_play;

/* ---- room --------------------------------------------------------------------------------------------------------------------------------------------- */
bool dt_play_room(const round *s) {
    return dt_match_room(&a->m, s->n_ext, s->n_inner, s->n_rec, s->n_number) && dt_grow(&a->made, &a->cap_made, s->n_place, sizeof *a->made) &&
           dt_grow(&a->ext, &a->cap_ext, s->n_ext, sizeof *a->ext) && dt_grow(&a->from_ext, &a->cap_from_ext, s->n_ext, sizeof *a->from_ext) &&
           dt_grow(&a->gone, &a->cap_gone, s->n_inner, sizeof *a->gone) && dt_grow(&a->gone_at, &a->cap_gone_at, s->n_place, sizeof *a->gone_at) &&
           dt_grow(&a->handed, &a->cap_handed, s->n_inner, sizeof *a->handed);
}

void dt_play_expect(round *s) {
    dt_match *m = &a->m;
    uint32_t place = a->commit < s->n_commit ? s->commit[a->commit].place : s->n_place;
    a->s = s;
    s->tried = m->epoch;
    m->word = s->word;
    m->ext_layout = s->ext_layout;
    m->ext_any = NULL;
    memset(a->made + place, 0, sizeof *a->made * (s->n_place - place));
    memset(a->gone + m->n_inner, 0, s->n_inner - m->n_inner);
    memset(a->gone_at, 0, s->n_place);
    for (uint32_t i = 0; i < m->n_inner; i++)
        if (a->gone[i] && s->place[i] != NO_PLACE) a->gone_at[s->place[i]] = 1;
}

void dt_play_free(void) {
    void *all[] = {a->made, a->ext, a->from_ext, a->gone, a->gone_at, a->handed, a->held, a->value, a->site, a->number};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) dt_free(all[i]);
    dt_match_free(&a->m);
    memset(a, 0, sizeof *a);
}

/* ---- values -------------------------------------------------------------------------------------------------------------------------------------------- */
static dt_held held_by(dt_gvalue *v) { return v->one ? (dt_held){v->one->buf, {(char *)v->one->buf->data + v->one->offset}} : (dt_held){.v = v}; }

void dt_play_taken(uint32_t e) {
    a->from_ext[e] = a->m.ext[e]->segment;
    a->ext[e] = held_by(a->m.ext[e]);
}

/* Memory alone becomes a value. */
static dt_gvalue *make_value(const commit *c, int o, dt_held *h) {
    const dt_plan *p = c->plan;
    const dt_out_plan *y = &p->out[o];
    dt_gvalue *v = dt_gvalue_new(p->call[y->node]->out[y->out]);
    if (v && dt_gvalue_parts_shared(v)) {
        dt_gvalue_free(v);
        v = NULL;
    }
    const dt_held was = *h;
    *h = (dt_held){.v = v};
    if (!v) {
        dt_buf_drop(was.buf);
        return NULL;
    }
    dt_part *x = dt_gvalue_part_shared(v, dt_part_shared(p, o)->stride);
    x->buf = was.buf;
    x->offset = was.at - (char *)was.buf->data;
    return v;
}

dt_gvalue *dt_play_value(const commit *c, int o) {
    uint32_t i = dt_commit_outs(a->s, c)[o], place = c->place + (uint32_t)o;
    dt_held *h = &a->made[place];
    if (!h->buf) return h->v;
    const dt_out_plan *y = &c->plan->out[o];
    dt_gvalue *v = make_value(c, o, h);
    if (!v) return NULL;
    v->layout = y->layout;
    v->ready = true;
    v->client = !a->gone[i] && dt_engine_value_put(a->m.out_id[i], v);
    v->uses = a->s->last[place] > a->commit;
    v->site = a->m.site[dt_commit_numbers(a->s, c)[y->node]];
    v->out = (uint32_t)y->out;
    v->number = DT_INNER + i;
    return v;
}

static dt_held *held_of(uint32_t v) { return v & DT_INNER ? &a->made[v & ~DT_INNER] : &a->ext[v]; }

/* Value v of the round as one of its own. */
static dt_gvalue *value_of(uint32_t v) {
    dt_held *h = held_of(v);
    if (!(v & DT_INNER)) return a->m.ext[v];
    if (!h->buf) return h->v;
    uint32_t place = v & ~DT_INNER, low = 0, high = a->commit; /* commits' places ascend */
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        *(a->s->commit[mid].place <= place ? &low : &high) = mid;
    }
    const commit *c = &a->s->commit[low];
    return dt_play_value(c, (int)(place - c->place));
}

/* Nobody may need it any more. */
static void let_go(dt_gvalue **g) {
    dt_gvalue *x = *g;
    if (x->client || x->uses) return;
    *g = NULL;
    dt_gvalue_release(x);
}

static void forget(dt_held *h) {
    dt_buf_drop(h->buf);
    *h = (dt_held){0};
}

/* The last commit that reads it has run. */
static void was_read(uint32_t v) {
    dt_held *h = held_of(v);
    if (!(v & DT_INNER)) {
        a->m.ext[v]->uses--;
        let_go(&a->m.ext[v]);
    } else if (h->buf) {
        if (a->gone_at[v & ~DT_INNER]) forget(h);
    } else if (h->v) {
        h->v->uses--;
        let_go(&h->v);
    }
}

static void were_read(const commit *c) {
    const uint32_t *v = a->s->end + c->end, n = c->n_end, far = 8;
    for (uint32_t i = 0; i < n && i < far; i++) __builtin_prefetch(held_of(v[i])->buf, 1);
    for (uint32_t i = 0; i < n; i++) {
        if (i + far < n) __builtin_prefetch(held_of(v[i + far])->buf, 1);
        was_read(v[i]);
    }
}

void dt_play_dropped(dt_engine *e, uint32_t v, uint32_t id) {
    uint32_t i = v & ~DT_INNER, place;
    dt_gvalue **g = &a->m.ext[i];
    if (v & DT_INNER) {
        a->gone[i] = 1;
        if ((place = a->s->place[i]) == NO_PLACE) return;
        a->gone_at[place] = 1;
        dt_held *h = &a->made[place];
        if (h->buf) {
            if (a->s->last[place] <= a->commit) forget(h);
            return;
        }
        g = &h->v;
    }
    if (!*g) return; /* not made yet */
    e->value[id] = NULL;
    (*g)->client = false;
    let_go(g);
}

/* ---- a commit -------------------------------------------------------------------------------------------------------------------------------------------- */
/* The memory that the plan reads, into a->held. False: some of it is not one part for all. */
static bool gather_held(const commit *c) {
    const uint32_t *r = dt_commit_numbers(a->s, c) + c->n_rec;
    for (int i = 0, n = c->plan->n_ext; i < n; i++) {
        dt_held h = *held_of(VALUE(r[i]));
        if (DT_UNLIKELY(!h.buf)) {
            if (!h.v || !h.v->one) return false;
            h = held_by(h.v);
        }
        a->held[i] = h;
    }
    return true;
}

/* The values that it reads, into a->value. */
static bool gather(const commit *c) {
    const uint32_t *r = dt_commit_numbers(a->s, c) + c->n_rec;
    for (int i = 0, n = c->plan->n_ext; i < n; i++)
        if (!(a->value[i] = value_of(VALUE(r[i])))) return false;
    return true;
}

/* May c's plan write into v, as it does? Lies it contiguously? So it did when the plan was made, and layouts are compared. */
static bool may_overwrite(uint32_t v) {
    dt_held *h = held_of(v);
    if (v & DT_INNER && h->buf)
        return a->gone_at[v & ~DT_INNER] && dt_play_unread(a->s, v, a->commit + 1) && h->buf->live == 1 && h->buf->bytes && h->at == (char *)h->buf->data;
    dt_gvalue *g = v & DT_INNER ? h->v : a->m.ext[v];
    g->named = g->client || !dt_play_unread(a->s, v, a->commit + 1) || g->wanted;
    return dt_gvalue_donatable(g);
}

/* Are n results as they must be? The index of one that is not, or n. */
static uint32_t names_differ(const uint8_t *gone, const uint8_t *want, uint32_t n) {
    const uint64_t ones = 0x0101010101010101u;
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t g, w;
        memcpy(&g, gone + i, 8);
        memcpy(&w, want + i, 8);
        if (DT_UNLIKELY((g ^ w) & ~(w >> 1) & ones)) break;
    }
    while (i < n && (want[i] == 2 || gone[i] == want[i])) i++;
    return i;
}

/* What the comparison of records could not tell. NULL: c's plan may run, with a->held or, if not *held, with a->value. */
static const char *check(const commit *c, bool *held) {
    const uint32_t *r = a->s->run + 2 * c->run;
    for (uint32_t i = 0; i < c->n_run; i++, r += 2) {
        uint32_t at = r[0] + names_differ(a->gone + r[0], a->s->want + r[0], r[1]);
        if (DT_UNLIKELY(at < r[0] + r[1])) return a->s->want[at] ? "a result is still named" : "a result is no longer named";
    }
    *held = dt_engine_alike(c->plan) && gather_held(c);
    if (DT_UNLIKELY(!*held && !gather(c))) return "a value is lost";
    r = dt_commit_numbers(a->s, c) + c->n_rec;
    for (int i = 0; i < c->plan->n_ext; i++) /* what would be possible and is not done changes no value */
        if ((r[i] >> DONATE_SHIFT & 3) == 1 && DT_UNLIKELY(!may_overwrite(VALUE(r[i])))) return "an input's memory may not be overwritten";
    return NULL;
}

static bool make_results(const commit *c, dt_gvalue **v) {
    const dt_plan *p = c->plan;
    const uint32_t *rec_of = dt_commit_numbers(a->s, c), *out = dt_commit_outs(a->s, c);
    for (int o = 0; o < p->n_outs; o++) {
        const dt_out_plan *y = &p->out[o];
        if (!(v[o] = dt_gvalue_new(p->call[y->node]->out[y->out]))) {
            while (o-- > 0) dt_gvalue_free(v[o]);
            return false;
        }
        v[o]->client = !a->gone[out[o]];
        v[o]->uses = a->s->last[c->place + (uint32_t)o] > a->commit;
        v[o]->site = a->m.site[rec_of[y->node]];
        v[o]->out = (uint32_t)y->out;
        v[o]->number = DT_INNER + out[o];
    }
    return true;
}

static const char *run_with_values(dt_engine *e, const commit *c, dt_io *io) {
    dt_plan *p = c->plan;
    dt_gvalue **v = a->value + p->n_ext;
    const uint32_t *rec_of = dt_commit_numbers(a->s, c), *number = rec_of + c->n_rec + c->n_read, *out = dt_commit_outs(a->s, c);
    a->site[0] = a->m.site[rec_of[0]];
    for (int i = 0; i < p->n_nodes; i++) a->site[i] = a->m.site[rec_of[i]];
    for (int k = 0; k < p->n_numbers; k++) a->number[k] = a->m.number[number[k]];
    io->site = a->site;
    io->number = a->number;
    if (!make_results(c, v)) return "out of host memory";
    io->ext = a->value;
    io->out = v;
    if (dt_engine_run_plan(e, io, p, true)) {
        for (int o = 0; o < p->n_outs; o++) dt_gvalue_free(v[o]);
        return "out of memory";
    }
    for (int o = 0; o < p->n_outs; o++) {
        a->made[c->place + (uint32_t)o] = (dt_held){.v = v[o]};
        if (v[o]->client) v[o]->client = dt_engine_value_put(a->m.out_id[out[o]], v[o]);
    }
    return NULL;
}

static const char *run_with_memory(dt_engine *e, const commit *c, dt_io *io) {
    io->held = a->held;
    io->made = a->made + c->place;
    io->rec = dt_commit_numbers(a->s, c);
    io->site = a->m.site;
    return dt_engine_run_plan(e, io, c->plan, true) ? "out of memory" : NULL;
}

/* Binds and pushes the next commit's plan. */
static const char *run_commit(dt_engine *e) {
    const commit *c = &a->s->commit[a->commit];
    dt_plan *p = c->plan;
    if (!dt_grow(&a->value, &a->cap_value, (uint32_t)(p->n_ext + p->n_outs), sizeof *a->value) ||
        !dt_grow(&a->held, &a->cap_held, (uint32_t)p->n_ext, sizeof *a->held) || !dt_grow(&a->site, &a->cap_site, (uint32_t)p->n_nodes + 1, sizeof *a->site) ||
        !dt_grow(&a->number, &a->cap_number, (uint32_t)p->n_numbers, sizeof *a->number))
        return "out of host memory";
    bool held;
    const char *text = check(c, &held);
    if (text) return text;
    dt_io io = {.n_calls = c->n_rec};
    if ((text = (held ? run_with_memory : run_with_values)(e, c, &io))) return text;
    were_read(c);
    dt_order_replayed(&a->begun, &c->order);
    dt_cache_used(e, p);
    a->commit++;
    return NULL;
}

const char *dt_play_commits(dt_engine *e, bool at_once) {
    const char *text = NULL;
    while (!text && a->commit < a->s->n_commit && a->s->commit[a->commit].at <= a->m.rec && (!at_once || a->s->commit[a->commit].at_once)) text = run_commit(e);
    return text;
}
