/* Special functions without gradients with respect to all their arguments: Bessel functions, Airy's, incomplete gamma functions, polynomials. */
#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

#define SPECIAL(code) .where = DT_FN, .infer = dt_infer_pointwise_float, DT_POINTWISE(code)
const dt_op dt_op_special_bessel_j0 = {
    .sig = "special_bessel_j0(Tensor input) -> Tensor",
    .doc = "Bessel function of the first kind, order 0.",
    .also = "special.bessel_j0",
    SPECIAL(bessel_j0),
};
const dt_op dt_op_special_bessel_j1 = {
    .sig = "special_bessel_j1(Tensor input) -> Tensor",
    .doc = "Bessel function of the first kind, order 1.",
    .also = "special.bessel_j1",
    SPECIAL(bessel_j1),
};
const dt_op dt_op_special_bessel_y0 = {
    .sig = "special_bessel_y0(Tensor input) -> Tensor",
    .doc = "Bessel function of the second kind, order 0.",
    .also = "special.bessel_y0",
    SPECIAL(bessel_y0),
};
const dt_op dt_op_special_bessel_y1 = {
    .sig = "special_bessel_y1(Tensor input) -> Tensor",
    .doc = "Bessel function of the second kind, order 1.",
    .also = "special.bessel_y1",
    SPECIAL(bessel_y1),
};
const dt_op dt_op_special_spherical_bessel_j0 = {
    .sig = "special_spherical_bessel_j0(Tensor input) -> Tensor",
    .doc = "Spherical Bessel function of order 0: sin(x) / x.",
    .also = "special.spherical_bessel_j0",
    SPECIAL(spherical_bessel_j0),
};
const dt_op dt_op_special_modified_bessel_k0 = {
    .sig = "special_modified_bessel_k0(Tensor input) -> Tensor",
    .doc = "Modified Bessel function of the second kind, order 0.",
    .also = "special.modified_bessel_k0",
    SPECIAL(bessel_k0),
};
const dt_op dt_op_special_modified_bessel_k1 = {
    .sig = "special_modified_bessel_k1(Tensor input) -> Tensor",
    .doc = "Modified Bessel function of the second kind, order 1.",
    .also = "special.modified_bessel_k1",
    SPECIAL(bessel_k1),
};
const dt_op dt_op_special_scaled_modified_bessel_k0 = {
    .sig = "special_scaled_modified_bessel_k0(Tensor input) -> Tensor",
    .doc = "e^x modified_bessel_k0(x) of each element.",
    .also = "special.scaled_modified_bessel_k0",
    SPECIAL(bessel_k0e),
};
const dt_op dt_op_special_scaled_modified_bessel_k1 = {
    .sig = "special_scaled_modified_bessel_k1(Tensor input) -> Tensor",
    .doc = "e^x modified_bessel_k1(x) of each element.",
    .also = "special.scaled_modified_bessel_k1",
    SPECIAL(bessel_k1e),
};
const dt_op dt_op_special_airy_ai = {
    .sig = "special_airy_ai(Tensor input) -> Tensor",
    .doc = "Airy's function Ai of each element.",
    .also = "special.airy_ai",
    SPECIAL(airy_ai),
};
const dt_op dt_op_special_chebyshev_polynomial_t = {
    .sig = "special_chebyshev_polynomial_t(Value input, Value n) -> Tensor",
    .doc = "Chebyshev polynomial of the first kind of degree n at each element.",
    .also = "special.chebyshev_polynomial_t",
    SPECIAL(chebyshev_t),
};
const dt_op dt_op_special_chebyshev_polynomial_u = {
    .sig = "special_chebyshev_polynomial_u(Value input, Value n) -> Tensor",
    .doc = "Chebyshev polynomial of the second kind of degree n at each element.",
    .also = "special.chebyshev_polynomial_u",
    SPECIAL(chebyshev_u),
};
const dt_op dt_op_special_chebyshev_polynomial_v = {
    .sig = "special_chebyshev_polynomial_v(Value input, Value n) -> Tensor",
    .doc = "Chebyshev polynomial of the third kind of degree n at each element.",
    .also = "special.chebyshev_polynomial_v",
    SPECIAL(chebyshev_v),
};
const dt_op dt_op_special_chebyshev_polynomial_w = {
    .sig = "special_chebyshev_polynomial_w(Value input, Value n) -> Tensor",
    .doc = "Chebyshev polynomial of the fourth kind of degree n at each element.",
    .also = "special.chebyshev_polynomial_w",
    SPECIAL(chebyshev_w),
};
const dt_op dt_op_special_shifted_chebyshev_polynomial_t = {
    .sig = "special_shifted_chebyshev_polynomial_t(Value input, Value n) -> Tensor",
    .doc = "Chebyshev polynomial of the first kind at 2 x - 1, of degree n at each element.",
    .also = "special.shifted_chebyshev_polynomial_t",
    SPECIAL(shifted_chebyshev_t),
};
const dt_op dt_op_special_shifted_chebyshev_polynomial_u = {
    .sig = "special_shifted_chebyshev_polynomial_u(Value input, Value n) -> Tensor",
    .doc = "Chebyshev polynomial of the second kind at 2 x - 1, of degree n at each element.",
    .also = "special.shifted_chebyshev_polynomial_u",
    SPECIAL(shifted_chebyshev_u),
};
const dt_op dt_op_special_shifted_chebyshev_polynomial_v = {
    .sig = "special_shifted_chebyshev_polynomial_v(Value input, Value n) -> Tensor",
    .doc = "Chebyshev polynomial of the third kind at 2 x - 1, of degree n at each element.",
    .also = "special.shifted_chebyshev_polynomial_v",
    SPECIAL(shifted_chebyshev_v),
};
const dt_op dt_op_special_shifted_chebyshev_polynomial_w = {
    .sig = "special_shifted_chebyshev_polynomial_w(Value input, Value n) -> Tensor",
    .doc = "Chebyshev polynomial of the fourth kind at 2 x - 1, of degree n at each element.",
    .also = "special.shifted_chebyshev_polynomial_w",
    SPECIAL(shifted_chebyshev_w),
};
const dt_op dt_op_special_hermite_polynomial_h = {
    .sig = "special_hermite_polynomial_h(Value input, Value n) -> Tensor",
    .doc = "Physicist's Hermite polynomial of degree n at each element.",
    .also = "special.hermite_polynomial_h",
    SPECIAL(hermite_h),
};
const dt_op dt_op_special_hermite_polynomial_he = {
    .sig = "special_hermite_polynomial_he(Value input, Value n) -> Tensor",
    .doc = "Probabilist's Hermite polynomial of degree n at each element.",
    .also = "special.hermite_polynomial_he",
    SPECIAL(hermite_he),
};
const dt_op dt_op_special_laguerre_polynomial_l = {
    .sig = "special_laguerre_polynomial_l(Value input, Value n) -> Tensor",
    .doc = "Laguerre polynomial of degree n at each element.",
    .also = "special.laguerre_polynomial_l",
    SPECIAL(laguerre_l),
};
const dt_op dt_op_special_legendre_polynomial_p = {
    .sig = "special_legendre_polynomial_p(Value input, Value n) -> Tensor",
    .doc = "Legendre polynomial of degree n at each element.",
    .also = "special.legendre_polynomial_p",
    SPECIAL(legendre_p),
};

