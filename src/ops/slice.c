/* Views of a part: slice, select, narrow, diagonal, sliding windows, explicit strides; their gradients, and writes through them.
 *
 * Each kind has three ops over one attribute struct (ops/movement.h): the view, `…_scatter` (a copy of the whole with that part replaced: what a
 * write through the view makes of its base) and `…_backward` (zeros with that part filled: the view's gradient). */
#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

DT_CPU_KERNEL(slice_scatter);
DT_CPU_KERNEL(slice_backward);
DT_CPU_KERNEL(diagonal_scatter);
DT_CPU_KERNEL(diagonal_backward);
DT_CPU_KERNEL(as_strided_copy);
DT_CPU_KERNEL(as_strided_scatter);
DT_CPU_KERNEL(as_strided_backward);
DT_CPU_KERNEL(unfold_backward);

/* Rules of the three ops of a kind: dimensions in `fixed` stay whole; input dimension d is dimension map[d] of the part. */
static dt_status place_scatter(const dt_node *n, dt_rules *r, const int *map) {
    for (int d = 0; d < n->in[0]->ndim; d++) {
        if (map[d] < 0) continue;
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(d);
        if (!n->in[1]->wrapped) in[1] = DT_S(map[d]);
        out[0] = DT_S(d);
    }
    return n->in[1]->wrapped ? DT_OK : dt_move_partial(n, r, DT_MOVE_ANY);
}
static dt_status place_backward(const dt_node *n, dt_rules *r, const int *map) {
    for (int d = 0; d < n->out[0].ndim; d++) {
        if (map[d] < 0) continue;
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(map[d]);
        out[0] = DT_S(d);
    }
    return dt_move_partial(n, r, DT_MOVE_LINEAR);
}
static dt_status place_part(const dt_node *n, dt_rules *r, const int *map) {
    DT_TRY(dt_move_rules(n, r, map));
    return dt_move_partial(n, r, DT_MOVE_ANY);
}
static bool alias_part(dt_alias *x, const dt_view *part) {
    for (int d = 0; d < part->ndim; d++) x->out->stride[d] = part->stride[d];
    return true;
}
/* input and src of a scatter: out = input; src has the part's shape or is a number, cast to input's dtype. */
static dt_status infer_scatter(dt_node *n, const dt_type *part) {
    const dt_meta *src = n->in[1];
    n->out[0] = dt_meta_type(n->in[0]);
    n->cast[1] = n->in[0]->dtype;
    if (src->wrapped) return DT_OK;
    bool same = src->ndim == part->ndim;
    for (int d = 0; same && d < part->ndim; d++) same = src->shape[d] == part->shape[d];
    if (same) return DT_OK;
    DT_STR(a, 128);
    DT_STR(b, 128);
    dt_shape_print(src->ndim, src->shape, &a);
    dt_shape_print(part->ndim, part->shape, &b);
    return dt_fail(DT_E_SHAPE, "%s: expected src to have a size equal to the slice of self: src is %s, the slice %s", dt_op_name(n->op), a.buf, b.buf);
}
static void view_of_meta(const dt_meta *m, dt_view *v) {
    *v = (dt_view){.dtype = (dt_dtype)m->dtype, .ndim = m->ndim};
    for (int d = 0; d < m->ndim; d++) v->shape[d] = m->shape[d];
    dt_view_set_contiguous(v);
}
static void type_of_view(const dt_view *v, dt_type *t) {
    *t = (dt_type){.dtype = v->dtype, .ndim = v->ndim};
    for (int d = 0; d < v->ndim; d++) t->shape[d] = v->shape[d];
}

