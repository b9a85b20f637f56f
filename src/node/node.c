/* See node.h. The progress thread copies messages into a list; the main thread takes them, entry by entry, in order. It alone touches plans, buffers and
 * allocators, as the controller does on its machine.
 *
 * What a message says is checked: unknown ids, plans that do not fit and sizes beyond the message end the process with a line on stderr, since a
 * controller that speaks nonsense cannot be served. What a computation does wrong (no memory, an index) becomes an error in its results and
 * is told when they are read. */
#include "node/node.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/ring.h"
#include "comm/net.h"
#include "node/moved.h"
#include "plan/history.h"
#include "plan/remote.h"
#include "plan/serial.h"
#include "plan/sim.h"
#include "plan/source.h"
#include "plan/trace.h"
#include "worker/devices.h"

enum { CREDIT_EVERY = DT_CREDITS / 4, MOST_IDS = 1 << 24 };

typedef struct message {
    struct message *next;
    uint64_t came; /* when, for the profiler */
    size_t bytes;
    uint8_t data[];
} message;

typedef struct table { /* things by their number; the controller gives small ones */
    void **p;
    size_t n;
} table;

static struct {
    pthread_mutex_t lock;
    message *first, **last;
    _Atomic uint32_t bell;
    _Atomic bool lost;
    table buffers, plans, files;
    uint64_t *ids; /* of the results of the run at hand */
    size_t cap_ids;
    _Atomic uint64_t taken, told; /* runs taken up; what the controller knows of that */
    uint64_t seq, request;        /* the last run's seq; the last request's id */
    dt_history history;
    dt_unwire attached; /* of the message at hand */
} node = {.lock = PTHREAD_MUTEX_INITIALIZER};

static dt_buf elsewhere = {.refs = 1}; /* memory of another node that a simulated device reads */

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "node %d: out of host memory", dt_node_self); }
static dt_status nonsense(const char *what) { return dt_fail(DT_E_INTERNAL, "node %d: the controller sent %s", dt_node_self, what); }

/* ---- ids --------------------------------------------------------------------------------------------------------------------------------------- */
static void *find(const table *t, uint64_t id) { return id < t->n ? t->p[id] : NULL; }
static dt_status add(table *t, uint64_t id, void *p) {
    if (find(t, id)) return nonsense("an id twice");
    if (!id || id >= MOST_IDS) return nonsense("an id that it does not give");
    if (id >= t->n) {
        size_t n = id + 1 > 2 * t->n ? id + 64 : 2 * t->n;
        void **q = dt_realloc(t->p, n * sizeof *q);
        if (!q) return no_memory();
        memset(q + t->n, 0, (n - t->n) * sizeof *q);
        t->p = q;
        t->n = n;
    }
    t->p[id] = p;
    return DT_OK;
}
static void *drop(table *t, uint64_t id) {
    void *p = find(t, id);
    if (p) t->p[id] = NULL;
    return p;
}

/* ---- answers -------------------------------------------------------------------------------------------------------------------------------------- */
/* With it, if there is news, how many runs were taken up. Any thread. */
static void answer(dt_wire *w) {
    uint64_t taken = atomic_load(&node.taken);
    if (atomic_exchange(&node.told, taken) != taken) {
        dt_wire_u64(w, DT_R_CREDIT);
        dt_wire_u64(w, taken);
    }
    if (w->failed || dt_net_send(0, w->data, w->n)) fprintf(stderr, "dtorch node %d: an answer was lost: out of memory\n", dt_node_self);
    dt_wire_free(w);
}

static void put_status(dt_wire *w, const dt_error_t *e) {
    dt_wire_u64(w, e ? (uint64_t)e->status : DT_OK);
    if (!e) return;
    dt_wire_u64(w, e->site);
    dt_wire_text(w, e->text);
}

typedef struct pending { /* a future whose end is told to the controller */
    dt_future *future;
    uint64_t id;
    int kind;
    bool moved; /* and what exchanges moved before it */
} pending;

