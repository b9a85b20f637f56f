/* Recurrent layers: all steps of one layer in one direction (ops/rnn.c says what the operators are).
 *
 * The weights are packed once into tiles and stay in cache while the steps go on. A tile is a few units with all their gates, so that the product
 * of the state with a tile (rows x gates * units, a few kilobytes) goes through the gates at once, while it is in the first cache level:
 *
 *      h (N x out) . tile (out x G*16)  + x's share  ->  gates  ->  c, h of 16 units          forward, one task
 *      dgates (N x G*hidden) . tile (G*hidden x 32)  + gy  ->  dh of 32 units  ->  dgates     backward, one task
 *
 * All steps are one run of the team: its tasks are numbered step by step, and a task waits until all tasks of the step before are done. Tasks are
 * taken in order, so whoever waits, waits for a thread that works: with any number of threads there is no standstill, and no thread sleeps between
 * steps. Tiles depend on the problem alone, so results do not depend on the team's size.
 * With few rows in all (a cell, one sequence being written) packing would cost more than it saves: there the products are gemm.h's, step by step.
 * Rows of step t are [off[t], off[t + 1]): sequence n is row off[t] + n, and steps only get shorter, so rows of one step lie together. */
#include "ops/rnn.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/isa/gemm.h"
#include "backend/cpu/isa/vecmath.h"

typedef struct rnn {
    dt_rnn_dims d;
    bool reverse;
    int64_t units, cols; /* of a forward tile */
    const int64_t *off;  /* (T + 1) */
    int64_t row_blocks, pack_w, packs, tasks_a, tasks_b;
    const void *x, *h0, *c0, *w, *b, *wr;
    void *y, *hn, *cn, *kept;                                /* kept: NULL if backward will not come */
    void *gy, *dx, *dh, *dc, *before, *dxh, *dy, *inner_out; /* backward; dxh is dx but for a GRU */
    void *pack, *pack_r, *inner, *product;
    int64_t step; /* where steps are run one by one */
    _Atomic int64_t done;
} rnn;