/* ---- slices ---- */
/* Clamp as Python's slices do. */
static dt_status slice_bounds(dt_slice_attr *a, const char *name, int ndim, const int64_t *shape) {
    if (ndim == 0) return dt_fail(DT_E_INDEX, "%s() cannot be applied to a 0-dim tensor.", name);
    DT_TRY(dt_dim_wrap(&a->dim, ndim));
    if (a->step <= 0) return dt_fail(DT_E_VALUE, "slice step must be positive, got %lld", (long long)a->step);
    int64_t n = shape[a->dim], lo = a->start == DT_NO_INT ? 0 : a->start, hi = a->end == DT_NO_INT ? n : a->end;
    if (lo < 0) lo += n;
    if (hi < 0) hi += n;
    lo = lo < 0 ? 0 : lo > n ? n : lo;
    hi = hi < lo ? lo : hi > n ? n : hi;
    a->start = lo;
    a->end = hi;
    if (a->step > n) a->step = n > 0 ? n : 1; /* a longer step takes the first entry alike, and cannot overflow */
    return DT_OK;
}
static dt_status infer_slice_part(dt_node *n) {
    dt_slice_attr *a = n->attr;
    n->out[0] = dt_meta_type(n->in[0]);
    n->out[0].shape[a->dim] = (a->end - a->start + a->step - 1) / a->step;
    return DT_OK;
}
static dt_status infer_slice(dt_node *n) {
    DT_TRY(slice_bounds(n->attr, "slice", n->in[0]->ndim, n->in[0]->shape));
    return infer_slice_part(n);
}
static void slice_map(const dt_slice_attr *a, int ndim, bool keeps, bool whole, int *map) {
    for (int d = 0; d < ndim; d++) map[d] = d == a->dim ? (whole ? d : -1) : keeps || d < a->dim ? d : d - 1;
}
/* Input i, sharded along the sliced dimension: `windows` of it move instead of the whole. out: the result's placement there. */
static dt_status slice_window(const dt_node *n, dt_rules *r, int i, const dt_window *w, int dim, dt_placement result) {
    dt_placement *in, *out, p;
    if (!dt_rules_sharded(r, n->in[i], dim) || !dt_rules_window(w, dim, &p)) return DT_OK;
    DT_TRY(dt_rule_add(r, &in, &out));
    in[i] = p;
    out[0] = result;
    return DT_OK;
}
static dt_status place_slice(const dt_node *n, dt_rules *r) {
    const dt_slice_attr *a = n->attr;
    int map[DT_MAX_DIM], dim = (int)a->dim;
    bool whole = a->step == 1 && n->in[0]->shape[a->dim] == n->out[0].shape[a->dim];
    slice_map(a, n->in[0]->ndim, true, whole, map);
    if (!whole) DT_TRY(slice_window(n, r, 0, &(dt_window){n->out[0].shape[dim], a->start, a->step, 1, false, false}, dim, DT_S(dim)));
    return place_part(n, r, map);
}
static bool alias_slice(dt_alias *x) {
    const dt_slice_attr *a = x->attr;
    for (int d = 0; d < x->in->ndim; d++) x->out->stride[d] = x->in->stride[d];
    x->out->stride[a->dim] = x->in->stride[a->dim] * a->step;
    /* where this part of the slice begins, within what is held of the input */
    int64_t at = a->start + x->out_place->lo[a->dim] * a->step - x->in_place->lo[a->dim];
    x->offset = dt_view_numel(x->out) ? at * x->in->stride[a->dim] : 0;
    return true;
}
static void grad_slice(dt_grad *g) {
    const dt_slice_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_slice_backward(g->s, dt_grad_gy(g, 0), dt_meta_dims(dt_grad_in_meta(g, 0)), a->dim, a->start, a->end, a->step));
}
static void unview_slice(dt_scope *s, const dt_call *c, int out_index, dt_tensor *base, dt_tensor *value, dt_tensor **new_base) {
    const dt_slice_attr *a = c->attr;
    *new_base = dt_slice_scatter(s, base, value, a->dim, a->start, a->end, a->step);
}
#define SLICE .place = place_slice, .grad = grad_slice, .alias = alias_slice, .unview = unview_slice
#define SLICE_FIELDS DT_FIELD(dt_slice_attr, dim), DT_FIELD(dt_slice_attr, start), DT_FIELD(dt_slice_attr, end), DT_FIELD(dt_slice_attr, step)

