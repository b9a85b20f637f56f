/* Attributes that the attention ops and their kernels share. */
#ifndef DT_OPS_ATTENTION_H
#define DT_OPS_ATTENTION_H

#include "tensor/dtype.h"

typedef struct dt_attention_attr {
    bool is_causal;
    double scale;           /* NaN: 1 / sqrt(size of a query) */
    double dropout;         /* probability that a weight becomes 0; seed and offset are inputs */
    int64_t context;        /* dt_context: may the keys stay sharded along the sequence, passing round? */
    bool resume, last, add; /* of the planner's steps: blocks of keys came before; none comes after; gradients of keys are added to what is there */
} dt_attention_attr;

/* How attention over a sharded sequence runs: the keys are gathered (or heads are exchanged by what the caller redistributes), they pass round
 * as blocks, or they pass round and the devices of a causal mask share the work evenly. */
typedef enum dt_context { DT_CONTEXT_NONE, DT_CONTEXT_RING, DT_CONTEXT_RING_BALANCED } dt_context;

/* Bytes of the gradient of queries while it is gathered: rows padded to 16 numbers of the computing type, then to 64 bytes. */
static inline size_t dt_attention_dq_bytes(int64_t rows, int64_t width, int dtype) {
    size_t size = dtype == DT_float64 ? 8 : 4;
    return ((size_t)rows * (size_t)((width + 15) / 16 * 16) * size + 63) / 64 * 64;
}

/* Helpers of the composition in plain ops: heads of k or v repeated so that they pair with q's; how often; the weights (…, H, L, S). */
struct dt_scope;
struct dt_tensor;
struct dt_tensor *dt_attention_spread(struct dt_scope *s, struct dt_tensor *k, int64_t group);
int64_t dt_attention_group(const struct dt_tensor *q, const struct dt_tensor *k);
struct dt_tensor *dt_attention_weights(struct dt_scope *s, struct dt_tensor *q, struct dt_tensor *k, struct dt_tensor *mask, bool causal, double scale);

/* with context_parallel(…): how scaled_dot_product_attention runs where the sequence is sharded. Per thread. */
typedef enum dt_context_mode { DT_CONTEXT_AUTO, DT_CONTEXT_BY_RING, DT_CONTEXT_BY_ULYSSES, DT_CONTEXT_BY_GATHER } dt_context_mode;
typedef struct dt_context_state {
    uint8_t mode; /* dt_context_mode */
    bool unbalanced;
} dt_context_state;
dt_context_state dt_context_set(dt_context_state s); /* returns the previous */

#endif
