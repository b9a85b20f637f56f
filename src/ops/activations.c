/* Activations. A gradient that would cost several passes is an op of its own, `<name>_backward(grad, input or output, …)`, with a gradient too. */
#include <string.h>

#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

#define BACKWARD(code) .where = DT_HIDDEN, .infer = dt_infer_pointwise, .inplace = true, DT_POINTWISE(code)

/* ---- relu: gradient gy where y > 0 ------------------------------------------------------------------------------------------------------ */
static void relu_grad(dt_grad *g) { dt_grad_set(g, 0, dt_threshold_backward(g->s, dt_grad_gy(g, 0), dt_grad_out(g, 0), 0.0)); }
const dt_op dt_op_relu = {
    .sig = "relu(Tensor input) -> Tensor",
    .doc = "max(x, 0) of each element.",
    .where = DT_FN_METHOD | DT_NN,
    .infer = dt_infer_pointwise_no_bool,
    .grad = relu_grad,
    .saves = DT_SAVE_OUT(0),
    .inplace = true,
    DT_POINTWISE(relu),
};
static void threshold_backward_grad(dt_grad *g) {
    const dt_pw_floats *a = dt_grad_attr(g);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_threshold_backward(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 1), a->a));
}
const dt_op dt_op_threshold_backward = {
    .sig = "threshold_backward(Tensor grad, Tensor input, float threshold) -> Tensor",
    .doc = "grad where input > threshold, else 0.",
    .attrs = DT_PW_FLOATS1(threshold),
    .grad = threshold_backward_grad,
    .saves = DT_SAVE_IN(1),
    BACKWARD(threshold_backward),
};

/* ---- gelu ------------------------------------------------------------------------------------------------------------------------------- */
static void gelu_exact_grad(dt_grad *g) { dt_grad_set(g, 0, dt__gelu_backward(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 0))); }
const dt_op dt_op__gelu = {
    .sig = "_gelu(Tensor input) -> Tensor",
    .doc = "x Phi(x).",
    .where = DT_HIDDEN,
    .infer = dt_infer_float_only,
    .grad = gelu_exact_grad,
    .saves = DT_SAVE_IN(0),
    .inplace = true,
    DT_POINTWISE(gelu),
};
/* d/dx of gy (Phi + x phi) = gy phi (2 - x^2) */
static void gelu_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gz = dt_grad_gy(g, 0), *gy = dt_grad_in(g, 0), *x = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt__gelu_backward(s, gz, x));
    if (dt_grad_needs(g, 1)) {
        dt_tensor *u = dt_mul(s, x, x), *phi = dt_mul(s, dt_exp(s, dt_mul(s, u, -0.5)), 0.39894228040143267794);
        dt_grad_set(g, 1, dt_mul(s, dt_mul(s, gz, gy), dt_mul(s, phi, dt_rsub(s, u, 2))));
    }
}
const dt_op dt_op__gelu_backward = {
    .sig = "_gelu_backward(Tensor grad, Tensor input) -> Tensor",
    .doc = "Gradient of gelu.",
    .grad = gelu_backward_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    BACKWARD(gelu_backward),
};
static void gelu_tanh_grad(dt_grad *g) { dt_grad_set(g, 0, dt__gelu_tanh_backward(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 0))); }
const dt_op dt_op__gelu_tanh = {
    .sig = "_gelu_tanh(Tensor input) -> Tensor",
    .doc = "The tanh approximation of gelu.",
    .where = DT_HIDDEN,
    .infer = dt_infer_float_only,
    .grad = gelu_tanh_grad,
    .saves = DT_SAVE_IN(0),
    .inplace = true,
    DT_POINTWISE(gelu_tanh),
};
/* With t = tanh(v), v = k (x + c x^3): f' = (1 + t)/2 + x (1 - t^2) v'/2, f'' = (1 - t^2) (v' + x v''/2 - x t v'^2) */
static void gelu_tanh_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gz = dt_grad_gy(g, 0), *gy = dt_grad_in(g, 0), *x = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt__gelu_tanh_backward(s, gz, x));
    if (dt_grad_needs(g, 1)) {
        const double k = 0.79788456080286535588, c = 0.044715;
        dt_tensor *u = dt_mul(s, x, x), *t = dt_tanh(s, dt_mul(s, dt_mul(s, x, dt_add(s, dt_mul(s, u, c), 1)), k));
        dt_tensor *v1 = dt_mul(s, dt_add(s, dt_mul(s, u, 3 * c), 1), k), *half_xv2 = dt_mul(s, u, 3 * c * k);
        dt_tensor *f2 = dt_sub(s, dt_add(s, v1, half_xv2), dt_mul(s, dt_mul(s, x, t), dt_mul(s, v1, v1)));
        dt_grad_set(g, 1, dt_mul(s, dt_mul(s, gz, gy), dt_tanh_backward(s, f2, t)));
    }
}
const dt_op dt_op__gelu_tanh_backward = {
    .sig = "_gelu_tanh_backward(Tensor grad, Tensor input) -> Tensor",
    .doc = "Gradient of the tanh approximation of gelu.",
    .grad = gelu_tanh_backward_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    BACKWARD(gelu_tanh_backward),
};
static void gelu_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    const char *how = a->a[1].kind == DT_ARG_STR ? a->a[1].s : "none";
    if (!strcmp(how, "tanh"))
        dt_compose_one(dt__gelu_tanh(s, a->a[0].t), out, n_out);
    else if (!strcmp(how, "none"))
        dt_compose_one(dt__gelu(s, a->a[0].t), out, n_out);
    else
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "gelu: approximate argument must be either none or tanh, got '%s'", how));
}
const dt_op dt_op_gelu = {
    .sig = "gelu(Tensor input, *, str approximate='none') -> Tensor",
    .doc = "x Phi(x), Phi being the normal distribution function; approximate='tanh': 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).",
    .where = DT_NN,
    .compose = gelu_compose,
};

