/* Products of 16-bit floats: blocks of both operands are packed, and C is kept in f32 until it is rounded once.
 *
 * Where the processor multiplies pairs of bf16 and adds to f32 (AVX512_BF16), pairs along k are packed as they are: A as [row][pair] or [pair][row],
 * whichever its strides favour, B as panels [pair][NR]. The sums are f32 as on the other path (only denormal operands count as 0), so it is as exact.
 * Otherwise, and for f16, blocks are converted while they are packed and the f32 micro-kernel multiplies them.
 *
 * Thin products, whose B lies along k, are dot products instead: nothing is packed, B is read once (thin_task). Blocks are on the stack. */
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "backend/cpu/isa/gemm.h"

#define T float
#define SUF _f32
#include "backend/cpu/isa/micro.h"
#undef T
#undef SUF
#include "backend/cpu/isa/transpose.h"

enum { NR = MICRO_NR_f32, BM = 96, BN = 192, BK = 256, THIN_COLS = 64, THIN_K = 1024, THIN_PAIRS = 2048 };

static void load(dt_dtype t, const uint16_t *s, int64_t stride, int64_t n, float *d) { DT_ISA_FN(load_f32)(t, s, stride, n, d); }

/* ---- converted ---- */
/* A, m x k, to floats; the strides of what was packed come back. */
static void pack_a(dt_dtype t, const uint16_t *a, int64_t rs, int64_t cs, int64_t m, int64_t k, float *to, int64_t *ars, int64_t *acs) {
    bool rows = cs == 1 || rs != 1;
    *ars = rows ? BK : 1;
    *acs = rows ? 1 : BM;
    if (rows)
        for (int64_t i = 0; i < m; i++) load(t, a + i * rs, cs, k, to + i * BK);
    else
        for (int64_t p = 0; p < k; p++) load(t, a + p * cs, 1, m, to + p * BM);
}

/* B, k x n (n <= NR), to a panel. */
static void pack_b(dt_dtype t, const uint16_t *b, int64_t rs, int64_t cs, int64_t k, int64_t n, float *to) {
    float lines[LANES * BK] __attribute__((aligned(64)));
    if (n < NR) memset(to, 0, sizeof(float) * (size_t)(k * NR));
    if (cs == 1 || rs != 1) {
        for (int64_t p = 0; p < k; p++) load(t, b + p * rs, cs, n, to + p * NR);
        return;
    }
    for (int64_t j = 0; j < n; j += LANES) {
        int64_t c = n - j < LANES ? n - j : LANES;
        for (int64_t l = 0; l < c; l++) load(t, b + (j + l) * cs, 1, k, lines + l * BK);
        to_lanes_ld(lines, BK, c, k, LANES * BK, to + j, NR);
    }
}

static void multiply_converted(const dt_gemm *g, const uint16_t *a, const uint16_t *b, int64_t m, int64_t n, float *cc) {
    float ca[BM * BK] __attribute__((aligned(64))), panel[BK * NR] __attribute__((aligned(64)));
    for (int64_t p = 0; p < g->k; p += BK) {
        int64_t kc = g->k - p < BK ? g->k - p : BK, ars, acs;
        pack_a(g->dtype, a + p * g->acs, g->ars, g->acs, m, kc, ca, &ars, &acs);
        for (int64_t j = 0; j < n; j += NR) {
            int64_t nc = n - j < NR ? n - j : NR;
            pack_b(g->dtype, b + p * g->brs + j * g->bcs, g->brs, g->bcs, kc, nc, panel);
            micro_panel_f32(m, nc, kc, ca, ars, acs, panel, NR, cc + j, BN, true);
        }
    }
}

/* ---- pairs of bf16 ---- */
#ifdef __AVX512F__
#define PAIRS __attribute__((target("avx512bf16")))
static bool has_pairs(const dt_gemm *g) { return g->dtype == DT_bfloat16 && __builtin_cpu_supports("avx512bf16"); }

