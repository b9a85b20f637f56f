/* See order_store.h. The log is the only thing that other threads read: it has a lock. */
#include "controller/order_store.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "plan/cost.h"

enum { LOG = 4096 };
static dt_graph *spare_graph[16];
static int n_spare;
typedef struct clock_at {
    double free;
    uint64_t reset; /* the reset that it follows */
} clock_at;
static clock_at *clocks[DT_DEVICE_TYPES]; /* by type: (DT_MAX_DEVICES,) */
static uint64_t n_resets;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static dt_order_entry entries[LOG];
static uint64_t n_entries;

dt_graph *dt_order_graph_get(void) {
    if (n_spare) return spare_graph[--n_spare];
    dt_graph *g = dt_malloc(sizeof *g);
    if (g && dt_graph_init(g)) {
        dt_free(g);
        g = NULL;
    }
    return g;
}

void dt_order_graph_put(dt_graph *g) {
    if (n_spare < (int)(sizeof spare_graph / sizeof *spare_graph)) {
        spare_graph[n_spare++] = g;
        return;
    }
    dt_graph_fini(g);
    dt_free(g);
}

/* ---- costs: seconds of a device, from shapes alone ------------------------------------------------------------------------------------------------ */
double dt_call_cost(dt_call *c) {
    if (c->cost_of != dt_hardware_generation) {
        c->cost = (float)dt_cost_call(dt_hardware_get(), c);
        c->cost_of = dt_hardware_generation;
    }
    return (double)c->cost;
}

static double clock_free(dt_device d) {
    const clock_at *c = clocks[dt_device_kind(d)];
    if (!c || c[dt_device_index(d)].reset != n_resets) return 0;
    return c[dt_device_index(d)].free;
}

void dt_clock_busy(dt_device d, double end) {
    dt_device_type t = dt_device_kind(d);
    if (!clocks[t]) clocks[t] = dt_calloc(DT_MAX_DEVICES, sizeof *clocks[t]);
    if (clocks[t]) clocks[t][dt_device_index(d)] = (clock_at){end, n_resets};
}

double dt_clock_mesh_free(const dt_mesh *m) {
    double at = 0;
    for (int i = 0; i < m->n; i++) at = fmax(at, clock_free(m->dev[i]));
    return at;
}

void dt_clocks_reset(void) { n_resets++; }

void dt_ids_insert(uint32_t *list, uint32_t *n, uint32_t id) {
    uint32_t i = (*n)++;
    for (; i > 0 && list[i - 1] > id; i--) list[i] = list[i - 1];
    list[i] = id;
}

uint32_t dt_ids_place(const uint32_t *list, uint32_t n, uint32_t id) {
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (list[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void dt_ids_remove(uint32_t *list, uint32_t *n, uint32_t id) {
    uint32_t at = dt_ids_place(list, *n, id);
    if (at == *n || list[at] != id) return;
    (*n)--;
    memmove(list + at, list + at + 1, sizeof *list * (*n - at));
}

void dt_order_log_add(const dt_order_entry *e) {
    pthread_mutex_lock(&log_lock);
    entries[n_entries++ % LOG] = *e;
    pthread_mutex_unlock(&log_lock);
}

size_t dt_order_log(dt_order_entry *out, size_t cap) {
    pthread_mutex_lock(&log_lock);
    size_t n = dt_log_last(entries, sizeof *entries, LOG, n_entries, out, cap);
    pthread_mutex_unlock(&log_lock);
    return n;
}

void dt_order_log_reset(void) {
    pthread_mutex_lock(&log_lock);
    n_entries = 0;
    pthread_mutex_unlock(&log_lock);
}

void dt_order_store_free(void) {
    while (n_spare) {
        dt_graph_fini(spare_graph[--n_spare]);
        dt_free(spare_graph[n_spare]);
    }
    for (int t = 0; t < DT_DEVICE_TYPES; t++) {
        dt_free(clocks[t]);
        clocks[t] = NULL;
    }
}
