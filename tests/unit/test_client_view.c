/* Views and in-place writes as PyTorch has them: through views of views, of shards, with gradients; aliases made by detach and .data. */
#include "client/internal.h"
#include "dtorch_ops.h"
#include "test.h"

static void check_values(int line, dt_tensor *t, int n, const float *want) {
    float got[64];
    if (!t) TEST_FAIL("line %d: no tensor: %s", line, dt_error());
    if (!t) return;
    if (dt_read(t, got, (size_t)n * 4)) TEST_FAIL("line %d: %s", line, dt_error());
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-4f)) TEST_FAIL("line %d: [%d] = %g, expected %g", line, i, got[i], want[i]);
}
#define CHECK_VEC(t, ...) check_values(__LINE__, (t), (int)(sizeof((float[]){__VA_ARGS__}) / 4), (float[]){__VA_ARGS__})

static dt_tensor *range(dt_scope *s, int rows, int cols) {
    float v[64];
    for (int i = 0; i < rows * cols; i++) v[i] = (float)i;
    return dt_from_host(s, v, DT_float32, DT_DIMS(rows, cols));
}
static dt_status in_place(const dt_op *op, dt_tensor *t, double v) {
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], t);
    dt_arg_float(&a.a[1], v);
    return dt_invoke_inplace(op, &a);
}
static int backward_sum(dt_scope *s, dt_tensor *y) { return dt_backward(dt_sum(s, y, DT_NO_DIMS, false, DT_DTYPE_NONE), NULL, false, false); }

TEST(write_base_read_view) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = range(s, 2, 3), *row = dt_select(s, x, 0, 1), *t = dt_transpose(s, x, 0, 1);
    REQUIRE(row && t && row->is_view);
    REQUIRE_OK(in_place(&dt_op_mul, x, 10));
    CHECK_VEC(row, 30, 40, 50);
    CHECK_VEC(t, 0, 30, 10, 40, 20, 50);
    CHECK_INT(dt_tensor_version(row), 1);
    dt_scope_free(s);
}

TEST(write_view_of_view) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = range(s, 2, 3), *t = dt_transpose(s, x, 0, 1), *col = dt_select(s, t, 0, 2), *first = dt_slice(s, col, 0, 0, 1, 1);
    REQUIRE(first != NULL);
    REQUIRE_OK(in_place(&dt_op_add, first, 100));
    CHECK_VEC(x, 0, 1, 102, 3, 4, 5);
    CHECK_VEC(col, 102, 5);
    CHECK_VEC(t, 0, 3, 1, 4, 102, 5);
    CHECK_VEC(first, 102);
    dt_scope_free(s);
}

TEST(write_view_of_shards) {
    dt_scope *s = dt_scope_new();
    const dt_mesh *m = dt_mesh_cpu(1, (int64_t[]){2}, NULL);
    dt_tensor *x = dt_distribute(s, range(s, 3, 2), m, "S0");
    dt_tensor *top = dt_slice(s, x, 0, 0, 2, 1), *inner = dt_select(s, top, 1, 0);
    REQUIRE(inner != NULL);
    const dt_meta *before = dt_tensor_meta(x);
    REQUIRE_OK(in_place(&dt_op_fill, inner, -1));
    CHECK_VEC(x, -1, 1, -1, 3, 4, 5);
    CHECK_VEC(top, -1, 1, -1, 3);
    CHECK_PTR(dt_tensor_meta(x), before);
    dt_scope_free(s);
}

TEST(split_parts_are_views) {
    dt_scope *s = dt_scope_new();
    int n;
    dt_tensor *x = range(s, 4, 1), **part = dt_split(s, x, 2, 0, &n);
    REQUIRE(part && n == 2);
    REQUIRE_OK(in_place(&dt_op_add, part[1], 10));
    CHECK_VEC(x, 0, 1, 12, 13);
    CHECK_VEC(part[0], 0, 1);
    dt_tensor *w = dt_mul(s, range(s, 4, 1), 1);
    dt_requires_grad_set(w, true);
    part = dt_split(s, dt_mul(s, w, 2), 2, 0, &n);
    CHECK_STATUS(in_place(&dt_op_add, part[1], 1), DT_E_GRAD);
    CHECK_HAS(dt_error(), "function that returns multiple views");
    dt_scope_free(s);
}

TEST(gradient_through_written_view) {
    dt_scope *s = dt_scope_new();
    dt_tensor *w = range(s, 2, 2);
    dt_requires_grad_set(w, true);
    dt_tensor *x = dt_mul(s, w, 2), *row = dt_select(s, x, 0, 0);
    REQUIRE_OK(in_place(&dt_op_mul, row, 5));
    CHECK_VEC(x, 0, 10, 4, 6);
    CHECK_VEC(row, 0, 10);
    CHECK(dt_tensor_requires_grad(row) && dt_tensor_grad_fn(row) != NULL);
    CHECK_OK(backward_sum(s, x));
    CHECK_VEC(dt_grad_of(w), 10, 10, 2, 2);
    dt_scope_free(s);
}

