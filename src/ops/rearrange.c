/* Rearranging: flip, roll, rot90, padding, diff, trace, combinations. */
#include <string.h>

#include "base/arena.h"
#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

DT_CPU_KERNEL(flip);
DT_CPU_KERNEL(constant_pad);
DT_CPU_KERNEL(pad_mode);
DT_CPU_KERNEL(pad_mode_backward);

/* ---- flip ---- */
static dt_status infer_flip(dt_node *n) {
    dt_flip_attr *a = n->attr;
    uint32_t seen = 0;
    for (int i = 0; i < a->dims.n; i++) {
        DT_TRY(dt_dim_wrap(&a->dims.v[i], n->in[0]->ndim));
        if (seen >> a->dims.v[i] & 1) return dt_fail(DT_E_SHAPE, "flip: dim %lld appears multiple times in the list of dims", (long long)a->dims.v[i]);
        seen |= 1u << a->dims.v[i];
    }
    return dt_infer_same(n);
}
static dt_status place_flip(const dt_node *n, dt_rules *r) {
    const dt_flip_attr *a = n->attr;
    uint32_t mask = 0;
    for (int i = 0; i < a->dims.n; i++) mask |= 1u << a->dims.v[i];
    DT_TRY(dt_place_except(n, r, mask));
    for (int i = 0; i < a->dims.n && n->in[0]->ndim; i++) { /* the mirrored shard comes over, and is turned here */
        int d = (int)a->dims.v[i];
        int64_t size = n->in[0]->shape[d];
        dt_placement *in, *out, p;
        if (!dt_rules_sharded(r, n->in[0], d) || !dt_rules_window(&(dt_window){size, size - 1, -1, 1, false, false}, d, &p)) continue;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = p;
        out[0] = DT_S(d);
    }
    return dt_move_partial(n, r, DT_MOVE_ANY);
}
static void grad_flip(dt_grad *g) {
    const dt_flip_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt_flip(g->s, dt_grad_gy(g, 0), (dt_dims){a->dims.n, a->dims.v}));
}
const dt_op dt_op_flip = {
    .sig = "flip(Tensor input, int[]... dims) -> Tensor",
    .doc = "A copy with the order of the entries along dims reversed.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_flip_attr, DT_FIELD(dt_flip_attr, dims)),
    .infer = infer_flip,
    .place = place_flip,
    .grad = grad_flip,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_flip}},
};
static void compose_flip_dim(dt_scope *s, const dt_args *a, int dim, const char *name, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    if (dt_ndim(x) <= dim)
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "%s: Input must be >= %d-d.", name, dim + 1));
    else
        dt_compose_return(out, n_out, dt_flip(s, x, DT_DIMS(dim)));
}
static void compose_fliplr(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { compose_flip_dim(s, a, 1, "fliplr", out, n_out); }
static void compose_flipud(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { compose_flip_dim(s, a, 0, "flipud", out, n_out); }
const dt_op dt_op_fliplr = {
    .sig = "fliplr(Tensor input) -> Tensor",
    .doc = "flip along dimension 1.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_fliplr,
};
const dt_op dt_op_flipud = {
    .sig = "flipud(Tensor input) -> Tensor",
    .doc = "flip along dimension 0.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_flipud,
};

/* ---- roll, rot90 ---- */
static dt_tensor *roll_dim(dt_scope *s, dt_tensor *x, int64_t shift, int64_t dim) {
    int64_t n = x ? dt_shape(x)[dim] : 0;
    if (n == 0) return x;
    shift = (shift % n + n) % n;
    dt_tensor *tail = dt_slice(s, x, dim, n - shift, n, 1), *head = dt_slice(s, x, dim, 0, n - shift, 1);
    return dt_cat(s, DT_LIST(tail, head), dim);
}
static void compose_roll(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *y = x;
    dt_dims shifts = dt_arg_get_dims(a, 1), dims = dt_arg_get_dims(a, 2);
    if (shifts.n <= 0) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "`shifts` required"));
        return;
    }
    if (dims.n <= 0 && shifts.n == 1) {
        y = dt_reshape(s, roll_dim(s, dt_ravel(s, x), shifts.v[0], 0), dt_shape_dims(x));
        dt_compose_return(out, n_out, dt_numel(x) ? y : dt_contiguous(s, x));
        return;
    }
    if (dims.n != shifts.n) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "shifts and dimensions must align. shifts: %d, dims:%d", shifts.n, dims.n < 0 ? 0 : dims.n));
        return;
    }
    for (int i = 0; i < dims.n; i++) {
        int64_t dim = dims.v[i];
        if (!dt_compose_dim(s, &dim, dt_ndim(x))) return;
        if (dt_ndim(x)) y = roll_dim(s, y, shifts.v[i], dim);
    }
    dt_compose_return(out, n_out, y == x ? dt_contiguous(s, x) : y);
}
const dt_op dt_op_roll = {
    .sig = "roll(Tensor input, int[] shifts, int[]? dims=None) -> Tensor",
    .doc = "Entries moved by shifts along dims, coming back in at the other end; without dims the flattened tensor is rolled.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_roll,
};
static void compose_rot90(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    dt_dims dims = dt_arg_get_dims(a, 2);
    int64_t k = (dt_arg_get_int(a, 1, 1) % 4 + 4) % 4, d0 = 0, d1 = 1;
    int nd = dt_ndim(x);
    if (dims.n >= 0 && dims.n != 2) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "expected total rotation dims == 2, but got dims = %d", dims.n));
        return;
    }
    if (dims.n == 2) d0 = dims.v[0], d1 = dims.v[1];
    if (nd < 2) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "expected total dims >= 2, but got total dims = %d", nd));
        return;
    }
    if (!dt_compose_dim(s, &d0, nd) || !dt_compose_dim(s, &d1, nd)) return;
    if (d0 == d1) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "expected rotation dims to be different, but got dim0 = %lld and dim1 = %lld", (long long)d0, (long long)d1));
        return;
    }
    if (k == 1) x = dt_transpose(s, dt_flip(s, x, DT_DIMS(d1)), d0, d1);
    if (k == 2) x = dt_flip(s, x, DT_DIMS(d0, d1));
    if (k == 3) x = dt_transpose(s, dt_flip(s, x, DT_DIMS(d0)), d0, d1);
    dt_compose_return(out, n_out, k ? x : dt_contiguous(s, x));
}
const dt_op dt_op_rot90 = {
    .sig = "rot90(Tensor input, int k=1, int[] dims=[0, 1]) -> Tensor",
    .doc = "Rotated by 90 degrees k times in the plane of dims, from the first towards the second.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_rot90,
};

