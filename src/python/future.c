/* Waiting for values, and futures: x.item_async(), x.numpy_async(), x.tolist_async(), synchronize_async().
 *
 * A wait releases the GIL and looks at signals every 50 ms, so Ctrl-C works; one without a time limit helps (controller/help.c). A future is
 * awaited through an eventfd that the event loop watches: the completing thread only writes to it, so it never needs the GIL (which a busy
 * user thread may hold, or an interpreter that is going away may never give). One waker, with one descriptor, serves an event loop; futures share it. */
#include "python/py.h"

#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/arena.h"

/* ---- waiting ----------------------------------------------------------------------------------------------------------------------- */
/* 1 done, 0 timed out, -1 exception (a signal's). usec < 0: no limit. */
static int wait_for(dt_future *f, int64_t usec) {
    while (!dt_future_done(f)) {
        if (usec == 0) return 0;
        int64_t slice = usec < 0 || usec > 50000 ? 50000 : usec;
        bool done;
        Py_BEGIN_ALLOW_THREADS done = usec < 0 ? dt_engine_wait(f, slice) : dt_future_wait(f, slice);
        Py_END_ALLOW_THREADS if (done) break;
        if (PyErr_CheckSignals() < 0) return -1;
        if (usec > 0) usec -= slice;
    }
    return 1;
}

int dt_py_wait(dt_future *f) {
    if (wait_for(f, -1) < 0) return -1;
    dt_status s = dt_future_status(f);
    return s ? dt_py_raise_int(s) : 0;
}

dt_tensor *dt_py_given(dt_tensor *t) {
    dt_future *f = dt_credit_take();
    if (!f) return t;
    int r = dt_py_wait(f);
    dt_future_unref(f);
    if (r == 0) return t;
    dt_tensor_unref(t);
    return NULL;
}

dt_future *dt_py_fetch(dt_tensor *t) {
    dt_future *f;
    dt_py_site();
    DT_PY_CHECK(dt_tensor_fetch(t, &f));
    if (dt_py_wait(f) == 0) return f;
    dt_future_unref(f);
    return NULL;
}

int dt_py_read_one(dt_tensor *t, dt_dtype *type, char value[8]) {
    dt_future *f = dt_py_fetch(t);
    if (!f) return -1;
    *type = (dt_dtype)f->meta->dtype;
    memcpy(value, f->buf->data, dt_dtype_size(*type));
    dt_future_unref(f);
    return 0;
}

/* ---- a loop's waker ----------------------------------------------------------------------------------------------------------------- */
typedef struct waker {
    _Atomic int refs;
    int fd;
} waker;
typedef struct py_waker {
    PyObject_HEAD waker *w;
} py_waker;

static void waker_unref(waker *w) {
    if (atomic_fetch_sub(&w->refs, 1) != 1) return;
    close(w->fd);
    dt_free(w);
}
/* On the completing thread. */
static void waker_fire(void *ctx) {
    waker *w = ctx;
    uint64_t one = 1;
    ssize_t n = write(w->fd, &one, sizeof one); /* the counter being full means that a wake-up is pending */
    (void)n;
    waker_unref(w);
}
static PyObject *waker_new(PyTypeObject *tp, PyObject *args, PyObject *kw) {
    py_waker *o = (py_waker *)tp->tp_alloc(tp, 0);
    if (!o) return NULL;
    o->w = dt_malloc(sizeof *o->w);
    if (o->w) {
        atomic_init(&o->w->refs, 1);
        o->w->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (o->w->fd >= 0) return (PyObject *)o;
        PyErr_SetFromErrno(PyExc_OSError);
        dt_free(o->w);
        o->w = NULL;
    } else {
        PyErr_NoMemory();
    }
    Py_DECREF(o);
    return NULL;
}
static void waker_dealloc(PyObject *self) {
    if (((py_waker *)self)->w) waker_unref(((py_waker *)self)->w);
    Py_TYPE(self)->tp_free(self);
}
static PyObject *waker_fileno(PyObject *self, PyObject *none) { return PyLong_FromLong(((py_waker *)self)->w->fd); }
static PyObject *waker_clear(PyObject *self, PyObject *none) {
    uint64_t n;
    ssize_t r = read(((py_waker *)self)->w->fd, &n, sizeof n);
    (void)r;
    Py_RETURN_NONE;
}
static PyMethodDef waker_methods[] = {
    {"fileno", waker_fileno, METH_NOARGS, NULL}, {"clear", waker_clear, METH_NOARGS, "Take note of all wake-ups so far."}, {0}};