static void tell(void *ctx) { /* on the completing thread */
    pending *p = ctx;
    dt_wire w = {0};
    dt_error_t *e = atomic_load(&p->future->error);
    if (p->moved) dt_moved_take(&w);
    dt_wire_u64(&w, (uint64_t)p->kind);
    dt_wire_u64(&w, p->id);
    put_status(&w, e);
    if (!e && p->kind == DT_R_DATA) {
        dt_wire_u64(&w, p->future->buf->bytes);
        dt_wire_put(&w, p->future->buf->data, p->future->buf->bytes);
    }
    answer(&w);
    dt_future_unref(p->future);
    dt_free(p);
}

/* A future that answers request `id`; the caller delivers its parts. */
static dt_status pending_new(uint64_t id, int kind, bool moved, dt_hostbuf *buf, dt_future **out) {
    pending *p = dt_malloc(sizeof *p);
    dt_future *f;
    if (!p) {
        dt_hostbuf_unref(buf);
        return no_memory();
    }
    dt_status s = dt_future_new(buf, NULL, &f);
    if (s) {
        dt_free(p);
        return s;
    }
    *p = (pending){f, id, kind, moved};
    dt_future_ref(f);
    dt_future_on_done(f, tell, p);
    *out = f;
    return DT_OK;
}

/* ---- plans and runs ---------------------------------------------------------------------------------------------------------------------------------- */
static dt_status on_plan(dt_unwire *u) {
    uint64_t id = dt_unwire_u64(u), first = dt_unwire_u64(u);
    dt_plan *p;
    if (u->bad || first > (uint64_t)dt_node_self) return nonsense("a plan of later nodes");
    DT_TRY(dt_plan_read_alike(u, (uint64_t)dt_node_self - first, &p));
    for (int i = 0; i < p->n_programs; i++)
        if (!dt_device_here(p->program[i].device)) {
            dt_plan_unref(p);
            return nonsense("a program of another node");
        }
    return add(&node.plans, id, p);
}

static dt_status on_drop_plan(dt_unwire *u) {
    dt_plan *p = drop(&node.plans, dt_unwire_u64(u));
    if (!p) return nonsense("a plan to drop that is not here");
    dt_plan_unref(p);
    return DT_OK;
}

static dt_status room_for_ids(const dt_plan *p) {
    size_t n = 0;
    for (int i = 0; i < p->n_programs; i++) n += (size_t)p->program[i].n_out;
    if (n <= node.cap_ids) return DT_OK;
    uint64_t *ids = dt_realloc(node.ids, 2 * n * sizeof *ids);
    if (!ids) return no_memory();
    node.ids = ids;
    node.cap_ids = 2 * n;
    return DT_OK;
}

/* The ids of a run's results, read before anything can fail, so that they exist either way. */
static dt_status read_run(dt_unwire *u, dt_plan *p, dt_binding *b) {
    dt_run *r = b->run;
    size_t n_ids = 0;
    r->seq = node.seq += dt_unwire_u64(u);
    DT_TRY(dt_plan_changes_read(p, r, u));
    DT_TRY(room_for_ids(p));
    for (int i = 0; i < p->n_programs; i++) {
        const dt_program *prog = &p->program[i];
        for (int k = 0; k < prog->n_ext; k++) {
            uint64_t id = dt_unwire_u64(u);
            int64_t offset = dt_unwire_i64(u);
            dt_buf *buf = id ? find(&node.buffers, id) : dt_device_kind(prog->device) == DT_SIM ? &elsewhere : NULL;
            if (!buf || offset < 0 || (buf->data && (uint64_t)offset > buf->bytes)) return nonsense("a run with unknown memory");
            r->part[i].buf[k] = buf;
            r->part[i].base[k] = (char *)buf->data + offset;
        }
        for (int k = 0; k < prog->n_out; k++) node.ids[n_ids++] = dt_unwire_u64(u);
    }
    return u->bad ? nonsense("a run that ends too early") : DT_OK;
}

static dt_status bind_all(const dt_plan *p, dt_binding *b) {
    for (int i = 0; i < p->n_programs; i++) DT_TRY(dt_binding_program(p, i, b));
    return DT_OK;
}

