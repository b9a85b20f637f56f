/* Combining elements of any dtype: the inner step of scatters and indexed writes. */
#ifndef DT_BACKEND_CPU_ACCUM_H
#define DT_BACKEND_CPU_ACCUM_H

#include "ops/kernel.h"
#include "ops/movement.h"

/* d += s, n floats. Written with vectors: sums of rows are what gradients of look-ups are made of. */
typedef float dt_f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
static inline void dt_cpu_add_f32(float *d, const float *s, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) *(dt_f32x8 *)(d + i) += *(const dt_f32x8 *)(s + i);
    for (; i < n; i++) d[i] += s[i];
}
/* d[i] = d[i] (mode) s[i] for n elements, ds and ss elements apart. MEAN adds; NaN wins in MAX and MIN; 16-bit floats round every time. */
void dt_cpu_accum(dt_dtype t, dt_reduce_mode mode, void *d, const void *s, int64_t n, int64_t ds, int64_t ss);
/* What `mode` starts from: 0, 1, the lowest, the highest value. */
void dt_cpu_accum_identity(dt_dtype t, dt_reduce_mode mode, void *d);
/* d /= count; integers round down. */
void dt_cpu_accum_divide(dt_dtype t, void *d, int64_t count);
/* d[i] += alpha * s[i], contiguous. */
void dt_cpu_accum_scaled(dt_dtype t, void *d, const void *s, int64_t n, const dt_view *alpha);

#endif
