/* Eight bytes a step: table k says what a byte does that has k more bytes behind it in the step ("slicing by 8", Kounavis and Berry 2005). */
#include "base/crc.h"

#include <pthread.h>
#include <string.h>

static uint32_t table[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
        table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
}

uint32_t dt_crc32(uint32_t crc, const void *p, size_t n) {
    const uint8_t *b = p;
    pthread_once(&once, make);
    crc = ~crc;
    for (; n >= 8; n -= 8, b += 8) {
        uint64_t w;
        memcpy(&w, b, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        w = __builtin_bswap64(w);
#endif
        w ^= crc;
        crc = table[7][w & 255] ^ table[6][w >> 8 & 255] ^ table[5][w >> 16 & 255] ^ table[4][w >> 24 & 255] ^ table[3][w >> 32 & 255] ^
              table[2][w >> 40 & 255] ^ table[1][w >> 48 & 255] ^ table[0][w >> 56];
    }
    for (; n; n--, b++) crc = crc >> 8 ^ table[0][(crc ^ *b) & 255];
    return ~crc;
}