static uint32_t pair(const uint16_t *s, int64_t stride) { return s[0] | (uint32_t)s[stride] << 16; }

/* Rows of pairs: to[p * ld + j] = (s[2p][j], s[2p + 1][j]); a missing last one is 0. */
static void interleave(const uint16_t *s, int64_t rs, int64_t cs, int64_t k, int64_t n, uint32_t *to, int64_t ld) {
    for (int64_t p = 0; 2 * p < k; p++, to += ld) {
        const uint16_t *low = s + 2 * p * rs, *high = low + rs;
        if (2 * p + 1 == k)
            for (int64_t j = 0; j < n; j++) to[j] = low[j * cs];
        else if (cs == 1)
            for (int64_t j = 0; j < n; j++) to[j] = low[j] | (uint32_t)high[j] << 16;
        else
            for (int64_t j = 0; j < n; j++) to[j] = low[j * cs] | (uint32_t)high[j * cs] << 16;
    }
}

static void pack_b_pairs(const uint16_t *b, int64_t rs, int64_t cs, int64_t k, int64_t n, uint32_t *to) {
    if (n < NR) memset(to, 0, sizeof(uint32_t) * (size_t)((k + 1) / 2 * NR));
    if (rs != 1 || k < 2) {
        interleave(b, rs, cs, k, n, to, NR);
        return;
    }
    for (int64_t j = 0; j < n; j += 16) { /* a row of B' is a row of pairs: sixteen of them are transposed */
        int64_t c = n - j < 16 ? n - j : 16;
        const uint16_t *from = b + j * cs;
        if (cs % 2 == 0)
            to_lanes_ld((const float *)(const void *)from, cs / 2, c, k / 2, (c - 1) * (cs / 2) + k / 2, (float *)(void *)to + j, NR);
        else
            for (int64_t l = 0; l < c; l++)
                for (int64_t p = 0; p < k / 2; p++) to[p * NR + j + l] = pair(from + l * cs + 2 * p, 1);
        for (int64_t l = 0; k % 2 && l < c; l++) to[k / 2 * NR + j + l] = from[l * cs + k - 1];
    }
}

static void pack_a_pairs(const uint16_t *a, int64_t rs, int64_t cs, int64_t m, int64_t k, uint32_t *to, int64_t *ars, int64_t *acs) {
    bool rows = cs == 1 || rs != 1;
    *ars = rows ? BK : 1;
    *acs = rows ? 1 : BM;
    if (!rows)
        interleave(a, cs, 1, k, m, to, BM);
    else
        for (int64_t i = 0; i < m; i++) {
            const uint16_t *from = a + i * rs;
            if (cs == 1)
                memcpy(to + i * BK, from, (size_t)(k / 2) * 4);
            else
                for (int64_t p = 0; p < k / 2; p++) to[i * BK + p] = pair(from + 2 * p * cs, cs);
            if (k % 2) to[i * BK + k / 2] = from[(k - 1) * cs];
        }
}

static inline __attribute__((always_inline)) PAIRS void pairs_body(int R, int V, int64_t k, const uint32_t *a, int64_t ars, int64_t acs, const uint32_t *b,
                                                                   float *c) {
    __m512 acc[6][4];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) acc[r][v] = _mm512_loadu_ps(c + r * BN + v * 16);
    for (int64_t p = 0; p < k; p++) {
        __m512i bv[4];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) bv[v] = _mm512_loadu_si512(b + p * NR + v * 16);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m512i x = _mm512_set1_epi32((int)a[r * ars + p * acs]);
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], (__m512bh)x, (__m512bh)bv[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) _mm512_storeu_ps(c + r * BN + v * 16, acc[r][v]);
}
#define PAIRS_ROW(R, V)                         \
    case (R)*8 + (V):                           \
        pairs_body(R, V, k, a, ars, acs, b, c); \
        return;
