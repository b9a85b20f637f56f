/* The controller as the client sees it: one ring in, futures out.
 *
 * dt_engine_start makes the controller thread on the first call (workers start when a mesh first uses their device). dt_engine_ring is the
 * client's ring; the client thread publishes records as plan/record.h says and never waits for the controller, except through futures or
 * when the ring is full. dt_engine_flush asks for dispatch now (before waiting for a future). */
#ifndef DT_CONTROLLER_CONTROLLER_H
#define DT_CONTROLLER_CONTROLLER_H

#include "base/ring.h"
#include "plan/record.h"

dt_status dt_engine_start(void) DT_WUR;                 /* idempotent, cheap when started; E_STATE in a forked child */
dt_status dt_engine_mpi(char *text, size_t cap) DT_WUR; /* which MPI would be used */
void dt_engine_nodes_init(void);                        /* plan/nodes.h from the launcher's environment; before the first mesh */
void dt_engine_stop(void);                              /* finishes or abandons work, joins all threads; idempotent */
dt_ring *dt_engine_ring(void);
void dt_engine_flush(void);
/* Wait for f, at most about usec (< 0: no limit), and meanwhile do the work that it needs if nobody else is at it (help.c): no flush is
 * necessary before. As dt_future_wait otherwise. Any thread that may block; without the interpreter's lock. */
bool dt_engine_wait(dt_future *f, int64_t usec);
bool dt_engine_is_forked(void); /* true in a child process forked after the start */
void dt_engine_threads_set(int n);
int dt_engine_threads(void);

typedef struct dt_engine_stats {
    uint64_t nodes, plans_built, plan_hits, plans_cached, programs_run, nodes_dead, calls_lowered;
    uint64_t evicted, recomputed; /* buffers given up under a budget; calls made again */
    uint64_t plan_bytes;          /* of plans, written for other nodes */
} dt_engine_stats;
void dt_engine_stats_get(dt_engine_stats *out); /* approximate unless synchronised */

/* The plan cache and repeats (controller/cache.c, repeat.c). Any thread; approximate unless synchronised. */
typedef struct dt_cache_stats {
    uint64_t calls, plans_built, plans_found, plans_cached, plans_limit, evicted; /* found includes replayed */
    uint64_t chunks_replayed, calls_replayed, mismatches;
} dt_cache_stats;
typedef struct dt_cache_reason {
    bool replay; /* of a repeat that ended; else of a plan that had to be built */
    char text[111];
    uint64_t count;
} dt_cache_reason;
typedef struct dt_cache_event {
    bool replay;
    char text[111];
    uint32_t site;
} dt_cache_event;
void dt_cache_stats_get(dt_cache_stats *out);
size_t dt_cache_reasons(dt_cache_reason *out, size_t cap); /* how many there are */
size_t dt_cache_recent(dt_cache_event *out, size_t cap);   /* the last 64 at most, oldest first; how many were written */
void dt_cache_limit(size_t plans);                         /* how many plans are kept; at least 1 */
size_t dt_cache_limit_get(void);

/* Communication: every collective that was lowered, as counted when it was dispatched. */
/* Counts since the process began; call after synchronising. Both return how many there are, which may be more than cap. */
typedef struct dt_comm_entry {
    char kind[24];      /* all_reduce, all_gather, reduce_scatter, all_to_all, reduce, gather, reshard; between meshes broadcast, scatter, gather, send */
    char mesh_dim[100]; /* "tp", "dp,tp"; "" between meshes of several devices */
    uint32_t site;
    uint64_t count, bytes; /* bytes sent, summed over devices */
} dt_comm_entry;
typedef struct dt_comm_sent {
    dt_device device;
    uint64_t bytes;
} dt_comm_sent;
/* What was dispatched of a stream over several meshes, in order, with the virtual clock's times (controller/order.c). */
typedef struct dt_order_entry {
    uint32_t id, run; /* place in the stream; the first of the same stay on the mesh */
    dt_device device; /* the mesh's first */
    uint32_t n_devices;
    double begin, end; /* seconds */
    uint32_t open;     /* openers of this mesh that were open before it */
    bool closing, opener, side, forced;
    uint32_t nodes;
} dt_order_entry;
size_t dt_order_log(dt_order_entry *out, size_t cap); /* the last 4096 at most; call after synchronising */
void dt_order_log_reset(void);

/* sim.c: the engine is idle, the client has synchronised. */
struct dt_hardware;
struct dt_sim_device;
dt_status dt_engine_sim_start(const struct dt_hardware *h, int n_devices) DT_WUR;
void dt_engine_sim_stop(void);
void dt_engine_sim_get(int i, struct dt_sim_device *clock, dt_memory_stats *memory);
void dt_engine_sim_memory(dt_memory_stats *out, int n, dt_future *f); /* of those of the n devices that other nodes hold; f completes when they are there */
double dt_engine_cpu_seconds(void);                                   /* processor time of the controller's thread since its start; 0 before */

size_t dt_comm_report(dt_comm_entry *out, size_t cap);
size_t dt_comm_devices(dt_comm_sent *out, size_t cap);

#endif
