/* Names of code that is compiled once per instruction set: this folder's files are built with several sets of flags, -DDT_ISA=base|avx2|avx512.
 * A kernel is defined as `dt_status DT_ISA_FN(softmax)(const dt_kctx *c)` and listed in ../kernels.def; ../dispatch.c chooses at start. */
#ifndef DT_BACKEND_CPU_ISA_H
#define DT_BACKEND_CPU_ISA_H

#include "ops/kernel.h"

#define DT_ISA_CAT_(name, isa) dt_cpu_##name##_##isa
#define DT_ISA_CAT(name, isa) DT_ISA_CAT_(name, isa)
#define DT_ISA_FN(name) DT_ISA_CAT(name, DT_ISA)

#endif
