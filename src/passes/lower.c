/* Lowering: calls on global tensors -> instructions on local parts, one list per device.
 *
 * For each live node, in order: inputs are converted to what the call's rules asked for (casts, redistributions: a form is used again while
 * it is at hand, and made again rather than kept for long), then per device of the call's mesh either the result is an alias of the input's memory (views), or a kernel step is added. */
#include <limits.h>
#include <string.h>

#include "passes/build.h"
#include "passes/look.h"
#include "passes/options.h"

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "plan: out of host memory"); }

static int *prog_slot(const dt_build *b, dt_device d) {
    uint32_t mask = (uint32_t)b->cap_prog_of - 1, at = (d * 2654435761u >> 7) & mask;
    while (b->prog_of[at] && b->prog[b->prog_of[at] - 1].device != d) at = (at + 1) & mask;
    return &b->prog_of[at];
}

int dt_build_prog(const dt_build *b, dt_device d) { return *prog_slot(b, d) - 1; }

dt_status dt_build_storage(dt_build *b, int prog, size_t bytes, int *out) {
    dt_prog *p = &b->prog[prog];
    if (p->n_st == p->cap_st) {
        int cap = p->cap_st ? p->cap_st * 2 : 32;
        dt_storage *s = DT_ARENA_ARRAY(&b->tmp, dt_storage, cap);
        if (!s) return no_memory();
        if (p->n_st) memcpy(s, p->st, sizeof *s * (size_t)p->n_st);
        p->st = s;
        p->cap_st = cap;
    }
    p->st[p->n_st] = (dt_storage){.root = p->n_st, .first = -1, .last = -1, .slot = -1, .bytes = bytes};
    *out = p->n_st++;
    return DT_OK;
}

dt_status dt_build_step(dt_build *b, int prog, int n_in, int n_out, dt_step **out) {
    dt_prog *p = &b->prog[prog];
    if (p->n_step == p->cap_step) {
        int cap = p->cap_step ? p->cap_step * 2 : 32;
        dt_step *s = DT_ARENA_ARRAY(&b->tmp, dt_step, cap);
        if (!s) return no_memory();
        if (p->n_step) memcpy(s, p->step, sizeof *s * (size_t)p->n_step);
        p->step = s;
        p->cap_step = cap;
    }
    dt_step *s = &p->step[p->n_step++];
    int n = n_in + n_out;
    *s = (dt_step){.bucket = -1, .in = {.n_in = (uint16_t)n_in, .n_out = (uint16_t)n_out, .node = (uint32_t)b->node, .scratch = {-1, 0}}};
    s->in.view = DT_ARENA_ARRAY(&b->tmp, dt_view, n ? n : 1);
    s->in.operand = DT_ARENA_ARRAY(&b->tmp, dt_operand, n ? n : 1);
    if (!s->in.view || !s->in.operand) return no_memory();
    *out = s;
    return DT_OK;
}

dt_status dt_build_pval(dt_build *b, const dt_meta *meta, dt_pval **out) {
    dt_pval *v = DT_ARENA_NEW(&b->tmp, dt_pval);
    if (!v || !(v->loc = DT_ARENA_ARRAY(&b->tmp, dt_loc, meta->mesh->n))) return no_memory();
    v->meta = meta;
    for (int i = 0; i < meta->mesh->n; i++) {
        dt_loc *l = &v->loc[i];
        dt_box box;
        dt_layout_box(meta, i, &box);
        *l = (dt_loc){.prog = dt_build_prog(b, meta->mesh->dev[i]), .storage = -1, .view = {.dtype = (dt_dtype)meta->dtype, .ndim = meta->ndim}};
        for (int d = 0; d < meta->ndim; d++) l->view.shape[d] = box.len[d];
        dt_view_set_contiguous(&l->view);
    }
    *out = v;
    return DT_OK;
}

dt_status dt_build_loc_alloc(dt_build *b, dt_loc *l) {
    l->offset = 0;
    return dt_build_storage(b, l->prog, (size_t)dt_view_numel(&l->view) * dt_dtype_size(l->view.dtype), &l->storage);
}

