/* Vector maths in float: functions without branches, calls or memory, so that loops over them vectorise at every instruction set.
 *
 * Each is a static inline float -> float (or two) within 2 ulp of the true value, tested against double over all exponents. Range reduction
 * is Cody and Waite's; the polynomials were fitted here (weighted minimax). Functions whose reduction needs more bits work in double:
 * half the lanes, but right to the last bit nearly always. Conditionals are selections between two computed values. Rounding to an integer
 * is done by adding 1.5 * 2^23 (2^52 in double), which needs no SSE4.1.
 *
 * vm_x: f32. vd_x: a double helper good to about 1e-11, for use below vm_x only. M_X(v): by type, libm for double. */
#ifndef DT_BACKEND_CPU_VECMATH_H
#define DT_BACKEND_CPU_VECMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define VM static inline __attribute__((always_inline))

VM int32_t vm_bits(float x) {
    int32_t i;
    memcpy(&i, &x, 4);
    return i;
}
VM float vm_float(int32_t i) {
    float x;
    memcpy(&x, &i, 4);
    return x;
}
VM int64_t vd_bits(double x) {
    int64_t i;
    memcpy(&i, &x, 8);
    return i;
}
VM double vd_double(int64_t i) {
    double x;
    memcpy(&x, &i, 8);
    return x;
}

/* ---- exponentials ---------------------------------------------------------------------------------------------------------- */
#define VM_MAGIC 12582912.0f
#define VM_LN2_HI 0.693359375f
#define VM_LN2_LO -2.12194440e-4f

/* (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2 */
VM float vm_exp_tail(float r) {
    return 0.500000008f + r * (0.166666669f + r * (0.0416662538f + r * (0.00833326264f + r * (0.0013947225f + r * 0.000199193777f))));
}

VM float vm_exp(float x) {
    float c = x < -110.0f ? -110.0f : x;
    c = c > 100.0f ? 100.0f : c;
    float z = c * 1.44269504f + VM_MAGIC, k = z - VM_MAGIC;
    int32_t i = vm_bits(z) - 0x4B400000, half = i >> 1;
    float r = (c - k * VM_LN2_HI) - k * VM_LN2_LO;
    float p = 1.0f + (r + r * r * vm_exp_tail(r));
    return p * vm_float((half + 127) << 23) * vm_float((i - half + 127) << 23);
}

VM float vm_expm1(float x) {
    float c = x < -20.0f ? -20.0f : x;
    c = c > 100.0f ? 100.0f : c;
    float z = c * 1.44269504f + VM_MAGIC, k = z - VM_MAGIC;
    int32_t i = vm_bits(z) - 0x4B400000;
    i = i > 128 ? 128 : i; /* beyond, e^x is infinite whatever k is */
    float r = (c - k * VM_LN2_HI) - k * VM_LN2_LO;
    float q = r + r * r * vm_exp_tail(r), s = vm_float((i + 126) << 23); /* 2^(k-1) */
    float y = 2.0f * (s * q + (s - 0.5f));
    y = c > 88.9f ? INFINITY : y;
    y = k == 0.0f ? q : y;
    return x == 0.0f ? x : y;
}

/* ---- logarithms -------------------------------------------------------------------------------------------------------------- */
/* log(1 + f) - f + f^2/2, divided by f^3, on 1 + f in [sqrt(1/2), sqrt(2)] */
VM float vm_log_tail(float f) {
    return 0.333333104f +
           f * (-0.249999866f +
                f * (0.200022266f +
                     f * (-0.166692508f + f * (0.142186581f + f * (-0.123843485f + f * (0.118729763f + f * (-0.117898076f + f * 0.0691536798f)))))));
}

VM float vm_log(float x) {
    float big = x < 1.17549435e-38f ? x * 8388608.0f : x;
    float sub = x < 1.17549435e-38f ? -23.0f : 0.0f;
    int32_t i = vm_bits(big) - 0x3f3504f3, e = i >> 23;
    float f = vm_float((i & 0x7fffff) + 0x3f3504f3) - 1.0f, k = (float)e + sub;
    float y = f * f * f * vm_log_tail(f) + k * VM_LN2_LO - 0.5f * f * f;
    y = k * VM_LN2_HI + (f + y);
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x < INFINITY ? y : x; /* inf and NaN */
}

