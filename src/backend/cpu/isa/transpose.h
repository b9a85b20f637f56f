/* Between planes and lanes: n values of each of up to L channels, `stride` elements from channel to channel, to or from n vectors of L lanes.
 *
 * To be included after micro.h, which tells the size of a vector. Blocks of L x L floats are transposed in registers by log2 L steps, each of which
 * exchanges half of the lanes of two vectors. All functions are static. */

#include "backend/cpu/isa/shuffle.h"

enum { LANES = MICRO_BYTES / sizeof(float) };
typedef float lanes __attribute__((vector_size(MICRO_BYTES)));
typedef float lanes_any __attribute__((vector_size(MICRO_BYTES), aligned(2), may_alias));
typedef int32_t lanes_index __attribute__((vector_size(MICRO_BYTES)));

static inline __attribute__((always_inline)) void transpose_step(lanes *v, int d) {
    lanes_index low = {0}, high = {0}; /* set below, which not every compiler sees */
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) low[l] = l & d ? LANES + l - d : l, high[l] = l & d ? LANES + l : l + d;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        if (i & d) continue;
        lanes a = v[i], b = v[i + d];
        v[i] = DT_SHUFFLE(a, b, low);
        v[i + d] = DT_SHUFFLE(a, b, high);
    }
}

static inline __attribute__((always_inline)) void transpose_block(lanes *v) {
    transpose_step(v, 1);
    transpose_step(v, 2);
#if MICRO_BYTES >= 32
    transpose_step(v, 4);
#endif
#if MICRO_BYTES >= 64
    transpose_step(v, 8);
#endif
}

/* dst[i * ld + l] = src[l * stride + i] for i < n and l < channels; 0 in the other lanes. `room` elements may be read from src on. */
static inline __attribute__((always_inline)) void to_lanes_ld(const float *src, int64_t stride, int64_t channels, int64_t n, int64_t room, float *dst,
                                                              int64_t ld) {
    for (int64_t i = 0; i < n; i += LANES) {
        lanes v[LANES];
        int64_t len = n - i < LANES ? n - i : LANES;
        if (channels == LANES && (LANES - 1) * stride + i + LANES <= room) {
#pragma GCC unroll 16
            for (int l = 0; l < LANES; l++) v[l] = *(const lanes_any *)(src + l * stride + i);
        } else
            for (int l = 0; l < LANES; l++) {
                v[l] = (lanes){0};
                if (l < channels) memcpy(&v[l], src + l * stride + i, (size_t)len * sizeof(float));
            }
        transpose_block(v);
        if (len == LANES) {
#pragma GCC unroll 16
            for (int l = 0; l < LANES; l++) *(lanes_any *)(dst + (i + l) * ld) = v[l];
        } else
            for (int l = 0; l < len; l++) *(lanes_any *)(dst + (i + l) * ld) = v[l];
    }
}
static __attribute__((unused)) void to_lanes(const float *src, int64_t stride, int64_t channels, int64_t n, int64_t room, float *dst) {
    to_lanes_ld(src, stride, channels, n, room, dst, LANES);
}

/* dst[l * stride + i] = src[i][l] for i < n and l < channels. */
static __attribute__((unused)) void from_lanes(const float *src, int64_t n, float *dst, int64_t stride, int64_t channels) {
    for (int64_t i = 0; i < n; i += LANES) {
        lanes v[LANES];
        int64_t len = n - i < LANES ? n - i : LANES;
        if (len == LANES) {
#pragma GCC unroll 16
            for (int l = 0; l < LANES; l++) v[l] = *(const lanes_any *)(src + (i + l) * LANES);
        } else
            for (int l = 0; l < LANES; l++) {
                v[l] = (lanes){0};
                if (l < len) v[l] = *(const lanes_any *)(src + (i + l) * LANES);
            }
        transpose_block(v);
        if (channels == LANES && len == LANES) {
#pragma GCC unroll 16
            for (int l = 0; l < LANES; l++) *(lanes_any *)(dst + l * stride + i) = v[l];
        } else
            for (int l = 0; l < channels && l < LANES; l++) memcpy(dst + l * stride + i, &v[l], (size_t)len * sizeof(float));
    }
}
