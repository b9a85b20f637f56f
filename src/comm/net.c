/* The progress thread. See net.h.
 *
 * It owns MPI. Other threads put commands into a list (a lock held for a few instructions) and ring its bell, a futex word; it also polls for
 * messages, because MPI has no bell of its own. How long it naps between polls depends on how long nothing happened: 20 us while something is
 * under way, up to 1 ms after a second of silence.
 *
 * Bulk: the sender announces (key, bytes, tag) by a control message and sends the data under that tag; the receiver posts its receive when it
 * has both the announcement and the request, so that no message is ever unexpected and the data goes straight where it belongs. Small blocks travel
 * inside the announcement. */
#include "comm/net.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/cpu.h"
#include "base/ring.h"
#include "comm/progress.h"

enum { TREE_BYTES = 64 << 20, SMALL = 16 << 10, PIECE = 1 << 30, BEAT_US = 1000000, SPIN_US = 500 };
enum { K_USER = 1, K_BULK, K_SMALL, K_HELLO, K_WELCOME, K_REFUSE, K_BEAT, K_BYE, K_LOST, K_READY, K_GO, K_TREE, K_GRANT };

typedef struct header {
    uint32_t kind, tag;
    uint64_t key, bytes;
} header;

typedef struct command { /* a message to send, or a bulk request */
    struct command *next;
    dt_net_req *req;
    bool receive;
    int to;
    size_t bytes;
    uint8_t data[]; /* header first */
} command;

typedef struct flight { /* an MPI request under way */
    struct flight *next;
    dt_mpi_handle handle;
    command *owned;  /* freed when it is done */
    dt_net_req *req; /* told when its last flight is done */
    int *left;
} flight;

typedef struct announced { /* bulk data that nobody asked for yet */
    struct announced *next;
    int from;
    header h;
    uint8_t data[];
} announced;

typedef struct held { /* a message that came before its predecessor */
    struct held *next;
    uint64_t seq;
    size_t bytes;
    uint8_t data[];
} held;

static struct {
    dt_mpi mpi;
    pthread_t thread;
    dt_net_hooks hooks;
    uint64_t hash;
    _Atomic bool started, stop;
    int rank, size;
    char library[256];
    dt_progress_member *member;
    uint64_t value; /* this process's */
    bool shares;
    pthread_mutex_t lock;
    command *first, **last;
    _Atomic uint32_t bell;
    _Atomic bool asleep;
    int64_t crowd; /* processes here for each core */
    /* the progress thread's own */
    flight *flights;
    announced *early;
    dt_net_req *wanted;
    uint32_t next_tag;
    uint64_t last_heard[DT_NET_RANKS];
    _Atomic bool lost[DT_NET_RANKS], gone[DT_NET_RANKS], ended[DT_NET_RANKS]; /* given up; said goodbye; known to MPI to have failed */
    uint64_t sent_to[DT_NET_RANKS];                                           /* rank 0: messages to each; the others: see held */
    int tree[DT_NET_RANKS], n_tree;                                           /* rank 0: whom the last message along a tree went to, in order; with `lock` */
    uint64_t expected;                                                        /* the number of rank 0's next message */
    held *held;                                                               /* later ones that came first, by another way */
    int hello_left, ready_left; /* rank 0: who has not said hello, and not said whether it can read its host's processes */
    bool all_read;
    uint64_t next_beat, silence_us; /* how long a node may be silent */
    _Atomic uint32_t ready;         /* 0 starting, 1 running, 2 failed: a futex word */
    char failure[512];
    _Atomic uint64_t messages_sent, bytes_sent, messages_received, bytes_received, bulk_sent, bulk_received, read;
} net = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

bool dt_net_tolerant(void) { return atomic_load(&net.started) && atomic_load(&net.ready) == 1 && dt_mpi_tolerant(&net.mpi); }
bool dt_net_started(void) { return atomic_load(&net.started); }
const char *dt_net_library(void) { return net.library; }
const char *dt_net_host(int rank) { return net.member && rank >= 0 && rank < net.size ? net.member[rank].host : ""; }

