/* Reductions, softmax, norms, losses, scans, sorting and optimizer steps through the public API, against references in double; on one
 * device and on meshes with uneven and empty shards. */
#include "client/internal.h"
#include "dtorch_ops.h"
#include "test.h"

enum { A = 5, B = 7, C = 6, N = A * B * C };
static float data[N];
static void fill(void) {
    uint32_t r = 12345;
    for (int i = 0; i < N; i++) data[i] = (float)((r = r * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1;
}
static const struct dt_mesh *mesh(int n) {
    const char *names[] = {"x"};
    return dt_mesh_cpu(1, (int64_t[]){n}, names);
}
/* The tensor on one device, or cut along a dimension over n. */
static dt_tensor *given(dt_scope *s, const char *place, int n) {
    dt_tensor *t = dt_from_host(s, data, DT_float32, DT_DIMS(A, B, C));
    return place ? dt_distribute(s, t, mesh(n), place) : t;
}
static void near_all(int line, dt_tensor *t, int n, const double *want, double tol) {
    static float got[N];
    if (!t || dt_numel(t) != n || dt_read(t, got, (size_t)n * 4)) {
        TEST_FAIL("line %d: %s", line, t ? dt_error() : "no tensor");
        return;
    }
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tol * (1 + fabs(want[i])))) {
            TEST_FAIL("line %d: [%d] = %.9g, expected %.9g", line, i, got[i], want[i]);
            return;
        }
}
#define NEAR(t, n, want, tol) near_all(__LINE__, (t), (n), (want), (tol))

static const char *const places[] = {NULL, "R", "S0", "S1", "S2"};
enum { N_PLACES = 5 };
/* Reference: reduce data over the dimensions in mask with kind 's'um, 'm'ax, 'n' min, 'p'rod. */
static int reference(int mask, char kind, double *out) {
    int size[3] = {A, B, C}, n = 1, at[3];
    for (int d = 0; d < 3; d++)
        if (!(mask >> d & 1)) n *= size[d];
    for (int i = 0; i < n; i++) out[i] = kind == 'm' ? -INFINITY : kind == 'n' ? INFINITY : kind == 'p';
    for (int i = 0; i < N; i++) {
        at[0] = i / (B * C), at[1] = i / C % B, at[2] = i % C;
        int o = 0;
        for (int d = 0; d < 3; d++)
            if (!(mask >> d & 1)) o = o * size[d] + at[d];
        double x = data[i], y = out[o];
        out[o] = kind == 'm' ? fmax(x, y) : kind == 'n' ? fmin(x, y) : kind == 'p' ? x * y : x + y;
    }
    return n;
}

TEST(any_dims_any_placement) {
    fill();
    for (int p = 0; p < N_PLACES; p++)
        for (int devices = 2; devices <= 4; devices++)
            for (int mask = 1; mask < 8; mask++) {
                dt_scope *s = dt_scope_new();
                dt_tensor *x = given(s, places[p], devices);
                int64_t v[3];
                int k = 0;
                for (int d = 0; d < 3; d++)
                    if (mask >> d & 1) v[k++] = d;
                dt_dims dims = {k, v};
                double want[N];
                int n = reference(mask, 's', want);
                NEAR(dt_sum(s, x, dims, false, DT_DTYPE_NONE), n, want, 1e-5);
                for (int i = 0; i < n; i++) want[i] *= (double)n / N;
                NEAR(dt_mean(s, x, dims, true, DT_DTYPE_NONE), n, want, 1e-5);
                NEAR(dt_amax(s, x, dims, false), reference(mask, 'm', want), want, 0);
                NEAR(dt_amin(s, x, dims, true), reference(mask, 'n', want), want, 0);
                NEAR(dt_sum(s, dt_permute(s, x, DT_DIMS(2, 0, 1)), DT_NO_DIMS, false, DT_DTYPE_NONE), 1, (reference(7, 's', want), want), 1e-5);
                if (k == 1) NEAR(dt_prod_dim(s, x, v[0], false, DT_DTYPE_NONE), reference(mask, 'p', want), want, 1e-5);
                dt_scope_free(s);
            }
}

