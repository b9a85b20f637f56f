/* Methods and properties of Tensor that are no operators: shape and dtype queries, reading values, to(), detach, gradients, distribution.
 *
 * Only item, tolist, numpy and their kin wait. stride() tells the strides of a row-major tensor of this shape: values have no memory layout
 * that a user could see. */
#include "python/py.h"

#include "tensor/layout.h"

#define SELF dt_py_tensor_of(self)
#define META dt_tensor_meta(SELF)

/* ---- shape ------------------------------------------------------------------------------------------------------------------------------ */
static int wrap_dim(PyObject *o, int ndim, const char *fn, int64_t *d) {
    int r = dt_py_to_int(o, d);
    if (r == 0) PyErr_Format(PyExc_TypeError, "%s(): argument 'dim' must be int, not %s", fn, dt_py_type_name(o));
    if (r <= 0) return -1;
    dt_status s = dt_dim_wrap(d, ndim);
    return s ? dt_py_raise_int(s) : 0;
}
static PyObject *one_dim(PyObject *const *args, Py_ssize_t n, PyObject *kw, const char *fn) { /* NULL without exception: no argument */
    if (n + (kw ? PyTuple_GET_SIZE(kw) : 0) > 1) return PyErr_Format(PyExc_TypeError, "%s() takes at most 1 argument", fn);
    if (kw && PyTuple_GET_SIZE(kw) && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kw, 0), "dim"))
        return PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", fn, PyTuple_GET_ITEM(kw, 0));
    return n || kw ? (args[0] == Py_None ? NULL : args[0]) : NULL;
}
static PyObject *size(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kw) {
    const dt_meta *m = META;
    PyObject *o = one_dim(args, n, kw, "size");
    int64_t d;
    if (!o) return PyErr_Occurred() ? NULL : dt_py_shape(m);
    if (m->ndim == 0) return PyErr_Format(PyExc_IndexError, "Dimension specified as %S but tensor has no dimensions", o);
    return wrap_dim(o, m->ndim, "size", &d) < 0 ? NULL : PyLong_FromLongLong(m->shape[d]);
}
static PyObject *stride(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kw) {
    const dt_meta *m = META;
    PyObject *o = one_dim(args, n, kw, "stride");
    int64_t s[DT_MAX_DIM], step = 1, d;
    if (PyErr_Occurred()) return NULL;
    for (int i = m->ndim - 1; i >= 0; i--) {
        s[i] = step;
        step *= m->shape[i] > 1 ? m->shape[i] : 1;
    }
    if (o) return wrap_dim(o, m->ndim, "stride", &d) < 0 ? NULL : PyLong_FromLongLong(s[d]);
    PyObject *t = PyTuple_New(m->ndim);
    for (int i = 0; t && i < m->ndim; i++) PyTuple_SET_ITEM(t, i, PyLong_FromLongLong(s[i]));
    return t;
}
static PyObject *ndim(PyObject *self, PyObject *x) { return PyLong_FromLong(META->ndim); }
static PyObject *numel(PyObject *self, PyObject *x) { return PyLong_FromLongLong(META->numel); }
static PyObject *element_size(PyObject *self, PyObject *x) { return PyLong_FromSize_t(dt_dtype_size((dt_dtype)META->dtype)); }
static PyObject *get_nbytes(PyObject *self, void *x) { return PyLong_FromLongLong(META->numel * (int64_t)dt_dtype_size((dt_dtype)META->dtype)); }
static PyObject *is_float(PyObject *self, PyObject *x) { return PyBool_FromLong(dt_dtype_is_float((dt_dtype)META->dtype)); }
static PyObject *is_signed(PyObject *self, PyObject *x) { return PyBool_FromLong(META->dtype != DT_bool && META->dtype != DT_uint8); }
static PyObject *always_false(PyObject *self, PyObject *x) { Py_RETURN_FALSE; }
static PyObject *get_false(PyObject *self, void *x) { Py_RETURN_FALSE; }
static PyObject *get_is_cpu(PyObject *self, void *x) { return PyBool_FromLong(dt_device_kind(META->mesh->dev[0]) == DT_CPU); }
static PyObject *is_contiguous(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kw) { Py_RETURN_TRUE; }
static PyObject *itself(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kw) { return Py_NewRef(self); }
static PyObject *data_ptr(PyObject *self, PyObject *x) {
    return PyErr_Format(PyExc_NotImplementedError,
                        "data_ptr(): a tensor has no address: its value may not be computed yet, or lie on several devices; use numpy()");
}
static PyObject *storage_offset(PyObject *self, PyObject *x) { return PyLong_FromLong(0); }
static PyObject *version(PyObject *self, void *x) { return PyLong_FromUnsignedLong(dt_tensor_version(SELF)); }

