/* Thread teams. See team.h.
 *
 * A run is announced by a new generation number and an open gate. Helpers that see it in time join, by one count at the gate; the caller
 * closes the gate when no task is left to begin, and waits for those who joined. So nobody waits for a helper that is still being woken, which
 * takes longer than many a kernel. Whoever waits, helper or caller, looks for a while before it sleeps on a futex: programs run one kernel after
 * the other. A look that was in vain makes the next one shorter, unless what was waited for came soon after, for then it was only too short; so a
 * program that leaves its helpers alone, or a machine that has no core to spare, pays little for it, and one that runs kernel after kernel does not
 * stay asleep between them because it once had a pause. */
#include "base/team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/arena.h"
#include "base/ring.h"

enum { LOOKS_MOST = 2048, LOOKS_LEAST = 32, LINE = 64 }; /* a look is a pause, 15 to 50 ns */
static const int64_t SOON = 50000;                       /* ns from where a sleep costs less than looking on */

/* A member's own tasks: [next, end). */
typedef struct share {
    _Atomic int64_t next;
    int64_t end;
    char pad[LINE - 16];
} share;
typedef struct helper {
    dt_team *team;
    int number; /* 1 … size - 1 */
    pthread_t thread;
} helper;

struct dt_team {
    int size, started;
    _Atomic int limit;
    helper *helpers;
    share *shares;
    void *shares_block;
    /* the run */
    dt_task_fn fn;
    void *arg;
    int members; /* shares of this run, and threads that may work on it */
    int owners;  /* shares that are not empty */
    int looks;   /* the caller's */
    char pad0[LINE];
    _Atomic uint64_t gate; /* generation << 32 | closed << 31 | helpers that joined */
    char pad1[LINE];
    _Atomic uint32_t generation; /* helpers wait for it to change */
    _Atomic uint32_t asleep;     /* of the helpers */
    char pad2[LINE];
    _Atomic uint32_t left; /* helpers that joined this run and are through */
    _Atomic uint32_t caller_sleeps;
    _Atomic int64_t came; /* when what a sleeper was woken for had come */
    _Atomic bool stop;
    char name[16];
};
static const uint64_t CLOSED = (uint64_t)1 << 31;

