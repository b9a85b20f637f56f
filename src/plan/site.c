/* Call sites and late errors. See record.h.
 *
 * Sites are interned once a line of user code and never freed; the table takes a lock. An error's text names the site, so that it can be
 * raised
 * anywhere later. When host memory is gone there is still one static error to give. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "plan/record.h"

typedef struct site {
    dt_hlink link;
    uint32_t id;
    int line;
    const char *file, *func; /* interned */
} site;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dt_htab table;
static site **sites; /* by id - 1 */
static uint32_t n_sites, cap_sites;

static site *add(uint64_t h, const char *file, int line, const char *func) {
    if (n_sites == cap_sites) {
        uint32_t cap = cap_sites ? cap_sites * 2 : 256;
        site **p = dt_realloc(sites, cap * sizeof *p);
        if (!p) return NULL;
        sites = p;
        cap_sites = cap;
    }
    site *s = dt_malloc(sizeof *s);
    if (!s) return NULL;
    *s = (site){.id = n_sites + 1, .line = line, .file = file, .func = func};
    if (dt_htab_add(&table, &s->link, h)) {
        dt_free(s);
        return NULL;
    }
    return sites[n_sites++] = s;
}

uint32_t dt_site_intern(const char *file, int line, const char *func) {
    const char *f = dt_intern(file ? file : "?"), *fn = dt_intern(func ? func : "");
    if (!f || !fn) return 0;
    uint64_t h = dt_hash_mix(dt_hash_mix((uint64_t)(uintptr_t)f, (uint64_t)line), (uint64_t)(uintptr_t)fn);
    pthread_mutex_lock(&lock);
    site *found = NULL;
    if (table.slot || !dt_htab_init(&table, 256)) {
        for (dt_hlink *l = dt_htab_first(&table, h); l && !found; l = l->next) {
            site *s = (site *)l;
            if (l->hash == h && s->line == line && s->file == f && s->func == fn) found = s;
        }
        if (!found) found = add(h, f, line, fn);
    }
    uint32_t id = found ? found->id : 0;
    pthread_mutex_unlock(&lock);
    return id;
}

bool dt_site_get(uint32_t id, const char **file, int *line, const char **func) {
    pthread_mutex_lock(&lock);
    const site *s = id && id <= n_sites ? sites[id - 1] : NULL;
    if (s) {
        *file = s->file;
        *line = s->line;
        *func = s->func;
    }
    pthread_mutex_unlock(&lock);
    return s != NULL;
}

static dt_error_t no_memory = {.refs = 1, .status = DT_E_NOMEM, .text = "out of host memory while recording a failure"};

dt_error_t *dt_error_new(dt_status status, uint32_t id, const char *op, const char *text) {
    dt_error_t *e = dt_malloc(sizeof *e);
    if (!e) return &no_memory;
    atomic_init(&e->refs, 1);
    e->status = status;
    e->site = id;
    dt_str s = {e->text, sizeof e->text, 0};
    e->text[0] = 0;
    bool named = op && *op && strncmp(text, op, strlen(op)) != 0;
    dt_str_add(&s, "%s%s%.380s", named ? op : "", named ? ": " : "", text);
    const char *file, *func;
    int line;
    if (dt_site_get(id, &file, &line, &func)) {
        size_t n = strlen(file);
        dt_str_add(&s, "\n  in the call at %s%s:%d", n > 90 ? "..." : "", n > 90 ? file + n - 90 : file, line);
        if (*func) dt_str_add(&s, ", in %s", func);
    }
    return e;
}

dt_error_t *dt_error_ref(dt_error_t *e) {
    if (e != &no_memory) atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    return e;
}

void dt_error_unref(dt_error_t *e) {
    if (e && e != &no_memory && atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) == 1) dt_free(e);
}
