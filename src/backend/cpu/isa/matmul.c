/* Matrix products as kernels: matmul and gemm (batched, transposed, broadcast), linear, outer_sum, dot. Each describes its operands to
 * gemm_run (gemm.h), which splits and computes; integers take simple loops here. Any strides. */
#include "backend/cpu/isa/gemm.h"

#include <string.h>

#include "ops/matmul.h"

/* ---- integers: exact, modulo 2^bits ---- */
typedef struct ints {
    const dt_gemm *g;
    int64_t rows; /* a task */
} ints;

static int64_t offset(int n, const int64_t *size, const int64_t *stride, int64_t i) {
    int64_t o = 0;
    for (int d = n - 1; d >= 0; d--) {
        o += i % size[d] * stride[d];
        i /= size[d];
    }
    return o;
}

#define INT_LOOP(type)                                                                                                               \
    do {                                                                                                                             \
        const type *a = (const type *)g->a + offset(g->nb, g->batch, g->abs, b) + m * g->ars;                                        \
        const type *bm = (const type *)g->b + offset(g->nb, g->batch, g->bbs, b);                                                    \
        type *c = (type *)g->c + row * g->n;                                                                                         \
        for (int64_t j = 0; j < g->n; j++) {                                                                                         \
            uint64_t sum = g->bias ? (uint64_t)((const type *)g->bias)[j * g->bias_stride] : 0;                                      \
            for (int64_t t = 0; t < terms; t++) {                                                                                    \
                const type *at = a + offset(g->nt, g->terms, g->ats, t), *bt = bm + offset(g->nt, g->terms, g->bts, t) + j * g->bcs; \
                for (int64_t p = 0; p < g->k; p++) sum += (uint64_t)at[p * g->acs] * (uint64_t)bt[p * g->brs];                       \
            }                                                                                                                        \
            c[j] = (type)sum;                                                                                                        \
        }                                                                                                                            \
    } while (0)

static void int_task(void *arg, int64_t i) {
    const ints *s = arg;
    const dt_gemm *g = s->g;
    int64_t total = g->m, terms = 1;
    for (int d = 0; d < g->nb; d++) total *= g->batch[d];
    for (int d = 0; d < g->nt; d++) terms *= g->terms[d];
    for (int64_t row = i * s->rows; row < (i + 1) * s->rows && row < total; row++) {
        int64_t b = row / g->m, m = row % g->m;
        switch (dt_dtype_size(g->dtype)) {
        case 1:
            if (g->dtype == DT_int8)
                INT_LOOP(int8_t);
            else
                INT_LOOP(uint8_t);
            break;
        case 2: INT_LOOP(int16_t); break;
        case 4: INT_LOOP(int32_t); break;
        default: INT_LOOP(int64_t);
        }
    }
}

static dt_status run(const dt_kctx *c, dt_gemm *g) {
    g->dtype = c->out[0].dtype;
    g->c = c->out[0].data;
    if (dt_dtype_is_float(g->dtype)) {
        DT_ISA_FN(gemm_run)(g, c->team);
        return DT_OK;
    }
    int64_t rows = g->m, per = g->n * g->k + 1;
    for (int d = 0; d < g->nb; d++) rows *= g->batch[d];
    for (int d = 0; d < g->nt; d++) per *= g->terms[d];
    ints s = {g, 1 + 100000 / (per + 1)};
    if (rows) dt_team_run(c->team, int_task, &s, (rows + s.rows - 1) / s.rows);
    return DT_OK;
}

/* ---- matmul and gemm ---- */
/* The batch dimensions of an operand of rank >= 2, right-aligned to nb. */
static void batch_strides(const dt_view *v, int nb, int64_t *stride) {
    for (int d = 0; d < nb; d++) {
        int from = d - (nb - (v->ndim - 2));
        stride[d] = from < 0 || v->shape[from] == 1 ? 0 : v->stride[from];
    }
}

