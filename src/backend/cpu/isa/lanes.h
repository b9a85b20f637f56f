/* Lanes: vector types, block loads and stores, and sums that GCC and clang turn into the instruction set of the file's build.
 *
 * Reductions keep a fixed number of lanes (64 bytes wide, whatever the instruction set), so that a result never depends on the processor's
 * vector width, the team's size or how work was split: only on the length. Everything is static: each build of each file has its own. */
#ifndef DT_BACKEND_CPU_LANES_H
#define DT_BACKEND_CPU_LANES_H

#include <math.h>
#include <string.h>

#include "backend/cpu/isa/isa.h"
#include "base/hash.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi"
#define DT_MAYBE __attribute__((unused))

#if defined(__AVX512F__)
#define DT_VB 64 /* bytes of one native vector */
#elif defined(__AVX2__)
#define DT_VB 32
#else
#define DT_VB 16
#endif
typedef float dt_vf __attribute__((vector_size(DT_VB), aligned(4), may_alias));
typedef double dt_vd __attribute__((vector_size(DT_VB), aligned(8), may_alias));
typedef int64_t dt_vl __attribute__((vector_size(DT_VB), aligned(8), may_alias));
typedef int32_t dt_vi __attribute__((vector_size(DT_VB), aligned(4), may_alias));

enum { DT_BLOCK = 512 }; /* elements converted at a time */

static inline float dt_lane_f16(uint16_t h) {
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)(h & 0x7fff) << 13};
    x.f *= 0x1p112f;
    x.u |= x.f >= 65536.0f ? 255u << 23 : 0;
    x.u |= (uint32_t)(h & 0x8000) << 16;
    return x.f;
}

#define DT_LOAD_LOOP(type, expr)              \
    {                                         \
        const type *p = src;                  \
        if (stride == 1)                      \
            for (int64_t i = 0; i < n; i++) { \
                type v = p[i];                \
                dst[i] = (expr);              \
            }                                 \
        else                                  \
            for (int64_t i = 0; i < n; i++) { \
                type v = p[i * stride];       \
                dst[i] = (expr);              \
            }                                 \
        return;                               \
    }
#define DT_DEFINE_LOAD(name, T)                                                                          \
    static DT_MAYBE void name(T *restrict dst, const void *src, dt_dtype t, int64_t stride, int64_t n) { \
        switch (t) {                                                                                     \
        case DT_bool:                                                                                    \
        case DT_uint8: DT_LOAD_LOOP(uint8_t, (T)v)                                                       \
        case DT_int8: DT_LOAD_LOOP(int8_t, (T)v)                                                         \
        case DT_int16: DT_LOAD_LOOP(int16_t, (T)v)                                                       \
        case DT_int32: DT_LOAD_LOOP(int32_t, (T)v)                                                       \
        case DT_int64: DT_LOAD_LOOP(int64_t, (T)v)                                                       \
        case DT_float16: DT_LOAD_LOOP(uint16_t, (T)dt_lane_f16(v))                                       \
        case DT_bfloat16: DT_LOAD_LOOP(uint16_t, (T)dt_bf16_to_f32(v))                                   \
        case DT_float32: DT_LOAD_LOOP(float, (T)v)                                                       \
        case DT_float64: DT_LOAD_LOOP(double, (T)v)                                                      \
        default: return;                                                                                 \
        }                                                                                                \
    }
/* n elements of dtype t, `stride` elements apart, converted into dst. */
DT_DEFINE_LOAD(dt_load_f32, float)
DT_DEFINE_LOAD(dt_load_f64, double)
DT_DEFINE_LOAD(dt_load_i64, int64_t)

#define DT_STORE_LOOP(type, expr)                            \
    {                                                        \
        type *p = dst;                                       \
        for (int64_t i = 0; i < n; i++) p[i] = (type)(expr); \
        return;                                              \
    }
#define DT_DEFINE_STORE(name, T)                                                                  \
    static DT_MAYBE void name(void *restrict dst, dt_dtype t, const T *restrict src, int64_t n) { \
        switch (t) {                                                                              \
        case DT_bool: DT_STORE_LOOP(uint8_t, src[i] != 0)                                         \
        case DT_uint8: DT_STORE_LOOP(uint8_t, (int64_t)src[i])                                    \
        case DT_int8: DT_STORE_LOOP(int8_t, (int64_t)src[i])                                      \
        case DT_int16: DT_STORE_LOOP(int16_t, (int64_t)src[i])                                    \
        case DT_int32: DT_STORE_LOOP(int32_t, (int64_t)src[i])                                    \
        case DT_int64: DT_STORE_LOOP(int64_t, src[i])                                             \
        case DT_float16: DT_STORE_LOOP(uint16_t, dt_f16_from_f32((float)src[i]))                  \
        case DT_bfloat16: DT_STORE_LOOP(uint16_t, dt_bf16_from_f32((float)src[i]))                \
        case DT_float32: DT_STORE_LOOP(float, src[i])                                             \
        case DT_float64: DT_STORE_LOOP(double, src[i])                                            \
        default: return;                                                                          \
        }                                                                                         \
    }