static inline void look(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The next look: after one that saw what it looked for, after a sleep from `since` on. */
static int seen(int looks) { return looks * 2 > LOOKS_MOST ? LOOKS_MOST : looks * 2; }
static int slept(const dt_team *t, int looks, int64_t since) {
    if (atomic_load_explicit(&t->came, memory_order_relaxed) - since < SOON) return LOOKS_MOST;
    return looks / 2 < LOOKS_LEAST ? LOOKS_LEAST : looks / 2;
}

static void work(dt_team *t, int member) {
    for (int k = 0; k < t->owners; k++) {
        share *s = &t->shares[(member + k) % t->owners];
        while (atomic_load_explicit(&s->next, memory_order_relaxed) < s->end) {
            int64_t i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
            if (i >= s->end) break;
            t->fn(t->arg, i);
        }
    }
}

/* Until the generation is no longer `last`. */
static uint32_t await_run(dt_team *t, uint32_t last, int *looks) {
    uint32_t g;
    for (int i = 0; i < *looks; i++, look())
        if ((g = atomic_load_explicit(&t->generation, memory_order_acquire)) != last) {
            *looks = seen(*looks);
            return g;
        }
    int64_t since = now();
    atomic_fetch_add(&t->asleep, 1);
    while ((g = atomic_load(&t->generation)) == last) dt_futex_wait(&t->generation, last, -1);
    atomic_fetch_sub(&t->asleep, 1);
    *looks = slept(t, *looks, since);
    return g;
}

/* Into run g, if it is still open. */
static bool join(dt_team *t, uint32_t g) {
    uint64_t at = atomic_load_explicit(&t->gate, memory_order_relaxed);
    while (at >> 32 == g && !(at & CLOSED))
        if (atomic_compare_exchange_weak_explicit(&t->gate, &at, at + 1, memory_order_acquire, memory_order_relaxed)) return true;
    return false;
}

static void *helper_main(void *p) {
    helper *h = p;
    dt_team *t = h->team;
    uint32_t g = 0;
    int looks = LOOKS_LEAST;
    pthread_setname_np(pthread_self(), t->name);
    for (;;) {
        g = await_run(t, g, &looks);
        if (atomic_load(&t->stop)) return NULL;
        if (h->number >= atomic_load_explicit(&t->limit, memory_order_relaxed) || !join(t, g)) continue;
        if (h->number < t->members) work(t, h->number);
        atomic_fetch_add(&t->left, 1);
        if (atomic_load(&t->caller_sleeps)) {
            atomic_store_explicit(&t->came, now(), memory_order_relaxed);
            dt_futex_wake(&t->left, 1);
        }
    }
}

dt_status dt_team_new(int size, const char *name, dt_team **out) {
    dt_team *t = dt_calloc(1, sizeof *t);
    if (!t) return dt_fail(DT_E_NOMEM, "thread team: out of host memory");
    t->size = size < 1 ? 1 : size;
    t->limit = t->size;
    t->looks = LOOKS_LEAST;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->helpers = dt_calloc((size_t)t->size, sizeof *t->helpers);
    t->shares_block = dt_calloc((size_t)t->size + 1, sizeof(share));
    if (!t->helpers || !t->shares_block) {
        dt_team_free(t);
        return dt_fail(DT_E_NOMEM, "thread team: out of host memory");
    }
    t->shares = (share *)(((uintptr_t)t->shares_block + LINE - 1) / LINE * LINE);
    for (int i = 1; i < t->size; i++) {
        t->helpers[i] = (helper){.team = t, .number = i};
        if (pthread_create(&t->helpers[i].thread, NULL, helper_main, &t->helpers[i])) break; /* fewer helpers: slower, not wrong */
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
    for (int i = 1; i <= t->started; i++) pthread_join(t->helpers[i].thread, NULL);
    dt_free(t->helpers);
    dt_free(t->shares_block);
    dt_free(t);
}

int dt_team_size(const dt_team *t) { return t ? atomic_load_explicit(&t->limit, memory_order_relaxed) : 1; }

void dt_team_limit(dt_team *t, int size) { atomic_store(&t->limit, size < 1 ? 1 : size > t->size ? t->size : size); }

/* Until `joined` helpers are through. */
static void await_helpers(dt_team *t, uint32_t joined) {
    for (int i = 0; i < t->looks; i++, look())
        if (atomic_load_explicit(&t->left, memory_order_acquire) == joined) {
            t->looks = seen(t->looks);
            return;
        }
    int64_t since = now();
    atomic_store(&t->caller_sleeps, 1);
    for (uint32_t n; (n = atomic_load(&t->left)) != joined;) dt_futex_wait(&t->left, n, -1);
    atomic_store(&t->caller_sleeps, 0);
    t->looks = slept(t, t->looks, since);
}

static void run(dt_team *t, dt_task_fn fn, void *arg, int64_t n_tasks, bool in_order) {
    int members = t ? atomic_load_explicit(&t->limit, memory_order_relaxed) : 1;
    if (t && members > t->started + 1) members = t->started + 1;
    if (n_tasks <= 1 || members <= 1) {
        for (int64_t i = 0; i < n_tasks; i++) fn(arg, i);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    t->members = members;
    t->owners = in_order ? 1 : members;
    for (int m = 0; m < t->owners; m++) {
        atomic_store_explicit(&t->shares[m].next, n_tasks / t->owners * m + n_tasks % t->owners * m / t->owners, memory_order_relaxed);
        t->shares[m].end = n_tasks / t->owners * (m + 1) + n_tasks % t->owners * (m + 1) / t->owners;
    }
    atomic_store_explicit(&t->left, 0, memory_order_relaxed);
    uint32_t g = atomic_load_explicit(&t->generation, memory_order_relaxed) + 1;
    atomic_store_explicit(&t->gate, (uint64_t)g << 32, memory_order_release);
    bool asleep = atomic_load(&t->asleep) > 0;
    if (asleep) atomic_store_explicit(&t->came, now(), memory_order_relaxed);
    atomic_store(&t->generation, g);
    if (asleep || atomic_load(&t->asleep)) dt_futex_wake(&t->generation, t->started);
    work(t, 0);
    uint32_t joined = (uint32_t)(atomic_fetch_or_explicit(&t->gate, CLOSED, memory_order_acq_rel) & (CLOSED - 1));
    await_helpers(t, joined);
}

void dt_team_run(dt_team *t, dt_task_fn fn, void *arg, int64_t n_tasks) { run(t, fn, arg, n_tasks, false); }
void dt_team_run_in_order(dt_team *t, dt_task_fn fn, void *arg, int64_t n_tasks) { run(t, fn, arg, n_tasks, true); }
