/* Maximum, minimum, clamp; rounding; odds and ends of one or two operands. */
#include <float.h>
#include <math.h>

#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

DT_CPU_KERNEL(clone);

/* ---- maximum, minimum: where both are equal each gets half the gradient ------------------------------------------------------------ */
static void extremum_grad(dt_grad *g, dt_tensor *first_wins, dt_tensor *second_wins) {
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0), *half = dt_where(s, dt_eq(s, dt_grad_in(g, 0), dt_grad_in(g, 1)), dt_mul(s, gy, 0.5), gy);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_masked_fill(s, half, second_wins, 0));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_masked_fill(s, half, first_wins, 0));
}
static void maximum_grad(dt_grad *g) {
    dt_tensor *a = dt_grad_in(g, 0), *b = dt_grad_in(g, 1);
    extremum_grad(g, dt_gt(g->s, a, b), dt_lt(g->s, a, b));
}
static void minimum_grad(dt_grad *g) {
    dt_tensor *a = dt_grad_in(g, 0), *b = dt_grad_in(g, 1);
    extremum_grad(g, dt_lt(g->s, a, b), dt_gt(g->s, a, b));
}
#define EXTREMUM(code) .where = DT_FN_METHOD, .infer = dt_infer_pointwise, .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1), DT_POINTWISE(code)
const dt_op dt_op_maximum = {
    .sig = "maximum(Tensor input, Tensor other) -> Tensor",
    .doc = "The larger of each pair; a NaN wins.",
    .grad = maximum_grad,
    EXTREMUM(maximum),
};
const dt_op dt_op_minimum = {
    .sig = "minimum(Tensor input, Tensor other) -> Tensor",
    .doc = "The smaller of each pair; a NaN wins.",
    .grad = minimum_grad,
    EXTREMUM(minimum),
};
/* fmax, fmin: input's unless other's is better or input is a NaN */
static void fext_grad(dt_grad *g, dt_tensor *wins) {
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0), *first = dt_logical_or(s, wins, dt_isnan(s, dt_grad_in(g, 1)));
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_where(s, first, gy, 0));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_where(s, first, 0, gy));
}
static void fmax_grad(dt_grad *g) { fext_grad(g, dt_ge(g->s, dt_grad_in(g, 0), dt_grad_in(g, 1))); }
static void fmin_grad(dt_grad *g) { fext_grad(g, dt_le(g->s, dt_grad_in(g, 0), dt_grad_in(g, 1))); }
const dt_op dt_op_fmax = {
    .sig = "fmax(Tensor input, Tensor other) -> Tensor",
    .doc = "The larger of each pair; a NaN loses.",
    .grad = fmax_grad,
    EXTREMUM(fmax),
};
const dt_op dt_op_fmin = {
    .sig = "fmin(Tensor input, Tensor other) -> Tensor",
    .doc = "The smaller of each pair; a NaN loses.",
    .grad = fmin_grad,
    EXTREMUM(fmin),
};

/* ---- clamp ---------------------------------------------------------------------------------------------------------------------------- */
static void clamp_min_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0), *keep = dt_ge(s, dt_grad_in(g, 0), dt_grad_value(g, 1));
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_where(s, keep, gy, 0));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_where(s, keep, 0, gy));
}
const dt_op dt_op_clamp_min = {
    .sig = "clamp_min(Tensor input, Value min) -> Tensor",
    .doc = "Elements below min become min.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_no_bool,
    .grad = clamp_min_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .inplace = true,
    DT_POINTWISE(maximum),
};
static void clamp_max_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0), *keep = dt_le(s, dt_grad_in(g, 0), dt_grad_value(g, 1));
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_where(s, keep, gy, 0));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_where(s, keep, 0, gy));
}
const dt_op dt_op_clamp_max = {
    .sig = "clamp_max(Tensor input, Value max) -> Tensor",
    .doc = "Elements above max become max.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_no_bool,
    .grad = clamp_max_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .inplace = true,
    DT_POINTWISE(minimum),
};
static void clamp_both_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0), *x = dt_grad_in(g, 0);
    dt_value lo = dt_grad_value(g, 1), hi = dt_grad_value(g, 2);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_where(s, dt_logical_and(s, dt_ge(s, x, lo), dt_le(s, x, hi)), gy, 0));
    if (!dt_grad_needs(g, 1) && !dt_grad_needs(g, 2)) return;
    dt_tensor *low = dt_lt(s, x, lo), *high = dt_gt(s, x, hi), *turned = lo.kind == 1 ? dt_gt(s, lo.t, hi) : dt_lt(s, hi.t, lo);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_where(s, dt_logical_and(s, low, dt_logical_not(s, turned)), gy, 0));
    if (dt_grad_needs(g, 2)) dt_grad_set(g, 2, dt_where(s, dt_logical_or(s, high, turned), gy, 0));
}
const dt_op dt_op__clamp = {
    .sig = "_clamp(Tensor input, Value min, Value max) -> Tensor",
    .doc = "Elements outside [min, max] become the bound they passed.",
    .where = DT_HIDDEN,
    .infer = dt_infer_pointwise_no_bool,
    .grad = clamp_both_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .inplace = true,
    DT_POINTWISE(clamp),
};
static void clamp_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_value lo = dt_arg_as_value(&a->a[1]), hi = dt_arg_as_value(&a->a[2]);
    dt_tensor *x = a->a[0].t;
    if (!lo.kind && !hi.kind)
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "clamp: At least one of 'min' or 'max' must not be None"));
    else
        dt_compose_one(!hi.kind ? dt_clamp_min(s, x, lo) : !lo.kind ? dt_clamp_max(s, x, hi) : dt__clamp(s, x, lo, hi), out, n_out);
}
const dt_op dt_op_clamp = {
    .sig = "clamp(Tensor input, Value? min=None, Value? max=None) -> Tensor",
    .doc = "Elements below min become min, those above max become max; either bound (a number or a tensor) may be left out.",
    .also = "clip",
    .where = DT_FN_METHOD,
    .compose = clamp_compose,
    .inplace = true,
};

