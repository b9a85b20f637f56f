/* Collectives: one party's share of a dt_coll, over a transport.
 *
 * A transport is a table; inside a process it is `dt_transport_thread`: parties are worker threads, they meet at the run's rendezvous and read
 * each other's memory. Others (between machines, between GPUs) take the same description. All parties of a collective must call run; the
 * engine orders them (one global order), so they always meet. */
#ifndef DT_COMM_COMM_H
#define DT_COMM_COMM_H

#include "base/ring.h"
#include "plan/backend.h"
#include "plan/program.h"

typedef struct dt_comm_part { /* one collective of a bucket */
    const dt_coll *coll;
    int party;
    dt_rendezvous *meet;
    void *in, *out;
    dt_error_t *error; /* its input's, borrowed; afterwards what the output inherits, a new reference */
} dt_comm_part;

typedef struct dt_transport {
    const char *name;
    /* in, out: addresses of this party's operands (NULL where it has none). error: its input's error or NULL. Returns the error that the output
     * inherits (a new reference): the first party that has one, the same on every party. */
    dt_error_t *(*run)(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, void *out, dt_error_t *error);
    /* The same for a coll with an exchange. counts: (shards, groups, experts) int64. */
    dt_error_t *(*exchange)(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, const int64_t *counts, void *out,
                            dt_error_t *error);
    /* A bucket: collectives of the same parties, who meet once for all of them. Each moves what it would alone. NULL: run them one by one. */
    void (*run_bucket)(dt_comm_part *part, int n, const dt_backend *b, dt_team *team);
} dt_transport;

/* A meeting of n threads: a counter that each increments; the last one wakes the others, who sleep on it. No counter is used twice. */
static inline void dt_comm_arrive(_Atomic uint32_t *arrived, uint32_t n) {
    if (atomic_fetch_add_explicit(arrived, 1, memory_order_acq_rel) + 1 == n) dt_futex_wake(arrived, (int)n);
}
static inline void dt_comm_await(_Atomic uint32_t *arrived, uint32_t n) {
    for (uint32_t seen; (seen = atomic_load_explicit(arrived, memory_order_acquire)) != n;) dt_futex_wait(arrived, seen, -1);
}
static inline void dt_comm_meet(_Atomic uint32_t *arrived, uint32_t n) {
    dt_comm_arrive(arrived, n);
    dt_comm_await(arrived, n);
}

/* The parties that `party` meets, itself among them: the k-th of n. */
static inline int dt_comm_group(const dt_coll *c, int party) {
    int g = c->party[party].group;
    return c->member ? c->first[g + 1] - c->first[g] : c->n;
}
static inline int dt_comm_member(const dt_coll *c, int party, int k) { return c->member ? c->member[c->first[c->party[party].group] + k] : k; }
static inline _Atomic uint32_t *dt_comm_arrived(const dt_coll *c, int party, const dt_rendezvous *r, int meeting) {
    return &r->arrived[c->party[party].group * DT_MEETINGS + meeting];
}

/* thread.c: the share in a bucket that meets, up to the next meeting at which somebody is missing; true: it is done. For who has the shares of all parties and so must not wait
 * in one of them. *phase: 0 at first; x is the same each time but for the errors, which are the outputs' when *phase becomes DT_COMM_LAST. */
enum { DT_COMM_LAST = 3 };
bool dt_comm_bucket_step(dt_comm_part *x, int n, const dt_backend *b, dt_team *team, int *phase);
extern const dt_transport dt_transport_thread;
extern const dt_transport dt_transport_span; /* some parties live in other processes: span.c */

/* exchange.c: one block of rows that a party reads from a peer's buffers into its own, in bytes. */
typedef struct dt_exchange_block {
    int peer; /* a party */
    int64_t from, to, bytes;
} dt_exchange_block;
/* Calls fn for every block that the party needs, in the order of its own buffer. False: rows_out is too small (nothing is called then), or the counts are of more
 * rows than a sender has. */
bool dt_exchange_walk(const dt_exchange *x, int party, const int64_t *counts, void (*fn)(void *ctx, const dt_exchange_block *block), void *ctx);
/* What the party at position `at` of the same group needs of this one, in the same order; `to` is not filled in, and blocks may be joined that are not there. */
bool dt_exchange_given(const dt_exchange *x, int party, int at, const int64_t *counts, void (*fn)(void *ctx, const dt_exchange_block *block), void *ctx);

#endif
