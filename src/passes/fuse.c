/* Fusion, which steps: elementwise steps and reductions of rows become one step that works block by block.
 *
 * A greedy scan in program order keeps open groups. A step joins the groups that made its inputs if it reads them exactly as they were written,
 * or a value of an element per row spread over the rows; several open groups that meet in a step are merged. A group runs where its last member
 * stood. That is legal as long as nobody outside has read one of its results, so the first such reader closes it. What only members read needs
 * no memory at all.
 *
 *        m = x.amax(-1, True)   m ┐
 *        e = exp(x - m)         e ├ one step, at y's place; y is an output because z reads it
 *        y = e / e.sum(-1, True)y ┘
 *        z = y @ w
 *
 * Members are told apart by sizes alone: a full tensor has `size` elements, one of an element per row has size / row. Shapes may differ between
 * members (reshapes are free), since everything is row-major.
 *
 * A step that reads rows by index begins a group, and nothing in its group makes what it reads: the table and the indices are walked at random.
 *
 * Rejected: moving members up to the first one's place (inputs made in between would forbid most groups). Steps that only share an input are not
 * fused: reading it twice costs less than the longer life of everything in between. */
#include <string.h>

#include "ops/movement.h"
#include "ops/reduce.h"
#include "passes/fuse.h"

enum { ROW_MAX = 65536, LONG_ROW = 16384, FEW_ROWS = 8 }; /* rows that long only if there are many: they are what a team divides */

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "fuse: out of host memory"); }

/* ---- what may be fused ----------------------------------------------------------------------------------------------------------------- */
/* One rounding only: a conversion to 16 bits goes through f32, which is exact for f32 and 16-bit sources. */
static bool cast_fits(dt_dtype from, dt_dtype to) { return !dt_fuse_half(to) || from == DT_float32 || dt_fuse_half(from); }

bool dt_fuse_dropout(const dt_fuse *f, const dt_step *s, int64_t *base) {
    const dt_instr *in = &s->in;
    if (in->kind != DT_I_KERNEL || !f->backend->dropout || in->fn != f->backend->dropout || in->n_in != 3 || in->n_out != 1) return false;
    const dt_view *o = &in->view[3];
    const dt_geom *p = in->ctx.out_place;
    if (!dt_view_contiguous(o) || !dt_view_numel(o) || in->view[1].dtype != DT_int64 || in->view[2].dtype != DT_int64) return false;
    int64_t step = 1;
    bool part = false; /* of a dimension: those before it must be of one index */
    *base = 0;
    for (int d = o->ndim - 1; d >= 0; d--) {
        if (part && o->shape[d] != 1) return false;
        part |= o->shape[d] != p->shape[d];
        *base += p->lo[d] * step;
        step *= p->shape[d];
    }
    return true;
}