/* ---- rounding: no gradient passes ----------------------------------------------------------------------------------------------------- */
static void zero_grad(dt_grad *g) { dt_grad_set(g, 0, dt_zeros_like(g->s, dt_grad_gy(g, 0), DT_DTYPE_NONE)); }
/* Integers stay as they are: the kernel copies. */
#define ROUNDING(code)                                                                                                                                      \
    .where = DT_FN_METHOD, .infer = dt_infer_pointwise_no_bool, .place = dt_place_pointwise, .grad = zero_grad, .inplace = true, .pointwise = DT_PW_##code, \
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_pointwise}, {DT_CPU, DT_INTS_MASK, dt_cpu_clone}}
const dt_op dt_op_floor = {
    .sig = "floor(Tensor input) -> Tensor",
    .doc = "Each element rounded down.",
    ROUNDING(floor),
};
const dt_op dt_op_ceil = {
    .sig = "ceil(Tensor input) -> Tensor",
    .doc = "Each element rounded up.",
    ROUNDING(ceil),
};
const dt_op dt_op_trunc = {
    .sig = "trunc(Tensor input) -> Tensor",
    .doc = "Each element rounded towards zero.",
    .also = "fix",
    ROUNDING(trunc),
};
const dt_op dt_op_round = {
    .sig = "round(Tensor input) -> Tensor",
    .doc = "Each element rounded to the nearest integer, halves to the even one.",
    .also = "special.round",
    ROUNDING(round),
};
const dt_op dt_op_round_decimals = {
    .sig = "round.decimals(Tensor input, *, int decimals) -> Tensor",
    .doc = "Each element rounded to `decimals` decimal places.",
    .attrs = DT_PW_INT1(decimals),
    ROUNDING(round_decimals),
};
static void pass_grad(dt_grad *g) { dt_grad_set(g, 0, dt_grad_gy(g, 0)); }
const dt_op dt_op_frac = {
    .sig = "frac(Tensor input) -> Tensor",
    .doc = "The part after the decimal point, with the element's sign.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_float_only,
    .grad = pass_grad,
    .inplace = true,
    DT_POINTWISE(frac),
};

