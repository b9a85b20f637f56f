/* dtype, device and Size: the small immutable objects that describe a tensor.
 *
 * There is one object per dtype for the process's life, so `is` works. Sizes are cached per interned meta: x.shape costs a look-up. */
#include "python/py.h"

#include <stdlib.h>

#include "plan/sim.h"

/* ---- dtype ---- */
static py_dtype dtypes[DT_DTYPE_COUNT];

PyObject *dt_py_dtype(dt_dtype t) { return Py_NewRef((PyObject *)&dtypes[t]); }

int dt_py_dtype_parse(PyObject *o, dt_dtype *out) {
    if (Py_TYPE(o) == &dt_py_dtype_type)
        *out = ((py_dtype *)o)->id;
    else if (o == (PyObject *)&PyFloat_Type)
        *out = DT_float64;
    else if (o == (PyObject *)&PyLong_Type)
        *out = DT_int64;
    else if (o == (PyObject *)&PyBool_Type)
        *out = DT_bool;
    else
        return 0;
    return 1;
}

static PyObject *dtype_repr(PyObject *o) { return PyUnicode_FromFormat("dtorch.%s", dt_dtype_name(((py_dtype *)o)->id)); }
static PyObject *dtype_from_name(PyObject *m, PyObject *name) {
    const char *s = PyUnicode_AsUTF8(name);
    for (int i = 0; s && i < DT_DTYPE_COUNT; i++)
        if (!strcmp(s, dt_dtype_name((dt_dtype)i))) return dt_py_dtype((dt_dtype)i);
    return s ? PyErr_Format(PyExc_ValueError, "no dtype is called '%s'", s) : NULL;
}
static PyObject *dtype_reduce(PyObject *o, PyObject *none) {
    PyObject *f = PyObject_GetAttrString(dt_py_module, "_dtype_from_name");
    return f ? Py_BuildValue("N(s)", f, dt_dtype_name(((py_dtype *)o)->id)) : NULL;
}
static PyObject *dtype_get(PyObject *o, void *what) {
    dt_dtype t = ((py_dtype *)o)->id;
    switch ((int)(intptr_t)what) {
    case 0: return PyLong_FromSize_t(dt_dtype_size(t));
    case 1: return PyBool_FromLong(dt_dtype_is_float(t));
    case 2: Py_RETURN_FALSE;
    default: return PyBool_FromLong(t != DT_bool && t != DT_uint8);
    }
}
static PyGetSetDef dtype_getset[] = {
    {"itemsize", dtype_get, NULL, "Bytes of one element.", (void *)0},
    {"is_floating_point", dtype_get, NULL, "Is it a floating-point type?", (void *)1},
    {"is_complex", dtype_get, NULL, "Is it a complex type?", (void *)2},
    {"is_signed", dtype_get, NULL, "Can it hold negative values?", (void *)3},
    {0},
};
static PyMethodDef dtype_methods[] = {{"__reduce__", dtype_reduce, METH_NOARGS, NULL}, {0}};
PyTypeObject dt_py_dtype_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch.dtype",
    .tp_doc = "An element type, such as dtorch.float32.",
    .tp_basicsize = sizeof(py_dtype),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_repr = dtype_repr,
    .tp_getset = dtype_getset,
    .tp_methods = dtype_methods,
};

/* ---- device ---- */
PyObject *dt_py_device(dt_device d, bool has_index) {
    py_device *o = PyObject_New(py_device, &dt_py_device_type);
    if (!o) return NULL;
    o->dev = d;
    o->has_index = has_index;
    return (PyObject *)o;
}

/* In a simulation every device that a program names is a simulated one, of as many as there are. */
static int in_simulation(dt_device *d) {
    uint32_t i = dt_device_index(*d);
    if (!atomic_load_explicit(&dt_sim_on, memory_order_relaxed)) {
        if (dt_device_kind(*d) != DT_SIM) return 1;
        PyErr_Format(PyExc_RuntimeError, "device sim:%u: simulated devices exist inside dtorch.simulate() only", i);
        return -1;
    }
    if (i >= (uint32_t)dt_sim_devices()) {
        PyErr_Format(PyExc_RuntimeError, "device index %u is out of range: the simulation has %d devices", i, dt_sim_devices());
        return -1;
    }
    *d = dt_device_make(DT_SIM, i);
    return 1;
}

