/* x[key] and x[key] = value: composed of view operators (select, slice, unsqueeze) and, for tensors among the indices, index / index_put_.
 *
 * The key is walked once, left to right; ints, slices, None and Ellipsis turn `cur` into a view of it, a tensor, list, array or range takes
 * its place in the list of index tensors. Boolean masks become their nonzero positions (this waits for the mask), except in x[mask] = number,
 * which is a masked fill and waits for nothing. A 0-dim integer tensor is an index tensor too (PyTorch reads it; here nothing waits). */
#include "python/py.h"

enum { MAX_KEY = 64 };
typedef struct walk {
    dt_tensor *cur; /* owned */
    int dim;        /* the next dimension of cur */
    int n_index;    /* length of index: 1 + the last one set */
    bool changed;   /* cur is a view already */
    dt_tensor *index[DT_MAX_DIM];
    dt_tensor *mask; /* the only index, if it is a mask not yet turned into positions; owned */
    int mask_dim;
} walk;

static void walk_fini(walk *w) {
    if (w->cur) dt_tensor_unref(w->cur);
    if (w->mask) dt_tensor_unref(w->mask);
    for (int i = 0; i < w->n_index; i++)
        if (w->index[i]) dt_tensor_unref(w->index[i]);
}

static int replace(walk *w, dt_tensor *t) {
    if (!t) return -1;
    dt_tensor_unref(w->cur);
    w->cur = t;
    w->changed = true;
    return 0;
}

/* ---- one item of a key ---------------------------------------------------------------------------------------------------------------- */
/* Whether a dimension is left. walk_key counted what each item consumes, but cannot know it of a sequence of, say, NumPy's bools. */
static int check_room(walk *w) {
    int ndim = dt_tensor_meta(w->cur)->ndim;
    if (w->dim < ndim) return 0;
    PyErr_Format(PyExc_IndexError, "too many indices for tensor of dimension %d", ndim);
    return -1;
}

static int by_int(walk *w, int64_t i) {
    if (check_room(w) < 0) return -1;
    const dt_meta *m = dt_tensor_meta(w->cur);
    int64_t size = m->shape[w->dim];
    if (i < -size || i >= size) {
        PyErr_Format(PyExc_IndexError, "index %lld is out of bounds for dimension %d with size %lld", (long long)i, w->dim, (long long)size);
        return -1;
    }
    dt_args a;
    dt_py_args_init(&a);
    a.a[0] = DT_PY_ARG_T(w->cur);
    a.a[1] = DT_PY_ARG_I(w->dim);
    a.a[2] = DT_PY_ARG_I(i);
    return replace(w, dt_py_call("select", &a));
}

static int slice_part(PyObject *o, int64_t *v) {
    if (o == Py_None) return 0;
    int r = dt_py_to_int(o, v);
    if (r == 0) PyErr_SetString(PyExc_TypeError, "slice indices must be integers or None or have an __index__ method");
    return r > 0 ? 1 : -1;
}

static int by_slice(walk *w, PyObject *key) {
    if (check_room(w) < 0) return -1;
    PySliceObject *s = (PySliceObject *)key;
    int64_t size = dt_tensor_meta(w->cur)->shape[w->dim], start = 0, stop = size, step = 1;
    if (slice_part(s->start, &start) < 0 || slice_part(s->stop, &stop) < 0 || slice_part(s->step, &step) < 0) return -1;
    if (step <= 0) {
        PyErr_SetString(PyExc_ValueError, "step must be greater than zero");
        return -1;
    }
    start = start < 0 ? (start + size < 0 ? 0 : start + size) : start > size ? size : start;
    stop = stop < 0 ? (stop + size < 0 ? 0 : stop + size) : stop > size ? size : stop;
    if (stop < start) stop = start;
    int d = w->dim++;
    if (start == 0 && stop == size && step == 1) return 0;
    dt_args a;
    dt_py_args_init(&a);
    a.a[0] = DT_PY_ARG_T(w->cur);
    a.a[1] = DT_PY_ARG_I(d);
    a.a[2] = DT_PY_ARG_I(start);
    a.a[3] = DT_PY_ARG_I(stop);
    a.a[4] = DT_PY_ARG_I(step);
    return replace(w, dt_py_call("slice", &a));
}

