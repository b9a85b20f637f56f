/* What a request says that failed with its node.
 *
 * In MPI's fault-tolerant mode a transfer may fail before the progress thread has taken note of the failure. Who hears of the error (node 0, at the end of a chain
 * of results) must not find the node among those that are left, so the error waits for the note, and node 0 is told of it before the error can be.
 *
 * Threads: any but the progress thread. */
#include <time.h>

#include "comm/progress.h"

dt_status dt_net_lost(int rank, const char *how) {
    enum { PATIENCE_MS = 2000 };
    const struct timespec ms = {0, 1000000};
    for (int i = 0; i < PATIENCE_MS && dt_net_tolerant() && !dt_progress_lost(rank); i++) nanosleep(&ms, NULL);
    return dt_fail(DT_E_NODE, "node %d (%s) is lost%s", rank, dt_net_host(rank), how);
}
