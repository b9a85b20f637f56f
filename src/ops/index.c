/* Indexing along one dimension: index_select, index_add …, gather, scatter ….
 *
 * Indices are int64 in kernels (infer asks for the cast) and are checked there: an index out of range is a late error. Sums into one element are
 * taken in the order of the indices, so results never depend on the number of threads. A dimension that is indexed may be sharded where a masked
 * look-up helps: each device reads what it holds and gives zeros for the rest, Partial(sum). */
#include <string.h>

#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

DT_CPU_KERNEL(index_select);
DT_CPU_KERNEL(index_accum);
DT_CPU_KERNEL(index_backward_dim);
DT_CPU_KERNEL(index_fill);
DT_CPU_KERNEL(gather);
DT_CPU_KERNEL(gather_backward);
DT_CPU_KERNEL(scatter);
size_t dt_cpu_scatter_scratch(const dt_kctx *c);

#define F(name) DT_FIELD(dt_index_attr, name)
/* Shared with index_reduce.c. */
dt_status dt_infer_index_reduce(dt_node *n);
dt_status dt_infer_scatter_reduce(dt_node *n);
dt_status dt_place_index_source(const dt_node *n, dt_rules *r);
dt_status dt_place_scatter(const dt_node *n, dt_rules *r);

/* The index operand: integers, cast to int64. */
static dt_status take_index(dt_node *n, int i) {
    const dt_meta *m = n->in[i];
    if (!dt_dtype_is_int((dt_dtype)m->dtype))
        return dt_fail(DT_E_DTYPE, "%s(): Expected dtype int32/int64 for index, got %s", dt_op_name(n->op), dt_dtype_name((dt_dtype)m->dtype));
    n->cast[i] = DT_int64;
    return DT_OK;
}
static dt_status take_vector(dt_node *n, int i) {
    DT_TRY(take_index(n, i));
    if (n->in[i]->ndim > 1) return dt_fail(DT_E_INDEX, "%s(): Index is supposed to be a vector, got %d dimensions", dt_op_name(n->op), n->in[i]->ndim);
    return DT_OK;
}

/* ---- index_select ---- */
static dt_status infer_index_select(dt_node *n) {
    dt_index_attr *a = n->attr;
    DT_TRY(dt_dim_wrap(&a->dim, n->in[0]->ndim));
    DT_TRY(take_vector(n, 1));
    n->out[0] = dt_meta_type(n->in[0]);
    if (n->in[0]->ndim)
        n->out[0].shape[a->dim] = n->in[1]->numel;
    else if (n->in[1]->numel != 1)
        return dt_fail(DT_E_INDEX, "index_select(): Index to scalar can have only 1 value, got %lld value(s)", (long long)n->in[1]->numel);
    return DT_OK;
}
static dt_status place_index_select(const dt_node *n, dt_rules *r) {
    const dt_index_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    dt_placement *in, *out;
    for (int d = 0; d < m->ndim; d++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(d);
        out[0] = d == a->dim ? DT_P_OF(m->dtype == DT_bool ? DT_MAX : DT_SUM) : DT_S(d); /* along dim: a masked look-up */
    }
    if (m->ndim && n->in[1]->ndim) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[1] = DT_S(0);
        out[0] = DT_S(a->dim);
    }
    for (int k = 0; k < 4; k++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P_OF((dt_reduce)k);
    }
    return DT_OK;
}
static void grad_index_select(dt_grad *g) {
    const dt_index_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_index_select_backward(g->s, dt_grad_gy(g, 0), dt_meta_dims(dt_grad_in_meta(g, 0)), a->dim, dt_grad_in(g, 1)));
}
const dt_op dt_op_index_select = {
    .sig = "index_select(Tensor input, int dim, Tensor index) -> Tensor",
    .doc = "The entries of input at index (1-dim, integers) along dim. Errors, at the next use of a value: an index outside [0, size).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_index_attr, F(dim)),
    .flags = DT_F_LOOKUP,
    .infer = infer_index_select,
    .place = place_index_select,
    .grad = grad_index_select,
    .saves = DT_SAVE_IN(1),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_index_select}},
};
static dt_status infer_sizes(dt_node *n, int index) {
    const dt_index_attr *a = n->attr;
    DT_TRY(take_index(n, index));
    return dt_infer_sizes(n, &a->sizes);
}
static dt_status infer_index_select_backward(dt_node *n) { return infer_sizes(n, 1); }
static dt_status place_index_select_backward(const dt_node *n, dt_rules *r) {
    const dt_index_attr *a = n->attr;
    dt_placement *in, *out;
    for (int d = 0; d < n->out[0].ndim; d++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(d);
        out[0] = DT_S(d);
        if (d != a->dim) continue;
        if (n->in[1]->ndim) in[1] = DT_S(0);
        out[0] = DT_P;
        if (!n->in[1]->ndim) r->count--;
    }
    for (int k = 0; k < 2; k++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P_OF((dt_reduce)k);
    }
    return DT_OK;
}
static void grad_index_select_backward(dt_grad *g) {
    dt_grad_set(g, 0, dt_index_select(g->s, dt_grad_gy(g, 0), ((const dt_index_attr *)dt_grad_attr(g))->dim, dt_grad_in(g, 1)));
}
const dt_op dt_op_index_select_backward = {
    .sig = "index_select_backward(Tensor grad_output, int[] sizes, int dim, Tensor index) -> Tensor",
    .doc = "Zeros of shape sizes with grad_output added at index along dim.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_index_attr, F(sizes), F(dim)),
    .infer = infer_index_select_backward,
    .place = place_index_select_backward,
    .grad = grad_index_select_backward,
    .saves = DT_SAVE_IN(1),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_index_backward_dim, DT_K_CONTIGUOUS}},
};

