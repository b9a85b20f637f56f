/* One callable per operator name, built from the op table: dtorch.softmax, Tensor.softmax, Tensor.relu_, …
 *
 * Overloads of a name share a callable, which tries them in the table's order: arguments that do not fit fall through, errors of the call
 * itself do not. A method is a method descriptor (no bound object is made); a function is the same thing without binding. */
#include "python/py.h"

#include "base/arena.h"

typedef struct opfunc {
    PyObject_HEAD vectorcallfunc call;
    int n;
    bool inplace, method;
    char name[48];
    const char *module;
    py_sig *sig;         /* (n,) never freed: the callables live as long as the process */
    struct opfunc *twin; /* nn.functional: the in-place variant, for inplace=True; NULL without */
} opfunc;

/* ---- running ---------------------------------------------------------------------------------------------------------------------- */
PyObject *dt_py_results(const py_sig *s, dt_tensor **out, int n) {
    if (n == 1 && s->info->n_returns == 1) return dt_py_wrap(out[0]);
    PyObject *r = s->ret_type ? PyStructSequence_New((PyTypeObject *)s->ret_type) : PyTuple_New(n);
    bool bad = !r;
    for (int i = 0; i < n; i++) {
        PyObject *o = out[i] ? dt_py_wrap(out[i]) : Py_NewRef(Py_None);
        if (!o || bad) {
            bad = true;
            Py_XDECREF(o);
        } else if (s->ret_type) {
            PyStructSequence_SetItem(r, i, o);
        } else {
            PyTuple_SET_ITEM(r, i, o);
        }
    }
    if (!bad) return r;
    Py_XDECREF(r);
    return NULL;
}

/* Write a result into an `out` tensor. Another shape: out takes the result's storage (PyTorch resizes). */
static int assign(dt_tensor *dst, dt_tensor *src) {
    const dt_meta *d = dt_tensor_meta(dst), *m = dt_tensor_meta(src);
    if (dt_meta_same_shape(d, m)) {
        dt_status s = dt_tensor_assign(dst, src);
        return s ? dt_py_raise_int(s) : 0;
    }
    dt_tensor *cast = dt_py_cast(src, (dt_dtype)d->dtype);
    if (!cast) return -1;
    dt_status s = dt_tensor_set_data(dst, cast);
    dt_tensor_unref(cast);
    return s ? dt_py_raise_int(s) : 0;
}

static PyObject *into_out(const py_sig *s, PyObject *out, dt_tensor **t, int n) {
    int bad = 0;
    if (n == 1 && dt_py_is_tensor(out)) {
        bad = assign(dt_py_tensor_of(out), t[0]);
    } else if ((PyTuple_Check(out) || PyList_Check(out)) && PySequence_Fast_GET_SIZE(out) == n) {
        for (int i = 0; i < n && !bad; i++) {
            PyObject *o = PySequence_Fast_GET_ITEM(out, i);
            if (!dt_py_is_tensor(o)) bad = 1;
            if (!bad) bad = assign(dt_py_tensor_of(o), t[i]);
        }
    } else {
        bad = 1;
    }
    for (int i = 0; i < n; i++)
        if (t[i]) dt_tensor_unref(t[i]);
    if (bad > 0)
        PyErr_Format(PyExc_TypeError, "%s(): argument 'out' must be %s, not %s", s->info->base, n == 1 ? "Tensor" : "a tuple of the result Tensors",
                     dt_py_type_name(out));
    return bad ? NULL : Py_NewRef(out);
}

/* device=, device_mesh=, requires_grad= of operators that are no factories (zeros_like, …). */
static int post(const py_sig *s, const py_parse *p, dt_tensor **out) {
    const dt_spec *spec = NULL;
    dt_device d;
    if (!s->factory && p->mesh && dt_py_spec(p->mesh, p->placements, 0, &spec) < 0) return -1;
    if (!s->factory && !p->mesh && p->device) {
        int r = dt_py_device_parse(p->device, &d);
        if (r <= 0) return r ? -1 : (PyErr_Format(PyExc_TypeError, "%s(): argument 'device' must be dtorch.device or str", s->info->base), -1);
        const dt_mesh *m = dt_tensor_meta(out[0])->mesh;
        if ((m->ndim || m->dev[0] != d) && !(m->ndim && d == 0) && dt_py_spec_of_device(d, &spec) < 0) return -1;
    }
    if (spec) {
        dt_tensor *t = dt_py_redistribute(out[0], spec);
        if (!t) return -1;
        dt_tensor_unref(out[0]);
        out[0] = t;
    }
    dt_status st = p->requires_grad ? dt_tensor_requires_grad_set(out[0], true) : DT_OK;
    return st ? dt_py_raise_int(st) : 0;
}

