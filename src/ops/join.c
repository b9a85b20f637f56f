/* Joining tensors: cat and what is built from it, repetition, and grids. */
#include <string.h>

#include "base/arena.h"
#include "dtorch_ops.h"
#include "ops/grad.h"
#include "ops/movement.h"

DT_CPU_KERNEL(cat);

/* A 1-dim empty tensor may be joined with anything: it counts for nothing. */
static bool ignored(const dt_meta *m) { return m->ndim == 1 && m->shape[0] == 0; }

static dt_status infer_cat(dt_node *n) {
    dt_cat_attr *a = n->attr;
    const dt_meta *ref = NULL;
    if (n->n_in == 0) return dt_fail(DT_E_VALUE, "cat(): expected a non-empty list of Tensors");
    dt_dtype t = dt_result_type(n, 0, n->n_in);
    for (int i = 0; i < n->n_in; i++) {
        n->cast[i] = (uint8_t)t;
        if (n->in[i]->ndim == 0) return dt_fail(DT_E_SHAPE, "zero-dimensional tensor (at position %d) cannot be concatenated", i);
        if (!ref && !ignored(n->in[i])) ref = n->in[i];
    }
    if (!ref) ref = n->in[0];
    DT_TRY(dt_dim_wrap(&a->dim, ref->ndim));
    n->out[0] = dt_meta_type(ref);
    n->out[0].dtype = t;
    n->out[0].shape[a->dim] = 0;
    for (int i = 0; i < n->n_in; i++) {
        const dt_meta *m = n->in[i];
        if (ignored(m) && ref->ndim != 1) continue;
        if (m->ndim != ref->ndim) return dt_fail(DT_E_SHAPE, "Tensors must have same number of dimensions: got %d and %d", ref->ndim, m->ndim);
        for (int d = 0; d < m->ndim; d++)
            if (d != a->dim && m->shape[d] != ref->shape[d])
                return dt_fail(DT_E_SHAPE,
                               "Sizes of tensors must match except in dimension %lld. Expected size %lld but got size %lld for tensor number %d in the list.",
                               (long long)a->dim, (long long)ref->shape[d], (long long)m->shape[d], i);
        n->out[0].shape[a->dim] += m->shape[a->dim];
    }
    return DT_OK;
}
/* Inputs sharded along the joined dimension: each device fetches what its part of the result consists of. */
static dt_status place_joined(const dt_node *n, dt_rules *r) {
    int dim = (int)((const dt_cat_attr *)n->attr)->dim;
    int64_t at = 0;
    bool any = false;
    for (int i = 0; i < n->n_in; i++) any |= dt_rules_sharded(r, n->in[i], dim);
    if (!any) return DT_OK;
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    for (int i = 0; i < n->n_in; i++) {
        if (n->in[i]->ndim != n->out[0].ndim) continue;
        if (!dt_rules_window(&(dt_window){n->out[0].shape[dim], -at, 1, 1, false, false}, dim, &in[i])) {
            r->count--;
            return DT_OK;
        }
        at += n->in[i]->shape[dim];
    }
    out[0] = DT_S(dim);
    return DT_OK;
}
static dt_status place_cat(const dt_node *n, dt_rules *r) {
    const dt_cat_attr *a = n->attr;
    for (int d = 0; d < n->out[0].ndim; d++) {
        if (d == a->dim) continue;
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i]->ndim == n->out[0].ndim) in[i] = DT_S(d);
        out[0] = DT_S(d);
    }
    DT_TRY(place_joined(n, r));
    return dt_move_partial(n, r, DT_MOVE_ANY);
}
static void grad_cat(dt_grad *g) {
    const dt_cat_attr *a = dt_grad_attr(g);
    int64_t at = 0;
    for (int i = 0; i < g->call->n_in; i++) {
        const dt_meta *m = dt_grad_in_meta(g, i);
        bool skipped = ignored(m) && dt_grad_out_meta(g, 0)->ndim != 1;
        int64_t len = skipped ? 0 : m->shape[a->dim];
        if (dt_grad_needs(g, i)) {
            dt_tensor *gx = dt_slice(g->s, dt_grad_gy(g, 0), a->dim, at, at + len, 1);
            dt_grad_set(g, i, skipped ? dt_reshape(g->s, gx, DT_DIMS(0)) : gx);
        }
        at += len;
    }
}
const dt_op dt_op_cat = {
    .sig = "cat(Tensor[] tensors, int dim=0) -> Tensor",
    .doc = "Joins tensors along dim; their other sizes must agree. dtypes are promoted.",
    .also = "concat,concatenate",
    .where = DT_FN,
    .attrs = DT_ATTRS(dt_cat_attr, DT_FIELD(dt_cat_attr, dim)),
    .flags = DT_F_STRIDED,
    .infer = infer_cat,
    .place = place_cat,
    .grad = grad_cat,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_cat}},
};

