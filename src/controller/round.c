/* Rounds: repeats of a stream over several meshes.
 *
 * A stream that order.c takes apart is dispatched segment by segment, in an order that depends on what comes later: there is no chunk whose end could be waited for.
 * What repeats is a *round*, all that is recorded between two places where everything is dispatched: a read, a pause of the program, the end of an optimizer's step
 * (DT_REC_MARK). While one is recorded the usual way it leaves a script: its records, word by word (match.h), and the *commits*, which plan was run with which of its
 * values, and after how many records. When it begins again, its records are only compared; at the place of a commit the plan is bound to the values that were made
 * meanwhile and pushed. Nothing is ordered, no node and no key is made, and values become dt_gvalues only if something outside of their segment needs them.
 *
 * The order and all plans are functions of the records since the last flush, of what was dropped before each commit, and of how values from outside lie; and that is what
 * is compared:
 *   record of a call   as in a chunk (repeat.c)
 *   at a commit        its results that the client must have dropped, or must name still; what it may overwrite of the memory that it reads
 * So a round that is replayed does the same in the same order. Rounds in which something was dispatched because time passed are not kept.
 *
 * A mismatch: another script that agrees with all that was taken and committed may go on. Otherwise everything taken is recorded the usual way after all. What was
 * committed becomes ghosts: segments that count for the order, their clocks, openers and limits, with nothing left to run. So the rest of the round is ordered as if nothing
 * had been replayed; correct is whatever order.c makes of them, since a call is never run twice and runs after those it reads from.
 *
 * Learning costs about 20 ns a call, and is done whenever nothing is replayed. Controller thread only. */
#include "controller/round.h"

#include <string.h>

#include "controller/match.h"
#include "controller/round_script.h"
#include "passes/options.h"

enum { SCRIPTS = 64, WORDS_MAX = 6 << 20, CALLS_MIN = 4 };
static const size_t bytes_max = (size_t)192 << 20; /* of all scripts */

static round rec;           /* what is recorded now */
static bool recording, bad; /* bad: it will not be kept */
static bool fresh;          /* nothing came since the last call */
static bool committing;     /* rec.commit[rec.n_commit] waits for its plan */
static round *script[SCRIPTS];
static int n_scripts;
static round *last;
static size_t bytes_all;
static uint64_t clock_used;

static dt_play *const a = &dt_the_play;
static dt_match *const m = &dt_the_play.m; /* what is recorded has its values there, too */

static bool possible(const dt_engine *e) {
    const dt_options *o = dt_options_get();
    return o->replay && o->cache && !o->evict && !e->remat && !e->n_evicted;
}

/* ---- recording --------------------------------------------------------------------------------------------------------------------------------------- */
static void commits_drop(round *s) {
    for (uint32_t i = 0; i < s->n_commit; i++) {
        s->commit[i].plan->n_rounds--;
        dt_plan_unref(s->commit[i].plan);
    }
    s->n_commit = 0;
}

static void rec_clear(void) {
    commits_drop(&rec);
    rec.n_rec = rec.n_word = rec.n_ext = rec.n_inner = rec.n_number = rec.n_x = rec.n_dead = 0;
    recording = bad = fresh = committing = false;
}

static void rec_begin(void) {
    rec_clear();
    dt_match_begin(m);
    dt_order_place(&a->begun);
    recording = true;
}

/* Room for one more call. */
static bool rec_room(uint32_t n_in, uint32_t n_out) {
    uint32_t cap = rec.cap_rec;
    return rec.n_word + 2 + n_in <= WORDS_MAX && dt_grow(&rec.word, &rec.cap_word, rec.n_word + 2 + n_in, sizeof *rec.word) &&
           dt_grow(&rec.inner_at, &cap, rec.n_rec + 1, sizeof *rec.inner_at) && dt_grow(&rec.number_at, &rec.cap_rec, rec.n_rec + 1, sizeof *rec.number_at) &&
           dt_grow(&rec.ext_layout, &rec.cap_ext, rec.n_ext + n_in, sizeof *rec.ext_layout) &&
           dt_grow(&rec.named, &rec.cap_inner, rec.n_inner + n_out, sizeof *rec.named);
}

