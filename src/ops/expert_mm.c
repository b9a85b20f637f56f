/* Mixtures of experts: what the experts compute on their rows. See expert.h for what rows and counts are; here rows are by receiver.
 *
 *   _expert_mm(a, w, counts, a2, w2, …)   each expert's rows times its matrix (transposed if `trans`), and a second product added to it
 *   _expert_mm_pair(a, w, w2, counts)     the same rows times two matrices: gate and up
 *   _expert_mm_w(a, g, counts, …)         a' g over each expert's rows: gradients of the matrices
 *   _expert_act, _expert_glu              activations of the used rows: act(x), act(x) * u; and their gradients
 *
 * Why a pair and a second product: a buffer that is used twice would get its gradient as a sum over the whole static buffer, most of which is unused.
 * The sharded mesh dimensions: tokens' ones cut the buffers, `ep` cuts buffers and experts, any other may cut features as in any product. */
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/expert.h"
#include "ops/grad.h"

DT_CPU_KERNEL(expert_mm);
DT_CPU_KERNEL(expert_mm_pair);
DT_CPU_KERNEL(expert_mm_w);
DT_CPU_KERNEL(expert_act);
DT_CPU_KERNEL(expert_act_backward);
DT_CPU_KERNEL(expert_glu);
DT_CPU_KERNEL(expert_glu_backward);

#define ATTRS(...) DT_ATTRS(dt_expert_attr, __VA_ARGS__)
#define FIELD(name) DT_FIELD(dt_expert_attr, name)

/* One product a (shard, group, expert) that is held here: in[0] (P, G, M, D), the experts along dimension 0 of in[1] or of the result. */
size_t dt_expert_mm_scratch(const dt_kctx *c) {
    const dt_view *rows = &c->in[0], *experts = c->out[0].ndim == 3 ? &c->out[0] : &c->in[1];
    return (size_t)(rows->shape[0] * rows->shape[1] * experts->shape[0] + 1) * sizeof(dt_group);
}

static dt_status bad(const dt_node *n, const char *what) { return dt_fail(DT_E_SHAPE, "%s: %s", dt_op_name(n->op), what); }

static dt_status check_rows(const dt_node *n, const dt_meta *rows, const dt_meta *counts) {
    if (rows->ndim != 4 || counts->ndim != 3 || counts->dtype != DT_int64 || rows->shape[0] != counts->shape[0] || rows->shape[1] != counts->shape[1])
        return bad(n, "expected rows (shards, groups, rows, D) and int64 counts (shards, groups, experts)");
    return DT_OK;
}

static dt_status check_product(const dt_node *n, const dt_meta *a, const dt_meta *w, const dt_meta *counts, bool trans) {
    DT_TRY(check_rows(n, a, counts));
    if (w->ndim != 3 || w->shape[0] != counts->shape[2] || w->shape[trans ? 2 : 1] != a->shape[3]) return bad(n, "the experts' matrices do not fit the rows");
    if (w->dtype != a->dtype)
        return dt_fail(DT_E_DTYPE, "%s: expected rows and matrices of the same dtype, got %s and %s", dt_op_name(n->op), dt_dtype_name((dt_dtype)a->dtype),
                       dt_dtype_name((dt_dtype)w->dtype));
    return DT_OK;
}

/* A rule over at most five inputs and two outputs. */
typedef struct row {
    dt_placement in[5], out[2];
} row;
static dt_status rule(dt_rules *r, row p) {
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    memcpy(in, p.in, sizeof *in * (size_t)(r->n_in < 5 ? r->n_in : 5));
    memcpy(out, p.out, sizeof *out * (size_t)(r->n_out < 2 ? r->n_out : 2));
    return DT_OK;
}

