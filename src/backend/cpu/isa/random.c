/* Random kernels. A local box is walked in runs that are contiguous in the global linear index; each run takes its words of the call's Philox
 * stream (ops/random.h), so any sharding draws the same numbers.
 *
 * Philox runs over LANES counters at a time, four words each. */
#include "ops/random.h"
#include "backend/cpu/isa/pw_cast.h"
#include "backend/cpu/isa/reduce_rows.h"
#include "ops/op.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

enum { LANES = 64, TILE = 4 * LANES, TASK = 64 * TILE };

typedef struct job job;
/* n values of the op's distribution for global elements [g, g + n), n <= TILE, into `out` (of the tile dtype: f32, f64 or i64); in: local pos */
typedef void (*draw_fn)(const job *j, int64_t g, int64_t pos, int64_t n, void *out);
struct job {
    const dt_kctx *c;
    draw_fn draw;
    dt_dtype tile;
    dt_pw_fn cast;
    uint64_t seed, offset;
    const void *attr;
    int ndim;                                     /* collapsed */
    int64_t n, len[DT_MAX_DIM], step[DT_MAX_DIM]; /* local sizes and global strides */
    int64_t base;                                 /* global index of the local origin */
};

/* Philox over LANES counters from `counter` on: word w of counter i goes to all[4 i + w]. */
#ifdef __AVX2__
/* Each 64-bit lane holds one counter's word in its lower half; what gathers in the upper half is never looked at. */
static void philox_lanes(uint64_t seed, uint64_t counter, int n, uint32_t *all) {
    const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
    for (int i = 0; i < n; i += 4) {
        __m256i at = _mm256_add_epi64(_mm256_set1_epi64x((int64_t)(counter + (uint64_t)i)), _mm256_set_epi64x(3, 2, 1, 0));
        __m256i c0 = at, c1 = _mm256_srli_epi64(at, 32), c2 = _mm256_setzero_si256(), c3 = c2;
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int r = 0; r < 10; r++) {
            __m256i a = _mm256_mul_epu32(c0, m0), b = _mm256_mul_epu32(c2, m1);
            c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), c1), _mm256_set1_epi64x(k0));
            c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), c3), _mm256_set1_epi64x(k1));
            c1 = b;
            c3 = a;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        __m256i lo = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xAA), hi = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xAA);
        __m256i even = _mm256_unpacklo_epi64(lo, hi), odd = _mm256_unpackhi_epi64(lo, hi); /* counters 0 and 2; 1 and 3 */
        _mm256_storeu_si256((__m256i *)(all + 4 * i), _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256((__m256i *)(all + 4 * i + 8), _mm256_permute2x128_si256(even, odd, 0x31));
    }
}
#else
static void philox_lanes(uint64_t seed, uint64_t counter, int n, uint32_t *all) {
    uint32_t c0[LANES + 4], c1[LANES + 4], c2[LANES + 4], c3[LANES + 4], k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < n; i++) {
        uint64_t at = counter + (uint64_t)i;
        c0[i] = (uint32_t)at, c1[i] = (uint32_t)(at >> 32), c2[i] = c3[i] = 0;
    }
    for (int r = 0; r < 10; r++) {
        for (int i = 0; i < n; i++) {
            uint64_t a = (uint64_t)0xD2511F53u * c0[i], b = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(b >> 32) ^ c1[i] ^ k0;
            c2[i] = (uint32_t)(a >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)b;
            c3[i] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < n; i++) all[4 * i] = c0[i], all[4 * i + 1] = c1[i], all[4 * i + 2] = c2[i], all[4 * i + 3] = c3[i];
}
#endif

/* Words [first, first + n) of the stream, n <= TILE. */
static void words(const job *j, int64_t first, int64_t n, uint32_t *out) {
    uint32_t all[4 * (LANES + 4)];
    uint64_t counter = j->offset + (uint64_t)(first >> 2);
    int skip = (int)(first & 3), m = (int)((skip + n + 3) >> 2);
    if (!skip && !(n & 15)) { /* whole vectors: in place */
        philox_lanes(j->seed, counter, m, out);
        return;
    }
    philox_lanes(j->seed, counter, m, all);
    memcpy(out, all + skip, (size_t)n * 4);
}
/* 64-bit words of elements [g, g + n). */
static void words64(const job *j, int64_t g, int64_t n, uint64_t *out) {
    uint32_t w[TILE];
    for (int64_t at = 0; at < n; at += TILE / 2) {
        int64_t m = n - at < TILE / 2 ? n - at : TILE / 2;
        words(j, 2 * (g + at), 2 * m, w);
        for (int64_t i = 0; i < m; i++) out[at + i] = (uint64_t)w[2 * i] << 32 | w[2 * i + 1];
    }
}

