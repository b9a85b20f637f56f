/* Autocast: while it is on, some operators get their float inputs in another dtype.
 *
 *   lower    products and what is made of them: inputs in the dtype that autocast was switched on with
 *   single   what needs range or digits (exponentials, logarithms, powers, sums, norms, losses): 16-bit inputs become float32
 *   widest   operators on several tensors that must agree: float32 if one of them is, else the lower dtype
 *
 * The lists are PyTorch's of its GPU autocast, with the factorisations of its CPU autocast; the same on every kind of device, so that a program has
 * the same dtypes everywhere. The casts are calls like any other: recorded for gradients, which therefore come back in the dtype of the leaf. Operators on neither list take what they
 * get. Those on a list run with autocast off inside, others are composed with it on: it reaches the products inside of einsum. In-place calls and
 * float64 are left alone.
 *
 * The cast of a leaf that wants a gradient is kept with it until autocast ends, so that a weight is cast once however often it is used: again if
 * it was written since, or if one of the two uses was without gradient. While autocast is off a call pays one test of a thread-local flag.
 *
 * Threads: the caller's. */
#include "client/internal.h"

enum { NONE = 1, LOWER, SINGLE, WIDEST }; /* dt_prep.autocast; 0: not looked up yet */

static const char *const lower_ops[] = {"matmul",
                                        "linear",
                                        "mm",
                                        "bmm",
                                        "mv",
                                        "addmm",
                                        "addmv",
                                        "baddbmm",
                                        "addbmm",
                                        "addr",
                                        "outer_sum",
                                        "linalg_vecdot",
                                        "inner",
                                        "gemm",
                                        "einsum",
                                        "linalg_multi_dot",
                                        "chain_matmul",
                                        "_grouped_mm",
                                        "grouped_mm",
                                        "attention",
                                        "conv1d",
                                        "conv2d",
                                        "conv3d",
                                        "conv",
                                        "convolution",
                                        "conv_transpose1d",
                                        "conv_transpose2d",
                                        "conv_transpose3d",
                                        "prelu",
                                        "scaled_dot_product_attention"};
static const char *const single_ops[] = {"acos",
                                         "asin",
                                         "cosh",
                                         "erfinv",
                                         "exp",
                                         "expm1",
                                         "log",
                                         "log10",
                                         "log2",
                                         "log1p",
                                         "reciprocal",
                                         "rsqrt",
                                         "sinh",
                                         "tan",
                                         "pow",
                                         "float_power",
                                         "softplus",
                                         "cumsum",
                                         "cumprod",
                                         "logcumsumexp",
                                         "logsumexp",
                                         "dist",
                                         "prod",
                                         "sum",
                                         "nansum",
                                         "norm",
                                         "_linalg_vector_norm",
                                         "layer_norm",
                                         "native_layer_norm",
                                         "group_norm",
                                         "rms_norm",
                                         "native_rms_norm",
                                         "softmax",
                                         "log_softmax",
                                         "softmin",
                                         "cross_entropy",
                                         "nll_loss",
                                         "mse_loss",
                                         "l1_loss",
                                         "smooth_l1_loss",
                                         "huber_loss",
                                         "binary_cross_entropy",
                                         "binary_cross_entropy_with_logits",
                                         "kl_div",
                                         "trace",
                                         "_linalg_inv",
                                         "_linalg_solve",
                                         "_linalg_det",
                                         "_linalg_cholesky",
                                         "_linalg_solve_triangular",
                                         "_linalg_qr",
                                         "_linalg_eigh",
                                         "_linalg_svd",
                                         "_linalg_pinv"};
static const char *const widest_ops[] = {"cat",          "stack", "addcdiv",    "addcmul",     "atan2",     "bilinear",   "cross",
                                         "linalg_cross", "dot",   "_index_put", "scatter_add", "tensordot", "_tensordot", "index_copy"};

