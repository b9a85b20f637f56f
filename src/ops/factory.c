/* Factories: tensors from nothing but numbers. Shapes are attributes, values run-time numbers; any dimension of the result may be sharded. */
#include <math.h>

#include "dtorch_ops.h"
#include "ops/factory.h"
#include "ops/grad.h"

DT_CPU_KERNEL(fill);
DT_CPU_KERNEL(arange);
DT_CPU_KERNEL(linspace);
DT_CPU_KERNEL(eye);

typedef struct full_attr {
    dt_ints size;
    int32_t dtype;
} full_attr;

static dt_status check_size(const char *op, const dt_ints *size, dt_type *o) {
    if (size->n > DT_MAX_DIM) return dt_fail(DT_E_VALUE, "%s: %d dimensions; at most %d are supported", op, size->n, DT_MAX_DIM);
    o->ndim = size->n < 0 ? 0 : size->n;
    for (int i = 0; i < o->ndim; i++) {
        if (size->v[i] < 0)
            return dt_fail(DT_E_SHAPE, "%s: Trying to create tensor with negative dimension %lld: dimension %d of the size", op, (long long)size->v[i], i);
        o->shape[i] = size->v[i];
    }
    return DT_OK;
}

/* Without dtype: what a number becomes; a float is of the default dtype. */
static dt_dtype dtype_of_value(int32_t given, const dt_meta *m) {
    if (given != DT_DTYPE_NONE) return (dt_dtype)given;
    return m->wrapped && m->dtype == DT_float64 ? dt_default_dtype() : (dt_dtype)m->dtype;
}

static dt_status full_infer(dt_node *n) {
    const full_attr *a = n->attr;
    DT_TRY(check_size("full", &a->size, &n->out[0]));
    if (n->in[0]->ndim) return dt_fail(DT_E_SHAPE, "full: fill_value must be a number or a 0-dim tensor, got %d dimensions", n->in[0]->ndim);
    n->out[0].dtype = dtype_of_value(a->dtype, n->in[0]);
    n->cast[0] = (uint8_t)n->out[0].dtype;
    return DT_OK;
}

const dt_op dt_op_full = {
    .sig = "full(int[] size, Value fill_value, *, dtype? dtype=None) -> Tensor",
    .doc = "A tensor of shape `size` filled with one value. Without dtype: bool, int64 or the default float dtype, as the value is.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .attrs = DT_ATTRS(full_attr, DT_FIELD(full_attr, size), DT_FIELD(full_attr, dtype)),
    .infer = full_infer,
    .place = dt_place_pointwise,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_fill}},
};

static int dtype_or_default(const dt_arg *a) { return a->kind == DT_ARG_NONE ? (int)dt_default_dtype() : (int)a->i; }
static dt_dims dims_of(const dt_arg *a) { return (dt_dims){a->n, a->ints}; }

static void zeros_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    out[0] = dt_keep(dt_full(s, dims_of(&a->a[0]), 0, dtype_or_default(&a->a[1]), a->spec));
    *n_out = 1;
}
const dt_op dt_op_zeros = {
    .sig = "zeros(int[]... size, *, dtype? dtype=None) -> Tensor",
    .doc = "A tensor of shape `size` filled with 0.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = zeros_compose,
};
const dt_op dt_op_empty = {
    .sig = "empty(int[]... size, *, dtype? dtype=None) -> Tensor",
    .doc = "A tensor of shape `size` whose values mean nothing (they are 0).",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = zeros_compose,
};
static void ones_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    out[0] = dt_keep(dt_full(s, dims_of(&a->a[0]), 1, dtype_or_default(&a->a[1]), a->spec));
    *n_out = 1;
}
const dt_op dt_op_ones = {
    .sig = "ones(int[]... size, *, dtype? dtype=None) -> Tensor",
    .doc = "A tensor of shape `size` filled with 1.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = ones_compose,
};

/* ---- like another tensor: its shape, dtype, mesh and placements; its values are not read ---------------------------------------- */
typedef struct like_attr {
    int32_t dtype;
} like_attr;

