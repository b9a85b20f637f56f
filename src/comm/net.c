/* The progress thread. See net.h.
 *
 * It owns MPI. Other threads put commands into a list (a lock held for a few instructions) and ring its bell; it also polls for messages, because MPI has
 * no bell of its own. How long it naps between polls depends on how long nothing happened: 20 us while something is under way, up to 1 ms after a
 * second of silence. Where all processes are on one host and can ring each other's bells (bell.c), whoever sends also rings, and naps are long.
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

enum { SMALL = 16 << 10, PIECE = 1 << 30, BEAT_US = 1000000, SPIN_US = 500 };
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
    bool late; /* it was not done at once */
} flight;

typedef struct announced { /* bulk data that nobody asked for yet */
    struct announced *next;
    int from;
    header h;
    uint8_t data[];
} announced;

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
    int64_t crowd;      /* processes here for each core */
    _Atomic bool bells; /* the processes of a host can wake each other; all are on this one */
    /* the progress thread's own */
    flight *flights;
    announced *early;
    dt_net_req *wanted;
    uint32_t next_tag;
    uint64_t last_heard[DT_NET_RANKS];
    _Atomic bool lost[DT_NET_RANKS], gone[DT_NET_RANKS], ended[DT_NET_RANKS]; /* given up; said goodbye; known to MPI to have failed */
    int hello_left, ready_left;     /* rank 0: who has not said hello, and not said whether it can read its host's processes */
    uint32_t common;                /* rank 0: what all said of their neighbours */
    uint64_t next_beat, silence_us; /* how long a node may be silent */
    _Atomic uint32_t ready;         /* 0 starting, 1 running, 2 failed: a futex word */
    char failure[512];
    _Atomic uint64_t messages_sent, bytes_sent, messages_received, bytes_received, bulk_sent, bulk_received, read, posted, posted_bytes;
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
void dt_progress_bell(void) { dt_bell_ring(); }
static void enqueue(command *c) {
    c->next = NULL;
    pthread_mutex_lock(&net.lock);
    if (!net.first) net.last = &net.first;
    *net.last = c;
    net.last = &c->next;
    pthread_mutex_unlock(&net.lock);
    dt_bell_ring();
}

static command *message(int to, header h, const void *data, size_t bytes) {
    command *c = dt_malloc(sizeof *c + sizeof h + bytes);
    if (!c) return NULL;
    *c = (command){.to = to, .bytes = sizeof h + bytes};
    memcpy(c->data, &h, sizeof h);
    if (bytes) memcpy(c->data + sizeof h, data, bytes);
    return c;
}

static void count_posted(const command *c) {
    atomic_fetch_add(&net.posted, 1);
    atomic_fetch_add(&net.posted_bytes, c->bytes);
}

dt_status dt_net_send(int to, const void *data, size_t bytes) {
    if (bytes > INT_MAX - 64) return dt_fail(DT_E_VALUE, "a control message of %zu bytes: at most 2 GiB", bytes);
    command *c = message(to, (header){K_USER, 0, 0, bytes}, data, bytes);
    if (!c) return dt_fail(DT_E_NOMEM, "a message to node %d: out of host memory", to);
    if (net.rank == 0) { /* in order with those along the tree */
        uint64_t seq = dt_tree_number(to);
        memcpy(c->data + offsetof(header, key), &seq, sizeof seq);
    }
    dt_progress_count(1, bytes);
    count_posted(c);
    enqueue(c);
    return DT_OK;
}

