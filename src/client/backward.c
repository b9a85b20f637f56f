/* The backward pass: Kahn's order over the part of the graph that the roots reach, latest node first, as PyTorch does.
 *
 * A run gives every node it meets an `info` (arena): how many edges still have to deliver, the gradients that came in, who captures them.
 * A table of the run's own leads from nodes to infos (rejected: a pointer in the node): hooks and custom functions may start further runs
 * over the same nodes, in this thread or, once they let go of the binding's lock, in another. With `inputs`, only nodes on a way to an
 * input run. Gradients that are products of few rows (dt_grad_set_outer) wait at their node for the others and become one product. Leaf nodes, and moves and casts of leaves, come before all others, so that gradients are accumulated as soon as they are complete. Gradient formulas run
 * with grad mode off unless create_graph. */
#include <stdlib.h>

#include "client/internal.h"
#include "dtorch_ops.h"
#include "ops/grad.h"

/* Products of equal shapes for one output of a node, not made yet. */
typedef struct outers {
    struct outers *next; /* of another output, or other shapes */
    uint32_t nr;
    int n;
    const dt_meta *like;       /* the gradient's */
    dt_tensor **a, **b;        /* (n,) strong */
    const dt_grad_node *maker; /* who made the first, for messages; alive as long as the run */
    int index;
} outers;
enum { OUTERS_MOST = 512 };

typedef struct capture {
    struct capture *next;
    uint32_t nr;
    int index; /* of the input */
} capture;

typedef struct info {
    dt_grad_node *node; /* strong */
    uint32_t deps;
    bool needed; /* some input lies beyond */
    capture *captures;
    dt_tensor **grad; /* (n_out,) */
    outers *outers;
} info;

typedef struct run {
    const dt_backward_args *a;
    dt_tensor **out; /* captured gradients, (n_inputs,) */
    dt_arena arena;
    info **all, **heap;
    size_t n, cap, n_heap;
    info **table; /* open addressing by node, at most half full */
    size_t mask;
} run;

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "backward: out of host memory"); }

static size_t slot_of(const run *r, const dt_grad_node *n) {
    size_t i = (size_t)(dt_hash_mix((uint64_t)(uintptr_t)n, 1) & r->mask);
    while (r->table[i] && r->table[i]->node != n) i = (i + 1) & r->mask;
    return i;
}

/* The run's info of a node; NULL if it was not met. */
static info *known(const run *r, const dt_grad_node *n) { return r->table[slot_of(r, n)]; }

/* Room for one more info. */
static dt_status grow(run *r) {
    if (r->n < r->cap) return DT_OK;
    size_t cap = r->cap ? r->cap * 2 : 128;
    info **all = dt_realloc(r->all, cap * sizeof *all);
    if (!all) return no_memory();
    r->all = all;
    info **table = dt_calloc(2 * cap, sizeof *table);
    if (!table) return no_memory();
    dt_free(r->table);
    r->table = table;
    r->mask = 2 * cap - 1;
    r->cap = cap;
    for (size_t k = 0; k < r->n; k++) r->table[slot_of(r, r->all[k]->node)] = r->all[k];
    return DT_OK;
}

/* The run's info of a node, made at the first visit. */
static dt_status meet(run *r, dt_grad_node *n, info **out) {
    DT_TRY(grow(r));
    size_t at = slot_of(r, n);
    if (!r->table[at]) {
        info *fresh = DT_ARENA_NEW(&r->arena, info);
        dt_tensor **grad = DT_ARENA_ARRAY(&r->arena, dt_tensor *, n->n_out);
        if (!fresh || !grad) return no_memory();
        *fresh = (info){.node = dt_grad_node_ref(n), .grad = grad};
        r->table[at] = r->all[r->n++] = fresh;
    }
    *out = r->table[at];
    return DT_OK;
}

/* Every node from the roots on; r->all grows while it is walked, each entry is expanded once. */
static dt_status discover(run *r) {
    for (size_t k = 0; k < r->n; k++) {
        dt_grad_node *n = r->all[k]->node;
        for (uint32_t e = 0; e < n->n_in; e++) {
            if (n->edge[e].kind != DT_EDGE_NODE) continue;
            info *next;
            DT_TRY(meet(r, n->edge[e].node, &next));
            next->deps++;
        }
    }
    return DT_OK;
}

