/* GEMM: one thread's product, and the split of a product among a team. See gemm.h.
 *
 * Our micro-kernels reach OpenBLAS's speed up to about 800^3 (with AVX-512, always) and beat it on small products, take any strides and convert 16-bit
 * floats while they pack (gemm_half.c); so OpenBLAS is asked only for what is large, one column wide, or one row by a B that does not lie along k
 * (thin.h). k is never cut among threads and an element's sum does not depend on the tile it is in (where OpenBLAS may be asked for a tile, tiles
 * depend on the problem alone), so a result does not depend on the team's size. Blocks live on the stack (at most 300 KiB). */
#include "backend/cpu/isa/gemm.h"

#include <math.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "backend/cpu/blas.h"
#ifdef __AVX2__
#include "backend/cpu/isa/thin.h"
#endif

/* Multiplications from which OpenBLAS wins: with AVX-512 none. Without vector instructions known at compile time it always does. Rows of a tile: a packed
 * panel of B should serve many; where OpenBLAS may be asked for a tile, tiles must be the same for every team. */
#if defined(__AVX512F__)
#define GEMM_LARGE INFINITY
#define GEMM_TALL(team) (dt_team_size(team) > 1 ? 516 : 1032)
#elif defined(__AVX2__)
#define GEMM_LARGE 5e8
#define GEMM_TALL(team) 516
#else
#define GEMM_LARGE 3e4
#define GEMM_TALL(team) 516
#endif

#define T float
#define SUF _f32
#define GEMM_NAME DT_ISA_FN(gemm_f32)
#define BLAS_GEMM sgemm
#define BLAS_GEMV sgemv
#ifdef __AVX2__
#define GEMM_THIN thin_f32
#endif
#define GEMM_LANES
#include "backend/cpu/isa/gemm_own.h"
#undef T
#undef GEMM_LANES

#undef SUF
#undef GEMM_NAME
#undef BLAS_GEMM
#undef BLAS_GEMV
#undef GEMM_THIN

#define T double
#define SUF _f64
#define GEMM_NAME DT_ISA_FN(gemm_f64)
#define BLAS_GEMM dgemm
#define BLAS_GEMV dgemv
#include "backend/cpu/isa/gemm_own.h"
#undef T

/* ---- 16-bit floats ---- */
static void load_f16(const uint16_t *s, int64_t stride, int64_t n, float *d) {
    int64_t i = 0;
#ifdef __F16C__
    if (stride == 1)
        for (; i + 8 <= n; i += 8) _mm256_storeu_ps(d + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(s + i))));
#endif
    for (; i < n; i++) d[i] = dt_f16_to_f32(s[i * stride]);
}

void DT_ISA_FN(load_f32)(dt_dtype t, const void *src, int64_t stride, int64_t n, float *dst) {
    if (t == DT_float32) {
        const float *s = src;
        if (stride == 1)
            memcpy(dst, s, (size_t)n * 4);
        else
            for (int64_t i = 0; i < n; i++) dst[i] = s[i * stride];
    } else if (t == DT_bfloat16) {
        const uint16_t *s = src;
        if (stride == 1)
            for (int64_t i = 0; i < n; i++) dst[i] = dt_bf16_to_f32(s[i]);
        else
            for (int64_t i = 0; i < n; i++) dst[i] = dt_bf16_to_f32(s[i * stride]);
    } else if (t == DT_float16) {
        load_f16(src, stride, n, dst);
    } else {
        const double *s = src;
        for (int64_t i = 0; i < n; i++) dst[i] = (float)s[i * stride];
    }
}

void DT_ISA_FN(store_f32)(dt_dtype t, const float *src, int64_t n, void *dst) {
    if (t == DT_float32) {
        memcpy(dst, src, (size_t)n * 4);
    } else if (t == DT_bfloat16) {
        uint16_t *d = dst;
        for (int64_t i = 0; i < n; i++) d[i] = dt_bf16_from_f32(src[i]);
    } else if (t == DT_float16) {
        uint16_t *d = dst;
        int64_t i = 0;
#ifdef __F16C__
        for (; i + 8 <= n; i += 8) _mm_storeu_si128((__m128i *)(d + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), 0));
#endif
        for (; i < n; i++) d[i] = dt_f16_from_f32(src[i]);
    } else {
        double *d = dst;
        for (int64_t i = 0; i < n; i++) d[i] = src[i];
    }
}

