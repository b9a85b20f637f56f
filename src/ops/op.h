/* The op table: everything about an operator except device code, in one literal.
 *
 * An op is declared once, in its family's file (`const dt_op dt_op_softmax = {…}`), and listed by one line in ops.def. Its signature
 * string, PyTorch-style, drives Python argument parsing, stubs, docs, the generated C API (dtorch_ops.h) and encoding:
 *
 *   "softmax(Tensor input, int dim, *, dtype? dtype=None) -> Tensor"
 *
 * Names before '(' may carry an overload: "max.dim(…)"; overloads of one name are tried in ops.def's order. Parameter types:
 *   tensors, become inputs of the call in order:
 *     Tensor   Tensor?   Tensor! (written: output k replaces the k-th such handle)   Tensor[]   Tensor?[]  (one list per op)
 *     Value    (Tensor or number)   Value?      Scalar (a number that is a run-time input, never part of a cache key)   Scalar?
 *   attributes, part of the key, stored in the attribute struct under the parameter's name:
 *     int -> int64_t   int? -> int64_t (DT_NO_INT)   float -> double   float? -> double (NaN)   bool -> bool   str -> const char * (interned)
 *     dtype? -> int32_t (DT_DTYPE_NONE)   int[] -> dt_ints   int[]? -> dt_ints (n = -1)   int[2] -> dt_ints, one int is repeated
 *     "int[]..." accepts f(1, 2) as well as f((1, 2)), as view and permute do
 *   others: Generator? (random ops, absent from the struct). Factories take device, device_mesh, placements, requires_grad for free.
 * Defaults: numbers, True/False, None, 'text', []. '*' starts keyword-only parameters. Returns: "Tensor", "Tensor[]",
 * "(Tensor values, Tensor indices)" (a named tuple in Python).
 *
 * infer  fills node->out from input metas (global shapes), wraps dims in the attribute struct, may ask for implied casts; clear errors.
 * place  states the legal placements along ONE mesh dimension (see dt_rules); mandatory. All-Replicate is always legal.
 * grad   builds gradients through the public C calls (ops/grad.h); NULL = not differentiable (outputs never require grad).
 * alias  for views: the output's strides and offset within the input's buffer; false = not expressible, run the kernel.
 * unview for views: the new base, given the base and the new value of output out_index (writes through views); fails the scope if refused.
 * compose  instead of kernels: the op is a composition of other ops, built at the call through the public C calls.
 *
 * Threads: the table is immutable after dt_ops_init. infer and place run on the client's thread. */
#ifndef DT_OPS_OP_H
#define DT_OPS_OP_H

#include "base/arena.h"
#include "ops/kernel.h"

#define DT_NO_INT INT64_MIN
enum { DT_MAX_INTS = 24, DT_MAX_PARAMS = 20 };
typedef struct dt_ints {
    int32_t n; /* -1: None */
    int64_t v[DT_MAX_INTS];
} dt_ints;

typedef enum dt_param_kind {
    DT_PK_TENSOR,
    DT_PK_TENSORS,
    DT_PK_VALUE,
    DT_PK_SCALAR, /* inputs */
    DT_PK_INT,
    DT_PK_FLOAT,
    DT_PK_BOOL,
    DT_PK_STR,
    DT_PK_DTYPE,
    DT_PK_INTS, /* attributes */
    DT_PK_GENERATOR
} dt_param_kind;

typedef struct dt_param {
    char name[32];
    uint8_t kind;  /* dt_param_kind */
    bool optional; /* '?': None is legal (for Tensor?[]: elements may be None) */
    bool written;  /* '!' */
    bool kwonly;
    bool variadic; /* int[]... */
    bool has_default;
    uint8_t repeat;   /* int[k]: one int stands for k */
    uint16_t offset;  /* attributes: in the attribute struct */
    double num;       /* default of numbers and bools */
    const char *text; /* default of str; the default's source text otherwise (for stubs) */
    dt_ints ints;     /* default of int[] */
} dt_param;

