/* Ring attention: queries, keys and values stay sharded along the sequence, and blocks of keys pass from device to device.
 *
 * A ring is the devices that differ only in the mesh dimensions along which the keys' sequence is cut; device r of m holds block r. In step
 * s it works on block (r - s) mod m, its own first, while the block of step s + 1 is being pulled from the device that holds it:
 *
 *      communication   | pull k, v of step 1 | pull of step 2 | …
 *      compute         | step 0 (own block)  | step 1         | …          two buffers a device, used in turn
 *
 * Each step is a kernel that goes on from the output and logsumexp of the step before (attention_step). Backward makes the same round; a
 * step's gradients of the foreign block are pulled by its owner and added there, beside the next step. So a device holds four blocks of keys
 * at most, never the whole sequence, and nothing of size queries x keys. Blocks that no query of a device may see under a causal mask are
 * neither sent nor computed.
 *
 * Balance. With a causal mask, device r sees r + 1 of m blocks, and the last one does nearly twice the mean. Balanced, every device keeps the
 * first half of its queries and exchanges the second half with its mirror m - 1 - r, so that halves 2r and 2(m - 1 - r) + 1 meet: the same
 * work for all. Half of the queries and of the output move; keys move in blocks as before. Rejected: strided shards of the user's own (they
 * work, but reorder nothing only if everything around is strided too), and moving keys in halves (twice as many messages, 1/4 less bytes).
 *
 * All sizes come from the layout, so uneven and empty shards, and rings beside other sharded dimensions, are no special cases. */
#include <string.h>

#include "ops/attention.h"
#include "passes/build.h"

/* operands of attention, and of attention_backward behind the gradient of the output */
enum { Q, K, V, MASK, SEED = 4 };
enum { GY, B_OUT = 5, B_LSE, B_SEED };

typedef struct keys {
    int64_t lo, len;
} keys;
typedef struct part { /* query rows that a device works on */
    int owner;        /* mesh position of the device that holds them */
    int64_t lo, len;  /* global rows */
    int64_t skip;     /* rows of the owner's shard before them */
    int first, last;  /* steps that see any of its keys */
    dt_loc q, gy, lse, delta, out, acc, dq;
} part;

typedef struct ring {
    dt_build *b;
    const dt_call *c;
    const dt_mesh *mesh;
    const char *dim; /* for reports */
    dt_pval *const *in, *const *out;
    const int *number;
    const dt_attention_attr *attr;
    int at, n, m; /* index of the first of q, k, v; devices; devices of a ring */
    bool backward, balanced;
    int *rank, *peer; /* (n,) and (n, m): mesh positions */
    dt_box *qbox;
    keys *key;        /* (n,) */
    part *part;       /* (n, 2) */
    dt_loc *held[2];  /* (n, 2): the buffers that k and v are pulled into */
    dt_loc *given[2]; /* (n, 2): gradients of a foreign block of keys and values */
    dt_loc *sum[2];   /* (n,): gradients of the own block */
    dt_move *move;    /* (n,) scratch */
} ring;

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "attention: out of host memory"); }

static bool cuts_keys(const dt_meta *k, int d) { return k->place[d].kind == DT_SHARD && k->place[d].dim == k->ndim - 2; }

bool dt_ring_wanted(const dt_call *c) {
    if (c->op != &dt_op_attention && c->op != &dt_op_attention_backward) return false;
    const dt_meta *k = c->used[c->op == &dt_op_attention ? K : K + 1];
    for (int d = 0; d < c->mesh->ndim; d++)
        if (cuts_keys(k, d) && c->mesh->dim[d] > 1) return true;
    return false;
}