static PyObject *finish(const py_sig *s, py_parse *p, dt_tensor **out, int n) {
    if (DT_LIKELY(!p->out && !p->requires_grad && !p->device && !p->mesh)) return dt_py_results(s, out, n);
    if (n >= 1 && (p->requires_grad || p->device || p->mesh) && post(s, p, out) < 0) {
        for (int i = 0; i < n; i++)
            if (out[i]) dt_tensor_unref(out[i]);
        return NULL;
    }
    return p->out ? into_out(s, p->out, out, n) : dt_py_results(s, out, n);
}

/* Operators that return a list: how many is known after inference only. */
static PyObject *run_list(const py_sig *s, py_parse *p) {
    enum { CAP = 1024 };
    dt_tensor **out = NULL;
    int n = 0;
    dt_status st = DT_OK;
    if (s->op->compose) {
        n = CAP;
        out = dt_malloc(sizeof *out * CAP);
        if (!out) return PyErr_NoMemory();
        st = dt_invoke(s->op, &p->args, CAP, out, &n);
    } else {
        dt_call *call;
        DT_PY_CHECK(dt_prepare(s->op, &p->args, &call));
        n = call->n_out;
        out = dt_malloc(sizeof *out * (size_t)(n + 1));
        if (!out) return PyErr_NoMemory();
        st = dt_issue(call, &p->args, out);
    }
    PyObject *r = st ? dt_py_raise(st) : finish(s, p, out, n);
    dt_free(out);
    return r;
}

static PyObject *run(const opfunc *f, const py_sig *s, py_parse *p) {
    if (f->inplace) {
        DT_PY_CHECK(dt_invoke_inplace(s->op, &p->args));
        dt_tensor *t = p->args.a[s->self].t;
        return dt_py_wrap(dt_tensor_ref(t));
    }
    if (s->info->n_returns < 0) return run_list(s, p);
    dt_tensor *out[16];
    int n = 0;
    if (DT_UNLIKELY(p->out != NULL)) { /* computed in the dtypes of what is given */
        bool autocast = dt_mode_autocast_hold();
        dt_status st = dt_invoke(s->op, &p->args, 16, out, &n);
        dt_mode_autocast_resume(autocast);
        return st ? dt_py_raise(st) : finish(s, p, out, n);
    }
    DT_PY_CHECK(dt_invoke(s->op, &p->args, 16, out, &n));
    return finish(s, p, out, n);
}

/* relu(x, inplace=True), elu(x, 1.0, True): the flag that functions of nn.functional have behind their other arguments is taken off, and
 * chooses the callable. NotImplemented (borrowed) when there is no such flag. */
static PyObject *call_by_flag(const opfunc *f, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    enum { MOST = 32 };
    PyObject *rest[MOST], *flag = NULL, *names = NULL;
    Py_ssize_t n_kw = kwnames ? PyTuple_GET_SIZE(kwnames) : 0, at = -1;
    if (n + n_kw > MOST) return Py_NotImplemented;
    for (Py_ssize_t i = 0; i < n_kw; i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "inplace") == 0) at = n + i;
    if (at < 0 && n >= 2 && PyBool_Check(args[n - 1])) at = n - 1;
    if (at < 0) return Py_NotImplemented;
    flag = args[at];
    for (Py_ssize_t i = 0, k = 0; i < n + n_kw; i++)
        if (i != at) rest[k++] = args[i];
    if (n_kw - (at >= n) > 0) {
        names = PyTuple_New(n_kw - (at >= n));
        if (!names) return NULL;
        for (Py_ssize_t i = 0, k = 0; i < n_kw; i++)
            if (n + i != at) PyTuple_SET_ITEM(names, k++, Py_NewRef(PyTuple_GET_ITEM(kwnames, i)));
    }
    int inplace = PyObject_IsTrue(flag);
    const opfunc *to = inplace > 0 ? f->twin : f;
    PyObject *r = inplace < 0 ? NULL : to->call((PyObject *)to, rest, (size_t)(n - (at < n)), names);
    Py_XDECREF(names);
    return r;
}

static PyObject *opfunc_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    const opfunc *f = (const opfunc *)self;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    dt_py_site();
    py_parse p;
    for (int i = 0; i < f->n; i++) {
        int r = dt_py_parse(&f->sig[i], f->method, args, n, kwnames, &p, false);
        if (r < 0) return NULL;
        if (r == 0) continue;
        PyObject *o = run(f, &f->sig[i], &p);
        dt_py_parse_fini(&p);
        return o;
    }
    PyObject *o = f->twin ? call_by_flag(f, args, n, kwnames) : Py_NotImplemented;
    if (o != Py_NotImplemented) return o;
    dt_py_explain(f->sig, f->n, f->method, args, n, kwnames);
    return NULL;
}

