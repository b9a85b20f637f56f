/* Records compared word by word with those of before: what repeat.c and round.c share.
 *
 *   script:  word[] = { header, call, input… } per call       input: what (2 bits) << 32 | value
 *            value = e: the e-th value from outside, in the order of their first use | DT_INNER + i: the i-th result
 *
 * The values taken so far are entries of one table (`slot`, by id): which value of the script it is, with a number that tells this attempt from earlier ones.
 * Controller thread only. */
#ifndef DT_CONTROLLER_MATCH_H
#define DT_CONTROLLER_MATCH_H

#include "controller/engine.h"

enum { DT_KNOWN, DT_FIRST, DT_NUMBER, DT_NOTHING }; /* an input: a value met before, one from outside met here, a number, absent */
#define DT_INNER 0x80000000u

typedef struct dt_match {
    /* what is expected */
    const uint64_t *word;
    const uint64_t *ext_layout; /* by value from outside: how it must lie */
    const uint8_t *ext_any;     /* NULL or, by such value, 2: it may lie anyhow */
    /* what was taken */
    uint32_t epoch; /* of the attempt */
    uint32_t at, rec, n_ext, n_inner, n_number;
    dt_gvalue **ext;
    uint32_t *ext_id, *out_id, *site;
    uint64_t *number;
    uint32_t cap_ext, cap_inner, cap_rec, cap_number;
    uint64_t *slot; /* by id: epoch << 32 | value */
    uint32_t n_slot;
} dt_match;

typedef struct dt_why { /* of a mismatch */
    const char *text;
    int input; /* -1: of none */
} dt_why;

bool dt_match_room(dt_match *m, uint32_t n_ext, uint32_t n_inner, uint32_t n_rec, uint32_t n_number);
void dt_match_begin(dt_match *m); /* a new attempt: nothing is taken */
/* Takes the call if it is the next one expected; otherwise nothing has changed. Each value from outside counts one use, for the attempt. */
bool dt_match_call(dt_match *m, const uint64_t *w, dt_why *y);
bool dt_match_slots(dt_match *m, uint32_t id);
void dt_match_free(dt_match *m);

/* There is an entry for the id; false: out of host memory. */
static inline bool dt_match_slot(dt_match *m, uint32_t id) { return DT_LIKELY(id < m->n_slot) || dt_match_slots(m, id); }
static inline uint64_t dt_match_tag(const dt_match *m, uint32_t value) { return (uint64_t)m->epoch << 32 | value; }
static inline bool dt_match_knows(const dt_match *m, uint32_t id) { return id < m->n_slot && m->slot[id] >> 32 == m->epoch; }
static inline bool dt_match_named(const dt_match *m, uint32_t inner) { return m->slot[m->out_id[inner]] == dt_match_tag(m, DT_INNER + inner); }
static inline bool dt_match_lies(const uint64_t *layout, const uint8_t *any, uint32_t e, const dt_gvalue *v) {
    return (any && any[e] == 2) || layout[e] == v->layout;
}

#endif
