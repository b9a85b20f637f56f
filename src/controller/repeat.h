/* Repeats of the record stream: see repeat.c. Controller thread only. */
#ifndef DT_CONTROLLER_REPEAT_H
#define DT_CONTROLLER_REPEAT_H

#include "controller/engine.h"

/* A call arrives. True: it is what the expected chunk has at this place, and was taken. False: the caller records it as usual; what was taken
 * of the chunk so far lies in the pending subgraph. */
bool dt_repeat_call(dt_engine *e, const uint64_t *w);
bool dt_repeat_drop(dt_engine *e, uint32_t id); /* true: the value belongs to the chunk and was dealt with */
bool dt_repeat_active(void);                    /* records of a chunk were taken that is not dispatched yet */
bool dt_repeat_waits(void);                     /* and more are expected */
/* Whatever was taken is dispatched, or put into the pending subgraph: before a read and the like. why: what came instead of the next call. */
void dt_repeat_settle(dt_engine *e, const char *why);
void dt_repeat_pause(void); /* the client pauses */

/* A subgraph of the stream is about to be run with plan p, found in the cache: learn its records. Before its results have parts. */
void dt_repeat_learn(dt_engine *e, dt_graph *g, dt_plan *p);
void dt_repeat_ran(dt_plan *p);    /* the stream's last chunk was run with p; NULL: with none that is cached */
void dt_repeat_forget(dt_plan *p); /* p leaves the cache */
void dt_repeat_free(void);

#endif
