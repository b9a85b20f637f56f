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
} dt_progress_member;

const dt_mpi *dt_progress_mpi(void);
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

#endif