/* ---- index_add, index_copy, index_reduce: input, index, source ---- */
static dt_status infer_index_source(dt_node *n, bool same_dtype) {
    dt_index_attr *a = n->attr;
    const dt_meta *m = n->in[0], *src = n->in[2];
    const char *name = dt_op_name(n->op);
    DT_TRY(dt_dim_wrap(&a->dim, m->ndim));
    DT_TRY(take_vector(n, 1));
    if (same_dtype && src->dtype != m->dtype)
        return dt_fail(DT_E_DTYPE, "%s(): self (%s) and source (%s) must have the same dtype", name, dt_dtype_name((dt_dtype)m->dtype),
                       dt_dtype_name((dt_dtype)src->dtype));
    int64_t count = src->ndim ? src->shape[src->ndim > a->dim ? a->dim : 0] : 1;
    if (n->in[1]->numel != count)
        return dt_fail(DT_E_INDEX, "%s(): Number of indices (%lld) should be equal to source.size(dim) (%lld)", name, (long long)n->in[1]->numel,
                       (long long)count);
    bool fits = src->ndim == m->ndim || (src->ndim + m->ndim <= 1);
    for (int d = 0; fits && d < m->ndim && src->ndim == m->ndim; d++) fits = d == a->dim || src->shape[d] == m->shape[d];
    if (!fits) {
        DT_STR(x, 128);
        DT_STR(y, 128);
        dt_shape_print(m->ndim, m->shape, &x);
        dt_shape_print(src->ndim, src->shape, &y);
        return dt_fail(DT_E_SHAPE, "%s(): source %s must match the shape of self %s except in dimension %lld", name, y.buf, x.buf, (long long)a->dim);
    }
    n->out[0] = dt_meta_type(m);
    n->cast[2] = m->dtype;
    return DT_OK;
}
static dt_status infer_index_add(dt_node *n) {
    ((dt_index_attr *)n->attr)->mode = DT_RM_ADD;
    DT_TRY(infer_index_source(n, true));
    n->cast[3] = dt_dtype_is_float((dt_dtype)n->in[0]->dtype) ? DT_float64 : DT_int64;
    return DT_OK;
}
static dt_status infer_index_copy(dt_node *n) {
    ((dt_index_attr *)n->attr)->mode = DT_RM_SET;
    return infer_index_source(n, true);
}
static dt_status parse_reduce(dt_index_attr *a, const char *name, const char *legal, int dtype) {
    static const struct {
        const char *text;
        dt_reduce_mode mode;
    } modes[] = {{"sum", DT_RM_ADD},  {"add", DT_RM_ADD},  {"prod", DT_RM_MUL}, {"multiply", DT_RM_MUL},
                 {"amax", DT_RM_MAX}, {"amin", DT_RM_MIN}, {"mean", DT_RM_MEAN}};
    for (size_t i = 0; a->reduce && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(a->reduce, modes[i].text) || !strstr(legal, modes[i].text)) continue;
        a->mode = modes[i].mode;
        if (a->mode == DT_RM_MEAN && dtype == DT_bool) return dt_fail(DT_E_NOTIMPL, "%s(): reduce='mean' is not implemented for bool", name);
        return DT_OK;
    }
    return dt_fail(DT_E_SHAPE, "%s(): Expected reduce to be one of %s but got %s.", name, legal, a->reduce ? a->reduce : "None");
}
dt_status dt_infer_index_reduce(dt_node *n) {
    DT_TRY(parse_reduce(n->attr, "index_reduce", "prod, mean, amax or amin", n->in[0]->dtype));
    return infer_index_source(n, true);
}
/* Dimensions other than dim: source is sharded alike. dim itself: every device writes what it holds; or each adds its share of the source. */
dt_status dt_place_index_source(const dt_node *n, dt_rules *r) {
    const dt_index_attr *a = n->attr;
    dt_placement *in, *out;
    for (int d = 0; d < n->in[0]->ndim; d++) {
        if (d != a->dim && n->in[2]->ndim != n->in[0]->ndim) continue;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_S(d);
        if (d != a->dim) in[2] = DT_S(d);
    }
    if (a->mode == DT_RM_ADD && n->in[2]->ndim == n->in[0]->ndim && n->in[1]->ndim && n->in[0]->ndim) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P;
        in[1] = DT_S(0);
        in[2] = DT_S(a->dim);
    }
    for (int k = 0; k < (a->mode == DT_RM_ADD ? 2 : a->mode == DT_RM_SET ? 4 : 0); k++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = in[2] = out[0] = DT_P_OF((dt_reduce)k);
    }
    return DT_OK;
}
static dt_tensor *like_source(dt_grad *g, dt_tensor *t) { /* a 0-dim source of a 1-dim input */
    const dt_meta *src = dt_grad_in_meta(g, 2);
    return t && dt_ndim(t) != src->ndim ? dt_reshape(g->s, t, dt_meta_dims(src)) : t;
}
static void grad_index_add(dt_grad *g) {
    const dt_index_attr *a = dt_grad_attr(g);
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gy);
    if (dt_grad_needs(g, 2)) dt_grad_set(g, 2, dt_mul(g->s, like_source(g, dt_index_select(g->s, gy, a->dim, dt_grad_in(g, 1))), dt_grad_scalar(g, 3)));
}
const dt_op dt_op_index_add = {
    .sig = "index_add(Tensor input, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor",
    .doc = "input with alpha * source added at index along dim; repeated indices add up. Errors, late: an index outside [0, size).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_index_attr, F(dim)),
    .infer = infer_index_add,
    .place = dt_place_index_source,
    .grad = grad_index_add,
    .saves = DT_SAVE_IN(1),
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_index_accum, DT_K_CONTIGUOUS}},
};
static void grad_index_copy(dt_grad *g) {
    const dt_index_attr *a = dt_grad_attr(g);
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_index_fill(g->s, gy, a->dim, dt_grad_in(g, 1), 0.0));
    if (dt_grad_needs(g, 2)) dt_grad_set(g, 2, like_source(g, dt_index_select(g->s, gy, a->dim, dt_grad_in(g, 1))));
}
const dt_op dt_op_index_copy = {
    .sig = "index_copy(Tensor input, int dim, Tensor index, Tensor source) -> Tensor",
    .doc = "input with its entries at index along dim replaced by source. Errors, late: an index outside [0, size).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_index_attr, F(dim)),
    .infer = infer_index_copy,
    .place = dt_place_index_source,
    .grad = grad_index_copy,
    .saves = DT_SAVE_IN(1),
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_index_accum, DT_K_CONTIGUOUS}},
};

