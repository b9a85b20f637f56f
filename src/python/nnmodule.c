/* dtorch._C._Callable: the base of nn.Module that makes `module(x)` cheap. Calling goes from the interpreter's call slot straight to `forward`
 * (or to `_call_hooked` when `_hooked` says so), without a Python frame between: half of what a small layer's call would cost otherwise.
 *
 * It adds no fields, so that a subclass may have any other base beside nn.Module. */
#include "python/py.h"

static PyObject *s_hooked, *s_call_hooked, *s_forward;

static PyObject *call_hooked(PyObject *self, PyObject *args, PyObject *kw) {
    PyObject *none = kw ? NULL : PyDict_New();
    if (!kw && !none) return NULL;
    PyObject *r = PyObject_CallMethodObjArgs(self, s_call_hooked, args, kw ? kw : none, NULL);
    Py_XDECREF(none);
    return r;
}

static PyObject *callable_call(PyObject *self, PyObject *args, PyObject *kw) {
    enum { FEW = 6 };
    PyObject *hooked = PyObject_GetAttr(self, s_hooked);
    if (!hooked) return NULL;
    int on = hooked == Py_False ? 0 : PyObject_IsTrue(hooked);
    Py_DECREF(hooked);
    if (on) return on < 0 ? NULL : call_hooked(self, args, kw);
    Py_ssize_t n = PyTuple_GET_SIZE(args);
    if (n <= FEW && (!kw || PyDict_GET_SIZE(kw) == 0)) {
        PyObject *v[FEW + 2]; /* the first is the callee's to use */
        v[1] = self;
        for (Py_ssize_t i = 0; i < n; i++) v[i + 2] = PyTuple_GET_ITEM(args, i);
        return PyObject_VectorcallMethod(s_forward, v + 1, (size_t)(n + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }
    PyObject *f = PyObject_GetAttr(self, s_forward);
    PyObject *r = f ? PyObject_Call(f, args, kw) : NULL;
    Py_XDECREF(f);
    return r;
}

static PyTypeObject callable_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch._C._Callable",
    .tp_doc = "Calls `forward`; with `_hooked`, `_call_hooked(args, kwargs)`.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_call = callable_call,
};

int dt_py_nnmodule_init(PyObject *m) {
    s_hooked = PyUnicode_InternFromString("_hooked");
    s_call_hooked = PyUnicode_InternFromString("_call_hooked");
    s_forward = PyUnicode_InternFromString("forward");
    callable_type.tp_new = PyBaseObject_Type.tp_new; /* a static type does not inherit it */
    if (!s_hooked || !s_call_hooked || !s_forward || PyType_Ready(&callable_type) < 0) return -1;
    return PyModule_AddObjectRef(m, "_Callable", (PyObject *)&callable_type);
}
