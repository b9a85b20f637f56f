/* Matrix products.
 *
 *   matmul(a, b)            any ranks, batch dimensions broadcast
 *   gemm(a, b, ta, tb)      the same with either operand's last two dimensions exchanged: what gradients are made of, so that they need no
 *                           transposed views (hidden)
 *   linear(x, w, bias)      x w' + bias
 *   outer_sum(a, b)         (…, p), (…, q) -> (p, q), summed over all leading dimensions: gradients of shared weights (hidden)
 *   dot(a, b)               two vectors
 *
 * Placements: a sharded batch or free dimension stays sharded; a sharded summed dimension makes a Partial; the product is linear in each operand,
 * so Partial goes through one of them if the other is replicated. linear's bias is asked for as a Partial where the result is one, so it is
 * added once (Replicate to Partial needs no communication). */
#include "ops/matmul.h"

#include <string.h>

#include "dtorch_ops.h"
#include "ops/grad.h"

DT_CPU_KERNEL(matmul);
DT_CPU_KERNEL(gemm);
DT_CPU_KERNEL(linear);
DT_CPU_KERNEL(outer_sum);
DT_CPU_KERNEL(dot);

/* ---- inference ---- */
static dt_status check_dtypes(const dt_node *n) {
    const char *name = dt_op_name(n->op);
    dt_dtype t = (dt_dtype)n->in[0]->dtype;
    for (int i = 1; i < n->n_in; i++)
        if (n->in[i] && n->in[i]->dtype != t)
            return dt_fail(DT_E_DTYPE, "%s: expected operands of the same dtype, but got %s and %s", name, dt_dtype_name(t),
                           dt_dtype_name((dt_dtype)n->in[i]->dtype));
    if (t == DT_bool) return dt_fail(DT_E_DTYPE, "%s: not implemented for 'Bool'; cast the operands first", name);
    return DT_OK;
}

static dt_status mismatch(const dt_node *n, int64_t m, int64_t k, int64_t k2, int64_t p) {
    return dt_fail(DT_E_SHAPE, "%s: mat1 and mat2 shapes cannot be multiplied (%lldx%lld and %lldx%lld)", dt_op_name(n->op), (long long)m, (long long)k,
                   (long long)k2, (long long)p);
}

static dt_status infer_product(dt_node *n, bool ta, bool tb) {
    const dt_meta *a = n->in[0], *b = n->in[1];
    DT_TRY(check_dtypes(n));
    if (!a->ndim || !b->ndim)
        return dt_fail(DT_E_SHAPE, "%s: both arguments to matmul need to be at least 1D, but they are %dD and %dD", dt_op_name(n->op), a->ndim, b->ndim);
    const int64_t *as = a->shape + a->ndim - 2, *bs = b->shape + b->ndim - 2;
    bool a1 = a->ndim == 1, b1 = b->ndim == 1;
    int64_t m = a1 ? 1 : as[ta], k = a1 ? a->shape[0] : as[!ta], kb = b1 ? b->shape[0] : bs[tb], p = b1 ? 1 : bs[!tb];
    if (k != kb) return mismatch(n, m, k, kb, p);
    dt_type batch = {(dt_dtype)a->dtype, a1 ? 0 : a->ndim - 2, {0}};
    memcpy(batch.shape, a->shape, sizeof(int64_t) * (size_t)batch.ndim);
    dt_meta other = *b;
    other.ndim = (uint8_t)(b1 ? 0 : b->ndim - 2);
    DT_TRY(dt_broadcast(dt_op_name(n->op), &batch, &other));
    if (batch.ndim + !a1 + !b1 > DT_MAX_DIM) return dt_fail(DT_E_SHAPE, "%s: at most %d dimensions", dt_op_name(n->op), DT_MAX_DIM);
    if (!a1) batch.shape[batch.ndim++] = m;
    if (!b1) batch.shape[batch.ndim++] = p;
    n->out[0] = batch;
    return DT_OK;
}

static dt_status infer_matmul(dt_node *n) { return infer_product(n, false, false); }
static dt_status infer_gemm(dt_node *n) {
    const dt_gemm_attr *a = n->attr;
    if (n->in[0]->ndim < 2 || n->in[1]->ndim < 2) return dt_fail(DT_E_SHAPE, "gemm: expected matrices, got %dD and %dD", n->in[0]->ndim, n->in[1]->ndim);
    return infer_product(n, a->ta, a->tb);
}

static double flops_of(const dt_node *n, int64_t k) { return 2.0 * (double)dt_type_numel(&n->out[0]) * (double)k; }
static double flops_matmul(const dt_node *n) { return flops_of(n, n->in[0]->shape[n->in[0]->ndim - 1]); }
static double flops_gemm(const dt_node *n) {
    const dt_gemm_attr *a = n->attr;
    return flops_of(n, n->in[0]->shape[n->in[0]->ndim - 1 - a->ta]);
}

