/* Pooling over windows. Primitives (hidden), over (N, C, size…) with one to three spatial dimensions:
 *
 *   max_pool(x) -> y, positions        avg_pool(x) -> y        each with kernel windows, or adaptive ones (kernel = [])
 *   pool_scatter(y, positions) -> x    pool_gather(x, positions) -> y    each other's gradient; max_pool's gradient is pool_scatter
 *   avg_pool_backward(y) -> x          avg_pool's gradient, and the other way round
 *
 * PyTorch's functions are compositions of them. Images and channels shard through; averages are linear, so Partial goes through them. */
#include "ops/pool.h"

#include <math.h>
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"

DT_CPU_KERNEL(max_pool);
DT_CPU_KERNEL(avg_pool);
DT_CPU_KERNEL(avg_pool_backward);
DT_CPU_KERNEL(pool_scatter);
DT_CPU_KERNEL(pool_gather);

#define LL(x) ((long long)(x))

/* ---- inference ---- */
static dt_status check_input(const dt_node *n) {
    const dt_meta *x = n->in[0];
    const char *op = dt_op_name(n->op);
    if (x->ndim < 3 || x->ndim > 5) return dt_fail(DT_E_SHAPE, "%s: expected (N, C, size…) with 1 to 3 sizes, got %d dimensions", op, x->ndim);
    if (!dt_dtype_is_float((dt_dtype)x->dtype))
        return dt_fail(DT_E_DTYPE, "%s: not implemented for %s; expected a float dtype", op, dt_dtype_name((dt_dtype)x->dtype));
    for (int d = 1; d < x->ndim; d++)
        if (x->shape[d] < 1)
            return dt_fail(DT_E_SHAPE, "%s: expected the input's sizes to be non-zero (but the batch), got %lld in dimension %d", op, LL(x->shape[d]), d);
    return DT_OK;
}

static dt_status pooled_size(const char *op, const dt_pool_attr *a, int d, int64_t in, int64_t *out) {
    int64_t k = a->kernel.v[d], s = a->stride.v[d], p = a->padding.v[d], dil = a->dilation.n ? a->dilation.v[d] : 1;
    if (k < 1 || s < 1 || dil < 1)
        return dt_fail(DT_E_SHAPE, "%s: kernel size, stride and dilation must be greater than zero, got %lld, %lld, %lld", op, LL(k), LL(s), LL(dil));
    if (p < 0) return dt_fail(DT_E_SHAPE, "%s: pad must be non-negative, but got pad: %lld", op, LL(p));
    if (p > ((k - 1) * dil + 1) / 2)
        return dt_fail(DT_E_SHAPE, "%s: pad should be at most half of effective kernel size, but got pad=%lld, kernel_size=%lld and dilation=%lld", op, LL(p),
                       LL(k), LL(dil));
    int64_t room = in + 2 * p - dil * (k - 1) - 1;
    int64_t n = room < 0 ? (a->ceil_mode && room + s > 0 ? 1 : 0) : (room + (a->ceil_mode ? s - 1 : 0)) / s + 1;
    if (a->ceil_mode && n > 0 && (n - 1) * s >= in + p) n--; /* the last window must start inside the input or its left padding */
    if (n < 1) return dt_fail(DT_E_SHAPE, "%s: given input size %lld, the output would have size %lld; it is too small", op, LL(in), LL(n));
    *out = n;
    return DT_OK;
}

static dt_status infer_pool(dt_node *n) {
    const dt_pool_attr *a = n->attr;
    const dt_meta *x = n->in[0];
    DT_TRY(check_input(n));
    int nd = x->ndim - 2;
    n->out[0] = dt_meta_type(x);
    for (int d = 0; d < nd; d++) {
        int64_t size = a->size.n > d ? a->size.v[d] : 0;
        if (a->kernel.n)
            DT_TRY(pooled_size(dt_op_name(n->op), a, d, x->shape[2 + d], &size));
        else if (size < 0)
            return dt_fail(DT_E_SHAPE, "adaptive pool: output_size must be non-negative, got %lld", LL(size));
        n->out[0].shape[2 + d] = size;
    }
    if (n->n_out > 1) {
        n->out[1] = n->out[0];
        n->out[1].dtype = DT_int64;
    }
    return DT_OK;
}

