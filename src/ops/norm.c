/* Normalisations: layer_norm, rms_norm, batch_norm, group_norm, instance_norm.
 *
 * Layer and rms norm are primitives over the trailing dimensions: leading dimensions may be sharded, and the gradients of weight and
 * bias are then Partial sums. Where a normalised dimension is sharded they are composed of means: numbers a row move. Batch norm is composed of means, so that statistics of a sharded batch are those of the whole. */
#include <float.h>
#include <math.h>

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"
#include "ops/norm.h"

DT_CPU_KERNEL(layer_norm);
DT_CPU_KERNEL(layer_norm_backward);
DT_CPU_KERNEL(rms_norm);
DT_CPU_KERNEL(rms_norm_backward);
DT_CPU_KERNEL(stat_update);

/* ---- layer_norm, rms_norm --------------------------------------------------------------------------------------------------------- */
static dt_status check_shape(const dt_node *n, const dt_meta *x, const dt_meta *p, const char *name, const dt_ints *shape) {
    DT_STR(want, 128);
    DT_STR(have, 128);
    dt_shape_print(shape->n, shape->v, &want);
    if (p) {
        bool same = p->ndim == shape->n;
        for (int i = 0; same && i < shape->n; i++) same = p->shape[i] == shape->v[i];
        if (same) return DT_OK;
        dt_shape_print(p->ndim, p->shape, &have);
        return dt_fail(DT_E_SHAPE, "%s: Expected %s to be of same shape as normalized_shape, but got %s of shape %s and normalized_shape = %s",
                       dt_op_name(n->op), name, name, have.buf, want.buf);
    }
    bool fits = shape->n >= 1 && x->ndim >= shape->n;
    for (int i = 0; fits && i < shape->n; i++) fits = x->shape[x->ndim - shape->n + i] == shape->v[i];
    if (fits) return DT_OK;
    dt_shape_print(x->ndim, x->shape, &have);
    return dt_fail(DT_E_SHAPE, "%s: Given normalized_shape=%s, expected input with shape (*, %s, but got input of size %s", dt_op_name(n->op), want.buf,
                   want.buf + 1, have.buf);
}

static uint8_t work_dtype(int dtype) { return (uint8_t)(dtype == DT_float64 ? DT_float64 : DT_float32); }

/* out[0] like x; statistics over the normalized dimensions (kept as ones) in the working dtype. */
static dt_status norm_infer(dt_node *n) {
    const dt_norm_attr *a = n->attr;
    const dt_meta *x = n->in[0];
    int k = a->normalized_shape.n;
    if (!dt_dtype_is_float((dt_dtype)x->dtype))
        return dt_fail(DT_E_NOTIMPL, "%s: expected a floating point input, got %s", dt_op_name(n->op), dt_dtype_name((dt_dtype)x->dtype));
    DT_TRY(check_shape(n, x, NULL, "input", &a->normalized_shape));
    for (int i = 1; i < n->n_in; i++)
        if (n->in[i]) DT_TRY(check_shape(n, x, n->in[i], i == 1 ? "weight" : "bias", &a->normalized_shape));
    n->out[0] = dt_meta_type(x);
    for (int o = 1; o < n->n_out; o++) {
        n->out[o] = dt_meta_type(x);
        n->out[o].dtype = (dt_dtype)work_dtype(x->dtype);
        for (int i = 0; i < k; i++) n->out[o].shape[x->ndim - 1 - i] = 1;
    }
    for (int i = 0; i < n->n_in; i++) n->cast[i] = work_dtype(x->dtype);
    return DT_OK;
}
static dt_status norm_place(const dt_node *n, dt_rules *r) {
    const dt_norm_attr *a = n->attr;
    for (int d = 0; d < n->in[0]->ndim - a->normalized_shape.n; d++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(d);
        for (int i = 0; i < n->n_out; i++) out[i] = DT_S(d);
    }
    return DT_OK;
}
/* in: g, x, [mean], rstd, weight?   out: gx, gw, [gb] */
static dt_status norm_backward_infer(dt_node *n) {
    const dt_norm_attr *a = n->attr;
    const dt_meta *x = n->in[1], *w = n->in[n->n_in - 1];
    n->out[0] = dt_meta_type(x);
    for (int o = 1; o < n->n_out; o++) {
        n->out[o] = (dt_type){.dtype = (dt_dtype)(w ? w->dtype : x->dtype), .ndim = a->normalized_shape.n};
        for (int i = 0; i < a->normalized_shape.n; i++) n->out[o].shape[i] = a->normalized_shape.v[i];
    }
    for (int i = 0; i < n->n_in; i++) n->cast[i] = work_dtype(x->dtype);
    return DT_OK;
}
static dt_status norm_backward_place(const dt_node *n, dt_rules *r) {
    const dt_norm_attr *a = n->attr;
    for (int d = 0; d < n->in[1]->ndim - a->normalized_shape.n; d++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        for (int i = 0; i + 1 < n->n_in; i++) in[i] = DT_S(d);
        out[0] = DT_S(d);
        for (int i = 1; i < n->n_out; i++) out[i] = DT_P;
    }
    return DT_OK;
}
size_t dt_norm_scratch(const dt_kctx *c) {
    const dt_norm_attr *a = c->attr;
    int64_t n, rows = dt_norm_rows(&c->in[1], a->normalized_shape.n, &n), block = dt_norm_block(rows);
    return (size_t)((rows + block - 1) / block * 2 * n) * dt_dtype_size(c->in[1].dtype);
}

