/* Statuses: the per-thread text of the last failure, and the tables made from DT_STATUS_MAP. */
#include "base/status.h"

#include <stdio.h>
#include <string.h>

static _Thread_local char last_message[2048];

dt_status dt_fail(dt_status code, const char *fmt, ...) {
    char text[sizeof last_message]; /* fmt's arguments may point into the old message */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(last_message, text, sizeof text);
    return code;
}

const char *dt_error_message(void) { return last_message; }

void dt_error_set(const char *text) {
    if (text == last_message) return;
    snprintf(last_message, sizeof last_message, "%s", text);
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
