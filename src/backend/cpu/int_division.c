/* Integer division, remainder: refuses a zero divisor, which would be undefined. Then as any elementwise op. */
#include "ops/op.h"

DT_CPU_KERNEL(pointwise);
DT_CPU_KERNEL(int_division);

/* Does a view hold a zero? Walks it row by row. */
static bool has_zero(const dt_view *v) {
    int64_t rows = 1, n = v->ndim ? v->shape[v->ndim - 1] : 1, step = v->ndim ? v->stride[v->ndim - 1] : 0, idx[DT_MAX_DIM] = {0};
    size_t size = dt_dtype_size(v->dtype);
    for (int d = 0; d + 1 < v->ndim; d++) rows *= v->shape[d];
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = 0;
        for (int d = 0; d + 1 < v->ndim; d++) at += idx[d] * v->stride[d];
        for (int64_t i = 0; i < n; i++)
            if (dt_element_get_i64(v->dtype, (const char *)v->data + (size_t)(at + i * step) * size) == 0) return true;
        for (int d = v->ndim - 2; d >= 0; d--) {
            if (++idx[d] < v->shape[d]) break;
            idx[d] = 0;
        }
    }
    return false;
}

dt_status dt_cpu_int_division(const dt_kctx *c) {
    if (dt_view_numel(&c->out[0]) > 0 && has_zero(&c->in[1])) return dt_fail(DT_E_SHAPE, "%s: ZeroDivisionError: integer division by zero", dt_op_name(c->op));
    return dt_cpu_pointwise(c);
}