/* ---- who is in whose ring ------------------------------------------------------------------------------------------------------------ */
static dt_status rings(ring *r) {
    const dt_meta *k = r->in[r->at + K]->meta;
    r->m = 1;
    r->dim = "";
    for (int d = 0; d < r->mesh->ndim; d++)
        if (cuts_keys(k, d) && r->mesh->dim[d] > 1) {
            r->m *= (int)r->mesh->dim[d];
            r->dim = r->mesh->name[d];
        }
    r->rank = DT_ARENA_ARRAY(&r->b->tmp, int, r->n);
    r->peer = DT_ARENA_ARRAY(&r->b->tmp, int, r->n * r->m);
    if (!r->rank || !r->peer) return no_memory();
    for (int pos = 0; pos < r->n; pos++) {
        int64_t c[DT_MAX_MESH_DIM];
        dt_mesh_coords(r->mesh, pos, c);
        for (int j = 0; j < r->m; j++) { /* the j-th combination of coordinates along the ring's mesh dimensions */
            int64_t at[DT_MAX_MESH_DIM];
            memcpy(at, c, sizeof at);
            int rest = j;
            for (int d = r->mesh->ndim - 1; d >= 0; d--)
                if (cuts_keys(k, d)) {
                    at[d] = rest % r->mesh->dim[d];
                    rest /= (int)r->mesh->dim[d];
                }
            r->peer[pos * r->m + j] = dt_mesh_index(r->mesh, at);
            if (r->peer[pos * r->m + j] == pos) r->rank[pos] = j;
        }
    }
    return DT_OK;
}

/* The holder of the block that `pos` works on in step s. */
static int source(const ring *r, int pos, int s) { return r->peer[pos * r->m + (r->rank[pos] + r->m - s) % r->m]; }

/* ---- what a device works on ------------------------------------------------------------------------------------------------------------ */
static bool sees(const ring *r, const part *p, int holder) {
    const keys *k = &r->key[holder];
    return p->len && k->len && (!r->attr->is_causal || p->lo + p->len > k->lo);
}
static bool step_of(const ring *r, const part *p, int pos, int s) { return p->len && (sees(r, p, source(r, pos, s)) || p->first == s); }
/* Does any part of device pos work in step s? */
static bool busy(const ring *r, int pos, int s) { return step_of(r, &r->part[2 * pos], pos, s) || step_of(r, &r->part[2 * pos + 1], pos, s); }

static void split_rows(ring *r, int pos) {
    int d = r->in[r->at + Q]->meta->ndim - 2, mirror = r->peer[pos * r->m + r->m - 1 - r->rank[pos]];
    part *p = &r->part[2 * pos];
    const dt_box *own = &r->qbox[pos], *other = &r->qbox[mirror];
    int64_t half = r->balanced ? (own->len[d] + 1) / 2 : own->len[d], theirs = (other->len[d] + 1) / 2;
    p[0] = (part){.owner = pos, .lo = own->lo[d], .len = half};
    p[1] = (part){.owner = pos};
    if (r->balanced) p[1] = (part){.owner = mirror, .lo = other->lo[d] + theirs, .len = other->len[d] - theirs, .skip = theirs};
    for (int i = 0; i < 2; i++) {
        p[i].first = p[i].last = -1;
        for (int s = 0; s < r->m; s++)
            if (sees(r, &p[i], source(r, pos, s))) {
                if (p[i].first < 0) p[i].first = s;
                p[i].last = s;
            }
        if (p[i].first < 0) p[i].first = p[i].last = 0; /* sees nothing: its own block says so */
    }
}

static dt_status survey(ring *r) {
    const dt_meta *q = r->in[r->at + Q]->meta, *k = r->in[r->at + K]->meta;
    DT_TRY(rings(r));
    r->qbox = DT_ARENA_ARRAY(&r->b->tmp, dt_box, r->n);
    r->key = DT_ARENA_ARRAY(&r->b->tmp, keys, r->n);
    r->part = DT_ARENA_ARRAY(&r->b->tmp, part, 2 * r->n);
    r->move = DT_ARENA_ARRAY(&r->b->tmp, dt_move, r->n);
    if (!r->qbox || !r->key || !r->part || !r->move) return no_memory();
    for (int pos = 0; pos < r->n; pos++) {
        dt_box kbox;
        dt_layout_box(q, pos, &r->qbox[pos]);
        dt_layout_box(k, pos, &kbox);
        r->key[pos].lo = kbox.lo[k->ndim - 2];
        r->key[pos].len = kbox.len[k->ndim - 2];
    }
    for (int pos = 0; pos < r->n; pos++) split_rows(r, pos);
    for (int w = 0; w < 2; w++) {
        r->held[w] = DT_ARENA_ARRAY(&r->b->tmp, dt_loc, 2 * r->n);
        r->given[w] = DT_ARENA_ARRAY(&r->b->tmp, dt_loc, 2 * r->n);
        r->sum[w] = DT_ARENA_ARRAY(&r->b->tmp, dt_loc, r->n);
        if (!r->held[w] || !r->given[w] || !r->sum[w]) return no_memory();
    }
    return DT_OK;
}

