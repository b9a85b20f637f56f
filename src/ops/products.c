/* Products of vectors and matrices that are compositions: PyTorch's BLAS-like names, and those that only arrange shapes. */
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"

#define LL(x) ((long long)(x))

static dt_tensor *fail(dt_scope *s, dt_status status) {
    dt_scope_fail(s, status);
    return NULL;
}

/* Each tensor of a call must have the stated number of dimensions. */
static bool ranks(dt_scope *s, const char *op, int n, dt_tensor *const *t, const int *want) {
    for (int i = 0; i < n; i++) {
        if (!t[i]) return false;
        if (dt_ndim(t[i]) == want[i]) continue;
        fail(s, dt_fail(DT_E_SHAPE, "%s: expected tensor %d to be %dD, got %dD", op, i + 1, want[i], dt_ndim(t[i])));
        return false;
    }
    return true;
}

static bool is_number(dt_value v, double x) { return v.kind == 0 ? x == 1 : v.kind == 2 ? v.f == x : v.kind >= 3 && (double)v.i == x; }
static dt_tensor *scaled(dt_scope *s, dt_tensor *t, dt_value by) { return is_number(by, 1) ? t : dt_mul(s, t, by); }

/* beta * input + alpha * product; with beta 0 input is not read (NaN there does not spread). */
static dt_tensor *accumulate(dt_scope *s, const dt_args *a, int beta, dt_tensor *product) {
    dt_value b = dt_arg_get_value(a, beta), al = dt_arg_get_value(a, beta + 1);
    dt_tensor *input = dt_arg_get_tensor(a, 0), *p = scaled(s, product, al);
    if (!p || !input) return NULL;
    dt_tensor *wide = dt_expand(s, input, ((dt_dims){dt_ndim(p), dt_shape(p)}), false); /* input broadcasts to the product, never the reverse */
    return is_number(b, 0) ? p : dt_add(s, scaled(s, wide, b), p);
}

static void compose_mm(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t[2] = {dt_arg_get_tensor(a, 0), dt_arg_get_tensor(a, 1)};
    if (ranks(s, "mm", 2, t, (const int[]){2, 2})) dt_compose_out(dt_matmul(s, t[0], t[1]), out, n_out);
}
static bool same_batch(dt_scope *s, const char *op, dt_tensor *const *t) {
    if (dt_shape(t[0])[0] == dt_shape(t[1])[0]) return true;
    fail(s, dt_fail(DT_E_SHAPE, "%s: expected batches of the same size, got %lld and %lld", op, LL(dt_shape(t[0])[0]), LL(dt_shape(t[1])[0])));
    return false;
}
static void compose_bmm(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t[2] = {dt_arg_get_tensor(a, 0), dt_arg_get_tensor(a, 1)};
    if (ranks(s, "bmm", 2, t, (const int[]){3, 3}) && same_batch(s, "bmm", t)) dt_compose_out(dt_matmul(s, t[0], t[1]), out, n_out);
}
static void compose_mv(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t[2] = {dt_arg_get_tensor(a, 0), dt_arg_get_tensor(a, 1)};
    if (ranks(s, "mv", 2, t, (const int[]){2, 1})) dt_compose_out(dt_matmul(s, t[0], t[1]), out, n_out);
}
static void compose_addmm(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t[2] = {dt_arg_get_tensor(a, 1), dt_arg_get_tensor(a, 2)};
    if (ranks(s, "addmm", 2, t, (const int[]){2, 2})) dt_compose_out(accumulate(s, a, 3, dt_matmul(s, t[0], t[1])), out, n_out);
}
static void compose_addmv(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t[2] = {dt_arg_get_tensor(a, 1), dt_arg_get_tensor(a, 2)};
    if (ranks(s, "addmv", 2, t, (const int[]){2, 1})) dt_compose_out(accumulate(s, a, 3, dt_matmul(s, t[0], t[1])), out, n_out);
}
static void compose_baddbmm(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t[2] = {dt_arg_get_tensor(a, 1), dt_arg_get_tensor(a, 2)};
    if (ranks(s, "baddbmm", 2, t, (const int[]){3, 3}) && same_batch(s, "baddbmm", t))
        dt_compose_out(accumulate(s, a, 3, dt_matmul(s, t[0], t[1])), out, n_out);
}
static void compose_addbmm(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t[2] = {dt_arg_get_tensor(a, 1), dt_arg_get_tensor(a, 2)};
    if (!ranks(s, "addbmm", 2, t, (const int[]){3, 3}) || !same_batch(s, "addbmm", t)) return;
    dt_compose_out(accumulate(s, a, 3, dt_sum(s, dt_matmul(s, t[0], t[1]), DT_DIMS(0), false, DT_DTYPE_NONE)), out, n_out);
}
static dt_tensor *outer(dt_scope *s, dt_tensor *x, dt_tensor *y) { return dt_mul(s, dt_unsqueeze(s, x, 1), y); }
static void compose_outer(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t[2] = {dt_arg_get_tensor(a, 0), dt_arg_get_tensor(a, 1)};
    if (ranks(s, "outer", 2, t, (const int[]){1, 1})) dt_compose_out(outer(s, t[0], t[1]), out, n_out);
}
static void compose_addr(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t[2] = {dt_arg_get_tensor(a, 1), dt_arg_get_tensor(a, 2)};
    if (ranks(s, "addr", 2, t, (const int[]){1, 1})) dt_compose_out(accumulate(s, a, 3, outer(s, t[0], t[1])), out, n_out);
}
static void compose_vecdot(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    int64_t dim = dt_arg_get_int(a, 2, -1);
    dt_compose_out(dt_sum(s, dt_mul(s, dt_arg_get_tensor(a, 0), dt_arg_get_tensor(a, 1)), DT_DIMS(dim), false, DT_DTYPE_NONE), out, n_out);
}

