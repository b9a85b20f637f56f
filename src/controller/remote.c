/* See remote.h. */
#include "controller/remote.h"
#include "controller/talk.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "comm/net.h"
#include "plan/remote.h"
#include "plan/serial.h"
#include "plan/sim.h"
#include "plan/trace.h"

enum { CREDIT_NAP_US = 100000, START_S = 60, ATTACH_MIN = 512, PAUSE_US = 200, PAUSE_MAX_US = 20000 };

typedef struct request { /* an answer that is awaited */
    struct request *next;
    uint64_t id;
    int node;
    dt_future *future;
    dt_view dst;            /* DATA */
    dt_memory_stats *stats; /* STATS */
    int64_t evicted, evicted_bytes;
    uint64_t asked; /* TRACE: when, ns */
    dt_file *file;  /* OPEN: referenced */
    bool piece;     /* DATA: of a stream */
} request;

typedef struct ids { /* numbers of a node's buffers. The smallest free one is given: a repeated step gets the same numbers, and is sent as a repeat */
    uint64_t *used;  /* bits */
    size_t n, first; /* words; no word before `first` has room */
} ids;

static struct {
    ids *ids;                    /* (dt_nodes,) */
    uint64_t flushed_at, pause;  /* us */
    _Atomic uint64_t *taken;     /* (dt_nodes,) runs that a node has taken up */
    _Atomic uint32_t credit;     /* futex word */
    _Atomic(dt_error_t *) *lost; /* (dt_nodes,) why a node is lost; NULL while it lives */
    pthread_mutex_t lock;        /* of requests */
    request *requests;
    uint64_t *next_id; /* (dt_nodes,) */
    uint64_t next_plan, next_file, seq;
    dt_memory_stats *memory[DT_DEVICE_TYPES]; /* (DT_MAX_DEVICES,) of other nodes' devices; NULL: none was used */
    uint64_t *closed;                         /* files that nobody here has open any more; with `lock` */
    int n_closed, cap_closed;
    int threads;
} remote = {.lock = PTHREAD_MUTEX_INITIALIZER};

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "a message to another node: out of host memory"); }

/* ---- requests ----------------------------------------------------------------------------------------------------------------------------- */
static request *request_new(int node, dt_future *f) {
    request *r = dt_calloc(1, sizeof *r);
    if (!r) return NULL;
    r->node = node;
    r->future = f;
    pthread_mutex_lock(&remote.lock);
    r->id = ++remote.next_id[node]; /* of each node, so that nodes which are asked the same are told the same */
    r->next = remote.requests;
    remote.requests = r;
    pthread_mutex_unlock(&remote.lock);
    return r;
}

static request *request_take(uint64_t id, int node) {
    request *found = NULL;
    pthread_mutex_lock(&remote.lock);
    for (request **p = &remote.requests; *p && !found; p = &(*p)->next)
        if ((*p)->id == id && (*p)->node == node) {
            found = *p;
            *p = found->next;
            break;
        }
    pthread_mutex_unlock(&remote.lock);
    return found;
}

static void complete(request *r, dt_error_t *e) {
    dt_future_part(r->future, e);
    dt_future_unref(r->future);
    dt_file_unref(r->file);
    if (r->piece) dt_stream_returned();
    dt_free(r);
}

static dt_error_t *read_error(dt_unwire *u, dt_status s) {
    uint32_t site = (uint32_t)dt_unwire_count(u, UINT32_MAX);
    size_t n = dt_unwire_count(u, 511);
    char text[512];
    dt_unwire_get(u, text, n);
    text[n] = 0;
    return dt_error_new(s < DT_STATUS_COUNT ? s : DT_E_INTERNAL, site, "", text);
}

static void on_data(dt_unwire *u, int from) {
    request *r = request_take(dt_unwire_u64(u), from);
    dt_status s = (dt_status)dt_unwire_count(u, DT_STATUS_COUNT - 1);
    if (s) {
        dt_error_t *e = read_error(u, s);
        if (r) complete(r, e);
        dt_error_unref(e);
        return;
    }
    size_t n = dt_unwire_count(u, u->n - u->at);
    if (r && n == (size_t)dt_view_numel(&r->dst) * dt_dtype_size(r->dst.dtype) && !u->bad) {
        dt_view src = r->dst;
        dt_view_set_contiguous(&src);
        src.data = (void *)(uintptr_t)(u->data + u->at);
        dt_backend_of(DT_CPU)->copy(&r->dst, &src, NULL);
        complete(r, NULL);
    } else if (r) {
        dt_error_t *e = dt_error_new(DT_E_INTERNAL, 0, "read", "a node answered with the wrong number of bytes");
        complete(r, e);
        dt_error_unref(e);
    }
    u->at += n;
}

