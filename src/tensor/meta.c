/* Interned metadata. See meta.h. */
#include "tensor/meta.h"

#include <pthread.h>
#include <string.h>

#include "base/arena.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dt_htab metas;
static dt_arena arena;

static bool equal(const dt_meta *a, const dt_meta *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim && a->wrapped == b->wrapped && a->mesh == b->mesh && !memcmp(a->place, b->place, sizeof a->place) &&
           !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
}

static dt_status intern(const dt_meta *proto, const dt_meta **out) {
    uint64_t h = dt_hash_mix(proto->mesh ? proto->mesh->link.hash : 0, proto->dtype | (uint64_t)proto->ndim << 8 | (uint64_t)proto->wrapped << 16);
    h = dt_hash_bytes(proto->place, sizeof proto->place, h);
    h = dt_hash_bytes(proto->shape, (size_t)proto->ndim * sizeof *proto->shape, h);
    pthread_mutex_lock(&lock);
    dt_status s = metas.slot ? DT_OK : dt_htab_init(&metas, 1024);
    for (dt_hlink *l = s ? NULL : dt_htab_first(&metas, h); l; l = l->next)
        if (l->hash == h && equal((dt_meta *)l, proto)) {
            *out = (dt_meta *)l;
            pthread_mutex_unlock(&lock);
            return DT_OK;
        }
    dt_meta *m = s ? NULL : dt_arena_copy(&arena, proto, sizeof *proto);
    if (!s && !m) s = dt_fail(DT_E_NOMEM, "tensor metadata: out of host memory");
    if (!s) s = dt_htab_add(&metas, &m->link, h);
    pthread_mutex_unlock(&lock);
    if (!s) *out = m;
    return s;
}

size_t dt_metas_count(void) {
    pthread_mutex_lock(&lock);
    size_t n = metas.count;
    pthread_mutex_unlock(&lock);
    return n;
}

static dt_status set_shape(dt_meta *m, const dt_type *t) {
    if (t->ndim < 0 || t->ndim > DT_MAX_DIM) return dt_fail(DT_E_VALUE, "a tensor of %d dimensions: at most %d are supported", t->ndim, DT_MAX_DIM);
    m->dtype = (uint8_t)t->dtype;
    m->ndim = (uint8_t)t->ndim;
    m->numel = 1;
    bool empty = false;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0) return dt_fail(DT_E_SHAPE, "size %lld of dimension %d is negative", (long long)t->shape[i], i);
        m->shape[i] = t->shape[i];
        if (t->shape[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(m->numel, t->shape[i], &m->numel) || m->numel > INT64_MAX / 16)
            return dt_fail(DT_E_SHAPE, "a tensor with more than 2^59 elements");
    }
    if (empty) m->numel = 0;
    return DT_OK;
}

static dt_status set_place(dt_meta *m, const dt_mesh *mesh, const dt_placement *place) {
    m->mesh = mesh;
    for (int i = 0; i < mesh->ndim; i++) {
        dt_placement p = place[i];
        if (p.kind == DT_SHARD) {
            int d = p.dim < 0 ? p.dim + m->ndim : p.dim;
            if (d < 0 || d >= m->ndim)
                return dt_fail(DT_E_PLACEMENT, "Shard(%d) on a tensor of %d dimensions: legal are %d to %d", p.dim, m->ndim, -(int)m->ndim, m->ndim - 1);
            p = place[i].window ? DT_S_WINDOW(d, place[i].split) : DT_S_ROWS(d, place[i].split);
            if (p.window) { /* a part even along a mesh dimension of one device */
                m->place[i] = p;
                m->sharded = 1;
                continue;
            }
            if (p.split && m->ndim > DT_MAX_DIM / 2)
                return dt_fail(DT_E_PLACEMENT, "strided shards: a tensor of %d dimensions, at most %d are possible", m->ndim, DT_MAX_DIM / 2);
            if (p.split && m->shape[d] % p.split)
                return dt_fail(DT_E_PLACEMENT, "Shard(%d, split_factor=%d): the dimension's size %lld is not a multiple", d, p.split, (long long)m->shape[d]);
            for (int k = 0; k < i; k++)
                if (p.split && !m->place[k].window && m->place[k].kind == DT_SHARD && m->place[k].dim == d && m->place[k].split && m->place[k].split != p.split)
                    return dt_fail(DT_E_PLACEMENT, "two strided shards of dimension %d with split factors %d and %d", d, m->place[k].split, p.split);
        }
        m->place[i] = p;
        if (p.kind != DT_REPLICATE && mesh->dim[i] > 1) m->sharded = 1;
    }
    return DT_OK;
}

