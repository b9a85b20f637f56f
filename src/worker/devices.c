/* Devices and buffers. See devices.h. */
#include "worker/devices.h"

#include "base/cpu.h"
#include "base/ring.h"
#include "plan/sim.h"
#include "worker/inside.h"

void (*dt_buf_drop_elsewhere)(dt_buf *b), (*dt_buf_undo_elsewhere)(dt_buf *b);
dt_devices dt_the_devices;
static _Atomic int threads_wanted;   /* 0: all cores */
static _Atomic uint32_t idle_events; /* futex word: some worker fell idle */
static _Atomic uint32_t waiting;

_Atomic uint32_t dt_devices_tell;
void (*dt_devices_idle)(void);
void (*dt_devices_wait)(void);

static void worker_idle(void) {
    atomic_thread_fence(memory_order_seq_cst); /* a worker's count of what it finished comes before this look at who waits for it */
    if (atomic_load_explicit(&dt_devices_tell, memory_order_relaxed)) {
        atomic_store(&dt_devices_tell, 0);
        dt_devices_idle();
    }
    if (!atomic_load_explicit(&waiting, memory_order_relaxed)) return;
    atomic_fetch_add(&idle_events, 1);
    dt_futex_wake(&idle_events, 1);
}

int dt_devices_threads(void) {
    int n = atomic_load(&threads_wanted);
    if (n > 0) return n;
    n = dt_cpu_cores() / dt_node_local;
    return n > 0 ? n : 1;
}

static void share_cores(dt_devices *e) {
    int each = e->n_started ? dt_devices_threads() / e->n_started : 1;
    int left = e->n_started; /* beyond the last one lie pages that were never touched */
    for (int i = 0; e->device[DT_CPU] && left && i < DT_MAX_DEVICES; i++)
        if (e->device[DT_CPU][i].worker) {
            dt_worker_team(e->device[DT_CPU][i].worker, each < 1 ? 1 : each);
            left--;
        }
}

void dt_devices_threads_set(int n) { atomic_store(&threads_wanted, n); }

dt_status dt_device_get(dt_device d, dt_device_state **out) {
    dt_devices *e = &dt_the_devices;
    dt_device_type t = dt_device_kind(d);
    uint32_t i = dt_device_index(d);
    const dt_backend *b = dt_backend_of(t);
    if (!b) return dt_fail(DT_E_NOTIMPL, "device %s: this build has no such backend", dt_device_type_name(t));
    if (!dt_device_here(d)) return dt_fail(DT_E_INTERNAL, "device %s:%u is not of this process", dt_device_type_name(t), i);
    if (i >= DT_MAX_DEVICES) return dt_fail(DT_E_VALUE, "device %s:%u: at most %d", dt_device_type_name(t), i, DT_MAX_DEVICES);
    if (!e->device[t] && !(e->device[t] = dt_calloc(DT_MAX_DEVICES, sizeof *e->device[t]))) return dt_fail(DT_E_NOMEM, "devices: out of host memory");
    dt_device_state *s = &e->device[t][i];
    static int shared_threads; /* what set_num_threads had said (asking for the cores is a system call) */
    int wanted = atomic_load_explicit(&threads_wanted, memory_order_relaxed);
    if (b->run) { /* no worker */
        if (!s->alloc.backend) {
            dt_alloc_init(&s->alloc, b, NULL);
            s->alloc.stats.limit = b->memory();
        }
    } else if (!s->worker) {
        int cores = dt_cpu_cores(), max = dt_devices_threads() > cores ? dt_devices_threads() : cores;
        DT_TRY(dt_worker_new(d, e->n_started == 0 ? max : max / (e->n_started + 1), 1, worker_idle, &s->worker));
        if (!s->alloc.backend) dt_alloc_init(&s->alloc, b, dt_devices_quiesce);
        if (!s->alloc.stats.budget) s->alloc.stats.budget = e->budget;
        e->n_started++;
        shared_threads = wanted;
        share_cores(e);
    } else if (DT_UNLIKELY(shared_threads != wanted)) {
        shared_threads = wanted;
        share_cores(e);
    }
    *out = s;
    return DT_OK;
}

