/* The caching allocator. See alloc.h. */
#include "worker/alloc.h"

#include <string.h>

#include "base/arena.h"

enum { MIN_SHIFT = 6, KEEP_BYTES = 256 << 20 }; /* cached blocks beyond KEEP_BYTES and beyond what is in use go back to the host */

static int class_of(size_t bytes, size_t *rounded) {
    if (bytes < 64) bytes = 64;
    int shift = 63 - __builtin_clzll((unsigned long long)bytes);
    size_t step = shift > MIN_SHIFT + 2 ? (size_t)1 << (shift - 3) : 64; /* small ones: multiples of 64 */
    *rounded = (bytes + step - 1) / step * step;
    shift = 63 - __builtin_clzll((unsigned long long)*rounded);
    int eighth = (int)((*rounded >> (shift - 3)) & 7);
    int c = (shift - MIN_SHIFT) * 8 + eighth;
    return c < DT_SIZE_CLASSES ? c : DT_SIZE_CLASSES - 1;
}

size_t dt_alloc_rounded(size_t bytes) {
    size_t want;
    class_of(bytes, &want);
    return want;
}

void dt_alloc_init(dt_alloc *a, const dt_backend *b, void (*quiesce)(void)) { *a = (dt_alloc){.backend = b, .quiesce = quiesce}; }

static void arena_free(dt_alloc *a) {
    if (!a->arena || a->arena_lent) return;
    a->backend->free(a->arena, a->arena_bytes);
    a->stats.reserved -= (int64_t)a->arena_bytes;
    a->arena = NULL;
    a->arena_bytes = 0;
}

static void trim(dt_alloc *a, size_t keep) { /* largest classes first, the arena last */
    if ((size_t)(a->stats.reserved - a->stats.allocated) <= keep) return;
    if (a->quiesce) a->quiesce();
    for (int c = DT_SIZE_CLASSES - 1; c >= 0; c--)
        while (a->bin[c].n && (size_t)(a->stats.reserved - a->stats.allocated) > keep) {
            const dt_free_block *f = &a->bin[c].block[--a->bin[c].n];
            a->backend->free(f->data, f->bytes);
            a->stats.reserved -= (int64_t)f->bytes;
        }
    if ((size_t)(a->stats.reserved - a->stats.allocated) > keep) arena_free(a);
}

void dt_alloc_fini(dt_alloc *a) {
    trim(a, 0);
    for (int c = 0; c < DT_SIZE_CLASSES; c++) {
        dt_free(a->bin[c].block);
        a->bin[c] = (dt_free_bin){0};
    }
}

static dt_status out_of_memory(dt_alloc *a, size_t bytes) {
    a->stats.n_oom++;
    return dt_fail(DT_E_NOMEM, "out of memory: %zu bytes wanted, %lld in use, limit %lld", bytes, (long long)a->stats.allocated, (long long)a->stats.limit);
}

/* The newest block of that size. A class has one size, except the last one. */
static bool bin_take(dt_free_bin *b, size_t bytes, void **out) {
    for (uint32_t i = b->n; i-- > 0;) {
        if (b->block[i].bytes != bytes) continue;
        *out = b->block[i].data;
        memmove(b->block + i, b->block + i + 1, sizeof *b->block * (--b->n - i));
        return true;
    }
    return false;
}

dt_status dt_alloc_get(dt_alloc *a, size_t *bytes, void **out) {
    size_t want;
    int c = class_of(*bytes, &want);
    dt_memory_stats *s = &a->stats;
    if (s->limit && s->allocated + (int64_t)want > s->limit) return out_of_memory(a, want);
    if (bin_take(&a->bin[c], want, out)) goto got;
    int64_t cap = dt_memory_cap(&a->stats), spare = cap - s->allocated - (int64_t)want;
    if (cap && s->reserved + (int64_t)want > cap) trim(a, spare > 0 ? (size_t)spare : 0);
    int64_t cached = s->reserved - s->allocated;
    if (cached > KEEP_BYTES && cached > s->allocated) trim(a, KEEP_BYTES / 2);
    *out = a->backend->alloc(want);
    if (!*out) {
        trim(a, 0);
        *out = a->backend->alloc(want);
    }
    if (!*out) return out_of_memory(a, want);
    s->reserved += (int64_t)want;
    if (s->reserved > s->reserved_peak) s->reserved_peak = s->reserved;
got:
    s->allocated += (int64_t)want;
    s->n_alloc++;
    if (s->allocated > s->allocated_peak) s->allocated_peak = s->allocated;
    *bytes = want;
    return DT_OK;
}

void dt_alloc_put(dt_alloc *a, void *p, size_t bytes) {
    size_t rounded;
    int c = class_of(bytes, &rounded);
    dt_free_bin *b = &a->bin[c];
    a->stats.allocated -= (int64_t)bytes;
    if (b->n == b->cap) {
        uint32_t cap = b->cap ? b->cap * 2 : 4;
        dt_free_block *f = dt_realloc(b->block, sizeof *f * cap);
        if (!f) { /* cannot remember it: the device's programs may still use it, so it is lost */
            a->stats.reserved -= (int64_t)bytes;
            return;
        }
        b->block = f;
        b->cap = cap;
    }
    b->block[b->n++] = (dt_free_block){p, bytes};
}

/* Growing waits for the runs that use the old one, unless that is small. It happens a few times, until the largest plan has run. */
static dt_status arena_grow(dt_alloc *a, size_t want) {
    enum { SMALL = 1 << 20 };
    if (a->arena && a->arena_bytes >= SMALL) {
        if (a->quiesce) a->quiesce();
        arena_free(a);
    } else if (a->arena) {
        a->stats.allocated += (int64_t)a->arena_bytes; /* it becomes a cached block */
        dt_alloc_put(a, a->arena, a->arena_bytes);
        a->arena = NULL;
    }
    a->arena_bytes = want;
    DT_TRY(dt_alloc_get(a, &a->arena_bytes, &a->arena));
    a->stats.n_alloc--; /* the caller counts */
    return DT_OK;
}

dt_status dt_alloc_arena(dt_alloc *a, size_t *bytes, void **out) {
    size_t want = dt_alloc_rounded(*bytes);
    dt_memory_stats *s = &a->stats;
    if (a->arena_lent) return dt_alloc_get(a, bytes, out); /* cannot happen: one run is bound at a time */
    if (a->arena_bytes < want) {
        dt_status r = arena_grow(a, want);
        if (r) {
            a->arena = NULL;
            a->arena_bytes = 0;
            return r;
        }
    } else {
        if (s->limit && s->allocated + (int64_t)want > s->limit) return out_of_memory(a, want);
        s->allocated += (int64_t)want;
        if (s->allocated > s->allocated_peak) s->allocated_peak = s->allocated;
    }
    s->n_alloc++;
    a->arena_lent = true;
    *bytes = want;
    *out = a->arena;
    return DT_OK;
}

void dt_alloc_arena_put(dt_alloc *a, void *p, size_t bytes) {
    if (p != a->arena) {
        dt_alloc_put(a, p, bytes);
        return;
    }
    a->stats.allocated -= (int64_t)bytes;
    a->arena_lent = false;
}
