/* Reductions that add, multiply or compare: sum, mean, prod, amax, amin, aminmax, max, min, any, all, count_nonzero, argmax, argmin.
 *
 * Along a sharded dimension sum and mean give Partial(sum) (a mean divides by the global count, so uneven and empty shards are right) and
 * extremes give Partial(max) or Partial(min): the identity of an empty shard is -inf, the lowest integer, or false. Results that are
 * indices need the whole dimension. */
#include "ops/reduce.h"
#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"

DT_CPU_KERNEL(sum);
DT_CPU_KERNEL(mean);
DT_CPU_KERNEL(prod);
DT_CPU_KERNEL(amax);
DT_CPU_KERNEL(amin);
DT_CPU_KERNEL(count_nonzero);
DT_CPU_KERNEL(prod_others);
DT_CPU_KERNEL(value_selecting_backward);
DT_CPU_KERNEL(max_dim);
DT_CPU_KERNEL(min_dim);
DT_CPU_KERNEL(argmax);
DT_CPU_KERNEL(argmin);

#define REDUCE_ATTRS DT_ATTRS(dt_reduce_attr, DT_FIELD(dt_reduce_attr, dim), DT_FIELD(dt_reduce_attr, keepdim), DT_FIELD(dt_reduce_attr, dtype))

/* g, the gradient of a reduction over dims of a tensor with ndim dimensions, with the reduced dimensions back as ones. */
static dt_tensor *unreduce(dt_scope *s, dt_tensor *g, const dt_ints *dims, bool keepdim, int ndim) {
    for (int d = 0; d < ndim && !keepdim; d++)
        if (dt_ints_has(dims, d)) g = dt_unsqueeze(s, g, d);
    return g;
}
static dt_dims shape_of(const dt_meta *m) { return (dt_dims){m->ndim, m->shape}; }

/* Any reduction: kept dimensions shard through, reduced ones give `p`; a Partial of that kind stays one where no cast intervenes. */
static dt_status place_partial(const dt_node *n, dt_rules *r, const dt_ints *dims, bool keepdim, dt_placement p) {
    DT_TRY(dt_place_reduce(n, r, dims, keepdim, p));
    if (n->cast[0] != DT_DTYPE_NONE && n->cast[0] != n->in[0]->dtype) return DT_OK;
    for (int k = 0; k < (p.reduce == DT_SUM ? 2 : 1); k++) {
        dt_placement *in, *out, q = k ? DT_P_OF(DT_AVG) : p;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = q;
        for (int i = 0; i < n->n_out; i++) out[i] = q;
    }
    return DT_OK;
}

/* ---- sum, mean ------------------------------------------------------------------------------------------------------------------ */
static dt_status sum_infer(dt_node *n) {
    dt_reduce_attr *a = n->attr;
    DT_TRY(dt_infer_reduce(n, &a->dim, a->keepdim));
    if (a->dtype != DT_DTYPE_NONE)
        n->cast[0] = (uint8_t)(n->out[0].dtype = (dt_dtype)a->dtype);
    else if (!dt_dtype_is_float(n->out[0].dtype))
        n->out[0].dtype = DT_int64;
    return DT_OK;
}
static dt_status sum_place(const dt_node *n, dt_rules *r) {
    const dt_reduce_attr *a = n->attr;
    return place_partial(n, r, &a->dim, a->keepdim, DT_P);
}
static void sum_grad(dt_grad *g) {
    const dt_reduce_attr *a = dt_grad_attr(g);
    const dt_meta *m = dt_grad_in_meta(g, 0);
    dt_grad_set(g, 0, dt_expand(g->s, unreduce(g->s, dt_grad_gy(g, 0), &a->dim, a->keepdim, m->ndim), shape_of(m), false));
}
const dt_op dt_op_sum = {
    .sig = "sum(Tensor input, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor",
    .doc = "The sum over `dim` (an int, several, or None for all). Integers and bool sum in int64. `dtype`: cast to it first.",
    .where = DT_FN | DT_METHOD,
    .attrs = REDUCE_ATTRS,
    .flags = DT_F_STRIDED,
    .infer = sum_infer,
    .place = sum_place,
    .grad = sum_grad,
    .scratch = dt_reduce_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_sum}},
};

