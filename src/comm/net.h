/* Messages between the processes of a run: one process a node, started by mpiexec or srun.
 *
 * MPI is found at run time and opened by one thread, the progress thread, which is the only one that ever calls it. Others hand it requests. Two
 * kinds of traffic:
 *
 *   control  byte strings between two nodes, in order per pair, delivered to `on_message` on the progress thread of the receiver
 *   bulk     a block of memory from one node to another, matched by a key that both sides compute; straight from the sender's memory into the
 *            receiver's; posted in any order
 *   streams  a long block in chunks, that the receiver grants
 *
 * The thread sleeps when nothing is under way and naps between polls when something is: there are more threads than cores.
 *
 * A node that is lost (killed, stopped for longer than the timeout, cut off) is noticed by heartbeats: `on_lost` is called once for it, and every
 * request that waits for it fails with E_NODE, naming it. Where MPI is in its fault-tolerant mode (dt_net_tolerant), a process that ended is noticed at once,
 * the launcher keeps the others, and they go on: see docs/design/040.
 *
 * Threads: everything but start and stop may be called by any thread. Callbacks run on the progress thread and must not wait for it. */
#ifndef DT_COMM_NET_H
#define DT_COMM_NET_H

#include <stdatomic.h>

#include "base/status.h"

enum { DT_NET_RANKS = 4096 }; /* at most */

typedef struct dt_net_hooks {
    void (*on_message)(void *ctx, int from, const void *data, size_t bytes); /* data is valid during the call only */
    void (*on_lost)(void *ctx, int rank, const char *why);
    void *ctx;
} dt_net_hooks;

typedef struct dt_net_req { /* one bulk request; memory of the caller until it is done */
    _Atomic uint32_t state; /* 0 under way, 1 done, 2 failed: a futex word */
    int peer;
    uint64_t key;
    void *data;
    size_t bytes;
    struct dt_net_req *next; /* the progress thread's */
    void *mpi;
} dt_net_req;

/* Was this process started by mpiexec or srun, as one of several? Looks at the environment only. */
bool dt_net_launched(void);
/* The rank and size that the launcher's environment states (0 of 1 when not launched): known before dt_net_start. */
int dt_net_rank(void);
int dt_net_size(void);

/* Opens MPI, starts the progress thread, shakes hands: all nodes must run the same version with the same op table (`hash`), else E_STATE says
 * which differs. Blocks until all have started (at most `timeout_s` seconds: E_NODE names who is missing). */
dt_status dt_net_start(const dt_net_hooks *hooks, uint64_t hash, double timeout_s) DT_WUR;
bool dt_net_started(void);
bool dt_net_tolerant(void);                            /* does the run outlive a process that is lost? */
void dt_net_stop(void);                                /* waits until what was sent is delivered; finalises MPI; idempotent */
dt_status dt_net_probe(char *text, size_t cap) DT_WUR; /* which library would be used; opens it, starts nothing */
const char *dt_net_library(void);                      /* "MPICH 5.0.0 (libmpi_abi.so.1)", for people; "" before the start */
const char *dt_net_host(int rank);                     /* the host's name; nodes on one host share its cores */
int dt_net_local_size(void);                           /* ranks on this host */
int dt_net_local_rank(void);

/* Control: data is copied before the call returns. Messages from one process to another arrive in the order of the calls, whichever of the two sends them. */
dt_status dt_net_send(int to, const void *data, size_t bytes) DT_WUR;
/* The same message to n nodes, rank 0's privilege: along a tree when there are many. A node that is lost takes those with it that are reached through it. */
dt_status dt_net_multicast(const int *to, int n, const void *data, size_t bytes) DT_WUR;

/* tree.c: where part k of n targets begins, when a process that passes a message on cuts them for its branches */
static inline size_t dt_net_part(size_t n, int branches, int k) { return (n * (size_t)k + (size_t)branches - 1) / (size_t)branches; }
/* Which of n `ranks` a multicast reaches through `rank`; how many, into `below` (room for n). */
int dt_net_below(const int *ranks, int n, int branches, int rank, int *below);