static int by_none(walk *w) {
    dt_args a;
    dt_py_args_init(&a);
    a.a[0] = DT_PY_ARG_T(w->cur);
    a.a[1] = DT_PY_ARG_I(w->dim);
    return replace(w, dt_py_call("unsqueeze", &a));
}

static int set_index(walk *w, int dim, dt_tensor *t) { /* takes t */
    while (w->n_index <= dim) w->index[w->n_index++] = NULL;
    w->index[dim] = t;
    return 0;
}

/* The positions of a mask's true elements: one index tensor per dimension of the mask, from dimension `dim`. */
static int set_mask(walk *w, int dim, dt_tensor *mask) {
    int k = dt_tensor_meta(mask)->ndim;
    dt_args a;
    dt_py_args_init(&a);
    a.a[0] = DT_PY_ARG_T(mask);
    dt_tensor *nz = dt_py_call("nonzero", &a);
    for (int i = 0; nz && i < k; i++) {
        dt_py_args_init(&a);
        a.a[0] = DT_PY_ARG_T(nz);
        a.a[1] = DT_PY_ARG_I(1);
        a.a[2] = DT_PY_ARG_I(i);
        dt_tensor *col = dt_py_call("select", &a);
        if (!col) {
            dt_tensor_unref(nz);
            return -1;
        }
        set_index(w, dim + i, col);
    }
    if (nz) dt_tensor_unref(nz);
    return nz ? 0 : -1;
}

static int check_mask(walk *w, const dt_meta *mask) {
    const dt_meta *m = dt_tensor_meta(w->cur);
    for (int i = 0; i < mask->ndim; i++)
        if (w->dim + i >= m->ndim || mask->shape[i] != m->shape[w->dim + i]) {
            DT_STR(s, 256);
            dt_str_add(&s, "The shape of the mask ");
            dt_shape_print(mask->ndim, mask->shape, &s);
            dt_str_add(&s, " at index %d does not match the shape of the indexed tensor ", i);
            dt_shape_print(m->ndim, m->shape, &s);
            dt_str_add(&s, " at index %d", w->dim + i);
            PyErr_SetString(PyExc_IndexError, s.buf);
            return -1;
        }
    return 0;
}

/* A tensor among the indices; takes t. */
static int by_tensor(walk *w, dt_tensor *t, bool only) {
    const dt_meta *m = dt_tensor_meta(t);
    int r = -1;
    if (m->dtype == DT_bool || m->dtype == DT_uint8) {
        if (m->ndim == 0) { /* like True and False: a new dimension of size 1 or 0 */
            dt_args a;
            dt_py_args_init(&a);
            a.a[0] = DT_PY_ARG_T(t);
            a.a[1] = DT_PY_ARG_I(0);
            dt_tensor *one = by_none(w) < 0 ? NULL : dt_py_call("unsqueeze", &a);
            r = one ? set_mask(w, w->dim, one) : -1;
            if (one) dt_tensor_unref(one);
            w->dim++;
        } else if (check_mask(w, m) == 0) {
            if (only && m->dtype == DT_bool) {
                w->mask = dt_tensor_ref(t);
                w->mask_dim = w->dim;
                r = 0;
            } else {
                r = set_mask(w, w->dim, t);
            }
            w->dim += m->ndim;
        }
        dt_tensor_unref(t);
        return r;
    }
    if (dt_dtype_is_float((dt_dtype)m->dtype)) {
        PyErr_SetString(PyExc_IndexError, "tensors used as indices must be long, int, byte or bool tensors");
        dt_tensor_unref(t);
        return -1;
    }
    if (check_room(w) < 0) {
        dt_tensor_unref(t);
        return -1;
    }
    return set_index(w, w->dim++, t);
}

/* A tensor from o, on x's device; beside a distributed x it stays on the first one. */
static dt_tensor *make_beside(const dt_tensor *x, PyObject *o, dt_dtype dtype) {
    const dt_meta *m = dt_tensor_meta(x);
    const dt_spec *spec = NULL;
    if (m->mesh->ndim == 0 && m->mesh->dev[0] && dt_py_spec_of_meta(m, &spec) < 0) return NULL;
    return dt_py_tensor_from(o, dtype, spec);
}