static dt_status mean_infer(dt_node *n) {
    dt_reduce_attr *a = n->attr;
    dt_dtype t = a->dtype != DT_DTYPE_NONE ? (dt_dtype)a->dtype : (dt_dtype)n->in[0]->dtype;
    if (!dt_dtype_is_float(t))
        return dt_fail(DT_E_DTYPE, "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: %s",
                       dt_dtype_name(t));
    return sum_infer(n);
}
static void mean_grad(dt_grad *g) {
    const dt_reduce_attr *a = dt_grad_attr(g);
    const dt_meta *m = dt_grad_in_meta(g, 0);
    double count = 1;
    for (int d = 0; d < m->ndim; d++)
        if (dt_ints_has(&a->dim, d)) count *= (double)m->shape[d];
    dt_tensor *gy = unreduce(g->s, dt_grad_gy(g, 0), &a->dim, a->keepdim, m->ndim);
    dt_grad_set(g, 0, dt_expand(g->s, dt_mul(g->s, gy, 1 / count), shape_of(m), false));
}
const dt_op dt_op_mean = {
    .sig = "mean(Tensor input, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor",
    .doc = "The mean over `dim` (an int, several, or None for all). Errors: RuntimeError if the input (or `dtype`) is not floating point.",
    .where = DT_FN | DT_METHOD,
    .attrs = REDUCE_ATTRS,
    .flags = DT_F_STRIDED,
    .infer = mean_infer,
    .place = sum_place,
    .grad = mean_grad,
    .scratch = dt_reduce_scratch,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_mean}},
};

/* ---- prod: over all, or over one dimension ----------------------------------------------------------------------------------------- */
typedef struct prod_attr {
    dt_reduce_attr r; /* first: the kernels read it */
    int64_t dim;
} prod_attr;

static dt_status prod_dim_infer(dt_node *n) {
    prod_attr *a = n->attr;
    a->r.dim = (dt_ints){1, {a->dim}};
    return sum_infer(n);
}
static dt_status prod_place(const dt_node *n, dt_rules *r) { /* a product of parts is not a sum of parts: reduced dimensions are gathered */
    const dt_reduce_attr *a = n->attr;
    return dt_place_reduce(n, r, &a->dim, a->keepdim, DT_R);
}
static void prod_dim_grad(dt_grad *g) {
    const prod_attr *a = dt_grad_attr(g);
    const dt_meta *m = dt_grad_in_meta(g, 0);
    dt_tensor *gy = unreduce(g->s, dt_grad_gy(g, 0), &a->r.dim, a->r.keepdim, m->ndim), *x = dt_grad_in(g, 0);
    dt_tensor *others;
    if (dt_higher_order()) { /* differentiable; wrong only where x holds a zero */
        dt_tensor *y = unreduce(g->s, dt_grad_out(g, 0), &a->r.dim, a->r.keepdim, m->ndim);
        others = dt_div(g->s, y, DT_V(x));
    } else
        others = dt_prod_others(g->s, x, a->dim);
    dt_grad_set(g, 0, dt_mul(g->s, gy, DT_V(others)));
}
static void prod_grad(dt_grad *g) {
    const dt_meta *m = dt_grad_in_meta(g, 0);
    dt_tensor *x = dt_grad_in(g, 0), *gy = dt_grad_gy(g, 0), *others;
    if (dt_higher_order())
        others = dt_div(g->s, dt_grad_out(g, 0), DT_V(x));
    else
        others = dt_reshape(g->s, dt_prod_others(g->s, dt_reshape(g->s, x, DT_DIMS(m->numel)), 0), shape_of(m));
    dt_grad_set(g, 0, dt_mul(g->s, gy, DT_V(others)));
}
const dt_op dt_op_prod = {
    .sig = "prod(Tensor input, *, dtype? dtype=None) -> Tensor",
    .doc = "The product of all elements, or over one dimension. Integers and bool multiply in int64. `dtype`: cast to it first.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_reduce_attr, DT_FIELD(dt_reduce_attr, dtype)),
    .flags = DT_F_STRIDED,
    .infer = sum_infer,
    .place = prod_place,
    .grad = prod_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .scratch = dt_reduce_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_prod}},
};
const dt_op dt_op_prod_dim = {
    .sig = "prod.dim(Tensor input, int dim, bool keepdim=False, *, dtype? dtype=None) -> Tensor",
    .doc = "The product over one dimension.",
    .where = DT_FN | DT_METHOD,
    .attrs = {sizeof(prod_attr), {{"dim", offsetof(prod_attr, dim)}, {"keepdim", offsetof(prod_attr, r.keepdim)}, {"dtype", offsetof(prod_attr, r.dtype)}}},
    .flags = DT_F_STRIDED,
    .infer = prod_dim_infer,
    .place = prod_place,
    .grad = prod_dim_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .scratch = dt_reduce_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_prod}},
};