/* The same gradient in differentiable ops, for gradients of gradients. */
static void norm_grad_composed(dt_grad *g, bool rms) {
    const dt_norm_attr *a = dt_grad_attr(g);
    dt_scope *s = g->s;
    dt_tensor *x = dt_grad_in(g, 0), *w = dt_grad_in(g, 1), *gy = dt_grad_gy(g, 0);
    int nd = dt_grad_in_meta(g, 0)->ndim, k = a->normalized_shape.n;
    int64_t tail[DT_MAX_DIM], lead[DT_MAX_DIM];
    for (int i = 0; i < k; i++) tail[i] = nd - k + i;
    for (int i = 0; i < nd - k; i++) lead[i] = i;
    dt_dims t = {k, tail};
    dt_tensor *c = rms ? x : dt_sub(s, x, DT_V(dt_mean(s, x, t, true, DT_DTYPE_NONE)));
    dt_tensor *rstd = dt_rsqrt(s, dt_add(s, dt_mean(s, dt_mul(s, c, DT_V(c)), t, true, DT_DTYPE_NONE), a->eps));
    dt_tensor *xhat = dt_mul(s, c, DT_V(rstd)), *h = w ? dt_mul(s, gy, DT_V(w)) : gy, *hx = dt_mul(s, h, DT_V(xhat));
    dt_tensor *d = dt_sub(s, h, DT_V(dt_mul(s, xhat, DT_V(dt_mean(s, hx, t, true, DT_DTYPE_NONE)))));
    if (!rms) d = dt_sub(s, d, DT_V(dt_mean(s, h, t, true, DT_DTYPE_NONE)));
    dt_grad_set(g, 0, dt_mul(s, d, DT_V(rstd)));
    dt_tensor *gw = dt_mul(s, gy, DT_V(xhat));
    if (nd > k) gw = dt_sum(s, gw, (dt_dims){nd - k, lead}, false, DT_DTYPE_NONE);
    if (w) dt_grad_set(g, 1, gw);
    if (!rms && dt_grad_in_meta(g, 2)) dt_grad_set(g, 2, nd > k ? dt_sum(s, gy, (dt_dims){nd - k, lead}, false, DT_DTYPE_NONE) : gy);
}
static void layer_norm_grad(dt_grad *g) {
    if (dt_higher_order()) {
        norm_grad_composed(g, false);
        return;
    }
    const dt_norm_attr *a = dt_grad_attr(g);
    dt_tensor *out[3];
    dt_layer_norm_backward(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 0), dt_grad_out(g, 1), dt_grad_out(g, 2), dt_grad_in(g, 1),
                           (dt_dims){a->normalized_shape.n, a->normalized_shape.v}, out);
    dt_grad_set(g, 0, out[0]);
    if (dt_grad_in_meta(g, 1)) dt_grad_set(g, 1, out[1]);
    if (dt_grad_in_meta(g, 2)) dt_grad_set(g, 2, out[2]);
}
const dt_op dt_op_native_layer_norm = {
    .sig = "native_layer_norm(Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor output, Tensor "
           "mean, Tensor rstd)",
    .doc = "layer_norm with the mean and 1 / sqrt(var + eps) of each row.",
    .where = DT_FN,
    .attrs = DT_ATTRS(dt_norm_attr, DT_FIELD(dt_norm_attr, normalized_shape), DT_FIELD(dt_norm_attr, eps)),
    .flags = DT_F_STRIDED,
    .infer = norm_infer,
    .place = norm_place,
    .grad = layer_norm_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_OUT(1) | DT_SAVE_OUT(2),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_layer_norm, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_layer_norm_backward = {
    .sig = "layer_norm_backward(Tensor grad_output, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, int[] normalized_shape) -> "
           "(Tensor, Tensor, Tensor)",
    .doc = "The gradients of layer_norm in its input, weight and bias.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_norm_attr, DT_FIELD(dt_norm_attr, normalized_shape)),
    .flags = DT_F_STRIDED,
    .infer = norm_backward_infer,
    .place = norm_backward_place,
    .scratch = dt_norm_scratch,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_layer_norm_backward, DT_K_CONTIGUOUS}},
};
static dt_tensor *to_work(dt_scope *s, dt_tensor *t) {
    return t && (dt_dtype_of(t) == DT_float16 || dt_dtype_of(t) == DT_bfloat16) ? dt_to_dtype(s, t, DT_float32) : t;
}
/* ---- a sharded normalised dimension ---- */
static bool same_tail(const dt_tensor *t, int n, const int64_t *shape) {
    for (int i = 0; i < n; i++)
        if (dt_shape(t)[dt_ndim(t) - n + i] != shape[i]) return false;
    return true;
}
/* A float x of which a normalised dimension is sharded, and arguments that fit. Anything else, faults too, is the primitive's. */
static bool norm_cut(const dt_tensor *x, dt_dims shape, const dt_tensor *w, const dt_tensor *b) {
    const dt_tensor *both[2] = {w, b};
    int nd = dt_ndim(x), n = shape.n;
    if (n < 1 || n > nd || !same_tail(x, n, shape.v) || !dt_dtype_is_float((dt_dtype)dt_dtype_of(x)) || dt_numel(x) == 0) return false;
    for (int i = 0; i < 2; i++)
        if (both[i] && (dt_ndim(both[i]) != n || !same_tail(both[i], n, shape.v))) return false;
    for (int d = nd - n; d < nd; d++)
        if (dt_is_sharded(x, d)) return true;
    return false;
}
/* eps NaN: the working dtype's epsilon. */
static dt_tensor *norm_sharded(dt_scope *s, dt_tensor *x, int n, dt_tensor *w, dt_tensor *b, double eps, bool centre) {
    int64_t v[DT_MAX_DIM];
    int t = dt_dtype_of(x);
    for (int i = 0; i < n; i++) v[i] = i - n;
    dt_dims dims = {n, v};
    if (eps != eps) eps = t == DT_float64 ? DBL_EPSILON : FLT_EPSILON;
    x = to_work(s, x);
    if (centre) x = dt_sub(s, x, DT_V(dt_mean(s, x, dims, true, DT_DTYPE_NONE)));
    dt_tensor *y = dt_mul(s, x, DT_V(dt_rsqrt(s, dt_add(s, dt_mean(s, dt_mul(s, x, DT_V(x)), dims, true, DT_DTYPE_NONE), eps))));
    if (w) y = dt_mul(s, y, DT_V(to_work(s, w)));
    if (b) y = dt_add(s, y, DT_V(to_work(s, b)));
    return y && dt_dtype_of(y) != t ? dt_to_dtype(s, y, t) : y;
}

