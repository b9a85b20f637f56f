/* Views in pieces: split, chunk, tensor_split, hsplit …, unbind. One call makes all pieces, so that their gradients meet in one `cat`.
 *
 * All share one attribute struct; `rule` says how piece k is cut (see piece). */
#include <string.h>

#include "base/arena.h"
#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

typedef enum cut_rule { CUT_EACH, CUT_SIZES, CUT_SECTIONS, CUT_INDICES, CUT_UNBIND } cut_rule;
typedef struct split_attr {
    int64_t dim, split_size, chunks, sections;
    dt_ints sizes, indices;
    int64_t n; /* the size of dim */
    int64_t rule;
} split_attr;

static int64_t clamp_index(int64_t i, int64_t n) { return i < -n ? 0 : i < 0 ? i + n : i > n ? n : i; }

/* Piece k is [*lo, *lo + *len) of the dimension. */
static void piece(const split_attr *a, int k, int64_t *lo, int64_t *len) {
    int64_t hi, base, extra;
    *lo = 0;
    switch ((cut_rule)a->rule) {
    case CUT_EACH:
        *lo = k * a->split_size;
        hi = *lo + a->split_size < a->n ? *lo + a->split_size : a->n;
        break;
    case CUT_SIZES:
        for (int i = 0; i < k; i++) *lo += a->sizes.v[i];
        hi = *lo + a->sizes.v[k];
        break;
    case CUT_SECTIONS:
        base = a->n / a->sections;
        extra = a->n % a->sections;
        *lo = k * base + (k < extra ? k : extra);
        hi = *lo + base + (k < extra ? 1 : 0);
        break;
    case CUT_INDICES:
        *lo = k ? clamp_index(a->indices.v[k - 1], a->n) : 0;
        hi = k < a->indices.n ? clamp_index(a->indices.v[k], a->n) : a->n;
        break;
    default: *lo = k; hi = k + 1;
    }
    *len = hi > *lo ? hi - *lo : 0;
}
static bool tiles(const split_attr *a) { /* do the pieces, one after another, make up the whole? */
    if (a->rule != CUT_INDICES) return true;
    for (int k = 0; k < a->indices.n; k++)
        if (clamp_index(a->indices.v[k], a->n) < (k ? clamp_index(a->indices.v[k - 1], a->n) : 0)) return false;
    return true;
}

static dt_status cut(dt_node *n, cut_rule rule, int64_t count) {
    split_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    a->rule = rule;
    if (count > 0xfffff) return dt_fail(DT_E_VALUE, "%s: %lld pieces are too many", dt_op_name(n->op), (long long)count);
    DT_TRY(dt_node_outs(n, (int)count));
    for (int k = 0; k < count; k++) {
        int64_t lo, len;
        piece(a, k, &lo, &len);
        n->out[k] = dt_meta_type(m);
        n->out[k].shape[a->dim] = len;
        if (rule != CUT_UNBIND) continue;
        n->out[k].ndim--;
        memmove(&n->out[k].shape[a->dim], &n->out[k].shape[a->dim + 1], (size_t)(m->ndim - 1 - a->dim) * sizeof(int64_t));
    }
    return DT_OK;
}
static dt_status dim_of(dt_node *n) {
    split_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    if (m->ndim == 0) return dt_fail(DT_E_SHAPE, "%s expects at least a 1-dimensional tensor", dt_op_name(n->op));
    DT_TRY(dt_dim_wrap(&a->dim, m->ndim));
    a->n = m->shape[a->dim];
    return DT_OK;
}

