/* Common subexpressions: a call equal to an earlier one, on the same values, needs no second computation; its results are the earlier ones.
 *
 * Equal means the same interned call (op, attributes, placements) on the same values and no run-time numbers: numbers are bindings of a run,
 * not part of a plan's key, and two that agree today may differ tomorrow. Random calls carry their seed and offset as numbers and so are
 * never merged. Nor are calls far apart, see dt_at_hand: recomputation is meant to save memory. Values are immutable here (writes make new values), so nothing else can differ. */
#include <string.h>

#include "passes/build.h"

static bool mergeable(const dt_gnode *n) {
    const dt_call *c = n->call;
    if (c->op->flags & DT_F_NO_CSE || c->n_out == 0) return false;
    for (int k = 0; k < c->n_in; k++)
        if (c->in[k] && c->in[k]->wrapped) return false;
    return true;
}

/* The value an input stands for, after merging. */
static const dt_gvalue *stands_for(const dt_graph *g, const int *same, const dt_gvalue *v) {
    return !v || v->ready || same[v->node] == v->node ? v : g->node[same[v->node]].out[v->out];
}

static uint64_t hash_node(const dt_graph *g, const int *same, const dt_gnode *n) {
    uint64_t h = (uint64_t)(uintptr_t)n->call;
    for (int k = 0; k < n->call->n_in; k++) h = dt_hash_mix(h, (uint64_t)(uintptr_t)stands_for(g, same, n->in[k]));
    return h;
}

static bool equal_nodes(const dt_graph *g, const int *same, const dt_gnode *a, const dt_gnode *b) {
    if (a->call != b->call) return false;
    for (int k = 0; k < a->call->n_in; k++)
        if (stands_for(g, same, a->in[k]) != stands_for(g, same, b->in[k])) return false;
    return true;
}

dt_status dt_build_cse(dt_build *b, int **out) {
    int n = b->n_live, cap = 16;
    while (cap < 2 * n) cap *= 2;
    int *same = DT_ARENA_ARRAY(&b->tmp, int, n + 1), *table = DT_ARENA_ARRAY(&b->tmp, int, cap);
    if (!same || !table) return dt_fail(DT_E_NOMEM, "plan: out of host memory");
    for (int i = 0; i < n; i++) {
        const dt_gnode *x = &b->g->node[i];
        same[i] = i;
        if (!mergeable(x)) continue;
        uint64_t at = hash_node(b->g, same, x);
        for (;; at++) { /* table holds node number + 1 */
            int *slot = &table[at & (uint64_t)(cap - 1)];
            if (!*slot) {
                *slot = i + 1;
                break;
            }
            int j = *slot - 1;
            if (!equal_nodes(b->g, same, &b->g->node[j], x)) continue;
            if (dt_at_hand(b->last_use[j], i)) {
                same[i] = j;
                if (b->last_use[j] < b->last_use[i]) b->last_use[j] = b->last_use[i];
            } else
                *slot = i + 1;
            break;
        }
    }
    *out = same;
    return DT_OK;
}
