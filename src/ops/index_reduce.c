/* scatter_reduce and index_reduce: their gradients are PyTorch's, written in ordinary ops over gather/scatter (or index_select/index_add). */
#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

DT_CPU_KERNEL(index_accum);
DT_CPU_KERNEL(scatter);
size_t dt_cpu_scatter_scratch(const dt_kctx *c);
size_t dt_cpu_index_accum_scratch(const dt_kctx *c);
dt_status dt_infer_index_reduce(dt_node *n);
dt_status dt_infer_scatter_reduce(dt_node *n);
dt_status dt_place_index_source(const dt_node *n, dt_rules *r);
dt_status dt_place_scatter(const dt_node *n, dt_rules *r);

/* One reduction's view of its operands, so that both ops share the formulas. */
typedef struct reduce_ctx {
    dt_scope *s;
    bool line; /* gather/scatter; else index_select/index_add */
    int64_t dim;
    dt_tensor *index;
} reduce_ctx;
static dt_tensor *pick(const reduce_ctx *c, dt_tensor *t) {
    return c->line ? dt_gather(c->s, t, c->dim, c->index, false) : dt_index_select(c->s, t, c->dim, c->index);
}
static dt_tensor *put_add(const reduce_ctx *c, dt_tensor *t, dt_tensor *src) {
    return c->line ? dt_scatter_add(c->s, t, c->dim, c->index, src) : dt_index_add(c->s, t, c->dim, c->index, src, 1);
}
static dt_tensor *put_zero(const reduce_ctx *c, dt_tensor *t) {
    return c->line ? dt_scatter_value(c->s, t, c->dim, c->index, 0.0, NULL) : dt_index_fill(c->s, t, c->dim, c->index, 0.0);
}
static dt_tensor *put_prod(const reduce_ctx *c, dt_tensor *t, dt_tensor *src, bool include_self) {
    return c->line ? dt_scatter_reduce(c->s, t, c->dim, c->index, src, "prod", include_self)
                   : dt_index_reduce(c->s, t, c->dim, c->index, src, "prod", include_self);
}
static dt_tensor *as_float(const reduce_ctx *c, dt_tensor *mask, dt_tensor *like) { return dt_to_dtype(c->s, mask, like ? dt_dtype_of(like) : DT_float32); }

/* y = self * prod(src); where a factor is 0 the quotient y / factor is replaced by the product without it. */
static void grad_prod(const reduce_ctx *c, dt_tensor *gy, dt_tensor *self, dt_tensor *src, dt_tensor *y, bool include_self, dt_tensor **gself,
                      dt_tensor **gsrc) {
    dt_scope *s = c->s;
    dt_tensor *safe_self = dt_masked_fill(s, self, dt_eq(s, self, 0.0), 1.0);
    *gself = dt_div(s, dt_mul(s, gy, put_prod(c, safe_self, src, include_self)), safe_self);
    dt_tensor *zero = dt_eq(s, src, 0.0), *none = dt_zeros_like(s, self, DT_DTYPE_NONE);
    dt_tensor *count = pick(c, put_add(c, none, as_float(c, zero, self)));
    dt_tensor *single = dt_mul(s, zero, dt_eq(s, count, 1.0));
    dt_tensor *without = put_prod(c, self, dt_masked_fill(s, src, single, 1.0), include_self);
    dt_tensor *plain = dt_div(s, pick(c, dt_mul(s, gy, y)), dt_masked_fill(s, src, zero, 1.0));
    *gsrc = dt_where(s, single, pick(c, dt_mul(s, gy, without)), plain);
}
static void grad_mean(const reduce_ctx *c, dt_tensor *gy, dt_tensor *src, bool include_self, dt_tensor **gself, dt_tensor **gsrc) {
    dt_scope *s = c->s;
    dt_tensor *start = include_self ? dt_ones_like(s, gy, DT_DTYPE_NONE) : dt_zeros_like(s, gy, DT_DTYPE_NONE);
    dt_tensor *n = put_add(c, start, dt_ones_like(s, src, DT_DTYPE_NONE));
    n = dt_masked_fill(s, n, dt_eq(s, n, 0.0), 1.0);
    *gself = dt_div(s, gy, n);
    *gsrc = pick(c, *gself);
}
/* The gradient is shared evenly among the elements that equal the extreme value. */
static void grad_extreme(const reduce_ctx *c, dt_tensor *gy, dt_tensor *self, dt_tensor *src, dt_tensor *y, bool include_self, dt_tensor **gself,
                         dt_tensor **gsrc) {
    dt_scope *s = c->s;
    dt_tensor *self_is = as_float(c, dt_eq(s, self, y), gy), *src_is = as_float(c, dt_eq(s, src, pick(c, y)), gy);
    if (!include_self) self_is = put_zero(c, self_is);
    dt_tensor *n = put_add(c, self_is, src_is), *share = dt_div(s, gy, dt_masked_fill(s, n, dt_eq(s, n, 0.0), 1.0));
    *gself = dt_mul(s, self_is, share);
    *gsrc = dt_mul(s, src_is, pick(c, share));
}