/* ---- uniform numbers in [0, 1) -------------------------------------------------------------------------------------------------- */
/* Multiples of 2^-bits, so that a result of that precision never rounds up to 1. */
static void uniform_f32(const job *j, int64_t g, int64_t n, float *out) {
    uint32_t w[TILE];
    int drop = j->c->out[0].dtype == DT_bfloat16 ? 24 : j->c->out[0].dtype == DT_float16 ? 21 : 8;
    float scale = drop == 24 ? 0x1p-8f : drop == 21 ? 0x1p-11f : 0x1p-24f;
    words(j, g, n, w);
    for (int64_t i = 0; i < n; i++) out[i] = (float)(int32_t)(w[i] >> drop) * scale;
}
static void uniform_f64(const job *j, int64_t g, int64_t n, double *out) {
    uint64_t w[TILE];
    words64(j, g, n, w);
    for (int64_t i = 0; i < n; i++) out[i] = (double)(int64_t)(w[i] >> 11) * 0x1p-53;
}
static void draw_uniform(const job *j, int64_t g, int64_t pos, int64_t n, void *out) {
    const dt_random_floats *a = j->attr;
    (void)pos;
    if (j->tile == DT_float32) {
        float *o = out, lo = (float)a->a, span = (float)(a->b - a->a), hi = (float)a->b;
        uniform_f32(j, g, n, o);
        if (lo == 0.0f && span == 1.0f) return;
        for (int64_t i = 0; i < n; i++) {
            float v = lo + span * o[i];
            o[i] = v >= hi && lo < hi ? lo : v; /* rounding must not reach the open end */
        }
    } else {
        double *o = out;
        uniform_f64(j, g, n, o);
        for (int64_t i = 0; i < n; i++) {
            double v = a->a + (a->b - a->a) * o[i];
            o[i] = v >= a->b && a->a < a->b ? a->a : v;
        }
    }
}

/* ---- normal numbers: Box and Muller, elements 2k and 2k + 1 from one pair of uniforms ------------------------------------------------- */
static void normal_f32(const job *j, int64_t g, int64_t n, float *out) {
    uint32_t w[TILE + 4];
    float z[TILE + 4], u[TILE / 2 + 2], t[TILE / 2 + 2], x[TILE / 2 + 2], y[TILE / 2 + 2];
    int64_t first = g & ~1ll, m = ((g + n + 1) & ~1ll) - first, head = m < TILE ? m : TILE;
    words(j, first, head, w);
    if (m > head) words(j, first + head, m - head, w + head);
    for (int64_t i = 0; i < m / 2; i++) { /* u in (0, 1), 32 bits of it; t in [0, 1) */
        u[i] = ((float)(int32_t)(w[2 * i] >> 8) + 0.5f + (float)(int32_t)(w[2 * i] & 255) * 0x1p-8f) * 0x1p-24f;
        t[i] = (float)(int32_t)(w[2 * i + 1] >> 8) * 0x1p-24f;
    }
    for (int64_t i = 0; i < m / 2; i++) {
        float r = sqrtf(-2.0f * vm_log(u[i])), c, s;
        vm_turn(t[i], &c, &s);
        x[i] = r * c;
        y[i] = r * s;
    }
    for (int64_t i = 0; i < m / 2; i++) z[2 * i] = x[i], z[2 * i + 1] = y[i];
    memcpy(out, z + (g - first), (size_t)n * sizeof *out);
}
static void normal_f64(const job *j, int64_t g, int64_t n, double *out) {
    uint64_t w[TILE + 2];
    int64_t first = g & ~1ll, m = ((g + n + 1) & ~1ll) - first;
    words64(j, first, m, w);
    for (int64_t i = g; i < g + n; i++) {
        int64_t k = (i & ~1ll) - first;
        double u = ((double)(int64_t)(w[k] >> 11) + 0.5) * 0x1p-53, t = (double)(int64_t)(w[k + 1] >> 11) * (6.2831853071795864769 * 0x1p-53);
        out[i - g] = sqrt(-2.0 * log(u)) * (i & 1 ? sin(t) : cos(t));
    }
}
static void draw_normal(const job *j, int64_t g, int64_t pos, int64_t n, void *out) {
    const dt_random_floats *a = j->attr;
    (void)pos;
    if (j->tile == DT_float32) {
        float *o = out, mean = (float)a->a, std = (float)a->b;
        normal_f32(j, g, n, o);
        for (int64_t i = 0; i < n; i++) o[i] = mean + std * o[i];
    } else {
        double *o = out;
        normal_f64(j, g, n, o);
        for (int64_t i = 0; i < n; i++) o[i] = a->a + a->b * o[i];
    }
}