VM float vm_log1p(float x) {
    float u = 1.0f + x;
    float c = u < INFINITY && u > 0.0f ? (x - (u - 1.0f)) / u : 0.0f; /* what 1 + x lost */
    /* for large u the lost part is of no weight, for small x: log u + c */
    float y = vm_log(u) + c;
    return u == 1.0f ? x : y;
}

VM double vd_log2(double x) { /* x > 0, normal, finite */
    int64_t i = vd_bits(x) - 0x3fe6a09e667f3bcd;
    double m = vd_double((i & 0xfffffffffffff) + 0x3fe6a09e667f3bcd);
    /* the exponent as a double, without a conversion of 64-bit integers: place it in the mantissa of 2^52 */
    double e = vd_double((int64_t)((uint64_t)(i + (1023ll << 52)) >> 52) | 0x4330000000000000) - (4503599627370496.0 + 1023.0);
    double z = (m - 1.0) / (m + 1.0), u = z * z;
    double p = 2.8853900817778491 +
               u * (0.96179669411322544 + u * (0.57707794241292265 + u * (0.41220924612023152 + u * (0.31990600512915751 + u * 0.28289510016946745))));
    return e + z * p;
}
VM double vd_exp2(double x) { /* |x| <= 1000 */
    double z = x + 6755399441055744.0, k = z - 6755399441055744.0, r = x - k;
    double p = 1.0000000000000278 +
               r * (0.69314718054593139 +
                    r * (0.24022650695465766 +
                         r * (0.055504109412135558 +
                              r * (0.0096181292286837868 +
                                   r * (0.0013333450551715623 + r * (0.00015403411561359598 + r * (1.5310080919597995e-05 + r * 1.326407791193933e-06)))))));
    return p * vd_double((vd_bits(z) + 1023) << 52); /* the low bits of z are the integer */
}
VM double vd_clamp(double x, double lo, double hi) {
    x = x < lo ? lo : x;
    return x > hi ? hi : x;
}
VM double vd_log2_f32(float x) { return vd_log2((double)x); } /* every positive f32 is normal in double */
VM float vm_log_special(float x, float y) {
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x < INFINITY ? y : x;
}
VM float vm_log2(float x) { return vm_log_special(x, (float)vd_log2_f32(x)); }
VM float vm_log10(float x) { return vm_log_special(x, (float)(vd_log2_f32(x) * 0.30102999566398120)); }
VM float vm_exp2(float x) {
    float y = (float)vd_exp2(vd_clamp((double)x, -200.0, 200.0));
    return x == x ? y : x;
}

/* x^y for x > 0, finite x and y; everything else is vm_pow's */
VM float vm_pow_positive(float x, float y) { return (float)vd_exp2(vd_clamp((double)y * vd_log2_f32(x), -300.0, 300.0)); }
VM float vm_pow(float x, float y) {
    float a = fabsf(x), whole = y;
    float t = fabsf(y) < 8388608.0f ? (fabsf(y) + 8388608.0f) - 8388608.0f : fabsf(y); /* nearest integer */
    float h = 0.5f * t, hr = h < 8388608.0f ? (h + 8388608.0f) - 8388608.0f : h;
    int is_int = t == fabsf(y), odd = is_int & (h != hr);
    float r = vm_pow_positive(a, y);
    r = a == 0.0f ? (y > 0.0f ? 0.0f : INFINITY) : r;
    r = a == INFINITY ? (y > 0.0f ? INFINITY : 0.0f) : r;
    float up = a > 1.0f ? INFINITY : 0.0f, down = a > 1.0f ? 0.0f : INFINITY;
    float at_inf = y > 0.0f ? up : down;
    at_inf = a == 1.0f ? 1.0f : at_inf;
    r = fabsf(y) == INFINITY ? at_inf : r;
    int negative = vm_bits(x) < 0;
    r = negative & odd ? -r : r;
    r = (x < 0.0f) & !is_int & (a < INFINITY) & (fabsf(y) < INFINITY) ? NAN : r;
    r = (x != x) | (y != y) ? x + whole : r;
    r = (y == 0.0f) | (x == 1.0f) ? 1.0f : r;
    r = (y == 0.5f) & (x >= 0.0f) ? sqrtf(x) : r;
    r = y == 2.0f ? x * x : r;
    return y == 3.0f ? x * x * x : r;
}

