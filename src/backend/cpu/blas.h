/* OpenBLAS, loaded at run time: nothing links against it, and a program without it still works (isa/gemm.c has a GEMM of our own).
 *
 * Where: the environment's DTORCH_OPENBLAS (the Python package sets it to its wheel's library), then the usual sonames. Symbols of the wheel
 * are prefixed "scipy_"; the plain names are tried too. It is told to use one thread: the worker's team splits the work.
 * Threads: any; the first call loads. */
#ifndef DT_BACKEND_CPU_BLAS_H
#define DT_BACKEND_CPU_BLAS_H

#include "base/status.h"

enum { DT_BLAS_ROW = 101, DT_BLAS_COL = 102, DT_BLAS_N = 111, DT_BLAS_T = 112 };

typedef struct dt_blas {
    void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*dgemm)(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a, int lda, const double *b, int ldb, double beta, double *c,
                  int ldc);
    void (*sgemv)(int order, int ta, int m, int n, float alpha, const float *a, int lda, const float *x, int incx, float beta, float *y, int incy);
    void (*dgemv)(int order, int ta, int m, int n, double alpha, const double *a, int lda, const double *x, int incx, double beta, double *y, int incy);
} dt_blas;

/* NULL if no library was found. */
const dt_blas *dt_blas_get(void);
/* A further function of the library by its plain name ("LAPACKE_sgesv"), or NULL. */
void *dt_blas_symbol(const char *name);

#endif