/* ---- requests from other threads -------------------------------------------------------------------------------------------------------------- */
static void ring_bell(void) {
    atomic_fetch_add(&net.bell, 1);
    if (atomic_load(&net.asleep)) dt_futex_wake(&net.bell, 1);
}
void dt_progress_bell(void) { ring_bell(); }
static void enqueue(command *c) {
    c->next = NULL;
    pthread_mutex_lock(&net.lock);
    if (!net.first) net.last = &net.first;
    *net.last = c;
    net.last = &c->next;
    pthread_mutex_unlock(&net.lock);
    ring_bell();
}

static command *message(int to, header h, const void *data, size_t bytes) {
    command *c = dt_malloc(sizeof *c + sizeof h + bytes);
    if (!c) return NULL;
    *c = (command){.to = to, .bytes = sizeof h + bytes};
    memcpy(c->data, &h, sizeof h);
    if (bytes) memcpy(c->data + sizeof h, data, bytes);
    return c;
}

dt_status dt_net_send(int to, const void *data, size_t bytes) {
    if (bytes > INT_MAX - 64) return dt_fail(DT_E_VALUE, "a control message of %zu bytes: at most 2 GiB", bytes);
    command *c = message(to, (header){K_USER, 0, net.sent_to[to], bytes}, data, bytes);
    if (!c) return dt_fail(DT_E_NOMEM, "a message to node %d: out of host memory", to);
    if (net.rank == 0) net.sent_to[to]++;
    atomic_fetch_add(&net.messages_sent, 1);
    atomic_fetch_add(&net.bytes_sent, bytes);
    enqueue(c);
    return DT_OK;
}

/* A message along the tree: how many targets, the targets (the first is the receiver), the data. */
typedef struct target {
    int64_t rank;
    uint64_t seq; /* of rank 0's messages to it */
} target;

static command *tree_message(const void *targets, size_t n, const void *data, size_t bytes) {
    size_t list = sizeof(target) * n;
    command *c = dt_malloc(sizeof *c + sizeof(header) + list + bytes);
    if (!c) return NULL;
    target first;
    memcpy(&first, targets, sizeof first);
    header h = {K_TREE, (uint32_t)n, 0, bytes};
    *c = (command){.to = (int)first.rank, .bytes = sizeof h + list + bytes};
    memcpy(c->data, &h, sizeof h);
    memcpy(c->data + sizeof h, targets, list);
    if (bytes) memcpy(c->data + sizeof h + list, data, bytes);
    return c;
}

dt_status dt_net_multicast(const int *to, int n, const void *data, size_t bytes) {
    enum { TREE_MIN = 6 };
    if (n < TREE_MIN || bytes > TREE_BYTES || dt_mpi_tolerant(&net.mpi)) { /* who is lost must not take others with it */
        for (int i = 0; i < n; i++) DT_TRY(dt_net_send(to[i], data, bytes));
        return DT_OK;
    }
    target *t = dt_malloc(sizeof *t * (size_t)n);
    if (!t) return dt_fail(DT_E_NOMEM, "a message to %d nodes: out of host memory", n);
    pthread_mutex_lock(&net.lock);
    net.n_tree = n;
    for (int i = 0; i < n; i++) {
        t[i] = (target){to[i], net.sent_to[to[i]]++};
        net.tree[i] = to[i];
    }
    pthread_mutex_unlock(&net.lock);
    int half[3] = {0, (n + 1) / 2, n}; /* two subtrees: their heads pass it on, see pass_on */
    dt_status s = DT_OK;
    for (int k = 0; k < 2 && !s; k++) {
        command *c = tree_message(t + half[k], (size_t)(half[k + 1] - half[k]), data, bytes);
        if (c)
            enqueue(c);
        else
            s = dt_fail(DT_E_NOMEM, "a message to %d nodes: out of host memory", n);
    }
    dt_free(t);
    atomic_fetch_add(&net.messages_sent, (uint64_t)n);
    atomic_fetch_add(&net.bytes_sent, bytes * (size_t)n);
    return s;
}

static void finish(dt_net_req *r, uint32_t state) {
    atomic_store_explicit(&r->state, state, memory_order_release);
    dt_futex_wake(&r->state, INT_MAX);
}