/* Memory is short: the run still takes place, so that other nodes do not wait for ever, but computes nothing. */
static dt_status bind_failed(const dt_plan *p, dt_binding *b, dt_status why) {
    dt_error_t *e = dt_error_new(why, 0, "", dt_error_message());
    for (int i = 0; i < p->n_programs; i++) {
        const dt_program *prog = &p->program[i];
        dt_run_part *part = &b->run->part[i];
        part->failed = dt_error_ref(e); /* never freed: a run that failed is rare */
        dt_device_state *s;
        DT_TRY(dt_device_get(prog->device, &s));
        if (b->arena[i]) dt_alloc_arena_put(&s->alloc, b->arena[i], b->arena_bytes[i]);
        b->arena[i] = NULL;
        for (int k = prog->n_ext; k < prog->n_ext + prog->n_out; k++) {
            dt_buf *buf = part->buf[k];
            if (!buf && !(buf = part->buf[k] = dt_buf_new(prog->device, 0, NULL))) return no_memory();
            dt_error_t *none = NULL;
            if (!atomic_compare_exchange_strong(&buf->error, &none, e)) continue;
            dt_error_ref(e);
        }
    }
    dt_error_unref(e);
    return DT_OK;
}

static dt_status register_results(const dt_plan *p, dt_binding *b) {
    size_t n_ids = 0;
    for (int i = 0; i < p->n_programs; i++)
        for (int k = 0; k < p->program[i].n_out; k++) {
            dt_buf *buf = b->run->part[i].buf[p->program[i].n_ext + k];
            buf->live = 1;
            DT_TRY(add(&node.buffers, node.ids[n_ids++], buf));
        }
    return DT_OK;
}

static dt_status on_run(dt_unwire *u) {
    dt_plan *p = find(&node.plans, dt_unwire_u64(u));
    dt_binding b;
    if (!p) return nonsense("a run of an unknown plan");
    DT_TRY(dt_binding_new(p, &b));
    DT_TRY(read_run(u, p, &b));
    if (dt_the_devices.n_held) dt_bufs_sweep();
    dt_status s = bind_all(p, &b);
    if (s) DT_TRY(bind_failed(p, &b, s));
    DT_TRY(register_results(p, &b));
    for (int i = 0; i < p->n_colls; i++) {
        const dt_coll *c = p->coll[i];
        if (!c || !c->exchange || dt_device_kind(c->party[0].device) == DT_SIM) continue;
        b.run->meet[i].moved_ctx = dt_moved_entry(c, b.run->site[c->node]);
        b.run->meet[i].moved = dt_moved_add;
    }
    dt_binding_push(p, &b);
    uint64_t taken = atomic_load(&node.taken) + 1;
    atomic_store(&node.taken, taken);
    if (taken - atomic_load(&node.told) >= CREDIT_EVERY) answer(&(dt_wire){0});
    return DT_OK;
}

static uint64_t request_id(dt_unwire *u) { return node.request += dt_unwire_u64(u); }

/* ---- buffers -------------------------------------------------------------------------------------------------------------------------------------------- */
static dt_status on_free(dt_unwire *u) {
    dt_buf *b = drop(&node.buffers, dt_unwire_u64(u));
    if (!b) return nonsense("memory to free that is not here");
    dt_buf_drop(b);
    return DT_OK;
}

static dt_status device_of(dt_unwire *u, dt_device *d, dt_device_state **s) {
    *d = (dt_device)dt_unwire_count(u, UINT32_MAX);
    if (u->bad || !dt_device_here(*d)) return nonsense("a device of another node");
    return dt_device_get(*d, s);
}

static dt_status add_buffer(uint64_t id, dt_buf *b) {
    b->live = 1;
    return add(&node.buffers, id, b);
}

