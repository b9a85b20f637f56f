/* The few operators that the client itself calls: for in-place results, gradients, copy_. They are looked up by name once, and their
 * arguments are set by parameter name, so that their files stay free to order them. */
#include "client/internal.h"

typedef struct named {
    const char *name, *other; /* two spellings */
    const dt_op *op;
} named;

static const dt_op *find(dt_scope *s, named *n) {
    if (DT_LIKELY(n->op != NULL)) return n->op;
    dt_status r = dt_ops_init();
    if (!r) n->op = dt_op_find(n->name);
    if (!r && !n->op && n->other) n->op = dt_op_find(n->other);
    if (!n->op) dt_scope_fail(s, r ? r : dt_fail(DT_E_NOTIMPL, "the operator '%s' is missing", n->name));
    return n->op;
}

static bool put_dims(const dt_op *op, dt_args *a, const char *name, int n, const int64_t *v) {
    dt_arg *x = dt_arg_named(op, a, name);
    if (x) dt_arg_dims(x, (dt_dims){n, v});
    return x != NULL;
}

static dt_tensor *one(dt_scope *s, named *n, dt_tensor *t) {
    const dt_op *op = t && !s->status ? find(s, n) : NULL;
    if (!op) return NULL;
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], t);
    return dt_scope_call1(s, op, &a);
}

dt_tensor *dt_util_cast(dt_scope *s, dt_tensor *t, dt_dtype d) {
    static named n = {"to_dtype", NULL, NULL};
    const dt_op *op = t && !s->status ? find(s, &n) : NULL;
    if (!op) return NULL;
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], t);
    dt_arg *x = dt_arg_named(op, &a, "dtype");
    if (x) dt_arg_dtype(x, d);
    return dt_scope_call1(s, op, &a);
}

dt_tensor *dt_util_redistribute(dt_scope *s, dt_tensor *t, const dt_mesh *mesh, const dt_placement *place) {
    static named n = {"redistribute", NULL, NULL};
    if (!t || s->status) return NULL;
    const dt_meta *m = dt_tensor_meta_fast(t);
    if (m->mesh == mesh && !memcmp(m->place, place, (size_t)mesh->ndim * sizeof *place)) return t;
    const dt_op *op = find(s, &n);
    dt_args a = {0};
    dt_status r = op ? dt_spec_intern(mesh, place, &a.spec) : DT_OK;
    if (r) dt_scope_fail(s, r);
    if (!op || r) return NULL;
    dt_arg_tensor(&a.a[0], t);
    return dt_scope_call1(s, op, &a);
}

dt_tensor *dt_util_expand(dt_scope *s, dt_tensor *t, int ndim, const int64_t *shape) {
    static named n = {"expand", "broadcast_to", NULL};
    const dt_op *op = t && !s->status ? find(s, &n) : NULL;
    if (!op) return NULL;
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], t);
    dt_arg_dims(&a.a[1], (dt_dims){ndim, shape});
    return dt_scope_call1(s, op, &a);
}

dt_tensor *dt_util_clone(dt_scope *s, dt_tensor *t) {
    static named n = {"clone", NULL, NULL};
    return one(s, &n, t);
}

dt_tensor *dt_util_add(dt_scope *s, dt_tensor *a, dt_tensor *b) {
    static named n = {"add", NULL, NULL};
    const dt_op *op = a && b && !s->status ? find(s, &n) : NULL;
    if (!op) return NULL;
    dt_args x = {0};
    dt_arg_tensor(&x.a[0], a);
    dt_arg_tensor(&x.a[1], b);
    return dt_scope_call1(s, op, &x);
}

/* Sums the dimensions that `shape` lacks or has as 1; what comes back has exactly that shape. */
dt_tensor *dt_util_sum_to(dt_scope *s, dt_tensor *t, int ndim, const int64_t *shape) {
    static named sum = {"sum", NULL, NULL}, view = {"view", NULL, NULL};
    if (!t || s->status) return NULL;
    const dt_meta *m = dt_tensor_meta_fast(t);
    int64_t dims[DT_MAX_DIM];
    int n = 0, lead = m->ndim - ndim;
    for (int d = 0; d < m->ndim; d++)
        if (d < lead || (shape[d - lead] == 1 && m->shape[d] != 1)) dims[n++] = d;
    if (n) {
        const dt_op *op = find(s, &sum);
        if (!op) return NULL;
        dt_args a = {0};
        dt_arg_tensor(&a.a[0], t);
        put_dims(op, &a, "dim", n, dims);
        dt_arg *keep = dt_arg_named(op, &a, "keepdim");
        if (keep) dt_arg_bool(keep, lead <= 0);
        if (!(t = dt_scope_call1(s, op, &a))) return NULL;
        m = dt_tensor_meta_fast(t);
    }
    if (m->ndim == ndim && !memcmp(m->shape, shape, (size_t)ndim * sizeof *shape)) return t;
    const dt_op *op = find(s, &view);
    if (!op) return NULL;
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], t);
    dt_arg_dims(&a.a[1], (dt_dims){ndim, shape});
    return dt_scope_call1(s, op, &a);
}

void dt_grad_place(const dt_meta *m, dt_placement *place) {
    memcpy(place, m->place, sizeof m->place);
    for (int d = 0; d < DT_MAX_MESH_DIM; d++)
        if (place[d].kind == DT_PARTIAL) place[d] = DT_R;
}

/* Filled with one number, lying as a gradient of a tensor like this. */
dt_tensor *dt_util_fill(dt_scope *s, const dt_meta *like, double v) {
    static named n = {"full", NULL, NULL};
    const dt_op *op = s->status ? NULL : find(s, &n);
    if (!op) return NULL;
    dt_placement place[DT_MAX_MESH_DIM];
    dt_grad_place(like, place);
    dt_args a = {0};
    dt_status r = dt_spec_intern(like->mesh, place, &a.spec);
    if (r) dt_scope_fail(s, r);
    if (r) return NULL;
    dt_arg_dims(&a.a[0], (dt_dims){like->ndim, like->shape});
    dt_arg_float(&a.a[1], v);
    dt_arg *d = dt_arg_named(op, &a, "dtype");
    if (d) dt_arg_dtype(d, like->dtype);
    return dt_scope_call1(s, op, &a);
}
