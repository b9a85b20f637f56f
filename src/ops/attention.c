/* Scaled dot product attention, the primitive: softmax(scale q k' + mask) v, with dropout of the weights.
 *
 *   attention(q, k, v, mask)  tiled; gives y and logsumexp (hidden)
 *   attention_backward(…)     its gradient, which never holds an L x S matrix (hidden)
 *   attention_step, …         one block of keys out of several: what the planner makes of the two above when the keys stay sharded (passes/ring.c)
 *
 * q (…, H, L, D), k (…, Hk, S, D), v (…, Hk, S, E), mask broadcastable to (…, H, L, S) -> y (…, H, L, E), logsumexp (…, H, L). Batch dimensions
 * broadcast; H is a multiple of Hk, and H / Hk query heads share a key head. PyTorch's function is in attention_api.c.
 * Placements: batch and heads shard through; heads of queries also where the heads of keys cannot be cut alike (then keys are replicated, and
 * their gradients Partial). So does L of the queries, with the keys replicated (their gradients are Partial), or, where the caller says so
 * (context), with the keys sharded along S as well. */
#include "ops/attention.h"

#include <math.h>
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"

DT_CPU_KERNEL(attention);
DT_CPU_KERNEL(attention_backward);
DT_CPU_KERNEL(attention_step);
DT_CPU_KERNEL(attention_delta);
DT_CPU_KERNEL(attention_backward_step);

/* ---- shapes ---- */
/* The batch dimensions of the result; *group: query heads per key head. */
static dt_status batch_of(const char *op, const dt_meta *q, const dt_meta *k, const dt_meta *v, const dt_meta *mask, dt_type *batch, int64_t *group) {
    const dt_meta *all[4] = {q, k, v, mask};
    *batch = (dt_type){(dt_dtype)q->dtype, 0, {0}};
    *group = 1;
    int64_t hq = q->ndim > 2 ? q->shape[q->ndim - 3] : 1, hk = k->ndim > 2 ? k->shape[k->ndim - 3] : 1, hv = v->ndim > 2 ? v->shape[v->ndim - 3] : 1;
    if (hk != hv) return dt_fail(DT_E_SHAPE, "%s: key has %lld heads but value has %lld", op, (long long)hk, (long long)hv);
    if (hq != hk && hk && hq % hk == 0) *group = hq / hk;
    for (int i = 0; i < 4; i++) {
        if (!all[i]) continue;
        dt_meta m = *all[i];
        m.ndim = (uint8_t)(m.ndim > 2 ? m.ndim - 2 : 0);
        if ((i == 1 || i == 2) && *group > 1 && m.ndim) m.shape[m.ndim - 1] = hq;
        DT_TRY(dt_broadcast(op, batch, &m));
    }
    return DT_OK;
}

static dt_status check(const char *op, const dt_meta *q, const dt_meta *k, const dt_meta *v, const dt_meta *mask) {
    const dt_meta *m[3] = {q, k, v};
    static const char *const names[] = {"query", "key", "value"};
    for (int i = 0; i < 3; i++) {
        if (m[i]->ndim < 2) return dt_fail(DT_E_SHAPE, "%s: %s must have at least 2 dimensions, got %d", op, names[i], m[i]->ndim);
        if (m[i]->dtype != q->dtype)
            return dt_fail(DT_E_DTYPE, "%s: expected query, key and value to have the same dtype, got %s and %s", op, dt_dtype_name((dt_dtype)q->dtype),
                           dt_dtype_name((dt_dtype)m[i]->dtype));
    }
    if (!dt_dtype_is_float((dt_dtype)q->dtype)) return dt_fail(DT_E_DTYPE, "%s: expected a float dtype, got %s", op, dt_dtype_name((dt_dtype)q->dtype));
    int64_t D = q->shape[q->ndim - 1], S = k->shape[k->ndim - 2];
    if (k->shape[k->ndim - 1] != D)
        return dt_fail(DT_E_SHAPE, "%s: query and key must have the same last size, got %lld and %lld", op, (long long)D, (long long)k->shape[k->ndim - 1]);
    if (v->shape[v->ndim - 2] != S)
        return dt_fail(DT_E_SHAPE, "%s: key and value must have the same length, got %lld and %lld", op, (long long)S, (long long)v->shape[v->ndim - 2]);
    if (!mask) return DT_OK;
    if (mask->dtype != DT_bool && !dt_dtype_is_float((dt_dtype)mask->dtype))
        return dt_fail(DT_E_DTYPE, "%s: attn_mask must be bool or of query's dtype, got %s", op, dt_dtype_name((dt_dtype)mask->dtype));
    int64_t ml = mask->ndim < 2 ? -1 : mask->shape[mask->ndim - 2], ms = mask->ndim < 2 ? -1 : mask->shape[mask->ndim - 1];
    if (mask->ndim < 2 || (ml != 1 && ml != q->shape[q->ndim - 2]) || (ms != 1 && ms != S)) {
        DT_STR(text, 128);
        dt_shape_print(mask->ndim, mask->shape, &text);
        return dt_fail(DT_E_SHAPE, "%s: attn_mask %s does not broadcast to (…, %lld, %lld)", op, text.buf, (long long)q->shape[q->ndim - 2], (long long)S);
    }
    return DT_OK;
}