static dt_status on_host(dt_unwire *u) {
    uint64_t id = dt_unwire_u64(u);
    dt_device d;
    dt_device_state *s;
    DT_TRY(device_of(u, &d, &s));
    size_t bytes = (size_t)dt_unwire_u64(u), got = bytes;
    size_t where = dt_unwire_count(u, 2);
    bool sim = dt_device_kind(d) == DT_SIM;
    dt_unwire *from = where ? &node.attached : u;
    if (u->bad || sim != (where == 2) || (!sim && bytes > from->n - from->at)) return nonsense("an array that ends too early");
    void *data = NULL;
    dt_status st = dt_alloc_get(&s->alloc, &got, &data);
    dt_buf *b = dt_buf_new(d, st ? 0 : got, data);
    if (!b) return no_memory();
    if (st) { /* told when it is read */
        atomic_store(&b->error, dt_error_new(st, 0, "", dt_error_message()));
        if (!sim) from->at += bytes;
    } else if (!sim) {
        dt_devices_quiesce(); /* the memory may still be read by a run that was pushed before it was freed */
        dt_unwire_get(from, data, bytes);
    }
    return add_buffer(id, b);
}

/* ---- files ---------------------------------------------------------------------------------------------------------------------------------------------- */
/* That a file is not here, or is another one, is an answer and no failure. */
static dt_status on_open(dt_unwire *u) {
    dt_wire w = {0};
    uint64_t request = request_id(u), id = dt_unwire_u64(u);
    const char *path = dt_unwire_text(u);
    uint64_t size = dt_unwire_u64(u), head = dt_unwire_u64(u);
    uint32_t crc = (uint32_t)dt_unwire_count(u, UINT32_MAX);
    if (u->bad || !path) return nonsense("a file without a name");
    dt_file *f;
    dt_status s = dt_file_open(path, size, head, crc, &f);
    if (!s) DT_TRY(add(&node.files, id, f));
    dt_error_t *e = s ? dt_error_new(s, 0, "", dt_error_message()) : NULL;
    dt_wire_u64(&w, DT_R_DONE);
    dt_wire_u64(&w, request);
    put_status(&w, e);
    dt_error_unref(e);
    answer(&w);
    return DT_OK;
}

static dt_status on_close(dt_unwire *u) {
    dt_file_unref(drop(&node.files, dt_unwire_u64(u))); /* one that could not be opened is not here */
    return DT_OK;
}

static bool read_op(dt_unwire *u, dt_load_op *o) {
    dt_file *f = find(&node.files, dt_unwire_u64(u));
    if (!f) return false;
    o->file = dt_file_ref(f);
    o->at = dt_unwire_i64(u);
    o->to = dt_unwire_i64(u);
    o->ndim = (int32_t)dt_unwire_count(u, DT_MAX_DIM);
    for (int d = 0; d < o->ndim; d++) {
        o->shape[d] = dt_unwire_i64(u);
        o->from[d] = dt_unwire_i64(u);
        o->into[d] = dt_unwire_i64(u);
    }
    if (!(o->check.bytes = dt_unwire_u64(u))) return !u->bad;
    o->check.at = dt_unwire_u64(u);
    o->check.crc = (uint32_t)dt_unwire_count(u, UINT32_MAX);
    return !u->bad;
}

/* r is filled in but for its memory: that it is short is told when the part is read. */
static dt_status start_read(dt_load *r, uint64_t id, dt_device d, dt_device_state *s) {
    size_t got = (size_t)r->numel * dt_dtype_size(r->dtype);
    void *data = NULL;
    dt_status st = dt_alloc_get(&s->alloc, &got, &data);
    dt_buf *b = r->buf = dt_buf_new(d, st ? 0 : got, data);
    if (!b) return no_memory();
    DT_TRY(add_buffer(id, b));
    dt_error_t *e = st ? dt_error_new(st, r->site, "read", dt_error_message()) : NULL;
    if (e) atomic_store(&b->error, e); /* the worker only tells it */
    atomic_fetch_add(&b->refs, 1);
    b->n_written++;
    dt_device_push(s, (dt_item){DT_ITEM_READ, r});
    return DT_OK;
}

