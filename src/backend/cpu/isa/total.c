/* What many tensors add up to: sums of |x|^p and extrema of |x| over whole lists, for norms of all gradients together. See ops/optim.c.
 *
 * Tensors are cut into chunks of so many elements; neighbouring chunks are a task, so that small tensors share one and large ones are divided. A
 * chunk's value depends on its elements alone and chunks are joined in order: the team's size changes no bit. Scratch:
 *
 *      chunks: {tensor, first element, value} …  | first chunk of each task …
 */
#include "backend/cpu/isa/lanes.h"
#include "ops/optim.h"

enum { CHUNK = DT_TOTAL_CHUNK, LANES = 16 };

typedef struct dt_total_chunk chunk;

typedef struct job {
    const dt_kctx *c;
    dt_total_mode mode;
    double p;
    chunk *chunk;
    const int64_t *first;
} job;

static inline double join(dt_total_mode mode, double a, double b) {
    if (mode == DT_TOTAL_MAX) return a > b || a != a ? a : b;
    if (mode == DT_TOTAL_MIN) return a < b || a != a ? a : b;
    return a + b;
}

/* One block of n elements; lanes are folded in a fixed order. NaN stays: neither > nor < holds for it. */
#define DEFINE_BLOCK(name, T, ABS)                                                                                     \
    static double name(const job *j, const T *x, int64_t n) {                                                          \
        T a[LANES];                                                                                                    \
        const T none = j->mode == DT_TOTAL_MIN ? (T)INFINITY : 0;                                                      \
        for (int l = 0; l < LANES; l++) a[l] = none;                                                                   \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i += LANES) {                                                  \
            int m = n - i < LANES ? (int)(n - i) : LANES;                                                              \
            switch (j->mode) {                                                                                         \
            case DT_TOTAL_SQUARES:                                                                                     \
                if (m == LANES)                                                                                        \
                    for (int l = 0; l < LANES; l++) a[l] += x[i + l] * x[i + l];                                       \
                else                                                                                                   \
                    for (int l = 0; l < m; l++) a[l] += x[i + l] * x[i + l];                                           \
                break;                                                                                                 \
            case DT_TOTAL_SUM:                                                                                         \
                for (int l = 0; l < m; l++) a[l] += ABS(x[i + l]);                                                     \
                break;                                                                                                 \
            case DT_TOTAL_MAX:                                                                                         \
                for (int l = 0; l < m; l++) a[l] = ABS(x[i + l]) <= a[l] ? a[l] : a[l] != a[l] ? a[l] : ABS(x[i + l]); \
                break;                                                                                                 \
            case DT_TOTAL_MIN:                                                                                         \
                for (int l = 0; l < m; l++) a[l] = ABS(x[i + l]) >= a[l] ? a[l] : a[l] != a[l] ? a[l] : ABS(x[i + l]); \
                break;                                                                                                 \
            case DT_TOTAL_POWERS:                                                                                      \
                for (int l = 0; l < m; l++) a[l] += (T)pow((double)ABS(x[i + l]), j->p);                               \
                break;                                                                                                 \
            }                                                                                                          \
        }                                                                                                              \
        double r = (double)a[0];                                                                                       \
        for (int l = 1; l < LANES; l++) r = join(j->mode, r, (double)a[l]);                                            \
        return r;                                                                                                      \
    }
DEFINE_BLOCK(block_f32, float, fabsf)
DEFINE_BLOCK(block_f64, double, fabs)

static void measure(const job *j, chunk *k) {
    const dt_view *v = &j->c->in[k->tensor];
    int64_t left = dt_view_numel(v) - k->from, size = (int64_t)dt_dtype_size(v->dtype), n = left < CHUNK ? left : CHUNK;
    for (int64_t i = 0; i < n; i += DT_BLOCK) {
        float buf[DT_BLOCK];
        int64_t m = n - i < DT_BLOCK ? n - i : DT_BLOCK;
        const char *at = (const char *)v->data + (k->from + i) * size;
        double x;
        if (v->dtype == DT_float64)
            x = block_f64(j, (const double *)at, m);
        else if (v->dtype == DT_float32)
            x = block_f32(j, (const float *)at, m);
        else {
            dt_load_f32(buf, at, v->dtype, 1, m);
            x = block_f32(j, buf, m);
        }
        k->value = i ? join(j->mode, k->value, x) : x;
    }
}

static void task(void *arg, int64_t t) {
    const job *j = arg;
    for (int64_t k = j->first[t]; k < j->first[t + 1]; k++) measure(j, &j->chunk[k]);
}

dt_status DT_ISA_FN(total)(const dt_kctx *c) {
    const dt_total_attr *a = c->attr;
    job j = {.c = c, .mode = dt_total_mode_of(a->p), .p = a->p, .chunk = c->scratch};
    int64_t n = dt_total_chunks(c), tasks = 0, filled = CHUNK, at = 0;
    int64_t *first = (int64_t *)(j.chunk + n);
    j.first = first;
    for (int i = 0; i < c->n_in; i++) {
        int64_t numel = dt_view_numel(&c->in[i]);
        for (int64_t from = 0; from < numel; from += CHUNK) {
            int64_t m = numel - from < CHUNK ? numel - from : CHUNK;
            if (filled + m > CHUNK) {
                first[tasks++] = at;
                filled = 0;
            }
            filled += m;
            j.chunk[at++] = (chunk){.tensor = i, .from = from};
        }
    }
    first[tasks] = at;
    if (tasks == 1)
        task(&j, 0);
    else
        dt_team_run(c->team, task, &j, tasks);
    double r = j.mode == DT_TOTAL_MIN ? (double)INFINITY : 0;
    for (int64_t k = 0; k < at; k++) r = join(j.mode, r, j.chunk[k].value);
    dt_store_f64(c->out[0].data, c->out[0].dtype, &r, 1);
    return DT_OK;
}