#define PRODUCT_DOC(what) what " RuntimeError if the shapes or dtypes do not fit."
#define SUM_DOC(what) "beta * input + alpha * " what "; input broadcasts. With beta = 0 input is not read. RuntimeError if the shapes or dtypes do not fit."

const dt_op dt_op_mm = {
    .sig = "mm(Tensor input, Tensor mat2) -> Tensor",
    .doc = PRODUCT_DOC("Product of two matrices: (m, k), (k, n) -> (m, n)."),
    .where = DT_FN | DT_METHOD,
    .compose = compose_mm,
};
const dt_op dt_op_bmm = {
    .sig = "bmm(Tensor input, Tensor mat2) -> Tensor",
    .doc = PRODUCT_DOC("Products of two batches of matrices: (b, m, k), (b, k, n) -> (b, m, n)."),
    .where = DT_FN | DT_METHOD,
    .compose = compose_bmm,
};
const dt_op dt_op_mv = {
    .sig = "mv(Tensor input, Tensor vec) -> Tensor",
    .doc = PRODUCT_DOC("Product of a matrix and a vector: (m, k), (k,) -> (m,)."),
    .where = DT_FN | DT_METHOD,
    .compose = compose_mv,
};
const dt_op dt_op_addmm = {
    .sig = "addmm(Tensor input, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    .doc = SUM_DOC("mat1 mat2"),
    .where = DT_FN | DT_METHOD,
    .compose = compose_addmm,
};
const dt_op dt_op_addmv = {
    .sig = "addmv(Tensor input, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    .doc = SUM_DOC("mat vec"),
    .where = DT_FN | DT_METHOD,
    .compose = compose_addmv,
};
const dt_op dt_op_baddbmm = {
    .sig = "baddbmm(Tensor input, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    .doc = SUM_DOC("batch1 batch2"),
    .where = DT_FN | DT_METHOD,
    .compose = compose_baddbmm,
};
const dt_op dt_op_addbmm = {
    .sig = "addbmm(Tensor input, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    .doc = SUM_DOC("the sum over the batch of batch1 batch2"),
    .where = DT_FN | DT_METHOD,
    .compose = compose_addbmm,
};
const dt_op dt_op_outer = {
    .sig = "outer(Tensor input, Tensor vec2) -> Tensor",
    .doc = PRODUCT_DOC("Outer product of two vectors: (m,), (n,) -> (m, n)."),
    .also = "ger",
    .where = DT_FN | DT_METHOD,
    .compose = compose_outer,
};
const dt_op dt_op_addr = {
    .sig = "addr(Tensor input, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
    .doc = SUM_DOC("the outer product of vec1 and vec2"),
    .where = DT_FN | DT_METHOD,
    .compose = compose_addr,
};
const dt_op dt_op_linalg_vecdot = {
    .sig = "linalg_vecdot(Tensor x, Tensor y, *, int dim=-1) -> Tensor",
    .doc = PRODUCT_DOC("Dot products along dim."),
    .also = "linalg.vecdot",
    .where = DT_FN,
    .compose = compose_vecdot,
};

