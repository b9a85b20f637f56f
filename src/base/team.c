/* Thread teams. See team.h. A run is announced by a new generation number; helpers wait for it on a futex. */
#include "base/team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/ring.h"

struct dt_team {
    int size, started;
    _Atomic int limit;
    pthread_t *threads;
    dt_task_fn fn;
    void *arg;
    int64_t n_tasks;
    _Alignas(64) _Atomic int64_t next;
    _Alignas(64) _Atomic uint32_t generation; /* helpers wait for it to change */
    _Alignas(64) _Atomic uint32_t busy;       /* helpers still inside the current run */
    _Atomic int places;                       /* helpers that may still join it: the limit, less the caller */
    _Atomic bool stop;
    char name[16];
};

static void work(dt_team *t) {
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
        if (i >= t->n_tasks) return;
        t->fn(t->arg, i);
    }
}

static void *helper_main(void *p) {
    dt_team *t = p;
    uint32_t seen = 0;
    pthread_setname_np(pthread_self(), t->name);
    for (;;) {
        uint32_t g;
        while ((g = atomic_load_explicit(&t->generation, memory_order_acquire)) == seen) dt_futex_wait(&t->generation, seen, -1);
        seen = g;
        if (atomic_load(&t->stop)) return NULL;
        if (atomic_fetch_sub_explicit(&t->places, 1, memory_order_relaxed) > 0) work(t);
        if (atomic_fetch_sub_explicit(&t->busy, 1, memory_order_acq_rel) == 1) dt_futex_wake(&t->busy, 1);
    }
}

dt_status dt_team_new(int size, const char *name, dt_team **out) {
    dt_team *t = dt_calloc(1, sizeof *t + 64);
    if (!t) return dt_fail(DT_E_NOMEM, "thread team: out of host memory");
    t->size = size < 1 ? 1 : size;
    t->limit = t->size;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->threads = dt_calloc((size_t)t->size, sizeof *t->threads);
    if (!t->threads) {
        dt_free(t);
        return dt_fail(DT_E_NOMEM, "thread team: out of host memory");
    }
    for (int i = 1; i < t->size; i++) {
        if (pthread_create(&t->threads[i], NULL, helper_main, t)) break; /* fewer helpers: slower, not wrong */
        t->started++;
    }
    *out = t;
    return DT_OK;
}

void dt_team_free(dt_team *t) {
    if (!t) return;
    atomic_store(&t->stop, true);
    atomic_fetch_add(&t->generation, 1);
    dt_futex_wake(&t->generation, t->size);
    for (int i = 1; i <= t->started; i++) pthread_join(t->threads[i], NULL);
    dt_free(t->threads);
    dt_free(t);
}

int dt_team_size(const dt_team *t) { return t ? atomic_load_explicit(&t->limit, memory_order_relaxed) : 1; }

void dt_team_limit(dt_team *t, int size) { atomic_store(&t->limit, size < 1 ? 1 : size > t->size ? t->size : size); }

void dt_team_run(dt_team *t, dt_task_fn fn, void *arg, int64_t n_tasks) {
    if (n_tasks <= 1 || !t || t->started == 0 || atomic_load_explicit(&t->limit, memory_order_relaxed) <= 1) {
        for (int64_t i = 0; i < n_tasks; i++) fn(arg, i);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    t->n_tasks = n_tasks;
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store_explicit(&t->places, atomic_load_explicit(&t->limit, memory_order_relaxed) - 1, memory_order_relaxed);
    atomic_store_explicit(&t->busy, (uint32_t)t->started, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->generation, 1, memory_order_release);
    dt_futex_wake(&t->generation, (int)t->started);
    work(t);
    for (uint32_t b; (b = atomic_load_explicit(&t->busy, memory_order_acquire)) != 0;) dt_futex_wait(&t->busy, b, -1);
}
