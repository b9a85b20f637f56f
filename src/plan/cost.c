/* The cost model. See cost.h. */
#include "plan/cost.h"

#include <math.h>
#include <string.h>

#include "ops/conv.h"
#include "plan/fused.h"

/* Two cores of a few GFLOP/s each, in one machine. The ratios are what matters: matrix work four times as fast as memory feeds it. */
const dt_hardware dt_hardware_plain = {
    .name = "plain",
    .flops = {[DT_float16] = 20e9, [DT_bfloat16] = 20e9, [DT_float32] = 20e9, [DT_float64] = 10e9},
    .vector = 20e9,
    .share = {1, 1, 1, 1, 1, 1},
    .bandwidth = 5e9,
    .overhead = 1e-6,
    .overlap = 1,
    .n_levels = 1,
    .level = {{1 << 16, 1e10, 4e-7}},
};
uint32_t dt_hardware_generation = 1;
static dt_hardware current;
static const dt_hardware *in_use = &dt_hardware_plain;

const dt_hardware *dt_hardware_get(void) { return in_use; }
void dt_hardware_set(const dt_hardware *h) {
    if (h) current = *h;
    dt_hardware_generation++;
    in_use = h ? &current : &dt_hardware_plain;
}

/* ---- what an operator's elements cost ------------------------------------------------------------------------------------------------------- */
/* Vector FLOP an element: counts of the usual polynomial and table methods, rounded; what is not listed counts one. */
static const struct {
    const char *name;
    float flops;
} weights[] = {
    {"exp", 12},        {"log", 14},
    {"tanh", 16},       {"sigmoid", 16},
    {"silu", 17},       {"gelu", 24},
    {"erf", 20},        {"sin", 18},
    {"cos", 18},        {"tan", 24},
    {"softplus", 28},   {"logsigmoid", 28},
    {"mish", 34},       {"elu", 14},
    {"pow", 30},        {"div", 4},
    {"sqrt", 6},        {"rsqrt", 8},
    {"reciprocal", 4},  {"asin", 24},
    {"acos", 24},       {"atan", 24},
    {"sinh", 18},       {"cosh", 18},
    {"lgamma", 60},     {"digamma", 60},
    {"softmax", 18},    {"log_softmax", 18},
    {"logsumexp", 16},  {"native_layer_norm", 8},
    {"layer_norm", 12}, {"native_rms_norm", 6},
    {"rms_norm", 10},   {"batch_norm", 10},
    {"adam", 16},       {"sgd", 3},
    {"rand", 24},       {"normal", 40},
    {"uniform", 24},    {"dropout", 26},
    {"bernoulli", 26},  {"randint", 24},
    {"sort", 60},       {"topk", 20},
    {"nll", 2},         {"cross_entropy", 20},
    {"stat_update", 2},
};

static float weight_of(const char *name) {
    float best = 1;
    size_t longest = 0;
    while (*name == '_') name++;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        size_t n = strlen(weights[i].name);
        if (n > longest && !strncmp(name, weights[i].name, n)) {
            longest = n;
            best = weights[i].flops;
        }
    }
    return best;
}

typedef struct facts { /* of an operator, found once */
    uint8_t kind;      /* 1 + dt_work; 0: not looked at yet */
    float weight;
} facts;

static facts facts_find(const dt_op *op) {
    const char *n = dt_op_get_info(op)->base;
    facts f = {1 + DT_WORK_VECTOR, weight_of(n)};
    if (!op->flops) return f;
    if (strstr(n, "conv"))
        f.kind = 1 + DT_WORK_CONV;
    else if (strstr(n, "attention") || strstr(n, "flash"))
        f.kind = 1 + DT_WORK_ATTENTION;
    else if (strstr(n, "rnn") || strstr(n, "lstm") || strstr(n, "gru"))
        f.kind = 1 + DT_WORK_RECURRENT;
    else if (!strstr(n, "pool") && !strstr(n, "cross_entropy"))
        f.kind = 1 + DT_WORK_MATMUL;
    return f;
}

