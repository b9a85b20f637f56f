/* Devices, meshes, placements. See mesh.h. */
#include "tensor/mesh.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dt_htab meshes, specs;
dt_device dt_default_device;

const char *dt_device_type_name(dt_device_type t) {
    static const char *const names[] = {"cpu", "sim", "cuda"};
    return t < DT_DEVICE_TYPES ? names[t] : "?";
}

static bool mesh_equal(const dt_mesh *a, const dt_mesh *b) {
    return a->ndim == b->ndim && a->n == b->n && !memcmp(a->dim, b->dim, sizeof a->dim) && !memcmp(a->name, b->name, sizeof a->name) &&
           !memcmp(a->dev, b->dev, (size_t)a->n * sizeof *a->dev);
}

/* Positions in the order of their devices: a heap sort, in place. */
static void sort_devices(const dt_mesh *m, int32_t *p) {
    for (int i = 0; i < m->n; i++) p[i] = i;
    for (int n = m->n, start = n / 2; n > 1;) {
        if (start)
            start--;
        else {
            int32_t t = p[--n];
            p[n] = p[0];
            p[0] = t;
        }
        for (int at = start, kid; (kid = 2 * at + 1) < n; at = kid) {
            if (kid + 1 < n && m->dev[p[kid + 1]] > m->dev[p[kid]]) kid++;
            if (m->dev[p[at]] >= m->dev[p[kid]]) break;
            int32_t t = p[at];
            p[at] = p[kid];
            p[kid] = t;
        }
    }
}

static dt_status mesh_check(const dt_mesh *m, const char *const *names) {
    for (int i = 0; i + 1 < m->n; i++) {
        dt_device d = m->dev[m->sorted[i]];
        if (d == m->dev[m->sorted[i + 1]])
            return dt_fail(DT_E_VALUE, "device mesh: device %s:%u appears twice", dt_device_type_name(dt_device_kind(d)), dt_device_index(d));
    }
    for (int i = 0; names && i < m->ndim; i++)
        for (int j = 0; j < i; j++)
            if (names[i] && names[i][0] && names[j] && !strcmp(names[i], names[j]))
                return dt_fail(DT_E_VALUE, "device mesh: mesh_dim_names has \"%s\" twice", names[i]);
    return DT_OK;
}

/* Add m to the table, or free it and return its equal. Takes the lock. */
static dt_status mesh_publish(dt_mesh *m, const dt_mesh **out) {
    uint64_t h = dt_hash_bytes(m->dim, sizeof m->dim, (uint64_t)m->ndim);
    h = dt_hash_bytes(m->name, sizeof m->name, h);
    h = dt_hash_bytes(m->dev, (size_t)m->n * sizeof *m->dev, h);
    pthread_mutex_lock(&lock);
    dt_status s = meshes.slot ? DT_OK : dt_htab_init(&meshes, 64);
    for (dt_hlink *l = s ? NULL : dt_htab_first(&meshes, h); l; l = l->next)
        if (l->hash == h && mesh_equal((dt_mesh *)l, m)) {
            *out = (dt_mesh *)l;
            pthread_mutex_unlock(&lock);
            dt_free(m);
            return DT_OK;
        }
    if (!s) s = dt_htab_add(&meshes, &m->link, h);
    pthread_mutex_unlock(&lock);
    if (s)
        dt_free(m);
    else
        *out = m;
    return s;
}

dt_status dt_mesh_intern(int ndim, const int64_t *dims, const dt_device *devices, const char *const *names, const dt_mesh **out) {
    if (ndim < 0 || ndim > DT_MAX_MESH_DIM) return dt_fail(DT_E_VALUE, "device mesh: %d dimensions, legal are 0 to %d", ndim, DT_MAX_MESH_DIM);
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) {
        if (dims[i] < 1) return dt_fail(DT_E_VALUE, "device mesh: size %lld of dimension %d must be at least 1", (long long)dims[i], i);
        n *= dims[i];
        if (n > DT_MAX_DEVICES) return dt_fail(DT_E_VALUE, "device mesh: more than %d devices", DT_MAX_DEVICES);
    }
    dt_mesh *m = dt_calloc(1, sizeof *m + (size_t)n * (sizeof *m->dev + sizeof *m->sorted));
    if (!m) return dt_fail(DT_E_NOMEM, "device mesh: out of host memory");
    m->ndim = ndim;
    m->n = (int)n;
    for (int i = 0; i < ndim; i++) m->dim[i] = dims[i];
    for (int i = 0; i < ndim; i++) m->wire[i] = DT_LINK_LOCAL;
    for (int i = 0; names && i < ndim; i++) snprintf(m->name[i], sizeof m->name[i], "%s", names[i] ? names[i] : "");
    memcpy(m->dev, devices, (size_t)n * sizeof *m->dev);
    int32_t *sorted = (int32_t *)(m->dev + n);
    sort_devices(m, sorted);
    m->sorted = sorted;
    dt_status s = mesh_check(m, names);
    if (s) {
        dt_free(m);
        return s;
    }
    return mesh_publish(m, out);
}

