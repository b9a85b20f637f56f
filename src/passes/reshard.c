/* Redistribution: for each device of the target, the boxes it needs and which devices of the source hold them.
 *
 * Every redistribution (all-gather, reduce-scatter, all-reduce, all-to-all, slicing, transfers between meshes, uneven and empty shards) is
 * one case of this. Along a mesh dimension of the source:
 *   Shard      all coordinates hold different boxes: each that intersects what is needed is a piece
 *   Replicate  one coordinate is enough: the reader's own if it is in the source's mesh, else its coordinate along the dimension of the same
 *              name, else spread by the reader's number
 *   Partial    all coordinates contribute and are reduced, in coordinate order; unless the target is Partial alike on the same mesh:
 *              then the own contribution just stays
 * A target that is Partial where the source is not takes the value at coordinate 0 and zeros elsewhere (sum), or everywhere (avg, max, min). */
#include <string.h>

#include "passes/passes.h"

typedef struct job {
    const dt_meta *from, *to;
    dt_arena *arena;
    bool same_mesh;
    int twin[DT_MAX_MESH_DIM]; /* for a dimension of from's mesh, to's dimension of the same name, or -1 */
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

/* The source coordinates along k that matter for target device pos with coordinates c: [*lo, *hi). own: its coordinates in the source's mesh. */
static void range(const job *j, int k, int pos, const int64_t *c, const int64_t *own, int64_t *lo, int64_t *hi) {
    const dt_mesh *m = j->from->mesh;
    if (j->from->place[k].kind == DT_SHARD || (j->from->place[k].kind == DT_PARTIAL && !partial_stays(j, k))) {
        *lo = 0;
        *hi = m->dim[k];
        return;
    }
    *lo = own ? own[k] : (j->twin[k] >= 0 ? c[j->twin[k]] : pos) % m->dim[k];
    *hi = *lo + 1;
}

static int count_reduced(const job *j) {
    int n = 1;
    for (int k = 0; k < j->from->mesh->ndim; k++)
        if (j->from->place[k].kind == DT_PARTIAL && !partial_stays(j, k)) n *= (int)j->from->mesh->dim[k];
    return n;
}

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

typedef struct pieces {
    const job *j;
    dt_reshard_dev *d;
    int cap, reduced;
} pieces;

static dt_status add_source(pieces *p, const dt_box *box, int src) {
    dt_reshard_dev *d = p->d;
    for (int q = 0; q < d->n; q++)
        if (!memcmp(d->piece[q].box.lo, box->lo, sizeof(int64_t) * (size_t)p->j->to->ndim)) {
            d->piece[q].src[d->piece[q].n_src++] = src;
            return DT_OK;
        }
    if (d->n == p->cap) {
        dt_piece *more = DT_ARENA_ARRAY(p->j->arena, dt_piece, p->cap * 2);
        if (!more) return dt_fail(DT_E_NOMEM, "redistribute: out of host memory");
        memcpy(more, d->piece, sizeof *more * (size_t)d->n);
        d->piece = more;
        p->cap *= 2;
    }
    dt_piece *n = &d->piece[d->n++];
    *n = (dt_piece){.box = *box, .n_src = 1, .src = DT_ARENA_ARRAY(p->j->arena, int, p->reduced)};
    if (!n->src) return dt_fail(DT_E_NOMEM, "redistribute: out of host memory");
    n->src[0] = src;
    return DT_OK;
}

/* Source device src holds `have`: every run of it against every run of what is needed. */
static dt_status intersect(pieces *p, const dt_box *need, const dt_box *have, int src) {
    int ndim = p->j->to->ndim;
    int64_t a = runs(need, ndim), b = runs(have, ndim);
    for (int64_t x = 0; x < a; x++)
        for (int64_t y = 0; y < b; y++) {
            dt_box rx = run_of(need, ndim, x), ry = run_of(have, ndim, y), box;
            if (dt_box_intersect(&ry, &rx, ndim, &box)) DT_TRY(add_source(p, &box, src));
        }
    return DT_OK;
}

/* Add every piece that target device pos needs. Walks the source coordinates in order; contributions to the same box are collected. */
static dt_status device_pieces(const job *j, int pos, dt_reshard_dev *d) {
    const dt_mesh *m = j->from->mesh;
    int64_t c[DT_MAX_MESH_DIM], own[DT_MAX_MESH_DIM], lo[DT_MAX_MESH_DIM], hi[DT_MAX_MESH_DIM], at[DT_MAX_MESH_DIM];
    dt_box need;
    dt_mesh_coords(j->to->mesh, pos, c);
    dt_layout_box(j->to, pos, &need);
    int total = 1, self = dt_mesh_find(m, j->to->mesh->dev[pos]);
    if (self >= 0) dt_mesh_coords(m, self, own);
    for (int k = 0; k < m->ndim; k++) {
        range(j, k, pos, c, self >= 0 ? own : NULL, &lo[k], &hi[k]);
        at[k] = lo[k];
        total *= (int)(hi[k] - lo[k]);
    }
    pieces p = {j, d, total ? total : 1, count_reduced(j)};
    *d = (dt_reshard_dev){0, DT_ARENA_ARRAY(j->arena, dt_piece, p.cap)};
    if (!d->piece) return dt_fail(DT_E_NOMEM, "redistribute: out of host memory");
    if (dt_box_numel(&need, j->to->ndim) == 0) return DT_OK;
    if (holds_zero(j, c)) {
        d->piece[d->n++] = (dt_piece){.box = need};
        return DT_OK;
    }
    for (int i = 0; i < total; i++) {
        int src = dt_mesh_index(m, at);
        dt_box have;
        dt_layout_box(j->from, src, &have);
        if (dt_box_numel(&have, j->to->ndim)) DT_TRY(intersect(&p, &need, &have, src));
        for (int k = m->ndim - 1; k >= 0 && ++at[k] == hi[k]; k--) at[k] = lo[k];
    }
    return DT_OK;
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
            if (q->n_src > 1 || (q->n_src == 1 && from->dev[q->src[0]] != to->dev[i])) return false;
        }
    }
    return true;
}

dt_status dt_reshard_build(const dt_meta *from, const dt_meta *to, dt_arena *arena, dt_reshard *out) {
    job j = {.from = from, .to = to, .arena = arena, .same_mesh = from->mesh == to->mesh};
    name_twins(&j);
    dt_reshard r = {.dev = DT_ARENA_ARRAY(arena, dt_reshard_dev, to->mesh->n)};
    if (!r.dev) return dt_fail(DT_E_NOMEM, "redistribute: out of host memory");
    for (int i = 0; i < to->mesh->n; i++) DT_TRY(device_pieces(&j, i, &r.dev[i]));
    int wanted = 0;
    for (int k = 0; k < from->mesh->ndim; k++)
        if (from->place[k].kind == DT_PARTIAL && !partial_stays(&j, k)) {
            r.reduce = (dt_reduce)from->place[k].reduce;
            if (j.same_mesh && to->place[k].kind == DT_REPLICATE) wanted += from->mesh->dim[k] > 1;
        }
    r.local = is_local(&r, from->mesh, to->mesh);
    r.all_reduce = wanted > 0 && !r.local;
    DT_TRY(name(&j, &r));
    *out = r;
    return DT_OK;
}
