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
 * Between processes of one host that may read each other's memory (net.h), large transfers are *direct*: the message is a head and the addresses of the
 * sender's operands; the receiver's parties read what they need, piece by piece so that a sum is formed while the piece lies in cache, and say when they
 * are done.
 *
 * Threads: the parties' worker threads. */
#include <pthread.h>
#include <string.h>

#include "comm/comm.h"
#include "comm/net.h"
#include "plan/nodes.h"

enum { ALIGN = 64, DIRECT_MIN = 32 << 10, PIECE = 128 << 10, KEEP = 8, KEEP_BYTES = 256 << 20 };
typedef struct head { /* of a message */
    int32_t status;
    uint32_t site;
    char text[504];
} head;

/* ---- memory of messages: large blocks are kept for the next collective, since fresh pages cost more than the copy into them --------------- */
static struct {
    pthread_mutex_t lock;
    int n;
    size_t total;
    struct {
        void *p;
        size_t cap;
    } kept[KEEP];
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *memory_get(size_t bytes, size_t *cap) {
    void *p = NULL;
    pthread_mutex_lock(&kept.lock);
    int best = -1;
    for (int i = 0; i < kept.n; i++)
        if (kept.kept[i].cap >= bytes && (best < 0 || kept.kept[i].cap < kept.kept[best].cap)) best = i;
    if (best >= 0 && kept.kept[best].cap / 4 <= bytes) {
        p = kept.kept[best].p;
        *cap = kept.kept[best].cap;
        kept.total -= *cap;
        kept.kept[best] = kept.kept[--kept.n];
    }
    pthread_mutex_unlock(&kept.lock);
    if (p) return p;
    *cap = bytes;
    return dt_malloc(bytes);
}

static void memory_put(void *p, size_t cap) {
    if (!p) return;
    pthread_mutex_lock(&kept.lock);
    if (kept.n < KEEP && cap >= PIECE && kept.total + cap <= KEEP_BYTES) {
        kept.kept[kept.n].p = p;
        kept.kept[kept.n++].cap = cap;
        kept.total += cap;
        p = NULL;
    }
    pthread_mutex_unlock(&kept.lock);
    dt_free(p);
}

typedef struct walk { /* of the blocks from node `from` to node `to` in one phase */
    const dt_coll *c;
    int phase, from, to;
    size_t at; /* bytes so far */
} walk;

static int node_of(const dt_coll *c, int party) { return dt_device_node(c->party[party].device); }

/* The sources of a pull that lie on a node, by number. */
static int sources_on(const dt_coll *c, const dt_pull *p, int node, int *out) {
    int n = 0;
    for (int k = 0; k < p->n_src; k++)
        if (node_of(c, p->src[k].party) == node) out[n++] = k;
    return n;
}

static size_t block_bytes(const dt_pull *p) { return ((size_t)dt_view_numel(p->dst) * dt_dtype_size(p->dst->dtype) + ALIGN - 1) & ~(size_t)(ALIGN - 1); }

static bool same_view(const dt_view *a, const dt_view *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->ndim) &&
           !memcmp(a->stride, b->stride, sizeof(int64_t) * (size_t)a->ndim);
}

static bool same_sources(const dt_pull *p, const int *a, const dt_pull *q, const int *b, int n) {
    for (int k = 0; k < n; k++) {
        const dt_pull_src *x = &p->src[a[k]], *y = &q->src[b[k]];
        if (x->party != y->party || x->from_out != y->from_out || dt_pull_offset(p, a[k]) != dt_pull_offset(q, b[k]) ||
            !same_view(dt_pull_view(p, a[k]), dt_pull_view(q, b[k])))
            return false;
    }
    return true;
}

typedef struct block {
    const dt_pull *pull;
    size_t at;
} block;

