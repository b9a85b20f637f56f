/* Collectives between threads of one process: meet, read the others' memory, meet again. See comm.h.
 *
 * A meeting is a counter that every party increments; the last one wakes the others, who sleep on it. Three counters, so that none is reused. */
#include "base/ring.h"
#include "comm/comm.h"

static void meet(_Atomic uint32_t *arrived, uint32_t n) {
    uint32_t seen = atomic_fetch_add_explicit(arrived, 1, memory_order_acq_rel) + 1;
    if (seen == n) {
        dt_futex_wake(arrived, (int)n);
        return;
    }
    while ((seen = atomic_load_explicit(arrived, memory_order_acquire)) != n) dt_futex_wait(arrived, seen, -1);
}

static void pull(const dt_pull *p, const dt_coll *c, const dt_rendezvous *r, const dt_backend *b, dt_team *team, void *out) {
    dt_view dst = p->dst, src[p->n_src + 1];
    dst.data = (char *)out + p->offset;
    for (int k = 0; k < p->n_src; k++) {
        src[k] = p->src[k].view;
        src[k].data = (char *)(p->src[k].from_out ? r->out : r->in)[p->src[k].party] + p->src[k].offset;
    }
    if (p->n_src == 0)
        b->zero(&dst);
    else if (p->n_src == 1)
        b->copy(&dst, &src[0], team);
    else
        b->reduce(&dst, src, p->n_src, c->reduce);
}

static dt_error_t *thread_run(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, void *out, dt_error_t *error) {
    const dt_party *me = &c->party[party];
    uint32_t n = (uint32_t)c->n;
    if (c->index >= 0) {
        r->in[party] = in;
        r->out[party] = out;
        r->error[party] = error;
        meet(&r->arrived[0], n);
        error = NULL;
        for (int i = 0; i < c->n && !error; i++) error = r->error[i];
    }
    for (int k = 0; !error && k < me->n_pulls[0]; k++) pull(&me->pull[0][k], c, r, b, team, out);
    if (c->two_phase) meet(&r->arrived[1], n);
    for (int k = 0; !error && k < me->n_pulls[1]; k++) pull(&me->pull[1][k], c, r, b, team, out);
    if (error) dt_error_ref(error); /* before the last meeting: afterwards its owner may let go */
    if (c->index >= 0) meet(&r->arrived[2], n);
    return error;
}

const dt_transport dt_transport_thread = {"thread", thread_run};
