/* Sums, products, quotients, powers and what is near to them. */
#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

/* ---- shared ----------------------------------------------------------------------------------------------------------------------- */
dt_status dt_place_scaled(const dt_node *n, dt_rules *r, uint32_t mask) {
    DT_TRY(dt_place_pointwise(n, r));
    static const dt_reduce kinds[] = {DT_SUM, DT_AVG};
    for (int i = 0; i < n->n_in; i++)
        for (int k = 0; k < 2 && (mask >> i & 1) && n->in[i] && !n->in[i]->wrapped; k++) {
            dt_placement *in, *out;
            DT_TRY(dt_rule_add(r, &in, &out));
            in[i] = DT_P_OF(kinds[k]);
            out[0] = DT_P_OF(kinds[k]);
        }
    return DT_OK;
}

dt_status dt_infer_pointwise_no_bool(dt_node *n) {
    DT_TRY(dt_infer_pointwise(n));
    if (n->out[0].dtype == DT_bool) return dt_fail(DT_E_DTYPE, "%s: not supported for bool tensors; use logical operators or cast first", dt_op_name(n->op));
    return DT_OK;
}

dt_status dt_infer_float_only(dt_node *n) {
    DT_TRY(dt_infer_pointwise(n));
    if (!dt_dtype_is_float(n->out[0].dtype))
        return dt_fail(DT_E_DTYPE, "%s: not implemented for %s: a float tensor is expected", dt_op_name(n->op), dt_dtype_name(n->out[0].dtype));
    return DT_OK;
}

static dt_status scaled_first(const dt_node *n, dt_rules *r) { return dt_place_scaled(n, r, 1); }
static dt_status scaled_any(const dt_node *n, dt_rules *r) { return dt_place_scaled(n, r, 3); }

/* ---- add, sub --------------------------------------------------------------------------------------------------------------------- */
static void add_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gy);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, gy);
}
const dt_op dt_op_add = {
    .sig = "add(Value input, Value other) -> Tensor",
    .doc = "input + other, broadcast together.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise,
    .grad = add_grad,
    .inplace = true,
    DT_POINTWISE_BY(add, dt_place_linear),
};

/* alpha is a number of any kind that the operands' type can hold. */
static dt_status alpha_infer(dt_node *n) {
    DT_TRY(dt_infer_pointwise(n));
    dt_dtype t = dt_result_type(n, 0, 2), alpha = (dt_dtype)n->in[2]->dtype;
    if (alpha == DT_float64 && !dt_dtype_is_float(t))
        return dt_fail(DT_E_DTYPE, "%s: For integral input tensors, argument alpha must not be a floating point number.", dt_op_name(n->op));
    if (alpha == DT_bool && t != DT_bool) return dt_fail(DT_E_DTYPE, "%s: Boolean alpha only supported for Boolean results.", dt_op_name(n->op));
    if (t == DT_bool && n->op == &dt_op_sub_alpha)
        return dt_fail(DT_E_DTYPE,
                       "sub: Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` operator instead.");
    n->out[0].dtype = t;
    for (int i = 0; i < 3; i++) n->cast[i] = (uint8_t)t;
    return DT_OK;
}
static dt_status alpha_place(const dt_node *n, dt_rules *r) {
    DT_TRY(dt_place_pointwise(n, r));
    static const dt_reduce kinds[] = {DT_SUM, DT_AVG};
    for (int k = 0; k < 2 && !n->in[1]->wrapped; k++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = in[1] = out[0] = DT_P_OF(kinds[k]);
    }
    return DT_OK;
}
static void add_alpha_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gy);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_mul(g->s, gy, dt_grad_scalar(g, 2)));
}
const dt_op dt_op_add_alpha = {
    .sig = "add.alpha(Tensor input, Value other, *, Scalar alpha) -> Tensor",
    .doc = "input + alpha * other.",
    .where = DT_FN_METHOD,
    .infer = alpha_infer,
    .grad = add_alpha_grad,
    .inplace = true,
    DT_POINTWISE_BY(add_alpha, alpha_place),
};

