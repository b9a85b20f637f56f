/* 3 x 3 convolution at unit steps, and its two gradients, by Winograd's minimal filtering F(2 x 2, 3 x 3) (Lavin and Gray, arXiv 1509.09308).
 *
 * A tile of 2 x 2 output pixels reads 4 x 4 input pixels d. Transformed, v = B' d B and u = G w G', their elementwise product, summed over channels,
 * gives y = A' m A: 16 multiplications where there were 36. So a convolution is 16 matrix products, one for each element e of a tile:
 *
 *   conv        M_e[tile][o] = V_e[tile][c] . U_e[c][o]        conv_input is the same with the kernel turned round and its channels exchanged
 *   conv_weight M_e[c][o]    = V_e'[c][tile] . D_e[tile][o]    F(3 x 3, 2 x 2): D the tiles of the result's gradient; same V
 *
 * The points are 0, 1, -1 and infinity: only additions and halves, and errors no larger than those of the plain sum (which has more terms). What is
 * large in a tile rounds all of it. An infinity reaches the pixels that it reaches in the plain sum, but may be NaN there; in the gradient of the
 * weight it reaches all nine taps of its channels.
 *
 * Channels are lanes: planes are transposed as they are read and written (transpose.h), so the size of the image does not matter. Blocks of tile rows
 * go through the three phases (transform, products, transform) one after the other, small enough for the last cache level; blocks depend on the
 * problem alone, and so does the result. */
#include <string.h>

#include "backend/cpu/isa/wino.h"

#define T float
#define SUF _f32
#include "backend/cpu/isa/micro.h"
#undef T
#undef SUF
#include "backend/cpu/isa/transpose.h"

enum { NR = MICRO_NR_f32, KC = 256, RB = 192, CB = 96, PIXELS = 1024, FILTERS = 16 };

typedef struct wino {
    dt_wino p;
    const float *src, *w, *bias, *grad; /* grad: y's, for conv_weight */
    float *dst, *U, *V, *M;             /* for conv_weight U holds D */
    int64_t off[2];                     /* source row and column of tile 0 */
    bool turned;                        /* conv_input: w is (C, O, 3, 3) and turned round */
    int64_t row0, rows, chunk, chunks;  /* the block of tile rows; tile rows a task */
    bool add;
} wino;

/* Consecutive tile rows of one image, from the block's tile row `at`. */
typedef struct strip {
    int64_t n, first, len;
} strip;
static strip strip_at(const wino *s, int64_t at, int64_t end) {
    int64_t r = s->row0 + at;
    strip t = {r / s->p.TH, r % s->p.TH, end - at};
    if (t.len > s->p.TH - t.first) t.len = s->p.TH - t.first;
    return t;
}

/* Task i of `tasks`: a vector of channels, and tile rows [at, end) of the block. */
typedef struct part {
    int64_t c0, channels, at, end;
} part;
static part part_of(const wino *s, int64_t i, int64_t channels) {
    part t = {.c0 = i / s->chunks * LANES, .at = i % s->chunks * s->chunk};
    t.channels = channels - t.c0 < LANES ? channels - t.c0 : LANES;
    t.end = t.at + s->chunk < s->rows ? t.at + s->chunk : s->rows;
    return t;
}

/* ---- transforms of tiles ---- */
/* Column x of four rows of pixels, through B': rows outside are NULL. */
static inline __attribute__((always_inline)) void column(const float *const row[4], int64_t x, int64_t W, lanes *out) {
    lanes d[4];
    for (int i = 0; i < 4; i++) {
        d[i] = (lanes){0};
        if (x >= 0 && x < W && row[i]) d[i] = *(const lanes *)(row[i] + x * LANES);
    }
    out[0] = d[0] - d[2];
    out[1] = d[1] + d[2];
    out[2] = d[2] - d[1];
    out[3] = d[1] - d[3];
}

