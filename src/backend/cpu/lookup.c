/* What kernels that read by index and fused groups with such reads share: which are which, and the check of the indices with its messages. */
#include "backend/cpu/fusing.h"
#include "ops/op.h"

DT_CPU_KERNEL(embedding);
DT_CPU_KERNEL(index_select);
DT_CPU_KERNEL(index);
DT_CPU_KERNEL(gather);
dt_lookup dt_cpu_lookup(dt_kernel_fn fn) {
    return fn == dt_cpu_embedding      ? DT_LOOKUP_EMBEDDING
           : fn == dt_cpu_index_select ? DT_LOOKUP_SELECT
           : fn == dt_cpu_index        ? DT_LOOKUP_INDEX
           : fn == dt_cpu_gather       ? DT_LOOKUP_GATHER
                                       : DT_LOOKUP_NONE;
}

/* Are all of p[0 … n) in [low, limit)? Branch-free, so that it runs at memory speed. */
static bool in_range_i64(const int64_t *p, int64_t n, int64_t low, int64_t limit) {
    uint64_t bad = 0;
    for (int64_t i = 0; i < n; i++) bad |= (uint64_t)(p[i] < low) | (uint64_t)(p[i] >= limit);
    return !bad;
}

static dt_status refuse(dt_lookup kind, const dt_op *op, int dim, long long k, long long low, long long limit) {
    switch (kind) {
    case DT_LOOKUP_EMBEDDING: return dt_fail(DT_E_INDEX, "index out of range in self: embedding: index %lld, legal are 0 to %lld", k, limit - 1);
    case DT_LOOKUP_INDEX:
        return dt_fail(DT_E_INDEX, "index %lld is out of bounds for dimension of size %lld (%s; legal: %lld to %lld)", k, limit, dt_op_name(op), low,
                       limit - 1);
    case DT_LOOKUP_GATHER: return dt_fail(DT_E_SHAPE, "index %lld is out of bounds for dimension %d with size %lld (%s)", k, dim, limit, dt_op_name(op));
    default: return dt_fail(DT_E_INDEX, "index out of range in self: %s: index %lld is out of bounds for dimension with size %lld", dt_op_name(op), k, limit);
    }
}

dt_status dt_cpu_check_index(dt_lookup kind, const dt_op *op, const dt_view *index, int dim, int64_t low, int64_t limit) {
    int64_t n = dt_view_numel(index);
    bool dense = dt_view_contiguous(index);
    if (dense && index->dtype == DT_int64 && in_range_i64(index->data, n, low, limit)) return DT_OK;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = dt_view_offset(index, i), k = index->dtype == DT_int64 ? ((const int64_t *)index->data)[at] : ((const int32_t *)index->data)[at];
        if (k < low || k >= limit) return refuse(kind, op, dim, k, low, limit);
    }
    return DT_OK;
}

dt_status dt_cpu_check_lookup(const dt_fused_op *o, const dt_view *index) {
    return dt_cpu_check_index((dt_lookup)o->code, o->op, index, o->dim, o->code == DT_LOOKUP_INDEX ? -o->limit : 0, o->limit);
}
