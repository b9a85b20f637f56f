/* Futures, host buffers, late errors, call sites: what the client, the controller and the workers share. */
#include <pthread.h>
#include <unistd.h>

#include "base/ring.h"
#include "plan/record.h"
#include "test.h"

static _Atomic int freed;
static void note_free(void *ctx) { atomic_fetch_add(&freed, *(int *)ctx); }

TEST(buffer_is_freed_by_the_last_holder) {
    int one = 1;
    char data[8];
    dt_hostbuf *b;
    REQUIRE_OK(dt_hostbuf_wrap(data, sizeof data, note_free, &one, &b));
    dt_hostbuf_ref(b);
    dt_hostbuf_unref(b);
    CHECK_INT(atomic_load(&freed), 0);
    dt_hostbuf_unref(b);
    CHECK_INT(atomic_load(&freed), 1);
    dt_hostbuf_unref(NULL);
    REQUIRE_OK(dt_hostbuf_new(0, &b));
    CHECK(b->data != NULL && (uintptr_t)b->data % 64 == 0);
    dt_hostbuf_unref(b);
    CHECK_STATUS(dt_hostbuf_new(SIZE_MAX - 8, &b), DT_E_NOMEM);
}

static void *deliver_later(void *p) {
    usleep(20000);
    dt_future_part(p, NULL);
    return NULL;
}
static void count(void *ctx) { atomic_fetch_add((_Atomic int *)ctx, 1); }

TEST(wait_for_another_thread) {
    dt_future *f;
    pthread_t t;
    _Atomic int told = 0;
    REQUIRE_OK(dt_future_new(NULL, NULL, &f));
    dt_future_on_done(f, count, &told);
    CHECK(!dt_future_done(f));
    uint64_t start = dt_now_ns();
    CHECK(!dt_future_wait(f, 1000));
    CHECK(dt_now_ns() - start < 1000000000u);
    CHECK_STATUS(dt_future_status(f), DT_E_STATE);
    REQUIRE(pthread_create(&t, NULL, deliver_later, f) == 0);
    while (!dt_future_wait(f, -1)) continue;
    CHECK_OK(dt_future_status(f));
    REQUIRE(pthread_join(t, NULL) == 0);
    CHECK_INT(atomic_load(&told), 1);
    dt_future_on_done(f, count, &told); /* complete already: told once only */
    CHECK_INT(atomic_load(&told), 1);
    dt_future_unref(f);
}

TEST(last_part_completes_first_error_stays) {
    dt_future *f;
    REQUIRE_OK(dt_future_new(NULL, NULL, &f));
    atomic_store(&f->parts, 3);
    dt_error_t *a = dt_error_new(DT_E_INDEX, 0, "gather", "index 7 is out of range"), *b = dt_error_new(DT_E_NOMEM, 0, "add", "no room");
    dt_future_part(f, NULL);
    dt_future_part(f, a);
    CHECK(!dt_future_done(f));
    dt_future_part(f, b);
    CHECK(dt_future_done(f));
    dt_error_unref(a);
    dt_error_unref(b);
    CHECK_STATUS(dt_future_status(f), DT_E_INDEX);
    CHECK_STR(dt_error_message(), "gather: index 7 is out of range");
    dt_future_unref(f);
}

TEST(error_names_its_line) {
    uint32_t a = dt_site_intern("train.py", 12, "step"), b = dt_site_intern("train.py", 13, "step");
    CHECK(a && b && a != b);
    CHECK_INT(dt_site_intern("train.py", 12, "step"), a);
    const char *file, *func;
    int line;
    REQUIRE(dt_site_get(b, &file, &line, &func));
    CHECK_STR(file, "train.py");
    CHECK_INT(line, 13);
    CHECK_STR(func, "step");
    CHECK(!dt_site_get(0, &file, &line, &func));
    CHECK(!dt_site_get(1000000, &file, &line, &func));
    dt_error_t *e = dt_error_new(DT_E_VALUE, a, "add", "add: bad");
    CHECK_STR(e->text, "add: bad\n  in the call at train.py:12, in step");
    dt_error_unref(e);
    char longest[1000];
    memset(longest, 'x', sizeof longest);
    longest[999] = 0;
    e = dt_error_new(DT_E_VALUE, a, "add", longest);
    CHECK_HAS(e->text, "train.py:12"); /* cut, but the line is there */
    dt_error_unref(e);
}
