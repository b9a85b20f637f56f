/* Streams: long blocks between two nodes in chunks, so that they can be made and used while they are under way. See net.h.
 *
 *      sender                                        receiver
 *      makes chunk 0, 1, …   (open = 2)              posts receives for as many as it has room for, and says so:
 *                          <──────── grant 4 ───────
 *      sends what is made
 *      and granted         ─── chunk 0, 1 ─────────> uses them, has room again (open = 6)
 *                          <──────── grant 6 ───────
 *
 * No chunk is sent before its receive is posted: nothing is ever unexpected to MPI, and what is in flight is bounded by what receivers post, at most
 * DT_NET_WINDOW chunks a peer in one collective (dt_net_window). A stream's chunks have one tag, chosen by the receiver, and arrive in order.
 *
 * Threads: open is the owner's, everything else the progress thread's until state says that it is over. A stream that ended is not touched again. */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/ring.h"
#include "comm/progress.h"

enum { CHUNK = 512 << 10, CHUNK_MOST = 1 << 30 };

typedef struct grant { /* for a stream that has not begun here */
    struct grant *next;
    int from;
    uint32_t tag, lane, chunks;
    uint64_t key;
} grant;

static struct {
    pthread_mutex_t lock;
    dt_net_stream *begun; /* not seen by the progress thread yet; with lock */
    dt_net_stream *active;
    grant *early;
    uint32_t next_tag;
    size_t chunk;
    _Atomic uint64_t sent, received, flying, most;
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

size_t dt_net_chunk(void) { return streams.chunk; }
void dt_streams_cut(uint64_t chunk) {
    const char *own = getenv("DTORCH_NODE_CHUNK");
    if (!chunk) chunk = own && atol(own) > 0 ? (uint64_t)atol(own) : CHUNK;
    if (chunk > CHUNK_MOST) chunk = CHUNK_MOST;
    streams.chunk = ((size_t)chunk + 63) & ~(size_t)63; /* whole elements of any type */
}

void dt_net_stream_begin(dt_net_stream *s) {
    s->n = (uint32_t)((s->bytes + s->chunk - 1) / s->chunk);
    if (s->slots > s->n || !s->slots) s->slots = s->n;
    atomic_store_explicit(&s->done, 0, memory_order_relaxed);
    atomic_store_explicit(&s->state, 0, memory_order_relaxed);
    s->posted = s->told = s->granted = s->tag = 0;
    pthread_mutex_lock(&streams.lock);
    s->next = streams.begun;
    streams.begun = s;
    pthread_mutex_unlock(&streams.lock);
    dt_progress_bell();
}

void dt_net_stream_open(dt_net_stream *s, uint32_t chunks) {
    if (chunks > s->n) chunks = s->n;
    if (chunks == atomic_load_explicit(&s->open, memory_order_relaxed)) return;
    atomic_store_explicit(&s->open, chunks, memory_order_release);
    dt_progress_bell();
}

dt_status dt_net_stream_wait(dt_net_stream *s) {
    uint32_t state;
    while ((state = atomic_load_explicit(&s->state, memory_order_acquire)) == 0) dt_futex_wait(&s->state, 0, -1);
    return state == 1 ? DT_OK : dt_net_lost(s->peer, "");
}

void dt_streams_stats(dt_net_stats *s) {
    s->bulk_sent += atomic_load(&streams.sent);
    s->bulk_received += atomic_load(&streams.received);
    s->most_in_flight = atomic_load(&streams.most);
}

bool dt_streams_active(void) { return streams.active != NULL; }

static void tell_owners(dt_net_stream *s) {
    for (int i = 0; i < s->n_events; i++) {
        atomic_fetch_add_explicit(&s->event[i], 1, memory_order_release);
        dt_futex_wake(&s->event[i], 1);
    }
}

/* The last touch: its memory may be gone afterwards. */
static void finish(dt_net_stream *s, uint32_t state) {
    if (state == 2) { /* whoever waits for chunks goes on without them */
        atomic_store_explicit(&s->failed, true, memory_order_release);
        atomic_store_explicit(&s->done, s->n, memory_order_release);
        tell_owners(s);
    }
    atomic_store_explicit(&s->state, state, memory_order_release);
    dt_futex_wake(&s->state, INT_MAX);
}

static size_t chunk_bytes(const dt_net_stream *s, uint32_t i) { return i + 1 < s->n ? s->chunk : s->bytes - (size_t)i * s->chunk; }

/* Chunk s->posted is handed to MPI. */
static bool post(dt_net_stream *s) {
    const dt_mpi *mpi = dt_progress_mpi();
    uint32_t i = s->posted;
    char *p = s->base + (size_t)(i % s->slots) * s->chunk;
    size_t bytes = chunk_bytes(s, i);
    dt_mpi_handle *h = (dt_mpi_handle *)&s->handle[i % DT_NET_WINDOW];
    int bad = s->receive ? mpi->irecv(p, (int)bytes, mpi->byte, s->peer, (int)s->tag, mpi->world, h)
                         : mpi->isend(p, (int)bytes, mpi->byte, s->peer, (int)s->tag, mpi->world, h);
    if (bad) return false;
    s->posted++;
    s->window->used++;
    uint64_t now = atomic_fetch_add_explicit(&streams.flying, bytes, memory_order_relaxed) + bytes;
    if (now > atomic_load_explicit(&streams.most, memory_order_relaxed)) atomic_store_explicit(&streams.most, now, memory_order_relaxed);
    return true;
}

/* True while it goes on; *any: something moved. */
static bool advance(dt_net_stream *s, bool *any) {
    const dt_mpi *mpi = dt_progress_mpi();
    uint32_t done = atomic_load_explicit(&s->done, memory_order_relaxed), before = done;
    while (done < s->posted) {
        int flag = 0;
        dt_mpi_status status;
        if (mpi->test((dt_mpi_handle *)&s->handle[done % DT_NET_WINDOW], &flag, &status)) goto failed;
        if (!flag) break;
        uint64_t bytes = chunk_bytes(s, done++);
        s->window->used--;
        atomic_fetch_sub_explicit(&streams.flying, bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(s->receive ? &streams.received : &streams.sent, bytes, memory_order_relaxed);
    }
    uint32_t open = atomic_load_explicit(&s->open, memory_order_acquire);
    if (open > s->n) open = s->n;
    if (!s->receive && open > s->granted) open = s->granted;
    while (s->posted < open && s->posted - done < DT_NET_WINDOW && s->window->used < s->window->most) {
        if (!post(s)) goto failed;
        *any = true;
    }
    if (s->receive && s->posted > s->told) {
        s->told = s->posted;
        dt_progress_grant(s->peer, s->tag, s->key, s->lane, s->told);
    }
    if (done != before) {
        *any = true;
        atomic_store_explicit(&s->done, done, memory_order_release);
        tell_owners(s);
    }
    if (done < s->n) return true;
    finish(s, 1);
    return false;
failed:
    finish(s, 2);
    return false;
}

static bool admit(dt_net_stream *s) {
    if (dt_progress_lost(s->peer)) {
        finish(s, 2);
        return false;
    }
    if (s->receive) s->tag = DT_TAG_STREAM + streams.next_tag++ % DT_TAGS;
    for (grant **p = &streams.early; !s->receive && *p;) {
        grant *g = *p;
        if (g->from != s->peer || g->key != s->key || g->lane != s->lane) {
            p = &g->next;
            continue;
        }
        s->tag = g->tag;
        if (g->chunks > s->granted) s->granted = g->chunks;
        *p = g->next;
        dt_free(g);
    }
    return true;
}

/* Those begun elsewhere, behind the active ones in the order of their beginning. */
static bool admit_all(void) {
    pthread_mutex_lock(&streams.lock);
    dt_net_stream *s = streams.begun, *first = NULL;
    streams.begun = NULL;
    pthread_mutex_unlock(&streams.lock);
    bool any = s != NULL;
    while (s) { /* the list has the last one first */
        dt_net_stream *next = s->next;
        s->next = first;
        first = s;
        s = next;
    }
    dt_net_stream **end = &streams.active;
    while (*end) end = &(*end)->next;
    while (first) {
        dt_net_stream *next = first->next;
        first->next = NULL;
        if (admit(first)) {
            *end = first;
            end = &first->next;
        }
        first = next;
    }
    return any;
}

bool dt_streams_poll(void) {
    bool any = admit_all();
    for (dt_net_stream **p = &streams.active; *p;) {
        dt_net_stream *s = *p, *next = s->next;
        if (advance(s, &any))
            p = &s->next;
        else
            *p = next;
    }
    return any;
}

void dt_streams_granted(int from, uint32_t tag, uint64_t key, uint32_t lane, uint32_t chunks) {
    for (dt_net_stream *s = streams.active; s; s = s->next)
        if (!s->receive && s->peer == from && s->key == key && s->lane == lane) {
            s->tag = tag;
            if (chunks > s->granted) s->granted = chunks < s->n ? chunks : s->n;
            return;
        }
    grant *g = dt_malloc(sizeof *g);
    if (!g) return;
    *g = (grant){streams.early, from, tag, lane, chunks, key};
    streams.early = g;
}

void dt_streams_lose(int rank) {
    for (dt_net_stream **p = &streams.active; *p;) {
        dt_net_stream *s = *p;
        if (s->peer != rank) {
            p = &s->next;
            continue;
        }
        *p = s->next;
        finish(s, 2);
    }
}
