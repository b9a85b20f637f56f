/* Indexing by tensors, as NumPy and PyTorch define it: index, index_put, and what reduces to them (take, put, take_along_dim, masked_select …).
 *
 * The indices broadcast to one shape B. Where the indexed dimensions stand side by side, B takes their place in the result; else it comes first.
 * Boolean masks are turned into indices by nonzero, which waits for the mask's value. The primitives _index, _index_put, _index_backward see
 * int64 indices only; negative ones count from the end; one out of range is a late error. */
#include <string.h>

#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

DT_CPU_KERNEL(index);
DT_CPU_KERNEL(index_put);
DT_CPU_KERNEL(index_put_backward);

/* What the shapes say: B, and where it stands. `first`: position of the first index among in[]; `count` of them, absent ones included. */
static dt_status resolve(dt_node *n, const int64_t *shape, int ndim, int first, int count, dt_type *result) {
    dt_index_put_attr *a = n->attr;
    dt_type b = {0};
    int given = 0, lo = -1, hi = -1;
    if (count > ndim) return dt_fail(DT_E_INDEX, "too many indices for tensor of dimension %d (got %d)", ndim, count);
    for (int i = 0; i < count; i++) {
        const dt_meta *m = n->in[first + i];
        if (!m) continue;
        if (!dt_dtype_is_int((dt_dtype)m->dtype))
            return dt_fail(DT_E_INDEX, "tensors used as indices must be long, int, byte or bool tensors, got %s", dt_dtype_name((dt_dtype)m->dtype));
        n->cast[first + i] = DT_int64;
        if (dt_broadcast("index", &b, m))
            return dt_fail(DT_E_INDEX, "shape mismatch: indexing tensors could not be broadcast together: %s", dt_error_message());
        if (lo < 0) lo = i;
        hi = i;
        given++;
    }
    if (!given) return dt_fail(DT_E_INDEX, "index: at least one index tensor is needed");
    a->n_lead = hi - lo + 1 == given ? lo : 0;
    a->shape.n = b.ndim;
    *result = (dt_type){0};
    if (ndim - given + b.ndim > DT_MAX_DIM) return dt_fail(DT_E_VALUE, "index: a result of more than %d dimensions", DT_MAX_DIM);
    int64_t rest[DT_MAX_DIM];
    int n_rest = 0;
    for (int d = 0; d < ndim; d++)
        if (d >= count || !n->in[first + d]) rest[n_rest++] = shape[d];
    for (int d = 0; d < a->n_lead; d++) result->shape[result->ndim++] = rest[d];
    for (int d = 0; d < b.ndim; d++) result->shape[result->ndim++] = a->shape.v[d] = b.shape[d];
    for (int d = (int)a->n_lead; d < n_rest; d++) result->shape[result->ndim++] = rest[d];
    return DT_OK;
}

/* Position in the result of un-indexed dimension d, and of B's dimension k. */
static int rest_position(const dt_node *n, int first, int count, int d) {
    const dt_index_put_attr *a = n->attr;
    int rest = 0;
    for (int i = 0; i < d; i++) rest += !(i < count && n->in[first + i]);
    return rest < a->n_lead ? rest : rest + a->shape.n;
}
static bool indexed(const dt_node *n, int first, int count, int d) { return d < count && n->in[first + d]; }

/* Shard B's dimension k in every index that has it. */
static void shard_indices(const dt_node *n, int first, int count, int k, dt_placement *in) {
    const dt_index_put_attr *a = n->attr;
    for (int i = 0; i < count; i++) {
        const dt_meta *m = n->in[first + i];
        int d = m ? k - (a->shape.n - m->ndim) : -1;
        if (d >= 0 && m->shape[d] == a->shape.v[k]) in[first + i] = DT_S(d);
    }
}

