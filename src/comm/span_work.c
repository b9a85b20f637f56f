/* Forming a view from operands that lie here, in another process of this host, or come in chunks. See span.h.
 *
 * A chunk is a range of elements of the result, in row-major order. Where all is without gaps it is one run; else it is cut into boxes (a few rows, the rest of
 * a row, …). Operands of another process are read piece by piece, so that a sum is formed while the pieces lie in cache.
 *
 * Threads: a work belongs to one party. */
#include "base/arena.h"
#include "comm/span.h"

int64_t dt_span_chunk(const dt_pull *p, dt_reduce op) {
    int64_t n = (int64_t)(dt_net_chunk() / dt_dtype_size(dt_reduce_partial(p->dst->dtype, op)));
    return n > 0 ? n : 1;
}

static size_t view_bytes(const dt_view *v) { return ((size_t)dt_view_numel(v) * dt_dtype_size(v->dtype) + DT_SPAN_ALIGN - 1) & ~(size_t)(DT_SPAN_ALIGN - 1); }

/* A whole view of another process's memory, contiguous at `to`: as many runs as its layout has. */
static dt_status read_view(const dt_span_operand *s, char *to) {
    enum { RUNS = 512 };
    dt_net_run run[RUNS];
    const dt_view *v = &s->view;
    int64_t size = (int64_t)dt_dtype_size(v->dtype), inner = 1, at[DT_MAX_DIM] = {0};
    int outer = v->ndim, n = 0;
    while (outer > 0 && (v->stride[outer - 1] == inner || v->shape[outer - 1] == 1)) inner *= v->shape[--outer];
    int64_t rows = 1;
    for (int d = 0; d < outer; d++) rows *= v->shape[d];
    for (int64_t i = 0; i < rows && inner; i++) {
        int64_t off = 0;
        for (int d = 0; d < outer; d++) off += at[d] * v->stride[d];
        run[n++] = (dt_net_run){s->address + (uint64_t)(off * size), (size_t)(inner * size)};
        if (n == RUNS || i + 1 == rows) {
            DT_TRY(dt_net_read(s->node, to, run, n));
            to += (int64_t)n * inner * size;
            n = 0;
        }
        for (int d = outer - 1; d >= 0 && ++at[d] == v->shape[d]; d--) at[d] = 0;
    }
    return DT_OK;
}

/* How large chunks are, and whether all lies without gaps. */
void dt_span_choose(dt_span_work *w) {
    int64_t total = dt_view_numel(&w->dst);
    bool lanes = w->into, pieces = false;
    w->flat = w->into || dt_view_contiguous(&w->dst);
    w->n_foreign = 0;
    for (int k = 0; k < w->n_op; k++) {
        dt_span_operand *o = &w->op_list[k];
        if (o->foreign) {
            o->flat = dt_view_contiguous(&o->view);
            w->n_foreign++;
            pieces |= o->flat;
        } else if (o->lane)
            lanes = true;
        else
            w->flat &= dt_view_contiguous(&o->view);
    }
    if (!lanes) {
        bool in_place = w->n_op == 1 && w->n_foreign && w->flat;
        w->chunk = pieces && !in_place ? DT_SPAN_PIECE / (int64_t)dt_dtype_size(w->dst.dtype) : total;
    }
    w->n = total ? (uint32_t)((total + w->chunk - 1) / w->chunk) : 0;
}

dt_status dt_span_prepare(const dt_span_tools *t, dt_span_work *w) {
    size_t bytes = 0;
    for (int k = 0; k < w->n_op; k++) {
        const dt_span_operand *o = &w->op_list[k];
        if (o->foreign) bytes += o->flat ? (size_t)w->chunk * dt_dtype_size(o->view.dtype) + DT_SPAN_ALIGN : view_bytes(&o->view);
    }
    if (!bytes || !w->n || t->idle || (w->n_op == 1 && w->op_list[0].flat && w->flat && !w->into)) return DT_OK;
    w->room = dt_span_memory_get(bytes, &w->cap);
    if (!w->room) return dt_fail(DT_E_NOMEM, "%s: out of host memory", t->kind);
    char *at = w->room;
    for (int k = 0; k < w->n_op; k++) {
        dt_span_operand *o = &w->op_list[k];
        if (!o->foreign || o->flat) continue;
        DT_TRY(read_view(o, at));
        dt_view_set_contiguous(&o->view);
        o->view.data = at;
        o->foreign = false; /* from now on it is here */
        at += view_bytes(&o->view);
    }
    for (int k = 0; k < w->n_op; k++) {
        dt_span_operand *o = &w->op_list[k];
        if (!o->foreign) continue;
        o->view.data = at;
        at += ((size_t)w->chunk * dt_dtype_size(o->view.dtype) + DT_SPAN_ALIGN - 1) & ~(size_t)(DT_SPAN_ALIGN - 1);
    }
    return DT_OK;
}

void dt_span_room_free(dt_span_work *w) {
    dt_span_memory_put(w->room, w->cap);
    w->room = NULL;
}

void dt_span_work_free(dt_span_work *w) {
    dt_span_room_free(w);
    dt_free(w->op_list);
    w->op_list = NULL;
}

static uint32_t done(const dt_span_lane *l) { return atomic_load_explicit(&l->stream.done, memory_order_acquire); }

bool dt_span_ready(const dt_span_work *w) {
    if (w->next >= w->n) return false;
    if (w->into && w->next >= (uint64_t)done(w->into) + w->into->stream.slots) return false; /* of a lost peer all are done, those not formed, too */
    for (int k = 0; k < w->n_op; k++)
        if (w->op_list[k].lane && done(w->op_list[k].lane) <= w->next) return false;
    return true;
}

