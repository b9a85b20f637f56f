/* Convolutions. conv.h tells the geometry and the three primitives; conv1d … conv_transpose3d and convolution are made of them.
 *
 * Placements: images shard through (the weight's gradient is then Partial); so do output channels, and input channels give Partial results,
 * unless there are groups. When channels do not mix (depthwise) they shard through. */
#include "ops/conv.h"

#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"

DT_CPU_KERNEL(conv);
DT_CPU_KERNEL(conv_input);
DT_CPU_KERNEL(conv_weight);

#define LL(x) ((long long)(x))

/* ---- inference ---- */
static dt_status same_dtype(const dt_node *n) {
    for (int i = 1; i < n->n_in; i++)
        if (n->in[i] && n->in[i]->dtype != n->in[0]->dtype)
            return dt_fail(DT_E_DTYPE, "convolution: input, weight and bias should have the same dtype, got %s and %s",
                           dt_dtype_name((dt_dtype)n->in[0]->dtype), dt_dtype_name((dt_dtype)n->in[i]->dtype));
    if (!dt_dtype_is_float((dt_dtype)n->in[0]->dtype))
        return dt_fail(DT_E_DTYPE, "convolution: not implemented for %s; expected a float dtype", dt_dtype_name((dt_dtype)n->in[0]->dtype));
    return DT_OK;
}

static int64_t pad_behind(const dt_conv_attr *a, int nd, int d) { return a->padding.n == 2 * nd ? a->padding.v[nd + d] : a->padding.v[d]; }

static dt_status check_attr(dt_conv_attr *a, int nd) {
    dt_ints *lists[3] = {&a->stride, &a->dilation, &a->padding};
    static const char *const names[] = {"stride", "dilation", "padding"};
    for (int i = 0; i < 3; i++) {
        dt_ints *l = lists[i];
        for (int d = 1; l->n == 1 && d < nd; d++) l->v[d] = l->v[0];
        if (l->n == 1) l->n = nd;
        if (l->n != nd && !(i == 2 && l->n == 2 * nd))
            return dt_fail(DT_E_SHAPE, "convolution: expected %s to be a single int or %d ints, got %d", names[i], nd, l->n);
        for (int d = 0; d < l->n; d++)
            if (l->v[d] < (i != 2))
                return dt_fail(DT_E_VALUE, "convolution: %s must be %s, got %lld", names[i], i == 2 ? "non-negative" : "positive", LL(l->v[d]));
    }
    if (a->groups < 1) return dt_fail(DT_E_VALUE, "convolution: groups must be positive, got %lld", LL(a->groups));
    return DT_OK;
}

static dt_status check_ranks(const dt_meta *x, const dt_meta *w) {
    if (w->ndim < 3 || w->ndim > 5) return dt_fail(DT_E_SHAPE, "convolution: expected a weight of 3 to 5 dimensions, got %d", w->ndim);
    if (x->ndim != w->ndim)
        return dt_fail(DT_E_SHAPE, "convolution: expected a %dD input (batch, channels, …) for a %dD weight, got %dD", w->ndim, w->ndim, x->ndim);
    return DT_OK;
}