static dt_status on_read(dt_unwire *u) {
    uint64_t id = dt_unwire_u64(u);
    dt_device d;
    dt_device_state *s;
    DT_TRY(device_of(u, &d, &s));
    uint32_t site = (uint32_t)dt_unwire_count(u, UINT32_MAX);
    dt_dtype dtype = (dt_dtype)dt_unwire_count(u, DT_DTYPE_COUNT - 1);
    int64_t numel = dt_unwire_i64(u);
    dt_future *done = NULL;
    if (dt_unwire_count(u, 1)) DT_TRY(pending_new(request_id(u), DT_R_DONE, false, NULL, &done));
    int n = (int)dt_unwire_count(u, u->n - u->at);
    if (u->bad || numel < 0 || numel > INT64_MAX / 64 || dt_device_kind(d) == DT_SIM) return nonsense("a read of no file");
    dt_load *r = dt_load_alloc(n);
    if (!r) return no_memory();
    r->done = done;
    r->site = site;
    r->dtype = dtype;
    r->numel = numel;
    for (r->n = 0; r->n < n; r->n++)
        if (!read_op(u, &r->op[r->n])) return nonsense("a read of an unknown file");
    DT_TRY(dt_load_check(r));
    return start_read(r, id, d, s);
}

static dt_status on_poison(dt_unwire *u) {
    uint64_t id = dt_unwire_u64(u);
    dt_device d;
    dt_device_state *s;
    DT_TRY(device_of(u, &d, &s));
    dt_status st = (dt_status)dt_unwire_count(u, DT_STATUS_COUNT - 1);
    uint32_t site = (uint32_t)dt_unwire_count(u, UINT32_MAX);
    const char *text = dt_unwire_text(u);
    dt_buf *b = dt_buf_new(d, 0, NULL);
    if (!b) return no_memory();
    atomic_store(&b->error, dt_error_new(st, site, "", text));
    return add_buffer(id, b);
}

/* Does everything that the view reads lie in the buffer? */
static bool view_fits(const dt_view *v, int64_t offset, const dt_buf *b) {
    int64_t size = (int64_t)dt_dtype_size(v->dtype), n = size, low = offset, high = offset + size;
    for (int k = 0; k < v->ndim; k++)
        if (v->shape[k] == 0) return true;
    for (int k = 0; k < v->ndim; k++) {
        int64_t step, far;
        if (__builtin_mul_overflow(n, v->shape[k], &n) || __builtin_mul_overflow(v->stride[k], size, &step)) return false;
        if (__builtin_mul_overflow(step, v->shape[k] - 1, &far)) return false;
        int64_t *end = far < 0 ? &low : &high;
        if (__builtin_add_overflow(*end, far, end)) return false;
    }
    return !b->data || (low >= 0 && high <= (int64_t)b->bytes); /* without memory there is an error to tell instead */
}

static dt_status on_fetch(dt_unwire *u) {
    uint64_t request = request_id(u);
    dt_buf *b = find(&node.buffers, dt_unwire_u64(u));
    dt_device d;
    dt_device_state *s;
    DT_TRY(device_of(u, &d, &s));
    int64_t offset = dt_unwire_i64(u);
    dt_view v = {.dtype = (dt_dtype)dt_unwire_count(u, DT_DTYPE_COUNT - 1)};
    v.ndim = (int32_t)dt_unwire_count(u, DT_MAX_DIM);
    for (int k = 0; k < v.ndim; k++) {
        v.shape[k] = dt_unwire_i64(u);
        v.stride[k] = dt_unwire_i64(u);
        if (v.shape[k] < 0) u->bad = true;
    }
    if (u->bad || !b || offset < 0 || offset > INT64_MAX / 2) return nonsense("a read of unknown memory");
    if (!view_fits(&v, offset, b)) return nonsense("a read beyond the end of memory");
    dt_hostbuf *h;
    dt_future *f = NULL;
    DT_TRY(dt_hostbuf_new((size_t)dt_view_numel(&v) * dt_dtype_size(v.dtype), &h));
    DT_TRY(pending_new(request, DT_R_DATA, false, h, &f));
    dt_fetch *x = dt_calloc(1, sizeof *x);
    if (!x) return no_memory();
    *x = (dt_fetch){.future = f, .buf = b, .src = v, .dst = v};
    x->src.data = (char *)b->data + offset;
    dt_view_set_contiguous(&x->dst);
    x->dst.data = h->data;
    atomic_fetch_add(&b->refs, 1);
    dt_device_push(s, (dt_item){DT_ITEM_FETCH, x});
    return DT_OK;
}

