/* What the files of the extension share. Glue only: every function here turns Python objects into a call of client.h and back.
 *
 *   module.c    the module, exceptions, late start and stop          dtype.c   dtype, device, Size
 *   tensor.c    the Tensor type: wrapper, life time, properties      mesh.c    DeviceMesh, Shard, Replicate, Partial
 *   method.c    methods that are no operators (item, to, detach …)   args.c    Python arguments → dt_args, by the op's signature
 *   number.c    x + y, x < y, bool(x)                                convert.c single values
 *                                                                    opfunc.c  one callable per operator name
 *   index.c     x[…] and x[…] = v                                    site.c    the caller's file and line, cached
 *   data.c      tensor(), numpy, buffers      dlpack.c  DLPack       future.c  waiting, futures
 *   mode.c      grad mode, default dtype, policy, statistics         autograd.c  backward, hooks, custom functions
 *
 * A py_tensor owns one reference on its dt_tensor, whose `user` points back (weak), so a handle has one Python object at a time.
 * All functions need the GIL. A dt_status becomes an exception by dt_py_raise; -1 and NULL mean that an exception is set. */
#ifndef DT_PYTHON_PY_H
#define DT_PYTHON_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "client/client.h"

/* ---- module.c ---- */
typedef struct py_tensor {
    PyObject_HEAD dt_tensor *t; /* never NULL once made */
    PyObject *dict, *weak;
} py_tensor;

void *dt_py_raise(dt_status s); /* sets the exception of s (unless a callback has set one already); returns NULL */
int dt_py_raise_int(dt_status s);
extern PyObject *dt_py_module; /* dtorch._C, borrowed for the process's life */
/* An attribute of a module that is imported at first use ("dtorch._tensor", "name"); a borrowed reference kept for good. */
PyObject *dt_py_lazy(PyObject **slot, const char *module, const char *name);
#define DT_PY_CHECK(expr)                                     \
    do {                                                      \
        dt_status s_ = (expr);                                \
        if (DT_UNLIKELY(s_ != DT_OK)) return dt_py_raise(s_); \
    } while (0)

/* ---- tensor.c ---- */
extern PyTypeObject *dt_py_tensor_type;
static inline bool dt_py_is_tensor(PyObject *o) { return Py_TYPE(o) == dt_py_tensor_type || PyType_IsSubtype(Py_TYPE(o), dt_py_tensor_type); }
static inline dt_tensor *dt_py_tensor_of(PyObject *o) { return ((py_tensor *)o)->t; }
PyObject *dt_py_wrap(dt_tensor *t);                        /* takes the reference; NULL passes as NULL */
PyObject *dt_py_wrap_as(PyTypeObject *type, dt_tensor *t); /* an instance of a subclass; t must have no object yet */
int dt_py_tensor_init(PyObject *module);
PyObject *dt_py_tensor_dict(PyObject *self, void *x);
extern PyMethodDef dt_py_tensor_methods[]; /* method.c */
extern PyGetSetDef dt_py_tensor_getset[];
int dt_py_number_slots(PyType_Slot *slots); /* number.c; returns how many were written */

/* ---- dtype.c ---- */
typedef struct py_dtype {
    PyObject_HEAD dt_dtype id;
} py_dtype;
extern PyTypeObject dt_py_dtype_type, dt_py_device_type, *dt_py_size_type;
PyObject *dt_py_dtype(dt_dtype t);                 /* new reference */
int dt_py_dtype_parse(PyObject *o, dt_dtype *out); /* dtype object or float, int, bool: 1; other: 0 */
typedef struct py_device {
    PyObject_HEAD dt_device dev;
    bool has_index;
} py_device;
PyObject *dt_py_device(dt_device d, bool has_index);
int dt_py_device_parse(PyObject *o, dt_device *out); /* 1; 0 = not a device; -1 = exception */
PyObject *dt_py_size(int n, const int64_t *v);
PyObject *dt_py_shape(const dt_meta *m); /* cached per meta */
int dt_py_dtype_init(PyObject *module);

