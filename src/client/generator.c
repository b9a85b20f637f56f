/* Generators: a seed and a position in its stream of counters. Values are made by kernels from (seed, offset, global index); see
 * ops/random.h. The default generator starts at seed 0, so that a program without a seed repeats too. */
#include "client/internal.h"

static dt_generator default_generator = {.refs = 1};

dt_generator *dt_generator_default(void) { return &default_generator; }

dt_generator *dt_generator_new(void) {
    dt_generator *g = dt_malloc(sizeof *g);
    if (g)
        *g = (dt_generator){.refs = 1};
    else
        (void)dt_fail(DT_E_NOMEM, "generator: out of host memory");
    return g;
}

void dt_generator_unref(dt_generator *g) {
    if (g && g != &default_generator && --g->refs == 0) dt_free(g);
}

void dt_generator_take(dt_generator *g, uint64_t n, uint64_t *seed, uint64_t *offset) {
    *seed = g->state.seed;
    *offset = g->state.offset;
    g->state.offset += n;
}
