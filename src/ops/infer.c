/* What shape inference of many ops shares: broadcasting, type promotion, reductions. See op.h. Client thread only. */
#include <string.h>

#include "ops/op.h"

static dt_dtype default_dtype = DT_float32;
dt_dtype dt_default_dtype(void) { return default_dtype; }
void dt_default_dtype_set(dt_dtype t) { default_dtype = t; }

dt_status dt_node_outs(dt_node *n, int n_out) {
    n->out = DT_ARENA_ARRAY(n->arena, dt_type, n_out ? n_out : 1);
    if (!n->out) return dt_fail(DT_E_NOMEM, "%s: out of host memory", dt_op_name(n->op));
    n->n_out = n_out;
    return DT_OK;
}

dt_status dt_broadcast(const char *op, dt_type *acc, const dt_meta *m) {
    int nd = acc->ndim > m->ndim ? acc->ndim : m->ndim;
    int64_t shape[DT_MAX_DIM];
    for (int i = 0; i < nd; i++) { /* from the last dimension */
        int64_t a = i < acc->ndim ? acc->shape[acc->ndim - 1 - i] : 1, b = i < m->ndim ? m->shape[m->ndim - 1 - i] : 1;
        if (a != b && a != 1 && b != 1)
            return dt_fail(DT_E_SHAPE, "%s: The size of tensor a (%lld) must match the size of tensor b (%lld) at non-singleton dimension %d", op, (long long)a,
                           (long long)b, nd - 1 - i);
        shape[nd - 1 - i] = a == 1 ? b : a;
    }
    acc->ndim = nd;
    memcpy(acc->shape, shape, (size_t)nd * sizeof *shape);
    return DT_OK;
}

/* The kind of an input for promotion: 3 tensor with dimensions, 2 zero-dim tensor, 1 number. */
static int priority(const dt_meta *m) { return m->wrapped ? 1 : m->ndim ? 3 : 2; }

dt_dtype dt_result_type(const dt_node *n, int first, int count) {
    dt_dtype best[4] = {DT_DTYPE_NONE, DT_DTYPE_NONE, DT_DTYPE_NONE, DT_DTYPE_NONE};
    for (int i = first; i < first + count; i++) {
        const dt_meta *m = n->in[i];
        if (!m) continue;
        int p = priority(m);
        dt_dtype t = (dt_dtype)m->dtype;
        if (m->wrapped && t == DT_float64) t = default_dtype; /* a Python float is of the default dtype */
        best[p] = best[p] == DT_DTYPE_NONE ? t : dt_dtype_promote(best[p], t);
    }
    dt_dtype r = DT_DTYPE_NONE;
    for (int p = 3; p >= 1; p--) { /* a lower priority counts only if its category is higher */
        if (best[p] == DT_DTYPE_NONE) continue;
        if (r == DT_DTYPE_NONE)
            r = best[p];
        else if (dt_dtype_categories[best[p]] > dt_dtype_categories[r])
            r = best[p];
    }
    return r;
}

static dt_status pointwise(dt_node *n, bool to_float, dt_dtype out) {
    dt_type *o = &n->out[0];
    *o = (dt_type){0};
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i]) DT_TRY(dt_broadcast(dt_op_name(n->op), o, n->in[i]));
    dt_dtype t = dt_result_type(n, 0, n->n_in);
    if (to_float && !dt_dtype_is_float(t)) t = default_dtype;
    for (int i = 0; i < n->n_in; i++) n->cast[i] = (uint8_t)t;
    o->dtype = out == DT_DTYPE_NONE ? t : out;
    return DT_OK;
}

dt_status dt_infer_pointwise(dt_node *n) { return pointwise(n, false, DT_DTYPE_NONE); }
dt_status dt_infer_pointwise_float(dt_node *n) { return pointwise(n, true, DT_DTYPE_NONE); }
dt_status dt_infer_compare(dt_node *n) { return pointwise(n, false, DT_bool); }

dt_status dt_infer_same(dt_node *n) {
    n->out[0] = dt_meta_type(n->in[0]);
    return DT_OK;
}

dt_status dt_infer_reduce(dt_node *n, dt_ints *dims, bool keepdim) {
    const dt_meta *m = n->in[0];
    uint32_t mask = 0;
    if (dims->n <= 0) {
        mask = m->ndim ? (1u << m->ndim) - 1 : 0;
        dims->n = m->ndim;
        for (int i = 0; i < m->ndim; i++) dims->v[i] = i;
    } else
        for (int i = 0; i < dims->n; i++) {
            DT_TRY(dt_dim_wrap(&dims->v[i], m->ndim));
            if (m->ndim == 0) continue;
            if (mask >> dims->v[i] & 1)
                return dt_fail(DT_E_SHAPE, "%s: dim %lld appears multiple times in the list of dims", dt_op_name(n->op), (long long)dims->v[i]);
            mask |= 1u << dims->v[i];
        }
    if (m->ndim == 0) dims->n = 0;
    dt_type *o = &n->out[0];
    *o = (dt_type){.dtype = (dt_dtype)m->dtype};
    for (int d = 0; d < m->ndim; d++)
        if (!(mask >> d & 1))
            o->shape[o->ndim++] = m->shape[d];
        else if (keepdim)
            o->shape[o->ndim++] = 1;
    return DT_OK;
}