static dt_status infer_back(dt_node *n) { /* in[0] pooled -> the input's sizes; also pool_gather, with the pooled sizes */
    const dt_pool_attr *a = n->attr;
    n->out[0] = dt_meta_type(n->in[0]);
    for (int d = 2; d < n->in[0]->ndim; d++) n->out[0].shape[d] = a->size.v[d - 2];
    return DT_OK;
}

static dt_status place_pool(const dt_node *n, dt_rules *r) { return dt_place_except(n, r, ~3u); }

static dt_status place_linear_pool(const dt_node *n, dt_rules *r) {
    static const dt_reduce kinds[] = {DT_SUM, DT_AVG};
    DT_TRY(dt_place_except(n, r, ~3u));
    for (int i = 0; i < 2; i++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P_OF(kinds[i]);
    }
    return DT_OK;
}

/* ---- gradients ---- */
static dt_dims dims(const dt_ints *l) { return (dt_dims){l->n < 0 ? 0 : l->n, l->v}; }
static dt_dims spatial(const dt_meta *m) { return (dt_dims){m->ndim - 2, m->shape + 2}; }

static void grad_max_pool(dt_grad *g) { dt_grad_set(g, 0, dt_pool_scatter(g->s, dt_grad_gy(g, 0), dt_grad_out(g, 1), spatial(dt_grad_in_meta(g, 0)))); }
static void grad_pool_scatter(dt_grad *g) { dt_grad_set(g, 0, dt_pool_gather(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 1), spatial(dt_grad_in_meta(g, 0)))); }
static void grad_pool_gather(dt_grad *g) { dt_grad_set(g, 0, dt_pool_scatter(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 1), spatial(dt_grad_in_meta(g, 0)))); }
static void grad_avg_pool(dt_grad *g) {
    const dt_pool_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0,
                dt_avg_pool_backward(g->s, dt_grad_gy(g, 0), spatial(dt_grad_in_meta(g, 0)), dims(&a->kernel), dims(&a->stride), dims(&a->padding),
                                     a->ceil_mode, a->count_include_pad, a->divisor));
}
static void grad_avg_pool_backward(dt_grad *g) {
    const dt_pool_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0,
                dt_avg_pool(g->s, dt_grad_gy(g, 0), spatial(dt_grad_in_meta(g, 0)), dims(&a->kernel), dims(&a->stride), dims(&a->padding), a->ceil_mode,
                            a->count_include_pad, a->divisor));
}

static double flops_windows(const dt_node *n) {
    const dt_pool_attr *a = n->attr;
    double f = (double)dt_type_numel(&n->out[0]);
    for (int d = 0; d < a->kernel.n; d++) f *= (double)a->kernel.v[d];
    return f > (double)n->in[0]->numel ? f : (double)n->in[0]->numel;
}

/* Sums of 16-bit results are kept in f32. */
static size_t scratch_sums(const dt_kctx *c) { return dt_dtype_size(c->out[0].dtype) == 2 ? (size_t)dt_view_numel(&c->out[0]) * 4 : 0; }

#define WINDOW_FIELDS DT_FIELD(dt_pool_attr, size), DT_FIELD(dt_pool_attr, kernel), DT_FIELD(dt_pool_attr, stride), DT_FIELD(dt_pool_attr, padding)

