/* The stream of entries to a node: what is written is read back, repeats cost next to nothing, damaged messages are refused. */
#include "plan/history.h"
#include "test.h"

static uint32_t rng = 3;
static uint32_t rnd(uint32_t n) {
    rng = rng * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)rng * n) >> 32);
}

typedef struct pair {
    dt_history from, to;
} pair;
static void pair_init(pair *x) {
    REQUIRE_OK(dt_history_init(&x->from, true));
    REQUIRE_OK(dt_history_init(&x->to, false));
}
static void pair_free(pair *x) {
    dt_history_free(&x->from);
    dt_history_free(&x->to);
}

/* Sends n bytes; returns how long the message was. */
static size_t send(pair *x, const uint8_t *p, size_t n) {
    dt_wire w = {0}, got = {0};
    dt_history_write(&x->from, p, n, &w);
    dt_unwire u = {w.data, w.n, 0, false};
    CHECK_OK(dt_history_read(&x->to, &u, 1 << 24, &got));
    CHECK_INT(u.at, w.n);
    CHECK_INT(got.n, n);
    CHECK(!n || !memcmp(got.data, p, n));
    size_t bytes = w.n;
    dt_wire_free(&w);
    dt_wire_free(&got);
    return bytes;
}

TEST(any_stream_is_read_back) {
    enum { N = 3 * DT_HISTORY };
    uint8_t *p = malloc(N);
    for (int letters = 1; letters <= 256; letters *= 4) { /* few letters: copies everywhere, also such that overlap */
        pair x;
        pair_init(&x);
        for (size_t i = 0; i < N; i++) p[i] = i > 5000 && rnd(100) ? p[i - 1 - rnd(2) * 4000] : (uint8_t)rnd((uint32_t)letters);
        for (size_t at = 0, n; at < N; at += n) {
            n = rnd(3) ? rnd(300) : rnd(200000);
            if (n > N - at) n = N - at;
            send(&x, p + at, n);
        }
        pair_free(&x);
    }
    free(p);
}

TEST(a_repeated_step_is_one_copy) {
    pair x;
    pair_init(&x);
    enum { MAX = 200000 };
    static uint8_t step[2][MAX];
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < MAX; i++) step[k][i] = (uint8_t)rnd(256);
    for (int n = 50; n <= MAX; n *= 4) {
        for (int k = 0; k < 4; k++) send(&x, step[k % 2], (size_t)n); /* period two, as buffers that take turns have */
        for (int k = 0; k < 6; k++) CHECK(send(&x, step[k % 2], (size_t)n) <= 12);
        step[0][n / 2]++; /* a scalar changed */
        size_t bytes = send(&x, step[0], (size_t)n);
        CHECK(bytes <= 40);
        send(&x, step[1], (size_t)n);
        CHECK(send(&x, step[0], (size_t)n) <= 24);
    }
    pair_free(&x);
}

TEST(damaged_messages_are_refused_or_harmless) {
    pair x;
    pair_init(&x);
    uint8_t p[600];
    for (int round = 0; round < 3000; round++) {
        dt_wire w = {0}, got = {0};
        for (size_t i = 0; i < sizeof p; i++) p[i] = (uint8_t)rnd(3);
        dt_history_write(&x.from, p, 1 + rnd(sizeof p), &w);
        for (uint32_t k = rnd(4); k; k--) w.data[rnd((uint32_t)w.n)] = (uint8_t)rnd(256);
        uint8_t *exact = malloc(w.n);
        memcpy(exact, w.data, w.n);
        dt_unwire u = {exact, 1 + rnd((uint32_t)w.n), 0, false};
        dt_status s = dt_history_read(&x.to, &u, 10000, &got);
        CHECK(got.n <= 10000 + 256);
        (void)s;
        free(exact);
        dt_wire_free(&w);
        dt_wire_free(&got);
    }
    pair_free(&x);
}
