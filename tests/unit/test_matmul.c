/* Matrix products against sums in double: every dtype, strides, batches, both teams, each instruction set. */
#include "kernel.h"
#include "ops/matmul.h"

DT_CPU_KERNEL(matmul);
DT_CPU_KERNEL(gemm);
DT_CPU_KERNEL(linear);
DT_CPU_KERNEL(outer_sum);
DT_CPU_KERNEL(dot);

static double tolerance(dt_dtype t, int64_t k) {
    double eps = t == DT_float64 ? 1e-15 : t == DT_float32 ? 3e-7 : t == DT_float16 ? 1e-3 : t == DT_bfloat16 ? 8e-3 : 0;
    return eps * (4 + sqrt((double)k)) * 2;
}

static void check_gemm(dt_dtype t, int64_t b, int64_t m, int64_t k, int64_t n, bool ta, bool tb, int perm_a, dt_team *team) {
    static const int perms[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 2, 0}, {2, 1, 0}};
    int64_t as[3] = {b, ta ? k : m, ta ? m : k}, bs[3] = {1, tb ? n : k, tb ? k : n}, os[3] = {b, m, n};
    dt_view in[2] = {kt_view(t, 3, as, perms[perm_a]), kt_view(t, 3, bs, perms[(perm_a + 1) % 4])}, out = kt_view(t, 3, os, NULL);
    dt_gemm_attr attr = {ta, tb};
    CHECK_OK(kt_run(dt_cpu_gemm, &dt_op_gemm, &attr, 2, in, 1, &out, team));
    for (int64_t z = 0; z < b; z++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t p = 0; p < k; p++)
                    sum += kt_get(&in[0], (int64_t[]){z, ta ? p : i, ta ? i : p}) * kt_get(&in[1], (int64_t[]){0, tb ? j : p, tb ? p : j});
                double got = kt_get(&out, (int64_t[]){z, i, j});
                if (t == DT_uint8 || t == DT_int8) {
                    CHECK_INT((int64_t)got & 255, (int64_t)sum & 255);
                    continue;
                }
                if (!(fabs(got - sum) <= tolerance(t, k) * (1 + fabs(sum)))) {
                    TEST_FAIL("%s b%d m%d k%d n%d ta%d tb%d perm%d at %d,%d,%d: %g, expected %g", dt_dtype_name(t), (int)b, (int)m, (int)k, (int)n, ta, tb,
                              perm_a, (int)z, (int)i, (int)j, got, sum);
                    return;
                }
            }
    free(in[0].data);
    free(in[1].data);
    free(out.data);
}

static void check_all(void) {
    static const int64_t sizes[][4] = {{1, 1, 1, 1},      {2, 3, 4, 5},    {1, 1, 70, 33}, {1, 33, 70, 1}, {3, 7, 300, 65},
                                       {2, 100, 17, 200}, {1, 64, 64, 64}, {0, 3, 4, 5},   {2, 3, 0, 5},   {1, 250, 40, 700}};
    static const dt_dtype types[] = {DT_float32, DT_float64, DT_bfloat16, DT_float16, DT_int64, DT_int8, DT_uint8, DT_int32, DT_int16};
    dt_team *team = NULL;
    REQUIRE_OK(dt_team_new(3, "test", &team));
    for (int s = 0; s < 10; s++)
        for (int t = 0; t < 9; t++)
            for (int v = 0; v < 16; v++) {
                if (s >= 4 && v % (t < 2 ? 3 : 7)) continue; /* the slow ones: fewer layouts */
                check_gemm(types[t], sizes[s][0], sizes[s][1], sizes[s][2], sizes[s][3], v & 1, v >> 1 & 1, v >> 2, v & 1 ? team : NULL);
            }
    dt_team_free(team);
}

TEST(gemm_best) { check_all(); }
TEST(gemm_avx2) {
    setenv("DTORCH_CPU_ISA", "avx2", 1);
    check_all();
}
TEST(gemm_base) {
    setenv("DTORCH_CPU_ISA", "base", 1);
    check_all();
}
TEST(gemm_without_openblas) {
    setenv("DTORCH_OPENBLAS", "none", 1);
    check_all();
}

