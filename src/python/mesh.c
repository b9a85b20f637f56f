/* DeviceMesh, Shard, Replicate, Partial: the Python faces of tensor/mesh.h.
 *
 * A DeviceMesh object is a root mesh and a choice of its dimensions. mesh["tp"] keeps the root: tensors always lie on the root, and the
 * dimensions left out stand for Replicate wherever the sub-mesh is given with placements. mesh[0] and mesh["pp"][1] make a smaller root. */
#include "python/py.h"

#include "plan/backend.h"
#include "plan/nodes.h"
#include "plan/sim.h"

typedef struct py_mesh {
    PyObject_HEAD const dt_mesh *root;
    int n;
    uint8_t dim[DT_MAX_MESH_DIM]; /* (n,) dimensions of root */
} py_mesh;
typedef struct py_placement {
    PyObject_HEAD dt_placement p; /* dim may be negative here */
} py_placement;

static PyTypeObject mesh_type, placement_type, shard_type, replicate_type, partial_type;
static const char *const reduce_names[] = {"sum", "avg", "max", "min"};

bool dt_py_is_mesh(PyObject *o) { return Py_TYPE(o) == &mesh_type; }
bool dt_py_is_placement(PyObject *o) { return PyType_IsSubtype(Py_TYPE(o), &placement_type); }

