/* The three convolution kernels against loops in double: dimensions, strides, padding, dilation, groups, depthwise, chunks, dtypes. */
#include "kernel.h"
#include "ops/conv.h"

DT_CPU_KERNEL(conv);
DT_CPU_KERNEL(conv_input);
DT_CPU_KERNEL(conv_weight);

typedef struct shape {
    int nd;
    int64_t N, Cg, Og, G, in[3], k[3], stride[3], pad[3], dil[3];
} shape;

/* One pass over every (n, o, c, output pixel, tap) that meets: y += x w, x' += y' w, w' += x y'. */
static void reference(const shape *z, const int64_t *out, const dt_view *x, const dt_view *w, const dt_view *gy, double *y, double *gx, double *gw) {
    int64_t in[3], k[3], s[3], p[3], d[3], o[3];
    for (int i = 0; i < 3; i++) {
        int j = i - (3 - z->nd);
        in[i] = j < 0 ? 1 : z->in[j], k[i] = j < 0 ? 1 : z->k[j], s[i] = j < 0 ? 1 : z->stride[j], p[i] = j < 0 ? 0 : z->pad[j];
        d[i] = j < 0 ? 1 : z->dil[j], o[i] = j < 0 ? 1 : out[j];
    }
    int64_t C = z->Cg * z->G, O = z->Og * z->G;
    for (int64_t n = 0; n < z->N; n++)
        for (int64_t oc = 0; oc < O; oc++)
            for (int64_t a = 0; a < o[0] * o[1] * o[2]; a++)
                for (int64_t c = 0; c < z->Cg; c++)
                    for (int64_t t = 0; t < k[0] * k[1] * k[2]; t++) {
                        int64_t i0 = a / o[2] / o[1] * s[0] - p[0] + t / k[2] / k[1] * d[0], i1 = a / o[2] % o[1] * s[1] - p[1] + t / k[2] % k[1] * d[1],
                                i2 = a % o[2] * s[2] - p[2] + t % k[2] * d[2];
                        if (i0 < 0 || i0 >= in[0] || i1 < 0 || i1 >= in[1] || i2 < 0 || i2 >= in[2]) continue;
                        int64_t xi = (((n * C + oc / z->Og * z->Cg + c) * in[0] + i0) * in[1] + i1) * in[2] + i2,
                                wi = (oc * z->Cg + c) * k[0] * k[1] * k[2] + t, yi = (n * O + oc) * o[0] * o[1] * o[2] + a;
                        y[yi] += kt_at(x, xi) * kt_at(w, wi);
                        gx[xi] += kt_at(gy, yi) * kt_at(w, wi);
                        gw[wi] += kt_at(x, xi) * kt_at(gy, yi);
                    }
}

static void near(const char *what, int number, const dt_view *got, const double *want, double tol) {
    for (int64_t i = 0; i < dt_view_numel(got); i++)
        if (!(fabs(kt_at(got, i) - want[i]) <= tol * (1 + fabs(want[i])))) {
            TEST_FAIL("case %d %s (%s) element %d: %g, expected %g", number, what, dt_dtype_name(got->dtype), (int)i, kt_at(got, i), want[i]);
            return;
        }
}

static void check(int number, const shape *z, dt_dtype t, dt_team *team) {
    dt_conv_attr a = {.groups = z->G, .stride.n = z->nd, .padding.n = z->nd, .dilation.n = z->nd, .size.n = z->nd};
    int64_t xs[5] = {z->N, z->Cg * z->G}, ws[5] = {z->Og * z->G, z->Cg}, ys[5] = {z->N, z->Og * z->G}, bs[1] = {z->Og * z->G};
    for (int d = 0; d < z->nd; d++) {
        xs[2 + d] = z->in[d], ws[2 + d] = z->k[d], a.stride.v[d] = z->stride[d], a.padding.v[d] = z->pad[d], a.dilation.v[d] = z->dil[d];
        ys[2 + d] = (z->in[d] + 2 * z->pad[d] - z->dil[d] * (z->k[d] - 1) - 1) / z->stride[d] + 1;
    }
    int nd = z->nd + 2;
    dt_view x = kt_view(t, nd, xs, NULL), w = kt_view(t, nd, ws, NULL), b = kt_view(t, 1, bs, NULL), y = kt_view(t, nd, ys, NULL),
            gy = kt_view(t, nd, ys, NULL), gx = kt_view(t, nd, xs, NULL), gw = kt_view(t, nd, ws, NULL);
    CHECK_OK(kt_run(dt_cpu_conv, &dt_op_conv, &a, 3, (dt_view[]){x, w, b}, 1, &y, team));
    CHECK_OK(kt_run(dt_cpu_conv_input, &dt_op_conv_input, &a, 2, (dt_view[]){gy, w}, 1, &gx, team));
    CHECK_OK(kt_run(dt_cpu_conv_weight, &dt_op_conv_weight, &a, 2, (dt_view[]){x, gy}, 1, &gw, team));
    int64_t ny = dt_view_numel(&y), nx = dt_view_numel(&x), nw = dt_view_numel(&w);
    double *ry = calloc((size_t)(ny + nx + nw + 1), 8), *rx = ry + ny, *rw = rx + nx,
           tol = t == DT_float64   ? 1e-12
                 : t == DT_float32 ? 3e-5
                 : t == DT_float16 ? 2e-2
                                   : 1e-1;
    for (int64_t i = 0; i < ny; i++) ry[i] = kt_at(&b, i / (z->N ? ny / z->N / bs[0] : 1) % bs[0]);
    reference(z, ys + 2, &x, &w, &gy, ry, rx, rw);
    near("y", number, &y, ry, tol);
    near("gx", number, &gx, rx, tol);
    near("gw", number, &gw, rw, tol * 4);
    free(ry);
    dt_view *all[] = {&x, &w, &b, &y, &gy, &gx, &gw};
    for (int i = 0; i < 7; i++) free(all[i]->data);
}

