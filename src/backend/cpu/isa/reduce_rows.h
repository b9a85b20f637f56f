/* What the fusion interpreter asks of reduce.c and random.c: the bits of their kernels, on blocks. */
#ifndef DT_BACKEND_CPU_ISA_REDUCE_ROWS_H
#define DT_BACKEND_CPU_ISA_REDUCE_ROWS_H

#include "backend/cpu/isa/isa.h"
#include "plan/fused.h"

typedef struct dt_reduce_rows {
    int kind;         /* DT_FUSED_SUM … */
    dt_dtype from;    /* of the tensor that is reduced; 16-bit floats lie in f32 tiles */
    dt_dtype to;      /* f32 or f64 */
    int64_t n, count; /* elements of a row; a mean divides by count */
} dt_reduce_rows;
/* x (rows, n) f32 or f64 -> out (rows,) */
void DT_ISA_FN(reduce_rows)(const dt_reduce_rows *r, int64_t rows, const void *x, void *out);

/* Sums over rows, in the order of the kernels: f32 in groups of 32 rows, then double. part (n,) of x's dtype and acc (n,) start as zeros; `at`: rows of
 * this segment before these; x (rows, n) f32 or f64. */
void DT_ISA_FN(columns_add)(dt_dtype t, int64_t at, int64_t rows, int64_t n, const void *x, void *part, double *acc);
/* What is still in part. */
void DT_ISA_FN(columns_end)(dt_dtype t, int64_t n, const void *part, double *acc);
/* acc (segs, n), joined in order, divided by count unless that is 0, to out (n,) of dtype t. */
void DT_ISA_FN(columns_put)(int64_t segs, int64_t n, const double *acc, int64_t count, dt_dtype t, void *out);

/* Dropout (attr: dt_random_floats) of n elements of dtype `tile` (f32 or f64) from global index g on; out may be x. */
void DT_ISA_FN(dropout_block)(dt_dtype tile, const void *attr, uint64_t seed, uint64_t offset, int64_t g, int64_t n, const void *x, void *out);

#endif
