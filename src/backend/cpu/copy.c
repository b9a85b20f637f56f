/* Copies between views of any strides.
 *
 * The dims are first put in the order of the destination's strides and merged where both sides allow, so most copies end as a few long rows:
 *   - rows contiguous on both sides           memcpy
 *   - source contiguous along another dim     tiles: whole cache lines of the source are collected in a small buffer on the stack, turned there
 *                                             and written as whole lines, so a power-of-two stride does not fight over a cache set
 *   - anything else                           a strided loop per row
 * Work is cut by the problem's size only; each piece writes its own part of dst. Any thread. */
#include "backend/cpu/copy.h"

#include <string.h>

enum { PIECE = 1 << 17 }; /* bytes a task moves, about */

typedef struct shape_plan {
    int n; /* dims left, outermost first; strides in bytes */
    int64_t size[DT_MAX_DIM], ds[DT_MAX_DIM], ss[DT_MAX_DIM];
    char *d;
    const char *s;
    size_t elem;
    int64_t rows, rows_a_task;          /* for row-wise copies: product of all dims but the last */
    int turn;                           /* for tiled copies: the dim along which the source is contiguous */
    int64_t tile_j, strips_i, chunks_j; /* a task: one strip of TILE_ROWS along i, CHUNK tiles along j */
} shape_plan;

static int64_t magnitude(int64_t v) { return v < 0 ? -v : v; }

/* Fill p's dims from the views: sizes of 1 dropped, sorted by dst stride, merged. False when there is nothing to copy. */
static bool plan_dims(shape_plan *p, const dt_view *dst, const dt_view *src, size_t delem, size_t selem) {
    p->n = 0;
    for (int i = 0; i < dst->ndim; i++) {
        if (dst->shape[i] == 0) return false;
        if (dst->shape[i] == 1) continue;
        int64_t ds = dst->stride[i] * (int64_t)delem, ss = src->stride[i] * (int64_t)selem;
        int k = p->n++;
        for (; k > 0 && (magnitude(p->ds[k - 1]) < magnitude(ds) || (p->ds[k - 1] == ds && magnitude(p->ss[k - 1]) < magnitude(ss))); k--) {
            p->size[k] = p->size[k - 1];
            p->ds[k] = p->ds[k - 1];
            p->ss[k] = p->ss[k - 1];
        }
        p->size[k] = dst->shape[i];
        p->ds[k] = ds;
        p->ss[k] = ss;
    }
    int m = 0; /* merge i into m when m's step is exactly i's extent on both sides */
    for (int i = 1; i < p->n; i++) {
        if (p->ds[m] == p->ds[i] * p->size[i] && p->ss[m] == p->ss[i] * p->size[i]) {
            p->size[m] *= p->size[i];
            p->ds[m] = p->ds[i];
            p->ss[m] = p->ss[i];
        } else {
            m++;
            p->size[m] = p->size[i];
            p->ds[m] = p->ds[i];
            p->ss[m] = p->ss[i];
        }
    }
    if (p->n == 0) {
        p->n = 1;
        p->size[0] = 1;
        p->ds[0] = (int64_t)delem;
        p->ss[0] = (int64_t)selem;
    } else {
        p->n = m + 1;
    }
    p->d = dst->data;
    p->s = src->data;
    p->elem = delem;
    return true;
}

/* The start of row `r`, counting over all dims but the last (and but `skip`, -1 for none). */
static void row_start(const shape_plan *p, int64_t r, int skip, char **d, const char **s) {
    *d = p->d;
    *s = p->s;
    for (int i = p->n - 2; i >= 0; i--) {
        if (i == skip) continue;
        int64_t k = r % p->size[i];
        r /= p->size[i];
        *d += k * p->ds[i];
        *s += k * p->ss[i];
    }
}

#define STRIDED(type) \
    for (int64_t i = 0; i < n; i++) *(type *)(d + i * ds) = *(const type *)(s + i * ss)
#define TO_DENSE(type) \
    for (int64_t i = 0; i < n; i++) ((type *)d)[i] = *(const type *)(s + i * ss)
#define FILL(type)                                          \
    do {                                                    \
        type v = *(const type *)s;                          \
        for (int64_t i = 0; i < n; i++) ((type *)d)[i] = v; \
    } while (0)
#define ROW(type)               \
    do {                        \
        if (ds != sizeof(type)) \
            STRIDED(type);      \
        else if (ss == 0)       \
            FILL(type);         \
        else                    \
            TO_DENSE(type);     \
    } while (0)

