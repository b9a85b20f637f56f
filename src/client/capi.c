/* The public C API (dtorch.h) over the client: thin functions. See dtorch.h for what they mean. */
#include <ctype.h>
#include <stdlib.h>

#include "client/internal.h"
#include "plan/nodes.h"

const char *dt_error(void) { return dt_error_message(); }

dt_tensor *dt_keep(dt_tensor *t) { return t ? dt_tensor_ref(t) : NULL; }
void dt_release(dt_tensor *t) { dt_tensor_unref(t); }

/* NULL, what a failed call returns, is as a tensor without elements. */
int dt_ndim(const dt_tensor *t) { return t ? dt_tensor_meta(t)->ndim : 0; }
const int64_t *dt_shape(const dt_tensor *t) {
    static const int64_t none[DT_MAX_DIM];
    return t ? dt_tensor_meta(t)->shape : none;
}
int64_t dt_numel(const dt_tensor *t) { return t ? dt_tensor_meta(t)->numel : 0; }
int dt_dtype_of(const dt_tensor *t) { return t ? dt_tensor_meta(t)->dtype : DT_DTYPE_NONE; }
bool dt_is_sharded(const dt_tensor *t, int dim) {
    const dt_meta *m = t ? dt_tensor_meta(t) : NULL;
    for (int i = 0; m && i < m->mesh->ndim; i++)
        if (m->place[i].kind == DT_SHARD && m->place[i].dim == dim && m->mesh->dim[i] > 1) return true;
    return false;
}

const dt_meta *dt_meta_of(const dt_tensor *t) { return t ? dt_tensor_meta(t) : NULL; }
void dt_random_take(uint64_t n, dt_value *seed, dt_value *offset) {
    uint64_t s, o;
    dt_generator_take(dt_generator_default(), n, &s, &o);
    *seed = dt_v_int((int64_t)s);
    *offset = dt_v_int((int64_t)o);
}

static dt_status from_host(const void *data, int dtype, dt_dims shape, dt_tensor **out) {
    if (dtype < 0 || dtype >= DT_DTYPE_COUNT) return dt_fail(DT_E_TYPE, "dt_from_host: dtype %d does not exist", dtype);
    if (shape.n < 0 || shape.n > DT_MAX_DIM) return dt_fail(DT_E_VALUE, "dt_from_host: shape has %d dimensions, legal are 0 to %d", shape.n, DT_MAX_DIM);
    dt_type type = {(dt_dtype)dtype, shape.n, {0}};
    memcpy(type.shape, shape.v, (size_t)shape.n * sizeof *shape.v);
    const dt_meta *meta;
    DT_TRY(dt_meta_intern(&type, NULL, NULL, &meta)); /* checks the sizes */
    size_t bytes = (size_t)meta->numel * dt_dtype_size((dt_dtype)dtype);
    if (bytes && !data) return dt_fail(DT_E_VALUE, "dt_from_host: data is NULL");
    dt_hostbuf *buf;
    DT_TRY(dt_hostbuf_new(bytes, &buf));
    if (bytes) memcpy(buf->data, data, bytes);
    DT_TRY(dt_tensor_from_host(buf, &type, NULL, out));
    dt_future *f = dt_credit_take();
    while (f && !dt_engine_wait(f, -1)) continue;
    if (f) dt_future_unref(f);
    return DT_OK;
}

dt_tensor *dt_from_host(dt_scope *s, const void *data, int dtype, dt_dims shape) {
    dt_tensor *t = NULL;
    if (!s || s->status) return NULL;
    dt_status r = from_host(data, dtype, shape, &t);
    if (r) dt_scope_fail(s, r);
    return r ? NULL : dt_scope_own(s, t);
}

static dt_status await(dt_future *f) {
    while (!dt_engine_wait(f, -1)) continue; /* interrupted by a signal: its handler has run, wait on */
    return dt_future_status(f);
}

int dt_read(dt_tensor *t, void *out, size_t bytes) {
    if (!t) return (int)dt_fail(DT_E_VALUE, "dt_read: the tensor is NULL");
    const dt_meta *m = dt_tensor_meta(t);
    size_t need = (size_t)m->numel * dt_dtype_size((dt_dtype)m->dtype);
    if (bytes != need) return (int)dt_fail(DT_E_VALUE, "dt_read: room for %zu bytes, the tensor has %zu", bytes, need);
    dt_future *f;
    dt_status s = dt_tensor_fetch(t, &f);
    if (s) return (int)s;
    s = await(f);
    if (!s && need) memcpy(out, f->buf->data, need);
    dt_future_unref(f);
    return (int)s;
}

int dt_item_f64(dt_tensor *t, double *out) {
    if (!t) return (int)dt_fail(DT_E_VALUE, "dt_item_f64: the tensor is NULL");
    const dt_meta *m = dt_tensor_meta(t);
    if (m->numel != 1) return (int)dt_fail(DT_E_VALUE, "a Tensor with %lld elements cannot be converted to Scalar", (long long)m->numel);
    char room[16];
    int s = dt_read(t, room, dt_dtype_size((dt_dtype)m->dtype));
    if (!s) *out = dt_element_get_f64((dt_dtype)m->dtype, room);
    return s;
}

