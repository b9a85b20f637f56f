/* Fusion: elementwise steps of one shape become one step that works tile by tile.
 *
 * A greedy scan in program order keeps open groups. A step joins the group that made one of its inputs if it reads that input exactly as it
 * was written; two open groups that meet in a step are merged. A group runs where its last member stood. That is legal as long as nobody
 * outside has read one of its results, so the first such reader closes it. What only members read needs no memory at all.
 *
 *        a = x * 2          a ┐
 *        b = relu(a)        b ├ one step, at d's place; b is an output because m reads it
 *        d = b + y          d ┘
 *        m = b @ w
 *
 * Rejected: moving members up to the first one's place (inputs made in between would forbid most groups). Steps that only share an input are not
 * fused: reading it twice costs less than the longer life of everything in between. */
#include <string.h>

#include "passes/build.h"
#include "plan/backend.h"
#include "plan/fused.h"

typedef struct group {
    int n, last;
    bool open;
    int into; /* merged into that group; -1: none */
    int member[DT_FUSED_OPS];
} group;

typedef struct fuse {
    dt_build *b;
    dt_prog *p;
    const dt_backend *backend;
    int *maker;    /* (n_st,) step that writes a storage, -1: an input of the plan */
    int *group_of; /* (n_step,) -1: none */
    bool *escapes; /* (n_st,) */
    bool *outside; /* (n_st,) read by a step that is not in its maker's group */
    group *g;
    int n_groups;
} fuse;

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "fuse: out of host memory"); }

/* ---- what may be fused ----------------------------------------------------------------------------------------------------------------- */
static bool half_float(dt_dtype t) { return dt_pw_tile_dtype(t) != t; }

/* One rounding only: a conversion to 16 bits goes through f32, which is exact for f32 and 16-bit sources. */
static bool cast_fits(dt_dtype from, dt_dtype to) { return !half_float(to) || from == DT_float32 || half_float(from); }

static bool fusable(const fuse *f, const dt_step *s) {
    const dt_instr *in = &s->in;
    if (in->kind != DT_I_KERNEL || in->fn != f->backend->elementwise || in->n_out != 1 || in->n_in > DT_PW_MAX_IN) return false;
    int code = in->ctx.op->pointwise;
    if (in->n_in != dt_pw_inputs(code)) return false;
    for (int k = 0; k < in->n_in; k++)
        if (!dt_view_given(&in->view[k])) return false;
    const dt_view *o = &in->view[in->n_in];
    if (!dt_view_contiguous(o)) return false;
    if (code == DT_PW_CAST) return cast_fits(in->view[0].dtype, o->dtype);
    return f->backend->can_fuse(code, dt_pw_tile_dtype(in->view[dt_pw_key(code)].dtype));
}

static bool same_shape(const dt_view *a, const dt_view *b) { return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->ndim); }

/* Is input k of s the whole result of the step that made it, as that step wrote it? */
static bool reads_whole(const fuse *f, const dt_step *s, int k) {
    const dt_step *m = &f->p->step[f->maker[s->in.operand[k].slot]];
    const dt_view *o = &m->in.view[m->in.n_in], *v = &s->in.view[k];
    return s->in.operand[k].offset == 0 && v->dtype == o->dtype && same_shape(v, o) && dt_view_contiguous(v);
}

static int find(const fuse *f, int g) {
    while (g >= 0 && f->g[g].into >= 0) g = f->g[g].into;
    return g;
}

static int group_making(const fuse *f, int st) {
    if (st < 0 || f->maker[st] < 0) return -1;
    return find(f, f->group_of[f->maker[st]]);
}

/* ---- limits: inputs, outputs and tiles of a would-be group ------------------------------------------------------------------------------------ */
static bool same_operand(const dt_view *x, dt_operand a, const dt_view *y, dt_operand b) {
    return a.slot == b.slot && a.offset == b.offset && x->dtype == y->dtype && same_shape(x, y) &&
           !memcmp(x->stride, y->stride, sizeof(int64_t) * (size_t)x->ndim);
}

static bool is_member(const int *member, int n, int step) {
    for (int i = 0; i < n; i++)
        if (member[i] == step) return true;
    return false;
}

