/* Random ops: values follow from (seed, offset, global index), see random.h; every placement gives the same numbers. */
#include "ops/random.h"

#include "dtorch_ops.h"
#include "ops/pointwise_ops.h"

DT_CPU_KERNEL(uniform);
DT_CPU_KERNEL(normal);

typedef struct sized_attr {
    dt_random_floats f;
    dt_ints size;
    int32_t dtype;
} sized_attr;

/* A factory of floats with distribution parameters (x, y). */
static dt_status sized_infer(dt_node *n, double x, double y) {
    sized_attr *a = n->attr;
    dt_type *o = &n->out[0];
    a->f = (dt_random_floats){x, y};
    o->dtype = a->dtype == DT_DTYPE_NONE ? dt_default_dtype() : (dt_dtype)a->dtype;
    if (!dt_dtype_is_float(o->dtype))
        return dt_fail(DT_E_DTYPE, "%s: not implemented for %s: a float dtype is expected", dt_op_name(n->op), dt_dtype_name(o->dtype));
    if (a->size.n > DT_MAX_DIM) return dt_fail(DT_E_VALUE, "%s: %d dimensions; at most %d are supported", dt_op_name(n->op), a->size.n, DT_MAX_DIM);
    o->ndim = a->size.n;
    for (int i = 0; i < o->ndim; i++) {
        if (a->size.v[i] < 0)
            return dt_fail(DT_E_SHAPE, "%s: Trying to create tensor with negative dimension %lld: dimension %d of the size", dt_op_name(n->op),
                           (long long)a->size.v[i], i);
        o->shape[i] = a->size.v[i];
    }
    return DT_OK;
}
static dt_status rand_infer(dt_node *n) { return sized_infer(n, 0, 1); }
#define SIZED_ATTRS DT_ATTRS(sized_attr, DT_FIELD(sized_attr, size), DT_FIELD(sized_attr, dtype))

const dt_op dt_op_rand = {
    .sig = "rand(int[]... size, *, Generator? generator=None, dtype? dtype=None) -> Tensor",
    .doc = "Uniform random numbers in [0, 1).",
    .where = DT_FN,
    .flags = DT_F_FACTORY | DT_F_RANDOM,
    .attrs = SIZED_ATTRS,
    .infer = rand_infer,
    .place = dt_place_pointwise,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_uniform}},
};
const dt_op dt_op_randn = {
    .sig = "randn(int[]... size, *, Generator? generator=None, dtype? dtype=None) -> Tensor",
    .doc = "Normal random numbers of mean 0 and variance 1.",
    .where = DT_FN,
    .flags = DT_F_FACTORY | DT_F_RANDOM,
    .attrs = SIZED_ATTRS,
    .infer = rand_infer,
    .place = dt_place_pointwise,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_normal}},
};

/* ---- like another tensor ------------------------------------------------------------------------------------------------------------- */
typedef struct like_attr {
    dt_random_floats f;
    int32_t dtype;
} like_attr;
static dt_status like_infer(dt_node *n) {
    like_attr *a = n->attr;
    a->f = (dt_random_floats){0, 1};
    n->out[0] = dt_meta_type(n->in[0]);
    if (a->dtype != DT_DTYPE_NONE) n->out[0].dtype = (dt_dtype)a->dtype;
    if (!dt_dtype_is_float(n->out[0].dtype))
        return dt_fail(DT_E_DTYPE, "%s: not implemented for %s: a float dtype is expected", dt_op_name(n->op), dt_dtype_name(n->out[0].dtype));
    return DT_OK;
}
/* input's values are not read: a Partial is as good as a Replicate. */
static dt_status like_place(const dt_node *n, dt_rules *r) {
    DT_TRY(dt_place_pointwise(n, r));
    static const dt_reduce kinds[] = {DT_SUM, DT_AVG, DT_MAX, DT_MIN};
    for (int k = 0; k < 4; k++) {
        dt_placement *in, *out;
        DT_TRY(dt_rule_add(r, &in, &out));
        in[0] = DT_P_OF(kinds[k]);
    }
    return DT_OK;
}
const dt_op dt_op_rand_like = {
    .sig = "rand_like(Tensor input, *, dtype? dtype=None, Generator? generator=None) -> Tensor",
    .doc = "Uniform random numbers in [0, 1) of input's shape, dtype and placements.",
    .flags = DT_F_RANDOM,
    .where = DT_FN,
    .attrs = DT_ATTRS(like_attr, DT_FIELD(like_attr, dtype)),
    .infer = like_infer,
    .place = like_place,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_uniform}},
};
const dt_op dt_op_randn_like = {
    .sig = "randn_like(Tensor input, *, dtype? dtype=None, Generator? generator=None) -> Tensor",
    .doc = "Normal random numbers of input's shape, dtype and placements.",
    .flags = DT_F_RANDOM,
    .where = DT_FN,
    .attrs = DT_ATTRS(like_attr, DT_FIELD(like_attr, dtype)),
    .infer = like_infer,
    .place = like_place,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_normal}},
};

