/* Searching and counting: searchsorted, histc, bincount. Contiguous inputs. */
#include <math.h>
#include <string.h>

#include "ops/sort.h"

DT_CPU_KERNEL(searchsorted);
DT_CPU_KERNEL(histc);
DT_CPU_KERNEL(bincount);

/* First position whose value is >= x (right: > x), by comparisons that put NaN last. `sorter` orders the row if given. */
static int64_t find(const dt_view *seq, const int64_t *sorter, int64_t row, int64_t n, double x, bool right) {
    int64_t lo = 0, hi = n, size = (int64_t)dt_dtype_size(seq->dtype);
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2, at = sorter ? sorter[row * n + mid] : mid;
        double v = dt_element_get_f64(seq->dtype, (const char *)seq->data + (row * n + at) * size);
        bool before = right ? !(x < v) && !(v != v && x == x) : v < x || (x != x && v == v);
        if (before)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* in: sorted_sequence (n) or (…, n), values (…, m), sorter?   out: positions */
DT_CPU_KERNEL(searchsorted) {
    const dt_search_attr *a = c->attr;
    const dt_view *seq = &c->in[0], *v = &c->in[1], *o = &c->out[0];
    const int64_t *sorter = dt_view_given(&c->in[2]) ? c->in[2].data : NULL;
    int64_t n = seq->shape[seq->ndim - 1], total = dt_view_numel(v), m = v->ndim ? v->shape[v->ndim - 1] : 1, size = (int64_t)dt_dtype_size(v->dtype);
    for (int64_t i = 0; sorter && i < dt_view_numel(seq); i++)
        if (sorter[i] < 0 || sorter[i] >= n)
            return dt_fail(DT_E_INDEX, "searchsorted(): sorter index %lld out of range [0, %lld)", (long long)sorter[i], (long long)n);
    for (int64_t i = 0; i < total; i++) {
        double x = dt_element_get_f64(v->dtype, (const char *)v->data + i * size);
        int64_t at = find(seq, sorter, seq->ndim == 1 ? 0 : i / m, n, x, a->right);
        if (a->out_int32)
            ((int32_t *)o->data)[i] = (int32_t)at;
        else
            ((int64_t *)o->data)[i] = at;
    }
    return DT_OK;
}

/* in: x, min (), max ()   out: counts (bins) in x's dtype */
DT_CPU_KERNEL(histc) {
    const dt_search_attr *a = c->attr;
    const dt_view *x = &c->in[0];
    double lo = dt_view_f64(&c->in[1]), hi = dt_view_f64(&c->in[2]);
    int64_t total = dt_view_numel(x), xs = (int64_t)dt_dtype_size(x->dtype), os = (int64_t)dt_dtype_size(c->out->dtype);
    char *out = c->out->data;
    memset(out, 0, (size_t)(a->bins * os));
    if (lo == hi) lo -= 1, hi += 1;
    if (!isfinite(lo) || !isfinite(hi)) return dt_fail(DT_E_SHAPE, "histc: range of [%g, %g] is not finite", lo, hi);
    if (lo > hi) return dt_fail(DT_E_SHAPE, "histc: max must be larger than min, got min=%g, max=%g", lo, hi);
    for (int64_t i = 0; i < total; i++) {
        double v = dt_element_get_f64(x->dtype, (const char *)x->data + i * xs);
        if (!(v >= lo && v <= hi)) continue;
        int64_t b = (int64_t)((v - lo) / (hi - lo) * (double)a->bins);
        char *p = out + (b < a->bins ? b : a->bins - 1) * os;
        dt_element_set_f64(c->out->dtype, p, dt_element_get_f64(c->out->dtype, p) + 1);
    }
    return DT_OK;
}

/* in: x (n) integers, weights?   out: (minlength) int64, or the weights' sums */
DT_CPU_KERNEL(bincount) {
    const dt_search_attr *a = c->attr;
    const dt_view *x = &c->in[0], *w = &c->in[1], *o = &c->out[0];
    int64_t n = dt_view_numel(x), xs = (int64_t)dt_dtype_size(x->dtype), os = (int64_t)dt_dtype_size(o->dtype);
    bool given = dt_view_given(w);
    memset(o->data, 0, (size_t)(a->minlength * os));
    for (int64_t i = 0; i < n; i++) {
        int64_t b = dt_element_get_i64(x->dtype, (const char *)x->data + i * xs);
        if (b < 0 || b >= a->minlength) return dt_fail(DT_E_SHAPE, "bincount only supports 1-d non-negative integral inputs: got %lld", (long long)b);
        char *p = (char *)o->data + b * os;
        if (given)
            dt_element_set_f64(o->dtype, p,
                               dt_element_get_f64(o->dtype, p) + dt_element_get_f64(w->dtype, (const char *)w->data + i * (int64_t)dt_dtype_size(w->dtype)));
        else
            ++*(int64_t *)p;
    }
    return DT_OK;
}