/* ---- tiles ---- */
static void add_bias_f32(const dt_gemm *g, float *c, int64_t ldc, int64_t rows, int64_t n0, int64_t cols) {
    const char *bias = g->bias + n0 * g->bias_stride * (int64_t)dt_dtype_size(g->dtype);
    float line[256];
    for (int64_t j0 = 0; j0 < cols; j0 += 256) {
        int64_t n = cols - j0 < 256 ? cols - j0 : 256;
        DT_ISA_FN(load_f32)(g->dtype, bias + j0 * g->bias_stride * (int64_t)dt_dtype_size(g->dtype), g->bias_stride, n, line);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < n; j++) c[r * ldc + j0 + j] += line[j];
    }
}

/* The operands of one batch item and one term, at row m0 and column n0. */
typedef struct tile {
    int64_t ao, bo, co, m, n, n0;
} tile;

static int64_t row_step(const dt_gemm *g) { return g->ldc ? g->ldc : g->n; }

static void tile_f32(const dt_gemm *g, const tile *t) {
    const float *a = (const float *)g->a + t->ao, *b = (const float *)g->b + t->bo;
    float *c = (float *)g->c + t->co;
    int64_t terms = dt_gemm_count(g->nt, g->terms);
    for (int64_t i = 0; i < terms; i++) DT_ISA_FN(gemm_f32)
    (t->m, t->n, g->k, 1, a + dt_gemm_walk(g->nt, g->terms, g->ats, i), g->ars, g->acs, b + dt_gemm_walk(g->nt, g->terms, g->bts, i), g->brs, g->bcs, i > 0, c,
     row_step(g), i + 1 == terms ? g->n - t->n0 - t->n : 0);
    if (g->bias) add_bias_f32(g, c, row_step(g), t->m, t->n0, t->n);
}

static void tile_f64(const dt_gemm *g, const tile *t) {
    const double *a = (const double *)g->a + t->ao, *b = (const double *)g->b + t->bo;
    double *c = (double *)g->c + t->co;
    int64_t terms = dt_gemm_count(g->nt, g->terms);
    for (int64_t i = 0; i < terms; i++) DT_ISA_FN(gemm_f64)
    (t->m, t->n, g->k, 1, a + dt_gemm_walk(g->nt, g->terms, g->ats, i), g->ars, g->acs, b + dt_gemm_walk(g->nt, g->terms, g->bts, i), g->brs, g->bcs, i > 0, c,
     row_step(g), i + 1 == terms ? g->n - t->n0 - t->n : 0);
    const double *bias = (const double *)g->bias;
    for (int64_t r = 0; bias && r < t->m; r++)
        for (int64_t j = 0; j < t->n; j++) c[r * row_step(g) + j] += bias[(t->n0 + j) * g->bias_stride];
}

static void run_tile(const dt_gemm *g, const tile *t) {
    size_t size = dt_dtype_size(g->dtype);
    const char *a = g->a + (size_t)t->ao * size, *b = g->b + (size_t)t->bo * size;
    char *c = g->c + (size_t)t->co * size;
    if (DT_ISA_FN(gemm_is_thin)(g))
        DT_ISA_FN(gemm_thin)(g, a, b, c, row_step(g), t->m, t->n, t->n0);
    else if (g->dtype == DT_float32)
        tile_f32(g, t);
    else if (g->dtype == DT_float64)
        tile_f64(g, t);
    else
        DT_ISA_FN(gemm_half)(g, a, b, c, row_step(g), t->m, t->n, t->n0);
}

/* ---- the split ---- */
typedef struct split {
    const dt_gemm *g;
    int64_t mt, nt, group; /* a task: `group` batch items, or one tile of mt x nt of one item */
    int64_t m_tiles, n_tiles, n_batch;
} split;

