/* Hash tables. See hash.h. */
#include "base/hash.h"

#include <string.h>

#include "base/arena.h"

uint64_t dt_hash_bytes(const void *p, size_t n, uint64_t h) {
    const unsigned char *c = p;
    for (; n >= 8; n -= 8, c += 8) {
        uint64_t w;
        memcpy(&w, c, 8);
        h = dt_hash_mix(h, w);
    }
    uint64_t tail = n;
    for (size_t i = 0; i < n; i++) tail = tail << 8 | c[i];
    return dt_hash_mix(h, tail);
}

dt_status dt_htab_init(dt_htab *t, size_t slots_pow2) {
    *t = (dt_htab){.slot = dt_calloc(slots_pow2, sizeof *t->slot), .mask = slots_pow2 - 1};
    return t->slot ? DT_OK : dt_fail(DT_E_NOMEM, "hash table: out of host memory");
}

void dt_htab_fini(dt_htab *t) {
    dt_free(t->slot);
    *t = (dt_htab){0};
}

static dt_status grow(dt_htab *t) {
    dt_htab n;
    DT_TRY(dt_htab_init(&n, (t->mask + 1) * 2));
    for (size_t i = 0; i <= t->mask; i++)
        for (dt_hlink *l = t->slot[i], *next; l; l = next) {
            next = l->next;
            l->next = n.slot[l->hash & n.mask];
            n.slot[l->hash & n.mask] = l;
        }
    n.count = t->count;
    dt_htab_fini(t);
    *t = n;
    return DT_OK;
}

dt_status dt_htab_add(dt_htab *t, dt_hlink *l, uint64_t hash) {
    if (t->count > t->mask) DT_TRY(grow(t));
    l->hash = hash;
    l->next = t->slot[hash & t->mask];
    t->slot[hash & t->mask] = l;
    t->count++;
    return DT_OK;
}

void dt_htab_remove(dt_htab *t, dt_hlink *l) {
    for (dt_hlink **p = &t->slot[l->hash & t->mask]; *p; p = &(*p)->next)
        if (*p == l) {
            *p = l->next;
            t->count--;
            return;
        }
}
