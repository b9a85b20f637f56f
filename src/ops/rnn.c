/* Recurrent layers: one layer in one direction over a whole sequence as one operator.
 *
 *   rnn_layer(gates, h0, c0, weight_hh, …)  the recurrence; `gates` is the input's share of all gates, made for all steps by one linear (hidden)
 *   rnn_layer_backward(…)                   its gradient; what concerns weights is left to one product over all steps (hidden)
 *
 * gates (T, N, G hidden), h0 (N, out), c0 (N, hidden), weight_hh (G hidden, out), weight_hr (out, hidden) -> output (T, N, out), last states,
 * reserve: what backward needs. Sequences of several lengths: gates (R, G hidden) holds the rows of the first step, the second …, batch_sizes (T,)
 * says how many each has, never more than the step before. The 16-bit dtypes are computed in float32; results have the dtype computed in.
 * Placements: the batch stays sharded, states and weights are whole (weights' gradients are Partial sums, by the product that makes them). */
#include "ops/rnn.h"

#include "dtorch_ops.h"
#include "ops/compose.h"
#include "ops/grad.h"

DT_CPU_KERNEL(rnn_layer);
DT_CPU_KERNEL(rnn_layer_backward);

/* ---- shapes ---- */
static dt_status expect(const char *name, const dt_meta *m, int nd, const int64_t *shape) {
    bool same = m && m->ndim == nd;
    for (int d = 0; same && d < nd; d++) same = m->shape[d] == shape[d];
    if (same) return DT_OK;
    DT_STR(want, 96);
    DT_STR(have, 96);
    dt_shape_print(nd, shape, &want);
    if (m) dt_shape_print(m->ndim, m->shape, &have);
    return dt_fail(DT_E_SHAPE, "rnn_layer: %s must have shape %s, got %s", name, want.buf, m ? have.buf : "None");
}

/* Every float operand in the dtype computed in. */
static dt_status cast_all(dt_node *n, dt_dtype *work) {
    *work = DT_float32;
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && n->in[i]->dtype == DT_float64) *work = DT_float64;
    for (int i = 0; i < n->n_in; i++) {
        if (!n->in[i] || n->in[i]->wrapped) continue;
        if (!dt_dtype_is_float((dt_dtype)n->in[i]->dtype))
            return dt_fail(DT_E_DTYPE, "%s: expected float operands, got %s", dt_op_name(n->op), dt_dtype_name((dt_dtype)n->in[i]->dtype));
        n->cast[i] = (uint8_t)*work;
    }
    return DT_OK;
}

static dt_type like(dt_dtype dtype, const dt_meta *rows, int64_t width) { /* (rows…, width) */
    dt_type t = dt_meta_type(rows);
    t.dtype = dtype;
    t.shape[t.ndim - 1] = width;
    return t;
}