/* ---- products -------------------------------------------------------------------------------------------------------------------------------- */
static dt_status mm_infer(dt_node *n) {
    const dt_expert_attr *a = n->attr;
    DT_TRY(check_product(n, n->in[0], n->in[1], n->in[2], a->trans));
    if ((n->in[3] == NULL) != (n->in[4] == NULL)) return bad(n, "a second product needs rows and matrices");
    if (n->in[3]) DT_TRY(check_product(n, n->in[3], n->in[4], n->in[2], a->trans));
    if (n->in[3] && (!dt_meta_same_shape(n->in[3], n->in[0]) || !dt_meta_same_shape(n->in[4], n->in[1]))) return bad(n, "both products must be of one shape");
    n->out[0] = dt_meta_type(n->in[0]);
    n->out[0].shape[3] = n->in[1]->shape[a->trans ? 1 : 2];
    return DT_OK;
}
static dt_status mm_place(const dt_node *n, dt_rules *r) {
    const dt_expert_attr *a = n->attr;
    bool two = n->in[3] != NULL;
    dt_placement rows = DT_S(a->ep == r->mesh_dim ? 1 : 0), experts = a->ep == r->mesh_dim ? DT_S(0) : DT_R, counts = a->ep == r->mesh_dim ? DT_R : DT_S(0);
    dt_placement free = DT_S(a->trans ? 1 : 2), summed = DT_S(a->trans ? 2 : 1);
    DT_TRY(rule(r, (row){{rows, experts, counts, two ? rows : DT_R, two ? experts : DT_R}, {rows}}));
    DT_TRY(rule(r, (row){{DT_R, free, DT_R, DT_R, two ? free : DT_R}, {DT_S(3)}}));
    DT_TRY(rule(r, (row){{DT_S(3), summed, DT_R, two ? DT_S(3) : DT_R, two ? summed : DT_R}, {DT_P}}));
    DT_TRY(rule(r, (row){{DT_P, DT_R, DT_R, two ? DT_P : DT_R, DT_R}, {DT_P}}));
    return rule(r, (row){{DT_R, DT_P, DT_R, DT_R, two ? DT_P : DT_R}, {DT_P}});
}
static int64_t ep_of(dt_grad *g) { return ((const dt_expert_attr *)dt_grad_attr(g))->ep; }

static void mm_grad(dt_grad *g) {
    const dt_expert_attr *a = dt_grad_attr(g);
    dt_tensor *gy = dt_grad_gy(g, 0), *counts = dt_grad_in(g, 2);
    for (int i = 0; i <= 3; i += 3) {
        if (!g->call->in[i]) continue;
        if (dt_grad_needs(g, i)) dt_grad_set(g, i, dt__expert_mm(g->s, gy, dt_grad_in(g, i + 1), counts, NULL, NULL, a->ep, !a->trans));
        if (!dt_grad_needs(g, i + 1)) continue;
        dt_tensor *x = dt_grad_in(g, i);
        dt_grad_set(g, i + 1, dt__expert_mm_w(g->s, a->trans ? gy : x, a->trans ? x : gy, counts, a->ep));
    }
}
static double mm_flops(const dt_node *n) { return 2.0 * (double)n->in[0]->numel * (double)n->out[0].shape[3]; }

const dt_op dt_op__expert_mm = {
    .sig = "_expert_mm(Tensor input, Tensor weight, Tensor counts, Tensor? input2, Tensor? weight2, int ep, bool trans) -> Tensor",
    .doc = "Each expert's rows times its matrix, plus input2 times weight2.",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(ep), FIELD(trans)),
    .infer = mm_infer,
    .place = mm_place,
    .grad = mm_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2) | DT_SAVE_IN(3) | DT_SAVE_IN(4),
    .scratch = dt_expert_mm_scratch,
    .flops = mm_flops,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_expert_mm, DT_K_CONTIGUOUS}},
};

