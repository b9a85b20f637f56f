/* dtorch._C._file_*: tensors in files (plan/source.h) for dtorch/io.py and dtorch/checkpoint. An open file is a capsule; what the bytes of it are is
 * Python's to know, which has checked the header. */
#include "python/py.h"

#include "comm/net.h"
#include "plan/nodes.h"

static const char capsule_name[] = "dtorch.file";

static void close_file(PyObject *capsule) { dt_file_unref(PyCapsule_GetPointer(capsule, capsule_name)); }

/* The nodes that cannot read the file: [(rank, host)]. Waits for all of them. */
static PyObject *tell_nodes(dt_file *file) {
    PyObject *list = PyList_New(0);
    dt_future *f;
    if (!list || dt_nodes == 1) return list;
    dt_status s = dt_file_announce(file, &f);
    if (s) {
        Py_DECREF(list);
        return dt_py_raise(s);
    }
    dt_engine_flush();
    int r = dt_py_wait(f);
    dt_future_unref(f);
    for (int node = 1; node < dt_nodes && r == 0; node++) {
        if (file->here && atomic_load(&file->here[node])) continue;
        PyObject *who = Py_BuildValue("is", node, dt_net_host(node));
        r = who ? PyList_Append(list, who) : -1;
        Py_XDECREF(who);
    }
    if (r < 0) Py_CLEAR(list);
    return list;
}

/* _file_open(fd, path, head) -> (file, nodes that cannot read it). Takes the descriptor, whatever happens. */
static PyObject *file_open(PyObject *m, PyObject *args) {
    int fd;
    PyObject *path;
    unsigned long long head;
    if (!PyArg_ParseTuple(args, "iO&K:_file_open", &fd, PyUnicode_FSConverter, &path, &head)) return NULL;
    dt_file *f;
    dt_status s = dt_file_new(fd, PyBytes_AS_STRING(path), head, &f);
    Py_DECREF(path);
    if (s) return dt_py_raise(s);
    PyObject *capsule = PyCapsule_New(f, capsule_name, close_file);
    if (!capsule) {
        dt_file_unref(f);
        return NULL;
    }
    PyObject *without = tell_nodes(f), *r = without ? PyTuple_Pack(2, capsule, without) : NULL;
    Py_XDECREF(without);
    Py_DECREF(capsule);
    return r;
}

/* _file_bytes(file, at, n) -> bytearray */
static PyObject *file_bytes(PyObject *m, PyObject *args) {
    PyObject *capsule;
    long long at, n;
    if (!PyArg_ParseTuple(args, "OLL:_file_bytes", &capsule, &at, &n)) return NULL;
    dt_file *f = PyCapsule_GetPointer(capsule, capsule_name);
    if (!f) return NULL;
    dt_type type = {DT_uint8, 1, {n}};
    dt_file_box box = {.file = f, .at = at, .len = {n}, .stride = {1}};
    dt_source *s;
    DT_PY_CHECK(n < 0 ? dt_fail(DT_E_VALUE, "%lld bytes of a file", n) : dt_source_new(&type, 0, 1, &box, &s));
    PyObject *b = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)n);
    dt_status st = DT_OK;
    if (b) {
        Py_BEGIN_ALLOW_THREADS st = dt_source_read(s, PyByteArray_AS_STRING(b));
        Py_END_ALLOW_THREADS
    }
    dt_source_unref(s);
    if (!st) return b;
    Py_DECREF(b);
    return dt_py_raise(st);
}

/* A list of `ndim` ints; false with an exception. */
static bool ints(PyObject *o, int ndim, int64_t *out) {
    int n = 0, r = dt_py_to_ints(o, out, DT_MAX_DIM, &n);
    if (r == 1 && n == ndim) return true;
    if (r >= 0) PyErr_Format(PyExc_TypeError, "_file_tensor(): expected %d ints, got %R", ndim, o);
    return false;
}