const dt_op dt_op_max_pool = {
    .sig = "max_pool(Tensor input, int[] size, int[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil_mode) -> (Tensor output, Tensor indices)",
    .doc = "Maximum over windows of (N, C, size…), and its flat position in the plane; kernel [] takes adaptive windows for the result's size.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_pool_attr, WINDOW_FIELDS, DT_FIELD(dt_pool_attr, dilation), DT_FIELD(dt_pool_attr, ceil_mode)),
    .infer = infer_pool,
    .place = place_pool,
    .grad = grad_max_pool,
    .saves = DT_SAVE_OUT(1),
    .flops = flops_windows,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_max_pool, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_pool_scatter = {
    .sig = "pool_scatter(Tensor input, Tensor indices, int[] size) -> Tensor",
    .doc = "Zeros of (N, C, size…) with each input element added at its flat position.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_pool_attr, DT_FIELD(dt_pool_attr, size)),
    .infer = infer_back,
    .place = place_pool,
    .grad = grad_pool_scatter,
    .saves = DT_SAVE_IN(1),
    .scratch = scratch_sums,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_pool_scatter, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_pool_gather = {
    .sig = "pool_gather(Tensor input, Tensor indices, int[] size) -> Tensor",
    .doc = "The elements of each plane at flat positions; size repeats the positions' sizes.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_pool_attr, DT_FIELD(dt_pool_attr, size)),
    .infer = infer_back,
    .place = place_pool,
    .grad = grad_pool_gather,
    .saves = DT_SAVE_IN(1),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_pool_gather, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_avg_pool = {
    .sig = "avg_pool(Tensor input, int[] size, int[] kernel, int[] stride, int[] padding, bool ceil_mode, bool count_include_pad, int divisor) -> Tensor",
    .doc = "Mean over windows of (N, C, size…); kernel [] takes adaptive windows for the result's size; divisor 0 counts elements.",
    .where = DT_HIDDEN,
    .attrs =
        DT_ATTRS(dt_pool_attr, WINDOW_FIELDS, DT_FIELD(dt_pool_attr, ceil_mode), DT_FIELD(dt_pool_attr, count_include_pad), DT_FIELD(dt_pool_attr, divisor)),
    .infer = infer_pool,
    .place = place_linear_pool,
    .grad = grad_avg_pool,
    .flops = flops_windows,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_avg_pool, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_avg_pool_backward = {
    .sig =
        "avg_pool_backward(Tensor grad, int[] size, int[] kernel, int[] stride, int[] padding, bool ceil_mode, bool count_include_pad, int divisor) -> Tensor",
    .doc = "The gradient of avg_pool; size: the input's.",
    .where = DT_HIDDEN,
    .attrs =
        DT_ATTRS(dt_pool_attr, WINDOW_FIELDS, DT_FIELD(dt_pool_attr, ceil_mode), DT_FIELD(dt_pool_attr, count_include_pad), DT_FIELD(dt_pool_attr, divisor)),
    .infer = infer_back,
    .place = place_linear_pool,
    .grad = grad_avg_pool_backward,
    .scratch = scratch_sums,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_avg_pool_backward, DT_K_CONTIGUOUS, NULL}},
};

/* ---- PyTorch's functions ---- */
static const dt_dims none = {0, NULL};

typedef struct lists {
    int64_t v[4][3];
    dt_dims kernel, stride, padding, dilation;
} lists;

static bool list_of(dt_scope *s, const dt_args *a, int i, const char *name, int nd, dt_dims otherwise, int64_t *v, dt_dims *out) {
    dt_dims d = dt_arg_get_dims(a, i);
    if (d.n <= 0) d = otherwise;
    if (d.n != 1 && d.n != nd) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "pool: %s must either be a single int, or a tuple of %d ints, got %d", name, nd, d.n));
        return false;
    }
    for (int k = 0; k < nd; k++) v[k] = d.v[d.n == 1 ? 0 : k];
    *out = (dt_dims){nd, v};
    return true;
}

/* kernel, stride, padding (and dilation at index 4, if any) of a call. */
static bool windows(dt_scope *s, const dt_args *a, int nd, bool dilated, lists *l) {
    static const int64_t zero = 0, one = 1;
    if (!list_of(s, a, 1, "kernel_size", nd, none, l->v[0], &l->kernel)) return false;
    if (!list_of(s, a, 2, "stride", nd, l->kernel, l->v[1], &l->stride)) return false;
    if (!list_of(s, a, 3, "padding", nd, (dt_dims){1, &zero}, l->v[2], &l->padding)) return false;
    l->dilation = none;
    return !dilated || list_of(s, a, 4, "dilation", nd, (dt_dims){1, &one}, l->v[3], &l->dilation);
}

/* The input with a batch dimension; NULL and a failed scope if the rank does not fit. */
static dt_tensor *batched(dt_scope *s, dt_tensor *x, int nd, bool *added) {
    int rank = dt_ndim(x);
    *added = rank == nd + 1;
    if (rank == nd + 2) return x;
    if (rank == nd + 1) return dt_unsqueeze(s, x, 0);
    dt_scope_fail(s, dt_fail(DT_E_SHAPE, "pool: expected %dD or %dD input, got %dD", nd + 1, nd + 2, rank));
    return NULL;
}
static void deliver(dt_scope *s, dt_tensor **y, int n, bool added, dt_tensor **out, int *n_out) {
    *n_out = n;
    for (int i = 0; i < n; i++) out[i] = dt_keep(added ? dt_squeeze(s, y[i], DT_DIMS(0)) : y[i]);
}