static dt_status infer_conv(dt_node *n) {
    dt_conv_attr *a = n->attr;
    const dt_meta *x = n->in[0], *w = n->in[1], *b = n->in[2];
    DT_TRY(same_dtype(n));
    DT_TRY(check_ranks(x, w));
    int nd = x->ndim - 2;
    DT_TRY(check_attr(a, nd));
    if (w->shape[1] * a->groups != x->shape[1] || w->shape[0] % a->groups)
        return dt_fail(
            DT_E_SHAPE,
            "convolution: given groups=%lld and a weight of %lld output and %lld input channels a group, expected an input of %lld channels, got %lld",
            LL(a->groups), LL(w->shape[0]), LL(w->shape[1]), LL(w->shape[1] * a->groups), LL(x->shape[1]));
    if (b && (b->ndim != 1 || b->shape[0] != w->shape[0]))
        return dt_fail(DT_E_SHAPE, "convolution: expected a bias of shape (%lld,), got %dD of %lld elements", LL(w->shape[0]), b->ndim, LL(b->numel));
    dt_type *o = &n->out[0];
    *o = dt_meta_type(x);
    o->shape[1] = w->shape[0];
    for (int d = 0; d < nd; d++) {
        int64_t padded = x->shape[2 + d] + a->padding.v[d] + pad_behind(a, nd, d), reach = a->dilation.v[d] * (w->shape[2 + d] - 1) + 1;
        if (w->shape[2 + d] < 1) return dt_fail(DT_E_SHAPE, "convolution: kernel size must be positive, got %lld", LL(w->shape[2 + d]));
        if (padded < reach)
            return dt_fail(DT_E_SHAPE, "convolution: the kernel (%lld with dilation) is larger than the padded input (%lld) in dimension %d", LL(reach),
                           LL(padded), 2 + d);
        o->shape[2 + d] = (padded - reach) / a->stride.v[d] + 1;
    }
    return DT_OK;
}

static dt_status infer_conv_input(dt_node *n) { /* y, w -> x */
    dt_conv_attr *a = n->attr;
    const dt_meta *y = n->in[0], *w = n->in[1];
    DT_TRY(same_dtype(n));
    DT_TRY(check_ranks(y, w));
    int nd = y->ndim - 2;
    DT_TRY(check_attr(a, nd));
    if (y->shape[1] != w->shape[0] || w->shape[0] % a->groups)
        return dt_fail(DT_E_SHAPE, "convolution: given groups=%lld and a transposed weight of %lld input channels, got an input of %lld channels",
                       LL(a->groups), LL(w->shape[0]), LL(y->shape[1]));
    n->out[0] = dt_meta_type(y);
    n->out[0].shape[1] = w->shape[1] * a->groups;
    for (int d = 0; d < nd; d++) n->out[0].shape[2 + d] = a->size.v[d];
    return DT_OK;
}

static dt_status infer_conv_weight(dt_node *n) { /* x, y -> w */
    dt_conv_attr *a = n->attr;
    const dt_meta *x = n->in[0], *y = n->in[1];
    DT_TRY(same_dtype(n));
    int nd = x->ndim - 2;
    DT_TRY(check_attr(a, nd));
    n->out[0] = dt_meta_type(x);
    n->out[0].shape[0] = y->shape[1];
    n->out[0].shape[1] = x->shape[1] / a->groups;
    for (int d = 0; d < nd; d++) n->out[0].shape[2 + d] = a->size.v[d];
    return DT_OK;
}

/* ---- placement: the same table for all three, in terms of x, w, y ---- */
typedef struct roles {
    int x, w, y; /* the input's number, or -1: the output */
} roles;

static dt_status add_rule(dt_rules *r, roles ro, dt_placement x, dt_placement w, dt_placement y, dt_placement bias) {
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    const int at[3] = {ro.x, ro.w, ro.y};
    const dt_placement p[3] = {x, w, y};
    for (int i = 0; i < 3; i++) *(at[i] < 0 ? out : in + at[i]) = p[i];
    if (r->n_in > 2) in[2] = bias;
    return DT_OK;
}