static void bulk(dt_net_req *r, int peer, uint64_t key, void *data, size_t bytes, bool receive) {
    *r = (dt_net_req){.peer = peer, .key = key, .data = data, .bytes = bytes};
    command *c = dt_malloc(sizeof *c);
    if (!c) {
        finish(r, 2);
        return;
    }
    *c = (command){.req = r, .receive = receive, .to = peer};
    enqueue(c);
}
void dt_net_send_bulk(dt_net_req *r, int to, uint64_t key, const void *data, size_t bytes) {
    atomic_fetch_add(&net.bulk_sent, bytes);
    bulk(r, to, key, (void *)(uintptr_t)data, bytes, false);
}
void dt_net_recv_bulk(dt_net_req *r, int from, uint64_t key, void *data, size_t bytes) {
    atomic_fetch_add(&net.bulk_received, bytes);
    bulk(r, from, key, data, bytes, true);
}

dt_status dt_net_wait(dt_net_req *r) {
    uint32_t s;
    while ((s = atomic_load_explicit(&r->state, memory_order_acquire)) == 0) dt_futex_wait(&r->state, 0, -1);
    return s == 1 ? DT_OK : dt_net_lost(r->peer, "");
}

void dt_net_stats_get(dt_net_stats *out) {
    *out =
        (dt_net_stats){atomic_load(&net.messages_sent), atomic_load(&net.bytes_sent),    atomic_load(&net.messages_received), atomic_load(&net.bytes_received),
                       atomic_load(&net.bulk_sent),     atomic_load(&net.bulk_received), .read = atomic_load(&net.read)};
    dt_streams_stats(out);
}

/* ---- memory of processes on this host ---------------------------------------------------------------------------------------------------------- */
static bool same_host(int rank) { return !strcmp(net.member[rank].host, net.member[net.rank].host); }

bool dt_net_shares(int rank) { return net.shares && rank >= 0 && rank < net.size && same_host(rank); }

dt_status dt_net_read(int rank, void *to, const dt_net_run *run, int n) {
    size_t bytes = dt_process_read(net.member[rank].pid, to, run, n);
    atomic_fetch_add(&net.read, bytes);
    return bytes || !n ? DT_OK : dt_net_lost(rank, ": its memory cannot be read");
}

static bool may_share(void) {
    const char *off = getenv("DTORCH_NODE_SHARED");
    return !(off && !strcmp(off, "0"));
}

static bool try_reading(void) { return may_share() && dt_process_readable(net.member, net.size, net.rank); }

/* ---- the progress thread: sending ------------------------------------------------------------------------------------------------------------- */
static void fly(dt_mpi_handle h, command *owned, dt_net_req *req, int *left) {
    flight *f = dt_malloc(sizeof *f);
    if (!f) { /* the message is on its way; its memory is never freed, and a waiter is told now at the latest */
        if (req) finish(req, 2);
        return;
    }
    *f = (flight){net.flights, h, owned, req, left};
    net.flights = f;
}

const dt_mpi *dt_progress_mpi(void) { return &net.mpi; }
bool dt_progress_lost(int rank) { return net.lost[rank]; }

static void post(command *c) {
    dt_mpi_handle h;
    if (net.lost[c->to] || net.mpi.isend(c->data, (int)c->bytes, net.mpi.byte, c->to, DT_TAG_CONTROL, net.mpi.world, &h)) {
        dt_free(c);
        return;
    }
    fly(h, c, NULL, NULL);
}

void dt_progress_grant(int to, uint32_t tag, uint64_t key, uint32_t lane, uint32_t chunks) {
    command *c = message(to, (header){K_GRANT, tag, key, (uint64_t)lane << 32 | chunks}, NULL, 0);
    if (c) post(c);
}

/* The data of a bulk request in pieces that an int can count. */
static void transfer(dt_net_req *r, uint32_t tag, bool receive) {
    int n = (int)((r->bytes + PIECE - 1) / PIECE), *left = dt_malloc(sizeof *left);
    if (!left) {
        finish(r, 2);
        return;
    }
    *left = n;
    for (int i = 0; i < n; i++) {
        char *p = (char *)r->data + (size_t)i * PIECE;
        int bytes = (int)(i + 1 < n ? PIECE : r->bytes - (size_t)i * PIECE);
        dt_mpi_handle h;
        int bad = receive ? net.mpi.irecv(p, bytes, net.mpi.byte, r->peer, (int)tag, net.mpi.world, &h)
                          : net.mpi.isend(p, bytes, net.mpi.byte, r->peer, (int)tag, net.mpi.world, &h);
        if (bad) {
            finish(r, 2);
            return;
        }
        fly(h, NULL, r, left);
    }
}