static dt_status infer__index(dt_node *n) {
    dt_type t;
    DT_TRY(resolve(n, n->in[0]->shape, n->in[0]->ndim, 1, n->n_in - 1, &t));
    n->out[0] = t;
    n->out[0].dtype = (dt_dtype)n->in[0]->dtype;
    return DT_OK;
}
static dt_status place__index(const dt_node *n, dt_rules *r) {
    const dt_index_put_attr *a = n->attr;
    int count = n->n_in - 1;
    dt_placement *in, *out;
    for (int d = 0; d < n->in[0]->ndim; d++) { /* an indexed dimension: a masked look-up */
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(d);
        out[0] = indexed(n, 1, count, d) ? DT_P_OF(n->out[0].dtype == DT_bool ? DT_MAX : DT_SUM) : DT_S(rest_position(n, 1, count, d));
    }
    for (int k = 0; k < a->shape.n; k++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        shard_indices(n, 1, count, k, in);
        out[0] = DT_S(a->n_lead + k);
    }
    for (int k = 0; k < 4; k++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P_OF((dt_reduce)k);
    }
    return DT_OK;
}
static dt_list saved_indices(dt_grad *g, int first, int count, dt_tensor **v) {
    for (int i = 0; i < count; i++) v[i] = g->call->in[first + i] ? dt_grad_in(g, first + i) : NULL;
    return (dt_list){count, v};
}
static void grad__index(dt_grad *g) {
    dt_tensor *v[DT_MAX_DIM];
    dt_list l = saved_indices(g, 1, g->call->n_in - 1, v);
    dt_grad_set(g, 0, dt__index_backward(g->s, dt_grad_gy(g, 0), dt_meta_dims(dt_grad_in_meta(g, 0)), l));
}
const dt_op dt_op__index = {
    .sig = "_index(Tensor input, Tensor?[] indices) -> Tensor",
    .doc = "input at integer index tensors; absent ones keep their dimension.",
    .where = DT_HIDDEN,
    .attrs = {sizeof(dt_index_put_attr), {{NULL, 0}}},
    .infer = infer__index,
    .flags = DT_F_LOOKUP,
    .place = place__index,
    .grad = grad__index,
    .saves = DT_SAVE_ALL_IN & ~DT_SAVE_IN(0),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_index}},
};

static dt_status infer__index_backward(dt_node *n) {
    const dt_index_put_attr *a = n->attr;
    dt_type t;
    DT_TRY(dt_infer_sizes(n, &a->sizes)); /* also checks the rank */
    DT_TRY(resolve(n, a->sizes.v, a->sizes.n, 1, n->n_in - 1, &t));
    return dt_infer_sizes(n, &a->sizes);
}
static dt_status place__index_backward(const dt_node *n, dt_rules *r) {
    const dt_index_put_attr *a = n->attr;
    int count = n->n_in - 1;
    dt_placement *in, *out;
    for (int d = 0; d < n->out[0].ndim; d++) {
        if (indexed(n, 1, count, d)) continue;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(rest_position(n, 1, count, d));
        out[0] = DT_S(d);
    }
    for (int k = 0; k < a->shape.n; k++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        shard_indices(n, 1, count, k, in);
        in[0] = DT_S(a->n_lead + k);
        out[0] = DT_P;
    }
    for (int k = 0; k < 2; k++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P_OF((dt_reduce)k);
    }
    return DT_OK;
}
static void grad__index_backward(dt_grad *g) {
    dt_tensor *v[DT_MAX_DIM];
    dt_list l = saved_indices(g, 1, g->call->n_in - 1, v);
    dt_grad_set(g, 0, dt__index(g->s, dt_grad_gy(g, 0), l));
}
const dt_op dt_op__index_backward = {
    .sig = "_index_backward(Tensor grad_output, int[] sizes, Tensor?[] indices) -> Tensor",
    .doc = "Zeros of shape sizes with grad_output added where _index read.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_index_put_attr, DT_FIELD(dt_index_put_attr, sizes)),
    .infer = infer__index_backward,
    .place = place__index_backward,
    .grad = grad__index_backward,
    .saves = DT_SAVE_ALL_IN & ~DT_SAVE_IN(0),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_index_put_backward, DT_K_CONTIGUOUS}},
};