static int device_make(const char *type, size_t len, long index, bool has_index, dt_device *out) {
    for (int k = 0; k < DT_DEVICE_TYPES; k++) {
        const char *name = dt_device_type_name((dt_device_type)k);
        if (strlen(name) != len || strncmp(name, type, len)) continue;
        if (index < 0 || index > 0xffff) {
            PyErr_Format(PyExc_RuntimeError, "device index %ld is not legal: 0 to 65535 are", index);
            return -1;
        }
        *out = dt_device_make((dt_device_type)k, has_index ? (uint32_t)index : 0);
        return in_simulation(out);
    }
    PyErr_Format(PyExc_RuntimeError, "expected one of the device types cpu, cuda at the start of the device string, got '%.100s'", type);
    return -1;
}

/* "cpu", "cpu:1" */
static int device_from_text(const char *s, dt_device *out, bool *has_index) {
    const char *colon = strchr(s, ':');
    *has_index = colon != NULL;
    long index = 0;
    if (colon) {
        char *end;
        index = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end) {
            PyErr_Format(PyExc_RuntimeError, "invalid device string: '%s'", s);
            return -1;
        }
    }
    return device_make(s, colon ? (size_t)(colon - s) : strlen(s), index, colon != NULL, out);
}

int dt_py_device_parse(PyObject *o, dt_device *out) {
    bool has_index;
    if (Py_TYPE(o) == &dt_py_device_type) {
        *out = ((py_device *)o)->dev;
        return in_simulation(out);
    }
    if (PyUnicode_Check(o)) {
        const char *s = PyUnicode_AsUTF8(o);
        return s ? device_from_text(s, out, &has_index) : -1;
    }
    return 0;
}

