/* Conversions of contiguous tiles between f32 and the 16-bit float types; vectorised (f16 by F16C where the instruction set has it). */
#ifndef DT_BACKEND_CPU_PW_CAST_H
#define DT_BACKEND_CPU_PW_CAST_H

#include "backend/cpu/isa/pw.h"

/* The same rounding as dt_f16_from_f32, without branches. */
VM uint16_t vm_f32_to_f16(float x) {
    int32_t i = vm_bits(x), sign = i >> 16 & 0x8000, a = i & 0x7fffffff;
    float f = vm_float(a);
    int32_t small = vm_bits(f + 0.5f) - 0x3f000000; /* below 2^-14: the FPU rounds at 2^-24 */
    int32_t normal = (a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13;
    int32_t r = a < 0x38800000 ? small : normal;
    r = a >= 0x477ff000 ? 0x7c00 : r;
    r = a > 0x7f800000 ? 0x7e00 : r;
    return (uint16_t)(r | sign);
}
VM float vm_f16_to_f32(uint16_t h) {
    int32_t e = h & 0x7c00, rest = (int32_t)(h & 0x7fff) << 13, sign = (int32_t)(uint32_t)((uint32_t)(h & 0x8000) << 16);
    float normal = vm_float(rest + 0x38000000), small = (float)(h & 0x3ff) * 0x1p-24f, far = vm_float(rest + 0x70000000);
    float y = e == 0 ? small : e == 0x7c00 ? far : normal;
    return vm_float(vm_bits(y) | sign);
}
VM uint16_t vm_f32_to_bf16(float x) {
    uint32_t u = (uint32_t)vm_bits(x), r = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 64 : r);
}
VM float vm_bf16_to_f32(uint16_t h) { return vm_float((int32_t)((uint32_t)h << 16)); }

#endif
