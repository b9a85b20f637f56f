/* Bells between processes: a sleeper is woken by another process, no ring is lost however many ring, and only a bell of the stated owner is taken. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include "comm/progress.h"
#include "test.h"

enum { OWNER = 0x1234567, LONG_US = 600 * 1000000, THREADS = 4, RINGS = 2000 };

static void wait_for(uint32_t rings) { /* a lost ring: the test's time is over before the nap is */
    for (uint32_t seen; (seen = dt_bell_rung()) < rings;) dt_bell_sleep(seen, LONG_US);
}

TEST(another_process_wakes_the_sleeper) {
    int64_t bell = dt_bell_make(OWNER);
    REQUIRE(bell >= 0);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        bool found = dt_bell_find(1, parent, bell, OWNER);
        for (int i = 0; found && i < RINGS; i++) dt_bell_ring_at(1);
        dt_bell_ring_at(2); /* was never looked for */
        _exit(found ? 0 : 1);
    }
    wait_for(RINGS);
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
    CHECK_INT(dt_bell_rung(), RINGS);
}

TEST(only_the_stated_owners_bell_is_taken) {
    int64_t bell = dt_bell_make(OWNER), me = getpid();
    REQUIRE(bell >= 0);
    CHECK(!dt_bell_find(1, me, bell, OWNER + 1));
    CHECK(!dt_bell_find(1, me, -1, OWNER));     /* it has none */
    CHECK(!dt_bell_find(1, me, 999, OWNER));    /* no such file there */
    CHECK(!dt_bell_find(1, 1 << 30, 3, OWNER)); /* no such process */
    int open_one = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING), small = memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint64_t page[512] = {0, OWNER};
    REQUIRE(write(open_one, page, sizeof page) == sizeof page && write(small, page, 16) == 16 && !fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK));
    CHECK(!dt_bell_find(1, me, open_one, OWNER)); /* could shrink under the mapping */
    CHECK(!dt_bell_find(1, me, small, OWNER));
    dt_bell_ring_at(1); /* nobody's: nothing happens */
    CHECK_INT(dt_bell_rung(), 0);
    CHECK(dt_bell_find(1, me, bell, OWNER));
    dt_bell_ring_at(1);
    CHECK_INT(dt_bell_rung(), 1);
}

static void *ringing(void *arg) {
    (void)arg;
    for (int i = 0; i < RINGS; i++) dt_bell_ring();
    return NULL;
}

TEST(no_ring_of_many_threads_is_lost) {
    REQUIRE(dt_bell_make(OWNER) >= 0);
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) REQUIRE(!pthread_create(&thread[i], NULL, ringing, NULL));
    wait_for(THREADS * RINGS);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    CHECK_INT(dt_bell_rung(), THREADS * RINGS);
}

TEST(a_nap_ends_by_itself) {
    dt_bell_sleep(dt_bell_rung(), 1000);
    CHECK_INT(dt_bell_rung(), 0);
}
