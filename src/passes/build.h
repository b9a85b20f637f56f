/* What the lowering passes share while a plan is being built. Everything lives in the plan's arena or in `tmp`, freed at the end.
 *
 *   loc      where one device's part of a value lies: a storage, an offset, a view
 *   storage  a piece of memory on one device: an external buffer, a buffer that escapes, or a temporary. Storages may be merged
 *            (in-place reuse): follow `root`.
 *   step     an instruction not yet bound to slots */
#ifndef DT_PASSES_BUILD_H
#define DT_PASSES_BUILD_H

#include "passes/passes.h"

typedef enum dt_storage_kind { DT_ST_TEMP, DT_ST_OUT, DT_ST_EXT } dt_storage_kind;
typedef struct dt_tenant { /* a storage whose memory another one takes over */
    int st;
    struct dt_tenant *next;
} dt_tenant;
typedef struct dt_storage {
    uint8_t kind;
    bool donate;     /* EXT: may be overwritten after its last use */
    bool written;    /* EXT: some step writes into it */
    int root;        /* itself, or the storage it was merged into */
    int first, last; /* steps that make and last use it; -1 none */
    int slot;
    uint32_t ext, pos;
    size_t bytes, offset;
    dt_tenant *before; /* TEMP: who had the memory before */
} dt_storage;

typedef struct dt_loc {
    int prog, storage;
    int64_t offset;
    dt_view view; /* data unset */
} dt_loc;

typedef struct dt_pval { /* a value during the build: (mesh->n,) parts */
    const dt_meta *meta;
    uint64_t layout;
    dt_loc *loc;
    struct dt_pval *converted; /* other forms of the same value that were needed, by meta */
    struct dt_pval *next;
    int last; /* a converted form: the last node known to use it */
} dt_pval;

typedef struct dt_step {
    dt_instr
        in; /* views, operands, places and groups in `tmp`: the finished program has its own, or its neighbour's; operand.slot holds a storage number until the end */
    bool inplace_any, inplace_first, inplace_written;
    int first_consumer;
    int bucket; /* collectives of one bucket meet together, kernels of one run together (many.c); -1: alone */
} dt_step;

typedef struct dt_prog {
    dt_device device;
    int n_step, cap_step;
    dt_step *step;
    int n_st, cap_st;
    dt_storage *st;
    bool has_comm; /* some step is on the communication queue */
} dt_prog;

typedef struct dt_build {
    const dt_graph *g;
    dt_plan *plan;
    dt_arena *arena; /* the plan's */
    dt_arena tmp;
    int n_prog;
    dt_prog *prog;
    int *prog_of, cap_prog_of; /* hash table of program numbers + 1, by device */
    int n_live;
    dt_pval **ext;  /* (n_ext,) */
    dt_pval ***out; /* (n_live, n_out) */
    int n_numbers, cap_numbers;
    dt_number_plan *number;
    int n_colls, cap_colls;
    dt_coll **coll;
    int node;      /* being lowered */
    int *last_use; /* (n_live,) the last node that uses a result of each; INT_MAX: it outlives the plan */
} dt_build;

/* A value is made again rather than kept from a use to another that is more than this many nodes later: a program that computes something
 * twice, such as a weight gathered for the forward pass and again for the backward pass, means to let it go in between. */
enum { DT_AT_HAND = 24 };
static inline bool dt_at_hand(int last, int node) { return last >= node || node - last <= DT_AT_HAND; }

