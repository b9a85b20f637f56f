/* Factorisations by LAPACK (of OpenBLAS, loaded at run time), one matrix a task. f32 and f64, contiguous inputs.
 *
 * LAPACK thinks in columns: a row-major matrix is its transpose. Symmetric problems and those where that is easily undone use this directly; the
 * others copy into columns in scratch. A matrix that cannot be factorised is reported by the smallest batch index, whatever thread met it. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/blas.h"
#include "ops/linalg.h"

typedef struct lapack { /* [0] single, [1] double: the same but for the element type */
    int (*getrf[2])(int, int, int, void *, int, int *);
    int (*getri[2])(int, int, void *, int, const int *);
    int (*getrs[2])(int, char, int, int, const void *, int, const int *, void *, int);
    int (*potrf[2])(int, char, int, void *, int);
    int (*geqrf[2])(int, int, int, void *, int, void *);
    int (*orgqr[2])(int, int, int, int, void *, int, const void *);
    int (*gesdd[2])(int, char, int, int, void *, int, void *, void *, int, void *, int);
    int (*syevd[2])(int, char, char, int, void *, int, void *);
} lapack;
static lapack table;
static bool complete;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
    static const struct {
        const char *name;
        size_t at;
    } wanted[] = {{"getrf", offsetof(lapack, getrf)}, {"getri", offsetof(lapack, getri)}, {"getrs", offsetof(lapack, getrs)},
                  {"potrf", offsetof(lapack, potrf)}, {"geqrf", offsetof(lapack, geqrf)}, {"orgqr", offsetof(lapack, orgqr)},
                  {"gesdd", offsetof(lapack, gesdd)}, {"syevd", offsetof(lapack, syevd)}};
    complete = true;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        for (int t = 0; t < 2; t++) {
            char name[32];
            snprintf(name, sizeof name, "LAPACKE_%c%s", "sd"[t], wanted[i].name);
            void *p = dt_blas_symbol(name);
            memcpy((char *)&table + wanted[i].at + (size_t)t * sizeof p, &p, sizeof p);
            complete &= p != NULL;
        }
}

enum { COL = DT_BLAS_COL };

/* A batch of matrices. fn returns LAPACK's info. */
typedef struct job {
    const dt_kctx *c;
    const dt_linalg_attr *a;
    int t;       /* 0 single, 1 double */
    size_t size; /* of an element */
    int64_t m, n, batch;
    size_t scratch; /* of one matrix */
    int (*fn)(struct job *j, int64_t i);
    int32_t *info;              /* one a matrix, or NULL */
    _Atomic uint64_t first_bad; /* batch index << 32 | info */
} job;

static void *slice(const job *j, const dt_view *v, int tail, int64_t i) { /* matrix (vector) i of v */
    int64_t each = 1;
    for (int d = v->ndim - tail; d < v->ndim; d++) each *= v->shape[d];
    return (char *)v->data + (size_t)(i * each) * dt_dtype_size(v->dtype);
}
static char *room(const job *j, int64_t i) { return (char *)j->c->scratch + (size_t)i * j->scratch; }
static double at(const job *j, const void *p, int64_t i) { return j->t ? ((const double *)p)[i] : (double)((const float *)p)[i]; }
static void put(const job *j, void *p, int64_t i, double v) {
    if (j->t)
        ((double *)p)[i] = v;
    else
        ((float *)p)[i] = (float)v;
}
/* A rows x cols matrix in rows to one in columns; the same call with the sizes exchanged goes back. */
static void to_columns(const job *j, const void *src, int64_t rows, int64_t cols, void *dst) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            if (j->t)
                ((double *)dst)[c * rows + r] = ((const double *)src)[r * cols + c];
            else
                ((float *)dst)[c * rows + r] = ((const float *)src)[r * cols + c];
        }
}

static void task(void *arg, int64_t i) {
    job *j = arg;
    int info = j->fn(j, i);
    if (j->info) j->info[i] = info;
    if (!info) return;
    uint64_t mine = (uint64_t)i << 32 | (uint32_t)info, seen = atomic_load(&j->first_bad);
    while (mine < seen && !atomic_compare_exchange_weak(&j->first_bad, &seen, mine)) {}
}

