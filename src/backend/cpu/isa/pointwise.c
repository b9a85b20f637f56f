/* The kernel of every elementwise op: brings operands into contiguous tiles of the compute dtype and runs the code's block function.
 *
 * An input is one of
 *   LINEAR  contiguous over the whole (collapsed) shape and already of the compute dtype: the block function reads it in place
 *   NUMBER  one element: a tile is filled once a task
 *   CYCLE   a short row repeated over everything: a tile holds enough repetitions, filled once a task
 *   GATHER  anything else: each block is copied into a tile run by run, unless it lies within one row of stride 1
 * 16-bit floats are converted a tile at a time, on the way in and out. Work is split into tasks of TASK elements whatever the team's size;
 * blocks never depend on it either, and every element is computed alone, so any sharding gives the same bits. */
#include "backend/cpu/isa/pw.h"
#include "ops/op.h"

enum { TILE = DT_PW_TILE, TASK = 32 * DT_PW_TILE, LONG_ROW = 128 };
typedef enum mode { LINEAR, NUMBER, CYCLE, GATHER } mode;

typedef struct operand {
    const char *data;
    size_t size;
    mode mode;
    dt_pw_fn widen; /* 16-bit to f32, or NULL */
    int64_t stride[DT_MAX_DIM];
} operand;

typedef struct job {
    dt_pw_fn fn, narrow; /* narrow: f32 to a 16-bit result, or NULL */
    const void *params;
    char *out;
    size_t out_size;
    int n_in, ndim;
    bool direct; /* all LINEAR, no conversions */
    bool rows;   /* keep blocks within rows */
    bool raw;    /* a cast: the block function itself reads and writes 16-bit floats */
    int64_t n, shape[DT_MAX_DIM];
    operand in[DT_PW_MAX_IN];
} job;

/* ---- the table -------------------------------------------------------------------------------------------------------------- */
#define EXT(name, s) void PW_FN(name, s)(int64_t n, void *out, const void *const *in, const void *p);
#define EXT_FLT(name) EXT(name, f32) EXT(name, f64)
#define EXT_INT(name) EXT(name, u8) EXT(name, i8) EXT(name, i16) EXT(name, i32) EXT(name, i64)
#define EXT_BIT(name) EXT_INT(name) EXT(name, b1)
#define EXT_NUM(name) EXT_FLT(name) EXT_INT(name)
#define EXT_ALL(name) EXT_NUM(name) EXT(name, b1)
#define DT_PW(name, inputs, key, types) EXT_##types(name)
#include "ops/pointwise.def"
#undef DT_PW
#define ROW_FLT(name) [DT_float32] = PW_FN(name, f32), [DT_float64] = PW_FN(name, f64)
#define ROW_INT(name) \
    [DT_uint8] = PW_FN(name, u8), [DT_int8] = PW_FN(name, i8), [DT_int16] = PW_FN(name, i16), [DT_int32] = PW_FN(name, i32), [DT_int64] = PW_FN(name, i64)
#define ROW_BIT(name) ROW_INT(name), [DT_bool] = PW_FN(name, b1)
#define ROW_NUM(name) ROW_FLT(name), ROW_INT(name)
#define ROW_ALL(name) ROW_NUM(name), [DT_bool] = PW_FN(name, b1)
static const dt_pw_fn table[DT_PW_COUNT][DT_DTYPE_COUNT] = {
#define DT_PW(name, inputs, key, types) [DT_PW_##name] = {ROW_##types(name)},
#include "ops/pointwise.def"
#undef DT_PW
};

dt_pw_fn DT_ISA_FN(pw_cast)(dt_dtype from, dt_dtype to);
dt_pw_fn DT_ISA_FN(pw_find)(int code, dt_dtype t);
dt_pw_fn DT_ISA_FN(pw_find)(int code, dt_dtype t) { return code > 0 && code < DT_PW_COUNT && t < DT_DTYPE_COUNT ? table[code][t] : NULL; }

