/* The controller's inside: what its files share. For the thread between dt_engine_enter and dt_engine_leave only, unless said otherwise: the
 * controller thread, or a thread that waits for a value (help.c). */
#ifndef DT_CONTROLLER_ENGINE_H
#define DT_CONTROLLER_ENGINE_H

#include "controller/controller.h"
#include "passes/passes.h"
#include "plan/source.h"
#include "worker/devices.h"

typedef struct dt_engine {
    dt_ring ring;
    /* values */
    dt_gvalue **value; /* by id */
    uint32_t n_value;
    dt_gvalue *free_values; /* chained through `part` */
    /* the pending subgraph */
    dt_graph graph;
    bool cut;                   /* dispatch before the next call */
    uint64_t rolling, rolling2; /* hash of the last calls' content, for cuts that are the same in every run; the same as it was a call ago */
    /* memory budgets: remat.h */
    bool remat;         /* some device has a budget or a limit: recipes are kept */
    uint32_t n_evicted; /* values without memory */
    uint32_t pin, walk; /* stamps */
    uint64_t calls;     /* dispatched while budgets are on */
    dt_gvalue *with_recipe, *last_recipe;
    /* plans */
    dt_htab plans;
    int wide; /* devices of the last run */
    uint64_t clock;
    dt_engine_stats stats;
    uint32_t fp_mode; /* how the engine's threads round: those who help do as they */
} dt_engine;

extern dt_engine dt_the_engine;

typedef struct dt_held { /* memory of which one part stands for all devices: what a value is while nobody asks for more */
    dt_buf *buf;         /* NULL: v */
    union {
        char *at; /* in it */
        dt_gvalue *v;
    };
} dt_held;
typedef struct dt_io { /* what a run of a plan reads and makes */
    dt_gvalue **ext;   /* (n_ext,) */
    dt_gvalue **out;   /* (n_outs,) without parts yet */
    /* if dt_engine_alike, these may be there instead, or NULL: */
    const dt_held *held;    /* (n_ext,) */
    dt_held *made;          /* (n_outs,) filled in */
    const uint32_t *rec;    /* (n_nodes,) node k's site is site[rec[k]]; numbers are not looked at */
    const uint32_t *site;   /* (n_nodes,) at least one */
    const uint64_t *number; /* (n_numbers,) as in the records */
    uint32_t n_calls;       /* for traces */
} dt_io;

/* dispatch.c */
/* Turn the pending subgraph into a run (or several, if it fails as a whole) and push it; every value is then ready, maybe with an error. */
void dt_engine_dispatch(void); /* all of them, if there are several */
void dt_engine_dispatch_graph(dt_graph *g);
/* Bind p's memory to values and push it. On failure nothing has changed. found: it was in the cache. */
dt_status dt_engine_run_plan(dt_engine *e, const dt_io *io, dt_plan *p, bool found) DT_WUR;
/* Does one device's program stand for all from now on? Until the plan is bound again nothing else changes that. */
bool dt_engine_alike(dt_plan *p);
/* Then: the part of result o that is everybody's. */
static inline const dt_part_plan *dt_part_shared(const dt_plan *p, int o) {
    const dt_out_plan *y = &p->out[o];
    int i = 0, n = p->call[y->node]->out[y->out]->mesh->n;
    while (i + 1 < n && y->part[i].program != p->stands) i++;
    return &y->part[i];
}
dt_status dt_engine_bind_graph(const dt_graph *g, const dt_plan *p, dt_io *io) DT_WUR; /* *io for g's nodes, until the next one */
void dt_dispatch_free(void);
void dt_engine_explain_oom(void); /* oom.c: adds the largest live tensors to the failure's text */

/* values.c */
dt_gvalue *dt_gvalue_new(const dt_meta *meta);
void dt_gvalue_free(dt_gvalue *v); /* its parts and itself */
void dt_gvalue_parts_free(dt_gvalue *v);
void dt_gvalue_release(dt_gvalue *v);                                /* frees it if nobody needs it any more */
dt_status dt_gvalue_parts_shared(dt_gvalue *v) DT_WUR;               /* the array, whose entries are all one part */
dt_part *dt_gvalue_part_shared(dt_gvalue *v, const int64_t *stride); /* that one */
void dt_gvalue_parts_forget(dt_gvalue *v);                           /* the array alone */
void dt_gvalues_forget(void);                                        /* all values there are */
void dt_gvalues_free(void);                                          /* what is kept for values to come */
dt_status dt_gvalue_parts(dt_gvalue *v) DT_WUR;                      /* allocates the array of parts */
dt_part *dt_gvalue_part(dt_gvalue *v, int i, const int64_t *stride); /* its i-th part, in the memory of the array. stride NULL: contiguous */
/* Make v ready with parts that hold nothing but an error. */
void dt_gvalue_poison(dt_gvalue *v, dt_error_t *e);
/* A value of host memory: its parts are views of that memory. */
dt_status dt_gvalue_from_host(dt_gvalue *v, dt_hostbuf *h) DT_WUR;
/* A value of files: each device reads its part. f (NULL: none) gets a part for each that is pushed; its reader adds them up beforehand: mesh->n and one. */
dt_status dt_gvalue_from_files(dt_gvalue *v, const dt_source *s, dt_future *f) DT_WUR;

