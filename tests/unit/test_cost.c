/* The cost model against its formulas: operators by hand-made instructions, rings and trees by hand-made traffic. */
#include "plan/cost.h"

#include <math.h>

#include "ops/conv.h"
#include "plan/fused.h"
#include "test.h"

static const dt_hardware hw = {
    .name = "test",
    .flops = {[DT_float32] = 1e12, [DT_bfloat16] = 4e12},
    .vector = 1e11,
    .share = {0.5, 0.25, 2, 0.5, 0.5, 1},
    .half = {1e9, 0, 0, 0},
    .bandwidth = 1e10,
    .overhead = 1e-6,
    .n_levels = 2,
    .level = {{4, 1e9, 1e-6}, {1 << 16, 1e8, 1e-5}},
};

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)); }

static dt_view matrix(dt_dtype t, int64_t m, int64_t n) {
    dt_view v = {.dtype = t, .ndim = 2, .shape = {m, n}};
    dt_view_set_contiguous(&v);
    return v;
}

TEST(matmul) {
    REQUIRE(dt_ops_init() == DT_OK);
    for (int k = 0; k < 2; k++) {
        dt_dtype t = k ? DT_bfloat16 : DT_float32;
        dt_view v[3] = {matrix(t, 512, 1024), matrix(t, 1024, 2048), matrix(t, 512, 2048)};
        dt_instr s = {.n_in = 2, .n_out = 1, .view = v, .ctx = {.op = &dt_op_matmul, .n_in = 2, .n_out = 1, .in = v, .out = v + 2}};
        dt_op_cost c;
        dt_cost_instr(&hw, &s, &c);
        double flops = 2.0 * 512 * 1024 * 2048, peak = k ? 4e12 : 1e12;
        REQUIRE(near(c.flops, flops));
        REQUIRE(near(c.ideal, flops / peak));
        REQUIRE(near(c.seconds, 1e-6 + (flops + 1e9) / (peak * 0.5)));
    }
}

/* Winograd's form is told from others by the kernels' own rule: 3 x 3 at unit steps with tiles enough. */
TEST(convolution) {
    REQUIRE(dt_ops_init() == DT_OK);
    for (int images = 8; images <= 16; images += 8)
        for (int step = 1; step <= 2; step++) {
            dt_view v[3] = {{.dtype = DT_float32, .ndim = 4, .shape = {images, 512, 4, 4}},
                            {.dtype = DT_float32, .ndim = 4, .shape = {512, 512, 3, 3}},
                            {.dtype = DT_float32, .ndim = 4, .shape = {images, 512, 4 / step, 4 / step}}};
            for (int i = 0; i < 3; i++) dt_view_set_contiguous(&v[i]);
            dt_conv_attr a = {.stride = {2, {step, step}}, .padding = {2, {1, 1}}, .dilation = {2, {1, 1}}, .groups = 1};
            dt_instr s = {.n_in = 2, .n_out = 1, .view = v, .ctx = {.op = &dt_op_conv, .attr = &a, .n_in = 2, .n_out = 1, .in = v, .out = v + 2}};
            dt_op_cost c;
            dt_cost_instr(&hw, &s, &c);
            double share = step == 1 && images == 16 ? 2 : 0.25;
            REQUIRE(near(c.flops, 2.0 * images * (16 / step / step) * 512 * 512 * 9));
            REQUIRE(near(c.seconds, 1e-6 + fmax(c.flops / (1e12 * share), c.bytes / 1e10)));
        }
}

TEST(memory_bound) {
    REQUIRE(dt_ops_init() == DT_OK);
    dt_view v[3] = {matrix(DT_float32, 1000, 1000), matrix(DT_float32, 1000, 1000), matrix(DT_float32, 1000, 1000)};
    v[1].stride[0] = 0; /* broadcast: 1000 elements are read */
    dt_instr s = {.n_in = 2, .n_out = 1, .view = v, .ctx = {.op = &dt_op_add, .n_in = 2, .n_out = 1, .in = v, .out = v + 2}};
    dt_op_cost c;
    dt_cost_instr(&hw, &s, &c);
    REQUIRE(near(c.bytes, 4.0 * 2001000));
    REQUIRE(near(c.seconds, 1e-6 + 4.0 * 2001000 / 1e10));
    REQUIRE(c.flops == 0);
}