static void layer_norm_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[3], *x = dt_arg_get_tensor(a, 0), *w = dt_arg_get_tensor(a, 2), *b = dt_arg_get_tensor(a, 3);
    dt_dims shape = dt_arg_get_dims(a, 1);
    double eps = dt_arg_get_float(a, 4, 1e-5);
    if (norm_cut(x, shape, w, b))
        r[0] = norm_sharded(s, x, shape.n, w, b, eps, true);
    else
        dt_native_layer_norm(s, x, shape, w, b, eps, r);
    dt_compose_out(r[0], out, n_out);
}
const dt_op dt_op_layer_norm = {
    .sig = "layer_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool "
           "cudnn_enable=True) -> Tensor",
    .doc = "(x - mean) / sqrt(var + eps) * weight + bias over the trailing dimensions, which must have shape `normalized_shape`.",
    .where = DT_FN | DT_NN,
    .compose = layer_norm_compose,
};

static dt_status rms_infer(dt_node *n) {
    dt_norm_attr *a = n->attr;
    if (a->eps != a->eps) a->eps = n->in[0]->dtype == DT_float64 ? DBL_EPSILON : FLT_EPSILON;
    return norm_infer(n);
}
static void rms_norm_grad(dt_grad *g) {
    if (dt_higher_order()) {
        norm_grad_composed(g, true);
        return;
    }
    const dt_norm_attr *a = dt_grad_attr(g);
    dt_tensor *out[2];
    dt_rms_norm_backward(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 0), dt_grad_out(g, 1), dt_grad_in(g, 1), (dt_dims){a->normalized_shape.n, a->normalized_shape.v},
                         out);
    dt_grad_set(g, 0, out[0]);
    if (dt_grad_in_meta(g, 1)) dt_grad_set(g, 1, out[1]);
}
const dt_op dt_op_native_rms_norm = {
    .sig = "native_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor output, Tensor rstd)",
    .doc = "rms_norm with 1 / sqrt(mean(x^2) + eps) of each row.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_norm_attr, DT_FIELD(dt_norm_attr, normalized_shape), DT_FIELD(dt_norm_attr, eps)),
    .flags = DT_F_STRIDED,
    .infer = rms_infer,
    .place = norm_place,
    .grad = rms_norm_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_OUT(1),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_rms_norm, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_rms_norm_backward = {
    .sig = "rms_norm_backward(Tensor grad_output, Tensor input, Tensor rstd, Tensor? weight, int[] normalized_shape) -> (Tensor, Tensor)",
    .doc = "The gradients of rms_norm in its input and weight.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_norm_attr, DT_FIELD(dt_norm_attr, normalized_shape)),
    .flags = DT_F_STRIDED,
    .infer = norm_backward_infer,
    .place = norm_backward_place,
    .scratch = dt_norm_scratch,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_rms_norm_backward, DT_K_CONTIGUOUS}},
};
static void rms_norm_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2], *x = dt_arg_get_tensor(a, 0), *w = dt_arg_get_tensor(a, 2);
    dt_dims shape = dt_arg_get_dims(a, 1);
    double eps = dt_arg_get_float(a, 3, NAN);
    if (norm_cut(x, shape, w, NULL))
        r[0] = norm_sharded(s, x, shape.n, w, NULL, eps, false);
    else
        dt_native_rms_norm(s, x, shape, w, eps, r);
    dt_compose_out(r[0], out, n_out);
}
const dt_op dt_op_rms_norm = {
    .sig = "rms_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor",
    .doc = "x / sqrt(mean(x^2) + eps) * weight over the trailing dimensions; `eps` None: the machine epsilon of the working dtype.",
    .where = DT_FN | DT_NN,
    .compose = rms_norm_compose,
};