typedef struct dt_attr_field {
    const char *name;
    uint16_t offset;
} dt_attr_field;
typedef struct dt_attrs {
    uint16_t size;
    dt_attr_field field[14];
} dt_attrs;
/* clang-format off */
#define DT_FIELD(type, name) {#name, offsetof(type, name)}
#define DT_ATTRS(type, ...) {sizeof(type), {__VA_ARGS__}}
/* clang-format on */

/* ---- a call being inferred ------------------------------------------------------------------------------------------------ */
struct dt_call;
typedef struct dt_node {
    const struct dt_op *op;
    void *attr;
    int n_in, n_out;
    const dt_meta *const *in; /* (n_in,) NULL for an absent optional; list elements inline; wrapped numbers have meta->wrapped */
    dt_type *out;             /* (n_out,) to be filled; n_out is preset from the signature; Tensor[] ops call dt_node_outs */
    uint8_t *cast;            /* (n_in,) dt_dtype the kernel wants the input in, or DT_DTYPE_NONE = as it is */
    const dt_spec *spec;      /* for factories: where the result shall lie; else NULL */
    dt_arena *arena;
} dt_node;
dt_status dt_node_outs(dt_node *n, int n_out) DT_WUR; /* (re)allocates out */
static inline dt_type *dt_node_out(dt_node *n, int i) { return &n->out[i]; }

/* Helpers for infer (ops/infer.c) */
dt_status dt_broadcast(const char *op, dt_type *acc, const dt_meta *m) DT_WUR; /* acc = broadcast(acc, m's shape) */
/* PyTorch's result type over inputs [first, first+n): tensors before 0-dim tensors before numbers within a category. NULLs are skipped. */
dt_dtype dt_result_type(const dt_node *n, int first, int count);
/* Pointwise: out[0] = broadcast of all inputs in the promoted dtype; casts every input to it. int_to_float: integers become float32. */
dt_status dt_infer_pointwise(dt_node *n) DT_WUR;
dt_status dt_infer_pointwise_float(dt_node *n) DT_WUR;
dt_status dt_infer_compare(dt_node *n) DT_WUR; /* the same with out dtype bool */
dt_status dt_infer_same(dt_node *n) DT_WUR;    /* out[0] = in[0] */
/* Reduction over dims (n = -1 or 0: all): out[0].shape; wraps and de-duplicates dims in place (error on repeats). */
dt_status dt_infer_reduce(dt_node *n, dt_ints *dims, bool keepdim) DT_WUR;
dt_dtype dt_default_dtype(void); /* float32 unless changed */
void dt_default_dtype_set(dt_dtype t);

/* ---- placement rules ------------------------------------------------------------------------------------------------------ */
/* Rules are stated for one mesh dimension at a time; the client asks once per mesh dimension and picks the cheapest. A rule gives one
 * placement per input and per output; start from all Replicate and set what differs. Absent and wrapped inputs stay Replicate. */
typedef struct dt_rules {
    const dt_mesh *mesh;
    int mesh_dim;
    int n_in, n_out, count, cap;
    dt_placement *rows; /* (count, n_in + n_out) */
    uint64_t plain;     /* bit k: row k holds for plain shards only */
    dt_arena *arena;
} dt_rules;
dt_status dt_rule_add(dt_rules *r, dt_placement **in, dt_placement **out) DT_WUR;
/* The row just added: the kernel looks at where its shard starts, so a strided shard will not do, whatever DT_F_STRIDED says of other rows. */
static inline void dt_rule_plain(dt_rules *r) { r->plain |= 1ull << (r->count - 1 < 63 ? r->count - 1 : 63); }
/* True if a dimension of n is cut evenly however the mesh shards it (for reshapes of sharded dimensions). */
bool dt_rules_even(const dt_rules *r, int64_t n);
/* The same, knowing how input m lies whose dimensions [d0, d1) the rule would shard: mesh dimensions that leave them alone do not count. (An
 * input that lies so already looks at those that shard them too; one that would have to move at all that might.) */
