/* Sorting along one dimension and what follows from it: sort, topk, kthvalue, median, nanmedian, mode. Contiguous inputs of any dtype.
 *
 * A row becomes pairs (key, index); keys are unsigned and order as the values do, NaN above all, -0 equal to 0; a descending order
 * inverts them. Pairs are sorted by a stable radix sort, byte by byte, skipping bytes in which all keys agree; short rows by insertion. */
#include <math.h>
#include <string.h>

#include "ops/sort.h"

typedef struct sort_job {
    const dt_kctx *c;
    dt_rows r;
    dt_dtype dtype;
    int64_t esize, slots, k;
    bool descending, only_first; /* only_first: finish looks at the first k only */
    void (*finish)(const struct sort_job *j, const dt_pair *p, int64_t o, int64_t col);
} sort_job;

/* f32 needs only 32 bits of key: half the passes. */
static uint64_t key_f32(float f) {
    union {
        float f;
        uint32_t u;
    } v = {f};
    if (f != f) return UINT64_MAX;
    if (f == 0) return 1u << 31;
    return v.u >> 31 ? (uint32_t)~v.u : v.u | 1u << 31;
}

static uint64_t key_of(dt_dtype t, const void *p) {
    if (t == DT_float32) return key_f32(*(const float *)p);
    if (t == DT_bfloat16) return key_f32(dt_bf16_to_f32(*(const uint16_t *)p));
    if (t == DT_float16) return key_f32(dt_f16_to_f32(*(const uint16_t *)p));
    if (t == DT_int64) return (uint64_t) * (const int64_t *)p ^ 1ull << 63;
    if (t != DT_float64) return (uint64_t)dt_element_get_i64(t, p) ^ 1ull << 63;
    union {
        double f;
        uint64_t u;
    } v = {*(const double *)p};
    if (v.f != v.f) return UINT64_MAX;
    if (v.f == 0) return 1ull << 63;
    return v.u >> 63 ? ~v.u : v.u | 1ull << 63;
}

static void insertion(dt_pair *p, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        dt_pair x = p[i];
        int64_t k = i;
        for (; k > 0 && p[k - 1].key > x.key; k--) p[k] = p[k - 1];
        p[k] = x;
    }
}

/* Sorts p (n); t: as much room. Returns whichever of the two holds the result. */
static dt_pair *sort_pairs(dt_pair *p, dt_pair *t, int64_t n) {
    if (n < 48) {
        insertion(p, n);
        return p;
    }
    uint64_t any = 0, all = UINT64_MAX;
    for (int64_t i = 0; i < n; i++) any |= p[i].key, all &= p[i].key;
    for (int shift = 0; shift < 64; shift += 8) {
        if (!((any ^ all) >> shift & 255)) continue;
        int64_t count[257] = {0};
        for (int64_t i = 0; i < n; i++) count[(p[i].key >> shift & 255) + 1]++;
        for (int d = 0; d < 256; d++) count[d + 1] += count[d];
        for (int64_t i = 0; i < n; i++) t[count[p[i].key >> shift & 255]++] = p[i];
        dt_pair *swap = p;
        p = t, t = swap;
    }
    return p;
}

/* The first k of the sorted row, without sorting all of it: elements below the k-th so far wait in a buffer of `room` pairs (at most n), which is
 * sorted and cut to k whenever it is full. Later elements equal to the k-th lose, as they would in a stable sort. */
static dt_pair *select_first(const sort_job *j, const char *x, dt_pair *p, dt_pair *t, int64_t room) {
    int64_t n = j->r.n, step = j->r.inner * j->esize, count = 0, k = j->k;
    uint64_t flip = j->descending ? UINT64_MAX : 0, limit = UINT64_MAX;
    bool full = false; /* has limit been set: until then everything enters */
    for (int64_t i = 0; i < n; i++) {
        uint64_t key = key_of(j->dtype, x + i * step) ^ flip;
        if (full && key >= limit) continue;
        p[count++] = (dt_pair){key, i};
        if (count < room) continue;
        dt_pair *sorted = sort_pairs(p, t, count);
        if (sorted != p) t = p, p = sorted;
        count = k;
        limit = p[k - 1].key;
        full = true;
    }
    return sort_pairs(p, t, count);
}

