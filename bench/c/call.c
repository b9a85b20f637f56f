/* What does one call cost the client? Nanoseconds of dt_invoke of add on (1,) tensors, the call being cached; without and with recording.
 *
 * Build: gcc -O2 -std=gnu17 -D_GNU_SOURCE -DDT_INTERNAL -Iinclude -Isrc -Ibuild/src bench/c/call.c -Wl,--whole-archive \
 *        build/src/libdtorch_core.a -Wl,--no-whole-archive -lm -ldl -lpthread. The engine runs beside it, as in a program. */
#include <stdio.h>

#include "base/ring.h"
#include "client/internal.h"
#include "dtorch_ops.h"

enum { CALLS = 2000000, BATCH = 500 };

static double run(dt_tensor *x, dt_tensor *y, int rounds) {
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], x);
    dt_arg_tensor(&a.a[1], y);
    double best = 1e9;
    for (int r = 0; r < rounds; r++) {
        uint64_t t0 = dt_now_ns();
        for (int i = 0; i < BATCH; i++) {
            dt_tensor *z;
            int n;
            if (dt_invoke(&dt_op_add, &a, 1, &z, &n)) return -1;
            dt_tensor_unref(z);
        }
        double ns = (double)(dt_now_ns() - t0) / BATCH;
        if (ns < best) best = ns;
        if (r % 8 == 0 && dt_synchronize()) return -1;
    }
    return best;
}

int main(void) {
    dt_scope *s = dt_scope_new();
    float one = 1;
    dt_tensor *x = dt_from_host(s, &one, DT_float32, DT_DIMS(1)), *y = dt_from_host(s, &one, DT_float32, DT_DIMS(1));
    printf("add, plain     %6.1f ns\n", run(x, y, CALLS / BATCH));
    dt_requires_grad_set(x, true);
    printf("add, recorded  %6.1f ns\n", run(x, y, CALLS / BATCH));
    const struct dt_mesh *m = dt_mesh_cpu(1, (int64_t[]){2}, NULL);
    dt_tensor *p = dt_distribute(s, y, m, "R");
    printf("add, on a mesh %6.1f ns\n", run(p, p, CALLS / BATCH));
    dt_scope_free(s);
    return 0;
}
