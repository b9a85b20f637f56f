/* Attention, forward and backward, against the whole matrices in double: masks, groups of heads, strides, uneven tiles, rows that see nothing. */
#include "kernel.h"
#include "ops/attention.h"

DT_CPU_KERNEL(attention);
DT_CPU_KERNEL(attention_backward);

typedef struct shape {
    int64_t B, H, Hk, L, S, D, E;
    bool causal;
    int mask; /* 0 none, 1 bool, 2 float */
} shape;

static double q_at(const dt_view *v, int64_t b, int64_t h, int64_t i, int64_t j) { return kt_get(v, (int64_t[]){b, h, i, j}); }

/* One head in double: y (L, E), and gradients for gy, added to gk, gv. */
static void reference(const shape *z, const dt_view *in, int64_t b, int64_t h, double *y, double *gq, double *gk, double *gv) {
    int64_t hk = h / (z->H / z->Hk);
    double *p = malloc(sizeof(double) * (size_t)(z->S + 1)), *dp = malloc(sizeof(double) * (size_t)(z->S + 1)), scale = 1 / sqrt((double)z->D);
    for (int64_t i = 0; i < z->L; i++) {
        double max = -INFINITY, sum = 0;
        for (int64_t j = 0; j < z->S; j++) {
            p[j] = 0;
            for (int64_t d = 0; d < z->D; d++) p[j] += q_at(&in[1], b, h, i, d) * q_at(&in[2], b, hk, j, d);
            p[j] *= scale;
            if (z->causal && j > i) p[j] = -INFINITY;
            if (z->mask == 1 && !kt_get(&in[4], (int64_t[]){b, 0, i, j})) p[j] = -INFINITY;
            if (z->mask == 2) p[j] += kt_get(&in[4], (int64_t[]){b, 0, i, j});
            if (p[j] > max) max = p[j];
        }
        for (int64_t j = 0; j < z->S; j++) sum += p[j] = max == -INFINITY ? 0 : exp(p[j] - max);
        double delta = 0;
        for (int64_t j = 0; j < z->S; j++) {
            if (sum > 0) p[j] /= sum;
            dp[j] = 0;
            for (int64_t e = 0; e < z->E; e++) dp[j] += q_at(&in[0], b, h, i, e) * q_at(&in[3], b, hk, j, e);
            delta += p[j] * dp[j];
        }
        for (int64_t e = 0; e < z->E; e++) {
            y[i * z->E + e] = 0;
            for (int64_t j = 0; j < z->S; j++) y[i * z->E + e] += p[j] * q_at(&in[3], b, hk, j, e);
        }
        for (int64_t d = 0; d < z->D; d++) gq[i * z->D + d] = 0;
        for (int64_t j = 0; j < z->S; j++) {
            double ds = p[j] * (dp[j] - delta) * scale;
            for (int64_t d = 0; d < z->D; d++) {
                gq[i * z->D + d] += ds * q_at(&in[2], b, hk, j, d);
                gk[j * z->D + d] += ds * q_at(&in[1], b, h, i, d);
            }
            for (int64_t e = 0; e < z->E; e++) gv[j * z->E + e] += p[j] * q_at(&in[0], b, h, i, e);
        }
    }
    free(p);
    free(dp);
}

static void near(const char *what, const dt_view *got, int64_t at, const double *want, int64_t n, double tol) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(kt_at(got, at + i) - want[i]) <= tol * (1 + fabs(want[i])))) {
            TEST_FAIL("%s (%s) element %d: %g, expected %g", what, dt_dtype_name(got->dtype), (int)i, kt_at(got, at + i), want[i]);
            return;
        }
}

