/* Passes: what happens to a subgraph between the client's records and a plan. One file each.
 *
 *   dead.c      marks nodes whose results nobody can name
 *   key.c       numbers external values and writes the key a cached plan is found by
 *   cse.c       calls equal to earlier ones
 *   lower.c     calls -> instructions per device: implied casts and redistributions, aliases, kernels; it asks
 *     reshard.c   any placements on any mesh -> any other: who holds what a device needs
 *     collect.c   that as aliases or one collective
 *     pull.c      that between meshes, where only the reader acts
 *     ring.c      attention over a sharded sequence
 *     staged.c    operators along a sharded dimension, in stages
 *     exchange.c  rows to the devices of their experts
 *   bucket.c    where collectives stand, and which meet together
 *   fuse.c      elementwise steps -> fused groups
 *   many.c      small kernels of a kind in groups that a team divides
 *   memory.c    storages -> slots and arena offsets, in-place reuse
 *
 * Controller thread only. */
#ifndef DT_PASSES_PASSES_H
#define DT_PASSES_PASSES_H

#include "graph/graph.h"

void dt_pass_dead(dt_graph *g);
dt_status dt_pass_key(dt_graph *g) DT_WUR;
/* Build the plan of the graph's live nodes (dead.c and key.c ran before). The plan's key and calls are set by the caller. */
dt_status dt_pass_lower(const dt_graph *g, dt_plan **out) DT_WUR;

/* May this external value's memory be overwritten by the subgraph: nobody else names it and nothing else lies in its buffers. */
bool dt_gvalue_donatable(const dt_gvalue *v);

/* ---- reshard.c: what each device of `to` must pull from the devices of `from` -------------------------------------------------------- */
typedef struct dt_piece { /* a box of the result, summed (or max, …) over n_src sources; n_src 0 = zeros */
    dt_box box;
    int n_src, src; /* the k-th source is src + the reshard's step[k]: positions in from's mesh */
} dt_piece;
typedef struct dt_reshard_dev {
    int n;
    dt_piece *piece; /* shared between devices that need the same */
} dt_reshard_dev;
typedef struct dt_reshard {
    dt_reshard_dev *dev;            /* (to->mesh->n,) */
    int *like;                      /* (to->mesh->n,) the first device that needs the same, by coordinates */
    int n_steps, *step;             /* (n_steps,) from a piece's first source to all of them; one for what is not reduced */
    bool reduced[DT_MAX_MESH_DIM];  /* of from's mesh: the sources of a piece are all coordinates along these */
    bool involved[DT_MAX_MESH_DIM]; /* on one mesh: devices that differ along no other dimension may exchange something */
    dt_reduce reduce;
    bool local;           /* every device needs only itself */
    bool all_reduce;      /* the same reduced box is wanted by `copies` devices: worth two phases */
    const char *kind;     /* all_gather, reduce_scatter, …: for reports */
    const char *mesh_dim; /* names of the dimensions it goes along, joined by commas; numbers where they have no names. In the arena */
} dt_reshard;
dt_status dt_reshard_build(const dt_meta *from, const dt_meta *to, dt_arena *arena, dt_reshard *out) DT_WUR;

#endif
