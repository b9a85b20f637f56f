/* dtorch.h: the public C API. A C program can be the client, just as Python is.
 *
 *   dt_scope *s = dt_scope_new();
 *   dt_tensor *w = dt_keep(dt_randn(s, DT_DIMS(10, 64), DT_float32, NULL, NULL));
 *   dt_requires_grad_set(w, true);
 *   dt_tensor *loss = dt_sum(s, dt_matmul(s, x, w), …);
 *   if (dt_scope_status(s)) fprintf(stderr, "%s\n", dt_error());
 *   dt_backward(loss, …);
 *
 * A tensor is a symbol: calls return at once, values are computed by the controller and its workers, and only reading a value waits.
 * A scope owns the temporaries made through it and keeps the first error: a call on a scope with an error, or with a NULL tensor, does
 * nothing and returns NULL, so a formula needs one check at its end. dt_keep takes a tensor out of its scope.
 * The operators themselves are in the generated dtorch_ops.h, one function per op of the table.
 *
 * Threads: one thread at a time may call (dtorch.h takes no lock of its own; the Python extension holds the GIL). */
#ifndef DTORCH_H
#define DTORCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DT_API __attribute__((visibility("default")))

typedef struct dt_tensor dt_tensor;
typedef struct dt_scope dt_scope;
typedef struct dt_generator dt_generator;
struct dt_mesh;
struct dt_spec;
struct dt_meta;

#ifndef DT_INTERNAL /* inside the library tensor/dtype.h defines the same */
enum { DT_bool, DT_uint8, DT_int8, DT_int16, DT_int32, DT_int64, DT_float16, DT_bfloat16, DT_float32, DT_float64, DT_DTYPE_NONE = 255 };
#endif

/* A tensor or a number, for parameters that take either: DT_V(x) makes one from dt_tensor *, double, int, int64_t or bool. */
typedef struct dt_value {
    int kind; /* 0 absent, 1 tensor, 2 float, 3 integer, 4 bool */
    union {
        dt_tensor *t;
        double f;
        int64_t i;
    };
} dt_value;
static inline dt_value dt_v_tensor(dt_tensor *t) { return (dt_value){1, {.t = t}}; }
static inline dt_value dt_v_float(double f) { return (dt_value){2, {.f = f}}; }
static inline dt_value dt_v_int(int64_t i) { return (dt_value){3, {.i = i}}; }
static inline dt_value dt_v_bool(bool b) { return (dt_value){4, {.i = b}}; }
static inline dt_value dt_v_same(dt_value v) { return v; }
#define DT_V(x)                        \
    _Generic((x), dt_tensor *          \
             : dt_v_tensor, double     \
             : dt_v_float, float       \
             : dt_v_float, int         \
             : dt_v_int, long          \
             : dt_v_int, long long     \
             : dt_v_int, unsigned char \
             : dt_v_int, bool          \
             : dt_v_bool, dt_value     \
             : dt_v_same)(x)
#define DT_NOTHING ((dt_value){0})

/* A list of ints: dims and shapes. DT_DIMS(2, 3); DT_NO_DIMS is None. */
typedef struct dt_dims {
    int n;
    const int64_t *v;
} dt_dims;
#define DT_DIMS(...) ((dt_dims){(int)(sizeof((const int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]){__VA_ARGS__}})
#define DT_NO_DIMS ((dt_dims){-1, NULL})
typedef struct dt_list {
    int n;
    dt_tensor *const *v;
} dt_list;
#define DT_LIST(...) ((dt_list){(int)(sizeof((dt_tensor *const[]){__VA_ARGS__}) / sizeof(dt_tensor *)), (dt_tensor *const[]){__VA_ARGS__}})

/* Scopes. */
DT_API dt_scope *dt_scope_new(void);                       /* NULL: out of host memory */
DT_API void dt_scope_free(dt_scope *s);                    /* releases its temporaries */
DT_API void dt_scope_clear(dt_scope *s);                   /* releases the temporaries and the error, keeps the scope */
DT_API int dt_scope_status(dt_scope *s);                   /* 0 = fine; a dt_status otherwise */
DT_API dt_tensor *dt_scope_own(dt_scope *s, dt_tensor *t); /* s takes over one reference; returns t */
DT_API const char *dt_error(void);                         /* text of the last failure on this thread */

/* References. */
DT_API dt_tensor *dt_keep(dt_tensor *t); /* one more reference (NULL passes) */
DT_API void dt_release(dt_tensor *t);

/* Properties; never wait. */
DT_API int dt_ndim(const dt_tensor *t);
DT_API const int64_t *dt_shape(const dt_tensor *t);
DT_API int64_t dt_numel(const dt_tensor *t);
DT_API int dt_dtype_of(const dt_tensor *t);
DT_API bool dt_is_sharded(const dt_tensor *t, int dim);      /* over more than one device along tensor dimension dim */
DT_API const struct dt_meta *dt_meta_of(const dt_tensor *t); /* dtype, shape, mesh, placements: opaque outside the library */

/* Data in and out. dt_from_host copies `data` (contiguous) at the call. dt_read waits until the value is there and copies the whole,
 * gathered tensor, contiguous, into `out` of `bytes` bytes. dt_item_f64 waits for the only element. 0 = success. */
DT_API dt_tensor *dt_from_host(dt_scope *s, const void *data, int dtype, dt_dims shape);
DT_API int dt_read(dt_tensor *t, void *out, size_t bytes);
DT_API int dt_item_f64(dt_tensor *t, double *out);
DT_API int dt_synchronize(void); /* waits for all work submitted so far */

/* Autograd. */
DT_API void dt_requires_grad_set(dt_tensor *t, bool on);
DT_API bool dt_requires_grad(const dt_tensor *t);
DT_API dt_tensor *dt_grad_of(const dt_tensor *t); /* borrowed; NULL if none */
DT_API void dt_grad_clear(dt_tensor *t);
DT_API int dt_backward(dt_tensor *loss, dt_tensor *gradient /* NULL: ones */, bool retain_graph, bool create_graph);
DT_API bool dt_grad_mode_set(bool on); /* returns the previous */

/* Random numbers. */
DT_API void dt_manual_seed(uint64_t seed);
DT_API void dt_random_take(uint64_t n, dt_value *seed, dt_value *offset); /* n counters of the default generator's stream */

/* Distribution. */
DT_API const struct dt_mesh *dt_mesh_cpu(int ndim, const int64_t *dims, const char *const *names);              /* cpu:0 … ; NULL + dt_error */
DT_API dt_tensor *dt_distribute(dt_scope *s, dt_tensor *t, const struct dt_mesh *mesh, const char *placements); /* "S0,R,P" per mesh dim */
DT_API void dt_set_num_threads(int n);

#ifdef __cplusplus
}
#endif
#endif
