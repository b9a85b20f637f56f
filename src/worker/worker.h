/* A worker: one device's threads. It runs programs in the order they were pushed and knows nothing of graphs.
 *
 * The compute thread takes items from a bounded queue; a program that has communication instructions is shared with the communication thread
 * (made at the first need), and both join at the program's end. Large kernels are split over the worker's thread team.
 *
 * A thread that waits for a result may take the compute thread's place while that sleeps (dt_worker_help), which saves two wake-ups. Who runs
 * items holds the worker's role, a lock.
 *
 * dt_worker_push is the controller's; everything else here may be called by any thread. */
#ifndef DT_WORKER_WORKER_H
#define DT_WORKER_WORKER_H

#include "comm/comm.h"
#include "plan/source.h"

typedef struct dt_worker dt_worker;

typedef struct dt_fetch { /* copy one part into a future's host buffer */
    dt_future *future;    /* referenced */
    dt_buf *buf;          /* referenced */
    dt_view src, dst;     /* data set; dst lies in future->buf */
} dt_fetch;

typedef enum dt_item_kind { DT_ITEM_RUN, DT_ITEM_FETCH, DT_ITEM_READ, DT_ITEM_SYNC, DT_ITEM_STOP } dt_item_kind;
typedef struct dt_item {
    dt_item_kind kind;
    void *p; /* dt_run_part * | dt_fetch * | dt_load * (freed by the worker) | dt_future * (one reference) | NULL */
} dt_item;

dt_status dt_worker_new(dt_device d, int team_max, int team, void (*wake)(void),
                        dt_worker **out) DT_WUR; /* wake: called when the worker falls idle, or its queue is half empty again */
void dt_worker_free(dt_worker *w);               /* finishes what was pushed, joins */
/* False when the queue is full: nothing was pushed. wake: or else whoever pushes calls dt_worker_wake or dt_worker_help later. */
bool dt_worker_push(dt_worker *w, dt_item item, bool wake);
bool dt_worker_asleep(const dt_worker *w);
void dt_worker_wake(dt_worker *w);
/* Run what the worker has to do on the calling thread until f is done, as far as it is known to be short and waits for nobody; what is left
 * over is the worker's. */
void dt_worker_help(dt_worker *w, const dt_future *f);
uint32_t dt_worker_pending(const dt_worker *w); /* items not finished */
void dt_worker_team(dt_worker *w, int size);
uint64_t dt_worker_runs(const dt_worker *w);

void dt_buf_unref(dt_buf *b);                   /* any thread */
void dt_run_part_done(dt_run_part *p);          /* the last part frees the run */
void dt_run_free(dt_run *r);                    /* its memory alone */
void dt_buf_block_free(_Atomic uint32_t *left); /* run.c: the last buffer of a block is gone; any thread */
void dt_run_end(dt_run *r);                     /* a run that no worker has a part in */

#endif
