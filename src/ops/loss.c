/* Losses. The row operators (one loss a target) are primitives; means and sums over them are ordinary reductions.
 *
 * A weighted mean is sum(w l) / sum(w) over the whole: numerator and denominator are separate sums, so a sharded batch, uneven shards and
 * ignored targets give what one device gives. */
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"
#include "ops/loss.h"

DT_CPU_KERNEL(cross_entropy_rows);
DT_CPU_KERNEL(cross_entropy_rows_backward);
DT_CPU_KERNEL(nll_rows);
DT_CPU_KERNEL(nll_rows_backward);

/* ---- rows ------------------------------------------------------------------------------------------------------------------------- */
static uint8_t work_dtype(int dtype) { return (uint8_t)(dtype == DT_float64 ? DT_float64 : DT_float32); }

static dt_status check_rows(const dt_node *n, const dt_meta *x, const dt_meta *t, const dt_meta *w) {
    const char *op = dt_op_name(n->op);
    if (!dt_dtype_is_float((dt_dtype)x->dtype)) return dt_fail(DT_E_DTYPE, "%s: input must be floating point, got %s", op, dt_dtype_name((dt_dtype)x->dtype));
    if (!dt_dtype_is_int((dt_dtype)t->dtype))
        return dt_fail(DT_E_DTYPE, "%s: expected class indices of an integer dtype, got %s", op, dt_dtype_name((dt_dtype)t->dtype));
    if (x->ndim < 1) return dt_fail(DT_E_SHAPE, "%s: input must have a class dimension", op);
    bool same = t->ndim == x->ndim - 1;
    for (int i = 0; same && i < t->ndim; i++) same = t->shape[i] == x->shape[i ? i + 1 : 0];
    if (!same) {
        DT_STR(xs, 128);
        DT_STR(ts, 128);
        dt_shape_print(x->ndim, x->shape, &xs);
        dt_shape_print(t->ndim, t->shape, &ts);
        if (x->ndim > 1 && t->ndim && x->shape[0] != t->shape[0])
            return dt_fail(DT_E_VALUE, "Expected input batch_size (%lld) to match target batch_size (%lld).", (long long)x->shape[0], (long long)t->shape[0]);
        return dt_fail(DT_E_SHAPE, "%s: a target of shape %s does not fit an input of shape %s: expected (N, d...) for (N, C, d...)", op, ts.buf, xs.buf);
    }
    int64_t classes = x->shape[x->ndim > 1 ? 1 : 0];
    if (w && (w->ndim != 1 || w->shape[0] != classes))
        return dt_fail(DT_E_SHAPE, "weight tensor should be defined either for all %lld classes or no classes but got weight tensor of shape: [%lld]",
                       (long long)classes, (long long)w->numel);
    return DT_OK;
}

/* in: x, target, weight?   out: loss, row weight, [log-sum-exp] */
static dt_status rows_infer(dt_node *n) {
    const dt_meta *x = n->in[0], *t = n->in[1];
    DT_TRY(check_rows(n, x, t, n->in[2]));
    for (int o = 0; o < n->n_out; o++) {
        n->out[o] = dt_meta_type(t);
        n->out[o].dtype = (dt_dtype)(o ? work_dtype(x->dtype) : x->dtype);
    }
    n->cast[0] = n->cast[2] = work_dtype(x->dtype);
    n->cast[1] = DT_int64;
    return DT_OK;
}
/* The batch and the dimensions after the classes may be sharded. rows: shaped like the target; full: like the input. */
static dt_status rows_place_of(dt_rules *r, int ndim, const bool *in_full, const bool *in_rows, int n_in, const bool *out_full, int n_out) {
    for (int d = 0; d < ndim; d++) {
        if (ndim == 1 || d == 1) continue;
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        for (int i = 0; i < n_in; i++)
            if (in_full[i])
                in[i] = DT_S(d);
            else if (in_rows[i])
                in[i] = DT_S(d ? d - 1 : 0);
        for (int i = 0; i < n_out; i++) out[i] = DT_S(out_full[i] || !d ? d : d - 1);
    }
    return DT_OK;
}
static dt_status rows_place(const dt_node *n, dt_rules *r) {
    return rows_place_of(r, n->in[0]->ndim, (bool[]){true, false, false}, (bool[]){false, true, false}, 3, (bool[]){false, false, false}, n->n_out);
}

