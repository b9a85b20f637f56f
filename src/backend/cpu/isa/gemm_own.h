/* The template behind gemm.c: T, SUF, GEMM_NAME, BLAS_GEMM and BLAS_GEMV are defined by it. */
#include "backend/cpu/isa/micro.h"

#define CAT2_(a, b) a##b
#define CAT2(a, b) CAT2_(a, b)
#define OF(name) CAT2(name, SUF)

#ifdef __AVX512F__
enum { OF(GEMM_KC) = 384 };
#else
enum { OF(GEMM_KC) = 256 };
#endif

#ifdef GEMM_LANES
#include "backend/cpu/isa/transpose.h"
/* micro_pack; what lies along k is transposed in registers. */
static void OF(pack)(int64_t k, int64_t n, const T *b, int64_t brs, int64_t bcs, T *panel) {
    if (brs != 1 || bcs == 1 || k < LANES) {
        OF(micro_pack)(k, n, b, brs, bcs, panel);
        return;
    }
    if (n < OF(MICRO_NR)) memset(panel, 0, sizeof(T) * (size_t)(k * OF(MICRO_NR)));
    for (int64_t j = 0; j < n; j += LANES) {
        int64_t c = n - j < LANES ? n - j : LANES;
        to_lanes_ld(b + j * bcs, bcs, c, k, (c - 1) * bcs + k, panel + j, OF(MICRO_NR));
    }
}
#else
static void OF(pack)(int64_t k, int64_t n, const T *b, int64_t brs, int64_t bcs, T *panel) { OF(micro_pack)(k, n, b, brs, bcs, panel); }
#endif

/* What a panel will be packed from, fetched into the second cache level a part at a time: `across` runs of `along` elements, `step` apart. */
typedef struct OF(source) {
    const T *p; /* NULL: nothing comes */
    int64_t step, along, across, i, j;
} OF(source);
enum { OF(LINE) = 64 / sizeof(T) };
static inline void OF(fetch)(OF(source) * s, int64_t lines) {
    if (!s->p) return;
    for (; lines > 0 && s->j < s->across; lines--) {
        __builtin_prefetch(s->p + s->j * s->step + s->i, 0, 2);
        if ((s->i += OF(LINE)) < s->along) continue;
        s->i = 0;
        s->j++;
    }
}
/* The same of the next rows of A, all of them. */
static inline void OF(fetch_rows)(int64_t rows, int64_t k, const T *a, int64_t ars, int64_t acs) {
    if (acs == 1)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t p = 0; p < k; p += OF(LINE)) __builtin_prefetch(a + r * ars + p, 0, 2);
    else if (ars == 1)
        for (int64_t p = 0; p < k; p++) __builtin_prefetch(a + p * acs + rows - 1, 0, 2);
}

/* C (m, n) (+)= A (m, k) panel, and while that is multiplied, what comes next is fetched: A's and C's next rows, the next panel's source. Where A's columns
 * lie apart, each is fetched shortly before it is needed: they may all be in one set of the cache. (With narrower vectors A is read too often
 * for that to pay.) `b`, if not NULL, is what the panel is to be
 * packed from, by the first rows that need it. */
static void OF(panel_rows)(int64_t m, int64_t n, int64_t k, const T *a, int64_t ars, int64_t acs, const T *b, int64_t ldb, T *panel, T *c, int64_t ldc,
                           bool add, OF(source) next) {
    bool fetch = k >= 96, columns = MICRO_BYTES == 64 && ars == 1 && acs != 1 && n == OF(MICRO_NR) && k >= 2 * OF(MICRO_STEPS);
    int64_t part = OF(MICRO_NR) * k / OF(LINE) * MICRO_MR / m + 1;
    for (int64_t i = 0; i < m; i += MICRO_MR) {
        int64_t rows = m - i < MICRO_MR ? m - i : MICRO_MR, left = m - i - rows, after = left < MICRO_MR ? left : MICRO_MR;
        if (fetch && after > 0) {
            for (int64_t r = i + rows; r < i + rows + after; r++)
                for (int64_t j = 0; j < n; j += OF(LINE)) __builtin_prefetch(c + r * ldc + j, 1, 3);
            if (columns ? acs * (int64_t)sizeof(T) % 1024 != 0 : ars != 1 || acs * (int64_t)sizeof(T) % 4096 != 0)
                OF(fetch_rows)(after, k, a + (i + rows) * ars, ars, acs);
        }
        if (fetch) OF(fetch)(&next, part);
        const T *ai = a + i * ars;
        if (b && i == 0)
            OF(micro_keep)(k, ai, ars, acs, b, ldb, panel, c, ldc, add);
        else if (columns && rows == MICRO_MR)
            OF(micro_columns)(k, ai, acs, panel, c + i * ldc, ldc, add);
        else
            OF(micro_panel)(rows, n, k, ai, ars, acs, panel, OF(MICRO_NR), c + i * ldc, ldc, add);
    }
}