TEST(means_of_uneven_shards) {
    dt_scope *s = dt_scope_new();
    float v[12];
    for (int i = 0; i < 12; i++) v[i] = (float)i;
    dt_tensor *x = dt_distribute(s, dt_from_host(s, v, DT_float32, DT_DIMS(3, 4)), mesh(2), "S0");
    NEAR(dt_mean(s, x, DT_NO_DIMS, false, DT_DTYPE_NONE), 1, (double[]){5.5}, 0);
    x = dt_distribute(s, dt_from_host(s, v, DT_float32, DT_DIMS(1, 4)), mesh(2), "S0");
    NEAR(dt_mean(s, x, DT_NO_DIMS, false, DT_DTYPE_NONE), 1, (double[]){1.5}, 0);
    NEAR(dt_amax(s, x, DT_DIMS(0), false), 4, ((double[]){0, 1, 2, 3}), 0);
    dt_scope_free(s);
}

TEST(a_large_sum_is_accurate) { /* cut into segments; neighbours would cancel badly in one f32 accumulator */
    enum { M = 1 << 20 };
    float *v = malloc(M * sizeof *v);
    double want = 0, got;
    for (int i = 0; i < M; i++) want += v[i] = 1000.1f + (float)(i % 7);
    dt_scope *s = dt_scope_new();
    dt_tensor *x = dt_from_host(s, v, DT_float32, DT_DIMS(M));
    CHECK(!dt_item_f64(dt_sum(s, x, DT_NO_DIMS, false, DT_DTYPE_NONE), &got));
    CHECK_NEAR(got, want, want * 3e-7);
    dt_tensor *cols = dt_sum(s, dt_reshape(s, x, DT_DIMS(M / 8, 8)), DT_DIMS(0), false, DT_DTYPE_NONE);
    CHECK(!dt_item_f64(dt_sum(s, cols, DT_NO_DIMS, false, DT_DTYPE_NONE), &got));
    CHECK_NEAR(got, want, want * 3e-7);
    dt_scope_free(s);
    free(v);
}

TEST(nan_and_empty) {
    dt_scope *s = dt_scope_new();
    float v[300];
    for (int i = 0; i < 300; i++) v[i] = (float)i;
    v[177] = NAN;
    dt_tensor *x = dt_from_host(s, v, DT_float32, DT_DIMS(300)), *out[2];
    NEAR(dt_argmax(s, x, DT_NO_INT, false) ? dt_to_dtype(s, dt_argmax(s, x, 0, false), DT_float32) : NULL, 1, (double[]){177}, 0);
    double got;
    CHECK(!dt_item_f64(dt_max(s, x), &got));
    CHECK(isnan(got));
    dt_min_dim(s, x, 0, false, out);
    CHECK(!dt_item_f64(out[0], &got));
    CHECK(isnan(got));
    dt_tensor *none = dt_from_host(s, v, DT_float32, DT_DIMS(0));
    NEAR(dt_sum(s, none, DT_NO_DIMS, false, DT_DTYPE_NONE), 1, (double[]){0}, 0);
    CHECK(!dt_item_f64(dt_mean(s, none, DT_NO_DIMS, false, DT_DTYPE_NONE), &got));
    CHECK(isnan(got));
    CHECK_PTR(dt_max(s, none), NULL);
    CHECK_HAS(dt_error(), "numel() == 0");
    dt_scope_free(s);
}

TEST(softmax_along_each_dimension) {
    fill();
    for (int p = 0; p < N_PLACES; p++)
        for (int dim = 0; dim < 3; dim++) {
            dt_scope *s = dt_scope_new();
            dt_tensor *x = given(s, places[p], 4);
            int inner = dim == 2 ? 1 : dim == 1 ? C : B * C, n = dim == 0 ? A : dim == 1 ? B : C;
            double soft[N], logs[N];
            for (int i = 0; i < N; i++) {
                int base = i / (n * inner) * n * inner + i % inner;
                double t = 0;
                for (int k = 0; k < n; k++) t += exp(data[base + k * inner]);
                soft[i] = exp(data[i]) / t;
                logs[i] = data[i] - log(t);
            }
            NEAR(dt_softmax(s, x, dim, DT_DTYPE_NONE), N, soft, 1e-6);
            NEAR(dt_log_softmax(s, x, dim, DT_DTYPE_NONE), N, logs, 1e-6);
            dt_scope_free(s);
        }
}