static PyObject *get_shape(PyObject *self, void *x) { return dt_py_shape(META); }
static PyObject *get_ndim(PyObject *self, void *x) { return ndim(self, NULL); }
static PyObject *get_itemsize(PyObject *self, void *x) { return element_size(self, NULL); }
static PyObject *get_dtype(PyObject *self, void *x) { return dt_py_dtype((dt_dtype)META->dtype); }
static PyObject *get_device(PyObject *self, void *x) {
    const dt_mesh *m = META->mesh;
    if (m->ndim) return dt_py_device(dt_device_make(dt_device_kind(m->dev[0]), 0), false);
    return dt_py_device(m->dev[0], m->dev[0] != dt_default_device);
}
static PyObject *get_device_index(PyObject *self, PyObject *x) { return PyLong_FromLong(META->mesh->dev[0] ? (long)dt_device_index(META->mesh->dev[0]) : -1); }
static PyObject *get_mesh(PyObject *self, void *x) { return dt_py_mesh(META->mesh); }
static PyObject *get_placements(PyObject *self, void *x) { return dt_py_placements(META); }
static PyObject *get_real(PyObject *self, void *x) { return Py_NewRef(self); }
static PyObject *get_transposed(PyObject *self, void *which) {
    const dt_meta *m = META;
    bool matrix = which != NULL; /* mT, H, mH */
    if (matrix && m->ndim < 2)
        return PyErr_Format(PyExc_RuntimeError, "tensor.%s is only supported on matrices or batches of matrices. Got %d-D tensor.", (const char *)which,
                            m->ndim);
    int64_t dims[DT_MAX_DIM];
    for (int i = 0; i < m->ndim; i++) dims[i] = matrix ? i : m->ndim - 1 - i;
    if (matrix) dims[m->ndim - 1] = m->ndim - 2, dims[m->ndim - 2] = m->ndim - 1;
    dt_args a;
    dt_py_args_init(&a);
    dt_py_site();
    a.a[0] = DT_PY_ARG_T(SELF);
    a.a[1] = DT_PY_ARG_INTS(m->ndim, dims);
    return dt_py_wrap(dt_py_call("permute", &a));
}

/* ---- reading ------------------------------------------------------------------------------------------------------------------------------ */
static PyObject *item(PyObject *self, PyObject *x) {
    if (META->numel != 1) return PyErr_Format(PyExc_RuntimeError, "a Tensor with %lld elements cannot be converted to Scalar", (long long)META->numel);
    dt_dtype t;
    char v[8];
    return dt_py_read_one(SELF, &t, v) < 0 ? NULL : dt_py_item_of(t, v);
}
static PyObject *tolist(PyObject *self, PyObject *x) {
    dt_future *f = dt_py_fetch(SELF);
    PyObject *r = f ? dt_py_list_of(f) : NULL;
    if (f) dt_future_unref(f);
    return r;
}
static PyObject *read_numpy(PyObject *self) {
    if (META->dtype == DT_bfloat16) return PyErr_Format(PyExc_TypeError, "Got unsupported ScalarType BFloat16");
    dt_future *f = dt_py_fetch(SELF);
    PyObject *r = f ? dt_py_numpy_of(f) : NULL;
    if (f) dt_future_unref(f);
    return r;
}
static PyObject *numpy(PyObject *self, PyObject *args, PyObject *kw) {
    static char *names[] = {"force", NULL};
    int force = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|$p:numpy", names, &force)) return NULL;
    if (!force && dt_tensor_requires_grad(SELF))
        return PyErr_Format(PyExc_RuntimeError, "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.");
    return read_numpy(self);
}
static PyObject *array(PyObject *self, PyObject *args, PyObject *kw) {
    static char *names[] = {"dtype", "copy", NULL};
    PyObject *dtype = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|OO:__array__", names, &dtype, &copy)) return NULL;
    if (dt_tensor_requires_grad(SELF))
        return PyErr_Format(PyExc_RuntimeError, "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.");
    PyObject *a = read_numpy(self);
    if (!a || dtype == Py_None) return a;
    PyObject *r = PyObject_CallMethod(a, "astype", "O", dtype);
    Py_DECREF(a);
    return r;
}

