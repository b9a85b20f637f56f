/* Runs a fused group (plan/fused.h): for each block of elements, or of rows, all its ops, one block function after the other, over tiles that
 * stay in the first-level cache, or in the second if rows are long.
 *
 * Blocks and tasks depend on the shape only, every element is computed alone and every row reduced alone: neither the team's size nor fusion
 * changes a bit. An op that makes an output writes the output's memory directly; later ops of the group read it there while it is still in the
 * cache. An output may lie in an input's memory if nothing reads that input afterwards (the planner sees to it).
 *
 *      tiles:  full tensors' results | inputs that are copied, widened or repeated | 16-bit results on their way || the same per row */
#include "plan/fused.h"

#include "backend/cpu/isa/reduce_rows.h"
#include "backend/cpu/isa/walk.h"
#include "ops/op.h"

dt_pw_fn DT_ISA_FN(pw_find)(int code, dt_dtype t);

typedef struct fop {
    dt_pw_fn fn, narrow, widen; /* narrow: the tile's result to 16 bits; widen: back, for readers */
} fop;

typedef struct look {
    const char *table;
    const dt_view *index;
    bool dense; /* the index lies in one run */
    bool wraps; /* negative indices count from the end */
    size_t size;
    int64_t lo, have, limit, line; /* rows that are held here: lo and on; indices of a line, each line at its own place */
    int64_t cols, row_stride, col_stride, line_stride;
} look;

typedef struct job {
    const dt_fused *f;
    int64_t size, row, block, step; /* row: 1 where no row is looked at; step: elements of a task */
    size_t tile, row_tile, raw_at, rows_at;
    walk w[DT_FUSED_IN];
    operand in[DT_FUSED_IN];
    look look[DT_FUSED_LOOKUPS];
    int8_t in_tile[DT_FUSED_IN]; /* -1: read in place */
    char *out[DT_FUSED_OUT];
    size_t out_size[DT_FUSED_OUT];
    fop op[DT_FUSED_OPS];
    int64_t segs;
    double *sums; /* (n_columns, segs, row) */
} job;

/* Elements [pos, pos + m), which are rows [r0, r0 + rows). */
typedef struct block {
    int64_t pos, m, r0, rows;
    char *buf;
} block;

enum { SMALL_BYTES = 160 * 1024 };

static inline bool row_in(const job *j, int i) { return j->f->rows_in >> i & 1; }
static inline char *tile_at(const job *j, char *buf, bool rows, int t) { return rows ? buf + j->rows_at + (size_t)t * j->row_tile : buf + (size_t)t * j->tile; }
static inline bool prepared(const operand *x) { return x->mode == NUMBER || x->mode == CYCLE; }
static inline size_t tile_size(const operand *x) { return x->widen ? 4 : x->size; }

static void spread(size_t size, char *out, const char *x, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, x += size, out += (size_t)n * size) switch (size) {
        case 1: copy_uint8_t((uint8_t *)out, (const uint8_t *)x, n, 0); break;
        case 2: copy_uint16_t((uint16_t *)out, (const uint16_t *)x, n, 0); break;
        case 4: copy_uint32_t((uint32_t *)out, (const uint32_t *)x, n, 0); break;
        default: copy_uint64_t((uint64_t *)out, (const uint64_t *)x, n, 0);
        }
}

/* What op o makes of arg, in its tile dtype. */
static void compute(const job *j, const block *b, const dt_fused_op *o, dt_pw_fn fn, const void *const *arg, void *to) {
    if (o->kind == DT_FUSED_CODE)
        fn(o->rows ? b->rows : b->m, to, arg, o->params);
    else if (o->kind == DT_FUSED_DROPOUT)
        DT_ISA_FN(dropout_block)
    (o->key, o->params, *(const uint64_t *)arg[1], *(const uint64_t *)arg[2], o->count + (o->rows ? b->r0 : b->pos), o->rows ? b->rows : b->m, arg[0], to);
    else if (o->kind == DT_FUSED_SPREAD) spread(dt_dtype_size(dt_pw_tile_dtype(o->key)), to, arg[0], b->rows, j->row);
    else DT_ISA_FN(reduce_rows)(&(dt_reduce_rows){o->kind, o->key, dt_pw_tile_dtype(o->dtype), j->row, o->count}, b->rows, arg[0], to);
}

