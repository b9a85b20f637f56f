/* A simulation as the client sees it: start, stop, and what its devices did. All are called by the client's thread while the engine is idle, after a sync
 * and with nothing recorded since: the controller's state is then still, and the sync's future has ordered its writes before these reads. Nodes hold a
 * block of the devices each: memory, plans and runs are theirs, the clocks are here. */
#include "plan/sim.h"
#include "controller/engine.h"
#include "controller/remote.h"

/* Devices a node holds: what the first simulation of several devices makes it, since buffers are found by it. Device 0 is this node's either way. */
static void spread(int n) {
    static bool settled;
    if (settled || n < 2) return;
    settled = true;
    dt_node_simulated = (n + dt_nodes - 1) / dt_nodes;
}

/* A simulation is a function of its program: it finds no plan, nothing to repeat and no order of an earlier one. */
dt_status dt_engine_sim_start(const dt_hardware *h, int n) {
    if (dt_nodes > 1) DT_TRY(dt_engine_start());
    DT_TRY(dt_sim_start(h, n));
    dt_devices_sim_begin(h->memory);
    if (dt_nodes > 1) spread(n);
    dt_engine_enter();
    dt_cache_forget_simulated(&dt_the_engine);
    dt_order_sim(true);
    if (dt_nodes > 1) dt_remote_sim(dt_node_simulated, h->memory);
    dt_engine_leave();
    return DT_OK;
}

void dt_engine_sim_stop(void) {
    dt_sim_stop();
    dt_engine_enter();
    dt_order_sim(false);
    dt_engine_leave();
}

void dt_engine_sim_get(int i, dt_sim_device *clock, dt_memory_stats *memory) {
    const dt_device_state *all = dt_the_devices.device[DT_SIM];
    *clock = *dt_sim_device_get(i);
    *memory = all && all[i].alloc.backend ? all[i].alloc.stats : (dt_memory_stats){0};
}

void dt_engine_sim_memory(dt_memory_stats *out, int n, dt_future *f) {
    dt_engine_enter();
    atomic_store(&f->parts, 1);
    for (int i = 0; i < n; i++) {
        dt_device d = dt_device_make(DT_SIM, (uint32_t)i);
        if (dt_device_here(d)) continue;
        dt_future_ref(f);
        atomic_fetch_add(&f->parts, 1);
        (void)dt_remote_stats(d, &out[i], f, false);
    }
    if (dt_nodes > 1) dt_remote_flush();
    dt_future_part(f, NULL);
    dt_engine_leave();
}