TEST(weighted_loss_of_a_sharded_batch) { /* sum(w l) / sum(w) over the whole */
    dt_scope *s = dt_scope_new();
    float x[8] = {-1, 0, -2, 0, -3, 0, 0, -4}, w[2] = {1, 10};
    int64_t t[4] = {0, 0, 0, 1};
    for (int devices = 1; devices <= 4; devices++) {
        dt_tensor *in = dt_from_host(s, x, DT_float32, DT_DIMS(4, 2)), *to = dt_from_host(s, t, DT_int64, DT_DIMS(4)),
                  *wt = dt_from_host(s, w, DT_float32, DT_DIMS(2));
        if (devices > 1)
            in = dt_distribute(s, in, mesh(devices), "S0"), to = dt_distribute(s, to, mesh(devices), "S0"), wt = dt_distribute(s, wt, mesh(devices), "R");
        NEAR(dt_nll_loss(s, in, to, wt, DT_NOTHING, -100, DT_NOTHING, "mean"), 1, (double[]){46.0 / 13}, 1e-6);
        NEAR(dt_nll_loss(s, in, to, wt, DT_NOTHING, 1, DT_NOTHING, "mean"), 1, (double[]){2}, 1e-6);
    }
    t[2] = 5;
    double got;
    dt_tensor *loss =
        dt_nll_loss(s, dt_from_host(s, x, DT_float32, DT_DIMS(4, 2)), dt_from_host(s, t, DT_int64, DT_DIMS(4)), NULL, DT_NOTHING, -100, DT_NOTHING, "mean");
    CHECK_INT(dt_item_f64(loss, &got), DT_E_INDEX);
    CHECK_HAS(dt_error(), "Target 5 is out of bounds");
    dt_scope_free(s);
}

