/* What the ops that move data share. See movement.h. */
#include "ops/movement.h"

void dt_slice_view(const dt_slice_attr *a, const dt_view *base, dt_view *out) {
    *out = *base;
    int64_t d = a->dim;
    out->data = base->data ? (char *)base->data + (size_t)(a->start * base->stride[d]) * dt_dtype_size(base->dtype) : NULL;
    out->shape[d] = (a->end - a->start + a->step - 1) / a->step;
    out->stride[d] = base->stride[d] * a->step;
}

void dt_diagonal_view(const dt_diagonal_attr *a, const dt_view *base, dt_view *out) {
    int k = 0;
    *out = (dt_view){.dtype = base->dtype, .ndim = base->ndim - 1};
    for (int d = 0; d < base->ndim; d++) {
        if (d == a->dim1 || d == a->dim2) continue;
        out->shape[k] = base->shape[d];
        out->stride[k++] = base->stride[d];
    }
    int64_t n1 = base->shape[a->dim1], n2 = base->shape[a->dim2], off = a->offset;
    int64_t len = off >= 0 ? (n1 < n2 - off ? n1 : n2 - off) : (n1 + off < n2 ? n1 + off : n2);
    out->shape[k] = len > 0 ? len : 0;
    out->stride[k] = base->stride[a->dim1] + base->stride[a->dim2];
    int64_t at = len <= 0 ? 0 : off >= 0 ? off * base->stride[a->dim2] : -off * base->stride[a->dim1];
    out->data = base->data ? (char *)base->data + (size_t)at * dt_dtype_size(base->dtype) : NULL;
}

void dt_strided_view(const dt_strided_attr *a, const dt_view *base, dt_view *out) {
    *out = (dt_view){.dtype = base->dtype, .ndim = a->size.n};
    for (int d = 0; d < a->size.n; d++) {
        out->shape[d] = a->size.v[d];
        out->stride[d] = a->stride.v[d];
    }
    out->data = base->data ? (char *)base->data + (size_t)a->storage_offset * dt_dtype_size(base->dtype) : NULL;
}

void dt_unfold_view(const dt_unfold_attr *a, const dt_view *base, dt_view *out) {
    *out = *base;
    int64_t d = a->dimension;
    if (base->ndim) {
        out->shape[d] = (base->shape[d] - a->size) / a->step + 1;
        out->stride[d] = base->stride[d] * a->step;
    }
    out->ndim = base->ndim + 1;
    out->shape[base->ndim] = a->size;
    out->stride[base->ndim] = base->ndim ? base->stride[d] : 1;
}

dt_status dt_move_rules(const dt_node *n, dt_rules *r, const int *map) {
    const dt_meta *m = n->in[0];
    for (int d = 0; d < m->ndim; d++) {
        if (map[d] < 0) continue;
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_S(d);
        for (int i = 1; i < n->n_in; i++) {
            const dt_meta *k = n->in[i];
            if (!k || k->wrapped) continue;
            if (k->ndim == m->ndim)
                in[i] = DT_S(d);
            else if (k->ndim == n->out[0].ndim)
                in[i] = DT_S(map[d]);
        }
        for (int i = 0; i < n->n_out; i++) out[i] = DT_S(map[d]);
    }
    return DT_OK;
}

dt_status dt_move_partial(const dt_node *n, dt_rules *r, int kinds) {
    static const dt_reduce kind[] = {DT_SUM, DT_AVG, DT_MAX, DT_MIN};
    for (int k = 0; k < kinds; k++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i] && !n->in[i]->wrapped) in[i] = DT_P_OF(kind[k]);
        for (int i = 0; i < n->n_out; i++) out[i] = DT_P_OF(kind[k]);
    }
    return DT_OK;
}