/* One row. d: n elements, ds bytes apart; s: the same with ss. */
static void copy_row(char *restrict d, const char *restrict s, int64_t n, int64_t ds, int64_t ss, size_t elem) {
    if (ds == (int64_t)elem && ss == (int64_t)elem) {
        memcpy(d, s, (size_t)n * elem);
        return;
    }
    switch (elem) {
    case 1: ROW(uint8_t); break;
    case 2: ROW(uint16_t); break;
    case 4: ROW(uint32_t); break;
    case 8: ROW(uint64_t); break;
    default:
        for (int64_t i = 0; i < n; i++) memcpy(d + i * ds, s + i * ss, elem);
    }
}

static void rows_task(void *arg, int64_t t) {
    const shape_plan *p = arg;
    int last = p->n - 1;
    int64_t r0 = t * p->rows_a_task, r1 = r0 + p->rows_a_task < p->rows ? r0 + p->rows_a_task : p->rows;
    for (int64_t r = r0; r < r1;) {
        char *d;
        const char *s;
        row_start(p, r, -1, &d, &s);
        int64_t left = r1 - r, run = 1;
        if (last > 0) { /* rows of the innermost outer dim need no new start */
            run = p->size[last - 1] - r % p->size[last - 1];
            if (run > left) run = left;
        }
        for (int64_t k = 0; k < run; k++)
            copy_row(d + k * (last ? p->ds[last - 1] : 0), s + k * (last ? p->ss[last - 1] : 0), p->size[last], p->ds[last], p->ss[last], p->elem);
        r += run;
    }
}

/* One long row, cut in pieces. */
static void piece_task(void *arg, int64_t t) {
    const shape_plan *p = arg;
    int64_t n = PIECE / (int64_t)p->elem, i = t * n, left = p->size[0] - i;
    copy_row(p->d + i * p->ds[0], p->s + i * p->ss[0], left < n ? left : n, p->ds[0], p->ss[0], p->elem);
}

/* Turn a tile held in `buf` (rows of `pitch` elements along the source's dense dim) into dst rows. */
#define TURN(type)                                               \
    for (int64_t j = 0; j < nj; j++) {                           \
        type *restrict out = (type *)(d + j * dj);               \
        const type *restrict in = (const type *)buf + j;         \
        for (int64_t i = 0; i < ni; i++) out[i] = in[i * pitch]; \
    }

/* 4-byte elements: blocks of 4 x 4 are turned in registers. */
typedef uint32_t v4 __attribute__((vector_size(16)));
static void turn_words(char *d, const uint32_t *buf, int64_t ni, int64_t nj, int64_t dj, int64_t pitch) {
    int64_t i4 = ni / 4 * 4, j4 = nj / 4 * 4;
    for (int64_t j = 0; j < j4; j += 4)
        for (int64_t i = 0; i < i4; i += 4) {
            v4 a, b, c, e, row[4];
            memcpy(&a, buf + i * pitch + j, 16);
            memcpy(&b, buf + (i + 1) * pitch + j, 16);
            memcpy(&c, buf + (i + 2) * pitch + j, 16);
            memcpy(&e, buf + (i + 3) * pitch + j, 16);
            v4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
            v4 ce = __builtin_shufflevector(c, e, 0, 4, 1, 5), ce2 = __builtin_shufflevector(c, e, 2, 6, 3, 7);
            row[0] = __builtin_shufflevector(ab, ce, 0, 1, 4, 5);
            row[1] = __builtin_shufflevector(ab, ce, 2, 3, 6, 7);
            row[2] = __builtin_shufflevector(ab2, ce2, 0, 1, 4, 5);
            row[3] = __builtin_shufflevector(ab2, ce2, 2, 3, 6, 7);
            for (int k = 0; k < 4; k++) memcpy(d + (j + k) * dj + i * 4, &row[k], 16);
        }
    for (int64_t j = 0; j < nj; j++)
        for (int64_t i = j < j4 ? i4 : 0; i < ni; i++) *(uint32_t *)(d + j * dj + i * 4) = buf[i * pitch + j];
}

/* d: (nj, ni), rows dj bytes apart, dense in i. s: (ni, nj), rows si bytes apart, dense in j. A tile is one cache line of each of 256 source rows:
 * every line is fetched once, and dst is written in long runs, whose stores need no fetch of their own pages every time. (Measured: 3 ms for 16 MB,
 * against 5 ms with tiles of 32 x 32.) */