/* in: g, x, target, weight?, log-sum-exp   out: gx */
static dt_status ce_backward_infer(dt_node *n) {
    n->out[0] = dt_meta_type(n->in[1]);
    for (int i = 0; i < n->n_in; i++) n->cast[i] = i == 2 ? DT_int64 : work_dtype(n->in[1]->dtype);
    return DT_OK;
}
static dt_status ce_backward_place(const dt_node *n, dt_rules *r) {
    return rows_place_of(r, n->in[1]->ndim, (bool[]){false, true, false, false, false}, (bool[]){true, false, true, false, true}, 5, (bool[]){true}, 1);
}

static dt_dims shape_of(const dt_meta *m) { return (dt_dims){m->ndim, m->shape}; }

/* (N, d…) -> (N, 1, d…): beside the classes. */
static dt_tensor *beside(dt_scope *s, dt_tensor *rows, int ndim) { return dt_unsqueeze(s, rows, ndim > 1 ? 1 : 0); }

/* gx = (d + b W) softmax(x) - b w_c - d onehot;  d = g (1 - smooth) w_t, b = g smooth / C, W = sum w. In differentiable ops. */
static dt_tensor *ce_grad_composed(dt_grad *g, const dt_loss_attr *a) {
    dt_scope *s = g->s;
    const dt_meta *m = dt_grad_in_meta(g, 0);
    int nd = m->ndim, cd = nd > 1 ? 1 : 0;
    dt_tensor *x = dt_grad_in(g, 0), *t = dt_grad_in(g, 1), *w = dt_grad_in(g, 2), *gy = dt_grad_gy(g, 0);
    dt_tensor *keep = dt_mul(s, gy, 1 - a->label_smoothing), *d = dt_mul(s, keep, DT_V(dt_grad_out(g, 1)));
    dt_tensor *p = dt_softmax(s, x, cd, DT_DTYPE_NONE), *onehot = dt_nll_rows_backward(s, keep, t, w, shape_of(m), a->ignore_index);
    if (a->label_smoothing == 0) return dt_add(s, dt_mul(s, p, DT_V(beside(s, d, nd))), DT_V(onehot));
    dt_tensor *b = dt_mul(s, dt_mul(s, gy, DT_V(dt_ne(s, t, a->ignore_index))), a->label_smoothing / (double)m->shape[cd]);
    dt_tensor *bw = w ? dt_mul(s, b, DT_V(dt_sum(s, w, DT_NO_DIMS, false, DT_DTYPE_NONE))) : dt_mul(s, b, (double)m->shape[cd]);
    dt_tensor *gx = dt_add(s, dt_mul(s, p, DT_V(beside(s, dt_add(s, d, DT_V(bw)), nd))), DT_V(onehot)), *bb = beside(s, b, nd);
    if (w) {
        int64_t shape[DT_MAX_DIM];
        for (int i = 0; i < nd; i++) shape[i] = i == cd ? m->shape[cd] : 1;
        bb = dt_mul(s, bb, DT_V(dt_reshape(s, w, (dt_dims){nd, shape})));
    }
    return dt_sub(s, gx, DT_V(bb));
}
static void ce_grad(dt_grad *g) {
    const dt_loss_attr *a = dt_grad_attr(g);
    if (dt_higher_order())
        dt_grad_set(g, 0, ce_grad_composed(g, a));
    else
        dt_grad_set(g, 0,
                    dt_cross_entropy_rows_backward(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 0), dt_grad_in(g, 1), dt_grad_in(g, 2), dt_grad_out(g, 2),
                                                   a->ignore_index, a->label_smoothing));
}
static double ce_flops(const dt_node *n) { return 8.0 * (double)n->in[0]->numel; }