/* n values, contiguous, converted into dst of dtype t. */
DT_DEFINE_STORE(dt_store_f32, float)
DT_DEFINE_STORE(dt_store_f64, double)
DT_DEFINE_STORE(dt_store_i64, int64_t)

/* Sum of x (n,): four times 64 bytes of lanes, folded in a fixed order. */
#define DT_DEFINE_SUM(name, T, VT, MAP)                                                                        \
    static DT_MAYBE T name(const T *x, int64_t n) {                                                            \
        enum { L = 64 / sizeof(T), W = DT_VB / sizeof(T), Q = 64 / DT_VB };                                    \
        VT a[4 * Q] = {{0}};                                                                                   \
        T lane[L], s = 0;                                                                                      \
        int64_t i = 0;                                                                                         \
        for (; i + 4 * L <= n; i += 4 * L)                                                                     \
            for (int k = 0; k < 4 * Q; k++) {                                                                  \
                VT v = *(const VT *)(x + i + k * W);                                                           \
                a[k] += MAP(v);                                                                                \
            }                                                                                                  \
        for (; i + L <= n; i += L)                                                                             \
            for (int k = 0; k < Q; k++) {                                                                      \
                VT v = *(const VT *)(x + i + k * W);                                                           \
                a[k] += MAP(v);                                                                                \
            }                                                                                                  \
        for (int k = 0; k < Q; k++) *(VT *)(lane + k * W) = (a[k] + a[Q + k]) + (a[2 * Q + k] + a[3 * Q + k]); \
        for (int k = 0; k < L / 2; k++) s += lane[k] + lane[k + L / 2];                                        \
        for (; i < n; i++) {                                                                                   \
            T v = x[i];                                                                                        \
            s += MAP(v);                                                                                       \
        }                                                                                                      \
        return s;                                                                                              \
    }
#define DT_ID(v) (v)
#define DT_SQ(v) ((v) * (v))
DT_DEFINE_SUM(dt_lanes_sum_f32, float, dt_vf, DT_ID)
DT_DEFINE_SUM(dt_lanes_sum_f64, double, dt_vd, DT_ID)
DT_DEFINE_SUM(dt_lanes_sum_i64, int64_t, dt_vl, DT_ID)
DT_DEFINE_SUM(dt_lanes_sumsq_f32, float, dt_vf, DT_SQ)
DT_DEFINE_SUM(dt_lanes_sumsq_f64, double, dt_vd, DT_SQ)

/* Largest (or, with <, smallest) of x (n,), from `m` on; a NaN anywhere gives NaN. */
#define DT_DEFINE_EXTREME(name, T, VT, VI, OP)                                                         \
    static DT_MAYBE T name(const T *x, int64_t n, T m) {                                               \
        enum { W = DT_VB / sizeof(T), K = 4 };                                                         \
        int64_t i = 0;                                                                                 \
        if (n >= K * W) {                                                                              \
            VT a[K];                                                                                   \
            for (int k = 0; k < K; k++) a[k] = *(const VT *)(x + k * W);                               \
            for (; i + K * W <= n; i += K * W)                                                         \
                for (int k = 0; k < K; k++) {                                                          \
                    VT v = *(const VT *)(x + i + k * W);                                               \
                    VI take = (VI)(v OP a[k]) | (VI)(v != v);                                          \
                    a[k] = (VT)(((VI)v & take) | ((VI)a[k] & ~take));                                  \
                }                                                                                      \
            for (int k = 0; k < K; k++)                                                                \
                for (int l = 0; l < (int)W; l++) m = a[k][l] OP m || a[k][l] != a[k][l] ? a[k][l] : m; \
        }                                                                                              \
        for (; i < n; i++) m = x[i] OP m || x[i] != x[i] ? x[i] : m;                                   \
        return m;                                                                                      \
    }
#if defined(__AVX512F__)
#define DT_X86(T, op) _mm512_##op##_##T
#define DT_X86_V(T) __m512##T
#elif defined(__AVX2__)
#define DT_X86(T, op) _mm256_##op##_##T
#define DT_X86_V(T) __m256##T
#elif defined(__SSE2__)
#define DT_X86(T, op) _mm_##op##_##T
#define DT_X86_V(T) __m128##T
#endif
#ifdef DT_X86
/* The same with the processor's max and min, which are `v OP a ? v : a`. They lose NaNs; the sum of all keeps them, so if it is one (or inf - inf
 * made it one) the careful loop runs. */
