/* Factorisations, inverses and solutions: the primitives (hidden) and their gradients, on batches of f32 or f64 matrices (…, m, n).
 *
 *   linalg_inv, linalg_solve, linalg_cholesky   also give LAPACK's info, one int32 a matrix
 *   linalg_det                                  determinant, sign, log |determinant|
 *   linalg_solve_triangular, linalg_qr, linalg_eigh, linalg_svd, linalg_pinv
 *
 * Batch dimensions shard; a matrix is never cut. PyTorch's functions, in linalg_api.c, are compositions of these. Formulas of gradients: Giles,
 * "Collected matrix derivative results" (2008); Walter and Lehmann (2018) for QR; Golub and Pereyra (1973) for the pseudo-inverse. */
#include "ops/linalg.h"

#include <math.h>
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"

DT_CPU_KERNEL(linalg_inv);
DT_CPU_KERNEL(linalg_solve);
DT_CPU_KERNEL(linalg_det);
DT_CPU_KERNEL(linalg_cholesky);
DT_CPU_KERNEL(linalg_solve_triangular);
DT_CPU_KERNEL(linalg_qr);
DT_CPU_KERNEL(linalg_eigh);
DT_CPU_KERNEL(linalg_svd);
DT_CPU_KERNEL(linalg_pinv);

#define LL(x) ((long long)(x))
#define F32_F64 (DT_BIT(float32) | DT_BIT(float64))

/* ---- shapes ---- */
static dt_status check_matrix(const dt_node *n, bool square) {
    const dt_meta *a = n->in[0];
    const char *op = dt_op_name(n->op);
    if (*op == '_') op++;
    if (a->ndim < 2) return dt_fail(DT_E_SHAPE, "%s: The input tensor A must have at least 2 dimensions, got %d", op, a->ndim);
    if (a->dtype != DT_float32 && a->dtype != DT_float64)
        return dt_fail(DT_E_DTYPE, "%s: expected a float32 or float64 tensor, got %s", op, dt_dtype_name((dt_dtype)a->dtype));
    int64_t m = a->shape[a->ndim - 2], k = a->shape[a->ndim - 1];
    if (square && m != k) return dt_fail(DT_E_SHAPE, "%s: A must be batches of square matrices, but they are %lld by %lld matrices", op, LL(m), LL(k));
    return DT_OK;
}

/* Out i: a's batch, then n sizes. */
static void set_out(dt_node *n, int i, dt_dtype t, int count, int64_t rows, int64_t cols) {
    dt_type *o = &n->out[i];
    *o = dt_meta_type(n->in[0]);
    o->dtype = t;
    o->ndim += count - 2;
    if (count > 0) o->shape[o->ndim - count] = rows;
    if (count > 1) o->shape[o->ndim - 1] = cols;
}

static dt_status check_rhs(const dt_node *n, int64_t rows, int from_end) {
    const dt_meta *a = n->in[0], *b = n->in[1];
    bool same = a->ndim == b->ndim && a->dtype == b->dtype;
    for (int d = 0; same && d < a->ndim - 2; d++) same = a->shape[d] == b->shape[d];
    if (!same) return dt_fail(DT_E_SHAPE, "linalg.solve: A and B must have the same batch dimensions and dtype");
    if (b->shape[b->ndim - from_end] != rows)
        return dt_fail(DT_E_SHAPE, "linalg.solve: Incompatible shapes of A and B: %lld unknowns and %lld", LL(rows), LL(b->shape[b->ndim - from_end]));
    return DT_OK;
}

