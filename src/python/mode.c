/* Modes and services of the whole program: grad mode, default dtype and placement, policy, threads, statistics. The context managers that
 * people use are in python/dtorch/_modes.py; these are the switches. */
#include "ops/attention.h"
#include "python/py.h"

#include "base/arena.h"
#include "comm/net.h"

#include "plan/nodes.h"
#include "plan/sim.h"
#include "plan/trace.h"

/* ---- where factories put their results ---- */
enum { SPEC_DEPTH = 16 };
static _Thread_local const dt_spec *spec_stack[SPEC_DEPTH];
static _Thread_local int spec_depth;

int dt_py_spec_push(const dt_spec *spec) {
    if (spec_depth == SPEC_DEPTH) {
        PyErr_Format(PyExc_RuntimeError, "more than %d nested 'with mesh' or 'with device' blocks", SPEC_DEPTH);
        return -1;
    }
    spec_stack[spec_depth++] = dt_mode_spec();
    dt_mode_spec_set(spec);
    return 0;
}
void dt_py_spec_pop(void) {
    if (spec_depth) dt_mode_spec_set(spec_stack[--spec_depth]);
}
static PyObject *default_device(PyObject *m, PyObject *none) {
    const dt_spec *s = dt_mode_spec();
    dt_device d = s ? s->mesh->dev[0] : dt_default_device;
    return dt_py_device(d, d != dt_default_device);
}
static PyObject *default_mesh(PyObject *m, PyObject *none) {
    const dt_spec *s = dt_mode_spec();
    if (!s || !s->mesh->ndim) Py_RETURN_NONE;
    return dt_py_mesh(s->mesh);
}
static PyObject *set_default_device(PyObject *m, PyObject *o) {
    const dt_spec *spec = NULL;
    if (dt_py_is_mesh(o)) {
        if (dt_py_spec(o, NULL, 0, &spec) < 0) return NULL;
    } else if (o != Py_None) {
        dt_device d;
        int r = dt_py_device_parse(o, &d);
        if (r == 0) return PyErr_Format(PyExc_TypeError, "set_default_device(): expected a device, a DeviceMesh or None, not %s", dt_py_type_name(o));
        if (r < 0 || dt_py_spec_of_device(d, &spec) < 0) return NULL;
    }
    dt_mode_spec_set(spec);
    Py_RETURN_NONE;
}