const dt_op dt_op_slice = {
    .sig = "slice(Tensor input, int dim=0, int? start=None, int? end=None, int step=1) -> Tensor",
    .doc = "Elements start, start+step, … below end along dim; bounds are clamped as Python's slices do.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_slice_attr, SLICE_FIELDS),
    .flags = DT_F_STRIDED,
    .infer = infer_slice,
    SLICE,
};
static dt_status infer_narrow(dt_node *n) {
    dt_slice_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    if (m->ndim == 0) return dt_fail(DT_E_SHAPE, "narrow() cannot be applied to a 0-dim tensor.");
    DT_TRY(dt_dim_wrap(&a->dim, m->ndim));
    int64_t size = m->shape[a->dim];
    if (a->length < 0) return dt_fail(DT_E_SHAPE, "narrow(): length must be non-negative.");
    if (a->start < -size || a->start > size)
        return dt_fail(DT_E_INDEX, "narrow(): start out of range (expected to be in range of [%lld, %lld], but got %lld)", -(long long)size, (long long)size,
                       (long long)a->start);
    if (a->start < 0) a->start += size;
    if (a->length > size - a->start)
        return dt_fail(DT_E_SHAPE, "start (%lld) + length (%lld) exceeds dimension size (%lld).", (long long)a->start, (long long)a->length, (long long)size);
    a->end = a->start + a->length;
    a->step = 1;
    return infer_slice_part(n);
}
const dt_op dt_op_narrow = {
    .sig = "narrow(Tensor input, int dim, int start, int length) -> Tensor",
    .doc = "The length elements from start along dim. Errors: a range outside the dimension.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_slice_attr, DT_FIELD(dt_slice_attr, dim), DT_FIELD(dt_slice_attr, start), DT_FIELD(dt_slice_attr, length)),
    .flags = DT_F_STRIDED,
    .infer = infer_narrow,
    SLICE,
};

static dt_status infer_slice_scatter(dt_node *n) {
    dt_slice_attr *a = n->attr;
    DT_TRY(slice_bounds(a, "slice_scatter", n->in[0]->ndim, n->in[0]->shape));
    dt_type part = dt_meta_type(n->in[0]);
    part.shape[a->dim] = (a->end - a->start + a->step - 1) / a->step;
    return infer_scatter(n, &part);
}
/* The sliced dimension may be sharded too: each device replaces what it holds of the part. */
static dt_status place_slice_scatter(const dt_node *n, dt_rules *r) {
    const dt_slice_attr *a = n->attr;
    int map[DT_MAX_DIM], dim = (int)a->dim;
    bool whole = a->step == 1 && !n->in[1]->wrapped && n->in[1]->shape[dim] == n->in[0]->shape[dim];
    slice_map(a, n->in[0]->ndim, true, false, map);
    DT_TRY(place_scatter(n, r, map));
    dt_placement *in, *out, p;
    DT_TRY(dt_rule_add(r, &in, &out));
    in[0] = out[0] = DT_S(dim);
    if (whole) in[1] = DT_S(dim);
    if (whole || !dt_rules_sharded(r, n->in[0], dim) || !dt_rules_sharded(r, n->in[1], dim)) return DT_OK;
    if (!dt_rules_window(&(dt_window){n->in[0]->shape[dim], a->start, a->step, 1, true, false}, dim, &p)) return DT_OK;
    DT_TRY(dt_rule_add(r, &in, &out));
    in[0] = out[0] = DT_S(dim);
    in[1] = p;
    return DT_OK;
}
static void grad_slice_scatter(dt_grad *g) {
    const dt_slice_attr *a = dt_grad_attr(g);
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_slice_scatter(g->s, gy, 0.0, a->dim, a->start, a->end, a->step));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_slice(g->s, gy, a->dim, a->start, a->end, a->step));
}
const dt_op dt_op_slice_scatter = {
    .sig = "slice_scatter(Tensor input, Value src, int dim=0, int? start=None, int? end=None, int step=1) -> Tensor",
    .doc = "A copy of input with input[..., start:end:step, ...] along dim replaced by src, which has the slice's shape or is a number.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_slice_attr, SLICE_FIELDS),
    .infer = infer_slice_scatter,
    .place = place_slice_scatter,
    .grad = grad_slice_scatter,
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_slice_scatter}},
};
static dt_status infer_slice_backward(dt_node *n) { return dt_infer_sizes(n, &((dt_slice_attr *)n->attr)->sizes); }
static dt_status place_slice_backward(const dt_node *n, dt_rules *r) {
    const dt_slice_attr *a = n->attr;
    int map[DT_MAX_DIM];
    bool whole = a->step == 1 && n->in[0]->shape[a->dim] == n->out[0].shape[a->dim];
    slice_map(a, n->out[0].ndim, true, whole, map);
    int dim = (int)a->dim;
    if (!whole) DT_TRY(slice_window(n, r, 0, &(dt_window){n->out[0].shape[dim], a->start, a->step, 1, true, false}, dim, DT_S(dim)));
    return place_backward(n, r, map);
}
static void grad_slice_backward(dt_grad *g) {
    const dt_slice_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_slice(g->s, dt_grad_gy(g, 0), a->dim, a->start, a->end, a->step));
}
const dt_op dt_op_slice_backward = {
    .sig = "slice_backward(Tensor grad_output, int[] sizes, int dim, int start, int end, int step) -> Tensor",
    .doc = "Zeros of shape sizes with the slice replaced by grad_output.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_slice_attr, DT_FIELD(dt_slice_attr, sizes), SLICE_FIELDS),
    .infer = infer_slice_backward,
    .place = place_slice_backward,
    .grad = grad_slice_backward,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_slice_backward}},
};