static uint64_t age(const info *i) { return i->node->kind == DT_NODE_LEAF ? 0 : i->node->seq; }
static int by_age(const void *a, const void *b) {
    uint64_t x = age(*(info *const *)a), y = age(*(info *const *)b);
    return x < y ? -1 : x > y;
}

/* needed: an edge leads to a captured or needed node. A node's inputs are older than the node, so one pass in order of age does it. */
static void mark_needed(run *r) {
    qsort(r->all, r->n, sizeof(info *), by_age);
    for (size_t k = 0; k < r->n; k++) {
        info *i = r->all[k];
        for (uint32_t e = 0; e < i->node->n_in && !i->needed; e++) {
            if (i->node->edge[e].kind != DT_EDGE_NODE) continue;
            info *next = known(r, i->node->edge[e].node);
            i->needed = next->needed || next->captures;
        }
    }
}

/* ---- the heap: latest node first ---- */
static uint64_t rank(const info *i) { return i->node->urgent ? UINT64_MAX : i->node->seq; }

static void heap_push(run *r, info *x) {
    size_t i = r->n_heap++;
    while (i && rank(r->heap[(i - 1) / 2]) < rank(x)) {
        r->heap[i] = r->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    r->heap[i] = x;
}

static info *heap_pop(run *r) {
    info *top = r->heap[0], *x = r->heap[--r->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= r->n_heap) break;
        if (c + 1 < r->n_heap && rank(r->heap[c + 1]) > rank(r->heap[c])) c++;
        if (rank(r->heap[c]) <= rank(x)) break;
        r->heap[i] = r->heap[c];
        i = c;
    }
    r->heap[i] = x;
    return top;
}

/* ---- gradients on their way ---- */

/* Adds g to what has come in for output nr. */
static dt_status deliver(dt_scope *s, info *to, uint32_t nr, dt_tensor *g) {
    dt_tensor *old = to->grad[nr], *sum = old ? dt_util_add(s, old, g) : g;
    if (!sum) return s->status;
    to->grad[nr] = dt_tensor_ref(sum);
    dt_tensor_unref(old);
    return DT_OK;
}

static bool sums_to(const dt_meta *g, const dt_meta *m) {
    if (g->ndim < m->ndim) return false;
    for (int d = 0; d < m->ndim; d++)
        if (m->shape[d] != 1 && m->shape[d] != g->shape[g->ndim - m->ndim + d]) return false;
    return true;
}

dt_tensor *dt_grad_fit(dt_scope *s, dt_tensor *g, const dt_meta *m, const dt_placement *place, const char *who, int index) {
    if (s->status || !g) return NULL;
    dt_status r = dt_tensor_fresh(g);
    if (r) {
        dt_scope_fail(s, r);
        return NULL;
    }
    const dt_meta *k = dt_tensor_meta_fast(g);
    if (k == m) return g;
    if (!dt_meta_same_shape(k, m)) {
        if (!sums_to(k, m)) {
            DT_STR(a, 200);
            DT_STR(b, 200);
            dt_shape_print(k->ndim, k->shape, &a);
            dt_shape_print(m->ndim, m->shape, &b);
            dt_scope_fail(s, dt_fail(DT_E_GRAD, "Function %s returned an invalid gradient at index %d - got %s but expected shape compatible with %s", who,
                                     index, a.buf, b.buf));
            return NULL;
        }
        g = dt_util_sum_to(s, g, m->ndim, m->shape);
    }
    if (g && dt_tensor_meta_fast(g)->dtype != m->dtype) g = dt_util_cast(s, g, (dt_dtype)m->dtype);
    if (!g) return NULL;
    k = dt_tensor_meta_fast(g);
    if (k->mesh == m->mesh && (!place || !memcmp(place, k->place, sizeof k->place))) return g;
    dt_placement own[DT_MAX_MESH_DIM];
    if (!place) dt_grad_place(m, own);
    return dt_util_redistribute(s, g, m->mesh, place ? place : own);
}