static dt_status place_conv_roles(const dt_node *n, dt_rules *r, roles ro) {
    const dt_conv_attr *a = n->attr;
    bool bias = r->n_in > 2 && n->in[2];
    dt_placement s0 = DT_S(0), s1 = DT_S(1), none = DT_R, p = DT_P, y1 = bias ? DT_S(0) : DT_R, yp = bias ? DT_P : DT_R;
    int64_t channels = ro.x < 0 ? n->out[0].shape[1] : n->in[ro.x]->shape[1], outs = ro.y < 0 ? n->out[0].shape[1] : n->in[ro.y]->shape[1];
    DT_TRY(add_rule(r, ro, s0, ro.w < 0 ? p : none, s0, none)); /* images */
    if (a->groups == 1) {
        DT_TRY(add_rule(r, ro, ro.x < 0 ? p : none, s0, s1, y1));                   /* output channels */
        DT_TRY(add_rule(r, ro, s1, s1, ro.y < 0 ? p : none, ro.y < 0 ? yp : none)); /* input channels */
    } else if (a->groups == channels && a->groups == outs) {
        DT_TRY(add_rule(r, ro, s1, s0, s1, y1));
    }
    for (int i = 0; i < 2; i++) { /* linear in each operand */
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[i] = out[0] = DT_P;
        if (bias) in[2] = DT_P;
    }
    return DT_OK;
}
static dt_status place_conv(const dt_node *n, dt_rules *r) { return place_conv_roles(n, r, (roles){0, 1, -1}); }
static dt_status place_conv_input(const dt_node *n, dt_rules *r) { return place_conv_roles(n, r, (roles){-1, 1, 0}); }
static dt_status place_conv_weight(const dt_node *n, dt_rules *r) { return place_conv_roles(n, r, (roles){0, -1, 1}); }

/* ---- gradients ---- */
static dt_dims dims(const dt_ints *l) { return (dt_dims){l->n, l->v}; }
static dt_dims spatial(const dt_meta *m) { return (dt_dims){m->ndim - 2, m->shape + 2}; }

#define X_OF(y, w, size) dt_conv_input(g->s, y, w, size, dims(&a->stride), dims(&a->padding), dims(&a->dilation), a->groups)
#define W_OF(x, y, size) dt_conv_weight(g->s, x, y, size, dims(&a->stride), dims(&a->padding), dims(&a->dilation), a->groups)
#define Y_OF(x, w) dt_conv(g->s, x, w, NULL, dims(&a->stride), dims(&a->padding), dims(&a->dilation), a->groups)

static void grad_conv(dt_grad *g) {
    const dt_conv_attr *a = dt_grad_attr(g);
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, X_OF(gy, dt_grad_in(g, 1), spatial(dt_grad_in_meta(g, 0))));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, W_OF(dt_grad_in(g, 0), gy, spatial(dt_grad_in_meta(g, 1))));
    if (!dt_grad_needs(g, 2)) return;
    static const int64_t but_channels[] = {0, 2, 3, 4};
    dt_grad_set(g, 2, dt_sum(g->s, gy, ((dt_dims){dt_grad_in_meta(g, 0)->ndim - 1, but_channels}), false, DT_DTYPE_NONE));
}

static void grad_conv_input(dt_grad *g) { /* y, w -> x */
    const dt_conv_attr *a = dt_grad_attr(g);
    dt_tensor *gx = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) { /* conv could give a larger y: sizes that conv_transpose rounds away */
        dt_tensor *gy = Y_OF(gx, dt_grad_in(g, 1));
        const dt_meta *want = dt_grad_in_meta(g, 0);
        for (int d = 2; gy && d < want->ndim; d++)
            if (dt_shape(gy)[d] > want->shape[d]) gy = dt_narrow(g->s, gy, d, 0, want->shape[d]);
        dt_grad_set(g, 0, gy);
    }
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, W_OF(gx, dt_grad_in(g, 0), spatial(dt_grad_in_meta(g, 1))));
}

static void grad_conv_weight(dt_grad *g) { /* x, y -> w */
    const dt_conv_attr *a = dt_grad_attr(g);
    dt_tensor *gw = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, X_OF(dt_grad_in(g, 1), gw, spatial(dt_grad_in_meta(g, 0))));
    if (!dt_grad_needs(g, 1)) return;
    dt_tensor *gy = Y_OF(dt_grad_in(g, 0), gw);
    const dt_meta *want = dt_grad_in_meta(g, 1);
    for (int d = 2; gy && d < want->ndim; d++)
        if (dt_shape(gy)[d] > want->shape[d]) gy = dt_narrow(g->s, gy, d, 0, want->shape[d]);
    dt_grad_set(g, 1, gy);
}

