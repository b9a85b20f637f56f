/* Special functions: of probability, gamma's family, Bessel functions. */
#include <math.h>

#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

#define FUNCTION(code) .where = DT_FN_METHOD, .infer = dt_infer_pointwise_float, .inplace = true, DT_POINTWISE(code)
#define SPECIAL(code) .where = DT_FN, .infer = dt_infer_pointwise_float, DT_POINTWISE(code)
#define X dt_grad_in(g, 0)
#define Y dt_grad_out(g, 0)
static dt_tensor *times(dt_grad *g, dt_tensor *d) { return dt_mul(g->s, dt_grad_gy(g, 0), d); }

/* ---- the error function and the normal distribution ------------------------------------------------------------------------------------ */
#define TWO_OVER_SQRT_PI 1.12837916709551257390
#define SQRT_2PI 2.50662827463100050242
/* e^(k x^2) */
static dt_tensor *gauss(dt_grad *g, dt_tensor *x, double k) { return dt_exp(g->s, dt_mul(g->s, dt_mul(g->s, x, x), k)); }

static void erf_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_mul(g->s, gauss(g, X, -1), TWO_OVER_SQRT_PI))); }
const dt_op dt_op_erf = {
    .sig = "erf(Tensor input) -> Tensor",
    .doc = "The error function of each element.",
    .also = "special.erf",
    .grad = erf_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(erf),
};
static void erfc_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_mul(g->s, gauss(g, X, -1), -TWO_OVER_SQRT_PI))); }
const dt_op dt_op_erfc = {
    .sig = "erfc(Tensor input) -> Tensor",
    .doc = "1 - erf(x) of each element, without cancellation.",
    .also = "special.erfc",
    .grad = erfc_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(erfc),
};
static void erfinv_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_mul(g->s, gauss(g, Y, 1), 1 / TWO_OVER_SQRT_PI))); }
const dt_op dt_op_erfinv = {
    .sig = "erfinv(Tensor input) -> Tensor",
    .doc = "The inverse of erf on (-1, 1); infinite at the ends, NaN outside.",
    .also = "special.erfinv",
    .grad = erfinv_grad,
    .saves = DT_SAVE_OUT(0),
    FUNCTION(erfinv),
};
/* d/dx erfcx = 2 x erfcx - 2 / sqrt(pi) */
static void erfcx_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_sub(g->s, dt_mul(g->s, dt_mul(g->s, X, Y), 2), TWO_OVER_SQRT_PI))); }
const dt_op dt_op_special_erfcx = {
    .sig = "special_erfcx(Tensor input) -> Tensor",
    .doc = "e^(x^2) erfc(x) of each element.",
    .also = "special.erfcx",
    .grad = erfcx_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    SPECIAL(erfcx),
};
static void ndtr_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt_mul(s, dt_erfc(s, dt_mul(s, a->a[0].t, -0.70710678118654752440)), 0.5), out, n_out);
}
const dt_op dt_op_special_ndtr = {
    .sig = "special_ndtr(Tensor input) -> Tensor",
    .doc = "The normal distribution function of each element.",
    .also = "special.ndtr",
    .where = DT_FN,
    .compose = ndtr_compose,
};
static void ndtri_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_mul(g->s, gauss(g, Y, 0.5), SQRT_2PI))); }
const dt_op dt_op_special_ndtri = {
    .sig = "special_ndtri(Tensor input) -> Tensor",
    .doc = "The inverse of the normal distribution function.",
    .also = "special.ndtri",
    .grad = ndtri_grad,
    .saves = DT_SAVE_OUT(0),
    SPECIAL(ndtri),
};
/* phi / Phi = sqrt(2/pi) / erfcx(-x / sqrt 2) */
static void log_ndtr_grad(dt_grad *g) {
    dt_grad_set(g, 0, dt_div(g->s, dt_mul(g->s, dt_grad_gy(g, 0), 0.79788456080286535588), dt_special_erfcx(g->s, dt_mul(g->s, X, -0.70710678118654752440))));
}
const dt_op dt_op_special_log_ndtr = {
    .sig = "special_log_ndtr(Tensor input) -> Tensor",
    .doc = "The logarithm of the normal distribution function.",
    .also = "special.log_ndtr",
    .grad = log_ndtr_grad,
    .saves = DT_SAVE_IN(0),
    SPECIAL(log_ndtr),
};
static void entr_grad(dt_grad *g) { dt_grad_set(g, 0, dt_neg(g->s, times(g, dt_add(g->s, dt_log(g->s, X), 1)))); }
const dt_op dt_op_special_entr = {
    .sig = "special_entr(Tensor input) -> Tensor",
    .doc = "-x log x of each element, 0 at 0, -inf below.",
    .also = "special.entr",
    .grad = entr_grad,
    .saves = DT_SAVE_IN(0),
    SPECIAL(entr),
};

/* log(x / (1 - x)); gradient gy / (x (1 - x)): with eps 0 outside [eps, 1 - eps], without it NaN outside [0, 1] */
static void logit_grad(dt_grad *g) {
    dt_scope *s = g->s;
    const dt_pw_floats *a = dt_grad_attr(g);
    dt_tensor *x = X, *d = dt_div(s, dt_grad_gy(g, 0), dt_mul(s, x, dt_rsub(s, x, 1)));
    double eps = a->a == a->a ? a->a : 0.0;
    dt_tensor *out = dt_logical_or(s, dt_lt(s, x, eps), dt_gt(s, x, 1 - eps));
    dt_grad_set(g, 0, dt_masked_fill(s, d, out, a->a == a->a ? 0.0 : NAN));
}
const dt_op dt_op_logit = {
    .sig = "logit(Tensor input, float? eps=None) -> Tensor",
    .doc = "log(x / (1 - x)) of each element, x clamped to [eps, 1 - eps] if eps is given.",
    .also = "special.logit",
    .attrs = DT_PW_FLOATS1(eps),
    .grad = logit_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(logit),
};