static void start_send(dt_net_req *r) {
    bool small = r->bytes <= SMALL;
    uint32_t tag = small ? 0 : DT_TAG_BULK + net.next_tag++ % DT_TAGS;
    command *c = net.lost[r->peer] ? NULL : message(r->peer, (header){small ? K_SMALL : K_BULK, tag, r->key, r->bytes}, r->data, small ? r->bytes : 0);
    if (!c) {
        finish(r, 2);
        return;
    }
    post(c);
    if (small)
        finish(r, 1);
    else
        transfer(r, tag, false);
}

/* ---- receiving ------------------------------------------------------------------------------------------------------------------------------------ */
static void meet(dt_net_req *r, const header *h, const void *data) {
    if (h->bytes != r->bytes) {
        finish(r, 2);
        return;
    }
    if (h->kind == K_SMALL) {
        if (r->bytes) memcpy(r->data, data, r->bytes);
        finish(r, 1);
    } else
        transfer(r, h->tag, true);
}

static void start_receive(dt_net_req *r) {
    for (announced **p = &net.early; *p; p = &(*p)->next) {
        announced *a = *p;
        if (a->from != r->peer || a->h.key != r->key) continue;
        *p = a->next;
        meet(r, &a->h, a->data);
        dt_free(a);
        return;
    }
    if (net.lost[r->peer]) {
        finish(r, 2);
        return;
    }
    r->next = net.wanted;
    net.wanted = r;
}

static void on_bulk(int from, const header *h, const void *data, size_t bytes) {
    for (dt_net_req **p = &net.wanted; *p; p = &(*p)->next) {
        dt_net_req *r = *p;
        if (r->peer != from || r->key != h->key) continue;
        *p = r->next;
        meet(r, h, data);
        return;
    }
    announced *a = dt_malloc(sizeof *a + bytes), **end = &net.early;
    if (!a) return;
    *a = (announced){.from = from, .h = *h};
    if (bytes) memcpy(a->data, data, bytes);
    while (*end) end = &(*end)->next; /* in order: a key may come twice */
    *end = a;
}

/* ---- the handshake ------------------------------------------------------------------------------------------------------------------------------- */
typedef struct hello {
    uint64_t hash;
    dt_progress_member who;
} hello;

static void set_ready(uint32_t s) {
    atomic_store(&net.ready, s);
    dt_futex_wake(&net.ready, INT_MAX);
}

static void tell_all(header h, const void *data, size_t bytes) {
    for (int r = 1; r < net.size; r++) {
        command *c = message(r, h, data, bytes);
        if (c) post(c);
    }
}

static void on_hello(int from, const uint8_t *data, size_t bytes) {
    hello h;
    if (net.rank != 0 || bytes != sizeof h) return;
    memcpy(&h, data, sizeof h);
    h.who.host[sizeof h.who.host - 1] = 0;
    net.member[from] = h.who;
    if (h.hash != net.hash) {
        snprintf(net.failure, sizeof net.failure, "node %d (%s) runs another version of dtorch: its operator table differs from this process's", from,
                 h.who.host);
        tell_all((header){K_REFUSE, 0, 0, 0}, net.failure, strlen(net.failure) + 1);
        set_ready(2);
        return;
    }
    if (--net.hello_left) return;
    tell_all((header){K_WELCOME, 0, 0, 0}, net.member, sizeof *net.member * (size_t)net.size);
    net.all_read &= try_reading();
}

static void on_welcome(const uint8_t *data, size_t bytes) {
    if (bytes != sizeof *net.member * (size_t)net.size) return;
    memcpy(net.member, data, bytes);
    for (int r = 0; r < net.size; r++) net.member[r].host[sizeof net.member[r].host - 1] = 0;
    command *c = message(0, (header){K_READY, try_reading(), 0, 0}, NULL, 0);
    if (c) post(c);
}

