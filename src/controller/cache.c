/* Plans by key, and, on request, what keeps a plan from being found.
 *
 * Bounded: the least recently used plan leaves when the limit is reached (DTORCH_PLANS, dt_cache_limit; 256). Reasons are counted by text, at most
 * REASONS different ones (the rest are "others"), and the last RECENT of them are kept with the line of the call. A subgraph that needs a new plan is
 * compared with the cached plan that begins with the most calls to the same operators: the first thing that differs is the reason. That search costs a
 * fraction of building the plan.
 *
 * Threads: the controller's, but for the counters that dt_cache_stats_get, dt_cache_reasons and dt_cache_recent read under a lock. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "controller/remote.h"
#include "controller/repeat.h"
#include "controller/round.h"
#include "passes/options.h"

enum { PLANS = 256, REASONS = 256, RECENT = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic size_t limit; /* 0: not set yet */
static dt_cache_stats stats;
static dt_cache_reason reasons[REASONS];
static size_t n_reasons;
static dt_cache_event recent[RECENT];
static uint64_t n_recent;

size_t dt_cache_limit_get(void) {
    size_t n = atomic_load(&limit);
    if (n) return n;
    const char *text = getenv("DTORCH_PLANS");
    long wanted = text ? strtol(text, NULL, 10) : 0;
    n = wanted > 0 ? (size_t)wanted : PLANS;
    atomic_store(&limit, n);
    return n;
}

void dt_cache_limit(size_t plans) { atomic_store(&limit, plans ? plans : 1); }

/* ---- reasons ----------------------------------------------------------------------------------------------------------------------------- */
static dt_cache_reason *reason_of(bool replay, const char *text, size_t most) {
    size_t i = 0;
    while (i < n_reasons && (reasons[i].replay != replay || strcmp(reasons[i].text, text) != 0)) i++;
    if (i == n_reasons) {
        if (i >= most) return reason_of(replay, "others", REASONS); /* two more: plans and repeats each have theirs */
        n_reasons++;
        reasons[i].replay = replay;
        strcpy(reasons[i].text, text);
    }
    return &reasons[i];
}

static void add_reason(bool replay, const char *text, uint32_t site) {
    reason_of(replay, text, REASONS - 2)->count++;
    dt_cache_event *r = &recent[n_recent++ % RECENT];
    r->replay = replay;
    r->site = site;
    strcpy(r->text, text);
}

/* What differs between two metadata; NULL: nothing that counts. */
static const char *meta_difference(const dt_meta *was, const dt_meta *is) {
    if (was == is) return NULL;
    if (!was || !is || was->wrapped != is->wrapped) return "kind";
    if (was->dtype != is->dtype) return "dtype";
    if (was->ndim != is->ndim || memcmp(was->shape, is->shape, sizeof *was->shape * was->ndim) != 0) return "shape";
    if (was->mesh != is->mesh) return "mesh";
    return "placements";
}

static void call_difference(const dt_call *was, const dt_call *is, dt_str *s) {
    if (!was) {
        dt_str_add(s, "more calls than before: %s", dt_op_name(is->op));
        return;
    }
    if (was->op != is->op) {
        dt_str_add(s, "other operator: %s in place of %s", dt_op_name(is->op), dt_op_name(was->op));
        return;
    }
    for (int k = 0; k < is->n_in && k < was->n_in; k++) {
        const char *what = meta_difference(was->in[k], is->in[k]);
        if (!what) continue;
        dt_str_add(s, "other %s of input %d of %s", what, k, dt_op_name(is->op));
        return;
    }
    if (was->n_in != is->n_in)
        dt_str_add(s, "other number of inputs of %s", dt_op_name(is->op));
    else
        dt_str_add(s, "other arguments of %s", dt_op_name(is->op));
}

void dt_cache_mismatch(const char *text, const dt_call *was, const dt_call *is, int input, uint32_t site) {
    DT_STR(s, sizeof reasons->text);
    if (is && input >= 0)
        dt_str_add(&s, "%s as input %d of %s", text, input, dt_op_name(is->op));
    else if (is)
        call_difference(was, is, &s);
    else
        dt_str_add(&s, "%s", text);
    pthread_mutex_lock(&lock);
    stats.mismatches++;
    add_reason(true, s.buf, site);
    pthread_mutex_unlock(&lock);
}

