/* Repeats of streams over several meshes: see round.c. Controller thread only. */
#ifndef DT_CONTROLLER_ROUND_H
#define DT_CONTROLLER_ROUND_H

#include "controller/engine.h"

/* A call arrives while calls go to segments. True: it is what the expected round has at this place, and was taken. False: the caller records it as usual, and then
 * says so. */
bool dt_round_call(dt_engine *e, const uint64_t *w);
bool dt_round_active(void); /* one is being replayed */
void dt_round_open(void);   /* a call will be recorded */
void dt_round_record(const uint64_t *w, dt_gnode *n);
bool dt_round_drop(dt_engine *e, uint32_t id); /* true: the value belongs to the round that is replayed, and was dealt with */
bool dt_round_complete(void);                  /* all records of a round were taken, and some of it is not dispatched: only its end is waited for */
/* A read and the like: what was taken is dispatched, or recorded as usual. Then the order is flushed, and dt_round_end says that the round is over. */
void dt_round_settle(dt_engine *e, const char *why);
void dt_round_end(dt_engine *e);

/* Of the round that is recorded: */
void dt_round_commit(const dt_order_commit *c);    /* a segment is about to be dispatched */
void dt_round_plan(const dt_graph *g, dt_plan *p); /* with this plan. Before its results have parts */
void dt_round_failed(void);                        /* the round is not to be made again like this */

void dt_round_forget(dt_plan *p); /* p leaves the cache */
void dt_round_free(void);

#endif
