/* Collectives between threads of one process: meet, read the others' memory, meet again. See comm.h.
 *
 * A meeting is a counter that every party of a group increments; the last one wakes the others, who sleep on it. Three counters, so that none is reused.
 * A bucket of collectives meets at its first one's counters. */
#include <string.h>

#include "comm/comm.h"

static void pull(const dt_pull *p, const dt_coll *c, const dt_rendezvous *r, const dt_backend *b, dt_team *team, void *out) {
    dt_view dst = *p->dst, src[p->n_src + 1];
    dst.data = (char *)out + p->offset;
    for (int k = 0; k < p->n_src; k++) {
        src[k] = *dt_pull_view(p, k);
        src[k].data = (char *)(p->src[k].from_out ? r->out : r->in)[p->src[k].party] + dt_pull_offset(p, k);
    }
    if (p->n_src == 0)
        b->zero(&dst);
    else if (p->n_src == 1)
        b->copy(&dst, &src[0], team);
    else
        b->reduce(&dst, src, NULL, p->n_src, c->reduce);
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
    uint32_t n = (uint32_t)dt_comm_group(c, party);
    uint64_t bytes[c->n];
    memset(bytes, 0, sizeof bytes);
    r->in[party] = in;
    r->error[party] = error;
    dt_comm_meet(dt_comm_arrived(c, party, r, 0), n);
    error = NULL;
    for (uint32_t i = 0; i < n && !error; i++) error = r->error[dt_comm_member(c, party, (int)i)];
    if (error)
        dt_error_ref(error);
    else {
        reading d = {c, party, r, b, team, out, bytes};
        if (!dt_exchange_walk(c->exchange, party, counts, read_block, &d))
            error = dt_error_new(DT_E_INTERNAL, 0, "exchange", "more rows than the receiver has room for");
    }
    for (int i = 0; i < c->n && r->moved; i++)
        if (bytes[i]) r->moved(r->moved_ctx, c->party[i].device, bytes[i]);
    dt_comm_meet(dt_comm_arrived(c, party, r, 2), n);
    return error;
}

static void pulls(const dt_comm_part *x, int phase, const dt_backend *b, dt_team *team) {
    const dt_party *me = &x->coll->party[x->party];
    for (int k = 0; !x->error && k < me->n_pulls[phase]; k++) {
        const dt_pull *p = &me->pull[phase][k];
        if (phase == 0 || p->src[0].party != x->party) pull(p, x->coll, x->meet, b, team, x->out);
    }
}

static void announce(const dt_comm_part *x) {
    x->meet->in[x->party] = x->in;
    x->meet->out[x->party] = x->out;
    x->meet->error[x->party] = x->error;
}

/* The first party's error that there is, the same on every party. */
static dt_error_t *common_error(const dt_comm_part *x) {
    for (int i = 0, n = dt_comm_group(x->coll, x->party); i < n; i++) {
        dt_error_t *e = x->meet->error[dt_comm_member(x->coll, x->party, i)];
        if (e) return e;
    }
    return NULL;
}

static void read_all(dt_comm_part *x, int n, int phase, const dt_backend *b, dt_team *team) {
    for (int k = 0; k < n; k++) {
        if (x[k].coll->index >= 0) x[k].error = common_error(&x[k]);
        pulls(&x[k], phase, b, team);
    }
}

/* Before the last meeting: afterwards its owner may let go. */
static void take_errors(dt_comm_part *x, int n) {
    for (int k = 0; k < n; k++)
        if (x[k].error) dt_error_ref(x[k].error);
}

static bool is_two_phase(const dt_comm_part *x, int n) {
    for (int k = 0; k < n; k++)
        if (x[k].coll->two_phase) return true;
    return false;
}

/* Meetings: 0 all have announced their operands, 1 the first reading is over, 2 the last one is. */
bool dt_comm_bucket_step(dt_comm_part *x, int n, const dt_backend *b, dt_team *team, int *phase) {
    const dt_coll *c = x[0].coll;
    int party = x[0].party, at = *phase;
    uint32_t parties = (uint32_t)dt_comm_group(c, party);
    if (at && atomic_load_explicit(dt_comm_arrived(c, party, x[0].meet, at - 1), memory_order_acquire) != parties) return false;
    if (at == DT_COMM_LAST) return true;
    int next = at + 1;
    if (at == 0)
        for (int k = 0; k < n; k++) announce(&x[k]);
    else
        read_all(x, n, at - 1, b, team);
    if (at == 2 || (at == 1 && !is_two_phase(x, n))) {
        take_errors(x, n);
        next = DT_COMM_LAST;
    }
    *phase = next;
    dt_comm_arrive(dt_comm_arrived(c, party, x[0].meet, next - 1), parties);
    return false;
}

static void thread_bucket(dt_comm_part *x, int n, const dt_backend *b, dt_team *team) {
    const dt_coll *c = x[0].coll;
    int party = x[0].party;
    if (c->index < 0) { /* nobody to meet */
        read_all(x, n, 0, b, team);
        if (is_two_phase(x, n)) read_all(x, n, 1, b, team);
        take_errors(x, n);
        return;
    }
    for (int phase = 0; !dt_comm_bucket_step(x, n, b, team, &phase);)
        dt_comm_await(dt_comm_arrived(c, party, x[0].meet, phase - 1), (uint32_t)dt_comm_group(c, party));
}

static dt_error_t *thread_run(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, void *out, dt_error_t *error) {
    dt_comm_part x = {c, party, r, in, out, error};
    thread_bucket(&x, 1, b, team);
    return x.error;
}

const dt_transport dt_transport_thread = {"thread", thread_run, thread_exchange, thread_bucket};
