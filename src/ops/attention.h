/* Attributes that the attention ops and their kernels share. */
#ifndef DT_OPS_ATTENTION_H
#define DT_OPS_ATTENTION_H

#include <stdbool.h>

typedef struct dt_attention_attr {
    bool is_causal;
    double scale; /* NaN: 1 / sqrt(size of a query) */
} dt_attention_attr;

#endif