/* ---- padding ---- */
enum { MAX_PAD = 1 << 30 };
/* pad: (low, high) pairs from the last dimension backwards. Fills out[0].shape. */
static dt_status pad_shape(dt_node *n, const dt_ints *pad) {
    const dt_meta *m = n->in[0];
    if (pad->n % 2) return dt_fail(DT_E_SHAPE, "Length of pad must be even but instead it equals %d", pad->n);
    if (pad->n / 2 > m->ndim)
        return dt_fail(DT_E_SHAPE,
                       "Length of pad should be no more than twice the number of dimensions of the input. Pad length is %d while the input has %d dimensions.",
                       pad->n, m->ndim);
    n->out[0] = dt_meta_type(m);
    for (int i = 0; i < pad->n / 2; i++) {
        int d = m->ndim - 1 - i;
        int64_t lo = pad->v[2 * i], hi = pad->v[2 * i + 1];
        if (lo > MAX_PAD || hi > MAX_PAD || lo < -MAX_PAD || hi < -MAX_PAD)
            return dt_fail(DT_E_VALUE, "pad: %lld and %lld at dimension %d are too large", (long long)lo, (long long)hi, d);
        int64_t size = m->shape[d] + lo + hi;
        if (size < 0)
            return dt_fail(DT_E_SHAPE,
                           "The input size %lld, plus negative padding %lld and %lld, resulted in a negative output size, which is invalid. Check dimension %d "
                           "of your input.",
                           (long long)m->shape[d], (long long)lo, (long long)hi, d);
        n->out[0].shape[d] = size;
    }
    return DT_OK;
}
static dt_status place_padded(const dt_node *n, dt_rules *r, const dt_ints *pad, int ndim) {
    uint32_t mask = 0;
    for (int i = 0; i < pad->n; i++)
        if (pad->v[i]) mask |= 1u << (ndim - 1 - i / 2);
    return dt_place_except(n, r, mask);
}
static dt_status infer_constant_pad(dt_node *n) {
    n->cast[1] = n->in[0]->dtype;
    return pad_shape(n, &((dt_pad_attr *)n->attr)->pad);
}
static dt_status place_constant_pad(const dt_node *n, dt_rules *r) {
    const dt_ints *pad = &((dt_pad_attr *)n->attr)->pad;
    for (int i = 0; i + 1 < pad->n; i += 2) {
        int d = n->in[0]->ndim - 1 - i / 2;
        dt_placement *in, *out, p;
        if (!(pad->v[i] || pad->v[i + 1]) || !dt_rules_sharded(r, n->in[0], d)) continue;
        if (!dt_rules_window(&(dt_window){n->out[0].shape[d], -pad->v[i], 1, 1, false, false}, d, &p)) continue;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = p;
        out[0] = DT_S(d);
    }
    return place_padded(n, r, pad, n->in[0]->ndim);
}
static void grad_constant_pad(dt_grad *g) {
    const dt_pad_attr *a = dt_grad_attr(g);
    int64_t back[DT_MAX_INTS];
    for (int i = 0; i < a->pad.n; i++) back[i] = -a->pad.v[i];
    dt_grad_set(g, 0, dt_constant_pad_nd(g->s, dt_grad_gy(g, 0), ((dt_dims){a->pad.n, back}), 0));
}
const dt_op dt_op_constant_pad_nd = {
    .sig = "constant_pad_nd(Tensor input, int[] pad, Scalar value=0) -> Tensor",
    .doc = "input with `value` before and after it along the last dimensions: pad has (before, after) pairs from the last dimension backwards; negative "
           "ones cut off.",
    .where = DT_FN,
    .attrs = DT_ATTRS(dt_pad_attr, DT_FIELD(dt_pad_attr, pad)),
    .infer = infer_constant_pad,
    .place = place_constant_pad,
    .grad = grad_constant_pad,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_constant_pad}},
};