/* ---- placement ---- */
static dt_status rule(dt_rules *r, dt_placement a, dt_placement b, dt_placement o) {
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    in[0] = a;
    in[1] = b;
    out[0] = o;
    return DT_OK;
}

/* The product is linear in each of its two operands. */
static dt_status rules_bilinear(dt_rules *r) {
    static const dt_reduce kinds[] = {DT_SUM, DT_AVG};
    for (int i = 0; i < 2; i++) {
        DT_TRY(rule(r, DT_P_OF(kinds[i]), DT_R, DT_P_OF(kinds[i])));
        DT_TRY(rule(r, DT_R, DT_P_OF(kinds[i]), DT_P_OF(kinds[i])));
    }
    return DT_OK;
}

/* How output batch dimension d lies in an operand of rank >= 2. */
static dt_placement batch_shard(const dt_meta *m, int nb, int64_t size, int d) {
    int k = d - (nb - (m->ndim - 2));
    return m->ndim >= 2 && k >= 0 && m->shape[k] == size ? DT_S(k) : DT_R;
}

static dt_status place_product(const dt_node *n, dt_rules *r, bool ta, bool tb) {
    const dt_meta *a = n->in[0], *b = n->in[1];
    const dt_type *o = &n->out[0];
    bool a1 = a->ndim == 1, b1 = b->ndim == 1;
    int nb = o->ndim - !a1 - !b1;
    for (int d = 0; d < nb; d++) DT_TRY(rule(r, batch_shard(a, nb, o->shape[d], d), batch_shard(b, nb, o->shape[d], d), DT_S(d)));
    if (!a1) DT_TRY(rule(r, DT_S(a->ndim - 2 + ta), DT_R, DT_S(nb)));
    if (!b1) DT_TRY(rule(r, DT_R, DT_S(b->ndim - 1 - tb), DT_S(o->ndim - 1)));
    DT_TRY(rule(r, DT_S(a1 ? 0 : a->ndim - 1 - ta), DT_S(b1 ? 0 : b->ndim - 2 + tb), DT_P));
    return rules_bilinear(r);
}

static dt_status place_matmul(const dt_node *n, dt_rules *r) { return place_product(n, r, false, false); }
static dt_status place_gemm(const dt_node *n, dt_rules *r) {
    const dt_gemm_attr *a = n->attr;
    return place_product(n, r, a->ta, a->tb);
}

/* ---- gradients ---- */
/* op(a) op(b): the gradients of a and b for matrices of any rank >= 2. */
static void grad_product(dt_grad *g, bool ta, bool tb) {
    dt_tensor *gy = dt_grad_gy(g, 0), *a = dt_grad_in(g, 0), *b = dt_grad_in(g, 1);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, ta ? dt_gemm(g->s, b, gy, tb, true) : dt_gemm(g->s, gy, b, false, !tb));
    if (!dt_grad_needs(g, 1)) return;
    bool shared = dt_grad_in_meta(g, 1)->ndim == 2 && dt_grad_in_meta(g, 0)->ndim > 2; /* one b for a batch: sum as part of the product */
    if (shared && !ta)
        dt_grad_set_outer(g, 1, tb ? gy : a, tb ? a : gy);
    else
        dt_grad_set(g, 1, tb ? dt_gemm(g->s, gy, a, true, ta) : dt_gemm(g->s, a, gy, !ta, false));
}

/* Of two vectors: gy () times each. */
static void grad_vectors(dt_grad *g) {
    dt_tensor *gy = dt_unsqueeze(g->s, dt_grad_gy(g, 0), 0);
    for (int i = 0; i < 2; i++)
        if (dt_grad_needs(g, i)) dt_grad_set(g, i, dt_matmul(g->s, dt_unsqueeze(g->s, dt_grad_in(g, 1 - i), 1), gy));
}

static void grad_matmul(dt_grad *g) {
    int na = dt_grad_in_meta(g, 0)->ndim, nb = dt_grad_in_meta(g, 1)->ndim;
    if (na >= 2 && nb >= 2) {
        grad_product(g, false, false);
        return;
    }
    if (na == 1 && nb == 1) {
        grad_vectors(g);
        return;
    }
    dt_tensor *gy = dt_grad_gy(g, 0), *a = dt_grad_in(g, 0), *b = dt_grad_in(g, 1), *col = dt_unsqueeze(g->s, gy, -1);
    if (nb == 1) { /* (…, m, k), (k) -> (…, m) */
        if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_matmul(g->s, col, dt_unsqueeze(g->s, b, 0)));
        if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_squeeze(g->s, dt_outer_sum(g->s, a, col), DT_DIMS(1)));
    } else { /* (k), (…, k, n) -> (…, n) */
        if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_squeeze(g->s, dt_matmul(g->s, b, col), DT_DIMS(-1)));
        if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_matmul(g->s, dt_unsqueeze(g->s, a, -1), dt_unsqueeze(g->s, gy, -2)));
    }
}

