/* The operator table as a whole: it loads, names are found, and nothing that users see lacks what they need. */
#include "test.h"

#include "ops/op.h"

static bool is_composed(const dt_op *op) { return op->compose != NULL; }

TEST(table_loads_twice) {
    REQUIRE_OK(dt_ops_init());
    uint64_t hash = dt_ops_hash();
    REQUIRE_OK(dt_ops_init());
    CHECK(dt_ops_hash() == hash);
    CHECK_PTR(dt_ops_at(-1), NULL);
    CHECK_PTR(dt_ops_at(dt_ops_count()), NULL);
    CHECK_PTR(dt_op_find("no such op"), NULL);
}

TEST(every_op_is_found_by_its_name) {
    REQUIRE_OK(dt_ops_init());
    for (int i = 0; i < dt_ops_count(); i++) {
        const dt_op *op = dt_ops_at(i);
        const dt_op_info *info = dt_op_get_info(op);
        REQUIRE(info);
        if (dt_op_find(info->name) != op) TEST_FAIL("two ops are called %s: an overload needs a name after a dot", info->name);
        CHECK_INT(info->id, i);
        CHECK_STR(dt_op_name(op), info->base);
    }
}

TEST(every_op_is_complete) {
    REQUIRE_OK(dt_ops_init());
    for (int i = 0; i < dt_ops_count(); i++) {
        const dt_op *op = dt_ops_at(i);
        const char *name = dt_op_get_info(op)->name;
        if ((op->where & (DT_FN | DT_METHOD | DT_NN)) && (!op->doc || strlen(op->doc) < 10)) TEST_FAIL("%s has no .doc", name);
        if (!op->where) TEST_FAIL("%s has no .where", name);
        if (!op->place && !is_composed(op)) TEST_FAIL("%s has no .place", name);
        if (!op->infer && !is_composed(op)) TEST_FAIL("%s has no .infer", name);
        if (!op->kernels[0].fn && !op->alias && !is_composed(op) && !(op->flags & DT_F_LOWERED)) TEST_FAIL("%s has no kernel", name);
        if (op->alias && !op->unview && (op->where & (DT_FN | DT_METHOD))) TEST_FAIL("%s is a view without .unview: writes through it are lost", name);
    }
}
