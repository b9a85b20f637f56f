/* Simulation and cost model: the switches behind dtorch/_simulate.py, which reads hardware files and prints reports. */
#include "plan/sim.h"

#include <math.h>

#include "controller/controller.h"
#include "plan/nodes.h"
#include "python/py.h"

static double number(PyObject *d, const char *key, double otherwise, bool *bad) {
    PyObject *v = PyDict_GetItemString(d, key);
    if (!v || v == Py_None) return otherwise;
    double x = PyFloat_AsDouble(v);
    if (PyErr_Occurred() || !(x >= 0) || isinf(x)) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "hardware: %s is %R; a finite number of at least 0 is expected", key, v);
        *bad = true;
    }
    return x;
}

static int64_t whole(PyObject *d, const char *key, double otherwise, bool *bad) {
    double x = number(d, key, otherwise, bad);
    return x < 0x1p62 ? (int64_t)x : INT64_C(1) << 62;
}

static PyObject *table(PyObject *d, const char *key, bool *bad) { /* borrowed; NULL: not given */
    PyObject *v = PyDict_GetItemString(d, key);
    if (!v || v == Py_None || PyDict_Check(v)) return v == Py_None ? NULL : v;
    if (!*bad) PyErr_Format(PyExc_ValueError, "hardware: %s must be a table, not %R", key, v);
    *bad = true;
    return NULL;
}

static bool is_listed(const char *word, const char *list) { /* separated by blanks */
    size_t n = strlen(word);
    for (const char *p = list; n && (p = strstr(p, word)); p++)
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || !p[n])) return !strchr(word, ' ');
    return false;
}

/* Refuses what nobody would read: a misspelt field would leave its default in force. where: "", or such as "links[0]." */
static bool only_known(PyObject *d, const char *where, const char *known) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(d, &at, &key, &value);) {
        const char *k = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : NULL;
        if (k && is_listed(k, known)) continue;
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "hardware: unknown field %s%S; there are %s", where, key, known);
        return false;
    }
    return true;
}

static int levels(PyObject *d, dt_hardware *h, bool *bad) {
    PyObject *l = PyDict_GetItemString(d, "links");
    if (!l || !PyList_Check(l) || !PyList_GET_SIZE(l) || PyList_GET_SIZE(l) > DT_LINK_LEVELS) {
        PyErr_Format(PyExc_ValueError, "hardware: links must be a list of 1 to %d levels, from the inside out", DT_LINK_LEVELS);
        return -1;
    }
    h->n_levels = (int)PyList_GET_SIZE(l);
    for (int i = 0; i < h->n_levels; i++) {
        PyObject *x = PyList_GET_ITEM(l, i);
        if (!PyDict_Check(x)) {
            PyErr_Format(PyExc_ValueError, "hardware: links[%d] must be a table", i);
            return -1;
        }
        char where[24];
        snprintf(where, sizeof where, "links[%d].", i);
        if (!only_known(x, where, "devices bandwidth latency")) return -1;
        h->level[i].devices = whole(x, "devices", 1 << 16, bad);
        h->level[i].bandwidth = number(x, "bandwidth", 0, bad);
        h->level[i].latency = number(x, "latency", 0, bad);
        if (!*bad && (h->level[i].devices < 1 || h->level[i].bandwidth <= 0)) {
            PyErr_Format(PyExc_ValueError, "hardware: links[%d] needs devices of at least 1 and a bandwidth above 0", i);
            return -1;
        }
    }
    return 0;
}

static int hardware(PyObject *d, dt_hardware *h) {
    static const char *const kinds[] = {"matmul", "conv", "winograd", "recurrent", "attention", "vector"};
    bool bad = false;
    *h = (dt_hardware){.overlap = 1};
    PyObject *name = PyDict_GetItemString(d, "name"), *flops = table(d, "flops", &bad), *share = table(d, "efficiency", &bad),
             *half = table(d, "half_flops", &bad);
    if (!only_known(
            d, "", "name flops vector_flops efficiency half_flops memory_bandwidth cache_bytes cache_bandwidth kernel_overhead memory overlap links sources") ||
        (share && !only_known(share, "efficiency.", "matmul conv winograd recurrent attention vector")) ||
        (half && !only_known(half, "half_flops.", "matmul conv winograd recurrent attention vector")))
        return -1;
    char dtypes[512] = "";
    for (int t = 0; t < DT_DTYPE_COUNT; t++)
        snprintf(dtypes + strlen(dtypes), sizeof dtypes - strlen(dtypes), "%s%s", t ? " " : "", dt_dtype_name((dt_dtype)t));
    if (flops && !only_known(flops, "flops.", dtypes)) return -1;
    if (name && PyUnicode_Check(name) && PyUnicode_AsUTF8(name)) snprintf(h->name, sizeof h->name, "%s", PyUnicode_AsUTF8(name));
    for (int t = 0; flops && t < DT_DTYPE_COUNT; t++) h->flops[t] = number(flops, dt_dtype_name((dt_dtype)t), 0, &bad);
    for (int k = 0; k < DT_WORK_KINDS; k++) {
        int as = k == DT_WORK_WINOGRAD ? DT_WORK_CONV : k == DT_WORK_RECURRENT ? DT_WORK_MATMUL : -1; /* if nothing is said of it */
        h->share[k] = share ? number(share, kinds[k], as >= 0 ? h->share[as] : 1, &bad) : 1;
        h->half[k] = half ? number(half, kinds[k], as >= 0 ? h->half[as] : 0, &bad) : 0;
        if (!bad && (h->share[k] <= 0 || h->share[k] > 8)) {
            PyErr_Format(PyExc_ValueError,
                         "hardware: efficiency.%s must be above 0 and at most 8 (above 1 where a method does less than is counted, as Winograd's)", kinds[k]);
            return -1;
        }
    }
    h->vector = number(d, "vector_flops", 0, &bad);
    h->bandwidth = number(d, "memory_bandwidth", 0, &bad);
    h->cache_bytes = number(d, "cache_bytes", 0, &bad);
    h->cache_bandwidth = number(d, "cache_bandwidth", 0, &bad);
    h->overhead = number(d, "kernel_overhead", 0, &bad);
    h->memory = whole(d, "memory", 0, &bad);
    h->overlap = number(d, "overlap", 1, &bad);
    if (!bad && h->overlap > 1) {
        PyErr_Format(PyExc_ValueError, "hardware: overlap is %R; true, false or a number between 0 and 1 is expected", PyDict_GetItemString(d, "overlap"));
        return -1;
    }
    if (!bad && levels(d, h, &bad) < 0) return -1;
    if (bad) return -1;
    if (h->flops[DT_float32] > 0 && h->vector > 0 && h->bandwidth > 0 && (h->cache_bytes <= 0 || h->cache_bandwidth > 0)) return 0;
    PyErr_SetString(PyExc_ValueError, "hardware: flops.float32, vector_flops, memory_bandwidth (and cache_bandwidth with cache_bytes) must be above 0");
    return -1;
}

