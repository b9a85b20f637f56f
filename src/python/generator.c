/* Generator: the state of a stream of random numbers, (seed, offset). See ops/random.h. */
#include "python/py.h"

#include <sys/random.h>
#include <time.h>

/* ---- seeds ---- */
static int seed_of(PyObject *o, uint64_t *out) {
    PyObject *k = PyNumber_Index(o);
    if (!k) return -1;
    *out = PyLong_AsUnsignedLongLongMask(k); /* as PyTorch: negative seeds wrap */
    Py_DECREF(k);
    return PyErr_Occurred() ? -1 : 0;
}
static uint64_t fresh_seed(void) {
    uint64_t v;
    if (getrandom(&v, sizeof v, 0) != sizeof v) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        v = (uint64_t)t.tv_nsec * 0x9E3779B97F4A7C15ull ^ (uint64_t)t.tv_sec;
    }
    return v >> 11; /* 53 bits: exact as a float too */
}
static void reseed(dt_generator *g, uint64_t seed) { g->state = (dt_gen_state){seed, 0}; }

/* State as a uint8 tensor of 16 bytes, as PyTorch's: seed, offset, little endian. */
static PyObject *state_get(dt_generator *g) {
    dt_hostbuf *b;
    dt_tensor *t;
    DT_PY_CHECK(dt_hostbuf_new(sizeof g->state, &b));
    memcpy(b->data, &g->state, sizeof g->state);
    dt_type type = {DT_uint8, 1, {sizeof g->state}};
    const dt_spec *spec;
    if (dt_py_spec_of_device(0, &spec) < 0) {
        dt_hostbuf_unref(b);
        return NULL;
    }
    DT_PY_CHECK(dt_tensor_from_host(b, &type, spec, &t));
    return dt_py_wrap(t);
}
static int state_set(dt_generator *g, PyObject *o) {
    const dt_meta *m = dt_py_is_tensor(o) ? dt_tensor_meta(dt_py_tensor_of(o)) : NULL;
    if (!m || m->dtype != DT_uint8 || m->numel != sizeof g->state) {
        PyErr_Format(PyExc_TypeError, "the state of a generator is a uint8 tensor of %zu elements, as get_state() gives it", sizeof g->state);
        return -1;
    }
    dt_future *f = dt_py_fetch(dt_py_tensor_of(o));
    if (!f) return -1;
    memcpy(&g->state, f->buf->data, sizeof g->state);
    dt_future_unref(f);
    return 0;
}

/* ---- the type ---- */
static PyObject *gen_wrap(dt_generator *g) {
    py_generator *o = PyObject_New(py_generator, &dt_py_generator_type);
    if (o) o->g = g;
    return (PyObject *)o;
}
static PyObject *gen_new(PyTypeObject *tp, PyObject *args, PyObject *kw) {
    static char *names[] = {"device", NULL};
    PyObject *device = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|O:Generator", names, &device)) return NULL;
    dt_generator *g = dt_generator_new();
    if (!g) return PyErr_NoMemory();
    reseed(g, 67280421310721ull); /* PyTorch's default seed */
    return gen_wrap(g);
}
static void gen_dealloc(PyObject *o) {
    dt_generator_unref(((py_generator *)o)->g);
    PyObject_Free(o);
}
static PyObject *gen_manual_seed(PyObject *o, PyObject *seed) {
    uint64_t v;
    if (seed_of(seed, &v) < 0) return NULL;
    reseed(((py_generator *)o)->g, v);
    return Py_NewRef(o);
}
static PyObject *gen_seed(PyObject *o, PyObject *none) {
    reseed(((py_generator *)o)->g, fresh_seed());
    return PyLong_FromUnsignedLongLong(((py_generator *)o)->g->state.seed);
}
static PyObject *gen_initial_seed(PyObject *o, PyObject *none) { return PyLong_FromUnsignedLongLong(((py_generator *)o)->g->state.seed); }
static PyObject *gen_get_state(PyObject *o, PyObject *none) { return state_get(((py_generator *)o)->g); }
static PyObject *gen_set_state(PyObject *o, PyObject *state) { return state_set(((py_generator *)o)->g, state) < 0 ? NULL : Py_NewRef(o); }
static PyObject *gen_device(PyObject *o, void *x) { return dt_py_device(0, false); }
static PyGetSetDef gen_getset[] = {{"device", gen_device, NULL, "cpu: a stream belongs to no device.", NULL}, {0}};
static PyMethodDef gen_methods[] = {
    {"manual_seed", gen_manual_seed, METH_O, "Start the stream of a seed; returns the generator."},
    {"seed", gen_seed, METH_NOARGS, "Start a stream of a random seed; returns the seed."},
    {"initial_seed", gen_initial_seed, METH_NOARGS, "The seed of the stream."},
    {"get_state", gen_get_state, METH_NOARGS, "The state as a uint8 tensor."},
    {"set_state", gen_set_state, METH_O, "Go on from a state of get_state()."},
    {0},
};
PyTypeObject dt_py_generator_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch.Generator",
    .tp_doc = "Generator(device='cpu'): a stream of random numbers. The numbers depend on the seed alone, never on where they are made.",
    .tp_basicsize = sizeof(py_generator),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = gen_new,
    .tp_dealloc = gen_dealloc,
    .tp_getset = gen_getset,
    .tp_methods = gen_methods,
};

