/* Devices: workers start at first use; cores are shared out among those that started. */
#include <pthread.h>

#include "base/cpu.h"
#include "controller/engine.h"

static _Atomic int threads_wanted;   /* 0: all cores */
static _Atomic uint32_t idle_events; /* futex word: some worker fell idle */
static _Atomic uint32_t waiting;

static void worker_idle(void) {
    if (!atomic_load_explicit(&waiting, memory_order_relaxed)) return;
    atomic_fetch_add(&idle_events, 1);
    dt_futex_wake(&idle_events, 1);
}

int dt_engine_threads(void) {
    int n = atomic_load(&threads_wanted);
    return n > 0 ? n : dt_cpu_cores();
}

static void share_cores(dt_engine *e) {
    int each = e->n_started ? dt_engine_threads() / e->n_started : 1;
    for (int i = 0; e->device[DT_CPU] && i < DT_MAX_DEVICES; i++)
        if (e->device[DT_CPU][i].worker) dt_worker_team(e->device[DT_CPU][i].worker, each < 1 ? 1 : each);
}

void dt_engine_threads_set(int n) { atomic_store(&threads_wanted, n); }

dt_status dt_engine_device(dt_device d, dt_device_state **out) {
    dt_engine *e = &dt_the_engine;
    dt_device_type t = dt_device_kind(d);
    uint32_t i = dt_device_index(d);
    const dt_backend *b = dt_backend_of(t);
    if (!b) return dt_fail(DT_E_NOTIMPL, "device %s: this build has no such backend", dt_device_type_name(t));
    if (i >= DT_MAX_DEVICES) return dt_fail(DT_E_VALUE, "device %s:%u: at most %d", dt_device_type_name(t), i, DT_MAX_DEVICES);
    if (!e->device[t] && !(e->device[t] = dt_calloc(DT_MAX_DEVICES, sizeof *e->device[t]))) return dt_fail(DT_E_NOMEM, "devices: out of host memory");
    dt_device_state *s = &e->device[t][i];
    static int shared_threads;
    if (!s->worker) {
        int cores = dt_cpu_cores(), max = dt_engine_threads() > cores ? dt_engine_threads() : cores;
        DT_TRY(dt_worker_new(d, e->n_started == 0 ? max : max / (e->n_started + 1), 1, worker_idle, &s->worker));
        if (!s->alloc.backend) dt_alloc_init(&s->alloc, b, dt_engine_quiesce);
        e->n_started++;
        shared_threads = dt_engine_threads();
        share_cores(e);
    } else if (shared_threads != dt_engine_threads()) {
        shared_threads = dt_engine_threads();
        share_cores(e);
    }
    *out = s;
    return DT_OK;
}

void dt_engine_push(dt_device_state *s, dt_item item) {
    while (!dt_worker_push(s->worker, item)) {
        atomic_store(&waiting, 1);
        uint32_t seen = atomic_load(&idle_events);
        dt_futex_wait(&idle_events, seen, 200);
        atomic_store(&waiting, 0);
    }
}

uint32_t dt_engine_pending(void) {
    dt_engine *e = &dt_the_engine;
    uint32_t n = 0;
    int left = e->n_started;
    for (int t = 0; t < DT_DEVICE_TYPES; t++)
        for (int i = 0; e->device[t] && left && i < DT_MAX_DEVICES; i++)
            if (e->device[t][i].worker) {
                n += dt_worker_pending(e->device[t][i].worker);
                left--;
            }
    return n;
}

void dt_engine_quiesce(void) {
    atomic_store(&waiting, 1);
    for (;;) {
        uint32_t seen = atomic_load(&idle_events);
        if (!dt_engine_pending()) break;
        dt_futex_wait(&idle_events, seen, 1000);
    }
    atomic_store(&waiting, 0);
}

void dt_engine_devices_free(void) {
    dt_engine *e = &dt_the_engine;
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
    dt_free(e->held);
    e->held = NULL;
    e->cap_held = 0;
}
