/* Ops that move data between devices or open a distributed tensor. They have no kernels: the controller lowers them to collectives and
 * local copies (passes/reshard.c). Their results' mesh and placements come from the call's spec, not from rules. */
#include "ops/grad.h"

#include "dtorch_ops.h"

static dt_status same(dt_node *n) {
    if (!n->spec) return dt_fail(DT_E_INTERNAL, "%s: no target placements", dt_op_name(n->op));
    return dt_infer_same(n);
}

/* The gradient goes back to where the input was; a Partial input takes a replicated gradient (its derivative is one per device). Where
 * nothing moved, the gradient stays as it is: a Partial one may meet others first and be reduced once, with them. */
static void redistribute_grad(dt_grad *g) {
    const dt_meta *m = dt_grad_in_meta(g, 0);
    if (m == dt_grad_out_meta(g, 0)) {
        dt_grad_set(g, 0, dt_grad_gy(g, 0));
        return;
    }
    dt_placement p[DT_MAX_MESH_DIM];
    for (int i = 0; i < m->mesh->ndim; i++) p[i] = m->place[i].kind == DT_PARTIAL ? DT_R : m->place[i];
    const dt_spec *spec;
    if (dt_spec_intern(m->mesh, p, &spec)) return;
    dt_grad_set(g, 0, dt_redistribute(g->s, dt_grad_gy(g, 0), spec));
}

const dt_op dt_op_redistribute = {
    .sig = "redistribute(Tensor input) -> Tensor",
    .doc = "The same values with other placements or on another mesh, by the cheapest collectives.",
    .where = DT_HIDDEN,
    .flags = DT_F_LOWERED | DT_F_ANY_MESH | DT_F_SPEC,
    .infer = same,
    .place = dt_place_replicate,
    .grad = redistribute_grad,
};

/* ---- from_local, to_local ------------------------------------------------------------------------------------------------------
 * from_local puts the mesh's n local tensors together, to_local takes one out. Derivatives, so that each is linear and one undoes the
 * other: a replicated result is taken as the mean of its copies, so each copy's gradient is gy / copies; a copy taken out of a replicated
 * tensor contributes its gradient once (Partial sum over the copies); for Partial the other way round. */
typedef struct to_local_attr {
    int64_t index;
} to_local_attr;

static int64_t copies(const dt_meta *m) {
    int64_t n = 1;
    for (int i = 0; i < m->mesh->ndim; i++)
        if (m->place[i].kind == DT_REPLICATE) n *= m->mesh->dim[i];
    return n;
}

/* Global size along d: the sum of the local sizes met when walking the mesh dimensions that shard d, elsewhere at coordinate 0. */
static int64_t global_size(const dt_node *n, const dt_spec *s, int d) {
    int64_t total = 0, c[DT_MAX_MESH_DIM];
    for (int i = 0; i < s->mesh->n; i++) {
        dt_mesh_coords(s->mesh, i, c);
        bool on_path = true;
        for (int k = 0; k < s->mesh->ndim; k++)
            if (c[k] && !(s->place[k].kind == DT_SHARD && s->place[k].dim == d)) on_path = false;
        if (on_path) total += n->in[i]->shape[d];
    }
    return total;
}

static dt_status from_local_infer(dt_node *n) {
    const dt_spec *s = n->spec;
    if (!s) return dt_fail(DT_E_INTERNAL, "from_local: no placements");
    if (n->n_in != s->mesh->n) return dt_fail(DT_E_VALUE, "from_local: %d local tensors for a mesh of %d devices", n->n_in, s->mesh->n);
    n->out[0] = dt_meta_type(n->in[0]);
    for (int d = 0; d < n->out[0].ndim; d++) n->out[0].shape[d] = 0;
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i]->ndim != n->in[0]->ndim || n->in[i]->dtype != n->in[0]->dtype)
            return dt_fail(DT_E_SHAPE, "from_local: local tensor %d differs from the first in dtype or number of dimensions", i);
    for (int d = 0; d < n->out[0].ndim; d++) n->out[0].shape[d] = global_size(n, s, d);
    const dt_meta *m;
    DT_TRY(dt_meta_intern(&n->out[0], s->mesh, s->place, &m));
    for (int i = 0; i < n->n_in; i++) {
        dt_box b;
        dt_layout_box(m, i, &b);
        for (int d = 0; d < m->ndim; d++)
            if (b.len[d] != n->in[i]->shape[d])
                return dt_fail(DT_E_SHAPE, "from_local: local tensor %d has size %lld in dimension %d; device %d of the mesh holds %lld of %lld", i,
                               (long long)n->in[i]->shape[d], d, i, (long long)b.len[d], (long long)m->shape[d]);
    }
    return DT_OK;
}

