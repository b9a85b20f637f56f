/* Handles, cells and values: making, reading, releasing; data from and to the host. See client.h for the model. */
#include "client/internal.h"

/* ---- cells ---- */
dt_cell *dt_cell_new(void) {
    dt_cell *c = dt_pool_take(&dt_c.cells);
    if (!c) return NULL;
    memset(c, 0, sizeof *c);
    c->refs = 1;
    return c;
}

void dt_cell_unref(dt_cell *c) {
    if (!c || --c->refs) return;
    dt_val_unref(c->val);
    dt_view_step_unref(c->chain);
    if (c->grad_fn) dt_grad_node_unref(c->grad_fn);
    dt_cell *root = c->root;
    dt_pool_give(&dt_c.cells, c);
    dt_cell_unref(root); /* at most one deep: a root has no root */
}

void dt_cell_history_set(dt_cell *c, dt_grad_node *fn, uint32_t nr) {
    dt_grad_node *old = c->grad_fn;
    c->grad_fn = fn ? dt_grad_node_ref(fn) : NULL;
    c->out_nr = nr;
    c->requires_grad = fn != NULL;
    if (old) dt_grad_node_unref(old);
}

/* ---- handles ---- */
dt_tensor *dt_tensor_over(dt_val *v, dt_grad_node *fn, uint32_t nr) {
    dt_tensor *t = dt_tensor_alloc();
    dt_cell *c = t ? dt_cell_new() : NULL;
    if (!c) {
        if (t) dt_pool_give(&dt_c.tensors, t);
        return NULL;
    }
    c->val = dt_val_ref(v);
    c->users = 1;
    c->owner = t;
    c->inference = dt_m.inference;
    t->cell = c;
    if (fn) dt_cell_history_set(c, fn, nr);
    return t;
}

dt_tensor *dt_tensor_ref(dt_tensor *t) {
    t->refs++;
    return t;
}

/* The cell loses a handle. */
static void cell_leave(dt_cell *c, const dt_tensor *t) {
    if (c->owner == t) c->owner = NULL;
    if (--c->users == 0 && c->grad_fn) {
        dt_grad_node *fn = c->grad_fn;
        c->grad_fn = NULL;
        dt_grad_node_unref(fn);
    }
    dt_cell_unref(c);
}

void dt_tensor_unref(dt_tensor *t) {
    if (!t || --t->refs) return;
    if (DT_UNLIKELY(t->leaf != NULL)) dt_leaf_free(t);
    if (DT_UNLIKELY(t->is_view || t->val)) {
        dt_val_unref(t->val);
        dt_view_step_unref(t->chain);
        if (t->grad_fn) dt_grad_node_unref(t->grad_fn);
    }
    if (DT_LIKELY(t->cell != NULL)) cell_leave(t->cell, t);
    dt_pool_give(&dt_c.tensors, t);
}

const dt_meta *dt_tensor_meta(const dt_tensor *t) { return dt_tensor_meta_fast(t); }

dt_status dt_tensor_value(dt_tensor *t, dt_val **out) {
    DT_TRY(dt_tensor_fresh(t));
    *out = dt_tensor_val(t);
    return DT_OK;
}

bool dt_tensor_requires_grad(const dt_tensor *t) {
    if (t->is_view && dt_tensor_stale(t)) return t->cell->requires_grad || t->view_requires_grad;
    return dt_tensor_wants_grad(t);
}

bool dt_tensor_is_leaf(const dt_tensor *t) {
    if (t->is_view && dt_tensor_stale(t)) return t->view_requires_grad || !t->cell->requires_grad;
    return !(t->is_view ? t->grad_fn : t->cell->grad_fn);
}

dt_grad_node *dt_tensor_grad_fn(dt_tensor *t) {
    if (dt_tensor_fresh(t)) return NULL;
    return t->is_view ? t->grad_fn : t->cell->grad_fn;
}

uint32_t dt_tensor_version(const dt_tensor *t) { return dt_storage_version(t); }

/* ---- detach, data, requires_grad ---- */

/* The steps of b appended to a copy of themselves over a: a chain from a's start to b's end. New reference; *ok is cleared without
 * memory. */
static dt_view_step *chain_join(dt_view_step *a, dt_view_step *b, bool *ok) {
    if (!a || !b) return dt_view_step_ref(a ? a : b);
    int n = 0;
    for (dt_view_step *s = b; s; s = s->prev) n++;
    dt_view_step **order = dt_malloc((size_t)n * sizeof *order), *last = dt_view_step_ref(a);
    *ok = order != NULL;
    for (dt_view_step *s = b; s && order; s = s->prev) order[--n] = s;
    for (dt_view_step *s = b; s && *ok; s = s->prev) n++;
    for (int i = 0; i < n && *ok; i++) {
        dt_view_step *c = dt_pool_take(&dt_c.steps);
        if (!c) {
            *ok = false;
            break;
        }
        *c = *order[i];
        c->refs = 1;
        c->prev = last;
        c->call->refs++;
        last = c;
    }
    dt_free(order);
    return last;
}

