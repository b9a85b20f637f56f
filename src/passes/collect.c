/* Redistribution steps: the pieces that reshard.c found become aliases (when every device needs only itself) or one collective. */
#include <string.h>

#include "passes/build.h"
#include "plan/nodes.h"

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "redistribute: out of host memory"); }

/* A view of `box` inside the part `l` that holds `have`; *offset in bytes from the storage. */
dt_view dt_build_sub_view(const dt_loc *l, const dt_box *have, const dt_box *box, int64_t *offset) {
    dt_view v = l->view;
    int64_t o = 0;
    for (int d = 0; d < v.ndim; d++) {
        o += dt_box_local(have, d, box->lo[d]) * v.stride[d];
        v.shape[d] = box->len[d];
    }
    *offset = o * (int64_t)dt_dtype_size(v.dtype);
    return v;
}

dt_status dt_build_zero(dt_build *b, dt_device d, const dt_loc *l) {
    dt_coll *c = DT_ARENA_NEW(b->arena, dt_coll); /* a collective of one: fills its output with zeros */
    dt_party *p = DT_ARENA_NEW(b->arena, dt_party);
    dt_pull *q = DT_ARENA_NEW(b->arena, dt_pull);
    dt_step *s;
    if (!c || !p || !q) return no_memory();
    *q = (dt_pull){.dst = l->view, .offset = l->offset};
    *p = (dt_party){.device = d, .n_pulls = {1, 0}, .pull = {q, NULL}};
    *c = (dt_coll){.n = 1, .index = -1, .kind = "local", .mesh_dim = "", .party = p};
    DT_TRY(dt_build_step(b, l->prog, 0, 1, &s));
    s->in.kind = DT_I_COLL;
    s->in.coll = c;
    s->in.view[0] = l->view;
    s->in.operand[0] = (dt_operand){l->storage, 0};
    return DT_OK;
}

/* Every device needs only its own part: a view of it, or zeros where it holds no share of a Partial. */
static dt_status local(dt_build *b, dt_pval *v, const dt_reshard *r, dt_pval *out) {
    bool strided = false;
    for (int i = 0; i < out->meta->mesh->n; i++) {
        dt_loc *l = &out->loc[i];
        const dt_reshard_dev *d = &r->dev[i];
        if (d->n == 1 && d->piece[0].n_src == 1) {
            dt_box have;
            int64_t offset;
            int src = d->piece[0].src[0];
            dt_layout_box(v->meta, src, &have);
            l->view = dt_build_sub_view(&v->loc[src], &have, &d->piece[0].box, &offset);
            l->storage = v->loc[src].storage;
            l->offset = v->loc[src].offset + offset;
            strided |= !dt_view_contiguous(&l->view);
        } else { /* zeros, or nothing at all */
            DT_TRY(dt_build_storage(b, l->prog, (size_t)dt_view_numel(&l->view) * dt_dtype_size(l->view.dtype), &l->storage));
            if (d->n == 0) continue;
            DT_TRY(dt_build_zero(b, out->meta->mesh->dev[i], l));
        }
    }
    out->layout = strided ? dt_hash_mix(dt_hash_mix(v->layout, (uint64_t)(uintptr_t)v->meta), (uint64_t)(uintptr_t)out->meta) | 1 : 0;
    return DT_OK;
}

/* ---- the collective ------------------------------------------------------------------------------------------------------------------ */
static int party_of(const dt_coll *c, dt_device d) {
    for (int i = 0; i < c->n; i++)
        if (c->party[i].device == d) return i;
    return -1;
}

static void add_party(dt_coll *c, dt_device d) {
    if (party_of(c, d) < 0) c->party[c->n++] = (dt_party){.device = d, .in = {-1, 0}, .out = {-1, 0}};
}

static bool same_need(const dt_reshard_dev *a, const dt_reshard_dev *b, int ndim) {
    if (a->n != b->n) return false;
    for (int i = 0; i < a->n; i++) {
        const dt_piece *p = &a->piece[i], *q = &b->piece[i];
        if (p->n_src != q->n_src || memcmp(p->src, q->src, sizeof(int) * (size_t)p->n_src)) return false;
        if (memcmp(p->box.lo, q->box.lo, sizeof(int64_t) * (size_t)ndim) || memcmp(p->box.len, q->box.len, sizeof(int64_t) * (size_t)ndim)) return false;
    }
    return true;
}

