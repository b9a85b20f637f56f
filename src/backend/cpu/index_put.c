/* Kernels of indexing by tensors. See ops/index_put.c for the contract.
 *
 * An indexed dimension of the table may be sharded: each device moves what it holds; a read gives zeros for the rest.
 *
 * For every position of the broadcast indices the un-indexed dims ("the rest") of input and result are two strided views of one shape: an element,
 * a row, or more. Reads run in parallel. Writes run in order on one thread, so that of repeated indices the last counts and sums do not depend
 * on threads; only wide rests are cut into columns. */
#include <string.h>

#include "backend/cpu/accum.h"
#include "backend/cpu/copy.h"
#include "backend/cpu/fusing.h"
#include "ops/op.h"

enum { WORK = 32768, MAX_INDEX = DT_MAX_DIM };

typedef struct put_job {
    const dt_view *index[MAX_INDEX]; /* the indices that are given */
    int64_t stride[MAX_INDEX];       /* of the table along the dimension each indexes */
    int64_t size[MAX_INDEX];         /* that dimension's size, of the whole tensor */
    int64_t lo[MAX_INDEX];           /* the first index that is held here, */
    int64_t have[MAX_INDEX];         /* and how many are */
    int n_index, nb;                 /* nb: dims of the broadcast indices */
    int64_t b[DT_MAX_DIM], n;        /* their shape, and its product */
    dt_view table, other;            /* the rest in the table and in the result (or the values): same shape */
    int64_t other_b[DT_MAX_DIM];     /* strides of `other` along the indices' dims */
    int64_t each, rest;
    bool dense, read, accumulate;
    size_t elem;
} put_job;

/* Offsets, in elements, of position p in table and other. False: this device does not hold that element of the table. */
static bool offsets(const put_job *j, int64_t p, int64_t *table, int64_t *other) {
    int64_t coord[DT_MAX_DIM];
    *table = *other = 0;
    for (int d = j->nb - 1; d >= 0; d--) {
        coord[d] = p % j->b[d];
        p /= j->b[d];
        *other += coord[d] * j->other_b[d];
    }
    for (int i = 0; i < j->n_index; i++) {
        const dt_view *x = j->index[i];
        int64_t o = 0;
        for (int d = 0; d < x->ndim; d++) {
            int at = d + j->nb - x->ndim;
            if (x->shape[d] != 1) o += coord[at] * x->stride[d];
        }
        int64_t k = ((const int64_t *)x->data)[o];
        k = (k < 0 ? k + j->size[i] : k) - j->lo[i];
        if (k < 0 || k >= j->have[i]) return false;
        *table += k * j->stride[i];
    }
    return true;
}
static dt_status check(const dt_kctx *c, const put_job *j) {
    if (j->n == 0) return DT_OK; /* an index of no elements: nothing is moved */
    for (int i = 0; i < j->n_index; i++) DT_TRY(dt_cpu_check_index(DT_LOOKUP_INDEX, c->op, j->index[i], 0, -j->size[i], j->size[i]));
    return DT_OK;
}

/* other: strides aligned with the result's dims (the values broadcast). place: of the table. */
static void setup(put_job *j, const dt_kctx *c, const dt_view *table, const dt_geom *place, const dt_view *other, int first, int count) {
    const dt_index_put_attr *a = c->attr;
    int lead = (int)a->n_lead, nb = a->shape.n, rest = 0, n_rest = 0;
    j->elem = dt_dtype_size(table->dtype);
    j->nb = nb;
    j->table.dtype = j->other.dtype = table->dtype;
    j->table.data = table->data;
    j->other.data = other->data;
    for (int d = 0; d < nb; d++) j->b[d] = 1;
    for (int d = 0; d < table->ndim; d++) {
        const dt_view *x = d < count && dt_view_given(&c->in[first + d]) ? &c->in[first + d] : NULL;
        if (!x) {
            int at = rest < lead ? rest : rest + nb;
            j->table.shape[n_rest] = j->other.shape[n_rest] = table->shape[d];
            j->table.stride[n_rest] = table->stride[d];
            j->other.stride[n_rest++] = other->stride[at];
            rest++;
            continue;
        }
        j->index[j->n_index] = x;
        j->stride[j->n_index] = table->stride[d];
        j->size[j->n_index] = place->shape[d];
        j->lo[j->n_index] = place->lo[d];
        j->have[j->n_index++] = table->shape[d];
        for (int k = 0; k < x->ndim; k++)
            if (x->shape[k] != 1) j->b[k + nb - x->ndim] = x->shape[k];
    }
    j->table.ndim = j->other.ndim = n_rest;
    j->n = 1;
    for (int d = 0; d < nb; d++) {
        j->n *= j->b[d];
        j->other_b[d] = other->stride[lead + d];
    }
    /* an index of size 0 broadcasts to 0 */
    for (int i = 0; i < j->n_index; i++)
        if (dt_view_numel(j->index[i]) == 0) j->n = 0;
    j->rest = dt_view_numel(&j->table);
    j->dense = dt_view_contiguous(&j->table) && dt_view_contiguous(&j->other);
    j->each = j->rest >= WORK ? 1 : WORK / (j->rest ? j->rest : 1);
}