static dt_status infer_inv(dt_node *n) {
    DT_TRY(check_matrix(n, true));
    n->out[0] = dt_meta_type(n->in[0]);
    set_out(n, 1, DT_int32, 0, 0, 0);
    return DT_OK;
}
static dt_status infer_solve(dt_node *n) {
    DT_TRY(check_matrix(n, true));
    DT_TRY(check_rhs(n, n->in[0]->shape[n->in[0]->ndim - 1], 2));
    n->out[0] = dt_meta_type(n->in[1]);
    set_out(n, 1, DT_int32, 0, 0, 0);
    return DT_OK;
}
static dt_status infer_triangular(dt_node *n) {
    const dt_linalg_attr *a = n->attr;
    DT_TRY(check_matrix(n, true));
    DT_TRY(check_rhs(n, n->in[0]->shape[n->in[0]->ndim - 1], a->left ? 2 : 1));
    n->out[0] = dt_meta_type(n->in[1]);
    return DT_OK;
}
static dt_status infer_det(dt_node *n) {
    DT_TRY(check_matrix(n, true));
    for (int i = 0; i < 3; i++) set_out(n, i, (dt_dtype)n->in[0]->dtype, 0, 0, 0);
    return DT_OK;
}
static dt_status infer_qr(dt_node *n) {
    const dt_linalg_attr *a = n->attr;
    DT_TRY(check_matrix(n, false));
    int64_t m = n->in[0]->shape[n->in[0]->ndim - 2], k = n->in[0]->shape[n->in[0]->ndim - 1], p = a->full || m < k ? m : k;
    set_out(n, 0, (dt_dtype)n->in[0]->dtype, 2, m, p);
    set_out(n, 1, (dt_dtype)n->in[0]->dtype, 2, p, k);
    return DT_OK;
}
static dt_status infer_eigh(dt_node *n) {
    DT_TRY(check_matrix(n, true));
    set_out(n, 0, (dt_dtype)n->in[0]->dtype, 1, n->in[0]->shape[n->in[0]->ndim - 1], 0);
    n->out[1] = dt_meta_type(n->in[0]);
    return DT_OK;
}
static dt_status infer_svd(dt_node *n) {
    const dt_linalg_attr *a = n->attr;
    DT_TRY(check_matrix(n, false));
    dt_dtype t = (dt_dtype)n->in[0]->dtype;
    int64_t m = n->in[0]->shape[n->in[0]->ndim - 2], p = n->in[0]->shape[n->in[0]->ndim - 1], k = m < p ? m : p;
    set_out(n, 0, t, 2, m, a->full ? m : k);
    set_out(n, 1, t, 1, k, 0);
    set_out(n, 2, t, 2, a->full ? p : k, p);
    return DT_OK;
}
static dt_status infer_pinv(dt_node *n) {
    DT_TRY(check_matrix(n, false));
    set_out(n, 0, (dt_dtype)n->in[0]->dtype, 2, n->in[0]->shape[n->in[0]->ndim - 1], n->in[0]->shape[n->in[0]->ndim - 2]);
    return DT_OK;
}

static dt_status place_batch(const dt_node *n, dt_rules *r) {
    for (int d = 0; d < n->in[0]->ndim - 2; d++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        for (int i = 0; i < r->n_in; i++) in[i] = DT_S(d);
        for (int i = 0; i < r->n_out; i++) out[i] = DT_S(d);
    }
    return DT_OK;
}

static size_t scratch(const dt_kctx *c) {
    const dt_view *a = &c->in[0];
    size_t batch = 1;
    for (int d = 0; d < a->ndim - 2; d++) batch *= (size_t)a->shape[d];
    return batch * dt_linalg_scratch(a->shape[a->ndim - 2], a->shape[a->ndim - 1], dt_dtype_size(a->dtype));
}

/* ---- pieces of gradients ---- */
static dt_tensor *T(dt_scope *s, dt_tensor *x) { return dt_transpose(s, x, -2, -1); }
static dt_tensor *eye_like(dt_scope *s, dt_tensor *x) { return dt_triu(s, dt_tril(s, dt_ones_like(s, x, DT_DTYPE_NONE), 0), 0); }
static dt_tensor *column(dt_scope *s, dt_tensor *v) { return dt_unsqueeze(s, v, -1); } /* scales rows */
static dt_tensor *row(dt_scope *s, dt_tensor *v) { return dt_unsqueeze(s, v, -2); }    /* scales columns */
static dt_tensor *skew(dt_scope *s, dt_tensor *x) { return dt_sub(s, x, T(s, x)); }
static dt_tensor *as_matrix(dt_scope *s, dt_tensor *scalar) { return dt_unsqueeze(s, dt_unsqueeze(s, scalar, -1), -1); }
static dt_tensor *add(dt_scope *s, dt_tensor *a, dt_tensor *b) { return a && b ? dt_add(s, a, b) : a ? a : b; }
static dt_tensor *gaps(dt_scope *s, dt_tensor *w, dt_tensor *like) {
    return dt_add(s, dt_sub(s, row(s, w), column(s, w)), eye_like(s, like));
} /* w_j - w_i; 1 on the diagonal */

