/* The engine without a client: records are written into the ring by hand, values are read back through futures. */
#include <pthread.h>
#include <unistd.h>

#include "base/cpu.h"
#include "controller/controller.h"
#include "test.h"

static uint32_t next_id = 1;

/* A call as the client would intern it; the first input's placements are the result's. */
static dt_call *call(const dt_op *op, const dt_spec *spec, int n_in, const dt_meta *const *in) {
    dt_call *c = calloc(1, sizeof *c + 64);
    dt_arena_init(&c->arena);
    uint8_t cast[8];
    memset(cast, DT_DTYPE_NONE, sizeof cast);
    dt_node n = {.op = op, .attr = dt_arena_alloc(&c->arena, 256), .n_in = n_in, .in = in, .cast = cast, .spec = spec, .arena = &c->arena};
    if (dt_node_outs(&n, 1) || op->infer(&n)) TEST_FAIL("%s", dt_error_message());
    c->op = op;
    c->attr = n.attr;
    c->n_in = (uint16_t)n_in;
    c->n_out = 1;
    c->spec = spec;
    c->in = dt_arena_copy(&c->arena, in, sizeof *in * (size_t)n_in);
    c->used = dt_arena_copy(&c->arena, in, sizeof *in * (size_t)n_in);
    c->out = dt_arena_alloc(&c->arena, sizeof *c->out);
    c->link.hash = (uint64_t)(uintptr_t)c;
    for (int i = 0; i < n_in; i++)
        if (in[i]->wrapped) c->used[i] = dt_meta_wrapped((dt_dtype)cast[i]);
    if (dt_meta_intern(&n.out[0], spec ? spec->mesh : in[0]->mesh, spec ? spec->place : in[0]->place, &c->out[0])) TEST_FAIL("%s", dt_error_message());
    c->mesh = c->out[0]->mesh;
    return c;
}

static uint32_t record(dt_call *c, const uint64_t *in) {
    uint64_t *w = dt_ring_reserve(dt_engine_ring(), 3u + c->n_in + 1u);
    w[0] = DT_REC_HEADER(DT_REC_CALL, c->n_in, 1);
    w[1] = (uint64_t)(uintptr_t)c;
    w[2] = 0;
    for (int i = 0; i < c->n_in; i++) w[3 + i] = in[i];
    w[3 + c->n_in] = next_id;
    dt_ring_publish(dt_engine_ring());
    return next_id++;
}

static uint32_t host(const dt_meta *m, const float *data) {
    dt_hostbuf *b;
    if (dt_hostbuf_new((size_t)m->numel * 4, &b)) TEST_FAIL("%s", dt_error_message());
    memcpy(b->data, data, (size_t)m->numel * 4);
    uint64_t *w = dt_ring_reserve(dt_engine_ring(), 5);
    w[0] = DT_REC_HEADER(DT_REC_HOST, 0, 1);
    w[1] = (uint64_t)(uintptr_t)m;
    w[2] = 0;
    w[3] = next_id;
    w[4] = (uint64_t)(uintptr_t)b;
    dt_ring_publish(dt_engine_ring());
    return next_id++;
}

static void drop(uint32_t id) {
    *dt_ring_reserve(dt_engine_ring(), 1) = DT_REC_DROP | (uint64_t)id << 8;
    dt_ring_publish(dt_engine_ring());
}

static dt_future *fetch(uint32_t id, const dt_meta *m) {
    dt_hostbuf *b;
    dt_future *f;
    if (dt_hostbuf_new((size_t)m->numel * 4, &b) || dt_future_new(b, m, &f)) TEST_FAIL("%s", dt_error_message());
    dt_future_ref(f);
    uint64_t *w = dt_ring_reserve(dt_engine_ring(), 6);
    w[0] = DT_REC_HEADER(DT_REC_FETCH, 0, 0);
    w[1] = id;
    w[2] = (uint64_t)(uintptr_t)f;
    w[3] = 0;
    w[4] = w[5] = (uint64_t)-1; /* all rows */
    dt_ring_publish(dt_engine_ring());
    return f;
}

static dt_status read_back(uint32_t id, const dt_meta *m, float *out) {
    dt_future *f = fetch(id, m);
    if (id % 3 == 0) { /* the engine's threads do it; else they or the one that waits */
        dt_engine_flush();
        while (!dt_future_wait(f, 1000000)) {}
    } else {
        while (!dt_engine_wait(f, 1000000)) {}
    }
    dt_status s = dt_future_status(f);
    if (!s) memcpy(out, f->buf->data, (size_t)m->numel * 4);
    dt_future_unref(f);
    return s;
}

static const dt_meta *meta(const dt_mesh *m, int rows, int cols, dt_placement p) {
    dt_type t = {DT_float32, 2, {rows, cols}};
    dt_placement place[DT_MAX_MESH_DIM] = {p};
    const dt_meta *r = NULL;
    if (dt_meta_intern(&t, m, place, &r)) TEST_FAIL("%s", dt_error_message());
    return r;
}