static dt_status place_split(const dt_node *n, dt_rules *r) {
    const split_attr *a = n->attr;
    int map[DT_MAX_DIM];
    for (int d = 0; d < n->in[0]->ndim; d++) map[d] = d == a->dim ? -1 : a->rule == CUT_UNBIND && d > a->dim ? d - 1 : d;
    DT_TRY(dt_move_rules(n, r, map));
    return dt_move_partial(n, r, DT_MOVE_ANY);
}
static bool alias_split(dt_alias *x) {
    const split_attr *a = x->attr;
    int64_t lo, len;
    piece(a, x->out_index, &lo, &len);
    x->offset = lo * x->in->stride[a->dim];
    for (int d = 0, k = 0; d < x->in->ndim; d++)
        if (a->rule != CUT_UNBIND || d != a->dim) x->out->stride[k++] = x->in->stride[d];
    return true;
}
static void unview_split(dt_scope *s, const dt_call *c, int out_index, dt_tensor *base, dt_tensor *value, dt_tensor **new_base) {
    const split_attr *a = c->attr;
    int64_t lo, len;
    piece(a, out_index, &lo, &len);
    if (a->rule == CUT_UNBIND) value = dt_unsqueeze(s, value, a->dim);
    *new_base = dt_slice_scatter(s, base, value, a->dim, lo, lo + len, 1);
}
/* One gradient given: zeros around it. Several: joined, absent ones as zeros; or summed where the pieces do not tile. */
static void grad_split(dt_grad *g) {
    const split_attr *a = dt_grad_attr(g);
    int n = g->call->n_out, given = 0;
    dt_dims whole = dt_meta_dims(dt_grad_in_meta(g, 0));
    for (int k = 0; k < n; k++) given += dt_grad_gy_given(g, k);
    if (given > 1 && tiles(a)) {
        dt_tensor **gy = dt_malloc((size_t)n * sizeof *gy);
        if (!gy) {
            dt_scope_fail(g->s, dt_fail(DT_E_NOMEM, "gradient of split: out of host memory"));
            return;
        }
        for (int k = 0; k < n; k++) gy[k] = a->rule == CUT_UNBIND ? dt_unsqueeze(g->s, dt_grad_gy(g, k), a->dim) : dt_grad_gy(g, k);
        dt_grad_set(g, 0, dt_cat(g->s, (dt_list){n, gy}, a->dim));
        dt_free(gy);
        return;
    }
    dt_tensor *sum = NULL;
    for (int k = 0; k < n; k++) {
        if (!dt_grad_gy_given(g, k)) continue;
        int64_t lo, len;
        piece(a, k, &lo, &len);
        dt_tensor *gy = a->rule == CUT_UNBIND ? dt_unsqueeze(g->s, dt_grad_gy(g, k), a->dim) : dt_grad_gy(g, k);
        dt_tensor *part = dt_slice_backward(g->s, gy, whole, a->dim, lo, lo + len, 1);
        sum = sum ? dt_add(g->s, sum, part) : part;
    }
    dt_grad_set(g, 0, sum);
}
#define SPLIT .place = place_split, .grad = grad_split, .alias = alias_split, .unview = unview_split
#define F(name) DT_FIELD(split_attr, name)

