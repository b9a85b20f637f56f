/* Redistribution: for each device of the target, the boxes it needs and which devices of the source hold them.
 *
 * Every redistribution (all-gather, reduce-scatter, all-reduce, all-to-all, slicing, transfers between meshes, uneven and empty shards) is
 * one case of this. Along a mesh dimension of the source:
 *   Shard      all coordinates hold different boxes: each that intersects what is needed is a piece
 *   Replicate  one coordinate is enough: the reader's own on the same mesh, else spread by the reader's number
 *   Partial    all coordinates contribute and are reduced, in coordinate order; unless the target is Partial alike on the same mesh:
 *              then the own contribution just stays
 * A target that is Partial where the source is not takes the value at coordinate 0 and zeros elsewhere (sum), or everywhere (avg, max, min). */
#include <string.h>

#include "passes/passes.h"

typedef struct job {
    const dt_meta *from, *to;
    dt_arena *arena;
    bool same_mesh;
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

/* The source coordinates along k that matter for target device pos with coordinates c: [*lo, *hi). */
static void range(const job *j, int k, int pos, const int64_t *c, int64_t *lo, int64_t *hi) {
    const dt_mesh *m = j->from->mesh;
    if (j->from->place[k].kind == DT_SHARD || (j->from->place[k].kind == DT_PARTIAL && !partial_stays(j, k))) {
        *lo = 0;
        *hi = m->dim[k];
        return;
    }
    *lo = j->same_mesh ? c[k] : pos % m->dim[k];
    *hi = *lo + 1;
}

static int count_reduced(const job *j) {
    int n = 1;
    for (int k = 0; k < j->from->mesh->ndim; k++)
        if (j->from->place[k].kind == DT_PARTIAL && !partial_stays(j, k)) n *= (int)j->from->mesh->dim[k];
    return n;
}

/* Add every piece that target device pos needs. Walks the source coordinates in order; contributions to the same box are collected. */
static dt_status device_pieces(const job *j, int pos, dt_reshard_dev *d) {
    const dt_mesh *m = j->from->mesh;
    int64_t c[DT_MAX_MESH_DIM], lo[DT_MAX_MESH_DIM], hi[DT_MAX_MESH_DIM], at[DT_MAX_MESH_DIM];
    dt_box need;
    dt_mesh_coords(j->to->mesh, pos, c);
    dt_layout_box(j->to, pos, &need);
    int total = 1, reduced = count_reduced(j);
    for (int k = 0; k < m->ndim; k++) {
        range(j, k, pos, c, &lo[k], &hi[k]);
        at[k] = lo[k];
        total *= (int)(hi[k] - lo[k]);
    }
    *d = (dt_reshard_dev){0, DT_ARENA_ARRAY(j->arena, dt_piece, total ? total : 1)};
    if (!d->piece) return dt_fail(DT_E_NOMEM, "redistribute: out of host memory");
    if (dt_box_numel(&need, j->to->ndim) == 0) return DT_OK;
    if (holds_zero(j, c)) {
        d->piece[d->n++] = (dt_piece){.box = need};
        return DT_OK;
    }
    for (int i = 0; i < total; i++) {
        int src = dt_mesh_index(m, at);
        dt_box have, box;
        dt_layout_box(j->from, src, &have);
        if (dt_box_intersect(&have, &need, j->to->ndim, &box)) {
            dt_piece *p = NULL;
            for (int q = 0; q < d->n && !p; q++)
                if (!memcmp(d->piece[q].box.lo, box.lo, sizeof(int64_t) * (size_t)j->to->ndim)) p = &d->piece[q];
            if (!p) {
                p = &d->piece[d->n++];
                *p = (dt_piece){.box = box, .src = DT_ARENA_ARRAY(j->arena, int, reduced)};
                if (!p->src) return dt_fail(DT_E_NOMEM, "redistribute: out of host memory");
            }
            p->src[p->n_src++] = src;
        }
        for (int k = m->ndim - 1; k >= 0 && ++at[k] == hi[k]; k--) at[k] = lo[k];
    }
    return DT_OK;
}

/* A name for reports, from what happens along the mesh dimensions that change. */
static void name(const job *j, dt_reshard *r) {
    r->kind = "local";
    r->mesh_dim = "";
    if (!j->same_mesh) {
        r->kind = "transfer";
        return;
    }
    int changed = 0;
    for (int k = 0; k < j->from->mesh->ndim; k++) {
        dt_placement a = j->from->place[k], b = j->to->place[k];
        if (dt_placement_equal(a, b) || j->from->mesh->dim[k] == 1) continue;
        if (a.kind == DT_REPLICATE) continue; /* slicing and zeros are local */
        changed++;
        r->mesh_dim = j->from->mesh->name[k];
        if (a.kind == DT_PARTIAL)
            r->kind = b.kind == DT_SHARD ? "reduce_scatter" : "all_reduce";
        else
            r->kind = b.kind == DT_SHARD ? "all_to_all" : "all_gather";
    }
    if (changed > 1) r->kind = "reshard";
}

static bool is_local(const dt_reshard *r, const dt_mesh *from, const dt_mesh *to) {
    for (int i = 0; i < to->n; i++)
        for (int p = 0; p < r->dev[i].n; p++) {
            const dt_piece *q = &r->dev[i].piece[p];
            if (q->n_src > 1 || (q->n_src == 1 && from->dev[q->src[0]] != to->dev[i])) return false;
        }
    return true;
}

dt_status dt_reshard_build(const dt_meta *from, const dt_meta *to, dt_arena *arena, dt_reshard *out) {
    job j = {from, to, arena, from->mesh == to->mesh};
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
    name(&j, &r);
    if (r.local) r.kind = "local";
    *out = r;
    return DT_OK;
}