/* ---- batch_norm, instance_norm, group_norm ------------------------------------------------------------------------------------------ */
static dt_status stat_infer(dt_node *n) {
    n->cast[2] = DT_float64;
    return dt_infer_same(n);
}
static dt_status stat_place(const dt_node *n, dt_rules *r) { return dt_place_except(n, r, 0); }
const dt_op dt_op_stat_update = {
    .sig = "stat_update(Tensor! running, Tensor value, Scalar momentum) -> Tensor",
    .doc = "running = (1 - momentum) running + momentum value, in place: the running statistics of batch_norm.",
    .where = DT_HIDDEN,
    .infer = stat_infer,
    .place = stat_place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_stat_update, DT_K_CONTIGUOUS}},
};

/* (C) -> (1, C, 1 …) of nd dimensions */
static dt_tensor *channel(dt_scope *s, dt_tensor *t, int nd) {
    if (!t) return NULL;
    int64_t shape[DT_MAX_DIM];
    for (int i = 0; i < nd; i++) shape[i] = i == 1 ? -1 : 1;
    return dt_reshape(s, t, (dt_dims){nd, shape});
}
/* x normalized with mean and var (broadcastable) and scaled per channel. */
static dt_tensor *normalize(dt_scope *s, dt_tensor *centred, dt_tensor *var, dt_tensor *w, dt_tensor *b, double eps, int nd) {
    dt_tensor *y = dt_mul(s, centred, DT_V(dt_rsqrt(s, dt_add(s, var, eps))));
    if (w) y = dt_mul(s, y, DT_V(channel(s, w, nd)));
    if (b) y = dt_add(s, y, DT_V(channel(s, b, nd)));
    return y;
}
static void update(dt_scope *s, dt_tensor *running, dt_tensor *value, double momentum) {
    if (!running) return;
    bool on = dt_grad_mode_set(false);
    dt_tensor *v = dt_reshape(s, value, (dt_dims){1, dt_shape(running)});
    (void)dt_stat_update(s, running, v, momentum);
    dt_grad_mode_set(on);
}