dt_worker *dt_devices_worker(dt_device d) { return dt_the_devices.device[dt_device_kind(d)][dt_device_index(d)].worker; }

static void read_now(const dt_backend *b, dt_fetch *f) {
    dt_error_t *e = atomic_load(&f->buf->error);
    if (!e) b->read(f->buf->device, &f->dst);
    dt_future_part(f->future, e);
    dt_buf_unref(f->buf);
    dt_future_unref(f->future);
    dt_free(f);
}

void dt_devices_wake(void) {
    dt_devices *e = &dt_the_devices;
    if (!e->unwoken) return;
    dt_worker_wake(e->unwoken->worker);
    e->unwoken = NULL;
}

void dt_device_push(dt_device_state *s, dt_item item) {
    if (DT_UNLIKELY(!s->worker)) { /* its runs are done (dt_binding_push): what is left is reading */
        read_now(s->alloc.backend, item.p);
        return;
    }
    dt_devices *e = &dt_the_devices;
    bool quiet = e->quiet && (!e->unwoken || e->unwoken == s) && dt_worker_asleep(s->worker);
    if (quiet)
        e->unwoken = s;
    else
        dt_devices_wake();
    while (!dt_worker_push(s->worker, item, !quiet)) {
        quiet = false;
        dt_devices_wake();
        if (DT_UNLIKELY(dt_devices_wait != NULL)) dt_devices_wait();
        atomic_store(&waiting, 1);
        uint32_t seen = atomic_load(&idle_events);
        dt_futex_wait(&idle_events, seen, 2000);
        atomic_store(&waiting, 0);
    }
}

void dt_devices_each(void (*fn)(void *ctx, dt_device_state *s), void *ctx) {
    dt_devices *e = &dt_the_devices;
    int left = e->n_started;
    for (int t = 0; t < DT_DEVICE_TYPES; t++)
        for (int i = 0; e->device[t] && left && i < DT_MAX_DEVICES; i++)
            if (e->device[t][i].worker) {
                fn(ctx, &e->device[t][i]);
                left--;
            }
}

static void add_pending(void *n, dt_device_state *s) { *(uint32_t *)n += dt_worker_pending(s->worker); }

static uint32_t workers_pending(void) {
    uint32_t n = 0;
    dt_devices_each(add_pending, &n);
    return n;
}

uint32_t dt_devices_pending(void) { return workers_pending() + (atomic_load_explicit(&dt_sim_on, memory_order_relaxed) ? 1 : 0); }

void dt_devices_quiesce(void) {
    dt_devices_wake();
    if (DT_UNLIKELY(dt_devices_wait != NULL) && workers_pending()) dt_devices_wait();
    atomic_store(&waiting, 1);
    for (;;) {
        uint32_t seen = atomic_load(&idle_events);
        if (!workers_pending()) break;
        dt_futex_wait(&idle_events, seen, 1000);
    }
    atomic_store(&waiting, 0);
}

void dt_devices_sim_begin(int64_t memory) {
    dt_device_state *all = dt_the_devices.device[DT_SIM];
    for (int i = 0; all && i < DT_MAX_DEVICES; i++) {
        dt_memory_stats *m = &all[i].alloc.stats;
        if (!all[i].alloc.backend) continue;
        m->limit = memory;
        m->allocated_peak = m->allocated;
        m->reserved_peak = m->reserved;
        m->n_oom = 0;
    }
}

