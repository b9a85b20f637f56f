/* Resampling, patches, and pixels to channels and back.
 *
 *   resample(x, size, mode, …), resample_backward   linear in x and each other's gradient (hidden); interpolate's Python side chooses sizes
 *   im2col, col2im                                  patches as columns, and their sum back: each other's gradient; unfold and fold
 *   pixel_shuffle, pixel_unshuffle                  reshapes and a permutation
 *
 * Images and channels shard through, and as all are linear, so does Partial. */
#include "ops/resample.h"

#include <math.h>
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"

DT_CPU_KERNEL(resample);
DT_CPU_KERNEL(resample_backward);
DT_CPU_KERNEL(im2col);
DT_CPU_KERNEL(col2im);

#define LL(x) ((long long)(x))

static dt_status place_linear(const dt_node *n, dt_rules *r, uint32_t except) {
    static const dt_reduce kinds[] = {DT_SUM, DT_AVG};
    dt_placement *in, *out;
    for (int d = 0; d < 2; d++) {
        if (except >> d & 1) continue;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_S(d);
    }
    for (int i = 0; i < 2; i++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_P_OF(kinds[i]);
    }
    (void)n;
    return DT_OK;
}
static dt_status place_resample(const dt_node *n, dt_rules *r) { return place_linear(n, r, 0); }
static dt_status place_patches(const dt_node *n, dt_rules *r) { return place_linear(n, r, 2); } /* channels and taps share a dimension */

/* ---- resample ---- */
static dt_status infer_resample(dt_node *n) {
    dt_resample_attr *a = n->attr;
    const dt_meta *x = n->in[0];
    if (x->ndim < 3 || x->ndim > 5 || a->size.n != x->ndim - 2)
        return dt_fail(DT_E_SHAPE, "interpolate: expected (N, C, size…) and %d sizes, got %d dimensions and %d sizes", x->ndim - 2, x->ndim, a->size.n);
    if (!dt_dtype_is_float((dt_dtype)x->dtype))
        return dt_fail(DT_E_DTYPE, "interpolate: not implemented for %s; expected a float dtype", dt_dtype_name((dt_dtype)x->dtype));
    static const char *const modes[] = {"nearest", "nearest-exact", "linear", "cubic"};
    bool known = false;
    for (int i = 0; i < 4; i++) known |= !strcmp(a->mode, modes[i]);
    if (!known) return dt_fail(DT_E_NOTIMPL, "interpolate: mode must be nearest, nearest-exact, linear or cubic, got '%s'", a->mode);
    n->out[0] = dt_meta_type(x);
    for (int d = 2; d < x->ndim; d++) {
        if (a->size.v[d - 2] < 1 || x->shape[d] < 1)
            return dt_fail(DT_E_SHAPE, "interpolate: sizes should be greater than 0, got %lld to %lld", LL(x->shape[d]), LL(a->size.v[d - 2]));
        n->out[0].shape[d] = a->size.v[d - 2];
    }
    return DT_OK;
}

static dt_dims spatial(const dt_meta *m) { return (dt_dims){m->ndim - 2, m->shape + 2}; }
static void grad_resample(dt_grad *g) {
    const dt_resample_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_resample_backward(g->s, dt_grad_gy(g, 0), spatial(dt_grad_in_meta(g, 0)), a->mode, a->align_corners, a->scale0, a->scale1, a->scale2));
}
static void grad_resample_backward(dt_grad *g) {
    const dt_resample_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_resample(g->s, dt_grad_gy(g, 0), spatial(dt_grad_in_meta(g, 0)), a->mode, a->align_corners, a->scale0, a->scale1, a->scale2));
}
static size_t sums(const dt_view *v) { return dt_dtype_size(v->dtype) == 2 ? (size_t)dt_view_numel(v) * 4 : 0; }
static size_t scratch_resample(const dt_kctx *c) { return dt_resample_tables(c->out[0].shape, c->out[0].ndim); }
static size_t scratch_resample_backward(const dt_kctx *c) { return dt_resample_tables(c->in[0].shape, c->in[0].ndim) + sums(&c->out[0]); }
static size_t scratch_col2im(const dt_kctx *c) { return sums(&c->out[0]); }

