/* Lifetime of plans and buffers. See program.h. Any thread. */
#include "plan/program.h"

#include "plan/backend.h"

void dt_plan_unref(dt_plan *p) {
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    for (int i = 0; p->call && i < p->n_nodes; i++) dt_call_unref(p->call[i]);
    dt_free(p->key);
    dt_arena_fini(&p->arena);
    dt_free(p);
}

const dt_backend *dt_backend_of(dt_device_type t) { return t == DT_CPU ? &dt_backend_cpu : t == DT_SIM ? &dt_backend_sim : NULL; }

dt_status dt_coll_group(dt_coll *c, dt_arena *arena) {
    if (c->n_groups <= 1) {
        c->n_groups = 1;
        return DT_OK;
    }
    c->member = DT_ARENA_ARRAY(arena, int, c->n);
    c->first = DT_ARENA_ARRAY(arena, int, c->n_groups + 2);
    if (!c->member || !c->first) return dt_fail(DT_E_NOMEM, "plan: out of host memory");
    for (int i = 0; i < c->n; i++) c->first[c->party[i].group + 2]++;
    for (int g = 2; g < c->n_groups + 2; g++) c->first[g] += c->first[g - 1]; /* first[g + 1]: where group g begins, until it is filled */
    for (int i = 0; i < c->n; i++) c->member[c->first[c->party[i].group + 1]++] = i;
    return DT_OK;
}

bool dt_coll_meet_alike(const dt_coll *a, const dt_coll *b) {
    if (a->n != b->n || a->n_groups != b->n_groups) return false;
    for (int i = 0; i < a->n; i++)
        if (a->party[i].device != b->party[i].device || a->party[i].group != b->party[i].group) return false;
    return true;
}
