/* Mixtures of experts: where tokens go, and their way there and back. See expert.h for what rows and counts are.
 *
 *   _expert_limit(index, E, capacity)          assignments beyond an expert's capacity become -1
 *   _expert_count(index, E)                    how many assignments each expert has
 *   _expert_route(index, E, …)                 (…, K) experts -> slot (…, K): the row of each assignment, by sender; and the counts
 *   _expert_pack(x, slot, weight)              rows[slot] = weight * x        (each token's row once for each of its experts)
 *   _expert_combine(rows, slot, weight)        sum over K of weight * rows[slot]
 *   _expert_dot(rows, v, slot)                 <rows[slot], v>
 *   _expert_exchange(rows, counts, …)          by sender -> by receiver, or back: the all-to-all whose sizes are the counts
 *
 * pack, combine and dot are each other's derivatives, as an exchange and its return are; so all of it can be differentiated again.
 *
 * A slot numbers the rows of all shards: ((p G + g) M + row), or -1 for none. So these ops mean something as a whole, wherever the rows lie; that
 * tokens and their rows may be sharded together is what _expert_route promises: the rows of a shard's tokens lie in that shard. The rules
 * below therefore follow the slots' placement. */
#include "ops/expert.h"

#include "dtorch_ops.h"
#include "ops/grad.h"

DT_CPU_KERNEL(expert_limit);
DT_CPU_KERNEL(expert_count);
DT_CPU_KERNEL(expert_route);
DT_CPU_KERNEL(expert_pack);
DT_CPU_KERNEL(expert_combine);
DT_CPU_KERNEL(expert_dot);

#define ATTRS(...) DT_ATTRS(dt_expert_attr, __VA_ARGS__)
#define FIELD(name) DT_FIELD(dt_expert_attr, name)
#define SHARDS FIELD(shards), FIELD(groups), FIELD(rows), FIELD(ep)

size_t dt_expert_route_scratch(const dt_kctx *c) { return (size_t)(((const dt_expert_attr *)c->attr)->n_experts + 1) * sizeof(int64_t); }

/* ---- shared by inference and rules --------------------------------------------------------------------------------------------------------- */
static dt_status check_index(const dt_node *n) {
    const dt_expert_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    if (m->dtype != DT_int64 || m->ndim < 1)
        return dt_fail(DT_E_DTYPE, "%s: index must be an int64 tensor (…, K), got %d-D %s", dt_op_name(n->op), m->ndim, dt_dtype_name((dt_dtype)m->dtype));
    if (a->n_experts < 1) return dt_fail(DT_E_VALUE, "%s: n_experts must be at least 1, got %lld", dt_op_name(n->op), (long long)a->n_experts);
    return DT_OK;
}

static dt_status check_shards(const dt_node *n) {
    const dt_expert_attr *a = n->attr;
    if (a->shards < 1 || a->groups < 1 || a->rows < 0)
        return dt_fail(DT_E_VALUE, "%s: bad sizes of the row buffers: %lld, %lld, %lld", dt_op_name(n->op), (long long)a->shards, (long long)a->groups,
                       (long long)a->rows);
    return DT_OK;
}

/* x (…, D) and slot (…, K): the same tokens? */
static dt_status check_tokens(const dt_node *n, const dt_meta *x, const dt_meta *slot) {
    bool same = x->ndim == slot->ndim && x->ndim >= 1 && slot->dtype == DT_int64;
    for (int d = 0; same && d < x->ndim - 1; d++) same = x->shape[d] == slot->shape[d];
    return same ? DT_OK : dt_fail(DT_E_SHAPE, "%s: rows and slots are not of the same tokens", dt_op_name(n->op));
}

/* The placement of a token tensor if it is cut by tokens along this mesh dimension. */
static bool by_tokens(const dt_rules *r, const dt_meta *m, dt_placement *p) {
    if (m->mesh != r->mesh) return false;
    *p = m->place[r->mesh_dim];
    return p->kind == DT_SHARD && p->dim < m->ndim - 1;
}

