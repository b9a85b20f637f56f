/* Gradients of leaves: .grad, hooks, retain_grad. Hooks of a leaf live in its dt_leaf, those of other tensors at the node that makes
 * them, so that they survive the handle, as in PyTorch. */
#include "client/internal.h"

void dt_hooks_fini(dt_hooks *h) {
    for (int i = 0; i < h->n; i++)
        if (!h->v[i].retain && h->v[i].hook.free_fn) h->v[i].hook.free_fn(h->v[i].hook.ctx);
    dt_free(h->v);
    *h = (dt_hooks){0};
}

static dt_status hooks_push(dt_hooks *h, dt_hook_entry e) {
    if (h->n == h->cap) {
        int cap = h->cap ? h->cap * 2 : 2;
        dt_hook_entry *v = dt_realloc(h->v, (size_t)cap * sizeof *v);
        if (!v) return dt_fail(DT_E_NOMEM, "a hook: out of host memory");
        h->v = v;
        h->cap = cap;
    }
    h->v[h->n++] = e;
    return DT_OK;
}

static bool hooks_remove(dt_hooks *h, uint64_t id) {
    for (int i = 0; h && i < h->n; i++) {
        if (h->v[i].id != id) continue;
        dt_hook k = h->v[i].hook;
        bool hook = !h->v[i].retain;
        memmove(h->v + i, h->v + i + 1, (size_t)(h->n - i - 1) * sizeof *h->v);
        h->n--;
        if (hook && k.free_fn) k.free_fn(k.ctx);
        return true;
    }
    return false;
}

/* The first hook added after `last`; ids grow, and entries stand in the order of their ids. */
static dt_hook_entry *hook_after(dt_hooks *h, uint64_t last) {
    for (int i = 0; i < h->n; i++)
        if (!h->v[i].retain && h->v[i].id > last) return &h->v[i];
    return NULL;
}

/* Runs hooks in order, then hands the gradient to those who retain it. A hook may add or remove hooks while it runs, itself too. */
dt_status dt_hooks_run(dt_hooks *h, uint32_t nr, dt_tensor **grad) {
    uint64_t end = dt_c.hook_id; /* those added meanwhile wait for the next pass */
    for (dt_hook_entry *e = hook_after(h, 0); e && e->id <= end;) {
        uint64_t id = e->id;
        if (e->nr == nr) DT_TRY(e->hook.fn(e->hook.ctx, grad));
        e = hook_after(h, id);
    }
    for (int i = 0; i < h->n; i++) {
        dt_tensor *t = h->v[i].retain;
        if (h->v[i].nr != nr || !t || !t->leaf) continue;
        dt_tensor *old = t->leaf->grad;
        t->leaf->grad = dt_tensor_ref(*grad);
        dt_tensor_unref(old);
    }
    return DT_OK;
}

static dt_status node_hooks(dt_grad_node *n, dt_hooks **out) {
    if (!n->hooks) n->hooks = dt_calloc(1, sizeof *n->hooks);
    *out = n->hooks;
    return n->hooks ? DT_OK : dt_fail(DT_E_NOMEM, "a hook: out of host memory");
}

dt_status dt_tensor_hook_add(dt_tensor *t, dt_hook h, uint64_t *handle) {
    DT_TRY(dt_tensor_fresh(t));
    if (!dt_tensor_wants_grad(t)) return dt_fail(DT_E_GRAD, "cannot register a hook on a tensor that doesn't require gradient");
    dt_grad_node *fn = t->is_view ? t->grad_fn : t->cell->grad_fn;
    dt_hooks *list;
    if (fn)
        DT_TRY(node_hooks(fn, &list));
    else {
        if (!dt_leaf_get(t)) return DT_E_NOMEM;
        list = &t->leaf->pre;
    }
    dt_hook_entry e = {.id = ++dt_c.hook_id, .nr = fn ? (t->is_view ? t->out_nr : t->cell->out_nr) : 0, .hook = h};
    DT_TRY(hooks_push(list, e));
    *handle = e.id;
    return DT_OK;
}

