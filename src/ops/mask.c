/* Masks: nonzero, masked_select, masked_scatter, one_hot, repeat_interleave. Shapes that depend on values are made in two steps: a count that the
 * client reads (this waits), then an op of fixed size. */
#include <string.h>

#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

DT_CPU_KERNEL(nonzero_count);
DT_CPU_KERNEL(nonzero);
DT_CPU_KERNEL(masked_select);
DT_CPU_KERNEL(masked_scatter);
DT_CPU_KERNEL(masked_scatter_backward);
DT_CPU_KERNEL(one_hot);
DT_CPU_KERNEL(index_limit);
DT_CPU_KERNEL(repeat_indices);
DT_CPU_KERNEL(repeat_total);

/* Wait for a 0-dim count. -1: the scope has the error. */
static int64_t read_count(dt_scope *s, dt_tensor *t) {
    double v = 0;
    if (!t) return -1;
    int st = dt_item_f64(t, &v);
    if (st) {
        dt_scope_fail(s, (dt_status)st);
        return -1;
    }
    return (int64_t)v;
}
static void scalar_of(dt_node *n, dt_dtype t) { n->out[0] = (dt_type){.dtype = t}; }

/* ---- nonzero ---- */
static dt_status infer_count(dt_node *n) {
    scalar_of(n, DT_int64);
    return DT_OK;
}
static dt_status place_count(const dt_node *n, dt_rules *r) {
    for (int d = 0; d < n->in[0]->ndim; d++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(d);
        out[0] = DT_P;
    }
    return DT_OK;
}
const dt_op dt_op__nonzero_count = {
    .sig = "_nonzero_count(Tensor input) -> Tensor",
    .doc = "How many elements are not zero: int64, 0-dim.",
    .where = DT_HIDDEN,
    .infer = infer_count,
    .place = place_count,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_nonzero_count}},
};
typedef struct size_attr {
    int64_t n;
} size_attr;
static dt_status infer__nonzero(dt_node *n) {
    n->out[0] = (dt_type){DT_int64, 2, {((size_attr *)n->attr)->n, n->in[0]->ndim}};
    return DT_OK;
}
const dt_op dt_op__nonzero = {
    .sig = "_nonzero(Tensor input, int n) -> Tensor",
    .doc = "The coordinates (n, ndim) of the n elements that are not zero, in row-major order.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(size_attr, DT_FIELD(size_attr, n)),
    .infer = infer__nonzero,
    .place = dt_place_replicate,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_nonzero}},
};
static dt_tensor *nonzero(dt_scope *s, dt_tensor *t) {
    int64_t n = read_count(s, dt__nonzero_count(s, t));
    return n < 0 ? NULL : dt__nonzero(s, t, n);
}
static void compose_nonzero(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { dt_compose_return(out, n_out, nonzero(s, dt_arg_get_tensor(a, 0))); }
const dt_op dt_op_nonzero = {
    .sig = "nonzero(Tensor input) -> Tensor",
    .doc = "The coordinates (n, ndim) of the elements that are not zero, in row-major order. Waits for input.",
    .also = "argwhere",
    .where = DT_FN | DT_METHOD,
    .compose = compose_nonzero,
};
static void columns(dt_scope *s, dt_tensor *x, dt_tensor **out, int *n_out) {
    int room = *n_out, n = 0;
    if (x && dt_ndim(x) == 0) x = dt_unsqueeze(s, x, 0);
    dt_tensor **part = x ? dt_unbind(s, nonzero(s, x), 1, &n) : NULL;
    if (n > room) dt_scope_fail(s, dt_fail(DT_E_INTERNAL, "nonzero: %d results, room for %d", n, room));
    for (int i = 0; part && i < n && i < room; i++) out[i] = dt_keep(part[i]);
    *n_out = part ? n : 0;
}
static void compose_nonzero_tuple(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    if (dt_arg_get_bool(a, 1, true))
        columns(s, x, out, n_out);
    else
        dt_compose_return(out, n_out, nonzero(s, x));
}
const dt_op dt_op_nonzero_tuple = {
    .sig = "nonzero.tuple(Tensor input, *, bool as_tuple) -> Tensor[]",
    .doc = "The coordinates of the elements that are not zero, one 1-dim tensor a dimension. Waits for input.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_nonzero_tuple,
};
static void compose_where_condition(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { columns(s, dt_arg_get_tensor(a, 0), out, n_out); }
const dt_op dt_op_where_condition = {
    .sig = "where.condition(Tensor condition) -> Tensor[]",
    .doc = "nonzero(condition, as_tuple=True). Waits for condition.",
    .where = DT_FN,
    .compose = compose_where_condition,
};

/* ---- masked_select, masked_scatter ---- */
/* Both expanded to the shape they broadcast to. */
static bool expand_both(dt_scope *s, const char *name, dt_tensor **x, dt_tensor **y) {
    dt_type t = {0};
    dt_tensor *v[2] = {*x, *y};
    for (int i = 0; i < 2; i++) {
        dt_meta m = {.ndim = (uint8_t)dt_ndim(v[i])};
        memcpy(m.shape, dt_shape(v[i]), m.ndim * sizeof *m.shape);
        dt_status st = dt_broadcast(name, &t, &m);
        if (st) {
            dt_scope_fail(s, st);
            return false;
        }
    }
    dt_dims shape = {t.ndim, t.shape};
    bool same = dt_ndim(*x) == t.ndim && !memcmp(dt_shape(*x), t.shape, (size_t)t.ndim * sizeof *t.shape);
    if (!same) *x = dt_expand(s, *x, shape, false);
    *y = dt_expand(s, *y, shape, false);
    return *x && *y;
}
static bool wants_mask(dt_scope *s, const char *name, const dt_tensor *mask) {
    if (dt_dtype_of(mask) == DT_bool) return true;
    dt_scope_fail(s, dt_fail(DT_E_DTYPE, "%s: expected BoolTensor for mask, got %s", name, dt_dtype_name((dt_dtype)dt_dtype_of(mask))));
    return false;
}
static dt_status infer__masked_select(dt_node *n) {
    n->out[0] = (dt_type){(dt_dtype)n->in[0]->dtype, 1, {((size_attr *)n->attr)->n}};
    return DT_OK;
}
static dt_status place__masked_select(const dt_node *n, dt_rules *r) {
    for (int k = 0; k < 4; k++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P_OF((dt_reduce)k);
    }
    return DT_OK;
}
static void grad__masked_select(dt_grad *g) {
    dt_tensor *mask = dt_grad_in(g, 1);
    dt_tensor *zeros = dt_to_dtype(g->s, dt_zeros_like(g->s, mask, DT_DTYPE_NONE), dt_grad_in_meta(g, 0)->dtype);
    dt_grad_set(g, 0, dt__masked_scatter(g->s, zeros, mask, dt_grad_gy(g, 0)));
}
const dt_op dt_op__masked_select = {
    .sig = "_masked_select(Tensor input, Tensor mask, int n) -> Tensor",
    .doc = "The n elements where mask, of the same shape, is true.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(size_attr, DT_FIELD(size_attr, n)),
    .infer = infer__masked_select,
    .place = place__masked_select,
    .grad = grad__masked_select,
    .saves = DT_SAVE_IN(1),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_masked_select, DT_K_CONTIGUOUS}},
};
dt_tensor *dt_masked_pick(dt_scope *s, dt_tensor *x, dt_tensor *mask) {
    int64_t n = read_count(s, dt__nonzero_count(s, mask));
    return n < 0 ? NULL : dt__masked_select(s, x, mask, n);
}
static void compose_masked_select(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *mask = dt_arg_get_tensor(a, 1);
    if (!wants_mask(s, "masked_select", mask) || !expand_both(s, "masked_select", &x, &mask)) return;
    dt_compose_return(out, n_out, dt_masked_pick(s, x, mask));
}
const dt_op dt_op_masked_select = {
    .sig = "masked_select(Tensor input, Tensor mask) -> Tensor",
    .doc = "The elements where mask is true, in one dimension; both broadcast. Waits for mask.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_masked_select,
};