static dt_placement buffers(const dt_node *n, const dt_rules *r) { return DT_S(((const dt_expert_attr *)n->attr)->ep == r->mesh_dim ? 1 : 0); }

static dt_status rule3(dt_rules *r, dt_placement a, dt_placement b, dt_placement c, dt_placement o) {
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    const dt_placement p[3] = {a, b, c};
    for (int i = 0; i < r->n_in && i < 3; i++) in[i] = p[i];
    out[0] = o;
    return DT_OK;
}

static dt_dtype weight_dtype(dt_dtype t) { return t == DT_float64 ? DT_float64 : DT_float32; }

/* ---- assignments --------------------------------------------------------------------------------------------------------------------------- */
static dt_status limit_infer(dt_node *n) {
    n->out[0] = dt_meta_type(n->in[0]);
    return check_index(n);
}
const dt_op dt_op__expert_limit = {
    .sig = "_expert_limit(Tensor index, int n_experts, int capacity) -> Tensor",
    .doc = "index (…, K) with every assignment of an expert after its first `capacity` ones, in row-major order, replaced by -1.",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(n_experts), FIELD(capacity)),
    .infer = limit_infer,
    .place = dt_place_replicate, /* who comes first is a matter of all tokens */
    .scratch = dt_expert_route_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_expert_limit, DT_K_CONTIGUOUS}},
};

static dt_status count_infer(dt_node *n) {
    n->out[0] = (dt_type){DT_int64, 1, {((const dt_expert_attr *)n->attr)->n_experts}};
    return check_index(n);
}
static dt_status count_place(const dt_node *n, dt_rules *r) {
    dt_placement p;
    if (by_tokens(r, n->in[0], &p)) DT_TRY(rule3(r, p, DT_R, DT_R, DT_P));
    for (int d = 0; d < n->in[0]->ndim; d++) DT_TRY(rule3(r, DT_S(d), DT_R, DT_R, DT_P));
    return DT_OK;
}
const dt_op dt_op__expert_count = {
    .sig = "_expert_count(Tensor index, int n_experts) -> Tensor",
    .doc = "How often each expert occurs in index; -1 is nobody. -> (n_experts,) int64.",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(n_experts)),
    .infer = count_infer,
    .place = count_place,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_expert_count, DT_K_CONTIGUOUS}},
};

static dt_status route_infer(dt_node *n) {
    const dt_expert_attr *a = n->attr;
    DT_TRY(check_shards(n));
    n->out[0] = dt_meta_type(n->in[0]);
    n->out[1] = (dt_type){DT_int64, 3, {a->shards, a->groups, a->n_experts}};
    return check_index(n);
}
static dt_status route_place(const dt_node *n, dt_rules *r) {
    dt_placement p, *in, *out;
    if (!by_tokens(r, n->in[0], &p)) return DT_OK;
    DT_TRY(dt_rule_add(r, &in, &out));
    in[0] = out[0] = p;
    out[1] = buffers(n, r);
    return DT_OK;
}
const dt_op dt_op__expert_route = {
    .sig = "_expert_route(Tensor index, int n_experts, int shards, int groups, int rows, int ep) -> (Tensor slot, Tensor counts)",
    .doc = "The row of each assignment, sorted by expert within its shard, and how many rows each expert has there.",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(n_experts), SHARDS),
    .infer = route_infer,
    .place = route_place,
    .scratch = dt_expert_route_scratch,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_expert_route, DT_K_CONTIGUOUS}},
};

