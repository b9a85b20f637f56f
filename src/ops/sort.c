/* Sorting and searching: sort, argsort, msort, topk, kthvalue, median, nanmedian, mode, searchsorted, bucketize, histc, bincount.
 *
 * Any dimension but the sorted one may be sharded. Counts over a sharded input are Partial sums. */
#include <math.h>
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"
#include "ops/sort.h"

DT_CPU_KERNEL(sort);
DT_CPU_KERNEL(topk);
DT_CPU_KERNEL(kthvalue);
DT_CPU_KERNEL(median);
DT_CPU_KERNEL(nanmedian);
DT_CPU_KERNEL(mode);
DT_CPU_KERNEL(searchsorted);
DT_CPU_KERNEL(histc);
DT_CPU_KERNEL(bincount);

size_t dt_sort_scratch(const dt_kctx *c) {
    const dt_sort_attr *a = c->attr;
    dt_rows r = dt_rows_of(&c->in[0], a->dim);
    return (size_t)(dt_sort_slots(r.outer * r.inner, r.n) * 2 * r.n) * sizeof(dt_pair);
}

/* ---- values and indices along a dimension ------------------------------------------------------------------------------------------- */
static dt_status pair_out(dt_node *n) {
    n->out[1] = n->out[0];
    n->out[1].dtype = DT_int64;
    return DT_OK;
}
static dt_status sort_infer(dt_node *n) {
    dt_sort_attr *a = n->attr;
    DT_TRY(dt_dim_wrap(&a->dim, n->in[0]->ndim));
    n->out[0] = dt_meta_type(n->in[0]);
    return pair_out(n);
}
static dt_status topk_infer(dt_node *n) {
    dt_sort_attr *a = n->attr;
    DT_TRY(sort_infer(n));
    int64_t size = n->in[0]->ndim ? n->in[0]->shape[a->dim] : 1;
    if (a->k < 0 || a->k > size)
        return dt_fail(DT_E_SHAPE, "topk: selected index k out of range: k=%lld, dimension %lld has %lld elements", (long long)a->k, (long long)a->dim,
                       (long long)size);
    if (n->in[0]->ndim) n->out[0].shape[a->dim] = a->k;
    return pair_out(n);
}
static dt_status pick_infer(dt_node *n) {
    dt_sort_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    DT_TRY(dt_dim_wrap(&a->dim, m->ndim));
    if (m->ndim && m->shape[a->dim] == 0) return dt_fail(DT_E_INDEX, "%s(): Expected reduction dim %d to have non-zero size.", dt_op_name(n->op), (int)a->dim);
    dt_ints dims = {1, {a->dim}};
    DT_TRY(dt_infer_reduce(n, &dims, a->keepdim));
    return pair_out(n);
}
static dt_status kth_infer(dt_node *n) {
    const dt_sort_attr *a = n->attr;
    DT_TRY(pick_infer(n));
    int64_t size = n->in[0]->ndim ? n->in[0]->shape[a->dim] : 1;
    if (a->k < 1 || a->k > size)
        return dt_fail(DT_E_SHAPE, "kthvalue(): selected number k out of range for dimension %lld: k=%lld of %lld", (long long)a->dim, (long long)a->k,
                       (long long)size);
    return DT_OK;
}
static dt_status sort_place(const dt_node *n, dt_rules *r) { return dt_place_except(n, r, n->in[0]->ndim ? 1u << ((const dt_sort_attr *)n->attr)->dim : 0); }
static dt_status pick_place(const dt_node *n, dt_rules *r) {
    const dt_sort_attr *a = n->attr;
    dt_ints dims = {n->in[0]->ndim ? 1 : 0, {a->dim}};
    return dt_place_reduce(n, r, &dims, a->keepdim, DT_R);
}
/* gx: gy at the chosen places. reduced: the dimension is missing in gy. */
static void place_back(dt_grad *g, bool reduced) {
    const dt_sort_attr *a = dt_grad_attr(g);
    const dt_meta *m = dt_grad_in_meta(g, 0);
    dt_tensor *gy = dt_grad_gy(g, 0), *at = dt_grad_out(g, 1);
    if (m->ndim == 0) {
        dt_grad_set(g, 0, gy);
        return;
    }
    if (reduced && !a->keepdim) gy = dt_unsqueeze(g->s, gy, a->dim), at = dt_unsqueeze(g->s, at, a->dim);
    dt_grad_set(g, 0, dt_value_selecting_backward(g->s, gy, at, a->dim, m->shape[a->dim]));
}
static void sort_grad(dt_grad *g) { place_back(g, false); }
static void pick_grad(dt_grad *g) { place_back(g, true); }