#define PAIRS_ROWS(R) PAIRS_ROW(R, 1) PAIRS_ROW(R, 2) PAIRS_ROW(R, 3) PAIRS_ROW(R, 4)
static __attribute__((noinline)) PAIRS void pairs_micro(int rows, int vectors, int64_t k, const uint32_t *a, int64_t ars, int64_t acs, const uint32_t *b,
                                                        float *c) {
    switch (rows * 8 + vectors) {
        PAIRS_ROWS(1)
        PAIRS_ROWS(2)
        PAIRS_ROWS(3)
        PAIRS_ROWS(4)
        PAIRS_ROWS(5)
        PAIRS_ROWS(6)
    }
}

static void multiply_pairs(const dt_gemm *g, const uint16_t *a, const uint16_t *b, int64_t m, int64_t n, float *cc) {
    uint32_t ca[BM * BK] __attribute__((aligned(64))), panel[BK * NR] __attribute__((aligned(64)));
    for (int64_t p = 0; p < g->k; p += 2 * BK) {
        int64_t kc = g->k - p < 2 * BK ? g->k - p : 2 * BK, ars, acs;
        pack_a_pairs(a + p * g->acs, g->ars, g->acs, m, kc, ca, &ars, &acs);
        for (int64_t j = 0; j < n; j += NR) {
            int64_t nc = n - j < NR ? n - j : NR;
            pack_b_pairs(b + p * g->brs + j * g->bcs, g->brs, g->bcs, kc, nc, panel);
            for (int64_t i = 0; i < m; i += 6)
                pairs_micro(m - i < 6 ? (int)(m - i) : 6, (int)(nc + 15) / 16, (kc + 1) / 2, ca + i * ars, ars, acs, panel, cc + i * BN + j);
        }
    }
}
#else
static bool has_pairs(const dt_gemm *g) { return false; }
static void multiply_pairs(const dt_gemm *g, const uint16_t *a, const uint16_t *b, int64_t m, int64_t n, float *cc) {}
#endif

/* ---- tiles ---- */
static void add_bias(const dt_gemm *g, float *cc, int64_t ld, int64_t m, int64_t n0, int64_t n) {
    float line[BN];
    load(g->dtype, (const uint16_t *)g->bias + n0 * g->bias_stride, g->bias_stride, n, line);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) cc[i * ld + j] += line[j];
}

/* One block of at most BM x BN. */
static void block(const dt_gemm *g, bool pairs, const uint16_t *a, const uint16_t *b, uint16_t *c, int64_t ldc, int64_t m, int64_t n, int64_t n0) {
    float cc[BM * BN] __attribute__((aligned(64)));
    for (int64_t i = 0; i < m; i++) memset(cc + i * BN, 0, sizeof(float) * (size_t)((n + 15) / 16 * 16));
    int64_t terms = dt_gemm_count(g->nt, g->terms);
    for (int64_t i = 0; i < terms; i++) {
        const uint16_t *at = a + dt_gemm_walk(g->nt, g->terms, g->ats, i), *bt = b + dt_gemm_walk(g->nt, g->terms, g->bts, i);
        if (pairs)
            multiply_pairs(g, at, bt, m, n, cc);
        else
            multiply_converted(g, at, bt, m, n, cc);
    }
    if (g->bias) add_bias(g, cc, BN, m, n0, n);
    for (int64_t i = 0; i < m; i++) DT_ISA_FN(store_f32)(g->dtype, cc + i * BN, n, c + i * ldc);
}

void DT_ISA_FN(gemm_half)(const dt_gemm *g, const void *a, const void *b, void *c, int64_t ldc, int64_t m, int64_t n, int64_t n0) {
    bool pairs = has_pairs(g);
    for (int64_t i = 0; i < m; i += BM)
        for (int64_t j = 0; j < n; j += BN)
            block(g, pairs, (const uint16_t *)a + i * g->ars, (const uint16_t *)b + j * g->bcs, (uint16_t *)c + i * ldc + j, ldc, m - i < BM ? m - i : BM,
                  n - j < BN ? n - j : BN, n0 + j);
}