dt_status dt_build_pval_alloc(dt_build *b, dt_pval *v) {
    for (int i = 0; i < v->meta->mesh->n; i++) DT_TRY(dt_build_loc_alloc(b, &v->loc[i]));
    return DT_OK;
}

const dt_kernel *dt_build_kernel(const dt_op *op, dt_device_type dev, const dt_kctx *c) {
    dt_dtype t = c->n_out ? c->out[0].dtype : DT_float32;
    if (dev == DT_SIM) dev = DT_CPU;                            /* simulated programs are cpu's */
    int n_in = op->flags & DT_F_RANDOM ? c->n_in - 2 : c->n_in; /* seed and offset say nothing of the type */
    for (int i = 0; i < n_in; i++)
        if (dt_view_given(&c->in[i])) {
            t = c->in[i].dtype;
            break;
        }
    for (size_t i = 0; i < sizeof op->kernels / sizeof *op->kernels && op->kernels[i].fn; i++) {
        const dt_kernel *k = &op->kernels[i];
        if (k->device == dev && (k->dtypes >> t & 1) && (!k->can_run || k->can_run(c))) return k;
    }
    return NULL;
}

void dt_build_bind(dt_step *s, int i, const dt_loc *l) {
    s->in.view[i] = l->view;
    s->in.operand[i] = (dt_operand){l->storage, l->offset};
}

dt_status dt_build_kernel_of(dt_build *b, int prog, const dt_op *op, dt_step *s) {
    dt_instr *in = &s->in;
    in->kind = DT_I_KERNEL;
    in->ctx.op = op;
    in->ctx.n_in = in->n_in;
    in->ctx.n_out = in->n_out;
    in->ctx.in = in->view;
    in->ctx.out = in->view + in->n_in;
    dt_device dev = b->prog[prog].device;
    const dt_kernel *k = dt_build_kernel(op, dt_device_kind(dev), &in->ctx);
    if (!k) {
        DT_STR(t, 128);
        for (int i = 0; i < in->n_in; i++) dt_str_add(&t, "%s%s", i ? ", " : "", dt_dtype_name(in->view[i].dtype));
        return dt_fail(DT_E_NOTIMPL, "%s: not available on %s for (%s)", dt_op_name(op), dt_device_type_name(dt_device_kind(dev)), t.buf);
    }
    in->fn = k->fn;
    if (op->scratch) {
        size_t bytes = op->scratch(&in->ctx);
        if (bytes) {
            int st;
            DT_TRY(dt_build_storage(b, prog, bytes, &st));
            in->scratch = (dt_operand){st, 0};
        }
    }
    s->inplace_first = op->inplace;
    s->inplace_any = op->inplace && op->pointwise;
    return DT_OK;
}

dt_status dt_build_kernel_step(dt_build *b, int prog, const dt_op *op, const void *attr, int n_in, int n_out, const dt_loc *loc, dt_geom *geom) {
    dt_step *s;
    DT_TRY(dt_build_step(b, prog, n_in, n_out, &s));
    for (int k = 0; k < n_in + n_out; k++) dt_build_bind(s, k, &loc[k]);
    s->in.ctx.attr = attr;
    s->in.ctx.in_place = geom;
    s->in.ctx.out_place = geom + n_in;
    return dt_build_kernel_of(b, prog, op, s);
}

dt_status dt_build_unary(dt_build *b, const dt_op *op, const dt_loc *in, dt_loc *out) {
    dt_step *s;
    DT_TRY(dt_build_loc_alloc(b, out));
    DT_TRY(dt_build_step(b, in->prog, 1, 1, &s));
    dt_build_bind(s, 0, in);
    dt_build_bind(s, 1, out);
    dt_geom *g = DT_ARENA_ARRAY(&b->tmp, dt_geom, 2);
    if (!g) return no_memory();
    for (int i = 0; i < 2; i++) {
        g[i].first = true;
        memcpy(g[i].shape, out->view.shape, sizeof g[i].shape);
    }
    s->in.ctx.in_place = g;
    s->in.ctx.out_place = g + 1;
    return dt_build_kernel_of(b, in->prog, op, s);
}

