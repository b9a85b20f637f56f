/* Reductions: sum, mean, prod, amax, amin, any, all, count_nonzero over any dimensions, strides and dtypes.
 *
 * One driver walks a dt_reduce_plan (ops/reduce.h): rows (each output reduces a line of memory), columns (neighbouring outputs reduce
 * together) or, for few outputs, segments combined in order. f32 works in f32 lanes and folds into f64; 16-bit floats are converted to
 * f32 in blocks; integers and bool work in int64. An empty reduction gives the identity, so an empty shard does no harm. */
#include "ops/reduce.h"
#include "backend/cpu/isa/lanes.h"
#include "backend/cpu/isa/reduce_rows.h"

typedef enum red_kind { RED_SUM, RED_PROD, RED_MAX, RED_MIN, RED_NONZERO } red_kind;

typedef struct red_job {
    dt_reduce_plan plan;
    red_kind kind;
    bool mean, direct; /* direct: elements are already of the working type and need no map */
    dt_dtype dtype;
    int64_t esize, count, units, unit_cost, group;
    const char *data;
    const dt_view *out;
    void *scratch;
} red_job;

/* Where output o, segment g starts, and how far each reduced dimension runs. */
static const char *red_start(const red_job *j, int64_t o, int64_t g, int64_t *len) {
    const dt_reduce_plan *p = &j->plan;
    int64_t off = 0;
    for (int d = p->n_keep - 1; d >= 0; d--) {
        off += o % p->keep[d] * p->keep_stride[d];
        o /= p->keep[d];
    }
    for (int d = 0; d < p->n_red; d++) len[d] = p->red[d];
    int64_t lo = g * p->seg, left = p->red[p->split] - lo;
    len[p->split] = left < p->seg ? left : p->seg;
    return j->data + (off + lo * p->red_stride[p->split]) * j->esize;
}

static bool red_next(int64_t *idx, const int64_t *len, int n) {
    for (int d = n - 1; d >= 0; d--) {
        if (++idx[d] < len[d]) return true;
        idx[d] = 0;
    }
    return false;
}

/* Unit v covers outputs [o, o + w). */
static void red_unit(const red_job *j, int64_t v, int64_t *o, int64_t *w) {
    if (j->plan.columns) {
        int64_t cols = j->plan.keep[j->plan.n_keep - 1], per = (cols + DT_BLOCK - 1) / DT_BLOCK;
        int64_t c = v % per * DT_BLOCK;
        *o = v / per * cols + c;
        *w = cols - c < DT_BLOCK ? cols - c : DT_BLOCK;
    } else {
        *o = v * j->group;
        *w = j->plan.outs - *o < j->group ? j->plan.outs - *o : j->group;
    }
}

/* Integers accumulate in int64: an empty extreme must stay within the elements' dtype. */
static int64_t clamp_to(dt_dtype t, int64_t v) {
    static const int64_t low[] = {0, 0, INT8_MIN, INT16_MIN, INT32_MIN}, high[] = {1, UINT8_MAX, INT8_MAX, INT16_MAX, INT32_MAX};
    if (t > DT_int32) return v;
    return v == INT64_MIN ? low[t] : v == INT64_MAX ? high[t] : v;
}
static void put_acc_i64(const red_job *j, void *dst, int64_t *acc, int64_t n) {
    for (int64_t i = 0; i < n; i++) acc[i] = clamp_to(j->dtype, acc[i]);
    dt_store_i64(dst, j->out->dtype, acc, n);
}
static void put_acc_f64(const red_job *j, void *dst, double *acc, int64_t n) { dt_store_f64(dst, j->out->dtype, acc, n); }
#define put_acc_f32 put_acc_f64

#define T float
#define A double
#define S f32
#define LOWEST (-INFINITY)
#define HIGHEST INFINITY
#define IS_NAN(v) ((v) != (v))
#include "backend/cpu/isa/reduce_t.h"
#define T double
#define A double
#define S f64
#define LOWEST (-INFINITY)
#define HIGHEST INFINITY
#define IS_NAN(v) ((v) != (v))
#include "backend/cpu/isa/reduce_t.h"
#define T int64_t
#define A int64_t
#define S i64
#define LOWEST INT64_MIN
#define HIGHEST INT64_MAX
#define IS_NAN(v) false
#include "backend/cpu/isa/reduce_t.h"

static dt_status reduce(const dt_kctx *c, red_kind kind, bool mean) {
    const dt_reduce_attr *a = c->attr;
    const dt_view *in = &c->in[0];
    red_job j = {
        .kind = kind, .mean = mean, .dtype = in->dtype, .esize = (int64_t)dt_dtype_size(in->dtype), .data = in->data, .out = c->out, .scratch = c->scratch};
    dt_reduce_plan_make(in, &a->dim, &j.plan);
    if (j.plan.outs == 0) return DT_OK;
    if (mean) j.count = dt_reduce_count(c->in_place, in->ndim, &a->dim);
    bool f32 = in->dtype == DT_float32 || in->dtype == DT_float16 || in->dtype == DT_bfloat16, f64 = in->dtype == DT_float64;
    if (j.plan.reds == 0) { /* nothing here: the identity (0 / 0 for a mean over nothing at all) */
        j.plan.columns = false, j.plan.n_red = 1, j.plan.red[0] = 0, j.plan.seg = 0, j.plan.n_keep = 0;
    }
    j.direct = kind != RED_NONZERO && (in->dtype == DT_float32 || f64 || in->dtype == DT_int64);
    int64_t cols = j.plan.columns ? j.plan.keep[j.plan.n_keep - 1] : 0;
    j.group = j.plan.reds >= 16384 ? 1 : j.plan.reds < 64 ? DT_BLOCK : 16384 / j.plan.reds;
    j.units = cols ? j.plan.outs / cols * ((cols + DT_BLOCK - 1) / DT_BLOCK) : (j.plan.outs + j.group - 1) / j.group;
    j.unit_cost = j.plan.outs * j.plan.reds / (j.units * j.plan.segs);
    if (f32)
        run_f32(&j, c->team);
    else if (f64)
        run_f64(&j, c->team);
    else
        run_i64(&j, c->team);
    return DT_OK;
}