static void on_ready(bool reads) {
    net.all_read &= reads;
    if (net.rank != 0 || --net.ready_left) return;
    net.shares = net.all_read;
    tell_all((header){K_GO, net.shares, 0, dt_net_chunk()}, NULL, 0);
    set_ready(1);
}

static void hand_over(int from, const uint8_t *data, size_t bytes) {
    atomic_fetch_add(&net.messages_received, 1);
    atomic_fetch_add(&net.bytes_received, bytes);
    net.hooks.on_message(net.hooks.ctx, from, data, bytes);
}

/* Rank 0's messages in its order: one along the tree may be overtaken by a later one that came straight, or by another tree. */
static void deliver(uint64_t seq, const uint8_t *data, size_t bytes) {
    if (seq != net.expected) {
        held *x = seq > net.expected ? dt_malloc(sizeof *x + bytes) : NULL;
        if (!x) return;
        *x = (held){net.held, seq, bytes};
        if (bytes) memcpy(x->data, data, bytes);
        net.held = x;
        return;
    }
    net.expected++;
    hand_over(0, data, bytes);
    for (held **p = &net.held; *p;) {
        held *x = *p;
        if (x->seq != net.expected) {
            p = &x->next;
            continue;
        }
        *p = x->next;
        net.expected++;
        hand_over(0, x->data, x->bytes);
        dt_free(x);
        p = &net.held; /* the next one may stand before it */
    }
}

/* The first target is this process; the others are two subtrees, whose first ones get the message next. */
static void pass_on(const header *h, const uint8_t *data, size_t bytes) {
    size_t n = h->tag, list = sizeof(target) * n;
    if (n == 0 || n > (size_t)net.size || bytes != list + h->bytes) return;
    target mine, next;
    memcpy(&mine, data, sizeof mine);
    if (mine.rank != net.rank) return;
    size_t half[3] = {1, 1 + n / 2, n};
    for (int k = 0; k < 2; k++) {
        if (half[k + 1] == half[k]) continue;
        const uint8_t *from = data + sizeof next * half[k];
        memcpy(&next, from, sizeof next);
        if (next.rank < 0 || next.rank >= net.size) return;
        command *c = tree_message(from, half[k + 1] - half[k], data + list, h->bytes);
        if (!c) return;
        post(c);
    }
    deliver(mine.seq, data + list, h->bytes);
}

static void lose(int rank, const char *why);
static void on_control(int from, const uint8_t *data, size_t bytes) {
    header h;
    if (bytes < sizeof h) return;
    memcpy(&h, data, sizeof h);
    data += sizeof h;
    bytes -= sizeof h;
    switch (h.kind) {
    case K_USER:
        if (from == 0)
            deliver(h.key, data, bytes);
        else
            hand_over(from, data, bytes);
        break;
    case K_GRANT: dt_streams_granted(from, h.tag, h.key, (uint32_t)(h.bytes >> 32), (uint32_t)h.bytes); break;
    case K_TREE: pass_on(&h, data, bytes); break;
    case K_BULK: on_bulk(from, &h, data, 0); break;
    case K_SMALL:
        if (h.bytes == bytes) on_bulk(from, &h, data, bytes);
        break;
    case K_HELLO: on_hello(from, data, bytes); break;
    case K_WELCOME: on_welcome(data, bytes); break;
    case K_READY: on_ready(h.tag); break;
    case K_GO:
        net.shares = h.tag;
        dt_streams_cut(h.bytes);
        set_ready(1);
        break;
    case K_REFUSE:
        snprintf(net.failure, sizeof net.failure, "%.*s", (int)bytes, (const char *)data);
        set_ready(2);
        break;
    case K_BYE: net.gone[from] = true; break;
    case K_LOST:
        if (from == 0 && h.tag == (uint32_t)net.rank) lose(0, "it has given this node up");
        if ((from == 0 || net.rank == 0) && h.tag < (uint32_t)net.size && h.tag != (uint32_t)net.rank) lose((int)h.tag, "another node lost it");
        break;
    default: break;
    }
}

