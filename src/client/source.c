/* Tensors that lie in files until somebody wants them.
 *
 * A value with a source has not been recorded yet. The first call that computes with it, or reads it, records it (dt_val_announce), as it lies. But a view
 * of it is another source, and a redistribution is the same source elsewhere, recorded at once: so weights that are loaded and copied into a sharded
 * parameter are read by the parameter's devices, each its shard (controller/values.c), and nobody ever holds the whole. What such a value names is the file as it was
 * opened; a file that changes before it is read gives a late error with the line that opened it.
 *
 * Small tensors are read at once: they cost less than a record for each device. So are all when many files are open. Client's thread only. */
#include "client/internal.h"

enum { AT_ONCE = 16 << 10 };

void dt_val_source_drop(dt_val *v) {
    dt_source_unref(v->source);
    v->source = NULL;
}

static void announce(dt_val *v, dt_future *f) {
    uint64_t *w = dt_ring_reserve(dt_c.ring, 6);
    w[0] = DT_REC_HEADER(DT_REC_FILE, 0, 1);
    w[1] = (uint64_t)(uintptr_t)v->meta;
    w[2] = v->source->site;
    w[3] = v->id;
    w[4] = (uint64_t)(uintptr_t)v->source;
    w[5] = (uint64_t)(uintptr_t)f;
    v->source = NULL;
    dt_ring_publish(dt_c.ring);
}

void dt_val_announce(dt_val *v) {
    if (v->source) announce(v, NULL);
}

static dt_tensor *over_source(dt_source *s, const dt_meta *meta) {
    dt_tensor *t = dt_result_new();
    if (!t) return NULL;
    t->cell->val->meta = meta;
    t->cell->val->source = s;
    t->cell->inference = dt_m.inference;
    return t;
}

static dt_status now(dt_source *s, const dt_spec *spec, dt_tensor **out) {
    dt_hostbuf *b;
    DT_TRY(dt_hostbuf_new((size_t)dt_type_numel(&s->type) * dt_dtype_size(s->type.dtype), &b));
    dt_status st = dt_source_read(s, b->data);
    if (!st) return dt_tensor_from_host(b, &s->type, spec, out);
    dt_hostbuf_unref(b);
    return st;
}

/* Shards in rows cannot be made of a host array at once (controller/values.c). */
static bool in_rows(const dt_meta *m) {
    for (int d = 0; d < m->mesh->ndim; d++)
        if (m->place[d].kind == DT_SHARD && m->place[d].split > 1) return true;
    return false;
}

static dt_status from_source(dt_source *s, const dt_spec *spec, dt_tensor **out) {
    const dt_meta *meta;
    DT_TRY(dt_client_ready());
    DT_TRY(dt_meta_intern(&s->type, spec ? spec->mesh : NULL, spec ? spec->place : NULL, &meta));
    bool small = meta->numel * (int64_t)dt_dtype_size(s->type.dtype) < AT_ONCE;
    if ((small || dt_files_open() > DT_FILES_MAX) && !in_rows(meta)) {
        dt_status st = now(s, spec, out);
        if (!st) dt_source_unref(s);
        return st;
    }
    *out = over_source(s, meta);
    return *out ? DT_OK : DT_E_NOMEM;
}

dt_status dt_tensor_from_source(dt_source *s, const dt_spec *spec, dt_tensor **out) {
    dt_status st = from_source(s, spec, out);
    if (st) dt_source_unref(s);
    return st;
}

dt_status dt_tensor_begin_reading(dt_tensor *t, dt_future **out) {
    dt_future *f;
    *out = NULL;
    DT_TRY(dt_client_ready());
    DT_TRY(dt_tensor_fresh(t));
    dt_val *v = dt_tensor_val(t);
    if (!v->source) return DT_OK;
    DT_TRY(dt_future_new(NULL, NULL, &f));
    dt_future_ref(f);
    announce(v, f);
    *out = f;
    return DT_OK;
}

dt_status dt_file_announce(dt_file *file, dt_future **out) {
    DT_TRY(dt_client_ready());
    dt_future *f;
    DT_TRY(dt_future_new(NULL, NULL, &f));
    dt_future_ref(f);
    uint64_t *w = dt_ring_reserve(dt_c.ring, 3);
    w[0] = DT_REC_HEADER(DT_REC_OPEN, 0, 0);
    w[1] = (uint64_t)(uintptr_t)dt_file_ref(file);
    w[2] = (uint64_t)(uintptr_t)f;
    dt_ring_publish(dt_c.ring);
    *out = f;
    return DT_OK;
}

/* ---- calls that need not be made -------------------------------------------------------------------------------------------------------- */
/* The view that result k of c is of a source of one piece. */
static bool view_of(const dt_call *c, int k, const dt_source *s, dt_file_box *p) {
    if (s->n != 1 || c->op == &dt_op_as_strided) return false; /* what strides are is not the source's to say */
    dt_geom in_place = {.first = true}, out_place = {.first = true};
    dt_view in = {.dtype = s->type.dtype, .ndim = s->type.ndim}, out = {.dtype = s->type.dtype, .ndim = c->out[k]->ndim};
    for (int d = 0; d < in.ndim; d++) {
        in.shape[d] = in_place.shape[d] = s->type.shape[d];
        in.stride[d] = s->piece[0].stride[d];
    }
    for (int d = 0; d < out.ndim; d++) out.shape[d] = out_place.shape[d] = c->out[k]->shape[d];
    dt_alias a = {.attr = c->attr, .in = &in, .in_place = &in_place, .out_place = &out_place, .out_index = k, .out = &out};
    if (!c->op->alias(&a)) return false;
    *p = (dt_file_box){.file = s->piece[0].file, .at = s->piece[0].at + a.offset * (int64_t)dt_dtype_size(s->type.dtype), .check = s->piece[0].check};
    for (int d = 0; d < out.ndim; d++) {
        if (out.stride[d] < 0 || (out.stride[d] == 0 && out.shape[d] > 1)) return false;
        p->len[d] = out.shape[d];
        p->stride[d] = out.stride[d];
    }
    return true;
}

/* The source of result k of c; NULL: it must be computed. A new reference. */
static dt_source *derived(const dt_call *c, int k, dt_source *s) {
    if (c->op == &dt_op_redistribute) {
        const dt_meta *m = c->out[k];
        for (int d = 0; d < m->mesh->ndim; d++)
            if (m->place[d].kind == DT_PARTIAL) return NULL;
        return dt_source_ref(s);
    }
    dt_file_box p;
    dt_source *r;
    dt_type type = dt_meta_type(c->out[k]);
    if (!(c->flags & DT_CALL_VIEW) || !view_of(c, k, s, &p) || dt_source_new(&type, s->site, 1, &p, &r)) return NULL;
    return r;
}

bool dt_call_on_source(const dt_call *c, dt_source **out) {
    dt_tensor *t = c->n_in == 1 ? dt_c.in_tensor[0] : NULL;
    dt_source *s = t ? dt_tensor_val(t)->source : NULL;
    if (!s || dt_m.recipe || (dt_c.any_grad && dt_recording())) return false;
    for (int k = 0; k < c->n_out; k++) {
        if ((out[k] = derived(c, k, s))) continue;
        while (k-- > 0) dt_source_unref(out[k]);
        return false;
    }
    return c->n_out > 0;
}

void dt_call_announce(void) {
    for (uint32_t i = 0; i < dt_c.n_in; i++)
        if (dt_c.in_tensor[i]) dt_val_announce(dt_tensor_val(dt_c.in_tensor[i]));
}