static void grad_inv(dt_grad *g) {
    dt_tensor *y = dt_grad_out(g, 0);
    dt_grad_set(g, 0, dt_neg(g->s, dt_gemm(g->s, dt_gemm(g->s, y, dt_grad_gy(g, 0), true, false), y, false, true)));
}

static void grad_solve(dt_grad *g) {
    dt_tensor *both[2];
    if (dt_linalg_solve(g->s, T(g->s, dt_grad_in(g, 0)), dt_grad_gy(g, 0), true, both)) return;
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, both[0]);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_neg(g->s, dt_gemm(g->s, both[0], dt_grad_out(g, 0), false, true)));
}

static void grad_triangular(dt_grad *g) {
    const dt_linalg_attr *a = dt_grad_attr(g);
    dt_scope *s = g->s;
    dt_tensor *x = dt_grad_out(g, 0), *gb = dt_linalg_solve_triangular(s, T(s, dt_grad_in(g, 0)), dt_grad_gy(g, 0), !a->upper, a->left, a->unitriangular);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, gb);
    if (!dt_grad_needs(g, 0)) return;
    dt_tensor *ga = dt_neg(s, a->left ? dt_gemm(s, gb, x, false, true) : dt_gemm(s, x, gb, true, false));
    dt_grad_set(g, 0, a->upper ? dt_triu(s, ga, a->unitriangular) : dt_tril(s, ga, a->unitriangular ? -1 : 0));
}

/* The cofactors, singular matrices included: with a = u s v, they are det(u) det(v) u diag(product of the other s) v. */
static dt_tensor *cofactors(dt_scope *s, dt_tensor *a) {
    dt_tensor *usv[3], *du[3], *dv[3];
    if (dt_linalg_svd(s, a, false, usv) || dt_linalg_det(s, usv[0], du) || dt_linalg_det(s, usv[2], dv)) return NULL;
    dt_tensor *sign = as_matrix(s, dt_mul(s, du[0], dv[0]));
    return dt_mul(s, sign, dt_matmul(s, dt_mul(s, usv[0], row(s, dt_prod_others(s, usv[1], -1))), usv[2]));
}

static void grad_det(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *a = dt_grad_in(g, 0), *sum = NULL, *inverse[2];
    bool higher = dt_higher_order();
    if ((dt_grad_gy_given(g, 2) || higher) && dt_linalg_inv(s, a, false, inverse)) return;
    if (dt_grad_gy_given(g, 0) && !higher) sum = dt_mul(s, as_matrix(s, dt_grad_gy(g, 0)), cofactors(s, a));
    if (dt_grad_gy_given(g, 0) && higher) sum = dt_mul(s, as_matrix(s, dt_mul(s, dt_grad_gy(g, 0), dt_grad_out(g, 0))), T(s, inverse[0]));
    if (dt_grad_gy_given(g, 2)) sum = add(s, sum, dt_mul(s, as_matrix(s, dt_grad_gy(g, 2)), T(s, inverse[0])));
    dt_grad_set(g, 0, sum);
}

static dt_tensor *half_diagonal(dt_scope *s, dt_tensor *x) {
    return dt_mul(s, dt_add(s, dt_tril(s, x, 0), dt_tril(s, x, -1)), 0.5);
} /* of the lower triangle */

static void grad_cholesky(dt_grad *g) {
    const dt_linalg_attr *a = dt_grad_attr(g);
    dt_scope *s = g->s;
    dt_tensor *f = dt_grad_out(g, 0), *gf = dt_grad_gy(g, 0), *lt = a->upper ? f : T(s, f), *l = a->upper ? T(s, f) : f;
    dt_tensor *p = half_diagonal(s, a->upper ? dt_gemm(s, f, gf, false, true) : dt_gemm(s, f, gf, true, false));
    dt_tensor *x = dt_linalg_solve_triangular(s, l, dt_linalg_solve_triangular(s, lt, p, true, true, false), false, false, false);
    dt_grad_set(g, 0, dt_mul(s, dt_add(s, x, T(s, x)), 0.5));
}

