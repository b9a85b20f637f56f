/* What the launcher says: which of how many processes this one is, from the variables that mpiexec and srun set. Known before MPI is opened.
 *
 * Threads: any; the environment is read, and must not be changed meanwhile. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "comm/net.h"

static int env_int(const char *const *names) {
    for (; *names; names++) {
        const char *v = getenv(*names);
        if (v && *v) return atoi(v);
    }
    return -1;
}
static bool launched(void);
int dt_net_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", NULL};
    int r = env_int(names);
    return dt_net_launched() && r > 0 ? r : 0;
}
int dt_net_size(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", NULL};
    int n = env_int(names);
    return n > 1 && n <= DT_NET_RANKS ? n : 1;
}
bool dt_net_launched(void) {
    static _Atomic int known; /* asked once: a child process gets DTORCH_NODES=1 and is on its own */
    if (!known) known = launched() ? 2 : 1;
    return known == 2;
}
static bool launched(void) {
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", NULL};
    const char *off = getenv("DTORCH_NODES");
    return !(off && !strcmp(off, "1")) && env_int(ranks) >= 0 && dt_net_size() > 1;
}
int dt_net_local_size(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE", NULL};
    int n = dt_net_launched() ? env_int(names) : 1;
    return n > 0 ? n : 1;
}
int dt_net_local_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", NULL};
    int n = dt_net_launched() ? env_int(names) : 0;
    return n > 0 ? n : 0;
}
