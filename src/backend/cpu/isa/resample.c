/* Resampling (nearest, linear, cubic, over one to three dimensions) and patches (im2col, col2im). Inputs are contiguous, a plane is a task.
 * Resampling is linear and separable: a table says, for each output index of each dimension, which inputs it takes with which weights. */
#include "ops/resample.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/isa/isa.h"

typedef struct resample {
    int64_t small[3], large[3]; /* sizes of the input and of the result of the forward direction */
    int64_t n_small, n_large;
    const dt_tap *table[3];
    int taps[3];
    const void *from;
    void *to, *sums;
} resample;

/* ---- tables ---- */
static double step_of(int64_t in, int64_t out, bool align, double factor) {
    if (align) return out > 1 ? (double)(in - 1) / (double)(out - 1) : 0;
    return factor == factor && factor > 0 ? 1 / factor : (double)in / (double)out;
}

static void cubic(double t, double *w) { /* Keys' kernel, a = -0.75 */
    const double a = -0.75;
    double d[4] = {t + 1, t, 1 - t, 2 - t};
    for (int i = 0; i < 4; i++) w[i] = d[i] <= 1 ? ((a + 2) * d[i] - (a + 3)) * d[i] * d[i] + 1 : ((a * d[i] - 5 * a) * d[i] + 8 * a) * d[i] - 4 * a;
}

/* Nearest is computed in float, as its indices must agree with those of others to the bit. */
static int64_t nearest(int64_t i, int64_t in, int64_t out, double factor, bool exact) {
    float scale = factor == factor && factor > 0 ? (float)(1.0 / factor) : (float)in / (float)out;
    if (!exact && in == out) return i;
    if (!exact && out == 2 * in) return i >> 1;
    int64_t at = (int64_t)floorf(((float)i + (exact ? 0.5f : 0.0f)) * scale);
    return at < in - 1 ? at : in - 1;
}

static int fill(const char *mode, bool align, double factor, int64_t in, int64_t out, dt_tap *t) {
    bool is_nearest = !strncmp(mode, "nearest", 7), is_cubic = !strcmp(mode, "cubic");
    double step = step_of(in, out, align, factor);
    for (int64_t i = 0; i < out; i++) {
        if (is_nearest) {
            t[i].at[0] = nearest(i, in, out, factor, mode[7] != 0);
            t[i].weight[0] = 1;
            continue;
        }
        double x = align ? step * (double)i : step * ((double)i + 0.5) - 0.5;
        if (!is_cubic && x < 0) x = 0;
        int64_t base = (int64_t)floor(x);
        if (is_cubic) {
            cubic(x - (double)base, t[i].weight);
            for (int k = 0; k < 4; k++) {
                int64_t at = base - 1 + k;
                t[i].at[k] = at < 0 ? 0 : at > in - 1 ? in - 1 : at;
            }
        } else {
            if (base > in - 1) base = in - 1;
            t[i].at[0] = base;
            t[i].at[1] = base < in - 1 ? base + 1 : base;
            t[i].weight[1] = x - (double)base;
            t[i].weight[0] = 1 - t[i].weight[1];
        }
    }
    return is_nearest ? 1 : is_cubic ? 4 : 2;
}

