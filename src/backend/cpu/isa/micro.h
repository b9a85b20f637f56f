/* The innermost loops of matrix products: a block of C, a few rows by a few vectors, kept in registers while k runs.
 *
 * A template: include it with T (float or double) and SUF (_f32 or _f64) defined. B is a panel: k rows of NR columns, ldb apart (packed and
 * zero-padded where the matrix is narrower); A may have any strides, its elements are broadcast. All functions are static. */
#if defined(__AVX512F__)
#define MICRO_BYTES 64
#define MICRO_MR 6
#define MICRO_NV 4
#elif defined(__AVX2__)
#define MICRO_BYTES 32
#define MICRO_MR 6
#define MICRO_NV 2
#else
#define MICRO_BYTES 16
#define MICRO_MR 4
#define MICRO_NV 2
#endif

#define MICRO_CAT_(a, b) a##b
#define MICRO_CAT(a, b) MICRO_CAT_(a, b)
#define FN(name) MICRO_CAT(name, SUF)
#define VEC FN(micro_vec)
#define VECU FN(micro_vecu)

typedef T VEC __attribute__((vector_size(MICRO_BYTES)));
typedef T VECU __attribute__((vector_size(MICRO_BYTES), aligned(sizeof(T)), may_alias));

enum { FN(MICRO_LANES) = MICRO_BYTES / sizeof(T), FN(MICRO_NR) = MICRO_NV * MICRO_BYTES / sizeof(T) };

/* acc += A[R][k] * B[k][V vectors]; A[r][p] is a[r * ars + p * acs]. R and V are constants of the caller, and so is whether the rows of B are copied to
 * `keep`, a panel, and whether columns of A from `ahead` on are fetched, one a step. */
static inline __attribute__((always_inline)) void FN(micro_run)(int R, int V, int64_t k, const T *a, int64_t ars, int64_t acs, const T *b, int64_t ldb,
                                                                VEC acc[MICRO_MR][MICRO_NV], T *keep, const T *ahead) {
    for (int64_t p = 0; p < k; p++) {
        VEC bv[MICRO_NV];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
            bv[v] = *(const VECU *)(b + p * ldb + v * FN(MICRO_LANES));
            if (keep) *(VEC *)(keep + p * FN(MICRO_NR) + v * FN(MICRO_LANES)) = bv[v];
        }
        if (ahead) __builtin_prefetch(ahead + p * acs, 0, 3);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            T x = a[r * ars + p * acs];
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) acc[r][v] += x * bv[v];
        }
    }
}

static inline __attribute__((always_inline)) void FN(micro_load)(int R, int V, VEC acc[MICRO_MR][MICRO_NV], const T *c, int64_t ldc, bool add) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
            acc[r][v] = (VEC){0};
            if (add) acc[r][v] = *(const VECU *)(c + r * ldc + v * FN(MICRO_LANES));
        }
}

static inline __attribute__((always_inline)) void FN(micro_store)(int R, int V, VEC acc[MICRO_MR][MICRO_NV], T *c, int64_t ldc) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) *(VECU *)(c + r * ldc + v * FN(MICRO_LANES)) = acc[r][v];
}

/* C[R][V vectors] (+)= A[R][k] * B[k][V vectors] */
static inline __attribute__((always_inline)) void FN(micro_body)(int R, int V, int64_t k, const T *a, int64_t ars, int64_t acs, const T *b, int64_t ldb, T *c,
                                                                 int64_t ldc, bool add) {
    VEC acc[MICRO_MR][MICRO_NV];
    FN(micro_load)(R, V, acc, c, ldc, add);
    FN(micro_run)(R, V, k, a, ars, acs, b, ldb, acc, NULL, NULL);
    FN(micro_store)(R, V, acc, c, ldc);
}

#define MICRO_ROW(R, V)                                            \
    case (R)*8 + (V):                                              \
        FN(micro_body)(R, V, k, a, ars, acs, b, ldb, c, ldc, add); \
        return;
#if MICRO_NV == 4
#define MICRO_ROWS(R) MICRO_ROW(R, 1) MICRO_ROW(R, 2) MICRO_ROW(R, 3) MICRO_ROW(R, 4)
#else
#define MICRO_ROWS(R) MICRO_ROW(R, 1) MICRO_ROW(R, 2)
#endif

/* rows in [1, MICRO_MR], vectors in [1, MICRO_NV]. */
static __attribute__((noinline, unused)) void FN(micro)(int rows, int vectors, int64_t k, const T *a, int64_t ars, int64_t acs, const T *b, int64_t ldb, T *c,
                                                        int64_t ldc, bool add) {
    switch (rows * 8 + vectors) {
        MICRO_ROWS(1)
        MICRO_ROWS(2)
        MICRO_ROWS(3)
        MICRO_ROWS(4)
#if MICRO_MR == 6
        MICRO_ROWS(5)
        MICRO_ROWS(6)
#endif
    }
}