static dt_status infer_attention(dt_node *n) {
    const char *op = "scaled_dot_product_attention";
    const dt_meta *q = n->in[0], *k = n->in[1], *v = n->in[2], *mask = n->in[3];
    dt_type batch;
    int64_t group;
    DT_TRY(check(op, q, k, v, mask));
    DT_TRY(batch_of(op, q, k, v, mask, &batch, &group));
    if (batch.ndim + 2 > DT_MAX_DIM) return dt_fail(DT_E_SHAPE, "%s: at most %d dimensions", op, DT_MAX_DIM);
    if (mask && mask->dtype != DT_bool) n->cast[3] = q->dtype;
    for (int i = 4; i < 6; i++)
        if (n->in[i]) n->cast[i] = DT_int64;
    batch.shape[batch.ndim++] = q->shape[q->ndim - 2];
    n->out[1] = batch;
    if (q->dtype != DT_float64) n->out[1].dtype = DT_float32;
    batch.shape[batch.ndim++] = v->shape[v->ndim - 1];
    n->out[0] = batch;
    return DT_OK;
}

/* in: gy, q, k, v, mask, out, logsumexp -> gq, gk, gv: full batch shapes, the heads of k and v as they are. */
static dt_status infer_backward(dt_node *n) {
    const dt_meta *gy = n->in[0];
    int64_t heads[3] = {gy->ndim > 2 ? gy->shape[gy->ndim - 3] : 1};
    for (int i = 0; i < 3; i++) {
        const dt_meta *m = n->in[1 + i];
        if (i) heads[i] = m->ndim > 2 ? m->shape[m->ndim - 3] : 1;
        n->out[i] = dt_meta_type(gy);
        n->out[i].dtype = (dt_dtype)m->dtype;
        if (gy->ndim > 2) n->out[i].shape[gy->ndim - 3] = heads[i];
        for (int d = 1; d <= 2; d++) n->out[i].shape[gy->ndim - d] = m->shape[m->ndim - d];
    }
    if (n->in[4] && n->in[4]->dtype != DT_bool) n->cast[4] = n->in[1]->dtype;
    n->cast[0] = n->in[1]->dtype;
    for (int i = 7; i < 9; i++)
        if (n->in[i]) n->cast[i] = DT_int64;
    return DT_OK;
}

/* ---- placements ---- */
/* Output batch dimension d (of nd dimensions in all) in an operand whose last `tail` dimensions are not batch. */
static dt_placement along(const dt_meta *m, int nd, int64_t size, int d, int tail) {
    int k = d - (nd - 2 - (m->ndim - tail));
    return k >= 0 && k < m->ndim - tail && m->shape[k] == size ? DT_S(k) : DT_R;
}

/* May the heads of k be cut just as those of q? Else they stay whole where q's are cut. (q, k, v are inputs at, at + 1, at + 2.) */
static bool heads_together(const dt_node *n, const dt_rules *r, int at, int64_t h, int64_t hk) {
    if (h == hk) return true;
    for (int i = at; i < at + 3; i++)
        if (!dt_rules_even_in(r, n->in[i], n->in[i]->ndim - 3, n->in[i]->ndim - 2, hk)) return false;
    return true;
}

static int64_t key_heads(const dt_meta *k) { return k->ndim > 2 ? k->shape[k->ndim - 3] : 1; }

