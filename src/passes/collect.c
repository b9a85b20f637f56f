/* Redistribution steps: the pieces that reshard.c found become aliases (when every device needs only itself) or one collective. */
#include <limits.h>
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
    dt_view *v = dt_arena_copy(b->arena, &l->view, sizeof l->view);
    dt_step *s;
    if (!c || !p || !q || !v) return no_memory();
    *q = (dt_pull){.dst = v, .offset = l->offset};
    *p = (dt_party){.device = d, .n_pulls = {1, 0}, .pull = {q, NULL}};
    *c = (dt_coll){.n = 1, .n_groups = 1, .index = -1, .kind = "local", .mesh_dim = "", .party = p};
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
            int src = d->piece[0].src;
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
const dt_view *dt_build_keep_view(dt_kept_view *keep, dt_build *b, const dt_view *v) {
    for (int i = 0; i < 2; i++) {
        const dt_view *l = keep->last[i];
        size_t dims = sizeof(int64_t) * (size_t)v->ndim;
        if (l && l->dtype == v->dtype && l->ndim == v->ndim && !memcmp(l->shape, v->shape, dims) && !memcmp(l->stride, v->stride, dims)) return l;
    }
    keep->last[1] = keep->last[0];
    return keep->last[0] = dt_arena_copy(b->arena, v, sizeof *v);
}

typedef struct emit {
    dt_build *b;
    dt_pval *from, *to;
    const dt_reshard *r;
    dt_coll *c;
    dt_box *have, *mine;        /* (from's mesh,) and (to's mesh,): what devices hold */
    int *party_to;              /* (to's mesh,) parties; position i of from's mesh is party i */
    int *base;                  /* (from's mesh,) the first of the devices that are reduced together with it */
    int64_t *sent;              /* (from's mesh,) bytes that each of those sends, by the first one */
    int *next, *size;           /* (to's mesh,) devices that need the same, as a list and, for its first, counted */
    bool alike;                 /* the sources of any reduced piece look the same */
    const dt_pull_src **shared; /* (from's mesh,) the sources of reduced pieces by the first one, when they look the same */
    dt_kept_view dst, src;
} emit;

static int64_t box_bytes(const emit *e, const dt_box *box) {
    return dt_box_numel(box, e->to->meta->ndim) * (int64_t)dt_dtype_size((dt_dtype)e->to->meta->dtype);
}

/* Each source of a piece is read by `readers` devices. What a device reads of itself is taken back by not_sent. */
static void sent(emit *e, const dt_piece *p, int64_t bytes, int64_t readers) {
    if (!p->n_src) return;
    e->sent[p->src] += bytes * readers;
    e->c->bytes_moved += bytes * readers * p->n_src;
}
static void not_sent(emit *e, int party, int64_t bytes) {
    e->c->party[party].bytes_sent -= bytes;
    e->c->bytes_moved -= bytes;
}
static bool is_source(const emit *e, const dt_piece *p, int party) { return p->n_src && party < e->from->meta->mesh->n && e->base[party] == p->src; }

/* All devices like device i read all of piece p: those that are among its sources read themselves. Walks the shorter of both lists. */
static void count_piece(emit *e, int i, const dt_piece *p) {
    const dt_mesh *to = e->to->meta->mesh;
    int64_t bytes = box_bytes(e, &p->box);
    sent(e, p, bytes, e->size[i]);
    if (e->size[i] <= p->n_src) {
        for (int k = i; k >= 0; k = e->next[k])
            if (is_source(e, p, e->party_to[k])) not_sent(e, e->party_to[k], bytes);
        return;
    }
    for (int k = 0; k < p->n_src; k++) {
        int party = p->src + e->r->step[k], own = to == e->from->meta->mesh ? party : dt_mesh_find(to, e->c->party[party].device);
        if (own >= 0 && e->r->like[own] == i) not_sent(e, party, bytes);
    }
}

static void count_sent(emit *e) {
    for (int i = 0; i < e->from->meta->mesh->n; i++) e->c->party[i].bytes_sent += e->sent[e->base[i]];
}

