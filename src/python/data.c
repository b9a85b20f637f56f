/* Data in: nested sequences, numbers, NumPy arrays and other buffers. Data out: numpy(), tolist(), item().
 *
 * Input is copied at the call: what the user writes afterwards must not race with work in flight. Output is a fresh host buffer that
 * belongs to the caller alone. NumPy is never imported for input (the buffer protocol says all) and only when numpy() is called for output. */
#include "python/py.h"

#include "base/arena.h"

/* ---- buffers ------------------------------------------------------------------------------------------------------------------------ */
typedef struct py_hostbuf { /* a fetched buffer, for NumPy to look at */
    PyObject_HEAD dt_hostbuf *b;
} py_hostbuf;
static int hostbuf_get(PyObject *self, Py_buffer *view, int flags) {
    dt_hostbuf *b = ((py_hostbuf *)self)->b;
    static char nothing[1];
    return PyBuffer_FillInfo(view, self, b->data ? b->data : nothing, (Py_ssize_t)b->bytes, 0, flags);
}
static void hostbuf_dealloc(PyObject *self) {
    dt_hostbuf_unref(((py_hostbuf *)self)->b);
    PyObject_Free(self);
}
static PyBufferProcs hostbuf_buffer = {.bf_getbuffer = hostbuf_get};
PyTypeObject dt_py_hostbuf_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch._C._HostBuffer",
    .tp_basicsize = sizeof(py_hostbuf),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = hostbuf_dealloc,
    .tp_as_buffer = &hostbuf_buffer,
};

bool dt_py_is_array(PyObject *o) {
    if (!Py_TYPE(o)->tp_as_buffer || PyBytes_Check(o) || dt_py_is_tensor(o)) return false;
    for (PyTypeObject *t = Py_TYPE(o); t; t = t->tp_base)
        if (!strcmp(t->tp_name, "numpy.ndarray")) return true;
    return false;
}

/* A struct format of one native element → dtype; NONE: not one of ours. */
static dt_dtype format_dtype(const char *f, Py_ssize_t size) {
    if (!f) return size == 1 ? DT_uint8 : DT_DTYPE_NONE;
    if (*f == '@' || *f == '=' || *f == '<') f++;
    if (!*f || f[1]) return DT_DTYPE_NONE;
    if (strchr("bhilqn", *f)) return size == 1 ? DT_int8 : size == 2 ? DT_int16 : size == 4 ? DT_int32 : DT_int64;
    switch (*f) {
    case '?': return DT_bool;
    case 'e': return DT_float16;
    case 'f': return DT_float32;
    case 'd': return DT_float64;
    case 'B': return DT_uint8;
    default: return DT_DTYPE_NONE;
    }
}

static void copy_strided(char *dst, const char *src, int ndim, const Py_ssize_t *shape, const Py_ssize_t *stride, Py_ssize_t size, Py_ssize_t inner) {
    /* inner: bytes of one whole index of dimension 0 in dst */
    if (ndim == 0) {
        memcpy(dst, src, (size_t)size);
    } else if (ndim == 1 && stride[0] == size) {
        memcpy(dst, src, (size_t)(size * shape[0]));
    } else if (ndim == 1 && size == 4) {
        for (Py_ssize_t i = 0; i < shape[0]; i++) memcpy(dst + 4 * i, src + i * stride[0], 4);
    } else {
        Py_ssize_t below = ndim > 1 && shape[1] ? inner / shape[1] : size;
        for (Py_ssize_t i = 0; i < shape[0]; i++) copy_strided(dst + i * inner, src + i * stride[0], ndim - 1, shape + 1, stride + 1, size, below);
    }
}

static void copy_buffer(const Py_buffer *v, char *dst) {
    if (v->len == 0) return;
    if (PyBuffer_IsContiguous(v, 'C')) {
        memcpy(dst, v->buf, (size_t)v->len);
        return;
    }
    copy_strided(dst, v->buf, v->ndim, v->shape, v->strides, v->itemsize, v->ndim ? v->len / v->shape[0] : v->itemsize);
}