static uint64_t rec_input(dt_gvalue *v, uint32_t id) {
    if (dt_match_knows(m, id)) return m->slot[id] & UINT32_MAX;
    uint32_t e = rec.n_ext++;
    rec.ext_layout[e] = v->layout;
    v->number = e;
    m->slot[id] = dt_match_tag(m, e);
    return (uint64_t)DT_FIRST << 32 | e;
}

static bool rec_call(const uint64_t *w, const dt_gnode *n) {
    const dt_call *c = n->call;
    const uint64_t *in = w + 3, *out = in + c->n_in;
    if (!rec_room(c->n_in, c->n_out)) return false;
    rec.inner_at[rec.n_rec] = rec.n_inner;
    rec.number_at[rec.n_rec++] = rec.n_number;
    rec.word[rec.n_word++] = w[0];
    rec.word[rec.n_word++] = w[1];
    for (int k = 0; k < c->n_in; k++) {
        uint64_t x = (uint64_t)DT_NOTHING << 32;
        if (c->in[k] && c->in[k]->wrapped) {
            x = (uint64_t)DT_NUMBER << 32;
            rec.n_number++;
        } else if (c->in[k]) {
            if (!n->in[k] || !dt_match_slot(m, (uint32_t)in[k])) return false;
            x = rec_input(n->in[k], (uint32_t)in[k]);
        }
        rec.word[rec.n_word++] = x;
    }
    for (int k = 0; k < c->n_out; k++) {
        if (!n->out[k] || !dt_match_slot(m, (uint32_t)out[k])) return false;
        n->out[k]->number = DT_INNER + rec.n_inner;
        m->slot[out[k]] = dt_match_tag(m, DT_INNER + rec.n_inner++);
    }
    return true;
}

void dt_round_record(const uint64_t *w, dt_gnode *n) {
    if (bad) return;
    n->rec = rec.n_rec;
    if (!possible(&dt_the_engine) || !rec_call(w, n)) bad = true;
    fresh = true;
}

void dt_round_open(void) {
    if (!recording) rec_begin();
}

void dt_round_failed(void) { bad = true; }

void dt_round_commit(const dt_order_commit *c) {
    if (!recording || bad) return;
    if (committing || !dt_grow(&rec.commit, &rec.cap_commit, rec.n_commit + 1, sizeof *rec.commit)) {
        bad = true;
        return;
    }
    commit *x = &rec.commit[rec.n_commit];
    *x = (commit){.order = *c, .at = rec.n_rec, .at_once = fresh};
    x->order.entry.id -= a->begun.id;
    x->order.entry.run -= a->begun.id;
    x->order.entry.begin -= a->begun.time;
    x->order.entry.end -= a->begun.time;
    committing = true;
}

/* A value that only dead calls of c read. */
static void rec_dead_read(commit *c, uint32_t *x, const dt_gvalue *v) {
    for (uint32_t i = 0; i < c->n_read; i++)
        if (VALUE(x[i]) == v->number) return;
    x[c->n_read++] = v->number | 2u << DONATE_SHIFT;
}

static bool rec_commit(commit *c, const dt_graph *g, dt_plan *p) {
    uint32_t most = (uint32_t)g->n + (uint32_t)g->n_ext + (uint32_t)p->n_numbers + (uint32_t)p->n_outs;
    for (int i = p->n_nodes; i < g->n; i++) most += g->node[i].call->n_in;
    if (!dt_grow(&rec.x, &rec.cap_x, rec.n_x + most, sizeof *rec.x)) return false;
    uint32_t *x = rec.x + rec.n_x;
    c->first = rec.n_x;
    for (int i = 0; i < g->n; i++) {
        const dt_gnode *n = &g->node[i];
        *x++ = n->rec;
        for (int k = 0; k < n->call->n_out; k++) rec.named[rec.inner_at[n->rec] + (uint32_t)k] = n->out[k]->named ? NAMED : GONE;
    }
    c->n_rec = (uint32_t)g->n;
    for (int i = 0; i < g->n_ext; i++) x[c->n_read++] = g->ext[i]->number | (uint32_t)dt_gvalue_donatable(g->ext[i]) << DONATE_SHIFT;
    for (int i = p->n_nodes; i < g->n; i++)
        for (int k = 0; k < g->node[i].call->n_in; k++)
            if (g->node[i].in[k] && g->node[i].in[k]->ready) rec_dead_read(c, x, g->node[i].in[k]);
    x += c->n_read;
    for (int k = 0; k < p->n_numbers; k++) {
        const dt_gnode *n = &g->node[p->number[k].node];
        uint32_t at = rec.number_at[n->rec];
        for (uint32_t i = 0; i < p->number[k].in; i++) at += n->call->in[i] && n->call->in[i]->wrapped;
        *x++ = at;
    }
    for (int o = 0; o < p->n_outs; o++) *x++ = rec.inner_at[g->node[p->out[o].node].rec] + (uint32_t)p->out[o].out;
    rec.n_x = (uint32_t)(x - rec.x);
    rec.n_dead += (uint32_t)(g->n - p->n_nodes);
    return true;
}