static bool among(const char *name, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, list[i])) return true;
    return false;
}
#define AMONG(name, list) among(name, list, sizeof list / sizeof *(list))

/* Written parameters (stat_update, adam_step) are nobody's to cast. */
static uint8_t category_of(const dt_prep *p) {
    const char *name = p->info->base;
    if (p->info->n_written) return NONE;
    return AMONG(name, lower_ops) ? LOWER : AMONG(name, single_ops) ? SINGLE : AMONG(name, widest_ops) ? WIDEST : NONE;
}

/* ---- state ------------------------------------------------------------------------------------------------------------------------------ */
static dt_tensor **kept; /* leaves with a cast of theirs in leaf->low */
static uint32_t n_kept, kept_cap;

int dt_mode_autocast(dt_device_type type) { return type < DT_DEVICE_TYPES && dt_m.cast_to[type] ? dt_m.cast_to[type] - 1 : DT_DTYPE_NONE; }
void dt_mode_autocast_set(dt_device_type type, int dtype) {
    dt_m.cast_to[type] = dtype == DT_DTYPE_NONE ? 0 : (uint8_t)(dtype + 1);
    dt_m.autocast = false;
    for (int i = 0; i < DT_DEVICE_TYPES; i++) dt_m.autocast |= dt_m.cast_to[i] != 0;
}
bool dt_mode_autocast_hold(void) {
    bool was = dt_m.autocast;
    dt_m.autocast = false;
    return was;
}
void dt_mode_autocast_resume(bool was) { dt_m.autocast = was; }
bool dt_mode_autocast_cache(void) { return !dt_m.cast_uncached; }
void dt_mode_autocast_cache_set(bool on) { dt_m.cast_uncached = !on; }
void dt_autocast_forget(void) {
    while (n_kept) {
        dt_tensor *t = kept[--n_kept], *low = t->leaf ? t->leaf->low : NULL;
        if (low) t->leaf->low = NULL;
        dt_tensor_unref(low);
        dt_tensor_unref(t);
    }
}

/* ---- casting ---------------------------------------------------------------------------------------------------------------------------- */
/* Where a tensor takes part: its device's lower dtype; NONE if it is no float of at most 32 bits or autocast is off there. */
static dt_dtype lower_of(const dt_tensor *t) {
    const dt_meta *m = dt_tensor_meta_fast(t);
    dt_dtype d = (dt_dtype)m->dtype;
    if (d != DT_float32 && d != DT_float16 && d != DT_bfloat16) return DT_DTYPE_NONE;
    uint8_t to = dt_m.cast_to[dt_device_kind(m->mesh->dev[0])];
    return to ? (dt_dtype)(to - 1) : DT_DTYPE_NONE;
}

/* Keep `low`, a cast of the leaf t. Failing to is no error. */
static void keep(dt_tensor *t, dt_tensor *low) {
    dt_leaf *l = dt_leaf_get(t);
    if (!l) return;
    if (!l->low) {
        if (n_kept == kept_cap) {
            uint32_t cap = kept_cap ? kept_cap * 2 : 64;
            dt_tensor **v = dt_realloc(kept, cap * sizeof *v);
            if (!v) return;
            kept = v;
            kept_cap = cap;
        }
        kept[n_kept++] = dt_tensor_ref(t);
    }
    dt_tensor_unref(l->low);
    l->low = dt_tensor_ref(low);
    l->low_stamp = dt_storage_stamp(t);
}

static dt_tensor *cast(dt_scope *s, dt_tensor *t, dt_dtype to) {
    if ((dt_dtype)dt_tensor_meta_fast(t)->dtype == to) return t;
    bool cached = !dt_m.cast_uncached && !t->is_view && dt_tensor_wants_grad(t) && dt_tensor_is_leaf(t);
    dt_tensor *low = cached && t->leaf ? t->leaf->low : NULL;
    if (low && (dt_dtype)dt_tensor_meta_fast(low)->dtype == to && t->leaf->low_stamp == dt_storage_stamp(t) && dt_tensor_requires_grad(low) == dt_recording())
        return low;
    low = dt_util_cast(s, t, to);
    if (low && cached) keep(t, low);
    return low;
}

