/* Collectives whose parties live in several processes. See comm.h.
 *
 * Hierarchical by construction: whoever needs a sum over devices of another node gets one block from that node, already summed there; what several
 * devices of a node need alike travels once. The first local party speaks for its node: it packs what the others need, posts sends and receives, and
 * waits; the other parties sleep at the meeting. Then each party finishes its own pulls from local memory and from what arrived.
 *
 *      node A                                   node B
 *   dev 0 ─┐ pack: sums of local parts  ──────>  staging ┌─ dev 2   dst = own parts + staging
 *   dev 1 ─┘                            <──────          └─ dev 3
 *
 * Sender and receiver walk the same list of transfers in the same order, so both know every block's place; a message is a head (did an input
 * fail?) and the blocks. A failed node still sends, so that nobody waits for ever. Blocks of 16-bit floats are summed in f32 within a node and rounded
 * once on the way.
 *
 * Threads: the parties' worker threads. */
#include <string.h>

#include "base/ring.h"
#include "comm/comm.h"
#include "comm/net.h"
#include "plan/nodes.h"

enum { ALIGN = 64 };
typedef struct head { /* of a message */
    int32_t status;
    uint32_t site;
    char text[504];
} head;

typedef struct walk { /* of the blocks from node `from` to node `to` in one phase */
    const dt_coll *c;
    int phase, from, to;
    size_t at; /* bytes so far */
} walk;

static int node_of(const dt_coll *c, int party) { return dt_device_node(c->party[party].device); }

/* The sources of a pull that lie on a node. */
static int sources_on(const dt_coll *c, const dt_pull *p, int node, const dt_pull_src **out) {
    int n = 0;
    for (int k = 0; k < p->n_src; k++)
        if (node_of(c, p->src[k].party) == node) out[n++] = &p->src[k];
    return n;
}

static size_t block_bytes(const dt_pull *p) { return ((size_t)dt_view_numel(&p->dst) * dt_dtype_size(p->dst.dtype) + ALIGN - 1) & ~(size_t)(ALIGN - 1); }

static bool same_view(const dt_view *a, const dt_view *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->ndim) &&
           !memcmp(a->stride, b->stride, sizeof(int64_t) * (size_t)a->ndim);
}

static bool same_sources(const dt_pull_src *const *a, const dt_pull_src *const *b, int n) {
    for (int k = 0; k < n; k++)
        if (a[k]->party != b[k]->party || a[k]->from_out != b[k]->from_out || a[k]->offset != b[k]->offset || !same_view(&a[k]->view, &b[k]->view))
            return false;
    return true;
}

typedef struct block {
    const dt_pull *pull;
    size_t at;
} block;

/* The block that pull p of this walk needs: an earlier one if it is the same. Blocks are kept in a list by the caller; *fresh says it is new. */
static size_t block_of(walk *w, const dt_pull *p, const dt_pull_src *const *src, int n, block *list, int *count, bool *fresh) {
    for (int i = 0; i < *count; i++) {
        const dt_pull_src *other[list[i].pull->n_src + 1];
        if (sources_on(w->c, list[i].pull, w->from, other) == n && same_sources(src, other, n)) {
            *fresh = false;
            return list[i].at;
        }
    }
    *fresh = true;
    list[*count] = (block){p, w->at};
    (*count)++;
    size_t at = w->at;
    w->at += block_bytes(p);
    return at;
}

static int pulls_on(const dt_coll *c, int node, int phase) {
    int n = 0;
    for (int i = 0; i < c->n; i++)
        if (node_of(c, i) == node) n += c->party[i].n_pulls[phase];
    return n;
}

typedef void (*block_fn)(void *ctx, const walk *w, const dt_pull *p, const dt_pull_src *const *src, int n, size_t at);

/* Calls fn for every block once; returns the bytes of all. */
static size_t each_block(const dt_coll *c, int phase, int from, int to, block_fn fn, void *ctx) {
    walk w = {c, phase, from, to, 0};
    int total = pulls_on(c, to, phase), count = 0;
    block *list = dt_malloc(sizeof *list * (size_t)(total + 1));
    if (!list) return 0;
    for (int i = 0; i < c->n; i++) {
        if (node_of(c, i) != to) continue;
        for (int k = 0; k < c->party[i].n_pulls[phase]; k++) {
            const dt_pull *p = &c->party[i].pull[phase][k];
            const dt_pull_src *src[p->n_src + 1];
            int n = sources_on(c, p, from, src);
            bool fresh;
            if (!n) continue;
            size_t at = block_of(&w, p, src, n, list, &count, &fresh);
            if (fresh && fn) fn(ctx, &w, p, src, n, at);
        }
    }
    dt_free(list);
    return w.at;
}

/* ---- one node's side ----------------------------------------------------------------------------------------------------------------------- */
typedef struct job {
    const dt_coll *c;
    dt_rendezvous *r;
    const dt_backend *b;
    dt_team *team;
    char *to; /* where a block is packed */
} job;

