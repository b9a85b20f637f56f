/* Scaled dot product attention: softmax(scale q k' + mask) v.
 *
 *   attention(q, k, v, mask)  the tiled primitive; gives y and logsumexp (hidden)
 *   attention_backward(…)     its gradient, which never holds an L x S matrix (hidden)
 *   scaled_dot_product_attention  PyTorch's function: the primitive, or a composition of plain ops where that is needed (dropout, a mask that
 *                             wants a gradient, very wide heads)
 *
 * q (…, H, L, D), k (…, Hk, S, D), v (…, Hk, S, E), mask broadcastable to (…, H, L, S) -> y (…, H, L, E), logsumexp (…, H, L). Batch dimensions
 * broadcast; H is a multiple of Hk, and H / Hk query heads share a key head.
 * Placements: batch and heads shard through; so does L of the queries (gradients of k and v are then Partial). */
#include "ops/attention.h"

#include <math.h>
#include <string.h>

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"

DT_CPU_KERNEL(attention);
DT_CPU_KERNEL(attention_backward);

enum { MAX_WIDTH = 512, MAX_GROUP = 64 }; /* the kernels keep blocks of this width on their stack */

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
    return DT_OK;
}

/* ---- placements ---- */
/* Output batch dimension d (of nd dimensions in all) in an operand whose last `tail` dimensions are not batch. */
static dt_placement along(const dt_meta *m, int nd, int64_t size, int d, int tail) {
    int k = d - (nd - 2 - (m->ndim - tail));
    return k >= 0 && k < m->ndim - tail && m->shape[k] == size ? DT_S(k) : DT_R;
}

static dt_status place_attention(const dt_node *n, dt_rules *r) {
    const dt_type *o = &n->out[0];
    const dt_meta *q = n->in[0], *k = n->in[1], *mask = n->in[3];
    int64_t hk = k->ndim > 2 ? k->shape[k->ndim - 3] : 1;
    dt_placement *in, *out;
    for (int d = 0; d < o->ndim - 2; d++) {
        bool head = d == o->ndim - 3, grouped = head && hk != o->shape[d];
        if (grouped && hk != 1 && !dt_rules_even(r, hk)) continue;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = along(q, o->ndim, o->shape[d], d, 2);
        for (int i = 1; i < 3; i++) in[i] = along(n->in[i], o->ndim, grouped ? hk : o->shape[d], d, 2);
        if (grouped && hk == 1) in[1] = in[2] = DT_R;
        if (mask) in[3] = along(mask, o->ndim, o->shape[d], d, 2);
        out[0] = out[1] = DT_S(d);
    }
    DT_TRY(dt_rule_add(r, &in, &out)); /* rows of the queries */
    in[0] = DT_S(q->ndim - 2);
    if (mask && mask->shape[mask->ndim - 2] != 1) in[3] = DT_S(mask->ndim - 2);
    out[0] = out[1] = DT_S(o->ndim - 2);
    return DT_OK;
}

static dt_status place_backward(const dt_node *n, dt_rules *r) {
    const dt_meta *gy = n->in[0], *mask = n->in[4];
    int nd = gy->ndim;
    int64_t hk = n->in[2]->ndim > 2 ? n->in[2]->shape[n->in[2]->ndim - 3] : 1;
    dt_placement *in, *out;
    for (int d = 0; d < nd - 2; d++) {
        bool grouped = d == nd - 3 && hk != gy->shape[d];
        if (grouped && hk != 1 && !dt_rules_even(r, hk)) continue;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = in[5] = in[6] = DT_S(d);
        in[1] = along(n->in[1], nd, gy->shape[d], d, 2);
        for (int i = 2; i < 4; i++) in[i] = grouped && hk == 1 ? DT_R : along(n->in[i], nd, grouped ? hk : gy->shape[d], d, 2);
        if (mask) in[4] = along(mask, nd, gy->shape[d], d, 2);
        out[0] = DT_S(d);
        out[1] = out[2] = grouped && hk == 1 ? DT_P : DT_S(d);
    }
    DT_TRY(dt_rule_add(r, &in, &out));
    in[0] = in[5] = in[6] = DT_S(nd - 2);
    in[1] = DT_S(n->in[1]->ndim - 2);
    if (mask && mask->shape[mask->ndim - 2] != 1) in[4] = DT_S(mask->ndim - 2);
    out[0] = DT_S(nd - 2);
    out[1] = out[2] = DT_P;
    return DT_OK;
}

