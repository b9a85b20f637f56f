/* Block functions of special functions. All compute in double, an element at a time: f32 results are right to the last bit, f64 ones to a few.
 * Methods: Newton's or Halley's steps on a first guess for inverses, recurrence and asymptotic series for gamma's family (Abramowitz and Stegun 6.3,
 * 6.4), Euler and Maclaurin's summation for zeta, power series and asymptotic series for the Bessel functions (9.6, 9.7). */
#include "backend/cpu/isa/pw.h"

#define PI 3.14159265358979323846
#define SQRT_HALF 0.70710678118654752440
#define BY_DOUBLE1(name, fn) PW_FLT1(name, fn((double)a))

/* ---- inverse error function, inverse normal distribution ------------------------------------------------------------------------------- */
/* A first guess of erfinv from w = -log((1 - x)(1 + x)), relative error about 1e-6 (Giles, GPU Computing Gems 2011). */
static double erfinv_guess(double x, double w) {
    double p;
    if (w < 5) {
        w -= 2.5;
        p = 1.50140941 +
            w * (0.246640727 +
                 w * (-0.00417768164 +
                      w * (-0.00125372503 + w * (0.00021858087 + w * (-4.39150654e-06 + w * (-3.5233877e-06 + w * (3.43273939e-07 + w * 2.81022636e-08)))))));
    } else {
        w = sqrt(w) - 3;
        p = 2.83297682 +
            w * (1.00167406 +
                 w * (0.00943887047 +
                      w * (-0.0076224613 + w * (0.00573950773 + w * (-0.00367342844 + w * (0.00134934322 + w * (0.000100950558 + w * -0.000200214257)))))));
    }
    return p * x;
}
/* Halley's step for f(y) = error: f' = slope, f''/f' = -2y (erf) or -y (normal). */
static double halley(double y, double error, double slope, double bend) {
    double d = error / slope;
    return y - d / (1 + 0.5 * bend * d);
}
static double erfinv_f64(double x) {
    double a = fabs(x);
    if (!(a < 1)) return a == 1 ? copysign(INFINITY, x) : NAN;
    if (x == 0) return x;
    double y = erfinv_guess(a, -log((1 - a) * (1 + a)));
    for (int i = 0; i < 3; i++) {
        double error = a < 0.5 ? erf(y) - a : (1 - a) - erfc(y);
        y = halley(y, error, 2 / sqrt(PI) * exp(-y * y), -2 * y);
    }
    return copysign(y, x);
}
static double ndtri_f64(double p) {
    if (!(p > 0 && p < 1)) return p == 0 ? -INFINITY : p == 1 ? INFINITY : NAN;
    if (p == 0.5) return 0;
    double q = p < 0.5 ? p : 1 - p; /* the lower tail: y < 0 */
    double y = q < 1e-17 ? -sqrt(-2 * log(q)) : sqrt(2) * erfinv_guess(2 * q - 1, -log(4 * q * (1 - q)));
    for (int i = 0; i < 6; i++) {
        double v = 0.5 * erfc(-y * SQRT_HALF), slope = exp(-0.5 * y * y) / sqrt(2 * PI);
        if (v <= 0 || slope <= 0) break;
        double next = q < 1e-3 ? y - v / slope * log(v / q) : halley(y, v - q, slope, -y); /* in the tail: Newton on the logarithm */
        if (fabs(next - y) <= 1e-16 * fabs(y)) break;
        y = next;
    }
    return p < 0.5 ? y : -y;
}
static double erfcx_f64(double x) {
    if (x < 25) return exp(x * x) * erfc(x);
    double u = 1 / (x * x);
    return 1 / (x * sqrt(PI)) * (1 - u * (0.5 - u * (0.75 - u * (1.875 - u * 6.5625))));
}
static double log_ndtr_f64(double x) {
    if (x < -1) return log(0.5 * erfcx_f64(-x * SQRT_HALF)) - 0.5 * x * x;
    return log1p(-0.5 * erfc(x * SQRT_HALF));
}
BY_DOUBLE1(erfinv, erfinv_f64)
BY_DOUBLE1(erfcx, erfcx_f64)
BY_DOUBLE1(ndtri, ndtri_f64)
BY_DOUBLE1(log_ndtr, log_ndtr_f64)