/* In the fault-tolerant mode a receive from anybody fails until this process has taken note of who is dead. */
static void note_failures(void) {
    int rank[DT_NET_RANKS], n = dt_mpi_failed(&net.mpi, rank, DT_NET_RANKS);
    for (int i = 0; i < n; i++)
        if (rank[i] >= 0 && rank[i] < net.size && rank[i] != net.rank) {
            net.ended[rank[i]] = true;
            lose(rank[i], "its process ended");
        }
}

static bool poll_messages(void) {
    bool any = false;
    for (int n = 0; n < 64; n++) {
        int flag = 0, count = 0;
        dt_mpi_status s;
        if (net.mpi.iprobe(net.mpi.any_source, DT_TAG_CONTROL, net.mpi.world, &flag, &s)) {
            note_failures();
            break;
        }
        if (!flag) break;
        if (net.mpi.get_count(&s, net.mpi.byte, &count) || count < 0 || s.source < 0 || s.source >= net.size) break;
        uint8_t *data = dt_malloc((size_t)count + 1);
        if (!data) break; /* later */
        int from = s.source;
        if (!net.mpi.recv(data, count, net.mpi.byte, from, DT_TAG_CONTROL, net.mpi.world, &s)) {
            net.last_heard[from] = now_us();
            on_control(from, data, (size_t)count);
        }
        dt_free(data);
        any = true;
    }
    return any;
}

static bool poll_flights(void) {
    bool any = false;
    for (flight **p = &net.flights; *p;) {
        flight *f = *p;
        int flag = 0;
        dt_mpi_status s;
        int bad = net.mpi.test(&f->handle, &flag, &s);
        if (!bad && !flag) {
            p = &f->next;
            continue;
        }
        *p = f->next;
        any = true;
        if (f->left && --*f->left == 0) {
            dt_free(f->left);
            if (f->req) finish(f->req, bad ? 2 : 1);
        }
        dt_free(f->owned);
        dt_free(f);
    }
    return any;
}

static bool take_commands(void) {
    pthread_mutex_lock(&net.lock);
    command *c = net.first;
    net.first = NULL;
    pthread_mutex_unlock(&net.lock);
    bool any = c != NULL;
    while (c) {
        command *next = c->next;
        if (!c->req)
            post(c);
        else {
            if (c->receive)
                start_receive(c->req);
            else
                start_send(c->req);
            dt_free(c);
        }
        c = next;
    }
    return any;
}

/* Rank 0: the nodes that the last message along the tree reached through `rank` may have missed it, and will miss whatever is said in order after it. */
static void lose_below(int rank) {
    int below[DT_NET_RANKS];
    pthread_mutex_lock(&net.lock);
    int n = dt_net_below(net.tree, net.n_tree, rank, below);
    pthread_mutex_unlock(&net.lock);
    for (int i = 0; i < n; i++) lose(below[i], "messages to it went through a node that is lost");
}

/* ---- heartbeats: nodes and rank 0 tell each other that they live ------------------------------------------------------------------------------ */
static void lose(int rank, const char *why) {
    if (net.lost[rank] || net.gone[rank]) return;
    command *word = net.rank == 0 || net.ended[rank] ? message(net.rank ? 0 : rank, (header){K_LOST, (uint32_t)rank, 0, 0}, NULL, 0) : NULL;
    if (word) post(word);                                                   /* to it, should it live after all; to node 0, which may not know yet */
    if (dt_mpi_tolerant(&net.mpi) && !net.ended[rank] && same_host(rank)) { /* or the launcher would wait for it. Node 0 may be busy: it lives if it can */
        dt_net_run probe = {net.member[rank].probe, sizeof net.value};
        dt_process_end(net.member[rank].pid, &probe, net.member[rank].value, rank == 0);
    }
    char text[256];
    snprintf(text, sizeof text, "node %d (%s) is lost: %s", rank, net.member[rank].host, why);
    net.hooks.on_lost(net.hooks.ctx, rank, text); /* before anybody can hear of it by a request that fails */
    net.lost[rank] = true;
    for (dt_net_req **p = &net.wanted; *p;) {
        dt_net_req *r = *p;
        if (r->peer != rank) {
            p = &r->next;
            continue;
        }
        *p = r->next;
        finish(r, 2);
    }
    for (flight *f = net.flights; f; f = f->next) /* MPI may keep the memory: the flight stays, but nobody waits for it */
        if (f->req && f->req->peer == rank) {
            finish(f->req, 2);
            f->req = NULL;
        }
    dt_streams_lose(rank);
    if (net.rank != 0) return;
    lose_below(rank);
    for (int r = 1; r < net.size; r++) { /* others may wait for it in a collective */
        command *c = r != rank ? message(r, (header){K_LOST, (uint32_t)rank, 0, 0}, NULL, 0) : NULL;
        if (c) post(c);
    }
}

