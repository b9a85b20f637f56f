/* Views that keep every element: reshapes, and the identity.
 *
 * A reshape is always a view here, whatever the strides of its input: strides are the engine's business, so it never fails where PyTorch's `view`
 * would ask for contiguous memory. All share everything but infer: the output's shape says the rest. Client thread; aliases on any thread. */
#include <string.h>

#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

DT_CPU_KERNEL(copy_reshape);
#define COPY_KERNELS                            \
    {                                           \
        { DT_CPU, DT_ANY, dt_cpu_copy_reshape } \
    }

/* A minimal run of input dimensions [i0, i1) that becomes the run of output dimensions [j0, j1): their products agree, and no shorter
 * run's do. */
typedef struct group {
    int i0, i1, j0, j1;
} group;

static bool next_group(const dt_meta *m, const dt_type *o, group *g) {
    int i = g->i1, j = g->j1;
    for (;;) { /* dimensions of size 1 that only one side has stand alone */
        if (i < m->ndim && m->shape[i] == 1 && !(j < o->ndim && o->shape[j] == 1))
            i++;
        else if (j < o->ndim && o->shape[j] == 1 && !(i < m->ndim && m->shape[i] == 1))
            j++;
        else
            break;
    }
    if (i >= m->ndim || j >= o->ndim) return false;
    *g = (group){i, i + 1, j, j + 1};
    int64_t a = m->shape[i], b = o->shape[j];
    while (a != b) {
        if (a < b) {
            if (g->i1 == m->ndim) return false;
            a *= m->shape[g->i1++];
        } else {
            if (g->j1 == o->ndim) return false;
            b *= o->shape[g->j1++];
        }
    }
    return true;
}

/* Input dimension k of the group, seen as `rows` rows, is cut within its rows: which output dimension is cut alike? `outer` is the number of
 * blocks before the cut part, `run` the size of what is cut. Sizes that differ must cut evenly, as must whatever lies inside. */
static dt_status follow(const dt_node *n, dt_rules *r, const group *g, int k, int64_t rows) {
    const dt_type *o = &n->out[0];
    const dt_meta *m = n->in[0];
    int64_t outer = rows, before = 1, run = m->shape[k] / rows;
    for (int i = g->i0; i < k; i++) outer *= m->shape[i];
    int j = g->j0;
    while (j + 1 < g->j1 && before * o->shape[j] <= outer) before *= o->shape[j++];
    if (outer % before) return DT_OK;
    int64_t out_rows = outer / before;
    if (o->shape[j] % out_rows || (out_rows > 1 && o->ndim > DT_MAX_DIM / 2)) return DT_OK;
    int64_t out_run = o->shape[j] / out_rows;
    if (out_run != run && !(dt_rules_even_in(r, m, g->i0, g->i1, run) && dt_rules_even_in(r, m, g->i0, g->i1, out_run))) return DT_OK;
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    in[0] = DT_S_ROWS(k, rows);
    out[0] = DT_S_ROWS(j, out_rows);
    return DT_OK;
}

/* A sharded dimension passes a reshape when some output dimension can be cut at the same places: the outermost of a merged or split group as a
 * plain shard, one behind others as a strided one, and back. */
static dt_status place_reshape(const dt_node *n, dt_rules *r) {
    const dt_meta *m = n->in[0];
    int32_t split = m->mesh == r->mesh && m->place[r->mesh_dim].kind == DT_SHARD ? m->place[r->mesh_dim].split : 0;
    group g = {0};
    while (m->numel && next_group(m, &n->out[0], &g))
        for (int k = g.i0; k < g.i1; k++) {
            if (m->shape[k] == 1) continue;
            DT_TRY(follow(n, r, &g, k, 1));
            if (split && m->place[r->mesh_dim].dim == k) DT_TRY(follow(n, r, &g, k, split));
        }
    if (m->numel == 0 && m->ndim == n->out[0].ndim) /* nothing to cut: kept dimensions may stay sharded */
        for (int k = 0; k < m->ndim; k++) {
            if (m->shape[k] != n->out[0].shape[k]) continue;
            dt_placement *in, *out;
            DT_TRY(dt_rule_add(r, &in, &out));
            in[0] = DT_S(k);
            out[0] = DT_S(k);
        }
    return dt_move_partial(n, r, DT_MOVE_ANY);
}

static void grad_reshape(dt_grad *g) { dt_grad_set(g, 0, dt_reshape(g->s, dt_grad_gy(g, 0), dt_meta_dims(dt_grad_in_meta(g, 0)))); }

