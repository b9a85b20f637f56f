/* PyTorch's scaled_dot_product_attention: the tiled primitive (attention.c), or a composition of plain ops where the primitive does not reach.
 *
 * Context parallelism. Where the sequence of the queries is sharded, one of three ways is taken, by the mode of context_parallel(…) or, in
 * "auto", by the bytes that a device receives:
 *   ulysses  an all-to-all each for q, k, v makes the heads the sharded dimension, attention is local, another all-to-all brings the result
 *            back. Where fewer key heads than devices exist they are repeated as often as needed, or, if that does not come out even, gathered.
 *   ring     q, k and v stay where they are, blocks of k and v pass round (passes/ring.c)
 *   gather   every device gets all of k and v
 * Gradients follow: redistribute's is a redistribute, the primitive's passes round likewise. */
#include <math.h>

#include "dtorch_ops.h"
#include "ops/attention.h"
#include "ops/compose.h"
#include "ops/random.h"

enum { MAX_WIDTH = 512, MAX_GROUP = 64 }; /* the kernels keep blocks of this width on their stack */
enum { A_QUERY, A_KEY, A_VALUE, A_MASK, A_DROPOUT, A_CAUSAL, A_SCALE, A_GQA };
enum { LATENCY = 4096 }; /* one message costs about as much as this many bytes */

static _Thread_local dt_context_state context;
dt_context_state dt_context_set(dt_context_state s) {
    dt_context_state was = context;
    context = s;
    return was;
}

typedef struct sdpa {
    dt_tensor *q, *k, *v, *mask;
    double scale, dropout;
    bool causal;
} sdpa;

static int64_t heads_of(const dt_tensor *t) { return dt_ndim(t) > 2 ? dt_shape(t)[dt_ndim(t) - 3] : 1; }

/* What the primitive cannot do. */
static bool exotic(const sdpa *a) {
    if (!(a->dropout >= 0 && a->dropout < 1) || (a->mask && dt_requires_grad(a->mask))) return true;
    if (dt_ndim(a->q) < 2 || dt_ndim(a->k) < 2 || dt_ndim(a->v) < 2) return false; /* its error is the clearest */
    int64_t D = dt_shape(a->q)[dt_ndim(a->q) - 1], E = dt_shape(a->v)[dt_ndim(a->v) - 1], hk = heads_of(a->k);
    if (D < 1 || E < 1 || D > MAX_WIDTH || E > MAX_WIDTH) return true;
    return hk != heads_of(a->v) || (hk && heads_of(a->q) / hk > MAX_GROUP);
}

/* How many weights there are: dropout draws a number for each. */
static int64_t weights_numel(const sdpa *a) {
    const dt_tensor *all[4] = {a->q, a->k, a->v, a->mask};
    int64_t n = dt_shape(a->q)[dt_ndim(a->q) - 2] * dt_shape(a->k)[dt_ndim(a->k) - 2];
    for (int d = 3; d <= DT_MAX_DIM; d++) { /* from the end */
        int64_t size = 1;
        for (int i = 0; i < 4; i++)
            if (all[i] && dt_ndim(all[i]) >= d && (dt_shape(all[i])[dt_ndim(all[i]) - d] > size || dt_shape(all[i])[dt_ndim(all[i]) - d] == 0))
                size = dt_shape(all[i])[dt_ndim(all[i]) - d];
        n *= size;
    }
    return n;
}

static dt_tensor *primitive(dt_scope *s, const sdpa *a, int way) {
    dt_tensor *both[2];
    dt_value seed = DT_NOTHING, offset = DT_NOTHING;
    if (a->dropout > 0 && dt_ndim(a->q) >= 2 && dt_ndim(a->k) >= 2) dt_random_take(dt_random_counters(weights_numel(a)), &seed, &offset);
    return dt_attention(s, a->q, a->k, a->v, a->mask, a->causal, a->scale, a->dropout, way, seed, offset, both) ? NULL : both[0];
}

static dt_tensor *composed(dt_scope *s, const sdpa *a) {
    int64_t group = dt_attention_group(a->q, a->k);
    dt_tensor *p = dt_attention_weights(s, a->q, dt_attention_spread(s, a->k, group), a->mask, a->causal, a->scale);
    if (a->dropout != 0) p = dt_dropout(s, p, a->dropout, true);
    return dt_matmul(s, p, dt_attention_spread(s, a->v, group));
}

/* ---- context parallelism ---------------------------------------------------------------------------------------------------------- */
typedef struct cut { /* how the queries' sequence is sharded */
    const dt_meta *q;
    uint32_t dims;    /* bit d: along mesh dimension d */
    int64_t n, parts; /* devices along them; with those that cut the heads already */
} cut;