static int count_inputs(const fuse *f, const int *member, int n) {
    struct {
        const dt_instr *in;
        int k;
    } seen[DT_FUSED_IN];
    int count = 0;
    for (int i = 0; i < n; i++) {
        const dt_instr *in = &f->p->step[member[i]].in;
        for (int k = 0; k < in->n_in; k++) {
            int st = in->operand[k].slot, q = 0;
            if (st >= 0 && f->maker[st] >= 0 && is_member(member, n, f->maker[st])) continue;
            while (q < count && !same_operand(&seen[q].in->view[seen[q].k], seen[q].in->operand[seen[q].k], &in->view[k], in->operand[k])) q++;
            if (q < count) continue;
            if (count == DT_FUSED_IN) return count + 1;
            seen[count].in = in;
            seen[count++].k = k;
        }
    }
    return count;
}

/* Would the union of these groups and step `at` stay within the limits? Results that others read later are counted in the end (few_results). */
static bool fits(const fuse *f, const int *groups, int n_groups, int at) {
    int member[DT_FUSED_OPS], n = 0;
    for (int i = 0; i < n_groups; i++) {
        const group *g = &f->g[groups[i]];
        if (n + g->n + 1 > DT_FUSED_OPS) return false;
        memcpy(member + n, g->member, sizeof(int) * (size_t)g->n);
        n += g->n;
    }
    member[n++] = at;
    int in = count_inputs(f, member, n), outs = 1;
    for (int i = 0; i + 1 < n; i++) {
        const dt_instr *s = &f->p->step[member[i]].in;
        outs += f->escapes[s->operand[s->n_in].slot];
    }
    return in <= DT_FUSED_IN - 2 && outs <= DT_FUSED_OUT;
}

/* ---- the scan ------------------------------------------------------------------------------------------------------------------------------ */
static int by_number(const int *a, int n, int x) {
    int i = 0;
    while (i < n && a[i] < x) i++;
    return i;
}

static void group_add(group *g, int step) {
    int at = by_number(g->member, g->n, step);
    memmove(g->member + at + 1, g->member + at, sizeof(int) * (size_t)(g->n - at));
    g->member[at] = step;
    g->n++;
    if (step > g->last) g->last = step;
}

/* The open groups that step `at` could join; false if it must stand alone. */
static bool candidates(const fuse *f, int at, int *groups, int *n) {
    const dt_step *s = &f->p->step[at];
    *n = 0;
    for (int k = 0; k < s->in.n_in; k++) {
        int g = group_making(f, s->in.operand[k].slot);
        if (g < 0 || !f->g[g].open) continue;
        const dt_step *first = &f->p->step[f->g[g].member[0]];
        if (!reads_whole(f, s, k) || !same_shape(&s->in.view[s->in.n_in], &first->in.view[first->in.n_in])) return false;
        if (!is_member(groups, *n, g)) groups[(*n)++] = g;
    }
    return true;
}

static void close_made(fuse *f, const dt_step *s, int own) {
    for (int k = 0; k < s->in.n_in; k++) {
        int g = group_making(f, s->in.operand[k].slot);
        if (s->in.operand[k].slot >= 0 && g >= 0 && g != own) {
            f->g[g].open = false;
            f->outside[s->in.operand[k].slot] = true;
        }
    }
}

static void scan_step(fuse *f, int at) {
    const dt_step *s = &f->p->step[at];
    int groups[DT_PW_MAX_IN], n = 0, own = -1;
    if (fusable(f, s)) {
        if (!candidates(f, at, groups, &n) || (n && !fits(f, groups, n, at))) n = 0;
        if (n == 0) {
            own = f->n_groups++;
            f->g[own] = (group){.open = true, .into = -1, .last = at};
        } else
            own = groups[0];
        for (int i = 1; i < n; i++) {
            group *g = &f->g[groups[i]];
            for (int k = 0; k < g->n; k++) group_add(&f->g[own], g->member[k]);
            g->into = own;
        }
        group_add(&f->g[own], at);
        f->group_of[at] = own;
    }
    close_made(f, s, own);
}

/* ---- making the steps ---------------------------------------------------------------------------------------------------------------------------- */
typedef struct making {
    const fuse *f;
    const group *g;
    dt_fused *x;
    dt_view view[DT_FUSED_IN + DT_FUSED_OUT];
    dt_operand operand[DT_FUSED_IN], out[DT_FUSED_OUT];
    dt_view out_view[DT_FUSED_OUT];
} making;