/* ---- lists in compositions ---- */
typedef dt_tensor *(*map_fn)(dt_scope *s, dt_tensor *t, int64_t arg);
/* cat of fn(t, arg) over the list. */
static dt_tensor *cat_mapped(dt_scope *s, dt_list l, map_fn fn, int64_t arg, int64_t dim) {
    dt_tensor **v = dt_malloc(((size_t)l.n + 1) * sizeof *v);
    if (!v) {
        dt_scope_fail(s, dt_fail(DT_E_NOMEM, "cat: out of host memory"));
        return NULL;
    }
    for (int i = 0; i < l.n; i++) v[i] = fn(s, l.v[i], arg);
    dt_tensor *r = dt_cat(s, (dt_list){l.n, v}, dim);
    dt_free(v);
    return r;
}
static bool some(dt_scope *s, dt_list l, const char *name) {
    if (l.n > 0) return true;
    dt_scope_fail(s, dt_fail(DT_E_SHAPE, "%s expects a non-empty TensorList", name));
    return false;
}
static dt_tensor *as_1d(dt_scope *s, dt_tensor *t, int64_t arg) { return t && dt_ndim(t) == 0 ? dt_reshape(s, t, DT_DIMS(1)) : t; }
static dt_tensor *as_2d(dt_scope *s, dt_tensor *t, int64_t arg) {
    if (!t || dt_ndim(t) >= 2) return t;
    return dt_ndim(t) == 0 ? dt_reshape(s, t, DT_DIMS(1, 1)) : dt_unsqueeze(s, t, 0);
}
static dt_tensor *as_3d(dt_scope *s, dt_tensor *t, int64_t arg) {
    if (!t || dt_ndim(t) >= 3) return t;
    if (dt_ndim(t) == 2) return dt_unsqueeze(s, t, 2);
    return dt_ndim(t) == 0 ? dt_reshape(s, t, DT_DIMS(1, 1, 1)) : dt_unsqueeze(s, dt_unsqueeze(s, t, 0), 2);
}
static dt_tensor *as_column(dt_scope *s, dt_tensor *t, int64_t arg) { return t && dt_ndim(t) < 2 ? dt_reshape(s, t, DT_DIMS(-1, 1)) : t; }
static dt_tensor *unsqueezed(dt_scope *s, dt_tensor *t, int64_t dim) { return dt_unsqueeze(s, t, dim); }