static const dt_view *source_view(const job *j, const dt_pull_src *s, dt_view *v) {
    *v = s->view;
    v->data = (char *)(s->from_out ? j->r->out : j->r->in)[s->party] + s->offset;
    return v;
}

static void combine(const job *j, const dt_view *dst, const dt_view *src, int n, dt_reduce op) {
    if (n == 0)
        j->b->zero(dst);
    else if (n == 1)
        j->b->copy(dst, &src[0], j->team);
    else
        j->b->reduce(dst, src, n, op);
}

static dt_reduce partial_op(const dt_coll *c) { return c->reduce == DT_AVG ? DT_SUM : c->reduce; }

static void pack(void *ctx, const walk *w, const dt_pull *p, const dt_pull_src *const *src, int n, size_t at) {
    job *j = ctx;
    dt_view v[n], dst = p->dst;
    for (int k = 0; k < n; k++) source_view(j, src[k], &v[k]);
    dst.data = j->to + at;
    dt_view_set_contiguous(&dst);
    combine(j, &dst, v, n, partial_op(w->c));
}

typedef struct place { /* finds the block of one pull */
    const dt_pull *want;
    size_t at;
    const dt_coll *c;
    int from;
} place;
static void find_block(void *ctx, const walk *w, const dt_pull *p, const dt_pull_src *const *src, int n, size_t at) {
    place *x = ctx;
    const dt_pull_src *mine[x->want->n_src + 1];
    if (sources_on(w->c, x->want, w->from, mine) == n && same_sources(src, mine, n)) x->at = at;
    (void)p;
}

typedef struct peer {
    int node;
    size_t out_bytes, in_bytes;
    char *out, *in; /* head and blocks */
    dt_net_req send, receive;
} peer;

typedef struct staging { /* what arrived in a phase, for the node's parties */
    int n;
    dt_error_t *error;
    peer peer[];
} staging;

static int other_nodes(const dt_coll *c, int *out) {
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        int node = node_of(c, i), k = 0;
        if (node == dt_node_self) continue;
        while (k < n && out[k] != node) k++;
        if (k == n) out[n++] = node;
    }
    for (int i = 1; i < n; i++) /* ascending */
        for (int k = i; k > 0 && out[k] < out[k - 1]; k--) {
            int t = out[k];
            out[k] = out[k - 1];
            out[k - 1] = t;
        }
    return n;
}

static void write_head(char *to, const dt_error_t *e) {
    head h = {0};
    if (e) {
        h.status = e->status;
        h.site = e->site;
        memcpy(h.text, e->text, sizeof h.text - 1);
    }
    memcpy(to, &h, sizeof h);
}

static dt_error_t *read_head(const char *from) {
    head h;
    memcpy(&h, from, sizeof h);
    if (h.status <= 0 || h.status >= DT_STATUS_COUNT) return NULL;
    h.text[sizeof h.text - 1] = 0;
    return dt_error_new((dt_status)h.status, h.site, "", h.text);
}

/* Packs, sends, receives. The staging holds an error if a node's input failed, or a node is lost. */
static staging *exchange(job *j, int phase, dt_error_t *error) {
    int node[j->c->n + 1], n = other_nodes(j->c, node);
    staging *s = dt_calloc(1, sizeof *s + sizeof *s->peer * (size_t)n);
    if (!s) return NULL;
    for (int i = 0; i < n; i++) {
        peer *p = &s->peer[s->n];
        p->node = node[i];
        p->out_bytes = each_block(j->c, phase, dt_node_self, p->node, NULL, NULL);
        p->in_bytes = each_block(j->c, phase, p->node, dt_node_self, NULL, NULL);
        if (phase == 1 && !p->out_bytes && !p->in_bytes) continue; /* phase 0 has told the errors */
        p->out_bytes += sizeof(head);
        p->in_bytes += sizeof(head);
        p->out = dt_malloc(p->out_bytes);
        p->in = dt_malloc(p->in_bytes);
        uint64_t key = j->r->key + (uint64_t)phase;
        if (p->in) dt_net_recv_bulk(&p->receive, p->node, key, p->in, p->in_bytes);
        if (p->out) {
            write_head(p->out, error);
            j->to = p->out + sizeof(head);
            if (!error) each_block(j->c, phase, dt_node_self, p->node, pack, j);
            dt_net_send_bulk(&p->send, p->node, key, p->out, p->out_bytes);
        }
        s->n++;
    }
    for (int i = 0; i < s->n; i++) {
        peer *p = &s->peer[i];
        dt_error_t *e = NULL;
        dt_status in = p->in ? dt_net_wait(&p->receive) : dt_fail(DT_E_NOMEM, "%s: out of host memory", j->c->kind);
        if (in)
            e = dt_error_new(in, 0, j->c->kind, dt_error_message());
        else
            e = read_head(p->in);
        dt_status out = p->out ? dt_net_wait(&p->send) : DT_OK;
        if (out && !e) e = dt_error_new(out, 0, j->c->kind, dt_error_message());
        if (e && !s->error)
            s->error = e;
        else
            dt_error_unref(e);
    }
    return s;
}

