/* Gradients: formulas through the engine, accumulation, hooks, higher order, errors, deep graphs; in C through the public API. */
#include "client/internal.h"
#include "dtorch_ops.h"
#include "test.h"

static dt_tensor *leaf(dt_scope *s, int n, const float *v) {
    dt_tensor *t = dt_from_host(s, v, DT_float32, DT_DIMS(n));
    dt_requires_grad_set(t, true);
    return t;
}
#define LEAF(s, ...) leaf((s), (int)(sizeof((float[]){__VA_ARGS__}) / 4), (float[]){__VA_ARGS__})
static void check_values(int line, dt_tensor *t, int n, const float *want) {
    float got[64];
    if (!t) TEST_FAIL("line %d: no tensor: %s", line, dt_error());
    if (!t) return;
    if (dt_read(t, got, (size_t)n * 4)) TEST_FAIL("line %d: %s", line, dt_error());
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-4f)) TEST_FAIL("line %d: [%d] = %g, expected %g", line, i, got[i], want[i]);
}
#define CHECK_VEC(t, ...) check_values(__LINE__, (t), (int)(sizeof((float[]){__VA_ARGS__}) / 4), (float[]){__VA_ARGS__})

static int backward_ones(dt_scope *s, dt_tensor *y, bool retain, bool create) {
    dt_tensor *g = dt_util_fill(s, dt_tensor_meta(y), 1);
    return dt_backward(y, g, retain, create);
}

TEST(product) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = LEAF(s, 1, 2, 3), *y = LEAF(s, 4, 5, 6);
    dt_tensor *z = dt_mul(s, x, y);
    CHECK(dt_requires_grad(z) && !dt_tensor_is_leaf(z));
    CHECK_STR(dt_grad_node_name(dt_tensor_grad_fn(z)), "MulBackward0");
    CHECK_OK(backward_ones(s, z, false, false));
    CHECK_VEC(dt_grad_of(x), 4, 5, 6);
    CHECK_VEC(dt_grad_of(y), 1, 2, 3);
    dt_scope_free(s);
}

TEST(gradients_accumulate) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = LEAF(s, 1, 2);
    CHECK_OK(backward_ones(s, dt_mul(s, x, x), false, false));
    CHECK_VEC(dt_grad_of(x), 2, 4);
    dt_tensor *held = dt_keep(dt_grad_of(x));
    CHECK_OK(backward_ones(s, dt_mul(s, x, 3.0), false, false));
    CHECK_VEC(dt_grad_of(x), 5, 7);
    CHECK_PTR(dt_grad_of(x), held); /* in place: who holds .grad sees it */
    dt_release(held);
    dt_grad_clear(x);
    CHECK_PTR(dt_grad_of(x), NULL);
    dt_scope_free(s);
}

TEST(higher_order) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = LEAF(s, 2, 3), *g = NULL, *h = NULL;
    dt_tensor *y = dt_mul(s, dt_mul(s, x, x), x);
    dt_tensor *one = dt_util_fill(s, dt_tensor_meta(y), 1);
    dt_backward_args a = {.n_roots = 1, .roots = &y, .grads = &one, .n_inputs = 1, .inputs = &x, .retain_graph = true, .create_graph = true};
    REQUIRE_OK(dt_backward_run(&a, &g));
    CHECK_VEC(g, 12, 27);
    CHECK(dt_requires_grad(g));
    a.roots = &g;
    a.create_graph = a.retain_graph = false;
    REQUIRE_OK(dt_backward_run(&a, &h));
    CHECK_VEC(h, 12, 18);
    dt_release(g);
    dt_release(h);
    dt_scope_free(s);
}

TEST(second_backward_needs_retain_graph) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = LEAF(s, 1, 2), *y = dt_exp(s, x);
    CHECK_OK(backward_ones(s, y, true, false));
    CHECK_OK(backward_ones(s, y, false, false));
    CHECK_STATUS(backward_ones(s, y, false, false), DT_E_GRAD);
    CHECK_HAS(dt_error(), "Trying to backward through the graph a second time");
    dt_scope_free(s);
}

TEST(errors) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = LEAF(s, 1, 2), *plain = dt_zeros(s, DT_DIMS(2), DT_float32, NULL);
    CHECK_STATUS(dt_backward(plain, NULL, false, false), DT_E_GRAD);
    CHECK_HAS(dt_error(), "element 0 of tensors does not require grad");
    dt_tensor *y = dt_mul(s, x, 2);
    CHECK_STATUS(dt_backward(y, NULL, false, false), DT_E_GRAD);
    CHECK_HAS(dt_error(), "grad can be implicitly created only for scalar outputs");
    dt_tensor *unused = LEAF(s, 1), *out = NULL, *one = dt_util_fill(s, dt_tensor_meta(y), 1);
    dt_backward_args a = {.n_roots = 1, .roots = &y, .grads = &one, .n_inputs = 1, .inputs = &unused};
    CHECK_STATUS(dt_backward_run(&a, &out), DT_E_GRAD);
    CHECK_HAS(dt_error(), "allow_unused=True");
    a.allow_unused = true;
    y = dt_mul(s, x, 2);
    CHECK_OK(dt_backward_run(&a, &out));
    CHECK_PTR(out, NULL);
    dt_scope_free(s);
}

