/* Exchanges of rows, carried out on plain arrays from random counts: each receiver gets the rows of its experts by expert, then by sender, each in the
 * sender's order; the way back restores every sender's buffer; a sender finds by itself what is read of it; a receiver without room is found out before anything is read. */
#include "comm/comm.h"
#include "tensor/layout.h"
#include "test.h"

enum { GROUPS = 5, EXPERTS = 9, SHARDS = 2, ROWS = 512 };

static uint32_t rng = 4321;
static int rnd(int n) {
    rng = rng * 1664525u + 1013904223u;
    return (int)((rng >> 8) % (uint32_t)n);
}

/* A row is one number: who sent it, for which expert, the how manieth. */
static int64_t name(int shard, int g, int64_t e, int64_t i) { return ((shard * GROUPS + g) * EXPERTS + e) * 1000 + i; }

typedef struct buffers {
    int64_t row[GROUPS][SHARDS * ROWS];
} buffers;
typedef struct copying {
    const buffers *from;
    buffers *to;
    int party, blocks;
} copying;

static void copy(void *ctx, const dt_exchange_block *k) {
    copying *c = ctx;
    int64_t n = k->bytes / 8, from = k->from / 8, to = k->to / 8;
    REQUIRE(k->peer >= 0 && k->peer < GROUPS && n > 0 && from + n <= SHARDS * ROWS && to + n <= SHARDS * ROWS);
    for (int64_t i = 0; i < n; i++) c->to->row[c->party][to + i] = c->from->row[k->peer][from + i];
    c->blocks++;
}

static int64_t counts[SHARDS][GROUPS][EXPERTS];

static void fill(buffers *b, int groups, int experts) {
    memset(b, 0xff, sizeof *b);
    for (int s = 0; s < SHARDS; s++)
        for (int g = 0; g < groups; g++)
            for (int64_t e = 0, at = s * ROWS; e < experts; e++)
                for (int64_t i = 0; i < counts[s][g][e]; i++) b->row[g][at++] = name(s, g, e, i);
}

static void check_received(const buffers *b, int groups, int experts) {
    for (int s = 0; s < SHARDS; s++)
        for (int g = 0; g < groups; g++) {
            int64_t lo, len, at = s * ROWS;
            dt_layout_chunk(experts, groups, g, &lo, &len);
            for (int64_t e = lo; e < lo + len; e++)
                for (int from = 0; from < groups; from++)
                    for (int64_t i = 0; i < counts[s][from][e]; i++) CHECK_INT(b->row[g][at++], name(s, from, e, i));
        }
}

typedef struct listing { /* rows that one party reads of another, in order */
    int peer, n;
    int64_t row[SHARDS * ROWS];
} listing;
static void list(void *ctx, const dt_exchange_block *k) {
    listing *l = ctx;
    for (int64_t i = 0; k->peer == l->peer && i < k->bytes / 8; i++) l->row[l->n++] = k->from / 8 + i;
}

/* Sender and receiver come to the same, without a word. */
static void both_sides_agree(const dt_exchange *x, const int64_t *packed) {
    static listing taken, given;
    for (int to = 0; to < x->groups; to++)
        for (int from = 0; from < x->groups; from++) {
            taken = (listing){.peer = from};
            given = (listing){.peer = to};
            CHECK(dt_exchange_walk(x, to, packed, list, &taken));
            CHECK(dt_exchange_given(x, from, to, packed, list, &given));
            CHECK_INT(given.n, taken.n);
            CHECK(!memcmp(given.row, taken.row, sizeof *taken.row * (size_t)taken.n));
        }
}

static void round_trip(int groups, int experts, int most) {
    static buffers sent, got, back;
    dt_exchange_party party[GROUPS];
    int peer[GROUPS];
    int64_t packed[SHARDS * GROUPS * EXPERTS], n = 0;
    memset(counts, 0, sizeof counts);
    for (int s = 0; s < SHARDS; s++)
        for (int g = 0; g < groups; g++)
            for (int e = 0; e < experts; e++) packed[n++] = counts[s][g][e] = rnd(3) ? rnd(most + 1) : 0;
    for (int g = 0; g < groups; g++) {
        peer[g] = g;
        party[g] = (dt_exchange_party){g, peer, SHARDS, 8};
    }
    dt_exchange x = {.groups = groups, .rows_in = ROWS, .rows_out = ROWS, .n_experts = experts, .party = party};
    fill(&sent, groups, experts);
    memset(&got, 0xff, sizeof got);
    memset(&back, 0xff, sizeof back);
    for (int g = 0; g < groups; g++) {
        copying c = {&sent, &got, g, 0};
        CHECK(dt_exchange_walk(&x, g, packed, copy, &c));
    }
    check_received(&got, groups, experts);
    both_sides_agree(&x, packed);
    x.back = true;
    both_sides_agree(&x, packed);
    for (int g = 0; g < groups; g++) {
        copying c = {&got, &back, g, 0};
        CHECK(dt_exchange_walk(&x, g, packed, copy, &c));
    }
    CHECK(!memcmp(&back, &sent, sizeof sent));
}

TEST(there_and_back) {
    for (int i = 0; i < 200; i++) round_trip(1 + rnd(GROUPS), 1 + rnd(EXPERTS), rnd(2) ? 11 : 1);
}

TEST(no_room) {
    dt_exchange_party party[2];
    int peer[2] = {0, 1};
    int64_t packed[] = {3, 0, 2, 1}; /* 5 rows for expert 0, 1 for expert 1 */
    for (int g = 0; g < 2; g++) party[g] = (dt_exchange_party){g, peer, 1, 8};
    dt_exchange x = {.groups = 2, .rows_in = 3, .rows_out = 4, .n_experts = 2, .party = party};
    copying c = {NULL, NULL, 0, 0};
    CHECK(!dt_exchange_walk(&x, 0, packed, copy, &c));
    CHECK_INT(c.blocks, 0);
    int64_t wrong[] = {4, 0, 0, 0}, negative[] = {-1, 0, 2, 0};
    CHECK(!dt_exchange_given(&x, 0, 0, wrong, list, &(listing){.peer = 0}));
    CHECK(!dt_exchange_given(&x, 0, 0, negative, list, &(listing){.peer = 0}));
    CHECK(!dt_exchange_walk(&x, 0, negative, list, &(listing){.peer = 0}));
}