/* ---- select ---- */
static dt_status select_bounds(dt_slice_attr *a, const char *name, const dt_meta *m) {
    if (m->ndim == 0) return dt_fail(DT_E_INDEX, "%s() cannot be applied to a 0-dim tensor.", name);
    DT_TRY(dt_dim_wrap(&a->dim, m->ndim));
    int64_t size = m->shape[a->dim];
    if (a->index < -size || a->index >= size)
        return dt_fail(DT_E_INDEX, "%s(): index %lld out of range for tensor of size %lld at dimension %lld", name, (long long)a->index, (long long)size,
                       (long long)a->dim);
    a->start = a->index < 0 ? a->index + size : a->index;
    a->end = a->start + 1;
    a->step = 1;
    return DT_OK;
}
static dt_status infer_select(dt_node *n) {
    dt_slice_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    DT_TRY(select_bounds(a, "select", m));
    n->out[0] = (dt_type){.dtype = (dt_dtype)m->dtype, .ndim = m->ndim - 1};
    for (int d = 0, k = 0; d < m->ndim; d++)
        if (d != a->dim) n->out[0].shape[k++] = m->shape[d];
    return DT_OK;
}
static dt_status place_select(const dt_node *n, dt_rules *r) {
    int map[DT_MAX_DIM];
    const dt_slice_attr *a = n->attr;
    slice_map(a, n->in[0]->ndim, false, false, map);
    DT_TRY(slice_window(n, r, 0, &(dt_window){1, a->start, 1, 1, false, true}, (int)a->dim, DT_R));
    return place_part(n, r, map);
}
static bool alias_select(dt_alias *x) {
    const dt_slice_attr *a = x->attr;
    for (int d = 0, k = 0; d < x->in->ndim; d++)
        if (d != a->dim) x->out->stride[k++] = x->in->stride[d];
    x->offset = (a->start - x->in_place->lo[a->dim]) * x->in->stride[a->dim];
    return true;
}
static void grad_select(dt_grad *g) {
    const dt_slice_attr *a = dt_grad_attr(g);
    dt_tensor *gy = dt_unsqueeze(g->s, dt_grad_gy(g, 0), a->dim);
    dt_grad_set(g, 0, dt_slice_backward(g->s, gy, dt_meta_dims(dt_grad_in_meta(g, 0)), a->dim, a->start, a->end, 1));
}
static void unview_select(dt_scope *s, const dt_call *c, int out_index, dt_tensor *base, dt_tensor *value, dt_tensor **new_base) {
    const dt_slice_attr *a = c->attr;
    *new_base = dt_slice_scatter(s, base, dt_unsqueeze(s, value, a->dim), a->dim, a->start, a->end, 1);
}
const dt_op dt_op_select = {
    .sig = "select(Tensor input, int dim, int index) -> Tensor",
    .doc = "input at index along dim, which disappears. Errors: an index outside [-size, size).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_slice_attr, DT_FIELD(dt_slice_attr, dim), DT_FIELD(dt_slice_attr, index)),
    .flags = DT_F_STRIDED,
    .infer = infer_select,
    .place = place_select,
    .grad = grad_select,
    .alias = alias_select,
    .unview = unview_select,
};
static void compose_select_scatter(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *src = dt_arg_get_tensor(a, 1);
    int64_t dim = dt_arg_get_int(a, 2, 0), index = dt_arg_get_int(a, 3, 0), nd = dt_ndim(x), size;
    if (nd == 0) {
        dt_scope_fail(s, dt_fail(DT_E_INDEX, "select_scatter() cannot be applied to a 0-dim tensor."));
        return;
    }
    if (!dt_compose_dim(s, &dim, (int)nd)) return;
    size = dt_shape(x)[dim];
    if (index < -size || index >= size) {
        dt_scope_fail(s, dt_fail(DT_E_INDEX, "select_scatter(): index %lld out of range for tensor of size %lld at dimension %lld", (long long)index,
                                 (long long)size, (long long)dim));
        return;
    }
    if (index < 0) index += size;
    dt_compose_return(out, n_out, dt_slice_scatter(s, x, dt_unsqueeze(s, src, dim), dim, index, index + 1, 1));
}
const dt_op dt_op_select_scatter = {
    .sig = "select_scatter(Tensor input, Tensor src, int dim, int index) -> Tensor",
    .doc = "A copy of input with input.select(dim, index) replaced by src.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_select_scatter,
};

