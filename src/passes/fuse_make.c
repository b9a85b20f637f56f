/* Fusion, the instruction: a group of steps becomes one dt_fused (plan/fused.h). See fuse.c for which steps go together. */
#include <string.h>

#include "ops/reduce.h"
#include "passes/fuse.h"

typedef struct making {
    const dt_fuse *f;
    const dt_fuse_group *g;
    dt_fused *x;
    bool full;                           /* something did not fit */
    int at[DT_FUSED_MEMBERS];            /* the op that member i became */
    int spread[DT_FUSED_OPS];            /* the op that spreads op k's result over rows, -1: none */
    int ref[DT_FUSED_OPS][DT_PW_MAX_IN]; /* what an op reads: input i as i, op k as ~k */
    dt_view view[DT_FUSED_IN], out_view[DT_FUSED_OUT];
    dt_operand operand[DT_FUSED_IN], out[DT_FUSED_OUT];
} making;

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "fuse: out of host memory"); }

/* The member that made what is in this storage, -1: it comes from outside. */
static int maker_in(const making *m, int st) {
    int step = st >= 0 ? m->f->maker[st] : -1;
    for (int i = 0; step >= 0 && i < m->g->n; i++)
        if (m->g->member[i] == step) return i;
    return -1;
}

/* v, as wide as its reader walks it, as an input of the instruction. looked: by a look-up. */
static int input_number(making *m, const dt_view *v, dt_operand at, bool rows, bool looked) {
    dt_fused *x = m->x;
    rows &= dt_view_numel(v) != 1 && !looked;
    for (int i = 0; i < x->n_in; i++)
        if (dt_fuse_same(&m->view[i], m->operand[i], v, at) && (x->rows_in >> i & 1) == rows && (x->lookup_in >> i & 1) == looked) return i;
    if (x->n_in == DT_FUSED_IN) {
        m->full = true;
        return 0;
    }
    m->view[x->n_in] = *v;
    m->operand[x->n_in] = at;
    x->rows_in |= (uint32_t)rows << x->n_in;
    x->lookup_in |= (uint32_t)looked << x->n_in;
    return x->n_in++;
}

static dt_fused_op *new_op(making *m) {
    if (m->x->n_ops == DT_FUSED_OPS) {
        m->full = true;
        return &m->x->op[DT_FUSED_OPS - 1];
    }
    m->spread[m->x->n_ops] = -1;
    dt_fused_op *o = &m->x->op[m->x->n_ops++];
    o->out = o->tile = -1;
    return o;
}

/* Op k's result, an element per row, over whole rows. */
static int spread_op(making *m, int k) {
    if (m->spread[k] >= 0) return m->spread[k];
    dt_dtype t = m->x->op[k].dtype;
    int number = m->x->n_ops;
    dt_fused_op *o = new_op(m);
    o->kind = DT_FUSED_SPREAD;
    o->op = &dt_op_clone;
    o->key = o->dtype = t;
    o->n_in = 1;
    if (m->full) return 0;
    m->ref[number][0] = ~k;
    m->x->op[k].read = true;
    return m->spread[k] = number;
}

/* What member step s reads as its input k. */
static int read_input(making *m, const dt_step *s, int k, bool rows, bool reduces) {
    const dt_instr *in = &s->in;
    int from = maker_in(m, in->operand[k].slot);
    if (from < 0) {
        dt_view v = in->view[k];
        if (!reduces) dt_fuse_expand(&in->view[k], &in->view[in->n_in], &v);
        return input_number(m, &v, in->operand[k], rows, false);
    }
    int op = m->at[from];
    if (m->x->op[op].rows && !rows) op = spread_op(m, op);
    m->x->op[op].read = true;
    return ~op;
}

/* The look-up that step s is. */
static void fill_lookup(making *m, const dt_step *s, dt_lookup kind, const dt_fuse_read *r, int *refs, dt_fused_op *o) {
    refs[0] = input_number(m, &r->view[0], s->in.operand[r->table], false, true);
    refs[1] = input_number(m, &r->view[1], s->in.operand[r->index], false, true);
    o->code = (int)kind;
    o->key = o->dtype;
    o->count = r->lo;
    o->limit = r->limit;
    o->dim = (int16_t)r->dim;
    o->node = s->in.node;
    o->params = NULL;
    if (m->x->n_lookups == DT_FUSED_LOOKUPS)
        m->full = true;
    else
        o->lookup = (int8_t)m->x->n_lookups++;
}

