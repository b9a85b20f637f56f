/* Convolution as blocked matrix products: patches are packed a block at a time into the panels that the micro-kernels want, so the patch matrix
 * (im2col) is never in memory as a whole.
 *
 *   conv        (O x K) . (K x columns)      K = input channels x taps, a column is an output pixel of any image
 *   conv_input  for each phase of the stride: the pixels ih = r (mod stride) see only every other tap, at unit steps in y. So a phase is a dense
 *               product like conv's, and no zeros are multiplied; the phase's weights are first arranged in scratch as conv's lie
 *   conv_weight (K x pixels) . (pixels x O)  its sum may be cut in chunks (by the problem's size), added in order
 * One packer serves all three: source index = lattice index * mult + off + tap * step, per dimension, zero outside.
 * Channels that do not mix (depthwise) take direct loops over rows. Inputs are contiguous. Blocks are on the stack (about 400 KiB). */
#include "ops/conv.h"

#include <string.h>

#include "backend/cpu/isa/gemm.h"
#include "backend/cpu/isa/shuffle.h"
#include "backend/cpu/isa/wino.h"

enum { MB = 48, SUM_BLOCK = 2048, PACK_CHANNELS = 6, FAR = 2048, ARRANGE_ROWS = 16, DEPTH_TAPS = 1024, DEPTH_WIDTH = 4096 };

typedef struct product {
    dt_dtype dtype;
    const void *src, *w, *bias;
    void *dst;
    int64_t src_channels, dst_channels, G, src_total; /* the last: elements of src */
    int64_t M, kc, taps;                              /* rows and source channels of a group, taps */
    int64_t in[3], lattice[3], mult[3];               /* source sizes, columns of an image, steps of the source per column */
    int64_t nt[3], off[3], step[3];                   /* taps per dimension and where they look */
    int64_t k[3], w0[3], ws[3];                       /* kernel sizes; the kernel index of tap t is w0 + t * ws */
    int64_t w_group, w_c, w_m;                        /* strides of the weight */
    bool rows_contiguous;                             /* reduction indices of a row of the weight follow each other */
    bool arranged;                                    /* so they do, and w is of the computing type */
    int64_t dst_size[3], dst0[3], dst_step[3];
    int64_t cols, cols_a_task, col_blocks, row_blocks;
} product;

/* Consecutive columns in one row of the lattice: `at` in the block, lattice index j, source index i (before taps). */
typedef struct run {
    int64_t at, len, n, j[3], i[3];
} run;

static int runs_of(const product *p, int64_t col0, int64_t cols, run *runs) {
    int n = 0;
    int64_t j[3], row = col0 / p->lattice[2], at = 0;
    j[2] = col0 % p->lattice[2];
    while (at < cols) {
        run *u = &runs[n++];
        j[1] = row % p->lattice[1];
        j[0] = row / p->lattice[1] % p->lattice[0];
        u->n = row / p->lattice[1] / p->lattice[0];
        u->at = at;
        u->len = p->lattice[2] - j[2] < cols - at ? p->lattice[2] - j[2] : cols - at;
        for (int d = 0; d < 3; d++) u->j[d] = j[d], u->i[d] = j[d] * p->mult[d];
        at += u->len;
        row++;
        j[2] = 0;
    }
    return n;
}

typedef struct weight_sum {
    product p; /* the patch matrix; dst: the gradient */
    const void *y;
    void *partial;
    int64_t O, Og, plane, chunks, col_blocks, row_blocks;
} weight_sum;

typedef struct arrange {
    product p;
    void *to;
} arrange;

typedef struct depth {
    const dt_conv_geom *g;
    dt_dtype dtype;
    const void *w, *bias;
    void *x, *y, *w_out;
    int64_t taps;
} depth;

/* Output columns [lo, hi) whose source column j * m + at lies in [0, W). */
static void valid(int64_t at, int64_t m, int64_t W, int64_t OW, int64_t *lo, int64_t *hi) {
    *lo = at < 0 ? (-at + m - 1) / m : 0;
    *hi = at >= W ? 0 : (W - at + m - 1) / m;
    if (*lo > OW) *lo = OW;
    if (*hi > OW) *hi = OW;
    if (*hi < *lo) *hi = *lo;
}