static void push_sync(void *f, dt_device_state *s) {
    dt_future_ref(f);
    dt_device_push(s, (dt_item){DT_ITEM_SYNC, f});
}

static dt_status on_sync(dt_unwire *u) {
    dt_future *f = NULL;
    DT_TRY(pending_new(request_id(u), DT_R_DONE, true, NULL, &f));
    atomic_store(&f->parts, (uint32_t)dt_the_devices.n_started + 1);
    dt_devices_each(push_sync, f);
    dt_future_part(f, NULL);
    dt_future_unref(f);
    return DT_OK;
}

static dt_status on_stats(dt_unwire *u) {
    uint64_t id = request_id(u);
    dt_device d;
    dt_device_state *s;
    DT_TRY(device_of(u, &d, &s));
    dt_wire w = {0};
    dt_memory_stats *m = &s->alloc.stats;
    dt_wire_u64(&w, DT_R_STATS);
    dt_wire_u64(&w, id);
    dt_wire_put(&w, m, sizeof *m);
    if (dt_unwire_count(u, 1)) {
        m->allocated_peak = m->allocated;
        m->reserved_peak = m->reserved;
    }
    answer(&w);
    return DT_OK;
}

static void put_event(void *ctx, const char *lane, const dt_event *e) {
    dt_wire *w = ctx;
    dt_wire_text(w, lane);
    dt_wire_text(w, e->name ? e->name : "");
    dt_wire_u64(w, e->begin);
    dt_wire_u64(w, e->end - e->begin);
    dt_wire_u64(w, e->a);
    dt_wire_u64(w, e->b);
    dt_wire_u64(w, e->site);
    dt_wire_u64(w, e->kind);
    dt_wire_u64(w, (uint64_t)(e->device + 1));
}

static dt_status on_trace(dt_unwire *u) {
    if (dt_unwire_count(u, 1)) {
        dt_trace_start();
        return DT_OK;
    }
    uint64_t id = request_id(u);
    dt_wire w = {0};
    dt_trace_stop();
    dt_wire_u64(&w, DT_R_TRACE);
    dt_wire_u64(&w, id);
    dt_wire_u64(&w, dt_trace_now());
    dt_wire_u64(&w, dt_trace_dropped());
    dt_trace_each(put_event, &w);
    dt_wire_text(&w, "");
    answer(&w);
    return DT_OK;
}

/* As the controller's dt_engine_sim_start: tensors of an earlier simulation may be alive and count. */
static dt_status on_sim(dt_unwire *u) {
    int devices = (int)dt_unwire_count(u, 1 << 16);
    int64_t memory = dt_unwire_i64(u);
    if (u->bad || devices < 1 || memory < 0) return nonsense("a simulation of no devices");
    dt_node_simulated = devices;
    dt_sim_serve(memory);
    dt_devices_sim_begin(memory);
    return DT_OK;
}

static void set_budget(void *bytes, dt_device_state *s) { s->alloc.stats.budget = *(int64_t *)bytes; }

/* A budget: what is kept for later allocations goes before it is exceeded. What values are given up is the controller's to say. */
static dt_status on_limit(dt_unwire *u) {
    dt_device d;
    dt_device_state *s;
    size_t what = dt_unwire_count(u, DT_LIMIT_BUDGETS);
    if (what == DT_LIMIT_BUDGETS) { /* starts no device */
        (void)dt_unwire_u64(u);
        dt_the_devices.budget = dt_unwire_i64(u);
        dt_devices_each(set_budget, &dt_the_devices.budget);
        return DT_OK;
    }
    DT_TRY(device_of(u, &d, &s));
    *(what == DT_LIMIT_BUDGET ? &s->alloc.stats.budget : &s->alloc.stats.limit) = dt_unwire_i64(u);
    return DT_OK;
}