/* ---- running nodes ---- */
enum { FEW = 16 };

static const char *released_text =
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if "
    "you need to backward through the graph a second time or if you need to access saved tensors after calling backward.";

static void forget(outers *o) {
    for (int k = 0; k < o->n; k++) {
        dt_tensor_unref(o->a[k]);
        dt_tensor_unref(o->b[k]);
    }
    o->n = 0;
}

/* Makes the products that wait as one. */
static dt_status make_outers(dt_scope *s, info *to, outers *o) {
    if (!o->n) return DT_OK;
    dt_tensor *a = o->a[0], *b = o->b[0];
    if (o->n > 1) {
        a = dt_stack(s, (dt_list){o->n, o->a}, 0);
        b = dt_stack(s, (dt_list){o->n, o->b}, 0);
    }
    dt_tensor *g = dt_grad_fit(s, dt_outer_sum(s, a, b), o->like, NULL, dt_grad_node_name(o->maker), o->index);
    forget(o);
    return g ? deliver(s, to, o->nr, g) : s->status;
}

/* Lets a product wait, if others will come and its operands are smaller than it; *waits: it does. */
static dt_status keep_outer(run *r, dt_scope *s, dt_grad_node *n, uint32_t i, info *to, dt_tensor *a, dt_tensor *b, bool *waits) {
    const dt_meta *ma = dt_tensor_meta_fast(a), *mb = dt_tensor_meta_fast(b);
    double size = (double)n->call->in[i]->numel, both = (double)(ma->numel + mb->numel);
    *waits = false;
    if ((to->deps < 2 && !to->outers) || both > size / 4) return DT_OK;
    outers *o = to->outers;
    while (o && (o->nr != n->edge[i].nr || (o->n && (dt_tensor_meta_fast(o->a[0]) != ma || dt_tensor_meta_fast(o->b[0]) != mb)))) o = o->next;
    if (!o) {
        o = DT_ARENA_NEW(&r->arena, outers);
        dt_tensor **room = DT_ARENA_ARRAY(&r->arena, dt_tensor *, 2 * OUTERS_MOST);
        if (!o || !room) return no_memory();
        *o = (outers){.next = to->outers, .nr = n->edge[i].nr, .a = room, .b = room + OUTERS_MOST};
        to->outers = o;
    }
    if (o->n == OUTERS_MOST || (o->n + 1) * both > 2 * size) DT_TRY(make_outers(s, to, o));
    o->like = n->call->in[i];
    o->maker = n;
    o->index = (int)i;
    o->a[o->n] = dt_tensor_ref(a);
    o->b[o->n++] = dt_tensor_ref(b);
    *waits = true;
    return DT_OK;
}

/* gx[i]: borrowed from s or NULL. */
static dt_status spread(run *r, dt_scope *s, dt_grad_node *n, const bool *needs, dt_tensor **gx, dt_tensor *const *outer) {
    for (uint32_t i = 0; i < n->n_in; i++) {
        if (needs[i] && outer && outer[2 * i]) {
            bool waits;
            DT_TRY(keep_outer(r, s, n, i, known(r, n->edge[i].node), outer[2 * i], outer[2 * i + 1], &waits));
            if (waits) continue;
            gx[i] = dt_outer_sum(s, outer[2 * i], outer[2 * i + 1]);
            DT_TRY(s->status);
        }
        if (!needs[i] || !gx[i]) continue;
        const dt_meta *m = n->kind == DT_NODE_OP ? n->call->in[i] : dt_node_metas(n)[i];
        dt_tensor *g = dt_grad_fit(s, gx[i], m, NULL, dt_grad_node_name(n), (int)i);
        if (!g) return s->status;
        DT_TRY(deliver(s, known(r, n->edge[i].node), n->edge[i].nr, g));
    }
    return DT_OK;
}

