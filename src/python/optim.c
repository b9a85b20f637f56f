/* The loop of optimisers that take the same step for each of many parameters: in C, since for small tensors the interpreter took as long as the
 * calls. The state of a parameter stays a dict of Python's, which programs read, change and save: its tensors are operands of the step's
 * operator, and its numbers (how many steps were taken, …) decide the numbers of the call.
 *
 * Most parameters have taken as many steps as their neighbours, so the class is asked for a call's numbers only when those of the state are
 * others than the parameter's before:
 *
 *      state["step"], …  ──rates(step, …)──>  (numbers of the call, what is in the state afterwards)
 *
 * The loop ends at a parameter that has a gradient but lacks state, and returns its number: the class makes the state and calls again. */
#include "python/py.h"

enum { KEYS = 4 }; /* tensors of a state, and numbers of one, at most */

typedef struct loop {
    PyObject *states, *tensors, *numbers, *rates; /* dict, tuple of keys, tuple of keys, callable; borrowed */
    const dt_op *op;
    dt_args a;
    int at;               /* the first number among the operands */
    PyObject *seen[KEYS]; /* the state's numbers that `operands` and `next` were made for; referenced */
    PyObject *next;       /* tuple: the state's numbers after the step; referenced. NULL: nothing seen yet */
} loop;

/* The gradient of p, borrowed; NULL without one, or with *bad. */
static dt_tensor *gradient_of(PyObject *p, bool *bad) {
    *bad = !dt_py_is_tensor(p);
    if (*bad) {
        PyErr_Format(PyExc_TypeError, "a parameter must be a Tensor, not %s", dt_py_type_name(p));
        return NULL;
    }
    dt_status s = dt_tensor_grad_settle(dt_py_tensor_of(p));
    *bad = s != DT_OK;
    if (s) dt_py_raise(s);
    return s ? NULL : dt_tensor_grad(dt_py_tensor_of(p));
}

/* An entry of the state, borrowed; KeyError. */
static PyObject *entry(PyObject *state, PyObject *key) {
    PyObject *v = PyDict_GetItemWithError(state, key);
    if (!v && !PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, key);
    return v;
}

/* 1: the state's tensors are operands; 0: one is None, as good as no state; -1: exception. */
static int take_tensors(loop *l, PyObject *state) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(l->tensors); i++) {
        PyObject *key = PyTuple_GET_ITEM(l->tensors, i), *v = entry(state, key);
        if (!v) return -1;
        if (v == Py_None) return 0;
        if (!dt_py_is_tensor(v)) {
            PyErr_Format(PyExc_TypeError, "an optimizer's state '%S' must be a Tensor, not %s", key, dt_py_type_name(v));
            return -1;
        }
        l->a.a[2 + i] = DT_PY_ARG_T(dt_py_tensor_of(v));
    }
    return 1;
}

static void forget(loop *l) {
    for (int i = 0; i < KEYS; i++) Py_CLEAR(l->seen[i]);
    Py_CLEAR(l->next);
}

/* Asks for the numbers of a call, and of the state after it. */
static bool ask(loop *l, PyObject *const *now) {
    forget(l);
    Py_ssize_t n = PyTuple_GET_SIZE(l->numbers);
    for (Py_ssize_t i = 0; i < n; i++) l->seen[i] = Py_NewRef(now[i]);
    PyObject *both = PyObject_Vectorcall(l->rates, l->seen, (size_t)n, NULL), *given, *next;
    bool ok = both && PyArg_ParseTuple(both, "O!O!", &PyTuple_Type, &given, &PyTuple_Type, &next);
    if (ok && (PyTuple_GET_SIZE(next) != n || l->at + PyTuple_GET_SIZE(given) > DT_MAX_PARAMS)) {
        PyErr_Format(PyExc_ValueError, "rates: %zd numbers of a state and %zd operands do not fit", PyTuple_GET_SIZE(next), PyTuple_GET_SIZE(given));
        ok = false;
    }
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(given); i++) {
        double v = PyFloat_AsDouble(PyTuple_GET_ITEM(given, i));
        ok = v != -1 || !PyErr_Occurred();
        l->a.a[l->at + i] = DT_PY_ARG_F(v);
    }
    if (ok) l->next = Py_NewRef(next);
    Py_XDECREF(both);
    return ok;
}