static dt_status pair_infer(dt_node *n) {
    DT_TRY(check_product(n, n->in[0], n->in[1], n->in[3], false));
    DT_TRY(check_product(n, n->in[0], n->in[2], n->in[3], false));
    for (int i = 0; i < 2; i++) {
        n->out[i] = dt_meta_type(n->in[0]);
        n->out[i].shape[3] = n->in[1 + i]->shape[2];
    }
    return DT_OK;
}
static dt_status pair_place(const dt_node *n, dt_rules *r) {
    bool ep = ((const dt_expert_attr *)n->attr)->ep == r->mesh_dim;
    dt_placement rows = DT_S(ep ? 1 : 0), experts = ep ? DT_S(0) : DT_R, counts = ep ? DT_R : DT_S(0);
    DT_TRY(rule(r, (row){{rows, experts, experts, counts}, {rows, rows}}));
    DT_TRY(rule(r, (row){{DT_R, DT_S(2), DT_S(2), DT_R}, {DT_S(3), DT_S(3)}}));
    DT_TRY(rule(r, (row){{DT_S(3), DT_S(1), DT_S(1), DT_R}, {DT_P, DT_P}}));
    DT_TRY(rule(r, (row){{DT_P, DT_R, DT_R, DT_R}, {DT_P, DT_P}}));
    return rule(r, (row){{DT_R, DT_P, DT_P, DT_R}, {DT_P, DT_P}});
}
static void pair_grad(dt_grad *g) {
    dt_tensor *counts = dt_grad_in(g, 3), *gy[2] = {NULL, NULL}, *w[2] = {NULL, NULL};
    int n = 0;
    for (int i = 0; i < 2; i++) {
        if (!dt_grad_gy_given(g, i)) continue;
        dt_tensor *gi = dt_grad_gy(g, i);
        if (dt_grad_needs(g, 1 + i)) dt_grad_set(g, 1 + i, dt__expert_mm_w(g->s, dt_grad_in(g, 0), gi, counts, ep_of(g)));
        if (dt_grad_needs(g, 0)) gy[n] = gi, w[n++] = dt_grad_in(g, 1 + i);
    }
    if (n == 2 && dt_shape(w[0])[2] != dt_shape(w[1])[2]) /* not of one shape: two products */
        dt_grad_set(g, 0,
                    dt_add(g->s, dt__expert_mm(g->s, gy[0], w[0], counts, NULL, NULL, ep_of(g), true),
                           dt_v_tensor(dt__expert_mm(g->s, gy[1], w[1], counts, NULL, NULL, ep_of(g), true))));
    else if (n)
        dt_grad_set(g, 0, dt__expert_mm(g->s, gy[0], w[0], counts, gy[1], w[1], ep_of(g), true));
}
const dt_op dt_op__expert_mm_pair = {
    .sig = "_expert_mm_pair(Tensor input, Tensor weight, Tensor weight2, Tensor counts, int ep) -> (Tensor gate, Tensor up)",
    .doc = "Each expert's rows times each of its two matrices.",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(ep)),
    .infer = pair_infer,
    .place = pair_place,
    .grad = pair_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2) | DT_SAVE_IN(3),
    .scratch = dt_expert_mm_scratch,
    .flops = mm_flops,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_expert_mm_pair, DT_K_CONTIGUOUS}},
};

