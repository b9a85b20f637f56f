/* A fused group: several ops as one instruction, run block by block.
 *
 * All tensors of a group are of one size in row-major order, or, if the group works on rows, have one element for each row of so many elements:
 *
 *      x    (4, 6)   full       y = exp(x - amax(x, -1))  row = 6: amax(x) has an element per row; `sub` reads it spread over its row
 *      amax (4, 1)   per row    z = y / sum(y, -1)
 *
 * Values are numbered: inputs of the instruction first, then one result per op, in order. A result that somebody outside the group reads is
 * an output of the instruction and lies in memory; the others exist for a block only. The instruction's ctx.attr is a dt_fused. Each op rounds
 * to its own dtype, and a reduction adds in the order of its own kernel: a group gives the same bits as its ops one by one. A block holds
 * whole rows.
 *
 * A look-up reads rows (or elements) of a table, an input of any size, at indices, another one: no other op reads these two. Its result is as any
 * other op's. Indices are checked before the group runs (dt_backend.check_lookup), and one that is out of range reads zeros.
 *
 *      y = embedding(ids, w) * 2     ids (n,), w (V, cols) as inputs; the look-up's result: rows w[ids[r]] for the rows r of the block
 *
 * An input that failed, or a look-up, spoils only the outputs that depend on it (`depends`). */
#ifndef DT_PLAN_FUSED_H
#define DT_PLAN_FUSED_H

#include "ops/kernel.h"
#include "ops/pointwise.h"

enum {
    DT_FUSED_MEMBERS = 28, /* ops of the program in one group; spreading a row's value is one more op each */
    DT_FUSED_OPS = 40,
    DT_FUSED_IN = 16,
    DT_FUSED_OUT = 8,
    DT_FUSED_LOOKUPS = 8,
    DT_FUSED_ROWS = 256,         /* rows of a block at most */
    DT_FUSED_MARGIN = 128,       /* elements a tile has beyond its block: see backend/cpu/isa/walk.h */
    DT_FUSED_BYTES = 768 * 1024, /* all tiles of a group on a device thread's stack: no longer rows than fit */
};

/* What an op of a group does besides an elementwise code. */
typedef enum dt_fused_kind {
    DT_FUSED_CODE,   /* op.code, on full tensors or on those of an element per row */
    DT_FUSED_SPREAD, /* an element per row, repeated over its row */
    DT_FUSED_SUM,    /* reductions of each row */
    DT_FUSED_MEAN,
    DT_FUSED_MAX,
    DT_FUSED_MIN,
    DT_FUSED_DROPOUT, /* of a value, a seed and an offset; op.count: the global index of the first element */
    DT_FUSED_LOOKUP,  /* of a table and indices; op.code: dt_lookup; op.count: the first row that is held here */
    DT_FUSED_COLUMNS, /* the sum over all rows, an element per column: an output that no op of the group reads; op.count: 0, or a mean's */
    DT_FUSED_KINDS
} dt_fused_kind;

/* How a look-up reads: which kernel it stands for. */
typedef enum dt_lookup {
    DT_LOOKUP_NONE,
    DT_LOOKUP_EMBEDDING, /* table (V, cols), indices (…): element (i, c) is table[index[i], c] */
    DT_LOOKUP_SELECT,    /* the same */
    DT_LOOKUP_INDEX,     /* the same, negative indices count from the end */
    DT_LOOKUP_GATHER,    /* table (lines, V), indices (lines, n): element (l, i) is table[l, index[l, i]] */
    DT_LOOKUPS
} dt_lookup;

typedef struct dt_fused_op {
    uint8_t kind;   /* dt_fused_kind */
    uint8_t rows;   /* 1: the result has an element per row */
    int code;       /* dt_pw_code */
    dt_dtype key;   /* the tile dtype that chooses the block function; of a reduction or spread: its input's dtype */
    dt_dtype dtype; /* of the result */
    int64_t count;  /* a mean divides by it; see DT_FUSED_DROPOUT */
    int64_t limit;  /* of a look-up: indices below it are legal */
    uint32_t node;  /* of a look-up: whose call an error names */
    int16_t dim;    /* of a look-up: the indexed dimension */
    int8_t lookup;  /* which look-up of the group */
    const struct dt_op *op;
    const void *params; /* the op's attributes */
    int8_t out;         /* which output of the instruction, -1: none */
    int8_t tile;        /* where the result lies when it is no output, or has to be widened for a reader; -1: nowhere */
    bool read;          /* a later op of the group reads it */
    uint8_t n_in;
    uint8_t in[DT_PW_MAX_IN]; /* values */
} dt_fused_op;

typedef struct dt_fused {
    const char *name;           /* "fused(add, mul)": interned */
    int64_t size, row;          /* elements of a full tensor; of a row, 0: no row is looked at */
    int n_ops, n_in, n_out;     /* views of inputs have the shape that their reader walks: broadcast dimensions have stride 0 */
    int n_tiles, n_row_tiles;   /* of the results; inputs that need one get theirs at run time */
    int64_t seg;                /* rows of a segment of sums over columns: each has a task and partial sums of its own; 0: there are none */
    int n_columns;              /* such sums; their partial ones lie in scratch: (n_columns, segments, row) doubles */
    uint32_t rows_in, rows_out; /* masks: inputs and outputs with an element per row */
    uint32_t columns_out;       /* outputs with an element per column */
    int n_lookups;
    uint32_t lookup_in; /* inputs that look-ups read, and nothing else */
    dt_fused_op op[DT_FUSED_OPS];
    uint8_t last_read[DT_FUSED_IN]; /* the last op that reads input i */
    uint8_t made_by[DT_FUSED_OUT];  /* the op that makes output k */
    uint32_t depends[DT_FUSED_OUT]; /* inputs that output k depends on, as a mask; from bit DT_FUSED_IN on: look-ups */
} dt_fused;

/* Elements of a block of a group that works on rows, and the bytes of `tiles` full tiles and `row_tiles` others; `size`: of the widest element. */
static inline int64_t dt_fused_block(int64_t row, int tiles) {
    int64_t rows = (tiles > 8 ? DT_PW_TILE / 2 : DT_PW_TILE) / row;
    return row * (rows < 1 ? 1 : rows > DT_FUSED_ROWS ? DT_FUSED_ROWS : rows);
}
static inline int64_t dt_fused_bytes(int64_t block, int tiles, int row_tiles, int64_t size) {
    return (tiles + 1) * (((block + DT_FUSED_MARGIN) * size + 63) & ~63ll) + row_tiles * (DT_FUSED_ROWS + DT_FUSED_MARGIN) * size;
}

#endif