typedef struct emit {
    dt_build *b;
    dt_pval *from, *to;
    const dt_reshard *r;
    dt_coll *c;
} emit;

static dt_pull *next_pull(emit *e, int party, int phase, int cap) {
    dt_party *p = &e->c->party[party];
    if (!p->pull[phase]) p->pull[phase] = DT_ARENA_ARRAY(e->b->arena, dt_pull, cap);
    return p->pull[phase] ? &p->pull[phase][p->n_pulls[phase]++] : NULL;
}

static void count_bytes(emit *e, int sender, const dt_box *box, dt_dtype t) {
    int64_t bytes = dt_box_numel(box, e->to->meta->ndim) * (int64_t)dt_dtype_size(t);
    e->c->bytes_moved += bytes;
    e->c->party[sender].bytes_sent += bytes;
}

/* Device i reduces (or copies) `box` of piece p into its own output. */
static dt_status pull_inputs(emit *e, int i, const dt_piece *p, const dt_box *box, int cap) {
    dt_box mine;
    dt_device dev = e->to->meta->mesh->dev[i];
    dt_layout_box(e->to->meta, i, &mine);
    dt_pull *q = next_pull(e, party_of(e->c, dev), 0, cap);
    if (!q) return no_memory();
    q->dst = dt_build_sub_view(&e->to->loc[i], &mine, box, &q->offset);
    q->n_src = p->n_src;
    q->src = DT_ARENA_ARRAY(e->b->arena, dt_pull_src, p->n_src ? p->n_src : 1);
    if (!q->src) return no_memory();
    for (int k = 0; k < p->n_src; k++) {
        dt_box have;
        dt_device from = e->from->meta->mesh->dev[p->src[k]];
        dt_layout_box(e->from->meta, p->src[k], &have);
        q->src[k].party = party_of(e->c, from);
        q->src[k].view = dt_build_sub_view(&e->from->loc[p->src[k]], &have, box, &q->src[k].offset);
        if (from != dev) count_bytes(e, q->src[k].party, box, q->dst.dtype);
    }
    return DT_OK;
}

/* Device i copies `box` from device j's output, which j reduced in phase 0. */
static dt_status pull_output(emit *e, int i, int j, const dt_box *box, int cap) {
    dt_box mine, theirs;
    const dt_mesh *m = e->to->meta->mesh;
    dt_layout_box(e->to->meta, i, &mine);
    dt_layout_box(e->to->meta, j, &theirs);
    dt_pull *q = next_pull(e, party_of(e->c, m->dev[i]), 1, cap);
    if (!q || !(q->src = DT_ARENA_NEW(e->b->arena, dt_pull_src))) return no_memory();
    q->dst = dt_build_sub_view(&e->to->loc[i], &mine, box, &q->offset);
    q->n_src = 1;
    q->src[0] = (dt_pull_src){.party = party_of(e->c, m->dev[j]), .from_out = true};
    q->src[0].view = dt_build_sub_view(&e->to->loc[j], &theirs, box, &q->src[0].offset);
    count_bytes(e, q->src[0].party, box, q->dst.dtype);
    return DT_OK;
}

static int widest(const dt_box *b, int ndim) {
    int w = 0;
    for (int d = 1; d < ndim; d++)
        if (b->len[d] > b->len[w]) w = d;
    return w;
}

/* The devices that want the same as device i share the reduction: each does its chunk of every piece, then copies the others'. */
static dt_status device_pulls(emit *e, int i) {
    const dt_reshard_dev *d = &e->r->dev[i];
    int ndim = e->to->meta->ndim, n = e->to->meta->mesh->n, group[DT_MAX_DEVICES], size = 0, rank = 0;
    for (int k = 0; e->c->two_phase && k < n; k++)
        if (same_need(d, &e->r->dev[k], ndim)) {
            if (k == i) rank = size;
            group[size++] = k;
        }
    for (int p = 0; p < d->n; p++) {
        const dt_piece *q = &d->piece[p];
        if (size <= 1 || q->n_src <= 1 || ndim == 0) {
            DT_TRY(pull_inputs(e, i, q, &q->box, d->n));
            continue;
        }
        int w = widest(&q->box, ndim);
        for (int k = 0; k < size; k++) {
            dt_box chunk = q->box;
            int64_t lo, len;
            dt_layout_chunk(q->box.len[w], size, k, &lo, &len);
            chunk.lo[w] += lo;
            chunk.len[w] = len;
            if (!len) continue;
            if (k == rank)
                DT_TRY(pull_inputs(e, i, q, &chunk, d->n));
            else
                DT_TRY(pull_output(e, i, group[k], &chunk, d->n * size));
        }
    }
    return DT_OK;
}

