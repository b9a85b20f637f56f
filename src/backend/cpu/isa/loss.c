/* Rows of negative log likelihood and cross-entropy with class indices, and their gradients.
 *
 * input (N, C, d…) or (C), target (N, d…) or (): one loss a target, before any mean or sum, and the weight that the row counts with.
 * Cross-entropy takes the maximum and the sum of exponentials while the row is in the cache and keeps only log-sum-exp for the backward
 * pass, which is softmax minus one-hot in one pass. A target outside [0, C) that is not ignore_index is a late error. */
#include <stdatomic.h>

#include "backend/cpu/isa/lanes.h"
#include "ops/loss.h"

typedef struct loss_job {
    const void *x, *weight, *g, *lse;
    const int64_t *target;
    char *out[3];
    int64_t outer, n, inner, per, osize, ignore;
    int64_t lo, total; /* the classes held here are [lo, lo + n) of total */
    double smooth, sum_weight;
    bool direct;
    dt_dtype out_dtype;
    _Atomic int64_t bad;
    _Atomic bool failed;
} loss_job;

/* The class of a row, or -1 if it is ignored (or illegal, which is noted). */
static int64_t loss_target(loss_job *j, int64_t row) {
    int64_t t = j->target[row];
    if (t == j->ignore) return -1;
    if (t >= 0 && t < j->total) return t;
    atomic_store_explicit(&j->bad, t, memory_order_relaxed);
    atomic_store_explicit(&j->failed, true, memory_order_relaxed);
    return -1;
}

#define T float
#define S f32
#define VEXP dt_lane_expf
#define VLOG logf
#include "backend/cpu/isa/loss_t.h"
#define T double
#define S f64
#define VEXP dt_lane_exp
#define VLOG log
#include "backend/cpu/isa/loss_t.h"

/* place: of the input, whose classes may be cut; NULL: they are whole. */
static void classes(loss_job *j, int ndim, const int64_t *shape, const dt_geom *place) {
    j->outer = ndim > 1 ? shape[0] : 1;
    j->n = shape[ndim > 1 ? 1 : 0];
    j->lo = place ? place->lo[ndim > 1 ? 1 : 0] : 0;
    j->total = place ? place->shape[ndim > 1 ? 1 : 0] : j->n;
    j->inner = 1;
    for (int i = 2; i < ndim; i++) j->inner *= shape[i];
    j->per = (j->inner + DT_BLOCK - 1) / DT_BLOCK;
}

static dt_status finish(const loss_job *j) {
    if (!j->failed) return DT_OK;
    return dt_fail(DT_E_INDEX, "Target %lld is out of bounds: it must be in [0, %lld), or ignore_index (%lld)", (long long)j->bad, (long long)j->total,
                   (long long)j->ignore);
}

static loss_job job_of(const dt_kctx *c) {
    const dt_loss_attr *a = c->attr;
    loss_job j = {.ignore = a->ignore_index, .smooth = a->label_smoothing, .out_dtype = c->out[0].dtype};
    j.osize = (int64_t)dt_dtype_size(j.out_dtype);
    for (int i = 0; i < c->n_out; i++) j.out[i] = c->out[i].data;
    return j;
}

/* in: x, target, weight?   out: loss, row weight, log-sum-exp */
dt_status DT_ISA_FN(cross_entropy_rows)(const dt_kctx *c) {
    loss_job j = job_of(c);
    j.x = c->in[0].data, j.target = c->in[1].data, j.weight = c->in[2].data;
    classes(&j, c->in[0].ndim, c->in[0].shape, NULL);
    dt_range_run(c->team, j.outer * j.per, j.n * (j.inner < DT_BLOCK ? j.inner : DT_BLOCK) * 2, c->in[0].dtype == DT_float64 ? ce_range_f64 : ce_range_f32, &j);
    return finish(&j);
}

/* in: g, x, target, weight?, log-sum-exp   out: gx */
dt_status DT_ISA_FN(cross_entropy_rows_backward)(const dt_kctx *c) {
    loss_job j = job_of(c);
    const dt_view *x = &c->in[1], *w = &c->in[3];
    bool f64 = x->dtype == DT_float64;
    j.g = c->in[0].data, j.x = x->data, j.target = c->in[2].data, j.weight = w->data, j.lse = c->in[4].data;
    j.direct = j.out_dtype == x->dtype;
    classes(&j, x->ndim, x->shape, NULL);
    j.sum_weight = (double)j.n;
    if (j.weight) j.sum_weight = f64 ? dt_lanes_sum_f64(w->data, j.n) : (double)dt_lanes_sum_f32(w->data, j.n);
    dt_range_run(c->team, j.outer * j.per, j.n * (j.inner < DT_BLOCK ? j.inner : DT_BLOCK) * 2, f64 ? ce_back_range_f64 : ce_back_range_f32, &j);
    return finish(&j);
}

/* in: x, target, weight?   out: loss, row weight */
dt_status DT_ISA_FN(nll_rows)(const dt_kctx *c) {
    loss_job j = job_of(c);
    j.x = c->in[0].data, j.target = c->in[1].data, j.weight = c->in[2].data;
    classes(&j, c->in[0].ndim, c->in[0].shape, &c->in_place[0]);
    dt_range_run(c->team, j.outer * j.inner, 4, c->in[0].dtype == DT_float64 ? nll_range_f64 : nll_range_f32, &j);
    return finish(&j);
}

/* in: g, target, weight?   out: gx */
dt_status DT_ISA_FN(nll_rows_backward)(const dt_kctx *c) {
    loss_job j = job_of(c);
    j.g = c->in[0].data, j.target = c->in[1].data, j.weight = c->in[2].data;
    classes(&j, c->out[0].ndim, c->out[0].shape, &c->out_place[0]);
    memset(c->out[0].data, 0, (size_t)dt_view_numel(&c->out[0]) * (size_t)j.osize);
    dt_range_run(c->team, j.outer * j.inner, 4, c->in[0].dtype == DT_float64 ? nll_back_range_f64 : nll_back_range_f32, &j);
    return finish(&j);
}
