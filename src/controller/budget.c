/* Memory budgets: which values give up their memory when a subgraph is about to be dispatched.
 *
 * A plan says before it runs what it needs on each device: its arena and its results. If that and what is allocated exceed the device's budget (or
 * its limit), buffers are given up until it fits: first those with the least
 *
 *     seconds to make their values again / (bytes * calls since they were last used)
 *
 * where the seconds include whatever else would have to be made again, by the cost model: an activation function or a norm goes before a matrix
 * product, what lies idle before what was just used. A buffer goes as a whole, with all values that lie in it. What the subgraph, or what was
 * split off it, reads stays. Everything here follows from the stream of calls; timing has no say.
 *
 * Devices of other nodes are counted here (remote.c), by what was given out of them; what there is held for readers elsewhere, and is not known here, comes on
 * top. Controller thread only. */
#include <stdlib.h>

#include "controller/remat.h"
#include "controller/remote.h"
#include "passes/options.h"

typedef struct candidate {
    dt_buf *buf;
    dt_gvalue *first; /* chained by `beside` */
    uint32_t group, n;
    uint64_t used_at;
    double score;
    bool fixed;
} candidate;

/* ---- settings ------------------------------------------------------------------------------------------------------------------------------ */
static void any_cap(void *any, dt_device_state *s) { *(bool *)any |= dt_memory_cap(&s->alloc.stats) > 0; }
static void set_budget(void *bytes, dt_device_state *s) { s->alloc.stats.budget = *(int64_t *)bytes; }

static void find_out(void) {
    bool any = dt_the_devices.budget > 0;
    dt_devices_each(any_cap, &any);
    any |= dt_options_get()->evict > 0 || (dt_nodes > 1 && dt_remote_capped());
    dt_the_engine.remat = any;
}

void dt_budget_set(dt_device d, int64_t bytes, bool all) {
    dt_device_state *s;
    if (all) {
        dt_the_devices.budget = bytes;
        dt_devices_each(set_budget, &bytes);
        if (dt_nodes > 1) dt_remote_budget_all(bytes);
    } else if (!dt_device_here(d))
        dt_remote_limit(d, bytes, true);
    else if (dt_device_get(d, &s) == DT_OK)
        s->alloc.stats.budget = bytes;
    find_out();
}

void dt_limit_set(dt_device d, int64_t bytes) {
    dt_device_state *s;
    if (!dt_device_here(d))
        dt_remote_limit(d, bytes, false);
    else if (dt_device_get(d, &s) == DT_OK)
        s->alloc.stats.limit = bytes;
    find_out();
}

typedef struct account { /* of a device, here or elsewhere */
    dt_memory_stats *m;
    const dt_device_state *here; /* NULL: elsewhere */
} account;

static dt_status account_of(dt_device d, account *a) {
    dt_device_state *s = NULL;
    if (dt_device_here(d)) DT_TRY(dt_device_get(d, &s));
    *a = (account){s ? &s->alloc.stats : dt_remote_memory(d), s};
    return a->m ? DT_OK : dt_fail(DT_E_NOMEM, "a budget: out of host memory");
}

/* Bytes that values take; what is only held for other devices to read does not count, until it is really wanted. */
static int64_t in_use(const account *a) { return a->m->allocated - (a->here ? a->here->held : 0); }

/* ---- candidates -------------------------------------------------------------------------------------------------------------------------------- */
static int position(const dt_mesh *m, dt_device d) {
    for (int i = 0; i < m->n; i++)
        if (m->dev[i] == d) return i;
    return -1;
}

static void pin_node(const dt_gnode *n, uint32_t stamp) {
    for (int k = 0; k < n->call->n_in; k++)
        if (n->in[k]) n->in[k]->pin = stamp;
}

/* What g reads, and what was made again for the next of the program's own calls: else two inputs of one call could drive each other out for ever. */
static void pin(const dt_graph *g, uint32_t stamp) {
    for (int i = 0; i < g->n; i++) pin_node(&g->node[i], stamp);
    if (g->n && !g->node[g->n - 1].again) return;
    for (g = g->later; g; g = g->later)
        for (int i = 0; i < g->n; i++) {
            pin_node(&g->node[i], stamp);
            if (!g->node[i].again) return;
        }
}

/* Buffers on d with the values that lie in them. */
static candidate *collect(dt_device d, uint32_t stamp, int *n) {
    dt_engine *e = &dt_the_engine;
    static uint32_t groups;
    uint32_t first = groups + 1;
    int cap = 256;
    candidate *c = dt_malloc(sizeof *c * (size_t)cap);
    *n = 0;
    for (dt_gvalue *v = c ? e->with_recipe : NULL; v; v = v->after) {
        if (!v->ready || !v->part) continue;
        int pos = position(v->meta->mesh, d);
        dt_buf *b = pos >= 0 && v->part[pos] ? v->part[pos]->buf : NULL;
        if (!b || !b->bytes) continue;
        if (b->group - first >= (uint32_t)*n || c[b->group - first].buf != b) { /* numbers of earlier looks stay in buffers, and wrap in the end */
            if (*n == cap) {
                candidate *t = dt_realloc(c, sizeof *c * (size_t)(cap *= 2));
                if (!t) break;
                c = t;
            }
            b->group = ++groups;
            c[(*n)++] = (candidate){.buf = b, .group = b->group};
        }
        candidate *x = &c[b->group - first];
        v->group = b->group;
        v->beside = x->first;
        x->first = v;
        x->n++;
        if (v->used_at > x->used_at) x->used_at = v->used_at;
        x->fixed |= v->pin == stamp;
    }
    return c;
}