void dt_round_plan(const dt_graph *g, dt_plan *p) {
    if (!committing) return;
    committing = false;
    commit *c = &rec.commit[rec.n_commit];
    if (bad || !rec_commit(c, g, p)) {
        bad = true;
        return;
    }
    c->plan = p;
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    p->n_rounds++;
    rec.n_commit++;
}

/* ---- scripts ------------------------------------------------------------------------------------------------------------------------------------------ */
static void script_free(round *s) {
    for (uint32_t i = 0; i < s->n_call; i++) dt_call_unref(s->call[i]);
    commits_drop(s);
    bytes_all -= s->bytes;
    void *all[] = {s->word, s->ext_layout, s->named, s->commit, s->x,          s->place, s->inner_at_place, s->run, s->want,
                   s->last, s->ext_last,   s->end,   s->call,   s->call_count, s};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) dt_free(all[i]);
}

static void script_forget(int at) {
    round *s = script[at];
    script[at] = script[--n_scripts];
    if (last == s) last = NULL;
    for (int i = 0; i < n_scripts; i++)
        if (script[i]->next == s) script[i]->next = NULL;
    script_free(s);
}

static void make_room(size_t bytes) {
    while (n_scripts == SCRIPTS || (n_scripts && bytes_all + bytes > bytes_max)) {
        int old = 0;
        for (int i = 1; i < n_scripts; i++)
            if (script[i]->used_at < script[old]->used_at) old = i;
        script_forget(old);
    }
}

void dt_round_forget(dt_plan *p) {
    if (!p->n_rounds) return;
    for (uint32_t i = 0; i < rec.n_commit; i++) bad |= rec.commit[i].plan == p;
    for (int at = n_scripts - 1; at >= 0; at--) {
        bool uses = false;
        for (uint32_t i = 0; i < script[at]->n_commit && !uses; i++) uses = script[at]->commit[i].plan == p;
        if (uses) script_forget(at);
    }
}

/* Takes another reference of every call, and counts how often each comes. */
static bool collect_calls(round *s) {
    uint32_t size = 64, cap_call = 0, cap_count = 0, at = 0;
    while (size < 2 * s->n_rec && size < 1u << 16) size *= 2;
    uint32_t *table = dt_calloc(size, sizeof *table); /* 1 + index */
    bool ok = table != NULL;
    for (uint32_t r = 0; ok && r < s->n_rec; r++, at += 2 + dt_rec_n_in(s->word[at])) {
        dt_call *c = (dt_call *)(uintptr_t)s->word[at + 1];
        uint64_t h = dt_hash_mix(3, (uint64_t)(uintptr_t)c);
        if (c->mesh->ndim) {
            s->switched |= s->last_mesh && s->last_mesh != c->mesh;
            s->last_mesh = c->mesh;
        }
        while (table[h % size] && s->call[table[h % size] - 1] != c) h++;
        uint32_t *k = &table[h % size];
        if (!*k) {
            ok = s->n_call < size / 2 && dt_grow(&s->call, &cap_call, s->n_call + 1, sizeof(dt_call *)) &&
                 dt_grow(&s->call_count, &cap_count, s->n_call + 1, sizeof *s->call_count);
            if (!ok) break;
            dt_call_ref(c);
            s->call_count[s->n_call] = 0;
            s->call[s->n_call++] = c;
            *k = s->n_call;
        }
        s->call_count[*k - 1]++;
    }
    dt_free(table);
    return ok;
}

