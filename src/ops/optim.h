/* What the literals of optimizer steps and their CPU kernels share: see ops/optim.c. */
#ifndef DT_OPS_OPTIM_H
#define DT_OPS_OPTIM_H

#include "ops/op.h"

typedef struct dt_optim_attr {
    bool maximize, decoupled, nesterov, first;
} dt_optim_attr;

#endif