static void compose_stack(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_list l = dt_arg_get_list(a, 0);
    int64_t dim = dt_arg_get_int(a, 1, 0);
    if (!some(s, l, "stack")) return;
    if (!dt_compose_dim(s, &dim, dt_ndim(l.v[0]) + 1)) return;
    for (int i = 1; i < l.n; i++) {
        bool same = dt_ndim(l.v[i]) == dt_ndim(l.v[0]) && !memcmp(dt_shape(l.v[i]), dt_shape(l.v[0]), (size_t)dt_ndim(l.v[0]) * sizeof(int64_t));
        if (same) continue;
        DT_STR(x, 128);
        DT_STR(y, 128);
        dt_shape_print(dt_ndim(l.v[0]), dt_shape(l.v[0]), &x);
        dt_shape_print(dt_ndim(l.v[i]), dt_shape(l.v[i]), &y);
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "stack expects each tensor to be equal size, but got %s at entry 0 and %s at entry %d", x.buf, y.buf, i));
        return;
    }
    dt_compose_return(out, n_out, cat_mapped(s, l, unsqueezed, dim, dim));
}
const dt_op dt_op_stack = {
    .sig = "stack(Tensor[] tensors, int dim=0) -> Tensor",
    .doc = "Joins tensors of one shape along a new dimension.",
    .where = DT_FN,
    .compose = compose_stack,
};
static void compose_hstack(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_list l = dt_arg_get_list(a, 0);
    if (some(s, l, "hstack")) dt_compose_return(out, n_out, cat_mapped(s, l, as_1d, 0, dt_ndim(l.v[0]) <= 1 ? 0 : 1));
}
const dt_op dt_op_hstack = {
    .sig = "hstack(Tensor[] tensors) -> Tensor",
    .doc = "Joins tensors along dimension 1 (0 for 1-dim tensors).",
    .where = DT_FN,
    .compose = compose_hstack,
};
static void compose_vstack(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_list l = dt_arg_get_list(a, 0);
    if (some(s, l, "vstack")) dt_compose_return(out, n_out, cat_mapped(s, l, as_2d, 0, 0));
}
const dt_op dt_op_vstack = {
    .sig = "vstack(Tensor[] tensors) -> Tensor",
    .doc = "Joins tensors as rows, along dimension 0 of their 2-dim forms.",
    .also = "row_stack",
    .where = DT_FN,
    .compose = compose_vstack,
};
static void compose_dstack(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_list l = dt_arg_get_list(a, 0);
    if (some(s, l, "dstack")) dt_compose_return(out, n_out, cat_mapped(s, l, as_3d, 0, 2));
}
const dt_op dt_op_dstack = {
    .sig = "dstack(Tensor[] tensors) -> Tensor",
    .doc = "Joins tensors along dimension 2 of their 3-dim forms.",
    .where = DT_FN,
    .compose = compose_dstack,
};
static void compose_column_stack(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_list l = dt_arg_get_list(a, 0);
    if (some(s, l, "column_stack")) dt_compose_return(out, n_out, cat_mapped(s, l, as_column, 0, 1));
}
const dt_op dt_op_column_stack = {
    .sig = "column_stack(Tensor[] tensors) -> Tensor",
    .doc = "Joins tensors as columns: 1-dim tensors become columns first.",
    .where = DT_FN,
    .compose = compose_column_stack,
};

