/* What the ops of mixtures of experts and their kernels share: the layout of row buffers, attributes, scratch.
 *
 * The tokens that are routed lie in shards; every shard has a buffer of rows of its own, of a static size, of which only the first ones are
 * used. The buffers of all shards are one tensor
 *
 *     rows (P, G, M, D)      G: positions along the experts' mesh dimension `ep`, P: shards along all others, M: rows a shard
 *
 * sharded by dimension 1 along `ep` and by dimension 0 along the other mesh dimensions that shard tokens, so a device holds one buffer. How many
 * rows of it count is known at run time only: counts (P, G, E) says how many rows of shard (p, g) go to expert e. Two orders occur:
 *
 *     by sender    shard (p, g) holds its own tokens' rows, by expert:        counts[p][g][0] rows of expert 0, counts[p][g][1] of expert 1, …
 *     by receiver  shard (p, g) holds the rows of its own experts, of all     for each of its experts e: counts[p][0][e] rows from
 *                  senders (p, 0 … G-1):                                      sender 0, counts[p][1][e] from sender 1, …
 *
 * With G = 1 both are the same. Experts are cut as any dimension is: dt_layout_chunk(E, G, g). What lies behind the used rows is never read or
 * written: memory that is not touched costs nothing. */
#ifndef DT_OPS_EXPERT_H
#define DT_OPS_EXPERT_H

#include "ops/grouped.h"

typedef struct dt_expert_attr {
    int64_t ep; /* the mesh dimension of the experts; -1: none */
    int64_t shards, groups, rows, n_experts, capacity;
    bool back, trans;
    const char *kind;
} dt_expert_attr;

typedef enum dt_expert_act { DT_EXPERT_SILU, DT_EXPERT_GELU, DT_EXPERT_GELU_TANH, DT_EXPERT_RELU, DT_EXPERT_ACTS } dt_expert_act;
extern const char *const dt_expert_act_name[DT_EXPERT_ACTS];
dt_status dt_expert_act_find(const char *kind, dt_expert_act *out) DT_WUR;

size_t dt_expert_route_scratch(const dt_kctx *c);
size_t dt_expert_mm_scratch(const dt_kctx *c);

#endif
