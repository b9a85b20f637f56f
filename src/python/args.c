/* Python arguments → dt_args, as an operator's signature says. No tuple, dict or other object is made on the way.
 *
 * Positional arguments fill the parameters in order (a method's first argument is its `self` parameter, wherever that stands); keywords
 * are found by comparing interned names. PyTorch's NumPy names (axis, keepdims) are understood, and options that mean nothing here
 * (memory_format, pin_memory, …) are accepted and ignored. Overloads are tried silently; `explain` sets the TypeError. */
#include "python/py.h"

#include "base/arena.h"

int dt_py_sig_init(py_sig *s, const dt_op *op) {
    *s = (py_sig){.op = op, .info = dt_op_get_info(op), .self = -1};
    const dt_op_info *info = s->info;
    s->factory = op->flags & (DT_F_FACTORY | DT_F_SPEC);
    for (int i = 0; i < info->n_params; i++) {
        const dt_param *p = &info->param[i];
        if (!(s->name[i] = PyUnicode_InternFromString(p->name))) return -1;
        if (!p->kwonly) s->n_pos = i + 1;
        bool tensor = p->kind == DT_PK_TENSOR || p->kind == DT_PK_VALUE;
        if (tensor && (s->self < 0 || !strcmp(p->name, "input"))) s->self = i;
    }
    return 0;
}

static const char *kind_name(const dt_param *p) {
    static const char *const names[] = {"Tensor", "tuple of Tensors", "Tensor or Number", "Number",   "int", "float", "bool",
                                        "str",    "dtorch.dtype",     "tuple of ints",    "Generator"};
    return names[p->kind];
}

/* "(Tensor input, int dim, *, bool keepdim=False)" for messages. */
static PyObject *signature(const py_sig *s) {
    const char *sig = strchr(s->op->sig, '('), *end = sig ? strstr(sig, " ->") : NULL;
    return sig ? PyUnicode_FromStringAndSize(sig, end ? end - sig : (Py_ssize_t)strlen(sig)) : PyUnicode_FromString("(?)");
}

static int wrong_type(const py_sig *s, int i, int pos, PyObject *o, bool explain) {
    if (!explain) return 0;
    const char *what = dt_py_type_name(o);
    if (pos >= 0)
        PyErr_Format(PyExc_TypeError, "%s(): argument '%s' (position %d) must be %s, not %s", s->info->base, s->info->param[i].name, pos + 1,
                     kind_name(&s->info->param[i]), what);
    else
        PyErr_Format(PyExc_TypeError, "%s(): argument '%s' must be %s, not %s", s->info->base, s->info->param[i].name, kind_name(&s->info->param[i]), what);
    return 0;
}

static int set_ints(const dt_param *q, PyObject *const *items, Py_ssize_t n, PyObject *seq, py_parse *p, dt_arg *a) {
    if (p->n_ints == (int)(sizeof p->ints / sizeof p->ints[0])) return 0;
    int64_t *v = p->ints[p->n_ints];
    int count = 0, r = 1;
    if (seq) {
        r = dt_py_to_ints(seq, v, DT_MAX_INTS, &count);
        if (r == 0) {
            r = dt_py_to_int(seq, v);
            count = 1;
        }
    } else {
        if (n > DT_MAX_INTS) return 0;
        for (Py_ssize_t i = 0; r > 0 && i < n; i++) r = dt_py_to_int(items[i], &v[i]);
        count = (int)n;
    }
    if (r <= 0) return r;
    if (count == 1)
        for (; count < q->repeat; count++) v[count] = v[0];
    *a = (dt_arg){.kind = DT_ARG_INTS, .given = true, .n = count, .ints = v};
    p->n_ints++;
    return 1;
}