static void slot(void *arg, int64_t s) {
    const sort_job *j = arg;
    int64_t n = j->r.n, inner = j->r.inner, rows = j->r.outer * inner, room = 4 * j->k < 256 ? 256 : 4 * j->k;
    uint64_t flip = j->descending ? UINT64_MAX : 0;
    dt_pair *p = (dt_pair *)j->c->scratch + s * 2 * n;
    for (int64_t row = s; row < rows; row += j->slots) {
        int64_t o = row / inner, col = row % inner;
        const char *x = (const char *)j->c->in[0].data + (o * n * inner + col) * j->esize;
        if (j->only_first && room < n) {
            j->finish(j, select_first(j, x, p, p + n, room), o, col);
            continue;
        }
        for (int64_t i = 0; i < n; i++) p[i] = (dt_pair){key_of(j->dtype, x + i * inner * j->esize) ^ flip, i};
        j->finish(j, sort_pairs(p, p + n, n), o, col);
    }
}

static dt_status run(const dt_kctx *c, bool descending, bool only_first, int64_t k, void (*finish)(const sort_job *, const dt_pair *, int64_t, int64_t)) {
    const dt_sort_attr *a = c->attr;
    sort_job j = {.c = c,
                  .r = dt_rows_of(&c->in[0], a->dim),
                  .dtype = c->in[0].dtype,
                  .k = k,
                  .descending = descending,
                  .only_first = only_first && k > 0,
                  .finish = finish};
    j.esize = (int64_t)dt_dtype_size(j.dtype);
    j.slots = dt_sort_slots(j.r.outer * j.r.inner, j.r.n);
    if (dt_view_numel(&c->in[0]) == 0) return DT_OK;
    dt_team_run(c->team, slot, &j, j.slots);
    return DT_OK;
}

/* Output element (o, i, col) of m a row takes input element `at` of its row. */
static void put(const sort_job *j, int64_t o, int64_t m, int64_t i, int64_t col, int64_t at) {
    int64_t to = (o * m + i) * j->r.inner + col, from = (o * j->r.n + at) * j->r.inner + col;
    memcpy((char *)j->c->out[0].data + to * j->esize, (const char *)j->c->in[0].data + from * j->esize, (size_t)j->esize);
    ((int64_t *)j->c->out[1].data)[to] = at;
}
static void first_k(const sort_job *j, const dt_pair *p, int64_t o, int64_t col) {
    for (int64_t i = 0; i < j->k; i++) put(j, o, j->k, i, col, p[i].at);
}
static void kth(const sort_job *j, const dt_pair *p, int64_t o, int64_t col) { put(j, o, 1, 0, col, p[j->k - 1].at); }

/* The lower median; NaN if the row holds one. */
static void median(const sort_job *j, const dt_pair *p, int64_t o, int64_t col) {
    int64_t n = j->r.n, at = (n - 1) / 2;
    for (int64_t i = n - 1; i >= 0 && p[i].key == UINT64_MAX && dt_dtype_is_float(j->dtype); i--) at = i;
    put(j, o, 1, 0, col, p[at].at);
}
static void nanmedian(const sort_job *j, const dt_pair *p, int64_t o, int64_t col) {
    int64_t n = j->r.n;
    while (n > 1 && p[n - 1].key == UINT64_MAX && dt_dtype_is_float(j->dtype)) n--;
    put(j, o, 1, 0, col, p[(n - 1) / 2].at);
}
static void mode(const sort_job *j, const dt_pair *p, int64_t o, int64_t col) {
    int64_t best = 0, at = 0, run = 0;
    for (int64_t i = 0; i < j->r.n; i++) {
        run = i && p[i].key == p[i - 1].key ? run + 1 : 1;
        if (run > best) best = run, at = i;
    }
    put(j, o, 1, 0, col, p[at].at);
}

