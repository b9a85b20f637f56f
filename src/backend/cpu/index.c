/* Kernels of indexing along one dimension. See ops/index.c for the contract.
 *
 * Indices are checked first, in one pass, so the parallel part cannot fail. Work is cut in lines (all coordinates fixed but `dim`) or in rows of
 * the inner dimensions; no two tasks ever write one element, and each element's sum is taken in the order of the indices. */
#include <string.h>

#include "backend/cpu/accum.h"
#include "backend/cpu/copy.h"
#include "backend/cpu/fusing.h"
#include "ops/op.h"

enum { WORK = 32768 };

static void at_least_1d(dt_view *v) {
    if (v->ndim) return;
    v->ndim = 1;
    v->shape[0] = v->stride[0] = 1;
}

/* Element i in row-major order of an int64 view. */
static int64_t index_at(const dt_view *v, int64_t i) { return ((const int64_t *)v->data)[v->ndim == 1 ? i * v->stride[0] : dt_view_offset(v, i)]; }

static dt_status check_index(const dt_kctx *c, const dt_view *index, int64_t low, int64_t size) {
    return dt_cpu_check_index(DT_LOOKUP_SELECT, c->op, index, 0, low, size);
}
static const dt_index_attr *attr_of(const dt_kctx *c) { return c->attr; }
static int64_t product(const int64_t *v, int n) {
    int64_t p = 1;
    for (int i = 0; i < n; i++) p *= v[i];
    return p;
}
static int64_t per_task(int64_t work_each) { return work_each >= WORK ? 1 : WORK / (work_each ? work_each : 1); }
static void run(dt_team *team, dt_task_fn fn, void *job, int64_t n, int64_t each) { dt_team_run(team, fn, job, (n + each - 1) / each); }

/* ---- index_select ---- */
typedef struct select_job {
    dt_view in, index, out;
    int dim;
    int64_t lo, n, outer, inner, each; /* rows: outer * n */
    bool dense;                        /* the inner dims of `in` are contiguous */
    size_t elem;
} select_job;

static void select_task(void *arg, int64_t t) {
    const select_job *j = arg;
    int64_t rows = j->outer * j->n, r1 = (t + 1) * j->each < rows ? (t + 1) * j->each : rows, have = j->in.shape[j->dim];
    size_t row = (size_t)j->inner * j->elem;
    int64_t last_outer = -1, base = 0;
    for (int64_t r = t * j->each; r < r1; r++) {
        int64_t o = r / j->n, k = index_at(&j->index, r % j->n) - j->lo;
        if (o != last_outer) {
            base = 0;
            int64_t left = last_outer = o;
            for (int d = j->dim - 1; d >= 0; d--) {
                base += left % j->in.shape[d] * j->in.stride[d];
                left /= j->in.shape[d];
            }
        }
        char *dst = (char *)j->out.data + (size_t)r * row;
        const char *src = (const char *)j->in.data + (base + k * j->in.stride[j->dim]) * (int64_t)j->elem;
        if (k < 0 || k >= have)
            memset(dst, 0, row);
        else if (j->dense)
            memcpy(dst, src, row);
        else {
            dt_view s = {.data = (void *)src, .dtype = j->in.dtype, .ndim = j->in.ndim - j->dim - 1}, d = s;
            d.data = dst;
            for (int i = 0; i < s.ndim; i++) {
                s.shape[i] = d.shape[i] = j->in.shape[j->dim + 1 + i];
                s.stride[i] = j->in.stride[j->dim + 1 + i];
            }
            dt_view_set_contiguous(&d);
            dt_cpu_copy_view(&d, &s, NULL);
        }
    }
}
/* Single elements (dim is the last that counts): one outer index at a time. */
#define PICK(type)                                                               \
    for (int64_t i = 0; i < j->n; i++) {                                         \
        int64_t k = x[i * xs] - j->lo;                                           \
        ((type *)dst)[i] = k >= 0 && k < have ? ((const type *)src)[k * ss] : 0; \
    }                                                                            \
    break