static PyTypeObject waker_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch._C._Waker",
    .tp_basicsize = sizeof(py_waker),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = waker_new,
    .tp_dealloc = waker_dealloc,
    .tp_methods = waker_methods,
};

/* ---- futures ------------------------------------------------------------------------------------------------------------------------ */
typedef enum { F_SYNC, F_ITEM, F_NUMPY, F_LIST, F_BYTES } future_kind;
typedef struct py_future {
    PyObject_HEAD dt_future *f;
    future_kind kind;
    waker *registered; /* NULL until awaited */
    PyObject *result;  /* once got */
} py_future;
static PyTypeObject future_type;

static PyObject *future_make(dt_future *f, future_kind kind) {
    py_future *o = PyObject_New(py_future, &future_type);
    if (!o) {
        dt_future_unref(f);
        return NULL;
    }
    o->f = f;
    o->kind = kind;
    o->registered = NULL;
    o->result = NULL;
    return (PyObject *)o;
}
static void future_dealloc(PyObject *self) {
    py_future *o = (py_future *)self;
    dt_future_unref(o->f);
    if (o->registered) waker_unref(o->registered);
    Py_XDECREF(o->result);
    PyObject_Free(self);
}

static PyObject *future_result(py_future *o) {
    if (!o->result) switch (o->kind) {
        case F_SYNC: o->result = Py_NewRef(Py_None); break;
        case F_ITEM: o->result = dt_py_item_of((dt_dtype)o->f->meta->dtype, o->f->buf->data); break;
        case F_NUMPY: o->result = dt_py_numpy_of(o->f); break;
        case F_LIST: o->result = dt_py_list_of(o->f); break;
        case F_BYTES: o->result = dt_py_bytes_of(o->f); break;
        }
    return Py_XNewRef(o->result);
}
static PyObject *future_get(PyObject *self, PyObject *none) {
    py_future *o = (py_future *)self;
    return dt_py_wait(o->f) < 0 ? NULL : future_result(o);
}
static PyObject *future_wait(PyObject *self, PyObject *args, PyObject *kw) {
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|O:wait", names, &timeout)) return NULL;
    double s = timeout == Py_None ? -1 : PyFloat_AsDouble(timeout);
    if (s == -1 && PyErr_Occurred()) return NULL;
    if (timeout != Py_None && !(s >= 0)) return PyErr_Format(PyExc_ValueError, "wait(): timeout must be None or at least 0 seconds, got %R", timeout);
    int r = wait_for(((py_future *)self)->f, timeout == Py_None ? -1 : s > 1e12 ? (int64_t)1e18 : (int64_t)(s * 1e6));
    return r < 0 ? NULL : PyBool_FromLong(r);
}
static PyObject *future_done(PyObject *self, PyObject *none) { return PyBool_FromLong(dt_future_done(((py_future *)self)->f)); }
static PyObject *future_notify(PyObject *self, PyObject *arg) {
    py_future *o = (py_future *)self;
    if (Py_TYPE(arg) != &waker_type) return PyErr_Format(PyExc_TypeError, "_notify(): expected a _Waker");
    waker *w = ((py_waker *)arg)->w;
    if (o->registered == w) Py_RETURN_NONE;
    if (o->registered) return PyErr_Format(PyExc_RuntimeError, "a future can be awaited in one event loop only");
    o->registered = w;
    atomic_fetch_add(&w->refs, 2); /* ours and the callback's */
    dt_future_on_done(o->f, waker_fire, w);
    Py_RETURN_NONE;
}
static PyObject *future_await(PyObject *self) {
    static PyObject *fn;
    PyObject *f = dt_py_lazy(&fn, "dtorch.futures", "_await");
    return f ? PyObject_CallOneArg(f, self) : NULL;
}
static PyMethodDef future_methods[] = {
    {"get", future_get, METH_NOARGS, "The value; waits for it, and raises the error of a call that it depends on."},
    {"wait", (PyCFunction)(void (*)(void))future_wait, METH_VARARGS | METH_KEYWORDS,
     "wait(timeout=None): wait at most timeout seconds; is it done (or failed)?"},
    {"done", future_done, METH_NOARGS, "Is the value there (or known to have failed)? Never waits."},
    {"_notify", future_notify, METH_O, NULL},
    {0},
};
static PyAsyncMethods future_async = {.am_await = future_await};
static PyTypeObject future_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch.futures.Future",
    .tp_doc = "A value that will be there: get(), wait(timeout), done(), or `await` it.",
    .tp_basicsize = sizeof(py_future),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = future_dealloc,
    .tp_methods = future_methods,
    .tp_as_async = &future_async,
};

