/* Extremes with their place: argmax, argmin, max and min along a dimension; also the gradient helpers prod_others and
 * value_selecting_backward. Inputs are contiguous. Ties take the first index; the first NaN beats everything. */
#include "backend/cpu/isa/lanes.h"
#include "ops/reduce.h"

typedef struct arg_job {
    dt_rows r;
    bool largest, direct;
    dt_dtype dtype;
    int64_t esize, per;
    const char *x;
    char *values;
    int64_t *index;
    const int64_t *from;
    int64_t n_out;
    dt_dtype kind; /* DT_float32, DT_float64, DT_int64: the working type */
} arg_job;

#define T float
#define S f32
#define IS_NAN(v) ((v) != (v))
#include "backend/cpu/isa/arg_t.h"
#define T double
#define S f64
#define IS_NAN(v) ((v) != (v))
#include "backend/cpu/isa/arg_t.h"
#define T int64_t
#define S i64
#define IS_NAN(v) false
#include "backend/cpu/isa/arg_t.h"

static arg_job job_of(const dt_view *in, int64_t dim) {
    arg_job j = {.dtype = in->dtype, .esize = (int64_t)dt_dtype_size(in->dtype), .x = in->data, .r = dt_rows_of(in, dim)};
    j.per = (j.r.inner + DT_BLOCK - 1) / DT_BLOCK;
    j.kind = in->dtype == DT_float64 ? DT_float64 : dt_dtype_is_float(in->dtype) ? DT_float32 : DT_int64;
    j.direct = in->dtype == j.kind;
    return j;
}

static void unit(void *arg, int64_t lo, int64_t hi) {
    const arg_job *j = arg;
    int64_t n = j->r.n, inner = j->r.inner, at[DT_BLOCK];
    for (int64_t u = lo; u < hi; u++) {
        int64_t o = u / j->per, col = u % j->per * DT_BLOCK, w = inner - col < DT_BLOCK ? inner - col : DT_BLOCK;
        const char *p = j->x + (o * n * inner + col) * j->esize;
        if (inner == 1)
            at[0] = (j->kind == DT_float32 ? row_f32 : j->kind == DT_float64 ? row_f64 : row_i64)(j, p, n);
        else
            (j->kind == DT_float32 ? cols_f32 : j->kind == DT_float64 ? cols_f64 : cols_i64)(j, p, n, inner, w, at);
        for (int64_t k = 0; k < w; k++) {
            int64_t out = o * inner + col + k;
            j->index[out] = at[k];
            if (j->values) memcpy(j->values + out * j->esize, p + (at[k] * inner + k) * j->esize, (size_t)j->esize);
        }
    }
}

static dt_status extreme(const dt_kctx *c, bool largest, bool values) {
    const dt_dim_attr *a = c->attr;
    arg_job j = job_of(&c->in[0], a->dim);
    if (a->dim == DT_NO_INT) j.r = (dt_rows){1, dt_view_numel(&c->in[0]), 1}, j.per = 1;
    j.largest = largest;
    j.values = values ? c->out[0].data : NULL;
    j.index = c->out[values ? 1 : 0].data;
    if (j.r.n == 0) return DT_OK; /* only where the outputs are empty too */
    dt_range_run(c->team, j.r.outer * j.per, j.r.n * (j.r.inner < DT_BLOCK ? j.r.inner : DT_BLOCK), unit, &j);
    return DT_OK;
}

dt_status DT_ISA_FN(max_dim)(const dt_kctx *c) { return extreme(c, true, true); }
dt_status DT_ISA_FN(min_dim)(const dt_kctx *c) { return extreme(c, false, true); }
dt_status DT_ISA_FN(argmax)(const dt_kctx *c) { return extreme(c, true, false); }
dt_status DT_ISA_FN(argmin)(const dt_kctx *c) { return extreme(c, false, false); }

static void others_range(void *arg, int64_t lo, int64_t hi) {
    const arg_job *j = arg;
    int64_t n = j->r.n, inner = j->r.inner;
    for (int64_t u = lo; u < hi; u++) {
        int64_t at = (u / inner * n * inner + u % inner) * j->esize;
        (j->kind == DT_float64 ? others_f64 : others_f32)(j, j->x + at, j->values + at, n, inner);
    }
}
dt_status DT_ISA_FN(prod_others)(const dt_kctx *c) {
    arg_job j = job_of(&c->in[0], ((const dt_dim_attr *)c->attr)->dim);
    j.values = c->out[0].data;
    dt_range_run(c->team, j.r.outer * j.r.inner, j.r.n * 2, others_range, &j);
    return DT_OK;
}

/* out[.., index, ..] += g: rows of out are independent. */
static void select_range(void *arg, int64_t lo, int64_t hi) {
    const arg_job *j = arg;
    int64_t n = j->r.n, inner = j->r.inner;
    for (int64_t u = lo; u < hi; u++) {
        int64_t o = u / inner, k = u % inner;
        for (int64_t i = 0; i < n; i++) {
            int64_t from = (o * n + i) * inner + k;
            char *dst = j->values + ((o * j->n_out + j->from[from]) * inner + k) * j->esize;
            double v = dt_element_get_f64(j->dtype, dst) + dt_element_get_f64(j->dtype, j->x + from * j->esize);
            dt_element_set_f64(j->dtype, dst, v);
        }
    }
}
dt_status DT_ISA_FN(value_selecting_backward)(const dt_kctx *c) {
    const dt_select_attr *a = c->attr;
    arg_job j = job_of(&c->in[0], a->dim);
    j.from = c->in[1].data;
    j.values = c->out[0].data;
    j.n_out = a->size;
    memset(j.values, 0, (size_t)dt_view_numel(&c->out[0]) * (size_t)j.esize);
    dt_range_run(c->team, j.r.outer * j.r.inner, j.r.n * 4, select_range, &j);
    return DT_OK;
}
