/* The client's state: start and stop, free lists, value ids. See internal.h. */
#include <pthread.h>

#include "client/internal.h"

dt_client dt_c = {
    .vals = {.size = sizeof(dt_val)},
    .cells = {.size = sizeof(dt_cell)},
    .tensors = {.size = sizeof(dt_tensor)},
    .steps = {.size = sizeof(dt_view_step)},
    .next_id = 1,
};

void *dt_pool_grow(dt_pool *p) {
    enum { BATCH = 64 };
    size_t size = (p->size + 15) & ~(size_t)15;
    char *block = dt_malloc(size * BATCH);
    if (!block) {
        (void)dt_fail(DT_E_NOMEM, "tensor handles: out of host memory");
        return NULL;
    }
    for (int i = BATCH - 1; i > 0; i--) dt_pool_give(p, block + (size_t)i * size);
    return block;
}

/* Grow the stack first, then mint: the stack always has room for every id there is. */
dt_status dt_ids_grow(void) {
    if (dt_c.next_id >= dt_c.ids_cap) {
        uint32_t cap = dt_c.ids_cap ? dt_c.ids_cap * 2 : 4096;
        if (cap < dt_c.ids_cap) return dt_fail(DT_E_NOMEM, "more than 2^31 live values");
        uint32_t *ids = dt_realloc(dt_c.free_ids, cap * sizeof *ids);
        if (!ids) return dt_fail(DT_E_NOMEM, "value ids: out of host memory");
        dt_c.free_ids = ids;
        dt_c.ids_cap = cap;
    }
    dt_c.free_ids[dt_c.n_free++] = dt_c.next_id++;
    return DT_OK;
}

/* The controller learns of it with the next record; a sleeping controller is not woken for a drop. */
void dt_val_free(dt_val *v) {
    if (DT_UNLIKELY(v->source != NULL))
        dt_val_source_drop(v);
    else if (v->meta && dt_c.ring) {
        uint64_t *w = dt_ring_reserve(dt_c.ring, 1);
        *w = DT_REC_DROP | (uint64_t)v->id << 8;
        atomic_store_explicit(&dt_c.ring->tail, dt_c.ring->tail_local, memory_order_release);
    }
    dt_recipe *r = v->recipe;
    if (DT_UNLIKELY(v->moved)) dt_moved_forget_val(v);
    dt_c.free_ids[dt_c.n_free++] = v->id;
    dt_pool_give(&dt_c.vals, v);
    if (DT_UNLIKELY(r != NULL)) dt_recipe_unref(r);
}

static void in_child(void) { dt_c.ring = NULL; }

dt_status dt_client_start(void) {
    if (dt_c.stopped) return dt_fail(DT_E_STATE, "dtorch was shut down: no more calls are possible in this process");
    DT_TRY(dt_ops_init());
    DT_TRY(dt_engine_start());
    if (!dt_c.calls.slot) DT_TRY(dt_htab_init(&dt_c.calls, 2048));
    DT_TRY(dt_client_room(64, 640));
    if (!dt_c.atfork && pthread_atfork(NULL, NULL, in_child)) return dt_fail(DT_E_NOMEM, "dtorch: out of host memory");
    dt_c.atfork = true;
    dt_c.ring = dt_engine_ring();
    return DT_OK;
}

void dt_client_blocking_hooks(void *(*leave)(void), void (*enter)(void *)) {
    dt_c.leave = leave;
    dt_c.enter = enter;
}

/* The ring is nearly full. A user's function on a worker may need the lock that the caller holds, and the controller may wait for that
 * worker: so let go of it while waiting. Nothing is prepared at this point, other threads may call meanwhile. */
dt_status dt_client_room_wait(void) {
    for (;;) {
        if (!dt_c.ring) DT_TRY(dt_client_start());
        dt_ring *r = dt_c.ring;
        r->head_seen = atomic_load_explicit(&r->head, memory_order_acquire);
        if (r->tail_local - r->head_seen < r->mask / 4 * 3) return DT_OK;
        dt_ring_publish(r);
        dt_ring_wake(r);
        atomic_store(&r->want_space, 1);
        void *lock = dt_c.leave ? dt_c.leave() : NULL;
        if (atomic_load(&r->head) == r->head_seen) dt_futex_wait(&r->want_space, 1, 1000);
        if (dt_c.enter) dt_c.enter(lock);
    }
}

void dt_client_stop(void) {
    dt_c.ring = NULL;
    dt_c.stopped = true;
    dt_engine_stop();
}

static bool grow(void **p, size_t size, size_t n) {
    void *q = dt_realloc(*p, size * n);
    if (q) *p = q;
    return q != NULL;
}

dt_status dt_client_room(uint32_t n_in, uint32_t n_key) {
    if (n_key > dt_c.key_cap) {
        uint32_t n = n_key * 2;
        if (!grow((void **)&dt_c.key, sizeof *dt_c.key, n)) return dt_fail(DT_E_NOMEM, "a call: out of host memory");
        dt_c.key_cap = n;
    }
    if (n_in > dt_c.in_cap) {
        uint32_t n = n_in * 2;
        if (!grow((void **)&dt_c.in_word, sizeof *dt_c.in_word, n) || !grow((void **)&dt_c.in_meta, sizeof *dt_c.in_meta, n) ||
            !grow((void **)&dt_c.in_tensor, sizeof *dt_c.in_tensor, n))
            return dt_fail(DT_E_NOMEM, "a call: out of host memory");
        dt_c.in_cap = n;
    }
    return DT_OK;
}
