/* The extension module dtorch._C: assembles what the other files provide; exceptions; start and stop of the engine.
 *
 * The engine starts with the first call that needs it and is stopped by an atexit function with the GIL released, so callbacks that wait
 * for the GIL can finish and no thread of ours is left when the interpreter goes. In a run of several processes it starts at the import: the
 * others wait in MPI's initialisation, and would do so for ever if the program ended, or worked long, before its first call. */
#include "python/py.h"

#include "comm/net.h"
#include "controller/controller.h"
#include "node/node.h"
#include "plan/nodes.h"

PyObject *dt_py_module;
static PyObject *exceptions[DT_STATUS_COUNT];

void *dt_py_raise(dt_status s) {
    if (PyErr_Occurred()) return NULL; /* a callback's own exception says more */
    PyErr_SetString(exceptions[s] ? exceptions[s] : PyExc_RuntimeError, dt_error_message());
    return NULL;
}

int dt_py_raise_int(dt_status s) {
    dt_py_raise(s);
    return -1;
}

PyObject *dt_py_lazy(PyObject **slot, const char *module, const char *name) {
    if (*slot) return *slot;
    PyObject *m = PyImport_ImportModule(module);
    if (!m) return NULL;
    *slot = PyObject_GetAttrString(m, name);
    Py_DECREF(m);
    return *slot;
}

/* Our own classes, made once; builtin ones by name. */
static int make_exceptions(PyObject *m) {
    static const struct {
        const char *name, *doc;
    } own[] = {
        {"PlacementError", "A mesh or a placement is not legal for the operation."},
        {"OutOfMemoryError", "A device, or the host, has no memory left; the text lists the largest live tensors."},
        {"NodeLostError", "A process of the run was killed, stopped or cut off; the text names it."},
        {"LinAlgError", "A matrix is singular, or an iteration does not converge."},
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        char full[64];
        snprintf(full, sizeof full, "dtorch.%s", own[i].name);
        PyObject *e = PyErr_NewExceptionWithDoc(full, own[i].doc, PyExc_RuntimeError, NULL);
        if (!e || PyModule_AddObjectRef(m, own[i].name, e) < 0) return -1;
        for (int s = 1; s < DT_STATUS_COUNT; s++)
            if (!strcmp(dt_status_exception((dt_status)s), own[i].name)) exceptions[s] = Py_NewRef(e);
        Py_DECREF(e);
    }
    PyObject *builtins = PyEval_GetBuiltins();
    for (int s = 1; s < DT_STATUS_COUNT; s++)
        if (!exceptions[s]) {
            PyObject *e = PyDict_GetItemString(builtins, dt_status_exception((dt_status)s));
            exceptions[s] = Py_NewRef(e ? e : PyExc_RuntimeError);
        }
    return 0;
}

static PyObject *engine_stop(PyObject *self, PyObject *none) {
    if (dt_engine_is_forked()) Py_RETURN_NONE; /* the threads are the parent's */
    Py_BEGIN_ALLOW_THREADS dt_client_stop();
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *node_serve(PyObject *self, PyObject *none) {
    if (dt_node_self == 0) {
        dt_status s = DT_OK;
        if (dt_nodes > 1) {
            Py_BEGIN_ALLOW_THREADS s = dt_engine_start();
            Py_END_ALLOW_THREADS
        }
        return s ? dt_py_raise(s) : Py_NewRef(Py_None);
    }
    int status;
    Py_BEGIN_ALLOW_THREADS status = dt_node_main();
    exit(status); /* not Py_Exit: nothing of the program ran here. Not _exit: an MPI library says goodbye to its launcher in an exit handler */
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}
static PyMethodDef node_def = {"_node_serve", node_serve, METH_NOARGS,
                               "Returns in the process that runs the program; others serve it and end with their exit status."};
static PyObject *net_stats(PyObject *self, PyObject *none) {
    dt_net_stats n;
    dt_net_stats_get(&n);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "messages_sent", (unsigned long long)n.messages_sent, "bytes_sent",
                         (unsigned long long)n.bytes_sent, "messages_received", (unsigned long long)n.messages_received, "bytes_received",
                         (unsigned long long)n.bytes_received, "bulk_sent", (unsigned long long)n.bulk_sent, "bulk_received",
                         (unsigned long long)n.bulk_received, "read", (unsigned long long)n.read, "most_in_flight", (unsigned long long)n.most_in_flight,
                         "bells", (unsigned long long)n.bells, "posted", (unsigned long long)n.posted, "posted_bytes", (unsigned long long)n.posted_bytes);
}
static PyMethodDef net_stats_def = {
    "_net_stats", net_stats, METH_NOARGS,
    "What this process exchanged with other nodes since its start: control messages and their bytes (and those that it posted itself, the "
    "others went along the tree), bytes of bulk data; 1 if processes of the host ring each other's bells."};
static PyMethodDef stop_def = {"_engine_stop", engine_stop, METH_NOARGS, "Finish or abandon all work and join every thread."};

static int register_stop(PyObject *m) {
    PyObject *f = PyCFunction_New(&stop_def, NULL), *atexit = PyImport_ImportModule("atexit");
    PyObject *r = f && atexit ? PyObject_CallMethod(atexit, "register", "O", f) : NULL;
    int bad = !r || PyModule_AddObjectRef(m, "_engine_stop", f) < 0;
    Py_XDECREF(f);
    Py_XDECREF(atexit);
    Py_XDECREF(r);
    return bad ? -1 : 0;
}

static void warn(const char *text) {
    if (PyErr_WarnEx(PyExc_UserWarning, text, 1) < 0) PyErr_WriteUnraisable(NULL);
}

static void *leave(void) { return PyEval_SaveThread(); }
static void enter(void *state) { PyEval_RestoreThread(state); }

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "dtorch._C", .m_size = -1};

PyMODINIT_FUNC PyInit__C(void);
PyMODINIT_FUNC PyInit__C(void) {
    PyObject *m = PyModule_Create(&module_def);
    if (!m) return NULL;
    dt_py_module = m;
    static int (*const init[])(PyObject *) = {
        make_exceptions,     dt_py_site_init,   dt_py_dtype_init, dt_py_mesh_init,      dt_py_tensor_init,   dt_py_data_init,
        dt_py_dlpack_init,   dt_py_future_init, dt_py_mode_init,  dt_py_generator_init, dt_py_nnmodule_init, dt_py_optim_init,
        dt_py_autograd_init, dt_py_ops_init,    dt_py_sim_init,   dt_py_file_init,      register_stop,
    };
    for (size_t i = 0; i < sizeof init / sizeof *init; i++)
        if (init[i](m) < 0) {
            Py_DECREF(m);
            return NULL;
        }
    dt_engine_nodes_init();
    PyObject *stats = PyCFunction_New(&net_stats_def, NULL);
    if (!stats || PyModule_AddObject(m, "_net_stats", stats) < 0) {
        Py_XDECREF(stats);
        Py_DECREF(m);
        return NULL;
    }
    PyObject *serve = PyCFunction_New(&node_def, NULL);
    if (!serve || PyModule_AddObjectRef(m, "_node_serve", serve) < 0) return NULL;
    Py_DECREF(serve);
    dt_mode_warn_fn(warn);
    dt_client_blocking_hooks(leave, enter);
    return m;
}
