/* Call sites: which line of the user's program made the call, for late errors, warnings and reports. A few nanoseconds a call.
 *
 * The site is that of the innermost frame outside the package dtorch: the user's line, not a line of nn.Linear. Walking up costs a look-up
 * per package frame: a small table says whether a code object belongs to the package. A second table maps (code, instruction) to the
 * interned site. Both hold references on their code objects, so an address is not reused while it is a key; both are direct-mapped and
 * bounded.
 *
 * CPython 3.11 and 3.12 keep frames as plain structs whose layout is fixed within a minor version; reading them directly avoids making a
 * frame object per call of a Python function. Other versions go through PyEval_GetFrame. */
#include "python/py.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000 && !defined(PYPY_VERSION)
#define DIRECT_FRAMES 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#pragma GCC diagnostic pop
#elif PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#define PyFrame_GetLasti(f) ((f)->f_lasti * 2) /* 3.10 counts instructions, not bytes */
#endif

enum { SITES = 4096, CODES = 1024 };
static struct {
    PyObject *code;
    const void *at;
    uint32_t site;
} sites[SITES];
static struct {
    PyObject *code;
    bool ours;
} codes[CODES];
static char package[512]; /* the folder of the package, with a slash at its end */
static size_t package_len;

static bool code_is_ours(PyObject *code) {
    size_t i = ((uintptr_t)code >> 5) % CODES;
    if (codes[i].code == code) return codes[i].ours;
    const char *file = PyUnicode_AsUTF8(((PyCodeObject *)code)->co_filename);
    if (!file) PyErr_Clear();
    bool ours = file && ((package_len && !strncmp(file, package, package_len)) || !strncmp(file, "<frozen", 7));
    PyObject *old = codes[i].code;
    codes[i].code = Py_NewRef(code);
    codes[i].ours = ours;
    Py_XDECREF(old);
    return ours;
}

static uint32_t intern(PyObject *code, int line) {
    PyCodeObject *c = (PyCodeObject *)code;
    const char *file = PyUnicode_AsUTF8(c->co_filename), *func = PyUnicode_AsUTF8(c->co_name);
    if (!file || !func) {
        PyErr_Clear();
        return 0;
    }
    return dt_site_intern(file, line, func);
}

static uint32_t site_of(PyObject *code, const void *at, int offset) {
    size_t i = (((uintptr_t)code >> 5) ^ ((uintptr_t)at >> 1) * 31) % SITES;
    if (sites[i].code == code && sites[i].at == at) return sites[i].site;
    uint32_t site = intern(code, PyCode_Addr2Line((PyCodeObject *)code, offset));
    PyObject *old = sites[i].code;
    sites[i].code = Py_NewRef(code);
    sites[i].at = at;
    sites[i].site = site;
    Py_XDECREF(old);
    return site;
}

#ifdef DIRECT_FRAMES
/* A frame that has not started or whose code was cleared has no line; skip it. */
uint32_t dt_py_site_find(void) {
    PyThreadState *ts = PyThreadState_Get();
    struct _PyInterpreterFrame *f = ts->cframe->current_frame;
    for (int depth = 0; f && depth < 64; f = f->previous, depth++) {
        PyObject *code = (PyObject *)f->f_code;
        if (!code || !PyCode_Check(code)
#if PY_VERSION_HEX >= 0x030C0000
            || f->owner == FRAME_OWNED_BY_CSTACK
#endif
            || code_is_ours(code))
            continue;
        const void *at = f->prev_instr;
        return site_of(code, at, (int)((const char *)at - (const char *)_PyCode_CODE((PyCodeObject *)code)));
    }
    return 0;
}
#else
uint32_t dt_py_site_find(void) {
    PyFrameObject *f = PyEval_GetFrame();
    Py_XINCREF(f);
    uint32_t site = 0;
    for (int depth = 0; f && depth < 64; depth++) {
        PyObject *code = (PyObject *)PyFrame_GetCode(f);
        bool ours = code_is_ours(code);
        if (!ours) {
            int at = PyFrame_GetLasti(f);
            site = site_of(code, (const void *)(intptr_t)(at + 1), at);
        }
        Py_DECREF(code);
        if (!ours) break;
        PyFrameObject *back = PyFrame_GetBack(f);
        Py_DECREF(f);
        f = back;
    }
    Py_XDECREF(f);
    return site;
}
#endif

static PyObject *set_package(PyObject *m, PyObject *path) {
    const char *s = PyUnicode_AsUTF8(path);
    if (!s) return NULL;
    size_t n = strlen(s);
    if (n >= sizeof package) Py_RETURN_NONE; /* then lines of the package are named: harmless */
    memcpy(package, s, n + 1);
    package_len = n;
    Py_RETURN_NONE;
}
static PyObject *current(PyObject *m, PyObject *none) {
    const char *file, *func;
    int line;
    if (!dt_site_get(dt_py_site_find(), &file, &line, &func)) Py_RETURN_NONE;
    return Py_BuildValue("(sis)", file, line, func);
}
static PyMethodDef functions[] = {
    {"_set_package", set_package, METH_O, "Frames of files below this folder are not the user's."},
    {"_site", current, METH_NOARGS, "(file, line, function) of the user's innermost frame."},
    {0},
};

int dt_py_site_init(PyObject *m) { return PyModule_AddFunctions(m, functions); }
