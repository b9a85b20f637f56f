/* Short programs of many devices, together: one thread runs all programs of a run, each up to its next meeting, in turns.
 *
 * On threads of their own, eight devices that add up eight gradients sleep and wake seven times, which takes longer than all that they compute. So the
 * parts of such a run are pushed without a wake, but for the first device's (run.c). Whoever has one of them as its next item tries to get the roles of
 * all the others; if their next items are the same run's, it goes through the programs with the same instructions, operands and meetings as always: no
 * bit differs, it only never sleeps in a meeting. If not, it wakes the others, and each does its own part.
 *
 * Nobody waits for a role here, so there is no order of locks. Threads of workers whose work is done here find an empty queue.
 *
 * Which runs: all programs in this process, their collectives on the compute queue, and what they took together less than what sleeping and waking would add. */
#include "base/cpu.h"
#include "base/ring.h"
#include "plan/nodes.h"
#include "plan/trace.h"
#include "worker/devices.h"
#include "worker/inside.h"

enum { DEVICES_MAX = 32, TRY_NS = 10000000, SWITCH_NS = 4000, TRIES = 16 };

typedef struct seat {
    dt_worker *w;
    dt_run_part *p;
    const dt_program *prog;
    int at, phase; /* the next instruction, and how far it is if it is a bucket */
} seat;

/* ---- which runs ---------------------------------------------------------------------------------------------------------------------------- */
static bool meets_plainly(const dt_instr *s) {
    return s->kind == DT_I_KERNEL || (s->coll->index >= 0 && !s->coll->spans && !s->coll->pulled && !s->coll->exchange);
}

/* Nanoseconds of all programs, from the shortest: the others have waited for it. 0: some took long or were not measured yet; UINT64_MAX: not for this. */
static uint64_t estimate(const dt_plan *p) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < p->n_programs; i++) {
        const dt_program *g = &p->program[i];
        uint32_t ns = atomic_load_explicit(&g->ns, memory_order_relaxed);
        if (!g->n_instr[0] || g->n_instr[1] || ns == UINT32_MAX) return UINT64_MAX;
        for (int k = 0; k < g->n_instr[0]; k++)
            if (!meets_plainly(&g->instr[0][k])) return UINT64_MAX;
        if (ns > DT_SHORT_NS) ns = 0;
        if (ns < least) least = ns;
    }
    return least * (uint64_t)p->n_programs;
}

/* One after the other on one core, less what they would take on several, is less than what sleeping and waking cost. */
static bool is_worth(const dt_plan *p, uint64_t ns) {
    static _Atomic int known;
    int n = p->n_programs, cores = atomic_load_explicit(&known, memory_order_relaxed);
    if (!cores) atomic_store_explicit(&known, cores = dt_cpu_cores(), memory_order_relaxed);
    int parallel = n < cores ? n : cores;
    return ns - ns / (uint64_t)parallel <= (uint64_t)n * SWITCH_NS;
}

bool dt_plan_together(dt_plan *p) {
    int known = atomic_load_explicit(&p->together, memory_order_relaxed);
    if (DT_LIKELY(known)) return known > 0 && !dt_tracing();
    uint64_t ns = 0;
    if (p->n_programs < 2 || p->n_programs > DEVICES_MAX || dt_nodes > 1 || (ns = estimate(p)) > TRY_NS)
        known = -1;
    else if (ns) {
        known = 1;
        atomic_store_explicit(&p->together_slow, 0, memory_order_relaxed);
    } else if (atomic_fetch_add_explicit(&p->together_slow, 1, memory_order_relaxed) >= TRIES)
        known = -1;
    atomic_store_explicit(&p->together, known, memory_order_relaxed);
    return known > 0 && !dt_tracing();
}

