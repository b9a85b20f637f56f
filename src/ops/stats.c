/* Statistics and norms, composed: var, std, var_mean, std_mean, norm, linalg.vector_norm, nansum, nanmean, dist, softmin.
 *
 * Made of sums and means, so that they are right on sharded dimensions without a gather. Square roots and powers pass their argument
 * through `root`, whose gradient at zero is zero, as PyTorch's norms have it. */
#include <math.h>
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"

static double count_of(dt_tensor *x, dt_dims dims) {
    if (dims.n <= 0) return (double)dt_numel(x);
    double n = 1;
    for (int i = 0; i < dims.n; i++) {
        int64_t d = dims.v[i] < 0 ? dims.v[i] + dt_ndim(x) : dims.v[i];
        if (d >= 0 && d < dt_ndim(x)) n *= (double)dt_shape(x)[d];
    }
    return n;
}
/* s^(1/p), with gradient 0 where s is 0. */
static dt_tensor *root(dt_scope *s, dt_tensor *x, double p) {
    dt_tensor *zero = dt_eq(s, x, 0.0), *safe = dt_where(s, zero, 1.0, DT_V(x));
    return dt_where(s, zero, 0.0, DT_V(p == 2 ? dt_sqrt(s, safe) : dt_pow(s, safe, 1 / p)));
}

/* ---- var, std ------------------------------------------------------------------------------------------------------------------------ */
typedef struct moments {
    dt_tensor *mean, *var; /* both with the reduced dimensions, if keepdim */
} moments;
static moments moments_of(dt_scope *s, dt_tensor *x, dt_dims dims, double correction, bool keepdim, bool std) {
    const char *name = std ? "std" : "var";
    moments m = {NULL, NULL};
    if (!x || !dt_dtype_is_float((dt_dtype)dt_dtype_of(x))) {
        if (x)
            dt_scope_fail(s, dt_fail(DT_E_DTYPE, "%s only support floating point and complex dtypes, got %s", name, dt_dtype_name((dt_dtype)dt_dtype_of(x))));
        return m;
    }
    int dtype = dt_dtype_of(x);
    if (dtype == DT_float16 || dtype == DT_bfloat16) x = dt_to_dtype(s, x, DT_float32);
    dt_tensor *mean = dt_mean(s, x, dims, true, DT_DTYPE_NONE), *c = dt_sub(s, x, DT_V(mean));
    double n = count_of(x, dims) - correction;
    m.var = dt_div(s, dt_sum(s, dt_mul(s, c, DT_V(c)), dims, keepdim, DT_DTYPE_NONE), n > 0 ? n : 0.0);
    if (std) m.var = root(s, m.var, 2);
    m.mean = keepdim || !m.var ? mean : dt_reshape(s, mean, (dt_dims){dt_ndim(m.var), dt_shape(m.var)});
    if (dtype != dt_dtype_of(x)) m.var = dt_to_dtype(s, m.var, dtype), m.mean = dt_to_dtype(s, m.mean, dtype);
    return m;
}
/* The three forms: (unbiased), (dim, unbiased, keepdim), (dim, *, correction, keepdim). */
enum { BY_FLAG, BY_DIM, BY_CORRECTION };
static void var_out(dt_scope *s, const dt_args *a, int form, bool std, bool pair, dt_tensor **out, int *n_out) {
    dt_dims dims = form == BY_FLAG ? DT_NO_DIMS : dt_arg_get_dims(a, 1);
    double correction = form == BY_FLAG ? dt_arg_get_bool(a, 1, true) : form == BY_DIM ? dt_arg_get_bool(a, 2, true) : dt_arg_get_float(a, 2, 1);
    moments m = moments_of(s, dt_arg_get_tensor(a, 0), dims, correction, form != BY_FLAG && dt_arg_get_bool(a, 3, false), std);
    out[0] = dt_keep(m.var);
    if (pair) out[1] = dt_keep(m.mean);
    *n_out = pair ? 2 : 1;
}
#define FORMS(name, std, pair)                                                                                                                     \
    static void name##_flag_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { var_out(s, a, BY_FLAG, std, pair, out, n_out); } \
    static void name##_dim_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { var_out(s, a, BY_DIM, std, pair, out, n_out); }   \
    static void name##_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { var_out(s, a, BY_CORRECTION, std, pair, out, n_out); }
FORMS(var, false, false)
FORMS(std, true, false)
FORMS(var_mean, false, true)
FORMS(std_mean, true, true)

