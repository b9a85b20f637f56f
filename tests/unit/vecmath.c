/* Accuracy of the f32 vector maths, through the block functions of the instruction set in use, against libm in double: within 2 ulp over samples
 * of every exponent, both signs, subnormals, infinities and NaN. */
#include "base/cpu.h"
#include "ops/pointwise.h"
#include "test.h"

enum { STEP = 2503, BLOCK = 1000 };

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* Distance of got from the true value in units of the last place of a float near it. */
static double ulps(float got, double want) {
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    float w = (float)want;
    if (isinf(w) || isinf(got)) { /* near the largest float, infinity is one step away */
        if (got == w) return 0;
        return fabs(want) > 3.4028230e38 && fabsf(got) > 3.4028230e38f && (got > 0) == (want > 0) ? 1 : INFINITY;
    }
    int e;
    frexp(fabs(want), &e);
    double unit = ldexp(1, e - 24 < -149 ? -149 : e - 24);
    return fabs((double)got - want) / unit;
}

/* Every STEP-th float; fails where the error passes `limit`. */
static void sweep(const char *name, int code, double (*exact)(double), double limit) {
    dt_pw_fn fn = dt_cpu_pw_find(code, DT_float32);
    REQUIRE(fn);
    float in[BLOCK], out[BLOCK];
    double worst = 0;
    float at = 0, gave = 0;
    for (uint64_t u = 0; u < 1ull << 32; u += (uint64_t)STEP * BLOCK) {
        for (int i = 0; i < BLOCK; i++) in[i] = from_bits((uint32_t)(u + (uint64_t)i * STEP));
        fn(BLOCK, out, (const void *[]){in}, NULL);
        for (int i = 0; i < BLOCK; i++) {
            double d = ulps(out[i], exact((double)in[i]));
            if (!(d <= worst)) worst = d, at = in[i], gave = out[i];
        }
    }
    static const float special[] = {0.0f,          -0.0f,          1.0f,   -1.0f,     INFINITY,  -INFINITY, NAN,
                                    3.4028235e38f, -3.4028235e38f, 1e-45f, 88.72284f, 88.72283f, 0.5f,      2.0f};
    enum { N = sizeof special / sizeof *special };
    fn(N, out, (const void *[]){special}, NULL);
    for (int i = 0; i < N; i++) {
        double want = exact((double)special[i]), d = ulps(out[i], want);
        if (!(d <= worst)) worst = d, at = special[i], gave = out[i];
        if (want == 0 && special[i] == 0) CHECK_INT(signbit(out[i]) != 0, signbit(want) != 0);
    }
    printf("  %-8s %.3f ulp\n", name, worst);
    if (!(worst <= limit)) TEST_FAIL("%s(%a = %.9g) = %.9g, expected %.17g: %g ulp", name, at, at, gave, exact((double)at), worst);
}