static void grad_gemm(dt_grad *g) {
    const dt_gemm_attr *a = dt_grad_attr(g);
    grad_product(g, a->ta, a->tb);
}

const dt_op dt_op_matmul = {
    .sig = "matmul(Tensor input, Tensor other) -> Tensor",
    .doc = "Matrix product. 1-D operands are a row (left) or a column (right) that is dropped again; dimensions before the last two are a batch and "
           "broadcast. (…, m, k), (…, k, n) -> (…, m, n). RuntimeError if the inner sizes or the dtypes differ.",
    .also = "__matmul__",
    .where = DT_FN | DT_METHOD,
    .flags = DT_F_STRIDED | DT_F_BILINEAR,
    .infer = infer_matmul,
    .place = place_matmul,
    .grad = grad_matmul,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .flops = flops_matmul,
    .kernels = {{DT_CPU, DT_FLOATS | DT_INTS_MASK, dt_cpu_matmul, 0, NULL}},
};

const dt_op dt_op_gemm = {
    .sig = "gemm(Tensor input, Tensor other, bool ta, bool tb) -> Tensor",
    .doc = "Matrix product of a, b, their last two dimensions exchanged where ta, tb say so; batch dimensions broadcast.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_gemm_attr, DT_FIELD(dt_gemm_attr, ta), DT_FIELD(dt_gemm_attr, tb)),
    .flags = DT_F_STRIDED | DT_F_BILINEAR,
    .infer = infer_gemm,
    .place = place_gemm,
    .grad = grad_gemm,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .flops = flops_gemm,
    .kernels = {{DT_CPU, DT_FLOATS | DT_INTS_MASK, dt_cpu_gemm, 0, NULL}},
};

/* ---- outer_sum ---- */
static dt_status infer_outer_sum(dt_node *n) {
    const dt_meta *a = n->in[0], *b = n->in[1];
    DT_TRY(check_dtypes(n));
    bool same = a->ndim == b->ndim && a->ndim >= 1;
    for (int d = 0; same && d < a->ndim - 1; d++) same = a->shape[d] == b->shape[d];
    if (!same) return dt_fail(DT_E_SHAPE, "outer_sum: expected the same leading dimensions, got %d and %d dimensions", a->ndim, b->ndim);
    n->out[0] = (dt_type){(dt_dtype)a->dtype, 2, {a->shape[a->ndim - 1], b->shape[b->ndim - 1]}};
    return DT_OK;
}

static dt_status place_outer_sum(const dt_node *n, dt_rules *r) {
    int last = n->in[0]->ndim - 1;
    for (int d = 0; d < last; d++) DT_TRY(rule(r, DT_S(d), DT_S(d), DT_P));
    DT_TRY(rule(r, DT_S(last), DT_R, DT_S(0)));
    DT_TRY(rule(r, DT_R, DT_S(last), DT_S(1)));
    return rules_bilinear(r);
}

static void grad_outer_sum(dt_grad *g) { /* gy (p, q) */
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_linear(g->s, dt_grad_in(g, 1), gy, NULL));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt_matmul(g->s, dt_grad_in(g, 0), gy));
}

static double flops_outer_sum(const dt_node *n) { return 2.0 * (double)n->in[0]->numel * (double)n->out[0].shape[1]; }

const dt_op dt_op_outer_sum = {
    .sig = "outer_sum(Tensor input, Tensor other) -> Tensor",
    .doc = "Sum over all leading dimensions of the outer products of rows: (…, p), (…, q) -> (p, q).",
    .where = DT_HIDDEN,
    .flags = DT_F_STRIDED | DT_F_BILINEAR,
    .infer = infer_outer_sum,
    .place = place_outer_sum,
    .grad = grad_outer_sum,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .flops = flops_outer_sum,
    .kernels = {{DT_CPU, DT_FLOATS | DT_INTS_MASK, dt_cpu_outer_sum, 0, NULL}},
};