static int input_number(making *m, const dt_instr *in, int k) {
    for (int i = 0; i < m->x->n_in; i++)
        if (same_operand(&m->view[i], m->operand[i], &in->view[k], in->operand[k])) return i;
    m->view[m->x->n_in] = in->view[k];
    m->operand[m->x->n_in] = in->operand[k];
    return m->x->n_in++;
}

/* Inputs first, so that results can be numbered behind them. */
static void number_inputs(making *m) {
    for (int i = 0; i < m->g->n; i++) {
        const dt_instr *in = &m->f->p->step[m->g->member[i]].in;
        dt_fused_op *o = &m->x->op[i];
        o->n_in = (uint8_t)in->n_in;
        for (int k = 0; k < in->n_in; k++) {
            int st = in->operand[k].slot, maker = st >= 0 ? m->f->maker[st] : -1;
            if (maker >= 0 && is_member(m->g->member, m->g->n, maker)) continue;
            o->in[k] = (uint8_t)input_number(m, in, k);
            m->x->last_read[o->in[k]] = (uint8_t)i;
        }
    }
}

static void fill_ops(making *m) {
    for (int i = 0; i < m->g->n; i++) {
        const dt_instr *in = &m->f->p->step[m->g->member[i]].in;
        dt_fused_op *o = &m->x->op[i];
        int code = in->ctx.op->pointwise, st_out = in->operand[in->n_in].slot;
        o->code = code;
        o->key = dt_pw_tile_dtype(in->view[dt_pw_key(code)].dtype);
        o->dtype = in->view[in->n_in].dtype;
        o->op = in->ctx.op;
        o->params = in->ctx.attr;
        o->out = o->tile = -1;
        for (int k = 0; k < in->n_in; k++) {
            int st = in->operand[k].slot, maker = st >= 0 ? m->f->maker[st] : -1;
            if (maker < 0 || !is_member(m->g->member, m->g->n, maker)) continue;
            int at = by_number(m->g->member, m->g->n, maker);
            o->in[k] = (uint8_t)(m->x->n_in + at);
            m->x->op[at].read = true;
        }
        if (!m->f->escapes[st_out] && !m->f->outside[st_out] && i + 1 < m->g->n) continue;
        o->out = (int8_t)m->x->n_out;
        m->x->made_by[m->x->n_out] = (uint8_t)i;
        m->out_view[m->x->n_out] = in->view[in->n_in];
        m->out[m->x->n_out++] = in->operand[in->n_in];
    }
}

static void find_depends(making *m) {
    uint32_t of[DT_FUSED_IN + DT_FUSED_OPS];
    dt_fused *x = m->x;
    for (int i = 0; i < x->n_in; i++) of[i] = 1u << i;
    for (int i = 0; i < x->n_ops; i++) {
        uint32_t d = 0;
        for (int k = 0; k < x->op[i].n_in; k++) d |= of[x->op[i].in[k]];
        of[x->n_in + i] = d;
        if (x->op[i].out >= 0) x->depends[(int)x->op[i].out] = d;
    }
}

/* Tiles of results by a linear scan: a tile is free again after its value's last reader, which may write where it read if elements are as wide. */
static void assign_tiles(dt_fused *x) {
    int last[DT_FUSED_OPS], busy_until[DT_FUSED_OPS], n = 0;
    size_t size[DT_FUSED_OPS];
    for (int i = 0; i < x->n_ops; i++) {
        last[i] = i;
        for (int k = 0; k < x->op[i].n_in; k++)
            if (x->op[i].in[k] >= x->n_in) last[x->op[i].in[k] - x->n_in] = i;
    }
    for (int i = 0; i < x->n_ops; i++) {
        if (x->op[i].out >= 0 && !half_float(x->op[i].dtype)) continue;
        size_t bytes = dt_dtype_size(dt_pw_tile_dtype(x->op[i].dtype));
        int t = 0;
        while (t < n && (busy_until[t] > i || (busy_until[t] == i && size[t] != bytes))) t++;
        if (t == n) n++;
        busy_until[t] = last[i];
        size[t] = bytes;
        x->op[i].tile = (int8_t)t;
    }
    x->n_tiles = n;
}

static const char *group_name(const fuse *f, const group *g) {
    DT_STR(s, 256);
    for (int i = 0; i < g->n; i++) dt_str_add(&s, "%s%s", i ? ", " : "fused(", dt_op_name(f->p->step[g->member[i]].in.ctx.op));
    dt_str_add(&s, ")");
    const char *name = dt_intern(s.buf);
    return name ? name : "fused";
}

