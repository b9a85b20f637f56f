/* Which mesh a call runs on when its operands lie on two.
 *
 * Two cases are clear enough to be implied; everything else raises.
 *   part    one mesh is a position of the other's dimensions (mesh["pp"][1] of mesh): the call runs on the part. Operands of the whole have a copy or
 *           a shard there already, or bring it.
 *   stages  both were announced as stages of one pipeline (dt_mesh_stages_set): the call runs on the later one. Data flows forwards; a weight of an
 *           early stage that a late one reads again (tied embeddings) goes to where it is read.
 * An operand that moves keeps its placements by the names of mesh dimensions; dimensions without a namesake are replicated.
 *
 * The client's thread only. */
#include <string.h>

#include "client/internal.h"

enum { MAX_STAGES = 512 };
typedef struct stage {
    const dt_mesh *mesh;
    uint32_t pipeline, number;
} stage;
static stage stages[MAX_STAGES];
static uint32_t n_stages, n_pipelines;

static stage *stage_of(const dt_mesh *m) {
    for (uint32_t i = 0; i < n_stages; i++)
        if (stages[i].mesh == m) return &stages[i];
    return NULL;
}

dt_status dt_mesh_stages_set(int n, const dt_mesh *const *meshes) {
    if (n_stages + (uint32_t)n > MAX_STAGES) { /* long-forgotten pipelines go: their meshes then raise when mixed */
        n_stages = 0;
        if (n > MAX_STAGES) return dt_fail(DT_E_VALUE, "a pipeline has at most %d stages, got %d", MAX_STAGES, n);
    }
    n_pipelines++;
    for (int i = 0; i < n; i++) {
        stage *s = stage_of(meshes[i]);
        if (!s) s = &stages[n_stages++];
        *s = (stage){meshes[i], n_pipelines, (uint32_t)i};
    }
    return DT_OK;
}

int dt_mesh_dim_like(const dt_mesh *m, const char *name) {
    for (int d = 0; name[0] && d < m->ndim; d++)
        if (!strcmp(m->name[d], name)) return d;
    return -1;
}

/* Is `part` a position of `whole` along some of its dimensions, whole along the others? */
static bool is_part(const dt_mesh *part, const dt_mesh *whole) {
    if (part->n >= whole->n || !whole->ndim) return false;
    for (int d = 0, last = -1; d < part->ndim; d++) {
        int k = dt_mesh_dim_like(whole, part->name[d]);
        if (k <= last || (part->dim[d] != 1 && part->dim[d] != whole->dim[k])) return false;
        last = k;
    }
    for (int i = 0; i < part->n; i++)
        if (dt_mesh_find(whole, part->dev[i]) < 0) return false;
    return true;
}

const dt_mesh *dt_mesh_join(const dt_mesh *a, const dt_mesh *b) {
    if (is_part(a, b)) return a;
    if (is_part(b, a)) return b;
    const stage *x = stage_of(a), *y = stage_of(b);
    if (!x || !y || x->pipeline != y->pipeline) return NULL;
    return x->number > y->number ? a : b;
}

dt_placement dt_place_like(const dt_meta *m, const dt_mesh *mesh, int d) {
    if (m->mesh == mesh) return m->place[d];
    int k = dt_mesh_dim_like(m->mesh, mesh->name[d]);
    if (k < 0 || m->place[k].kind != DT_SHARD) return DT_R;
    dt_placement p = m->place[k];
    if (m->mesh->dim[k] != mesh->dim[d]) p.split = 0;
    return p;
}
