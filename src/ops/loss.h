/* Attributes of the losses' row operators, shared by their literals and the CPU kernels. */
#ifndef DT_OPS_LOSS_H
#define DT_OPS_LOSS_H

#include "ops/op.h"

typedef struct dt_loss_attr { /* rows of nll_loss and cross_entropy; input (N, C, d…), or (C) */
    int64_t ignore_index;
    double label_smoothing;
    dt_ints shape; /* of the input, for gradients that do not see it */
} dt_loss_attr;

typedef struct dt_adam_attr {
    bool decoupled, maximize;
} dt_adam_attr;
typedef struct dt_sgd_attr {
    bool nesterov, maximize, first;
} dt_sgd_attr;

#endif
