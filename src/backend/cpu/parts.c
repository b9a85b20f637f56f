/* Kernels of views' scatters and gradients: a whole tensor (zeros, or a copy of the input) with one part replaced or added to. */
#include <string.h>

#include "backend/cpu/copy.h"
#include "ops/movement.h"

enum { ZERO_PIECE = 1 << 18 };
typedef struct zero_job {
    char *p;
    size_t bytes;
} zero_job;
static void zero_task(void *arg, int64_t t) {
    const zero_job *j = arg;
    size_t at = (size_t)t * ZERO_PIECE, left = j->bytes - at;
    memset(j->p + at, 0, left < ZERO_PIECE ? left : ZERO_PIECE);
}
void dt_cpu_zero_view(const dt_view *v, dt_team *team) {
    zero_job j = {v->data, (size_t)dt_view_numel(v) * dt_dtype_size(v->dtype)};
    dt_team_run(team, zero_task, &j, (int64_t)((j.bytes + ZERO_PIECE - 1) / ZERO_PIECE));
}

/* part = src; src may be a number. The part has no element twice. */
static void put_part(const dt_view *part, const dt_view *src, dt_team *team) {
    dt_view s = *src;
    if (src->ndim == 0 && part->ndim) {
        s.ndim = part->ndim;
        for (int d = 0; d < part->ndim; d++) {
            s.shape[d] = part->shape[d];
            s.stride[d] = 0;
        }
    }
    if (dt_view_numel(part)) dt_cpu_copy_view(part, &s, team);
}

/* The slice of a box that starts at lo along a->dim; *skip: how many elements of the global slice lie before it. */
static dt_slice_attr local_slice(const dt_slice_attr *a, int64_t lo, int64_t len, int64_t *skip) {
    dt_slice_attr l = *a;
    int64_t first = lo <= a->start ? 0 : (lo - a->start + a->step - 1) / a->step;
    *skip = first;
    l.start = a->start + first * a->step - lo;
    l.end = (a->end < lo + len ? a->end : lo + len) - lo;
    if (l.start > len) l.start = len;
    if (l.end < l.start) l.end = l.start;
    return l;
}

/* Entries [skip, skip + len) of src along dim: what this box takes of the part that is held here. */
static void skip_to(dt_view *src, int64_t dim, int64_t skip, int64_t len) {
    if (len > 0) src->data = (char *)src->data + skip * src->stride[dim] * (int64_t)dt_dtype_size(src->dtype);
    src->shape[dim] = len;
}

DT_CPU_KERNEL(slice_scatter);
dt_status dt_cpu_slice_scatter(const dt_kctx *c) {
    const dt_slice_attr *a = c->attr;
    dt_view part, src = c->in[1];
    int64_t skip;
    dt_cpu_copy_view(&c->out[0], &c->in[0], c->team);
    dt_slice_attr l = local_slice(a, c->out_place[0].lo[a->dim], c->out[0].shape[a->dim], &skip);
    dt_slice_view(&l, &c->out[0], &part);
    if (src.ndim) skip_to(&src, a->dim, skip - c->in_place[1].lo[a->dim], part.shape[a->dim]);
    put_part(&part, &src, c->team);
    return DT_OK;
}

/* Zero entries [lo, hi) along dim. */
static void zero_slice(const dt_view *out, int64_t dim, int64_t lo, int64_t hi, dt_team *team) {
    static const double zero = 0;
    dt_slice_attr cut = {.dim = dim, .start = lo, .end = hi, .step = 1};
    dt_view part, z = {.data = (void *)&zero, .dtype = out->dtype};
    if (hi <= lo) return;
    dt_slice_view(&cut, out, &part);
    put_part(&part, &z, team);
}

DT_CPU_KERNEL(slice_backward);
dt_status dt_cpu_slice_backward(const dt_kctx *c) {
    const dt_slice_attr *a = c->attr;
    dt_view part, src = c->in[0];
    int64_t skip;
    dt_slice_attr l = local_slice(a, c->out_place[0].lo[a->dim], c->out[0].shape[a->dim], &skip);
    if (a->step != 1)
        dt_cpu_zero_view(&c->out[0], c->team);
    else { /* only what lies before and after */
        zero_slice(&c->out[0], a->dim, 0, l.start, c->team);
        zero_slice(&c->out[0], a->dim, l.end, c->out[0].shape[a->dim], c->team);
    }
    dt_slice_view(&l, &c->out[0], &part);
    skip_to(&src, a->dim, skip - c->in_place[0].lo[a->dim], part.shape[a->dim]);
    put_part(&part, &src, c->team);
    return DT_OK;
}