#define DEFINE(T, A, SUF, GET, PUT)                                                                                                     \
    static void forward_##SUF(void *arg, int64_t plane) {                                                                               \
        const resample *s = arg;                                                                                                        \
        const T *x = (const T *)s->from + plane * s->n_small;                                                                           \
        T *y = (T *)s->to + plane * s->n_large;                                                                                         \
        for (int64_t a = 0; a < s->large[0]; a++)                                                                                       \
            for (int64_t b = 0; b < s->large[1]; b++)                                                                                   \
                for (int64_t c = 0; c < s->large[2]; c++) {                                                                             \
                    const dt_tap *u = &s->table[0][a], *v = &s->table[1][b], *w = &s->table[2][c];                                      \
                    A sum = 0;                                                                                                          \
                    for (int i = 0; i < s->taps[0]; i++)                                                                                \
                        for (int j = 0; j < s->taps[1]; j++) {                                                                          \
                            const T *row = x + (u->at[i] * s->small[1] + v->at[j]) * s->small[2];                                       \
                            A part = 0;                                                                                                 \
                            for (int k = 0; k < s->taps[2]; k++) part += (A)w->weight[k] * GET(row[w->at[k]]);                          \
                            sum += (A)(u->weight[i] * v->weight[j]) * part;                                                             \
                        }                                                                                                               \
                    *y++ = PUT(sum);                                                                                                    \
                }                                                                                                                       \
    }                                                                                                                                   \
    static void backward_##SUF(void *arg, int64_t plane) {                                                                              \
        const resample *s = arg;                                                                                                        \
        const T *y = (const T *)s->from + plane * s->n_large;                                                                           \
        T *x = (T *)s->to + plane * s->n_small;                                                                                         \
        A *sum = sizeof(A) == sizeof(T) ? (A *)(void *)x : (A *)s->sums + plane * s->n_small;                                           \
        for (int64_t i = 0; i < s->n_small; i++) sum[i] = 0;                                                                            \
        for (int64_t a = 0; a < s->large[0]; a++)                                                                                       \
            for (int64_t b = 0; b < s->large[1]; b++)                                                                                   \
                for (int64_t c = 0; c < s->large[2]; c++) {                                                                             \
                    const dt_tap *u = &s->table[0][a], *v = &s->table[1][b], *w = &s->table[2][c];                                      \
                    A g = GET(*y);                                                                                                      \
                    y++;                                                                                                                \
                    for (int i = 0; i < s->taps[0]; i++)                                                                                \
                        for (int j = 0; j < s->taps[1]; j++) {                                                                          \
                            A *row = sum + (u->at[i] * s->small[1] + v->at[j]) * s->small[2], f = (A)(u->weight[i] * v->weight[j]) * g; \
                            for (int k = 0; k < s->taps[2]; k++) row[w->at[k]] += (A)w->weight[k] * f;                                  \
                        }                                                                                                               \
                }                                                                                                                       \
        if (sizeof(A) != sizeof(T))                                                                                                     \
            for (int64_t i = 0; i < s->n_small; i++) x[i] = PUT(sum[i]);                                                                \
    }                                                                                                                                   \
    static void cut_##SUF(void *arg, int64_t i) { /* one channel of one image to its kh * kw rows */                                    \
        const patches *s = arg;                                                                                                         \
        const T *x = (const T *)s->image + i * s->H * s->W;                                                                             \
        T *y = (T *)s->columns + i * s->kh * s->kw * s->oh * s->ow;                                                                     \
        for (int64_t p = 0; p < s->kh; p++)                                                                                             \
            for (int64_t q = 0; q < s->kw; q++)                                                                                         \
                for (int64_t a = 0; a < s->oh; a++)                                                                                     \
                    for (int64_t b = 0; b < s->ow; b++) {                                                                               \
                        int64_t r = a * s->sh - s->ph + p * s->dh, c = b * s->sw - s->pw + q * s->dw;                                   \
                        *y++ = r < 0 || r >= s->H || c < 0 || c >= s->W ? PUT(0) : x[r * s->W + c];                                     \
                    }                                                                                                                   \
    }                                                                                                                                   \
    static void paste_##SUF(void *arg, int64_t i) {                                                                                     \
        const patches *s = arg;                                                                                                         \
        T *x = (T *)s->image + i * s->H * s->W;                                                                                         \
        const T *y = (const T *)s->columns + i * s->kh * s->kw * s->oh * s->ow;                                                         \
        A *sum = sizeof(A) == sizeof(T) ? (A *)(void *)x : (A *)s->sums + i * s->H * s->W;                                              \
        for (int64_t k = 0; k < s->H * s->W; k++) sum[k] = 0;                                                                           \
        for (int64_t p = 0; p < s->kh; p++)                                                                                             \
            for (int64_t q = 0; q < s->kw; q++)                                                                                         \
                for (int64_t a = 0; a < s->oh; a++)                                                                                     \
                    for (int64_t b = 0; b < s->ow; b++, y++) {                                                                          \
                        int64_t r = a * s->sh - s->ph + p * s->dh, c = b * s->sw - s->pw + q * s->dw;                                   \
                        if (r >= 0 && r < s->H && c >= 0 && c < s->W) sum[r * s->W + c] += GET(*y);                                     \
                    }                                                                                                                   \
        if (sizeof(A) != sizeof(T))                                                                                                     \
            for (int64_t k = 0; k < s->H * s->W; k++) x[k] = PUT(sum[k]);                                                               \
    }
