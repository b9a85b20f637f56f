/* Kernels of flip and padding. */
#include <string.h>

#include "backend/cpu/accum.h"
#include "backend/cpu/copy.h"
#include "ops/op.h"

DT_CPU_KERNEL(flip);
dt_status dt_cpu_flip(const dt_kctx *c) {
    const dt_flip_attr *a = c->attr;
    dt_view src = c->in[0];
    int64_t at = 0;
    for (int i = 0; i < a->dims.n && src.ndim; i++) {
        int64_t d = a->dims.v[i];
        if (src.shape[d] > 0) at += (src.shape[d] - 1) * src.stride[d];
        src.stride[d] = -src.stride[d];
    }
    src.data = (char *)src.data + at * (int64_t)dt_dtype_size(src.dtype);
    dt_cpu_copy_view(&c->out[0], &src, c->team);
    return DT_OK;
}

static void pad_of(const dt_pad_attr *a, int ndim, int d, int64_t *lo, int64_t *hi) {
    int i = ndim - 1 - d;
    *lo = i < a->pad.n / 2 ? a->pad.v[2 * i] : 0;
    *hi = i < a->pad.n / 2 ? a->pad.v[2 * i + 1] : 0;
}

/* The fill value before and after `part` along every dim: slabs that do not overlap. */
static void fill_around(const dt_view *out, const int64_t *lo, const int64_t *len, const void *value, dt_team *team) {
    dt_view slab = *out, fill = *out;
    size_t elem = dt_dtype_size(out->dtype);
    fill.data = (void *)value;
    for (int d = 0; d < out->ndim; d++) fill.stride[d] = 0;
    for (int d = 0; d < out->ndim; d++) {
        char *base = slab.data;
        for (int side = 0; side < 2; side++) {
            int64_t from = side ? lo[d] + len[d] : 0;
            slab.data = base + (size_t)(from * out->stride[d]) * elem;
            slab.shape[d] = fill.shape[d] = side ? out->shape[d] - from : lo[d];
            if (dt_view_numel(&slab)) dt_cpu_copy_view(&slab, &fill, team);
        }
        slab.data = base + (size_t)(lo[d] * out->stride[d]) * elem;
        slab.shape[d] = fill.shape[d] = len[d];
    }
}

DT_CPU_KERNEL(constant_pad);
dt_status dt_cpu_constant_pad(const dt_kctx *c) {
    dt_view src = c->in[0], dst = c->out[0];
    size_t elem = dt_dtype_size(src.dtype);
    int64_t at[DT_MAX_DIM], len[DT_MAX_DIM];
    for (int d = 0; d < src.ndim; d++) {
        int64_t lo, hi;
        pad_of(c->attr, src.ndim, d, &lo, &hi);
        lo += c->in_place[0].lo[d] - c->out_place[0].lo[d]; /* of this device's part */
        hi = dst.shape[d] - src.shape[d] - lo;
        at[d] = lo > 0 ? lo : 0;
        len[d] = src.shape[d] + (lo < 0 ? lo : 0) + (hi < 0 ? hi : 0);
        if (len[d] < 0) len[d] = 0;
        if (at[d] > dst.shape[d]) at[d] = dst.shape[d];
        if (len[d] > dst.shape[d] - at[d]) len[d] = dst.shape[d] - at[d];
        src.data = (char *)src.data + (lo < 0 ? -lo : 0) * src.stride[d] * (int64_t)elem;
        dst.data = (char *)dst.data + at[d] * dst.stride[d] * (int64_t)elem;
        src.shape[d] = dst.shape[d] = len[d];
    }
    fill_around(&c->out[0], at, len, c->in[1].data, c->team);
    if (dt_view_numel(&src)) dt_cpu_copy_view(&dst, &src, c->team);
    return DT_OK;
}

/* ---- padding with the input's own entries: position o of the output along a dim is position source(o) of the input ---- */
typedef struct pad_job {
    const dt_kctx *c;
    const dt_pad_attr *a;
    dt_view in, out; /* the unpadded and the padded tensor */
    int64_t rows, each;
    bool back;
} pad_job;

/* Circular padding wraps around what negative padding leaves. */
static int64_t source(int64_t mode, int64_t o, int64_t lo, int64_t hi, int64_t n) {
    int64_t j = o - lo, cut = lo < 0 ? -lo : 0, left = n - cut + (hi < 0 ? hi : 0);
    if (mode == 1) return j < 0 ? -j : j >= n ? 2 * (n - 1) - j : j;
    if (mode == 2) return j < 0 ? 0 : j >= n ? n - 1 : j;
    return ((j - cut) % left + left) % left + cut;
}
static void pad_row(const pad_job *j, int64_t r) {
    int last = j->in.ndim - 1;
    int64_t at = 0, left = r, lo, hi, cols = j->out.shape[last], n = j->in.shape[last], elem = (int64_t)dt_dtype_size(j->in.dtype);
    for (int d = last - 1; d >= 0; d--) {
        pad_of(j->a, j->in.ndim, d, &lo, &hi);
        at += source(j->a->mode, left % j->out.shape[d], lo, hi, j->in.shape[d]) * j->in.stride[d];
        left /= j->out.shape[d];
    }
    pad_of(j->a, j->in.ndim, last, &lo, &hi);
    char *in = (char *)j->in.data + at * elem, *out = (char *)j->out.data + r * cols * elem;
    for (int64_t o = 0; o < cols; o++) {
        char *p = in + source(j->a->mode, o, lo, hi, n) * j->in.stride[last] * elem, *q = out + o * elem;
        if (j->back)
            dt_cpu_accum(j->in.dtype, DT_RM_ADD, p, q, 1, 1, 1);
        else
            memcpy(q, p, (size_t)elem);
    }
}
static void pad_task(void *arg, int64_t t) {
    const pad_job *j = arg;
    int64_t r1 = (t + 1) * j->each < j->rows ? (t + 1) * j->each : j->rows;
    for (int64_t r = t * j->each; r < r1; r++) pad_row(j, r);
}
static void pad_run(pad_job *j, dt_team *team) {
    int64_t n = dt_view_numel(&j->out), cols = n ? j->out.shape[j->out.ndim - 1] : 0;
    if (n == 0) return;
    j->rows = n / cols;
    j->each = cols >= 16384 ? 1 : 16384 / cols;
    dt_team_run(team, pad_task, j, (j->rows + j->each - 1) / j->each);
}
DT_CPU_KERNEL(pad_mode);
dt_status dt_cpu_pad_mode(const dt_kctx *c) {
    pad_job j = {.c = c, .a = c->attr, .in = c->in[0], .out = c->out[0]};
    pad_run(&j, c->team);
    return DT_OK;
}
DT_CPU_KERNEL(pad_mode_backward);
dt_status dt_cpu_pad_mode_backward(const dt_kctx *c) { /* one thread: several padded rows may come from one */
    pad_job j = {.c = c, .a = c->attr, .in = c->out[0], .out = c->in[0], .back = true};
    dt_cpu_zero_view(&c->out[0], c->team);
    pad_run(&j, NULL);
    return DT_OK;
}
