/* When the next chunk of a block can be formed: there is room in its lane's ring, and what it is formed from has come. */
#include "comm/span.h"
#include "test.h"

TEST(a_full_ring_waits) {
    dt_span_lane to = {.stream = {.slots = 4, .n = 10}};
    dt_span_work w = {.into = &to, .n = 10, .next = 3};
    CHECK(dt_span_ready(&w));
    w.next = 4;
    CHECK(!dt_span_ready(&w));
    atomic_store(&to.stream.done, 1);
    CHECK(dt_span_ready(&w));
    w.next = 10;
    CHECK(!dt_span_ready(&w)); /* nothing is left */
}

TEST(what_has_not_come_is_waited_for) {
    dt_span_lane from = {.stream = {.receive = true, .slots = 4, .n = 10}};
    dt_span_operand o = {.lane = &from};
    dt_span_work w = {.op_list = &o, .n_op = 1, .n = 10, .next = 2};
    atomic_store(&from.stream.done, 2);
    CHECK(!dt_span_ready(&w));
    atomic_store(&from.stream.done, 3);
    CHECK(dt_span_ready(&w));
}

/* A stream whose peer is lost counts as done to its end, so that whoever serves it comes to an end as well. */
TEST(a_lost_peer_keeps_nobody_waiting) {
    dt_span_lane to = {.stream = {.slots = 4, .n = 10}}, from = {.stream = {.receive = true, .slots = 4, .n = 10}};
    dt_span_operand o = {.lane = &from};
    atomic_store(&to.stream.done, 10);
    atomic_store(&from.stream.done, 10);
    for (uint32_t next = 0; next < 10; next++) {
        dt_span_work w = {.into = &to, .op_list = &o, .n_op = 1, .n = 10, .next = next};
        CHECK(dt_span_ready(&w));
    }
}