/* ---- switches ---- */
static int flag(PyObject *o, const char *fn) {
    if (PyBool_Check(o)) return o == Py_True;
    PyErr_Format(PyExc_TypeError, "%s(): argument must be bool, not %s", fn, dt_py_type_name(o));
    return -1;
}
static PyObject *is_grad_enabled(PyObject *m, PyObject *none) { return PyBool_FromLong(dt_mode_grad()); }
static PyObject *grad_set(PyObject *m, PyObject *o) {
    int on = flag(o, "set_grad_enabled");
    return on < 0 ? NULL : PyBool_FromLong(dt_mode_grad_set(on));
}
static PyObject *is_inference(PyObject *m, PyObject *none) { return PyBool_FromLong(dt_mode_inference()); }
static PyObject *inference_set(PyObject *m, PyObject *o) {
    int on = flag(o, "inference_mode");
    return on < 0 ? NULL : PyBool_FromLong(dt_mode_inference_set(on));
}
static PyObject *recipe_set(PyObject *m, PyObject *o) {
    int on = flag(o, "_recipe_set");
    return on < 0 ? NULL : PyBool_FromLong(dt_mode_recipe_set(on));
}
static PyObject *get_default_dtype(PyObject *m, PyObject *none) { return dt_py_dtype(dt_default_dtype()); }
static PyObject *set_default_dtype(PyObject *m, PyObject *o) {
    dt_dtype t;
    if (Py_TYPE(o) != &dt_py_dtype_type || !dt_py_dtype_parse(o, &t) || !dt_dtype_is_float(t))
        return PyErr_Format(PyExc_TypeError, "set_default_dtype(): only floating-point dtypes are legal, got %R", o);
    dt_default_dtype_set(t);
    Py_RETURN_NONE;
}
static const char *const policies[] = {"auto", "warn", "error"};
static PyObject *policy_get(PyObject *m, PyObject *none) { return PyUnicode_FromString(policies[dt_mode_policy()]); }
static PyObject *policy_set(PyObject *m, PyObject *o) {
    const char *s = PyUnicode_Check(o) ? PyUnicode_AsUTF8(o) : NULL;
    for (int i = 0; s && i < 3; i++)
        if (!strcmp(s, policies[i])) {
            dt_mode_policy_set((dt_policy)i);
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "redistribute_policy(): %R is not legal: 'auto', 'warn' and 'error' are", o);
}
static int device_type(PyObject *o, dt_device_type *out) {
    const char *s = PyUnicode_Check(o) ? PyUnicode_AsUTF8(o) : NULL;
    for (int i = 0; s && i < DT_DEVICE_TYPES; i++)
        if (!strcmp(s, dt_device_type_name((dt_device_type)i))) {
            *out = i != DT_SIM && atomic_load(&dt_sim_on) ? DT_SIM : (dt_device_type)i; /* in a simulation every device is simulated */
            return 0;
        }
    if (!PyErr_Occurred()) PyErr_Format(PyExc_RuntimeError, "autocast: %R is no kind of device: 'cpu' and 'cuda' are", o);
    return -1;
}
static PyObject *autocast_get(PyObject *m, PyObject *o) { /* the lower dtype; None: off */
    dt_device_type t;
    if (device_type(o, &t) < 0) return NULL;
    int d = dt_mode_autocast(t);
    if (d == DT_DTYPE_NONE) Py_RETURN_NONE;
    return dt_py_dtype((dt_dtype)d);
}
static PyObject *autocast_on(PyObject *m, PyObject *none) {
    bool on = dt_mode_autocast_hold();
    dt_mode_autocast_resume(on);
    return PyBool_FromLong(on);
}
static PyObject *autocast_set(PyObject *m, PyObject *args) {
    PyObject *o, *dtype;
    dt_device_type t;
    dt_dtype d = DT_DTYPE_NONE;
    if (!PyArg_ParseTuple(args, "OO:_autocast_set", &o, &dtype) || device_type(o, &t) < 0) return NULL;
    if (dtype != Py_None && (!dt_py_dtype_parse(dtype, &d) || !dt_dtype_is_float(d)))
        return PyErr_Format(PyExc_TypeError, "autocast: dtype must be a floating-point dtype, got %R", dtype);
    dt_mode_autocast_set(t, (int)d);
    Py_RETURN_NONE;
}
static PyObject *autocast_cache(PyObject *m, PyObject *none) { return PyBool_FromLong(dt_mode_autocast_cache()); }
static PyObject *autocast_cache_set(PyObject *m, PyObject *o) {
    int on = flag(o, "set_autocast_cache_enabled");
    if (on < 0) return NULL;
    dt_mode_autocast_cache_set(on);
    Py_RETURN_NONE;
}
static PyObject *autocast_forget(PyObject *m, PyObject *none) {
    dt_autocast_forget();
    Py_RETURN_NONE;
}
/* _context_set(mode, load_balance) -> the previous pair */
static PyObject *context_set(PyObject *m, PyObject *args) {
    static const char *const modes[] = {"auto", "ring", "ulysses", "gather"};
    const char *mode;
    int balance;
    if (!PyArg_ParseTuple(args, "sp", &mode, &balance)) return NULL;
    for (int i = 0; i < 4; i++)
        if (!strcmp(mode, modes[i])) {
            dt_context_state was = dt_context_set((dt_context_state){(uint8_t)i, !balance});
            return Py_BuildValue("sO", modes[was.mode], was.unbalanced ? Py_False : Py_True);
        }
    return PyErr_Format(PyExc_ValueError, "context_parallel(): mode '%s' is not legal: 'auto', 'ring', 'ulysses' and 'gather' are", mode);
}
static PyObject *set_num_threads(PyObject *m, PyObject *o) {
    long n = PyLong_AsLong(o);
    if (n == -1 && PyErr_Occurred()) return NULL;
    if (n < 1 || n > 4096) return PyErr_Format(PyExc_RuntimeError, "set_num_threads expects a positive integer, got %ld", n);
    dt_engine_threads_set((int)n);
    Py_RETURN_NONE;
}
static PyObject *get_num_threads(PyObject *m, PyObject *none) { return PyLong_FromLong(dt_engine_threads()); }