/* ---- look-ups ---- */
static void begin_look(look *l, const dt_fused_op *o, const dt_view *table, const dt_view *index) {
    bool lines = o->code == DT_LOOKUP_GATHER;
    *l = (look){.table = table->data, .index = index, .dense = dt_view_contiguous(index), .wraps = o->code == DT_LOOKUP_INDEX};
    l->size = dt_dtype_size(table->dtype);
    l->lo = o->count;
    l->limit = o->limit;
    l->have = table->shape[lines];
    l->line = lines ? index->shape[1] : INT64_MAX;
    l->cols = lines ? 1 : table->shape[1];
    l->row_stride = table->stride[lines];
    l->col_stride = lines ? 0 : table->stride[1];
    l->line_stride = lines ? table->stride[0] : 0;
}

/* Where the row that index i names begins in the table; NULL: it is not held here. */
static inline const char *row_at(const look *l, int64_t i) {
    int64_t at = l->dense ? i : dt_view_offset(l->index, i);
    int64_t k = l->index->dtype == DT_int64 ? ((const int64_t *)l->index->data)[at] : ((const int32_t *)l->index->data)[at];
    uint64_t held = (uint64_t)k + (l->wraps && k < 0 ? (uint64_t)l->limit : 0) - (uint64_t)l->lo;
    if (held >= (uint64_t)l->have) return NULL;
    return l->table + (i / l->line * l->line_stride + (int64_t)held * l->row_stride) * (int64_t)l->size;
}

static void copy_run(size_t size, char *to, const char *x, int64_t n, int64_t stride) {
    switch (size) {
    case 1: copy_uint8_t((uint8_t *)to, (const uint8_t *)x, n, stride); break;
    case 2: copy_uint16_t((uint16_t *)to, (const uint16_t *)x, n, stride); break;
    case 4: copy_uint32_t((uint32_t *)to, (const uint32_t *)x, n, stride); break;
    default: copy_uint64_t((uint64_t *)to, (const uint64_t *)x, n, stride);
    }
}

/* Elements [pos, pos + m) of a look-up, into `to`; or where they lie if they lie together and need not be moved. */
static const void *look_up(const look *l, int64_t pos, int64_t m, char *to, bool must_move) {
    int64_t r = pos / l->cols, c = pos % l->cols;
    for (int64_t at = 0; at < m; r++, c = 0) {
        int64_t n = l->cols - c < m - at ? l->cols - c : m - at;
        const char *row = row_at(l, r), *from = row ? row + c * l->col_stride * (int64_t)l->size : NULL;
        char *d = to + at * (int64_t)l->size;
        if (from && n == m && l->col_stride == 1 && !must_move) return from;
        if (!from)
            memset(d, 0, (size_t)n * l->size);
        else if (l->col_stride == 1)
            memcpy(d, from, (size_t)n * l->size);
        else
            copy_run(l->size, d, from, n, l->col_stride);
        at += n;
    }
    return to;
}

static const void *run_lookup(const job *j, const block *b, const dt_fused_op *o, const fop *p, char *mem, char *tile) {
    int64_t m = o->rows ? b->rows : b->m;
    char *to = mem ? mem : p->widen ? b->buf + j->raw_at : tile;
    const void *bits = look_up(&j->look[o->lookup], o->rows ? b->r0 : b->pos, m, to, mem != NULL);
    if (!p->widen) return bits;
    if (o->read) p->widen(m, tile, (const void *[]){bits}, NULL);
    return tile;
}

