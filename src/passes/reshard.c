/* Redistribution: for each device of the target, the boxes it needs and which devices of the source hold them.
 *
 * Every redistribution (all-gather, reduce-scatter, all-reduce, all-to-all, slicing, transfers between meshes, uneven and empty shards) is
 * one case of this. Along a mesh dimension of the source:
 *   Shard      all coordinates hold different boxes: each that intersects what is needed is a piece
 *   Replicate  one coordinate is enough: the reader's own if it is in the source's mesh, else its coordinate along the dimension of the same
 *              name, else spread by the reader's number
 *   Partial    all coordinates contribute and are reduced, in coordinate order; unless the target is Partial alike on the same mesh:
 *              then the own contribution just stays
 * A target that is Partial where the source is not takes the value at coordinate 0 and zeros elsewhere (sum), or everywhere (avg, max, min).
 *
 * Cost: what moves, not devices times devices. Devices whose coordinates differ only where it does not matter need the same and share one list of pieces;
 * the sources of a piece are found from chunk bounds, a dimension at a time; those that are reduced are steps from the first one, the same for every piece. */
#include <string.h>

#include "passes/passes.h"

typedef struct job {
    const dt_meta *from, *to;
    dt_arena *arena;
    bool same_mesh;
    int twin[DT_MAX_MESH_DIM];                              /* for a dimension of from's mesh, to's dimension of the same name, or -1 */
    bool walked[DT_MAX_MESH_DIM], aligned[DT_MAX_MESH_DIM]; /* of from's mesh: see find_walks */
} job;

static bool partial_stays(const job *j, int k) {
    return j->same_mesh && j->from->place[k].kind == DT_PARTIAL && dt_placement_equal(j->from->place[k], j->to->place[k]);
}

/* Does this target device hold zeros: it is not first along a mesh dimension that becomes Partial(sum)? */
static bool holds_zero(const job *j, const int64_t *c) {
    for (int k = 0; k < j->to->mesh->ndim; k++)
        if (j->to->place[k].kind == DT_PARTIAL && j->to->place[k].reduce == DT_SUM && c[k] && !partial_stays(j, k)) return true;
    return false;
}

static void name_twins(job *j) {
    const dt_mesh *a = j->from->mesh, *b = j->to->mesh;
    for (int k = 0; k < a->ndim; k++) {
        j->twin[k] = -1;
        for (int q = 0; a->name[k][0] && q < b->ndim; q++)
            if (!strcmp(a->name[k], b->name[q])) j->twin[k] = q;
    }
}

static bool reduced(const job *j, int k) { return j->from->place[k].kind == DT_PARTIAL && !partial_stays(j, k); }

static int64_t runs(const dt_box *b, int ndim) {
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= b->rows[d];
    return n;
}

/* The i-th of a box's runs(): a box without rows. */
static dt_box run_of(const dt_box *b, int ndim, int64_t i) {
    dt_box r = *b;
    for (int d = ndim - 1; d >= 0; d--) {
        if (b->rows[d] <= 1) continue;
        r.lo[d] = b->lo[d] + i % b->rows[d] * b->step[d];
        r.len[d] = b->len[d] / b->rows[d];
        r.rows[d] = 1;
        i /= b->rows[d];
    }
    return r;
}

/* ---- pieces of one device ---------------------------------------------------------------------------------------------------------------- */
/* A walk over the source's coordinates, dimension by dimension, that enters only those whose chunk meets what is needed. */
typedef struct walk {
    const job *j;
    dt_reshard *r;
    dt_reshard_dev *d;
    int cap, pos;
    int64_t c[DT_MAX_MESH_DIM], own[DT_MAX_MESH_DIM]; /* coordinates in the target's mesh; in the source's, if it is there */
    bool is_source;
    dt_box need;
    int64_t lo[DT_MAX_DIM], len[DT_MAX_DIM]; /* what is left of a source's box after the dimensions walked so far */
} walk;