void dt_cache_replayed(uint32_t calls) {
    pthread_mutex_lock(&lock);
    stats.chunks_replayed++;
    stats.calls_replayed += calls;
    pthread_mutex_unlock(&lock);
}

/* How many calls at the beginning go to the same operators, and besides, as a fraction, how many are the same. */
static double alike(const dt_graph *g, const dt_plan *p) {
    int i = 0, same = 0;
    for (; i < g->n && g->node[i].live && i < p->n_nodes && g->node[i].call->op == p->call[i]->op; i++) same += g->node[i].call == p->call[i];
    return i + same / (i + 1.0);
}

static const dt_plan *likest(const dt_engine *e, const dt_graph *g) {
    const dt_plan *best = NULL;
    double most = 1;
    for (size_t i = 0; i <= e->plans.mask; i++)
        for (dt_hlink *l = e->plans.slot[i]; l; l = l->next) {
            const dt_plan *p = (const dt_plan *)l;
            double n = alike(g, p);
            if (n > most || (n == most && (!best || p->used_at > best->used_at))) best = p, most = n;
        }
    return best;
}

/* Walks both keys, which agree word for word up to the difference. See passes/key.c. */
static int first_difference(const dt_graph *g, const dt_plan *p, dt_str *s) {
    int live = 0;
    while (live < g->n && g->node[live].live) live++;
    size_t at = 0;
    for (int i = 0; i < live; i++) {
        const dt_call *c = g->node[i].call;
        if (i >= p->n_nodes || p->call[i] != c) {
            call_difference(i < p->n_nodes ? p->call[i] : NULL, c, s);
            return i;
        }
        at++;
        int known = 0;
        for (int k = 0; k < c->n_in; k++) {
            const dt_gvalue *v = g->node[i].in[k];
            if (!v) continue;
            /* An external's first use stands in the key with two words before its number. */
            uint64_t layout = v->index >= 0 ? v->layout : 0, number = (uint64_t)(uint32_t)v->index | 1ull << 63;
            bool first = v->ready && at + 2 < g->n_key && g->key[at] == layout && g->key[at] >> 63 == 0 && g->key[at + 1] <= 1 && g->key[at + 2] == number;
            size_t n = first ? 3 : 1;
            if (at + n > p->n_key || memcmp(g->key + at, p->key + at, n * sizeof *p->key) != 0) {
                const char *what = !first || at + 3 > p->n_key || g->key[at + 2] != p->key[at + 2] ? "another value"
                                   : g->key[at] != p->key[at]                                      ? "another layout"
                                   : g->key[at + 1]                                                ? "memory that may be overwritten"
                                                                                                   : "memory that may not be overwritten";
                dt_str_add(s, "%s as input %d of %s", what, k, dt_op_name(c->op));
                return i;
            }
            at += n;
            known++;
        }
        size_t named = (size_t)(c->n_out + 63) / 64;
        if (at + named > p->n_key || memcmp(g->key + at, p->key + at, named * sizeof *p->key) != 0) {
            dt_str_add(s, "a result of %s is %s", dt_op_name(c->op), g->key[at] & ~p->key[at] ? "still named" : "no longer named");
            return i;
        }
        at += named;
    }
    dt_str_add(s, "fewer calls than before");
    return live - 1;
}

void dt_cache_missed(dt_engine *e, const dt_graph *g) {
    if (!g->n) return;
    const dt_plan *p = likest(e, g);
    DT_STR(s, sizeof reasons->text);
    int at = 0;
    if (p)
        at = first_difference(g, p, &s);
    else
        dt_str_add(&s, "nothing like it was planned before");
    pthread_mutex_lock(&lock);
    add_reason(false, s.buf, g->node[at < 0 ? 0 : at].site);
    pthread_mutex_unlock(&lock);
}

/* ---- plans ------------------------------------------------------------------------------------------------------------------------------- */
static void evict(dt_engine *e, dt_plan *p) {
    dt_repeat_forget(p);
    dt_round_forget(p);
    dt_htab_remove(&e->plans, &p->link);
    if (p->id) dt_remote_drop_plan(p);
    dt_plan_unref(p);
}

