/* Optimizer steps, in place: one pass over a parameter and its state. Numbers that change from step to step are run-time inputs.
 *
 * All operands of the parameter's shape are sharded alike; nothing else is legal, since the update is not linear.
 *
 * Operands are, in this order: the parameter, its gradient, the state's tensors, numbers; results: the parameter and the state's tensors. The
 * numbers come from Python (dtorch.optim), one tuple for all parameters that have taken as many steps. */
#include "ops/optim.h"
#include "dtorch_ops.h"
#include "ops/compose.h"

DT_CPU_KERNEL(adam_step);
DT_CPU_KERNEL(adam_step_amsgrad);
DT_CPU_KERNEL(sgd_step);
DT_CPU_KERNEL(sgd_step_momentum);
DT_CPU_KERNEL(adagrad_step);
DT_CPU_KERNEL(adadelta_step);
DT_CPU_KERNEL(adamax_step);
DT_CPU_KERNEL(nadam_step);
DT_CPU_KERNEL(radam_step);
DT_CPU_KERNEL(rmsprop_step);
DT_CPU_KERNEL(rmsprop_step_momentum);
DT_CPU_KERNEL(rmsprop_step_centered);
DT_CPU_KERNEL(rmsprop_step_centered_momentum);
DT_CPU_KERNEL(asgd_step);
DT_CPU_KERNEL(rprop_step);
DT_CPU_KERNEL(total);

/* Output k is like the k-th written input; every tensor has the parameter's shape; numbers become f64. */
static dt_status infer(dt_node *n) {
    const dt_op_info *info = dt_op_get_info(n->op);
    for (int i = 0, k = 0; i < n->n_in; i++) {
        const dt_meta *m = n->in[i];
        if (info->param[i].kind == DT_PK_SCALAR) {
            n->cast[i] = DT_float64;
            continue;
        }
        if (!dt_meta_same_shape(m, n->in[0])) {
            DT_STR(want, 96);
            DT_STR(have, 96);
            dt_shape_print(n->in[0]->ndim, n->in[0]->shape, &want);
            dt_shape_print(m->ndim, m->shape, &have);
            return dt_fail(DT_E_SHAPE, "%s: %s has shape %s, the parameter %s", dt_op_name(n->op), info->param[i].name, have.buf, want.buf);
        }
        if (!dt_dtype_is_float((dt_dtype)m->dtype))
            return dt_fail(DT_E_DTYPE, "%s: %s must be floating point, got %s", dt_op_name(n->op), info->param[i].name, dt_dtype_name((dt_dtype)m->dtype));
        if (info->param[i].written) n->out[k++] = dt_meta_type(m);
    }
    return DT_OK;
}
static dt_status place(const dt_node *n, dt_rules *r) {
    const dt_op_info *info = dt_op_get_info(n->op);
    for (int d = 0; d < n->in[0]->ndim; d++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        for (int i = 0; i < n->n_in; i++)
            if (info->param[i].kind != DT_PK_SCALAR) in[i] = DT_S(d);
        for (int i = 0; i < n->n_out; i++) out[i] = DT_S(d);
    }
    return DT_OK;
}