/* ---- placements ----------------------------------------------------------------------------------------------------------------------- */
static PyObject *placement(dt_placement p) {
    static PyTypeObject *const types[] = {[DT_REPLICATE] = &replicate_type, [DT_SHARD] = &shard_type, [DT_PARTIAL] = &partial_type};
    py_placement *o = PyObject_New(py_placement, types[p.kind]);
    if (o) o->p = p;
    return (PyObject *)o;
}
static PyObject *shard_new(PyTypeObject *tp, PyObject *args, PyObject *kw) {
    static char *names[] = {"dim", "split_factor", NULL};
    int dim, rows = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "i|i:Shard", names, &dim, &rows)) return NULL;
    if (rows < 1) return PyErr_Format(PyExc_ValueError, "Shard(): split_factor %d is not legal: at least 1 is", rows);
    if (dim < -DT_MAX_DIM || dim >= DT_MAX_DIM)
        return PyErr_Format(PyExc_ValueError, "Shard(): dim %d is not legal: %d to %d are", dim, -DT_MAX_DIM, DT_MAX_DIM - 1);
    return placement(DT_S_ROWS(dim, rows));
}
static PyObject *replicate_new(PyTypeObject *tp, PyObject *args, PyObject *kw) {
    static char *names[] = {NULL};
    return PyArg_ParseTupleAndKeywords(args, kw, ":Replicate", names) ? placement(DT_R) : NULL;
}
static PyObject *partial_new(PyTypeObject *tp, PyObject *args, PyObject *kw) {
    static char *names[] = {"reduce_op", NULL};
    const char *op = "sum";
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|s:Partial", names, &op)) return NULL;
    for (int i = 0; i < 4; i++)
        if (!strcmp(op, reduce_names[i])) return placement(DT_P_OF((uint8_t)i));
    return PyErr_Format(PyExc_ValueError, "Partial(): reduce_op '%s' is not legal: 'sum', 'avg', 'max', 'min' are", op);
}
static PyObject *placement_repr(PyObject *o) {
    dt_placement p = ((py_placement *)o)->p;
    if (p.kind == DT_SHARD && p.split) return PyUnicode_FromFormat("Shard(dim=%d, split_factor=%d)", p.dim, p.split);
    if (p.kind == DT_SHARD) return PyUnicode_FromFormat("Shard(dim=%d)", p.dim);
    return p.kind == DT_PARTIAL ? PyUnicode_FromFormat("Partial(%s)", reduce_names[p.reduce & 3]) : PyUnicode_FromString("Replicate()");
}
static PyObject *placement_compare(PyObject *a, PyObject *b, int op) {
    if (!dt_py_is_placement(a) || !dt_py_is_placement(b) || (op != Py_EQ && op != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
    return PyBool_FromLong(dt_placement_equal(((py_placement *)a)->p, ((py_placement *)b)->p) == (op == Py_EQ));
}
static Py_hash_t placement_hash(PyObject *o) { return (Py_hash_t)dt_placement_word(((py_placement *)o)->p) + 7; }
static PyObject *is_shard(PyObject *o, PyObject *args, PyObject *kw) {
    static char *names[] = {"dim", NULL};
    PyObject *dim = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|O:is_shard", names, &dim)) return NULL;
    dt_placement p = ((py_placement *)o)->p;
    long d = dim == Py_None ? p.dim : PyLong_AsLong(dim);
    if (d == -1 && PyErr_Occurred()) return NULL;
    return PyBool_FromLong(p.kind == DT_SHARD && d == p.dim);
}
static PyObject *is_replicate(PyObject *o, PyObject *none) { return PyBool_FromLong(((py_placement *)o)->p.kind == DT_REPLICATE); }
static PyObject *is_partial(PyObject *o, PyObject *args) {
    const char *op = NULL;
    if (!PyArg_ParseTuple(args, "|z:is_partial", &op)) return NULL;
    dt_placement p = ((py_placement *)o)->p;
    return PyBool_FromLong(p.kind == DT_PARTIAL && (!op || !strcmp(op, reduce_names[p.reduce & 3])));
}
static PyObject *placement_reduce(PyObject *o, PyObject *none) {
    dt_placement p = ((py_placement *)o)->p;
    if (p.kind == DT_SHARD) return Py_BuildValue("O(ii)", Py_TYPE(o), p.dim, p.split ? p.split : 1);
    return p.kind == DT_PARTIAL ? Py_BuildValue("O(s)", Py_TYPE(o), reduce_names[p.reduce & 3]) : Py_BuildValue("O()", Py_TYPE(o));
}
static PyObject *shard_dim(PyObject *o, void *x) { return PyLong_FromLong(((py_placement *)o)->p.dim); }
static PyObject *partial_op(PyObject *o, void *x) { return PyUnicode_FromString(reduce_names[((py_placement *)o)->p.reduce & 3]); }
static PyMethodDef placement_methods[] = {
    {"is_shard", (PyCFunction)(void (*)(void))is_shard, METH_VARARGS | METH_KEYWORDS, "is_shard(dim=None): is it a Shard (of dim)?"},
    {"is_replicate", is_replicate, METH_NOARGS, "Is it Replicate()?"},
    {"is_partial", is_partial, METH_VARARGS, "is_partial(reduce_op=None): is it a Partial (of that reduction)?"},
    {"__reduce__", placement_reduce, METH_NOARGS, NULL},
    {0},
};
static PyObject *shard_split(PyObject *o, void *x) { return PyLong_FromLong(((py_placement *)o)->p.split ? ((py_placement *)o)->p.split : 1); }
static PyGetSetDef shard_getset[] = {{"split_factor", shard_split, NULL, "The rows that the dimension is seen as; each is cut alike. 1: none.", NULL},
                                     {"dim", shard_dim, NULL, "The tensor dimension that is cut.", NULL},
                                     {0}};
static PyGetSetDef partial_getset[] = {{"reduce_op", partial_op, NULL, "'sum', 'avg', 'max' or 'min'.", NULL}, {0}};
static PyTypeObject placement_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch.distributed.tensor.Placement",
    .tp_basicsize = sizeof(py_placement),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = "How a tensor lies along one mesh dimension: Shard(dim), Replicate() or Partial(op).",
    .tp_repr = placement_repr,
    .tp_richcompare = placement_compare,
    .tp_hash = placement_hash,
    .tp_methods = placement_methods,
};
#define PLACEMENT_TYPE(var, label, make, fields, text)                                                      \
    static PyTypeObject var = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch.distributed.tensor." label, \
                               .tp_base = &placement_type,                                                  \
                               .tp_basicsize = sizeof(py_placement),                                        \
                               .tp_flags = Py_TPFLAGS_DEFAULT,                                              \
                               .tp_new = make,                                                              \
                               .tp_getset = fields,                                                         \
                               .tp_doc = text}
PLACEMENT_TYPE(shard_type, "Shard", shard_new, shard_getset,
               "Shard(dim, split_factor=1): each device holds a chunk of dimension dim, cut as by chunk(). With a split factor A the dimension is seen "
               "as A rows and each row is cut: what a sharded dimension becomes when it is merged behind an unsharded one.");
PLACEMENT_TYPE(replicate_type, "Replicate", replicate_new, NULL, "Replicate(): each device holds the whole.");
PLACEMENT_TYPE(partial_type, "Partial", partial_new, partial_getset, "Partial(reduce_op='sum'): the value is the reduction over the devices' parts.");

/* ---- specs ------------------------------------------------------------------------------------------------------------------------------ */
static int spec_element(const py_mesh *m, int i, PyObject *o, int ndim, dt_placement *place) {
    if (!dt_py_is_placement(o)) {
        PyErr_Format(PyExc_TypeError, "placements: expected Shard, Replicate or Partial, got %s", dt_py_type_name(o));
        return -1;
    }
    dt_placement p = ((py_placement *)o)->p;
    if (p.kind == DT_SHARD && p.dim < 0) {
        if (p.dim + ndim < 0 || ndim == 0) {
            PyErr_Format(PyExc_ValueError, "placements: Shard(%d) is not legal for a tensor of %d dimensions", p.dim, ndim);
            return -1;
        }
        p.dim = (int8_t)(p.dim + ndim);
    }
    place[m->dim[i]] = p;
    return 0;
}

static int mesh_dim_named(const py_mesh *m, PyObject *name) {
    const char *s = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    for (int i = 0; s && i < m->n; i++)
        if (!strcmp(s, m->root->name[m->dim[i]])) return i;
    if (!PyErr_Occurred()) PyErr_Format(PyExc_KeyError, "no dimension of the mesh is called %R", name);
    return -1;
}

static int spec_fill(const py_mesh *m, PyObject *o, int ndim, dt_placement *place) {
    if (!o || o == Py_None) return 0;
    if (PyDict_Check(o)) {
        PyObject *k, *v;
        for (Py_ssize_t pos = 0; PyDict_Next(o, &pos, &k, &v);) {
            int i = mesh_dim_named(m, k);
            if (i < 0 || spec_element(m, i, v, ndim, place) < 0) return -1;
        }
        return 0;
    }
    if (dt_py_is_placement(o) && m->n == 1) return spec_element(m, 0, o, ndim, place);
    if (!PyTuple_Check(o) && !PyList_Check(o)) {
        PyErr_Format(PyExc_TypeError, "placements: expected a sequence of placements or a dict by dimension name, got %s", dt_py_type_name(o));
        return -1;
    }
    if (PySequence_Fast_GET_SIZE(o) != m->n) {
        PyErr_Format(PyExc_ValueError, "placements: %zd given for a mesh of %d dimensions", PySequence_Fast_GET_SIZE(o), m->n);
        return -1;
    }
    for (int i = 0; i < m->n; i++)
        if (spec_element(m, i, PySequence_Fast_GET_ITEM(o, i), ndim, place) < 0) return -1;
    return 0;
}

/* Every place that a user names comes by here: a device that this build cannot drive is an error at the call, not when values are read. */
static int spec_intern(const dt_mesh *mesh, const dt_placement *place, const dt_spec **out) {
    dt_device_type kind = dt_device_kind(mesh->dev[0]);
    if (!dt_backend_of(kind)) {
        PyErr_Format(PyExc_RuntimeError, "no %s devices are available: this build drives CPU devices ('cpu', 'cpu:1', ...)",
                     kind == DT_CUDA ? "CUDA" : dt_device_type_name(kind));
        return -1;
    }
    dt_status s = dt_spec_intern(mesh, place, out);
    return s ? dt_py_raise_int(s) : 0;
}

int dt_py_spec(PyObject *mesh, PyObject *placements, int ndim, const dt_spec **out) {
    if (!dt_py_is_mesh(mesh)) {
        PyErr_Format(PyExc_TypeError, "device_mesh must be a DeviceMesh, not %s", dt_py_type_name(mesh));
        return -1;
    }
    dt_placement place[DT_MAX_MESH_DIM] = {{0}};
    return spec_fill((py_mesh *)mesh, placements, ndim, place) < 0 ? -1 : spec_intern(((py_mesh *)mesh)->root, place, out);
}

int dt_py_spec_of_device(dt_device d, const dt_spec **out) {
    const dt_mesh *m = dt_mesh_single(d);
    if (!m) return dt_py_raise_int(DT_E_NOMEM);
    return spec_intern(m, NULL, out);
}
int dt_py_spec_of_meta(const dt_meta *m, const dt_spec **out) { return spec_intern(m->mesh, m->place, out); }

/* What a dict of placements does not name: on the same mesh all stays; on another one, dimensions of the same name are cut as they were, and what
 * was Partial is reduced on the way. */
static void keep_by_name(const dt_meta *m, const dt_mesh *to, dt_placement *place) {
    if (to == m->mesh) {
        memcpy(place, m->place, sizeof m->place);
        return;
    }
    for (int k = 0; k < to->ndim; k++)
        for (int q = 0; q < m->mesh->ndim; q++)
            if (to->name[k][0] && !strcmp(to->name[k], m->mesh->name[q]) && m->place[q].kind == DT_SHARD) place[k] = m->place[q];
}

int dt_py_spec_change(const dt_meta *m, PyObject *mesh, PyObject *placements, const dt_spec **out) {
    py_mesh whole = {.root = m->mesh, .n = m->mesh->ndim, .dim = {0, 1, 2, 3, 4, 5}};
    const py_mesh *on = mesh && mesh != Py_None ? (py_mesh *)mesh : &whole;
    if (on != &whole && !dt_py_is_mesh(mesh)) {
        PyErr_Format(PyExc_TypeError, "redistribute(): device_mesh must be a DeviceMesh, not %s", dt_py_type_name(mesh));
        return -1;
    }
    dt_placement place[DT_MAX_MESH_DIM] = {{0}};
    if (placements && PyDict_Check(placements)) keep_by_name(m, on->root, place);
    return spec_fill(on, placements, m->ndim, place) < 0 ? -1 : spec_intern(on->root, place, out);
}

PyObject *dt_py_placements(const dt_meta *m) {
    PyObject *t = PyTuple_New(m->mesh->ndim);
    for (int i = 0; t && i < m->mesh->ndim; i++) {
        PyObject *p = placement(m->place[i]);
        if (p)
            PyTuple_SET_ITEM(t, i, p);
        else
            Py_CLEAR(t);
    }
    return t;
}

/* ---- meshes ------------------------------------------------------------------------------------------------------------------------------ */
PyObject *dt_py_mesh(const dt_mesh *m) {
    py_mesh *o = PyObject_New(py_mesh, &mesh_type);
    if (!o) return NULL;
    o->root = m;
    o->n = m->ndim;
    for (int i = 0; i < DT_MAX_MESH_DIM; i++) o->dim[i] = (uint8_t)i;
    return (PyObject *)o;
}

static int device_type_of(PyObject *o, dt_device_type *out) {
    dt_device d;
    int r = dt_py_device_parse(o, &d);
    if (r == 0) PyErr_Format(PyExc_TypeError, "device_type must be a str such as 'cpu', not %s", dt_py_type_name(o));
    if (r > 0) *out = dt_device_kind(d);
    return r > 0 ? 0 : -1;
}

/* What a mesh is made of: of simulated devices what the hardware description says, by the formulas of the clock that it is measured with.
 * Real ones are alike wherever they lie, unless the user says otherwise: a program's values must not depend on how many hosts it was started on. */
static void wire_simulated(const dt_mesh *m) {
    for (int d = 0; d < m->ndim; d++) dt_link_set(m, d, dt_cost_along(dt_hardware_get(), m, d));
}

static PyObject *mesh_make(dt_device_type type, int ndim, const int64_t *dims, const int64_t *index, PyObject *names) {
    const char *name[DT_MAX_MESH_DIM] = {0};
    static dt_device dev[DT_MAX_DEVICES]; /* under the GIL */
    int64_t n = 1;
    if (ndim > DT_MAX_MESH_DIM) return PyErr_Format(PyExc_ValueError, "a mesh has at most %d dimensions, got %d", DT_MAX_MESH_DIM, ndim);
    if (names && names != Py_None) {
        if (!PyTuple_Check(names) && !PyList_Check(names)) return PyErr_Format(PyExc_TypeError, "mesh_dim_names must be a sequence of str");
        if (PySequence_Fast_GET_SIZE(names) != ndim)
            return PyErr_Format(PyExc_ValueError, "mesh_dim_names has %zd names for a mesh of %d dimensions", PySequence_Fast_GET_SIZE(names), ndim);
        for (int i = 0; i < ndim; i++) {
            PyObject *s = PySequence_Fast_GET_ITEM(names, i);
            if (!PyUnicode_Check(s) || !(name[i] = PyUnicode_AsUTF8(s))) return PyErr_Format(PyExc_TypeError, "mesh_dim_names must be a sequence of str");
            if (strlen(name[i]) > 15) return PyErr_Format(PyExc_ValueError, "mesh_dim_names: '%s' is longer than 15 bytes", name[i]);
        }
    }
    for (int i = 0; i < ndim; i++) {
        if (dims[i] < 1) return PyErr_Format(PyExc_ValueError, "device mesh: size %lld of dimension %d must be at least 1", (long long)dims[i], i);
        n *= dims[i];
        if (n > DT_MAX_DEVICES) return PyErr_Format(PyExc_ValueError, "a mesh has at most %d devices", DT_MAX_DEVICES);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t k = index ? index[i] : type == DT_SIM ? i : dt_nodes_spread((int)i, (int)n);
        if (k == UINT32_MAX)
            return PyErr_Format(PyExc_ValueError, "a mesh of %lld devices: the nodes that are left have %d each (DTORCH_CPU_DEVICES sets another number)",
                                (long long)n, dt_node_devices);
        if (type == DT_SIM && k >= dt_sim_devices())
            return PyErr_Format(PyExc_ValueError, "device mesh: %lld devices are wanted, the simulation has %d", (long long)n, dt_sim_devices());
        if (k < 0 || k > 0xffff) return PyErr_Format(PyExc_ValueError, "device index %lld is not legal", (long long)k);
        dev[i] = dt_device_make(type, (uint32_t)k);
    }
    const dt_mesh *m;
    DT_PY_CHECK(dt_mesh_intern(ndim, dims, dev, name, &m));
    if (type == DT_SIM) wire_simulated(m);
    return dt_py_mesh(m);
}

/* ---- what mesh dimensions are made of ---- */
static int wire_of(PyObject *o, dt_link *w) {
    if (PyUnicode_Check(o)) {
        bool local = !PyUnicode_CompareWithASCIIString(o, "local");
        if (!local && PyUnicode_CompareWithASCIIString(o, "network")) {
            PyErr_Format(PyExc_ValueError, "topology: %R is not legal: 'local', 'network' or (bandwidth, latency) are", o);
            return -1;
        }
        *w = local ? DT_LINK_LOCAL : DT_LINK_NETWORK;
        return 0;
    }
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) != 2) {
        PyErr_Format(PyExc_TypeError, "topology: expected 'local', 'network' or a tuple (bytes a second, seconds), got %R", o);
        return -1;
    }
    w->bandwidth = PyFloat_AsDouble(PyTuple_GET_ITEM(o, 0));
    w->latency = PyFloat_AsDouble(PyTuple_GET_ITEM(o, 1));
    if (PyErr_Occurred()) return -1;
    if (w->bandwidth > 0 && w->latency >= 0 && w->bandwidth < 1e300 && w->latency < 1e300) return 0;
    PyErr_Format(PyExc_ValueError, "topology: (%R, %R) is not legal: a bandwidth above 0 and a latency of at least 0 are", PyTuple_GET_ITEM(o, 0),
                 PyTuple_GET_ITEM(o, 1));
    return -1;
}
static int set_wires(const py_mesh *m, PyObject *topology) {
    if (!PyDict_Check(topology)) {
        PyErr_Format(PyExc_TypeError, "topology must be a dict from mesh dimensions to what they are made of, not %s", dt_py_type_name(topology));
        return -1;
    }
    dt_link wire[DT_MAX_MESH_DIM];
    bool given[DT_MAX_MESH_DIM] = {false};
    PyObject *k, *v;
    for (Py_ssize_t pos = 0; PyDict_Next(topology, &pos, &k, &v);) {
        long i = PyLong_Check(k) ? PyLong_AsLong(k) : mesh_dim_named(m, k);
        if (i < 0 && PyErr_Occurred()) return -1;
        if (i < 0 || i >= m->n) {
            PyErr_Format(PyExc_IndexError, "topology: dimension %R of a mesh of %d dimensions", k, m->n);
            return -1;
        }
        if (wire_of(v, &wire[m->dim[i]]) < 0) return -1;
        given[m->dim[i]] = true;
    }
    for (int d = 0; d < DT_MAX_MESH_DIM; d++)
        if (given[d]) dt_link_set(m->root, d, wire[d]);
    return 0;
}
static PyObject *get_topology(PyObject *self, void *x) {
    py_mesh *m = (py_mesh *)self;
    PyObject *t = PyDict_New();
    for (int i = 0; t && i < m->n; i++) {
        int d = m->dim[i];
        PyObject *k = m->root->name[d][0] ? PyUnicode_FromString(m->root->name[d]) : PyLong_FromLong(i);
        PyObject *v = Py_BuildValue("(dd)", m->root->wire[d].bandwidth, m->root->wire[d].latency);
        if (!k || !v || PyDict_SetItem(t, k, v) < 0) Py_CLEAR(t);
        Py_XDECREF(k);
        Py_XDECREF(v);
    }
    return t;
}
static int set_topology(PyObject *self, PyObject *v, void *x) {
    if (v) return set_wires((py_mesh *)self, v);
    PyErr_Format(PyExc_AttributeError, "topology cannot be deleted");
    return -1;
}

