/* Combining elements of any dtype. See accum.h. */
#include "backend/cpu/accum.h"

#include <math.h>
#include <string.h>

#define LOOP(type, expr)                                                   \
    for (int64_t i = 0; i < n; i++) {                                      \
        type x = ((const type *)d)[i * ds], y = ((const type *)s)[i * ss]; \
        ((type *)d)[i * ds] = (type)(expr);                                \
    }                                                                      \
    break
#define MODES(type)                                      \
    switch (mode) {                                      \
    case DT_RM_SET: LOOP(type, ((void)x, y));            \
    case DT_RM_MUL: LOOP(type, x *y);                    \
    case DT_RM_MAX: LOOP(type, y > x || y != y ? y : x); \
    case DT_RM_MIN: LOOP(type, y < x || y != y ? y : x); \
    default: LOOP(type, x + y);                          \
    }                                                    \
    break

static double combine(dt_reduce_mode mode, double x, double y) {
    switch (mode) {
    case DT_RM_SET: return y;
    case DT_RM_MUL: return x * y;
    case DT_RM_MAX: return y > x || y != y ? y : x;
    case DT_RM_MIN: return y < x || y != y ? y : x;
    default: return x + y;
    }
}

void dt_cpu_accum(dt_dtype t, dt_reduce_mode mode, void *d, const void *s, int64_t n, int64_t ds, int64_t ss) {
    size_t elem = dt_dtype_size(t);
    if (mode == DT_RM_SET && ds == 1 && ss == 1) {
        memcpy(d, s, (size_t)n * elem);
        return;
    }
    if (t == DT_float32 && (mode == DT_RM_ADD || mode == DT_RM_MEAN) && ds == 1 && ss == 1) {
        dt_cpu_add_f32(d, s, n);
        return;
    }
    switch (t) {
    case DT_float32: MODES(float);
    case DT_float64: MODES(double);
    case DT_int64: MODES(int64_t);
    case DT_int32: MODES(int32_t);
    case DT_int16: MODES(int16_t);
    case DT_int8: MODES(int8_t);
    case DT_uint8: MODES(uint8_t);
    default:
        for (int64_t i = 0; i < n; i++) {
            char *p = (char *)d + (size_t)(i * ds) * elem;
            double v = combine(mode, dt_element_get_f64(t, p), dt_element_get_f64(t, (const char *)s + (size_t)(i * ss) * elem));
            dt_element_set_f64(t, p, t == DT_bool ? v != 0 : v);
        }
    }
}

void dt_cpu_accum_identity(dt_dtype t, dt_reduce_mode mode, void *d) {
    static const int bits[DT_DTYPE_COUNT] = {[DT_uint8] = 8, [DT_int8] = 7, [DT_int16] = 15, [DT_int32] = 31, [DT_int64] = 63};
    bool high = mode == DT_RM_MIN;
    if (mode == DT_RM_MUL)
        dt_element_set_f64(t, d, 1);
    else if (mode != DT_RM_MAX && mode != DT_RM_MIN)
        dt_element_set_f64(t, d, 0);
    else if (dt_dtype_is_float(t))
        dt_element_set_f64(t, d, high ? INFINITY : -INFINITY);
    else if (t == DT_bool || t == DT_uint8)
        dt_element_set_i64(t, d, high ? (t == DT_bool ? 1 : 255) : 0);
    else {
        int64_t max = (int64_t)(((uint64_t)1 << bits[t]) - 1);
        dt_element_set_i64(t, d, high ? max : -max - 1);
    }
}

void dt_cpu_accum_divide(dt_dtype t, void *d, int64_t count) {
    if (count <= 1) return;
    if (dt_dtype_is_float(t)) {
        dt_element_set_f64(t, d, dt_element_get_f64(t, d) / (double)count);
        return;
    }
    int64_t v = dt_element_get_i64(t, d), q = v / count;
    dt_element_set_i64(t, d, v % count < 0 ? q - 1 : q);
}

void dt_cpu_accum_scaled(dt_dtype t, void *d, const void *s, int64_t n, const dt_view *alpha) {
    size_t elem = dt_dtype_size(t);
    if (dt_dtype_is_float(t)) {
        double a = dt_view_f64(alpha);
        for (int64_t i = 0; i < n; i++) {
            char *p = (char *)d + (size_t)i * elem;
            if (t == DT_float32)
                ((float *)d)[i] += (float)a * ((const float *)s)[i];
            else
                dt_element_set_f64(t, p, dt_element_get_f64(t, p) + a * dt_element_get_f64(t, (const char *)s + (size_t)i * elem));
        }
        return;
    }
    int64_t a = dt_view_i64(alpha);
    for (int64_t i = 0; i < n; i++) {
        char *p = (char *)d + (size_t)i * elem;
        int64_t v = dt_element_get_i64(t, p) + a * dt_element_get_i64(t, (const char *)s + (size_t)i * elem);
        dt_element_set_i64(t, p, t == DT_bool ? v != 0 : v);
    }
}