/* ---- conversion ---------------------------------------------------------------------------------------------------------------------------- */
static PyObject *cast_to(PyObject *self, dt_dtype t) {
    if (META->dtype == t) return Py_NewRef(self);
    dt_py_site();
    return dt_py_wrap(dt_py_cast(SELF, t));
}
#define CAST(name, dtype) \
    static PyObject *cast_##name(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kw) { return cast_to(self, dtype); }
CAST(float, DT_float32)
CAST(double, DT_float64)
CAST(half, DT_float16)
CAST(bfloat16, DT_bfloat16)
CAST(int, DT_int32)
CAST(long, DT_int64)
CAST(short, DT_int16)
CAST(char, DT_int8)
CAST(byte, DT_uint8)
CAST(bool, DT_bool)

typedef struct to_args {
    dt_dtype dtype;
    const dt_spec *spec;
    bool copy;
} to_args;

/* "cpu" of a distributed tensor is where it is already; another device, a mesh or a tensor's place is a move. */
static int to_device(PyObject *self, PyObject *o, to_args *a) {
    dt_device d;
    int r = dt_py_device_parse(o, &d);
    if (r <= 0) return r;
    const dt_mesh *m = META->mesh;
    bool bare = PyUnicode_Check(o) ? !strchr(PyUnicode_AsUTF8(o), ':') : !((py_device *)o)->has_index;
    if (m->ndim ? bare && dt_device_kind(d) == dt_device_kind(m->dev[0]) : m->dev[0] == d) return 1;
    return dt_py_spec_of_device(d, &a->spec) < 0 ? -1 : 1;
}
static int to_one(PyObject *self, PyObject *o, to_args *a) {
    if (o == Py_None) return 1;
    if (dt_py_dtype_parse(o, &a->dtype)) return 1;
    if (dt_py_is_tensor(o)) {
        const dt_meta *m = dt_tensor_meta(dt_py_tensor_of(o));
        a->dtype = (dt_dtype)m->dtype;
        if (m->mesh == META->mesh) return 1;
        return (m->mesh->ndim ? dt_py_spec_change(META, NULL, NULL, &a->spec) : dt_py_spec_of_meta(m, &a->spec)) < 0 ? -1 : 1;
    }
    if (dt_py_is_mesh(o)) return dt_py_spec(o, NULL, META->ndim, &a->spec) < 0 ? -1 : 1;
    if (PyBool_Check(o)) return 1; /* non_blocking */
    return to_device(self, o, a);
}
static int to_keyword(PyObject *self, PyObject *name, PyObject *o, to_args *a) {
    if (!PyUnicode_CompareWithASCIIString(name, "copy")) return dt_py_to_bool(o, &a->copy);
    if (!PyUnicode_CompareWithASCIIString(name, "non_blocking") || !PyUnicode_CompareWithASCIIString(name, "memory_format")) return 1;
    if (!PyUnicode_CompareWithASCIIString(name, "dtype") || !PyUnicode_CompareWithASCIIString(name, "device") ||
        !PyUnicode_CompareWithASCIIString(name, "other"))
        return to_one(self, o, a);
    PyErr_Format(PyExc_TypeError, "to() got an unexpected keyword argument '%U'", name);
    return -1;
}
static PyObject *to(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kw) {
    to_args a = {(dt_dtype)META->dtype, NULL, false};
    for (Py_ssize_t i = 0; i < n; i++) {
        int r = i == 3 && PyBool_Check(args[i]) ? dt_py_to_bool(args[i], &a.copy) : to_one(self, args[i], &a);
        if (r == 0)
            PyErr_Format(PyExc_TypeError, "to(): argument %zd must be a dtype, a device, a DeviceMesh or a Tensor, not %s", i + 1, dt_py_type_name(args[i]));
        if (r <= 0) return NULL;
    }
    for (Py_ssize_t i = 0; kw && i < PyTuple_GET_SIZE(kw); i++) {
        int r = to_keyword(self, PyTuple_GET_ITEM(kw, i), args[n + i], &a);
        if (r == 0) PyErr_Format(PyExc_TypeError, "to(): argument '%U' must not be %s", PyTuple_GET_ITEM(kw, i), dt_py_type_name(args[n + i]));
        if (r <= 0) return NULL;
    }
    if (a.dtype == META->dtype && !a.spec && !a.copy) return Py_NewRef(self);
    dt_py_site();
    dt_tensor *t = dt_py_cast(SELF, a.dtype);
    if (t && a.spec) {
        dt_tensor *moved = dt_py_redistribute(t, a.spec);
        dt_tensor_unref(t);
        t = moved;
    }
    if (t && t == SELF && a.copy) {
        dt_args args2;
        dt_py_args_init(&args2);
        args2.a[0] = DT_PY_ARG_T(t);
        dt_tensor_unref(t);
        t = dt_py_call("clone", &args2);
    }
    return dt_py_wrap(t);
}
static PyObject *type_as(PyObject *self, PyObject *o) {
    if (!dt_py_is_tensor(o)) return PyErr_Format(PyExc_TypeError, "type_as(): argument 'other' must be Tensor, not %s", dt_py_type_name(o));
    return cast_to(self, (dt_dtype)dt_tensor_meta(dt_py_tensor_of(o))->dtype);
}