#define RESAMPLE_FIELDS                                                                                                                                \
    DT_FIELD(dt_resample_attr, size), DT_FIELD(dt_resample_attr, mode), DT_FIELD(dt_resample_attr, align_corners), DT_FIELD(dt_resample_attr, scale0), \
        DT_FIELD(dt_resample_attr, scale1), DT_FIELD(dt_resample_attr, scale2)

const dt_op dt_op_resample = {
    .sig = "_resample(Tensor input, int[] size, str mode, bool align_corners, float? scale0=None, float? scale1=None, float? scale2=None) -> Tensor",
    .doc = "(N, C, size…) resampled to other sizes; a scale given decides the step between samples instead of the sizes.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_resample_attr, RESAMPLE_FIELDS),
    .infer = infer_resample,
    .place = place_resample,
    .grad = grad_resample,
    .scratch = scratch_resample,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_resample, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_resample_backward = {
    .sig = "_resample_backward(Tensor grad, int[] size, str mode, bool align_corners, float? scale0=None, float? scale1=None, float? scale2=None) -> Tensor",
    .doc = "The gradient of _resample; size: the input's.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_resample_attr, RESAMPLE_FIELDS),
    .infer = infer_resample,
    .place = place_resample,
    .grad = grad_resample_backward,
    .scratch = scratch_resample_backward,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_resample_backward, DT_K_CONTIGUOUS, NULL}},
};

/* ---- patches ---- */
static dt_status columns_of(const dt_patch_attr *a, int64_t H, int64_t W, int64_t *L) {
    const dt_ints *lists[4] = {&a->kernel, &a->dilation, &a->padding, &a->stride};
    static const char *const names[] = {"kernel_size", "dilation", "padding", "stride"};
    int64_t size[2] = {H, W};
    for (int i = 0; i < 4; i++) {
        if (lists[i]->n != 2) return dt_fail(DT_E_SHAPE, "unfold: expected %s of two ints, got %d", names[i], lists[i]->n);
        for (int d = 0; d < 2; d++)
            if (lists[i]->v[d] < (i != 2))
                return dt_fail(DT_E_SHAPE, "unfold: %s should be %s, got %lld", names[i], i == 2 ? "non-negative" : "greater than zero", LL(lists[i]->v[d]));
    }
    *L = 1;
    for (int d = 0; d < 2; d++) {
        int64_t room = size[d] + 2 * a->padding.v[d] - a->dilation.v[d] * (a->kernel.v[d] - 1) - 1;
        if (room < 0)
            return dt_fail(DT_E_SHAPE, "unfold: a kernel of %lld (dilation %lld) does not fit an input of %lld (padding %lld)", LL(a->kernel.v[d]),
                           LL(a->dilation.v[d]), LL(size[d]), LL(a->padding.v[d]));
        *L *= room / a->stride.v[d] + 1;
    }
    return DT_OK;
}

static dt_status infer_im2col(dt_node *n) {
    const dt_patch_attr *a = n->attr;
    const dt_meta *x = n->in[0];
    int64_t L;
    if (x->ndim != 4) return dt_fail(DT_E_SHAPE, "unfold: expected (N, C, H, W) or (C, H, W), got %d dimensions", x->ndim);
    if (!dt_dtype_is_float((dt_dtype)x->dtype)) return dt_fail(DT_E_DTYPE, "unfold: not implemented for %s", dt_dtype_name((dt_dtype)x->dtype));
    DT_TRY(columns_of(a, x->shape[2], x->shape[3], &L));
    n->out[0] = (dt_type){(dt_dtype)x->dtype, 3, {x->shape[0], x->shape[1] * a->kernel.v[0] * a->kernel.v[1], L}};
    return DT_OK;
}