TEST(leaf_rules) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = LEAF(s, 1, 2), *i = dt_zeros(s, DT_DIMS(2), DT_int64, NULL);
    CHECK_STATUS(dt_tensor_requires_grad_set(i, true), DT_E_GRAD);
    CHECK_STATUS(dt_tensor_requires_grad_set(dt_mul(s, x, 2), false), DT_E_GRAD);
    CHECK_HAS(dt_error(), "leaf variables");
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], x);
    dt_arg_float(&a.a[1], 1);
    CHECK_STATUS(dt_invoke_inplace(&dt_op_add, &a), DT_E_GRAD);
    CHECK_STR(dt_error(), "a leaf Variable that requires grad is being used in an in-place operation.");
    bool was = dt_grad_mode_set(false);
    CHECK_OK(dt_invoke_inplace(&dt_op_add, &a));
    dt_grad_mode_set(was);
    CHECK_VEC(x, 2, 3);
    CHECK(dt_requires_grad(x) && dt_tensor_is_leaf(x));
    dt_scope_free(s);
}

TEST(version_check) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = LEAF(s, 1, 2), *y = dt_mul(s, x, 1), *z = dt_mul(s, y, y);
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], y);
    dt_arg_float(&a.a[1], 1);
    REQUIRE_OK(dt_invoke_inplace(&dt_op_add, &a));
    CHECK_VEC(y, 2, 3);
    CHECK_VEC(z, 1, 4);
    CHECK_STATUS(backward_ones(s, z, false, false), DT_E_GRAD);
    CHECK_HAS(dt_error(), "has been modified by an inplace operation: [float32 [2]]");
    CHECK_HAS(dt_error(), "is at version 1; expected version 0 instead");
    dt_scope_free(s);
}

/* x * y in place keeps what it needs of the old x, as PyTorch's clone of self does. */
TEST(inplace_product) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = LEAF(s, 1, 2), *w = LEAF(s, 3, 4), *y = dt_mul(s, x, 2);
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], y);
    dt_arg_tensor(&a.a[1], w);
    REQUIRE_OK(dt_invoke_inplace(&dt_op_mul, &a));
    CHECK_VEC(y, 6, 16);
    CHECK_OK(backward_ones(s, y, false, false));
    CHECK_VEC(dt_grad_of(x), 6, 8);
    CHECK_VEC(dt_grad_of(w), 2, 4);
    dt_scope_free(s);
}

/* exp saves its result; a later write to it is noticed. */
TEST(inplace_saves_result) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = LEAF(s, 0, 1), *y = dt_mul(s, x, 1);
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], y);
    REQUIRE_OK(dt_invoke_inplace(&dt_op_exp, &a));
    CHECK_OK(backward_ones(s, y, true, false));
    CHECK_VEC(dt_grad_of(x), 1, 2.7182818f);
    dt_arg_float(&a.a[1], 1);
    REQUIRE_OK(dt_invoke_inplace(&dt_op_add, &a));
    CHECK_STATUS(backward_ones(s, y, false, false), DT_E_GRAD);
    dt_scope_free(s);
}

static dt_status doubled(void *ctx, dt_tensor **grad) {
    ++*(int *)ctx;
    dt_scope *s = dt_scope_new();
    dt_tensor *g = dt_keep(dt_mul(s, *grad, 2));
    dt_release(*grad);
    *grad = g;
    dt_scope_free(s);
    return g ? DT_OK : DT_E_INTERNAL;
}
static dt_status failing(void *ctx, dt_tensor **grad) { return dt_fail(DT_E_CALLBACK, "the hook says no"); }

TEST(hooks) {
    dt_scope *s = dt_scope_new();
    int n = 0;
    uint64_t on_leaf, on_mid;
    dt_tensor *x = LEAF(s, 1, 2), *y = dt_mul(s, x, 3), *z = dt_mul(s, y, 5);
    REQUIRE_OK(dt_tensor_hook_add(x, (dt_hook){doubled, NULL, &n}, &on_leaf));
    REQUIRE_OK(dt_tensor_hook_add(y, (dt_hook){doubled, NULL, &n}, &on_mid));
    REQUIRE_OK(dt_tensor_retain_grad(y));
    CHECK_OK(backward_ones(s, z, true, false));
    CHECK_INT(n, 2);
    CHECK_VEC(dt_grad_of(y), 10, 10);
    CHECK_VEC(dt_grad_of(x), 60, 60);
    dt_tensor_hook_remove(x, on_leaf);
    dt_tensor_hook_remove(y, on_mid);
    CHECK_OK(backward_ones(s, z, true, false));
    CHECK_INT(n, 2);
    CHECK_VEC(dt_grad_of(x), 75, 75);
    REQUIRE_OK(dt_tensor_hook_add(y, (dt_hook){failing, NULL, NULL}, &on_mid));
    CHECK_STATUS(backward_ones(s, z, false, false), DT_E_CALLBACK);
    CHECK_STR(dt_error(), "the hook says no");
    dt_scope_free(s);
}