/* The base got no gradient before; what is written into its view brings one. */
TEST(gradient_into_plain_base) {
    dt_scope *s = dt_scope_new();
    dt_tensor *w = dt_from_host(s, (float[]){3, 4}, DT_float32, DT_DIMS(2)), *x = dt_mul(s, range(s, 2, 2), 1);
    dt_requires_grad_set(w, true);
    dt_tensor *row = dt_select(s, x, 0, 1);
    REQUIRE_OK(dt_tensor_assign(row, dt_mul(s, w, 2)));
    CHECK(dt_requires_grad(x));
    CHECK_VEC(x, 0, 1, 6, 8);
    CHECK_OK(backward_sum(s, dt_mul(s, x, x)));
    CHECK_VEC(dt_grad_of(w), 24, 32);
    dt_scope_free(s);
}

TEST(view_of_leaf) {
    dt_scope *s = dt_scope_new();
    dt_tensor *w = range(s, 2, 2);
    dt_requires_grad_set(w, true);
    dt_tensor *row = dt_select(s, w, 0, 0);
    CHECK_STATUS(in_place(&dt_op_add, row, 1), DT_E_GRAD);
    CHECK_STR(dt_error(), "a view of a leaf Variable that requires grad is being used in an in-place operation.");
    dt_grad_mode_set(false);
    REQUIRE_OK(in_place(&dt_op_add, row, 1));
    dt_grad_mode_set(true);
    CHECK_VEC(w, 1, 2, 2, 3);
    CHECK(dt_tensor_is_leaf(w));
    CHECK_OK(backward_sum(s, dt_mul(s, row, row))); /* re-read: its history is the leaf's again */
    CHECK_VEC(dt_grad_of(w), 2, 4, 0, 0);
    dt_scope_free(s);
}

TEST(view_made_without_grad) {
    dt_scope *s = dt_scope_new();
    dt_tensor *w = range(s, 2, 2);
    dt_requires_grad_set(w, true);
    dt_tensor *x = dt_mul(s, w, 1);
    dt_grad_mode_set(false);
    dt_tensor *row = dt_select(s, x, 0, 0);
    dt_grad_mode_set(true);
    CHECK_STATUS(in_place(&dt_op_add, row, 1), DT_E_GRAD);
    CHECK_HAS(dt_error(), "no_grad mode");
    dt_scope_free(s);
}

TEST(detach_shares_storage) {
    dt_scope *s = dt_scope_new();
    dt_tensor *w = range(s, 2, 2), *d = NULL, *e = NULL;
    dt_requires_grad_set(w, true);
    dt_tensor *x = dt_mul(s, w, 2);
    REQUIRE_OK(dt_tensor_detach(x, &d));
    CHECK(!dt_requires_grad(d) && dt_tensor_is_leaf(d));
    REQUIRE_OK(in_place(&dt_op_add, d, 1));
    CHECK_VEC(x, 1, 3, 5, 7);
    CHECK_INT(dt_tensor_version(x), 1);
    REQUIRE_OK(dt_tensor_detach(dt_select(s, d, 0, 1), &e));
    REQUIRE_OK(in_place(&dt_op_fill, e, 0));
    CHECK_VEC(x, 1, 3, 0, 0);
    CHECK_VEC(d, 1, 3, 0, 0);
    REQUIRE_OK(in_place(&dt_op_add, x, 10)); /* recorded; aliases see the value only */
    CHECK_VEC(d, 11, 13, 10, 10);
    CHECK_VEC(e, 10, 10);
    CHECK(!dt_requires_grad(d) && dt_requires_grad(x));
    CHECK_OK(backward_sum(s, x));
    CHECK_VEC(dt_grad_of(w), 2, 2, 2, 2);
    dt_release(d);
    dt_release(e);
    dt_scope_free(s);
}

/* h = h.detach() in a loop must not keep the graphs of all steps. */
TEST(detach_lets_history_go) {
    dt_scope *s = dt_scope_new();
    dt_tensor *w = dt_keep(dt_from_host(s, (float[]){1}, DT_float32, DT_DIMS(1))), *h = dt_keep(w);
    dt_requires_grad_set(w, true);
    uint32_t ids = 0;
    for (int i = 0; i < 2000; i++) {
        dt_tensor *y = dt_exp(s, dt_mul(s, h, 0.1)), *d;
        REQUIRE_OK(dt_tensor_detach(dt_mul(s, y, w), &d));
        dt_release(h);
        dt_scope_clear(s);
        h = d;
        if (i == 100) ids = dt_c.next_id;
    }
    CHECK_INT(dt_c.next_id, ids);
    dt_release(h);
    dt_release(w);
    dt_scope_free(s);
}

