/* Elementwise losses of probabilities: compositions of pointwise ops and a mean or a sum. */
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
/* -w (t max(log x, -100) + (1 - t) max(log(1 - x), -100)) */
static void bce_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *t = dt_arg_get_tensor(a, 1), *w = dt_arg_get_tensor(a, 2);
    bool same = dt_ndim(x) == dt_ndim(t);
    for (int i = 0; same && i < dt_ndim(x); i++) same = dt_shape(x)[i] == dt_shape(t)[i];
    if (!same)
        dt_scope_fail(s, dt_fail(DT_E_VALUE,
                                 "binary_cross_entropy: target (%d dimensions, %lld elements) must have the size of input (%d dimensions, %lld elements)",
                                 dt_ndim(t), (long long)dt_numel(t), dt_ndim(x), (long long)dt_numel(x)));
    dt_tensor *p = dt_clamp(s, dt_log(s, dt_clamp(s, x, 4e-44, DT_NOTHING)), -100.0, DT_NOTHING);
    dt_tensor *q = dt_clamp(s, dt_log(s, dt_clamp(s, dt_rsub(s, x, 1.0), 4e-44, DT_NOTHING)), -100.0, DT_NOTHING);
    dt_tensor *l = dt_neg(s, dt_add(s, dt_mul(s, t, DT_V(p)), DT_V(dt_mul(s, dt_rsub(s, t, 1.0), DT_V(q)))));
    if (w) l = dt_mul(s, l, DT_V(w));
    dt_compose_out(reduce(s, a, l, 3, 4, 5), out, n_out);
}
const dt_op dt_op_binary_cross_entropy = {
    .sig = "binary_cross_entropy(Tensor input, Tensor target, Tensor? weight=None, Value? size_average=None, Value? reduce=None, str "
           "reduction='mean') -> Tensor",
    .doc = "-weight (target log(input) + (1 - target) log(1 - input)) of probabilities, logarithms not below -100; reduced.",
    .where = DT_NN,
    .compose = bce_compose,
};

/* (1 - t) x - (1 + (pos_weight - 1) t) log(sigmoid(x)) */
static void bce_logits_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *t = dt_arg_get_tensor(a, 1), *w = dt_arg_get_tensor(a, 2), *pos = dt_arg_get_tensor(a, 6);
    bool same = dt_ndim(x) == dt_ndim(t);
    for (int i = 0; same && i < dt_ndim(x); i++) same = dt_shape(x)[i] == dt_shape(t)[i];
    if (!same)
        dt_scope_fail(s, dt_fail(DT_E_VALUE, "Target size (%d dimensions, %lld elements) must be the same as input size (%d dimensions, %lld elements)",
                                 dt_ndim(t), (long long)dt_numel(t), dt_ndim(x), (long long)dt_numel(x)));
    dt_tensor *ls = dt_logsigmoid(s, x), *l = dt_mul(s, dt_rsub(s, t, 1.0), DT_V(x));
    if (pos) ls = dt_mul(s, ls, DT_V(dt_add(s, dt_mul(s, dt_sub(s, pos, 1.0), DT_V(t)), 1.0)));
    l = dt_sub(s, l, DT_V(ls));
    if (w) l = dt_mul(s, l, DT_V(w));
    dt_compose_out(reduce(s, a, l, 3, 4, 5), out, n_out);
}
const dt_op dt_op_binary_cross_entropy_with_logits = {
    .sig = "binary_cross_entropy_with_logits(Tensor input, Tensor target, Tensor? weight=None, Value? size_average=None, Value? reduce=None, "
           "str reduction='mean', Tensor? pos_weight=None) -> Tensor",
    .doc = "Binary cross-entropy of logits, computed stably; `pos_weight` scales the positive part; reduced.",
    .where = DT_FN | DT_NN,
    .compose = bce_logits_compose,
};

static void kl_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *t = dt_arg_get_tensor(a, 1), *l;
    if (dt_arg_get_bool(a, 5, false))
        l = dt_mul(s, dt_exp(s, t), DT_V(dt_sub(s, t, DT_V(x))));
    else
        l = dt_sub(s, dt_xlogy(s, t, t), DT_V(dt_mul(s, t, DT_V(x))));
    const char *r = dt_arg_get_str(a, 4, "mean");
    if (!strcmp(r, "batchmean")) {
        double n = dt_ndim(x) ? (double)dt_shape(x)[0] : 1;
        l = dt_div(s, dt_sum(s, l, DT_NO_DIMS, false, DT_DTYPE_NONE), n);
    } else
        l = reduce(s, a, l, 2, 3, 4);
    dt_compose_out(l, out, n_out);
}
const dt_op dt_op_kl_div = {
    .sig = "kl_div(Tensor input, Tensor target, Value? size_average=None, Value? reduce=None, str reduction='mean', bool log_target=False) "
           "-> Tensor",
    .doc = "target (log target - input) for log-probabilities `input`; 'batchmean' divides the sum by the size of dimension 0.",
    .where = DT_NN,
    .compose = kl_compose,
};
