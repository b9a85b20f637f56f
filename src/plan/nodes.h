/* Which machine a device belongs to. A run of one process has one node; a run under mpiexec or srun has one a rank, and each owns a block of device
 * indices: node = index / dt_node_devices. Set once, before the first device starts; read by any thread. */
#ifndef DT_PLAN_NODES_H
#define DT_PLAN_NODES_H

#include "tensor/mesh.h"

extern int dt_nodes;        /* 1 unless launched as several */
extern int dt_node_self;    /* the rank of this process */
extern int dt_node_devices; /* device indices a node owns, of each type */
extern int dt_node_local;   /* nodes on this host: they share its cores */

static inline int dt_device_node(dt_device d) {
    if (DT_LIKELY(dt_nodes == 1)) return 0;
    int n = (int)(dt_device_index(d) / (uint32_t)dt_node_devices);
    return n < dt_nodes ? n : dt_nodes - 1;
}
static inline bool dt_device_here(dt_device d) { return dt_device_node(d) == dt_node_self; }
/* The index of device i of n that spread over all nodes, neighbours on one node. */
static inline uint32_t dt_nodes_spread(int i, int n) {
    int each = (n + dt_nodes - 1) / dt_nodes;
    return dt_nodes == 1 ? (uint32_t)i : (uint32_t)(i / each * dt_node_devices + i % each);
}

#endif
