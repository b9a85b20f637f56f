/* Backward, hooks, graph nodes, and what python/dtorch/autograd needs for custom functions.
 *
 * Callbacks from C into Python run on the thread that called backward, with the GIL held. When one raises, the exception stays set and
 * E_CALLBACK travels up; dt_py_raise then leaves it alone. */
#include "python/py.h"

#include "base/arena.h"

/* ---- hooks ---- */
static dt_status callback_failed(const char *what) { return dt_fail(DT_E_CALLBACK, "%s raised an exception", what); }

static dt_status hook_run(void *ctx, dt_tensor **grad) {
    PyObject *g = dt_py_wrap(dt_tensor_ref(*grad));
    Py_INCREF(ctx); /* the hook may remove itself */
    PyObject *r = g ? PyObject_CallOneArg(ctx, g) : NULL;
    Py_DECREF((PyObject *)ctx);
    Py_XDECREF(g);
    if (!r) return callback_failed("a gradient hook");
    dt_status s = DT_OK;
    if (dt_py_is_tensor(r)) {
        dt_tensor *old = *grad;
        *grad = dt_tensor_ref(dt_py_tensor_of(r));
        dt_tensor_unref(old);
    } else if (r != Py_None) {
        PyErr_Format(PyExc_TypeError, "a gradient hook must return a Tensor or None, not %s", dt_py_type_name(r));
        s = callback_failed("a gradient hook");
    }
    Py_DECREF(r);
    return s;
}
/* Post-accumulate hooks get the leaf: *grad is the leaf itself there. */
static dt_status post_hook_run(void *ctx, dt_tensor **leaf) {
    PyObject *t = dt_py_wrap(dt_tensor_ref(*leaf));
    PyObject *r = t ? PyObject_CallOneArg(ctx, t) : NULL;
    Py_XDECREF(t);
    if (!r) return callback_failed("a post-accumulate-grad hook");
    Py_DECREF(r);
    return DT_OK;
}
static void hook_free(void *ctx) { Py_DECREF((PyObject *)ctx); }

typedef struct visit_args {
    visitproc visit;
    void *arg;
} visit_args;
static int hook_visit(const dt_hook *h, void *args) {
    visit_args *v = args;
    return h->free_fn == hook_free ? v->visit(h->ctx, v->arg) : 0;
}
int dt_py_hooks_traverse(dt_tensor *t, visitproc visit, void *arg) { return dt_tensor_hooks_each(t, hook_visit, &(visit_args){visit, arg}); }

typedef struct py_handle {          /* RemovableHandle */
    PyObject_HEAD PyObject *tensor; /* weak reference */
    uint64_t id;
} py_handle;
static void handle_dealloc(PyObject *o) {
    Py_XDECREF(((py_handle *)o)->tensor);
    PyObject_Free(o);
}
static PyObject *handle_remove(PyObject *o, PyObject *none) {
    py_handle *h = (py_handle *)o;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *t = NULL;
    if (h->tensor && PyWeakref_GetRef(h->tensor, &t) < 0) return NULL;
#else
    PyObject *t = h->tensor ? PyWeakref_GetObject(h->tensor) : NULL;
    t = t == Py_None ? NULL : Py_XNewRef(t);
#endif
    if (t) dt_tensor_hook_remove(dt_py_tensor_of(t), h->id);
    Py_XDECREF(t);
    Py_CLEAR(h->tensor);
    Py_RETURN_NONE;
}
static PyObject *handle_enter(PyObject *o, PyObject *none) { return Py_NewRef(o); }
static PyObject *handle_exit(PyObject *o, PyObject *args) { return handle_remove(o, NULL); }
static PyMethodDef handle_methods[] = {{"remove", handle_remove, METH_NOARGS, "Take the hook away."},
                                       {"__enter__", handle_enter, METH_NOARGS, NULL},
                                       {"__exit__", handle_exit, METH_VARARGS, NULL},
                                       {0}};
static PyTypeObject handle_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch.utils.hooks.RemovableHandle",
    .tp_basicsize = sizeof(py_handle),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = handle_dealloc,
    .tp_methods = handle_methods,
};