static dt_status place_attention(const dt_node *n, dt_rules *r) {
    const dt_attention_attr *a = n->attr;
    const dt_type *o = &n->out[0];
    const dt_meta *q = n->in[0], *k = n->in[1], *v = n->in[2], *mask = n->in[3];
    int64_t hk = key_heads(k);
    dt_placement *in, *out;
    for (int d = 0; d < o->ndim - 2; d++) {
        bool head = d == o->ndim - 3;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = along(q, o->ndim, o->shape[d], d, 2);
        for (int i = 1; i < 3 && (!head || heads_together(n, r, 0, o->shape[d], hk)); i++) in[i] = along(n->in[i], o->ndim, head ? hk : o->shape[d], d, 2);
        if (mask) in[3] = along(mask, o->ndim, o->shape[d], d, 2);
        out[0] = out[1] = DT_S(d);
    }
    for (int ring = 0; ring <= (a->context != DT_CONTEXT_NONE); ring++) { /* rows of the queries */
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(q->ndim - 2);
        if (ring) in[1] = DT_S(k->ndim - 2), in[2] = DT_S(v->ndim - 2);
        if (mask && mask->shape[mask->ndim - 2] != 1) in[3] = DT_S(mask->ndim - 2);
        out[0] = out[1] = DT_S(o->ndim - 2);
    }
    return DT_OK;
}

static dt_status place_backward(const dt_node *n, dt_rules *r) {
    const dt_attention_attr *a = n->attr;
    const dt_meta *gy = n->in[0], *mask = n->in[4];
    int nd = gy->ndim;
    int64_t hk = key_heads(n->in[2]);
    dt_placement *in, *out;
    for (int d = 0; d < nd - 2; d++) {
        bool head = d == nd - 3, apart = head && !heads_together(n, r, 1, gy->shape[d], hk);
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = in[5] = in[6] = DT_S(d);
        in[1] = along(n->in[1], nd, gy->shape[d], d, 2);
        for (int i = 2; i < 4 && !apart; i++) in[i] = along(n->in[i], nd, head ? hk : gy->shape[d], d, 2);
        if (mask) in[4] = along(mask, nd, gy->shape[d], d, 2);
        out[0] = DT_S(d);
        out[1] = out[2] = apart ? DT_P : DT_S(d);
    }
    for (int ring = 0; ring <= (a->context != DT_CONTEXT_NONE); ring++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = in[5] = in[6] = DT_S(nd - 2);
        in[1] = DT_S(n->in[1]->ndim - 2);
        if (ring) in[2] = DT_S(n->in[2]->ndim - 2), in[3] = DT_S(n->in[3]->ndim - 2);
        if (mask && mask->shape[mask->ndim - 2] != 1) in[4] = DT_S(mask->ndim - 2);
        out[0] = DT_S(nd - 2);
        out[1] = out[2] = ring ? DT_S(nd - 2) : DT_P;
    }
    return DT_OK;
}

/* ---- the same in plain ops: masks that want gradients, wide heads, gradients of gradients ---- */
/* Heads of k or v repeated so that they pair with q's. */
dt_tensor *dt_attention_spread(dt_scope *s, dt_tensor *k, int64_t group) {
    if (group == 1) return k;
    int nd = dt_ndim(k);
    int64_t wide[DT_MAX_DIM + 1], flat[DT_MAX_DIM];
    memcpy(flat, dt_shape(k), sizeof *flat * (size_t)nd);
    memcpy(wide, flat, sizeof *flat * (size_t)(nd - 2));
    wide[nd - 2] = group;
    wide[nd - 1] = flat[nd - 2];
    wide[nd] = flat[nd - 1];
    flat[nd - 3] *= group;
    return dt_reshape(s, dt_expand(s, dt_unsqueeze(s, k, -3), ((dt_dims){nd + 1, wide}), false), ((dt_dims){nd, flat}));
}

int64_t dt_attention_group(const dt_tensor *q, const dt_tensor *k) {
    int64_t hq = dt_ndim(q) > 2 ? dt_shape(q)[dt_ndim(q) - 3] : 1, hk = dt_ndim(k) > 2 ? dt_shape(k)[dt_ndim(k) - 3] : 1;
    return hk > 1 && hq != hk && hq % hk == 0 ? hq / hk : 1;
}