static void on_done(dt_unwire *u, int from) {
    request *r = request_take(dt_unwire_u64(u), from);
    dt_status s = (dt_status)dt_unwire_count(u, DT_STATUS_COUNT - 1);
    dt_error_t *e = s ? read_error(u, s) : NULL;
    if (r && r->file) /* that it cannot read a file is no failure */
        atomic_store(&r->file->here[from], !e);
    if (r) complete(r, r->file ? NULL : e);
    dt_error_unref(e);
}

/* Events of a node, by its clock; between hosts the answer's middle stands for now. */
static void on_events(dt_unwire *u, int from) {
    request *r = request_take(dt_unwire_u64(u), from);
    uint64_t there = dt_unwire_u64(u), now = dt_trace_now(), dropped = dt_unwire_u64(u);
    bool same_clock = !strcmp(dt_net_host(from), dt_net_host(0));
    uint64_t shift = same_clock || !r ? 0 : r->asked + (now - r->asked) / 2 - there;
    for (const char *lane; !u->bad && *(lane = dt_unwire_text(u));) {
        dt_event e = {.name = dt_unwire_text(u)};
        e.begin = dt_unwire_u64(u) + shift;
        e.end = e.begin + dt_unwire_u64(u);
        e.a = dt_unwire_u64(u);
        e.b = dt_unwire_u64(u);
        e.site = (uint32_t)dt_unwire_count(u, UINT32_MAX);
        e.kind = (uint16_t)dt_unwire_count(u, DT_TRACE_MESSAGE);
        e.device = (int16_t)(dt_unwire_count(u, INT16_MAX + 1) - 1);
        if (!u->bad) dt_trace_foreign(lane, &e);
    }
    dt_trace_drop(dropped);
    if (r) complete(r, NULL);
}

static void on_stats(dt_unwire *u, int from) {
    request *r = request_take(dt_unwire_u64(u), from);
    dt_memory_stats m;
    dt_unwire_get(u, &m, sizeof m);
    if (!r) return;
    m.evicted = r->evicted;
    m.evicted_bytes = r->evicted_bytes;
    if (r->stats && !u->bad) *r->stats = m;
    complete(r, NULL);
}

static void on_moved(dt_unwire *u) {
    const char *kind = dt_unwire_text(u), *mesh_dim = dt_unwire_text(u);
    uint32_t site = (uint32_t)dt_unwire_count(u, UINT32_MAX);
    dt_device sender = (dt_device)dt_unwire_count(u, UINT32_MAX);
    uint64_t bytes = dt_unwire_u64(u);
    if (!u->bad && kind && mesh_dim) dt_comm_moved_there(kind, mesh_dim, site, sender, bytes);
}

/* Progress thread. */
static void on_message(void *ctx, int from, const void *data, size_t bytes) {
    (void)ctx;
    dt_unwire u = {data, bytes, 0, false};
    while (u.at < u.n && !u.bad) {
        switch (dt_unwire_u64(&u)) {
        case DT_R_DATA: on_data(&u, from); break;
        case DT_R_DONE: on_done(&u, from); break;
        case DT_R_STATS: on_stats(&u, from); break;
        case DT_R_TRACE: on_events(&u, from); break;
        case DT_R_MOVED: on_moved(&u); break;
        case DT_R_CREDIT: {
            uint64_t taken = dt_unwire_u64(&u); /* answers of several threads may overtake each other */
            if (taken > atomic_load(&remote.taken[from])) atomic_store(&remote.taken[from], taken);
            atomic_fetch_add(&remote.credit, 1);
            dt_futex_wake(&remote.credit, 1);
            break;
        }
        default: u.bad = true;
        }
    }
}