static int set_tensors(const dt_param *q, PyObject *const *items, Py_ssize_t n, py_parse *p, dt_arg *a) {
    if (p->n_list) return 0; /* one list per operator */
    if (n > DT_PY_LIST_INLINE) {
        dt_tensor **list = dt_malloc(sizeof *list * (size_t)n);
        if (!list) {
            PyErr_NoMemory();
            return -1;
        }
        if (p->list != p->list_inline) dt_free(p->list);
        p->list = list;
    }
    /* References of our own: another thread may change the user's list while a call waits for room. */
    for (Py_ssize_t i = 0; i < n; i++, p->n_list++) {
        if (dt_py_is_tensor(items[i]))
            p->list[i] = dt_tensor_ref(dt_py_tensor_of(items[i]));
        else if (items[i] == Py_None && q->optional)
            p->list[i] = NULL;
        else
            return 0;
    }
    *a = (dt_arg){.kind = DT_ARG_TENSORS, .given = true, .n = (int32_t)n, .list = p->list};
    return 1;
}

/* One argument into one parameter. */
static int set(const dt_param *q, PyObject *o, py_parse *p, dt_arg *a) {
    if (o == Py_None && q->kind != DT_PK_TENSORS) {
        if (!q->optional && q->kind != DT_PK_GENERATOR) return 0;
        *a = (dt_arg){.kind = DT_ARG_NONE, .given = true};
        return 1;
    }
    int r;
    switch (q->kind) {
    case DT_PK_TENSOR:
        if (!dt_py_is_tensor(o)) return 0;
        *a = DT_PY_ARG_T(dt_py_tensor_of(o));
        return 1;
    case DT_PK_TENSORS:
        if (!PyTuple_Check(o) && !PyList_Check(o)) return 0;
        return set_tensors(q, PySequence_Fast_ITEMS(o), PySequence_Fast_GET_SIZE(o), p, a);
    case DT_PK_VALUE: return dt_py_to_value(o, a);
    case DT_PK_SCALAR: return dt_py_to_scalar(o, a);
    case DT_PK_INT: *a = (dt_arg){.kind = DT_ARG_INT, .given = true}; return dt_py_to_int(o, &a->i);
    case DT_PK_FLOAT: *a = (dt_arg){.kind = DT_ARG_FLOAT, .given = true}; return dt_py_to_float(o, &a->f);
    case DT_PK_BOOL: {
        bool yes = false;
        r = dt_py_to_bool(o, &yes);
        *a = DT_PY_ARG_B(yes);
        return r;
    }
    case DT_PK_STR:
        if (!PyUnicode_Check(o)) return 0;
        *a = (dt_arg){.kind = DT_ARG_STR, .given = true, .s = PyUnicode_AsUTF8(o)};
        return a->s ? 1 : -1;
    case DT_PK_DTYPE: {
        dt_dtype t = DT_DTYPE_NONE;
        r = dt_py_dtype_parse(o, &t);
        *a = DT_PY_ARG_D(t);
        return r;
    }
    case DT_PK_INTS: return set_ints(q, NULL, 0, o, p, a);
    default: /* a generator */
        if (Py_TYPE(o) != &dt_py_generator_type) return 0;
        p->args.generator = ((py_generator *)o)->g;
        return 1;
    }
}

/* ---- keywords that are no parameters ------------------------------------------------------------------------------------------ */
static const char *alias_of(const char *name) {
    if (!strcmp(name, "axis")) return "dim";
    if (!strcmp(name, "keepdims")) return "keepdim";
    if (!strcmp(name, "self") || !strcmp(name, "x") || !strcmp(name, "x1") || !strcmp(name, "a")) return "input";
    if (!strcmp(name, "x2")) return "other";
    return NULL;
}