typedef dt_status (*hook_add_fn)(dt_tensor *, dt_hook, uint64_t *);
static PyObject *hook_add(PyObject *self, PyObject *fn, dt_status (*run)(void *, dt_tensor **), hook_add_fn add) {
    if (!PyCallable_Check(fn)) return PyErr_Format(PyExc_TypeError, "a hook must be callable, not %s", dt_py_type_name(fn));
    py_handle *h = PyObject_New(py_handle, &handle_type);
    if (!h) return NULL;
    h->tensor = PyWeakref_NewRef(self, NULL);
    if (!PyObject_GC_IsTracked(self)) PyObject_GC_Track(self); /* fn may lead back to it */
    dt_status s = h->tensor ? add(dt_py_tensor_of(self), (dt_hook){run, hook_free, Py_NewRef(fn)}, &h->id) : DT_OK;
    if (h->tensor && !s) return (PyObject *)h;
    if (s) {
        Py_DECREF(fn);
        dt_py_raise(s);
    }
    Py_DECREF(h);
    return NULL;
}
PyObject *dt_py_hook_add(PyObject *self, PyObject *fn) {
    if (!dt_tensor_requires_grad(dt_py_tensor_of(self)))
        return PyErr_Format(PyExc_RuntimeError, "cannot register a hook on a tensor that doesn't require gradient");
    return hook_add(self, fn, hook_run, dt_tensor_hook_add);
}
PyObject *dt_py_post_hook_add(PyObject *self, PyObject *fn) {
    if (!dt_tensor_requires_grad(dt_py_tensor_of(self)) || !dt_tensor_is_leaf(dt_py_tensor_of(self)))
        return PyErr_Format(PyExc_RuntimeError, "post accumulate grad hooks cannot be registered on non-leaf tensors");
    return hook_add(self, fn, post_hook_run, dt_tensor_post_hook_add);
}

/* ---- graph nodes ---- */
typedef struct py_node {
    PyObject_HEAD dt_grad_node *n;
} py_node;
static PyTypeObject node_type;

