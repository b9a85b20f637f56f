/* What the convolution ops and their kernels share.
 *
 * Three bilinear maps over one geometry: x (N, C, in…), w (O, C / groups, k…), y (N, O, out…), one to three spatial dimensions:
 *   conv         x, w -> y      y[n,o,p] = sum over c, t of w[o,c,t] x[n,c, p * stride - padding + t * dilation]
 *   conv_input   y, w -> x      its transpose in x: the gradient of the input, and conv_transpose
 *   conv_weight  x, y -> w      the gradient of the weight
 * Each one's gradients are the other two. */
#ifndef DT_OPS_CONV_H
#define DT_OPS_CONV_H

#include "ops/op.h"

typedef struct dt_conv_attr {
    dt_ints size;                      /* spatial sizes of the result: conv_input, conv_weight; unused by conv */
    dt_ints stride, padding, dilation; /* padding: before each dimension, then (if twice as long) behind each */
    int64_t groups;
} dt_conv_attr;

/* Local sizes; missing spatial dimensions are leading ones of size 1. groups follows from the local channel counts. */
typedef struct dt_conv_geom {
    int64_t N, C, O, G, Cg, Og;
    int64_t in[3], out[3], k[3], stride[3], pad[3], dil[3];
} dt_conv_geom;

static inline dt_conv_geom dt_conv_geometry(const dt_conv_attr *a, const dt_view *x, const dt_view *w, const dt_view *y) {
    dt_conv_geom g = {.N = x->shape[0], .C = x->shape[1], .O = y->shape[1], .Cg = w->shape[1]};
    int nd = x->ndim - 2;
    for (int i = 0; i < 3; i++) {
        int d = i - (3 - nd);
        g.in[i] = d < 0 ? 1 : x->shape[2 + d];
        g.out[i] = d < 0 ? 1 : y->shape[2 + d];
        g.k[i] = d < 0 ? 1 : w->shape[2 + d];
        g.stride[i] = d < 0 ? 1 : a->stride.v[d];
        g.pad[i] = d < 0 ? 0 : a->padding.v[d];
        g.dil[i] = d < 0 ? 1 : a->dilation.v[d];
    }
    g.G = g.Cg > 0 ? g.C / g.Cg : 1;
    if (g.G < 1) g.G = 1;
    g.Og = g.O / g.G;
    return g;
}

/* Into how many chunks of pixels conv_weight cuts its sum, so that threads have work; by the problem's size alone. */
enum { DT_CONV_ROWS = 192, DT_CONV_COLS = 192, DT_CONV_K = 192 };
static inline int64_t dt_conv_chunks(const dt_conv_geom *g) {
    int64_t taps = g->Cg * g->k[0] * g->k[1] * g->k[2], pixels = g->N * g->out[0] * g->out[1] * g->out[2];
    if (g->Cg == 1 && g->Og == 1) return 1;
    int64_t tiles = g->G * ((taps + DT_CONV_ROWS - 1) / DT_CONV_ROWS) * ((g->Og + DT_CONV_COLS - 1) / DT_CONV_COLS);
    int64_t want = tiles ? (16 + tiles - 1) / tiles : 1, most = pixels / (8 * DT_CONV_K);
    return want < most ? want : most > 1 ? most : 1;
}

#endif
