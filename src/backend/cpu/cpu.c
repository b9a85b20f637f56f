/* The cpu backend's table: host memory, strided copies, reductions for collectives. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/copy.h"
#include "backend/cpu/fusing.h"
#include "plan/backend.h"

enum { HUGE_PAGE = 2 << 20 };

static void *cpu_alloc(size_t bytes) {
    bool huge = bytes >= 2 * (size_t)HUGE_PAGE;
    size_t align = huge ? HUGE_PAGE : 64;
    void *p;
    if (posix_memalign(&p, align, bytes)) return NULL; /* its end is in small pages */
    if (huge) madvise(p, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return p;
}

static void cpu_free(void *p, size_t bytes) {
    (void)bytes;
    free(p);
}

/* ---- walking rows of views with a common shape ------------------------------------------------------------------------------------ */
typedef void (*row_fn)(void *ctx, int64_t n, char *dst, int64_t dst_stride, const int64_t *src_offset);

/* How a shape is walked: dimensions in the order of dst's memory, those that lie in one another in every view as one. A gradient of a 3 x 3 convolution is
 * one long row then, not thousands of three elements. */
typedef struct rows {
    int n, dim[DT_MAX_DIM];   /* from the outside in; a dimension of the views whose strides count */
    int64_t size[DT_MAX_DIM]; /* of it and of what it was joined with */
} rows;

static bool lies_within(const dt_view *v, int outer, int inner, int64_t size) { return v->stride[outer] == v->stride[inner] * size; }

static void rows_find(const dt_view *dst, const dt_view *src, int n_src, rows *r) {
    int order[DT_MAX_DIM], n = 0;
    for (int d = 0; d < dst->ndim; d++) {
        if (dst->shape[d] == 1) continue;
        int at = n++;
        for (; at > 0 && dst->stride[order[at - 1]] < dst->stride[d]; at--) order[at] = order[at - 1];
        order[at] = d;
    }
    r->n = 0;
    for (int k = n - 1; k >= 0; k--) { /* from the inside out */
        int d = order[k], in = r->n - 1;
        bool joins = in >= 0 && lies_within(dst, d, r->dim[in], r->size[in]);
        for (int i = 0; joins && i < n_src; i++) joins = lies_within(&src[i], d, r->dim[in], r->size[in]);
        if (joins) {
            r->size[in] *= dst->shape[d];
            continue;
        }
        r->dim[r->n] = d;
        r->size[r->n++] = dst->shape[d];
    }
    for (int i = 0, k = r->n - 1; i < k; i++, k--) {
        int d = r->dim[i];
        int64_t size = r->size[i];
        r->dim[i] = r->dim[k];
        r->size[i] = r->size[k];
        r->dim[k] = d;
        r->size[k] = size;
    }
}

static int64_t row_stride(const dt_view *v, const rows *r) { return r->n ? v->stride[r->dim[r->n - 1]] : 1; } /* of neighbours in a row */

static void each_row(const dt_view *dst, const dt_view *src, int n_src, const rows *r, row_fn fn, void *ctx) {
    int64_t at[DT_MAX_DIM] = {0}, off[n_src + 1], size = (int64_t)dt_dtype_size(dst->dtype);
    int last = r->n - 1;
    if (dt_view_numel(dst) == 0) return;
    for (;;) {
        int64_t d = 0;
        for (int k = 0; k < n_src; k++) off[k] = 0;
        for (int i = 0; i < last; i++) {
            d += at[i] * dst->stride[r->dim[i]];
            for (int k = 0; k < n_src; k++) off[k] += at[i] * src[k].stride[r->dim[i]];
        }
        fn(ctx, r->n ? r->size[last] : 1, (char *)dst->data + d * size, row_stride(dst, r), off);
        int i = last - 1;
        while (i >= 0 && ++at[i] == r->size[i]) at[i--] = 0;
        if (i < 0) return;
    }
}

static void zero_row(void *ctx, int64_t n, char *dst, int64_t stride, const int64_t *off) {
    (void)off;
    size_t size = *(size_t *)ctx;
    if (stride == 1)
        memset(dst, 0, (size_t)n * size);
    else
        for (int64_t i = 0; i < n; i++) memset(dst + i * stride * (int64_t)size, 0, size);
}

static void cpu_zero(const dt_view *dst) {
    size_t size = dt_dtype_size(dst->dtype);
    if (dt_view_contiguous(dst))
        memset(dst->data, 0, (size_t)dt_view_numel(dst) * size);
    else {
        rows r;
        rows_find(dst, NULL, 0, &r);
        each_row(dst, NULL, 0, &r, zero_row, &size);
    }
}

/* ---- reduction over sources -------------------------------------------------------------------------------------------------------------
 * Neighbours are added in pairs, pairs of pairs, …: the order that plan/backend.h fixes. A stack of blocks holds sums over 2^a > 2^b > … leaves. */
typedef struct reduction {
    const dt_view *src;
    const int *leaves;
    int n;
    dt_reduce op;
    dt_dtype narrow; /* operands are of this type or of its accumulator's */
    bool wide_out;
    rows rows;
} reduction;
enum { BLOCK = 256, DEPTH = 24 };

/* acc op= x over a block, for one accumulator type; x(i) reads element i of the source. */
#define REDUCE_BLOCK(acc, x)                                                            \
    do {                                                                                \
        if (first)                                                                      \
            for (int64_t i = 0; i < m; i++) acc[i] = x;                                 \
        else if (r->op == DT_MAX)                                                       \
            for (int64_t i = 0; i < m; i++) acc[i] = x > acc[i] || x != x ? x : acc[i]; \
        else if (r->op == DT_MIN)                                                       \
            for (int64_t i = 0; i < m; i++) acc[i] = x < acc[i] || x != x ? x : acc[i]; \
        else                                                                            \
            for (int64_t i = 0; i < m; i++) acc[i] += x;                                \
    } while (0)