static const shape shapes[] = {
    {1, 2, 3, 4, 1, {17}, {3}, {1}, {1}, {1}},
    {1, 1, 2, 2, 2, {40}, {5}, {2}, {3}, {2}},
    {2, 2, 3, 5, 1, {9, 11}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {2, 3, 16, 70, 1, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {2, 1, 3, 8, 1, {30, 31}, {7, 7}, {2, 2}, {3, 3}, {1, 1}},
    {2, 2, 4, 6, 3, {10, 12}, {3, 2}, {2, 3}, {0, 1}, {2, 1}},
    {2, 2, 1, 1, 6, {13, 21}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {2, 2, 1, 1, 5, {13, 50}, {3, 5}, {2, 3}, {2, 4}, {1, 2}},
    {2, 1, 40, 33, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {2, 2, 220, 200, 1, {5, 4}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {2, 2, 3, 4, 1, {12, 12}, {4, 4}, {4, 4}, {0, 0}, {1, 1}},
    {2, 2, 3, 4, 1, {12, 14}, {2, 3}, {4, 6}, {0, 0}, {3, 4}},
    {2, 4, 3, 10, 1, {60, 61}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {2, 2, 24, 20, 1, {32, 32}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}, /* channels 4 KiB apart */
    {2, 3, 40, 30, 1, {8, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
    {2, 2, 15, 20, 2, {16, 16}, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
    {2, 9, 50, 13, 1, {4, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {2, 2, 5, 7, 2, {9, 37}, {3, 5}, {1, 2}, {1, 2}, {1, 2}},
    {2, 2, 4, 4, 3, {9, 14}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}, /* few channels a group */
    {2, 2, 2, 3, 2, {8, 23}, {3, 5}, {1, 1}, {2, 3}, {2, 1}},
    {2, 2, 1, 4, 3, {7, 7}, {4, 2}, {1, 1}, {0, 1}, {1, 3}},
    {3, 1, 1, 1, 3, {5, 6, 7}, {3, 2, 3}, {1, 1, 1}, {1, 0, 2}, {1, 1, 2}},
    {2, 3, 40, 27, 1, {17, 13}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}, /* from here on by Winograd's transform */
    {2, 2, 26, 33, 1, {12, 19}, {3, 3}, {1, 1}, {0, 2}, {1, 1}},
    {2, 2, 24, 24, 1, {9, 16}, {3, 3}, {1, 1}, {3, 1}, {1, 1}},
    {2, 20, 32, 70, 1, {4, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {2, 0, 3, 4, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {3, 2, 2, 3, 2, {5, 6, 7}, {3, 2, 3}, {2, 1, 1}, {1, 0, 1}, {1, 2, 1}},
    {3, 1, 1, 1, 3, {5, 6, 7}, {3, 2, 3}, {1, 2, 1}, {1, 0, 2}, {1, 1, 2}},
};

static void check_all(void) {
    static const dt_dtype types[] = {DT_float32, DT_float64, DT_bfloat16, DT_float16};
    dt_team *team = NULL;
    REQUIRE_OK(dt_team_new(2, "test", &team));
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        for (int t = 0; t < 4; t++) check(i, &shapes[i], types[t], i % 2 ? team : NULL);
    dt_team_free(team);
}

TEST(conv_best) { check_all(); }
TEST(conv_avx2) {
    setenv("DTORCH_CPU_ISA", "avx2", 1);
    check_all();
}
TEST(conv_base) {
    setenv("DTORCH_CPU_ISA", "base", 1);
    check_all();
}
