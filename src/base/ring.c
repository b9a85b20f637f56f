/* Ring and futex helpers. See ring.h. */
#include "base/ring.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"

void dt_futex_wait(_Atomic uint32_t *addr, uint32_t expected, int64_t usec) {
    struct timespec ts = {usec / 1000000, (usec % 1000000) * 1000};
    syscall(SYS_futex, addr, FUTEX_WAIT_PRIVATE, expected, usec < 0 ? NULL : &ts, NULL, 0);
}

void dt_futex_wake(_Atomic uint32_t *addr, int count) { syscall(SYS_futex, addr, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0); }

uint64_t dt_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

dt_status dt_ring_init(dt_ring *r, size_t words_pow2) {
    *r = (dt_ring){.buf = dt_malloc(words_pow2 * sizeof(uint64_t)), .mask = words_pow2 - 1};
    return r->buf ? DT_OK : dt_fail(DT_E_NOMEM, "ring: out of host memory");
}

void dt_ring_fini(dt_ring *r) {
    dt_free(r->buf);
    r->buf = NULL;
}

void dt_ring_wake(dt_ring *r) {
    atomic_store(&r->woken, 1);
    if (atomic_exchange(&r->sleeping, 0)) dt_futex_wake(&r->sleeping, 1);
}

static void wait_for_space(dt_ring *r, uint64_t need) {
    for (;;) {
        r->head_seen = atomic_load_explicit(&r->head, memory_order_acquire);
        if (r->tail_local + need - r->head_seen <= r->mask) return;
        atomic_store(&r->want_space, 1);
        dt_ring_publish(r); /* what is reserved so far is complete: only whole records precede a reserve */
        r->head_seen = atomic_load(&r->head);
        if (r->tail_local + need - r->head_seen <= r->mask) return;
        dt_ring_wake(r);
        dt_futex_wait(&r->want_space, 1, 1000);
    }
}

uint64_t *dt_ring_reserve_slow(dt_ring *r, uint32_t n) {
    uint64_t at = r->tail_local & r->mask, skip = 0;
    if (at + n > r->mask) skip = r->mask + 1 - at;
    wait_for_space(r, skip + n);
    if (skip) {
        r->buf[at] = DT_RING_WRAP;
        r->tail_local += skip;
    }
    uint64_t *p = r->buf + (r->tail_local & r->mask);
    r->tail_local += n;
    return p;
}

size_t dt_ring_peek(dt_ring *r, const uint64_t **p) {
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
    if (head == tail) return 0;
    uint64_t at = head & r->mask;
    if (r->buf[at] == DT_RING_WRAP) {
        head += r->mask + 1 - at;
        atomic_store_explicit(&r->head, head, memory_order_release);
        if (head == tail) return 0;
        at = 0;
    }
    *p = r->buf + at;
    uint64_t n = tail - head, room = r->mask + 1 - at;
    return n < room ? n : room;
}

void dt_ring_consume(dt_ring *r, size_t n) {
    atomic_store_explicit(&r->head, atomic_load_explicit(&r->head, memory_order_relaxed) + n, memory_order_release);
    if (DT_UNLIKELY(atomic_load_explicit(&r->want_space, memory_order_relaxed))) {
        atomic_store(&r->want_space, 0);
        dt_futex_wake(&r->want_space, 1);
    }
}

void dt_ring_wait(dt_ring *r, int64_t usec, bool deep) {
    uint32_t how = deep ? 1 : 2;
    atomic_store(&r->sleeping, how);
    if (atomic_load(&r->head) == atomic_load(&r->tail)) dt_futex_wait(&r->sleeping, how, usec);
    atomic_store(&r->sleeping, 0);
}

bool dt_ring_woken(dt_ring *r) { return atomic_exchange(&r->woken, 0); }

void dt_ring_nap(dt_ring *r, int64_t usec) {
    atomic_store(&r->sleeping, 2);
    if (!atomic_load(&r->woken)) dt_futex_wait(&r->sleeping, 2, usec);
    atomic_store(&r->sleeping, 0);
}
