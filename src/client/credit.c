/* Credit for host memory. Device memory needs none: the controller hands freed memory to the next program at once, since a device runs programs in order. But an
 * array given by the host is held from the call until the program that reads it has run, and the client may be thousands of calls ahead. So for every
 * WINDOW of bytes given, a mark goes into the stream (a SYNC), and who gives more waits for the mark before: at most two windows and one array are under way.
 * Client side, one thread at a time. */
#include "client/internal.h"

enum { WINDOW = 32 << 20 };

static size_t given; /* since the last mark */
static dt_future *mark;

void dt_credit_given(size_t bytes) { given += bytes; }

dt_future *dt_credit_take(void) {
    dt_future *f, *before = mark;
    if (DT_LIKELY(given < WINDOW)) return NULL;
    given = 0;
    mark = NULL;
    if (dt_sync_async(&f) == DT_OK) mark = f; /* without memory for it: nobody waits */
    if (mark) dt_engine_flush();
    return before;
}
