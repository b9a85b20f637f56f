/* Grouped matrix products: many products whose sizes are known at run time only.
 *
 *   _grouped_mm(a, b, offs)   offs (G,): where each group ends, rising
 *       a (M, K)     b (G, K, N)  -> (M, N)      rows of a are cut:     out[s:e]    = a[s:e] b[g]
 *       a (G, M, K)  b (K, N)     -> (M, N)      columns of b are cut:  out[:, s:e] = a[g] b[:, s:e]
 *       a (M, K)     b (K, N)     -> (G, M, N)   the sum is cut:        out[g]      = a[:, s:e] b[s:e]
 *
 * What lies beyond the last end belongs to no group and gives zeros. The three forms are each other's gradients. Whatever is not cut by offs
 * may be sharded as in any product; what is cut may be too, since a kernel knows where its rows start; and of groups that are sharded each device
 * computes its own and leaves zeros elsewhere (a Partial). */
#include "ops/grouped.h"

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"

DT_CPU_KERNEL(grouped_mm);

size_t dt_grouped_scratch(const dt_kctx *c) { return (size_t)(c->in[2].shape[0] + 1) * sizeof(dt_group); }

static dt_status shapes_differ(const dt_meta *a, const dt_meta *b, const char *what) {
    DT_STR(x, 96);
    DT_STR(y, 96);
    dt_shape_print(a->ndim, a->shape, &x);
    dt_shape_print(b->ndim, b->shape, &y);
    return dt_fail(DT_E_SHAPE, "grouped_mm: %s, got mat_a %s and mat_b %s", what, x.buf, y.buf);
}

static dt_status infer(dt_node *n) {
    const dt_meta *a = n->in[0], *b = n->in[1], *offs = n->in[2];
    if (a->dtype != b->dtype)
        return dt_fail(DT_E_DTYPE, "grouped_mm: expected operands of the same dtype, got %s and %s", dt_dtype_name((dt_dtype)a->dtype),
                       dt_dtype_name((dt_dtype)b->dtype));
    if (!dt_dtype_is_float((dt_dtype)a->dtype)) return dt_fail(DT_E_DTYPE, "grouped_mm: expected a float dtype, got %s", dt_dtype_name((dt_dtype)a->dtype));
    if (offs->ndim != 1 || (offs->dtype != DT_int32 && offs->dtype != DT_int64))
        return dt_fail(offs->ndim == 1 ? DT_E_DTYPE : DT_E_SHAPE, "grouped_mm: offs must be a 1-D int32 or int64 tensor, got %d-D %s", offs->ndim,
                       dt_dtype_name((dt_dtype)offs->dtype));
    int64_t groups = offs->shape[0], m = a->shape[a->ndim - 2], p = b->shape[b->ndim - 1];
    if (a->shape[a->ndim - 1] != b->shape[b->ndim - 2]) return shapes_differ(a, b, "contraction dimension of mat_a and mat_b must match");
    if ((a->ndim == 3 && a->shape[0] != groups) || (b->ndim == 3 && b->shape[0] != groups))
        return dt_fail(DT_E_SHAPE, "grouped_mm: offs has %lld entries for %lld matrices", (long long)groups, (long long)(a->ndim == 3 ? a : b)->shape[0]);
    if (a->ndim == 2 && b->ndim == 2)
        n->out[0] = (dt_type){(dt_dtype)a->dtype, 3, {groups, m, p}};
    else
        n->out[0] = (dt_type){(dt_dtype)a->dtype, 2, {m, p}};
    return DT_OK;
}

/* ---- placement ---- */
static dt_status rule(dt_rules *r, dt_placement a, dt_placement b, dt_placement o) {
    dt_placement *in, *out;
    DT_TRY(dt_rule_add(r, &in, &out));
    in[0] = a;
    in[1] = b;
    out[0] = o;
    return DT_OK;
}

static dt_status place(const dt_node *n, dt_rules *r) {
    int na = n->in[0]->ndim, nb = n->in[1]->ndim, no = n->out[0].ndim;
    DT_TRY(rule(r, DT_S(na - 2), DT_R, DT_S(no - 2)));
    DT_TRY(rule(r, DT_R, DT_S(nb - 1), DT_S(no - 1)));
    DT_TRY(rule(r, DT_S(na - 1), DT_S(nb - 2), DT_P));
    if (na == 3) DT_TRY(rule(r, DT_S(0), DT_R, DT_P));
    if (nb == 3) DT_TRY(rule(r, DT_R, DT_S(0), DT_P));
    static const dt_reduce kinds[] = {DT_SUM, DT_AVG};
    for (int i = 0; i < 2; i++) {
        DT_TRY(rule(r, DT_P_OF(kinds[i]), DT_R, DT_P_OF(kinds[i])));
        DT_TRY(rule(r, DT_R, DT_P_OF(kinds[i]), DT_P_OF(kinds[i])));
    }
    return DT_OK;
}

