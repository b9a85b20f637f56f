/* dtorch-node: a node without Python. `mpiexec -n 1 python train.py : -n 3 dtorch-node` starts one interpreter, whatever the number of nodes.
 *
 * It looks for what the package would have told it, beginning at the folder above its own (a wheel installs it as PREFIX/bin/dtorch-node): the MPI
 * library in PREFIX/lib, the matrix products' in PREFIX/lib/python3.x/site-packages/scipy_openblas32. DTORCH_PREFIX, DTORCH_MPI and DTORCH_OPENBLAS
 * go before. */
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/net.h"
#include "node/node.h"

/* The folder above that of this program. */
static bool find_prefix(char *path, size_t cap) {
    ssize_t n = readlink("/proc/self/exe", path, cap - 1);
    if (n <= 0) return false;
    path[n] = 0;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(path, '/');
        if (!slash) return false;
        *slash = 0;
    }
    return true;
}

static void find_openblas(const char *prefix) {
    static const char *const folders[] = {"lib", "lib64"};
    for (int i = 0; i < 2 && !getenv("DTORCH_OPENBLAS"); i++) {
        char pattern[PATH_MAX + 128];
        snprintf(pattern, sizeof pattern, "%s/%s/python3*/site-packages/scipy_openblas32/lib/libscipy_openblas*.so*", prefix, folders[i]);
        glob_t found;
        if (!glob(pattern, 0, NULL, &found) && found.gl_pathc) setenv("DTORCH_OPENBLAS", found.gl_pathv[0], 1);
        globfree(&found);
    }
}

int main(int argc, char **argv) {
    char path[PATH_MAX];
    if (argc > 1 || !dt_net_launched() || dt_net_rank() == 0) {
        fprintf(stderr, "%s: a node of a dtorch program, without arguments, as any rank but 0: mpiexec -n 1 python train.py : -n 3 dtorch-node\n", argv[0]);
        return 2;
    }
    if (!getenv("DTORCH_PREFIX") && find_prefix(path, sizeof path)) setenv("DTORCH_PREFIX", path, 1);
    if (getenv("DTORCH_PREFIX")) find_openblas(getenv("DTORCH_PREFIX"));
    return dt_node_main();
}