static void accumulate_rest(const put_job *j, char *t, const char *o) {
    int last = j->table.ndim - 1;
    if (last < 0 || j->dense) {
        dt_cpu_accum(j->table.dtype, DT_RM_ADD, t, o, j->rest, 1, 1);
        return;
    }
    int64_t cols = j->table.shape[last];
    for (int64_t r = 0; r < j->rest / cols; r++) {
        int64_t at = 0, bt = 0, left = r;
        for (int d = last - 1; d >= 0; d--) {
            at += left % j->table.shape[d] * j->table.stride[d];
            bt += left % j->table.shape[d] * j->other.stride[d];
            left /= j->table.shape[d];
        }
        dt_cpu_accum(j->table.dtype, DT_RM_ADD, t + at * (int64_t)j->elem, o + bt * (int64_t)j->elem, cols, j->table.stride[last], j->other.stride[last]);
    }
}
static void move(const put_job *j, int64_t p) {
    int64_t to, oo;
    bool here = offsets(j, p, &to, &oo);
    if (!here && !j->read) return;
    char *t = (char *)j->table.data + to * (int64_t)j->elem, *o = (char *)j->other.data + oo * (int64_t)j->elem;
    if (j->accumulate) {
        accumulate_rest(j, t, o);
        return;
    }
    if (j->dense && !here) {
        memset(o, 0, (size_t)j->rest * j->elem);
        return;
    }
    if (j->dense) {
        memcpy(j->read ? o : t, j->read ? t : o, (size_t)j->rest * j->elem);
        return;
    }
    dt_view tv = j->table, ov = j->other;
    tv.data = t;
    ov.data = o;
    if (!here) { /* another device gives it: zeros */
        static const double zero = 0;
        tv.data = (void *)&zero;
        for (int d = 0; d < tv.ndim; d++) tv.stride[d] = 0;
    }
    dt_cpu_copy_view(j->read ? &ov : &tv, j->read ? &tv : &ov, NULL);
}
static void move_task(void *arg, int64_t t) {
    const put_job *j = arg;
    int64_t p1 = (t + 1) * j->each < j->n ? (t + 1) * j->each : j->n;
    for (int64_t p = t * j->each; p < p1; p++) move(j, p);
}

DT_CPU_KERNEL(index);
dt_status dt_cpu_index(const dt_kctx *c) {
    put_job j = {.read = true};
    setup(&j, c, &c->in[0], &c->in_place[0], &c->out[0], 1, c->n_in - 1);
    DT_TRY(check(c, &j));
    if (j.n == 0 || j.rest == 0) return DT_OK;
    dt_team_run(c->team, move_task, &j, (j.n + j.each - 1) / j.each);
    return DT_OK;
}
DT_CPU_KERNEL(index_put);
dt_status dt_cpu_index_put(const dt_kctx *c) {
    const dt_index_put_attr *a = c->attr;
    const dt_view *src = &c->in[c->n_in - 1];
    dt_view values = {.data = src->data, .dtype = src->dtype, .ndim = (int)a->n_result};
    put_job j = {.accumulate = a->accumulate};
    for (int d = 0; d < values.ndim; d++) { /* strides of the values along the result's dims */
        int k = d - (values.ndim - src->ndim);
        values.stride[d] = k < 0 || src->shape[k] == 1 ? 0 : src->stride[k];
    }
    setup(&j, c, &c->out[0], &c->out_place[0], &values, 1, c->n_in - 2);
    DT_TRY(check(c, &j));
    dt_cpu_copy_view(&c->out[0], &c->in[0], c->team);
    for (int64_t p = 0; p < j.n && j.rest; p++) move(&j, p);
    return DT_OK;
}
DT_CPU_KERNEL(index_put_backward);
dt_status dt_cpu_index_put_backward(const dt_kctx *c) {
    put_job j = {.accumulate = true};
    setup(&j, c, &c->out[0], &c->out_place[0], &c->in[0], 1, c->n_in - 1);
    DT_TRY(check(c, &j));
    dt_cpu_zero_view(&c->out[0], c->team);
    for (int64_t p = 0; p < j.n && j.rest; p++) move(&j, p);
    return DT_OK;
}
