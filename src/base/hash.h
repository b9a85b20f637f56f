/* Hashing of word sequences: multiply-fold (128-bit product, halves xored), as in wyhash. Not for untrusted input. */
#ifndef DT_BASE_HASH_H
#define DT_BASE_HASH_H

#include "base/status.h"

static inline uint64_t dt_hash_mix(uint64_t h, uint64_t w) {
    __uint128_t p = (__uint128_t)(h ^ 0x9E3779B97F4A7C15ull) * (w ^ 0xD6E8FEB86659FD93ull);
    return (uint64_t)p ^ (uint64_t)(p >> 64) ^ w;
}
static inline uint64_t dt_hash_words(const uint64_t *w, size_t n, uint64_t h) {
    for (size_t i = 0; i < n; i++) h = dt_hash_mix(h, w[i]);
    return h;
}
uint64_t dt_hash_bytes(const void *p, size_t n, uint64_t h);

/* Intrusive chained hash table: the caller embeds a dt_hlink first in its object. Single-threaded; grows by doubling. */
typedef struct dt_hlink {
    struct dt_hlink *next;
    uint64_t hash;
} dt_hlink;
typedef struct dt_htab {
    dt_hlink **slot;
    size_t mask, count;
} dt_htab;
dt_status dt_htab_init(dt_htab *t, size_t slots_pow2) DT_WUR;
void dt_htab_fini(dt_htab *t); /* frees the table, not the objects */
static inline dt_hlink *dt_htab_first(const dt_htab *t, uint64_t hash) { return t->slot[hash & t->mask]; }
dt_status dt_htab_add(dt_htab *t, dt_hlink *l, uint64_t hash) DT_WUR;
void dt_htab_remove(dt_htab *t, dt_hlink *l);

#endif