/* Which results' names a commit depends on: those of results that it makes or leaves out because of them. */
static void list_checks(round *s, const uint32_t *inner_at) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_commit; i++) {
        commit *c = &s->commit[i];
        const uint32_t *r = dt_commit_numbers(s, c);
        c->run = n;
        for (uint32_t k = 0, next = UINT32_MAX; k < c->n_rec; k++) {
            uint32_t first = inner_at[r[k]], end = r[k] + 1 < s->n_rec ? inner_at[r[k] + 1] : s->n_inner;
            if (first != next) {
                s->run[2 * n] = first;
                s->run[2 * n++ + 1] = 0;
            }
            s->run[2 * n - 1] += end - first;
            next = end;
            for (uint32_t v = first; v < end; v++) s->want[v] = s->named[v] == GONE ? 1 : s->place[v] == NO_PLACE || !s->last[s->place[v]] ? 0 : 2;
        }
        c->n_run = n - c->run;
    }
}

/* Results get places in the order in which they are made. */
static bool list_places(round *s) {
    for (uint32_t i = 0; i < s->n_commit; i++) {
        s->commit[i].place = s->n_place;
        s->n_place += (uint32_t)s->commit[i].plan->n_outs;
    }
    s->inner_at_place = dt_malloc(sizeof *s->inner_at_place * s->n_place + 1);
    s->last = dt_calloc(s->n_place + 1, sizeof *s->last);
    if (!s->inner_at_place || !s->last) return false;
    memset(s->place, 0xff, sizeof *s->place * s->n_inner);
    for (uint32_t i = 0; i < s->n_commit; i++) {
        const uint32_t *out = dt_commit_outs(s, &s->commit[i]);
        for (int o = 0; o < s->commit[i].plan->n_outs; o++) {
            s->inner_at_place[s->commit[i].place + (uint32_t)o] = out[o];
            s->place[out[o]] = s->commit[i].place + (uint32_t)o;
        }
    }
    return true;
}

static uint32_t *last_of(round *s, uint32_t v) { return v & DT_INNER ? &s->last[v & ~DT_INNER] : &s->ext_last[v]; }

/* Reads name places from here on; which of them are the last. False: something is read that no commit made. */
static bool list_ends(round *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_commit; i++) {
        const commit *c = &s->commit[i];
        uint32_t *read = dt_commit_numbers(s, c) + c->n_rec;
        for (uint32_t k = 0; k < c->n_read; k++) {
            if (read[k] & DT_INNER) {
                uint32_t place = s->place[VALUE(read[k]) & ~DT_INNER];
                if (place == NO_PLACE) return false;
                read[k] = (read[k] & 3u << DONATE_SHIFT) | DT_INNER | place;
            }
            *last_of(s, VALUE(read[k])) = i + 1;
        }
    }
    for (uint32_t i = 0; i < s->n_commit; i++) {
        commit *c = &s->commit[i];
        const uint32_t *read = dt_commit_numbers(s, c) + c->n_rec;
        c->end = n;
        for (uint32_t k = 0; k < c->n_read; k++)
            if (*last_of(s, VALUE(read[k])) == i + 1) s->end[n++] = VALUE(read[k]);
        c->n_end = n - c->end;
    }
    return true;
}

static void *copy(const void *from, size_t n, size_t each) {
    void *p = dt_malloc(n * each + 1);
    if (p && n) memcpy(p, from, n * each);
    return p;
}

