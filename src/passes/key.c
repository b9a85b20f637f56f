/* The key of a subgraph: everything that its plan depends on and nothing else.
 *
 *   per live node:  call | per tensor input: producer (node, output) or external number; at an external value's first use also its layout and
 *                   whether its memory may be overwritten | which outputs the client still names
 *
 * A call's address stands for its op, attributes and all metas, since calls are interned and a cached plan holds references. Numbers and
 * sites are bindings of a run, not part of the key. */
#include "passes/passes.h"

static dt_status room(dt_graph *g, size_t n) {
    if (g->n_key + n <= g->cap_key) return DT_OK;
    size_t cap = (g->n_key + n) * 2;
    uint64_t *k = dt_realloc(g->key, cap * sizeof *k);
    if (!k) return dt_fail(DT_E_NOMEM, "plan key: out of host memory");
    g->key = k;
    g->cap_key = cap;
    return DT_OK;
}

bool dt_gvalue_donatable(const dt_gvalue *v) {
    if (v->named || v->layout) return false;
    for (int i = 0; i < (v->one ? 1 : v->meta->mesh->n); i++) {
        const dt_part *p = v->one ? v->one : v->part[i];
        if (p->buf->live != 1 || !p->buf->bytes || p->offset) return false; /* no bytes: the host's, or a failed value */
    }
    return true;
}

static dt_status add_ext(dt_graph *g, dt_gvalue *v) {
    if (g->n_ext == g->cap_ext) {
        int cap = g->cap_ext ? g->cap_ext * 2 : 64;
        dt_gvalue **e = dt_realloc(g->ext, (size_t)cap * sizeof *e);
        if (!e) return dt_fail(DT_E_NOMEM, "plan key: out of host memory");
        g->ext = e;
        g->cap_ext = cap;
    }
    v->index = g->n_ext;
    g->ext[g->n_ext++] = v;
    g->key[g->n_key++] = v->layout;
    g->key[g->n_key++] = dt_gvalue_donatable(v);
    return DT_OK;
}

static dt_status add_node(dt_graph *g, int i) {
    dt_gnode *n = &g->node[i];
    DT_TRY(room(g, 3 + (size_t)n->call->n_in * 3 + n->call->n_out / 64 + 1));
    g->key[g->n_key++] = (uint64_t)(uintptr_t)n->call;
    for (int k = 0; k < n->call->n_in; k++) {
        dt_gvalue *v = n->in[k];
        if (!v) continue;
        if (!v->ready)
            g->key[g->n_key++] = (uint64_t)(i - v->node) << 32 | v->out;
        else {
            bool first = v->index < 0;
            if (first) DT_TRY(add_ext(g, v));
            g->key[g->n_key++] = (uint64_t)v->index | 1ull << 63;
        }
    }
    uint64_t named = 0;
    for (int k = 0; k < n->call->n_out; k++) {
        named |= (uint64_t)n->out[k]->named << (k & 63);
        if ((k & 63) == 63 || k + 1 == n->call->n_out) {
            g->key[g->n_key++] = named;
            named = 0;
        }
    }
    return DT_OK;
}

dt_status dt_pass_key(dt_graph *g) {
    g->n_key = 0;
    for (int i = 0; i < g->n_ext; i++) g->ext[i]->index = -1;
    g->n_ext = 0;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->node[i].call->n_in; k++)
            if (g->node[i].in[k] && g->node[i].in[k]->ready) g->node[i].in[k]->index = -1;
    /* Relative node numbers count live nodes only, so that dead code does not change the key. */
    int live = 0;
    for (int i = 0; i < g->n; i++) {
        if (!g->node[i].live) continue;
        if (live != i) {
            dt_gnode t = g->node[live]; /* compact: live nodes first, in order; the dead ones are kept behind for release */
            g->node[live] = g->node[i];
            g->node[i] = t;
        }
        for (int k = 0; k < g->node[live].call->n_out; k++) g->node[live].out[k]->node = live;
        live++;
    }
    for (int i = 0; i < live; i++) DT_TRY(add_node(g, i));
    return DT_OK;
}