/* The operands that are numbers. */
static bool take_numbers(loop *l, PyObject *state) {
    PyObject *now[KEYS];
    Py_ssize_t n = PyTuple_GET_SIZE(l->numbers);
    bool same = l->next != NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!(now[i] = entry(state, PyTuple_GET_ITEM(l->numbers, i)))) return false;
        if (!same || now[i] == l->seen[i]) continue;
        int equal = PyObject_RichCompareBool(now[i], l->seen[i], Py_EQ);
        if (equal < 0) return false;
        same = equal;
    }
    return same || ask(l, now);
}

/* The state's numbers become those after the step, once there was one. */
static bool give_numbers(const loop *l, PyObject *state) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(l->numbers); i++)
        if (PyDict_SetItem(state, PyTuple_GET_ITEM(l->numbers, i), PyTuple_GET_ITEM(l->next, i))) return false;
    return true;
}

static bool run(const dt_op *op, const dt_args *a) {
    dt_tensor *out[2 + KEYS];
    int n = 0;
    dt_status s = dt_invoke(op, a, 2 + KEYS, out, &n);
    for (int i = 0; !s && i < n; i++) dt_tensor_unref(out[i]);
    if (s) dt_py_raise(s);
    return s == DT_OK;
}

/* 1: stepped, or nothing to do; 0: no state; -1: exception. p is referenced. */
static int step_of(loop *l, PyObject *p) {
    bool bad, stateless = !PyTuple_GET_SIZE(l->tensors) && !PyTuple_GET_SIZE(l->numbers);
    dt_tensor *g = gradient_of(p, &bad);
    if (bad) return -1;
    if (!g) return 1;
    PyObject *state = stateless ? NULL : PyDict_GetItemWithError(l->states, p);
    if (!state && PyErr_Occurred()) return -1;
    if (!stateless && (!state || !PyDict_Check(state) || !PyDict_GET_SIZE(state))) return 0;
    Py_XINCREF(state);
    int ok = take_numbers(l, state) ? take_tensors(l, state) : -1;
    if (ok > 0) {
        l->a.a[0] = DT_PY_ARG_T(dt_py_tensor_of(p));
        l->a.a[1] = DT_PY_ARG_T(g);
        ok = run(l->op, &l->a) && give_numbers(l, state) ? 1 : -1;
    }
    Py_XDECREF(state);
    return ok;
}

static bool set_flags(loop *l, PyObject *flags, PyObject *name) {
    const dt_op_info *info = dt_op_get_info(l->op);
    int n = (int)PyTuple_GET_SIZE(flags);
    l->at = 2 + (int)PyTuple_GET_SIZE(l->tensors);
    if (PyTuple_GET_SIZE(l->tensors) > KEYS || PyTuple_GET_SIZE(l->numbers) > KEYS || n > info->n_params) {
        PyErr_Format(PyExc_ValueError, "%S: at most %d keys and %d flags", name, KEYS, info->n_params);
        return false;
    }
    for (int i = 0; i < n; i++) l->a.a[info->n_params - n + i] = DT_PY_ARG_B(PyObject_IsTrue(PyTuple_GET_ITEM(flags, i)) > 0);
    return true;
}

/* (params, states, at, end, op, tensors, numbers, rates, flags) → where it ended */
static PyObject *update_each(PyObject *self, PyObject *args) {
    PyObject *params, *name, *flags;
    Py_ssize_t at, end;
    loop l = {0};
    if (!PyArg_ParseTuple(args, "O!O!nnO!O!O!OO!:_update_each", &PyList_Type, &params, &PyDict_Type, &l.states, &at, &end, &PyUnicode_Type, &name,
                          &PyTuple_Type, &l.tensors, &PyTuple_Type, &l.numbers, &l.rates, &PyTuple_Type, &flags))
        return NULL;
    const char *text = PyUnicode_AsUTF8(name);
    if (!text || !(l.op = dt_py_need(text)) || !set_flags(&l, flags, name)) return NULL;
    dt_py_site();
    int ok = 1;
    for (; ok > 0 && at >= 0 && at < end && at<PyList_GET_SIZE(params); at += ok> 0) {
        PyObject *p = Py_NewRef(PyList_GET_ITEM(params, at));
        ok = step_of(&l, p);
        Py_DECREF(p);
    }
    forget(&l);
    return ok < 0 ? NULL : PyLong_FromSsize_t(at);
}

