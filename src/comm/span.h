/* What the files of collectives between processes share: span.c (meeting, messages), span_blocks.c (what goes from machine to machine), span_work.c
 * (forming and using it), span_rows.c (exchanges of rows). */
#ifndef DT_COMM_SPAN_H
#define DT_COMM_SPAN_H

#include <string.h>

#include "comm/comm.h"
#include "comm/net.h"
#include "plan/nodes.h"

enum { DT_SPAN_ALIGN = 64, DT_SPAN_PIECE = 128 << 10 };

static inline int dt_span_node(const dt_coll *c, int party) { return dt_device_node(c->party[party].device); }
int dt_span_machine(int node); /* the first node of those that read each other's memory */

/* Memory of messages: large blocks are kept for the next collective, since fresh pages cost more than the copy into them. */
void *dt_span_memory_get(size_t bytes, size_t *cap);
void dt_span_memory_put(void *p, size_t cap);

/* ---- blocks ---------------------------------------------------------------------------------------------------------------------------------- */
typedef struct dt_span_block { /* sources first … first + leaves of a pull, added up: what one machine needs of another */
    const dt_pull *pull;
    int first, leaves, users;
    int party, to, from; /* who asked for it first, on which node, and the node that makes it */
    dt_dtype dtype;
    size_t bytes, at; /* at: in the message from `from` to `to` */
    int lane;         /* on the node that gets it: its number there, -1: none */
} dt_span_block;
typedef struct dt_span_list { /* all that a machine needs from others in one phase; the same on every node */
    int n, cap;
    dt_span_block *block;
    size_t *total; /* (dt_nodes,) bytes of the message from each */
} dt_span_list;
/* machine: nodes that share memory count as one, named by the first; else every node is one of its own. */
dt_status dt_span_blocks(const dt_coll *c, int party, int phase, bool machines, int machine, dt_span_list *out) DT_WUR;
void dt_span_list_free(dt_span_list *l);
/* How many sources of p, beginning with the k-th, come as one block to `machine`; *there: they lie elsewhere. */
int dt_span_leaves(const dt_coll *c, const dt_pull *p, int k, bool machines, int machine, bool *there);
/* The block that has these sources for a pull on `node`; there is one. */
dt_span_block *dt_span_find(const dt_coll *c, const dt_span_list *l, const dt_pull *p, int first, int leaves, int node);
bool dt_span_whole(const dt_pull *p); /* a copy into memory without gaps: it can arrive in place */

/* ---- work: a view formed from operands, chunk by chunk ------------------------------------------------------------------------------------------- */
typedef struct dt_span_lane { /* a block on its way from or to another machine */
    dt_net_stream stream;
    const dt_span_block *block;
    int party; /* who forms or uses it here */
    char *ring;
    size_t cap;
} dt_span_lane;
typedef struct dt_span_operand {
    dt_view view; /* memory of this process; of a lane or of another process: without gaps, data unset */
    int leaves;
    dt_span_lane *lane;
    bool foreign;     /* memory of another process on this host */
    bool flat;        /* … without gaps, read in pieces */
    int node;         /* whose */
    uint64_t address; /* there */
} dt_span_operand;
typedef struct dt_span_work {
    dt_view dst;
    dt_span_lane *into; /* the result goes there: dst has no data */
    dt_reduce op;
    int n_op, n_foreign;
    dt_span_operand *op_list;
    bool flat, late; /* late: when the other nodes of this machine have theirs */
    int64_t chunk;   /* elements */
    uint32_t next, n;
    char *room; /* of foreign operands: whole ones, then pieces */
    size_t cap;
} dt_span_work;
typedef struct dt_span_tools {
    const dt_backend *b;
    dt_team *team;
    const char *kind; /* for messages */
    bool idle;        /* something has failed: chunks are passed on, but not computed */
} dt_span_tools;
int64_t dt_span_chunk(const dt_pull *p, dt_reduce op);                     /* elements of a chunk: the same for all blocks of a pull */
void dt_span_choose(dt_span_work *w);                                      /* chunk, n and flat, from the operands */
dt_status dt_span_prepare(const dt_span_tools *t, dt_span_work *w) DT_WUR; /* reads what cannot be read in pieces */
bool dt_span_ready(const dt_span_work *w);                                 /* can the next chunk be formed? */
dt_status dt_span_step(const dt_span_tools *t, dt_span_work *w) DT_WUR;    /* forms it */
void dt_span_room_free(dt_span_work *w);
void dt_span_work_free(dt_span_work *w);

/* span_rows.c */
dt_error_t *dt_span_exchange(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, const int64_t *counts, void *out,
                             dt_error_t *error);

/* ---- meeting ------------------------------------------------------------------------------------------------------------------------------------- */
/* A group of parties is a collective of its own; `party` is any of it. */
int dt_span_other_nodes(const dt_coll *c, int party, int *out);                       /* ascending; how many */
bool dt_span_leads(const dt_coll *c, int party, uint32_t *n);                         /* is it the first party here? *n: the group's parties here */
int dt_span_parties(const dt_coll *c, int party, int node);                           /* the group's on a node */
int dt_span_here(const dt_coll *c, int party);                                        /* which of them it is */
dt_error_t *dt_span_local_error(const dt_coll *c, int party, const dt_rendezvous *r); /* of the parties here, borrowed */
void **dt_span_staging(const dt_coll *c, int party, const dt_rendezvous *r);          /* (2,) what they share */
uint32_t dt_span_window(const dt_coll *c); /* chunks in flight for each group, so that a collective has DT_NET_WINDOW from one node to another */
/* Of the group's messages. Bits: 0 phase, 1 … 19 the collective, then its run, DT_KEY_GROUP … 60 the group, 61 … 63 what else is said. */
uint64_t dt_span_key(const dt_coll *c, int party, const dt_rendezvous *r);
#define DT_SPAN_READ (1ull << 62) /* word that a node has read */

enum { DT_SPAN_TEXT = 504 };
typedef struct dt_span_head { /* of a message: did an input fail? */
    int32_t status;
    uint32_t site;
    char text[DT_SPAN_TEXT];
} dt_span_head;
void dt_span_head_write(char *to, const dt_error_t *e);
dt_error_t *dt_span_head_read(const char *from); /* NULL: nothing failed */

#endif
