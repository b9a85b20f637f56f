/* The Tensor type: wrapper, life time, subclasses. A wrapper owns one reference on its handle; the handle points back weakly.
 *
 * Plain Tensors come from a free list and are not tracked by the cycle collector until they get a __dict__ or a hook (only then can they be part
 * of a cycle), so making and dropping one costs some nanoseconds. Instances of subclasses (Parameter) are ordinary Python objects. */
#include "python/py.h"

PyTypeObject *dt_py_tensor_type;
enum { FREE_MAX = 128 };
static py_tensor *free_list[FREE_MAX];
static int n_free;

static py_tensor *alloc(void) {
    if (n_free) {
        py_tensor *o = free_list[--n_free];
        PyObject_Init((PyObject *)o, dt_py_tensor_type);
        return o;
    }
    return PyObject_GC_New(py_tensor, dt_py_tensor_type);
}

PyObject *dt_py_wrap(dt_tensor *t) {
    if (DT_UNLIKELY(!t)) return NULL;
    if (t->user) {
        PyObject *o = Py_NewRef((PyObject *)t->user);
        dt_tensor_unref(t);
        return o;
    }
    py_tensor *o = alloc();
    if (!o) {
        dt_tensor_unref(t);
        return NULL;
    }
    o->t = t;
    o->dict = o->weak = NULL;
    t->user = o;
    return (PyObject *)o;
}

PyObject *dt_py_wrap_as(PyTypeObject *type, dt_tensor *t) {
    if (!t || type == dt_py_tensor_type) return dt_py_wrap(t);
    py_tensor *o = (py_tensor *)type->tp_alloc(type, 0);
    if (!o) {
        dt_tensor_unref(t);
        return NULL;
    }
    o->t = t;
    t->user = o;
    return (PyObject *)o;
}

static void tensor_dealloc(PyObject *self) {
    py_tensor *o = (py_tensor *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (o->weak) PyObject_ClearWeakRefs(self);
    Py_CLEAR(o->dict);
    dt_tensor *t = o->t;
    o->t = NULL;
    if (t) {
        if (t->user == o) t->user = NULL;
        dt_tensor_unref(t);
    }
    if (type == dt_py_tensor_type && n_free < FREE_MAX)
        free_list[n_free++] = o;
    else
        type->tp_free(self);
    Py_DECREF(type);
}

static int tensor_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((py_tensor *)self)->dict);
    Py_VISIT(Py_TYPE(self));
    return dt_py_hooks_traverse(((py_tensor *)self)->t, visit, arg);
}
static int tensor_clear(PyObject *self) {
    Py_CLEAR(((py_tensor *)self)->dict);
    if (((py_tensor *)self)->t) dt_tensor_hooks_drop(((py_tensor *)self)->t);
    return 0;
}
static void track(PyObject *self) {
    if (((py_tensor *)self)->dict && !PyObject_GC_IsTracked(self)) PyObject_GC_Track(self);
}
static int tensor_setattro(PyObject *self, PyObject *name, PyObject *value) {
    int r = PyObject_GenericSetAttr(self, name, value);
    track(self);
    return r;
}
PyObject *dt_py_tensor_dict(PyObject *self, void *x) {
    PyObject *d = PyObject_GenericGetDict(self, x);
    track(self);
    return d;
}

/* Tensor(): an empty tensor; Tensor(2, 3): uninitialised of that shape; Tensor([…]): float data; Tensor(t): another handle on t. */
static PyObject *tensor_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
    if (kw && PyDict_GET_SIZE(kw)) {
        static PyObject *device;
        if (!device && !(device = PyUnicode_InternFromString("device"))) return NULL;
        if (PyDict_GET_SIZE(kw) > 1 || !PyDict_Contains(kw, device))
            return PyErr_Format(PyExc_TypeError, "Tensor() takes no keyword arguments but device; use dtorch.tensor");
    }
    Py_ssize_t n = PyTuple_GET_SIZE(args);
    PyObject *first = n == 1 ? PyTuple_GET_ITEM(args, 0) : NULL;
    dt_tensor *t = NULL;
    if (first && dt_py_is_tensor(first)) {
        DT_PY_CHECK(dt_tensor_detach(dt_py_tensor_of(first), &t));
    } else if (first && !PyLong_Check(first) && Py_TYPE(first) != dt_py_size_type) {
        t = dt_py_tensor_from(first, dt_default_dtype(), NULL);
    } else {
        int64_t shape[DT_MAX_DIM];
        int ndim = 1, r = 1;
        shape[0] = 0;
        if (n) r = dt_py_to_ints(first && Py_TYPE(first) == dt_py_size_type ? first : args, shape, DT_MAX_DIM, &ndim);
        if (r <= 0) return r < 0 ? NULL : PyErr_Format(PyExc_TypeError, "Tensor(): expected ints (a shape), a sequence or a tensor; use dtorch.tensor");
        dt_args a;
        dt_py_args_init(&a);
        a.a[0] = DT_PY_ARG_INTS(ndim, shape);
        t = dt_py_call("empty", &a);
    }
    return t ? dt_py_wrap_as(type, t) : NULL;
}