static PyObject *device_new(PyTypeObject *tp, PyObject *args, PyObject *kw) {
    static char *names[] = {"type", "index", NULL};
    PyObject *type;
    long index = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|l:device", names, &type, &index)) return NULL;
    if (Py_TYPE(type) == &dt_py_device_type) return Py_NewRef(type);
    const char *s = PyUnicode_Check(type) ? PyUnicode_AsUTF8(type) : NULL;
    if (!s) return PyErr_Format(PyExc_TypeError, "device(): argument 'type' must be str or device, not %s", dt_py_type_name(type));
    dt_device d;
    bool has_index;
    if (device_from_text(s, &d, &has_index) < 0) return NULL;
    if (index >= 0) {
        if (has_index) return PyErr_Format(PyExc_RuntimeError, "type (string) must not include an index because index was passed explicitly: %s", s);
        if (device_make(s, strlen(s), index, true, &d) < 0) return NULL;
        has_index = true;
    }
    return dt_py_device(d, has_index);
}
static PyObject *device_str(PyObject *o) {
    py_device *d = (py_device *)o;
    const char *type = dt_device_type_name(dt_device_kind(d->dev));
    return d->has_index ? PyUnicode_FromFormat("%s:%u", type, dt_device_index(d->dev)) : PyUnicode_FromString(type);
}
static PyObject *device_repr(PyObject *o) {
    py_device *d = (py_device *)o;
    const char *type = dt_device_type_name(dt_device_kind(d->dev));
    return d->has_index ? PyUnicode_FromFormat("device(type='%s', index=%u)", type, dt_device_index(d->dev)) : PyUnicode_FromFormat("device(type='%s')", type);
}
/* "cpu" is "cpu:0" with all cores: equal. */
static PyObject *device_compare(PyObject *a, PyObject *b, int op) {
    if (Py_TYPE(a) != &dt_py_device_type || Py_TYPE(b) != &dt_py_device_type || (op != Py_EQ && op != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
    return PyBool_FromLong((((py_device *)a)->dev == ((py_device *)b)->dev) == (op == Py_EQ));
}
static Py_hash_t device_hash(PyObject *o) { return (Py_hash_t)((py_device *)o)->dev + 1; }
static PyObject *device_get(PyObject *o, void *what) {
    py_device *d = (py_device *)o;
    if (!what) return PyUnicode_FromString(dt_device_type_name(dt_device_kind(d->dev)));
    if (!d->has_index) Py_RETURN_NONE;
    return PyLong_FromUnsignedLong(dt_device_index(d->dev));
}
static PyObject *device_reduce(PyObject *o, PyObject *none) { return Py_BuildValue("O(N)", Py_TYPE(o), device_str(o)); }
static PyObject *device_enter(PyObject *o, PyObject *none) {
    const dt_spec *spec;
    if (dt_py_spec_of_device(((py_device *)o)->dev, &spec) < 0) return NULL;
    return dt_py_spec_push(spec) < 0 ? NULL : Py_NewRef(o);
}
static PyObject *device_exit(PyObject *o, PyObject *args) {
    dt_py_spec_pop();
    Py_RETURN_NONE;
}
static PyGetSetDef device_getset[] = {
    {"type", device_get, NULL, "'cpu', 'sim' or 'cuda'.", (void *)0},
    {"index", device_get, NULL, "The device's number, or None if none was given (which means 0).", (void *)1},
    {0},
};
static PyMethodDef device_methods[] = {
    {"__reduce__", device_reduce, METH_NOARGS, NULL},
    {"__enter__", device_enter, METH_NOARGS, "Make this the device of factories inside the with block."},
    {"__exit__", device_exit, METH_VARARGS, NULL},
    {0},
};
PyTypeObject dt_py_device_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch.device",
    .tp_doc = "device(type, index=None): where tensors lie: 'cpu', 'cpu:1', device('cpu', 1). As a context manager: the default for factories.",
    .tp_basicsize = sizeof(py_device),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = device_new,
    .tp_repr = device_repr,
    .tp_str = device_str,
    .tp_richcompare = device_compare,
    .tp_hash = device_hash,
    .tp_getset = device_getset,
    .tp_methods = device_methods,
};

/* ---- Size ---- */
PyTypeObject *dt_py_size_type;
enum { SHAPES = 1024 };
static struct {
    const dt_meta *meta;
    PyObject *size;
} shapes[SHAPES];

PyObject *dt_py_size(int n, const int64_t *v) {
    PyObject *o = dt_py_size_type->tp_alloc(dt_py_size_type, n);
    if (!o) return NULL;
    for (int i = 0; i < n; i++) {
        PyObject *k = PyLong_FromLongLong(v[i]);
        if (!k) {
            Py_DECREF(o);
            return NULL;
        }
        PyTuple_SET_ITEM(o, i, k);
    }
    return o;
}

PyObject *dt_py_shape(const dt_meta *m) {
    size_t i = ((uintptr_t)m >> 5) % SHAPES;
    if (shapes[i].meta == m) return Py_NewRef(shapes[i].size);
    PyObject *o = dt_py_size(m->ndim, m->shape);
    if (!o) return NULL;
    PyObject *old = shapes[i].size;
    shapes[i].meta = m;
    shapes[i].size = Py_NewRef(o);
    Py_XDECREF(old);
    return o;
}

static PyObject *size_new(PyTypeObject *tp, PyObject *args, PyObject *kw) {
    PyObject *t = PyTuple_Type.tp_new(tp, args, kw);
    for (Py_ssize_t i = 0; t && i < PyTuple_GET_SIZE(t); i++) {
        PyObject *v = PyTuple_GET_ITEM(t, i);
        if (PyLong_Check(v)) continue;
        PyObject *k = PyIndex_Check(v) ? PyNumber_Index(v) : NULL;
        if (!k) {
            if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError))
                PyErr_Format(PyExc_TypeError, "dtorch.Size() takes an iterable of 'int' (item %zd is '%s')", i, dt_py_type_name(v));
            Py_CLEAR(t);
            break;
        }
        PyTuple_SET_ITEM(t, i, k);
        Py_DECREF(v);
    }
    return t;
}
static PyObject *size_repr(PyObject *o) {
    PyObject *list = PySequence_List(o);
    PyObject *r = list ? PyUnicode_FromFormat("dtorch.Size(%R)", list) : NULL;
    Py_XDECREF(list);
    return r;
}
static PyObject *size_numel(PyObject *o, PyObject *none) {
    long long n = 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++) n *= PyLong_AsLongLong(PyTuple_GET_ITEM(o, i));
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(n);
}
/* Slices and sums of sizes are sizes. */
static PyObject *as_size(PyObject *t) {
    if (!t || !PyTuple_CheckExact(t)) return t;
    PyObject *r = PyObject_CallOneArg((PyObject *)dt_py_size_type, t);
    Py_DECREF(t);
    return r;
}
static PyObject *size_subscript(PyObject *o, PyObject *key) { return as_size(PyTuple_Type.tp_as_mapping->mp_subscript(o, key)); }
static PyObject *size_concat(PyObject *a, PyObject *b) { return as_size(PyTuple_Type.tp_as_sequence->sq_concat(a, b)); }
static PyObject *size_repeat(PyObject *a, Py_ssize_t n) { return as_size(PyTuple_Type.tp_as_sequence->sq_repeat(a, n)); }
static PyObject *size_reduce(PyObject *o, PyObject *none) {
    PyObject *t = PyTuple_GetSlice(o, 0, PyTuple_GET_SIZE(o)); /* an exact tuple */
    return t ? Py_BuildValue("O(N)", Py_TYPE(o), t) : NULL;
}
static PyMethodDef size_methods[] = {
    {"numel", size_numel, METH_NOARGS, "The number of elements of a tensor of this size."},
    {"__reduce__", size_reduce, METH_NOARGS, NULL},
    {0},
};
static PyType_Slot size_slots[] = {
    {Py_tp_doc, "The shape of a tensor: a tuple of ints."},
    {Py_tp_new, size_new},
    {Py_tp_repr, size_repr},
    {Py_tp_methods, size_methods},
    {Py_mp_subscript, size_subscript},
    {Py_sq_concat, size_concat},
    {Py_sq_repeat, size_repeat},
    {0},
};
static PyType_Spec size_spec = {"dtorch.Size", 0, 0, Py_TPFLAGS_DEFAULT, size_slots};

