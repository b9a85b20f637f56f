/* What the fuse pass asks of the cpu's kernels. Simulated devices have the same entries in their table: their plans are those of real ones. */
#ifndef DT_BACKEND_CPU_FUSING_H
#define DT_BACKEND_CPU_FUSING_H

#include "ops/kernel.h"

DT_CPU_KERNEL(pointwise);
DT_CPU_KERNEL(fused);
DT_CPU_KERNEL(dropout);
bool dt_cpu_can_fuse(int code, dt_dtype tile);
int dt_cpu_reduction(dt_kernel_fn fn);

#define DT_CPU_FUSING \
    .elementwise = dt_cpu_pointwise, .fused = dt_cpu_fused, .can_fuse = dt_cpu_can_fuse, .dropout = dt_cpu_dropout, .reduction = dt_cpu_reduction

#endif