/* (file, at, lo, sizes, strides or None, (at, bytes, crc32) or None): from byte `at`; without strides row by row */
static bool box_of(PyObject *o, int ndim, dt_dtype dtype, dt_file_box *b) {
    PyObject *capsule, *lo, *len, *strides, *check;
    long long at;
    *b = (dt_file_box){0};
    if (!PyArg_ParseTuple(o, "OLOOOO", &capsule, &at, &lo, &len, &strides, &check)) return false;
    b->file = PyCapsule_GetPointer(capsule, capsule_name);
    b->at = at;
    if (!b->file || !ints(lo, ndim, b->lo) || !ints(len, ndim, b->len)) return false;
    int64_t stride = 1;
    if (strides != Py_None && !ints(strides, ndim, b->stride)) return false;
    for (int d = ndim - 1; d >= 0 && strides == Py_None; d--) {
        b->stride[d] = stride;
        if (__builtin_mul_overflow(stride, b->len[d], &stride)) return PyErr_Format(PyExc_ValueError, "_file_tensor(): too large"), false;
    }
    unsigned long long from, bytes;
    unsigned int crc;
    if (check == Py_None) return true;
    if (!PyArg_ParseTuple(check, "KKI", &from, &bytes, &crc)) return false;
    b->check = (dt_check){from, bytes, crc};
    return true;
}

/* _file_tensor(shape, dtype, boxes, mesh=None, placements=None) -> Tensor, read when it is wanted */
static PyObject *file_tensor(PyObject *m, PyObject *args) {
    PyObject *shape, *dtype, *boxes, *mesh = Py_None, *placements = Py_None;
    if (!PyArg_ParseTuple(args, "OOO!|OO:_file_tensor", &shape, &dtype, &PyList_Type, &boxes, &mesh, &placements)) return NULL;
    dt_type type = {0};
    const dt_spec *spec = NULL;
    int ndim = 0;
    if (dt_py_to_ints(shape, type.shape, DT_MAX_DIM, &ndim) != 1 || dt_py_dtype_parse(dtype, &type.dtype) != 1)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "_file_tensor(): expected a shape and a dtype");
    type.ndim = ndim;
    if (mesh != Py_None && dt_py_spec(mesh, placements, ndim, &spec) < 0) return NULL;
    Py_ssize_t n = PyList_GET_SIZE(boxes);
    dt_file_box *box = dt_malloc(sizeof *box * (size_t)(n + 1));
    if (!box) return PyErr_NoMemory();
    bool ok = true;
    for (Py_ssize_t i = 0; i < n && ok; i++) ok = box_of(PyList_GET_ITEM(boxes, i), ndim, type.dtype, &box[i]);
    dt_source *s = NULL;
    dt_tensor *t = NULL;
    dt_status st = DT_OK;
    dt_py_site();
    if (ok) st = dt_source_new(&type, dt_py_site_find(), (int)n, box, &s);
    dt_free(box);
    if (ok && !st) st = dt_tensor_from_source(s, spec, &t);
    return !ok ? NULL : st ? dt_py_raise(st) : dt_py_wrap(t);
}

/* _begin_reading(t) -> Future that is done when all devices have read their part, or one could not; None: t does not lie in files (any more) */
static PyObject *begin_reading(PyObject *m, PyObject *o) {
    dt_future *f;
    if (!dt_py_is_tensor(o)) return PyErr_Format(PyExc_TypeError, "_begin_reading(): expected Tensor, not %s", dt_py_type_name(o));
    DT_PY_CHECK(dt_tensor_begin_reading(dt_py_tensor_of(o), &f));
    if (!f) Py_RETURN_NONE;
    dt_engine_flush();
    return dt_py_future_done(f);
}

static PyMethodDef functions[] = {
    {"_file_open", file_open, METH_VARARGS, NULL},
    {"_file_bytes", file_bytes, METH_VARARGS, NULL},
    {"_file_tensor", file_tensor, METH_VARARGS, NULL},
    {"_begin_reading", begin_reading, METH_O, NULL},
    {0},
};

int dt_py_file_init(PyObject *m) { return PyModule_AddFunctions(m, functions); }
