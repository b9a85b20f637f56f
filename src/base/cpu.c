/* Processor features. See cpu.h. */
#include "base/cpu.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

const char *dt_isa_name(dt_isa isa) {
    static const char *const names[] = {"base", "avx2", "avx512"};
    return names[isa];
}

static dt_isa detect(void) {
    dt_isa best = DT_ISA_BASE;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) best = DT_ISA_AVX2;
    if (best == DT_ISA_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        best = DT_ISA_AVX512;
#endif
    const char *force = getenv("DTORCH_CPU_ISA");
    for (dt_isa i = DT_ISA_BASE; force && i < best; i++)
        if (!strcmp(force, dt_isa_name(i))) return i;
    return best;
}

dt_isa dt_cpu_isa(void) {
    static int cached = -1; /* every thread computes the same value */
    int c = __atomic_load_n(&cached, __ATOMIC_RELAXED);
    if (c < 0) {
        c = (int)detect();
        __atomic_store_n(&cached, c, __ATOMIC_RELAXED);
    }
    return (dt_isa)c;
}

int dt_cpu_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n;
}

#if defined(__x86_64__)
uint32_t dt_cpu_fp_mode(void) { return __builtin_ia32_stmxcsr() & ~0x3fu; } /* without the flags of past exceptions */
void dt_cpu_fp_mode_set(uint32_t mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
uint32_t dt_cpu_fp_mode(void) {
    uint64_t m;
    __asm__ volatile("mrs %0, fpcr" : "=r"(m));
    return (uint32_t)m;
}
void dt_cpu_fp_mode_set(uint32_t mode) {
    uint64_t m = mode;
    __asm__ volatile("msr fpcr, %0" : : "r"(m));
}
#else
uint32_t dt_cpu_fp_mode(void) { return 0; }
void dt_cpu_fp_mode_set(uint32_t mode) { (void)mode; }
#endif