static int64_t rows_of(const rnn *s, int64_t t) { return s->off[t + 1] - s->off[t]; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
/* The step before t in the layer's direction: -1 or T if there is none. */
static int64_t before_of(const rnn *s, int64_t t) { return s->reverse ? t + 1 : t - 1; }
static bool is_step(const rnn *s, int64_t t) { return t >= 0 && t < s->d.steps; }

/* Until n tasks are done. */
static void await(rnn *s, int64_t n) {
    for (int spin = 0; atomic_load_explicit(&s->done, memory_order_acquire) < n; spin++) {
        if (spin > 4000) sched_yield();
#if defined(__x86_64__)
        else
            __builtin_ia32_pause();
#endif
    }
}

#define T float
#define SUF _f32
#define SIGMOID vm_sigmoid
#define TANH vm_tanh
#include "backend/cpu/isa/rnn_t.h"
#undef T
#undef SUF
#undef SIGMOID
#undef TANH

static inline double sigmoid_f64(double x) { return 1 / (1 + exp(-x)); }
#define T double
#define SUF _f64
#define SIGMOID sigmoid_f64
#define TANH tanh
#include "backend/cpu/isa/rnn_t.h"
#undef T

/* ---- tasks ---- */
/* Task i of all: packing first, then step by step phase A and, of projections, phase B. */
typedef void (*phase_fn)(rnn *s, int64_t step, int64_t r0, int64_t r1, int64_t tile, bool second);
typedef struct job {
    rnn *s;
    phase_fn fn;
    void (*pack)(rnn *s, int64_t i);
} job;

static void run_phase(job *j, int64_t step, int64_t i) {
    rnn *s = j->s;
    bool second = i >= s->tasks_a;
    if (second) i -= s->tasks_a;
    int64_t r0 = i % s->row_blocks * DT_RNN_ROWS;
    j->fn(s, step, r0, smaller(r0 + DT_RNN_ROWS, s->d.N), i / s->row_blocks, second);
}

static void task(void *arg, int64_t i) {
    job *j = arg;
    rnn *s = j->s;
    if (i < s->packs) {
        j->pack(s, i);
    } else {
        int64_t a_step = s->tasks_a + s->tasks_b, step = (i - s->packs) / a_step, k = (i - s->packs) % a_step;
        await(s, s->packs + step * a_step + (k >= s->tasks_a ? s->tasks_a : 0));
        run_phase(j, step, k);
    }
    atomic_fetch_add_explicit(&s->done, 1, memory_order_acq_rel);
}

static void first_phase(void *arg, int64_t i) { run_phase(arg, ((job *)arg)->s->step, i); }
static void second_phase(void *arg, int64_t i) { run_phase(arg, ((job *)arg)->s->step, ((job *)arg)->s->tasks_a + i); }

/* ---- steps one by one, where nothing is packed ---- */
static dt_gemm product_of(dt_dtype dtype, int64_t m, int64_t n, int64_t k, const void *a, const void *b, bool turned, void *c) {
    return (dt_gemm){.dtype = dtype, .m = m, .n = n, .k = k, .a = a, .b = b, .ars = k, .acs = 1, .brs = turned ? 1 : n, .bcs = turned ? k : 1, .c = c};
}

static void direct_forward(job *j, dt_dtype dtype, dt_team *team) {
    rnn *s = j->s;
    int64_t size = (int64_t)dt_dtype_size(dtype), P = s->d.P, GH = s->d.G * s->d.H;
    for (s->step = 0; s->step < s->d.steps; s->step++) {
        int64_t t = s->reverse ? s->d.steps - 1 - s->step : s->step, was = before_of(s, t), n = rows_of(s, t),
                old = is_step(s, was) ? smaller(n, rows_of(s, was)) : 0;
        if (old) {
            dt_gemm g = product_of(dtype, old, GH, P, (char *)s->y + s->off[was] * P * size, s->w, true, s->product);
            DT_ISA_FN(gemm_run)(&g, team);
        }
        if (n > old) {
            dt_gemm g = product_of(dtype, n - old, GH, P, (const char *)s->h0 + old * P * size, s->w, true, (char *)s->product + old * GH * size);
            DT_ISA_FN(gemm_run)(&g, team);
        }
        dt_team_run(team, first_phase, j, s->tasks_a);
        if (!s->d.projected || n == 0) continue;
        char *to = (char *)s->y + s->off[t] * P * size;
        dt_gemm g = product_of(dtype, n, P, s->d.H, s->inner, s->wr, true, to);
        DT_ISA_FN(gemm_run)(&g, team);
        memcpy(s->hn, to, (size_t)(n * P * size));
    }
}

static void direct_backward(job *j, dt_dtype dtype, dt_team *team) {
    rnn *s = j->s;
    int64_t size = (int64_t)dt_dtype_size(dtype), P = s->d.P, GH = s->d.G * s->d.H;
    for (s->step = 0; s->step <= s->d.steps; s->step++) {
        int64_t t = s->reverse ? s->step : s->d.steps - 1 - s->step, later = s->reverse ? t - 1 : t + 1;
        if (s->step > 0) {
            dt_gemm g = product_of(dtype, rows_of(s, later), P, GH, (char *)s->dxh + s->off[later] * GH * size, s->w, false, s->product);
            DT_ISA_FN(gemm_run)(&g, team);
        }
        dt_team_run(team, first_phase, j, s->tasks_a);
        if (!s->d.projected || s->step == s->d.steps) continue;
        dt_gemm g = product_of(dtype, rows_of(s, t), s->d.H, P, (char *)s->dy + s->off[t] * P * size, s->wr, false, s->inner);
        DT_ISA_FN(gemm_run)(&g, team);
        dt_team_run(team, second_phase, j, s->tasks_b);
    }
}

/* ---- kernels ---- */
/* The rows at which steps begin; false sizes fail. */
static dt_status offsets(const dt_rnn_dims *d, const dt_view *sizes, int64_t *off) {
    const int64_t *n = dt_view_given(sizes) ? sizes->data : NULL;
    off[0] = 0;
    for (int64_t t = 0; t < d->steps; t++) {
        int64_t k = n ? n[t] : d->N, most = t && n ? n[t - 1] : d->N;
        if (k < 0 || k > most)
            return dt_fail(DT_E_INDEX, "rnn_layer: batch_sizes[%lld] is %lld, legal are 0 to %lld", (long long)t, (long long)k, (long long)most);
        off[t + 1] = off[t] + k;
    }
    if (off[d->steps] != d->R)
        return dt_fail(DT_E_INDEX, "rnn_layer: batch_sizes sum up to %lld, but there are %lld rows", (long long)off[d->steps], (long long)d->R);
    return DT_OK;
}

static void prepare(rnn *s, char *scratch, bool backward, size_t size) {
    dt_rnn_parts p = dt_rnn_layout(&s->d, backward, size);
    s->off = (const int64_t *)(scratch + p.off);
    s->pack = scratch + p.pack;
    s->pack_r = scratch + p.pack_r;
    s->inner = scratch + p.inner;
    s->product = scratch + p.product;
    s->units = dt_rnn_units(s->d.mode);
    s->cols = s->units * s->d.G;
    s->row_blocks = dt_rnn_tiles(s->d.N, DT_RNN_ROWS);
    int64_t a = dt_rnn_tiles(backward ? s->d.P : s->d.H, backward ? DT_RNN_OUT : s->units);
    int64_t b = s->d.projected ? dt_rnn_tiles(backward ? s->d.H : s->d.P, DT_RNN_OUT) : 0;
    s->pack_w = a;
    s->packs = a + b;
    s->tasks_a = a * s->row_blocks;
    s->tasks_b = b * s->row_blocks;
}

static void copy(void *to, const dt_view *from, const dt_view *like) {
    size_t bytes = (size_t)dt_view_numel(like) * dt_dtype_size(like->dtype);
    if (!bytes) return;
    if (dt_view_given(from))
        memcpy(to, from->data, bytes);
    else
        memset(to, 0, bytes);
}

dt_status DT_ISA_FN(rnn_layer)(const dt_kctx *c) {
    const dt_rnn_attr *a = c->attr;
    const dt_view *in = c->in, *out = c->out;
    bool wide = in[0].dtype == DT_float64;
    rnn s = {.reverse = a->reverse, .x = in[DT_RNN_X].data, .h0 = in[DT_RNN_H0].data, .w = in[DT_RNN_W].data, .wr = in[DT_RNN_WR].data};
    s.d = dt_rnn_dims_of(a->mode, &in[DT_RNN_X], &in[DT_RNN_H0], &in[DT_RNN_W], &in[DT_RNN_WR], &in[DT_RNN_SIZES]);
    s.b = dt_view_given(&in[DT_RNN_B]) ? in[DT_RNN_B].data : NULL;
    s.y = out[0].data;
    s.hn = out[1].data;
    s.cn = out[2].data;
    s.kept = a->save ? out[3].data : NULL;
    prepare(&s, c->scratch, false, wide ? 8 : 4);
    DT_TRY(offsets(&s.d, &in[DT_RNN_SIZES], (int64_t *)s.off));
    copy(s.hn, &in[DT_RNN_H0], &out[1]);
    if (a->mode == DT_RNN_LSTM) copy(s.cn, &in[DT_RNN_C0], &out[2]);
    if (s.tasks_a == 0) return DT_OK;
    job j = {&s, wide ? forward_f64 : forward_f32, wide ? pack_units_f64 : pack_units_f32};
    if (s.d.direct)
        direct_forward(&j, in[0].dtype, c->team);
    else
        dt_team_run_in_order(c->team, task, &j, s.packs + s.d.steps * (s.tasks_a + s.tasks_b));
    return DT_OK;
}

dt_status DT_ISA_FN(rnn_layer_backward)(const dt_kctx *c) {
    const dt_rnn_attr *a = c->attr;
    const dt_view *in = c->in, *out = c->out;
    bool wide = in[0].dtype == DT_float64;
    rnn s = {.reverse = a->reverse, .gy = in[DT_RNN_GY].data, .kept = in[DT_RNN_RESERVE].data, .y = in[DT_RNN_Y].data, .h0 = in[DT_RNN_BH0].data};
    s.c0 = in[DT_RNN_BC0].data;
    s.w = in[DT_RNN_BW].data;
    s.wr = in[DT_RNN_BWR].data;
    s.d = dt_rnn_dims_of(a->mode, &in[DT_RNN_Y], &in[DT_RNN_BH0], &in[DT_RNN_BW], &in[DT_RNN_BWR], &in[DT_RNN_BSIZES]);
    s.dx = out[DT_RNN_GATES].data;
    s.dh = out[DT_RNN_DH].data;
    s.dc = out[DT_RNN_DC].data;
    s.before = out[DT_RNN_BEFORE].data;
    s.dxh = a->mode == DT_RNN_GRU ? out[DT_RNN_GATES_H].data : s.dx;
    s.dy = out[DT_RNN_DY].data;
    s.inner_out = out[DT_RNN_INNER].data;
    prepare(&s, c->scratch, true, wide ? 8 : 4);
    DT_TRY(offsets(&s.d, &in[DT_RNN_BSIZES], (int64_t *)s.off));
    copy(s.dh, &in[DT_RNN_GH], &out[DT_RNN_DH]);
    if (a->mode == DT_RNN_LSTM) copy(s.dc, &in[DT_RNN_GC], &out[DT_RNN_DC]);
    if (s.tasks_a == 0) return DT_OK;
    job j = {&s, wide ? backward_f64 : backward_f32, wide ? pack_outputs_f64 : pack_outputs_f32};
    if (s.d.direct)
        direct_backward(&j, in[0].dtype, c->team);
    else
        dt_team_run_in_order(c->team, task, &j, s.packs + s.d.steps * (s.tasks_a + s.tasks_b) + s.tasks_a);
    return DT_OK;
}
