/* Ring: a single-producer, single-consumer queue of 64-bit words; the client's only way to the controller.
 *
 *     buf: [ … consumed | readable words … | free … ]      head: next word to read (consumer's)   tail: next word to write
 *                       ^head              ^tail           Both only grow; index = counter & mask.
 *
 * The producer reserves n consecutive words (wrapping is hidden: a record never straddles the end, a WRAP word skips it), fills
 * them, then publishes. It never makes a system call unless the consumer said it is deeply asleep or the ring is full. The consumer
 * sleeps on a futex with a timeout. Invariant: words between head and tail are never written by the producer. */
#ifndef DT_BASE_RING_H
#define DT_BASE_RING_H

#include <stdatomic.h>

#include "base/status.h"

typedef struct dt_ring {
    uint64_t *buf;
    uint64_t mask;
    /* producer's line */
    _Alignas(64) _Atomic uint64_t tail;
    uint64_t tail_local, head_seen; /* tail_local: reserved, maybe not yet published */
    /* consumer's line */
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint32_t sleeping; /* 0: consumer runs; 1: asleep, wake me at the next publish; 2: naps, wake me only when asked */
    _Atomic uint32_t want_space;            /* 1: the producer waits for space */
    _Atomic uint32_t woken;                 /* 1: dt_ring_wake was called */
} dt_ring;

#define DT_RING_WRAP UINT64_MAX

dt_status dt_ring_init(dt_ring *r, size_t words_pow2) DT_WUR;
void dt_ring_fini(dt_ring *r);

/* Producer. Space for n words (n <= size/4); blocks (sleeping) while the ring is full. Publish makes all reserved words visible. */
uint64_t *dt_ring_reserve_slow(dt_ring *r, uint32_t n);
static inline uint64_t *dt_ring_reserve(dt_ring *r, uint32_t n) {
    uint64_t at = r->tail_local & r->mask;
    if (DT_UNLIKELY(at + n > r->mask || r->tail_local + n - r->head_seen > r->mask)) return dt_ring_reserve_slow(r, n);
    r->tail_local += n;
    return r->buf + at;
}
void dt_ring_wake(dt_ring *r); /* wakes the consumer */
static inline void dt_ring_publish(dt_ring *r) {
    atomic_store_explicit(&r->tail, r->tail_local, memory_order_release);
    /* The consumer re-checks tail after it sets `sleeping`, with a timeout: a missed wake costs at most that timeout. */
    if (DT_UNLIKELY(atomic_load_explicit(&r->sleeping, memory_order_relaxed) == 1)) dt_ring_wake(r);
}

/* Consumer. The readable words [*p, *p + result); 0 if none. A record's first word may be DT_RING_WRAP: skip to the start (done here). */
size_t dt_ring_peek(dt_ring *r, const uint64_t **p);
void dt_ring_consume(dt_ring *r, size_t n);
/* Sleep until there is a word, dt_ring_wake, or `usec` microseconds passed. `deep`: the next publish wakes us; otherwise it is a nap
 * that costs the producer nothing. Records published during a nap are seen at its end. */
void dt_ring_wait(dt_ring *r, int64_t usec, bool deep);
bool dt_ring_woken(dt_ring *r);             /* was dt_ring_wake called since the last time? Before the words are looked at that it was called for. */
void dt_ring_nap(dt_ring *r, int64_t usec); /* Sleep whether there are words or not: until dt_ring_wake, also one not yet asked for. */

/* Futex helpers, shared by rings, teams and futures. Return after a wake, a change of *addr, a signal or the timeout (<0: none). */
void dt_futex_wait(_Atomic uint32_t *addr, uint32_t expected, int64_t usec);
void dt_futex_wake(_Atomic uint32_t *addr, int count);
uint64_t dt_now_ns(void); /* monotonic clock */

#endif