enum { TILE_BYTES = 64, TILE_ROWS = 256, CHUNK = 64 };
static void turn_tile(char *d, const char *s, int64_t ni, int64_t nj, int64_t dj, int64_t si, size_t elem) {
    _Alignas(64) char buf[TILE_ROWS * (TILE_BYTES + 16)];
    int64_t pitch = (TILE_BYTES + 16) / (int64_t)elem;
    if (nj * (int64_t)elem == TILE_BYTES)
        for (int64_t i = 0; i < ni; i++) memcpy(buf + i * (TILE_BYTES + 16), s + i * si, TILE_BYTES);
    else
        for (int64_t i = 0; i < ni; i++) memcpy(buf + i * (TILE_BYTES + 16), s + i * si, (size_t)nj * elem);
    switch (elem) {
    case 1: TURN(uint8_t); break;
    case 2: TURN(uint16_t); break;
    case 4: turn_words(d, (const uint32_t *)buf, ni, nj, dj, pitch); break;
    default: TURN(uint64_t); break;
    }
}

/* Task t: one strip of rows of the source, some tiles along its dense dim, for one setting of the other dims. */
static void tiles_task(void *arg, int64_t t) {
    const shape_plan *p = arg;
    int last = p->n - 1;
    int64_t chunk = t % p->chunks_j, strip = t / p->chunks_j % p->strips_i, outer = t / p->chunks_j / p->strips_i;
    int64_t i = strip * TILE_ROWS, ni = p->size[last] - i < TILE_ROWS ? p->size[last] - i : TILE_ROWS;
    int64_t j0 = chunk * CHUNK * p->tile_j, j1 = j0 + CHUNK * p->tile_j < p->size[p->turn] ? j0 + CHUNK * p->tile_j : p->size[p->turn];
    char *d;
    const char *s;
    row_start(p, outer, p->turn, &d, &s);
    d += i * p->ds[last];
    s += i * p->ss[last];
    for (int64_t j = j0; j < j1; j += p->tile_j)
        turn_tile(d + j * p->ds[p->turn], s + j * p->ss[p->turn], ni, j1 - j < p->tile_j ? j1 - j : p->tile_j, p->ds[p->turn], p->ss[last], p->elem);
}

/* Is a tiled copy right for p? Then p->turn is set. */
static bool plan_turn(shape_plan *p) {
    int last = p->n - 1;
    if (p->n < 2 || p->ds[last] != (int64_t)p->elem || p->ss[last] == (int64_t)p->elem || p->ss[last] == 0) return false;
    if (p->elem != 1 && p->elem != 2 && p->elem != 4 && p->elem != 8) return false;
    if (p->size[last] < 4) return false;
    for (int i = 0; i < last; i++)
        if (p->ss[i] == (int64_t)p->elem && p->size[i] >= 4) {
            p->turn = i;
            p->tile_j = TILE_BYTES / (int64_t)p->elem;
            p->strips_i = (p->size[last] + TILE_ROWS - 1) / TILE_ROWS;
            p->chunks_j = (p->size[i] + CHUNK * p->tile_j - 1) / (CHUNK * p->tile_j);
            return true;
        }
    return false;
}

void dt_cpu_copy_view(const dt_view *dst, const dt_view *src, dt_team *team) {
    shape_plan p = {0};
    size_t elem = dt_dtype_size(dst->dtype);
    if (!plan_dims(&p, dst, src, elem, elem)) return;
    if (p.d == p.s) {
        bool same = true;
        for (int i = 0; i < p.n; i++) same = same && p.ds[i] == p.ss[i];
        if (same) return;
    }
    int last = p.n - 1;
    p.rows = 1;
    for (int i = 0; i < last; i++) p.rows *= p.size[i];
    if (p.n == 1) {
        int64_t n = PIECE / (int64_t)elem;
        dt_team_run(team, piece_task, &p, (p.size[0] + n - 1) / n);
        return;
    }
    if (plan_turn(&p)) {
        dt_team_run(team, tiles_task, &p, p.rows / p.size[p.turn] * p.strips_i * p.chunks_j);
        return;
    }
    int64_t row_bytes = p.size[last] * (int64_t)elem;
    p.rows_a_task = row_bytes >= PIECE ? 1 : PIECE / row_bytes;
    dt_team_run(team, rows_task, &p, (p.rows + p.rows_a_task - 1) / p.rows_a_task);
}

