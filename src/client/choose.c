/* Where a call runs and how its operands lie: the mesh, then for every mesh dimension one of the op's legal rules, so that together they cost least.
 *
 * Rules are asked for one mesh dimension at a time; "everything replicated" is always legal and stands last. A rule's price is the bytes
 * that a device receives to bring the inputs from how they lie to what the rule wants, plus, if anything has to move at all, what it
 * costs to sum up a Partial result later. A rule that fits as it is always wins. Among equals, the rule that keeps results sharded wins
 * when an input is sharded, else the one stated first. Shape and dtype do not matter here except through bytes.
 *
 * Along one mesh dimension only latency against bandwidth counts: a collective costs as much as the bytes that could be sent meanwhile. Where inputs
 * change along two mesh dimensions or more, all combinations of their rules are compared by time: what the devices lack of the boxes that they need,
 * over what the mesh dimensions are made of (dt_mesh.wire). See docs/design/012. */
#include <math.h>

#include "client/internal.h"
#include "tensor/layout.h"

enum { COMBINATIONS_MAX = 1 << 14, DEVICES_LOOKED_AT = 16 };

/* Bytes of the tensor that one device holds when mesh dimension d is not counted; `at`: how it lies. */
static double bytes_beside(const dt_meta *m, const dt_mesh *mesh, const dt_placement *at, int d) {
    double b = (double)m->numel * (double)dt_dtype_size((dt_dtype)m->dtype);
    for (int k = 0; k < mesh->ndim; k++)
        if (k != d && at[k].kind == DT_SHARD) b /= (double)mesh->dim[k];
    return b;
}

static double latency(const dt_mesh *mesh, int d) { return mesh->wire[d].latency * mesh->wire[d].bandwidth; } /* in bytes */

/* Price of one change along a mesh dimension of n devices, and whether it communicates. A Partial input is summed up whole unless
 * something else is sharded here already: a result that lies in shards should come from inputs that do. */
static double move_cost(dt_placement from, dt_placement to, double bytes, double n, double wait, bool sharded, bool *communicates) {
    if (dt_placement_equal(from, to)) return 0;
    if (n == 1) return 0.5; /* nothing moves, but what was said of the placement should stay said */
    double part = bytes * (n - 1) / n;
    /* Replicate to Partial is local too, but a Partial result is summed up by each of its readers: one sum now is no dearer. */
    if (from.kind == DT_REPLICATE) return to.kind == DT_PARTIAL ? wait + 2 * part + 1 : 1 + bytes * 1e-3; /* else a slice */
    *communicates = true;
    if (from.kind == DT_PARTIAL) return wait + (to.kind != DT_SHARD ? 2 * part : sharded ? part : 2 * part + 1);
    return wait + (to.kind == DT_SHARD ? part / n : part);
}

/* A window (layout.h): the share of the operand that the device with the most to fetch does not hold itself. */
static double window_missing(const dt_meta *m, const dt_mesh *mesh, int d, dt_placement to) {
    dt_placement from = dt_place_like(m, mesh, d);
    const dt_window *w = dt_window_at(to.split);
    int64_t size = m->shape[to.dim], most = 0;
    bool aligned = from.kind == DT_SHARD && from.dim == to.dim && !from.split;
    for (int64_t c = 0; size && c < mesh->dim[d]; c++) {
        int64_t at, count, lo, len, own = 0, own_len = 0;
        dt_layout_chunk(w->n, mesh->dim[d], c, &at, &count);
        dt_window_map(w, size, at, count, &lo, &len);
        if (aligned) dt_layout_chunk(size, mesh->dim[d], c, &own, &own_len);
        int64_t a = own > lo ? own : lo, b = own + own_len < lo + len ? own + own_len : lo + len;
        int64_t missing = len - (b > a ? b - a : 0);
        if (missing > most) most = missing;
    }
    return size ? (double)most / (double)size : 0;
}
static double window_cost(const dt_meta *m, const dt_mesh *mesh, int d, dt_placement to, double bytes, bool *communicates) {
    dt_placement from = dt_place_like(m, mesh, d);
    if (mesh->dim[d] == 1) return 0.5;
    if (from.kind == DT_REPLICATE) return 1 + bytes * 1e-3;
    double share = window_missing(m, mesh, d, to);
    if (share == 0) return 1;
    *communicates = true;
    /* half price: the result stays sharded as its input was, which is worth more to what follows than another dimension */
    return latency(mesh, d) + bytes * share * (from.kind == DT_PARTIAL ? (double)mesh->dim[d] : 0.5);
}

