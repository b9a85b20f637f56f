/* Comparisons: bool results, no gradients. */
#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

#define COMPARE(code) .where = DT_FN_METHOD, .infer = dt_infer_compare, .inplace = true, DT_POINTWISE(code)
const dt_op dt_op_eq = {
    .sig = "eq(Tensor input, Value other) -> Tensor", .doc = "input == other, element by element.", COMPARE(eq),
};
const dt_op dt_op_ne = {
    .sig = "ne(Tensor input, Value other) -> Tensor", .doc = "input != other, element by element.", .also = "not_equal", COMPARE(ne),
};
const dt_op dt_op_lt = {
    .sig = "lt(Tensor input, Value other) -> Tensor", .doc = "input < other, element by element.", .also = "less", COMPARE(lt),
};
const dt_op dt_op_le = {
    .sig = "le(Tensor input, Value other) -> Tensor", .doc = "input <= other, element by element.", .also = "less_equal", COMPARE(le),
};
const dt_op dt_op_gt = {
    .sig = "gt(Tensor input, Value other) -> Tensor", .doc = "input > other, element by element.", .also = "greater", COMPARE(gt),
};
const dt_op dt_op_ge = {
    .sig = "ge(Tensor input, Value other) -> Tensor", .doc = "input >= other, element by element.", .also = "greater_equal", COMPARE(ge),
};
