/* Many products of different sizes, split together among a team: large ones into tiles, small ones a task each. */
#ifndef DT_BACKEND_CPU_ISA_GROUP_H
#define DT_BACKEND_CPU_ISA_GROUP_H

#include "backend/cpu/isa/gemm.h"
#include "ops/grouped.h"

/* like: dtype, strides, ldc and summed terms of every product. group (n,): a, b, c, m, n, k are given. Groups without results may be left in. */
void DT_ISA_FN(group_run)(const dt_gemm *like, dt_group *group, int64_t n, dt_team *team);

#endif
