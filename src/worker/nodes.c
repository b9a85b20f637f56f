/* Who this process is among the nodes of a run. See plan/nodes.h. */
#include <stdatomic.h>
#include <stdlib.h>

#include "comm/net.h"
#include "worker/devices.h"

int dt_nodes = 1, dt_node_self, dt_node_devices = 1 << 16, dt_node_simulated = 1 << 16, dt_node_local = 1;

static _Atomic bool lost[DT_NET_RANKS];

void dt_node_lose(int node) { atomic_store(&lost[node], true); }
bool dt_node_lost(int node) { return atomic_load(&lost[node]); }

uint32_t dt_nodes_spread(int i, int n) {
    int left = 0, node = 0;
    if (dt_nodes == 1) return (uint32_t)i;
    for (int k = 0; k < dt_nodes; k++) left += !dt_node_lost(k);
    int each = (n + left - 1) / left;
    if (each > dt_node_devices) return UINT32_MAX;
    for (int before = i / each; dt_node_lost(node) || before-- > 0;) node++; /* the controller's own node is always left */
    return (uint32_t)(node * dt_node_devices + i % each);
}

void dt_nodes_init(void) {
    if (!dt_net_launched()) return;
    const char *count = getenv("DTORCH_CPU_DEVICES");
    int n = count ? atoi(count) : 0;
    dt_node_devices = n > 0 && n < DT_MAX_DEVICES / dt_net_size() ? n : DT_MAX_DEVICES / dt_net_size();
    if (dt_node_devices > 64) dt_node_devices = 64;
    dt_nodes = dt_net_size();
    dt_node_self = dt_net_rank();
    dt_node_local = dt_net_local_size();
}