static void pick_task(void *arg, int64_t t) {
    const select_job *j = arg;
    int64_t o1 = (t + 1) * j->each < j->outer ? (t + 1) * j->each : j->outer, have = j->in.shape[j->dim], ss = j->in.stride[j->dim];
    int64_t xs = j->index.stride[0];
    const int64_t *x = j->index.data;
    for (int64_t o = t * j->each; o < o1; o++) {
        int64_t base = 0, left = o;
        for (int d = j->dim - 1; d >= 0; d--) {
            base += left % j->in.shape[d] * j->in.stride[d];
            left /= j->in.shape[d];
        }
        char *dst = (char *)j->out.data + (size_t)(o * j->n) * j->elem;
        const char *src = (const char *)j->in.data + base * (int64_t)j->elem;
        switch (j->elem) {
        case 1: PICK(uint8_t);
        case 2: PICK(uint16_t);
        case 4: PICK(uint32_t);
        default: PICK(uint64_t);
        }
    }
}
DT_CPU_KERNEL(index_select);
dt_status dt_cpu_index_select(const dt_kctx *c) {
    select_job j = {.in = c->in[0], .index = c->in[1], .out = c->out[0], .dim = (int)attr_of(c)->dim, .elem = dt_dtype_size(c->in[0].dtype)};
    bool scalar = j.in.ndim == 0;
    at_least_1d(&j.in);
    at_least_1d(&j.index);
    DT_TRY(check_index(c, &j.index, 0, scalar ? 1 : c->in_place[0].shape[j.dim]));
    j.lo = scalar ? 0 : c->in_place[0].lo[j.dim];
    j.n = dt_view_numel(&j.index);
    j.outer = product(j.in.shape, j.dim);
    j.inner = product(j.in.shape + j.dim + 1, j.in.ndim - j.dim - 1);
    dt_view inner = {.ndim = j.in.ndim - j.dim - 1};
    for (int i = 0; i < inner.ndim; i++) {
        inner.shape[i] = j.in.shape[j.dim + 1 + i];
        inner.stride[i] = j.in.stride[j.dim + 1 + i];
    }
    j.dense = dt_view_contiguous(&inner);
    if (j.inner == 0 || j.n == 0) return DT_OK;
    if (j.inner == 1) {
        j.each = per_task(j.n);
        run(c->team, pick_task, &j, j.outer, j.each);
        return DT_OK;
    }
    j.each = per_task(j.inner);
    run(c->team, select_task, &j, j.outer * j.n, j.each);
    return DT_OK;
}

/* ---- index_add, index_copy, index_reduce, index_select_backward: rows of a source into rows of the output ---- */
typedef struct accum_job {
    const dt_kctx *c;
    dt_view out, index, src;
    const dt_view *alpha; /* NULL: 1 */
    int dim;
    dt_reduce_mode mode;
    bool include_self;
    int32_t *counts;                            /* mean: how often each entry along dim is named */
    int64_t lo, n, outer, inner, block, blocks; /* a task: one outer index, `block` columns of the inner part */
    size_t elem;
} accum_job;