static void max_pool_nd(dt_scope *s, const dt_args *a, int nd, int n, dt_tensor **out, int *n_out) {
    bool added;
    lists l;
    dt_tensor *x = batched(s, dt_arg_get_tensor(a, 0), nd, &added), *y[2] = {0};
    *n_out = n;
    if (!x || !windows(s, a, nd, true, &l)) return;
    if (dt_max_pool(s, x, none, l.kernel, l.stride, l.padding, l.dilation, dt_arg_get_bool(a, 5, false), y)) return;
    deliver(s, y, n, added, out, n_out);
}

static void avg_pool_nd(dt_scope *s, const dt_args *a, int nd, dt_tensor **out, int *n_out) {
    bool added;
    lists l;
    dt_tensor *x = batched(s, dt_arg_get_tensor(a, 0), nd, &added);
    *n_out = 1;
    if (!x || !windows(s, a, nd, false, &l)) return;
    int64_t divisor = nd > 1 && dt_arg_given(a, 6) ? dt_arg_get_int(a, 6, 0) : 0;
    if (nd > 1 && dt_arg_given(a, 6) && divisor == 0) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "avg_pool%dd: divisor must be not zero", nd));
        return;
    }
    dt_tensor *y = dt_avg_pool(s, x, none, l.kernel, l.stride, l.padding, dt_arg_get_bool(a, 4, false), dt_arg_get_bool(a, 5, true), divisor);
    if (y) deliver(s, &y, 1, added, out, n_out);
}

/* output_size of the adaptive ones: an int repeats; None (or -1) keeps the input's. */
static bool adaptive_size(dt_scope *s, const dt_args *a, dt_tensor *x, int nd, int64_t *v) {
    dt_dims d = dt_arg_get_dims(a, 1);
    if (d.n != 1 && d.n != nd) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "adaptive pool: output_size must be an int or %d ints, got %d", nd, d.n));
        return false;
    }
    for (int k = 0; k < nd; k++) {
        v[k] = d.v[d.n == 1 ? 0 : k];
        if (v[k] < 0) v[k] = dt_shape(x)[2 + k];
    }
    return true;
}

static void adaptive_nd(dt_scope *s, const dt_args *a, int nd, int n, bool max, dt_tensor **out, int *n_out) {
    bool added;
    int64_t v[3];
    dt_tensor *x = batched(s, dt_arg_get_tensor(a, 0), nd, &added), *y[2] = {0};
    *n_out = n;
    if (!x || !adaptive_size(s, a, x, nd, v)) return;
    if (max && dt_max_pool(s, x, (dt_dims){nd, v}, none, none, none, none, false, y)) return;
    if (!max && !(y[0] = dt_avg_pool(s, x, (dt_dims){nd, v}, none, none, none, false, false, 0))) return;
    deliver(s, y, n, added, out, n_out);
}

#define COMPOSE(nd)                                                                                                                           \
    static void compose_max##nd(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { max_pool_nd(s, a, nd, 1, out, n_out); }         \
    static void compose_max##nd##i(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { max_pool_nd(s, a, nd, 2, out, n_out); }      \
    static void compose_avg##nd(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { avg_pool_nd(s, a, nd, out, n_out); }            \
    static void compose_aavg##nd(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { adaptive_nd(s, a, nd, 1, false, out, n_out); } \
    static void compose_amax##nd(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { adaptive_nd(s, a, nd, 2, true, out, n_out); }
COMPOSE(1)
COMPOSE(2)
COMPOSE(3)

#define MAX_DOC                                                                                                                                  \
    "Maximum over windows of (N, C, size…) or (C, size…); stride defaults to kernel_size, padding counts as -inf. RuntimeError if sizes do " \
    "not fit."
#define MAX_INDICES_DOC MAX_DOC " Also gives the flat position of each maximum in its plane."
#define AVG_DOC                                                                                                                                       \
    "Mean over windows of (N, C, size…) or (C, size…); stride defaults to kernel_size; count_include_pad counts padding zeros; divisor_override " \
    "replaces the count. RuntimeError if sizes do not fit."
#define ADAPTIVE_AVG_DOC "Mean over as many windows as output_size says, of (N, C, size…) or (C, size…); None or -1 keeps a size."
#define ADAPTIVE_MAX_DOC "Maximum over as many windows as output_size says, of (N, C, size…) or (C, size…), and its flat position in the plane."

