/* What collects for other nodes, and its sending: a stream of entries for each node (plan/remote.h), which goes out in messages.
 *
 * Threads: the controller. */
#ifndef DT_CONTROLLER_TALK_H
#define DT_CONTROLLER_TALK_H

#include "plan/history.h"

typedef struct dt_talk {         /* with one node */
    dt_wire wire, attached;      /* entries, and the bulk data of some of them, to be sent */
    dt_history history, before;  /* before the flush, of a leader */
    size_t shortened;            /* bytes that a leader made of its stream's new part */
    uint64_t sent, seq, request; /* runs; the last one's seq; the last request's id */
} dt_talk;

dt_status dt_talk_start(int nodes) DT_WUR;
dt_talk *dt_talk_with(int node);
dt_wire *dt_talk_entry(int node, int kind); /* a new entry: where its fields go */
bool dt_talk_any(void);                     /* does anything wait to be sent? */
void dt_talk_flush_node(int node);
void dt_talk_flush(void);

/* remote.c */
bool dt_remote_lost(int node);
void dt_remote_lose(int node, const char *why);

#endif