/* ---- tokens to rows ------------------------------------------------------------------------------------------------------------------------- */
static dt_status pack_infer(dt_node *n) {
    const dt_expert_attr *a = n->attr;
    const dt_meta *x = n->in[0];
    DT_TRY(check_shards(n));
    DT_TRY(check_tokens(n, x, n->in[1]));
    if (n->in[2]) n->cast[2] = weight_dtype((dt_dtype)x->dtype);
    n->out[0] = (dt_type){(dt_dtype)x->dtype, 4, {a->shards, a->groups, a->rows, x->shape[x->ndim - 1]}};
    return DT_OK;
}
static dt_status pack_place(const dt_node *n, dt_rules *r) {
    dt_placement p;
    if (by_tokens(r, n->in[1], &p)) DT_TRY(rule3(r, p, p, n->in[2] ? p : DT_R, buffers(n, r)));
    DT_TRY(rule3(r, DT_S(n->in[0]->ndim - 1), DT_R, DT_R, DT_S(3)));
    if (n->in[2]) DT_TRY(rule3(r, DT_R, DT_R, DT_P, DT_P));
    return rule3(r, DT_P, DT_R, DT_R, DT_P);
}
#define BUFFERS(m) (m)->shape[0], (m)->shape[1], (m)->shape[2]
static int64_t ep_of(dt_grad *g) { return ((const dt_expert_attr *)dt_grad_attr(g))->ep; }

static void pack_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0), *slot = dt_grad_in(g, 1), *w = g->call->in[2] ? dt_grad_in(g, 2) : NULL;
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt__expert_combine(g->s, gy, slot, w, ep_of(g)));
    if (w && dt_grad_needs(g, 2)) dt_grad_set(g, 2, dt__expert_dot(g->s, gy, dt_grad_in(g, 0), slot, ep_of(g)));
}
const dt_op dt_op__expert_pack = {
    .sig = "_expert_pack(Tensor input, Tensor slot, Tensor? weight, int shards, int groups, int rows, int ep) -> Tensor",
    .doc = "rows[slot[…, k]] = weight[…, k] input[…]. input (…, D), slot and weight (…, K) -> (shards, groups, rows, D).",
    .where = DT_HIDDEN,
    .attrs = ATTRS(SHARDS),
    .infer = pack_infer,
    .place = pack_place,
    .grad = pack_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_expert_pack, DT_K_CONTIGUOUS}},
};

/* ---- rows to tokens ------------------------------------------------------------------------------------------------------------------------- */
static dt_status check_rows(const dt_node *n) {
    if (n->in[0]->ndim != 4) return dt_fail(DT_E_SHAPE, "%s: rows must be (shards, groups, rows, D)", dt_op_name(n->op));
    return DT_OK;
}
static dt_status combine_infer(dt_node *n) {
    const dt_meta *rows = n->in[0], *slot = n->in[1];
    DT_TRY(check_rows(n));
    if (n->in[2]) n->cast[2] = weight_dtype((dt_dtype)rows->dtype);
    n->out[0] = dt_meta_type(slot);
    n->out[0].dtype = (dt_dtype)rows->dtype;
    n->out[0].shape[slot->ndim - 1] = rows->shape[3];
    return DT_OK;
}
static dt_status combine_place(const dt_node *n, dt_rules *r) {
    dt_placement p;
    if (by_tokens(r, n->in[1], &p)) DT_TRY(rule3(r, buffers(n, r), p, n->in[2] ? p : DT_R, p));
    DT_TRY(rule3(r, DT_S(3), DT_R, DT_R, DT_S(n->in[1]->ndim - 1)));
    if (n->in[2]) DT_TRY(rule3(r, DT_R, DT_R, DT_P, DT_P));
    return rule3(r, DT_P, DT_R, DT_R, DT_P);
}
static void combine_grad(dt_grad *g) {
    const dt_meta *rows = dt_grad_in_meta(g, 0);
    dt_tensor *gy = dt_grad_gy(g, 0), *slot = dt_grad_in(g, 1), *w = g->call->in[2] ? dt_grad_in(g, 2) : NULL;
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt__expert_pack(g->s, gy, slot, w, BUFFERS(rows), ep_of(g)));
    if (w && dt_grad_needs(g, 2)) dt_grad_set(g, 2, dt__expert_dot(g->s, dt_grad_in(g, 0), gy, slot, ep_of(g)));
}
const dt_op dt_op__expert_combine = {
    .sig = "_expert_combine(Tensor rows, Tensor slot, Tensor? weight, int ep) -> Tensor",
    .doc = "Sum over k of weight[…, k] rows[slot[…, k]] -> (…, D).",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(ep)),
    .infer = combine_infer,
    .place = combine_place,
    .grad = combine_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_expert_combine, DT_K_CONTIGUOUS}},
};

