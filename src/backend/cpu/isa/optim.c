/* Optimizer steps: one pass over memory for each parameter, in place (outputs may be the written inputs themselves). ops/optim.c has the formulas.
 *
 * Run-time numbers (learning rate, bias corrections …) are 0-dim f64 operands. 16-bit tensors are worked on in f32, block by block, and rounded
 * once. Every element is computed alone, so neither blocks nor tasks nor shards change a bit: also products and sums are rounded one by one, since a
 * compiler may contract them in a loop's vectors and not in what is left over. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include "ops/optim.h"
#include "backend/cpu/isa/lanes.h"

enum { STATES = 3, NUMBERS = 8 };

typedef struct opt_job {
    void (*block)(const struct opt_job *j, int64_t i, int64_t n);
    dt_optim_attr how;
    int n;                      /* tensors: parameter, gradient, states */
    dt_dtype dtype[2 + STATES]; /* of those; results have those of what they replace */
    const char *in[2 + STATES];
    char *out[1 + STATES];
    double k[NUMBERS];
} opt_job;

typedef void (*block_fn)(const opt_job *j, int64_t i, int64_t n);

#define T float
#define S f32
#define SQRT sqrtf
#define FABS fabsf
#define DTYPE DT_float32
#include "backend/cpu/isa/optim_t.h"
#define T double
#define S f64
#define SQRT sqrt
#define FABS fabs
#define DTYPE DT_float64
#include "backend/cpu/isa/optim_t.h"

static void blocks(void *arg, int64_t lo, int64_t hi) {
    const opt_job *j = arg;
    for (int64_t i = lo; i < hi; i += DT_BLOCK) j->block(j, i, hi - i < DT_BLOCK ? hi - i : DT_BLOCK);
}

static dt_status step(const dt_kctx *c, block_fn f32, block_fn f64) {
    opt_job j = {.block = c->in[0].dtype == DT_float64 ? f64 : f32, .how = *(const dt_optim_attr *)c->attr, .n = c->n_out + 1};
    for (int i = 0; i < j.n; i++) {
        j.dtype[i] = c->in[i].dtype;
        j.in[i] = c->in[i].data;
    }
    for (int i = 0; i < c->n_out; i++) j.out[i] = c->out[i].data;
    for (int i = j.n; i < c->n_in; i++) j.k[i - j.n] = dt_view_f64(&c->in[i]);
    dt_range_run(c->team, dt_view_numel(&c->in[0]), 1, blocks, &j);
    return DT_OK;
}

#define STEP(name) \
    dt_status DT_ISA_FN(name)(const dt_kctx *c) { return step(c, name##_f32, name##_f64); }
STEP(adam_step)
STEP(adam_step_amsgrad)
STEP(sgd_step)
STEP(sgd_step_momentum)
STEP(adagrad_step)
STEP(adadelta_step)
STEP(adamax_step)
STEP(nadam_step)
STEP(radam_step)
STEP(rmsprop_step)
STEP(rmsprop_step_momentum)
STEP(rmsprop_step_centered)
STEP(rmsprop_step_centered_momentum)
STEP(asgd_step)
STEP(rprop_step)

/* running = (1 - momentum) running + momentum value.  in: running, value, momentum */
dt_status DT_ISA_FN(stat_update)(const dt_kctx *c) {
    double k = dt_view_f64(&c->in[2]), a[DT_BLOCK], b[DT_BLOCK];
    const dt_view *r = &c->in[0], *v = &c->in[1], *o = &c->out[0];
    int64_t total = dt_view_numel(r), rs = (int64_t)dt_dtype_size(r->dtype), vs = (int64_t)dt_dtype_size(v->dtype);
    for (int64_t i = 0; i < total; i += DT_BLOCK) {
        int64_t n = total - i < DT_BLOCK ? total - i : DT_BLOCK;
        dt_load_f64(a, (char *)r->data + i * rs, r->dtype, 1, n);
        dt_load_f64(b, (char *)v->data + i * vs, v->dtype, 1, n);
        for (int64_t q = 0; q < n; q++) a[q] = (1 - k) * a[q] + k * b[q];
        dt_store_f64((char *)o->data + i * rs, o->dtype, a, n);
    }
    return DT_OK;
}
