/* The loops of optimisers that take the same step for each of many parameters: in C, since for small tensors the interpreter took as long as the
 * calls. The state of a parameter stays a dict of Python's, which programs read, change and save.
 *
 * A loop ends at a parameter that has a gradient but lacks state, and returns its number: the class makes the state and calls again. */
#include "python/py.h"

#include <math.h>

static PyObject *s_step, *s_exp_avg, *s_exp_avg_sq, *s_max_exp_avg_sq, *s_momentum_buffer, *one;

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

/* A tensor of the state; KeyError or TypeError. */
static bool state_tensor(PyObject *state, PyObject *key, dt_arg *out) {
    PyObject *v = PyDict_GetItemWithError(state, key);
    if (v && dt_py_is_tensor(v)) {
        *out = DT_PY_ARG_T(dt_py_tensor_of(v));
        return true;
    }
    if (v)
        PyErr_Format(PyExc_TypeError, "an optimizer's state '%U' must be a Tensor, not %s", key, dt_py_type_name(v));
    else if (!PyErr_Occurred())
        PyErr_SetObject(PyExc_KeyError, key);
    return false;
}

/* state["step"] += 1; *t is what it is then. */
static bool count_step(PyObject *state, double *t) {
    PyObject *v = PyDict_GetItemWithError(state, s_step);
    if (!v) {
        if (!PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, s_step);
        return false;
    }
    PyObject *next = PyNumber_Add(v, one);
    *t = next ? PyFloat_AsDouble(next) : -1;
    bool ok = next && !PyErr_Occurred() && PyDict_SetItem(state, s_step, next) == 0;
    Py_XDECREF(next);
    return ok;
}

static bool run(const dt_op *op, const dt_args *a) {
    dt_tensor *out[4];
    int n = 0;
    dt_status s = dt_invoke(op, a, 4, out, &n);
    for (int i = 0; !s && i < n; i++) dt_tensor_unref(out[i]);
    if (s) dt_py_raise(s);
    return s == DT_OK;
}

/* The loop's parameters and states, and where it begins. */
static bool begin(PyObject *params, PyObject *states, Py_ssize_t at) {
    if (PyList_Check(params) && PyDict_Check(states) && at >= 0) {
        dt_py_site();
        return true;
    }
    PyErr_Format(PyExc_TypeError, "parameters must be a list and states a dict, not %s and %s", dt_py_type_name(params), dt_py_type_name(states));
    return false;
}

/* (params, states, at, lr, beta1, beta2, eps, weight_decay, amsgrad, decoupled, maximize) → where it ended */
static PyObject *adam_steps(PyObject *self, PyObject *args) {
    static const dt_op *ops[2];
    PyObject *params, *states;
    Py_ssize_t at;
    double lr, beta1, beta2, eps, decay, last = -1, bias1 = 0, bias2 = 0;
    int amsgrad, decoupled, maximize;
    if (!PyArg_ParseTuple(args, "OOndddddppp:_adam_steps", &params, &states, &at, &lr, &beta1, &beta2, &eps, &decay, &amsgrad, &decoupled, &maximize))
        return NULL;
    const dt_op **op = &ops[amsgrad];
    if (!begin(params, states, at) || (!*op && !(*op = dt_py_need(amsgrad ? "adam_update_amsgrad" : "adam_update")))) return NULL;
    dt_args a;
    dt_py_args_init(&a);
    dt_arg *k = &a.a[4 + amsgrad];
    double numbers[] = {lr, beta1, beta2, eps, decay};
    for (int i = 0; i < 5; i++) k[i] = DT_PY_ARG_F(numbers[i]);
    k[7] = DT_PY_ARG_B(decoupled != 0);
    k[8] = DT_PY_ARG_B(maximize != 0);
    for (; at < PyList_GET_SIZE(params); at++) {
        PyObject *p = PyList_GET_ITEM(params, at);
        bool bad;
        dt_tensor *g = gradient_of(p, &bad);
        if (bad) return NULL;
        if (!g) continue;
        PyObject *state = PyDict_GetItemWithError(states, p);
        if (!state && PyErr_Occurred()) return NULL;
        if (!state || !PyDict_Check(state) || !PyDict_GET_SIZE(state)) break;
        double t;
        a.a[0] = DT_PY_ARG_T(dt_py_tensor_of(p));
        a.a[1] = DT_PY_ARG_T(g);
        if (!count_step(state, &t) || !state_tensor(state, s_exp_avg, &a.a[2]) || !state_tensor(state, s_exp_avg_sq, &a.a[3])) return NULL;
        if (amsgrad && !state_tensor(state, s_max_exp_avg_sq, &a.a[4])) return NULL;
        if (t != last) {
            bias1 = 1.0 - pow(beta1, t);
            bias2 = 1.0 - pow(beta2, t);
            last = t;
        }
        k[5] = DT_PY_ARG_F(bias1);
        k[6] = DT_PY_ARG_F(bias2);
        if (!run(*op, &a)) return NULL;
    }
    return PyLong_FromSsize_t(at);
}