void dt_progress_count(int messages, size_t bytes) {
    atomic_fetch_add(&net.messages_sent, (uint64_t)messages);
    atomic_fetch_add(&net.bytes_sent, bytes);
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
    *out = (dt_net_stats){atomic_load(&net.messages_sent),     atomic_load(&net.bytes_sent),
                          atomic_load(&net.messages_received), atomic_load(&net.bytes_received),
                          atomic_load(&net.bulk_sent),         atomic_load(&net.bulk_received),
                          .read = atomic_load(&net.read),      .bells = atomic_load(&net.bells),
                          .posted = atomic_load(&net.posted),  .posted_bytes = atomic_load(&net.posted_bytes)};
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

/* What of the processes of this host can be had, as bits: all can be read; all have bells too. */
enum { READS = 1, BELLS = 2 };
static uint32_t try_neighbours(void) {
    if (!may_share() || !dt_process_readable(net.member, net.size, net.rank)) return 0;
    bool all = true;
    for (int r = 0; r < net.size && all; r++)
        all = r == net.rank || !same_host(r) || dt_bell_find(r, net.member[r].pid, net.member[r].bell, net.member[r].value);
    return READS | (all ? BELLS : 0);
}
static void use_neighbours(uint32_t bits) {
    net.shares = bits & READS;
    bool one_host = true;
    for (int r = 0; r < net.size; r++) one_host &= same_host(r);
    net.bells = one_host && bits & BELLS;
}

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
int dt_progress_self(void) { return net.rank; }
int dt_progress_size(void) { return net.size; }
bool dt_progress_lost(int rank) { return net.lost[rank]; }

static void post(command *c) {
    dt_mpi_handle h;
    if (net.lost[c->to] || net.mpi.isend(c->data, (int)c->bytes, net.mpi.byte, c->to, DT_TAG_CONTROL, net.mpi.world, &h)) {
        dt_free(c);
        return;
    }
    int to = c->to;
    fly(h, c, NULL, NULL);
    dt_bell_ring_at(to);
}

bool dt_progress_along_tree(int to, uint32_t branches, uint32_t n, const void *list, size_t list_bytes, const void *data, size_t bytes, bool here) {
    command *c = dt_malloc(sizeof *c + sizeof(header) + list_bytes + bytes);
    if (!c) return false;
    header h = {K_TREE, n, branches, bytes};
    *c = (command){.to = to, .bytes = sizeof h + list_bytes + bytes};
    memcpy(c->data, &h, sizeof h);
    memcpy(c->data + sizeof h, list, list_bytes);
    if (bytes) memcpy(c->data + sizeof h + list_bytes, data, bytes);
    count_posted(c);
    (here ? post : enqueue)(c);
    return true;
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
    net.common &= try_neighbours();
}

static void on_welcome(const uint8_t *data, size_t bytes) {
    if (bytes != sizeof *net.member * (size_t)net.size) return;
    memcpy(net.member, data, bytes);
    for (int r = 0; r < net.size; r++) net.member[r].host[sizeof net.member[r].host - 1] = 0;
    command *c = message(0, (header){K_READY, try_neighbours(), 0, 0}, NULL, 0);
    if (c) post(c);
}

static void on_ready(uint32_t bits) {
    net.common &= bits;
    if (net.rank != 0 || --net.ready_left) return;
    use_neighbours(net.common);
    tell_all((header){K_GO, net.common, 0, dt_net_chunk()}, NULL, 0);
    set_ready(1);
}

void dt_progress_hand_over(int from, const uint8_t *data, size_t bytes) {
    atomic_fetch_add(&net.messages_received, 1);
    atomic_fetch_add(&net.bytes_received, bytes);
    net.hooks.on_message(net.hooks.ctx, from, data, bytes);
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
            dt_tree_deliver(h.key, data, bytes);
        else
            dt_progress_hand_over(from, data, bytes);
        break;
    case K_GRANT: dt_streams_granted(from, h.tag, h.key, (uint32_t)(h.bytes >> 32), (uint32_t)h.bytes); break;
    case K_TREE: dt_tree_pass_on(h.key, h.tag, h.bytes, data, bytes); break;
    case K_BULK: on_bulk(from, &h, data, 0); break;
    case K_SMALL:
        if (h.bytes == bytes) on_bulk(from, &h, data, bytes);
        break;
    case K_HELLO: on_hello(from, data, bytes); break;
    case K_WELCOME: on_welcome(data, bytes); break;
    case K_READY: on_ready(h.tag); break;
    case K_GO:
        use_neighbours(h.tag);
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
            f->late = true;
            continue;
        }
        *p = f->next;
        any = true;
        if (f->left && --*f->left == 0) {
            dt_free(f->left);
            if (f->req) finish(f->req, bad ? 2 : 1);
        }
        if (f->owned && f->late) dt_bell_ring_at(f->owned->to); /* it waited here for room there: the receiver may have looked in vain */
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
    int below[DT_NET_RANKS], n_below = dt_tree_below(rank, below);
    for (int i = 0; i < n_below; i++) lose(below[i], "messages to it went through a node that is lost");
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
    me->bell = may_share() ? dt_bell_make(net.value) : -1;
#ifdef PR_SET_PTRACER
    /* where the kernel restricts reading to declared processes; the rights of users still count */
    if (may_share() && dt_net_local_size() > 1) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
    net.crowd = (dt_net_local_size() + dt_cpu_cores() - 1) / dt_cpu_cores();
    net.hello_left = net.ready_left = net.size - 1;
    net.common = READS | BELLS;
    if (net.rank == 0) return true;
    hello h = {net.hash, *me};
    command *c = message(0, (header){K_HELLO, 0, 0, 0}, &h, sizeof h);
    if (c) post(c);
    return c != NULL;
}

/* Longer the longer nothing happened: whom a message is for may be computing, on the same cores. And where more processes than cores poll, who would
 * keep each other from working. Where whoever sends also rings there is no need to look; the nap is for what a library keeps back until it is called. */
static int64_t nap(uint64_t idle_us) {
    enum { RUNG_US = 50000, SENT_US = 10000 };
    if (net.bells && !net.flights && !dt_streams_active()) return idle_us < 2000 ? SENT_US : RUNG_US;
    bool waits = net.flights || net.wanted || dt_streams_active();
    return net.crowd * (idle_us < 500 ? 20 : idle_us < 2000 ? 50 : waits || idle_us < 1000000 ? 100 : 1000);
}

/* While chunks are under way the thread gives its turn away rather than sleep: MPI moves data only while it is called. */
static void rest(uint32_t bell, uint64_t idle_us) {
    if (dt_streams_active() && idle_us < SPIN_US && net.crowd == 1) {
        sched_yield();
        return;
    }
    dt_bell_sleep(bell, nap(idle_us));
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
        dt_bell_sleep(dt_bell_rung(), 50);
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
        uint32_t bell = dt_bell_rung();
        bool any = take_commands();
        any |= poll_messages();
        if (!any && net.bells) any = poll_messages(); /* libraries fetch a message when they are asked, and show it the next time */
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
    dt_bell_ring();
    pthread_join(net.thread, NULL);
}
