/* The caching allocator: one per device, owned by the controller thread.
 *
 * Freed blocks wait in bins of their size class and are handed out again at once, even while programs that use them still run: a device runs its
 * programs in the order they were pushed, so a later program's writes come after an earlier one's reads. Sizes are rounded up to an eighth of
 * their power of two. When a limit is set, cached blocks are given back before an allocation fails. Temporaries of all runs share one block, the
 * arena: with a block a size, the idle ones of a training step took a third of the memory. */
#ifndef DT_WORKER_ALLOC_H
#define DT_WORKER_ALLOC_H

#include "plan/backend.h"
#include "plan/program.h"

enum { DT_SIZE_CLASSES = 8 * 48 };
typedef struct dt_free_block {
    void *data;
    size_t bytes;
} dt_free_block;
typedef struct dt_free_bin { /* the newest is the last */
    dt_free_block *block;
    uint32_t n, cap;
} dt_free_bin;
typedef struct dt_alloc {
    const dt_backend *backend;
    dt_free_bin bin[DT_SIZE_CLASSES];
    void *arena; /* temporaries of one run after another: as large as the largest so far. NULL: none */
    size_t arena_bytes;
    bool arena_lent;
    dt_memory_stats stats;
    void (*quiesce)(void); /* waits until no program runs: memory goes back to the host only then */
} dt_alloc;

void dt_alloc_init(dt_alloc *a, const dt_backend *b, void (*quiesce)(void));
void dt_alloc_fini(dt_alloc *a);
/* *bytes is rounded up to what was reserved. E_NOMEM names the sizes. */
dt_status dt_alloc_get(dt_alloc *a, size_t *bytes, void **out) DT_WUR;
void dt_alloc_put(dt_alloc *a, void *p, size_t bytes);
/* Memory for a run's temporaries, given back when the run has been pushed. One block serves all runs of the device, since they follow each other;
 * it counts as allocated with what the run uses of it. */
dt_status dt_alloc_arena(dt_alloc *a, size_t *bytes, void **out) DT_WUR;
void dt_alloc_arena_put(dt_alloc *a, void *p, size_t bytes);
size_t dt_alloc_rounded(size_t bytes);                          /* what dt_alloc_get reserves */
static inline int64_t dt_memory_cap(const dt_memory_stats *m) { /* the lower of limit and budget; 0: none */
    int64_t l = m->limit, b = m->budget;
    return !l || (b && b < l) ? b : l;
}

#endif
