/* Statuses: the per-thread text of the last failure, and the tables made from DT_STATUS_MAP.
 *
 * The text is allocated with a thread's first failure and freed with the thread: the extension's thread-local segment must stay small, because
 * the loader has little room for segments that are accessed the fast way. Without memory a shared buffer serves. */
#include "base/status.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE = 2048 };
static _Thread_local char *last_message;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_key;
static void make_key(void) { have_key = pthread_key_create(&key, free) == 0; }

static char *message(void) {
    static char shared[MESSAGE];
    if (last_message) return last_message;
    pthread_once(&once, make_key);
    char *m = have_key ? malloc(MESSAGE) : NULL;
    if (!m || pthread_setspecific(key, m)) {
        free(m);
        return shared;
    }
    m[0] = 0;
    return last_message = m;
}

dt_status dt_fail(dt_status code, const char *fmt, ...) {
    char text[MESSAGE]; /* fmt's arguments may point into the old message */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(message(), text, sizeof text);
    return code;
}

const char *dt_error_message(void) { return message(); }

void dt_error_set(const char *text) {
    char *m = message();
    if (text != m) snprintf(m, MESSAGE, "%s", text);
}

const char *dt_status_name(dt_status s) {
    static const char *const names[] = {
#define X(code, py, text) #code,
        DT_STATUS_MAP(X)
#undef X
    };
    return s < DT_STATUS_COUNT ? names[s] : "?";
}

const char *dt_status_exception(dt_status s) {
    static const char *const names[] = {
#define X(code, py, text) py,
        DT_STATUS_MAP(X)
#undef X
    };
    return s < DT_STATUS_COUNT ? names[s] : "RuntimeError";
}

void dt_str_add(dt_str *s, const char *fmt, ...) {
    if (s->len + 1 >= s->cap) return;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(s->buf + s->len, s->cap - s->len, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    s->len += (size_t)n;
    if (s->len >= s->cap) s->len = s->cap - 1;
}
