/* What the client writes into the ring, word by word; the controller is its only reader.
 *
 *   header word:  kind (low 8 bits) | n_in << 8 (20 bits) | n_out << 28 (20 bits)
 *   CALL    header, dt_call *, site, inputs…, outputs…      an input is a value id, or the 8 bytes of a number where call->in[i]->wrapped
 *                                                           (double for float64, int64 otherwise), or 0 where call->in[i] is NULL
 *   DROP    header | id << 8                                the client no longer names this value
 *   HOST    header, dt_meta *, site, id, dt_hostbuf *       a value from host memory (contiguous, global); the ring owns one reference
 *   FILE    header, dt_meta *, site, id, dt_source *, dt_future *   a value from files; the ring owns the references. The future, if any: it has been read everywhere
 *   OPEN    header, dt_file *, dt_future *                  other nodes open the file, too; when that is done the file knows which could. The ring owns the references
 *   FETCH   header, id, dt_future *, site, lo, hi           read a value, or its rows [lo, hi) if lo >= 0, into the future's buffer; the ring owns one reference
 *   SYNC    header, dt_future *                             completes when all work before it is done; n_in 1: other nodes begin to trace; 2: they end, and their events are here
 *   LIMIT   header, device, bytes                           set a device's memory limit (0: none); n_in 1: its budget; n_in 2: every device's
 *   STATS   header, device, dt_stats *, dt_future *         fill in memory statistics; n_in 1: and begin new peaks
 *   STOP    header
 *
 * A value id names a value from the record that makes it until its DROP; ids are reused afterwards. 0 is no value. dt_call, dt_meta: the
 * record holds a reference on the call (released by the controller when it is done with the record's node). */
#ifndef DT_PLAN_RECORD_H
#define DT_PLAN_RECORD_H

#include <stdatomic.h>

#include "ops/op.h"

typedef enum dt_record {
    DT_REC_CALL = 1,
    DT_REC_DROP,
    DT_REC_HOST,
    DT_REC_FETCH,
    DT_REC_SYNC,
    DT_REC_LIMIT,
    DT_REC_STATS,
    DT_REC_FILE,
    DT_REC_OPEN,
    DT_REC_STOP
} dt_record;
#define DT_REC_HEADER(kind, n_in, n_out) ((uint64_t)(kind) | (uint64_t)(n_in) << 8 | (uint64_t)(n_out) << 28)
static inline dt_record dt_rec_kind(uint64_t h) { return (dt_record)(h & 255); }
static inline uint32_t dt_rec_n_in(uint64_t h) { return (uint32_t)(h >> 8) & 0xfffff; }
static inline uint32_t dt_rec_n_out(uint64_t h) { return (uint32_t)(h >> 28) & 0xfffff; }

/* Host memory shared between the client, the controller and workers. Freed (with free_fn(ctx), or dt_free(data)) by the last unref. */
typedef struct dt_hostbuf {
    _Atomic uint32_t refs;
    void *data;
    size_t bytes;
    void (*free_fn)(void *ctx);
    void *ctx;
} dt_hostbuf;
dt_status dt_hostbuf_new(size_t bytes, dt_hostbuf **out) DT_WUR;                                                  /* allocates data, 64-byte aligned */
dt_status dt_hostbuf_wrap(void *data, size_t bytes, void (*free_fn)(void *), void *ctx, dt_hostbuf **out) DT_WUR; /* borrows data */
dt_hostbuf *dt_hostbuf_ref(dt_hostbuf *b);
void dt_hostbuf_unref(dt_hostbuf *b); /* any thread; NULL passes */

/* A value that will be there. The waiting side is any user thread; the completing side is a worker or the controller. */
typedef struct dt_future {
    _Atomic uint32_t refs, state; /* 0 pending, 1 done, 2 failed: a futex word */
    _Atomic uint32_t parts;       /* devices that still have to deliver */
    dt_hostbuf *buf;              /* destination: contiguous, global; NULL for SYNC */
    const dt_meta *meta;          /* of buf */
    _Atomic(struct dt_error *) error;
    void (*notify)(void *ctx); /* called once on completion, on the completing thread; must not block */
    void *notify_ctx;
    _Atomic uint32_t notified;
    _Atomic uint32_t sleepers; /* threads that wait on the futex */
} dt_future;
dt_status dt_future_new(dt_hostbuf *buf, const dt_meta *meta, dt_future **out) DT_WUR; /* takes buf's reference */
void dt_future_ref(dt_future *f);
void dt_future_unref(dt_future *f);
bool dt_future_done(const dt_future *f);
/* usec < 0: no limit. True when done (or failed). Returns false on the timeout or a signal: the caller checks signals and calls again. */
bool dt_future_wait(dt_future *f, int64_t usec);
/* Completing side: one device's part is delivered (or failed with an error, of which a reference is taken). The last part completes. */
void dt_future_part(dt_future *f, struct dt_error *e);
/* Install notify; called at once if the future is complete already. */
void dt_future_on_done(dt_future *f, void (*fn)(void *), void *ctx);
/* DT_OK, or the failure with dt_error_message set to its text (which names the file and line of the call that caused it). */
dt_status dt_future_status(dt_future *f) DT_WUR;

/* A late failure: travels from the kernel that failed to every value that depends on it. Immutable; refcounted. */
typedef struct dt_error {
    _Atomic uint32_t refs;
    dt_status status;
    uint32_t site; /* of the failing call */
    char text[512];
} dt_error_t;
dt_error_t *dt_error_new(dt_status s, uint32_t site, const char *op, const char *text); /* never NULL: falls back to a static one */
dt_error_t *dt_error_ref(dt_error_t *e);
void dt_error_unref(dt_error_t *e);

/* Call sites: interned file, line and function of the user's calls. 0 = unknown. */
uint32_t dt_site_intern(const char *file, int line, const char *func);
bool dt_site_get(uint32_t site, const char **file, int *line, const char **func);

typedef struct dt_memory_stats {
    int64_t allocated, allocated_peak; /* bytes of live values and temporaries */
    int64_t reserved, reserved_peak;   /* bytes obtained from the device */
    int64_t limit, n_alloc, n_oom;
    int64_t budget;                 /* beyond it values are given up and computed again; 0: none */
    int64_t evicted, evicted_bytes; /* buffers given up so far */
} dt_memory_stats;

#endif