const dt_op dt_op_var_unbiased = {
    .sig = "var.unbiased(Tensor input, bool unbiased) -> Tensor",
    .doc = "The variance of all elements; `unbiased`: divide by n - 1.",
    .where = DT_FN | DT_METHOD,
    .compose = var_flag_compose,
};
const dt_op dt_op_var_dim = {
    .sig = "var.dim(Tensor input, int[]? dim, bool unbiased=True, bool keepdim=False) -> Tensor",
    .doc = "The variance over `dim`; `unbiased`: divide by n - 1.",
    .where = DT_FN | DT_METHOD,
    .compose = var_dim_compose,
};
const dt_op dt_op_var = {
    .sig = "var(Tensor input, int[]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor",
    .doc = "The variance over `dim` (all if None): the sum of squared deviations over n - correction; `correction` None: 1.",
    .where = DT_FN | DT_METHOD,
    .compose = var_compose,
};
const dt_op dt_op_std_unbiased = {
    .sig = "std.unbiased(Tensor input, bool unbiased) -> Tensor",
    .doc = "The standard deviation of all elements; `unbiased`: divide by n - 1.",
    .where = DT_FN | DT_METHOD,
    .compose = std_flag_compose,
};
const dt_op dt_op_std_dim = {
    .sig = "std.dim(Tensor input, int[]? dim, bool unbiased=True, bool keepdim=False) -> Tensor",
    .doc = "The standard deviation over `dim`; `unbiased`: divide by n - 1.",
    .where = DT_FN | DT_METHOD,
    .compose = std_dim_compose,
};
const dt_op dt_op_std = {
    .sig = "std(Tensor input, int[]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor",
    .doc = "The standard deviation over `dim` (all if None): the sum of squared deviations over n - correction; `correction` None: 1.",
    .where = DT_FN | DT_METHOD,
    .compose = std_compose,
};
const dt_op dt_op_var_mean_unbiased = {
    .sig = "var_mean.unbiased(Tensor input, bool unbiased) -> (Tensor var, Tensor mean)",
    .doc = "The variance and the mean of all elements; `unbiased`: divide by n - 1.",
    .where = DT_FN,
    .compose = var_mean_flag_compose,
};
const dt_op dt_op_var_mean_dim = {
    .sig = "var_mean.dim(Tensor input, int[]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor var, Tensor mean)",
    .doc = "The variance and the mean over `dim`; `unbiased`: divide by n - 1.",
    .where = DT_FN,
    .compose = var_mean_dim_compose,
};
const dt_op dt_op_var_mean = {
    .sig = "var_mean(Tensor input, int[]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor var, Tensor mean)",
    .doc = "The variance and the mean over `dim` (all if None): the sum of squared deviations over n - correction; `correction` None: 1.",
    .where = DT_FN,
    .compose = var_mean_compose,
};
const dt_op dt_op_std_mean_unbiased = {
    .sig = "std_mean.unbiased(Tensor input, bool unbiased) -> (Tensor std, Tensor mean)",
    .doc = "The standard deviation and the mean of all elements; `unbiased`: divide by n - 1.",
    .where = DT_FN,
    .compose = std_mean_flag_compose,
};
const dt_op dt_op_std_mean_dim = {
    .sig = "std_mean.dim(Tensor input, int[]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor std, Tensor mean)",
    .doc = "The standard deviation and the mean over `dim`; `unbiased`: divide by n - 1.",
    .where = DT_FN,
    .compose = std_mean_dim_compose,
};
const dt_op dt_op_std_mean = {
    .sig = "std_mean(Tensor input, int[]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor std, Tensor mean)",
    .doc = "The standard deviation and the mean over `dim` (all if None): the sum of squared deviations over n - correction; `correction` "
           "None: 1.",
    .where = DT_FN,
    .compose = std_mean_compose,
};