static PyObject *fetch_async(PyObject *self, future_kind kind) {
    dt_future *f;
    dt_py_site();
    DT_PY_CHECK(dt_tensor_fetch(dt_py_tensor_of(self), &f));
    dt_engine_flush();
    return future_make(f, kind);
}
PyObject *dt_py_future_done(dt_future *f) { return future_make(f, F_SYNC); }
PyObject *dt_py_future_item(PyObject *self, PyObject *none) {
    const dt_meta *m = dt_tensor_meta(dt_py_tensor_of(self));
    if (m->numel != 1) return PyErr_Format(PyExc_RuntimeError, "a Tensor with %lld elements cannot be converted to Scalar", (long long)m->numel);
    return fetch_async(self, F_ITEM);
}
PyObject *dt_py_future_numpy(PyObject *self, PyObject *none) {
    if (dt_tensor_meta(dt_py_tensor_of(self))->dtype == DT_bfloat16) return PyErr_Format(PyExc_TypeError, "Got unsupported ScalarType BFloat16");
    return fetch_async(self, F_NUMPY);
}
PyObject *dt_py_future_tolist(PyObject *self, PyObject *none) { return fetch_async(self, F_LIST); }
PyObject *dt_py_future_bytes(PyObject *self, PyObject *none) { return fetch_async(self, F_BYTES); }

/* _rows_async(t, lo, hi): the bytes of indices lo … hi - 1 of the first dimension. */
static PyObject *rows_async(PyObject *m, PyObject *args) {
    PyObject *t;
    long long lo, hi;
    dt_future *f;
    if (!PyArg_ParseTuple(args, "O!LL:_rows_async", dt_py_tensor_type, &t, &lo, &hi)) return NULL;
    dt_py_site();
    DT_PY_CHECK(dt_tensor_fetch_rows(dt_py_tensor_of(t), lo, hi, &f));
    dt_engine_flush();
    return future_make(f, F_BYTES);
}

static PyObject *synchronize(PyObject *m, PyObject *none) {
    dt_future *f;
    DT_PY_CHECK(dt_sync_async(&f));
    int r = dt_py_wait(f);
    dt_future_unref(f);
    if (r < 0) return NULL;
    Py_RETURN_NONE;
}
static PyObject *synchronize_async(PyObject *m, PyObject *none) {
    dt_future *f;
    DT_PY_CHECK(dt_sync_async(&f));
    dt_engine_flush();
    return future_make(f, F_SYNC);
}
static PyMethodDef functions[] = {
    {"synchronize", synchronize, METH_NOARGS, "Wait until all work submitted so far is done."},
    {"_rows_async", rows_async, METH_VARARGS, NULL},
    {"synchronize_async", synchronize_async, METH_NOARGS, "A future that is done when all work submitted so far is."},
    {0},
};

int dt_py_future_init(PyObject *m) {
    if (PyType_Ready(&waker_type) < 0 || PyType_Ready(&future_type) < 0) return -1;
    if (PyModule_AddObjectRef(m, "_Waker", (PyObject *)&waker_type) < 0 || PyModule_AddObjectRef(m, "Future", (PyObject *)&future_type) < 0) return -1;
    return PyModule_AddFunctions(m, functions);
}