/* ---- pieces of memory -------------------------------------------------------------------------------------------------------------------- */
static dt_loc rows_of(const dt_loc *l, int d, int64_t from, int64_t len) {
    dt_loc r = *l;
    r.offset += from * l->view.stride[d] * (int64_t)dt_dtype_size(l->view.dtype);
    r.view.shape[d] = len;
    return r;
}

static dt_loc shaped(const dt_loc *like, dt_dtype t, int d, int64_t len) { /* no storage yet; d < 0: as it is */
    dt_loc l = *like;
    l.view.dtype = t;
    if (d >= 0) l.view.shape[d] = len;
    l.storage = -1;
    l.offset = 0;
    dt_view_set_contiguous(&l.view);
    return l;
}

static dt_status fresh(ring *r, const dt_loc *like, dt_dtype t, int d, int64_t len, dt_loc *out) {
    *out = shaped(like, t, d, len);
    return dt_build_loc_alloc(r->b, out);
}

static dt_dtype computing(const ring *r) { return r->in[r->at + Q]->meta->dtype == DT_float64 ? DT_float64 : DT_float32; }
static bool narrow(const ring *r) { return dt_dtype_size((dt_dtype)r->in[r->at + Q]->meta->dtype) < 4; }

/* Two buffers as large as the largest block that device pos meets, k and v each. */
static dt_status alloc_buffers(ring *r, int pos, dt_loc *const *set, dt_dtype t) {
    int64_t most = 0;
    for (int s = 1; s < r->m; s++)
        if (busy(r, pos, s) && r->key[source(r, pos, s)].len > most) most = r->key[source(r, pos, s)].len;
    for (int w = 0; w < 2 && most; w++)
        for (int i = 0; i < 2; i++) {
            const dt_loc *like = set == r->given ? &r->sum[w][pos] : &r->in[r->at + K + w]->loc[pos];
            DT_TRY(fresh(r, like, t, like->view.ndim - 2, most, &set[w][2 * pos + i]));
        }
    return DT_OK;
}

/* The buffer of step s, shaped as the block of that step. */
static dt_loc buffer(const ring *r, dt_loc *const *set, int w, int pos, int s) {
    const dt_loc *l = &set[w][2 * pos + s % 2];
    dt_loc b = shaped(l, l->view.dtype, l->view.ndim - 2, r->key[source(r, pos, s)].len);
    b.storage = l->storage;
    return b;
}

/* ---- movement ------------------------------------------------------------------------------------------------------------------------------ */
static void add_move(ring *r, int *n, int from, int to, bool add, const dt_loc *src, const dt_loc *dst) {
    if (dt_view_numel(&dst->view)) r->move[(*n)++] = (dt_move){from, to, add, *src, *dst};
}

static dt_status pull_keys(ring *r, int s) {
    for (int w = 0; w < 2 && s < r->m; w++) {
        int n = 0;
        for (int pos = 0; pos < r->n; pos++) {
            if (!busy(r, pos, s)) continue;
            dt_loc to = buffer(r, r->held, w, pos, s);
            add_move(r, &n, source(r, pos, s), pos, false, &r->in[r->at + K + w]->loc[source(r, pos, s)], &to);
        }
        DT_TRY(dt_build_moves(r->b, r->mesh, "ring", r->dim, r->move, n));
    }
    return DT_OK;
}

static dt_status return_gradients(ring *r, int s) {
    for (int w = 0; w < 2; w++) {
        int n = 0;
        for (int pos = 0; pos < r->n; pos++) {
            if (!busy(r, pos, s)) continue;
            dt_loc from = buffer(r, r->given, w, pos, s);
            add_move(r, &n, pos, source(r, pos, s), true, &from, &r->sum[w][source(r, pos, s)]);
        }
        DT_TRY(dt_build_moves(r->b, r->mesh, "ring", r->dim, r->move, n));
    }
    return DT_OK;
}

/* The second part's rows of operand `whole` (rows are its dimension d): a view where the device holds them, else pulled from their owner. */
static dt_status second_in(ring *r, dt_loc *(*whole)(ring *, int), int d, size_t field) {
    int n = 0;
    for (int pos = 0; pos < r->n; pos++) {
        part *p = &r->part[2 * pos + 1];
        dt_loc *to = (dt_loc *)((char *)p + field), from = rows_of(whole(r, p->owner), d, p->skip, p->len);
        if (!p->len || p->owner == pos) {
            *to = from;
            continue;
        }
        DT_TRY(fresh(r, whole(r, pos), from.view.dtype, d, p->len, to));
        add_move(r, &n, p->owner, pos, false, &from, to);
    }
    return dt_build_moves(r->b, r->mesh, "exchange", r->dim, r->move, n);
}