/* ---- norms --------------------------------------------------------------------------------------------------------------------------- */
/* (sum |x|^p)^(1/p) in general. Where x is zero its gradient is zero, whatever p: |x|^p is not asked there. */
static dt_tensor *power_norm(dt_scope *s, dt_tensor *x, double p, dt_dims dims, bool keepdim) {
    dt_tensor *zero = dt_eq(s, x, 0.0), *t = dt_pow(s, dt_abs(s, dt_where(s, zero, 1.0, DT_V(x))), p);
    dt_tensor *sum = dt_sum(s, dt_where(s, zero, p > 0 ? 0.0 : INFINITY, DT_V(t)), dims, keepdim, DT_DTYPE_NONE);
    if (p > 0) return root(s, sum, p);
    dt_tensor *bad = dt_isinf(s, sum); /* a negative power of zero: the norm is zero */
    return dt_where(s, bad, 0.0, DT_V(dt_pow(s, dt_where(s, bad, 1.0, DT_V(sum)), 1 / p)));
}
/* (sum |x|^p)^(1/p), and its limits for p = 0 (how many are not zero), inf, -inf. */
static dt_tensor *norm_of(dt_scope *s, dt_tensor *x, double p, dt_dims dims, bool keepdim, int dtype) {
    if (x && dtype != DT_DTYPE_NONE && dtype != dt_dtype_of(x)) x = dt_to_dtype(s, x, dtype);
    if (!x) return NULL;
    int own = dt_dtype_of(x);
    if (!dt_dtype_is_float((dt_dtype)own)) {
        dt_scope_fail(s, dt_fail(DT_E_DTYPE, "norm: Expected a floating point or complex tensor as input. Got %s", dt_dtype_name((dt_dtype)own)));
        return NULL;
    }
    if (own == DT_float16 || own == DT_bfloat16) x = dt_to_dtype(s, x, DT_float32);
    dt_tensor *r;
    dt_dims all = dims.n < 0 ? (dt_dims){0, NULL} : dims;
    if (p == 0)
        r = dt_sum(s, dt_abs(s, dt_sign(s, x)), dims, keepdim, DT_DTYPE_NONE); /* differentiable: with gradient zero */
    else if (p == 1)
        r = dt_sum(s, dt_abs(s, x), dims, keepdim, DT_DTYPE_NONE);
    else if (p == 2)
        r = root(s, dt_sum(s, dt_mul(s, x, DT_V(x)), dims, keepdim, DT_DTYPE_NONE), 2);
    else if (isinf(p) && count_of(x, dims) == 0 && p > 0)
        r = dt_sum(s, dt_abs(s, x), dims, keepdim, DT_DTYPE_NONE);
    else if (isinf(p))
        r = p > 0 ? dt_amax(s, dt_abs(s, x), all, keepdim) : dt_amin(s, dt_abs(s, x), all, keepdim);
    else
        r = power_norm(s, x, p, dims, keepdim);
    return r && dt_dtype_of(r) != own ? dt_to_dtype(s, r, own) : r;
}

static void norm_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double p = dt_arg_get_float(a, 1, 2);
    dt_compose_out(norm_of(s, dt_arg_get_tensor(a, 0), p, dt_arg_get_dims(a, 2), dt_arg_get_bool(a, 3, false), dt_arg_get_dtype(a, 4)), out, n_out);
}
const dt_op dt_op_norm = {
    .sig = "norm(Tensor input, Scalar? p=2, int[]? dim=None, bool keepdim=False, dtype? dtype=None) -> Tensor",
    .doc = "The vector p-norm over `dim` (all if None): (sum |x|^p)^(1/p); p = inf, -inf: the largest, smallest magnitude; 0: how many are "
           "not zero.",
    .where = DT_FN | DT_METHOD,
    .compose = norm_compose,
};
static void norm_str_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    const char *p = dt_arg_get_str(a, 1, "fro");
    dt_tensor *x = dt_arg_get_tensor(a, 0), *r = NULL;
    if (!strcmp(p, "fro"))
        r = norm_of(s, x, 2, dt_arg_get_dims(a, 2), dt_arg_get_bool(a, 3, false), dt_arg_get_dtype(a, 4));
    else if (!strcmp(p, "nuc"))
        dt_scope_fail(s, dt_fail(DT_E_NOTIMPL, "norm: p='nuc' needs singular values: use linalg.matrix_norm"));
    else
        dt_scope_fail(s, dt_fail(DT_E_VALUE, "norm: p='%s' is not known: expected a number, 'fro' or 'nuc'", p));
    dt_compose_out(r, out, n_out);
}
const dt_op dt_op_norm_str = {
    .sig = "norm.str(Tensor input, str p, int[]? dim=None, bool keepdim=False, dtype? dtype=None) -> Tensor",
    .doc = "p = 'fro': the 2-norm over `dim`.",
    .where = DT_FN | DT_METHOD,
    .compose = norm_str_compose,
};
static void vector_norm_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double p = dt_arg_get_float(a, 1, 2);
    dt_compose_out(norm_of(s, dt_arg_get_tensor(a, 0), p, dt_arg_get_dims(a, 2), dt_arg_get_bool(a, 3, false), dt_arg_get_dtype(a, 4)), out, n_out);
}
const dt_op dt_op_linalg_vector_norm = {
    .sig = "_linalg_vector_norm(Tensor x, Scalar ord=2, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor",
    .doc = "The vector norm of order `ord` over `dim` (all if None).",
    .also = "linalg.vector_norm",
    .where = DT_FN,
    .compose = vector_norm_compose,
};
static void dist_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *d = dt_sub(s, dt_arg_get_tensor(a, 0), DT_V(dt_arg_get_tensor(a, 1)));
    dt_compose_out(norm_of(s, d, dt_arg_get_float(a, 2, 2), DT_NO_DIMS, false, DT_DTYPE_NONE), out, n_out);
}
const dt_op dt_op_dist = {
    .sig = "dist(Tensor input, Tensor other, Scalar p=2) -> Tensor",
    .doc = "The p-norm of input - other; the shapes broadcast.",
    .where = DT_FN | DT_METHOD,
    .compose = dist_compose,
};

