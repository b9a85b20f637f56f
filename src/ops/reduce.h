/* Attributes of reductions, and how a reduction walks its input: shared by the op literals and the CPU kernels. Pure.
 *
 * A plan splits the input's dimensions into kept ones (in the output's order) and reduced ones (largest stride first), merging neighbours
 * that are one run of memory. A large reduction with few outputs is cut along its longest reduced dimension into `segs` segments, whose
 * number depends on sizes only; their results lie in scratch, segs x n_out words of 8 bytes, and are combined in order. */
#ifndef DT_OPS_REDUCE_H
#define DT_OPS_REDUCE_H

#include "ops/op.h"

typedef struct dt_reduce_attr { /* sum, mean, amax, any … */
    dt_ints dim;
    bool keepdim;
    int32_t dtype;
} dt_reduce_attr;

typedef struct dt_dim_attr { /* one dimension: prod.dim, max.dim, argmax, softmax, cumsum, sort … */
    int64_t dim;             /* DT_NO_INT: all, where allowed */
    bool keepdim;
    int32_t dtype;
} dt_dim_attr;

typedef struct dt_select_attr { /* value_selecting_backward: `size` elements along dim in the result */
    int64_t dim, size;
} dt_select_attr;

typedef struct dt_reduce_plan {
    int n_keep, n_red, split;
    int64_t keep[DT_MAX_DIM], keep_stride[DT_MAX_DIM];
    int64_t red[DT_MAX_DIM], red_stride[DT_MAX_DIM];
    int64_t outs, reds; /* elements of the output; elements reduced into each */
    bool columns;       /* the last kept dimension runs along memory: accumulate rows of outputs */
    int64_t segs, seg;  /* segments of `seg` along red[split] */
} dt_reduce_plan;

/* dims already wrapped; n <= 0 = all. */
void dt_reduce_plan_make(const dt_view *in, const dt_ints *dims, dt_reduce_plan *p);
/* `.scratch` of ops with dt_reduce_attr. */
size_t dt_reduce_scratch(const dt_kctx *c);
/* Number of elements reduced into each output, over the global shape. */
int64_t dt_reduce_count(const dt_geom *place, int ndim, const dt_ints *dims);
static inline bool dt_ints_has(const dt_ints *dims, int d) {
    if (dims->n <= 0) return true;
    for (int i = 0; i < dims->n; i++)
        if (dims->v[i] == d) return true;
    return false;
}

/* A contiguous tensor seen along one dimension: (outer, n, inner). */
typedef struct dt_rows {
    int64_t outer, n, inner;
} dt_rows;
static inline dt_rows dt_rows_of(const dt_view *v, int64_t dim) {
    dt_rows r = {1, 1, 1};
    for (int i = 0; i < v->ndim; i++) {
        if (i < dim) r.outer *= v->shape[i];
        if (i == dim) r.n = v->shape[i];
        if (i > dim) r.inner *= v->shape[i];
    }
    return r;
}

#endif