static dt_status add_piece(walk *w, const dt_box *box, int src) {
    dt_reshard_dev *d = w->d;
    if (d->n == w->cap) {
        dt_piece *more = DT_ARENA_ARRAY(w->j->arena, dt_piece, w->cap * 2);
        if (!more) return dt_fail(DT_E_NOMEM, "redistribute: out of host memory");
        memcpy(more, d->piece, sizeof *more * (size_t)d->n);
        d->piece = more;
        w->cap *= 2;
    }
    d->piece[d->n++] = (dt_piece){.box = *box, .n_src = w->r->n_steps, .src = src};
    return DT_OK;
}

/* Source device src holds `have`: every run of it against every run of what is needed. Different shards have nothing in common, so no box is met twice. */
static dt_status intersect(walk *w, int src) {
    int ndim = w->j->to->ndim;
    dt_box have;
    dt_layout_box(w->j->from, src, &have);
    if (!dt_box_numel(&have, ndim)) return DT_OK;
    int64_t a = runs(&w->need, ndim), b = runs(&have, ndim);
    for (int64_t x = 0; x < a; x++)
        for (int64_t y = 0; y < b; y++) {
            dt_box rx = run_of(&w->need, ndim, x), ry = run_of(&have, ndim, y), box;
            if (dt_box_intersect(&ry, &rx, ndim, &box)) DT_TRY(add_piece(w, &box, src));
        }
    return DT_OK;
}

/* The coordinates along k, a shard of tensor dimension d, whose chunk of what is left meets the need: [*first, *last]. */
static void meeting_chunks(const walk *w, int k, int d, int64_t *first, int64_t *last) {
    int64_t parts = w->j->from->mesh->dim[k], chunk = (w->len[d] + parts - 1) / parts;
    int64_t rows = w->need.rows[d], lo = w->need.lo[d] - w->lo[d], hi = lo + w->need.len[d];
    if (rows > 1) hi = lo + (rows - 1) * w->need.step[d] + w->need.len[d] / rows;
    if (chunk == 0 || hi <= 0 || lo >= w->len[d]) {
        *first = 0;
        *last = -1;
        return;
    }
    *first = lo < 0 ? 0 : lo / chunk;
    *last = (hi - 1) / chunk < parts ? (hi - 1) / chunk : parts - 1;
}

static dt_status visit(walk *w, int k, int src) {
    const dt_mesh *m = w->j->from->mesh;
    if (k == m->ndim) return intersect(w, src);
    const dt_placement *p = &w->j->from->place[k];
    int64_t first = 0, last = 0;
    int d = p->dim;
    if (p->kind == DT_SHARD && !w->j->walked[k]) { /* a strided shard */
        first = w->j->aligned[k] ? w->own[k] : 0;
        last = w->j->aligned[k] ? first : m->dim[k] - 1;
    } else if (p->kind == DT_SHARD)
        meeting_chunks(w, k, d, &first, &last);
    else if (!reduced(w->j, k))
        first = last = (w->is_source ? w->own[k] : w->j->twin[k] >= 0 ? w->c[w->j->twin[k]] : w->pos) % m->dim[k];
    int64_t lo = w->lo[d], len = w->len[d];
    for (int64_t i = first; i <= last; i++) {
        if (p->kind == DT_SHARD && w->j->walked[k]) {
            int64_t at, n;
            dt_layout_chunk(len, m->dim[k], i, &at, &n);
            w->lo[d] = lo + at;
            w->len[d] = n;
        }
        DT_TRY(visit(w, k + 1, src * (int)m->dim[k] + (int)i));
    }
    w->lo[d] = lo;
    w->len[d] = len;
    return DT_OK;
}

