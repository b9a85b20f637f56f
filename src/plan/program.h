/* Plans and programs: the only thing that controller, node and worker share.
 *
 * A plan is what a subgraph becomes: one program per device, a list of instructions over slots. It holds no data and no addresses, so it is
 * built once and run many times; a run binds slots to memory:
 *
 *   base[slot]:  [ external inputs … | escaping outputs … | temporaries (arena + offset) … | numbers ]
 *
 * An operand is (slot, byte offset) plus a view template; the worker patches the address in and calls the kernel. Each program has two
 * queues, compute and communication; within a queue instructions run in order, across queues an instruction waits until a given number of
 * the other queue's instructions (of the same run) are done. Between runs both queues join.
 *
 * Errors travel by slot: an instruction with a failed input does not run and its outputs inherit the error; at the run's end the errors of
 * escaping slots are stored in their buffers.
 *
 * Threads: a plan is immutable but for the address fields of its views, which only the thread of that device and queue writes. Buffers'
 * `live` counts are the controller's alone; `refs` and `error` are atomic. */
#ifndef DT_PLAN_PROGRAM_H
#define DT_PLAN_PROGRAM_H

#include "plan/record.h"

/* Device memory that outlives a run. */
typedef struct dt_buf {
    /* one cache line for what simulated devices and binding look at */
    _Atomic uint32_t refs; /* controller + runs in flight; the struct (and host) is freed at 0 */
    uint32_t live;         /* controller: values that lie in it; the memory returns to the allocator at 0 */
    void *data;
    size_t bytes; /* as allocated; 0 when `host` owns the memory */
    dt_device device;
    bool held; /* no value lies in it, but it is still read elsewhere */
    _Atomic(dt_error_t *) error;
    _Atomic uint32_t *block;       /* made with others in one allocation, which begins with how many are left; NULL: alone */
    double written_at, read_until; /* of a simulated device: virtual seconds of the last write, and of the last read elsewhere */
    dt_hostbuf *host;              /* adopted host memory: read-only */
    uint64_t id;                   /* of memory on another node; 0: here, or not known there yet */
    /* Other devices may read it (one-sided transfers). The controller counts the runs that write it and those elsewhere that read it as it pushes
     * them; workers count them as they finish. A reader elsewhere waits until all writes before it are done; a run that writes it again waits for
     * all reads before it. Both are for runs pushed earlier, so nobody waits in a circle. Futex words. */
    uint32_t n_written, n_read;
    _Atomic uint32_t written, read, waiting;
    uint32_t group; /* controller, while it looks for memory */
} dt_buf;

typedef struct dt_operand {
    int32_t slot;   /* -1: absent */
    int64_t offset; /* bytes */
} dt_operand;

/* ---- collectives: every redistribution is a set of pulls -------------------------------------------------------------------------
 * Each party reads what it needs from the parties' inputs (phase 0), reducing over the sources of a pull in the order given, then, in an
 * all-reduce, from the parties' outputs (phase 1). All parties meet before phase 0, between the phases, and at the end, so that nobody's
 * memory changes while it is read. */
typedef struct dt_pull_src {
    int32_t party;
    bool from_out;
    const dt_view *view; /* data unset; NULL: the pull's */
    int64_t offset;      /* bytes from the party's operand, besides the pull's `shift` */
} dt_pull_src;
/* Views, sources and whole lists of pulls are shared where they are equal, so that a plan grows with its devices and not with their pairs. */
typedef struct dt_pull {
    const dt_view *dst; /* data unset */
    int64_t offset;
    int n_src; /* 0: fill with zero */
    const dt_pull_src *src;
    const dt_view *view; /* of the sources that have none of their own */
    int64_t shift;
} dt_pull;
static inline const dt_view *dt_pull_view(const dt_pull *p, int k) { return p->src[k].view ? p->src[k].view : p->view; }
static inline int64_t dt_pull_offset(const dt_pull *p, int k) { return p->src[k].offset + p->shift; }
typedef struct dt_party {
    dt_device device;
    int32_t group;      /* who it meets: parties of other groups exchange nothing with it */
    int64_t bytes_sent; /* what the others read from it */
    int n_pulls[2];
    int32_t list[2];  /* the first party with this list of pulls: itself, or an earlier one */
    dt_pull *pull[2]; /* in phase 1 a list may contain the party's own output: nothing to do */
} dt_party;
/* An exchange: every party sends rows to the parties that sit with it along one mesh dimension, and how many is known at run time only. What rows
 * and counts are, and in which orders they lie: ops/expert.h. A party's operands are its rows and the counts of its shards. */
