/* What the files of src/client share: the client's state, pools, and the small functions of the hot path.
 *
 * The state is one static object, used by one caller at a time (the GIL, or the C program's own care). Objects come from free lists that
 * only grow: a handle, its cell and its value cost three pops, no malloc. Value ids come from a stack, last freed first used, so the
 * controller's table stays small and warm; the stack is grown when an id is minted, hence giving one back cannot fail. */
#ifndef DT_CLIENT_INTERNAL_H
#define DT_CLIENT_INTERNAL_H

#include <string.h>

#include "client/client.h"
#include "client/scope.h"

typedef struct dt_pool {
    void *free;
    size_t size;
} dt_pool;
void *dt_pool_grow(dt_pool *p); /* NULL: out of host memory (dt_fail was called) */
static inline void *dt_pool_take(dt_pool *p) {
    void *x = p->free;
    if (DT_UNLIKELY(!x)) return dt_pool_grow(p);
    p->free = *(void **)x;
    return x;
}
static inline void dt_pool_give(dt_pool *p, void *x) {
    *(void **)x = p->free;
    p->free = x;
}

/* What a call needs to know of an op's parameters, unpacked for speed. */
typedef struct dt_prep {
    struct dt_prep *next; /* in its slot; preps are never freed */
    const dt_op *op;
    const dt_op_info *info;
    uint8_t n_params;
    uint8_t autocast; /* autocast.c: what it does with the op; 0: not looked up yet */
    bool has_tensors;
    uint8_t kind[DT_MAX_PARAMS];
    const dt_meta *def_meta[DT_MAX_PARAMS]; /* Value, Scalar: a number by default */
    uint64_t def_word[DT_MAX_PARAMS];
} dt_prep;

enum { DT_PREP_SLOTS = 1024, DT_NODE_CLASSES = 16, DT_CALLS_MAX = 8192 };
enum { DT_CALL_GRAD = 1, DT_CALL_SPECIAL = 2, DT_CALL_VIEW = 4, DT_CALL_RESPEC = 8, DT_CALL_SUMS = 16 }; /* dt_call.flags */

typedef struct dt_client {
    dt_ring *ring; /* NULL: not started, stopped, or a forked child */
    bool stopped, atfork;
    void *(*leave)(void);
    void (*enter)(void *);
    dt_pool vals, cells, tensors, steps, leaves;
    dt_pool nodes[DT_NODE_CLASSES]; /* gradient nodes, by 64 bytes */
    uint32_t *free_ids, n_free, ids_cap, next_id;
    /* the prepared call */
    uint64_t *key;
    uint32_t key_cap, n_key;
    uint64_t *in_word; /* what goes into the record: value ids, numbers, 0 */
    const dt_meta **in_meta;
    dt_tensor **in_tensor; /* NULL for numbers and absent inputs */
    uint32_t in_cap, n_in;
    bool any_grad, any_source; /* some input requires grad; lies in files */
    /* interned calls */
    dt_htab calls;
    dt_call **clock;
    uint32_t n_clock, hand;
    dt_call **dying; /* evicted, still held by somebody */
    uint32_t n_dying, dying_cap;
    dt_arena scratch;
    dt_prep *prep[DT_PREP_SLOTS];
    dt_status prep_status; /* why dt_prep_get gave NULL */
    uint64_t seq;          /* of gradient nodes */
    uint64_t hook_id;
    uint64_t wires;           /* how often a mesh's wires were set: calls chosen before are not found any more */
    dt_grad_node *dead_nodes; /* being freed, see dt_grad_node_unref */
    struct dt_recipe *again;  /* values made again and kept for the backward pass that runs */
    bool draining;
} dt_client;
extern dt_client dt_c;

typedef struct dt_modes {
    bool grad_off, inference, recipe;
    bool autocast, cast_uncached;     /* on for some kind of device; casts of leaves are not kept */
    uint8_t cast_to[DT_DEVICE_TYPES]; /* 1 + the lower dtype; 0: off */
    uint8_t policy;
    uint32_t site;
    const dt_spec *spec;
} dt_modes;
extern _Thread_local dt_modes dt_m __attribute__((tls_model("initial-exec")));
extern void (*dt_warn_fn)(const char *text);
static inline bool dt_recording(void) { return !dt_m.grad_off && !dt_m.inference; }

