/* Elementary functions. */
#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

#define FUNCTION_IN(places, code) .where = places, .infer = dt_infer_pointwise_float, .inplace = true, DT_POINTWISE(code)
#define FUNCTION(code) FUNCTION_IN(DT_FN_METHOD, code)

static void exp_grad(dt_grad *g) { dt_grad_set(g, 0, dt_mul(g->s, dt_grad_gy(g, 0), dt_grad_out(g, 0))); }
const dt_op dt_op_exp = {
    .sig = "exp(Tensor input) -> Tensor",
    .doc = "e raised to each element.",
    .grad = exp_grad,
    .saves = DT_SAVE_OUT(0),
    FUNCTION(exp),
};
static void log_grad(dt_grad *g) { dt_grad_set(g, 0, dt_div(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 0))); }
const dt_op dt_op_log = {
    .sig = "log(Tensor input) -> Tensor",
    .doc = "Natural logarithm of each element.",
    .grad = log_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(log),
};
static void sqrt_grad(dt_grad *g) { dt_grad_set(g, 0, dt_div(g->s, dt_grad_gy(g, 0), dt_mul(g->s, dt_grad_out(g, 0), 2))); }
const dt_op dt_op_sqrt = {
    .sig = "sqrt(Tensor input) -> Tensor",
    .doc = "Square root of each element.",
    .grad = sqrt_grad,
    .saves = DT_SAVE_OUT(0),
    FUNCTION(sqrt),
};
/* -1/2 gy y^3 */
static void rsqrt_grad(dt_grad *g) {
    dt_tensor *y = dt_grad_out(g, 0);
    dt_grad_set(g, 0, dt_mul(g->s, dt_mul(g->s, dt_grad_gy(g, 0), -0.5), dt_mul(g->s, y, dt_mul(g->s, y, y))));
}
const dt_op dt_op_rsqrt = {
    .sig = "rsqrt(Tensor input) -> Tensor",
    .doc = "1 / sqrt(input).",
    .grad = rsqrt_grad,
    .saves = DT_SAVE_OUT(0),
    FUNCTION(rsqrt),
};

/* tanh and its gradient gy (1 - y^2), a primitive of its own: one pass. */
static void tanh_grad(dt_grad *g) { dt_grad_set(g, 0, dt_tanh_backward(g->s, dt_grad_gy(g, 0), dt_grad_out(g, 0))); }
const dt_op dt_op_tanh = {
    .sig = "tanh(Tensor input) -> Tensor",
    .doc = "Hyperbolic tangent of each element.",
    .grad = tanh_grad,
    .saves = DT_SAVE_OUT(0),
    FUNCTION_IN(DT_FN_METHOD | DT_NN, tanh),
};
static void tanh_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gz = dt_grad_gy(g, 0), *gy = dt_grad_in(g, 0), *y = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_tanh_backward(s, gz, y));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_mul(s, dt_mul(s, gz, gy), dt_mul(s, y, -2)));
}
const dt_op dt_op_tanh_backward = {
    .sig = "tanh_backward(Tensor grad, Tensor output) -> Tensor",
    .doc = "grad * (1 - output^2).",
    .where = DT_HIDDEN,
    .infer = dt_infer_pointwise,
    .grad = tanh_backward_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .inplace = true,
    DT_POINTWISE(tanh_backward),
};
static void sigmoid_grad(dt_grad *g) { dt_grad_set(g, 0, dt_sigmoid_backward(g->s, dt_grad_gy(g, 0), dt_grad_out(g, 0))); }
const dt_op dt_op_sigmoid = {
    .sig = "sigmoid(Tensor input) -> Tensor",
    .doc = "1 / (1 + e^-x) of each element.",
    .also = "special.expit",
    .grad = sigmoid_grad,
    .saves = DT_SAVE_OUT(0),
    FUNCTION_IN(DT_FN_METHOD | DT_NN, sigmoid),
};
static void sigmoid_backward_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gz = dt_grad_gy(g, 0), *gy = dt_grad_in(g, 0), *y = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_sigmoid_backward(s, gz, y));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_mul(s, dt_mul(s, gz, gy), dt_rsub(s, dt_mul(s, y, 2), 1)));
}
const dt_op dt_op_sigmoid_backward = {
    .sig = "sigmoid_backward(Tensor grad, Tensor output) -> Tensor",
    .doc = "grad * output * (1 - output).",
    .where = DT_HIDDEN,
    .infer = dt_infer_pointwise,
    .grad = sigmoid_backward_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .inplace = true,
    DT_POINTWISE(sigmoid_backward),
};