static dt_status run_formula(run *r, info *i, dt_scope *s, const bool *needs, dt_tensor **gx, dt_tensor **outer) {
    dt_grad_node *n = i->node;
    if (n->kind == DT_NODE_CUSTOM) {
        dt_status st = n->custom.backward(n->custom.ctx, i->grad, gx);
        for (uint32_t k = 0; k < n->n_in; k++) gx[k] = dt_scope_own(s, gx[k]);
        DT_TRY(st);
    } else {
        if (n->released) return dt_fail(DT_E_GRAD, "%s", released_text);
        dt_grad g = {.s = s, .call = n->call, .node = n, .gy = i->grad, .gx = gx, .needs = needs, .outer = outer};
        n->call->op->grad(&g);
    }
    DT_TRY(s->status);
    DT_TRY(spread(r, s, n, needs, gx, n->kind == DT_NODE_OP ? outer : NULL));
    if (!r->a->retain_graph && n->kind == DT_NODE_OP) dt_grad_node_saved_free(n);
    return DT_OK;
}

static bool any_grad(const info *i) {
    for (uint32_t k = 0; k < i->node->n_out; k++)
        if (i->grad[k]) return true;
    return false;
}

static dt_status run_node(run *r, info *i) {
    dt_grad_node *n = i->node;
    if (n->kind == DT_NODE_OP && !any_grad(i)) return DT_OK; /* nothing came: nothing goes on */
    dt_tensor *gx_few[FEW] = {NULL}, **gx = gx_few, *outer_few[2 * FEW] = {NULL}, **outer = outer_few;
    bool needs_few[FEW], *needs = needs_few;
    if (n->n_in > FEW) {
        gx = DT_ARENA_ARRAY(&r->arena, dt_tensor *, n->n_in);
        needs = DT_ARENA_ARRAY(&r->arena, bool, n->n_in);
        outer = DT_ARENA_ARRAY(&r->arena, dt_tensor *, 2 * n->n_in);
        if (!gx || !needs || !outer) return no_memory();
    }
    for (uint32_t k = 0; k < n->n_in; k++) {
        needs[k] = n->edge[k].kind == DT_EDGE_NODE;
        if (needs[k] && r->a->n_inputs) {
            info *to = known(r, n->edge[k].node);
            needs[k] = to->needed || to->captures;
        }
    }
    dt_scope s;
    dt_scope_init(&s);
    dt_status st = run_formula(r, i, &s, needs, gx, outer);
    dt_scope_fini(&s);
    return st;
}

/* Does anybody but .grad see this leaf's gradient now? Then it cannot wait for its sum over devices. */
static bool seen_at_once(const run *r, const info *i) {
    const dt_leaf *l = i->node->leaf->leaf;
    return r->a->create_graph || r->a->n_inputs || i->captures || i->node->hooks || (l && (l->pre.n || l->post.n));
}

/* A leaf's gradient is complete: fit it, run its hooks. i->grad[0] is replaced. */
static dt_status leaf_ready(const run *r, info *i) {
    dt_tensor *t = i->node->leaf;
    dt_placement place[DT_MAX_MESH_DIM];
    dt_leaf_place(t, seen_at_once(r, i) ? NULL : dt_tensor_meta_fast(i->grad[0]), place);
    dt_scope s;
    dt_scope_init(&s);
    dt_tensor *g = dt_grad_fit(&s, i->grad[0], dt_tensor_meta_fast(t), place, "AccumulateGrad", 0);
    if (g && g != i->grad[0]) {
        dt_tensor_unref(i->grad[0]);
        i->grad[0] = dt_tensor_ref(g);
    }
    dt_status st = s.status;
    dt_scope_fini(&s);
    if (!st && t->leaf) st = dt_hooks_run(&t->leaf->pre, 0, &i->grad[0]);
    return st;
}

static dt_status leaf_accumulate(run *r, dt_tensor *t, dt_tensor *g) {
    DT_TRY(dt_grad_accumulate(t, g, r->a->create_graph));
    dt_hooks *post = &t->leaf->post;
    for (int k = 0; k < post->n; k++) {
        dt_tensor *arg = t;
        DT_TRY(post->v[k].hook.fn(post->v[k].hook.ctx, &arg));
        if (!t->leaf) break;
    }
    return DT_OK;
}

static dt_status make_all_outers(info *i) {
    if (!i->outers) return DT_OK;
    dt_scope s;
    dt_scope_init(&s);
    dt_status st = DT_OK;
    for (outers *o = i->outers; o && !st; o = o->next) st = make_outers(&s, i, o);
    dt_scope_fini(&s);
    return st;
}