/* Square or tall a = q r. */
static dt_tensor *qr_tall(dt_scope *s, dt_tensor *q, dt_tensor *r, dt_tensor *gq, dt_tensor *gr) {
    dt_tensor *m = dt_sub(s, dt_gemm(s, r, gr, false, true), dt_gemm(s, gq, q, true, false));
    dt_tensor *sym = dt_add(s, dt_tril(s, m, 0), T(s, dt_tril(s, m, -1)));
    return dt_linalg_solve_triangular(s, T(s, r), dt_add(s, gq, dt_matmul(s, q, sym)), false, false, false);
}

static void grad_qr(dt_grad *g) {
    dt_scope *s = g->s;
    const dt_meta *a = dt_grad_in_meta(g, 0);
    const dt_linalg_attr *at = dt_grad_attr(g);
    int64_t m = a->shape[a->ndim - 2], n = a->shape[a->ndim - 1];
    dt_tensor *q = dt_grad_out(g, 0), *r = dt_grad_out(g, 1), *gq = dt_grad_gy(g, 0), *gr = dt_grad_gy(g, 1);
    if (at->full && m > n) {
        dt_scope_fail(s, dt_fail(DT_E_GRAD, "linalg.qr: the QR decomposition is not differentiable when mode='complete' and nrows > ncols"));
        return;
    }
    if (m >= n) {
        dt_grad_set(g, 0, qr_tall(s, q, r, gq, gr));
        return;
    }
    dt_tensor *v = dt_narrow(s, r, -1, m, n - m), *gv = dt_narrow(s, gr, -1, m, n - m); /* a = [x y] = q [u v] */
    dt_tensor *gx = qr_tall(s, q, dt_narrow(s, r, -1, 0, m), dt_add(s, gq, dt_gemm(s, dt_matmul(s, q, v), gv, false, true)), dt_narrow(s, gr, -1, 0, m));
    dt_grad_set(g, 0, dt_cat(s, DT_LIST(gx, dt_matmul(s, q, gv)), -1));
}

static void grad_eigh(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *w = dt_grad_out(g, 0), *v = dt_grad_out(g, 1), *mid = NULL;
    if (dt_grad_gy_given(g, 1)) mid = dt_div(s, dt_mul(s, skew(s, dt_gemm(s, v, dt_grad_gy(g, 1), true, false)), 0.5), gaps(s, w, v));
    if (dt_grad_gy_given(g, 0)) mid = add(s, mid, dt_mul(s, eye_like(s, v), column(s, dt_grad_gy(g, 0))));
    dt_grad_set(g, 0, dt_gemm(s, dt_matmul(s, v, mid), v, false, true));
}

/* x - p p' x: what lies outside the span of p's columns. */
static dt_tensor *outside(dt_scope *s, dt_tensor *p, dt_tensor *x) { return dt_sub(s, x, dt_matmul(s, p, dt_gemm(s, p, x, true, false))); }