/* Statistics over `dims` of x; the running ones take the unbiased variance. */
static dt_tensor *norm_by_stats(dt_scope *s, dt_tensor *x, dt_dims dims, bool average, const dt_args *a, double momentum, double eps) {
    int nd = dt_ndim(x), dtype = dt_dtype_of(x);
    dt_tensor *rm = dt_arg_get_tensor(a, 1), *rv = dt_arg_get_tensor(a, 2), *w = dt_arg_get_tensor(a, 3), *b = dt_arg_get_tensor(a, 4);
    double count = 1;
    for (int i = 0; i < dims.n; i++) count *= (double)dt_shape(x)[dims.v[i]];
    x = to_work(s, x);
    dt_tensor *mean = dt_mean(s, x, dims, true, DT_DTYPE_NONE), *c = dt_sub(s, x, DT_V(mean));
    dt_tensor *var = dt_mean(s, dt_mul(s, c, DT_V(c)), dims, true, DT_DTYPE_NONE);
    if (rm || rv) {
        bool on = dt_grad_mode_set(false);
        dt_tensor *m = mean, *v = dt_mul(s, var, count / (count > 1 ? count - 1 : 0));
        if (average) m = dt_mean(s, m, DT_DIMS(0), false, DT_DTYPE_NONE), v = dt_mean(s, v, DT_DIMS(0), false, DT_DTYPE_NONE);
        update(s, rm, m, momentum);
        update(s, rv, v, momentum);
        dt_grad_mode_set(on);
    }
    dt_tensor *y = normalize(s, c, var, to_work(s, w), to_work(s, b), eps, nd);
    return y && dt_dtype_of(y) != dtype ? dt_to_dtype(s, y, dtype) : y;
}
static dt_tensor *norm_by_running(dt_scope *s, const dt_args *a, double eps) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    int nd = dt_ndim(x), dtype = dt_dtype_of(x);
    x = to_work(s, x);
    dt_tensor *mean = channel(s, to_work(s, dt_arg_get_tensor(a, 1)), nd), *var = channel(s, to_work(s, dt_arg_get_tensor(a, 2)), nd);
    dt_tensor *y = normalize(s, dt_sub(s, x, DT_V(mean)), var, to_work(s, dt_arg_get_tensor(a, 3)), to_work(s, dt_arg_get_tensor(a, 4)), eps, nd);
    return y && dt_dtype_of(y) != dtype ? dt_to_dtype(s, y, dtype) : y;
}

static bool fail(dt_scope *s, dt_status st) {
    dt_scope_fail(s, st);
    return false;
}
static bool check_stats(dt_scope *s, const char *op, const dt_args *a, bool from_input) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    static const char *names[] = {"", "running_mean", "running_var", "weight", "bias"};
    if (dt_ndim(x) < 2) return fail(s, dt_fail(DT_E_SHAPE, "%s: expected an input of at least 2 dimensions (N, C, ...), got %d", op, dt_ndim(x)));
    int64_t channels = dt_shape(x)[1];
    for (int i = 1; i <= 4; i++) {
        dt_tensor *t = dt_arg_get_tensor(a, i);
        if (t && (dt_ndim(t) != 1 || dt_shape(t)[0] != channels))
            return fail(s, dt_fail(DT_E_SHAPE, "%s: %s should contain %lld elements, one per channel, not %lld", op, names[i], (long long)channels,
                                   (long long)dt_numel(t)));
        if (!t && i <= 2 && !from_input) return fail(s, dt_fail(DT_E_SHAPE, "%s: Expected %s to be defined in evaluation mode", op, names[i]));
    }
    return true;
}
static void batch_norm_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *y = NULL;
    bool training = dt_arg_get_bool(a, 5, false);
    double momentum = dt_arg_get_float(a, 6, 0.1), eps = dt_arg_get_float(a, 7, 1e-5);
    if (dt_numel(x) == 0 && dt_ndim(x) < 2)
        y = dt_mul(s, x, 1.0);
    else if (check_stats(s, "batch_norm", a, training)) {
        int64_t dims[DT_MAX_DIM] = {0};
        for (int i = 2; i < dt_ndim(x); i++) dims[i - 1] = i;
        if (training && dt_shape(x)[1] && dt_numel(x) / dt_shape(x)[1] == 1)
            dt_scope_fail(s, dt_fail(DT_E_VALUE, "Expected more than 1 value per channel when training, got %lld values for %lld channels",
                                     (long long)dt_numel(x), (long long)dt_shape(x)[1]));
        y = training ? norm_by_stats(s, x, (dt_dims){dt_ndim(x) - 1, dims}, false, a, momentum, eps) : norm_by_running(s, a, eps);
    }
    dt_compose_out(y, out, n_out);
}
const dt_op dt_op_batch_norm = {
    .sig = "batch_norm(Tensor input, Tensor? running_mean, Tensor? running_var, Tensor? weight=None, Tensor? bias=None, bool training=False, "
           "float momentum=0.1, float eps=1e-05, bool cudnn_enabled=True) -> Tensor",
    .doc = "Normalizes each channel (dimension 1) over all others: by the batch's statistics in training, which also move the running ones "
           "in place, "
           "by the running ones otherwise. A sharded batch gives the statistics of the whole.",
    .where = DT_FN | DT_NN,
    .compose = batch_norm_compose,
};