static dt_status step(run *r, info *i) {
    dt_grad_node *n = i->node;
    DT_TRY(make_all_outers(i));
    bool leaf = n->kind == DT_NODE_LEAF;
    if (leaf && i->grad[0] && !r->a->inner) DT_TRY(leaf_ready(r, i));
    for (uint32_t k = 0; n->hooks && k < n->n_out && !(leaf && r->a->inner); k++)
        if (i->grad[k]) DT_TRY(dt_hooks_run(n->hooks, k, &i->grad[k]));
    for (capture *c = i->captures; c; c = c->next)
        if (i->grad[c->nr]) r->out[c->index] = dt_tensor_ref(i->grad[c->nr]);
    if (leaf) return i->grad[0] && !r->a->n_inputs ? leaf_accumulate(r, n->leaf, i->grad[0]) : DT_OK;
    return r->a->n_inputs && !i->needed ? DT_OK : run_node(r, i);
}

static void let_go(info *i) {
    for (outers *o = i->outers; o; o = o->next) forget(o);
    for (uint32_t k = 0; k < i->node->n_out; k++) {
        dt_tensor_unref(i->grad[k]);
        i->grad[k] = NULL;
    }
}

static dt_status run_all(run *r) {
    r->heap = DT_ARENA_ARRAY(&r->arena, info *, r->n);
    if (!r->heap) return no_memory();
    for (size_t k = 0; k < r->n; k++)
        if (r->all[k]->deps == 0) heap_push(r, r->all[k]);
    while (r->n_heap) {
        info *i = heap_pop(r);
        DT_TRY(step(r, i));
        let_go(i);
        for (uint32_t e = 0; e < i->node->n_in; e++) {
            if (i->node->edge[e].kind != DT_EDGE_NODE) continue;
            info *to = known(r, i->node->edge[e].node);
            if (--to->deps == 0) heap_push(r, to);
        }
    }
    return DT_OK;
}

/* ---- start and end ---- */
static dt_status root_gradient(dt_scope *s, const dt_backward_args *a, int k, dt_tensor **out) {
    const dt_meta *m = dt_tensor_meta_fast(a->roots[k]);
    dt_tensor *g = a->grads ? a->grads[k] : NULL;
    if (!g) {
        if (m->numel != 1) return dt_fail(DT_E_GRAD, "grad can be implicitly created only for scalar outputs");
        *out = dt_util_fill(s, m, 1);
        return s->status;
    }
    DT_TRY(dt_tensor_fresh(g));
    if (!dt_meta_same_shape(dt_tensor_meta_fast(g), m)) {
        DT_STR(x, 200);
        DT_STR(y, 200);
        dt_shape_print(dt_tensor_meta_fast(g)->ndim, dt_tensor_meta_fast(g)->shape, &x);
        dt_shape_print(m->ndim, m->shape, &y);
        return dt_fail(DT_E_GRAD, "Mismatch in shape: grad_output[%d] has a shape of %s and output[%d] has a shape of %s.", k, x.buf, k, y.buf);
    }
    *out = dt_grad_fit(s, g, m, NULL, "backward", k);
    return s->status;
}

static dt_status add_roots(run *r, dt_scope *s) {
    for (int k = 0; k < r->a->n_roots; k++) {
        dt_tensor *t = r->a->roots[k], *g = NULL;
        DT_TRY(dt_tensor_fresh(t));
        if (!dt_tensor_wants_grad(t)) return dt_fail(DT_E_GRAD, "element %d of tensors does not require grad and does not have a grad_fn", k);
        DT_TRY(root_gradient(s, r->a, k, &g));
        dt_edge e;
        info *i;
        DT_TRY(dt_edge_of(t, &e));
        dt_status st = meet(r, e.node, &i);
        dt_grad_node_unref(e.node);
        DT_TRY(st);
        DT_TRY(deliver(s, i, e.nr, g));
    }
    return DT_OK;
}