typedef struct price {
    double cost;
    int sharded; /* outputs */
    bool communicates;
} price;

/* Price of bringing input i, which lies as `at`, to `to` along mesh dimension d. */
static double input_cost(const dt_call *c, int i, const dt_mesh *mesh, const dt_placement *at, int d, dt_placement to, bool sharded, bool *communicates) {
    double bytes = bytes_beside(c->in[i], mesh, at, d);
    if (to.kind == DT_SHARD && to.window) return window_cost(c->in[i], mesh, d, to, bytes, communicates);
    return move_cost(at[d], to, bytes, (double)mesh->dim[d], latency(mesh, d), sharded, communicates);
}

/* What it costs to sum up Partial results later. */
static double output_cost(const dt_node *n, const dt_mesh *mesh, int d, const dt_placement *row) {
    double cost = 0, size = (double)mesh->dim[d];
    for (int i = 0; i < n->n_out; i++)
        if (row[n->n_in + i].kind == DT_PARTIAL) cost += 2 * (double)dt_type_numel(&n->out[i]) * (double)dt_dtype_size(n->out[i].dtype) * (size - 1) / size;
    return cost;
}

static void placed(const dt_call *c, int i, const dt_mesh *mesh, dt_placement *at) {
    for (int d = 0; d < mesh->ndim; d++) at[d] = dt_place_like(c->in[i], mesh, d);
}

static price rule_price(const dt_call *c, const dt_node *n, const dt_mesh *mesh, int d, const dt_placement *row, bool sharded) {
    price p = {0};
    dt_placement at[DT_MAX_MESH_DIM];
    for (int i = 0; i < n->n_in; i++) {
        if (!c->in[i] || c->in[i]->wrapped) continue;
        placed(c, i, mesh, at);
        p.cost += input_cost(c, i, mesh, at, d, row[i], sharded, &p.communicates);
    }
    if (p.communicates || (n->op->flags & DT_F_LOOKUP)) p.cost += output_cost(n, mesh, d, row);
    for (int i = 0; i < n->n_out; i++) p.sharded += row[n->n_in + i].kind == DT_SHARD;
    return p;
}

/* Is the rule possible: every shard dimension exists, Partial is not asked of a number. */
static bool rule_ok(const dt_call *c, const dt_node *n, const dt_placement *row) {
    for (int i = 0; i < n->n_in; i++)
        if (c->in[i] && !c->in[i]->wrapped && row[i].kind == DT_SHARD && (row[i].dim < 0 || row[i].dim >= c->in[i]->ndim)) return false;
    for (int i = 0; i < n->n_out; i++)
        if (row[n->n_in + i].kind == DT_SHARD && (row[n->n_in + i].dim < 0 || row[n->n_in + i].dim >= n->out[i].ndim)) return false;
    return true;
}

static dt_status rules_of(const dt_node *n, const dt_mesh *mesh, int d, dt_rules *r) {
    *r = (dt_rules){.mesh = mesh, .mesh_dim = d, .n_in = n->n_in, .n_out = n->n_out, .arena = &dt_c.scratch};
    DT_TRY(n->op->place(n, r));
    dt_placement *in, *out;
    return dt_rule_add(r, &in, &out); /* arena memory is zero: all Replicate */
}

/* Does the rule hold for any partition of the sharded dimension, so that shards may be strided alike? All that are sharded must be cut
 * the same way. */