const dt_op dt_op_adam_update = {
    .sig = "adam_update(Tensor! param, Tensor grad, Tensor! exp_avg, Tensor! exp_avg_sq, Scalar lr, Scalar beta1, Scalar beta2, Scalar eps, "
           "Scalar weight_decay, Scalar bias_correction1, Scalar bias_correction2, bool decoupled=True, bool maximize=False) -> (Tensor, "
           "Tensor, Tensor)",
    .doc = "One step of Adam or AdamW without amsgrad, in place; see adam_step.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_optim_attr, DT_FIELD(dt_optim_attr, decoupled), DT_FIELD(dt_optim_attr, maximize)),
    .flags = DT_F_STRIDED,
    .infer = infer,
    .place = place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_adam_step, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_adam_update_amsgrad = {
    .sig = "adam_update_amsgrad(Tensor! param, Tensor grad, Tensor! exp_avg, Tensor! exp_avg_sq, Tensor! max_exp_avg_sq, Scalar lr, Scalar "
           "beta1, "
           "Scalar beta2, Scalar eps, Scalar weight_decay, Scalar bias_correction1, Scalar bias_correction2, bool decoupled=True, bool "
           "maximize=False) "
           "-> (Tensor, Tensor, Tensor, Tensor)",
    .doc = "One step of Adam or AdamW with amsgrad, in place; see adam_step.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_optim_attr, DT_FIELD(dt_optim_attr, decoupled), DT_FIELD(dt_optim_attr, maximize)),
    .flags = DT_F_STRIDED,
    .infer = infer,
    .place = place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_adam_step_amsgrad, DT_K_CONTIGUOUS}},
};
static void adam_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *p = dt_arg_get_tensor(a, 0), *g = dt_arg_get_tensor(a, 1), *m = dt_arg_get_tensor(a, 2), *v = dt_arg_get_tensor(a, 3);
    dt_tensor *x = dt_arg_get_tensor(a, 4), *r[4];
    dt_value k[7];
    for (int i = 0; i < 7; i++) k[i] = dt_arg_get_value(a, 5 + i);
    bool decoupled = dt_arg_get_bool(a, 12, true), maximize = dt_arg_get_bool(a, 13, false);
    if (x)
        dt_adam_update_amsgrad(s, p, g, m, v, x, k[0], k[1], k[2], k[3], k[4], k[5], k[6], decoupled, maximize, r);
    else
        dt_adam_update(s, p, g, m, v, k[0], k[1], k[2], k[3], k[4], k[5], k[6], decoupled, maximize, r);
    dt_compose_out(p, out, n_out);
}
const dt_op dt_op_adam_step = {
    .sig = "adam_step(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor? max_exp_avg_sq, Scalar lr, Scalar beta1, "
           "Scalar beta2, Scalar eps, "
           "Scalar weight_decay, Scalar bias_correction1, Scalar bias_correction2, bool decoupled=True, bool maximize=False) -> Tensor",
    .doc = "One step of Adam, in place. m += (1 - beta1) (g - m); v = beta2 v + (1 - beta2) g^2; p -= lr / bias_correction1 m / (sqrt(v / "
           "bias_correction2) + eps). "
           "Weight decay shrinks p by lr weight_decay (decoupled) or adds weight_decay p to g. With max_exp_avg_sq the largest v so far is "
           "used (amsgrad). "
           "bias_correction1 = 1 - beta1^t, bias_correction2 = 1 - beta2^t.",
    .where = DT_HIDDEN,
    .compose = adam_compose,
};

const dt_op dt_op_sgd_update = {
    .sig = "sgd_update(Tensor! param, Tensor grad, Scalar lr, Scalar weight_decay, bool maximize=False) -> Tensor",
    .doc = "One step of SGD without momentum, in place; see sgd_step.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_optim_attr, DT_FIELD(dt_optim_attr, maximize)),
    .flags = DT_F_STRIDED,
    .infer = infer,
    .place = place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_sgd_step, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_sgd_update_momentum = {
    .sig = "sgd_update_momentum(Tensor! param, Tensor grad, Tensor! momentum_buffer, Scalar lr, Scalar momentum, Scalar dampening, Scalar "
           "weight_decay, "
           "bool nesterov=False, bool maximize=False, bool first=False) -> (Tensor, Tensor)",
    .doc = "One step of SGD with momentum, in place; see sgd_step.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_optim_attr, DT_FIELD(dt_optim_attr, nesterov), DT_FIELD(dt_optim_attr, maximize), DT_FIELD(dt_optim_attr, first)),
    .flags = DT_F_STRIDED,
    .infer = infer,
    .place = place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_sgd_step_momentum, DT_K_CONTIGUOUS}},
};
static void sgd_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *p = dt_arg_get_tensor(a, 0), *g = dt_arg_get_tensor(a, 1), *b = dt_arg_get_tensor(a, 2), *r[2];
    dt_value lr = dt_arg_get_value(a, 3), decay = dt_arg_get_value(a, 6);
    bool maximize = dt_arg_get_bool(a, 8, false);
    if (b)
        dt_sgd_update_momentum(s, p, g, b, lr, dt_arg_get_value(a, 4), dt_arg_get_value(a, 5), decay, dt_arg_get_bool(a, 7, false), maximize,
                               dt_arg_get_bool(a, 9, false), r);
    else
        (void)dt_sgd_update(s, p, g, lr, decay, maximize);
    dt_compose_out(p, out, n_out);
}
const dt_op dt_op_sgd_step = {
    .sig = "sgd_step(Tensor param, Tensor grad, Tensor? momentum_buffer, Scalar lr, Scalar momentum, Scalar dampening, Scalar weight_decay, "
           "bool nesterov=False, bool maximize=False, bool first=False) -> Tensor",
    .doc = "One step of SGD, in place. d = g + weight_decay p; b = first ? d : momentum b + (1 - dampening) d; p -= lr (nesterov ? d + "
           "momentum b : b). "
           "Without a buffer p -= lr d.",
    .where = DT_HIDDEN,
    .compose = sgd_compose,
};