/* ---- tanh, sigmoid, erf -------------------------------------------------------------------------------------------------------- */
VM float vm_tanh(float x) {
    float a = fabsf(x), u = x * x;
    float small = x + x * u * (-0.333333318f + u * (0.133332478f + u * (-0.0539524753f + u * (0.0217344384f + u * (-0.00826708755f + u * 0.00223106105f)))));
    float big = 1.0f - 2.0f / (vm_exp(2.0f * a) + 1.0f);
    float y = a < 0.6f ? small : big;
    return copysignf(y, x);
}
VM float vm_sigmoid(float x) { return 1.0f / (1.0f + vm_exp(-x)); }

VM float vm_erf(float x) {
    float a = fabsf(x), u = x * x;
    float small =
        x + x * (0.128379167f +
                 u * (-0.376126385f + u * (0.112837827f + u * (-0.0268654458f +
                                                               u * (0.00522107488f + u * (-0.000848471146f + u * (0.000112705446f + u * -9.68013668e-06f)))))));
    float c = a > 4.0f ? 4.0f : a;
    float t = 0.00018344415f +
              c * (-1.12955683f +
                   c * (-0.633262612f + c * (-0.108372479f + c * (0.0251789678f + c * (-0.00419361109f + c * (0.000439106374f + c * -2.14961137e-05f))))));
    float big = 1.0f - vm_exp(t);
    big = x < 0.0f ? -big : big;
    float y = a < 1.0f ? small : big;
    return x == x ? y : x;
}

/* The normal distribution function, within 6e-8 absolute: 1/2 + x P(x^2) / Q(x^2), 0 and 1 beyond +-5.7. */
VM float vm_phi(float x) {
    float c = x < -5.7f ? -5.7f : x;
    c = c > 5.7f ? 5.7f : c;
    float u = c * c;
    float p = 0.398942206f + u * (0.0349411624f + u * (0.00474082956f + u * (0.000179394123f + u * (6.37418931e-06f + u * 2.15802877e-08f))));
    float q = 1.0f + u * (0.254249974f + u * (0.0292606914f + u * (0.00194455409f + u * (7.67679626e-05f + u * 1.16496246e-06f))));
    float y = 0.5f + c * (p / q);
    y = x < -5.7f ? 0.0f : y;
    return x > 5.7f ? 1.0f : y;
}

/* ---- trigonometry: reduced in double ---------------------------------------------------------------------------------------------- */
/* Beyond it callers use libm. k * 1.5707963267341256 is exact for k below 2^20, or in a fused multiply-add. */
#ifdef __FMA__
#define VM_TRIG_MAX 1e9f
#else
#define VM_TRIG_MAX 1e6f
#endif
VM double vd_reduce(double x, int64_t *quadrant) { /* x = q pi/2 + r */
    double z = x * 0.63661977236758134 + 6755399441055744.0, k = z - 6755399441055744.0;
    *quadrant = vd_bits(z);
#ifdef __FMA__ /* asked for by name: a compiler need not contract x - k * c by itself, and does not under sanitizers */
    return __builtin_fma(-k, 6.0771005065061922e-11, __builtin_fma(-k, 1.5707963267341256, x));
#else
    return (x - k * 1.5707963267341256) - k * 6.0771005065061922e-11;
#endif
}
VM double vd_sin_poly(double r) {
    double u = r * r;
    return r + r * u *
                   (-0.16666666666663738 +
                    u * (0.0083333333309898727 + u * (-0.00019841266830076339 + u * (2.7555964668035264e-06 + u * -2.4803209195547705e-08))));
}
VM double vd_cos_poly(double r) {
    double u = r * r;
    return 1.0 + u * (-0.5 + u * (0.041666666666632546 +
                                  u * (-0.0013888888881823497 + u * (2.4801582395336461e-05 + u * (-2.7555808052435202e-07 + u * 2.0662414639530903e-09)))));
}
VM float vm_sin(float x) {
    int64_t q;
    double r = vd_reduce((double)x, &q), s = vd_sin_poly(r), c = vd_cos_poly(r);
    double y = q & 1 ? c : s;
    y = q & 2 ? -y : y;
    return x == 0.0f ? x : (float)y;
}
VM float vm_cos(float x) {
    int64_t q;
    double r = vd_reduce((double)x, &q), s = vd_sin_poly(r), c = vd_cos_poly(r);
    double y = q & 1 ? s : c;
    return (float)((q + 1) & 2 ? -y : y);
}
VM float vm_tan(float x) {
    int64_t q;
    double r = vd_reduce((double)x, &q), s = vd_sin_poly(r), c = vd_cos_poly(r);
    double n = q & 1 ? -c : s, d = q & 1 ? s : c;
    return x == 0.0f ? x : (float)(n / d);
}

