/* What the controller and the nodes say to each other: kinds of control messages. Layouts stand where they are written (controller/remote.c,
 * node/node.c); a message is a sequence of entries, each a kind and its fields in plan/serial.h's coding. Those to a node are a stream that plan/history.h shortens. */
#ifndef DT_PLAN_REMOTE_H
#define DT_PLAN_REMOTE_H

enum {
    /* controller -> node */
    DT_M_PLAN = 1,  /* id, first of the nodes that get the same, plan and steps (plan/alike.c) */
    DT_M_DROP_PLAN, /* id */
    DT_M_RUN,   /* plan id, seq since the last run, numbers and sites that differ from its last run's; per program: ids and offsets of inputs, ids of results */
    DT_M_FREE,  /* buffer id */
    DT_M_HOST,  /* buffer id, device, bytes, 0: data; or 1: they are attached; or 2: there are none, the device is simulated */
    DT_M_OPEN,  /* request id, file id, path, size, bytes of the head, their checksum */
    DT_M_CLOSE, /* file id */
    DT_M_READ, /* buffer id, device, site, dtype, elements, 1 and request id or 0, blocks; per block: file id, byte, element, dimensions (size, stride in the file,
                     stride in the part), bytes to check (0: none; else where, and the checksum) */
    DT_M_POISON,  /* buffer id, device, status, site, text */
    DT_M_FETCH,   /* request id (here and below: since the last one), buffer id, device, offset, view */
    DT_M_SYNC,    /* request id */
    DT_M_LIMIT,   /* what (DT_LIMIT…), device, bytes */
    DT_M_STATS,   /* request id, device, 1: and begin new peaks */
    DT_M_THREADS, /* how many threads all devices of a node share */
    DT_M_SIM,     /* devices a node holds, bytes of each: a simulation begins */
    DT_M_TRACE,   /* 1: begin to log events; or 0, request id */
    DT_M_STOP,
    /* node -> controller */
    DT_R_DATA = 64, /* request id, status; then bytes, data; or site, text */
    DT_R_DONE,      /* request id, status; site, text when it failed */
    DT_R_STATS,     /* request id, statistics */
    DT_R_TRACE,     /* request id, now, events dropped; per event: lane, name, begin, length, a, b, site, kind, device + 1; an empty lane */
    DT_R_CREDIT,    /* runs taken up so far; with any other answer, alone only when a quarter of the credits is not told */
    DT_R_MOVED,     /* kind, mesh dimension, site, sender, bytes: of exchanges, since the last time. Before a sync's DONE */
};
enum { DT_LIMIT, DT_LIMIT_BUDGET, DT_LIMIT_BUDGETS /* every device's of the node */ };
enum { DT_CREDITS = 1024 /* runs that a node may have before it: bounds memory there */ };

#endif