/* ---- types ---- */
static int two_dtypes(PyObject *args, dt_dtype *a, dt_dtype *b) {
    PyObject *x, *y;
    if (!PyArg_ParseTuple(args, "OO", &x, &y)) return -1;
    if (dt_py_dtype_parse(x, a) && dt_py_dtype_parse(y, b)) return 0;
    PyErr_Format(PyExc_TypeError, "expected two dtypes, got %s and %s", dt_py_type_name(x), dt_py_type_name(y));
    return -1;
}
static PyObject *promote_types(PyObject *m, PyObject *args) {
    dt_dtype a, b;
    return two_dtypes(args, &a, &b) < 0 ? NULL : dt_py_dtype(dt_dtype_promote(a, b));
}
static PyObject *can_cast(PyObject *m, PyObject *args) {
    dt_dtype a, b;
    if (two_dtypes(args, &a, &b) < 0) return NULL;
    bool no = dt_dtype_categories[a] > dt_dtype_categories[b] || (dt_dtype_is_int(a) && a != DT_uint8 && b == DT_uint8);
    return PyBool_FromLong(!no);
}
static dt_dtype category_of(PyObject *o, int *priority) {
    *priority = 0;
    if (dt_py_is_tensor(o)) {
        const dt_meta *t = dt_tensor_meta(dt_py_tensor_of(o));
        *priority = t->ndim ? 2 : 1;
        return (dt_dtype)t->dtype;
    }
    if (PyFloat_Check(o)) return dt_default_dtype();
    if (PyBool_Check(o)) return DT_bool;
    return PyLong_Check(o) ? DT_int64 : DT_DTYPE_NONE;
}
/* The type of an operation on two operands: a higher priority wins unless the other's category is higher. */
static PyObject *result_type(PyObject *m, PyObject *args) {
    PyObject *x, *y;
    int p, q;
    if (!PyArg_ParseTuple(args, "OO:result_type", &x, &y)) return NULL;
    dt_dtype a = category_of(x, &p), b = category_of(y, &q);
    if (a == DT_DTYPE_NONE || b == DT_DTYPE_NONE) return PyErr_Format(PyExc_TypeError, "result_type(): expected tensors or numbers");
    if (p == q) return dt_py_dtype(dt_dtype_promote(a, b));
    dt_dtype high = p > q ? a : b, low = p > q ? b : a;
    bool high_wins = dt_dtype_categories[high] >= dt_dtype_categories[low];
    return dt_py_dtype(high_wins ? high : low);
}