static bool any_partition(const dt_call *c, const dt_node *n, const dt_placement *row, int64_t split) {
    if (!c->op->pointwise && !(c->op->flags & DT_F_STRIDED)) return false;
    int64_t size = -1;
    for (int i = 0; i < n->n_in + n->n_out; i++)
        if (row[i].window || (row[i].kind == DT_SHARD && row[i].split)) return false; /* it says itself how shards are cut */
    for (int i = 0; i < n->n_in + n->n_out; i++) {
        if (row[i].kind != DT_SHARD || row[i].split) continue;
        if (i < n->n_in && (!c->in[i] || c->in[i]->wrapped)) continue;
        int64_t s = i < n->n_in ? c->in[i]->shape[row[i].dim] : n->out[i - n->n_in].shape[row[i].dim];
        if (size >= 0 && s != size) return false;
        size = s;
    }
    return size > 0 && size % split == 0;
}

/* For every strided shard among the inputs, the rules that can follow it. */
static dt_status add_strided(const dt_call *c, const dt_node *n, dt_rules *r) {
    int width = n->n_in + n->n_out, stated = r->count;
    for (int i = 0; i < n->n_in; i++) {
        if (!c->in[i] || c->in[i]->wrapped) continue;
        int32_t split = dt_place_like(c->in[i], r->mesh, r->mesh_dim).split;
        bool known = split == 0;
        for (int q = 0; q < i && !known; q++) known = c->in[q] && !c->in[q]->wrapped && dt_place_like(c->in[q], r->mesh, r->mesh_dim).split == split;
        for (int k = 0; k < stated && !known; k++) {
            if (r->plain >> (k < 63 ? k : 63) & 1 || !rule_ok(c, n, r->rows + k * width) || !any_partition(c, n, r->rows + k * width, split)) continue;
            dt_placement *in, *out;
            DT_TRY(dt_rule_add(r, &in, &out));
            memcpy(in, r->rows + k * width, sizeof *in * (size_t)width);
            for (int q = 0; q < width; q++)
                if (in[q].kind == DT_SHARD) in[q].split = split;
        }
    }
    return DT_OK;
}

/* The possible rules along one mesh dimension, and the cheapest by itself. */
typedef struct options {
    const dt_placement **row;
    int n, best;
    bool sharded; /* some input is, here */
    price least;
} options;

static dt_status options_of(const dt_call *c, const dt_node *n, const dt_mesh *mesh, int d, options *o) {
    dt_rules r;
    DT_TRY(rules_of(n, mesh, d, &r));
    DT_TRY(add_strided(c, n, &r));
    *o = (options){.row = DT_ARENA_ARRAY(&dt_c.scratch, const dt_placement *, r.count)};
    if (!o->row) return dt_fail(DT_E_NOMEM, "%s(): out of host memory", dt_op_name(n->op));
    for (int i = 0; i < n->n_in; i++) o->sharded |= c->in[i] && !c->in[i]->wrapped && dt_place_like(c->in[i], mesh, d).kind == DT_SHARD;
    for (int k = 0; k < r.count; k++) {
        const dt_placement *row = r.rows + k * (n->n_in + n->n_out);
        if (!rule_ok(c, n, row)) continue;
        price p = rule_price(c, n, mesh, d, row, o->sharded);
        bool better = o->n == 0 || p.cost < o->least.cost || (p.cost == o->least.cost && o->sharded && p.sharded > o->least.sharded);
        if (better) {
            o->least = p;
            o->best = o->n;
        }
        o->row[o->n++] = row;
    }
    return DT_OK;
}

/* Can rows a (of the later mesh dimension) and b both be followed? One tensor dimension can be seen as one number of rows only, and through one
 * window only; and where a result's dimension is cut by both, a window of the later one must have been cut by the earlier one too. */
static bool fits_together(const dt_node *n, const dt_placement *a, const dt_placement *b) {
    for (int i = 0; i < n->n_in + n->n_out; i++) {
        if (a[i].kind == DT_SHARD && b[i].kind == DT_SHARD && a[i].dim == b[i].dim) {
            if (a[i].split && b[i].split && a[i].split != b[i].split) return false;
            if (a[i].split != b[i].split && i == 0 && n->op->staged && n->op->staged->dims(n->attr, n->in[0]->ndim) >> a[i].dim & 1) return false;
            if ((a[i].window || b[i].window) && !dt_placement_equal(a[i], b[i])) return false;
        }
        if (i >= n->n_in || a[i].kind != DT_SHARD || !a[i].window) continue;
        for (int o = n->n_in; o < n->n_in + n->n_out; o++)
            if (a[o].kind == DT_SHARD && b[o].kind == DT_SHARD && a[o].dim == b[o].dim && !dt_placement_equal(a[i], b[i])) return false;
    }
    return true;
}