bool dt_rules_even_in(const dt_rules *r, const dt_meta *m, int d0, int d1, int64_t n);

/* Is m Shard(dim), plain or strided, along the rules' mesh dimension? */
bool dt_rules_sharded(const dt_rules *r, const dt_meta *m, int dim);
/* The staged rules of an op: a dimension in plain shards -> all results whole, or a scan's sharded alike. */
dt_status dt_place_staged(const dt_node *n, dt_rules *r) DT_WUR;
/* Windows (tensor/layout.h), for ops that move a dimension: Shard(dim) of an operand through which the device sees what its part of the result
 * needs. The kernel sees where its operand's box starts in in_place[i].lo, as ever. False: do not state the rule. */
bool dt_rules_window(const dt_window *w, int dim, dt_placement *p);

typedef dt_status (*dt_place_fn)(const dt_node *n, dt_rules *r);
dt_status dt_place_replicate(const dt_node *n, dt_rules *r) DT_WUR; /* nothing but Replicate */
dt_status dt_place_pointwise(const dt_node *n, dt_rules *r) DT_WUR; /* any aligned dimension; inputs may broadcast against out[0] */
dt_status dt_place_linear(const dt_node *n, dt_rules *r) DT_WUR;    /* pointwise + Partial(sum|avg) in all tensor inputs (no numbers) -> Partial */
dt_status dt_place_batch(const dt_node *n, dt_rules *r) DT_WUR;     /* dimension 0 of every input and output that has dims, together */
/* Same-rank ops along `dim` (softmax, cumsum, sort, flip …): any dimension but those in the mask may be sharded in all inputs and outputs. */
dt_status dt_place_except(const dt_node *n, dt_rules *r, uint32_t dims_mask) DT_WUR;
/* Reduction of in[0] over dims: kept dims shard through; reduced dims give `partial` (or are illegal if partial is Replicate). */
dt_status dt_place_reduce(const dt_node *n, dt_rules *r, const dt_ints *dims, bool keepdim, dt_placement partial) DT_WUR;

/* ---- the literal ----------------------------------------------------------------------------------------------------------- */
/* .where: which Python names an op gets */
enum {
    DT_FN = 1,     /* dtorch.name */
    DT_METHOD = 2, /* Tensor.name; the first tensor parameter is self */
    DT_NN = 4,     /* dtorch.nn.functional.name */
    DT_HIDDEN = 8  /* dtorch._C._ops.name only */
};
/* .flags */
enum {
    DT_F_FACTORY = 1,  /* no input decides the result's mesh: takes device/device_mesh/placements */
    DT_F_RANDOM = 2,   /* two hidden Scalar inputs (seed, offset) are appended; see ops/random.h */
    DT_F_LOWERED = 4,  /* no kernel: the controller lowers it itself (redistribute, from_local, to_local …) */
    DT_F_ANY_MESH = 8, /* inputs may lie on different meshes (redistribute, from_local) */
    DT_F_NO_CSE = 16,
    DT_F_SPEC = 32,     /* not a factory, but takes a spec (redistribute, from_local) */
    DT_F_STRIDED = 64,  /* kernels do not look at where a shard starts: rules hold for strided shards too (always so for pointwise ops) */
    DT_F_LOOKUP = 256,  /* a Partial result is as large as the indices say: its sum always counts in a rule's price */
    DT_F_BILINEAR = 128 /* the gradient of in[0] reads in[1] but not in[0], and the reverse: only what will be read is saved */
};
#define DT_SAVE_IN(i) (1u << (i))
#define DT_SAVE_OUT(i) (1u << (16 + (i)))
#define DT_SAVE_ALL_IN 0xffffu

typedef struct dt_alias { /* local views; offset and strides in elements of the input's buffer */
    const void *attr;
    const dt_view *in; /* the viewed input (in[0]) */
    const dt_geom *in_place, *out_place;
    int out_index;
    dt_view *out;   /* shape preset; set stride */
    int64_t offset; /* from in->data */
} dt_alias;

