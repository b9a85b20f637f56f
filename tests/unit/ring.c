/* base/ring: order, wrapping, waiting on both sides, between two real threads. */
#include "test.h"

#include <pthread.h>

#include "base/ring.h"

enum { SMALL = 64, RECORDS = 200000 };

/* A record: length, sequence number, then copies of the number. Lengths vary, so that records meet the end of the ring in all ways. */
static uint32_t length_of(uint64_t i) { return 2 + (uint32_t)(i * 7 % 13); }

static void put(dt_ring *r, uint64_t i) {
    uint32_t n = length_of(i);
    uint64_t *w = dt_ring_reserve(r, n);
    w[0] = n;
    for (uint32_t k = 1; k < n; k++) w[k] = i;
    dt_ring_publish(r);
}

/* Take all that is readable; returns how many records, or -1 when one is not what was put. */
static int take(dt_ring *r, uint64_t *next) {
    const uint64_t *w;
    size_t have = dt_ring_peek(r, &w), at = 0;
    int count = 0;
    while (at < have && w[at] != DT_RING_WRAP) {
        if (w[at] != length_of(*next)) return -1;
        for (uint64_t k = 1; k < w[at]; k++)
            if (w[at + k] != *next) return -1;
        at += w[at];
        (*next)++;
        count++;
    }
    dt_ring_consume(r, at);
    return count;
}

TEST(records_come_out_as_they_went_in) {
    dt_ring r;
    REQUIRE_OK(dt_ring_init(&r, SMALL));
    uint64_t next = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        put(&r, i);
        if (i % 3 == 2) {
            while (next <= i) REQUIRE(take(&r, &next) >= 0);
        }
    }
    const uint64_t *w;
    while (next < 1000) REQUIRE(take(&r, &next) > 0);
    CHECK_INT(dt_ring_peek(&r, &w), 0);
    dt_ring_fini(&r);
}

TEST(nothing_is_readable_before_publish) {
    dt_ring r;
    REQUIRE_OK(dt_ring_init(&r, SMALL));
    uint64_t *w = dt_ring_reserve(&r, 2);
    const uint64_t *p;
    CHECK_INT(dt_ring_peek(&r, &p), 0);
    w[0] = w[1] = 7;
    dt_ring_publish(&r);
    CHECK_INT(dt_ring_peek(&r, &p), 2);
    dt_ring_fini(&r);
}

static void *produce(void *arg) {
    for (uint64_t i = 0; i < RECORDS; i++) put(arg, i);
    return NULL;
}

static void run_threads(bool deep, int64_t usec) {
    dt_ring r;
    REQUIRE_OK(dt_ring_init(&r, SMALL));
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, produce, &r) == 0);
    uint64_t next = 0;
    while (next < RECORDS) {
        int n = take(&r, &next);
        REQUIRE(n >= 0);
        const uint64_t *p;
        if (n == 0 && dt_ring_peek(&r, &p) == 0) dt_ring_wait(&r, usec, deep);
    }
    pthread_join(thread, NULL);
    CHECK_INT(next, RECORDS);
    dt_ring_fini(&r);
}

TEST(full_ring_makes_the_producer_wait_and_deep_sleep_is_woken) { run_threads(true, 1000000); }
TEST(naps_end_by_themselves) { run_threads(false, 50); }

static void *wake_later(void *arg) {
    usleep(20000);
    dt_ring_wake(arg);
    return NULL;
}

TEST(wake_ends_a_nap) {
    dt_ring r;
    REQUIRE_OK(dt_ring_init(&r, SMALL));
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, wake_later, &r) == 0);
    uint64_t start = dt_now_ns();
    dt_ring_wait(&r, 20000000, false);
    CHECK(dt_now_ns() - start < 10000000000u);
    pthread_join(thread, NULL);
    dt_ring_fini(&r);
}

/* Whether there are words or not, and whether the wake comes before the nap or in it. */
TEST(a_wake_is_not_lost_to_a_nap_that_begins_later) {
    dt_ring r;
    REQUIRE_OK(dt_ring_init(&r, SMALL));
    put(&r, 0);
    CHECK(!dt_ring_woken(&r));
    dt_ring_wake(&r);
    uint64_t start = dt_now_ns();
    dt_ring_nap(&r, 20000000);
    CHECK(dt_ring_woken(&r));
    CHECK(!dt_ring_woken(&r));
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, wake_later, &r) == 0);
    while (!dt_ring_woken(&r)) dt_ring_nap(&r, 20000000);
    CHECK(dt_now_ns() - start < 10000000000u);
    pthread_join(thread, NULL);
    dt_ring_fini(&r);
}