static dt_tensor *self_tensor;
static uint64_t self_handle;
static dt_status removes_itself(void *ctx, dt_tensor **grad) {
    dt_tensor_hook_remove(self_tensor, self_handle);
    return DT_OK;
}

TEST(hook_removes_itself) {
    dt_scope *s = dt_scope_new();
    int n = 0;
    uint64_t second;
    dt_tensor *x = LEAF(s, 1, 2), *y = dt_mul(s, x, 3);
    self_tensor = x;
    REQUIRE_OK(dt_tensor_hook_add(x, (dt_hook){removes_itself, NULL, NULL}, &self_handle));
    REQUIRE_OK(dt_tensor_hook_add(x, (dt_hook){doubled, NULL, &n}, &second));
    CHECK_OK(backward_ones(s, y, true, false));
    CHECK_INT(n, 1);
    CHECK_OK(backward_ones(s, y, false, false));
    CHECK_INT(n, 2);
    CHECK_VEC(dt_grad_of(x), 12, 12);
    dt_scope_free(s);
}

TEST(broadcast_and_cast) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = LEAF(s, 2), *y = dt_from_host(s, (double[]){1, 2, 3}, DT_float64, DT_DIMS(3));
    dt_requires_grad_set(y, true);
    dt_tensor *z = dt_mul(s, x, y);
    REQUIRE(z != NULL);
    CHECK_INT(dt_dtype_of(z), DT_float64);
    CHECK_OK(backward_ones(s, z, false, false));
    CHECK_VEC(dt_grad_of(x), 6);
    dt_scope_free(s);
}

TEST(deep_graph) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = dt_keep(LEAF(s, 1)), *y = dt_keep(x);
    for (int i = 0; i < 100000; i++) {
        dt_tensor *z = dt_keep(dt_add(s, y, x));
        REQUIRE(z != NULL);
        dt_release(y);
        dt_scope_clear(s);
        y = z;
    }
    CHECK_OK(dt_backward(y, NULL, false, false));
    CHECK_VEC(dt_grad_of(x), 100001);
    dt_release(y);
    y = dt_keep(x);
    for (int i = 0; i < 100000; i++) { /* dropped without a backward */
        dt_tensor *z = dt_keep(dt_mul(s, y, 1));
        dt_release(y);
        dt_scope_clear(s);
        y = z;
    }
    dt_release(y);
    dt_release(x);
    dt_scope_free(s);
}

/* A leaf's gradient has the leaf's placements, whatever way it came. */
TEST(gradient_placements) {
    dt_scope *s = dt_scope_new();
    const dt_mesh *m = dt_mesh_cpu(1, (int64_t[]){2}, NULL);
    dt_tensor *w = dt_keep(dt_distribute(s, dt_from_host(s, (float[]){1, 2, 3}, DT_float32, DT_DIMS(3)), m, "S0"));
    dt_requires_grad_set(w, true);
    dt_tensor *x = dt_distribute(s, dt_from_host(s, (float[]){4, 5, 6}, DT_float32, DT_DIMS(3)), m, "R");
    dt_tensor *y = dt_mul(s, dt_distribute(s, w, m, "R"), x);
    REQUIRE(y != NULL);
    CHECK_OK(backward_ones(s, y, false, false));
    REQUIRE(dt_grad_of(w) != NULL);
    CHECK_PTR(dt_tensor_meta(dt_grad_of(w)), dt_tensor_meta(w));
    CHECK_VEC(dt_grad_of(w), 4, 5, 6);
    dt_release(w);
    dt_scope_free(s);
}

static dt_status triple(void *ctx, dt_tensor **gy, dt_tensor **gx) {
    dt_scope *s = dt_scope_new();
    gx[0] = gy[0] ? dt_keep(dt_mul(s, gy[0], 3)) : NULL;
    dt_scope_free(s);
    return DT_OK;
}
static void count(void *ctx) { ++*(int *)ctx; }

TEST(custom_function) {
    dt_scope *s = dt_scope_new();
    int freed = 0;
    dt_tensor *x = LEAF(s, 1, 2);
    bool was = dt_grad_mode_set(false);
    dt_tensor *y = dt_keep(dt_mul(s, x, 3));
    dt_grad_mode_set(was);
    dt_custom c = {triple, count, &freed, "TripleBackward"};
    REQUIRE_OK(dt_custom_attach(&c, 1, &x, 1, &y));
    CHECK_STR(dt_grad_node_name(dt_tensor_grad_fn(y)), "TripleBackward");
    CHECK_OK(backward_ones(s, y, false, false));
    CHECK_VEC(dt_grad_of(x), 3, 3);
    CHECK_INT(freed, 0);
    dt_release(y);
    dt_scope_clear(s);
    CHECK_INT(freed, 1);
    dt_scope_free(s);
}