static dt_status along_infer(dt_node *n) {
    dt_dim_attr *a = n->attr;
    DT_TRY(dt_dim_wrap(&a->dim, n->in[0]->ndim));
    return dt_infer_same(n);
}
static dt_status along_place(const dt_node *n, dt_rules *r) { return dt_place_except(n, r, 1u << ((const dt_dim_attr *)n->attr)->dim); }
const dt_op dt_op_prod_others = {
    .sig = "prod_others(Tensor input, int dim) -> Tensor",
    .doc = "At each place the product of all other elements along `dim`: the gradient of prod, right where elements are zero.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_dim_attr, DT_FIELD(dt_dim_attr, dim)),
    .infer = along_infer,
    .place = along_place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_prod_others, DT_K_CONTIGUOUS}},
};

/* ---- extremes -------------------------------------------------------------------------------------------------------------------- */
static dt_status extreme_infer(dt_node *n) {
    dt_reduce_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    if (a->dim.n <= 0 && m->numel == 0)
        return dt_fail(DT_E_SHAPE, "%s(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument.",
                       dt_op_name(n->op));
    DT_TRY(dt_infer_reduce(n, &a->dim, a->keepdim));
    for (int d = 0; d < m->ndim; d++)
        if (dt_ints_has(&a->dim, d) && m->shape[d] == 0)
            return dt_fail(DT_E_INDEX, "%s(): Expected reduction dim %d to have non-zero size.", dt_op_name(n->op), d);
    return DT_OK;
}
static dt_status amax_place(const dt_node *n, dt_rules *r) {
    const dt_reduce_attr *a = n->attr;
    return place_partial(n, r, &a->dim, a->keepdim, DT_P_OF(DT_MAX));
}
static dt_status amin_place(const dt_node *n, dt_rules *r) {
    const dt_reduce_attr *a = n->attr;
    return place_partial(n, r, &a->dim, a->keepdim, DT_P_OF(DT_MIN));
}
/* The gradient goes in equal parts to all places that attain the extreme. */
static void extreme_grad(dt_grad *g) {
    const dt_reduce_attr *a = dt_grad_attr(g);
    int nd = dt_grad_in_meta(g, 0)->ndim;
    dt_scope *s = g->s;
    dt_tensor *y = unreduce(s, dt_grad_out(g, 0), &a->dim, a->keepdim, nd), *gy = unreduce(s, dt_grad_gy(g, 0), &a->dim, a->keepdim, nd);
    dt_tensor *hit = dt_eq(s, dt_grad_in(g, 0), DT_V(y));
    dt_tensor *count = dt_sum(s, hit, (dt_dims){a->dim.n, a->dim.v}, true, DT_DTYPE_NONE);
    dt_grad_set(g, 0, dt_mul(s, dt_div(s, gy, DT_V(count)), DT_V(hit)));
}
const dt_op dt_op_amax = {
    .sig = "amax(Tensor input, int[] dim=[], bool keepdim=False) -> Tensor",
    .doc = "The largest value over `dim` (all if empty); NaN if any is NaN. Ties share the gradient.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_reduce_attr, DT_FIELD(dt_reduce_attr, dim), DT_FIELD(dt_reduce_attr, keepdim)),
    .flags = DT_F_STRIDED,
    .infer = extreme_infer,
    .place = amax_place,
    .grad = extreme_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .scratch = dt_reduce_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_amax}},
};
const dt_op dt_op_amin = {
    .sig = "amin(Tensor input, int[] dim=[], bool keepdim=False) -> Tensor",
    .doc = "The smallest value over `dim` (all if empty); NaN if any is NaN. Ties share the gradient.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_reduce_attr, DT_FIELD(dt_reduce_attr, dim), DT_FIELD(dt_reduce_attr, keepdim)),
    .flags = DT_F_STRIDED,
    .infer = extreme_infer,
    .place = amin_place,
    .grad = extreme_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .scratch = dt_reduce_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_amin}},
};
const dt_op dt_op_max = {
    .sig = "max(Tensor input) -> Tensor",
    .doc = "The largest of all elements; NaN if any is NaN.",
    .where = DT_FN | DT_METHOD,
    .attrs = {sizeof(dt_reduce_attr), {{NULL, 0}}},
    .flags = DT_F_STRIDED,
    .infer = extreme_infer,
    .place = amax_place,
    .grad = extreme_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .scratch = dt_reduce_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_amax}},
};
const dt_op dt_op_min = {
    .sig = "min(Tensor input) -> Tensor",
    .doc = "The smallest of all elements; NaN if any is NaN.",
    .where = DT_FN | DT_METHOD,
    .attrs = {sizeof(dt_reduce_attr), {{NULL, 0}}},
    .flags = DT_F_STRIDED,
    .infer = extreme_infer,
    .place = amin_place,
    .grad = extreme_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .scratch = dt_reduce_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_amin}},
};

