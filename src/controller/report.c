/* What was communicated: one entry per (collective, mesh dimension, user line). A lock, because a user's thread reads it. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "controller/engine.h"

enum { MAX_ENTRIES = 4096 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dt_comm_entry entries[MAX_ENTRIES];
static size_t count;

void dt_comm_count(const dt_coll *c, uint32_t site) {
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i < count && (entries[i].site != site || strcmp(entries[i].kind, c->kind) || strcmp(entries[i].mesh_dim, c->mesh_dim))) i++;
    if (i == count && count < MAX_ENTRIES) {
        entries[count] = (dt_comm_entry){.site = site};
        snprintf(entries[count].kind, sizeof entries[count].kind, "%s", c->kind);
        snprintf(entries[count].mesh_dim, sizeof entries[count].mesh_dim, "%s", c->mesh_dim);
        count++;
    }
    if (i < count) {
        entries[i].count++;
        entries[i].bytes += (uint64_t)c->bytes_moved;
    }
    pthread_mutex_unlock(&lock);
}

size_t dt_comm_report(dt_comm_entry *out, size_t cap) {
    pthread_mutex_lock(&lock);
    size_t n = count;
    memcpy(out, entries, sizeof *out * (n < cap ? n : cap));
    pthread_mutex_unlock(&lock);
    return n;
}

void dt_comm_report_reset(void) {
    pthread_mutex_lock(&lock);
    count = 0;
    pthread_mutex_unlock(&lock);
}
