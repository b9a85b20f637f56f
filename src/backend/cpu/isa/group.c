/* Grouped products. See group.h for the split and ops/grouped.c for the contract of grouped_mm.
 *
 * Tiles depend on the sizes of the groups alone, so results do not depend on the team. A tile of a group of few rows takes many columns, so
 * that every task is worth its start. */
#include "backend/cpu/isa/group.h"

#include <string.h>

enum { TALL = 516 };                        /* rows of a tile at most: a packed panel of B serves many rows */
static const double TASK = 4e6, TASKS = 32; /* multiplications a task at least, and how many tasks there should be for all groups */

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

static void cut(dt_group *g, double goal) {
    g->m_tile = g->m;
    g->n_tile = g->n;
    double k = (double)g->k + 1;
    if ((double)g->m * (double)g->n * k <= goal) return;
    int64_t parts = (g->m + TALL - 1) / TALL;
    g->m_tile = round_up((g->m + parts - 1) / parts, 12);
    int64_t n = round_up((int64_t)(goal / (k * (double)g->m_tile)) + 1, 64);
    g->n_tile = n < g->n ? n : g->n;
    if (g->m_tile > g->m) g->m_tile = g->m;
}

typedef struct job {
    const dt_gemm *like;
    const dt_group *group;
    int64_t n;
} job;

static void task(void *arg, int64_t i) {
    const job *j = arg;
    int64_t lo = 0, hi = j->n; /* the last group whose first tile is not behind i; empty groups share it with their successor */
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        if (j->group[mid].first <= i)
            lo = mid;
        else
            hi = mid;
    }
    const dt_group *q = &j->group[lo];
    dt_gemm g = *j->like;
    g.a = q->a;
    g.b = q->b;
    g.c = q->c;
    g.m = q->m;
    g.n = q->n;
    g.k = q->k;
    int64_t at = i - q->first, m0 = at / q->n_tiles * q->m_tile, n0 = at % q->n_tiles * q->n_tile;
    DT_ISA_FN(gemm_tile)(&g, m0, q->m - m0 < q->m_tile ? q->m - m0 : q->m_tile, n0, q->n - n0 < q->n_tile ? q->n - n0 : q->n_tile);
}

void DT_ISA_FN(group_run)(const dt_gemm *like, dt_group *group, int64_t n, dt_team *team) {
    double all = 0;
    for (int64_t i = 0; i < n; i++) all += (double)group[i].m * (double)group[i].n * ((double)group[i].k + 1);
    double goal = all / TASKS > TASK ? all / TASKS : TASK;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        dt_group *g = &group[i];
        g->first = count;
        g->n_tiles = 0;
        if (g->m <= 0 || g->n <= 0) continue;
        cut(g, goal);
        g->n_tiles = (g->n + g->n_tile - 1) / g->n_tile;
        count += g->n_tiles * ((g->m + g->m_tile - 1) / g->m_tile);
    }
    job j = {like, group, n};
    if (count) dt_team_run(team, task, &j, count);
}

/* ---- grouped_mm ------------------------------------------------------------------------------------------------------------------------ */
static int64_t offset_at(const dt_view *offs, int64_t i) {
    int64_t o = i * offs->stride[0];
    return offs->dtype == DT_int64 ? ((const int64_t *)offs->data)[o] : ((const int32_t *)offs->data)[o];
}

static dt_status check_offsets(const dt_view *offs, int64_t limit) {
    int64_t last = 0;
    for (int64_t i = 0; i < offs->shape[0]; i++) {
        int64_t end = offset_at(offs, i);
        if (end < last || end > limit)
            return dt_fail(DT_E_INDEX, "grouped_mm: offs[%lld] is %lld, legal are %lld (the entry before) to %lld (the size that offs cuts)", (long long)i,
                           (long long)end, (long long)last, (long long)limit);
        last = end;
    }
    return DT_OK;
}

static int64_t clamp(int64_t x, int64_t lo, int64_t hi) { return x < lo ? lo : x > hi ? hi : x; }