static dt_status make_step(const fuse *f, const group *g, dt_step *out) {
    making m = {.f = f, .g = g, .x = DT_ARENA_NEW(f->b->arena, dt_fused)};
    if (!m.x) return no_memory();
    m.x->n_ops = g->n;
    m.x->name = group_name(f, g);
    number_inputs(&m);
    fill_ops(&m);
    find_depends(&m);
    assign_tiles(m.x);
    const dt_step *last = &f->p->step[g->last];
    int n_in = m.x->n_in, n = n_in + m.x->n_out;
    *out = *last;
    dt_instr *in = &out->in;
    in->n_in = (uint16_t)n_in;
    in->n_out = (uint16_t)m.x->n_out;
    in->view = DT_ARENA_ARRAY(f->b->arena, dt_view, n);
    in->operand = DT_ARENA_ARRAY(f->b->arena, dt_operand, n);
    if (!in->view || !in->operand) return no_memory();
    memcpy(in->view, m.view, sizeof *in->view * (size_t)n_in);
    memcpy(in->view + n_in, m.out_view, sizeof *in->view * (size_t)m.x->n_out);
    memcpy(in->operand, m.operand, sizeof *in->operand * (size_t)n_in);
    memcpy(in->operand + n_in, m.out, sizeof *in->operand * (size_t)m.x->n_out);
    in->fn = f->backend->fused;
    in->fused = m.x;
    in->ctx = (dt_kctx){.op = last->in.ctx.op, .attr = m.x, .n_in = n_in, .n_out = m.x->n_out, .in = in->view, .out = in->view + n_in};
    out->inplace_any = true;
    return DT_OK;
}

/* Only now is it known which results others read: a group that would hand out too many stays as it was. */
static bool few_results(const fuse *f, const group *g) {
    int n = 0;
    for (int i = 0; i < g->n; i++) {
        const dt_instr *in = &f->p->step[g->member[i]].in;
        int st = in->operand[in->n_in].slot;
        n += f->escapes[st] || f->outside[st] || i + 1 == g->n;
    }
    return n <= DT_FUSED_OUT;
}

static dt_status rewrite(fuse *f) {
    dt_prog *p = f->p;
    int n = 0;
    dt_step *steps = DT_ARENA_ARRAY(&f->b->tmp, dt_step, p->n_step + 1);
    if (!steps) return no_memory();
    for (int i = 0; i < p->n_step; i++) {
        int g = find(f, f->group_of[i]);
        if (g < 0 || f->g[g].n == 1 || !few_results(f, &f->g[g]))
            steps[n++] = p->step[i];
        else if (f->g[g].last == i)
            DT_TRY(make_step(f, &f->g[g], &steps[n++]));
    }
    p->step = steps;
    p->n_step = n;
    return DT_OK;
}

static dt_status fuse_program(dt_build *b, dt_prog *p, bool *escapes) {
    fuse f = {.b = b, .p = p, .backend = dt_backend_of(dt_device_kind(p->device)), .escapes = escapes};
    if (!f.backend || !f.backend->fused || p->n_step < 2) return DT_OK;
    f.maker = DT_ARENA_ARRAY(&b->tmp, int, p->n_st + 1);
    f.outside = DT_ARENA_ARRAY(&b->tmp, bool, p->n_st + 1);
    f.group_of = DT_ARENA_ARRAY(&b->tmp, int, p->n_step + 1);
    f.g = DT_ARENA_ARRAY(&b->tmp, group, p->n_step + 1);
    if (!f.maker || !f.outside || !f.group_of || !f.g) return no_memory();
    for (int i = 0; i < p->n_st; i++) f.maker[i] = -1;
    for (int i = 0; i < p->n_step; i++) {
        f.group_of[i] = -1;
        scan_step(&f, i);
        const dt_instr *in = &p->step[i].in;
        for (int k = 0; k < in->n_out; k++)
            if (in->operand[in->n_in + k].slot >= 0) f.maker[in->operand[in->n_in + k].slot] = i;
    }
    return rewrite(&f);
}

dt_status dt_build_fuse(dt_build *b, bool **escapes) {
    for (int q = 0; q < b->n_prog; q++) DT_TRY(fuse_program(b, &b->prog[q], escapes[q]));
    return DT_OK;
}
