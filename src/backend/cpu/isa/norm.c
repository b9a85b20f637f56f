/* layer_norm and rms_norm over the trailing dimensions, forward and backward, for contiguous tensors.
 *
 * Forward: y = (x - mean) rstd w + b; rstd = 1 / sqrt(var + eps), kept with the mean for the backward pass (rms: no mean).
 * Backward: gx row by row; the gradients of w and b are column sums taken in at most 16 blocks of rows, whose size depends on the problem
 * only, and folded in f64. 16-bit tensors arrive as f32 (infer asks for it) and are rounded once. */
#include "ops/norm.h"
#include "backend/cpu/isa/lanes.h"

typedef struct norm_job {
    const void *x, *g, *w, *b;
    void *mean, *rstd, *part;
    char *y, *gw, *gb;
    int64_t rows, n, block, ysize, gsize;
    double eps;
    bool direct, rms;
    dt_dtype y_dtype, g_dtype;
} norm_job;

#define T float
#define S f32
#include "backend/cpu/isa/norm_t.h"
#define T double
#define S f64
#include "backend/cpu/isa/norm_t.h"

/* in: x, w?, b?   out: y, mean, rstd   (rms: in: x, w?  out: y, rstd) */
static dt_status forward(const dt_kctx *c, bool rms) {
    const dt_norm_attr *a = c->attr;
    const dt_view *x = &c->in[0];
    norm_job j = {.x = x->data,
                  .w = c->in[1].data,
                  .b = rms ? NULL : c->in[2].data,
                  .mean = rms ? NULL : c->out[1].data,
                  .rstd = c->out[rms ? 1 : 2].data,
                  .y = c->out[0].data,
                  .y_dtype = c->out[0].dtype,
                  .eps = a->eps,
                  .rms = rms};
    j.rows = dt_norm_rows(x, a->normalized_shape.n, &j.n);
    j.ysize = (int64_t)dt_dtype_size(j.y_dtype);
    j.direct = j.y_dtype == x->dtype;
    dt_range_run(c->team, j.rows, j.n * 2, x->dtype == DT_float64 ? ln_range_f64 : ln_range_f32, &j);
    return DT_OK;
}

/* in: g, x, mean, rstd, w?   out: gx, gw, gb   (rms: in: g, x, rstd, w?  out: gx, gw) */
static dt_status backward(const dt_kctx *c, bool rms) {
    const dt_norm_attr *a = c->attr;
    const dt_view *x = &c->in[1];
    bool f64 = x->dtype == DT_float64;
    norm_job j = {.g = c->in[0].data,
                  .x = x->data,
                  .mean = rms ? NULL : c->in[2].data,
                  .rstd = c->in[rms ? 2 : 3].data,
                  .w = c->in[rms ? 3 : 4].data,
                  .y = c->out[0].data,
                  .gw = c->out[1].data,
                  .gb = rms ? NULL : c->out[2].data,
                  .part = c->scratch,
                  .y_dtype = c->out[0].dtype,
                  .g_dtype = c->out[1].dtype,
                  .rms = rms};
    j.rows = dt_norm_rows(x, a->normalized_shape.n, &j.n);
    j.block = dt_norm_block(j.rows);
    j.ysize = (int64_t)dt_dtype_size(j.y_dtype);
    j.gsize = (int64_t)dt_dtype_size(j.g_dtype);
    j.direct = j.y_dtype == x->dtype;
    int64_t blocks = (j.rows + j.block - 1) / j.block;
    dt_range_run(c->team, blocks, j.block * j.n * 4, f64 ? ln_back_range_f64 : ln_back_range_f32, &j);
    (f64 ? ln_fold_f64 : ln_fold_f32)(&j, blocks);
    return DT_OK;
}

dt_status DT_ISA_FN(layer_norm)(const dt_kctx *c) { return forward(c, false); }
dt_status DT_ISA_FN(rms_norm)(const dt_kctx *c) { return forward(c, true); }
dt_status DT_ISA_FN(layer_norm_backward)(const dt_kctx *c) { return backward(c, false); }
dt_status DT_ISA_FN(rms_norm_backward)(const dt_kctx *c) { return backward(c, true); }