/* ---- calls from C ------------------------------------------------------------------------------------------------------------------ */
const dt_op *dt_py_need(const char *name) {
    const dt_op *op = dt_op_find(name);
    if (!op) PyErr_Format(PyExc_NotImplementedError, "this needs the operator '%s', which is not available", name);
    return op;
}

dt_tensor *dt_py_call_at(const dt_op **slot, const char *name, const dt_args *args) {
    dt_tensor *out[4];
    int n = 0;
    if (!*slot && !(*slot = dt_py_need(name))) return NULL;
    DT_PY_CHECK(dt_invoke(*slot, args, 4, out, &n));
    for (int i = 1; i < n; i++) dt_tensor_unref(out[i]);
    return out[0];
}

int dt_py_call_inplace_at(const dt_op **slot, const char *name, const dt_args *args) {
    if (!*slot && !(*slot = dt_py_need(name))) return -1;
    dt_status s = dt_invoke_inplace(*slot, args);
    return s ? dt_py_raise_int(s) : 0;
}

dt_tensor *dt_py_cast(dt_tensor *t, dt_dtype dtype) {
    if (dt_tensor_meta(t)->dtype == dtype) return dt_tensor_ref(t);
    dt_args a;
    dt_py_args_init(&a);
    a.a[0] = DT_PY_ARG_T(t);
    a.a[1] = DT_PY_ARG_D(dtype);
    return dt_py_call("to_dtype", &a);
}

dt_tensor *dt_py_redistribute(dt_tensor *t, const dt_spec *spec) {
    dt_args a;
    dt_py_args_init(&a);
    a.a[0] = DT_PY_ARG_T(t);
    a.spec = spec;
    return dt_py_call("redistribute", &a);
}

/* ---- the callable's Python side --------------------------------------------------------------------------------------------------- */
static PyObject *method_get(PyObject *self, PyObject *obj, PyObject *type) { return obj && obj != Py_None ? PyMethod_New(self, obj) : Py_NewRef(self); }
static PyObject *get_name(PyObject *self, void *x) { return PyUnicode_FromString(((opfunc *)self)->name); }
static PyObject *get_qualname(PyObject *self, void *x) {
    opfunc *f = (opfunc *)self;
    return PyUnicode_FromFormat("%s%s", f->method ? "Tensor." : "", f->name);
}
static PyObject *get_module(PyObject *self, void *x) { return PyUnicode_FromString(((opfunc *)self)->module); }
static PyObject *get_doc(PyObject *self, void *x) {
    opfunc *f = (opfunc *)self;
    PyObject *text = PyUnicode_FromString("");
    for (int i = 0; text && i < f->n; i++) Py_SETREF(text, PyUnicode_FromFormat("%U%s\n", text, f->sig[i].op->sig));
    const char *doc = f->n ? f->sig[0].op->doc : NULL;
    if (text && doc) Py_SETREF(text, PyUnicode_FromFormat("%U\n%s%s", text, f->inplace ? "In place. " : "", doc));
    return text;
}
static PyObject *opfunc_repr(PyObject *self) {
    opfunc *f = (opfunc *)self;
    return PyUnicode_FromFormat("<%s %s of dtorch%s>", f->method ? "method" : "built-in function", f->name, f->method ? ".Tensor" : "");
}
static PyObject *opfunc_reduce(PyObject *self, PyObject *none) { /* by name: functions can be pickled and copied */
    opfunc *f = (opfunc *)self;
    PyObject *find = PyObject_GetAttrString(dt_py_module, "_opfunc_named");
    return find ? Py_BuildValue("N(si)", find, f->name, (int)f->method) : NULL;
}
static PyGetSetDef getset[] = {
    {"__name__", get_name, NULL, NULL, NULL},
    {"__qualname__", get_qualname, NULL, NULL, NULL},
    {"__module__", get_module, NULL, NULL, NULL},
    {"__doc__", get_doc, NULL, NULL, NULL},
    {0},
};
static PyMethodDef methods[] = {{"__reduce__", opfunc_reduce, METH_NOARGS, NULL}, {0}};
static PyTypeObject function_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch.op_function",
    .tp_basicsize = sizeof(opfunc),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(opfunc, call),
    .tp_call = PyVectorcall_Call,
    .tp_getset = getset,
    .tp_methods = methods,
    .tp_repr = opfunc_repr,
};
static PyTypeObject method_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch.op_method",
    .tp_basicsize = sizeof(opfunc),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(opfunc, call),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = method_get,
    .tp_getset = getset,
    .tp_methods = methods,
    .tp_repr = opfunc_repr,
};