dt_status dt_client_start(void) DT_WUR;
dt_status dt_client_room_wait(void) DT_WUR;
/* Started, and the ring far from full: a record then never has to wait inside a call, where no lock may be let go. */
static inline dt_status dt_client_ready(void) {
    const dt_ring *r = dt_c.ring;
    return DT_LIKELY(r && r->tail_local - r->head_seen < r->mask / 4 * 3) ? DT_OK : dt_client_room_wait();
}
dt_status dt_client_room(uint32_t n_in, uint32_t n_key) DT_WUR; /* grows the buffers of the prepared call */

/* ---- values ---- */
dt_status dt_ids_grow(void) DT_WUR;
static inline dt_val *dt_val_new(void) { /* NULL: out of host memory */
    dt_val *v = dt_pool_take(&dt_c.vals);
    if (DT_UNLIKELY(!v)) return NULL;
    if (DT_UNLIKELY(!dt_c.n_free) && dt_ids_grow()) {
        dt_pool_give(&dt_c.vals, v);
        return NULL;
    }
    v->refs = 1;
    v->id = dt_c.free_ids[--dt_c.n_free];
    v->meta = NULL;
    v->recipe = NULL;
    v->source = NULL;
    v->moved = false;
    return v;
}
void dt_val_free(dt_val *v);
static inline void dt_val_unref(dt_val *v) {
    if (v && --v->refs == 0) dt_val_free(v);
}
static inline dt_val *dt_val_ref(dt_val *v) {
    v->refs++;
    return v;
}

/* ---- source.c ---- */
void dt_val_announce(dt_val *v); /* records a value that lies in files; room in the ring is there */
void dt_val_source_drop(dt_val *v);
/* The prepared call of one input with a source: the sources of its results (new references), if it need not be made. */
bool dt_call_on_source(const dt_call *c, dt_source **out);
void dt_call_announce(void); /* its inputs */

/* ---- recipe.c ---- */
typedef struct dt_recipe {
    uint32_t refs, users;          /* users: saved slots among refs */
    dt_call *call;                 /* one tensor to one tensor */
    dt_val *src;                   /* its input, or */
    struct dt_recipe *from;        /* the recipe of its input */
    dt_val *again;                 /* made again and kept: then it is on dt_c's list */
    struct dt_recipe *next, *prev; /* of that list */
} dt_recipe;
static inline dt_recipe *dt_recipe_ref(dt_recipe *r) {
    r->refs++;
    return r;
}
void dt_recipe_unref(dt_recipe *r);
dt_status dt_recipe_attach(dt_call *c, dt_val *in, dt_val *out) DT_WUR; /* out = c(in) is made again, not kept */
void dt_recipe_use(dt_recipe *r);                                       /* a saved use begins */
void dt_recipe_done(dt_recipe *r);                                      /* and ends */
dt_status dt_recipe_make(dt_recipe *r, dt_val **out) DT_WUR;            /* borrowed: kept until the last user is done or dt_recipes_forget */
void dt_recipe_forget(dt_recipe *r);
void dt_recipes_forget(void); /* a backward pass ended */

/* ---- cells and handles ---- */
dt_cell *dt_cell_new(void); /* one reference, no value */
void dt_cell_unref(dt_cell *c);
static inline dt_cell *dt_cell_ref(dt_cell *c) {
    c->refs++;
    return c;
}
static inline dt_cell *dt_cell_root(dt_cell *c) { return c->root ? c->root : c; }
dt_status dt_cell_value(dt_cell *c, dt_val **out) DT_WUR;            /* borrowed; refreshes an alias */
void dt_cell_history_set(dt_cell *c, dt_grad_node *fn, uint32_t nr); /* takes a new reference on fn; requires_grad = fn != NULL */

