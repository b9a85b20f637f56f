/* The controller's subgraph: values and the calls that make them, in program order.
 *
 *   dt_gvalue  a value of the client, over all devices. Either it is ready (its parts lie in buffers) or a node of the pending subgraph makes
 *              it. It lives while the client names it, a pending node uses it or it is being dispatched.
 *   dt_gnode   one call. Its inputs are values or numbers.
 *   dt_graph   the pending nodes. Nodes only ever use values made earlier: the order is a topological order.
 *
 * Controller thread only. */
#ifndef DT_GRAPH_GRAPH_H
#define DT_GRAPH_GRAPH_H

#include "plan/program.h"

typedef struct dt_part { /* what one device of the value's mesh holds */
    dt_buf *buf;
    int64_t offset; /* bytes */
    bool contiguous;
    int64_t stride[]; /* (ndim,) */
} dt_part;

typedef struct dt_gvalue {
    const dt_meta *meta;
    bool client; /* the client names it */
    bool named;  /* while its subgraph, or one that reads it, is dispatched: somebody outside that subgraph will want it */
    bool ready;
    uint32_t uses;    /* inputs of pending nodes that are this value */
    uint64_t layout;  /* 0: every part contiguous; else a hash of how its strides came about */
    dt_part **part;   /* (mesh->n,) when ready */
    dt_part *one;     /* not NULL: all entries of `part` are this one */
    uint32_t segment; /* controller/order.c: which segment of the stream made it; 0 none */
    uint32_t number;  /* controller/round.c: which value of the round under way it is */
    uint32_t site;    /* of the call that made it */
    /* while pending, or external to the subgraph being planned: */
    int32_t node; /* producer, -1: external */
    uint32_t out;
    int32_t index; /* external: its number among the subgraph's external values; -1 not numbered yet */
    /* so far a cache line, which is all that is looked at in a replayed step */
    uint32_t inner; /* while dispatching: of its uses, the subgraph's own */
    /* under a memory budget (controller/remat.h); 0 otherwise */
    bool evicted, demands;            /* it has no memory but its recipe; somebody may ask for it, so its recipe's inputs must stay */
    bool spent;                       /* the subgraph just dispatched writes something else into its memory */
    uint32_t holds, wanted;           /* recipes that read it; of those, of evicted values that may be asked for */
    uint32_t pin, group;              /* while looking for memory */
    struct dt_recipe *recipe;         /* how to make it again; NULL: it cannot be */
    uint64_t used_at;                 /* the last call that made or read it, counted as they are dispatched */
    struct dt_gvalue *before, *after; /* all that have a recipe, in the order in which they were made */
    struct dt_gvalue *beside;         /* while looking for memory: another value in the same buffer */
} dt_gvalue;

typedef struct dt_gnode {
    dt_call *call; /* referenced */
    uint32_t site;
    int32_t at;       /* place in the stream: passes may move nodes */
    bool live, again; /* again: makes values that were evicted */
    uint32_t rec;     /* controller/round.c: its place in the round */
    dt_gvalue **in;   /* (n_in,) NULL for numbers and absent inputs */
    uint64_t *number; /* (n_in,) */
    dt_gvalue **out;  /* (n_out,) */
} dt_gnode;

typedef struct dt_graph {
    dt_arena arena;
    int n, cap;
    dt_gnode *node;
    int n_ext, cap_ext;
    dt_gvalue **ext; /* external values, numbered by dt_graph_key */
    uint64_t *key;   /* what a cached plan is found by */
    size_t n_key, cap_key;
    struct dt_graph *later; /* what was split off this subgraph and is dispatched after it */
} dt_graph;

dt_status dt_graph_init(dt_graph *g) DT_WUR;
void dt_graph_fini(dt_graph *g);
void dt_graph_clear(dt_graph *g);                                         /* forget the nodes (their values and calls are the caller's) */
dt_gnode *dt_graph_add(dt_graph *g, dt_call *call, uint32_t site) DT_WUR; /* NULL: out of host memory */
/* Nodes [from, to) move to `rest`, an empty graph; those behind them close up. */
dt_status dt_graph_split(dt_graph *g, int from, int to, dt_graph *rest) DT_WUR;
/* Check that inputs come before their users and shapes agree with the calls. Debug builds run it after each pass. */
dt_status dt_graph_verify(const dt_graph *g) DT_WUR;
void dt_graph_print_node(const dt_graph *g, int i, dt_str *s);

#endif
