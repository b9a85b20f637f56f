/* Comparisons: bool results, no gradients. */
#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

#define COMPARE(code) .where = DT_FN_METHOD, .infer = dt_infer_compare, .inplace = true, DT_POINTWISE(code)
const dt_op dt_op_eq = {
    .sig = "eq(Tensor input, Value other) -> Tensor",
    .doc = "input == other, element by element.",
    COMPARE(eq),
};
const dt_op dt_op_ne = {
    .sig = "ne(Tensor input, Value other) -> Tensor",
    .doc = "input != other, element by element.",
    .also = "not_equal",
    COMPARE(ne),
};
const dt_op dt_op_lt = {
    .sig = "lt(Tensor input, Value other) -> Tensor",
    .doc = "input < other, element by element.",
    .also = "less",
    COMPARE(lt),
};
const dt_op dt_op_le = {
    .sig = "le(Tensor input, Value other) -> Tensor",
    .doc = "input <= other, element by element.",
    .also = "less_equal",
    COMPARE(le),
};
const dt_op dt_op_gt = {
    .sig = "gt(Tensor input, Value other) -> Tensor",
    .doc = "input > other, element by element.",
    .also = "greater",
    COMPARE(gt),
};
const dt_op dt_op_ge = {
    .sig = "ge(Tensor input, Value other) -> Tensor",
    .doc = "input >= other, element by element.",
    .also = "greater_equal",
    COMPARE(ge),
};

/* ---- predicates -------------------------------------------------------------------------------------------------------------------- */
#define PREDICATE(code) .where = DT_FN_METHOD, .infer = dt_infer_compare, DT_POINTWISE(code)
const dt_op dt_op_isnan = {
    .sig = "isnan(Tensor input) -> Tensor",
    .doc = "True where an element is NaN.",
    PREDICATE(isnan),
};
const dt_op dt_op_isinf = {
    .sig = "isinf(Tensor input) -> Tensor",
    .doc = "True where an element is inf or -inf.",
    PREDICATE(isinf),
};
const dt_op dt_op_isfinite = {
    .sig = "isfinite(Tensor input) -> Tensor",
    .doc = "True where an element is neither infinite nor NaN.",
    PREDICATE(isfinite),
};
const dt_op dt_op_isposinf = {
    .sig = "isposinf(Tensor input) -> Tensor",
    .doc = "True where an element is inf.",
    PREDICATE(isposinf),
};
const dt_op dt_op_isneginf = {
    .sig = "isneginf(Tensor input) -> Tensor",
    .doc = "True where an element is -inf.",
    PREDICATE(isneginf),
};
const dt_op dt_op_signbit = {
    .sig = "signbit(Tensor input) -> Tensor",
    .doc = "True where the sign bit is set: negative numbers and -0.",
    PREDICATE(signbit),
};
static void isreal_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt_full_like(s, a->a[0].t, true, DT_bool), out, n_out);
}
const dt_op dt_op_isreal = {
    .sig = "isreal(Tensor input) -> Tensor",
    .doc = "True everywhere: tensors are real.",
    .where = DT_FN_METHOD,
    .compose = isreal_compose,
};

typedef struct isclose_attr {
    dt_pw_floats f; /* rtol, atol, equal_nan as a number for the kernel */
    bool equal_nan;
} isclose_attr;
static dt_status isclose_infer(dt_node *n) {
    isclose_attr *a = n->attr;
    if (n->in[0]->dtype != n->in[1]->dtype)
        return dt_fail(DT_E_DTYPE, "isclose: %s did not match %s", dt_dtype_name((dt_dtype)n->in[0]->dtype), dt_dtype_name((dt_dtype)n->in[1]->dtype));
    if (!(a->f.a >= 0) || !(a->f.b >= 0)) return dt_fail(DT_E_SHAPE, "isclose: rtol and atol must be >= 0, got %g and %g", a->f.a, a->f.b);
    a->f.c = a->equal_nan;
    return dt_infer_compare(n);
}
const dt_op dt_op_isclose = {
    .sig = "isclose(Tensor input, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> Tensor",
    .doc = "True where |input - other| <= atol + rtol * |other|.",
    .where = DT_FN_METHOD,
    .attrs = {sizeof(isclose_attr),
              {{"rtol", offsetof(isclose_attr, f.a)}, {"atol", offsetof(isclose_attr, f.b)}, {"equal_nan", offsetof(isclose_attr, equal_nan)}}},
    .infer = isclose_infer,
    DT_POINTWISE(isclose),
};

/* ---- logic: not zero is true ---------------------------------------------------------------------------------------------------------- */
const dt_op dt_op_logical_and = {
    .sig = "logical_and(Tensor input, Tensor other) -> Tensor",
    .doc = "True where both are not zero.",
    COMPARE(logical_and),
};
const dt_op dt_op_logical_or = {
    .sig = "logical_or(Tensor input, Tensor other) -> Tensor",
    .doc = "True where one or both are not zero.",
    COMPARE(logical_or),
};
const dt_op dt_op_logical_xor = {
    .sig = "logical_xor(Tensor input, Tensor other) -> Tensor",
    .doc = "True where exactly one is not zero.",
    COMPARE(logical_xor),
};
const dt_op dt_op_logical_not = {
    .sig = "logical_not(Tensor input) -> Tensor",
    .doc = "True where an element is zero.",
    COMPARE(logical_not),
};