static dt_status product(const dt_kctx *c, bool ta, bool tb) {
    const dt_view *a = &c->in[0], *b = &c->in[1], *o = &c->out[0];
    int64_t one[2] = {0};
    dt_gemm g = {.a = a->data, .b = b->data};
    const int64_t *as = a->ndim == 1 ? NULL : a->stride + a->ndim - 2, *bs = b->ndim == 1 ? NULL : b->stride + b->ndim - 2;
    const int64_t *ad = a->ndim == 1 ? one : a->shape + a->ndim - 2, *bd = b->ndim == 1 ? one : b->shape + b->ndim - 2;
    g.m = as ? ad[ta] : 1;
    g.k = as ? ad[!ta] : a->shape[0];
    g.n = bs ? bd[!tb] : 1;
    g.ars = as ? as[ta] : 0;
    g.acs = as ? as[!ta] : a->stride[0];
    g.brs = bs ? bs[tb] : b->stride[0];
    g.bcs = bs ? bs[!tb] : 0;
    g.nb = o->ndim - (as != NULL) - (bs != NULL);
    for (int d = 0; d < g.nb; d++) g.batch[d] = o->shape[d];
    if (as) batch_strides(a, g.nb, g.abs);
    if (bs) batch_strides(b, g.nb, g.bbs);
    return run(c, &g);
}

dt_status DT_ISA_FN(matmul)(const dt_kctx *c) { return product(c, false, false); }
dt_status DT_ISA_FN(gemm)(const dt_kctx *c) {
    const dt_gemm_attr *a = c->attr;
    return product(c, a->ta, a->tb);
}

/* y (…, n) = x (…, k) W' (n, k) + bias (n,) */
dt_status DT_ISA_FN(linear)(const dt_kctx *c) {
    const dt_view *x = &c->in[0], *w = &c->in[1];
    dt_gemm g = {
        .a = x->data, .b = w->data, .m = 1, .n = w->shape[0], .k = w->shape[1], .acs = x->stride[x->ndim - 1], .brs = w->stride[1], .bcs = w->stride[0]};
    g.nb = x->ndim - 1;
    for (int d = 0; d < g.nb; d++) {
        g.batch[d] = x->shape[d];
        g.abs[d] = x->shape[d] == 1 ? 0 : x->stride[d];
    }
    if (dt_view_given(&c->in[2])) {
        g.bias = c->in[2].data;
        g.bias_stride = c->in[2].stride[0];
    }
    return run(c, &g);
}

/* out (p, q) = sum over the leading dimensions of a (…, p) b (…, q) */
dt_status DT_ISA_FN(outer_sum)(const dt_kctx *c) {
    const dt_view *a = &c->in[0], *b = &c->in[1];
    dt_gemm g = {.a = a->data, .b = b->data, .k = 1};
    int last = a->ndim - 1;
    g.m = a->shape[last];
    g.n = b->shape[last];
    g.ars = a->stride[last];
    g.bcs = b->stride[last];
    g.nt = last;
    for (int d = 0; d < last; d++) {
        g.terms[d] = a->shape[d];
        g.ats[d] = a->stride[d];
        g.bts[d] = b->stride[d];
        if (a->shape[d] == 0) g.nt = 0, g.k = 0; /* an empty sum */
        if (g.k == 0) break;
    }
    return run(c, &g);
}

/* ---- dot: fixed blocks of lanes, then the blocks in double ---- */
static double dot_block(const float *a, const float *b, int64_t n) {
    float lane[64] = {0};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 64; j++) lane[j] += a[i + j] * b[i + j];
    for (int j = 0; i < n; i++, j++) lane[j] += a[i] * b[i];
    for (int w = 32; w; w /= 2)
        for (int j = 0; j < w; j++) lane[j] += lane[j + w];
    return lane[0];
}

dt_status DT_ISA_FN(dot)(const dt_kctx *c) {
    const dt_view *a = &c->in[0], *b = &c->in[1];
    int64_t n = a->shape[0];
    size_t size = dt_dtype_size(a->dtype);
    if (!dt_dtype_is_float(a->dtype) || a->dtype == DT_float64) {
        dt_gemm g = {.a = a->data, .b = b->data, .m = 1, .n = 1, .k = n, .acs = a->stride[0], .brs = b->stride[0]};
        return run(c, &g);
    }
    double sum = 0;
    float x[1024], y[1024];
    for (int64_t i = 0; i < n; i += 1024) {
        int64_t m = n - i < 1024 ? n - i : 1024;
        DT_ISA_FN(load_f32)(a->dtype, (const char *)a->data + (size_t)(i * a->stride[0]) * size, a->stride[0], m, x);
        DT_ISA_FN(load_f32)(b->dtype, (const char *)b->data + (size_t)(i * b->stride[0]) * size, b->stride[0], m, y);
        sum += dot_block(x, y, m);
    }
    dt_element_set_f64(a->dtype, c->out[0].data, sum);
    return DT_OK;
}