TEST(set_data) {
    dt_scope *s = dt_scope_new();
    dt_tensor *w = range(s, 2, 2), *v = dt_from_host(s, (float[]){7, 8, 9}, DT_float32, DT_DIMS(3));
    dt_requires_grad_set(w, true);
    REQUIRE_OK(dt_tensor_set_data(w, v));
    CHECK_VEC(w, 7, 8, 9);
    CHECK(dt_requires_grad(w) && dt_tensor_is_leaf(w));
    CHECK_OK(backward_sum(s, dt_mul(s, w, w)));
    CHECK_VEC(dt_grad_of(w), 14, 16, 18);
    CHECK_STATUS(dt_tensor_set_data(w, dt_zeros(s, DT_DIMS(2), DT_int64, NULL)), DT_E_DTYPE);
    dt_scope_free(s);
}

TEST(inplace_errors) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = range(s, 1, 2), *i = dt_from_host(s, (int64_t[]){1, 2}, DT_int64, DT_DIMS(2));
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], x);
    dt_arg_tensor(&a.a[1], range(s, 2, 2));
    CHECK_STATUS(dt_invoke_inplace(&dt_op_add, &a), DT_E_SHAPE);
    CHECK_HAS(dt_error(), "output with shape (1, 2) doesn't match the broadcast shape (2, 2)");
    CHECK_STATUS(in_place(&dt_op_add, i, 0.5), DT_E_DTYPE);
    CHECK_HAS(dt_error(), "float32 can't be cast to the desired output type int64");
    CHECK(in_place(&dt_op_add, dt_expand(s, x, DT_DIMS(3, 2), false), 1) != DT_OK);
    CHECK_VEC(x, 0, 1);
    dt_scope_free(s);
}

TEST(assign_casts_and_broadcasts) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = range(s, 2, 2);
    REQUIRE_OK(dt_tensor_assign(x, dt_from_host(s, (int64_t[]){5, 6}, DT_int64, DT_DIMS(2))));
    CHECK_VEC(x, 5, 6, 5, 6);
    const dt_mesh *m = dt_mesh_cpu(1, (int64_t[]){2}, NULL);
    dt_tensor *d = dt_distribute(s, range(s, 2, 2), m, "S1");
    REQUIRE_OK(dt_tensor_assign(d, x));
    CHECK_VEC(d, 5, 6, 5, 6);
    CHECK_INT(dt_tensor_meta(d)->place[0].kind, DT_SHARD);
    dt_scope_free(s);
}

/* clamp_(max=2) on Partial(1, 2): the sum is clamped, and the tensor is replicated afterwards. */
TEST(inplace_on_partial) {
    dt_scope *s = dt_scope_new();
    const dt_mesh *m = dt_mesh_cpu(1, (int64_t[]){2}, NULL);
    const dt_spec *spec;
    REQUIRE_OK(dt_spec_intern(m, (dt_placement[]){DT_P}, &spec));
    dt_tensor *part[2];
    for (int i = 0; i < 2; i++) {
        dt_args a = {0};
        dt_status r = dt_spec_intern(dt_mesh_single(dt_device_make(DT_CPU, (uint32_t)i)), NULL, &a.spec);
        CHECK_OK(r);
        part[i] = dt_full(s, DT_DIMS(2), i + 1.5, DT_float32, a.spec);
    }
    dt_tensor *x = dt_from_local(s, (dt_list){2, part}, spec);
    REQUIRE(x != NULL);
    CHECK_VEC(x, 4, 4);
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], x);
    REQUIRE_OK(dt_invoke_inplace(&dt_op_exp, &a));
    CHECK_VEC(x, 54.59815f, 54.59815f);
    CHECK_INT(dt_tensor_meta(x)->place[0].kind, DT_REPLICATE);
    dt_scope_free(s);
}

TEST(inference_tensors) {
    dt_scope *s = dt_scope_new();
    dt_mode_inference_set(true);
    dt_tensor *x = range(s, 1, 2);
    REQUIRE_OK(in_place(&dt_op_add, x, 1));
    dt_mode_inference_set(false);
    CHECK_STATUS(in_place(&dt_op_add, x, 1), DT_E_GRAD);
    CHECK_HAS(dt_error(), "Inplace update to inference tensor");
    dt_tensor *w = range(s, 1, 2);
    dt_requires_grad_set(w, true);
    CHECK_PTR(dt_mul(s, w, x), NULL);
    CHECK_HAS(dt_error(), "Inference tensors cannot be saved for backward");
    dt_scope_free(s);
}