/* rec as a script; NULL: out of host memory. */
static round *script_new(void) {
    size_t bytes = 8 * (size_t)rec.n_word + 12 * (size_t)rec.n_inner + 8 * (size_t)rec.n_rec + 16 * (size_t)rec.n_ext + 12 * (size_t)rec.n_x +
                   sizeof(commit) * rec.n_commit;
    make_room(bytes);
    round *s = bytes > bytes_max ? NULL : dt_malloc(sizeof *s);
    if (!s) return NULL;
    dt_order_state now;
    dt_order_place(&now);
    *s = rec;
    s->word = copy(rec.word, rec.n_word, sizeof *rec.word);
    s->ext_layout = copy(rec.ext_layout, rec.n_ext, sizeof *rec.ext_layout);
    s->named = copy(rec.named, rec.n_inner, sizeof *rec.named);
    s->commit = copy(rec.commit, rec.n_commit, sizeof *rec.commit);
    s->x = copy(rec.x, rec.n_x, sizeof *rec.x);
    s->run = dt_malloc(2 * sizeof *s->run * rec.n_rec + 1);
    s->want = dt_malloc(rec.n_inner + 1);
    s->place = dt_malloc(sizeof *s->place * rec.n_inner + 1);
    s->end = dt_malloc(sizeof *s->end * rec.n_x + 1);
    s->ext_last = dt_calloc(rec.n_ext + 1, sizeof *s->ext_last);
    s->inner_at = s->number_at = NULL;
    s->bytes = bytes;
    s->n_segments = now.id - a->begun.id;
    s->seconds = now.time - a->begun.time;
    bytes_all += bytes;
    if (s->commit)
        rec.n_commit = 0; /* their references are the script's */
    else
        s->n_commit = 0;
    bool ok = s->word && s->ext_layout && s->named && s->commit && s->x && s->run && s->want && s->place && s->end && s->ext_last && collect_calls(s) &&
              list_places(s) && list_ends(s);
    if (!ok) {
        script_free(s);
        return NULL;
    }
    list_checks(s, rec.inner_at);
    return s;
}

/* Was every call dispatched by a commit that was seen? */
static bool is_whole(void) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < rec.n_commit; i++) n += rec.commit[i].n_rec;
    return n == rec.n_rec && !committing;
}

static void came(round *s) {
    if (last) last->next = s;
    last = s;
    if (s) s->used_at = ++clock_used;
}

void dt_round_end(dt_engine *e) {
    if (!recording) return;
    round *s = !bad && rec.n_rec >= CALLS_MIN && is_whole() && possible(e) ? script_new() : NULL;
    if (s) script[n_scripts++] = s;
    came(s);
    rec_clear();
}

/* ---- which script -------------------------------------------------------------------------------------------------------------------------------------- */
static bool complete(void) { return m->at == a->s->n_word; }
bool dt_round_active(void) { return a->s != NULL; }
bool dt_round_complete(void) { return a->s && complete(); }

static round *candidate(const uint64_t *w) {
    round *best = NULL;
    for (int i = 0; i < n_scripts; i++) {
        round *s = script[i];
        if (s->tried == m->epoch || s->word[0] != w[0] || s->word[1] != w[1]) continue;
        if (last && s == last->next) return s;
        if (!best || s->used_at > best->used_at) best = s;
    }
    return best;
}

static uint32_t end_of(const round *s, uint32_t n_commit) { return n_commit < s->n_commit ? s->commit[n_commit].first : s->n_x; }

static uint32_t places(const round *s, uint32_t n_commit) { return n_commit < s->n_commit ? s->commit[n_commit].place : s->n_place; }

/* Could s have been the script so far? */
static bool begins_alike(const round *s) {
    const round *was = a->s;
    if (s->n_word < m->at || s->n_commit < a->commit || memcmp(s->word, was->word, m->at * sizeof *s->word) != 0) return false;
    if (end_of(s, a->commit) != end_of(was, a->commit) || (s->n_commit > a->commit && s->commit[a->commit].at < m->rec)) return false;
    if (end_of(s, a->commit) && memcmp(s->x, was->x, end_of(s, a->commit) * sizeof *s->x) != 0) return false;
    for (uint32_t i = 0; i < a->commit; i++) {
        const commit *p = &s->commit[i], *q = &was->commit[i];
        if (p->plan != q->plan || p->at != q->at || p->at_once != q->at_once || p->n_rec != q->n_rec || p->n_read != q->n_read) return false;
    }
    for (uint32_t e = 0; e < m->n_ext; e++)
        if (s->ext_layout[e] != was->ext_layout[e] || dt_play_unread(s, e, a->commit) != dt_play_unread(was, e, a->commit)) return false;
    for (uint32_t i = 0; i < places(was, a->commit); i++)
        if (a->made[i].v && dt_play_unread(s, DT_INNER | i, a->commit) != dt_play_unread(was, DT_INNER | i, a->commit)) return false;
    return true;
}

