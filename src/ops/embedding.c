/* Embedding: rows of a table by index, and the dense gradient of the table.
 *
 * With the table sharded by rows each device looks up the rows it holds and gives zeros for others: the result is Partial(sum). The gradient
 * then comes back sharded by rows too. The gradient is summed row by row in the order of the indices: the same on every run and team. */
#include <string.h>

#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

DT_CPU_KERNEL(embedding);
DT_CPU_KERNEL(embedding_backward);
size_t dt_cpu_embedding_backward_scratch(const dt_kctx *c);

static dt_status index_dtype(const char *name, const dt_meta *m) {
    if (m->dtype == DT_int64 || m->dtype == DT_int32) return DT_OK;
    return dt_fail(DT_E_DTYPE, "%s: Expected tensor for argument 'indices' to have one of the following scalar types: Long, Int; but got %s instead", name,
                   dt_dtype_name((dt_dtype)m->dtype));
}
static dt_status infer_embedding(dt_node *n) {
    dt_embedding_attr *a = n->attr;
    const dt_meta *x = n->in[0], *w = n->in[1];
    DT_TRY(index_dtype("embedding", x));
    if (w->ndim != 2) return dt_fail(DT_E_SHAPE, "'weight' must be 2-D, got %d-D", w->ndim);
    if (a->max_norm == a->max_norm) return dt_fail(DT_E_NOTIMPL, "embedding: max_norm=%g is not supported: renormalise the table yourself", a->max_norm);
    if (a->sparse) return dt_fail(DT_E_NOTIMPL, "embedding: sparse=True is not supported: gradients are dense");
    if (a->padding_idx != DT_NO_INT) {
        if (a->padding_idx < -w->shape[0] || a->padding_idx >= w->shape[0])
            return dt_fail(DT_E_VALUE, "embedding: padding_idx must be within num_embeddings: got %lld for %lld rows", (long long)a->padding_idx,
                           (long long)w->shape[0]);
        if (a->padding_idx < 0) a->padding_idx += w->shape[0];
    }
    n->out[0] = dt_meta_type(x);
    n->out[0].dtype = (dt_dtype)w->dtype;
    if (x->ndim == DT_MAX_DIM) return dt_fail(DT_E_VALUE, "embedding: more than %d dimensions", DT_MAX_DIM);
    n->out[0].shape[n->out[0].ndim++] = w->shape[1];
    return DT_OK;
}
static dt_status place_embedding(const dt_node *n, dt_rules *r) {
    dt_placement *in, *out;
    for (int d = 0; d < n->in[0]->ndim; d++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = out[0] = DT_S(d);
    }
    DT_TRY(dt_rule_add(r, &in, &out));
    in[1] = DT_S(1);
    out[0] = DT_S(n->in[0]->ndim);
    DT_TRY(dt_rule_add(r, &in, &out));
    in[1] = DT_S(0);
    out[0] = DT_P;
    DT_TRY(dt_rule_add(r, &in, &out));
    in[1] = out[0] = DT_P;
    return DT_OK;
}
/* Bit k: the table was sharded by rows along mesh dimension k. */
static int64_t row_shards(const dt_meta *w) {
    int64_t mask = 0;
    for (int k = 0; w->mesh && k < w->mesh->ndim; k++)
        if (w->place[k].kind == DT_SHARD && w->place[k].dim == 0) mask |= (int64_t)1 << k;
    return mask;
}
static void grad_embedding(dt_grad *g) {
    const dt_embedding_attr *a = dt_grad_attr(g);
    const dt_meta *w = dt_grad_in_meta(g, 1);
    if (!dt_grad_needs(g, 1)) return;
    dt_grad_set(g, 1,
                dt_embedding_backward(g->s, dt_grad_gy(g, 0), dt_grad_in(g, 0), w->shape[0], a->padding_idx == DT_NO_INT ? -1 : a->padding_idx,
                                      a->scale_grad_by_freq, row_shards(w)));
}
const dt_op dt_op_embedding = {
    .sig = "embedding(Tensor input, Tensor weight, int? padding_idx=None, float? max_norm=None, float norm_type=2.0, bool scale_grad_by_freq=False, "
           "bool sparse=False) -> Tensor",
    .doc = "Rows of weight (V, D) at input (…) -> (…, D). Rows at padding_idx get no gradient; scale_grad_by_freq divides a row's gradient by how often "
           "it was used. Errors, at the next use of a value: an index outside [0, V).",
    .where = DT_NN,
    .attrs = DT_ATTRS(dt_embedding_attr, DT_FIELD(dt_embedding_attr, padding_idx), DT_FIELD(dt_embedding_attr, max_norm),
                      DT_FIELD(dt_embedding_attr, norm_type), DT_FIELD(dt_embedding_attr, scale_grad_by_freq), DT_FIELD(dt_embedding_attr, sparse)),
    .infer = infer_embedding,
    .place = place_embedding,
    .grad = grad_embedding,
    .saves = DT_SAVE_IN(0),
    .kernels = {{DT_CPU, DT_INTS_MASK, dt_cpu_embedding}},
};