int dt_synchronize(void) {
    dt_future *f;
    dt_status s = dt_sync_async(&f);
    if (s) return (int)s;
    s = await(f);
    dt_future_unref(f);
    return (int)s;
}

/* ---- autograd ---- */
void dt_requires_grad_set(dt_tensor *t, bool on) {
    if (t && dt_tensor_requires_grad_set(t, on)) return; /* dt_error has the reason */
}
bool dt_requires_grad(const dt_tensor *t) { return t && dt_tensor_requires_grad(t); }
dt_tensor *dt_grad_of(const dt_tensor *t) { return t && !dt_tensor_grad_settle((dt_tensor *)t) ? dt_tensor_grad(t) : NULL; }
void dt_grad_clear(dt_tensor *t) {
    if (t && dt_tensor_grad_set(t, NULL)) return; /* clearing cannot fail */
}

int dt_backward(dt_tensor *loss, dt_tensor *gradient, bool retain_graph, bool create_graph) {
    if (!loss) return (int)dt_fail(DT_E_VALUE, "dt_backward: the tensor is NULL");
    dt_backward_args a = {.n_roots = 1, .roots = &loss, .grads = &gradient, .retain_graph = retain_graph || create_graph, .create_graph = create_graph};
    return (int)dt_backward_run(&a, NULL);
}

bool dt_grad_mode_set(bool on) { return dt_mode_grad_set(on); }

void dt_manual_seed(uint64_t seed) { dt_generator_default()->state = (dt_gen_state){.seed = seed}; }

/* ---- distribution ---- */
const struct dt_mesh *dt_mesh_cpu(int ndim, const int64_t *dims, const char *const *names) {
    int64_t n = 1;
    if (ndim < 0 || ndim > DT_MAX_MESH_DIM || (ndim && !dims)) {
        (void)dt_fail(DT_E_VALUE, "dt_mesh_cpu: %d dimensions; a mesh has 0 to %d", ndim, DT_MAX_MESH_DIM);
        return NULL;
    }
    for (int i = 0; i < ndim; i++) {
        if (dims[i] < 1 || dims[i] > DT_MAX_DEVICES || (n *= dims[i]) > DT_MAX_DEVICES) {
            (void)dt_fail(DT_E_VALUE, "dt_mesh_cpu: size %lld of dimension %d; a mesh has 1 to %d devices", (long long)dims[i], i, DT_MAX_DEVICES);
            return NULL;
        }
    }
    dt_device dev[DT_MAX_DEVICES];
    for (int64_t i = 0; i < n; i++) dev[i] = dt_device_make(DT_CPU, dt_nodes_spread((int)i, (int)n));
    const dt_mesh *m;
    return dt_mesh_intern(ndim, dims, dev, names, &m) ? NULL : m;
}

/* "S0,R,P": one placement per mesh dimension. */
static dt_status parse_placements(const char *text, const dt_mesh *mesh, dt_placement *p) {
    int n = 0;
    for (const char *c = text; *c;) {
        if (n == mesh->ndim) return dt_fail(DT_E_PLACEMENT, "placements '%s': more than the mesh's %d dimensions", text, mesh->ndim);
        while (*c == ' ') c++;
        if (*c == 'R')
            p[n++] = DT_R, c++;
        else if (*c == 'P')
            p[n++] = DT_P, c++;
        else if (*c == 'S' && (isdigit((unsigned char)c[1]) || c[1] == '-')) {
            char *end;
            long d = strtol(c + 1, &end, 10);
            if (d < -DT_MAX_DIM || d >= DT_MAX_DIM) return dt_fail(DT_E_PLACEMENT, "placements '%s': dimension %ld", text, d);
            p[n++] = DT_S(d);
            c = end;
        } else
            return dt_fail(DT_E_PLACEMENT, "placements '%s': expected R, P or S followed by a dimension", text);
        while (*c == ' ' || *c == ',') c++;
    }
    if (n != mesh->ndim) return dt_fail(DT_E_PLACEMENT, "placements '%s': the mesh has %d dimensions", text, mesh->ndim);
    return DT_OK;
}

dt_tensor *dt_distribute(dt_scope *s, dt_tensor *t, const struct dt_mesh *mesh, const char *placements) {
    if (!s || s->status || !t) return NULL;
    dt_placement p[DT_MAX_MESH_DIM] = {{0}};
    dt_status r = mesh && placements ? parse_placements(placements, mesh, p) : dt_fail(DT_E_VALUE, "dt_distribute: the mesh or the placements are NULL");
    const dt_meta *m;
    if (!r) r = dt_meta_with_spec(dt_tensor_meta(t), mesh, p, &m); /* negative dimensions are wrapped there */
    if (r) {
        dt_scope_fail(s, r);
        return NULL;
    }
    dt_tensor *d = dt_util_redistribute(s, t, mesh, m->place);
    return d == t ? dt_scope_own(s, dt_keep(t)) : d;
}

void dt_set_num_threads(int n) { dt_engine_threads_set(n); }