/* ---- memory, communication, statistics ---- */
static int device_arg(PyObject *o, dt_device *d) {
    *d = 0;
    if (!o || o == Py_None) return 0;
    int r = dt_py_device_parse(o, d);
    if (r == 0) PyErr_Format(PyExc_TypeError, "expected a device such as 'cpu:1', got %s", dt_py_type_name(o));
    return r > 0 ? 0 : -1;
}
/* Ask the controller; the answer lies in the future's buffer, which outlives an interrupted wait. */
static dt_status stats_request(dt_device d, bool new_peaks, dt_future **out) {
    dt_hostbuf *b;
    dt_future *f;
    DT_TRY(dt_engine_start());
    DT_TRY(dt_hostbuf_new(sizeof(dt_memory_stats), &b));
    memset(b->data, 0, sizeof(dt_memory_stats));
    DT_TRY(dt_future_new(b, NULL, &f));
    dt_future_ref(f);
    uint64_t *w = dt_ring_reserve(dt_engine_ring(), 4);
    w[0] = DT_REC_HEADER(DT_REC_STATS, new_peaks, 0);
    w[1] = d;
    w[2] = (uint64_t)(uintptr_t)b->data;
    w[3] = (uint64_t)(uintptr_t)f;
    dt_ring_publish(dt_engine_ring());
    dt_engine_flush();
    *out = f;
    return DT_OK;
}
static dt_status limit_request(dt_device d, int64_t bytes, int what) {
    DT_TRY(dt_engine_start());
    uint64_t *w = dt_ring_reserve(dt_engine_ring(), 3);
    w[0] = DT_REC_HEADER(DT_REC_LIMIT, what, 0);
    w[1] = d;
    w[2] = (uint64_t)bytes;
    dt_ring_publish(dt_engine_ring());
    return DT_OK;
}
/* What the device of `args` holds; waits for it. */
static int stats_wait(PyObject *args, const char *format, bool new_peaks, dt_memory_stats *out) {
    PyObject *o = NULL;
    dt_device d;
    dt_future *f;
    if (!PyArg_ParseTuple(args, format, &o) || device_arg(o, &d) < 0) return -1;
    dt_status s = stats_request(d, new_peaks, &f);
    if (s) return dt_py_raise_int(s);
    int r = dt_py_wait(f);
    if (r == 0) *out = *(dt_memory_stats *)f->buf->data;
    dt_future_unref(f);
    return r;
}
static PyObject *memory_stats(PyObject *m, PyObject *args) {
    dt_memory_stats s;
    if (stats_wait(args, "|O:memory_stats", false, &s) < 0) return NULL;
    return Py_BuildValue("{s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L}", "allocated", (long long)s.allocated, "allocated_peak", (long long)s.allocated_peak,
                         "reserved", (long long)s.reserved, "reserved_peak", (long long)s.reserved_peak, "limit", (long long)s.limit, "n_alloc",
                         (long long)s.n_alloc, "n_oom", (long long)s.n_oom, "budget", (long long)s.budget, "evicted", (long long)s.evicted, "evicted_bytes",
                         (long long)s.evicted_bytes);
}
static PyObject *reset_peak_memory_stats(PyObject *m, PyObject *args) {
    dt_memory_stats s;
    if (stats_wait(args, "|O:reset_peak_memory_stats", true, &s) < 0) return NULL;
    Py_RETURN_NONE;
}
static PyObject *set_memory_limit(PyObject *m, PyObject *args) {
    PyObject *o, *bytes;
    dt_device d;
    if (!PyArg_ParseTuple(args, "OO:set_memory_limit", &o, &bytes) || device_arg(o, &d) < 0) return NULL;
    long long n = bytes == Py_None ? 0 : PyLong_AsLongLong(bytes);
    if (n == -1 && PyErr_Occurred()) return NULL;
    if (n < 0) return PyErr_Format(PyExc_ValueError, "set_memory_limit(): bytes must be None or at least 0, got %lld", n);
    DT_PY_CHECK(limit_request(d, n, 0));
    Py_RETURN_NONE;
}
static PyObject *set_memory_budget(PyObject *m, PyObject *args, PyObject *kw) {
    static char *names[] = {"bytes", "device", NULL};
    PyObject *o = NULL, *bytes;
    dt_device d;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|O:set_memory_budget", names, &bytes, &o) || device_arg(o, &d) < 0) return NULL;
    long long n = bytes == Py_None ? 0 : PyLong_AsLongLong(bytes);
    if (n == -1 && PyErr_Occurred()) return NULL;
    if (n < 0 || (n == 0 && bytes != Py_None)) return PyErr_Format(PyExc_ValueError, "set_memory_budget(): bytes must be None or at least 1, got %lld", n);
    DT_PY_CHECK(limit_request(d, n, o && o != Py_None ? 1 : 2));
    Py_RETURN_NONE;
}
static PyObject *comm_entries(PyObject *m, PyObject *none) {
    size_t n = dt_comm_report(NULL, 0);
    dt_comm_entry *e = PyMem_Calloc(n + 1, sizeof *e);
    if (!e) return PyErr_NoMemory();
    size_t got = dt_comm_report(e, n);
    if (got > n) got = n;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < got; i++) {
        const char *file = "", *func = "";
        int line = 0;
        dt_site_get(e[i].site, &file, &line, &func);
        PyObject *d = Py_BuildValue("{s:s,s:s,s:K,s:K,s:s,s:i,s:s}", "kind", e[i].kind, "mesh_dim", e[i].mesh_dim, "count", (unsigned long long)e[i].count,
                                    "bytes", (unsigned long long)e[i].bytes, "file", file ? file : "", "line", line, "function", func ? func : "");
        if (!d || PyList_Append(list, d) < 0) Py_CLEAR(list);
        Py_XDECREF(d);
    }
    PyMem_Free(e);
    return list;
}
/* What the controller dispatched of a stream over several meshes, in order; forgotten afterwards. */
static PyObject *order_log(PyObject *m, PyObject *none) {
    enum { CAP = 4096 };
    dt_order_entry *e = PyMem_Calloc(CAP, sizeof *e);
    if (!e) return PyErr_NoMemory();
    size_t n = dt_order_log(e, CAP);
    dt_order_log_reset();
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *d = Py_BuildValue("{s:k,s:k,s:i,s:k,s:d,s:d,s:k,s:O,s:O,s:O,s:O,s:k}", "id", (unsigned long)e[i].id, "run", (unsigned long)e[i].run, "device",
                                    (int)dt_device_index(e[i].device), "devices", (unsigned long)e[i].n_devices, "begin", e[i].begin, "end", e[i].end, "open",
                                    (unsigned long)e[i].open, "opener", e[i].opener ? Py_True : Py_False, "closing", e[i].closing ? Py_True : Py_False, "plain",
                                    e[i].side ? Py_True : Py_False, "forced", e[i].forced ? Py_True : Py_False, "calls", (unsigned long)e[i].nodes);
        if (!d || PyList_Append(list, d) < 0) Py_CLEAR(list);
        Py_XDECREF(d);
    }
    PyMem_Free(e);
    return list;
}
static PyObject *comm_devices(PyObject *m, PyObject *none) {
    size_t n = dt_comm_devices(NULL, 0);
    dt_comm_sent *e = PyMem_Calloc(n + 1, sizeof *e);
    if (!e) return PyErr_NoMemory();
    size_t got = dt_comm_devices(e, n);
    PyObject *d = PyDict_New();
    for (size_t i = 0; d && i < (got < n ? got : n); i++) {
        PyObject *k = dt_py_device(e[i].device, true), *v = PyLong_FromUnsignedLongLong(e[i].bytes);
        if (!k || !v || PyDict_SetItem(d, k, v) < 0) Py_CLEAR(d);
        Py_XDECREF(k);
        Py_XDECREF(v);
    }
    PyMem_Free(e);
    return d;
}
static PyObject *engine_stats(PyObject *m, PyObject *none) {
    dt_engine_stats s;
    dt_engine_stats_get(&s);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:n,s:K,s:K,s:K}", "nodes", s.nodes, "plans_built", s.plans_built, "plan_hits", s.plan_hits,
                         "plans_cached", s.plans_cached, "programs_run", s.programs_run, "nodes_dead", s.nodes_dead, "calls_lowered", s.calls_lowered,
                         "calls_interned", (Py_ssize_t)dt_calls_count(), "evicted", s.evicted, "recomputed", s.recomputed, "plan_bytes", s.plan_bytes);
}

