/* Who waits, works: a thread that waits for a value does what the value needs, if nobody is at it.
 *
 * Otherwise a read of a small result is three wake-ups in a row (controller, worker, and the reader again), each some microseconds, for work of
 * less than one. So the engine's inside and each worker are roles, held by whoever has the lock:
 *
 *   reader:   takes the engine's role, takes the records up to its own FETCH, dispatches      (a nap of the controller goes on meanwhile)
 *             leaves it; a sleeping worker that got something to do was not woken: takes its role, runs the programs, copies the value
 *
 * Nothing is ever waited for to get a role: if the controller or the worker is at work, the value comes from there, as it always did. What is run
 * here is what would have run there, in the same order; the thread's floating-point mode is the engine's meanwhile.
 *
 * The reader cannot look at signals meanwhile, so it takes short programs only (worker.h), and helps only in one process and where the last run was of few devices (how many there are does not matter),
 * with room on its stack. Under the profiler it does not help: what runs where is what is looked at.
 *
 * Where one read follows another, a controller that wakes up in between takes the caches and a core from who does its work, and if it takes the records of
 * half a read, wakes the worker for the other half. So it stays away while there is a read in each 30 us (controller.c, stay_away).
 *
 * A helper may be inside when the engine stops: `helpers` counts them, and dt_engine_help_end waits for the last. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>

#include "base/cpu.h"
#include "controller/engine.h"
#include "plan/sim.h"
#include "plan/trace.h"

enum { DEVICES_MAX = 8, STACK_MIN = 1 << 20 };

static pthread_mutex_t role = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint32_t helpers; /* a futex word */
static _Atomic bool open_to_help;
static _Atomic uint64_t helped; /* how often */
static _Atomic bool lone;       /* few devices at work, one process: written inside, read by who wants to help */

void dt_engine_enter(void) { pthread_mutex_lock(&role); }

void dt_engine_leave(void) {
    bool sim = atomic_load_explicit(&dt_sim_on, memory_order_relaxed); /* its report tells the controller's time from the client's */
    atomic_store_explicit(&lone, dt_nodes == 1 && !sim && dt_the_engine.wide <= DEVICES_MAX, memory_order_relaxed);
    pthread_mutex_unlock(&role);
}

void dt_engine_help_begin(void) { atomic_store(&open_to_help, true); }

void dt_engine_help_end(void) {
    atomic_store(&open_to_help, false);
    for (uint32_t n; (n = atomic_load(&helpers));) dt_futex_wait(&helpers, n, 1000);
}

/* Is there room for what the controller and kernels put on a stack? Its end is looked up once per thread. */
static bool has_stack(void) {
    static _Thread_local char *low __attribute__((tls_model("initial-exec")));
    char here;
    if (DT_UNLIKELY(!low)) {
        pthread_attr_t a;
        void *addr;
        size_t size;
        low = &here; /* unknown: no */
        if (pthread_getattr_np(pthread_self(), &a) == 0) {
            if (pthread_attr_getstack(&a, &addr, &size) == 0) low = addr;
            pthread_attr_destroy(&a);
        }
    }
    return &here > low && (size_t)(&here - low) > STACK_MIN;
}

/* False: somebody else is inside. */
static bool drain(dt_engine *e, dt_device_state **unwoken) {
    uint64_t until = atomic_load_explicit(&e->ring.tail, memory_order_acquire);
    if (pthread_mutex_trylock(&role)) return false;
    dt_the_devices.quiet = true;
    (void)dt_engine_drain(e, until);
    dt_the_devices.quiet = false;
    *unwoken = dt_the_devices.unwoken;
    dt_the_devices.unwoken = NULL;
    dt_engine_leave();
    atomic_fetch_add_explicit(&helped, 1, memory_order_relaxed);
    return true;
}

uint64_t dt_engine_helped(void) { return atomic_load_explicit(&helped, memory_order_relaxed); }

static bool help(dt_engine *e, const dt_future *f) {
    dt_device_state *s = NULL;
    uint32_t mine = dt_cpu_fp_mode();
    if (mine != e->fp_mode) dt_cpu_fp_mode_set(e->fp_mode);
    bool inside = drain(e, &s);
    if (s) dt_worker_help(s->worker, f);
    if (mine != e->fp_mode) dt_cpu_fp_mode_set(mine);
    return inside;
}

bool dt_engine_wait(dt_future *f, int64_t usec) {
    bool helped = false;
    if (dt_future_done(f)) return true;
    if (atomic_load_explicit(&lone, memory_order_relaxed) && !dt_tracing() && !dt_engine_is_forked() && has_stack()) {
        atomic_fetch_add(&helpers, 1);
        if (atomic_load(&open_to_help)) helped = help(&dt_the_engine, f);
        atomic_fetch_sub(&helpers, 1);
        if (dt_future_done(f)) return true;
    }
    if (!helped && !dt_engine_is_forked()) dt_engine_flush();
    return dt_future_wait(f, usec);
}