/* The weights (…, H, L, S); rows that see nothing are 0. */
dt_tensor *dt_attention_weights(dt_scope *s, dt_tensor *q, dt_tensor *k, dt_tensor *mask, bool causal, double scale) {
    if (!q || !k) return NULL;
    if (scale != scale) scale = 1 / sqrt((double)dt_shape(q)[dt_ndim(q) - 1]);
    dt_tensor *x = dt_gemm(s, dt_mul(s, q, scale), k, false, true), *seen = NULL;
    if (mask && dt_dtype_of(mask) != DT_bool)
        x = dt_add(s, x, mask);
    else if (mask)
        seen = mask;
    if (causal && x) seen = dt_tril(s, dt_ones_like(s, x, DT_bool), 0);
    if (seen) x = dt_where(s, seen, x, -INFINITY);
    if (!mask && !causal) return dt_softmax(s, x, -1, DT_DTYPE_NONE);
    dt_tensor *dead = dt_all(s, dt_eq(s, x, -INFINITY), DT_DIMS(-1), true);
    return dt_masked_fill(s, dt_softmax(s, dt_masked_fill(s, x, dead, 0.0), -1, DT_DTYPE_NONE), dead, 0.0);
}

/* ---- gradients ---- */
/* For gradients of gradients: the formulas in differentiable ops; whole L x S matrices. */
static void grad_composed(dt_grad *g, const dt_attention_attr *a) {
    dt_scope *s = g->s;
    dt_tensor *q = dt_grad_in(g, 0), *gy = dt_grad_gy(g, 0);
    int64_t group = dt_attention_group(q, dt_grad_in(g, 1));
    dt_tensor *k = dt_attention_spread(s, dt_grad_in(g, 1), group), *v = dt_attention_spread(s, dt_grad_in(g, 2), group);
    double scale = a->scale == a->scale ? a->scale : 1 / sqrt((double)dt_grad_in_meta(g, 0)->shape[dt_grad_in_meta(g, 0)->ndim - 1]);
    dt_tensor *p = dt_attention_weights(s, q, k, dt_grad_in(g, 3), a->is_causal, scale), *dp = dt_gemm(s, gy, v, false, true);
    dt_tensor *seen = p; /* the weights after dropout: the same draw as forward's */
    if (a->dropout > 0) {
        dt_value seed = dt_grad_scalar(g, 4), offset = dt_grad_scalar(g, 5);
        seen = dt__dropout_backward(s, p, a->dropout, seed, offset);
        dp = dt__dropout_backward(s, dp, a->dropout, seed, offset);
    }
    dt_tensor *delta = dt_sum(s, dt_mul(s, p, DT_V(dp)), DT_DIMS(-1), true, DT_DTYPE_NONE);
    dt_tensor *ds = dt_mul(s, dt_mul(s, p, DT_V(dt_sub(s, dp, DT_V(delta)))), scale);
    dt_tensor *gk = dt_gemm(s, ds, q, true, false), *gv = dt_gemm(s, seen, gy, true, false);
    dt_grad_set(g, 0, dt_matmul(s, ds, k));
    if (group > 1 && gk && gv) { /* sum over the query heads of each key head */
        dt_tensor **both[2] = {&gk, &gv};
        for (int i = 0; i < 2; i++) {
            int nd = dt_ndim(*both[i]);
            int64_t shape[DT_MAX_DIM + 1];
            memcpy(shape, dt_shape(*both[i]), sizeof *shape * (size_t)nd);
            shape[nd] = shape[nd - 1];
            shape[nd - 1] = shape[nd - 2];
            shape[nd - 2] = group;
            shape[nd - 3] /= group;
            *both[i] = dt_sum(s, dt_reshape(s, *both[i], ((dt_dims){nd + 1, shape})), DT_DIMS(-3), false, DT_DTYPE_NONE);
        }
    }
    dt_grad_set(g, 1, gk);
    dt_grad_set(g, 2, gv);
}

static void grad_attention(dt_grad *g) {
    const dt_attention_attr *a = dt_grad_attr(g);
    dt_tensor *gx[3];
    if (dt_higher_order()) {
        grad_composed(g, a);
        return;
    }
    dt_value seed = a->dropout > 0 ? dt_grad_scalar(g, 4) : DT_NOTHING, offset = a->dropout > 0 ? dt_grad_scalar(g, 5) : DT_NOTHING;
    if (dt_attention_backward(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 0), dt_grad_in(g, 1), dt_grad_in(g, 2), dt_grad_in(g, 3), dt_grad_out(g, 0),
                              dt_grad_out(g, 1), a->is_causal, a->scale, a->dropout, a->context, seed, offset, gx))
        return;
    for (int i = 0; i < 3; i++) dt_grad_set(g, i, gx[i]);
}

static double flops_attention(const dt_node *n) {
    const dt_attention_attr *a = n->attr;
    const dt_meta *q = n->in[0], *k = n->in[1];
    double rows = (double)dt_type_numel(&n->out[1]), S = (double)k->shape[k->ndim - 2];
    return 2 * rows * S * (double)(q->shape[q->ndim - 1] + n->out[0].shape[n->out[0].ndim - 1]) * (a->is_causal ? 0.5 : 1);
}

