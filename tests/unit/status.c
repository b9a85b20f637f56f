/* base/status: names, exception classes, the last message. */
#include "test.h"

static dt_status fails(int n) { return dt_fail(DT_E_SHAPE, "n is %d, expected 2", n); }
static dt_status tries(int n) {
    if (n != 2) DT_TRY(fails(n));
    return DT_OK;
}

TEST(try_passes_the_code_and_the_message_on) {
    CHECK_OK(tries(2));
    CHECK_STATUS(tries(3), DT_E_SHAPE);
    CHECK_STR(dt_error_message(), "n is 3, expected 2");
}

TEST(every_code_has_a_name_and_an_exception) {
    for (int s = 1; s < DT_STATUS_COUNT; s++) {
        CHECK_HAS(dt_status_name((dt_status)s), "E_");
        REQUIRE(dt_status_exception((dt_status)s)[0]);
    }
    CHECK_STR(dt_status_exception(DT_E_INDEX), "IndexError");
}

TEST(long_messages_are_cut_not_overrun) {
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    CHECK_STATUS(dt_fail(DT_E_VALUE, "%s", text), DT_E_VALUE);
    CHECK(strlen(dt_error_message()) < sizeof text);
}

TEST(str_builder_is_bounded_and_terminated) {
    DT_STR(s, 8);
    dt_str_add(&s, "%d", 12345);
    dt_str_add(&s, "%s", "abcdefgh");
    CHECK_STR(s.buf, "12345ab");
}