/* ---- threshold and clipped lines -------------------------------------------------------------------------------------------------------- */
#define ACTIVATION(code) .where = DT_NN, .infer = dt_infer_float_only, .saves = DT_SAVE_IN(0), .inplace = true, DT_POINTWISE(code)
#define ATTR(g) ((const dt_pw_floats *)dt_grad_attr(g))
#define GY dt_grad_gy(g, 0)
#define X dt_grad_in(g, 0)

static void threshold_grad(dt_grad *g) { dt_grad_set(g, 0, dt_threshold_backward(g->s, GY, X, ATTR(g)->a)); }
const dt_op dt_op_threshold = {
    .sig = "threshold(Tensor input, float threshold, float value) -> Tensor",
    .doc = "x where x > threshold, else value.",
    .where = DT_FN | DT_NN,
    .attrs = DT_PW_FLOATS2(threshold, value),
    .infer = dt_infer_pointwise_no_bool,
    .grad = threshold_grad,
    .saves = DT_SAVE_IN(0),
    .inplace = true,
    DT_POINTWISE(threshold),
};

/* Piecewise linear functions: the gradient is linear in grad and has none with respect to the input. */
#define LINEAR_BACKWARD(name, again)                                                       \
    static void name##_grad(dt_grad *g) {                                                  \
        dt_tensor *gz = GY, *x = dt_grad_in(g, 1);                                         \
        if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, again);                                 \
        if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_zeros_like(g->s, x, DT_DTYPE_NONE)); \
    }
