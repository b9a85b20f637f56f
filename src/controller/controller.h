/* The controller as the client sees it: one ring in, futures out.
 *
 * dt_engine_start makes the controller thread on the first call (workers start when a mesh first uses their device). dt_engine_ring is the
 * client's ring; the client thread publishes records as plan/record.h says and never waits for the controller, except through futures or
 * when the ring is full. dt_engine_flush asks for dispatch now (before waiting for a future). */
#ifndef DT_CONTROLLER_CONTROLLER_H
#define DT_CONTROLLER_CONTROLLER_H

#include "base/ring.h"
#include "plan/record.h"

dt_status dt_engine_start(void) DT_WUR; /* idempotent, cheap when started; E_STATE in a forked child */
void dt_engine_nodes_init(void);        /* plan/nodes.h from the launcher's environment; before the first mesh */
void dt_engine_stop(void);              /* finishes or abandons work, joins all threads; idempotent */
dt_ring *dt_engine_ring(void);
void dt_engine_flush(void);
bool dt_engine_is_forked(void); /* true in a child process forked after the start */
void dt_engine_threads_set(int n);
int dt_engine_threads(void);

typedef struct dt_engine_stats {
    uint64_t nodes, plans_built, plan_hits, plans_cached, programs_run, nodes_dead, calls_lowered;
} dt_engine_stats;
void dt_engine_stats_get(dt_engine_stats *out); /* approximate unless synchronised */

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
size_t dt_comm_report(dt_comm_entry *out, size_t cap);
size_t dt_comm_devices(dt_comm_sent *out, size_t cap);

#endif
