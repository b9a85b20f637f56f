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

/* Winograd's form of a convolution of C source channels to O result channels (backend/cpu/isa/wino.c): sizes, and how its scratch lies. */
typedef struct dt_wino {
    int64_t N, C, O, H, W, OH, OW, TH, TW; /* images, channels, pixels of source and result, tiles of an image */
    int64_t rows, tiles;                   /* of a block */
    int64_t ldc, ldm, ve, ue, me;          /* floats between tiles (or channels) and between elements of V, U (or D), M */
} dt_wino;
enum { DT_WINO_WIDTH = 1024, DT_WINO_BYTES = 8 << 20 };

static inline int64_t dt_wino_odd_lines(int64_t floats) { /* so that the 16 elements fall into different sets of a cache */
    int64_t lines = (floats + 15) / 16;
    return (lines | 1) * 16;
}
/* 3 x 3 at unit steps in two dimensions, wide enough to pay. */
static inline bool dt_wino_fits(const dt_conv_geom *g, dt_dtype dtype) {
    bool form = dtype == DT_float32 && g->G == 1 && g->k[0] == 1 && g->in[0] == 1 && g->out[0] == 1 && g->pad[0] == 0;
    for (int d = 1; d < 3; d++) form = form && g->k[d] == 3 && g->stride[d] == 1 && g->dil[d] == 1;
    int64_t tiles = (g->out[1] + 1) / 2 * ((g->out[2] + 1) / 2);
    return form && g->C >= 24 && g->O >= 24 && g->in[2] <= DT_WINO_WIDTH && g->out[2] <= DT_WINO_WIDTH && g->N * tiles >= 64 &&
           16 * tiles * 4 <= 9 * g->out[1] * g->out[2] * 3;
}
/* conv; conv_input if turned (the source is y); conv_weight if so. */
static inline dt_wino dt_wino_plan(const dt_conv_geom *g, bool turned, bool weight) {
    dt_wino p = {.N = g->N, .C = g->C, .O = g->O, .H = g->in[1], .W = g->in[2], .OH = g->out[1], .OW = g->out[2]};
    if (turned) p = (dt_wino){.N = g->N, .C = g->O, .O = g->C, .H = g->out[1], .W = g->out[2], .OH = g->in[1], .OW = g->in[2]};
    p.TH = (p.OH + 1) / 2;
    p.TW = (p.OW + 1) / 2;
    p.ldc = (p.C + 15) / 16 * 16 + 16;
    p.ldm = (p.O + 15) / 16 * 16 + 16;
    int64_t O = (p.O + 63) / 64 * 64, one = 64 * p.TW * (p.ldc + (weight ? O : p.ldm));
    p.rows = (weight ? 2 : 1) * DT_WINO_BYTES / one;
    if (p.rows < 1) p.rows = 1;
    if (p.rows > p.N * p.TH) p.rows = p.N * p.TH;
    int64_t blocks = (p.N * p.TH + p.rows - 1) / p.rows;
    p.rows = (p.N * p.TH + blocks - 1) / blocks;
    p.tiles = p.rows * p.TW;
    p.ve = dt_wino_odd_lines(p.tiles * p.ldc);
    p.ue = dt_wino_odd_lines(O * (weight ? p.tiles : p.C));
    p.me = dt_wino_odd_lines(p.ldm * (weight ? p.C : p.tiles));
    return p;
}
static inline size_t dt_wino_scratch(const dt_wino *p) { return (size_t)(16 * (p->ve + p->ue + p->me)) * sizeof(float); }

#endif