static dt_status infer_index_fill(dt_node *n) {
    dt_index_attr *a = n->attr;
    DT_TRY(dt_dim_wrap(&a->dim, n->in[0]->ndim));
    DT_TRY(take_vector(n, 1));
    if (n->in[2]->ndim)
        return dt_fail(DT_E_SHAPE, "index_fill_ only supports a 0-dimensional value tensor, but got tensor with %d dimension(s).", n->in[2]->ndim);
    n->out[0] = dt_meta_type(n->in[0]);
    n->cast[2] = n->in[0]->dtype;
    return DT_OK;
}
static dt_status place_index_fill(const dt_node *n, dt_rules *r) {
    for (int d = 0; d < n->in[0]->ndim; d++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_S(d);
    }
    return DT_OK;
}
static void grad_index_fill(dt_grad *g) {
    const dt_index_attr *a = dt_grad_attr(g);
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_index_fill(g->s, gy, a->dim, dt_grad_in(g, 1), 0.0));
    if (dt_grad_needs(g, 2)) { /* every place counts once, however often it is named; the engine sums to 0-dim */
        dt_tensor *filled = dt_index_fill(g->s, dt_zeros_like(g->s, gy, DT_DTYPE_NONE), a->dim, dt_grad_in(g, 1), 1.0);
        dt_grad_set(g, 2, dt_mul(g->s, gy, filled));
    }
}
const dt_op dt_op_index_fill = {
    .sig = "index_fill(Tensor input, int dim, Tensor index, Value value) -> Tensor",
    .doc = "input with its entries at index along dim set to value (a number or 0-dim tensor); indices may be negative.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_index_attr, F(dim)),
    .infer = infer_index_fill,
    .place = place_index_fill,
    .grad = grad_index_fill,
    .saves = DT_SAVE_IN(1),
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_index_fill, DT_K_CONTIGUOUS}},
};

