/* Scans: cumsum, cumprod, cummax, cummin, logcumsumexp. Any dimension may be sharded; along the scanned one the work is staged (dt_staged). The
 * gradients of cumprod and logcumsumexp want the scanned dimension whole. */
#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"
#include "ops/reduce.h"

DT_CPU_KERNEL(cumsum);
DT_CPU_KERNEL(cumsum_reverse);
DT_CPU_KERNEL(cumprod);
DT_CPU_KERNEL(cumprod_backward);
DT_CPU_KERNEL(cummax);
DT_CPU_KERNEL(cummin);
DT_CPU_KERNEL(logcumsumexp);
DT_CPU_KERNEL(logcumsumexp_backward);

#define WITH_DTYPE DT_ATTRS(dt_dim_attr, DT_FIELD(dt_dim_attr, dim), DT_FIELD(dt_dim_attr, dtype))
#define ONLY_DIM DT_ATTRS(dt_dim_attr, DT_FIELD(dt_dim_attr, dim))
static int64_t dim_of(dt_grad *g) { return ((const dt_dim_attr *)dt_grad_attr(g))->dim; }

static dt_status infer(dt_node *n) {
    dt_dim_attr *a = n->attr;
    DT_TRY(dt_dim_wrap(&a->dim, n->in[0]->ndim));
    n->out[0] = dt_meta_type(n->in[0]);
    if (a->dtype != DT_DTYPE_NONE)
        n->cast[0] = (uint8_t)(n->out[0].dtype = (dt_dtype)a->dtype);
    else if (!dt_dtype_is_float(n->out[0].dtype))
        n->out[0].dtype = DT_int64;
    return DT_OK;
}
static dt_status same_infer(dt_node *n) {
    dt_dim_attr *a = n->attr;
    DT_TRY(dt_dim_wrap(&a->dim, n->in[0]->ndim));
    for (int i = 0; i < n->n_out; i++) n->out[i] = dt_meta_type(n->in[0]);
    if (n->n_out > 1) n->out[1].dtype = DT_int64;
    return DT_OK;
}
static dt_status place(const dt_node *n, dt_rules *r) {
    if (n->op->staged) DT_TRY(dt_place_staged(n, r));
    return dt_place_except(n, r, n->in[0]->ndim ? 1u << ((const dt_dim_attr *)n->attr)->dim : 0);
}

/* Along a sharded dimension: each shard is scanned, and takes up what the shards before it add up to. */
DT_CPU_KERNEL(scan_part);
DT_CPU_KERNEL(scan_join);
static uint32_t staged_dims(const void *attr, int ndim) { return 1u << ((const dt_dim_attr *)attr)->dim; }
static int staged_along(const void *attr) { return (int)((const dt_dim_attr *)attr)->dim; }
static const dt_staged sums = {.dims = staged_dims, .along = staged_along, .scan = true, .part = dt_cpu_scan_part, .join = dt_cpu_scan_join};
static const dt_staged extremes = {
    .dims = staged_dims, .along = staged_along, .scan = true, .indices = true, .part = dt_cpu_scan_part, .join = dt_cpu_scan_join};
/* cumsum is linear */
static dt_status sum_place(const dt_node *n, dt_rules *r) {
    DT_TRY(place(n, r));
    if (n->out[0].dtype != n->in[0]->dtype) return DT_OK;
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    in[0] = out[0] = DT_P;
    return DT_OK;
}

static void cumsum_grad(dt_grad *g) { dt_grad_set(g, 0, dt_cumsum_reverse(g->s, dt_grad_gy(g, 0), dim_of(g))); }
static void cumsum_reverse_grad(dt_grad *g) { dt_grad_set(g, 0, dt_cumsum(g->s, dt_grad_gy(g, 0), dim_of(g), DT_DTYPE_NONE)); }
const dt_op dt_op_cumsum = {
    .staged = &sums,
    .sig = "cumsum(Tensor input, int dim, *, dtype? dtype=None) -> Tensor",
    .doc = "Running sums along `dim`. Integers and bool sum in int64. `dtype`: cast to it first.",
    .where = DT_FN | DT_METHOD,
    .attrs = WITH_DTYPE,
    .flags = DT_F_STRIDED,
    .infer = infer,
    .place = sum_place,
    .grad = cumsum_grad,
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_cumsum, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_cumsum_reverse = {
    .staged = &sums,
    .sig = "cumsum_reverse(Tensor input, int dim) -> Tensor",
    .doc = "Running sums along `dim` from its end: the gradient of cumsum.",
    .where = DT_HIDDEN,
    .attrs = ONLY_DIM,
    .flags = DT_F_STRIDED,
    .infer = same_infer,
    .place = sum_place,
    .grad = cumsum_reverse_grad,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_cumsum_reverse, DT_K_CONTIGUOUS}},
};