static bool is_ignored(const char *name) {
    static const char *const names[] = {"memory_format", "layout", "pin_memory", "non_blocking", "names", "inplace"};
    for (size_t i = 0; i < sizeof names / sizeof *names - 1; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

/* out=, requires_grad=, device=, device_mesh=, placements=, and what is ignored. 1, 0, -1 as ever. */
static int extra(const char *name, PyObject *o, py_parse *p) {
    if (is_ignored(name)) return 1;
    if (!strcmp(name, "requires_grad")) return dt_py_to_bool(o, &p->requires_grad);
    PyObject **slot = !strcmp(name, "out")           ? &p->out
                      : !strcmp(name, "device")      ? &p->device
                      : !strcmp(name, "device_mesh") ? &p->mesh
                      : !strcmp(name, "placements")  ? &p->placements
                                                     : NULL;
    if (!slot) return 0;
    *slot = o == Py_None ? NULL : o;
    return 1;
}

static int find_name(const py_sig *s, PyObject *key) {
    int n = s->info->n_params;
    for (int i = 0; i < n; i++)
        if (s->name[i] == key) return i;
    for (int i = 0; i < n; i++)
        if (PyUnicode_Compare(s->name[i], key) == 0) return i;
    return -1;
}

static int unexpected(const py_sig *s, const char *name, bool explain) {
    if (explain) PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%s'", s->info->base, name);
    return 0;
}

static int keyword(const py_sig *s, PyObject *key, PyObject *value, py_parse *p, bool explain) {
    int i = find_name(s, key);
    if (i < 0) {
        const char *name = PyUnicode_AsUTF8(key), *alias = name ? alias_of(name) : NULL;
        if (!name) return -1;
        for (int k = 0; alias && k < s->info->n_params; k++)
            if (!strcmp(alias, s->info->param[k].name)) i = k;
        if (i < 0) {
            int r = extra(name, value, p);
            return r ? r : unexpected(s, name, explain);
        }
    }
    dt_arg *a = &p->args.a[i];
    if (a->given) {
        if (explain) PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'", s->info->base, s->info->param[i].name);
        return 0;
    }
    int r = set(&s->info->param[i], value, p, a);
    if (r == 0) wrong_type(s, i, -1, value, explain);
    a->given = true;
    return r;
}

/* ---- the whole call ------------------------------------------------------------------------------------------------------------ */
static bool takes_rest(const dt_param *q, PyObject *o) {
    if (q->kind == DT_PK_INTS) return q->variadic && !PyTuple_Check(o) && !PyList_Check(o) && o != Py_None;
    return q->kind == DT_PK_TENSORS && dt_py_is_tensor(o);
}

static int positional(const py_sig *s, bool method, PyObject *const *args, Py_ssize_t n, py_parse *p, bool explain) {
    const dt_op_info *info = s->info;
    Py_ssize_t k = 0;
    if (method) {
        if (s->self < 0) return 0;
        int r = n ? set(&info->param[s->self], args[0], p, &p->args.a[s->self]) : 0;
        if (r <= 0) return r ? r : wrong_type(s, s->self, -1, n ? args[0] : Py_None, explain);
        k = 1;
    }
    for (int i = 0; k < n; i++) {
        if (method && i == s->self) continue;
        if (i >= s->n_pos) {
            if (explain)
                PyErr_Format(PyExc_TypeError, "%s() takes %d positional argument%s but %zd were given", info->base, s->n_pos, s->n_pos == 1 ? "" : "s", n);
            return 0;
        }
        const dt_param *q = &info->param[i];
        dt_arg *a = &p->args.a[i];
        int r;
        if (takes_rest(q, args[k])) {
            r = q->kind == DT_PK_INTS ? set_ints(q, args + k, n - k, NULL, p, a) : set_tensors(q, args + k, n - k, p, a);
            if (r <= 0) return r ? r : wrong_type(s, i, (int)k, args[k], explain);
            return 1;
        }
        r = set(q, args[k], p, a);
        if (r <= 0) return r ? r : wrong_type(s, i, (int)k, args[k], explain);
        a->given = true;
        k++;
    }
    return 1;
}

static int complete(const py_sig *s, const py_parse *p, bool explain) {
    const dt_op_info *info = s->info;
    DT_STR(missing, 512);
    int n = 0;
    for (int i = 0; i < info->n_params; i++) {
        const dt_param *q = &info->param[i];
        if (p->args.a[i].given || q->has_default || q->kind == DT_PK_GENERATOR) continue;
        if (q->optional && q->kwonly) continue;
        if (!explain) return 0;
        dt_str_add(&missing, "%s\"%s\"", n++ ? ", " : "", q->name);
    }
    if (n) PyErr_Format(PyExc_TypeError, "%s() missing %d required positional arguments: %s", info->base, n, missing.buf);
    return n == 0;
}

/* device=, device_mesh=, placements= of factories. */
static int place(const py_sig *s, py_parse *p) {
    if (!s->factory) return 1;
    if (p->mesh) return dt_py_spec(p->mesh, p->placements, 0, &p->args.spec) < 0 ? -1 : 1;
    if (p->placements) {
        PyErr_Format(PyExc_TypeError, "%s(): placements= needs device_mesh=", s->info->base);
        return -1;
    }
    if (!p->device) return 1;
    dt_device d;
    int r = dt_py_device_parse(p->device, &d);
    if (r == 0) PyErr_Format(PyExc_TypeError, "%s(): argument 'device' must be dtorch.device or str, not %s", s->info->base, dt_py_type_name(p->device));
    return r <= 0 || dt_py_spec_of_device(d, &p->args.spec) < 0 ? -1 : 1;
}

int dt_py_parse(const py_sig *s, bool method, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, py_parse *p, bool explain) {
    memset(p->args.a, 0, sizeof *p->args.a * (size_t)s->info->n_params);
    p->args.spec = NULL;
    p->args.generator = NULL;
    p->n_ints = p->n_list = 0;
    p->list = p->list_inline;
    p->out = p->device = p->mesh = p->placements = NULL;
    p->requires_grad = false;
    int r = positional(s, method, args, n, p, explain);
    Py_ssize_t nk = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t i = 0; r > 0 && i < nk; i++) r = keyword(s, PyTuple_GET_ITEM(kwnames, i), args[n + i], p, explain);
    if (r > 0) r = complete(s, p, explain);
    if (r > 0) r = place(s, p);
    if (r <= 0) dt_py_parse_fini(p);
    return r;
}

void dt_py_parse_fini(py_parse *p) {
    for (int i = 0; i < p->n_list; i++)
        if (p->list[i]) dt_tensor_unref(p->list[i]);
    p->n_list = 0;
    if (p->list != p->list_inline) dt_free(p->list);
    p->list = p->list_inline;
}

/* "name() received an invalid combination of arguments - got (…), but expected one of:" */
static PyObject *given_types(bool method, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    PyObject *parts = PyList_New(0), *comma = PyUnicode_FromString(", "), *r = NULL;
    Py_ssize_t nk = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t i = method ? 1 : 0; parts && i < n + nk; i++) {
        PyObject *t =
            i < n ? PyUnicode_FromString(dt_py_type_name(args[i])) : PyUnicode_FromFormat("%U=%s", PyTuple_GET_ITEM(kwnames, i - n), dt_py_type_name(args[i]));
        if (!t || PyList_Append(parts, t) < 0) Py_CLEAR(parts);
        Py_XDECREF(t);
    }
    if (parts && comma) r = PyUnicode_Join(comma, parts);
    Py_XDECREF(parts);
    Py_XDECREF(comma);
    return r;
}

void dt_py_explain(const py_sig *s, int count, bool method, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    if (count == 1) {
        py_parse p;
        if (dt_py_parse(s, method, args, n, kwnames, &p, true) > 0) dt_py_parse_fini(&p);
        if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "%s(): the arguments fit no signature", s->info->base);
        return;
    }
    PyObject *got = given_types(method, args, n, kwnames);
    PyObject *text =
        got ? PyUnicode_FromFormat("%s() received an invalid combination of arguments - got (%U), but expected one of:", s->info->base, got) : NULL;
    for (int i = 0; text && i < count; i++) {
        PyObject *sig = signature(&s[i]), *longer = sig ? PyUnicode_FromFormat("%U\n * %U", text, sig) : NULL;
        Py_XDECREF(sig);
        Py_SETREF(text, longer);
    }
    if (text) PyErr_SetObject(PyExc_TypeError, text);
    Py_XDECREF(text);
    Py_XDECREF(got);
}
