/* The check of the passes finds what it is for: each test breaks one thing in a small program that is otherwise right. */
#include "passes/look.h"
#include "test.h"

enum { BYTES = 64 }; /* a storage: 16 floats */

typedef struct small {
    dt_build b;
    dt_prog p;
    dt_graph g;
    dt_gvalue v, *ext;
    dt_storage st[4];
    dt_step step[3];
    dt_view view[3][2];
    dt_operand operand[3][2];
} small;

/* in0 -> s1 -> s2 -> s3, one queue; s3 is the result. */
static void make(small *m) {
    REQUIRE(!dt_ops_init());
    *m = (small){.p = {.device = dt_device_make(DT_CPU, 0), .n_step = 3, .n_st = 4}};
    m->p.step = m->step;
    m->p.st = m->st;
    m->b.n_prog = 1;
    m->b.prog = &m->p;
    m->b.g = &m->g;
    m->ext = &m->v;
    m->g.ext = &m->ext;
    for (int i = 0; i < 4; i++)
        m->st[i] = (dt_storage){.kind = i == 0   ? DT_ST_EXT
                                        : i == 3 ? DT_ST_OUT
                                                 : DT_ST_TEMP,
                                .root = i,
                                .first = i ? i - 1 : 0,
                                .last = i < 3 ? i : 2,
                                .slot = -1,
                                .bytes = BYTES};
    for (int i = 0; i < 3; i++) {
        m->step[i] =
            (dt_step){.bucket = -1, .in = {.n_in = 1, .n_out = 1, .view = m->view[i], .operand = m->operand[i], .scratch = {-1, 0}, .ctx.op = &dt_op_clone}};
        for (int k = 0; k < 2; k++) {
            m->view[i][k] = (dt_view){.dtype = DT_float32, .ndim = 1, .shape = {16}, .stride = {1}};
            m->operand[i][k] = (dt_operand){i + k, 0};
        }
    }
}

static void finish(small *m) { /* as memory.c leaves it: slots, offsets */
    static const int slot[4] = {0, 2, 3, 1};
    for (int i = 0; i < 4; i++) m->st[i].slot = slot[i];
    m->st[2].offset = BYTES;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) m->operand[i][k].slot = slot[i + k];
}

static void broken(small *m, const char *pass, const char *text) {
    CHECK_INT(dt_verify(&m->b, pass), DT_E_INTERNAL);
    if (!strstr(dt_error_message(), text)) TEST_FAIL("expected '%s' in '%s'", text, dt_error_message());
}

TEST(right_programs_pass) {
    small m;
    make(&m);
    CHECK_INT(dt_verify(&m.b, "lower"), DT_OK);
    finish(&m);
    CHECK_INT(dt_verify(&m.b, "plan"), DT_OK);
}

TEST(a_view_outside_its_storage) {
    small m;
    make(&m);
    m.operand[1][1].offset = 4;
    broken(&m, "lower", "step 1 (clone): operand 1 reaches from byte 4 to 68 of storage 2, which has 64");
    m.operand[1][1].offset = 0;
    m.view[1][0].stride[0] = -1;
    broken(&m, "lower", "reaches from byte -60");
}

TEST(reading_what_nobody_wrote) {
    small m;
    make(&m);
    m.operand[0][0].slot = 2;
    broken(&m, "lower", "reads storage 2, which nobody has written");
}

TEST(writing_an_input_that_is_not_given) {
    small m;
    make(&m);
    m.operand[2][1].slot = 0;
    broken(&m, "reuse", "writes into input 0");
    m.st[0].donate = true;
    CHECK_INT(dt_verify(&m.b, "reuse"), DT_OK);
}

TEST(reading_memory_that_was_taken_over) {
    small m;
    make(&m);
    m.st[2].root = 1; /* s2 in the memory of s1 */
    CHECK_INT(dt_verify(&m.b, "reuse"), DT_OK);
    m.operand[2][0].slot = 1;
    broken(&m, "reuse", "step 2 (clone): it reads storage 1, whose memory another one has taken over");
}

TEST(temporaries_in_the_same_place) {
    small m;
    make(&m);
    finish(&m);
    m.st[2].offset = BYTES - 4;
    broken(&m, "plan", "live at the same time in the same memory");
}

TEST(a_missing_wait) {
    small m;
    make(&m);
    finish(&m);
    m.step[1].in.queue = 1;
    broken(&m, "plan", "step 1 (clone): it touches memory that instruction 1 of the other queue touched, and has waited for 0 only");
    m.step[1].in.wait = 1;
    broken(&m, "plan", "step 2");
    m.step[2].in.wait = 1;
    CHECK_INT(dt_verify(&m.b, "plan"), DT_OK);
    m.step[2].in.wait = 2;
    broken(&m, "plan", "waits for instruction 2 of the other queue, of which 1 come before it");
}

TEST(a_result_that_is_never_written) {
    small m;
    make(&m);
    finish(&m);
    m.p.n_step = 2;
    broken(&m, "plan", "slot 1, a result, is never written");
}

TEST(an_interrupted_bucket) {
    small m;
    make(&m);
    dt_coll coll = {.kind = "all_reduce", .n = 2};
    for (int i = 0; i < 3; i += 2) {
        m.step[i].in.kind = DT_I_COLL;
        m.step[i].in.coll = &coll;
        m.step[i].bucket = 7;
    }
    broken(&m, "bucket", "bucket 7 began at step 0 and was interrupted");
}
