/* Embedding look-up and its dense gradient. See ops/embedding.c for the contract. */
#include <string.h>

#include "backend/cpu/accum.h"
#include "backend/cpu/copy.h"
#include "backend/cpu/fusing.h"
#include "ops/movement.h"

enum { WORK = 32768, COLUMNS = 256 };

/* Element i of an integer view, counted in row-major order. */
static int64_t index_at(const dt_view *v, int64_t i) {
    int64_t o = dt_view_offset(v, i);
    return v->dtype == DT_int64 ? ((const int64_t *)v->data)[o] : ((const int32_t *)v->data)[o];
}

/* ---- look-up ---- */
typedef struct lookup_job {
    const dt_kctx *c;
    int64_t n, n_a_task;
} lookup_job;
static void lookup_task(void *arg, int64_t t) {
    const lookup_job *j = arg;
    const dt_view *index = &j->c->in[0], *w = &j->c->in[1];
    int64_t lo = j->c->in_place[1].lo[0], cols = w->shape[1], i1 = (t + 1) * j->n_a_task;
    size_t elem = dt_dtype_size(w->dtype), row = (size_t)cols * elem;
    for (int64_t i = t * j->n_a_task; i < (i1 < j->n ? i1 : j->n); i++) {
        int64_t r = index_at(index, i) - lo;
        char *d = (char *)j->c->out[0].data + (size_t)i * row;
        if (r < 0 || r >= w->shape[0]) {
            memset(d, 0, row);
            continue;
        }
        const char *s = (const char *)w->data + (r * w->stride[0]) * (int64_t)elem;
        if (w->stride[1] == 1)
            memcpy(d, s, row);
        else
            for (int64_t k = 0; k < cols; k++) memcpy(d + (size_t)k * elem, s + k * w->stride[1] * (int64_t)elem, elem);
    }
}
DT_CPU_KERNEL(embedding);
dt_status dt_cpu_embedding(const dt_kctx *c) {
    lookup_job j = {.c = c, .n = dt_view_numel(&c->in[0])};
    DT_TRY(dt_cpu_check_index(DT_LOOKUP_EMBEDDING, c->op, &c->in[0], 0, 0, c->in_place[1].shape[0]));
    if (c->in[1].shape[1] == 0) return DT_OK;
    j.n_a_task = c->in[1].shape[1] >= WORK ? 1 : WORK / c->in[1].shape[1];
    dt_team_run(c->team, lookup_task, &j, (j.n + j.n_a_task - 1) / j.n_a_task);
    return DT_OK;
}

/* ---- gradient ----
 * scratch: head[rows]: 1 + the first position of each row in the flat indices, 0 = none; next[n]: the following position, in ascending order. */
typedef struct sum_job {
    const dt_kctx *c;
    int32_t *head, *next;
    int64_t rows, rows_a_task;
} sum_job;

size_t dt_cpu_embedding_backward_scratch(const dt_kctx *c) { return (size_t)(c->out[0].shape[0] + dt_view_numel(&c->in[1]) + 1) * sizeof(int32_t); }

/* Where row i (of the flat indices) of grad_output starts, in elements. */
static int64_t gy_row(const dt_view *gy, int64_t i) {
    int64_t o = 0;
    for (int d = gy->ndim - 2; d >= 0; d--) {
        o += i % gy->shape[d] * gy->stride[d];
        i /= gy->shape[d];
    }
    return o;
}

/* The sum of the rows in the list that starts at `first`, columns [k0, k0 + n), into acc. Returns how many rows. */
#define SUM_ROWS(acc_t, load)                                            \
    for (int32_t p = first; p; p = j->next[p - 1], count++) {            \
        int64_t at = gy_row(gy, p - 1) + k0 * gy->stride[gy->ndim - 1];  \
        for (int64_t k = 0; k < n; k++) acc[k] += load(at + k * stride); \
    }
#define LOAD_F32(o) ((const float *)gy->data)[o]
#define LOAD_F64(o) ((const double *)gy->data)[o]
#define LOAD_BF16(o) dt_bf16_to_f32(((const uint16_t *)gy->data)[o])
#define LOAD_F16(o) dt_f16_to_f32(((const uint16_t *)gy->data)[o])

