/* Block functions of arithmetic, rounding and selection. Integer arithmetic wraps, as PyTorch's does; integer division by zero gives 0 here
 * (the ops that forbid it check first). */
#include "backend/cpu/isa/pw.h"

/* ---- selection ---- */
PW_NUM1(copy, a)
PW_BOOL1(copy, a)
#define PW_COND(name, suffix, T_, W_, O_, expr) \
    PW_BODY(name, suffix, T_, W_, O_, const uint8_t *q = in[0]; const T *x = in[1]; const T *y = in[2], uint8_t m = q[i]; T a = x[i]; T b = y[i], expr)
PW_OVER_NUM_R(PW_COND, where, m ? a : b)
PW_OVER_BOOL_R(PW_COND, where, m ? a : b)
#define PW_MASK(name, suffix, T_, W_, O_, expr) \
    PW_BODY(name, suffix, T_, W_, O_, const T *x = in[0]; const uint8_t *q = in[1]; const T *y = in[2], uint8_t m = q[i]; T a = x[i]; T b = y[i], expr)
PW_OVER_NUM_R(PW_MASK, masked_fill, m ? b : a)
PW_OVER_BOOL_R(PW_MASK, masked_fill, m ? b : a)

/* ---- sums and products ---- */
PW_FLT2(add, a + b)
PW_INT2(add, (W)a + (W)b)
PW_BOOL2(add, a | b)
PW_FLT3(add_alpha, a + c * b)
PW_OVER_INT_R(PW_BLOCK3, add_alpha, (W)a + (W)c * (W)b)
PW_OVER_BOOL_R(PW_BLOCK3, add_alpha, a | (b & c))
PW_FLT3(sub_alpha, a - c * b)
PW_OVER_INT_R(PW_BLOCK3, sub_alpha, (W)a - (W)c * (W)b)
PW_FLT2(sub, a - b)
PW_INT2(sub, (W)a - (W)b)
PW_FLT2(rsub, b - a)
PW_INT2(rsub, (W)b - (W)a)
PW_FLT2(mul, a *b)
PW_INT2(mul, (W)a *(W)b)
PW_BOOL2(mul, a &b)
PW_FLT2(div, a / b)
PW_FLT1(neg, -a)
PW_INT1(neg, (W)0 - (W)a)
PW_FLT1(abs, M_ABS(a))
PW_INT1(abs, a < 0 ? (W)0 - (W)a : (W)a)
PW_FLT1(sign, a > 0 ? (T)1 : a < 0 ? (T)-1 : a * (T)0 == 0 ? (T)0 : a)
PW_INT1(sign, (a > 0) - (a < 0))
PW_BOOL1(sign, a)
PW_FLT1(square, a *a)
PW_INT1(square, (W)a *(W)a)
PW_FLT1(reciprocal, (T)1 / a)

PW_FLT3(lerp, M_ABS(c) < (T)0.5 ? a + c * (b - a) : b - (b - a) * ((T)1 - c))
/* a + value * b * c */
PW_FLT4(addcmul, a + d * b * c)
PW_OVER_INT_R(PW_BLOCK4, addcmul, (W)a + (W)d * (W)b * (W)c)
PW_FLT4(addcdiv, a + d * (b / c))

/* ---- extrema: a NaN wins, except in fmax and fmin ---- */
PW_FLT2(maximum, (a > b) | (a != a) ? a : b)
PW_INT2(maximum, a > b ? a : b)
PW_BOOL2(maximum, a | b)
PW_FLT2(minimum, (a < b) | (a != a) ? a : b)
PW_INT2(minimum, a < b ? a : b)
PW_BOOL2(minimum, a &b)
PW_FLT2(fmax, (a > b) | (b != b) ? a : b)
PW_INT2(fmax, a > b ? a : b)
PW_BOOL2(fmax, a | b)
PW_FLT2(fmin, (a < b) | (b != b) ? a : b)
PW_INT2(fmin, a < b ? a : b)
PW_BOOL2(fmin, a &b)
/* min(max(a, low), high): where low > high it is high, and a NaN stays or comes from a bound, as in PyTorch */
#define CLAMP_LOW ((a < b) | (b != b) ? b : a)
PW_FLT3(clamp, (CLAMP_LOW > c) | (c != c) ? c : CLAMP_LOW)
PW_OVER_INT_R(PW_BLOCK3, clamp, (a < b ? b : a) > c ? c : a < b ? b : a)

