/* How elementwise kernels walk operands of any strides: blocks of contiguous elements of the tile dtype.
 *
 * An input is one of
 *   LINEAR  contiguous over the whole (collapsed) shape: a block is read in place
 *   NUMBER  one element: a tile is filled once a task
 *   CYCLE   a short row repeated over everything: a tile holds enough repetitions, filled once a task
 *   GATHER  anything else: each block is copied into a tile run by run, unless it lies within one row of stride 1
 * 16-bit floats are widened a tile at a time. Included by pointwise.c and fused.c, once per instruction set. */
#ifndef DT_BACKEND_CPU_ISA_WALK_H
#define DT_BACKEND_CPU_ISA_WALK_H

#include "backend/cpu/isa/pw.h"

enum { TILE = DT_PW_TILE, TASK = 32 * DT_PW_TILE, LONG_ROW = 128 };
enum { ROOM = TILE + LONG_ROW }; /* elements of a tile: a CYCLE may start within its period */
typedef enum mode { LINEAR, NUMBER, CYCLE, GATHER } mode;

typedef struct operand {
    const char *data;
    size_t size;
    mode mode;
    dt_pw_fn widen; /* 16-bit to f32, or NULL */
    int64_t stride[DT_MAX_DIM];
} operand;

typedef struct walk {
    int ndim;
    bool rows; /* keep blocks within rows */
    int64_t n, shape[DT_MAX_DIM];
} walk;

dt_pw_fn DT_ISA_FN(pw_cast)(dt_dtype from, dt_dtype to);

/* Merge dimensions that every input walks as one; drop those of size 1. */
static void collapse(walk *w, operand *in, int n_in, const dt_view *view, const dt_view *o) {
    int nd = 0;
    for (int d = 0; d < o->ndim; d++) {
        if (o->shape[d] == 1) continue;
        bool merge = nd > 0;
        for (int i = 0; i < n_in; i++) {
            const dt_view *v = &view[i];
            int k = d - (o->ndim - v->ndim);
            int64_t s = k < 0 || v->shape[k] == 1 ? 0 : v->stride[k];
            in[i].stride[nd] = s;
            merge &= nd > 0 && in[i].stride[nd - 1] == s * o->shape[d];
        }
        if (merge) {
            for (int i = 0; i < n_in; i++) in[i].stride[nd - 1] = in[i].stride[nd];
            w->shape[nd - 1] *= o->shape[d];
        } else
            w->shape[nd++] = o->shape[d];
    }
    w->ndim = nd;
    w->n = dt_view_numel(o);
}

static bool linear(const walk *w, const operand *x) {
    int64_t s = 1;
    for (int d = w->ndim - 1; d >= 0; d--) {
        if (x->stride[d] != s) return false;
        s *= w->shape[d];
    }
    return true;
}

/* `raw`: blocks of 16-bit floats are handed on as they are. */
static void classify(walk *w, operand *x, const dt_view *v, bool raw) {
    dt_dtype tile = raw ? v->dtype : dt_pw_tile_dtype(v->dtype);
    x->data = v->data;
    x->size = dt_dtype_size(v->dtype);
    x->widen = tile != v->dtype ? DT_ISA_FN(pw_cast)(v->dtype, tile) : NULL;
    bool zero = true;
    for (int d = 0; d < w->ndim; d++) zero &= x->stride[d] == 0;
    x->mode = zero ? NUMBER : linear(w, x) ? LINEAR : GATHER;
    bool cycle = w->ndim == 2 && x->stride[0] == 0 && x->stride[1] == 1 && w->shape[1] < LONG_ROW;
    if (x->mode == GATHER && cycle) x->mode = CYCLE;
    if (w->n == 1 && !x->widen) x->mode = LINEAR;
    if (x->mode == GATHER && w->shape[w->ndim - 1] >= LONG_ROW) w->rows = true;
}