static PyObject *node_make(dt_grad_node *n) {
    if (!n) Py_RETURN_NONE;
    py_node *o = PyObject_New(py_node, &node_type);
    if (o) o->n = dt_grad_node_hold(n);
    return (PyObject *)o;
}
PyObject *dt_py_grad_fn(dt_tensor *t) { return dt_tensor_is_leaf(t) ? Py_NewRef(Py_None) : node_make(dt_tensor_grad_fn(t)); }
static void node_dealloc(PyObject *o) {
    dt_grad_node_release(((py_node *)o)->n);
    PyObject_Free(o);
}
static PyObject *node_name(PyObject *o, PyObject *none) { return PyUnicode_FromString(dt_grad_node_name(((py_node *)o)->n)); }
static PyObject *node_next(PyObject *o, void *x) {
    dt_grad_node *n = ((py_node *)o)->n;
    int count = dt_grad_node_inputs(n);
    PyObject *t = PyTuple_New(count);
    for (int i = 0; t && i < count; i++) {
        uint32_t nr = 0;
        dt_grad_node *in = dt_grad_node_input(n, i, &nr);
        PyObject *p = Py_BuildValue("(NI)", node_make(in), nr);
        if (p)
            PyTuple_SET_ITEM(t, i, p);
        else
            Py_CLEAR(t);
    }
    return t;
}
static PyObject *node_repr(PyObject *o) { return PyUnicode_FromFormat("<%s object at %p>", dt_grad_node_name(((py_node *)o)->n), (void *)((py_node *)o)->n); }
static PyObject *node_compare(PyObject *a, PyObject *b, int op) {
    if (Py_TYPE(a) != &node_type || Py_TYPE(b) != &node_type || (op != Py_EQ && op != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
    return PyBool_FromLong((((py_node *)a)->n == ((py_node *)b)->n) == (op == Py_EQ));
}
static Py_hash_t node_hash(PyObject *o) { return (Py_hash_t)((uintptr_t)((py_node *)o)->n >> 4); }
static PyObject *node_variable(PyObject *o, void *x) {
    dt_tensor *t = dt_grad_node_leaf(((py_node *)o)->n);
    if (!t) return PyErr_Format(PyExc_AttributeError, "%s has no variable: only AccumulateGrad has", dt_grad_node_name(((py_node *)o)->n));
    return dt_py_wrap(dt_tensor_ref(t));
}

/* 1: n is new and was put on the stack; 0: seen before; -1: exception. */
static int visit(PyObject *seen, PyObject *stack, dt_grad_node *n) {
    PyObject *key = PyLong_FromVoidPtr(n);
    int known = key ? PySet_Contains(seen, key) : -1;
    int r = known ? (known < 0 ? -1 : 0) : PySet_Add(seen, key) < 0 || PyList_Append(stack, key) < 0 ? -1 : 1;
    Py_XDECREF(key);
    return r;
}
static int expand(PyObject *seen, PyObject *stack, PyObject *leaves) { /* the last node of the stack */
    Py_ssize_t last = PyList_GET_SIZE(stack) - 1;
    dt_grad_node *n = PyLong_AsVoidPtr(PyList_GET_ITEM(stack, last));
    if (PyList_SetSlice(stack, last, last + 1, NULL) < 0) return -1;
    dt_tensor *leaf = dt_grad_node_leaf(n);
    if (leaf) {
        PyObject *t = dt_py_wrap(dt_tensor_ref(leaf));
        int r = t ? PyList_Append(leaves, t) : -1;
        Py_XDECREF(t);
        return r;
    }
    for (int i = dt_grad_node_inputs(n) - 1; i >= 0; i--) {
        uint32_t nr;
        dt_grad_node *in = dt_grad_node_input(n, i, &nr);
        if (in && visit(seen, stack, in) < 0) return -1;
    }
    return 0;
}
/* _graph_leaves(list of tensors): the leaves that their gradients go to. */
static PyObject *graph_leaves(PyObject *m, PyObject *list) {
    if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "_graph_leaves(): expected a list of Tensors, not %s", dt_py_type_name(list));
    PyObject *seen = PySet_New(NULL), *stack = PyList_New(0), *leaves = PyList_New(0);
    bool ok = seen && stack && leaves;
    for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(list); i++) {
        PyObject *o = PyList_GET_ITEM(list, i);
        dt_tensor *t = dt_py_is_tensor(o) ? dt_py_tensor_of(o) : NULL;
        if (!t) {
            PyErr_Format(PyExc_TypeError, "_graph_leaves(): expected a list of Tensors");
            ok = false;
        } else if (!dt_tensor_is_leaf(t)) {
            ok = visit(seen, stack, dt_tensor_grad_fn(t)) >= 0;
        } else if (dt_tensor_requires_grad(t)) {
            ok = PyList_Append(leaves, o) == 0;
        }
        while (ok && PyList_GET_SIZE(stack)) ok = expand(seen, stack, leaves) == 0;
    }
    Py_XDECREF(seen);
    Py_XDECREF(stack);
    if (!ok) Py_CLEAR(leaves);
    return leaves;
}
static PyMethodDef node_methods[] = {{"name", node_name, METH_NOARGS, "The node's name, such as 'MulBackward'."}, {0}};
static PyGetSetDef node_getset[] = {{"next_functions", node_next, NULL, "The nodes that this one's gradients go to, with their output numbers.", NULL},
                                    {"variable", node_variable, NULL, "The leaf whose gradient an AccumulateGrad adds to.", NULL},
                                    {0}};
static PyTypeObject node_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch.autograd.graph.Node",
    .tp_basicsize = sizeof(py_node),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = node_dealloc,
    .tp_repr = node_repr,
    .tp_richcompare = node_compare,
    .tp_hash = node_hash,
    .tp_methods = node_methods,
    .tp_getset = node_getset,
};

/* ---- backward ---- */
/* A sequence of tensors (None allowed if `none`) into v. */
static int tensors(PyObject *seq, bool none, const char *what, dt_tensor ***out) {
    Py_ssize_t n = PySequence_Fast_GET_SIZE(seq);
    dt_tensor **v = PyMem_Calloc((size_t)n + 1, sizeof *v);
    if (!v) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *o = PySequence_Fast_GET_ITEM(seq, i);
        if (dt_py_is_tensor(o)) {
            v[i] = dt_py_tensor_of(o);
        } else if (o != Py_None || !none) {
            PyErr_Format(PyExc_TypeError, "%s: element %zd must be a Tensor%s, not %s", what, i, none ? " or None" : "", dt_py_type_name(o));
            PyMem_Free(v);
            return -1;
        }
    }
    *out = v;
    return 0;
}