DT_CPU_KERNEL(sort);
DT_CPU_KERNEL(topk);
DT_CPU_KERNEL(kthvalue);
DT_CPU_KERNEL(median);
DT_CPU_KERNEL(nanmedian);
DT_CPU_KERNEL(mode);
DT_CPU_KERNEL(sort) {
    const dt_sort_attr *a = c->attr;
    return run(c, a->descending, false, dt_rows_of(&c->in[0], a->dim).n, first_k);
}
DT_CPU_KERNEL(topk) {
    const dt_sort_attr *a = c->attr;
    return run(c, a->largest, true, a->k, first_k);
}

/* ---- topk of a sharded dimension: the first k of each shard, then the first k of those. A place without an element has index -1. ---- */
DT_CPU_KERNEL(topk_part);
DT_CPU_KERNEL(topk_part) {
    const dt_sort_attr *a = c->attr;
    sort_job j = {.c = c, .r = dt_rows_of(&c->in[0], a->dim), .dtype = c->in[0].dtype, .k = a->k, .descending = a->largest};
    j.esize = (int64_t)dt_dtype_size(j.dtype);
    int64_t k = a->k < j.r.n ? a->k : j.r.n, n = dt_view_numel(&c->out[1]), *index = c->out[1].data;
    for (int64_t i = 0; i < n; i++) index[i] = -1;
    memset(c->out[0].data, 0, (size_t)n * (size_t)j.esize);
    dt_pair *p = c->scratch;
    uint64_t flip = a->largest ? UINT64_MAX : 0;
    for (int64_t row = 0; row < j.r.outer * j.r.inner && k; row++) {
        int64_t o = row / j.r.inner, col = row % j.r.inner;
        const char *x = (const char *)c->in[0].data + (o * j.r.n * j.r.inner + col) * j.esize;
        for (int64_t i = 0; i < j.r.n; i++) p[i] = (dt_pair){key_of(j.dtype, x + i * j.r.inner * j.esize) ^ flip, i};
        const dt_pair *sorted = sort_pairs(p, p + j.r.n, j.r.n);
        for (int64_t i = 0; i < k; i++) {
            put(&j, o, a->k, i, col, sorted[i].at);
            index[(o * a->k + i) * j.r.inner + col] += c->in_place->lo[a->dim];
        }
    }
    return DT_OK;
}
DT_CPU_KERNEL(topk_join);
DT_CPU_KERNEL(topk_join) {
    const dt_sort_attr *a = c->attr;
    sort_job j = {.c = c, .r = dt_rows_of(&c->in[0], a->dim), .dtype = c->in[0].dtype, .k = a->k, .descending = a->largest};
    j.esize = (int64_t)dt_dtype_size(j.dtype);
    const int64_t *index = c->in[1].data;
    dt_pair *p = c->scratch;
    uint64_t flip = a->largest ? UINT64_MAX : 0;
    for (int64_t row = 0; row < j.r.outer * j.r.inner && a->k; row++) {
        int64_t o = row / j.r.inner, col = row % j.r.inner, base = o * j.r.n * j.r.inner + col, n = 0;
        for (int64_t i = 0; i < j.r.n; i++) {
            int64_t at = base + i * j.r.inner;
            if (index[at] >= 0) p[n++] = (dt_pair){key_of(j.dtype, (const char *)c->in[0].data + at * j.esize) ^ flip, i};
        }
        const dt_pair *sorted = sort_pairs(p, p + n, n);
        for (int64_t i = 0; i < a->k; i++) {
            put(&j, o, a->k, i, col, sorted[i].at);
            ((int64_t *)c->out[1].data)[(o * a->k + i) * j.r.inner + col] = index[base + sorted[i].at * j.r.inner];
        }
    }
    return DT_OK;
}
DT_CPU_KERNEL(kthvalue) { return run(c, false, true, ((const dt_sort_attr *)c->attr)->k, kth); }
DT_CPU_KERNEL(median) { return run(c, false, false, 1, median); }
DT_CPU_KERNEL(nanmedian) { return run(c, false, false, 1, nanmedian); }
DT_CPU_KERNEL(mode) { return run(c, false, false, 1, mode); }
