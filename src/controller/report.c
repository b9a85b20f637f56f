/* What was communicated: one entry per (collective, mesh dimension, user line), and the bytes that each device sent.
 *
 * Counted when a plan is dispatched, from what the plan knows: bytes are those that one device reads of another's memory, so the sum over devices of
 * bytes sent. Counts only grow; readers take differences. Entries are bounded: lines beyond MAX_ENTRIES share one entry without a line.
 * How many rows an exchange moves only its receivers know: they count (dt_comm_moved), those of other nodes until a synchronisation (node/moved.c).
 * Threads: the controller counts, a user's thread reads; a lock. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "controller/engine.h"

enum { MAX_ENTRIES = 1 << 16 };
typedef struct entry {
    dt_hlink link;
    dt_comm_entry e;
} entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dt_htab entries;
static dt_comm_sent sent[DT_MAX_DEVICES];
static size_t n_sent;
static uint16_t place[2 * DT_MAX_DEVICES]; /* hash table: where a device stands in `sent`, plus 1 */

static entry *entry_of(const char *kind, const char *mesh_dim, uint32_t site) {
    uint64_t h = dt_hash_bytes(mesh_dim, strlen(mesh_dim), dt_hash_bytes(kind, strlen(kind), site));
    if (!entries.slot && dt_htab_init(&entries, 64)) return NULL;
    for (dt_hlink *l = dt_htab_first(&entries, h); l; l = l->next) {
        entry *e = (entry *)l;
        if (l->hash == h && e->e.site == site && !strcmp(e->e.kind, kind) && !strcmp(e->e.mesh_dim, mesh_dim)) return e;
    }
    if (entries.count >= MAX_ENTRIES && site) return entry_of(kind, mesh_dim, 0);
    entry *e = dt_calloc(1, sizeof *e);
    if (!e) return NULL;
    e->e.site = site;
    snprintf(e->e.kind, sizeof e->e.kind, "%s", kind);
    snprintf(e->e.mesh_dim, sizeof e->e.mesh_dim, "%s", mesh_dim);
    if (!dt_htab_add(&entries, &e->link, h)) return e;
    dt_free(e);
    return NULL;
}

static void count_sender(dt_device d, uint64_t bytes) {
    uint32_t at = (d * 2654435761u >> 13) % (2 * DT_MAX_DEVICES);
    while (place[at] && sent[place[at] - 1].device != d) at = (at + 1) % (2 * DT_MAX_DEVICES);
    if (!place[at]) {
        if (n_sent == DT_MAX_DEVICES) return;
        sent[n_sent++] = (dt_comm_sent){d, 0};
        place[at] = (uint16_t)n_sent;
    }
    sent[place[at] - 1].bytes += bytes;
}

typedef struct counted { /* a plan's collective: where it was counted last */
    entry *e;
    int64_t bytes;
    uint32_t node, site;
    bool counts, simulated;
} counted;

static counted *counted_new(dt_plan *p) {
    counted *all = DT_ARENA_ARRAY(&p->arena, counted, p->n_colls);
    for (int i = 0; i < p->n_colls && all; i++) {
        const dt_coll *c = p->coll[i];
        all[i] = (counted){.bytes = c->bytes_moved, .node = c->node};
        all[i].counts = c->bytes_moved || strcmp(c->kind, "local") != 0; /* else several pieces of what the device has itself */
        all[i].simulated = c->n && dt_device_kind(c->party[0].device) == DT_SIM;
    }
    return all;
}

void dt_comm_count(dt_plan *p, const uint32_t *site, const uint32_t *rec, dt_rendezvous *meet) {
    if (!p->n_colls) return;
    counted *x = p->counts ? p->counts : (p->counts = counted_new(p));
    pthread_mutex_lock(&lock);
    for (int i = 0; i < p->n_colls && x; i++, x++) { /* without memory for a report the work goes on */
        uint32_t at = site[rec ? rec[x->node] : x->node];
        if (x->counts && (!x->e || x->site != at)) {
            x->e = entry_of(p->coll[i]->kind, p->coll[i]->mesh_dim, at); /* entries are never freed */
            x->site = at;
        }
        if (x->e) {
            x->e->e.count++;
            x->e->e.bytes += (uint64_t)x->bytes;
        }
        if (meet) meet[i].moved_ctx = x->e;
        if (x->simulated || !x->counts) continue; /* the simulation's report has the bytes by link */
        const dt_coll *c = p->coll[i];
        for (int k = 0; k < c->n; k++)
            if (c->party[k].bytes_sent) count_sender(c->party[k].device, (uint64_t)c->party[k].bytes_sent);
    }
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < p->n_colls && meet; i++) meet[i].moved = dt_comm_moved;
}

void dt_comm_moved(void *e, dt_device sender, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    if (e) ((entry *)e)->e.bytes += bytes;
    count_sender(sender, bytes);
    pthread_mutex_unlock(&lock);
}

void dt_comm_moved_there(const char *kind, const char *mesh_dim, uint32_t site, dt_device sender, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    entry *e = entry_of(kind, mesh_dim, site);
    pthread_mutex_unlock(&lock);
    dt_comm_moved(e, sender, bytes);
}

size_t dt_log_last(const void *ring, size_t each, size_t size, uint64_t n, void *out, size_t cap) {
    uint64_t first = n > size ? n - size : 0;
    size_t k = 0;
    for (; first + k < n && k < cap; k++) memcpy((char *)out + k * each, (const char *)ring + (first + k) % size * each, each);
    return k;
}

size_t dt_comm_report(dt_comm_entry *out, size_t cap) {
    pthread_mutex_lock(&lock);
    size_t n = 0;
    for (size_t i = 0; entries.slot && i <= entries.mask; i++)
        for (dt_hlink *l = entries.slot[i]; l; l = l->next, n++)
            if (n < cap) out[n] = ((entry *)l)->e;
    pthread_mutex_unlock(&lock);
    return n;
}

size_t dt_comm_devices(dt_comm_sent *out, size_t cap) {
    pthread_mutex_lock(&lock);
    size_t n = n_sent;
    memcpy(out, sent, sizeof *out * (n < cap ? n : cap));
    pthread_mutex_unlock(&lock);
    return n;
}