dt_status dt_tensor_post_hook_add(dt_tensor *t, dt_hook h, uint64_t *handle) {
    DT_TRY(dt_tensor_fresh(t));
    if (!dt_tensor_wants_grad(t)) return dt_fail(DT_E_GRAD, "cannot register a hook on a tensor that doesn't require gradient");
    if (!dt_tensor_is_leaf(t)) return dt_fail(DT_E_GRAD, "post accumulate grad hooks cannot be registered on non-leaf tensors");
    if (!dt_leaf_get(t)) return DT_E_NOMEM;
    dt_hook_entry e = {.id = ++dt_c.hook_id, .hook = h};
    DT_TRY(hooks_push(&t->leaf->post, e));
    *handle = e.id;
    return DT_OK;
}

void dt_tensor_hook_remove(dt_tensor *t, uint64_t handle) {
    if (t->leaf && (hooks_remove(&t->leaf->pre, handle) || hooks_remove(&t->leaf->post, handle))) return;
    dt_grad_node *fn = t->is_view ? t->grad_fn : t->cell->grad_fn;
    if (fn) (void)hooks_remove(fn->hooks, handle);
}

/* While a graph holds the leaf, too, its hooks do not go with the caller's handle. */
static bool hooks_go_with(const dt_tensor *t) { return t && t->leaf && t->refs == 1; }

int dt_tensor_hooks_each(const dt_tensor *t, int (*f)(const dt_hook *h, void *arg), void *arg) {
    if (!hooks_go_with(t)) return 0;
    const dt_hooks *lists[] = {&t->leaf->pre, &t->leaf->post};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < lists[k]->n; i++) {
            int r = lists[k]->v[i].retain ? 0 : f(&lists[k]->v[i].hook, arg);
            if (r) return r;
        }
    return 0;
}

void dt_tensor_hooks_drop(dt_tensor *t) {
    if (!hooks_go_with(t)) return;
    dt_hooks pre = t->leaf->pre, post = t->leaf->post; /* freeing may run the caller's code: the leaf is whole before */
    t->leaf->pre = t->leaf->post = (dt_hooks){0};
    dt_hooks_fini(&pre);
    dt_hooks_fini(&post);
}

/* ---- retain_grad ---- */
static void retain_drop(dt_tensor *t) {
    dt_grad_node *n = t->leaf->retain_node;
    if (!n) return;
    dt_hooks *h = n->hooks;
    int kept = 0;
    for (int i = 0; h && i < h->n; i++)
        if (h->v[i].retain != t) h->v[kept++] = h->v[i];
    if (h) h->n = kept;
    t->leaf->retain_node = NULL;
    dt_grad_node_unref(n);
}

dt_status dt_tensor_retain_grad(dt_tensor *t) {
    DT_TRY(dt_tensor_fresh(t));
    if (!dt_tensor_wants_grad(t)) return dt_fail(DT_E_GRAD, "can't retain_grad on Tensor that has requires_grad=False");
    dt_grad_node *fn = t->is_view ? t->grad_fn : t->cell->grad_fn;
    if (!fn) return DT_OK; /* leaves have their gradient anyway */
    if (!dt_leaf_get(t)) return DT_E_NOMEM;
    if (t->leaf->retain_node == fn) return DT_OK;
    retain_drop(t);
    dt_hooks *list;
    DT_TRY(node_hooks(fn, &list));
    DT_TRY(hooks_push(list, (dt_hook_entry){.nr = t->is_view ? t->out_nr : t->cell->out_nr, .retain = t}));
    t->leaf->retain_node = dt_grad_node_ref(fn);
    return DT_OK;
}

void dt_retain_move(dt_tensor *t) {
    if (!t->leaf || !t->leaf->retain_node) return;
    dt_grad_node *fn = t->is_view ? t->grad_fn : t->cell->grad_fn;
    if (fn == t->leaf->retain_node) return;
    retain_drop(t);
    if (fn && dt_tensor_retain_grad(t)) (void)0; /* without memory the gradient is not retained */
}

