/* Redistributions that were made already, and sums over devices that a call implies.
 *
 * A value that three layers want gathered is gathered once: dt_moved gives a new handle over the value, and the history, that an earlier redistribution
 * of the same value to the same place made, as long as somebody still holds them. So gradients meet at one place too, and go back in one collective.
 * Nothing is kept alive by this: entries are forgotten when their source, their result or their history goes (the `moved` marks on dt_val and
 * dt_grad_node say that there may be one). Hooks on a history would see the sum of all its users, so one with hooks is not shared; and only plans,
 * not explicit redistribute calls, ask for sharing.
 *
 * A call that needs the sum of a Partial input would have its plan make it; the next plan that reads the same value would make it again. So such
 * sums are recorded as redistributions of their own, once a value. Other implied redistributions stay with the plan: keeping what was gathered would
 * cost memory. Client's thread only. */
#include "client/internal.h"

enum { SLOTS = 256 };
typedef struct entry {
    const dt_val *src; /* NULL: free */
    const dt_spec *spec;
    dt_val *result;
    dt_grad_node *node; /* the result's history; NULL: none */
    uint32_t nr;        /* which result of the source's node the source is */
} entry;
static entry table[SLOTS];

static entry *slot_of(const dt_val *v, const dt_spec *spec) { return &table[dt_hash_mix((uintptr_t)v, (uintptr_t)spec) % SLOTS]; }

void dt_moved_forget_val(const dt_val *v) {
    for (int i = 0; i < SLOTS; i++)
        if (table[i].src == v || table[i].result == v) table[i].src = NULL;
}

void dt_moved_forget_node(const dt_grad_node *n) {
    for (int i = 0; i < SLOTS; i++)
        if (table[i].node == n) table[i].src = NULL;
}

static bool same_history(const entry *e, dt_tensor *t, bool recorded) {
    if (!recorded || !e->node) return !recorded && !e->node;
    dt_edge edge = {.kind = DT_EDGE_NONE};
    if (e->node->hooks || e->node->released || dt_edge_of(t, &edge)) return false;
    bool same = edge.kind == DT_EDGE_NODE && e->node->edge[0].kind == DT_EDGE_NODE && edge.node == e->node->edge[0].node && edge.nr == e->nr;
    if (edge.kind == DT_EDGE_NODE) dt_grad_node_unref(edge.node);
    return same;
}

static void remember(dt_tensor *t, const dt_spec *spec, dt_tensor *result, bool recorded) {
    dt_val *v = dt_tensor_val(t), *r = dt_tensor_val(result);
    dt_grad_node *node = recorded ? result->cell->grad_fn : NULL;
    if (v == r || (recorded && (!node || node->kind != DT_NODE_OP || node->n_in != 1 || node->edge[0].kind != DT_EDGE_NODE))) return;
    v->moved = r->moved = true;
    if (node) node->moved = true;
    *slot_of(v, spec) = (entry){v, spec, r, node, node ? node->edge[0].nr : 0};
}

dt_tensor *dt_moved(dt_scope *s, dt_tensor *t, const dt_spec *spec) {
    dt_status r = s->status ? s->status : dt_tensor_fresh(t);
    if (r) {
        dt_scope_fail(s, r);
        return NULL;
    }
    dt_val *v = dt_tensor_val(t);
    bool recorded = dt_recording() && dt_tensor_wants_grad(t), shared = !dt_m.inference && !dt_m.recipe && !v->recipe;
    entry *e = slot_of(v, spec);
    if (shared && e->src == v && e->spec == spec && same_history(e, t, recorded)) {
        dt_tensor *again = dt_tensor_over(e->result, e->node, 0);
        if (!again) dt_scope_fail(s, DT_E_NOMEM);
        return dt_scope_own(s, again);
    }
    dt_tensor *result = dt_util_redistribute(s, t, spec->mesh, spec->place);
    if (result && shared) remember(t, spec, result, recorded);
    return result;
}

dt_tensor *dt_tensor_moved(dt_tensor *t, const dt_spec *spec) {
    dt_scope s;
    dt_scope_init(&s);
    dt_tensor *r = dt_moved(&s, t, spec);
    if (r) dt_tensor_ref(r);
    dt_scope_fini(&s);
    return r;
}

/* ---- sums that a call implies --------------------------------------------------------------------------------------------------------- */
static bool sums(const dt_meta *have, const dt_meta *want) {
    if (!have || have->wrapped || have->mesh != want->mesh) return false;
    for (int d = 0; d < have->mesh->ndim; d++)
        if (have->place[d].kind == DT_PARTIAL && have->mesh->dim[d] > 1 && !dt_placement_equal(have->place[d], want->place[d])) return true;
    return false;
}

bool dt_call_sums(const dt_call *c) {
    for (int i = 0; i < c->n_in; i++)
        if (c->used[i] && sums(c->in[i], c->used[i])) return true;
    return false;
}

static dt_tensor *summed(dt_scope *s, const dt_call *c, uint32_t i, dt_tensor *t) {
    if (!t || i >= c->n_in || !c->used[i] || !sums(c->in[i], c->used[i]) || s->status) return t;
    const dt_spec *spec;
    dt_status r = dt_spec_intern(c->used[i]->mesh, c->used[i]->place, &spec);
    if (r) dt_scope_fail(s, r);
    return r ? NULL : dt_moved(s, t, spec);
}

/* args with every input that c needs summed replaced. list: room for the list parameter's tensors. */
static void replace_inputs(dt_scope *s, const dt_call *c, const dt_prep *p, dt_args *args, dt_tensor **list) {
    uint32_t n = 0;
    for (int i = 0; i < p->n_params; i++) {
        dt_arg *a = &args->a[i];
        if (p->kind[i] >= DT_PK_INT) continue;
        if (p->kind[i] != DT_PK_TENSORS) {
            if (a->kind == DT_ARG_TENSOR) a->t = summed(s, c, n, a->t);
            n++;
            continue;
        }
        int count = a->kind == DT_ARG_TENSORS ? a->n : 0;
        for (int j = 0; j < count; j++) list[j] = summed(s, c, n++, a->list[j]);
        if (count) a->list = list;
    }
}

dt_status dt_issue_summed(dt_call *c, const dt_args *args, dt_tensor **out) {
    const dt_prep *p = dt_prep_get(c->op);
    dt_args with = *args;
    int where = p->info->list_param, n = where >= 0 && args->a[where].kind == DT_ARG_TENSORS ? args->a[where].n : 0;
    dt_tensor **list = dt_malloc(sizeof *list * (size_t)(n + 1));
    if (!list) return dt_fail(DT_E_NOMEM, "%s(): out of host memory", p->info->base);
    dt_scope s;
    dt_scope_init(&s);
    replace_inputs(&s, c, p, &with, list);
    dt_call *plain;
    dt_status r = s.status ? s.status : dt_prepare(c->op, &with, &plain);
    if (!r && plain->n_out != c->n_out) r = dt_fail(DT_E_INTERNAL, "%s(): %d results, then %d", p->info->base, c->n_out, plain->n_out);
    if (!r) r = dt_issue(plain, &with, out);
    dt_scope_fini(&s);
    dt_free(list);
    return r;
}