static dt_status infer_pad_mode(dt_node *n) { return pad_shape(n, &((dt_pad_attr *)n->attr)->pad); }
static dt_status place_pad_mode(const dt_node *n, dt_rules *r) {
    DT_TRY(place_padded(n, r, &((dt_pad_attr *)n->attr)->pad, n->in[0]->ndim));
    return dt_move_partial(n, r, DT_MOVE_ANY);
}
static void grad_pad_mode(dt_grad *g) {
    const dt_pad_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt__pad_mode_backward(g->s, dt_grad_gy(g, 0), dt_meta_dims(dt_grad_in_meta(g, 0)), (dt_dims){a->pad.n, a->pad.v}, a->mode));
}
const dt_op dt_op__pad_mode = {
    .sig = "_pad_mode(Tensor input, int[] pad, int mode) -> Tensor",
    .doc = "Padding with the input's own entries; mode 1: reflect, 2: replicate, 3: circular.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_pad_attr, DT_FIELD(dt_pad_attr, pad), DT_FIELD(dt_pad_attr, mode)),
    .infer = infer_pad_mode,
    .place = place_pad_mode,
    .grad = grad_pad_mode,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_pad_mode}},
};
static dt_status infer_pad_mode_backward(dt_node *n) {
    const dt_pad_attr *a = n->attr;
    return dt_infer_sizes(n, &a->sizes);
}
static dt_status place_pad_mode_backward(const dt_node *n, dt_rules *r) {
    DT_TRY(place_padded(n, r, &((dt_pad_attr *)n->attr)->pad, n->in[0]->ndim));
    return dt_move_partial(n, r, DT_MOVE_LINEAR);
}
static void grad_pad_mode_backward(dt_grad *g) {
    const dt_pad_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt__pad_mode(g->s, dt_grad_gy(g, 0), (dt_dims){a->pad.n, a->pad.v}, a->mode));
}
const dt_op dt_op__pad_mode_backward = {
    .sig = "_pad_mode_backward(Tensor grad_output, int[] sizes, int[] pad, int mode) -> Tensor",
    .doc = "Each entry's gradient: the sum over the padded entries that came from it.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_pad_attr, DT_FIELD(dt_pad_attr, sizes), DT_FIELD(dt_pad_attr, pad), DT_FIELD(dt_pad_attr, mode)),
    .infer = infer_pad_mode_backward,
    .place = place_pad_mode_backward,
    .grad = grad_pad_mode_backward,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_pad_mode_backward, DT_K_CONTIGUOUS}},
};

