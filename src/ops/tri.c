/* Triangles and diagonals as new tensors: tril, triu, diag, diag_embed, diagflat. */
#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

DT_CPU_KERNEL(tril);
DT_CPU_KERNEL(triu);

static dt_status infer_tri(dt_node *n) {
    if (n->in[0]->ndim < 2) return dt_fail(DT_E_SHAPE, "%s: input tensor must have at least 2 dimensions, got %d", dt_op_name(n->op), n->in[0]->ndim);
    return dt_infer_same(n);
}
static dt_status place_tri(const dt_node *n, dt_rules *r) {
    DT_TRY(dt_place_except(n, r, 0)); /* kernels know their place in the whole */
    return dt_move_partial(n, r, DT_MOVE_LINEAR);
}
static void grad_tril(dt_grad *g) { dt_grad_set(g, 0, dt_tril(g->s, dt_grad_gy(g, 0), ((const dt_tri_attr *)dt_grad_attr(g))->diagonal)); }
static void grad_triu(dt_grad *g) { dt_grad_set(g, 0, dt_triu(g->s, dt_grad_gy(g, 0), ((const dt_tri_attr *)dt_grad_attr(g))->diagonal)); }

const dt_op dt_op_tril = {
    .sig = "tril(Tensor input, int diagonal=0) -> Tensor",
    .doc = "The lower triangles of matrices (the last two dimensions), up to the given diagonal; zeros elsewhere.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_tri_attr, DT_FIELD(dt_tri_attr, diagonal)),
    .infer = infer_tri,
    .place = place_tri,
    .grad = grad_tril,
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_tril}},
};
const dt_op dt_op_triu = {
    .sig = "triu(Tensor input, int diagonal=0) -> Tensor",
    .doc = "The upper triangles of matrices (the last two dimensions), from the given diagonal; zeros elsewhere.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_tri_attr, DT_FIELD(dt_tri_attr, diagonal)),
    .infer = infer_tri,
    .place = place_tri,
    .grad = grad_triu,
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_triu}},
};

/* input's last dimension on the diagonal of two new dimensions dim1 < or > dim2 (of the result). */
static dt_tensor *embed(dt_scope *s, dt_tensor *t, int64_t offset, int64_t dim1, int64_t dim2) {
    int nd = dt_ndim(t) + 1, k = 0;
    int64_t sizes[DT_MAX_DIM], len;
    if (nd < 2 || nd > DT_MAX_DIM) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "diag_embed: input must have 1 to %d dimensions, got %d", DT_MAX_DIM - 1, nd - 1));
        return NULL;
    }
    if (!dt_compose_dim(s, &dim1, nd) || !dt_compose_dim(s, &dim2, nd)) return NULL;
    if (dim1 == dim2) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "diagonal dimensions cannot be identical %lld, %lld", (long long)dim1, (long long)dim2));
        return NULL;
    }
    len = dt_shape(t)[nd - 2] + (offset < 0 ? -offset : offset);
    for (int d = 0; d < nd; d++) sizes[d] = d == dim1 || d == dim2 ? len : dt_shape(t)[k++];
    return dt_diagonal_backward(s, t, (dt_dims){nd, sizes}, offset, dim1, dim2);
}
static void compose_diag_embed(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_return(out, n_out, embed(s, dt_arg_get_tensor(a, 0), dt_arg_get_int(a, 1, 0), dt_arg_get_int(a, 2, -2), dt_arg_get_int(a, 3, -1)));
}
const dt_op dt_op_diag_embed = {
    .sig = "diag_embed(Tensor input, int offset=0, int dim1=-2, int dim2=-1) -> Tensor",
    .doc = "Zeros with the last dimension of input on the diagonals of two new dimensions dim1 and dim2.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_diag_embed,
};
static void compose_diag(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t = dt_arg_get_tensor(a, 0);
    int64_t k = dt_arg_get_int(a, 1, 0);
    if (dt_ndim(t) == 1)
        dt_compose_return(out, n_out, embed(s, t, k, 0, 1));
    else if (dt_ndim(t) == 2)
        dt_compose_return(out, n_out, dt_contiguous(s, dt_diagonal(s, t, k, 0, 1)));
    else
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "diag(): Supports 1D or 2D tensors. Got %dD", dt_ndim(t)));
}
const dt_op dt_op_diag = {
    .sig = "diag(Tensor input, int diagonal=0) -> Tensor",
    .doc = "A 1-dim input on the diagonal of a square matrix; or the diagonal of a matrix.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_diag,
};
static void compose_diagflat(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_return(out, n_out, embed(s, dt_ravel(s, dt_arg_get_tensor(a, 0)), dt_arg_get_int(a, 1, 0), 0, 1));
}
const dt_op dt_op_diagflat = {
    .sig = "diagflat(Tensor input, int offset=0) -> Tensor",
    .doc = "All elements of input on the diagonal of a square matrix.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_diagflat,
};

/* ---- indices of triangles ---- */
/* How many columns row i keeps in tril with this offset. */
static int64_t kept(int64_t i, int64_t cols, int64_t offset) {
    int64_t k = i + offset + 1;
    return k < 0 ? 0 : k > cols ? cols : k;
}
static void tri_indices(dt_scope *s, const dt_args *a, bool lower, dt_tensor **out, int *n_out) {
    int64_t rows = dt_arg_get_int(a, 0, 0), cols = dt_arg_get_int(a, 1, 0), offset = dt_arg_get_int(a, 2, 0), n = 0;
    int dtype = a->a[3].kind == DT_ARG_DTYPE ? (int)a->a[3].i : DT_int64;
    if (rows < 0 || cols < 0 || rows > INT32_MAX || cols > INT32_MAX) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "row and col must be non-negative and below 2^31, got row=%lld, col=%lld", (long long)rows, (long long)cols));
        return;
    }
    if (rows > INT32_MAX || cols > INT32_MAX) {
        dt_scope_fail(s, dt_fail(DT_E_VALUE, "row and col must be below 2^31, got row=%lld, col=%lld", (long long)rows, (long long)cols));
        return;
    }
    for (int64_t i = 0; i < rows; i++) n += lower ? kept(i, cols, offset) : cols - kept(i, cols, offset - 1);
    dt_tensor *all = dt_ones(s, DT_DIMS(rows, cols), DT_bool, a->spec), *part = lower ? dt_tril(s, all, offset) : dt_triu(s, all, offset);
    dt_tensor *at = dt_contiguous(s, dt_transpose(s, dt__nonzero(s, part, n), 0, 1));
    dt_compose_return(out, n_out, dtype == DT_int64 ? at : dt_to_dtype(s, at, dtype));
}
static void compose_tril_indices(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { tri_indices(s, a, true, out, n_out); }
static void compose_triu_indices(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { tri_indices(s, a, false, out, n_out); }
const dt_op dt_op_tril_indices = {
    .sig = "tril_indices(int row, int col, int offset=0, *, dtype? dtype=None) -> Tensor",
    .doc = "The coordinates (2, n) of the lower triangle of a (row, col) matrix, row by row; int64 by default.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = compose_tril_indices,
};
const dt_op dt_op_triu_indices = {
    .sig = "triu_indices(int row, int col, int offset=0, *, dtype? dtype=None) -> Tensor",
    .doc = "The coordinates (2, n) of the upper triangle of a (row, col) matrix, row by row; int64 by default.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = compose_triu_indices,
};
