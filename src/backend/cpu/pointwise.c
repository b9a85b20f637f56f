/* Finds block functions of the instruction set in use. Any thread. */
#include "ops/pointwise.h"

#include "base/cpu.h"

#define DECLARE(isa)                                     \
    dt_pw_fn dt_cpu_pw_find_##isa(int code, dt_dtype t); \
    dt_pw_fn dt_cpu_pw_cast_##isa(dt_dtype from, dt_dtype to);
DECLARE(base)
#ifdef DT_HAVE_AVX2
DECLARE(avx2)
DECLARE(avx512)
#define CHOOSE(call)                                           \
    dt_isa isa = dt_cpu_isa();                                 \
    if (isa == DT_ISA_AVX512) return dt_cpu_pw_##call(avx512); \
    if (isa == DT_ISA_AVX2) return dt_cpu_pw_##call(avx2);     \
    return dt_cpu_pw_##call(base)
#else
#define CHOOSE(call) return dt_cpu_pw_##call(base)
#endif
#define dt_cpu_pw_FIND(isa) dt_cpu_pw_find_##isa(code, t)
#define dt_cpu_pw_CASTER(isa) dt_cpu_pw_cast_##isa(from, to)

dt_pw_fn dt_cpu_pw_find(int code, dt_dtype t) { CHOOSE(FIND); }
dt_pw_fn dt_cpu_pw_cast(dt_dtype from, dt_dtype to) { CHOOSE(CASTER); }
