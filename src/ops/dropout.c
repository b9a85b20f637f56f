/* Activations that are compositions, and dropout. */
#include <math.h>

#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/random.h"

DT_CPU_KERNEL(dropout);

static void softsign_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt_div(s, a->a[0].t, dt_add(s, dt_abs(s, a->a[0].t), 1)), out, n_out);
}
const dt_op dt_op_softsign = {
    .sig = "softsign(Tensor input) -> Tensor",
    .doc = "x / (1 + |x|) of each element.",
    .where = DT_NN,
    .compose = softsign_compose,
};
static void tanhshrink_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt_sub(s, a->a[0].t, dt_tanh(s, a->a[0].t)), out, n_out);
}
const dt_op dt_op_tanhshrink = {
    .sig = "tanhshrink(Tensor input) -> Tensor",
    .doc = "x - tanh(x) of each element.",
    .where = DT_NN,
    .compose = tanhshrink_compose,
};
static void glu_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = a->a[0].t;
    int64_t dim = dt_arg_as_int(&a->a[1], -1);
    int nd = dt_ndim(x);
    dt_status st = nd ? dt_dim_wrap(&dim, nd) : dt_fail(DT_E_SHAPE, "glu: does not support 0-dimensional tensors");
    if (!st && dt_shape(x)[dim] % 2)
        st = dt_fail(DT_E_SHAPE, "glu: Halving dimension must be even, but dimension %lld is size %lld", (long long)dim, (long long)dt_shape(x)[dim]);
    if (st) {
        dt_scope_fail(s, st);
        return;
    }
    int64_t half = dt_shape(x)[dim] / 2;
    dt_compose_one(dt_mul(s, dt_narrow(s, x, dim, 0, half), dt_sigmoid(s, dt_narrow(s, x, dim, half, half))), out, n_out);
}
const dt_op dt_op_glu = {
    .sig = "glu(Tensor input, int dim=-1) -> Tensor",
    .doc = "a sigmoid(b), a and b being the halves of input along dim.",
    .where = DT_NN,
    .compose = glu_compose,
};
/* weight: one slope, or one a channel (dimension 1) */
static void prelu_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = a->a[0].t, *w = a->a[1].t;
    int nd = dt_ndim(x);
    int64_t channels = nd > 1 ? dt_shape(x)[1] : 1, shape[DT_MAX_DIM];
    if (dt_ndim(w) > 1) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = %d", dt_ndim(w)));
        return;
    }
    if (dt_numel(w) == 1)
        w = dt_reshape(s, w, (dt_dims){0, shape});
    else {
        if (dt_numel(w) != channels) {
            dt_scope_fail(s, dt_fail(DT_E_SHAPE,
                                     "prelu: Mismatch of parameter numbers and input channel size. Found parameter numbers = %lld and channel size = %lld",
                                     (long long)dt_numel(w), (long long)channels));
            return;
        }
        for (int d = 0; d < nd; d++) shape[d] = d == 1 ? channels : 1;
        w = dt_reshape(s, w, (dt_dims){nd, shape});
    }
    dt_compose_one(dt_where(s, dt_gt(s, x, 0), x, dt_mul(s, w, x)), out, n_out);
}
const dt_op dt_op_prelu = {
    .sig = "prelu(Tensor input, Tensor weight) -> Tensor",
    .doc = "x where x > 0, else weight x; weight has one element, or one a channel (dimension 1 of input).",
    .where = DT_FN_METHOD | DT_NN,
    .compose = prelu_compose,
};

/* ---- dropout: the mask is not kept; backward draws it again from the same counters ------------------------------------------------------- */
static dt_status dropout_infer(dt_node *n) {
    n->out[0] = dt_meta_type(n->in[0]);
    if (!dt_dtype_is_float(n->out[0].dtype)) return dt_fail(DT_E_DTYPE, "dropout: a float tensor is expected, got %s", dt_dtype_name(n->out[0].dtype));
    return DT_OK;
}
static dt_status dropout_place(const dt_node *n, dt_rules *r) { return dt_place_scaled(n, r, 1); }
#define DROPOUT                                                                                                                                      \
    .where = DT_HIDDEN, .attrs = {sizeof(dt_random_floats), {{"p", offsetof(dt_random_floats, a)}}}, .infer = dropout_infer, .place = dropout_place, \
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_dropout, DT_K_CONTIGUOUS}}
static double probability(const dt_grad *g) { return ((const dt_random_floats *)dt_grad_attr(g))->a; }
static void dropout_grad(dt_grad *g) {
    dt_grad_set(g, 0, dt__dropout_backward(g->s, dt_grad_gy(g, 0), probability(g), dt_grad_scalar(g, 1), dt_grad_scalar(g, 2)));
}
const dt_op dt_op__dropout = {
    .sig = "_dropout(Tensor input, float p, *, Generator? generator=None) -> Tensor",
    .doc = "Each element is 0 with probability p, else x / (1 - p).",
    .flags = DT_F_RANDOM,
    .grad = dropout_grad,
    DROPOUT,
};
const dt_op dt_op__dropout_backward = {
    .sig = "_dropout_backward(Tensor grad, float p, Scalar seed, Scalar offset) -> Tensor",
    .doc = "grad through the mask that a call of dropout drew.",
    .grad = dropout_grad,
    DROPOUT,
};
static void dropout_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double p = dt_arg_as_float(&a->a[1], 0.5);
    bool training = dt_arg_as_int(&a->a[2], 1) != 0;
    dt_tensor *x = a->a[0].t;
    if (!(p >= 0 && p <= 1))
        dt_scope_fail(s, dt_fail(DT_E_VALUE, "dropout: dropout probability has to be between 0 and 1, but got %g", p));
    else
        dt_compose_one(!training || p == 0 ? x : p == 1 ? dt_mul(s, x, 0) : dt__dropout(s, x, p, NULL), out, n_out);
}
const dt_op dt_op_dropout = {
    .sig = "dropout(Tensor input, float p=0.5, bool training=True) -> Tensor",
    .doc = "In training each element is 0 with probability p, else x / (1 - p).",
    .where = DT_NN | DT_FN,
    .compose = dropout_compose,
    .inplace = true,
};
/* keeps mean 0 and variance 1: dropped elements become alpha' = -scale alpha of selu, then a x + b */
static void alpha_dropout_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double p = dt_arg_as_float(&a->a[1], 0.5), alpha = -1.7580993408473766;
    bool training = dt_arg_as_int(&a->a[2], 0) != 0;
    dt_tensor *x = a->a[0].t;
    if (!(p >= 0 && p <= 1)) {
        dt_scope_fail(s, dt_fail(DT_E_VALUE, "alpha_dropout: dropout probability has to be between 0 and 1, but got %g", p));
        return;
    }
    if (!training || p == 0 || p == 1) {
        dt_compose_one(!training || p == 0 ? x : dt_mul(s, x, 0), out, n_out);
        return;
    }
    double scale = 1 / sqrt((1 - p) * (1 + p * alpha * alpha));
    dt_tensor *kept = dt_gt(s, dt__dropout(s, dt_ones_like(s, x, DT_DTYPE_NONE), p, NULL), 0);
    dt_compose_one(dt_add(s, dt_mul(s, dt_where(s, kept, x, alpha), scale), -scale * alpha * p), out, n_out);
}
const dt_op dt_op_alpha_dropout = {
    .sig = "alpha_dropout(Tensor input, float p=0.5, bool training=False) -> Tensor",
    .doc = "Dropout that keeps mean and variance of a self-normalising network.",
    .where = DT_NN | DT_FN,
    .compose = alpha_dropout_compose,
    .inplace = true,
};
