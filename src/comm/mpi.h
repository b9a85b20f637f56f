/* MPI, found at run time: the few functions and constants that net.c uses, bound to whichever library is there.
 *
 * Two binary interfaces exist: the standard one of MPI 5 (libmpi_abi.so: MPICH from version 5, Intel MPI, others), whose constants are numbers, and Open
 * MPI's, whose constants are addresses of symbols. Handles are pointers in both; a status is read by its first two ints. Nothing of either is
 * needed at build time.
 *
 * Open MPI's fault-tolerant mode (`mpiexec --with-ft ulfm`) lets a run outlive some of its processes. What is used of it: who has failed.
 *
 * Threads: dt_mpi_open by one thread; the functions by the thread that called init. */
#ifndef DT_COMM_MPI_H
#define DT_COMM_MPI_H

#include "base/status.h"

typedef void *dt_mpi_handle;
typedef struct dt_mpi_status {
    int source, tag, rest[14]; /* larger than any */
} dt_mpi_status;

typedef struct dt_mpi {
    const char *file; /* the library's name as it was opened */
    dt_mpi_handle world, byte, request_null, errors_return;
    int any_source, funneled;
    int (*init_thread)(int *, char ***, int, int *);
    int (*initialized)(int *);
    int (*finalize)(void);
    int (*comm_rank)(dt_mpi_handle, int *);
    int (*comm_size)(dt_mpi_handle, int *);
    int (*set_errhandler)(dt_mpi_handle, dt_mpi_handle);
    int (*isend)(const void *, int, dt_mpi_handle, int, int, dt_mpi_handle, dt_mpi_handle *);
    int (*irecv)(void *, int, dt_mpi_handle, int, int, dt_mpi_handle, dt_mpi_handle *);
    int (*recv)(void *, int, dt_mpi_handle, int, int, dt_mpi_handle, dt_mpi_status *);
    int (*iprobe)(int, int, dt_mpi_handle, int *, dt_mpi_status *);
    int (*test)(dt_mpi_handle *, int *, dt_mpi_status *);
    int (*get_count)(const dt_mpi_status *, dt_mpi_handle, int *);
    int (*get_library_version)(char *, int *);
    int (*abort)(dt_mpi_handle, int);
    /* where the library has the fault-tolerant mode; else NULL */
    const bool *tolerant; /* is it on? Known after init */
    int (*failure_ack)(dt_mpi_handle);
    int (*failure_get_acked)(dt_mpi_handle, dt_mpi_handle *);
    int (*comm_group)(dt_mpi_handle, dt_mpi_handle *);
    int (*group_size)(dt_mpi_handle, int *);
    int (*group_translate_ranks)(dt_mpi_handle, int, const int *, dt_mpi_handle, int *);
    int (*group_free)(dt_mpi_handle *);
} dt_mpi;

/* Opens the library that the launcher belongs to, DTORCH_MPI (a path) if set. E_NOTIMPL names what was tried. */
dt_status dt_mpi_open(dt_mpi *m) DT_WUR;
/* "MPICH 5.0.0 (libmpi_abi.so.1)", for people; "" without memory. */
void dt_mpi_version(const dt_mpi *m, char *text, size_t cap);
static inline bool dt_mpi_tolerant(const dt_mpi *m) { return m->tolerant && *m->tolerant; }
/* Ranks of the world that MPI knows to have failed, those told before among them: how many, `cap` at most. From now on they keep no receive from going on. */
int dt_mpi_failed(const dt_mpi *m, int *rank, int cap);

#endif