/* ---- operands ---------------------------------------------------------------------------------------------------------------- */
/* Merge dimensions that every input walks as one; drop those of size 1. */
static void collapse(job *j, const dt_kctx *c) {
    const dt_view *o = &c->out[0];
    int nd = 0;
    for (int d = 0; d < o->ndim; d++) {
        if (o->shape[d] == 1) continue;
        bool merge = nd > 0;
        for (int i = 0; i < j->n_in; i++) {
            const dt_view *v = &c->in[i];
            int k = d - (o->ndim - v->ndim);
            int64_t s = k < 0 || v->shape[k] == 1 ? 0 : v->stride[k];
            j->in[i].stride[nd] = s;
            merge &= nd > 0 && j->in[i].stride[nd - 1] == s * o->shape[d];
        }
        if (merge) {
            for (int i = 0; i < j->n_in; i++) j->in[i].stride[nd - 1] = j->in[i].stride[nd];
            j->shape[nd - 1] *= o->shape[d];
        } else
            j->shape[nd++] = o->shape[d];
    }
    j->ndim = nd;
}

static void prepare(job *j, const dt_kctx *c) {
    collapse(j, c);
    j->direct = true;
    for (int i = 0; i < j->n_in; i++) {
        operand *x = &j->in[i];
        const dt_view *v = &c->in[i];
        dt_dtype tile = j->raw ? v->dtype : dt_pw_tile_dtype(v->dtype);
        x->data = v->data;
        x->size = dt_dtype_size(v->dtype);
        x->widen = tile != v->dtype ? DT_ISA_FN(pw_cast)(v->dtype, tile) : NULL;
        bool zero = true;
        for (int d = 0; d < j->ndim; d++) zero &= x->stride[d] == 0;
        x->mode = zero ? NUMBER : j->ndim == 1 && x->stride[0] == 1 ? LINEAR : GATHER;
        bool cycle = j->ndim == 2 && x->stride[0] == 0 && x->stride[1] == 1 && j->shape[1] < LONG_ROW;
        if (x->mode == GATHER && cycle) x->mode = CYCLE;
        if (j->n == 1 && !x->widen) x->mode = LINEAR;
        if (x->mode != LINEAR || x->widen) j->direct = false;
        if (x->mode == GATHER && j->shape[j->ndim - 1] >= LONG_ROW) j->rows = true;
    }
}

