/* The client: symbols, calls, views and in-place semantics, autograd, random state. No data, no kernel, no waiting.
 *
 *   dt_tensor (handle) ──> dt_cell (storage identity, shared by a base and its views) ──> dt_val (one SSA value: id + meta)
 *        └─ chain of view ops (NULL: the handle is the whole cell)
 *
 * - A dt_val is immutable: an id the controller knows and its interned meta. The last unref sends DROP.
 * - A dt_cell holds the current value of a storage and its version, which every in-place write bumps. Autograd history of the base lives in
 *   the cell (grad_fn, output number), because a write through a view changes the base's history too, as in PyTorch.
 * - A handle that is a view has a chain: the view calls from the cell's whole value to it. It caches its own value for the version it was
 *   computed at; reading it after the base changed re-applies the chain (and so makes a fresh grad_fn), writing it applies `unview`
 *   from the end of
 *   the chain to its root and re-points the cell. detach() gives a handle with an alias cell: the same storage, a history of its own.
 * - A saved tensor (autograd) holds a dt_val and the cell's version at saving; if the version differs at backward, that is PyTorch's error.
 *
 * Threads: one caller at a time (the GIL). grad mode is per thread. */
#ifndef DT_CLIENT_CLIENT_H
#define DT_CLIENT_CLIENT_H

#include "controller/controller.h"
#include "dtorch.h"
#include "ops/hostcall.h"
#include "ops/op.h"
#include "plan/source.h"

typedef struct dt_val {
    uint32_t refs, id;
    const dt_meta *meta;      /* NULL until the record that makes the value is written */
    struct dt_recipe *recipe; /* how to make it again; NULL: it is kept (recipe.c) */
    struct dt_source *source; /* it lies in files and was not recorded yet; NULL: it was (source.c) */
    bool moved;               /* moved.c may know of it */
} dt_val;

typedef struct dt_grad_node dt_grad_node;
typedef struct dt_view_step dt_view_step;

/* A cell without `root` owns its storage's version. A cell with `root` is an alias: another start of history over root's storage
 * (detach(), .data); `chain` leads from root's whole value to the alias's. */
typedef struct dt_cell {
    uint32_t refs, version;
    uint32_t users;        /* handles among refs; without any, the history is let go */
    dt_val *val;           /* the whole, current value (aliases: as of `seen`) */
    dt_grad_node *grad_fn; /* history of the whole value; NULL for leaves */
    uint32_t out_nr;
    bool requires_grad; /* a leaf that wants a gradient, or grad_fn != NULL */
    bool inference;
    struct dt_cell *root;
    dt_view_step *chain;
    uint32_t stamp;          /* counts every write; version only those that gradients must know of (not through .data) */
    uint32_t seen;           /* root's stamp that val was computed at */
    bool silent;             /* made by dt_tensor_data: writes through it leave version alone */
    struct dt_tensor *owner; /* the handle that is the whole cell (weak), NULL once it is gone */
} dt_cell;

struct dt_view_step { /* one view op applied to the step before (or the cell) */
    uint32_t refs;
    dt_view_step *prev;
    dt_call *call;
    uint16_t out_index;
    bool no_grad; /* made while grad mode was off */
};

struct dt_tensor {
    uint32_t refs;
    bool is_view;
    bool view_requires_grad; /* views: a leaf that wants a gradient */
    uint32_t stamp_seen;     /* views: the storage's stamp that val, grad_fn were computed at */
    uint32_t out_nr;
    dt_cell *cell;
    dt_view_step *chain;   /* NULL unless is_view */
    dt_val *val;           /* views: cached value; else NULL (read cell->val) */
    dt_grad_node *grad_fn; /* views: cached history */
    struct dt_leaf *leaf;  /* leaves' accumulation node, gradient, hooks, retain_grad; NULL until needed */
    void *user;            /* the wrapper object of the language binding (weak) */
};