static const dt_spec *spec_of(const dt_meta *m, dt_placement (*map)(dt_placement)) {
    dt_placement p[DT_MAX_MESH_DIM];
    for (int i = 0; i < m->mesh->ndim; i++) p[i] = map(m->place[i]);
    const dt_spec *s;
    return dt_spec_intern(m->mesh, p, &s) ? NULL : s;
}
static const dt_spec *spec_single(dt_device d) {
    const dt_spec *s;
    return dt_spec_intern(dt_mesh_single(d), NULL, &s) ? NULL : s;
}
static dt_placement partial_to_replicate(dt_placement p) { return p.kind == DT_PARTIAL ? DT_R : p; }
static dt_placement local_gradient(dt_placement p) { return p.kind == DT_SHARD ? p : p.kind == DT_REPLICATE ? DT_P : DT_P_OF(DT_AVG); }

static void from_local_grad(dt_grad *g) {
    const dt_meta *m = dt_grad_out_meta(g, 0);
    dt_tensor *gy = dt_redistribute(g->s, dt_grad_gy(g, 0), spec_of(m, partial_to_replicate));
    if (copies(m) > 1) gy = dt_div(g->s, gy, (double)copies(m));
    for (int i = 0; i < g->call->n_in; i++)
        if (dt_grad_needs(g, i)) dt_grad_set(g, i, dt_to_local(g->s, gy, i, spec_single(m->mesh->dev[i])));
}

const dt_op dt_op_from_local = {
    .sig = "from_local(Tensor[] input) -> Tensor",
    .doc = "A distributed tensor from one local tensor per device of the mesh; sizes must be those that the placements give.",
    .where = DT_HIDDEN,
    .flags = DT_F_LOWERED | DT_F_ANY_MESH | DT_F_SPEC,
    .infer = from_local_infer,
    .place = dt_place_replicate,
    .grad = from_local_grad,
};

static dt_status to_local_infer(dt_node *n) {
    const dt_meta *m = n->in[0];
    to_local_attr *a = n->attr;
    if (a->index < 0 || a->index >= m->mesh->n)
        return dt_fail(DT_E_INDEX, "to_local: index %lld, the mesh has devices 0 to %d", (long long)a->index, m->mesh->n - 1);
    if (!n->spec || n->spec->mesh != dt_mesh_single(m->mesh->dev[a->index])) return dt_fail(DT_E_INTERNAL, "to_local: no target device");
    dt_box b;
    dt_layout_box(m, (int)a->index, &b);
    n->out[0] = dt_meta_type(m);
    for (int d = 0; d < m->ndim; d++) n->out[0].shape[d] = b.len[d];
    return DT_OK;
}

static void to_local_grad(dt_grad *g) {
    const dt_meta *m = dt_grad_in_meta(g, 0);
    int64_t index = ((const to_local_attr *)dt_grad_attr(g))->index;
    dt_tensor *local[DT_MAX_DEVICES];
    for (int i = 0; i < m->mesh->n; i++) {
        dt_box b;
        dt_layout_box(m, i, &b);
        dt_dims size = {m->ndim, b.len};
        if (i == index)
            local[i] = dt_grad_gy(g, 0);
        else
            local[i] = dt_full(g->s, size, 0.0, m->dtype, spec_single(m->mesh->dev[i]));
    }
    dt_list list = {m->mesh->n, local};
    dt_grad_set(g, 0, dt_from_local(g->s, list, spec_of(m, local_gradient)));
}

const dt_op dt_op_to_local = {
    .sig = "to_local(Tensor input, int index) -> Tensor",
    .doc = "The part of a distributed tensor that the mesh's index-th device holds, as a plain tensor on that device.",
    .where = DT_HIDDEN,
    .flags = DT_F_LOWERED | DT_F_ANY_MESH | DT_F_SPEC,
    .attrs = DT_ATTRS(to_local_attr, DT_FIELD(to_local_attr, index)),
    .infer = to_local_infer,
    .place = dt_place_replicate,
    .grad = to_local_grad,
};