/* A cell over t's storage with a history of its own. t is fresh. */
static dt_cell *alias_new(dt_tensor *t) {
    bool ok = true;
    dt_cell *c = dt_cell_new(), *root = dt_cell_root(t->cell);
    if (!c) return NULL;
    c->chain = chain_join(t->cell->chain, t->chain, &ok);
    c->val = dt_val_ref(dt_tensor_val(t));
    c->root = dt_cell_ref(root);
    c->seen = root->stamp;
    c->silent = t->cell->silent;
    c->inference = t->cell->inference;
    if (ok) return c;
    dt_cell_unref(c);
    (void)dt_fail(DT_E_NOMEM, "detach: out of host memory");
    return NULL;
}

dt_status dt_tensor_detach(dt_tensor *t, dt_tensor **out) {
    DT_TRY(dt_tensor_fresh(t));
    dt_tensor *d = dt_tensor_alloc();
    if (!d) return DT_E_NOMEM;
    d->cell = alias_new(t);
    if (!d->cell) {
        dt_pool_give(&dt_c.tensors, d);
        return DT_E_NOMEM;
    }
    d->cell->users = 1;
    d->cell->owner = d;
    *out = d;
    return DT_OK;
}

dt_status dt_tensor_detach_inplace(dt_tensor *t) {
    if (t->is_view) return dt_fail(DT_E_GRAD, "Can't detach views in-place. Use detach() instead.");
    DT_TRY(dt_tensor_fresh(t));
    dt_cell_history_set(t->cell, NULL, 0);
    return DT_OK;
}

dt_status dt_tensor_snapshot(dt_tensor *t, dt_tensor **out) {
    dt_val *v;
    DT_TRY(dt_client_ready());
    DT_TRY(dt_tensor_value(t, &v));
    *out = dt_tensor_over(v, NULL, 0);
    return *out ? DT_OK : DT_E_NOMEM;
}

dt_status dt_tensor_data(dt_tensor *t, dt_tensor **out) {
    DT_TRY(dt_tensor_detach(t, out));
    (*out)->cell->silent = true;
    return DT_OK;
}

dt_status dt_tensor_set_data(dt_tensor *t, dt_tensor *src) {
    DT_TRY(dt_tensor_fresh(t));
    DT_TRY(dt_tensor_fresh(src));
    if (dt_tensor_wants_grad(t) && !dt_dtype_is_float((dt_dtype)dt_tensor_meta_fast(src)->dtype))
        return dt_fail(DT_E_DTYPE, "data set to a tensor that requires gradients must be floating point, got %s",
                       dt_dtype_name((dt_dtype)dt_tensor_meta_fast(src)->dtype));
    dt_val_announce(dt_tensor_val(src));
    dt_cell *c = alias_new(src), *old = t->cell;
    if (!c) return DT_E_NOMEM;
    c->users = 1;
    c->owner = t;
    c->requires_grad = dt_tensor_wants_grad(t);
    c->silent = false;
    dt_grad_node *fn = t->is_view ? t->grad_fn : old->grad_fn;
    if (fn) dt_cell_history_set(c, fn, t->is_view ? t->out_nr : old->out_nr);
    if (t->is_view) {
        dt_val_unref(t->val);
        dt_view_step_unref(t->chain);
        if (t->grad_fn) dt_grad_node_unref(t->grad_fn);
        t->val = NULL;
        t->chain = NULL;
        t->grad_fn = NULL;
        t->is_view = t->view_requires_grad = false;
    }
    t->cell = c;
    cell_leave(old, t);
    return DT_OK;
}

dt_status dt_tensor_requires_grad_set(dt_tensor *t, bool on) {
    DT_TRY(dt_tensor_fresh(t));
    if (!dt_tensor_is_leaf(t)) {
        if (on) return DT_OK;
        return dt_fail(DT_E_GRAD, "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a subgraph that "
                                  "doesn't require differentiation use var_no_grad = var.detach().");
    }
    if (on && !dt_dtype_is_float((dt_dtype)dt_tensor_meta_fast(t)->dtype))
        return dt_fail(DT_E_GRAD, "Only Tensors of floating point dtype can require gradients, this one is %s",
                       dt_dtype_name((dt_dtype)dt_tensor_meta_fast(t)->dtype));
    if (on && t->cell->inference && !dt_m.inference)
        return dt_fail(DT_E_GRAD, "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed.");
    if (t->is_view)
        t->view_requires_grad = on;
    else
        t->cell->requires_grad = on;
    return DT_OK;
}

/* ---- data in and out ---- */
static dt_status host_meta(const dt_type *type, const dt_spec *spec, const dt_meta **meta) {
    for (int d = 0; spec && d < spec->mesh->ndim; d++)
        if (spec->place[d].kind == DT_PARTIAL)
            return dt_fail(DT_E_PLACEMENT, "a tensor from host data cannot be Partial: legal are Replicate() and Shard(dim)");
    return dt_meta_intern(type, spec ? spec->mesh : NULL, spec ? spec->place : NULL, meta);
}