/* Another script that agrees with all that was taken. */
static bool switch_script(void) {
    for (round *s; (s = candidate(a->s->word));) {
        s->tried = m->epoch;
        if (!begins_alike(s) || !dt_play_room(s)) continue;
        dt_play_expect(s);
        return true;
    }
    return false;
}

static bool begin(dt_engine *e, const uint64_t *w) {
    if (!n_scripts || e->graph.n || !possible(e)) return false;
    dt_match_begin(m);
    round *s = candidate(w);
    if (!s || !dt_play_room(s)) return false;
    dt_order_place(&a->begun);
    a->commit = 0;
    dt_play_expect(s);
    return true;
}

/* ---- its end --------------------------------------------------------------------------------------------------------------------------------------------- */
/* All records were taken and all plans ran. */
static void finish(dt_engine *e) {
    round *s = a->s;
    for (uint32_t i = 0; i < s->n_call; i++) dt_call_unref_many(s->call[i], s->call_count[i]);
    e->stats.nodes += s->n_rec;
    e->stats.nodes_dead += s->n_dead;
    dt_order_skip(s->n_segments, s->seconds, s->n_rec, s->last_mesh, s->switched);
    for (uint32_t i = 0; i < s->n_commit; i++)
        for (int o = 0; o < s->commit[i].plan->n_outs; o++) (void)dt_play_value(&s->commit[i], o); /* what outlives the round is a value */
    a->s = NULL;
    dt_cache_replayed(s->n_rec);
    came(s);
}

/* ---- a mismatch ---------------------------------------------------------------------------------------------------------------------------------------- */
/* The recorded round is the beginning of the replayed one. */
static void rec_prefix(const round *s) {
    rec_clear();
    recording = true;
    uint32_t cap = rec.cap_rec, n_x = end_of(s, a->commit);
    bad = !(dt_grow(&rec.word, &rec.cap_word, m->at, sizeof *rec.word) && dt_grow(&rec.inner_at, &cap, m->rec, sizeof *rec.inner_at) &&
            dt_grow(&rec.number_at, &rec.cap_rec, m->rec, sizeof *rec.number_at) && dt_grow(&rec.ext_layout, &rec.cap_ext, m->n_ext, sizeof *rec.ext_layout) &&
            dt_grow(&rec.named, &rec.cap_inner, m->n_inner, sizeof *rec.named) && dt_grow(&rec.commit, &rec.cap_commit, a->commit, sizeof *rec.commit) &&
            dt_grow(&rec.x, &rec.cap_x, n_x, sizeof *rec.x));
    if (bad) return;
    memcpy(rec.word, s->word, m->at * sizeof *rec.word);
    memcpy(rec.named, s->named, m->n_inner * sizeof *rec.named);
    if (m->n_ext) memcpy(rec.ext_layout, s->ext_layout, m->n_ext * sizeof *rec.ext_layout);
    if (n_x) memcpy(rec.x, s->x, n_x * sizeof *rec.x);
    for (uint32_t i = 0; i < a->commit; i++) {
        uint32_t *read = dt_commit_numbers(&rec, &s->commit[i]) + s->commit[i].n_rec;
        for (uint32_t k = 0; k < s->commit[i].n_read; k++)
            if (read[k] & DT_INNER) read[k] = (read[k] & 3u << DONATE_SHIFT) | DT_INNER | s->inner_at_place[VALUE(read[k]) & ~DT_INNER];
        rec.commit[i] = s->commit[i];
        atomic_fetch_add_explicit(&s->commit[i].plan->refs, 1, memory_order_relaxed);
        s->commit[i].plan->n_rounds++;
        rec.n_dead += s->commit[i].n_rec - (uint32_t)s->commit[i].plan->n_nodes;
    }
    rec.n_commit = a->commit;
    rec.n_x = n_x;
    rec.n_word = m->at;
    rec.n_ext = m->n_ext;
}

typedef struct hand { /* what was taken goes to order.c */
    dt_engine *e;
    const round *s;
    uint32_t *from;              /* (n_inner,) the results' segments */
    uint8_t *done;               /* (n_rec,) it was dispatched */
    const dt_order_commit **due; /* (n_commit,) */
    uint32_t n_due;
} hand;