/* ---- in place: a tensor filled with random numbers ------------------------------------------------------------------------------------- */
static dt_status written_infer(dt_node *n) {
    n->out[0] = dt_meta_type(n->in[0]);
    if (!dt_dtype_is_float(n->out[0].dtype))
        return dt_fail(DT_E_DTYPE, "%s: not implemented for %s: a float tensor is expected", dt_op_name(n->op), dt_dtype_name(n->out[0].dtype));
    return DT_OK;
}
static void zero_grad(dt_grad *g) { dt_grad_set(g, 0, dt_zeros_like(g->s, dt_grad_gy(g, 0), DT_DTYPE_NONE)); }
#define FILLED(infer_fn, kernel) .where = DT_METHOD, .infer = infer_fn, .place = like_place, .grad = zero_grad, .kernels = {{DT_CPU, DT_ANY, kernel}}
#define PARAMS1(x)                                \
    {                                             \
        sizeof(dt_random_floats), {               \
            { #x, offsetof(dt_random_floats, a) } \
        }                                         \
    }
#define PARAMS2(x, y)                                                                  \
    {                                                                                  \
        sizeof(dt_random_floats), {                                                    \
            {#x, offsetof(dt_random_floats, a)}, { #y, offsetof(dt_random_floats, b) } \
        }                                                                              \
    }
#define P(n) ((const dt_random_floats *)(n)->attr)
DT_CPU_KERNEL(exponential);
DT_CPU_KERNEL(cauchy);
DT_CPU_KERNEL(bernoulli);
DT_CPU_KERNEL(geometric);
DT_CPU_KERNEL(log_normal);
DT_CPU_KERNEL(random_int);
DT_CPU_KERNEL(randperm);
DT_CPU_KERNEL(multinomial);
DT_CPU_KERNEL(poisson);

static dt_status uniform_infer(dt_node *n) {
    if (!(P(n)->a <= P(n)->b)) return dt_fail(DT_E_SHAPE, "uniform_: expects to return a [from, to) range, but found from=%g > to=%g", P(n)->a, P(n)->b);
    return written_infer(n);
}
const dt_op dt_op_uniform_ = {
    .sig = "uniform_(Tensor! input, float from=0.0, float to=1.0, *, Generator? generator=None) -> Tensor",
    .doc = "Fills input with uniform random numbers in [from, to).",
    .attrs = PARAMS2(from, to),
    .flags = DT_F_RANDOM,
    FILLED(uniform_infer, dt_cpu_uniform),
};
static dt_status normal_infer(dt_node *n) {
    if (!(P(n)->b >= 0)) return dt_fail(DT_E_SHAPE, "%s: expects std >= 0.0, but found std %g", dt_op_name(n->op), P(n)->b);
    return written_infer(n);
}
const dt_op dt_op_normal_ = {
    .sig = "normal_(Tensor! input, float mean=0.0, float std=1.0, *, Generator? generator=None) -> Tensor",
    .doc = "Fills input with normal random numbers.",
    .attrs = PARAMS2(mean, std),
    .flags = DT_F_RANDOM,
    FILLED(normal_infer, dt_cpu_normal),
};
const dt_op dt_op_log_normal_ = {
    .sig = "log_normal_(Tensor! input, float mean=1.0, float std=2.0, *, Generator? generator=None) -> Tensor",
    .doc = "Fills input with e^z, z normal with the given mean and standard deviation.",
    .attrs = PARAMS2(mean, std),
    .flags = DT_F_RANDOM,
    FILLED(normal_infer, dt_cpu_log_normal),
};
static dt_status exponential_infer(dt_node *n) {
    if (!(P(n)->a > 0)) return dt_fail(DT_E_SHAPE, "exponential_: expects lambda > 0.0, but found lambda=%g", P(n)->a);
    return written_infer(n);
}
const dt_op dt_op_exponential_ = {
    .sig = "exponential_(Tensor! input, float lambd=1.0, *, Generator? generator=None) -> Tensor",
    .doc = "Fills input with exponential random numbers of rate lambd.",
    .attrs = PARAMS1(lambd),
    .flags = DT_F_RANDOM,
    FILLED(exponential_infer, dt_cpu_exponential),
};
static dt_status cauchy_infer(dt_node *n) {
    if (!(P(n)->b > 0)) return dt_fail(DT_E_SHAPE, "cauchy_: expects sigma > 0.0, but found sigma=%g", P(n)->b);
    return written_infer(n);
}
const dt_op dt_op_cauchy_ = {
    .sig = "cauchy_(Tensor! input, float median=0.0, float sigma=1.0, *, Generator? generator=None) -> Tensor",
    .doc = "Fills input with Cauchy random numbers.",
    .attrs = PARAMS2(median, sigma),
    .flags = DT_F_RANDOM,
    FILLED(cauchy_infer, dt_cpu_cauchy),
};
static dt_status geometric_infer(dt_node *n) {
    if (!(P(n)->a > 0 && P(n)->a < 1)) return dt_fail(DT_E_SHAPE, "geometric_: expects p to be in (0, 1), but got p=%g", P(n)->a);
    n->out[0] = dt_meta_type(n->in[0]);
    return DT_OK;
}
const dt_op dt_op_geometric_ = {
    .sig = "geometric_(Tensor! input, float p, *, Generator? generator=None) -> Tensor",
    .doc = "Fills input with the numbers of trials up to the first success of probability p.",
    .attrs = PARAMS1(p),
    .flags = DT_F_RANDOM,
    FILLED(geometric_infer, dt_cpu_geometric),
};
static dt_status bernoulli_infer(dt_node *n) {
    if (!(P(n)->a >= 0 && P(n)->a <= 1)) return dt_fail(DT_E_SHAPE, "bernoulli_: expects p to be in [0, 1], but got p=%g", P(n)->a);
    n->out[0] = dt_meta_type(n->in[0]);
    return DT_OK;
}
const dt_op dt_op_bernoulli_ = {
    .sig = "bernoulli_(Tensor! input, float p=0.5, *, Generator? generator=None) -> Tensor",
    .doc = "Fills input with 1 with probability p, else 0.",
    .attrs = PARAMS1(p),
    .flags = DT_F_RANDOM,
    FILLED(bernoulli_infer, dt_cpu_bernoulli),
};
static void bernoulli_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_tensor *x = a->a[0].t;
    dt_compose_one(dt_to_dtype(s, dt_lt(s, dt_rand_like(s, x, DT_DTYPE_NONE, a->generator), x), dt_dtype_of(x)), out, n_out);
}
const dt_op dt_op_bernoulli = {
    .sig = "bernoulli(Tensor input, *, Generator? generator=None) -> Tensor",
    .doc = "1 with each element's probability, else 0.",
    .where = DT_FN_METHOD,
    .compose = bernoulli_compose,
};

/* ---- integers ----------------------------------------------------------------------------------------------------------------------------- */
/* from <= x < to, as far as the dtype holds them. Without bounds: all of an integer type from 0 up, all integers that a float type holds exactly. */
static int64_t int_limit(dt_dtype t) {
    static const int64_t limit[DT_DTYPE_COUNT] = {2, 256, 128, 32768, 2147483648, INT64_MAX, 2049, 257, 16777217, 9007199254740993};
    return limit[t];
}
static dt_status random_infer(dt_node *n) {
    dt_random_ints *a = n->attr;
    n->out[0] = dt_meta_type(n->in[0]);
    if (a->low == DT_NO_INT) a->low = 0;
    if (a->high == DT_NO_INT) a->high = int_limit(n->out[0].dtype);
    if (a->low >= a->high)
        return dt_fail(DT_E_SHAPE, "random_: expects 'from' to be less than 'to', but got from=%lld >= to=%lld", (long long)a->low, (long long)a->high);
    return DT_OK;
}
#define BOUNDS                                                                                \
    {                                                                                         \
        sizeof(dt_random_ints), {                                                             \
            {"from", offsetof(dt_random_ints, low)}, { "to", offsetof(dt_random_ints, high) } \
        }                                                                                     \
    }
static dt_status random_all_infer(dt_node *n) {
    *(dt_random_ints *)n->attr = (dt_random_ints){DT_NO_INT, DT_NO_INT};
    return random_infer(n);
}
const dt_op dt_op_random_ = {
    .sig = "random_(Tensor! input, *, Generator? generator=None) -> Tensor",
    .doc = "Fills input with integers, as many as the dtype holds exactly.",
    .attrs = {sizeof(dt_random_ints), {{0}}},
    .flags = DT_F_RANDOM,
    FILLED(random_all_infer, dt_cpu_random_int),
};
static dt_status random_to_infer(dt_node *n) {
    ((dt_random_ints *)n->attr)->low = 0;
    return random_infer(n);
}
const dt_op dt_op_random__to = {
    .sig = "random_.to(Tensor! input, int to, *, Generator? generator=None) -> Tensor",
    .doc = "Fills input with integers in [0, to).",
    .attrs = {sizeof(dt_random_ints), {{"to", offsetof(dt_random_ints, high)}}},
    .flags = DT_F_RANDOM,
    FILLED(random_to_infer, dt_cpu_random_int),
};
const dt_op dt_op_random__from = {
    .sig = "random_.from(Tensor! input, int from, int? to, *, Generator? generator=None) -> Tensor",
    .doc = "Fills input with integers in [from, to).",
    .attrs = BOUNDS,
    .flags = DT_F_RANDOM,
    FILLED(random_infer, dt_cpu_random_int),
};

typedef struct randint_attr {
    dt_random_ints bounds;
    dt_ints size;
    int32_t dtype;
} randint_attr;
static dt_status randint_infer(dt_node *n) {
    const randint_attr *a = n->attr;
    dt_type *o = &n->out[0];
    if (a->bounds.low >= a->bounds.high)
        return dt_fail(DT_E_SHAPE, "randint: expects 'low' to be less than 'high', but got low=%lld >= high=%lld", (long long)a->bounds.low,
                       (long long)a->bounds.high);
    *o = (dt_type){.dtype = a->dtype == DT_DTYPE_NONE ? DT_int64 : (dt_dtype)a->dtype, .ndim = a->size.n};
    if (a->size.n > DT_MAX_DIM) return dt_fail(DT_E_VALUE, "randint: %d dimensions; at most %d are supported", a->size.n, DT_MAX_DIM);
    for (int i = 0; i < o->ndim; i++) {
        if (a->size.v[i] < 0)
            return dt_fail(DT_E_SHAPE, "randint: Trying to create tensor with negative dimension %lld: dimension %d of the size", (long long)a->size.v[i], i);
        o->shape[i] = a->size.v[i];
    }
    return DT_OK;
}
const dt_op dt_op_randint_low = {
    .sig = "randint.low(int low, int high, int[] size, *, Generator? generator=None, dtype? dtype=None) -> Tensor",
    .doc = "Random integers in [low, high); int64 without dtype.",
    .where = DT_FN,
    .flags = DT_F_FACTORY | DT_F_RANDOM,
    .attrs = {sizeof(randint_attr),
              {{"low", offsetof(randint_attr, bounds.low)},
               {"high", offsetof(randint_attr, bounds.high)},
               DT_FIELD(randint_attr, size),
               DT_FIELD(randint_attr, dtype)}},
    .infer = randint_infer,
    .place = dt_place_pointwise,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_random_int}},
};
static void randint_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt_randint_low(s, 0, a->a[0].i, (dt_dims){a->a[1].n, a->a[1].ints}, a->generator, dt_arg_as_dtype(&a->a[3], DT_DTYPE_NONE), a->spec), out,
                   n_out);
}
const dt_op dt_op_randint = {
    .sig = "randint(int high, int[] size, *, Generator? generator=None, dtype? dtype=None) -> Tensor",
    .doc = "Random integers in [0, high); int64 without dtype.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = randint_compose,
};
typedef struct randint_like_attr {
    dt_random_ints bounds;
    int32_t dtype;
} randint_like_attr;
static dt_status randint_like_infer(dt_node *n) {
    const randint_like_attr *a = n->attr;
    if (a->bounds.low >= a->bounds.high)
        return dt_fail(DT_E_SHAPE, "randint_like: expects 'low' to be less than 'high', but got low=%lld >= high=%lld", (long long)a->bounds.low,
                       (long long)a->bounds.high);
    n->out[0] = dt_meta_type(n->in[0]);
    if (a->dtype != DT_DTYPE_NONE) n->out[0].dtype = (dt_dtype)a->dtype;
    return DT_OK;
}
const dt_op dt_op_randint_like_low = {
    .sig = "randint_like.low(Tensor input, int low, int high, *, dtype? dtype=None, Generator? generator=None) -> Tensor",
    .doc = "Random integers in [low, high) of input's shape, dtype and placements.",
    .where = DT_FN,
    .flags = DT_F_RANDOM,
    .attrs = {sizeof(randint_like_attr),
              {{"low", offsetof(randint_like_attr, bounds.low)}, {"high", offsetof(randint_like_attr, bounds.high)}, DT_FIELD(randint_like_attr, dtype)}},
    .infer = randint_like_infer,
    .place = like_place,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_random_int}},
};
static void randint_like_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_compose_one(dt_randint_like_low(s, a->a[0].t, 0, a->a[1].i, dt_arg_as_dtype(&a->a[2], DT_DTYPE_NONE), a->generator), out, n_out);
}
const dt_op dt_op_randint_like = {
    .sig = "randint_like(Tensor input, int high, *, dtype? dtype=None, Generator? generator=None) -> Tensor",
    .doc = "Random integers in [0, high) of input's shape, dtype and placements.",
    .where = DT_FN,
    .compose = randint_like_compose,
};

