/* Plans as bytes: what is written is read back alike, and bytes that are not a plan are refused, whatever they are. Messages to a node likewise. */
#include "client/internal.h"
#include "controller/engine.h"
#include "dtorch_ops.h"
#include "node/node.h"
#include "plan/remote.h"
#include "plan/serial.h"
#include "test.h"

/* A node ends when its controller speaks nonsense, so what it held then is not given back; its tables live as long as the process. */
const char *__lsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void) { return "leak:dt_node_entries\n"; }

static uint32_t rng = 7;
static uint32_t rnd(uint32_t n) {
    rng = rng * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)rng * n) >> 32);
}

static bool all(void *ctx, dt_device d) { return true; }
static bool below(void *ctx, dt_device d) { return dt_device_index(d) < *(uint32_t *)ctx; }

static dt_tensor *iota(dt_scope *s, const dt_mesh *mesh, int64_t rows, int64_t cols, const char *places) {
    float x[4096];
    for (int i = 0; i < rows * cols; i++) x[i] = (float)(i % 17) / 8 - 1;
    return dt_distribute(s, dt_from_host(s, x, DT_float32, DT_DIMS(rows, cols)), mesh, places);
}

/* Two layers and their gradients on a mesh: products, fused groups, collectives of all kinds. */
static void work(const char *x_place, const char *w_place) {
    dt_scope *s = dt_scope_new();
    const dt_mesh *mesh = dt_mesh_cpu(2, (int64_t[]){2, 2}, (const char *const[]){"dp", "tp"});
    dt_tensor *x = iota(s, mesh, 10, 7, x_place), *w = iota(s, mesh, 7, 9, w_place), *v = iota(s, mesh, 9, 5, "R,S0"), *scale = iota(s, mesh, 1, 9, "R,R");
    dt_requires_grad_set(w, true);
    dt_requires_grad_set(v, true);
    dt_requires_grad_set(scale, true);
    dt_tensor *h = dt_mul(s, dt_matmul(s, x, w), 0.5);
    h = dt_sub(s, h, DT_V(dt_mean(s, h, DT_DIMS(1), true, DT_DTYPE_NONE))); /* rows, and in the gradient columns, in fused groups */
    int64_t rows[10] = {3, 0, 5, 5, 1, 2, 6, 4, 0, 3};
    dt_tensor *at = dt_distribute(s, dt_from_host(s, rows, DT_int64, DT_DIMS(10)), mesh, "R,R"), *table = iota(s, mesh, 7, 9, "R,R");
    h = dt_add(s, h, DT_V(dt_mul(s, dt_index_select(s, table, 0, at), 2.0))); /* a read by index in a group */
    dt_tensor *y = dt_sum(s, dt_exp(s, dt_matmul(s, dt_tanh(s, dt_mul(s, h, DT_V(scale))), v)), DT_NO_DIMS, false, DT_DTYPE_NONE);
    REQUIRE(y != NULL);
    REQUIRE_OK(dt_backward(y, NULL, false, false));
    float got[64];
    REQUIRE_OK(dt_read(dt_grad_of(w), got, 63 * 4));
    REQUIRE_OK(dt_read(dt_grad_of(scale), got, 9 * 4));
    dt_scope_free(s);
}

static void write_plan(const dt_plan *p, dt_device_fn here, void *ctx, dt_wire *w) { REQUIRE_OK(dt_plan_write(p, here, ctx, w)); }

static void check_round_trip(const dt_plan *p) {
    dt_wire a = {0}, b = {0};
    write_plan(p, all, NULL, &a);
    dt_unwire u = {a.data, a.n, 0, false};
    dt_plan *q;
    REQUIRE_OK(dt_plan_read(&u, &q));
    CHECK_INT(u.at, u.n);
    CHECK_INT(q->n_programs, p->n_programs);
    for (int i = 0; i < p->n_programs; i++) {
        CHECK_INT(q->program[i].n_instr[0], p->program[i].n_instr[0]);
        CHECK_INT(q->program[i].n_slots, p->program[i].n_slots);
        for (int k = 0; k < p->program[i].n_instr[0]; k++) CHECK(q->program[i].instr[0][k].fn == p->program[i].instr[0][k].fn);
    }
    write_plan(q, all, NULL, &b);
    CHECK(a.n == b.n && !memcmp(a.data, b.data, a.n));
    dt_plan_unref(q);
    dt_wire_free(&a);
    dt_wire_free(&b);
}

