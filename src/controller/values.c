/* The controller's values and buffers. See engine.h and graph/graph.h. */
#include <stddef.h>
#include <string.h>

#include "controller/engine.h"
#include "controller/remat.h"
#include "controller/remote.h"
#include "plan/sim.h"

/* Values lie in blocks, each on cache lines of its own. */
enum { BLOCK = 62 };
typedef struct value_block {
    _Alignas(64) struct value_block *next;
    void *memory;
    _Alignas(64) char value[BLOCK][(sizeof(dt_gvalue) + 63) / 64 * 64];
} value_block;
static value_block *blocks;

static bool block_add(dt_engine *e) {
    void *mem;
    if (!(mem = dt_malloc(sizeof(value_block) + 64))) return false;
    value_block *b = (value_block *)(((uintptr_t)mem + 63) & ~(uintptr_t)63);
    b->next = blocks;
    b->memory = mem;
    blocks = b;
    for (int i = BLOCK - 1; i >= 0; i--) {
        dt_gvalue *v = (dt_gvalue *)b->value[i];
        *v = (dt_gvalue){.part = (dt_part **)e->free_values};
        e->free_values = v;
    }
    return true;
}

dt_gvalue *dt_gvalue_new(const dt_meta *meta) {
    static bool budget; /* some value has had a recipe: else all but the first line is zero */
    dt_engine *e = &dt_the_engine;
    if (DT_UNLIKELY(!e->free_values) && !block_add(e)) return NULL;
    dt_gvalue *v = e->free_values;
    e->free_values = (dt_gvalue *)v->part;
    __builtin_prefetch(e->free_values, 1);
    budget |= e->remat || e->n_evicted;
    if (DT_UNLIKELY(budget))
        *v = (dt_gvalue){.meta = meta, .node = -1, .index = -1};
    else {
        memset(v, 0, offsetof(dt_gvalue, inner));
        v->meta = meta;
        v->node = v->index = -1;
    }
    return v;
}

void dt_gvalues_forget(void) {
    for (value_block *next; blocks; blocks = next) {
        next = blocks->next;
        dt_free(blocks->memory);
    }
    dt_the_engine.free_values = NULL;
}

static size_t part_size(const dt_gvalue *v) { return sizeof(dt_part) + sizeof(int64_t) * v->meta->ndim; }

dt_part *dt_gvalue_part(dt_gvalue *v, int i, const int64_t *stride) {
    dt_part *p = v->part[i] = (dt_part *)((char *)(v->part + v->meta->mesh->n) + (size_t)i * part_size(v));
    p->contiguous = !stride;
    if (stride) memcpy(p->stride, stride, sizeof(int64_t) * v->meta->ndim);
    return p;
}

/* ---- one part for all devices --------------------------------------------------------------------------------------------------------------------
 * A simulated device may stand for all of a mesh (dt_plan.n_alike): every entry of the array is the same part. Such arrays are kept, filled, for the next values on as many
 * devices: with a thousand of them, filling takes longer than all else. The part lies just before the array, where its first entries are read. */
enum { SHARED_SIZES = 16 };
typedef struct shared_part {
    struct shared_part *next;
    union {
        dt_part part;
        char room[sizeof(dt_part) + sizeof(int64_t) * DT_MAX_DIM];
    };
    dt_part *all[]; /* (n,) */
} shared_part;
static struct {
    int n;
    shared_part *free;
} shared[SHARED_SIZES];

dt_status dt_gvalue_parts_shared(dt_gvalue *v) {
    int n = v->meta->mesh->n, k = 0;
    while (k < SHARED_SIZES && shared[k].n && shared[k].n != n) k++;
    shared_part *p = k < SHARED_SIZES ? shared[k].free : NULL;
    if (p)
        shared[k].free = p->next;
    else {
        if (!(p = dt_malloc(sizeof *p + sizeof *p->all * (size_t)n))) return dt_fail(DT_E_NOMEM, "value: out of host memory");
        for (int i = 0; i < n; i++) p->all[i] = &p->part;
    }
    p->part.buf = NULL;
    v->part = p->all;
    v->one = &p->part;
    return DT_OK;
}

dt_part *dt_gvalue_part_shared(dt_gvalue *v, const int64_t *stride) {
    dt_part *p = v->one;
    p->contiguous = !stride;
    if (stride) memcpy(p->stride, stride, sizeof(int64_t) * v->meta->ndim);
    return p;
}