static dt_status like_infer(dt_node *n) {
    const like_attr *a = n->attr;
    n->out[0] = dt_meta_type(n->in[0]);
    if (n->in[1]->ndim) return dt_fail(DT_E_SHAPE, "full_like: fill_value must be a number or a 0-dim tensor, got %d dimensions", n->in[1]->ndim);
    if (a->dtype != DT_DTYPE_NONE) n->out[0].dtype = (dt_dtype)a->dtype;
    n->cast[1] = (uint8_t)n->out[0].dtype;
    return DT_OK;
}
/* A Partial is as good as a Replicate: nobody reads it. */
static dt_status like_place(const dt_node *n, dt_rules *r) {
    DT_TRY(dt_place_pointwise(n, r));
    static const dt_reduce kinds[] = {DT_SUM, DT_AVG, DT_MAX, DT_MIN};
    for (int k = 0; k < 4; k++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_P_OF(kinds[k]);
    }
    return DT_OK;
}
const dt_op dt_op_full_like = {
    .sig = "full_like(Tensor input, Value fill_value, *, dtype? dtype=None) -> Tensor",
    .doc = "A tensor of input's shape, dtype and placements filled with one value.",
    .where = DT_FN,
    .attrs = DT_ATTRS(like_attr, DT_FIELD(like_attr, dtype)),
    .flags = DT_F_STRIDED,
    .infer = like_infer,
    .place = like_place,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_fill}},
};
static int dtype_or_none(const dt_arg *a) { return a->kind == DT_ARG_NONE ? DT_DTYPE_NONE : (int)a->i; }
static void zeros_like_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    out[0] = dt_keep(dt_full_like(s, a->a[0].t, 0, dtype_or_none(&a->a[1])));
    *n_out = 1;
}
const dt_op dt_op_zeros_like = {
    .sig = "zeros_like(Tensor input, *, dtype? dtype=None) -> Tensor",
    .doc = "A tensor of input's shape, dtype and placements filled with 0.",
    .where = DT_FN,
    .compose = zeros_like_compose,
};
const dt_op dt_op_empty_like = {
    .sig = "empty_like(Tensor input, *, dtype? dtype=None) -> Tensor",
    .doc = "A tensor of input's shape, dtype and placements whose values mean nothing (they are 0).",
    .where = DT_FN,
    .compose = zeros_like_compose,
};
static void ones_like_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    out[0] = dt_keep(dt_full_like(s, a->a[0].t, 1, dtype_or_none(&a->a[1])));
    *n_out = 1;
}
const dt_op dt_op_ones_like = {
    .sig = "ones_like(Tensor input, *, dtype? dtype=None) -> Tensor",
    .doc = "A tensor of input's shape, dtype and placements filled with 1.",
    .where = DT_FN,
    .compose = ones_like_compose,
};

/* ---- ranges ------------------------------------------------------------------------------------------------------------------------ */
typedef struct arange_attr {
    int64_t n;
    int32_t dtype;
} arange_attr;

static dt_status arange_infer(dt_node *n) {
    const arange_attr *a = n->attr;
    bool integers = n->in[0]->dtype != DT_float64 && n->in[1]->dtype != DT_float64;
    n->out[0] = (dt_type){.ndim = 1, .shape = {a->n}};
    n->out[0].dtype = a->dtype != DT_DTYPE_NONE ? (dt_dtype)a->dtype : integers ? DT_int64 : dt_default_dtype();
    n->cast[0] = n->cast[1] = integers ? DT_int64 : DT_float64;
    return DT_OK;
}
const dt_op dt_op__arange = {
    .sig = "_arange(int n, Scalar start, Scalar step, *, dtype? dtype=None) -> Tensor",
    .doc = "start, start + step, … : n elements.",
    .where = DT_HIDDEN,
    .flags = DT_F_FACTORY,
    .attrs = DT_ATTRS(arange_attr, DT_FIELD(arange_attr, n), DT_FIELD(arange_attr, dtype)),
    .infer = arange_infer,
    .place = dt_place_pointwise,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_arange}},
};

static dt_tensor *arange_int(dt_scope *s, int64_t start, int64_t end, int64_t step, int dtype, const dt_spec *spec) {
    if (step == 0) return dt_scope_fail(s, dt_fail(DT_E_SHAPE, "arange: step must be nonzero")), NULL;
    if (step > 0 ? end < start : end > start)
        return dt_scope_fail(s, dt_fail(DT_E_SHAPE, "arange: upper bound and lower bound inconsistent with step sign: start %lld, end %lld, step %lld",
                                        (long long)start, (long long)end, (long long)step)),
               NULL;
    __int128 span = (__int128)end - start, n = (span + step + (step > 0 ? -1 : 1)) / step;
    return dt__arange(s, (int64_t)n, start, step, dtype, spec);
}
static dt_tensor *arange_float(dt_scope *s, double start, double end, double step, int dtype, const dt_spec *spec) {
    if (step == 0) return dt_scope_fail(s, dt_fail(DT_E_SHAPE, "arange: step must be nonzero")), NULL;
    double n = ceil((end - start) / step);
    if (!(n >= 0) || isinf(start) || isinf(end))
        return dt_scope_fail(
                   s, dt_fail(DT_E_SHAPE, "arange: upper bound and lower bound inconsistent with step sign: start %g, end %g, step %g", start, end, step)),
               NULL;
    if (n > 9e15) return dt_scope_fail(s, dt_fail(DT_E_VALUE, "arange: %g elements are too many", n)), NULL;
    return dt__arange(s, (int64_t)n, start, step, dtype, spec);
}
static int64_t arg_int(const dt_arg *a, int64_t otherwise) { return a->kind == DT_ARG_NONE ? otherwise : a->i; }
static double arg_float(const dt_arg *a, double otherwise) { return a->kind == DT_ARG_NONE ? otherwise : a->kind == DT_ARG_FLOAT ? a->f : (double)a->i; }

