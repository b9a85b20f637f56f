/* Scopes: who owns temporaries in C programs and gradient formulas, and where the first error stays. Also the argument fillers that the
 * generated functions of dtorch_ops.c use. */
#ifndef DT_CLIENT_SCOPE_H
#define DT_CLIENT_SCOPE_H

#include "client/client.h"

struct dt_scope {
    dt_status status;
    int n, cap;
    dt_tensor **own;
    dt_tensor *inline_own[24];
    dt_arena arena; /* arrays that lists come back in */
};
void dt_scope_init(dt_scope *s);
void dt_scope_fini(dt_scope *s);
/* Record a failure that happened outside a call. */
void dt_scope_fail(dt_scope *s, dt_status status);

dt_tensor *dt_scope_call1(dt_scope *s, const dt_op *op, const dt_args *a);
int dt_scope_calln(dt_scope *s, const dt_op *op, const dt_args *a, int n, dt_tensor **out); /* 0, or -1 and the scope has the error */
dt_tensor **dt_scope_call_list(dt_scope *s, const dt_op *op, const dt_args *a, int *n_out);

static inline void dt_arg_tensor(dt_arg *a, dt_tensor *t) { *a = (dt_arg){.kind = t ? DT_ARG_TENSOR : DT_ARG_NONE, .given = true, .t = t}; }
static inline void dt_arg_list(dt_arg *a, dt_list l) { *a = (dt_arg){.kind = DT_ARG_TENSORS, .given = true, .n = l.n, .list = l.v}; }
static inline void dt_arg_int(dt_arg *a, int64_t v) { *a = (dt_arg){.kind = v == DT_NO_INT ? DT_ARG_NONE : DT_ARG_INT, .given = true, .i = v}; }
static inline void dt_arg_float(dt_arg *a, double v) { *a = (dt_arg){.kind = v != v ? DT_ARG_NONE : DT_ARG_FLOAT, .given = true, .f = v}; }
static inline void dt_arg_bool(dt_arg *a, bool v) { *a = (dt_arg){.kind = DT_ARG_BOOL, .given = true, .i = v}; }
static inline void dt_arg_str(dt_arg *a, const char *v) { *a = (dt_arg){.kind = v ? DT_ARG_STR : DT_ARG_NONE, .given = true, .s = v}; }
static inline void dt_arg_dtype(dt_arg *a, int v) { *a = (dt_arg){.kind = v == DT_DTYPE_NONE ? DT_ARG_NONE : DT_ARG_DTYPE, .given = true, .i = v}; }
static inline void dt_arg_dims(dt_arg *a, dt_dims d) { *a = (dt_arg){.kind = d.n < 0 ? DT_ARG_NONE : DT_ARG_INTS, .given = true, .n = d.n, .ints = d.v}; }
static inline void dt_arg_value(dt_arg *a, dt_value v) {
    static const uint8_t kinds[] = {DT_ARG_NONE, DT_ARG_TENSOR, DT_ARG_FLOAT, DT_ARG_INT, DT_ARG_BOOL};
    *a = (dt_arg){.kind = kinds[v.kind], .given = true};
    if (v.kind == 1)
        a->t = v.t;
    else if (v.kind == 2)
        a->f = v.f;
    else
        a->i = v.i;
}
static inline bool dt_list_ok(dt_list l) {
    for (int i = 0; i < l.n; i++)
        if (!l.v[i]) return false;
    return true;
}

#endif
