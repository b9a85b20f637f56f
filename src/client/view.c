/* Views: chains of view calls over a cell, and re-reading them after the cell changed. See client.h. */
#include "client/internal.h"

/* Iterative: chains may be long. */
void dt_view_step_unref(dt_view_step *s) {
    while (s && --s->refs == 0) {
        dt_view_step *prev = s->prev;
        dt_call_drop(s->call);
        dt_pool_give(&dt_c.steps, s);
        s = prev;
    }
}

dt_status dt_view_attach(dt_tensor *t, dt_tensor *base, dt_call *call, int out_index) {
    dt_view_step *s = dt_pool_take(&dt_c.steps);
    if (!s) return DT_E_NOMEM;
    *s = (dt_view_step){.refs = 1, .prev = dt_view_step_ref(base->chain), .call = call, .out_index = (uint16_t)out_index, .no_grad = !dt_recording()};
    call->refs++;
    t->is_view = true;
    t->chain = s;
    t->cell = dt_cell_ref(base->cell);
    t->cell->users++;
    t->stamp_seen = dt_storage_stamp(base);
    return DT_OK;
}

/* The step's op on `base`; only the result the step stands for is kept. */
static dt_status step_apply(const dt_view_step *s, dt_tensor *base, dt_tensor **out) {
    dt_args args;
    dt_args_of_call(s->call, &args);
    const dt_prep *p = dt_prep_get(s->call->op);
    for (int i = 0; i < p->n_params; i++)
        if (p->kind[i] <= DT_PK_VALUE) dt_arg_tensor(&args.a[i], base);
    dt_call *c;
    DT_TRY(dt_prepare(s->call->op, &args, &c));
    int n = c->n_out;
    dt_tensor *few[8], **all = n <= 8 ? few : dt_malloc((size_t)n * sizeof *all);
    if (!all) return dt_fail(DT_E_NOMEM, "a view: out of host memory");
    dt_status r = dt_issue(c, &args, all);
    for (int i = 0; i < n && !r; i++)
        if (i == s->out_index)
            *out = all[i];
        else
            dt_tensor_unref(all[i]);
    if (all != few) dt_free(all);
    return r;
}

/* at[0] is given (borrowed); at[i + 1] = step i on at[i], new references. The chain has n steps, of which `count` are applied. */
static dt_status steps_apply(dt_view_step *last, int n, int count, dt_tensor **at) {
    dt_view_step **order = dt_malloc((size_t)(n ? n : 1) * sizeof *order);
    if (!order) return dt_fail(DT_E_NOMEM, "a view: out of host memory");
    int k = n;
    for (dt_view_step *s = last; s; s = s->prev) order[--k] = s;
    dt_status r = DT_OK;
    for (int i = 0; i < count && !r; i++) r = step_apply(order[i], at[i], &at[i + 1]);
    dt_free(order);
    return r;
}

static int chain_length(const dt_view_step *s) {
    int n = 0;
    for (; s; s = s->prev) n++;
    return n;
}

typedef struct mode_guard {
    dt_modes saved;
} mode_guard;
static mode_guard guard(bool grad) {
    mode_guard g = {dt_m};
    dt_m.grad_off = !grad;
    dt_m.inference = false;
    dt_m.policy = DT_POLICY_AUTO;
    return g;
}

/* The end of the chain applied to t0. New reference. */
static dt_status chain_apply(dt_view_step *last, dt_tensor *t0, dt_tensor **out) {
    int n = chain_length(last);
    dt_tensor **at = dt_calloc((size_t)n + 1, sizeof *at);
    if (!at) return dt_fail(DT_E_NOMEM, "a view: out of host memory");
    at[0] = t0;
    dt_status r = steps_apply(last, n, n, at);
    if (!r) *out = dt_tensor_ref(at[n]);
    for (int i = 1; i <= n; i++) dt_tensor_unref(at[i]);
    dt_free(at);
    return r;
}

dt_status dt_cell_value(dt_cell *c, dt_val **out) {
    if (!c->root || c->seen == c->root->stamp) {
        *out = c->val;
        return DT_OK;
    }
    dt_tensor *t0 = dt_tensor_over(c->root->val, NULL, 0), *t = NULL;
    if (!t0) return DT_E_NOMEM;
    mode_guard g = guard(false);
    dt_status r = chain_apply(c->chain, t0, &t);
    dt_m = g.saved;
    if (!r) {
        dt_val *v = dt_val_ref(dt_tensor_val(t));
        dt_val_unref(c->val);
        c->val = *out = v;
        c->seen = c->root->stamp;
        dt_tensor_unref(t);
    }
    dt_tensor_unref(t0);
    return r;
}