const dt_op dt_op_sort = {
    .sig = "sort(Tensor input, int dim=-1, bool descending=False, bool stable=False) -> (Tensor values, Tensor indices)",
    .doc = "The elements in order along `dim` and where they stood. Equal elements keep their order; NaN counts as largest.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_sort_attr, DT_FIELD(dt_sort_attr, dim), DT_FIELD(dt_sort_attr, descending), DT_FIELD(dt_sort_attr, stable)),
    .flags = DT_F_STRIDED,
    .infer = sort_infer,
    .place = sort_place,
    .grad = sort_grad,
    .saves = DT_SAVE_OUT(1),
    .scratch = dt_sort_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_sort, DT_K_CONTIGUOUS}},
};
static void argsort_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    dt_sort(s, dt_arg_get_tensor(a, 0), dt_arg_get_int(a, 1, -1), dt_arg_get_bool(a, 2, false), dt_arg_get_bool(a, 3, false), r);
    dt_compose_out(r[1], out, n_out);
}
const dt_op dt_op_argsort = {
    .sig = "argsort(Tensor input, int dim=-1, bool descending=False, bool stable=False) -> Tensor",
    .doc = "The indices that sort `input` along `dim`.",
    .where = DT_FN | DT_METHOD,
    .compose = argsort_compose,
};
static void msort_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *r[2];
    dt_sort(s, dt_arg_get_tensor(a, 0), 0, false, false, r);
    dt_compose_out(r[0], out, n_out);
}
const dt_op dt_op_msort = {
    .sig = "msort(Tensor input) -> Tensor",
    .doc = "The elements in rising order along dimension 0.",
    .where = DT_FN | DT_METHOD,
    .compose = msort_compose,
};
/* Along a sharded dimension: the k of each shard, then of those; where k is small beside the shards. */
DT_CPU_KERNEL(topk_part);
DT_CPU_KERNEL(topk_join);
static uint32_t topk_dims(const void *attr, int ndim) { return 1u << ((const dt_sort_attr *)attr)->dim; }
static int topk_along(const void *attr) { return (int)((const dt_sort_attr *)attr)->dim; }
static int64_t topk_width(const void *attr) { return ((const dt_sort_attr *)attr)->k; }
static size_t topk_scratch(const dt_kctx *c) { return (size_t)dt_rows_of(&c->in[0], ((const dt_sort_attr *)c->attr)->dim).n * 2 * sizeof(dt_pair); }
static const dt_staged topk_staged = {
    .dims = topk_dims, .along = topk_along, .width = topk_width, .indices = true, .part = dt_cpu_topk_part, .join = dt_cpu_topk_join, .scratch = topk_scratch};