static facts facts_of(const dt_op *op) {
    enum { OPS = 2048 };
    static _Atomic uint64_t known[OPS]; /* kind in the low byte, weight's bits above: one store, so that any thread may look */
    uint16_t id = dt_op_get_info(op)->id;
    union {
        float f;
        uint32_t u;
    } w;
    uint64_t k = id < OPS ? atomic_load_explicit(&known[id], memory_order_relaxed) : 0;
    if (k) {
        w.u = (uint32_t)(k >> 8);
        return (facts){(uint8_t)k, w.f};
    }
    facts f = facts_find(op);
    w.f = f.weight;
    if (id < OPS) atomic_store_explicit(&known[id], (uint64_t)w.u << 8 | f.kind, memory_order_relaxed);
    return f;
}

/* ---- time of work --------------------------------------------------------------------------------------------------------------------------- */
typedef struct load { /* what an operator does */
    dt_work kind;     /* of its matrix work */
    dt_dtype dtype;
    double matrix, vector, bytes;
} load;

static double at_share(const dt_hardware *h, dt_work kind, double work, double peak) {
    if (work <= 0 || peak <= 0) return 0;
    return (work + h->half[kind]) / (peak * h->share[kind]); /* = work / (peak * share * work / (work + half)) */
}

static double peak_of(const dt_hardware *h, dt_dtype t) {
    double p = t < DT_DTYPE_COUNT ? h->flops[t] : 0;
    return p > 0 ? p : h->flops[DT_float32];
}

static void time_of(const dt_hardware *h, const load *l, dt_op_cost *out) {
    double matrix = at_share(h, l->kind, l->matrix, peak_of(h, l->dtype));
    double vector = l->vector > 0 ? l->vector / (h->vector * h->share[DT_WORK_VECTOR]) : 0;
    double speed = h->cache_bytes > 0 && l->bytes <= h->cache_bytes ? h->cache_bandwidth : h->bandwidth;
    out->seconds = h->overhead + fmax(fmax(matrix, vector), l->bytes / speed);
    out->flops = l->matrix;
    out->ideal = l->matrix > 0 ? l->matrix / peak_of(h, l->dtype) : 0;
    out->bytes = l->bytes;
}

static double view_bytes(const dt_view *v) { /* a broadcast dimension is read once */
    double n = 1;
    if (!dt_view_given(v)) return 0;
    for (int d = 0; d < v->ndim; d++)
        if (v->stride[d] || v->shape[d] == 0) n *= (double)v->shape[d];
    return n * (double)dt_dtype_size(v->dtype);
}

/* Does Winograd's form take this convolution (small planes of few images go the plain way)? v: operands, then results. images: the share of them that is
 * meant. */
static bool by_winograd(const dt_op *op, const void *attr, const dt_view *v, int n_in, double images) {
    const dt_view *x = &v[0], *w = &v[1], *y = &v[n_in];
    if (op == &dt_op_conv_input) {
        x = &v[n_in];
        y = &v[0];
    } else if (op == &dt_op_conv_weight) {
        w = &v[n_in];
        y = &v[1];
    } else if (op != &dt_op_conv)
        return false;
    dt_conv_geom g = dt_conv_geometry(attr, x, w, y);
    g.N = (int64_t)ceil((double)g.N * images);
    return dt_wino_fits(&g, v->dtype);
}

static void meta_of_view(const dt_view *v, dt_meta *m, dt_type *t) {
    t->dtype = v->dtype;
    t->ndim = v->ndim;
    memcpy(t->shape, v->shape, sizeof t->shape);
    if (!m) return;
    *m = (dt_meta){.dtype = (uint8_t)v->dtype, .ndim = (uint8_t)v->ndim, .numel = dt_view_numel(v)};
    memcpy(m->shape, v->shape, sizeof m->shape);
}

/* The operator's own count, made for local shapes. */
static double matrix_work(const dt_instr *s) {
    dt_meta m[s->n_in + 1];
    const dt_meta *in[s->n_in + 1];
    dt_type unused, out[s->n_out + 1];
    for (int k = 0; k < s->n_in; k++) {
        in[k] = NULL;
        if (!dt_view_given(&s->view[k])) continue;
        meta_of_view(&s->view[k], &m[k], &unused);
        in[k] = &m[k];
    }
    for (int k = 0; k < s->n_out; k++) meta_of_view(&s->view[s->n_in + k], NULL, &out[k]);
    dt_node n = {.op = s->ctx.op, .attr = (void *)s->ctx.attr, .n_in = s->n_in, .n_out = s->n_out, .in = in, .out = out};
    return s->ctx.op->flops(&n);
}

