/* The graph of gradients: nodes, edges, saved tensors, and what a gradient formula sees (ops/grad.h).
 *
 *   node ── edge[i] ──> node that made input i (or the leaf node of a parameter)
 *        └─ slots: saved inputs and outputs, as values (immutable) with the cell and version they were taken from
 *
 * A node is referenced by the cells (or views) of its outputs and by later nodes' edges; a leaf node holds its tensor, the tensor points
 * back weakly. Freeing is iterative: a node whose last reference goes is queued, and one loop empties the queue, so a graph of any depth
 * can be dropped. */
#include "client/internal.h"
#include "ops/grad.h"

/* ---- nodes ---- */
static size_t class_bytes(uint8_t c) { return ((size_t)c + 1) * 64; }

dt_grad_node *dt_grad_node_new(dt_node_kind kind, uint32_t n_in, uint32_t n_out, size_t tail) {
    size_t size = sizeof(dt_grad_node) + n_in * sizeof(dt_edge) + tail;
    uint8_t class = 255;
    dt_grad_node *n;
    if (size <= class_bytes(DT_NODE_CLASSES - 1)) {
        class = (uint8_t)((size - 1) / 64);
        dt_c.nodes[class].size = class_bytes(class);
        n = dt_pool_take(&dt_c.nodes[class]);
    } else
        n = dt_malloc(size);
    if (!n) {
        (void)dt_fail(DT_E_NOMEM, "recording for gradients: out of host memory");
        return NULL;
    }
    memset(n, 0, size);
    n->refs = 1;
    n->kind = (uint8_t)kind;
    n->size_class = class;
    n->n_in = n_in;
    n->n_out = n_out;
    n->seq = kind == DT_NODE_LEAF ? UINT64_MAX : ++dt_c.seq;
    return n;
}

void dt_grad_node_saved_free(dt_grad_node *n) {
    dt_slot *s = dt_node_slots(n);
    if (n->n_slots) n->released = true;
    for (uint32_t i = 0; i < n->n_slots; i++) {
        if (DT_UNLIKELY(s[i].recipe != NULL)) {
            dt_recipe_done(s[i].recipe);
            continue;
        }
        dt_val_unref(s[i].val);
        dt_cell_unref(s[i].cell);
    }
    n->n_slots = 0;
}

static void node_destroy(dt_grad_node *n) {
    dt_grad_node_saved_free(n);
    for (uint32_t i = 0; i < n->n_in; i++)
        if (n->edge[i].kind == DT_EDGE_NODE) dt_grad_node_unref(n->edge[i].node);
    if (n->moved) dt_moved_forget_node(n);
    if (n->call) dt_call_drop(n->call);
    if (n->hooks) {
        dt_hooks_fini(n->hooks);
        dt_free(n->hooks);
    }
    if (n->kind == DT_NODE_CUSTOM && n->custom.free_fn) n->custom.free_fn(n->custom.ctx);
    if (n->kind == DT_NODE_LEAF && n->leaf) {
        if (n->leaf->leaf) n->leaf->leaf->acc = NULL;
        dt_tensor_unref(n->leaf);
    }
    if (n->size_class == 255)
        dt_free(n);
    else
        dt_pool_give(&dt_c.nodes[n->size_class], n);
}

void dt_grad_node_unref(dt_grad_node *n) {
    if (!n || --n->refs) return;
    n->next_dead = dt_c.dead_nodes;
    dt_c.dead_nodes = n;
    if (dt_c.draining) return;
    dt_c.draining = true;
    while ((n = dt_c.dead_nodes)) {
        dt_c.dead_nodes = n->next_dead;
        node_destroy(n);
    }
    dt_c.draining = false;
}

/* ---- leaves and edges ---- */
dt_leaf *dt_leaf_get(dt_tensor *t) {
    if (t->leaf) return t->leaf;
    dt_leaf *l = dt_calloc(1, sizeof *l);
    if (!l) (void)dt_fail(DT_E_NOMEM, "recording for gradients: out of host memory");
    return t->leaf = l;
}

static dt_status leaf_node(dt_tensor *t, dt_grad_node **out) {
    dt_leaf *l = dt_leaf_get(t);
    if (!l) return DT_E_NOMEM;
    if (l->acc) {
        *out = dt_grad_node_ref(l->acc);
        return DT_OK;
    }
    dt_grad_node *n = dt_grad_node_new(DT_NODE_LEAF, 0, 1, 0);
    if (!n) return DT_E_NOMEM;
    n->leaf = dt_tensor_ref(t);
    l->acc = n;
    *out = n;
    return DT_OK;
}

/* t is fresh. Where a gradient of t goes. */
dt_status dt_edge_of(dt_tensor *t, dt_edge *e) {
    *e = (dt_edge){0};
    if (!dt_tensor_wants_grad(t)) return DT_OK;
    dt_grad_node *fn = t->is_view ? t->grad_fn : t->cell->grad_fn;
    if (fn) {
        e->node = dt_grad_node_ref(fn);
        e->nr = t->is_view ? t->out_nr : t->cell->out_nr;
    } else
        DT_TRY(leaf_node(t, &e->node));
    e->kind = DT_EDGE_NODE;
    return DT_OK;
}