/* `dtorch-run` goes on with fewer nodes than asked for ("3/4"): the dimension named "dp" shrinks in proportion, to one at least. */
static void shrink(PyObject *names, int ndim, int64_t *dims) {
    const char *nodes = getenv("DTORCH_RUN_NODES");
    int now, asked;
    if (!nodes || sscanf(nodes, "%d/%d", &now, &asked) != 2 || now < 1 || now >= asked || !PySequence_Check(names)) return;
    for (int d = 0; d < ndim; d++) {
        PyObject *name = PySequence_GetItem(names, d);
        if (name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "dp") == 0) {
            int64_t smaller = dims[d] * now / asked;
            if (dims[d] > 1) dims[d] = smaller > 1 ? smaller : 1;
        }
        PyErr_Clear();
        Py_XDECREF(name);
    }
}

static PyObject *init_device_mesh(PyObject *mod, PyObject *args, PyObject *kw) {
    static char *keys[] = {"device_type", "mesh_shape", "mesh_dim_names", "topology", NULL};
    PyObject *type, *shape, *names = Py_None, *topology = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "OO|OO:init_device_mesh", keys, &type, &shape, &names, &topology)) return NULL;
    dt_device_type t;
    int64_t dims[DT_MAX_MESH_DIM];
    int ndim;
    if (device_type_of(type, &t) < 0) return NULL;
    int r = dt_py_to_ints(shape, dims, DT_MAX_MESH_DIM, &ndim);
    if (r == 0) return PyErr_Format(PyExc_TypeError, "init_device_mesh(): argument 'mesh_shape' must be a tuple of ints, not %s", dt_py_type_name(shape));
    if (r > 0) shrink(names, ndim, dims);
    PyObject *m = r < 0 ? NULL : mesh_make(t, ndim, dims, NULL, names);
    if (m && topology != Py_None && set_wires((py_mesh *)m, topology) < 0) Py_CLEAR(m);
    return m;
}