static dt_status infer_split(dt_node *n) {
    split_attr *a = n->attr;
    DT_TRY(dim_of(n));
    if (a->split_size < 0) return dt_fail(DT_E_SHAPE, "split expects split_size be non-negative, but got split_size=%lld", (long long)a->split_size);
    if (a->split_size == 0 && a->n != 0)
        return dt_fail(DT_E_SHAPE, "split_size can only be 0 if dimension size is 0, but got dimension size of %lld", (long long)a->n);
    return cut(n, CUT_EACH, a->split_size == 0 || a->n == 0 ? 1 : (a->n + a->split_size - 1) / a->split_size);
}
const dt_op dt_op_split = {
    .sig = "split(Tensor input, int split_size, int dim=0) -> Tensor[]",
    .also = "unsafe_split",
    .doc = "Views of split_size elements each along dim; the last may be smaller.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, F(split_size), F(dim)),
    .flags = DT_F_STRIDED,
    .infer = infer_split,
    SPLIT,
};
static dt_status infer_split_sizes(dt_node *n) {
    split_attr *a = n->attr;
    int64_t sum = 0;
    DT_TRY(dim_of(n));
    for (int k = 0; k < a->sizes.n; k++) {
        if (a->sizes.v[k] < 0)
            return dt_fail(DT_E_SHAPE, "split_with_sizes expects split_sizes have only non-negative entries, but got %lld", (long long)a->sizes.v[k]);
        sum += a->sizes.v[k];
    }
    if (sum != a->n)
        return dt_fail(DT_E_SHAPE, "split_with_sizes expects split_sizes to sum exactly to %lld (input tensor's size at dimension %lld), but they sum to %lld",
                       (long long)a->n, (long long)a->dim, (long long)sum);
    return cut(n, CUT_SIZES, a->sizes.n);
}
const dt_op dt_op_split_sizes = {
    .sig = "split.sizes(Tensor input, int[] split_size, int dim=0) -> Tensor[]",
    .doc = "Views of the given sizes along dim. Errors: sizes that do not sum to the dimension's size.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, {"split_size", offsetof(split_attr, sizes)}, F(dim)),
    .flags = DT_F_STRIDED,
    .infer = infer_split_sizes,
    SPLIT,
};
const dt_op dt_op_split_section = {
    /* the function's name for its argument, where the method says split_size */
    .sig = "split.section(Tensor input, int split_size_or_sections, int dim=0) -> Tensor[]",
    .doc = "Views of split_size_or_sections elements each along dim; the last may be smaller.",
    .where = DT_FN,
    .attrs = DT_ATTRS(split_attr, {"split_size_or_sections", offsetof(split_attr, split_size)}, F(dim)),
    .infer = infer_split,
    SPLIT,
};
const dt_op dt_op_split_section_list = {
    .sig = "split.section_list(Tensor input, int[] split_size_or_sections, int dim=0) -> Tensor[]",
    .doc = "Views of the given sizes along dim.",
    .where = DT_FN,
    .attrs = DT_ATTRS(split_attr, {"split_size_or_sections", offsetof(split_attr, sizes)}, F(dim)),
    .infer = infer_split_sizes,
    SPLIT,
};
const dt_op dt_op_split_with_sizes = {
    .sig = "split_with_sizes(Tensor input, int[] split_sizes, int dim=0) -> Tensor[]",
    .doc = "Views of the given sizes along dim. Errors: sizes that do not sum to the dimension's size.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, {"split_sizes", offsetof(split_attr, sizes)}, F(dim)),
    .flags = DT_F_STRIDED,
    .infer = infer_split_sizes,
    SPLIT,
};
static dt_status infer_chunk(dt_node *n) {
    split_attr *a = n->attr;
    DT_TRY(dim_of(n));
    if (a->chunks <= 0) return dt_fail(DT_E_SHAPE, "chunk expects `chunks` to be greater than 0, got: %lld", (long long)a->chunks);
    a->split_size = (a->n + a->chunks - 1) / a->chunks;
    return cut(n, CUT_EACH, a->n == 0 ? a->chunks : (a->n + a->split_size - 1) / a->split_size);
}
const dt_op dt_op_chunk = {
    .sig = "chunk(Tensor input, int chunks, int dim=0) -> Tensor[]",
    .also = "unsafe_chunk",
    .doc = "At most `chunks` views of equal size along dim; the last may be smaller.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, F(chunks), F(dim)),
    .flags = DT_F_STRIDED,
    .infer = infer_chunk,
    SPLIT,
};
static dt_status sections(dt_node *n) {
    const split_attr *a = n->attr;
    if (a->sections <= 0) return dt_fail(DT_E_SHAPE, "number of sections must be larger than 0, got %lld", (long long)a->sections);
    return cut(n, CUT_SECTIONS, a->sections);
}
static dt_status infer_tensor_split(dt_node *n) {
    DT_TRY(dim_of(n));
    return sections(n);
}
const dt_op dt_op_tensor_split = {
    .sig = "tensor_split(Tensor input, int sections, int dim=0) -> Tensor[]",
    .doc = "`sections` views along dim whose sizes differ by at most one.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, F(sections), F(dim)),
    .infer = infer_tensor_split,
    SPLIT,
};
static dt_status infer_tensor_split_indices(dt_node *n) {
    DT_TRY(dim_of(n));
    return cut(n, CUT_INDICES, ((split_attr *)n->attr)->indices.n + 1);
}
const dt_op dt_op_tensor_split_indices = {
    .sig = "tensor_split.indices(Tensor input, int[] indices, int dim=0) -> Tensor[]",
    .doc = "Views cut before each of indices along dim; indices are clamped as Python's slices do.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, F(indices), F(dim)),
    .infer = infer_tensor_split_indices,
    SPLIT,
};