struct dt_grad;
struct dt_scope;
struct dt_args;
struct dt_tensor;
typedef struct dt_kernel {
    dt_device_type device;
    dt_dtypes dtypes; /* of in[0] (or of out[0] when there is no input), after casts */
    dt_kernel_fn fn;
    uint32_t flags;                    /* DT_K_… */
    bool (*can_run)(const dt_kctx *c); /* data pointers are not set yet; NULL: always */
} dt_kernel;
enum { DT_K_CONTIGUOUS = 1 }; /* all tensor inputs must be contiguous */

/* Ops along a dimension that may be sharded: a step on each shard, an exchange of small summaries, a last step. The rule that `place` states is
 * Shard(that dimension) -> Replicate, or -> Shard for a scan; the plan does the rest (passes/staged.c). Shards are plain ones, never strided.
 *
 *   part  out: the summaries of this shard, `width` entries along the dimension. in: the call's input; for a scan: what the op's own kernel made
 *         of the shard.
 *   join  out: the call's results. in: all shards' summaries in order (their in_place.lo along the dimension: this shard's number); for a scan,
 *         before them, what the op's own kernel made of the shard. */
typedef struct dt_staged {
    uint32_t (*dims)(const void *attr, int ndim); /* bit d: dimension d may be sharded so */
    int (*along)(const void *attr);               /* the summaries' dimension; they are 1-dim where it is < 0: then any shards count */
    int64_t (*width)(const void *attr);           /* NULL: 1 */
    bool scan, indices;                           /* indices: a second summary, int64 */
    dt_kernel_fn part, join;
    size_t (*scratch)(const dt_kctx *c); /* of either; NULL: none */
} dt_staged;

typedef struct dt_op {
    const char *sig;
    const char *doc;  /* one or more sentences: meaning, shapes, errors; shown in Python and in the reference */
    const char *also; /* further names, comma-separated; dotted ones go to sub-modules: "multiply,special.expit" */
    uint32_t where, flags;
    dt_attrs attrs;
    dt_status (*infer)(dt_node *n);
    dt_place_fn place;
    void (*grad)(struct dt_grad *g);
    uint32_t saves; /* which inputs and outputs grad reads: DT_SAVE_IN(0) | DT_SAVE_OUT(0) */
    bool inplace;   /* an in-place variant `name_` exists and kernels bear out[0] aliasing in[0] */
    bool (*alias)(dt_alias *a);
    void (*unview)(struct dt_scope *s, const struct dt_call *c, int out_index, struct dt_tensor *base, struct dt_tensor *value, struct dt_tensor **new_base);
    void (*compose)(struct dt_scope *s, const struct dt_args *a, struct dt_tensor **out, int *n_out);
    size_t (*scratch)(const dt_kctx *c); /* bytes; data pointers are not set */
    const dt_staged *staged;             /* NULL: no dimension is worked on in stages */
    double (*flops)(const dt_node *n);   /* NULL: one per output element */
    int pointwise;                       /* dt_pw code for fusable elementwise ops (ops/pointwise.def), 0 = none */
    dt_kernel kernels[4];                /* fastest first, reference last */
} dt_op;

/* For compose and unview: record a failure (dt_fail's) in the scope. Declared in client/scope.h too. */
void dt_scope_fail(struct dt_scope *s, dt_status status);

typedef struct dt_op_info {                   /* parsed once at start */
    char name[48];                            /* "max.dim" */
    char base[48];                            /* "max" */
    int n_params, n_inputs_fixed, list_param; /* list_param: index of the Tensor[] parameter or -1 */
    int n_written;
    int n_returns; /* -1: Tensor[] */
    char ret_name[4][24];
    uint16_t id;
    dt_param param[DT_MAX_PARAMS];
} dt_op_info;