double dt_call_cost(dt_call *c); /* order.c: seconds of a device, from shapes alone */
/* order.c: a stream over several meshes is cut into segments, and these are dispatched in the order a simulated machine would begin them */
bool dt_order_active(const dt_mesh *m); /* a call on m arrives: does it go to a segment? */
/* The subgraph that the call goes to, and its segment; NULL: out of host memory. from: (n_in,) the inputs' segments, 0 none. */
dt_graph *dt_order_graph(dt_call *c, const uint32_t *from, uint32_t *segment);
void dt_order_cut(uint32_t segment);  /* the open segment is long enough: go on in another */
bool dt_order_is_on(void);            /* calls go to segments */
bool dt_order_same(const dt_mesh *m); /* the last call on a mesh was on m */
bool dt_order_pending(void);
void dt_order_flush(void); /* dispatch everything */
void dt_order_idle(void);  /* the client pauses and the workers are idle */
void dt_order_value_freed(const dt_gvalue *v);
void dt_order_sim(bool begin); /* a simulation begins or ends: all is flushed; it does not know what was before, nor what comes what was in it */
void dt_order_free(void);

/* For controller/round.c. A commit of a segment, to be made again: entry's id and run count from the round's first segment, its times from the round's beginning. */
typedef struct dt_order_commit {
    dt_order_entry entry;
} dt_order_commit;
typedef struct dt_order_state {
    uint32_t id; /* of the next segment */
    double time; /* when what comes may begin: the virtual clock after a flush */
} dt_order_state;
void dt_order_place(dt_order_state *s);
uint32_t dt_order_calls(uint32_t segment);                                    /* how many it has */
void dt_order_replayed(const dt_order_state *from, const dt_order_commit *c); /* c was made again, in a round that began at `from` */
/* A round was replayed: the clock is as if its segments had been ordered. mesh: of its last call on one; switched: it went over several. */
void dt_order_skip(uint32_t n_segments, double seconds, uint32_t n_calls, const dt_mesh *mesh, bool switched);
/* Records of a replayed round are recorded after all: those of segments that were dispatched are ghosts, counted but not run. Meanwhile nothing is committed but these, at
 * their places: before each call those due, which lie in one array, are given. */
void dt_order_ghosts(bool begin);
void dt_order_due(const dt_order_commit *const *due, uint32_t n, uint32_t base);
void dt_order_ghost(uint32_t segment, uint32_t n_gone); /* the call just placed there is one; so many of its results are no more */

/* help.c: who may touch all of this */
void dt_engine_enter(void); /* any thread; sleeps while another is inside */
void dt_engine_leave(void);
uint64_t dt_engine_helped(void); /* how often somebody helped */
void dt_engine_help_begin(void);
void dt_engine_help_end(void); /* waits for those who help; nobody begins to any more */

/* controller.c */
/* Take records up to ring position `until`; false: the next one is STOP. */
bool dt_engine_drain(dt_engine *e, uint64_t until);
dt_gvalue *dt_engine_value(uint32_t id);
bool dt_engine_value_put(uint32_t id, dt_gvalue *v); /* false: out of host memory */
/* A call becomes g's last node; its results are new values that the client names, not yet put under their ids. in, number: by input. An out may be NULL
 * afterwards: out of host memory. */
void dt_engine_node(dt_graph *g, dt_call *c, uint32_t site, dt_gvalue **in, const uint64_t *number, dt_gvalue **out);
/* c is the n-th and last call of a subgraph: does it end here? g: where it is the last node; NULL: how calls are chained does not count. */
bool dt_engine_cut(dt_engine *e, uint32_t n, const dt_call *c, const dt_graph *g);
bool dt_engine_flush_now(void); /* DTORCH_FLUSH: a cut at random */

/* cache.c: plans by key, and why one was not found */
dt_plan *dt_cache_find(dt_engine *e, const dt_graph *g, uint64_t hash);
dt_status dt_cache_add(dt_engine *e, const dt_graph *g, dt_plan *p, uint64_t hash) DT_WUR;
void dt_cache_used(dt_engine *e, dt_plan *p);
void dt_cache_missed(dt_engine *e, const dt_graph *g); /* g needs a new plan: says what the likest one has different */
void dt_cache_replayed(uint32_t calls);
/* A repeat ended at a call that differs: `was` was expected (NULL: nothing), `is` came (NULL: none); input: which of its inputs, -1 none. */
void dt_cache_mismatch(const char *text, const dt_call *was, const dt_call *is, int input, uint32_t site);
void dt_cache_free(dt_engine *e);
void dt_cache_forget_simulated(dt_engine *e); /* plans of simulated devices, with what repeats of them */

/* report.c */
/* Counts the collectives of a run that is about to be pushed. rec not NULL: node k's site is site[rec[k]]. meet NULL: nobody meets; else it gets what dt_comm_moved wants. */
void dt_comm_count(dt_plan *p, const uint32_t *site, const uint32_t *rec, dt_rendezvous *meet);
void dt_comm_moved_there(const char *kind, const char *mesh_dim, uint32_t site, dt_device sender, uint64_t bytes); /* the same, of another node */
void dt_comm_moved(void *entry, dt_device sender, uint64_t bytes); /* bytes known only at run time; any thread */
/* Of a log of n entries so far, `each` bytes long, whose last `size` lie in a ring: those still there into out, oldest first, cap at most. Returns how many. The
 * log's lock is held. */
size_t dt_log_last(const void *ring, size_t each, size_t size, uint64_t n, void *out, size_t cap);

#endif