/* ---- gamma's family ---------------------------------------------------------------------------------------------------------------------- */
static double lgamma_f64(double x) {
    int sign;
    return lgamma_r(x, &sign);
}
static double digamma_f64(double x) {
    double r = 0;
    if (x == 0) return copysign(INFINITY, -x);
    if (x < 0) { /* reflection */
        if (x == floor(x)) return NAN;
        double f = x - rint(x);
        r = -PI / tan(PI * f);
        x = 1 - x;
    }
    if (x == INFINITY) return x;
    for (; x < 10; x += 1) r -= 1 / x;
    double u = 1 / (x * x);
    return r + log(x) - 0.5 / x - u * (1.0 / 12 - u * (1.0 / 120 - u * (1.0 / 252 - u * (1.0 / 240 - u * (1.0 / 132 - u * (691.0 / 32760 - u / 12))))));
}
/* Sum over k >= 0 of (k + q)^-s: the first terms, then Euler and Maclaurin's formula with Bernoulli numbers. */
static double zeta_f64(double s, double q) {
    static const double coefficient[] = {/* (2k)! / B_2k */
                                         12.0,
                                         -720.0,
                                         30240.0,
                                         -1209600.0,
                                         47900160.0,
                                         -1.8924375803183791606e9,
                                         7.47242496e10,
                                         -2.950130727918164224e12,
                                         1.1646782814350067249e14,
                                         -4.5979787224074726105e15,
                                         1.8152105401943546773e17,
                                         -7.1661652561756670113e18};
    if (s != s || q != q) return NAN;
    if (s == 1) return INFINITY;
    if (s < 1) return NAN;
    if (q <= 0) {
        if (q == floor(q)) return INFINITY;
        if (s != floor(s)) return NAN; /* a negative base */
    }
    double sum = pow(q, -s), a = q, b = 0;
    for (int i = 0; i < 9 || a <= 9; i++) {
        a += 1;
        b = pow(a, -s);
        sum += b;
        if (fabs(b) < 1e-17 * fabs(sum)) return sum;
    }
    sum += b * a / (s - 1) - 0.5 * b;
    double factor = 1, k = 0;
    for (int i = 0; i < 12; i++) {
        factor *= s + k;
        b /= a;
        double t = factor * b / coefficient[i];
        sum += t;
        if (fabs(t) < 1e-17 * fabs(sum)) break;
        k += 1;
        factor *= s + k;
        b /= a;
        k += 1;
    }
    return sum;
}
static double polygamma_f64(int64_t n, double x) {
    if (n == 0) return digamma_f64(x);
    if (x < 0 && n == 1 && x != floor(x)) { /* trigamma's reflection */
        double s = sin(PI * (x - rint(x)));
        return PI * PI / (s * s) - zeta_f64(2, 1 - x);
    }
    double f = tgamma((double)n + 1) * zeta_f64((double)n + 1, x);
    return n & 1 ? f : -f;
}
BY_DOUBLE1(lgamma, lgamma_f64)
BY_DOUBLE1(digamma, digamma_f64)
PW_FLT2(zeta, zeta_f64((double)a, (double)b))
#define PW_POLY(name, suffix, T_, W_, O_, expr) PW_BODY(name, suffix, T_, W_, O_, PW_PTR1; const int64_t k = ((const dt_pw_int *)p)->a, PW_GET1, expr)
PW_OVER_FLT_R(PW_POLY, polygamma, polygamma_f64(k, (double)a))