/* The sources of a piece whose first is `src`, or that one alone, and how `box` lies in them. */
static dt_status set_sources(emit *e, const dt_piece *p, const dt_box *box, dt_pull *q) {
    q->n_src = p->n_src;
    if (p->n_src == 0) return DT_OK;
    dt_view v = dt_build_sub_view(&e->from->loc[p->src], &e->have[p->src], box, &q->shift);
    if (!(q->view = dt_build_keep_view(&e->src, e->b, &v))) return no_memory();
    if (e->alike && e->shared[p->src]) {
        q->src = e->shared[p->src];
        return DT_OK;
    }
    dt_pull_src *s = DT_ARENA_ARRAY(e->b->arena, dt_pull_src, p->n_src);
    if (!s) return no_memory();
    for (int k = 0; k < p->n_src; k++) {
        int src = p->src + e->r->step[k];
        s[k].party = src;
        if (e->alike || k == 0) continue;
        v = dt_build_sub_view(&e->from->loc[src], &e->have[src], box, &s[k].offset);
        s[k].offset -= q->shift;
        if (!(s[k].view = dt_build_keep_view(&e->src, e->b, &v))) return no_memory();
    }
    if (e->alike) e->shared[p->src] = s;
    q->src = s;
    return DT_OK;
}

static dt_status set_target(emit *e, int i, const dt_box *box, dt_pull *q) {
    dt_view v = dt_build_sub_view(&e->to->loc[i], &e->mine[i], box, &q->offset);
    q->dst = dt_build_keep_view(&e->dst, e->b, &v);
    return q->dst ? DT_OK : no_memory();
}

/* One list of copies and fills for all the devices that need the same as device i. */
static dt_status pull_alike(emit *e, int i) {
    const dt_reshard_dev *d = &e->r->dev[i];
    dt_pull *q = DT_ARENA_ARRAY(e->b->arena, dt_pull, d->n);
    if (!q) return no_memory();
    for (int p = 0; p < d->n; p++) {
        const dt_piece *x = &d->piece[p];
        DT_TRY(set_target(e, i, &x->box, &q[p]));
        DT_TRY(set_sources(e, x, &x->box, &q[p]));
        count_piece(e, i, x);
    }
    for (int k = i; k >= 0; k = e->next[k]) {
        dt_party *y = &e->c->party[e->party_to[k]];
        y->n_pulls[0] = d->n;
        y->pull[0] = q;
    }
    return DT_OK;
}

static int widest(const dt_box *b, int ndim) {
    int w = 0;
    for (int d = 1; d < ndim; d++)
        if (b->len[d] > b->len[w]) w = d;
    return w;
}

/* The rank-th of `size` chunks of a box along its widest dimension; false: empty. */
static bool chunk_of(const dt_box *box, int ndim, int size, int rank, dt_box *out) {
    int w = widest(box, ndim);
    int64_t lo;
    *out = *box;
    dt_layout_chunk(box->len[w], size, rank, &lo, &out->len[w]);
    out->lo[w] += lo;
    return out->len[w] > 0;
}

/* Devices that need the same sums share the work: each reduces its chunk of every piece, then copies all the others'. */
static dt_status pull_in_two_phases(emit *e, int i) {
    const dt_reshard_dev *d = &e->r->dev[i];
    int ndim = e->to->meta->ndim, size = e->size[i], rank = 0, n = 0;
    dt_pull *copies = DT_ARENA_ARRAY(e->b->arena, dt_pull, d->n * size);
    dt_pull_src *from = DT_ARENA_ARRAY(e->b->arena, dt_pull_src, d->n * size);
    if (!copies || !from) return no_memory();
    for (int k = i; k >= 0; k = e->next[k], rank++) {
        dt_party *y = &e->c->party[e->party_to[k]];
        if (!(y->pull[0] = DT_ARENA_ARRAY(e->b->arena, dt_pull, d->n))) return no_memory();
        for (int p = 0; p < d->n; p++) {
            dt_box chunk;
            if (!chunk_of(&d->piece[p].box, ndim, size, rank, &chunk)) continue;
            dt_pull *q = &y->pull[0][y->n_pulls[0]++], *copy = &copies[n];
            DT_TRY(set_target(e, k, &chunk, q));
            DT_TRY(set_sources(e, &d->piece[p], &chunk, q));
            int64_t bytes = box_bytes(e, &chunk);
            sent(e, &d->piece[p], bytes, 1);
            if (is_source(e, &d->piece[p], e->party_to[k])) not_sent(e, e->party_to[k], bytes);
            not_sent(e, e->party_to[k], -bytes * (size - 1));
            from[n] = (dt_pull_src){.party = e->party_to[k], .from_out = true, .view = q->dst, .offset = q->offset};
            *copy = (dt_pull){.dst = q->dst, .offset = q->offset, .n_src = 1, .src = &from[n++]};
        }
    }
    for (int k = i; k >= 0; k = e->next[k]) {
        e->c->party[e->party_to[k]].n_pulls[1] = n;
        e->c->party[e->party_to[k]].pull[1] = copies;
    }
    return DT_OK;
}