/* f(x) for finite differences: a scalar loss of data as (A*B, C). */
typedef dt_tensor *(*loss_fn)(dt_scope *s, dt_tensor *x);
static double value(loss_fn f, const float *v) {
    dt_scope *s = dt_scope_new();
    double got = NAN;
    CHECK(!dt_item_f64(f(s, dt_from_host(s, v, DT_float32, DT_DIMS(A * B, C))), &got));
    dt_scope_free(s);
    return got;
}
static void check_gradient(const char *name, loss_fn f, const char *place) {
    fill();
    dt_scope *s = dt_scope_new();
    dt_tensor *x = dt_from_host(s, data, DT_float32, DT_DIMS(A * B, C));
    if (place) x = dt_distribute(s, x, mesh(4), place);
    dt_requires_grad_set(x, true);
    static float g[N];
    dt_tensor *loss = f(s, x);
    if (!loss || dt_backward(loss, NULL, false, false) || !dt_grad_of(x) || dt_read(dt_grad_of(x), g, sizeof g)) {
        TEST_FAIL("%s: %s", name, dt_error());
        dt_scope_free(s);
        return;
    }
    for (int i = 0; i < N; i += 11) {
        float keep = data[i], h = 1e-2f;
        data[i] = keep + h;
        double up = value(f, data);
        data[i] = keep - h;
        double down = value(f, data);
        data[i] = keep;
        if (!(fabs((up - down) / (2 * h) - g[i]) < 3e-3)) TEST_FAIL("%s: gradient %d is %g, differences give %g", name, i, g[i], (up - down) / (2 * h));
    }
    dt_scope_free(s);
}
static dt_tensor *dotted(dt_scope *s, dt_tensor *y) { return dt_sum(s, dt_mul(s, y, dt_mul(s, y, y)), DT_NO_DIMS, false, DT_DTYPE_NONE); }
static dt_tensor *f_softmax(dt_scope *s, dt_tensor *x) { return dotted(s, dt_softmax(s, x, 1, DT_DTYPE_NONE)); }
static dt_tensor *f_log_softmax(dt_scope *s, dt_tensor *x) {
    return dt_mean(s, dt_mul(s, dt_log_softmax(s, x, 0, DT_DTYPE_NONE), x), DT_NO_DIMS, false, DT_DTYPE_NONE);
}
static dt_tensor *like(dt_scope *s, dt_tensor *t, dt_tensor *x) {
    return dt_tensor_meta(x)->mesh->ndim ? dt_distribute(s, t, dt_tensor_meta(x)->mesh, "R") : t;
}
static dt_tensor *f_layer_norm(dt_scope *s, dt_tensor *x) {
    float w[C] = {1, 2, -1, .5f, 3, 1}, b[C] = {0, 1, 2, 3, 4, 5};
    dt_tensor *wt = like(s, dt_from_host(s, w, DT_float32, DT_DIMS(C)), x), *bt = like(s, dt_from_host(s, b, DT_float32, DT_DIMS(C)), x);
    return dt_mean(s, dt_mul(s, dt_layer_norm(s, x, DT_DIMS(C), wt, bt, 1e-1, true), x), DT_NO_DIMS, false, DT_DTYPE_NONE);
}
static dt_tensor *f_rms_norm(dt_scope *s, dt_tensor *x) {
    return dt_mean(s, dt_mul(s, dt_rms_norm(s, x, DT_DIMS(C), NULL, 1e-1), x), DT_NO_DIMS, false, DT_DTYPE_NONE);
}
static dt_tensor *f_cross_entropy(dt_scope *s, dt_tensor *x) {
    int64_t t[A * B];
    float w[C] = {1, 2, 3, 4, 5, 6};
    for (int i = 0; i < A * B; i++) t[i] = i % 4 == 3 ? -100 : i % C;
    dt_tensor *tt = dt_from_host(s, t, DT_int64, DT_DIMS(A * B)), *wt = like(s, dt_from_host(s, w, DT_float32, DT_DIMS(C)), x);
    if (dt_tensor_meta(x)->mesh->ndim) tt = dt_distribute(s, tt, dt_tensor_meta(x)->mesh, "S0");
    return dt_cross_entropy(s, x, tt, wt, DT_NOTHING, -100, DT_NOTHING, "mean", 0.2);
}
static dt_tensor *f_logsumexp(dt_scope *s, dt_tensor *x) { return dotted(s, dt_logsumexp(s, x, DT_DIMS(0), false)); }
static dt_tensor *f_prod(dt_scope *s, dt_tensor *x) { return dt_sum(s, dt_prod_dim(s, x, 1, false, DT_DTYPE_NONE), DT_NO_DIMS, false, DT_DTYPE_NONE); }
static dt_tensor *f_cumsum(dt_scope *s, dt_tensor *x) { return dt_mean(s, dt_mul(s, dt_cumsum(s, x, 1, DT_DTYPE_NONE), x), DT_NO_DIMS, false, DT_DTYPE_NONE); }
static dt_tensor *f_cumprod(dt_scope *s, dt_tensor *x) { return dt_sum(s, dt_cumprod(s, x, 1, DT_DTYPE_NONE), DT_NO_DIMS, false, DT_DTYPE_NONE); }
static dt_tensor *f_logcumsumexp(dt_scope *s, dt_tensor *x) { return dt_mean(s, dt_mul(s, dt_logcumsumexp(s, x, 1), x), DT_NO_DIMS, false, DT_DTYPE_NONE); }
static dt_tensor *f_topk(dt_scope *s, dt_tensor *x) {
    dt_tensor *r[2];
    dt_topk(s, x, 2, 1, true, true, r);
    return dotted(s, r[0]);
}
static dt_tensor *f_mse(dt_scope *s, dt_tensor *x) { return dt_mse_loss(s, x, dt_mul(s, x, DT_V(x)), DT_NOTHING, DT_NOTHING, "mean", NULL); }
static dt_tensor *f_group_norm(dt_scope *s, dt_tensor *x) {
    return dt_mean(s, dt_mul(s, dt_group_norm(s, x, 2, NULL, NULL, 1e-1, true), x), DT_NO_DIMS, false, DT_DTYPE_NONE);
}
static dt_tensor *f_batch_norm(dt_scope *s, dt_tensor *x) {
    return dt_mean(s, dt_mul(s, dt_batch_norm(s, x, NULL, NULL, NULL, NULL, true, 0.1, 1e-1, true), x), DT_NO_DIMS, false, DT_DTYPE_NONE);
}

