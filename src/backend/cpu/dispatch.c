/* Chooses, at each call, the build of a kernel that fits the processor (dt_cpu_isa: detected once, or forced by DTORCH_CPU_ISA). */
#include "base/cpu.h"
#include "ops/kernel.h"

#ifdef DT_HAVE_AVX2
#define DECLARE_X86(name)                             \
    dt_status dt_cpu_##name##_avx2(const dt_kctx *c); \
    dt_status dt_cpu_##name##_avx512(const dt_kctx *c);
#define CALL_X86(name)                                          \
    if (isa == DT_ISA_AVX512) return dt_cpu_##name##_avx512(c); \
    if (isa == DT_ISA_AVX2) return dt_cpu_##name##_avx2(c);
#else
#define DECLARE_X86(name)
#define CALL_X86(name) (void)isa;
#endif

#define DT_KERNEL(name)                               \
    dt_status dt_cpu_##name##_base(const dt_kctx *c); \
    DECLARE_X86(name)                                 \
    DT_CPU_KERNEL(name);                              \
    DT_CPU_KERNEL(name) {                             \
        dt_isa isa = dt_cpu_isa();                    \
        CALL_X86(name)                                \
        return dt_cpu_##name##_base(c);               \
    }
#include "backend/cpu/kernels.def"
