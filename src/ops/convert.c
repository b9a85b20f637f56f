/* Copies, casts, selection. */
#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

DT_CPU_KERNEL(clone);
DT_CPU_KERNEL(fill);

/* ---- clone: a copy with storage of its own ------------------------------------------------------------------------------------------ */
static dt_status any_partial(const dt_node *n, dt_rules *r) {
    DT_TRY(dt_place_pointwise(n, r));
    static const dt_reduce kinds[] = {DT_SUM, DT_AVG, DT_MAX, DT_MIN};
    for (int k = 0; k < 4; k++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P_OF(kinds[k]);
    }
    return DT_OK;
}
static void pass_grad(dt_grad *g) { dt_grad_set(g, 0, dt_grad_gy(g, 0)); }
const dt_op dt_op_clone = {
    .sig = "clone(Tensor input) -> Tensor",
    .doc = "A copy of input with storage of its own; gradients flow through.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_same,
    .place = any_partial,
    .grad = pass_grad,
    .pointwise = DT_PW_copy,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_clone}},
};

/* ---- casts ---------------------------------------------------------------------------------------------------------------------------- */
typedef struct to_dtype_attr {
    int32_t dtype;
} to_dtype_attr;
static dt_status to_dtype_infer(dt_node *n) {
    n->out[0] = dt_meta_type(n->in[0]);
    n->out[0].dtype = (dt_dtype)((const to_dtype_attr *)n->attr)->dtype;
    return DT_OK;
}
/* A sum of widened floats is the widened sum to rounding; everything else acts on the whole value. */
static dt_status to_dtype_place(const dt_node *n, dt_rules *r) {
    return dt_dtype_is_float((dt_dtype)n->in[0]->dtype) && dt_dtype_is_float(n->out[0].dtype) ? dt_place_linear(n, r) : dt_place_pointwise(n, r);
}
static void to_dtype_grad(dt_grad *g) { dt_grad_set(g, 0, dt_to_dtype(g->s, dt_grad_gy(g, 0), dt_grad_in_meta(g, 0)->dtype)); }
const dt_op dt_op_to_dtype = {
    .sig = "to_dtype(Tensor input, dtype dtype) -> Tensor",
    .doc = "input converted to dtype: floats to integers truncate, anything to bool is `!= 0`.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(to_dtype_attr, DT_FIELD(to_dtype_attr, dtype)),
    .infer = to_dtype_infer,
    .place = to_dtype_place,
    .grad = to_dtype_grad,
    .pointwise = DT_PW_CAST,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_pointwise}},
};

/* ---- fill -------------------------------------------------------------------------------------------------------------------------------- */
static dt_status fill_infer(dt_node *n) {
    n->out[0] = dt_meta_type(n->in[0]);
    if (n->in[1]->ndim) return dt_fail(DT_E_SHAPE, "fill: value must be a number or a 0-dim tensor, got a tensor of %d dimensions", n->in[1]->ndim);
    n->cast[1] = (uint8_t)n->out[0].dtype;
    return DT_OK;
}
/* What is overwritten is not read: any Partial will do. */
static dt_status fill_place(const dt_node *n, dt_rules *r) {
    DT_TRY(dt_place_pointwise(n, r));
    static const dt_reduce kinds[] = {DT_SUM, DT_AVG, DT_MAX, DT_MIN};
    for (int k = 0; k < 4; k++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_P_OF(kinds[k]);
    }
    return DT_OK;
}
static void fill_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_zeros_like(g->s, gy, DT_DTYPE_NONE));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, gy);
}
const dt_op dt_op_fill = {
    .sig = "fill(Tensor input, Value value) -> Tensor",
    .doc = "input with every element replaced by value, a number or a 0-dim tensor.",
    .where = DT_FN_METHOD,
    .infer = fill_infer,
    .place = fill_place,
    .grad = fill_grad,
    .inplace = true,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_fill}},
};
static void zero_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { dt_compose_one(dt_fill(s, a->a[0].t, 0), out, n_out); }
const dt_op dt_op_zero = {
    .sig = "zero(Tensor input) -> Tensor",
    .doc = "input with every element replaced by 0.",
    .where = DT_METHOD,
    .compose = zero_compose,
    .inplace = true,
};

/* ---- where, masked_fill ------------------------------------------------------------------------------------------------------------------- */
static dt_status where_infer(dt_node *n) {
    dt_type *o = &n->out[0];
    if (n->in[0]->dtype != DT_bool && n->in[0]->dtype != DT_uint8)
        return dt_fail(DT_E_DTYPE, "where: expected condition to be a boolean tensor, but got a tensor with dtype %s",
                       dt_dtype_name((dt_dtype)n->in[0]->dtype));
    *o = (dt_type){0};
    for (int i = 0; i < 3; i++) DT_TRY(dt_broadcast("where", o, n->in[i]));
    o->dtype = dt_result_type(n, 1, 2);
    n->cast[0] = DT_bool;
    n->cast[1] = n->cast[2] = (uint8_t)o->dtype;
    return DT_OK;
}
/* Linear in the pair of values when the condition is the same everywhere. */
static dt_status where_place(const dt_node *n, dt_rules *r) {
    DT_TRY(dt_place_pointwise(n, r));
    for (int k = 0; k < 2 && !n->in[1]->wrapped && !n->in[2]->wrapped; k++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[1] = in[2] = out[0] = DT_P_OF(k ? DT_AVG : DT_SUM);
    }
    return DT_OK;
}
static void where_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0), *c = dt_grad_in(g, 0);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_where(g->s, c, gy, 0));
    if (dt_grad_needs(g, 2)) dt_grad_set(g, 2, dt_where(g->s, c, 0, gy));
}
const dt_op dt_op_where = {
    .sig = "where(Tensor condition, Value input, Value other) -> Tensor",
    .doc = "input where condition is true, other elsewhere; all three broadcast together.",
    .where = DT_FN | DT_METHOD,
    .flags = DT_F_STRIDED,
    .infer = where_infer,
    .grad = where_grad,
    .saves = DT_SAVE_IN(0),
    DT_POINTWISE_BY(where, where_place),
};
static dt_status masked_fill_infer(dt_node *n) {
    dt_type *o = &n->out[0];
    if (n->in[1]->dtype != DT_bool)
        return dt_fail(DT_E_DTYPE, "masked_fill: mask must be a boolean tensor, but got %s", dt_dtype_name((dt_dtype)n->in[1]->dtype));
    if (n->in[2]->ndim) return dt_fail(DT_E_SHAPE, "masked_fill: value must be a number or a 0-dim tensor, got %d dimensions", n->in[2]->ndim);
    *o = dt_meta_type(n->in[0]);
    DT_TRY(dt_broadcast("masked_fill", o, n->in[1]));
    n->cast[2] = (uint8_t)o->dtype;
    return DT_OK;
}
static void masked_fill_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0), *m = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_masked_fill(g->s, gy, m, 0));
    if (dt_grad_needs(g, 2)) dt_grad_set(g, 2, dt_where(g->s, m, gy, 0));
}
const dt_op dt_op_masked_fill = {
    .sig = "masked_fill(Tensor input, Tensor mask, Value value) -> Tensor",
    .doc = "input with value (a number or a 0-dim tensor) where mask is true.",
    .where = DT_FN_METHOD,
    .flags = DT_F_STRIDED,
    .infer = masked_fill_infer,
    .grad = masked_fill_grad,
    .saves = DT_SAVE_IN(1),
    .inplace = true,
    DT_POINTWISE(masked_fill),
};
