/* The controller's inside: what its files share. Controller thread only, unless said otherwise. */
#ifndef DT_CONTROLLER_ENGINE_H
#define DT_CONTROLLER_ENGINE_H

#include "controller/alloc.h"
#include "controller/controller.h"
#include "passes/passes.h"
#include "worker/worker.h"

enum { DT_PLANS_MAX = 256 };

typedef struct dt_device_state {
    dt_worker *worker; /* NULL: not started */
    dt_alloc alloc;
} dt_device_state;

typedef struct dt_engine {
    dt_ring ring;
    /* values */
    dt_gvalue **value; /* by id */
    uint32_t n_value;
    dt_gvalue *free_values; /* chained through `part` */
    dt_buf **held;          /* memory whose last value is gone, but that another device still reads */
    int n_held, cap_held;
    /* the pending subgraph */
    dt_graph graph;
    bool cut;         /* dispatch before the next call */
    uint64_t rolling; /* hash of the last calls, for cuts that depend on content only */
    /* plans */
    dt_htab plans;
    uint64_t clock;
    /* devices */
    dt_device_state *device[DT_DEVICE_TYPES];
    int n_started;
    dt_engine_stats stats;
} dt_engine;

extern dt_engine dt_the_engine;

/* devices.c */
dt_status dt_engine_device(dt_device d, dt_device_state **out) DT_WUR; /* starts its worker */
void dt_engine_push(dt_device_state *s, dt_item item);                 /* sleeps while the worker's queue is full */
void dt_engine_quiesce(void);                                          /* waits until no worker has anything to do */
uint32_t dt_engine_pending(void);                                      /* items that workers have not finished */
void dt_engine_devices_free(void);

/* dispatch.c */
/* Turn the pending subgraph into a run (or several, if it fails as a whole) and push it; every value is then ready, maybe with an error. */
void dt_engine_dispatch(void);
void dt_engine_plans_free(void);

/* values.c */
dt_gvalue *dt_gvalue_new(const dt_meta *meta);
void dt_gvalue_free(dt_gvalue *v);              /* its parts and itself */
void dt_gvalue_release(dt_gvalue *v);           /* frees it if nobody needs it any more */
dt_status dt_gvalue_parts(dt_gvalue *v) DT_WUR; /* allocates the array of parts */
dt_part *dt_part_new(int ndim, const int64_t *stride);
dt_buf *dt_buf_new(dt_device d, size_t bytes, void *data);
void dt_bufs_sweep(void);    /* what is no longer read by other devices returns to the allocators */
void dt_buf_drop(dt_buf *b); /* one value less lies in it; at zero the memory returns to the allocator */
/* Make v ready with parts that hold nothing but an error. */
void dt_gvalue_poison(dt_gvalue *v, dt_error_t *e);
/* A value of host memory: its parts are views of that memory. */
dt_status dt_gvalue_from_host(dt_gvalue *v, dt_hostbuf *h) DT_WUR;

/* report.c */
void dt_comm_count(const dt_coll *c, uint32_t site);

#endif