/* ---- lists of tensors --------------------------------------------------------------------------------------------------------------------- */
static bool is_tensors(PyObject *list) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++)
        if (!dt_py_is_tensor(PyList_GET_ITEM(list, i))) {
            PyErr_Format(PyExc_TypeError, "tensor number %zd of the list must be a Tensor, not %s", i, dt_py_type_name(PyList_GET_ITEM(list, i)));
            return false;
        }
    return true;
}

static bool lie_alike(const dt_meta *a, const dt_meta *b) {
    return a->mesh == b->mesh && a->dtype == b->dtype && !memcmp(a->place, b->place, sizeof a->place[0] * (size_t)a->mesh->ndim);
}

/* (tensors) → the list in lists of tensors of one dtype that lie on one mesh in one way, in order */
static PyObject *alike(PyObject *self, PyObject *tensors) {
    if (!PyList_Check(tensors) || !is_tensors(tensors)) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "expected a list of Tensors");
    PyObject *out = PyList_New(0);
    Py_ssize_t g = 0;
    for (Py_ssize_t i = 0; out && i < PyList_GET_SIZE(tensors); i++) {
        PyObject *t = PyList_GET_ITEM(tensors, i), *into = NULL;
        const dt_meta *m = dt_tensor_meta(dt_py_tensor_of(t));
        for (Py_ssize_t n = PyList_GET_SIZE(out), k = 0; k < n && !into; k++, g = (g + 1) % n) { /* the one before is the likeliest */
            PyObject *group = PyList_GET_ITEM(out, g);
            if (lie_alike(m, dt_tensor_meta(dt_py_tensor_of(PyList_GET_ITEM(group, 0))))) into = group;
            if (into) break;
        }
        if (into ? PyList_Append(into, t) : 0) Py_CLEAR(out);
        if (into || !out) continue;
        PyObject *group = PyList_New(1);
        if (group) PyList_SET_ITEM(group, 0, Py_NewRef(t));
        if (!group || PyList_Append(out, group)) Py_CLEAR(out);
        g = out ? PyList_GET_SIZE(out) - 1 : 0;
        Py_XDECREF(group);
    }
    return out;
}

/* (tensors, factor): each is multiplied by a 0-dimensional tensor, in place */
static PyObject *scale_each(PyObject *self, PyObject *args) {
    static const dt_op *mul;
    PyObject *tensors, *factor;
    if (!PyArg_ParseTuple(args, "O!O:_scale_each", &PyList_Type, &tensors, &factor) || !is_tensors(tensors)) return NULL;
    if (!dt_py_is_tensor(factor)) return PyErr_Format(PyExc_TypeError, "the factor must be a Tensor, not %s", dt_py_type_name(factor));
    if (!mul && !(mul = dt_py_need("mul"))) return NULL;
    dt_py_site();
    dt_args a;
    dt_py_args_init(&a);
    a.a[1] = DT_PY_ARG_T(dt_py_tensor_of(factor));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) {
        a.a[0] = DT_PY_ARG_T(dt_py_tensor_of(PyList_GET_ITEM(tensors, i)));
        dt_status s = dt_invoke_inplace(mul, &a);
        if (s) return dt_py_raise(s);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_alike", alike, METH_O, "A list of tensors as lists of tensors that have one dtype and lie on one mesh in one way."},
    {"_scale_each", scale_each, METH_VARARGS, "Multiplies each tensor of a list by a 0-dimensional tensor, in place."},
    {"_update_each", update_each, METH_VARARGS,
     "An optimizer's step for the parameters at … end - 1 of a list, from number `at` on; returns the number of the first without state."},
    {0},
};

int dt_py_optim_init(PyObject *m) { return PyModule_AddFunctions(m, functions); }