static dt_status hardtanh_infer(dt_node *n) {
    const dt_pw_floats *a = n->attr;
    if (a->a > a->b) return dt_fail(DT_E_VALUE, "hardtanh: min_val (%g) cannot be greater than max_val (%g)", a->a, a->b);
    return dt_infer_pointwise_no_bool(n);
}
static void hardtanh_grad(dt_grad *g) { dt_grad_set(g, 0, dt_hardtanh_backward(g->s, GY, X, ATTR(g)->a, ATTR(g)->b)); }
const dt_op dt_op_hardtanh = {
    .sig = "hardtanh(Tensor input, float min_val=-1.0, float max_val=1.0) -> Tensor",
    .doc = "x clipped to [min_val, max_val].",
    .where = DT_NN,
    .attrs = DT_PW_FLOATS2(min_val, max_val),
    .infer = hardtanh_infer,
    .grad = hardtanh_grad,
    .saves = DT_SAVE_IN(0),
    .inplace = true,
    DT_POINTWISE(hardtanh),
};
LINEAR_BACKWARD(hardtanh_backward, dt_hardtanh_backward(g->s, gz, x, ATTR(g)->a, ATTR(g)->b))
const dt_op dt_op_hardtanh_backward = {
    .sig = "hardtanh_backward(Tensor grad, Tensor input, float min_val, float max_val) -> Tensor",
    .doc = "Gradient of hardtanh.",
    .attrs = DT_PW_FLOATS2(min_val, max_val),
    .grad = hardtanh_backward_grad,
    .saves = DT_SAVE_IN(1),
    BACKWARD(hardtanh_backward),
};
static void relu6_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { dt_compose_one(dt_hardtanh(s, a->a[0].t, 0.0, 6.0), out, n_out); }
const dt_op dt_op_relu6 = {
    .sig = "relu6(Tensor input) -> Tensor",
    .doc = "min(max(x, 0), 6) of each element.",
    .where = DT_NN,
    .compose = relu6_compose,
    .inplace = true,
};
static void leaky_relu_grad(dt_grad *g) { dt_grad_set(g, 0, dt_leaky_relu_backward(g->s, GY, X, ATTR(g)->a)); }
const dt_op dt_op_leaky_relu = {
    .sig = "leaky_relu(Tensor input, float negative_slope=0.01) -> Tensor",
    .doc = "x where x > 0, else negative_slope * x.",
    .attrs = DT_PW_FLOATS1(negative_slope),
    .grad = leaky_relu_grad,
    ACTIVATION(leaky_relu),
};
LINEAR_BACKWARD(leaky_relu_backward, dt_leaky_relu_backward(g->s, gz, x, ATTR(g)->a))
const dt_op dt_op_leaky_relu_backward = {
    .sig = "leaky_relu_backward(Tensor grad, Tensor input, float negative_slope) -> Tensor",
    .doc = "Gradient of leaky_relu.",
    .attrs = DT_PW_FLOATS1(negative_slope),
    .grad = leaky_relu_backward_grad,
    .saves = DT_SAVE_IN(1),
    BACKWARD(leaky_relu_backward),
};
static void hardsigmoid_grad(dt_grad *g) { dt_grad_set(g, 0, dt_hardsigmoid_backward(g->s, GY, X)); }
const dt_op dt_op_hardsigmoid = {
    .sig = "hardsigmoid(Tensor input) -> Tensor",
    .doc = "min(max(x + 3, 0), 6) / 6 of each element.",
    .grad = hardsigmoid_grad,
    ACTIVATION(hardsigmoid),
};
LINEAR_BACKWARD(hardsigmoid_backward, dt_hardsigmoid_backward(g->s, gz, x))
const dt_op dt_op_hardsigmoid_backward = {
    .sig = "hardsigmoid_backward(Tensor grad, Tensor input) -> Tensor",
    .doc = "Gradient of hardsigmoid.",
    .grad = hardsigmoid_backward_grad,
    .saves = DT_SAVE_IN(1),
    BACKWARD(hardsigmoid_backward),
};
static void softshrink_grad(dt_grad *g) { dt_grad_set(g, 0, dt_shrink_backward(g->s, GY, X, ATTR(g)->a)); }
static dt_status softshrink_infer(dt_node *n) {
    if (!(((const dt_pw_floats *)n->attr)->a >= 0))
        return dt_fail(DT_E_SHAPE, "softshrink: lambda must be greater or equal to 0, but found to be %g", ((const dt_pw_floats *)n->attr)->a);
    return dt_infer_float_only(n);
}
const dt_op dt_op_softshrink = {
    .sig = "softshrink(Tensor input, float lambd=0.5) -> Tensor",
    .doc = "x moved towards 0 by lambd, 0 within.",
    .where = DT_NN,
    .attrs = DT_PW_FLOATS1(lambd),
    .infer = softshrink_infer,
    .grad = softshrink_grad,
    .saves = DT_SAVE_IN(0),
    DT_POINTWISE(softshrink),
};
const dt_op dt_op_hardshrink = {
    .sig = "hardshrink(Tensor input, float lambd=0.5) -> Tensor",
    .doc = "x where |x| > lambd, else 0.",
    .where = DT_NN | DT_FN_METHOD,
    .attrs = DT_PW_FLOATS1(lambd),
    .infer = dt_infer_float_only,
    .grad = softshrink_grad,
    .saves = DT_SAVE_IN(0),
    DT_POINTWISE(hardshrink),
};
LINEAR_BACKWARD(shrink_backward, dt_shrink_backward(g->s, gz, x, ATTR(g)->a))
const dt_op dt_op_shrink_backward = {
    .sig = "shrink_backward(Tensor grad, Tensor input, float lambd) -> Tensor",
    .doc = "Gradient of softshrink and hardshrink.",
    .attrs = DT_PW_FLOATS1(lambd),
    .grad = shrink_backward_grad,
    .saves = DT_SAVE_IN(1),
    BACKWARD(shrink_backward),
};