static dt_status dot_infer(dt_node *n) {
    DT_TRY(check_rows(n));
    DT_TRY(check_tokens(n, n->in[1], n->in[2]));
    n->cast[1] = n->in[0]->dtype;
    n->out[0] = dt_meta_type(n->in[2]);
    n->out[0].dtype = weight_dtype((dt_dtype)n->in[0]->dtype);
    return DT_OK;
}
static dt_status dot_place(const dt_node *n, dt_rules *r) {
    dt_placement p;
    if (by_tokens(r, n->in[2], &p)) DT_TRY(rule3(r, buffers(n, r), p, p, p));
    DT_TRY(rule3(r, DT_S(3), DT_S(n->in[1]->ndim - 1), DT_R, DT_P));
    DT_TRY(rule3(r, DT_P, DT_R, DT_R, DT_P));
    return rule3(r, DT_R, DT_P, DT_R, DT_P);
}
static void dot_grad(dt_grad *g) {
    const dt_meta *rows = dt_grad_in_meta(g, 0);
    dt_tensor *gy = dt_grad_gy(g, 0), *slot = dt_grad_in(g, 2);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt__expert_pack(g->s, dt_grad_in(g, 1), slot, gy, BUFFERS(rows), ep_of(g)));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt__expert_combine(g->s, dt_grad_in(g, 0), slot, gy, ep_of(g)));
}
const dt_op dt_op__expert_dot = {
    .sig = "_expert_dot(Tensor rows, Tensor input, Tensor slot, int ep) -> Tensor",
    .doc = "The products of rows[slot[…, k]] and input[…] (…, D) -> (…, K), float32 (float64 for float64).",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(ep)),
    .infer = dot_infer,
    .place = dot_place,
    .grad = dot_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_expert_dot, DT_K_CONTIGUOUS}},
};

/* ---- the exchange: passes/exchange.c lowers it, comm/exchange.c runs it ---------------------------------------------------------------------- */
static dt_status exchange_infer(dt_node *n) {
    const dt_expert_attr *a = n->attr;
    const dt_meta *rows = n->in[0], *counts = n->in[1];
    DT_TRY(check_rows(n));
    if (counts->ndim != 3 || counts->dtype != DT_int64 || counts->shape[0] != rows->shape[0] || counts->shape[1] != rows->shape[1])
        return dt_fail(DT_E_SHAPE, "_expert_exchange: counts must be int64 (shards, groups, experts)");
    if (!rows->mesh || a->ep < 0 || a->ep >= rows->mesh->ndim || rows->mesh->dim[a->ep] != rows->shape[1])
        return dt_fail(DT_E_PLACEMENT, "_expert_exchange: ep=%lld is not the mesh dimension of %lld groups", (long long)a->ep, (long long)rows->shape[1]);
    n->out[0] = dt_meta_type(rows);
    n->out[0].shape[2] = a->rows;
    return DT_OK;
}
static void exchange_grad(dt_grad *g) {
    const dt_expert_attr *a = dt_grad_attr(g);
    dt_grad_set(g, 0, dt__expert_exchange(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 1), dt_grad_in_meta(g, 0)->shape[2], a->ep, !a->back));
}
const dt_op dt_op__expert_exchange = {
    .sig = "_expert_exchange(Tensor input, Tensor counts, int rows, int ep, bool back) -> Tensor",
    .doc = "Rows by sender to rows by receiver (back: the other way), along mesh dimension ep.",
    .where = DT_HIDDEN,
    .flags = DT_F_LOWERED,
    .attrs = ATTRS(FIELD(rows), FIELD(ep), FIELD(back)),
    .infer = exchange_infer,
    .place = dt_place_replicate, /* not asked: the result lies as the rows do */
    .grad = exchange_grad,
    .saves = DT_SAVE_IN(1),
};