/* `what` completes the sentence "linalg: …" about info. */
static dt_status run(const dt_kctx *c, int (*fn)(job *, int64_t), const char *what, int32_t *info) {
    pthread_once(&once, load);
    if (!complete) return dt_fail(DT_E_NOTIMPL, "linalg: no LAPACK library was found; install scipy-openblas32 or name a library in DTORCH_OPENBLAS");
    const dt_view *a = &c->in[0];
    job j = {.c = c, .a = c->attr, .t = a->dtype == DT_float64, .size = dt_dtype_size(a->dtype), .fn = fn, .info = info, .first_bad = UINT64_MAX, .batch = 1};
    j.m = a->shape[a->ndim - 2];
    j.n = a->shape[a->ndim - 1];
    for (int d = 0; d < a->ndim - 2; d++) j.batch *= a->shape[d];
    j.scratch = dt_linalg_scratch(j.m, j.n, j.size);
    dt_team_run(c->team, task, &j, j.batch);
    uint64_t bad = atomic_load(&j.first_bad);
    if (bad == UINT64_MAX) return DT_OK;
    int code = (int32_t)(uint32_t)bad;
    if (code <= -1010) return dt_fail(DT_E_NOMEM, "linalg: LAPACK is out of host memory");
    if (info && !j.a->check) return DT_OK;
    char where[48] = "";
    if (a->ndim > 2) snprintf(where, sizeof where, "(Batch element %lld): ", (long long)(bad >> 32));
    return dt_fail(DT_E_LINALG, what, where, code);
}

/* ---- general matrices ---- */
static int invert(job *j, int64_t i) { /* the inverse of the transpose is the transpose of the inverse: no copies */
    void *x = slice(j, &j->c->out[0], 2, i);
    int n = (int)j->n, *pivots = (int *)(void *)room(j, i);
    memcpy(x, slice(j, &j->c->in[0], 2, i), (size_t)(j->n * j->n) * j->size);
    if (!n) return 0;
    int info = table.getrf[j->t](COL, n, n, x, n, pivots);
    return info ? info : table.getri[j->t](COL, n, x, n, pivots);
}
DT_CPU_KERNEL(linalg_inv);
DT_CPU_KERNEL(linalg_inv) {
    return run(c, invert, "linalg.inv: %sThe diagonal element %d is zero, the inversion could not be completed because the input matrix is singular.",
               c->out[1].data);
}

static int solve(job *j, int64_t i) { /* a x = b, b (n, k) */
    const dt_view *b = &j->c->in[1];
    int64_t k = b->shape[b->ndim - 1];
    char *lu = room(j, i), *rhs = lu + (size_t)(j->n * j->n) * j->size;
    int n = (int)j->n, *pivots = (int *)(void *)(room(j, i) + j->scratch - (size_t)(j->n + 1) * 4);
    void *x = slice(j, &j->c->out[0], 2, i);
    memcpy(lu, slice(j, &j->c->in[0], 2, i), (size_t)(j->n * j->n) * j->size);
    if (!n) return 0;
    int info = table.getrf[j->t](COL, n, n, lu, n, pivots); /* of the transpose */
    if (info || !k) return info;
    for (int64_t c0 = 0; c0 < k; c0 += j->n) { /* n right-hand sides at a time: they fit the scratch */
        int64_t cols = k - c0 < j->n ? k - c0 : j->n;
        const char *src = slice(j, b, 2, i);
        for (int64_t r = 0; r < j->n; r++)
            for (int64_t q = 0; q < cols; q++) put(j, rhs, q * j->n + r, at(j, src, r * k + c0 + q));
        info = table.getrs[j->t](COL, 'T', n, (int)cols, lu, n, pivots, rhs, n);
        for (int64_t r = 0; r < j->n; r++)
            for (int64_t q = 0; q < cols; q++) put(j, x, r * k + c0 + q, at(j, rhs, q * j->n + r));
    }
    return info;
}
DT_CPU_KERNEL(linalg_solve);
DT_CPU_KERNEL(linalg_solve) {
    return run(c, solve, "linalg.solve: %sThe solver failed because the input matrix is singular (diagonal element %d is zero).", c->out[1].data);
}