typedef struct sizes_attr {
    dt_ints sizes;
} sizes_attr;
static void grad__masked_scatter(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0), *mask = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_masked_fill(g->s, gy, mask, 0.0));
    if (dt_grad_needs(g, 2)) dt_grad_set(g, 2, dt__masked_scatter_backward(g->s, gy, mask, dt_meta_dims(dt_grad_in_meta(g, 2))));
}
static dt_status infer__masked_scatter(dt_node *n) {
    if (n->in[2]->dtype != n->in[0]->dtype)
        return dt_fail(DT_E_DTYPE, "masked_scatter: expected self and source to have same dtypes but got %s and %s", dt_dtype_name((dt_dtype)n->in[0]->dtype),
                       dt_dtype_name((dt_dtype)n->in[2]->dtype));
    return dt_infer_same(n);
}
const dt_op dt_op__masked_scatter = {
    .sig = "_masked_scatter(Tensor input, Tensor mask, Tensor source) -> Tensor",
    .doc = "masked_scatter of operands of one shape.",
    .where = DT_HIDDEN,
    .infer = infer__masked_scatter,
    .place = dt_place_replicate,
    .grad = grad__masked_scatter,
    .saves = DT_SAVE_IN(1),
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_masked_scatter, DT_K_CONTIGUOUS}},
};
static dt_status infer__masked_scatter_backward(dt_node *n) {
    const sizes_attr *a = n->attr;
    return dt_infer_sizes(n, &a->sizes);
}
static dt_status place__masked_scatter_backward(const dt_node *n, dt_rules *r) {
    for (int k = 0; k < 2; k++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P_OF((dt_reduce)k);
    }
    return DT_OK;
}
static void grad__masked_scatter_backward(dt_grad *g) {
    dt_tensor *mask = dt_grad_in(g, 1);
    dt_tensor *zeros = dt_to_dtype(g->s, dt_zeros_like(g->s, mask, DT_DTYPE_NONE), dt_grad_in_meta(g, 0)->dtype);
    dt_grad_set(g, 0, dt__masked_scatter(g->s, zeros, mask, dt_grad_gy(g, 0)));
}
const dt_op dt_op__masked_scatter_backward = {
    .sig = "_masked_scatter_backward(Tensor grad_output, Tensor mask, int[] sizes) -> Tensor",
    .doc = "The gradient of masked_scatter's source: grad_output where mask is true, one after another, then zeros.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(sizes_attr, DT_FIELD(sizes_attr, sizes)),
    .infer = infer__masked_scatter_backward,
    .place = place__masked_scatter_backward,
    .grad = grad__masked_scatter_backward,
    .saves = DT_SAVE_IN(1),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_masked_scatter_backward, DT_K_CONTIGUOUS}},
};
static void compose_masked_scatter(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *mask = dt_arg_get_tensor(a, 1);
    if (!wants_mask(s, "masked_scatter", mask) || !expand_both(s, "masked_scatter", &x, &mask)) return;
    dt_compose_return(out, n_out, dt__masked_scatter(s, x, mask, dt_arg_get_tensor(a, 2)));
}
const dt_op dt_op_masked_scatter = {
    .sig = "masked_scatter(Tensor input, Tensor mask, Tensor source) -> Tensor",
    .doc = "input with its elements where mask is true replaced by source's elements in order. Errors, late: source has fewer elements than that.",
    .where = DT_FN | DT_METHOD,
    .inplace = true,
    .compose = compose_masked_scatter,
};

