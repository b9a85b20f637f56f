/* Arena and host allocation. See arena.h. */
#include "base/arena.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct dt_arena_block {
    dt_arena_block *next;
    size_t size; /* payload bytes */
};
enum { BLOCK_MIN = 4096, BLOCK_MAX = 1 << 20, ALIGN = 16 };

static _Atomic int64_t fail_after = -1;

static _Thread_local uint64_t asked;

static bool must_fail(void) {
    asked++;
    if (DT_LIKELY(atomic_load_explicit(&fail_after, memory_order_relaxed) < 0)) return false;
    return atomic_fetch_sub(&fail_after, 1) == 0;
}

void dt_malloc_fail_after(int64_t n) { atomic_store(&fail_after, n); }
uint64_t dt_malloc_count(void) { return asked; }
void *dt_malloc(size_t size) { return must_fail() ? NULL : malloc(size ? size : 1); }
void *dt_calloc(size_t n, size_t size) { return must_fail() ? NULL : calloc(n ? n : 1, size ? size : 1); }
void *dt_realloc(void *p, size_t size) { return must_fail() ? NULL : realloc(p, size ? size : 1); }
void dt_free(void *p) { free(p); }

bool dt_grow(void *array, uint32_t *cap, uint32_t want, size_t each) {
    void **p = array;
    if (want <= *cap) return true;
    uint32_t n = want > *cap * 2 ? want : *cap * 2;
    void *q = dt_realloc(*p, each * n);
    if (!q) return false;
    *p = q;
    *cap = n;
    return true;
}

void dt_arena_init(dt_arena *a) { *a = (dt_arena){0}; }

void dt_arena_fini(dt_arena *a) {
    for (dt_arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        dt_free(b);
    }
    *a = (dt_arena){0};
}

void dt_arena_reset(dt_arena *a) {
    if (!a->head) return;
    for (dt_arena_block *b = a->head->next, *next; b; b = next) {
        next = b->next;
        a->total -= b->size;
        dt_free(b);
    }
    a->head->next = NULL;
    a->cur = (char *)(a->head + 1);
    a->end = a->cur + a->head->size;
}

static bool grow(dt_arena *a, size_t need) {
    size_t size = a->head ? a->head->size * 2 : BLOCK_MIN;
    if (size > BLOCK_MAX) size = BLOCK_MAX;
    if (size < need) size = need;
    dt_arena_block *b = dt_malloc(sizeof *b + size);
    if (!b) return false;
    *b = (dt_arena_block){a->head, size};
    a->head = b;
    a->cur = (char *)(b + 1);
    a->end = a->cur + size;
    a->total += size;
    return true;
}

void *dt_arena_alloc(dt_arena *a, size_t size) {
    size = (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (!size) size = ALIGN;
    if ((size_t)(a->end - a->cur) < size && !grow(a, size)) return NULL;
    void *p = a->cur;
    a->cur += size;
    return memset(p, 0, size);
}

void *dt_arena_copy(dt_arena *a, const void *src, size_t size) {
    void *p = dt_arena_alloc(a, size);
    if (p && size) memcpy(p, src, size);
    return p;
}