/* A form of v that was made before and is at hand. */
static dt_pval *at_hand(const dt_build *b, const dt_pval *v, const dt_meta *to) {
    for (dt_pval *c = v->converted; c; c = c->next)
        if (c->meta == to && dt_at_hand(c->last, b->node)) return c;
    return NULL;
}

dt_status dt_build_convert(dt_build *b, dt_pval *v, const dt_meta *to, dt_pval **out) {
    if (v->meta == to) {
        *out = v;
        return DT_OK;
    }
    dt_pval *old = at_hand(b, v, to);
    if (old) {
        if (old->last < b->node) old->last = b->node;
        *out = old;
        return DT_OK;
    }
    dt_pval *r = v;
    const dt_meta *moved;
    DT_TRY(dt_meta_with_dtype(to, (dt_dtype)v->meta->dtype, &moved));
    if (moved != v->meta) DT_TRY(dt_build_reshard(b, v, moved, &r));
    if (moved != to) {
        dt_pval *cast;
        DT_TRY(dt_build_pval(b, to, &cast));
        for (int i = 0; i < to->mesh->n; i++) DT_TRY(dt_build_unary(b, &dt_op_to_dtype, &r->loc[i], &cast->loc[i]));
        r = cast;
    }
    dt_pval *copy = DT_ARENA_NEW(&b->tmp, dt_pval); /* r may itself be on another list */
    if (!copy) return no_memory();
    *copy = *r;
    copy->converted = NULL;
    copy->last = b->node;
    copy->next = v->converted;
    v->converted = copy;
    *out = copy;
    return DT_OK;
}

/* ---- one node ---------------------------------------------------------------------------------------------------------------------- */
static dt_status add_number(dt_build *b, int in, dt_dtype from, dt_dtype to, int *index) {
    if (b->n_numbers == b->cap_numbers) {
        int cap = b->cap_numbers ? b->cap_numbers * 2 : 16;
        dt_number_plan *n = DT_ARENA_ARRAY(b->arena, dt_number_plan, cap);
        if (!n) return no_memory();
        if (b->n_numbers) memcpy(n, b->number, sizeof *n * (size_t)b->n_numbers);
        b->number = n;
        b->cap_numbers = cap;
    }
    b->number[b->n_numbers] = (dt_number_plan){(uint32_t)b->node, (uint32_t)in, (uint8_t)from, (uint8_t)to};
    *index = b->n_numbers++;
    return DT_OK;
}

static dt_pval *pval_of(dt_build *b, const dt_gvalue *v) { return v->ready ? b->ext[v->index] : b->out[v->node][v->out]; }

void dt_build_geom(dt_geom *g, const dt_meta *m, int pos) {
    dt_box box;
    dt_layout_box(m, pos, &box);
    for (int d = 0; d < m->ndim; d++) {
        g->lo[d] = box.lo[d];
        g->shape[d] = m->shape[d];
    }
    g->first = m->wrapped || dt_layout_is_first(m, pos);
}

/* Inputs converted and numbers registered; in[k] NULL for numbers and absent inputs. */
static dt_status node_inputs(dt_build *b, const dt_gnode *n, dt_pval **in, int *number) {
    const dt_call *c = n->call;
    for (int k = 0; k < c->n_in; k++) {
        in[k] = NULL;
        if (!c->in[k]) continue;
        if (c->in[k]->wrapped)
            DT_TRY(add_number(b, k, (dt_dtype)c->in[k]->dtype, (dt_dtype)c->used[k]->dtype, &number[k]));
        else
            DT_TRY(dt_build_convert(b, pval_of(b, n->in[k]), c->used[k], &in[k]));
    }
    return DT_OK;
}

static bool try_alias(const dt_call *c, int pos, dt_pval *const *in, dt_pval *const *out, const dt_geom *geom) {
    const dt_loc *base = &in[0]->loc[pos];
    for (int k = 0; k < c->n_out; k++) {
        dt_loc *o = &out[k]->loc[pos];
        dt_alias a = {.attr = c->attr, .in = &base->view, .in_place = geom, .out_place = geom + c->n_in + k, .out_index = k, .out = &o->view};
        if (!c->op->alias(&a)) {
            for (int q = 0; q <= k; q++) dt_view_set_contiguous(&out[q]->loc[pos].view);
            return false;
        }
        o->storage = base->storage;
        o->offset = base->offset + a.offset * (int64_t)dt_dtype_size(o->view.dtype);
    }
    return true;
}