/* Parse every signature, check every literal (place present, attribute fields match, grad/saves sane). Idempotent. */
dt_status dt_ops_init(void) DT_WUR;
int dt_ops_count(void);
const dt_op *dt_ops_at(int id);
const dt_op_info *dt_op_get_info(const dt_op *op);
const char *dt_op_name(const dt_op *op);   /* "softmax" */
const dt_op *dt_op_find(const char *name); /* "max.dim"; NULL if none */
uint64_t dt_ops_hash(void);                /* over all signatures: for handshakes and caches */
const char *dt_intern(const char *text);   /* interned attribute strings: compare by pointer or strcmp */

#define DT_OP(name) extern const dt_op dt_op_##name;
#include "ops/ops.def"
#undef DT_OP

/* ---- arguments of a call ----------------------------------------------------------------------------------------------------- */
typedef enum dt_arg_kind {
    DT_ARG_NONE,
    DT_ARG_TENSOR,
    DT_ARG_TENSORS,
    DT_ARG_FLOAT,
    DT_ARG_INT,
    DT_ARG_BOOL,
    DT_ARG_INTS,
    DT_ARG_STR,
    DT_ARG_DTYPE
} dt_arg_kind;
typedef struct dt_arg { /* one per parameter, in the signature's order; NONE takes the default or means None */
    uint8_t kind;
    bool given;
    int32_t n; /* of ints, tensors */
    union {
        struct dt_tensor *t;
        struct dt_tensor *const *list;
        double f;
        int64_t i; /* INT, BOOL, DTYPE */
        const int64_t *ints;
        const char *s;
    };
} dt_arg;
typedef struct dt_args {
    dt_arg a[DT_MAX_PARAMS];
    const dt_spec *spec;            /* factories, redistribute, from_local: where the result lies; NULL = default */
    struct dt_generator *generator; /* random ops; NULL = the default one */
} dt_args;

/* ---- an inferred call, interned ----------------------------------------------------------------------------------------------- */
/* One per distinct (op, attributes, input metas, spec): the result of infer and place. The controller and autograd share it.
 *
 * Who may free it: the client keeps `refs` (its cache, gradient nodes, view steps) and counts `issued` records; everybody else counts in `done`:
 * a record's holder calls dt_call_unref when it is done with the record, and whoever keeps the pointer longer (a plan cache) takes dt_call_ref
 * first. The client frees the call when refs == 0 and issued == done. Two counters on two cache lines instead of one atomic count, because a
 * shared count would bounce between the client's core and the controller's at every call. */
typedef struct dt_call {
    dt_hlink link; /* the client's cache */
    const dt_op *op;
    const void *attr;
    uint16_t n_in, n_out;
    uint8_t implied; /* some input is redistributed by implication (with communication) */
    uint8_t flags;   /* the client's */
    uint16_t op_id;  /* the op's number in the table */
    const dt_spec *spec;
    const dt_meta **in;   /* as given */
    const dt_meta **used; /* after implied casts and redistribution; wrapped numbers: meta->wrapped with the cast dtype; NULL if absent */
    const dt_meta **out;
    const dt_mesh *mesh; /* where it runs */
    uint64_t content;    /* hash of op, attributes, input metas and spec by what they say, not where they lie: equal in every process */
    uint32_t n_key;
    uint64_t *key;
    dt_arena arena;
    /* the client's line */
    _Alignas(64) uint32_t refs;
    bool tick; /* used since the clock hand passed */
    uint64_t issued;
    /* the controller's line */
    _Alignas(64) _Atomic uint64_t done;
    float cost;                          /* the controller's estimate in seconds */
    uint32_t cost_of;                    /* by which description of hardware (plan/cost.h); 0: not made yet */
    void *lowered;                       /* the controller's cache for this call; owned by the controller thread */
    void (*lowered_free)(void *lowered); /* called by the client just before the call is freed; NULL: nothing to free */
} dt_call;
void dt_call_ref(dt_call *c); /* a holder other than the client; any thread that holds a reference already */
void dt_call_unref_many(dt_call *c, uint32_t n);
void dt_call_unref(dt_call *c); /* gives back a record's reference, or one of dt_call_ref; the client frees the call later */

#endif
