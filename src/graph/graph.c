/* Subgraphs. See graph.h. */
#include "graph/graph.h"

#include <string.h>

dt_status dt_graph_init(dt_graph *g) {
    *g = (dt_graph){.cap = 64};
    dt_arena_init(&g->arena);
    g->node = dt_calloc((size_t)g->cap, sizeof *g->node);
    return g->node ? DT_OK : dt_fail(DT_E_NOMEM, "subgraph: out of host memory");
}

void dt_graph_fini(dt_graph *g) {
    dt_arena_fini(&g->arena);
    dt_free(g->node);
    dt_free(g->ext);
    dt_free(g->key);
    *g = (dt_graph){0};
}

void dt_graph_clear(dt_graph *g) {
    dt_arena_reset(&g->arena);
    g->n = g->n_ext = 0;
    g->n_key = 0;
}

dt_gnode *dt_graph_add(dt_graph *g, dt_call *call, uint32_t site) {
    if (g->n == g->cap) {
        dt_gnode *n = dt_realloc(g->node, (size_t)g->cap * 2 * sizeof *n);
        if (!n) return NULL;
        g->node = n;
        g->cap *= 2;
    }
    size_t words = call->n_in + call->n_in + call->n_out;
    void **mem = DT_ARENA_ARRAY(&g->arena, void *, words + 1);
    if (!mem) return NULL;
    dt_gnode *n = &g->node[g->n++];
    *n = (dt_gnode){.call = call,
                    .site = site,
                    .at = g->n - 1,
                    .live = true,
                    .in = (dt_gvalue **)mem,
                    .number = (uint64_t *)(mem + call->n_in),
                    .out = (dt_gvalue **)(mem + 2 * call->n_in)};
    return n;
}

dt_status dt_graph_split(dt_graph *g, int from, int to, dt_graph *rest) {
    for (int i = from; i < to; i++) {
        const dt_gnode *n = &g->node[i];
        const dt_call *c = n->call;
        dt_gnode *m = dt_graph_add(rest, n->call, n->site);
        if (!m) return dt_fail(DT_E_NOMEM, "subgraph: out of host memory");
        m->again = n->again;
        if (c->n_in) memcpy(m->in, n->in, sizeof *m->in * c->n_in);
        if (c->n_in) memcpy(m->number, n->number, sizeof *m->number * c->n_in);
        if (c->n_out) memcpy(m->out, n->out, sizeof *m->out * c->n_out);
    }
    for (int i = 0; i < rest->n; i++)
        for (int k = 0; k < rest->node[i].call->n_out; k++) rest->node[i].out[k]->node = i;
    memmove(g->node + from, g->node + to, sizeof *g->node * (size_t)(g->n - to));
    g->n -= to - from;
    for (int i = from; i < g->n; i++)
        for (int k = 0; k < g->node[i].call->n_out; k++) g->node[i].out[k]->node = i;
    return DT_OK;
}

dt_status dt_graph_verify(const dt_graph *g) {
    for (int i = 0; i < g->n; i++) {
        const dt_gnode *n = &g->node[i];
        for (int k = 0; k < n->call->n_in; k++) {
            const dt_meta *m = n->call->in[k];
            if (!m || m->wrapped) continue;
            if (!n->in[k]) return dt_fail(DT_E_INTERNAL, "subgraph: node %d lacks input %d", i, k);
            if (n->in[k]->meta != m) return dt_fail(DT_E_INTERNAL, "subgraph: node %d, input %d: metadata differ from the call's", i, k);
            if (!n->in[k]->ready && n->in[k]->node >= i) return dt_fail(DT_E_INTERNAL, "subgraph: node %d uses a later value", i);
        }
        for (int k = 0; k < n->call->n_out; k++)
            if (n->out[k] && n->out[k]->meta != n->call->out[k]) return dt_fail(DT_E_INTERNAL, "subgraph: node %d, output %d: metadata differ", i, k);
    }
    return DT_OK;
}

void dt_graph_print_node(const dt_graph *g, int i, dt_str *s) {
    const dt_gnode *n = &g->node[i];
    dt_str_add(s, "%%%d%s = %s(", i, n->live ? "" : " (dead)", dt_op_name(n->call->op));
    for (int k = 0; k < n->call->n_in; k++) {
        if (k) dt_str_add(s, ", ");
        if (!n->in[k])
            dt_str_add(s, n->call->in[k] ? "number" : "None");
        else if (n->in[k]->ready)
            dt_str_add(s, "in%d", n->in[k]->index);
        else
            dt_str_add(s, "%%%d.%u", n->in[k]->node, n->in[k]->out);
    }
    dt_str_add(s, ")");
    for (int k = 0; k < n->call->n_out; k++) {
        dt_str_add(s, k ? ", " : " : ");
        dt_meta_print(n->call->out[k], s);
        if (n->out[k]->named) dt_str_add(s, " (kept)");
    }
    dt_str_add(s, "  ");
}