static int64_t sum_f32(const sum_job *j, const dt_view *gy, int32_t first, int64_t k0, int64_t n, float *acc) {
    int64_t count = 0, stride = gy->stride[gy->ndim - 1];
    memset(acc, 0, (size_t)n * sizeof *acc);
    if (gy->dtype == DT_float32 && stride == 1) {
        for (int32_t p = first; p; p = j->next[p - 1], count++) {
            dt_cpu_add_f32(acc, (const float *)gy->data + gy_row(gy, p - 1) + k0, n);
        }
    } else if (gy->dtype == DT_float32) {
        SUM_ROWS(float, LOAD_F32)
    } else if (gy->dtype == DT_bfloat16) {
        SUM_ROWS(float, LOAD_BF16)
    } else {
        SUM_ROWS(float, LOAD_F16)
    }
    return count;
}
static int64_t sum_f64(const sum_job *j, const dt_view *gy, int32_t first, int64_t k0, int64_t n, double *acc) {
    int64_t count = 0, stride = gy->stride[gy->ndim - 1];
    memset(acc, 0, (size_t)n * sizeof *acc);
    SUM_ROWS(double, LOAD_F64)
    return count;
}
static void sum_row(const sum_job *j, int64_t row) {
    const dt_view *gy = &j->c->in[0], *out = &j->c->out[0];
    bool scale = ((const dt_embedding_attr *)j->c->attr)->scale_grad_by_freq;
    int64_t cols = out->shape[1];
    char *d = (char *)out->data + (size_t)(row * cols) * dt_dtype_size(out->dtype);
    int32_t first = j->head[row];
    if (!first) {
        memset(d, 0, (size_t)cols * dt_dtype_size(out->dtype));
        return;
    }
    for (int64_t k0 = 0; k0 < cols; k0 += COLUMNS) {
        int64_t n = cols - k0 < COLUMNS ? cols - k0 : COLUMNS;
        if (out->dtype == DT_float64) {
            double *acc = (double *)d + k0;
            int64_t count = sum_f64(j, gy, first, k0, n, acc);
            for (int64_t k = 0; scale && k < n; k++) acc[k] /= (double)count;
            continue;
        }
        float buf[COLUMNS], *acc = out->dtype == DT_float32 ? (float *)d + k0 : buf;
        int64_t count = sum_f32(j, gy, first, k0, n, acc);
        for (int64_t k = 0; scale && k < n; k++) acc[k] /= (float)count;
        if (out->dtype == DT_bfloat16)
            for (int64_t k = 0; k < n; k++) ((uint16_t *)d)[k0 + k] = dt_bf16_from_f32(acc[k]);
        if (out->dtype == DT_float16)
            for (int64_t k = 0; k < n; k++) ((uint16_t *)d)[k0 + k] = dt_f16_from_f32(acc[k]);
    }
}
static void sum_task(void *arg, int64_t t) {
    const sum_job *j = arg;
    int64_t r1 = (t + 1) * j->rows_a_task;
    for (int64_t r = t * j->rows_a_task; r < (r1 < j->rows ? r1 : j->rows); r++) sum_row(j, r);
}

DT_CPU_KERNEL(embedding_backward);
dt_status dt_cpu_embedding_backward(const dt_kctx *c) {
    const dt_embedding_attr *a = c->attr;
    const dt_view *index = &c->in[1], *out = &c->out[0];
    int64_t n = dt_view_numel(index), lo = c->out_place[0].lo[0], rows = out->shape[0];
    if (n >= INT32_MAX) return dt_fail(DT_E_VALUE, "embedding: more than 2^31 indices in one call");
    if (rows == 0 || out->shape[1] == 0) return DT_OK;
    sum_job j = {.c = c, .head = c->scratch, .next = (int32_t *)c->scratch + rows, .rows = rows};
    memset(j.head, 0, (size_t)rows * sizeof *j.head);
    for (int64_t i = n - 1; i >= 0; i--) { /* backwards, so that each list ascends */
        int64_t g = index_at(index, i), r = g - lo;
        if (g < 0 || g >= c->out_place[0].shape[0]) /* the gradient may be read where the output is not */
            return dt_fail(DT_E_INDEX, "index out of range in self: index %lld is out of bounds for a table of %lld rows", (long long)g,
                           (long long)c->out_place[0].shape[0]);
        if (g == a->padding_idx || r < 0 || r >= rows) continue;
        j.next[i] = j.head[r];
        j.head[r] = (int32_t)(i + 1);
    }
    j.rows_a_task = out->shape[1] >= WORK ? 1 : WORK / out->shape[1];
    dt_team_run(c->team, sum_task, &j, (rows + j.rows_a_task - 1) / j.rows_a_task);
    return DT_OK;
}
