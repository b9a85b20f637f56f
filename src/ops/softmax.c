/* softmax, log_softmax, softmin, logsumexp.
 *
 * _softmax and _log_softmax are primitives; any dimension but `dim` may be sharded: exp is not linear. Where `dim` itself is sharded, softmax
 * and log_softmax are composed, as logsumexp always is, of a maximum and a sum: two small reductions, forward, and one backward; never a
 * gather. */
#include <math.h>

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"
#include "ops/reduce.h"

DT_CPU_KERNEL(softmax);
DT_CPU_KERNEL(log_softmax);
DT_CPU_KERNEL(softmax_backward);
DT_CPU_KERNEL(log_softmax_backward);

static dt_status infer(dt_node *n) {
    dt_dim_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    DT_TRY(dt_dim_wrap(&a->dim, m->ndim));
    n->out[0] = dt_meta_type(m);
    if (a->dtype != DT_DTYPE_NONE) n->out[0].dtype = (dt_dtype)a->dtype;
    dt_dtype t = n->out[0].dtype;
    if (!dt_dtype_is_float(t)) return dt_fail(DT_E_NOTIMPL, "%s: expected a floating point input (or dtype=), got %s", dt_op_name(n->op), dt_dtype_name(t));
    n->cast[0] = (uint8_t)(t == DT_float64 ? DT_float64 : DT_float32);
    return DT_OK;
}
static dt_status place(const dt_node *n, dt_rules *r) { return dt_place_except(n, r, 1u << ((const dt_dim_attr *)n->attr)->dim); }

/* gx = y (gy - sum(gy y)) */
static void softmax_grad(dt_grad *g) {
    int64_t dim = ((const dt_dim_attr *)dt_grad_attr(g))->dim;
    dt_tensor *gy = dt_grad_gy(g, 0), *y = dt_grad_out(g, 0), *gx;
    if (dt_higher_order()) {
        dt_tensor *h = dt_mul(g->s, gy, DT_V(y));
        gx = dt_sub(g->s, h, DT_V(dt_mul(g->s, y, DT_V(dt_sum(g->s, h, DT_DIMS(dim), true, DT_DTYPE_NONE)))));
    } else
        gx = dt_softmax_backward(g->s, gy, y, dim);
    dt_grad_set(g, 0, gx);
}
/* gx = gy - exp(y) sum(gy) */
static void log_softmax_grad(dt_grad *g) {
    int64_t dim = ((const dt_dim_attr *)dt_grad_attr(g))->dim;
    dt_tensor *gy = dt_grad_gy(g, 0), *y = dt_grad_out(g, 0), *gx;
    if (dt_higher_order()) {
        dt_tensor *t = dt_sum(g->s, gy, DT_DIMS(dim), true, DT_DTYPE_NONE);
        gx = dt_sub(g->s, gy, DT_V(dt_mul(g->s, dt_exp(g->s, y), DT_V(t))));
    } else
        gx = dt_log_softmax_backward(g->s, gy, y, dim);
    dt_grad_set(g, 0, gx);
}
#define ATTRS DT_ATTRS(dt_dim_attr, DT_FIELD(dt_dim_attr, dim), DT_FIELD(dt_dim_attr, dtype))

const dt_op dt_op__softmax = {
    .sig = "_softmax(Tensor input, int dim, dtype? dtype=None) -> Tensor",
    .doc = "exp(x) / sum(exp(x)) along `dim`, computed stably. `dtype`: cast to it first.",
    .where = DT_HIDDEN,
    .attrs = ATTRS,
    .flags = DT_F_STRIDED,
    .infer = infer,
    .place = place,
    .grad = softmax_grad,
    .saves = DT_SAVE_OUT(0),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_softmax, DT_K_CONTIGUOUS}},
};
const dt_op dt_op__log_softmax = {
    .sig = "_log_softmax(Tensor input, int dim, dtype? dtype=None) -> Tensor",
    .doc = "x - log(sum(exp(x))) along `dim`, computed stably. `dtype`: cast to it first.",
    .where = DT_HIDDEN,
    .attrs = ATTRS,
    .flags = DT_F_STRIDED,
    .infer = infer,
    .place = place,
    .grad = log_softmax_grad,
    .saves = DT_SAVE_OUT(0),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_log_softmax, DT_K_CONTIGUOUS}},
};

static dt_status backward_infer(dt_node *n) {
    n->out[0] = dt_meta_type(n->in[1]);
    n->cast[0] = n->cast[1] = (uint8_t)(n->in[1]->dtype == DT_float64 ? DT_float64 : DT_float32);
    return DT_OK;
}
const dt_op dt_op_softmax_backward = {
    .sig = "softmax_backward(Tensor grad_output, Tensor output, int dim) -> Tensor",
    .doc = "The gradient of softmax: y (gy - sum(gy y)).",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_dim_attr, DT_FIELD(dt_dim_attr, dim)),
    .flags = DT_F_STRIDED,
    .infer = backward_infer,
    .place = place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_softmax_backward, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_log_softmax_backward = {
    .sig = "log_softmax_backward(Tensor grad_output, Tensor output, int dim) -> Tensor",
    .doc = "The gradient of log_softmax: gy - exp(y) sum(gy).",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_dim_attr, DT_FIELD(dt_dim_attr, dim)),
    .flags = DT_F_STRIDED,
    .infer = backward_infer,
    .place = place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_log_softmax_backward, DT_K_CONTIGUOUS}},
};