/* ---- exponentials and logarithms ---------------------------------------------------------------------------------------------------- */
static void exp2_grad(dt_grad *g) { dt_grad_set(g, 0, dt_mul(g->s, dt_grad_gy(g, 0), dt_mul(g->s, dt_grad_out(g, 0), 0.69314718055994530942))); }
const dt_op dt_op_exp2 = {
    .sig = "exp2(Tensor input) -> Tensor",
    .doc = "2 raised to each element.",
    .also = "special.exp2",
    .grad = exp2_grad,
    .saves = DT_SAVE_OUT(0),
    FUNCTION(exp2),
};
static void expm1_grad(dt_grad *g) { dt_grad_set(g, 0, dt_mul(g->s, dt_grad_gy(g, 0), dt_add(g->s, dt_grad_out(g, 0), 1))); }
const dt_op dt_op_expm1 = {
    .sig = "expm1(Tensor input) -> Tensor",
    .doc = "e^x - 1 of each element, exact for small x.",
    .also = "special.expm1",
    .grad = expm1_grad,
    .saves = DT_SAVE_OUT(0),
    FUNCTION(expm1),
};
static dt_tensor *over(dt_grad *g, dt_tensor *d) { return dt_div(g->s, dt_grad_gy(g, 0), d); }
static void log2_grad(dt_grad *g) { dt_grad_set(g, 0, over(g, dt_mul(g->s, dt_grad_in(g, 0), 0.69314718055994530942))); }
const dt_op dt_op_log2 = {
    .sig = "log2(Tensor input) -> Tensor",
    .doc = "Logarithm to base 2 of each element.",
    .grad = log2_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(log2),
};
static void log10_grad(dt_grad *g) { dt_grad_set(g, 0, over(g, dt_mul(g->s, dt_grad_in(g, 0), 2.3025850929940456840))); }
const dt_op dt_op_log10 = {
    .sig = "log10(Tensor input) -> Tensor",
    .doc = "Logarithm to base 10 of each element.",
    .grad = log10_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(log10),
};
static void log1p_grad(dt_grad *g) { dt_grad_set(g, 0, over(g, dt_add(g->s, dt_grad_in(g, 0), 1))); }
const dt_op dt_op_log1p = {
    .sig = "log1p(Tensor input) -> Tensor",
    .doc = "log(1 + x) of each element, exact for small x.",
    .also = "special.log1p",
    .grad = log1p_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(log1p),
};