/* ---- thin: dot products of few rows of A with rows of B' ---- */
/* lane i of the result: the sum of v[i]'s lanes, in a fixed order. */
static inline __attribute__((always_inline)) void sums_of(lanes *v, float *to) {
    for (int g = 0; g < 16; g += LANES) {
        transpose_block(v + g);
        for (int d = LANES / 2; d; d /= 2)
            for (int i = 0; i < d; i++) v[g + i] += v[g + i + d];
        *(lanes_any *)(to + g) = v[g];
    }
}

/* s[4 * i + j] = x_i . w_j over k floats; four of each (the last again where there are fewer). */
static __attribute__((noinline)) void dots(const float *const x[4], const float *const w[4], int64_t k, float *s) {
    lanes acc[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) acc[i] = (lanes){0};
    int64_t p = 0;
    for (; p + LANES <= k; p += LANES) {
        lanes v[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) v[j] = *(const lanes_any *)(w[j] + p);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            lanes u = *(const lanes_any *)(x[i] + p);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) acc[4 * i + j] += u * v[j];
        }
    }
    if (p < k) {
        lanes v[4] = {{0}}, u[4] = {{0}};
        for (int j = 0; j < 4; j++) {
            memcpy(&v[j], w[j] + p, (size_t)(k - p) * 4);
            memcpy(&u[j], x[j] + p, (size_t)(k - p) * 4);
        }
        for (int i = 0; i < 16; i++) acc[i] += u[i / 4] * v[i % 4];
    }
    sums_of(acc, s);
}

#ifdef __AVX512F__
static __attribute__((noinline)) PAIRS void dots_pairs(const uint16_t *const x[4], const uint16_t *const w[4], int64_t k, float *s) {
    __m512 acc[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) acc[i] = _mm512_setzero_ps();
    int64_t p = 0;
    for (; p + 32 <= k; p += 32) {
        __m512i v[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) v[j] = _mm512_loadu_si512(w[j] + p);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512i u = _mm512_loadu_si512(x[i] + p);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) acc[4 * i + j] = _mm512_dpbf16_ps(acc[4 * i + j], (__m512bh)u, (__m512bh)v[j]);
        }
    }
    if (p < k) {
        __mmask32 some = (__mmask32)((1u << (k - p)) - 1);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512i u = _mm512_maskz_loadu_epi16(some, x[i] + p);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) acc[4 * i + j] = _mm512_dpbf16_ps(acc[4 * i + j], (__m512bh)u, (__m512bh)_mm512_maskz_loadu_epi16(some, w[j] + p));
        }
    }
    lanes v[16];
    for (int i = 0; i < 16; i++) v[i] = (lanes)acc[i];
    sums_of(v, s);
}
#else
static void dots_pairs(const uint16_t *const x[4], const uint16_t *const w[4], int64_t k, float *s) {}
#endif

/* Four rows, each k elements from p on, as floats: where they lie, or converted (or gathered) into `to`. */
static void rows_of(dt_dtype t, const void *src, int64_t rs, int64_t cs, int64_t rows, int64_t p, int64_t k, float *to, const float *out[4]) {
    size_t size = dt_dtype_size(t);
    for (int64_t i = 0; i < 4; i++) {
        const char *from = (const char *)src + (size_t)((i < rows ? i : rows - 1) * rs + p * cs) * size;
        out[i] = t == DT_float32 && cs == 1 ? (const float *)(const void *)from : to + i * THIN_K;
        if (out[i] != (const float *)(const void *)from) DT_ISA_FN(load_f32)(t, from, cs, k, to + i * THIN_K);
    }
}

