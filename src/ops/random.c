/* Random ops: values follow from (seed, offset, global index), see random.h; every placement gives the same numbers. */
#include "ops/random.h"

#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

DT_CPU_KERNEL(uniform);
DT_CPU_KERNEL(normal);

typedef struct sized_attr {
    dt_random_floats f;
    dt_ints size;
    int32_t dtype;
} sized_attr;

/* A factory of floats with distribution parameters (x, y). */
static dt_status sized_infer(dt_node *n, double x, double y) {
    sized_attr *a = n->attr;
    dt_type *o = &n->out[0];
    a->f = (dt_random_floats){x, y};
    o->dtype = a->dtype == DT_DTYPE_NONE ? dt_default_dtype() : (dt_dtype)a->dtype;
    if (!dt_dtype_is_float(o->dtype)) return dt_fail(DT_E_DTYPE, "%s: not implemented for %s: a float dtype is expected", dt_op_name(n->op), dt_dtype_name(o->dtype));
    if (a->size.n > DT_MAX_DIM) return dt_fail(DT_E_VALUE, "%s: %d dimensions; at most %d are supported", dt_op_name(n->op), a->size.n, DT_MAX_DIM);
    o->ndim = a->size.n;
    for (int i = 0; i < o->ndim; i++) {
        if (a->size.v[i] < 0)
            return dt_fail(DT_E_SHAPE, "%s: Trying to create tensor with negative dimension %lld: dimension %d of the size", dt_op_name(n->op), (long long)a->size.v[i], i);
        o->shape[i] = a->size.v[i];
    }
    return DT_OK;
}
static dt_status rand_infer(dt_node *n) { return sized_infer(n, 0, 1); }
#define SIZED_ATTRS DT_ATTRS(sized_attr, DT_FIELD(sized_attr, size), DT_FIELD(sized_attr, dtype))

const dt_op dt_op_rand = {
    .sig = "rand(int[]... size, *, Generator? generator=None, dtype? dtype=None) -> Tensor",
    .doc = "Uniform random numbers in [0, 1).",
    .where = DT_FN,
    .flags = DT_F_FACTORY | DT_F_RANDOM,
    .attrs = SIZED_ATTRS,
    .infer = rand_infer,
    .place = dt_place_pointwise,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_uniform}},
};
const dt_op dt_op_randn = {
    .sig = "randn(int[]... size, *, Generator? generator=None, dtype? dtype=None) -> Tensor",
    .doc = "Normal random numbers of mean 0 and variance 1.",
    .where = DT_FN,
    .flags = DT_F_FACTORY | DT_F_RANDOM,
    .attrs = SIZED_ATTRS,
    .infer = rand_infer,
    .place = dt_place_pointwise,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_normal}},
};