/* aminmax: both extremes, over one dimension or all. */
static void aminmax_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    dt_dims dim = dt_arg_get_dims(a, 1);
    bool keep = dt_arg_get_bool(a, 2, false);
    if (dim.n < 0) dim = (dt_dims){0, NULL};
    out[0] = dt_keep(dt_amin(s, x, dim, keep));
    out[1] = dt_keep(dt_amax(s, x, dim, keep));
    *n_out = 2;
}
const dt_op dt_op_aminmax = {
    .sig = "aminmax(Tensor input, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)",
    .doc = "The smallest and the largest value, over `dim` or over all elements.",
    .where = DT_FN | DT_METHOD,
    .compose = aminmax_compose,
};

/* ---- value_selecting_backward -------------------------------------------------------------------------------------------------------- */
static dt_status select_infer(dt_node *n) {
    const dt_select_attr *a = n->attr;
    n->out[0] = dt_meta_type(n->in[0]);
    n->out[0].shape[a->dim] = a->size;
    return DT_OK;
}
static dt_status select_place(const dt_node *n, dt_rules *r) {
    int64_t dim = ((const dt_select_attr *)n->attr)->dim;
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out)); /* each shard's gradients, wherever they belong */
    in[0] = in[1] = DT_S(dim);
    out[0] = DT_P;
    return dt_place_except(n, r, 1u << dim);
}
static void select_grad(dt_grad *g) {
    dt_grad_set(g, 0, dt_gather(g->s, dt_grad_gy(g, 0), ((const dt_select_attr *)dt_grad_attr(g))->dim, dt_grad_in(g, 1), false));
}
const dt_op dt_op_value_selecting_backward = {
    .sig = "value_selecting_backward(Tensor grad, Tensor indices, int dim, int size) -> Tensor",
    .doc = "The gradient of ops that pick elements along `dim` (max, sort, topk …): zeros of `size` along it, plus grad at indices.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_select_attr, DT_FIELD(dt_select_attr, dim), DT_FIELD(dt_select_attr, size)),
    .infer = select_infer,
    .place = select_place,
    .grad = select_grad,
    .saves = DT_SAVE_IN(1),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_value_selecting_backward, DT_K_CONTIGUOUS}},
};