static double flops_of(const dt_node *n, const int64_t *w, int nd, double images) { /* w: (O, C / groups, k…) */
    double f = 2 * images * (double)w[0] * (double)w[1];
    for (int d = 0; d < nd; d++) f *= (double)w[2 + d];
    (void)n;
    return f;
}
static double pixels(const int64_t *y, int nd) {
    double p = (double)y[0];
    for (int d = 0; d < nd; d++) p *= (double)y[2 + d];
    return p;
}
static double flops_conv(const dt_node *n) { return flops_of(n, n->in[1]->shape, n->in[0]->ndim - 2, pixels(n->out[0].shape, n->in[0]->ndim - 2)); }
static double flops_conv_input(const dt_node *n) { return flops_of(n, n->in[1]->shape, n->in[0]->ndim - 2, pixels(n->in[0]->shape, n->in[0]->ndim - 2)); }
static double flops_conv_weight(const dt_node *n) { return flops_of(n, n->out[0].shape, n->in[0]->ndim - 2, pixels(n->in[1]->shape, n->in[0]->ndim - 2)); }

static size_t scratch_wino(const dt_conv_geom *g, bool turned, bool weight) {
    dt_wino p = dt_wino_plan(g, turned, weight);
    return dt_wino_scratch(&p);
}
static size_t scratch_conv(const dt_kctx *c) {
    dt_conv_geom g = dt_conv_geometry(c->attr, &c->in[0], &c->in[1], &c->out[0]);
    return dt_wino_fits(&g, c->in[0].dtype) ? scratch_wino(&g, false, false) : 0;
}
static size_t scratch_conv_input(const dt_kctx *c) {
    dt_conv_geom g = dt_conv_geometry(c->attr, &c->out[0], &c->in[1], &c->in[0]);
    if (dt_wino_fits(&g, c->in[0].dtype)) return scratch_wino(&g, true, false);
    return (size_t)dt_view_numel(&c->in[1]) * (c->in[1].dtype == DT_float64 ? 8 : 4);
}

static size_t scratch_conv_weight(const dt_kctx *c) {
    dt_conv_geom g = dt_conv_geometry(c->attr, &c->in[0], &c->out[0], &c->in[1]);
    if (dt_wino_fits(&g, c->in[0].dtype)) return scratch_wino(&g, false, true);
    return (size_t)dt_conv_chunks(&g) * (size_t)dt_view_numel(&c->out[0]) * (c->in[0].dtype == DT_float64 ? 8 : 4);
}

#define CONV_FIELDS DT_FIELD(dt_conv_attr, stride), DT_FIELD(dt_conv_attr, padding), DT_FIELD(dt_conv_attr, dilation), DT_FIELD(dt_conv_attr, groups)

const dt_op dt_op_conv = {
    .sig = "conv(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups) -> Tensor",
    .doc = "Convolution of one to three spatial dimensions; padding may state the sizes before, then behind each dimension.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_conv_attr, CONV_FIELDS),
    .infer = infer_conv,
    .place = place_conv,
    .grad = grad_conv,
    .flags = DT_F_BILINEAR,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .scratch = scratch_conv,
    .flops = flops_conv,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_conv, DT_K_CONTIGUOUS, NULL}},
};

const dt_op dt_op_conv_input = {
    .sig = "conv_input(Tensor grad, Tensor weight, int[] size, int[] stride, int[] padding, int[] dilation, int groups) -> Tensor",
    .doc = "The transpose of conv in its input: spatial sizes `size`.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_conv_attr, DT_FIELD(dt_conv_attr, size), CONV_FIELDS),
    .infer = infer_conv_input,
    .place = place_conv_input,
    .grad = grad_conv_input,
    .flags = DT_F_BILINEAR,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .scratch = scratch_conv_input,
    .flops = flops_conv_input,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_conv_input, DT_K_CONTIGUOUS, NULL}},
};

const dt_op dt_op_conv_weight = {
    .sig = "conv_weight(Tensor input, Tensor grad, int[] size, int[] stride, int[] padding, int[] dilation, int groups) -> Tensor",
    .doc = "The gradient of conv's weight: kernel sizes `size`.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_conv_attr, DT_FIELD(dt_conv_attr, size), CONV_FIELDS),
    .infer = infer_conv_weight,
    .place = place_conv_weight,
    .grad = grad_conv_weight,
    .flags = DT_F_BILINEAR,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .scratch = scratch_conv_weight,
    .flops = flops_conv_weight,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_conv_weight, DT_K_CONTIGUOUS, NULL}},
};