static bool score(candidate *c) {
    double seconds = 0, one;
    if (c->fixed || c->n != c->buf->live) return false;
    for (const dt_gvalue *v = c->first; v; v = v->beside) {
        if (!dt_remat_cost(v, c->group, &one)) return false;
        seconds += one;
    }
    c->score = seconds / ((double)c->buf->bytes * (double)(dt_the_engine.calls - c->used_at + 1));
    return true;
}

static int by_score(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? -1 : 1;
    return x->group < y->group ? -1 : x->group > y->group; /* older first */
}

static void give_up(candidate *c, dt_memory_stats *m) {
    m->evicted++;
    m->evicted_bytes += (int64_t)c->buf->bytes;
    dt_the_engine.stats.evicted++;
    for (dt_gvalue *v = c->first; v; v = v->beside) dt_remat_evict(v);
}

/* What is given up makes others dearer: the cheapest is looked at again before it goes, and goes to its new place if it was one of those. */
static bool evict(dt_device d, const account *a, int64_t need, uint32_t stamp, bool *evicted) {
    int n, kept = 0;
    int64_t cap = dt_memory_cap(a->m);
    candidate *c = collect(d, stamp, &n);
    int64_t most = 0;
    for (int i = 0; c && i < n; i++)
        if (score(&c[i])) {
            most += (int64_t)c[i].buf->bytes;
            c[kept++] = c[i];
        }
    if (in_use(a) + need - most > cap) kept = 0; /* in vain */
    if (c) qsort(c, (size_t)kept, sizeof *c, by_score);
    for (int i = 0; c && i < kept && in_use(a) + need > cap; i++) {
        double before = c[i].score;
        if (!score(&c[i])) continue;
        int to = i;
        if (c[i].score > before * 1.0001) {
            candidate x = c[i];
            for (; to + 1 < kept && c[to + 1].score < x.score; to++) c[to] = c[to + 1];
            c[to] = x;
        }
        if (to != i) {
            i--;
            continue;
        }
        give_up(&c[i], a->m);
        *evicted = true;
    }
    dt_free(c);
    return in_use(a) + need <= cap;
}

/* For tests: values lose their memory at random. */
void dt_budget_shake(void) {
    static uint64_t state = 2463534242u;
    double seconds;
    dt_the_engine.remat = true;
    for (dt_gvalue *v = dt_the_engine.with_recipe; v; v = v->after) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17; /* xorshift64 */
        if (v->ready && v->node < 0 && state % dt_options_get()->evict == 0 && dt_remat_cost(v, 0, &seconds)) dt_remat_evict(v);
    }
}

/* ---- a plan --------------------------------------------------------------------------------------------------------------------------------- */
static int64_t needs(const dt_program *p) {
    int64_t n = p->n_temp ? (int64_t)dt_alloc_rounded(p->arena_bytes) : 0;
    for (int k = 0; k < p->n_out; k++) n += (int64_t)dt_alloc_rounded(p->out_bytes[k]);
    return n;
}

static dt_status does_not_fit(dt_device d, const account *a, const dt_program *p, int64_t need) {
    dt_memory_stats *m = a->m;
    bool budget = dt_memory_cap(m) != m->limit;
    int64_t arena = p->n_temp ? (int64_t)dt_alloc_rounded(p->arena_bytes) : 0;
    m->n_oom++;
    return dt_fail(DT_E_NOMEM,
                   "out of memory: %lld bytes wanted on %s:%u (%lld for results, %lld while it runs), %lld in use that cannot be computed again, %s %lld",
                   (long long)need, dt_device_type_name(dt_device_kind(d)), dt_device_index(d), (long long)(need - arena), (long long)arena,
                   (long long)in_use(a), budget ? "budget" : "limit", (long long)dt_memory_cap(m));
}

dt_status dt_budget_fit(const dt_graph *g, const dt_plan *p, bool *evicted) {
    uint32_t stamp = 0;
    *evicted = false;
    for (int i = 0; i < p->n_programs; i++) {
        dt_device d = p->program[i].device;
        account a;
        DT_TRY(account_of(d, &a));
        int64_t cap = dt_memory_cap(a.m), need = needs(&p->program[i]);
        if (!cap || in_use(&a) + need <= cap) continue;
        if (!stamp) pin(g, stamp = ++dt_the_engine.pin);
        if (!evict(d, &a, need, stamp, evicted)) return does_not_fit(d, &a, &p->program[i], need);
    }
    if (*evicted || !dt_the_devices.n_held) return DT_OK;
    for (int i = 0; i < p->n_programs; i++) { /* memory that others still read counts once it is really wanted */
        dt_device_state *s;
        if (!dt_device_here(p->program[i].device) || dt_device_get(p->program[i].device, &s) || !s->held) continue;
        int64_t cap = dt_memory_cap(&s->alloc.stats);
        if (!cap || s->alloc.stats.allocated + needs(&p->program[i]) <= cap) continue;
        dt_devices_quiesce();
        dt_bufs_sweep();
    }
    return DT_OK;
}