/* ---- recording a call ---- */
static bool wants(uint32_t i) { return i < dt_c.n_in && dt_c.in_tensor[i] && dt_tensor_wants_grad(dt_c.in_tensor[i]); }

/* Is input i saved? A number is not (it is in its edge), nor a factor whose other factor needs no gradient. */
static bool saves_in(const dt_call *c, uint32_t i) {
    uint32_t mask = c->op->saves;
    bool all = (mask & DT_SAVE_ALL_IN) == DT_SAVE_ALL_IN;
    if (!(all || (i < 16 && mask >> i & 1)) || i >= dt_c.n_in || !dt_c.in_tensor[i]) return false;
    return !(c->op->flags & DT_F_BILINEAR) || i > 1 || wants(1 - i);
}

static uint32_t count_slots(const dt_call *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_in; i++) n += saves_in(c, i);
    for (uint32_t i = 0; i < c->n_out && i < 16; i++) n += c->op->saves >> (16 + i) & 1;
    return n;
}

static void save(dt_slot *s, uint32_t index, dt_tensor *t) {
    dt_recipe *r = dt_tensor_val(t)->recipe;
    if (DT_UNLIKELY(r != NULL)) { /* the cell would keep the value; writes do not matter to what is made from values */
        *s = (dt_slot){.recipe = r, .index = index};
        dt_recipe_use(r);
        return;
    }
    dt_cell *root = dt_cell_root(t->cell);
    *s = (dt_slot){.val = dt_val_ref(dt_tensor_val(t)), .cell = dt_cell_ref(root), .version = root->version, .index = index};
}

static dt_status save_all(dt_grad_node *n, const dt_call *c, dt_tensor **out) {
    uint32_t mask = c->op->saves;
    dt_slot *s = dt_node_slots(n);
    for (uint32_t i = 0; i < c->n_in; i++) {
        if (!saves_in(c, i)) continue;
        if (dt_c.in_tensor[i]->cell->inference)
            return dt_fail(DT_E_GRAD, "Inference tensors cannot be saved for backward. To work around you can make a clone to get a normal "
                                      "tensor and use it in autograd.");
        save(&s[n->n_slots++], i, dt_c.in_tensor[i]);
    }
    for (uint32_t i = 0; i < c->n_out && i < 16; i++)
        if (mask >> (16 + i) & 1) save(&s[n->n_slots++], DT_SLOT_OUT + i, out[i]);
    return DT_OK;
}

dt_status dt_grad_record(dt_call *c, dt_tensor **out, dt_grad_node **node) {
    uint32_t slots = count_slots(c);
    dt_grad_node *n = dt_grad_node_new(DT_NODE_OP, c->n_in, c->n_out, slots * sizeof(dt_slot));
    if (!n) return DT_E_NOMEM;
    n->call = c;
    c->refs++;
    dt_status r = DT_OK;
    for (uint32_t i = 0; i < c->n_in && !r; i++) {
        dt_tensor *t = i < dt_c.n_in ? dt_c.in_tensor[i] : NULL;
        if (t) {
            if (dt_dtype_is_float((dt_dtype)c->in[i]->dtype)) r = dt_edge_of(t, &n->edge[i]);
        } else if (c->in[i]) {
            n->edge[i].kind = DT_EDGE_NUMBER;
            n->edge[i].number = dt_c.in_word[i];
        }
    }
    if (c->n_in == 1 && (c->op == &dt_op_redistribute || c->op == &dt_op_to_dtype) && n->edge[0].kind == DT_EDGE_NODE)
        n->urgent = n->edge[0].node->kind == DT_NODE_LEAF || n->edge[0].node->urgent;
    if (!r) r = save_all(n, c, out);
    if (r) {
        dt_grad_node_unref(n);
        return r;
    }
    *node = n;
    return DT_OK;
}

void dt_grad_node_rebase(dt_grad_node *n, dt_tensor *t) {
    if (n->kind != DT_NODE_OP) return;
    dt_cell *root = dt_cell_root(t->cell);
    dt_slot *s = dt_node_slots(n);
    for (uint32_t i = 0; i < n->n_slots; i++) {
        if (s[i].recipe) continue;
        if (s[i].index >= DT_SLOT_OUT) {
            dt_cell_unref(s[i].cell);
            s[i].cell = dt_cell_ref(root);
            s[i].version = root->version + 1;
        } else if (s[i].cell == root) {
            dt_cell_unref(s[i].cell);
            s[i].cell = NULL;
        }
    }
}