static void arange_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    out[0] = dt_keep(arange_int(s, 0, a->a[0].i, 1, dtype_or_none(&a->a[1]), a->spec));
    *n_out = 1;
}
const dt_op dt_op_arange = {
    .sig = "arange(int end, *, dtype? dtype=None) -> Tensor",
    .doc = "0, 1, …, end - 1. Without dtype: int64 for integers, else the default float dtype.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = arange_compose,
};
static void arange_start_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    out[0] = dt_keep(arange_int(s, a->a[0].i, a->a[1].i, arg_int(&a->a[2], 1), dtype_or_none(&a->a[3]), a->spec));
    *n_out = 1;
}
const dt_op dt_op_arange_start = {
    .sig = "arange.start(int start, int end, int step=1, *, dtype? dtype=None) -> Tensor",
    .doc = "start, start + step, … below end (above it when step is negative).",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = arange_start_compose,
};
static void arange_float_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    out[0] = dt_keep(arange_float(s, 0, arg_float(&a->a[0], 0), 1, dtype_or_none(&a->a[1]), a->spec));
    *n_out = 1;
}
const dt_op dt_op_arange_float = {
    .sig = "arange.float(float end, *, dtype? dtype=None) -> Tensor",
    .doc = "0, 1, … below end, in the default float dtype.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = arange_float_compose,
};
static void arange_float_start_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    out[0] = dt_keep(arange_float(s, arg_float(&a->a[0], 0), arg_float(&a->a[1], 0), arg_float(&a->a[2], 1), dtype_or_none(&a->a[3]), a->spec));
    *n_out = 1;
}
const dt_op dt_op_arange_float_start = {
    .sig = "arange.float_start(float start, float end, float step=1, *, dtype? dtype=None) -> Tensor",
    .doc = "start, start + step, … below end (above it when step is negative), in the default float dtype.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = arange_float_start_compose,
};

static dt_status linspace_infer(dt_node *n) {
    const dt_linspace_attr *a = n->attr;
    if (a->steps < 0) return dt_fail(DT_E_SHAPE, "%s: number of steps must be non-negative, got %lld", dt_op_name(n->op), (long long)a->steps);
    for (int i = 0; i < 2; i++)
        if (n->in[i]->ndim) return dt_fail(DT_E_SHAPE, "%s: start and end must be numbers or 0-dim tensors", dt_op_name(n->op));
    n->out[0] = (dt_type){.ndim = 1, .shape = {a->steps}, .dtype = a->dtype != DT_DTYPE_NONE ? (dt_dtype)a->dtype : dt_default_dtype()};
    n->cast[0] = n->cast[1] = DT_float64;
    return DT_OK;
}
static dt_status linspace_only_infer(dt_node *n) {
    ((dt_linspace_attr *)n->attr)->base = NAN;
    return linspace_infer(n);
}
const dt_op dt_op_linspace = {
    .sig = "linspace(Value start, Value end, int steps, *, dtype? dtype=None) -> Tensor",
    .doc = "`steps` evenly spaced values from start to end, both included.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .attrs = DT_ATTRS(dt_linspace_attr, DT_FIELD(dt_linspace_attr, steps), DT_FIELD(dt_linspace_attr, dtype)),
    .infer = linspace_only_infer,
    .place = dt_place_pointwise,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_linspace}},
};
const dt_op dt_op_logspace = {
    .sig = "logspace(Value start, Value end, int steps, float base=10.0, *, dtype? dtype=None) -> Tensor",
    .doc = "base raised to `steps` evenly spaced exponents from start to end, both included.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .attrs = DT_ATTRS(dt_linspace_attr, DT_FIELD(dt_linspace_attr, steps), DT_FIELD(dt_linspace_attr, base), DT_FIELD(dt_linspace_attr, dtype)),
    .infer = linspace_infer,
    .place = dt_place_pointwise,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_linspace}},
};

typedef struct eye_attr {
    int64_t n, m;
    int32_t dtype;
} eye_attr;
static dt_status eye_infer(dt_node *n) {
    const eye_attr *a = n->attr;
    int64_t m = a->m == DT_NO_INT ? a->n : a->m;
    if (a->n < 0 || m < 0) return dt_fail(DT_E_SHAPE, "eye: n and m must be at least 0, got %lld and %lld", (long long)a->n, (long long)m);
    n->out[0] = (dt_type){.ndim = 2, .shape = {a->n, m}, .dtype = a->dtype != DT_DTYPE_NONE ? (dt_dtype)a->dtype : dt_default_dtype()};
    return DT_OK;
}
const dt_op dt_op_eye = {
    .sig = "eye(int n, int? m=None, *, dtype? dtype=None) -> Tensor",
    .doc = "An n x m matrix (m = n if not given) with ones on the diagonal and zeros elsewhere.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .attrs = DT_ATTRS(eye_attr, DT_FIELD(eye_attr, n), DT_FIELD(eye_attr, m), DT_FIELD(eye_attr, dtype)),
    .infer = eye_infer,
    .place = dt_place_pointwise,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_eye}},
};