static void load_f64(const void *src, int64_t stride, int64_t n, double *dst) {
    const double *s = src;
    for (int64_t i = 0; i < n; i++) dst[i] = s[i * stride];
}

/* Groups of few channels at unit steps (conv_flat.h): sizes are those of the padded source. */
enum { FLAT_CHANNELS = 4, FLAT_TAPS = 64, FLAT_SIZE = 6144, FLAT_SLACK = 64 /* read and written beyond the last pixel */ };
typedef struct flat {
    dt_dtype dtype;
    const void *src, *w, *bias, *grad;
    void *dst;
    int64_t N, G, Cin, Cout, taps, in[3], out[3], pad[3], pitch[3], size, pixels, off[FLAT_TAPS];
    bool turned;
} flat;

static bool flat_plan(const dt_conv_geom *g, bool turned, flat *s) {
    bool fits = g->G > 1 && g->Cg <= FLAT_CHANNELS && g->Og <= FLAT_CHANNELS && g->k[0] * g->k[1] * g->k[2] <= FLAT_TAPS;
    *s = (flat){.N = g->N, .G = g->G, .Cin = turned ? g->Og : g->Cg, .Cout = turned ? g->Cg : g->Og, .taps = g->k[0] * g->k[1] * g->k[2], .turned = turned};
    for (int d = 0; d < 3; d++) {
        s->in[d] = turned ? g->out[d] : g->in[d];
        s->out[d] = turned ? g->in[d] : g->out[d];
        s->pad[d] = turned ? g->dil[d] * (g->k[d] - 1) - g->pad[d] : g->pad[d];
        int64_t reach = s->out[d] + g->dil[d] * (g->k[d] - 1);
        s->pitch[d] = s->in[d] + s->pad[d] > reach ? s->in[d] + s->pad[d] : reach;
        fits = fits && g->stride[d] == 1 && s->pad[d] >= 0 && s->pitch[d] < FLAT_SIZE;
    }
    if (!fits || s->pitch[0] * s->pitch[1] > FLAT_SIZE || s->pitch[0] * s->pitch[1] * s->pitch[2] > FLAT_SIZE - 4 * FLAT_SLACK) return false;
    for (int64_t t = 0; t < s->taps; t++)
        s->off[t] = (t / g->k[2] / g->k[1] * g->dil[0] * s->pitch[1] + t / g->k[2] % g->k[1] * g->dil[1]) * s->pitch[2] + t % g->k[2] * g->dil[2];
    s->pixels = ((s->out[0] - 1) * s->pitch[1] + s->out[1] - 1) * s->pitch[2] + s->out[2];
    s->size = s->pitch[0] * s->pitch[1] * s->pitch[2] + 2 * FLAT_SLACK;
    return true;
}

#define T float
#define MASK int32_t
#define SUF _f32
#define NATIVE DT_float32
#define LOAD(dtype, src, stride, n, dst) DT_ISA_FN(load_f32)(dtype, src, stride, n, dst)
#define STORE(dtype, src, n, dst) DT_ISA_FN(store_f32)(dtype, src, n, dst)
#include "backend/cpu/isa/conv_body.h"
#include "backend/cpu/isa/conv_flat.h"
#undef T
#undef MASK
#undef SUF
#undef NATIVE
#undef LOAD
#undef STORE
#define T double
#define MASK int64_t
#define SUF _f64
#define NATIVE DT_float64
#define LOAD(dtype, src, stride, n, dst) load_f64(src, stride, n, dst)
#define STORE(dtype, src, n, dst) memcpy(dst, src, (size_t)(n)*8)
#include "backend/cpu/isa/conv_body.h"
#include "backend/cpu/isa/conv_flat.h"

