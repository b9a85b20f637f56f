/* Attributes and scratch that the grouped products and their kernels share. */
#ifndef DT_OPS_GROUPED_H
#define DT_OPS_GROUPED_H

#include "ops/kernel.h"

/* One product of a grouped one, and how it is cut into tiles. Kernels make a list of them in their scratch. */
typedef struct dt_group {
    const char *a, *b;
    char *c;
    int64_t m, n, k;
    int64_t m_tile, n_tile, n_tiles; /* n_tiles: along n */
    int64_t first;                   /* the number of its first tile among all groups' */
} dt_group;

size_t dt_grouped_scratch(const dt_kctx *c);

#endif