/* ---- gradients ------------------------------------------------------------------------------------------------------------------------------ */
static PyObject *detach(PyObject *self, PyObject *x) {
    dt_tensor *t;
    DT_PY_CHECK(dt_tensor_detach(SELF, &t));
    return dt_py_wrap(t);
}
static PyObject *get_data(PyObject *self, void *x) {
    dt_tensor *t;
    DT_PY_CHECK(dt_tensor_data(SELF, &t));
    return dt_py_wrap(t);
}
static int set_data(PyObject *self, PyObject *v, void *x) {
    if (!v || !dt_py_is_tensor(v)) {
        PyErr_Format(PyExc_TypeError, "data must be set to a Tensor, not %s", v ? dt_py_type_name(v) : "nothing");
        return -1;
    }
    dt_status s = dt_tensor_set_data(SELF, dt_py_tensor_of(v));
    return s ? dt_py_raise_int(s) : 0;
}
static PyObject *detach_inplace(PyObject *self, PyObject *x) {
    DT_PY_CHECK(dt_tensor_detach_inplace(SELF));
    return Py_NewRef(self);
}
static PyObject *get_requires_grad(PyObject *self, void *x) { return PyBool_FromLong(dt_tensor_requires_grad(SELF)); }
static int set_requires_grad(PyObject *self, PyObject *v, void *x) {
    if (!v || !PyBool_Check(v)) {
        PyErr_Format(PyExc_TypeError, "requires_grad must be a bool, not %s", v ? dt_py_type_name(v) : "nothing");
        return -1;
    }
    dt_status s = dt_tensor_requires_grad_set(SELF, v == Py_True);
    return s ? dt_py_raise_int(s) : 0;
}
static PyObject *requires_grad_(PyObject *self, PyObject *args, PyObject *kw) {
    static char *names[] = {"requires_grad", NULL};
    int on = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|p:requires_grad_", names, &on)) return NULL;
    DT_PY_CHECK(dt_tensor_requires_grad_set(SELF, on));
    return Py_NewRef(self);
}
static PyObject *get_grad(PyObject *self, void *x) {
    DT_PY_CHECK(dt_tensor_grad_settle(SELF));
    dt_tensor *g = dt_tensor_grad(SELF);
    return g ? dt_py_wrap(dt_tensor_ref(g)) : Py_NewRef(Py_None);
}
static int set_grad(PyObject *self, PyObject *v, void *x) {
    if (v && v != Py_None && !dt_py_is_tensor(v)) {
        PyErr_Format(PyExc_TypeError, "assigned grad expected to be a Tensor or None but got grad of type %s", dt_py_type_name(v));
        return -1;
    }
    dt_status s = dt_tensor_grad_set(SELF, v && v != Py_None ? dt_py_tensor_of(v) : NULL);
    return s ? dt_py_raise_int(s) : 0;
}
static PyObject *get_grad_placements(PyObject *self, void *x) {
    dt_meta m = *META;
    dt_tensor_grad_placements(SELF, m.place);
    return dt_py_placements(&m);
}
static int set_grad_placements(PyObject *self, PyObject *v, void *x) {
    const dt_spec *spec = NULL;
    if (v && v != Py_None && dt_py_spec_change(META, NULL, v, &spec) < 0) return -1;
    dt_status s = dt_tensor_grad_placements_set(SELF, spec);
    return s ? dt_py_raise_int(s) : 0;
}
static PyObject *get_grad_fn(PyObject *self, void *x) { return dt_py_grad_fn(SELF); }
static PyObject *get_is_leaf(PyObject *self, void *x) { return PyBool_FromLong(dt_tensor_is_leaf(SELF)); }
static PyObject *retain_grad(PyObject *self, PyObject *x) {
    DT_PY_CHECK(dt_tensor_retain_grad(SELF));
    Py_RETURN_NONE;
}

