/* Powers, quotients with rounding, remainders, and combinations of three operands. */
#include <math.h>
#include <string.h>

#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

DT_CPU_KERNEL(int_division);

/* ---- pow ------------------------------------------------------------------------------------------------------------------------- */
static bool number_of(const dt_grad *g, int i, double *v) {
    const dt_meta *m = dt_grad_in_meta(g, i);
    if (!m->wrapped) return false;
    dt_value x = dt_grad_scalar(g, i);
    *v = x.kind == 2 ? x.f : (double)x.i;
    return true;
}
/* gy e x^(e-1), 0 where e is 0 */
static dt_tensor *pow_base_grad(dt_grad *g, dt_tensor *gy) {
    dt_scope *s = g->s;
    dt_tensor *x = dt_grad_in(g, 0);
    double e;
    if (number_of(g, 1, &e)) {
        if (e == 0) return dt_zeros_like(s, gy, DT_DTYPE_NONE);
        if (e == 1) return gy;
        return dt_mul(s, gy, dt_mul(s, e == 2 ? x : dt_pow(s, x, e - 1), e));
    }
    dt_tensor *p = dt_grad_in(g, 1);
    return dt_where(s, dt_eq(s, p, 0), 0, dt_mul(s, gy, dt_mul(s, p, dt_pow(s, x, dt_sub(s, p, 1)))));
}
/* gy y log x, 0 where x is 0 and e >= 0 */
static dt_tensor *pow_exponent_grad(dt_grad *g, dt_tensor *gy) {
    dt_scope *s = g->s;
    dt_tensor *y = dt_grad_out(g, 0);
    double x;
    if (number_of(g, 0, &x)) {
        dt_tensor *r = dt_mul(s, gy, dt_mul(s, y, log(x)));
        return x == 0 ? dt_where(s, dt_ge(s, dt_grad_in(g, 1), 0), 0, r) : r;
    }
    dt_tensor *b = dt_grad_in(g, 0), *none = dt_logical_and(s, dt_eq(s, b, 0), dt_ge(s, dt_grad_in(g, 1), 0));
    return dt_where(s, none, 0, dt_mul(s, gy, dt_mul(s, y, dt_log(s, b))));
}
static void pow_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, pow_base_grad(g, gy));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, pow_exponent_grad(g, gy));
}
const dt_op dt_op_pow = {
    .sig = "pow(Value input, Value exponent) -> Tensor",
    .doc = "input raised to exponent, broadcast together.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_no_bool,
    .grad = pow_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_OUT(0),
    .inplace = true,
    DT_POINTWISE(pow),
};
/* In float64: both operands are cast. A number is made a tensor beside the other one. */
static dt_value as_f64(dt_scope *s, const dt_arg *a) {
    if (a->kind != DT_ARG_TENSOR) return dt_v_float(dt_arg_as_float(a, 0));
    return dt_v_tensor(dt_to_dtype(s, a->t, DT_float64));
}
static void float_power_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt_pow(s, as_f64(s, &a->a[0]), as_f64(s, &a->a[1])), out, n_out);
}
const dt_op dt_op_float_power = {
    .sig = "float_power(Value input, Value exponent) -> Tensor",
    .doc = "input raised to exponent in float64.",
    .where = DT_FN_METHOD,
    .compose = float_power_compose,
    .inplace = true,
};
static void square_grad(dt_grad *g) { dt_grad_set(g, 0, dt_mul(g->s, dt_grad_gy(g, 0), dt_mul(g->s, dt_grad_in(g, 0), 2))); }
const dt_op dt_op_square = {
    .sig = "square(Tensor input) -> Tensor",
    .doc = "The square of each element.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_no_bool,
    .grad = square_grad,
    .saves = DT_SAVE_IN(0),
    .inplace = true,
    DT_POINTWISE(square),
};