static dt_status device_pulls(emit *e, int i) {
    const dt_reshard_dev *d = &e->r->dev[i];
    if (d->n == 0) return DT_OK;
    bool reduced = d->piece[0].n_src > 1 && e->to->meta->ndim > 0;
    return e->c->two_phase && e->size[i] > 1 && reduced ? pull_in_two_phases(e, i) : pull_alike(e, i);
}

static bool same_lie(const dt_loc *a, const dt_loc *b) {
    size_t dims = sizeof(int64_t) * (size_t)a->view.ndim;
    return !memcmp(a->view.shape, b->view.shape, dims) && !memcmp(a->view.stride, b->view.stride, dims);
}

/* Do devices that differ along the reduced dimensions hold their shares alike? step[k] leads from the first of them to each. */
static bool sources_alike(const emit *e) {
    for (int i = 0; i < e->from->meta->mesh->n; i++)
        if (!same_lie(&e->from->loc[i], &e->from->loc[e->base[i]])) return false;
    return true;
}

static void add_parties(emit *e) {
    const dt_mesh *a = e->from->meta->mesh, *b = e->to->meta->mesh;
    dt_coll *c = e->c;
    for (int i = 0; i < a->n; i++) c->party[c->n++] = (dt_party){.device = a->dev[i]};
    for (int i = 0; i < b->n; i++) {
        int at = a == b ? i : dt_mesh_find(a, b->dev[i]);
        e->party_to[i] = at >= 0 ? at : c->n;
        if (at < 0) c->party[c->n++] = (dt_party){.device = b->dev[i]};
    }
}

/* Whom each party meets: on one mesh those that differ along the dimensions in question only. Between meshes, all. */
static dt_status find_kin(emit *e) {
    const dt_mesh *m = e->from->meta->mesh;
    if (m != e->to->meta->mesh) return DT_OK;
    int *kin = DT_ARENA_ARRAY(&e->b->tmp, int, m->n);
    if (!kin) return no_memory();
    for (int i = 0; i < m->n; i++) {
        int64_t c[DT_MAX_MESH_DIM];
        dt_mesh_coords(m, i, c);
        for (int k = 0; k < m->ndim; k++)
            if (e->r->involved[k]) c[k] = 0;
        kin[i] = dt_mesh_index(m, c);
    }
    return dt_build_groups(e->b, e->c, kin);
}

dt_status dt_build_groups(dt_build *b, dt_coll *c, const int *kin) {
    enum { FEW = 16 };
    bool one_node = dt_device_kind(c->party[0].device) == DT_CPU;
    for (int i = 0; i < c->n; i++) one_node &= !dt_devices_apart(c->party[i].device, c->party[0].device);
    if (one_node && c->n <= FEW) return DT_OK; /* threads that share cores: one wake-up for all is cheaper than one a group */
    c->n_groups = 0;
    for (int i = 0; i < c->n; i++) c->party[i].group = -1;
    for (int i = 0; i < c->n; i++) {
        dt_party *first = &c->party[kin[i]];
        if (first->group < 0) first->group = c->n_groups++;
        c->party[i].group = first->group;
    }
    return dt_coll_group(c, b->arena);
}