const dt_op dt_op_max_pool1d = {
    .sig = "max_pool1d(Tensor input, int[1] kernel_size, int[1]? stride=None, int[1] padding=0, int[1] dilation=1, bool ceil_mode=False) -> Tensor",
    .doc = MAX_DOC,
    .where = DT_FN,
    .compose = compose_max1,
};
const dt_op dt_op_max_pool2d = {
    .sig = "max_pool2d(Tensor input, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor",
    .doc = MAX_DOC,
    .where = DT_FN,
    .compose = compose_max2,
};
const dt_op dt_op_max_pool3d = {
    .sig = "max_pool3d(Tensor input, int[3] kernel_size, int[3]? stride=None, int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> Tensor",
    .doc = MAX_DOC,
    .where = DT_FN,
    .compose = compose_max3,
};
const dt_op dt_op_max_pool1d_with_indices = {
    .sig = "max_pool1d_with_indices(Tensor input, int[1] kernel_size, int[1]? stride=None, int[1] padding=0, int[1] dilation=1, bool ceil_mode=False) -> "
           "(Tensor output, Tensor indices)",
    .doc = MAX_INDICES_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_max1i,
};
const dt_op dt_op_max_pool2d_with_indices = {
    .sig = "max_pool2d_with_indices(Tensor input, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> "
           "(Tensor output, Tensor indices)",
    .doc = MAX_INDICES_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_max2i,
};
const dt_op dt_op_max_pool3d_with_indices = {
    .sig = "max_pool3d_with_indices(Tensor input, int[3] kernel_size, int[3]? stride=None, int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> "
           "(Tensor output, Tensor indices)",
    .doc = MAX_INDICES_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_max3i,
};
const dt_op dt_op_avg_pool1d = {
    .sig = "avg_pool1d(Tensor input, int[1] kernel_size, int[1]? stride=None, int[1] padding=0, bool ceil_mode=False, bool count_include_pad=True) -> Tensor",
    .doc = AVG_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_avg1,
};
const dt_op dt_op_avg_pool2d = {
    .sig = "avg_pool2d(Tensor input, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, "
           "int? divisor_override=None) -> Tensor",
    .doc = AVG_DOC,
    .where = DT_NN,
    .compose = compose_avg2,
};
const dt_op dt_op_avg_pool3d = {
    .sig = "avg_pool3d(Tensor input, int[3] kernel_size, int[3]? stride=None, int[3] padding=0, bool ceil_mode=False, bool count_include_pad=True, "
           "int? divisor_override=None) -> Tensor",
    .doc = AVG_DOC,
    .where = DT_NN,
    .compose = compose_avg3,
};
const dt_op dt_op_adaptive_avg_pool1d = {
    .sig = "adaptive_avg_pool1d(Tensor input, int[1] output_size) -> Tensor",
    .doc = ADAPTIVE_AVG_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_aavg1,
};
const dt_op dt_op_adaptive_avg_pool2d_ints = {
    .sig = "_adaptive_avg_pool2d(Tensor input, int[2] output_size) -> Tensor",
    .doc = ADAPTIVE_AVG_DOC,
    .where = DT_NN,
    .compose = compose_aavg2,
};
const dt_op dt_op_adaptive_avg_pool3d_ints = {
    .sig = "_adaptive_avg_pool3d(Tensor input, int[3] output_size) -> Tensor",
    .doc = ADAPTIVE_AVG_DOC,
    .where = DT_NN,
    .compose = compose_aavg3,
};
const dt_op dt_op_adaptive_max_pool1d_with_indices = {
    .sig = "_adaptive_max_pool1d(Tensor input, int[1] output_size) -> (Tensor output, Tensor indices)",
    .doc = ADAPTIVE_MAX_DOC,
    .where = DT_NN,
    .compose = compose_amax1,
};
const dt_op dt_op_adaptive_max_pool1d = {
    .sig = "adaptive_max_pool1d(Tensor input, int[1] output_size) -> (Tensor output, Tensor indices)",
    .doc = ADAPTIVE_MAX_DOC,
    .where = DT_FN,
    .compose = compose_amax1,
};
const dt_op dt_op_adaptive_max_pool2d_with_indices = {
    .sig = "_adaptive_max_pool2d(Tensor input, int[2] output_size) -> (Tensor output, Tensor indices)",
    .doc = ADAPTIVE_MAX_DOC,
    .where = DT_NN,
    .compose = compose_amax2,
};
const dt_op dt_op_adaptive_max_pool3d_with_indices = {
    .sig = "_adaptive_max_pool3d(Tensor input, int[3] output_size) -> (Tensor output, Tensor indices)",
    .doc = ADAPTIVE_MAX_DOC,
    .where = DT_NN,
    .compose = compose_amax3,
};