static void grad_svd(dt_grad *g) {
    dt_scope *s = g->s;
    const dt_meta *a = dt_grad_in_meta(g, 0);
    int64_t m = a->shape[a->ndim - 2], n = a->shape[a->ndim - 1], k = m < n ? m : n;
    dt_tensor *u = dt_narrow(s, dt_grad_out(g, 0), -1, 0, k), *w = dt_grad_out(g, 1), *v = T(s, dt_narrow(s, dt_grad_out(g, 2), -2, 0, k)), *mid = NULL, *all;
    dt_tensor *gu = dt_grad_gy_given(g, 0) ? dt_narrow(s, dt_grad_gy(g, 0), -1, 0, k) : NULL;
    dt_tensor *gv = dt_grad_gy_given(g, 2) ? T(s, dt_narrow(s, dt_grad_gy(g, 2), -2, 0, k)) : NULL;
    dt_tensor *square = dt_gemm(s, u, u, true, false), *e = gu || gv ? gaps(s, dt_mul(s, w, w), square) : NULL; /* square: a k x k pattern */
    if (gu) mid = dt_mul(s, dt_div(s, skew(s, dt_gemm(s, u, gu, true, false)), e), row(s, w));
    if (gv) mid = add(s, mid, dt_mul(s, column(s, w), dt_div(s, skew(s, dt_gemm(s, v, gv, true, false)), e)));
    if (dt_grad_gy_given(g, 1)) mid = add(s, mid, dt_mul(s, eye_like(s, square), column(s, dt_grad_gy(g, 1))));
    if (!mid) return;
    all = dt_gemm(s, dt_matmul(s, u, mid), v, false, true);
    if (gu && m > k) all = dt_add(s, all, dt_gemm(s, dt_div(s, outside(s, u, gu), row(s, w)), v, false, true));
    if (gv && n > k) all = dt_add(s, all, dt_gemm(s, u, dt_div(s, outside(s, v, gv), row(s, w)), false, true));
    dt_grad_set(g, 0, all);
}

static void grad_pinv(dt_grad *g) { /* p = pinv(a), h = gy' */
    dt_scope *s = g->s;
    const dt_meta *m = dt_grad_in_meta(g, 0);
    dt_tensor *a = dt_grad_in(g, 0), *p = dt_grad_out(g, 0), *h = T(s, dt_grad_gy(g, 0)), *pt = T(s, p);
    if (m->shape[m->ndim - 2] <= m->shape[m->ndim - 1]) {
        dt_tensor *k = dt_matmul(s, h, p), *kp = dt_matmul(s, k, pt);
        dt_tensor *r = dt_sub(s, kp, T(s, dt_matmul(s, p, k)));
        r = dt_sub(s, r, dt_matmul(s, dt_matmul(s, a, p), kp));
        dt_grad_set(g, 0, dt_add(s, r, dt_matmul(s, dt_matmul(s, pt, p), dt_sub(s, h, dt_matmul(s, k, a)))));
    } else {
        dt_tensor *k = dt_matmul(s, p, h), *pk = dt_matmul(s, pt, k);
        dt_tensor *r = dt_sub(s, pk, T(s, dt_matmul(s, k, p)));
        r = dt_add(s, r, dt_matmul(s, dt_matmul(s, dt_sub(s, h, dt_matmul(s, a, k)), p), pt));
        dt_grad_set(g, 0, dt_sub(s, r, dt_matmul(s, dt_matmul(s, pk, p), a)));
    }
}

static double flops_cubic(const dt_node *n) { return (double)n->in[0]->numel * (double)n->in[0]->shape[n->in[0]->ndim - 1] * 2; }
#define ATTR(...) DT_ATTRS(dt_linalg_attr, __VA_ARGS__)
#define FIELD(name) DT_FIELD(dt_linalg_attr, name)