static dt_status sub_infer(dt_node *n) {
    bool a = n->in[0]->dtype == DT_bool, b = n->in[1]->dtype == DT_bool;
    if (a && b)
        return dt_fail(DT_E_DTYPE,
                       "sub: Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` operator instead.");
    if ((a && !n->in[0]->wrapped) || (b && !n->in[1]->wrapped))
        return dt_fail(DT_E_DTYPE, "sub: Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a "
                                   "mask, use the `~` or `logical_not()` operator instead.");
    return dt_infer_pointwise(n);
}
static void sub_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gy);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_neg(g->s, gy));
}
const dt_op dt_op_sub = {
    .sig = "sub(Value input, Value other) -> Tensor",
    .doc = "input - other, broadcast together.",
    .also = "subtract",
    .where = DT_FN_METHOD,
    .infer = sub_infer,
    .grad = sub_grad,
    .inplace = true,
    DT_POINTWISE_BY(sub, dt_place_linear),
};
static void sub_alpha_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gy);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_neg(g->s, dt_mul(g->s, gy, dt_grad_scalar(g, 2))));
}
const dt_op dt_op_sub_alpha = {
    .sig = "sub.alpha(Tensor input, Value other, *, Scalar alpha) -> Tensor",
    .doc = "input - alpha * other.",
    .also = "subtract",
    .where = DT_FN_METHOD,
    .infer = alpha_infer,
    .grad = sub_alpha_grad,
    .inplace = true,
    DT_POINTWISE_BY(sub_alpha, alpha_place),
};
static void rsub_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_neg(g->s, gy));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, gy);
}
const dt_op dt_op_rsub = {
    .sig = "rsub(Tensor input, Value other) -> Tensor",
    .doc = "other - input.",
    .also = "__rsub__",
    .where = DT_FN_METHOD,
    .infer = sub_infer,
    .grad = rsub_grad,
    DT_POINTWISE_BY(rsub, dt_place_linear),
};
static void rsub_alpha_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt_rsub(s, dt_mul(s, a->a[0].t, dt_arg_as_value(&a->a[2])), dt_arg_as_value(&a->a[1])), out, n_out);
}
const dt_op dt_op_rsub_alpha = {
    .sig = "rsub.alpha(Tensor input, Value other, *, Scalar alpha) -> Tensor",
    .doc = "other - alpha * input.",
    .where = DT_FN_METHOD,
    .compose = rsub_alpha_compose,
};

/* ---- mul, div --------------------------------------------------------------------------------------------------------------------- */
static void mul_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_mul(g->s, gy, dt_grad_value(g, 1)));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_mul(g->s, gy, dt_grad_value(g, 0)));
}
const dt_op dt_op_mul = {
    .sig = "mul(Value input, Value other) -> Tensor",
    .doc = "input * other, broadcast together.",
    .also = "multiply",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise,
    .grad = mul_grad,
    .flags = DT_F_BILINEAR,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .inplace = true,
    DT_POINTWISE_BY(mul, scaled_any),
};
static void div_grad(dt_grad *g) {
    dt_scope *s = g->s;
    dt_tensor *gx = dt_div(s, dt_grad_gy(g, 0), dt_grad_value(g, 1));
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, gx);
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_neg(s, dt_mul(s, gx, dt_grad_out(g, 0))));
}
const dt_op dt_op_div = {
    .sig = "div(Value input, Value other) -> Tensor",
    .doc = "input / other, broadcast together; integers give floats.",
    .also = "divide,true_divide",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_float,
    .grad = div_grad,
    .saves = DT_SAVE_IN(1) | DT_SAVE_OUT(0),
    .inplace = true,
    DT_POINTWISE_BY(div, scaled_first),
};
static void reciprocal_grad(dt_grad *g) {
    dt_tensor *y = dt_grad_out(g, 0);
    dt_grad_set(g, 0, dt_neg(g->s, dt_mul(g->s, dt_grad_gy(g, 0), dt_mul(g->s, y, y))));
}
const dt_op dt_op_reciprocal = {
    .sig = "reciprocal(Tensor input) -> Tensor",
    .doc = "1 / input.",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_float,
    .grad = reciprocal_grad,
    .saves = DT_SAVE_OUT(0),
    .inplace = true,
    DT_POINTWISE(reciprocal),
};

/* ---- signs ------------------------------------------------------------------------------------------------------------------------- */
static void neg_grad(dt_grad *g) { dt_grad_set(g, 0, dt_neg(g->s, dt_grad_gy(g, 0))); }
const dt_op dt_op_neg = {
    .sig = "neg(Tensor input) -> Tensor",
    .doc = "The negative of each element.",
    .also = "negative",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_no_bool,
    .grad = neg_grad,
    .inplace = true,
    DT_POINTWISE_BY(neg, dt_place_linear),
};
static void abs_grad(dt_grad *g) { dt_grad_set(g, 0, dt_mul(g->s, dt_grad_gy(g, 0), dt_sign(g->s, dt_grad_in(g, 0)))); }
const dt_op dt_op_abs = {
    .sig = "abs(Tensor input) -> Tensor",
    .doc = "The absolute value of each element.",
    .also = "absolute",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise_no_bool,
    .grad = abs_grad,
    .saves = DT_SAVE_IN(0),
    .inplace = true,
    DT_POINTWISE(abs),
};
static void zero_grad(dt_grad *g) { dt_grad_set(g, 0, dt_zeros_like(g->s, dt_grad_gy(g, 0), DT_DTYPE_NONE)); }
const dt_op dt_op_sign = {
    .sig = "sign(Tensor input) -> Tensor",
    .doc = "-1, 0 or 1 as each element is negative, zero or positive.",
    .also = "sgn",
    .where = DT_FN_METHOD,
    .infer = dt_infer_pointwise,
    .grad = zero_grad,
    .inplace = true,
    DT_POINTWISE(sign),
};
