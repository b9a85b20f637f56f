/* Layout of shards. See layout.h. */
#include "tensor/layout.h"

void dt_layout_chunk(int64_t n, int64_t parts, int64_t i, int64_t *lo, int64_t *len) {
    int64_t c = (n + parts - 1) / parts;
    *lo = i * c < n ? i * c : n;
    *len = n - *lo < c ? n - *lo : c;
}

void dt_layout_box(const dt_meta *m, int pos, dt_box *box) {
    for (int d = 0; d < m->ndim; d++) {
        box->lo[d] = 0;
        box->len[d] = m->shape[d];
    }
    if (!m->mesh || !m->sharded) return;
    int64_t c[DT_MAX_MESH_DIM];
    dt_mesh_coords(m->mesh, pos, c);
    for (int k = 0; k < m->mesh->ndim; k++) {
        if (m->place[k].kind != DT_SHARD) continue;
        int d = m->place[k].dim;
        int64_t lo, len;
        dt_layout_chunk(box->len[d], m->mesh->dim[k], c[k], &lo, &len);
        box->lo[d] += lo;
        box->len[d] = len;
    }
}

int64_t dt_box_numel(const dt_box *b, int ndim) {
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= b->len[d];
    return n;
}

bool dt_box_intersect(const dt_box *a, const dt_box *b, int ndim, dt_box *out) {
    for (int d = 0; d < ndim; d++) {
        int64_t lo = a->lo[d] > b->lo[d] ? a->lo[d] : b->lo[d];
        int64_t ha = a->lo[d] + a->len[d], hb = b->lo[d] + b->len[d], hi = ha < hb ? ha : hb;
        if (hi <= lo) return false;
        out->lo[d] = lo;
        out->len[d] = hi - lo;
    }
    return true;
}

bool dt_layout_is_first(const dt_meta *m, int pos) {
    if (!m->mesh) return pos == 0;
    int64_t c[DT_MAX_MESH_DIM];
    dt_mesh_coords(m->mesh, pos, c);
    for (int k = 0; k < m->mesh->ndim; k++)
        if (m->place[k].kind != DT_SHARD && c[k]) return false;
    return true;
}

int64_t dt_layout_bytes_max(const dt_meta *m) {
    dt_box b;
    dt_layout_box(m, 0, &b); /* the first device's chunks are never shorter than another's */
    return dt_box_numel(&b, m->ndim) * (int64_t)dt_dtype_size((dt_dtype)m->dtype);
}