dt_status dt_build_coll(dt_build *b, dt_coll *c) {
    if (b->n_colls == b->cap_colls) {
        int cap = b->cap_colls ? b->cap_colls * 2 : 8;
        dt_coll **n = DT_ARENA_ARRAY(b->arena, dt_coll *, cap);
        if (!n) return no_memory();
        if (b->n_colls) memcpy(n, b->coll, sizeof *n * (size_t)b->n_colls);
        b->coll = n;
        b->cap_colls = cap;
    }
    for (int k = 1; k < c->n; k++) c->spans |= dt_device_node(c->party[k].device) != dt_device_node(c->party[0].device);
    c->index = b->n_colls;
    c->node = (uint32_t)b->node;
    b->coll[b->n_colls++] = c;
    return DT_OK;
}

/* One step on each party: input (if it holds any of the source) and output (if it is in the target's mesh). */
static dt_status add_steps(emit *e) {
    for (int p = 0; p < e->c->n; p++) {
        dt_party *y = &e->c->party[p];
        int i = dt_mesh_find(e->from->meta->mesh, y->device), o = dt_mesh_find(e->to->meta->mesh, y->device), prog = dt_build_prog(e->b, y->device);
        dt_step *s;
        DT_TRY(dt_build_step(e->b, prog, i >= 0, o >= 0, &s));
        s->in.kind = DT_I_COLL;
        s->in.coll = e->c;
        s->in.party = p;
        if (i >= 0) {
            s->in.view[0] = e->from->loc[i].view;
            s->in.operand[0] = (dt_operand){e->from->loc[i].storage, e->from->loc[i].offset};
        }
        if (o >= 0) {
            s->in.view[s->in.n_in] = e->to->loc[o].view;
            s->in.operand[s->in.n_in] = (dt_operand){e->to->loc[o].storage, 0};
        }
    }
    return DT_OK;
}

static dt_status collective(dt_build *b, dt_pval *v, const dt_reshard *r, dt_pval *out) {
    emit e = {b, v, out, r, DT_ARENA_NEW(b->arena, dt_coll)};
    if (!e.c) return no_memory();
    char *along = DT_ARENA_ARRAY(b->arena, char, strlen(r->mesh_dim) + 1); /* r's is in memory that the plan outlives */
    if (!along) return no_memory();
    memcpy(along, r->mesh_dim, strlen(r->mesh_dim));
    *e.c = (dt_coll){.reduce = r->reduce, .two_phase = r->all_reduce, .kind = r->kind, .mesh_dim = along};
    e.c->party = DT_ARENA_ARRAY(b->arena, dt_party, v->meta->mesh->n + out->meta->mesh->n);
    if (!e.c->party) return no_memory();
    for (int i = 0; i < v->meta->mesh->n; i++) add_party(e.c, v->meta->mesh->dev[i]);
    for (int i = 0; i < out->meta->mesh->n; i++) add_party(e.c, out->meta->mesh->dev[i]);
    DT_TRY(dt_build_pval_alloc(b, out));
    for (int i = 0; i < out->meta->mesh->n; i++) DT_TRY(device_pulls(&e, i));
    DT_TRY(dt_build_coll(b, e.c));
    return add_steps(&e);
}

/* ---- moves --------------------------------------------------------------------------------------------------------------------------- */
static dt_status move_steps(dt_build *b, dt_coll *c, const dt_loc *const *in, const dt_loc *const *out) {
    for (int p = 0; p < c->n; p++) {
        dt_step *s;
        DT_TRY(dt_build_step(b, dt_build_prog(b, c->party[p].device), in[p] != NULL, out[p] != NULL, &s));
        s->in.kind = DT_I_COLL;
        s->in.coll = c;
        s->in.party = p;
        const dt_loc *both[2] = {in[p], out[p]};
        for (int k = 0, at = 0; k < 2; k++) {
            if (!both[k]) continue;
            s->in.view[at] = both[k]->view;
            s->in.operand[at++] = (dt_operand){both[k]->storage, 0};
        }
    }
    return DT_OK;
}