const dt_op dt_op_linalg_inv = {
    .sig = "_linalg_inv(Tensor A, bool check) -> (Tensor inverse, Tensor info)",
    .doc = "Inverses, and LAPACK's info.",
    .where = DT_HIDDEN,
    .attrs = ATTR(FIELD(check)),
    .infer = infer_inv,
    .place = place_batch,
    .grad = grad_inv,
    .saves = DT_SAVE_OUT(0),
    .scratch = scratch,
    .flops = flops_cubic,
    .kernels = {{DT_CPU, F32_F64, dt_cpu_linalg_inv, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_linalg_solve = {
    .sig = "_linalg_solve(Tensor A, Tensor B, bool check) -> (Tensor result, Tensor info)",
    .doc = "X of A X = B with equal batches, and LAPACK's info.",
    .where = DT_HIDDEN,
    .attrs = ATTR(FIELD(check)),
    .infer = infer_solve,
    .place = place_batch,
    .grad = grad_solve,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .scratch = scratch,
    .flops = flops_cubic,
    .kernels = {{DT_CPU, F32_F64, dt_cpu_linalg_solve, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_linalg_det = {
    .sig = "_linalg_det(Tensor A) -> (Tensor det, Tensor sign, Tensor logabsdet)",
    .doc = "Determinant, its sign and the logarithm of its absolute value.",
    .where = DT_HIDDEN,
    .infer = infer_det,
    .place = place_batch,
    .grad = grad_det,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .scratch = scratch,
    .flops = flops_cubic,
    .kernels = {{DT_CPU, F32_F64, dt_cpu_linalg_det, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_linalg_cholesky = {
    .sig = "_linalg_cholesky(Tensor A, bool upper, bool check) -> (Tensor L, Tensor info)",
    .doc = "Cholesky factors, and LAPACK's info.",
    .where = DT_HIDDEN,
    .attrs = ATTR(FIELD(upper), FIELD(check)),
    .infer = infer_inv,
    .place = place_batch,
    .grad = grad_cholesky,
    .saves = DT_SAVE_OUT(0),
    .scratch = scratch,
    .flops = flops_cubic,
    .kernels = {{DT_CPU, F32_F64, dt_cpu_linalg_cholesky, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_linalg_solve_triangular = {
    .sig = "_linalg_solve_triangular(Tensor A, Tensor B, bool upper, bool left, bool unitriangular) -> Tensor",
    .doc = "X of A X = B (X A = B) with triangular A and equal batches.",
    .where = DT_HIDDEN,
    .attrs = ATTR(FIELD(upper), FIELD(left), FIELD(unitriangular)),
    .infer = infer_triangular,
    .place = place_batch,
    .grad = grad_triangular,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .scratch = scratch,
    .flops = flops_cubic,
    .kernels = {{DT_CPU, F32_F64, dt_cpu_linalg_solve_triangular, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_linalg_qr = {
    .sig = "_linalg_qr(Tensor A, bool full) -> (Tensor Q, Tensor R)",
    .doc = "A = Q R.",
    .where = DT_HIDDEN,
    .attrs = ATTR(FIELD(full)),
    .infer = infer_qr,
    .place = place_batch,
    .grad = grad_qr,
    .saves = DT_SAVE_OUT(0) | DT_SAVE_OUT(1),
    .scratch = scratch,
    .flops = flops_cubic,
    .kernels = {{DT_CPU, F32_F64, dt_cpu_linalg_qr, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_linalg_eigh = {
    .sig = "_linalg_eigh(Tensor A, bool upper) -> (Tensor eigenvalues, Tensor eigenvectors)",
    .doc = "Eigenvalues, ascending, and eigenvectors of symmetric matrices.",
    .where = DT_HIDDEN,
    .attrs = ATTR(FIELD(upper)),
    .infer = infer_eigh,
    .place = place_batch,
    .grad = grad_eigh,
    .saves = DT_SAVE_OUT(0) | DT_SAVE_OUT(1),
    .scratch = scratch,
    .flops = flops_cubic,
    .kernels = {{DT_CPU, F32_F64, dt_cpu_linalg_eigh, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_linalg_svd = {
    .sig = "_linalg_svd(Tensor A, bool full) -> (Tensor U, Tensor S, Tensor Vh)",
    .doc = "A = U diag(S) Vh.",
    .where = DT_HIDDEN,
    .attrs = ATTR(FIELD(full)),
    .infer = infer_svd,
    .place = place_batch,
    .grad = grad_svd,
    .saves = DT_SAVE_OUT(0) | DT_SAVE_OUT(1) | DT_SAVE_OUT(2),
    .scratch = scratch,
    .flops = flops_cubic,
    .kernels = {{DT_CPU, F32_F64, dt_cpu_linalg_svd, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_linalg_pinv = {
    .sig = "_linalg_pinv(Tensor A, float atol, float rtol, bool hermitian) -> Tensor",
    .doc = "Pseudo-inverse; singular values up to max(atol, rtol * the largest) count as 0.",
    .where = DT_HIDDEN,
    .attrs = ATTR(FIELD(atol), FIELD(rtol), FIELD(hermitian)),
    .infer = infer_pinv,
    .place = place_batch,
    .grad = grad_pinv,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .scratch = scratch,
    .flops = flops_cubic,
    .kernels = {{DT_CPU, F32_F64, dt_cpu_linalg_pinv, DT_K_CONTIGUOUS, NULL}},
};