/* ---- steps that only dtorch.optim takes ------------------------------------------------------------------------------------------------ */
#define STEP(name, kernel, state, numbers, results, text)                                                          \
    const dt_op dt_op_##name = {                                                                                   \
        .sig = #name "(Tensor! param, Tensor grad, " state ", " numbers ", bool maximize=False) -> (" results ")", \
        .doc = text,                                                                                               \
        .where = DT_HIDDEN,                                                                                        \
        .attrs = DT_ATTRS(dt_optim_attr, DT_FIELD(dt_optim_attr, maximize)),                                       \
        .flags = DT_F_STRIDED,                                                                                     \
        .infer = infer,                                                                                            \
        .place = place,                                                                                            \
        .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_##kernel, DT_K_CONTIGUOUS}},                                        \
    }
#define DECAY "With L2 weight decay the gradient is d = g + weight_decay p (maximize: -g). "
#define SHRUNK DECAY "Before all, p *= shrink. "

STEP(adagrad_update, adagrad_step, "Tensor! sum", "Scalar weight_decay, Scalar rate, Scalar eps", "Tensor, Tensor",
     "One step of Adagrad, in place. " DECAY "s += d^2; p -= rate d / (sqrt(s) + eps). Duchi et al., 2011.");
STEP(adadelta_update, adadelta_step, "Tensor! square_avg, Tensor! acc_delta", "Scalar weight_decay, Scalar lr, Scalar rho, Scalar eps",
     "Tensor, Tensor, Tensor",
     "One step of Adadelta, in place. " DECAY
     "v = rho v + (1 - rho) d^2; x = sqrt(u + eps) / sqrt(v + eps) d; u = rho u + (1 - rho) x^2; p -= lr x. Zeiler, 2012.");
STEP(adamax_update, adamax_step, "Tensor! exp_avg, Tensor! exp_inf", "Scalar weight_decay, Scalar rate, Scalar beta1, Scalar beta2, Scalar eps",
     "Tensor, Tensor, Tensor",
     "One step of Adamax, in place. " DECAY "m = beta1 m + (1 - beta1) d; u = max(beta2 u, |d| + eps); p -= rate m / u. Kingma & Ba, 2015.");
STEP(nadam_update, nadam_step, "Tensor! exp_avg, Tensor! exp_avg_sq",
     "Scalar weight_decay, Scalar shrink, Scalar beta1, Scalar beta2, Scalar eps, Scalar bias_correction2, Scalar rate_grad, Scalar rate_avg",
     "Tensor, Tensor, Tensor",
     "One step of NAdam, in place. " SHRUNK "m = beta1 m + (1 - beta1) d; v = beta2 v + (1 - beta2) d^2; p -= (rate_grad d + rate_avg m) / (sqrt(v / "
     "bias_correction2) + eps), each quotient by itself. Dozat, 2016.");
STEP(radam_update, radam_step, "Tensor! exp_avg, Tensor! exp_avg_sq",
     "Scalar weight_decay, Scalar shrink, Scalar beta1, Scalar beta2, Scalar eps, Scalar rate, Scalar rectified", "Tensor, Tensor, Tensor",
     "One step of RAdam, in place. " SHRUNK "m = beta1 m + (1 - beta1) d; v = beta2 v + (1 - beta2) d^2; p -= rate m, divided by sqrt(v) + eps if rectified is "
     "not 0. Liu et al., 2020.");
#define RMSPROP \
    "One step of RMSprop, in place. " DECAY "v = alpha v + (1 - alpha) d^2; with grad_avg a = alpha a + (1 - alpha) d; x = d / (sqrt(v - a^2) + eps); "
