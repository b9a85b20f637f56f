/* Values without memory: how to make them again. Controller thread only.
 *
 * While some device has a memory budget or a limit, every value that a deterministic call made keeps that call as its *recipe*. Such a value can be
 * *evicted*: its buffers go back, the recipe stays. When a later subgraph reads it, the recipe's call joins that subgraph just before its first
 * reader, like any call of the program: it is fused, its plan is cached, and since calls are deterministic (random ones carry seed and offset)
 * it gives the same bits. After Kirisame et al., "Dynamic Tensor Rematerialization", 2020.
 *
 *   ready ──evict──> evicted ──joins a subgraph──> pending ──dispatch──> ready
 *     │                 ▲                             │ (nobody outside reads it: no memory either)
 *     └─nobody names it─┴── kept for recipes only ────┘        without a recipe, or far from what is there: lost
 *
 * An evicted value that somebody may ask for *demands* its recipe's inputs: `wanted` counts that. A wanted value is not given to others to
 * overwrite, and if it has no recipe of its own (a parameter, the batch) it keeps its memory though nobody names it. So what is evicted can
 * always be made again. */
#ifndef DT_CONTROLLER_REMAT_H
#define DT_CONTROLLER_REMAT_H

#include "controller/engine.h"

typedef struct dt_recipe {
    dt_call *call; /* referenced */
    uint32_t site, refs, walk;
    dt_gvalue **in;   /* (n_in,) held; NULL for numbers and absent inputs */
    uint64_t *number; /* (n_in,) */
    dt_gvalue **out;  /* (n_out,) not held; NULL: gone */
} dt_recipe;

void dt_remat_record(dt_graph *g, const dt_plan *p); /* g was dispatched: its results get recipes */
dt_status dt_remat_restore(dt_graph *g) DT_WUR;      /* calls for the evicted values that live nodes of g read (dead.c ran) */
dt_status dt_remat_bring(dt_gvalue *v) DT_WUR;       /* make an evicted value now */
void dt_remat_evict(dt_gvalue *v);
void dt_remat_release(dt_gvalue *v); /* a client or a node let go of it: it stays for recipes, or goes */
void dt_remat_forget(dt_gvalue *v);  /* its recipe goes */
/* Seconds to make v again if all values with this group had no memory. False: it cannot be, or too much else would have to be. */
bool dt_remat_cost(const dt_gvalue *v, uint32_t group, double *seconds);

/* budget.c */
void dt_budget_set(dt_device d, int64_t bytes, bool all);
void dt_limit_set(dt_device d, int64_t bytes);
/* Evict until the plan's memory fits into every device's budget; *evicted: something was, so that names and keys may have changed. E_NOMEM. */
dt_status dt_budget_fit(const dt_graph *g, const dt_plan *p, bool *evicted) DT_WUR;
void dt_budget_shake(void); /* DTORCH_EVICT */

#endif