/* ---- gamma's family -------------------------------------------------------------------------------------------------------------------------- */
static void lgamma_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_digamma(g->s, X))); }
const dt_op dt_op_lgamma = {
    .sig = "lgamma(Tensor input) -> Tensor",
    .doc = "log |Gamma(x)| of each element.",
    .also = "special.gammaln",
    .grad = lgamma_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(lgamma),
};
static void digamma_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_polygamma(g->s, 1, X))); }
const dt_op dt_op_digamma = {
    .sig = "digamma(Tensor input) -> Tensor",
    .doc = "The logarithmic derivative of Gamma at each element.",
    .also = "special.digamma,special.psi",
    .grad = digamma_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(digamma),
};
static dt_status polygamma_infer(dt_node *n) {
    if (((const dt_pw_int *)n->attr)->a < 0)
        return dt_fail(DT_E_SHAPE, "polygamma: polygamma(n, x) does not support negative n, got %lld", (long long)((const dt_pw_int *)n->attr)->a);
    return dt_infer_pointwise_float(n);
}
static void polygamma_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_polygamma(g->s, ((const dt_pw_int *)dt_grad_attr(g))->a + 1, X))); }
const dt_op dt_op_polygamma = {
    .sig = "polygamma(int n, Tensor input) -> Tensor",
    .doc = "The n-th derivative of digamma at each element, n >= 0.",
    .also = "special.polygamma",
    .where = DT_FN_METHOD,
    .attrs = DT_PW_INT1(n),
    .infer = polygamma_infer,
    .grad = polygamma_grad,
    .saves = DT_SAVE_IN(0),
    .inplace = true,
    DT_POINTWISE(polygamma),
};
static void zeta_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_value x = dt_grad_value(g, 0), q = dt_grad_value(g, 1);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_neg(s, times(g, dt_mul(s, x, dt_special_zeta(s, dt_add(s, x, 1), q)))));
}
const dt_op dt_op_special_zeta = {
    .sig = "special_zeta(Value input, Value other) -> Tensor",
    .doc = "The Hurwitz zeta function: sum over k >= 0 of (k + other)^-input.",
    .also = "special.zeta",
    .grad = zeta_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    SPECIAL(zeta),
};
/* log of the multivariate gamma function: p(p-1)/4 log pi + sum over j < p of lgamma(x - j/2) */
static void mvlgamma_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    int64_t p = a->a[1].i;
    if (p > 1000) {
        dt_scope_fail(s, dt_fail(DT_E_VALUE, "mvlgamma: p is at most 1000, got %lld", (long long)p));
        return;
    }
    if (p < 1) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "mvlgamma: p has to be greater than or equal to 1, got %lld", (long long)p));
        return;
    }
    dt_tensor *sum = dt_lgamma(s, a->a[0].t);
    for (int64_t j = 1; j < p && !dt_scope_status(s); j++) sum = dt_add(s, sum, dt_lgamma(s, dt_sub(s, a->a[0].t, 0.5 * (double)j)));
    dt_compose_one(dt_add(s, sum, 0.25 * (double)(p * (p - 1)) * 1.14472988584940017414), out, n_out);
}
const dt_op dt_op_mvlgamma = {
    .sig = "mvlgamma(Tensor input, int p) -> Tensor",
    .doc = "The logarithm of the multivariate gamma function of dimension p.",
    .also = "special.multigammaln",
    .where = DT_FN_METHOD,
    .compose = mvlgamma_compose,
    .inplace = true,
};

/* ---- modified Bessel functions: the e forms are scaled by e^-|x| ------------------------------------------------------------------------------ */
static void i0_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_special_i1(g->s, X))); }
const dt_op dt_op_i0 = {
    .sig = "i0(Tensor input) -> Tensor",
    .doc = "Modified Bessel function of the first kind, order 0.",
    .also = "special.i0,special.modified_bessel_i0",
    .grad = i0_grad,
    .saves = DT_SAVE_IN(0),
    FUNCTION(i0),
};
static void i0e_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_grad_set(g, 0, times(g, dt_sub(s, dt_special_i1e(s, X), dt_mul(s, dt_sign(s, X), Y))));
}
const dt_op dt_op_special_i0e = {
    .sig = "special_i0e(Tensor input) -> Tensor",
    .doc = "e^-|x| i0(x) of each element.",
    .also = "special.i0e",
    .grad = i0e_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    SPECIAL(i0e),
};
/* y / x, 1/2 at 0 */
static dt_tensor *ratio(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *zero = dt_eq(s, X, 0);
    return dt_masked_fill(s, dt_div(s, Y, dt_masked_fill(s, X, zero, 1)), zero, 0.5);
}
static void i1_grad(dt_grad *g) { dt_grad_set(g, 0, times(g, dt_sub(g->s, dt_i0(g->s, X), ratio(g)))); }
const dt_op dt_op_special_i1 = {
    .sig = "special_i1(Tensor input) -> Tensor",
    .doc = "Modified Bessel function of the first kind, order 1.",
    .also = "special.i1,special.modified_bessel_i1",
    .grad = i1_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    SPECIAL(i1),
};
static void i1e_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_grad_set(g, 0, times(g, dt_sub(s, dt_sub(s, dt_special_i0e(s, X), ratio(g)), dt_mul(s, dt_sign(s, X), Y))));
}
const dt_op dt_op_special_i1e = {
    .sig = "special_i1e(Tensor input) -> Tensor",
    .doc = "e^-|x| i1(x) of each element.",
    .also = "special.i1e",
    .grad = i1e_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    SPECIAL(i1e),
};
