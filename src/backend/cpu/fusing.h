/* What the fuse pass asks of the cpu's kernels. Simulated devices have the same entries in their table: their plans are those of real ones. */
#ifndef DT_BACKEND_CPU_FUSING_H
#define DT_BACKEND_CPU_FUSING_H

#include "ops/kernel.h"
#include "plan/fused.h"

DT_CPU_KERNEL(pointwise);
DT_CPU_KERNEL(fused);
DT_CPU_KERNEL(dropout);
bool dt_cpu_can_fuse(int code, dt_dtype tile);
int dt_cpu_reduction(dt_kernel_fn fn);
dt_lookup dt_cpu_lookup(dt_kernel_fn fn);
dt_status dt_cpu_check_lookup(const dt_fused_op *o, const dt_view *index);
/* Are all indices in [low, limit)? The error is the one of op, which reads as `kind` says. */
dt_status dt_cpu_check_index(dt_lookup kind, const struct dt_op *op, const dt_view *index, int dim, int64_t low, int64_t limit) DT_WUR;

#define DT_CPU_FUSING                                                                                                                              \
    .elementwise = dt_cpu_pointwise, .fused = dt_cpu_fused, .can_fuse = dt_cpu_can_fuse, .dropout = dt_cpu_dropout, .reduction = dt_cpu_reduction, \
    .lookup = dt_cpu_lookup, .check_lookup = dt_cpu_check_lookup

#endif