static void staging_free(staging *s) {
    for (int i = 0; s && i < s->n; i++) {
        dt_free(s->peer[i].in);
        dt_free(s->peer[i].out);
    }
    if (s) dt_error_unref(s->error);
    dt_free(s);
}

static void divide(const dt_view *v, int n) { /* an average's last step; v is contiguous enough for a walk over all elements */
    int64_t total = dt_view_numel(v), at[DT_MAX_DIM] = {0};
    size_t size = dt_dtype_size(v->dtype);
    for (int64_t i = 0; i < total; i++) {
        int64_t off = 0;
        for (int d = 0; d < v->ndim; d++) off += at[d] * v->stride[d];
        char *p = (char *)v->data + off * (int64_t)size;
        dt_element_set_f64(v->dtype, p, dt_element_get_f64(v->dtype, p) / n);
        for (int d = v->ndim - 1; d >= 0 && ++at[d] == v->shape[d]; d--) at[d] = 0;
    }
}

static void pull(job *j, const dt_pull *p, int phase, const staging *s, void *out) {
    dt_view dst = p->dst, src[p->n_src + 1];
    const dt_pull_src *local[p->n_src + 1];
    int n = 0, n_local = sources_on(j->c, p, dt_node_self, local), next = 0;
    dst.data = (char *)out + p->offset;
    for (int node = 0; node < dt_nodes; node++) { /* in the order of nodes, whoever computes */
        if (node == dt_node_self) {
            for (int k = 0; k < n_local; k++) source_view(j, local[k], &src[n++]);
            continue;
        }
        if (next >= s->n || s->peer[next].node != node) continue;
        const peer *q = &s->peer[next++];
        const dt_pull_src *there[p->n_src + 1];
        if (!sources_on(j->c, p, node, there)) continue;
        place x = {p, 0, j->c, node};
        each_block(j->c, phase, node, dt_node_self, find_block, &x);
        src[n] = p->dst;
        dt_view_set_contiguous(&src[n]);
        src[n++].data = q->in + sizeof(head) + x.at;
    }
    bool average = j->c->reduce == DT_AVG && p->n_src > 1 && n_local < p->n_src;
    combine(j, &dst, src, n, average ? DT_SUM : j->c->reduce);
    if (average) divide(&dst, p->n_src);
}

/* ---- a party ----------------------------------------------------------------------------------------------------------------------------------- */
static void meet(_Atomic uint32_t *arrived, uint32_t n) {
    uint32_t seen = atomic_fetch_add_explicit(arrived, 1, memory_order_acq_rel) + 1;
    if (seen == n) {
        dt_futex_wake(arrived, (int)n);
        return;
    }
    while ((seen = atomic_load_explicit(arrived, memory_order_acquire)) != n) dt_futex_wait(arrived, seen, -1);
}

static dt_error_t *span_run(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, void *out, dt_error_t *error) {
    job j = {c, r, b, team, NULL};
    uint32_t n = 0;
    bool leader = true;
    for (int i = 0; i < c->n; i++)
        if (node_of(c, i) == dt_node_self) {
            n++;
            leader &= i >= party;
        }
    r->in[party] = in;
    r->out[party] = out;
    r->error[party] = error;
    meet(&r->arrived[0], n);
    error = NULL;
    for (int i = 0; i < c->n && !error; i++) error = node_of(c, i) == dt_node_self ? r->error[i] : NULL;
    for (int phase = 0; phase <= c->two_phase; phase++) {
        if (leader) r->staging[phase] = exchange(&j, phase, error);
        meet(&r->arrived[1 + 2 * phase], n);
        staging *s = r->staging[phase];
        if (!error && s) error = s->error;
        for (int k = 0; !error && s && k < c->party[party].n_pulls[phase]; k++) pull(&j, &c->party[party].pull[phase][k], phase, s, out);
        if (!s && !error) error = dt_error_new(DT_E_NOMEM, 0, c->kind, "out of host memory");
        if (!c->two_phase || phase == 1) break;
        meet(&r->arrived[2], n);
    }
    if (error) dt_error_ref(error); /* before the last meeting: afterwards its owner may let go */
    meet(&r->arrived[4], n);
    if (leader)
        for (int phase = 0; phase < 2; phase++) staging_free(r->staging[phase]);
    return error;
}

/* All parties refuse alike, so nobody waits. */
static dt_error_t *span_exchange(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, const int64_t *counts, void *out,
                                 dt_error_t *error) {
    (void)party, (void)r, (void)b, (void)team, (void)in, (void)counts, (void)out;
    return error ? dt_error_ref(error) : dt_error_new(DT_E_NOTIMPL, 0, c->kind, "experts must lie on the devices of one node");
}

const dt_transport dt_transport_span = {"span", span_run, span_exchange};