static void unview_reshape(dt_scope *s, const dt_call *c, int out_index, dt_tensor *base, dt_tensor *value, dt_tensor **new_base) {
    *new_base = dt_reshape(s, value, dt_meta_dims(c->in[0]));
}

/* Strides of the reshaped view, when the input's strides allow one: each run of input dims that is dense in itself may be re-cut. */
static bool alias_reshape(dt_alias *x) {
    const dt_view *in = x->in;
    dt_view *out = x->out;
    x->offset = 0;
    int64_t numel = dt_view_numel(in);
    if (numel == 0) {
        dt_view_set_contiguous(out);
        return true;
    }
    int j = out->ndim - 1;
    int64_t base = 1, have = 1, need = 1; /* elements of the current run in the input, and placed in the output */
    bool first = true;
    for (int i = in->ndim - 1; i >= 0; i--) {
        if (first) base = in->stride[i];
        first = false;
        have *= in->shape[i];
        bool ends = i == 0 || (in->shape[i - 1] != 1 && in->stride[i - 1] != have * base);
        if (!ends) continue;
        while (j >= 0 && (need < have || out->shape[j] == 1)) {
            out->stride[j] = need * base;
            need *= out->shape[j];
            j--;
        }
        if (need != have) return false;
        have = need = 1;
        first = true;
    }
    for (; j >= 0; j--) out->stride[j] = 1;
    return true;
}

/* ---- shapes ---- */
static dt_status bad_shape(const dt_meta *m, const dt_ints *shape) {
    DT_STR(t, 256);
    for (int i = 0; i < shape->n; i++) dt_str_add(&t, "%s%lld", i ? ", " : "", (long long)shape->v[i]);
    return dt_fail(DT_E_SHAPE, "shape '[%s]' is invalid for input of size %lld", t.buf, (long long)m->numel);
}

/* shape, at most one entry -1, into *o. */
static dt_status infer_shape(const dt_meta *m, const dt_ints *shape, dt_type *o) {
    int free_dim = -1;
    int64_t known = 1;
    if (shape->n > DT_MAX_DIM) return dt_fail(DT_E_VALUE, "a shape of %d dimensions: at most %d are supported", shape->n, DT_MAX_DIM);
    *o = (dt_type){.dtype = (dt_dtype)m->dtype, .ndim = shape->n < 0 ? 0 : shape->n};
    for (int i = 0; i < o->ndim; i++) {
        o->shape[i] = shape->v[i];
        if (shape->v[i] == -1) {
            if (free_dim >= 0) return dt_fail(DT_E_SHAPE, "only one dimension can be inferred");
            free_dim = i;
        } else if (shape->v[i] < 0)
            return dt_fail(DT_E_SHAPE, "invalid shape dimension %lld at index %d", (long long)shape->v[i], i);
        else if (__builtin_mul_overflow(known, shape->v[i], &known))
            return bad_shape(m, shape);
    }
    if (free_dim < 0) return known == m->numel ? DT_OK : bad_shape(m, shape);
    if (known == 0) {
        if (m->numel) return bad_shape(m, shape);
        return dt_fail(DT_E_SHAPE, "cannot reshape tensor of 0 elements into a shape whose -1 can be any value and is ambiguous");
    }
    if (m->numel % known) return bad_shape(m, shape);
    o->shape[free_dim] = m->numel / known;
    return DT_OK;
}

typedef struct shape_attr {
    dt_ints shape;
} shape_attr;
static dt_status infer_view(dt_node *n) { return infer_shape(n->in[0], &((shape_attr *)n->attr)->shape, &n->out[0]); }

const dt_op dt_op_view_shape = {
    .sig = "view(Tensor input, int[]... shape) -> Tensor",
    .doc = "The same elements in another shape, sharing storage. One size may be -1: it is inferred. Errors: a size that does not fit.",
    .where = DT_METHOD,
    .attrs = DT_ATTRS(shape_attr, DT_FIELD(shape_attr, shape)),
    .flags = DT_F_STRIDED,
    .infer = infer_view,
    .place = place_reshape,
    .grad = grad_reshape,
    .alias = alias_reshape,
    .unview = unview_reshape,
    .kernels = COPY_KERNELS,
};
const dt_op dt_op_reshape = {
    .sig = "reshape(Tensor input, int[]... shape) -> Tensor",
    .doc = "The same elements in another shape; always a view. One size may be -1: it is inferred.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(shape_attr, DT_FIELD(shape_attr, shape)),
    .flags = DT_F_STRIDED,
    .infer = infer_view,
    .place = place_reshape,
    .grad = grad_reshape,
    .alias = alias_reshape,
    .unview = unview_reshape,
    .kernels = COPY_KERNELS,
};