static void accum_task(void *arg, int64_t t) {
    const accum_job *j = arg;
    int64_t o = t / j->blocks, k0 = t % j->blocks * j->block, n = j->inner - k0 < j->block ? j->inner - k0 : j->block;
    int64_t have = j->out.shape[j->dim];
    dt_dtype type = j->out.dtype;
    char *out = (char *)j->out.data + (size_t)(o * have * j->inner + k0) * j->elem;
    const char *src = (const char *)j->src.data + (size_t)(o * j->n * j->inner + k0) * j->elem;
    for (int64_t i = 0; i < j->n && !j->include_self; i++) {
        int64_t k = index_at(&j->index, i) - j->lo;
        for (int64_t q = 0; q < n && k >= 0 && k < have; q++) dt_cpu_accum_identity(type, j->mode, out + (size_t)(k * j->inner + q) * j->elem);
    }
    for (int64_t i = 0; i < j->n; i++) {
        int64_t k = index_at(&j->index, i) - j->lo;
        if (k < 0 || k >= have) continue;
        char *d = out + (size_t)(k * j->inner) * j->elem;
        const char *s = src + (size_t)(i * j->inner) * j->elem;
        if (j->alpha)
            dt_cpu_accum_scaled(type, d, s, n, j->alpha);
        else
            dt_cpu_accum(type, j->mode, d, s, n, 1, 1);
    }
    if (j->mode != DT_RM_MEAN) return;
    for (int64_t k = 0; k < have; k++) { /* how often k was met */
        int64_t count = j->include_self + j->counts[k];
        for (int64_t q = 0; q < n; q++) dt_cpu_accum_divide(type, out + (size_t)(k * j->inner + q) * j->elem, count);
    }
}
static dt_status accum_rows(accum_job *j) {
    const dt_kctx *c = j->c;
    bool scalar = j->out.ndim == 0;
    j->elem = dt_dtype_size(j->out.dtype);
    at_least_1d(&j->out);
    at_least_1d(&j->index);
    DT_TRY(check_index(c, &j->index, 0, scalar ? 1 : c->out_place[0].shape[j->dim]));
    j->lo = scalar ? 0 : c->out_place[0].lo[j->dim];
    j->n = dt_view_numel(&j->index);
    j->outer = product(j->out.shape, j->dim);
    j->inner = product(j->out.shape + j->dim + 1, j->out.ndim - j->dim - 1);
    if (j->inner == 0 || j->n == 0) return DT_OK;
    for (int64_t i = 0; i < j->n && j->counts; i++) {
        int64_t k = index_at(&j->index, i) - j->lo;
        if (k >= 0 && k < j->out.shape[j->dim]) j->counts[k]++;
    }
    int64_t cols = per_task(j->n);
    j->block = cols < 256 ? 256 : cols; /* a row's piece worth a function call */
    j->blocks = (j->inner + j->block - 1) / j->block;
    dt_team_run(c->team, accum_task, j, j->outer * j->blocks);
    return DT_OK;
}
size_t dt_cpu_index_accum_scratch(const dt_kctx *c);
size_t dt_cpu_index_accum_scratch(const dt_kctx *c) {
    if (attr_of(c)->mode != DT_RM_MEAN) return 0;
    return (size_t)(c->out[0].ndim ? c->out[0].shape[attr_of(c)->dim] : 1) * sizeof(int32_t);
}
DT_CPU_KERNEL(index_accum);
dt_status dt_cpu_index_accum(const dt_kctx *c) {
    const dt_index_attr *a = attr_of(c);
    accum_job j = {.c = c, .out = c->out[0], .index = c->in[1], .src = c->in[2], .dim = (int)a->dim, .mode = (dt_reduce_mode)a->mode};
    j.include_self = a->mode == DT_RM_ADD || a->mode == DT_RM_SET || a->include_self;
    if (c->n_in > 3 && dt_view_f64(&c->in[3]) != 1) j.alpha = &c->in[3];
    if (a->mode == DT_RM_MEAN) {
        j.counts = c->scratch;
        if (j.counts) memset(j.counts, 0, dt_cpu_index_accum_scratch(c));
    }
    dt_cpu_copy_view(&c->out[0], &c->in[0], c->team);
    return accum_rows(&j);
}
DT_CPU_KERNEL(index_backward_dim);
dt_status dt_cpu_index_backward_dim(const dt_kctx *c) {
    accum_job j = {.c = c, .out = c->out[0], .index = c->in[1], .src = c->in[0], .dim = (int)attr_of(c)->dim, .mode = DT_RM_ADD, .include_self = true};
    dt_cpu_zero_view(&c->out[0], c->team);
    return accum_rows(&j);
}

