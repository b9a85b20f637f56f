/* Running a kernel by hand: views over fresh memory, random contents, strides that are not those of a contiguous tensor. */
#ifndef DT_TEST_KERNEL_H
#define DT_TEST_KERNEL_H

#include "ops/op.h"
#include "test.h"

static uint64_t kt_state = 88172645463325252ull;
static inline uint64_t kt_next(void) {
    kt_state ^= kt_state << 13;
    kt_state ^= kt_state >> 7;
    return kt_state ^= kt_state << 17;
}
static inline double kt_uniform(void) { return (double)(kt_next() >> 11) * 0x1p-53 * 2 - 1; }
static inline int64_t kt_below(int64_t n) { return (int64_t)(kt_next() % (uint64_t)n); }

/* Views are never freed: a test's process ends soon. They are kept in a list, so that the leak checker does not take them for lost. */
static inline void *kt_keep(void *p) {
    static void **kept;
    static size_t n;
    kept = realloc(kept, (n + 1) * sizeof *kept);
    return kept[n++] = p;
}

/* A view of its own memory with the dimensions laid out in the order perm (NULL: row-major), filled at random (integers in [-8, 8]). */
static inline dt_view kt_view(dt_dtype t, int ndim, const int64_t *shape, const int *perm) {
    dt_view v = {.dtype = t, .ndim = ndim};
    int64_t s = 1;
    for (int i = 0; i < ndim; i++) v.shape[i] = shape[i];
    for (int i = ndim - 1; i >= 0; i--) {
        int d = perm ? perm[i] : i;
        v.stride[d] = s;
        s *= shape[d];
    }
    size_t size = dt_dtype_size(t);
    v.data = kt_keep(aligned_alloc(64, ((size_t)s * size + 127) / 64 * 64));
    for (int64_t i = 0; i < s; i++) {
        void *p = (char *)v.data + (size_t)i * size;
        if (dt_dtype_is_float(t))
            dt_element_set_f64(t, p, kt_uniform());
        else
            dt_element_set_i64(t, p, kt_below(17) - (t == DT_uint8 ? 0 : 8));
    }
    return v;
}
static inline double kt_get(const dt_view *v, const int64_t *idx) {
    int64_t o = 0;
    for (int d = 0; d < v->ndim; d++) o += idx[d] * v->stride[d];
    return dt_element_get_f64(v->dtype, (const char *)v->data + o * (int64_t)dt_dtype_size(v->dtype));
}
static inline double kt_at(const dt_view *v, int64_t i) { /* i-th element of a contiguous view */
    return dt_element_get_f64(v->dtype, (const char *)v->data + i * (int64_t)dt_dtype_size(v->dtype));
}
/* Run it: places are whole tensors. */
static inline dt_status kt_run(dt_kernel_fn fn, const dt_op *op, const void *attr, int n_in, dt_view *in, int n_out, dt_view *out, dt_team *team) {
    dt_geom ip[8] = {0}, op_[8] = {0};
    for (int i = 0; i < n_in; i++) memcpy(ip[i].shape, in[i].shape, sizeof ip[i].shape), ip[i].first = true;
    for (int i = 0; i < n_out; i++) memcpy(op_[i].shape, out[i].shape, sizeof op_[i].shape), op_[i].first = true;
    dt_kctx c = {.op = op, .attr = attr, .n_in = n_in, .n_out = n_out, .in = in, .out = out, .in_place = ip, .out_place = op_, .team = team};
    size_t bytes = op->scratch ? op->scratch(&c) : 0;
    void *scratch = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    c.scratch = scratch;
    dt_status s = fn(&c);
    free(scratch);
    return s;
}

#endif