/* ---- reading a handle ---- */
static inline const dt_meta *dt_tensor_meta_fast(const dt_tensor *t) { return t->is_view ? t->val->meta : t->cell->val->meta; }
const dt_meta *dt_tensor_meta(const dt_tensor *t);            /* shape never changes with versions; placements may */
dt_status dt_tensor_value(dt_tensor *t, dt_val **out) DT_WUR; /* borrowed current value; refreshes a stale view */
bool dt_tensor_requires_grad(const dt_tensor *t);
bool dt_tensor_is_leaf(const dt_tensor *t);
dt_grad_node *dt_tensor_grad_fn(dt_tensor *t); /* borrowed; refreshes a stale view */
uint32_t dt_tensor_version(const dt_tensor *t);
dt_tensor *dt_tensor_ref(dt_tensor *t);
void dt_tensor_unref(dt_tensor *t);

/* ---- calls ---- */
/* Find or infer the call for op(args). On success *call is borrowed from the cache until the next prepare and the inputs are resolved in
 * the client's buffers; dt_issue must follow at once. Errors as infer and place give them; nothing was recorded. */
dt_status dt_prepare(const dt_op *op, const dt_args *args, dt_call **call) DT_WUR;
/* Record the prepared call; out: (call->n_out,) new references (for written parameters the same handles, updated in place). */
/* t there; shares what an earlier call moved there (moved.c). NULL: error. */
dt_tensor *dt_tensor_moved(dt_tensor *t, const dt_spec *spec) DT_WUR;
dt_status dt_issue(dt_call *call, const dt_args *args, dt_tensor **out) DT_WUR;
/* Both; also runs `compose` ops. cap: room in out; *n_out: how many. E_INTERNAL if cap is too small (dt_op_get_info tells, Tensor[] ops:
 * prepare first). */
dt_status dt_invoke(const dt_op *op, const dt_args *args, int cap, dt_tensor **out, int *n_out) DT_WUR;
/* op's in-place variant: the result is written into args->a[0].t (cast back to its dtype, redistributed to its placements; a Partial
 * target takes the result's placements); broadcasting self is an error, as is a leaf that requires grad while grad mode is on. */
dt_status dt_invoke_inplace(const dt_op *op, const dt_args *args) DT_WUR;
/* out= variants: write the result into an existing tensor. */
dt_status dt_tensor_assign(dt_tensor *dst, dt_tensor *src) DT_WUR; /* copy_: broadcasts, casts, redistributes; recorded for grad */

/* ---- making and reading ---- */
dt_status dt_tensor_from_host(dt_hostbuf *buf, const dt_type *type, const dt_spec *spec, dt_tensor **out) DT_WUR; /* takes buf's reference */
/* Read the whole tensor into a fresh contiguous host buffer (f->buf). Partial is reduced, shards are gathered. Then wait with dt_engine_wait; who
 * goes on with something else calls dt_engine_flush, or the request is seen at the end of the controller's nap only. */
dt_status dt_tensor_fetch(dt_tensor *t, dt_future **out) DT_WUR;
/* Indices [lo, hi) of dimension 0 only; the future has no metadata. */
dt_status dt_tensor_fetch_rows(dt_tensor *t, int64_t lo, int64_t hi, dt_future **out) DT_WUR;
/* A tensor in files, read when it is wanted, by the devices that hold it then; spec NULL: on cpu:0. Takes s's reference. */
dt_status dt_tensor_from_source(dt_source *s, const dt_spec *spec, dt_tensor **out) DT_WUR;
/* Read it now, where it lies. *out completes when all devices have, or one of them could not; NULL: it is no tensor in files (any more). */
dt_status dt_tensor_begin_reading(dt_tensor *t, dt_future **out) DT_WUR;
/* Other nodes open the file, too; when that is done file->here tells which could. */
dt_status dt_file_announce(dt_file *file, dt_future **out) DT_WUR;
dt_status dt_sync_async(dt_future **out) DT_WUR;
/* After dt_tensor_from_host: NULL, or what to wait for (and unref) because much host memory is under way (credit.c). */
dt_future *dt_credit_take(void);
dt_status dt_tensor_detach_inplace(dt_tensor *t) DT_WUR;             /* t forgets its history; views refuse */
dt_status dt_tensor_detach(dt_tensor *t, dt_tensor **out) DT_WUR;    /* shares the storage, no history */
dt_status dt_tensor_snapshot(dt_tensor *t, dt_tensor **out) DT_WUR;  /* the value of now, for ever: later writes do not reach it; no copy */
dt_status dt_tensor_data(dt_tensor *t, dt_tensor **out) DT_WUR;      /* the same, and saved tensors do not notice writes through it (.data) */
dt_status dt_tensor_set_data(dt_tensor *t, dt_tensor *src) DT_WUR;   /* t.data = src: same shape/dtype not required */
dt_status dt_tensor_requires_grad_set(dt_tensor *t, bool on) DT_WUR; /* leaves of float dtype only */