/* ---- all mesh dimensions together ------------------------------------------------------------------------------------------------------ */
typedef struct joint {
    const dt_call *c;
    const dt_node *n;
    const options *o;           /* (mesh->ndim,) */
    int order[DT_MAX_MESH_DIM]; /* slowest first: a gather over a slow wire moves less while the others still cut */
} joint;

static void slowest_first(const dt_mesh *m, int *order) {
    for (int d = 0; d < m->ndim; d++) {
        int k = d;
        for (; k > 0 && m->wire[order[k - 1]].bandwidth > m->wire[d].bandwidth; k--) order[k] = order[k - 1];
        order[k] = d;
    }
}

/* What makes a tensor smaller comes first (slices, then sums into shards), what makes it larger last. */
static int rank_of_move(dt_placement from, dt_placement to) { return to.kind != DT_SHARD ? 2 : from.kind == DT_PARTIAL ? 1 : 0; }

/* Seconds by the formulas for one mesh dimension, one after the other. Changes `lies`. For sums: no others (plain false: all). */
static double step_by_step(const joint *j, int i, dt_placement *lies, const dt_placement *to, bool sums_only, bool *communicates) {
    const dt_mesh *m = j->c->mesh;
    double total = 0;
    for (int turn = 0; turn < 3; turn++)
        for (int k = 0; k < m->ndim; k++) {
            int d = j->order[k];
            if (dt_placement_equal(lies[d], to[d]) || rank_of_move(lies[d], to[d]) != turn) continue;
            if (sums_only && lies[d].kind != DT_PARTIAL && to[d].kind != DT_PARTIAL) continue;
            total += input_cost(j->c, i, m, lies, d, to[d], j->o[d].sharded, &communicates[d]) / m->wire[d].bandwidth;
            lies[d] = to[d];
        }
    return total;
}

static bool simple(const dt_placement *p, int n) {
    for (int d = 0; d < n; d++)
        if (p[d].kind == DT_SHARD && (p[d].split || p[d].window)) return false;
    return true;
}

/* The share of the tensor that the device with most to fetch lacks, when chunks move as they must: shards of one dimension along two mesh dimensions
 * are chunks of chunks. No Partial, strided shards or windows here. Of a large mesh some devices are looked at. */
static double lacking(const dt_meta *m, const dt_mesh *mesh, const dt_placement *from, const dt_placement *to) {
    dt_meta a = *m, b = *m;
    a.mesh = b.mesh = mesh;
    memcpy(a.place, from, sizeof a.place);
    memcpy(b.place, to, sizeof b.place);
    int64_t most = 0;
    for (int i = 0, step = mesh->n > DEVICES_LOOKED_AT ? mesh->n / DEVICES_LOOKED_AT : 1; i < mesh->n; i += step) {
        dt_box have, need, both;
        dt_layout_box(&a, i, &have);
        dt_layout_box(&b, i, &need);
        int64_t missing = dt_box_numel(&need, m->ndim);
        if (dt_box_numel(&have, m->ndim) && missing && dt_box_intersect(&have, &need, m->ndim, &both)) missing -= dt_box_numel(&both, m->ndim);
        if (missing > most) most = missing;
    }
    return (double)most / (double)m->numel;
}

