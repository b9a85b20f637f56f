/* Random numbers: Philox4x32-10 (Salmon et al., SC 2011), a function from (seed, counter) to four 32-bit words.
 *
 * A random op's element with global linear index i draws from the counters its call has reserved, [offset, offset + dt_random_counters(numel)),
 * where numel counts the elements of output 0. So the bits depend on the seed, the call's offset and i alone, never on who computes it:
 *   one 32-bit word an element:  counter offset + i / 4, word i % 4
 *   one 64-bit word an element:  counter offset + i / 2, words 2 (i % 2) and 2 (i % 2) + 1
 * An element that needs more words uses counter offset + i and raises `sub` (the upper half of the counter).
 * The two hidden inputs of such an op, seed and offset, are int64 numbers at the end of its inputs. */
#ifndef DT_OPS_RANDOM_H
#define DT_OPS_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

/* What distributions' kernels read: the attribute structs of random ops begin with it. uniform: [a, b); normal: mean a, standard deviation b. */
typedef struct dt_random_floats {
    double a, b;
} dt_random_floats;
typedef struct dt_random_ints { /* low <= x < high */
    int64_t low, high;
} dt_random_ints;

typedef struct dt_multinomial_attr {
    int64_t num_samples;
    bool replacement;
} dt_multinomial_attr;

static inline uint64_t dt_random_counters(int64_t numel) { return numel > 0 ? (uint64_t)numel : 1; }

static inline void dt_philox(uint64_t seed, uint64_t counter, uint64_t sub, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = (uint32_t)sub, c3 = (uint32_t)(sub >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int r = 0; r < 10; r++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

#endif
