/* See trace.h. A log outlives its thread: logs are kept in a list and reused by nobody else. A start makes a new epoch; a thread that logs in an
 * older epoch empties its log first, so that nobody has to stop the threads. */
#include "plan/trace.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"

enum { BLOCK = 2048 };
typedef struct block {
    struct block *_Atomic next;
    _Atomic uint32_t n;
    dt_event event[BLOCK];
} block;

typedef struct log {
    struct log *next;
    char lane[32];
    bool foreign; /* of another process: no thread here adds to it */
    _Atomic uint32_t epoch;
    block *first, *last;
} log;

_Atomic bool dt_trace_on;
static _Atomic uint32_t epoch;
static _Atomic uint64_t dropped;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static log *logs;
static _Thread_local log *mine;
static log *foreign; /* the last lane of another process that was added to */
static _Thread_local char lane_name[32] = "client";

uint64_t dt_trace_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void dt_trace_lane(const char *name) { snprintf(lane_name, sizeof lane_name, "%s", name); }

static log *log_new(const char *lane, bool is_foreign) {
    log *l = dt_calloc(1, sizeof *l);
    if (!l) return NULL;
    if (!(l->first = dt_malloc(sizeof(block)))) {
        dt_free(l);
        return NULL;
    }
    snprintf(l->lane, sizeof l->lane, "%s", lane);
    l->foreign = is_foreign;
    atomic_store(&l->first->next, NULL);
    atomic_store(&l->first->n, 0);
    l->last = l->first;
    pthread_mutex_lock(&lock);
    l->next = logs;
    logs = l;
    pthread_mutex_unlock(&lock);
    return l;
}

/* Of this epoch: emptied if it is older. */
static void log_renew(log *l) {
    uint32_t now = atomic_load_explicit(&epoch, memory_order_acquire);
    if (atomic_load_explicit(&l->epoch, memory_order_relaxed) == now) return;
    for (block *b = l->first; b; b = atomic_load(&b->next)) atomic_store(&b->n, 0);
    l->last = l->first;
    atomic_store_explicit(&l->epoch, now, memory_order_release);
}

static bool log_append(log *l, const dt_event *e) {
    block *b = l->last;
    uint32_t n = atomic_load_explicit(&b->n, memory_order_relaxed);
    if (n == BLOCK) {
        block *next = atomic_load(&b->next);
        if (!next) {
            if (!(next = dt_malloc(sizeof *next))) return false;
            atomic_store(&next->next, NULL);
            atomic_store(&next->n, 0);
            atomic_store(&b->next, next);
        }
        l->last = b = next;
        n = 0;
    }
    b->event[n] = *e;
    atomic_store_explicit(&b->n, n + 1, memory_order_release);
    return true;
}

static void append(const dt_event *e) {
    if (!mine) mine = log_new(lane_name, false);
    if (mine) log_renew(mine);
    if (!mine || !log_append(mine, e)) atomic_fetch_add(&dropped, 1);
}

void dt_trace_foreign(const char *lane, const dt_event *e) {
    if (!foreign || strcmp(foreign->lane, lane)) {
        pthread_mutex_lock(&lock);
        for (foreign = logs; foreign && !(foreign->foreign && !strcmp(foreign->lane, lane)); foreign = foreign->next) {}
        pthread_mutex_unlock(&lock);
        if (!foreign) foreign = log_new(lane, true);
    }
    if (foreign) log_renew(foreign);
    if (!foreign || !log_append(foreign, e)) atomic_fetch_add(&dropped, 1);
}
void dt_trace_drop(uint64_t n) { atomic_fetch_add(&dropped, n); }

void dt_trace_add(dt_trace_kind kind, const char *name, uint32_t site, uint64_t begin, uint64_t a, uint64_t b) {
    dt_event e = {.begin = begin, .end = dt_trace_now(), .name = name, .a = a, .b = b, .site = site, .kind = (uint16_t)kind, .device = -1};
    append(&e);
}

void dt_trace_memory(const char *device_type, int index, uint64_t allocated, uint64_t reserved) {
    uint64_t now = dt_trace_now();
    dt_event e = {.begin = now, .end = now, .name = device_type, .a = allocated, .b = reserved, .kind = DT_TRACE_MEMORY, .device = (int16_t)index};
    append(&e);
}

void dt_trace_start(void) {
    atomic_store(&dropped, 0);
    atomic_fetch_add(&epoch, 1);
    atomic_store(&dt_trace_on, true);
}

void dt_trace_stop(void) { atomic_store(&dt_trace_on, false); }
uint64_t dt_trace_dropped(void) { return atomic_load(&dropped); }

void dt_trace_each(void (*fn)(void *ctx, const char *lane, const dt_event *e), void *ctx) {
    pthread_mutex_lock(&lock);
    log *first = logs;
    pthread_mutex_unlock(&lock);
    for (log *l = first; l; l = l->next) {
        if (atomic_load_explicit(&l->epoch, memory_order_acquire) != atomic_load(&epoch)) continue;
        for (block *b = l->first; b; b = atomic_load(&b->next)) {
            uint32_t n = atomic_load_explicit(&b->n, memory_order_acquire);
            for (uint32_t i = 0; i < n; i++) fn(ctx, l->lane, &b->event[i]);
            if (n < BLOCK) break;
        }
    }
}
