/* Kernels of ops in stages (dt_staged in ops/op.h): extremes with their place, and scans, along a sharded dimension.
 *
 * A summary of an empty shard has the index -1, or for sums, products and logarithms of sums, whose summaries have no index, the identity. Summaries
 * are few, so that element by element through f64 (int64 for integers) is fast enough; only the last step of a scan runs over a whole shard. */
#include <math.h>
#include <string.h>

#include "backend/cpu/copy.h"
#include "ops/reduce.h"

DT_CPU_KERNEL(max_dim);
DT_CPU_KERNEL(min_dim);

static bool largest(const dt_kctx *c) { return c->op == &dt_op_max_dim || c->op == &dt_op_argmax || c->op == &dt_op_cummax; }

/* Does the element at p beat the one at q, for certain? A NaN beats everything but a NaN. */
static bool beats(dt_dtype t, const void *p, const void *q, bool largest) {
    if (!dt_dtype_is_float(t)) {
        int64_t a = dt_element_get_i64(t, p), b = dt_element_get_i64(t, q);
        return largest ? a > b : a < b;
    }
    double a = dt_element_get_f64(t, p), b = dt_element_get_f64(t, q);
    if (a != a || b != b) return a != a && b == b;
    return largest ? a > b : a < b;
}

/* ---- max, min, argmax, argmin ---- */
/* The index within the flattened shard as one within the flattened whole. */
static int64_t flat_index(const dt_view *v, const dt_geom *g, int64_t local) {
    int64_t at = 0, step = 1;
    for (int d = v->ndim - 1; d >= 0; d--) {
        at += (local % v->shape[d] + g->lo[d]) * step;
        local /= v->shape[d];
        step *= g->shape[d];
    }
    return at;
}
DT_CPU_KERNEL(extreme_part);
dt_status dt_cpu_extreme_part(const dt_kctx *c) {
    int64_t dim = ((const dt_dim_attr *)c->attr)->dim, n = dt_view_numel(&c->out[1]), *index = c->out[1].data;
    bool flat = dim == DT_NO_INT, empty = flat ? dt_view_numel(&c->in[0]) == 0 : c->in[0].shape[dim] == 0;
    for (int64_t i = 0; i < n && empty; i++) index[i] = -1;
    if (empty || n == 0) return DT_OK;
    DT_TRY(largest(c) ? dt_cpu_max_dim(c) : dt_cpu_min_dim(c));
    for (int64_t i = 0; i < n; i++) index[i] = flat ? flat_index(&c->in[0], c->in_place, index[i]) : index[i] + c->in_place->lo[dim];
    return DT_OK;
}
DT_CPU_KERNEL(extreme_join);
dt_status dt_cpu_extreme_join(const dt_kctx *c) {
    int64_t dim = ((const dt_dim_attr *)c->attr)->dim;
    dt_rows r = dt_rows_of(&c->in[0], dim == DT_NO_INT ? 0 : dim);
    size_t elem = dt_dtype_size(c->in[0].dtype);
    const char *v = c->in[0].data;
    const int64_t *index = c->in[1].data;
    bool top = largest(c);
    for (int64_t row = 0; row < r.outer * r.inner; row++) {
        int64_t base = row / r.inner * r.n * r.inner + row % r.inner, best = -1;
        for (int64_t i = 0; i < r.n; i++) { /* of equals the first; flat indices of shards do not rise in order */
            int64_t at = base + i * r.inner;
            if (index[at] < 0) continue;
            const char *p = v + (size_t)at * elem, *q = v + (size_t)best * elem;
            if (best < 0 || beats(c->in[0].dtype, p, q, top) || (index[at] < index[best] && !beats(c->in[0].dtype, q, p, top))) best = at;
        }
        if (c->n_out > 1 && best >= 0) memcpy((char *)c->out[0].data + (size_t)row * elem, v + (size_t)best * elem, elem);
        ((int64_t *)c->out[c->n_out - 1].data)[row] = best < 0 ? 0 : index[best];
    }
    return DT_OK;
}

/* ---- scans ---- */
static bool reversed(const dt_kctx *c) { return c->op == &dt_op_cumsum_reverse; }
static double log_of_sum(double a, double b) {
    double m = a > b || a != a ? a : b;
    return a == b || m == -INFINITY ? (a == b && fabs(a) < INFINITY ? a + 0.69314718055994530942 : m) : m + log1p(exp(a > b ? b - a : a - b));
}
static double fold_f64(const dt_kctx *c, double a, double b) {
    if (c->op == &dt_op_cumprod) return a * b;
    return c->op == &dt_op_logcumsumexp ? log_of_sum(a, b) : a + b;
}
static int64_t fold_i64(const dt_kctx *c, int64_t a, int64_t b) { return c->op == &dt_op_cumprod ? a * b : a + b; }
static double identity(const dt_kctx *c) { return c->op == &dt_op_cumprod ? 1 : c->op == &dt_op_logcumsumexp ? -INFINITY : 0; }

