/* What the literals of optimizer steps and their CPU kernels share: see ops/optim.c. */
#ifndef DT_OPS_OPTIM_H
#define DT_OPS_OPTIM_H

#include <math.h>

#include "ops/op.h"

typedef struct dt_optim_attr {
    bool maximize, decoupled, nesterov, first;
} dt_optim_attr;

/* _total_power: scratch is a table of chunks, and the first chunk of each task (backend/cpu/isa/total.c). */
typedef struct dt_total_attr {
    double p;
} dt_total_attr;
typedef enum dt_total_mode { DT_TOTAL_SQUARES, DT_TOTAL_SUM, DT_TOTAL_MAX, DT_TOTAL_MIN, DT_TOTAL_POWERS } dt_total_mode;
enum { DT_TOTAL_CHUNK = 16384 }; /* elements */
typedef struct dt_total_chunk {
    int64_t tensor, from;
    double value;
} dt_total_chunk;

static inline dt_total_mode dt_total_mode_of(double p) {
    if (isinf(p)) return p > 0 ? DT_TOTAL_MAX : DT_TOTAL_MIN;
    return p == 2 ? DT_TOTAL_SQUARES : p == 1 ? DT_TOTAL_SUM : DT_TOTAL_POWERS;
}
static inline int64_t dt_total_chunks(const dt_kctx *c) {
    int64_t n = 0;
    for (int i = 0; i < c->n_in; i++) n += (dt_view_numel(&c->in[i]) + DT_TOTAL_CHUNK - 1) / DT_TOTAL_CHUNK;
    return n;
}

#endif