/* ---- building from the table ------------------------------------------------------------------------------------------------------- */
static PyObject *functions, *submodules, *nn, *hidden; /* name → callable; module → (name → callable); modules */

static PyObject *return_type(const dt_op_info *info) {
    if (info->n_returns < 2 || info->n_returns > 4 || !info->ret_name[0][0]) return NULL;
    PyStructSequence_Field fields[5] = {{0}};
    for (int i = 0; i < info->n_returns; i++) fields[i].name = info->ret_name[i];
    char full[96];
    snprintf(full, sizeof full, "dtorch.return_types.%s", info->base);
    PyStructSequence_Desc d = {full, "A named tuple of results.", fields, info->n_returns};
    return (PyObject *)PyStructSequence_NewType(&d);
}

/* The overloads [first, last) of one name that have `flag` (or an in-place form); NULL without exception if there are none. */
static PyObject *make(py_sig *sigs, int n, uint32_t flag, bool inplace, const char *module) {
    opfunc *f = PyObject_New(opfunc, flag == DT_METHOD ? &method_type : &function_type);
    if (!f) return NULL;
    f->call = opfunc_call;
    f->inplace = inplace;
    f->method = flag == DT_METHOD;
    f->module = module;
    f->n = 0;
    f->twin = NULL;
    f->sig = dt_malloc(sizeof *f->sig * (size_t)n);
    if (!f->sig) {
        Py_DECREF(f);
        return PyErr_NoMemory();
    }
    for (int i = 0; i < n; i++)
        if ((sigs[i].op->where & flag) && (!inplace || (sigs[i].op->inplace && sigs[i].self == 0)) && (!f->method || sigs[i].self >= 0))
            f->sig[f->n++] = sigs[i];
    snprintf(f->name, sizeof f->name, "%.46s%s", sigs[0].info->base, inplace ? "_" : "");
    if (f->n) return (PyObject *)f;
    dt_free(f->sig);
    Py_DECREF(f);
    return NULL;
}

static int put_dotted(const char *module, size_t len, const char *name, PyObject *f) {
    PyObject *key = PyUnicode_FromStringAndSize(module, (Py_ssize_t)len);
    PyObject *d = key ? PyDict_GetItem(submodules, key) : NULL;
    if (key && !d && (d = PyDict_New())) {
        int r = PyDict_SetItem(submodules, key, d);
        Py_DECREF(d);
        if (r < 0) d = NULL;
    }
    Py_XDECREF(key);
    return d ? PyDict_SetItemString(d, name, f) : -1;
}

static int put(uint32_t flag, const char *name, PyObject *f) {
    const char *dot = strrchr(name, '.');
    if (dot) return flag == DT_FN ? put_dotted(name, (size_t)(dot - name), dot + 1, f) : 0;
    if (flag == DT_FN) return PyDict_SetItemString(functions, name, f);
    if (flag == DT_NN) return PyObject_SetAttrString(nn, name, f);
    if (flag == DT_HIDDEN) return PyObject_SetAttrString(hidden, name, f);
    PyObject *d = dt_py_tensor_type->tp_dict;
    return PyDict_GetItemString(d, name) ? 0 : PyDict_SetItemString(d, name, f); /* methods written by hand win */
}

/* Under its own name, and under those of `also`. */
static int put_all(uint32_t flag, py_sig *sigs, bool inplace, PyObject *f) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", sigs[0].info->base, inplace ? "_" : "");
    if (put(flag, name, f) < 0) return -1;
    for (const char *p = sigs[0].op->also; p && *p;) {
        size_t len = strcspn(p, ", ");
        if (len) snprintf(name, sizeof name, "%.*s%s", (int)len, p, inplace ? "_" : "");
        if (len && (!inplace || !memchr(p, '.', len)) && put(flag, name, f) < 0) return -1;
        p += len;
        while (*p == ',' || *p == ' ') p++;
    }
    return 0;
}