/* ---- the loop ------------------------------------------------------------------------------------------------------------------------------------------------ */
static dt_status on_entry(dt_unwire *u, bool *stop) {
    switch (dt_unwire_u64(u)) {
    case DT_M_PLAN: return on_plan(u);
    case DT_M_DROP_PLAN: return on_drop_plan(u);
    case DT_M_RUN: return on_run(u);
    case DT_M_FREE: return on_free(u);
    case DT_M_HOST: return on_host(u);
    case DT_M_OPEN: return on_open(u);
    case DT_M_CLOSE: return on_close(u);
    case DT_M_READ: return on_read(u);
    case DT_M_POISON: return on_poison(u);
    case DT_M_FETCH: return on_fetch(u);
    case DT_M_SYNC: return on_sync(u);
    case DT_M_LIMIT: return on_limit(u);
    case DT_M_STATS: return on_stats(u);
    case DT_M_THREADS: dt_devices_threads_set((int)dt_unwire_count(u, 1 << 16)); return DT_OK;
    case DT_M_SIM: return on_sim(u);
    case DT_M_TRACE: return on_trace(u);
    case DT_M_STOP: *stop = true; return DT_OK;
    default: return nonsense("an entry of no known kind");
    }
}

dt_status dt_node_entries(const void *data, size_t bytes, const void *attached, size_t attached_bytes, bool *stop) {
    dt_unwire u = {data, bytes, 0, false};
    node.attached = (dt_unwire){attached, attached_bytes, 0, false};
    while (!*stop && u.at < u.n) DT_TRY(on_entry(&u, stop));
    return DT_OK;
}

static void on_message(void *ctx, int from, const void *data, size_t bytes) {
    (void)ctx;
    message *m = from == 0 ? dt_malloc(sizeof *m + bytes) : NULL;
    if (!m) return;
    m->next = NULL;
    m->came = dt_trace_now();
    m->bytes = bytes;
    memcpy(m->data, data, bytes);
    pthread_mutex_lock(&node.lock);
    if (!node.first) node.last = &node.first;
    *node.last = m;
    node.last = &m->next;
    pthread_mutex_unlock(&node.lock);
    atomic_fetch_add(&node.bell, 1);
    dt_futex_wake(&node.bell, 1);
}

static void on_lost(void *ctx, int rank, const char *why) {
    (void)ctx;
    if (rank != 0) return;
    fprintf(stderr, "dtorch node %d: %s\n", dt_node_self, why);
    _Exit(1); /* whatever runs may wait for what will never come */
}

static message *take(void) {
    for (;;) {
        uint32_t seen = atomic_load(&node.bell);
        pthread_mutex_lock(&node.lock);
        message *m = node.first;
        node.first = NULL;
        pthread_mutex_unlock(&node.lock);
        if (m) return m;
        dt_futex_wait(&node.bell, seen, -1);
    }
}

static dt_status on_whole(const message *m, bool *stop) {
    dt_wire w = {0};
    dt_unwire u = {m->data, m->bytes, 0, false};
    dt_status s = dt_history_read(&node.history, &u, SIZE_MAX / 4, &w);
    if (!s) s = dt_node_entries(w.data, w.n, u.data + u.at, u.n - u.at, stop);
    dt_wire_free(&w);
    return s;
}

static dt_status serve(void) {
    bool stop = false;
    while (!stop) {
        message *next, *m = take();
        for (; m; m = next) {
            DT_TRY(on_whole(m, &stop));
            if (DT_UNLIKELY(dt_tracing())) dt_trace_add(DT_TRACE_MESSAGE, "message", 0, m->came, m->bytes, atomic_load(&node.taken));
            next = m->next;
            dt_free(m);
        }
    }
    return DT_OK;
}

int dt_node_main(void) {
    dt_net_hooks hooks = {on_message, on_lost, NULL};
    char lane[32];
    dt_nodes_init();
    snprintf(lane, sizeof lane, "node %d", dt_node_self);
    dt_trace_lane(lane);
    dt_status s = dt_ops_init();
    if (!s) s = dt_history_init(&node.history, false);
    if (!s) s = dt_net_start(&hooks, dt_ops_hash(), 60);
    if (!s) s = serve();
    if (s) {
        fprintf(stderr, "dtorch node %d: %s\n", dt_node_self, dt_error_message());
        fflush(stderr);
        _Exit(1);
    }
    dt_devices_quiesce();
    dt_net_stop();
    return 0;
}
