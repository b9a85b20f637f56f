/* Random kernels whose elements need many draws: permutations, multinomial, poisson. Each row or element has a counter of its own and draws from
 * it by raising `sub` (ops/random.h). */
#include <math.h>

#include "ops/kernel.h"
#include "ops/random.h"

DT_CPU_KERNEL(randperm);
DT_CPU_KERNEL(multinomial);
DT_CPU_KERNEL(poisson);

typedef struct stream {
    uint64_t seed, counter, sub;
    uint32_t word[4];
    int left;
} stream;
static uint32_t draw32(stream *s) {
    if (!s->left) {
        dt_philox(s->seed, s->counter, s->sub++, s->word);
        s->left = 4;
    }
    return s->word[--s->left];
}
static uint64_t draw64(stream *s) {
    uint64_t hi = draw32(s);
    return hi << 32 | draw32(s);
}
static double draw_open(stream *s) { return ((double)(int64_t)(draw64(s) >> 11) + 0.5) * 0x1p-53; } /* in (0, 1) */
static stream stream_of(const dt_kctx *c, int64_t element) {
    return (stream){.seed = (uint64_t)dt_view_i64(&c->in[c->n_in - 2]), .counter = (uint64_t)dt_view_i64(&c->in[c->n_in - 1]) + (uint64_t)element};
}

/* Fisher and Yates; every device makes the whole. */
dt_status dt_cpu_randperm(const dt_kctx *c) {
    const dt_view *o = &c->out[0];
    int64_t n = o->shape[0];
    size_t e = dt_dtype_size(o->dtype);
    char *p = o->data;
    stream s = stream_of(c, 0);
    for (int64_t i = 0; i < n; i++) { /* inside-out: element i goes to a random place among the first i + 1 */
        int64_t k = (int64_t)((unsigned __int128)draw64(&s) * (uint64_t)(i + 1) >> 64);
        for (size_t b = 0; b < e; b++) p[(size_t)i * e + b] = p[(size_t)k * e + b];
        if (dt_dtype_is_float(o->dtype))
            dt_element_set_f64(o->dtype, p + (size_t)k * e, (double)i);
        else
            dt_element_set_i64(o->dtype, p + (size_t)k * e, i);
    }
    return DT_OK;
}

static double weight(const dt_view *x, int64_t row, int64_t i) {
    int64_t at = i * x->stride[x->ndim - 1] + (x->ndim > 1 ? row * x->stride[0] : 0);
    return dt_element_get_f64(x->dtype, (const char *)x->data + (size_t)at * dt_dtype_size(x->dtype));
}
/* One draw in proportion to the weights. */
static int64_t pick(const dt_view *x, int64_t row, int64_t n, double total, double u) {
    double sum = 0, goal = u * total;
    int64_t last = 0;
    for (int64_t i = 0; i < n; i++) {
        double w = weight(x, row, i);
        if (w <= 0) continue;
        sum += w;
        last = i;
        if (sum > goal) return i;
    }
    return last;
}
/* Without replacement: the k smallest of e_i / w_i, e_i exponential, in order: found one after the other, each above the last. */
static void distinct(const dt_view *x, int64_t row, int64_t n, int64_t k, const stream *start, int64_t *to) {
    double floor_key = -1;
    for (int64_t j = 0; j < k; j++) {
        stream s = *start;
        double best = INFINITY;
        int64_t at = -1;
        for (int64_t i = 0; i < n; i++) {
            double key = -log(draw_open(&s)), w = weight(x, row, i);
            if (w > 0 && key / w > floor_key && key / w < best) best = key / w, at = i;
        }
        to[j] = at < 0 ? 0 : at;
        floor_key = best;
    }
}
dt_status dt_cpu_multinomial(const dt_kctx *c) {
    const dt_view *x = &c->in[0], *o = &c->out[0];
    bool replacement = ((const dt_multinomial_attr *)c->attr)->replacement;
    int64_t rows = o->ndim > 1 ? o->shape[0] : 1, k = o->shape[o->ndim - 1], n = x->shape[x->ndim - 1], first = o->ndim > 1 ? c->out_place[0].lo[0] : 0;
    for (int64_t r = 0; r < rows; r++) {
        double total = 0;
        int64_t usable = 0, *to = (int64_t *)o->data + r * k;
        for (int64_t i = 0; i < n; i++) {
            double w = weight(x, r, i);
            if (!(w >= 0) || isinf(w)) return dt_fail(DT_E_SHAPE, "multinomial: probability tensor contains either `inf`, `nan` or element < 0: %g", w);
            total += w;
            usable += w > 0;
        }
        if (k && !usable) return dt_fail(DT_E_SHAPE, "multinomial: invalid multinomial distribution (sum of probabilities <= 0)");
        stream s = stream_of(c, first + r);
        if (!replacement && usable < k)
            return dt_fail(DT_E_SHAPE,
                           "multinomial: invalid multinomial distribution (with replacement=False, not enough non-negative category to "
                           "sample): %lld categories for %lld samples",
                           (long long)usable, (long long)k);
        if (replacement)
            for (int64_t j = 0; j < k; j++) to[j] = pick(x, r, n, total, draw_open(&s));
        else
            distinct(x, r, n, k, &s, to);
    }
    return DT_OK;
}

/* Knuth's product method for small rates; Hoermann's transformed rejection (PTRS, 1993) from 10 on. */
static double poisson(stream *s, double rate) {
    if (rate <= 0) return 0;
    if (rate < 10) {
        double limit = exp(-rate), p = draw_open(s), k = 0;
        for (; p > limit; p *= draw_open(s)) k++;
        return k;
    }
    double root = sqrt(rate), b = 0.931 + 2.53 * root, a = -0.059 + 0.02483 * b, inv = 1.1239 + 1.1328 / (b - 3.4), vr = 0.9277 - 3.6224 / (b - 2);
    for (;;) {
        double u = draw_open(s) - 0.5, v = draw_open(s), us = 0.5 - fabs(u), k = floor((2 * a / us + b) * u + rate + 0.43);
        if (us >= 0.07 && v <= vr) return k;
        if (k < 0 || (us < 0.013 && v > us)) continue;
        int sign;
        if (log(v) + log(inv) - log(a / (us * us) + b) <= -rate + k * log(rate) - lgamma_r(k + 1, &sign)) return k;
    }
}
dt_status dt_cpu_poisson(const dt_kctx *c) {
    const dt_view *x = &c->in[0], *o = &c->out[0]; /* contiguous both */
    const dt_geom *g = &c->out_place[0];
    int64_t n = dt_view_numel(o);
    size_t e = dt_dtype_size(o->dtype);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0, step = 1;
        for (int d = o->ndim - 1; d >= 0; d--) {
            at += (g->lo[d] + rest % o->shape[d]) * step;
            rest /= o->shape[d];
            step *= g->shape[d];
        }
        double rate = dt_element_get_f64(x->dtype, (const char *)x->data + (size_t)i * e);
        if (!(rate >= 0)) return dt_fail(DT_E_SHAPE, "poisson: invalid Poisson rate, expected all rates to be non-negative, got %g", rate);
        stream s = stream_of(c, at);
        dt_element_set_f64(o->dtype, (char *)o->data + (size_t)i * e, poisson(&s, rate));
    }
    return DT_OK;
}