static double input_seconds(const joint *j, int i, const dt_placement *to, bool *communicates) {
    const dt_mesh *mesh = j->c->mesh;
    const dt_meta *m = j->c->in[i];
    dt_placement lies[DT_MAX_MESH_DIM] = {{0}};
    placed(j->c, i, mesh, lies);
    if (!memcmp(lies, to, sizeof *to * (size_t)mesh->ndim)) return 0;
    if (!m->numel || !simple(lies, mesh->ndim) || !simple(to, mesh->ndim)) return step_by_step(j, i, lies, to, false, communicates);
    double total = step_by_step(j, i, lies, to, true, communicates), share = lacking(m, mesh, lies, to), wait = 0, slow = INFINITY;
    double bytes = (double)m->numel * (double)dt_dtype_size((dt_dtype)m->dtype);
    for (int d = 0; d < mesh->ndim; d++) {
        if (dt_placement_equal(lies[d], to[d]) || mesh->dim[d] == 1) continue;
        communicates[d] |= share > 0;
        if (mesh->wire[d].bandwidth < slow) slow = mesh->wire[d].bandwidth;
        if (mesh->wire[d].latency > wait) wait = mesh->wire[d].latency;
    }
    if (slow == INFINITY) return total;
    return total + (share > 0 ? wait + share * bytes / slow : 1e-3 * bytes / slow); /* a slice is almost nothing, but not nothing */
}

/* Seconds that this choice of rows costs. */
static double seconds(const joint *j, const int *at) {
    const dt_mesh *m = j->c->mesh;
    double total = 0;
    bool communicates[DT_MAX_MESH_DIM] = {false};
    for (int i = 0; i < j->n->n_in; i++) {
        if (!j->c->in[i] || j->c->in[i]->wrapped) continue;
        dt_placement to[DT_MAX_MESH_DIM] = {{0}};
        for (int d = 0; d < m->ndim; d++) to[d] = j->o[d].row[at[d]][i];
        total += input_seconds(j, i, to, communicates);
    }
    for (int d = 0; d < m->ndim; d++)
        if (communicates[d] || (j->n->op->flags & DT_F_LOOKUP)) total += output_cost(j->n, m, d, j->o[d].row[at[d]]) / m->wire[d].bandwidth;
    return total;
}

static bool all_fit(const joint *j, const int *at) {
    for (int d = 1; d < j->c->mesh->ndim; d++)
        for (int e = 0; e < d; e++)
            if (!fits_together(j->n, j->o[d].row[at[d]], j->o[e].row[at[e]])) return false;
    return true;
}

/* at: the cheapest rule of each mesh dimension by itself; becomes the cheapest combination. A dimension along which the inputs fit as they are keeps
 * its rule: cutting what was whole there would move less now, and have to be undone by what follows. */
static void choose_together(const joint *j, int *at) {
    int ndim = j->c->mesh->ndim, try[DT_MAX_MESH_DIM];
    double combinations = 1, least = all_fit(j, at) ? seconds(j, at) * (1 - 1e-6) : INFINITY; /* others must be better, not as good */
    for (int d = 0; d < ndim; d++) {
        try[d] = j->o[d].least.cost > 0 ? 0 : at[d];
        combinations *= j->o[d].least.cost > 0 ? j->o[d].n : 1;
    }
    if (combinations > COMBINATIONS_MAX || least <= 0) return;
    for (;;) {
        if (all_fit(j, try)) {
            double t = seconds(j, try);
            if (t < least) {
                least = t;
                memcpy(at, try, sizeof try);
            }
        }
        int d = ndim - 1;
        for (; d >= 0; d--) {
            if (j->o[d].least.cost <= 0) continue;
            if (++try[d] < j->o[d].n) break;
            try[d] = 0;
        }
        if (d < 0) return;
    }
}

/* rows: (mesh->ndim,) */
static dt_status pick(dt_call *c, const dt_node *n, const dt_placement **rows) {
    options o[DT_MAX_MESH_DIM];
    int at[DT_MAX_MESH_DIM] = {0}, moving = 0, changing = 0;
    for (int d = 0; d < c->mesh->ndim; d++) {
        DT_TRY(options_of(c, n, c->mesh, d, &o[d]));
        at[d] = o[d].best;
        moving += o[d].least.communicates;
        changing += o[d].least.cost > 0;
    }
    if (changing > 1) {
        joint j = {c, n, o, {0}};
        slowest_first(c->mesh, j.order);
        choose_together(&j, at);
    }
    c->implied |= moving > 0;
    for (int d = 0; d < c->mesh->ndim; d++) rows[d] = o[d].row[at[d]];
    return DT_OK;
}