/* Every piece that target device pos needs, in the order of the source's coordinates. */
static dt_status device_pieces(const job *j, dt_reshard *r, int pos) {
    walk w = {.j = j, .r = r, .d = &r->dev[pos], .cap = 4, .pos = pos};
    int self = j->same_mesh ? pos : dt_mesh_find(j->from->mesh, j->to->mesh->dev[pos]);
    dt_mesh_coords(j->to->mesh, pos, w.c);
    dt_layout_box(j->to, pos, &w.need);
    w.is_source = self >= 0;
    if (w.is_source) dt_mesh_coords(j->from->mesh, self, w.own);
    for (int d = 0; d < j->from->ndim; d++) w.len[d] = j->from->shape[d];
    *w.d = (dt_reshard_dev){0, DT_ARENA_ARRAY(j->arena, dt_piece, w.cap)};
    if (!w.d->piece) return dt_fail(DT_E_NOMEM, "redistribute: out of host memory");
    if (dt_box_numel(&w.need, j->to->ndim) == 0) return DT_OK;
    if (holds_zero(j, w.c)) {
        w.d->piece[w.d->n++] = (dt_piece){.box = w.need};
        return DT_OK;
    }
    return visit(&w, 0, 0);
}

/* ---- which devices need the same: found by coordinates ------------------------------------------------------------------------------------ */
/* Along which dimensions of the source a chunk can be found by its bounds (no strided shards, no windows), and, for the others, where target and source
 * are cut alike, so that nothing moves. */
static void find_walks(job *j) {
    const dt_meta *a = j->from, *b = j->to;
    for (int k = 0; k < a->mesh->ndim; k++) {
        j->walked[k] = j->aligned[k] = true;
        if (a->place[k].kind != DT_SHARD) continue;
        for (int q = 0; q < a->mesh->ndim; q++)
            if (a->place[q].kind == DT_SHARD && a->place[q].dim == a->place[k].dim && (a->place[q].split || a->place[q].window)) j->walked[k] = false;
        j->aligned[k] = j->same_mesh && !a->place[k].window;
        for (int q = 0; j->aligned[k] && q < a->mesh->ndim; q++) {
            bool here = a->place[q].kind == DT_SHARD && a->place[q].dim == a->place[k].dim;
            bool there = b->place[q].kind == DT_SHARD && b->place[q].dim == a->place[k].dim;
            if (here != there || (here && !dt_placement_equal(a->place[q], b->place[q]))) j->aligned[k] = false;
        }
    }
}

/* Does what a device needs depend on its coordinate along k of the target's mesh? */
static bool matters(const job *j, int k) {
    dt_placement p = j->to->place[k];
    if (j->to->mesh->dim[k] == 1) return false;
    if (p.kind == DT_SHARD || (p.kind == DT_PARTIAL && p.reduce == DT_SUM && !partial_stays(j, k))) return true;
    for (int q = 0; q < j->from->mesh->ndim; q++)
        if (j->from->place[q].kind != DT_SHARD && !reduced(j, q) && (j->same_mesh ? q : j->twin[q]) == k) return true;
    return false;
}

/* Between meshes a replica is chosen by the device, when no dimension of the same name says which. */
static bool all_differ(const job *j) {
    if (j->same_mesh) return false;
    for (int k = 0; k < j->from->mesh->ndim; k++)
        if (j->from->mesh->dim[k] > 1 && j->from->place[k].kind == DT_REPLICATE) {
            if (j->twin[k] < 0) return true;
            for (int i = 0; i < j->to->mesh->n; i++)
                if (dt_mesh_find(j->from->mesh, j->to->mesh->dev[i]) >= 0) return true;
        }
    return false;
}

static dt_status all_pieces(const job *j, dt_reshard *r) {
    const dt_mesh *m = j->to->mesh;
    bool each = all_differ(j), by[DT_MAX_MESH_DIM];
    for (int k = 0; k < m->ndim; k++) by[k] = each || matters(j, k);
    for (int i = 0; i < m->n; i++) {
        int64_t c[DT_MAX_MESH_DIM];
        dt_mesh_coords(m, i, c);
        for (int k = 0; k < m->ndim; k++)
            if (!by[k]) c[k] = 0;
        r->like[i] = dt_mesh_index(m, c);
        if (r->like[i] == i)
            DT_TRY(device_pieces(j, r, i));
        else
            r->dev[i] = r->dev[r->like[i]];
    }
    return DT_OK;
}