/* A tensor with a copy of a buffer's elements, in the buffer's dtype. */
static dt_tensor *from_buffer(PyObject *o, const dt_spec *spec) {
    Py_buffer v;
    if (PyObject_GetBuffer(o, &v, PyBUF_FULL_RO) < 0) return NULL;
    dt_type type = {.dtype = format_dtype(v.format, v.itemsize), .ndim = v.ndim};
    if (type.dtype == DT_DTYPE_NONE || v.ndim > DT_MAX_DIM || v.suboffsets) {
        PyErr_Format(PyExc_TypeError,
                     "can't convert an array of format '%s' with %d dimensions: legal are float64, float32, float16, int64, int32, int16, int8, uint8 and "
                     "bool in native byte order, with at most %d dimensions",
                     v.format ? v.format : "B", v.ndim, DT_MAX_DIM);
        PyBuffer_Release(&v);
        return NULL;
    }
    for (int i = 0; i < v.ndim; i++) type.shape[i] = v.shape[i];
    dt_hostbuf *b;
    dt_tensor *t = NULL;
    dt_status s = dt_hostbuf_new((size_t)v.len, &b);
    if (!s) {
        copy_buffer(&v, b->data);
        s = dt_tensor_from_host(b, &type, spec, &t);
    }
    PyBuffer_Release(&v);
    return s ? dt_py_raise(s) : dt_py_given(t);
}

/* ---- nested sequences ----------------------------------------------------------------------------------------------------------------- */
static bool is_sequence(PyObject *o) {
    if (PyList_Check(o) || PyTuple_Check(o)) return true;
    if (PyUnicode_Check(o) || PyBytes_Check(o) || PyDict_Check(o) || dt_py_is_tensor(o) || PyFloat_Check(o) || PyLong_Check(o)) return false;
    if (dt_py_is_array(o)) return PyObject_Size(o) >= 0 || (PyErr_Clear(), false);
    return PySequence_Check(o) && Py_TYPE(o)->tp_as_sequence->sq_length;
}

/* The shape, by the first elements. */
static int sequence_shape(PyObject *o, dt_type *type) {
    PyObject *cur = Py_NewRef(o);
    type->ndim = 0;
    while (is_sequence(cur)) {
        Py_ssize_t n = PySequence_Size(cur);
        if (n < 0 || type->ndim == DT_MAX_DIM) {
            Py_DECREF(cur);
            if (n >= 0) PyErr_Format(PyExc_ValueError, "too many dimensions: at most %d are legal", DT_MAX_DIM);
            return -1;
        }
        type->shape[type->ndim++] = n;
        PyObject *next = n ? PySequence_GetItem(cur, 0) : NULL;
        Py_DECREF(cur);
        if (!n) return 0;
        if (!next) return -1;
        cur = next;
    }
    Py_DECREF(cur);
    return 0;
}

static int leaf_dtype(PyObject *o, dt_dtype *out) {
    if (PyFloat_Check(o)) /* numpy.float64 is a float too */
        *out = PyFloat_CheckExact(o) || !PyObject_CheckBuffer(o) ? dt_default_dtype() : DT_float64;
    else if (PyBool_Check(o))
        *out = DT_bool;
    else if (PyLong_Check(o))
        *out = DT_int64;
    else if (dt_py_is_tensor(o))
        *out = (dt_dtype)dt_tensor_meta(dt_py_tensor_of(o))->dtype;
    else if (PyObject_CheckBuffer(o) && !PyBytes_Check(o)) {
        Py_buffer v;
        if (PyObject_GetBuffer(o, &v, PyBUF_FULL_RO) < 0) return -1;
        *out = format_dtype(v.format, v.itemsize);
        PyBuffer_Release(&v);
        if (*out == DT_DTYPE_NONE) *out = DT_int64;
    } else {
        dt_arg a;
        int r = dt_py_to_value(o, &a);
        if (r <= 0) {
            if (r == 0)
                PyErr_Format(PyExc_TypeError,
                             is_sequence(o) ? "expected a number, got a %s: the nested sequences differ in depth" : "new(): invalid data type '%s'",
                             dt_py_type_name(o));
            return -1;
        }
        *out = a.kind == DT_ARG_FLOAT ? dt_default_dtype() : a.kind == DT_ARG_BOOL ? DT_bool : DT_int64;
    }
    return 0;
}

