/* What the literals of elementwise ops have in common. */
#ifndef DT_OPS_POINTWISE_OPS_H
#define DT_OPS_POINTWISE_OPS_H

#include "ops/grad.h"
#include "ops/pointwise.h"

DT_CPU_KERNEL(pointwise);

#define DT_POINTWISE_BY(code, rule) .place = rule, .pointwise = DT_PW_##code, .kernels = {{DT_CPU, DT_ANY, dt_cpu_pointwise}}
#define DT_POINTWISE(code) DT_POINTWISE_BY(code, dt_place_pointwise)
#define DT_FN_METHOD (DT_FN | DT_METHOD)

/* Attribute structs with dt_pw_floats' layout: the parameters' names in order. */
#define DT_PW_FLOATS1(x)                      \
    {                                         \
        sizeof(dt_pw_floats), {               \
            { #x, offsetof(dt_pw_floats, a) } \
        }                                     \
    }
#define DT_PW_FLOATS2(x, y)                                                    \
    {                                                                          \
        sizeof(dt_pw_floats), {                                                \
            {#x, offsetof(dt_pw_floats, a)}, { #y, offsetof(dt_pw_floats, b) } \
        }                                                                      \
    }
#define DT_PW_FLOATS3(x, y, z)                                                                                  \
    {                                                                                                           \
        sizeof(dt_pw_floats), {                                                                                 \
            {#x, offsetof(dt_pw_floats, a)}, {#y, offsetof(dt_pw_floats, b)}, { #z, offsetof(dt_pw_floats, c) } \
        }                                                                                                       \
    }
#define DT_PW_INT1(x)                      \
    {                                      \
        sizeof(dt_pw_int), {               \
            { #x, offsetof(dt_pw_int, a) } \
        }                                  \
    }

/* In compose functions: the one result; arguments as values. */
static inline void dt_compose_one(dt_tensor *t, dt_tensor **out, int *n_out) {
    out[0] = dt_keep(t);
    *n_out = 1;
}
static inline dt_value dt_arg_as_value(const dt_arg *a) {
    switch (a->kind) {
    case DT_ARG_TENSOR: return dt_v_tensor(a->t);
    case DT_ARG_FLOAT: return dt_v_float(a->f);
    case DT_ARG_INT: return dt_v_int(a->i);
    case DT_ARG_BOOL: return dt_v_bool(a->i != 0);
    default: return DT_NOTHING;
    }
}
static inline double dt_arg_as_float(const dt_arg *a, double otherwise) {
    return a->kind == DT_ARG_FLOAT ? a->f : a->kind == DT_ARG_INT || a->kind == DT_ARG_BOOL ? (double)a->i : otherwise;
}
static inline int64_t dt_arg_as_int(const dt_arg *a, int64_t otherwise) { return a->kind == DT_ARG_INT || a->kind == DT_ARG_BOOL ? a->i : otherwise; }
static inline int dt_arg_as_dtype(const dt_arg *a, int otherwise) { return a->kind == DT_ARG_DTYPE ? (int)a->i : otherwise; }

/* Numbers and 0-dim constants scale a Partial: inputs in `mask` may be Partial(sum|avg) one at a time, the others Replicate. */
dt_status dt_place_scaled(const dt_node *n, dt_rules *r, uint32_t mask) DT_WUR;
/* infer of ops that PyTorch refuses for bool tensors. */
dt_status dt_infer_pointwise_no_bool(dt_node *n) DT_WUR;
/* infer of functions that exist for float inputs only (integers are an error, not promoted). */
dt_status dt_infer_float_only(dt_node *n) DT_WUR;

#endif