/* ---- one_hot ---- */
typedef struct one_hot_attr {
    int64_t num_classes;
} one_hot_attr;
static dt_status infer__one_hot(dt_node *n) {
    n->out[0] = dt_meta_type(n->in[0]);
    if (n->out[0].ndim == DT_MAX_DIM) return dt_fail(DT_E_VALUE, "one_hot: more than %d dimensions", DT_MAX_DIM);
    n->out[0].shape[n->out[0].ndim++] = ((one_hot_attr *)n->attr)->num_classes;
    return DT_OK;
}
static dt_status place__one_hot(const dt_node *n, dt_rules *r) {
    for (int d = 0; d < n->in[0]->ndim; d++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_S(d);
    }
    return DT_OK;
}
const dt_op dt_op__one_hot = {
    .sig = "_one_hot(Tensor input, int num_classes) -> Tensor",
    .doc = "one_hot with a known number of classes.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(one_hot_attr, DT_FIELD(one_hot_attr, num_classes)),
    .infer = infer__one_hot,
    .place = place__one_hot,
    .kernels = {{DT_CPU, DT_BIT(int64), dt_cpu_one_hot, DT_K_CONTIGUOUS}},
};
const dt_op dt_op__index_limit = {
    .sig = "_index_limit(Tensor input) -> Tensor",
    .doc = "One more than the largest element of an int64 tensor.",
    .where = DT_HIDDEN,
    .infer = infer_count,
    .place = dt_place_replicate,
    .kernels = {{DT_CPU, DT_BIT(int64), dt_cpu_index_limit, DT_K_CONTIGUOUS}},
};
static void compose_one_hot(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    int64_t classes = dt_arg_get_int(a, 1, -1);
    if (dt_dtype_of(x) != DT_int64) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "one_hot is only applicable to index tensor of type LongTensor, got %s", dt_dtype_name((dt_dtype)dt_dtype_of(x))));
        return;
    }
    if (dt_numel(x) == 0 && classes <= 0) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "Can not infer total number of classes from empty tensor."));
        return;
    }
    if (classes == -1 && (classes = read_count(s, dt__index_limit(s, x))) < 0) return;
    if (classes < 1) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "num_classes should be positive, got %lld", (long long)classes));
        return;
    }
    dt_compose_return(out, n_out, dt__one_hot(s, x, classes));
}
const dt_op dt_op_one_hot = {
    .sig = "one_hot(Tensor input, int num_classes=-1) -> Tensor",
    .doc = "A new last dimension of num_classes, 1 at input's value and 0 elsewhere (int64). Without num_classes: one more than the largest value, "
           "for which it waits. Errors, late: a value outside [0, num_classes).",
    .where = DT_NN,
    .compose = compose_one_hot,
};