/* ---- inner, tensordot, bilinear ---- */
static int64_t product_of(const int64_t *shape, int n) {
    int64_t p = 1;
    for (int i = 0; i < n; i++) p *= shape[i];
    return p;
}

/* x (…, k), y (…, k) -> (… of x, … of y) */
static dt_tensor *inner(dt_scope *s, dt_tensor *x, dt_tensor *y) {
    int nx = dt_ndim(x), ny = dt_ndim(y);
    if (!nx || !ny) return dt_mul(s, x, y);
    int64_t k = dt_shape(y)[ny - 1], rows = product_of(dt_shape(y), ny - 1), shape[DT_MAX_DIM * 2];
    if (dt_shape(x)[nx - 1] != k)
        return fail(s, dt_fail(DT_E_SHAPE, "inner: the last dimensions must match, got %lld and %lld", LL(dt_shape(x)[nx - 1]), LL(k)));
    if (nx + ny - 2 > DT_MAX_DIM) return fail(s, dt_fail(DT_E_SHAPE, "inner: the result would have %d dimensions, at most %d", nx + ny - 2, DT_MAX_DIM));
    memcpy(shape, dt_shape(x), sizeof *shape * (size_t)(nx - 1));
    memcpy(shape + nx - 1, dt_shape(y), sizeof *shape * (size_t)(ny - 1));
    if (ny == 1) return dt_matmul(s, x, y);
    dt_tensor *p = dt_linear(s, x, ny == 2 ? y : dt_reshape(s, y, DT_DIMS(rows, k)), NULL);
    return ny == 2 ? p : dt_reshape(s, p, ((dt_dims){nx + ny - 2, shape}));
}
static void compose_inner(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_out(inner(s, dt_arg_get_tensor(a, 0), dt_arg_get_tensor(a, 1)), out, n_out);
}

const dt_op dt_op_inner = {
    .sig = "inner(Tensor input, Tensor other) -> Tensor",
    .doc = PRODUCT_DOC("Sum of products over the last dimensions: (…a, k), (…b, k) -> (…a, …b)."),
    .where = DT_FN | DT_METHOD,
    .compose = compose_inner,
};

/* Dimensions not in `dims` first, in order, then dims; or dims first. */
static dt_tensor *arrange(dt_scope *s, dt_tensor *x, dt_dims d, bool first, int64_t *free_shape, int *n_free, int64_t *k) {
    int nd = dt_ndim(x), n = 0;
    int64_t order[DT_MAX_DIM], wrapped[DT_MAX_DIM];
    uint32_t mask = 0;
    *k = 1;
    for (int i = 0; i < d.n; i++) {
        wrapped[i] = d.v[i];
        dt_status st = dt_dim_wrap(&wrapped[i], nd);
        if (st) return fail(s, st);
        if (mask >> wrapped[i] & 1) return fail(s, dt_fail(DT_E_SHAPE, "tensordot: dimension %lld appears more than once", LL(wrapped[i])));
        mask |= 1u << wrapped[i];
        *k *= dt_shape(x)[wrapped[i]];
    }
    *n_free = 0;
    for (int i = 0; first && i < d.n; i++) order[n++] = wrapped[i];
    for (int i = 0; i < nd; i++)
        if (!(mask >> i & 1)) order[n++] = i, free_shape[(*n_free)++] = dt_shape(x)[i];
    for (int i = 0; !first && i < d.n; i++) order[n++] = wrapped[i];
    int64_t rest = product_of(free_shape, *n_free);
    dt_tensor *p = dt_permute(s, x, ((dt_dims){nd, order}));
    return first ? dt_reshape(s, p, DT_DIMS(*k, rest)) : dt_reshape(s, p, DT_DIMS(rest, *k));
}