/* ---- gather ---- */
/* Shapes of gather and scatter: index no larger than `other` outside dim (for gather and scatter's self), than src everywhere. */
static dt_status check_index_shape(dt_node *n, const dt_meta *self, const dt_meta *index, const dt_meta *src) {
    dt_index_attr *a = n->attr;
    const char *name = dt_op_name(n->op);
    DT_TRY(dt_dim_wrap(&a->dim, self->ndim));
    if (index->numel == 0) return DT_OK;
    int ns = self->ndim ? self->ndim : 1, ni = index->ndim ? index->ndim : 1;
    if (ns != ni)
        return dt_fail(DT_E_SHAPE, "Index tensor must have the same number of dimensions as self tensor: %s got %d and %d", name, index->ndim, self->ndim);
    if (src && (src->ndim ? src->ndim : 1) != ni)
        return dt_fail(DT_E_SHAPE, "Index tensor must have the same number of dimensions as src tensor: %s got %d and %d", name, index->ndim, src->ndim);
    for (int d = 0; d < index->ndim; d++) {
        bool ok = d == a->dim || self->ndim == 0 || index->shape[d] <= self->shape[d];
        if (src && src->ndim) ok = ok && index->shape[d] <= src->shape[d];
        if (!ok)
            return dt_fail(DT_E_SHAPE, "Size does not match at dimension %d: %s expected index to be smaller than self apart from dimension %lld and than src",
                           d, name, (long long)a->dim);
    }
    return DT_OK;
}
static dt_status infer_gather(dt_node *n) {
    DT_TRY(take_index(n, 1));
    DT_TRY(check_index_shape(n, n->in[0], n->in[1], NULL));
    n->out[0] = dt_meta_type(n->in[1]);
    n->out[0].dtype = (dt_dtype)n->in[0]->dtype;
    return DT_OK;
}
static dt_status place_gather(const dt_node *n, dt_rules *r) {
    const dt_index_attr *a = n->attr;
    const dt_meta *m = n->in[0], *x = n->in[1];
    dt_placement *in, *out;
    bool aligned = m->ndim == x->ndim;
    for (int d = 0; aligned && d < m->ndim; d++) {
        if (d == a->dim) {
            DT_TRY(dt_rule_add(r, &in, &out));
            in[1] = out[0] = DT_S(d);
            DT_TRY(dt_rule_add(r, &in, &out)); /* a masked look-up */
            in[0] = DT_S(d);
            out[0] = DT_P_OF(m->dtype == DT_bool ? DT_MAX : DT_SUM);
        } else if (m->shape[d] == x->shape[d]) {
            DT_TRY(dt_rule_add(r, &in, &out));
            in[0] = in[1] = out[0] = DT_S(d);
        }
    }
    for (int k = 0; k < 4; k++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P_OF((dt_reduce)k);
    }
    return DT_OK;
}
static void grad_gather(dt_grad *g) {
    const dt_index_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_gather_backward(g->s, dt_grad_gy(g, 0), dt_meta_dims(dt_grad_in_meta(g, 0)), a->dim, dt_grad_in(g, 1)));
}
const dt_op dt_op_gather = {
    .sig = "gather(Tensor input, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor",
    .doc = "out[i][j] = input[index[i][j]][j] for dim 0, and so on: of index's shape. Errors, late: an index outside [0, size).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_index_attr, F(dim), F(sparse_grad)),
    .flags = DT_F_LOOKUP,
    .infer = infer_gather,
    .place = place_gather,
    .grad = grad_gather,
    .saves = DT_SAVE_IN(1),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_gather}},
};
static dt_status infer_gather_backward(dt_node *n) { return infer_sizes(n, 1); }
static dt_status place_gather_backward(const dt_node *n, dt_rules *r) {
    const dt_index_attr *a = n->attr;
    const dt_meta *x = n->in[1];
    dt_placement *in, *out;
    bool aligned = n->out[0].ndim == x->ndim;
    for (int d = 0; aligned && d < x->ndim; d++) {
        if (d != a->dim && n->out[0].shape[d] != x->shape[d]) continue;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = in[1] = DT_S(d);
        out[0] = d == a->dim ? DT_P : DT_S(d);
    }
    for (int k = 0; k < 2; k++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P_OF((dt_reduce)k);
    }
    return DT_OK;
}
static void grad_gather_backward(dt_grad *g) {
    dt_grad_set(g, 0, dt_gather(g->s, dt_grad_gy(g, 0), ((const dt_index_attr *)dt_grad_attr(g))->dim, dt_grad_in(g, 1), false));
}
const dt_op dt_op_gather_backward = {
    .sig = "gather_backward(Tensor grad_output, int[] sizes, int dim, Tensor index) -> Tensor",
    .doc = "Zeros of shape sizes with grad_output added where gather read.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_index_attr, F(sizes), F(dim)),
    .infer = infer_gather_backward,
    .place = place_gather_backward,
    .grad = grad_gather_backward,
    .saves = DT_SAVE_IN(1),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_gather_backward, DT_K_CONTIGUOUS}},
};

