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
    .sig = "_gelu(Tensor input) -> Tensor", .doc = "x Phi(x).", .where = DT_HIDDEN, .infer = dt_infer_float_only, .grad = gelu_exact_grad,
    .saves = DT_SAVE_IN(0), .inplace = true, DT_POINTWISE(gelu),
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
    .sig = "_gelu_backward(Tensor grad, Tensor input) -> Tensor", .doc = "Gradient of gelu.", .grad = gelu_backward_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1), BACKWARD(gelu_backward),
};
static void gelu_tanh_grad(dt_grad *g) { dt_grad_set(g, 0, dt__gelu_tanh_backward(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 0))); }
const dt_op dt_op__gelu_tanh = {
    .sig = "_gelu_tanh(Tensor input) -> Tensor", .doc = "The tanh approximation of gelu.", .where = DT_HIDDEN, .infer = dt_infer_float_only,
    .grad = gelu_tanh_grad, .saves = DT_SAVE_IN(0), .inplace = true, DT_POINTWISE(gelu_tanh),
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
    .sig = "_gelu_tanh_backward(Tensor grad, Tensor input) -> Tensor", .doc = "Gradient of the tanh approximation of gelu.",
    .grad = gelu_tanh_backward_grad, .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1), BACKWARD(gelu_tanh_backward),
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