/* (counters, [(replay, text, count)], [(replay, text, file, line)] oldest first) */
static PyObject *cache_stats(PyObject *m, PyObject *none) {
    enum { CAP = 256 };
    dt_cache_stats s;
    dt_cache_reason *r = PyMem_Calloc(CAP, sizeof *r);
    dt_cache_event *e = PyMem_Calloc(CAP, sizeof *e);
    PyObject *reasons = PyList_New(0), *recent = PyList_New(0), *out = NULL;
    if (!r || !e || !reasons || !recent) {
        PyErr_NoMemory();
        goto done;
    }
    dt_cache_stats_get(&s);
    size_t n_reasons = dt_cache_reasons(r, CAP), n_recent = dt_cache_recent(e, CAP);
    for (size_t i = 0; i < n_reasons && i < CAP; i++) {
        PyObject *t = Py_BuildValue("(NsK)", PyBool_FromLong(r[i].replay), r[i].text, (unsigned long long)r[i].count);
        int bad = !t || PyList_Append(reasons, t) < 0;
        Py_XDECREF(t);
        if (bad) goto done;
    }
    for (size_t i = 0; i < n_recent && i < CAP; i++) {
        const char *file = "", *func = "";
        int line = 0;
        dt_site_get(e[i].site, &file, &line, &func);
        PyObject *t = Py_BuildValue("(Nssi)", PyBool_FromLong(e[i].replay), e[i].text, file ? file : "", line);
        int bad = !t || PyList_Append(recent, t) < 0;
        Py_XDECREF(t);
        if (bad) goto done;
    }
    out = Py_BuildValue("({s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}OO)", "calls", s.calls, "plans_built", s.plans_built, "plans_found", s.plans_found, "plans_kept",
                        s.plans_cached, "plans_limit", s.plans_limit, "plans_evicted", s.evicted, "chunks_replayed", s.chunks_replayed, "calls_replayed",
                        s.calls_replayed, "mismatches", s.mismatches, reasons, recent);
done:
    Py_XDECREF(reasons);
    Py_XDECREF(recent);
    PyMem_Free(r);
    PyMem_Free(e);
    return out;
}
static PyObject *cache_limit(PyObject *m, PyObject *arg) {
    Py_ssize_t n = PyNumber_AsSsize_t(arg, PyExc_OverflowError);
    if (n == -1 && PyErr_Occurred()) return NULL;
    if (n < 1) return PyErr_Format(PyExc_ValueError, "set_cache_limit: plans is %zd; a number of at least 1 is legal", n);
    dt_cache_limit((size_t)n);
    Py_RETURN_NONE;
}