static void on_lost(void *ctx, int rank, const char *why) {
    (void)ctx;
    dt_error_t *e = dt_error_new(DT_E_NODE, 0, "", why), *none = NULL;
    dt_node_lose(rank);
    if (!atomic_compare_exchange_strong(&remote.lost[rank], &none, e)) dt_error_unref(e);
    for (;;) { /* everything that waits for it fails */
        request *found = NULL;
        pthread_mutex_lock(&remote.lock);
        for (request **p = &remote.requests; *p; p = &(*p)->next)
            if ((*p)->node == rank) {
                found = *p;
                *p = found->next;
                break;
            }
        pthread_mutex_unlock(&remote.lock);
        if (!found) break;
        complete(found, atomic_load(&remote.lost[rank]));
    }
    atomic_fetch_add(&remote.credit, 1);
    dt_futex_wake(&remote.credit, 1);
}

bool dt_remote_lost(int node) { return atomic_load(&remote.lost[node]) != NULL; }
void dt_remote_lose(int node, const char *why) { on_lost(NULL, node, why); }

/* ---- sending ---------------------------------------------------------------------------------------------------------------------------------- */
static dt_wire *entry(int node, int kind) { return dt_talk_entry(node, kind); }
static uint64_t now_us(void) { return dt_trace_now() / 1000; }

static void write_closed(void);

static void put_request(dt_wire *w, int node, uint64_t id) { /* as the distance to the last one: the same in every step */
    dt_wire_u64(w, id - dt_talk_with(node)->request);
    dt_talk_with(node)->request = id;
}

/* Where many nodes share this host's cores, a message that comes earlier takes them from those who have something to do. */
static uint64_t shortest_pause(void) {
    int cores = dt_cpu_cores();
    uint64_t us = (uint64_t)((dt_node_local + cores - 1) / cores) * PAUSE_US;
    return us < PAUSE_MAX_US ? us : PAUSE_MAX_US;
}

void dt_remote_flush(void) {
    int threads = dt_devices_threads();
    if (threads != remote.threads) {
        for (int i = 1; i < dt_nodes; i++) dt_wire_u64(entry(i, DT_M_THREADS), (uint64_t)threads);
        remote.threads = threads;
    }
    write_closed();
    dt_talk_flush();
    remote.flushed_at = now_us();
    remote.pause = shortest_pause();
}

/* While the client goes on recording: at once after a silence, then in growing intervals, so that a long step is a few messages. */
void dt_remote_flush_some(bool idle) {
    bool any = dt_talk_any();
    uint64_t now = any ? now_us() : 0, since = now - remote.flushed_at;
    if (!any || (!idle && since < remote.pause)) return;
    uint64_t next = since > 4 * remote.pause ? shortest_pause() : remote.pause * 2;
    dt_remote_flush();
    remote.pause = next < PAUSE_MAX_US ? next : PAUSE_MAX_US;
}

/* ---- numbers of buffers --------------------------------------------------------------------------------------------------------------------------- */
static bool ids_grow(ids *x) {
    size_t n = x->n ? x->n * 2 : 64;
    uint64_t *u = dt_realloc(x->used, n * sizeof *u);
    if (!u) return false;
    memset(u + x->n, 0, (n - x->n) * sizeof *u);
    if (!x->n) u[0] = 1; /* 0 is no number */
    x->used = u;
    x->n = n;
    return true;
}

static uint64_t id_get(int node) { /* 0: out of host memory */
    ids *x = &remote.ids[node];
    while (x->first < x->n && x->used[x->first] == ~0ull) x->first++;
    if (x->first == x->n && !ids_grow(x)) return 0;
    int bit = __builtin_ctzll(~x->used[x->first]);
    x->used[x->first] |= 1ull << bit;
    return x->first * 64 + (uint64_t)bit;
}

static void id_put(int node, uint64_t id) {
    ids *x = &remote.ids[node];
    x->used[id / 64] &= ~(1ull << id % 64);
    if (id / 64 < x->first) x->first = id / 64;
}