static dt_status infer_layer(dt_node *n) {
    const dt_rnn_attr *a = n->attr;
    const dt_meta *x = n->in[DT_RNN_X], *h0 = n->in[DT_RNN_H0], *sizes = n->in[DT_RNN_SIZES];
    if (a->mode < 0 || a->mode >= DT_RNN_MODES) return dt_fail(DT_E_VALUE, "rnn_layer: mode is %lld, legal are 0 to %d", (long long)a->mode, DT_RNN_MODES - 1);
    int64_t G = dt_rnn_gates(a->mode);
    if (x->ndim != (sizes ? 2 : 3)) return dt_fail(DT_E_SHAPE, "rnn_layer: gates must have %d dimensions, got %d", sizes ? 2 : 3, x->ndim);
    if (h0->ndim != 2) return dt_fail(DT_E_SHAPE, "rnn_layer: h0 must have 2 dimensions, got %d", h0->ndim);
    int64_t width = x->shape[x->ndim - 1], H = width / G, N = h0->shape[0], P = h0->shape[1];
    if (width % G) return dt_fail(DT_E_SHAPE, "rnn_layer: gates has %lld columns, no multiple of %lld", (long long)width, (long long)G);
    if (!sizes && x->shape[1] != N) return dt_fail(DT_E_SHAPE, "rnn_layer: gates has a batch of %lld, h0 of %lld", (long long)x->shape[1], (long long)N);
    if (sizes && sizes->ndim != 1) return dt_fail(DT_E_SHAPE, "rnn_layer: batch_sizes must have 1 dimension, got %d", sizes->ndim);
    if (!n->in[DT_RNN_WR] && P != H) return dt_fail(DT_E_SHAPE, "rnn_layer: h0 has %lld columns, expected %lld", (long long)P, (long long)H);
    if (n->in[DT_RNN_WR] && a->mode != DT_RNN_LSTM) return dt_fail(DT_E_VALUE, "rnn_layer: weight_hr is for LSTM only");
    DT_TRY(expect("weight_hh", n->in[DT_RNN_W], 2, (int64_t[]){G * H, P}));
    if (n->in[DT_RNN_B]) DT_TRY(expect("bias_hh", n->in[DT_RNN_B], 1, (int64_t[]){G * H}));
    if (n->in[DT_RNN_WR]) DT_TRY(expect("weight_hr", n->in[DT_RNN_WR], 2, (int64_t[]){P, H}));
    if (a->mode == DT_RNN_LSTM || n->in[DT_RNN_C0]) DT_TRY(expect("c0", n->in[DT_RNN_C0], 2, (int64_t[]){N, H}));
    dt_dtype work;
    const dt_meta *const *in = n->in;
    int count = n->n_in;
    n->n_in = DT_RNN_SIZES; /* batch_sizes is no float */
    dt_status st = cast_all(n, &work);
    n->n_in = count;
    DT_TRY(st);
    if (sizes) n->cast[DT_RNN_SIZES] = DT_int64;
    n->out[0] = like(work, x, P);
    n->out[1] = like(work, h0, P);
    n->out[2] = a->mode == DT_RNN_LSTM ? like(work, in[DT_RNN_C0], H) : (dt_type){work, 1, {0}};
    n->out[3] = a->save && dt_rnn_kept(a->mode) ? like(work, x, dt_rnn_kept(a->mode) * H) : (dt_type){work, 1, {0}};
    return DT_OK;
}

static dt_status infer_backward(dt_node *n) {
    const dt_rnn_attr *a = n->attr;
    const dt_meta *y = n->in[DT_RNN_Y], *h0 = n->in[DT_RNN_BH0], *w = n->in[DT_RNN_BW], *wr = n->in[DT_RNN_BWR];
    dt_dtype work = (dt_dtype)y->dtype;
    int64_t P = h0->shape[1], GH = w->shape[0], H = GH / dt_rnn_gates(a->mode);
    for (int i = 0; i < DT_RNN_BSIZES; i++)
        if (n->in[i]) n->cast[i] = (uint8_t)work;
    if (n->in[DT_RNN_BSIZES]) n->cast[DT_RNN_BSIZES] = DT_int64;
    DT_TRY(dt_node_outs(n, DT_RNN_BACK_OUT));
    for (int i = 0; i < DT_RNN_BACK_OUT; i++) n->out[i] = (dt_type){work, 1, {0}};
    n->out[DT_RNN_GATES] = like(work, y, GH);
    n->out[DT_RNN_DH] = like(work, h0, P);
    if (a->mode == DT_RNN_LSTM) n->out[DT_RNN_DC] = like(work, h0, H);
    n->out[DT_RNN_BEFORE] = like(work, y, P);
    if (a->mode == DT_RNN_GRU) n->out[DT_RNN_GATES_H] = like(work, y, GH);
    if (wr) n->out[DT_RNN_DY] = like(work, y, P), n->out[DT_RNN_INNER] = like(work, y, H);
    return DT_OK;
}

/* ---- placements: the batch ---- */
static dt_placement batch(int ndim) { return ndim == 3 ? DT_S(1) : ndim == 2 ? DT_S(0) : DT_R; }

/* Inputs first to last have the batch, and so have all results but the empty ones. */
static dt_status place(const dt_node *n, dt_rules *r, int first, int last, int sizes) {
    dt_placement *in, *out;
    if (n->in[sizes]) return DT_OK;
    DT_TRY(dt_rule_add(r, &in, &out));
    for (int i = first; i <= last; i++)
        if (n->in[i]) in[i] = batch(n->in[i]->ndim);
    for (int i = 0; i < n->n_out; i++) out[i] = batch(n->out[i].ndim);
    return DT_OK;
}
static dt_status place_layer(const dt_node *n, dt_rules *r) { return place(n, r, DT_RNN_X, DT_RNN_C0, DT_RNN_SIZES); }
static dt_status place_backward(const dt_node *n, dt_rules *r) { return place(n, r, DT_RNN_GY, DT_RNN_BC0, DT_RNN_BSIZES); }