/* ---- linear ---- */
static dt_status infer_linear(dt_node *n) {
    const dt_meta *x = n->in[0], *w = n->in[1], *b = n->in[2];
    DT_TRY(check_dtypes(n));
    if (!x->ndim) return dt_fail(DT_E_SHAPE, "linear: input must have at least 1 dimension, got a scalar");
    if (w->ndim != 2) return dt_fail(DT_E_SHAPE, "linear: weight must be 2D (out_features, in_features), got %dD", w->ndim);
    int64_t k = x->shape[x->ndim - 1];
    if (k != w->shape[1]) return mismatch(n, x->numel / (k ? k : 1), k, w->shape[1], w->shape[0]);
    if (b && (b->ndim != 1 || b->shape[0] != w->shape[0])) {
        DT_STR(text, 96);
        dt_shape_print(b->ndim, b->shape, &text);
        return dt_fail(DT_E_SHAPE, "linear: bias must have shape (%lld,), got %s", (long long)w->shape[0], text.buf);
    }
    n->out[0] = dt_meta_type(x);
    n->out[0].shape[x->ndim - 1] = w->shape[0];
    return DT_OK;
}

static dt_status rule3(dt_rules *r, dt_placement x, dt_placement w, dt_placement b, dt_placement o) {
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    in[0] = x;
    in[1] = w;
    if (r->n_in > 2) in[2] = b;
    out[0] = o;
    return DT_OK;
}

static dt_status place_linear(const dt_node *n, dt_rules *r) {
    int last = n->in[0]->ndim - 1;
    bool bias = n->in[2] != NULL;
    for (int d = 0; d < last; d++) DT_TRY(rule3(r, DT_S(d), DT_R, DT_R, DT_S(d)));
    DT_TRY(rule3(r, DT_R, DT_S(0), bias ? DT_S(0) : DT_R, DT_S(last)));
    dt_placement b = bias ? DT_P : DT_R;
    DT_TRY(rule3(r, DT_S(last), DT_S(1), b, DT_P));
    DT_TRY(rule3(r, DT_P, DT_R, b, DT_P));
    return rule3(r, DT_R, DT_P, b, DT_P);
}

static void grad_linear(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0);
    if (dt_grad_needs(g, 2)) { /* before the products: what made gy may sum it while it is in the cache (passes/fuse.c) */
        int64_t dims[DT_MAX_DIM];
        int n = dt_ndim(gy) - 1;
        for (int d = 0; d < n; d++) dims[d] = d;
        dt_grad_set(g, 2, n ? dt_sum(g->s, gy, (dt_dims){n, dims}, false, DT_DTYPE_NONE) : gy);
    }
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt_matmul(g->s, gy, dt_grad_in(g, 1)));
    if (dt_grad_needs(g, 1)) dt_grad_set_outer(g, 1, gy, dt_grad_in(g, 0));
}

const dt_op dt_op_linear = {
    .sig = "linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
    .doc = "y = input weight' + bias. input (…, in_features), weight (out_features, in_features), bias (out_features,) -> (…, out_features). "
           "RuntimeError if sizes or dtypes do not fit.",
    .where = DT_NN,
    .flags = DT_F_STRIDED | DT_F_BILINEAR,
    .infer = infer_linear,
    .place = place_linear,
    .grad = grad_linear,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .flops = flops_matmul,
    .kernels = {{DT_CPU, DT_FLOATS | DT_INTS_MASK, dt_cpu_linear, 0, NULL}},
};

/* ---- dot ---- */
static dt_status infer_dot(dt_node *n) {
    const dt_meta *a = n->in[0], *b = n->in[1];
    DT_TRY(check_dtypes(n));
    if (a->ndim != 1 || b->ndim != 1) return dt_fail(DT_E_SHAPE, "dot: 1D tensors expected, but got %dD and %dD tensors", a->ndim, b->ndim);
    if (a->shape[0] != b->shape[0])
        return dt_fail(DT_E_SHAPE, "dot: inconsistent tensor size, expected tensor [%lld] and src [%lld] to have the same number of elements",
                       (long long)a->shape[0], (long long)b->shape[0]);
    n->out[0] = (dt_type){(dt_dtype)a->dtype, 0, {0}};
    return DT_OK;
}

static dt_status place_dot(const dt_node *n, dt_rules *r) {
    DT_TRY(rule(r, DT_S(0), DT_S(0), DT_P));
    return rules_bilinear(r);
}

const dt_op dt_op_dot = {
    .sig = "dot(Tensor input, Tensor tensor) -> Tensor",
    .doc = "Sum of the products of two vectors of equal length: (n,), (n,) -> (). RuntimeError otherwise.",
    .also = "vdot",
    .where = DT_FN | DT_METHOD,
    .flags = DT_F_STRIDED | DT_F_BILINEAR,
    .infer = infer_dot,
    .place = place_dot,
    .grad = grad_vectors,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1),
    .kernels = {{DT_CPU, DT_FLOATS | DT_INTS_MASK, dt_cpu_dot, 0, NULL}},
};
