/* Single conversions: a Python object into a number, a list of ints, a value. 1 = done, 0 = not that kind, -1 = exception.
 *
 * NumPy's numbers count as Python's: numpy.float64 is a float, integers have __index__, float32 has __float__ only, numpy.bool_ neither.
 * A 0-dim tensor where a plain number is wanted is read, which waits. */
#include "python/py.h"

const char *dt_py_type_name(PyObject *o) {
    const char *name = Py_TYPE(o)->tp_name, *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static bool is_numpy_bool(PyObject *o) {
    const char *name = Py_TYPE(o)->tp_name;
    return !strcmp(name, "numpy.bool_") || !strcmp(name, "numpy.bool");
}
static bool is_numpy_number(PyObject *o) { return !strncmp(Py_TYPE(o)->tp_name, "numpy.", 6) && strcmp(Py_TYPE(o)->tp_name, "numpy.ndarray") != 0; }

static int long_to_int(PyObject *o, int64_t *out) {
    int overflow;
    long long v = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow) {
        PyErr_SetString(PyExc_ValueError, "Overflow when unpacking long long: an integer does not fit in 64 bits");
        return -1;
    }
    *out = v;
    return v == -1 && PyErr_Occurred() ? -1 : 1;
}

static bool is_scalar_tensor(PyObject *o) { return dt_py_is_tensor(o) && dt_tensor_meta(dt_py_tensor_of(o))->ndim == 0; }

int dt_py_to_int(PyObject *o, int64_t *out) {
    if (PyLong_CheckExact(o)) return long_to_int(o, out);
    if (PyBool_Check(o)) return 0;
    if (PyLong_Check(o)) return long_to_int(o, out);
    if (is_scalar_tensor(o)) {
        dt_dtype t;
        char v[8];
        if (!dt_dtype_is_int((dt_dtype)dt_tensor_meta(dt_py_tensor_of(o))->dtype)) return 0;
        if (dt_py_read_one(dt_py_tensor_of(o), &t, v) < 0) return -1;
        *out = dt_element_get_i64(t, v);
        return 1;
    }
    if (dt_py_is_tensor(o) || !PyIndex_Check(o) || dt_py_is_array(o) || is_numpy_bool(o)) return 0;
    PyObject *k = PyNumber_Index(o);
    if (!k) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) return -1;
        PyErr_Clear();
        return 0;
    }
    int r = long_to_int(k, out);
    Py_DECREF(k);
    return r;
}

int dt_py_to_value(PyObject *o, dt_arg *out) {
    out->given = true;
    if (dt_py_is_tensor(o)) {
        out->kind = DT_ARG_TENSOR;
        out->t = dt_py_tensor_of(o);
        return 1;
    }
    if (PyFloat_Check(o)) {
        out->kind = DT_ARG_FLOAT;
        out->f = PyFloat_AS_DOUBLE(o);
        return 1;
    }
    if (PyBool_Check(o)) {
        out->kind = DT_ARG_BOOL;
        out->i = o == Py_True;
        return 1;
    }
    if (PyLong_Check(o)) {
        out->kind = DT_ARG_INT;
        int overflow;
        long long v = PyLong_AsLongLongAndOverflow(o, &overflow);
        if (overflow) { /* as PyTorch, which computes with it as a float where that is possible */
            out->kind = DT_ARG_FLOAT;
            out->f = PyLong_AsDouble(o);
            return PyErr_Occurred() ? -1 : 1;
        }
        out->i = v;
        return 1;
    }
    if (!is_numpy_number(o)) return 0;
    if (is_numpy_bool(o)) {
        int yes = PyObject_IsTrue(o);
        out->kind = DT_ARG_BOOL;
        out->i = yes > 0;
        return yes < 0 ? -1 : 1;
    }
    out->kind = DT_ARG_INT;
    if (PyIndex_Check(o)) return dt_py_to_int(o, &out->i);
    if (PyComplex_Check(o)) return 0;
    double v = PyFloat_AsDouble(o);
    if (v == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    out->kind = DT_ARG_FLOAT;
    out->f = v;
    return 1;
}

/* A number for a run-time scalar or a float attribute: as a value, but a 0-dim tensor is read. */
int dt_py_to_scalar(PyObject *o, dt_arg *out) {
    int r = dt_py_to_value(o, out);
    if (r <= 0 || out->kind != DT_ARG_TENSOR) return r;
    if (dt_tensor_meta(out->t)->numel != 1 || dt_tensor_meta(out->t)->ndim) return 0;
    dt_dtype t;
    char v[8];
    if (dt_py_read_one(out->t, &t, v) < 0) return -1;
    out->kind = dt_dtype_is_float(t) ? DT_ARG_FLOAT : dt_dtype_is_bool(t) ? DT_ARG_BOOL : DT_ARG_INT;
    if (out->kind == DT_ARG_FLOAT)
        out->f = dt_element_get_f64(t, v);
    else
        out->i = dt_element_get_i64(t, v);
    return 1;
}

int dt_py_to_float(PyObject *o, double *out) {
    if (PyFloat_CheckExact(o)) {
        *out = PyFloat_AS_DOUBLE(o);
        return 1;
    }
    dt_arg a;
    int r = dt_py_to_scalar(o, &a);
    if (r > 0) *out = a.kind == DT_ARG_FLOAT ? a.f : (double)a.i;
    return r;
}

int dt_py_to_bool(PyObject *o, bool *out) {
    if (PyBool_Check(o)) {
        *out = o == Py_True;
        return 1;
    }
    if (!is_numpy_bool(o)) return 0;
    int r = PyObject_IsTrue(o);
    *out = r > 0;
    return r < 0 ? -1 : 1;
}

/* A list, tuple, Size or 1-dim integer tensor of ints. */
int dt_py_to_ints(PyObject *o, int64_t *out, int cap, int *n) {
    PyObject *seq = o;
    bool made = false;
    if (!PyTuple_Check(o) && !PyList_Check(o)) {
        if (!PyRange_Check(o) && !(dt_py_is_tensor(o) && dt_tensor_meta(dt_py_tensor_of(o))->ndim == 1) && !dt_py_is_array(o)) return 0;
        if (dt_py_is_tensor(o) && !dt_dtype_is_int((dt_dtype)dt_tensor_meta(dt_py_tensor_of(o))->dtype)) return 0;
        seq = PySequence_List(o);
        if (!seq) return -1;
        made = true;
    }
    Py_ssize_t len = PySequence_Fast_GET_SIZE(seq);
    PyObject **item = PySequence_Fast_ITEMS(seq);
    int r = 1;
    for (Py_ssize_t i = 0; r > 0 && i < len && i < cap; i++) r = dt_py_to_int(item[i], &out[i]);
    if (r > 0 && len > cap) {
        PyErr_Format(PyExc_ValueError, "a list of %zd ints: at most %d are legal here", len, cap);
        r = -1;
    }
    if (made) Py_DECREF(seq);
    if (r > 0) *n = (int)len;
    return r;
}