/* The last entry of each row: what the shard adds up to. */
DT_CPU_KERNEL(scan_part);
dt_status dt_cpu_scan_part(const dt_kctx *c) {
    dt_rows r = dt_rows_of(&c->in[0], ((const dt_dim_attr *)c->attr)->dim);
    dt_dtype t = c->in[0].dtype;
    size_t elem = dt_dtype_size(t);
    for (int64_t row = 0; row < r.outer * r.inner; row++) {
        int64_t at = row / r.inner * r.n * r.inner + row % r.inner + (reversed(c) ? 0 : (r.n - 1) * r.inner);
        char *to = (char *)c->out[0].data + (size_t)row * elem;
        if (r.n)
            memcpy(to, (const char *)c->in[0].data + (size_t)at * elem, elem);
        else
            dt_element_set_f64(t, to, identity(c));
        if (c->n_out > 1)
            ((int64_t *)c->out[1].data)[row] = r.n ? ((const int64_t *)c->in[1].data)[at] + c->in_place->lo[((const dt_dim_attr *)c->attr)->dim] : -1;
    }
    return DT_OK;
}

typedef struct scan_join {
    const dt_kctx *c;
    dt_rows r, s; /* of the shard, of the summaries */
    int64_t own;
} scan_join;

static void join_row(const scan_join *j, int64_t row) {
    const dt_kctx *c = j->c;
    dt_dtype t = c->in[0].dtype;
    size_t elem = dt_dtype_size(t);
    int64_t at = row / j->r.inner * j->r.n * j->r.inner + row % j->r.inner, sum = row / j->r.inner * j->s.n * j->r.inner + row % j->r.inner;
    int64_t first = reversed(c) ? j->own + 1 : 0, last = reversed(c) ? j->s.n : j->own, whole = 0;
    bool floats = dt_dtype_is_float(t);
    double acc = identity(c);
    if (!floats) whole = (int64_t)acc;
    for (int64_t i = first; i < last; i++) {
        const char *p = (const char *)c->in[1].data + (size_t)(sum + i * j->r.inner) * elem;
        if (floats)
            acc = fold_f64(c, acc, dt_element_get_f64(t, p));
        else
            whole = fold_i64(c, whole, dt_element_get_i64(t, p));
    }
    for (int64_t i = 0; i < j->r.n; i++) {
        size_t o = (size_t)(at + i * j->r.inner) * elem;
        const char *x = (const char *)c->in[0].data + o;
        if (first == last)
            memcpy((char *)c->out[0].data + o, x, elem);
        else if (floats)
            dt_element_set_f64(t, (char *)c->out[0].data + o, fold_f64(c, acc, dt_element_get_f64(t, x)));
        else
            dt_element_set_i64(t, (char *)c->out[0].data + o, fold_i64(c, whole, dt_element_get_i64(t, x)));
    }
}
/* Running extremes: of equals the last place counts, a NaN stays. in: values, indices, summaries of both. */
static void join_extreme_row(const scan_join *j, int64_t row) {
    const dt_kctx *c = j->c;
    dt_dtype t = c->in[0].dtype;
    size_t elem = dt_dtype_size(t);
    int64_t at = row / j->r.inner * j->r.n * j->r.inner + row % j->r.inner, sum = row / j->r.inner * j->s.n * j->r.inner + row % j->r.inner, best = -1;
    const int64_t *sum_index = c->in[3].data, *index = c->in[1].data;
    int64_t lo = c->in_place->lo[((const dt_dim_attr *)c->attr)->dim];
    for (int64_t i = 0; i < j->own; i++) {
        int64_t p = sum + i * j->r.inner;
        if (sum_index[p] < 0) continue;
        if (best < 0 || !beats(t, (const char *)c->in[2].data + (size_t)best * elem, (const char *)c->in[2].data + (size_t)p * elem, largest(c))) best = p;
    }
    const char *before = (const char *)c->in[2].data + (size_t)best * elem;
    for (int64_t i = 0; i < j->r.n; i++) {
        int64_t o = at + i * j->r.inner;
        const char *x = (const char *)c->in[0].data + (size_t)o * elem;
        bool keep = best < 0 || !beats(t, before, x, largest(c));
        memcpy((char *)c->out[0].data + (size_t)o * elem, keep ? x : before, elem);
        ((int64_t *)c->out[1].data)[o] = keep ? index[o] + lo : sum_index[best];
    }
}
static void join_task(void *arg, int64_t row) {
    const scan_join *j = arg;
    if (j->c->n_out > 1)
        join_extreme_row(j, row);
    else
        join_row(j, row);
}
DT_CPU_KERNEL(scan_join);
dt_status dt_cpu_scan_join(const dt_kctx *c) {
    int64_t dim = ((const dt_dim_attr *)c->attr)->dim;
    const dt_view *sums = &c->in[c->n_out];
    scan_join j = {c, dt_rows_of(&c->in[0], dim), dt_rows_of(sums, dim), c->in_place[c->n_out].lo[dim]};
    dt_team_run(c->team, join_task, &j, j.r.outer * j.r.inner);
    return DT_OK;
}