/* From a block of exactly their size, so that a sanitizer sees a read beyond it. */
static void read_bytes(const uint8_t *data, size_t n) {
    uint8_t *exact = malloc(n ? n : 1);
    memcpy(exact, data, n);
    dt_unwire u = {exact, n, 0, false};
    dt_plan *q;
    if (!dt_plan_read(&u, &q)) dt_plan_unref(q);
    free(exact);
}

static void damage(const dt_plan *p, int rounds) {
    dt_wire w = {0};
    uint32_t two = 2;
    write_plan(p, below, &two, &w);
    dt_plan *q;
    dt_unwire u = {w.data, w.n, 0, false};
    REQUIRE_OK(dt_plan_read(&u, &q));
    dt_plan_unref(q);
    uint8_t *copy = malloc(w.n);
    for (int i = 0; i < rounds; i++) {
        memcpy(copy, w.data, w.n);
        for (uint32_t k = 1 + rnd(3); k; k--) copy[rnd((uint32_t)w.n)] = (uint8_t)(rnd(3) ? rnd(256) : rnd(2) * 255);
        read_bytes(copy, w.n);
        size_t cut = rnd((uint32_t)w.n);
        u = (dt_unwire){w.data, cut, 0, false};
        CHECK(dt_plan_read(&u, &q) != DT_OK); /* every byte of a plan is needed */
        read_bytes(w.data, cut);
    }
    free(copy);
    dt_wire_free(&w);
}

static int each_plan(void (*f)(const dt_plan *p)) {
    const dt_htab *t = &dt_the_engine.plans;
    int n = 0;
    for (size_t i = 0; i <= t->mask; i++)
        for (dt_hlink *l = t->slot[i]; l; l = l->next, n++) f((const dt_plan *)l);
    return n;
}
static void damage_some(const dt_plan *p) { damage(p, 1500); }

TEST(plans_come_back_alike) {
    work("S0,R", "R,S1");
    work("S0,S1", "R,S0");
    CHECK(each_plan(check_round_trip) >= 2);
}

static int each = 1; /* devices a node */
static bool exactly(void *ctx, dt_device d) { return (int)dt_device_index(d) / each == *(int *)ctx; }

/* Every device but the first a node: what each restores of what was written for all is what is written for it alone. */
static int alike;
static void check_alike(const dt_plan *p) {
    int node[8] = {0, 1, 2, 3, 4, 5, 6, 7}, n, nodes = p->n_programs / each;
    for (int first = 1; first < nodes; first += n) { /* without the controller's own, which is the first of replicas */
        dt_wire together = {0};
        REQUIRE_OK(dt_plan_write_alike(p, exactly, node + first, nodes - first, &together, &n));
        REQUIRE(n >= 1 && n <= nodes - first);
        alike += n - 1;
        for (int k = 0; k < n; k++) {
            dt_wire alone = {0}, restored = {0};
            dt_unwire u = {together.data, together.n, 0, false};
            dt_plan *q;
            write_plan(p, exactly, &node[first + k], &alone);
            REQUIRE_OK(dt_plan_read_alike(&u, (uint64_t)k, &q));
            CHECK_INT(u.at, u.n);
            CHECK_INT(q->program[0].device, p->program[(first + k) * each].device);
            write_plan(q, all, NULL, &restored);
            CHECK(alone.n == restored.n && !memcmp(alone.data, restored.data, alone.n));
            dt_plan_unref(q);
            dt_wire_free(&alone);
            dt_wire_free(&restored);
        }
        dt_wire_free(&together);
    }
}

