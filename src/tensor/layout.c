/* Layout of shards. See layout.h. */
#include "tensor/layout.h"

void dt_layout_chunk(int64_t n, int64_t parts, int64_t i, int64_t *lo, int64_t *len) {
    int64_t c = (n + parts - 1) / parts;
    *lo = i * c < n ? i * c : n;
    *len = n - *lo < c ? n - *lo : c;
}

/* The number of rows that dimension d is seen as: 1 without strided shards. */
static int64_t rows_of(const dt_meta *m, int d) {
    for (int k = 0; k < m->mesh->ndim; k++)
        if (m->place[k].kind == DT_SHARD && m->place[k].dim == d && m->place[k].split) return m->place[k].split;
    return 1;
}

static void cut(int64_t *lo, int64_t *len, int64_t parts, int64_t i) {
    int64_t at, n;
    dt_layout_chunk(*len, parts, i, &at, &n);
    *lo += at;
    *len = n;
}

static void cut_dim(const dt_meta *m, int d, const int64_t *c, dt_box *box) {
    int64_t rows = rows_of(m, d), step = m->shape[d] / rows, row0 = 0, n_rows = rows, lo = 0, run = step;
    for (int k = 0; k < m->mesh->ndim; k++) {
        if (m->place[k].kind != DT_SHARD || m->place[k].dim != d) continue;
        if (m->place[k].split || rows == 1)
            cut(&lo, &run, m->mesh->dim[k], c[k]);
        else
            cut(&row0, &n_rows, m->mesh->dim[k], c[k]);
    }
    box->lo[d] = row0 * step + lo;
    box->len[d] = n_rows * run;
    box->step[d] = step;
    box->rows[d] = run == step || n_rows * run == 0 ? 1 : n_rows;
}

void dt_layout_box(const dt_meta *m, int pos, dt_box *box) {
    int64_t c[DT_MAX_MESH_DIM];
    bool cuts = m->mesh && m->sharded;
    if (cuts) dt_mesh_coords(m->mesh, pos, c);
    for (int d = 0; d < m->ndim; d++) {
        box->lo[d] = 0;
        box->len[d] = box->step[d] = m->shape[d];
        box->rows[d] = 1;
        if (cuts) cut_dim(m, d, c, box);
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
        out->rows[d] = 1;
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
