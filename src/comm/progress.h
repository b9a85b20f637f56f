/* What the files of the progress thread share: net.c runs it, stream.c moves long blocks. Everything here is called on that thread, unless it says otherwise. */
#ifndef DT_COMM_PROGRESS_H
#define DT_COMM_PROGRESS_H

#include "comm/mpi.h"
#include "comm/net.h"

/* Tags: control messages, blocks that their sender numbers, streams that their receiver numbers. MPI guarantees tags up to 32767. */
enum { DT_TAG_CONTROL = 1, DT_TAG_BULK = 16, DT_TAGS = 16000, DT_TAG_STREAM = DT_TAG_BULK + DT_TAGS };

typedef struct dt_progress_member { /* what all know of a process */
    char host[64];
    int64_t pid;
    uint64_t probe, value; /* the address of `value` in it, to try whether it can be read */
    int64_t bell;          /* what dt_bell_make said there */
} dt_progress_member;

const dt_mpi *dt_progress_mpi(void);
int dt_progress_self(void); /* this process's rank, and how many there are */
int dt_progress_size(void);
bool dt_progress_lost(int rank); /* any thread */
/* lost.c: E_NODE. Any thread but this one. */
dt_status dt_net_lost(int rank, const char *how) DT_WUR;
void dt_progress_bell(void); /* any thread: there is something new to do */
/* A grant for a stream: see stream.c. */
void dt_progress_grant(int to, uint32_t tag, uint64_t key, uint32_t lane, uint32_t chunks);

bool dt_streams_poll(void); /* true: something moved */
bool dt_streams_active(void);
void dt_streams_stats(dt_net_stats *s); /* adds what streams moved; any thread */
void dt_streams_cut(uint64_t chunk);    /* the size of chunks, at the start; 0: what this process's environment says */
void dt_streams_granted(int from, uint32_t tag, uint64_t key, uint32_t lane, uint32_t chunks);
void dt_streams_lose(int rank);

/* process.c: can every process of this one's host be read? */
bool dt_process_readable(const dt_progress_member *member, int n, int self);

/* tree.c: rank 0's messages in its order, also those along a tree. What a node gets of them: the message's number; or the targets' list and the data, whose length is stated. */
uint64_t dt_tree_number(int to); /* rank 0: of its next message to it, which it is */
void dt_tree_deliver(uint64_t seq, const uint8_t *data, size_t bytes);
void dt_tree_pass_on(uint64_t branches, size_t entries, uint64_t data_bytes, const uint8_t *message, size_t bytes);
int dt_tree_below(int rank, int *below); /* rank 0: who may have missed a message when `rank` is lost (room for all) */
/* What it needs of net.c: sends list and data to `to` as a message along the tree, false: no memory; counts what was sent; delivers. */
bool dt_progress_along_tree(int to, uint32_t branches, uint32_t n, const void *list, size_t list_bytes, const void *data, size_t bytes, bool here);
void dt_progress_count(int messages, size_t bytes);
void dt_progress_hand_over(int from, const uint8_t *data, size_t bytes);

/* bell.c: how processes of one host wake each other */
int64_t dt_bell_make(uint64_t owner);                                   /* so that others can find this process's; -1: they cannot */
bool dt_bell_find(int rank, int64_t pid, int64_t bell, uint64_t owner); /* that of another process of this host */
void dt_bell_ring(void);                                                /* this process's; any thread */
void dt_bell_ring_at(int rank);                                         /* nothing if it was not found */
uint32_t dt_bell_rung(void);                                            /* how often; before looking for work */
void dt_bell_sleep(uint32_t rung, int64_t usec);                        /* until it is more often, or the time is up */

#endif