/* Groups that come twice in a program, and not as often on every device: its last ones have no rows, or less. */
static void uneven(int64_t rows, const char *place) {
    dt_scope *s = dt_scope_new();
    const dt_mesh *mesh = dt_mesh_cpu(1, (int64_t[]){8}, (const char *const[]){"dp"});
    dt_tensor *x = iota(s, mesh, rows, 6, place), *w = iota(s, mesh, 6, 6, "R"), *y = x;
    for (int i = 0; i < 3; i++) y = dt_matmul(s, dt_relu(s, dt_add(s, dt_mul(s, y, 2.0), 1.0)), w);
    y = dt_sub(s, y, DT_V(dt_sum(s, y, DT_DIMS(0), true, DT_DTYPE_NONE)));
    if (rows > 2) { /* what some devices have nothing of */
        dt_tensor *z = dt_tanh(s, dt_mul(s, dt_narrow(s, y, 0, 1, 1), 0.5));
        y = dt_add(s, y, DT_V(dt_mul(s, dt_relu(s, dt_roll(s, x, DT_DIMS(1), DT_DIMS(0))), 0.5)));
        y = dt_add(s, dt_tanh(s, dt_mul(s, y, 0.5)), DT_V(dt_sum(s, dt_tanh(s, dt_mul(s, z, 0.5)), DT_DIMS(0), true, DT_DTYPE_NONE)));
    }
    y = dt_cat(s, DT_LIST(y, x), 0);
    y = dt_tanh(s, dt_mul(s, y, 0.5));
    float got[1024];
    REQUIRE(y != NULL);
    REQUIRE_OK(dt_read(y, got, (size_t)rows * 2 * 6 * 4));
    dt_scope_free(s);
}

TEST(plans_of_nodes_that_do_alike_are_written_once) {
    for (int64_t rows = 1; rows < 20; rows++) uneven(rows, rows % 3 ? "S0" : "S1");
    work("S0,R", "R,S1"); /* 10 rows and 9 columns by two: uneven, of another size on every second device */
    work("S0,S1", "R,S0");
    CHECK(each_plan(check_alike) >= 2);
    each = 2;
    CHECK(each_plan(check_alike) >= 2);
    each = 1;
    alike = 0;
    CHECK(each_plan(check_alike) >= 2);
    int before = alike;
    dt_scope *s = dt_scope_new();
    const dt_mesh *mesh = dt_mesh_cpu(1, (int64_t[]){4}, (const char *const[]){"dp"});
    dt_tensor *x = iota(s, mesh, 8, 6, "S0"), *w = iota(s, mesh, 6, 6, "R");
    dt_tensor *y = dt_relu(s, dt_add(s, dt_matmul(s, x, w), DT_V(dt_cumsum(s, x, 1, DT_DTYPE_NONE))));
    y = dt_sub(s, y, DT_V(dt_sum(s, y, DT_DIMS(0), true, DT_DTYPE_NONE))); /* an all-reduce */
    float got[48];
    REQUIRE_OK(dt_read(y, got, sizeof got));
    dt_scope_free(s);
    alike = 0;
    CHECK(each_plan(check_alike) > 0);
    CHECK(alike >= before + 2); /* shards of the new ones begin at 2, 4 and 6 */
}

static void damage_alike(const dt_plan *p) {
    int node[8] = {0, 1, 2, 3, 4, 5, 6, 7}, n;
    dt_wire w = {0};
    REQUIRE_OK(dt_plan_write_alike(p, exactly, node, p->n_programs, &w, &n));
    for (int i = 0; i < 1500; i++) {
        uint8_t *copy = malloc(w.n);
        memcpy(copy, w.data, w.n);
        for (uint32_t k = 1 + rnd(3); k; k--) copy[rnd(rnd(2) ? (uint32_t)w.n : 12)] = (uint8_t)rnd(256);
        size_t cut = rnd(4) ? w.n : rnd((uint32_t)w.n);
        uint8_t *exact = malloc(cut ? cut : 1);
        memcpy(exact, copy, cut);
        dt_unwire u = {exact, cut, 0, false};
        dt_plan *q;
        if (!dt_plan_read_alike(&u, rnd(2) ? rnd(4) : rng, &q)) dt_plan_unref(q);
        free(exact);
        free(copy);
    }
    dt_wire_free(&w);
}

TEST(damaged_steps_are_refused_or_harmless) {
    work("S0,R", "R,S1");
    CHECK(each_plan(damage_alike) >= 1);
}

TEST(damaged_plans_are_refused_or_harmless) {
    work("S0,R", "R,S1");
    work("S1,S0", "S0,R");
    CHECK(each_plan(damage_some) >= 2);
}

