/* What the ops that move data share: views, joins, indexing. Attribute structs that kernels read, argument readers for compositions,
 * placement rules of pure data movement. Any thread for the pure parts; placement on the client's thread. */
#ifndef DT_OPS_MOVEMENT_H
#define DT_OPS_MOVEMENT_H

#include "dtorch.h"
#include "ops/op.h"

/* Pieces of a tensor. After infer: dims wrapped, start and end clamped to [0, size], end >= start. */
typedef struct dt_slice_attr { /* slice, narrow, select, slice_scatter, slice_backward */
    int64_t dim, start, end, step;
    int64_t index, length; /* as select and narrow take them */
    dt_ints sizes;         /* slice_backward: the shape of the whole */
} dt_slice_attr;
typedef struct dt_diagonal_attr { /* diagonal, diagonal_scatter, diagonal_backward */
    int64_t offset, dim1, dim2;
    dt_ints sizes;
} dt_diagonal_attr;
typedef struct dt_strided_attr { /* as_strided and its scatter and backward; strides of the contiguous base */
    dt_ints size, stride;
    int64_t storage_offset;
    dt_ints sizes;
} dt_strided_attr;
typedef struct dt_unfold_attr { /* unfold, unfold_backward */
    int64_t dimension, size, step;
    dt_ints sizes;
} dt_unfold_attr;

typedef struct dt_tri_attr {
    int64_t diagonal;
} dt_tri_attr;
typedef struct dt_embedding_attr { /* embedding, embedding_backward */
    int64_t padding_idx, num_weights, row_shards;
    double max_norm, norm_type;
    bool scale_grad_by_freq, sparse;
} dt_embedding_attr;
typedef struct dt_cat_attr {
    int64_t dim;
} dt_cat_attr;

typedef enum dt_reduce_mode { DT_RM_SET, DT_RM_ADD, DT_RM_MUL, DT_RM_MAX, DT_RM_MIN, DT_RM_MEAN } dt_reduce_mode;
typedef struct dt_index_attr { /* index_select, index_add …, gather, scatter …: along one dimension */
    int64_t dim;
    int64_t mode; /* dt_reduce_mode */
    const char *reduce;
    bool include_self, sparse_grad;
    dt_ints sizes;
} dt_index_attr;
typedef struct dt_index_put_attr { /* index, index_put and their gradients: by tensors */
    bool accumulate;
    int64_t n_lead;   /* the result: this many un-indexed dims, the indices' dims, the other un-indexed dims */
    int64_t n_result; /* rank of the result */
    dt_ints shape;    /* the indices' broadcast shape */
    dt_ints sizes;    /* _index_backward: of the whole */
} dt_index_put_attr;

typedef struct dt_flip_attr {
    dt_ints dims;
} dt_flip_attr;
typedef struct dt_pad_attr { /* pad: (before, after) pairs from the last dimension backwards */
    dt_ints pad, sizes;
    int64_t mode; /* 1 reflect, 2 replicate, 3 circular */
} dt_pad_attr;

/* The part of `base` that the attributes name: strides of out, and its first element; shape too. Pure. */
void dt_slice_view(const dt_slice_attr *a, const dt_view *base, dt_view *out);
void dt_diagonal_view(const dt_diagonal_attr *a, const dt_view *base, dt_view *out);
void dt_strided_view(const dt_strided_attr *a, const dt_view *base, dt_view *out); /* base contiguous */
void dt_unfold_view(const dt_unfold_attr *a, const dt_view *base, dt_view *out);

/* A shape given as an attribute, as the type of output 0 with input 0's dtype. */
static inline dt_status dt_infer_sizes(dt_node *n, const dt_ints *sizes) {
    if (sizes->n < 0 || sizes->n > DT_MAX_DIM)
        return dt_fail(DT_E_VALUE, "%s: a shape of %d dimensions, at most %d are legal", dt_op_name(n->op), sizes->n, DT_MAX_DIM);
    n->out[0] = (dt_type){.dtype = (dt_dtype)n->in[0]->dtype, .ndim = sizes->n};
    for (int d = 0; d < sizes->n; d++) n->out[0].shape[d] = sizes->v[d];
    return DT_OK;
}

/* ---- placement rules ---- */
/* Dimension d of input 0 (bit d of `dims` set) appears in output 0 as dimension map[d] (< 0: nowhere): Shard passes. Other inputs with the
 * rank of input 0, or of output 0, are sharded alike. */
dt_status dt_move_rules(const dt_node *n, dt_rules *r, const int *map) DT_WUR;
/* Partial in every tensor input -> Partial in every output; kinds: DT_MOVE_ANY for pure copies, DT_MOVE_LINEAR where zeros come in. */
enum { DT_MOVE_LINEAR = 2, DT_MOVE_ANY = 4 };
dt_status dt_move_partial(const dt_node *n, dt_rules *r, int kinds) DT_WUR;

/* The elements of x where mask, of the same shape, is true; waits for the mask. */
dt_tensor *dt_masked_pick(dt_scope *s, dt_tensor *x, dt_tensor *mask);

/* ---- arguments of compositions ---- */
static inline bool dt_arg_given(const dt_args *a, int i) { return a->a[i].kind != DT_ARG_NONE; }
static inline dt_tensor *dt_arg_get_tensor(const dt_args *a, int i) { return a->a[i].kind == DT_ARG_TENSOR ? a->a[i].t : NULL; }
static inline int64_t dt_arg_get_int(const dt_args *a, int i, int64_t def) { return dt_arg_given(a, i) ? a->a[i].i : def; }
static inline bool dt_arg_get_bool(const dt_args *a, int i, bool def) { return dt_arg_given(a, i) ? a->a[i].i != 0 : def; }
static inline dt_dims dt_arg_get_dims(const dt_args *a, int i) {
    const dt_arg *g = &a->a[i];
    return g->kind == DT_ARG_INTS ? (dt_dims){g->n, g->ints} : g->kind == DT_ARG_INT ? (dt_dims){1, &g->i} : DT_NO_DIMS;
}
static inline dt_list dt_arg_get_list(const dt_args *a, int i) {
    const dt_arg *g = &a->a[i];
    return g->kind == DT_ARG_TENSORS ? (dt_list){g->n, g->list} : g->kind == DT_ARG_TENSOR ? (dt_list){1, &g->t} : (dt_list){0, NULL};
}
static inline dt_value dt_arg_get_value(const dt_args *a, int i) {
    const dt_arg *g = &a->a[i];
    switch (g->kind) {
    case DT_ARG_TENSOR: return DT_V(g->t);
    case DT_ARG_FLOAT: return DT_V(g->f);
    case DT_ARG_INT: return DT_V(g->i);
    case DT_ARG_BOOL: return dt_v_bool(g->i != 0);
    default: return DT_NOTHING;
    }
}
static inline dt_dims dt_shape_dims(const dt_tensor *t) { return t ? (dt_dims){dt_ndim(t), dt_shape(t)} : (dt_dims){0, NULL}; }
static inline dt_dims dt_meta_dims(const dt_meta *m) { return (dt_dims){m->ndim, m->shape}; }
/* A composition's only result: out[0] = a new reference. */
static inline void dt_compose_return(struct dt_tensor **out, int *n_out, dt_tensor *t) {
    out[0] = dt_keep(t);
    *n_out = t ? 1 : 0;
}
/* Wrap a dimension; on failure the scope has the error and false comes back. */
static inline bool dt_compose_dim(dt_scope *s, int64_t *dim, int ndim) {
    dt_status st = dt_dim_wrap(dim, ndim);
    if (st) dt_scope_fail(s, st);
    return !st;
}

#endif