/* ---- a sharded dimension ------------------------------------------------------------------------------------------------------- */
/* The maximum along dims where it is finite, else 0; no gradient flows through it. */
static dt_tensor *finite_max(dt_scope *s, dt_tensor *x, dt_dims dims) {
    bool grad = dt_grad_mode_set(false);
    dt_tensor *m = dt_amax(s, x, dims, true);
    m = m ? dt_where(s, dt_lt(s, dt_abs(s, m), INFINITY), DT_V(m), 0.0) : NULL;
    dt_grad_mode_set(grad);
    return m;
}

/* Is x, in the working dtype, to be composed: a float tensor, sharded along dim? Anything else, faults too, is the primitive's. */
static bool is_cut(dt_tensor *x, int64_t dim, int dtype) {
    int nd = dt_ndim(x);
    int t = dtype == DT_DTYPE_NONE ? dt_dtype_of(x) : dtype;
    if (dim < -nd || dim >= nd || !dt_dtype_is_float((dt_dtype)t) || dt_numel(x) == 0) return false;
    return dt_is_sharded(x, (int)(dim < 0 ? dim + nd : dim));
}

static void softmax_sharded(dt_scope *s, dt_tensor *x, int64_t dim, int dtype, bool log, dt_tensor **out, int *n_out) {
    dt_dtype t = dtype == DT_DTYPE_NONE ? (dt_dtype)dt_dtype_of(x) : (dt_dtype)dtype, work = t == DT_float64 ? t : DT_float32;
    if (dt_dtype_of(x) != (int)work) x = dt_to_dtype(s, x, work);
    dt_tensor *c = dt_sub(s, x, DT_V(finite_max(s, x, DT_DIMS(dim)))), *e = dt_exp(s, c);
    dt_tensor *sum = dt_sum(s, e, DT_DIMS(dim), true, DT_DTYPE_NONE);
    dt_tensor *y = log ? dt_sub(s, c, DT_V(dt_log(s, sum))) : dt_div(s, e, DT_V(sum));
    if (t != work) y = dt_to_dtype(s, y, t);
    dt_compose_out(y, out, n_out);
}

static void softmax_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    int64_t dim = dt_arg_get_int(a, 1, -1);
    int t = dt_arg_get_dtype(a, 2);
    if (is_cut(x, dim, t))
        softmax_sharded(s, x, dim, t, false, out, n_out);
    else
        dt_compose_out(dt__softmax(s, x, dim, t), out, n_out);
}
static void log_softmax_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    int64_t dim = dt_arg_get_int(a, 1, -1);
    int t = dt_arg_get_dtype(a, 2);
    if (is_cut(x, dim, t))
        softmax_sharded(s, x, dim, t, true, out, n_out);
    else
        dt_compose_out(dt__log_softmax(s, x, dim, t), out, n_out);
}
const dt_op dt_op_softmax = {
    .sig = "softmax(Tensor input, int dim, dtype? dtype=None) -> Tensor",
    .doc = "exp(x) / sum(exp(x)) along `dim`, computed stably. `dtype`: cast to it first.",
    .also = "special.softmax",
    .where = DT_FN | DT_METHOD,
    .compose = softmax_compose,
};
const dt_op dt_op_log_softmax = {
    .sig = "log_softmax(Tensor input, int dim, dtype? dtype=None) -> Tensor",
    .doc = "x - log(sum(exp(x))) along `dim`, computed stably. `dtype`: cast to it first.",
    .also = "special.log_softmax",
    .where = DT_FN | DT_METHOD,
    .compose = log_softmax_compose,
};

/* logsumexp = m + log(sum(exp(x - m))), m = the maximum where it is finite, else 0; no gradient flows through m. */
static void logsumexp_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    dt_dims dim = dt_arg_get_dims(a, 1);
    bool keep = dt_arg_get_bool(a, 2, false);
    if (!dt_dtype_is_float((dt_dtype)dt_dtype_of(x))) x = dt_to_dtype(s, x, dt_default_dtype());
    bool empty = dt_numel(x) == 0;
    dt_tensor *m = empty ? NULL : finite_max(s, x, dim), *r;
    if (empty)
        r = dt_log(s, dt_sum(s, dt_exp(s, x), dim, keep, DT_DTYPE_NONE));
    else {
        r = dt_log(s, dt_sum(s, dt_exp(s, dt_sub(s, x, DT_V(m))), dim, keep, DT_DTYPE_NONE));
        r = dt_add(s, r, DT_V(keep ? m : dt_reshape(s, m, (dt_dims){dt_ndim(r), dt_shape(r)})));
    }
    dt_compose_out(r, out, n_out);
}
const dt_op dt_op_logsumexp = {
    .sig = "logsumexp(Tensor input, int[] dim, bool keepdim=False) -> Tensor",
    .doc = "log(sum(exp(x))) over `dim` (an int or several), computed stably.",
    .also = "special.logsumexp",
    .where = DT_FN | DT_METHOD,
    .compose = logsumexp_compose,
};
