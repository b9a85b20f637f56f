/* A node: the controller's hand on another machine. It keeps plans, binds them to the memory of its devices and runs them; it knows nothing of graphs,
 * tensors or Python. Ranks other than 0 of a run under mpiexec or srun are nodes from their first line to their last. */
#ifndef DT_NODE_NODE_H
#define DT_NODE_NODE_H

#include "base/status.h"

/* Serves until the controller says stop or is lost; returns the process's exit status. Prints to stderr why, when it is not 0. */
int dt_node_main(void);

/* Entries, in order, and the bulk data of some of them; *stop when the controller says so. E_INTERNAL when they are not legal. Main thread. */
dt_status dt_node_entries(const void *data, size_t bytes, const void *attached, size_t attached_bytes, bool *stop) DT_WUR;

#endif
