/* Copies between views of any strides: the one mover of data inside a device. See copy.c. */
#ifndef DT_BACKEND_CPU_COPY_H
#define DT_BACKEND_CPU_COPY_H

#include "ops/kernel.h"

/* dst = src: same dtype, same shape, any strides on both sides (0 in src broadcasts; negative ones work), no overlap except dst identical to src.
 * dst must not hold one element twice. Moves raw memory. team may be NULL. Never fails. */
void dt_cpu_copy_view(const dt_view *dst, const dt_view *src, dt_team *team);
/* dst = src cast to dst's dtype, as Tensor.to: floats to integers truncate, anything to bool is `!= 0`. Same shape. */
void dt_cpu_cast_view(const dt_view *dst, const dt_view *src, dt_team *team);
/* Zero bytes into a contiguous view. */
void dt_cpu_zero_view(const dt_view *v, dt_team *team);

#endif