/* _sim_start(hardware: dict, devices: int). The caller has synchronised. */
static PyObject *sim_start(PyObject *m, PyObject *args) {
    PyObject *d;
    int n;
    dt_hardware h;
    if (!PyArg_ParseTuple(args, "O!i:_sim_start", &PyDict_Type, &d, &n) || hardware(d, &h) < 0) return NULL;
    DT_PY_CHECK(dt_engine_sim_start(&h, n));
    Py_RETURN_NONE;
}

static PyObject *sim_stop(PyObject *m, PyObject *none) {
    dt_engine_sim_stop();
    Py_RETURN_NONE;
}

static PyObject *sim_on(PyObject *m, PyObject *none) { return PyBool_FromLong(atomic_load(&dt_sim_on)); }

/* The future's buffer, once it is done, holds what devices of other nodes say of their memory. */
static dt_future *ask_memory(int n) {
    dt_hostbuf *b;
    dt_future *f;
    dt_status s = dt_hostbuf_new(sizeof(dt_memory_stats) * (size_t)n, &b);
    if (!s) {
        memset(b->data, 0, b->bytes);
        s = dt_future_new(b, NULL, &f);
    }
    if (s) {
        dt_py_raise(s);
        return NULL;
    }
    dt_future_ref(f); /* an interrupted wait leaves the answers under way */
    dt_engine_sim_memory(b->data, n, f);
    int r = dt_py_wait(f);
    dt_future_unref(f);
    if (r == 0) return f;
    dt_future_unref(f);
    return NULL;
}

/* _sim_read(memory: bool): (now, seconds spent simulating, runs, controller's processor time, rows a device). The caller has synchronised. memory: that of
 * devices of other nodes too, which are asked. */
static PyObject *sim_read(PyObject *m, PyObject *memory) {
    dt_sim_totals t;
    dt_sim_totals_get(&t);
    int n = dt_sim_devices(), all = PyObject_IsTrue(memory);
    dt_future *f = NULL;
    if (all < 0 || (all && dt_nodes > 1 && !(f = ask_memory(n)))) return NULL;
    PyObject *rows = PyList_New(n);
    for (int i = 0; rows && i < n; i++) {
        dt_sim_device s;
        dt_memory_stats q;
        dt_engine_sim_get(i, &s, &q);
        if (f && !dt_device_here(dt_device_make(DT_SIM, (uint32_t)i))) q = ((dt_memory_stats *)f->buf->data)[i];
        PyObject *r = Py_BuildValue("(dddddd(dddd)KKLLLL)", s.free_at, s.busy, s.comm, s.exposed, s.flops, s.ideal, s.bytes[0], s.bytes[1], s.bytes[2],
                                    s.bytes[3], (unsigned long long)s.kernels, (unsigned long long)s.transfers, (long long)q.allocated,
                                    (long long)q.allocated_peak, (long long)q.reserved_peak, (long long)q.n_oom);
        if (r)
            PyList_SET_ITEM(rows, i, r);
        else
            Py_CLEAR(rows);
    }
    if (f) dt_future_unref(f);
    if (!rows) return NULL;
    return Py_BuildValue("(ddKdN)", t.now, t.seconds, (unsigned long long)t.runs, dt_engine_cpu_seconds(), rows);
}

/* _cost_hardware(hardware | None): what order.c and other choices reckon with outside of simulations. */
static PyObject *cost_hardware(PyObject *m, PyObject *d) {
    dt_hardware h;
    if (d == Py_None) {
        dt_hardware_set(NULL);
        Py_RETURN_NONE;
    }
    if (!PyDict_Check(d)) return PyErr_Format(PyExc_TypeError, "_cost_hardware(): expected a dict or None");
    if (hardware(d, &h) < 0) return NULL;
    dt_hardware_set(&h);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_sim_start", sim_start, METH_VARARGS, NULL}, {"_sim_stop", sim_stop, METH_NOARGS, NULL},      {"_sim_on", sim_on, METH_NOARGS, NULL},
    {"_sim_read", sim_read, METH_O, NULL},         {"_cost_hardware", cost_hardware, METH_O, NULL}, {0},
};

int dt_py_sim_init(PyObject *m) { return PyModule_AddFunctions(m, functions); }
