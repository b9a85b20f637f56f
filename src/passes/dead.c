/* Dead code: a node is live if the client names a result, a live node uses one, or it has no results (it is there for its effect). */
#include "passes/options.h"
#include "passes/passes.h"

void dt_pass_dead(dt_graph *g) {
    for (int i = 0; i < g->n; i++) g->node[i].live = false;
    for (int i = g->n - 1; i >= 0; i--) { /* users come later, so they have been decided */
        dt_gnode *n = &g->node[i];
        bool live = n->live || n->call->n_out == 0 || !dt_options_get()->dead;
        for (int k = 0; k < n->call->n_out; k++) live |= n->out[k]->named;
        n->live = live;
        if (!live) continue;
        for (int k = 0; k < n->call->n_in; k++)
            if (n->in[k] && n->in[k]->node >= 0) g->node[n->in[k]->node].live = true;
    }
}