/* ---- casts ---------------------------------------------------------------------------------------------------------------- */
typedef struct cast_plan {
    shape_plan p;
    dt_dtype to, from;
} cast_plan;

static void cast_one(dt_dtype to, char *d, dt_dtype from, const char *s) {
    if (to == DT_bool)
        *(uint8_t *)d = dt_element_get_f64(from, s) != 0;
    else if (dt_dtype_is_float(from) && dt_dtype_is_float(to))
        dt_element_set_f64(to, d, dt_element_get_f64(from, s));
    else if (dt_dtype_is_float(from))
        dt_element_set_i64(to, d, dt_element_get_i64(from, s));
    else if (dt_dtype_is_float(to))
        dt_element_set_f64(to, d, (double)dt_element_get_i64(from, s));
    else
        dt_element_set_i64(to, d, dt_element_get_i64(from, s));
}

#define CAST_LOOP(to_t, from_t, expr)                 \
    do {                                              \
        for (int64_t i = 0; i < n; i++) {             \
            from_t x = *(const from_t *)(s + i * ss); \
            *(to_t *)(d + i * ds) = (expr);           \
        }                                             \
        return;                                       \
    } while (0)

static void cast_row(const cast_plan *c, char *restrict d, const char *restrict s, int64_t n, int64_t ds, int64_t ss) {
    if (c->to == DT_float32 && c->from == DT_bfloat16) CAST_LOOP(float, uint16_t, dt_bf16_to_f32(x));
    if (c->to == DT_bfloat16 && c->from == DT_float32) CAST_LOOP(uint16_t, float, dt_bf16_from_f32(x));
    if (c->to == DT_float32 && c->from == DT_float64) CAST_LOOP(float, double, (float)x);
    if (c->to == DT_float64 && c->from == DT_float32) CAST_LOOP(double, float, (double)x);
    if (c->to == DT_float32 && c->from == DT_int64) CAST_LOOP(float, int64_t, (float)x);
    if (c->to == DT_int64 && c->from == DT_int32) CAST_LOOP(int64_t, int32_t, (int64_t)x);
    for (int64_t i = 0; i < n; i++) cast_one(c->to, d + i * ds, c->from, s + i * ss);
}

static void cast_task(void *arg, int64_t t) {
    const cast_plan *c = arg;
    const shape_plan *p = &c->p;
    int last = p->n - 1;
    int64_t r1 = (t + 1) * p->rows_a_task < p->rows ? (t + 1) * p->rows_a_task : p->rows;
    for (int64_t r = t * p->rows_a_task; r < r1; r++) {
        char *d;
        const char *s;
        row_start(p, r, -1, &d, &s);
        cast_row(c, d, s, p->size[last], p->ds[last], p->ss[last]);
    }
}

static void cast_piece_task(void *arg, int64_t t) {
    const cast_plan *c = arg;
    const shape_plan *p = &c->p;
    int64_t n = PIECE / 8, i = t * n, left = p->size[0] - i;
    cast_row(c, p->d + i * p->ds[0], p->s + i * p->ss[0], left < n ? left : n, p->ds[0], p->ss[0]);
}

void dt_cpu_cast_view(const dt_view *dst, const dt_view *src, dt_team *team) {
    if (dst->dtype == src->dtype) {
        dt_cpu_copy_view(dst, src, team);
        return;
    }
    cast_plan c = {.to = dst->dtype, .from = src->dtype};
    shape_plan *p = &c.p;
    if (!plan_dims(p, dst, src, dt_dtype_size(dst->dtype), dt_dtype_size(src->dtype))) return;
    if (p->n == 1) {
        dt_team_run(team, cast_piece_task, &c, (p->size[0] + PIECE / 8 - 1) / (PIECE / 8));
        return;
    }
    p->rows = 1;
    for (int i = 0; i < p->n - 1; i++) p->rows *= p->size[i];
    int64_t row = p->size[p->n - 1] * 8;
    p->rows_a_task = row >= PIECE ? 1 : PIECE / row;
    dt_team_run(team, cast_task, &c, (p->rows + p->rows_a_task - 1) / p->rows_a_task);
}

/* Any op that only changes shape or strides: out[0] is in[0]'s elements in order. */
DT_CPU_KERNEL(copy_reshape);
dt_status dt_cpu_copy_reshape(const dt_kctx *c) {
    dt_view dst = c->in[0];
    dst.data = c->out[0].data;
    dt_view_set_contiguous(&dst);
    dt_cpu_copy_view(&dst, &c->in[0], c->team);
    return DT_OK;
}