TEST(matmul_ranks) {
    int64_t v3[1] = {3}, m43[2] = {4, 3}, b243[3] = {2, 4, 3}, b235[3] = {2, 3, 5}, o24[2] = {2, 4}, o4[1] = {4}, o25[2] = {2, 5};
    dt_view v = kt_view(DT_float64, 1, v3, NULL), m = kt_view(DT_float64, 2, m43, NULL), a = kt_view(DT_float64, 3, b243, NULL),
            b = kt_view(DT_float64, 3, b235, NULL), o = kt_view(DT_float64, 2, o24, NULL), p = kt_view(DT_float64, 1, o4, NULL),
            q = kt_view(DT_float64, 2, o25, NULL), s = kt_view(DT_float64, 0, NULL, NULL);
    CHECK_OK(kt_run(dt_cpu_matmul, &dt_op_matmul, NULL, 2, (dt_view[]){a, v}, 1, &o, NULL));
    for (int z = 0; z < 2; z++)
        for (int i = 0; i < 4; i++) {
            double sum = 0;
            for (int j = 0; j < 3; j++) sum += kt_get(&a, (int64_t[]){z, i, j}) * kt_at(&v, j);
            CHECK_NEAR(kt_at(&o, z * 4 + i), sum, 1e-14);
        }
    CHECK_OK(kt_run(dt_cpu_matmul, &dt_op_matmul, NULL, 2, (dt_view[]){m, v}, 1, &p, NULL));
    CHECK_NEAR(kt_at(&p, 3), kt_at(&m, 9) * kt_at(&v, 0) + kt_at(&m, 10) * kt_at(&v, 1) + kt_at(&m, 11) * kt_at(&v, 2), 1e-14);
    CHECK_OK(kt_run(dt_cpu_matmul, &dt_op_matmul, NULL, 2, (dt_view[]){v, b}, 1, &q, NULL));
    CHECK_NEAR(kt_at(&q, 7), kt_at(&v, 0) * kt_at(&b, 17) + kt_at(&v, 1) * kt_at(&b, 22) + kt_at(&v, 2) * kt_at(&b, 27), 1e-14);
    CHECK_OK(kt_run(dt_cpu_matmul, &dt_op_matmul, NULL, 2, (dt_view[]){v, v}, 1, &s, NULL));
    double norm = 0;
    for (int i = 0; i < 3; i++) norm += kt_at(&v, i) * kt_at(&v, i);
    CHECK_NEAR(kt_at(&s, 0), norm, 1e-14);
    CHECK_OK(kt_run(dt_cpu_dot, &dt_op_dot, NULL, 2, (dt_view[]){v, v}, 1, &s, NULL));
    CHECK_NEAR(kt_at(&s, 0), norm, 1e-14);
}

static void check_linear(dt_dtype t, const int *perm, bool bias) {
    int64_t xs[3] = {3, 5, 37}, ws[2] = {70, 37}, bs[1] = {70}, os[3] = {3, 5, 70};
    dt_view in[3] = {kt_view(t, 3, xs, perm), kt_view(t, 2, ws, NULL), kt_view(t, 1, bs, NULL)}, out = kt_view(t, 3, os, NULL);
    if (!bias) in[2] = (dt_view){.dtype = DT_DTYPE_NONE};
    CHECK_OK(kt_run(dt_cpu_linear, &dt_op_linear, NULL, 3, in, 1, &out, NULL));
    for (int64_t r = 0; r < 15; r++)
        for (int64_t j = 0; j < 70; j++) {
            double sum = bias ? kt_at(&in[2], j) : 0;
            for (int64_t p = 0; p < 37; p++) sum += kt_get(&in[0], (int64_t[]){r / 5, r % 5, p}) * kt_at(&in[1], j * 37 + p);
            CHECK_NEAR(kt_at(&out, r * 70 + j), sum, tolerance(t, 37) * (1 + fabs(sum)));
        }
    int64_t gs[2] = {70, 37}; /* gradient of the weight: outer_sum(y, x) */
    dt_view gw = kt_view(t, 2, gs, NULL);
    CHECK_OK(kt_run(dt_cpu_outer_sum, &dt_op_outer_sum, NULL, 2, (dt_view[]){out, in[0]}, 1, &gw, NULL));
    for (int64_t j = 0; j < 70; j++)
        for (int64_t p = 0; p < 37; p++) {
            double sum = 0;
            for (int64_t r = 0; r < 15; r++) sum += kt_at(&out, r * 70 + j) * kt_get(&in[0], (int64_t[]){r / 5, r % 5, p});
            CHECK_NEAR(kt_at(&gw, j * 37 + p), sum, tolerance(t, 15) * (4 + fabs(sum)));
        }
}

TEST(linear_and_its_weight_gradient) {
    static const dt_dtype types[] = {DT_float32, DT_float64, DT_bfloat16, DT_float16};
    for (int t = 0; t < 4; t++) {
        check_linear(types[t], NULL, true);
        check_linear(types[t], (const int[]){1, 0, 2}, false);
        check_linear(types[t], (const int[]){2, 1, 0}, true);
    }
}

TEST(team_size_changes_no_bit) {
    int64_t as[2] = {700, 300}, bs[2] = {300, 500}, os[2] = {700, 500};
    dt_view in[2] = {kt_view(DT_float32, 2, as, NULL), kt_view(DT_float32, 2, bs, NULL)}, one = kt_view(DT_float32, 2, os, NULL),
            three = kt_view(DT_float32, 2, os, NULL);
    dt_team *team = NULL;
    REQUIRE_OK(dt_team_new(3, "test", &team));
    CHECK_OK(kt_run(dt_cpu_matmul, &dt_op_matmul, NULL, 2, in, 1, &one, NULL));
    CHECK_OK(kt_run(dt_cpu_matmul, &dt_op_matmul, NULL, 2, in, 1, &three, team));
    CHECK_INT(memcmp(one.data, three.data, 700 * 500 * 4), 0);
    dt_team_free(team);
}