/* MR rows of C, a panel wide. The first of a panel's packs it: B is read where it lies, its rows ldb apart, and kept. */
static __attribute__((noinline, unused)) void FN(micro_keep)(int64_t k, const T *a, int64_t ars, int64_t acs, const T *b, int64_t ldb, T *keep, T *c,
                                                             int64_t ldc, bool add) {
    VEC acc[MICRO_MR][MICRO_NV];
    FN(micro_load)(MICRO_MR, MICRO_NV, acc, c, ldc, add);
    FN(micro_run)(MICRO_MR, MICRO_NV, k, a, ars, acs, b, ldb, acc, keep, NULL);
    FN(micro_store)(MICRO_MR, MICRO_NV, acc, c, ldc);
}

/* The same of a packed panel, where rows of A lie side by side and its columns far apart: so each step needs a line of its own, which is fetched as many
 * steps before as memory takes; in the last of them the first lines of the rows after these. */
enum { FN(MICRO_STEPS) = 16 };
static __attribute__((noinline, unused)) void FN(micro_columns)(int64_t k, const T *a, int64_t acs, const T *b, T *c, int64_t ldc, bool add) {
    VEC acc[MICRO_MR][MICRO_NV];
    int64_t most = k - FN(MICRO_STEPS);
    FN(micro_load)(MICRO_MR, MICRO_NV, acc, c, ldc, add);
    FN(micro_run)(MICRO_MR, MICRO_NV, most, a, 1, acs, b, FN(MICRO_NR), acc, NULL, a + FN(MICRO_STEPS) * acs);
    FN(micro_run)
    (MICRO_MR, MICRO_NV, FN(MICRO_STEPS), a + most * acs, 1, acs, b + most * FN(MICRO_NR), FN(MICRO_NR), acc, NULL, a + MICRO_MR);
    FN(micro_store)(MICRO_MR, MICRO_NV, acc, c, ldc);
}

/* Pack columns [0, n) of a matrix with k rows and any strides into a panel of NR columns, zero-padded. */
static __attribute__((unused)) void FN(micro_pack)(int64_t k, int64_t n, const T *b, int64_t brs, int64_t bcs, T *panel) {
    if (bcs == 1) {
        for (int64_t p = 0; p < k; p++) {
            T *to = panel + p * FN(MICRO_NR);
            const T *from = b + p * brs;
            if (n == FN(MICRO_NR))
                memcpy(to, from, sizeof(T) * FN(MICRO_NR));
            else
                for (int64_t j = 0; j < FN(MICRO_NR); j++) to[j] = j < n ? from[j] : 0;
        }
        return;
    }
    for (int64_t p0 = 0; p0 < k; p0 += 16) { /* 16 rows at a time stay in the first cache level while they fill */
        int64_t kc = k - p0 < 16 ? k - p0 : 16;
        T *to = panel + p0 * FN(MICRO_NR);
        for (int64_t j = 0; j < n; j++) {
            const T *from = b + p0 * brs + j * bcs;
            if (kc == 16 && brs == 1)
                for (int p = 0; p < 16; p++) to[p * FN(MICRO_NR) + j] = from[p];
            else
                for (int64_t p = 0; p < kc; p++) to[p * FN(MICRO_NR) + j] = from[p * brs];
        }
        for (int64_t j = n; j < FN(MICRO_NR); j++)
            for (int64_t p = 0; p < kc; p++) to[p * FN(MICRO_NR) + j] = 0;
    }
}

/* C[m][n] (+)= A[m][k] B[k][n], n <= NR, rows of B ldb apart and readable (zero or not) up to a whole number of vectors. */
static __attribute__((unused)) void FN(micro_panel)(int64_t m, int64_t n, int64_t k, const T *a, int64_t ars, int64_t acs, const T *b, int64_t ldb, T *c,
                                                    int64_t ldc, bool add) {
    int full = (int)(n / FN(MICRO_LANES)), rest = (int)(n % FN(MICRO_LANES));
    for (int64_t i = 0; i < m; i += MICRO_MR) {
        int rows = m - i < MICRO_MR ? (int)(m - i) : MICRO_MR;
        if (full) FN(micro)(rows, full, k, a + i * ars, ars, acs, b, ldb, c + i * ldc, ldc, add);
        if (!rest) continue;
        T edge[MICRO_MR * FN(MICRO_LANES)] __attribute__((aligned(64)));
        T *ce = c + i * ldc + full * FN(MICRO_LANES);
        FN(micro)(rows, 1, k, a + i * ars, ars, acs, b + full * FN(MICRO_LANES), ldb, edge, FN(MICRO_LANES), false);
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < rest; j++) ce[r * ldc + j] = edge[r * FN(MICRO_LANES) + j] + (add ? ce[r * ldc + j] : 0);
    }
}

/* The same for any n. */
static __attribute__((unused)) void FN(micro_tile)(int64_t m, int64_t n, int64_t k, const T *a, int64_t ars, int64_t acs, const T *b, int64_t ldb, T *c,
                                                   int64_t ldc, bool add) {
    for (int64_t j = 0; j < n; j += FN(MICRO_NR)) FN(micro_panel)(m, n - j < FN(MICRO_NR) ? n - j : FN(MICRO_NR), k, a, ars, acs, b + j, ldb, c + j, ldc, add);
}

#undef MICRO_ROW
#undef MICRO_ROWS
#undef FN
#undef VEC
#undef VECU
