/* Recipes, eviction and what follows from them. See remat.h. */
#include "controller/remat.h"

#include <string.h>

enum { CHAIN_MAX = 128 }; /* calls to make one value again */

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "recomputation: out of host memory"); }

/* ---- recipes ------------------------------------------------------------------------------------------------------------------------------ */
/* Optimizer steps are left out: a parameter would keep all its earlier values. */
static bool repeatable(const dt_call *c) { return c->n_out && !(c->op->flags & DT_F_NO_CSE) && !dt_op_get_info(c->op)->n_written; }

static void list_add(dt_gvalue *v) {
    dt_engine *e = &dt_the_engine;
    v->before = e->last_recipe;
    v->after = NULL;
    *(v->before ? &v->before->after : &e->with_recipe) = v;
    e->last_recipe = v;
}

static void list_remove(dt_gvalue *v) {
    dt_engine *e = &dt_the_engine;
    *(v->before ? &v->before->after : &e->with_recipe) = v->after;
    *(v->after ? &v->after->before : &e->last_recipe) = v->before;
}

static void record_node(dt_gnode *n) {
    const dt_call *c = n->call;
    dt_recipe *r = dt_calloc(1, sizeof *r + sizeof(void *) * (size_t)(2 * c->n_in + c->n_out));
    if (!r) return; /* then these values stay */
    r->in = (dt_gvalue **)(r + 1);
    r->number = (uint64_t *)(r->in + c->n_in);
    r->out = (dt_gvalue **)(r->number + c->n_in);
    r->call = n->call;
    r->site = n->site;
    dt_call_ref(r->call);
    memcpy(r->number, n->number, sizeof *r->number * c->n_in);
    for (int k = 0; k < c->n_in; k++)
        if ((r->in[k] = n->in[k])) r->in[k]->holds++;
    for (int k = 0; k < c->n_out; k++) {
        r->out[k] = n->out[k];
        n->out[k]->recipe = r;
        r->refs++;
        list_add(n->out[k]);
    }
}

/* Until they are released, nobody may count on what lies in them: releasing one value may make another one wanted. */
static void mark_spent(const dt_graph *g, const dt_plan *p) {
    for (int i = 0; i < p->n_programs; i++)
        for (int k = 0; k < p->program[i].n_ext; k++)
            if (p->program[i].ext[k].written) g->ext[p->program[i].ext[k].value]->spent = true;
}

void dt_remat_record(dt_graph *g, const dt_plan *p) {
    mark_spent(g, p);
    for (int i = 0; i < g->n && g->node[i].live; i++) {
        dt_gnode *n = &g->node[i];
        uint64_t now = ++dt_the_engine.calls;
        for (int k = 0; k < n->call->n_in; k++)
            if (n->in[k]) n->in[k]->used_at = now;
        for (int k = 0; k < n->call->n_out; k++) n->out[k]->used_at = now;
        if (dt_the_engine.remat && !n->again && repeatable(n->call)) record_node(n);
    }
}

static void drop_memory(dt_gvalue *v) {
    dt_gvalue_parts_free(v);
    v->ready = v->spent = false;
    v->layout = 0;
}

/* ---- who needs whom ------------------------------------------------------------------------------------------------------------------------- */
static void settle(dt_gvalue *v);

static void update(dt_gvalue *v) {
    bool demands = v->evicted && (v->client || v->uses || v->wanted);
    if (demands == v->demands) return;
    v->demands = demands;
    const dt_recipe *r = v->recipe;
    for (int k = 0; k < r->call->n_in; k++) {
        dt_gvalue *x = r->in[k];
        if (!x) continue;
        x->wanted += demands ? 1 : -1u;
        update(x);
        if (!demands) settle(x);
    }
}

static void become_evicted(dt_gvalue *v) {
    drop_memory(v);
    if (v->evicted) return;
    v->evicted = true;
    dt_the_engine.n_evicted++;
    update(v);
}

static void no_longer_evicted(dt_gvalue *v) {
    if (!v->evicted) return;
    v->evicted = false;
    dt_the_engine.n_evicted--;
    update(v);
}

void dt_remat_evict(dt_gvalue *v) { become_evicted(v); }

void dt_remat_forget(dt_gvalue *v) {
    dt_recipe *r = v->recipe;
    no_longer_evicted(v);
    list_remove(v);
    v->recipe = NULL;
    for (int k = 0; k < r->call->n_out; k++)
        if (r->out[k] == v) r->out[k] = NULL;
    if (--r->refs) return;
    for (int k = 0; k < r->call->n_in; k++) {
        if (!r->in[k]) continue;
        r->in[k]->holds--;
        dt_gvalue_release(r->in[k]);
    }
    dt_call_unref(r->call);
    dt_free(r);
}

/* Host memory is not a device's: it stays as long as somebody may want it. */
static bool costs_memory(const dt_gvalue *v) {
    for (int i = 0; v->part && i < v->meta->mesh->n; i++)
        if (v->part[i] && v->part[i]->buf && v->part[i]->buf->bytes) return true;
    return false;
}

/* A value that only recipes hold: no memory for it, unless it cannot be made again and is wanted. */
static void settle(dt_gvalue *v) {
    double cost;
    if (v->client || v->uses || !v->holds || v->node >= 0 || (v->ready && !costs_memory(v))) return;
    if (v->recipe && dt_remat_cost(v, 0, &cost))
        become_evicted(v);
    else if (!v->wanted) {
        drop_memory(v);
        if (v->recipe) dt_remat_forget(v);
    }
}