static dt_status infer_col2im(dt_node *n) {
    const dt_patch_attr *a = n->attr;
    const dt_meta *x = n->in[0];
    int64_t L;
    if (x->ndim != 3) return dt_fail(DT_E_SHAPE, "fold: expected (N, C * kernel, L) or (C * kernel, L), got %d dimensions", x->ndim);
    if (!dt_dtype_is_float((dt_dtype)x->dtype)) return dt_fail(DT_E_DTYPE, "fold: not implemented for %s", dt_dtype_name((dt_dtype)x->dtype));
    if (a->size.n != 2) return dt_fail(DT_E_SHAPE, "fold: expected output_size of two ints, got %d", a->size.n);
    DT_TRY(columns_of(a, a->size.v[0], a->size.v[1], &L));
    int64_t k = a->kernel.v[0] * a->kernel.v[1];
    if (x->shape[1] % k || x->shape[2] != L)
        return dt_fail(DT_E_SHAPE, "fold: expected (N, C * %lld, %lld) for this output_size, got (%lld, %lld, %lld)", LL(k), LL(L), LL(x->shape[0]),
                       LL(x->shape[1]), LL(x->shape[2]));
    n->out[0] = (dt_type){(dt_dtype)x->dtype, 4, {x->shape[0], x->shape[1] / k, a->size.v[0], a->size.v[1]}};
    return DT_OK;
}

static dt_dims dims(const dt_ints *l) { return (dt_dims){l->n, l->v}; }
static void grad_im2col(dt_grad *g) {
    const dt_patch_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0,
                dt_col2im(g->s, dt_grad_gy(g, 0), spatial(dt_grad_in_meta(g, 0)), dims(&a->kernel), dims(&a->dilation), dims(&a->padding), dims(&a->stride)));
}
static void grad_col2im(dt_grad *g) {
    const dt_patch_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_im2col(g->s, dt_grad_gy(g, 0), dims(&a->kernel), dims(&a->dilation), dims(&a->padding), dims(&a->stride)));
}

#define PATCH_FIELDS DT_FIELD(dt_patch_attr, kernel), DT_FIELD(dt_patch_attr, dilation), DT_FIELD(dt_patch_attr, padding), DT_FIELD(dt_patch_attr, stride)

const dt_op dt_op_im2col = {
    .sig = "_im2col(Tensor input, int[2] kernel, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
    .doc = "Patches as columns: (N, C, H, W) -> (N, C * kh * kw, L).",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_patch_attr, PATCH_FIELDS),
    .infer = infer_im2col,
    .place = place_patches,
    .grad = grad_im2col,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_im2col, DT_K_CONTIGUOUS, NULL}},
};
const dt_op dt_op_col2im = {
    .sig = "_col2im(Tensor input, int[2] size, int[2] kernel, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
    .doc = "Columns summed into an image: (N, C * kh * kw, L) -> (N, C, H, W).",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_patch_attr, DT_FIELD(dt_patch_attr, size), PATCH_FIELDS),
    .infer = infer_col2im,
    .place = place_patches,
    .grad = grad_col2im,
    .scratch = scratch_col2im,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_col2im, DT_K_CONTIGUOUS, NULL}},
};

/* Two ints of a call's argument; one stands for both. */
static dt_dims two(const dt_args *a, int i, int64_t otherwise, int64_t *v) {
    dt_dims d = dt_arg_get_dims(a, i);
    for (int k = 0; k < 2; k++) v[k] = d.n <= 0 ? otherwise : d.v[d.n == 1 ? 0 : k];
    return (dt_dims){2, v};
}

static void compose_unfold(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    int64_t v[4][2];
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    bool added = dt_ndim(x) == 3;
    *n_out = 1;
    dt_tensor *y = dt_im2col(s, added ? dt_unsqueeze(s, x, 0) : x, two(a, 1, 1, v[0]), two(a, 2, 1, v[1]), two(a, 3, 0, v[2]), two(a, 4, 1, v[3]));
    dt_compose_out(added ? dt_squeeze(s, y, DT_DIMS(0)) : y, out, n_out);
}
static void compose_fold(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    int64_t v[5][2];
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    bool added = dt_ndim(x) == 2;
    *n_out = 1;
    dt_tensor *y =
        dt_col2im(s, added ? dt_unsqueeze(s, x, 0) : x, two(a, 1, 1, v[0]), two(a, 2, 1, v[1]), two(a, 3, 1, v[2]), two(a, 4, 0, v[3]), two(a, 5, 1, v[4]));
    dt_compose_out(added ? dt_squeeze(s, y, DT_DIMS(0)) : y, out, n_out);
}