/* ---- other distributions, each from one uniform number u in [0, 1) -------------------------------------------------------------------- */
/* f32 and f64 forms of `out = expr(u)`; A and B are the op's parameters. */
#define FROM_UNIFORM(name, expr)                                                          \
    static void draw_##name(const job *j, int64_t g, int64_t pos, int64_t n, void *out) { \
        const dt_random_floats *a = j->attr;                                              \
        (void)pos;                                                                        \
        if (j->tile == DT_float32) {                                                      \
            typedef float T;                                                              \
            float *o = out, A = (float)a->a, B = (float)a->b;                             \
            (void)A, (void)B;                                                             \
            uniform_f32(j, g, n, o);                                                      \
            for (int64_t i = 0; i < n; i++) {                                             \
                float u = o[i];                                                           \
                o[i] = (T)(expr);                                                         \
            }                                                                             \
        } else {                                                                          \
            typedef double T;                                                             \
            double *o = out, A = a->a, B = a->b;                                          \
            (void)A, (void)B;                                                             \
            uniform_f64(j, g, n, o);                                                      \
            for (int64_t i = 0; i < n; i++) {                                             \
                double u = o[i];                                                          \
                o[i] = (T)(expr);                                                         \
            }                                                                             \
        }                                                                                 \
    }
FROM_UNIFORM(exponential, -M_LOG1P(-u) / A)                                   /* rate A */
FROM_UNIFORM(cauchy, A + B * M_TAN((T)3.14159265358979323846 * (u - (T)0.5))) /* median A, scale B */
FROM_UNIFORM(bernoulli, u < A)                                                /* probability A */
/* trials up to the first success of probability A: at least 1 */
FROM_UNIFORM(geometric, A >= 1 ? (T)1 : M_FLOOR(M_LOG1P(-u) / M_LOG1P(-A)) + 1)
static void draw_log_normal(const job *j, int64_t g, int64_t pos, int64_t n, void *out) {
    draw_normal(j, g, pos, n, out);
    float *f = out;
    double *d = out;
    if (j->tile == DT_float32)
        for (int64_t i = 0; i < n; i++) f[i] = vm_exp(f[i]);
    else
        for (int64_t i = 0; i < n; i++) d[i] = exp(d[i]);
}

/* low <= x < high: the upper half of a product with the range (Lemire), of 32-bit words while the range is small. A range of 0 means 2^64. */
static void draw_int(const job *j, int64_t g, int64_t pos, int64_t n, void *out) {
    const dt_random_ints *a = j->attr;
    uint64_t range = (uint64_t)a->high - (uint64_t)a->low, w[TILE];
    int64_t *o = out;
    (void)pos;
    if (range && range <= 1u << 20) {
        uint32_t half[TILE];
        words(j, g, n, half);
        for (int64_t i = 0; i < n; i++) o[i] = a->low + (int64_t)(half[i] * range >> 32);
        return;
    }
    words64(j, g, n, w);
    for (int64_t i = 0; i < n; i++) o[i] = (int64_t)((uint64_t)a->low + (range ? (uint64_t)((unsigned __int128)w[i] * range >> 64) : w[i]));
}

/* 0 with probability A, else v / (1 - A), n <= TILE of them; o may be v */
static void drop(const job *j, int64_t g, int64_t n, const void *x, void *out) {
    const dt_random_floats *a = j->attr;
    uint32_t w[TILE];
    int32_t limit = (int32_t)(a->a * 0x1p31); /* 31 bits: the comparison is of signed integers, which vectorise */
    words(j, g, n, w);
    if (j->tile == DT_float64) {
        const double *v = x;
        double *o = out, scale = 1 / (1 - a->a);
        for (int64_t i = 0; i < n; i++) o[i] = (int32_t)(w[i] >> 1) >= limit ? v[i] * scale : 0;
        return;
    }
    const float *v = x;
    float *o = out, scale = (float)(1 / (1 - a->a));
    for (int64_t i = 0; i < n; i++) o[i] = (int32_t)(w[i] >> 1) >= limit ? v[i] * scale : 0.0f;
}
/* in[0] is contiguous */
static void draw_dropout(const job *j, int64_t g, int64_t pos, int64_t n, void *out) {
    const dt_view *x = &j->c->in[0];
    const void *from = (const char *)x->data + pos * (int64_t)dt_dtype_size(x->dtype);
    if (j->tile == DT_float32 && x->dtype != DT_float32) {
        dt_cpu_pw_cast(x->dtype, DT_float32)(n, out, &from, NULL);
        from = out;
    }
    drop(j, g, n, from, out);
}

