/* In-place calls and copy_: PyTorch's rules on what may be written, then the out-of-place call, then the handle takes the result. */
#include "client/internal.h"

static dt_status check_view(const dt_tensor *t) {
    const dt_view_step *s = t->chain;
    if (s->call->n_out > 1 || dt_op_get_info(s->call->op)->n_returns < 0)
        return dt_fail(DT_E_GRAD,
                       "Output %d of %s is a view and is being modified inplace. This view is the output of a function that returns "
                       "multiple views. Such "
                       "functions do not allow the output views to be modified inplace. You should replace the inplace operation by an "
                       "out-of-place one.",
                       s->out_index, t->grad_fn ? dt_grad_node_name(t->grad_fn) : dt_op_name(s->call->op));
    for (; s; s = s->prev)
        if (s->no_grad)
            return dt_fail(DT_E_GRAD, "A view was created in no_grad mode and is being modified inplace with grad mode enabled. Given that this use "
                                      "case is ambiguous "
                                      "and error-prone, it is forbidden. You can clarify your code by moving both the view and the inplace either "
                                      "both inside the no_grad "
                                      "block (if you don't want the inplace to be tracked) or both outside (if you want the inplace to be tracked).");
    return DT_OK;
}

dt_status dt_inplace_check(dt_tensor *t) {
    DT_TRY(dt_tensor_fresh(t));
    if (t->cell->inference && !dt_m.inference)
        return dt_fail(DT_E_GRAD, "Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get a normal tensor before "
                                  "doing inplace update.");
    if (!dt_recording()) return DT_OK;
    bool wants = dt_tensor_wants_grad(t);
    if (t->is_view && t->cell->requires_grad) {
        if (!t->cell->grad_fn) return dt_fail(DT_E_GRAD, "a view of a leaf Variable that requires grad is being used in an in-place operation.");
        return check_view(t);
    }
    if (wants && dt_tensor_is_leaf(t)) return dt_fail(DT_E_GRAD, "a leaf Variable that requires grad is being used in an in-place operation.");
    return DT_OK;
}

static dt_status check_result(const dt_op *op, const dt_meta *self, const dt_meta *r) {
    if (!dt_meta_same_shape(self, r)) {
        DT_STR(a, 200);
        DT_STR(b, 200);
        dt_shape_print(self->ndim, self->shape, &a);
        dt_shape_print(r->ndim, r->shape, &b);
        return dt_fail(DT_E_SHAPE, "%s_(): output with shape %s doesn't match the broadcast shape %s", dt_op_name(op), a.buf, b.buf);
    }
    if (dt_dtype_categories[r->dtype] > dt_dtype_categories[self->dtype])
        return dt_fail(DT_E_DTYPE, "%s_(): result type %s can't be cast to the desired output type %s", dt_op_name(op), dt_dtype_name((dt_dtype)r->dtype),
                       dt_dtype_name((dt_dtype)self->dtype));
    return DT_OK;
}

dt_status dt_invoke_inplace(const dt_op *op, const dt_args *args) {
    if (args->a[0].kind != DT_ARG_TENSOR || !args->a[0].t) return dt_fail(DT_E_TYPE, "%s_(): self must be a Tensor", dt_op_name(op));
    dt_tensor *t = args->a[0].t, *out[8] = {NULL};
    DT_TRY(dt_client_ready());
    DT_TRY(dt_inplace_check(t));
    int n = 0;
    bool autocast = dt_m.autocast;
    dt_m.autocast = false; /* what is written keeps its dtype */
    dt_status r = dt_invoke_as_is(op, args, 8, out, &n);
    dt_m.autocast = autocast;
    DT_TRY(r);
    dt_status s = n ? check_result(op, dt_tensor_meta_fast(t), dt_tensor_meta_fast(out[0])) : dt_fail(DT_E_INTERNAL, "%s_(): no result", dt_op_name(op));
    if (!s && out[0] != t) {
        dt_grad_node *fn = dt_recording() ? dt_tensor_grad_fn(out[0]) : NULL;
        if (fn) dt_grad_node_rebase(fn, t);
        s = dt_tensor_write(t, out[0]);
    }
    for (int i = 0; i < n; i++) dt_tensor_unref(out[i]);
    return s;
}

dt_status dt_tensor_assign(dt_tensor *dst, dt_tensor *src) {
    DT_TRY(dt_client_ready());
    DT_TRY(dt_inplace_check(dst));
    if (dst == src) return DT_OK;
    const dt_meta *d = dt_tensor_meta_fast(dst);
    dt_scope s;
    dt_scope_init(&s);
    dt_tensor *v = src;
    if (!dt_meta_same_shape(d, dt_tensor_meta_fast(src))) v = dt_util_expand(&s, src, d->ndim, d->shape);
    /* A result of its own, so that hooks on dst and on src stay apart. */
    if (v == src && dt_recording() && dt_tensor_requires_grad(src)) v = dt_util_clone(&s, src);
    dt_status r = v ? DT_OK : s.status;
    if (!r) r = dt_tensor_write(dst, v);
    dt_scope_fini(&s);
    return r;
}