/* Few channels a group. For conv_weight `grad` is given: the gradient of the result. */
static bool run_flat(const dt_conv_geom *g, bool turned, dt_dtype dtype, const void *src, const void *w, const void *bias, const void *grad, void *dst,
                     dt_team *team) {
    flat s;
    if (!flat_plan(g, turned, &s)) return false;
    s.dtype = dtype;
    s.src = src;
    s.w = w;
    s.bias = bias;
    s.grad = grad;
    s.dst = dst;
    bool wide = dtype == DT_float64;
    dt_team_run(team, grad ? (wide ? flat_weight_f64 : flat_weight_f32) : (wide ? flat_task_f64 : flat_task_f32), &s, grad ? g->G : g->N * g->G);
    return true;
}

/* 1 x 1 at unit steps, one group: a product of matrices for each image, whose columns are the pixels. */
static bool is_plain(const dt_conv_geom *g) {
    for (int d = 0; d < 3; d++)
        if (g->k[d] != 1 || g->stride[d] != 1 || g->pad[d] != 0 || g->in[d] != g->out[d]) return false;
    return g->G == 1;
}
static dt_gemm plain(const dt_conv_geom *g, dt_dtype dtype, int64_t m, int64_t n, int64_t k, const void *a, const void *b, void *c) {
    return (dt_gemm){.dtype = dtype, .m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .nb = 1, .batch = {g->N}, .abs = {0}, .bbs = {k * n}, .brs = n, .bcs = 1};
}

static void run_product(product *p, dt_team *team) {
    p->row_blocks = (p->M + DT_CONV_ROWS - 1) / DT_CONV_ROWS;
    p->cols_a_task = DT_CONV_COLS;
    if (p->G * p->row_blocks * ((p->cols + DT_CONV_COLS - 1) / DT_CONV_COLS) < 16) p->cols_a_task = 64;
    p->col_blocks = (p->cols + p->cols_a_task - 1) / p->cols_a_task;
    dt_team_run(team, p->dtype == DT_float64 ? product_task_f64 : product_task_f32, p, p->G * p->row_blocks * p->col_blocks);
}

static bool is_depthwise(const dt_conv_geom *g) {
    return g->Cg == 1 && g->Og == 1 && g->k[0] * g->k[1] * g->k[2] <= DEPTH_TAPS && g->in[2] <= DEPTH_WIDTH && g->out[2] <= DEPTH_WIDTH;
}

static void copy3(int64_t *to, const int64_t *from) { memcpy(to, from, 3 * sizeof *to); }

/* The patch matrix of x: rows (channel, tap), columns output pixels. */
static product patches(const dt_conv_geom *g, const dt_view *x) {
    product p = {
        .dtype = x->dtype, .src = x->data, .src_channels = g->C, .src_total = dt_view_numel(x), .G = g->G, .kc = g->Cg, .taps = g->k[0] * g->k[1] * g->k[2]};
    copy3(p.in, g->in);
    copy3(p.lattice, g->out);
    copy3(p.mult, g->stride);
    copy3(p.nt, g->k);
    copy3(p.step, g->dil);
    copy3(p.k, g->k);
    for (int d = 0; d < 3; d++) p.off[d] = -g->pad[d], p.ws[d] = 1;
    p.cols = g->N * g->out[0] * g->out[1] * g->out[2];
    return p;
}

