/* What the pooling ops and their kernels share: windows over one to three trailing dimensions of (N, C, size…). */
#ifndef DT_OPS_POOL_H
#define DT_OPS_POOL_H

#include "ops/op.h"

typedef struct dt_pool_attr {
    dt_ints size;                              /* adaptive: of the result; gradients: of the input; else unused (n = 0) */
    dt_ints kernel, stride, padding, dilation; /* kernel.n = 0: adaptive windows */
    bool ceil_mode, count_include_pad;
    int64_t divisor; /* divisor_override, or 0 */
} dt_pool_attr;

typedef struct dt_pool_geom {
    int64_t planes, in[3], out[3], k[3], s[3], p[3], d[3];
    bool adaptive;
} dt_pool_geom;

/* `whole` has the input's sizes, `pooled` the result's. Missing dimensions are leading ones of size 1. */
static inline dt_pool_geom dt_pool_geometry(const dt_pool_attr *a, const dt_view *whole, const dt_view *pooled) {
    int nd = whole->ndim - 2;
    dt_pool_geom g = {.planes = whole->shape[0] * whole->shape[1], .adaptive = a->kernel.n == 0};
    for (int i = 0; i < 3; i++) {
        int d = i - (3 - nd);
        g.in[i] = d < 0 ? 1 : whole->shape[2 + d];
        g.out[i] = d < 0 ? 1 : pooled->shape[2 + d];
        g.k[i] = d < 0 || g.adaptive ? 1 : a->kernel.v[d];
        g.s[i] = d < 0 || g.adaptive ? 1 : a->stride.v[d];
        g.p[i] = d < 0 || g.adaptive ? 0 : a->padding.v[d];
        g.d[i] = d < 0 || g.adaptive || a->dilation.n == 0 ? 1 : a->dilation.v[d];
    }
    return g;
}

typedef struct dt_pool_window {
    int64_t lo, hi, step; /* inside the input */
    int64_t padded;       /* elements with padding, as far as the padded input goes */
} dt_pool_window;

static inline dt_pool_window dt_pool_range(const dt_pool_geom *g, int d, int64_t i) {
    if (g->adaptive) {
        int64_t lo = i * g->in[d] / g->out[d], hi = ((i + 1) * g->in[d] + g->out[d] - 1) / g->out[d];
        return (dt_pool_window){lo, hi, 1, hi - lo};
    }
    int64_t lo = i * g->s[d] - g->p[d], hi = lo + (g->k[d] - 1) * g->d[d] + 1, most = g->in[d] + g->p[d];
    dt_pool_window w = {.step = g->d[d], .padded = (hi < most ? hi : most) - lo};
    w.lo = lo < 0 ? lo + (-lo + g->d[d] - 1) / g->d[d] * g->d[d] : lo;
    w.hi = hi < g->in[d] ? hi : g->in[d];
    return w;
}

#endif
