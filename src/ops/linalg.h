/* What the factorisation ops and their kernels share. Matrices are the last two dimensions, everything before is a batch. */
#ifndef DT_OPS_LINALG_H
#define DT_OPS_LINALG_H

#include "ops/op.h"

typedef struct dt_linalg_attr {
    bool upper, left, unitriangular; /* triangular systems; upper also for cholesky and eigh */
    bool full, check;                /* svd, qr: complete bases; check: an info other than 0 is an error */
    bool hermitian;                  /* pinv: the lower triangle says all */
    double atol, rtol;               /* pinv */
} dt_linalg_attr;

/* Bytes the kernels want for one matrix of the batch: a copy or two of a (rows x cols) matrix, vectors and pivots. */
static inline size_t dt_linalg_scratch(int64_t rows, int64_t cols, size_t size) {
    size_t m = (size_t)(rows > cols ? rows : cols) + 1;
    return (3 * m * m * size + 4 * m * size + m * 4 + 63) / 64 * 64;
}

#endif