/* The history of a whole cell, for views of it. New reference or NULL. */
static dt_status cell_history(dt_cell *c, dt_grad_node **fn, uint32_t *nr) {
    *fn = NULL;
    *nr = c->out_nr;
    if (c->grad_fn)
        *fn = dt_grad_node_ref(c->grad_fn);
    else if (c->requires_grad && c->owner) {
        dt_edge e = {0};
        DT_TRY(dt_edge_of(c->owner, &e));
        *fn = e.node;
        *nr = e.nr;
    }
    return DT_OK;
}

/* A handle for the cell's value with the cell's history, apart from the cell itself. New reference. */
static dt_status cell_twin(dt_cell *c, bool history, dt_tensor **out) {
    dt_val *v;
    dt_grad_node *fn = NULL;
    uint32_t nr = 0;
    DT_TRY(dt_cell_value(c, &v));
    if (history) DT_TRY(cell_history(c, &fn, &nr));
    *out = dt_tensor_over(v, fn, nr);
    if (fn) dt_grad_node_unref(fn);
    return *out ? DT_OK : DT_E_NOMEM;
}

static void view_take(dt_tensor *t, dt_tensor *from, bool history) {
    dt_val *old = t->val;
    t->val = dt_val_ref(dt_tensor_val(from));
    dt_val_unref(old);
    if (!history) return;
    dt_grad_node *fn = from->is_view ? from->grad_fn : from->cell->grad_fn, *was = t->grad_fn;
    t->grad_fn = fn ? dt_grad_node_ref(fn) : NULL;
    t->out_nr = from->is_view ? from->out_nr : from->cell->out_nr;
    if (was) dt_grad_node_unref(was);
}

dt_status dt_tensor_refresh(dt_tensor *t) {
    dt_val *whole;
    DT_TRY(dt_client_ready());
    DT_TRY(dt_cell_value(t->cell, &whole));
    if (!t->is_view || t->stamp_seen == dt_storage_stamp(t)) return DT_OK;
    bool history = t->cell->requires_grad && !t->view_requires_grad;
    dt_tensor *t0, *r = NULL;
    DT_TRY(cell_twin(t->cell, history, &t0));
    mode_guard g = guard(history);
    dt_status s = chain_apply(t->chain, t0, &r);
    dt_m = g.saved;
    if (!s) {
        view_take(t, r, history);
        t->stamp_seen = dt_storage_stamp(t);
        if (t->leaf && history) dt_retain_move(t);
        dt_tensor_unref(r);
    }
    dt_tensor_unref(t0);
    return s;
}

/* ---- writing through ------------------------------------------------------------------------------------------------------- */

/* The new whole, given t0 (the whole) and the new value of the chain's end. New reference. */
static dt_status unview_all(dt_scope *s, dt_view_step *last, dt_tensor *t0, dt_tensor *value, dt_tensor **out) {
    int n = chain_length(last);
    dt_tensor **at = dt_calloc((size_t)n + 1, sizeof *at);
    if (!at) return dt_fail(DT_E_NOMEM, "a write through a view: out of host memory");
    at[0] = t0;
    dt_status r = steps_apply(last, n, n - 1, at);
    dt_tensor *cur = value;
    for (int i = n - 1; i >= 0 && !r; i--, last = last->prev) {
        const dt_op *op = last->call->op;
        if (!op->unview) {
            r = dt_fail(DT_E_NOTIMPL, "%s(): its result cannot be written to in place; clone() it first", dt_op_name(op));
            break;
        }
        dt_tensor *next = NULL;
        op->unview(s, last->call, last->out_index, at[i], cur, &next);
        r = s->status;
        if (!r && !next) r = dt_fail(DT_E_INTERNAL, "%s(): unview gave no result", dt_op_name(op));
        cur = next;
    }
    if (!r) *out = dt_tensor_ref(cur);
    for (int i = 1; i <= n; i++) dt_tensor_unref(at[i]);
    dt_free(at);
    return r;
}

static void cell_take_val(dt_cell *c, dt_val *v) {
    dt_val *old = c->val;
    c->val = dt_val_ref(v);
    dt_val_unref(old);
}

static dt_status overwritten_backward(void *ctx, dt_tensor **gy, dt_tensor **gx) {
    if (!gy[0]) return DT_OK;
    dt_scope s;
    dt_scope_init(&s);
    dt_tensor *zero = dt_util_fill(&s, dt_tensor_meta_fast(gy[0]), 0);
    if (zero) gx[0] = dt_tensor_ref(zero);
    dt_status r = s.status;
    dt_scope_fini(&s);
    return r;
}