static dt_status infer_embedding_backward(dt_node *n) {
    const dt_embedding_attr *a = n->attr;
    const dt_meta *gy = n->in[0];
    DT_TRY(index_dtype("embedding_backward", n->in[1]));
    n->out[0] = (dt_type){(dt_dtype)gy->dtype, 2, {a->num_weights, gy->shape[gy->ndim - 1]}};
    return DT_OK;
}
static dt_status place_embedding_backward(const dt_node *n, dt_rules *r) {
    const dt_embedding_attr *a = n->attr;
    dt_placement *in, *out;
    for (int d = 0; d < n->in[1]->ndim && !a->scale_grad_by_freq; d++) {
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = in[1] = DT_S(d);
        out[0] = DT_P;
    }
    DT_TRY(dt_rule_add(r, &in, &out));
    in[0] = DT_S(n->in[1]->ndim);
    out[0] = DT_S(1);
    DT_TRY(dt_rule_add(r, &in, &out));
    in[0] = out[0] = DT_P;
    if (a->row_shards >> r->mesh_dim & 1) { /* only for a table that is sharded so: a replicated one shall get a replicated gradient */
        DT_TRY(dt_rule_add(r, &in, &out));
        out[0] = DT_S(0);
    }
    return DT_OK;
}
/* Linear in grad_output: its gradient is a look-up, without the padding row, scaled alike. */
static void grad_embedding_backward(dt_grad *g) {
    const dt_embedding_attr *a = dt_grad_attr(g);
    dt_tensor *table = dt_grad_gy(g, 0), *index = dt_grad_in(g, 1);
    if (a->padding_idx >= 0) table = dt_slice_scatter(g->s, table, 0.0, 0, a->padding_idx, a->padding_idx + 1, 1);
    if (a->scale_grad_by_freq) {
        dt_scope_fail(g->s, dt_fail(DT_E_NOTIMPL, "embedding: no second derivative with scale_grad_by_freq"));
        return;
    }
    dt_grad_set(g, 0, dt_embedding(g->s, index, table, DT_NO_INT, __builtin_nan(""), 2.0, false, false));
}
const dt_op dt_op_embedding_backward = {
    .sig = "embedding_backward(Tensor grad_output, Tensor indices, int num_weights, int padding_idx, bool scale_grad_by_freq, int row_shards=0) -> Tensor",
    .doc = "The gradient of embedding's table: rows of grad_output summed at indices.",
    .where = DT_HIDDEN,
    .attrs = DT_ATTRS(dt_embedding_attr, DT_FIELD(dt_embedding_attr, num_weights), DT_FIELD(dt_embedding_attr, padding_idx),
                      DT_FIELD(dt_embedding_attr, scale_grad_by_freq), DT_FIELD(dt_embedding_attr, row_shards)),
    .infer = infer_embedding_backward,
    .place = place_embedding_backward,
    .grad = grad_embedding_backward,
    .saves = DT_SAVE_IN(1),
    .scratch = dt_cpu_embedding_backward_scratch,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_embedding_backward}},
};