/* A src larger than the index (scatter_reduce): only its leading part took part. */
static dt_tensor *used_part(dt_grad *g, dt_tensor *src, const dt_meta *index) {
    const dt_meta *m = dt_grad_in_meta(g, 2);
    if (m->ndim != index->ndim) return dt_reshape(g->s, src, dt_meta_dims(index));
    for (int d = 0; d < m->ndim; d++)
        if (m->shape[d] != index->shape[d]) src = dt_slice(g->s, src, d, 0, index->shape[d], 1);
    return src;
}
static dt_tensor *whole_part(dt_grad *g, dt_tensor *gsrc) {
    const dt_meta *m = dt_grad_in_meta(g, 2), *x = dt_grad_in_meta(g, 1);
    int64_t sizes[DT_MAX_DIM];
    if (!gsrc || dt_ndim(gsrc) != m->ndim) return dt_reshape(g->s, gsrc, dt_meta_dims(m));
    for (int d = 0; d < m->ndim; d++) sizes[d] = dt_shape(gsrc)[d];
    for (int d = 0; d < m->ndim; d++) {
        if (sizes[d] == m->shape[d]) continue;
        sizes[d] = m->shape[d];
        gsrc = dt_slice_backward(g->s, gsrc, (dt_dims){m->ndim, sizes}, d, 0, x->shape[d], 1);
    }
    return gsrc;
}

static void grad_reduce(dt_grad *g, bool line) {
    const dt_index_attr *a = dt_grad_attr(g);
    reduce_ctx c = {g->s, line, a->dim, dt_grad_in(g, 1)};
    dt_tensor *gy = dt_grad_gy(g, 0), *self = dt_grad_in(g, 0), *src = dt_grad_in(g, 2), *gself = gy, *gsrc = NULL;
    if (line) src = used_part(g, src, dt_grad_in_meta(g, 1));
    if (a->mode == DT_RM_ADD)
        gsrc = pick(&c, gy);
    else if (a->mode == DT_RM_MUL)
        grad_prod(&c, gy, self, src, dt_grad_out(g, 0), a->include_self, &gself, &gsrc);
    else if (a->mode == DT_RM_MEAN)
        grad_mean(&c, gy, src, a->include_self, &gself, &gsrc);
    else
        grad_extreme(&c, gy, self, src, dt_grad_out(g, 0), a->include_self, &gself, &gsrc);
    if (!a->include_self) gself = put_zero(&c, gself);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gself);
    if (dt_grad_needs(g, 2)) dt_grad_set(g, 2, whole_part(g, gsrc));
}
static void grad_scatter_reduce(dt_grad *g) { grad_reduce(g, true); }
static void grad_index_reduce(dt_grad *g) { grad_reduce(g, false); }

#define F(name) DT_FIELD(dt_index_attr, name)
const dt_op dt_op_scatter_reduce = {
    .sig = "scatter_reduce(Tensor input, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor",
    .doc = "input combined with src at index along dim by reduce: 'sum', 'prod', 'mean', 'amax' or 'amin'; include_self=False ignores input's values "
           "where anything is scattered. Errors, late: an index outside [0, size).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_index_attr, F(dim), F(reduce), F(include_self)),
    .infer = dt_infer_scatter_reduce,
    .place = dt_place_scatter,
    .grad = grad_scatter_reduce,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2) | DT_SAVE_OUT(0),
    .inplace = true,
    .scratch = dt_cpu_scatter_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_scatter, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_index_reduce = {
    .sig = "index_reduce(Tensor input, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor",
    .doc = "input combined with source at index along dim by reduce: 'prod', 'mean', 'amax' or 'amin'. Errors, late: an index outside [0, size).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_index_attr, F(dim), F(reduce), F(include_self)),
    .infer = dt_infer_index_reduce,
    .place = dt_place_index_source,
    .grad = grad_index_reduce,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2) | DT_SAVE_OUT(0),
    .inplace = true,
    .scratch = dt_cpu_index_accum_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_index_accum, DT_K_CONTIGUOUS}},
};