dt_status dt_build_contiguous(dt_build *b, const dt_loc *l, dt_loc *out) {
    *out = *l;
    dt_view_set_contiguous(&out->view);
    return dt_build_unary(b, &dt_op_clone, l, out);
}

static bool wants_contiguous(const dt_call *c, int pos, dt_pval *const *in, const int *number, dt_view *views) {
    dt_kctx ctx = {.op = c->op, .attr = c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = views, .out = views + c->n_in};
    (void)in;
    (void)number;
    const dt_kernel *k = dt_build_kernel(c->op, dt_device_kind(c->mesh->dev[pos]), &ctx);
    return k && (k->flags & DT_K_CONTIGUOUS);
}

static dt_status node_kernel(dt_build *b, const dt_call *c, int pos, dt_pval *const *in, const int *number, dt_pval *const *out, dt_geom *geom) {
    int prog = dt_build_prog(b, c->mesh->dev[pos]), n = c->n_in + c->n_out;
    dt_loc *loc = DT_ARENA_ARRAY(&b->tmp, dt_loc, n);
    dt_view *views = DT_ARENA_ARRAY(&b->tmp, dt_view, n);
    if (!loc || !views) return no_memory();
    for (int k = 0; k < c->n_in; k++) {
        if (in[k])
            loc[k] = in[k]->loc[pos];
        else if (c->in[k])
            loc[k] = (dt_loc){prog, -2, number[k] * 8, {.dtype = (dt_dtype)c->used[k]->dtype}}; /* -2: the numbers' slot */
        else
            loc[k] = (dt_loc){prog, -1, 0, {.dtype = DT_DTYPE_NONE}};
        views[k] = loc[k].view;
    }
    for (int k = 0; k < c->n_out; k++) {
        DT_TRY(dt_build_loc_alloc(b, &out[k]->loc[pos]));
        loc[c->n_in + k] = out[k]->loc[pos];
        views[c->n_in + k] = loc[c->n_in + k].view;
    }
    if (wants_contiguous(c, pos, in, number, views))
        for (int k = 0; k < c->n_in; k++)
            if (in[k] && !dt_view_contiguous(&loc[k].view)) {
                dt_loc from = loc[k];
                DT_TRY(dt_build_contiguous(b, &from, &loc[k]));
            }
    dt_step *s;
    DT_TRY(dt_build_step(b, prog, c->n_in, c->n_out, &s));
    for (int k = 0; k < n; k++) dt_build_bind(s, k, &loc[k]);
    s->in.ctx.attr = c->attr;
    s->in.ctx.in_place = geom;
    s->in.ctx.out_place = geom + c->n_in;
    DT_TRY(dt_build_kernel_of(b, prog, c->op, s));
    s->inplace_written = dt_op_get_info(c->op)->n_written > 0;
    return DT_OK;
}

/* The op's results on every device of its mesh. */
static dt_status node_compute(dt_build *b, const dt_gnode *n, dt_pval **in, const int *number, dt_pval **out) {
    const dt_call *c = n->call;
    for (int pos = 0; pos < c->mesh->n; pos++) {
        dt_geom *geom = DT_ARENA_ARRAY(&b->tmp, dt_geom, c->n_in + c->n_out + 1);
        if (!geom) return no_memory();
        for (int k = 0; k < c->n_in; k++)
            if (c->used[k]) dt_build_geom(&geom[k], c->used[k], pos);
        for (int k = 0; k < c->n_out; k++) dt_build_geom(&geom[c->n_in + k], c->out[k], pos);
        if (c->op->alias && in[0] && try_alias(c, pos, in, out, geom)) continue;
        DT_TRY(node_kernel(b, c, pos, in, number, out, geom));
    }
    return DT_OK;
}

static uint64_t layout_after(const dt_call *c, dt_pval *const *in, const dt_pval *out, int k) {
    for (int i = 0; i < out->meta->mesh->n; i++)
        if (!dt_view_contiguous(&out->loc[i].view)) return dt_hash_mix(dt_hash_mix(in[0] ? in[0]->layout : 1, c->link.hash), (uint64_t)k + 1) | 1;
    return 0;
}