/* A factory makes what is asked for if its kernels can; else a replicated tensor, which the caller then redistributes. */
static dt_status pick_wanted(const dt_node *n, const dt_spec *spec, int d, dt_placement *out) {
    dt_rules r;
    DT_TRY(rules_of(n, spec->mesh, d, &r));
    dt_placement want = spec->place[d];
    if (want.kind == DT_PARTIAL) return dt_fail(DT_E_PLACEMENT, "%s(): a factory cannot make Partial: legal are Replicate() and Shard(dim)", dt_op_name(n->op));
    *out = DT_R;
    for (int k = 0; k < r.count; k++) {
        const dt_placement *row = r.rows + k * (n->n_in + n->n_out);
        bool fits = true;
        for (int i = 0; i < n->n_in; i++) fits &= row[i].kind == DT_REPLICATE;
        for (int i = 0; i < n->n_out; i++) fits &= dt_placement_equal(row[n->n_in + i], want);
        if (fits) *out = want;
    }
    return DT_OK;
}

static dt_status meshes_differ(const dt_call *c, const dt_mesh *a, const dt_mesh *b) {
    DT_STR(s, 400);
    dt_str_add(&s, "%s(): the inputs lie on two meshes, ", dt_op_name(c->op));
    dt_mesh_print(a, &s);
    dt_str_add(&s, " and ");
    dt_mesh_print(b, &s);
    dt_str_add(&s, ": redistribute one of them first, x.redistribute(y.device_mesh, {})");
    return dt_fail(DT_E_PLACEMENT, "%s", s.buf);
}

static dt_status devices_differ(const dt_mesh *a, const dt_mesh *b) {
    DT_STR(s, 200);
    dt_mesh_print(a, &s);
    dt_str_add(&s, " and ");
    dt_mesh_print(b, &s);
    bool sim = (dt_device_kind(a->dev[0]) == DT_SIM) != (dt_device_kind(b->dev[0]) == DT_SIM);
    return dt_fail(DT_E_STATE, "Expected all tensors to be on the same device, but found at least two devices, %s!%s", s.buf,
                   sim ? " What takes part in a simulation is made inside dtorch.simulate()" : "");
}

/* Simulated tensors hold no data: nothing real comes from them or goes to them. */
static dt_status one_world(const dt_call *c) {
    bool sim = dt_device_kind(c->mesh->dev[0]) == DT_SIM;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] && c->in[i]->mesh && (dt_device_kind(c->in[i]->mesh->dev[0]) == DT_SIM) != sim)
            return dt_fail(DT_E_VALUE, "%s(): a %s tensor meets %s device: what takes part in a simulation is made inside dtorch.simulate()", dt_op_name(c->op),
                           sim ? "real" : "simulated", sim ? "a simulated" : "a real");
    return DT_OK;
}

static bool is_free_scalar(const dt_meta *m) { return m->ndim == 0 && m->mesh->ndim == 0 && dt_device_kind(m->mesh->dev[0]) != DT_CUDA; }

/* Distributed inputs decide; plain ones follow. Among plain inputs, those with dimensions decide over 0-dim ones on a cpu. */
static dt_status find_mesh(dt_call *c) {
    const dt_mesh *many = NULL, *one = NULL, *scalar = NULL;
    for (int i = 0; i < c->n_in; i++) {
        const dt_meta *m = c->in[i];
        if (!m || m->wrapped) continue;
        if (m->mesh->ndim) {
            const dt_mesh *both = many && many != m->mesh ? dt_mesh_join(many, m->mesh) : m->mesh;
            if (!both) return meshes_differ(c, many, m->mesh);
            many = both;
        } else if (is_free_scalar(m))
            scalar = scalar ? scalar : m->mesh;
        else if (one && one != m->mesh && !many)
            return devices_differ(one, m->mesh);
        else
            one = m->mesh;
    }
    c->mesh = many ? many : one ? one : scalar;
    if (!c->mesh) c->mesh = dt_m.spec && !dt_m.spec->mesh->ndim ? dt_m.spec->mesh : dt_mesh_single(dt_default_device);
    return c->mesh ? one_world(c) : dt_fail(DT_E_NOMEM, "%s(): out of host memory", dt_op_name(c->op));
}

