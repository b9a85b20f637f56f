/* autograd.Function's node, and tensors it saves. The binding computes the results without recording, then attaches them here. */
#include "client/internal.h"

/* A function of one leaf, such as one that gathers a weight: see dt_grad_node. */
static bool of_a_leaf(const dt_grad_node *n) {
    int leaves = 0, others = 0;
    for (uint32_t i = 0; i < n->n_in; i++)
        if (n->edge[i].kind == DT_EDGE_NODE) *(n->edge[i].node->kind == DT_NODE_LEAF ? &leaves : &others) += 1;
    return leaves == 1 && !others;
}

static dt_status fill_edges(dt_grad_node *n, dt_tensor *const *ins) {
    for (uint32_t i = 0; i < n->n_in; i++) {
        if (!ins[i]) continue;
        DT_TRY(dt_tensor_fresh(ins[i]));
        dt_node_metas(n)[i] = dt_tensor_meta_fast(ins[i]);
        if (dt_dtype_is_float((dt_dtype)dt_tensor_meta_fast(ins[i])->dtype)) DT_TRY(dt_edge_of(ins[i], &n->edge[i]));
    }
    n->urgent = of_a_leaf(n);
    return DT_OK;
}

/* A view among the results becomes a tensor of its own: the function, not the base, is its history. */
static dt_status own_cell(dt_tensor *t) {
    DT_TRY(dt_tensor_fresh(t));
    if (!t->is_view) return DT_OK;
    return dt_tensor_set_data(t, t);
}

static dt_status check_outputs(const dt_custom *c, int n_out, dt_tensor *const *outs) {
    for (int i = 0; i < n_out; i++)
        if (outs[i] && dt_tensor_requires_grad(outs[i]) && dt_tensor_is_leaf(outs[i]))
            return dt_fail(DT_E_GRAD, "%s: a leaf Variable that requires grad is being used in an in-place operation.", c->name);
    return DT_OK;
}

dt_status dt_custom_attach(const dt_custom *c, int n_in, dt_tensor *const *ins, int n_out, dt_tensor *const *outs) {
    bool any = false;
    for (int i = 0; i < n_in; i++) any |= ins[i] && dt_tensor_requires_grad(ins[i]);
    if (!any || !dt_recording()) {
        if (c->free_fn) c->free_fn(c->ctx);
        return DT_OK;
    }
    DT_TRY(check_outputs(c, n_out, outs));
    dt_grad_node *n = dt_grad_node_new(DT_NODE_CUSTOM, (uint32_t)n_in, (uint32_t)n_out, (size_t)n_in * sizeof(dt_meta *));
    if (!n) return DT_E_NOMEM;
    dt_status r = fill_edges(n, ins);
    for (int i = 0; i < n_out && !r; i++)
        if (outs[i]) r = own_cell(outs[i]);
    n->custom.name = dt_intern(c->name);
    if (!n->custom.name) r = dt_fail(DT_E_NOMEM, "autograd.Function: out of host memory");
    if (r) {
        dt_grad_node_unref(n); /* its custom.free_fn is not set yet: ctx stays the caller's */
        return r;
    }
    n->custom = (dt_custom){c->backward, c->free_fn, c->ctx, n->custom.name};
    for (int i = 0; i < n_out; i++)
        if (outs[i] && dt_dtype_is_float((dt_dtype)dt_tensor_meta_fast(outs[i])->dtype)) dt_cell_history_set(outs[i]->cell, n, (uint32_t)i);
    dt_grad_node_unref(n);
    return DT_OK;
}

struct dt_saved {
    dt_val *val; /* or */
    dt_recipe *recipe;
    dt_cell *root;
    uint32_t version;
    dt_edge edge;
};

dt_status dt_saved_new(dt_tensor *t, dt_saved **out) {
    DT_TRY(dt_tensor_fresh(t));
    dt_saved *s = dt_calloc(1, sizeof *s);
    if (!s) return dt_fail(DT_E_NOMEM, "save_for_backward: out of host memory");
    dt_status r = dt_edge_of(t, &s->edge);
    if (r) {
        dt_free(s);
        return r;
    }
    dt_cell *root = dt_cell_root(t->cell);
    *out = s;
    if ((s->recipe = dt_tensor_val(t)->recipe)) {
        dt_recipe_use(s->recipe);
        return DT_OK;
    }
    s->val = dt_val_ref(dt_tensor_val(t));
    s->root = dt_cell_ref(root);
    s->version = root->version;
    return DT_OK;
}

static dt_status check_version(const dt_saved *s) {
    if (s->root && s->root->version != s->version) {
        DT_STR(text, 240);
        dt_meta_print(s->val->meta, &text);
        return dt_fail(DT_E_GRAD,
                       "one of the variables needed for gradient computation has been modified by an inplace operation: [%s] is at version "
                       "%u; expected version %u instead.",
                       text.buf, s->root->version, s->version);
    }
    return DT_OK;
}

dt_status dt_saved_get_as(dt_saved *s, dt_grad_node *n, uint32_t nr, dt_tensor **out) {
    DT_TRY(check_version(s));
    dt_val *v = s->val;
    if (s->recipe) DT_TRY(dt_recipe_make(s->recipe, &v));
    *out = dt_tensor_over(v, n, nr);
    return *out ? DT_OK : DT_E_NOMEM;
}

dt_status dt_saved_get(dt_saved *s, dt_tensor **out) {
    DT_TRY(check_version(s));
    if (s->edge.kind == DT_EDGE_NODE && s->edge.node->kind == DT_NODE_LEAF) { /* the leaf itself */
        *out = dt_tensor_ref(s->edge.node->leaf);
        return DT_OK;
    }
    dt_val *v = s->val;
    if (s->recipe) DT_TRY(dt_recipe_make(s->recipe, &v));
    *out = dt_tensor_over(v, s->edge.kind == DT_EDGE_NODE ? s->edge.node : NULL, s->edge.nr);
    return *out ? DT_OK : DT_E_NOMEM;
}

void dt_saved_free(dt_saved *s) {
    if (!s) return;
    if (s->recipe) dt_recipe_done(s->recipe);
    dt_val_unref(s->val);
    dt_cell_unref(s->root);
    if (s->edge.kind == DT_EDGE_NODE) dt_grad_node_unref(s->edge.node);
    dt_free(s);
}
