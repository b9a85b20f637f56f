/* See talk.h. */
#include "controller/talk.h"

#include <string.h>

#include "comm/net.h"
#include "plan/program.h"
#include "plan/trace.h"

enum { FLUSH_BYTES = 256 << 10 };

static struct {
    dt_talk *with;          /* (nodes,) */
    int nodes, *group;      /* (nodes,) those that are told the same */
    int *leader, n_leaders; /* (nodes,) in a flush: whose streams were shortened first */
    dt_wire *message;       /* (nodes,) */
} talk;

dt_status dt_talk_start(int nodes) {
    talk.with = dt_calloc((size_t)nodes, sizeof *talk.with);
    talk.message = dt_calloc((size_t)nodes, sizeof *talk.message);
    talk.group = dt_calloc((size_t)nodes, sizeof *talk.group);
    talk.leader = dt_calloc((size_t)nodes, sizeof *talk.leader);
    if (!talk.with || !talk.message || !talk.group || !talk.leader) return dt_fail(DT_E_NOMEM, "messages to nodes: out of host memory");
    for (int i = 1; i < nodes; i++) DT_TRY(dt_history_init(&talk.with[i].history, true));
    talk.nodes = nodes;
    return DT_OK;
}

dt_talk *dt_talk_with(int node) { return &talk.with[node]; }

/* The new part of a node's stream as it is sent. Made once for nodes whose streams are alike: by the first of them, a leader of this flush. */
static void shorten(int node, dt_wire *w) {
    dt_talk *t = &talk.with[node];
    for (int i = 0; i < talk.n_leaders; i++) {
        int k = talk.leader[i];
        const dt_talk *o = &talk.with[k];
        if (o->wire.n != t->wire.n || !dt_history_alike(&o->before, &t->history) || memcmp(o->wire.data, t->wire.data, t->wire.n)) continue;
        dt_history_follow(&t->history, t->wire.data, t->wire.n, &o->history);
        dt_wire_put(w, talk.message[k].data, o->shortened);
        return;
    }
    talk.leader[talk.n_leaders++] = node;
    t->before = t->history;
    dt_history_write(&t->history, t->wire.data, t->wire.n, w);
    t->shortened = w->n;
}

/* What collected for a node, as one message. False: out of host memory. */
static bool message_of(int node, dt_wire *w) {
    dt_talk *t = &talk.with[node];
    w->n = 0;
    w->failed = t->wire.failed || t->attached.failed;
    if (w->failed) return false;
    shorten(node, w);
    dt_wire_put(w, t->attached.data, t->attached.n);
    return !w->failed;
}

static void begin_anew(int node) {
    dt_talk *t = &talk.with[node];
    t->wire.n = t->attached.n = 0;
    t->wire.failed = t->attached.failed = false;
    if (t->wire.cap > 4 * FLUSH_BYTES) dt_wire_free(&t->wire);
    if (t->attached.cap > FLUSH_BYTES) dt_wire_free(&t->attached);
}

static void send_to(const int *node, int n, const dt_wire *w, bool whole) {
    if (whole && dt_net_multicast(node, n, w->data, w->n) == DT_OK) return;
    for (int i = 0; i < n; i++) dt_remote_lose(node[i], "a message to a node was lost: out of host memory");
}

static void sent(dt_wire *w) { /* it will not be sent again; its memory is used again, unless it is large */
    w->n = 0;
    if (w->cap > 4096) dt_wire_free(w);
}

void dt_talk_flush_node(int node) {
    if (!talk.with[node].wire.n) return;
    talk.n_leaders = 0;
    bool whole = message_of(node, &talk.message[node]);
    send_to(&node, 1, &talk.message[node], whole);
    sent(&talk.message[node]);
    begin_anew(node);
}

bool dt_talk_any(void) {
    for (int i = 1; i < talk.nodes; i++)
        if (talk.with[i].wire.n) return true;
    return false;
}

/* Nodes that are told the same, as those of a mesh mostly are, get one message along a tree. */
void dt_talk_flush(void) {
    uint64_t begin = dt_tracing() ? dt_trace_now() : 0, told = 0, bytes = 0;
    talk.n_leaders = 0;
    for (int i = 1; i < talk.nodes; i++)
        if (talk.with[i].wire.n && !message_of(i, &talk.message[i])) {
            send_to(&i, 1, &talk.message[i], false);
            sent(&talk.message[i]);
        }
    for (int i = 1; i < talk.nodes; i++)
        if (talk.with[i].wire.n) begin_anew(i);
    for (int i = 1; i < talk.nodes; i++) {
        dt_wire *w = &talk.message[i];
        int n = 0;
        if (!w->n) continue;
        for (int k = i; k < talk.nodes; k++) {
            const dt_wire *x = &talk.message[k];
            if (x->n == w->n && !memcmp(x->data, w->data, w->n) && (k == i || !dt_remote_lost(k))) talk.group[n++] = k;
        }
        send_to(talk.group, n, w, true);
        told += (uint64_t)n;
        bytes += w->n * (uint64_t)n;
        for (int k = n - 1; k >= 0; k--) sent(&talk.message[talk.group[k]]);
    }
    if (DT_UNLIKELY(begin && told)) dt_trace_add(DT_TRACE_MESSAGE, "message", 0, begin, bytes, told);
}

dt_wire *dt_talk_entry(int node, int kind) {
    dt_talk *t = &talk.with[node];
    if (DT_UNLIKELY(t->wire.n + t->attached.n > FLUSH_BYTES)) dt_talk_flush_node(node);
    dt_wire_u64(&t->wire, (uint64_t)kind);
    return &t->wire;
}