/* used[i]: in[i] cast as infer wants it, lying as `place` says (NULL: replicated). */
static dt_status use(dt_call *c, const dt_node *n, int i, const dt_placement *place) {
    const dt_meta *m = c->in[i];
    if (!m) return DT_OK;
    dt_dtype t = n->cast[i] == DT_DTYPE_NONE ? (dt_dtype)m->dtype : (dt_dtype)n->cast[i];
    if (m->wrapped) {
        c->used[i] = dt_meta_wrapped(t);
        return c->used[i] ? DT_OK : DT_E_NOMEM;
    }
    static const dt_placement replicate[DT_MAX_MESH_DIM];
    dt_type type = dt_meta_type(m);
    type.dtype = t;
    if (m->mesh != c->mesh && c->mesh->ndim) c->implied |= m->ndim > 0; /* a scalar goes along without a word */
    return dt_meta_intern(&type, c->mesh, place ? place : replicate, &c->used[i]);
}

/* The controller lowers it: operands as they are, the result where the spec says. to_local(input, index) lies on the index-th device. */
static dt_status choose_lowered(dt_call *c, dt_node *n) {
    memcpy(c->used, c->in, (size_t)c->n_in * sizeof *c->used);
    const dt_mesh *mesh = c->in[0] && !c->in[0]->wrapped ? c->in[0]->mesh : NULL;
    const dt_placement *place = mesh ? c->in[0]->place : NULL;
    dt_prep const *p = dt_prep_get(c->op);
    if (c->spec) {
        mesh = c->spec->mesh;
        place = c->spec->place;
    } else if (mesh && !strcmp(p->info->base, "to_local")) {
        int64_t i = 0;
        for (int k = 0; k < p->n_params; k++)
            if (!strcmp(p->info->param[k].name, "index")) i = *(const int64_t *)((const char *)c->attr + p->info->param[k].offset);
        if (i < 0 || i >= mesh->n)
            return dt_fail(DT_E_INDEX, "to_local(): index %lld is out of range, the mesh has devices 0 to %d", (long long)i, mesh->n - 1);
        mesh = dt_mesh_single(mesh->dev[i]);
        if (!mesh) return DT_E_NOMEM;
    }
    c->mesh = mesh ? mesh : dt_mesh_single(dt_default_device);
    DT_TRY(one_world(c));
    for (int i = 0; i < n->n_out; i++) DT_TRY(dt_meta_intern(&n->out[i], c->mesh, place, &c->out[i]));
    return DT_OK;
}

static dt_status choose_factory(dt_call *c, dt_node *n) {
    dt_placement place[DT_MAX_MESH_DIM] = {{0}};
    c->mesh = c->spec->mesh;
    for (int d = 0; d < c->mesh->ndim; d++) DT_TRY(pick_wanted(n, c->spec, d, &place[d]));
    for (int i = 0; i < n->n_in; i++) DT_TRY(use(c, n, i, NULL));
    for (int i = 0; i < n->n_out; i++) DT_TRY(dt_meta_intern(&n->out[i], c->mesh, place, &c->out[i]));
    return DT_OK;
}

/* (mesh->ndim, n_in + n_out) placements to metas. */
static dt_status apply(dt_call *c, dt_node *n, const dt_placement *const *rows) {
    dt_placement place[DT_MAX_MESH_DIM] = {{0}};
    for (int i = 0; i < n->n_in; i++) {
        for (int d = 0; d < c->mesh->ndim; d++) place[d] = rows[d][i];
        DT_TRY(use(c, n, i, place));
    }
    for (int i = 0; i < n->n_out; i++) {
        for (int d = 0; d < c->mesh->ndim; d++) place[d] = rows[d][n->n_in + i];
        DT_TRY(dt_meta_intern(&n->out[i], c->mesh, place, &c->out[i]));
    }
    return DT_OK;
}