/* cos and sin of 2 pi t, t in [0, 1): the quarter nearest to t, and what remains. */
VM void vm_turn(float t, float *cosine, float *sine) {
    float z = t * 4.0f + VM_MAGIC, r = t * 4.0f - (z - VM_MAGIC), u = r * r;
    int32_t q = vm_bits(z);
    float s = r * (1.57079632f + u * (-0.645963479f + u * (0.0796802281f + u * -0.00460217699f)));
    float c = 1.0f + u * (-1.23370054f + u * (0.253669204f + u * (-0.0208600713f + u * 0.000903631705f)));
    float x = q & 1 ? s : c, y = q & 1 ? c : s;
    *cosine = (q + 1) & 2 ? -x : x;
    *sine = q & 2 ? -y : y;
}

VM double vd_atan_poly(double t) { /* |t| <= tan(pi/8) */
    double u = t * t;
    return t * (0.99999999999929656 +
                u * (-0.33333333279806915 +
                     u * (0.1999999332149365 +
                          u * (-0.14285395895078198 +
                               u * (0.11103612086953898 + u * (-0.089938767660746904 + u * (0.069797999077290507 + u * -0.037748263889652613)))))));
}
VM double vd_atan_positive(double a) { /* a >= 0, inf allowed */
    int big = a > 2.414213562373095, mid = a > 0.41421356237309503;
    double t = big ? -1.0 / a : mid ? (a - 1.0) / (a + 1.0) : a;
    double base = big ? 1.5707963267948966 : mid ? 0.78539816339744828 : 0.0;
    return base + vd_atan_poly(t);
}
VM float vm_atan(float x) {
    float y = (float)vd_atan_positive(fabs((double)x));
    y = x < 0.0f ? -y : y;
    return (x == x) & (x != 0.0f) ? y : x;
}
VM float vm_atan2(float y, float x) {
    double ay = fabs((double)y), ax = fabs((double)x);
    double q = ay / ax; /* 0/0 and inf/inf are set right below */
    q = (ay == 0.0) & (ax == 0.0) ? 0.0 : q;
    q = (ay == INFINITY) & (ax == INFINITY) ? 1.0 : q;
    double t = vd_atan_positive(q);
    t = vm_bits(x) < 0 ? 3.1415926535897931 - t : t;
    float r = (float)t;
    r = vm_bits(y) < 0 ? -r : r;
    return (x == x) & (y == y) ? r : x + y;
}
VM double vd_asin_poly(double t) { /* |t| <= 1/2 */
    double u = t * t;
    return t * (1.0000000000009353 +
                u * (0.16666666607519312 +
                     u * (0.075000061423204478 +
                          u * (0.044640408309794585 +
                               u * (0.030430585593474821 +
                                    u * (0.021834628889470915 + u * (0.020781402151627919 + u * (0.0016687101334366284 + u * 0.033204986951848425))))))));
}
VM float vm_asin(float x) {
    double a = fabs((double)x);
    double z = a > 0.5 ? sqrt(0.5 * (1.0 - a)) : a, p = vd_asin_poly(z);
    float y = (float)(a > 0.5 ? 1.5707963267948966 - 2.0 * p : p);
    y = x < 0.0f ? -y : y;
    y = a <= 1.0 ? y : NAN;
    return x == 0.0f ? x : y;
}
VM float vm_acos(float x) {
    double d = (double)x, a = fabs(d);
    double z = a > 0.5 ? sqrt(0.5 * (1.0 - a)) : d, p = vd_asin_poly(z);
    double far = 2.0 * p, y = a > 0.5 ? (d < 0.0 ? 3.1415926535897931 - far : far) : 1.5707963267948966 - p;
    return a <= 1.0 ? (float)y : NAN;
}