static void compose_tensordot(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_dims da = dt_arg_get_dims(a, 2), db = dt_arg_get_dims(a, 3);
    dt_tensor *x = dt_arg_get_tensor(a, 0), *y = dt_arg_get_tensor(a, 1);
    int64_t shape[2 * DT_MAX_DIM], other[DT_MAX_DIM], k1, k2;
    int n1, n2;
    *n_out = 1;
    if (da.n < 0) da.n = 0;
    if (db.n < 0) db.n = 0;
    if (da.n != db.n) {
        fail(s, dt_fail(DT_E_SHAPE, "tensordot: both dims lists should have the same length, got %d and %d", da.n, db.n));
        return;
    }
    for (int i = 0; i < da.n; i++) { /* a contracted size of 1 broadcasts: sum the other */
        int64_t dx = da.v[i] < 0 ? da.v[i] + dt_ndim(x) : da.v[i], dy = db.v[i] < 0 ? db.v[i] + dt_ndim(y) : db.v[i];
        if (dx < 0 || dy < 0 || dx >= dt_ndim(x) || dy >= dt_ndim(y)) break;
        if (dt_shape(x)[dx] == 1 && dt_shape(y)[dy] != 1)
            y = dt_sum(s, y, DT_DIMS(dy), true, DT_DTYPE_NONE);
        else if (dt_shape(y)[dy] == 1 && dt_shape(x)[dx] != 1)
            x = dt_sum(s, x, DT_DIMS(dx), true, DT_DTYPE_NONE);
        if (!x || !y) return;
    }
    if (!(x = arrange(s, x, da, false, shape, &n1, &k1)) || !(y = arrange(s, y, db, true, other, &n2, &k2))) return;
    if (k1 != k2 || n1 + n2 > DT_MAX_DIM) {
        fail(s, dt_fail(DT_E_SHAPE, "tensordot: contracted dimensions need to match, got %lld and %lld elements", LL(k1), LL(k2)));
        return;
    }
    memcpy(shape + n1, other, sizeof *shape * (size_t)n2);
    dt_compose_out(dt_reshape(s, dt_matmul(s, x, y), ((dt_dims){n1 + n2, shape})), out, n_out);
}

const dt_op dt_op_tensordot = {
    .sig = "_tensordot(Tensor input, Tensor other, int[] dims_input, int[] dims_other) -> Tensor",
    .doc = PRODUCT_DOC("Sum of products over pairs of dimensions."),
    .where = DT_HIDDEN,
    .compose = compose_tensordot,
};

/* out[…, o] = sum over i, j of x1[…, i] weight[o, i, j] x2[…, j] */
static void compose_bilinear(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *y = dt_arg_get_tensor(a, 1), *w = dt_arg_get_tensor(a, 2), *b = dt_arg_get_tensor(a, 3);
    *n_out = 1;
    if (dt_ndim(w) != 3 || dt_ndim(x) < 1 || dt_ndim(x) != dt_ndim(y) || dt_ndim(x) + 1 > DT_MAX_DIM) {
        fail(s, dt_fail(DT_E_SHAPE, "bilinear: expected inputs of the same rank and a 3D weight, got %dD, %dD and %dD", dt_ndim(x), dt_ndim(y), dt_ndim(w)));
        return;
    }
    int nd = dt_ndim(x);
    const int64_t *ws = dt_shape(w);
    if (dt_shape(x)[nd - 1] != ws[1] || dt_shape(y)[nd - 1] != ws[2]) {
        fail(s, dt_fail(DT_E_SHAPE, "bilinear: the weight takes %lld and %lld features, got %lld and %lld", LL(ws[1]), LL(ws[2]), LL(dt_shape(x)[nd - 1]),
                        LL(dt_shape(y)[nd - 1])));
        return;
    }
    int64_t shape[DT_MAX_DIM];
    memcpy(shape, dt_shape(x), sizeof *shape * (size_t)(nd - 1));
    shape[nd - 1] = ws[0];
    shape[nd] = ws[2];
    dt_tensor *t = dt_matmul(s, x, dt_reshape(s, dt_permute(s, w, DT_DIMS(1, 0, 2)), DT_DIMS(ws[1], ws[0] * ws[2])));
    t = dt_matmul(s, dt_reshape(s, t, ((dt_dims){nd + 1, shape})), dt_unsqueeze(s, y, -1));
    t = dt_squeeze(s, t, DT_DIMS(-1));
    dt_compose_out(b ? dt_add(s, t, b) : t, out, n_out);
}