static dt_status topk_place(const dt_node *n, dt_rules *r) {
    const dt_sort_attr *a = n->attr;
    if (n->in[0]->ndim && a->k * r->mesh->n * 3 <= n->in[0]->shape[a->dim]) DT_TRY(dt_place_staged(n, r));
    return sort_place(n, r);
}
const dt_op dt_op_topk = {
    .staged = &topk_staged,
    .sig = "topk(Tensor input, int k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)",
    .doc = "The `k` largest (or smallest) elements along `dim`, in order, and where they stand. NaN counts as largest.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_sort_attr, DT_FIELD(dt_sort_attr, k), DT_FIELD(dt_sort_attr, dim), DT_FIELD(dt_sort_attr, largest), DT_FIELD(dt_sort_attr, sorted)),
    .flags = DT_F_STRIDED,
    .infer = topk_infer,
    .place = topk_place,
    .grad = sort_grad,
    .saves = DT_SAVE_OUT(1),
    .scratch = dt_sort_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_topk, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_kthvalue = {
    .sig = "kthvalue(Tensor input, int k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
    .doc = "The `k`-th smallest element along `dim`, counted from 1, and where it stands.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_sort_attr, DT_FIELD(dt_sort_attr, k), DT_FIELD(dt_sort_attr, dim), DT_FIELD(dt_sort_attr, keepdim)),
    .infer = kth_infer,
    .place = pick_place,
    .grad = pick_grad,
    .saves = DT_SAVE_OUT(1),
    .scratch = dt_sort_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_kthvalue, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_mode = {
    .sig = "mode(Tensor input, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
    .doc = "The most frequent element along `dim` (the smallest among equals) and where it stands last.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_sort_attr, DT_FIELD(dt_sort_attr, dim), DT_FIELD(dt_sort_attr, keepdim)),
    .infer = pick_infer,
    .place = pick_place,
    .grad = pick_grad,
    .saves = DT_SAVE_OUT(1),
    .scratch = dt_sort_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_mode, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_median_dim = {
    .sig = "median.dim(Tensor input, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    .doc = "The lower median along `dim` and where it stands; NaN if the row holds one.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_sort_attr, DT_FIELD(dt_sort_attr, dim), DT_FIELD(dt_sort_attr, keepdim)),
    .infer = pick_infer,
    .place = pick_place,
    .grad = pick_grad,
    .saves = DT_SAVE_OUT(1),
    .scratch = dt_sort_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_median, DT_K_CONTIGUOUS}},
};
const dt_op dt_op_nanmedian_dim = {
    .sig = "nanmedian.dim(Tensor input, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    .doc = "The lower median along `dim` of what is not NaN, and where it stands.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dt_sort_attr, DT_FIELD(dt_sort_attr, dim), DT_FIELD(dt_sort_attr, keepdim)),
    .infer = pick_infer,
    .place = pick_place,
    .grad = pick_grad,
    .saves = DT_SAVE_OUT(1),
    .scratch = dt_sort_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_nanmedian, DT_K_CONTIGUOUS}},
};
static void median_all(dt_scope *s, const dt_args *a, bool nan, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *r[2];
    if (dt_numel(x) == 0)
        r[0] = dt_full(s, ((dt_dims){0, NULL}), NAN, dt_dtype_of(x), NULL);
    else if (nan)
        dt_nanmedian_dim(s, dt_reshape(s, x, DT_DIMS(-1)), 0, false, r);
    else
        dt_median_dim(s, dt_reshape(s, x, DT_DIMS(-1)), 0, false, r);
    dt_compose_out(r[0], out, n_out);
}
static void median_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { median_all(s, a, false, out, n_out); }
static void nanmedian_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { median_all(s, a, true, out, n_out); }
const dt_op dt_op_median = {
    .sig = "median(Tensor input) -> Tensor",
    .doc = "The lower median of all elements; NaN if there is one.",
    .where = DT_FN | DT_METHOD,
    .compose = median_compose,
};
const dt_op dt_op_nanmedian = {
    .sig = "nanmedian(Tensor input) -> Tensor",
    .doc = "The lower median of all elements that are not NaN.",
    .where = DT_FN | DT_METHOD,
    .compose = nanmedian_compose,
};

