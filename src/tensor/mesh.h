/* Devices, meshes and placements: who holds which part of a tensor.
 *
 * A device is a type and an index. A mesh is an N-D array of devices, row-major, dimensions optionally named; it is interned and never
 * freed, so equal meshes have equal pointers. A plain tensor lives on a mesh of zero dimensions with one device: there is no second kind
 * of tensor. A placement says, for one mesh dimension, how a tensor is spread along it.
 *
 * Threads: interning takes a lock; everything else is pure and reads immutable data. */
#ifndef DT_TENSOR_MESH_H
#define DT_TENSOR_MESH_H

#include "base/hash.h"

enum { DT_MAX_DIM = 12, DT_MAX_MESH_DIM = 6, DT_MAX_DEVICES = 4096 };

typedef enum dt_device_type { DT_CPU, DT_SIM, DT_CUDA, DT_DEVICE_TYPES } dt_device_type;
/* type << 16 | index */
typedef uint32_t dt_device;
static inline dt_device dt_device_make(dt_device_type type, uint32_t index) { return (uint32_t)type << 16 | index; }
static inline dt_device_type dt_device_kind(dt_device d) { return (dt_device_type)(d >> 16); }
static inline uint32_t dt_device_index(dt_device d) { return d & 0xffff; }
const char *dt_device_type_name(dt_device_type t);
extern dt_device dt_default_device; /* of what is placed nowhere else: cpu:0; sim:0 in a simulation. Set while nothing is under way */

/* What connects the devices along a mesh dimension, for the choice of redistributions. Neighbours in one machine unless said otherwise. */
typedef struct dt_link {
    double bandwidth; /* bytes a second that a device sends */
    double latency;   /* seconds that a collective takes besides */
} dt_link;
#define DT_LINK_LOCAL ((dt_link){1e10, 4096 / 1e10})
#define DT_LINK_NETWORK ((dt_link){1.25e9, 3e-5})

typedef struct dt_mesh {
    dt_hlink link;
    int ndim, n;                  /* n = product of dim; 1 when ndim == 0 */
    int64_t dim[DT_MAX_MESH_DIM]; /* >= 1 */
    char name[DT_MAX_MESH_DIM][16];
    dt_link wire[DT_MAX_MESH_DIM]; /* no part of the identity; the client's thread alone reads and sets it */
    const int32_t *sorted;         /* (n,) positions in the order of their devices; behind dev */
    dt_device dev[];               /* (n,) row-major */
} dt_mesh;

/* dims: (ndim,) devices: (product,) names: NULL or (ndim,). Errors: E_VALUE on sizes, duplicate devices or names. */
dt_status dt_mesh_intern(int ndim, const int64_t *dims, const dt_device *devices, const char *const *names, const dt_mesh **out) DT_WUR;
void dt_mesh_link_set(const dt_mesh *m, int d, dt_link w);
const dt_mesh *dt_mesh_single(dt_device d); /* the mesh of a plain tensor; NULL only when host memory is exhausted */
/* The coordinates of the mesh's i-th device. */
void dt_mesh_coords(const dt_mesh *m, int i, int64_t *coords);
int dt_mesh_index(const dt_mesh *m, const int64_t *coords);
int dt_mesh_find(const dt_mesh *m, dt_device d); /* position, or -1 */
void dt_mesh_print(const dt_mesh *m, dt_str *s);

typedef enum dt_placement_kind { DT_REPLICATE, DT_SHARD, DT_PARTIAL } dt_placement_kind;
typedef enum dt_reduce { DT_SUM, DT_AVG, DT_MAX, DT_MIN } dt_reduce;
typedef struct dt_placement {
    uint8_t kind;   /* dt_placement_kind */
    uint8_t reduce; /* dt_reduce, for DT_PARTIAL */
    int8_t dim;     /* tensor dimension, for DT_SHARD; never negative once in a meta */
    uint8_t window; /* for DT_SHARD: `split` is the number of a window (layout.h). Operands of calls only, never a user's placement. */
    /* For DT_SHARD: 0 = chunks as torch.chunk. split = A > 1 is a strided shard: the dimension is seen as A rows, and every row is cut into
     * chunks alike. It is what a sharded dimension becomes when it is merged behind an unsharded one. */
    int32_t split;
} dt_placement;
#define DT_R ((dt_placement){DT_REPLICATE, 0, 0, 0, 0})
#define DT_S(d) ((dt_placement){DT_SHARD, 0, (int8_t)(d), 0, 0})
#define DT_S_ROWS(d, rows) ((dt_placement){DT_SHARD, 0, (int8_t)(d), 0, (rows) > 1 ? (int32_t)(rows) : 0})
#define DT_S_WINDOW(d, id) ((dt_placement){DT_SHARD, 0, (int8_t)(d), 1, (id)})
#define DT_P ((dt_placement){DT_PARTIAL, DT_SUM, 0, 0, 0})
#define DT_P_OF(r) ((dt_placement){DT_PARTIAL, (r), 0, 0, 0})
static inline uint64_t dt_placement_word(dt_placement p) {
    return p.kind | (uint64_t)p.reduce << 8 | (uint64_t)(uint8_t)p.dim << 16 | (uint64_t)p.window << 24 | (uint64_t)(uint32_t)p.split << 32;
}
static inline bool dt_placement_equal(dt_placement a, dt_placement b) { return dt_placement_word(a) == dt_placement_word(b); }
void dt_placement_print(dt_placement p, dt_str *s); /* Replicate(), Shard(0), Partial("sum") */

/* A mesh with one placement per mesh dimension: where a result shall lie. Interned. */
typedef struct dt_spec {
    dt_hlink link;
    const dt_mesh *mesh;
    dt_placement place[DT_MAX_MESH_DIM];
} dt_spec;
dt_status dt_spec_intern(const dt_mesh *mesh, const dt_placement *place, const dt_spec **out) DT_WUR;

#endif