/* The block that pull p of this walk needs: an earlier one if it is the same. Blocks are kept in a list by the caller; *fresh says it is new. */
static size_t block_of(walk *w, const dt_pull *p, const int *src, int n, block *list, int *count, bool *fresh) {
    for (int i = 0; i < *count; i++) {
        int other[list[i].pull->n_src + 1];
        if (sources_on(w->c, list[i].pull, w->from, other) == n && same_sources(p, src, list[i].pull, other, n)) {
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

typedef void (*block_fn)(void *ctx, const walk *w, const dt_pull *p, const int *src, int n, size_t at);

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
            int src[p->n_src + 1], n = sources_on(c, p, from, src);
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

static void source_view(const job *j, const dt_pull *p, int k, dt_view *v) {
    const dt_pull_src *s = &p->src[k];
    *v = *dt_pull_view(p, k);
    v->data = (char *)(s->from_out ? j->r->out : j->r->in)[s->party] + dt_pull_offset(p, k);
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

static void pack(void *ctx, const walk *w, const dt_pull *p, const int *src, int n, size_t at) {
    job *j = ctx;
    dt_view v[n], dst = *p->dst;
    for (int k = 0; k < n; k++) source_view(j, p, src[k], &v[k]);
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
static void find_block(void *ctx, const walk *w, const dt_pull *p, const int *src, int n, size_t at) {
    place *x = ctx;
    int mine[x->want->n_src + 1];
    if (sources_on(w->c, x->want, w->from, mine) == n && same_sources(p, src, x->want, mine, n)) x->at = at;
}

typedef struct peer {
    int node;
    bool direct; /* addresses instead of blocks */
    size_t out_bytes, in_bytes, out_cap, in_cap;
    char *out, *in; /* head and blocks, or head and addresses: of in and out, for each of the node's parties */
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

static int parties_on(const dt_coll *c, int node) {
    int n = 0;
    for (int i = 0; i < c->n; i++) n += node_of(c, i) == node;
    return n;
}

static void write_addresses(const job *j, char *to) {
    for (int i = 0; i < j->c->n; i++) {
        if (node_of(j->c, i) != dt_node_self) continue;
        uint64_t a[2] = {(uint64_t)(uintptr_t)j->r->in[i], (uint64_t)(uintptr_t)j->r->out[i]};
        memcpy(to, a, sizeof a);
        to += sizeof a;
    }
}

/* Packs and posts for one other node. Both sides come to the same sizes, so both know whether the transfer is direct. */
static void peer_post(job *j, int phase, peer *p, dt_error_t *error) {
    p->direct = dt_net_shares(p->node) && (p->out_bytes > DIRECT_MIN || p->in_bytes > DIRECT_MIN);
    if (p->direct) {
        p->out_bytes = sizeof(uint64_t[2]) * (size_t)parties_on(j->c, dt_node_self);
        p->in_bytes = sizeof(uint64_t[2]) * (size_t)parties_on(j->c, p->node);
    }
    p->out_bytes += sizeof(head);
    p->in_bytes += sizeof(head);
    p->out = memory_get(p->out_bytes, &p->out_cap);
    p->in = memory_get(p->in_bytes, &p->in_cap);
    uint64_t key = j->r->key + (uint64_t)phase;
    if (p->in) dt_net_recv_bulk(&p->receive, p->node, key, p->in, p->in_bytes);
    if (!p->out) return;
    write_head(p->out, error);
    j->to = p->out + sizeof(head);
    if (p->direct)
        write_addresses(j, j->to);
    else if (!error)
        each_block(j->c, phase, dt_node_self, p->node, pack, j);
    dt_net_send_bulk(&p->send, p->node, key, p->out, p->out_bytes);
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
        peer_post(j, phase, p, error);
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
        memory_put(s->peer[i].in, s->peer[i].in_cap);
        memory_put(s->peer[i].out, s->peer[i].out_cap);
    }
    if (s) dt_error_unref(s->error);
    dt_free(s);
}

/* Nobody's memory may change while another process reads it: word that this node has read, and from those who read here. A lost node reads no more. */
static void await_readers(const job *j, staging *s, int phase) {
    uint8_t word[2] = {1, 0};
    uint64_t key = (j->r->key + (uint64_t)phase) | 1ull << 62;
    for (int i = 0; s && i < s->n; i++) {
        peer *p = &s->peer[i];
        if (!p->direct || !p->in || !p->out) continue;
        dt_net_recv_bulk(&p->receive, p->node, key, &word[1], 1);
        dt_net_send_bulk(&p->send, p->node, key, &word[0], 1);
        dt_status a = dt_net_wait(&p->receive), b = dt_net_wait(&p->send);
        (void)a, (void)b;
    }
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

/* ---- direct reading ---------------------------------------------------------------------------------------------------------------------------- */
typedef struct source { /* one operand of a pull: memory of this process, or of another one */
    dt_view view;
    int node;         /* whose */
    uint64_t address; /* there */
} source;

static uint64_t address_there(const dt_coll *c, const peer *q, const dt_pull *p, int k) {
    const dt_pull_src *s = &p->src[k];
    int at = 0;
    for (int i = 0; i < s->party; i++) at += node_of(c, i) == q->node;
    uint64_t a[2];
    memcpy(a, q->in + sizeof(head) + sizeof a * (size_t)at, sizeof a);
    return a[s->from_out] + (uint64_t)dt_pull_offset(p, k);
}

/* A whole view of another process's memory, contiguous at `to`: as many runs as its layout has. */
static dt_status read_view(const source *s, char *to) {
    enum { RUNS = 512 };
    dt_net_run run[RUNS];
    const dt_view *v = &s->view;
    int64_t size = (int64_t)dt_dtype_size(v->dtype), inner = 1, at[DT_MAX_DIM] = {0};
    int outer = v->ndim, n = 0;
    while (outer > 0 && (v->stride[outer - 1] == inner || v->shape[outer - 1] == 1)) inner *= v->shape[--outer];
    int64_t rows = 1;
    for (int d = 0; d < outer; d++) rows *= v->shape[d];
    for (int64_t i = 0; i < rows && inner; i++) {
        int64_t off = 0;
        for (int d = 0; d < outer; d++) off += at[d] * v->stride[d];
        run[n++] = (dt_net_run){s->address + (uint64_t)(off * size), (size_t)(inner * size)};
        if (n == RUNS || i + 1 == rows) {
            DT_TRY(dt_net_read(s->node, to, run, n));
            to += (int64_t)n * inner * size;
            n = 0;
        }
        for (int d = outer - 1; d >= 0 && ++at[d] == v->shape[d]; d--) at[d] = 0;
    }
    return DT_OK;
}

static int foreign_operands(const source *src, int n) {
    int foreign = 0;
    for (int k = 0; k < n; k++) foreign += src[k].node != dt_node_self;
    return foreign;
}

/* All in one piece: each foreign operand is brought here whole. */
static dt_status combine_whole(const job *j, const dt_view *dst, const source *src, int n, dt_reduce op) {
    dt_view v[n + 1];
    size_t cap = 0, bytes = ((size_t)dt_view_numel(dst) * dt_dtype_size(dst->dtype) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    int foreign = foreign_operands(src, n);
    char *m = foreign ? memory_get(bytes * (size_t)foreign + 1, &cap) : NULL, *at = m;
    if (foreign && !m) return dt_fail(DT_E_NOMEM, "%s: out of host memory", j->c->kind);
    dt_status s = DT_OK;
    for (int k = 0; k < n && !s; k++) {
        v[k] = src[k].view;
        if (src[k].node == dt_node_self) continue;
        s = read_view(&src[k], at);
        v[k] = *dst;
        dt_view_set_contiguous(&v[k]);
        v[k].data = at;
        at += bytes;
    }
    if (!s) combine(j, dst, v, n, op);
    memory_put(m, cap);
    return s;
}

/* Contiguous operands, piece by piece. One foreign operand alone is read into place. */
static dt_status combine_pieces(const job *j, const dt_view *dst, const source *src, int n, dt_reduce op) {
    size_t size = dt_dtype_size(dst->dtype), total = (size_t)dt_view_numel(dst) * size, cap;
    if (n == 1 && src[0].node != dt_node_self) {
        dt_net_run all = {src[0].address, total};
        return total ? dt_net_read(src[0].node, dst->data, &all, 1) : DT_OK;
    }
    char *m = memory_get((size_t)PIECE * (size_t)foreign_operands(src, n), &cap);
    if (!m) return dt_fail(DT_E_NOMEM, "%s: out of host memory", j->c->kind);
    dt_status s = DT_OK;
    for (size_t at = 0; at < total && !s; at += PIECE) {
        size_t bytes = total - at < PIECE ? total - at : PIECE;
        dt_view v[n + 1], d = {.data = (char *)dst->data + at, .dtype = dst->dtype, .ndim = 1, .shape = {(int64_t)(bytes / size)}, .stride = {1}};
        char *room = m;
        for (int k = 0; k < n && !s; k++) {
            v[k] = d;
            if (src[k].node == dt_node_self) {
                v[k].data = (char *)src[k].view.data + at;
                continue;
            }
            dt_net_run run = {src[k].address + at, bytes};
            v[k].data = room;
            room += PIECE;
            s = dt_net_read(src[k].node, v[k].data, &run, 1);
        }
        if (!s) combine(j, &d, v, n, op);
    }
    memory_put(m, cap);
    return s;
}

static dt_status pull(job *j, const dt_pull *p, int phase, const staging *s, void *out) {
    dt_view dst = *p->dst;
    source src[p->n_src + 1];
    int from[p->n_src + 1], n = 0, next = 0;
    bool flat = dt_view_contiguous(&dst), foreign = false;
    dst.data = (char *)out + p->offset;
    for (int node = 0; node < dt_nodes; node++) { /* in the order of nodes, whoever computes */
        int n_from = sources_on(j->c, p, node, from);
        if (node == dt_node_self) {
            for (int k = 0; k < n_from; k++, n++) {
                src[n].node = node;
                source_view(j, p, from[k], &src[n].view);
            }
            continue;
        }
        if (next >= s->n || s->peer[next].node != node) continue;
        const peer *q = &s->peer[next++];
        if (!n_from) continue;
        if (q->direct) {
            for (int k = 0; k < n_from; k++) src[n++] = (source){*dt_pull_view(p, from[k]), node, address_there(j->c, q, p, from[k])};
            foreign = true;
            continue;
        }
        place x = {p, 0, j->c, node};
        each_block(j->c, phase, node, dt_node_self, find_block, &x);
        src[n] = (source){*p->dst, dt_node_self, 0};
        dt_view_set_contiguous(&src[n].view);
        src[n++].view.data = q->in + sizeof(head) + x.at;
    }
    for (int k = 0; k < n; k++) flat &= dt_view_contiguous(&src[k].view);
    bool average = j->c->reduce == DT_AVG && p->n_src > 1 && n < p->n_src;
    dt_reduce op = average ? DT_SUM : j->c->reduce;
    DT_TRY(flat && foreign ? combine_pieces(j, &dst, src, n, op) : combine_whole(j, &dst, src, n, op));
    if (average) divide(&dst, p->n_src);
    return DT_OK;
}

/* ---- a party ----------------------------------------------------------------------------------------------------------------------------------- */
/* Is this the party that speaks for its node? *n: parties there. */
static bool local_parties(const dt_coll *c, int party, uint32_t *n) {
    bool first = true;
    *n = 0;
    for (int i = 0; i < c->n; i++)
        if (node_of(c, i) == dt_node_self) {
            ++*n;
            first &= i >= party;
        }
    return first;
}

static dt_error_t *local_error(const dt_coll *c, const dt_rendezvous *r) {
    for (int i = 0; i < c->n; i++)
        if (node_of(c, i) == dt_node_self && r->error[i]) return r->error[i];
    return NULL;
}

static dt_error_t *span_run(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, void *out, dt_error_t *error) {
    job j = {c, r, b, team, NULL};
    uint32_t n;
    bool leader = local_parties(c, party, &n);
    r->in[party] = in;
    r->out[party] = out;
    r->error[party] = error;
    dt_comm_meet(&r->arrived[0], n);
    dt_error_t *mine = NULL; /* made here; the others keep theirs */
    error = local_error(c, r);
    for (int phase = 0; phase <= c->two_phase; phase++) {
        if (phase) error = error ? error : local_error(c, r);
        if (leader) r->staging[phase] = exchange(&j, phase, error);
        dt_comm_meet(&r->arrived[1 + 2 * phase], n);
        staging *s = r->staging[phase];
        if (!error && s) error = s->error;
        for (int k = 0; !error && s && k < c->party[party].n_pulls[phase]; k++) {
            const dt_pull *p = &c->party[party].pull[phase][k];
            if (phase && p->src[0].party == party) continue; /* its own chunk, in a list that all share */
            dt_status bad = pull(&j, p, phase, s, out);
            if (bad) mine = error = dt_error_new(bad, 0, c->kind, dt_error_message());
        }
        if (!s && !error) mine = error = dt_error_new(DT_E_NOMEM, 0, c->kind, "out of host memory");
        if (mine) r->error[party] = mine; /* the next phase's message tells it to the other nodes */
        if (!c->two_phase || phase == 1) break;
        dt_comm_meet(&r->arrived[2], n);
    }
    if (error && error != mine) dt_error_ref(error); /* before the last meeting: afterwards its owner may let go */
    dt_comm_meet(&r->arrived[4], n);
    if (leader)
        for (int phase = 0; phase < 2; phase++) {
            await_readers(&j, r->staging[phase], phase);
            staging_free(r->staging[phase]);
        }
    dt_comm_meet(&r->arrived[5], n);
    return error;
}

/* ---- exchanges: who needs which rows of whom is known to the receivers only, so they ask first ------------------------------------------------ */
typedef struct wanted { /* one block, as it is asked for */
    int64_t peer, from, bytes;
} wanted;
typedef struct asking {
    const dt_coll *c;
    int node; /* whose blocks */
    wanted *list;
    size_t n, cap, bytes;
    bool failed;
} asking;

static void ask(void *ctx, const dt_exchange_block *k) {
    asking *a = ctx;
    if (node_of(a->c, k->peer) != a->node) return;
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64;
        wanted *w = dt_realloc(a->list, cap * sizeof *w);
        if (!w) {
            a->failed = true;
            return;
        }
        a->list = w;
        a->cap = cap;
    }
    a->list[a->n++] = (wanted){k->peer, k->from, k->bytes};
    a->bytes += (size_t)k->bytes;
}

typedef struct hail { /* the first message to a node: what comes next */
    head h;
    uint64_t count, bytes;
} hail;

typedef struct rows_peer {
    int node;
    asking mine;
    hail out, in;
    wanted *theirs;
    char *send, *receive;
    size_t *start; /* (c->n,) where a local party's blocks begin in `receive` */
    dt_net_req req[2];
} rows_peer;

typedef struct rows_staging {
    int n;
    dt_error_t *error;
    rows_peer peer[];
} rows_staging;

static void rows_fail(rows_staging *s, dt_error_t *e) { /* takes the reference; the first one stays */
    if (!e) return;
    if (s->error)
        dt_error_unref(e);
    else
        s->error = e;
}

static void rows_wait(rows_staging *s, const dt_coll *c) {
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < 2; k++)
            if (dt_net_wait(&s->peer[i].req[k])) rows_fail(s, dt_error_new(DT_E_NODE, 0, c->kind, dt_error_message()));
}

static void rows_swap(rows_peer *p, uint64_t key, const void *out, size_t out_bytes, void *in, size_t in_bytes) {
    dt_net_recv_bulk(&p->req[0], p->node, key, in, in_bytes);
    dt_net_send_bulk(&p->req[1], p->node, key, out, out_bytes);
}

static bool legal_request(const dt_coll *c, const wanted *w) {
    if (w->peer < 0 || w->peer >= c->n || node_of(c, (int)w->peer) != dt_node_self || w->from < 0 || w->bytes < 0) return false;
    const dt_exchange_party *y = &c->exchange->party[w->peer];
    int64_t room = c->exchange->rows_in * y->row_bytes * y->shards;
    return w->from <= room && w->bytes <= room - w->from;
}

/* The blocks that a node asked for, one after the other. */
static dt_error_t *rows_pack(job *j, rows_peer *p) {
    char *to = p->send = dt_malloc(p->in.bytes + 1);
    if (!to) return dt_error_new(DT_E_NOMEM, 0, j->c->kind, "out of host memory");
    for (uint64_t k = 0; k < p->in.count; k++) {
        const wanted *w = &p->theirs[k];
        if (!legal_request(j->c, w) || (size_t)w->bytes > p->in.bytes - (size_t)(to - p->send))
            return dt_error_new(DT_E_INTERNAL, 0, j->c->kind, "a node asked for rows that are not there");
        dt_view dst = {.data = to, .dtype = DT_uint8, .ndim = 1, .shape = {w->bytes}, .stride = {1}}, src = dst;
        src.data = (char *)j->r->in[w->peer] + w->from;
        j->b->copy(&dst, &src, j->team);
        to += w->bytes;
    }
    return NULL;
}

static void rows_ask(job *j, rows_peer *p, rows_staging *s) {
    p->mine = (asking){.c = j->c, .node = p->node};
    p->start = dt_calloc((size_t)j->c->n, sizeof *p->start);
    if (!p->start) p->mine.failed = true;
    for (int i = 0; i < j->c->n && p->start; i++) {
        if (node_of(j->c, i) != dt_node_self) continue;
        p->start[i] = p->mine.bytes;
        if (!dt_exchange_walk(j->c->exchange, i, j->r->out[i], ask, &p->mine))
            rows_fail(s, dt_error_new(DT_E_INTERNAL, 0, "exchange", "more rows than the receiver has room for"));
    }
    if (p->mine.failed) rows_fail(s, dt_error_new(DT_E_NOMEM, 0, j->c->kind, "out of host memory"));
}

/* Three rounds: how much is asked for (and whether anything failed, which all nodes then know), what, and the rows. */
static rows_staging *rows_exchange(job *j, dt_error_t *error) {
    int node[j->c->n + 1], n = other_nodes(j->c, node);
    rows_staging *s = dt_calloc(1, sizeof *s + sizeof *s->peer * (size_t)n);
    if (!s) return NULL;
    s->n = n;
    if (error) rows_fail(s, dt_error_ref(error));
    for (int i = 0; i < n; i++) {
        s->peer[i].node = node[i];
        if (!error) rows_ask(j, &s->peer[i], s);
    }
    for (int i = 0; i < n; i++) {
        rows_peer *p = &s->peer[i];
        write_head((char *)&p->out.h, s->error);
        p->out.count = s->error ? 0 : p->mine.n;
        p->out.bytes = s->error ? 0 : p->mine.bytes;
        rows_swap(p, j->r->key, &p->out, sizeof p->out, &p->in, sizeof p->in);
    }
    rows_wait(s, j->c);
    for (int i = 0; i < n; i++) rows_fail(s, read_head((char *)&s->peer[i].in.h));
    if (s->error) return s;
    for (int i = 0; i < n; i++) {
        rows_peer *p = &s->peer[i];
        bool fits = p->in.count < SIZE_MAX / sizeof *p->theirs;
        p->theirs = fits ? dt_malloc(sizeof *p->theirs * (p->in.count + 1)) : NULL;
        p->receive = dt_malloc(p->mine.bytes + 1);
        if (!p->theirs || !p->receive) rows_fail(s, dt_error_new(DT_E_NOMEM, 0, j->c->kind, "out of host memory"));
    }
    if (s->error) return s; /* others wait until this node is given up: there is no memory to tell them more */
    for (int i = 0; i < n; i++) {
        rows_peer *p = &s->peer[i];
        rows_swap(p, j->r->key + 1, p->mine.list, sizeof(wanted) * p->mine.n, p->theirs, sizeof(wanted) * p->in.count);
    }
    rows_wait(s, j->c);
    for (int i = 0; i < n && !s->error; i++) rows_fail(s, rows_pack(j, &s->peer[i]));
    for (int i = 0; i < n && !s->error; i++) {
        rows_peer *p = &s->peer[i];
        rows_swap(p, j->r->key | 1ull << 63, p->send, p->in.bytes, p->receive, p->mine.bytes);
    }
    if (!s->error) rows_wait(s, j->c);
    return s;
}

static void rows_free(rows_staging *s) {
    for (int i = 0; s && i < s->n; i++) {
        rows_peer *p = &s->peer[i];
        dt_free(p->mine.list);
        dt_free(p->theirs);
        dt_free(p->send);
        dt_free(p->receive);
        dt_free(p->start);
    }
    if (s) dt_error_unref(s->error);
    dt_free(s);
}

typedef struct filling { /* one party's own buffer */
    job *j;
    int party;
    const rows_staging *s;
    char *out;
    size_t *at; /* (s->n,) */
    uint64_t *bytes;
} filling;

static void fill_block(void *ctx, const dt_exchange_block *k) {
    filling *f = ctx;
    int node = node_of(f->j->c, k->peer), i = 0;
    dt_view dst = {.data = f->out + k->to, .dtype = DT_uint8, .ndim = 1, .shape = {k->bytes}, .stride = {1}}, src = dst;
    src.data = (char *)f->j->r->in[k->peer] + k->from;
    if (node != dt_node_self) {
        while (f->s->peer[i].node != node) i++;
        src.data = f->s->peer[i].receive + f->at[i];
        f->at[i] += (size_t)k->bytes;
    }
    f->j->b->copy(&dst, &src, f->j->team);
    if (k->peer != f->party) f->bytes[k->peer] += (uint64_t)k->bytes;
}

static dt_error_t *span_exchange(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, const int64_t *counts, void *out,
                                 dt_error_t *error) {
    job j = {c, r, b, team, NULL};
    uint32_t n;
    bool leader = local_parties(c, party, &n);
    r->in[party] = in;
    r->out[party] = (void *)(uintptr_t)counts;
    r->error[party] = error;
    dt_comm_meet(&r->arrived[0], n);
    error = local_error(c, r);
    if (leader) r->staging[0] = rows_exchange(&j, error);
    dt_comm_meet(&r->arrived[1], n);
    rows_staging *s = r->staging[0];
    if (!error && s) error = s->error;
    if (error)
        dt_error_ref(error);
    else if (!s)
        error = dt_error_new(DT_E_NOMEM, 0, c->kind, "out of host memory");
    else {
        uint64_t bytes[c->n];
        size_t at[s->n + 1];
        memset(bytes, 0, sizeof bytes);
        for (int i = 0; i < s->n; i++) at[i] = s->peer[i].start[party];
        filling f = {&j, party, s, out, at, bytes};
        dt_exchange_walk(c->exchange, party, counts, fill_block, &f);
        for (int i = 0; i < c->n && r->moved; i++)
            if (bytes[i]) r->moved(r->moved_ctx, c->party[i].device, bytes[i]);
    }
    dt_comm_meet(&r->arrived[4], n);
    if (leader) rows_free(s);
    return error;
}

const dt_transport dt_transport_span = {"span", span_run, span_exchange, NULL};
