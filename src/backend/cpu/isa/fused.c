/* Runs a fused group (plan/fused.h): for each block of elements all its ops, one block function after the other, over tiles that stay in the
 * first-level cache.
 *
 * Blocks and tasks depend on the shape only and every element is computed alone: neither the team's size nor fusion changes a bit. An op that
 * makes an output writes the output's memory directly; later ops of the group read it there while it is still in the cache. An output may lie
 * in an input's memory if nothing reads that input afterwards (the planner sees to it). */
#include "plan/fused.h"

#include "backend/cpu/isa/walk.h"
#include "ops/op.h"

dt_pw_fn DT_ISA_FN(pw_find)(int code, dt_dtype t);

typedef struct fop {
    dt_pw_fn fn, narrow, widen; /* narrow: the tile's result to 16 bits; widen: back, for readers */
} fop;

typedef struct job {
    const dt_fused *f;
    int n_values;
    int64_t block;
    size_t tile; /* bytes */
    walk w;
    operand in[DT_FUSED_IN];
    int8_t in_tile[DT_FUSED_IN];
    char *out[DT_FUSED_OUT];
    size_t out_size[DT_FUSED_OUT];
    fop op[DT_FUSED_OPS];
} job;

enum { TILE_BYTES = (DT_FUSED_TILES + DT_FUSED_IN) * ROOM * 4 };

static void run_ops(const job *j, int64_t pos, int64_t m, const void **value, char *tiles, char *half) {
    const dt_fused *f = j->f;
    for (int k = 0; k < f->n_ops; k++) {
        const dt_fused_op *o = &f->op[k];
        const fop *p = &j->op[k];
        const void *arg[DT_PW_MAX_IN];
        for (int i = 0; i < o->n_in; i++) arg[i] = value[o->in[i]];
        char *mem = o->out >= 0 ? j->out[o->out] + pos * (int64_t)j->out_size[o->out] : NULL;
        char *tile = o->tile >= 0 ? tiles + (size_t)o->tile * j->tile : NULL;
        if (!p->narrow) {
            char *to = mem ? mem : tile;
            p->fn(m, to, arg, o->params);
            value[f->n_in + k] = to;
            continue;
        }
        p->fn(m, tile, arg, o->params);
        char *bits = mem ? mem : half;
        p->narrow(m, bits, (const void *[]){tile}, NULL);
        if (o->read) p->widen(m, tile, (const void *[]){bits}, NULL);
        value[f->n_in + k] = tile;
    }
}

static void task(void *arg, int64_t t) {
    const job *j = arg;
    _Alignas(64) char tiles[TILE_BYTES], raw[ROOM * 2];
    const void *value[DT_FUSED_IN + DT_FUSED_OPS];
    int64_t lo = t * TASK, hi = lo + TASK < j->w.n ? lo + TASK : j->w.n, first = hi - lo < j->block ? hi - lo : j->block;
    for (int i = 0; i < j->f->n_in; i++)
        if (j->in[i].mode == NUMBER || j->in[i].mode == CYCLE) fill_tile(&j->w, &j->in[i], first, tiles + (size_t)j->in_tile[i] * j->tile, raw);
    for (int64_t pos = lo, m; pos < hi; pos += m) {
        m = block_size(&j->w, pos, hi, j->block);
        for (int i = 0; i < j->f->n_in; i++) {
            const operand *x = &j->in[i];
            char *tile = tiles + (size_t)j->in_tile[i] * j->tile;
            if (x->mode == NUMBER || x->mode == CYCLE) {
                value[i] = tile + (x->mode == CYCLE ? (size_t)(pos % j->w.shape[1]) * (x->widen ? 4 : x->size) : 0);
                continue;
            }
            const void *from = x->mode == LINEAR ? x->data + pos * (int64_t)x->size : gather(&j->w, x, pos, m, x->widen ? raw : tile);
            if (x->widen) x->widen(m, tile, &from, NULL);
            value[i] = x->widen ? tile : from;
        }
        run_ops(j, pos, m, value, tiles, raw);
    }
}

/* The block functions, and how results become 16-bit floats. */
static dt_status resolve(job *j) {
    for (int k = 0; k < j->f->n_ops; k++) {
        const dt_fused_op *o = &j->f->op[k];
        dt_dtype tile = dt_pw_tile_dtype(o->dtype);
        j->op[k].fn = o->code == DT_PW_CAST ? DT_ISA_FN(pw_cast)(o->key, tile) : DT_ISA_FN(pw_find)(o->code, o->key);
        if (!j->op[k].fn) return dt_fail(DT_E_NOTIMPL, "fused: no block function for code %d on %s", o->code, dt_dtype_name(o->key));
        if (tile == o->dtype) continue;
        j->op[k].narrow = DT_ISA_FN(pw_cast)(DT_float32, o->dtype);
        j->op[k].widen = DT_ISA_FN(pw_cast)(o->dtype, DT_float32);
    }
    return DT_OK;
}

static size_t widest(const job *j, const dt_kctx *c) {
    size_t w = 4;
    for (int i = 0; i < j->f->n_in; i++) w = dt_dtype_size(c->in[i].dtype) > w ? dt_dtype_size(c->in[i].dtype) : w;
    for (int k = 0; k < j->f->n_ops; k++) w = dt_dtype_size(j->f->op[k].dtype) > w ? dt_dtype_size(j->f->op[k].dtype) : w;
    return w;
}

dt_status DT_ISA_FN(fused)(const dt_kctx *c);
dt_status DT_ISA_FN(fused)(const dt_kctx *c) {
    const dt_fused *f = c->attr;
    int64_t n = dt_view_numel(&c->out[0]);
    if (n == 0) return DT_OK;
    job j = {.f = f};
    DT_TRY(resolve(&j));
    collapse(&j.w, j.in, f->n_in, c->in, &c->out[0]);
    int tiles = f->n_tiles;
    for (int i = 0; i < f->n_in; i++) {
        classify(&j.w, &j.in[i], &c->in[i], false);
        j.in_tile[i] = (int8_t)(j.in[i].mode != LINEAR || j.in[i].widen ? tiles++ : 0);
    }
    for (int k = 0; k < f->n_out; k++) {
        j.out[k] = c->out[k].data;
        j.out_size[k] = dt_dtype_size(c->out[k].dtype);
    }
    size_t size = widest(&j, c);
    j.block = TILE;
    while ((size_t)tiles * (size_t)(j.block + LONG_ROW) * size > TILE_BYTES || (tiles > 8 && j.block > TILE / 2)) j.block /= 2;
    j.tile = ((size_t)(j.block + LONG_ROW) * size + 63) & ~(size_t)63;
    int64_t tasks = (n + TASK - 1) / TASK;
    if (tasks == 1)
        task(&j, 0);
    else
        dt_team_run(c->team, task, &j, tasks);
    return DT_OK;
}