static int add_name(py_sig *sigs, int n) {
    static const struct {
        uint32_t flag;
        const char *module;
    } kinds[] = {{DT_FN, "dtorch"}, {DT_METHOD, "dtorch"}, {DT_NN, "dtorch.nn.functional"}, {DT_HIDDEN, "dtorch._C._ops"}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        PyObject *plain = NULL;
        for (int inplace = 0; inplace < 2; inplace++) {
            PyObject *f = make(sigs, n, kinds[k].flag, inplace, kinds[k].module);
            if (!f && PyErr_Occurred()) return -1;
            if (!f) continue;
            if (inplace && plain && kinds[k].flag == DT_NN) ((opfunc *)plain)->twin = (opfunc *)Py_NewRef(f);
            plain = inplace ? plain : f;
            int r = put_all(kinds[k].flag, sigs, inplace, f);
            Py_DECREF(f);
            if (r < 0) return -1;
        }
    }
    return 0;
}

/* ---- what tools see ---------------------------------------------------------------------------------------------------------------- */
static PyObject *op_table(PyObject *m, PyObject *none) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < dt_ops_count(); i++) {
        const dt_op *op = dt_ops_at(i);
        const dt_op_info *info = dt_op_get_info(op);
        PyObject *d = Py_BuildValue("{s:s,s:s,s:s,s:z,s:z,s:i,s:O,s:O,s:O}", "name", info->name, "base", info->base, "signature", op->sig, "doc", op->doc,
                                    "aliases", op->also, "where", (int)op->where, "inplace", op->inplace ? Py_True : Py_False, "factory",
                                    op->flags & DT_F_FACTORY ? Py_True : Py_False, "differentiable", op->grad || op->compose ? Py_True : Py_False);
        if (!d || PyList_Append(list, d) < 0) Py_CLEAR(list);
        Py_XDECREF(d);
    }
    return list;
}

static PyObject *named(PyObject *m, PyObject *args) {
    const char *name;
    int method;
    if (!PyArg_ParseTuple(args, "si", &name, &method)) return NULL;
    PyObject *f = method ? PyDict_GetItemString(dt_py_tensor_type->tp_dict, name) : PyDict_GetItemString(functions, name);
    if (f) return Py_NewRef(f);
    f = method ? NULL : PyObject_GetAttrString(nn, name);
    if (!f) PyErr_Format(PyExc_AttributeError, "no operator is called '%s'", name);
    return f;
}

static PyMethodDef module_functions[] = {
    {"op_table", op_table, METH_NOARGS, "One dict per operator: name, signature, doc, aliases, where (1 function, 2 method, 4 nn.functional, 8 internal), …"},
    {"_opfunc_named", named, METH_VARARGS, NULL},
    {0},
};

static PyObject *submodule(PyObject *m, const char *name) {
    char full[64];
    snprintf(full, sizeof full, "dtorch._C.%s", name);
    PyObject *s = PyModule_New(full);
    if (s && PyModule_AddObjectRef(m, name, s) < 0) Py_CLEAR(s);
    return s;
}

static int add_groups(PyObject *types) {
    int n = dt_ops_count();
    py_sig *sigs = dt_calloc((size_t)n + 1, sizeof *sigs);
    bool *done = dt_calloc((size_t)n + 1, 1);
    int r = sigs && done ? 0 : (PyErr_NoMemory(), -1);
    for (int i = 0; i < n && r == 0; i++) {
        if (done[i]) continue;
        int count = 0;
        const char *base = dt_op_get_info(dt_ops_at(i))->base;
        for (int k = i; k < n && r == 0; k++) {
            const dt_op_info *info = dt_op_get_info(dt_ops_at(k));
            if (done[k] || strcmp(info->base, base)) continue;
            done[k] = true;
            py_sig *s = &sigs[count++];
            if (dt_py_sig_init(s, dt_ops_at(k)) < 0 || (!(s->ret_type = return_type(info)) && PyErr_Occurred())) r = -1;
            if (r == 0 && s->ret_type) r = PyModule_AddObjectRef(types, info->base, s->ret_type);
        }
        if (r == 0) r = add_name(sigs, count);
    }
    dt_free(sigs);
    dt_free(done);
    return r;
}

int dt_py_ops_init(PyObject *m) {
    dt_status s = dt_ops_init();
    if (s) return dt_py_raise_int(s);
    functions = PyDict_New();
    submodules = PyDict_New();
    nn = submodule(m, "_nn");
    hidden = submodule(m, "_ops");
    PyObject *types = submodule(m, "return_types");
    if (!functions || !submodules || !nn || !hidden || !types || PyType_Ready(&function_type) < 0 || PyType_Ready(&method_type) < 0) return -1;
    if (PyModule_AddFunctions(m, module_functions) < 0 || PyModule_AddObjectRef(m, "_functions", functions) < 0 ||
        PyModule_AddObjectRef(m, "_submodules", submodules) < 0)
        return -1;
    if (add_groups(types) < 0) return -1;
    PyType_Modified(dt_py_tensor_type);
    return 0;
}
