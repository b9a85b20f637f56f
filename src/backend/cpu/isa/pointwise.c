/* The kernel of every elementwise op: brings operands into contiguous tiles of the compute dtype and runs the code's block function.
 *
 * See walk.h for how inputs are read. 16-bit floats are converted a tile at a time, on the way in and out. Work is split into tasks of TASK
 * elements whatever the team's size; blocks never depend on it either, and every element is computed alone, so any sharding gives the same bits. */
#include "backend/cpu/isa/walk.h"
#include "ops/op.h"

typedef struct job {
    dt_pw_fn fn, narrow; /* narrow: f32 to a 16-bit result, or NULL */
    const void *params;
    char *out;
    size_t out_size;
    int n_in;
    bool direct; /* all LINEAR, no conversions */
    bool raw;    /* a cast: the block function itself reads and writes 16-bit floats */
    walk w;
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

dt_pw_fn DT_ISA_FN(pw_find)(int code, dt_dtype t);
dt_pw_fn DT_ISA_FN(pw_find)(int code, dt_dtype t) { return code > 0 && code < DT_PW_COUNT && t < DT_DTYPE_COUNT ? table[code][t] : NULL; }

static void prepare(job *j, const dt_kctx *c) {
    collapse(&j->w, j->in, j->n_in, c->in, &c->out[0]);
    j->direct = true;
    for (int i = 0; i < j->n_in; i++) {
        classify(&j->w, &j->in[i], &c->in[i], j->raw);
        if (j->in[i].mode != LINEAR || j->in[i].widen) j->direct = false;
    }
}

static void run_tiles(const job *j, int64_t lo, int64_t hi) {
    _Alignas(64) char tiles[DT_PW_MAX_IN][ROOM * 8], raw[ROOM * 2], result[TILE * 4];
    const void *ptr[DT_PW_MAX_IN];
    int64_t first = hi - lo < TILE ? hi - lo : TILE;
    for (int i = 0; i < j->n_in; i++) {
        const operand *x = &j->in[i];
        if (x->mode == NUMBER || x->mode == CYCLE) fill_tile(&j->w, x, first, tiles[i], raw);
    }
    for (int64_t pos = lo, m; pos < hi; pos += m) {
        m = block_size(&j->w, pos, hi, TILE);
        for (int i = 0; i < j->n_in; i++) {
            const operand *x = &j->in[i];
            if (x->mode == NUMBER || x->mode == CYCLE) {
                size_t size = x->widen ? 4 : x->size;
                ptr[i] = tiles[i] + (x->mode == CYCLE ? (size_t)(pos % j->w.shape[1]) * size : 0);
                continue;
            }
            const void *from = x->mode == LINEAR ? x->data + pos * (int64_t)x->size : gather(&j->w, x, pos, m, x->widen ? raw : tiles[i]);
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
    int64_t lo = t * TASK, hi = lo + TASK < j->w.n ? lo + TASK : j->w.n;
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
    int64_t n = dt_view_numel(&c->out[0]);
    if (n == 0) return DT_OK;
    if (!raw && dt_pw_tile_dtype(ot) != ot) j.narrow = DT_ISA_FN(pw_cast)(DT_float32, ot);
    prepare(&j, c);
    if (j.narrow) j.direct = false;
    int64_t tasks = (n + TASK - 1) / TASK;
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