/* max(x, dim): the value and where it stands first. */
static dt_status max_dim_infer(dt_node *n) {
    dt_dim_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    DT_TRY(dt_dim_wrap(&a->dim, m->ndim));
    if (m->ndim && m->shape[a->dim] == 0) return dt_fail(DT_E_INDEX, "%s(): Expected reduction dim %d to have non-zero size.", dt_op_name(n->op), (int)a->dim);
    dt_ints dims = {1, {a->dim}};
    DT_TRY(dt_infer_reduce(n, &dims, a->keepdim));
    if (n->n_out > 1) n->out[1] = n->out[0];
    n->out[n->n_out - 1].dtype = DT_int64;
    return DT_OK;
}
/* Along a sharded dimension: the extreme of each shard, then of those. */
DT_CPU_KERNEL(extreme_part);
DT_CPU_KERNEL(extreme_join);
static uint32_t staged_dims(const void *attr, int ndim) {
    int64_t dim = ((const dt_dim_attr *)attr)->dim;
    return dim == DT_NO_INT ? (1u << ndim) - 1 : 1u << dim;
}
static int staged_along(const void *attr) {
    int64_t dim = ((const dt_dim_attr *)attr)->dim;
    return dim == DT_NO_INT ? -1 : (int)dim;
}
static const dt_staged extremes = {.dims = staged_dims, .along = staged_along, .indices = true, .part = dt_cpu_extreme_part, .join = dt_cpu_extreme_join};
static dt_status max_dim_place(const dt_node *n, dt_rules *r) {
    const dt_dim_attr *a = n->attr;
    DT_TRY(dt_place_staged(n, r));
    dt_ints dims = {n->in[0]->ndim ? 1 : 0, {a->dim}};
    return dt_place_reduce(n, r, &dims, a->keepdim, DT_R);
}
/* gx = gy at the chosen places: scatter of gy into zeros. */
static void pick_grad(dt_grad *g) {
    const dt_dim_attr *a = dt_grad_attr(g);
    const dt_meta *m = dt_grad_in_meta(g, 0);
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0), *at = dt_grad_out(g, 1);
    if (m->ndim == 0) {
        dt_grad_set(g, 0, gy);
        return;
    }
    if (!a->keepdim) gy = dt_unsqueeze(s, gy, a->dim), at = dt_unsqueeze(s, at, a->dim);
    dt_grad_set(g, 0, dt_value_selecting_backward(s, gy, at, a->dim, m->shape[a->dim]));
}
const dt_op dt_op_max_dim = {
    .staged = &extremes,
    .sig = "max.dim(Tensor input, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    .doc = "The largest value along `dim` and the index of its first occurrence; a NaN counts as largest.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_dim_attr, DT_FIELD(dt_dim_attr, dim), DT_FIELD(dt_dim_attr, keepdim)),
    .flags = DT_F_STRIDED,
    .infer = max_dim_infer,
    .place = max_dim_place,
    .grad = pick_grad,
    .saves = DT_SAVE_OUT(1),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_max_dim, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_min_dim = {
    .staged = &extremes,
    .sig = "min.dim(Tensor input, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    .doc = "The smallest value along `dim` and the index of its first occurrence; a NaN counts as smallest.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_dim_attr, DT_FIELD(dt_dim_attr, dim), DT_FIELD(dt_dim_attr, keepdim)),
    .flags = DT_F_STRIDED,
    .infer = max_dim_infer,
    .place = max_dim_place,
    .grad = pick_grad,
    .saves = DT_SAVE_OUT(1),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_min_dim, DT_K_CONTIGUOUS}},
};

static void max_other_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_out(dt_maximum(s, dt_arg_get_tensor(a, 0), dt_arg_get_tensor(a, 1)), out, n_out);
}
const dt_op dt_op_max_other = {
    .sig = "max.other(Tensor input, Tensor other) -> Tensor",
    .doc = "The elementwise maximum of two tensors.",
    .where = DT_FN | DT_METHOD,
    .compose = max_other_compose,
};

static void min_other_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_out(dt_minimum(s, dt_arg_get_tensor(a, 0), dt_arg_get_tensor(a, 1)), out, n_out);
}
const dt_op dt_op_min_other = {
    .sig = "min.other(Tensor input, Tensor other) -> Tensor",
    .doc = "The elementwise minimum of two tensors.",
    .where = DT_FN | DT_METHOD,
    .compose = min_other_compose,
};