/* ---- incomplete gamma functions: d/dx P(a, x) = x^(a-1) e^-x / Gamma(a) ------------------------------------------------------------------ */
static dt_tensor *density(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *a = dt_grad_in(g, 0), *x = dt_grad_in(g, 1);
    return dt_mul(s, dt_grad_gy(g, 0), dt_exp(s, dt_sub(s, dt_sub(s, dt_mul(s, dt_sub(s, a, 1), dt_log(s, x)), x), dt_lgamma(s, a))));
}
static void igamma_grad(dt_grad *g) {
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, density(g));
}
static void igammac_grad(dt_grad *g) {
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_neg(g->s, density(g)));
}
#define INCOMPLETE(code) .where = DT_FN_METHOD, .infer = dt_infer_float_only, .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1), .inplace = true, DT_POINTWISE(code)
const dt_op dt_op_igamma = {
    .sig = "igamma(Tensor input, Tensor other) -> Tensor",
    .doc = "The lower incomplete gamma function P(input, other); its gradient is with respect to other only.",
    .also = "special.gammainc",
    .grad = igamma_grad,
    INCOMPLETE(igamma),
};
const dt_op dt_op_igammac = {
    .sig = "igammac(Tensor input, Tensor other) -> Tensor",
    .doc = "The upper incomplete gamma function Q(input, other); its gradient is with respect to other only.",
    .also = "special.gammaincc",
    .grad = igammac_grad,
    INCOMPLETE(igammac),
};

/* ---- parts of a float ----------------------------------------------------------------------------------------------------------------------- */
static dt_status exponent_infer(dt_node *n) {
    DT_TRY(dt_infer_float_only(n));
    n->out[0].dtype = DT_int32;
    return DT_OK;
}
const dt_op dt_op__frexp_exponent = {
    .sig = "_frexp_exponent(Tensor input) -> Tensor",
    .doc = "e where x = m 2^e, 1/2 <= |m| < 1; 0 for 0, infinities and NaN.",
    .where = DT_HIDDEN,
    .infer = exponent_infer,
    DT_POINTWISE(frexp_exponent),
};
static void frexp_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *e = dt__frexp_exponent(s, a->a[0].t);
    out[0] = dt_keep(dt_mul(s, a->a[0].t, dt_to_dtype(s, dt_pow(s, 2.0, dt_neg(s, dt_to_dtype(s, e, DT_float64))), dt_dtype_of(a->a[0].t))));
    out[1] = dt_keep(e);
    *n_out = 2;
}
const dt_op dt_op_frexp = {
    .sig = "frexp(Tensor input) -> (Tensor mantissa, Tensor exponent)",
    .doc = "input = mantissa * 2^exponent with 1/2 <= |mantissa| < 1; exponent is int32.",
    .where = DT_FN_METHOD,
    .compose = frexp_compose,
};
static void angle_grad(dt_grad *g) { dt_grad_set(g, 0, dt_zeros_like(g->s, dt_grad_gy(g, 0), DT_DTYPE_NONE)); }
const dt_op dt_op_angle = {
    .sig = "angle(Tensor input) -> Tensor",
    .doc = "The argument of each number: pi where it is negative, else 0.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_float,
    .grad = angle_grad,
    DT_POINTWISE(angle),
};