static void beat(uint64_t now) {
    if (now < net.next_beat || atomic_load(&net.ready) != 1) return;
    net.next_beat = now + BEAT_US;
    for (int r = 0; r < net.size; r++) {
        if (r == net.rank || (net.rank && r)) continue; /* everybody with rank 0 */
        if (!net.last_heard[r]) net.last_heard[r] = now;
        if (now - net.last_heard[r] > net.silence_us) {
            lose(r, "it was silent for too long");
            continue;
        }
        command *c = net.lost[r] || net.gone[r] ? NULL : message(r, (header){K_BEAT, 0, 0, 0}, NULL, 0);
        if (c) post(c);
    }
}

/* ---- the thread's life ----------------------------------------------------------------------------------------------------------------------------- */
static bool begin(void) {
    int provided;
    if (net.mpi.init_thread(NULL, NULL, net.mpi.funneled, &provided)) {
        snprintf(net.failure, sizeof net.failure, "MPI (%s) cannot be initialised", net.mpi.file);
        return false;
    }
    net.mpi.set_errhandler(net.mpi.world, net.mpi.errors_return);
    net.mpi.comm_rank(net.mpi.world, &net.rank);
    net.mpi.comm_size(net.mpi.world, &net.size);
    if (net.rank != dt_net_rank() || net.size != dt_net_size()) {
        snprintf(net.failure, sizeof net.failure,
                 "MPI (%s) says rank %d of %d, its launcher's environment %d of %d: the library does not belong to the launcher", net.mpi.file, net.rank,
                 net.size, dt_net_rank(), dt_net_size());
        return false;
    }
    dt_mpi_version(&net.mpi, net.library, sizeof net.library);
    dt_progress_member *me = &net.member[net.rank];
    gethostname(me->host, sizeof me->host - 1);
    me->pid = getpid();
    net.value = now_us() << 16 ^ (uint64_t)me->pid;
    me->probe = (uint64_t)(uintptr_t)&net.value;
    me->value = net.value;
#ifdef PR_SET_PTRACER
    /* where the kernel restricts reading to declared processes; the rights of users still count */
    if (may_share() && dt_net_local_size() > 1) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
    net.crowd = (dt_net_local_size() + dt_cpu_cores() - 1) / dt_cpu_cores();
    net.hello_left = net.ready_left = net.size - 1;
    net.all_read = true;
    if (net.rank == 0) return true;
    hello h = {net.hash, *me};
    command *c = message(0, (header){K_HELLO, 0, 0, 0}, &h, sizeof h);
    if (c) post(c);
    return c != NULL;
}

/* Longer the longer nothing happened: whom a message is for may be computing, on the same cores. And where more processes than cores poll, who would
 * keep each other from working. */
static int64_t nap(uint64_t idle_us) {
    bool waits = net.flights || net.wanted || dt_streams_active();
    return net.crowd * (idle_us < 500 ? 20 : idle_us < 2000 ? 50 : waits || idle_us < 1000000 ? 100 : 1000);
}

/* While chunks are under way the thread gives its turn away rather than sleep: MPI moves data only while it is called. */
static void rest(uint32_t bell, uint64_t idle_us) {
    if (dt_streams_active() && idle_us < SPIN_US && net.crowd == 1) {
        sched_yield();
        return;
    }
    atomic_store(&net.asleep, true);
    dt_futex_wait(&net.bell, bell, nap(idle_us));
    atomic_store(&net.asleep, false);
}