/* ---- rounding division. Of integers it fails late where a divisor is 0 (kernel int_division). ------------------------------------ */
#define DIVISION_KERNELS .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_pointwise}, {DT_CPU, DT_INTS_MASK, dt_cpu_int_division}}
static void zeros_grad(dt_grad *g) {
    for (int i = 0; i < 2; i++)
        if (dt_grad_needs(g, i)) dt_grad_set(g, i, dt_zeros_like(g->s, dt_grad_gy(g, 0), DT_DTYPE_NONE));
}
const dt_op dt_op_floor_divide = {
    .sig = "floor_divide(Value input, Value other) -> Tensor",
    .doc = "input / other rounded down. A zero divisor of integers is a late error.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_no_bool,
    .place = dt_place_pointwise,
    .grad = zeros_grad,
    .inplace = true,
    .pointwise = DT_PW_div_floor,
    DIVISION_KERNELS,
};
const dt_op dt_op__div_trunc = {
    .sig = "_div_trunc(Value input, Value other) -> Tensor",
    .doc = "input / other rounded towards zero. A zero divisor of integers is a late error.",
    .where = DT_HIDDEN,
    .infer = dt_infer_pointwise_no_bool,
    .place = dt_place_pointwise,
    .grad = zeros_grad,
    .inplace = true,
    .pointwise = DT_PW_div_trunc,
    DIVISION_KERNELS,
};
static void div_mode_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_value x = dt_arg_as_value(&a->a[0]), y = dt_arg_as_value(&a->a[1]);
    const char *mode = a->a[2].kind == DT_ARG_STR ? a->a[2].s : NULL;
    if (!mode)
        dt_compose_one(dt_div(s, x, y), out, n_out);
    else if (!strcmp(mode, "floor"))
        dt_compose_one(dt_floor_divide(s, x, y), out, n_out);
    else if (!strcmp(mode, "trunc"))
        dt_compose_one(dt__div_trunc(s, x, y), out, n_out);
    else
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "div: expected rounding_mode to be one of None, 'trunc', or 'floor' but found '%s'", mode));
}
const dt_op dt_op_div_mode = {
    .sig = "div.mode(Value input, Value other, *, str? rounding_mode) -> Tensor",
    .doc = "input / other; rounding_mode 'floor' rounds down, 'trunc' towards zero, None not at all.",
    .where = DT_FN_METHOD,
    .compose = div_mode_compose,
    .inplace = true,
};

/* remainder has the sign of other, fmod that of input */
static void remainder_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gy);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_neg(g->s, dt_mul(g->s, gy, dt_floor_divide(g->s, dt_grad_value(g, 0), dt_grad_in(g, 1)))));
}
const dt_op dt_op_remainder = {
    .sig = "remainder(Value input, Value other) -> Tensor",
    .doc = "The remainder of input / other, with other's sign. A zero divisor of integers is a late error.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_no_bool,
    .place = dt_place_pointwise,
    .grad = remainder_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .inplace = true,
    .pointwise = DT_PW_remainder,
    DIVISION_KERNELS,
};
static void fmod_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gy);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_neg(g->s, dt_mul(g->s, gy, dt__div_trunc(g->s, dt_grad_value(g, 0), dt_grad_in(g, 1)))));
}
const dt_op dt_op_fmod = {
    .sig = "fmod(Value input, Value other) -> Tensor",
    .doc = "The remainder of input / other, with input's sign. A zero divisor of integers is a late error.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_no_bool,
    .place = dt_place_pointwise,
    .grad = fmod_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .inplace = true,
    .pointwise = DT_PW_fmod,
    DIVISION_KERNELS,
};

/* ---- three operands ----------------------------------------------------------------------------------------------------------------- */
static void lerp_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0);
    dt_value w = dt_grad_value(g, 2);
    dt_tensor *end = dt_mul(s, gy, w);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_sub(s, gy, end));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, end);
    if (dt_grad_needs(g, 2)) dt_grad_set(g, 2, dt_mul(s, gy, dt_sub(s, dt_grad_in(g, 1), dt_grad_in(g, 0))));
}
const dt_op dt_op_lerp = {
    .sig = "lerp(Tensor input, Tensor end, Value weight) -> Tensor",
    .doc = "input + weight * (end - input).",
    .where = DT_FN_METHOD,
    .infer = dt_infer_float_only,
    .grad = lerp_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .inplace = true,
    DT_POINTWISE(lerp),
};
/* The result type is that of the tensors; value must fit into it. */
static dt_status addc_infer(dt_node *n) {
    DT_TRY(dt_infer_pointwise(n));
    dt_dtype t = dt_result_type(n, 0, 3);
    if (t == DT_bool || (n->op == &dt_op_addcdiv && !dt_dtype_is_float(t)))
        return dt_fail(DT_E_DTYPE, "%s: not supported for %s tensors", dt_op_name(n->op), dt_dtype_name(t));
    if (n->in[3]->dtype == DT_float64 && !dt_dtype_is_float(t))
        return dt_fail(DT_E_DTYPE, "%s: value cannot be a floating point number when the tensors are of type %s", dt_op_name(n->op), dt_dtype_name(t));
    n->out[0].dtype = t;
    for (int i = 0; i < 4; i++) n->cast[i] = (uint8_t)t;
    return DT_OK;
}
static void addcmul_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0), *gv = dt_mul(s, gy, dt_grad_scalar(g, 3));
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gy);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_mul(s, gv, dt_grad_in(g, 2)));
    if (dt_grad_needs(g, 2)) dt_grad_set(g, 2, dt_mul(s, gv, dt_grad_in(g, 1)));
}
const dt_op dt_op_addcmul = {
    .sig = "addcmul(Tensor input, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
    .doc = "input + value * tensor1 * tensor2.",
    .where = DT_FN_METHOD,
    .infer = addc_infer,
    .grad = addcmul_grad,
    .saves = DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .inplace = true,
    DT_POINTWISE(addcmul),
};
static void addcdiv_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0), *b = dt_grad_in(g, 2), *gv = dt_div(s, dt_mul(s, gy, dt_grad_scalar(g, 3)), b);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gy);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, gv);
    if (dt_grad_needs(g, 2)) dt_grad_set(g, 2, dt_neg(s, dt_mul(s, gv, dt_div(s, dt_grad_in(g, 1), b))));
}
const dt_op dt_op_addcdiv = {
    .sig = "addcdiv(Tensor input, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
    .doc = "input + value * tensor1 / tensor2, for float tensors.",
    .where = DT_FN_METHOD,
    .infer = addc_infer,
    .grad = addcdiv_grad,
    .saves = DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .inplace = true,
    DT_POINTWISE(addcdiv),
};