void dt_mesh_link_set(const dt_mesh *m, int d, dt_link w) { ((dt_mesh *)m)->wire[d] = w; }

const dt_mesh *dt_mesh_single(dt_device d) {
    static const dt_mesh *cpu0; /* the common case without the lock */
    if (d == 0 && __atomic_load_n(&cpu0, __ATOMIC_ACQUIRE)) return cpu0;
    const dt_mesh *m = NULL;
    if (dt_mesh_intern(0, NULL, &d, NULL, &m)) return NULL;
    if (d == 0) __atomic_store_n(&cpu0, m, __ATOMIC_RELEASE);
    return m;
}

void dt_mesh_coords(const dt_mesh *m, int i, int64_t *coords) {
    for (int d = m->ndim - 1; d >= 0; d--) {
        coords[d] = i % m->dim[d];
        i /= (int)m->dim[d];
    }
}

int dt_mesh_index(const dt_mesh *m, const int64_t *coords) {
    int64_t i = 0;
    for (int d = 0; d < m->ndim; d++) i = i * m->dim[d] + coords[d];
    return (int)i;
}

int dt_mesh_find(const dt_mesh *m, dt_device d) {
    int lo = 0, hi = m->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (m->dev[m->sorted[mid]] < d)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < m->n && m->dev[m->sorted[lo]] == d ? m->sorted[lo] : -1;
}

void dt_mesh_print(const dt_mesh *m, dt_str *s) {
    if (m->ndim == 0) {
        dt_str_add(s, "%s:%u", dt_device_type_name(dt_device_kind(m->dev[0])), dt_device_index(m->dev[0]));
        return;
    }
    dt_str_add(s, "DeviceMesh((");
    for (int i = 0; i < m->ndim; i++) {
        if (m->name[i][0]) dt_str_add(s, "%s=", m->name[i]);
        dt_str_add(s, "%lld%s", (long long)m->dim[i], i + 1 < m->ndim ? ", " : "");
    }
    dt_str_add(s, "), %s)", dt_device_type_name(dt_device_kind(m->dev[0])));
}

void dt_placement_print(dt_placement p, dt_str *s) {
    static const char *const ops[] = {"sum", "avg", "max", "min"};
    if (p.kind == DT_REPLICATE)
        dt_str_add(s, "Replicate()");
    else if (p.kind == DT_SHARD && p.window)
        dt_str_add(s, "Shard(%d) moved", p.dim);
    else if (p.kind == DT_SHARD && p.split)
        dt_str_add(s, "Shard(%d, split_factor=%d)", p.dim, p.split);
    else if (p.kind == DT_SHARD)
        dt_str_add(s, "Shard(%d)", p.dim);
    else
        dt_str_add(s, "Partial(\"%s\")", ops[p.reduce & 3]);
}

dt_status dt_spec_intern(const dt_mesh *mesh, const dt_placement *place, const dt_spec **out) {
    dt_placement p[DT_MAX_MESH_DIM] = {{0}};
    if (mesh->ndim) memcpy(p, place, (size_t)mesh->ndim * sizeof *p);
    uint64_t h = dt_hash_bytes(p, sizeof p, mesh->link.hash);
    pthread_mutex_lock(&lock);
    dt_status s = specs.slot ? DT_OK : dt_htab_init(&specs, 64);
    for (dt_hlink *l = s ? NULL : dt_htab_first(&specs, h); l; l = l->next) {
        dt_spec *c = (dt_spec *)l;
        if (l->hash == h && c->mesh == mesh && !memcmp(c->place, p, sizeof p)) {
            *out = c;
            pthread_mutex_unlock(&lock);
            return DT_OK;
        }
    }
    dt_spec *n = s ? NULL : dt_calloc(1, sizeof *n);
    if (!s && !n) s = dt_fail(DT_E_NOMEM, "placements: out of host memory");
    if (!s) {
        n->mesh = mesh;
        memcpy(n->place, p, sizeof p);
        s = dt_htab_add(&specs, &n->link, h);
    }
    pthread_mutex_unlock(&lock);
    if (!s) *out = n;
    return s;
}
