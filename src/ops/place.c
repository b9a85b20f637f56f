/* Placement rules that many ops share. A rule is one row of placements, inputs then outputs, along one mesh dimension. See op.h. */
#include <string.h>

#include "ops/op.h"

dt_status dt_rule_add(dt_rules *r, dt_placement **in, dt_placement **out) {
    int width = r->n_in + r->n_out;
    if (r->count == r->cap) {
        int cap = r->cap ? r->cap * 2 : 8;
        dt_placement *rows = DT_ARENA_ARRAY(r->arena, dt_placement, cap * (width ? width : 1));
        if (!rows) return dt_fail(DT_E_NOMEM, "placement rules: out of host memory");
        if (r->count) memcpy(rows, r->rows, (size_t)(r->count * width) * sizeof *rows);
        r->rows = rows;
        r->cap = cap;
    }
    *in = r->rows + r->count * width;
    *out = *in + r->n_in;
    r->count++;
    return DT_OK;
}

bool dt_rules_even(const dt_rules *r, int64_t n) { return n > 0 && n % r->mesh->n == 0; }

/* Does m shard a dimension of [d0, d1) along mesh dimension k? */
static bool shards(const dt_meta *m, const dt_mesh *mesh, int k, int d0, int d1) {
    return m->mesh == mesh && m->place[k].kind == DT_SHARD && m->place[k].dim >= d0 && m->place[k].dim < d1;
}

bool dt_rules_even_in(const dt_rules *r, const dt_meta *m, int d0, int d1, int64_t n) {
    bool stays = shards(m, r->mesh, r->mesh_dim, d0, d1);
    int64_t parts = r->mesh->dim[r->mesh_dim];
    for (int k = 0; k < r->mesh->ndim; k++) {
        if (k == r->mesh_dim) continue;
        bool replicated = m->mesh == r->mesh && m->place[k].kind == DT_REPLICATE;
        if (stays ? shards(m, r->mesh, k, d0, d1) : !replicated) parts *= r->mesh->dim[k];
    }
    return n > 0 && n % parts == 0;
}

bool dt_rules_sharded(const dt_rules *r, const dt_meta *m, int dim) {
    return m && !m->wrapped && m->mesh == r->mesh && m->place[r->mesh_dim].kind == DT_SHARD && m->place[r->mesh_dim].dim == dim;
}

dt_status dt_place_staged(const dt_node *n, dt_rules *r) {
    const dt_staged *s = n->op->staged;
    const dt_meta *m = n->in[0];
    uint32_t dims = m->ndim ? s->dims(n->attr, m->ndim) : 0;
    for (int d = 0; d < m->ndim; d++) {
        if (!(dims >> d & 1) || !dt_rules_sharded(r, m, d) || m->place[r->mesh_dim].split) continue;
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        dt_rule_plain(r);
        in[0] = DT_S(d);
        for (int i = 0; i < n->n_out && s->scan; i++) out[i] = DT_S(d);
    }
    return DT_OK;
}

bool dt_rules_window(const dt_window *w, int dim, dt_placement *p) {
    int32_t id = dt_window_intern(w);
    if (!id) return false;
    *p = DT_S_WINDOW(dim, id);
    return true;
}

dt_status dt_place_replicate(const dt_node *n, dt_rules *r) {
    (void)n;
    (void)r;
    return DT_OK;
}

/* Input dimension that lines up with output dimension d, or -1: absent, a number, or broadcast along d. */
static int aligned(const dt_meta *m, const dt_type *o, int d) {
    if (!m || m->wrapped) return -1;
    int k = d - (o->ndim - m->ndim);
    return k >= 0 && m->shape[k] == o->shape[d] ? k : -1;
}

dt_status dt_place_pointwise(const dt_node *n, dt_rules *r) {
    const dt_type *o = &n->out[0];
    for (int d = 0; d < o->ndim; d++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        for (int i = 0; i < n->n_in; i++) {
            int k = aligned(n->in[i], o, d);
            if (k >= 0) in[i] = DT_S(k);
        }
        for (int i = 0; i < n->n_out; i++) out[i] = DT_S(d);
    }
    return DT_OK;
}

dt_status dt_place_linear(const dt_node *n, dt_rules *r) {
    DT_TRY(dt_place_pointwise(n, r));
    bool numbers = false;
    for (int i = 0; i < n->n_in; i++) numbers |= n->in[i] && n->in[i]->wrapped;
    static const dt_reduce kinds[] = {DT_SUM, DT_AVG};
    for (int k = 0; k < 2 && !numbers; k++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i]) in[i] = DT_P_OF(kinds[k]);
        for (int i = 0; i < n->n_out; i++) out[i] = DT_P_OF(kinds[k]);
    }
    return DT_OK;
}

dt_status dt_place_batch(const dt_node *n, dt_rules *r) {
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && n->in[i]->ndim) in[i] = DT_S(0);
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i].ndim) out[i] = DT_S(0);
    return DT_OK;
}

dt_status dt_place_except(const dt_node *n, dt_rules *r, uint32_t dims_mask) {
    for (int d = 0; d < n->in[0]->ndim; d++) {
        if (dims_mask >> d & 1) continue;
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i] && !n->in[i]->wrapped && n->in[i]->ndim == n->in[0]->ndim) in[i] = DT_S(d);
        for (int i = 0; i < n->n_out; i++)
            if (n->out[i].ndim == n->in[0]->ndim) out[i] = DT_S(d);
    }
    return DT_OK;
}

dt_status dt_place_reduce(const dt_node *n, dt_rules *r, const dt_ints *dims, bool keepdim, dt_placement partial) {
    uint32_t mask = 0;
    for (int i = 0; i < dims->n; i++) mask |= 1u << dims->v[i];
    int o = 0;
    for (int d = 0; d < n->in[0]->ndim; d++) {
        bool reduced = mask >> d & 1;
        int at = o;
        if (!reduced || keepdim) o++;
        if (reduced && partial.kind != DT_PARTIAL) continue;
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(d);
        for (int i = 0; i < n->n_out; i++) out[i] = reduced ? partial : DT_S(at);
    }
    return DT_OK;
}