/* What had a history is overwritten by something without: it keeps requiring grad, and the old history gets zeros, as in PyTorch. */
static dt_status overwritten(dt_cell *c) {
    dt_grad_node *n = dt_grad_node_new(DT_NODE_CUSTOM, 1, 1, sizeof(dt_meta *));
    if (!n) return DT_E_NOMEM;
    n->custom = (dt_custom){overwritten_backward, NULL, NULL, "CopyBackwards"};
    dt_node_metas(n)[0] = c->val->meta;
    n->edge[0] = (dt_edge){.node = dt_grad_node_ref(c->grad_fn), .nr = c->out_nr, .kind = DT_EDGE_NODE};
    dt_cell_history_set(c, n, 0);
    dt_grad_node_unref(n);
    return DT_OK;
}

/* The cell's whole value becomes that of `value`. An alias hands it to its root, which keeps its own history. */
static dt_status cell_write(dt_cell *c, dt_tensor *value) {
    dt_val *v = dt_tensor_val(value);
    if (c->root && c->chain) {
        dt_tensor *t0 = dt_tensor_over(c->root->val, NULL, 0), *whole = NULL, *bare = t0 ? dt_tensor_over(v, NULL, 0) : NULL;
        if (!bare) {
            dt_tensor_unref(t0);
            return DT_E_NOMEM;
        }
        dt_scope s;
        dt_scope_init(&s);
        mode_guard g = guard(false);
        dt_status r = unview_all(&s, c->chain, t0, bare, &whole);
        dt_m = g.saved;
        if (!r) {
            cell_take_val(c->root, dt_tensor_val(whole));
            dt_tensor_unref(whole);
        }
        dt_scope_fini(&s);
        dt_tensor_unref(t0);
        dt_tensor_unref(bare);
        DT_TRY(r);
    } else if (c->root)
        cell_take_val(c->root, v);
    cell_take_val(c, v);
    dt_cell *root = dt_cell_root(c);
    root->stamp++;
    if (!c->silent) root->version++;
    if (c->root) c->seen = root->stamp;
    if (dt_recording()) {
        dt_grad_node *fn = value->is_view ? value->grad_fn : value->cell->grad_fn;
        if (fn || !c->grad_fn)
            dt_cell_history_set(c, fn, value->is_view ? value->out_nr : value->cell->out_nr);
        else
            DT_TRY(overwritten(c));
        if (c->owner && c->owner->leaf) dt_retain_move(c->owner);
    }
    return DT_OK;
}

/* value with dtype and placements of m, where they differ; a Partial target takes the value's placement. Borrowed from s, or value
 * itself. */
static dt_tensor *fit(dt_scope *s, dt_tensor *value, const dt_meta *m) {
    const dt_meta *v = dt_tensor_meta_fast(value);
    if (v == m) return value;
    bool later = v->dtype != m->dtype && dt_tensor_val(value)->source; /* what lies in a file is read where it goes */
    if (v->dtype != m->dtype && !later) value = dt_util_cast(s, value, (dt_dtype)m->dtype);
    if (!value) return NULL;
    v = dt_tensor_meta_fast(value);
    dt_placement place[DT_MAX_MESH_DIM];
    memcpy(place, m->place, sizeof place);
    for (int d = 0; d < m->mesh->ndim; d++)
        if (place[d].kind == DT_PARTIAL) place[d] = v->mesh == m->mesh ? v->place[d] : DT_R;
    if (v->mesh != m->mesh || memcmp(place, v->place, sizeof place) != 0) value = dt_util_redistribute(s, value, m->mesh, place);
    return later ? dt_util_cast(s, value, (dt_dtype)m->dtype) : value;
}

static dt_status write_view(dt_scope *s, dt_tensor *t, dt_tensor *value) {
    bool history = dt_recording() && (t->cell->requires_grad || dt_tensor_wants_grad(value));
    dt_tensor *t0, *whole = NULL;
    DT_TRY(cell_twin(t->cell, history, &t0));
    dt_status r = unview_all(s, t->chain, t0, value, &whole);
    dt_tensor *fitted = r ? NULL : fit(s, whole, dt_tensor_meta_fast(t0));
    if (!r && !fitted) r = s->status;
    if (!r) r = cell_write(t->cell, fitted);
    if (!r && !history) { /* the view's value is known; with history it is re-read, as its history is now the base's */
        view_take(t, value, false);
        t->stamp_seen = dt_storage_stamp(t);
    }
    dt_tensor_unref(whole);
    dt_tensor_unref(t0);
    return r;
}

dt_status dt_tensor_write(dt_tensor *t, dt_tensor *value) {
    DT_TRY(dt_tensor_fresh(t));
    DT_TRY(dt_tensor_fresh(value));
    dt_scope s;
    dt_scope_init(&s);
    dt_tensor *v = fit(&s, value, dt_tensor_meta_fast(t));
    dt_status r = v ? DT_OK : s.status;
    if (v) dt_val_announce(dt_tensor_val(v));
    if (!r) r = t->is_view ? write_view(&s, t, v) : cell_write(t->cell, v);
    dt_scope_fini(&s);
    return r;
}
