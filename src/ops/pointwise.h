/* Elementwise operations: their codes, and the block functions that compute them.
 *
 * A block function computes n elements of one code in one dtype from contiguous operands. It knows no strides, no broadcasting and no 16-bit
 * floats: the driver (backend/cpu/isa/pointwise.c) and the fusion interpreter bring operands into that form, tile by tile. out may equal
 * one of the inputs. `params` is the op's attribute struct. */
#ifndef DT_OPS_POINTWISE_H
#define DT_OPS_POINTWISE_H

#include "tensor/dtype.h"

typedef enum dt_pw_code {
    DT_PW_NONE,
    DT_PW_CAST, /* the pair of dtypes chooses the function */
#define DT_PW(name, inputs, key, types) DT_PW_##name,
#include "ops/pointwise.def"
#undef DT_PW
    DT_PW_COUNT
} dt_pw_code;

enum { DT_PW_TILE = 1024, DT_PW_MAX_IN = 4 };
typedef void (*dt_pw_fn)(int64_t n, void *out, const void *const *in, const void *params);

/* Number of inputs of a code, and which of them has the compute dtype. */
int dt_pw_inputs(int code);
int dt_pw_key(int code);
/* The dtype that operands of dtype t have in a tile: f32 for 16-bit floats. */
static inline dt_dtype dt_pw_tile_dtype(dt_dtype t) { return t == DT_bfloat16 || t == DT_float16 ? DT_float32 : t; }
/* The cpu's block function for operands of (tile) dtype t, or NULL. */
dt_pw_fn dt_cpu_pw_find(int code, dt_dtype t);
/* Conversions between any two dtypes, 16-bit floats included; never NULL for legal dtypes. */
dt_pw_fn dt_cpu_pw_cast(dt_dtype from, dt_dtype to);

/* Attribute structs that block functions read. */
typedef struct dt_pw_floats { /* in the signature's order */
    double a, b, c;
} dt_pw_floats;
typedef struct dt_pw_int {
    int64_t a;
} dt_pw_int;

#endif