const dt_op dt_op_cross_entropy_rows = {
    .sig = "cross_entropy_rows(Tensor input, Tensor target, Tensor? weight, int ignore_index, float label_smoothing) -> (Tensor loss, "
           "Tensor row_weight, Tensor lse)",
    .doc = "Cross-entropy of each target: its loss, the weight its row counts with in a mean (0 if ignored), log-sum-exp over the classes.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_loss_attr, DT_FIELD(dt_loss_attr, ignore_index), DT_FIELD(dt_loss_attr, label_smoothing)),
    .flags = DT_F_STRIDED,
    .infer = rows_infer,
    .place = rows_place,
    .grad = ce_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2) | DT_SAVE_OUT(1) | DT_SAVE_OUT(2),
    .flops = ce_flops,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_cross_entropy_rows, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_cross_entropy_rows_backward = {
    .sig = "cross_entropy_rows_backward(Tensor grad_output, Tensor input, Tensor target, Tensor? weight, Tensor lse, int ignore_index, "
           "float label_smoothing) -> Tensor",
    .doc = "The gradient of cross_entropy_rows in its input: softmax minus one-hot, scaled by row.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_loss_attr, DT_FIELD(dt_loss_attr, ignore_index), DT_FIELD(dt_loss_attr, label_smoothing)),
    .flags = DT_F_STRIDED,
    .infer = ce_backward_infer,
    .place = ce_backward_place,
    .flops = ce_flops,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_cross_entropy_rows_backward, DT_K_CONTIGUOUS}},
};

/* The classes may be cut too: each device gives its targets' losses and 0 for the others. */
static dt_status nll_place(const dt_node *n, dt_rules *r) {
    DT_TRY(rows_place(n, r));
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    dt_rule_plain(r);
    in[0] = DT_S(n->in[0]->ndim > 1 ? 1 : 0);
    out[0] = DT_P;
    return DT_OK;
}
static void nll_grad(dt_grad *g) {
    const dt_loss_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_nll_rows_backward(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 1), dt_grad_in(g, 2), shape_of(dt_grad_in_meta(g, 0)), a->ignore_index));
}
const dt_op dt_op_nll_rows = {
    .sig = "nll_rows(Tensor input, Tensor target, Tensor? weight, int ignore_index) -> (Tensor loss, Tensor row_weight)",
    .doc = "Negative log likelihood of each target, -w_t x_t, and the weight its row counts with in a mean (0 if ignored).",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_loss_attr, DT_FIELD(dt_loss_attr, ignore_index)),
    .flags = DT_F_STRIDED,
    .infer = rows_infer,
    .place = nll_place,
    .grad = nll_grad,
    .saves = DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_nll_rows, DT_K_CONTIGUOUS}},
};
/* in: g, target, weight?   out: gx of the given shape */
static dt_status nll_backward_infer(dt_node *n) {
    const dt_loss_attr *a = n->attr;
    n->out[0] = (dt_type){.dtype = (dt_dtype)n->in[0]->dtype, .ndim = a->shape.n};
    for (int i = 0; i < a->shape.n; i++) n->out[0].shape[i] = a->shape.v[i];
    n->cast[0] = n->cast[2] = work_dtype(n->in[0]->dtype);
    n->cast[1] = DT_int64;
    return DT_OK;
}
static dt_status nll_backward_place(const dt_node *n, dt_rules *r) {
    int nd = n->out[0].ndim;
    DT_TRY(rows_place_of(r, nd, (bool[]){false, false, false}, (bool[]){true, true, false}, 3, (bool[]){true}, 1));
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    dt_rule_plain(r);
    out[0] = DT_S(nd > 1 ? 1 : 0);
    return DT_OK;
}
static void nll_backward_grad(dt_grad *g) { /* linear in g: its gradient picks -w_t gy_t */
    dt_tensor *out[2];
    dt_nll_rows(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 1), dt_grad_in(g, 2), ((const dt_loss_attr *)dt_grad_attr(g))->ignore_index, out);
    dt_grad_set(g, 0, out[0]);
}
const dt_op dt_op_nll_rows_backward = {
    .sig = "nll_rows_backward(Tensor grad_output, Tensor target, Tensor? weight, int[] shape, int ignore_index) -> Tensor",
    .doc = "The gradient of nll_rows in its input, of `shape`.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_loss_attr, DT_FIELD(dt_loss_attr, shape), DT_FIELD(dt_loss_attr, ignore_index)),
    .flags = DT_F_STRIDED,
    .infer = nll_backward_infer,
    .place = nll_backward_place,
    .grad = nll_backward_grad,
    .saves = DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_nll_rows_backward, DT_K_CONTIGUOUS}},
};