/* ---- the same in plain ops: for gradients of gradients ---- */
typedef struct states {
    dt_tensor *h, *c;
} states;

/* One step: x, and u = h W' + b, both (N, G hidden). */
static states step(dt_scope *s, int64_t mode, dt_tensor *x, dt_tensor *u, states was, dt_tensor *wr) {
    if (!x || !u) return (states){0};
    int64_t H = dt_shape(x)[1] / dt_rnn_gates(mode);
#define GATE(t, k) dt_narrow(s, t, 1, (k)*H, H)
    if (mode == DT_RNN_GRU) {
        dt_tensor *r = dt_sigmoid(s, dt_add(s, GATE(x, 0), GATE(u, 0))), *z = dt_sigmoid(s, dt_add(s, GATE(x, 1), GATE(u, 1)));
        dt_tensor *n = dt_tanh(s, dt_add(s, GATE(x, 2), dt_mul(s, r, GATE(u, 2))));
        return (states){dt_add(s, n, dt_mul(s, z, dt_sub(s, was.h, n))), NULL};
    }
    dt_tensor *a = dt_add(s, x, u);
    if (mode != DT_RNN_LSTM) return (states){mode == DT_RNN_TANH ? dt_tanh(s, a) : dt_relu(s, a), NULL};
    dt_tensor *i = dt_sigmoid(s, GATE(a, 0)), *f = dt_sigmoid(s, GATE(a, 1)), *g = dt_tanh(s, GATE(a, 2)), *o = dt_sigmoid(s, GATE(a, 3));
#undef GATE
    dt_tensor *c = dt_add(s, dt_mul(s, f, was.c), dt_mul(s, i, g)), *h = dt_mul(s, o, dt_tanh(s, c));
    return (states){wr ? dt_linear(s, h, wr, NULL) : h, c};
}

/* Where sequences have several lengths. table (T, N): the row of step t and sequence n, clipped; live (T, N); rows (R,): step * N + sequence. */
typedef struct packing {
    dt_tensor *table, *live, *rows;
} packing;

/* 0, 1 … n - 1 on the mesh of `like` (n',). */
static dt_tensor *counted(dt_scope *s, dt_tensor *like, int64_t n) {
    dt_tensor *ones = dt_ones_like(s, dt_expand(s, dt_narrow(s, like, 0, 0, 1), DT_DIMS(n), false), DT_int64);
    return dt_sub(s, dt_cumsum(s, ones, 0, DT_DTYPE_NONE), 1);
}

static packing packing_of(dt_scope *s, dt_tensor *sizes, int64_t N, int64_t R) {
    if (!sizes) return (packing){0};
    dt_tensor *ends = dt_cumsum(s, sizes, 0, DT_DTYPE_NONE), *starts = dt_sub(s, ends, sizes);
    dt_tensor *n = counted(s, sizes, N), *r = counted(s, sizes, R);
    /* the step of row r: how many steps have ended before it */
    dt_tensor *t = dt_sum(s, dt_ge(s, dt_unsqueeze(s, r, 1), ends), DT_DIMS(1), false, DT_int64);
    packing p;
    p.table = dt_clamp(s, dt_add(s, dt_unsqueeze(s, starts, 1), n), DT_V(0), DT_V(R - 1));
    p.live = dt_lt(s, n, dt_unsqueeze(s, sizes, 1));
    p.rows = dt_add(s, dt_mul(s, t, DT_V(N)), dt_sub(s, r, dt_index_select(s, starts, 0, t)));
    return p;
}

