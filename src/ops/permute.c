/* Views that reorder or repeat dimensions: transposes and expansions.
 *
 * All transposes share one attribute struct: infer turns its own parameters into `perm`, output dimension j is input dimension perm[j]. */
#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

typedef struct perm_attr {
    dt_ints dims, source, destination;
    int64_t dim0, dim1;
    int64_t perm[DT_MAX_DIM];
} perm_attr;

static dt_status permuted(dt_node *n) {
    const perm_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    n->out[0] = (dt_type){.dtype = (dt_dtype)m->dtype, .ndim = m->ndim};
    for (int j = 0; j < m->ndim; j++) n->out[0].shape[j] = m->shape[a->perm[j]];
    return DT_OK;
}
static dt_status swapped(dt_node *n, int64_t d0, int64_t d1) {
    perm_attr *a = n->attr;
    for (int j = 0; j < n->in[0]->ndim; j++) a->perm[j] = j == d0 ? d1 : j == d1 ? d0 : j;
    return permuted(n);
}

static dt_status place_permute(const dt_node *n, dt_rules *r) {
    const perm_attr *a = n->attr;
    int map[DT_MAX_DIM];
    for (int j = 0; j < n->in[0]->ndim; j++) map[a->perm[j]] = j;
    DT_TRY(dt_move_rules(n, r, map));
    return dt_move_partial(n, r, DT_MOVE_ANY);
}
static dt_tensor *inverse(dt_scope *s, const perm_attr *a, int ndim, dt_tensor *t) {
    int64_t inv[DT_MAX_DIM] = {0};
    for (int j = 0; j < ndim; j++) inv[a->perm[j]] = j;
    return dt_permute(s, t, (dt_dims){ndim, inv});
}
static void grad_permute(dt_grad *g) { dt_grad_set(g, 0, inverse(g->s, dt_grad_attr(g), dt_grad_in_meta(g, 0)->ndim, dt_grad_gy(g, 0))); }
static void unview_permute(dt_scope *s, const dt_call *c, int out_index, dt_tensor *base, dt_tensor *value, dt_tensor **new_base) {
    *new_base = inverse(s, c->attr, c->in[0]->ndim, value);
}
static bool alias_permute(dt_alias *x) {
    const perm_attr *a = x->attr;
    x->offset = 0;
    for (int j = 0; j < x->in->ndim; j++) x->out->stride[j] = x->in->stride[a->perm[j]];
    return true;
}
#define PERMUTE(infer_fn) \
    .flags = DT_F_STRIDED, .infer = infer_fn, .place = place_permute, .grad = grad_permute, .alias = alias_permute, .unview = unview_permute

static dt_status infer_permute(dt_node *n) {
    perm_attr *a = n->attr;
    int nd = n->in[0]->ndim;
    uint32_t seen = 0;
    int given = a->dims.n < 0 ? 0 : a->dims.n;
    if (given != nd)
        return dt_fail(DT_E_SHAPE,
                       "permute: number of dimensions in the tensor input (%d) does not match the length of the desired ordering of dimensions (%d)", nd,
                       given);
    for (int j = 0; j < nd; j++) {
        DT_TRY(dt_dim_wrap(&a->dims.v[j], nd));
        if (seen >> a->dims.v[j] & 1) return dt_fail(DT_E_SHAPE, "permute(): duplicate dims are not allowed.");
        seen |= 1u << a->dims.v[j];
        a->perm[j] = a->dims.v[j];
    }
    return permuted(n);
}
const dt_op dt_op_permute = {
    .sig = "permute(Tensor input, int[]... dims) -> Tensor",
    .doc = "Reorders the dimensions: output dimension j is input dimension dims[j].",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(perm_attr, DT_FIELD(perm_attr, dims)),
    PERMUTE(infer_permute),
};

