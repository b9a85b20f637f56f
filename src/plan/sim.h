/* Simulated devices: what the controller and the workers' layer see of backend/sim. Device type DT_SIM; none exist unless dt_sim_start said so.
 *
 * Threads: the controller's, except dt_sim_on (any). dt_sim_start and dt_sim_stop are called by the client while the engine is idle. */
#ifndef DT_PLAN_SIM_H
#define DT_PLAN_SIM_H

#include "plan/cost.h"

typedef struct dt_sim_device {
    double free_at;               /* virtual seconds: everything given to it so far is done */
    double busy;                  /* seconds of kernels */
    double comm, exposed;         /* seconds of transfers; of these, while the compute queue waited or did it itself */
    double flops, ideal;          /* matrix work, and its seconds at peak */
    double bytes[DT_LINK_LEVELS]; /* received, by level of the link */
    uint64_t kernels, transfers;
} dt_sim_device;

typedef struct dt_sim_totals {
    double now;     /* the latest device's clock */
    double seconds; /* processor time that simulating took */
    uint64_t runs;
} dt_sim_totals;

extern _Atomic bool dt_sim_on;
extern _Atomic bool dt_sim_failed; /* some buffer holds an error, or one did: until then runs need not look at their inputs' */
dt_status dt_sim_start(const dt_hardware *h, int n_devices) DT_WUR;
void dt_sim_stop(void);
int dt_sim_devices(void); /* 0: not on */
const dt_sim_device *dt_sim_device_get(int i);
void dt_sim_totals_get(dt_sim_totals *out);
int64_t dt_sim_memory(void); /* of a device; 0: no limit */
/* In a process that serves (node/node.c): its simulated devices have so much memory. Their runs take and give it back; times are the controller's. */
void dt_sim_serve(int64_t memory);

/* The backend's: all programs of a run, at once. */
void dt_sim_run(dt_run *r);
void dt_sim_ran(dt_plan *p); /* before the plan is bound again: one of devices that do the same may stand for all from now on (dt_plan.n_alike) */
/* A read of a part: zeros into dst. Whoever reads waits, so nothing later begins before. */
void dt_sim_read(dt_device d, const dt_view *dst);
void dt_sim_awaited(dt_device d); /* the clock's part of it, where the part comes from another node */

#endif
