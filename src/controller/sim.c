/* A simulation as the client sees it: start, stop, and what its devices did. All are called by the client's thread while the engine is idle, after a sync
 * and with nothing recorded since: the controller's state is then still, and the sync's future has ordered its writes before these reads. */
#include "plan/sim.h"
#include "controller/engine.h"

dt_status dt_engine_sim_start(const dt_hardware *h, int n) {
    DT_TRY(dt_sim_start(h, n));
    dt_device_state *all = dt_the_devices.device[DT_SIM];
    for (int i = 0; all && i < DT_MAX_DEVICES; i++) { /* tensors of an earlier simulation may be alive: they count */
        dt_memory_stats *m = &all[i].alloc.stats;
        if (!all[i].alloc.backend) continue;
        m->limit = h->memory;
        m->allocated_peak = m->allocated;
        m->reserved_peak = m->reserved;
        m->n_oom = 0;
    }
    return DT_OK;
}

void dt_engine_sim_stop(void) { dt_sim_stop(); }

void dt_engine_sim_get(int i, dt_sim_device *clock, dt_memory_stats *memory) {
    const dt_device_state *all = dt_the_devices.device[DT_SIM];
    *clock = *dt_sim_device_get(i);
    *memory = all && all[i].alloc.backend ? all[i].alloc.stats : (dt_memory_stats){0};
}
