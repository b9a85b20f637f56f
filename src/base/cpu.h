/* What the processor offers, and how many cores this process may use. Constant after the first call; any thread. */
#ifndef DT_BASE_CPU_H
#define DT_BASE_CPU_H

#include <stdint.h>

typedef enum dt_isa { DT_ISA_BASE, DT_ISA_AVX2, DT_ISA_AVX512 } dt_isa;
/* The best instruction set that the processor has and DTORCH_CPU_ISA (base|avx2|avx512) allows. */
dt_isa dt_cpu_isa(void);
const char *dt_isa_name(dt_isa isa);
int dt_cpu_cores(void); /* from the affinity mask; at least 1 */
/* The calling thread's floating-point mode: rounding, and whether denormal numbers are flushed to zero. */
uint32_t dt_cpu_fp_mode(void);
void dt_cpu_fp_mode_set(uint32_t mode);

#endif
