/* Attributes of the losses' row operators, shared by their literals and the CPU kernels. */
#ifndef DT_OPS_LOSS_H
#define DT_OPS_LOSS_H

#include "ops/op.h"

typedef struct dt_loss_attr { /* rows of nll_loss and cross_entropy; input (N, C, d…), or (C) */
    int64_t ignore_index;
    double label_smoothing;
    dt_ints shape; /* of the input, for gradients that do not see it */
} dt_loss_attr;

#endif