TEST(links) {
    REQUIRE(dt_cost_level(&hw, dt_device_make(DT_SIM, 0), dt_device_make(DT_SIM, 3)) == 0);
    REQUIRE(dt_cost_level(&hw, dt_device_make(DT_SIM, 3), dt_device_make(DT_SIM, 4)) == 1);
    double latency, moving;
    dt_traffic in_machine = {.in = {3e6}, .out = {3e6}, .peers = {3}};
    dt_cost_transfer(&hw, "all_gather", &in_machine, &latency, &moving);
    REQUIRE(near(latency, 3e-6) && near(moving, 3e-3));
    dt_cost_transfer(&hw, "all_reduce", &in_machine, &latency, &moving);
    REQUIRE(near(latency, 2 * 2e-6) && near(moving, 3e-3)); /* the tree of 4: two levels, up and down */
    /* 2 machines of 4: 4 links leave a machine, 4e8 bytes a second, slower than the 1e9 inside */
    dt_traffic across = {.in = {3e6, 4e6}, .out = {3e6, 4e6}, .peers = {3, 4}};
    dt_cost_transfer(&hw, "reduce_scatter", &across, &latency, &moving);
    REQUIRE(near(moving, 7e6 / 4e8));
    REQUIRE(near(latency, 1e-5 + 2 * 3e-6)); /* a ring of 8: 6 hops inside, 1 (and the way back, not needed) across */
    /* one device a machine, 8 machines */
    dt_traffic alone = {.in = {0, 7e6}, .out = {0, 7e6}, .peers = {0, 7}};
    dt_cost_transfer(&hw, "all_gather", &alone, &latency, &moving);
    REQUIRE(near(moving, 7e6 / 1e8) && near(latency, 7e-5));
    dt_traffic send = {.in = {0, 1e6}, .peers = {0, 1}};
    dt_cost_transfer(&hw, "send", &send, &latency, &moving);
    REQUIRE(near(moving, 1e-2) && near(latency, 1e-5));
}

/* Along a mesh dimension, and of a redistribution, by placements alone: 8 devices in 2 machines of 4. */
TEST(placements_alone) {
    REQUIRE(dt_ops_init() == DT_OK);
    dt_device dev[8], one = dt_device_make(DT_SIM, 0);
    for (int i = 0; i < 8; i++) dev[i] = dt_device_make(DT_SIM, (uint32_t)i);
    const dt_mesh *m, *line, *alone;
    REQUIRE_OK(dt_mesh_intern(2, (int64_t[]){2, 4}, dev, NULL, &m));
    REQUIRE_OK(dt_mesh_intern(1, (int64_t[]){8}, dev, NULL, &line));
    REQUIRE_OK(dt_mesh_intern(0, NULL, &one, NULL, &alone));
    dt_link across = dt_cost_along(&hw, m, 0), inside = dt_cost_along(&hw, m, 1), both = dt_cost_along(&hw, line, 0);
    REQUIRE(near(across.bandwidth, 1e8) && near(across.latency, 1e-5));
    REQUIRE(near(inside.bandwidth, 1e9) && near(inside.latency, 2e-6)); /* a tree of four */
    REQUIRE(near(both.bandwidth, 4e8) && near(both.latency, 1.2e-5));   /* four links leave each machine */
    dt_type t = {.dtype = DT_float32, .ndim = 2, .shape = {8000, 1000}};
    const dt_meta *a, *b;
    double whole = 4.0 * 8000 * 1000;
    dt_placement rows[2] = {DT_S(0), DT_S(1)}, none[2] = {DT_R, DT_R}, gathered[2] = {DT_S(0), DT_R}, sums[2] = {DT_P, DT_S(1)};
    REQUIRE_OK(dt_meta_intern(&t, m, rows, &a));
    REQUIRE(dt_cost_redistribution(&hw, a, a) == 0);
    REQUIRE_OK(dt_meta_intern(&t, m, gathered, &b));
    REQUIRE(near(dt_cost_redistribution(&hw, a, b), 1e-6 + 2e-6 + whole / 2 * 3 / 4 / 1e9));
    REQUIRE_OK(dt_meta_intern(&t, m, none, &b));
    REQUIRE(near(dt_cost_redistribution(&hw, b, a), 0)); /* slices */
    REQUIRE_OK(dt_meta_intern(&t, m, sums, &a));
    REQUIRE_OK(dt_meta_intern(&t, m, (dt_placement[2]){DT_R, DT_S(1)}, &b));
    REQUIRE(near(dt_cost_redistribution(&hw, a, b), 1e-6 + 2e-5 + 2 * whole / 4 / 2 / 1e8));
    REQUIRE_OK(dt_meta_intern(&t, alone, none, &b));
    REQUIRE(near(dt_cost_redistribution(&hw, a, b), 1e-6 + 1e-5 + 2 * whole / 1e8));
}

TEST(generations) {
    uint32_t before = dt_hardware_generation;
    dt_hardware_set(&hw);
    REQUIRE(dt_hardware_get()->bandwidth == 1e10 && dt_hardware_generation != before);
    dt_hardware_set(NULL);
    REQUIRE(dt_hardware_get() == &dt_hardware_plain);
}