/* ---- permutations, samples ------------------------------------------------------------------------------------------------------------------ */
typedef struct randperm_attr {
    int64_t n;
    int32_t dtype;
} randperm_attr;
static dt_status randperm_infer(dt_node *n) {
    const randperm_attr *a = n->attr;
    if (a->n < 0) return dt_fail(DT_E_SHAPE, "randperm: n must be non-negative, got %lld", (long long)a->n);
    n->out[0] = (dt_type){.ndim = 1, .shape = {a->n}, .dtype = a->dtype == DT_DTYPE_NONE ? DT_int64 : (dt_dtype)a->dtype};
    if (n->out[0].dtype == DT_bool || a->n > int_limit(n->out[0].dtype))
        return dt_fail(DT_E_SHAPE, "randperm: n is too large for result tensor type: %lld for %s", (long long)a->n, dt_dtype_name(n->out[0].dtype));
    return DT_OK;
}
const dt_op dt_op_randperm = {
    .sig = "randperm(int n, *, Generator? generator=None, dtype? dtype=None) -> Tensor",
    .doc = "A random permutation of 0 … n - 1; int64 without dtype.",
    .where = DT_FN,
    .flags = DT_F_FACTORY | DT_F_RANDOM,
    .attrs = DT_ATTRS(randperm_attr, DT_FIELD(randperm_attr, n), DT_FIELD(randperm_attr, dtype)),
    .infer = randperm_infer,
    .place = dt_place_replicate,
    .kernels = {{DT_CPU, DT_ANY, dt_cpu_randperm}},
};
static dt_status multinomial_infer(dt_node *n) {
    const dt_multinomial_attr *a = n->attr;
    const dt_meta *m = n->in[0];
    if (m->ndim < 1 || m->ndim > 2) return dt_fail(DT_E_SHAPE, "multinomial: prob_dist must be 1 or 2 dim, got %d", m->ndim);
    if (!dt_dtype_is_float((dt_dtype)m->dtype))
        return dt_fail(DT_E_DTYPE, "multinomial: only supports floating-point dtypes for input, got %s", dt_dtype_name((dt_dtype)m->dtype));
    if (a->num_samples <= 0) return dt_fail(DT_E_SHAPE, "multinomial: cannot sample n_sample <= 0 samples, got %lld", (long long)a->num_samples);
    if (!a->replacement && a->num_samples > m->shape[m->ndim - 1])
        return dt_fail(DT_E_SHAPE, "multinomial: cannot sample n_sample > prob_dist.size(-1) samples without replacement: %lld > %lld",
                       (long long)a->num_samples, (long long)m->shape[m->ndim - 1]);
    n->out[0] = dt_meta_type(m);
    n->out[0].dtype = DT_int64;
    n->out[0].shape[m->ndim - 1] = a->num_samples;
    return DT_OK;
}
static dt_status multinomial_place(const dt_node *n, dt_rules *r) { return n->in[0]->ndim == 2 ? dt_place_except(n, r, 2) : DT_OK; }
const dt_op dt_op_multinomial = {
    .sig = "multinomial(Tensor input, int num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor",
    .doc = "num_samples indices for each row of input (n,) or (m, n), drawn in proportion to the row's weights.",
    .where = DT_FN_METHOD,
    .flags = DT_F_RANDOM,
    .attrs = DT_ATTRS(dt_multinomial_attr, DT_FIELD(dt_multinomial_attr, num_samples), DT_FIELD(dt_multinomial_attr, replacement)),
    .infer = multinomial_infer,
    .place = multinomial_place,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_multinomial}},
};
const dt_op dt_op_poisson = {
    .sig = "poisson(Tensor input, Generator? generator=None) -> Tensor",
    .doc = "Poisson random numbers, each element being the rate.",
    .where = DT_FN,
    .flags = DT_F_RANDOM,
    .infer = written_infer,
    .place = dt_place_pointwise,
    .grad = zero_grad,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_poisson, DT_K_CONTIGUOUS}},
};

