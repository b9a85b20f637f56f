/* The plans of nodes that do alike, as one. See serial.h.
 *
 * Nodes of a mesh mostly get the same plan but for numbers that grow evenly from one to the next: devices, places in collectives, where shards begin. So the first
 * node's plan is written, the others' are only compared with it, number by number as they would be written (dt_wire.like), and what goes out is the first
 * one's bytes and the steps:
 *
 *   plan:  steps | (bytes since the last step's number, step) … | bytes of the first node's plan | those
 *
 * Collectives and fused groups that both nodes' plans point to, at the same place, need no comparison: where the first one's begin and end is noted. A node
 * whose distance to the first is i adds i times the step. The second node finds the steps, later ones must fit; one that does not begins anew. What is
 * found alike is restored exactly, since the numbers of both were gone through in order to the end of both. */
#include <string.h>

#include "plan/serial.h"

enum { MAX_PLAN = 1 << 30 };

typedef struct step {
    size_t at; /* of the number, in the first node's bytes */
    uint64_t by;
} step;
typedef struct shared { /* what several nodes' plans point to: equal without a look */
    const void *thing;
    size_t begin, end;
} shared;
struct dt_like {
    dt_unwire first;   /* the first node's bytes: where the comparison is */
    uint64_t distance; /* 0: they are being written */
    shared *shared;
    int n_shared, at_shared; /* those in `first`; the next one */
    step *step;
    int n, k;                 /* steps; the next one */
    uint32_t cap, cap_shared; /* what `step` and `shared` have room for */
    bool differs;
};

/* ---- writing ------------------------------------------------------------------------------------------------------------------------------------- */
static bool add_step(dt_like *l, size_t at, uint64_t by) {
    if (!dt_grow(&l->step, &l->cap, (uint32_t)l->n + 1, sizeof *l->step)) return false;
    l->step[l->n++] = (step){at, by};
    l->k = l->n;
    return true;
}

bool dt_like_u64(dt_like *l, uint64_t v) {
    if (!l->distance) return false;
    if (l->differs) return true;
    size_t at = l->first.at;
    uint64_t was = dt_unwire_u64(&l->first);
    if (l->k < l->n && l->step[l->k].at == at) was += l->distance * l->step[l->k++].by;
    l->differs = l->first.bad || (v != was && (l->distance != 1 || !add_step(l, at, v - was)));
    return true;
}

bool dt_like_put(dt_like *l, const void *p, size_t bytes) {
    dt_unwire *u = &l->first;
    if (!l->distance || l->differs) return l->distance;
    l->differs = bytes > u->n - u->at || (bytes && memcmp(u->data + u->at, p, bytes));
    if (!l->differs) u->at += bytes;
    return true;
}

bool dt_like_shared(dt_wire *w, const void *thing) {
    dt_like *l = w->like;
    if (DT_LIKELY(!l)) return false;
    if (!l->distance) { /* none lies within another */
        if (!dt_grow(&l->shared, &l->cap_shared, (uint32_t)l->n_shared + 1, sizeof *l->shared)) {
            w->failed = true;
            return false;
        }
        l->shared[l->n_shared++] = (shared){thing, w->n, 0};
        return false;
    }
    if (l->differs || l->at_shared == l->n_shared) return l->differs;
    const shared *s = &l->shared[l->at_shared++];
    if (s->thing != thing || s->begin != l->first.at) return false; /* another one, or the same at another place: its bytes are compared */
    l->first.at = s->end;
    return true;
}

void dt_like_ended(dt_wire *w, const void *thing) {
    dt_like *l = w->like;
    for (int i = l && !l->distance ? l->n_shared - 1 : -1; i >= 0; i--)
        if (l->shared[i].thing == thing && !l->shared[i].end) {
            l->shared[i].end = w->n;
            return;
        }
}

/* Is `node`'s plan the first one's, step by step? What was found on the way is forgotten if not. */
static bool compare(const dt_plan *p, dt_device_fn here, int *node, int distance, dt_like *l) {
    int n = l->n;
    dt_wire w = {.like = l};
    l->first.at = 0;
    l->first.bad = l->differs = false;
    l->distance = (uint64_t)distance;
    l->k = l->at_shared = 0;
    bool alike = !dt_plan_write(p, here, node, &w) && !l->differs && l->first.at == l->first.n && l->k == l->n;
    if (!alike) l->n = n;
    return alike;
}

dt_status dt_plan_write_alike(const dt_plan *p, dt_device_fn here, int *node, int n, dt_wire *out, int *n_alike) {
    dt_like l = {0};
    dt_wire first = {.like = &l};
    dt_status s = dt_plan_write(p, here, node, &first);
    int k = 1;
    l.first = (dt_unwire){first.data, first.n, 0, false};
    while (!s && k < n && node[k] > *node && compare(p, here, &node[k], node[k] - *node, &l)) k++;
    *n_alike = k;
    if (!s) {
        dt_wire_u64(out, (uint64_t)l.n);
        for (int i = 0; i < l.n; i++) {
            dt_wire_u64(out, l.step[i].at - (i ? l.step[i - 1].at : 0));
            dt_wire_u64(out, l.step[i].by);
        }
        dt_wire_u64(out, first.n);
        dt_wire_put(out, first.data, first.n);
        if (out->failed) s = dt_fail(DT_E_NOMEM, "a plan for other processes: out of host memory");
    }
    dt_free(l.step);
    dt_free(l.shared);
    dt_wire_free(&first);
    return s;
}

/* ---- reading ------------------------------------------------------------------------------------------------------------------------------------- */
static dt_status bad(void) { return dt_fail(DT_E_INTERNAL, "a plan from another process is not legal: its steps"); }

/* The plan's bytes at `distance`: u stands at the first step, plan at the first node's bytes. */
static dt_status restore(dt_unwire *u, size_t n_steps, uint64_t distance, dt_unwire *plan, dt_wire *out) {
    for (size_t i = 0, at = 0; i < n_steps; i++) {
        at += dt_unwire_count(u, plan->n);
        uint64_t by = dt_unwire_u64(u);
        if (u->bad || at < plan->at || at >= plan->n) return bad();
        dt_wire_put(out, plan->data + plan->at, at - plan->at);
        plan->at = at;
        dt_wire_u64(out, dt_unwire_u64(plan) + distance * by);
        if (plan->bad) return bad();
    }
    dt_wire_put(out, plan->data + plan->at, plan->n - plan->at);
    return out->failed ? dt_fail(DT_E_NOMEM, "a plan from another process: out of host memory") : DT_OK;
}

dt_status dt_plan_read_alike(dt_unwire *u, uint64_t distance, dt_plan **out) {
    size_t n_steps = dt_unwire_count(u, u->n - u->at);
    dt_unwire steps = *u;
    for (size_t i = 0; i < 2 * n_steps && !u->bad; i++) (void)dt_unwire_u64(u);
    size_t n = dt_unwire_count(u, MAX_PLAN);
    if (u->bad || n > u->n - u->at) return bad();
    dt_unwire plan = {u->data + u->at, n, 0, false};
    dt_wire w = {0};
    u->at += n;
    dt_status s = distance ? restore(&steps, n_steps, distance, &plan, &w) : DT_OK;
    dt_unwire mine = distance ? (dt_unwire){w.data, w.n, 0, false} : plan;
    if (!s) s = dt_plan_read(&mine, out);
    if (!s && mine.at != mine.n) {
        dt_plan_unref(*out);
        s = bad();
    }
    dt_wire_free(&w);
    return s;
}