static int infer_dtype(PyObject *o, int depth, dt_dtype *acc) {
    if (depth == 0) {
        dt_dtype t;
        if (leaf_dtype(o, &t) < 0) return -1;
        if (t != *acc) *acc = *acc == DT_DTYPE_NONE ? t : dt_dtype_promote(*acc, t);
        return 0;
    }
    if (!is_sequence(o)) return 0; /* the filling pass says what is wrong */
    PyObject *seq = PySequence_Fast(o, "expected a sequence");
    if (!seq) return -1;
    int r = 0;
    for (Py_ssize_t i = 0; r == 0 && i < PySequence_Fast_GET_SIZE(seq); i++) r = infer_dtype(PySequence_Fast_GET_ITEM(seq, i), depth - 1, acc);
    Py_DECREF(seq);
    return r;
}

static int store_int(dt_dtype t, char *dst, int64_t v) {
    static const int64_t lo[] = {0, 0, INT8_MIN, INT16_MIN, INT32_MIN}, hi[] = {1, UINT8_MAX, INT8_MAX, INT16_MAX, INT32_MAX};
    if (t == DT_bool) v = v != 0;
    if (t == DT_uint8 && v < 0 && v >= INT8_MIN) v &= 255; /* as PyTorch */
    if (t < DT_int64 && (v < lo[t] || v > hi[t])) {
        PyErr_Format(PyExc_RuntimeError, "value cannot be converted to type %s without overflow", dt_dtype_name(t));
        return -1;
    }
    dt_element_set_i64(t, dst, v);
    return 0;
}

static int store(dt_dtype t, char *dst, PyObject *o) {
    if (PyFloat_CheckExact(o) && dt_dtype_is_float(t)) {
        dt_element_set_f64(t, dst, PyFloat_AS_DOUBLE(o));
        return 0;
    }
    if (dt_py_is_tensor(o) && dt_tensor_meta(dt_py_tensor_of(o))->numel == 1) {
        dt_dtype from;
        char v[8];
        if (dt_py_read_one(dt_py_tensor_of(o), &from, v) < 0) return -1;
        if (dt_dtype_is_float(t))
            dt_element_set_f64(t, dst, dt_element_get_f64(from, v));
        else
            dt_element_set_i64(t, dst, dt_element_get_i64(from, v));
        return 0;
    }
    dt_arg a;
    int r = dt_py_to_value(o, &a);
    if (r < 0) return -1;
    if (r == 0 || a.kind == DT_ARG_TENSOR) {
        if (r)
            PyErr_SetString(PyExc_ValueError, "only one element tensors can be converted to Python scalars");
        else if (is_sequence(o))
            PyErr_SetString(PyExc_ValueError, "expected a number, got a sequence: the nested sequences differ in depth");
        else
            PyErr_Format(PyExc_TypeError, "must be real number, not %s", dt_py_type_name(o));
        return -1;
    }
    if (a.kind != DT_ARG_FLOAT) return dt_dtype_is_float(t) ? (dt_element_set_f64(t, dst, (double)a.i), 0) : store_int(t, dst, a.i);
    if (dt_dtype_is_float(t))
        dt_element_set_f64(t, dst, a.f);
    else if (t == DT_bool)
        *dst = a.f != 0;
    else if (!(a.f >= -9.3e18 && a.f <= 9.3e18))
        return PyErr_Format(PyExc_RuntimeError, "value cannot be converted to type %s without overflow", dt_dtype_name(t)), -1;
    else
        return store_int(t, dst, (int64_t)a.f);
    return 0;
}