/* in: x, w, bias */
dt_status DT_ISA_FN(conv)(const dt_kctx *c) {
    const dt_view *x = &c->in[0], *w = &c->in[1], *b = &c->in[2], *y = &c->out[0];
    dt_conv_geom g = dt_conv_geometry(c->attr, x, w, y);
    if (dt_view_numel(y) == 0) return DT_OK;
    const void *bias = dt_view_given(b) ? b->data : NULL;
    if (run_flat(&g, false, x->dtype, x->data, w->data, bias, NULL, y->data, c->team)) return DT_OK;
    if (is_plain(&g) && !bias) {
        dt_gemm p = plain(&g, x->dtype, g.O, g.in[0] * g.in[1] * g.in[2], g.C, w->data, x->data, y->data);
        p.ars = g.C;
        p.acs = 1;
        DT_ISA_FN(gemm_run)(&p, c->team);
        return DT_OK;
    }
    if (is_depthwise(&g)) {
        depth s = {.g = &g, .dtype = x->dtype, .w = w->data, .bias = bias, .x = x->data, .y = y->data, .taps = g.k[0] * g.k[1] * g.k[2]};
        dt_team_run(c->team, x->dtype == DT_float64 ? depth_forward_f64 : depth_forward_f32, &s, g.N * g.C);
        return DT_OK;
    }
    if (dt_wino_fits(&g, x->dtype)) {
        dt_wino p = dt_wino_plan(&g, false, false);
        DT_ISA_FN(wino_product)(&p, (int64_t[2]){-g.pad[1], -g.pad[2]}, false, x->data, w->data, bias, y->data, c->scratch, c->team);
        return DT_OK;
    }
    product p = patches(&g, x);
    p.w = w->data;
    p.bias = bias;
    p.dst = y->data;
    p.dst_channels = g.O;
    p.M = g.Og;
    p.w_c = p.taps;
    p.w_m = g.Cg * p.taps;
    p.w_group = g.Og * p.w_m;
    p.rows_contiguous = true;
    copy3(p.dst_size, g.out);
    for (int d = 0; d < 3; d++) p.dst_step[d] = 1;
    run_product(&p, c->team);
    return DT_OK;
}

/* The taps that pixels r, r + stride, … of dimension d see: tap t is kernel index w0 + t * ws and looks at y[j + off + t * step]. */
static void phase(product *p, const dt_conv_geom *g, int d, int64_t r) {
    int64_t s = g->stride[d], a = g->dil[d] % s, first = -1, period = 1;
    for (int64_t t = a, n = 1; t % s; t += a, n++) period = n + 1; /* the smallest number of taps after which the phase repeats */
    for (int64_t t = 0; t < g->k[d] && t < period && first < 0; t++)
        if ((r + g->pad[d] - t * g->dil[d]) % s == 0) first = t;
    p->dst0[d] = r;
    p->dst_step[d] = s;
    p->dst_size[d] = g->in[d];
    p->lattice[d] = r < g->in[d] ? (g->in[d] - r + s - 1) / s : 0;
    p->in[d] = g->out[d];
    p->mult[d] = 1;
    p->k[d] = g->k[d];
    p->nt[d] = first < 0 ? 0 : (g->k[d] - first + period - 1) / period;
    p->w0[d] = first < 0 ? 0 : first;
    p->ws[d] = period;
    p->off[d] = (r + g->pad[d] - p->w0[d] * g->dil[d]) / s;
    p->step[d] = -(period * g->dil[d]) / s;
}

/* One phase; its weights are first arranged as conv's are, at `to`. The number of them is returned. */
static int64_t run_phase(product p, void *to, dt_team *team) {
    arrange s = {.p = p, .to = to};
    bool wide = p.dtype == DT_float64;
    dt_team_run(team, wide ? arrange_task_f64 : arrange_task_f32, &s, p.G * ((p.M + ARRANGE_ROWS - 1) / ARRANGE_ROWS));
    p.w = to;
    p.arranged = p.rows_contiguous = true;
    p.w_c = p.taps;
    p.w_m = p.kc * p.taps;
    p.w_group = p.M * p.w_m;
    run_product(&p, team);
    return p.G * p.w_group;
}