/* ---- hyperbolic functions ----------------------------------------------------------------------------------------------------------- */
VM double vd_exp_f32(double x) { return vd_exp2(vd_clamp(x * 1.4426950408889634, -300.0, 300.0)); }
VM float vm_sinh(float x) {
    double a = fabs((double)x), e = vd_exp_f32(a), u = a * a;
    double small = a * (1.0 + u * (1.0 / 6 + u * (1.0 / 120 + u * (1.0 / 5040 + u * (1.0 / 362880 + u / 39916800)))));
    float y = (float)(a < 0.7 ? small : 0.5 * (e - 1.0 / e));
    y = x < 0.0f ? -y : y;
    return (x == x) & (x != 0.0f) ? y : x;
}
VM float vm_cosh(float x) {
    double e = vd_exp_f32(fabs((double)x));
    return x == x ? (float)(0.5 * (e + 1.0 / e)) : x;
}
/* log(1 + t) for t >= 0 in double, also for tiny t */
VM double vd_log1p(double t) {
    double z = t / (2.0 + t), u = z * z; /* atanh form, |t| <= 0.4 */
    double small = z * (1.9999999999999469 + u * (0.66666666679692199 +
                                                  u * (0.39999994859540922 + u * (0.28572169303318062 + u * (0.22174124957165978 + u * 0.19609819075109625)))));
    return fabs(t) < 0.33 ? small : vd_log2(1.0 + t) * 0.69314718055994529;
}
VM float vm_asinh(float x) {
    double a = fabs((double)x), b = a > 1e30 ? 1e30 : a;
    float y = (float)vd_log1p(b + b * b / (1.0 + sqrt(1.0 + b * b)));
    y = a > 1e30 ? (float)(vd_log2(a < 1e300 ? a : 1.0) * 0.69314718055994529 + 0.69314718055994529) : y;
    y = a < INFINITY ? y : INFINITY;
    y = x < 0.0f ? -y : y;
    return (x == x) & (x != 0.0f) ? y : x;
}
VM float vm_acosh(float x) {
    double a = (double)x, t = a - 1.0;
    float y = (float)vd_log1p(t + sqrt(2.0 * t + t * t));
    y = x < INFINITY ? y : x;
    return x < 1.0f ? NAN : y;
}
VM float vm_atanh(float x) {
    double a = fabs((double)x), b = a < 1.0 ? a : 0.0;
    float y = (float)(0.5 * vd_log1p(2.0 * b / (1.0 - b)));
    y = a == 1.0 ? INFINITY : y;
    y = x < 0.0f ? -y : y;
    y = a <= 1.0 ? y : NAN;
    return x == 0.0f ? x : y;
}
VM float vm_hypot(float x, float y) {
    double a = (double)x, b = (double)y;
    float r = (float)sqrt(a * a + b * b);
    return (fabsf(x) == INFINITY) | (fabsf(y) == INFINITY) ? INFINITY : r;
}

/* erfc: 1 - erf below 1/2; above, e^(-x^2) times a polynomial in 1 / (1 + x/2) in double */
VM float vm_erfc(float x) {
    double d = x > 0.5f ? (double)x : 0.5, c = d < 11.0 ? d : 11.0, t = 1.0 / (1.0 + 0.5 * c);
    double p = 3.7039402662752963e-06 +
               t * (0.28198033785063142 +
                    t * (0.28363953237863726 +
                         t * (0.23485591925695304 +
                              t * (0.2352493563604616 +
                                   t * (-0.1076117230155222 +
                                        t * (0.40550114650287145 + t * (-0.61008189201951635 + t * (0.35075533663017477 + t * -0.074299536898679394))))))));
    float big = (float)(p * vd_exp2(c * c * -1.4426950408889634));
    return x > 0.5f ? big : 1.0f - vm_erf(x);
}

/* The remainder of a / b with a's sign, exact while |a / b| < VM_FMOD_MAX: then the quotient and its product with b fit into a double. */
#define VM_FMOD_MAX 268435456.0f
VM float vm_fmod(float a, float b) {
    double q = (double)a / (double)b, t = fabs(q) + 4503599627370496.0 - 4503599627370496.0;
    t = t > fabs(q) ? t - 1.0 : t; /* truncated */
    double m = fabs((double)a) - t * fabs((double)b);
    return copysignf((float)m, a);
}
VM float vm_remainder(float a, float b) {
    float m = vm_fmod(a, b);
    return (m != 0.0f) & ((b < 0.0f) != (m < 0.0f)) ? m + b : m;
}