const dt_op dt_op_unfold_im2col = {
    .sig = "unfold.im2col(Tensor input, int[2] kernel_size, int[2] dilation=1, int[2] padding=0, int[2] stride=1) -> Tensor",
    .doc = "Sliding patches as columns: (N, C, H, W) -> (N, C * kernel elements, number of patches). RuntimeError if the kernel does not fit.",
    .where = DT_NN,
    .compose = compose_unfold,
};
const dt_op dt_op_fold = {
    .sig = "fold(Tensor input, int[2] output_size, int[2] kernel_size, int[2] dilation=1, int[2] padding=0, int[2] stride=1) -> Tensor",
    .doc = "Sums patches back into images: (N, C * kernel elements, number of patches) -> (N, C, H, W); the transpose of unfold.",
    .where = DT_NN,
    .compose = compose_fold,
};

/* ---- pixels and channels ---- */
static void shuffle(dt_scope *s, dt_tensor *x, int64_t r, bool up, dt_tensor **out, int *n_out) {
    const char *op = up ? "pixel_shuffle" : "pixel_unshuffle";
    int nd = dt_ndim(x), b = nd - 3; /* batch dimensions */
    *n_out = 1;
    if (nd < 3 || nd + 2 > DT_MAX_DIM || r < 1 || r > 1 << 20) { /* its square must not overflow */
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "%s: expected (…, C, H, W) and a factor from 1 to 2^20, got %d dimensions and %lld", op, nd, LL(r)));
        return;
    }
    const int64_t *shape = dt_shape(x);
    int64_t C = shape[b], H = shape[b + 1], W = shape[b + 2], mid[DT_MAX_DIM], end[DT_MAX_DIM], perm[DT_MAX_DIM];
    if (up ? C % (r * r) : H % r || W % r) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "%s: %s must be divisible by %lld, got (%lld, %lld, %lld)", op, up ? "the channels" : "height and width",
                                 LL(up ? r * r : r), LL(C), LL(H), LL(W)));
        return;
    }
    memcpy(mid, shape, sizeof *mid * (size_t)b);
    memcpy(end, shape, sizeof *end * (size_t)b);
    for (int d = 0; d < b + 5; d++) perm[d] = d;
    const int64_t up_mid[5] = {C / (r * r), r, r, H, W}, down_mid[5] = {C, H / r, r, W / r, r}, up_perm[5] = {0, 3, 1, 4, 2}, down_perm[5] = {0, 2, 4, 1, 3};
    for (int i = 0; i < 5; i++) {
        mid[b + i] = up ? up_mid[i] : down_mid[i];
        perm[b + i] = b + (up ? up_perm[i] : down_perm[i]);
    }
    end[b] = up ? C / (r * r) : C * r * r;
    end[b + 1] = up ? H * r : H / r;
    end[b + 2] = up ? W * r : W / r;
    dt_tensor *y = dt_permute(s, dt_reshape(s, x, ((dt_dims){b + 5, mid})), ((dt_dims){b + 5, perm}));
    dt_compose_out(dt_reshape(s, y, ((dt_dims){nd, end})), out, n_out);
}
static void compose_shuffle(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    shuffle(s, dt_arg_get_tensor(a, 0), dt_arg_get_int(a, 1, 1), true, out, n_out);
}
static void compose_unshuffle(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    shuffle(s, dt_arg_get_tensor(a, 0), dt_arg_get_int(a, 1, 1), false, out, n_out);
}

const dt_op dt_op_pixel_shuffle = {
    .sig = "pixel_shuffle(Tensor input, int upscale_factor) -> Tensor",
    .doc = "(…, C r², H, W) -> (…, C, H r, W r). RuntimeError if the channels do not divide.",
    .where = DT_FN | DT_NN,
    .compose = compose_shuffle,
};
const dt_op dt_op_pixel_unshuffle = {
    .sig = "pixel_unshuffle(Tensor input, int downscale_factor) -> Tensor",
    .doc = "(…, C, H r, W r) -> (…, C r², H, W). RuntimeError if height or width do not divide.",
    .where = DT_FN | DT_NN,
    .compose = compose_unshuffle,
};