static void trace_event(void *ctx, const char *lane, const dt_event *e) {
    PyObject *list = *(PyObject **)ctx;
    if (!list) return;
    PyObject *t = Py_BuildValue("(sHsIKKKKh)", lane, e->kind, e->name ? e->name : "", e->site, (unsigned long long)e->begin, (unsigned long long)e->end,
                                (unsigned long long)e->a, (unsigned long long)e->b, e->device);
    if (!t || PyList_Append(list, t) < 0) Py_CLEAR(*(PyObject **)ctx);
    Py_XDECREF(t);
}
/* Other nodes of the run begin to trace, or end, and what they logged is here. */
static int trace_nodes(bool on) {
    dt_future *f;
    if (dt_nodes == 1) return 0;
    dt_status s = dt_engine_start();
    if (!s) s = dt_future_new(NULL, NULL, &f);
    if (s) return dt_py_raise_int(s);
    dt_future_ref(f);
    uint64_t *w = dt_ring_reserve(dt_engine_ring(), 2);
    w[0] = DT_REC_HEADER(DT_REC_SYNC, on ? 1 : 2, 0);
    w[1] = (uint64_t)(uintptr_t)f;
    dt_ring_publish(dt_engine_ring());
    dt_engine_flush();
    int r = dt_py_wait(f);
    dt_future_unref(f);
    return r;
}
static PyObject *trace_start(PyObject *m, PyObject *none) {
    if (trace_nodes(true) < 0) return NULL;
    dt_trace_start();
    Py_RETURN_NONE;
}
/* Stops; returns [(lane, kind, name, site, begin, end, a, b, device)]. */
static PyObject *trace_stop(PyObject *m, PyObject *none) {
    dt_trace_stop();
    if (trace_nodes(false) < 0) return NULL;
    PyObject *list = PyList_New(0);
    dt_trace_each(trace_event, &list);
    return list;
}
static PyObject *mpi_info(PyObject *m, PyObject *none) {
    char text[512];
    DT_PY_CHECK(dt_engine_mpi(text, sizeof text));
    return PyUnicode_FromString(text);
}
static PyObject *node_info(PyObject *m, PyObject *none) { return Py_BuildValue("(iii)", dt_nodes, dt_node_self, dt_node_devices); }
static PyObject *node_hosts(PyObject *m, PyObject *none) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < dt_nodes; i++) {
        PyObject *k = PyUnicode_FromString(dt_net_host(i));
        if (!k || PyList_Append(list, k) < 0) Py_CLEAR(list);
        Py_XDECREF(k);
    }
    return list;
}
/* (ranks of the nodes that are left, does the run outlive those that are not?) */
static PyObject *nodes_left(PyObject *m, PyObject *none) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < dt_nodes; i++) {
        PyObject *k = dt_node_lost(i) ? NULL : PyLong_FromLong(i);
        if (k && PyList_Append(list, k) < 0) Py_CLEAR(list);
        Py_XDECREF(k);
    }
    return list ? Py_BuildValue("(NO)", list, dt_net_tolerant() ? Py_True : Py_False) : NULL;
}
static PyObject *trace_dropped(PyObject *m, PyObject *none) { return PyLong_FromUnsignedLongLong(dt_trace_dropped()); }
static PyObject *trace_now(PyObject *m, PyObject *none) { return PyLong_FromUnsignedLongLong(dt_trace_now()); }
static PyObject *site(PyObject *m, PyObject *arg) {
    unsigned long id = PyLong_AsUnsignedLong(arg);
    if (id == (unsigned long)-1 && PyErr_Occurred()) return NULL;
    const char *file = "", *func = "";
    int line = 0;
    dt_site_get((uint32_t)id, &file, &line, &func);
    return Py_BuildValue("(sis)", file ? file : "", line, func ? func : "");
}

