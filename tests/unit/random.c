/* ops/random: Philox4x32-10 gives the words of its authors' known-answer file. */
#include "test.h"

#include "ops/random.h"

static void check(uint64_t seed, uint64_t counter, uint64_t sub, const uint32_t want[4]) {
    uint32_t out[4];
    dt_philox(seed, counter, sub, out);
    for (int i = 0; i < 4; i++) CHECK_INT(out[i], want[i]);
}

TEST(known_answers) {
    check(0, 0, 0, (uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    check(UINT64_MAX, UINT64_MAX, UINT64_MAX, (uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    check(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e, (uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(bits_are_spread) {
    int ones[4] = {0};
    for (uint64_t i = 0; i < 10000; i++) {
        uint32_t out[4];
        dt_philox(7, i, 0, out);
        for (int k = 0; k < 4; k++) ones[k] += __builtin_popcount(out[k]);
    }
    for (int k = 0; k < 4; k++) CHECK_NEAR(ones[k] / 320000.0, 0.5, 0.005);
}
