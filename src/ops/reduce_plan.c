/* The geometry of reductions; see reduce.h. Pure, any thread. */
#include "ops/reduce.h"

enum { COLUMN_BLOCK = 512, SEGMENT_MIN = 32768, SEGMENTS_MAX = 64 };

static void push(int *n, int64_t *size, int64_t *stride, int64_t s, int64_t st) {
    if (s == 1) return;
    if (*n && stride[*n - 1] == s * st) { /* continues the run before it */
        size[*n - 1] *= s;
        stride[*n - 1] = st;
        return;
    }
    size[*n] = s;
    stride[(*n)++] = st;
}

/* Reduced dimensions by falling stride, so that the innermost loop runs along memory; then merge. */
static void push_sorted(dt_reduce_plan *p, int n, int64_t *size, int64_t *stride) {
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && stride[j] > stride[j - 1]; j--) {
            int64_t t = stride[j];
            stride[j] = stride[j - 1], stride[j - 1] = t;
            t = size[j];
            size[j] = size[j - 1], size[j - 1] = t;
        }
    for (int i = 0; i < n; i++) push(&p->n_red, p->red, p->red_stride, size[i], stride[i]);
}

/* Units of independent work without cutting a reduction. */
static int64_t units(const dt_reduce_plan *p) {
    if (p->columns) {
        int64_t cols = p->keep[p->n_keep - 1];
        return p->outs / cols * ((cols + COLUMN_BLOCK - 1) / COLUMN_BLOCK);
    }
    return p->outs;
}

void dt_reduce_plan_make(const dt_view *in, const dt_ints *dims, dt_reduce_plan *p) {
    int64_t size[DT_MAX_DIM], stride[DT_MAX_DIM];
    int n = 0;
    *p = (dt_reduce_plan){.outs = 1, .reds = 1, .segs = 1};
    for (int i = 0; i < in->ndim; i++) {
        if (dt_ints_has(dims, i)) {
            p->reds *= in->shape[i];
            size[n] = in->shape[i];
            stride[n++] = in->stride[i];
        } else {
            p->outs *= in->shape[i];
            push(&p->n_keep, p->keep, p->keep_stride, in->shape[i], in->stride[i]);
        }
    }
    if (p->outs == 0 || p->reds == 0) return;
    push_sorted(p, n, size, stride);
    if (p->n_red == 0) p->red[0] = 1, p->red_stride[0] = 1, p->n_red = 1;
    p->columns = p->n_keep && p->keep_stride[p->n_keep - 1] == 1 && p->red_stride[p->n_red - 1] != 1 && p->keep[p->n_keep - 1] >= 4;
    for (int i = 1; i < p->n_red; i++)
        if (p->red[i] > p->red[p->split]) p->split = i;
    p->seg = p->red[p->split];
    int64_t total = p->outs * p->reds, u = units(p);
    if (u >= 16 || total < 4 * SEGMENT_MIN) return;
    int64_t segs = total / SEGMENT_MIN;
    if (segs > SEGMENTS_MAX) segs = SEGMENTS_MAX;
    int64_t seg = (p->seg + segs - 1) / segs;
    if (p->red_stride[p->split] == 1) seg = (seg + 1023) / 1024 * 1024;
    p->segs = (p->seg + seg - 1) / seg;
    p->seg = seg;
}

size_t dt_reduce_scratch(const dt_kctx *c) {
    const dt_reduce_attr *a = c->attr;
    dt_reduce_plan p;
    dt_reduce_plan_make(&c->in[0], &a->dim, &p);
    return p.segs > 1 ? (size_t)(p.segs * p.outs) * 8 : 0;
}

int64_t dt_reduce_count(const dt_geom *place, int ndim, const dt_ints *dims) {
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        if (dt_ints_has(dims, i)) n *= place->shape[i];
    return n;
}