static void compose_atleast_1d(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_return(out, n_out, as_1d(s, dt_arg_get_tensor(a, 0), 0));
}
static void compose_atleast_2d(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_return(out, n_out, as_2d(s, dt_arg_get_tensor(a, 0), 0));
}
static void compose_atleast_3d(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_return(out, n_out, as_3d(s, dt_arg_get_tensor(a, 0), 0));
}
const dt_op dt_op_atleast_1d = {
    .sig = "atleast_1d(Tensor input) -> Tensor",
    .doc = "A 0-dim tensor as (1,); others as they are.",
    .where = DT_FN,
    .compose = compose_atleast_1d,
};
const dt_op dt_op_atleast_2d = {
    .sig = "atleast_2d(Tensor input) -> Tensor",
    .doc = "Tensors of fewer than two dimensions as one row.",
    .where = DT_FN,
    .compose = compose_atleast_2d,
};
const dt_op dt_op_atleast_3d = {
    .sig = "atleast_3d(Tensor input) -> Tensor",
    .doc = "Tensors of fewer than three dimensions with sizes of 1 added.",
    .where = DT_FN,
    .compose = compose_atleast_3d,
};
static void map_list(dt_scope *s, dt_list l, map_fn fn, dt_tensor **out, int *n_out) {
    for (int i = 0; i < l.n; i++) out[i] = dt_keep(fn(s, l.v[i], 0));
    *n_out = l.n;
}
static void compose_atleast_1d_list(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { map_list(s, dt_arg_get_list(a, 0), as_1d, out, n_out); }
static void compose_atleast_2d_list(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { map_list(s, dt_arg_get_list(a, 0), as_2d, out, n_out); }
static void compose_atleast_3d_list(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) { map_list(s, dt_arg_get_list(a, 0), as_3d, out, n_out); }
const dt_op dt_op_atleast_1d_list = {
    .sig = "atleast_1d.list(Tensor[]... tensors) -> Tensor[]",
    .doc = "atleast_1d of each.",
    .where = DT_FN,
    .compose = compose_atleast_1d_list,
};
const dt_op dt_op_atleast_2d_list = {
    .sig = "atleast_2d.list(Tensor[]... tensors) -> Tensor[]",
    .doc = "atleast_2d of each.",
    .where = DT_FN,
    .compose = compose_atleast_2d_list,
};
const dt_op dt_op_atleast_3d_list = {
    .sig = "atleast_3d.list(Tensor[]... tensors) -> Tensor[]",
    .doc = "atleast_3d of each.",
    .where = DT_FN,
    .compose = compose_atleast_3d_list,
};

/* ---- repetition ---- */
/* t repeated reps[d] times along dim d: unit dimensions in front of the repeated ones are expanded, then merged. */
static dt_tensor *repeated(dt_scope *s, dt_tensor *t, const int64_t *reps) {
    int64_t ones[2 * DT_MAX_DIM], wide[2 * DT_MAX_DIM], final[DT_MAX_DIM];
    int n = 0, nd = dt_ndim(t);
    for (int d = 0; d < nd; d++) {
        int64_t size = dt_shape(t)[d];
        final[d] = size * reps[d];
        if (size == 1) {
            ones[n] = 1;
            wide[n++] = reps[d];
            continue;
        }
        if (reps[d] != 1) {
            ones[n] = 1;
            wide[n++] = reps[d];
        }
        ones[n] = wide[n] = size;
        n++;
    }
    if (n > DT_MAX_DIM) {
        dt_scope_fail(s, dt_fail(DT_E_VALUE, "repeat: %d repeated and kept dimensions together, at most %d are supported", n, DT_MAX_DIM));
        return NULL;
    }
    t = dt_expand(s, dt_reshape(s, t, (dt_dims){n, ones}), (dt_dims){n, wide}, false);
    return dt_reshape(s, dt_contiguous(s, t), (dt_dims){nd, final});
}
static void repeat(dt_scope *s, const char *name, dt_tensor *t, dt_dims r, dt_tensor **out, int *n_out) {
    int64_t reps[DT_MAX_DIM], shape[DT_MAX_DIM];
    int nd = dt_ndim(t), lead = r.n - nd;
    if (r.n > DT_MAX_DIM) {
        dt_scope_fail(s, dt_fail(DT_E_VALUE, "%s: more than %d dimensions", name, DT_MAX_DIM));
        return;
    }
    for (int d = 0; d < r.n; d++) {
        reps[d] = r.v[d];
        shape[d] = d < lead ? 1 : dt_shape(t)[d - lead];
        if (reps[d] >= 0) continue;
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "%s: repeats has a negative entry %lld", name, (long long)reps[d]));
        return;
    }
    if (lead > 0) t = dt_reshape(s, t, (dt_dims){r.n, shape});
    if (t) dt_compose_return(out, n_out, repeated(s, t, reps));
}
static void compose_repeat(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t = dt_arg_get_tensor(a, 0);
    dt_dims r = dt_arg_get_dims(a, 1);
    if (r.n < dt_ndim(t)) {
        dt_scope_fail(
            s, dt_fail(DT_E_SHAPE, "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor (%d < %d)", r.n, dt_ndim(t)));
        return;
    }
    repeat(s, "repeat", t, r, out, n_out);
}
const dt_op dt_op_repeat = {
    .sig = "repeat(Tensor input, int[]... repeats) -> Tensor",
    .doc = "The tensor repeated repeats[d] times along each dimension; extra leading entries add dimensions.",
    .where = DT_METHOD,
    .compose = compose_repeat,
};
static void compose_tile(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *t = dt_arg_get_tensor(a, 0);
    dt_dims r = dt_arg_get_dims(a, 1);
    int64_t reps[DT_MAX_DIM];
    int nd = dt_ndim(t), n = r.n < nd ? nd : r.n;
    if (n > DT_MAX_DIM) {
        dt_scope_fail(s, dt_fail(DT_E_VALUE, "tile: more than %d dimensions", DT_MAX_DIM));
        return;
    }
    for (int d = 0; d < n; d++) reps[d] = d < n - r.n ? 1 : r.v[d - (n - r.n)];
    repeat(s, "tile", t, (dt_dims){n, reps}, out, n_out);
}
const dt_op dt_op_tile = {
    .sig = "tile(Tensor input, int[]... dims) -> Tensor",
    .doc = "repeat, with dims filled with leading ones.",
    .where = DT_FN | DT_METHOD,
    .compose = compose_tile,
};