static inline dt_tensor *dt_tensor_alloc(void) { /* zeroed, one reference */
    dt_tensor *t = dt_pool_take(&dt_c.tensors);
    if (DT_UNLIKELY(!t)) return NULL;
    memset(t, 0, sizeof *t);
    t->refs = 1;
    return t;
}
void dt_credit_given(size_t bytes);            /* credit.c */
static inline dt_tensor *dt_result_new(void) { /* handle + cell + value, not yet announced; NULL: out of host memory */
    dt_tensor *t = dt_tensor_alloc();
    if (DT_UNLIKELY(!t)) return NULL;
    dt_cell *c = dt_pool_take(&dt_c.cells);
    if (DT_LIKELY(c != NULL)) {
        memset(c, 0, sizeof *c);
        c->refs = c->users = 1;
        c->val = dt_val_new();
        c->owner = t;
        t->cell = c;
        if (DT_LIKELY(c->val != NULL)) return t;
        dt_pool_give(&dt_c.cells, c);
    }
    dt_pool_give(&dt_c.tensors, t);
    return NULL;
}
/* A new handle over an existing value, with history (fn NULL: none). NULL: out of host memory. */
dt_tensor *dt_tensor_over(dt_val *v, dt_grad_node *fn, uint32_t nr);
static inline uint32_t dt_storage_version(const dt_tensor *t) { return t->cell->root ? t->cell->root->version : t->cell->version; }
static inline uint32_t dt_storage_stamp(const dt_tensor *t) { return t->cell->root ? t->cell->root->stamp : t->cell->stamp; }
static inline bool dt_tensor_stale(const dt_tensor *t) {
    const dt_cell *c = t->cell;
    if (DT_UNLIKELY(c->root != NULL) && c->seen != c->root->stamp) return true;
    return DT_UNLIKELY(t->is_view) && t->stamp_seen != dt_storage_stamp(t);
}
static inline dt_val *dt_tensor_val(const dt_tensor *t) { return t->is_view ? t->val : t->cell->val; } /* of a fresh handle */
static inline bool dt_tensor_wants_grad(const dt_tensor *t) {                                          /* of a fresh handle */
    return t->is_view ? t->view_requires_grad || t->grad_fn : t->cell->requires_grad;
}
dt_status dt_tensor_refresh(dt_tensor *t) DT_WUR;
static inline dt_status dt_tensor_fresh(dt_tensor *t) { return dt_tensor_stale(t) ? dt_tensor_refresh(t) : DT_OK; }

/* ---- view.c, inplace.c ---- */
void dt_view_step_unref(dt_view_step *s);
static inline dt_view_step *dt_view_step_ref(dt_view_step *s) {
    if (s) s->refs++;
    return s;
}
/* Make t (fresh, zeroed, val set by the caller) a view of base through `call`. */
dt_status dt_view_attach(dt_tensor *t, dt_tensor *base, dt_call *call, int out_index) DT_WUR;
dt_status dt_inplace_check(dt_tensor *t) DT_WUR;                  /* may t be written now? PyTorch's errors */
dt_status dt_tensor_write(dt_tensor *t, dt_tensor *value) DT_WUR; /* t takes value's value and history (same shape; cast, redistributed) */
void dt_args_of_call(const dt_call *c, dt_args *args);            /* attributes only; ints point into the call */

/* ---- args.c ---- */
const dt_prep *dt_prep_slow(const dt_op *op); /* NULL: error */
static inline const dt_prep *dt_prep_get(const dt_op *op) {
    dt_prep *p = dt_c.prep[(uintptr_t)op / 64 % DT_PREP_SLOTS];
    return DT_LIKELY(p && p->op == op) ? p : dt_prep_slow(op);
}
dt_status dt_arg_type_error(const dt_prep *p, int i, const dt_arg *a) DT_WUR;
dt_status dt_args_decode(const dt_prep *p, const dt_args *args, void *attr) DT_WUR; /* into the attribute struct */
typedef struct dt_ints_store {
    int64_t v[DT_MAX_PARAMS][DT_MAX_INTS];
} dt_ints_store;
dt_status dt_args_fill(const dt_prep *p, const dt_args *args, dt_args *full, dt_ints_store *store) DT_WUR; /* defaults filled in, kinds checked */
dt_arg *dt_arg_named(const dt_op *op, dt_args *args, const char *name); /* the argument of that name; NULL if the op has none */

