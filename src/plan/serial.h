/* Plans as bytes: what the controller sends to the other machines, once a plan.
 *
 * A node gets the programs of its own devices and the collectives that these take part in, everything else is left out. Kernels travel as (op,
 * number in the op's list), attributes as their struct with strings by value; both sides have the same op table (the handshake checks its
 * hash). The reader trusts nothing: every count and offset is checked against the message's length and the plan's own sizes.
 *
 * Bytes are those of the machine: nodes of a run have one architecture (the handshake's hash covers sizes and byte order).
 *
 * Threads: pure. */
#ifndef DT_PLAN_SERIAL_H
#define DT_PLAN_SERIAL_H

#include "plan/program.h"

typedef struct dt_like dt_like;
typedef struct dt_wire { /* grows; a failed allocation is remembered and reported at the end */
    uint8_t *data;
    size_t n, cap;
    bool failed;
    dt_like *like; /* notes where shared things end; or, when comparing, nothing is written, but compared with what was (alike.c) */
} dt_wire;
void dt_wire_put(dt_wire *w, const void *p, size_t bytes);
void dt_wire_long(dt_wire *w, uint64_t v);
static inline void dt_wire_u64(dt_wire *w, uint64_t v) { /* 1 to 10 bytes: small numbers are short */
    if (DT_LIKELY(v < 0x80 && w->n < w->cap))
        w->data[w->n++] = (uint8_t)v;
    else
        dt_wire_long(w, v);
}
void dt_wire_i64(dt_wire *w, int64_t v);
void dt_wire_text(dt_wire *w, const char *s);
void dt_wire_free(dt_wire *w);

typedef struct dt_unwire {
    const uint8_t *data;
    size_t n, at;
    bool bad; /* something was read beyond the end, or was out of range */
} dt_unwire;
void dt_unwire_get(dt_unwire *u, void *p, size_t bytes); /* zeros when there is not enough */
uint64_t dt_unwire_long(dt_unwire *u);
static inline uint64_t dt_unwire_u64(dt_unwire *u) { return DT_LIKELY(u->at < u->n && u->data[u->at] < 0x80) ? u->data[u->at++] : dt_unwire_long(u); }
int64_t dt_unwire_i64(dt_unwire *u);
size_t dt_unwire_count(dt_unwire *u, size_t limit); /* a count of at most limit, else 0 and bad */
const char *dt_unwire_text(dt_unwire *u);           /* interned */

/* Programs of the devices for which `here` says so. */
typedef bool (*dt_device_fn)(void *ctx, dt_device d);
dt_status dt_plan_write(const dt_plan *p, dt_device_fn here, void *ctx, dt_wire *out) DT_WUR;
/* The same for node[0], and for as many of those that follow, in rising order, as get the same but for numbers that grow evenly: *n_alike in all. ctx of `here` is one of `node`. */
dt_status dt_plan_write_alike(const dt_plan *p, dt_device_fn here, int *node, int n, dt_wire *out, int *n_alike) DT_WUR;
dt_status dt_plan_read_alike(dt_unwire *u, uint64_t distance, dt_plan **out) DT_WUR; /* by the node that is so far from the first one */
bool dt_like_u64(dt_like *l, uint64_t v);                                            /* false: nothing is compared, write it */
bool dt_like_put(dt_like *l, const void *p, size_t bytes);
/* A thing that nodes may share begins: true if it is the one that stands there, which is then passed over; else it is written, and has ended. */
bool dt_like_shared(dt_wire *w, const void *thing);
void dt_like_ended(dt_wire *w, const void *thing);
/* What of a run's numbers and sites differs from the plan's last one, which they then are. Both sides keep them. */
dt_status dt_plan_changes(dt_plan *p, const dt_run *r, dt_wire *out) DT_WUR;
dt_status dt_plan_changes_read(dt_plan *p, dt_run *r, dt_unwire *u) DT_WUR;
/* E_INTERNAL, and nothing made, when the bytes are not a plan. */
dt_status dt_plan_read(dt_unwire *u, dt_plan **out) DT_WUR;

#endif