/* DeviceMesh(device_type, mesh, mesh_dim_names=None): mesh is a nested sequence, array or tensor of device numbers. */
static PyObject *mesh_new(PyTypeObject *tp, PyObject *args, PyObject *kw) {
    static char *keys[] = {"device_type", "mesh", "mesh_dim_names", NULL};
    PyObject *type, *devices, *names = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "OO|O:DeviceMesh", keys, &type, &devices, &names)) return NULL;
    dt_device_type t;
    if (device_type_of(type, &t) < 0) return NULL;
    const dt_spec *spec;
    if (dt_py_spec_of_device(0, &spec) < 0) return NULL;
    dt_tensor *x = dt_py_tensor_from(devices, DT_int64, spec);
    dt_future *f = x ? dt_py_fetch(x) : NULL;
    if (x) dt_tensor_unref(x);
    if (!f) return NULL;
    PyObject *m = mesh_make(t, f->meta->ndim, f->meta->shape, f->buf->data, names);
    dt_future_unref(f);
    return m;
}

static PyObject *mesh_repr(PyObject *self) {
    py_mesh *m = (py_mesh *)self;
    DT_STR(s, 512);
    dt_str_add(&s, "DeviceMesh((");
    for (int i = 0; i < m->n; i++) {
        int d = m->dim[i];
        if (m->root->name[d][0]) dt_str_add(&s, "%s=", m->root->name[d]);
        dt_str_add(&s, "%lld%s", (long long)m->root->dim[d], i + 1 < m->n ? ", " : m->n == 1 && !m->root->name[d][0] ? "," : "");
    }
    dt_str_add(&s, "), '%s')", dt_device_type_name(dt_device_kind(m->root->dev[0])));
    return PyUnicode_FromString(s.buf);
}