static void hand_ghost(hand *h, dt_call *c, uint32_t segment, uint32_t inner) {
    uint32_t n_gone = 0;
    for (int k = 0; k < c->n_out; k++, inner++) {
        if (h->from) h->from[inner] = segment;
        if (a->handed[inner])
            a->handed[inner]->segment = segment;
        else
            n_gone++;
    }
    dt_order_ghost(segment, n_gone);
    dt_call_unref(c);
    h->e->stats.nodes++;
}

static void hand_node(hand *h, dt_graph *g, dt_call *c, uint32_t segment, uint32_t r, const uint64_t *word, uint32_t inner, uint32_t number) {
    dt_gvalue *v[c->n_in + 1];
    uint64_t in[c->n_in + 1];
    for (int k = 0; k < c->n_in; k++) {
        uint32_t value = (uint32_t)word[k], what = (uint32_t)(word[k] >> 32);
        in[k] = what == DT_NUMBER ? m->number[number++] : 0;
        v[k] = what >= DT_NUMBER ? NULL : value & DT_INNER ? a->handed[value - DT_INNER] : m->ext[value];
    }
    dt_engine_node(g, c, m->site[r], v, in, a->handed + inner);
    if (g && g->n) g->node[g->n - 1].rec = r;
    for (int k = 0; k < c->n_out; k++, inner++) {
        dt_gvalue *o = a->handed[inner];
        if (h->from) h->from[inner] = segment;
        if (!o) continue;
        o->client = !a->gone[inner] && dt_engine_value_put(m->out_id[inner], o);
        o->segment = segment;
        o->number = DT_INNER + inner;
    }
}

static void hand_call(hand *h, uint32_t r, const uint64_t *word, uint32_t inner, uint32_t number) {
    dt_call *c = (dt_call *)(uintptr_t)word[1];
    uint32_t from[c->n_in + 1], segment = 0, due = h->n_due;
    for (int k = 0; k < c->n_in; k++) {
        uint32_t value = (uint32_t)word[2 + k];
        bool known = word[2 + k] >> 32 < DT_NUMBER;
        from[k] = !known ? 0 : !(value & DT_INNER) ? a->from_ext[value] : h->from ? h->from[value - DT_INNER] : 0;
    }
    while (h->n_due < a->commit && h->s->commit[h->n_due].at <= r) h->n_due++;
    if (h->due && h->n_due > due) dt_order_due(h->due + due, h->n_due - due, a->begun.id);
    (void)dt_order_active(c->mesh);
    dt_graph *g = dt_order_graph(c, from, &segment);
    bool ghost = h->done ? h->done[r] : false;
    if (g && ghost)
        hand_ghost(h, c, segment, inner);
    else
        hand_node(h, g, c, segment, r, word + 2, inner, number);
    if (g && dt_engine_cut(h->e, dt_order_calls(segment), c, NULL)) dt_order_cut(segment);
}

/* All that was made, into a->handed; the uses that replaying counted are no more. */
static void hand_values(const round *s) {
    memset(a->handed, 0, sizeof *a->handed * m->n_inner);
    for (uint32_t i = 0; i < a->commit; i++) {
        const commit *c = &s->commit[i];
        for (int o = 0; o < c->plan->n_outs; o++) {
            dt_gvalue *v = a->handed[dt_commit_outs(s, c)[o]] = dt_play_value(c, o);
            if (v) v->uses -= !dt_play_unread(s, DT_INNER | (c->place + (uint32_t)o), a->commit);
        }
    }
    for (uint32_t e = 0; e < m->n_ext; e++)
        if (m->ext[e]) m->ext[e]->uses -= !dt_play_unread(s, e, a->commit);
}