/* sign and log |det|; out[0] is the determinant, out[1] the sign, out[2] the logarithm */
static int determinant(job *j, int64_t i) {
    char *lu = room(j, i);
    int n = (int)j->n, *pivots = (int *)(void *)(room(j, i) + j->scratch - (size_t)(j->n + 1) * 4);
    double det = 1, sign = 1, log_abs = 0;
    memcpy(lu, slice(j, &j->c->in[0], 2, i), (size_t)(j->n * j->n) * j->size);
    if (n) table.getrf[j->t](COL, n, n, lu, n, pivots);
    for (int64_t k = 0; k < j->n; k++) {
        double d = at(j, lu, k * j->n + k);
        bool swapped = pivots[k] != k + 1;
        det *= swapped ? -d : d;
        sign *= (d < 0) != swapped ? -1 : d == 0 ? 0 : 1;
        log_abs += log(fabs(d));
        if (d != d) sign = d;
    }
    put(j, j->c->out[0].data, i, det);
    put(j, j->c->out[1].data, i, sign);
    put(j, j->c->out[2].data, i, log_abs);
    return 0;
}
DT_CPU_KERNEL(linalg_det);
DT_CPU_KERNEL(linalg_det) { return run(c, determinant, "linalg.det: %s%d", NULL); }

/* ---- symmetric matrices ---- */
static int cholesky(job *j, int64_t i) {
    void *x = slice(j, &j->c->out[0], 2, i);
    int n = (int)j->n;
    memcpy(x, slice(j, &j->c->in[0], 2, i), (size_t)(j->n * j->n) * j->size);
    int info = n ? table.potrf[j->t](COL, j->a->upper ? 'L' : 'U', n, x, n) : 0; /* columns: upper is lower */
    for (int64_t r = 0; r < j->n; r++)
        for (int64_t c = 0; c < j->n; c++)
            if (j->a->upper ? c < r : c > r) put(j, x, r * j->n + c, 0);
    return info;
}
DT_CPU_KERNEL(linalg_cholesky);
DT_CPU_KERNEL(linalg_cholesky) {
    return run(c, cholesky,
               "linalg.cholesky: %sThe factorization could not be completed because the input is not positive-definite (the leading minor of order %d is not "
               "positive-definite).",
               c->out[1].data);
}

static int eigh(job *j, int64_t i) { /* out: values, vectors in columns */
    char *v = room(j, i);
    int n = (int)j->n;
    to_columns(j, slice(j, &j->c->in[0], 2, i), j->n, j->n, v);
    int info = n ? table.syevd[j->t](COL, 'V', j->a->upper ? 'U' : 'L', n, v, n, slice(j, &j->c->out[0], 1, i)) : 0;
    to_columns(j, v, j->n, j->n, slice(j, &j->c->out[1], 2, i));
    return info;
}
DT_CPU_KERNEL(linalg_eigh);
DT_CPU_KERNEL(linalg_eigh) {
    return run(
        c, eigh,
        "linalg.eigh: %sThe algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated eigenvalues (error code: %d).",
        NULL);
}

/* ---- triangular systems: plain substitution, a row of b at a time ---- */
static int triangular(job *j, int64_t i) {
    const dt_view *b = &j->c->in[1];
    int64_t n = j->n, rows = b->shape[b->ndim - 2], k = b->shape[b->ndim - 1];
    const char *a = slice(j, &j->c->in[0], 2, i);
    char *x = slice(j, &j->c->out[0], 2, i);
    memcpy(x, slice(j, b, 2, i), (size_t)(rows * k) * j->size);
    bool unit = j->a->unitriangular, down = j->a->left != j->a->upper; /* from the first row or column to the last */
    for (int64_t s = 0; s < n; s++) {
        int64_t p = down ? s : n - 1 - s;
        double pivot = unit ? 1 : at(j, a, p * n + p);
        for (int64_t q = 0; q < (j->a->left ? k : rows); q++) {
            int64_t mine = j->a->left ? p * k + q : q * k + p;
            double sum = at(j, x, mine);
            for (int64_t r = down ? 0 : p + 1; r < (down ? p : n); r++)
                sum -= j->a->left ? at(j, a, p * n + r) * at(j, x, r * k + q) : at(j, x, q * k + r) * at(j, a, r * n + p);
            put(j, x, mine, sum / pivot);
        }
    }
    return 0;
}
DT_CPU_KERNEL(linalg_solve_triangular);
DT_CPU_KERNEL(linalg_solve_triangular) { return run(c, triangular, "linalg.solve_triangular: %s%d", NULL); }

