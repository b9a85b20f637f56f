/* Attributes that the matrix product ops and their kernels share. */
#ifndef DT_OPS_MATMUL_H
#define DT_OPS_MATMUL_H

#include <stdbool.h>

typedef struct dt_gemm_attr {
    bool ta, tb; /* the last two dimensions of a, of b, are exchanged */
} dt_gemm_attr;

#endif