void dt_leaf_free(dt_tensor *t) {
    dt_leaf *l = t->leaf;
    retain_drop(t);
    t->leaf = NULL;
    dt_hooks_fini(&l->pre);
    dt_hooks_fini(&l->post);
    dt_tensor_unref(l->grad);
    dt_tensor_unref(l->pending);
    dt_tensor_unref(l->low);
    dt_free(l);
}

/* ---- .grad ----
 * A gradient that comes out as a Partial sum, such as that of a replicated parameter from a batch that is cut, is summed up over devices when somebody
 * reads .grad: at the optimizer's step. Until then contributions of further backward passes are added to it where they are, so that accumulating over
 * any number of micro-batches communicates once. Nobody can tell: it does not wait if the leaf has hooks, if the backward pass is itself recorded, or
 * if somebody holds the tensor that .grad is. What is asked for in shards does not wait either: a shard is smaller than what it is the sum of. */
dt_tensor *dt_tensor_grad(const dt_tensor *t) { return t->leaf ? t->leaf->grad : NULL; }

static void own_place(const dt_tensor *t, dt_placement *place) {
    const dt_spec *s = t->leaf ? t->leaf->grad_spec : NULL;
    if (s && s->mesh == dt_tensor_meta_fast(t)->mesh)
        memcpy(place, s->place, sizeof s->place);
    else
        dt_grad_place(dt_tensor_meta_fast(t), place);
}

void dt_leaf_place(const dt_tensor *t, const dt_meta *g, dt_placement *place) {
    own_place(t, place);
    if (!g || g->mesh != dt_tensor_meta_fast(t)->mesh) return;
    for (int d = 0; d < g->mesh->ndim; d++)
        if (g->place[d].kind == DT_PARTIAL && g->place[d].reduce == DT_SUM && place[d].kind == DT_REPLICATE) place[d] = g->place[d];
}

dt_status dt_tensor_grad_placements_set(dt_tensor *t, const dt_spec *spec) {
    if (!dt_tensor_is_leaf(t)) return dt_fail(DT_E_GRAD, "grad_placements: the tensor is not a leaf, its gradient is not kept");
    for (int d = 0; spec && d < spec->mesh->ndim; d++)
        if (spec->place[d].kind == DT_PARTIAL) return dt_fail(DT_E_PLACEMENT, "grad_placements: Replicate() and Shard(dim) are legal, not Partial");
    if (!dt_leaf_get(t)) return DT_E_NOMEM;
    t->leaf->grad_spec = spec; /* sums that are left to do end up there, too */
    return DT_OK;
}

void dt_tensor_grad_placements(const dt_tensor *t, dt_placement *place) { own_place(t, place); }

dt_status dt_tensor_grad_set(dt_tensor *t, dt_tensor *g) {
    if (g == t) return dt_fail(DT_E_VALUE, "can't assign Variable as its own grad");
    if (g) {
        const dt_meta *m = dt_tensor_meta_fast(t), *k = dt_tensor_meta_fast(g);
        if (m->dtype != k->dtype)
            return dt_fail(DT_E_GRAD, "attempting to assign a gradient of dtype %s to a tensor of dtype %s", dt_dtype_name((dt_dtype)k->dtype),
                           dt_dtype_name((dt_dtype)m->dtype));
        if (!dt_meta_same_shape(m, k)) {
            DT_STR(a, 200);
            DT_STR(b, 200);
            dt_shape_print(k->ndim, k->shape, &a);
            dt_shape_print(m->ndim, m->shape, &b);
            return dt_fail(DT_E_GRAD,
                           "attempting to assign a gradient of size %s to a tensor of size %s. Please ensure that the gradient and the "
                           "tensor are the same size",
                           a.buf, b.buf);
        }
        if (m->mesh != k->mesh) return dt_fail(DT_E_GRAD, "assigned grad lies on another device or mesh than the tensor");
        if (!dt_leaf_get(t)) return DT_E_NOMEM;
        dt_tensor_ref(g);
    }
    if (!t->leaf) return DT_OK;
    dt_tensor *old = t->leaf->grad, *waiting = t->leaf->pending;
    t->leaf->grad = g;
    t->leaf->pending = NULL;
    dt_tensor_unref(old);
    dt_tensor_unref(waiting);
    return DT_OK;
}

