/* Where collectives stand in the program, and which of them share their meetings.
 *
 * A collective may stand anywhere between the call that makes its input and the first that reads its output. It is moved AHEAD calls towards the
 * former, so that gathers are under way before they are needed; not further, since what it makes then lives longer. Collectives of the same
 * devices whose ranges have a place in common go there together, up to BUCKET bytes (more would only lengthen lives): many small ones then meet as one (comm.h). Each still moves
 * exactly what it would alone, so that no bit changes.
 *
 *     before:   g1 W1 g2 W2 … s1 … s2       g: gathers, W: their users, s: sums of results
 *     after:    [g1 g2] W1 W2 … [s1 s2]
 *
 * Positions are keys: calls have even ones, 2 * node; what is moved has odd ones, between two calls. They are the same in all programs, so all devices
 * meet in the same order. A collective that reads another's result stays where it is. Runs before fusion and before memory is laid out. */
#include <stdlib.h>
#include <string.h>

#include "passes/build.h"

enum { AHEAD = 4, SPAN = 48, BUCKET = 1 << 18, OPEN = 8, MOST = 256 };

typedef struct range {
    int64_t from, to, key; /* legal keys, the one chosen */
    bool fixed;
    int bucket; /* -1: none */
} range;

typedef struct bucket {
    int64_t from, to, bytes;
    int head, n;
} bucket;

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "plan: out of host memory"); }
static bool meets(const dt_step *s) { return s->in.kind == DT_I_COLL && s->in.coll->index >= 0; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- ranges ------------------------------------------------------------------------------------------------------------------------------- */
/* From one program: inputs' writers bound a collective from below, the readers of its output from above. writer: (n_st,) step or -1; made_by: (n_st,)
 * the collective that makes a storage and has met no reader yet, or -1. */
static void bound(dt_prog *p, range *r, int *writer, int *made_by, int *writes) {
    for (int i = 0; i < p->n_st; i++) {
        writer[i] = made_by[i] = -1;
        writes[i] = p->st[i].kind == DT_ST_EXT;
    }
    for (int i = 0; i < p->n_step; i++)
        for (int k = p->step[i].in.n_in; k < p->step[i].in.n_in + p->step[i].in.n_out; k++)
            if (p->step[i].in.operand[k].slot >= 0) writes[p->step[i].in.operand[k].slot]++;
    for (int i = 0; i < p->n_step; i++) {
        const dt_instr *s = &p->step[i].in;
        range *mine = meets(&p->step[i]) ? &r[s->coll->index] : NULL;
        for (int k = 0; k < s->n_in + s->n_out; k++) {
            int st = s->operand[k].slot;
            if (st < 0) continue;
            if (made_by[st] >= 0) {
                range *x = &r[made_by[st]];
                x->to = least(x->to, 2 * (int64_t)s->node - 1);
                made_by[st] = -1;
            }
            if (mine) mine->fixed |= writes[st] > 1; /* buffers that take turns */
            if (mine && writer[st] >= 0) {
                const dt_step *w = &p->step[writer[st]];
                mine->from = most(mine->from, 2 * (int64_t)w->in.node + 1);
                mine->fixed |= meets(w) || k >= s->n_in;
            }
        }
        for (int k = 0; k < s->n_out; k++) {
            int st = s->operand[s->n_in + k].slot;
            if (st < 0) continue;
            writer[st] = i;
            if (mine) made_by[st] = s->coll->index;
        }
    }
}

static dt_status find_ranges(dt_build *b, range **out) {
    range *r = DT_ARENA_ARRAY(&b->tmp, range, b->n_colls);
    int n_st = 0;
    for (int q = 0; q < b->n_prog; q++) n_st = n_st > b->prog[q].n_st ? n_st : b->prog[q].n_st;
    int *writer = DT_ARENA_ARRAY(&b->tmp, int, n_st + 1), *made_by = DT_ARENA_ARRAY(&b->tmp, int, n_st + 1), *writes = DT_ARENA_ARRAY(&b->tmp, int, n_st + 1);
    if (!r || !writer || !made_by || !writes) return no_memory();
    for (int c = 0; c < b->n_colls; c++) r[c] = (range){.from = -1, .to = 2 * (int64_t)b->n_live + 1, .bucket = -1};
    for (int q = 0; q < b->n_prog; q++) bound(&b->prog[q], r, writer, made_by, writes);
    for (int c = 0; c < b->n_colls; c++) {
        int64_t at = 2 * (int64_t)b->coll[c]->node;
        r[c].fixed |= r[c].from > r[c].to || b->coll[c]->exchange;
        r[c].key = r[c].fixed ? at : least(most(at - 2 * AHEAD + 1, r[c].from), r[c].to);
    }
    *out = r;
    return DT_OK;
}

/* ---- buckets ------------------------------------------------------------------------------------------------------------------------------ */
static int64_t weight(const dt_coll *c) { return c->bytes_moved / (c->n > 1 ? c->n : 1); }

static bool fits(const dt_build *b, const bucket *k, const range *r, int c) {
    const dt_coll *x = b->coll[c], *head = b->coll[k->head];
    int64_t apart = (int64_t)x->node - head->node;
    return k->n < MOST && k->bytes + weight(x) <= BUCKET && apart <= SPAN && apart >= -SPAN && dt_coll_meet_alike(x, head) &&
           most(k->from, r[c].from) <= least(k->to, r[c].to);
}

static const range *sort_by;
static int by_key(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    if (sort_by[x].key != sort_by[y].key) return sort_by[x].key < sort_by[y].key ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Greedily, in the order of where they would stand alone: into the first of the last few buckets that has room. */
static dt_status fill(dt_build *b, range *r) {
    int *order = DT_ARENA_ARRAY(&b->tmp, int, b->n_colls), n = 0;
    bucket *k = DT_ARENA_ARRAY(&b->tmp, bucket, b->n_colls);
    if (!order || !k) return no_memory();
    for (int c = 0; c < b->n_colls; c++) order[c] = c;
    sort_by = r; /* one thread makes plans */
    qsort(order, (size_t)b->n_colls, sizeof *order, by_key);
    for (int i = 0; i < b->n_colls; i++) {
        int c = order[i], at = n > OPEN ? n - OPEN : 0;
        if (r[c].fixed) continue;
        while (at < n && !fits(b, &k[at], r, c)) at++;
        if (at == n) k[n++] = (bucket){.from = r[c].from, .to = r[c].to, .head = c};
        k[at].from = most(k[at].from, r[c].from);
        k[at].to = least(k[at].to, r[c].to);
        k[at].bytes += weight(b->coll[c]);
        k[at].n++;
        r[c].bucket = at;
    }
    int64_t *key = DT_ARENA_ARRAY(&b->tmp, int64_t, n + 1);
    if (!key) return no_memory();
    for (int i = 0; i < n; i++) key[i] = least(most(r[k[i].head].key, k[i].from), k[i].to);
    for (int c = 0; c < b->n_colls; c++)
        if (r[c].bucket >= 0) r[c].key = key[r[c].bucket];
    return DT_OK;
}

/* ---- the steps in their new order ------------------------------------------------------------------------------------------------------------ */
typedef struct place {
    int64_t key;
    int bucket, at;
} place;

static int by_place(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    if (x->bucket != y->bucket) return x->bucket < y->bucket ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static dt_status reorder(dt_build *b, dt_prog *p, const range *r) {
    place *x = DT_ARENA_ARRAY(&b->tmp, place, p->n_step + 1);
    dt_step *steps = DT_ARENA_ARRAY(&b->tmp, dt_step, p->n_step + 1);
    if (!x || !steps) return no_memory();
    for (int i = 0; i < p->n_step; i++) {
        const dt_step *s = &p->step[i];
        x[i] = (place){2 * (int64_t)s->in.node, -1, i};
        if (meets(s)) {
            x[i].key = r[s->in.coll->index].key;
            x[i].bucket = r[s->in.coll->index].bucket;
        }
    }
    qsort(x, (size_t)p->n_step, sizeof *x, by_place);
    for (int i = 0; i < p->n_step; i++) {
        steps[i] = p->step[x[i].at];
        steps[i].bucket = x[i].bucket;
    }
    p->step = steps;
    p->cap_step = p->n_step;
    return DT_OK;
}

dt_status dt_build_bucket(dt_build *b) {
    range *r = NULL;
    if (b->n_colls == 0) return DT_OK;
    DT_TRY(find_ranges(b, &r));
    DT_TRY(fill(b, r));
    for (int q = 0; q < b->n_prog; q++) DT_TRY(reorder(b, &b->prog[q], r));
    return DT_OK;
}