static dt_status infer__index_put(dt_node *n) {
    dt_type t;
    const dt_meta *src = n->in[n->n_in - 1];
    DT_TRY(resolve(n, n->in[0]->shape, n->in[0]->ndim, 1, n->n_in - 2, &t));
    if (!src->wrapped && src->dtype != n->in[0]->dtype)
        return dt_fail(DT_E_DTYPE, "Index put requires the source and destination dtypes match, got %s for the destination and %s for the source.",
                       dt_dtype_name((dt_dtype)n->in[0]->dtype), dt_dtype_name((dt_dtype)src->dtype));
    n->cast[n->n_in - 1] = n->in[0]->dtype;
    int lead = src->ndim - t.ndim;
    bool fits = true;
    for (int d = 0; d < src->ndim && fits; d++) fits = src->shape[d] == 1 || (d >= lead && src->shape[d] == t.shape[d - lead]);
    if (!fits) {
        DT_STR(x, 128);
        DT_STR(y, 128);
        dt_shape_print(src->ndim, src->shape, &x);
        dt_shape_print(t.ndim, t.shape, &y);
        return dt_fail(DT_E_SHAPE, "shape mismatch: value tensor of shape %s cannot be broadcast to indexing result of shape %s", x.buf, y.buf);
    }
    ((dt_index_put_attr *)n->attr)->n_result = t.ndim;
    return dt_infer_same(n);
}
static dt_status place__index_put(const dt_node *n, dt_rules *r) {
    const dt_index_put_attr *a = n->attr;
    int count = n->n_in - 2, last = n->n_in - 1;
    const dt_meta *src = n->in[last];
    dt_placement *in, *out;
    for (int d = 0; d < n->in[0]->ndim; d++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_S(d);
        if (indexed(n, 1, count, d)) continue; /* each device writes what it holds */
        int k = rest_position(n, 1, count, d) - ((int)a->n_result - src->ndim);
        if (!src->wrapped && k >= 0 && src->shape[k] == n->in[0]->shape[d] && src->shape[k] != 1) in[last] = DT_S(k);
    }
    for (int k = 0; !src->wrapped && k < (a->accumulate ? 1 : 4); k++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = in[last] = out[0] = DT_P_OF((dt_reduce)k);
    }
    return DT_OK;
}
static void grad__index_put(dt_grad *g) {
    dt_tensor *v[DT_MAX_DIM], *gy = dt_grad_gy(g, 0);
    int last = g->call->n_in - 1;
    dt_list l = saved_indices(g, 1, last - 1, v);
    bool accumulate = ((const dt_index_put_attr *)dt_grad_attr(g))->accumulate;
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, accumulate ? gy : dt__index_put(g->s, gy, l, 0.0, false));
    if (!dt_grad_needs(g, last)) return;
    dt_tensor *gv = dt__index(g->s, gy, l); /* the engine sums what was broadcast; surplus leading ones of values are put back */
    const dt_meta *src = dt_grad_in_meta(g, last);
    if (gv && src->ndim > dt_ndim(gv)) {
        int64_t shape[DT_MAX_DIM];
        int lead = src->ndim - dt_ndim(gv);
        for (int d = 0; d < src->ndim; d++) shape[d] = d < lead ? 1 : dt_shape(gv)[d - lead];
        gv = dt_reshape(g->s, gv, (dt_dims){src->ndim, shape});
    }
    dt_grad_set(g, last, gv);
}
const dt_op dt_op__index_put = {
    .sig = "_index_put(Tensor input, Tensor?[] indices, Value values, bool accumulate=False) -> Tensor",
    .doc = "A copy of input with its elements at integer index tensors replaced by values, or added to.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_index_put_attr, DT_FIELD(dt_index_put_attr, accumulate)),
    .infer = infer__index_put,
    .place = place__index_put,
    .grad = grad__index_put,
    .saves = DT_SAVE_ALL_IN & ~DT_SAVE_IN(0),
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_index_put}},
};

/* ---- masks become indices ---- */
typedef struct lookup { /* an input and integer indices, after masks were replaced */
    dt_tensor *input, *v[DT_MAX_DIM];
    int n;
} lookup;
static bool is_mask(const dt_tensor *t) { return t && (dt_dtype_of(t) == DT_bool || dt_dtype_of(t) == DT_uint8); }