/* Elements that an elementwise or reducing operator goes over: its largest operand. */
static double elements(const dt_instr *s) {
    int64_t most = 0;
    for (int k = 0; k < s->n_in + s->n_out; k++) {
        int64_t n = dt_view_given(&s->view[k]) ? dt_view_numel(&s->view[k]) : 0;
        if (n > most) most = n;
    }
    return (double)most;
}

void dt_cost_instr(const dt_hardware *h, const dt_instr *s, dt_op_cost *out) {
    load l = {.kind = DT_WORK_VECTOR, .dtype = DT_float32};
    for (int k = 0; k < s->n_in + s->n_out; k++) l.bytes += view_bytes(&s->view[k]);
    if (s->fused) {
        double n = (double)s->fused->size; /* not the largest operand: a look-up's table is not walked */
        for (int k = 0; k < s->fused->n_ops; k++) {
            const dt_fused_op *o = &s->fused->op[k];
            if (o->kind == DT_FUSED_SPREAD || (o->rows && o->kind == DT_FUSED_CODE)) continue; /* an element per row: next to nothing */
            l.vector += n * (double)facts_of(o->op).weight;
        }
        time_of(h, &l, out);
        return;
    }
    facts f = facts_of(s->ctx.op);
    l.kind = (dt_work)(f.kind - 1);
    l.dtype = s->n_in && dt_view_given(&s->view[0]) ? s->view[0].dtype : DT_float32;
    if (l.kind == DT_WORK_CONV && by_winograd(s->ctx.op, s->ctx.attr, s->view, s->n_in, 1)) l.kind = DT_WORK_WINOGRAD;
    if (l.kind != DT_WORK_VECTOR)
        l.matrix = matrix_work(s);
    else
        l.vector = s->ctx.op->flops ? matrix_work(s) : elements(s) * (double)f.weight;
    time_of(h, &l, out);
}

static double share_of_device(const dt_call *c) { /* of a call's work: mesh dimensions along which something is cut */
    double share = 1;
    for (int d = 0; d < c->mesh->ndim; d++) {
        bool cut = false;
        for (int i = 0; i < c->n_in; i++) cut |= c->used[i] && !c->used[i]->wrapped && c->used[i]->mesh == c->mesh && c->used[i]->place[d].kind == DT_SHARD;
        for (int i = 0; i < c->n_out; i++) cut |= c->out[i]->mesh == c->mesh && c->out[i]->place[d].kind == DT_SHARD;
        if (cut) share /= (double)c->mesh->dim[d];
    }
    return share;
}

static bool call_by_winograd(const dt_call *c, double share) {
    dt_view v[3] = {{0}};
    if (c->n_in != 2 || c->n_out != 1 || !c->used[0] || !c->used[1]) return false;
    for (int i = 0; i < 3; i++) {
        const dt_meta *m = i < 2 ? c->used[i] : c->out[0];
        v[i].dtype = (dt_dtype)m->dtype;
        v[i].ndim = m->ndim;
        memcpy(v[i].shape, m->shape, sizeof v[i].shape);
    }
    return by_winograd(c->op, c->attr, v, 2, share);
}

double dt_cost_call(const dt_hardware *h, const dt_call *c) {
    if (c->op->alias || (c->op->flags & DT_F_LOWERED)) return 0;
    facts f = facts_of(c->op);
    load l = {.kind = (dt_work)(f.kind - 1), .dtype = DT_float32};
    double most = 0, share = share_of_device(c);
    dt_type type[c->n_out + 1];
    for (int i = 0; i < c->n_out; i++) {
        type[i] = dt_meta_type(c->out[i]);
        most = fmax(most, (double)c->out[i]->numel);
        l.bytes += share * (double)c->out[i]->numel * (double)dt_dtype_size((dt_dtype)c->out[i]->dtype);
    }
    for (int i = 0; i < c->n_in; i++)
        if (c->used[i] && !c->used[i]->wrapped) {
            if (!i) l.dtype = (dt_dtype)c->used[i]->dtype;
            most = fmax(most, (double)c->used[i]->numel);
            l.bytes += share * (double)c->used[i]->numel * (double)dt_dtype_size((dt_dtype)c->used[i]->dtype);
        }
    if (l.kind == DT_WORK_CONV && call_by_winograd(c, share)) l.kind = DT_WORK_WINOGRAD;
    dt_node n = {.op = c->op, .attr = (void *)c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = type};
    double own = share * (c->op->flops ? c->op->flops(&n) : most * (double)f.weight);
    if (l.kind == DT_WORK_VECTOR)
        l.vector = own;
    else
        l.matrix = own;
    dt_op_cost cost;
    time_of(h, &l, &cost);
    return cost.seconds;
}