/* One row of tiles from pixels (rows of W vectors) to V: element e of tile t is at v[e * ve + t * ld]. */
static void source_tiles(const float *const row[4], int64_t x, int64_t W, int64_t tiles, float *v, int64_t ve, int64_t ld) {
    lanes c[4][4];
    column(row, x, W, c[0]);
    column(row, x + 1, W, c[1]);
    for (int64_t t = 0; t < tiles; t++, v += ld, x += 2) {
        column(row, x + 2, W, c[2]);
        column(row, x + 3, W, c[3]);
        for (int i = 0; i < 4; i++) {
            *(lanes *)(v + (4 * i) * ve) = c[0][i] - c[2][i];
            *(lanes *)(v + (4 * i + 1) * ve) = c[1][i] + c[2][i];
            *(lanes *)(v + (4 * i + 2) * ve) = c[2][i] - c[1][i];
            *(lanes *)(v + (4 * i + 3) * ve) = c[1][i] - c[3][i];
            c[0][i] = c[2][i];
            c[1][i] = c[3][i];
        }
    }
}

static void source_task(void *arg, int64_t i) {
    const wino *s = arg;
    const dt_wino *p = &s->p;
    float pixels[4 * DT_WINO_WIDTH * LANES] __attribute__((aligned(64)));
    part q = part_of(s, i, p->C);
    int64_t plane = p->H * p->W;
    for (strip t; q.at < q.end; q.at += t.len) {
        t = strip_at(s, q.at, q.end);
        int64_t lo = 2 * t.first + s->off[0], hi = lo + 2 * t.len + 2, top = lo;
        if (lo < 0) lo = 0;
        if (hi > p->H) hi = p->H;
        if (hi > lo) {
            int64_t from = (t.n * p->C + q.c0) * plane + lo * p->W;
            to_lanes(s->src + from, plane, q.channels, (hi - lo) * p->W, p->N * p->C * plane - from, pixels);
        }
        for (int64_t r = 0; r < t.len; r++, top += 2) {
            const float *row[4];
            for (int k = 0; k < 4; k++) row[k] = top + k >= lo && top + k < hi ? pixels + (top + k - lo) * p->W * LANES : NULL;
            source_tiles(row, s->off[1], p->W, p->TW, s->V + (q.at + r) * p->TW * p->ldc + q.c0, p->ve, p->ldc);
        }
    }
}

/* A tile of the result from its 16 products, through A'. */
static inline __attribute__((always_inline)) void result_tile(const float *m, int64_t me, lanes y[2][2]) {
    lanes s[4][2];
    for (int i = 0; i < 4; i++) {
        lanes a = *(const lanes *)(m + 4 * i * me), b = *(const lanes *)(m + (4 * i + 1) * me), c = *(const lanes *)(m + (4 * i + 2) * me),
              d = *(const lanes *)(m + (4 * i + 3) * me);
        s[i][0] = a + b + c;
        s[i][1] = b - c - d;
    }
    for (int j = 0; j < 2; j++) {
        y[0][j] = s[0][j] + s[1][j] + s[2][j];
        y[1][j] = s[1][j] - s[2][j] - s[3][j];
    }
}

static void result_task(void *arg, int64_t i) {
    const wino *s = arg;
    const dt_wino *p = &s->p;
    float pixels[2 * DT_WINO_WIDTH * LANES] __attribute__((aligned(64)));
    part q = part_of(s, i, p->O);
    int64_t plane = p->OH * p->OW;
    lanes bias = {0};
    if (s->bias) memcpy(&bias, s->bias + q.c0, (size_t)q.channels * sizeof(float));
    for (strip t; q.at < q.end; q.at += t.len) {
        t = strip_at(s, q.at, q.end);
        int64_t top = 2 * t.first, bottom = top + 2 * t.len < p->OH ? top + 2 * t.len : p->OH;
        for (int64_t r = 0; r < t.len; r++) {
            const float *m = s->M + (q.at + r) * p->TW * p->ldm + q.c0;
            float *to = pixels + 2 * r * p->OW * LANES;
            bool second = top + 2 * r + 1 < p->OH;
            for (int64_t j = 0; j < p->TW; j++, m += p->ldm) {
                lanes y[2][2];
                result_tile(m, p->me, y);
                for (int b = 0; b < 2 && 2 * j + b < p->OW; b++) {
                    *(lanes *)(to + (2 * j + b) * LANES) = y[0][b] + bias;
                    if (second) *(lanes *)(to + (p->OW + 2 * j + b) * LANES) = y[1][b] + bias;
                }
            }
        }
        from_lanes(pixels, (bottom - top) * p->OW, s->dst + (t.n * p->O + q.c0) * plane + top * p->OW, plane, q.channels);
    }
}

