/* Kernels whose result follows the values of a mask or a count: one pass in row-major order on one thread. */
#include <string.h>

#include "backend/cpu/copy.h"
#include "ops/op.h"

static bool is_nonzero(dt_dtype t, const void *p) {
    switch (dt_dtype_size(t)) {
    case 1: return *(const uint8_t *)p != 0;
    case 2: return dt_dtype_is_float(t) ? (uint16_t)(*(const uint16_t *)p << 1) != 0 : *(const uint16_t *)p != 0;
    case 4: return dt_dtype_is_float(t) ? *(const uint32_t *)p << 1 != 0 : *(const uint32_t *)p != 0;
    default: return dt_dtype_is_float(t) ? *(const uint64_t *)p << 1 != 0 : *(const uint64_t *)p != 0;
    }
}

/* A strided view row by row (rows run along the last dim): where row r starts, in elements, and its coordinates. */
static int64_t row_at(const dt_view *v, int64_t r, int64_t *coord) {
    int64_t o = 0;
    for (int d = v->ndim - 2; d >= 0; d--) {
        coord[d] = r % v->shape[d];
        o += coord[d] * v->stride[d];
        r /= v->shape[d];
    }
    return o;
}
static int64_t count_row(const dt_view *v, const char *p, int64_t n, int64_t stride) {
    int64_t count = 0, elem = (int64_t)dt_dtype_size(v->dtype);
    if (elem == 1 && stride == 1)
        for (int64_t i = 0; i < n; i++) count += p[i] != 0;
    else
        for (int64_t i = 0; i < n; i++) count += is_nonzero(v->dtype, p + i * stride * elem);
    return count;
}

DT_CPU_KERNEL(nonzero_count);
dt_status dt_cpu_nonzero_count(const dt_kctx *c) {
    const dt_view *v = &c->in[0];
    int64_t n = dt_view_numel(v), count = 0, coord[DT_MAX_DIM], elem = (int64_t)dt_dtype_size(v->dtype);
    if (n > 0 && dt_view_contiguous(v))
        count = count_row(v, v->data, n, 1);
    else if (n > 0) {
        int64_t cols = v->shape[v->ndim - 1], stride = v->stride[v->ndim - 1];
        for (int64_t r = 0; r < n / cols; r++) count += count_row(v, (const char *)v->data + row_at(v, r, coord) * elem, cols, stride);
    }
    *(int64_t *)c->out[0].data = count;
    return DT_OK;
}
DT_CPU_KERNEL(nonzero);
dt_status dt_cpu_nonzero(const dt_kctx *c) {
    const dt_view *v = &c->in[0];
    int64_t n = dt_view_numel(v), room = c->out[0].shape[0], *out = c->out[0].data, coord[DT_MAX_DIM], elem = (int64_t)dt_dtype_size(v->dtype);
    int last = v->ndim - 1;
    if (v->ndim == 0) return DT_OK; /* (n, 0): no coordinate to write */
    int64_t cols = v->shape[last], stride = v->stride[last];
    for (int64_t r = 0; n && r < n / cols && room; r++) {
        const char *p = (const char *)v->data + row_at(v, r, coord) * elem;
        for (int64_t i = 0; i < cols && room; i++, p += stride * elem) { /* written always, kept if nonzero: no branch to guess */
            int64_t keep = is_nonzero(v->dtype, p);
            for (int d = 0; d < last; d++) out[d] = coord[d];
            out[last] = i;
            out += keep * v->ndim;
            room -= keep;
        }
    }
    return room ? dt_fail(DT_E_INTERNAL, "nonzero: the values changed after they were counted") : DT_OK;
}

/* input (strided), mask (contiguous, the same shape): the chosen elements one after another. */
DT_CPU_KERNEL(masked_select);
dt_status dt_cpu_masked_select(const dt_kctx *c) {
    const dt_view *v = &c->in[0];
    const uint8_t *mask = c->in[1].data;
    int64_t n = dt_view_numel(v), room = c->out[0].shape[0], k = 0, coord[DT_MAX_DIM], elem = (int64_t)dt_dtype_size(v->dtype);
    int64_t cols = v->ndim ? v->shape[v->ndim - 1] : 1, stride = v->ndim ? v->stride[v->ndim - 1] : 1;
    char *out = c->out[0].data;
    for (int64_t r = 0; n && r < n / cols && k < room; r++, mask += cols) {
        const char *p = (const char *)v->data + row_at(v, r, coord) * elem;
        if (elem == 4) /* written always, kept if the mask is true: no branch to guess */
            for (int64_t i = 0; i < cols && k < room; i++) {
                ((uint32_t *)out)[k] = ((const uint32_t *)p)[i * stride];
                k += mask[i] != 0;
            }
        else
            for (int64_t i = 0; i < cols && k < room; i++)
                if (mask[i]) memcpy(out + k++ * elem, p + i * stride * elem, (size_t)elem);
    }
    return k < room ? dt_fail(DT_E_INTERNAL, "masked_select: the mask changed after it was counted") : DT_OK;
}

