/* 3 x 3 convolutions by Winograd's transform. See wino.c; dt_wino (ops/conv.h) tells sizes and the scratch's layout. */
#ifndef DT_BACKEND_CPU_ISA_WINO_H
#define DT_BACKEND_CPU_ISA_WINO_H

#include "backend/cpu/isa/isa.h"
#include "ops/conv.h"

/* Source (N, C, H, W), result (N, O, OH, OW), whose tile 0 begins at source pixel `off`. w: (O, C, 3, 3); turned: (C, O, 3, 3), turned round. */
void DT_ISA_FN(wino_product)(const dt_wino *p, const int64_t *off, bool turned, const float *src, const float *w, const float *bias, float *dst, void *scratch,
                             dt_team *team);
/* dst (O, C, 3, 3): the gradient of the weight from the source and the result's gradient. */
void DT_ISA_FN(wino_weight)(const dt_wino *p, const int64_t *off, const float *src, const float *grad, float *dst, void *scratch, dt_team *team);

#endif
