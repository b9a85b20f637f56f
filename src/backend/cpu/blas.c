/* Loading OpenBLAS. See blas.h. */
#include "backend/cpu/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;
static dt_blas table;
static bool complete;

void *dt_blas_symbol(const char *name) {
    char text[96];
    if (!dt_blas_get()) return NULL;
    snprintf(text, sizeof text, "scipy_%s", name);
    void *p = dlsym(library, text);
    return p ? p : dlsym(library, name);
}

static void *find(const char *name) {
    char text[96];
    snprintf(text, sizeof text, "scipy_%s", name);
    void *p = dlsym(library, text);
    return p ? p : dlsym(library, name);
}

static void load(void) {
    const char *env = getenv("DTORCH_OPENBLAS");
    if (env && !strcmp(env, "none")) return; /* our own GEMM, for tests */
    const char *names[] = {env, "libscipy_openblas.so", "libopenblas.so.0"};
    for (int i = 0; i < 3 && !library; i++)
        if (names[i] && *names[i]) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    *(void **)&table.sgemm = find("cblas_sgemm");
    *(void **)&table.dgemm = find("cblas_dgemm");
    *(void **)&table.sgemv = find("cblas_sgemv");
    *(void **)&table.dgemv = find("cblas_dgemv");
    void (*threads)(int);
    *(void **)&threads = find("openblas_set_num_threads");
    complete = table.sgemm && table.dgemm && table.sgemv && table.dgemv && threads;
    if (complete) threads(1);
}

const dt_blas *dt_blas_get(void) {
    pthread_once(&once, load);
    return complete ? &table : NULL;
}
