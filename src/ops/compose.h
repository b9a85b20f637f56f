/* Reading the arguments of a `compose` function: a->a[i] is parameter i of the signature; what was not given takes the default stated
 * here. */
#ifndef DT_OPS_COMPOSE_H
#define DT_OPS_COMPOSE_H

#include "dtorch.h"
#include "ops/op.h"

static inline bool dt_arg_given(const dt_args *a, int i) { return a->a[i].kind != DT_ARG_NONE; }
static inline dt_tensor *dt_arg_get_tensor(const dt_args *a, int i) { return a->a[i].kind == DT_ARG_TENSOR ? a->a[i].t : NULL; }
static inline int64_t dt_arg_get_int(const dt_args *a, int i, int64_t def) {
    return a->a[i].kind == DT_ARG_INT || a->a[i].kind == DT_ARG_BOOL ? a->a[i].i : def;
}
static inline bool dt_arg_get_bool(const dt_args *a, int i, bool def) { return dt_arg_get_int(a, i, def) != 0; }
static inline double dt_arg_get_float(const dt_args *a, int i, double def) {
    return a->a[i].kind == DT_ARG_FLOAT ? a->a[i].f : a->a[i].kind == DT_ARG_INT || a->a[i].kind == DT_ARG_BOOL ? (double)a->a[i].i : def;
}
static inline const char *dt_arg_get_str(const dt_args *a, int i, const char *def) { return a->a[i].kind == DT_ARG_STR ? a->a[i].s : def; }
static inline int dt_arg_get_dtype(const dt_args *a, int i) {
    return a->a[i].kind == DT_ARG_DTYPE || a->a[i].kind == DT_ARG_INT ? (int)a->a[i].i : DT_DTYPE_NONE;
}
static inline dt_dims dt_arg_get_dims(const dt_args *a, int i) { /* borrowed from a */
    if (a->a[i].kind == DT_ARG_INTS) return (dt_dims){a->a[i].n, a->a[i].ints};
    if (a->a[i].kind == DT_ARG_INT) return (dt_dims){1, &a->a[i].i};
    return DT_NO_DIMS;
}
static inline dt_value dt_arg_get_value(const dt_args *a, int i) {
    switch (a->a[i].kind) {
    case DT_ARG_TENSOR: return dt_v_tensor(a->a[i].t);
    case DT_ARG_FLOAT: return dt_v_float(a->a[i].f);
    case DT_ARG_INT: return dt_v_int(a->a[i].i);
    case DT_ARG_BOOL: return dt_v_bool(a->a[i].i != 0);
    default: return DT_NOTHING;
    }
}
/* Hand out the only result: compose gives new references. */
static inline void dt_compose_out(dt_tensor *t, dt_tensor **out, int *n_out) {
    out[0] = dt_keep(t);
    *n_out = 1;
}
/* Is a gradient formula asked for gradients of gradients (create_graph)? Then it builds differentiable ops rather than fused primitives. */
static inline bool dt_higher_order(void) {
    bool on = dt_grad_mode_set(true);
    dt_grad_mode_set(on);
    return on;
}

#endif