/* ---- transfers ------------------------------------------------------------------------------------------------------------------------------ */
int dt_cost_level(const dt_hardware *h, dt_device a, dt_device b) {
    int l = 0;
    while (l + 1 < h->n_levels && dt_device_index(a) / h->level[l].devices != dt_device_index(b) / h->level[l].devices) l++;
    return l;
}

static void exchange_traffic(const dt_hardware *h, const dt_coll *c, dt_traffic *t) { /* how rows are routed is known at run time: evenly, say */
    const dt_exchange *x = c->exchange;
    for (int p = 0; p < c->n; p++) {
        double rows = (double)x->party[p].shards * (double)(x->rows_in < x->rows_out ? x->rows_in : x->rows_out);
        double each = rows * (double)x->party[p].row_bytes / x->groups;
        for (int g = 0; g < x->groups; g++) {
            int q = x->party[p].peer[g];
            if (q == p) continue;
            int l = dt_cost_level(h, c->party[p].device, c->party[q].device);
            t[p].in[l] += each;
            t[q].out[l] += each;
            t[p].peers[l]++;
        }
    }
}

void dt_cost_traffic(const dt_hardware *h, const dt_coll *c, dt_traffic *t, int *peers_seen) {
    if (c->exchange) {
        exchange_traffic(h, c, t);
        return;
    }
    for (int p = 0; p < c->n; p++) peers_seen[p] = -1;
    for (int p = 0; p < c->n; p++)
        for (int phase = 0; phase < 2; phase++)
            for (int i = 0; i < c->party[p].n_pulls[phase]; i++) {
                const dt_pull *pull = &c->party[p].pull[phase][i];
                double bytes = (double)dt_view_numel(pull->dst) * (double)dt_dtype_size(pull->dst->dtype);
                for (int k = 0; k < pull->n_src; k++) {
                    int q = pull->src[k].party;
                    if (q == p) continue;
                    int l = dt_cost_level(h, c->party[p].device, c->party[q].device);
                    t[p].in[l] += bytes;
                    t[q].out[l] += bytes;
                    if (peers_seen[q] == p) continue;
                    peers_seen[q] = p;
                    t[p].peers[l]++;
                }
            }
}

/* Rings and trees pass everything along: what a party receives crosses every level, and the devices of a unit share their links outwards. */
static double ring_bandwidth(const dt_hardware *h, const dt_traffic *t) {
    double bw = INFINITY;
    int here = 1; /* members of the group within the level below */
    for (int l = 0; l < h->n_levels; l++) {
        bool beyond = false;
        for (int k = l; k < h->n_levels; k++) beyond |= t->peers[k] > 0;
        if (!beyond) break;
        if (t->peers[l]) bw = fmin(bw, h->level[l].bandwidth * here);
        here += t->peers[l];
    }
    return bw;
}

static double ring_latency(const dt_hardware *h, const dt_traffic *t, bool tree) {
    double s = 0;
    int units = 1;
    for (int l = h->n_levels - 1; l >= 0; l--) { /* units of level l - 1 in the group */
        int inside = 1;
        for (int k = 0; k < l; k++) inside += t->peers[k];
        int all = inside + t->peers[l];
        int count = (all + inside - 1) / inside; /* that the hop goes round among */
        if (tree)
            s += ceil(log2((double)count)) * h->level[l].latency;
        else
            s += (double)units * (count - 1) * h->level[l].latency;
        units *= count;
    }
    return s;
}