/* print(mesh): the devices as a table. In formatted text a mesh stays one line. */
static PyObject *mesh_str(PyObject *self) {
    PyObject *show = PyImport_ImportModule("dtorch.distributed._show");
    PyObject *text = show ? PyObject_CallMethod(show, "mesh_text", "O", self) : NULL;
    Py_XDECREF(show);
    return text;
}
static PyObject *mesh_format(PyObject *self, PyObject *spec) {
    PyObject *text = mesh_repr(self), *out = text ? PyObject_Format(text, spec) : NULL;
    Py_XDECREF(text);
    return out;
}

static PyObject *mesh_compare(PyObject *a, PyObject *b, int op) {
    if (!dt_py_is_mesh(a) || !dt_py_is_mesh(b) || (op != Py_EQ && op != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
    py_mesh *x = (py_mesh *)a, *y = (py_mesh *)b;
    bool same = x->root == y->root && x->n == y->n && !memcmp(x->dim, y->dim, (size_t)x->n);
    return PyBool_FromLong(same == (op == Py_EQ));
}
static Py_hash_t mesh_hash(PyObject *a) {
    py_mesh *m = (py_mesh *)a;
    return (Py_hash_t)(((uintptr_t)m->root >> 4) * 31 + (uintptr_t)m->n);
}

static PyObject *mesh_get(PyObject *self, void *what) {
    py_mesh *m = (py_mesh *)self;
    switch ((int)(intptr_t)what) {
    case 0: return PyLong_FromLong(m->n);
    case 2: return PyUnicode_FromString(dt_device_type_name(dt_device_kind(m->root->dev[0])));
    case 4: {
        PyObject *l = PyList_New(m->root->n);
        for (int i = 0; l && i < m->root->n; i++) PyList_SET_ITEM(l, i, dt_py_device(m->root->dev[i], true));
        return l;
    }
    case 5: return dt_py_mesh(m->root);
    default: break;
    }
    bool names = (intptr_t)what == 3;
    for (int i = 0; names && i < m->n; i++)
        if (!m->root->name[m->dim[i]][0]) Py_RETURN_NONE;
    PyObject *t = PyTuple_New(m->n);
    for (int i = 0; t && i < m->n; i++) {
        PyObject *v = names ? PyUnicode_FromString(m->root->name[m->dim[i]]) : PyLong_FromLongLong(m->root->dim[m->dim[i]]);
        if (v)
            PyTuple_SET_ITEM(t, i, v);
        else
            Py_CLEAR(t);
    }
    return t;
}

static PyObject *mesh_size(PyObject *self, PyObject *args, PyObject *kw) {
    static char *keys[] = {"mesh_dim", NULL};
    PyObject *dim = Py_None;
    py_mesh *m = (py_mesh *)self;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|O:size", keys, &dim)) return NULL;
    if (dim == Py_None) {
        int64_t n = 1;
        for (int i = 0; i < m->n; i++) n *= m->root->dim[m->dim[i]];
        return PyLong_FromLongLong(n);
    }
    long d = PyUnicode_Check(dim) ? mesh_dim_named(m, dim) : PyLong_AsLong(dim);
    if (d < 0 && PyErr_Occurred()) return NULL;
    if (d < 0) d += m->n;
    if (d < 0 || d >= m->n) return PyErr_Format(PyExc_IndexError, "size(): dimension %R of a mesh of %d dimensions", dim, m->n);
    return PyLong_FromLongLong(m->root->dim[m->dim[d]]);
}

/* mesh["tp"], mesh["dp", "tp"] */
static PyObject *by_names(const py_mesh *m, PyObject *key) {
    PyObject *one[1] = {key}, *const *item = PyTuple_Check(key) ? PySequence_Fast_ITEMS(key) : one;
    Py_ssize_t n = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1;
    if (n > m->n) return PyErr_Format(PyExc_KeyError, "%zd names for a mesh of %d dimensions", n, m->n);
    py_mesh *o = PyObject_New(py_mesh, &mesh_type);
    if (!o) return NULL;
    o->root = m->root;
    o->n = (int)n;
    for (Py_ssize_t i = 0; i < n; i++) {
        int k = mesh_dim_named(m, item[i]);
        for (Py_ssize_t j = 0; k >= 0 && j < i; j++)
            if (o->dim[j] == m->dim[k]) {
                PyErr_Format(PyExc_KeyError, "%R is given twice", item[i]);
                k = -1;
            }
        if (k < 0) {
            Py_DECREF(o);
            return NULL;
        }
        o->dim[i] = m->dim[k];
    }
    return (PyObject *)o;
}

/* One index of a mesh dimension of `size` devices: 1 for a slice, 0 for a number (the dimension goes), -1 with an exception. */
static int position(PyObject *item, Py_ssize_t size, Py_ssize_t *lo, Py_ssize_t *step, Py_ssize_t *len) {
    if (PySlice_Check(item)) {
        Py_ssize_t stop;
        if (PySlice_Unpack(item, lo, &stop, step) < 0) return -1;
        *len = PySlice_AdjustIndices(size, lo, &stop, *step);
        if (*len == 0) PyErr_Format(PyExc_IndexError, "mesh index %R is an empty slice of size %zd", item, size);
        return *len ? 1 : -1;
    }
    if (!PyIndex_Check(item)) {
        PyErr_Format(PyExc_TypeError, "a mesh is indexed by names of dimensions, or by integers and slices, not by %s", dt_py_type_name(item));
        return -1;
    }
    *lo = PyNumber_AsSsize_t(item, PyExc_IndexError);
    if (*lo == -1 && PyErr_Occurred()) return -1;
    if (*lo < 0) *lo += size;
    *step = *len = 1;
    if (*lo >= 0 && *lo < size) return 0;
    PyErr_Format(PyExc_IndexError, "mesh index %R is out of range for size %zd", item, size);
    return -1;
}

/* mesh[0], mesh[1:3], mesh[:, 0], mesh["pp"][1]: a smaller root mesh. The i-th index goes along the i-th dimension of the part; dimensions of the
 * root that are not indexed stay whole. Where no dimension would be left, the one indexed last stays with size 1, so that plans by name work. */
static PyObject *by_position(const py_mesh *m, PyObject *key) {
    PyObject *one[1] = {key}, *const *item = PyTuple_Check(key) ? PySequence_Fast_ITEMS(key) : one;
    Py_ssize_t n = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1, lo[DT_MAX_MESH_DIM], step[DT_MAX_MESH_DIM], len[DT_MAX_MESH_DIM];
    const dt_mesh *root = m->root;
    if (n > m->n) return PyErr_Format(PyExc_IndexError, "%zd indices for a mesh of %d dimensions", n, m->n);
    bool gone[DT_MAX_MESH_DIM] = {false};
    for (int d = 0; d < root->ndim; d++) lo[d] = 0, step[d] = 1, len[d] = (Py_ssize_t)root->dim[d];
    int left = root->ndim;
    for (int i = 0; i < n; i++) {
        int d = m->dim[i], kept = position(item[i], (Py_ssize_t)root->dim[d], &lo[d], &step[d], &len[d]);
        if (kept < 0) return NULL;
        gone[d] = !kept;
        left -= !kept;
    }
    if (left == 0 && n > 0) gone[m->dim[n - 1]] = false;
    int64_t dims[DT_MAX_MESH_DIM], c[DT_MAX_MESH_DIM] = {0}, at[DT_MAX_MESH_DIM];
    const char *names[DT_MAX_MESH_DIM];
    int ndim = 0;
    for (int d = 0; d < root->ndim; d++) {
        if (gone[d]) continue;
        dims[ndim] = len[d];
        names[ndim++] = root->name[d];
    }
    static dt_device dev[DT_MAX_DEVICES]; /* under the GIL */
    for (int k = 0;; k++) {
        for (int d = 0; d < root->ndim; d++) at[d] = lo[d] + c[d] * step[d];
        dev[k] = root->dev[dt_mesh_index(root, at)];
        int d = root->ndim - 1;
        while (d >= 0 && ++c[d] == len[d]) c[d--] = 0;
        if (d < 0) break;
    }
    const dt_mesh *out;
    DT_PY_CHECK(dt_mesh_intern(ndim, dims, dev, names, &out));
    for (int d = 0, k = 0; d < root->ndim; d++) /* a smaller mesh is made of the same wires */
        if (!gone[d] && memcmp(&out->wire[k++], &root->wire[d], sizeof root->wire[d])) dt_link_set(out, k - 1, root->wire[d]);
    return dt_py_mesh(out);
}

static PyObject *mesh_subscript(PyObject *self, PyObject *key) {
    PyObject *first = PyTuple_Check(key) && PyTuple_GET_SIZE(key) ? PyTuple_GET_ITEM(key, 0) : key;
    return PyUnicode_Check(first) ? by_names((py_mesh *)self, key) : by_position((py_mesh *)self, key);
}

static PyObject *mesh_enter(PyObject *self, PyObject *none) {
    const dt_spec *spec;
    if (dt_py_spec(self, NULL, 0, &spec) < 0) return NULL;
    return dt_py_spec_push(spec) < 0 ? NULL : Py_NewRef(self);
}
static PyObject *mesh_exit(PyObject *self, PyObject *args) {
    dt_py_spec_pop();
    Py_RETURN_NONE;
}
static PyObject *itself(PyObject *self, PyObject *x) { return Py_NewRef(self); } /* immutable: a copy is itself */
static PyGetSetDef mesh_getset[] = {
    {"ndim", mesh_get, NULL, "The number of dimensions.", (void *)0},
    {"shape", mesh_get, NULL, "The sizes of the dimensions.", (void *)1},
    {"device_type", mesh_get, NULL, "'cpu', …", (void *)2},
    {"mesh_dim_names", mesh_get, NULL, "The dimensions' names, or None.", (void *)3},
    {"devices", mesh_get, NULL, "All devices of the root mesh, row-major.", (void *)4},
    {"topology", get_topology, set_topology,
     "What connects the devices along each dimension: {name: (bytes a second, seconds of latency)}. Set some or all of them, also to 'local' (inside a "
     "machine, the default) or 'network'. It steers how calls redistribute their inputs, and is no part of the mesh's identity.",
     NULL},
    {"root", mesh_get, NULL, "The whole mesh that this is a part of; tensors lie on it.", (void *)5},
    {0},
};
static PyMethodDef mesh_methods[] = {
    {"size", (PyCFunction)(void (*)(void))mesh_size, METH_VARARGS | METH_KEYWORDS,
     "size(mesh_dim=None): devices along a dimension (number or name), or in all."},
    {"__enter__", mesh_enter, METH_NOARGS, "Factories inside the with block make tensors replicated on this mesh."},
    {"__exit__", mesh_exit, METH_VARARGS, NULL},
    {"__copy__", itself, METH_NOARGS, NULL},
    {"__deepcopy__", itself, METH_O, NULL},
    {"__format__", mesh_format, METH_O, NULL},
    {0},
};
static PyMappingMethods mesh_mapping = {.mp_subscript = mesh_subscript};
static PyTypeObject mesh_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dtorch.distributed.device_mesh.DeviceMesh",
    .tp_doc = "DeviceMesh(device_type, mesh, mesh_dim_names=None): devices in an N-D array. mesh['tp'] and mesh['dp', 'tp'] are parts: tensors given to "
              "them lie on the whole (.root), replicated along the dimensions left out. mesh[0], mesh[:, 1:] and mesh['pp'][1] are smaller meshes: the "
              "devices at that position, with the dimensions that remain (one of size 1 if none does).",
    .tp_basicsize = sizeof(py_mesh),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = mesh_new,
    .tp_repr = mesh_repr,
    .tp_str = mesh_str,
    .tp_richcompare = mesh_compare,
    .tp_hash = mesh_hash,
    .tp_getset = mesh_getset,
    .tp_methods = mesh_methods,
    .tp_as_mapping = &mesh_mapping,
};

/* _mesh_stages(meshes): these are the stages of a pipeline, in this order. */
static PyObject *mesh_stages(PyObject *self, PyObject *list) {
    (void)self;
    PyObject *seq = PySequence_Fast(list, "expected a list of meshes");
    if (!seq) return NULL;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(seq);
    const dt_mesh **m = PyMem_Malloc(sizeof *m * (size_t)(n + 1));
    if (!m) {
        Py_DECREF(seq);
        return PyErr_NoMemory();
    }
    PyObject *r = Py_None;
    for (Py_ssize_t i = 0; i < n && r; i++) {
        PyObject *o = PySequence_Fast_GET_ITEM(seq, i);
        if (dt_py_is_mesh(o))
            m[i] = ((py_mesh *)o)->root;
        else
            r = PyErr_Format(PyExc_TypeError, "stage %zd must be a DeviceMesh, not %s", i, dt_py_type_name(o));
    }
    dt_status s = r ? dt_mesh_stages_set((int)n, m) : DT_OK;
    if (s) r = dt_py_raise(s);
    PyMem_Free(m);
    Py_DECREF(seq);
    return r ? Py_NewRef(r) : NULL;
}

static PyMethodDef functions[] = {
    {"_mesh_stages", mesh_stages, METH_O, NULL},
    {"init_device_mesh", (PyCFunction)(void (*)(void))init_device_mesh, METH_VARARGS | METH_KEYWORDS,
     "init_device_mesh(device_type, mesh_shape, mesh_dim_names=None, topology=None): a mesh of the devices 0, 1, … of a type, row-major. topology: as "
     "DeviceMesh.topology, such as {'dp': 'network', 'tp': (3e11, 1e-5)}."},
    {0},
};

int dt_py_mesh_init(PyObject *m) {
    PyTypeObject *types[] = {&placement_type, &shard_type, &replicate_type, &partial_type, &mesh_type};
    static const char *const names[] = {"Placement", "Shard", "Replicate", "Partial", "DeviceMesh"};
    for (int i = 0; i < 5; i++)
        if (PyType_Ready(types[i]) < 0 || PyModule_AddObjectRef(m, names[i], (PyObject *)types[i]) < 0) return -1;
    return PyModule_AddFunctions(m, functions);
}