/* ---- repeat_interleave ---- */
static dt_status infer_repeat_indices(dt_node *n) {
    if (n->in[0]->ndim != 1) return dt_fail(DT_E_SHAPE, "repeat_interleave only accepts 1D vector as repeat, got %d dimensions", n->in[0]->ndim);
    if (!dt_dtype_is_int((dt_dtype)n->in[0]->dtype))
        return dt_fail(DT_E_DTYPE, "repeats has to be Long or Int tensor, got %s", dt_dtype_name((dt_dtype)n->in[0]->dtype));
    n->cast[0] = DT_int64;
    n->out[0] = (dt_type){DT_int64, 1, {((size_attr *)n->attr)->n}};
    return DT_OK;
}
const dt_op dt_op__repeat_indices = {
    .sig = "_repeat_indices(Tensor repeats, int n) -> Tensor",
    .doc = "0 repeats[0] times, 1 repeats[1] times …: n in all. Errors, late: repeats that do not sum to n.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(size_attr, DT_FIELD(size_attr, n)),
    .infer = infer_repeat_indices,
    .place = dt_place_replicate,
    .kernels = {{DT_CPU, DT_BIT(int64), dt_cpu_repeat_indices, DT_K_CONTIGUOUS}},
};
static dt_status infer_repeat_total(dt_node *n) {
    n->cast[0] = DT_int64;
    return infer_count(n);
}
const dt_op dt_op__repeat_total = {
    .sig = "_repeat_total(Tensor repeats) -> Tensor",
    .doc = "The sum of repeats, none of which may be negative.",
    .where = DT_HIDDEN,
    .infer = infer_repeat_total,
    .place = dt_place_replicate,
    .kernels = {{DT_CPU, DT_BIT(int64), dt_cpu_repeat_total, DT_K_CONTIGUOUS}},
};
static dt_tensor *repeat_indices(dt_scope *s, dt_tensor *repeats, int64_t n) {
    if (!repeats) return NULL;
    if (n < 0 && (n = read_count(s, dt__repeat_total(s, repeats))) < 0) return NULL;
    return dt__repeat_indices(s, repeats, n);
}
static void compose_repeat_interleave_tensor(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_return(out, n_out, repeat_indices(s, dt_arg_get_tensor(a, 0), dt_arg_get_int(a, 1, -1)));
}
static void compose_repeat_interleave(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *repeats = dt_arg_get_tensor(a, 1);
    int64_t dim = dt_arg_get_int(a, 2, 0), n = dt_arg_get_int(a, 3, -1);
    if (!dt_arg_given(a, 2) || dt_ndim(x) == 0) x = dt_ravel(s, x);
    if (!x || !dt_compose_dim(s, &dim, dt_ndim(x))) return;
    int64_t size = dt_shape(x)[dim];
    if (dt_ndim(repeats) == 0 || (dt_ndim(repeats) == 1 && dt_numel(repeats) == 1)) repeats = dt_expand(s, repeats, DT_DIMS(size), false);
    if (repeats && dt_numel(repeats) != size) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "repeats must have the same size as input along dim, but got repeats.size(0) = %lld and input.size(%lld) = %lld",
                                 (long long)dt_numel(repeats), (long long)dim, (long long)size));
        return;
    }
    dt_compose_return(out, n_out, dt_index_select(s, x, dim, repeat_indices(s, repeats, n)));
}
static void compose_repeat_interleave_int(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    int64_t k = dt_arg_get_int(a, 1, 1), dim = dt_arg_get_int(a, 2, 0), n = dt_arg_get_int(a, 3, -1), wide[DT_MAX_DIM], final[DT_MAX_DIM];
    if (!dt_arg_given(a, 2) || dt_ndim(x) == 0) x = dt_ravel(s, x);
    if (!x || !dt_compose_dim(s, &dim, dt_ndim(x))) return;
    int nd = dt_ndim(x);
    if (k < 0 || nd >= DT_MAX_DIM || (n >= 0 && n != k * dt_shape(x)[dim])) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "repeat_interleave: repeats must be non-negative and fit output_size, got repeats=%lld, output_size=%lld",
                                 (long long)k, (long long)n));
        return;
    }
    for (int d = 0; d <= nd; d++) wide[d] = d == dim + 1 ? k : dt_shape(x)[d > dim ? d - 1 : d];
    for (int d = 0; d < nd; d++) final[d] = d == dim ? k * dt_shape(x)[d] : dt_shape(x)[d];
    x = dt_contiguous(s, dt_expand(s, dt_unsqueeze(s, x, dim + 1), (dt_dims){nd + 1, wide}, false));
    dt_compose_return(out, n_out, dt_reshape(s, x, (dt_dims){nd, final}));
}
const dt_op dt_op_repeat_interleave_int = {
    .sig = "repeat_interleave(Tensor input, int repeats, int? dim=None, *, int? output_size=None) -> Tensor",
    .doc = "Every entry along dim `repeats` times in a row; without dim the input is flattened.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_repeat_interleave_int,
};
const dt_op dt_op_repeat_interleave = {
    .sig = "repeat_interleave.self_tensor(Tensor input, Tensor repeats, int? dim=None, *, int? output_size=None) -> Tensor",
    .doc = "Entry i along dim repeats[i] times in a row. Waits for repeats unless output_size is given.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_repeat_interleave,
};
const dt_op dt_op_repeat_interleave_tensor = {
    .sig = "repeat_interleave.tensor(Tensor repeats, *, int? output_size=None) -> Tensor",
    .doc = "0 repeats[0] times, 1 repeats[1] times …. Waits for repeats unless output_size is given.",
    .where = DT_FN,
    .compose = compose_repeat_interleave_tensor,
};