/* Shared lists are named by their first party. */
static void name_lists(emit *e) {
    int n = e->to->meta->mesh->n;
    for (int p = 0; p < e->c->n; p++) e->c->party[p].list[0] = e->c->party[p].list[1] = p;
    for (int i = 0; i < n; i++) {
        if (e->r->like[i] != i) continue;
        for (int phase = 0; phase < 2; phase++) {
            const dt_pull *q = e->c->party[e->party_to[i]].pull[phase];
            int first = INT_MAX;
            for (int k = i; k >= 0; k = e->next[k]) {
                const dt_party *y = &e->c->party[e->party_to[k]];
                if (y->pull[phase] == q && q && e->party_to[k] < first) first = e->party_to[k];
            }
            for (int k = i; k >= 0; k = e->next[k])
                if (q && e->c->party[e->party_to[k]].pull[phase] == q) e->c->party[e->party_to[k]].list[phase] = first;
        }
    }
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
    if (c->n_groups == 0) c->n_groups = 1;
    for (int k = 1; k < c->n; k++) {
        int other = c->member ? c->member[c->first[c->party[k].group]] : 0; /* of its group */
        c->spans |= dt_devices_apart(c->party[k].device, c->party[other].device);
    }
    c->index = b->n_colls;
    c->node = (uint32_t)b->node;
    b->coll[b->n_colls++] = c;
    return DT_OK;
}

