/* Reading parts of files: any box of any view comes out as it lies in the file; what lies outside is refused; changed bytes are noticed. */
#include <fcntl.h>
#include <unistd.h>

#include "base/crc.h"
#include "plan/source.h"
#include "test.h"

static uint32_t rng = 5;
static int64_t rnd(int64_t n) {
    rng = rng * 1664525u + 1013904223u;
    return (int64_t)(((uint64_t)rng * (uint64_t)n) >> 32);
}

enum { HEAD = 24, N = 3 << 20 };
static float *values; /* (N,) as in the file */

static void file_new(char *path, dt_file **out) {
    strcpy(path, "/tmp/dtorch-source-XXXXXX");
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    if (!values) values = malloc(sizeof *values * N);
    for (int i = 0; i < N; i++) values[i] = (float)i;
    REQUIRE(write(fd, "head of twenty-four bytes", HEAD) == HEAD);
    REQUIRE(write(fd, values, sizeof *values * N) == (ssize_t)(sizeof *values * N));
    REQUIRE_OK(dt_file_new(fd, path, HEAD, out));
}

TEST(checksums_are_those_of_zip) {
    CHECK_INT(dt_crc32(0, "123456789", 9), 0xCBF43926u);
    CHECK_INT(dt_crc32(dt_crc32(0, "123456789abcdefgh", 3), "456789abcdefgh", 14), dt_crc32(0, "123456789abcdefgh", 17));
    CHECK_INT(dt_crc32(0, NULL, 0), 0);
}

/* A box of a tensor that lies in any order of dimensions, with gaps. */
static void one_read(dt_file *f, int round) {
    dt_load *r = dt_load_alloc(1);
    dt_load_op *o = r->op;
    int64_t stride = 1, n = 1;
    r->n = 1;
    r->dtype = DT_float32;
    o->file = dt_file_ref(f);
    o->ndim = 1 + (int32_t)rnd(4);
    int order[DT_MAX_DIM];
    for (int d = 0; d < o->ndim; d++) order[d] = d;
    for (int d = o->ndim - 1; d > 0; d--) {
        int k = (int)rnd(d + 1), t = order[d];
        order[d] = order[k];
        order[k] = t;
    }
    int64_t most = round % 3 ? 40 : 3000;
    for (int k = 0; k < o->ndim; k++) {
        int d = order[k];
        int64_t room = (N - 1) / stride;
        o->shape[d] = 1 + rnd(room < most ? room : most);
        if (k == 0 && rnd(4) == 0) stride = 2;
        o->from[d] = stride;
        stride *= o->shape[d] + rnd(3);
        if (stride > N / 2) stride = N / 2;
        if ((o->shape[d] - 1) * o->from[d] >= N / 4) o->shape[d] = 1;
    }
    for (int d = o->ndim - 1; d >= 0; d--) {
        o->into[d] = n;
        n *= o->shape[d];
    }
    int64_t span = 1;
    for (int d = 0; d < o->ndim; d++) span += (o->shape[d] - 1) * o->from[d];
    if (span > N || n > N) {
        dt_load_free(r);
        return;
    }
    int64_t first = rnd(N - span + 1);
    o->at = HEAD + 4 * first;
    r->numel = n;
    float *to = malloc(sizeof *to * (size_t)n);
    CHECK_OK(dt_load_check(r));
    CHECK_OK(dt_load_run(r, to));
    int64_t at[DT_MAX_DIM] = {0}, bad = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t q = first;
        for (int d = 0; d < o->ndim; d++) q += at[d] * o->from[d];
        bad += to[i] != values[q];
        for (int d = o->ndim - 1; d >= 0 && ++at[d] == o->shape[d]; d--) at[d] = 0;
    }
    CHECK_INT(bad, 0);
    free(to);
    dt_load_free(r);
}

TEST(any_box_comes_out_as_it_lies) {
    char path[64];
    dt_file *f;
    file_new(path, &f);
    for (int i = 0; i < 300; i++) one_read(f, i);
    dt_file_unref(f);
    unlink(path);
}

TEST(what_lies_outside_is_refused) {
    char path[64];
    dt_file *f;
    file_new(path, &f);
    dt_load *r = dt_load_alloc(1);
    dt_load_op *o = r->op;
    r->n = 1;
    r->dtype = DT_float32;
    r->numel = 100;
    dt_load_op good = {.file = dt_file_ref(f), .at = HEAD, .ndim = 1, .shape = {100}, .from = {1}, .into = {1}};
    *o = good;
    CHECK_OK(dt_load_check(r));
#define REFUSED(set) \
    *o = good;       \
    set;             \
    CHECK(dt_load_check(r) != DT_OK)
    REFUSED(o->at = -4);
    REFUSED(o->at = HEAD + 4 * (N - 99));
    REFUSED(o->at = INT64_MAX - 4);
    REFUSED(o->to = 1);
    REFUSED(o->to = -1);
    REFUSED(o->from[0] = -1);
    REFUSED(o->from[0] = INT64_MAX / 2);
    REFUSED(o->into[0] = 2);
    REFUSED(o->shape[0] = -1);
    REFUSED(o->check = ((dt_check){HEAD + 4 * (uint64_t)N, 1, 0}));
    REFUSED(o->check = ((dt_check){8, UINT64_MAX - 4, 0}));
    *o = good;
    dt_load_free(r);
    dt_file *other;
    CHECK(dt_file_open(path, f->size + 1, HEAD, f->head_crc, &other) != DT_OK);
    CHECK(dt_file_open(path, f->size, HEAD, f->head_crc + 1, &other) != DT_OK);
    CHECK(dt_file_open("/dev/zero", f->size, 0, 0, &other) != DT_OK);
    CHECK(dt_file_open("/", f->size, 0, 0, &other) != DT_OK);
    REQUIRE_OK(dt_file_open(path, f->size, HEAD, f->head_crc, &other));
    dt_file_unref(other);
    dt_file_unref(f);
    unlink(path);
}

TEST(damage_is_noticed_where_it_is_read_and_beside) {
    char path[64];
    dt_file *f;
    file_new(path, &f);
    float to[100];
    dt_check check = {HEAD, 4000, dt_crc32(0, values, 4000)};
    dt_file_box box = {.file = f, .at = HEAD, .len = {100}, .stride = {1}, .check = check};
    dt_type type = {DT_float32, 1, {100}};
    dt_source *s;
    for (int wrong = 0; wrong < 2; wrong++) {
        for (int whole = 0; whole < 2; whole++) {
            box.check = whole ? (dt_check){HEAD, 400, dt_crc32(0, values, 400)} : check;
            box.check.crc += (uint32_t)wrong;
            if (wrong) box.check.at += 4 * !whole; /* not what was found right before */
            REQUIRE_OK(dt_source_new(&type, 0, 1, &box, &s));
            CHECK((dt_source_read(s, to) == DT_OK) == !wrong);
            CHECK(wrong || !memcmp(to, values, sizeof to));
            dt_source_unref(s);
        }
    }
    box.check.bytes = 0;
    REQUIRE_OK(dt_source_new(&type, 0, 1, &box, &s));
    REQUIRE(truncate(path, 200) == 0);
    CHECK(dt_source_read(s, to) != DT_OK);
    dt_source_unref(s);
    dt_file_unref(f);
    unlink(path);
    CHECK_INT(dt_files_open(), 0);
    free(values);
    values = NULL;
}