/* ---- grids ---- */
static void compose_broadcast_tensors(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_list l = dt_arg_get_list(a, 0);
    dt_type t = {0};
    for (int i = 0; i < l.n; i++) {
        dt_meta m = {.ndim = (uint8_t)dt_ndim(l.v[i])};
        memcpy(m.shape, dt_shape(l.v[i]), m.ndim * sizeof *m.shape);
        dt_status st = dt_broadcast("broadcast_tensors", &t, &m);
        if (st) {
            dt_scope_fail(s, st);
            return;
        }
    }
    for (int i = 0; i < l.n; i++) out[i] = dt_keep(dt_expand(s, l.v[i], (dt_dims){t.ndim, t.shape}, false));
    *n_out = l.n;
}
const dt_op dt_op_broadcast_tensors = {
    .sig = "broadcast_tensors(Tensor[]... tensors) -> Tensor[]",
    .doc = "Views of all tensors, expanded to the shape they broadcast to.",
    .where = DT_FN,
    .compose = compose_broadcast_tensors,
};
static void compose_meshgrid(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_list l = dt_arg_get_list(a, 0);
    const char *mode = a->a[1].kind == DT_ARG_STR ? a->a[1].s : "ij";
    bool xy = !strcmp(mode, "xy") && l.n > 1;
    int64_t shape[DT_MAX_DIM], ones[DT_MAX_DIM];
    if (!some(s, l, "meshgrid")) return;
    if (l.n > DT_MAX_DIM || (strcmp(mode, "ij") && strcmp(mode, "xy"))) {
        dt_scope_fail(s, dt_fail(DT_E_VALUE, "meshgrid: at most %d tensors, and indexing must be 'ij' or 'xy', got '%s'", DT_MAX_DIM, mode));
        return;
    }
    for (int i = 0; i < l.n; i++) {
        if (dt_ndim(l.v[i]) > 1) {
            dt_scope_fail(s, dt_fail(DT_E_SHAPE, "meshgrid: Expected 0D or 1D tensor in the tensor list but got %d dimensions", dt_ndim(l.v[i])));
            return;
        }
        shape[xy && i < 2 ? 1 - i : i] = dt_numel(l.v[i]);
    }
    for (int i = 0; i < l.n; i++) {
        int at = xy && i < 2 ? 1 - i : i;
        for (int d = 0; d < l.n; d++) ones[d] = d == at ? shape[d] : 1;
        out[i] = dt_keep(dt_expand(s, dt_reshape(s, l.v[i], (dt_dims){l.n, ones}), (dt_dims){l.n, shape}, false));
    }
    *n_out = l.n;
}
const dt_op dt_op_meshgrid = {
    .sig = "meshgrid(Tensor[]... tensors, *, str? indexing=None) -> Tensor[]",
    .doc = "Coordinate grids of 1-dim tensors, as expanded views. indexing 'ij' (default): dimension i varies with tensor i; 'xy' swaps the first two.",
    .where = DT_FN,
    .compose = compose_meshgrid,
};
static void compose_cartesian_prod(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_list l = dt_arg_get_list(a, 0);
    int64_t shape[DT_MAX_DIM], ones[DT_MAX_DIM];
    dt_tensor *part[DT_MAX_DIM];
    if (!some(s, l, "cartesian_prod")) return;
    for (int i = 0; i < l.n; i++)
        if (dt_ndim(l.v[i]) != 1 || l.n >= DT_MAX_DIM) {
            dt_scope_fail(s, dt_fail(DT_E_SHAPE, "cartesian_prod: Expect at most %d 1D vectors, but got %d with shape of %d dimensions at %d", DT_MAX_DIM - 1,
                                     l.n, dt_ndim(l.v[i]), i));
            return;
        }
    if (l.n == 1) {
        dt_compose_return(out, n_out, l.v[0]);
        return;
    }
    for (int i = 0; i < l.n; i++) shape[i] = dt_numel(l.v[i]);
    for (int i = 0; i < l.n; i++) {
        for (int d = 0; d < l.n; d++) ones[d] = d == i ? shape[d] : 1;
        part[i] = dt_reshape(s, dt_expand(s, dt_reshape(s, l.v[i], (dt_dims){l.n, ones}), (dt_dims){l.n, shape}, false), DT_DIMS(-1, 1));
    }
    dt_compose_return(out, n_out, dt_cat(s, (dt_list){l.n, part}, 1));
}
const dt_op dt_op_cartesian_prod = {
    .sig = "cartesian_prod(Tensor[]... tensors) -> Tensor",
    .doc = "All combinations of the elements of 1-dim tensors, as rows (one tensor: itself).",
    .where = DT_FN,
    .compose = compose_cartesian_prod,
};