#define DEFINE_ROW(name, ctype, acctype, LOAD, STORE)                                                                   \
    __attribute__((optimize("O3"))) static void name(void *ctx, int64_t n, char *dst, int64_t ds, const int64_t *off) { \
        const reduction *r = ctx;                                                                                       \
        acctype sum[DEPTH][BLOCK];                                                                                      \
        int size[DEPTH], all = 0;                                                                                       \
        for (int64_t at = 0; at < n; at += BLOCK) {                                                                     \
            int64_t m = n - at < BLOCK ? n - at : BLOCK;                                                                \
            int top = -1;                                                                                               \
            all = 0;                                                                                                    \
            for (int k = 0; k < r->n; k++) {                                                                            \
                const dt_view *v = &r->src[k];                                                                          \
                int64_t st = row_stride(v, &r->rows);                                                                   \
                int leaves = r->leaves ? r->leaves[k] : 1;                                                              \
                bool first = top < 0 || size[top] != leaves;                                                            \
                if (first) size[++top] = leaves;                                                                        \
                all += leaves;                                                                                          \
                acctype *acc = sum[top];                                                                                \
                if (v->dtype != r->narrow) {                                                                            \
                    const acctype *p = (const acctype *)v->data + off[k] + at * st;                                     \
                    REDUCE_BLOCK(acc, p[i * st]);                                                                       \
                } else {                                                                                                \
                    const ctype *p = (const ctype *)v->data + off[k] + at * st;                                         \
                    if (st == 1)                                                                                        \
                        REDUCE_BLOCK(acc, (acctype)LOAD(p[i]));                                                         \
                    else                                                                                                \
                        REDUCE_BLOCK(acc, (acctype)LOAD(p[i * st]));                                                    \
                }                                                                                                       \
                if (!first) size[top] *= 2;                                                                             \
                for (first = false; top > 0 && (size[top - 1] == size[top] || k + 1 == r->n); top--) {                  \
                    REDUCE_BLOCK(sum[top - 1], sum[top][i]);                                                            \
                    size[top - 1] += size[top];                                                                         \
                }                                                                                                       \
            }                                                                                                           \
            acctype *acc = sum[0];                                                                                      \
            if (r->op == DT_AVG)                                                                                        \
                for (int64_t i = 0; i < m; i++) acc[i] /= (acctype)all;                                                 \
            if (r->wide_out) {                                                                                          \
                acctype *o = (acctype *)dst + at * ds;                                                                  \
                for (int64_t i = 0; i < m; i++) o[i * ds] = acc[i];                                                     \
                continue;                                                                                               \
            }                                                                                                           \
            ctype *o = (ctype *)dst + at * ds;                                                                          \
            for (int64_t i = 0; i < m; i++) o[i * ds] = (ctype)STORE(acc[i]);                                           \
        }                                                                                                               \
    }
DEFINE_ROW(row_f32, float, float, , )
DEFINE_ROW(row_f64, double, double, , )
DEFINE_ROW(row_bf16, uint16_t, float, dt_bf16_to_f32, dt_bf16_from_f32)
DEFINE_ROW(row_f16, uint16_t, float, dt_f16_to_f32, dt_f16_from_f32)
DEFINE_ROW(row_i64, int64_t, int64_t, , )
DEFINE_ROW(row_i32, int32_t, int64_t, , )
DEFINE_ROW(row_i16, int16_t, int64_t, , )
DEFINE_ROW(row_i8, int8_t, int64_t, , )
DEFINE_ROW(row_u8, uint8_t, int64_t, , )
DEFINE_ROW(row_bool, uint8_t, int64_t, , !!)

static void cpu_reduce(const dt_view *dst, const dt_view *src, const int *leaves, int n, dt_reduce op) {
    static const row_fn by_dtype[DT_DTYPE_COUNT] = {
        [DT_float32] = row_f32, [DT_float64] = row_f64, [DT_bfloat16] = row_bf16, [DT_float16] = row_f16, [DT_int64] = row_i64,
        [DT_int32] = row_i32,   [DT_int16] = row_i16,   [DT_int8] = row_i8,       [DT_uint8] = row_u8,    [DT_bool] = row_bool,
    };
    dt_dtype narrow = dst->dtype;
    for (int k = 0; k < n; k++)
        if (dt_dtype_size(src[k].dtype) < dt_dtype_size(narrow)) narrow = src[k].dtype;
    reduction r = {src, leaves, n, op, narrow, narrow != dst->dtype, {0}};
    rows_find(dst, src, n, &r.rows);
    each_row(dst, src, n, &r.rows, by_dtype[narrow], &r);
}

DT_CPU_KERNEL(sum);
DT_CPU_KERNEL(mean);
DT_CPU_KERNEL(amax);
DT_CPU_KERNEL(amin);
bool dt_cpu_can_fuse(int code, dt_dtype tile) { return dt_cpu_pw_find(code, tile) != NULL; }
int dt_cpu_reduction(dt_kernel_fn fn) {
    return fn == dt_cpu_sum ? DT_FUSED_SUM : fn == dt_cpu_mean ? DT_FUSED_MEAN : fn == dt_cpu_amax ? DT_FUSED_MAX : fn == dt_cpu_amin ? DT_FUSED_MIN : 0;
}

const dt_backend dt_backend_cpu = {
    .name = "cpu",
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = dt_cpu_copy_view,
    .zero = cpu_zero,
    .reduce = cpu_reduce,
    DT_CPU_FUSING,
};