/* ---- diagonals ---- */
static dt_status diagonal_dims(dt_diagonal_attr *a, int ndim) {
    DT_TRY(dt_dim_wrap(&a->dim1, ndim));
    DT_TRY(dt_dim_wrap(&a->dim2, ndim));
    if (ndim < 2 || a->dim1 == a->dim2)
        return dt_fail(DT_E_SHAPE, "diagonal dimensions cannot be identical %lld, %lld", (long long)a->dim1, (long long)a->dim2);
    return DT_OK;
}
static dt_status infer_diagonal(dt_node *n) {
    dt_view whole, part;
    DT_TRY(diagonal_dims(n->attr, n->in[0]->ndim));
    view_of_meta(n->in[0], &whole);
    dt_diagonal_view(n->attr, &whole, &part);
    type_of_view(&part, &n->out[0]);
    return DT_OK;
}
static void diagonal_map(const dt_diagonal_attr *a, int ndim, int *map) {
    for (int d = 0, k = 0; d < ndim; d++) map[d] = d == a->dim1 || d == a->dim2 ? -1 : k++;
}
static dt_status place_diagonal(const dt_node *n, dt_rules *r) {
    int map[DT_MAX_DIM];
    diagonal_map(n->attr, n->in[0]->ndim, map);
    return place_part(n, r, map);
}
static bool alias_diagonal(dt_alias *x) {
    dt_view part, in = *x->in;
    in.data = (void *)64; /* any address: only the distance counts */
    dt_diagonal_view(x->attr, &in, &part);
    x->offset = ((char *)part.data - (char *)in.data) / (int64_t)dt_dtype_size(in.dtype);
    return alias_part(x, &part);
}
static void grad_diagonal(dt_grad *g) {
    const dt_diagonal_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_diagonal_backward(g->s, dt_grad_gy(g, 0), dt_meta_dims(dt_grad_in_meta(g, 0)), a->offset, a->dim1, a->dim2));
}
static void unview_diagonal(dt_scope *s, const dt_call *c, int out_index, dt_tensor *base, dt_tensor *value, dt_tensor **new_base) {
    const dt_diagonal_attr *a = c->attr;
    *new_base = dt_diagonal_scatter(s, base, value, a->offset, a->dim1, a->dim2);
}
#define DIAGONAL_FIELDS DT_FIELD(dt_diagonal_attr, offset), DT_FIELD(dt_diagonal_attr, dim1), DT_FIELD(dt_diagonal_attr, dim2)
const dt_op dt_op_diagonal = {
    .sig = "diagonal(Tensor input, int offset=0, int dim1=0, int dim2=1) -> Tensor",
    .doc = "The diagonal of dimensions dim1 and dim2, offset above (or below, negative) the main one, as the last dimension.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_diagonal_attr, DIAGONAL_FIELDS),
    .infer = infer_diagonal,
    .place = place_diagonal,
    .grad = grad_diagonal,
    .alias = alias_diagonal,
    .unview = unview_diagonal,
};
const dt_op dt_op_linalg_diagonal = {
    .sig = "linalg_diagonal(Tensor A, *, int offset=0, int dim1=-2, int dim2=-1) -> Tensor",
    .doc = "diagonal of the last two dimensions by default.",
    .also = "linalg.diagonal",
    .where = DT_FN,
    .attrs = DT_ATTRS(dt_diagonal_attr, DIAGONAL_FIELDS),
    .infer = infer_diagonal,
    .place = place_diagonal,
    .grad = grad_diagonal,
    .alias = alias_diagonal,
    .unview = unview_diagonal,
};
static dt_status infer_diagonal_scatter(dt_node *n) {
    dt_view whole, part;
    dt_type t;
    DT_TRY(diagonal_dims(n->attr, n->in[0]->ndim));
    view_of_meta(n->in[0], &whole);
    dt_diagonal_view(n->attr, &whole, &part);
    type_of_view(&part, &t);
    return infer_scatter(n, &t);
}
static dt_status place_diagonal_scatter(const dt_node *n, dt_rules *r) {
    int map[DT_MAX_DIM];
    diagonal_map(n->attr, n->in[0]->ndim, map);
    return place_scatter(n, r, map);
}
static void grad_diagonal_scatter(dt_grad *g) {
    const dt_diagonal_attr *a = dt_grad_attr(g);
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_diagonal_scatter(g->s, gy, 0.0, a->offset, a->dim1, a->dim2));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_diagonal(g->s, gy, a->offset, a->dim1, a->dim2));
}
const dt_op dt_op_diagonal_scatter = {
    .sig = "diagonal_scatter(Tensor input, Value src, int offset=0, int dim1=0, int dim2=1) -> Tensor",
    .doc = "A copy of input with its diagonal replaced by src, which has the diagonal's shape or is a number.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_diagonal_attr, DIAGONAL_FIELDS),
    .infer = infer_diagonal_scatter,
    .place = place_diagonal_scatter,
    .grad = grad_diagonal_scatter,
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_diagonal_scatter}},
};
static dt_status infer_diagonal_backward(dt_node *n) { return dt_infer_sizes(n, &((dt_diagonal_attr *)n->attr)->sizes); }
static dt_status place_diagonal_backward(const dt_node *n, dt_rules *r) {
    int map[DT_MAX_DIM];
    diagonal_map(n->attr, n->out[0].ndim, map);
    return place_backward(n, r, map);
}
static void grad_diagonal_backward(dt_grad *g) {
    const dt_diagonal_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_diagonal(g->s, dt_grad_gy(g, 0), a->offset, a->dim1, a->dim2));
}
const dt_op dt_op_diagonal_backward = {
    .sig = "diagonal_backward(Tensor grad_output, int[] sizes, int offset, int dim1, int dim2) -> Tensor",
    .doc = "Zeros of shape sizes with the diagonal replaced by grad_output.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_diagonal_attr, DT_FIELD(dt_diagonal_attr, sizes), DIAGONAL_FIELDS),
    .infer = infer_diagonal_backward,
    .place = place_diagonal_backward,
    .grad = grad_diagonal_backward,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_diagonal_backward}},
};

