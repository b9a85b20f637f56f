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