/* Fill the elements of o (type's dimensions from `dim`) at *dst, advancing it. */
static int fill(PyObject *o, const dt_type *type, int dim, char **dst) {
    size_t size = dt_dtype_size(type->dtype);
    if (dim == type->ndim) {
        int r = store(type->dtype, *dst, o);
        *dst += size;
        return r;
    }
    if (!is_sequence(o)) {
        PyErr_Format(PyExc_TypeError, "not a sequence: dimension %d has a %s among sequences of length %lld", dim, dt_py_type_name(o),
                     (long long)type->shape[dim]);
        return -1;
    }
    PyObject *seq = PySequence_Fast(o, "expected a sequence");
    if (!seq) return -1;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(seq);
    int r = 0;
    if (n != type->shape[dim]) {
        PyErr_Format(PyExc_ValueError, "expected sequence of length %lld at dim %d (got %zd)", (long long)type->shape[dim], dim, n);
        r = -1;
    }
    for (Py_ssize_t i = 0; r == 0 && i < n; i++) r = fill(PySequence_Fast_GET_ITEM(seq, i), type, dim + 1, dst);
    Py_DECREF(seq);
    return r;
}

static dt_tensor *from_sequence(PyObject *o, dt_dtype dtype, const dt_spec *spec) {
    dt_type type = {.dtype = dtype};
    if (sequence_shape(o, &type) < 0) return NULL;
    if (dtype == DT_DTYPE_NONE && infer_dtype(o, type.ndim, &type.dtype) < 0) return NULL;
    if (type.dtype == DT_DTYPE_NONE) type.dtype = dt_default_dtype();
    dt_hostbuf *b;
    DT_PY_CHECK(dt_hostbuf_new((size_t)dt_type_numel(&type) * dt_dtype_size(type.dtype), &b));
    char *dst = b->data;
    if (dt_type_numel(&type) && fill(o, &type, 0, &dst) < 0) {
        dt_hostbuf_unref(b);
        return NULL;
    }
    dt_tensor *t;
    DT_PY_CHECK(dt_tensor_from_host(b, &type, spec, &t));
    return dt_py_given(t);
}

dt_tensor *dt_py_tensor_from(PyObject *data, dt_dtype dtype, const dt_spec *spec) {
    dt_tensor *t;
    dt_py_site();
    if (dt_py_is_tensor(data)) {
        dt_args a;
        dt_py_args_init(&a);
        a.a[0] = DT_PY_ARG_T(dt_py_tensor_of(data));
        t = dt_py_call("clone", &a);
    } else if (dt_py_is_array(data) || PyMemoryView_Check(data)) {
        t = from_buffer(data, spec);
    } else {
        return from_sequence(data, dtype, spec);
    }
    if (t && dtype != DT_DTYPE_NONE) {
        dt_tensor *c = dt_py_cast(t, dtype);
        dt_tensor_unref(t);
        t = c;
    }
    if (t && spec && dt_py_is_tensor(data)) {
        dt_tensor *c = dt_py_redistribute(t, spec);
        dt_tensor_unref(t);
        t = c;
    }
    return t;
}

/* ---- module functions ------------------------------------------------------------------------------------------------------------------ */
static int tensor_options(PyObject *dtype, PyObject *device, PyObject *mesh, PyObject *placements, dt_dtype *t, const dt_spec **spec) {
    *t = DT_DTYPE_NONE;
    *spec = NULL;
    if (dtype != Py_None && !dt_py_dtype_parse(dtype, t)) {
        PyErr_Format(PyExc_TypeError, "tensor(): argument 'dtype' must be dtorch.dtype, not %s", dt_py_type_name(dtype));
        return -1;
    }
    if (mesh != Py_None) return dt_py_spec(mesh, placements, 0, spec);
    if (device == Py_None) return 0;
    dt_device d;
    int r = dt_py_device_parse(device, &d);
    if (r == 0) PyErr_Format(PyExc_TypeError, "tensor(): argument 'device' must be dtorch.device or str, not %s", dt_py_type_name(device));
    return r <= 0 ? -1 : dt_py_spec_of_device(d, spec);
}

static PyObject *tensor(PyObject *m, PyObject *args, PyObject *kw) {
    static char *names[] = {"data", "dtype", "device", "requires_grad", "pin_memory", "device_mesh", "placements", NULL};
    PyObject *data, *dtype = Py_None, *device = Py_None, *mesh = Py_None, *placements = Py_None;
    int grad = 0, pin = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$OOppOO:tensor", names, &data, &dtype, &device, &grad, &pin, &mesh, &placements)) return NULL;
    dt_dtype type;
    const dt_spec *spec;
    if (tensor_options(dtype, device, mesh, placements, &type, &spec) < 0) return NULL;
    dt_tensor *t = dt_py_tensor_from(data, type, spec);
    if (t && dt_py_is_tensor(data)) {
        dt_tensor *d = NULL;
        dt_status s = dt_tensor_detach(t, &d);
        dt_tensor_unref(t);
        DT_PY_CHECK(s);
        t = d;
    }
    dt_status s = t && grad ? dt_tensor_requires_grad_set(t, true) : DT_OK;
    if (s) dt_tensor_unref(t);
    return s ? dt_py_raise(s) : dt_py_wrap(t);
}

