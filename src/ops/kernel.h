/* What a kernel sees: local views of its operands, their place in the global tensors, attributes, scratch, a thread team.
 *
 * A kernel computes its outputs from its inputs on one device and returns a status; it never allocates, blocks or keeps a pointer.
 * - Inputs may have any strides (0 for broadcast, negative never) unless the op's kernel entry says DT_K_CONTIGUOUS (the planner then copies first).
 *   They never alias outputs, except input i of an op with `.inplace` set that dies here: then out[0].data may equal in[i].data with
 *   identical shape, strides and dtype. Outputs are always contiguous (row-major), 64-byte aligned at their start.
 * - Sizes may be 0 in any dimension. An absent optional input has data == NULL and dtype == DT_DTYPE_NONE.
 * - A number passed for a tensor, and a run-time Scalar, is a 0-dim view of the dtype that `infer` asked for.
 * - `place` of an operand: where its box starts in the global tensor and the global shape. On a plain tensor: zeros and its own shape.
 *   Kernels whose result depends on indices (arange, random, embedding, gather on a sharded dim, tril …) use it; others ignore it.
 * - Results must not depend on the team's size: split work by the problem's size. */
#ifndef DT_OPS_KERNEL_H
#define DT_OPS_KERNEL_H

#include "base/team.h"
#include "tensor/layout.h"

typedef struct dt_view {
    void *data;
    dt_dtype dtype;
    int32_t ndim;
    int64_t shape[DT_MAX_DIM];
    int64_t stride[DT_MAX_DIM]; /* in elements */
} dt_view;

typedef struct dt_geom {
    int64_t lo[DT_MAX_DIM];    /* first global index held here, per dimension */
    int64_t shape[DT_MAX_DIM]; /* the global shape */
    bool first;                /* this device is the first of those that hold the same data */
} dt_geom;

typedef struct dt_kctx {
    const struct dt_op *op;
    const void *attr; /* the op's attribute struct, as infer left it; NULL without attributes */
    int n_in, n_out;
    const dt_view *in;
    const dt_view *out;
    const dt_geom *in_place, *out_place;
    void *scratch; /* as many bytes as the op's `scratch` function asked for; 64-byte aligned; NULL if none */
    dt_team *team;
} dt_kctx;

typedef dt_status (*dt_kernel_fn)(const dt_kctx *c);

static inline int64_t dt_view_numel(const dt_view *v) {
    int64_t n = 1;
    for (int i = 0; i < v->ndim; i++) n *= v->shape[i];
    return n;
}
static inline bool dt_view_contiguous(const dt_view *v) {
    int64_t s = 1;
    for (int i = v->ndim - 1; i >= 0; i--) {
        if (v->shape[i] != 1 && v->stride[i] != s) return false;
        s *= v->shape[i];
    }
    return true;
}
static inline void dt_view_set_contiguous(dt_view *v) {
    int64_t s = 1;
    for (int i = v->ndim - 1; i >= 0; i--) {
        v->stride[i] = s;
        s *= v->shape[i];
    }
}
/* Where element i, counted in row-major order, lies: in elements from data. */
static inline int64_t dt_view_offset(const dt_view *v, int64_t i) {
    int64_t o = 0;
    for (int d = v->ndim - 1; d >= 0; d--) {
        o += i % v->shape[d] * v->stride[d];
        i /= v->shape[d];
    }
    return o;
}
/* Present? (optional inputs) */
static inline bool dt_view_given(const dt_view *v) { return v->dtype != DT_DTYPE_NONE; }
/* The value of a 0-dim scalar operand. */
static inline double dt_view_f64(const dt_view *v) { return dt_element_get_f64(v->dtype, v->data); }
static inline int64_t dt_view_i64(const dt_view *v) { return dt_element_get_i64(v->dtype, v->data); }

/* The kernels of the cpu backend are declared where an op names them: DT_CPU_KERNEL(softmax); then {DT_CPU, DT_FLOATS, dt_cpu_softmax}. */
#define DT_CPU_KERNEL(name) dt_status dt_cpu_##name(const dt_kctx *c)

#endif
