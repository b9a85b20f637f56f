/* Planning grows with the devices of a mesh, not with their pairs: plans of one redistribution, or of a few calls, are made for meshes of up to thousands of
 * devices, which never start, and their processor time is compared. */
#include <time.h>

#include "passes/passes.h"
#include "test.h"

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const dt_mesh *mesh(int nd, const int64_t *dims) {
    static dt_device dev[DT_MAX_DEVICES];
    const dt_mesh *m = NULL;
    for (int i = 0; i < DT_MAX_DEVICES; i++) dev[i] = dt_device_make(DT_CPU, (uint32_t)i);
    if (dt_mesh_intern(nd, dims, dev, NULL, &m)) TEST_FAIL("%s", dt_error_message());
    return m;
}

static const dt_meta *meta(const dt_mesh *m, int64_t rows, int64_t cols, const dt_placement *p) {
    dt_type t = {DT_float32, 2, {rows, cols}};
    const dt_meta *r = NULL;
    if (dt_meta_intern(&t, m, p, &r)) TEST_FAIL("%s", dt_error_message());
    return r;
}

static dt_call *call(const dt_op *op, const dt_meta *in, const dt_meta *out) {
    dt_call *c = calloc(1, sizeof *c);
    dt_arena_init(&c->arena);
    c->op = op;
    c->n_in = c->n_out = 1;
    c->in = c->used = dt_arena_copy(&c->arena, &in, sizeof in);
    c->out = dt_arena_copy(&c->arena, &out, sizeof out);
    c->mesh = out->mesh;
    return c;
}

typedef struct world { /* a subgraph of calls one after the other, on a value that lies there already */
    dt_graph g;
    dt_gvalue first, made[16];
    dt_buf buf;
    dt_part part;
} world;

static void world_init(world *w, const dt_meta *from) {
    memset(w, 0, sizeof *w);
    REQUIRE_OK(dt_graph_init(&w->g));
    w->part = (dt_part){.buf = &w->buf, .contiguous = true};
    w->buf.live = 2;
    w->first = (dt_gvalue){.meta = from, .client = true, .named = true, .ready = true, .node = -1, .index = -1};
    w->first.part = calloc((size_t)from->mesh->n, sizeof *w->first.part);
    for (int i = 0; i < from->mesh->n; i++) w->first.part[i] = &w->part;
}

static void then(world *w, const dt_op *op, const dt_meta *out, bool named) {
    int i = w->g.n;
    dt_gvalue *in = i ? &w->made[i - 1] : &w->first;
    dt_gnode *n = dt_graph_add(&w->g, call(op, in->meta, out), 0);
    REQUIRE(n != NULL);
    w->made[i] = (dt_gvalue){.meta = out, .client = named, .named = named, .node = i, .index = -1};
    n->in[0] = in;
    n->out[0] = &w->made[i];
    n->live = true;
    in->uses++;
}

static double plan(world *w, size_t *bytes) {
    dt_plan *p;
    double begin = seconds();
    if (dt_pass_key(&w->g) || dt_pass_lower(&w->g, &p)) {
        TEST_FAIL("%s", dt_error_message());
        return 0;
    }
    double took = seconds() - begin;
    *bytes = p->arena.total;
    dt_plan_unref(p);
    return took;
}

static void world_fini(world *w) {
    for (int i = 0; i < w->g.n; i++) {
        dt_arena_fini(&w->g.node[i].call->arena);
        free(w->g.node[i].call);
    }
    free(w->first.part);
    dt_graph_fini(&w->g);
}

/* The least of five: others use the machine too. */
static double redistribute(const dt_mesh *m, const dt_placement *from, const dt_placement *to, size_t *bytes) {
    double least = 1e9;
    for (int i = 0; i < 5; i++) {
        world w;
        world_init(&w, meta(m, 1 << 14, 64, from));
        then(&w, &dt_op_redistribute, meta(m, 1 << 14, 64, to), true);
        double t = plan(&w, bytes);
        least = t < least ? t : least;
        world_fini(&w);
    }
    return least;
}

/* Four times the devices: about 4 when it is linear, 16 when pairs count. */
static void check_growth(const char *what, double small, double large, size_t small_bytes, size_t large_bytes) {
    printf("    %-28s %7.2f ms, %5.1f MB; times 4: %7.2f ms, %5.1f MB\n", what, 1e3 * small, 1e-6 * (double)small_bytes, 1e3 * large,
           1e-6 * (double)large_bytes);
    if (large > 7 * small && large > 0.01) TEST_FAIL("%s: %g times the time for 4 times the devices", what, large / small);
    if (large_bytes > 6 * small_bytes) TEST_FAIL("%s: %g times the memory for 4 times the devices", what, (double)large_bytes / (double)small_bytes);
}

static void grow(const char *what, dt_placement from, dt_placement to) {
    size_t a, b;
    double s = redistribute(mesh(1, (int64_t[]){512}), &from, &to, &a), l = redistribute(mesh(1, (int64_t[]){2048}), &from, &to, &b);
    check_growth(what, s, l, a, b);
}

TEST(redistributions_grow_with_the_devices) {
    grow("all_gather", DT_S(0), DT_R);
    grow("all_reduce", DT_P, DT_R);
    grow("reduce_scatter", DT_P, DT_S(0));
    grow("slice", DT_R, DT_S(0));
    grow("zeros", DT_R, DT_P);
    grow("all_reduce of maxima", DT_P_OF(DT_MAX), DT_R);
}

/* Along one dimension of several: groups. Exchanges within groups of 8. */
TEST(groups_grow_with_their_number) {
    static const struct {
        const char *what;
        dt_placement from[3], to[3];
    } k[] = {
        {"all_reduce of 8s", {DT_S(0), DT_R, DT_P}, {DT_S(0), DT_R, DT_R}},        {"all_to_all of 8s", {DT_R, DT_S(0), DT_S(0)}, {DT_R, DT_S(0), DT_S(1)}},
        {"all_gather of 8s", {DT_S(0), DT_R, DT_S(1)}, {DT_S(0), DT_R, DT_R}},     {"all_reduce of many", {DT_P, DT_R, DT_S(0)}, {DT_R, DT_R, DT_S(0)}},
        {"shards change dimension", {DT_R, DT_R, DT_S(0)}, {DT_R, DT_S(0), DT_R}},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        size_t a, b;
        double s = redistribute(mesh(3, (int64_t[]){8, 8, 8}), k[i].from, k[i].to, &a);
        double l = redistribute(mesh(3, (int64_t[]){32, 8, 8}), k[i].from, k[i].to, &b);
        check_growth(k[i].what, s, l, a, b);
    }
}

static double chain(int n, size_t *bytes) {
    static const dt_op *const ops[] = {&dt_op_exp, &dt_op_tanh, &dt_op_relu, &dt_op_neg};
    world w;
    dt_placement p = DT_S(0);
    const dt_meta *m = meta(mesh(1, (int64_t[]){n}), 1 << 14, 64, &p);
    world_init(&w, m);
    for (int i = 0; i < 12; i++) then(&w, ops[i % 4], m, i % 4 == 3);
    double t = plan(&w, bytes), u = plan(&w, bytes);
    world_fini(&w);
    return t < u ? t : u;
}

TEST(calls_grow_with_the_devices) {
    REQUIRE_OK(dt_ops_init());
    size_t a, b;
    double s = chain(512, &a), l = chain(2048, &b);
    check_growth("12 calls", s, l, a, b);
}
