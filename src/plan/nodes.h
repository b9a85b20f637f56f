/* Which machine a device belongs to. A run of one process has one node; a run under mpiexec or srun has one a rank, and each owns a block of device
 * indices: node = index / dt_node_devices. Set once, before the first device starts; read by any thread. Only which nodes are lost changes later. Simulated
 * devices are spread in blocks of another size, which the first simulation of more than one device sets: their plans, memory and runs are kept by the nodes,
 * their clocks by the controller. */
#ifndef DT_PLAN_NODES_H
#define DT_PLAN_NODES_H

#include "tensor/mesh.h"

extern int dt_nodes;          /* 1 unless launched as several */
extern int dt_node_self;      /* the rank of this process */
extern int dt_node_devices;   /* device indices a node owns, of each type */
extern int dt_node_simulated; /* the same of simulated devices */
extern int dt_node_local;     /* nodes on this host: they share its cores */

static inline int dt_device_node(dt_device d) {
    if (DT_LIKELY(dt_nodes == 1)) return 0;
    int n = (int)(dt_device_index(d) / (uint32_t)(dt_device_kind(d) == DT_SIM ? dt_node_simulated : dt_node_devices));
    return n < dt_nodes ? n : dt_nodes - 1;
}
static inline bool dt_device_here(dt_device d) { return dt_device_node(d) == dt_node_self; }
/* Do they need messages to meet? Simulated ones meet in the simulation alone. */
static inline bool dt_devices_apart(dt_device a, dt_device b) { return dt_device_kind(a) != DT_SIM && dt_device_node(a) != dt_device_node(b); }
/* The controller's: a node that is lost stays so. Any thread. */
void dt_node_lose(int node);
bool dt_node_lost(int node);
/* The index of device i of n that spread over the nodes that are left, neighbours on one node. UINT32_MAX: they have not so many. */
uint32_t dt_nodes_spread(int i, int n);

#endif