/* ---- smooth functions -------------------------------------------------------------------------------------------------------------------------- */
static void silu_grad(dt_grad *g) { dt_grad_set(g, 0, dt_silu_backward(g->s, GY, X)); }
const dt_op dt_op_silu = {
    .sig = "silu(Tensor input) -> Tensor",
    .doc = "x sigmoid(x) of each element.",
    .grad = silu_grad,
    ACTIVATION(silu),
};
/* f' = s (1 + x (1 - s)), f'' = s (1 - s) (2 + x (1 - 2 s)) */
static void silu_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gz = GY, *gy = X, *x = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_silu_backward(s, gz, x));
    if (dt_grad_needs(g, 1)) {
        dt_tensor *p = dt_sigmoid(s, x), *inner = dt_add(s, dt_mul(s, x, dt_rsub(s, dt_mul(s, p, 2), 1)), 2);
        dt_grad_set(g, 1, dt_mul(s, dt_mul(s, gz, gy), dt_sigmoid_backward(s, inner, p)));
    }
}
const dt_op dt_op_silu_backward = {
    .sig = "silu_backward(Tensor grad, Tensor input) -> Tensor",
    .doc = "Gradient of silu.",
    .grad = silu_backward_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    BACKWARD(silu_backward),
};
static void mish_grad(dt_grad *g) { dt_grad_set(g, 0, dt_mish_backward(g->s, GY, X)); }
const dt_op dt_op_mish = {
    .sig = "mish(Tensor input) -> Tensor",
    .doc = "x tanh(softplus(x)) of each element.",
    .grad = mish_grad,
    ACTIVATION(mish),
};
/* with t = tanh(softplus), s = sigmoid, d = 1 - t^2: f' = t + x s d, f'' = d s (2 + x (1 - s) - 2 x t s) */
static void mish_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gz = GY, *gy = X, *x = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_mish_backward(s, gz, x));
    if (dt_grad_needs(g, 1)) {
        dt_tensor *p = dt_sigmoid(s, x), *t = dt_tanh(s, dt_softplus(s, x, 1.0, 20.0));
        dt_tensor *in = dt_add(s, dt_mul(s, x, dt_sub(s, dt_rsub(s, p, 1), dt_mul(s, dt_mul(s, t, p), 2))), 2);
        dt_grad_set(g, 1, dt_mul(s, dt_mul(s, gz, gy), dt_tanh_backward(s, dt_mul(s, p, in), t)));
    }
}
const dt_op dt_op_mish_backward = {
    .sig = "mish_backward(Tensor grad, Tensor input) -> Tensor",
    .doc = "Gradient of mish.",
    .grad = mish_backward_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    BACKWARD(mish_backward),
};
static void softplus_grad(dt_grad *g) { dt_grad_set(g, 0, dt_softplus_backward(g->s, GY, X, ATTR(g)->a, ATTR(g)->b)); }
const dt_op dt_op_softplus = {
    .sig = "softplus(Tensor input, float beta=1.0, float threshold=20.0) -> Tensor",
    .doc = "log(1 + e^(beta x)) / beta; x where beta x > threshold.",
    .attrs = DT_PW_FLOATS2(beta, threshold),
    .grad = softplus_grad,
    ACTIVATION(softplus),
};
/* f'' = beta s (1 - s), 0 beyond the threshold */
static void softplus_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    double beta = ATTR(g)->a, threshold = ATTR(g)->b;
    dt_tensor *gz = GY, *x = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_softplus_backward(s, gz, x, beta, threshold));
    if (dt_grad_needs(g, 1)) {
        dt_tensor *bx = dt_mul(s, x, beta), *d = dt_sigmoid_backward(s, dt_mul(s, dt_mul(s, gz, X), beta), dt_sigmoid(s, bx));
        dt_grad_set(g, 1, dt_masked_fill(s, d, dt_gt(s, bx, threshold), 0));
    }
}
const dt_op dt_op_softplus_backward = {
    .sig = "softplus_backward(Tensor grad, Tensor input, float beta, float threshold) -> Tensor",
    .doc = "Gradient of softplus.",
    .attrs = DT_PW_FLOATS2(beta, threshold),
    .grad = softplus_backward_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    BACKWARD(softplus_backward),
};
static void logsigmoid_grad(dt_grad *g) { dt_grad_set(g, 0, dt_logsigmoid_backward(g->s, GY, X)); }
const dt_op dt_op_logsigmoid = {
    .sig = "logsigmoid(Tensor input) -> Tensor",
    .doc = "log(sigmoid(x)) of each element, without overflow.",
    .grad = logsigmoid_grad,
    ACTIVATION(logsigmoid),
};
static void logsigmoid_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gz = GY, *x = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_logsigmoid_backward(s, gz, x));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_neg(s, dt_sigmoid_backward(s, dt_mul(s, gz, X), dt_sigmoid(s, x))));
}
const dt_op dt_op_logsigmoid_backward = {
    .sig = "logsigmoid_backward(Tensor grad, Tensor input) -> Tensor",
    .doc = "Gradient of logsigmoid.",
    .grad = logsigmoid_backward_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    BACKWARD(logsigmoid_backward),
};