/* redistribute, from_local, to_local: no kernel of their own. */
static dt_status node_lowered(dt_build *b, const dt_gnode *n, dt_pval **in, dt_pval **out) {
    const dt_call *c = n->call;
    if (c->op == &dt_op_redistribute) {
        DT_TRY(dt_build_convert(b, in[0], c->out[0], out));
        if (*out != in[0] && (*out)->last < b->last_use[b->node]) (*out)->last = b->last_use[b->node];
        return DT_OK;
    }
    if (c->op == &dt_op__expert_exchange) return dt_build_exchange(b, c, in, out);
    DT_TRY(dt_build_pval(b, c->out[0], out));
    for (int i = 0; i < c->out[0]->mesh->n; i++) {
        dt_device dev = c->out[0]->mesh->dev[i];
        const dt_loc *src;
        if (c->op == &dt_op_to_local)
            src = &in[0]->loc[*(const int64_t *)c->attr];
        else { /* from_local: the i-th tensor, brought to the i-th device if it is elsewhere */
            dt_pval *p = in[i];
            if (p->meta->mesh->ndim || p->meta->mesh->dev[0] != dev) {
                const dt_meta *m;
                DT_TRY(dt_meta_with_spec(p->meta, dt_mesh_single(dev), NULL, &m));
                DT_TRY(dt_build_reshard(b, p, m, &p));
            }
            src = &p->loc[0];
        }
        dt_view shape = (*out)->loc[i].view;
        (*out)->loc[i] = *src;
        (void)shape;
    }
    (*out)->layout = layout_after(c, in, *out, 0);
    return DT_OK;
}

static dt_status lower_node(dt_build *b, int i) {
    const dt_gnode *n = &b->g->node[i];
    const dt_call *c = n->call;
    b->node = i;
    dt_pval **in = DT_ARENA_ARRAY(&b->tmp, dt_pval *, c->n_in + 1), **out = DT_ARENA_ARRAY(&b->tmp, dt_pval *, c->n_out + 1);
    int *number = DT_ARENA_ARRAY(&b->tmp, int, c->n_in + 1);
    if (!in || !out || !number) return no_memory();
    DT_TRY(node_inputs(b, n, in, number));
    b->out[i] = out;
    if (c->op->flags & DT_F_LOWERED) return node_lowered(b, n, in, out);
    for (int k = 0; k < c->n_out; k++) DT_TRY(dt_build_pval(b, c->out[k], &out[k]));
    if (dt_ring_wanted(c)) return dt_build_ring(b, c, in, number, out);
    if (dt_build_is_staged(c)) return dt_build_staged(b, c, in[0], out);
    DT_TRY(node_compute(b, n, in, number, out));
    for (int k = 0; k < c->n_out; k++) out[k]->layout = layout_after(c, in, out[k], k);
    return DT_OK;
}

/* ---- setting up ---------------------------------------------------------------------------------------------------------------------- */
static dt_status grow_progs(dt_build *b) {
    int cap = b->cap_prog_of ? b->cap_prog_of * 4 : 8;
    dt_prog *p = DT_ARENA_ARRAY(&b->tmp, dt_prog, cap / 2);
    b->prog_of = DT_ARENA_ARRAY(&b->tmp, int, cap);
    if (!p || !b->prog_of) return no_memory();
    if (b->n_prog) memcpy(p, b->prog, sizeof *p * (size_t)b->n_prog);
    b->prog = p;
    b->cap_prog_of = cap;
    for (int i = 0; i < b->n_prog; i++) *prog_slot(b, p[i].device) = i + 1;
    return DT_OK;
}

static dt_status add_mesh(dt_build *b, const dt_mesh *m) {
    for (int i = 0; i < m->n; i++) {
        if (dt_build_prog(b, m->dev[i]) >= 0) continue;
        if (2 * (b->n_prog + 1) > b->cap_prog_of) DT_TRY(grow_progs(b));
        b->prog[b->n_prog++] = (dt_prog){.device = m->dev[i]};
        *prog_slot(b, m->dev[i]) = b->n_prog;
    }
    return DT_OK;
}

