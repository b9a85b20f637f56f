/* Arena: bump allocation freed whole. Graph and plan metadata live in one. Not thread-safe: one owner at a time.
 *
 *   block ──> block ──> block          each block: [next | size | payload …]; allocation bumps `cur` in the newest block.
 *
 * dt_arena_alloc never returns NULL for a size below 1 GiB unless the host is out of memory; it returns zeroed, 16-byte aligned memory. */
#ifndef DT_BASE_ARENA_H
#define DT_BASE_ARENA_H

#include "base/status.h"

typedef struct dt_arena_block dt_arena_block;
typedef struct dt_arena {
    dt_arena_block *head;
    char *cur, *end;
    size_t total; /* bytes obtained from the host */
} dt_arena;

void dt_arena_init(dt_arena *a);
void dt_arena_fini(dt_arena *a);  /* frees everything */
void dt_arena_reset(dt_arena *a); /* forgets everything, keeps the newest block */
void *dt_arena_alloc(dt_arena *a, size_t size) DT_WUR;
void *dt_arena_copy(dt_arena *a, const void *src, size_t size) DT_WUR;
#define DT_ARENA_NEW(a, type) ((type *)dt_arena_alloc((a), sizeof(type)))
#define DT_ARENA_ARRAY(a, type, n) ((type *)dt_arena_alloc((a), sizeof(type) * (size_t)(n)))

/* Host memory that can be made to fail in tests: allocation number `n` from now fails (n < 0: never). */
void *dt_malloc(size_t size) DT_WUR;
void *dt_calloc(size_t n, size_t size) DT_WUR;
void *dt_realloc(void *p, size_t size) DT_WUR;
void dt_free(void *p);
/* `array`: the address of a pointer to `cap` elements of `each` bytes; it holds `want` at least afterwards. False: out of host memory, all as before. */
bool dt_grow(void *array, uint32_t *cap, uint32_t want, size_t each) DT_WUR;
void dt_malloc_fail_after(int64_t n);
uint64_t dt_malloc_count(void); /* how often the calling thread asked for memory: tests that a path does not */

#endif