TEST(numbers_and_texts) {
    dt_wire w = {0};
    for (int k = 0; k < 64; k++) {
        dt_wire_u64(&w, UINT64_C(1) << k);
        dt_wire_i64(&w, -(INT64_C(1) << (k % 63)));
    }
    dt_wire_i64(&w, INT64_MIN);
    dt_wire_text(&w, "abc");
    dt_unwire u = {w.data, w.n, 0, false};
    for (int k = 0; k < 64; k++) {
        CHECK(dt_unwire_u64(&u) == UINT64_C(1) << k);
        CHECK(dt_unwire_i64(&u) == -(INT64_C(1) << (k % 63)));
    }
    CHECK(dt_unwire_i64(&u) == INT64_MIN);
    CHECK(!strcmp(dt_unwire_text(&u), "abc"));
    CHECK(!u.bad && u.at == u.n);
    CHECK_INT(dt_unwire_u64(&u), 0);
    CHECK(u.bad);
    dt_wire_free(&w);
}

/* ---- a node's messages ------------------------------------------------------------------------------------------------------------------------- */
static void put_fetch(dt_wire *w, uint64_t buffer, int64_t offset, int64_t rows, int64_t stride) {
    dt_wire_u64(w, DT_M_FETCH);
    dt_wire_u64(w, 1);
    dt_wire_u64(w, buffer);
    dt_wire_u64(w, dt_device_make(DT_CPU, 0));
    dt_wire_i64(w, offset);
    dt_wire_u64(w, DT_float32);
    dt_wire_u64(w, 1);
    dt_wire_i64(w, rows);
    dt_wire_i64(w, stride);
}
static void put_host(dt_wire *w, uint64_t id, uint32_t device) {
    static const float x[16] = {1};
    dt_wire_u64(w, DT_M_HOST);
    dt_wire_u64(w, id);
    dt_wire_u64(w, dt_device_make(DT_CPU, device));
    dt_wire_u64(w, sizeof x);
    dt_wire_u64(w, 0);
    dt_wire_put(w, x, sizeof x);
}
static dt_status take(dt_wire *w) {
    bool stop = false;
    dt_status s = dt_node_entries(w->data, w->n, NULL, 0, &stop);
    w->n = 0;
    return s;
}

TEST(reads_beyond_memory_are_refused) {
    REQUIRE_OK(dt_engine_start());
    dt_wire w = {0};
    put_host(&w, 5, 0);
    put_fetch(&w, 5, 0, 16, 1);
    put_fetch(&w, 5, 60, 1, 1);
    put_fetch(&w, 5, 60, 16, -1);
    put_fetch(&w, 5, 1 << 20, 0, 1); /* empty */
    REQUIRE_OK(take(&w));
    static const int64_t beyond[][3] = {{0, 1 << 20, 1},   {1 << 20, 1, 1},   {8, 4, -1},       {0, INT64_MAX, INT64_MAX},
                                        {INT64_MAX, 1, 1}, {0, INT64_MAX, 0}, {0, 3, INT64_MIN}};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        put_fetch(&w, 5, beyond[i][0], beyond[i][1], beyond[i][2]);
        CHECK_INT(take(&w), DT_E_INTERNAL);
    }
    put_fetch(&w, 6, 0, 1, 1);
    CHECK_INT(take(&w), DT_E_INTERNAL);
    put_host(&w, 5, 0);
    CHECK_INT(take(&w), DT_E_INTERNAL);
    dt_wire_free(&w);
}

TEST(damaged_messages_are_refused_or_harmless) {
    REQUIRE_OK(dt_engine_start());
    dt_wire w = {0};
    for (uint64_t id = 1; id < 2000; id++) {
        put_host(&w, id * 100, rnd(3));
        put_fetch(&w, id * 100, 0, 16, 1);
        dt_wire_u64(&w, DT_M_FREE);
        dt_wire_u64(&w, id * 100);
        for (int kind = DT_M_PLAN; kind <= DT_M_STATS; kind++) {
            dt_wire_u64(&w, (uint64_t)kind);
            for (int k = 0; k < 3; k++) dt_wire_u64(&w, rnd(2) ? rnd(300) : (uint64_t)rng << 20);
        }
        for (uint32_t k = 1 + rnd(3); k; k--) {
            uint32_t at = rnd((uint32_t)w.n);
            w.data[at] = (uint8_t)rnd(256);
        }
        uint8_t *exact = malloc(w.n);
        memcpy(exact, w.data, w.n);
        bool stop = false;
        dt_status s = dt_node_entries(exact, 1 + rnd((uint32_t)w.n), NULL, 0, &stop);
        (void)s;
        free(exact);
        w.n = 0;
    }
    dt_wire_free(&w);
}