/* _make_subclass(cls, data, requires_grad=False): an instance of cls on data's storage, without its history. */
static PyObject *make_subclass(PyObject *none, PyObject *args, PyObject *kw) {
    static char *names[] = {"cls", "data", "requires_grad", NULL};
    PyTypeObject *cls;
    PyObject *data;
    int grad = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O!O!|p:_make_subclass", names, &PyType_Type, &cls, dt_py_tensor_type, &data, &grad)) return NULL;
    if (!PyType_IsSubtype(cls, dt_py_tensor_type)) return PyErr_Format(PyExc_TypeError, "_make_subclass: cls must be a subclass of Tensor");
    dt_tensor *t;
    DT_PY_CHECK(dt_tensor_detach(dt_py_tensor_of(data), &t));
    dt_status s = grad ? dt_tensor_requires_grad_set(t, true) : DT_OK;
    if (s) {
        dt_tensor_unref(t);
        return dt_py_raise(s);
    }
    return dt_py_wrap_as(cls, t);
}

static PyMethodDef static_methods[] = {
    {"_make_subclass", (PyCFunction)(void (*)(void))make_subclass, METH_VARARGS | METH_KEYWORDS | METH_STATIC, "An instance of a subclass on data's storage."},
    {0},
};
static PyMemberDef members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(py_tensor, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(py_tensor, weak), READONLY, NULL},
    {0},
};

static Py_hash_t tensor_hash(PyObject *self) { return (Py_hash_t)((uintptr_t)self >> 4); }
static Py_ssize_t tensor_len(PyObject *self) {
    const dt_meta *m = dt_tensor_meta(dt_py_tensor_of(self));
    if (m->ndim) return (Py_ssize_t)m->shape[0];
    PyErr_SetString(PyExc_TypeError, "len() of a 0-d tensor");
    return -1;
}
static int tensor_contains(PyObject *self, PyObject *value) {
    PyObject *r = PyObject_CallMethod(self, "_contains", "O", value);
    int yes = r ? PyObject_IsTrue(r) : -1;
    Py_XDECREF(r);
    return yes;
}
static PyObject *by_method(PyObject *self, const char *name) { return PyObject_CallMethod(self, name, NULL); }
static PyObject *tensor_repr(PyObject *self) {
    static PyObject *fn;
    PyObject *f = dt_py_lazy(&fn, "dtorch._repr", "tensor_repr");
    return f ? PyObject_CallOneArg(f, self) : NULL;
}
static PyObject *tensor_iter(PyObject *self) {
    const dt_meta *m = dt_tensor_meta(dt_py_tensor_of(self));
    if (!m->ndim) return PyErr_Format(PyExc_TypeError, "iteration over a 0-d tensor");
    PyObject *parts = by_method(self, "unbind");
    PyObject *it = parts ? PyObject_GetIter(parts) : NULL;
    Py_XDECREF(parts);
    return it;
}

int dt_py_tensor_init(PyObject *m) {
    PyType_Slot slots[96] = {
        {Py_tp_doc, "An n-dimensional array of one dtype, on one device or spread over a mesh. Calls return at once; only reading values waits."},
        {Py_tp_new, tensor_new},
        {Py_tp_dealloc, tensor_dealloc},
        {Py_tp_traverse, tensor_traverse},
        {Py_tp_clear, tensor_clear},
        {Py_tp_setattro, tensor_setattro},
        {Py_tp_members, members},
        {Py_tp_methods, dt_py_tensor_methods},
        {Py_tp_getset, dt_py_tensor_getset},
        {Py_tp_hash, tensor_hash},
        {Py_tp_repr, tensor_repr},
        {Py_tp_iter, tensor_iter},
        {Py_sq_contains, tensor_contains},
        {Py_mp_length, tensor_len},
        {Py_mp_subscript, dt_py_index_get},
        {Py_mp_ass_subscript, dt_py_index_set},
    };
    int n = 0;
    while (slots[n].slot) n++;
    n += dt_py_number_slots(slots + n);
    slots[n] = (PyType_Slot){0};
    PyType_Spec spec = {"dtorch.Tensor", sizeof(py_tensor), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
    PyObject *type = PyType_FromSpec(&spec);
    if (!type) return -1;
    dt_py_tensor_type = (PyTypeObject *)type;
    dt_py_tensor_type->tp_name = "Tensor"; /* in messages of Python's own; __module__ is set already */
    PyObject *f = PyCFunction_New(&static_methods[0], NULL);
    PyObject *st = f ? PyStaticMethod_New(f) : NULL;
    int bad = !st || PyObject_SetAttrString(type, "_make_subclass", st) < 0;
    Py_XDECREF(f);
    Py_XDECREF(st);
    return bad || PyModule_AddObjectRef(m, "Tensor", type) < 0 ? -1 : 0;
}
