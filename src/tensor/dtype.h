/* Element types: one table, PyTorch's promotion rules, conversions of single elements. Pure. */
#ifndef DT_TENSOR_DTYPE_H
#define DT_TENSOR_DTYPE_H

#include "base/status.h"

/* X(name, C type of storage, size in bytes, category: 0 bool 1 integer 2 float 3 complex, safetensors' and NumPy's names) */
#define DT_DTYPE_MAP(X)                     \
    X(bool, uint8_t, 1, 0, "BOOL", "?")     \
    X(uint8, uint8_t, 1, 1, "U8", "u1")     \
    X(int8, int8_t, 1, 1, "I8", "i1")       \
    X(int16, int16_t, 2, 1, "I16", "i2")    \
    X(int32, int32_t, 4, 1, "I32", "i4")    \
    X(int64, int64_t, 8, 1, "I64", "i8")    \
    X(float16, uint16_t, 2, 2, "F16", "f2") \
    X(bfloat16, uint16_t, 2, 2, "BF16", "") \
    X(float32, float, 4, 2, "F32", "f4")    \
    X(float64, double, 8, 2, "F64", "f8")

typedef enum dt_dtype {
#define X(name, ctype, size, cat, st, np) DT_##name,
    DT_DTYPE_MAP(X)
#undef X
        DT_DTYPE_COUNT,
    DT_DTYPE_NONE = 255 /* "not given" for optional dtype arguments */
} dt_dtype;

extern const uint8_t dt_dtype_sizes[DT_DTYPE_COUNT];
extern const uint8_t dt_dtype_categories[DT_DTYPE_COUNT];
const char *dt_dtype_name(dt_dtype t);
static inline size_t dt_dtype_size(dt_dtype t) { return dt_dtype_sizes[t]; }
static inline bool dt_dtype_is_float(dt_dtype t) { return dt_dtype_categories[t] == 2; }
static inline bool dt_dtype_is_int(dt_dtype t) { return dt_dtype_categories[t] == 1; } /* bool is not an integer here */
static inline bool dt_dtype_is_bool(dt_dtype t) { return t == DT_bool; }
/* A set of dtypes, as a bit mask. */
typedef uint32_t dt_dtypes;
#define DT_BIT(t) (1u << DT_##t)
#define DT_FLOATS (DT_BIT(float16) | DT_BIT(bfloat16) | DT_BIT(float32) | DT_BIT(float64))
#define DT_INTS_MASK (DT_BIT(uint8) | DT_BIT(int8) | DT_BIT(int16) | DT_BIT(int32) | DT_BIT(int64))
#define DT_ANY (DT_FLOATS | DT_INTS_MASK | DT_BIT(bool))

/* The promoted type of two tensor dtypes of the same priority (torch.promote_types). */
dt_dtype dt_dtype_promote(dt_dtype a, dt_dtype b);
/* One element at p, as a double or an int64; and the reverse (rounds to nearest even; integers wrap as in C). */
double dt_element_get_f64(dt_dtype t, const void *p);
int64_t dt_element_get_i64(dt_dtype t, const void *p);
void dt_element_set_f64(dt_dtype t, void *p, double v);
void dt_element_set_i64(dt_dtype t, void *p, int64_t v);

static inline float dt_bf16_to_f32(uint16_t h) {
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)h << 16};
    return x.f;
}
static inline uint16_t dt_bf16_from_f32(float f) {
    union {
        float f;
        uint32_t u;
    } x = {f};
    if ((x.u & 0x7fffffff) > 0x7f800000) return (uint16_t)(x.u >> 16 | 64); /* keep a NaN a NaN */
    return (uint16_t)((x.u + 0x7fff + (x.u >> 16 & 1)) >> 16);
}
float dt_f16_to_f32(uint16_t h);
uint16_t dt_f16_from_f32(float f);

#endif