/* ---- odds and ends ----------------------------------------------------------------------------------------------------------------------- */
/* What is not given: 0 for NaN, the largest and the smallest finite value for the infinities. */
static dt_status nan_to_num_infer(dt_node *n) {
    dt_pw_floats *a = n->attr;
    DT_TRY(dt_infer_pointwise(n));
    dt_dtype t = n->out[0].dtype;
    double top = t == DT_float64 ? DBL_MAX : t == DT_float16 ? 65504.0 : t == DT_bfloat16 ? 3.3895313892515355e38 : (double)FLT_MAX;
    if (a->a != a->a) a->a = 0.0;
    if (a->b != a->b) a->b = top;
    if (a->c != a->c) a->c = -top;
    return DT_OK;
}
static void nan_to_num_grad(dt_grad *g) { dt_grad_set(g, 0, dt_where(g->s, dt_isfinite(g->s, dt_grad_in(g, 0)), dt_grad_gy(g, 0), 0)); }
const dt_op dt_op_nan_to_num = {
    .sig = "nan_to_num(Tensor input, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor",
    .doc = "NaN, inf and -inf replaced by nan (default 0), posinf and neginf (default: the dtype's largest and smallest finite values).",
    .where = DT_FN_METHOD,
    .attrs = DT_PW_FLOATS3(nan, posinf, neginf),
    .infer = nan_to_num_infer,
    .place = dt_place_pointwise,
    .grad = nan_to_num_grad,
    .saves = DT_SAVE_IN(0),
    .inplace = true,
    .pointwise = DT_PW_nan_to_num,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_pointwise}, {DT_CPU, DT_ANY, dt_cpu_clone}},
};
/* gy sign(y) sign(x), which is 0 where x is 0 */
static void copysign_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_mul(s, gy, dt_mul(s, dt_sign(s, dt_grad_in(g, 0)), dt_sign(s, dt_grad_out(g, 0)))));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_zeros_like(s, gy, DT_DTYPE_NONE));
}
const dt_op dt_op_copysign = {
    .sig = "copysign(Tensor input, Value other) -> Tensor",
    .doc = "input's magnitude with other's sign.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_float,
    .grad = copysign_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .inplace = true,
    DT_POINTWISE(copysign),
};
static dt_status same_dtypes(dt_node *n) {
    if (n->in[0]->dtype != n->in[1]->dtype)
        return dt_fail(DT_E_DTYPE, "%s: operands of different dtypes, %s and %s", dt_op_name(n->op), dt_dtype_name((dt_dtype)n->in[0]->dtype),
                       dt_dtype_name((dt_dtype)n->in[1]->dtype));
    return dt_infer_pointwise(n);
}
const dt_op dt_op_heaviside = {
    .sig = "heaviside(Tensor input, Tensor values) -> Tensor",
    .doc = "0 where input < 0, values where it is 0, 1 where it is > 0.",
    .where = DT_FN_METHOD,
    .infer = same_dtypes,
    .inplace = true,
    DT_POINTWISE(heaviside),
};
static dt_status nextafter_infer(dt_node *n) {
    DT_TRY(dt_infer_float_only(n));
    if (dt_dtype_size(n->out[0].dtype) == 2) return dt_fail(DT_E_DTYPE, "nextafter: not implemented for %s", dt_dtype_name(n->out[0].dtype));
    return DT_OK;
}
static void nextafter_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gy);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_zeros_like(g->s, gy, DT_DTYPE_NONE));
}
const dt_op dt_op_nextafter = {
    .sig = "nextafter(Tensor input, Tensor other) -> Tensor",
    .doc = "The next representable number after input towards other.",
    .where = DT_FN_METHOD,
    .infer = nextafter_infer,
    .grad = nextafter_grad,
    .inplace = true,
    DT_POINTWISE(nextafter),
};
static void deg2rad_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt_mul(s, a->a[0].t, 0.017453292519943295), out, n_out);
}
const dt_op dt_op_deg2rad = {
    .sig = "deg2rad(Tensor input) -> Tensor",
    .doc = "Degrees to radians.",
    .where = DT_FN_METHOD,
    .compose = deg2rad_compose,
    .inplace = true,
};
static void rad2deg_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt_mul(s, a->a[0].t, 57.295779513082323), out, n_out);
}
const dt_op dt_op_rad2deg = {
    .sig = "rad2deg(Tensor input) -> Tensor",
    .doc = "Radians to degrees.",
    .where = DT_FN_METHOD,
    .compose = rad2deg_compose,
    .inplace = true,
};
static void itself_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    (void)s;
    dt_compose_one(a->a[0].t, out, n_out);
}
const dt_op dt_op_positive = {
    .sig = "positive(Tensor input) -> Tensor",
    .doc = "input itself.",
    .where = DT_FN_METHOD,
    .compose = itself_compose,
};
const dt_op dt_op_real = {
    .sig = "real(Tensor input) -> Tensor",
    .doc = "input itself: tensors are real.",
    .also = "conj,conj_physical,resolve_conj,resolve_neg",
    .where = DT_FN_METHOD,
    .compose = itself_compose,
};
/* input 2^other */
static void ldexp_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt_mul(s, a->a[0].t, dt_pow(s, 2.0, a->a[1].t)), out, n_out);
}
const dt_op dt_op_ldexp = {
    .sig = "ldexp(Tensor input, Tensor other) -> Tensor",
    .doc = "input * 2^other.",
    .where = DT_FN_METHOD,
    .compose = ldexp_compose,
    .inplace = true,
};