static PyObject *from_numpy(PyObject *m, PyObject *o) {
    if (!dt_py_is_array(o)) return PyErr_Format(PyExc_TypeError, "expected np.ndarray (got %s)", dt_py_type_name(o));
    dt_py_site();
    return dt_py_wrap(from_buffer(o, NULL));
}

/* frombuffer(buffer, *, dtype, count=-1, offset=0, device=None): 1-dim, copies. */
static PyObject *frombuffer(PyObject *m, PyObject *args, PyObject *kw) {
    static char *names[] = {"buffer", "dtype", "count", "offset", "requires_grad", "device", NULL};
    PyObject *o, *dtype = NULL, *device = Py_None; /* dtype is a keyword that must be given */
    const dt_spec *spec = NULL;
    dt_device d;
    Py_ssize_t count = -1, offset = 0;
    int grad = 0;
    dt_dtype t;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$OnnpO:frombuffer", names, &o, &dtype, &count, &offset, &grad, &device)) return NULL;
    if (!dtype) return PyErr_Format(PyExc_TypeError, "frombuffer(): missing the keyword argument 'dtype'");
    if (!dt_py_dtype_parse(dtype, &t)) return PyErr_Format(PyExc_TypeError, "frombuffer(): argument 'dtype' must be dtorch.dtype");
    int at = device == Py_None ? 0 : dt_py_device_parse(device, &d);
    if (device != Py_None && at == 0)
        PyErr_Format(PyExc_TypeError, "frombuffer(): argument 'device' must be dtorch.device or str, not %s", dt_py_type_name(device));
    if (device != Py_None && (at <= 0 || dt_py_spec_of_device(d, &spec) < 0)) return NULL;
    Py_buffer v;
    if (PyObject_GetBuffer(o, &v, PyBUF_SIMPLE) < 0) return NULL;
    Py_ssize_t size = (Py_ssize_t)dt_dtype_size(t), room = v.len - offset;
    if (count < 0) count = room >= 0 && room % size == 0 ? room / size : -1;
    dt_tensor *out = NULL;
    dt_hostbuf *b;
    dt_status s = DT_OK;
    if (offset < 0 || count < 0 || room < 0 || count > room / size) {
        PyErr_Format(PyExc_ValueError, "frombuffer(): %zd elements of %zd bytes from offset %zd do not fit a buffer of %zd bytes", count, size, offset, v.len);
    } else if (!(s = dt_hostbuf_new((size_t)(count * size), &b))) {
        if (count) memcpy(b->data, (char *)v.buf + offset, (size_t)(count * size));
        dt_type type = {t, 1, {count}};
        s = dt_tensor_from_host(b, &type, spec, &out);
    }
    PyBuffer_Release(&v);
    if (s) return dt_py_raise(s);
    if (out && !(out = dt_py_given(out))) return NULL;
    if (out && grad) DT_PY_CHECK(dt_tensor_requires_grad_set(out, true));
    return dt_py_wrap(out);
}