/* in: the operands of rnn_layer -> output and last states. */
static void layer_composed(dt_scope *s, const dt_rnn_attr *a, dt_tensor **in, dt_tensor *out[3]) {
    dt_tensor *x = in[DT_RNN_X], *sizes = in[DT_RNN_SIZES];
    if (!x || !in[DT_RNN_H0]) return;
    int64_t N = dt_shape(in[DT_RNN_H0])[0], T = sizes ? dt_numel(sizes) : dt_shape(x)[0], R = sizes ? dt_shape(x)[0] : 0;
    packing p = packing_of(s, sizes, N, R);
    states now = {in[DT_RNN_H0], in[DT_RNN_C0]};
    dt_tensor **ys = dt_calloc((size_t)T, sizeof *ys);
    if (!ys) {
        dt_scope_fail(s, dt_fail(DT_E_NOMEM, "rnn_layer: out of host memory"));
        return;
    }
    for (int64_t i = 0; i < T; i++) {
        int64_t t = a->reverse ? T - 1 - i : i;
        dt_tensor *xt = sizes ? dt_index_select(s, x, 0, dt_select(s, p.table, 0, t)) : dt_select(s, x, 0, t);
        states next = step(s, a->mode, xt, dt_linear(s, now.h, in[DT_RNN_W], in[DT_RNN_B]), now, in[DT_RNN_WR]);
        if (sizes) {
            dt_tensor *live = dt_unsqueeze(s, dt_select(s, p.live, 0, t), 1);
            next.h = dt_where(s, live, next.h, now.h);
            if (next.c) next.c = dt_where(s, live, next.c, now.c);
        }
        now = next;
        ys[t] = now.h;
    }
    dt_tensor *y = dt_stack(s, (dt_list){(int)T, ys}, 0);
    dt_free(ys);
    if (sizes) y = dt_index_select(s, dt_flatten(s, y, 0, 1), 0, p.rows);
    out[0] = y;
    out[1] = now.h;
    out[2] = now.c;
}

/* The gradient of the composition, itself differentiable. The operands are taken as copies: what they were made of may lead to one another. */
static void grad_layer_composed(dt_grad *g, const dt_rnn_attr *a) {
    dt_tensor *in[DT_RNN_IN], *out[3] = {0}, *want[DT_RNN_IN], *gx[DT_RNN_IN] = {0}, *root[3], *gy[3];
    int at[DT_RNN_IN], n = 0, roots = 0;
    for (int i = 0; i < DT_RNN_IN; i++) {
        in[i] = dt_grad_in(g, i);
        if (!in[i] || !dt_grad_needs(g, i)) continue;
        in[i] = dt_clone(g->s, in[i]);
        want[n] = in[i];
        at[n++] = i;
    }
    layer_composed(g->s, a, in, out);
    for (int k = 0; k < 3; k++) {
        if (!out[k] || !dt_grad_gy_given(g, k)) continue;
        root[roots] = out[k];
        gy[roots++] = dt_grad_gy(g, k);
    }
    if (!roots) return;
    dt_grad_through(g, roots, root, gy, n, want, gx);
    for (int k = 0; k < n; k++) dt_grad_set(g, at[k], gx[k]);
}

/* ---- gradient ---- */
static void grad_layer(dt_grad *g) {
    const dt_rnn_attr *a = dt_grad_attr(g);
    if (dt_higher_order()) {
        grad_layer_composed(g, a);
        return;
    }
    if (!a->save) {
        dt_scope_fail(g->s, dt_fail(DT_E_GRAD, "rnn_layer: a gradient needs save=True"));
        return;
    }
    int count;
    dt_tensor *gh = dt_grad_gy_given(g, 1) ? dt_grad_gy(g, 1) : NULL, *gc = a->mode == DT_RNN_LSTM && dt_grad_gy_given(g, 2) ? dt_grad_gy(g, 2) : NULL;
    dt_tensor **d =
        dt_rnn_layer_backward(g->s, dt_grad_gy(g, 0), gh, gc, dt_grad_out(g, 3), dt_grad_out(g, 0), dt_grad_in(g, DT_RNN_H0), dt_grad_in(g, DT_RNN_C0),
                              dt_grad_in(g, DT_RNN_W), dt_grad_in(g, DT_RNN_WR), dt_grad_in(g, DT_RNN_SIZES), a->mode, a->reverse, &count);
    if (!d) return;
    dt_tensor *hidden = a->mode == DT_RNN_GRU ? d[DT_RNN_GATES_H] : d[DT_RNN_GATES];
    dt_grad_set(g, DT_RNN_X, d[DT_RNN_GATES]);
    dt_grad_set(g, DT_RNN_H0, d[DT_RNN_DH]);
    if (a->mode == DT_RNN_LSTM) dt_grad_set(g, DT_RNN_C0, d[DT_RNN_DC]);
    if (dt_grad_needs(g, DT_RNN_W)) dt_grad_set_outer(g, DT_RNN_W, hidden, d[DT_RNN_BEFORE]);
    if (dt_grad_needs(g, DT_RNN_B)) dt_grad_set(g, DT_RNN_B, hidden); /* summed by the engine, as any broadcast operand */
    if (dt_grad_needs(g, DT_RNN_WR)) dt_grad_set_outer(g, DT_RNN_WR, d[DT_RNN_DY], d[DT_RNN_INNER]);
}