/* in: y, w; scratch: the weights in the computing type (every tap belongs to one phase) */
dt_status DT_ISA_FN(conv_input)(const dt_kctx *c) {
    const dt_view *y = &c->in[0], *w = &c->in[1], *x = &c->out[0];
    dt_conv_geom g = dt_conv_geometry(c->attr, x, w, y);
    if (dt_view_numel(x) == 0) return DT_OK;
    if (run_flat(&g, true, x->dtype, y->data, w->data, NULL, NULL, x->data, c->team)) return DT_OK;
    if (is_plain(&g)) {
        dt_gemm p = plain(&g, x->dtype, g.C, g.in[0] * g.in[1] * g.in[2], g.O, w->data, y->data, x->data);
        p.ars = 1;
        p.acs = g.C;
        DT_ISA_FN(gemm_run)(&p, c->team);
        return DT_OK;
    }
    if (is_depthwise(&g)) {
        depth s = {.g = &g, .dtype = x->dtype, .w = w->data, .x = x->data, .y = y->data, .taps = g.k[0] * g.k[1] * g.k[2]};
        dt_team_run(c->team, x->dtype == DT_float64 ? depth_input_f64 : depth_input_f32, &s, g.N * g.C);
        return DT_OK;
    }
    if (dt_wino_fits(&g, x->dtype)) {
        dt_wino p = dt_wino_plan(&g, true, false);
        DT_ISA_FN(wino_product)(&p, (int64_t[2]){g.pad[1] - 2, g.pad[2] - 2}, true, y->data, w->data, NULL, x->data, c->scratch, c->team);
        return DT_OK;
    }
    product p = {.dtype = x->dtype,
                 .src = y->data,
                 .w = w->data,
                 .dst = x->data,
                 .src_channels = g.O,
                 .src_total = dt_view_numel(y),
                 .dst_channels = g.C,
                 .G = g.G,
                 .M = g.Cg,
                 .kc = g.Og};
    p.w_m = g.k[0] * g.k[1] * g.k[2];
    p.w_c = g.Cg * p.w_m;
    p.w_group = g.Og * p.w_c;
    char *scratch = c->scratch;
    for (int64_t r0 = 0; r0 < g.stride[0]; r0++)
        for (int64_t r1 = 0; r1 < g.stride[1]; r1++)
            for (int64_t r2 = 0; r2 < g.stride[2]; r2++) {
                phase(&p, &g, 0, r0);
                phase(&p, &g, 1, r1);
                phase(&p, &g, 2, r2);
                p.taps = p.nt[0] * p.nt[1] * p.nt[2];
                p.cols = g.N * p.lattice[0] * p.lattice[1] * p.lattice[2];
                if (p.cols) scratch += run_phase(p, scratch, c->team) * (x->dtype == DT_float64 ? 8 : 4);
            }
    return DT_OK;
}

/* in: x, y; scratch: dt_conv_chunks partial sums of the computing type */
dt_status DT_ISA_FN(conv_weight)(const dt_kctx *c) {
    const dt_view *x = &c->in[0], *y = &c->in[1], *w = &c->out[0];
    dt_conv_geom g = dt_conv_geometry(c->attr, x, w, y);
    if (dt_view_numel(w) == 0) return DT_OK;
    bool wide = x->dtype == DT_float64;
    if (run_flat(&g, false, x->dtype, x->data, NULL, NULL, y->data, w->data, c->team)) return DT_OK;
    if (is_depthwise(&g)) {
        depth s = {.g = &g, .dtype = x->dtype, .w_out = w->data, .x = x->data, .y = y->data, .taps = g.k[0] * g.k[1] * g.k[2]};
        dt_team_run(c->team, wide ? depth_weight_f64 : depth_weight_f32, &s, g.C);
        return DT_OK;
    }
    if (dt_wino_fits(&g, x->dtype)) {
        dt_wino p = dt_wino_plan(&g, false, true);
        DT_ISA_FN(wino_weight)(&p, (int64_t[2]){-g.pad[1], -g.pad[2]}, x->data, y->data, w->data, c->scratch, c->team);
        return DT_OK;
    }
    weight_sum s = {.p = patches(&g, x), .y = y->data, .partial = c->scratch, .O = g.O, .Og = g.Og, .plane = g.out[0] * g.out[1] * g.out[2]};
    int64_t taps = s.p.kc * s.p.taps, total = g.O * taps;
    s.p.dst = w->data;
    s.chunks = dt_conv_chunks(&g);
    s.col_blocks = (g.Og + DT_CONV_COLS - 1) / DT_CONV_COLS;
    s.row_blocks = (taps + DT_CONV_ROWS - 1) / DT_CONV_ROWS;
    dt_team_run(c->team, wide ? weight_task_f64 : weight_task_f32, &s, g.G * s.row_blocks * s.col_blocks * s.chunks);
    dt_team_run(c->team, wide ? weight_total_f64 : weight_total_f32, &s, (total + SUM_BLOCK - 1) / SUM_BLOCK);
    return DT_OK;
}