static dt_status infer_transpose(dt_node *n) {
    perm_attr *a = n->attr;
    DT_TRY(dt_dim_wrap(&a->dim0, n->in[0]->ndim));
    DT_TRY(dt_dim_wrap(&a->dim1, n->in[0]->ndim));
    return swapped(n, a->dim0, a->dim1);
}
const dt_op dt_op_transpose = {
    .sig = "transpose(Tensor input, int dim0, int dim1) -> Tensor",
    .doc = "Swaps two dimensions.",
    .also = "swapdims",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(perm_attr, DT_FIELD(perm_attr, dim0), DT_FIELD(perm_attr, dim1)),
    PERMUTE(infer_transpose),
};
const dt_op dt_op_swapaxes = {
    .sig = "swapaxes(Tensor input, int axis0, int axis1) -> Tensor",
    .doc = "Swaps two dimensions.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(perm_attr, {"axis0", offsetof(perm_attr, dim0)}, {"axis1", offsetof(perm_attr, dim1)}),
    PERMUTE(infer_transpose),
};

static dt_status infer_t(dt_node *n) {
    if (n->in[0]->ndim > 2) return dt_fail(DT_E_SHAPE, "t() expects a tensor with <= 2 dimensions, but self is %dD", n->in[0]->ndim);
    return swapped(n, 0, n->in[0]->ndim == 2 ? 1 : 0);
}
const dt_op dt_op_t = {
    .sig = "t(Tensor input) -> Tensor",
    .doc = "The transpose of a matrix; tensors of 0 or 1 dimensions come back as they are.",
    .where = DT_FN | DT_METHOD,
    .attrs = {sizeof(perm_attr), {{NULL, 0}}},
    PERMUTE(infer_t),
};
static dt_status infer_adjoint(dt_node *n) {
    int nd = n->in[0]->ndim;
    if (nd < 2) return dt_fail(DT_E_SHAPE, "tensor.adjoint() is only supported on matrices or batches of matrices. Got %d-D tensor.", nd);
    return swapped(n, nd - 2, nd - 1);
}
const dt_op dt_op_adjoint = {
    .sig = "adjoint(Tensor input) -> Tensor",
    .doc = "Transposes the last two dimensions.",
    .where = DT_FN | DT_METHOD,
    .attrs = {sizeof(perm_attr), {{NULL, 0}}},
    PERMUTE(infer_adjoint),
};

static dt_status infer_movedim(dt_node *n) {
    perm_attr *a = n->attr;
    int nd = n->in[0]->ndim;
    uint32_t from = 0, to = 0;
    if (a->source.n != a->destination.n)
        return dt_fail(DT_E_SHAPE,
                       "movedim: Invalid source or destination dims: source (%d dims) should contain the same number of dims as destination (%d dims)",
                       a->source.n, a->destination.n);
    for (int j = 0; j < nd; j++) a->perm[j] = -1;
    for (int i = 0; i < a->source.n; i++) {
        DT_TRY(dt_dim_wrap(&a->source.v[i], nd));
        DT_TRY(dt_dim_wrap(&a->destination.v[i], nd));
        int64_t f = a->source.v[i], d = a->destination.v[i];
        if (from >> f & 1) return dt_fail(DT_E_SHAPE, "movedim: repeated dim in `source` (%lld)", (long long)f);
        if (to >> d & 1) return dt_fail(DT_E_SHAPE, "movedim: repeated dim in `destination` (%lld)", (long long)d);
        from |= 1u << f;
        to |= 1u << d;
        if (nd) a->perm[d] = f;
    }
    int next = 0;
    for (int j = 0; j < nd; j++) {
        if (a->perm[j] >= 0) continue;
        while (from >> next & 1) next++;
        a->perm[j] = next++;
    }
    return permuted(n);
}
const dt_op dt_op_movedim = {
    .sig = "movedim(Tensor input, int[] source, int[] destination) -> Tensor",
    .doc = "Moves the dimensions source to the positions destination; the others keep their order.",
    .also = "moveaxis",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(perm_attr, DT_FIELD(perm_attr, source), DT_FIELD(perm_attr, destination)),
    PERMUTE(infer_movedim),
};

/* ---- expansion ---- */
typedef struct expand_attr {
    dt_ints size;
    bool implicit;
} expand_attr;