/* A list, range or array as an index tensor; NULL with or without exception. */
static dt_tensor *as_index(const dt_tensor *x, PyObject *o) {
    if (dt_py_is_tensor(o)) return dt_tensor_ref(dt_py_tensor_of(o));
    if (!PyList_Check(o) && !PyTuple_Check(o) && !PyRange_Check(o) && !dt_py_is_array(o)) return NULL;
    bool empty = !dt_py_is_array(o) && PySequence_Size(o) == 0;
    return make_beside(x, o, empty ? DT_int64 : DT_DTYPE_NONE);
}

static int by_object(walk *w, PyObject *o, bool only) {
    int64_t i;
    if (PySlice_Check(o)) return by_slice(w, o);
    if (o == Py_None) {
        int r = by_none(w);
        w->dim++;
        return r;
    }
    if (PyBool_Check(o)) {
        dt_tensor *t = make_beside(w->cur, o, DT_bool);
        return t ? by_tensor(w, t, false) : -1;
    }
    if (!dt_py_is_tensor(o)) {
        int r = dt_py_to_int(o, &i);
        if (r) return r < 0 ? -1 : by_int(w, i);
    }
    dt_tensor *t = as_index(w->cur, o);
    if (t) return by_tensor(w, t, only);
    if (!PyErr_Occurred())
        PyErr_Format(PyFloat_Check(o) ? PyExc_IndexError : PyExc_TypeError,
                     "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices (got %s)", dt_py_type_name(o));
    return -1;
}

/* ---- the whole key --------------------------------------------------------------------------------------------------------------------- */
/* How many dimensions an item consumes. */
static int consumes(PyObject *o) {
    if (o == Py_None || o == Py_Ellipsis || PyBool_Check(o)) return 0;
    if (dt_py_is_tensor(o)) {
        const dt_meta *m = dt_tensor_meta(dt_py_tensor_of(o));
        return m->dtype == DT_bool || m->dtype == DT_uint8 ? m->ndim : 1;
    }
    if (dt_py_is_array(o)) { /* a boolean array consumes its dimensions */
        Py_buffer v;
        if (PyObject_GetBuffer(o, &v, PyBUF_FULL_RO) < 0) return -1;
        int k = v.format && strchr(v.format, '?') ? v.ndim : 1;
        PyBuffer_Release(&v);
        return k;
    }
    for (int depth = 0; depth < DT_MAX_DIM && (PyList_Check(o) || PyTuple_Check(o)) && PySequence_Fast_GET_SIZE(o); depth++) { /* nested bools are a mask */
        o = PySequence_Fast_GET_ITEM(o, 0);                                                                                    /* a list may hold itself */
        if (PyBool_Check(o)) return depth + 1;
    }
    return 1;
}

static int walk_key(walk *w, PyObject *self, PyObject *key) {
    memset(w, 0, sizeof *w);
    w->cur = dt_tensor_ref(dt_py_tensor_of(self));
    PyObject *one[1] = {key}, *const *item = PyTuple_Check(key) ? PySequence_Fast_ITEMS(key) : one;
    Py_ssize_t n = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1;
    int used = 0, tensors = 0, ndim = dt_tensor_meta(w->cur)->ndim, ellipses = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        int k = consumes(item[i]);
        if (k < 0) return -1;
        used += k;
        ellipses += item[i] == Py_Ellipsis;
        tensors += k > 0 && !PySlice_Check(item[i]) && !PyLong_Check(item[i]);
        tensors += PyBool_Check(item[i]);
    }
    if (used > ndim) {
        PyErr_Format(PyExc_IndexError, "too many indices for tensor of dimension %d", ndim);
        return -1;
    }
    if (ellipses > 1) {
        PyErr_SetString(PyExc_IndexError, "an index can only have a single ellipsis ('...')");
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (item[i] == Py_Ellipsis)
            w->dim += ndim - used;
        else if (by_object(w, item[i], tensors == 1) < 0)
            return -1;
    }
    return 0;
}

/* The mask that was put off becomes positions. */
static int settle_mask(walk *w) {
    if (!w->mask) return 0;
    int r = set_mask(w, w->mask_dim, w->mask);
    dt_tensor_unref(w->mask);
    w->mask = NULL;
    return r;
}

PyObject *dt_py_index_get(PyObject *self, PyObject *key) {
    walk w;
    dt_py_site();
    dt_tensor *t = NULL;
    if (walk_key(&w, self, key) == 0 && settle_mask(&w) == 0) {
        dt_args a;
        dt_py_args_init(&a);
        a.a[0] = DT_PY_ARG_T(w.cur);
        if (w.n_index) {
            a.a[1] = DT_PY_ARG_LIST(w.n_index, w.index);
            t = dt_py_call("index", &a);
        } else {
            t = w.changed ? dt_tensor_ref(w.cur) : dt_py_call("alias", &a); /* x[:] is another view, not x */
        }
    }
    walk_fini(&w);
    return dt_py_wrap(t);
}