DT_CPU_KERNEL(index_fill);
dt_status dt_cpu_index_fill(const dt_kctx *c) {
    dt_view out = c->out[0], index = c->in[1];
    int dim = (int)attr_of(c)->dim;
    at_least_1d(&index);
    at_least_1d(&out);
    bool scalar = c->out[0].ndim == 0;
    int64_t size = scalar ? 1 : c->out_place[0].shape[dim], first = scalar ? 0 : c->out_place[0].lo[dim];
    DT_TRY(check_index(c, &index, -size, size));
    dt_cpu_copy_view(&c->out[0], &c->in[0], c->team);
    for (int64_t i = 0; i < dt_view_numel(&index); i++) {
        int64_t k = index_at(&index, i);
        k = (k < 0 ? k + size : k) - first;
        if (k < 0 || k >= out.shape[dim]) continue; /* another device holds it */
        dt_view row = out, v = out;
        row.data = (char *)out.data + (size_t)(k * out.stride[dim]) * dt_dtype_size(out.dtype);
        row.shape[dim] = v.shape[dim] = 1;
        v.data = c->in[2].data;
        for (int d = 0; d < v.ndim; d++) v.stride[d] = 0;
        dt_cpu_copy_view(&row, &v, c->team);
    }
    return DT_OK;
}

/* ---- gather and scatter: lines ---- */
typedef struct line_job {
    const dt_kctx *c;
    dt_view table, index, other; /* gather: input, index, output; scatter: output, index, src */
    int dim;
    dt_reduce_mode mode;
    bool include_self, number; /* number: `other` is one element */
    int64_t lo, n, lines, each;
    int32_t *counts; /* mean: like table */
    size_t elem;
} line_job;

/* Offsets of a line's start in the three views, by the index's coordinates. */
static void line_start(const line_job *j, int64_t line, int64_t *table, int64_t *index, int64_t *other) {
    *table = *index = *other = 0;
    for (int d = j->index.ndim - 1; d >= 0; d--) {
        if (d == j->dim) continue;
        int64_t k = line % j->index.shape[d];
        line /= j->index.shape[d];
        *table += k * j->table.stride[d];
        *index += k * j->index.stride[d];
        *other += k * j->other.stride[d];
    }
}
#define GATHER(type)                                                                                      \
    for (int64_t i = 0; i < j->n; i++, x += xs, o += os) {                                                \
        int64_t k = *x - j->lo;                                                                           \
        ((type *)j->other.data)[o] = k >= 0 && k < have ? ((const type *)j->table.data)[at + k * ts] : 0; \
    }                                                                                                     \
    break
static void gather_task(void *arg, int64_t t) {
    const line_job *j = arg;
    int64_t l1 = (t + 1) * j->each < j->lines ? (t + 1) * j->each : j->lines;
    int64_t have = j->table.shape[j->dim], xs = j->index.stride[j->dim], os = j->other.stride[j->dim], ts = j->table.stride[j->dim];
    for (int64_t l = t * j->each; l < l1; l++) {
        int64_t at, xo, o;
        line_start(j, l, &at, &xo, &o);
        const int64_t *x = (const int64_t *)j->index.data + xo;
        switch (j->elem) {
        case 1: GATHER(uint8_t);
        case 2: GATHER(uint16_t);
        case 4: GATHER(uint32_t);
        default: GATHER(uint64_t);
        }
    }
}
static dt_status line_setup(line_job *j, const dt_geom *table_place) {
    bool scalar = j->table.ndim == 0;
    j->elem = dt_dtype_size(j->table.dtype);
    j->number = j->other.ndim == 0 && j->index.ndim > 0;
    at_least_1d(&j->table);
    at_least_1d(&j->index);
    if (j->number) {
        j->other.ndim = j->index.ndim;
        for (int d = 0; d < j->index.ndim; d++) j->other.stride[d] = 0;
    }
    at_least_1d(&j->other);
    j->lo = scalar ? 0 : table_place->lo[j->dim];
    j->n = j->index.shape[j->dim];
    j->lines = j->n ? dt_view_numel(&j->index) / j->n : 0;
    j->each = per_task(j->n);
    return dt_cpu_check_index(DT_LOOKUP_GATHER, j->c->op, &j->index, j->dim, 0, scalar ? 1 : table_place->shape[j->dim]);
}
DT_CPU_KERNEL(gather);
dt_status dt_cpu_gather(const dt_kctx *c) {
    line_job j = {.c = c, .table = c->in[0], .index = c->in[1], .other = c->out[0], .dim = (int)attr_of(c)->dim};
    if (dt_view_numel(&c->in[1]) == 0) return DT_OK;
    DT_TRY(line_setup(&j, &c->in_place[0]));
    run(c->team, gather_task, &j, j.lines, j.each);
    return DT_OK;
}