/* The sources of a reduced piece: src + step[k], in coordinate order. */
static dt_status find_steps(const job *j, dt_reshard *r) {
    const dt_mesh *m = j->from->mesh;
    int n = 1, stride[DT_MAX_MESH_DIM], s = 1;
    for (int k = m->ndim - 1; k >= 0; k--) {
        stride[k] = s;
        s *= (int)m->dim[k];
        r->reduced[k] = reduced(j, k);
        if (reduced(j, k)) n *= (int)m->dim[k];
    }
    r->n_steps = n;
    if (!(r->step = DT_ARENA_ARRAY(j->arena, int, n))) return dt_fail(DT_E_NOMEM, "redistribute: out of host memory");
    for (int i = 0; i < n; i++)
        for (int k = m->ndim - 1, rest = i; k >= 0; k--) {
            if (!reduced(j, k)) continue;
            r->step[i] += rest % (int)m->dim[k] * stride[k];
            rest /= (int)m->dim[k];
        }
    return DT_OK;
}

/* On one mesh: devices that differ only along these dimensions may exchange something; the others have nothing to do with each other. */
static void find_involved(const job *j, dt_reshard *r) {
    const dt_mesh *m = j->from->mesh;
    for (int k = 0; k < m->ndim; k++) r->involved[k] = !j->same_mesh || reduced(j, k);
    for (int i = 0; j->same_mesh && i < m->n; i++) {
        int64_t own[DT_MAX_MESH_DIM], c[DT_MAX_MESH_DIM];
        dt_mesh_coords(m, i, own);
        const dt_reshard_dev *d = &r->dev[i];
        for (int p = 0; p < d->n && (p == 0 || r->like[i] == i); p++) { /* where a shared list's sources differ, its first device sees it */
            if (!d->piece[p].n_src) continue;
            dt_mesh_coords(m, d->piece[p].src, c);
            for (int k = 0; k < m->ndim; k++) r->involved[k] |= c[k] != own[k] && !reduced(j, k);
        }
    }
}

/* ---- names for reports ------------------------------------------------------------------------------------------------------------------ */
enum { MAX_DIMS = 100 }; /* every name of a mesh and commas */
typedef struct dims {
    char text[MAX_DIMS];
    dt_str s;
} dims;

static void dims_add(dims *d, const dt_mesh *m, int k) {
    if (m->dim[k] == 1) return;
    if (d->s.len) dt_str_add(&d->s, ",");
    if (m->name[k][0])
        dt_str_add(&d->s, "%s", m->name[k]);
    else
        dt_str_add(&d->s, "%d", k);
}

/* What happens along one mesh dimension; NULL: nothing moves along it. */
static const char *change_name(dt_placement a, dt_placement b) {
    if (dt_placement_equal(a, b) || a.kind == DT_REPLICATE) return NULL; /* slicing and zeros are local */
    if (b.kind == DT_SHARD && b.window) return "move";                   /* boxes of a dimension that the call moves */
    bool first = b.kind == DT_PARTIAL && b.reduce == DT_SUM;             /* the first one gets it, the others hold zeros */
    if (a.kind == DT_PARTIAL) return b.kind == DT_SHARD ? "reduce_scatter" : first ? "reduce" : "all_reduce";
    return b.kind == DT_SHARD ? "all_to_all" : first ? "gather" : "all_gather";
}

/* On one mesh: the collective's name if all that changes has the same one, else "reshard". A shard that moves from one mesh dimension to another
 * is an exchange between both. */