/* ---- Bessel functions ---------------------------------------------------------------------------------------------------------------------- */
/* e^-|x| I_v(x) for v = 0, 1: sum of (x/2)^(2k+v) / (k! (k+v)!), all terms positive; beyond 30 the asymptotic series. */
static double bessel_ie(double x, int v) {
    double a = fabs(x), r;
    if (a != a) return x;
    if (a < 30) {
        double u = 0.25 * a * a, t = v ? 0.5 * a : 1, sum = t;
        for (int k = 1; k < 200 && t > 1e-17 * sum; k++) {
            t *= u / ((double)k * (k + v));
            sum += t;
        }
        r = sum * exp(-a);
    } else {
        double t = 1, sum = 1, m = 4.0 * v * v;
        for (int k = 1; k < 40; k++) {
            double f = -(m - (2.0 * k - 1) * (2.0 * k - 1)) / (8 * a * k);
            if (fabs(f) >= 1) break;
            t *= f;
            sum += t;
            if (fabs(t) < 1e-17) break;
        }
        r = sum / sqrt(2 * PI * a);
    }
    return v && x < 0 ? -r : r;
}
PW_FLT1(i0e, bessel_ie((double)a, 0))
PW_FLT1(i1e, bessel_ie((double)a, 1))
/* in two steps, so that e^x may be larger than the result of which it is a part */
#define BESSEL_I(v) (bessel_ie((double)a, v) * exp(0.5 * fabs((double)a)) * exp(0.5 * fabs((double)a)))
PW_FLT1(i0, BESSEL_I(0))
PW_FLT1(i1, BESSEL_I(1))
BY_DOUBLE1(bessel_j0, j0)
BY_DOUBLE1(bessel_j1, j1)
BY_DOUBLE1(bessel_y0, y0)
BY_DOUBLE1(bessel_y1, y1)
static double spherical_j0(double x) { return x == 0 ? 1 : isinf(x) ? 0 : sin(x) / x; }
BY_DOUBLE1(spherical_bessel_j0, spherical_j0)

/* Modified Bessel functions of the second kind, scaled by e^x: the integral over t >= 0 of e^(-x (cosh t - 1)) cosh(v t), by the trapezoidal rule,
 * which converges exponentially here. */
static double bessel_ke(double x, double v) {
    if (!(x > 0)) return x == 0 ? INFINITY : NAN;
    if (x == INFINITY) return 0;
    const double h = 1.0 / 16, end = acosh(1 + 750 / x); /* there e^-750 is 0; the weight cosh(v t) is far from making up for it */
    double sum = 0.5;
    for (int i = 1; i * h < end; i++) {
        double t = i * h, s = sinh(0.5 * t), term = exp(-2 * x * s * s) * cosh(v * t);
        sum += term;
        if (term < 1e-18 * sum) break;
    }
    return sum * h;
}
PW_FLT1(bessel_k0e, bessel_ke((double)a, 0))
PW_FLT1(bessel_k1e, bessel_ke((double)a, 1))
PW_FLT1(bessel_k0, bessel_ke((double)a, 0) * exp(-(double)a))
PW_FLT1(bessel_k1, bessel_ke((double)a, 1) * exp(-(double)a))

/* Airy's function Ai: Maclaurin's series in the middle, K_1/3 to the right, the oscillating asymptotic series to the left (A&S 10.4). */
static double airy_ai(double x) {
    if (x != x) return x;
    double z = 2.0 / 3 * pow(fabs(x), 1.5);
    if (x > 3) return sqrt(x / 3) / PI * bessel_ke(z, 1.0 / 3) * exp(-z);
    if (x < -8) {
        if (isinf(x)) return 0;
        double t = 1, even = 1, odd = 0;
        for (int k = 1; k < 20; k++) { /* c_k / z^k, c_k = c_(k-1) (6k-5)(6k-1) / (72 k) */
            double f = (6.0 * k - 5) * (6.0 * k - 1) / (72.0 * k * z);
            if (f >= 1 || fabs(t) < 1e-17) break;
            t *= f;
            if (k & 1)
                odd += k & 2 ? -t : t;
            else
                even += k & 2 ? -t : t;
        }
        return (sin(z + PI / 4) * even - cos(z + PI / 4) * odd) / (sqrt(PI) * pow(-x, 0.25));
    }
    double cube = x * x * x, f = 1, g = x, sf = 1, sg = x;
    for (int k = 1; k < 200; k++) {
        f *= cube / ((3.0 * k - 1) * (3.0 * k));
        g *= cube / ((3.0 * k) * (3.0 * k + 1));
        sf += f;
        sg += g;
        if (fabs(f) < 1e-18 * fabs(sf) && fabs(g) < 1e-18 * fabs(sg)) break;
    }
    return 0.35502805388781723926 * sf - 0.25881940379280679841 * sg;
}
BY_DOUBLE1(airy_ai, airy_ai)