/* ---- without NaN --------------------------------------------------------------------------------------------------------------------- */
static dt_tensor *without_nan(dt_scope *s, dt_tensor *x) {
    return x && dt_dtype_is_float((dt_dtype)dt_dtype_of(x)) ? dt_where(s, dt_isnan(s, x), 0.0, DT_V(x)) : x;
}
static void nansum_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_out(dt_sum(s, without_nan(s, dt_arg_get_tensor(a, 0)), dt_arg_get_dims(a, 1), dt_arg_get_bool(a, 2, false), dt_arg_get_dtype(a, 3)), out, n_out);
}
const dt_op dt_op_nansum = {
    .sig = "nansum(Tensor input, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor",
    .doc = "The sum over `dim`; a NaN counts as zero.",
    .where = DT_FN | DT_METHOD,
    .compose = nansum_compose,
};
static void nanmean_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *some = dt_logical_not(s, dt_isnan(s, x));
    dt_dims dims = dt_arg_get_dims(a, 1);
    bool keep = dt_arg_get_bool(a, 2, false);
    dt_tensor *sum = dt_sum(s, without_nan(s, x), dims, keep, dt_arg_get_dtype(a, 3));
    dt_compose_out(dt_div(s, sum, DT_V(dt_sum(s, some, dims, keep, DT_DTYPE_NONE))), out, n_out);
}
const dt_op dt_op_nanmean = {
    .sig = "nanmean(Tensor input, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor",
    .doc = "The mean over `dim` of what is not NaN.",
    .where = DT_FN | DT_METHOD,
    .compose = nanmean_compose,
};

/* ---- nn.functional's forms of softmax ------------------------------------------------------------------------------------------------ */
/* dim None: what PyTorch (deprecating it) chooses. */
static int64_t softmax_dim(dt_tensor *x, const dt_args *a) {
    int nd = x ? dt_ndim(x) : 0;
    return dt_arg_get_int(a, 1, nd == 0 || nd == 1 || nd == 3 ? 0 : 1);
}
static void softmax_nn_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    dt_compose_out(dt_softmax(s, x, softmax_dim(x, a), dt_arg_get_dtype(a, 3)), out, n_out);
}
static void log_softmax_nn_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    dt_compose_out(dt_log_softmax(s, x, softmax_dim(x, a), dt_arg_get_dtype(a, 3)), out, n_out);
}
static void softmin_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    dt_compose_out(dt_softmax(s, dt_neg(s, x), softmax_dim(x, a), dt_arg_get_dtype(a, 3)), out, n_out);
}
const dt_op dt_op_softmax_nn = {
    .sig = "softmax.nn(Tensor input, int? dim=None, int _stacklevel=3, dtype? dtype=None) -> Tensor",
    .doc = "exp(x) / sum(exp(x)) along `dim`.",
    .where = DT_NN,
    .compose = softmax_nn_compose,
};
const dt_op dt_op_log_softmax_nn = {
    .sig = "log_softmax.nn(Tensor input, int? dim=None, int _stacklevel=3, dtype? dtype=None) -> Tensor",
    .doc = "x - log(sum(exp(x))) along `dim`.",
    .where = DT_NN,
    .compose = log_softmax_nn_compose,
};
const dt_op dt_op_softmin = {
    .sig = "softmin(Tensor input, int? dim=None, int _stacklevel=3, dtype? dtype=None) -> Tensor",
    .doc = "softmax of -input along `dim`.",
    .where = DT_NN,
    .compose = softmin_compose,
};
