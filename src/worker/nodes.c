/* Who this process is among the nodes of a run. See plan/nodes.h. */
#include <stdlib.h>

#include "comm/net.h"
#include "worker/devices.h"

int dt_nodes = 1, dt_node_self, dt_node_devices = 1 << 16, dt_node_local = 1;

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