/* `beyond` columns of B follow these n: another tile's, likely this thread's next one. */
static void OF(own)(int64_t m, int64_t n, int64_t k, T alpha, const T *a, int64_t ars, int64_t acs, const T *b, int64_t brs, int64_t bcs, T *c, int64_t ldc,
                    bool add, int64_t beyond) {
    T panel[OF(GEMM_KC) * OF(MICRO_NR)] __attribute__((aligned(64)));
    int64_t parts = (k + OF(GEMM_KC) - 1) / OF(GEMM_KC), each = k % 256 == 0 && k > OF(GEMM_KC) ? 256 : (k + parts - 1) / parts; /* k alone decides */
    for (int64_t p = 0; p < k; p += each) {
        int64_t kc = k - p < each ? k - p : each;
        for (int64_t j = 0; j < n; j += OF(MICRO_NR)) {
            int64_t nc = n - j < OF(MICRO_NR) ? n - j : OF(MICRO_NR);
            const T *from = b + p * brs + j * bcs;
            bool by_rows = MICRO_BYTES == 64 && bcs == 1 && nc == OF(MICRO_NR) && m >= MICRO_MR && alpha == 1; /* then the first rows pack */
            if (!by_rows) OF(pack)(kc, nc, from, brs, bcs, panel);
            if (alpha != 1)
                for (int64_t i = 0; i < kc * OF(MICRO_NR); i++) panel[i] *= alpha;
            OF(source) next = {NULL, brs == 1 ? bcs : brs, brs == 1 ? kc : OF(MICRO_NR), brs == 1 ? OF(MICRO_NR) : kc, 0, 0};
            if (brs == 1 || bcs == 1) {
                if (j + 2 * OF(MICRO_NR) <= n || (p + kc == k && j + 2 * OF(MICRO_NR) <= n + beyond))
                    next.p = j + OF(MICRO_NR) < n ? from + OF(MICRO_NR) * bcs : b + n * bcs;
                else if (j + OF(MICRO_NR) >= n && p + 2 * kc <= k)
                    next.p = b + (p + kc) * brs;
            }
            OF(panel_rows)(m, nc, kc, a + p * acs, ars, acs, by_rows ? from : NULL, brs, panel, c + j, ldc, add || p > 0, next);
        }
    }
}

static void OF(scale)(int64_t m, int64_t n, T beta, T *c, int64_t ldc) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
}

/* What BLAS calls a matrix: transposed or not, and a leading dimension; false if it is neither. */
static bool OF(blas_form)(int64_t rows, int64_t cols, int64_t rs, int64_t cs, int *trans, int *ld) {
    int64_t l = 0;
    if ((cs == 1 || cols == 1) && (rs >= cols || rows == 1)) {
        *trans = DT_BLAS_N;
        l = rows == 1 ? cols : rs;
    } else if ((rs == 1 || rows == 1) && (cs >= rows || cols == 1)) {
        *trans = DT_BLAS_T;
        l = cols == 1 ? rows : cs;
    }
    *ld = (int)l;
    return l > 0 && l <= INT32_MAX && rows <= INT32_MAX && cols <= INT32_MAX;
}

/* Thin and large products; false if OpenBLAS is absent or has no advantage. */
static bool OF(by_blas)(int64_t m, int64_t n, int64_t k, T alpha, const T *a, int64_t ars, int64_t acs, const T *b, int64_t brs, int64_t bcs, T beta, T *c,
                        int64_t ldc) {
    const dt_blas *blas = dt_blas_get();
    int ta, tb, lda, ldb;
    if (!blas || ldc > INT32_MAX) return false;
    if (m == 1 && acs > 0 && acs <= INT32_MAX && OF(blas_form)(k, n, brs, bcs, &tb, &ldb)) {
        blas->BLAS_GEMV(DT_BLAS_ROW, tb == DT_BLAS_T ? DT_BLAS_N : DT_BLAS_T, (int)(tb == DT_BLAS_T ? n : k), (int)(tb == DT_BLAS_T ? k : n), alpha, b, ldb, a,
                        (int)acs, beta, c, 1);
        return true;
    }
    if (n == 1 && brs > 0 && brs <= INT32_MAX && OF(blas_form)(m, k, ars, acs, &ta, &lda)) {
        blas->BLAS_GEMV(DT_BLAS_ROW, ta, (int)(ta == DT_BLAS_T ? k : m), (int)(ta == DT_BLAS_T ? m : k), alpha, a, lda, b, (int)brs, beta, c, (int)ldc);
        return true;
    }
    if ((double)m * (double)n * (double)k < GEMM_LARGE) return false;
    if (!OF(blas_form)(m, k, ars, acs, &ta, &lda) || !OF(blas_form)(k, n, brs, bcs, &tb, &ldb)) return false;
    blas->BLAS_GEMM(DT_BLAS_ROW, ta, tb, (int)m, (int)n, (int)k, alpha, a, lda, b, ldb, beta, c, (int)ldc);
    return true;
}

void GEMM_NAME(int64_t m, int64_t n, int64_t k, T alpha, const T *a, int64_t ars, int64_t acs, const T *b, int64_t brs, int64_t bcs, T beta, T *c, int64_t ldc,
               int64_t beyond) {
    if (m <= 0 || n <= 0) return;
    if (k <= 0) {
        OF(scale)(m, n, beta, c, ldc);
        return;
    }
#ifdef GEMM_THIN
    bool thin = n > 1 || m == 1 || !dt_blas_get(); /* eight columns at a time: where there is one, gemv reads rows at thrice the speed */
    if (thin && m <= THIN_ROWS && brs == 1 && acs == 1 && alpha == 1 && (beta == 0 || beta == 1)) {
        GEMM_THIN(m, n, k, a, ars, b, bcs, c, ldc, beta != 0);
        return;
    }
#endif
    if (OF(by_blas)(m, n, k, alpha, a, ars, acs, b, brs, bcs, beta, c, ldc)) return;
    if (beta != 0 && beta != 1) OF(scale)(m, n, beta, c, ldc);
    OF(own)(m, n, k, alpha, a, ars, acs, b, brs, bcs, c, ldc, beta != 0, beyond);
}

#undef OF
#undef CAT2
#undef CAT2_