DT_CPU_KERNEL(diagonal_scatter);
dt_status dt_cpu_diagonal_scatter(const dt_kctx *c) {
    dt_view part;
    dt_cpu_copy_view(&c->out[0], &c->in[0], c->team);
    dt_diagonal_view(c->attr, &c->out[0], &part);
    put_part(&part, &c->in[1], c->team);
    return DT_OK;
}

DT_CPU_KERNEL(diagonal_backward);
dt_status dt_cpu_diagonal_backward(const dt_kctx *c) {
    dt_view part;
    dt_cpu_zero_view(&c->out[0], c->team);
    dt_diagonal_view(c->attr, &c->out[0], &part);
    put_part(&part, &c->in[0], c->team);
    return DT_OK;
}

DT_CPU_KERNEL(as_strided_copy);
dt_status dt_cpu_as_strided_copy(const dt_kctx *c) {
    dt_view part;
    dt_strided_view(c->attr, &c->in[0], &part);
    if (dt_view_numel(&part)) dt_cpu_copy_view(&c->out[0], &part, c->team);
    return DT_OK;
}

DT_CPU_KERNEL(as_strided_scatter);
dt_status dt_cpu_as_strided_scatter(const dt_kctx *c) {
    dt_view part;
    dt_cpu_copy_view(&c->out[0], &c->in[0], c->team);
    dt_strided_view(c->attr, &c->out[0], &part);
    put_part(&part, &c->in[1], NULL); /* one thread: the view may name an element twice */
    return DT_OK;
}

/* ---- sums over overlapping views ---- */
/* part += src, element by element in row-major order of the part; float16 and bfloat16 round after every addition. */
#define ADD_LOOP(type) \
    for (int64_t i = 0; i < n; i++) *(type *)(d + i * ds) = (type)(*(type *)(d + i * ds) + *(const type *)(s + i * ss))
static void add_row(dt_dtype t, char *d, const char *s, int64_t n, int64_t ds, int64_t ss) {
    switch (t) {
    case DT_float32: ADD_LOOP(float); break;
    case DT_float64: ADD_LOOP(double); break;
    case DT_int64: ADD_LOOP(int64_t); break;
    case DT_int32: ADD_LOOP(int32_t); break;
    default:
        for (int64_t i = 0; i < n; i++) {
            if (dt_dtype_is_float(t))
                dt_element_set_f64(t, d + i * ds, dt_element_get_f64(t, d + i * ds) + dt_element_get_f64(t, s + i * ss));
            else
                dt_element_set_i64(t, d + i * ds, dt_element_get_i64(t, d + i * ds) + dt_element_get_i64(t, s + i * ss));
        }
    }
}

static void add_part(const dt_view *part, const dt_view *src) {
    int last = part->ndim - 1;
    int64_t elem = (int64_t)dt_dtype_size(part->dtype), n = dt_view_numel(part);
    if (n == 0) return;
    int64_t cols = last < 0 ? 1 : part->shape[last], rows = n / cols;
    for (int64_t r = 0; r < rows; r++) {
        int64_t d = 0, s = 0, k = r;
        for (int i = last - 1; i >= 0; i--) {
            d += k % part->shape[i] * part->stride[i];
            s += k % part->shape[i] * src->stride[i];
            k /= part->shape[i];
        }
        add_row(part->dtype, (char *)part->data + d * elem, (const char *)src->data + s * elem, cols, last < 0 ? 0 : part->stride[last] * elem,
                last < 0 ? 0 : src->stride[last] * elem);
    }
}

DT_CPU_KERNEL(as_strided_backward);
dt_status dt_cpu_as_strided_backward(const dt_kctx *c) {
    dt_view part;
    dt_cpu_zero_view(&c->out[0], c->team);
    dt_strided_view(c->attr, &c->out[0], &part);
    add_part(&part, &c->in[0]);
    return DT_OK;
}