/* Calls with grad_placements are Python's (distributed/_local.py). True: *r is the call's result. self NULL: a static method. */
static bool with_grad_placements(const char *name, PyObject *self, PyObject *args, PyObject *kw, PyObject **r) {
    if (!kw || !PyDict_GetItemString(kw, "grad_placements")) return false;
    PyObject *module = PyImport_ImportModule("dtorch.distributed._local"), *fn = module ? PyObject_GetAttrString(module, name) : NULL, *all = NULL;
    if (fn && self) {
        PyObject *first = PyTuple_Pack(1, self);
        all = first ? PySequence_Concat(first, args) : NULL;
        Py_XDECREF(first);
    }
    *r = fn && (all || !self) ? PyObject_Call(fn, all ? all : args, kw) : NULL;
    Py_XDECREF(all);
    Py_XDECREF(fn);
    Py_XDECREF(module);
    return true;
}

/* ---- distribution ----------------------------------------------------------------------------------------------------------------------------- */
static int target(PyObject *self, PyObject *args, PyObject *kw, const dt_spec **spec) {
    static char *names[] = {"device_mesh", "placements", "async_op", NULL};
    PyObject *mesh = Py_None, *placements = Py_None;
    int async = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|OOp:redistribute", names, &mesh, &placements, &async)) return -1;
    if (placements == Py_None && mesh != Py_None && !dt_py_is_mesh(mesh)) { /* redistribute(placements) */
        placements = mesh;
        mesh = Py_None;
    }
    return dt_py_spec_change(META, mesh, placements, spec);
}
static PyObject *redistribute(PyObject *self, PyObject *args, PyObject *kw) {
    const dt_spec *spec;
    PyObject *r;
    if (with_grad_placements("redistribute", self, args, kw, &r)) return r;
    if (target(self, args, kw, &spec) < 0) return NULL;
    dt_py_site();
    return dt_py_wrap(dt_py_redistribute(SELF, spec));
}
/* For plans: several modules that want the same tensor in the same place get it from one redistribution. */
static PyObject *redistribute_shared(PyObject *self, PyObject *args, PyObject *kw) {
    const dt_spec *spec;
    if (target(self, args, kw, &spec) < 0) return NULL;
    if (META->mesh == spec->mesh && !memcmp(META->place, spec->place, sizeof spec->place)) return Py_NewRef(self);
    dt_py_site();
    return dt_py_wrap(dt_tensor_moved(SELF, spec));
}
static PyObject *full_tensor(PyObject *self, PyObject *x) {
    const dt_spec *spec;
    if (META->mesh->ndim == 0) return Py_NewRef(self);
    if (dt_py_spec_of_device(META->mesh->dev[0], &spec) < 0) return NULL;
    dt_py_site();
    return dt_py_wrap(dt_py_redistribute(SELF, spec));
}
static dt_tensor *local(dt_tensor *t, int64_t i) {
    const dt_mesh *m = dt_tensor_meta(t)->mesh;
    dt_args a;
    dt_py_args_init(&a);
    a.a[0] = DT_PY_ARG_T(t);
    a.a[1] = DT_PY_ARG_I(i);
    return dt_py_spec_of_device(m->dev[i], &a.spec) < 0 ? NULL : dt_py_call("to_local", &a);
}
static PyObject *to_local(PyObject *self, PyObject *args, PyObject *kw) {
    static char *names[] = {"index", NULL};
    PyObject *index = Py_None, *r;
    if (with_grad_placements("to_local", self, args, kw, &r)) return r;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|O:to_local", names, &index)) return NULL;
    const dt_mesh *m = META->mesh;
    dt_py_site();
    if (index != Py_None) {
        int64_t i;
        int r = dt_py_to_int(index, &i);
        if (r == 0) return PyErr_Format(PyExc_TypeError, "to_local(): argument 'index' must be int, not %s", dt_py_type_name(index));
        if (r < 0) return NULL;
        if (i < 0 || i >= m->n) return PyErr_Format(PyExc_IndexError, "to_local(): index %lld, the mesh has devices 0 to %d", (long long)i, m->n - 1);
        return dt_py_wrap(local(SELF, i));
    }
    PyObject *list = PyList_New(m->n);
    for (int i = 0; list && i < m->n; i++) {
        PyObject *t = dt_py_wrap(local(SELF, i));
        if (t)
            PyList_SET_ITEM(list, i, t);
        else
            Py_CLEAR(list);
    }
    return list;
}
/* _boxes(): what each of the mesh's devices holds, a tuple per device of (first index, length, rows, step) per dimension; see layout.h. */
static PyObject *boxes(PyObject *self, PyObject *none) {
    const dt_meta *m = META;
    int n = m->mesh->ndim ? m->mesh->n : 1;
    PyObject *list = PyList_New(n);
    for (int i = 0; list && i < n; i++) {
        dt_box b;
        dt_layout_box(m, i, &b);
        PyObject *t = PyTuple_New(m->ndim);
        for (int d = 0; t && d < m->ndim; d++) {
            PyObject *v = Py_BuildValue("LLLL", (long long)b.lo[d], (long long)b.len[d], (long long)b.rows[d], (long long)b.step[d]);
            if (v)
                PyTuple_SET_ITEM(t, d, v);
            else
                Py_CLEAR(t);
        }
        if (t)
            PyList_SET_ITEM(list, i, t);
        else
            Py_CLEAR(list);
    }
    return list;
}
/* _storage_id(): equal for handles that are the whole of one storage; 0 for views. */
static PyObject *storage_id(PyObject *self, PyObject *none) {
    const dt_tensor *t = SELF;
    if (t->is_view || t->cell->chain) return PyLong_FromLong(0);
    return PyLong_FromVoidPtr(t->cell->root ? t->cell->root : t->cell);
}
/* Tensor.from_local(tensors, mesh, placements=None): one tensor per device, or one for all. */
static PyObject *from_local(PyObject *none, PyObject *args, PyObject *kw) {
    static char *names[] = {"local_tensor", "device_mesh", "placements", "run_check", NULL};
    PyObject *locals, *mesh, *placements = Py_None;
    int check = 0;
    PyObject *r;
    if (with_grad_placements("from_local", NULL, args, kw, &r)) return r;
    dt_args a;
    dt_py_args_init(&a);
    if (!PyArg_ParseTupleAndKeywords(args, kw, "OO|O$p:from_local", names, &locals, &mesh, &placements, &check)) return NULL;
    bool single = dt_py_is_tensor(locals);
    if (!single && !PyList_Check(locals) && !PyTuple_Check(locals))
        return PyErr_Format(PyExc_TypeError, "from_local(): argument 'local_tensor' must be a list of Tensors, one per device, not %s",
                            dt_py_type_name(locals));
    PyObject *first = single ? locals : PySequence_Fast_GET_SIZE(locals) ? PySequence_Fast_GET_ITEM(locals, 0) : Py_None;
    int dims = dt_py_is_tensor(first) ? dt_tensor_meta(dt_py_tensor_of(first))->ndim : 0;
    if (dt_py_spec(mesh, placements, dims, &a.spec) < 0) return NULL;
    int n = a.spec->mesh->n;
    if (!single && PySequence_Fast_GET_SIZE(locals) != n)
        return PyErr_Format(PyExc_ValueError, "from_local(): %zd local tensors for a mesh of %d devices", PySequence_Fast_GET_SIZE(locals), n);
    dt_tensor **v = PyMem_Calloc((size_t)n, sizeof *v);
    if (!v) return PyErr_NoMemory();
    dt_tensor *t = NULL;
    int i = 0;
    for (; i < n; i++) {
        PyObject *o = single ? locals : PySequence_Fast_GET_ITEM(locals, i);
        if (!dt_py_is_tensor(o)) break;
        v[i] = dt_py_tensor_of(o);
    }
    if (i < n) {
        PyErr_Format(PyExc_TypeError, "from_local(): local tensor %d is no Tensor", i);
    } else {
        a.a[0] = DT_PY_ARG_LIST(n, v);
        dt_py_site();
        t = dt_py_call("from_local", &a);
    }
    PyMem_Free(v);
    return dt_py_wrap(t);
}