/* ---- trigonometry ------------------------------------------------------------------------------------------------------------------- */
#define X dt_grad_in(g, 0)
#define Y dt_grad_out(g, 0)
static dt_tensor *times(dt_grad *g, dt_tensor *d) { return dt_mul(g->s, dt_grad_gy(g, 0), d); }
static dt_tensor *one_plus(dt_grad *g, dt_tensor *t, double sign) { /* 1 + sign t^2 */
    dt_tensor *u = dt_mul(g->s, t, t);
    return sign > 0 ? dt_add(g->s, u, 1) : dt_rsub(g->s, u, 1);
}
static void sin_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_cos(g->s, X))); }
const dt_op dt_op_sin = {
    .sig = "sin(Tensor input) -> Tensor",
    .doc = "Sine of each element (radians).",
    .grad = sin_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(sin),
};
static void cos_grad(dt_grad *g) { dt_grad_set(g, 0, dt_neg(g->s, times(g, dt_sin(g->s, X)))); }
const dt_op dt_op_cos = {
    .sig = "cos(Tensor input) -> Tensor",
    .doc = "Cosine of each element (radians).",
    .grad = cos_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(cos),
};
static void tan_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, one_plus(g, Y, 1))); }
const dt_op dt_op_tan = {
    .sig = "tan(Tensor input) -> Tensor",
    .doc = "Tangent of each element (radians).",
    .grad = tan_grad,
    .saves = DT_SAVE_OUT(0),
    FUNCTION(tan),
};
static void asin_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_rsqrt(g->s, one_plus(g, X, -1)))); }
const dt_op dt_op_asin = {
    .sig = "asin(Tensor input) -> Tensor",
    .doc = "Inverse sine of each element; NaN outside [-1, 1].",
    .also = "arcsin",
    .grad = asin_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(asin),
};
static void acos_grad(dt_grad *g) { dt_grad_set(g, 0, dt_neg(g->s, times(g, dt_rsqrt(g->s, one_plus(g, X, -1))))); }
const dt_op dt_op_acos = {
    .sig = "acos(Tensor input) -> Tensor",
    .doc = "Inverse cosine of each element; NaN outside [-1, 1].",
    .also = "arccos",
    .grad = acos_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(acos),
};
static void atan_grad(dt_grad *g) { dt_grad_set(g, 0, over(g, one_plus(g, X, 1))); }
const dt_op dt_op_atan = {
    .sig = "atan(Tensor input) -> Tensor",
    .doc = "Inverse tangent of each element.",
    .also = "arctan",
    .grad = atan_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(atan),
};
static void atan2_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *y = dt_grad_in(g, 0), *x = dt_grad_in(g, 1), *d = dt_add(s, dt_mul(s, y, y), dt_mul(s, x, x));
    dt_tensor *r = dt_masked_fill(s, over(g, d), dt_eq(s, d, 0), 0); /* 0 at the origin, as in PyTorch */
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_mul(s, r, x));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_neg(s, dt_mul(s, r, y)));
}
const dt_op dt_op_atan2 = {
    .sig = "atan2(Tensor input, Tensor other) -> Tensor",
    .doc = "The angle of the point (other, input), in (-pi, pi].",
    .also = "arctan2",
    .grad = atan2_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    FUNCTION(atan2),
};
static void hypot_grad(dt_grad *g) {
    dt_tensor *r = over(g, Y);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_mul(g->s, r, X));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_mul(g->s, r, dt_grad_in(g, 1)));
}
const dt_op dt_op_hypot = {
    .sig = "hypot(Tensor input, Tensor other) -> Tensor",
    .doc = "sqrt(input^2 + other^2) without overflow.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_float_only,
    .grad = hypot_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_OUT(0),
    .inplace = true,
    DT_POINTWISE(hypot),
};
/* (cos(pi x) - sinc x) / x; 0 at 0 */
static void sinc_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *x = X, *zero = dt_eq(s, x, 0), *safe = dt_masked_fill(s, x, zero, 1);
    dt_tensor *d = dt_div(s, dt_sub(s, dt_cos(s, dt_mul(s, safe, 3.14159265358979323846)), dt_sinc(s, safe)), safe);
    dt_grad_set(g, 0, times(g, dt_masked_fill(s, d, zero, 0)));
}
const dt_op dt_op_sinc = {
    .sig = "sinc(Tensor input) -> Tensor",
    .doc = "sin(pi x) / (pi x) of each element, 1 at 0.",
    .also = "special.sinc",
    .grad = sinc_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(sinc),
};

/* ---- hyperbolic functions ------------------------------------------------------------------------------------------------------------- */
static void sinh_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_cosh(g->s, X))); }
const dt_op dt_op_sinh = {
    .sig = "sinh(Tensor input) -> Tensor",
    .doc = "Hyperbolic sine of each element.",
    .grad = sinh_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(sinh),
};
static void cosh_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_sinh(g->s, X))); }
const dt_op dt_op_cosh = {
    .sig = "cosh(Tensor input) -> Tensor",
    .doc = "Hyperbolic cosine of each element.",
    .grad = cosh_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(cosh),
};
static void asinh_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_rsqrt(g->s, one_plus(g, X, 1)))); }
const dt_op dt_op_asinh = {
    .sig = "asinh(Tensor input) -> Tensor",
    .doc = "Inverse hyperbolic sine of each element.",
    .also = "arcsinh",
    .grad = asinh_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(asinh),
};
static void acosh_grad(dt_grad *g) {
    dt_tensor *u = dt_sub(g->s, dt_mul(g->s, X, X), 1);
    dt_grad_set(g, 0, times(g, dt_rsqrt(g->s, u)));
}
const dt_op dt_op_acosh = {
    .sig = "acosh(Tensor input) -> Tensor",
    .doc = "Inverse hyperbolic cosine of each element; NaN below 1.",
    .also = "arccosh",
    .grad = acosh_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(acosh),
};
static void atanh_grad(dt_grad *g) { dt_grad_set(g, 0, over(g, one_plus(g, X, -1))); }
const dt_op dt_op_atanh = {
    .sig = "atanh(Tensor input) -> Tensor",
    .doc = "Inverse hyperbolic tangent of each element; NaN outside [-1, 1].",
    .also = "arctanh",
    .grad = atanh_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(atanh),
};