/* ---- build.c, choose.c ---- */
dt_status dt_call_build(const dt_prep *p, const dt_args *args, uint64_t hash, dt_call **out) DT_WUR;
void dt_call_drop(dt_call *c); /* one of the client's references */
/* join.c: operands on two meshes */
const dt_mesh *dt_mesh_join(const dt_mesh *a, const dt_mesh *b);          /* where a call on both runs; NULL: it raises */
dt_placement dt_place_like(const dt_meta *m, const dt_mesh *mesh, int d); /* m's placement along what mesh calls its dimension d */
int dt_mesh_dim_like(const dt_mesh *m, const char *name);                 /* -1: no dimension of that name, or no name */
dt_status dt_choose(dt_call *c, dt_node *n) DT_WUR;                       /* mesh, used, out placements; n after infer */
dt_status dt_policy_check(const dt_call *c) DT_WUR;                       /* redistribute_policy warn and error, for a call with implied redistributions */

/* ---- moved.c ---- */
dt_tensor *dt_moved(dt_scope *s, dt_tensor *t, const dt_spec *spec); /* t there; what was moved before is shared. Owned by s */
void dt_moved_forget_val(const dt_val *v);
void dt_moved_forget_node(const dt_grad_node *n);
bool dt_call_sums(const dt_call *c); /* does it imply a sum over devices of an input? */
dt_status dt_issue_summed(dt_call *c, const dt_args *args, dt_tensor **out) DT_WUR;

/* ---- autocast.c; call.c ---- */
dt_status dt_autocast_invoke(const dt_op *op, const dt_args *args, int cap, dt_tensor **out, int *n_out) DT_WUR;
dt_status dt_invoke_as_is(const dt_op *op, const dt_args *args, int cap, dt_tensor **out, int *n_out) DT_WUR; /* dt_invoke without autocast */

