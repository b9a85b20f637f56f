/* Weak definitions of what the client will define, so that ops and kernels link before it does. To be deleted when the client lands. */
#include "client/scope.h"
#include "ops/grad.h"
#define W __attribute__((weak))
W dt_tensor *dt_grad_in(dt_grad *g, int i) { return 0; }
W dt_tensor *dt_grad_out(dt_grad *g, int i) { return 0; }
W dt_tensor *dt_grad_gy(dt_grad *g, int i) { return 0; }
W dt_value dt_grad_scalar(const dt_grad *g, int i) { return (dt_value){0}; }
W dt_value dt_grad_value(dt_grad *g, int i) { return (dt_value){0}; }
W void dt_grad_set(dt_grad *g, int i, dt_tensor *gx) {}
W dt_tensor *dt_keep(dt_tensor *t) { return t; }
W int dt_ndim(const dt_tensor *t) { return 0; }
W int dt_dtype_of(const dt_tensor *t) { return 0; }
W int64_t dt_numel(const dt_tensor *t) { return 0; }
W const int64_t *dt_shape(const dt_tensor *t) { return 0; }
W void dt_scope_fail(struct dt_scope *s, dt_status status) {}
W int dt_scope_status(dt_scope *s) { return 0; }
W dt_tensor *dt_scope_call1(dt_scope *s, const dt_op *op, const dt_args *a) { return 0; }
W int dt_scope_calln(dt_scope *s, const dt_op *op, const dt_args *a, int n, dt_tensor **out) { return 0; }
W dt_tensor **dt_scope_call_list(dt_scope *s, const dt_op *op, const dt_args *a, int *n_out) { return 0; }
W int dt_item_f64(dt_tensor *t, double *out) { return 0; }