static double d_rsqrt(double x) { return 1 / sqrt(x); }
static double d_sigmoid(double x) { return 1 / (1 + exp(-x)); }
#define SWEEP(name, exact, limit) \
    TEST(name) { sweep(#name, DT_PW_##name, exact, limit); }
SWEEP(exp, exp, 2)
SWEEP(exp2, exp2, 2)
SWEEP(expm1, expm1, 2)
SWEEP(log, log, 2)
SWEEP(log2, log2, 2)
SWEEP(log10, log10, 2)
SWEEP(log1p, log1p, 2)
SWEEP(sin, sin, 2)
SWEEP(cos, cos, 2)
SWEEP(tan, tan, 2)
SWEEP(asin, asin, 2)
SWEEP(acos, acos, 2)
SWEEP(atan, atan, 2)
SWEEP(sinh, sinh, 2)
SWEEP(cosh, cosh, 2)
SWEEP(tanh, tanh, 2)
SWEEP(asinh, asinh, 2)
SWEEP(acosh, acosh, 2)
SWEEP(atanh, atanh, 2)
SWEEP(erf, erf, 2)
SWEEP(erfc, erfc, 2)
SWEEP(sqrt, sqrt, 1)
SWEEP(rsqrt, d_rsqrt, 2)
SWEEP(floor, floor, 0)
SWEEP(ceil, ceil, 0)
SWEEP(trunc, trunc, 0)
SWEEP(round, nearbyint, 0)

/* e^-x overflows for x < -88.7 and the result is 0 there, as in PyTorch: at most what is below the smallest normal number is lost. */
TEST(sigmoid) {
    dt_pw_fn fn = dt_cpu_pw_find(DT_PW_sigmoid, DT_float32);
    for (float x = -120; x < 120; x += 0.00173f) {
        float y;
        fn(1, &y, (const void *[]){&x}, NULL);
        double want = d_sigmoid((double)x), d = x < -87.5f ? (fabs((double)y - want) < 1.2e-38 ? 0 : 9) : ulps(y, want);
        if (!(d <= 2.5)) TEST_FAIL("sigmoid(%.9g) = %.9g, expected %.17g: %g ulp", x, y, want, d);
    }
}

static uint32_t state = 1;
static uint32_t next(void) { return state = state * 1664525u + 1013904223u; }

static void sweep2(int code, double (*exact)(double, double), bool any, double limit) {
    dt_pw_fn fn = dt_cpu_pw_find(code, DT_float32);
    static const float special[] = {0.0f,  -0.0f,    1.0f,      -1.0f, 2.0f,   -2.0f,         3.0f,        -3.0f,      0.5f,
                                    -0.5f, INFINITY, -INFINITY, NAN,   1e-45f, 3.4028235e38f, 16777217.0f, 8388609.0f, -8388607.0f};
    enum { N = sizeof special / sizeof *special };
    float a[BLOCK], b[BLOCK], out[BLOCK];
    double worst = 0;
    for (int round = 0; round < 1000; round++) {
        for (int i = 0; i < BLOCK; i++) {
            a[i] = any ? from_bits(next()) : (float)(next() >> 8) * 0x1p-20f;
            b[i] = any ? from_bits(next()) : ((float)(next() >> 8) - 0x1p23f) * 0x1p-19f;
            if (round == 0) a[i] = special[i / N % N], b[i] = special[i % N];
        }
        fn(BLOCK, out, (const void *[]){a, b}, NULL);
        for (int i = 0; i < BLOCK; i++) {
            double want = exact((double)a[i], (double)b[i]), d = ulps(out[i], want);
            if (!(d <= worst)) {
                worst = d;
                if (!(d <= limit)) TEST_FAIL("f(%a, %a) = %.9g, expected %.17g: %g ulp", a[i], b[i], out[i], want, d);
            }
        }
    }
    printf("  %.3f ulp\n", worst);
}
TEST(pow_positive) { sweep2(DT_PW_pow, pow, false, 2); }
TEST(pow_any) { sweep2(DT_PW_pow, pow, true, 2); }
static double d_remainder(double a, double b) {
    double m = fmod(a, b);
    return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}
TEST(fmod_near) { sweep2(DT_PW_fmod, fmod, false, 0); }
TEST(fmod_any) { sweep2(DT_PW_fmod, fmod, true, 0); }
TEST(remainder_near) { sweep2(DT_PW_remainder, d_remainder, false, 1); }
TEST(atan2_any) { sweep2(DT_PW_atan2, atan2, true, 2); }
TEST(hypot_any) { sweep2(DT_PW_hypot, hypot, true, 2); }

/* The tail of a loop gives the same bits as its vector part: what a shard's edge cuts off must not matter. */
TEST(every_length_gives_the_same_bits) {
    static const int codes[] = {DT_PW_exp,  DT_PW_log,   DT_PW_tanh,  DT_PW_erf,  DT_PW_sin,  DT_PW_gelu, DT_PW_gelu_tanh,
                                DT_PW_silu, DT_PW_expm1, DT_PW_log1p, DT_PW_atan, DT_PW_sinh, DT_PW_mish, DT_PW_rsqrt};
    float in[67], whole[67], part[67];
    for (int i = 0; i < 67; i++) in[i] = (float)(next() >> 8) * 0x1p-22f;
    for (size_t k = 0; k < sizeof codes / sizeof *codes; k++) {
        dt_pw_fn fn = dt_cpu_pw_find(codes[k], DT_float32);
        fn(67, whole, (const void *[]){in}, NULL);
        for (int cut = 1; cut < 67; cut++) {
            fn(cut, part, (const void *[]){in}, NULL);
            fn(67 - cut, part + cut, (const void *[]){in + cut}, NULL);
            if (memcmp(whole, part, sizeof whole)) TEST_FAIL("code %d cut at %d", codes[k], cut);
        }
    }
}

/* Conversions of 16-bit floats agree with the scalar ones of tensor/dtype.h for every value. */
TEST(half_conversions) {
    dt_pw_fn up = dt_cpu_pw_cast(DT_float16, DT_float32), down = dt_cpu_pw_cast(DT_float32, DT_float16), bdown = dt_cpu_pw_cast(DT_float32, DT_bfloat16);
    for (int h = 0; h < 65536; h += 16) {
        uint16_t in[16], back[16], bback[16];
        float f[16], mid[16];
        for (int i = 0; i < 16; i++) in[i] = (uint16_t)(h + i);
        up(16, f, (const void *[]){in}, NULL);
        for (int i = 0; i < 16; i++) {
            float want = dt_f16_to_f32(in[i]);
            CHECK(isnan(want) ? isnan(f[i]) : f[i] == want);
            mid[i] = isfinite(want) ? want + (float)((int)(next() >> 20) - 2048) * 0x1p-12f * (fabsf(want) * 0x1p-10f + 0x1p-24f) : want;
        }
        down(16, back, (const void *[]){mid}, NULL);
        bdown(16, bback, (const void *[]){mid}, NULL);
        for (int i = 0; i < 16; i++) {
            CHECK(isnan(mid[i]) ? (back[i] & 0x7fff) > 0x7c00 : back[i] == dt_f16_from_f32(mid[i]));
            CHECK_INT(bback[i], dt_bf16_from_f32(mid[i]));
        }
    }
}
