/* Bytes out, bytes in. See serial.h. Unsigned numbers are LEB128; signed ones are zigzag-coded first. */
#include <string.h>

#include "plan/serial.h"

void dt_wire_put(dt_wire *w, const void *p, size_t bytes) {
    if (DT_UNLIKELY(w->like != NULL) && dt_like_put(w->like, p, bytes)) return;
    if (w->n + bytes > w->cap) {
        size_t cap = (w->n + bytes) * 2 + 64;
        uint8_t *d = w->failed ? NULL : dt_realloc(w->data, cap);
        if (!d) {
            w->failed = true;
            return;
        }
        w->data = d;
        w->cap = cap;
    }
    if (bytes) memcpy(w->data + w->n, p, bytes);
    w->n += bytes;
}

void dt_wire_long(dt_wire *w, uint64_t v) {
    if (DT_UNLIKELY(w->like != NULL) && dt_like_u64(w->like, v)) return;
    uint8_t b[10];
    int n = 0;
    for (; v >= 0x80; v >>= 7) b[n++] = (uint8_t)(v | 0x80);
    b[n++] = (uint8_t)v;
    dt_wire_put(w, b, (size_t)n);
}

void dt_wire_i64(dt_wire *w, int64_t v) { dt_wire_u64(w, (uint64_t)v << 1 ^ (uint64_t)(v >> 63)); }

void dt_wire_text(dt_wire *w, const char *s) {
    size_t n = strlen(s);
    dt_wire_u64(w, n);
    dt_wire_put(w, s, n);
}

void dt_wire_free(dt_wire *w) {
    dt_free(w->data);
    *w = (dt_wire){0};
}

void dt_unwire_get(dt_unwire *u, void *p, size_t bytes) {
    if (bytes > u->n - u->at) {
        u->bad = true;
        u->at = u->n;
        memset(p, 0, bytes);
        return;
    }
    if (bytes) memcpy(p, u->data + u->at, bytes);
    u->at += bytes;
}

uint64_t dt_unwire_long(dt_unwire *u) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (u->at == u->n) break;
        uint8_t b = u->data[u->at++];
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) return v;
    }
    u->bad = true;
    return 0;
}

int64_t dt_unwire_i64(dt_unwire *u) {
    uint64_t v = dt_unwire_u64(u);
    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

size_t dt_unwire_count(dt_unwire *u, size_t limit) {
    uint64_t v = dt_unwire_u64(u);
    if (v <= limit) return (size_t)v;
    u->bad = true;
    return 0;
}

const char *dt_unwire_text(dt_unwire *u) {
    char text[1024];
    size_t n = dt_unwire_count(u, sizeof text - 1);
    dt_unwire_get(u, text, n);
    text[n] = 0;
    const char *s = u->bad ? NULL : dt_intern(text);
    if (!s) u->bad = true;
    return s ? s : "";
}