/* Group g's range of the cut dimension, as far as this device holds it: lo and end count from the start of the part here. */
static void range_of(const dt_view *offs, int64_t g, int64_t start, int64_t len, int64_t *lo, int64_t *end) {
    *lo = clamp((g ? offset_at(offs, g - 1) : 0) - start, 0, len);
    *end = clamp(offset_at(offs, g) - start, 0, len);
}

static const char *at(const dt_view *v, int64_t elements) { return (const char *)v->data + elements * (int64_t)dt_dtype_size(v->dtype); }

/* Zeros where no group that is held here writes: rows (or columns) of C outside the groups [g0, g1). */
static void clear_rest(const dt_kctx *c, bool rows, int64_t lo, int64_t end) {
    const dt_view *o = &c->out[0];
    int64_t n = o->shape[1];
    size_t size = dt_dtype_size(o->dtype);
    char *p = o->data;
    if (rows) {
        memset(p, 0, (size_t)(lo * n) * size);
        memset(p + (size_t)(end * n) * size, 0, (size_t)((o->shape[0] - end) * n) * size);
        return;
    }
    for (int64_t r = 0; r < o->shape[0]; r++, p += (size_t)n * size) {
        memset(p, 0, (size_t)lo * size);
        memset(p + (size_t)end * size, 0, (size_t)(n - end) * size);
    }
}

dt_status DT_ISA_FN(grouped_mm)(const dt_kctx *c) {
    const dt_view *a = &c->in[0], *b = &c->in[1], *offs = &c->in[2], *o = &c->out[0];
    dt_group *group = c->scratch;
    bool rows = b->ndim == 3, columns = a->ndim == 3; /* neither: the sum is cut */
    int64_t cut_start = rows ? c->in_place[0].lo[0] : columns ? c->in_place[1].lo[1] : c->in_place[0].lo[1];
    int64_t cut_len = rows ? a->shape[0] : b->shape[columns];
    DT_TRY(check_offsets(offs, rows ? c->in_place[0].shape[0] : columns ? c->in_place[1].shape[1] : c->in_place[0].shape[1]));
    const dt_geom *held = rows ? &c->in_place[1] : columns ? &c->in_place[0] : NULL; /* groups may be sharded */
    int64_t g0 = held ? held->lo[0] : 0, count = rows ? b->shape[0] : columns ? a->shape[0] : o->shape[0];
    dt_gemm like = {.dtype = o->dtype, .ldc = o->shape[o->ndim - 1]};
    like.ars = a->stride[a->ndim - 2];
    like.acs = a->stride[a->ndim - 1];
    like.brs = b->stride[b->ndim - 2];
    like.bcs = b->stride[b->ndim - 1];
    if (!held) g0 = c->out_place[0].lo[0];
    int64_t first = cut_len, last = cut_len;
    for (int64_t i = 0; i < count; i++) {
        dt_group *q = &group[i];
        int64_t lo, end;
        range_of(offs, g0 + i, cut_start, cut_len, &lo, &end);
        if (i == 0) first = lo;
        last = end;
        *q = (dt_group){.a = a->data, .b = b->data, .c = o->data, .m = a->shape[a->ndim - 2], .n = b->shape[b->ndim - 1], .k = a->shape[a->ndim - 1]};
        if (rows) {
            q->m = end - lo;
            q->a = at(a, lo * like.ars);
            q->b = at(b, i * b->stride[0]);
            q->c = (char *)at(o, lo * like.ldc);
        } else if (columns) {
            q->n = end - lo;
            q->a = at(a, i * a->stride[0]);
            q->b = at(b, lo * like.bcs);
            q->c = (char *)at(o, lo);
        } else {
            q->k = end - lo;
            q->a = at(a, lo * like.acs);
            q->b = at(b, lo * like.brs);
            q->c = (char *)at(o, i * o->stride[0]);
        }
    }
    if (rows || columns) clear_rest(c, rows, first, last);
    DT_ISA_FN(group_run)(&like, group, count, c->team);
    return DT_OK;
}
