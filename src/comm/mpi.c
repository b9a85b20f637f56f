/* Finding MPI. See mpi.h. Which library first: the one whose launcher's variables are in the environment, since a program must use the MPI that
 * started it. */
#include "comm/mpi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "comm/net.h"

enum { LONGEST_VERSION = 8192 };

static void *open_one(const char *name, char *tried, size_t cap) {
    void *h = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    size_t n = strlen(tried), more = strlen(name);
    if (!h && n + more + 3 <= cap) { /* a message lists them; what has no room is left out */
        if (n) memcpy(tried + n, ", ", 2), n += 2;
        memcpy(tried + n, name, more + 1);
    }
    return h;
}

/* In the lib folder of the Python environment (DTORCH_PREFIX, which the package sets). */
static void *open_in_prefix(const char *name, char *tried, size_t cap) {
    const char *prefix = getenv("DTORCH_PREFIX");
    char file[4096];
    if (!prefix || !*prefix) return NULL;
    snprintf(file, sizeof file, "%s/lib/%s", prefix, name);
    FILE *f = fopen(file, "rb");
    if (!f) return NULL;
    fclose(f);
    return open_one(file, tried, cap);
}

/* Beside mpiexec: a wheel's library lies in lib next to its bin. */
static void *open_beside_launcher(const char *name, char *tried, size_t cap) {
    const char *path = getenv("PATH");
    char file[4096];
    while (path && *path) {
        int n = (int)strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/mpiexec", n, path);
        FILE *f = fopen(file, "rb");
        if (f) {
            fclose(f);
            snprintf(file, sizeof file, "%.*s/../lib/%s", n, path, name);
            return open_one(file, tried, cap);
        }
        path += n + (path[n] == ':');
    }
    return NULL;
}

typedef struct wanted {
    const char *name;
    void *slot;
} wanted;
static bool bind_all(void *h, const wanted *f, size_t n) {
    for (size_t i = 0; i < n; i++) {
        void *p = dlsym(h, f[i].name);
        if (!p) return false;
        memcpy(f[i].slot, &p, sizeof p);
    }
    return true;
}

static bool bind_functions(void *h, dt_mpi *m) {
    const wanted f[] = {
        {"MPI_Init_thread", &m->init_thread},
        {"MPI_Initialized", &m->initialized},
        {"MPI_Finalize", &m->finalize},
        {"MPI_Comm_rank", &m->comm_rank},
        {"MPI_Comm_size", &m->comm_size},
        {"MPI_Comm_set_errhandler", &m->set_errhandler},
        {"MPI_Isend", &m->isend},
        {"MPI_Irecv", &m->irecv},
        {"MPI_Recv", &m->recv},
        {"MPI_Iprobe", &m->iprobe},
        {"MPI_Test", &m->test},
        {"MPI_Get_count", &m->get_count},
        {"MPI_Abort", &m->abort},
        {"MPI_Get_library_version", &m->get_library_version},
    };
    return bind_all(h, f, sizeof f / sizeof *f);
}

static void bind_tolerance(void *h, dt_mpi *m) {
    const wanted f[] = {
        {"MPIX_Comm_failure_ack", &m->failure_ack}, {"MPIX_Comm_failure_get_acked", &m->failure_get_acked},   {"MPI_Comm_group", &m->comm_group},
        {"MPI_Group_size", &m->group_size},         {"MPI_Group_translate_ranks", &m->group_translate_ranks}, {"MPI_Group_free", &m->group_free},
    };
    if (bind_all(h, f, sizeof f / sizeof *f)) m->tolerant = dlsym(h, "ompi_ftmpi_enabled");
}

/* MPI 5.0, section 20.3: constants of the standard ABI. */
static void standard_constants(dt_mpi *m) {
    m->world = (dt_mpi_handle)0x101;
    m->byte = (dt_mpi_handle)0x247;
    m->request_null = (dt_mpi_handle)0x180;
    m->errors_return = (dt_mpi_handle)0x143;
    m->any_source = -1;
    m->funneled = 1024;
}

static bool open_mpi_constants(void *h, dt_mpi *m) {
    m->world = dlsym(h, "ompi_mpi_comm_world");
    m->byte = dlsym(h, "ompi_mpi_byte");
    m->request_null = dlsym(h, "ompi_request_null");
    m->errors_return = dlsym(h, "ompi_mpi_errors_return");
    m->any_source = -1;
    m->funneled = 1;
    bind_tolerance(h, m);
    return m->world && m->byte && m->request_null && m->errors_return;
}

static bool try_handle(void *h, const char *file, dt_mpi *m) {
    if (!h || !bind_functions(h, m)) return false;
    if (!open_mpi_constants(h, m)) {
        if (!dlsym(h, "MPI_Abi_get_version")) return false; /* neither Open MPI nor the standard ABI */
        standard_constants(m);
    }
    m->file = file;
    return true;
}

dt_status dt_mpi_open(dt_mpi *m) {
    static const char *const standard[] = {"libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so", NULL};
    static const char *const open_mpi[] = {"libmpi.so.40", "libmpi.so", NULL};
    char tried[2048] = "";
    const char *own = getenv("DTORCH_MPI");
    *m = (dt_mpi){0};
    if (own && *own) {
        if (try_handle(open_one(own, tried, sizeof tried), own, m)) return DT_OK;
        return dt_fail(DT_E_NOTIMPL, "MPI: DTORCH_MPI=%s cannot be used: %s", own, tried[0] ? dlerror() : "neither the MPI ABI nor Open MPI");
    }
    bool open_first = getenv("OMPI_COMM_WORLD_RANK") != NULL;
    for (int pass = 0; pass < 2; pass++) {
        const char *const *names = (pass == 0) == open_first ? open_mpi : standard;
        for (int i = 0; names[i]; i++) {
            if (try_handle(open_beside_launcher(names[i], tried, sizeof tried), names[i], m)) return DT_OK;
            if (try_handle(open_in_prefix(names[i], tried, sizeof tried), names[i], m)) return DT_OK;
            if (try_handle(open_one(names[i], tried, sizeof tried), names[i], m)) return DT_OK;
        }
    }
    return dt_fail(DT_E_NOTIMPL,
                   "MPI: no library found (tried %s). Install the extra dtorch[mpi], or set DTORCH_MPI to a libmpi_abi.so or Open MPI's libmpi.so", tried);
}

void dt_mpi_version(const dt_mpi *m, char *text, size_t cap) {
    int n = 0;
    char *version = dt_calloc(1, LONGEST_VERSION + 1);
    *text = 0;
    if (version && !m->get_library_version(version, &n)) {
        version[strcspn(version, "\n,")] = 0;
        snprintf(text, cap, "%.200s (%.40s)", version, m->file);
    }
    dt_free(version);
}

int dt_mpi_failed(const dt_mpi *m, int *rank, int cap) {
    dt_mpi_handle world, failed;
    int n = 0;
    if (!dt_mpi_tolerant(m) || m->failure_ack(m->world) || m->failure_get_acked(m->world, &failed)) return 0;
    if (m->comm_group(m->world, &world) == 0) {
        if (m->group_size(failed, &n)) n = 0;
        n = n < cap ? n : cap;
        for (int i = 0; i < n; i++)
            if (m->group_translate_ranks(failed, 1, &i, world, &rank[i])) rank[i] = -1;
        m->group_free(&world);
    }
    m->group_free(&failed);
    return n;
}

dt_status dt_net_probe(char *text, size_t cap) {
    dt_mpi m;
    DT_TRY(dt_mpi_open(&m));
    dt_mpi_version(&m, text, cap);
    return DT_OK;
}
