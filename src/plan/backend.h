/* What a device must offer: memory and copies. One table per backend, in its own folder; the engine finds it by device type. */
#ifndef DT_PLAN_BACKEND_H
#define DT_PLAN_BACKEND_H

#include "plan/fused.h"
#include "plan/program.h"

typedef struct dt_backend {
    const char *name;
    void *(*alloc)(size_t bytes); /* 64-byte aligned; NULL when there is none */
    void (*free)(void *p, size_t bytes);
    /* dst = src: same dtype and shape, any strides; both addressable by the calling worker. */
    void (*copy)(const dt_view *dst, const dt_view *src, dt_team *team);
    void (*zero)(const dt_view *dst);
    /* dst = reduction over n sources. The order is fixed, so that a machine may form a part of it for another without changing a bit: neighbours are added in
     * pairs from the left, pairs of pairs, …; what is left over is added from the right ((0+1)+(2+3))+(4+5). leaves[k], NULL if all are 1: source k is
     * already such a sum over that many, a power of two. AVG divides by all of them. 16-bit floats accumulate in f32; dst and sources may also be of
     * the accumulator's type (dt_reduce_partial). */
    void (*reduce)(const dt_view *dst, const dt_view *src, const int *leaves, int n, dt_reduce op);
    /* Fusion (plan/fused.h); fused NULL: this backend has none. */
    dt_kernel_fn elementwise;                  /* the kernel of a fusable op on its own */
    dt_kernel_fn fused;                        /* ctx.attr is a dt_fused */
    bool (*can_fuse)(int code, dt_dtype tile); /* is there a block function? */
    dt_kernel_fn dropout;                      /* the kernel that a group may take in; NULL: none */
    int (*reduction)(dt_kernel_fn fn);         /* dt_fused_kind of a kernel that reduces (dt_reduce_attr), 0: none */
    dt_lookup (*lookup)(dt_kernel_fn fn);      /* of a kernel that reads by index */
    /* Are all indices of a group's look-up legal? */
    dt_status (*check_lookup)(const dt_fused_op *o, const dt_view *index);
    /* A backend without workers goes through whole runs at once, on the thread that dispatches. NULL: workers do it. */
    void (*run)(dt_run *r);
    void (*read)(dt_device d, const dt_view *dst); /* with run: a part for the host */
    int64_t (*memory)(void);                       /* bytes of a device, 0: no limit; NULL: no limit */
} dt_backend;

/* What a sum over some of the sources must be kept in. */
static inline dt_dtype dt_reduce_partial(dt_dtype t, dt_reduce op) {
    if (t == DT_bfloat16 || t == DT_float16) return DT_float32;
    return op == DT_AVG && t != DT_float32 && t != DT_float64 ? DT_int64 : t;
}

extern const dt_backend dt_backend_cpu, dt_backend_sim;
const dt_backend *dt_backend_of(dt_device_type t); /* NULL: not in this build */

#endif