static dt_dtype target(uint8_t category, dt_tensor *t, bool any_single) {
    dt_dtype to = lower_of(t);
    if (to == DT_DTYPE_NONE || category == LOWER) return to;
    return category == SINGLE || any_single ? DT_float32 : to;
}

/* All tensors among the arguments, in turn; `at` moves on: (parameter, place in its list). */
typedef struct walk {
    const dt_prep *p;
    const dt_args *args;
    int i, j;
} walk;
static dt_tensor **next(walk *w) {
    for (; w->i < w->p->n_params; w->i++, w->j = 0) {
        dt_arg *a = (dt_arg *)&w->args->a[w->i];
        if (w->p->kind[w->i] == DT_PK_TENSORS && a->kind == DT_ARG_TENSORS && w->j < a->n) return (dt_tensor **)&a->list[w->j++];
        if (w->p->kind[w->i] <= DT_PK_SCALAR && w->p->kind[w->i] != DT_PK_TENSORS && a->kind == DT_ARG_TENSOR && a->t && !w->j) {
            w->j = 1;
            return &a->t;
        }
    }
    return NULL;
}

static bool any_single(const dt_prep *p, const dt_args *args) {
    walk w = {.p = p, .args = args};
    for (dt_tensor **t; (t = next(&w));)
        if (*t && lower_of(*t) != DT_DTYPE_NONE && dt_tensor_meta_fast(*t)->dtype == DT_float32) return true;
    return false;
}

/* sum(x, dtype=…) says itself what it computes in. */
static bool dtype_given(const dt_op *op, dt_args *args) {
    dt_arg *a = dt_arg_named(op, args, "dtype");
    return a && a->kind == DT_ARG_DTYPE;
}

/* The arguments with their casts; lists are copied into the scope's arena. */
static dt_status casts(dt_scope *s, const dt_prep *p, dt_args *args) {
    bool wide = p->autocast == WIDEST && any_single(p, args);
    for (int i = 0; i < p->n_params; i++) {
        dt_arg *a = &args->a[i];
        if (p->kind[i] != DT_PK_TENSORS || a->kind != DT_ARG_TENSORS || a->n < 1) continue;
        dt_tensor **own = DT_ARENA_ARRAY(&s->arena, dt_tensor *, a->n);
        if (!own) return dt_fail(DT_E_NOMEM, "%s(): out of host memory", p->info->base);
        memcpy(own, a->list, (size_t)a->n * sizeof *own);
        a->list = own;
    }
    walk w = {.p = p, .args = args};
    for (dt_tensor **t; (t = next(&w));) {
        dt_dtype to = *t ? target(p->autocast, *t, wide) : DT_DTYPE_NONE;
        if (to == DT_DTYPE_NONE) continue;
        *t = cast(s, *t, to);
        if (!*t) return s->status;
    }
    return DT_OK;
}

dt_status dt_autocast_invoke(const dt_op *op, const dt_args *args, int cap, dt_tensor **out, int *n_out) {
    DT_TRY(dt_client_ready());
    dt_prep *p = (dt_prep *)dt_prep_get(op);
    if (!p) return dt_c.prep_status;
    if (!p->autocast) p->autocast = category_of(p);
    dt_args with = *args;
    if (p->autocast == NONE || (p->autocast == SINGLE && dtype_given(op, &with))) return dt_invoke_as_is(op, args, cap, out, n_out);
    dt_scope s;
    dt_scope_init(&s);
    dt_m.autocast = false;
    dt_status r = casts(&s, p, &with);
    if (!r) r = dt_invoke_as_is(op, &with, cap, out, n_out);
    dt_m.autocast = true;
    dt_scope_fini(&s);
    return r;
}