/* ---- division with rounding ---- */
static inline float floor_div_f32(float a, float b) {
    float m = fmodf(a, b), q = (a - m) / b;
    if (b == 0.0f) return a / b;
    if (m != 0.0f && (b < 0.0f) != (m < 0.0f)) q -= 1.0f;
    if (q == 0.0f) return copysignf(0.0f, a / b);
    float f = floorf(q);
    return q - f > 0.5f ? f + 1.0f : f;
}
static inline double floor_div_f64(double a, double b) {
    double m = fmod(a, b), q = (a - m) / b;
    if (b == 0.0) return a / b;
    if (m != 0.0 && (b < 0.0) != (m < 0.0)) q -= 1.0;
    if (q == 0.0) return copysign(0.0, a / b);
    double f = floor(q);
    return q - f > 0.5 ? f + 1.0 : f;
}
static inline float remainder_f32(float a, float b) {
    float m = fmodf(a, b);
    return m != 0.0f && (b < 0.0f) != (m < 0.0f) ? m + b : m;
}
static inline double remainder_f64(double a, double b) {
    double m = fmod(a, b);
    return m != 0.0 && (b < 0.0) != (m < 0.0) ? m + b : m;
}
/* f32: blocks with a quotient too large for the fast way (or a zero or infinite operand) take the exact one. */
#define PW_QUOTIENT(name, fast, exact)                                                                                 \
    void PW_FN(name, f32)(int64_t n, void *out, const void *const *in, const void *p);                                 \
    void PW_FN(name, f32)(int64_t n, void *out, const void *const *in, const void *p) {                                \
        float *o = out;                                                                                                \
        const float *x = in[0], *y = in[1];                                                                            \
        (void)p;                                                                                                       \
        int far = 0;                                                                                                   \
        for (int64_t i = 0; i < n; i++) far |= !(fabsf(x[i]) < fabsf(y[i]) * VM_FMOD_MAX) | !(fabsf(y[i]) < INFINITY); \
        if (far)                                                                                                       \
            for (int64_t i = 0; i < n; i++) o[i] = exact(x[i], y[i]);                                                  \
        else                                                                                                           \
            PW_LOOP o[i] = fast(x[i], y[i]);                                                                           \
    }
PW_QUOTIENT(div_floor, vm_floor_div, floor_div_f32)
PW_QUOTIENT(remainder, vm_remainder, remainder_f32)
PW_QUOTIENT(fmod, vm_fmod, fmodf)
PW_BLOCK2(div_floor, f64, double, double, double, floor_div_f64(a, b))
PW_BLOCK2(remainder, f64, double, double, double, remainder_f64(a, b))
PW_BLOCK2(fmod, f64, double, double, double, fmod(a, b))
PW_FLT2(div_trunc, M_TRUNC(a / b))
/* T_MIN / -1 overflows: -1 is a negation. Signed and unsigned alike. */
#define IQUOT(a, b) ((b) == 0 ? (T)0 : (T)((b) + 1) == 0 && (T)-1 < 0 ? (T)((W)0 - (W)(a)) : (T)((a) / (b)))
#define IREM(a, b) ((b) == 0 || ((T)((b) + 1) == 0 && (T)-1 < 0) ? (T)0 : (T)((a) % (b)))
PW_INT2(div_trunc, IQUOT(a, b))
PW_INT2(div_floor, IQUOT(a, b) - (IREM(a, b) != 0 && (IREM(a, b) < 0) != (b < 0)))
PW_INT2(remainder, IREM(a, b) != 0 && (IREM(a, b) < 0) != (b < 0) ? IREM(a, b) + b : IREM(a, b))
PW_INT2(fmod, IREM(a, b))

static inline uint64_t int_pow(uint64_t base, int64_t e, bool is_signed) {
    if (e < 0) { /* only 1 and -1 have an integer inverse */
        if (base == 1) return 1;
        if (is_signed && base == UINT64_MAX) return e & 1 ? UINT64_MAX : 1;
        return 0;
    }
    uint64_t r = 1;
    for (; e; e >>= 1, base *= base)
        if (e & 1) r *= base;
    return r;
}
PW_INT2(pow, int_pow((uint64_t)(int64_t)a, (int64_t)b, (T)-1 < 0))

static inline uint64_t int_gcd(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}
#define UABS(v) ((v) < 0 ? 0 - (uint64_t)(int64_t)(v) : (uint64_t)(v))
PW_INT2(gcd, int_gcd(UABS(a), UABS(b)))
PW_INT2(lcm, a == 0 || b == 0 ? 0 : UABS(a) / int_gcd(UABS(a), UABS(b)) * UABS(b))

/* ---- rounding ---- */
PW_FLT1(floor, M_FLOOR(a))
PW_FLT1(ceil, M_CEIL(a))
PW_FLT1(trunc, M_TRUNC(a))
PW_FLT1(round, M_RINT(a))
#define PW_DECIMALS(name, suffix, T_, W_, O_, expr) \
    PW_BODY(name, suffix, T_, W_, O_, PW_PTR1; const int64_t k = ((const dt_pw_int *)p)->a; const T s = (T)pow(10.0, (double)(k < 0 ? -k : k)), PW_GET1, expr)
PW_OVER_FLT_R(PW_DECIMALS, round_decimals, k < 0 ? M_RINT(a / s) * s : M_RINT(a * s) / s)
PW_FLT1(frac, a - M_TRUNC(a))
PW_FLTP1(nan_to_num, a != a ? pa : a == (T)INFINITY ? pb : a == (T)-INFINITY ? pc : a)

/* ---- the rest ---- */
PW_FLT2(heaviside, a == 0 ? b : a != a ? a : a > 0 ? (T)1 : (T)0)
PW_INT2(heaviside, a == 0 ? b : a > 0)
PW_BOOL2(heaviside, a ? 1 : b)
PW_FLT2(copysign, M_COPYSIGN(a, b))
PW_FLT2(nextafter, M_BY_TYPE(a, nextafterf, nextafter)(a, b))
PW_FLT1(angle, a < 0 ? (T)3.14159265358979323846 : a == a ? (T)0 : a)
static inline int32_t exponent_of(double x) { /* x = m 2^e, 1/2 <= |m| < 1 */
    int e = 0;
    if (x != 0.0 && isfinite(x)) frexp(x, &e);
    return e;
}
PW_BLOCK1(frexp_exponent, f32, float, float, int32_t, exponent_of((double)a))
PW_BLOCK1(frexp_exponent, f64, double, double, int32_t, exponent_of(a))