static bool elementwise(const dt_fuse *f, const dt_step *s) {
    const dt_instr *in = &s->in;
    int64_t base;
    if (dt_fuse_dropout(f, s, &base)) return true;
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

static bool row_fits(int64_t size, int64_t row) { return row >= 2 && row <= (size / row < FEW_ROWS ? LONG_ROW : ROW_MAX); }

/* Elements of a row if exactly the last dimensions are reduced and each row is one run of memory, else 0. */
static int64_t trailing(const dt_view *v, const dt_ints *dims) {
    int64_t n = 1;
    bool kept = false;
    for (int d = v->ndim - 1; d >= 0; d--) {
        if (v->shape[d] == 1) continue;
        if (!dt_ints_has(dims, d))
            kept = true;
        else if (kept || v->stride[d] != n) /* its kernel walks memory by falling strides, the interpreter by dimensions */
            return 0;
        else
            n *= v->shape[d];
    }
    return n;
}

int dt_fuse_reduction(const dt_fuse *f, const dt_step *s, int64_t *row) {
    const dt_instr *in = &s->in;
    if (in->kind != DT_I_KERNEL || in->n_in != 1 || in->n_out != 1 || !f->backend->reduction) return DT_FUSED_CODE;
    int kind = f->backend->reduction(in->fn);
    const dt_view *v = &in->view[0], *o = &in->view[1];
    if (!kind || !dt_dtype_is_float(v->dtype) || !dt_dtype_is_float(o->dtype) || !dt_view_contiguous(o)) return DT_FUSED_CODE;
    int64_t size = dt_view_numel(v);
    if (!size) return DT_FUSED_CODE;
    const dt_reduce_attr *a = in->ctx.attr;
    *row = trailing(v, &a->dim);
    if (!row_fits(size, *row)) return DT_FUSED_CODE;
    dt_reduce_plan p; /* the kernel must take each row in one line, as the interpreter does */
    dt_reduce_plan_make(v, &a->dim, &p);
    bool line = !p.columns && p.segs == 1 && p.n_red == 1 && p.red_stride[0] == 1;
    return line ? kind : DT_FUSED_CODE;
}

enum { SUMMED_AT_ONCE = 4 * 32768 }; /* elements that one task may sum */

int64_t dt_fuse_columns(const dt_fuse *f, const dt_step *s, int64_t *row) {
    const dt_instr *in = &s->in;
    if (in->kind != DT_I_KERNEL || in->n_in != 1 || in->n_out != 1 || !f->backend->reduction) return 0;
    int kind = f->backend->reduction(in->fn);
    const dt_view *v = &in->view[0], *o = &in->view[1];
    if ((kind != DT_FUSED_SUM && kind != DT_FUSED_MEAN) || !dt_dtype_is_float(v->dtype) || !dt_dtype_is_float(o->dtype)) return 0;
    if (!dt_view_contiguous(v) || !dt_view_contiguous(o) || !dt_view_numel(v)) return 0;
    dt_reduce_plan p; /* one run of columns, all rows beneath each other */
    dt_reduce_plan_make(v, &((const dt_reduce_attr *)in->ctx.attr)->dim, &p);
    if (!p.columns || p.n_keep != 1 || p.n_red != 1 || p.red_stride[0] != p.outs || !row_fits(p.outs * p.reds, p.outs)) return 0;
    if (p.segs == 1 && p.outs * p.reds >= SUMMED_AT_ONCE) return 0; /* its kernel divides the columns among the team */
    *row = p.outs;
    return p.seg;
}

/* Rows of a table: the indexed dimension, none but ones before it, and the rest in one run. */
static bool table_of_rows(const dt_view *v, int dim, dt_view *out) {
    int64_t cols = 1;
    for (int d = 0; d < dim; d++)
        if (v->shape[d] != 1) return false;
    for (int d = v->ndim - 1; d > dim; d--) {
        if (v->shape[d] != 1 && v->stride[d] != cols) return false;
        cols *= v->shape[d];
    }
    *out = (dt_view){.dtype = v->dtype, .ndim = 2, .shape = {v->shape[dim], cols}, .stride = {v->stride[dim], 1}};
    return true;
}

/* Lines along the last dimension, at one distance from each other; `index` has the same lines, one behind the other. */
static bool table_of_lines(const dt_view *v, const dt_view *index, dt_view *table, dt_view *lines) {
    int last = v->ndim - 1;
    int64_t n = 1, stride = 0;
    for (int d = last - 1; d >= 0; d--) {
        if (v->shape[d] != index->shape[d]) return false;
        if (v->shape[d] == 1) continue;
        if (n == 1) stride = v->stride[d];
        if (v->stride[d] != stride * n) return false;
        n *= v->shape[d];
    }
    *table = (dt_view){.dtype = v->dtype, .ndim = 2, .shape = {n, v->shape[last]}, .stride = {stride, v->stride[last]}};
    *lines = (dt_view){.dtype = index->dtype, .ndim = 2, .shape = {n, index->shape[last]}, .stride = {index->shape[last], 1}};
    return dt_view_contiguous(index);
}

dt_lookup dt_fuse_lookup(const dt_fuse *f, const dt_step *s, dt_fuse_read *r) {
    const dt_instr *in = &s->in;
    if (in->kind != DT_I_KERNEL || !f->backend->lookup || in->n_in != 2 || in->n_out != 1) return DT_LOOKUP_NONE;
    dt_lookup kind = f->backend->lookup(in->fn);
    if (!kind) return kind;
    r->table = kind == DT_LOOKUP_EMBEDDING;
    r->index = !r->table;
    const dt_view *t = &in->view[r->table], *x = &in->view[r->index], *o = &in->view[2];
    r->dim = kind == DT_LOOKUP_SELECT || kind == DT_LOOKUP_GATHER ? (int)((const dt_index_attr *)in->ctx.attr)->dim : 0;
    if (!dt_view_given(x) || !t->ndim || !in->ctx.in_place || !dt_view_contiguous(o) || !dt_view_numel(o)) return DT_LOOKUP_NONE;
    if (dt_dtype_size(t->dtype) > 8 || dt_dtype_categories[t->dtype] == 3) return DT_LOOKUP_NONE;
    r->lo = in->ctx.in_place[r->table].lo[r->dim];
    r->limit = in->ctx.in_place[r->table].shape[r->dim];
    r->view[1] = *x;
    bool fits;
    if (kind == DT_LOOKUP_GATHER)
        fits = r->dim == t->ndim - 1 && x->ndim == t->ndim && table_of_lines(t, x, &r->view[0], &r->view[1]);
    else if (kind == DT_LOOKUP_EMBEDDING) { /* its table may have columns that do not touch */
        r->view[0] = *t;
        fits = t->ndim == 2;
    } else
        fits = table_of_rows(t, r->dim, &r->view[0]);
    return fits ? kind : DT_LOOKUP_NONE;
}

static int find(const dt_fuse *f, int g) {
    while (g >= 0 && f->g[g].into >= 0) g = f->g[g].into;
    return g;
}

static int group_making(const dt_fuse *f, int st) {
    if (st < 0 || f->maker[st] < 0) return -1;
    return find(f, f->group_of[f->maker[st]]);
}

/* ---- how inputs are read ------------------------------------------------------------------------------------------------------------------------ */
void dt_fuse_expand(const dt_view *v, const dt_view *o, dt_view *out) {
    *out = *v;
    if (dt_view_numel(v) == 1) return;
    out->ndim = o->ndim;
    for (int d = 0; d < o->ndim; d++) {
        int k = d - (o->ndim - v->ndim);
        out->shape[d] = o->shape[d];
        out->stride[d] = k < 0 || (v->shape[k] == 1 && o->shape[d] != 1) ? 0 : v->stride[k];
    }
}

static bool same_shape(const dt_view *a, const dt_view *b) { return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->ndim); }

