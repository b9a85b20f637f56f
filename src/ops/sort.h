/* Attributes and geometry of ops that scan or sort along a dimension, shared by their literals and the CPU kernels. */
#ifndef DT_OPS_SORT_H
#define DT_OPS_SORT_H

#include "ops/reduce.h"

typedef struct dt_sort_attr {
    int64_t dim, k;
    bool descending, stable, largest, sorted, keepdim;
} dt_sort_attr;

typedef struct dt_search_attr {
    bool out_int32, right;
    const char *side;
    int64_t bins, minlength;
} dt_search_attr;

/* A row is sorted as pairs (order-preserving key, index), in two buffers of n pairs a slot; slots work at the same time. */
typedef struct dt_pair {
    uint64_t key;
    int64_t at;
} dt_pair;
static inline int64_t dt_sort_slots(int64_t rows, int64_t n) { return rows * n < 32768 || rows < 2 ? 1 : rows < 8 ? rows : 8; }
size_t dt_sort_scratch(const dt_kctx *c);

#endif
