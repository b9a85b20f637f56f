/* What exchanges of rows moved to this node's devices, until the controller asks: only the receivers know how much. By kind, mesh dimension and line, as
 * comm_report has it, and by sender.
 *
 * Threads: any; a lock. */
#ifndef DT_NODE_MOVED_H
#define DT_NODE_MOVED_H

#include "plan/program.h"
#include "plan/serial.h"

/* Where the bytes of one exchange are counted: for dt_moved_add. NULL without memory: then they are missing from a report. Never freed. */
void *dt_moved_entry(const dt_coll *c, uint32_t site);
void dt_moved_add(void *entry, dt_device sender, uint64_t bytes);
/* Everything since the last time, as DT_R_MOVED entries. */
void dt_moved_take(dt_wire *w);

#endif
