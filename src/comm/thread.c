/* Collectives between threads of one process: meet, read the others' memory, meet again. See comm.h.
 *
 * A meeting is a counter that every party increments; the last one wakes the others, who sleep on it. Three counters, so that none is reused. */
#include <string.h>

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

/* ---- exchanges ---- */
typedef struct reading {
    const dt_coll *c;
    int party;
    const dt_rendezvous *r;
    const dt_backend *b;
    dt_team *team;
    char *out;
    uint64_t *bytes; /* (c->n,) read of each */
} reading;

static void read_block(void *ctx, const dt_exchange_block *k) {
    const reading *d = ctx;
    dt_view to = {.data = d->out + k->to, .dtype = DT_uint8, .ndim = 1, .shape = {k->bytes}, .stride = {1}}, from = to;
    from.data = (char *)d->r->in[k->peer] + k->from;
    d->b->copy(&to, &from, d->team);
    if (k->peer != d->party) d->bytes[k->peer] += (uint64_t)k->bytes;
}

static dt_error_t *thread_exchange(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, const int64_t *counts,
                                   void *out, dt_error_t *error) {
    uint32_t n = (uint32_t)c->n;
    uint64_t bytes[n];
    memset(bytes, 0, sizeof bytes);
    r->in[party] = in;
    r->error[party] = error;
    meet(&r->arrived[0], n);
    error = NULL;
    for (int i = 0; i < c->n && !error; i++) error = r->error[i];
    if (error)
        dt_error_ref(error);
    else {
        reading d = {c, party, r, b, team, out, bytes};
        if (!dt_exchange_walk(c->exchange, party, counts, read_block, &d))
            error = dt_error_new(DT_E_INTERNAL, 0, "exchange", "more rows than the receiver has room for");
    }
    for (uint32_t i = 0; i < n && r->moved; i++)
        if (bytes[i]) r->moved(r->moved_ctx, c->party[i].device, bytes[i]);
    meet(&r->arrived[2], n);
    return error;
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

const dt_transport dt_transport_thread = {"thread", thread_run, thread_exchange};
