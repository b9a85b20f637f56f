/* DLPack: exchanging arrays with other libraries. Export hands out the fetched host buffer (nobody else writes it); import copies, because
 * the exporter may write its memory while our calls are in flight. The structs are the protocol's (version 0.x, "dltensor" capsules). */
#include "python/py.h"

#include "base/arena.h"

typedef struct {
    int32_t device_type, device_id;
} dl_device;
typedef struct {
    uint8_t code, bits; /* 0 int, 1 uint, 2 float, 4 bfloat, 6 bool */
    uint16_t lanes;
} dl_dtype;
typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;
typedef struct dl_managed {
    dl_tensor t;
    void *ctx;
    void (*deleter)(struct dl_managed *);
} dl_managed;
typedef struct { /* one allocation a capsule */
    dl_managed m;
    dt_hostbuf *b;
    int64_t shape[DT_MAX_DIM], stride[DT_MAX_DIM];
} exported;

static const dl_dtype dl_dtypes[DT_DTYPE_COUNT] = {
    [DT_bool] = {6, 8, 1},   [DT_uint8] = {1, 8, 1},    [DT_int8] = {0, 8, 1},      [DT_int16] = {0, 16, 1},   [DT_int32] = {0, 32, 1},
    [DT_int64] = {0, 64, 1}, [DT_float16] = {2, 16, 1}, [DT_bfloat16] = {4, 16, 1}, [DT_float32] = {2, 32, 1}, [DT_float64] = {2, 64, 1},
};

static void delete_exported(dl_managed *m) {
    exported *e = m->ctx;
    dt_hostbuf_unref(e->b);
    dt_free(e);
}
static void capsule_free(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return; /* consumed: renamed by the consumer */
    dl_managed *m = PyCapsule_GetPointer(capsule, "dltensor");
    if (m && m->deleter) m->deleter(m);
}

static PyObject *export(dt_future *f) {
    const dt_meta *meta = f->meta;
    exported *e = dt_calloc(1, sizeof *e);
    if (!e) return PyErr_NoMemory();
    int64_t stride = 1;
    for (int i = meta->ndim - 1; i >= 0; i--) {
        e->shape[i] = meta->shape[i];
        e->stride[i] = stride;
        stride *= meta->shape[i];
    }
    e->b = dt_hostbuf_ref(f->buf);
    e->m = (dl_managed){.t = {f->buf->data, {1, 0}, meta->ndim, dl_dtypes[meta->dtype], e->shape, e->stride, 0}, .ctx = e, .deleter = delete_exported};
    PyObject *c = PyCapsule_New(&e->m, "dltensor", capsule_free);
    if (!c) delete_exported(&e->m);
    return c;
}

PyObject *dt_py_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    dt_tensor *t = dt_py_tensor_of(self);
    if (dt_tensor_requires_grad(t)) return PyErr_Format(PyExc_BufferError, "Can't export tensors that require gradient, use tensor.detach()");
    dt_future *f = dt_py_fetch(t);
    if (!f) return NULL;
    PyObject *c = export(f);
    dt_future_unref(f);
    return c;
}
PyObject *dt_py_dlpack_device(PyObject *self, PyObject *none) { return Py_BuildValue("(ii)", 1, 0); }

/* ---- import ---- */
static void copy(char *dst, const char *src, const dl_tensor *t, int dim, size_t size, size_t inner) {
    if (dim == t->ndim) {
        memcpy(dst, src, size);
        return;
    }
    int64_t n = t->shape[dim];
    size_t below = n ? inner / (size_t)n : 0;
    for (int64_t i = 0; i < n; i++) copy(dst + (size_t)i * below, src + i * t->strides[dim] * (int64_t)size, t, dim + 1, size, below);
}

static dt_tensor *import(const dl_tensor *t) {
    dt_type type = {.dtype = DT_DTYPE_NONE, .ndim = t->ndim};
    for (int i = 0; i < DT_DTYPE_COUNT; i++)
        if (dl_dtypes[i].code == t->dtype.code && dl_dtypes[i].bits == t->dtype.bits && t->dtype.lanes == 1) type.dtype = (dt_dtype)i;
    if (type.dtype == DT_DTYPE_NONE || t->ndim < 0 || t->ndim > DT_MAX_DIM || t->device.device_type != 1) {
        PyErr_Format(PyExc_BufferError, "from_dlpack(): type code %d of %d bits with %d dimensions on device type %d is not supported (CPU only)",
                     t->dtype.code, t->dtype.bits, t->ndim, t->device.device_type);
        return NULL;
    }
    for (int i = 0; i < t->ndim; i++) type.shape[i] = t->shape[i];
    size_t size = dt_dtype_size(type.dtype), bytes = (size_t)dt_type_numel(&type) * size;
    dt_hostbuf *b;
    dt_tensor *out;
    DT_PY_CHECK(dt_hostbuf_new(bytes, &b));
    const char *src = (const char *)t->data + t->byte_offset;
    if (bytes && t->strides)
        copy(b->data, src, t, 0, size, bytes);
    else if (bytes)
        memcpy(b->data, src, bytes);
    DT_PY_CHECK(dt_tensor_from_host(b, &type, NULL, &out));
    return dt_py_given(out);
}

static PyObject *from_dlpack(PyObject *m, PyObject *o) {
    PyObject *c = PyCapsule_CheckExact(o) ? Py_NewRef(o) : PyObject_CallMethod(o, "__dlpack__", NULL);
    if (!c) return NULL;
    dt_tensor *t = NULL;
    dl_managed *d = PyCapsule_IsValid(c, "dltensor") ? PyCapsule_GetPointer(c, "dltensor") : NULL;
    if (!d) {
        PyErr_SetString(PyExc_BufferError, "from_dlpack(): expected an object with __dlpack__, or an unused capsule of it");
    } else {
        dt_py_site();
        t = import(&d->t);
        if (t) {
            PyCapsule_SetName(c, "used_dltensor");
            if (d->deleter) d->deleter(d);
        }
    }
    Py_DECREF(c);
    return dt_py_wrap(t);
}

static PyMethodDef functions[] = {
    {"from_dlpack", from_dlpack, METH_O, "A tensor with a copy of the data of an object that has __dlpack__."},
    {0},
};
int dt_py_dlpack_init(PyObject *m) { return PyModule_AddFunctions(m, functions); }