/* What was taken is recorded the usual way; what ran already, as ghosts. */
static void hand_over(dt_engine *e) {
    round *s = a->s;
    hand h = {
        .e = e, .s = s, .from = dt_calloc(m->n_inner + 1, sizeof *h.from), .done = dt_calloc(m->rec + 1, 1), .due = dt_calloc(a->commit + 1, sizeof *h.due)};
    rec_prefix(s);
    bad |= !h.from || !h.done || !h.due;
    for (uint32_t i = 0; i < a->commit; i++) {
        const uint32_t *r = dt_commit_numbers(s, &s->commit[i]);
        if (h.due) h.due[i] = &s->commit[i].order;
        for (uint32_t k = 0; h.done && k < s->commit[i].n_rec; k++) h.done[r[k]] = 1;
    }
    hand_values(s);
    a->s = NULL;
    dt_order_ghosts(true);
    uint32_t inner = 0, number = 0;
    const uint64_t *w = s->word;
    for (uint32_t r = 0; r < m->rec; r++, w += 2 + dt_rec_n_in(w[0])) {
        const dt_call *c = (dt_call *)(uintptr_t)w[1];
        if (!bad) rec.inner_at[r] = inner, rec.number_at[r] = number;
        hand_call(&h, r, w, inner, number);
        inner += c->n_out;
        for (int k = 0; k < c->n_in; k++) number += w[2 + k] >> 32 == DT_NUMBER;
    }
    dt_order_ghosts(false);
    rec.n_rec = m->rec;
    rec.n_inner = inner;
    rec.n_number = number;
    for (uint32_t i = 0; i < m->n_inner; i++)
        if (a->handed[i]) dt_gvalue_release(a->handed[i]);
    for (uint32_t i = 0; i < m->n_ext; i++)
        if (m->ext[i]) dt_gvalue_release(m->ext[i]);
    dt_free(h.from);
    dt_free(h.done);
    dt_free(h.due);
}

static uint32_t last_site(void) { return m->rec ? m->site[m->rec - 1] : 0; }

static void mismatch(dt_engine *e, const char *text, const dt_call *was, const dt_call *is, int input, uint32_t site) {
    dt_cache_mismatch(text, was, is, input, site);
    hand_over(e);
}

/* ---- records -------------------------------------------------------------------------------------------------------------------------------------------- */
/* The next call as the script has it, and what is dispatched before and after it. NULL: it was taken. *taken: it was, but a commit behind it could not be made. */
static const char *take(dt_engine *e, const uint64_t *w, dt_why *y, bool *taken) {
    y->input = -1;
    if (complete() || w[0] != m->word[m->at] || w[1] != m->word[m->at + 1]) return "another call";
    const char *text = dt_play_commits(e, false);
    if (text) return text;
    uint32_t n_ext = m->n_ext;
    if (!dt_match_call(m, w, y)) return y->text;
    for (; n_ext < m->n_ext; n_ext++) dt_play_taken(n_ext);
    *taken = true;
    return dt_play_commits(e, true);
}

bool dt_round_call(dt_engine *e, const uint64_t *w) {
    if (!a->s) {
        if (recording || !begin(e, w)) return false;
    }
    if (DT_UNLIKELY(dt_engine_flush_now())) {
        hand_over(e);
        return false;
    }
    dt_why y;
    bool taken = false;
    const char *text;
    while (DT_UNLIKELY((text = take(e, w, &y, &taken)) != NULL)) {
        bool call = text == y.text || (!taken && strcmp(text, "another call") == 0);
        const dt_call *was = complete() ? NULL : (const dt_call *)(uintptr_t)a->s->word[m->at + 1];
        if (!taken && switch_script()) continue;
        mismatch(e, text, call ? was : NULL, call ? (const dt_call *)(uintptr_t)w[1] : NULL, y.input, (uint32_t)w[2]);
        break;
    }
    return !text || taken;
}

bool dt_round_drop(dt_engine *e, uint32_t id) {
    fresh = false;
    if (!dt_match_knows(m, id)) return false;
    uint32_t v = (uint32_t)m->slot[id];
    m->slot[id] = 0;
    if (!a->s) return false;
    dt_play_dropped(e, v, id);
    return true;
}

void dt_round_settle(dt_engine *e, const char *why) {
    while (a->s) {
        const char *text = complete() ? dt_play_commits(e, false) : why;
        if (!text) {
            finish(e);
            return;
        }
        if (!switch_script()) mismatch(e, text, NULL, NULL, -1, last_site());
    }
}

void dt_round_free(void) {
    rec_clear();
    while (n_scripts) script_forget(n_scripts - 1);
    void *all[] = {rec.word, rec.inner_at, rec.number_at, rec.ext_layout, rec.named, rec.commit, rec.x};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) dt_free(all[i]);
    memset(&rec, 0, sizeof rec);
    dt_play_free();
    last = NULL;
}
