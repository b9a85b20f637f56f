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
    bool descending;
    void (*finish)(const struct sort_job *j, const dt_pair *p, int64_t o, int64_t col);
} sort_job;

static uint64_t key_of(dt_dtype t, const void *p) {
    if (!dt_dtype_is_float(t)) return (uint64_t)dt_element_get_i64(t, p) ^ 1ull << 63;
    union {
        double f;
        uint64_t u;
    } v = {dt_element_get_f64(t, p)};
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

static void slot(void *arg, int64_t s) {
    const sort_job *j = arg;
    int64_t n = j->r.n, inner = j->r.inner, rows = j->r.outer * inner;
    dt_pair *p = (dt_pair *)j->c->scratch + s * 2 * n;
    const char *x = j->c->in[0].data;
    for (int64_t row = s; row < rows; row += j->slots) {
        int64_t o = row / inner, col = row % inner;
        for (int64_t i = 0; i < n; i++) {
            uint64_t key = key_of(j->dtype, x + ((o * n + i) * inner + col) * j->esize);
            p[i] = (dt_pair){j->descending ? ~key : key, i};
        }
        j->finish(j, sort_pairs(p, p + n, n), o, col);
    }
}

static dt_status run(const dt_kctx *c, bool descending, int64_t k, void (*finish)(const sort_job *, const dt_pair *, int64_t, int64_t)) {
    const dt_sort_attr *a = c->attr;
    sort_job j = {.c = c, .r = dt_rows_of(&c->in[0], a->dim), .dtype = c->in[0].dtype, .k = k, .descending = descending, .finish = finish};
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
    return run(c, a->descending, dt_rows_of(&c->in[0], a->dim).n, first_k);
}
DT_CPU_KERNEL(topk) {
    const dt_sort_attr *a = c->attr;
    return run(c, a->largest, a->k, first_k);
}
DT_CPU_KERNEL(kthvalue) { return run(c, false, ((const dt_sort_attr *)c->attr)->k, kth); }
DT_CPU_KERNEL(median) { return run(c, false, 1, median); }
DT_CPU_KERNEL(nanmedian) { return run(c, false, 1, nanmedian); }
DT_CPU_KERNEL(mode) { return run(c, false, 1, mode); }
