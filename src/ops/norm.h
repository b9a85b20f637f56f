/* Attributes and scratch of the normalisations, shared by their literals and the CPU kernels. */
#ifndef DT_OPS_NORM_H
#define DT_OPS_NORM_H

#include "ops/op.h"

typedef struct dt_norm_attr { /* layer_norm, rms_norm and their gradients: the last normalized_shape.n dimensions */
    dt_ints normalized_shape;
    double eps;
} dt_norm_attr;

enum { DT_NORM_BLOCKS = 16 };
/* Rows of a (rows, n) view and how they are cut for the parameter gradients: by the problem's size only. */
static inline int64_t dt_norm_rows(const dt_view *x, int n_dims, int64_t *n) {
    int64_t rows = 1;
    *n = 1;
    for (int i = 0; i < x->ndim; i++) *(i < x->ndim - n_dims ? &rows : n) *= x->shape[i];
    return rows;
}
static inline int64_t dt_norm_block(int64_t rows) {
    int64_t b = (rows + DT_NORM_BLOCKS - 1) / DT_NORM_BLOCKS;
    return b < 8 ? 8 : b;
}
size_t dt_norm_scratch(const dt_kctx *c);

#endif