dt_status dt_build_devices(dt_build *b) {
    DT_TRY(grow_progs(b));
    const dt_mesh *last = NULL;
    for (int i = 0; i < b->n_live; i++) {
        const dt_call *c = b->g->node[i].call;
        for (int k = 0; k < c->n_in + c->n_in + c->n_out; k++) {
            const dt_meta *m = k < c->n_in ? c->in[k] : k < 2 * c->n_in ? c->used[k - c->n_in] : c->out[k - 2 * c->n_in];
            if (!m || !m->mesh || m->mesh == last) continue;
            DT_TRY(add_mesh(b, m->mesh));
            last = m->mesh;
        }
    }
    return DT_OK;
}

static dt_status bind_externals(dt_build *b) {
    b->ext = DT_ARENA_ARRAY(&b->tmp, dt_pval *, b->g->n_ext + 1);
    if (!b->ext) return no_memory();
    for (int e = 0; e < b->g->n_ext; e++) {
        const dt_gvalue *v = b->g->ext[e];
        bool donate = dt_gvalue_donatable(v);
        DT_TRY(dt_build_pval(b, v->meta, &b->ext[e]));
        b->ext[e]->layout = v->layout;
        for (int i = 0; i < v->meta->mesh->n; i++) {
            dt_loc *l = &b->ext[e]->loc[i];
            if (!v->part[i]->contiguous) memcpy(l->view.stride, v->part[i]->stride, sizeof(int64_t) * (size_t)v->meta->ndim);
            DT_TRY(dt_build_storage(b, l->prog, (size_t)dt_view_numel(&l->view) * dt_dtype_size(l->view.dtype), &l->storage));
            dt_storage *s = &b->prog[l->prog].st[l->storage];
            s->kind = DT_ST_EXT;
            s->donate = donate;
            s->ext = (uint32_t)e;
            s->pos = (uint32_t)i;
        }
    }
    return DT_OK;
}

static dt_status find_last_uses(dt_build *b) {
    b->last_use = DT_ARENA_ARRAY(&b->tmp, int, b->n_live + 1);
    if (!b->last_use) return no_memory();
    for (int i = 0; i < b->n_live; i++) {
        const dt_gnode *n = &b->g->node[i];
        b->last_use[i] = i;
        for (int k = 0; k < n->call->n_out; k++)
            if (n->out[k]->named) b->last_use[i] = INT_MAX;
        for (int k = 0; k < n->call->n_in; k++) {
            const dt_gvalue *v = n->in[k];
            if (v && !v->ready && b->last_use[v->node] < i) b->last_use[v->node] = i;
        }
    }
    return DT_OK;
}

static dt_status build(dt_build *b) {
    while (b->n_live < b->g->n && b->g->node[b->n_live].live) b->n_live++;
    DT_TRY(find_last_uses(b));
    DT_TRY(dt_build_devices(b));
    DT_TRY(bind_externals(b));
    b->out = DT_ARENA_ARRAY(&b->tmp, dt_pval **, b->n_live + 1);
    if (!b->out) return no_memory();
    int *same = NULL;
    if (dt_options_get()->cse) DT_TRY(dt_build_cse(b, &same));
    for (int i = 0; i < b->n_live; i++)
        if (same && same[i] != i)
            b->out[i] = b->out[same[i]];
        else
            DT_TRY(lower_node(b, i));
    return dt_build_finish(b);
}

dt_status dt_pass_lower(const dt_graph *g, dt_plan **out) {
    dt_plan *p = dt_calloc(1, sizeof *p);
    if (!p) return no_memory();
    dt_arena_init(&p->arena);
    atomic_store(&p->refs, 1);
    dt_build b = {.g = g, .plan = p, .arena = &p->arena};
    dt_arena_init(&b.tmp);
    dt_dump_begin(g);
    dt_status s = build(&b);
    dt_dump_end(g, s);
    dt_arena_fini(&b.tmp);
    if (s) {
        dt_plan_unref(p);
        return s;
    }
    *out = p;
    return DT_OK;
}
