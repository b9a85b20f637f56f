/* Macros that write block functions (ops/pointwise.h) for every dtype of a code's class from one expression.
 *
 * In an expression a, b, c, d are the inputs' elements (of type T), `p` is the params pointer; the result is converted to the output type.
 * PW_FLT1(exp, M_EXP(a)) makes dt_cpu_pw_exp_f32_<isa> and dt_cpu_pw_exp_f64_<isa>. W is an unsigned type for wrapping integer arithmetic. */
#ifndef DT_BACKEND_CPU_PW_H
#define DT_BACKEND_CPU_PW_H

#include "backend/cpu/isa/isa.h"
#include "backend/cpu/isa/vecmath.h"
#include "ops/pointwise.h"

/* One expression serves signed and unsigned types: a < 0 may be never true. */
#pragma GCC diagnostic ignored "-Wtype-limits"

#define PW_CAT_(name, suffix, isa) dt_cpu_pw_##name##_##suffix##_##isa
#define PW_CAT(name, suffix, isa) PW_CAT_(name, suffix, isa)
#define PW_FN(name, suffix) PW_CAT(name, suffix, DT_ISA)
/* Iterations are independent: out may equal an input, element by element, and overlaps none otherwise. */
#if defined(__clang__)
#define PW_LOOP _Pragma("clang loop vectorize(assume_safety)") for (int64_t i = 0; i < n; i++)
#else
#define PW_LOOP _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)
#endif

/* name, suffix, type of the operands, wrapping type, type of the result, what precedes the loop, expression */
#define PW_BODY(name, suffix, T_, W_, O_, before, load, expr)                              \
    void PW_FN(name, suffix)(int64_t n, void *out, const void *const *in, const void *p);  \
    void PW_FN(name, suffix)(int64_t n, void *out, const void *const *in, const void *p) { \
        typedef T_ T;                                                                      \
        typedef W_ W;                                                                      \
        O_ *o = out;                                                                       \
        (void)p, (void)(W)0;                                                               \
        before;                                                                            \
        PW_LOOP {                                                                          \
            load;                                                                          \
            o[i] = (O_)(expr);                                                             \
        }                                                                                  \
    }
#define PW_PTR1 const T *x = in[0]
#define PW_PTR2 const T *x = in[0], *y = in[1]
#define PW_PTR3 const T *x = in[0], *y = in[1], *z = in[2]
#define PW_PTR4 const T *x = in[0], *y = in[1], *z = in[2], *v = in[3]
#define PW_GET1 T a = x[i]
#define PW_GET2 T a = x[i], b = y[i]
#define PW_GET3 T a = x[i], b = y[i], c = z[i]
#define PW_GET4 T a = x[i], b = y[i], c = z[i], d = v[i]
/* float attributes (dt_pw_floats), read before the loop */
#define PW_ATTR                                                                                                               \
    const T pa = (T)((const dt_pw_floats *)p)->a, pb = (T)((const dt_pw_floats *)p)->b, pc = (T)((const dt_pw_floats *)p)->c; \
    (void)pa, (void)pb, (void)pc
#define PW_BLOCK1(name, suffix, T_, W_, O_, expr) PW_BODY(name, suffix, T_, W_, O_, PW_PTR1, PW_GET1, expr)
#define PW_BLOCK2(name, suffix, T_, W_, O_, expr) PW_BODY(name, suffix, T_, W_, O_, PW_PTR2, PW_GET2, expr)
#define PW_BLOCK3(name, suffix, T_, W_, O_, expr) PW_BODY(name, suffix, T_, W_, O_, PW_PTR3, PW_GET3, expr)
#define PW_BLOCK4(name, suffix, T_, W_, O_, expr) PW_BODY(name, suffix, T_, W_, O_, PW_PTR4, PW_GET4, expr)
#define PW_BLOCKP1(name, suffix, T_, W_, O_, expr) PW_BODY(name, suffix, T_, W_, O_, PW_PTR1; PW_ATTR, PW_GET1, expr)
#define PW_BLOCKP2(name, suffix, T_, W_, O_, expr) PW_BODY(name, suffix, T_, W_, O_, PW_PTR2; PW_ATTR, PW_GET2, expr)