/* Tiles of the result's gradient, 2 x 2, through G, to panels of NR channels: U[e][panel][tile][NR]. */
static void gradient_task(void *arg, int64_t i) {
    const wino *s = arg;
    const dt_wino *p = &s->p;
    const lanes half = (lanes){0} + 0.5f;
    float pixels[2 * DT_WINO_WIDTH * LANES] __attribute__((aligned(64)));
    part q = part_of(s, i, p->O);
    int64_t plane = p->OH * p->OW;
    float *panel = s->U + q.c0 / NR * NR * p->tiles + q.c0 % NR;
    for (strip t; q.at < q.end; q.at += t.len) {
        t = strip_at(s, q.at, q.end);
        int64_t top = 2 * t.first, bottom = top + 2 * t.len < p->OH ? top + 2 * t.len : p->OH;
        int64_t from = (t.n * p->O + q.c0) * plane + top * p->OW;
        to_lanes(s->grad + from, plane, q.channels, (bottom - top) * p->OW, p->N * p->O * plane - from, pixels);
        for (int64_t r = 0; r < t.len; r++) {
            const float *row = pixels + 2 * r * p->OW * LANES;
            float *to = panel + (q.at + r) * p->TW * NR;
            bool second = top + 2 * r + 1 < p->OH;
            for (int64_t j = 0; j < p->TW; j++, to += NR) {
                lanes g[2][2] = {{{0}}}, h[4][2];
                for (int b = 0; b < 2 && 2 * j + b < p->OW; b++) {
                    g[0][b] = *(const lanes *)(row + (2 * j + b) * LANES);
                    if (second) g[1][b] = *(const lanes *)(row + (p->OW + 2 * j + b) * LANES);
                }
                for (int b = 0; b < 2; b++) {
                    h[0][b] = g[0][b];
                    h[1][b] = (g[0][b] + g[1][b]) * half;
                    h[2][b] = (g[0][b] - g[1][b]) * half;
                    h[3][b] = g[1][b];
                }
                for (int k = 0; k < 4; k++) {
                    *(lanes *)(to + (4 * k) * p->ue) = h[k][0];
                    *(lanes *)(to + (4 * k + 1) * p->ue) = (h[k][0] + h[k][1]) * half;
                    *(lanes *)(to + (4 * k + 2) * p->ue) = (h[k][0] - h[k][1]) * half;
                    *(lanes *)(to + (4 * k + 3) * p->ue) = h[k][1];
                }
            }
        }
    }
}

/* ---- transforms of kernels ---- */
/* 3 x 3 taps of L output channels, through G: element e to u[e * ue]. Turned round, elements 0 and 3 of each dimension change places. */
static void filter(const float *w, bool turned, float *u, int64_t ue) {
    const lanes half = (lanes){0} + 0.5f;
    lanes h[4][3];
    for (int b = 0; b < 3; b++) {
        lanes g0 = *(const lanes *)(w + b * LANES), g1 = *(const lanes *)(w + (3 + b) * LANES), g2 = *(const lanes *)(w + (6 + b) * LANES), s = g0 + g2;
        h[0][b] = turned ? g2 : g0;
        h[1][b] = (s + g1) * half;
        h[2][b] = (s - g1) * half;
        h[3][b] = turned ? g0 : g2;
    }
    for (int k = 0; k < 4; k++) {
        lanes s = h[k][0] + h[k][2];
        *(lanes *)(u + (4 * k) * ue) = turned ? h[k][2] : h[k][0];
        *(lanes *)(u + (4 * k + 1) * ue) = (s + h[k][1]) * half;
        *(lanes *)(u + (4 * k + 2) * ue) = (s - h[k][1]) * half;
        *(lanes *)(u + (4 * k + 3) * ue) = turned ? h[k][0] : h[k][2];
    }
}

