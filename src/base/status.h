/* Statuses: every fallible function returns a dt_status; the text of the last failure is kept per thread.
 *
 * One table (DT_STATUS_MAP) gives each code its name and the Python exception class it becomes. The first detector of a fault
 * calls dt_fail(code, fmt, …) once; everybody above passes the code on with DT_TRY. Any thread may call these. */
#ifndef DT_BASE_STATUS_H
#define DT_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(code, Python exception class, meaning) */
#define DT_STATUS_MAP(X)                                                                 \
    X(OK, "", "success")                                                                 \
    X(E_VALUE, "ValueError", "an argument has an illegal value")                         \
    X(E_TYPE, "TypeError", "an argument has the wrong type")                             \
    X(E_INDEX, "IndexError", "a dimension or index is out of range")                     \
    X(E_SHAPE, "RuntimeError", "shapes do not fit together")                             \
    X(E_DTYPE, "RuntimeError", "a dtype is not supported here")                          \
    X(E_PLACEMENT, "PlacementError", "a mesh or placement is not legal here")            \
    X(E_STATE, "RuntimeError", "the object is not in a state that allows this")          \
    X(E_GRAD, "RuntimeError", "autograd cannot do this")                                 \
    X(E_NOMEM, "OutOfMemoryError", "a device or the host has no memory left")            \
    X(E_NOTIMPL, "NotImplementedError", "legal, but not available")                      \
    X(E_CALLBACK, "RuntimeError", "a user's callback failed")                            \
    X(E_TIMEOUT, "TimeoutError", "the time allowed ran out")                             \
    X(E_INTERRUPT, "KeyboardInterrupt", "the user interrupted the wait")                 \
    X(E_NODE, "NodeLostError", "a process of the run is gone or cannot be reached")      \
    X(E_LINALG, "LinAlgError", "a matrix is singular or an iteration does not converge") \
    X(E_INTERNAL, "RuntimeError", "an internal invariant is broken: a fault of dtorch")

typedef enum dt_status {
#define X(code, py, text) DT_##code,
    DT_STATUS_MAP(X)
#undef X
        DT_STATUS_COUNT
} dt_status;

#define DT_WUR __attribute__((warn_unused_result))
#define DT_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define DT_LIKELY(x) __builtin_expect(!!(x), 1)
#define DT_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Record a failure's text for this thread and return `code`. */
dt_status dt_fail(dt_status code, const char *fmt, ...) DT_PRINTF(2, 3);
/* The text of this thread's last failure; "" if none. Valid until the next failure on this thread. */
const char *dt_error_message(void);
/* Replace the text (used when an error recorded by another thread is raised here). */
void dt_error_set(const char *text);
const char *dt_status_name(dt_status s);
const char *dt_status_exception(dt_status s);

#define DT_TRY(expr)                             \
    do {                                         \
        dt_status s_ = (expr);                   \
        if (DT_UNLIKELY(s_ != DT_OK)) return s_; \
    } while (0)

/* A bounded text builder: never overflows, always terminated. For messages and printing. */
typedef struct dt_str {
    char *buf;
    size_t cap, len;
} dt_str;
#define DT_STR(name, size)                \
    char name##_buf_[size];               \
    dt_str name = {name##_buf_, size, 0}; \
    name##_buf_[0] = 0
void dt_str_add(dt_str *s, const char *fmt, ...) DT_PRINTF(2, 3);

#endif