/* Coordinates of a mask's true elements: one index tensor a dimension. */
static bool add_mask(dt_scope *s, lookup *l, dt_tensor *mask, int position) {
    int nd = dt_ndim(mask), at = l->n, n_out = 0;
    if (nd == 0) { /* a new dimension of size 1 or 0 */
        l->input = dt_unsqueeze(s, l->input, at);
        mask = dt_unsqueeze(s, mask, 0);
        nd = 1;
    }
    if (!l->input || !mask) return false;
    for (int d = 0; d < nd; d++) {
        if (at + d >= dt_ndim(l->input) || l->n >= DT_MAX_DIM) {
            dt_scope_fail(s, dt_fail(DT_E_INDEX, "too many indices for tensor of dimension %d", dt_ndim(l->input)));
            return false;
        }
        if (dt_shape(mask)[d] != dt_shape(l->input)[at + d]) {
            dt_scope_fail(s, dt_fail(DT_E_INDEX, "The shape of the mask at index %d does not match the shape of the indexed tensor at index %d: %lld and %lld",
                                     position + d, at + d, (long long)dt_shape(mask)[d], (long long)dt_shape(l->input)[at + d]));
            return false;
        }
    }
    dt_tensor **part = dt_unbind(s, dt_nonzero(s, mask), 1, &n_out);
    for (int d = 0; part && d < nd; d++) l->v[l->n++] = part[d];
    return part != NULL;
}
static bool look_up(dt_scope *s, dt_tensor *input, dt_list indices, lookup *l) {
    *l = (lookup){.input = input};
    for (int i = 0; i < indices.n; i++) {
        dt_tensor *t = indices.v[i];
        if (is_mask(t)) {
            if (!add_mask(s, l, t, i)) return false;
            continue;
        }
        if (l->n >= DT_MAX_DIM) {
            dt_scope_fail(s, dt_fail(DT_E_INDEX, "too many indices for tensor of dimension %d", dt_ndim(input)));
            return false;
        }
        l->v[l->n++] = t;
    }
    return true;
}
/* The only index if it is a bool mask whose shape begins x's; NULL otherwise. */
static dt_tensor *only_mask(dt_tensor *x, dt_list l) {
    if (l.n != 1 || !l.v[0] || dt_dtype_of(l.v[0]) != DT_bool) return NULL;
    int nd = dt_ndim(l.v[0]);
    bool fits = nd > 0 && nd <= dt_ndim(x) && !memcmp(dt_shape(l.v[0]), dt_shape(x), (size_t)nd * sizeof(int64_t));
    return fits ? l.v[0] : NULL;
}
static void compose_index(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    lookup l;
    dt_tensor *x = dt_arg_get_tensor(a, 0), *mask = only_mask(x, dt_arg_get_list(a, 1));
    if (mask && dt_ndim(mask) == dt_ndim(x)) { /* no indices needed */
        dt_compose_return(out, n_out, dt_masked_pick(s, x, mask));
        return;
    }
    if (look_up(s, dt_arg_get_tensor(a, 0), dt_arg_get_list(a, 1), &l)) dt_compose_return(out, n_out, dt__index(s, l.input, (dt_list){l.n, l.v}));
}
const dt_op dt_op_index = {
    .sig = "index(Tensor input, Tensor?[] indices) -> Tensor",
    .doc = "Advanced indexing: input at index tensors, one a dimension (None keeps it, a mask stands for the indices of its true elements and waits for "
           "its value). Errors: masks of another shape; late: an index out of range.",
    .where = DT_HIDDEN,
    .compose = compose_index,
};
static void compose_index_put(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    lookup l;
    dt_tensor *x = dt_arg_get_tensor(a, 0), *mask = only_mask(x, dt_arg_get_list(a, 1));
    dt_value v = dt_arg_get_value(a, 2);
    bool loses = v.kind == 2 && !dt_dtype_is_float((dt_dtype)dt_dtype_of(x)); /* masked_fill refuses what assignment truncates */
    if (mask && !loses && !dt_arg_get_bool(a, 3, false) && (v.kind != 1 || (dt_ndim(v.t) == 0 && dt_dtype_of(v.t) == dt_dtype_of(x)))) {
        for (int d = dt_ndim(mask); d < dt_ndim(x) && mask; d++) mask = dt_unsqueeze(s, mask, -1);
        dt_compose_return(out, n_out, dt_masked_fill(s, x, mask, v)); /* one value: no need to wait for the mask */
        return;
    }
    if (!look_up(s, x, dt_arg_get_list(a, 1), &l)) return;
    dt_tensor *y = dt__index_put(s, l.input, ((dt_list){l.n, l.v}), dt_arg_get_value(a, 2), dt_arg_get_bool(a, 3, false));
    if (y && dt_ndim(y) != dt_ndim(x)) y = dt_reshape(s, y, dt_shape_dims(x));
    dt_compose_return(out, n_out, y);
}
const dt_op dt_op_index_put = {
    .sig = "index_put(Tensor input, Tensor?[] indices, Value values, bool accumulate=False) -> Tensor",
    .doc = "input with its elements at indices (as in indexing) replaced by values, which broadcast; or added to, repeated indices in order.",
    .where = DT_FN | DT_METHOD,
    .inplace = true,
    .compose = compose_index_put,
};