/* ---- sums over columns: a segment of rows is a task ---- */
static double *sums_of(const job *j, const dt_fused_op *o, int64_t seg) { return j->sums + (o->code * j->segs + seg) * j->row; }

static void begin_columns(const job *j, int64_t t, char *buf) {
    for (int k = 0; k < j->f->n_ops; k++)
        if (j->f->op[k].kind == DT_FUSED_COLUMNS) {
            memset(tile_at(j, buf, false, j->f->op[k].tile), 0, j->tile);
            memset(sums_of(j, &j->f->op[k], t), 0, (size_t)j->row * sizeof(double));
        }
}
static void add_columns(const job *j, const block *b, const dt_fused_op *o, const void *x) {
    int64_t seg = b->r0 / j->f->seg, at = b->r0 - seg * j->f->seg;
    DT_ISA_FN(columns_add)(dt_pw_tile_dtype(o->key), at, b->rows, j->row, x, tile_at(j, b->buf, false, o->tile), sums_of(j, o, seg));
}
static void end_columns(const job *j, int64_t t, char *buf) {
    for (int k = 0; k < j->f->n_ops; k++)
        if (j->f->op[k].kind == DT_FUSED_COLUMNS)
            DT_ISA_FN(columns_end)(dt_pw_tile_dtype(j->f->op[k].key), j->row, tile_at(j, buf, false, j->f->op[k].tile), sums_of(j, &j->f->op[k], t));
}
static void put_columns(const job *j) {
    for (int k = 0; k < j->f->n_ops; k++) {
        const dt_fused_op *o = &j->f->op[k];
        if (o->kind == DT_FUSED_COLUMNS) DT_ISA_FN(columns_put)(j->segs, j->row, sums_of(j, o, 0), o->count, o->dtype, j->out[(int)o->out]);
    }
}

static void run_ops(const job *j, const block *b, const void **value) {
    const dt_fused *f = j->f;
    for (int k = 0; k < f->n_ops; k++) {
        const dt_fused_op *o = &f->op[k];
        const fop *p = &j->op[k];
        const void *arg[DT_PW_MAX_IN];
        for (int i = 0; i < o->n_in; i++) arg[i] = value[o->in[i]];
        if (o->kind == DT_FUSED_COLUMNS) {
            add_columns(j, b, o, arg[0]);
            continue;
        }
        char *mem = o->out >= 0 ? j->out[o->out] + (o->rows ? b->r0 : b->pos) * (int64_t)j->out_size[o->out] : NULL;
        char *tile = o->tile >= 0 ? tile_at(j, b->buf, o->rows, o->tile) : NULL;
        if (o->kind == DT_FUSED_LOOKUP) {
            value[f->n_in + k] = run_lookup(j, b, o, p, mem, tile);
            continue;
        }
        if (!p->narrow) {
            char *to = mem ? mem : tile;
            compute(j, b, o, p->fn, arg, to);
            value[f->n_in + k] = to;
            continue;
        }
        int64_t m = o->rows ? b->rows : b->m;
        compute(j, b, o, p->fn, arg, tile);
        char *bits = mem ? mem : b->buf + j->raw_at;
        p->narrow(m, bits, (const void *[]){tile}, NULL);
        if (o->read) p->widen(m, tile, (const void *[]){bits}, NULL);
        value[f->n_in + k] = tile;
    }
}

static void load_inputs(const job *j, const block *b, const void **value) {
    char *raw = b->buf + j->raw_at;
    for (int i = 0; i < j->f->n_in; i++) {
        const operand *x = &j->in[i];
        bool rows = row_in(j, i);
        int64_t pos = rows ? b->r0 : b->pos, m = rows ? b->rows : b->m;
        char *tile = j->in_tile[i] >= 0 ? tile_at(j, b->buf, rows, j->in_tile[i]) : NULL;
        if (prepared(x)) {
            value[i] = tile + (x->mode == CYCLE ? (size_t)(pos % j->w[i].shape[1]) * tile_size(x) : 0);
            continue;
        }
        const void *from = x->mode == LINEAR ? x->data + pos * (int64_t)x->size : gather(&j->w[i], x, pos, m, x->widen ? raw : tile);
        if (x->widen) x->widen(m, tile, &from, NULL);
        value[i] = x->widen ? tile : from;
    }
}