void dt_gvalue_parts_forget(dt_gvalue *v) {
    int n = v->meta->mesh->n, k = 0;
    if (DT_UNLIKELY(v->one)) {
        shared_part *p = (shared_part *)((char *)v->one - offsetof(shared_part, part));
        while (k < SHARED_SIZES && shared[k].n && shared[k].n != n) k++;
        if (k < SHARED_SIZES) {
            shared[k].n = n;
            p->next = shared[k].free;
            shared[k].free = p;
        } else
            dt_free(p);
    } else
        dt_free(v->part);
    v->part = NULL;
    v->one = NULL;
}

void dt_gvalues_free(void) {
    for (int k = 0; k < SHARED_SIZES; k++)
        while (shared[k].free) {
            shared_part *p = shared[k].free;
            shared[k].free = p->next;
            dt_free(p);
        }
}

void dt_gvalue_parts_free(dt_gvalue *v) {
    if (v->one) {
        if (v->one->buf) dt_buf_drop(v->one->buf);
    } else
        for (int i = 0; v->part && i < v->meta->mesh->n; i++)
            if (v->part[i] && v->part[i]->buf) dt_buf_drop(v->part[i]->buf);
    dt_gvalue_parts_forget(v);
}

void dt_gvalue_free(dt_gvalue *v) {
    if (DT_UNLIKELY(v->segment)) dt_order_value_freed(v);
    if (DT_UNLIKELY(v->recipe != NULL)) dt_remat_forget(v);
    dt_gvalue_parts_free(v);
    v->part = (dt_part **)dt_the_engine.free_values;
    dt_the_engine.free_values = v;
}

void dt_gvalue_release(dt_gvalue *v) {
    if (v->client || v->uses || v->node >= 0) return;
    if (DT_UNLIKELY(v->holds || v->recipe))
        dt_remat_release(v);
    else
        dt_gvalue_free(v);
}

dt_status dt_gvalue_parts(dt_gvalue *v) {
    v->part = dt_calloc((size_t)v->meta->mesh->n, sizeof *v->part + part_size(v));
    return v->part ? DT_OK : dt_fail(DT_E_NOMEM, "value: out of host memory");
}

void dt_gvalue_poison(dt_gvalue *v, dt_error_t *e) {
    if (DT_UNLIKELY(v->recipe != NULL)) dt_remat_forget(v);
    dt_gvalue_parts_free(v);
    v->ready = true;
    v->layout = 0;
    if (dt_gvalue_parts(v)) return; /* no parts: reads fail with the out-of-memory error */
    for (int i = 0; i < v->meta->mesh->n; i++) {
        if (!(dt_gvalue_part(v, i, NULL)->buf = dt_buf_new(v->meta->mesh->dev[i], 0, NULL))) continue;
        v->part[i]->buf->live = 1;
        atomic_store(&v->part[i]->buf->error, dt_error_ref(e));
        if (dt_device_kind(v->meta->mesh->dev[i]) == DT_SIM) atomic_store(&dt_sim_failed, true);
    }
}

/* A simulated device's: memory without data. */
static dt_status sim_part(dt_gvalue *v, int i, const dt_view *shape) {
    dt_device_state *s;
    dt_device d = v->meta->mesh->dev[i];
    size_t bytes = (size_t)dt_view_numel(shape) * dt_dtype_size((dt_dtype)v->meta->dtype);
    void *data;
    DT_TRY(dt_device_get(d, &s));
    DT_TRY(dt_alloc_get(&s->alloc, &bytes, &data));
    dt_buf *b = dt_buf_new(d, bytes, data);
    if (!b) {
        dt_alloc_put(&s->alloc, data, bytes);
        return dt_fail(DT_E_NOMEM, "value: out of host memory");
    }
    b->live = 1;
    dt_gvalue_part(v, i, NULL)->buf = b;
    return DT_OK;
}

/* Another node's part: sent there, contiguous. */
static dt_status remote_part(dt_gvalue *v, int i, dt_view *src, const dt_hostbuf *h, int64_t offset) {
    src->dtype = (dt_dtype)v->meta->dtype;
    src->data = (char *)h->data + offset * (int64_t)dt_dtype_size(src->dtype);
    dt_gvalue_part(v, i, NULL);
    DT_TRY(dt_remote_host(src, v->meta->mesh->dev[i], &v->part[i]->buf));
    v->part[i]->buf->live = 1;
    return DT_OK;
}