/* ---- sums of exponentials; products with logarithms ------------------------------------------------------------------------------------- */
static void logaddexp_grad(dt_grad *g) {
    for (int i = 0; i < 2; i++)
        if (dt_grad_needs(g, i)) dt_grad_set(g, i, times(g, dt_exp(g->s, dt_sub(g->s, dt_grad_in(g, i), Y))));
}
const dt_op dt_op_logaddexp = {
    .sig = "logaddexp(Tensor input, Tensor other) -> Tensor",
    .doc = "log(e^input + e^other) without overflow.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_float_only,
    .grad = logaddexp_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_OUT(0),
    DT_POINTWISE(logaddexp),
};
static void logaddexp2_grad(dt_grad *g) {
    for (int i = 0; i < 2; i++)
        if (dt_grad_needs(g, i)) dt_grad_set(g, i, times(g, dt_exp2(g->s, dt_sub(g->s, dt_grad_in(g, i), Y))));
}
const dt_op dt_op_logaddexp2 = {
    .sig = "logaddexp2(Tensor input, Tensor other) -> Tensor",
    .doc = "log2(2^input + 2^other) without overflow.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_float_only,
    .grad = logaddexp2_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_OUT(0),
    DT_POINTWISE(logaddexp2),
};
static void xlogy_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_value x = dt_grad_value(g, 0), y = dt_grad_value(g, 1);
    if (dt_grad_needs(g, 0)) { /* log y, but 0 where x is 0 and y <= 0 */
        dt_tensor *mask =
            dt_logical_and(s, dt_eq(s, x.t, 0), y.kind == 1 ? dt_le(s, y.t, 0) : dt_full_like(s, x.t, (y.kind == 2 ? y.f : (double)y.i) <= 0, DT_bool));
        dt_grad_set(g, 0, dt_masked_fill(s, dt_xlogy(s, dt_grad_gy(g, 0), y), mask, 0));
    }
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, times(g, dt_div(s, x, y)));
}
const dt_op dt_op_xlogy = {
    .sig = "xlogy(Value input, Value other) -> Tensor",
    .doc = "input * log(other), 0 where input is 0.",
    .also = "special.xlogy",
    .grad = xlogy_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    FUNCTION(xlogy),
};
static void xlog1py_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_value x = dt_grad_value(g, 0), y = dt_grad_value(g, 1);
    if (dt_grad_needs(g, 0)) {
        dt_tensor *mask =
            dt_logical_and(s, dt_eq(s, x.t, 0), y.kind == 1 ? dt_le(s, y.t, -1) : dt_full_like(s, x.t, (y.kind == 2 ? y.f : (double)y.i) <= -1, DT_bool));
        dt_grad_set(g, 0, dt_masked_fill(s, dt_special_xlog1py(s, dt_grad_gy(g, 0), y), mask, 0));
    }
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, times(g, dt_div(s, x, dt_add(s, y, 1))));
}
const dt_op dt_op_special_xlog1py = {
    .sig = "special_xlog1py(Value input, Value other) -> Tensor",
    .doc = "input * log(1 + other), 0 where input is 0.",
    .also = "special.xlog1py",
    .where = DT_FN,
    .infer = dt_infer_pointwise_float,
    .grad = xlog1py_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    DT_POINTWISE(xlog1py),
};