/* ---- what formulas see ---- */
static dt_status slot_check(const dt_grad_node *n, const dt_slot *s) {
    if (!s->cell || s->cell->version == s->version) return DT_OK;
    DT_STR(shape, 160);
    const dt_meta *m = s->val->meta;
    for (int i = 0; i < m->ndim; i++) dt_str_add(&shape, i ? ", %lld" : "%lld", (long long)m->shape[i]);
    return dt_fail(DT_E_GRAD,
                   "one of the variables needed for gradient computation has been modified by an inplace operation: [%s [%s]], which is %s %u of %s, "
                   "is at version %u; "
                   "expected version %u instead. Hint: the backtrace further above shows the operation that failed to compute its gradient.",
                   dt_dtype_name((dt_dtype)m->dtype), shape.buf, s->index >= DT_SLOT_OUT ? "output" : "input", s->index % DT_SLOT_OUT, dt_grad_node_name(n),
                   s->cell->version, s->version);
}

static dt_tensor *unpack(dt_grad *g, uint32_t index) {
    dt_grad_node *n = g->node;
    if (g->s->status) return NULL;
    dt_slot *s = dt_node_slots(n);
    for (uint32_t i = 0; i < n->n_slots; i++, s++) {
        if (s->index != index) continue;
        dt_status r = slot_check(n, s);
        if (r) {
            dt_scope_fail(g->s, r);
            return NULL;
        }
        dt_val *v = s->val;
        if (DT_UNLIKELY(s->recipe != NULL) && (r = dt_recipe_make(s->recipe, &v))) {
            dt_scope_fail(g->s, r);
            return NULL;
        }
        dt_grad_node *fn = NULL;
        uint32_t nr = 0;
        if (dt_recording() && index >= DT_SLOT_OUT) {
            fn = dt_dtype_is_float((dt_dtype)v->meta->dtype) ? n : NULL;
            nr = index - DT_SLOT_OUT;
        } else if (dt_recording() && n->edge[index].kind == DT_EDGE_NODE) {
            fn = n->edge[index].node;
            nr = n->edge[index].nr;
        }
        dt_tensor *t = dt_tensor_over(v, fn, nr);
        if (!t) dt_scope_fail(g->s, DT_E_NOMEM);
        return dt_scope_own(g->s, t);
    }
    return NULL;
}

dt_tensor *dt_grad_in(dt_grad *g, int i) { return unpack(g, (uint32_t)i); }
dt_tensor *dt_grad_out(dt_grad *g, int i) { return unpack(g, DT_SLOT_OUT + (uint32_t)i); }

dt_tensor *dt_grad_gy(dt_grad *g, int i) {
    if (g->gy[i] || g->s->status) return g->gy[i];
    return dt_util_fill(g->s, g->call->out[i], 0);
}

dt_value dt_grad_scalar(const dt_grad *g, int i) {
    const dt_edge *e = &g->node->edge[i];
    if (e->kind != DT_EDGE_NUMBER || !g->call->in[i]) return DT_NOTHING;
    dt_value v = {.kind = g->call->in[i]->dtype == DT_float64 ? 2 : g->call->in[i]->dtype == DT_bool ? 4 : 3};
    memcpy(&v.i, &e->number, 8);
    return v;
}

dt_value dt_grad_value(dt_grad *g, int i) {
    const dt_meta *m = g->call->in[i];
    if (!m) return DT_NOTHING;
    if (m->wrapped) return dt_grad_scalar(g, i);
    return dt_v_tensor(dt_grad_in(g, i));
}

void dt_grad_set(dt_grad *g, int i, dt_tensor *gx) {
    if (!g->s->status) g->gx[i] = gx;
}

void dt_grad_set_outer(dt_grad *g, int i, dt_tensor *a, dt_tensor *b) {
    if (g->s->status || !a || !b) return;
    g->outer[2 * i] = a;
    g->outer[2 * i + 1] = b;
}

/* ---- looking at the graph ---- */
const char *dt_grad_node_name(const dt_grad_node *n) {
    static _Thread_local char name[80];
    if (n->kind == DT_NODE_LEAF) return "AccumulateGrad";
    if (n->kind == DT_NODE_CUSTOM) return n->custom.name;
    size_t k = 0;
    bool up = true;
    for (const char *p = dt_op_name(n->call->op); *p && k < sizeof name - 11; p++) {
        if (*p == '_') {
            up = true;
            continue;
        }
        name[k++] = up && *p >= 'a' && *p <= 'z' ? (char)(*p - 32) : *p;
        up = false;
    }
    memcpy(name + k, "Backward0", 10); /* PyTorch numbers its overloads */
    return name;
}

int dt_grad_node_inputs(const dt_grad_node *n) { return (int)n->n_in; }

dt_grad_node *dt_grad_node_input(const dt_grad_node *n, int i, uint32_t *out_nr) {
    if (i < 0 || (uint32_t)i >= n->n_in || n->edge[i].kind != DT_EDGE_NODE) return NULL;
    *out_nr = n->edge[i].nr;
    return n->edge[i].node;
}

dt_tensor *dt_grad_node_leaf(const dt_grad_node *n) { return n->kind == DT_NODE_LEAF ? n->leaf : NULL; }
dt_grad_node *dt_grad_node_hold(dt_grad_node *n) { return dt_grad_node_ref(n); }
void dt_grad_node_release(dt_grad_node *n) { dt_grad_node_unref(n); }