typedef struct dt_exchange_party {
    int at;            /* its own position along the mesh dimension */
    int *peer;         /* (groups,) the parties at all positions */
    int64_t shards;    /* buffers that it holds side by side */
    int64_t row_bytes; /* alike for all peers */
} dt_exchange_party;
typedef struct dt_exchange {
    bool back; /* from the receivers to the senders */
    int groups;
    int64_t rows_in, rows_out, n_experts; /* rows of a buffer */
    dt_exchange_party *party;             /* (n,) */
} dt_exchange;
typedef struct dt_coll {
    int n, n_groups;
    int *member, *first; /* the parties of group g: member[first[g]] … member[first[g + 1] - 1], ascending. NULL: one group */
    int index;           /* index: which rendezvous of the run; -1: a party of one, nobody to meet */
    uint32_t node;       /* of the subgraph, for its site */
    dt_reduce reduce;
    bool two_phase;
    bool spans;       /* parties live on several nodes */
    bool pulled;      /* one-sided: the sources of a pull are the instruction's inputs by number; index -1 */
    const char *kind; /* for reports */
    const char *mesh_dim;
    int64_t bytes_moved; /* between devices, all parties together */
    dt_party *party;
    const dt_exchange *exchange; /* then there are no pulls, and the bytes are counted as they are read; else NULL */
} dt_coll;
/* Fills `member` and `first` from the parties' groups and n_groups. */
dt_status dt_coll_group(dt_coll *c, dt_arena *arena) DT_WUR;
bool dt_coll_meet_alike(const dt_coll *a, const dt_coll *b); /* the same devices in the same groups */
enum { DT_KEY_RUN = 20, DT_KEY_GROUP = 40 };                 /* bits of a key: comm/span.h */
enum { DT_MEETINGS = 16 };                                   /* counters of a group: ten, and a distance */
typedef struct dt_rendezvous {
    _Atomic uint32_t *arrived;                                  /* (n_groups, DT_MEETINGS) */
    uint64_t key;                                               /* for messages between nodes: the same on all of them */
    void **staging;                                             /* (n_groups, 2) of a collective that spans nodes */
    void **in, **out;                                           /* (n,) addresses of the parties' operands */
    dt_error_t **error;                                         /* (n,) errors of the parties' inputs; borrowed */
    void (*moved)(void *ctx, dt_device sender, uint64_t bytes); /* exchanges report what they read of others; any thread */
    void *moved_ctx;
} dt_rendezvous;

/* ---- instructions ---------------------------------------------------------------------------------------------------------------- */
typedef enum dt_instr_kind { DT_I_KERNEL, DT_I_COLL } dt_instr_kind;
typedef struct dt_instr {
    uint8_t kind, queue; /* queue 0 compute, 1 communication */
    uint16_t n_in, n_out;
    uint32_t node; /* which node of the subgraph: its site is a binding of the run */
    uint32_t wait; /* instructions of the other queue that must be done */
    uint32_t also; /* a bucket of collectives, or of kernels: this many instructions behind this one run together with it */
    dt_kernel_fn fn;
    dt_kctx ctx;         /* views point to `view` */
    dt_view *view;       /* (n_in + n_out,) */
    dt_operand *operand; /* (n_in + n_out,) */
    dt_operand scratch;  /* slot -1: none */
    const dt_coll *coll;
    const struct dt_fused *fused; /* a fused group, else NULL */
    int party;
} dt_instr;

typedef struct dt_bind_in { /* slot k < n_ext: part `pos` of external value `value` */
    uint32_t value, pos;
    bool written;     /* the program writes into it: it is donated */
    dt_device device; /* that holds this part, also where one simulated device's memory stands for all; not sent to other nodes */
} dt_bind_in;
typedef struct dt_program {
    dt_device device;
    int n_slots, n_ext, n_out, n_temp; /* slots: ext, out, temp, then one for the run's numbers */
    dt_bind_in *ext;
    size_t *out_bytes;   /* (n_out,) */
    size_t *temp_offset; /* (n_temp,) into the arena */
    size_t arena_bytes;
    int n_instr[2];
    dt_instr *instr[2];
    _Atomic uint32_t ns; /* what a run took when it was last measured; 0: not yet. Its worker's */
} dt_program;