static uint64_t buffer_id(dt_buf *b) { /* 0: out of host memory */
    int node = dt_device_node(b->device);
    if (b->id || !(b->id = id_get(node))) return b->id;
    dt_error_t *e = atomic_load(&b->error); /* a value that failed before it reached its node */
    dt_wire *w = entry(node, DT_M_POISON);
    dt_wire_u64(w, b->id);
    dt_wire_u64(w, b->device);
    dt_wire_u64(w, e ? e->status : DT_E_INTERNAL);
    dt_wire_u64(w, e ? e->site : 0);
    dt_wire_text(w, e ? e->text : "a value of another node without memory");
    return b->id;
}

/* What is given out of another node's device is counted here as it will be there. */
dt_memory_stats *dt_remote_memory(dt_device d) {
    dt_memory_stats **m = &remote.memory[dt_device_kind(d)];
    if (!*m) {
        if (!(*m = dt_calloc(DT_MAX_DEVICES, sizeof **m))) return NULL;
        for (int i = 0; i < DT_MAX_DEVICES; i++) (*m)[i].budget = dt_the_devices.budget;
    }
    return *m + dt_device_index(d) % DT_MAX_DEVICES;
}

static void count_memory(const dt_buf *b, bool given) {
    dt_memory_stats *m = b->bytes ? dt_remote_memory(b->device) : NULL;
    if (m) m->allocated += (given ? 1 : -1) * (int64_t)dt_alloc_rounded(b->bytes);
}

static void undo_buffer(dt_buf *b) {
    if (!b->id) return;
    id_put(dt_device_node(b->device), b->id);
    count_memory(b, false);
}

static void drop_remote(dt_buf *b) {
    if (b->id) dt_wire_u64(entry(dt_device_node(b->device), DT_M_FREE), b->id);
    undo_buffer(b);
}

static dt_buf *buffer_new(dt_device d, size_t bytes) {
    dt_buf *b = dt_buf_new(d, bytes, NULL);
    if (b && !(b->id = id_get(dt_device_node(d)))) {
        dt_free(b);
        return NULL;
    }
    if (b) count_memory(b, true);
    return b;
}

dt_status dt_remote_bind(const dt_plan *p, int i, dt_binding *b) {
    const dt_program *prog = &p->program[i];
    for (int k = 0; k < prog->n_out; k++)
        if (!(b->run->part[i].buf[prog->n_ext + k] = buffer_new(prog->device, prog->out_bytes[k]))) return no_memory();
    return DT_OK;
}

/* The programs of a plan by the node that has them: `order` has their numbers, those of told[k].node from told[k].first up to the next one's. */
static dt_status index_nodes(dt_plan *p) {
    int n = 0, *count = dt_calloc((size_t)dt_nodes + 1, sizeof *count);
    if (!count) return no_memory();
    for (int i = 0; i < p->n_programs; i++) count[dt_device_node(p->program[i].device)]++;
    for (int node = 0; node < dt_nodes; node++) n += count[node] > 0;
    dt_told *t = DT_ARENA_ARRAY(&p->arena, dt_told, n + 1);
    int *order = DT_ARENA_ARRAY(&p->arena, int, p->n_programs + 1);
    if (!t || !order) {
        dt_free(count);
        return no_memory();
    }
    n = 0;
    for (int node = 0, at = 0; node < dt_nodes; node++) { /* count: where the node's next one goes */
        int here = count[node];
        count[node] = at;
        if (node != dt_node_self && here) t[n++] = (dt_told){node, at, at + here};
        at += here;
    }
    for (int i = 0; i < p->n_programs; i++) order[count[dt_device_node(p->program[i].device)]++] = i;
    dt_free(count);
    p->told_order = order;
    p->n_told = n;
    p->told = t;
    return DT_OK;
}

static bool on_node(void *ctx, dt_device d) { return dt_device_node(d) == *(int *)ctx; }