static const dt_mesh *mesh_of(int n) {
    dt_device dev[64];
    for (int i = 0; i < n; i++) dev[i] = dt_device_make(DT_CPU, (uint32_t)i);
    const dt_mesh *m = NULL;
    if (dt_mesh_intern(1, (int64_t[]){n}, dev, NULL, &m)) TEST_FAIL("%s", dt_error_message());
    return m;
}

static void iota(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = (float)i;
}

TEST(a_chain_of_adds_reuses_memory_and_is_right) {
    REQUIRE(dt_engine_start() == DT_OK);
    float x[12], y[12];
    iota(x, 12);
    const dt_meta *m = meta(dt_mesh_single(0), 3, 4, DT_R);
    dt_call *add = call(&dt_op_mul, NULL, 2, (const dt_meta *[]){m, dt_meta_wrapped(DT_float64)});
    double two = 2;
    uint64_t word;
    memcpy(&word, &two, 8);
    uint32_t id = host(m, x);
    for (int i = 0; i < 10; i++) {
        uint32_t next = record(add, (uint64_t[]){id, word});
        drop(id);
        id = next;
    }
    REQUIRE(read_back(id, m, y) == DT_OK);
    for (int i = 0; i < 12; i++) CHECK(y[i] == x[i] * 1024);
    dt_engine_stop();
}

TEST(shards_gather_reduce_and_move) {
    REQUIRE(dt_engine_start() == DT_OK);
    float x[35], y[35];
    iota(x, 35);
    for (int n = 1; n <= 4; n++) {
        const dt_mesh *mesh = mesh_of(n);
        static const dt_placement places[] = {{DT_REPLICATE, 0, 0, 0}, {DT_SHARD, 0, 0, 0}, {DT_SHARD, 0, 1, 0}, {DT_PARTIAL, DT_SUM, 0, 0}};
        for (int a = 0; a < 3; a++)
            for (int b = 0; b < 4; b++)
                for (int c = 0; c < 3; c++) {
                    const dt_meta *ma = meta(mesh, 5, 7, places[a]), *mb = meta(mesh, 5, 7, places[b]), *mc = meta(mesh, 5, 7, places[c]);
                    const dt_spec *sb, *sc;
                    REQUIRE(!dt_spec_intern(mesh, &places[b], &sb) && !dt_spec_intern(mesh, &places[c], &sc));
                    uint32_t v = host(ma, x);
                    uint32_t w = record(call(&dt_op_redistribute, sb, 1, &ma), (uint64_t[]){v});
                    uint32_t z = record(call(&dt_op_redistribute, sc, 1, &mb), (uint64_t[]){w});
                    drop(v);
                    drop(w);
                    REQUIRE(read_back(z, mc, y) == DT_OK);
                    if (memcmp(x, y, sizeof x)) TEST_FAIL("%d devices: placements %d -> %d -> %d differ", n, a, b, c);
                    drop(z);
                }
    }
    dt_engine_stop();
}

TEST(a_limit_fails_what_needs_more_and_nothing_else) {
    REQUIRE(dt_engine_start() == DT_OK);
    float *big = calloc(1 << 16, 4), y[4];
    const dt_meta *m = meta(dt_mesh_single(0), 1 << 8, 1 << 8, DT_R), *small = meta(dt_mesh_single(0), 2, 2, DT_R);
    uint64_t *w = dt_ring_reserve(dt_engine_ring(), 3);
    w[0] = DT_REC_LIMIT;
    w[1] = 0;
    w[2] = 1 << 16;
    dt_ring_publish(dt_engine_ring());
    uint64_t three = 3;
    uint32_t a = host(m, big), b = host(small, (float[]){1, 2, 3, 4});
    uint32_t c = record(call(&dt_op_mul, NULL, 2, (const dt_meta *[]){m, dt_meta_wrapped(DT_int64)}), (uint64_t[]){a, three});
    uint32_t d = record(call(&dt_op_mul, NULL, 2, (const dt_meta *[]){small, dt_meta_wrapped(DT_int64)}), (uint64_t[]){b, three});
    CHECK(read_back(c, m, big) == DT_E_NOMEM);
    CHECK(strstr(dt_error_message(), "memory") != NULL);
    CHECK(read_back(d, small, y) == DT_OK);
    CHECK(y[0] == 3 && y[3] == 12);
    dt_engine_stop();
    free(big);
}

/* ---- several threads that record (one at a time), wait, and so do each other's work ----------------------------------------------------------- */
static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;
static dt_call *doubled[2];
static const dt_meta *doubled_meta[2];