/* Reads part i into memory of its own. Always gives f its part unless it fails. */
static dt_status file_part(dt_gvalue *v, int i, const dt_source *s, dt_future *f) {
    dt_device d = v->meta->mesh->dev[i];
    dt_device_state *dev;
    dt_load *r;
    DT_TRY(dt_load_new(s, v->meta, i, &r));
    size_t bytes = (size_t)r->numel * dt_dtype_size(r->dtype), got = bytes;
    void *data = NULL;
    dt_part *p = dt_gvalue_part(v, i, NULL);
    dt_status st;
    if (DT_UNLIKELY(!dt_device_here(d))) {
        dt_view plain = {.dtype = r->dtype, .ndim = 1, .shape = {r->numel}, .stride = {1}};
        bool sim = dt_device_kind(d) == DT_SIM;
        st = sim ? dt_remote_host(&plain, d, &p->buf) : dt_remote_read(r, d, f, &p->buf);
        if (!st) p->buf->live = 1;
        if (!st && sim && f) dt_future_part(f, NULL);
        dt_load_free(r);
        return st;
    }
    st = dt_device_get(d, &dev);
    if (!st) st = dt_alloc_get(&dev->alloc, &got, &data);
    if (!st && !(p->buf = dt_buf_new(d, got, data))) {
        dt_alloc_put(&dev->alloc, data, got);
        st = dt_fail(DT_E_NOMEM, "value: out of host memory");
    }
    if (st) {
        dt_load_free(r);
        return st;
    }
    p->buf->live = 1;
    if (!bytes || dt_device_kind(d) == DT_SIM) {
        dt_load_free(r);
        if (f) dt_future_part(f, NULL);
        return DT_OK;
    }
    r->buf = p->buf;
    atomic_fetch_add(&p->buf->refs, 1);
    if ((r->done = f)) dt_future_ref(f);
    p->buf->n_written++;
    dt_device_push(dev, (dt_item){DT_ITEM_READ, r});
    return DT_OK;
}

dt_status dt_gvalue_from_files(dt_gvalue *v, const dt_source *s, dt_future *f) {
    int n = v->meta->mesh->n, i = 0;
    dt_status st = dt_gvalue_parts(v);
    for (; i < n && !st; i++) st = file_part(v, i, s, f);
    for (i -= st != DT_OK; f && i < n; i++) dt_future_part(f, NULL); /* those that were not begun */
    v->ready = st == DT_OK;
    return st;
}

dt_status dt_gvalue_from_host(dt_gvalue *v, dt_hostbuf *h) {
    const dt_meta *m = v->meta;
    int64_t stride[DT_MAX_DIM] = {0}, s = 1;
    for (int d = m->ndim - 1; d >= 0; d--) {
        stride[d] = s;
        s *= m->shape[d];
    }
    DT_TRY(dt_gvalue_parts(v));
    for (int i = 0; i < m->mesh->n; i++) {
        dt_box box;
        int64_t offset = 0;
        dt_view shape = {.ndim = m->ndim};
        dt_layout_box(m, i, &box);
        for (int d = 0; d < m->ndim; d++) {
            if (box.rows[d] > 1) return dt_fail(DT_E_NOTIMPL, "a host array cannot become a strided shard at once: distribute it, then redistribute");
            offset += box.lo[d] * stride[d];
            shape.shape[d] = box.len[d];
            shape.stride[d] = stride[d];
        }
        if (DT_UNLIKELY(!dt_device_here(m->mesh->dev[i]))) {
            DT_TRY(remote_part(v, i, &shape, h, offset));
            continue;
        }
        if (DT_UNLIKELY(dt_device_kind(m->mesh->dev[i]) == DT_SIM)) {
            DT_TRY(sim_part(v, i, &shape));
            continue;
        }
        bool dense = dt_view_contiguous(&shape);
        dt_gvalue_part(v, i, dense ? NULL : stride);
        dt_buf *b = dt_buf_new(m->mesh->dev[i], 0, h->data);
        if (!b) return dt_fail(DT_E_NOMEM, "value: out of host memory");
        b->host = dt_hostbuf_ref(h);
        b->live = 1;
        v->part[i]->buf = b;
        v->part[i]->offset = offset * (int64_t)dt_dtype_size((dt_dtype)m->dtype);
        if (!dense) v->layout = dt_hash_mix((uint64_t)(uintptr_t)m, 3) | 1;
    }
    v->ready = true;
    return DT_OK;
}