/* Where part `pos` of an escaping value lies after the run. */
typedef struct dt_part_plan {
    int32_t program, slot; /* slot in [0, n_ext + n_out) */
    int64_t offset;
    bool contiguous;
    int64_t *stride; /* (ndim,) when not contiguous */
} dt_part_plan;
typedef struct dt_out_plan {
    uint32_t node, out; /* which value of the subgraph */
    uint64_t layout;
    dt_part_plan *part; /* (mesh->n,) */
} dt_out_plan;
typedef struct dt_shared_part { /* of a part that stands for all */
    int64_t offset;
    int32_t slot;
} dt_shared_part;
typedef struct dt_number_plan { /* number k of the run, converted from input `in` of node `node` */
    uint32_t node, in;
    uint8_t from, to; /* dt_dtype */
} dt_number_plan;

typedef struct dt_told {
    int node, first, end;
} dt_told;

typedef struct dt_plan {
    dt_hlink link;
    _Atomic uint32_t refs;
    uint64_t *key;
    size_t n_key;
    uint64_t used_at; /* controller: for LRU */
    uint64_t id;      /* what nodes call it; 0: none has it */
    int n_nodes, n_programs, n_outs, n_numbers, n_colls, n_ext;
    dt_program *program;
    dt_out_plan *out;
    dt_number_plan *number;
    dt_coll **coll;
    dt_call **call;    /* (n_nodes,) referenced: the key holds their addresses */
    void *script;      /* the controller's: the records it was found for (controller/repeat.c) */
    uint32_t n_rounds; /* … and how many times rounds have it (controller/round.c) */
    /* Of the last run that other nodes took part in: sent only when they change. NULL before the first. Main thread. */
    uint64_t *last_numbers;
    uint32_t *last_site;
    dt_told *told; /* (n_told,) other nodes that take part, and their programs in told_order; NULL before the first run */
    int n_told, *told_order;
    _Atomic int together;                        /* worker/together.c: one thread runs all programs: 1; 0: not known yet; -1: no */
    _Atomic uint32_t together_ns, together_slow; /* the least that this took, 0: not yet; how often it was found not to be worth it */
    void *sim;                                   /* backend/sim's prices, in the arena */
    /* Simulated devices that do the same: once this is known, n_programs is 1, and the first program stands for those of `n_alike` that do anything; the others are there still, but
     * nothing is bound to them, and the parts of the results are one part. 0: each for itself. */
    int n_alike, stands; /* stands: what was the first program's number */
    /* Of that program, what binding reads in a few lines instead of many: */
    dt_shared_part *shared; /* (n_outs,) where the results' one part lies */
    uint32_t *shared_ext;   /* (its n_ext,) the external values */
    void *counts;           /* controller/report.c: where its collectives are counted, in the arena. NULL: they were not yet */
    dt_arena arena;
} dt_plan;
void dt_plan_unref(dt_plan *p); /* any thread */

/* ---- a run: a plan and its bindings -------------------------------------------------------------------------------------------------- */
typedef struct dt_run_part { /* one program's bindings */
    struct dt_run *run;
    int program;
    void **base;              /* (n_slots,) */
    dt_buf **buf;             /* (n_ext + n_out,) referenced */
    uint32_t *need;           /* (n_ext,) of another device: writes to wait for; written here: reads to wait for */
    dt_error_t **error;       /* (n_slots,) referenced; published to the other queue by `done` */
    _Atomic uint32_t done[2]; /* per queue: twice the instructions finished, plus one while the other queue sleeps: futex words */
    _Atomic uint32_t queues;  /* queues still running */
    dt_error_t *failed;       /* nothing could be bound: no kernel runs, every result fails with this; collectives still meet */
} dt_run_part;
typedef struct dt_run {
    dt_plan *plan;
    _Atomic bool together;  /* one thread may still run all its parts (worker/together.c) */
    size_t capacity;        /* bytes of the block that the run and its arrays lie in */
    uint64_t seq;           /* of runs that other nodes take part in: counted by the controller */
    _Atomic uint32_t parts; /* programs still running */
    dt_run_part *part;      /* (n_programs,) */
    uint64_t *numbers;
    uint32_t *site;      /* (n_nodes,) */
    dt_rendezvous *meet; /* (n_colls,) NULL: simulated devices */
} dt_run;

#endif
