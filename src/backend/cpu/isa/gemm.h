/* GEMM on one thread, for kernels of this folder: our own micro-kernels, or OpenBLAS where it is loaded and wins (large and thin shapes).
 *
 * C = alpha A B + beta C with A (m, k), B (k, n) of any strides (ars between rows, acs between columns; 0 is fine) and C (m, n) with rows ldc
 * apart. C is not read when beta is 0. Sizes may be 0. `beyond` columns of B follow, which this thread will likely need next. The *_mixed form takes 16-bit floats, converts blockwise, computes in f32 and rounds once. */
#ifndef DT_BACKEND_CPU_ISA_GEMM_H
#define DT_BACKEND_CPU_ISA_GEMM_H

#include "backend/cpu/isa/isa.h"

void DT_ISA_FN(gemm_f32)(int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t ars, int64_t acs, const float *b, int64_t brs, int64_t bcs,
                         float beta, float *c, int64_t ldc, int64_t beyond);
void DT_ISA_FN(gemm_f64)(int64_t m, int64_t n, int64_t k, double alpha, const double *a, int64_t ars, int64_t acs, const double *b, int64_t brs, int64_t bcs,
                         double beta, double *c, int64_t ldc, int64_t beyond);

/* A product to be split among a team: C[batch][m][n] = sum over `terms` of A_t B_t (+ bias[n]). All of one float dtype; C is contiguous. */
enum { DT_GEMM_BATCH = DT_MAX_DIM };
typedef struct dt_gemm {
    dt_dtype dtype;
    int64_t m, n, k;
    const char *a, *b;
    int64_t ars, acs, brs, bcs; /* in elements */
    int nb;                     /* batch dimensions; a stride of 0 broadcasts */
    int64_t batch[DT_GEMM_BATCH], abs[DT_GEMM_BATCH], bbs[DT_GEMM_BATCH];
    int nt; /* summed dimensions beyond k, walked in order */
    int64_t terms[DT_GEMM_BATCH], ats[DT_GEMM_BATCH], bts[DT_GEMM_BATCH];
    char *c;
    int64_t ldc;      /* elements between rows of C within one batch item; 0: n */
    const char *bias; /* (n,) or NULL */
    int64_t bias_stride;
} dt_gemm;
/* Folds what can be folded, splits by the problem's size and runs. g is changed. */
void DT_ISA_FN(gemm_run)(dt_gemm *g, dt_team *team);
/* On this thread: rows [m0, m0 + m) and columns [n0, n0 + n) of a product without batch. For kernels that split many products at once. */
void DT_ISA_FN(gemm_tile)(const dt_gemm *g, int64_t m0, int64_t m, int64_t n0, int64_t n);

/* Parts of gemm_run (gemm_half.c): a tile of 16-bit floats; thin products, few rows of A by a B that lies along k. */
enum { DT_GEMM_THIN = 16 };
void DT_ISA_FN(gemm_half)(const dt_gemm *g, const void *a, const void *b, void *c, int64_t ldc, int64_t m, int64_t n, int64_t n0);
bool DT_ISA_FN(gemm_is_thin)(const dt_gemm *g);
void DT_ISA_FN(gemm_thin)(const dt_gemm *g, const void *a, const void *b, void *c, int64_t ldc, int64_t m, int64_t n, int64_t n0);

/* Where item i of n dimensions lies, and how many items there are. */
static inline int64_t dt_gemm_walk(int n, const int64_t *size, const int64_t *stride, int64_t i) {
    int64_t o = 0;
    for (int d = n - 1; d >= 0; d--) {
        o += i % size[d] * stride[d];
        i /= size[d];
    }
    return o;
}
static inline int64_t dt_gemm_count(int n, const int64_t *size) {
    int64_t c = 1;
    for (int d = 0; d < n; d++) c *= size[d];
    return c;
}

/* n elements of a float dtype, stride apart, to floats; and floats to contiguous elements. */
void DT_ISA_FN(load_f32)(dt_dtype t, const void *src, int64_t stride, int64_t n, float *dst);
void DT_ISA_FN(store_f32)(dt_dtype t, const float *src, int64_t n, void *dst);

#endif