void dt_cost_transfer(const dt_hardware *h, const char *kind, const dt_traffic *t, double *latency, double *moving) {
    double in = 0, out = 0;
    *latency = *moving = 0;
    for (int l = 0; l < h->n_levels; l++) {
        in += t->in[l];
        out += t->out[l];
    }
    bool reduce_all = !strcmp(kind, "all_reduce"), ring = reduce_all || !strcmp(kind, "all_gather") || !strcmp(kind, "reduce_scatter");
    if (in <= 0 && out <= 0) return;
    if (ring && in > 0) {
        *moving = fmax(in, out) / ring_bandwidth(h, t);
        double round = ring_latency(h, t, false);
        *latency = reduce_all ? 2 * fmin(round, ring_latency(h, t, true)) : round;
        return;
    }
    for (int l = 0; l < h->n_levels; l++) { /* to each its own: links of different levels work side by side */
        *moving = fmax(*moving, fmax(t->in[l], t->out[l]) / h->level[l].bandwidth);
        if (t->in[l] > 0 || t->out[l] > 0) *latency = fmax(*latency, h->level[l].latency);
    }
}

/* ---- by placements alone --------------------------------------------------------------------------------------------------------------------- */
dt_link dt_cost_along(const dt_hardware *h, const dt_mesh *m, int d) {
    dt_traffic t = {{0}};
    int apart = 1;
    for (int k = d + 1; k < m->ndim; k++) apart *= (int)m->dim[k];
    for (int64_t i = 1; i < m->dim[d]; i++) t.peers[dt_cost_level(h, m->dev[0], m->dev[i * apart])]++;
    if (m->dim[d] == 1) return (dt_link){h->level[0].bandwidth, h->level[0].latency};
    return (dt_link){ring_bandwidth(h, &t), fmin(ring_latency(h, &t, false), ring_latency(h, &t, true))};
}

static double bytes_of(const dt_meta *m, const dt_placement *at) { /* that a device holds */
    double b = (double)m->numel * (double)dt_dtype_size((dt_dtype)m->dtype);
    for (int d = 0; d < m->mesh->ndim; d++)
        if (at[d].kind == DT_SHARD) b /= (double)m->mesh->dim[d];
    return b;
}

/* On one mesh, a dimension after the other: sums and cuts first, so that what is gathered later is small. */
static double along_dimensions(const dt_hardware *h, const dt_meta *from, const dt_meta *to) {
    const dt_mesh *mesh = from->mesh;
    dt_placement at[DT_MAX_MESH_DIM];
    double seconds = 0;
    memcpy(at, from->place, sizeof at);
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < mesh->ndim; d++) {
            bool gathers = at[d].kind == DT_SHARD && to->place[d].kind != DT_SHARD;
            if (dt_placement_equal(at[d], to->place[d]) || gathers != (pass == 1)) continue;
            double n = (double)mesh->dim[d];
            dt_placement was = at[d];
            at[d] = DT_R;
            double whole = bytes_of(from, at), part = whole * (n - 1) / n; /* of what one replica along d holds */
            at[d] = to->place[d];
            if (n == 1 || was.kind == DT_REPLICATE) continue; /* a slice, zeros */
            dt_link w = dt_cost_along(h, mesh, d);
            bool whole_sum = was.kind == DT_PARTIAL && at[d].kind != DT_SHARD, exchange = was.kind == DT_SHARD && at[d].kind == DT_SHARD;
            seconds += h->overhead + w.latency * (1 + whole_sum) + part * (whole_sum ? 2 : 1) / (exchange ? n : 1) / w.bandwidth;
        }
    return seconds;
}

double dt_cost_redistribution(const dt_hardware *h, const dt_meta *from, const dt_meta *to) {
    if (from == to || !from->numel) return 0;
    if (from->mesh == to->mesh) return along_dimensions(h, from, to);
    /* Each device of the target reads what it needs from the source's device of its number, or of its share of the numbers; sums read all terms. */
    double terms = 1;
    for (int d = 0; d < from->mesh->ndim; d++)
        if (from->place[d].kind == DT_PARTIAL) terms *= (double)from->mesh->dim[d];
    int a = dt_mesh_find(from->mesh, to->mesh->dev[0]);
    bool here = a >= 0 && from->mesh->n == 1;
    if (here && to->mesh->n == 1) return 0;
    int l = dt_cost_level(h, from->mesh->dev[here ? 0 : from->mesh->n - 1], to->mesh->dev[here ? to->mesh->n - 1 : 0]);
    return h->overhead + h->level[l].latency + terms * bytes_of(to, to->place) / h->level[l].bandwidth;
}