/* _backward(roots, grads or None, inputs or None, retain_graph, create_graph, allow_unused, accumulate) → None or a tuple of gradients */
static PyObject *backward(PyObject *m, PyObject *args) {
    PyObject *roots, *grads, *inputs, *result = NULL;
    int retain, create, unused, accumulate, inner = 0;
    if (!PyArg_ParseTuple(args, "OOOpppp|p:_backward", &roots, &grads, &inputs, &retain, &create, &unused, &accumulate, &inner)) return NULL;
    if (!PyTuple_Check(roots) || (grads != Py_None && !PyTuple_Check(grads)) || (inputs != Py_None && !PyTuple_Check(inputs)))
        return PyErr_Format(PyExc_TypeError, "_backward(): expected tuples");
    dt_tensor **r = NULL, **g = NULL, **in = NULL, **out = NULL;
    Py_ssize_t n_in = inputs == Py_None ? 0 : PyTuple_GET_SIZE(inputs);
    bool bad = tensors(roots, false, "tensors", &r) < 0 || (grads != Py_None && tensors(grads, true, "grad_tensors", &g) < 0) ||
               (inputs != Py_None && tensors(inputs, false, "inputs", &in) < 0) || !(out = PyMem_Calloc((size_t)n_in + 1, sizeof *out));
    if (!bad) {
        dt_backward_args a = {.n_roots = (int)PyTuple_GET_SIZE(roots),
                              .n_inputs = (int)n_in,
                              .roots = r,
                              .grads = g,
                              .inputs = in,
                              .retain_graph = retain,
                              .create_graph = create,
                              .allow_unused = unused,
                              .accumulate = accumulate,
                              .inner = inner};
        dt_py_site();
        dt_status s = dt_backward_run(&a, in && !accumulate ? out : NULL);
        if (s)
            dt_py_raise(s);
        else if (!in || accumulate)
            result = Py_NewRef(Py_None);
        else if ((result = PyTuple_New(n_in)))
            for (Py_ssize_t i = 0; i < n_in; i++) PyTuple_SET_ITEM(result, i, out[i] ? dt_py_wrap(out[i]) : Py_NewRef(Py_None));
    }
    PyMem_Free(r);
    PyMem_Free(g);
    PyMem_Free(in);
    PyMem_Free(out);
    return result;
}

/* ---- custom functions ----
 * The context (a Python object) has _run_backward(gradients, node) → tuple of a Tensor or None per input; see autograd/function.py. */
typedef struct custom {
    PyObject *ctx;
    dt_grad_node *node; /* the node that owns this; alive whenever its backward runs */
    int n_in, n_out;
    char name[64];
} custom;

static dt_status custom_backward(void *ctx, dt_tensor **gy, dt_tensor **gx) {
    custom *c = ctx;
    PyObject *in = PyTuple_New(c->n_out);
    for (int i = 0; in && i < c->n_out; i++) PyTuple_SET_ITEM(in, i, gy[i] ? dt_py_wrap(dt_tensor_ref(gy[i])) : Py_NewRef(Py_None));
    PyObject *node = in ? node_make(c->node) : NULL;
    PyObject *r = node ? PyObject_CallMethod(c->ctx, "_run_backward", "OO", in, node) : NULL;
    Py_XDECREF(in);
    Py_XDECREF(node);
    if (!r) return callback_failed(c->name);
    dt_status s = DT_OK;
    for (int i = 0; i < c->n_in && s == DT_OK; i++) {
        PyObject *o = PyTuple_Check(r) && i < PyTuple_GET_SIZE(r) ? PyTuple_GET_ITEM(r, i) : Py_None;
        if (dt_py_is_tensor(o)) {
            gx[i] = dt_tensor_ref(dt_py_tensor_of(o));
        } else if (o != Py_None) {
            PyErr_Format(PyExc_TypeError, "%s: backward must return a Tensor or None for input %d, not %s", c->name, i, dt_py_type_name(o));
            s = callback_failed(c->name);
        }
    }
    Py_DECREF(r);
    return s;
}
static void custom_free(void *ctx) {
    custom *c = ctx;
    Py_DECREF(c->ctx);
    PyMem_Free(c);
}