/* To every node that takes part, or, if it cannot be written for one of them, to none. Nodes that do alike are told the same. */
static dt_status send_plan(dt_plan *p) {
    dt_wire *w = dt_calloc((size_t)p->n_told + 1, sizeof *w); /* by the first of those that do alike */
    int *node = dt_calloc((size_t)p->n_told + 1, sizeof *node), *first = dt_calloc((size_t)p->n_told + 1, sizeof *first), n;
    dt_status s = w && node && first ? DT_OK : no_memory();
    for (int k = 0; k < p->n_told && !s; k++) node[k] = p->told[k].node;
    for (int k = 0; k < p->n_told && !s; k += n) {
        s = dt_plan_write_alike(p, on_node, node + k, p->n_told - k, &w[k], &n);
        for (int i = 0; i < n && !s; i++) first[k + i] = k;
        dt_the_engine.stats.plan_bytes += w[k].n;
    }
    if (!s) p->id = ++remote.next_plan;
    for (int k = 0; k < p->n_told && !s; k++) {
        dt_wire *to = entry(node[k], DT_M_PLAN);
        dt_wire_u64(to, p->id);
        dt_wire_u64(to, (uint64_t)node[first[k]]);
        dt_wire_put(to, w[first[k]].data, w[first[k]].n);
    }
    for (int k = 0; w && k < p->n_told; k++) dt_wire_free(&w[k]);
    dt_free(w);
    dt_free(node);
    dt_free(first);
    return s;
}

/* A node that is far behind is waited for. It may itself wait for data of any other, so all are told what collected. */
static void await_credit(int node) {
    while (dt_talk_with(node)->sent - atomic_load(&remote.taken[node]) >= DT_CREDITS && !atomic_load(&remote.lost[node])) {
        dt_remote_flush();
        uint32_t seen = atomic_load(&remote.credit);
        if (dt_talk_with(node)->sent - atomic_load(&remote.taken[node]) >= DT_CREDITS) dt_futex_wait(&remote.credit, seen, CREDIT_NAP_US);
    }
}

/* Values that were never sent go before the run. */
static void give_ids(const dt_io *io, const dt_program *prog) {
    for (int k = 0; k < prog->n_ext; k++) {
        dt_buf *b = io->ext[prog->ext[k].value]->part[prog->ext[k].pos]->buf;
        if (DT_UNLIKELY(!b->id)) (void)buffer_id(b);
    }
}

static void put_program(const dt_io *io, const dt_program *prog, const dt_run_part *part, dt_wire *w) {
    int node = dt_device_node(prog->device);
    for (int k = 0; k < prog->n_ext; k++) {
        const dt_part *x = io->ext[prog->ext[k].value]->part[prog->ext[k].pos];
        bool there = prog->ext[k].device == prog->device || dt_device_node(prog->ext[k].device) == node;
        dt_wire_u64(w, there ? x->buf->id : 0); /* a simulated device reads another node's: no data, so no matter */
        dt_wire_i64(w, x->offset <= (int64_t)x->buf->bytes ? x->offset : (int64_t)x->buf->bytes); /* an empty view may lie anywhere */
    }
    for (int k = 0; k < prog->n_out; k++) dt_wire_u64(w, part->buf[prog->n_ext + k]->id);
}

static void tell_run(const dt_io *io, const dt_plan *p, const dt_run *r, const dt_told *t, const dt_wire *changes) {
    const int *order = p->told_order;
    await_credit(t->node);
    for (int i = t->first; i < t->end; i++) give_ids(io, &p->program[order[i]]);
    dt_wire *w = entry(t->node, DT_M_RUN);
    dt_talk *talk = dt_talk_with(t->node);
    dt_wire_u64(w, p->id);
    dt_wire_u64(w, r->seq - talk->seq);
    talk->seq = r->seq;
    talk->sent++;
    dt_wire_put(w, changes->data, changes->n);
    for (int i = t->first; i < t->end; i++) put_program(io, &p->program[order[i]], &r->part[order[i]], w);
}

dt_status dt_remote_run(const dt_io *io, dt_plan *p, dt_binding *b) {
    if (DT_UNLIKELY(!p->told)) DT_TRY(index_nodes(p));
    if (!p->n_told) return DT_OK;
    for (int k = 0; k < p->n_told; k++) {
        dt_error_t *lost = atomic_load_explicit(&remote.lost[p->told[k].node], memory_order_acquire);
        if (DT_UNLIKELY(lost != NULL)) return dt_fail(lost->status, "%s", lost->text);
    }
    if (DT_UNLIKELY(!p->id)) DT_TRY(send_plan(p));
    dt_wire changes = {0};
    DT_TRY(dt_plan_changes(p, b->run, &changes));
    b->run->seq = ++remote.seq;
    for (int k = 0; k < p->n_told; k++) tell_run(io, p, b->run, &p->told[k], &changes);
    dt_wire_free(&changes);
    return DT_OK;
}

