/* A fused group: several elementwise ops of one shape as one instruction.
 *
 * Values are numbered: inputs of the instruction first, then one result per op, in order. A result that somebody outside the group reads is
 * an output of the instruction and lies in memory; the others exist for a tile only. The instruction's ctx.attr is a dt_fused. Each op rounds
 * to its own dtype, as it would alone: a group gives the same bits as its ops one by one.
 *
 * An input that failed spoils only the outputs that depend on it (`depends`). */
#ifndef DT_PLAN_FUSED_H
#define DT_PLAN_FUSED_H

#include "ops/kernel.h"
#include "ops/pointwise.h"

enum { DT_FUSED_OPS = 24, DT_FUSED_IN = 16, DT_FUSED_OUT = 8, DT_FUSED_TILES = 20 };

typedef struct dt_fused_op {
    int code;       /* dt_pw_code */
    dt_dtype key;   /* the tile dtype that chooses the block function */
    dt_dtype dtype; /* of the result */
    const struct dt_op *op;
    const void *params; /* the op's attributes */
    int8_t out;         /* which output of the instruction, -1: none */
    int8_t tile;        /* where the result lies when it is no output, or has to be widened for a reader; -1: nowhere */
    bool read;          /* a later op of the group reads it */
    uint8_t n_in;
    uint8_t in[DT_PW_MAX_IN]; /* values */
} dt_fused_op;

typedef struct dt_fused {
    const char *name;                /* "fused(add, mul)": interned */
    int n_ops, n_in, n_out, n_tiles; /* n_tiles: of the results; inputs that need one get theirs at run time */
    dt_fused_op op[DT_FUSED_OPS];
    uint8_t last_read[DT_FUSED_IN]; /* the last op that reads input i */
    uint8_t made_by[DT_FUSED_OUT];  /* the op that makes output k */
    uint32_t depends[DT_FUSED_OUT]; /* inputs that output k depends on, as a mask */
} dt_fused;

#endif