/* (params, states, at, lr, momentum, dampening, weight_decay, nesterov, maximize, first) → where it ended. first: the buffer of params[at] is new. */
static PyObject *sgd_steps(PyObject *self, PyObject *args) {
    static const dt_op *plain, *with_momentum;
    PyObject *params, *states;
    Py_ssize_t at;
    double lr, momentum, dampening, decay;
    int nesterov, maximize, first;
    if (!PyArg_ParseTuple(args, "OOnddddppp:_sgd_steps", &params, &states, &at, &lr, &momentum, &dampening, &decay, &nesterov, &maximize, &first)) return NULL;
    const dt_op **op = momentum != 0 ? &with_momentum : &plain;
    if (!begin(params, states, at) || (!*op && !(*op = dt_py_need(momentum != 0 ? "sgd_update_momentum" : "sgd_update")))) return NULL;
    dt_args a;
    dt_py_args_init(&a);
    if (momentum != 0) {
        double numbers[] = {lr, momentum, dampening, decay};
        for (int i = 0; i < 4; i++) a.a[3 + i] = DT_PY_ARG_F(numbers[i]);
        a.a[7] = DT_PY_ARG_B(nesterov != 0);
        a.a[8] = DT_PY_ARG_B(maximize != 0);
    } else {
        a.a[2] = DT_PY_ARG_F(lr);
        a.a[3] = DT_PY_ARG_F(decay);
        a.a[4] = DT_PY_ARG_B(maximize != 0);
    }
    for (Py_ssize_t start = at; at < PyList_GET_SIZE(params); at++) {
        PyObject *p = PyList_GET_ITEM(params, at);
        bool bad;
        dt_tensor *g = gradient_of(p, &bad);
        if (bad) return NULL;
        if (!g) continue;
        a.a[0] = DT_PY_ARG_T(dt_py_tensor_of(p));
        a.a[1] = DT_PY_ARG_T(g);
        if (momentum != 0) {
            PyObject *state = PyDict_GetItemWithError(states, p), *buffer = NULL;
            if (state && PyDict_Check(state)) buffer = PyDict_GetItemWithError(state, s_momentum_buffer);
            if (!buffer && PyErr_Occurred()) return NULL;
            if (!buffer || buffer == Py_None) break;
            if (!state_tensor(state, s_momentum_buffer, &a.a[2])) return NULL;
            a.a[9] = DT_PY_ARG_B(first && at == start);
        }
        if (!run(*op, &a)) return NULL;
    }
    return PyLong_FromSsize_t(at);
}

static PyMethodDef functions[] = {
    {"_adam_steps", adam_steps, METH_VARARGS, "Adam's step for the parameters of a list, from number `at` on; returns the number of the first without state."},
    {"_sgd_steps", sgd_steps, METH_VARARGS, "SGD's step for the parameters of a list, from number `at` on; returns the number of the first without a buffer."},
    {0},
};

int dt_py_optim_init(PyObject *m) {
    s_step = PyUnicode_InternFromString("step");
    s_exp_avg = PyUnicode_InternFromString("exp_avg");
    s_exp_avg_sq = PyUnicode_InternFromString("exp_avg_sq");
    s_max_exp_avg_sq = PyUnicode_InternFromString("max_exp_avg_sq");
    s_momentum_buffer = PyUnicode_InternFromString("momentum_buffer");
    one = PyLong_FromLong(1);
    if (!s_step || !s_exp_avg || !s_exp_avg_sq || !s_max_exp_avg_sq || !s_momentum_buffer || !one) return -1;
    return PyModule_AddFunctions(m, functions);
}