/* ---- PyTorch's functions ---- */
typedef struct request {
    dt_tensor *x, *w, *bias;
    dt_ints stride, padding, dilation, output_padding;
    int64_t groups;
    const char *same; /* string padding, or NULL */
    bool transposed;
} request;

static dt_ints ints_of(const dt_args *a, int i, int nd, int64_t otherwise) {
    dt_dims d = dt_arg_get_dims(a, i);
    dt_ints r = {.n = nd};
    if (d.n > 1) r.n = d.n < DT_MAX_INTS ? d.n : DT_MAX_INTS;
    for (int j = 0; j < r.n; j++) r.v[j] = d.n <= 0 ? otherwise : d.n == 1 ? d.v[0] : d.v[j];
    return r;
}

/* 'same': half of what the kernel needs before, the rest behind. */
static void pad_same(request *q, int nd) {
    q->padding.n = 2 * nd;
    for (int d = 0; d < nd; d++) {
        int64_t total = q->dilation.v[d] * (dt_shape(q->w)[2 + d] - 1);
        q->padding.v[d] = total / 2;
        q->padding.v[nd + d] = total - total / 2;
    }
}

static dt_tensor *transposed(dt_scope *s, const request *q, dt_tensor *x, int nd) {
    int64_t size[3];
    for (int d = 0; d < nd; d++) {
        size[d] = (dt_shape(x)[2 + d] - 1) * q->stride.v[d] - 2 * q->padding.v[d] + q->dilation.v[d] * (dt_shape(q->w)[2 + d] - 1) + q->output_padding.v[d] + 1;
        if (q->output_padding.v[d] < 0 || (q->output_padding.v[d] >= q->stride.v[d] && q->output_padding.v[d] >= q->dilation.v[d])) {
            dt_scope_fail(s, dt_fail(DT_E_SHAPE, "output padding must be smaller than either stride or dilation, got %lld with stride %lld and dilation %lld",
                                     LL(q->output_padding.v[d]), LL(q->stride.v[d]), LL(q->dilation.v[d])));
            return NULL;
        }
        if (size[d] < 1) {
            dt_scope_fail(s, dt_fail(DT_E_SHAPE, "transposed convolution: the result would have size %lld in dimension %d", LL(size[d]), 2 + d));
            return NULL;
        }
    }
    dt_tensor *y = dt_conv_input(s, x, q->w, ((dt_dims){nd, size}), dims(&q->stride), dims(&q->padding), dims(&q->dilation), q->groups);
    if (!q->bias || !y) return y;
    if (dt_ndim(q->bias) != 1 || dt_numel(q->bias) != dt_shape(y)[1]) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "transposed convolution: expected a bias of shape (%lld,), got %dD of %lld elements", LL(dt_shape(y)[1]),
                                 dt_ndim(q->bias), LL(dt_numel(q->bias))));
        return NULL;
    }
    int64_t column[4] = {dt_shape(y)[1], 1, 1, 1};
    return dt_add(s, y, dt_reshape(s, q->bias, ((dt_dims){nd + 1, column})));
}

