/* Block functions of elementary functions. f32 loops vectorise (vecmath.h); f64 goes through libm. */
#include "backend/cpu/isa/pw.h"

PW_FLT1(sqrt, M_SQRT(a))
PW_FLT1(rsqrt, (T)1 / M_SQRT(a))
PW_FLT1(exp, M_EXP(a))
PW_FLT1(exp2, M_EXP2(a))
PW_FLT1(expm1, M_EXPM1(a))
PW_FLT1(log, M_LOG(a))
PW_FLT1(log2, M_LOG2(a))
PW_FLT1(log10, M_LOG10(a))
PW_FLT1(log1p, M_LOG1P(a))
PW_FLT1(asin, M_ASIN(a))
PW_FLT1(acos, M_ACOS(a))
PW_FLT1(atan, M_ATAN(a))
PW_FLT1(sinh, M_SINH(a))
PW_FLT1(cosh, M_COSH(a))
PW_FLT1(tanh, M_TANH(a))
PW_FLT1(asinh, M_ASINH(a))
PW_FLT1(acosh, M_ACOSH(a))
PW_FLT1(atanh, M_ATANH(a))
PW_FLT2(atan2, M_ATAN2(a, b))
PW_FLT2(hypot, M_HYPOT(a, b))
/* An exponent that is the same for a whole block has a shorter way where vm_pow itself takes it: the bits do not depend on the block. */
void PW_FN(pow, f32)(int64_t n, void *out, const void *const *in, const void *p);
void PW_FN(pow, f32)(int64_t n, void *out, const void *const *in, const void *p) {
    float *o = out;
    const float *x = in[0], *y = in[1], e = n ? y[0] : 0;
    (void)p;
    int differ = 0;
    for (int64_t i = 0; i < n; i++) differ |= y[i] != e;
    if (!differ && e == 2.0f)
        PW_LOOP o[i] = x[i] * x[i];
    else if (!differ && e == 3.0f)
        PW_LOOP o[i] = x[i] * x[i] * x[i];
    else if (!differ && e == 0.5f)
        PW_LOOP o[i] = x[i] >= 0.0f ? sqrtf(x[i]) : x[i] == -INFINITY ? INFINITY : NAN;
    else
        PW_LOOP o[i] = vm_pow(x[i], y[i]);
}
PW_BLOCK2(pow, f64, double, double, double, pow(a, b))
PW_FLT1(erf, M_ERF(a))
PW_BLOCK1(erfc, f32, float, float, float, vm_erfc(a))
PW_BLOCK1(erfc, f64, double, double, double, erfc(a))

/* sin, cos, tan: arguments too large for the fast reduction are set right by libm afterwards (rare; out may be the input: ask first). */
#define PW_TRIG(name, fast, exact)                                                                        \
    void PW_FN(name, f32)(int64_t n, void *out, const void *const *in, const void *p);                    \
    void PW_FN(name, f32)(int64_t n, void *out, const void *const *in, const void *p) {                   \
        float *o = out;                                                                                   \
        const float *x = in[0];                                                                           \
        (void)p;                                                                                          \
        int far = 0;                                                                                      \
        for (int64_t i = 0; i < n; i++) far |= !(fabsf(x[i]) <= VM_TRIG_MAX);                             \
        if (far)                                                                                          \
            for (int64_t i = 0; i < n; i++) o[i] = fabsf(x[i]) <= VM_TRIG_MAX ? fast(x[i]) : exact(x[i]); \
        else                                                                                              \
            PW_LOOP o[i] = fast(x[i]);                                                                    \
    }
PW_TRIG(sin, vm_sin, sinf)
PW_TRIG(cos, vm_cos, cosf)
PW_TRIG(tan, vm_tan, tanf)
PW_BLOCK1(sin, f64, double, double, double, sin(a))
PW_BLOCK1(cos, f64, double, double, double, cos(a))
PW_BLOCK1(tan, f64, double, double, double, tan(a))

/* sin(pi a) / (pi a) */
static inline double sinc_f64(double a) {
    double t = a * 3.14159265358979323846;
    return a == 0.0 ? 1.0 : sin(t) / t;
}
PW_FLT1(sinc, sinc_f64((double)a))

/* log(e^a + e^b) */
#define LOGADD_BIG (a > b ? a : b)
PW_FLT2(logaddexp, a == b ? a + (T)0.69314718055994530942 : LOGADD_BIG + M_LOG1P(M_EXP(-M_ABS(a - b))))
PW_FLT2(logaddexp2, a == b ? a + (T)1 : LOGADD_BIG + M_LOG1P(M_EXP2(-M_ABS(a - b))) * (T)1.44269504088896340736)

PW_FLT2(xlogy, b != b ? b : a == 0 ? (T)0 : a * M_LOG(b))
PW_FLT2(xlog1py, b != b ? b : a == 0 ? (T)0 : a * M_LOG1P(b))
PW_FLT1(entr, a != a ? a : a > 0 ? -a * M_LOG(a) : a == 0 ? (T)0 : (T)-INFINITY)
/* log(a / (1 - a)), a clamped to [eps, 1 - eps] where eps >= 0 was given (pa; NaN = not) */
#define LOGIT_CLAMPED (pa == pa ? (a < pa ? pa : a > (T)1 - pa ? (T)1 - pa : a) : a)
PW_FLTP1(logit, M_LOG(LOGIT_CLAMPED / ((T)1 - LOGIT_CLAMPED)))
