/* Elementwise losses: compositions of pointwise ops and a mean or a sum. */
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"

/* The three reductions, after the deprecated size_average and reduce (arguments i and j; -1: the op has none) have had their say. */
static dt_tensor *reduce(dt_scope *s, const dt_args *a, dt_tensor *loss, int i, int j, int at) {
    const char *r = dt_arg_get_str(a, at, "mean");
    if (dt_arg_given(a, i) || dt_arg_given(a, j)) r = !dt_arg_get_bool(a, j, true) ? "none" : dt_arg_get_bool(a, i, true) ? "mean" : "sum";
    if (!strcmp(r, "none")) return loss;
    if (!strcmp(r, "mean")) return dt_mean(s, loss, DT_NO_DIMS, false, DT_DTYPE_NONE);
    if (!strcmp(r, "sum")) return dt_sum(s, loss, DT_NO_DIMS, false, DT_DTYPE_NONE);
    dt_scope_fail(s, dt_fail(DT_E_VALUE, "%s is not a valid value for reduction: expected 'none', 'mean' or 'sum'", r));
    return NULL;
}
static dt_tensor *difference(dt_scope *s, const dt_args *a) { return dt_sub(s, dt_arg_get_tensor(a, 0), DT_V(dt_arg_get_tensor(a, 1))); }
/* The losses that take `weight`: elementwise for "none" and "sum"; a mean divides by the sum of the (broadcast) weights. */
static dt_tensor *weighted(dt_scope *s, const dt_args *a, dt_tensor *loss, int w, int i, int j, int at) {
    dt_tensor *weight = dt_arg_get_tensor(a, w);
    if (!weight) return reduce(s, a, loss, i, j, at);
    const char *r = dt_arg_get_str(a, at, "mean");
    dt_tensor *l = dt_mul(s, loss, DT_V(weight));
    if (strcmp(r, "mean") || dt_arg_given(a, i) || dt_arg_given(a, j) || !l) return reduce(s, a, l, i, j, at);
    dt_tensor *total = dt_sum(s, dt_expand(s, weight, (dt_dims){dt_ndim(l), dt_shape(l)}, false), DT_NO_DIMS, false, DT_DTYPE_NONE);
    return dt_div(s, dt_sum(s, l, DT_NO_DIMS, false, DT_DTYPE_NONE), DT_V(total));
}

static void mse_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *d = difference(s, a);
    dt_compose_out(weighted(s, a, dt_mul(s, d, DT_V(d)), 5, 2, 3, 4), out, n_out);
}
const dt_op dt_op_mse_loss = {
    .sig = "mse_loss(Tensor input, Tensor target, Value? size_average=None, Value? reduce=None, str reduction='mean', Tensor? weight=None) "
           "-> Tensor",
    .doc = "(input - target)^2, reduced; the shapes broadcast.",
    .where = DT_NN,
    .compose = mse_compose,
};

static void l1_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_out(weighted(s, a, dt_abs(s, difference(s, a)), 5, 2, 3, 4), out, n_out);
}
const dt_op dt_op_l1_loss = {
    .sig = "l1_loss(Tensor input, Tensor target, Value? size_average=None, Value? reduce=None, str reduction='mean', Tensor? weight=None) "
           "-> Tensor",
    .doc = "|input - target|, reduced; the shapes broadcast.",
    .where = DT_NN,
    .compose = l1_compose,
};

static void smooth_l1_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double beta = dt_arg_get_float(a, 5, 1);
    if (beta < 0) dt_scope_fail(s, dt_fail(DT_E_SHAPE, "smooth_l1_loss does not support negative values for beta, got %g.", beta));
    dt_tensor *d = difference(s, a), *m = dt_abs(s, d), *l = m;
    if (beta > 0) l = dt_where(s, dt_lt(s, m, beta), DT_V(dt_mul(s, dt_mul(s, d, DT_V(d)), 0.5 / beta)), DT_V(dt_sub(s, m, 0.5 * beta)));
    dt_compose_out(reduce(s, a, l, 2, 3, 4), out, n_out);
}
const dt_op dt_op_smooth_l1_loss = {
    .sig = "smooth_l1_loss(Tensor input, Tensor target, Value? size_average=None, Value? reduce=None, str reduction='mean', float "
           "beta=1.0) -> Tensor",
    .doc = "d^2 / (2 beta) where d = |input - target| < beta, else d - beta / 2; reduced.",
    .where = DT_NN,
    .compose = smooth_l1_compose,
};

static void huber_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double delta = dt_arg_get_float(a, 3, 1);
    if (!(delta > 0)) dt_scope_fail(s, dt_fail(DT_E_SHAPE, "huber_loss does not support non-positive values for delta, got %g.", delta));
    dt_tensor *d = difference(s, a), *m = dt_abs(s, d);
    dt_tensor *l = dt_where(s, dt_le(s, m, delta), DT_V(dt_mul(s, dt_mul(s, d, DT_V(d)), 0.5)), DT_V(dt_mul(s, dt_sub(s, m, 0.5 * delta), delta)));
    dt_tensor *weight = dt_arg_get_tensor(a, 4);
    dt_args shifted = *a;
    shifted.a[5] = a->a[2]; /* reduction; no deprecated arguments */
    shifted.a[6] = shifted.a[7] = (dt_arg){0};
    dt_compose_out(weight ? weighted(s, &shifted, l, 4, 6, 7, 5) : reduce(s, &shifted, l, 6, 7, 5), out, n_out);
}
const dt_op dt_op_huber_loss = {
    .sig = "huber_loss(Tensor input, Tensor target, str reduction='mean', float delta=1.0, Tensor? weight=None) -> Tensor",
    .doc = "d^2 / 2 where d = |input - target| <= delta, else delta (d - delta / 2); reduced.",
    .where = DT_NN,
    .compose = huber_compose,
};
