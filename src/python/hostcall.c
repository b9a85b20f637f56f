/* dtorch._C._host_call: a Python function among the calls. It runs on a worker's thread, in order with the other work, with the GIL held; what
 * it raises becomes a late error of the results.
 *
 * Nothing of the engine's memory is shown to Python: the function gets the inputs as bytes objects and returns the results as objects with the
 * buffer interface, so it may keep what it likes; dtorch/_host.py turns them into arrays. */
#include "python/py.h"

static PyObject *copies(int n, const dt_view *v) {
    PyObject *t = PyTuple_New(n);
    for (int i = 0; t && i < n; i++) {
        PyObject *b = PyBytes_FromStringAndSize(v[i].data, (Py_ssize_t)(dt_view_numel(&v[i]) * (int64_t)dt_dtype_size(v[i].dtype)));
        if (b)
            PyTuple_SET_ITEM(t, i, b);
        else
            Py_CLEAR(t);
    }
    return t;
}

/* The returned buffers into the results; a Python exception on a mismatch. */
static int take(PyObject *r, int n, const dt_view *out) {
    if (!PyTuple_Check(r) || PyTuple_GET_SIZE(r) != n) {
        PyErr_Format(PyExc_TypeError, "host_call(): expected a tuple of %d buffers", n);
        return -1;
    }
    for (int i = 0; i < n; i++) {
        Py_buffer b;
        Py_ssize_t bytes = (Py_ssize_t)(dt_view_numel(&out[i]) * (int64_t)dt_dtype_size(out[i].dtype));
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(r, i), &b, PyBUF_C_CONTIGUOUS) < 0) return -1;
        bool fits = b.len == bytes;
        if (fits && bytes) memcpy(out[i].data, b.buf, (size_t)bytes);
        PyBuffer_Release(&b);
        if (fits) continue;
        PyErr_Format(PyExc_ValueError, "host_call(): result %d has %zd bytes, %zd were declared", i, b.len, bytes);
        return -1;
    }
    return 0;
}

/* The pending Python exception as this thread's failure text: "ValueError: …". */
static dt_status failed(void) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    const char *s = text ? PyUnicode_AsUTF8(text) : NULL;
    dt_status r = dt_fail(DT_E_CALLBACK, "%s: %s", type ? ((PyTypeObject *)type)->tp_name : "error", s ? s : "?");
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return r;
}

static dt_status run(void *ctx, int n_in, const dt_view *in, int n_out, const dt_view *out) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *ins = copies(n_in, in), *r = ins ? PyObject_CallOneArg(ctx, ins) : NULL;
    dt_status s = r && take(r, n_out, out) == 0 ? DT_OK : failed();
    Py_XDECREF(r);
    Py_XDECREF(ins);
    PyGILState_Release(gil);
    return s;
}

static void let_go(void *ctx) {
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_DECREF((PyObject *)ctx);
    PyGILState_Release(gil);
}

static int result_type(PyObject *o, dt_type *t) {
    PyObject *shape, *dtype;
    if (!PyArg_ParseTuple(o, "OO", &shape, &dtype)) return -1;
    int n = 0;
    if (dt_py_to_ints(shape, t->shape, DT_MAX_DIM, &n) != 1 || dt_py_dtype_parse(dtype, &t->dtype) != 1) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "host_call(): each of out must be (shape, dtype), got %R", o);
        return -1;
    }
    t->ndim = n;
    return 0;
}

enum { MAX_TENSORS = 32 };

/* _host_call(fn, (tensor, …), ((shape, dtype), …)) -> tuple of tensors */
PyObject *dt_py_host_call(PyObject *module, PyObject *args) {
    PyObject *fn, *ins, *outs;
    if (!PyArg_ParseTuple(args, "OO!O!", &fn, &PyTuple_Type, &ins, &PyTuple_Type, &outs)) return NULL;
    Py_ssize_t n_in = PyTuple_GET_SIZE(ins), n_out = PyTuple_GET_SIZE(outs);
    if (n_in > MAX_TENSORS || n_out > MAX_TENSORS || n_out < 1)
        return PyErr_Format(PyExc_ValueError, "host_call(): %zd inputs and %zd results: at most %d, and at least one result, are possible", n_in, n_out,
                            MAX_TENSORS);
    dt_tensor *in[MAX_TENSORS], *out[MAX_TENSORS];
    dt_type types[MAX_TENSORS] = {0};
    for (Py_ssize_t i = 0; i < n_in; i++) {
        PyObject *t = PyTuple_GET_ITEM(ins, i);
        if (!dt_py_is_tensor(t)) return PyErr_Format(PyExc_TypeError, "host_call(): input %zd must be a Tensor, not %s", i, dt_py_type_name(t));
        in[i] = dt_py_tensor_of(t);
    }
    for (Py_ssize_t i = 0; i < n_out; i++)
        if (result_type(PyTuple_GET_ITEM(outs, i), &types[i]) < 0) return NULL;
    Py_INCREF(fn);
    dt_py_site();
    dt_status s = dt_host_call(run, let_go, fn, (int)n_in, in, (int)n_out, types, out);
    if (s) return dt_py_raise(s);
    PyObject *r = PyTuple_New(n_out);
    for (Py_ssize_t i = 0; i < n_out; i++) {
        PyObject *t = dt_py_wrap(out[i]);
        if (r && t)
            PyTuple_SET_ITEM(r, i, t);
        else
            Py_CLEAR(r);
    }
    return r;
}
