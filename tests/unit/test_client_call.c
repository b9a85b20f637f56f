/* Calls from end to end: data in, operators, data out; errors of arguments; the cache of calls; placements. */
#include "base/arena.h"
#include "client/internal.h"
#include "dtorch_ops.h"
#include "test.h"

static dt_tensor *vec(dt_scope *s, int n, const float *v) { return dt_from_host(s, v, DT_float32, DT_DIMS(n)); }
#define VEC(s, ...) vec((s), (int)(sizeof((float[]){__VA_ARGS__}) / 4), (float[]){__VA_ARGS__})

static void check_values(dt_tensor *t, int n, const float *want) {
    float got[64];
    REQUIRE(t != NULL);
    REQUIRE_OK(dt_read(t, got, (size_t)n * 4));
    for (int i = 0; i < n; i++) CHECK_NEAR(got[i], want[i], 1e-5);
}
#define CHECK_VEC(t, ...) check_values((t), (int)(sizeof((float[]){__VA_ARGS__}) / 4), (float[]){__VA_ARGS__})

TEST(add_and_numbers) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = VEC(s, 1, 2, 3), *y = VEC(s, 10, 20, 30);
    CHECK_VEC(dt_add(s, x, y), 11, 22, 33);
    CHECK_VEC(dt_add(s, x, 2.5), 3.5, 4.5, 5.5);
    CHECK_VEC(dt_mul(s, x, 3), 3, 6, 9);
    CHECK_INT(dt_scope_status(s), 0);
    dt_scope_free(s);
}

/* A number is an input, not part of the key: one call, three values. */
TEST(numbers_are_not_keys) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = VEC(s, 1, 2);
    CHECK_VEC(dt_mul(s, x, 1.5), 1.5, 3);
    size_t n = dt_calls_count();
    CHECK_VEC(dt_mul(s, x, 2.0), 2, 4);
    CHECK_VEC(dt_mul(s, x, 3.0), 3, 6);
    CHECK_INT(dt_calls_count(), n);
    dt_scope_free(s);
}

TEST(chain_of_calls) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = dt_keep(VEC(s, 0, 1));
    for (int i = 0; i < 10000; i++) {
        dt_tensor *y = dt_keep(dt_add(s, x, 1));
        dt_release(x);
        dt_scope_clear(s);
        x = y;
    }
    CHECK_VEC(x, 10000, 10001);
    CHECK(dt_c.next_id < 1000);
    dt_release(x);
    dt_scope_free(s);
}

TEST(argument_errors) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = VEC(s, 1, 2), *y = VEC(s, 1, 2, 3);
    CHECK_PTR(dt_add(s, x, y), NULL);
    CHECK_INT(dt_scope_status(s), DT_E_SHAPE);
    CHECK_HAS(dt_error(), "must match the size of tensor b (3)");
    dt_scope_clear(s);
    x = VEC(s, 1, 2);
    dt_args a = {0};
    dt_tensor *out[4];
    int n;
    dt_arg_tensor(&a.a[0], x);
    CHECK_STATUS(dt_invoke(&dt_op_add, &a, 4, out, &n), DT_E_TYPE);
    CHECK_HAS(dt_error(), "missing required argument 'other'");
    dt_arg_str(&a.a[1], "two");
    CHECK_STATUS(dt_invoke(&dt_op_add, &a, 4, out, &n), DT_E_TYPE);
    CHECK_HAS(dt_error(), "argument 'other' must be Tensor or number, not str");
    dt_arg_float(&a.a[0], 1);
    CHECK_STATUS(dt_invoke(&dt_op_add, &a, 4, out, &n), DT_E_TYPE);
    a = (dt_args){0};
    dt_arg_tensor(&a.a[0], x);
    dt_arg_float(&a.a[1], 0.5);
    CHECK_STATUS(dt_invoke(&dt_op_transpose, &a, 4, out, &n), DT_E_TYPE);
    CHECK_HAS(dt_error(), "must be int, not float");
    dt_scope_free(s);
}

TEST(calls_are_bounded) {
    dt_scope *s = dt_scope_new();
    for (int i = 1; i < DT_CALLS_MAX + 3000; i++) {
        dt_tensor *z = dt_zeros(s, DT_DIMS(i % 64 + 1, i / 64 + 1), DT_float32, NULL);
        REQUIRE(z != NULL);
        dt_scope_clear(s);
    }
    CHECK(dt_calls_count() <= DT_CALLS_MAX);
    CHECK_OK(dt_synchronize());
    dt_tensor *x = VEC(s, 1, 2);
    CHECK_VEC(dt_add(s, x, x), 2, 4);
    dt_scope_free(s);
}

TEST(random_is_reproducible) {
    dt_scope *s = dt_scope_new();
    float a[6], b[6], c[6];
    dt_manual_seed(3);
    REQUIRE_OK(dt_read(dt_randn(s, DT_DIMS(6), NULL, DT_float32, NULL), a, sizeof a));
    REQUIRE_OK(dt_read(dt_randn(s, DT_DIMS(6), NULL, DT_float32, NULL), b, sizeof b));
    dt_manual_seed(3);
    REQUIRE_OK(dt_read(dt_randn(s, DT_DIMS(6), NULL, DT_float32, NULL), c, sizeof c));
    CHECK(!memcmp(a, c, sizeof a));
    CHECK(memcmp(a, b, sizeof a) != 0);
    dt_scope_free(s);
}

TEST(default_dtype_is_part_of_the_key) {
    dt_scope *s = dt_scope_new();
    CHECK_INT(dt_dtype_of(dt_full(s, DT_DIMS(2), 0.5, DT_DTYPE_NONE, NULL)), DT_float32);
    dt_default_dtype_set(DT_float64);
    CHECK_INT(dt_dtype_of(dt_full(s, DT_DIMS(2), 0.5, DT_DTYPE_NONE, NULL)), DT_float64);
    dt_scope_free(s);
}

