/* See moved.h. A chain of entries: there are as many as lines of the program that route rows. */
#include "node/moved.h"

#include <pthread.h>

#include "base/arena.h"
#include "plan/remote.h"

typedef struct sender {
    dt_device device;
    uint64_t bytes;
} sender;

typedef struct entry {
    struct entry *next;
    const char *kind, *mesh_dim; /* of a plan that was sent: interned */
    uint32_t site;
    uint32_t n, cap;
    sender *list;
} entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *entries;

void *dt_moved_entry(const dt_coll *c, uint32_t site) {
    pthread_mutex_lock(&lock);
    entry *e = entries;
    while (e && (e->site != site || e->kind != c->kind || e->mesh_dim != c->mesh_dim)) e = e->next;
    if (!e && (e = dt_calloc(1, sizeof *e))) {
        *e = (entry){.next = entries, .kind = c->kind, .mesh_dim = c->mesh_dim, .site = site};
        entries = e;
    }
    pthread_mutex_unlock(&lock);
    return e;
}

static sender *sender_of(entry *e, dt_device d) {
    for (uint32_t i = 0; i < e->n; i++)
        if (e->list[i].device == d) return &e->list[i];
    if (!dt_grow(&e->list, &e->cap, e->n + 1, sizeof *e->list)) return NULL;
    e->list[e->n] = (sender){d, 0};
    return &e->list[e->n++];
}

void dt_moved_add(void *at, dt_device device, uint64_t bytes) {
    if (!at) return;
    pthread_mutex_lock(&lock);
    sender *s = sender_of(at, device);
    if (s) s->bytes += bytes;
    pthread_mutex_unlock(&lock);
}

void dt_moved_take(dt_wire *w) {
    pthread_mutex_lock(&lock);
    for (entry *e = entries; e; e = e->next)
        for (uint32_t i = 0; i < e->n; i++) {
            if (!e->list[i].bytes) continue;
            dt_wire_u64(w, DT_R_MOVED);
            dt_wire_text(w, e->kind);
            dt_wire_text(w, e->mesh_dim);
            dt_wire_u64(w, e->site);
            dt_wire_u64(w, e->list[i].device);
            dt_wire_u64(w, e->list[i].bytes);
            e->list[i].bytes = 0;
        }
    pthread_mutex_unlock(&lock);
}
