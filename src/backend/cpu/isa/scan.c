/* Scans along one dimension of contiguous tensors: cumsum, cumprod, cummax, cummin, logcumsumexp and their gradients.
 *
 * Floats accumulate in f64, integers in int64. Rows are independent; a row is never split. */
#include "backend/cpu/isa/lanes.h"
#include "ops/reduce.h"

typedef enum scan_kind { SCAN_SUM, SCAN_PROD, SCAN_MAX, SCAN_MIN, SCAN_LSE } scan_kind;
typedef struct scan_job {
    dt_rows r;
    scan_kind kind;
    bool reverse;
    dt_dtype in, out;
    int64_t isize, osize, per;
    const char *x, *g, *z;
    char *y;
    int64_t *index;
} scan_job;

static double log_add(double a, double b) {
    double m = a > b || a != a ? a : b, d = a > b ? b - a : a - b;
    return a == b || m == -INFINITY ? (a == b && fabs(a) < INFINITY ? a + 0.69314718055994530942 : m) : m + log1p(exp(d));
}

#define A double
#define S f64
#define LOAD dt_load_f64
#define STORE dt_store_f64
#define IS_NAN(v) ((v) != (v))
#define INFINITY_OF INFINITY
#include "backend/cpu/isa/scan_t.h"
#define A int64_t
#define S i64
#define LOAD dt_load_i64
#define STORE dt_store_i64
#define IS_NAN(v) false
#define INFINITY_OF INT64_MAX
#include "backend/cpu/isa/scan_t.h"

static scan_job job_of(const dt_kctx *c, const dt_view *in, scan_kind kind) {
    const dt_dim_attr *a = c->attr;
    scan_job j = {.r = dt_rows_of(in, a->dim), .kind = kind, .in = in->dtype, .out = c->out->dtype, .x = in->data, .y = c->out->data};
    j.isize = (int64_t)dt_dtype_size(j.in);
    j.osize = (int64_t)dt_dtype_size(j.out);
    j.per = (j.r.inner + DT_BLOCK - 1) / DT_BLOCK;
    return j;
}
static dt_status scan(const dt_kctx *c, scan_kind kind, bool reverse) {
    scan_job j = job_of(c, &c->in[0], kind);
    j.reverse = reverse;
    if (c->n_out > 1) j.index = c->out[1].data;
    dt_range_run(c->team, j.r.outer * j.per, j.r.n * (j.r.inner < DT_BLOCK ? j.r.inner : DT_BLOCK) * 2, dt_dtype_is_float(j.out) ? units_f64 : units_i64, &j);
    return DT_OK;
}
dt_status DT_ISA_FN(cumsum)(const dt_kctx *c) { return scan(c, SCAN_SUM, false); }
dt_status DT_ISA_FN(cumsum_reverse)(const dt_kctx *c) { return scan(c, SCAN_SUM, true); }
dt_status DT_ISA_FN(cumprod)(const dt_kctx *c) { return scan(c, SCAN_PROD, false); }
dt_status DT_ISA_FN(cummax)(const dt_kctx *c) { return scan(c, SCAN_MAX, false); }
dt_status DT_ISA_FN(cummin)(const dt_kctx *c) { return scan(c, SCAN_MIN, false); }
dt_status DT_ISA_FN(logcumsumexp)(const dt_kctx *c) { return scan(c, SCAN_LSE, false); }

static double at(dt_dtype t, const char *p, int64_t i) { return dt_element_get_f64(t, p + i * (int64_t)dt_dtype_size(t)); }
static void put(dt_dtype t, char *p, int64_t i, double v) { dt_element_set_f64(t, p + i * (int64_t)dt_dtype_size(t), v); }

/* gx_k = (product of x before k) * s_k,  s_k = gy_k + x_(k+1) s_(k+1): exact where x holds zeros. */
static void cumprod_back(void *arg, int64_t lo, int64_t hi) {
    const scan_job *j = arg;
    for (int64_t u = lo; u < hi; u++) {
        int64_t o = u / j->r.inner * j->r.n * j->r.inner + u % j->r.inner, st = j->r.inner, n = j->r.n;
        double before = 1, s = 0;
        for (int64_t i = 0; i < n; i++) {
            put(j->out, j->y, o + i * st, before);
            before *= at(j->in, j->x, o + i * st);
        }
        for (int64_t i = n - 1; i >= 0; i--) {
            s = at(j->in, j->g, o + i * st) + (i + 1 < n ? at(j->in, j->x, o + (i + 1) * st) * s : 0);
            put(j->out, j->y, o + i * st, at(j->out, j->y, o + i * st) * s);
        }
    }
}
/* gx_k = exp(x_k - y_k) r_k,  r_k = gy_k + exp(y_k - y_(k+1)) r_(k+1): every exponent is <= 0. */
static void lse_back(void *arg, int64_t lo, int64_t hi) {
    const scan_job *j = arg;
    for (int64_t u = lo; u < hi; u++) {
        int64_t o = u / j->r.inner * j->r.n * j->r.inner + u % j->r.inner, st = j->r.inner, n = j->r.n;
        double r = 0, next = 0;
        for (int64_t i = n - 1; i >= 0; i--) {
            double y = at(j->in, j->z, o + i * st), x = at(j->in, j->x, o + i * st);
            r = at(j->in, j->g, o + i * st) + (i + 1 == n ? 0 : y == next ? r : exp(y - next) * r);
            put(j->out, j->y, o + i * st, x == -INFINITY ? 0 : exp(x - y) * r);
            next = y;
        }
    }
}
/* in: g, x   out: gx */
dt_status DT_ISA_FN(cumprod_backward)(const dt_kctx *c) {
    scan_job j = job_of(c, &c->in[1], SCAN_PROD);
    j.g = c->in[0].data;
    dt_range_run(c->team, j.r.outer * j.r.inner, j.r.n * 8, cumprod_back, &j);
    return DT_OK;
}
/* in: g, x, y   out: gx */
dt_status DT_ISA_FN(logcumsumexp_backward)(const dt_kctx *c) {
    scan_job j = job_of(c, &c->in[1], SCAN_LSE);
    j.g = c->in[0].data;
    j.z = c->in[2].data;
    dt_range_run(c->team, j.r.outer * j.r.inner, j.r.n * 8, lse_back, &j);
    return DT_OK;
}