static cut cut_of(const dt_tensor *q) {
    cut c = {.q = dt_meta_of(q), .n = 1, .parts = 1};
    for (int d = 0; c.q->ndim >= 2 && d < c.q->mesh->ndim; d++) {
        dt_placement p = c.q->place[d];
        int64_t size = c.q->mesh->dim[d];
        if (p.kind != DT_SHARD || size == 1) continue;
        if (p.dim == c.q->ndim - 2) {
            c.dims |= 1u << d;
            c.n *= size;
        }
        if (p.dim >= c.q->ndim - 3 && p.dim < c.q->ndim - 1) c.parts *= size;
    }
    return c;
}

/* How often key heads are repeated so that the devices can share them as they share the queries' heads; 0: it does not come out even. */
static int64_t repeats(const sdpa *a, const cut *c) {
    const dt_meta *k = dt_meta_of(a->k);
    int64_t h = heads_of(a->q), hk = heads_of(a->k), cuts = 1;
    if (h == hk || hk < 2 || h % hk) return 1;
    for (int d = 0; d < k->mesh->ndim; d++)
        if (k->place[d].kind == DT_SHARD && k->place[d].dim == k->ndim - 3) cuts *= k->mesh->dim[d];
    if (hk % cuts) return 0; /* cut unevenly already: repeated heads would not lie where they should */
    for (int64_t e = 1; e <= h / hk; e++)
        if ((h / hk) % e == 0 && (hk * e % c->parts == 0 || hk * e == h)) return e < c->parts ? e : 0;
    return 0;
}

/* t with dimension `dim` sharded along the mesh dimensions of c (-1: replicated); what else is sharded stays. */
static dt_tensor *laid(dt_scope *s, dt_tensor *t, const cut *c, int dim) {
    const dt_meta *m = dt_meta_of(t);
    if (!m) return NULL;
    dt_placement p[DT_MAX_MESH_DIM] = {{0}};
    bool same = m->mesh == c->q->mesh;
    for (int d = 0; d < c->q->mesh->ndim; d++) {
        if (m->mesh == c->q->mesh) p[d] = m->place[d];
        dt_placement want = c->dims >> d & 1 ? dim < 0 ? DT_R : DT_S(dim) : p[d];
        same &= dt_placement_equal(want, p[d]);
        p[d] = want;
    }
    if (same) return t;
    const dt_spec *spec;
    if (dt_spec_intern(c->q->mesh, p, &spec)) {
        dt_scope_fail(s, DT_E_NOMEM);
        return NULL;
    }
    return dt_redistribute(s, t, spec);
}

static dt_tensor *laid_mask(dt_scope *s, const sdpa *a, const cut *c, int from_end) {
    if (!a->mask) return NULL;
    int nd = dt_ndim(a->mask);
    return laid(s, a->mask, c, nd >= from_end && dt_shape(a->mask)[nd - from_end] > 1 ? nd - from_end : -1);
}

static dt_tensor *ulysses(dt_scope *s, const sdpa *a, const cut *c) {
    int64_t e = repeats(a, c);
    bool spread = e > 1 && heads_of(a->k) > 1;
    int kd = dt_ndim(a->k) - 3, vd = dt_ndim(a->v) - 3;
    if (kd < 0 || vd < 0 || e == 0 || (heads_of(a->k) == 1 && heads_of(a->q) > 1)) kd = vd = -1;
    sdpa b = *a;
    b.q = laid(s, a->q, c, dt_ndim(a->q) - 3);
    b.k = laid(s, spread ? dt_attention_spread(s, a->k, e) : a->k, c, kd);
    b.v = laid(s, spread ? dt_attention_spread(s, a->v, e) : a->v, c, vd);
    if (a->mask && !(b.mask = laid_mask(s, a, c, 3))) return NULL;
    dt_tensor *y = b.q && b.k && b.v ? primitive(s, &b, DT_CONTEXT_NONE) : NULL;
    return y ? laid(s, y, c, dt_ndim(y) - 2) : NULL;
}

/* Queries (and the mask's rows) in plain shards; keys as `dim` from their end says. */
static dt_tensor *by_rows(dt_scope *s, const sdpa *a, const cut *c, bool ring) {
    sdpa b = *a;
    b.q = laid(s, a->q, c, dt_ndim(a->q) - 2);
    b.k = laid(s, a->k, c, ring ? dt_ndim(a->k) - 2 : -1);
    b.v = laid(s, a->v, c, ring ? dt_ndim(a->v) - 2 : -1);
    if (a->mask && !(b.mask = laid_mask(s, a, c, 2))) return NULL;
    if (!b.q || !b.k || !b.v) return NULL;
    return primitive(s, &b, !ring ? DT_CONTEXT_NONE : context.unbalanced ? DT_CONTEXT_RING : DT_CONTEXT_RING_BALANCED);
}