static PyObject *malloc_count(PyObject *m, PyObject *none) { return PyLong_FromUnsignedLongLong(dt_malloc_count()); }
static PyMethodDef functions[] = {
    {"_mpi_info", mpi_info, METH_NOARGS, NULL},
    {"_node_info", node_info, METH_NOARGS, NULL},
    {"_node_hosts", node_hosts, METH_NOARGS, NULL},
    {"_nodes_left", nodes_left, METH_NOARGS, NULL},
    {"_trace_start", trace_start, METH_NOARGS, NULL},
    {"_trace_stop", trace_stop, METH_NOARGS, NULL},
    {"_trace_dropped", trace_dropped, METH_NOARGS, NULL},
    {"_trace_now", trace_now, METH_NOARGS, NULL},
    {"_site_of", site, METH_O, NULL},
    {"is_grad_enabled", is_grad_enabled, METH_NOARGS, "Are calls recorded for backward (in this thread)?"},
    {"_grad_set", grad_set, METH_O, "Returns the previous value."},
    {"is_inference_mode_enabled", is_inference, METH_NOARGS, "Is inference mode on (in this thread)?"},
    {"_recipe_set", recipe_set, METH_O, "While on, autograd makes results again rather than keeping them. Returns the previous value."},
    {"_inference_set", inference_set, METH_O, "Returns the previous value."},
    {"get_default_dtype", get_default_dtype, METH_NOARGS, "The dtype of float factories and numbers: float32 unless changed."},
    {"set_default_dtype", set_default_dtype, METH_O, "Change the dtype of float factories and numbers."},
    {"get_default_device", default_device, METH_NOARGS, "The device where factories put their results."},
    {"set_default_device", set_default_device, METH_O, "Change where factories put their results: a device, a DeviceMesh (replicated), None for the CPU."},
    {"_default_mesh", default_mesh, METH_NOARGS, NULL},
    {"_policy", policy_get, METH_NOARGS, NULL},
    {"_policy_set", policy_set, METH_O, NULL},
    {"_autocast", autocast_get, METH_O, NULL},
    {"_autocast_on", autocast_on, METH_NOARGS, "Is autocast on, for any kind of device?"},
    {"_autocast_set", autocast_set, METH_VARARGS, NULL},
    {"_autocast_cache", autocast_cache, METH_NOARGS, NULL},
    {"_autocast_cache_set", autocast_cache_set, METH_O, NULL},
    {"_autocast_forget", autocast_forget, METH_NOARGS, NULL},
    {"_context_set", context_set, METH_VARARGS, NULL},
    {"set_num_threads", set_num_threads, METH_O, "How many threads the CPU devices share."},
    {"get_num_threads", get_num_threads, METH_NOARGS, "How many threads the CPU devices share."},
    {"promote_types", promote_types, METH_VARARGS, "promote_types(type1, type2): the smallest dtype that holds both."},
    {"can_cast", can_cast, METH_VARARGS, "can_cast(from, to): does in-place arithmetic allow this conversion?"},
    {"result_type", result_type, METH_VARARGS, "result_type(a, b): the dtype of an operation on two tensors or numbers."},
    {"memory_stats", memory_stats, METH_VARARGS,
     "memory_stats(device=None): bytes allocated and reserved, their peaks, the limit. Waits for work submitted so far."},
    {"set_memory_limit", set_memory_limit, METH_VARARGS, "set_memory_limit(device, bytes): what the device may hold; None: no limit."},
    {"reset_peak_memory_stats", reset_peak_memory_stats, METH_VARARGS, "reset_peak_memory_stats(device=None): peaks begin anew from what is held now."},
    {"set_memory_budget", (PyCFunction)(void (*)(void))set_memory_budget, METH_VARARGS | METH_KEYWORDS,
     "set_memory_budget(bytes, device=None): bytes that values and temporaries of a device (None: of each device) may take together; None: no\n"
     "budget. Beyond it values are given up and computed again when they are read, with the same bits. Raises OutOfMemoryError, at the read of what\n"
     "could not be made, where even that does not suffice."},
    {"_comm_entries", comm_entries, METH_NOARGS, NULL},
    {"_order_log", order_log, METH_NOARGS, NULL},
    {"_comm_devices", comm_devices, METH_NOARGS, NULL},
    {"_host_call", dt_py_host_call, METH_VARARGS, "_host_call(fn, inputs, types): see dtorch.host_call."},
    {"_cache_stats", cache_stats, METH_NOARGS, "(counters, reasons, recent ones): see dtorch.cache_stats."},
    {"_cache_limit", cache_limit, METH_O, "How many plans are kept."},
    {"_engine_stats", engine_stats, METH_NOARGS, "Counters of the engine: nodes, plans built and found, programs run, interned calls."},
    {"_malloc_count", malloc_count, METH_NOARGS, "How often this thread asked the host for memory: for tests of paths that do not."},
    {0},
};

int dt_py_mode_init(PyObject *m) { return PyModule_AddFunctions(m, functions); }
