/* Products of a few rows by a matrix whose columns are contiguous (x W' with the usual weights): sums along k, eight columns at a time, each in one
 * vector whose lanes are added at the end by a tree of shuffles.
 *
 * The weights are read once from where they lie; packing them first, as larger products do, would cost more than the product. Each element's sum
 * has the same order whatever the row, the column or the tile, so results do not depend on how the product is split. Static functions. */
#ifndef DT_BACKEND_CPU_THIN_H
#define DT_BACKEND_CPU_THIN_H

#include <string.h>

#include "backend/cpu/isa/shuffle.h"

enum { THIN_ROWS = 8, THIN_LANES = 8, THIN_TILE = 1 << 13 /* floats of eight columns that stay in the first cache level */ };
typedef float thin_vec __attribute__((vector_size(32)));
typedef float thin_vecu __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t thin_index __attribute__((vector_size(32)));

static inline thin_vec thin_part(const float *p, int64_t n) {
    thin_vec v = {0};
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}

/* The sums of eight vectors as one. */
static inline thin_vec thin_sums(const thin_vec *a) {
    const thin_index even = {0, 8, 2, 10, 4, 12, 6, 14}, odd = {1, 9, 3, 11, 5, 13, 7, 15};
    const thin_index even2 = {0, 1, 8, 9, 4, 5, 12, 13}, odd2 = {2, 3, 10, 11, 6, 7, 14, 15};
    const thin_index low = {0, 1, 2, 3, 8, 9, 10, 11}, high = {4, 5, 6, 7, 12, 13, 14, 15};
    thin_vec b[4], c[2];
    for (int i = 0; i < 4; i++) b[i] = DT_SHUFFLE(a[2 * i], a[2 * i + 1], even) + DT_SHUFFLE(a[2 * i], a[2 * i + 1], odd);
    for (int i = 0; i < 2; i++) c[i] = DT_SHUFFLE(b[2 * i], b[2 * i + 1], even2) + DT_SHUFFLE(b[2 * i], b[2 * i + 1], odd2);
    return DT_SHUFFLE(c[0], c[1], low) + DT_SHUFFLE(c[0], c[1], high);
}

/* acc[j] += x . w[j] over k terms; only the last part of a sum may be no multiple of the lanes. */
static inline __attribute__((always_inline)) void thin_dots(int64_t k, const float *x, const float *const *w, thin_vec *acc) {
    thin_vec a[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) a[j] = acc[j];
    int64_t p = 0;
    for (; p + THIN_LANES <= k; p += THIN_LANES) {
        thin_vec xv = *(const thin_vecu *)(x + p);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) a[j] += xv * *(const thin_vecu *)(w[j] + p);
    }
    if (p < k) {
        thin_vec xv = thin_part(x + p, k - p);
        for (int j = 0; j < 8; j++) a[j] += xv * thin_part(w[j] + p, k - p);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) acc[j] = a[j];
}

static inline __attribute__((always_inline)) void thin_body(int64_t m, int64_t n, int64_t k, const float *a, int64_t ars, const float *b, int64_t bcs, float *c,
                                                            int64_t ldc, bool add) {
    for (int64_t j = 0; j < n; j += 8) {
        const float *w[8];
        thin_vec acc[THIN_ROWS][8];
        int cols = n - j < 8 ? (int)(n - j) : 8;
        for (int i = 0; i < 8; i++) w[i] = b + (j + (i < cols ? i : cols - 1)) * bcs;
        for (int64_t r = 0; r < m; r++)
            for (int i = 0; i < 8; i++) acc[r][i] = (thin_vec){0};
        for (int64_t p = 0; p < k; p += THIN_TILE / 8) {
            int64_t kc = m > 1 && k - p > THIN_TILE / 8 ? THIN_TILE / 8 : k - p;
            for (int64_t r = 0; r < m; r++) thin_dots(kc, a + r * ars + p, w, acc[r]);
            if (m == 1) break;
            for (int i = 0; i < 8; i++) w[i] += kc;
        }
        for (int64_t r = 0; r < m; r++) {
            thin_vec s = thin_sums(acc[r]);
            float *to = c + r * ldc + j;
            if (cols == 8)
                *(thin_vecu *)to = add ? s + *(const thin_vecu *)to : s;
            else
                for (int i = 0; i < cols; i++) to[i] = add ? to[i] + s[i] : s[i];
        }
    }
}

/* C (m, n) (+)= A (m, k) B' with rows of A and columns of B contiguous, m <= THIN_ROWS. One row keeps its sums in registers. */
static __attribute__((unused)) void thin_f32(int64_t m, int64_t n, int64_t k, const float *a, int64_t ars, const float *b, int64_t bcs, float *c, int64_t ldc,
                                             bool add) {
    if (m == 1)
        thin_body(1, n, k, a, ars, b, bcs, c, ldc, add);
    else
        thin_body(m, n, k, a, ars, b, bcs, c, ldc, add);
}

#endif