/* Sizes that padding by reflection or wrapping can serve. False: the scope has the error. */
static bool check_pad_mode(dt_scope *s, dt_tensor *x, dt_dims pad, int mode, const char *text) {
    int nd = dt_ndim(x), k = pad.n / 2;
    if (!(k >= 1 && k <= 3 && pad.n == 2 * k && (nd == k + 1 || nd == k + 2))) {
        dt_scope_fail(s, dt_fail(DT_E_NOTIMPL,
                                 "Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now: mode '%s', %d dimensions, pad of %d numbers",
                                 text, nd, pad.n));
        return false;
    }
    for (int i = 0; i < pad.n; i++) {
        int64_t size = dt_shape(x)[nd - 1 - i / 2];
        if (mode == 1 && pad.v[i] >= size) {
            dt_scope_fail(s, dt_fail(DT_E_SHAPE,
                                     "Padding size should be less than the corresponding input dimension, but got: padding %lld at dimension %d of size %lld",
                                     (long long)pad.v[i], nd - 1 - i / 2, (long long)size));
            return false;
        }
        if (mode == 3 && pad.v[i] > size) {
            dt_scope_fail(s, dt_fail(DT_E_SHAPE, "Padding value causes wrapping around more than once: padding %lld at dimension %d of size %lld",
                                     (long long)pad.v[i], nd - 1 - i / 2, (long long)size));
            return false;
        }
        if (mode == 2 && size == 0 && pad.v[i] > 0) {
            dt_scope_fail(s, dt_fail(DT_E_SHAPE, "Expected a tensor with non-zero sizes to replicate, but dimension %d has size 0", nd - 1 - i / 2));
            return false;
        }
    }
    for (int i = 0; mode == 3 && i < k; i++) { /* what negative padding leaves is what wraps around */
        int64_t lo = pad.v[2 * i], hi = pad.v[2 * i + 1], left = dt_shape(x)[nd - 1 - i] + (lo < 0 ? lo : 0) + (hi < 0 ? hi : 0);
        if (left > 0) continue;
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "Negative padding value is resulting in an empty dimension: %lld and %lld at dimension %d", (long long)lo,
                                 (long long)hi, nd - 1 - i));
        return false;
    }
    return true;
}
static void compose_pad(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    static const char *const modes[] = {"constant", "reflect", "replicate", "circular"};
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    dt_dims pad = dt_arg_get_dims(a, 1);
    const char *text = a->a[2].kind == DT_ARG_STR ? a->a[2].s : "constant";
    int mode = 0;
    while (mode < 4 && strcmp(text, modes[mode])) mode++;
    if (mode == 4) {
        dt_scope_fail(s, dt_fail(DT_E_NOTIMPL, "Unrecognised padding mode %s: legal are 'constant', 'reflect', 'replicate', 'circular'", text));
        return;
    }
    if (mode == 0) {
        dt_value v = dt_arg_given(a, 3) ? dt_arg_get_value(a, 3) : DT_V(0);
        dt_compose_return(out, n_out, dt_constant_pad_nd(s, x, pad, v));
        return;
    }
    if (dt_arg_given(a, 3) && !(a->a[3].kind == DT_ARG_FLOAT ? a->a[3].f == 0 : a->a[3].i == 0)) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "Padding mode \"%s\" doesn't take in value argument", text));
        return;
    }
    if (check_pad_mode(s, x, pad, mode, text)) dt_compose_return(out, n_out, dt__pad_mode(s, x, pad, mode));
}
const dt_op dt_op_pad = {
    .sig = "pad(Tensor input, int[] pad, str mode='constant', Scalar? value=None) -> Tensor",
    .doc = "Padding of the last dimensions: pad has (before, after) pairs from the last dimension backwards. mode: 'constant' (with value, 0), 'reflect', "
           "'replicate', 'circular'. Errors: sizes that the mode cannot serve.",
    .where = DT_NN,
    .compose = compose_pad,
};