bool dt_fuse_same(const dt_view *x, dt_operand a, const dt_view *y, dt_operand b) {
    return a.slot == b.slot && a.offset == b.offset && x->dtype == y->dtype && same_shape(x, y) &&
           !memcmp(x->stride, y->stride, sizeof(int64_t) * (size_t)x->ndim);
}

/* Does v, of an element per row, repeat each over its row of o? */
static bool spreads(const dt_view *v, const dt_view *o, int64_t row) {
    dt_view x;
    if (dt_view_numel(v) == 1) return dt_view_numel(o) == row;
    dt_fuse_expand(v, o, &x);
    if (x.ndim != o->ndim) return false;
    int d = o->ndim;
    for (int64_t n = 1; n < row;) {
        if (--d < 0 || (o->shape[d] != 1 && x.stride[d] != 0)) return false;
        n *= o->shape[d];
        if (n > row) return false;
    }
    x.ndim = d;
    return dt_view_contiguous(&x);
}

/* ---- how a step joins ------------------------------------------------------------------------------------------------------------------------------ */
typedef struct joining {
    int64_t size, row; /* of the group it will be in */
    int64_t seg;       /* of a sum over columns, which makes no value for members */
    bool rows;         /* its result has an element per row */
    int n, group[DT_PW_MAX_IN];
} joining;

/* The open group that made input k, or NULL. */
static const dt_fuse_group *source(const dt_fuse *f, const dt_step *s, int k) {
    int g = group_making(f, s->in.operand[k].slot);
    return g >= 0 && f->g[g].open ? &f->g[g] : NULL;
}

/* Is the step one of an element per row, and how long are the rows? */
static void find_role(const dt_fuse *f, const dt_step *s, joining *j) {
    const dt_view *o = &s->in.view[s->in.n_in];
    j->size = dt_view_numel(o);
    for (int k = 0; k < s->in.n_in && !j->rows; k++) {
        const dt_fuse_group *g = source(f, s, k);
        if (!g || !g->row || f->sums[f->maker[s->in.operand[k].slot]] || !f->rows[f->maker[s->in.operand[k].slot]] || g->size / g->row != j->size) continue;
        *j = (joining){.size = g->size, .row = g->row, .rows = true};
    }
    for (int k = 0; k < s->in.n_in && !j->row; k++) {
        const dt_fuse_group *g = source(f, s, k);
        if (!g || !g->size) continue;
        if (g->row)
            j->row = g->size == j->size ? g->row : 0;
        else if (g->size < j->size && j->size % g->size == 0 && row_fits(j->size, j->size / g->size))
            j->row = j->size / g->size;
    }
}