static PyMethodDef functions[] = {{"_dtype_from_name", dtype_from_name, METH_O, NULL}, {0}};

int dt_py_dtype_init(PyObject *m) {
    PyObject *bases = PyTuple_Pack(1, (PyObject *)&PyTuple_Type);
    if (!bases || PyType_Ready(&dt_py_dtype_type) < 0 || PyType_Ready(&dt_py_device_type) < 0) return -1;
    dt_py_size_type = (PyTypeObject *)PyType_FromSpecWithBases(&size_spec, bases);
    Py_DECREF(bases);
    if (!dt_py_size_type || PyModule_AddFunctions(m, functions) < 0 || PyModule_AddObjectRef(m, "Size", (PyObject *)dt_py_size_type) < 0 ||
        PyModule_AddObjectRef(m, "dtype", (PyObject *)&dt_py_dtype_type) < 0 || PyModule_AddObjectRef(m, "device", (PyObject *)&dt_py_device_type) < 0)
        return -1;
    for (int i = 0; i < DT_DTYPE_COUNT; i++) {
        dtypes[i].id = (dt_dtype)i;
        PyObject_Init((PyObject *)&dtypes[i], &dt_py_dtype_type);
        Py_INCREF(&dtypes[i]); /* never freed */
        if (PyModule_AddObjectRef(m, dt_dtype_name((dt_dtype)i), (PyObject *)&dtypes[i]) < 0) return -1;
    }
    return 0;
}