/* Rows of blocks, each padded with zeros to the whole width. */
static void compose_block_diag(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_list l = dt_arg_get_list(a, 0);
    int64_t width = 0, at = 0;
    dt_tensor **v = dt_malloc(((size_t)l.n + 1) * sizeof *v);
    if (!v || !some(s, l, "block_diag")) {
        if (!v) dt_scope_fail(s, dt_fail(DT_E_NOMEM, "block_diag: out of host memory"));
        dt_free(v);
        return;
    }
    for (int i = 0; i < l.n; i++) {
        if (dt_ndim(l.v[i]) > 2) {
            dt_scope_fail(s, dt_fail(DT_E_SHAPE, "block_diag: Input tensors must have 2 or fewer dimensions. Input %d has %d dimensions", i, dt_ndim(l.v[i])));
            dt_free(v);
            return;
        }
        v[i] = as_2d(s, l.v[i], 0);
        width += v[i] ? dt_shape(v[i])[1] : 0;
    }
    for (int i = 0; i < l.n && v[i]; i++) {
        int64_t w = dt_shape(v[i])[1];
        v[i] = dt_slice_backward(s, v[i], DT_DIMS(dt_shape(v[i])[0], width), 1, at, at + w, 1);
        at += w;
    }
    dt_compose_return(out, n_out, dt_cat(s, (dt_list){l.n, v}, 0));
    dt_free(v);
}
const dt_op dt_op_block_diag = {
    .sig = "block_diag(Tensor[]... tensors) -> Tensor",
    .doc = "A matrix with the tensors (as matrices) along its diagonal, zeros elsewhere.",
    .where = DT_FN,
    .compose = compose_block_diag,
};