/* ---- mesh.c ---- */
int dt_py_mesh_init(PyObject *module);
PyObject *dt_py_mesh(const dt_mesh *m);
PyObject *dt_py_placements(const dt_meta *m);
bool dt_py_is_mesh(PyObject *o);
bool dt_py_is_placement(PyObject *o);
/* mesh, placements (a sequence, one placement, a dict by name, or NULL/None = all Replicate) → spec; ndim > 0 wraps negative dims. */
int dt_py_spec(PyObject *mesh, PyObject *placements, int ndim, const dt_spec **out);
/* For a tensor of meta m: another mesh and/or placements (a dict changes only the dimensions that it names). */
int dt_py_spec_change(const dt_meta *m, PyObject *mesh, PyObject *placements, const dt_spec **out);
int dt_py_spec_of_device(dt_device d, const dt_spec **out);
int dt_py_spec_of_meta(const dt_meta *m, const dt_spec **out);

/* ---- args.c ---- */
typedef struct py_sig { /* one overload */
    const dt_op *op;
    const dt_op_info *info;
    PyObject *name[DT_MAX_PARAMS]; /* interned */
    PyObject *ret_type;            /* named tuple, or NULL */
    int n_pos, self;               /* positional parameters; the one that is `self` of a method */
    bool factory;
} py_sig;
enum { DT_PY_LIST_INLINE = 16 };
typedef struct py_parse {
    dt_args args;
    int n_ints, n_list;
    dt_tensor **list;                           /* list_inline or allocated; references, n_list */
    PyObject *out, *device, *mesh, *placements; /* borrowed keyword arguments; NULL = not given */
    bool requires_grad;
    int64_t ints[5][DT_MAX_INTS]; /* fold has five */
    dt_tensor *list_inline[DT_PY_LIST_INLINE];
} py_parse;
int dt_py_sig_init(py_sig *s, const dt_op *op);
/* 1 = parsed (end with dt_py_parse_fini), 0 = these arguments do not fit (explain: TypeError is set), -1 = exception. */
int dt_py_parse(const py_sig *s, bool method, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, py_parse *p, bool explain);
void dt_py_parse_fini(py_parse *p);
/* Set the TypeError for arguments that none of `count` overloads takes. */
void dt_py_explain(const py_sig *s, int count, bool method, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
/* Single conversions: 1, 0 = not that kind, -1 = exception. 0-dim tensors are read. */
int dt_py_to_int(PyObject *o, int64_t *out);
int dt_py_to_float(PyObject *o, double *out);
int dt_py_to_bool(PyObject *o, bool *out);
int dt_py_to_scalar(PyObject *o, dt_arg *out); /* as to_value, but a 0-dim tensor is read */
int dt_py_to_value(PyObject *o, dt_arg *out);
int dt_py_to_ints(PyObject *o, int64_t *out, int cap, int *n);
const char *dt_py_type_name(PyObject *o);

/* ---- opfunc.c ---- */
int dt_py_ops_init(PyObject *module);
PyObject *dt_py_results(const py_sig *s, dt_tensor **out, int n); /* takes the references */
/* Calls from other files: find an operator (NotImplementedError if the table lacks it) and run it. */
const dt_op *dt_py_need(const char *name);
dt_tensor *dt_py_call_at(const dt_op **slot, const char *name, const dt_args *args);
int dt_py_call_inplace_at(const dt_op **slot, const char *name, const dt_args *args);
/* One result (NULL = exception); the operator is looked up once per place in the source. */
#define dt_py_call(name, args)             \
    ({                                     \
        static const dt_op *slot_;         \
        dt_py_call_at(&slot_, name, args); \
    })
#define dt_py_call_inplace(name, args)             \
    ({                                             \
        static const dt_op *slot_;                 \
        dt_py_call_inplace_at(&slot_, name, args); \
    })
static inline void dt_py_args_init(dt_args *a) { memset(a, 0, sizeof *a); }
#define DT_PY_ARG_T(tensor) ((dt_arg){.kind = DT_ARG_TENSOR, .given = true, .t = (tensor)})
#define DT_PY_ARG_I(v) ((dt_arg){.kind = DT_ARG_INT, .given = true, .i = (v)})
#define DT_PY_ARG_F(v) ((dt_arg){.kind = DT_ARG_FLOAT, .given = true, .f = (v)})
#define DT_PY_ARG_B(v) ((dt_arg){.kind = DT_ARG_BOOL, .given = true, .i = (v)})
#define DT_PY_ARG_D(v) ((dt_arg){.kind = DT_ARG_DTYPE, .given = true, .i = (v)})
#define DT_PY_ARG_INTS(count, p) ((dt_arg){.kind = DT_ARG_INTS, .given = true, .n = (count), .ints = (p)})
#define DT_PY_ARG_LIST(count, p) ((dt_arg){.kind = DT_ARG_TENSORS, .given = true, .n = (count), .list = (p)})
/* t in another dtype / with another spec: a new reference (t itself if nothing changes); NULL = exception. Recorded for grad. */
dt_tensor *dt_py_cast(dt_tensor *t, dt_dtype dtype);
dt_tensor *dt_py_redistribute(dt_tensor *t, const dt_spec *spec);

/* ---- hostcall.c ---- */
PyObject *dt_py_host_call(PyObject *module, PyObject *args);

/* ---- index.c ---- */
PyObject *dt_py_index_get(PyObject *self, PyObject *key);
int dt_py_index_set(PyObject *self, PyObject *key, PyObject *value);

/* ---- data.c ---- */
int dt_py_data_init(PyObject *module);
extern PyTypeObject dt_py_hostbuf_type;
/* A tensor with a copy of the object's data: nested sequences, numbers, buffers, array interfaces, tensors. dtype NONE: inferred. */
dt_tensor *dt_py_tensor_from(PyObject *data, dt_dtype dtype, const dt_spec *spec);
PyObject *dt_py_numpy_of(dt_future *f); /* of a completed fetch; shares its buffer */
PyObject *dt_py_bytes_of(dt_future *f); /* the same as an object with the buffer interface, of any dtype */
PyObject *dt_py_item_of(dt_dtype t, const void *p);
PyObject *dt_py_list_of(dt_future *f);
bool dt_py_is_array(PyObject *o); /* numpy.ndarray or another object with an array interface */

/* ---- future.c ---- */
int dt_py_future_init(PyObject *module);
dt_tensor *dt_py_given(dt_tensor *t);      /* t was made of host memory: waits if much of that is under way; NULL: interrupted, and t is gone */
int dt_py_wait(dt_future *f);              /* GIL released, signals served; 0, or -1 with the failure as an exception */
dt_future *dt_py_fetch(dt_tensor *t);      /* flushed and waited for; NULL = exception */
PyObject *dt_py_future_done(dt_future *f); /* a Future of None; takes the reference */
int dt_py_read_one(dt_tensor *t, dt_dtype *type, char value[8]);
PyObject *dt_py_future_numpy(PyObject *self, PyObject *none), *dt_py_future_item(PyObject *self, PyObject *none),
    *dt_py_future_tolist(PyObject *self, PyObject *none), *dt_py_future_bytes(PyObject *self, PyObject *none);

/* ---- file.c ---- */
int dt_py_file_init(PyObject *module);

/* ---- dlpack.c ---- */
PyObject *dt_py_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *dt_py_dlpack_device(PyObject *self, PyObject *none);
int dt_py_dlpack_init(PyObject *module);

/* ---- site.c, mode.c, autograd.c, generator.c ---- */
uint32_t dt_py_site_find(void);
static inline void dt_py_site(void) { dt_mode_site_set(dt_py_site_find()); }
int dt_py_site_init(PyObject *module);
int dt_py_mode_init(PyObject *module);
int dt_py_sim_init(PyObject *module);
int dt_py_spec_push(const dt_spec *spec); /* the default for factories, until the pop */
void dt_py_spec_pop(void);
int dt_py_autograd_init(PyObject *module);
int dt_py_nnmodule_init(PyObject *module); /* nnmodule.c */
int dt_py_optim_init(PyObject *module);    /* optim.c: the loops over many parameters */
int dt_py_generator_init(PyObject *module);
typedef struct py_generator {
    PyObject_HEAD dt_generator *g;
} py_generator;
extern PyTypeObject dt_py_generator_type;
PyObject *dt_py_grad_fn(dt_tensor *t);
PyObject *dt_py_hook_add(PyObject *self, PyObject *fn), *dt_py_post_hook_add(PyObject *self, PyObject *fn);
int dt_py_hooks_traverse(dt_tensor *t, visitproc visit, void *arg); /* tp_traverse of the hooks that die with t */

#endif