/* ---- sliding windows ---- */
static dt_status infer_unfold(dt_node *n) {
    dt_unfold_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    DT_TRY(dt_dim_wrap(&a->dimension, m->ndim));
    int64_t have = m->ndim ? m->shape[a->dimension] : 1;
    if (a->size < 0) return dt_fail(DT_E_SHAPE, "size is %lld but must be >= 0", (long long)a->size);
    if (a->size > have)
        return dt_fail(DT_E_SHAPE, "maximum size for tensor at dimension %lld is %lld but size is %lld", (long long)a->dimension, (long long)have,
                       (long long)a->size);
    if (a->step <= 0) return dt_fail(DT_E_SHAPE, "step is %lld but must be > 0", (long long)a->step);
    if (m->ndim == DT_MAX_DIM) return dt_fail(DT_E_VALUE, "unfold: more than %d dimensions", DT_MAX_DIM);
    n->out[0] = dt_meta_type(m);
    if (m->ndim) n->out[0].shape[a->dimension] = (have - a->size) / a->step + 1;
    n->out[0].shape[n->out[0].ndim++] = a->size;
    return DT_OK;
}
static void unfold_map(const dt_unfold_attr *a, int ndim, int *map) {
    for (int d = 0; d < ndim; d++) map[d] = d == a->dimension ? -1 : d;
}
static dt_status place_unfold(const dt_node *n, dt_rules *r) {
    int map[DT_MAX_DIM];
    const dt_unfold_attr *a = n->attr;
    int dim = (int)a->dimension;
    unfold_map(a, n->in[0]->ndim, map);
    if (n->in[0]->ndim) DT_TRY(slice_window(n, r, 0, &(dt_window){n->out[0].shape[dim], 0, a->step, a->size, false, false}, dim, DT_S(dim)));
    return place_part(n, r, map);
}
static bool alias_unfold(dt_alias *x) {
    dt_view part;
    dt_unfold_view(x->attr, x->in, &part);
    x->offset = 0;
    return alias_part(x, &part);
}
static void grad_unfold(dt_grad *g) {
    const dt_unfold_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_unfold_backward(g->s, dt_grad_gy(g, 0), dt_meta_dims(dt_grad_in_meta(g, 0)), a->dimension, a->size, a->step));
}
static void unview_refused(dt_scope *s, const dt_call *c, int out_index, dt_tensor *base, dt_tensor *value, dt_tensor **new_base) {
    dt_scope_fail(s, dt_fail(DT_E_STATE, "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
                                         "Please clone() the tensor before performing the operation."));
    *new_base = NULL;
}
#define UNFOLD_FIELDS DT_FIELD(dt_unfold_attr, dimension), DT_FIELD(dt_unfold_attr, size), DT_FIELD(dt_unfold_attr, step)
const dt_op dt_op_unfold = {
    .sig = "unfold(Tensor input, int dimension, int size, int step) -> Tensor",
    .doc = "All windows of size elements along dimension, step apart, as a new last dimension. Cannot be written through.",
    .where = DT_METHOD,
    .attrs = DT_ATTRS(dt_unfold_attr, UNFOLD_FIELDS),
    .infer = infer_unfold,
    .place = place_unfold,
    .grad = grad_unfold,
    .alias = alias_unfold,
    .unview = unview_refused,
};
static dt_status infer_unfold_backward(dt_node *n) { return dt_infer_sizes(n, &((dt_unfold_attr *)n->attr)->sizes); }
static dt_status place_unfold_backward(const dt_node *n, dt_rules *r) {
    int map[DT_MAX_DIM];
    unfold_map(n->attr, n->out[0].ndim, map);
    return place_backward(n, r, map);
}
static void grad_unfold_backward(dt_grad *g) {
    const dt_unfold_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_unfold(g->s, dt_grad_gy(g, 0), a->dimension, a->size, a->step));
}
const dt_op dt_op_unfold_backward = {
    .sig = "unfold_backward(Tensor grad_output, int[] sizes, int dimension, int size, int step) -> Tensor",
    .doc = "Each element of a tensor of shape sizes is the sum of grad_output over the windows it lies in.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_unfold_attr, DT_FIELD(dt_unfold_attr, sizes), UNFOLD_FIELDS),
    .infer = infer_unfold_backward,
    .place = place_unfold_backward,
    .grad = grad_unfold_backward,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_unfold_backward}},
};

