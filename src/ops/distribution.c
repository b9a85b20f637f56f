/* Ops that move data between devices or open a distributed tensor. They have no kernels: the controller lowers them to collectives and
 * local copies (passes/reshard.c). Their results' mesh and placements come from the call's spec, not from rules. */
#include "ops/grad.h"

#include "dtorch_ops.h"

static dt_status same(dt_node *n) {
    if (!n->spec) return dt_fail(DT_E_INTERNAL, "%s: no target placements", dt_op_name(n->op));
    return dt_infer_same(n);
}

/* The gradient goes back to where the input was; a Partial input takes a replicated gradient (its derivative is one per device). */
static void redistribute_grad(dt_grad *g) {
    const dt_meta *m = dt_grad_in_meta(g, 0);
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
