/* Kernels of factories: fill, arange, linspace, logspace, eye. Values follow from the global index, so a shard holds its part of the whole. */
#include <math.h>
#include <string.h>

#include "ops/factory.h"
#include "ops/kernel.h"
#include "ops/pointwise.h"

DT_CPU_KERNEL(fill);
DT_CPU_KERNEL(arange);
DT_CPU_KERNEL(linspace);
DT_CPU_KERNEL(eye);

typedef struct fill_job {
    char *out;
    size_t bytes, elem;
    char pattern[4096];
} fill_job;
enum { FILL_TASK = 1 << 18 };

static void fill_task(void *arg, int64_t t) {
    const fill_job *j = arg;
    size_t at = (size_t)t * FILL_TASK, end = at + FILL_TASK < j->bytes ? at + FILL_TASK : j->bytes;
    for (; at < end; at += sizeof j->pattern) memcpy(j->out + at, j->pattern, end - at < sizeof j->pattern ? end - at : sizeof j->pattern);
}

/* out = the last input, a 0-dim operand of out's dtype. Whatever precedes it only lends its shape. */
dt_status dt_cpu_fill(const dt_kctx *c) {
    const dt_view *o = &c->out[0], *v = &c->in[c->n_in - 1];
    fill_job j = {.out = o->data, .elem = dt_dtype_size(o->dtype)};
    j.bytes = (size_t)dt_view_numel(o) * j.elem;
    for (size_t i = 0; i < sizeof j.pattern && i < j.bytes; i += j.elem) memcpy(j.pattern + i, v->data, j.elem);
    int64_t tasks = (int64_t)((j.bytes + FILL_TASK - 1) / FILL_TASK);
    if (tasks == 1)
        fill_task(&j, 0);
    else
        dt_team_run(c->team, fill_task, &j, tasks);
    return DT_OK;
}

/* ---- one-dimensional ranges -------------------------------------------------------------------------------------------------- */
typedef struct range_job {
    const dt_kctx *c;
    bool integers;
    int64_t n, istart, istep;
    double start, step, end, base; /* base: NaN for linspace and arange */
} range_job;
enum { RANGE_TILE = 512, RANGE_TASK = 32 * RANGE_TILE };

/* Values [lo, hi) of the local part, computed in double or int64, then cast. */
static void range_task(void *arg, int64_t t) {
    const range_job *j = arg;
    const dt_view *o = &j->c->out[0];
    int64_t lo = t * RANGE_TASK, hi = lo + RANGE_TASK < o->shape[0] ? lo + RANGE_TASK : o->shape[0], first = j->c->out_place[0].lo[0];
    dt_pw_fn cast = dt_cpu_pw_cast(j->integers ? DT_int64 : DT_float64, o->dtype);
    union {
        double f[RANGE_TILE];
        int64_t i[RANGE_TILE];
    } tile;
    for (int64_t at = lo; at < hi; at += RANGE_TILE) {
        int64_t m = hi - at < RANGE_TILE ? hi - at : RANGE_TILE;
        for (int64_t k = 0; k < m; k++) {
            int64_t i = first + at + k;
            if (j->integers)
                tile.i[k] = (int64_t)((uint64_t)j->istart + (uint64_t)i * (uint64_t)j->istep);
            else if (j->end == j->end && i >= j->n / 2) /* linspace counts from both ends */
                tile.f[k] = j->end - j->step * (double)(j->n - 1 - i);
            else
                tile.f[k] = j->start + j->step * (double)i;
            if (j->base == j->base) tile.f[k] = pow(j->base, tile.f[k]);
        }
        cast(m, (char *)o->data + at * (int64_t)dt_dtype_size(o->dtype), (const void *[]){&tile}, NULL);
    }
}

static dt_status run_range(range_job *j) {
    int64_t tasks = (j->c->out[0].shape[0] + RANGE_TASK - 1) / RANGE_TASK;
    if (tasks == 1)
        range_task(j, 0);
    else
        dt_team_run(j->c->team, range_task, j, tasks);
    return DT_OK;
}

/* in: start, step, both int64 or both float64 */
dt_status dt_cpu_arange(const dt_kctx *c) {
    range_job j = {.c = c, .integers = c->in[0].dtype == DT_int64, .end = NAN, .base = NAN};
    if (j.integers)
        j.istart = dt_view_i64(&c->in[0]), j.istep = dt_view_i64(&c->in[1]);
    else
        j.start = dt_view_f64(&c->in[0]), j.step = dt_view_f64(&c->in[1]);
    return run_range(&j);
}

/* in: start, end as float64; attr: steps, base */
dt_status dt_cpu_linspace(const dt_kctx *c) {
    const dt_linspace_attr *a = c->attr;
    range_job j = {.c = c, .n = a->steps, .start = dt_view_f64(&c->in[0]), .end = dt_view_f64(&c->in[1]), .base = a->base};
    j.step = a->steps > 1 ? (j.end - j.start) / (double)(a->steps - 1) : 0.0;
    if (a->steps == 1) j.end = NAN;
    return run_range(&j);
}

dt_status dt_cpu_eye(const dt_kctx *c) {
    const dt_view *o = &c->out[0];
    const dt_geom *g = &c->out_place[0];
    size_t e = dt_dtype_size(o->dtype);
    memset(o->data, 0, (size_t)dt_view_numel(o) * e);
    for (int64_t i = 0; i < o->shape[0]; i++) {
        int64_t k = g->lo[0] + i - g->lo[1];
        if (k >= 0 && k < o->shape[1]) dt_element_set_f64(o->dtype, (char *)o->data + (size_t)(i * o->shape[1] + k) * e, 1.0);
    }
    return DT_OK;
}