static void compose_view_as(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_return(out, n_out, dt_reshape(s, dt_arg_get_tensor(a, 0), dt_shape_dims(dt_arg_get_tensor(a, 1))));
}
const dt_op dt_op_view_as = {
    .sig = "view_as(Tensor input, Tensor other) -> Tensor",
    .doc = "input.view(other.shape).",
    .also = "reshape_as",
    .where = DT_METHOD,
    .compose = compose_view_as,
};

typedef struct flatten_attr {
    int64_t start_dim, end_dim;
} flatten_attr;
static dt_status infer_flatten(dt_node *n) {
    flatten_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    dt_type *o = &n->out[0];
    DT_TRY(dt_dim_wrap(&a->start_dim, m->ndim));
    DT_TRY(dt_dim_wrap(&a->end_dim, m->ndim));
    if (a->start_dim > a->end_dim) return dt_fail(DT_E_SHAPE, "flatten() has invalid args: start_dim cannot come after end_dim");
    *o = (dt_type){.dtype = (dt_dtype)m->dtype};
    if (m->ndim == 0) o->shape[o->ndim++] = 1;
    for (int d = 0; d < m->ndim; d++) {
        if (d > a->start_dim && d <= a->end_dim)
            o->shape[o->ndim - 1] *= m->shape[d];
        else
            o->shape[o->ndim++] = m->shape[d];
    }
    return DT_OK;
}
const dt_op dt_op_flatten = {
    .sig = "flatten(Tensor input, int start_dim=0, int end_dim=-1) -> Tensor",
    .doc = "Merges dimensions start_dim to end_dim into one; a 0-dim tensor becomes (1,).",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(flatten_attr, DT_FIELD(flatten_attr, start_dim), DT_FIELD(flatten_attr, end_dim)),
    .flags = DT_F_STRIDED,
    .infer = infer_flatten,
    .place = place_reshape,
    .grad = grad_reshape,
    .alias = alias_reshape,
    .unview = unview_reshape,
    .kernels = COPY_KERNELS,
};
static dt_status infer_ravel(dt_node *n) {
    n->out[0] = (dt_type){(dt_dtype)n->in[0]->dtype, 1, {n->in[0]->numel}};
    return DT_OK;
}
const dt_op dt_op_ravel = {
    .sig = "ravel(Tensor input) -> Tensor",
    .doc = "The elements in one dimension.",
    .where = DT_FN | DT_METHOD,
    .flags = DT_F_STRIDED,
    .infer = infer_ravel,
    .place = place_reshape,
    .grad = grad_reshape,
    .alias = alias_reshape,
    .unview = unview_reshape,
    .kernels = COPY_KERNELS,
};

typedef struct unflatten_attr {
    int64_t dim;
    dt_ints sizes;
} unflatten_attr;
static dt_status infer_unflatten(dt_node *n) {
    unflatten_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    dt_type part = {0}, *o = &n->out[0];
    DT_TRY(dt_dim_wrap(&a->dim, m->ndim));
    if (m->ndim == 0) return dt_fail(DT_E_INDEX, "unflatten: a 0-dim tensor has no dimension to split");
    if (a->sizes.n == 0) return dt_fail(DT_E_SHAPE, "unflatten: sizes must be non-empty");
    dt_meta one = {.dtype = m->dtype, .ndim = 1, .numel = m->shape[a->dim]};
    if (infer_shape(&one, &a->sizes, &part))
        return dt_fail(DT_E_SHAPE, "unflatten: Provided sizes don't multiply up to the size of dim %lld (%lld) in the input tensor", (long long)a->dim,
                       (long long)m->shape[a->dim]);
    if (m->ndim - 1 + part.ndim > DT_MAX_DIM) return dt_fail(DT_E_VALUE, "unflatten: more than %d dimensions", DT_MAX_DIM);
    *o = (dt_type){.dtype = (dt_dtype)m->dtype};
    for (int d = 0; d < m->ndim; d++) {
        if (d != a->dim)
            o->shape[o->ndim++] = m->shape[d];
        else
            for (int k = 0; k < part.ndim; k++) o->shape[o->ndim++] = part.shape[k];
    }
    return DT_OK;
}
const dt_op dt_op_unflatten = {
    .sig = "unflatten(Tensor input, int dim, int[] sizes) -> Tensor",
    .doc = "Splits dimension dim into sizes, whose product is its size; one of them may be -1.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(unflatten_attr, DT_FIELD(unflatten_attr, dim), DT_FIELD(unflatten_attr, sizes)),
    .flags = DT_F_STRIDED,
    .infer = infer_unflatten,
    .place = place_reshape,
    .grad = grad_reshape,
    .alias = alias_reshape,
    .unview = unview_reshape,
    .kernels = COPY_KERNELS,
};