/* What member s does, and its dtypes. */
static void fill_op(making *m, const dt_step *s, dt_fused_op *o) {
    const dt_instr *in = &s->in;
    int code = in->ctx.op->pointwise;
    if (o->kind == DT_FUSED_CODE) {
        o->code = code;
        o->key = dt_pw_tile_dtype(in->view[dt_pw_key(code)].dtype);
    } else if (o->kind == DT_FUSED_DROPOUT) {
        o->key = dt_pw_tile_dtype(o->dtype);
        (void)dt_fuse_dropout(m->f, s, &o->count);
    } else {
        o->key = in->view[0].dtype;
        o->count = dt_reduce_count(in->ctx.in_place, in->view[0].ndim, &((const dt_reduce_attr *)in->ctx.attr)->dim);
    }
    if (o->kind == DT_FUSED_COLUMNS) {
        if (m->f->backend->reduction(in->fn) != DT_FUSED_MEAN) o->count = 0;
        o->code = m->x->n_columns++;
    }
}

/* Op number `op`, member i, makes an output if somebody else reads its result. */
static void add_output(making *m, int i, dt_fused_op *o, int op) {
    const dt_instr *in = &m->f->p->step[m->g->member[i]].in;
    int st_out = in->operand[in->n_in].slot;
    bool columns = o->kind == DT_FUSED_COLUMNS;
    if (!columns && !m->f->escapes[st_out] && !m->f->outside[st_out] && i + 1 < m->g->n) return;
    if (m->x->n_out == DT_FUSED_OUT) {
        m->full = true;
        return;
    }
    o->out = (int8_t)m->x->n_out;
    m->x->made_by[m->x->n_out] = (uint8_t)op;
    m->x->rows_out |= (uint32_t)o->rows << m->x->n_out;
    m->x->columns_out |= (uint32_t)columns << m->x->n_out;
    m->out_view[m->x->n_out] = in->view[in->n_in];
    m->out[m->x->n_out++] = in->operand[in->n_in];
}

static void add_member(making *m, int i) {
    const dt_step *s = &m->f->p->step[m->g->member[i]];
    const dt_instr *in = &s->in;
    int64_t row = 0, base;
    int kind = dt_fuse_columns(m->f, s, &row) ? DT_FUSED_COLUMNS : dt_fuse_reduction(m->f, s, &row), refs[DT_PW_MAX_IN];
    bool rows = m->f->rows[m->g->member[i]], reduces = kind != DT_FUSED_CODE;
    dt_fuse_read read;
    dt_lookup lookup = dt_fuse_lookup(m->f, s, &read);
    if (lookup) kind = DT_FUSED_LOOKUP;
    if (dt_fuse_dropout(m->f, s, &base)) kind = DT_FUSED_DROPOUT;
    for (int k = 0; k < in->n_in && !lookup; k++) refs[k] = read_input(m, s, k, rows && !reduces, reduces);
    int op = m->at[i] = m->x->n_ops;
    dt_fused_op *o = new_op(m);
    if (m->full) return;
    *o = (dt_fused_op){.kind = (uint8_t)kind, .rows = rows, .out = -1, .tile = -1, .op = in->ctx.op, .params = in->ctx.attr};
    o->n_in = (uint8_t)in->n_in;
    o->dtype = in->view[in->n_in].dtype;
    if (lookup)
        fill_lookup(m, s, lookup, &read, refs, o);
    else
        fill_op(m, s, o);
    memcpy(m->ref[op], refs, sizeof refs);
    add_output(m, i, o, op);
}

/* Numbers of values, now that it is known how many are inputs. */
static void number_values(making *m) {
    dt_fused *x = m->x;
    uint32_t of[DT_FUSED_IN + DT_FUSED_OPS];
    for (int i = 0; i < x->n_in; i++) of[i] = 1u << i;
    for (int k = 0; k < x->n_ops; k++) {
        uint32_t d = 0;
        for (int i = 0; i < x->op[k].n_in; i++) {
            int r = m->ref[k][i], v = r < 0 ? x->n_in + ~r : r;
            x->op[k].in[i] = (uint8_t)v;
            if (r >= 0) x->last_read[r] = (uint8_t)k;
            d |= of[v];
        }
        if (x->op[k].kind == DT_FUSED_LOOKUP) d |= 1u << (DT_FUSED_IN + x->op[k].lookup);
        of[x->n_in + k] = d;
        if (x->op[k].out >= 0) x->depends[(int)x->op[k].out] = d;
    }
}

/* Tiles of results by a linear scan: a tile is free again after its value's last reader, which may write where it read if elements are as wide.
 * Full tiles, or those of an element per row. */
