/* Metadata of a tensor, interned: equal (dtype, shape, mesh, placements) = equal pointer, never freed.
 *
 * A tensor on the client, a value in the controller and an operand of a call all carry a `const dt_meta *`; comparing two is comparing
 * pointers, hashing one is hashing its address. A Python number that takes part in an operation has a meta too: `wrapped`, 0-dim, of
 * float64, int64 or bool, on no mesh; its value travels with the call and is not part of any key. `link.hash` is made of the content alone (so is a
 * mesh's and a spec's), so it is the same in every process that runs the program. Threads: as mesh.h. */
#ifndef DT_TENSOR_META_H
#define DT_TENSOR_META_H

#include "tensor/dtype.h"
#include "tensor/mesh.h"

/* What shape inference works on: no mesh, no placement. */
typedef struct dt_type {
    dt_dtype dtype;
    int ndim;
    int64_t shape[DT_MAX_DIM];
} dt_type;

typedef struct dt_meta {
    dt_hlink link;
    uint8_t dtype; /* dt_dtype */
    uint8_t ndim;
    uint8_t wrapped; /* a Python number */
    uint8_t sharded; /* any placement but Replicate on a mesh dimension of size > 1 */
    int64_t numel;
    const dt_mesh *mesh; /* NULL for wrapped */
    dt_placement place[DT_MAX_MESH_DIM];
    int64_t shape[DT_MAX_DIM]; /* global; zero beyond ndim */
} dt_meta;

/* spec NULL: a plain tensor on cpu:0. Errors: E_PLACEMENT (a shard dimension out of range), E_VALUE (negative or overflowing sizes). */
dt_status dt_meta_intern(const dt_type *type, const dt_mesh *mesh, const dt_placement *place, const dt_meta **out) DT_WUR;
const dt_meta *dt_meta_wrapped(dt_dtype number); /* DT_float64, DT_int64 or DT_bool */
/* The same mesh and placements with another type; the same type with another spec. */
dt_status dt_meta_with_type(const dt_meta *m, const dt_type *type, const dt_meta **out) DT_WUR;
dt_status dt_meta_with_dtype(const dt_meta *m, dt_dtype dtype, const dt_meta **out) DT_WUR;
dt_status dt_meta_with_spec(const dt_meta *m, const dt_mesh *mesh, const dt_placement *place, const dt_meta **out) DT_WUR;
static inline dt_type dt_meta_type(const dt_meta *m) {
    dt_type t = {(dt_dtype)m->dtype, m->ndim, {0}};
    for (int i = 0; i < m->ndim; i++) t.shape[i] = m->shape[i];
    return t;
}
int64_t dt_type_numel(const dt_type *t);
/* "(2, 3)" and 'float32 (2, 3) on DeviceMesh(..) [Shard(0)]' */
void dt_shape_print(int ndim, const int64_t *shape, dt_str *s);
void dt_meta_print(const dt_meta *m, dt_str *s);
void dt_placements_print(const dt_mesh *mesh, const dt_placement *p, dt_str *s);
bool dt_meta_same_shape(const dt_meta *a, const dt_meta *b);
size_t dt_metas_count(void); /* how many are interned: for tests of boundedness */

/* A dimension in [-ndim, ndim) to [0, ndim) (ndim 0 counts as 1). E_INDEX with PyTorch's text. */
dt_status dt_dim_wrap(int64_t *dim, int ndim) DT_WUR;

#endif