void DT_ISA_FN(dropout_block)(dt_dtype tile, const void *attr, uint64_t seed, uint64_t offset, int64_t g, int64_t n, const void *x, void *out) {
    job j = {.tile = tile, .attr = attr, .seed = seed, .offset = offset};
    int64_t size = (int64_t)dt_dtype_size(tile);
    for (int64_t i = 0; i < n; i += TILE) drop(&j, g + i, n - i < TILE ? n - i : TILE, (const char *)x + i * size, (char *)out + i * size);
}

/* ---- the walk ------------------------------------------------------------------------------------------------------------------------- */
static void task(void *arg, int64_t t) {
    const job *j = arg;
    int64_t pos = t * TASK, end = pos + TASK < j->n ? pos + TASK : j->n;
    int last = j->ndim - 1;
    size_t size = dt_dtype_size(j->c->out[0].dtype);
    _Alignas(64) char tile[TILE * 8];
    while (pos < end) {
        int64_t rest = pos, g = j->base, in_row = 0;
        for (int d = last; d >= 0; d--) {
            int64_t i = rest % j->len[d];
            rest /= j->len[d];
            g += i * j->step[d];
            if (d == last) in_row = i;
        }
        int64_t run = j->len[last] - in_row < end - pos ? j->len[last] - in_row : end - pos;
        for (int64_t at = 0; at < run; at += TILE) {
            int64_t m = run - at < TILE ? run - at : TILE;
            char *to = (char *)j->c->out[0].data + (pos + at) * (int64_t)size;
            j->draw(j, g + at, pos + at, m, j->cast ? tile : to);
            if (j->cast) j->cast(m, to, (const void *[]){tile}, NULL);
        }
        pos += run;
    }
}

dt_pw_fn DT_ISA_FN(pw_cast)(dt_dtype from, dt_dtype to);

/* tile: the dtype that `draw` writes. Seed and offset are the last two inputs. */
static dt_status run(const dt_kctx *c, draw_fn draw, dt_dtype tile) {
    const dt_view *o = &c->out[0];
    const dt_geom *p = &c->out_place[0];
    job j = {.c = c, .draw = draw, .tile = tile, .attr = c->attr, .n = dt_view_numel(o)};
    if (j.n == 0) return DT_OK;
    if (tile != o->dtype) j.cast = DT_ISA_FN(pw_cast)(tile, o->dtype);
    j.seed = (uint64_t)dt_view_i64(&c->in[c->n_in - 2]);
    j.offset = (uint64_t)dt_view_i64(&c->in[c->n_in - 1]);
    int64_t global = 1;
    for (int d = o->ndim - 1, k = DT_MAX_DIM - 1; d >= 0; d--) { /* build from the back, merging what is contiguous globally */
        if (j.ndim && j.step[k + 1] * j.len[k + 1] == global)
            j.len[k + 1] *= o->shape[d];
        else {
            j.len[k] = o->shape[d];
            j.step[k--] = global;
            j.ndim++;
        }
        j.base += p->lo[d] * global;
        global *= p->shape[d];
    }
    if (!j.ndim) j.ndim = 1, j.len[DT_MAX_DIM - 1] = 1, j.step[DT_MAX_DIM - 1] = 1;
    memmove(j.len, j.len + DT_MAX_DIM - j.ndim, (size_t)j.ndim * sizeof *j.len);
    memmove(j.step, j.step + DT_MAX_DIM - j.ndim, (size_t)j.ndim * sizeof *j.step);
    int64_t tasks = (j.n + TASK - 1) / TASK;
    if (tasks == 1)
        task(&j, 0);
    else
        dt_team_run(c->team, task, &j, tasks);
    return DT_OK;
}
static dt_dtype float_tile(const dt_kctx *c) { return c->out[0].dtype == DT_float64 ? DT_float64 : DT_float32; }

#define RANDOM_KERNEL(name, tile)                \
    dt_status DT_ISA_FN(name)(const dt_kctx *c); \
    dt_status DT_ISA_FN(name)(const dt_kctx *c) { return run(c, draw_##name, tile); }
RANDOM_KERNEL(uniform, float_tile(c))
RANDOM_KERNEL(normal, float_tile(c))
RANDOM_KERNEL(exponential, float_tile(c))
RANDOM_KERNEL(cauchy, float_tile(c))
RANDOM_KERNEL(bernoulli, float_tile(c))
RANDOM_KERNEL(geometric, float_tile(c))
RANDOM_KERNEL(log_normal, float_tile(c))
RANDOM_KERNEL(dropout, float_tile(c))
dt_status DT_ISA_FN(random_int)(const dt_kctx *c);
dt_status DT_ISA_FN(random_int)(const dt_kctx *c) { return run(c, draw_int, DT_int64); }