/* Typed loops, by element size. */
#define MOVERS(T)                                                                                      \
    static inline void copy_##T(T *o, const T *x, int64_t n, int64_t stride) {                         \
        if (stride == 0) {                                                                             \
            T v = *x;                                                                                  \
            for (int64_t i = 0; i < n; i++) o[i] = v;                                                  \
        } else if (stride == 1)                                                                        \
            for (int64_t i = 0; i < n; i++) o[i] = x[i];                                               \
        else                                                                                           \
            for (int64_t i = 0; i < n; i++) o[i] = x[i * stride];                                      \
    }                                                                                                  \
    /* m elements from index idx on, row by row; x is at idx */                                        \
    static void walk_##T(const job *j, const operand *op, int64_t *idx, const T *x, int64_t m, T *o) { \
        int last = j->ndim - 1;                                                                        \
        int64_t inner = j->shape[last], step = op->stride[last];                                       \
        for (;;) {                                                                                     \
            int64_t run = inner - idx[last] < m ? inner - idx[last] : m;                               \
            copy_##T(o, x, run, step);                                                                 \
            if (!(m -= run)) return;                                                                   \
            o += run;                                                                                  \
            x -= idx[last] * step;                                                                     \
            idx[last] = 0;                                                                             \
            for (int d = last - 1; d >= 0; d--) {                                                      \
                x += op->stride[d];                                                                    \
                if (++idx[d] < j->shape[d]) break;                                                     \
                x -= idx[d] * op->stride[d];                                                           \
                idx[d] = 0;                                                                            \
            }                                                                                          \
        }                                                                                              \
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
static const void *gather(const job *j, const operand *x, int64_t pos, int64_t m, char *tile) {
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

/* ---- running ------------------------------------------------------------------------------------------------------------------- */
enum { ROOM = TILE + LONG_ROW }; /* elements of a tile: a CYCLE may start within its period */

/* Tiles that serve a whole task: a number repeated, a short row repeated. */
static void fill_tile(const job *j, const operand *x, int64_t n, char *tile, char *raw) {
    char *to = x->widen ? raw : tile;
    if (x->mode == CYCLE) {
        size_t row = (size_t)j->shape[1] * x->size, bytes = (size_t)(n + j->shape[1]) * x->size;
        for (size_t at = 0; at < bytes; at += row) memcpy(to + at, x->data, bytes - at < row ? bytes - at : row);
        n += j->shape[1];
    } else
        repeat(to, x, n);
    if (x->widen) x->widen(n, tile, (const void *[]){raw}, NULL);
}

static void run_tiles(const job *j, int64_t lo, int64_t hi) {
    _Alignas(64) char tiles[DT_PW_MAX_IN][ROOM * 8], raw[ROOM * 2], result[TILE * 4];
    const void *ptr[DT_PW_MAX_IN];
    int64_t first = hi - lo < TILE ? hi - lo : TILE;
    for (int i = 0; i < j->n_in; i++) {
        const operand *x = &j->in[i];
        if (x->mode == NUMBER || x->mode == CYCLE) fill_tile(j, x, first, tiles[i], raw);
    }
    for (int64_t pos = lo, m; pos < hi; pos += m) {
        m = hi - pos < TILE ? hi - pos : TILE;
        if (j->rows) {
            int64_t inner = j->shape[j->ndim - 1], left = inner - pos % inner;
            m = left < m ? left : m;
        }
        for (int i = 0; i < j->n_in; i++) {
            const operand *x = &j->in[i];
            if (x->mode == NUMBER || x->mode == CYCLE) {
                size_t size = x->widen ? 4 : x->size;
                ptr[i] = tiles[i] + (x->mode == CYCLE ? (size_t)(pos % j->shape[1]) * size : 0);
                continue;
            }
            const void *from = x->mode == LINEAR ? x->data + pos * (int64_t)x->size : gather(j, x, pos, m, x->widen ? raw : tiles[i]);
            if (x->widen) x->widen(m, tiles[i], &from, NULL);
            ptr[i] = x->widen ? tiles[i] : from;
        }
        char *to = j->out + pos * (int64_t)j->out_size;
        j->fn(m, j->narrow ? result : to, ptr, j->params);
        if (j->narrow) j->narrow(m, to, (const void *[]){result}, NULL);
    }
}

static void task(void *arg, int64_t t) {
    const job *j = arg;
    int64_t lo = t * TASK, hi = lo + TASK < j->n ? lo + TASK : j->n;
    if (!j->direct) {
        run_tiles(j, lo, hi);
        return;
    }
    const void *ptr[DT_PW_MAX_IN];
    for (int i = 0; i < j->n_in; i++) ptr[i] = j->in[i].data + lo * (int64_t)j->in[i].size;
    j->fn(hi - lo, j->out + lo * (int64_t)j->out_size, ptr, j->params);
}

static dt_status run(const dt_kctx *c, dt_pw_fn fn, const void *params, bool raw) {
    if (!fn) return dt_fail(DT_E_DTYPE, "%s: not implemented for %s", dt_op_name(c->op), dt_dtype_name(c->in[0].dtype));
    dt_dtype ot = c->out[0].dtype;
    job j = {.fn = fn, .params = params, .out = c->out[0].data, .out_size = dt_dtype_size(ot), .n_in = dt_pw_inputs(c->op->pointwise), .raw = raw};
    j.n = dt_view_numel(&c->out[0]);
    if (j.n == 0) return DT_OK;
    if (!raw && dt_pw_tile_dtype(ot) != ot) j.narrow = DT_ISA_FN(pw_cast)(DT_float32, ot);
    prepare(&j, c);
    if (j.narrow) j.direct = false;
    int64_t tasks = (j.n + TASK - 1) / TASK;
    if (tasks == 1)
        task(&j, 0);
    else
        dt_team_run(c->team, task, &j, tasks);
    return DT_OK;
}

dt_status DT_ISA_FN(pointwise)(const dt_kctx *c);
dt_status DT_ISA_FN(pointwise)(const dt_kctx *c) {
    int code = c->op->pointwise;
    if (code == DT_PW_CAST) return run(c, DT_ISA_FN(pw_cast)(c->in[0].dtype, c->out[0].dtype), NULL, true);
    return run(c, table[code][dt_pw_tile_dtype(c->in[dt_pw_key(code)].dtype)], c->attr, false);
}