/* ---- scatter: input, index, src or value ---- */
static dt_status infer_scatter_src(dt_node *n) {
    dt_index_attr *a = n->attr;
    DT_TRY(take_index(n, 1));
    DT_TRY(check_index_shape(n, n->in[0], n->in[1], n->in[2]));
    if (n->in[2]->dtype != n->in[0]->dtype)
        return dt_fail(DT_E_DTYPE, "%s(): Expected self.dtype to be equal to src.dtype, got %s and %s", dt_op_name(n->op),
                       dt_dtype_name((dt_dtype)n->in[0]->dtype), dt_dtype_name((dt_dtype)n->in[2]->dtype));
    (void)a;
    return dt_infer_same(n);
}
static dt_status infer_scatter(dt_node *n) {
    dt_index_attr *a = n->attr;
    a->include_self = true;
    a->mode = DT_RM_SET;
    if (a->reduce) DT_TRY(parse_reduce(a, "scatter", "add or multiply", n->in[0]->dtype));
    return infer_scatter_src(n);
}
static dt_status infer_scatter_value(dt_node *n) {
    dt_index_attr *a = n->attr;
    a->include_self = true;
    a->mode = DT_RM_SET;
    if (a->reduce) DT_TRY(parse_reduce(a, "scatter", "add or multiply", n->in[0]->dtype));
    DT_TRY(take_index(n, 1));
    DT_TRY(check_index_shape(n, n->in[0], n->in[1], NULL));
    n->cast[2] = n->in[0]->dtype;
    return dt_infer_same(n);
}
static dt_status infer_scatter_add(dt_node *n) {
    dt_index_attr *a = n->attr;
    a->include_self = true;
    a->mode = DT_RM_ADD;
    return infer_scatter_src(n);
}
dt_status dt_infer_scatter_reduce(dt_node *n) {
    DT_TRY(parse_reduce(n->attr, "scatter_reduce", "sum, prod, mean, amax or amin", n->in[0]->dtype));
    return infer_scatter_src(n);
}
dt_status dt_place_scatter(const dt_node *n, dt_rules *r) {
    const dt_index_attr *a = n->attr;
    const dt_meta *m = n->in[0], *x = n->in[1], *src = n->in[2]->wrapped ? NULL : n->in[2];
    dt_placement *in, *out;
    for (int d = 0; m->ndim == x->ndim && d < m->ndim; d++) {
        if (d == a->dim) { /* every device writes what it holds */
            DT_TRY(dt_rule_add(r, &in, &out));
            in[0] = out[0] = DT_S(d);
            continue;
        }
        if (m->shape[d] != x->shape[d] || (src && src->shape[d] != x->shape[d])) continue;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = in[1] = out[0] = DT_S(d);
        if (src) in[2] = DT_S(d);
    }
    if (src && a->mode == DT_RM_ADD && a->include_self) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = in[2] = out[0] = DT_P;
        for (int d = 0; m->ndim == x->ndim && d < m->ndim; d++) { /* each adds its share of src, which may lie anywhere along dim */
            if (src->shape[d] != x->shape[d] || d != a->dim) continue;
            DT_TRY(dt_rule_add(r, &in, &out));
            in[0] = out[0] = DT_P;
            in[1] = in[2] = DT_S(d);
        }
    }
    return DT_OK;
}
/* Gradient of src at the index's positions, zeros in what index does not cover. */
static dt_tensor *gather_like(dt_grad *g, dt_tensor *t) {
    const dt_index_attr *a = dt_grad_attr(g);
    const dt_meta *src = dt_grad_in_meta(g, 2), *x = dt_grad_in_meta(g, 1);
    t = dt_gather(g->s, t, a->dim, dt_grad_in(g, 1), false);
    if (x->ndim != src->ndim) return dt_reshape(g->s, t, dt_meta_dims(src));
    int64_t sizes[DT_MAX_DIM];
    for (int d = 0; d < src->ndim; d++) sizes[d] = x->shape[d];
    for (int d = 0; d < src->ndim; d++) {
        if (sizes[d] == src->shape[d]) continue;
        sizes[d] = src->shape[d];
        t = dt_slice_backward(g->s, t, (dt_dims){src->ndim, sizes}, d, 0, x->shape[d], 1);
    }
    return t;
}
static void grad_scatter(dt_grad *g) {
    const dt_index_attr *a = dt_grad_attr(g);
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (a->mode != DT_RM_SET && a->mode != DT_RM_ADD) {
        dt_scope_fail(g->s, dt_fail(DT_E_GRAD, "scatter with reduce='multiply' has no derivative; use scatter_reduce"));
        return;
    }
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, a->mode == DT_RM_ADD ? gy : dt_scatter_value(g->s, gy, a->dim, dt_grad_in(g, 1), 0.0, NULL));
    if (dt_grad_needs(g, 2)) dt_grad_set(g, 2, gather_like(g, gy));
}
static void grad_scatter_value(dt_grad *g) {
    const dt_index_attr *a = dt_grad_attr(g);
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (a->mode == DT_RM_MUL) {
        dt_scope_fail(g->s, dt_fail(DT_E_GRAD, "scatter with reduce='multiply' has no derivative; use scatter_reduce"));
        return;
    }
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, a->mode == DT_RM_ADD ? gy : dt_scatter_value(g->s, gy, a->dim, dt_grad_in(g, 1), 0.0, NULL));
}
#define SCATTER_KERNELS .inplace = true, .scratch = dt_cpu_scatter_scratch, .kernels = {{DT_CPU, DT_ANY, dt_cpu_scatter, DT_K_CONTIGUOUS}}
const dt_op dt_op_scatter = {
    .sig = "scatter(Tensor input, int dim, Tensor index, Tensor src, *, str? reduce=None) -> Tensor",
    .doc = "input with out[index[i][j]][j] = src[i][j] for dim 0, and so on; with reduce 'add' or 'multiply' combined. Of repeated indices the last "
           "counts. Errors, late: an index outside [0, size).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_index_attr, F(dim), F(reduce)),
    .infer = infer_scatter,
    .place = dt_place_scatter,
    .grad = grad_scatter,
    .saves = DT_SAVE_IN(1),
    SCATTER_KERNELS,
};
const dt_op dt_op_scatter_value = {
    .sig = "scatter.value(Tensor input, int dim, Tensor index, Scalar value, *, str? reduce=None) -> Tensor",
    .doc = "scatter with a number.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_index_attr, F(dim), F(reduce)),
    .infer = infer_scatter_value,
    .place = dt_place_scatter,
    .grad = grad_scatter_value,
    .saves = DT_SAVE_IN(1),
    SCATTER_KERNELS,
};
const dt_op dt_op_scatter_add = {
    .sig = "scatter_add(Tensor input, int dim, Tensor index, Tensor src) -> Tensor",
    .doc = "input with src added at index along dim; repeated indices add up, in order.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_index_attr, F(dim)),
    .infer = infer_scatter_add,
    .place = dt_place_scatter,
    .grad = grad_scatter,
    .saves = DT_SAVE_IN(1),
    SCATTER_KERNELS,
};