/* Task i: a vector of output channels by FILTERS input channels. */
typedef struct filters {
    int64_t o0, channels, c0, n;
} filters;
static filters filters_of(const dt_wino *p, int64_t i) {
    int64_t blocks = (p->C + FILTERS - 1) / FILTERS;
    filters f = {.o0 = i / blocks * LANES, .c0 = i % blocks * FILTERS};
    f.channels = p->O - f.o0 < LANES ? p->O - f.o0 : LANES;
    f.n = p->C - f.c0 < FILTERS ? p->C - f.c0 : FILTERS;
    return f;
}

/* To panels: U[e][panel][c][NR]. */
static void filter_task(void *arg, int64_t i) {
    const wino *s = arg;
    const dt_wino *p = &s->p;
    float taps[FILTERS * 9 * LANES] __attribute__((aligned(64)));
    filters f = filters_of(p, i);
    float *u = s->U + f.o0 / NR * NR * p->C + f.o0 % NR;
    int64_t total = p->O * p->C * 9;
    if (!s->turned) to_lanes(s->w + (f.o0 * p->C + f.c0) * 9, p->C * 9, f.channels, f.n * 9, total - (f.o0 * p->C + f.c0) * 9, taps);
    for (int64_t c = 0; c < f.n; c++) {
        int64_t from = ((f.c0 + c) * p->O + f.o0) * 9;
        if (s->turned) to_lanes(s->w + from, 9, f.channels, 9, total - from, taps + c * 9 * LANES);
        filter(taps + c * 9 * LANES, s->turned, u + (f.c0 + c) * NR, p->ue);
    }
}

/* The gradient of the weight from its products M[e][c][o], through A'. */
static void kernel_task(void *arg, int64_t i) {
    const wino *s = arg;
    const dt_wino *p = &s->p;
    float taps[FILTERS * 9 * LANES] __attribute__((aligned(64)));
    filters f = filters_of(p, i);
    for (int64_t c = 0; c < f.n; c++) {
        const float *m = s->M + (f.c0 + c) * p->ldm + f.o0;
        lanes h[4][3];
        for (int k = 0; k < 4; k++) {
            lanes a = *(const lanes *)(m + 4 * k * p->me), b = *(const lanes *)(m + (4 * k + 1) * p->me), d = *(const lanes *)(m + (4 * k + 2) * p->me),
                  e = *(const lanes *)(m + (4 * k + 3) * p->me);
            h[k][0] = a + b + d;
            h[k][1] = b - d;
            h[k][2] = b + d - e;
        }
        for (int b = 0; b < 3; b++) {
            float *to = taps + (c * 9 + b) * LANES;
            *(lanes *)to = h[0][b] + h[1][b] + h[2][b];
            *(lanes *)(to + 3 * LANES) = h[1][b] - h[2][b];
            *(lanes *)(to + 6 * LANES) = h[1][b] + h[2][b] - h[3][b];
        }
    }
    from_lanes(taps, f.n * 9, s->dst + (f.o0 * p->C + f.c0) * 9, p->C * 9, f.channels);
}