/* ---- normal numbers with a mean and a standard deviation ---------------------------------------------------------------------------------------- */
static void normal_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    dt_value mean = dt_arg_as_value(&a->a[0]), std = dt_arg_as_value(&a->a[1]);
    if (mean.kind != 1 && std.kind != 1) {
        dt_scope_fail(s, dt_fail(DT_E_TYPE, "normal: a size is needed when mean and std are both numbers"));
        return;
    }
    if (!std.kind) std = dt_v_float(1.0);
    dt_tensor *like = mean.kind == 1 && std.kind == 1 ? dt_add(s, mean, std) : mean.kind == 1 ? mean.t : std.t;
    dt_compose_one(dt_add(s, dt_mul(s, dt_randn_like(s, like, DT_DTYPE_NONE, a->generator), std), mean), out, n_out);
}
const dt_op dt_op_normal = {
    .sig = "normal(Value mean, Value std=1.0, *, Generator? generator=None) -> Tensor",
    .doc = "Normal random numbers of the given means and standard deviations, broadcast together.",
    .where = DT_FN,
    .compose = normal_compose,
};
static void normal_size_compose(dt_scope *s, const dt_args *a, dt_tensor **out, int *n_out) {
    double mean = dt_arg_as_float(&a->a[0], 0), std = dt_arg_as_float(&a->a[1], 1);
    if (!(std >= 0)) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "normal: expects std >= 0.0, but found std %g", std));
        return;
    }
    dt_tensor *z = dt_randn(s, (dt_dims){a->a[2].n, a->a[2].ints}, a->generator, dt_arg_as_dtype(&a->a[4], DT_DTYPE_NONE), a->spec);
    dt_compose_one(dt_add(s, dt_mul(s, z, std), mean), out, n_out);
}
const dt_op dt_op_normal_size = {
    .sig = "normal.size(float mean, float std, int[] size, *, Generator? generator=None, dtype? dtype=None) -> Tensor",
    .doc = "Normal random numbers of shape `size`.",
    .where = DT_FN,
    .flags = DT_F_FACTORY,
    .compose = normal_size_compose,
};
