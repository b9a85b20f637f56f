/* Elementary functions. */
#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

#define FUNCTION(code) .where = DT_FN_METHOD, .infer = dt_infer_pointwise_float, .inplace = true, DT_POINTWISE(code)

static void exp_grad(dt_grad *g) { dt_grad_set(g, 0, dt_mul(g->s, dt_grad_gy(g, 0), dt_grad_out(g, 0))); }
const dt_op dt_op_exp = {
    .sig = "exp(Tensor input) -> Tensor", .doc = "e raised to each element.", .grad = exp_grad, .saves = DT_SAVE_OUT(0), FUNCTION(exp),
};
static void log_grad(dt_grad *g) { dt_grad_set(g, 0, dt_div(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 0))); }
const dt_op dt_op_log = {
    .sig = "log(Tensor input) -> Tensor", .doc = "Natural logarithm of each element.", .grad = log_grad, .saves = DT_SAVE_IN(0), FUNCTION(log),
};
static void sqrt_grad(dt_grad *g) { dt_grad_set(g, 0, dt_div(g->s, dt_grad_gy(g, 0), dt_mul(g->s, dt_grad_out(g, 0), 2))); }
const dt_op dt_op_sqrt = {
    .sig = "sqrt(Tensor input) -> Tensor", .doc = "Square root of each element.", .grad = sqrt_grad, .saves = DT_SAVE_OUT(0), FUNCTION(sqrt),
};
/* -1/2 gy y^3 */
static void rsqrt_grad(dt_grad *g) {
    dt_tensor *y = dt_grad_out(g, 0);
    dt_grad_set(g, 0, dt_mul(g->s, dt_mul(g->s, dt_grad_gy(g, 0), -0.5), dt_mul(g->s, y, dt_mul(g->s, y, y))));
}
const dt_op dt_op_rsqrt = {
    .sig = "rsqrt(Tensor input) -> Tensor", .doc = "1 / sqrt(input).", .grad = rsqrt_grad, .saves = DT_SAVE_OUT(0), FUNCTION(rsqrt),
};

/* tanh and its gradient gy (1 - y^2), a primitive of its own: one pass. */
static void tanh_grad(dt_grad *g) { dt_grad_set(g, 0, dt_tanh_backward(g->s, dt_grad_gy(g, 0), dt_grad_out(g, 0))); }
const dt_op dt_op_tanh = {
    .sig = "tanh(Tensor input) -> Tensor", .doc = "Hyperbolic tangent of each element.", .also = "nn.functional.tanh", .grad = tanh_grad,
    .saves = DT_SAVE_OUT(0), FUNCTION(tanh),
};
static void tanh_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gz = dt_grad_gy(g, 0), *gy = dt_grad_in(g, 0), *y = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_tanh_backward(s, gz, y));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_mul(s, dt_mul(s, gz, gy), dt_mul(s, y, -2)));
}
const dt_op dt_op_tanh_backward = {
    .sig = "tanh_backward(Tensor grad, Tensor output) -> Tensor", .doc = "grad * (1 - output^2).", .where = DT_HIDDEN, .infer = dt_infer_pointwise,
    .grad = tanh_backward_grad, .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1), .inplace = true, DT_POINTWISE(tanh_backward),
};
static void sigmoid_grad(dt_grad *g) { dt_grad_set(g, 0, dt_sigmoid_backward(g->s, dt_grad_gy(g, 0), dt_grad_out(g, 0))); }
const dt_op dt_op_sigmoid = {
    .sig = "sigmoid(Tensor input) -> Tensor", .doc = "1 / (1 + e^-x) of each element.", .also = "special.expit,nn.functional.sigmoid",
    .grad = sigmoid_grad, .saves = DT_SAVE_OUT(0), FUNCTION(sigmoid),
};
static void sigmoid_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gz = dt_grad_gy(g, 0), *gy = dt_grad_in(g, 0), *y = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_sigmoid_backward(s, gz, y));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_mul(s, dt_mul(s, gz, gy), dt_rsub(s, dt_mul(s, y, 2), 1)));
}
const dt_op dt_op_sigmoid_backward = {
    .sig = "sigmoid_backward(Tensor grad, Tensor output) -> Tensor", .doc = "grad * output * (1 - output).", .where = DT_HIDDEN, .infer = dt_infer_pointwise,
    .grad = sigmoid_backward_grad, .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1), .inplace = true, DT_POINTWISE(sigmoid_backward),
};