/* ---- the default generator ---- */
static PyObject *manual_seed(PyObject *m, PyObject *seed) {
    uint64_t v;
    if (seed_of(seed, &v) < 0) return NULL;
    reseed(dt_generator_default(), v);
    return PyObject_GetAttrString(m, "default_generator");
}
static PyObject *seed_fn(PyObject *m, PyObject *none) {
    reseed(dt_generator_default(), fresh_seed());
    return PyLong_FromUnsignedLongLong(dt_generator_default()->state.seed);
}
static PyObject *initial_seed(PyObject *m, PyObject *none) { return PyLong_FromUnsignedLongLong(dt_generator_default()->state.seed); }
static PyObject *get_rng_state(PyObject *m, PyObject *none) { return state_get(dt_generator_default()); }
static PyObject *set_rng_state(PyObject *m, PyObject *state) {
    if (state_set(dt_generator_default(), state) < 0) return NULL;
    Py_RETURN_NONE;
}
/* The same as two numbers: no tensor, so that nobody has to wait for one (checkpointing takes and sets it in every block). */
static PyObject *rng_get(PyObject *m, PyObject *none) {
    dt_gen_state s = dt_generator_default()->state;
    return Py_BuildValue("(KK)", (unsigned long long)s.seed, (unsigned long long)s.offset);
}
static PyObject *rng_set(PyObject *m, PyObject *args) {
    unsigned long long seed, offset;
    if (!PyArg_ParseTuple(args, "KK:_rng_set", &seed, &offset)) return NULL;
    dt_generator_default()->state = (dt_gen_state){seed, offset};
    Py_RETURN_NONE;
}
static PyMethodDef functions[] = {
    {"_rng_get", rng_get, METH_NOARGS, NULL},
    {"_rng_set", rng_set, METH_VARARGS, NULL},
    {"manual_seed", manual_seed, METH_O, "Seed the default generator; returns it. The same seed gives the same numbers on every mesh."},
    {"seed", seed_fn, METH_NOARGS, "Seed the default generator randomly; returns the seed."},
    {"initial_seed", initial_seed, METH_NOARGS, "The default generator's seed."},
    {"get_rng_state", get_rng_state, METH_NOARGS, "The default generator's state as a uint8 tensor."},
    {"set_rng_state", set_rng_state, METH_O, "Go on from a state of get_rng_state()."},
    {0},
};

int dt_py_generator_init(PyObject *m) {
    if (PyType_Ready(&dt_py_generator_type) < 0 || PyModule_AddObjectRef(m, "Generator", (PyObject *)&dt_py_generator_type) < 0) return -1;
    dt_generator *g = dt_generator_default();
    PyObject *o = g ? gen_wrap(g) : PyErr_NoMemory(); /* keeps the process's own reference: never freed */
    if (!o || PyModule_AddObjectRef(m, "default_generator", o) < 0) return -1;
    return PyModule_AddFunctions(m, functions);
}