/* ---- reductions of losses ----------------------------------------------------------------------------------------------------------- */
/* `reduction`, after the deprecated size_average and reduce (arguments i and j) have had their say. NULL: illegal, the scope has the
 * error. */
static const char *reduction_of(dt_scope *s, const dt_args *a, int i, int j, int at) {
    const char *r = dt_arg_get_str(a, at, "mean");
    if (dt_arg_given(a, i) || dt_arg_given(a, j)) r = !dt_arg_get_bool(a, j, true) ? "none" : dt_arg_get_bool(a, i, true) ? "mean" : "sum";
    if (!strcmp(r, "none") || !strcmp(r, "mean") || !strcmp(r, "sum")) return r;
    dt_scope_fail(s, dt_fail(DT_E_VALUE, "%s is not a valid value for reduction: expected 'none', 'mean' or 'sum'", r));
    return NULL;
}
static dt_tensor *all_sum(dt_scope *s, dt_tensor *t) { return dt_sum(s, t, DT_NO_DIMS, false, DT_DTYPE_NONE); }
static dt_tensor *reduce(dt_scope *s, dt_tensor *loss, const char *r) {
    if (!r || r[0] == 'n') return r ? loss : NULL;
    return r[0] == 's' ? all_sum(s, loss) : dt_mean(s, loss, DT_NO_DIMS, false, DT_DTYPE_NONE);
}
/* rows and their weights */
static dt_tensor *reduce_weighted(dt_scope *s, dt_tensor *loss, dt_tensor *weight, const char *r) {
    if (!r || r[0] == 'n') return r ? loss : NULL;
    dt_tensor *sum = all_sum(s, loss);
    if (r[0] == 's') return sum;
    bool on = dt_grad_mode_set(false);
    dt_tensor *total = all_sum(s, weight);
    if (total && dt_dtype_of(total) != dt_dtype_of(loss)) total = dt_to_dtype(s, total, dt_dtype_of(loss));
    dt_grad_mode_set(on);
    return dt_div(s, sum, DT_V(total));
}

static void nll_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    dt_nll_rows(s, dt_arg_get_tensor(a, 0), dt_arg_get_tensor(a, 1), dt_arg_get_tensor(a, 2), dt_arg_get_int(a, 4, -100), r);
    dt_compose_out(reduce_weighted(s, r[0], r[1], reduction_of(s, a, 3, 5, 6)), out, n_out);
}
const dt_op dt_op_nll_loss = {
    .sig = "nll_loss(Tensor input, Tensor target, Tensor? weight=None, Value? size_average=None, int ignore_index=-100, Value? reduce=None, "
           "str reduction='mean') -> Tensor",
    .doc = "Negative log likelihood: input (N, C, d...) of log-probabilities (or (C)), target (N, d...) of class indices. The mean is "
           "weighted: "
           "sum(w l) / sum(w). Targets equal to `ignore_index` count nothing; others outside [0, C) raise IndexError when the value is read.",
    .where = DT_NN,
    .compose = nll_compose,
};

/* Targets that are probabilities. */
static dt_tensor *ce_probabilities(dt_scope *s, dt_tensor *x, dt_tensor *t, dt_tensor *w, double smooth, const char *r) {
    int nd = dt_ndim(x), cd = nd > 1 ? 1 : 0;
    int64_t classes = dt_shape(x)[cd], shape[DT_MAX_DIM];
    dt_tensor *lp = dt_log_softmax(s, x, cd, DT_DTYPE_NONE);
    if (smooth > 0) t = dt_add(s, dt_mul(s, t, 1 - smooth), smooth / (double)classes);
    if (w) {
        for (int i = 0; i < nd; i++) shape[i] = i == cd ? classes : 1;
        lp = dt_mul(s, lp, DT_V(dt_reshape(s, w, (dt_dims){nd, shape})));
    }
    dt_tensor *loss = dt_neg(s, dt_sum(s, dt_mul(s, lp, DT_V(t)), DT_DIMS(cd), false, DT_DTYPE_NONE));
    return r ? reduce(s, loss, r) : NULL;
}
/* Class indices, and the classes cut over devices (a vocabulary-parallel head): log-sum-exp is two small reductions, the picked logits are
 * a Partial sum, and nothing is gathered, forward or backward. The smoothed part is (s / C) sum over c of w_c (lse - x_c).
 * out: loss and weight of each row. */