static void scatter_line(const line_job *j, int64_t at, const int64_t *x, int64_t o) {
    int64_t have = j->table.shape[j->dim], xs = j->index.stride[j->dim], os = j->other.stride[j->dim], ts = j->table.stride[j->dim];
    dt_dtype type = j->table.dtype;
    for (int64_t i = 0; i < j->n && !j->include_self; i++) {
        int64_t k = x[i * xs] - j->lo;
        if (k >= 0 && k < have) dt_cpu_accum_identity(type, j->mode, (char *)j->table.data + (size_t)(at + k * ts) * j->elem);
    }
    if (j->mode == DT_RM_ADD && type == DT_float32 && have == (int64_t)j->c->out_place[0].shape[j->dim]) { /* nothing is elsewhere: no test */
        float *table = (float *)j->table.data + at;
        const float *v = (const float *)j->other.data + o;
        for (int64_t i = 0; i < j->n; i++) table[x[i * xs] * ts] += v[i * os];
        return;
    }
    for (int64_t i = 0; i < j->n; i++) {
        int64_t k = x[i * xs] - j->lo, p = at + k * ts, q = o + i * os;
        if (k < 0 || k >= have) continue;
        dt_cpu_accum(type, j->mode, (char *)j->table.data + (size_t)p * j->elem, (const char *)j->other.data + (size_t)q * j->elem, 1, 1, 1);
        if (j->counts) j->counts[p]++;
    }
    for (int64_t k = 0; k < have && j->counts; k++) {
        int64_t p = at + k * ts;
        dt_cpu_accum_divide(type, (char *)j->table.data + (size_t)p * j->elem, j->counts[p] + (j->include_self ? 1 : 0));
    }
}
static void scatter_task(void *arg, int64_t t) {
    const line_job *j = arg;
    int64_t l1 = (t + 1) * j->each < j->lines ? (t + 1) * j->each : j->lines;
    for (int64_t l = t * j->each; l < l1; l++) {
        int64_t at, xo, o;
        line_start(j, l, &at, &xo, &o);
        scatter_line(j, at, (const int64_t *)j->index.data + xo, o);
    }
}
size_t dt_cpu_scatter_scratch(const dt_kctx *c);
size_t dt_cpu_scatter_scratch(const dt_kctx *c) { return attr_of(c)->mode == DT_RM_MEAN ? (size_t)dt_view_numel(&c->out[0]) * sizeof(int32_t) : 0; }
DT_CPU_KERNEL(scatter);
dt_status dt_cpu_scatter(const dt_kctx *c) {
    const dt_index_attr *a = attr_of(c);
    line_job j = {.c = c, .table = c->out[0], .index = c->in[1], .other = c->in[2], .dim = (int)a->dim, .mode = (dt_reduce_mode)a->mode};
    j.include_self = a->include_self || a->mode == DT_RM_SET;
    if (a->mode == DT_RM_MEAN) {
        j.counts = c->scratch;
        memset(j.counts, 0, dt_cpu_scatter_scratch(c));
    }
    dt_cpu_copy_view(&c->out[0], &c->in[0], c->team);
    if (dt_view_numel(&c->in[1]) == 0) return DT_OK;
    DT_TRY(line_setup(&j, &c->out_place[0]));
    run(c->team, scatter_task, &j, j.lines, j.each);
    return DT_OK;
}
DT_CPU_KERNEL(gather_backward);
dt_status dt_cpu_gather_backward(const dt_kctx *c) {
    line_job j = {.c = c, .table = c->out[0], .index = c->in[1], .other = c->in[0], .dim = (int)attr_of(c)->dim, .mode = DT_RM_ADD, .include_self = true};
    dt_cpu_zero_view(&c->out[0], c->team);
    if (dt_view_numel(&c->in[1]) == 0) return DT_OK;
    DT_TRY(line_setup(&j, &c->out_place[0]));
    run(c->team, scatter_task, &j, j.lines, j.each);
    return DT_OK;
}