/* BLOCK over the dtypes of a class; the result has the operands' type (_R), or is a bool (_B). */
#define PW_OVER_FLT_R(BLOCK, name, expr) BLOCK(name, f32, float, float, float, expr) BLOCK(name, f64, double, double, double, expr)
#define PW_OVER_INT_R(BLOCK, name, expr)               \
    BLOCK(name, u8, uint8_t, uint32_t, uint8_t, expr)  \
    BLOCK(name, i8, int8_t, uint32_t, int8_t, expr)    \
    BLOCK(name, i16, int16_t, uint32_t, int16_t, expr) \
    BLOCK(name, i32, int32_t, uint32_t, int32_t, expr) \
    BLOCK(name, i64, int64_t, uint64_t, int64_t, expr)
#define PW_OVER_BOOL_R(BLOCK, name, expr) BLOCK(name, b1, uint8_t, uint8_t, uint8_t, expr)
#define PW_OVER_NUM_R(BLOCK, name, expr) PW_OVER_FLT_R(BLOCK, name, expr) PW_OVER_INT_R(BLOCK, name, expr)
#define PW_OVER_FLT_B(BLOCK, name, expr) BLOCK(name, f32, float, float, uint8_t, expr) BLOCK(name, f64, double, double, uint8_t, expr)
#define PW_OVER_INT_B(BLOCK, name, expr)               \
    BLOCK(name, u8, uint8_t, uint32_t, uint8_t, expr)  \
    BLOCK(name, i8, int8_t, uint32_t, uint8_t, expr)   \
    BLOCK(name, i16, int16_t, uint32_t, uint8_t, expr) \
    BLOCK(name, i32, int32_t, uint32_t, uint8_t, expr) \
    BLOCK(name, i64, int64_t, uint64_t, uint8_t, expr)
#define PW_OVER_ALL_B(BLOCK, name, expr) PW_OVER_FLT_B(BLOCK, name, expr) PW_OVER_INT_B(BLOCK, name, expr) PW_OVER_BOOL_R(BLOCK, name, expr)

#define PW_FLT1(name, expr) PW_OVER_FLT_R(PW_BLOCK1, name, expr)
#define PW_FLT2(name, expr) PW_OVER_FLT_R(PW_BLOCK2, name, expr)
#define PW_FLT3(name, expr) PW_OVER_FLT_R(PW_BLOCK3, name, expr)
#define PW_INT1(name, expr) PW_OVER_INT_R(PW_BLOCK1, name, expr)
#define PW_INT2(name, expr) PW_OVER_INT_R(PW_BLOCK2, name, expr)
#define PW_BOOL1(name, expr) PW_OVER_BOOL_R(PW_BLOCK1, name, expr)
#define PW_BOOL2(name, expr) PW_OVER_BOOL_R(PW_BLOCK2, name, expr)
#define PW_NUM1(name, expr) PW_OVER_NUM_R(PW_BLOCK1, name, expr)
#define PW_NUM2(name, expr) PW_OVER_NUM_R(PW_BLOCK2, name, expr)
#define PW_NUM3(name, expr) PW_OVER_NUM_R(PW_BLOCK3, name, expr)
#define PW_TEST1(name, expr) PW_OVER_FLT_B(PW_BLOCK1, name, expr)
#define PW_ANY_TEST1(name, expr) PW_OVER_ALL_B(PW_BLOCK1, name, expr)
#define PW_ANY_TEST2(name, expr) PW_OVER_ALL_B(PW_BLOCK2, name, expr)

#define PW_FLT4(name, expr) PW_OVER_FLT_R(PW_BLOCK4, name, expr)
#define PW_NUM4(name, expr) PW_OVER_NUM_R(PW_BLOCK4, name, expr)
/* with attributes pa, pb, pc */
#define PW_FLTP1(name, expr) PW_OVER_FLT_R(PW_BLOCKP1, name, expr)
#define PW_FLTP2(name, expr) PW_OVER_FLT_R(PW_BLOCKP2, name, expr)
#define PW_NUMP1(name, expr) PW_OVER_NUM_R(PW_BLOCKP1, name, expr)
#define PW_NUMP2(name, expr) PW_OVER_NUM_R(PW_BLOCKP2, name, expr)

#endif