/* Typed loops, by element size. */
#define MOVERS(T)                                                                                       \
    static inline void copy_##T(T *o, const T *x, int64_t n, int64_t stride) {                          \
        if (stride == 0) {                                                                              \
            T v = *x;                                                                                   \
            for (int64_t i = 0; i < n; i++) o[i] = v;                                                   \
        } else if (stride == 1)                                                                         \
            for (int64_t i = 0; i < n; i++) o[i] = x[i];                                                \
        else                                                                                            \
            for (int64_t i = 0; i < n; i++) o[i] = x[i * stride];                                       \
    }                                                                                                   \
    /* m elements from index idx on, row by row; x is at idx */                                         \
    static void walk_##T(const walk *j, const operand *op, int64_t *idx, const T *x, int64_t m, T *o) { \
        int last = j->ndim - 1;                                                                         \
        int64_t inner = j->shape[last], step = op->stride[last];                                        \
        for (;;) {                                                                                      \
            int64_t run = inner - idx[last] < m ? inner - idx[last] : m;                                \
            copy_##T(o, x, run, step);                                                                  \
            if (!(m -= run)) return;                                                                    \
            o += run;                                                                                   \
            x -= idx[last] * step;                                                                      \
            idx[last] = 0;                                                                              \
            for (int d = last - 1; d >= 0; d--) {                                                       \
                x += op->stride[d];                                                                     \
                if (++idx[d] < j->shape[d]) break;                                                      \
                x -= idx[d] * op->stride[d];                                                            \
                idx[d] = 0;                                                                             \
            }                                                                                           \
        }                                                                                               \
    }
MOVERS(uint8_t)
MOVERS(uint16_t)
MOVERS(uint32_t)
MOVERS(uint64_t)

static void repeat(char *tile, const operand *x, int64_t n) {
    switch (x->size) {
    case 1: copy_uint8_t((uint8_t *)tile, (const uint8_t *)x->data, n, 0); return;
    case 2: copy_uint16_t((uint16_t *)tile, (const uint16_t *)x->data, n, 0); return;
    case 4: copy_uint32_t((uint32_t *)tile, (const uint32_t *)x->data, n, 0); return;
    default: copy_uint64_t((uint64_t *)tile, (const uint64_t *)x->data, n, 0); return;
    }
}

/* m elements from linear position pos on, contiguous: in place if they are, else copied into tile. */
static const void *gather(const walk *j, const operand *x, int64_t pos, int64_t m, char *tile) {
    int64_t idx[DT_MAX_DIM], at = 0, rest = pos;
    int last = j->ndim - 1;
    for (int d = last; d >= 0; d--) {
        idx[d] = rest % j->shape[d];
        rest /= j->shape[d];
        at += idx[d] * x->stride[d];
    }
    const char *from = x->data + at * (int64_t)x->size;
    if (x->stride[last] == 1 && idx[last] + m <= j->shape[last]) return from;
    switch (x->size) {
    case 1: walk_uint8_t(j, x, idx, (const uint8_t *)from, m, (uint8_t *)tile); break;
    case 2: walk_uint16_t(j, x, idx, (const uint16_t *)from, m, (uint16_t *)tile); break;
    case 4: walk_uint32_t(j, x, idx, (const uint32_t *)from, m, (uint32_t *)tile); break;
    default: walk_uint64_t(j, x, idx, (const uint64_t *)from, m, (uint64_t *)tile); break;
    }
    return tile;
}

/* Tiles that serve a whole task: a number repeated, a short row repeated. */
static void fill_tile(const walk *j, const operand *x, int64_t n, char *tile, char *raw) {
    char *to = x->widen ? raw : tile;
    if (x->mode == CYCLE) {
        size_t row = (size_t)j->shape[1] * x->size, bytes = (size_t)(n + j->shape[1]) * x->size;
        for (size_t at = 0; at < bytes; at += row) memcpy(to + at, x->data, bytes - at < row ? bytes - at : row);
        n += j->shape[1];
    } else
        repeat(to, x, n);
    if (x->widen) x->widen(n, tile, (const void *[]){raw}, NULL);
}

/* The end of the block that starts at pos. */
static inline int64_t block_size(const walk *w, int64_t pos, int64_t hi, int64_t block) {
    int64_t m = hi - pos < block ? hi - pos : block;
    if (!w->rows) return m;
    int64_t inner = w->shape[w->ndim - 1], left = inner - pos % inner;
    return left < m ? left : m;
}

#endif