static void instance_norm_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *y = NULL;
    bool use_input = dt_arg_get_bool(a, 5, true);
    double momentum = dt_arg_get_float(a, 6, 0.1), eps = dt_arg_get_float(a, 7, 1e-5);
    if (check_stats(s, "instance_norm", a, use_input)) {
        int64_t dims[DT_MAX_DIM], nd = dt_ndim(x);
        for (int i = 2; i < nd; i++) dims[i - 2] = i;
        if (nd < 3 && use_input)
            dt_scope_fail(s, dt_fail(DT_E_SHAPE, "instance_norm: expected an input of at least 3 dimensions (N, C, L...), got %d", (int)nd));
        else
            y = use_input ? norm_by_stats(s, x, (dt_dims){(int)nd - 2, dims}, true, a, momentum, eps) : norm_by_running(s, a, eps);
    }
    dt_compose_out(y, out, n_out);
}
const dt_op dt_op_instance_norm = {
    .sig = "instance_norm(Tensor input, Tensor? running_mean=None, Tensor? running_var=None, Tensor? weight=None, Tensor? bias=None, "
           "bool use_input_stats=True, float momentum=0.1, float eps=1e-05) -> Tensor",
    .doc = "Normalizes each channel of each sample over the spatial dimensions; running statistics, if given, move by the batch's average.",
    .where = DT_FN | DT_NN,
    .compose = instance_norm_compose,
};

static void group_norm_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *w = dt_arg_get_tensor(a, 2), *b = dt_arg_get_tensor(a, 3);
    int64_t groups = dt_arg_get_int(a, 1, 1);
    int nd = dt_ndim(x);
    *n_out = 1;
    out[0] = NULL;
    if (nd < 2 || groups < 1 || dt_shape(x)[1] % groups) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE,
                                 "group_norm: Expected number of channels in input to be divisible by num_groups, but got %d dimensions, "
                                 "%lld channels and num_groups=%lld",
                                 nd, nd < 2 ? 0LL : (long long)dt_shape(x)[1], (long long)groups));
        return;
    }
    int64_t n = dt_shape(x)[0], per = n ? dt_numel(x) / (n * groups) : 0;
    dt_tensor *r[3], *y = dt_reshape(s, x, DT_DIMS(n, groups, per));
    dt_native_layer_norm(s, y, DT_DIMS(per), NULL, NULL, dt_arg_get_float(a, 4, 1e-5), r);
    y = dt_reshape(s, r[0], (dt_dims){nd, dt_shape(x)});
    if (w) y = dt_mul(s, y, DT_V(channel(s, w, nd)));
    if (b) y = dt_add(s, y, DT_V(channel(s, b, nd)));
    dt_compose_out(y, out, n_out);
}
const dt_op dt_op_group_norm = {
    .sig = "group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enabled=True) -> "
           "Tensor",
    .doc = "Normalizes groups of channels (dimension 1) of each sample, then scales and shifts per channel.",
    .where = DT_FN | DT_NN,
    .compose = group_norm_compose,
};