/* ---- rounding ------------------------------------------------------------------------------------------------------------------------ */
VM float vm_rint(float x) { /* to nearest, ties to even; keeps the sign of zero */
    float a = fabsf(x), r = (a + 8388608.0f) - 8388608.0f;
    return a < 8388608.0f ? copysignf(r, x) : x;
}
VM float vm_trunc(float x) {
    float a = fabsf(x), r = (a + 8388608.0f) - 8388608.0f;
    r = r > a ? r - 1.0f : r;
    return a < 8388608.0f ? copysignf(r, x) : x;
}
VM float vm_floor(float x) {
    float r = vm_rint(x);
    r = r > x ? r - 1.0f : r;
    return copysignf(r, x);
}
VM float vm_ceil(float x) {
    float r = vm_rint(x);
    r = r < x ? r + 1.0f : r;
    return copysignf(r, x);
}

VM float vm_floor_div(float a, float b) {
    float m = vm_fmod(a, b), q = (a - m) / b;
    q = (m != 0.0f) & ((b < 0.0f) != (m < 0.0f)) ? q - 1.0f : q;
    float f = vm_floor(q);
    f = q - f > 0.5f ? f + 1.0f : f;
    return q == 0.0f ? copysignf(0.0f, a / b) : f;
}

/* ---- by type --------------------------------------------------------------------------------------------------------------------------- */
VM double vm_phi_f64(double x) { return 0.5 * erfc(x * -0.70710678118654752440); }
VM double vm_sigmoid_f64(double x) { return 1.0 / (1.0 + exp(-x)); }
#define M_BY_TYPE(x, f, d) _Generic((x), float : f, default : d)
#define M_EXP(x) M_BY_TYPE(x, vm_exp, exp)(x)
#define M_EXP2(x) M_BY_TYPE(x, vm_exp2, exp2)(x)
#define M_EXPM1(x) M_BY_TYPE(x, vm_expm1, expm1)(x)
#define M_LOG(x) M_BY_TYPE(x, vm_log, log)(x)
#define M_LOG2(x) M_BY_TYPE(x, vm_log2, log2)(x)
#define M_LOG10(x) M_BY_TYPE(x, vm_log10, log10)(x)
#define M_LOG1P(x) M_BY_TYPE(x, vm_log1p, log1p)(x)
#define M_POW(x, y) M_BY_TYPE(x, vm_pow, pow)(x, y)
#define M_TANH(x) M_BY_TYPE(x, vm_tanh, tanh)(x)
#define M_SIGMOID(x) M_BY_TYPE(x, vm_sigmoid, vm_sigmoid_f64)(x)
#define M_ERF(x) M_BY_TYPE(x, vm_erf, erf)(x)
#define M_PHI(x) M_BY_TYPE(x, vm_phi, vm_phi_f64)(x)
#define M_SIN(x) M_BY_TYPE(x, vm_sin, sin)(x)
#define M_COS(x) M_BY_TYPE(x, vm_cos, cos)(x)
#define M_TAN(x) M_BY_TYPE(x, vm_tan, tan)(x)
#define M_ASIN(x) M_BY_TYPE(x, vm_asin, asin)(x)
#define M_ACOS(x) M_BY_TYPE(x, vm_acos, acos)(x)
#define M_ATAN(x) M_BY_TYPE(x, vm_atan, atan)(x)
#define M_ATAN2(y, x) M_BY_TYPE(x, vm_atan2, atan2)(y, x)
#define M_SINH(x) M_BY_TYPE(x, vm_sinh, sinh)(x)
#define M_COSH(x) M_BY_TYPE(x, vm_cosh, cosh)(x)
#define M_ASINH(x) M_BY_TYPE(x, vm_asinh, asinh)(x)
#define M_ACOSH(x) M_BY_TYPE(x, vm_acosh, acosh)(x)
#define M_ATANH(x) M_BY_TYPE(x, vm_atanh, atanh)(x)
#define M_HYPOT(x, y) M_BY_TYPE(x, vm_hypot, hypot)(x, y)
#define M_RINT(x) M_BY_TYPE(x, vm_rint, rint)(x)
#define M_TRUNC(x) M_BY_TYPE(x, vm_trunc, trunc)(x)
#define M_FLOOR(x) M_BY_TYPE(x, vm_floor, floor)(x)
#define M_CEIL(x) M_BY_TYPE(x, vm_ceil, ceil)(x)
#define M_ABS(x) M_BY_TYPE(x, fabsf, fabs)(x)
#define M_SQRT(x) M_BY_TYPE(x, sqrtf, sqrt)(x)
#define M_COPYSIGN(x, y) M_BY_TYPE(x, copysignf, copysign)(x, y)
#define M_FMOD(x, y) M_BY_TYPE(x, fmodf, fmod)(x, y)

#endif