/* ---- searching ----------------------------------------------------------------------------------------------------------------------- */
static dt_status search_infer(dt_node *n) {
    dt_search_attr *a = n->attr;
    const dt_meta *seq = n->in[0], *v = n->in[1], *sorter = n->in[2];
    if (a->side) {
        if (strcmp(a->side, "left") && strcmp(a->side, "right"))
            return dt_fail(DT_E_SHAPE, "searchsorted(): side can only be 'left' or 'right' but got %s", a->side);
        if (a->right && !strcmp(a->side, "left"))
            return dt_fail(DT_E_SHAPE, "searchsorted(): side and right can't be set to opposites, got side of left while right was True");
        a->right = !strcmp(a->side, "right");
    }
    if (seq->ndim < 1) return dt_fail(DT_E_SHAPE, "searchsorted(): the sorted sequence must have at least one dimension");
    bool fits = seq->ndim == 1 || seq->ndim == v->ndim;
    for (int i = 0; fits && seq->ndim > 1 && i + 1 < seq->ndim; i++) fits = seq->shape[i] == v->shape[i];
    if (!fits || (sorter && !dt_meta_same_shape(sorter, seq))) {
        DT_STR(have, 96);
        DT_STR(want, 96);
        dt_shape_print(seq->ndim, seq->shape, &want);
        dt_shape_print(v->ndim, v->shape, &have);
        return dt_fail(DT_E_SHAPE,
                       "searchsorted(): the sequence %s should be 1-dimensional or match the values %s in all dimensions but the last, and "
                       "sorter the sequence",
                       want.buf, have.buf);
    }
    n->out[0] = dt_meta_type(v);
    n->out[0].dtype = a->out_int32 ? DT_int32 : DT_int64;
    if (sorter) n->cast[2] = DT_int64;
    return DT_OK;
}
static dt_status search_place(const dt_node *n, dt_rules *r) {
    const dt_meta *seq = n->in[0], *v = n->in[1];
    for (int d = 0; d < v->ndim; d++) {
        if (seq->ndim > 1 && d == v->ndim - 1) continue;
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[1] = out[0] = DT_S(d);
        if (seq->ndim > 1) {
            in[0] = DT_S(d);
            if (n->in[2]) in[2] = DT_S(d);
        }
    }
    return DT_OK;
}
const dt_op dt_op_searchsorted = {
    .sig = "searchsorted(Tensor sorted_sequence, Value input, *, bool out_int32=False, bool right=False, str? side=None, Tensor? "
           "sorter=None) -> Tensor",
    .doc = "Where each value would be inserted into the sorted sequence (its last dimension) to keep it sorted: before equal elements, or "
           "after them "
           "if `right`. `sorter`: indices that sort an unsorted sequence.",
    .where = DT_FN,
    .attrs = DT_ATTRS(dt_search_attr, DT_FIELD(dt_search_attr, out_int32), DT_FIELD(dt_search_attr, right), DT_FIELD(dt_search_attr, side)),
    .infer = search_infer,
    .place = search_place,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_searchsorted, DT_K_CONTIGUOUS}},
};
static void bucketize_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_out(dt_searchsorted(s, dt_arg_get_tensor(a, 1), dt_arg_get_value(a, 0), dt_arg_get_bool(a, 2, false), dt_arg_get_bool(a, 3, false), NULL, NULL),
                   out, n_out);
}
const dt_op dt_op_bucketize = {
    .sig = "bucketize(Value input, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor",
    .doc = "The bucket of each value between sorted boundaries: searchsorted with the arguments exchanged.",
    .where = DT_FN,
    .compose = bucketize_compose,
};