/* Bytes that a device receives in the forward pass, messages counted too; backward costs about twice that either way. */
static bool ulysses_is_cheaper(const sdpa *a, const cut *c) {
    int64_t h = heads_of(a->q), e = repeats(a, c);
    if (h % c->parts) return false;                                                           /* some devices would have more heads than others */
    double size = (double)dt_dtype_size((dt_dtype)c->q->dtype), n = (double)c->n, others = 1; /* devices that share what is not the sequence */
    for (int d = 0; d < c->q->mesh->ndim; d++)
        if (c->q->place[d].kind == DT_SHARD && !(c->dims >> d & 1)) others *= (double)c->q->mesh->dim[d];
    double q = (double)dt_numel(a->q), kv = (double)dt_numel(a->k) + (double)dt_numel(a->v), E = (double)dt_shape(a->v)[dt_ndim(a->v) - 1];
    double y = q / (double)dt_shape(a->q)[dt_ndim(a->q) - 1] * E, part = size * (n - 1) / n / others;
    double all = part * ((q + y) / n + (e ? kv * (double)e / n : kv)) + 4 * LATENCY;
    bool balanced = a->causal && !a->mask && !context.unbalanced;
    double round = part * kv * (balanced ? 0.75 : a->causal ? 0.5 : 1) + (balanced ? size / others * (q + y) / (2 * n) : 0) + 2 * (n - 1) * LATENCY;
    return all <= round;
}

static dt_tensor *in_context(dt_scope *s, const sdpa *a, const cut *c) {
    int mode = context.mode;
    if (dt_ndim(a->q) < 3 || dt_ndim(a->k) < 3 || dt_ndim(a->v) < 3) /* no heads to exchange */
        mode = mode == DT_CONTEXT_BY_GATHER ? mode : DT_CONTEXT_BY_RING;
    if (mode == DT_CONTEXT_AUTO) mode = ulysses_is_cheaper(a, c) ? DT_CONTEXT_BY_ULYSSES : DT_CONTEXT_BY_RING;
    return mode == DT_CONTEXT_BY_ULYSSES ? ulysses(s, a, c) : by_rows(s, a, c, mode == DT_CONTEXT_BY_RING);
}

/* ---- the function ------------------------------------------------------------------------------------------------------------------- */
static void compose_sdpa(dt_scope *s, const dt_args *args, dt_tensor **out, int *n_out) {
    sdpa a = {dt_arg_get_tensor(args, A_QUERY), dt_arg_get_tensor(args, A_KEY), dt_arg_get_tensor(args, A_VALUE), dt_arg_get_tensor(args, A_MASK)};
    a.causal = dt_arg_get_bool(args, A_CAUSAL, false);
    a.scale = dt_arg_get_float(args, A_SCALE, NAN);
    a.dropout = dt_arg_get_float(args, A_DROPOUT, 0);
    if (a.mask && a.causal) {
        dt_scope_fail(s, dt_fail(DT_E_STATE, "scaled_dot_product_attention: is_causal=True takes no attn_mask; state one of them"));
        return;
    }
    cut c = cut_of(a.q);
    bool fits = dt_ndim(a.q) >= 2 && dt_ndim(a.k) >= 2 && dt_ndim(a.v) >= 2 && (!a.mask || dt_ndim(a.mask) >= 2);
    dt_compose_out(exotic(&a) ? composed(s, &a) : c.dims && fits ? in_context(s, &a, &c) : primitive(s, &a, DT_CONTEXT_NONE), out, n_out);
}

const dt_op dt_op_scaled_dot_product_attention = {
    .sig = "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, "
           "*, float? scale=None, bool enable_gqa=False) -> Tensor",
    .doc = "softmax(scale query key' + attn_mask) value, computed in tiles: memory grows with the sequence, not with its square. query (…, H, L, D), "
           "key (…, H, S, D), value (…, H, S, E) -> (…, H, L, E). A bool attn_mask is True where a key is seen; a float one is added. dropout_p drops "
           "weights. scale defaults to 1 / sqrt(D). enable_gqa lets key and value have fewer heads. A row that sees no key gives 0. Where L is sharded, "
           "dtorch.distributed.context_parallel says how. RuntimeError if shapes or dtypes do not fit.",
    .where = DT_NN,
    .compose = compose_sdpa,
};
