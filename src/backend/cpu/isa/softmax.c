/* softmax, log_softmax and their gradients along one dimension of contiguous tensors.
 *
 * y = exp(x - max x) / sum exp(x - max x).  A row (the last dimension) is read three times while it lies in the cache; other dimensions
 * go by blocks of columns. infer asks for f32 inputs where they are 16 bits wide; the result is rounded once. */
#include "backend/cpu/isa/lanes.h"
#include "ops/reduce.h"

typedef struct sm_job {
    dt_rows r;
    bool log, direct; /* direct: the output has the working type */
    dt_dtype out_dtype;
    int64_t osize, per; /* per: blocks of columns an outer index has */
    const void *a, *b;
    char *out;
} sm_job;

#define T float
#define S f32
#define VEXP dt_lane_expf
#define VLOG logf
#include "backend/cpu/isa/softmax_t.h"
#define T double
#define S f64
#define VEXP dt_lane_exp
#define VLOG log
#include "backend/cpu/isa/softmax_t.h"

static dt_status run(const dt_kctx *c, bool log, bool back) {
    const dt_dim_attr *a = c->attr;
    sm_job j = {.r = dt_rows_of(&c->in[0], a->dim),
                .log = log,
                .out_dtype = c->out->dtype,
                .direct = c->out->dtype == c->in[0].dtype,
                .osize = (int64_t)dt_dtype_size(c->out->dtype),
                .a = c->in[0].data,
                .b = back ? c->in[1].data : NULL,
                .out = c->out->data};
    if (j.r.n == 0) return DT_OK;
    j.per = (j.r.inner + DT_BLOCK - 1) / DT_BLOCK;
    bool f64 = c->in[0].dtype == DT_float64;
    dt_range_fn fn = back ? (f64 ? back_range_f64 : back_range_f32) : (f64 ? softmax_range_f64 : softmax_range_f32);
    int64_t units = j.r.inner == 1 ? j.r.outer : j.r.outer * j.per;
    dt_range_run(c->team, units, j.r.n * (j.r.inner < DT_BLOCK ? j.r.inner : DT_BLOCK) * 2, fn, &j);
    return DT_OK;
}

dt_status DT_ISA_FN(softmax)(const dt_kctx *c) { return run(c, false, false); }
dt_status DT_ISA_FN(log_softmax)(const dt_kctx *c) { return run(c, true, false); }
dt_status DT_ISA_FN(softmax_backward)(const dt_kctx *c) { return run(c, false, true); }
dt_status DT_ISA_FN(log_softmax_backward)(const dt_kctx *c) { return run(c, true, true); }