/* Rows of A by at most THIN_COLS rows of B' to cc[m][THIN_COLS]. */
static void thin_block(const dt_gemm *g, const char *a, const char *b, int64_t m, int64_t n, float *cc) {
    float x[DT_GEMM_THIN * THIN_K] __attribute__((aligned(64))), w[4 * THIN_K] __attribute__((aligned(64))), s[16];
    size_t size = dt_dtype_size(g->dtype);
    bool pairs = has_pairs(g) && g->acs == 1;
    int64_t step = pairs ? THIN_PAIRS : THIN_K; /* pairs are not copied */
    for (int64_t p = 0; p < g->k; p += step) {
        int64_t k = g->k - p < step ? g->k - p : step;
        const float *xr[DT_GEMM_THIN], *wr[4];
        for (int64_t i = 0; i < m && !pairs; i += 4) rows_of(g->dtype, a + (size_t)(i * g->ars) * size, g->ars, g->acs, m - i, p, k, x + i * THIN_K, xr + i);
        for (int64_t j = 0; j < n; j += 4) {
            const uint16_t *xp[4], *wp[4];
            const char *bj = b + (size_t)(j * g->bcs) * size;
            if (!pairs) rows_of(g->dtype, bj, g->bcs, 1, n - j, p, k, w, wr);
            for (int64_t i = 0; i < m; i += 4) {
                if (pairs) {
                    for (int64_t r = 0; r < 4; r++) {
                        xp[r] = (const uint16_t *)(const void *)a + (i + r < m ? i + r : m - 1) * g->ars + p;
                        wp[r] = (const uint16_t *)(const void *)bj + (j + r < n ? r : n - 1 - j) * g->bcs + p;
                    }
                    dots_pairs(xp, wp, k, s);
                } else
                    dots(xr + i, wr, k, s);
                for (int64_t r = 0; r < 4 && i + r < m; r++)
                    for (int64_t q = 0; q < 4 && j + q < n; q++) {
                        float *to = &cc[(i + r) * THIN_COLS + j + q];
                        *to = p ? *to + s[4 * r + q] : s[4 * r + q];
                    }
            }
        }
    }
}

bool DT_ISA_FN(gemm_is_thin)(const dt_gemm *g) {
    bool half = g->dtype == DT_bfloat16 || g->dtype == DT_float16;
#ifdef __AVX2__
    int64_t least = half ? 1 : 9; /* fewer rows of f32 are thin.h's */
#else
    int64_t least = half ? 1 : 2;
#endif
    return g->m <= DT_GEMM_THIN && g->m >= least && g->brs == 1 && g->bcs >= g->k && g->k >= 64 && g->n >= 4 && dt_gemm_count(g->nt, g->terms) == 1 &&
           (half || g->dtype == DT_float32);
}

void DT_ISA_FN(gemm_thin)(const dt_gemm *g, const void *a, const void *b, void *c, int64_t ldc, int64_t m, int64_t n, int64_t n0) {
    float cc[DT_GEMM_THIN * THIN_COLS], line[THIN_COLS];
    size_t size = dt_dtype_size(g->dtype);
    for (int64_t j = 0; j < n; j += THIN_COLS) {
        int64_t nc = n - j < THIN_COLS ? n - j : THIN_COLS;
        thin_block(g, a, (const char *)b + (size_t)(j * g->bcs) * size, m, nc, cc);
        if (g->bias) DT_ISA_FN(load_f32)(g->dtype, g->bias + (size_t)((n0 + j) * g->bias_stride) * size, g->bias_stride, nc, line);
        for (int64_t i = 0; i < m; i++) {
            float *row = cc + i * THIN_COLS;
            for (int64_t q = 0; g->bias && q < nc; q++) row[q] += line[q];
            DT_ISA_FN(store_f32)(g->dtype, row, nc, (char *)c + (size_t)(i * ldc + j) * size);
        }
    }
}