STEP(rmsprop_update, rmsprop_step, "Tensor! square_avg", "Scalar weight_decay, Scalar lr, Scalar alpha, Scalar eps", "Tensor, Tensor", RMSPROP "p -= lr x.");
STEP(rmsprop_update_momentum, rmsprop_step_momentum, "Tensor! square_avg, Tensor! momentum_buffer",
     "Scalar weight_decay, Scalar lr, Scalar alpha, Scalar eps, Scalar momentum", "Tensor, Tensor, Tensor", RMSPROP "b = momentum b + x; p -= lr b.");
STEP(rmsprop_update_centered, rmsprop_step_centered, "Tensor! square_avg, Tensor! grad_avg", "Scalar weight_decay, Scalar lr, Scalar alpha, Scalar eps",
     "Tensor, Tensor, Tensor", RMSPROP "p -= lr x.");
STEP(rmsprop_update_centered_momentum, rmsprop_step_centered_momentum, "Tensor! square_avg, Tensor! grad_avg, Tensor! momentum_buffer",
     "Scalar weight_decay, Scalar lr, Scalar alpha, Scalar eps, Scalar momentum", "Tensor, Tensor, Tensor, Tensor", RMSPROP "b = momentum b + x; p -= lr b.");
STEP(asgd_update, asgd_step, "Tensor! ax", "Scalar weight_decay, Scalar shrink, Scalar eta, Scalar mu", "Tensor, Tensor",
     "One step of averaged gradient descent, in place. " DECAY "p = shrink p - eta d; ax += mu (p - ax), or ax = p if mu is 1. Polyak & Juditsky, 1992.");
STEP(
    rprop_update, rprop_step, "Tensor! prev, Tensor! step_size", "Scalar shorter, Scalar longer, Scalar lowest, Scalar highest", "Tensor, Tensor, Tensor",
    "One step of Rprop, in place. An element's step size is multiplied by `longer` if its gradient keeps the sign it had (prev), by `shorter` if that changes, "
    "when the gradient counts as 0; it stays within [lowest, highest]. p -= sign(g) step_size. Riedmiller & Braun, 1993.");

/* ---- one number for many gradients ------------------------------------------------------------------------------------------------------ */
static dt_status infer_total(dt_node *n) {
    if (n->n_in == 0) return dt_fail(DT_E_VALUE, "_total_power: expected a non-empty list of Tensors");
    dt_dtype t = dt_result_type(n, 0, n->n_in);
    for (int i = 0; i < n->n_in; i++) {
        if (!dt_dtype_is_float((dt_dtype)n->in[i]->dtype))
            return dt_fail(DT_E_DTYPE, "_total_power: tensor number %d must be floating point, got %s", i, dt_dtype_name((dt_dtype)n->in[i]->dtype));
        n->cast[i] = (uint8_t)t;
    }
    n->out[0] = (dt_type){.dtype = t == DT_float64 ? DT_float64 : DT_float32};
    return DT_OK;
}
/* All tensors lie alike: each device gives what its shards come to. */
static dt_status place_total(const dt_node *n, dt_rules *r) {
    dt_total_mode mode = dt_total_mode_of(((const dt_total_attr *)n->attr)->p);
    int dims = n->in[0]->ndim;
    for (int i = 1; i < n->n_in; i++) dims = n->in[i]->ndim < dims ? n->in[i]->ndim : dims;
    for (int d = 0; d < dims; d++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        for (int i = 0; i < n->n_in; i++) in[i] = DT_S(d);
        out[0] = DT_P_OF(mode == DT_TOTAL_MAX ? DT_MAX : mode == DT_TOTAL_MIN ? DT_MIN : DT_SUM);
    }
    return DT_OK;
}
static size_t scratch_total(const dt_kctx *c) {
    int64_t n = dt_total_chunks(c);
    return (size_t)n * sizeof(dt_total_chunk) + (size_t)(n + 1) * sizeof(int64_t);
}
const dt_op dt_op__total_power = {
    .sig = "_total_power(Tensor[] tensors, float p) -> Tensor",
    .doc = "The sum of |x|^p over all elements of all tensors, 0-dimensional, of at least 32 bits; the largest |x| for p = inf, the smallest for -inf.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_total_attr, DT_FIELD(dt_total_attr, p)),
    .flags = DT_F_STRIDED,
    .infer = infer_total,
    .place = place_total,
    .scratch = scratch_total,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_total, DT_K_CONTIGUOUS}},
};