DT_CPU_KERNEL(masked_scatter);
dt_status dt_cpu_masked_scatter(const dt_kctx *c) {
    const uint8_t *mask = c->in[1].data;
    size_t elem = dt_dtype_size(c->out[0].dtype);
    int64_t n = dt_view_numel(&c->out[0]), have = dt_view_numel(&c->in[2]), k = 0;
    const char *src = c->in[2].data;
    dt_cpu_copy_view(&c->out[0], &c->in[0], c->team);
    for (int64_t i = 0; i < n; i++) {
        if (!mask[i]) continue;
        if (k == have) return dt_fail(DT_E_SHAPE, "masked_scatter: Number of elements of source < number of ones in mask: source has %lld", (long long)have);
        memcpy((char *)c->out[0].data + (size_t)i * elem, src + (size_t)k++ * elem, elem);
    }
    return DT_OK;
}
DT_CPU_KERNEL(masked_scatter_backward);
dt_status dt_cpu_masked_scatter_backward(const dt_kctx *c) {
    const uint8_t *mask = c->in[1].data;
    size_t elem = dt_dtype_size(c->out[0].dtype);
    int64_t n = dt_view_numel(&c->in[0]), room = dt_view_numel(&c->out[0]), k = 0;
    dt_cpu_zero_view(&c->out[0], c->team);
    for (int64_t i = 0; i < n && k < room; i++)
        if (mask[i]) memcpy((char *)c->out[0].data + (size_t)k++ * elem, (const char *)c->in[0].data + (size_t)i * elem, elem);
    return DT_OK;
}

DT_CPU_KERNEL(one_hot);
dt_status dt_cpu_one_hot(const dt_kctx *c) {
    const int64_t *x = c->in[0].data;
    int64_t *out = c->out[0].data, n = dt_view_numel(&c->in[0]), classes = c->out[0].shape[c->out[0].ndim - 1];
    dt_cpu_zero_view(&c->out[0], c->team);
    for (int64_t i = 0; i < n; i++) {
        if (x[i] < 0 || x[i] >= classes)
            return dt_fail(DT_E_SHAPE,
                           x[i] < 0 ? "Class values must be non-negative: one_hot got %lld for %lld classes"
                                    : "Class values must be smaller than num_classes.: one_hot got %lld for %lld classes",
                           (long long)x[i], (long long)classes);
        out[i * classes + x[i]] = 1;
    }
    return DT_OK;
}
DT_CPU_KERNEL(index_limit);
dt_status dt_cpu_index_limit(const dt_kctx *c) {
    const int64_t *x = c->in[0].data;
    int64_t n = dt_view_numel(&c->in[0]), top = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] < 0) return dt_fail(DT_E_SHAPE, "Class values must be non-negative: one_hot got %lld", (long long)x[i]);
        if (x[i] >= top) top = x[i] + 1;
    }
    *(int64_t *)c->out[0].data = top;
    return DT_OK;
}

DT_CPU_KERNEL(repeat_total);
dt_status dt_cpu_repeat_total(const dt_kctx *c) {
    const int64_t *x = c->in[0].data;
    int64_t n = dt_view_numel(&c->in[0]), sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] < 0) return dt_fail(DT_E_SHAPE, "repeats can not be negative: got %lld at %lld", (long long)x[i], (long long)i);
        sum += x[i];
    }
    *(int64_t *)c->out[0].data = sum;
    return DT_OK;
}
DT_CPU_KERNEL(repeat_indices);
dt_status dt_cpu_repeat_indices(const dt_kctx *c) {
    const int64_t *x = c->in[0].data;
    int64_t n = dt_view_numel(&c->in[0]), room = c->out[0].shape[0], *out = c->out[0].data;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] < 0) return dt_fail(DT_E_SHAPE, "repeats can not be negative: got %lld at %lld", (long long)x[i], (long long)i);
        if (x[i] > room)
            return dt_fail(DT_E_SHAPE, "repeat_interleave: allocated size does not match required size: repeats sum to more than output_size %lld",
                           (long long)c->out[0].shape[0]);
        for (int64_t k = 0; k < x[i]; k++) *out++ = i;
        room -= x[i];
    }
    return room ? dt_fail(DT_E_SHAPE, "repeat_interleave: allocated size does not match required size: repeats sum to %lld less than output_size",
                          (long long)room)
                : DT_OK;
}