static void evict_oldest(dt_engine *e) {
    dt_plan *old = NULL;
    for (size_t i = 0; i <= e->plans.mask; i++)
        for (dt_hlink *l = e->plans.slot[i]; l; l = l->next)
            if (!old || ((dt_plan *)l)->used_at < old->used_at) old = (dt_plan *)l;
    if (old) evict(e, old);
}

/* … or of nothing at all. */
static bool is_simulated(const dt_plan *p) { return !p->n_programs || dt_device_kind(p->program[0].device) == DT_SIM; }

void dt_cache_forget_simulated(dt_engine *e) {
    for (size_t i = 0; e->plans.slot && i <= e->plans.mask; i++)
        for (dt_hlink *l = e->plans.slot[i], *next; l; l = next) {
            next = l->next;
            if (is_simulated((dt_plan *)l)) evict(e, (dt_plan *)l);
        }
    e->stats.plans_cached = e->plans.count;
}

void dt_cache_free(dt_engine *e) {
    while (e->plans.count) evict_oldest(e);
    dt_htab_fini(&e->plans);
}

dt_plan *dt_cache_find(dt_engine *e, const dt_graph *g, uint64_t hash) {
    if (!dt_options_get()->cache) return NULL;
    for (dt_hlink *l = dt_htab_first(&e->plans, hash); l; l = l->next) {
        dt_plan *p = (dt_plan *)l;
        if (l->hash == hash && p->n_key == g->n_key && (!p->n_key || !memcmp(p->key, g->key, sizeof *p->key * p->n_key))) return p;
    }
    return NULL;
}

void dt_cache_used(dt_engine *e, dt_plan *p) {
    p->used_at = ++e->clock;
    e->stats.plan_hits++;
}

dt_status dt_cache_add(dt_engine *e, const dt_graph *g, dt_plan *p, uint64_t hash) {
    p->key = dt_malloc(sizeof *p->key * (g->n_key + 1));
    p->call = DT_ARENA_ARRAY(&p->arena, dt_call *, p->n_nodes + 1);
    if (!p->key || !p->call) {
        p->call = NULL;
        return dt_fail(DT_E_NOMEM, "dispatch: out of host memory");
    }
    if (g->n_key) memcpy(p->key, g->key, sizeof *p->key * g->n_key);
    p->n_key = g->n_key;
    for (int i = 0; i < p->n_nodes; i++) {
        p->call[i] = g->node[i].call;
        dt_call_ref(p->call[i]);
    }
    uint64_t evicted = 0;
    for (; e->plans.count >= dt_cache_limit_get(); evicted++) evict_oldest(e);
    DT_TRY(dt_htab_add(&e->plans, &p->link, hash));
    p->used_at = ++e->clock;
    e->stats.plans_built++;
    e->stats.plans_cached = e->plans.count;
    pthread_mutex_lock(&lock);
    stats.evicted += evicted;
    pthread_mutex_unlock(&lock);
    return DT_OK;
}

/* ---- for the client ------------------------------------------------------------------------------------------------------------------------ */
void dt_cache_stats_get(dt_cache_stats *out) {
    const dt_engine_stats *s = &dt_the_engine.stats;
    pthread_mutex_lock(&lock);
    *out = stats;
    pthread_mutex_unlock(&lock);
    out->calls = s->nodes;
    out->plans_built = s->plans_built;
    out->plans_found = s->plan_hits;
    out->plans_cached = s->plans_cached;
    out->plans_limit = dt_cache_limit_get();
}

size_t dt_cache_reasons(dt_cache_reason *out, size_t cap) {
    pthread_mutex_lock(&lock);
    size_t n = n_reasons;
    memcpy(out, reasons, sizeof *out * (n < cap ? n : cap));
    pthread_mutex_unlock(&lock);
    return n;
}

size_t dt_cache_recent(dt_cache_event *out, size_t cap) {
    pthread_mutex_lock(&lock);
    size_t n = dt_log_last(recent, sizeof *recent, RECENT, n_recent, out, cap);
    pthread_mutex_unlock(&lock);
    return n;
}