/* One step on each party: input (if it holds any of the source) and output (if it is in the target's mesh). */
static dt_status add_steps(emit *e) {
    for (int p = 0; p < e->c->n; p++) {
        const dt_mesh *a = e->from->meta->mesh, *b = e->to->meta->mesh;
        dt_party *y = &e->c->party[p];
        int i = p < a->n ? p : -1, o = a == b ? p : dt_mesh_find(b, y->device), prog = (i >= 0 ? e->from->loc[i] : e->to->loc[o]).prog;
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

static dt_status emit_init(emit *e) {
    int a = e->from->meta->mesh->n, b = e->to->meta->mesh->n;
    dt_arena *t = &e->b->tmp;
    e->have = DT_ARENA_ARRAY(t, dt_box, a);
    e->mine = DT_ARENA_ARRAY(t, dt_box, b);
    e->base = DT_ARENA_ARRAY(t, int, a);
    e->sent = DT_ARENA_ARRAY(t, int64_t, a);
    e->party_to = DT_ARENA_ARRAY(t, int, b);
    e->next = DT_ARENA_ARRAY(t, int, b);
    e->size = DT_ARENA_ARRAY(t, int, b);
    int *last = DT_ARENA_ARRAY(t, int, b);
    e->shared = DT_ARENA_ARRAY(t, const dt_pull_src *, a);
    e->c->party = DT_ARENA_ARRAY(e->b->arena, dt_party, a + b);
    if (!e->have || !e->mine || !e->base || !e->sent || !e->party_to || !e->next || !e->size || !last || !e->shared || !e->c->party) return no_memory();
    for (int i = 0; i < a; i++) {
        int64_t c[DT_MAX_MESH_DIM];
        dt_mesh_coords(e->from->meta->mesh, i, c);
        for (int k = 0; k < e->from->meta->mesh->ndim; k++)
            if (e->r->reduced[k]) c[k] = 0;
        e->base[i] = dt_mesh_index(e->from->meta->mesh, c);
        dt_layout_box(e->from->meta, i, &e->have[i]);
    }
    for (int i = 0; i < b; i++) {
        int first = e->r->like[i];
        dt_layout_box(e->to->meta, i, &e->mine[i]);
        e->next[i] = -1;
        if (first != i) e->next[last[first]] = i;
        last[first] = i;
        e->size[first]++;
    }
    e->alike = sources_alike(e);
    add_parties(e);
    return DT_OK;
}

static dt_status collective(dt_build *b, dt_pval *v, const dt_reshard *r, dt_pval *out) {
    emit e = {.b = b, .from = v, .to = out, .r = r, .c = DT_ARENA_NEW(b->arena, dt_coll)};
    char *along = DT_ARENA_ARRAY(b->arena, char, strlen(r->mesh_dim) + 1); /* r's is in memory that the plan outlives */
    if (!e.c || !along) return no_memory();
    memcpy(along, r->mesh_dim, strlen(r->mesh_dim));
    *e.c = (dt_coll){.reduce = r->reduce, .two_phase = r->all_reduce, .kind = r->kind, .mesh_dim = along};
    DT_TRY(emit_init(&e));
    DT_TRY(dt_build_pval_alloc(b, out));
    for (int i = 0; i < out->meta->mesh->n; i++)
        if (r->like[i] == i) DT_TRY(device_pulls(&e, i));
    count_sent(&e);
    name_lists(&e);
    DT_TRY(find_kin(&e));
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

/* The party of a mesh position; a new one where there is none yet. */
static int party_at(dt_coll *c, const dt_mesh *mesh, int *party, int pos) {
    if (party[pos] < 0) {
        party[pos] = c->n;
        c->party[c->n] = (dt_party){.device = mesh->dev[pos], .list = {c->n, c->n}};
        c->n++;
    }
    return party[pos];
}

/* The first party of those that moves connect, over `kin` as links to earlier ones. */
static int first_kin(int *kin, int i) {
    while (kin[i] != i) i = kin[i] = kin[kin[i]];
    return i;
}

dt_status dt_build_moves(dt_build *b, const dt_mesh *mesh, const char *kind, const char *mesh_dim, const dt_move *move, int n) {
    if (!n) return DT_OK;
    dt_coll *c = DT_ARENA_NEW(b->arena, dt_coll);
    const dt_loc **in = DT_ARENA_ARRAY(&b->tmp, const dt_loc *, 2 * n), **out = DT_ARENA_ARRAY(&b->tmp, const dt_loc *, 2 * n);
    dt_pull *pull = DT_ARENA_ARRAY(b->arena, dt_pull, n);
    dt_pull_src *src = DT_ARENA_ARRAY(b->arena, dt_pull_src, 2 * n);
    int *kin = DT_ARENA_ARRAY(&b->tmp, int, 2 * n), *at = DT_ARENA_ARRAY(&b->tmp, int, mesh->n);
    dt_kept_view to_views = {{NULL}}, from_views = {{NULL}};
    if (!c || !in || !out || !pull || !src || !kin || !at) return no_memory();
    *c = (dt_coll){.reduce = DT_SUM, .kind = kind, .mesh_dim = mesh_dim, .party = DT_ARENA_ARRAY(b->arena, dt_party, 2 * n)};
    if (!c->party) return no_memory();
    for (int i = 0; i < 2 * n; i++) kin[i] = i;
    for (int i = 0; i < mesh->n; i++) at[i] = -1;
    for (int i = 0; i < n; i++) {
        const dt_move *v = &move[i];
        int from = party_at(c, mesh, at, v->from), to = party_at(c, mesh, at, v->to), k = 0;
        const dt_view *dst = dt_build_keep_view(&to_views, b, &v->dst.view), *there = dt_build_keep_view(&from_views, b, &v->src.view);
        if (!dst || !there) return no_memory();
        in[from] = &v->src;
        out[to] = &v->dst;
        dt_pull_src *x = src + 2 * i;
        if (v->add) x[k++] = (dt_pull_src){to, true, dst, v->dst.offset};
        x[k] = (dt_pull_src){from, false, there, v->src.offset};
        pull[i] = (dt_pull){.dst = dst, .offset = v->dst.offset, .n_src = 1 + v->add, .src = x};
        c->party[to].pull[0] = &pull[i];
        c->party[to].n_pulls[0] = 1;
        c->bytes_moved += dt_view_numel(&v->dst.view) * (int64_t)dt_dtype_size(v->dst.view.dtype);
        int p = first_kin(kin, from), q = first_kin(kin, to);
        kin[p > q ? p : q] = p > q ? q : p;
    }
    for (int i = 0; i < c->n; i++) kin[i] = first_kin(kin, i);
    DT_TRY(dt_build_groups(b, c, kin));
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
