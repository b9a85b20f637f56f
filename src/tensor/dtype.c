/* Element types. See dtype.h. */
#include "tensor/dtype.h"

#include <string.h>

const uint8_t dt_dtype_sizes[DT_DTYPE_COUNT] = {
#define X(name, ctype, size, cat, st, np) size,
    DT_DTYPE_MAP(X)
#undef X
};
const uint8_t dt_dtype_categories[DT_DTYPE_COUNT] = {
#define X(name, ctype, size, cat, st, np) cat,
    DT_DTYPE_MAP(X)
#undef X
};

const char *dt_dtype_name(dt_dtype t) {
    static const char *const names[] = {
#define X(name, ctype, size, cat, st, np) #name,
        DT_DTYPE_MAP(X)
#undef X
    };
    return t < DT_DTYPE_COUNT ? names[t] : "none";
}

dt_dtype dt_dtype_promote(dt_dtype a, dt_dtype b) {
    if (a == b) return a;
    int ca = dt_dtype_categories[a], cb = dt_dtype_categories[b];
    if (ca != cb) return ca > cb ? a : b;
    if (ca == 2 && dt_dtype_size(a) == 2 && dt_dtype_size(b) == 2) return DT_float32; /* float16 with bfloat16 */
    if (a == DT_uint8 || b == DT_uint8) {                                             /* the only unsigned type: with int8 it needs int16 */
        dt_dtype o = a == DT_uint8 ? b : a;
        return o == DT_int8 ? DT_int16 : o;
    }
    return a > b ? a : b;
}

float dt_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023, u;
    if (e == 31)
        u = sign | 0x7f800000 | m << 13;
    else if (e)
        u = sign | (e + 112) << 23 | m << 13;
    else { /* subnormal: m * 2^-24 */
        float f = (float)m * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}

uint16_t dt_f16_from_f32(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to 2^16 or is larger: infinity */
    if (a < 0x38800000) {                                  /* result is subnormal or zero: let the FPU round m * 2^24 */
        float x;
        memcpy(&x, &a, 4);
        x *= 0x1p24f;
        uint32_t m = (uint32_t)x;
        float rest = x - (float)m;
        if (rest > 0.5f || (rest == 0.5f && (m & 1))) m++;
        return (uint16_t)(sign | m);
    }
    a += 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | (a - 0x38000000) >> 13);
}

double dt_element_get_f64(dt_dtype t, const void *p) {
    switch (t) {
    case DT_float64: return *(const double *)p;
    case DT_float32: return *(const float *)p;
    case DT_float16: return dt_f16_to_f32(*(const uint16_t *)p);
    case DT_bfloat16: return dt_bf16_to_f32(*(const uint16_t *)p);
    default: return (double)dt_element_get_i64(t, p);
    }
}

int64_t dt_element_get_i64(dt_dtype t, const void *p) {
    switch (t) {
    case DT_bool: return *(const uint8_t *)p != 0;
    case DT_uint8: return *(const uint8_t *)p;
    case DT_int8: return *(const int8_t *)p;
    case DT_int16: return *(const int16_t *)p;
    case DT_int32: return *(const int32_t *)p;
    case DT_int64: return *(const int64_t *)p;
    default: return (int64_t)dt_element_get_f64(t, p);
    }
}

void dt_element_set_f64(dt_dtype t, void *p, double v) {
    switch (t) {
    case DT_float64: *(double *)p = v; return;
    case DT_float32: *(float *)p = (float)v; return;
    case DT_float16: *(uint16_t *)p = dt_f16_from_f32((float)v); return;
    case DT_bfloat16: *(uint16_t *)p = dt_bf16_from_f32((float)v); return;
    case DT_bool: *(uint8_t *)p = v != 0; return;
    default: dt_element_set_i64(t, p, (int64_t)v);
    }
}

void dt_element_set_i64(dt_dtype t, void *p, int64_t v) {
    switch (t) {
    case DT_bool: *(uint8_t *)p = v != 0; return;
    case DT_uint8: *(uint8_t *)p = (uint8_t)v; return;
    case DT_int8: *(int8_t *)p = (int8_t)v; return;
    case DT_int16: *(int16_t *)p = (int16_t)v; return;
    case DT_int32: *(int32_t *)p = (int32_t)v; return;
    case DT_int64: *(int64_t *)p = v; return;
    default: dt_element_set_f64(t, p, (double)v);
    }
}
