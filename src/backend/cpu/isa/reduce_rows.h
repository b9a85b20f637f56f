/* Reductions of contiguous rows for the fusion interpreter: the bits of the reduction kernels of reduce.c. */
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

#endif