static const char *name_here(const dt_meta *from, const dt_meta *to, dims *d) {
    const char *kind = NULL;
    bool gathered = false, cut = false;
    for (int k = 0; k < from->mesh->ndim; k++) {
        dt_placement a = from->place[k], b = to->place[k];
        if (from->mesh->dim[k] == 1) continue;
        gathered |= a.kind == DT_SHARD && b.kind == DT_REPLICATE;
        cut |= a.kind == DT_REPLICATE && b.kind == DT_SHARD;
    }
    for (int k = 0; k < from->mesh->ndim; k++) {
        const char *n = change_name(from->place[k], to->place[k]);
        if (!n && !(gathered && to->place[k].kind == DT_SHARD && from->place[k].kind == DT_REPLICATE)) continue;
        if (from->mesh->dim[k] == 1) continue;
        if (!n || (gathered && cut && !strcmp(n, "all_gather"))) n = "all_to_all";
        kind = !kind || !strcmp(kind, n) ? n : "reshard";
        dims_add(d, from->mesh, k);
    }
    return kind ? kind : "local";
}

/* Between meshes: by what the larger side has. */
static const char *name_between(const dt_meta *from, const dt_meta *to, dims *d) {
    if (from->mesh->n > 1 && to->mesh->n > 1) return "send";
    const dt_meta *many = from->mesh->n > 1 ? from : to;
    dt_placement_kind most = DT_REPLICATE;
    for (int k = 0; k < many->mesh->ndim; k++)
        if (many->mesh->dim[k] > 1 && many->place[k].kind > most) most = many->place[k].kind;
    for (int k = 0; k < many->mesh->ndim; k++)
        if (many->place[k].kind == most) dims_add(d, many->mesh, k);
    if (many == to) return to->mesh->n == 1 ? "send" : most == DT_SHARD ? "scatter" : "broadcast";
    return most == DT_SHARD ? "gather" : most == DT_PARTIAL ? "reduce" : "send";
}

static dt_status name(const job *j, dt_reshard *r) {
    dims d;
    d.s = (dt_str){d.text, sizeof d.text, 0};
    d.text[0] = 0;
    r->kind = r->local ? "local" : j->same_mesh ? name_here(j->from, j->to, &d) : name_between(j->from, j->to, &d);
    char *copy = DT_ARENA_ARRAY(j->arena, char, d.s.len + 1);
    if (!copy) return dt_fail(DT_E_NOMEM, "redistribute: out of host memory");
    memcpy(copy, d.text, d.s.len);
    r->mesh_dim = copy;
    return DT_OK;
}

/* Every device needs one box of its own part, or zeros, or nothing. */
static bool is_local(const dt_reshard *r, const dt_mesh *from, const dt_mesh *to) {
    for (int i = 0; i < to->n; i++) {
        if (r->dev[i].n > 1) return false;
        for (int p = 0; p < r->dev[i].n; p++) {
            const dt_piece *q = &r->dev[i].piece[p];
            if (q->n_src > 1 || (q->n_src == 1 && from->dev[q->src] != to->dev[i])) return false;
        }
    }
    return true;
}

dt_status dt_reshard_build(const dt_meta *from, const dt_meta *to, dt_arena *arena, dt_reshard *out) {
    job j = {.from = from, .to = to, .arena = arena, .same_mesh = from->mesh == to->mesh};
    name_twins(&j);
    find_walks(&j);
    dt_reshard r = {.dev = DT_ARENA_ARRAY(arena, dt_reshard_dev, to->mesh->n), .like = DT_ARENA_ARRAY(arena, int, to->mesh->n)};
    if (!r.dev || !r.like) return dt_fail(DT_E_NOMEM, "redistribute: out of host memory");
    DT_TRY(find_steps(&j, &r));
    DT_TRY(all_pieces(&j, &r));
    int wanted = 0;
    for (int k = 0; k < from->mesh->ndim; k++)
        if (reduced(&j, k)) {
            r.reduce = (dt_reduce)from->place[k].reduce;
            if (j.same_mesh && to->place[k].kind == DT_REPLICATE) wanted += from->mesh->dim[k] > 1;
        }
    r.local = is_local(&r, from->mesh, to->mesh);
    r.all_reduce = wanted > 0 && !r.local;
    find_involved(&j, &r);
    DT_TRY(name(&j, &r));
    *out = r;
    return DT_OK;
}