/* elu's family: scale x where x > 0, else alpha scale (e^(input_scale x) - 1) */
static void elu_full_grad(dt_grad *g) { dt_grad_set(g, 0, dt__elu_backward(g->s, GY, X, ATTR(g)->a, ATTR(g)->b, ATTR(g)->c)); }
const dt_op dt_op__elu = {
    .sig = "_elu(Tensor input, float alpha, float scale, float input_scale) -> Tensor",
    .doc = "elu with its scales.",
    .where = DT_HIDDEN,
    .attrs = DT_PW_FLOATS3(alpha, scale, input_scale),
    .infer = dt_infer_float_only,
    .grad = elu_full_grad,
    .saves = DT_SAVE_IN(0),
    .inplace = true,
    DT_POINTWISE(elu),
};
static void elu_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    const dt_pw_floats *a = ATTR(g);
    dt_tensor *gz = GY, *x = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt__elu_backward(s, gz, x, a->a, a->b, a->c));
    if (dt_grad_needs(g, 1)) {
        dt_tensor *e = dt_mul(s, dt_exp(s, dt_mul(s, x, a->c)), a->a * a->b * a->c * a->c);
        dt_grad_set(g, 1, dt_mul(s, dt_mul(s, gz, X), dt_masked_fill(s, e, dt_gt(s, x, 0), 0)));
    }
}
const dt_op dt_op__elu_backward = {
    .sig = "_elu_backward(Tensor grad, Tensor input, float alpha, float scale, float input_scale) -> Tensor",
    .doc = "Gradient of elu.",
    .attrs = DT_PW_FLOATS3(alpha, scale, input_scale),
    .grad = elu_backward_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    BACKWARD(elu_backward),
};
static void elu_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt__elu(s, a->a[0].t, dt_arg_as_float(&a->a[1], 1.0), 1.0, 1.0), out, n_out);
}
const dt_op dt_op_elu = {
    .sig = "elu(Tensor input, float alpha=1.0) -> Tensor",
    .doc = "x where x > 0, else alpha (e^x - 1).",
    .where = DT_NN,
    .compose = elu_compose,
    .inplace = true,
};
static void celu_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double alpha = dt_arg_as_float(&a->a[1], 1.0);
    if (alpha == 0)
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "celu: ZeroDivisionError: alpha cannot be 0 for CELU"));
    else
        dt_compose_one(dt__elu(s, a->a[0].t, alpha, 1.0, 1.0 / alpha), out, n_out);
}
const dt_op dt_op_celu = {
    .sig = "celu(Tensor input, float alpha=1.0) -> Tensor",
    .doc = "x where x > 0, else alpha (e^(x / alpha) - 1).",
    .where = DT_NN | DT_FN,
    .compose = celu_compose,
    .inplace = true,
};
static void selu_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt__elu(s, a->a[0].t, 1.6732632423543772848, 1.0507009873554804934, 1.0), out, n_out);
}
const dt_op dt_op_selu = {
    .sig = "selu(Tensor input) -> Tensor",
    .doc = "elu with the scales that keep mean and variance.",
    .where = DT_NN | DT_FN,
    .compose = selu_compose,
    .inplace = true,
};
static void hardswish_grad(dt_grad *g) { dt_grad_set(g, 0, dt_hardswish_backward(g->s, GY, X)); }
const dt_op dt_op_hardswish = {
    .sig = "hardswish(Tensor input) -> Tensor",
    .doc = "x min(max(x + 3, 0), 6) / 6 of each element.",
    .grad = hardswish_grad,
    ACTIVATION(hardswish),
};
/* f'' = 1/3 in (-3, 3) */
static void hardswish_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gz = GY, *x = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_hardswish_backward(s, gz, x));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_hardtanh_backward(s, dt_mul(s, dt_mul(s, gz, X), 1.0 / 3), x, -3.0, 3.0));
}
const dt_op dt_op_hardswish_backward = {
    .sig = "hardswish_backward(Tensor grad, Tensor input) -> Tensor",
    .doc = "Gradient of hardswish.",
    .grad = hardswish_backward_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    BACKWARD(hardswish_backward),
};