/* ---- rows in the fusion interpreter ------------------------------------------------------------------------------------------ */
/* Contiguous rows of n elements in blocks of `block`: what `line` and `put` do for each. */
#define DEFINE_ROWS(S, T)                                                                                                        \
    static void rows_##S(red_kind k, int64_t count, int64_t block, int64_t rows, int64_t n, const T *x, dt_dtype t, char *out) { \
        double acc[DT_BLOCK];                                                                                                    \
        for (int64_t r0 = 0; r0 < rows; r0 += DT_BLOCK) {                                                                        \
            int64_t m = rows - r0 < DT_BLOCK ? rows - r0 : DT_BLOCK;                                                             \
            for (int64_t r = 0; r < m; r++, x += n) {                                                                            \
                double a = identity_##S(k);                                                                                      \
                for (int64_t i = 0; i < n; i += block) a = chunk_##S(k, a, x + i, n - i < block ? n - i : block);                \
                acc[r] = count ? a / (double)count : a;                                                                          \
            }                                                                                                                    \
            dt_store_f64(out + r0 * (int64_t)dt_dtype_size(t), t, acc, m);                                                       \
        }                                                                                                                        \
    }
DEFINE_ROWS(f32, float)
DEFINE_ROWS(f64, double)

void DT_ISA_FN(reduce_rows)(const dt_reduce_rows *r, int64_t rows, const void *x, void *out) {
    static const red_kind kinds[] = {[DT_FUSED_SUM] = RED_SUM, [DT_FUSED_MEAN] = RED_SUM, [DT_FUSED_MAX] = RED_MAX, [DT_FUSED_MIN] = RED_MIN};
    int64_t count = r->kind == DT_FUSED_MEAN ? r->count : 0, block = r->from == DT_float32 || r->from == DT_float64 ? 1024 : DT_BLOCK;
    if (r->from == DT_float64)
        rows_f64(kinds[r->kind], count, block, rows, r->n, x, r->to, out);
    else
        rows_f32(kinds[r->kind], count, block, rows, r->n, x, r->to, out);
}

/* ---- columns in the fusion interpreter: what `column_block` and `combine` do ---- */
#define DEFINE_COLUMNS(S, T)                                                                             \
    static void columns_add_##S(int64_t at, int64_t rows, int64_t n, const T *x, T *part, double *acc) { \
        for (int64_t r = 0; r < rows; r++, x += n) add_row_##S(at + r, n, x, part, acc);                 \
    }                                                                                                    \
    static void columns_end_##S(int64_t n, const T *part, double *acc) {                                 \
        for (int64_t c = 0; c < n; c++) acc[c] += part[c];                                               \
    }
DEFINE_COLUMNS(f32, float)
DEFINE_COLUMNS(f64, double)

void DT_ISA_FN(columns_add)(dt_dtype t, int64_t at, int64_t rows, int64_t n, const void *x, void *part, double *acc) {
    if (t == DT_float64)
        columns_add_f64(at, rows, n, x, part, acc);
    else
        columns_add_f32(at, rows, n, x, part, acc);
}
void DT_ISA_FN(columns_end)(dt_dtype t, int64_t n, const void *part, double *acc) {
    if (t == DT_float64)
        columns_end_f64(n, part, acc);
    else
        columns_end_f32(n, part, acc);
}
void DT_ISA_FN(columns_put)(int64_t segs, int64_t n, const double *part, int64_t count, dt_dtype t, void *out) {
    double acc[DT_BLOCK];
    for (int64_t o = 0; o < n; o += DT_BLOCK) {
        int64_t w = n - o < DT_BLOCK ? n - o : DT_BLOCK;
        for (int64_t c = 0; c < w; c++) acc[c] = part[o + c];
        for (int64_t g = 1; g < segs; g++)
            for (int64_t c = 0; c < w; c++) acc[c] += part[g * n + o + c];
        if (count)
            for (int64_t c = 0; c < w; c++) acc[c] /= (double)count;
        dt_store_f64((char *)out + o * (int64_t)dt_dtype_size(t), t, acc, w);
    }
}

dt_status DT_ISA_FN(sum)(const dt_kctx *c) { return reduce(c, RED_SUM, false); }
dt_status DT_ISA_FN(mean)(const dt_kctx *c) { return reduce(c, RED_SUM, true); }
dt_status DT_ISA_FN(prod)(const dt_kctx *c) { return reduce(c, RED_PROD, false); }
dt_status DT_ISA_FN(amax)(const dt_kctx *c) { return reduce(c, RED_MAX, false); }
dt_status DT_ISA_FN(amin)(const dt_kctx *c) { return reduce(c, RED_MIN, false); }
dt_status DT_ISA_FN(count_nonzero)(const dt_kctx *c) { return reduce(c, RED_NONZERO, false); }