/* ---- modes (per thread) ---- */
typedef enum dt_policy { DT_POLICY_AUTO, DT_POLICY_WARN, DT_POLICY_ERROR } dt_policy;
bool dt_mode_grad(void);
bool dt_mode_grad_set(bool on); /* returns the previous */
bool dt_mode_inference(void);
bool dt_mode_inference_set(bool on);
/* While on, autograd saves the results of calls of one tensor as recipes: they are made again when the backward pass needs them. */
bool dt_mode_recipe_set(bool on);
dt_policy dt_mode_policy(void);
void dt_link_set(const dt_mesh *m, int d, dt_link w); /* what mesh dimension d is made of; calls are chosen anew */
void dt_mode_policy_set(dt_policy p);                 /* redistribute_policy: implied redistributions are silent, warned about, or errors */
void dt_mode_warn_fn(void (*fn)(const char *text));   /* where "warn" goes; default stderr */
void dt_mode_site_set(uint32_t site);                 /* the call site that the next records carry */
/* Autocast, by kind of device: the lower dtype, or DT_DTYPE_NONE = off. Casts of leaves are kept until dt_autocast_forget. */
int dt_mode_autocast(dt_device_type type);
void dt_mode_autocast_set(dt_device_type type, int dtype);
bool dt_mode_autocast_hold(void); /* off until dt_mode_autocast_resume(what this returned) */
void dt_mode_autocast_resume(bool was);
bool dt_mode_autocast_cache(void);
void dt_mode_autocast_cache_set(bool on);
void dt_autocast_forget(void);
const dt_spec *dt_mode_spec(void); /* default mesh and placements for factories (with mesh:) ; NULL = cpu:0 */
void dt_mode_spec_set(const dt_spec *s);

/* ---- autograd ---- */
typedef struct dt_hook { /* called with the gradient; returns DT_OK and may replace *grad (new reference) */
    dt_status (*fn)(void *ctx, dt_tensor **grad);
    void (*free_fn)(void *ctx);
    void *ctx;
} dt_hook;
dt_status dt_tensor_grad_settle(dt_tensor *t) DT_WUR; /* sums up what waits (hooks.c): before dt_tensor_grad */
dt_tensor *dt_tensor_grad(const dt_tensor *t);        /* borrowed or NULL */
/* Where backward leaves a leaf's gradient: (mesh->ndim,); NULL sets back to the leaf's own placements, Replicate for Partial. */
void dt_tensor_grad_placements(const dt_tensor *t, dt_placement *place);
dt_status dt_tensor_grad_placements_set(dt_tensor *t, const dt_spec *spec) DT_WUR;
dt_status dt_tensor_grad_set(dt_tensor *t, dt_tensor *g) DT_WUR; /* shape, dtype must agree; NULL clears */
dt_status dt_tensor_hook_add(dt_tensor *t, dt_hook h, uint64_t *handle) DT_WUR;
dt_status dt_tensor_post_hook_add(dt_tensor *t, dt_hook h, uint64_t *handle) DT_WUR; /* register_post_accumulate_grad_hook */
void dt_tensor_hook_remove(dt_tensor *t, uint64_t handle);
/* For a collector of cycles: f of each hook that goes when the one reference on t goes; stops at and returns what is not 0. Drop: all of those go now. */
int dt_tensor_hooks_each(const dt_tensor *t, int (*f)(const dt_hook *h, void *arg), void *arg);
void dt_tensor_hooks_drop(dt_tensor *t);
dt_status dt_tensor_retain_grad(dt_tensor *t) DT_WUR;
/* roots (n), grads (n, NULL = ones for one-element roots); inputs NULL: accumulate into leaves, else return gradients of inputs in out
 * (new references, NULL where unused if allow_unused). Hooks run. create_graph records the backward pass itself. */
