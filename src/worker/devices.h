/* The devices of this process and their memory: shared by the controller and by the nodes' sub-controllers.
 *
 * A worker starts at the device's first use; cores are divided among those that started. Buffers are reference-counted structs; their memory
 * returns to the device's allocator when no value lies in them any more, or, if another device still reads it, as soon as that is over.
 *
 * Threads: one thread (the controller, or a node's main thread), except the thread counts. */
#ifndef DT_WORKER_DEVICES_H
#define DT_WORKER_DEVICES_H

#include "plan/nodes.h"
#include "worker/alloc.h"
#include "worker/worker.h"

typedef struct dt_device_state {
    dt_worker *worker; /* NULL: not started */
    dt_alloc alloc;
    int64_t held; /* bytes of buffers without values that other devices still read */
} dt_device_state;

typedef struct dt_devices {
    dt_device_state *device[DT_DEVICE_TYPES]; /* (DT_MAX_DEVICES,) or NULL */
    int n_started;
    int64_t budget; /* of devices that start from now on; 0: none */
    dt_buf **held;  /* memory whose last value is gone, but that another device still reads */
    int n_held, cap_held;
    /* While `quiet`, the first sleeping worker that gets something to do is not woken: whoever set it runs that itself, or wakes it. */
    bool quiet;
    dt_device_state *unwoken;
} dt_devices;
extern dt_devices dt_the_devices;

void dt_nodes_init(void);                                           /* plan/nodes.h from the launcher's environment; idempotent, before the first device */
dt_status dt_device_get(dt_device d, dt_device_state **out) DT_WUR; /* starts its worker; the device must be of this node */
void dt_device_push(dt_device_state *s, dt_item item);              /* sleeps while the worker's queue is full */
void dt_devices_wake(void);                                         /* the one that was left asleep */
void dt_devices_each(void (*fn)(void *ctx, dt_device_state *s), void *ctx); /* those that started */
void dt_devices_quiesce(void);                                              /* waits until no worker has anything to do */
uint32_t dt_devices_pending(void);       /* items that workers have not finished; simulated devices count as busy: what they get must not depend on real time */
extern _Atomic uint32_t dt_devices_tell; /* set: a worker that falls idle clears it and calls dt_devices_idle, once; then look at dt_devices_pending */
extern void (*dt_devices_idle)(void);    /* any worker's thread; set before the first */
extern void (*dt_devices_wait)(void);    /* NULL or called before workers are waited for: other nodes get their part, or a collective would wait for ever */
void dt_devices_sim_begin(int64_t memory); /* simulated devices that exist already (tensors of an earlier simulation): their limit, new peaks */
void dt_devices_free(void);
void dt_runs_forget(void);          /* memory kept for runs */
void dt_devices_threads_set(int n); /* 0: all cores. Any thread */
int dt_devices_threads(void);

dt_buf *dt_buf_new(dt_device d, size_t bytes, void *data);
extern void (*dt_buf_drop_elsewhere)(dt_buf *b); /* the last value in another node's memory is gone */
extern void (*dt_buf_undo_elsewhere)(dt_buf *b); /* memory of another node that it was never told of */
void dt_buf_drop(dt_buf *b);                     /* one value less lies in it; at zero the memory returns to the allocator */
void dt_bufs_throttle(void);                     /* the same; waits for readers while a device holds too much for them */
void dt_bufs_sweep(void);                        /* what is no longer read by other devices returns to the allocators */

/* ---- a plan and memory: a run ------------------------------------------------------------------------------------------------------------ */
typedef struct dt_binding { /* memory obtained so far, to undo a binding that fails half-way */
    dt_run *run;
    size_t *arena_bytes; /* (n_programs,) rounded; 0: none yet */
    void **arena;
} dt_binding;
dt_status dt_binding_new(const dt_plan *p, dt_binding *b) DT_WUR; /* one block holds the run and all its arrays */
/* Memory for program i's results and temporaries. The caller fills buf and base of its external slots. */
dt_status dt_binding_program(const dt_plan *p, int i, dt_binding *b) DT_WUR;
void dt_binding_undo(const dt_plan *p, dt_binding *b);
/* Numbers and sites are filled in: hand the programs of this node to their workers. Takes a reference of the plan; returns how many were pushed. */
int dt_binding_push(dt_plan *p, dt_binding *b);

#endif