static bool all_gone(void) {
    for (int r = 0; r < net.size; r++)
        if (r != net.rank && !net.gone[r] && !net.lost[r]) return false;
    return true;
}

/* Everything of ours is delivered before the others' goodbyes let MPI be finalised; a run that outlived a node goes without, since Open MPI 5.0's finalising
 * waits now and then for a process that is dead. */
static void end(void) {
    for (int r = 0; r < net.size; r++)
        if (r != net.rank) {
            command *c = message(r, (header){K_BYE, 0, 0, 0}, NULL, 0);
            if (c) post(c);
        }
    bool any_lost = false;
    for (int r = 0; r < net.size; r++) any_lost |= net.lost[r];
    uint64_t until = now_us() + (any_lost && !dt_mpi_tolerant(&net.mpi) ? 500000 : 10000000);
    while ((net.flights || !all_gone()) && now_us() < until) {
        poll_messages();
        poll_flights();
        dt_futex_wait(&net.bell, atomic_load(&net.bell), 50);
    }
    if (!net.flights && all_gone() && (!any_lost || dt_mpi_tolerant(&net.mpi))) {
        if (!any_lost) net.mpi.finalize();
        return;
    }
    fprintf(stderr, "dtorch node %d: not all of the run has ended (%s); giving it up\n", net.rank,
            any_lost      ? "a node is lost"
            : net.flights ? "messages are still under way"
                          : "a node does not answer");
    fflush(stderr);
    net.mpi.abort(net.mpi.world, 1); /* the launcher ends what is left of the run */
}

static void *net_main(void *arg) {
    (void)arg;
    pthread_setname_np(pthread_self(), "dt-net");
    if (!begin()) {
        set_ready(2);
        return NULL;
    }
    uint64_t active = now_us();
    while (!atomic_load(&net.stop)) {
        uint32_t bell = atomic_load(&net.bell);
        bool any = take_commands();
        any |= poll_messages();
        any |= poll_flights();
        any |= dt_streams_poll();
        uint64_t t = now_us();
        beat(t);
        if (any)
            active = t;
        else
            rest(bell, t - active);
    }
    take_commands();
    end();
    return NULL;
}

static dt_status outcome(double timeout_s) {
    if (atomic_load(&net.ready) == 1) return DT_OK;
    if (atomic_load(&net.ready) == 2) return dt_fail(DT_E_STATE, "%s", net.failure);
    DT_STR(missing, 256);
    for (int r = 1; r < net.size && net.rank == 0; r++)
        if (!net.member[r].host[0]) dt_str_add(&missing, "%s%d", missing.len ? ", " : "", r);
    return dt_fail(DT_E_NODE, "not all nodes started within %.0f s: missing %s", timeout_s, missing.len ? missing.buf : "node 0's answer");
}

dt_status dt_net_start(const dt_net_hooks *hooks, uint64_t hash, double timeout_s) {
    if (dt_net_started()) return outcome(timeout_s); /* once is enough: who is missing does not come later */
    DT_TRY(dt_mpi_open(&net.mpi));
    net.hooks = *hooks;
    net.hash = hash;
    const char *silence = getenv("DTORCH_NODE_TIMEOUT");
    net.silence_us = silence && atof(silence) > 0 ? (uint64_t)(atof(silence) * 1e6) : 8000000;
    dt_streams_cut(0);
    net.size = dt_net_size();
    net.member = dt_calloc((size_t)net.size, sizeof *net.member);
    if (!net.member || pthread_create(&net.thread, NULL, net_main, NULL)) return dt_fail(DT_E_NOMEM, "cannot start the thread for MPI");
    atomic_store(&net.started, true);
    uint64_t until = now_us() + (uint64_t)(timeout_s * 1e6);
    while (!atomic_load(&net.ready) && now_us() < until) dt_futex_wait(&net.ready, 0, 100000);
    return outcome(timeout_s);
}

void dt_net_stop(void) {
    if (!atomic_exchange(&net.started, false)) return;
    if (!atomic_load(&net.ready)) { /* the thread waits inside MPI for a process that never came */
        pthread_detach(net.thread);
        return;
    }
    atomic_store(&net.stop, true);
    ring_bell();
    pthread_join(net.thread, NULL);
}
