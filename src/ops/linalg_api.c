/* PyTorch's linear algebra (torch.linalg and its older names) as compositions of the primitives in linalg.c. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"

#define LL(x) ((long long)(x))

static dt_tensor *arg(const dt_args *a, int i) { return dt_arg_get_tensor(a, i); }
static dt_tensor *T(dt_scope *s, dt_tensor *x) { return dt_transpose(s, x, -2, -1); }
static bool refuse(dt_scope *s, dt_status status) {
    dt_scope_fail(s, status);
    return false;
}
static void give(dt_tensor *const *t, int n, dt_tensor **out, int *n_out) {
    for (int i = 0; i < n; i++) out[i] = dt_keep(t[i]);
    *n_out = n;
}
static bool at_least_matrix(dt_scope *s, const char *op, dt_tensor *x) {
    return dt_ndim(x) >= 2 || refuse(s, dt_fail(DT_E_SHAPE, "%s: The input tensor A must have at least 2 dimensions, got %d", op, dt_ndim(x)));
}

/* An empty vector where x lies. */
static dt_tensor *nothing_like(dt_scope *s, dt_tensor *x) { return dt_narrow(s, dt_reshape(s, x, DT_DIMS(-1)), 0, 0, 0); }

/* The batches of a and b made equal by broadcasting. */
static bool match_batches(dt_scope *s, dt_tensor **a, dt_tensor **b) {
    dt_tensor **t[2] = {a, b};
    int na = dt_ndim(*a) - 2, nb = dt_ndim(*b) - 2, nd = na > nb ? na : nb;
    int64_t shape[DT_MAX_DIM];
    for (int d = 0; d < nd; d++) {
        int64_t x = d - (nd - na) < 0 ? 1 : dt_shape(*a)[d - (nd - na)], y = d - (nd - nb) < 0 ? 1 : dt_shape(*b)[d - (nd - nb)];
        if (x != y && x != 1 && y != 1) return refuse(s, dt_fail(DT_E_SHAPE, "linalg: batch sizes %lld and %lld do not broadcast", LL(x), LL(y)));
        shape[d] = x == 1 ? y : x;
    }
    for (int i = 0; i < 2; i++) {
        bool same = dt_ndim(*t[i]) == nd + 2;
        for (int d = 0; same && d < nd; d++) same = dt_shape(*t[i])[d] == shape[d];
        for (int d = 0; d < 2; d++) shape[nd + d] = dt_shape(*t[i])[dt_ndim(*t[i]) - 2 + d];
        if (!same) *t[i] = dt_expand(s, *t[i], ((dt_dims){nd + 2, shape}), false);
    }
    return *a && *b;
}

/* ---- inverse, solve ---- */
static void compose_inv(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    *n_out = 1;
    if (!dt_linalg_inv(s, arg(a, 0), true, r)) give(r, 1, out, n_out);
}
static void compose_inv_ex(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    *n_out = 2;
    if (!dt_linalg_inv(s, arg(a, 0), dt_arg_get_bool(a, 1, false), r)) give(r, 2, out, n_out);
}

static bool solve(dt_scope *s, dt_tensor *A, dt_tensor *B, bool left, bool check, dt_tensor **r) {
    if (!at_least_matrix(s, "linalg.solve", A)) return false;
    int na = dt_ndim(A), nb = dt_ndim(B);
    bool vector = nb == 1 || nb == na - 1;
    for (int d = 0; vector && nb > 1 && d < nb; d++) vector = dt_shape(B)[d] == dt_shape(A)[d];
    if (nb == 0) return refuse(s, dt_fail(DT_E_SHAPE, "linalg.solve: B must have at least 1 dimension"));
    if (dt_shape(A)[na - 1] != dt_shape(A)[na - 2])
        return refuse(s, dt_fail(DT_E_SHAPE, "linalg.solve: A must be batches of square matrices, but they are %lld by %lld matrices", LL(dt_shape(A)[na - 2]),
                                 LL(dt_shape(A)[na - 1])));
    if (vector && !left) return refuse(s, dt_fail(DT_E_SHAPE, "linalg.solve: Vector broadcasting of the left hand side is not supported for left=False"));
    if (vector) B = dt_unsqueeze(s, B, -1);
    if (!left) A = T(s, A), B = T(s, B);
    if (!A || !B || !match_batches(s, &A, &B) || dt_linalg_solve(s, A, B, check, r)) return false;
    if (vector) r[0] = dt_squeeze(s, r[0], DT_DIMS(-1));
    if (!left) r[0] = T(s, r[0]);
    return r[0] != NULL;
}
static void compose_solve(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    *n_out = 1;
    if (solve(s, arg(a, 0), arg(a, 1), dt_arg_get_bool(a, 2, true), true, r)) give(r, 1, out, n_out);
}
static void compose_solve_ex(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    *n_out = 2;
    if (solve(s, arg(a, 0), arg(a, 1), dt_arg_get_bool(a, 2, true), dt_arg_get_bool(a, 3, false), r)) give(r, 2, out, n_out);
}