void dt_remote_drop_plan(const dt_plan *p) {
    for (int k = 0; k < p->n_told && p->id; k++) dt_wire_u64(entry(p->told[k].node, DT_M_DROP_PLAN), p->id);
}

dt_status dt_remote_host(const dt_view *src, dt_device d, dt_buf **out) {
    size_t bytes = (size_t)dt_view_numel(src) * dt_dtype_size(src->dtype);
    bool sim = dt_device_kind(d) == DT_SIM;
    dt_buf *b = buffer_new(d, bytes);
    void *packed = sim ? NULL : dt_malloc(bytes + 1);
    if (!b || (!packed && !sim)) {
        if (b) undo_buffer(b);
        dt_free(b);
        dt_free(packed);
        return no_memory();
    }
    *out = b;
    dt_wire *w = entry(dt_device_node(d), DT_M_HOST);
    dt_wire_u64(w, b->id);
    dt_wire_u64(w, d);
    dt_wire_u64(w, bytes);
    dt_wire_u64(w, sim ? 2 : bytes >= ATTACH_MIN); /* beside the stream, which is to repeat itself */
    if (sim) return DT_OK;
    dt_view dst = *src;
    dt_view_set_contiguous(&dst);
    dst.data = packed;
    dt_backend_of(DT_CPU)->copy(&dst, src, NULL);
    dt_wire_put(bytes >= ATTACH_MIN ? &dt_talk_with(dt_device_node(d))->attached : w, packed, bytes);
    dt_free(packed);
    return DT_OK;
}

/* ---- files ----------------------------------------------------------------------------------------------------------------------------------- */
void dt_remote_open(dt_file *file, dt_future *f) {
    _Atomic uint8_t *here = strlen(file->path) < 1000 ? dt_calloc((size_t)dt_nodes, sizeof *here) : NULL;
    if (!here) return; /* then it is read here */
    here[dt_node_self] = 1;
    file->here = here;
    file->id = ++remote.next_file;
    for (int node = 1; node < dt_nodes; node++) {
        request *r = atomic_load(&remote.lost[node]) ? NULL : request_new(node, f);
        if (!r) continue;
        r->file = dt_file_ref(file);
        dt_future_ref(f);
        atomic_fetch_add(&f->parts, 1);
        dt_wire *w = entry(node, DT_M_OPEN);
        put_request(w, node, r->id);
        dt_wire_u64(w, file->id);
        dt_wire_text(w, file->path);
        dt_wire_u64(w, file->size);
        dt_wire_u64(w, file->head);
        dt_wire_u64(w, file->head_crc);
    }
    dt_remote_flush();
}

/* Any thread: the nodes are told with what is sent next. */
static void drop_file(uint64_t id) {
    pthread_mutex_lock(&remote.lock);
    if (remote.n_closed == remote.cap_closed) {
        int cap = remote.cap_closed ? remote.cap_closed * 2 : 16;
        uint64_t *c = dt_realloc(remote.closed, sizeof *c * (size_t)cap);
        if (c) {
            remote.closed = c;
            remote.cap_closed = cap;
        }
    }
    if (remote.n_closed < remote.cap_closed) remote.closed[remote.n_closed++] = id; /* else nodes keep it open */
    pthread_mutex_unlock(&remote.lock);
}

static void write_closed(void) {
    for (;;) {
        uint64_t id = 0;
        pthread_mutex_lock(&remote.lock);
        if (remote.n_closed) id = remote.closed[--remote.n_closed];
        pthread_mutex_unlock(&remote.lock);
        if (!id) return;
        for (int node = 1; node < dt_nodes; node++) dt_wire_u64(entry(node, DT_M_CLOSE), id);
    }
}

static void put_op(dt_wire *w, const dt_load_op *o) {
    dt_wire_u64(w, o->file->id);
    dt_wire_i64(w, o->at);
    dt_wire_i64(w, o->to);
    dt_wire_u64(w, (uint64_t)o->ndim);
    for (int d = 0; d < o->ndim; d++) {
        dt_wire_i64(w, o->shape[d]);
        dt_wire_i64(w, o->from[d]);
        dt_wire_i64(w, o->into[d]);
    }
    dt_wire_u64(w, o->check.bytes);
    if (!o->check.bytes) return;
    dt_wire_u64(w, o->check.at);
    dt_wire_u64(w, o->check.crc);
}

