/* See history.h. The writer looks for repeats at two places only: where the last copy left off, and where the next eight bytes were seen last. */
#include "plan/history.h"

#include <string.h>

enum { WINDOW = 8, COPY_MIN = 12, RESUME_MIN = 6 };

dt_status dt_history_init(dt_history *h, bool writer) {
    *h = (dt_history){.ring = dt_malloc(DT_HISTORY), .seen = writer ? dt_calloc(DT_HISTORY_HASHES, sizeof *h->seen) : NULL};
    if (h->ring && (h->seen || !writer)) return DT_OK;
    dt_history_free(h);
    return dt_fail(DT_E_NOMEM, "messages to nodes: out of host memory");
}

void dt_history_free(dt_history *h) {
    dt_free(h->ring);
    dt_free(h->seen);
    *h = (dt_history){0};
}

static bool reachable(const dt_history *h, uint64_t distance) { return distance && distance <= h->n && distance <= DT_HISTORY / 2; }

static void append(dt_history *h, const uint8_t *p, size_t n) {
    while (n) {
        size_t at = h->n % DT_HISTORY, k = n < DT_HISTORY - at ? n : DT_HISTORY - at;
        memcpy(h->ring + at, p, k);
        h->n += k;
        p += k;
        n -= k;
    }
}

static size_t same_bytes(const uint8_t *a, const uint8_t *b, size_t n) {
    size_t k = 0;
    for (uint64_t x, y; k + 8 <= n; k += 8) {
        memcpy(&x, a + k, 8);
        memcpy(&y, b + k, 8);
        if (x != y) break;
    }
    while (k < n && a[k] == b[k]) k++;
    return k;
}

/* How many of the next bytes are those `distance` back; a copy may overlap itself. p is the stream from h->n on. */
static size_t match(const dt_history *h, const uint8_t *p, size_t n, uint64_t distance) {
    if (!reachable(h, distance)) return 0;
    size_t k = 0, in_ring = n < distance ? n : distance;
    while (k < in_ring) { /* a stretch of the ring that does not wrap */
        size_t at = (h->n + k - distance) % DT_HISTORY, m = in_ring - k < DT_HISTORY - at ? in_ring - k : DT_HISTORY - at;
        size_t same = same_bytes(p + k, h->ring + at, m);
        k += same;
        if (same < m) return k;
    }
    return k + same_bytes(p + k, p + k - distance, n - k);
}

static size_t slot_of(const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p, WINDOW);
    return (size_t)(dt_hash_mix(w, 5) % DT_HISTORY_HASHES);
}

/* The bytes become part of the stream. */
static void take(dt_history *h, const uint8_t *p, size_t n, size_t left) {
    for (size_t i = 0; i < n && left - i >= WINDOW; i += n - i > 64 ? 16 : 1) h->seen[slot_of(p + i)] = h->n + i + 1; /* thinner inside long stretches */
    append(h, p, n);
}

/* How long the copy that may begin here is, and from where; 0: none that is worth it. */
static size_t copy_here(const dt_history *h, const uint8_t *p, size_t n, uint64_t *distance) {
    size_t same = match(h, p, n, h->distance);
    if (same >= RESUME_MIN || (same == n && n)) {
        *distance = h->distance;
        return same;
    }
    if (n < WINDOW) return 0;
    uint64_t seen = h->seen[slot_of(p)];
    if (!seen || seen - 1 >= h->n) return 0;
    *distance = h->n - (seen - 1);
    size_t k = match(h, p, n, *distance);
    return k >= COPY_MIN ? k : 0;
}

static void put_literal(const uint8_t *p, size_t n, dt_wire *out) {
    if (!n) return;
    dt_wire_u64(out, (uint64_t)n << 1);
    dt_wire_put(out, p, n);
}

void dt_history_write(dt_history *h, const uint8_t *p, size_t n, dt_wire *out) {
    dt_wire_u64(out, n);
    size_t from = 0; /* of the literal that is being gathered; its bytes are part of the stream already */
    for (size_t i = 0; i < n;) {
        uint64_t distance = 0;
        size_t k = copy_here(h, p + i, n - i, &distance);
        if (!k) {
            take(h, p + i, 1, n - i);
            i++;
            continue;
        }
        put_literal(p + from, i - from, out);
        dt_wire_u64(out, (uint64_t)k << 1 | 1);
        dt_wire_u64(out, distance == h->distance ? 0 : distance);
        h->distance = distance;
        take(h, p + i, k, n - i);
        i += k;
        from = i;
    }
    put_literal(p + from, n - from, out);
    h->digest = dt_hash_bytes(p, n, h->digest);
}

bool dt_history_alike(const dt_history *a, const dt_history *b) { return a->n == b->n && a->distance == b->distance && a->digest == b->digest; }

void dt_history_follow(dt_history *h, const uint8_t *p, size_t n, const dt_history *other) {
    take(h, p, n, n);
    h->distance = other->distance;
    h->digest = other->digest;
}

static dt_status bad_message(void) { return dt_fail(DT_E_INTERNAL, "a message to a node is damaged: its bytes cannot be restored"); }

static dt_status read_copy(dt_history *h, dt_unwire *u, size_t n, dt_wire *out) {
    uint64_t distance = dt_unwire_u64(u);
    if (distance) h->distance = distance;
    if (u->bad || !reachable(h, h->distance)) return bad_message();
    while (n) { /* at most `distance` at once: a copy may overlap itself; and no further than the ring's end */
        size_t at = (h->n - h->distance) % DT_HISTORY, k = n < h->distance ? n : h->distance;
        if (k > DT_HISTORY - at) k = DT_HISTORY - at;
        dt_wire_put(out, h->ring + at, k);
        append(h, h->ring + at, k);
        n -= k;
    }
    return DT_OK;
}

dt_status dt_history_read(dt_history *h, dt_unwire *u, size_t limit, dt_wire *out) {
    size_t left = dt_unwire_count(u, limit);
    while (left && !u->bad) {
        uint64_t token = dt_unwire_u64(u);
        size_t n = (size_t)(token >> 1);
        if (u->bad || !n || n > left) return bad_message();
        if (token & 1)
            DT_TRY(read_copy(h, u, n, out));
        else {
            if (n > u->n - u->at) return bad_message();
            append(h, u->data + u->at, n);
            dt_wire_put(out, u->data + u->at, n);
            u->at += n;
        }
        left -= n;
    }
    if (u->bad) return bad_message();
    return out->failed ? dt_fail(DT_E_NOMEM, "a message to a node: out of host memory") : DT_OK;
}
