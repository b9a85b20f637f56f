/* Optimizer steps: one pass over memory for each parameter, in place (outputs may be the written inputs themselves).
 *
 * The formulas are PyTorch's single-tensor ones. Run-time numbers (learning rate, bias corrections …) are 0-dim f64 operands. 16-bit
 * tensors are worked on in f32, block by block. */
#include "backend/cpu/isa/lanes.h"
#include "ops/loss.h"

typedef struct opt_job {
    const dt_kctx *c;
    double lr, beta1, beta2, eps, weight_decay, bias1, bias2, momentum, dampening;
    bool decoupled, maximize, amsgrad, nesterov, first, buffer, f64, sgd;
} opt_job;

#define T float
#define S f32
#define SQRT sqrtf
#define DTYPE DT_float32
#include "backend/cpu/isa/optim_t.h"
#define T double
#define S f64
#define SQRT sqrt
#define DTYPE DT_float64
#include "backend/cpu/isa/optim_t.h"

static void blocks(void *arg, int64_t lo, int64_t hi) {
    const opt_job *j = arg;
    for (int64_t i = lo; i < hi; i += DT_BLOCK) {
        int64_t n = hi - i < DT_BLOCK ? hi - i : DT_BLOCK;
        if (j->sgd)
            (j->f64 ? sgd_block_f64 : sgd_block_f32)(j, i, n);
        else
            (j->f64 ? adam_block_f64 : adam_block_f32)(j, i, n);
    }
}

/* in: param, grad, exp_avg, exp_avg_sq, [max_exp_avg_sq], lr, beta1, beta2, eps, weight_decay, bias_correction1, bias_correction2 */
static dt_status adam(const dt_kctx *c, bool amsgrad) {
    const dt_adam_attr *a = c->attr;
    const dt_view *s = &c->in[amsgrad ? 5 : 4];
    opt_job j = {.c = c, .decoupled = a->decoupled, .maximize = a->maximize, .amsgrad = amsgrad, .f64 = c->in[0].dtype == DT_float64};
    j.lr = dt_view_f64(&s[0]), j.beta1 = dt_view_f64(&s[1]), j.beta2 = dt_view_f64(&s[2]), j.eps = dt_view_f64(&s[3]);
    j.weight_decay = dt_view_f64(&s[4]), j.bias1 = dt_view_f64(&s[5]), j.bias2 = dt_view_f64(&s[6]);
    dt_range_run(c->team, dt_view_numel(&c->in[0]), 1, blocks, &j);
    return DT_OK;
}

/* in: param, grad, [momentum_buffer], lr, [momentum, dampening], weight_decay */
static dt_status sgd(const dt_kctx *c, bool buffer) {
    const dt_sgd_attr *a = c->attr;
    opt_job j = {
        .c = c, .sgd = true, .buffer = buffer, .maximize = a->maximize, .nesterov = a->nesterov, .first = a->first, .f64 = c->in[0].dtype == DT_float64};
    const dt_view *s = &c->in[buffer ? 3 : 2];
    j.lr = dt_view_f64(&s[0]);
    if (buffer) j.momentum = dt_view_f64(&s[1]), j.dampening = dt_view_f64(&s[2]);
    j.weight_decay = dt_view_f64(&s[buffer ? 3 : 1]);
    dt_range_run(c->team, dt_view_numel(&c->in[0]), 1, blocks, &j);
    return DT_OK;
}

dt_status DT_ISA_FN(adam_step)(const dt_kctx *c) { return adam(c, false); }
dt_status DT_ISA_FN(adam_step_amsgrad)(const dt_kctx *c) { return adam(c, true); }
dt_status DT_ISA_FN(sgd_step)(const dt_kctx *c) { return sgd(c, false); }
dt_status DT_ISA_FN(sgd_step_momentum)(const dt_kctx *c) { return sgd(c, true); }

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