TEST(gradients) {
#define G(f) \
    { #f, f }
    static const struct {
        const char *name;
        loss_fn f;
    } all[] = {G(f_softmax), G(f_log_softmax), G(f_layer_norm),   G(f_rms_norm), G(f_cross_entropy), G(f_logsumexp),  G(f_prod),
               G(f_cumsum),  G(f_cumprod),     G(f_logcumsumexp), G(f_topk),     G(f_mse),           G(f_group_norm), G(f_batch_norm)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        check_gradient(all[i].name, all[i].f, NULL);
        check_gradient(all[i].name, all[i].f, "S0");
    }
}

TEST(ties_share_the_gradient) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = dt_from_host(s, (float[]){1, 3, 3, 2, 2, 0}, DT_float32, DT_DIMS(2, 3)), *out[2];
    dt_requires_grad_set(x, true);
    CHECK_OK(dt_backward(dt_sum(s, dt_amax(s, x, DT_DIMS(1), false), DT_NO_DIMS, false, DT_DTYPE_NONE), NULL, false, false));
    NEAR(dt_grad_of(x), 6, ((double[]){0, .5, .5, .5, .5, 0}), 0);
    dt_grad_clear(x);
    dt_max_dim(s, x, 1, false, out); /* with an index there is one winner: the first */
    CHECK_OK(dt_backward(dt_sum(s, out[0], DT_NO_DIMS, false, DT_DTYPE_NONE), NULL, false, false));
    NEAR(dt_grad_of(x), 6, ((double[]){0, 1, 0, 1, 0, 0}), 0);
    dt_scope_free(s);
}

TEST(sorting) {
    dt_scope *s = dt_scope_new();
    float v[100];
    for (int i = 0; i < 100; i++) v[i] = (float)(i * 37 % 50) - 25;
    v[7] = NAN, v[8] = -0.0f;
    dt_tensor *out[2], *x = dt_from_host(s, v, DT_float32, DT_DIMS(100));
    float got[100];
    int64_t at[100];
    for (int down = 0; down < 2; down++) {
        dt_sort(s, x, 0, down, false, out);
        CHECK(!dt_read(out[0], got, sizeof got) && !dt_read(out[1], at, sizeof at));
        CHECK(isnan(got[down ? 0 : 99]));
        for (int i = 1 + down; i < 99 + down; i++) {
            CHECK(down ? got[i - 1] >= got[i] : got[i - 1] <= got[i]);
            CHECK(got[i - 1] != got[i] || at[i - 1] < at[i]);
            CHECK(got[i] == v[at[i]]);
        }
    }
    dt_scope_free(s);
}

TEST(adam_steps) {
    enum { M = 1000 };
    static float p[M], g[M], m[M], v[M], got[M];
    static double wp[M], wm[M], wv[M];
    for (int i = 0; i < M; i++) {
        p[i] = (float)sin(i), g[i] = (float)cos(3 * i);
        wp[i] = p[i], wm[i] = wv[i] = 0;
    }
    dt_scope *s = dt_scope_new();
    dt_tensor *tp = dt_from_host(s, p, DT_float32, DT_DIMS(M)), *tg = dt_from_host(s, g, DT_float32, DT_DIMS(M));
    dt_tensor *tm = dt_from_host(s, m, DT_float32, DT_DIMS(M)), *tv = dt_from_host(s, v, DT_float32, DT_DIMS(M));
    for (int t = 1; t <= 5; t++) {
        double c1 = 1 - pow(.9, t), c2 = 1 - pow(.99, t);
        dt_adam_step(s, tp, tg, tm, tv, NULL, 1e-2, .9, .99, 1e-8, .1, c1, c2, true, false);
        for (int i = 0; i < M; i++) {
            wp[i] *= 1 - 1e-2 * .1;
            wm[i] += .1 * (g[i] - wm[i]);
            wv[i] = .99 * wv[i] + .01 * g[i] * g[i];
            wp[i] -= 1e-2 / c1 * wm[i] / (sqrt(wv[i]) / sqrt(c2) + 1e-8);
        }
    }
    CHECK_INT(dt_scope_status(s), DT_OK);
    CHECK(!dt_read(tp, got, sizeof got));
    for (int i = 0; i < M; i++) CHECK_NEAR(got[i], wp[i], 1e-5);
    dt_scope_free(s);
}