static int assign_tiles(dt_fused *x, bool rows) {
    int last[DT_FUSED_OPS], busy_until[DT_FUSED_OPS], n = 0;
    size_t size[DT_FUSED_OPS];
    for (int i = 0; i < x->n_ops; i++) {
        last[i] = i;
        for (int k = 0; k < x->op[i].n_in; k++)
            if (x->op[i].in[k] >= x->n_in) last[x->op[i].in[k] - x->n_in] = i;
    }
    for (int i = 0; i < x->n_ops; i++) {
        dt_fused_op *o = &x->op[i];
        bool sums = o->kind == DT_FUSED_COLUMNS; /* their tile lives on from block to block */
        if (o->rows != rows || (o->out >= 0 && !dt_fuse_half(o->dtype) && !sums)) continue;
        if (sums) {
            o->tile = (int8_t)n;
            busy_until[n++] = DT_FUSED_OPS;
            continue;
        }
        size_t bytes = dt_dtype_size(dt_pw_tile_dtype(o->dtype));
        int t = 0;
        while (t < n && (busy_until[t] > i || (busy_until[t] == i && size[t] != bytes))) t++;
        if (t == n) n++;
        busy_until[t] = last[i];
        size[t] = bytes;
        o->tile = (int8_t)t;
    }
    return n;
}

/* Do the tiles of whole rows fit on a stack? Inputs that are not read in place need one, too. */
static bool tiles_fit(const making *m) {
    const dt_fused *x = m->x;
    int tiles = x->n_tiles, row_tiles = x->n_row_tiles;
    size_t size = 4;
    for (int k = 0; k < x->n_ops; k++) size = dt_dtype_size(x->op[k].dtype) > size ? dt_dtype_size(x->op[k].dtype) : size;
    for (int i = 0; i < x->n_in; i++) {
        const dt_view *v = &m->view[i];
        if (x->lookup_in >> i & 1) continue;
        size = dt_dtype_size(v->dtype) > size ? dt_dtype_size(v->dtype) : size;
        if (dt_fuse_half(v->dtype) || !dt_view_contiguous(v) || dt_view_numel(v) == 1) *(x->rows_in >> i & 1 ? &row_tiles : &tiles) += 1;
    }
    return !x->row || dt_fused_bytes(dt_fused_block(x->row, tiles), tiles, row_tiles, (int64_t)size) <= DT_FUSED_BYTES;
}

static const char *group_name(const making *m) {
    DT_STR(s, 256);
    for (int i = 0; i < m->g->n; i++) dt_str_add(&s, "%s%s", i ? ", " : "fused(", dt_op_name(m->f->p->step[m->g->member[i]].in.ctx.op));
    dt_str_add(&s, ")");
    const char *name = dt_intern(s.buf);
    return name ? name : "fused";
}

static dt_status fill_step(const making *m, dt_step *out) {
    const dt_step *last = &m->f->p->step[m->g->last];
    dt_fused *x = m->x;
    int n_in = x->n_in, n = n_in + x->n_out;
    *out = *last;
    dt_instr *in = &out->in;
    in->n_in = (uint16_t)n_in;
    in->n_out = (uint16_t)x->n_out;
    in->view = DT_ARENA_ARRAY(&m->f->b->tmp, dt_view, n);
    in->operand = DT_ARENA_ARRAY(&m->f->b->tmp, dt_operand, n);
    if (!in->view || !in->operand) return no_memory();
    memcpy(in->view, m->view, sizeof *in->view * (size_t)n_in);
    memcpy(in->view + n_in, m->out_view, sizeof *in->view * (size_t)x->n_out);
    memcpy(in->operand, m->operand, sizeof *in->operand * (size_t)n_in);
    memcpy(in->operand + n_in, m->out, sizeof *in->operand * (size_t)x->n_out);
    in->fn = m->f->backend->fused;
    in->fused = x;
    in->ctx = (dt_kctx){.op = last->in.ctx.op, .attr = x, .n_in = n_in, .n_out = x->n_out, .in = in->view, .out = in->view + n_in};
    in->scratch = (dt_operand){-1, 0};
    if (x->n_columns) {
        int64_t segs = (x->size / x->row + x->seg - 1) / x->seg;
        DT_TRY(dt_build_storage(m->f->b, (int)(m->f->p - m->f->b->prog), (size_t)(x->n_columns * segs * x->row) * sizeof(double), &in->scratch.slot));
    }
    out->inplace_any = true;
    return DT_OK;
}

dt_status dt_fuse_make(const dt_fuse *f, const dt_fuse_group *g, dt_step *out, bool *made) {
    making m = {.f = f, .g = g, .x = DT_ARENA_NEW(&f->b->tmp, dt_fused)};
    if (!m.x) return no_memory();
    m.x->size = g->size;
    m.x->row = g->row;
    m.x->seg = g->seg;
    m.x->name = group_name(&m);
    for (int i = 0; i < g->n && !m.full; i++) add_member(&m, i);
    if (m.full) return DT_OK;
    number_values(&m);
    m.x->n_tiles = assign_tiles(m.x, false);
    m.x->n_row_tiles = assign_tiles(m.x, true);
    *made = tiles_fit(&m);
    return *made ? fill_step(&m, out) : DT_OK;
}