void dt_remat_release(dt_gvalue *v) {
    if (v->node >= 0) return;
    if (v->evicted) update(v);
    if (!v->holds) {
        dt_gvalue_free(v);
        return;
    }
    if (v->segment) dt_order_value_freed(v);
    v->segment = 0;
    settle(v);
}

/* ---- what it takes -------------------------------------------------------------------------------------------------------------------------- */
typedef struct walk {
    uint32_t stamp, group;
    int n;
    double seconds;
} walk;

static bool walk_back(walk *w, const dt_gvalue *v) {
    if (v->ready && !v->spent && (!w->group || v->group != w->group)) return true;
    dt_recipe *r = v->recipe;
    if (!r || v->node >= 0) return false; /* lost, or about to be made */
    if (r->walk == w->stamp) return true;
    r->walk = w->stamp;
    if (++w->n > CHAIN_MAX) return false;
    w->seconds += dt_call_cost(r->call);
    for (int k = 0; k < r->call->n_in; k++)
        if (r->in[k] && !walk_back(w, r->in[k])) return false;
    return true;
}

bool dt_remat_cost(const dt_gvalue *v, uint32_t group, double *seconds) {
    walk w = {++dt_the_engine.walk, group, 0, 0};
    const dt_recipe *r = v->recipe;
    if (!r || v->node >= 0) return false;
    if (!group) { /* as if v alone had none */
        v->recipe->walk = w.stamp;
        w.n = 1;
        w.seconds = dt_call_cost(r->call);
        for (int k = 0; k < r->call->n_in; k++)
            if (r->in[k] && !walk_back(&w, r->in[k])) return false;
    } else if (!walk_back(&w, v))
        return false;
    *seconds = w.seconds;
    return true;
}

/* ---- making them again -------------------------------------------------------------------------------------------------------------------------- */
typedef struct order {
    dt_graph *g;
    int n, cap, *at; /* nodes in their new order */
} order;

static bool append(order *o, int node) {
    if (o->n == o->cap) {
        int cap = o->cap ? o->cap * 2 : 256, *at = dt_realloc(o->at, sizeof *at * (size_t)cap);
        if (!at) return false;
        o->at = at;
        o->cap = cap;
    }
    o->at[o->n++] = node;
    return true;
}

/* The recipe's outputs of its new node: values that have no memory, and placeholders for those that have or that are gone. */
static bool find_outputs(dt_gnode *n, const dt_recipe *r) {
    for (int k = 0; k < r->call->n_out; k++) {
        n->out[k] = r->out[k] && r->out[k]->evicted ? r->out[k] : dt_gvalue_new(r->call->out[k]);
        if (n->out[k]) continue;
        while (k--)
            if (n->out[k] != r->out[k]) dt_gvalue_free(n->out[k]);
        return false;
    }
    return true;
}

static dt_status make_again(order *o, dt_gvalue *v) {
    const dt_recipe *r = v->recipe;
    if (!v->evicted) return DT_OK;
    for (int k = 0; k < r->call->n_in; k++)
        if (r->in[k]) DT_TRY(make_again(o, r->in[k]));
    dt_gnode *n = dt_graph_add(o->g, r->call, r->site);
    if (!n) return no_memory();
    if (!append(o, o->g->n - 1) || !find_outputs(n, r)) {
        o->g->n--;
        return no_memory();
    }
    dt_call_ref(r->call);
    n->again = true;
    memcpy(n->in, r->in, sizeof *n->in * r->call->n_in);
    memcpy(n->number, r->number, sizeof *n->number * r->call->n_in);
    for (int k = 0; k < r->call->n_in; k++)
        if (r->in[k]) r->in[k]->uses++; /* before their results stop wanting them */
    for (int k = 0; k < r->call->n_out; k++) {
        dt_gvalue *x = n->out[k];
        x->out = (uint32_t)k;
        x->site = r->site;
        no_longer_evicted(x);
        x->node = o->g->n - 1;
    }
    dt_the_engine.stats.recomputed++;
    return DT_OK;
}

static dt_status reorder(order *o) {
    dt_gnode *old = dt_malloc(sizeof *old * (size_t)o->g->n);
    if (!old) return no_memory();
    memcpy(old, o->g->node, sizeof *old * (size_t)o->g->n);
    for (int i = 0; i < o->n; i++) {
        dt_gnode *n = &o->g->node[i];
        *n = old[o->at[i]];
        for (int k = 0; k < n->call->n_out; k++) n->out[k]->node = i;
    }
    dt_free(old);
    return DT_OK;
}

static bool reads_evicted(const dt_graph *g) {
    for (int i = 0; i < g->n; i++)
        for (int k = 0; g->node[i].live && k < g->node[i].call->n_in; k++)
            if (g->node[i].in[k] && g->node[i].in[k]->evicted) return true;
    return false;
}

dt_status dt_remat_restore(dt_graph *g) {
    if (!reads_evicted(g)) return DT_OK;
    order o = {.g = g};
    dt_status s = DT_OK;
    for (int i = 0, n = g->n; i < n && !s; i++) {
        for (int k = 0; g->node[i].live && k < g->node[i].call->n_in && !s; k++)
            if (g->node[i].in[k]) s = make_again(&o, g->node[i].in[k]);
        if (!s && !append(&o, i)) s = no_memory();
    }
    if (!s) s = reorder(&o);
    dt_free(o.at);
    return s;
}

dt_status dt_remat_bring(dt_gvalue *v) {
    dt_graph g;
    DT_TRY(dt_graph_init(&g));
    order o = {.g = &g};
    v->uses++;
    dt_status s = make_again(&o, v);
    dt_free(o.at);
    if (!s) dt_engine_dispatch_graph(&g);
    v->uses--;
    dt_graph_fini(&g);
    return s;
}