/* Run it; an input without batch dimension gets one and loses it again. */
static void run(dt_scope *s, request *q, int nd, dt_tensor **out, int *n_out) {
    *n_out = 1;
    int rank = dt_ndim(q->x);
    if (dt_ndim(q->w) != nd + 2 || (rank != nd + 1 && rank != nd + 2)) {
        dt_scope_fail(
            s, dt_fail(DT_E_SHAPE, "conv%dd: expected a %dD or %dD input and a %dD weight, got %dD and %dD", nd, nd + 1, nd + 2, nd + 2, rank, dt_ndim(q->w)));
        return;
    }
    dt_ints *lists[4] = {&q->stride, &q->dilation, &q->padding, &q->output_padding};
    for (int i = 0; i < 4; i++)
        if (lists[i]->n != nd) {
            dt_scope_fail(s, dt_fail(DT_E_SHAPE, "conv%dd: expected %d ints for stride, padding and dilation, got %d", nd, nd, lists[i]->n));
            return;
        }
    for (int d = 0; d < nd; d++)
        if (q->stride.v[d] < 1 || q->dilation.v[d] < 1 || q->padding.v[d] < 0 || q->groups < 1) {
            dt_scope_fail(s, dt_fail(DT_E_SHAPE,
                                     "conv%dd: stride, dilation and groups must be positive and padding not negative; got stride %lld, dilation %lld, "
                                     "padding %lld, groups %lld",
                                     nd, LL(q->stride.v[d]), LL(q->dilation.v[d]), LL(q->padding.v[d]), LL(q->groups)));
            return;
        }
    if (q->same && !strcmp(q->same, "same")) {
        for (int d = 0; d < nd; d++)
            if (q->stride.v[d] != 1) {
                dt_scope_fail(s, dt_fail(DT_E_SHAPE, "conv%dd: padding='same' is not supported for strided convolutions", nd));
                return;
            }
        pad_same(q, nd);
    } else if (q->same && strcmp(q->same, "valid")) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "conv%dd: padding must be 'same', 'valid' or ints, got '%s'", nd, q->same));
        return;
    }
    dt_tensor *x = rank == nd + 1 ? dt_unsqueeze(s, q->x, 0) : q->x;
    if (!x) return;
    dt_tensor *y = q->transposed ? transposed(s, q, x, nd) : dt_conv(s, x, q->w, q->bias, dims(&q->stride), dims(&q->padding), dims(&q->dilation), q->groups);
    if (y && rank == nd + 1) y = dt_squeeze(s, y, DT_DIMS(0));
    if (y) dt_compose_out(y, out, n_out);
}

static void forward(dt_scope *s, const dt_args *a, int nd, bool text, dt_tensor **out, int *n_out) {
    request q = {.x = dt_arg_get_tensor(a, 0), .w = dt_arg_get_tensor(a, 1), .bias = dt_arg_get_tensor(a, 2), .stride = ints_of(a, 3, nd, 1)};
    q.padding = text ? (dt_ints){.n = nd} : ints_of(a, 4, nd, 0);
    q.same = text ? dt_arg_get_str(a, 4, "valid") : NULL;
    q.dilation = ints_of(a, 5, nd, 1);
    q.output_padding = (dt_ints){.n = nd};
    q.groups = dt_arg_get_int(a, 6, 1);
    run(s, &q, nd, out, n_out);
}

static void backward(dt_scope *s, const dt_args *a, int nd, dt_tensor **out, int *n_out) {
    request q = {
        .x = dt_arg_get_tensor(a, 0), .w = dt_arg_get_tensor(a, 1), .bias = dt_arg_get_tensor(a, 2), .stride = ints_of(a, 3, nd, 1), .transposed = true};
    q.padding = ints_of(a, 4, nd, 0);
    q.output_padding = ints_of(a, 5, nd, 0);
    q.groups = dt_arg_get_int(a, 6, 1);
    q.dilation = ints_of(a, 7, nd, 1);
    run(s, &q, nd, out, n_out);
}

static void compose_convolution(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    request q = {.x = dt_arg_get_tensor(a, 0), .w = dt_arg_get_tensor(a, 1), .bias = dt_arg_get_tensor(a, 2)};
    int nd = dt_ndim(q.w) - 2;
    if (nd < 1 || nd > 3) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "convolution: expected a weight of 3 to 5 dimensions, got %d", nd + 2));
        return;
    }
    q.stride = ints_of(a, 3, nd, 1);
    q.padding = ints_of(a, 4, nd, 0);
    q.dilation = ints_of(a, 5, nd, 1);
    q.transposed = dt_arg_get_bool(a, 6, false);
    q.output_padding = ints_of(a, 7, nd, 0);
    q.groups = dt_arg_get_int(a, 8, 1);
    run(s, &q, nd, out, n_out);
}