/* ---- counting ------------------------------------------------------------------------------------------------------------------------ */
static dt_status histc_infer(dt_node *n) {
    const dt_search_attr *a = n->attr;
    if (a->bins <= 0) return dt_fail(DT_E_SHAPE, "histc(): bins must be > 0, but got %lld", (long long)a->bins);
    n->out[0] = (dt_type){(dt_dtype)n->in[0]->dtype, 1, {a->bins}};
    n->cast[1] = n->cast[2] = DT_float64;
    return DT_OK;
}
static dt_status count_place(const dt_node *n, dt_rules *r) { /* in[0] (and weights alike) sharded: counts add up */
    for (int d = 0; d < n->in[0]->ndim; d++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(d);
        if (n->n_in == 2 && n->in[1]) in[1] = DT_S(d);
        out[0] = DT_P;
    }
    return DT_OK;
}
const dt_op dt_op__histc = {
    .sig = "_histc(Tensor input, Value min, Value max, int bins) -> Tensor",
    .doc = "histc between bounds that may be tensors.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_search_attr, DT_FIELD(dt_search_attr, bins)),
    .infer = histc_infer,
    .place = count_place,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_histc, DT_K_CONTIGUOUS}},
};
static void histc_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0);
    int64_t bins = dt_arg_get_int(a, 1, 100);
    double lo = dt_arg_get_float(a, 2, 0), hi = dt_arg_get_float(a, 3, 0);
    if (lo > hi) dt_scope_fail(s, dt_fail(DT_E_SHAPE, "histc: max must be larger than min, got min=%g, max=%g", lo, hi));
    if (lo == hi && dt_numel(x))
        dt_compose_out(dt__histc(s, x, DT_V(dt_min(s, x)), DT_V(dt_max(s, x)), bins), out, n_out);
    else
        dt_compose_out(dt__histc(s, x, lo, hi, bins), out, n_out);
}
const dt_op dt_op_histc = {
    .sig = "histc(Tensor input, int bins=100, Scalar min=0, Scalar max=0) -> Tensor",
    .doc = "How many elements fall into each of `bins` equal intervals between `min` and `max` (the data's own if both are equal), in the "
           "input's dtype.",
    .where = DT_FN | DT_METHOD,
    .compose = histc_compose,
};

static dt_status bincount_infer(dt_node *n) {
    const dt_search_attr *a = n->attr;
    const dt_meta *w = n->in[1];
    n->out[0] = (dt_type){DT_int64, 1, {a->minlength}};
    if (w) n->out[0].dtype = w->dtype == DT_float32 ? DT_float32 : DT_float64;
    return DT_OK;
}
const dt_op dt_op__bincount = {
    .sig = "_bincount(Tensor input, Tensor? weights, int minlength) -> Tensor",
    .doc = "bincount into exactly minlength bins.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_search_attr, DT_FIELD(dt_search_attr, minlength)),
    .infer = bincount_infer,
    .place = count_place,
    .kernels = {{DT_CPU, DT_INTS_MASK, dt_cpu_bincount, DT_K_CONTIGUOUS}},
};
static void bincount_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = dt_arg_get_tensor(a, 0), *w = dt_arg_get_tensor(a, 1);
    int64_t least = dt_arg_get_int(a, 2, 0);
    double top = -1, low = 0;
    *n_out = 1;
    out[0] = NULL;
    if (dt_ndim(x) != 1 || !dt_dtype_is_int((dt_dtype)dt_dtype_of(x)))
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "bincount only supports 1-d non-negative integral inputs: got %d dimensions of %s", dt_ndim(x),
                                 dt_dtype_name((dt_dtype)dt_dtype_of(x))));
    if (w && (dt_ndim(w) != 1 || dt_numel(w) != dt_numel(x)))
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "bincount: weights should be 1-d and have the same length as input, %lld, but got %lld", (long long)dt_numel(x),
                                 (long long)dt_numel(w)));
    if (least < 0) dt_scope_fail(s, dt_fail(DT_E_SHAPE, "bincount: minlength should be >= 0, got %lld", (long long)least));
    if (dt_scope_status(s)) return;
    if (dt_numel(x)) { /* the size depends on the values: wait for them */
        dt_tensor *hi = dt_max(s, x), *lo = dt_min(s, x);
        if (!hi || !lo) return;
        int st = dt_item_f64(hi, &top);
        if (!st) st = dt_item_f64(lo, &low);
        if (st) {
            dt_scope_fail(s, (dt_status)st);
            return;
        }
    }
    if (low < 0) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "bincount only supports 1-d non-negative integral inputs: got %lld", (long long)low));
        return;
    }
    int64_t bins = (int64_t)top + 1;
    dt_compose_out(dt__bincount(s, x, w, bins < least ? least : bins), out, n_out);
}
const dt_op dt_op_bincount = {
    .sig = "bincount(Tensor input, Tensor? weights=None, int minlength=0) -> Tensor",
    .doc = "How often each non-negative integer occurs in a 1-D input, or the sums of its weights. Waits for the input: the size depends "
           "on its values.",
    .where = DT_FN | DT_METHOD,
    .compose = bincount_compose,
};