static dt_status from_host(dt_hostbuf *buf, const dt_type *type, const dt_spec *spec, dt_tensor **out) {
    const dt_meta *meta;
    DT_TRY(dt_client_ready());
    DT_TRY(host_meta(type, spec ? spec : dt_m.spec, &meta));
    size_t need = (size_t)meta->numel * dt_dtype_size((dt_dtype)meta->dtype);
    if (buf->bytes < need) return dt_fail(DT_E_VALUE, "host data of %zu bytes for a tensor of %zu bytes", buf->bytes, need);
    dt_tensor *t = dt_result_new();
    if (!t) return DT_E_NOMEM;
    t->cell->val->meta = meta;
    t->cell->inference = dt_m.inference;
    dt_credit_given(buf->bytes);
    uint64_t *w = dt_ring_reserve(dt_c.ring, 5);
    w[0] = DT_REC_HEADER(DT_REC_HOST, 0, 1);
    w[1] = (uint64_t)(uintptr_t)meta;
    w[2] = dt_m.site;
    w[3] = t->cell->val->id;
    w[4] = (uint64_t)(uintptr_t)buf; /* the reference goes along */
    dt_ring_publish(dt_c.ring);
    *out = t;
    return DT_OK;
}

dt_status dt_tensor_from_host(dt_hostbuf *buf, const dt_type *type, const dt_spec *spec, dt_tensor **out) {
    dt_status s = from_host(buf, type, spec, out);
    if (s) dt_hostbuf_unref(buf);
    return s;
}

static dt_status fetch(dt_tensor *t, int64_t lo, int64_t hi, dt_future **out) { /* lo < 0: all of it */
    dt_val *v = dt_tensor_val(t);
    dt_val_announce(v);
    dt_type type = dt_meta_type(v->meta);
    const dt_meta *meta = NULL;
    if (lo >= 0) /* rows have no metadata: shapes without end would stay interned */
        type.shape[0] = hi - lo;
    else
        DT_TRY(dt_meta_intern(&type, NULL, NULL, &meta));
    dt_hostbuf *buf;
    dt_future *f;
    DT_TRY(dt_hostbuf_new((size_t)dt_type_numel(&type) * dt_dtype_size(type.dtype), &buf));
    DT_TRY(dt_future_new(buf, meta, &f));
    dt_future_ref(f);
    uint64_t *w = dt_ring_reserve(dt_c.ring, 6);
    w[0] = DT_REC_HEADER(DT_REC_FETCH, 1, 0);
    w[1] = v->id;
    w[2] = (uint64_t)(uintptr_t)f;
    w[3] = dt_m.site;
    w[4] = (uint64_t)lo;
    w[5] = (uint64_t)hi;
    dt_ring_publish(dt_c.ring);
    *out = f;
    return DT_OK;
}

static bool is_partial(const dt_meta *m) {
    for (int d = 0; d < m->mesh->ndim; d++)
        if (m->place[d].kind == DT_PARTIAL) return true;
    return false;
}

static dt_status fetch_summed(dt_tensor *t, int64_t lo, int64_t hi, dt_future **out) {
    const dt_meta *m = dt_tensor_meta_fast(t);
    if (!is_partial(m)) return fetch(t, lo, hi, out);
    dt_placement place[DT_MAX_MESH_DIM];
    dt_grad_place(m, place);
    dt_scope s;
    dt_scope_init(&s);
    bool grad = dt_mode_grad_set(false);
    dt_tensor *whole = dt_util_redistribute(&s, t, m->mesh, place);
    dt_mode_grad_set(grad);
    dt_status r = whole ? fetch(whole, lo, hi, out) : s.status;
    dt_scope_fini(&s);
    return r;
}

dt_status dt_tensor_fetch(dt_tensor *t, dt_future **out) {
    DT_TRY(dt_client_ready());
    DT_TRY(dt_tensor_fresh(t));
    return fetch_summed(t, -1, -1, out);
}

dt_status dt_tensor_fetch_rows(dt_tensor *t, int64_t lo, int64_t hi, dt_future **out) {
    DT_TRY(dt_client_ready());
    DT_TRY(dt_tensor_fresh(t));
    const dt_meta *m = dt_tensor_meta_fast(t);
    if (m->ndim == 0 || lo < 0 || lo > hi || hi > m->shape[0])
        return dt_fail(DT_E_INDEX, "rows %lld to %lld of a tensor of %lld rows", (long long)lo, (long long)hi, m->ndim ? (long long)m->shape[0] : 0ll);
    return fetch_summed(t, lo, hi, out);
}

dt_status dt_sync_async(dt_future **out) {
    DT_TRY(dt_client_ready());
    dt_future *f;
    DT_TRY(dt_future_new(NULL, NULL, &f));
    dt_future_ref(f);
    uint64_t *w = dt_ring_reserve(dt_c.ring, 2);
    w[0] = DT_REC_HEADER(DT_REC_SYNC, 0, 0);
    w[1] = (uint64_t)(uintptr_t)f;
    dt_ring_publish(dt_c.ring);
    *out = f;
    return DT_OK;
}