dt_status dt_build_moves(dt_build *b, const dt_mesh *mesh, const char *kind, const char *mesh_dim, const dt_move *move, int n) {
    if (!n) return DT_OK;
    dt_coll *c = DT_ARENA_NEW(b->arena, dt_coll);
    const dt_loc **in = DT_ARENA_ARRAY(&b->tmp, const dt_loc *, 2 * n), **out = DT_ARENA_ARRAY(&b->tmp, const dt_loc *, 2 * n);
    dt_party *party = DT_ARENA_ARRAY(b->arena, dt_party, 2 * n);
    dt_pull *pull = DT_ARENA_ARRAY(b->arena, dt_pull, n);
    dt_pull_src *src = DT_ARENA_ARRAY(b->arena, dt_pull_src, 2 * n);
    if (!c || !in || !out || !party || !pull || !src) return no_memory();
    *c = (dt_coll){.reduce = DT_SUM, .kind = kind, .mesh_dim = mesh_dim, .party = party};
    for (int i = 0; i < n; i++) {
        add_party(c, mesh->dev[move[i].from]);
        add_party(c, mesh->dev[move[i].to]);
    }
    for (int i = 0; i < n; i++) {
        const dt_move *v = &move[i];
        int from = party_of(c, mesh->dev[v->from]), to = party_of(c, mesh->dev[v->to]), at = 0;
        in[from] = &v->src;
        out[to] = &v->dst;
        pull[i] = (dt_pull){.dst = v->dst.view, .offset = v->dst.offset, .n_src = 1 + v->add, .src = src + 2 * i};
        if (v->add) pull[i].src[at++] = (dt_pull_src){to, true, v->dst.view, v->dst.offset};
        pull[i].src[at] = (dt_pull_src){from, false, v->src.view, v->src.offset};
        party[to].pull[0] = &pull[i];
        party[to].n_pulls[0] = 1;
        c->bytes_moved += dt_view_numel(&v->dst.view) * (int64_t)dt_dtype_size(v->dst.view.dtype);
    }
    DT_TRY(dt_build_coll(b, c));
    return move_steps(b, c, in, out);
}

/* Partials of several kinds (a sum along one mesh dimension, a maximum along another) are resolved one kind at a time. */
static dt_status split_kinds(const dt_meta *from, const dt_meta *to, const dt_meta **mid) {
    *mid = NULL;
    int first = -1;
    dt_placement p[DT_MAX_MESH_DIM];
    bool mixed = false;
    for (int k = 0; k < from->mesh->ndim; k++) {
        p[k] = from->place[k];
        if (p[k].kind != DT_PARTIAL || (from->mesh == to->mesh && dt_placement_equal(p[k], to->place[k]))) continue;
        if (first < 0)
            first = k;
        else if (p[k].reduce != p[first].reduce)
            mixed = true;
    }
    if (!mixed) return DT_OK;
    for (int k = 0; k < from->mesh->ndim; k++)
        if (p[k].kind == DT_PARTIAL && p[k].reduce == from->place[first].reduce) p[k] = DT_R;
    return dt_meta_with_spec(from, from->mesh, p, mid);
}

dt_status dt_build_reshard(dt_build *b, dt_pval *v, const dt_meta *to, dt_pval **out) {
    const dt_meta *mid;
    DT_TRY(split_kinds(v->meta, to, &mid));
    if (mid) {
        dt_pval *m;
        DT_TRY(dt_build_convert(b, v, mid, &m));
        return dt_build_convert(b, m, to, out);
    }
    dt_reshard r;
    DT_TRY(dt_reshard_build(v->meta, to, &b->tmp, &r));
    DT_TRY(dt_build_pval(b, to, out));
    if (r.local) return local(b, v, &r, *out);
    return dt_build_can_pull(b, v, to, &r) ? dt_build_pull(b, v, &r, *out) : collective(b, v, &r, *out);
}