const dt_op dt_op_bilinear = {
    .sig = "bilinear(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None) -> Tensor",
    .doc = PRODUCT_DOC("out[…, o] = input1[…, :] weight[o] input2[…, :]' + bias[o]: (…, i), (…, j), (o, i, j), (o,) -> (…, o)."),
    .where = DT_FN | DT_NN,
    .compose = compose_bilinear,
};

/* ---- kron, cross ---- */
static void compose_kron(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *y = dt_arg_get_tensor(a, 1);
    int nd = dt_ndim(x) > dt_ndim(y) ? dt_ndim(x) : dt_ndim(y);
    int64_t xs[DT_MAX_DIM * 2], ys[DT_MAX_DIM * 2], os[DT_MAX_DIM];
    *n_out = 1;
    if (2 * nd > DT_MAX_DIM) {
        fail(s, dt_fail(DT_E_SHAPE, "kron: at most %d dimensions, got %d", DT_MAX_DIM / 2, nd));
        return;
    }
    for (int d = 0; d < nd; d++) {
        int ix = d - (nd - dt_ndim(x)), iy = d - (nd - dt_ndim(y));
        xs[2 * d] = ix < 0 ? 1 : dt_shape(x)[ix];
        ys[2 * d + 1] = iy < 0 ? 1 : dt_shape(y)[iy];
        xs[2 * d + 1] = ys[2 * d] = 1;
        os[d] = xs[2 * d] * ys[2 * d + 1];
    }
    dt_tensor *p = dt_mul(s, dt_reshape(s, x, ((dt_dims){2 * nd, xs})), dt_reshape(s, y, ((dt_dims){2 * nd, ys})));
    dt_compose_out(dt_reshape(s, p, ((dt_dims){nd, os})), out, n_out);
}
const dt_op dt_op_kron = {
    .sig = "kron(Tensor input, Tensor other) -> Tensor",
    .doc = "Kronecker product; the shapes, filled with ones from the left, are multiplied.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_kron,
};

static dt_tensor *turned(dt_scope *s, dt_tensor *x, int64_t dim, int64_t by) { /* x[by], x[by + 1], … (mod 3) */
    dt_tensor *parts[2] = {dt_narrow(s, x, dim, by, 3 - by), dt_narrow(s, x, dim, 0, by)};
    return dt_cat(s, ((dt_list){2, parts}), dim);
}