/* ---- determinants ---- */
static void compose_det(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[3];
    *n_out = 1;
    if (!dt_linalg_det(s, arg(a, 0), r)) give(r, 1, out, n_out);
}
static void compose_slogdet(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[3];
    *n_out = 2;
    if (!dt_linalg_det(s, arg(a, 0), r)) give(r + 1, 2, out, n_out);
}
static void compose_logdet(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[3];
    *n_out = 1;
    if (!dt_linalg_det(s, arg(a, 0), r)) dt_compose_out(dt_where(s, dt_lt(s, r[1], 0), NAN, r[2]), out, n_out);
}

/* ---- Cholesky and triangular systems ---- */
static bool cholesky(dt_scope *s, dt_tensor *A, bool upper, bool check, dt_tensor **r) { return !dt_linalg_cholesky(s, A, upper, check, r); }
static void compose_cholesky(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    *n_out = 1;
    if (cholesky(s, arg(a, 0), dt_arg_get_bool(a, 1, false), true, r)) give(r, 1, out, n_out);
}
static void compose_cholesky_ex(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    *n_out = 2;
    if (cholesky(s, arg(a, 0), dt_arg_get_bool(a, 1, false), dt_arg_get_bool(a, 2, false), r)) give(r, 2, out, n_out);
}
static dt_tensor *triangular(dt_scope *s, dt_tensor *A, dt_tensor *B, bool upper, bool left, bool unit) {
    if (!A || !B || !at_least_matrix(s, "linalg.solve_triangular", A) || !at_least_matrix(s, "linalg.solve_triangular", B) || !match_batches(s, &A, &B))
        return NULL;
    return dt_linalg_solve_triangular(s, A, B, upper, left, unit);
}
static void compose_solve_triangular(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_out(triangular(s, arg(a, 0), arg(a, 1), dt_arg_get_bool(a, 2, false), dt_arg_get_bool(a, 3, true), dt_arg_get_bool(a, 4, false)), out, n_out);
}
static void compose_triangular_solve(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *B = arg(a, 0), *A = arg(a, 1), *r[2] = {NULL, NULL};
    bool upper = dt_arg_get_bool(a, 2, true), turned = dt_arg_get_bool(a, 3, false), unit = dt_arg_get_bool(a, 4, false);
    *n_out = 2;
    if (!at_least_matrix(s, "triangular_solve", A) || !at_least_matrix(s, "triangular_solve", B) || !match_batches(s, &A, &B)) return;
    r[0] = triangular(s, turned ? T(s, A) : A, B, upper != turned, true, unit);
    r[1] = dt_clone(s, A);
    give(r, 2, out, n_out);
}
/* Solves A X = B where A = L L' (upper: U' U). */
static dt_tensor *cholesky_solve(dt_scope *s, dt_tensor *B, dt_tensor *L, bool upper) {
    return upper ? triangular(s, L, triangular(s, T(s, L), B, false, true, false), true, true, false)
                 : triangular(s, T(s, L), triangular(s, L, B, false, true, false), true, true, false);
}
static void compose_cholesky_solve(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_out(cholesky_solve(s, arg(a, 0), arg(a, 1), dt_arg_get_bool(a, 2, false)), out, n_out);
}
static dt_tensor *eye_like(dt_scope *s, dt_tensor *x) { return dt_triu(s, dt_tril(s, dt_ones_like(s, x, DT_DTYPE_NONE), 0), 0); }
static void compose_cholesky_inverse(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    *n_out = 1;
    if (at_least_matrix(s, "cholesky_inverse", arg(a, 0)))
        dt_compose_out(cholesky_solve(s, eye_like(s, arg(a, 0)), arg(a, 0), dt_arg_get_bool(a, 1, false)), out, n_out);
}

