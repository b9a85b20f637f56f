/* Views: aliases of reshapes against element order, and the table's literals themselves. */
#include "test.h"

#include "ops/op.h"

static uint32_t seed = 7;
static uint32_t rnd(uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}
static int64_t offset_of(const dt_view *v, int64_t i) {
    int64_t o = 0;
    for (int d = v->ndim - 1; d >= 0; d--) {
        o += i % v->shape[d] * v->stride[d];
        i /= v->shape[d];
    }
    return o;
}

TEST(the_table_loads) { REQUIRE_OK(dt_ops_init()); }

/* A random factorisation of n into dims. */
static void factors(int64_t n, dt_view *v) {
    v->ndim = 0;
    while (n > 1 && v->ndim < 5) {
        int64_t f = 1 + rnd(6);
        if (n % f) continue;
        v->shape[v->ndim++] = f;
        n /= f;
    }
    v->shape[v->ndim++] = n;
}

TEST(reshape_aliases_keep_the_order_of_elements) {
    int made = 0;
    for (int round = 0; round < 3000; round++) {
        dt_view in = {.dtype = DT_float32}, out = {.dtype = DT_float32};
        int64_t n = (int64_t[]){1, 12, 24, 36, 60}[rnd(5)];
        factors(n, &in);
        factors(n, &out);
        dt_view_set_contiguous(&in);
        if (rnd(2) && in.ndim > 1) { /* swap two dims */
            int a = (int)rnd((uint32_t)in.ndim), b = (int)rnd((uint32_t)in.ndim);
            int64_t t = in.shape[a];
            in.shape[a] = in.shape[b];
            in.shape[b] = t;
            t = in.stride[a];
            in.stride[a] = in.stride[b];
            in.stride[b] = t;
        }
        dt_alias x = {.in = &in, .out = &out};
        if (!dt_op_reshape.alias(&x)) {
            CHECK(!dt_view_contiguous(&in));
            continue;
        }
        made++;
        for (int64_t i = 0; i < n; i++)
            if (offset_of(&in, i) != x.offset + offset_of(&out, i)) {
                TEST_FAIL("round %d, element %lld", round, (long long)i);
                return;
            }
    }
    CHECK(made > 1000);
}