/* Some runs are slow because they are the first, or because the core was wanted elsewhere: the fastest counts, and a plan is given up after several. */
static void note_time(dt_plan *p, uint64_t ns) {
    uint32_t least = atomic_load_explicit(&p->together_ns, memory_order_relaxed);
    if (!least || ns < least) atomic_store_explicit(&p->together_ns, least = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns, memory_order_relaxed);
    if (is_worth(p, least)) return;
    uint32_t by = is_worth(p, least / 8) ? 1 : TRIES / 4;
    if (atomic_fetch_add_explicit(&p->together_slow, by, memory_order_relaxed) + by >= TRIES) atomic_store_explicit(&p->together, -1, memory_order_relaxed);
}

/* ---- running ------------------------------------------------------------------------------------------------------------------------------- */
static bool has_next(const dt_worker *w, const dt_run_part *p) {
    uint32_t head = atomic_load_explicit(&w->head, memory_order_relaxed);
    const dt_item *it = &w->item[head % DT_QUEUE];
    return head != atomic_load_explicit(&w->tail, memory_order_acquire) && it->kind == DT_ITEM_RUN && it->p == p;
}

/* Everybody has a seat, or nobody keeps one. */
static bool take_seats(dt_worker *mine, dt_run *r, seat *s, int n) {
    int taken = 0;
    for (bool ok = true; ok && taken < n; taken += ok) {
        const dt_program *prog = &r->plan->program[taken];
        seat *t = &s[taken];
        *t = (seat){.w = dt_devices_worker(prog->device), .p = &r->part[taken], .prog = prog};
        if (t->w != mine && pthread_mutex_trylock(&t->w->role)) break;
        ok = has_next(t->w, t->p) && dt_part_ready(t->w, t->p, prog);
        if (!ok && t->w != mine) pthread_mutex_unlock(&t->w->role);
    }
    if (taken == n) return true;
    while (taken-- > 0)
        if (s[taken].w != mine) pthread_mutex_unlock(&s[taken].w->role);
    return false;
}

/* One program up to the next meeting at which somebody is missing; true: to its end. */
static bool go_on(seat *s) {
    while (s->at < s->prog->n_instr[0]) {
        dt_instr *i = &s->prog->instr[0][s->at];
        if (i->kind == DT_I_KERNEL)
            dt_part_kernel(s->w, s->p, i);
        else if (!dt_part_meet(s->w, s->p, i, &s->phase))
            return false;
        s->phase = 0;
        s->at += 1 + (int)i->also;
    }
    return true;
}

static void run_all(seat *s, int n) {
    for (int k = 0; k < n; k++) dt_part_begin(s[k].p, s[k].prog);
    for (int left = n; left;) {
        left = 0;
        for (int k = 0; k < n; k++) left += !go_on(&s[k]);
    }
    for (int k = 0; k < n; k++) dt_part_end(s[k].w, s[k].p, s[k].prog);
}

/* mine's item is counted as finished by who runs it. */
static void leave_seats(dt_worker *mine, const seat *s, int n) {
    for (int k = 0; k < n; k++) {
        dt_worker *w = s[k].w;
        if (w == mine) continue;
        dt_worker_item_done(w);
        pthread_mutex_unlock(&w->role);
    }
}

static void wake_all(const dt_worker *mine, const dt_plan *p) {
    for (int i = 0; i < p->n_programs; i++) {
        dt_worker *w = dt_devices_worker(p->program[i].device);
        if (w != mine) dt_worker_wake(w);
    }
}

bool dt_worker_together(dt_worker *w, dt_run_part *part) {
    dt_run *r = part->run;
    dt_plan *p = r->plan;
    int n = p->n_programs;
    seat s[DEVICES_MAX];
    if (dt_tracing() || !take_seats(w, r, s, n)) {
        if (atomic_exchange(&r->together, false)) wake_all(w, p);
        return false;
    }
    uint64_t begin = dt_now_ns();
    run_all(s, n);
    note_time(p, dt_now_ns() - begin);
    for (int k = 0; k < n; k++) dt_run_part_done(&r->part[k]); /* the last one frees the run */
    leave_seats(w, s, n);
    return true;
}