static dt_status mm_w_infer(dt_node *n) {
    const dt_meta *a = n->in[0], *b = n->in[1], *counts = n->in[2];
    DT_TRY(check_rows(n, a, counts));
    DT_TRY(check_rows(n, b, counts));
    if (a->dtype != b->dtype || a->shape[2] != b->shape[2]) return bad(n, "both row buffers must be of one dtype and length");
    n->out[0] = (dt_type){(dt_dtype)a->dtype, 3, {counts->shape[2], a->shape[3], b->shape[3]}};
    return DT_OK;
}
static dt_status mm_w_place(const dt_node *n, dt_rules *r) {
    bool ep = ((const dt_expert_attr *)n->attr)->ep == r->mesh_dim;
    if (ep)
        DT_TRY(rule(r, (row){{DT_S(1), DT_S(1), DT_R}, {DT_S(0)}}));
    else
        DT_TRY(rule(r, (row){{DT_S(0), DT_S(0), DT_S(0)}, {DT_P}}));
    DT_TRY(rule(r, (row){{DT_S(3), DT_R, DT_R}, {DT_S(1)}}));
    DT_TRY(rule(r, (row){{DT_R, DT_S(3), DT_R}, {DT_S(2)}}));
    DT_TRY(rule(r, (row){{DT_P, DT_R, DT_R}, {DT_P}}));
    return rule(r, (row){{DT_R, DT_P, DT_R}, {DT_P}});
}
static void mm_w_grad(dt_grad *g) { /* gy (E, Da, Db) */
    dt_tensor *gy = dt_grad_gy(g, 0), *counts = dt_grad_in(g, 2);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt__expert_mm(g->s, dt_grad_in(g, 1), gy, counts, NULL, NULL, ep_of(g), true));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt__expert_mm(g->s, dt_grad_in(g, 0), gy, counts, NULL, NULL, ep_of(g), false));
}
static double mm_w_flops(const dt_node *n) { return 2.0 * (double)n->in[0]->numel * (double)n->in[1]->shape[3]; }
const dt_op dt_op__expert_mm_w = {
    .sig = "_expert_mm_w(Tensor input, Tensor other, Tensor counts, int ep) -> Tensor",
    .doc = "Over each expert's rows: input' other -> (experts, D, D of other).",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(ep)),
    .infer = mm_w_infer,
    .place = mm_w_place,
    .grad = mm_w_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .scratch = dt_expert_mm_scratch,
    .flops = mm_w_flops,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_expert_mm_w, DT_K_CONTIGUOUS}},
};

/* ---- activations: inputs are rows but for the counts, which come last ----------------------------------------------------------------------- */
const char *const dt_expert_act_name[DT_EXPERT_ACTS] = {"silu", "gelu", "gelu_tanh", "relu"};

dt_status dt_expert_act_find(const char *kind, dt_expert_act *out) {
    for (int i = 0; i < DT_EXPERT_ACTS; i++)
        if (!strcmp(kind, dt_expert_act_name[i])) {
            *out = (dt_expert_act)i;
            return DT_OK;
        }
    return dt_fail(DT_E_VALUE, "experts: no activation '%s'; there are silu, gelu, gelu_tanh and relu", kind);
}

static dt_status act_infer(dt_node *n) {
    dt_expert_act kind;
    int last = n->n_in - 1;
    DT_TRY(dt_expert_act_find(((const dt_expert_attr *)n->attr)->kind, &kind));
    for (int i = 0; i < last; i++) {
        DT_TRY(check_rows(n, n->in[i], n->in[last]));
        if (!dt_meta_same_shape(n->in[i], n->in[0]) || n->in[i]->dtype != n->in[0]->dtype) return bad(n, "all row buffers must be of one shape and dtype");
    }
    for (int i = 0; i < n->n_out; i++) n->out[i] = dt_meta_type(n->in[0]);
    return DT_OK;
}
static dt_status act_place(const dt_node *n, dt_rules *r) {
    bool ep = ((const dt_expert_attr *)n->attr)->ep == r->mesh_dim;
    for (int k = 0; k < 2; k++) {
        dt_placement *in, *out, rows = k ? DT_S(3) : DT_S(ep ? 1 : 0);
        DT_TRY(dt_rule_add(r, &in, &out));
        for (int i = 0; i < n->n_in - 1; i++) in[i] = rows;
        in[n->n_in - 1] = k || ep ? DT_R : DT_S(0);
        for (int i = 0; i < n->n_out; i++) out[i] = rows;
    }
    return DT_OK;
}
static const char *kind_of(dt_grad *g) { return ((const dt_expert_attr *)dt_grad_attr(g))->kind; }