static void check(const shape *z, dt_dtype t, const int *perm, dt_team *team) {
    int64_t qs[4] = {z->B, z->H, z->L, z->D}, ks[4] = {z->B, z->Hk, z->S, z->D}, vs[4] = {z->B, z->Hk, z->S, z->E}, os[4] = {z->B, z->H, z->L, z->E};
    int64_t ms[4] = {z->B, 1, z->L, z->S};
    dt_view in[7] = {kt_view(t, 4, os, perm), kt_view(t, 4, qs, perm), kt_view(t, 4, ks, perm), kt_view(t, 4, vs, perm), {.dtype = DT_DTYPE_NONE}};
    dt_view out[2] = {kt_view(t, 4, os, NULL), kt_view(t == DT_float64 ? t : DT_float32, 3, os, NULL)};
    dt_view g[3] = {kt_view(t, 4, qs, NULL), kt_view(t, 4, ks, NULL), kt_view(t, 4, vs, NULL)};
    if (z->mask) in[4] = kt_view(z->mask == 1 ? DT_bool : t, 4, ms, NULL);
    for (int64_t i = 0; z->mask == 1 && i < z->B * z->L * z->S; i++) /* row 0 of each batch item sees nothing */
        ((uint8_t *)in[4].data)[i] = i % (z->L * z->S) >= z->S && kt_below(3) > 0;
    dt_attention_attr attr = {z->causal, NAN};
    CHECK_OK(kt_run(dt_cpu_attention, &dt_op_attention, &attr, 4, in + 1, 2, out, team));
    in[5] = out[0];
    in[6] = out[1];
    CHECK_OK(kt_run(dt_cpu_attention_backward, &dt_op_attention_backward, &attr, 7, in, 3, g, team));
    double tol = t == DT_float64 ? 1e-11 : t == DT_float32 ? 2e-5 : t == DT_float16 ? 1e-2 : 6e-2;
    double *y = calloc((size_t)(z->L * z->E + z->L * z->D + 1), 8), *gq = y + z->L * z->E;
    for (int64_t b = 0; b < z->B; b++)
        for (int64_t hk = 0; hk < z->Hk; hk++) {
            double *gk = calloc((size_t)(z->S * (z->D + z->E) + 1), 8), *gv = gk + z->S * z->D;
            for (int64_t h = hk * z->H / z->Hk; h < (hk + 1) * z->H / z->Hk; h++) {
                reference(z, in, b, h, y, gq, gk, gv);
                near("y", &out[0], (b * z->H + h) * z->L * z->E, y, z->L * z->E, tol);
                near("gq", &g[0], (b * z->H + h) * z->L * z->D, gq, z->L * z->D, tol);
            }
            near("gk", &g[1], (b * z->Hk + hk) * z->S * z->D, gk, z->S * z->D, tol * 2);
            near("gv", &g[2], (b * z->Hk + hk) * z->S * z->E, gv, z->S * z->E, tol * 2);
            free(gk);
        }
    free(y);
}

static const shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, false, 0},      {2, 2, 2, 5, 7, 3, 4, false, 0},     {1, 2, 2, 70, 70, 16, 16, true, 0},  {1, 1, 1, 130, 65, 20, 33, true, 0},
    {1, 1, 1, 65, 200, 8, 40, true, 0},   {2, 4, 2, 33, 129, 24, 16, true, 0}, {2, 2, 1, 50, 64, 64, 64, false, 1}, {2, 3, 3, 20, 90, 32, 48, false, 2},
    {1, 6, 1, 300, 300, 16, 16, true, 0}, {1, 2, 2, 4, 0, 8, 8, false, 0},     {0, 2, 2, 4, 4, 8, 8, false, 0},     {1, 1, 1, 60, 64, 130, 256, false, 0},
};

static void check_all(void) {
    static const dt_dtype types[] = {DT_float32, DT_float64, DT_bfloat16, DT_float16};
    dt_team *team = NULL;
    REQUIRE_OK(dt_team_new(2, "test", &team));
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        for (int t = 0; t < 4; t++)
            check(&shapes[i], types[t], t == 1 ? (const int[]){1, 3, 0, 2} : i % 2 ? (const int[]){0, 2, 1, 3} : NULL, i % 2 ? team : NULL);
    dt_team_free(team);
}

TEST(attention_best) { check_all(); }
TEST(attention_avx2) {
    setenv("DTORCH_CPU_ISA", "avx2", 1);
    check_all();
}
TEST(attention_base) {
    setenv("DTORCH_CPU_ISA", "base", 1);
    check_all();
}

TEST(nan_stays_nan) {
    int64_t s[4] = {1, 1, 4, 8}, l[3] = {1, 1, 4};
    dt_view in[4] = {kt_view(DT_float32, 4, s, NULL), kt_view(DT_float32, 4, s, NULL), kt_view(DT_float32, 4, s, NULL), {.dtype = DT_DTYPE_NONE}};
    dt_view out[2] = {kt_view(DT_float32, 4, s, NULL), kt_view(DT_float32, 3, l, NULL)};
    ((float *)in[0].data)[9] = NAN;
    dt_attention_attr attr = {false, NAN};
    CHECK_OK(kt_run(dt_cpu_attention, &dt_op_attention, &attr, 4, in, 2, out, NULL));
    CHECK(isnan(kt_at(&out[0], 8)) && !isnan(kt_at(&out[0], 0)) && !isnan(kt_at(&out[0], 16)));
}