static dt_tensor *cross(dt_scope *s, dt_tensor *x, dt_tensor *y, int64_t dim) {
    int nd = dt_ndim(x);
    if (nd != dt_ndim(y)) return fail(s, dt_fail(DT_E_SHAPE, "cross: inputs must have the same number of dimensions, got %d and %d", nd, dt_ndim(y)));
    dt_status st = dt_dim_wrap(&dim, nd);
    if (st) return fail(s, st);
    if (nd == 0 || dt_shape(x)[dim] != 3 || dt_shape(y)[dim] != 3)
        return fail(s, dt_fail(DT_E_SHAPE, "cross: inputs dimension %lld must have length 3", LL(dim)));
    return dt_sub(s, dt_mul(s, turned(s, x, dim, 1), turned(s, y, dim, 2)), dt_mul(s, turned(s, x, dim, 2), turned(s, y, dim, 1)));
}
static void compose_linalg_cross(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_out(cross(s, dt_arg_get_tensor(a, 0), dt_arg_get_tensor(a, 1), dt_arg_get_int(a, 2, -1)), out, n_out);
}
static void compose_cross(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { /* without dim: the first of size 3 */
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    int64_t dim = dt_arg_given(a, 2) ? dt_arg_get_int(a, 2, 0) : 0;
    if (!dt_arg_given(a, 2))
        while (dim < dt_ndim(x) - 1 && dt_shape(x)[dim] != 3) dim++;
    dt_compose_out(cross(s, x, dt_arg_get_tensor(a, 1), dim), out, n_out);
}
const dt_op dt_op_cross = {
    .sig = "cross(Tensor input, Tensor other, int? dim=None) -> Tensor",
    .doc = "Cross product of vectors of three along dim (default: the first dimension of size 3).",
    .where = DT_FN | DT_METHOD,
    .compose = compose_cross,
};
const dt_op dt_op_linalg_cross = {
    .sig = "linalg_cross(Tensor input, Tensor other, *, int dim=-1) -> Tensor",
    .doc = "Cross product of vectors of three along dim.",
    .also = "linalg.cross",
    .where = DT_FN,
    .compose = compose_linalg_cross,
};

/* ---- powers and chains ---- */
static void compose_matrix_power(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *r = NULL;
    int64_t n = dt_arg_get_int(a, 1, 1);
    int nd = dt_ndim(x);
    *n_out = 1;
    if (nd < 2 || dt_shape(x)[nd - 1] != dt_shape(x)[nd - 2]) {
        fail(s, dt_fail(DT_E_SHAPE, "linalg.matrix_power: A must be batches of square matrices, got %dD", nd));
        return;
    }
    if (n < 0) x = dt_inverse(s, x);
    if (n == 0) { /* the identity, as a result of x: its gradient is 0 */
        dt_tensor *one = dt_triu(s, dt_tril(s, dt_ones_like(s, x, DT_DTYPE_NONE), 0), 0);
        r = dt_where(s, dt_ones_like(s, x, DT_bool), one, x);
    }
    for (uint64_t e = n < 0 ? (uint64_t)-n : (uint64_t)n; e; e >>= 1) {
        if (e & 1) r = r ? dt_matmul(s, r, x) : x;
        if (e > 1) x = dt_matmul(s, x, x);
    }
    dt_compose_out(r, out, n_out);
}
const dt_op dt_op_matrix_power = {
    .sig = "matrix_power(Tensor input, int n) -> Tensor",
    .doc = "input multiplied n times by itself (its inverse for negative n; the identity for 0), for (…, m, m). RuntimeError if not square.",
    .also = "linalg.matrix_power",
    .where = DT_FN | DT_METHOD,
    .compose = compose_matrix_power,
};

enum { CHAIN = 32 };
typedef struct chain {
    dt_tensor *m[CHAIN];
    int split[CHAIN][CHAIN];
} chain;
static dt_tensor *multiply(dt_scope *s, const chain *c, int i, int j) {
    return i == j ? c->m[i] : dt_matmul(s, multiply(s, c, i, c->split[i][j]), multiply(s, c, c->split[i][j] + 1, j));
}

/* The cheapest order of multiplication (the classic dynamic programme); a vector may stand at either end. */
static void compose_multi_dot(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    int n = a->a[0].kind == DT_ARG_TENSORS ? a->a[0].n : 0;
    chain c;
    int64_t p[CHAIN + 1];
    double cost[CHAIN][CHAIN] = {{0}};
    *n_out = 1;
    if (n < 1 || n > CHAIN) {
        fail(s, dt_fail(DT_E_SHAPE, "multi_dot: expected 2 to %d tensors, got %d", CHAIN, n));
        return;
    }
    for (int i = 0; i < n; i++) {
        dt_tensor *t = c.m[i] = a->a[0].list[i];
        int nd = dt_ndim(t);
        if (nd != 2 && !(nd == 1 && (i == 0 || i == n - 1))) {
            fail(s, dt_fail(DT_E_SHAPE, "multi_dot: tensor %d must be 2D, got %dD", i, nd));
            return;
        }
        p[i] = nd == 1 && i == 0 ? 1 : dt_shape(t)[0];
        p[i + 1] = nd == 1 ? (i == 0 ? dt_shape(t)[0] : 1) : dt_shape(t)[1];
    }
    for (int len = 1; len < n; len++)
        for (int i = 0; i + len < n; i++)
            for (int k = i, j = i + len; k < j; k++) {
                double v = cost[i][k] + cost[k + 1][j] + (double)p[i] * (double)p[k + 1] * (double)p[j + 1];
                if (k == i || v < cost[i][j]) cost[i][j] = v, c.split[i][j] = k;
            }
    dt_compose_out(multiply(s, &c, 0, n - 1), out, n_out);
}
const dt_op dt_op_linalg_multi_dot = {
    .sig = "linalg_multi_dot(Tensor[] tensors) -> Tensor",
    .doc = "Product of two or more matrices in the cheapest order; the first and last may be vectors.",
    .also = "linalg.multi_dot",
    .where = DT_FN,
    .compose = compose_multi_dot,
};
const dt_op dt_op_chain_matmul = {
    .sig = "chain_matmul(Tensor[]... matrices) -> Tensor",
    .doc = "Product of matrices in the cheapest order.",
    .where = DT_FN,
    .compose = compose_multi_dot,
};