/* ---- explicit strides, of the contiguous input ---- */
static dt_status strided_check(dt_strided_attr *a, int64_t numel) {
    if (a->storage_offset == DT_NO_INT) a->storage_offset = 0;
    if (a->size.n != a->stride.n) return dt_fail(DT_E_SHAPE, "as_strided: mismatch in length of strides (%d) and shape (%d)", a->stride.n, a->size.n);
    if (a->size.n > DT_MAX_DIM) return dt_fail(DT_E_VALUE, "as_strided: more than %d dimensions", DT_MAX_DIM);
    if (a->storage_offset < 0) return dt_fail(DT_E_SHAPE, "as_strided: storage_offset must be non-negative, got %lld", (long long)a->storage_offset);
    int64_t last = a->storage_offset, total = 1, step;
    for (int d = 0; d < a->size.n; d++) {
        if (a->stride.v[d] < 0) return dt_fail(DT_E_SHAPE, "as_strided: negative strides are not supported, got %lld", (long long)a->stride.v[d]);
        if (a->size.v[d] < 0) return dt_fail(DT_E_SHAPE, "as_strided: size %lld is negative", (long long)a->size.v[d]);
        total = a->size.v[d] ? total : 0;
        if (__builtin_mul_overflow(a->size.v[d] - 1, a->stride.v[d], &step) || __builtin_add_overflow(last, step, &last))
            return dt_fail(DT_E_SHAPE, "as_strided: sizes and strides are too large");
    }
    if (total && last >= numel)
        return dt_fail(DT_E_SHAPE, "as_strided: sizes, strides and storage offset %lld reach element %lld of a tensor of %lld elements",
                       (long long)a->storage_offset, (long long)last, (long long)numel);
    return DT_OK;
}
static dt_status infer_as_strided(dt_node *n) {
    dt_strided_attr *a = n->attr;
    DT_TRY(strided_check(a, n->in[0]->numel));
    return dt_infer_sizes(n, &a->size);
}
static dt_status place_as_strided(const dt_node *n, dt_rules *r) { return dt_move_partial(n, r, DT_MOVE_LINEAR); }
static bool alias_as_strided(dt_alias *x) {
    dt_view part;
    if (!dt_view_contiguous(x->in)) return false;
    dt_strided_view(x->attr, x->in, &part);
    x->offset = ((const dt_strided_attr *)x->attr)->storage_offset;
    return alias_part(x, &part);
}
static dt_dims ints_dims(const dt_ints *v) { return (dt_dims){v->n, v->v}; }
static void grad_as_strided(dt_grad *g) {
    const dt_strided_attr *a = dt_grad_attr(g);
    dt_grad_set(
        g, 0,
        dt_as_strided_backward(g->s, dt_grad_gy(g, 0), dt_meta_dims(dt_grad_in_meta(g, 0)), ints_dims(&a->size), ints_dims(&a->stride), a->storage_offset));
}
static void unview_as_strided(dt_scope *s, const dt_call *c, int out_index, dt_tensor *base, dt_tensor *value, dt_tensor **new_base) {
    const dt_strided_attr *a = c->attr;
    *new_base = dt_as_strided_scatter(s, base, value, ints_dims(&a->size), ints_dims(&a->stride), a->storage_offset);
}
#define STRIDED_FIELDS DT_FIELD(dt_strided_attr, size), DT_FIELD(dt_strided_attr, stride), DT_FIELD(dt_strided_attr, storage_offset)
const dt_op dt_op_as_strided = {
    .sig = "as_strided(Tensor input, int[] size, int[] stride, int? storage_offset=None) -> Tensor",
    .doc = "A view with explicit strides and offset, in elements of the input as if it were contiguous. Errors: elements outside the input.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_strided_attr, STRIDED_FIELDS),
    .infer = infer_as_strided,
    .place = place_as_strided,
    .grad = grad_as_strided,
    .alias = alias_as_strided,
    .unview = unview_as_strided,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_as_strided_copy, DT_K_CONTIGUOUS}},
};
static dt_status infer_as_strided_scatter(dt_node *n) {
    dt_strided_attr *a = n->attr;
    dt_type part = {.ndim = a->size.n};
    DT_TRY(strided_check(a, n->in[0]->numel));
    for (int d = 0; d < a->size.n; d++) part.shape[d] = a->size.v[d];
    return infer_scatter(n, &part);
}
static void grad_as_strided_scatter(dt_grad *g) {
    const dt_strided_attr *a = dt_grad_attr(g);
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_as_strided_scatter(g->s, gy, 0.0, ints_dims(&a->size), ints_dims(&a->stride), a->storage_offset));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_as_strided(g->s, gy, ints_dims(&a->size), ints_dims(&a->stride), a->storage_offset));
}
const dt_op dt_op_as_strided_scatter = {
    .sig = "as_strided_scatter(Tensor input, Value src, int[] size, int[] stride, int? storage_offset=None) -> Tensor",
    .doc = "A copy of input with input.as_strided(size, stride, storage_offset) replaced by src.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_strided_attr, STRIDED_FIELDS),
    .infer = infer_as_strided_scatter,
    .place = dt_place_replicate,
    .grad = grad_as_strided_scatter,
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_as_strided_scatter}},
};
static dt_status infer_as_strided_backward(dt_node *n) {
    dt_strided_attr *a = n->attr;
    DT_TRY(dt_infer_sizes(n, &a->sizes));
    return strided_check(a, dt_type_numel(&n->out[0]));
}
static void grad_as_strided_backward(dt_grad *g) {
    const dt_strided_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_as_strided(g->s, dt_grad_gy(g, 0), ints_dims(&a->size), ints_dims(&a->stride), a->storage_offset));
}
const dt_op dt_op_as_strided_backward = {
    .sig = "as_strided_backward(Tensor grad_output, int[] sizes, int[] size, int[] stride, int storage_offset) -> Tensor",
    .doc = "Each element of a tensor of shape sizes is the sum of grad_output over the elements of the strided view that refer to it.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_strided_attr, DT_FIELD(dt_strided_attr, sizes), STRIDED_FIELDS),
    .infer = infer_as_strided_backward,
    .place = place_as_strided,
    .grad = grad_as_strided_backward,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_as_strided_backward}},
};