#define SAME(v) (v)

typedef struct patches {
    int64_t H, W, kh, kw, oh, ow, sh, sw, ph, pw, dh, dw;
    void *image, *columns, *sums;
} patches;

DEFINE(float, float, f32, SAME, SAME)
DEFINE(double, double, f64, SAME, SAME)
DEFINE(uint16_t, float, bf16, dt_bf16_to_f32, dt_bf16_from_f32)
DEFINE(uint16_t, float, f16, dt_f16_to_f32, dt_f16_from_f32)
#define FOR_DTYPE(fn, dtype) (dtype == DT_float32 ? fn##_f32 : dtype == DT_float64 ? fn##_f64 : dtype == DT_bfloat16 ? fn##_bf16 : fn##_f16)

static resample describe(const dt_kctx *c, const dt_view *small, const dt_view *large) {
    const dt_resample_attr *a = c->attr;
    resample s = {.from = c->in[0].data, .to = c->out[0].data};
    const double factor[3] = {a->scale0, a->scale1, a->scale2};
    dt_tap *t = c->scratch;
    int nd = small->ndim - 2;
    for (int i = 0; i < 3; i++) {
        int d = i - (3 - nd);
        s.small[i] = d < 0 ? 1 : small->shape[2 + d];
        s.large[i] = d < 0 ? 1 : large->shape[2 + d];
        s.table[i] = t;
        s.taps[i] = d < 0 ? fill("nearest", false, NAN, 1, 1, t) : fill(a->mode, a->align_corners, factor[d], s.small[i], s.large[i], t);
        t += s.large[i];
    }
    s.n_small = s.small[0] * s.small[1] * s.small[2];
    s.n_large = s.large[0] * s.large[1] * s.large[2];
    s.sums = (char *)c->scratch + dt_resample_tables(large->shape, large->ndim);
    return s;
}

dt_status DT_ISA_FN(resample)(const dt_kctx *c) {
    resample s = describe(c, &c->in[0], &c->out[0]);
    dt_team_run(c->team, FOR_DTYPE(forward, c->in[0].dtype), &s, c->in[0].shape[0] * c->in[0].shape[1]);
    return DT_OK;
}
dt_status DT_ISA_FN(resample_backward)(const dt_kctx *c) {
    resample s = describe(c, &c->out[0], &c->in[0]);
    dt_team_run(c->team, FOR_DTYPE(backward, c->in[0].dtype), &s, c->in[0].shape[0] * c->in[0].shape[1]);
    return DT_OK;
}

static patches cut(const dt_kctx *c, const dt_view *image, const dt_view *columns) {
    const dt_patch_attr *a = c->attr;
    patches s = {.H = image->shape[2], .W = image->shape[3], .kh = a->kernel.v[0], .kw = a->kernel.v[1], .sh = a->stride.v[0], .sw = a->stride.v[1]};
    s.ph = a->padding.v[0], s.pw = a->padding.v[1], s.dh = a->dilation.v[0], s.dw = a->dilation.v[1];
    s.oh = (s.H + 2 * s.ph - s.dh * (s.kh - 1) - 1) / s.sh + 1;
    s.ow = (s.W + 2 * s.pw - s.dw * (s.kw - 1) - 1) / s.sw + 1;
    s.image = image->data;
    s.columns = columns->data;
    s.sums = c->scratch;
    return s;
}
dt_status DT_ISA_FN(im2col)(const dt_kctx *c) {
    patches s = cut(c, &c->in[0], &c->out[0]);
    dt_team_run(c->team, FOR_DTYPE(cut, c->in[0].dtype), &s, c->in[0].shape[0] * c->in[0].shape[1]);
    return DT_OK;
}
dt_status DT_ISA_FN(col2im)(const dt_kctx *c) {
    patches s = cut(c, &c->out[0], &c->in[0]);
    dt_team_run(c->team, FOR_DTYPE(paste, c->in[0].dtype), &s, c->out[0].shape[0] * c->out[0].shape[1]);
    return DT_OK;
}