/* How many elements the block at pos has. */
static int64_t block_at(const job *j, int64_t pos, int64_t hi) {
    int64_t m = hi - pos < j->block ? hi - pos : j->block;
    if (!j->f->row)
        for (int i = 0; i < j->f->n_in; i++) m = block_size(&j->w[i], pos, hi, m);
    return m;
}

static void run_task(const job *j, int64_t t, char *buf) {
    const void *value[DT_FUSED_IN + DT_FUSED_OPS];
    int64_t lo = t * j->step, hi = lo + j->step < j->size ? lo + j->step : j->size, first = hi - lo < j->block ? hi - lo : j->block;
    for (int i = 0; i < j->f->n_in; i++)
        if (prepared(&j->in[i]))
            fill_tile(&j->w[i], &j->in[i], row_in(j, i) ? first / j->row : first, tile_at(j, buf, row_in(j, i), j->in_tile[i]), buf + j->raw_at);
    if (j->f->seg) begin_columns(j, t, buf);
    block b = {.pos = lo, .buf = buf};
    for (; b.pos < hi; b.pos += b.m) {
        b.m = block_at(j, b.pos, hi);
        b.r0 = b.pos / j->row;
        b.rows = b.m / j->row;
        load_inputs(j, &b, value);
        run_ops(j, &b, value);
    }
    if (j->f->seg) end_columns(j, t, buf);
}

static void small_task(void *arg, int64_t t) {
    _Alignas(64) char buf[SMALL_BYTES];
    run_task(arg, t, buf);
}
static void large_task(void *arg, int64_t t) {
    _Alignas(64) char buf[DT_FUSED_BYTES];
    run_task(arg, t, buf);
}

/* The block functions, and how results become 16-bit floats. */
static dt_status resolve(job *j) {
    for (int k = 0; k < j->f->n_ops; k++) {
        const dt_fused_op *o = &j->f->op[k];
        dt_dtype tile = dt_pw_tile_dtype(o->dtype);
        j->op[k] = (fop){0};
        if (o->kind == DT_FUSED_SPREAD || o->kind == DT_FUSED_COLUMNS) continue;
        if (o->kind == DT_FUSED_CODE) {
            j->op[k].fn = o->code == DT_PW_CAST ? DT_ISA_FN(pw_cast)(o->key, tile) : DT_ISA_FN(pw_find)(o->code, o->key);
            if (!j->op[k].fn) return dt_fail(DT_E_NOTIMPL, "fused: no block function for code %d on %s", o->code, dt_dtype_name(o->key));
        }
        if (tile == o->dtype) continue;
        j->op[k].narrow = DT_ISA_FN(pw_cast)(DT_float32, o->dtype);
        j->op[k].widen = DT_ISA_FN(pw_cast)(o->dtype, DT_float32);
    }
    return DT_OK;
}

/* How input i is walked; does it need a tile? */
static bool read_input(job *j, int i, const dt_view *v) {
    operand *x = &j->in[i];
    dt_dtype tile = dt_pw_tile_dtype(v->dtype);
    int64_t n = dt_view_numel(v);
    j->w[i].rows = false;
    if (j->f->lookup_in >> i & 1) {
        *x = (operand){.data = v->data, .mode = LINEAR};
        return false;
    }
    if ((n == 1 && j->size != 1) || (n > 1 && dt_view_contiguous(v))) {
        x->data = v->data;
        x->size = dt_dtype_size(v->dtype);
        x->widen = tile != v->dtype ? DT_ISA_FN(pw_cast)(v->dtype, tile) : NULL;
        x->mode = n == 1 ? NUMBER : LINEAR;
    } else {
        collapse(&j->w[i], x, 1, v, v);
        classify(&j->w[i], x, v, false);
    }
    return x->mode != LINEAR || x->widen;
}