/* ---- tables ------------------------------------------------------------------------------------------------------------------------------------ */
#define FAST(f) (PyCFunction)(void (*)(void)) f, METH_FASTCALL | METH_KEYWORDS
#define KEYS(f) (PyCFunction)(void (*)(void)) f, METH_VARARGS | METH_KEYWORDS
#define CASTS(name) \
    { #name, FAST(cast_##name), "self in the dtype of that name." }
PyMethodDef dt_py_tensor_methods[] = {
    {"size", FAST(size), "size(dim=None): the shape, or the size of one dimension."},
    {"stride", FAST(stride), "stride(dim=None): the strides of a row-major tensor of this shape."},
    {"dim", ndim, METH_NOARGS, "The number of dimensions."},
    {"ndimension", ndim, METH_NOARGS, "The number of dimensions."},
    {"numel", numel, METH_NOARGS, "The number of elements."},
    {"nelement", numel, METH_NOARGS, "The number of elements."},
    {"element_size", element_size, METH_NOARGS, "Bytes of one element."},
    {"is_floating_point", is_float, METH_NOARGS, "Is the dtype a floating-point type?"},
    {"is_signed", is_signed, METH_NOARGS, "Can the dtype hold negative values?"},
    {"is_complex", always_false, METH_NOARGS, "False: there are no complex dtypes."},
    {"is_conj", always_false, METH_NOARGS, NULL},
    {"is_neg", always_false, METH_NOARGS, NULL},
    {"is_pinned", always_false, METH_NOARGS, NULL},
    {"is_shared", always_false, METH_NOARGS, NULL},
    {"is_inference", always_false, METH_NOARGS, NULL},
    {"is_contiguous", FAST(is_contiguous), "True: values are row-major wherever a user can tell."},
    {"resolve_conj", FAST(itself), NULL},
    {"resolve_neg", FAST(itself), NULL},
    {"pin_memory", FAST(itself), "self: host memory needs no pinning."},
    {"share_memory_", FAST(itself), "self."},
    {"get_device", get_device_index, METH_NOARGS, "The device's number; -1 for the CPU."},
    {"data_ptr", data_ptr, METH_NOARGS, NULL},
    {"storage_offset", storage_offset, METH_NOARGS, "0."},
    {"item", item, METH_NOARGS, "The only element as a Python number; waits for it."},
    {"tolist", tolist, METH_NOARGS, "The elements as nested lists; waits for them."},
    {"numpy", KEYS(numpy), "numpy(*, force=False): a new array with the values of the whole tensor; waits for them."},
    {"__array__", KEYS(array), NULL},
    {"item_async", dt_py_future_item, METH_NOARGS, "item() as a future."},
    {"tolist_async", dt_py_future_tolist, METH_NOARGS, "tolist() as a future."},
    {"numpy_async", dt_py_future_numpy, METH_NOARGS, "numpy() as a future."},
    {"_bytes_async", dt_py_future_bytes, METH_NOARGS, "A future of the values' bytes, row by row: an object with the buffer interface."},
    {"_boxes", boxes, METH_NOARGS, NULL},
    {"_storage_id", storage_id, METH_NOARGS, NULL},
    {"__dlpack__", (PyCFunction)(void (*)(void))dt_py_dlpack, METH_FASTCALL | METH_KEYWORDS, "A DLPack capsule of the values; waits for them."},
    {"__dlpack_device__", dt_py_dlpack_device, METH_NOARGS, NULL},
    CASTS(float),
    CASTS(double),
    CASTS(half),
    CASTS(bfloat16),
    CASTS(int),
    CASTS(long),
    CASTS(short),
    CASTS(char),
    CASTS(byte),
    CASTS(bool),
    {"to", FAST(to), "to(dtype | device | mesh | tensor, *, copy=False): self in another dtype or place; self if that changes nothing."},
    {"type_as", type_as, METH_O, "self in the dtype of another tensor."},
    {"detach", detach, METH_NOARGS, "A tensor on the same storage, without history."},
    {"detach_", detach_inplace, METH_NOARGS, "Forget the history of self."},
    {"requires_grad_", KEYS(requires_grad_), "requires_grad_(requires_grad=True): set whether self wants a gradient; returns self."},
    {"retain_grad", retain_grad, METH_NOARGS, "Keep the gradient of this non-leaf in .grad."},
    {"register_hook", dt_py_hook_add, METH_O, "register_hook(fn): fn(grad) runs when the gradient of self is known, and may return another one."},
    {"register_post_accumulate_grad_hook", dt_py_post_hook_add, METH_O, "fn(self) runs after a gradient was added to self.grad."},
    {"_redistribute_shared", KEYS(redistribute_shared), NULL},
    {"redistribute", KEYS(redistribute),
     "redistribute(device_mesh=None, placements=None): the same values elsewhere. placements: one per mesh dimension, or a dict by dimension name, "
     "which may come first: t.redistribute({'tp': Replicate()}). Dimensions that a dict does not name keep what they have; on another mesh those of "
     "the same name do, and what was Partial is reduced."},
    {"full_tensor", full_tensor, METH_NOARGS, "The whole, as a plain tensor on the mesh's first device."},
    {"to_local", KEYS(to_local),
     "to_local(index=None, *, grad_placements=None): what the mesh's index-th device holds; without index a list, one per device. grad_placements: "
     "what the local tensors' gradients are together."},
    {"from_local", (PyCFunction)(void (*)(void))from_local, METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "from_local(local_tensors, device_mesh, placements=None): a distributed tensor from one local tensor per device."},
    {0},
};

PyGetSetDef dt_py_tensor_getset[] = {
    {"__dict__", dt_py_tensor_dict, PyObject_GenericSetDict, NULL, NULL},
    {"shape", get_shape, NULL, "The sizes of the dimensions.", NULL},
    {"ndim", get_ndim, NULL, "The number of dimensions.", NULL},
    {"dtype", get_dtype, NULL, "The element type.", NULL},
    {"device", get_device, NULL, "The device; of a distributed tensor its kind.", NULL},
    {"itemsize", get_itemsize, NULL, "Bytes of one element.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all elements.", NULL},
    {"requires_grad", get_requires_grad, set_requires_grad, "Is a gradient wanted (leaves), or is there a history?", NULL},
    {"grad", get_grad, set_grad,
     "The accumulated gradient, or None. It lies as grad_placements say; where backward passes left sums over devices to do, reading it does them.", NULL},
    {"grad_placements", get_grad_placements, set_grad_placements,
     "Where backward leaves the gradient of a leaf: its own placements, with Replicate for Partial, unless set: to a sequence or a dict by mesh-dimension "
     "name, None for the default. A sum over devices that ends in shards is a reduce-scatter: p.grad_placements = {'dp': Shard(0)}.",
     NULL},
    {"grad_fn", get_grad_fn, NULL, "The graph node that made this tensor, or None.", NULL},
    {"is_leaf", get_is_leaf, NULL, "Was it made by the user, not by a recorded call?", NULL},
    {"data", get_data, set_data, "The same storage without history; settable.", NULL},
    {"_version", version, NULL, "How often the storage was written in place.", NULL},
    {"T", get_transposed, NULL, "All dimensions reversed.", NULL},
    {"mT", get_transposed, NULL, "The last two dimensions swapped.", "mT"},
    {"H", get_transposed, NULL, "The transposed matrix.", "H"},
    {"mH", get_transposed, NULL, "The last two dimensions swapped.", "mH"},
    {"real", get_real, NULL, "self.", NULL},
    {"device_mesh", get_mesh, NULL, "The mesh that it lies on; of 0 dimensions for a plain tensor.", NULL},
    {"placements", get_placements, NULL, "One placement per mesh dimension.", NULL},
    {"is_cuda", get_false, NULL, NULL, NULL},
    {"is_cpu", get_is_cpu, NULL, NULL, NULL},
    {"is_sparse", get_false, NULL, NULL, NULL},
    {"is_quantized", get_false, NULL, NULL, NULL},
    {"is_meta", get_false, NULL, NULL, NULL},
    {"is_mps", get_false, NULL, NULL, NULL},
    {"is_xpu", get_false, NULL, NULL, NULL},
    {"is_mkldnn", get_false, NULL, NULL, NULL},
    {"is_nested", get_false, NULL, NULL, NULL},
    {0},
};