static void task(void *arg, int64_t i) {
    const split *s = arg;
    const dt_gemm *g = s->g;
    int64_t nt = i % s->n_tiles, mt = i / s->n_tiles % s->m_tiles, b0 = i / (s->n_tiles * s->m_tiles) * s->group;
    for (int64_t b = b0; b < b0 + s->group && b < s->n_batch; b++) {
        int64_t m0 = mt * s->mt, n0 = nt * s->nt;
        tile t = {.m = g->m - m0 < s->mt ? g->m - m0 : s->mt, .n = g->n - n0 < s->nt ? g->n - n0 : s->nt, .n0 = n0};
        t.ao = dt_gemm_walk(g->nb, g->batch, g->abs, b) + m0 * g->ars;
        t.bo = dt_gemm_walk(g->nb, g->batch, g->bbs, b) + n0 * g->bcs;
        t.co = (b * g->m + m0) * row_step(g) + n0;
        run_tile(g, &t);
    }
}

void DT_ISA_FN(gemm_tile)(const dt_gemm *g, int64_t m0, int64_t m, int64_t n0, int64_t n) {
    tile t = {m0 * g->ars, n0 * g->bcs, m0 * row_step(g) + n0, m, n, n0};
    run_tile(g, &t);
}

/* Inner batch dimensions become rows where B is the same and A's rows go on evenly. */
static void fold_batch(dt_gemm *g) {
    while (g->nb > 0) {
        int d = g->nb - 1;
        if (g->batch[d] != 1) {
            bool rows = g->bbs[d] == 0 && (g->m == 1 || g->abs[d] == g->ars * g->m);
            if (!rows) return;
            if (g->m == 1) g->ars = g->abs[d];
            g->m *= g->batch[d];
        }
        g->nb--;
    }
}

/* Inner summed dimensions join k where both operands go on evenly. */
static void fold_terms(dt_gemm *g) {
    while (g->nt > 0) {
        int d = g->nt - 1;
        if (g->terms[d] != 1) {
            if (g->k != 1 && (g->ats[d] != g->acs * g->k || g->bts[d] != g->brs * g->k)) return;
            if (g->k == 1) {
                g->acs = g->ats[d];
                g->brs = g->bts[d];
            }
            g->k *= g->terms[d];
        }
        g->nt--;
    }
}

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
static int64_t clamp(int64_t x, int64_t lo, int64_t hi) { return x < lo ? lo : x > hi ? hi : x; }

void DT_ISA_FN(gemm_run)(dt_gemm *g, dt_team *team) {
    fold_batch(g);
    fold_terms(g);
    split s = {.g = g, .mt = g->m, .nt = g->n, .group = 1, .m_tiles = 1, .n_tiles = 1, .n_batch = dt_gemm_count(g->nb, g->batch)};
    if (g->m == 0 || g->n == 0 || s.n_batch == 0) return;
    double k = (double)g->k * (double)dt_gemm_count(g->nt, g->terms) + 1, one = (double)g->m * (double)g->n * k, goal = one * (double)s.n_batch / 32;
    if (g->m < 16) one *= 16 / (double)g->m, goal *= 16 / (double)g->m; /* what is read counts, not what is multiplied */
    if (goal < 4e6) goal = 4e6;                                         /* multiplications a task: tens of microseconds at least */
    if (one > goal) {
        int64_t tall = GEMM_TALL(team), parts = (g->m + tall - 1) / tall; /* a packed panel of B serves many rows */
        s.mt = clamp(round_up((g->m + parts - 1) / parts, 12), 1, g->m);
        s.nt = clamp(round_up((int64_t)(goal / (k * (double)(s.mt < 16 ? 16 : s.mt))), 64), 64, round_up(g->n, 64));
        if (s.nt >= g->n) {
            s.nt = g->n;
            s.mt = clamp(round_up((int64_t)(goal / (k * (double)g->n)), 12), 1, s.mt);
        }
        s.m_tiles = (g->m + s.mt - 1) / s.mt;
        s.n_tiles = (g->n + s.nt - 1) / s.nt;
    } else {
        s.group = (int64_t)(goal / one);
        if (s.group > s.n_batch) s.group = s.n_batch;
    }
    dt_team_run(team, task, &s, s.m_tiles * s.n_tiles * ((s.n_batch + s.group - 1) / s.group));
}