static void ce_sharded(dt_scope *s, dt_tensor *x, dt_tensor *t, dt_tensor *w, int64_t ignore, double smooth, dt_tensor **out) {
    int nd = dt_ndim(x), cd = nd > 1 ? 1 : 0;
    int64_t classes = dt_shape(x)[cd], shape[DT_MAX_DIM];
    dt_tensor *lse = dt_logsumexp(s, x, DT_DIMS(cd), false);
    dt_nll_rows(s, x, t, w, ignore, out);
    out[0] = dt_add(s, out[0], DT_V(dt_mul(s, lse, DT_V(out[1]))));
    if (smooth == 0) return;
    for (int i = 0; i < nd; i++) shape[i] = i == cd ? classes : 1;
    dt_tensor *wx = w ? dt_mul(s, x, DT_V(dt_reshape(s, w, (dt_dims){nd, shape}))) : x;
    wx = dt_sum(s, wx, DT_DIMS(cd), false, DT_DTYPE_NONE);
    dt_tensor *all = w ? dt_mul(s, lse, DT_V(all_sum(s, w))) : dt_mul(s, lse, (double)classes);
    dt_tensor *rest = dt_mul(s, dt_sub(s, all, DT_V(wx)), DT_V(dt_ne(s, t, ignore)));
    out[0] = dt_add(s, dt_mul(s, out[0], 1 - smooth), DT_V(dt_mul(s, rest, smooth / (double)classes)));
}
static void cross_entropy_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *t = dt_arg_get_tensor(a, 1), *w = dt_arg_get_tensor(a, 2), *y[3] = {0};
    const char *r = reduction_of(s, a, 3, 5, 6);
    double smooth = dt_arg_get_float(a, 7, 0);
    if (smooth < 0 || smooth > 1) dt_scope_fail(s, dt_fail(DT_E_SHAPE, "label_smoothing must be between 0.0 and 1.0. Got: %g", smooth));
    bool same = dt_ndim(x) == dt_ndim(t) && dt_ndim(x) > 0;
    for (int i = 0; same && i < dt_ndim(x); i++) same = dt_shape(x)[i] == dt_shape(t)[i];
    if (same && dt_dtype_is_float((dt_dtype)dt_dtype_of(t))) {
        dt_compose_out(ce_probabilities(s, x, t, w, smooth, r), out, n_out);
        return;
    }
    int64_t ignore = dt_arg_get_int(a, 4, -100);
    if (dt_is_sharded(x, dt_ndim(x) > 1 ? 1 : 0))
        ce_sharded(s, x, t, w, ignore, smooth, y);
    else
        dt_cross_entropy_rows(s, x, t, w, ignore, smooth, y);
    dt_compose_out(reduce_weighted(s, y[0], y[1], r), out, n_out);
}
const dt_op dt_op_cross_entropy = {
    .sig = "cross_entropy(Tensor input, Tensor target, Tensor? weight=None, Value? size_average=None, int ignore_index=-100, Value? "
           "reduce=None, "
           "str reduction='mean', float label_smoothing=0.0) -> Tensor",
    .doc = "Cross-entropy of logits: input (N, C, d...) or (C); target: class indices (N, d...) or probabilities shaped like the input. "
           "The mean over "
           "class indices is weighted, sum(w l) / sum(w); targets equal to `ignore_index` count nothing, others outside [0, C) raise "
           "IndexError when the value is read.",
    .where = DT_NN,
    .compose = cross_entropy_compose,
};