static void *readers_main(void *arg) {
    int k = (int)(intptr_t)arg;
    for (int i = 0; i < 400; i++) {
        double two = 2;
        uint64_t word;
        memcpy(&word, &two, 8);
        float x[12], y[12];
        for (int j = 0; j < 12; j++) x[j] = (float)(i + j + k);
        pthread_mutex_lock(&recording);
        const dt_meta *m = doubled_meta[(k + i / 50) & 1];
        uint32_t a = host(m, x), b = record(doubled[(k + i / 50) & 1], (uint64_t[]){a, word});
        drop(a);
        dt_future *f = fetch(b, m);
        drop(b);
        pthread_mutex_unlock(&recording);
        while (!dt_engine_wait(f, 1000000)) {}
        CHECK(dt_future_status(f) == DT_OK);
        memcpy(y, f->buf->data, sizeof y);
        for (int j = 0; j < 12; j++) CHECK(y[j] == 2 * x[j]);
        dt_future_unref(f);
        if (i % 60 == 59) usleep(200); /* the controller naps, or finds work on its own */
    }
    return NULL;
}

TEST(threads_that_wait_do_the_work) {
    REQUIRE(dt_engine_start() == DT_OK);
    const dt_mesh *mesh[2] = {dt_mesh_single(0), mesh_of(2)};
    for (int k = 0; k < 2; k++) {
        doubled_meta[k] = meta(mesh[k], 3, 4, k ? (dt_placement){DT_SHARD, 0, 0, 0} : (dt_placement)DT_R);
        doubled[k] = call(&dt_op_mul, NULL, 2, (const dt_meta *[]){doubled_meta[k], dt_meta_wrapped(DT_float64)});
    }
    pthread_t t[3];
    for (int k = 0; k < 3; k++) REQUIRE(pthread_create(&t[k], NULL, readers_main, (void *)(intptr_t)k) == 0);
    for (int k = 0; k < 3; k++) pthread_join(t[k], NULL);
    dt_engine_stop();
}

static void *late_main(void *arg) {
    while (!dt_engine_wait(arg, 1000)) {}
    dt_future_unref(arg);
    return NULL;
}

TEST(the_engine_stops_beside_one_that_waits) {
    for (int i = 0; i < 20; i++) {
        REQUIRE(dt_engine_start() == DT_OK);
        float x[12];
        iota(x, 12);
        const dt_meta *m = meta(dt_mesh_single(0), 3, 4, DT_R);
        pthread_t t;
        REQUIRE(pthread_create(&t, NULL, late_main, fetch(host(m, x), m)) == 0);
        if (i & 1) usleep(50);
        dt_engine_stop();
        pthread_join(t, NULL);
    }
}

/* Under a budget values remember how they were made: nothing of that is left when they are dropped and the engine stops (LeakSanitizer looks). */
TEST(the_engine_stops_under_a_budget) {
    for (int i = 0; i < 3; i++) {
        REQUIRE(dt_engine_start() == DT_OK);
        uint64_t *w = dt_ring_reserve(dt_engine_ring(), 3);
        w[0] = DT_REC_HEADER(DT_REC_LIMIT, 1, 0);
        w[1] = 0;
        w[2] = 1 << 20;
        dt_ring_publish(dt_engine_ring());
        const dt_meta *m = meta(dt_mesh_single(0), 3, 4, DT_R);
        dt_call *half = call(&dt_op_mul, NULL, 2, (const dt_meta *[]){m, dt_meta_wrapped(DT_float64)});
        double h = 0.5;
        uint64_t word;
        memcpy(&word, &h, 8);
        float x[12], y[12];
        iota(x, 12);
        uint32_t whole = host(m, x), a = record(half, (uint64_t[]){whole, word}), b = record(half, (uint64_t[]){a, word});
        drop(whole);
        drop(a);
        REQUIRE(read_back(b, m, y) == DT_OK);
        CHECK(y[11] == x[11] * 0.25f);
        drop(b);
        dt_engine_stop();
        dt_arena_fini(&half->arena);
        free(half);
    }
}

#if defined(__x86_64__)
TEST(helping_rounds_as_the_engine_does) {
    REQUIRE(dt_engine_start() == DT_OK);
    const dt_meta *m = meta(dt_mesh_single(0), 3, 4, DT_R);
    dt_call *half = call(&dt_op_mul, NULL, 2, (const dt_meta *[]){m, dt_meta_wrapped(DT_float64)});
    double h = 0.5;
    uint64_t word;
    memcpy(&word, &h, 8);
    float x[12], y[12];
    for (int i = 0; i < 12; i++) x[i] = 1.5e-38f; /* half of it is a denormal number */
    uint32_t a = host(m, x), mine = dt_cpu_fp_mode(), flush = mine | 0x8040u;
    for (int i = 0; i < 6; i++) {
        dt_cpu_fp_mode_set(flush); /* denormals are zeros for this thread; the engine started without */
        uint32_t b = record(half, (uint64_t[]){a, word});
        dt_status s = read_back(b, m, y);
        uint32_t after = dt_cpu_fp_mode();
        dt_cpu_fp_mode_set(mine);
        CHECK(s == DT_OK && after == flush);
        for (int k = 0; k < 12; k++) CHECK(y[k] == x[k] * 0.5f && y[k] > 0);
    }
    dt_engine_stop();
}
#endif