/* Bulk: r, and data, stay the caller's and must live until the wait returns. A send and the receive of the same (pair, key) meet; bytes are equal on
 * both sides. A key may be used again when both are done. */
void dt_net_send_bulk(dt_net_req *r, int to, uint64_t key, const void *data, size_t bytes);
void dt_net_recv_bulk(dt_net_req *r, int from, uint64_t key, void *data, size_t bytes);
dt_status dt_net_wait(dt_net_req *r) DT_WUR;

/* Streams: a long block in chunks, made by its sender and used by its receiver while others of them are under way (stream.c). Chunk i lies at
 * base + (i % slots) * chunk on either side: slots of all chunks are the block itself, fewer are a ring. The owner opens chunks: `open` of them are made (sender),
 * or have room (receiver); with a ring a receiver opens i + slots once chunk i is used, and a sender fills a slot when its old chunk is done. Matched by
 * (pair, key, lane). */
enum { DT_NET_WINDOW = 8 };    /* chunks in flight from one node to another in one collective */
typedef struct dt_net_window { /* what the streams of a collective from (or to) one peer share */
    uint32_t most;             /* in flight at once; DT_NET_WINDOW at most */
    uint32_t used;             /* the progress thread's */
} dt_net_window;
typedef struct dt_net_stream { /* memory of the caller, as are base, window and events, until the wait returns */
    int peer;
    bool receive;
    uint32_t lane;
    uint64_t key;
    char *base;
    size_t bytes, chunk; /* more than none */
    uint32_t n, slots;   /* chunks (set by begin); slots 0: as many */
    dt_net_window *window;
    _Atomic uint32_t *event; /* (n_events,) futex words that change when `done` does */
    int n_events;
    _Atomic uint32_t open, done;         /* chunks, in order; open may be set before the beginning */
    _Atomic bool failed;                 /* the peer is lost: done counts what never came */
    _Atomic uint32_t state;              /* 0 under way, 1 done, 2 failed: a futex word */
    uint32_t posted, told, granted, tag; /* the progress thread's, as is the rest */
    void *handle[DT_NET_WINDOW];
    struct dt_net_stream *next;
} dt_net_stream;
void dt_net_stream_begin(dt_net_stream *s);
void dt_net_stream_open(dt_net_stream *s, uint32_t chunks); /* so many in all */
dt_status dt_net_stream_wait(dt_net_stream *s) DT_WUR;      /* until it is over */
size_t dt_net_chunk(void);                                  /* bytes, the same on all nodes: rank 0's DTORCH_NODE_CHUNK */

/* Memory of a process on the same host is read directly where the kernel allows it (process_vm_readv): one copy, and no thread of the other process
 * takes part. Symmetric, and settled by dt_net_start: either all pairs of a host may, or none. */
bool dt_net_shares(int rank);
typedef struct dt_net_run { /* of the other process's memory */
    uint64_t address;
    size_t bytes;
} dt_net_run;
/* The same of any process, by its number there; how many bytes were read, 0 unless all of them. process.c. */
size_t dt_process_read(int64_t pid, void *to, const dt_net_run *run, int n);
/* Ends a process of this host that is given up (SIGKILL), if it is the one in which `run` holds `value`: its number may be another's by now. With
 * `stopped`, only if it is stopped (SIGSTOP). process.c. */
void dt_process_end(int64_t pid, const dt_net_run *run, uint64_t value, bool stopped);
/* The runs, one after the other, into `to`. */
dt_status dt_net_read(int rank, void *to, const dt_net_run *run, int n) DT_WUR;

typedef struct dt_net_stats {
    uint64_t messages_sent, bytes_sent, messages_received, bytes_received; /* control */
    uint64_t bulk_sent, bulk_received, read;                               /* bytes; read: from other processes' memory */
    uint64_t most_in_flight;                                               /* bytes of streams that MPI had at once */
    uint64_t posted, posted_bytes;                                         /* control messages that this process handed to MPI; others went along the tree */
    uint64_t bells;                                                        /* 1: the processes of the host wake each other (bell.c) */
} dt_net_stats;
void dt_net_stats_get(dt_net_stats *out);

#endif
