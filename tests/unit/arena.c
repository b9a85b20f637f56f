/* base/arena: alignment, zeroing, reset, and host allocations that fail. */
#include "test.h"

#include "base/arena.h"

TEST(memory_is_zeroed_aligned_and_apart) {
    dt_arena a;
    dt_arena_init(&a);
    char *last = NULL;
    for (size_t size = 0; size < 5000; size += 37) {
        char *p = dt_arena_alloc(&a, size);
        REQUIRE(p);
        CHECK_INT((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < size; i++) REQUIRE(p[i] == 0);
        memset(p, 0x5a, size);
        CHECK(p != last);
        last = p;
    }
    dt_arena_fini(&a);
    CHECK_INT(a.total, 0);
}

TEST(reset_keeps_a_block_and_zeroes_again) {
    dt_arena a;
    dt_arena_init(&a);
    dt_arena_reset(&a);
    for (int i = 0; i < 100; i++) memset(dt_arena_alloc(&a, 4000), 1, 4000);
    size_t before = a.total;
    dt_arena_reset(&a);
    CHECK(a.total > 0 && a.total < before);
    char *p = dt_arena_alloc(&a, 4000);
    REQUIRE(p);
    CHECK_INT(p[0] | p[3999], 0);
    dt_arena_fini(&a);
}

TEST(copy_keeps_the_bytes) {
    dt_arena a;
    dt_arena_init(&a);
    CHECK_STR(dt_arena_copy(&a, "layout", 7), "layout");
    CHECK(dt_arena_copy(&a, NULL, 0) != NULL);
    dt_arena_fini(&a);
}

TEST(failure_of_the_host_is_reported_once) {
    dt_arena a;
    dt_arena_init(&a);
    dt_malloc_fail_after(0);
    CHECK_PTR(dt_arena_alloc(&a, 8), NULL);
    CHECK(dt_arena_alloc(&a, 8) != NULL);
    dt_malloc_fail_after(1);
    void *p = dt_malloc(1), *q = dt_malloc(1), *r = dt_malloc(1);
    CHECK(p && !q && r);
    dt_free(p);
    dt_free(r);
    dt_arena_fini(&a);
}