static PyObject *assign(PyObject *m, PyObject *args) {
    PyObject *dst, *src;
    if (!PyArg_ParseTuple(args, "O!O!:copy_", dt_py_tensor_type, &dst, dt_py_tensor_type, &src)) return NULL;
    dt_py_site();
    DT_PY_CHECK(dt_tensor_assign(dt_py_tensor_of(dst), dt_py_tensor_of(src)));
    Py_RETURN_NONE;
}
static PyObject *snapshot(PyObject *m, PyObject *o) {
    if (!dt_py_is_tensor(o)) return PyErr_Format(PyExc_TypeError, "_snapshot(): expected Tensor, not %s", dt_py_type_name(o));
    dt_tensor *t = NULL;
    DT_PY_CHECK(dt_tensor_snapshot(dt_py_tensor_of(o), &t));
    return dt_py_wrap(t);
}
static PyObject *same_storage(PyObject *m, PyObject *args) {
    PyObject *a, *b;
    if (!PyArg_ParseTuple(args, "O!O!:share_storage", dt_py_tensor_type, &a, dt_py_tensor_type, &b)) return NULL;
    const dt_cell *x = dt_py_tensor_of(a)->cell, *y = dt_py_tensor_of(b)->cell;
    return PyBool_FromLong((x->root ? x->root : x) == (y->root ? y->root : y));
}

/* ---- out ------------------------------------------------------------------------------------------------------------------------------ */
PyObject *dt_py_item_of(dt_dtype t, const void *p) {
    if (dt_dtype_is_float(t)) return PyFloat_FromDouble(dt_element_get_f64(t, p));
    if (dt_dtype_is_bool(t)) return PyBool_FromLong(dt_element_get_i64(t, p) != 0);
    return PyLong_FromLongLong(dt_element_get_i64(t, p));
}

PyObject *dt_py_bytes_of(dt_future *f) {
    py_hostbuf *b = PyObject_New(py_hostbuf, &dt_py_hostbuf_type);
    if (!b) return NULL;
    dt_hostbuf_ref(f->buf);
    b->b = f->buf;
    return (PyObject *)b;
}
PyObject *dt_py_numpy_of(dt_future *f) {
    static const char *const names[] = {
#define X(name, ctype, size, cat, st, np) np,
        DT_DTYPE_MAP(X)
#undef X
    };
    static PyObject *ndarray;
    const dt_meta *m = f->meta;
    if (!names[m->dtype][0]) return PyErr_Format(PyExc_TypeError, "Got unsupported ScalarType BFloat16");
    if (!dt_py_lazy(&ndarray, "numpy", "ndarray")) return NULL;
    PyObject *b = dt_py_bytes_of(f);
    if (!b) return NULL;
    PyObject *shape = dt_py_shape(m), *r = NULL;
    if (shape) r = PyObject_CallFunction(ndarray, "OsO", shape, names[m->dtype], b);
    Py_XDECREF(shape);
    Py_DECREF(b);
    return r;
}

static PyObject *list_of(const dt_meta *m, int dim, const char **p) {
    if (dim == m->ndim) {
        PyObject *v = dt_py_item_of((dt_dtype)m->dtype, *p);
        *p += dt_dtype_size((dt_dtype)m->dtype);
        return v;
    }
    PyObject *list = PyList_New((Py_ssize_t)m->shape[dim]);
    for (int64_t i = 0; list && i < m->shape[dim]; i++) {
        PyObject *v = list_of(m, dim + 1, p);
        if (v)
            PyList_SET_ITEM(list, i, v);
        else
            Py_CLEAR(list);
    }
    return list;
}
PyObject *dt_py_list_of(dt_future *f) {
    const char *p = f->buf->data;
    return list_of(f->meta, 0, &p);
}

static PyMethodDef functions[] = {
    {"tensor", (PyCFunction)(void (*)(void))tensor, METH_VARARGS | METH_KEYWORDS,
     "tensor(data, *, dtype=None, device=None, requires_grad=False, device_mesh=None, placements=None)\n\nA tensor with a copy of data: numbers, nested "
     "sequences, arrays."},
    {"_assign", assign, METH_VARARGS, NULL},
    {"_snapshot", snapshot, METH_O, NULL},
    {"_same_storage", same_storage, METH_VARARGS, NULL},
    {"from_numpy", from_numpy, METH_O, "A tensor with a copy of a NumPy array. (PyTorch shares memory; here later writes never show.)"},
    {"frombuffer", (PyCFunction)(void (*)(void))frombuffer, METH_VARARGS | METH_KEYWORDS, "A 1-dim tensor with a copy of a buffer's bytes."},
    {0},
};

int dt_py_data_init(PyObject *m) {
    if (PyType_Ready(&dt_py_hostbuf_type) < 0) return -1;
    return PyModule_AddFunctions(m, functions);
}
