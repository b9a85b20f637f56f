/* The controller's side of other nodes: plans, runs, buffers and reads of devices that are not of this process.
 *
 * Entries for a node collect in a buffer and go out as one message when the ring is empty, when somebody waits, or when there are many. Memory
 * of other nodes is known by ids; it is allocated there, in the order of the messages, so what is freed here may be reused by what is sent
 * next.
 *
 * Threads: the controller, except that answers arrive on the progress thread, which completes futures. */
#ifndef DT_CONTROLLER_REMOTE_H
#define DT_CONTROLLER_REMOTE_H

#include "controller/engine.h"
#include "plan/source.h"

dt_status dt_remote_start(void) DT_WUR; /* nothing if this process was started alone */
void dt_remote_stop(void);
void dt_remote_flush(void); /* send what collected */
/* The same from the controller's loop. idle: the client pauses. Else it waits for more, at most 20 ms, in growing intervals: how many messages a step is does
 * not depend on how many calls it has. */
void dt_remote_flush_some(bool idle);
/* Other nodes begin to log events, or end: then f, which gets a part a node, completes when what they logged has become events of this process. */
void dt_remote_trace(dt_future *f, bool on);

/* Buffers on another node for the results of program i; its external slots are filled like local ones. */
dt_status dt_remote_bind(const dt_plan *p, int i, dt_binding *b) DT_WUR;
/* Tell the nodes of a run; seq is counted. Must come before dt_binding_push. */
dt_status dt_remote_run(const dt_io *io, dt_plan *p, dt_binding *b) DT_WUR;
void dt_remote_drop_plan(const dt_plan *p);
/* A piece of host memory (strided) becomes a contiguous buffer of another node. */
dt_status dt_remote_host(const dt_view *src, dt_device d, dt_buf **out) DT_WUR;
/* Other nodes open the file; f gets a part from each, and then file->here is known. */
void dt_remote_open(dt_file *file, dt_future *f);
/* The same from files; r stays the caller's. A node that cannot read one of them is sent what this one reads. f, if given, gets one part, but not on failure. */
dt_status dt_remote_read(const dt_load *r, dt_device d, dt_future *f, dt_buf **out) DT_WUR;
/* Copy a part into a future's buffer; takes over one `part` of the future. What is large comes in pieces (stream.c). */
dt_status dt_remote_fetch(const dt_part *p, const dt_view *src, const dt_view *dst, dt_future *f) DT_WUR;
/* The same in one answer. piece: dt_stream_returned is called when it has come, or its node is lost. */
dt_status dt_remote_ask(const dt_part *p, const dt_view *src, const dt_view *dst, dt_future *f, bool piece) DT_WUR;
bool dt_stream_pump(void);                                     /* asks for what may be under way; true: something was asked for, or ended */
void dt_stream_returned(void);                                 /* any thread */
void dt_stream_free(void);                                     /* nobody waits any more */
void dt_remote_sync(dt_future *f);                             /* adds one part a node */
void dt_remote_limit(dt_device d, int64_t bytes, bool budget); /* or its budget */
void dt_remote_budget_all(int64_t bytes);                      /* every device's */
bool dt_remote_capped(void);                                   /* has any of them a limit or a budget? */
/* What values take of another node's device, its limit and budget; NULL: out of host memory. */
dt_memory_stats *dt_remote_memory(dt_device d);
bool dt_remote_stats(dt_device d, dt_memory_stats *out, dt_future *f,
                     bool new_peaks);            /* takes a part and a reference of f; false: the device is of this node. Flush */
void dt_remote_sim(int devices, int64_t memory); /* a simulation begins: devices a node holds, bytes of each */

#endif