/* ---- QR, eigenvalues, singular values ---- */
static void compose_linalg_qr(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    const char *mode = dt_arg_get_str(a, 1, "reduced");
    dt_tensor *r[2];
    *n_out = 2;
    if (strcmp(mode, "reduced") && strcmp(mode, "complete") && strcmp(mode, "r")) {
        refuse(s, dt_fail(DT_E_SHAPE, "linalg.qr: mode must be one of 'reduced', 'complete' or 'r', got '%s'", mode));
        return;
    }
    if (dt_linalg_qr(s, arg(a, 0), !strcmp(mode, "complete"), r)) return;
    if (!strcmp(mode, "r")) r[0] = nothing_like(s, r[0]);
    give(r, 2, out, n_out);
}
static void compose_qr(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    *n_out = 2;
    if (!dt_linalg_qr(s, arg(a, 0), !dt_arg_get_bool(a, 1, true), r)) give(r, 2, out, n_out);
}
static bool eigh(dt_scope *s, const dt_args *a, dt_tensor **r) {
    const char *which = dt_arg_get_str(a, 1, "L");
    bool upper = !strcmp(which, "U") || !strcmp(which, "u");
    if (!upper && strcmp(which, "L") && strcmp(which, "l")) return refuse(s, dt_fail(DT_E_SHAPE, "Expected UPLO argument to be 'L' or 'U', but got %s", which));
    return !dt_linalg_eigh(s, arg(a, 0), upper, r);
}
static void compose_eigh(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    *n_out = 2;
    if (eigh(s, a, r)) give(r, 2, out, n_out);
}
static void compose_eigvalsh(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    *n_out = 1;
    if (eigh(s, a, r)) give(r, 1, out, n_out);
}
static void compose_linalg_svd(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[3];
    *n_out = 3;
    if (!dt_linalg_svd(s, arg(a, 0), dt_arg_get_bool(a, 1, true), r)) give(r, 3, out, n_out);
}
static void compose_svd(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { /* V, not its transpose */
    dt_tensor *r[3];
    *n_out = 3;
    if (dt_linalg_svd(s, arg(a, 0), !dt_arg_get_bool(a, 1, true), r)) return;
    r[2] = T(s, r[2]);
    if (!dt_arg_get_bool(a, 2, true)) r[0] = dt_zeros_like(s, r[0], DT_DTYPE_NONE), r[2] = dt_zeros_like(s, r[2], DT_DTYPE_NONE);
    give(r, 3, out, n_out);
}
static dt_tensor *svdvals(dt_scope *s, dt_tensor *A) {
    dt_tensor *r[3];
    return dt_linalg_svd(s, A, false, r) ? NULL : r[1];
}
static void compose_svdvals(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { dt_compose_out(svdvals(s, arg(a, 0)), out, n_out); }

/* ---- rank, pseudo-inverse, least squares ---- */
static double epsilon(const dt_tensor *A) { return dt_dtype_of(A) == DT_float64 ? DBL_EPSILON : (double)FLT_EPSILON; }
static double default_rtol(const dt_tensor *A) {
    int64_t m = dt_shape(A)[dt_ndim(A) - 2], n = dt_shape(A)[dt_ndim(A) - 1];
    return epsilon(A) * (double)(m > n ? m : n);
}

/* sigma > max(atol, rtol * sigma[0]) counts; tolerances are numbers or tensors (…). */
static dt_tensor *count_above(dt_scope *s, dt_tensor *A, dt_tensor *sv, dt_value atol, dt_value rtol) {
    int64_t m = dt_shape(A)[dt_ndim(A) - 2], n = dt_shape(A)[dt_ndim(A) - 1];
    dt_dims last = DT_DIMS(-1);
    if (m == 0 || n == 0) return dt_sum(s, dt_gt(s, sv, 0), last, false, DT_DTYPE_NONE);
    bool has_atol = atol.kind != 0;
    if (rtol.kind == 0) rtol = has_atol && !(atol.kind == 2 && atol.f == 0) ? DT_V(0.0) : DT_V(default_rtol(A));
    dt_tensor *top = dt_narrow(s, sv, -1, 0, 1);
    if (rtol.kind == 1) rtol.t = dt_unsqueeze(s, rtol.t, -1);
    if (atol.kind == 1) atol.t = dt_unsqueeze(s, atol.t, -1);
    dt_tensor *tol = dt_mul(s, top, rtol);
    if (atol.kind == 1)
        tol = dt_maximum(s, tol, atol.t);
    else if (has_atol)
        tol = dt_clamp(s, tol, atol, DT_NOTHING);
    return dt_sum(s, dt_gt(s, sv, tol), last, false, DT_DTYPE_NONE);
}
static dt_tensor *spectrum(dt_scope *s, dt_tensor *A, bool hermitian) {
    dt_tensor *r[2];
    if (!hermitian) return svdvals(s, A);
    if (dt_linalg_eigh(s, A, false, r)) return NULL;
    dt_tensor *sorted[2], *size = dt_abs(s, r[0]);
    return dt_sort(s, size, -1, true, false, sorted) ? NULL : sorted[0];
}
static void compose_matrix_rank(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *A = arg(a, 0);
    *n_out = 1;
    if (!at_least_matrix(s, "linalg.matrix_rank", A)) return;
    dt_tensor *sv = spectrum(s, A, dt_arg_get_bool(a, 3, false));
    if (sv) dt_compose_out(count_above(s, A, sv, dt_arg_get_value(a, 1), dt_arg_get_value(a, 2)), out, n_out);
}
static void compose_matrix_rank_tol(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *A = arg(a, 0);
    *n_out = 1;
    if (!at_least_matrix(s, "linalg.matrix_rank", A)) return;
    dt_tensor *sv = spectrum(s, A, dt_arg_get_bool(a, 2, false));
    if (sv) dt_compose_out(count_above(s, A, sv, dt_arg_get_value(a, 1), DT_V(0.0)), out, n_out);
}

static dt_tensor *pinv(dt_scope *s, dt_tensor *A, double atol, double rtol, bool hermitian) {
    if (!at_least_matrix(s, "linalg.pinv", A)) return NULL;
    if (rtol != rtol) rtol = atol > 0 ? 0 : default_rtol(A);
    return dt_linalg_pinv(s, A, atol == atol ? atol : 0, rtol, hermitian);
}
static void compose_linalg_pinv(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double atol = dt_arg_get_float(a, 1, NAN), rtol = dt_arg_get_float(a, 2, NAN);
    dt_compose_out(pinv(s, arg(a, 0), atol, rtol, dt_arg_get_bool(a, 3, false)), out, n_out);
}
static void compose_linalg_pinv_rcond(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_out(pinv(s, arg(a, 0), 0, dt_arg_get_float(a, 1, NAN), dt_arg_get_bool(a, 2, false)), out, n_out);
}
static void compose_pinverse(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_out(pinv(s, arg(a, 0), 0, dt_arg_get_float(a, 1, 1e-15), false), out, n_out);
}

static void compose_lstsq(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *A = arg(a, 0), *B = arg(a, 1), *r[4];
    *n_out = 4;
    if (!at_least_matrix(s, "linalg.lstsq", A)) return;
    const char *driver = dt_arg_get_str(a, 3, "gelsy"); /* PyTorch's drivers differ in which results they give */
    bool vector = dt_ndim(B) == dt_ndim(A) - 1, values = !strcmp(driver, "gelsd") || !strcmp(driver, "gelss");
    int64_t m = dt_shape(A)[dt_ndim(A) - 2], n = dt_shape(A)[dt_ndim(A) - 1];
    dt_tensor *b = vector ? dt_unsqueeze(s, B, -1) : B, *A2 = A;
    if (!b || !match_batches(s, &A2, &b)) return;
    dt_tensor *x = dt_matmul(s, pinv(s, A2, 0, dt_arg_get_float(a, 2, NAN), false), b);
    r[0] = vector ? dt_squeeze(s, x, DT_DIMS(-1)) : x;
    r[1] =
        m > n && strcmp(driver, "gelsy") ? dt_sum(s, dt_square(s, dt_sub(s, dt_matmul(s, A2, x), b)), DT_DIMS(-2), false, DT_DTYPE_NONE) : nothing_like(s, x);
    dt_tensor *sv = svdvals(s, A);
    r[2] = count_above(s, A, sv, DT_NOTHING, dt_arg_get_value(a, 2));
    if (!strcmp(driver, "gels")) r[2] = nothing_like(s, r[2]);
    r[3] = values ? sv : nothing_like(s, x);
    give(r, 4, out, n_out);
}

const dt_op dt_op_inverse = {
    .sig = "inverse(Tensor input) -> Tensor",
    .doc = "Inverses of square matrices (…, n, n). LinAlgError (late) if one is singular.",
    .also = "linalg.inv",
    .where = DT_FN | DT_METHOD,
    .compose = compose_inv,
};
const dt_op dt_op_linalg_inv_ex = {
    .sig = "linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)",
    .doc = "Inverses and LAPACK's info: 0, or the number of the zero diagonal element.",
    .also = "linalg.inv_ex",
    .where = DT_FN,
    .compose = compose_inv_ex,
};
const dt_op dt_op_linalg_solve_api = {
    .sig = "linalg_solve(Tensor A, Tensor B, *, bool left=True) -> Tensor",
    .doc = "X of A X = B (left=False: X A = B), A (…, n, n), B (…, n, k) or (…, n). LinAlgError (late) if A is singular.",
    .also = "linalg.solve",
    .where = DT_FN,
    .compose = compose_solve,
};
const dt_op dt_op_linalg_solve_ex = {
    .sig = "linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (Tensor result, Tensor info)",
    .doc = "linalg.solve with LAPACK's info.",
    .also = "linalg.solve_ex",
    .where = DT_FN,
    .compose = compose_solve_ex,
};
const dt_op dt_op_det = {
    .sig = "det(Tensor input) -> Tensor",
    .doc = "Determinants of square matrices (…, n, n) -> (…).",
    .also = "linalg.det",
    .where = DT_FN | DT_METHOD,
    .compose = compose_det,
};
const dt_op dt_op_slogdet = {
    .sig = "slogdet(Tensor input) -> (Tensor sign, Tensor logabsdet)",
    .doc = "Sign and logarithm of the absolute value of determinants.",
    .also = "linalg.slogdet",
    .where = DT_FN | DT_METHOD,
    .compose = compose_slogdet,
};
const dt_op dt_op_logdet = {
    .sig = "logdet(Tensor input) -> Tensor",
    .doc = "Logarithm of determinants; NaN where negative, -inf where 0.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_logdet,
};
const dt_op dt_op_cholesky = {
    .sig = "cholesky(Tensor input, bool upper=False) -> Tensor",
    .doc = "L with L L' = input (upper: U' U), for symmetric positive-definite (…, n, n). LinAlgError (late) otherwise.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_cholesky,
};
const dt_op dt_op_linalg_cholesky_api = {
    .sig = "linalg_cholesky(Tensor A, *, bool upper=False) -> Tensor",
    .doc = "L with L L' = A (upper: U' U), for symmetric positive-definite (…, n, n). LinAlgError (late) otherwise.",
    .also = "linalg.cholesky",
    .where = DT_FN,
    .compose = compose_cholesky,
};
const dt_op dt_op_linalg_cholesky_ex = {
    .sig = "linalg_cholesky_ex(Tensor A, *, bool upper=False, bool check_errors=False) -> (Tensor L, Tensor info)",
    .doc = "linalg.cholesky with LAPACK's info.",
    .also = "linalg.cholesky_ex",
    .where = DT_FN,
    .compose = compose_cholesky_ex,
};
const dt_op dt_op_linalg_solve_triangular_api = {
    .sig = "linalg_solve_triangular(Tensor input, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor",
    .doc = "X of A X = B (left=False: X A = B) with triangular A = input; batches broadcast.",
    .also = "linalg.solve_triangular",
    .where = DT_FN,
    .compose = compose_solve_triangular,
};
const dt_op dt_op_triangular_solve = {
    .sig =
        "triangular_solve(Tensor b, Tensor A, bool upper=True, bool transpose=False, bool unitriangular=False) -> (Tensor solution, Tensor cloned_coefficient)",
    .doc = "X of A X = b with triangular A, and a copy of A.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_triangular_solve,
};
const dt_op dt_op_cholesky_solve = {
    .sig = "cholesky_solve(Tensor B, Tensor L, bool upper=False) -> Tensor",
    .doc = "X of A X = B, where L is the Cholesky factor of A.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_cholesky_solve,
};
const dt_op dt_op_cholesky_inverse = {
    .sig = "cholesky_inverse(Tensor L, bool upper=False) -> Tensor",
    .doc = "The inverse of A, where L is the Cholesky factor of A.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_cholesky_inverse,
};
const dt_op dt_op_linalg_qr_api = {
    .sig = "linalg_qr(Tensor A, str mode='reduced') -> (Tensor Q, Tensor R)",
    .doc = "A = Q R with orthonormal Q; mode 'reduced', 'complete' or 'r' (Q is empty).",
    .also = "linalg.qr",
    .where = DT_FN,
    .compose = compose_linalg_qr,
};
const dt_op dt_op_qr = {
    .sig = "qr(Tensor input, bool some=True) -> (Tensor Q, Tensor R)",
    .doc = "input = Q R with orthonormal Q.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_qr,
};
const dt_op dt_op_linalg_eigh_api = {
    .sig = "linalg_eigh(Tensor A, str UPLO='L') -> (Tensor eigenvalues, Tensor eigenvectors)",
    .doc = "Eigenvalues, ascending, and eigenvectors (columns) of symmetric matrices; UPLO: the triangle that is read.",
    .also = "linalg.eigh",
    .where = DT_FN,
    .compose = compose_eigh,
};
const dt_op dt_op_linalg_eigvalsh = {
    .sig = "linalg_eigvalsh(Tensor A, str UPLO='L') -> Tensor",
    .doc = "Eigenvalues, ascending, of symmetric matrices.",
    .also = "linalg.eigvalsh",
    .where = DT_FN,
    .compose = compose_eigvalsh,
};
const dt_op dt_op_linalg_svd_api = {
    .sig = "linalg_svd(Tensor A, bool full_matrices=True, *, str? driver=None) -> (Tensor U, Tensor S, Tensor Vh)",
    .doc = "A = U diag(S) Vh, S descending.",
    .also = "linalg.svd",
    .where = DT_FN,
    .compose = compose_linalg_svd,
};
const dt_op dt_op_svd = {
    .sig = "svd(Tensor input, bool some=True, bool compute_uv=True) -> (Tensor U, Tensor S, Tensor V)",
    .doc = "input = U diag(S) V', S descending.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_svd,
};
const dt_op dt_op_linalg_svdvals = {
    .sig = "linalg_svdvals(Tensor A, *, str? driver=None) -> Tensor",
    .doc = "Singular values, descending.",
    .also = "linalg.svdvals",
    .where = DT_FN,
    .compose = compose_svdvals,
};
const dt_op dt_op_linalg_matrix_rank = {
    .sig = "linalg_matrix_rank(Tensor A, *, Value? atol=None, Value? rtol=None, bool hermitian=False) -> Tensor",
    .doc = "How many singular values exceed max(atol, rtol * the largest).",
    .also = "linalg.matrix_rank",
    .where = DT_FN,
    .compose = compose_matrix_rank,
};
const dt_op dt_op_linalg_matrix_rank_tol = {
    .sig = "linalg_matrix_rank.tol(Tensor A, Value tol, bool hermitian=False) -> Tensor",
    .doc = "How many singular values exceed tol.",
    .also = "linalg.matrix_rank",
    .where = DT_FN,
    .compose = compose_matrix_rank_tol,
};
const dt_op dt_op_linalg_pinv_api = {
    .sig = "linalg_pinv(Tensor A, *, float? atol=None, float? rtol=None, bool hermitian=False) -> Tensor",
    .doc = "Pseudo-inverse; singular values up to max(atol, rtol * the largest) count as 0.",
    .also = "linalg.pinv",
    .where = DT_FN,
    .compose = compose_linalg_pinv,
};
const dt_op dt_op_linalg_pinv_rcond = {
    .sig = "linalg_pinv.rcond(Tensor A, float rcond, bool hermitian=False) -> Tensor",
    .doc = "Pseudo-inverse; singular values up to rcond * the largest count as 0.",
    .also = "linalg.pinv",
    .where = DT_FN,
    .compose = compose_linalg_pinv_rcond,
};
const dt_op dt_op_pinverse = {
    .sig = "pinverse(Tensor input, float rcond=1e-15) -> Tensor",
    .doc = "Pseudo-inverse; singular values up to rcond * the largest count as 0.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_pinverse,
};
const dt_op dt_op_linalg_lstsq = {
    .sig =
        "linalg_lstsq(Tensor A, Tensor B, float? rcond=None, *, str? driver=None) -> (Tensor solution, Tensor residuals, Tensor rank, Tensor singular_values)",
    .doc = "X that minimises |A X - B|, of least norm; residuals (m > n), the rank of A.",
    .also = "linalg.lstsq",
    .where = DT_FN,
    .compose = compose_lstsq,
};