/* ---- autograd.c, backward.c, hooks.c ---- */
enum { DT_EDGE_NONE, DT_EDGE_NODE, DT_EDGE_NUMBER };
typedef struct dt_edge { /* where the gradient of an input goes, or the number that the input was */
    union {
        dt_grad_node *node;
        uint64_t number;
    };
    uint32_t nr;
    uint32_t kind;
} dt_edge;
typedef struct dt_slot { /* a saved input or output */
    dt_val *val;         /* NULL where there is a recipe */
    dt_recipe *recipe;   /* instead of the value and its cell */
    dt_cell *cell;       /* whose version counts; NULL: not checked */
    uint32_t version;
    uint32_t index; /* inputs: i; outputs: DT_SLOT_OUT + i */
} dt_slot;
enum { DT_SLOT_OUT = 1 << 20 };
typedef struct dt_hook_entry {
    uint64_t id;
    uint32_t nr;
    dt_tensor *retain; /* not a hook: this handle (weak) wants the gradient in its .grad */
    dt_hook hook;
} dt_hook_entry;
typedef struct dt_hooks {
    int n, cap;
    dt_hook_entry *v;
} dt_hooks;
typedef enum dt_node_kind { DT_NODE_OP, DT_NODE_LEAF, DT_NODE_CUSTOM } dt_node_kind;
struct dt_grad_node {
    uint32_t refs;
    uint8_t kind, size_class;
    bool released; /* saved tensors were freed by a backward */
    bool urgent;   /* a leaf moved or cast: its gradient does not wait for other nodes, since reducing it frees memory */
    bool moved;    /* moved.c may know of it */
    uint32_t n_in, n_out, n_slots;
    uint64_t seq;
    dt_call *call; /* op nodes */
    dt_grad_node *next_dead;
    dt_hooks *hooks;  /* on outputs, NULL if none */
    dt_tensor *leaf;  /* leaf nodes: the tensor, strong */
    dt_custom custom; /* custom nodes; their input metas follow the edges */
    dt_edge edge[];   /* (n_in,), then (n_slots,) dt_slot */
};
static inline dt_slot *dt_node_slots(dt_grad_node *n) { return (dt_slot *)(n->edge + n->n_in); }
static inline const dt_meta **dt_node_metas(dt_grad_node *n) { return (const dt_meta **)(n->edge + n->n_in); } /* custom nodes */
typedef struct dt_leaf {
    dt_grad_node *acc; /* weak */
    dt_tensor *grad;
    dt_tensor *pending;       /* what belongs to .grad besides: Partial, summed up over devices when .grad is read (hooks.c); NULL: nothing */
    uint32_t pending_site;    /* the backward that it came from */
    const dt_spec *grad_spec; /* where .grad shall lie; NULL: as dt_grad_place says */
    dt_hooks pre, post;
    dt_tensor *low;            /* its cast to a lower dtype, kept while autocast is on */
    uint32_t low_stamp;        /* the storage's stamp then */
    dt_grad_node *retain_node; /* retain_grad on a non-leaf: where its entry is (strong) */
} dt_leaf;
dt_grad_node *dt_grad_node_new(dt_node_kind kind, uint32_t n_in, uint32_t n_out, size_t tail) DT_WUR; /* NULL: out of host memory */
dt_status dt_grad_record(dt_call *c, dt_tensor **out, dt_grad_node **node) DT_WUR;
void dt_grad_node_unref(dt_grad_node *n);
static inline dt_grad_node *dt_grad_node_ref(dt_grad_node *n) {
    n->refs++;
    return n;
}
dt_status dt_edge_of(dt_tensor *t, dt_edge *e) DT_WUR; /* takes a reference on the node */
void dt_grad_node_saved_free(dt_grad_node *n);
dt_leaf *dt_leaf_get(dt_tensor *t); /* made if needed; NULL: out of host memory */
void dt_leaf_free(dt_tensor *t);
dt_status dt_hooks_run(dt_hooks *h, uint32_t nr, dt_tensor **grad) DT_WUR;
void dt_hooks_fini(dt_hooks *h);
void dt_retain_move(dt_tensor *t);                                                  /* t's history changed: its retain_grad goes along */
dt_status dt_grad_accumulate(dt_tensor *t, dt_tensor *g, bool create_graph) DT_WUR; /* into t.grad */
/* Where the gradient of leaf t lies. Where `g` is a Partial sum and the leaf wants all of it on each device, g's: the sum waits (hooks.c). */
void dt_leaf_place(const dt_tensor *t, const dt_meta *g, dt_placement *place);
/* A gradient made to fit a tensor of this meta: summed, cast, brought to its mesh; and to these placements, unless NULL. */
dt_tensor *dt_grad_fit(dt_scope *s, dt_tensor *g, const dt_meta *m, const dt_placement *place, const char *who, int index);
/* An op was recorded in place of t: what it saved of t's old value is no longer versioned, what it saved of its result is t's. */
void dt_grad_node_rebase(dt_grad_node *n, dt_tensor *t);

/* ---- ops that the client itself needs, by name ---- */
dt_tensor *dt_util_cast(dt_scope *s, dt_tensor *t, dt_dtype d);
dt_tensor *dt_util_redistribute(dt_scope *s, dt_tensor *t, const dt_mesh *mesh, const dt_placement *place);
dt_tensor *dt_util_expand(dt_scope *s, dt_tensor *t, int ndim, const int64_t *shape);
dt_tensor *dt_util_clone(dt_scope *s, dt_tensor *t);
dt_tensor *dt_util_sum_to(dt_scope *s, dt_tensor *t, int ndim, const int64_t *shape);
dt_tensor *dt_util_add(dt_scope *s, dt_tensor *a, dt_tensor *b);
dt_tensor *dt_util_fill(dt_scope *s, const dt_meta *like, double v);
/* Placements for a gradient of a tensor with this meta: its own, Partial becomes Replicate. */
void dt_grad_place(const dt_meta *m, dt_placement *place);

#endif
