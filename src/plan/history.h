/* What was said before need not be said again: the controller's entries to a node repeat from step to step, so a message says which stretch of the stream
 * sent so far comes again, and only what is new in full.
 *
 * Both sides keep the last DT_HISTORY bytes of the stream. A stream of period p, whatever its length, costs one copy "p bytes back". When something
 * changed, the copy goes on behind it at the same distance, so a scalar that differs costs itself.
 *
 *   message:  raw bytes | token …        token: 2n, n bytes            as they are
 *                                               2n + 1, distance       n bytes from `distance` bytes back; 0: as far back as the last copy
 *
 * Threads: one for each side. */
#ifndef DT_PLAN_HISTORY_H
#define DT_PLAN_HISTORY_H

#include "plan/serial.h"

enum { DT_HISTORY = 1 << 21, DT_HISTORY_HASHES = 1 << 14 };

typedef struct dt_history {
    uint8_t *ring;     /* (DT_HISTORY,) */
    uint64_t n;        /* bytes of the stream so far */
    uint64_t distance; /* of the last copy */
    uint64_t digest;   /* writer: of the stream so far */
    uint64_t *seen;    /* (DT_HISTORY_HASHES,) writer: where eight bytes of this hash were last, plus one */
} dt_history;

dt_status dt_history_init(dt_history *h, bool writer) DT_WUR;
void dt_history_free(dt_history *h);
/* The next n bytes of the stream, as a message appended to out. */
void dt_history_write(dt_history *h, const uint8_t *p, size_t n, dt_wire *out);
/* Writers of equal streams, in the same state: a message of one can be sent by the other, which then follows it: h gets the bytes p and is as `other`, that wrote them. */
bool dt_history_alike(const dt_history *a, const dt_history *b);
void dt_history_follow(dt_history *h, const uint8_t *p, size_t n, const dt_history *other);
/* A message's bytes, appended to out, at most `limit`. E_INTERNAL when it is not one. */
dt_status dt_history_read(dt_history *h, dt_unwire *u, size_t limit, dt_wire *out) DT_WUR;

#endif
