/* Layout: pure functions from (meta, position in the mesh) to the box of the global tensor that this device holds.
 *
 * The one source for shards, reading, writing, saving, loading and random numbers. A Shard(d) over k devices cuts as torch.chunk:
 * pieces of ceil(n/k), the last ones shorter or empty. Several mesh dimensions may shard one tensor dimension: the first mesh dimension
 * cuts first, the next cuts each piece.
 *
 * Strided shards: a dimension of n seen as A rows of n/A. Plain shards of that dimension then cut the rows, strided ones cut each row:
 *
 *     n = 12, A = 3, strided over 2 devices:   device 0: 0 1 | 4 5 | 8 9     device 1: 2 3 | 6 7 | 10 11
 *
 * so along each dimension a device holds `rows` runs of `run` indices, `step` apart, the first at lo.
 *
 * Windows: what a device must hold of an operand when the call's result is sharded along a dimension that the call moves: a slice, a join, a
 * flip, a padding. A window is a map from intervals of the result to intervals of the operand (dt_window). Shards that are windows may overlap
 * or leave parts out; only operands of calls lie so, and redistribution brings the boxes there. Any thread. */
#ifndef DT_TENSOR_LAYOUT_H
#define DT_TENSOR_LAYOUT_H

#include "tensor/meta.h"

/* A box in global index space; entries beyond ndim are unspecified. Empty when any len is 0. len = rows * run is the local size. Where
 * rows is 1, run is len and step means nothing. */
typedef struct dt_box {
    int64_t lo[DT_MAX_DIM], len[DT_MAX_DIM], rows[DT_MAX_DIM], step[DT_MAX_DIM];
} dt_box;
/* Where global index g, which the box holds along dimension d, lies in the device's part. */
static inline int64_t dt_box_local(const dt_box *b, int d, int64_t g) {
    if (b->rows[d] <= 1) return g - b->lo[d];
    return (g - b->lo[d]) / b->step[d] * (b->len[d] / b->rows[d]) + (g - b->lo[d]) % b->step[d];
}

/* The result's dimension has n entries, in chunks as always. Entry i of it reads entries [start + i*step, start + i*step + extent) of the
 * operand; or, if `backwards`, entry j of the operand is read by entries [start + j*step, start + j*step + extent) of the result. `same`: every
 * device holds what entry 0 reads, as the result is not sharded there. Intervals are cut off at the operand's ends. */
typedef struct dt_window {
    int64_t n, start, step, extent;
    bool backwards, same;
} dt_window;
/* Windows are interned and never freed. *id: a number above 0; 0 when there is no room for more, and then the rule that wants it is not stated.
 * The client's thread. */
int32_t dt_window_intern(const dt_window *w);
const dt_window *dt_window_at(int32_t id); /* any thread */
/* The operand's entries [*lo, *lo + *len), of `size` in all, that entries [at, at + count) of the result read. */
void dt_window_map(const dt_window *w, int64_t size, int64_t at, int64_t count, int64_t *lo, int64_t *len);

void dt_layout_chunk(int64_t n, int64_t parts, int64_t i, int64_t *lo, int64_t *len);
/* The box held by the mesh's pos-th device. */
void dt_layout_box(const dt_meta *m, int pos, dt_box *box);
int64_t dt_box_numel(const dt_box *b, int ndim);
/* The intersection of boxes without rows; false if empty. A box of zero dimensions is one element. */
bool dt_box_intersect(const dt_box *a, const dt_box *b, int ndim, dt_box *out);
/* Is pos the first of the devices that hold the same data (coordinate 0 along every replicated or partial mesh dimension)? */
bool dt_layout_is_first(const dt_meta *m, int pos);
/* The largest number of bytes that one device holds. */
int64_t dt_layout_bytes_max(const dt_meta *m);

#endif