/* ---- the same in plain ops: dropout, masks that want gradients, gradients of gradients ---- */
/* Heads of k or v repeated so that they pair with q's. */
static dt_tensor *spread_heads(dt_scope *s, dt_tensor *k, int64_t group) {
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

static int64_t group_of(const dt_tensor *q, const dt_tensor *k) {
    int64_t hq = dt_ndim(q) > 2 ? dt_shape(q)[dt_ndim(q) - 3] : 1, hk = dt_ndim(k) > 2 ? dt_shape(k)[dt_ndim(k) - 3] : 1;
    return hk > 1 && hq != hk && hq % hk == 0 ? hq / hk : 1;
}

/* The weights (…, H, L, S); rows that see nothing are 0. */
static dt_tensor *weights(dt_scope *s, dt_tensor *q, dt_tensor *k, dt_tensor *mask, bool causal, double scale) {
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
    int64_t group = group_of(q, dt_grad_in(g, 1));
    dt_tensor *k = spread_heads(s, dt_grad_in(g, 1), group), *v = spread_heads(s, dt_grad_in(g, 2), group);
    double scale = a->scale == a->scale ? a->scale : 1 / sqrt((double)dt_grad_in_meta(g, 0)->shape[dt_grad_in_meta(g, 0)->ndim - 1]);
    dt_tensor *p = weights(s, q, k, dt_grad_in(g, 3), a->is_causal, scale), *dp = dt_gemm(s, gy, v, false, true);
    dt_tensor *delta = dt_sum(s, dt_mul(s, p, dp), DT_DIMS(-1), true, DT_DTYPE_NONE);
    dt_tensor *ds = dt_mul(s, dt_mul(s, p, dt_sub(s, dp, delta)), scale);
    dt_tensor *gk = dt_gemm(s, ds, q, true, false), *gv = dt_gemm(s, p, gy, true, false);
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
    if (dt_attention_backward(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 0), dt_grad_in(g, 1), dt_grad_in(g, 2), dt_grad_in(g, 3), dt_grad_out(g, 0),
                              dt_grad_out(g, 1), a->is_causal, a->scale, gx))
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

/* dq in the computing type, rows padded to 16, and delta, one number a row. */
static size_t scratch_backward(const dt_kctx *c) {
    const dt_view *gy = &c->in[0];
    size_t rows = 1, size = c->in[1].dtype == DT_float64 ? 8 : 4;
    for (int d = 0; d < gy->ndim - 1; d++) rows *= (size_t)gy->shape[d];
    size_t dq = rows * (size_t)((c->in[1].shape[c->in[1].ndim - 1] + 15) / 16 * 16) * size;
    return (dq + 63) / 64 * 64 + rows * size;
}

const dt_op dt_op_attention = {
    .sig = "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale) -> (Tensor output, Tensor logsumexp)",
    .doc = "softmax(scale query key' + attn_mask) value and the logarithm of each row's softmax denominator.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_attention_attr, DT_FIELD(dt_attention_attr, is_causal), DT_FIELD(dt_attention_attr, scale)),
    .infer = infer_attention,
    .place = place_attention,
    .grad = grad_attention,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2) | DT_SAVE_IN(3) | DT_SAVE_OUT(0) | DT_SAVE_OUT(1),
    .flops = flops_attention,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_attention, 0, NULL}},
};

const dt_op dt_op_attention_backward = {
    .sig = "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor output, Tensor logsumexp, bool is_causal, "
           "float? scale) -> (Tensor query_grad, Tensor key_grad, Tensor value_grad)",
    .doc = "Gradients of attention.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_attention_attr, DT_FIELD(dt_attention_attr, is_causal), DT_FIELD(dt_attention_attr, scale)),
    .infer = infer_backward,
    .place = place_backward,
    .scratch = scratch_backward,
    .flops = flops_backward,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_attention_backward, 0, NULL}},
};

/* ---- PyTorch's function ---- */
enum { A_QUERY, A_KEY, A_VALUE, A_MASK, A_DROPOUT, A_CAUSAL, A_SCALE, A_GQA };

/* What the primitive cannot do. */
static bool exotic(dt_tensor *q, dt_tensor *k, dt_tensor *v, dt_tensor *mask, double dropout) {
    if (dropout > 0 || (mask && dt_requires_grad(mask))) return true;
    if (dt_ndim(q) < 2 || dt_ndim(v) < 2) return false; /* its error is the clearest */
    int64_t D = dt_shape(q)[dt_ndim(q) - 1], E = dt_shape(v)[dt_ndim(v) - 1];
    if (D < 1 || E < 1 || D > MAX_WIDTH || E > MAX_WIDTH) return true;
    int64_t hk = dt_ndim(k) > 2 ? dt_shape(k)[dt_ndim(k) - 3] : 1, hv = dt_ndim(v) > 2 ? dt_shape(v)[dt_ndim(v) - 3] : 1;
    return hk != hv || (dt_ndim(q) > 2 && hk && dt_shape(q)[dt_ndim(q) - 3] / hk > MAX_GROUP);
}

static void compose_sdpa(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *q = dt_arg_get_tensor(a, A_QUERY), *k = dt_arg_get_tensor(a, A_KEY), *v = dt_arg_get_tensor(a, A_VALUE), *mask = dt_arg_get_tensor(a, A_MASK);
    bool causal = dt_arg_get_bool(a, A_CAUSAL, false);
    double scale = dt_arg_get_float(a, A_SCALE, NAN), dropout = dt_arg_get_float(a, A_DROPOUT, 0);
    *n_out = 1;
    if (mask && causal) {
        dt_scope_fail(s, dt_fail(DT_E_STATE, "scaled_dot_product_attention: is_causal=True takes no attn_mask; state one of them"));
        return;
    }
    if (!exotic(q, k, v, mask, dropout)) {
        dt_tensor *both[2];
        if (!dt_attention(s, q, k, v, mask, causal, scale, both)) out[0] = dt_keep(both[0]);
        return;
    }
    int64_t group = group_of(q, k);
    dt_tensor *p = weights(s, q, spread_heads(s, k, group), mask, causal, scale);
    if (dropout > 0) p = dt_dropout(s, p, dropout, true);
    out[0] = dt_keep(dt_matmul(s, p, spread_heads(s, v, group)));
}

const dt_op dt_op_scaled_dot_product_attention = {
    .sig = "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, "
           "*, float? scale=None, bool enable_gqa=False) -> Tensor",
    .doc = "softmax(scale query key' + attn_mask) value, computed in tiles: memory grows with the sequence, not with its square. query (…, H, L, D), "
           "key (…, H, S, D), value (…, H, S, E) -> (…, H, L, E). A bool attn_mask is True where a key is seen; a float one is added. scale defaults to "
           "1 / sqrt(D). enable_gqa lets key and value have fewer heads. A row that sees no key gives 0. RuntimeError if shapes or dtypes do not fit.",
    .where = DT_NN,
    .compose = compose_sdpa,
};