static bool all_there(const dt_load *r, int node) {
    for (int i = 0; i < r->n; i++)
        if (!r->op[i].file->here || !atomic_load(&r->op[i].file->here[node])) return false;
    return true;
}

/* Read here, then sent. */
static dt_status read_and_send(const dt_load *r, dt_device d, dt_buf **out) {
    void *data = dt_malloc((size_t)r->numel * dt_dtype_size(r->dtype) + 1);
    if (!data) return no_memory();
    dt_view v = {.data = data, .dtype = r->dtype, .ndim = 1, .shape = {r->numel}, .stride = {1}};
    dt_status s = dt_load_run(r, data);
    if (!s) s = dt_remote_host(&v, d, out);
    dt_free(data);
    return s;
}

dt_status dt_remote_read(const dt_load *r, dt_device d, dt_future *f, dt_buf **out) {
    int node = dt_device_node(d);
    if (!all_there(r, node)) {
        DT_TRY(read_and_send(r, d, out));
        if (f) dt_future_part(f, NULL);
        return DT_OK;
    }
    dt_error_t *lost = atomic_load(&remote.lost[node]);
    if (lost) return dt_fail(lost->status, "%s", lost->text);
    dt_buf *b = buffer_new(d, (size_t)r->numel * dt_dtype_size(r->dtype));
    request *q = b && f ? request_new(node, f) : NULL;
    if (!b || (f && !q)) {
        if (b) undo_buffer(b);
        dt_free(b);
        return no_memory();
    }
    dt_wire *w = entry(node, DT_M_READ);
    dt_wire_u64(w, b->id);
    dt_wire_u64(w, d);
    dt_wire_u64(w, r->site);
    dt_wire_u64(w, r->dtype);
    dt_wire_i64(w, r->numel);
    dt_wire_u64(w, q != NULL);
    if (q) {
        dt_future_ref(f);
        put_request(w, node, q->id);
    }
    dt_wire_u64(w, (uint64_t)r->n);
    for (int i = 0; i < r->n; i++) put_op(w, &r->op[i]);
    *out = b;
    return DT_OK;
}

/* ---- reading, waiting, asking ------------------------------------------------------------------------------------------------------------------ */
dt_status dt_remote_ask(const dt_part *p, const dt_view *src, const dt_view *dst, dt_future *f, bool piece) {
    int node = dt_device_node(p->buf->device);
    dt_error_t *lost = atomic_load(&remote.lost[node]);
    if (lost) return dt_fail(lost->status, "%s", lost->text);
    uint64_t id = buffer_id(p->buf);
    request *r = request_new(node, f);
    if (!r) return no_memory();
    dt_future_ref(f);
    if (dt_device_kind(p->buf->device) == DT_SIM) dt_sim_awaited(p->buf->device);
    r->dst = *dst;
    r->piece = piece;
    dt_wire *w = entry(node, DT_M_FETCH);
    put_request(w, node, r->id);
    dt_wire_u64(w, id);
    dt_wire_u64(w, p->buf->device);
    dt_wire_i64(w, p->offset);
    dt_wire_u64(w, src->dtype);
    dt_wire_u64(w, (uint64_t)src->ndim);
    for (int d = 0; d < src->ndim; d++) {
        dt_wire_i64(w, src->shape[d]);
        dt_wire_i64(w, src->stride[d]);
    }
    return DT_OK;
}

void dt_remote_sync(dt_future *f) {
    for (int node = 1; node < dt_nodes; node++) {
        if (atomic_load(&remote.lost[node])) continue;
        request *r = request_new(node, f);
        if (!r) continue;
        dt_future_ref(f);
        atomic_fetch_add(&f->parts, 1);
        put_request(entry(node, DT_M_SYNC), node, r->id);
    }
    dt_remote_flush();
}

