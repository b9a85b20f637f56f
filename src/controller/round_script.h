/* How round.c writes down what it learnt: records word by word (match.h), and commits. Of round.c alone. */
#ifndef DT_CONTROLLER_ROUND_SCRIPT_H
#define DT_CONTROLLER_ROUND_SCRIPT_H

#include "controller/engine.h"

#define DONATE_SHIFT 29 /* in a commit's reads: 0, 1, 2 no live call reads it */
#define VALUE(read) ((read) & ~(3u << DONATE_SHIFT))
enum { GONE, NAMED, EITHER };

typedef struct commit {
    dt_order_commit order;
    dt_plan *plan; /* referenced */
    uint32_t at;   /* how many calls were taken before it */
    bool at_once;  /* after the last of them; else when something else than a drop comes */
    uint32_t n_rec, n_read;
    /* in the round's numbers: rec (n_rec,) the live ones first | read (n_read,) the plan's externals first | number (n_numbers,) | out (n_outs,) results */
    uint32_t first;
    uint32_t check, n_check; /* results whose names count: once the script is made */
} commit;

/* A round: as it is recorded, and, cut to size, as a script. */
typedef struct round {
    uint32_t n_rec, n_word, n_ext, n_inner, n_number, n_commit, n_x;
    uint32_t cap_rec, cap_word, cap_ext, cap_inner, cap_commit, cap_x;
    uint64_t *word;
    uint32_t *inner_at, *number_at; /* (n_rec,) first result and first number of a call. While it is recorded */
    uint64_t *ext_layout;           /* (n_ext,) */
    uint8_t *named;                 /* (n_inner,) at its commit: GONE or NAMED */
    commit *commit;
    uint32_t *x; /* commits' numbers */
    /* of a script */
    uint32_t *check;              /* results: inner << 1 | named */
    uint32_t *reads, *ext_reads;  /* (n_inner,), (n_ext,): commits that read the value */
    dt_call **call;               /* (n_call,) every call once, referenced */
    uint32_t *call_count, n_call; /* … and how often */
    uint32_t n_segments, n_dead;
    const dt_mesh *last_mesh;
    bool switched; /* it went over several meshes */
    double seconds;
    struct round *next; /* what came after it last time */
    uint64_t used_at;
    uint32_t tried;
    size_t bytes;
} round;

#endif