/* ---- orthogonal factorisations ---- */
static int qr(job *j, int64_t i) { /* out: q (m, k or m), r (k or m, n) */
    int64_t m = j->m, n = j->n, k = m < n ? m : n, p = j->a->full ? m : k, big = m > n ? m : n;
    char *f = room(j, i), *tau = f + (size_t)((big + 1) * (big + 1)) * j->size;
    to_columns(j, slice(j, &j->c->in[0], 2, i), m, n, f);
    int info = k ? table.geqrf[j->t](COL, (int)m, (int)n, f, (int)m, tau) : 0;
    char *r = slice(j, &j->c->out[1], 2, i), *q = slice(j, &j->c->out[0], 2, i);
    for (int64_t a = 0; a < p; a++)
        for (int64_t b = 0; b < n; b++) put(j, r, a * n + b, a <= b && a < k ? at(j, f, b * m + a) : 0);
    if (!info && p && k) info = table.orgqr[j->t](COL, (int)m, (int)p, (int)k, f, (int)m, tau);
    for (int64_t a = 0; a < m; a++)
        for (int64_t b = 0; b < p; b++) put(j, q, a * p + b, k ? at(j, f, b * m + a) : a == b);
    return info;
}
DT_CPU_KERNEL(linalg_qr);
DT_CPU_KERNEL(linalg_qr) { return run(c, qr, "linalg.qr: %sLAPACK reports %d", NULL); }

/* The transpose (what LAPACK sees) is v s u': its left vectors are our vh in rows, its right ones our u. out: u, s, vh */
static int svd(job *j, int64_t i) {
    int64_t m = j->m, n = j->n, k = m < n ? m : n, pu = j->a->full ? m : k, pv = j->a->full ? n : k;
    void *u = slice(j, &j->c->out[0], 2, i), *s = slice(j, &j->c->out[1], 1, i), *vh = slice(j, &j->c->out[2], 2, i);
    char *copy = room(j, i);
    if (!k) { /* nothing to factorise: identities */
        for (int64_t a = 0; a < m * pu; a++) put(j, u, a, a / (pu ? pu : 1) == a % (pu ? pu : 1));
        for (int64_t a = 0; a < pv * n; a++) put(j, vh, a, a / (n ? n : 1) == a % (n ? n : 1));
        return 0;
    }
    memcpy(copy, slice(j, &j->c->in[0], 2, i), (size_t)(m * n) * j->size);
    return table.gesdd[j->t](COL, j->a->full ? 'A' : 'S', (int)n, (int)m, copy, (int)n, s, vh, (int)n, u, (int)pu);
}
DT_CPU_KERNEL(linalg_svd);
DT_CPU_KERNEL(linalg_svd) {
    return run(
        c, svd,
        "linalg.svd: %sThe algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated singular values (error code: %d).",
        NULL);
}

/* sum over the singular values above the tolerance of v u' / s */
static int pinv(job *j, int64_t i) {
    int64_t m = j->m, n = j->n, k = m < n ? m : n, big = (m > n ? m : n) + 1;
    char *x = slice(j, &j->c->out[0], 2, i), *copy = room(j, i), *u = copy + (size_t)(big * big) * j->size, *vh = u + (size_t)(big * big) * j->size,
         *s = vh + (size_t)(big * big) * j->size;
    if (!k) return 0;
    memcpy(copy, slice(j, &j->c->in[0], 2, i), (size_t)(m * n) * j->size);
    for (int64_t r = 0; j->a->hermitian && r < n; r++) /* the upper triangle is the lower one's mirror image */
        for (int64_t q = r + 1; q < n; q++) put(j, copy, r * n + q, at(j, copy, q * n + r));
    int info = table.gesdd[j->t](COL, 'S', (int)n, (int)m, copy, (int)n, s, vh, (int)n, u, (int)k); /* vh (k, n), u (m, k), in rows */
    double tol = j->a->rtol * at(j, s, 0);
    if (j->a->atol > tol) tol = j->a->atol;
    for (int64_t a = 0; a < n; a++)
        for (int64_t b = 0; b < m; b++) {
            double sum = 0;
            for (int64_t q = 0; q < k && !info; q++)
                if (at(j, s, q) > tol) sum += at(j, vh, q * n + a) * at(j, u, b * k + q) / at(j, s, q);
            put(j, x, a * m + b, sum);
        }
    return info;
}
DT_CPU_KERNEL(linalg_pinv);
DT_CPU_KERNEL(linalg_pinv) { return run(c, pinv, "linalg.pinv: %sThe singular values did not converge (error code: %d).", NULL); }
