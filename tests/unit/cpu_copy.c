/* Copies between strided views against an element-by-element loop. */
#include "test.h"

#include <time.h>

#include "backend/cpu/copy.h"
#include "plan/backend.h"

static uint32_t seed = 1;
static uint32_t rnd(uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static dt_view view_of(void *data, dt_dtype t, int ndim, const int64_t *shape) {
    dt_view v = {.data = data, .dtype = t, .ndim = ndim};
    for (int i = 0; i < ndim; i++) v.shape[i] = shape[i];
    dt_view_set_contiguous(&v);
    return v;
}
static dt_view permuted(const dt_view *v, const int *perm) {
    dt_view r = *v;
    for (int i = 0; i < v->ndim; i++) {
        r.shape[i] = v->shape[perm[i]];
        r.stride[i] = v->stride[perm[i]];
    }
    return r;
}
static int64_t offset_of(const dt_view *v, int64_t i) {
    int64_t o = 0;
    for (int d = v->ndim - 1; d >= 0; d--) {
        o += i % v->shape[d] * v->stride[d];
        i /= v->shape[d];
    }
    return o;
}

static void check_copy(const dt_view *dst, const dt_view *src, size_t elem, const char *what) {
    for (int64_t i = 0; i < dt_view_numel(dst); i++)
        if (memcmp((char *)dst->data + (size_t)offset_of(dst, i) * elem, (char *)src->data + (size_t)offset_of(src, i) * elem, elem)) {
            TEST_FAIL("%s: element %lld differs", what, (long long)i);
            return;
        }
}

TEST(random_permutations_of_random_shapes) {
    static const dt_dtype types[] = {DT_uint8, DT_bfloat16, DT_float32, DT_float64};
    static char a[1 << 20], b[1 << 20];
    for (size_t i = 0; i < sizeof a; i++) a[i] = (char)rnd(256);
    for (int round = 0; round < 600; round++) {
        int n = (int)rnd(5), perm[5], inv[5];
        int64_t shape[5], total = 1;
        for (int i = 0; i < n; i++) {
            shape[i] = rnd(8) ? 1 + (int64_t)rnd(n < 3 ? 90 : 12) : 1;
            total *= shape[i];
        }
        if (total > (1 << 16)) continue;
        for (int i = 0; i < n; i++) perm[i] = inv[i] = i;
        for (int i = n - 1; i > 0; i--) {
            int j = (int)rnd((uint32_t)i + 1), t = perm[i];
            perm[i] = perm[j];
            perm[j] = t;
        }
        dt_dtype t = types[rnd(4)];
        dt_view src = view_of(a, t, n, shape);
        if (n && rnd(4) == 0) src.stride[rnd((uint32_t)n)] = 0;
        dt_view ps = permuted(&src, perm), dst = view_of(b, t, n, ps.shape);
        if (rnd(3) == 0) { /* a strided destination too */
            (void)inv;
            dt_view base = view_of(b, t, n, shape);
            dst = permuted(&base, perm);
        }
        memset(b, 0, sizeof b);
        dt_cpu_copy_view(&dst, &ps, NULL);
        check_copy(&dst, &ps, dt_dtype_size(t), "random");
    }
}

TEST(nothing_is_written_for_an_empty_view) {
    char b = 7, a = 1;
    dt_view d = view_of(&b, DT_uint8, 2, (int64_t[]){0, 3}), s = view_of(&a, DT_uint8, 2, (int64_t[]){0, 3});
    dt_cpu_copy_view(&d, &s, NULL);
    CHECK_INT(b, 7);
}

TEST(casts_truncate_and_test_for_zero) {
    float f[4] = {1.9f, -2.7f, 0.f, 0.25f};
    int64_t i[4];
    uint8_t b[4];
    dt_view s = view_of(f, DT_float32, 1, (int64_t[]){4}), d = view_of(i, DT_int64, 1, (int64_t[]){4}), e = view_of(b, DT_bool, 1, (int64_t[]){4});
    dt_cpu_cast_view(&d, &s, NULL);
    dt_cpu_cast_view(&e, &s, NULL);
    CHECK_INT(i[0], 1);
    CHECK_INT(i[1], -2);
    CHECK_INT(b[2], 0);
    CHECK_INT(b[3], 1);
}

TEST(transposes_run_in_tiles) {
    int64_t n = 4096, m = 1024;
    float *a = aligned_alloc(64, (size_t)(n * m) * 4), *b = aligned_alloc(64, (size_t)(n * m) * 4);
    REQUIRE(a && b);
    for (int64_t i = 0; i < n * m; i++) a[i] = (float)i;
    memset(b, 0, (size_t)(n * m) * 4);
    dt_view src = view_of(a, DT_float32, 2, (int64_t[]){n, m}), t = permuted(&src, (int[]){1, 0}), dst = view_of(b, DT_float32, 2, t.shape);
    double best = 1e9;
    for (int r = 0; r < 12; r++) {
        struct timespec t0, t1;
        clock_gettime(CLOCK_MONOTONIC, &t0);
        dt_cpu_copy_view(&dst, &t, NULL);
        clock_gettime(CLOCK_MONOTONIC, &t1);
        double ms = (double)(t1.tv_sec - t0.tv_sec) * 1e3 + (double)(t1.tv_nsec - t0.tv_nsec) * 1e-6;
        if (ms < best) best = ms;
    }
    printf("     4096x1024 f32 transposed: %.2f ms\n", best);
    check_copy(&dst, &t, 4, "transpose");
    dt_team *team = NULL;
    REQUIRE_OK(dt_team_new(3, "t", &team));
    memset(b, 0, (size_t)(n * m) * 4);
    dt_cpu_copy_view(&dst, &t, team);
    check_copy(&dst, &t, 4, "transpose with a team");
    dt_team_free(team);
    free(a);
    free(b);
}

/* Sums over sources whose dimensions lie in any order, dense and with gaps: rows are joined where all views allow it, and every element is met once. */
TEST(reductions_of_any_layout) {
    enum { SOURCES = 3, ROOM = 4096 };
    static float from[SOURCES][ROOM], to[ROOM];
    for (int k = 0; k < SOURCES; k++)
        for (int i = 0; i < ROOM; i++) from[k][i] = (float)rnd(1000);
    for (int round = 0; round < 200; round++) {
        int ndim = (int)rnd(5), perm[4] = {0, 1, 2, 3};
        int64_t shape[4], padded[4];
        for (int d = 0; d < ndim; d++) {
            shape[d] = 1 + rnd(5);
            padded[d] = shape[d] + (rnd(3) ? 0 : rnd(3));
        }
        dt_view v[SOURCES + 1];
        for (int k = 0; k <= SOURCES; k++) {
            for (int d = ndim - 1; d > 0 && rnd(2); d--) {
                int q = (int)rnd((uint32_t)d + 1), x = perm[d];
                perm[d] = perm[q];
                perm[q] = x;
            }
            int64_t room[4], back[4];
            for (int d = 0; d < ndim; d++) room[d] = padded[perm[d]];
            dt_view dense = view_of(k < SOURCES ? from[k] : to, DT_float32, ndim, room);
            for (int d = 0; d < ndim; d++) back[perm[d]] = dense.stride[d];
            v[k] = dense;
            for (int d = 0; d < ndim; d++) {
                v[k].shape[d] = shape[d];
                v[k].stride[d] = back[d];
            }
        }
        for (int i = 0; i < ROOM; i++) to[i] = -1;
        dt_backend_cpu.reduce(&v[SOURCES], v, NULL, SOURCES, DT_SUM);
        int64_t n = dt_view_numel(&v[SOURCES]), written = 0;
        for (int64_t i = 0; i < n; i++) {
            float sum = 0;
            for (int k = 0; k < SOURCES; k++) sum += from[k][offset_of(&v[k], i)];
            if (to[offset_of(&v[SOURCES], i)] != sum) TEST_FAIL("round %d: element %lld differs", round, (long long)i);
        }
        for (int i = 0; i < ROOM; i++) written += to[i] >= 0;
        REQUIRE(written == n);
    }
}