dt_status dt_meta_intern(const dt_type *type, const dt_mesh *mesh, const dt_placement *place, const dt_meta **out) {
    dt_meta m = {0};
    DT_TRY(set_shape(&m, type));
    if (!mesh) mesh = dt_mesh_single(dt_default_device);
    if (!mesh) return dt_fail(DT_E_NOMEM, "tensor metadata: out of host memory");
    DT_TRY(set_place(&m, mesh, place));
    return intern(&m, out);
}

const dt_meta *dt_meta_wrapped(dt_dtype number) {
    static const dt_meta *cache[DT_DTYPE_COUNT];
    const dt_meta *m = __atomic_load_n(&cache[number], __ATOMIC_ACQUIRE);
    if (m) return m;
    dt_meta p = {.dtype = (uint8_t)number, .wrapped = 1, .numel = 1};
    if (intern(&p, &m)) return NULL;
    __atomic_store_n(&cache[number], m, __ATOMIC_RELEASE);
    return m;
}

dt_status dt_meta_with_type(const dt_meta *m, const dt_type *type, const dt_meta **out) { return dt_meta_intern(type, m->mesh, m->place, out); }

dt_status dt_meta_with_dtype(const dt_meta *m, dt_dtype dtype, const dt_meta **out) {
    dt_meta p = *m;
    p.dtype = (uint8_t)dtype;
    return intern(&p, out);
}

dt_status dt_meta_with_spec(const dt_meta *m, const dt_mesh *mesh, const dt_placement *place, const dt_meta **out) {
    dt_type t = dt_meta_type(m);
    return dt_meta_intern(&t, mesh, place, out);
}

int64_t dt_type_numel(const dt_type *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->shape[i];
    return n;
}

void dt_shape_print(int ndim, const int64_t *shape, dt_str *s) {
    dt_str_add(s, "(");
    for (int i = 0; i < ndim; i++) dt_str_add(s, "%lld%s", (long long)shape[i], i + 1 < ndim ? ", " : ndim == 1 ? "," : "");
    dt_str_add(s, ")");
}

void dt_placements_print(const dt_mesh *mesh, const dt_placement *p, dt_str *s) {
    dt_str_add(s, "[");
    for (int i = 0; i < mesh->ndim; i++) {
        if (i) dt_str_add(s, ", ");
        dt_placement_print(p[i], s);
    }
    dt_str_add(s, "]");
}

void dt_meta_print(const dt_meta *m, dt_str *s) {
    dt_str_add(s, "%s ", dt_dtype_name((dt_dtype)m->dtype));
    dt_shape_print(m->ndim, m->shape, s);
    if (!m->mesh) return;
    dt_str_add(s, " on ");
    dt_mesh_print(m->mesh, s);
    if (!m->mesh->ndim) return;
    dt_str_add(s, " ");
    dt_placements_print(m->mesh, m->place, s);
}

bool dt_meta_same_shape(const dt_meta *a, const dt_meta *b) { return a->ndim == b->ndim && !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape); }

dt_status dt_dim_wrap(int64_t *dim, int ndim) {
    int n = ndim ? ndim : 1;
    if (*dim < -n || *dim >= n)
        return dt_fail(DT_E_INDEX, "Dimension out of range (expected to be in range of [%d, %d], but got %lld)", -n, n - 1, (long long)*dim);
    if (*dim < 0) *dim += n;
    return DT_OK;
}
