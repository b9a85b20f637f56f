/* What the resampling ops, patches (im2col) and their kernels share. */
#ifndef DT_OPS_RESAMPLE_H
#define DT_OPS_RESAMPLE_H

#include "ops/op.h"

/* resample: each spatial dimension of (N, C, size…) to size.v, by taps per output index. */
typedef struct dt_resample_attr {
    dt_ints size;     /* resample: of the result; its gradient: of the input */
    const char *mode; /* nearest, nearest-exact, linear, cubic */
    bool align_corners;
    double scale0, scale1, scale2; /* factors by which sizes grow, or NaN: sizes alone count */
} dt_resample_attr;
enum { DT_RESAMPLE_TAPS = 4 };
typedef struct dt_tap {
    int64_t at[DT_RESAMPLE_TAPS];
    double weight[DT_RESAMPLE_TAPS];
} dt_tap;
/* Tables of all output indices of three dimensions, then (16-bit gradients) sums in f32. */
static inline size_t dt_resample_tables(const int64_t *shape, int ndim) {
    size_t n = 3;
    for (int d = 2; d < ndim; d++) n += (size_t)shape[d];
    return (n * sizeof(dt_tap) + 63) / 64 * 64;
}

/* im2col: (N, C, H, W) <-> (N, C * kh * kw, L) */
typedef struct dt_patch_attr {
    dt_ints size; /* col2im: H, W */
    dt_ints kernel, dilation, padding, stride;
} dt_patch_attr;

#endif