void dt_remote_trace(dt_future *f, bool on) {
    for (int node = 1; node < dt_nodes; node++) {
        request *r = on || atomic_load(&remote.lost[node]) ? NULL : request_new(node, f);
        if (!on && !r) continue;
        dt_wire *w = entry(node, DT_M_TRACE);
        dt_wire_u64(w, on);
        if (on) continue;
        r->asked = dt_trace_now();
        put_request(w, node, r->id);
        dt_future_ref(f);
        atomic_fetch_add(&f->parts, 1);
    }
    dt_remote_flush();
}

static void put_limit(dt_device d, int64_t bytes, int what) {
    dt_wire *w = entry(dt_device_node(d), DT_M_LIMIT);
    dt_wire_u64(w, (uint64_t)what);
    dt_wire_u64(w, d);
    dt_wire_i64(w, bytes);
}

void dt_remote_limit(dt_device d, int64_t bytes, bool budget) {
    dt_memory_stats *m = dt_remote_memory(d);
    if (m) *(budget ? &m->budget : &m->limit) = bytes;
    put_limit(d, bytes, budget ? DT_LIMIT_BUDGET : DT_LIMIT);
}

void dt_remote_budget_all(int64_t bytes) {
    for (int t = 0; t < DT_DEVICE_TYPES; t++)
        for (int i = 0; remote.memory[t] && i < DT_MAX_DEVICES; i++) remote.memory[t][i].budget = bytes;
    for (int node = 1; node < dt_nodes; node++) put_limit(dt_device_make(DT_CPU, (uint32_t)(node * dt_node_devices)), bytes, DT_LIMIT_BUDGETS);
}

bool dt_remote_capped(void) {
    for (int t = 0; t < DT_DEVICE_TYPES; t++)
        for (int i = 0; remote.memory[t] && i < DT_MAX_DEVICES; i++)
            if (dt_memory_cap(&remote.memory[t][i])) return true;
    return false;
}

bool dt_remote_stats(dt_device d, dt_memory_stats *out, dt_future *f, bool new_peaks) {
    int node = dt_device_node(d);
    if (node == dt_node_self) return false;
    dt_error_t *lost = atomic_load(&remote.lost[node]);
    request *r = lost ? NULL : request_new(node, f);
    if (!r) {
        dt_future_part(f, lost);
        dt_future_unref(f);
        return true;
    }
    r->stats = out;
    const dt_memory_stats *m = dt_remote_memory(d);
    if (m) {
        r->evicted = m->evicted;
        r->evicted_bytes = m->evicted_bytes;
    }
    dt_wire *w = entry(node, DT_M_STATS);
    put_request(w, node, r->id);
    dt_wire_u64(w, d);
    dt_wire_u64(w, new_peaks);
    return true;
}

void dt_remote_sim(int devices, int64_t memory) {
    for (int node = 1; node < dt_nodes; node++) {
        dt_wire *w = entry(node, DT_M_SIM);
        dt_wire_u64(w, (uint64_t)devices);
        dt_wire_i64(w, memory);
    }
    dt_remote_flush();
}

/* ---- start and stop ------------------------------------------------------------------------------------------------------------------------------- */
dt_status dt_remote_start(void) {
    if (!dt_net_launched()) return DT_OK;
    dt_net_hooks hooks = {on_message, on_lost, NULL};
    if (dt_net_started()) return dt_net_start(&hooks, dt_ops_hash(), START_S);
    int n = dt_net_size();
    remote.ids = dt_calloc((size_t)n, sizeof *remote.ids);
    remote.next_id = dt_calloc((size_t)n, sizeof *remote.next_id);
    remote.taken = dt_calloc((size_t)n, sizeof *remote.taken);
    remote.lost = dt_calloc((size_t)n, sizeof *remote.lost);
    if (!remote.ids || !remote.next_id || !remote.taken || !remote.lost) return no_memory();
    DT_TRY(dt_talk_start(n));
    DT_TRY(dt_net_start(&hooks, dt_ops_hash(), START_S));
    dt_buf_drop_elsewhere = drop_remote;
    dt_buf_undo_elsewhere = undo_buffer;
    dt_file_drop_elsewhere = drop_file;
    return DT_OK;
}

void dt_remote_stop(void) {
    if (!dt_net_started()) return;
    for (int node = 1; node < dt_nodes; node++) (void)entry(node, DT_M_STOP);
    dt_remote_flush();
    dt_net_stop();
}