DT_CPU_KERNEL(unfold_backward);
dt_status dt_cpu_unfold_backward(const dt_kctx *c) {
    dt_view part;
    dt_cpu_zero_view(&c->out[0], c->team);
    dt_unfold_view(c->attr, &c->out[0], &part);
    add_part(&part, &c->in[0]);
    return DT_OK;
}

/* ---- joins and triangles ---- */
DT_CPU_KERNEL(cat);
dt_status dt_cpu_cat(const dt_kctx *c) {
    int64_t dim = ((const dt_cat_attr *)c->attr)->dim, at = 0;
    const dt_view *o = &c->out[0];
    for (int i = 0; i < c->n_in; i++) {
        const dt_view *in = &c->in[i];
        if (in->ndim != o->ndim) continue; /* an empty 1-dim tensor counts for nothing */
        dt_view part = *o;
        part.shape[dim] = in->shape[dim];
        part.data = (char *)o->data + (size_t)(at * o->stride[dim]) * dt_dtype_size(o->dtype);
        at += in->shape[dim];
        if (dt_view_numel(in)) dt_cpu_copy_view(&part, in, c->team);
    }
    return DT_OK;
}

typedef struct tri_job {
    const dt_kctx *c;
    bool lower;
    int64_t rows, rows_a_task; /* of all matrices */
} tri_job;

/* Keep columns [k0, k1) of a row, zero the others. */
static void tri_row(const dt_view *in, char *d, const char *s, int64_t cols, int64_t k0, int64_t k1) {
    size_t elem = dt_dtype_size(in->dtype);
    int64_t stride = in->stride[in->ndim - 1];
    memset(d, 0, (size_t)k0 * elem);
    memset(d + (size_t)k1 * elem, 0, (size_t)(cols - k1) * elem);
    if (d == s || k1 <= k0) return;
    if (stride == 1)
        memcpy(d + (size_t)k0 * elem, s + (size_t)k0 * elem, (size_t)(k1 - k0) * elem);
    else
        for (int64_t j = k0; j < k1; j++) memcpy(d + (size_t)j * elem, s + (size_t)(j * stride) * elem, elem);
}
static void tri_task(void *arg, int64_t t) {
    const tri_job *j = arg;
    const dt_view *in = &j->c->in[0], *out = &j->c->out[0];
    const dt_geom *g = &j->c->out_place[0];
    int nd = in->ndim;
    size_t elem = dt_dtype_size(in->dtype);
    int64_t cols = in->shape[nd - 1], k = ((const dt_tri_attr *)j->c->attr)->diagonal, r1 = (t + 1) * j->rows_a_task;
    for (int64_t r = t * j->rows_a_task; r < (r1 < j->rows ? r1 : j->rows); r++) {
        int64_t s = 0, left = r, i = r % in->shape[nd - 2] + g->lo[nd - 2];
        for (int d = nd - 2; d >= 0; d--) {
            s += left % in->shape[d] * in->stride[d];
            left /= in->shape[d];
        }
        /* the diagonal's column in this shard: column j is kept by tril if j <= i + k, by triu if j >= i + k */
        int64_t edge = i + k - g->lo[nd - 1] + (j->lower ? 1 : 0);
        edge = edge < 0 ? 0 : edge > cols ? cols : edge;
        tri_row(in, (char *)out->data + (size_t)(r * cols) * elem, (const char *)in->data + s * (int64_t)elem, cols, j->lower ? 0 : edge,
                j->lower ? edge : cols);
    }
}
static dt_status tri(const dt_kctx *c, bool lower) {
    tri_job j = {.c = c, .lower = lower};
    int64_t cols = c->in[0].shape[c->in[0].ndim - 1], n = dt_view_numel(&c->in[0]);
    if (n == 0) return DT_OK;
    j.rows = n / cols;
    j.rows_a_task = cols >= 32768 ? 1 : 32768 / cols;
    dt_team_run(c->team, tri_task, &j, (j.rows + j.rows_a_task - 1) / j.rows_a_task);
    return DT_OK;
}
DT_CPU_KERNEL(tril);
dt_status dt_cpu_tril(const dt_kctx *c) { return tri(c, true); }
DT_CPU_KERNEL(triu);
dt_status dt_cpu_triu(const dt_kctx *c) { return tri(c, false); }