/* Where they do not fit together, the later mesh dimension is replicated. */
static void drop_conflicts(const dt_call *c, const dt_node *n, const dt_placement **rows, const dt_placement *replicate) {
    for (int d = 1; d < c->mesh->ndim; d++)
        for (int e = 0; e < d; e++)
            if (!fits_together(n, rows[d], rows[e])) rows[d] = replicate;
}

static dt_status choose(dt_call *c, dt_node *n) {
    if (c->op->flags & DT_F_LOWERED) return choose_lowered(c, n);
    if ((c->op->flags & DT_F_FACTORY) && c->spec) return choose_factory(c, n);
    DT_TRY(find_mesh(c));
    const dt_placement *rows[DT_MAX_MESH_DIM];
    DT_TRY(pick(c, n, rows));
    dt_placement *replicate = DT_ARENA_ARRAY(&dt_c.scratch, dt_placement, n->n_in + n->n_out);
    if (!replicate) return dt_fail(DT_E_NOMEM, "%s(): out of host memory", dt_op_name(c->op));
    drop_conflicts(c, n, rows, replicate);
    return apply(c, n, rows);
}

dt_status dt_choose(dt_call *c, dt_node *n) {
    dt_status s = choose(c, n);
    dt_arena_reset(&dt_c.scratch);
    return s;
}

/* ---- what is said about implied redistributions ----------------------------------------------------------------------------- */
static void print_rule(const dt_call *c, const dt_placement *row, dt_str *s) {
    dt_str_add(s, "\n    ");
    for (int i = 0, k = 0; i < c->n_in; i++)
        if (c->in[i] && !c->in[i]->wrapped) {
            dt_str_add(s, k++ ? ", " : "");
            dt_placement_print(row[i], s);
        }
    dt_str_add(s, " -> ");
    for (int i = 0; i < c->n_out && i < 4; i++) {
        dt_str_add(s, i ? ", " : "");
        dt_placement_print(row[c->n_in + i], s);
    }
}

static dt_status legal(const dt_call *c, dt_str *s) {
    dt_type *types = DT_ARENA_ARRAY(&dt_c.scratch, dt_type, c->n_out);
    uint8_t *cast = DT_ARENA_ARRAY(&dt_c.scratch, uint8_t, c->n_in);
    if (!types || !cast) return dt_fail(DT_E_NOMEM, "out of host memory");
    for (int i = 0; i < c->n_out; i++) types[i] = dt_meta_type(c->out[i]);
    dt_node n = {c->op, (void *)c->attr, c->n_in, c->n_out, c->in, types, cast, c->spec, &dt_c.scratch};
    dt_rules r;
    for (int d = 0; d < c->mesh->ndim; d++) {
        DT_TRY(rules_of(&n, c->mesh, d, &r));
        if (c->mesh->name[d][0])
            dt_str_add(s, "\n  legal along mesh dimension '%s':", c->mesh->name[d]);
        else
            dt_str_add(s, "\n  legal along mesh dimension %d:", d);
        for (int k = 0; k < r.count && k < 12; k++) print_rule(c, r.rows + k * (c->n_in + c->n_out), s);
    }
    return DT_OK;
}

dt_status dt_policy_check(const dt_call *c) {
    DT_STR(s, 1800);
    dt_str_add(&s, "%s(): an implied redistribution; the inputs are", dt_op_name(c->op));
    for (int i = 0; i < c->n_in && i < 6; i++)
        if (c->in[i] && !c->in[i]->wrapped) {
            dt_str_add(&s, "\n    ");
            dt_meta_print(c->in[i], &s);
            if (c->in[i]->mesh == c->used[i]->mesh && !memcmp(c->in[i]->place, c->used[i]->place, sizeof c->in[i]->place)) continue;
            dt_str_add(&s, "  would become ");
            dt_placements_print(c->used[i]->mesh, c->used[i]->place, &s);
        }
    if (dt_m.policy == DT_POLICY_WARN) {
        dt_warn_fn(s.buf);
        return DT_OK;
    }
    dt_status r = legal(c, &s);
    dt_arena_reset(&dt_c.scratch);
    DT_TRY(r);
    return dt_fail(DT_E_PLACEMENT, "%s", s.buf);
}