/* The way back: rows that a device computed for its mirror. */
static dt_status second_out(ring *r, int out, int d, size_t field) {
    int n = 0;
    for (int pos = 0; pos < r->n; pos++) {
        part *p = &r->part[2 * pos + 1];
        if (!p->len || p->owner == pos) continue;
        dt_loc to = rows_of(&r->out[out]->loc[p->owner], d, p->skip, p->len);
        add_move(r, &n, pos, p->owner, false, (dt_loc *)((char *)p + field), &to);
    }
    return dt_build_moves(r->b, r->mesh, "exchange", r->dim, r->move, n);
}

/* Where the results of a part go: into the output, or into a buffer that its owner will read. */
static dt_status result(ring *r, int pos, int i, int out, int d, dt_loc *to) {
    part *p = &r->part[2 * pos + i];
    const dt_loc *own = &r->out[out]->loc[pos];
    if (p->owner != pos) return fresh(r, own, own->view.dtype, d, p->len, to);
    *to = rows_of(own, d, p->skip, p->len);
    return DT_OK;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------------------------------------- */
static dt_loc absent(int prog) { return (dt_loc){prog, -1, 0, {.dtype = DT_DTYPE_NONE}}; }

static dt_loc number_at(const ring *r, int prog, int k) {
    if (k >= r->c->n_in || !r->c->in[k]) return absent(prog);
    return (dt_loc){prog, -2, r->number[k] * 8, {.dtype = (dt_dtype)r->c->used[k]->dtype}};
}

/* The mask's rows of a part and columns of a block. */
static dt_loc mask_of(const ring *r, int pos, const part *p, int holder) {
    const dt_pval *m = r->in[r->at + MASK];
    if (!m) return absent(r->in[r->at + Q]->loc[pos].prog);
    dt_loc l = m->loc[pos];
    int nd = l.view.ndim;
    if (m->meta->shape[nd - 2] != 1) l = rows_of(&l, nd - 2, p->skip, p->len);
    if (m->meta->shape[nd - 1] != 1) l = rows_of(&l, nd - 1, r->key[holder].lo, r->key[holder].len);
    return l;
}

static dt_geom place_of(const ring *r, const dt_meta *m, int pos, int d, int64_t lo) {
    dt_geom g = {.first = true};
    dt_build_geom(&g, m, pos);
    g.lo[d] = lo;
    (void)r;
    return g;
}

static dt_attention_attr *step_attr(ring *r, const part *p, int s) {
    dt_attention_attr *a = DT_ARENA_NEW(r->b->arena, dt_attention_attr);
    if (!a) return NULL;
    *a = *r->attr;
    a->resume = s != p->first;
    a->last = s == p->last;
    return a;
}

static dt_loc keys_at(const ring *r, int w, int pos, int s) { return s ? buffer(r, r->held, w, pos, s) : r->in[r->at + K + w]->loc[pos]; }

static dt_status forward_step(ring *r, int pos, int i, int s) {
    const part *p = &r->part[2 * pos + i];
    const dt_meta *q = r->in[Q]->meta, *k = r->in[K]->meta, *y = r->out[0]->meta;
    int holder = source(r, pos, s), prog = r->in[Q]->loc[pos].prog;
    dt_attention_attr *a = step_attr(r, p, s);
    dt_geom *g = DT_ARENA_ARRAY(&r->b->tmp, dt_geom, 9);
    if (!a || !g) return no_memory();
    dt_loc l[9] = {p->q,
                   keys_at(r, 0, pos, s),
                   keys_at(r, 1, pos, s),
                   mask_of(r, pos, p, holder),
                   number_at(r, prog, SEED),
                   number_at(r, prog, SEED + 1),
                   p->out,
                   p->lse,
                   narrow(r) && p->first != p->last ? p->acc : absent(prog)};
    g[0] = place_of(r, q, pos, q->ndim - 2, p->lo);
    g[1] = place_of(r, k, pos, k->ndim - 2, r->key[holder].lo);
    g[6] = place_of(r, y, pos, y->ndim - 2, p->lo);
    return dt_build_kernel_step(r->b, prog, &dt_op_attention_step, a, 6, 3, l, g);
}

static dt_status backward_step(ring *r, int pos, int i, int s, bool add) {
    const part *p = &r->part[2 * pos + i];
    const dt_meta *gy = r->in[GY]->meta, *q = r->in[1 + Q]->meta, *k = r->in[1 + K]->meta;
    int holder = source(r, pos, s), prog = r->in[GY]->loc[pos].prog;
    dt_attention_attr *a = step_attr(r, p, s);
    dt_geom *g = DT_ARENA_ARRAY(&r->b->tmp, dt_geom, 13);
    if (!a || !g) return no_memory();
    a->add = add;
    dt_loc gk = s ? buffer(r, r->given, 0, pos, s) : r->sum[0][pos], gv = s ? buffer(r, r->given, 1, pos, s) : r->sum[1][pos];
    dt_loc l[13] = {p->gy,
                    p->q,
                    keys_at(r, 0, pos, s),
                    keys_at(r, 1, pos, s),
                    mask_of(r, pos, p, holder),
                    p->lse,
                    p->delta,
                    number_at(r, prog, B_SEED),
                    number_at(r, prog, B_SEED + 1),
                    p->out,
                    p->dq,
                    gk,
                    gv};
    g[0] = place_of(r, gy, pos, gy->ndim - 2, p->lo);
    g[1] = place_of(r, q, pos, q->ndim - 2, p->lo);
    g[2] = place_of(r, k, pos, k->ndim - 2, r->key[holder].lo);
    return dt_build_kernel_step(r->b, prog, &dt_op_attention_backward_step, a, 9, 4, l, g);
}

/* ---- forward --------------------------------------------------------------------------------------------------------------------------------------- */
static dt_loc *query_at(ring *r, int pos) { return &r->in[r->at + Q]->loc[pos]; }

static dt_status forward(ring *r) {
    int qd = r->in[Q]->meta->ndim - 2, yd = r->out[0]->meta->ndim - 2;
    for (int k = 0; k < 2; k++) DT_TRY(dt_build_pval_alloc(r->b, r->out[k]));
    for (int pos = 0; pos < r->n; pos++) {
        part *p = &r->part[2 * pos];
        p->q = rows_of(query_at(r, pos), qd, 0, p->len);
        for (int i = 0; i < 2; i++) {
            DT_TRY(result(r, pos, i, 0, yd, &p[i].out));
            DT_TRY(result(r, pos, i, 1, yd, &p[i].lse));
            if (narrow(r)) DT_TRY(fresh(r, &p[i].out, DT_float32, -1, 0, &p[i].acc));
        }
        DT_TRY(alloc_buffers(r, pos, r->held, (dt_dtype)r->in[K]->meta->dtype));
    }
    DT_TRY(second_in(r, query_at, qd, offsetof(part, q)));
    for (int s = 0; s < r->m; s++) {
        DT_TRY(pull_keys(r, s + 1));
        for (int pos = 0; pos < r->n; pos++)
            for (int i = 0; i < 2; i++)
                if (step_of(r, &r->part[2 * pos + i], pos, s)) DT_TRY(forward_step(r, pos, i, s));
    }
    DT_TRY(second_out(r, 0, yd, offsetof(part, out)));
    return second_out(r, 1, yd, offsetof(part, lse));
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------------------------- */
static dt_loc *grad_at(ring *r, int pos) { return &r->in[GY]->loc[pos]; }
static dt_loc *lse_at(ring *r, int pos) { return &r->in[B_LSE]->loc[pos]; }
static dt_loc *delta_at(ring *r, int pos) { return &r->part[2 * pos].acc; } /* whole: both halves of the device's own rows */

static dt_status delta(ring *r, int pos) {
    dt_loc *to = delta_at(r, pos), l[3] = {*grad_at(r, pos), r->in[B_OUT]->loc[pos]};
    dt_geom *g = DT_ARENA_ARRAY(&r->b->tmp, dt_geom, 3);
    if (!g) return no_memory();
    dt_build_geom(&g[0], r->in[GY]->meta, pos);
    DT_TRY(fresh(r, lse_at(r, pos), computing(r), -1, 0, to));
    l[2] = *to;
    return dt_build_kernel_step(r->b, to->prog, &dt_op_attention_delta, NULL, 2, 1, l, g);
}

/* dq of a part while it is gathered: rows x width, padded. */
static dt_status gathered(ring *r, part *p) {
    int64_t rows = dt_view_numel(&p->lse.view), size = computing(r) == DT_float64 ? 8 : 4;
    dt_view v = {.dtype = computing(r), .ndim = 1};
    v.shape[0] = (int64_t)dt_attention_dq_bytes(rows, p->q.view.shape[p->q.view.ndim - 1], computing(r)) / size;
    v.stride[0] = 1;
    p->dq = (dt_loc){.prog = p->q.prog, .storage = -1, .view = v};
    return dt_build_loc_alloc(r->b, &p->dq);
}

static dt_status backward_setup(ring *r) {
    int gd = r->in[GY]->meta->ndim - 2, qd = r->in[1 + Q]->meta->ndim - 2;
    DT_TRY(dt_build_pval_alloc(r->b, r->out[0]));
    for (int w = 0; w < 2 && !narrow(r); w++) DT_TRY(dt_build_pval_alloc(r->b, r->out[1 + w]));
    for (int pos = 0; pos < r->n; pos++) {
        part *p = &r->part[2 * pos];
        DT_TRY(delta(r, pos));
        for (int w = 0; w < 2; w++) {
            r->sum[w][pos] = r->out[1 + w]->loc[pos];
            if (narrow(r)) DT_TRY(fresh(r, &r->out[1 + w]->loc[pos], DT_float32, -1, 0, &r->sum[w][pos]));
        }
        p->q = rows_of(query_at(r, pos), qd, 0, p->len);
        p->gy = rows_of(grad_at(r, pos), gd, 0, p->len);
        p->lse = rows_of(lse_at(r, pos), gd, 0, p->len);
        p->delta = rows_of(delta_at(r, pos), gd, 0, p->len);
        for (int i = 0; i < 2; i++) DT_TRY(result(r, pos, i, 0, gd, &p[i].out));
        DT_TRY(alloc_buffers(r, pos, r->held, (dt_dtype)r->in[1 + K]->meta->dtype));
        DT_TRY(alloc_buffers(r, pos, r->given, computing(r)));
    }
    DT_TRY(second_in(r, query_at, qd, offsetof(part, q)));
    DT_TRY(second_in(r, grad_at, gd, offsetof(part, gy)));
    DT_TRY(second_in(r, lse_at, gd, offsetof(part, lse)));
    DT_TRY(second_in(r, delta_at, gd, offsetof(part, delta)));
    for (int i = 0; i < 2 * r->n; i++) DT_TRY(gathered(r, &r->part[i]));
    return DT_OK;
}

static dt_status backward(ring *r) {
    DT_TRY(backward_setup(r));
    for (int s = 0; s < r->m; s++) {
        DT_TRY(pull_keys(r, s + 1));
        for (int pos = 0; pos < r->n; pos++) {
            bool wrote = false;
            for (int i = 0; i < 2; i++) {
                if (!step_of(r, &r->part[2 * pos + i], pos, s)) continue;
                DT_TRY(backward_step(r, pos, i, s, wrote));
                wrote = true;
            }
            for (int w = 0; w < 2 && s == 0 && !wrote; w++) /* no query here looks at the own keys */
                DT_TRY(dt_build_zero(r->b, r->mesh->dev[pos], &r->sum[w][pos]));
        }
        if (s) DT_TRY(return_gradients(r, s));
    }
    for (int w = 0; w < 2 && narrow(r); w++)
        for (int pos = 0; pos < r->n; pos++) DT_TRY(dt_build_unary(r->b, &dt_op_to_dtype, &r->sum[w][pos], &r->out[1 + w]->loc[pos]));
    return second_out(r, 0, r->in[GY]->meta->ndim - 2, offsetof(part, out));
}

dt_status dt_build_ring(dt_build *b, const dt_call *c, dt_pval *const *in, const int *number, dt_pval *const *out) {
    ring r = {.b = b, .c = c, .mesh = c->mesh, .in = in, .out = out, .number = number, .attr = c->attr, .n = c->mesh->n};
    r.backward = c->op == &dt_op_attention_backward;
    r.at = r.backward;
    r.balanced = r.attr->is_causal && r.attr->context == DT_CONTEXT_RING_BALANCED && !in[r.at + MASK];
    DT_TRY(survey(&r));
    return r.backward ? backward(&r) : forward(&r);
}