typedef struct dt_backward_args {
    int n_roots, n_inputs;
    dt_tensor *const *roots, *const *grads, *const *inputs;
    bool retain_graph, create_graph, allow_unused, accumulate; /* accumulate: backward(inputs=…) */
    bool inner; /* a part of another backward run: what leaves get is given as it is, not yet placed as theirs, and without their hooks */
} dt_backward_args;
dt_status dt_backward_run(const dt_backward_args *a, dt_tensor **out) DT_WUR;
/* A node made by the language binding: autograd.Function. backward gets gy (n_out, NULL undefined) and fills gx (n_in, new references or
 * NULL). */
typedef struct dt_custom {
    dt_status (*backward)(void *ctx, dt_tensor **gy, dt_tensor **gx);
    void (*free_fn)(void *ctx);
    void *ctx;
    const char *name;
} dt_custom;
/* outs: results computed without recording; they become outputs of a node whose inputs are ins (NULL entries allowed). */
dt_status dt_custom_attach(const dt_custom *c, int n_in, dt_tensor *const *ins, int n_out, dt_tensor *const *outs) DT_WUR;
/* Saved tensors for custom functions: value + version check. */
typedef struct dt_saved dt_saved;
dt_status dt_saved_new(dt_tensor *t, dt_saved **out) DT_WUR;
dt_status dt_saved_get(dt_saved *s, dt_tensor **out) DT_WUR; /* new reference; E_GRAD if modified in place since */
/* The same for a result of the function itself, saved before it had a history: with output nr of n as its history. */
dt_status dt_saved_get_as(dt_saved *s, dt_grad_node *n, uint32_t nr, dt_tensor **out) DT_WUR;
void dt_saved_free(dt_saved *s);
/* Graph walking for grad_fn.next_functions and names. */
const char *dt_grad_node_name(const dt_grad_node *n); /* "MulBackward" */
int dt_grad_node_inputs(const dt_grad_node *n);
dt_grad_node *dt_grad_node_input(const dt_grad_node *n, int i, uint32_t *out_nr);
dt_tensor *dt_grad_node_leaf(const dt_grad_node *n); /* whose gradient the node accumulates, borrowed; NULL for others */
dt_grad_node *dt_grad_node_hold(dt_grad_node *n);    /* one more reference; n */
void dt_grad_node_release(dt_grad_node *n);

/* ---- random state: counter based, ops/random.h ---- */
typedef struct dt_gen_state {
    uint64_t seed, offset;
} dt_gen_state;
struct dt_generator {
    uint32_t refs;
    dt_gen_state state;
};
dt_generator *dt_generator_default(void);
dt_generator *dt_generator_new(void);
void dt_generator_unref(dt_generator *g);
/* Reserve `n` 128-bit counters: returns seed and the first offset. */
void dt_generator_take(dt_generator *g, uint64_t n, uint64_t *seed, uint64_t *offset);

/* ---- callbacks on the host, in program order on a worker: fn(ctx, in, out) under no lock; a failure is a late error ---- */
/* dt_host_fn(ctx, n_in, in, n_out, out): ops/hostcall.h. Views are contiguous, on the host; the function fills the outputs. ctx is freed
 * after the function has run, on the worker's thread, or later on the client's if an input failed; on an error of dt_host_call it stays
 * the caller's. */
dt_status dt_host_call(dt_host_fn fn, void (*free_fn)(void *), void *ctx, int n_in, dt_tensor *const *ins, int n_out, const dt_type *types,
                       dt_tensor **outs) DT_WUR;

/* These meshes are the stages of one pipeline, in this order: a call with operands on two of them runs on the later one. A mesh belongs to the
 * pipeline that named it last. */
dt_status dt_mesh_stages_set(int n, const dt_mesh *const *meshes) DT_WUR;

size_t dt_calls_count(void); /* interned calls: bounded */
/* A binding that holds a lock over calls lets go of it (leave) while a call waits for room in the ring, and takes it again (enter gets
 * what leave gave). */
void dt_client_blocking_hooks(void *(*leave)(void), void (*enter)(void *));
void dt_client_stop(void); /* before exit: stops the engine; calls made later fail with E_STATE, handles may still be released */

#endif