typedef struct dims_attr {
    dt_ints dim;
} dims_attr;
static dt_status infer_squeeze(dt_node *n) {
    dims_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    dt_type *o = &n->out[0];
    uint32_t mask = a->dim.n < 0 ? ~0u : 0;
    for (int i = 0; i < a->dim.n; i++) {
        DT_TRY(dt_dim_wrap(&a->dim.v[i], m->ndim));
        if (mask >> a->dim.v[i] & 1) return dt_fail(DT_E_SHAPE, "squeeze: dim %lld appears multiple times in the list of dims", (long long)a->dim.v[i]);
        mask |= 1u << a->dim.v[i];
    }
    *o = (dt_type){.dtype = (dt_dtype)m->dtype};
    for (int d = 0; d < m->ndim; d++)
        if (m->shape[d] != 1 || !(mask >> d & 1)) o->shape[o->ndim++] = m->shape[d];
    return DT_OK;
}
const dt_op dt_op_squeeze = {
    .sig = "squeeze(Tensor input, int[]? dim=None) -> Tensor",
    .doc = "Drops the dimensions of size 1: all, or those of dim that have it.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dims_attr, DT_FIELD(dims_attr, dim)),
    .flags = DT_F_STRIDED,
    .infer = infer_squeeze,
    .place = place_reshape,
    .grad = grad_reshape,
    .alias = alias_reshape,
    .unview = unview_reshape,
    .kernels = COPY_KERNELS,
};
typedef struct dim_attr {
    int64_t dim;
} dim_attr;
static dt_status infer_unsqueeze(dt_node *n) {
    dim_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    dt_type *o = &n->out[0];
    DT_TRY(dt_dim_wrap(&a->dim, m->ndim + 1));
    *o = dt_meta_type(m);
    if (o->ndim == DT_MAX_DIM) return dt_fail(DT_E_VALUE, "unsqueeze: more than %d dimensions", DT_MAX_DIM);
    for (int d = o->ndim++; d > a->dim; d--) o->shape[d] = o->shape[d - 1];
    o->shape[a->dim] = 1;
    return DT_OK;
}
static dt_status place_unsqueeze(const dt_node *n, dt_rules *r) {
    int map[DT_MAX_DIM];
    int64_t dim = ((dim_attr *)n->attr)->dim;
    for (int d = 0; d < n->in[0]->ndim; d++) map[d] = d < dim ? d : d + 1;
    DT_TRY(dt_move_rules(n, r, map));
    return dt_move_partial(n, r, DT_MOVE_ANY);
}
const dt_op dt_op_unsqueeze = {
    .sig = "unsqueeze(Tensor input, int dim) -> Tensor",
    .doc = "Inserts a dimension of size 1 before dimension dim.",
    .where = DT_FN | DT_METHOD,
    .attrs = DT_ATTRS(dim_attr, DT_FIELD(dim_attr, dim)),
    .flags = DT_F_STRIDED,
    .infer = infer_unsqueeze,
    .place = place_unsqueeze,
    .grad = grad_reshape,
    .alias = alias_reshape,
    .unview = unview_reshape,
    .kernels = COPY_KERNELS,
};

/* ---- identity ---- */
static dt_status place_same(const dt_node *n, dt_rules *r) {
    DT_TRY(dt_place_except(n, r, 0));
    return dt_move_partial(n, r, DT_MOVE_ANY);
}
static void grad_same(dt_grad *g) { dt_grad_set(g, 0, dt_grad_gy(g, 0)); }
const dt_op dt_op_identity = {
    .sig = "alias(Tensor input) -> Tensor",
    .doc = "The tensor itself, as a view: a new handle on the same storage.",
    .where = DT_HIDDEN,
    .flags = DT_F_STRIDED,
    .infer = dt_infer_same,
    .place = place_same,
    .grad = grad_same,
    .alias = alias_reshape,
    .unview = unview_reshape,
    .kernels = COPY_KERNELS,
};
const dt_op dt_op_contiguous = {
    .sig = "contiguous(Tensor input) -> Tensor",
    .doc = "A copy with a storage of its own. (PyTorch returns the tensor itself when its memory is contiguous already; here writes never go through.)",
    .where = DT_METHOD,
    .flags = DT_F_STRIDED,
    .infer = dt_infer_same,
    .place = place_same,
    .grad = grad_same,
    .kernels = COPY_KERNELS,
};