/* ---- flat indexing ---- */
static bool wants_long(dt_scope *s, const char *name, const dt_tensor *index) {
    if (dt_dtype_of(index) == DT_int64) return true;
    dt_scope_fail(s, dt_fail(DT_E_DTYPE, "%s(): Expected a long tensor for index, but got %s", name, dt_dtype_name((dt_dtype)dt_dtype_of(index))));
    return false;
}
static void compose_take(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *index = dt_arg_get_tensor(a, 1);
    if (wants_long(s, "take", index)) dt_compose_return(out, n_out, dt__index(s, dt_ravel(s, dt_arg_get_tensor(a, 0)), DT_LIST(index)));
}
const dt_op dt_op_take = {
    .sig = "take(Tensor input, Tensor index) -> Tensor",
    .doc = "Elements of the flattened input at index, in index's shape. Errors, late: an index outside [-numel, numel).",
    .where = DT_FN | DT_METHOD,
    .compose = compose_take,
};
static void compose_put(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *index = dt_arg_get_tensor(a, 1), *src = dt_arg_get_tensor(a, 2);
    if (!wants_long(s, "put_", index)) return;
    if (dt_numel(index) != dt_numel(src)) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "put_(): Expected source and index to have the same number of elements, but got %lld and %lld",
                                 (long long)dt_numel(src), (long long)dt_numel(index)));
        return;
    }
    dt_tensor *flat = dt_ravel(s, index), *y = dt__index_put(s, dt_ravel(s, x), DT_LIST(flat), dt_ravel(s, src), dt_arg_get_bool(a, 3, false));
    dt_compose_return(out, n_out, y ? dt_reshape(s, y, dt_shape_dims(x)) : NULL);
}
const dt_op dt_op_put = {
    .sig = "put(Tensor input, Tensor index, Tensor source, bool accumulate=False) -> Tensor",
    .doc = "input with its flattened elements at index replaced by source, or added to.",
    .where = DT_FN | DT_METHOD,
    .inplace = true,
    .compose = compose_put,
};
static void compose_take_along_dim(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *index = dt_arg_get_tensor(a, 1);
    if (!wants_long(s, "take_along_dim", index)) return;
    if (!dt_arg_given(a, 2)) {
        dt_compose_return(out, n_out, dt_gather(s, dt_ravel(s, x), 0, dt_ravel(s, index), false));
        return;
    }
    int64_t dim = dt_arg_get_int(a, 2, 0), nd = dt_ndim(x), xs[DT_MAX_DIM], is[DT_MAX_DIM];
    if (nd != dt_ndim(index)) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE,
                                 "take_along_dim(): input and indices should have the same number of dimensions, but got %d dimensions for input, and %d "
                                 "dimensions for indices",
                                 (int)nd, dt_ndim(index)));
        return;
    }
    if (!dt_compose_dim(s, &dim, (int)nd)) return;
    if (nd == 0) {
        dt_compose_return(out, n_out, dt_gather(s, x, 0, index, false));
        return;
    }
    for (int d = 0; d < nd; d++) {
        int64_t p = dt_shape(x)[d], q = dt_shape(index)[d];
        xs[d] = d == dim ? p : p == 1 ? q : p;
        is[d] = d == dim ? q : q == 1 ? p : q;
    }
    x = dt_expand(s, x, (dt_dims){(int)nd, xs}, false);
    index = dt_expand(s, index, (dt_dims){(int)nd, is}, false);
    if (!x || !index) return;
    dt_tensor *wrapped = dt_where(s, dt_lt(s, index, 0), dt_add(s, index, dt_shape_dims(x).v[dim]), index);
    dt_compose_return(out, n_out, dt_gather(s, x, dim, wrapped, false));
}
const dt_op dt_op_take_along_dim = {
    .sig = "take_along_dim(Tensor input, Tensor indices, int? dim=None) -> Tensor",
    .doc = "gather along dim with input and indices broadcast against each other outside dim; without dim both are flattened.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_take_along_dim,
};