/* _custom_attach(ctx, name, inputs, outputs): outputs become results of a node with these inputs (None: no tensor there). */
static PyObject *custom_attach(PyObject *m, PyObject *args) {
    PyObject *ctx, *ins, *outs;
    const char *name;
    if (!PyArg_ParseTuple(args, "OsO!O!:_custom_attach", &ctx, &name, &PyTuple_Type, &ins, &PyTuple_Type, &outs)) return NULL;
    dt_tensor **in = NULL, **out = NULL;
    custom *c = PyMem_Calloc(1, sizeof *c);
    if (!c || tensors(ins, true, "inputs", &in) < 0 || tensors(outs, false, "outputs", &out) < 0) {
        PyMem_Free(in);
        PyMem_Free(c);
        return c ? NULL : PyErr_NoMemory();
    }
    c->ctx = Py_NewRef(ctx);
    c->n_in = (int)PyTuple_GET_SIZE(ins);
    c->n_out = (int)PyTuple_GET_SIZE(outs);
    snprintf(c->name, sizeof c->name, "%s", name);
    dt_custom d = {custom_backward, custom_free, c, c->name};
    dt_status s = dt_custom_attach(&d, c->n_in, in, c->n_out, out);
    if (s) {
        custom_free(c);
        dt_py_raise(s);
    } else { /* without recording, c is gone already and no result has a node that is ours */
        for (int i = 0, n = (int)PyTuple_GET_SIZE(outs); i < n; i++)
            if (dt_tensor_requires_grad(out[i]) && !dt_tensor_is_leaf(out[i])) c->node = dt_tensor_grad_fn(out[i]);
    }
    PyMem_Free(in);
    PyMem_Free(out);
    return s ? NULL : Py_NewRef(Py_None);
}

/* A saved tensor: value and version. */
static void saved_capsule_free(PyObject *o) { dt_saved_free(PyCapsule_GetPointer(o, "dtorch.saved")); }
static PyObject *saved_new(PyObject *m, PyObject *o) {
    if (!dt_py_is_tensor(o)) return PyErr_Format(PyExc_TypeError, "save_for_backward can only save Tensors or None, not %s", dt_py_type_name(o));
    dt_saved *s;
    DT_PY_CHECK(dt_saved_new(dt_py_tensor_of(o), &s));
    PyObject *c = PyCapsule_New(s, "dtorch.saved", saved_capsule_free);
    if (!c) dt_saved_free(s);
    return c;
}
static PyObject *saved_get(PyObject *m, PyObject *o) {
    dt_saved *s = PyCapsule_GetPointer(o, "dtorch.saved");
    dt_tensor *t;
    if (!s) return NULL;
    DT_PY_CHECK(dt_saved_get(s, &t));
    return dt_py_wrap(t);
}

static PyObject *saved_get_as(PyObject *m, PyObject *args) {
    PyObject *o, *node;
    unsigned nr;
    dt_tensor *t;
    if (!PyArg_ParseTuple(args, "OO!I", &o, &node_type, &node, &nr)) return NULL;
    dt_saved *s = PyCapsule_GetPointer(o, "dtorch.saved");
    if (!s) return NULL;
    DT_PY_CHECK(dt_saved_get_as(s, ((py_node *)node)->n, nr, &t));
    return dt_py_wrap(t);
}

static PyMethodDef functions[] = {
    {"_saved_get_as", saved_get_as, METH_VARARGS, NULL},
    {"_graph_leaves", graph_leaves, METH_O, NULL},
    {"_backward", backward, METH_VARARGS, NULL},
    {"_custom_attach", custom_attach, METH_VARARGS, NULL},
    {"_saved_new", saved_new, METH_O, NULL},
    {"_saved_get", saved_get, METH_O, NULL},
    {0},
};

int dt_py_autograd_init(PyObject *m) {
    if (PyType_Ready(&handle_type) < 0 || PyType_Ready(&node_type) < 0) return -1;
    if (PyModule_AddObjectRef(m, "RemovableHandle", (PyObject *)&handle_type) < 0 || PyModule_AddObjectRef(m, "Node", (PyObject *)&node_type) < 0) return -1;
    return PyModule_AddFunctions(m, functions);
}
