/* Layout of shards. See layout.h. */
#include "tensor/layout.h"

#include "base/arena.h"

void dt_layout_chunk(int64_t n, int64_t parts, int64_t i, int64_t *lo, int64_t *len) {
    int64_t c = (n + parts - 1) / parts;
    *lo = i * c < n ? i * c : n;
    *len = n - *lo < c ? n - *lo : c;
}

/* ---- windows: blocks that never move, so that reading needs no lock ---- */
enum { WINDOWS = 1024, BLOCKS = 4096 };
typedef struct window_entry {
    dt_hlink link;
    dt_window w;
    int32_t id;
} window_entry;
static window_entry *block[BLOCKS];
static dt_htab windows;
static int32_t n_windows;

int32_t dt_window_intern(const dt_window *w) {
    const uint64_t key[] = {(uint64_t)w->n, (uint64_t)w->start, (uint64_t)w->step, (uint64_t)w->extent, (uint64_t)w->backwards << 1 | w->same};
    uint64_t h = dt_hash_words(key, 5, 0);
    if (!windows.slot && dt_htab_init(&windows, 64)) return 0;
    for (dt_hlink *l = dt_htab_first(&windows, h); l; l = l->next) {
        const dt_window *v = &((window_entry *)l)->w;
        if (l->hash == h && v->n == w->n && v->start == w->start && v->step == w->step && v->extent == w->extent && v->backwards == w->backwards &&
            v->same == w->same)
            return ((window_entry *)l)->id;
    }
    int32_t at = n_windows;
    if (at == WINDOWS * BLOCKS) return 0;
    window_entry *b = block[at / WINDOWS];
    if (!b) {
        b = dt_calloc(WINDOWS, sizeof *b);
        if (!b) return 0;
        __atomic_store_n(&block[at / WINDOWS], b, __ATOMIC_RELEASE);
    }
    window_entry *e = &b[at % WINDOWS];
    e->w = *w;
    e->id = at + 1;
    if (dt_htab_add(&windows, &e->link, h)) return 0;
    n_windows++;
    return e->id;
}

const dt_window *dt_window_at(int32_t id) { return &__atomic_load_n(&block[(id - 1) / WINDOWS], __ATOMIC_ACQUIRE)[(id - 1) % WINDOWS].w; }

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); } /* b > 0 */

void dt_window_map(const dt_window *w, int64_t size, int64_t at, int64_t count, int64_t *lo, int64_t *len) {
    int64_t a = 0, b = 0; /* [a, b) */
    if (w->same) {
        a = w->start;
        b = w->start + w->extent;
    } else if (count == 0) {
        b = 0;
    } else if (w->backwards) {
        a = -floor_div(w->start + w->extent - 1 - at, w->step);
        b = floor_div(at + count - 1 - w->start, w->step) + 1;
    } else {
        int64_t x = w->start + at * w->step, y = w->start + (at + count - 1) * w->step;
        a = x < y ? x : y;
        b = (x < y ? y : x) + w->extent;
    }
    a = a < 0 ? 0 : a > size ? size : a;
    b = b < a ? a : b > size ? size : b;
    *lo = a;
    *len = b - a;
}

/* The number of rows that dimension d is seen as: 1 without strided shards. */
static int64_t rows_of(const dt_meta *m, int d) {
    for (int k = 0; k < m->mesh->ndim; k++)
        if (m->place[k].kind == DT_SHARD && m->place[k].dim == d && m->place[k].split && !m->place[k].window) return m->place[k].split;
    return 1;
}

static void cut(int64_t *lo, int64_t *len, int64_t parts, int64_t i) {
    int64_t at, n;
    dt_layout_chunk(*len, parts, i, &at, &n);
    *lo += at;
    *len = n;
}

/* Dimension d lies in windows: the result's dimension is cut, and the window says what that needs. False: it does not. */
static bool cut_window(const dt_meta *m, int d, const int64_t *c, dt_box *box) {
    const dt_window *w = NULL;
    int64_t at = 0, count = 0;
    for (int k = 0; k < m->mesh->ndim; k++) {
        if (m->place[k].kind != DT_SHARD || m->place[k].dim != d || !m->place[k].window) continue;
        if (!w) count = (w = dt_window_at(m->place[k].split))->n;
        cut(&at, &count, m->mesh->dim[k], c[k]);
    }
    if (!w) return false;
    dt_window_map(w, m->shape[d], at, count, &box->lo[d], &box->len[d]);
    box->step[d] = box->len[d];
    box->rows[d] = 1;
    return true;
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
        if (cuts && !cut_window(m, d, c, box)) cut_dim(m, d, c, box);
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
    dt_box b;                /* of metas without windows */
    dt_layout_box(m, 0, &b); /* the first device's chunks are never shorter than another's */
    return dt_box_numel(&b, m->ndim) * (int64_t)dt_dtype_size((dt_dtype)m->dtype);
}