#define DT_DEFINE_FAST_EXTREME(name, T, VT, V, PS, OP, INSTR)                \
    static DT_MAYBE T name(const T *x, int64_t n, T m) {                     \
        enum { W = DT_VB / sizeof(T), K = 4 };                               \
        if (n < K * W) return name##_careful(x, n, m);                       \
        V a[K];                                                              \
        VT s[K] = {{0}};                                                     \
        int64_t i = 0;                                                       \
        for (int k = 0; k < K; k++) a[k] = DT_X86(PS, loadu)(x + k * W);     \
        for (; i + K * W <= n; i += K * W)                                   \
            for (int k = 0; k < K; k++) {                                    \
                V v = DT_X86(PS, loadu)(x + i + k * W);                      \
                a[k] = DT_X86(PS, INSTR)(v, a[k]);                           \
                s[k] += (VT)v;                                               \
            }                                                                \
        T lane[K * W], sum = 0;                                              \
        for (int k = 0; k < K; k++) DT_X86(PS, storeu)(lane + k * W, a[k]);  \
        s[0] = (s[0] + s[1]) + (s[2] + s[3]);                                \
        for (int l = 0; l < (int)W; l++) sum += s[0][l];                     \
        if (sum != sum) return name##_careful(x, n, m);                      \
        for (int l = 0; l < K * (int)W; l++) m = lane[l] OP m ? lane[l] : m; \
        for (; i < n; i++) m = x[i] OP m || x[i] != x[i] ? x[i] : m;         \
        return m;                                                            \
    }
#define DT_DEFINE_FLOAT_EXTREME(name, T, VT, VI, V, PS, OP, INSTR) \
    DT_DEFINE_EXTREME(name##_careful, T, VT, VI, OP)               \
    DT_DEFINE_FAST_EXTREME(name, T, VT, V, PS, OP, INSTR)
DT_DEFINE_FLOAT_EXTREME(dt_lanes_max_f32, float, dt_vf, dt_vi, DT_X86_V(), ps, >, max)
DT_DEFINE_FLOAT_EXTREME(dt_lanes_max_f64, double, dt_vd, dt_vl, DT_X86_V(d), pd, >, max)
DT_DEFINE_FLOAT_EXTREME(dt_lanes_min_f32, float, dt_vf, dt_vi, DT_X86_V(), ps, <, min)
DT_DEFINE_FLOAT_EXTREME(dt_lanes_min_f64, double, dt_vd, dt_vl, DT_X86_V(d), pd, <, min)
#else
DT_DEFINE_EXTREME(dt_lanes_max_f32, float, dt_vf, dt_vi, >)
DT_DEFINE_EXTREME(dt_lanes_max_f64, double, dt_vd, dt_vl, >)
DT_DEFINE_EXTREME(dt_lanes_min_f32, float, dt_vf, dt_vi, <)
DT_DEFINE_EXTREME(dt_lanes_min_f64, double, dt_vd, dt_vl, <)
#endif
DT_DEFINE_EXTREME(dt_lanes_max_i64, int64_t, dt_vl, dt_vl, >)
DT_DEFINE_EXTREME(dt_lanes_min_i64, int64_t, dt_vl, dt_vl, <)

/* exp(x) within 1 ulp or so, without branches: loops over it become vector code. Overflows to inf, underflows gradually. */
static inline float dt_lane_expf(float x) {
    float c = x > 89.0f ? 89.0f : x;
    c = c < -104.0f ? -104.0f : c;
    float t = c * 1.44269504088896341f + 12582912.0f; /* n = round(x / ln 2), in the low bits */
    union {
        float f;
        int32_t i;
    } u = {t};
    int32_t n = u.i - 0x4b400000;
    float fn = t - 12582912.0f;
    float r = c - fn * 0.693145751953125f; /* few bits: the product is exact */
    r = r - fn * 1.42860682030941723212e-6f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    int32_t h = n >> 1, l = n - h;
    union {
        int32_t i;
        float f;
    } a = {(h + 127) << 23}, b = {(l + 127) << 23};
    p = p * a.f * b.f;
    return x != x ? x : p;
}
static inline double dt_lane_exp(double x) { return exp(x); }

/* Splits n items of `cost` elements each into tasks; calls fn(arg, lo, hi) for each range. The split depends on the sizes only. */
typedef void (*dt_range_fn)(void *arg, int64_t lo, int64_t hi);
typedef struct dt_range {
    dt_range_fn fn;
    void *arg;
    int64_t n, step;
} dt_range;
static DT_MAYBE void dt_range_task(void *arg, int64_t i) {
    dt_range *r = arg;
    int64_t lo = i * r->step, hi = lo + r->step < r->n ? lo + r->step : r->n;
    r->fn(r->arg, lo, hi);
}
static DT_MAYBE void dt_range_run(dt_team *team, int64_t n, int64_t cost, dt_range_fn fn, void *arg) {
    if (n <= 0) return;
    if (cost < 1) cost = 1;
    if (n * cost < 32768 || dt_team_size(team) < 2) {
        fn(arg, 0, n);
        return;
    }
    int64_t step = 16384 / cost + 1;
    if ((n + step - 1) / step > 256) step = (n + 255) / 256;
    dt_range r = {fn, arg, n, step};
    dt_team_run(team, dt_range_task, &r, (n + step - 1) / step);
}

#endif