/* ---- the 16 products ---- */
static int64_t whole_lanes(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* One element and RB tiles: M[tile][o] = V[tile][c] U[c][o]. */
static void product_task(void *arg, int64_t i) {
    const wino *s = arg;
    const dt_wino *p = &s->p;
    int64_t tiles = s->rows * p->TW, blocks = (tiles + RB - 1) / RB, e = i / blocks, t0 = i % blocks * RB, n = tiles - t0 < RB ? tiles - t0 : RB;
    const float *v = s->V + e * p->ve + t0 * p->ldc, *u = s->U + e * p->ue;
    float *m = s->M + e * p->me + t0 * p->ldm;
    int64_t O = whole_lanes(p->O);
    for (int64_t k = 0; k < p->C; k += KC)
        for (int64_t o = 0; o < O; o += NR)
            micro_panel_f32(n, O - o < NR ? O - o : NR, p->C - k < KC ? p->C - k : KC, v + k, p->ldc, 1, u + o * p->C + k * NR, NR, m + o, p->ldm, k > 0);
}

/* One element and CB input channels: M[c][o] += V'[c][tile] D[tile][o]. */
static void weight_task(void *arg, int64_t i) {
    const wino *s = arg;
    const dt_wino *p = &s->p;
    int64_t blocks = (p->C + CB - 1) / CB, e = i / blocks, c0 = i % blocks * CB, n = p->C - c0 < CB ? p->C - c0 : CB, tiles = s->rows * p->TW;
    const float *v = s->V + e * p->ve + c0, *d = s->U + e * p->ue;
    float *m = s->M + e * p->me + c0 * p->ldm;
    int64_t O = whole_lanes(p->O);
    for (int64_t k = 0; k < tiles; k += KC)
        for (int64_t o = 0; o < O; o += NR)
            micro_panel_f32(n, O - o < NR ? O - o : NR, tiles - k < KC ? tiles - k : KC, v + k * p->ldc, 1, p->ldc, d + o * p->tiles + k * NR, NR, m + o,
                            p->ldm, s->add || k > 0);
}

/* ---- the three kernels ---- */
static void start(wino *s, void *scratch) {
    s->V = scratch;
    s->M = s->V + 16 * s->p.ve;
    s->U = s->M + 16 * s->p.me;
}
/* The next block of tile rows, and how many of them a task takes whose rows of pixels are W wide. */
static bool next(wino *s) {
    s->row0 += s->rows;
    int64_t left = s->p.N * s->p.TH - s->row0;
    s->rows = left < s->p.rows ? left : s->p.rows;
    return s->rows > 0;
}
static int64_t tasks(wino *s, int64_t W, int64_t channels) {
    s->chunk = (PIXELS / W - 2) / 2;
    if (s->chunk < 1) s->chunk = 1;
    if (s->chunk > s->rows) s->chunk = s->rows;
    s->chunks = (s->rows + s->chunk - 1) / s->chunk;
    return s->chunks * (whole_lanes(channels) / LANES);
}

/* conv, and conv_input if turned: source (N, C, H, W), result (N, O, OH, OW), whose tile 0 begins at source pixel -pad. */
void DT_ISA_FN(wino_product)(const dt_wino *p, const int64_t *off, bool turned, const float *src, const float *w, const float *bias, float *dst, void *scratch,
                             dt_team *team) {
    wino s = {.p = *p, .src = src, .w = w, .bias = bias, .dst = dst, .off = {off[0], off[1]}, .turned = turned};
    start(&s, scratch);
    dt_team_run(team, filter_task, &s, whole_lanes(p->O) / LANES * ((p->C + FILTERS - 1) / FILTERS));
    while (next(&s)) {
        dt_team_run(team, source_task, &s, tasks(&s, p->W, p->C));
        dt_team_run(team, product_task, &s, 16 * ((s.rows * p->TW + RB - 1) / RB));
        dt_team_run(team, result_task, &s, tasks(&s, p->OW, p->O));
    }
}

void DT_ISA_FN(wino_weight)(const dt_wino *p, const int64_t *off, const float *src, const float *grad, float *dst, void *scratch, dt_team *team) {
    wino s = {.p = *p, .src = src, .grad = grad, .dst = dst, .off = {off[0], off[1]}};
    start(&s, scratch);
    while (next(&s)) {
        dt_team_run(team, source_task, &s, tasks(&s, p->W, p->C));
        dt_team_run(team, gradient_task, &s, tasks(&s, p->OW, p->O));
        dt_team_run(team, weight_task, &s, 16 * ((p->C + CB - 1) / CB));
        s.add = true;
    }
    dt_team_run(team, kernel_task, &s, whole_lanes(p->O) / LANES * ((p->C + FILTERS - 1) / FILTERS));
}