void dt_devices_free(void) {
    dt_devices *e = &dt_the_devices;
    for (int t = 0; t < DT_DEVICE_TYPES; t++) {
        for (int i = 0; e->device[t] && i < DT_MAX_DEVICES; i++) {
            dt_worker_free(e->device[t][i].worker);
            e->device[t][i].worker = NULL;
        }
        for (int i = 0; e->device[t] && i < DT_MAX_DEVICES; i++)
            if (e->device[t][i].alloc.backend) dt_alloc_fini(&e->device[t][i].alloc);
        dt_free(e->device[t]);
        e->device[t] = NULL;
    }
    e->n_started = 0;
    dt_runs_forget();
    dt_free(e->held);
    e->held = NULL;
    e->cap_held = 0;
}

/* ---- buffers ------------------------------------------------------------------------------------------------------------------------------ */
dt_buf *dt_buf_new(dt_device d, size_t bytes, void *data) {
    dt_buf *b = dt_calloc(1, sizeof *b);
    if (!b) return NULL;
    atomic_store_explicit(&b->refs, 1, memory_order_relaxed);
    b->device = d;
    b->bytes = bytes;
    b->data = data;
    return b;
}

static bool being_read(const dt_buf *b) { return atomic_load_explicit(&b->read, memory_order_acquire) != b->n_read; }

static void give_back(dt_buf *b) {
    dt_device_state *s;
    if (b->held && dt_device_get(b->device, &s) == DT_OK) s->held -= (int64_t)b->bytes;
    if (b->bytes && dt_device_get(b->device, &s) == DT_OK) dt_alloc_put(&s->alloc, b->data, b->bytes);
    dt_buf_unref(b);
}

/* Memory that another device still reads waits in a list: the allocator would hand it to this device's next program. */
void dt_buf_drop(dt_buf *b) {
    dt_devices *e = &dt_the_devices;
    if (--b->live) return;
    if (DT_UNLIKELY(!dt_device_here(b->device))) {
        if (dt_buf_drop_elsewhere) dt_buf_drop_elsewhere(b);
        dt_buf_unref(b);
        return;
    }
    if (!b->bytes || !being_read(b)) {
        give_back(b);
        return;
    }
    if (e->n_held == e->cap_held) {
        int cap = e->cap_held ? e->cap_held * 2 : 64;
        dt_buf **h = dt_realloc(e->held, sizeof *h * (size_t)cap);
        if (!h) { /* cannot remember it */
            dt_devices_quiesce();
            give_back(b);
            return;
        }
        e->held = h;
        e->cap_held = cap;
    }
    dt_device_state *s;
    if (dt_device_get(b->device, &s) == DT_OK) s->held += (int64_t)b->bytes;
    b->held = true;
    e->held[e->n_held++] = b;
}

void dt_bufs_sweep(void) {
    dt_devices *e = &dt_the_devices;
    int kept = 0;
    for (int i = 0; i < e->n_held; i++) {
        if (being_read(e->held[i]))
            e->held[kept++] = e->held[i];
        else
            give_back(e->held[i]);
    }
    e->n_held = kept;
}

static dt_buf *held_too_long(void) {
    enum { ALWAYS = 256 << 10 };
    dt_devices *e = &dt_the_devices;
    for (int i = 0; i < e->n_held; i++) {
        dt_device_state *s;
        if (dt_device_get(e->held[i]->device, &s) == DT_OK && s->held > ALWAYS && s->held > s->alloc.stats.allocated / 4) return e->held[i];
    }
    return NULL;
}

/* Who pushes runs ahead of time gives memory to all of them, and what one device sends is free only when the other has come to read it. So it waits
 * when that is a good part of a device's memory. The reader was pushed before: it will come. */
void dt_bufs_throttle(void) {
    dt_devices_wake();
    dt_bufs_sweep();
    for (dt_buf *b; (b = held_too_long()); dt_bufs_sweep()) {
        uint32_t done = atomic_load(&b->read);
        atomic_fetch_add(&b->waiting, 1);
        while ((done = atomic_load(&b->read)) != b->n_read) dt_futex_wait(&b->read, done, 10000);
        atomic_fetch_sub(&b->waiting, 1);
    }
}