static dt_status half(void *ctx, int n_in, const dt_view *in, int n_out, const dt_view *out) {
    for (int i = 0; i < 3; i++) ((float *)out[0].data)[i] = ((float *)in[0].data)[i] / 2;
    ((int64_t *)out[1].data)[0] = n_in;
    return *(int *)ctx < 0 ? dt_fail(DT_E_CALLBACK, "no halves today") : DT_OK;
}
static void host_freed(void *ctx) { *(int *)ctx += 10; }

TEST(host_call) {
    dt_scope *s = dt_scope_new();
    int ok = 1, bad = -1;
    dt_type types[2] = {{DT_float32, 1, {3}}, {DT_int64, 0, {0}}};
    dt_tensor *x = dt_distribute(s, VEC(s, 2, 4, 6), dt_mesh_cpu(1, (int64_t[]){2}, NULL), "S0"), *out[2];
    REQUIRE_OK(dt_host_call(half, host_freed, &ok, 1, &x, 2, types, out));
    CHECK_VEC(dt_add(s, out[0], 1), 2, 3, 4);
    double n;
    CHECK_OK(dt_item_f64(out[1], &n));
    CHECK_NEAR(n, 1, 0);
    CHECK_OK(dt_synchronize());
    CHECK_INT(ok, 11);
    for (int i = 0; i < 2; i++) dt_release(out[i]);
    dt_mode_site_set(dt_site_intern("user.py", 7, "main"));
    REQUIRE_OK(dt_host_call(half, host_freed, &bad, 1, &x, 2, types, out));
    dt_mode_site_set(0);
    float v[3];
    CHECK_INT(dt_read(dt_add(s, out[0], 1), v, sizeof v), DT_E_CALLBACK);
    CHECK_HAS(dt_error(), "no halves today");
    CHECK_HAS(dt_error(), "user.py:7");
    for (int i = 0; i < 2; i++) dt_release(out[i]);
    dt_scope_free(s);
}

/* ---- placements ---- */
static const dt_mesh *two(void) { return dt_mesh_cpu(1, (int64_t[]){2}, NULL); }

TEST(sharded_add_keeps_shards) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = dt_distribute(s, VEC(s, 1, 2, 3), two(), "S0"), *y = VEC(s, 10, 20, 30);
    REQUIRE(x != NULL);
    dt_tensor *z = dt_add(s, x, y);
    REQUIRE(z != NULL);
    CHECK(dt_tensor_meta(z)->mesh == two() && dt_tensor_meta(z)->place[0].kind == DT_SHARD);
    CHECK_VEC(z, 11, 22, 33);
    dt_scope_free(s);
}

TEST(meshes_do_not_mix) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = dt_distribute(s, VEC(s, 1, 2), two(), "R");
    dt_tensor *y = dt_distribute(s, VEC(s, 1, 2), dt_mesh_cpu(1, (int64_t[]){3}, NULL), "R");
    CHECK_PTR(dt_add(s, x, y), NULL);
    CHECK_INT(dt_scope_status(s), DT_E_PLACEMENT);
    CHECK_HAS(dt_error(), "two meshes");
    dt_scope_free(s);
}

TEST(policy_error_names_what_is_legal) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = dt_distribute(s, dt_zeros(s, DT_DIMS(4, 4), DT_float32, NULL), two(), "S0");
    dt_tensor *y = dt_distribute(s, dt_zeros(s, DT_DIMS(4, 4), DT_float32, NULL), two(), "S1");
    REQUIRE(y != NULL);
    CHECK(dt_add(s, x, y) != NULL);
    dt_mode_policy_set(DT_POLICY_ERROR);
    CHECK_PTR(dt_add(s, x, y), NULL);
    CHECK_INT(dt_scope_status(s), DT_E_PLACEMENT);
    CHECK_HAS(dt_error(), "add()");
    CHECK_HAS(dt_error(), "Shard(0), Shard(0) -> Shard(0)");
    CHECK_HAS(dt_error(), "would become");
    dt_scope_clear(s);
    dt_scope_free(s);
}

/* ---- running out of host memory: the call fails, nothing is lost. The engine sleeps meanwhile, as the failing allocator is everybody's. ---- */
TEST(out_of_host_memory) {
    dt_scope *s = dt_scope_new();
    dt_tensor *x = dt_keep(VEC(s, 1, 2));
    dt_requires_grad_set(x, true);
    CHECK_VEC(dt_mul(s, x, 2.0), 2, 4);
    int failed = 0;
    for (int k = 0; k < 12; k++) {
        dt_scope_clear(s);
        CHECK_OK(dt_synchronize());
        dt_call *c;
        dt_args a = {0};
        dt_arg_dims(&a.a[0], DT_DIMS(3, 100 + k)); /* not seen before: the whole slow path allocates */
        dt_arg_float(&a.a[1], 1);
        CHECK_OK(dt_spec_intern(dt_mesh_single(0), NULL, &a.spec));
        dt_malloc_fail_after(k);
        dt_status r = dt_prepare(&dt_op_full, &a, &c);
        dt_malloc_fail_after(-1);
        if (r && r != DT_E_NOMEM) TEST_FAIL("allocation %d: %s: %s", k, dt_status_name(r), dt_error());
        failed += r != DT_OK;
    }
    CHECK(failed > 0 && failed < 12);
    CHECK_VEC(dt_mul(s, x, 2.0), 2, 4);
    dt_release(x);
    dt_scope_free(s);
}