static size_t scratch_layer(const dt_kctx *c) {
    const dt_rnn_attr *a = c->attr;
    dt_rnn_dims d = dt_rnn_dims_of(a->mode, &c->in[DT_RNN_X], &c->in[DT_RNN_H0], &c->in[DT_RNN_W], &c->in[DT_RNN_WR], &c->in[DT_RNN_SIZES]);
    return dt_rnn_layout(&d, false, dt_dtype_size(c->in[0].dtype)).all;
}
static size_t scratch_backward(const dt_kctx *c) {
    const dt_rnn_attr *a = c->attr;
    dt_rnn_dims d = dt_rnn_dims_of(a->mode, &c->in[DT_RNN_Y], &c->in[DT_RNN_BH0], &c->in[DT_RNN_BW], &c->in[DT_RNN_BWR], &c->in[DT_RNN_BSIZES]);
    return dt_rnn_layout(&d, true, dt_dtype_size(c->in[0].dtype)).all;
}

static double flops_layer(const dt_node *n) { return 2 * (double)n->in[DT_RNN_X]->numel * (double)n->in[DT_RNN_H0]->shape[1]; }
static double flops_backward(const dt_node *n) {
    const dt_meta *w = n->in[DT_RNN_BW];
    return 2 * (double)n->in[DT_RNN_Y]->numel * (double)w->shape[0];
}

#define ATTRS DT_ATTRS(dt_rnn_attr, DT_FIELD(dt_rnn_attr, mode), DT_FIELD(dt_rnn_attr, reverse), DT_FIELD(dt_rnn_attr, save))

const dt_op dt_op_rnn_layer = {
    .sig = "rnn_layer(Tensor gates, Tensor h0, Tensor? c0, Tensor weight_hh, Tensor? bias_hh, Tensor? weight_hr, Tensor? batch_sizes, int mode, "
           "bool reverse=False, bool save=True) -> (Tensor output, Tensor h_n, Tensor c_n, Tensor reserve)",
    .doc = "A recurrent layer in one direction, given the input's share of its gates. mode: 0 tanh, 1 relu, 2 LSTM, 3 GRU. save: keep what the gradient "
           "needs.",
    .where = DT_HIDDEN,
    .flags = DT_F_STRIDED,
    .attrs = ATTRS,
    .infer = infer_layer,
    .place = place_layer,
    .grad = grad_layer,
    .saves = ((1u << DT_RNN_IN) - 1) | DT_SAVE_OUT(0) | DT_SAVE_OUT(3),
    .scratch = scratch_layer,
    .flops = flops_layer,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_rnn_layer, DT_K_CONTIGUOUS, NULL}},
};

const dt_op dt_op_rnn_layer_backward = {
    .sig = "rnn_layer_backward(Tensor grad, Tensor? grad_h, Tensor? grad_c, Tensor reserve, Tensor output, Tensor h0, Tensor? c0, Tensor weight_hh, "
           "Tensor? weight_hr, Tensor? batch_sizes, int mode, bool reverse) -> Tensor[]",
    .doc = "Gradients of rnn_layer: of gates, h0 and c0; the states before each step; of a GRU the gradient of the state's share of the gates; of a "
           "projection the gradient of its result, and what it was given.",
    .where = DT_HIDDEN,
    .flags = DT_F_STRIDED,
    .attrs = DT_ATTRS(dt_rnn_attr, DT_FIELD(dt_rnn_attr, mode), DT_FIELD(dt_rnn_attr, reverse)),
    .infer = infer_backward,
    .place = place_backward,
    .scratch = scratch_backward,
    .flops = flops_backward,
    .kernels = {{DT_CPU, DT_FLOATS, dt_cpu_rnn_layer_backward, DT_K_CONTIGUOUS, NULL}},
};