/* For gradients of gradients: reverse cumsum(gy y) / x, which is wrong only where x holds a zero. */
static void cumprod_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0), *x = dt_grad_in(g, 0);
    if (dt_dtype_of(x) != dt_dtype_of(gy)) x = dt_to_dtype(s, x, dt_dtype_of(gy));
    if (dt_higher_order()) {
        dt_tensor *y = dt_grad_out(g, 0);
        dt_grad_set(g, 0, dt_div(s, dt_cumsum_reverse(s, dt_mul(s, gy, DT_V(y)), dim_of(g)), DT_V(x)));
    } else
        dt_grad_set(g, 0, dt_cumprod_backward(s, gy, x, dim_of(g)));
}
const dt_op dt_op_cumprod = {
    .staged = &sums,
    .sig = "cumprod(Tensor input, int dim, *, dtype? dtype=None) -> Tensor",
    .doc = "Running products along `dim`. Integers and bool multiply in int64. `dtype`: cast to it first.",
    .where = DT_FN | DT_METHOD,
    .attrs = WITH_DTYPE,
    .flags = DT_F_STRIDED,
    .infer = infer,
    .place = place,
    .grad = cumprod_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_cumprod, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_cumprod_backward = {
    .sig = "cumprod_backward(Tensor grad_output, Tensor input, int dim) -> Tensor",
    .doc = "The gradient of cumprod, right where the input holds zeros.",
    .where = DT_HIDDEN,
    .attrs = ONLY_DIM,
    .infer = same_infer,
    .place = place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_cumprod_backward, DT_K_CONTIGUOUS}},
};

static void pick_grad(dt_grad *g) {
    const dt_meta *m = dt_grad_in_meta(g, 0);
    if (m->ndim == 0)
        dt_grad_set(g, 0, dt_grad_gy(g, 0));
    else
        dt_grad_set(g, 0, dt_value_selecting_backward(g->s, dt_grad_gy(g, 0), dt_grad_out(g, 1), dim_of(g), m->shape[dim_of(g)]));
}
const dt_op dt_op_cummax = {
    .staged = &extremes,
    .sig = "cummax(Tensor input, int dim) -> (Tensor values, Tensor indices)",
    .doc = "The largest value so far along `dim` and where it stands (the last place among equals); a NaN stays.",
    .where = DT_FN | DT_METHOD,
    .attrs = ONLY_DIM,
    .infer = same_infer,
    .place = place,
    .grad = pick_grad,
    .saves = DT_SAVE_OUT(1),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_cummax, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_cummin = {
    .staged = &extremes,
    .sig = "cummin(Tensor input, int dim) -> (Tensor values, Tensor indices)",
    .doc = "The smallest value so far along `dim` and where it stands (the last place among equals); a NaN stays.",
    .where = DT_FN | DT_METHOD,
    .attrs = ONLY_DIM,
    .infer = same_infer,
    .place = place,
    .grad = pick_grad,
    .saves = DT_SAVE_OUT(1),
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_cummin, DT_K_CONTIGUOUS}},
};

static dt_status lse_infer(dt_node *n) {
    if (!dt_dtype_is_float((dt_dtype)n->in[0]->dtype))
        return dt_fail(DT_E_NOTIMPL, "logcumsumexp: expected a floating point input, got %s", dt_dtype_name((dt_dtype)n->in[0]->dtype));
    return same_infer(n);
}
static void lse_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gy = dt_grad_gy(g, 0), *x = dt_grad_in(g, 0), *y = dt_grad_out(g, 0);
    if (dt_higher_order())
        dt_grad_set(g, 0, dt_mul(s, dt_exp(s, x), DT_V(dt_cumsum_reverse(s, dt_mul(s, gy, DT_V(dt_exp(s, dt_neg(s, y)))), dim_of(g)))));
    else
        dt_grad_set(g, 0, dt_logcumsumexp_backward(s, gy, x, y, dim_of(g)));
}
const dt_op dt_op_logcumsumexp = {
    .staged = &sums,
    .sig = "logcumsumexp(Tensor input, int dim) -> Tensor",
    .doc = "The logarithm of the running sums of exp(input) along `dim`, computed stably.",
    .where = DT_FN | DT_METHOD,
    .attrs = ONLY_DIM,
    .infer = lse_infer,
    .place = place,
    .grad = lse_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_OUT(0),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_logcumsumexp, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_logcumsumexp_backward = {
    .sig = "logcumsumexp_backward(Tensor grad_output, Tensor input, Tensor output, int dim) -> Tensor",
    .doc = "The gradient of logcumsumexp.",
    .where = DT_HIDDEN,
    .attrs = ONLY_DIM,
    .infer = same_infer,
    .place = place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_logcumsumexp_backward, DT_K_CONTIGUOUS}},
};