/* For gradients of gradients: ordinary ops, on unused rows too. */
static dt_tensor *plain_act(dt_scope *s, const char *kind, dt_tensor *x) {
    dt_expert_act k = DT_EXPERT_SILU;
    if (dt_expert_act_find(kind, &k)) return NULL;
    return k == DT_EXPERT_SILU ? dt_silu(s, x) : k == DT_EXPERT_GELU ? dt__gelu(s, x) : k == DT_EXPERT_GELU_TANH ? dt__gelu_tanh(s, x) : dt_relu(s, x);
}
static dt_tensor *plain_backward(dt_scope *s, const char *kind, dt_tensor *gy, dt_tensor *x) {
    dt_expert_act k = DT_EXPERT_SILU;
    if (dt_expert_act_find(kind, &k)) return NULL;
    return k == DT_EXPERT_SILU        ? dt_silu_backward(s, gy, x)
           : k == DT_EXPERT_GELU      ? dt__gelu_backward(s, gy, x)
           : k == DT_EXPERT_GELU_TANH ? dt__gelu_tanh_backward(s, gy, x)
                                      : dt_threshold_backward(s, gy, x, 0.0);
}

static void act_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0), *x = dt_grad_in(g, 0);
    dt_grad_set(g, 0,
                dt_higher_order() ? plain_backward(g->s, kind_of(g), gy, x) : dt__expert_act_backward(g->s, gy, x, dt_grad_in(g, 1), kind_of(g), ep_of(g)));
}
static void glu_grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0), *x = dt_grad_in(g, 0), *u = dt_grad_in(g, 1), *r[2];
    if (dt_higher_order()) {
        r[0] = plain_backward(g->s, kind_of(g), dt_mul(g->s, gy, dt_v_tensor(u)), x);
        r[1] = dt_mul(g->s, gy, dt_v_tensor(plain_act(g->s, kind_of(g), x)));
    } else
        dt__expert_glu_backward(g->s, gy, x, u, dt_grad_in(g, 2), kind_of(g), ep_of(g), r);
    for (int i = 0; i < 2; i++)
        if (dt_grad_needs(g, i)) dt_grad_set(g, i, r[i]);
}

const dt_op dt_op__expert_act = {
    .sig = "_expert_act(Tensor input, Tensor counts, str kind, int ep) -> Tensor",
    .doc = "The activation of the used rows.",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(kind), FIELD(ep)),
    .infer = act_infer,
    .place = act_place,
    .grad = act_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_expert_act, DT_K_CONTIGUOUS}},
};
const dt_op dt_op__expert_act_backward = {
    .sig = "_expert_act_backward(Tensor grad, Tensor input, Tensor counts, str kind, int ep) -> Tensor",
    .doc = "Gradient of _expert_act.",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(kind), FIELD(ep)),
    .infer = act_infer,
    .place = act_place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_expert_act_backward, DT_K_CONTIGUOUS}},
};
const dt_op dt_op__expert_glu = {
    .sig = "_expert_glu(Tensor input, Tensor up, Tensor counts, str kind, int ep) -> Tensor",
    .doc = "The activation of the used rows, times up.",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(kind), FIELD(ep)),
    .infer = act_infer,
    .place = act_place,
    .grad = glu_grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_expert_glu, DT_K_CONTIGUOUS}},
};
const dt_op dt_op__expert_glu_backward = {
    .sig = "_expert_glu_backward(Tensor grad, Tensor input, Tensor up, Tensor counts, str kind, int ep) -> (Tensor gate, Tensor up)",
    .doc = "Gradients of _expert_glu.",
    .where = DT_HIDDEN,
    .attrs = ATTRS(FIELD(kind), FIELD(ep)),
    .infer = act_infer,
    .place = act_place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_expert_glu_backward, DT_K_CONTIGUOUS}},
};
