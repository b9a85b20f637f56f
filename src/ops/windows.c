/* Window functions: factories composed in float64 from arange, then cast. A periodic window of n points is the symmetric one of n + 1 without its
 * last point. */
#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

/* 0 … n - 1, scaled by step; the number of steps of the symmetric window in *span. NULL and an error if n is negative or dtype no float. */
static dt_tensor *points(dt_scope *s, const char *op, int64_t n, bool periodic, int dtype, const struct dt_spec *spec, double *span) {
    if (n < 0) return dt_scope_fail(s, dt_fail(DT_E_SHAPE, "%s: requires non-negative window_length, got window_length=%lld", op, (long long)n)), NULL;
    if (!dt_dtype_is_float((dt_dtype)dtype))
        return dt_scope_fail(s, dt_fail(DT_E_DTYPE, "%s: expects floating point dtypes, got: %s", op, dt_dtype_name((dt_dtype)dtype))), NULL;
    *span = n > 1 ? (double)(periodic ? n : n - 1) : 1;
    return dt__arange(s, n, 0.0, 1.0, DT_float64, spec);
}

/* sum over i of (-1)^i c_i cos(2 pi i k / span) */
static dt_tensor *cosines(dt_scope *s, dt_tensor *k, double span, int n, const double *c) {
    dt_tensor *sum = dt_full_like(s, k, c[0], DT_DTYPE_NONE);
    for (int i = 1; i < n; i++) sum = dt_add(s, sum, dt_mul(s, dt_cos(s, dt_mul(s, k, 6.28318530717958647692 * i / span)), i & 1 ? -c[i] : c[i]));
    return sum;
}
static void window(dt_scope *s, const dt_args *a, const char *op, int n, const double *c, int dtype, dt_tensor **out, int *n_out) {
    double span;
    int64_t length = a->a[0].i;
    dt_tensor *k = points(s, op, length, dt_arg_as_int(&a->a[1], 1) != 0, dtype, a->spec, &span);
    dt_tensor *w = length == 1 ? dt_full_like(s, k, 1.0, DT_DTYPE_NONE) : cosines(s, k, span, n, c);
    dt_compose_one(dt_to_dtype(s, w, dtype), out, n_out);
}
static void hann_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    window(s, a, "hann_window", 2, (const double[]){0.5, 0.5}, dt_arg_as_dtype(&a->a[2], dt_default_dtype()), out, n_out);
}
const dt_op dt_op_hann_window = {
    .sig = "hann_window(int window_length, bool periodic=True, *, dtype? dtype=None) -> Tensor",
    .doc = "1/2 - 1/2 cos(2 pi k / n): Hann's window.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = hann_compose,
};
static void hamming_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double alpha = dt_arg_as_float(&a->a[2], 0.54), beta = dt_arg_as_float(&a->a[3], 0.46);
    window(s, a, "hamming_window", 2, (const double[]){alpha, beta}, dt_arg_as_dtype(&a->a[4], dt_default_dtype()), out, n_out);
}
const dt_op dt_op_hamming_window = {
    .sig = "hamming_window(int window_length, bool periodic=True, float alpha=0.54, float beta=0.46, *, dtype? dtype=None) -> Tensor",
    .doc = "alpha - beta cos(2 pi k / n): Hamming's window.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = hamming_compose,
};
static void blackman_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    window(s, a, "blackman_window", 3, (const double[]){0.42, 0.5, 0.08}, dt_arg_as_dtype(&a->a[2], dt_default_dtype()), out, n_out);
}
const dt_op dt_op_blackman_window = {
    .sig = "blackman_window(int window_length, bool periodic=True, *, dtype? dtype=None) -> Tensor",
    .doc = "0.42 - 0.5 cos(2 pi k / n) + 0.08 cos(4 pi k / n): Blackman's window.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = blackman_compose,
};
static void bartlett_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double span;
    int dtype = dt_arg_as_dtype(&a->a[2], dt_default_dtype());
    dt_tensor *k = points(s, "bartlett_window", a->a[0].i, dt_arg_as_int(&a->a[1], 1) != 0, dtype, a->spec, &span);
    dt_tensor *w = a->a[0].i == 1 ? dt_full_like(s, k, 1.0, DT_DTYPE_NONE) : dt_rsub(s, dt_abs(s, dt_sub(s, dt_mul(s, k, 2.0 / span), 1.0)), 1.0);
    dt_compose_one(dt_to_dtype(s, w, dtype), out, n_out);
}
const dt_op dt_op_bartlett_window = {
    .sig = "bartlett_window(int window_length, bool periodic=True, *, dtype? dtype=None) -> Tensor",
    .doc = "1 - |2 k / n - 1|: Bartlett's window.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = bartlett_compose,
};
/* I0(beta sqrt(1 - (2 k / n - 1)^2)) / I0(beta) */
static void kaiser_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double span, beta = dt_arg_as_float(&a->a[2], 12.0);
    int dtype = dt_arg_as_dtype(&a->a[3], dt_default_dtype());
    dt_tensor *k = points(s, "kaiser_window", a->a[0].i, dt_arg_as_int(&a->a[1], 1) != 0, dtype, a->spec, &span);
    dt_tensor *t = dt_sub(s, dt_mul(s, k, 2.0 / span), 1.0), *u = dt_clamp_min(s, dt_rsub(s, dt_mul(s, t, t), 1.0), 0.0);
    dt_tensor *w = dt_div(s, dt_i0(s, dt_mul(s, dt_sqrt(s, u), beta)), dt_i0(s, dt_full_like(s, k, beta, DT_DTYPE_NONE)));
    dt_compose_one(dt_to_dtype(s, a->a[0].i == 1 ? dt_full_like(s, k, 1.0, DT_DTYPE_NONE) : w, dtype), out, n_out);
}
const dt_op dt_op_kaiser_window = {
    .sig = "kaiser_window(int window_length, bool periodic=True, float beta=12.0, *, dtype? dtype=None) -> Tensor",
    .doc = "Kaiser's window of shape beta.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = kaiser_compose,
};