#define COMPOSE(nd)                                                                                                                          \
    static void compose_conv##nd(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { forward(s, a, nd, false, out, n_out); }       \
    static void compose_conv##nd##_text(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { forward(s, a, nd, true, out, n_out); } \
    static void compose_conv_transpose##nd(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { backward(s, a, nd, out, n_out); }
COMPOSE(1)
COMPOSE(2)
COMPOSE(3)

const dt_op dt_op_convolution = {
    .sig = "convolution(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int "
           "groups) -> Tensor",
    .doc = "Convolution, or its transpose, of one to three spatial dimensions. input (N, C, …), weight (O, C / groups, k…) (transposed: (C, O / groups, k…)), "
           "bias (O,).",
    .where = DT_FN,
    .compose = compose_convolution,
};
#define CONV_DOC                                                                                                                                                   \
    "Convolution (as deep learning calls cross-correlation). input (N, C, size…) or (C, size…), weight (O, C / groups, kernel…), bias (O,) -> (N, O, …). " \
    "padding: ints, 'same' or 'valid'. RuntimeError if channels, groups or sizes do not fit."
#define TRANSPOSE_DOC                                                                                                                                     \
    "Transposed convolution: the gradient of a convolution in its input. input (N, C, size…) or (C, size…), weight (C, O / groups, kernel…), bias " \
    "(O,) -> (N, O, …). output_padding chooses among the sizes that a stride makes possible. RuntimeError if channels, groups or sizes do not fit."
const dt_op dt_op_conv1d = {
    .sig = "conv1d(Tensor input, Tensor weight, Tensor? bias=None, int[1] stride=1, int[1] padding=0, int[1] dilation=1, int groups=1) -> Tensor",
    .doc = CONV_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_conv1,
};
const dt_op dt_op_conv1d_padding = {
    .sig = "conv1d.padding(Tensor input, Tensor weight, Tensor? bias=None, int[1] stride=1, str padding='valid', int[1] dilation=1, int groups=1) -> Tensor",
    .doc = CONV_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_conv1_text,
};
const dt_op dt_op_conv2d = {
    .sig = "conv2d(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] dilation=1, int groups=1) -> Tensor",
    .doc = CONV_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_conv2,
};
const dt_op dt_op_conv2d_padding = {
    .sig = "conv2d.padding(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, str padding='valid', int[2] dilation=1, int groups=1) -> Tensor",
    .doc = CONV_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_conv2_text,
};
const dt_op dt_op_conv3d = {
    .sig = "conv3d(Tensor input, Tensor weight, Tensor? bias=None, int[3] stride=1, int[3] padding=0, int[3] dilation=1, int groups=1) -> Tensor",
    .doc = CONV_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_conv3,
};
const dt_op dt_op_conv3d_padding = {
    .sig = "conv3d.padding(Tensor input, Tensor weight, Tensor? bias=None, int[3] stride=1, str padding='valid', int[3] dilation=1, int groups=1) -> Tensor",
    .doc = CONV_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_conv3_text,
};
const dt_op dt_op_conv_transpose1d = {
    .sig = "conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=None, int[1] stride=1, int[1] padding=0, int[1] output_padding=0, int groups=1, "
           "int[1] dilation=1) -> Tensor",
    .doc = TRANSPOSE_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_conv_transpose1,
};
const dt_op dt_op_conv_transpose2d = {
    .sig = "conv_transpose2d(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] output_padding=0, int groups=1, "
           "int[2] dilation=1) -> Tensor",
    .doc = TRANSPOSE_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_conv_transpose2,
};
const dt_op dt_op_conv_transpose3d = {
    .sig = "conv_transpose3d(Tensor input, Tensor weight, Tensor? bias=None, int[3] stride=1, int[3] padding=0, int[3] output_padding=0, int groups=1, "
           "int[3] dilation=1) -> Tensor",
    .doc = TRANSPOSE_DOC,
    .where = DT_FN | DT_NN,
    .compose = compose_conv_transpose3,
};