/* ---- assignment ------------------------------------------------------------------------------------------------------------------------- */
/* Leading dimensions of size 1 that the target does not have are dropped: x[0] = ones(1, 3). A new reference. */
static dt_tensor *drop_ones(dt_tensor *v, int ndim) {
    dt_tensor_ref(v);
    while (v && dt_tensor_meta(v)->ndim > ndim && dt_tensor_meta(v)->shape[0] == 1) {
        dt_args a;
        dt_py_args_init(&a);
        a.a[0] = DT_PY_ARG_T(v);
        a.a[1] = DT_PY_ARG_I(0);
        a.a[2] = DT_PY_ARG_I(0);
        dt_tensor *less = dt_py_call("select", &a);
        dt_tensor_unref(v);
        v = less;
    }
    return v;
}

static int put_plain(walk *w, dt_arg *v) {
    if (v->kind != DT_ARG_TENSOR) {
        dt_args a;
        dt_py_args_init(&a);
        a.a[0] = DT_PY_ARG_T(w->cur);
        a.a[1] = *v;
        return dt_py_call_inplace("fill", &a);
    }
    dt_tensor *t = drop_ones(v->t, dt_tensor_meta(w->cur)->ndim);
    if (!t) return -1;
    dt_status s = dt_tensor_assign(w->cur, t);
    dt_tensor_unref(t);
    return s ? dt_py_raise_int(s) : 0;
}

/* x[mask] = number: nothing needs to be read. */
static int put_masked(walk *w, const dt_arg *v) {
    dt_tensor *mask = w->mask;
    int behind = dt_tensor_meta(w->cur)->ndim - w->mask_dim - dt_tensor_meta(mask)->ndim, r = -1;
    dt_tensor_ref(mask);
    for (int i = 0; mask && i < behind; i++) {
        dt_args a;
        dt_py_args_init(&a);
        a.a[0] = DT_PY_ARG_T(mask);
        a.a[1] = DT_PY_ARG_I(-1);
        dt_tensor *more = dt_py_call("unsqueeze", &a);
        dt_tensor_unref(mask);
        mask = more;
    }
    if (mask) {
        dt_args a;
        dt_py_args_init(&a);
        a.a[0] = DT_PY_ARG_T(w->cur);
        a.a[1] = DT_PY_ARG_T(mask);
        a.a[2] = *v;
        r = dt_py_call_inplace("masked_fill", &a);
        dt_tensor_unref(mask);
    }
    return r;
}

static int put_indexed(walk *w, dt_arg *v) {
    if (w->mask && (v->kind != DT_ARG_TENSOR || dt_tensor_meta(v->t)->ndim == 0)) return put_masked(w, v);
    if (settle_mask(w) < 0) return -1;
    dt_args a;
    dt_py_args_init(&a);
    a.a[0] = DT_PY_ARG_T(w->cur);
    a.a[1] = DT_PY_ARG_LIST(w->n_index, w->index);
    a.a[2] = *v;
    return dt_py_call_inplace("index_put", &a);
}

int dt_py_index_set(PyObject *self, PyObject *key, PyObject *value) {
    if (!value) {
        PyErr_SetString(PyExc_TypeError, "Tensor does not support deleting items");
        return -1;
    }
    walk w;
    dt_arg v = {0};
    dt_tensor *made = NULL;
    dt_py_site();
    int r = dt_py_to_value(value, &v);
    if (r == 0) { /* a list or an array, in x's dtype */
        made = make_beside(dt_py_tensor_of(self), value, (dt_dtype)dt_tensor_meta(dt_py_tensor_of(self))->dtype);
        v = DT_PY_ARG_T(made);
        r = made ? 1 : -1;
    }
    if (r > 0) {
        r = walk_key(&w, self, key);
        if (r == 0) r = w.mask || w.n_index ? put_indexed(&w, &v) : put_plain(&w, &v);
        walk_fini(&w);
    }
    if (made) dt_tensor_unref(made);
    return r < 0 ? -1 : 0;
}
