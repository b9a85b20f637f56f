/* Ops along a sharded dimension, in stages: a kernel on each shard, an all-gather of small summaries, a last kernel. See dt_staged in ops/op.h.
 *
 *   x  Shard(d) ──part──> summaries, `width` entries of every shard ──all-gather──> join ──> results      argmax, topk …
 *   x  Shard(d) ──the op itself──> y ──part──> summaries ──all-gather──┐
 *                                  └───────────────────────────────> join ──> results, Shard(d)           cumsum, cummax …
 *
 * The summaries are a tensor that is sharded as x is, along the same mesh dimensions: with as many times `width` entries as there are shards every
 * device holds just its own, in the order of the shards. Controller thread. */
#include <string.h>

#include "passes/build.h"

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "plan: out of host memory"); }

typedef struct staging {
    dt_build *b;
    const dt_call *c;
    const dt_staged *s;
    int along; /* the summaries' dimension */
} staging;

/* Is mesh dimension k one that cuts the dimensions in question? */
static bool cuts(const dt_call *c, int k) {
    const dt_meta *m = c->used[0];
    return m->place[k].kind == DT_SHARD && m->mesh->dim[k] > 1 && c->op->staged->dims(c->attr, m->ndim) >> m->place[k].dim & 1;
}

bool dt_build_is_staged(const dt_call *c) {
    bool any = false;
    if (!c->op->staged || !c->used[0]->ndim) return false;
    for (int k = 0; k < c->mesh->ndim; k++) any |= cuts(c, k);
    return any;
}

/* The metadata of a summary: sharded as the input, and with the shards brought together. */
static dt_status summary_meta(const staging *s, dt_dtype dtype, const dt_meta **parts, const dt_meta **whole) {
    const dt_meta *m = s->c->used[0];
    int64_t n = s->s->width ? s->s->width(s->c->attr) : 1;
    dt_placement p[DT_MAX_MESH_DIM], q[DT_MAX_MESH_DIM];
    bool flat = s->s->along(s->c->attr) < 0;
    dt_type t = dt_meta_type(m);
    if (flat) t = (dt_type){.ndim = 1};
    t.dtype = dtype;
    for (int k = 0; k < m->mesh->ndim; k++) {
        p[k] = q[k] = flat ? DT_R : m->place[k];
        if (!cuts(s->c, k)) continue;
        n *= m->mesh->dim[k];
        p[k] = DT_S(s->along);
        q[k] = DT_R;
    }
    t.shape[s->along] = n;
    DT_TRY(dt_meta_intern(&t, m->mesh, p, parts));
    return dt_meta_intern(&t, m->mesh, q, whole);
}

/* One kernel step on device pos: operands bound, fn NULL = the op's own kernel. */
static dt_status step(const staging *s, int pos, dt_kernel_fn fn, int n_in, dt_pval *const *in, int n_out, dt_pval *const *out, const dt_meta *number) {
    dt_build *b = s->b;
    int prog = in[0]->loc[pos].prog;
    dt_loc from[8];
    dt_geom *g = DT_ARENA_ARRAY(&b->tmp, dt_geom, n_in + n_out);
    if (!g) return no_memory();
    for (int i = 0; i < n_in + n_out; i++) {
        const dt_pval *v = i < n_in ? in[i] : out[i - n_in];
        from[i] = v->loc[pos];
        dt_build_geom(&g[i], v->meta, pos);
        if (i < n_in && !dt_view_contiguous(&from[i].view)) DT_TRY(dt_build_contiguous(b, &v->loc[pos], &from[i]));
        if (number && i >= n_in - s->s->indices - 1 && i < n_in) { /* a summary: which shard is this one? */
            dt_geom own;
            dt_build_geom(&own, number, pos);
            g[i].lo[s->along] = own.lo[s->along] / (s->s->width && s->s->width(s->c->attr) ? s->s->width(s->c->attr) : 1);
        }
    }
    dt_step *t;
    DT_TRY(dt_build_step(b, prog, n_in, n_out, &t));
    for (int i = 0; i < n_in + n_out; i++) dt_build_bind(t, i, &from[i]);
    t->in.ctx.attr = s->c->attr;
    t->in.ctx.in_place = g;
    t->in.ctx.out_place = g + n_in;
    if (!fn) {
        DT_TRY(dt_build_kernel_of(b, prog, s->c->op, t));
        t->inplace_first = t->inplace_any = false; /* the input may be wanted elsewhere */
        return DT_OK;
    }
    dt_instr *x = &t->in;
    x->kind = DT_I_KERNEL;
    x->fn = fn;
    x->ctx.op = s->c->op;
    x->ctx.n_in = n_in;
    x->ctx.n_out = n_out;
    x->ctx.in = x->view;
    x->ctx.out = x->view + n_in;
    size_t bytes = s->s->scratch ? s->s->scratch(&x->ctx) : 0;
    if (!bytes) return DT_OK;
    int st;
    DT_TRY(dt_build_storage(b, prog, bytes, &st));
    x->scratch = (dt_operand){st, 0};
    return DT_OK;
}

static dt_status on_all(const staging *s, dt_kernel_fn fn, int n_in, dt_pval *const *in, int n_out, dt_pval *const *out, const dt_meta *number) {
    for (int i = 0; i < n_out; i++) DT_TRY(dt_build_pval_alloc(s->b, out[i]));
    for (int pos = 0; pos < s->c->mesh->n; pos++) DT_TRY(step(s, pos, fn, n_in, in, n_out, out, number));
    return DT_OK;
}

dt_status dt_build_staged(dt_build *b, const dt_call *c, dt_pval *in, dt_pval **out) {
    staging s = {b, c, c->op->staged, c->op->staged->along(c->attr)};
    if (s.along < 0) s.along = 0;
    dt_pval *made[2] = {in}, *sums[2], *all[4];
    const dt_meta *parts = NULL, *whole;
    int n_made = s.s->scan ? c->n_out : 1, n_sums = 1 + s.s->indices, n = 0;
    if (s.s->scan) {
        for (int i = 0; i < n_made; i++) DT_TRY(dt_build_pval(b, c->out[i], &made[i]));
        DT_TRY(on_all(&s, NULL, 1, &in, n_made, made, NULL));
        for (int i = 0; i < n_made; i++) all[n++] = made[i];
    }
    const dt_meta *whole_of[2];
    for (int i = 0; i < n_sums; i++) {
        DT_TRY(summary_meta(&s, i ? DT_int64 : (dt_dtype)made[0]->meta->dtype, &parts, &whole));
        DT_TRY(dt_build_pval(b, parts, &sums[i]));
        whole_of[i] = whole;
    }
    DT_TRY(on_all(&s, s.s->part, n_made, made, n_sums, sums, NULL));
    for (int i = 0; i < n_sums; i++) DT_TRY(dt_build_convert(b, sums[i], whole_of[i], &all[n++]));
    return on_all(&s, s.s->join, n, all, c->n_out, out, parts);
}