/* ---- incomplete gamma functions, regularised: P by its series where x < a + 1, else Q by its continued fraction (A&S 6.5.29, 6.5.31) ----------- */
static double igamma_series(double a, double x) {
    double t = 1 / a, sum = t;
    for (int k = 1; k < 100000; k++) {
        t *= x / (a + k);
        sum += t;
        if (t < 1e-17 * sum) break;
    }
    return sum * exp(a * log(x) - x - lgamma_f64(a));
}
static double igamma_fraction(double a, double x) { /* Lentz's method */
    double b = x + 1 - a, c = 1e300, d = 1 / b, f = d;
    for (int k = 1; k < 100000; k++) {
        double n = -k * (k - a);
        b += 2;
        d = n * d + b;
        d = 1 / (fabs(d) < 1e-300 ? 1e-300 : d);
        c = b + n / c;
        if (fabs(c) < 1e-300) c = 1e-300;
        f *= d * c;
        if (fabs(d * c - 1) < 1e-16) break;
    }
    return f * exp(a * log(x) - x - lgamma_f64(a));
}
static double igamma_f64(double a, double x, bool upper) {
    if (a != a || x != x || a < 0 || x < 0) return NAN;
    if (a == 0) return x > 0 ? !upper : NAN;
    if (x == 0) return upper;
    if (isinf(a)) return isinf(x) ? NAN : upper;
    if (isinf(x)) return !upper;
    if (x < a + 1) return upper ? 1 - igamma_series(a, x) : igamma_series(a, x);
    return upper ? igamma_fraction(a, x) : 1 - igamma_fraction(a, x);
}
PW_FLT2(igamma, igamma_f64((double)a, (double)b, false))
PW_FLT2(igammac, igamma_f64((double)a, (double)b, true))

/* ---- orthogonal polynomials of degree n, 0 for n < 0, NaN for n > 65536, by their recurrences (A&S 22.7) ---------------------------------------------------------------- */
/* p0 = 1, p1 = first; next: p_(k+1) from p = p_k and q = p_(k-1) */
#define POLYNOMIAL(name, first, next)                    \
    static double name##_f64(double x, double degree) {  \
        if (!(degree <= 65536)) return NAN;              \
        int64_t n = degree <= -1 ? -1 : (int64_t)degree; \
        if (n <= 0) return n == 0;                       \
        double q = 1, p = first;                         \
        for (int64_t k = 1; k < n; k++) {                \
            double r = next;                             \
            q = p;                                       \
            p = r;                                       \
            if (p != p) break;                           \
        }                                                \
        return p;                                        \
    }                                                    \
    PW_FLT2(name, name##_f64((double)a, (double)b))
POLYNOMIAL(chebyshev_t, x, 2 * x * p - q)
POLYNOMIAL(chebyshev_u, 2 * x, 2 * x * p - q)
POLYNOMIAL(chebyshev_v, 2 * x - 1, 2 * x * p - q)
POLYNOMIAL(chebyshev_w, 2 * x + 1, 2 * x * p - q)
#define Z (2 * x - 1)
POLYNOMIAL(shifted_chebyshev_t, Z, 2 * Z * p - q)
POLYNOMIAL(shifted_chebyshev_u, 2 * Z, 2 * Z * p - q)
POLYNOMIAL(shifted_chebyshev_v, 2 * Z - 1, 2 * Z * p - q)
POLYNOMIAL(shifted_chebyshev_w, 2 * Z + 1, 2 * Z * p - q)
POLYNOMIAL(hermite_h, 2 * x, 2 * x * p - 2 * (double)k * q)
POLYNOMIAL(hermite_he, x, x *p - (double)k * q)
POLYNOMIAL(laguerre_l, 1 - x, ((2 * (double)k + 1 - x) * p - (double)k * q) / ((double)k + 1))
POLYNOMIAL(legendre_p, x, ((2 * (double)k + 1) * x * p - (double)k * q) / ((double)k + 1))