static dt_status add_inputs(run *r) {
    for (int k = 0; k < r->a->n_inputs; k++) {
        dt_tensor *t = r->a->inputs[k];
        DT_TRY(dt_tensor_fresh(t));
        if (!dt_tensor_wants_grad(t)) return dt_fail(DT_E_GRAD, "One of the differentiated Tensors does not require grad");
        dt_edge e;
        DT_TRY(dt_edge_of(t, &e));
        info *i = known(r, e.node);
        capture *c = NULL;
        if (i && (c = DT_ARENA_NEW(&r->arena, capture))) {
            *c = (capture){i->captures, e.nr, k};
            i->captures = c;
        }
        dt_grad_node_unref(e.node);
        if (i && !c) return no_memory();
    }
    return DT_OK;
}

/* backward(inputs=…): what was captured goes into .grad; autograd.grad: unused inputs are an error unless allowed. */
static dt_status finish_inputs(run *r) {
    for (int k = 0; k < r->a->n_inputs; k++) {
        if (r->out[k]) {
            if (r->a->accumulate) DT_TRY(leaf_accumulate(r, r->a->inputs[k], r->out[k]));
        } else if (!r->a->allow_unused && !r->a->accumulate)
            return dt_fail(DT_E_GRAD, "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True "
                                      "if this is the desired behavior.");
    }
    return DT_OK;
}

static dt_status go(run *r, dt_scope *s) {
    DT_TRY(add_roots(r, s));
    DT_TRY(discover(r));
    if (r->a->n_inputs) {
        DT_TRY(add_inputs(r));
        mark_needed(r);
    }
    DT_TRY(run_all(r));
    return finish_inputs(r);
}

static void clean(run *r) {
    for (size_t k = 0; k < r->n; k++) let_go(r->all[k]);
    for (size_t k = 0; k < r->n; k++) dt_grad_node_unref(r->all[k]->node);
    dt_free(r->all);
    dt_free(r->table);
    dt_arena_fini(&r->arena);
}

dt_status dt_backward_run(const dt_backward_args *a, dt_tensor **out) {
    DT_TRY(dt_client_ready());
    if (a->n_roots < 1) return dt_fail(DT_E_VALUE, "backward: no tensors were given");
    run r = {.a = a};
    dt_tensor **captured = a->n_inputs ? dt_calloc((size_t)a->n_inputs, sizeof *captured) : NULL;
    if (a->n_inputs && !captured) return no_memory();
    r.out = captured;
    dt_modes was = dt_m;
    dt_m.grad_off = !a->create_graph;
    dt_m.recipe = false;
    dt_m.autocast = false;        /* gradients are computed in the dtypes of the forward pass */
    dt_m.policy = DT_POLICY_AUTO; /* what the formulas imply is not the user's doing */
    dt_scope s;
    dt_scope_init(&s);
    dt_status st = go(&r, &s);
    dt_scope_fini(&s);
    clean(&r);
    dt_recipes_forget();
    dt_m.grad_off = was.grad_off;
    dt_m.recipe = was.recipe;
    dt_m.autocast = was.autocast;
    dt_m.policy = was.policy;
    for (int k = 0; k < a->n_inputs; k++)
        if (!st && out && !a->accumulate)
            out[k] = captured[k];
        else
            dt_tensor_unref(captured[k]);
    dt_free(captured);
    return st;
}

void dt_grad_through(dt_grad *g, int n_roots, dt_tensor **roots, dt_tensor **gy, int n_inputs, dt_tensor **inputs, dt_tensor **gx) {
    int n = 0;
    if (g->s->status) return;
    for (int k = 0; k < n_roots; k++) {
        if (!dt_tensor_wants_grad(roots[k])) continue;
        roots[n] = roots[k];
        gy[n++] = gy[k];
    }
    if (!n || !n_inputs) return;
    dt_backward_args a = {.n_roots = n, .n_inputs = n_inputs, .roots = roots, .grads = gy, .inputs = inputs};
    a.retain_graph = a.create_graph = a.allow_unused = a.inner = true;
    dt_status st = dt_backward_run(&a, gx);
    if (st) dt_scope_fail(g->s, st);
    for (int k = 0; k < n_inputs; k++) gx[k] = st ? NULL : dt_scope_own(g->s, gx[k]);
}