static size_t widest(const job *j, const dt_kctx *c) {
    size_t w = 4;
    for (int i = 0; i < j->f->n_in; i++)
        if (!(j->f->lookup_in >> i & 1) && dt_dtype_size(c->in[i].dtype) > w) w = dt_dtype_size(c->in[i].dtype);
    for (int k = 0; k < j->f->n_ops; k++) w = dt_dtype_size(j->f->op[k].dtype) > w ? dt_dtype_size(j->f->op[k].dtype) : w;
    return w;
}

/* Sizes of blocks, tasks and tiles. tiles: full ones and those of an element per row; bytes: of all. */
static dt_status measure(job *j, const int *tiles, int64_t size, int64_t *bytes) {
    const dt_fused *f = j->f;
    j->row = f->row ? f->row : 1;
    j->block = f->row ? dt_fused_block(f->row, tiles[0]) : tiles[0] > 8 ? TILE / 2 : TILE;
    while (!f->row && dt_fused_bytes(j->block, tiles[0], 0, size) > SMALL_BYTES) j->block /= 2;
    *bytes = dt_fused_bytes(j->block, tiles[0], tiles[1], size);
    if (*bytes > DT_FUSED_BYTES || j->size % j->row)
        return dt_fail(DT_E_INTERNAL, "fused: rows of %lld of %lld elements in %d tiles", (long long)j->row, (long long)j->size, tiles[0]);
    j->step = f->row ? (TASK / j->row > 1 ? TASK / j->row : 1) * j->row : TASK;
    if (f->seg) j->step = f->seg * j->row;
    j->tile = ((size_t)(j->block + LONG_ROW) * (size_t)size + 63) & ~(size_t)63;
    j->row_tile = (size_t)(DT_FUSED_ROWS + LONG_ROW) * (size_t)size;
    j->raw_at = (size_t)tiles[0] * j->tile;
    j->rows_at = j->raw_at + j->tile;
    return DT_OK;
}

dt_status DT_ISA_FN(fused)(const dt_kctx *c);
dt_status DT_ISA_FN(fused)(const dt_kctx *c) {
    const dt_fused *f = c->attr;
    if (f->size == 0) return DT_OK;
    job j;
    j.f = f;
    j.size = f->size;
    DT_TRY(resolve(&j));
    int tiles[2] = {f->n_tiles, f->n_row_tiles};
    for (int i = 0; i < f->n_in; i++) j.in_tile[i] = (int8_t)(read_input(&j, i, &c->in[i]) ? tiles[row_in(&j, i)]++ : -1);
    for (int k = 0; k < f->n_ops && f->n_lookups; k++)
        if (f->op[k].kind == DT_FUSED_LOOKUP) begin_look(&j.look[f->op[k].lookup], &f->op[k], &c->in[f->op[k].in[0]], &c->in[f->op[k].in[1]]);
    for (int k = 0; k < f->n_out; k++) {
        j.out[k] = c->out[k].data;
        j.out_size[k] = dt_dtype_size(c->out[k].dtype);
    }
    int64_t bytes;
    DT_TRY(measure(&j, tiles, (int64_t)widest(&j, c), &bytes));
    int64_t tasks = (j.size + j.step - 1) / j.step;
    j.segs = tasks;
    j.sums = c->scratch;
    dt_task_fn task = bytes > SMALL_BYTES ? large_task : small_task;
    if (tasks == 1)
        task(&j, 0);
    else
        dt_team_run(c->team, task, &j, tasks);
    if (f->seg) put_columns(&j);
    return DT_OK;
}
