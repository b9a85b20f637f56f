/* How round.c writes down what it learnt: records word by word (match.h), and commits; and what round_play.c knows of the round that is replayed. Of these two alone. */
#ifndef DT_CONTROLLER_ROUND_SCRIPT_H
#define DT_CONTROLLER_ROUND_SCRIPT_H

#include "controller/match.h"

#define DONATE_SHIFT 29 /* in a commit's reads: 0, 1, 2 no live call reads it */
#define VALUE(read) ((read) & ~(3u << DONATE_SHIFT))
enum { GONE, NAMED };
#define NO_PLACE UINT32_MAX

typedef struct commit {
    dt_order_commit order;
    dt_plan *plan; /* referenced */
    uint32_t at;   /* how many calls were taken before it */
    bool at_once;  /* after the last of them; else when something else than a drop comes */
    uint32_t n_rec, n_read;
    /* in the round's numbers: rec (n_rec,) the live ones first | read (n_read,) the plan's externals first | number (n_numbers,) | out (n_outs,) results */
    uint32_t first;
    /* of a script: */
    uint32_t run, n_run; /* results that it makes or leaves out */
    uint32_t place;      /* of its first result that is made */
    uint32_t end, n_end; /* what nobody reads after it */
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
    uint32_t n_place;
    uint32_t *place,
        *inner_at_place; /* (n_inner,) NO_PLACE: it is never made | (n_place,). Results have places in the order in which they are made; reads name them by these */
    uint32_t *run;       /* of commits, one after another: first result and how many */
    uint8_t *want;       /* (n_inner,) at its commit: 1 it must be gone, 0 must not, 2 may be either */
    uint32_t *last, *ext_last;    /* (n_place,), (n_ext,): 1 + the last commit that reads it, 0: none */
    uint32_t *end;                /* of commits, one after another: values that they are the last to read */
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

/* The round that is replayed. */
typedef struct dt_play {
    round *s;           /* NULL: none */
    dt_match m;         /* what was taken */
    uint32_t commit;    /* the next one */
    dt_held *made;      /* (n_place,) by place. buf NULL: its v is a value of its own, NULL not made yet or no more */
    dt_held *ext;       /* (n_ext,) likewise: v where parts differ */
    uint32_t *from_ext; /* (n_ext,) its segment */
    uint8_t *gone;      /* (n_inner,) the client dropped it */
    uint8_t *gone_at;   /* (n_place,) likewise */
    dt_gvalue **handed; /* (n_inner,) for a round that does not go on */
    uint32_t cap_made, cap_ext, cap_from_ext, cap_gone, cap_gone_at, cap_handed;
    dt_order_state begun; /* of the round under way, also of one that is recorded */
    /* of the commit under way */
    dt_held *held;     /* what the plan reads … */
    dt_gvalue **value; /* … or this, and then its results */
    uint32_t *site;
    uint64_t *number;
    uint32_t cap_held, cap_value, cap_site, cap_number;
} dt_play;
extern dt_play dt_the_play;

static inline uint32_t *dt_commit_numbers(const round *s, const commit *c) { return s->x + c->first; }
static inline uint32_t *dt_commit_outs(const round *s, const commit *c) { return s->x + c->first + c->n_rec + c->n_read + c->plan->n_numbers; }
static inline bool dt_play_unread(const round *s, uint32_t v, uint32_t n_commit) { /* after so many commits nobody will read it */
    return (v & DT_INNER ? s->last[v & ~DT_INNER] : s->ext_last[v]) <= n_commit;
}

bool dt_play_room(const round *s);
/* s is expected from here on; what was taken so far is the same in it. */
void dt_play_expect(round *s);
void dt_play_taken(uint32_t e); /* a value from outside was met */
void dt_play_dropped(dt_engine *e, uint32_t v, uint32_t id);
/* Commits whose place is here. at_once: right after a call. NULL, or why one cannot be made: nothing has changed then. */
const char *dt_play_commits(dt_engine *e, bool at_once);
dt_gvalue *dt_play_value(const commit *c, int o); /* what result o of c is, as a value; NULL: no more */
void dt_play_free(void);

#endif