/* A fresh handle over g's value; with its history if the backward pass is itself recorded. */
static dt_tensor *own_copy(dt_tensor *g, bool history) {
    dt_grad_node *fn = !history ? NULL : g->is_view ? g->grad_fn : g->cell->grad_fn;
    return dt_tensor_over(dt_tensor_val(g), fn, g->is_view ? g->out_nr : g->cell->out_nr);
}

static dt_status add_to_grad(dt_leaf *l, dt_tensor *g, bool create_graph) {
    if (!l->grad) {
        l->grad = own_copy(g, create_graph);
        return l->grad ? DT_OK : DT_E_NOMEM;
    }
    dt_scope s;
    dt_scope_init(&s);
    dt_tensor *sum = dt_util_add(&s, l->grad, g);
    dt_status r = s.status;
    if (!r && create_graph) {
        dt_tensor *old = l->grad;
        l->grad = dt_tensor_ref(sum);
        dt_tensor_unref(old);
    } else if (!r)
        r = dt_tensor_write(l->grad, sum); /* grad mode is off: what holds .grad sees the sum */
    dt_scope_fini(&s);
    return r;
}

/* g, summed up over devices, into .grad. */
static dt_status settle(dt_tensor *t, dt_tensor *g, uint32_t site) {
    dt_placement place[DT_MAX_MESH_DIM];
    dt_scope s;
    uint32_t before = dt_m.site;
    bool recorded = !dt_m.grad_off;
    dt_m.site = site;
    dt_m.grad_off = true;
    dt_scope_init(&s);
    own_place(t, place);
    dt_tensor *whole = dt_grad_fit(&s, g, dt_tensor_meta_fast(t), place, "AccumulateGrad", 0);
    dt_status r = whole ? add_to_grad(t->leaf, whole, false) : s.status;
    dt_scope_fini(&s);
    dt_m.site = before;
    dt_m.grad_off = !recorded;
    return r;
}

dt_status dt_tensor_grad_settle(dt_tensor *t) {
    if (!t->leaf || !t->leaf->pending) return DT_OK;
    dt_tensor *g = t->leaf->pending;
    t->leaf->pending = NULL;
    dt_status r = settle(t, g, t->leaf->pending_site);
    dt_tensor_unref(g);
    return r;
}

/* g is Partial where .grad will not be: keep it back, or settle at once if it would show. */
static dt_status keep_pending(dt_tensor *t, dt_leaf *l, dt_tensor *g) {
    if (l->grad && l->grad->refs > 1) {
        DT_TRY(dt_tensor_grad_settle(t));
        return settle(t, g, dt_m.site);
    }
    if (l->pending && dt_tensor_meta_fast(l->pending) != dt_tensor_meta_fast(g)) DT_TRY(dt_tensor_grad_settle(t));
    l->pending_site = dt_m.site;
    if (!l->pending) {
        l->pending = own_copy(g, false);
        return l->pending ? DT_OK : DT_E_NOMEM;
    }
    dt_scope s;
    dt_scope_init(&s);
    dt_tensor *sum = dt_util_add(&s, l->pending, g), *copy = sum ? own_copy(sum, false) : NULL;
    dt_status r = s.status ? s.status : copy ? DT_OK : DT_E_NOMEM;
    dt_scope_fini(&s);
    if (r) return r;
    dt_tensor_unref(l->pending);
    l->pending = copy;
    return DT_OK;
}

dt_status dt_grad_accumulate(dt_tensor *t, dt_tensor *g, bool create_graph) {
    dt_leaf *l = dt_leaf_get(t);
    if (!l) return DT_E_NOMEM;
    DT_TRY(dt_tensor_fresh(g));
    const dt_meta *m = dt_tensor_meta_fast(g);
    dt_placement place[DT_MAX_MESH_DIM];
    own_place(t, place);
    for (int d = 0; d < m->mesh->ndim; d++)
        if (m->place[d].kind == DT_PARTIAL && place[d].kind == DT_REPLICATE) return keep_pending(t, l, g);
    DT_TRY(create_graph ? dt_tensor_grad_settle(t) : DT_OK);
    return add_to_grad(l, g, create_graph);
}