static double flops_backward(const dt_node *n) {
    const dt_attention_attr *a = n->attr;
    const dt_meta *gy = n->in[0], *k = n->in[2];
    double rows = (double)gy->numel / (double)(gy->shape[gy->ndim - 1] + 1), S = (double)k->shape[k->ndim - 2];
    return 2 * rows * S * (double)(3 * k->shape[k->ndim - 1] + 2 * gy->shape[gy->ndim - 1]) * (a->is_causal ? 0.5 : 1);
}

/* dq in the computing type and delta, one number a row. */
static size_t scratch_backward(const dt_kctx *c) {
    const dt_view *gy = &c->in[0];
    int64_t rows = 1;
    for (int d = 0; d < gy->ndim - 1; d++) rows *= gy->shape[d];
    return dt_attention_dq_bytes(rows, c->in[1].shape[c->in[1].ndim - 1], c->in[1].dtype) + (size_t)rows * (c->in[1].dtype == DT_float64 ? 8 : 4);
}

#define ATTRS                                                                                                                                     \
    DT_ATTRS(dt_attention_attr, DT_FIELD(dt_attention_attr, is_causal), DT_FIELD(dt_attention_attr, scale), DT_FIELD(dt_attention_attr, dropout), \
             DT_FIELD(dt_attention_attr, context))

const dt_op dt_op_attention = {
    .sig = "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale, float dropout=0.0, "
           "int context=0, Scalar? seed=None, Scalar? offset=None) -> (Tensor output, Tensor logsumexp)",
    .doc = "softmax(scale query key' + attn_mask) value and the logarithm of each row's softmax denominator. dropout: of the weights, drawn from seed "
           "and offset. context: 1, keys may stay sharded along the sequence; 2, and the devices of a causal mask share the work evenly.",
    .where = DT_HIDDEN,
    .attrs = ATTRS,
    .infer = infer_attention,
    .place = place_attention,
    .grad = grad_attention,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2) | DT_SAVE_IN(3) | DT_SAVE_OUT(0) | DT_SAVE_OUT(1),
    .flops = flops_attention,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_attention, 0, NULL}},
};

const dt_op dt_op_attention_backward = {
    .sig = "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor output, Tensor logsumexp, bool is_causal, "
           "float? scale, float dropout=0.0, int context=0, Scalar? seed=None, Scalar? offset=None) -> (Tensor query_grad, Tensor key_grad, Tensor value_grad)",
    .doc = "Gradients of attention.",
    .where = DT_HIDDEN,
    .attrs = ATTRS,
    .infer = infer_backward,
    .place = place_backward,
    .scratch = scratch_backward,
    .flops = flops_backward,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_attention_backward, 0, NULL}},
};

/* ---- steps over blocks of keys: made by the planner alone ---- */
static dt_status infer_step(dt_node *n) { return dt_fail(DT_E_NOTIMPL, "%s: is made by the planner, not called", dt_op_name(n->op)); }

const dt_op dt_op_attention_step = {
    .sig = "attention_step(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Scalar? seed, Scalar? offset) -> (Tensor output, Tensor logsumexp, "
           "Tensor wide)",
    .doc = "One block of keys of an attention over several; made by the planner.",
    .where = DT_HIDDEN,
    .attrs = {sizeof(dt_attention_attr), {{0}}},
    .infer = infer_step,
    .place = dt_place_replicate,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_attention_step, 0, NULL}},
};
const dt_op dt_op_attention_delta = {
    .sig = "attention_delta(Tensor grad, Tensor output) -> Tensor",
    .doc = "Sums of grad output along the last dimension; made by the planner.",
    .where = DT_HIDDEN,
    .infer = infer_step,
    .place = dt_place_replicate,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_attention_delta, 0, NULL}},
};
const dt_op dt_op_attention_backward_step = {
    .sig = "attention_backward_step(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor logsumexp, Tensor delta, Scalar? seed, "
           "Scalar? offset) -> (Tensor query_grad, Tensor gathered, Tensor key_grad, Tensor value_grad)",
    .doc = "The gradients of one block of keys of an attention over several; made by the planner.",
    .where = DT_HIDDEN,
    .attrs = {sizeof(dt_attention_attr), {{0}}},
    .infer = infer_step,
    .place = dt_place_replicate,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_attention_backward_step, 0, NULL}},
};
