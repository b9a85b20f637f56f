/* Autocast: which operators cast, kept casts, what is off inside; backward runs that are a part of another; snapshots. */
#include "client/internal.h"
#include "dtorch_ops.h"
#include "test.h"

static dt_tensor *square(dt_scope *s, float v, bool grad) {
    float data[9];
    for (int i = 0; i < 9; i++) data[i] = v + (float)i;
    dt_tensor *t = dt_from_host(s, data, DT_float32, DT_DIMS(3, 3));
    if (grad) dt_requires_grad_set(t, true);
    return t;
}
static int dtype(dt_tensor *t) { return t ? dt_dtype_of(t) : -1; }
static void on(int dtype) { dt_mode_autocast_set(DT_CPU, dtype); }
static void off(void) {
    on(DT_DTYPE_NONE);
    dt_autocast_forget();
}

TEST(lists) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = square(s, 1, false), *low = dt_util_cast(s, x, DT_bfloat16);
    on(DT_bfloat16);
    CHECK_INT(dtype(dt_matmul(s, x, x)), DT_bfloat16);
    CHECK_INT(dtype(dt_exp(s, low)), DT_float32);
    CHECK_INT(dtype(dt_mul(s, low, low)), DT_bfloat16);
    CHECK_INT(dtype(dt_mul(s, x, x)), DT_float32);
    CHECK_INT(dtype(dt_cat(s, (dt_list){2, (dt_tensor *[]){x, low}}, 0)), DT_float32);
    CHECK_INT(dtype(dt_cat(s, (dt_list){2, (dt_tensor *[]){low, low}}, 0)), DT_bfloat16);
    CHECK(dt_m.autocast);
    CHECK_INT(dt_mode_autocast(DT_CPU), DT_bfloat16);
    CHECK_INT(dt_mode_autocast(DT_CUDA), DT_DTYPE_NONE);
    CHECK(dt_matmul(s, x, dt_util_fill(s, dt_tensor_meta(dt_matmul(s, x, x)), 1)) != NULL);
    off();
    CHECK(!dt_m.autocast);
    CHECK_INT(dtype(dt_matmul(s, x, x)), DT_float32);
    dt_scope_free(s);
}

TEST(an_error_leaves_it_on) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = square(s, 1, false), *y = dt_from_host(s, (float[]){1, 2}, DT_float32, DT_DIMS(2, 1));
    on(DT_float16);
    CHECK_PTR(dt_matmul(s, x, y), NULL);
    dt_scope_clear(s);
    CHECK(dt_m.autocast);
    off();
    dt_scope_free(s);
}

TEST(casts_of_leaves_are_kept) {
    dt_scope *s = dt_scope_new();
    dt_tensor *w = square(s, 1, true), *x = square(s, 2, false);
    on(DT_bfloat16);
    CHECK(dt_matmul(s, x, w) != NULL);
    REQUIRE(w->leaf && w->leaf->low);
    dt_tensor *low = w->leaf->low;
    CHECK(dt_matmul(s, x, w) != NULL);
    CHECK_PTR(w->leaf->low, low);
    CHECK(dt_requires_grad(low));
    CHECK(!x->leaf || !x->leaf->low);
    bool grad = dt_grad_mode_set(false); /* another kind of use: cast anew */
    dt_tensor *y = dt_matmul(s, x, w);
    CHECK(!dt_requires_grad(y));
    CHECK(!dt_requires_grad(w->leaf->low));
    dt_grad_mode_set(grad);
    CHECK(dt_requires_grad(dt_matmul(s, x, w)));
    dt_mode_autocast_cache_set(false);
    dt_tensor *v = square(s, 3, true);
    CHECK(dt_matmul(s, x, v) != NULL);
    CHECK(!v->leaf || !v->leaf->low);
    dt_mode_autocast_cache_set(true);
    dt_tensor *sum = dt_sum(s, dt_matmul(s, x, w), (dt_dims){-1, NULL}, false, DT_DTYPE_NONE);
    CHECK_INT(dtype(sum), DT_float32);
    CHECK_OK(dt_backward(sum, NULL, false, false));
    CHECK_INT(dtype(dt_grad_of(w)), DT_float32);
    off();
    CHECK_PTR(w->leaf->low, NULL);
    dt_scope_free(s);
}

static dt_status count(void *ctx, dt_tensor **grad) {
    ++*(int *)ctx;
    return DT_OK;
}

TEST(an_inner_backward_runs_no_hooks_of_leaves) {
    dt_scope *s = dt_scope_new();
    int calls = 0;
    uint64_t handle;
    dt_tensor *w = square(s, 1, true), *y = dt_mul(s, w, w), *ones = dt_util_fill(s, dt_tensor_meta(y), 1), *g = NULL;
    REQUIRE_OK(dt_tensor_hook_add(w, (dt_hook){count, NULL, &calls}, &handle));
    dt_backward_args a = {.n_roots = 1, .roots = &y, .grads = &ones, .n_inputs = 1, .inputs = &w, .retain_graph = true, .inner = true};
    REQUIRE_OK(dt_backward_run(&a, &g));
    CHECK_INT(calls, 0);
    CHECK_PTR(dt_grad_of(w), NULL);
    dt_release(g);
    a.inner = false;
    REQUIRE_OK(dt_backward_run(&a, &g));
    CHECK_INT(calls, 1);
    dt_release(g);
    CHECK_PTR(dt_grad_node_leaf(dt_tensor_grad_fn(y)), NULL);
    uint32_t nr;
    CHECK_PTR(dt_grad_node_leaf(dt_grad_node_input(dt_tensor_grad_fn(y), 0, &nr)), w);
    dt_scope_free(s);
}

TEST(a_snapshot_does_not_change) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = square(s, 1, false), *was = NULL;
    REQUIRE_OK(dt_tensor_snapshot(x, &was));
    dt_args a = {0};
    dt_arg_tensor(&a.a[0], x);
    dt_arg_tensor(&a.a[1], x);
    REQUIRE_OK(dt_invoke_inplace(&dt_op_add, &a));
    float now[9], then[9];
    CHECK_OK(dt_read(x, now, sizeof now));
    CHECK_OK(dt_read(was, then, sizeof then));
    for (int i = 0; i < 9; i++) CHECK(now[i] == 2 * then[i] && then[i] == (float)(i + 1));
    dt_release(was);
    dt_scope_free(s);
}
