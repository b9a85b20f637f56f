/* What the operators of ops/rnn.c and their kernels (backend/cpu/isa/rnn.c) agree on. */
#ifndef DT_OPS_RNN_H
#define DT_OPS_RNN_H

#include "ops/op.h"

/* Gates are stacked in PyTorch's order: LSTM i, f, g, o; GRU r, z, n. */
typedef enum dt_rnn_mode { DT_RNN_TANH, DT_RNN_RELU, DT_RNN_LSTM, DT_RNN_GRU, DT_RNN_MODES } dt_rnn_mode;

typedef struct dt_rnn_attr {
    int64_t mode; /* dt_rnn_mode */
    bool reverse; /* from the last step to the first */
    bool save;    /* keep what backward needs */
} dt_rnn_attr;

static inline int dt_rnn_gates(int64_t mode) { return mode == DT_RNN_LSTM ? 4 : mode == DT_RNN_GRU ? 3 : 1; }
/* A row of `reserve`, in multiples of hidden: LSTM i f g o c; GRU r z n and the n gate's share of the state; a plain RNN's output says all. */
static inline int dt_rnn_kept(int64_t mode) { return mode == DT_RNN_LSTM ? 5 : mode == DT_RNN_GRU ? 4 : 0; }

/* inputs of rnn_layer */
enum { DT_RNN_X, DT_RNN_H0, DT_RNN_C0, DT_RNN_W, DT_RNN_B, DT_RNN_WR, DT_RNN_SIZES, DT_RNN_IN };
/* inputs of rnn_layer_backward */
enum { DT_RNN_GY, DT_RNN_GH, DT_RNN_GC, DT_RNN_RESERVE, DT_RNN_Y, DT_RNN_BH0, DT_RNN_BC0, DT_RNN_BW, DT_RNN_BWR, DT_RNN_BSIZES, DT_RNN_BACK_IN };
/* outputs of rnn_layer_backward; those of a projection are there only with one, GATES_H only for a GRU */
enum { DT_RNN_GATES, DT_RNN_DH, DT_RNN_DC, DT_RNN_BEFORE, DT_RNN_GATES_H, DT_RNN_DY, DT_RNN_INNER, DT_RNN_BACK_OUT };

/* ---- scratch ---- */
enum { DT_RNN_UNITS = 16, DT_RNN_OUT = 32, DT_RNN_ROWS = 48 }; /* units and output columns a tile, rows a task */

/* Units of a forward tile: with all their gates at most 64 columns. */
static inline int64_t dt_rnn_units(int64_t mode) { return dt_rnn_gates(mode) == 1 ? 64 : DT_RNN_UNITS; }
static inline int64_t dt_rnn_tiles(int64_t n, int64_t of) { return (n + of - 1) / of; }

typedef struct dt_rnn_dims {
    int64_t mode, G, steps, N, H, P, R; /* gates, steps, batch, hidden, outputs, rows in all */
    bool projected, direct;             /* direct: too few rows for weights to be packed first */
} dt_rnn_dims;

/* Where the parts of the scratch begin, in bytes; all is the total. */
typedef struct dt_rnn_parts {
    size_t off, pack, pack_r, inner, product, all;
} dt_rnn_parts;

static inline size_t dt_rnn_part(size_t *at, int64_t n, size_t size) {
    size_t from = *at;
    *at += ((size_t)n * size + 63) / 64 * 64;
    return from;
}

/* backward: the weights are packed by columns of the output, else by units. */
static inline dt_rnn_parts dt_rnn_layout(const dt_rnn_dims *d, bool backward, size_t size) {
    dt_rnn_parts p = {0};
    int64_t units = dt_rnn_units(d->mode);
    p.off = dt_rnn_part(&p.all, d->steps + 1, 8);
    if (!d->direct) {
        p.pack =
            dt_rnn_part(&p.all, backward ? dt_rnn_tiles(d->P, DT_RNN_OUT) * DT_RNN_OUT * d->G * d->H : dt_rnn_tiles(d->H, units) * units * d->G * d->P, size);
        if (d->projected)
            p.pack_r =
                dt_rnn_part(&p.all, backward ? dt_rnn_tiles(d->H, DT_RNN_OUT) * DT_RNN_OUT * d->P : dt_rnn_tiles(d->P, DT_RNN_OUT) * DT_RNN_OUT * d->H, size);
    }
    if (d->projected) p.inner = dt_rnn_part(&p.all, d->N * d->H, size);
    if (d->direct) p.product = dt_rnn_part(&p.all, d->N * (backward ? d->P : d->G * d->H), size);
    return p;
}

/* Of a call: w, h0, the rows' operand, batch_sizes. */
static inline dt_rnn_dims dt_rnn_dims_of(int64_t mode, const dt_view *rows, const dt_view *h0, const dt_view *w, const dt_view *wr, const dt_view *sizes) {
    dt_rnn_dims d = {.mode = mode, .G = dt_rnn_gates(mode), .N = h0->shape[0], .P = h0->shape[1]};
    d.H = w->shape[0] / d.G;
    d.steps = dt_view_given(sizes) ? sizes->shape[0] : rows->shape[0];
    d.R = dt_view_given(sizes) ? rows->shape[0] : d.steps * d.N;
    d.projected = dt_view_given(wr);
    d.direct = d.R < 48;
    return d;
}

#endif