/* May input k of s be a value inside of the group that j describes? */
static bool joins(const dt_fuse *f, const dt_step *s, int k, const joining *j) {
    const dt_fuse_group *g = source(f, s, k);
    const dt_step *m = &f->p->step[f->maker[s->in.operand[k].slot]];
    const dt_view *v = &s->in.view[k], *o = &s->in.view[s->in.n_in], *w = &m->in.view[m->in.n_in];
    if (s->in.operand[k].offset || v->dtype != w->dtype || f->sums[f->maker[s->in.operand[k].slot]]) return false;
    bool below = !g->row && j->row && g->size != j->size && g->size == j->size / j->row; /* all of g has an element per row */
    if (!below && (g->size != j->size || (g->row && j->row && g->row != j->row))) return false;
    bool rows = below || f->rows[f->maker[s->in.operand[k].slot]];
    if (f->backend->reduction && f->backend->reduction(s->in.fn)) return !rows && dt_view_contiguous(v) && dt_view_numel(v) == j->size;
    if (rows == j->rows) return dt_view_contiguous(v) && dt_view_numel(v) == dt_view_numel(o);
    return rows && spreads(v, o, j->row);
}

static int count_inputs(const dt_fuse *f, const int *member, int n) {
    struct {
        dt_view view;
        dt_operand at;
    } seen[DT_FUSED_IN];
    int count = 0;
    for (int i = 0; i < n; i++) {
        const dt_instr *in = &f->p->step[member[i]].in;
        for (int k = 0; k < in->n_in; k++) {
            int st = in->operand[k].slot, q = 0;
            if (st >= 0 && f->maker[st] >= 0 && dt_fuse_is_member(member, n, f->maker[st])) continue;
            while (q < count && !dt_fuse_same(&seen[q].view, seen[q].at, &in->view[k], in->operand[k])) q++;
            if (q < count) continue;
            if (count == DT_FUSED_IN) return count + 1;
            seen[count].view = in->view[k];
            seen[count++].at = in->operand[k];
        }
    }
    return count;
}

