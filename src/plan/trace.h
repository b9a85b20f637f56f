/* What ran when: events of the client, the controller and the workers, for the profiler.
 *
 * Each thread appends to a log of its own, without locks; a log is a chain of blocks that only grows while tracing is on. Whoever turned tracing on
 * reads the logs after turning it off. A log's lane names the thread: "client", "controller", "cpu:0", "cpu:0 comm".
 *
 * Off, it costs one predictable branch an event. On, an event costs two readings of the clock and a few stores. When memory for a log is gone,
 * events are dropped and counted.
 *
 * Threads: dt_trace_add from any; the others from one thread at a time (the profiler holds the GIL). */
#ifndef DT_PLAN_TRACE_H
#define DT_PLAN_TRACE_H

#include <stdatomic.h>

#include "base/status.h"

typedef enum dt_trace_kind {
    DT_TRACE_CALL,    /* client: a call recorded; b: its length in records */
    DT_TRACE_KERNEL,  /* worker: an instruction; a: bytes read and written */
    DT_TRACE_COMM,    /* worker: a collective; a: bytes moved by all parties */
    DT_TRACE_PLAN,    /* controller: a plan built; a: nodes */
    DT_TRACE_RUN,     /* controller: a subgraph dispatched; a: nodes, b: 1 when its plan was cached */
    DT_TRACE_MEMORY,  /* controller: a: bytes allocated on the device `lane`, b: reserved */
    DT_TRACE_FETCH,   /* worker: a part copied to the host; a: bytes */
    DT_TRACE_MESSAGE, /* controller: told other nodes; a: bytes, b: nodes. A node: from a message's arrival until all of it was done; a: bytes, b: runs so far */
} dt_trace_kind;

typedef struct dt_event {
    uint64_t begin, end; /* ns, CLOCK_MONOTONIC */
    const char *name;    /* static or interned */
    uint64_t a, b;
    uint32_t site;
    uint16_t kind;
    int16_t device; /* index of a MEMORY event's device; -1 */
} dt_event;

extern _Atomic bool dt_trace_on;
static inline bool dt_tracing(void) { return DT_UNLIKELY(atomic_load_explicit(&dt_trace_on, memory_order_relaxed)); }
uint64_t dt_trace_now(void);
void dt_trace_lane(const char *name);                                                                           /* of the calling thread; copied */
void dt_trace_add(dt_trace_kind kind, const char *name, uint32_t site, uint64_t begin, uint64_t a, uint64_t b); /* ends now */
void dt_trace_memory(const char *device_type, int index, uint64_t allocated, uint64_t reserved);

void dt_trace_start(void); /* forgets what was logged before */
void dt_trace_stop(void);
/* Each logged event with its lane, in no particular order between lanes. */
void dt_trace_each(void (*fn)(void *ctx, const char *lane, const dt_event *e), void *ctx);
uint64_t dt_trace_dropped(void);
/* An event of another process, under a lane of its own; its names are interned. One thread at a time, while nobody reads. */
void dt_trace_foreign(const char *lane, const dt_event *e);
void dt_trace_drop(uint64_t n); /* counts events that another process dropped */

#endif
