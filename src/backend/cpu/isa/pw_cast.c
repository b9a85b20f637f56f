/* Casts between any two dtypes, as block functions. Floats to integers truncate (out of range: whatever the processor gives), anything to bool is
 * `!= 0`; 16-bit floats go through f32. A float64 becomes a 16-bit float by way of float32, as in PyTorch. */
#include "backend/cpu/isa/pw_cast.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

#define CAST(from, F, to, O, expr)                                                           \
    static void from##_to_##to(int64_t n, void *out, const void *const *in, const void *p) { \
        const F *x = in[0];                                                                  \
        O *o = out;                                                                          \
        (void)p;                                                                             \
        PW_LOOP {                                                                            \
            F a = x[i];                                                                      \
            o[i] = (O)(expr);                                                                \
        }                                                                                    \
    }
/* SMALL: integers below 32 bits are reached through int32, which the processor converts to in one instruction. */
#define FROM(from, F)                  \
    CAST(from, F, b1, uint8_t, a != 0) \
    CAST(from, F, i64, int64_t, a)     \
    CAST(from, F, i32, int32_t, a)     \
    CAST(from, F, f32, float, a)       \
    CAST(from, F, f64, double, a)      \
    CAST(from, F, bf16, uint16_t, vm_f32_to_bf16((float)a))
#define FROM_INT(from, F) \
    FROM(from, F)         \
    CAST(from, F, u8, uint8_t, a) CAST(from, F, i8, int8_t, a) CAST(from, F, i16, int16_t, a) CAST(from, F, f16, uint16_t, vm_f32_to_f16((float)a))
#define FROM_FLOAT(from, F) FROM(from, F) CAST(from, F, u8, uint8_t, (int32_t)a) CAST(from, F, i8, int8_t, (int32_t)a) CAST(from, F, i16, int16_t, (int32_t)a)
FROM_INT(b1, uint8_t)
FROM_INT(u8, uint8_t)
FROM_INT(i8, int8_t)
FROM_INT(i16, int16_t)
FROM_INT(i32, int32_t)
FROM_INT(i64, int64_t)
FROM_FLOAT(f32, float)
FROM_FLOAT(f64, double)
CAST(f64, double, f16, uint16_t, vm_f32_to_f16((float)a))
CAST(bf16, uint16_t, f32, float, vm_bf16_to_f32(a))

static void f32_to_f16(int64_t n, void *out, const void *const *in, const void *p) {
    const float *x = in[0];
    uint16_t *o = out;
    int64_t i = 0;
    (void)p;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8) _mm_storeu_si128((__m128i *)(o + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++) o[i] = vm_f32_to_f16(x[i]);
}
static void f16_to_f32(int64_t n, void *out, const void *const *in, const void *p) {
    const uint16_t *x = in[0];
    float *o = out;
    int64_t i = 0;
    (void)p;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(o + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
#endif
    for (; i < n; i++) o[i] = vm_f16_to_f32(x[i]);
}

/* From a 16-bit type to anything else, in pieces through f32. */
#define VIA_F32(from, size, to, step)                                                        \
    static void from##_to_##to(int64_t n, void *out, const void *const *in, const void *p) { \
        float t[256];                                                                        \
        for (int64_t at = 0; at < n; at += 256) {                                            \
            int64_t m = n - at < 256 ? n - at : 256;                                         \
            from##_to_f32(m, t, (const void *[]){(const uint16_t *)in[0] + at}, p);          \
            step(m, (char *)out + at * size, (const void *[]){t}, p);                        \
        }                                                                                    \
    }
#define VIA(from)                     \
    VIA_F32(from, 1, b1, f32_to_b1)   \
    VIA_F32(from, 1, u8, f32_to_u8)   \
    VIA_F32(from, 1, i8, f32_to_i8)   \
    VIA_F32(from, 2, i16, f32_to_i16) \
    VIA_F32(from, 4, i32, f32_to_i32) \
    VIA_F32(from, 8, i64, f32_to_i64) \
    VIA_F32(from, 8, f64, f32_to_f64)
VIA(bf16)
VIA(f16)
VIA_F32(bf16, 2, f16, f32_to_f16)
VIA_F32(f16, 2, bf16, f32_to_bf16)

#define MOVE(name, size)                                                                       \
    static void name##_to_##name(int64_t n, void *out, const void *const *in, const void *p) { \
        (void)p;                                                                               \
        if (out != in[0]) memcpy(out, in[0], (size_t)n *size);                                 \
    }
MOVE(bf16, 2)
MOVE(f16, 2)

#define ROW(from) \
    { from##_to_b1, from##_to_u8, from##_to_i8, from##_to_i16, from##_to_i32, from##_to_i64, from##_to_f16, from##_to_bf16, from##_to_f32, from##_to_f64 }
static const dt_pw_fn casts[DT_DTYPE_COUNT][DT_DTYPE_COUNT] = {ROW(b1),  ROW(u8),  ROW(i8),   ROW(i16), ROW(i32),
                                                               ROW(i64), ROW(f16), ROW(bf16), ROW(f32), ROW(f64)};

dt_pw_fn DT_ISA_FN(pw_cast)(dt_dtype from, dt_dtype to);
dt_pw_fn DT_ISA_FN(pw_cast)(dt_dtype from, dt_dtype to) { return from < DT_DTYPE_COUNT && to < DT_DTYPE_COUNT ? casts[from][to] : NULL; }