/* ---- differences ---- */
static void compose_diff(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *before = dt_arg_get_tensor(a, 3), *after = dt_arg_get_tensor(a, 4);
    int64_t n = dt_arg_get_int(a, 1, 1), dim = dt_arg_get_int(a, 2, -1);
    if (dt_ndim(x) < 1) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "diff expects input to be at least one-dimensional"));
        return;
    }
    if (n < 0) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "order must be non-negative but got %lld", (long long)n));
        return;
    }
    if (!dt_compose_dim(s, &dim, dt_ndim(x))) return;
    if (n == 0) { /* as PyTorch: nothing is joined either */
        dt_compose_return(out, n_out, dt_contiguous(s, x));
        return;
    }
    if (before) x = dt_cat(s, DT_LIST(before, x), dim);
    if (after && x) x = dt_cat(s, DT_LIST(x, after), dim);
    for (int64_t i = 0; i < n && x; i++) {
        int64_t size = dt_shape(x)[dim];
        dt_tensor *hi = dt_slice(s, x, dim, 1, size, 1), *lo = dt_slice(s, x, dim, 0, size > 0 ? size - 1 : 0, 1);
        x = dt_dtype_of(x) == DT_bool ? dt_ne(s, hi, lo) : dt_sub(s, hi, lo);
        if (size <= 1) break;
    }
    dt_compose_return(out, n_out, x);
}
const dt_op dt_op_diff = {
    .sig = "diff(Tensor input, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) -> Tensor",
    .doc = "The n-th difference along dim, of prepend, input and append joined.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_diff,
};
static void compose_trace(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    if (dt_ndim(x) != 2)
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "trace: expected a matrix, but got tensor with dim %d", dt_ndim(x)));
    else
        dt_compose_return(out, n_out, dt_sum(s, dt_diagonal(s, x, 0, 0, 1), DT_NO_DIMS, false, DT_DTYPE_NONE));
}
const dt_op dt_op_trace = {
    .sig = "trace(Tensor input) -> Tensor",
    .doc = "The sum of a matrix's diagonal.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_trace,
};

/* ---- combinations ---- */
/* The next combination of r of n in lexicographic order; false after the last. */
static bool next_combination(int64_t *c, int64_t r, int64_t n, bool repeats) {
    for (int64_t i = r - 1; i >= 0; i--) {
        if (c[i] >= (repeats ? n - 1 : n - r + i)) continue;
        c[i]++;
        for (int64_t k = i + 1; k < r; k++) c[k] = repeats ? c[i] : c[k - 1] + 1;
        return true;
    }
    return false;
}
static void compose_combinations(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    enum { MAX_R = 64 };
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    int64_t r = dt_arg_get_int(a, 1, 2), c[MAX_R], n = dt_numel(x), count = 0, cap = 0, *rows = NULL;
    bool repeats = dt_arg_get_bool(a, 2, false);
    if (dt_ndim(x) != 1 || r < 0 || r > MAX_R) {
        dt_scope_fail(
            s, dt_fail(DT_E_SHAPE, "combinations: expects a 1D vector and r in 0 to %d, but got %d dimensions and r=%lld", MAX_R, dt_ndim(x), (long long)r));
        return;
    }
    double rows_wanted = 1;
    for (int64_t i = 0; i < r; i++) rows_wanted *= (double)(n + (repeats ? i : -i)) / (double)(i + 1);
    if (rows_wanted * (double)r > 1e9) {
        dt_scope_fail(s, dt_fail(DT_E_NOMEM, "combinations: %.3g rows of %lld elements are too many", rows_wanted, (long long)r));
        return;
    }
    bool more = r > 0 && (repeats ? n > 0 : n >= r);
    for (int64_t i = 0; i < r; i++) c[i] = repeats ? 0 : i;
    for (; more; more = next_combination(c, r, n, repeats)) {
        if ((count + 1) * r > cap) {
            int64_t *grown = dt_realloc(rows, (size_t)((cap = cap * 2 + 64 * r)) * sizeof *rows);
            if (!grown) {
                dt_free(rows);
                dt_scope_fail(s, dt_fail(DT_E_NOMEM, "combinations: out of host memory"));
                return;
            }
            rows = grown;
        }
        memcpy(rows + count++ * r, c, (size_t)r * sizeof *c);
    }
    if (count == 0)
        dt_compose_return(out, n_out, r == 0 ? dt_slice(s, x, 0, 0, 0, 1) : dt_reshape(s, dt_slice(s, x, 0, 0, 0, 1), DT_DIMS(0, r)));
    else
        dt_compose_return(out, n_out, dt_reshape(s, dt_index_select(s, x, 0, dt_from_host(s, rows, DT_int64, DT_DIMS(count * r))), DT_DIMS(count, r)));
    dt_free(rows);
}
const dt_op dt_op_combinations = {
    .sig = "combinations(Tensor input, int r=2, bool with_replacement=False) -> Tensor",
    .doc = "All combinations of r elements of a 1-dim tensor, as rows in lexicographic order of positions.",
    .where = DT_FN,
    .compose = compose_combinations,
};