/* ---- argmax, argmin ---------------------------------------------------------------------------------------------------------------- */
static dt_status argmax_infer(dt_node *n) {
    dt_dim_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    if (a->dim != DT_NO_INT) return max_dim_infer(n);
    if (m->numel == 0)
        return dt_fail(DT_E_INDEX, "%s(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument.",
                       dt_op_name(n->op));
    dt_ints dims = {0, {0}};
    DT_TRY(dt_infer_reduce(n, &dims, a->keepdim));
    n->out[0].dtype = DT_int64;
    return DT_OK;
}
static dt_status argmax_place(const dt_node *n, dt_rules *r) {
    return ((const dt_dim_attr *)n->attr)->dim == DT_NO_INT ? dt_place_staged(n, r) : max_dim_place(n, r);
}
const dt_op dt_op_argmax = {
    .staged = &extremes,
    .sig = "argmax(Tensor input, int? dim=None, bool keepdim=False) -> Tensor",
    .doc = "The index of the first largest element along `dim`, or in the flattened input; a NaN counts as largest.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_dim_attr, DT_FIELD(dt_dim_attr, dim), DT_FIELD(dt_dim_attr, keepdim)),
    .flags = DT_F_STRIDED,
    .infer = argmax_infer,
    .place = argmax_place,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_argmax, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_argmin = {
    .staged = &extremes,
    .sig = "argmin(Tensor input, int? dim=None, bool keepdim=False) -> Tensor",
    .doc = "The index of the first smallest element along `dim`, or in the flattened input; a NaN counts as smallest.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_dim_attr, DT_FIELD(dt_dim_attr, dim), DT_FIELD(dt_dim_attr, keepdim)),
    .flags = DT_F_STRIDED,
    .infer = argmax_infer,
    .place = argmax_place,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_argmin, DT_K_CONTIGUOUS}},
};

/* ---- any, all, count_nonzero --------------------------------------------------------------------------------------------------------- */
static dt_status any_infer(dt_node *n) {
    dt_reduce_attr *a = n->attr;
    DT_TRY(dt_infer_reduce(n, &a->dim, a->keepdim));
    n->cast[0] = DT_bool;
    if (n->out[0].dtype != DT_uint8) n->out[0].dtype = DT_bool;
    return DT_OK;
}
static dt_status any_place(const dt_node *n, dt_rules *r) {
    const dt_reduce_attr *a = n->attr;
    return place_partial(n, r, &a->dim, a->keepdim, DT_P_OF(DT_MAX));
}
static dt_status all_place(const dt_node *n, dt_rules *r) {
    const dt_reduce_attr *a = n->attr;
    return place_partial(n, r, &a->dim, a->keepdim, DT_P_OF(DT_MIN));
}
const dt_op dt_op_any = {
    .sig = "any(Tensor input, int[]? dim=None, bool keepdim=False) -> Tensor",
    .doc = "True where any element over `dim` is not zero. bool (uint8 for uint8).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_reduce_attr, DT_FIELD(dt_reduce_attr, dim), DT_FIELD(dt_reduce_attr, keepdim)),
    .flags = DT_F_STRIDED,
    .infer = any_infer,
    .place = any_place,
    .scratch = dt_reduce_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_amax}},
};
const dt_op dt_op_all = {
    .sig = "all(Tensor input, int[]? dim=None, bool keepdim=False) -> Tensor",
    .doc = "True where all elements over `dim` are not zero. bool (uint8 for uint8).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_reduce_attr, DT_FIELD(dt_reduce_attr, dim), DT_FIELD(dt_reduce_attr, keepdim)),
    .flags = DT_F_STRIDED,
    .infer = any_infer,
    .place = all_place,
    .scratch = dt_reduce_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_amin}},
};

static dt_status count_infer(dt_node *n) {
    dt_reduce_attr *a = n->attr;
    DT_TRY(dt_infer_reduce(n, &a->dim, false));
    n->out[0].dtype = DT_int64;
    return DT_OK;
}
static dt_status count_place(const dt_node *n, dt_rules *r) {
    const dt_reduce_attr *a = n->attr;
    return dt_place_reduce(n, r, &a->dim, false, DT_P);
}
const dt_op dt_op_count_nonzero = {
    .sig = "count_nonzero(Tensor input, int[]? dim=None) -> Tensor",
    .doc = "How many elements over `dim` are not zero, int64.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_reduce_attr, DT_FIELD(dt_reduce_attr, dim)),
    .flags = DT_F_STRIDED,
    .infer = count_infer,
    .place = count_place,
    .scratch = dt_reduce_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_count_nonzero}},
};
