/* Pooling: windows of (N, C, size…), each plane a task. Inputs are contiguous. 16-bit floats are summed in f32 (scratch) and rounded once.
 * max keeps the flat position in its plane of each maximum (NaN wins), which the gradient scatters to. */
#include "ops/pool.h"

#include <math.h>

#include "backend/cpu/isa/isa.h"

typedef struct pool {
    dt_pool_geom g;
    int64_t n_in, n_out, divisor;
    bool include_pad;
    void *x, *y, *scratch;
    int64_t *index;
} pool;

#define T float
#define A float
#define SUF _f32
#define GET(v) (v)
#define PUT(v) ((float)(v))
#include "backend/cpu/isa/pool_body.h"
#undef T
#undef A
#undef SUF
#undef GET
#undef PUT
#define T double
#define A double
#define SUF _f64
#define GET(v) (v)
#define PUT(v) ((double)(v))
#include "backend/cpu/isa/pool_body.h"
#undef T
#undef A
#undef SUF
#undef GET
#undef PUT
#define T uint16_t
#define A float
#define SUF _bf16
#define GET(v) dt_bf16_to_f32(v)
#define PUT(v) dt_bf16_from_f32(v)
#include "backend/cpu/isa/pool_body.h"
#undef SUF
#undef GET
#undef PUT
#define SUF _f16
#define GET(v) dt_f16_to_f32(v)
#define PUT(v) dt_f16_from_f32(v)
#include "backend/cpu/isa/pool_body.h"

#define FOR_DTYPE(fn, dtype) (dtype == DT_float32 ? fn##_f32 : dtype == DT_float64 ? fn##_f64 : dtype == DT_bfloat16 ? fn##_bf16 : fn##_f16)

/* Planes of little work are grouped into one task. */
typedef struct group {
    dt_task_fn fn;
    const pool *s;
    int64_t planes, size;
} group;
static void group_task(void *arg, int64_t i) {
    const group *g = arg;
    for (int64_t p = i * g->size; p < (i + 1) * g->size && p < g->planes; p++) g->fn((void *)(uintptr_t)g->s, p);
}
static dt_status run(const dt_kctx *c, const pool *s, dt_task_fn fn) {
    int64_t work = s->n_in + s->n_out;
    group g = {fn, s, s->g.planes, work > 8192 ? 1 : 8192 / (work + 1) + 1};
    dt_team_run(c->team, group_task, &g, (g.planes + g.size - 1) / g.size);
    return DT_OK;
}

static pool describe(const dt_kctx *c, const dt_view *x, const dt_view *y) {
    const dt_pool_attr *a = c->attr;
    pool s = {.g = dt_pool_geometry(a, x, y), .x = x->data, .y = y->data, .scratch = c->scratch};
    s.divisor = a->divisor;
    s.include_pad = a->count_include_pad;
    s.n_in = s.g.in[0] * s.g.in[1] * s.g.in[2];
    s.n_out = s.g.out[0] * s.g.out[1] * s.g.out[2];
    return s;
}

/* x -> y, positions */
dt_status DT_ISA_FN(max_pool)(const dt_kctx *c) {
    pool s = describe(c, &c->in[0], &c->out[0]);
    s.index = c->out[1].data;
    return run(c, &s, FOR_DTYPE(max_plane, c->in[0].dtype));
}
dt_status DT_ISA_FN(avg_pool)(const dt_kctx *c) {
    pool s = describe(c, &c->in[0], &c->out[0]);
    return run(c, &s, FOR_DTYPE(avg_plane, c->in[0].dtype));
}
/* gy -> gx */
dt_status DT_ISA_FN(avg_pool_backward)(const dt_kctx *c) {
    pool s = describe(c, &c->out[0], &c->in[0]);
    return run(c, &s, FOR_DTYPE(avg_back_plane, c->in[0].dtype));
}
/* y, positions -> x */
dt_status DT_ISA_FN(pool_scatter)(const dt_kctx *c) {
    pool s = describe(c, &c->out[0], &c->in[0]);
    s.index = c->in[1].data;
    return run(c, &s, FOR_DTYPE(scatter_plane, c->in[0].dtype));
}
/* x, positions -> y */
dt_status DT_ISA_FN(pool_gather)(const dt_kctx *c) {
    pool s = describe(c, &c->in[0], &c->out[0]);
    s.index = c->in[1].data;
    return run(c, &s, FOR_DTYPE(gather_plane, c->in[0].dtype));
}