/* hsplit, vsplit, dsplit: the dimension is fixed, sections must divide it. */
static dt_status xsplit(dt_node *n, int need, int dim) {
    split_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    if (m->ndim < need)
        return dt_fail(DT_E_SHAPE, "%s requires a tensor with at least %d dimension%s, but got a tensor with %d dimensions!", dt_op_name(n->op), need,
                       need == 1 ? "" : "s", m->ndim);
    a->dim = dim;
    a->n = m->shape[dim];
    return DT_OK;
}
static dt_status xsplit_sections(dt_node *n, int need, int dim) {
    DT_TRY(xsplit(n, need, dim));
    const split_attr *a = n->attr;
    if (a->sections <= 0 || a->n % a->sections)
        return dt_fail(DT_E_SHAPE, "%s attempted to split along dimension %d, but the size of the dimension %lld is not divisible by the split_size %lld!",
                       dt_op_name(n->op), dim, (long long)a->n, (long long)a->sections);
    return sections(n);
}
static dt_status xsplit_indices(dt_node *n, int need, int dim) {
    DT_TRY(xsplit(n, need, dim));
    return cut(n, CUT_INDICES, ((split_attr *)n->attr)->indices.n + 1);
}
static dt_status infer_hsplit(dt_node *n) { return xsplit_sections(n, 1, n->in[0]->ndim == 1 ? 0 : 1); }
static dt_status infer_hsplit_array(dt_node *n) { return xsplit_indices(n, 1, n->in[0]->ndim == 1 ? 0 : 1); }
static dt_status infer_vsplit(dt_node *n) { return xsplit_sections(n, 2, 0); }
static dt_status infer_vsplit_array(dt_node *n) { return xsplit_indices(n, 2, 0); }
static dt_status infer_dsplit(dt_node *n) { return xsplit_sections(n, 3, 2); }
static dt_status infer_dsplit_array(dt_node *n) { return xsplit_indices(n, 3, 2); }
const dt_op dt_op_hsplit = {
    .sig = "hsplit(Tensor input, int sections) -> Tensor[]",
    .doc = "Equal views along dimension 1 (0 for a 1-dim tensor). Errors: sections that do not divide the size.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, F(sections)),
    .infer = infer_hsplit,
    SPLIT,
};
const dt_op dt_op_hsplit_array = {
    .sig = "hsplit.array(Tensor input, int[] indices) -> Tensor[]",
    .doc = "Views cut before each of indices along dimension 1 (0 for a 1-dim tensor).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, F(indices)),
    .infer = infer_hsplit_array,
    SPLIT,
};
const dt_op dt_op_vsplit = {
    .sig = "vsplit(Tensor input, int sections) -> Tensor[]",
    .doc = "Equal views along dimension 0. Errors: sections that do not divide the size.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, F(sections)),
    .infer = infer_vsplit,
    SPLIT,
};
const dt_op dt_op_vsplit_array = {
    .sig = "vsplit.array(Tensor input, int[] indices) -> Tensor[]",
    .doc = "Views cut before each of indices along dimension 0.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, F(indices)),
    .infer = infer_vsplit_array,
    SPLIT,
};
const dt_op dt_op_dsplit = {
    .sig = "dsplit(Tensor input, int sections) -> Tensor[]",
    .doc = "Equal views along dimension 2. Errors: sections that do not divide the size.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, F(sections)),
    .infer = infer_dsplit,
    SPLIT,
};
const dt_op dt_op_dsplit_array = {
    .sig = "dsplit.array(Tensor input, int[] indices) -> Tensor[]",
    .doc = "Views cut before each of indices along dimension 2.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, F(indices)),
    .infer = infer_dsplit_array,
    SPLIT,
};

static dt_status infer_unbind(dt_node *n) {
    if (n->in[0]->ndim == 0)
        return dt_fail(DT_E_SHAPE, "unbind: Dimension specified as %lld but tensor has no dimensions", (long long)((split_attr *)n->attr)->dim);
    DT_TRY(dim_of(n));
    return cut(n, CUT_UNBIND, ((split_attr *)n->attr)->n);
}
const dt_op dt_op_unbind = {
    .sig = "unbind(Tensor input, int dim=0) -> Tensor[]",
    .doc = "One view for each index along dim, without that dimension.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(split_attr, F(dim)),
    .flags = DT_F_STRIDED,
    .infer = infer_unbind,
    SPLIT,
};