int dt_build_prog(const dt_build *b, dt_device d); /* -1: not in the plan */
dt_status dt_build_devices(dt_build *b) DT_WUR;    /* a program for each device that the graph's calls name */
dt_status dt_build_storage(dt_build *b, int prog, size_t bytes, int *out) DT_WUR;
/* A new step with room for operands; *out is valid until the next step of that program. */
dt_status dt_build_step(dt_build *b, int prog, int n_in, int n_out, dt_step **out) DT_WUR;
dt_status dt_build_pval(dt_build *b, const dt_meta *meta, dt_pval **out) DT_WUR; /* locs with shapes, no storage */
/* Contiguous storages for all parts. */
dt_status dt_build_pval_alloc(dt_build *b, dt_pval *v) DT_WUR;
/* One elementwise kernel of `op` (clone, to_dtype, zeros …) from `in` to `out` on one device. */
dt_status dt_build_unary(dt_build *b, const dt_op *op, const dt_loc *in, dt_loc *out) DT_WUR;
dt_status dt_build_loc_alloc(dt_build *b, dt_loc *l) DT_WUR; /* a storage of l's own, as large as its view */
/* One kernel of `op` on one device: loc and geom are (n_in + n_out,). A loc's storage -1: absent; -2: a number, its offset in the run's. */
dt_status dt_build_kernel_step(dt_build *b, int prog, const dt_op *op, const void *attr, int n_in, int n_out, const dt_loc *loc, dt_geom *geom) DT_WUR;
void dt_build_geom(dt_geom *g, const dt_meta *m, int pos); /* what a kernel is told of the place of m's part at pos */
/* v in another dtype and/or with other placements. */
dt_status dt_build_convert(dt_build *b, dt_pval *v, const dt_meta *to, dt_pval **out) DT_WUR;
dt_status dt_build_reshard(dt_build *b, dt_pval *v, const dt_meta *to, dt_pval **out) DT_WUR;
/* pull.c: a redistribution between meshes where the readers do all. `out` has locs without storage. */
bool dt_build_can_pull(const dt_build *b, const dt_pval *v, const dt_meta *to, const dt_reshard *r);
dt_status dt_build_pull(dt_build *b, const dt_pval *v, const dt_reshard *r, dt_pval *out) DT_WUR;
/* A view of `box` inside the part `l` that holds `have`; *offset in bytes from the storage. */
dt_view dt_build_sub_view(const dt_loc *l, const dt_box *have, const dt_box *box, int64_t *offset);
/* The last few views that a collective's pulls have: equal ones are kept once. */
typedef struct dt_kept_view {
    const dt_view *last[2];
} dt_kept_view;
const dt_view *dt_build_keep_view(dt_kept_view *keep, dt_build *b, const dt_view *v); /* in the plan; NULL: out of host memory */
dt_status dt_build_coll(dt_build *b, dt_coll *c) DT_WUR;                              /* into the plan's list */
/* Parties that exchange nothing meet separately: kin[i] is a party of i's group, the same for all of the group. Before dt_build_coll. */
dt_status dt_build_groups(dt_build *b, dt_coll *c, const int *kin) DT_WUR;
/* _expert_exchange (exchange.c): in: its rows and counts. */
dt_status dt_build_exchange(dt_build *b, const dt_call *c, dt_pval **in, dt_pval **out) DT_WUR;
/* Moves between devices, all in one collective: src on mesh position `from` (of c's mesh) is copied to dst on `to`, or added to it. A device has
 * one source storage and one destination storage in all. */
typedef struct dt_move {
    int from, to;
    bool add;
    dt_loc src, dst;
} dt_move;
dt_status dt_build_moves(dt_build *b, const dt_mesh *mesh, const char *kind, const char *mesh_dim, const dt_move *move, int n) DT_WUR;
dt_status dt_build_zero(dt_build *b, dt_device d, const dt_loc *l) DT_WUR; /* fills l with zeros */
/* ring.c: attention whose keys stay sharded along the sequence. in, out: the call's operands; number: where its numbers lie. */
bool dt_ring_wanted(const dt_call *c);
dt_status dt_build_ring(dt_build *b, const dt_call *c, dt_pval *const *in, const int *number, dt_pval *const *out) DT_WUR;
void dt_build_bind(dt_step *s, int i, const dt_loc *l);                          /* operand i */
dt_status dt_build_contiguous(dt_build *b, const dt_loc *l, dt_loc *out) DT_WUR; /* a copy */
/* The op's kernel and scratch for a step whose operands are bound. */
dt_status dt_build_kernel_of(dt_build *b, int prog, const dt_op *op, dt_step *s) DT_WUR;
/* staged.c */
bool dt_build_is_staged(const dt_call *c);
dt_status dt_build_staged(dt_build *b, const dt_call *c, dt_pval *in, dt_pval **out) DT_WUR;
const dt_kernel *dt_build_kernel(const dt_op *op, dt_device_type dev, const dt_kctx *c);
dt_status dt_build_cse(dt_build *b, int **same) DT_WUR;      /* cse.c; same[i]: the earlier node that node i equals, or i */
dt_status dt_build_fuse(dt_build *b, bool **escapes) DT_WUR; /* fuse.c; escapes: per program, per storage */
dt_status dt_build_bucket(dt_build *b) DT_WUR;               /* bucket.c */
dt_status dt_build_many(dt_build *b, bool **escapes) DT_WUR; /* many.c, after reuse */
dt_status dt_build_finish(dt_build *b) DT_WUR;               /* memory.c: queues, storages, slots, programs */

#endif