/* ---- gradient: ga = gy b', gb = a' gy, each in the form that its ranks say ---- */
static void grad(dt_grad *g) {
    dt_tensor *gy = dt_grad_gy(g, 0), *offs = dt_grad_in(g, 2);
    if (dt_grad_needs(g, 0)) dt_grad_set(g, 0, dt__grouped_mm(g->s, gy, dt_transpose(g->s, dt_grad_in(g, 1), -2, -1), offs));
    if (dt_grad_needs(g, 1)) dt_grad_set(g, 1, dt__grouped_mm(g->s, dt_transpose(g->s, dt_grad_in(g, 0), -2, -1), gy, offs));
}

static double flops(const dt_node *n) {
    const dt_meta *a = n->in[0], *b = n->in[1];
    return 2.0 * (double)a->shape[a->ndim - 2] * (double)a->shape[a->ndim - 1] * (double)b->shape[b->ndim - 1];
}

const dt_op dt_op__grouped_mm = {
    .sig = "_grouped_mm(Tensor mat_a, Tensor mat_b, Tensor offs) -> Tensor",
    .doc = "grouped_mm with at least one 2-D operand.",
    .where = DT_HIDDEN,
    .infer = infer,
    .place = place,
    .grad = grad,
    .saves = DT_SAVE_IN(0) | DT_SAVE_IN(1) | DT_SAVE_IN(2),
    .scratch = dt_grouped_scratch,
    .flops = flops,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_grouped_mm}},
};

static void compose(dt_scope *s, const dt_args *args, dt_tensor **out, int *n_out) {
    dt_tensor *a = dt_arg_get_tensor(args, 0), *b = dt_arg_get_tensor(args, 1), *offs = dt_arg_get_tensor(args, 2), *bias = dt_arg_get_tensor(args, 3);
    int dtype = dt_arg_get_dtype(args, 4), na = dt_ndim(a), nb = dt_ndim(b);
    if (na < 2 || na > 3 || nb < 2 || nb > 3) {
        dt_scope_fail(s, dt_fail(DT_E_SHAPE, "grouped_mm: mat_a and mat_b have to be 2- or 3-D, got %d-D and %d-D", na, nb));
        return;
    }
    if ((na == 2 || nb == 2) != (offs != NULL)) {
        dt_scope_fail(s,
                      dt_fail(DT_E_SHAPE, offs ? "grouped_mm: offs must be None when both operands are 3-D" : "grouped_mm: offs is needed with a 2-D operand"));
        return;
    }
    if (dtype != DT_DTYPE_NONE) { /* the sum is taken in it, not rounded twice */
        a = dt_to_dtype(s, a, dtype);
        b = dt_to_dtype(s, b, dtype);
    }
    dt_tensor *y = offs ? dt__grouped_mm(s, a, b, offs) : dt_bmm(s, a, b);
    dt_compose_out(bias ? dt_add(s, y, dt_v_tensor(bias)) : y, out, n_out);
}

const dt_op dt_op_grouped_mm = {
    .sig = "grouped_mm(Tensor mat_a, Tensor mat_b, *, Tensor? offs=None, Tensor? bias=None, dtype? out_dtype=None) -> Tensor",
    .doc = "One matrix product a group. offs (G,), int32 or int64, rising: where each group ends along the dimension that it cuts; groups may be empty. "
           "mat_a (M, K), mat_b (G, K, N): rows of mat_a are cut -> (M, N). mat_a (G, M, K), mat_b (K, N): columns of mat_b are cut -> (M, N). mat_a (M, K), "
           "mat_b (K, N): the summed dimension is cut -> (G, M, N). Both 3-D, without offs: a batch. What lies beyond offs[-1] gives zeros. bias is added "
           "to the result; out_dtype is computed in. Any float dtype. Errors: RuntimeError for shapes and dtypes; IndexError, at the next use of a value, "
           "for offs that fall or leave the operand.",
    .where = DT_NN,
    .compose = compose,
};
