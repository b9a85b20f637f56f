/* A worker's inside: what worker.c and together.c share. Whoever holds the worker's role may call these. */
#ifndef DT_WORKER_INSIDE_H
#define DT_WORKER_INSIDE_H

#include <pthread.h>

#include "worker/worker.h"

enum { DT_QUEUE = 256, DT_SHORT_NS = 1000000 };

struct dt_worker {
    dt_device device;
    const dt_backend *backend;
    const dt_transport *transport;
    dt_team *team;
    void (*wake)(void);
    pthread_t thread, comm_thread;
    bool comm_started;
    pthread_mutex_t role; /* whoever runs items holds it */
    dt_item item[DT_QUEUE];
    _Alignas(64) _Atomic uint32_t tail; /* pushed; a futex word */
    _Alignas(64) _Atomic uint32_t head; /* finished */
    _Atomic uint32_t asleep;
    _Alignas(64) _Atomic(dt_run_part *) comm_part; /* what the communication thread shall run */
    _Atomic uint32_t comm_seq;                     /* futex word: a new part, or stop */
    _Atomic bool comm_stop;
    _Atomic uint64_t runs;
};

/* A program's beginning and end, without waiting: may it begin, are all that it reads and overwrites ready for it? The run is still there after the end. */
bool dt_part_ready(const dt_worker *w, const dt_run_part *p, const dt_program *prog);
void dt_part_begin(dt_run_part *p, const dt_program *prog);
void dt_part_end(dt_worker *w, dt_run_part *p, const dt_program *prog);
void dt_part_kernel(dt_worker *w, dt_run_part *p, dt_instr *s); /* and the s->also behind it */
/* A bucket that meets, up to the next meeting at which somebody is missing (dt_comm_bucket_step); true: it is done. */
bool dt_part_meet(dt_worker *w, dt_run_part *p, dt_instr *s, int *phase);

/* together.c. w's next item is p: run it, and the other programs of its run, on this thread. False: not now; who should have done it is told. */
bool dt_worker_together(dt_worker *w, dt_run_part *p);
bool dt_plan_together(dt_plan *p);         /* the controller is about to push a run of p: is it pushed for one thread? */
void dt_worker_item_done(dt_worker *w);    /* its head */
dt_worker *dt_devices_worker(dt_device d); /* devices.c: of a device that has one */

#endif