static dt_status infer_expand(dt_node *n) {
    expand_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    int nd = a->size.n < 0 ? 0 : a->size.n, lead = nd - m->ndim;
    DT_STR(want, 256);
    for (int i = 0; i < nd; i++) dt_str_add(&want, "%s%lld", i ? ", " : "", (long long)a->size.v[i]);
    if (lead < 0)
        return dt_fail(DT_E_SHAPE, "expand: the number of sizes provided (%d: [%s]) must be greater or equal to the number of dimensions in the tensor (%d)",
                       nd, want.buf, m->ndim);
    if (nd > DT_MAX_DIM) return dt_fail(DT_E_VALUE, "expand: more than %d dimensions", DT_MAX_DIM);
    n->out[0] = (dt_type){.dtype = (dt_dtype)m->dtype, .ndim = nd};
    for (int j = 0; j < nd; j++) {
        int64_t want_j = a->size.v[j], have = j < lead ? 1 : m->shape[j - lead];
        if (want_j == -1 && j >= lead) want_j = have;
        if (want_j < 0)
            return dt_fail(DT_E_SHAPE, "The expanded size of the tensor (%lld) isn't allowed in a leading, non-existing dimension %d", (long long)want_j, j);
        if (have != 1 && have != want_j)
            return dt_fail(DT_E_SHAPE,
                           "The expanded size of the tensor (%lld) must match the existing size (%lld) at non-singleton dimension %d.  Target sizes: [%s]",
                           (long long)want_j, (long long)have, j, want.buf);
        n->out[0].shape[j] = want_j;
    }
    return DT_OK;
}
static dt_status place_expand(const dt_node *n, dt_rules *r) {
    int map[DT_MAX_DIM], lead = n->out[0].ndim - n->in[0]->ndim;
    for (int d = 0; d < n->in[0]->ndim; d++) map[d] = n->in[0]->shape[d] == n->out[0].shape[d + lead] ? d + lead : -1;
    DT_TRY(dt_move_rules(n, r, map));
    return dt_move_partial(n, r, DT_MOVE_ANY);
}
static void grad_expand(dt_grad *g) { dt_grad_set(g, 0, dt_grad_gy(g, 0)); } /* the engine sums what was broadcast */
static bool alias_expand(dt_alias *x) {
    int lead = x->out->ndim - x->in->ndim;
    x->offset = 0;
    for (int j = 0; j < x->out->ndim; j++) x->out->stride[j] = j < lead || (x->in->shape[j - lead] == 1 && x->out->shape[j] != 1) ? 0 : x->in->stride[j - lead];
    return true;
}
static void unview_expand(dt_scope *s, const dt_call *c, int out_index, dt_tensor *base, dt_tensor *value, dt_tensor **new_base) {
    if (c->in[0]->numel == c->out[0]->numel) {
        *new_base = dt_reshape(s, value, dt_meta_dims(c->in[0]));
        return;
    }
    dt_scope_fail(s, dt_fail(DT_E_STATE, "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
                                         "Please clone() the tensor before performing the operation."));
    *new_base = NULL;
}
const dt_op dt_op_expand = {
    .sig = "expand(Tensor input, int[]... size, *, bool implicit=False) -> Tensor",
    .doc = "Repeats dimensions of size 1 without copying; -1 keeps a size, new dimensions come first. Cannot be written through.",
    .where = DT_METHOD,
    .attrs = DT_ATTRS(expand_attr, DT_FIELD(expand_attr, size), DT_FIELD(expand_attr, implicit)),
    .flags = DT_F_STRIDED,
    .infer = infer_expand,
    .place = place_expand,
    .grad = grad_expand,
    .alias = alias_expand,
    .unview = unview_expand,
};
static void compose_expand_as(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_return(out, n_out, dt_expand(s, dt_arg_get_tensor(a, 0), dt_shape_dims(dt_arg_get_tensor(a, 1)), false));
}
const dt_op dt_op_expand_as = {
    .sig = "expand_as(Tensor input, Tensor other) -> Tensor",
    .doc = "input.expand(other.shape).",
    .where = DT_METHOD,
    .compose = compose_expand_as,
};
const dt_op dt_op_broadcast_to = {
    .sig = "broadcast_to(Tensor input, int[]... size) -> Tensor",
    .doc = "input.expand(size).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(expand_attr, DT_FIELD(expand_attr, size)),
    .flags = DT_F_STRIDED,
    .infer = infer_expand,
    .place = place_expand,
    .grad = grad_expand,
    .alias = alias_expand,
    .unview = unview_expand,
};