/* ---- integers ------------------------------------------------------------------------------------------------------------------------ */
static dt_status ints_infer(dt_node *n) {
    DT_TRY(dt_infer_pointwise(n));
    if (!dt_dtype_is_int(n->out[0].dtype))
        return dt_fail(DT_E_DTYPE, "%s: not implemented for %s: an integer tensor is expected", dt_op_name(n->op), dt_dtype_name(n->out[0].dtype));
    return DT_OK;
}
const dt_op dt_op_gcd = {
    .sig = "gcd(Tensor input, Tensor other) -> Tensor",
    .doc = "The greatest common divisor of each pair of integers; gcd(0, 0) = 0.",
    .where = DT_FN_METHOD,
    .infer = ints_infer,
    .inplace = true,
    DT_POINTWISE(gcd),
};
const dt_op dt_op_lcm = {
    .sig = "lcm(Tensor input, Tensor other) -> Tensor",
    .doc = "The least common multiple of each pair of integers; 0 where one is 0.",
    .where = DT_FN_METHOD,
    .infer = ints_infer,
    .inplace = true,
    DT_POINTWISE(lcm),
};
static dt_status bits_infer(dt_node *n) {
    DT_TRY(dt_infer_pointwise(n));
    if (dt_dtype_is_float(n->out[0].dtype))
        return dt_fail(DT_E_DTYPE, "%s: not implemented for %s: an integer or bool tensor is expected", dt_op_name(n->op), dt_dtype_name(n->out[0].dtype));
    return DT_OK;
}
#define BITS(code) .where = DT_FN_METHOD, .infer = bits_infer, .inplace = true, DT_POINTWISE(code)
const dt_op dt_op_bitwise_and = {
    .sig = "bitwise_and(Value input, Value other) -> Tensor",
    .doc = "Bits set in both; for bools, logical and.",
    BITS(bitwise_and),
};
const dt_op dt_op_bitwise_or = {
    .sig = "bitwise_or(Value input, Value other) -> Tensor",
    .doc = "Bits set in either; for bools, logical or.",
    BITS(bitwise_or),
};
const dt_op dt_op_bitwise_xor = {
    .sig = "bitwise_xor(Value input, Value other) -> Tensor",
    .doc = "Bits set in one but not both; for bools, logical exclusive or.",
    BITS(bitwise_xor),
};
const dt_op dt_op_bitwise_not = {
    .sig = "bitwise_not(Tensor input) -> Tensor",
    .doc = "Every bit inverted; for bools, logical not.",
    BITS(bitwise_not),
};
const dt_op dt_op_bitwise_left_shift = {
    .sig = "bitwise_left_shift(Value input, Value other) -> Tensor",
    .doc = "input * 2^other: bits moved up, zeros from below.",
    .where = DT_FN_METHOD,
    .infer = ints_infer,
    .inplace = true,
    DT_POINTWISE(bitwise_left_shift),
};
const dt_op dt_op_bitwise_right_shift = {
    .sig = "bitwise_right_shift(Value input, Value other) -> Tensor",
    .doc = "Bits moved down; the sign is kept.",
    .where = DT_FN_METHOD,
    .infer = ints_infer,
    .inplace = true,
    DT_POINTWISE(bitwise_right_shift),
};