static char *slot(const dt_span_lane *l, uint32_t chunk) { return l->stream.base + (size_t)(chunk % l->stream.slots) * l->stream.chunk; }

/* Where element 0 would lie, if the elements from `first` on lie at p. */
static void *origin(const char *p, int64_t first, dt_dtype t) { return (void *)((uintptr_t)p - (uintptr_t)first * dt_dtype_size(t)); }

static void combine(const dt_span_tools *t, const dt_view *dst, const dt_view *src, const int *leaves, int n, dt_reduce op) {
    if (n == 0)
        t->b->zero(dst);
    else if (n == 1 && src[0].dtype == dst->dtype && (op != DT_AVG || leaves[0] == 1))
        t->b->copy(dst, &src[0], t->team);
    else
        t->b->reduce(dst, src, leaves, n, op);
}

/* The largest box that begins with element `at` and ends before `end`: `count` steps of dimension d at *index, whole dimensions behind it. */
static int box_at(const dt_view *v, int64_t at, int64_t end, int64_t *index, int64_t *count) {
    int64_t inner[DT_MAX_DIM + 1];
    inner[v->ndim] = 1;
    for (int d = v->ndim - 1; d >= 0; d--) inner[d] = inner[d + 1] * v->shape[d];
    int d = 0;
    while (d + 1 < v->ndim && (at % inner[d + 1] || at + inner[d + 1] > end)) d++;
    for (int k = 0; k <= d; k++) index[k] = at / inner[k + 1] % v->shape[k];
    int64_t fit = (end - at) / inner[d + 1], left = v->shape[d] - index[d];
    *count = fit < left ? fit : left;
    return d;
}

static dt_view box_view(const dt_view *v, int d, const int64_t *index, int64_t count) {
    dt_view out = {.dtype = v->dtype, .ndim = v->ndim - d};
    int64_t off = 0;
    for (int k = 0; k <= d; k++) off += index[k] * v->stride[k];
    for (int k = d; k < v->ndim; k++) {
        out.shape[k - d] = v->shape[k];
        out.stride[k - d] = v->stride[k];
    }
    out.shape[0] = count;
    out.data = (void *)((uintptr_t)v->data + (uintptr_t)(off * (int64_t)dt_dtype_size(v->dtype)));
    return out;
}

static void combine_range(const dt_span_tools *t, const dt_span_work *w, const dt_view *v, const int *leaves, int64_t from, int64_t to) {
    dt_view x[w->n_op + 1]; /* the result first */
    if (w->flat) {
        for (int k = 0; k <= w->n_op; k++) {
            x[k] = (dt_view){.dtype = v[k].dtype, .ndim = 1, .shape = {to - from}, .stride = {1}};
            x[k].data = (void *)((uintptr_t)v[k].data + (uintptr_t)from * dt_dtype_size(v[k].dtype));
        }
        combine(t, &x[0], &x[1], leaves, w->n_op, w->op);
        return;
    }
    for (int64_t at = from; at < to;) {
        int64_t index[DT_MAX_DIM], count;
        int d = box_at(&v[0], at, to, index, &count);
        for (int k = 0; k <= w->n_op; k++) x[k] = box_view(&v[k], d, index, count);
        combine(t, &x[0], &x[1], leaves, w->n_op, w->op);
        at += dt_view_numel(&x[0]);
    }
}

/* The views of one chunk, each as if all of it were there; foreign pieces are read. */
static dt_status gather(dt_span_work *w, int64_t from, int64_t to, dt_view *v, int *leaves) {
    v[0] = w->dst;
    if (w->into) {
        dt_view_set_contiguous(&v[0]);
        v[0].data = origin(slot(w->into, w->next), from, v[0].dtype);
    }
    for (int k = 0; k < w->n_op; k++) {
        const dt_span_operand *o = &w->op_list[k];
        leaves[k] = o->leaves;
        v[k + 1] = o->view;
        if (o->lane) v[k + 1].data = origin(slot(o->lane, w->next), from, o->view.dtype);
        if (!o->foreign) continue;
        size_t size = dt_dtype_size(o->view.dtype);
        dt_net_run run = {o->address + (uint64_t)from * size, (size_t)(to - from) * size};
        DT_TRY(dt_net_read(o->node, o->view.data, &run, 1));
        v[k + 1].data = origin(o->view.data, from, o->view.dtype);
    }
    return DT_OK;
}

static dt_status form(const dt_span_tools *t, dt_span_work *w) {
    int64_t total = dt_view_numel(&w->dst), from = w->next * w->chunk, to = from + w->chunk < total ? from + w->chunk : total;
    dt_view v[w->n_op + 1];
    int leaves[w->n_op + 1];
    if (w->n_op == 1 && w->op_list[0].foreign && w->flat && !w->into) { /* straight into place */
        dt_net_run run = {w->op_list[0].address, (size_t)total * dt_dtype_size(w->dst.dtype)};
        return dt_net_read(w->op_list[0].node, w->dst.data, &run, 1);
    }
    DT_TRY(gather(w, from, to, v, leaves));
    if (w->n_op != 1 || v[0].data != v[1].data) combine_range(t, w, v, leaves, from, to); /* else it arrived in place */
    return DT_OK;
}

dt_status dt_span_step(const dt_span_tools *t, dt_span_work *w) {
    dt_status s = t->idle ? DT_OK : form(t, w);
    uint32_t n = ++w->next;
    if (w->into) dt_net_stream_open(&w->into->stream, n);
    for (int k = 0; k < w->n_op; k++) {
        dt_span_lane *l = w->op_list[k].lane;
        if (l && l->ring && l->block->users == 1) dt_net_stream_open(&l->stream, n + l->stream.slots);
    }
    return s;
}