/* Would the union of these groups and step `at` stay within the limits? Results that others read later are counted in the end. */
static bool fits(const dt_fuse *f, const joining *j, int at) {
    int member[DT_FUSED_MEMBERS], n = 0;
    for (int i = 0; i < j->n; i++) {
        const dt_fuse_group *g = &f->g[j->group[i]];
        if (n + g->n + 1 > DT_FUSED_MEMBERS) return false;
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

/* The open groups that step s joins: those all of whose values it reads as a member may. */
static void find_groups(const dt_fuse *f, const dt_step *s, joining *j) {
    int refused[DT_PW_MAX_IN], n_refused = 0;
    j->n = 0;
    for (int k = 0; k < s->in.n_in; k++)
        if (source(f, s, k) && !joins(f, s, k, j)) refused[n_refused++] = group_making(f, s->in.operand[k].slot);
    for (int k = 0; k < s->in.n_in; k++) {
        int g = group_making(f, s->in.operand[k].slot);
        if (source(f, s, k) && !dt_fuse_is_member(refused, n_refused, g) && !dt_fuse_is_member(j->group, j->n, g)) j->group[j->n++] = g;
    }
}

/* ---- the scan ------------------------------------------------------------------------------------------------------------------------------ */
static void group_add(dt_fuse_group *g, int step) {
    int at = 0;
    while (at < g->n && g->member[at] < step) at++;
    memmove(g->member + at + 1, g->member + at, sizeof(int) * (size_t)(g->n - at));
    g->member[at] = step;
    g->n++;
    if (step > g->last) g->last = step;
}

static void close_made(dt_fuse *f, const dt_step *s, int own) {
    for (int k = 0; k < s->in.n_in; k++) {
        int g = group_making(f, s->in.operand[k].slot);
        if (s->in.operand[k].slot >= 0 && g >= 0 && g != own) {
            f->g[g].open = false;
            f->outside[s->in.operand[k].slot] = true;
        }
    }
}

/* Group g becomes one of j's kind. */
static void adapt(dt_fuse *f, dt_fuse_group *g, const joining *j) {
    if (g->size != j->size)
        for (int i = 0; i < g->n; i++) f->rows[g->member[i]] = true;
    g->size = j->size;
    if (j->row) g->row = j->row;
    if (j->seg) g->seg = j->seg;
}

/* The group that step `at` is in from now on. */
static int enter(dt_fuse *f, int at, joining *j) {
    while (j->n && !fits(f, j, at)) j->n--;
    if (!j->n) {
        bool reduces = j->rows && f->backend->reduction(f->p->step[at].in.fn);
        if (!reduces) *j = (joining){.size = dt_view_numel(&f->p->step[at].in.view[f->p->step[at].in.n_in])};
        f->g[f->n_groups] = (dt_fuse_group){.open = true, .into = -1, .last = at};
        j->group[j->n++] = f->n_groups++;
    }
    int own = j->group[0];
    for (int i = 0; i < j->n; i++) adapt(f, &f->g[j->group[i]], j);
    for (int i = 1; i < j->n; i++) {
        dt_fuse_group *g = &f->g[j->group[i]];
        if (g->row) f->g[own].row = g->row;
        if (g->seg) f->g[own].seg = g->seg;
        for (int k = 0; k < g->n; k++) group_add(&f->g[own], g->member[k]);
        g->into = own;
    }
    group_add(&f->g[own], at);
    f->group_of[at] = own;
    f->rows[at] = j->rows;
    return own;
}

static void scan_step(dt_fuse *f, int at) {
    const dt_step *s = &f->p->step[at];
    joining j = {0};
    dt_fuse_read read;
    int own = -1;
    if (dt_fuse_lookup(f, s, &read)) {
        own = enter(f, at, &j);
    } else if (dt_fuse_reduction(f, s, &j.row) != DT_FUSED_CODE) {
        j.size = dt_view_numel(&s->in.view[0]);
        j.rows = true;
        find_groups(f, s, &j);
        own = enter(f, at, &j);
    } else if ((j.seg = dt_fuse_columns(f, s, &j.row)) != 0) {
        j.size = dt_view_numel(&s->in.view[0]);
        f->sums[at] = true;
        find_groups(f, s, &j);
        if (j.n && fits(f, &j, at)) own = enter(f, at, &j);
    } else if (elementwise(f, s)) {
        j = (joining){0};
        find_role(f, s, &j);
        find_groups(f, s, &j);
        own = enter(f, at, &j);
    }
    close_made(f, s, own);
}

static dt_status rewrite(dt_fuse *f) {
    dt_prog *p = f->p;
    int n = 0;
    dt_step *steps = DT_ARENA_ARRAY(&f->b->tmp, dt_step, p->n_step + 1), *made = DT_ARENA_ARRAY(&f->b->tmp, dt_step, f->n_groups + 1);
    bool *good = DT_ARENA_ARRAY(&f->b->tmp, bool, f->n_groups + 1);
    if (!steps || !made || !good) return no_memory();
    for (int g = 0; g < f->n_groups; g++)
        if (f->g[g].into < 0 && f->g[g].n > 1) DT_TRY(dt_fuse_make(f, &f->g[g], &made[g], &good[g]));
    for (int i = 0; i < p->n_step; i++) {
        int g = find(f, f->group_of[i]);
        if (g < 0 || !good[g])
            steps[n++] = p->step[i];
        else if (f->g[g].last == i)
            steps[n++] = made[g];
    }
    p->step = steps;
    p->n_step = n;
    return DT_OK;
}

static dt_status fuse_program(dt_build *b, dt_prog *p, bool *escapes) {
    dt_fuse f = {.b = b, .p = p, .backend = dt_backend_of(dt_device_kind(p->device)), .escapes = escapes};
    if (!f.backend || !f.backend->fused || p->n_step < 2) return DT_OK;
    f.maker = DT_ARENA_ARRAY(&b->tmp, int, p->n_st + 1);
    f.outside = DT_ARENA_ARRAY(&b->tmp, bool, p->n_st + 1);
    f.group_of = DT_ARENA_ARRAY(&b->tmp, int, p->n_step + 1);
    f.rows = DT_ARENA_ARRAY(&b->tmp, bool, p->n_step + 1);
    f.sums = DT_ARENA_ARRAY(&b->tmp, bool, p->n_step + 1);
    f.g = DT_ARENA_ARRAY(&b->tmp, dt_fuse_group, p->n_step + 1);
    if (!f.maker || !f.outside || !f.group_of || !f.rows || !f.sums || !f.g) return no_memory();
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
