/* Collectives whose parties live in several processes. See comm.h.
 *
 * Hierarchical by construction: whoever needs a sum over devices of another machine gets one block from that machine, already summed there as far as the order
 * of sums allows (span_blocks.c); what several devices of a machine need alike travels once. Sender and receiver walk the same lists, so nothing about
 * them is sent. The order of every sum is the same as in one process, so the bits are, too.
 *
 * Small collectives: the first local party speaks for its node; it packs what another node needs into one message (a head, which says whether an input
 * failed, and the blocks), posts sends and receives, and waits; the other parties sleep at the meeting. Then each party finishes its own pulls from local
 * memory and from what arrived.
 *
 * Large ones: the messages are heads only. Processes of one machine (net.h: dt_net_shares) exchange the addresses of their operands and read each other's
 * memory; between machines blocks go in chunks:
 *
 *   machine A                                machine B
 *   dev 0 ─┐ chunk k: sums of local parts ──> lanes ──> ┌─ dev 2   dst = own parts + chunk k
 *   dev 1 ─┘ chunk k+1, while k travels    <──       <── └─ dev 3
 *
 * Every party forms and uses the chunks of its lanes as they can be formed and used, whichever comes first, and sleeps only when nothing can be done; so no
 * order of lanes can deadlock. What several nodes of a machine need alike comes to one of them, and the others read it there afterwards.
 *
 * A failed node still sends, so that nobody waits for ever. A group of parties is a collective of its own, with its own messages: an error stays in it.
 *
 * Threads: the parties' worker threads. */
#include <pthread.h>

#include "base/arena.h"
#include "base/ring.h"
#include "comm/span.h"

enum { DIRECT_MIN = 32 << 10, KEEP = 16, KEEP_BYTES = 256 << 20, RING = 4 };
#define RELAYED (1ull << 61) /* in keys: word that a node has what others of its machine read from it */
#define READ DT_SPAN_READ    /* … that it has read */

/* ---- memory of messages ---------------------------------------------------------------------------------------------------------------------- */
static struct {
    pthread_mutex_t lock;
    int n;
    size_t total;
    struct {
        void *p;
        size_t cap;
    } kept[KEEP];
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

void *dt_span_memory_get(size_t bytes, size_t *cap) {
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

void dt_span_memory_put(void *p, size_t cap) {
    if (!p) return;
    pthread_mutex_lock(&kept.lock);
    if (kept.n < KEEP && cap >= DT_SPAN_PIECE && kept.total + cap <= KEEP_BYTES) {
        kept.kept[kept.n].p = p;
        kept.kept[kept.n++].cap = cap;
        kept.total += cap;
        p = NULL;
    }
    pthread_mutex_unlock(&kept.lock);
    dt_free(p);
}

/* ---- heads ------------------------------------------------------------------------------------------------------------------------------------- */
void dt_span_head_write(char *to, const dt_error_t *e) {
    dt_span_head h = {0};
    if (e) {
        h.status = e->status;
        h.site = e->site;
        memcpy(h.text, e->text, sizeof h.text - 1);
    }
    memcpy(to, &h, sizeof h);
}

dt_error_t *dt_span_head_read(const char *from) {
    dt_span_head h;
    memcpy(&h, from, sizeof h);
    if (h.status <= 0 || h.status >= DT_STATUS_COUNT) return NULL;
    h.text[sizeof h.text - 1] = 0;
    return dt_error_new((dt_status)h.status, h.site, "", h.text);
}

/* ---- a phase on this node ------------------------------------------------------------------------------------------------------------------ */
typedef struct peer {
    int node;
    bool direct; /* of this machine, and addresses are exchanged: of in and out, for each of the node's parties */
    size_t out_bytes, in_bytes, out_cap, in_cap;
    char *out, *in; /* head and blocks, or head and addresses */
    dt_net_req send, receive;
    dt_net_window sending, receiving;
} peer;

typedef struct lists { /* what other machines need: one list for each */
    int n;
    dt_span_list list[];
} lists;

typedef struct stage { /* what a phase needs, for the node's parties */
    bool large;
    int n_peers, n_lanes, n_local;
    dt_error_t *error;
    dt_span_list in; /* what this machine needs */
    lists *theirs;
    dt_span_lane *lane;
    _Atomic uint32_t *event; /* (n_local,) of the parties: something happened to their lanes */
    bool relays;
    peer peer[];
} stage;

typedef struct job { /* one party's view of the collective */
    const dt_coll *c;
    dt_rendezvous *r;
    dt_span_tools tools;
    int phase, party;
} job;

int dt_span_other_nodes(const dt_coll *c, int party, int *out) {
    int n = 0;
    for (int i = 0; i < dt_comm_group(c, party); i++) {
        int node = dt_span_node(c, dt_comm_member(c, party, i)), k = 0;
        if (node == dt_node_self) continue;
        while (k < n && out[k] != node) k++;
        if (k == n) out[n++] = node;
    }
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && out[k] < out[k - 1]; k--) {
            int t = out[k];
            out[k] = out[k - 1];
            out[k - 1] = t;
        }
    return n;
}

static peer *peer_of(stage *s, int node) {
    for (int i = 0; i < s->n_peers; i++)
        if (s->peer[i].node == node) return &s->peer[i];
    return NULL;
}

/* The group's parties on a node, up to `before`. */
static int parties_on(const dt_coll *c, int party, int node, int before) {
    int n = 0;
    for (int i = 0, m; i < dt_comm_group(c, party) && (m = dt_comm_member(c, party, i)) < before; i++) n += dt_span_node(c, m) == node;
    return n;
}
int dt_span_parties(const dt_coll *c, int party, int node) { return parties_on(c, party, node, c->n); }
int dt_span_here(const dt_coll *c, int party) { return parties_on(c, party, dt_node_self, party); }

uint64_t dt_span_key(const dt_coll *c, int party, const dt_rendezvous *r) { return r->key | (uint64_t)c->party[party].group << DT_KEY_GROUP; }
void **dt_span_staging(const dt_coll *c, int party, const dt_rendezvous *r) { return &r->staging[2 * c->party[party].group]; }

uint32_t dt_span_window(const dt_coll *c) {
    int groups = 0;
    for (int i = 0; i < c->n; i++) groups += dt_span_node(c, i) == dt_node_self && dt_span_here(c, i) == 0;
    return groups < DT_NET_WINDOW ? (uint32_t)(DT_NET_WINDOW / groups) : 1;
}

static int machine_here(const stage *s) { return s->large ? dt_span_machine(dt_node_self) : dt_node_self; }

/* All nodes come to the same answer. */
static bool is_large(const dt_coll *c) {
    int64_t least = dt_net_chunk() < DIRECT_MIN ? (int64_t)dt_net_chunk() : DIRECT_MIN;
    return c->bytes_moved > least * c->n;
}

static void source_view(const job *j, const dt_pull *p, int k, dt_view *v) {
    const dt_pull_src *s = &p->src[k];
    *v = *dt_pull_view(p, k);
    v->data = (char *)(s->from_out ? j->r->out : j->r->in)[s->party] + dt_pull_offset(p, k);
}

static uint64_t address_there(const dt_coll *c, const peer *q, int party, bool of_out) {
    uint64_t a[2];
    memcpy(a, q->in + sizeof(dt_span_head) + sizeof a * (size_t)parties_on(c, party, q->node, party), sizeof a);
    return a[of_out];
}

/* Source k of a pull as an operand: memory of this process, or of one that can be read. */
static dt_span_operand source_operand(const job *j, stage *s, const dt_pull *p, int k) {
    const dt_pull_src *x = &p->src[k];
    dt_span_operand o = {.leaves = 1, .node = dt_span_node(j->c, x->party)};
    source_view(j, p, k, &o.view);
    if (o.node == dt_node_self) return o;
    o.foreign = true;
    o.view.data = NULL;
    o.address = address_there(j->c, peer_of(s, o.node), x->party, x->from_out) + (uint64_t)dt_pull_offset(p, k);
    return o;
}

static dt_reduce partial_op(const dt_coll *c) { return c->reduce == DT_AVG ? DT_SUM : c->reduce; }

/* The work of forming block b for another node. dst's data is the caller's. */
static dt_status block_work(const job *j, stage *s, const dt_span_block *b, dt_span_work *w) {
    *w = (dt_span_work){.dst = *b->pull->dst, .op = partial_op(j->c), .chunk = dt_span_chunk(b->pull, j->c->reduce)};
    dt_view_set_contiguous(&w->dst);
    w->dst.dtype = b->dtype;
    w->op_list = dt_malloc(sizeof *w->op_list * (size_t)b->leaves);
    if (!w->op_list) return dt_fail(DT_E_NOMEM, "%s: out of host memory", j->c->kind);
    for (; w->n_op < b->leaves; w->n_op++) w->op_list[w->n_op] = source_operand(j, s, b->pull, b->first + w->n_op);
    return DT_OK;
}

static dt_status work_through(const job *j, dt_span_work *w) {
    dt_span_choose(w);
    dt_status s = dt_span_prepare(&j->tools, w);
    while (!s && w->next < w->n) s = dt_span_step(&j->tools, w);
    dt_span_work_free(w);
    return s;
}

static uint64_t phase_key(const job *j) { return dt_span_key(j->c, j->party, j->r) + (uint64_t)j->phase; }

/* ---- messages ---------------------------------------------------------------------------------------------------------------------------------- */
static void write_addresses(const job *j, char *to) {
    for (int k = 0; k < dt_comm_group(j->c, j->party); k++) {
        int i = dt_comm_member(j->c, j->party, k);
        if (dt_span_node(j->c, i) != dt_node_self) continue;
        uint64_t a[2] = {(uint64_t)(uintptr_t)j->r->in[i], (uint64_t)(uintptr_t)j->r->out[i]};
        memcpy(to, a, sizeof a);
        to += sizeof a;
    }
}

/* What is in the messages to and from p besides the head. */
static void peer_sizes(const job *j, const stage *s, peer *p, const dt_span_list *theirs) {
    if (s->large) {
        p->direct = dt_net_shares(p->node);
        p->out_bytes = p->direct ? sizeof(uint64_t[2]) * (size_t)dt_span_parties(j->c, j->party, dt_node_self) : 0;
        p->in_bytes = p->direct ? sizeof(uint64_t[2]) * (size_t)dt_span_parties(j->c, j->party, p->node) : 0;
    } else {
        p->out_bytes = theirs->total[dt_node_self];
        p->in_bytes = s->in.total[p->node];
    }
}

static void peer_post(job *j, stage *s, peer *p, const dt_span_list *theirs) {
    p->out_bytes += sizeof(dt_span_head);
    p->in_bytes += sizeof(dt_span_head);
    p->out = dt_span_memory_get(p->out_bytes, &p->out_cap);
    p->in = dt_span_memory_get(p->in_bytes, &p->in_cap);
    uint64_t key = phase_key(j);
    if (p->in) dt_net_recv_bulk(&p->receive, p->node, key, p->in, p->in_bytes);
    if (!p->out) return;
    char *to = p->out + sizeof(dt_span_head);
    if (p->direct) write_addresses(j, to);
    for (int i = 0; !s->large && !s->error && i < theirs->n; i++) {
        const dt_span_block *b = &theirs->block[i];
        dt_span_work w;
        if (b->from != dt_node_self) continue;
        dt_status bad = block_work(j, s, b, &w);
        w.dst.data = to + b->at;
        if (!bad) bad = work_through(j, &w);
        if (bad) s->error = dt_error_new(bad, 0, j->c->kind, dt_error_message());
    }
    dt_span_head_write(p->out, s->error);
    dt_net_send_bulk(&p->send, p->node, key, p->out, p->out_bytes);
}

static void stage_fail(stage *s, dt_error_t *e) { /* takes the reference; the first one stays */
    if (s->error)
        dt_error_unref(e);
    else
        s->error = e;
}

static void await_messages(const job *j, stage *s) {
    for (int i = 0; i < s->n_peers; i++) {
        peer *p = &s->peer[i];
        dt_status in = p->in ? dt_net_wait(&p->receive) : dt_fail(DT_E_NOMEM, "%s: out of host memory", j->c->kind);
        stage_fail(s, in ? dt_error_new(in, 0, j->c->kind, dt_error_message()) : dt_span_head_read(p->in));
        dt_status out = p->out ? dt_net_wait(&p->send) : DT_OK;
        if (out) stage_fail(s, dt_error_new(out, 0, j->c->kind, dt_error_message()));
    }
}

/* A byte to and from all nodes of this machine, for what `bit` says. A lost node answers no more. */
static void word_around(const job *j, stage *s, uint64_t bit) {
    uint8_t word[2] = {1, 0};
    uint64_t key = phase_key(j) | bit;
    for (int i = 0; i < s->n_peers; i++) {
        peer *p = &s->peer[i];
        if (!p->direct || !p->in || !p->out) continue;
        dt_net_recv_bulk(&p->receive, p->node, key, &word[1], 1);
        dt_net_send_bulk(&p->send, p->node, key, &word[0], 1);
        dt_status a = dt_net_wait(&p->receive), b = dt_net_wait(&p->send);
        (void)a, (void)b;
    }
}

/* ---- lanes ---------------------------------------------------------------------------------------------------------------------------------------- */
static int lanes_among(const dt_span_list *l, bool sending) {
    int n = 0;
    for (int i = 0; i < l->n; i++) n += sending ? l->block[i].from == dt_node_self : l->block[i].to == dt_node_self;
    return n;
}

/* The k-th of the group's parties here. */
static int party_here(const dt_coll *c, int party, int k) {
    for (int i = 0; i < dt_comm_group(c, party); i++) {
        int m = dt_comm_member(c, party, i);
        if (dt_span_node(c, m) == dt_node_self && k-- == 0) return m;
    }
    return -1;
}

static void lane_memory(const job *j, stage *s, dt_span_lane *l, bool sending) {
    const dt_span_block *b = l->block;
    dt_net_stream *x = &l->stream;
    if (!s->error && sending && b->leaves == 1) {
        dt_view v;
        source_view(j, b->pull, b->first, &v);
        if (dt_view_contiguous(&v)) x->base = v.data;
    } else if (!s->error && !sending && dt_span_whole(b->pull))
        x->base = (char *)j->r->out[b->party] + b->pull->offset;
    if (x->base) { /* straight from and to where it belongs */
        atomic_store(&x->open, UINT32_MAX);
        return;
    }
    uint32_t n = (uint32_t)((x->bytes + x->chunk - 1) / x->chunk);
    x->slots = !sending && b->users > 1 ? n : RING < n ? RING : n; /* a ring has one user */
    l->ring = x->base = dt_span_memory_get(x->slots * x->chunk, &l->cap);
    atomic_store(&x->open, sending ? 0 : x->slots);
    if (!l->ring) stage_fail(s, dt_error_new(DT_E_NOMEM, 0, j->c->kind, "out of host memory"));
}

/* Lane number i of a list, to or from another machine. */
static void lane_begin(const job *j, stage *s, const dt_span_list *list, int i, bool sending) {
    dt_span_lane *l = &s->lane[s->n_lanes];
    const dt_span_block *b = &list->block[i];
    peer *p = peer_of(s, sending ? b->to : b->from);
    if (!sending) list->block[i].lane = -1;
    *l = (dt_span_lane){.block = b, .party = sending ? party_here(j->c, j->party, s->n_lanes % s->n_local) : b->party};
    bool all = !sending && b->users > 1; /* several may wait for it */
    l->stream = (dt_net_stream){.peer = p->node,
                                .receive = !sending,
                                .lane = (uint32_t)i,
                                .key = phase_key(j),
                                .bytes = b->bytes,
                                .chunk = (size_t)dt_span_chunk(b->pull, j->c->reduce) * dt_dtype_size(b->dtype),
                                .window = sending ? &p->sending : &p->receiving,
                                .event = all ? s->event : &s->event[dt_span_here(j->c, l->party)],
                                .n_events = all ? s->n_local : 1};
    lane_memory(j, s, l, sending);
    if (!l->stream.base) return; /* no memory at all: the other side waits until this node is given up */
    if (!sending) list->block[i].lane = s->n_lanes;
    s->n_lanes++;
    dt_net_stream_begin(&l->stream);
}

static dt_status their_lists(const job *j, stage *s) {
    lists *t = s->theirs;
    for (int i = 0; i < s->n_peers; i++) {
        int machine = s->large ? dt_span_machine(s->peer[i].node) : s->peer[i].node;
        bool known = machine == machine_here(s);
        for (int k = 0; k < i && !known; k++) known = s->large && dt_span_machine(s->peer[k].node) == machine;
        if (known) continue;
        DT_TRY(dt_span_blocks(j->c, j->party, j->phase, s->large, machine, &t->list[t->n++]));
    }
    return DT_OK;
}

static dt_status begin_lanes(const job *j, stage *s) {
    const lists *t = s->theirs;
    int n = lanes_among(&s->in, false);
    for (int i = 0; i < t->n; i++) n += lanes_among(&t->list[i], true);
    s->lane = dt_calloc((size_t)n + 1, sizeof *s->lane);
    if (!s->lane) return dt_fail(DT_E_NOMEM, "%s: out of host memory", j->c->kind);
    for (int i = 0; i < s->in.n; i++)
        if (s->in.block[i].to == dt_node_self) lane_begin(j, s, &s->in, i, false);
    for (int k = 0; k < t->n; k++)
        for (int i = 0; i < t->list[k].n; i++)
            if (t->list[k].block[i].from == dt_node_self) lane_begin(j, s, &t->list[k], i, true);
    return DT_OK;
}

/* Do nodes of this machine need what comes to another of them? All of them come to the same answer. */
static bool has_relays(const job *j, const stage *s) {
    if (!s->large) return false;
    for (int m = 0; m < dt_comm_group(j->c, j->party); m++) {
        int i = dt_comm_member(j->c, j->party, m), node = dt_span_node(j->c, i);
        if (dt_span_machine(node) != machine_here(s)) continue;
        for (int k = 0; k < j->c->party[i].n_pulls[j->phase]; k++) {
            const dt_pull *p = &j->c->party[i].pull[j->phase][k];
            bool there;
            if (!dt_span_whole(p) || !dt_view_numel(p->dst) || (dt_span_leaves(j->c, p, 0, true, machine_here(s), &there), !there)) continue;
            if (dt_span_find(j->c, &s->in, p, 0, 1, node)->to != node) return true;
        }
    }
    return false;
}

/* ---- a phase, by the party that speaks for its node ------------------------------------------------------------------------------------------------- */
static dt_status stage_fill(job *j, stage *s) {
    const dt_span_list *theirs = s->theirs->list;
    DT_TRY(dt_span_blocks(j->c, j->party, j->phase, s->large, machine_here(s), &s->in));
    DT_TRY(their_lists(j, s));
    int n = 0;
    uint32_t window = dt_span_window(j->c);
    for (int i = 0; i < s->n_peers; i++) {
        peer p = {.node = s->peer[i].node, .sending.most = window, .receiving.most = window};
        peer_sizes(j, s, &p, s->large ? NULL : &theirs[i]);
        if (j->phase == 1 && !s->large && !p.out_bytes && !p.in_bytes) continue; /* phase 0 has told the errors */
        s->peer[n] = p;
        peer_post(j, s, &s->peer[n++], s->large ? NULL : &theirs[i]);
    }
    s->n_peers = n;
    await_messages(j, s);
    s->relays = has_relays(j, s);
    return s->large ? begin_lanes(j, s) : DT_OK;
}

/* NULL: there is not even memory for that. The stage holds an error if a node's input failed, or a node is lost. */
static stage *stage_new(job *j, dt_error_t *error) {
    int node[dt_nodes], n = dt_span_other_nodes(j->c, j->party, node);
    uint32_t local = (uint32_t)dt_span_parties(j->c, j->party, dt_node_self);
    stage *s = dt_calloc(1, sizeof *s + sizeof *s->peer * (size_t)n);
    lists *theirs = dt_calloc(1, sizeof *theirs + sizeof(dt_span_list) * (size_t)n);
    _Atomic uint32_t *event = dt_calloc(local, sizeof *event);
    if (!s || !theirs || !event) {
        dt_free(s);
        dt_free(theirs);
        dt_free((void *)event);
        return NULL;
    }
    s->large = is_large(j->c);
    s->n_peers = n;
    s->n_local = (int)local;
    s->event = event;
    s->theirs = theirs;
    if (error) s->error = dt_error_ref(error);
    for (int i = 0; i < n; i++) s->peer[i].node = node[i];
    dt_status bad = stage_fill(j, s);
    if (bad) stage_fail(s, dt_error_new(bad, 0, j->c->kind, dt_error_message()));
    return s;
}

static void stage_free(stage *s) {
    if (!s) return;
    for (int i = 0; i < s->n_lanes; i++) {
        dt_status over = dt_net_stream_wait(&s->lane[i].stream); /* told to its parties already */
        (void)over;
        dt_span_memory_put(s->lane[i].ring, s->lane[i].cap);
    }
    for (int i = 0; i < s->n_peers; i++) {
        dt_span_memory_put(s->peer[i].in, s->peer[i].in_cap);
        dt_span_memory_put(s->peer[i].out, s->peer[i].out_cap);
    }
    dt_span_list_free(&s->in);
    for (int i = 0; i < s->theirs->n; i++) dt_span_list_free(&s->theirs->list[i]);
    dt_free(s->theirs);
    dt_free(s->lane);
    dt_free((void *)s->event);
    dt_error_unref(s->error);
    dt_free(s);
}

/* ---- a party ----------------------------------------------------------------------------------------------------------------------------------- */
typedef struct duty { /* what it has to form: its pulls, and chunks for other machines */
    int n;
    dt_span_work *work;
    dt_error_t *error; /* made here */
} duty;

/* A block that comes from another machine, as an operand. */
static dt_status block_operand(const job *j, stage *s, const dt_pull *p, const dt_span_block *b, dt_span_operand *o) {
    *o = (dt_span_operand){.view = *p->dst, .leaves = b->leaves};
    dt_view_set_contiguous(&o->view);
    o->view.dtype = b->dtype;
    if (!s->large)
        o->view.data = peer_of(s, b->from)->in + sizeof(dt_span_head) + b->at;
    else if (b->to != dt_node_self) {
        o->foreign = true;
        o->node = b->to;
        o->address = address_there(j->c, peer_of(s, b->to), b->party, true) + (uint64_t)b->pull->offset;
    } else if (b->lane >= 0)
        o->lane = &s->lane[b->lane];
    else
        return dt_fail(DT_E_NOMEM, "%s: out of host memory", j->c->kind);
    return DT_OK;
}

static dt_status pull_work(const job *j, stage *s, const dt_pull *p, dt_span_work *w) {
    *w = (dt_span_work){.dst = *p->dst, .op = j->c->reduce, .chunk = dt_span_chunk(p, j->c->reduce)};
    w->dst.data = (char *)j->r->out[j->party] + p->offset;
    w->op_list = dt_malloc(sizeof *w->op_list * (size_t)(p->n_src + 1));
    if (!w->op_list) return dt_fail(DT_E_NOMEM, "%s: out of host memory", j->c->kind);
    for (int k = 0, n; k < p->n_src && dt_view_numel(p->dst); k += n) {
        bool there;
        n = dt_span_leaves(j->c, p, k, s->large, machine_here(s), &there);
        dt_span_operand *o = &w->op_list[w->n_op];
        if (there) {
            const dt_span_block *b = dt_span_find(j->c, &s->in, p, k, n, dt_node_self);
            DT_TRY(block_operand(j, s, p, b, o));
            w->late |= o->foreign;
        } else
            *o = source_operand(j, s, p, k);
        w->n_op++;
    }
    return DT_OK;
}

static dt_status take_up(const job *j, stage *s, duty *d) {
    const dt_party *me = &j->c->party[j->party];
    d->work = dt_calloc((size_t)(me->n_pulls[j->phase] + s->n_lanes + 1), sizeof *d->work);
    if (!d->work) return dt_fail(DT_E_NOMEM, "%s: out of host memory", j->c->kind);
    for (int i = 0; i < s->n_lanes; i++) { /* first what others wait for */
        dt_span_lane *l = &s->lane[i];
        if (l->stream.receive || l->party != j->party || !l->ring) continue;
        dt_span_work *w = &d->work[d->n++];
        DT_TRY(block_work(j, s, l->block, w));
        w->into = l;
        dt_span_choose(w);
    }
    for (int k = 0; k < me->n_pulls[j->phase]; k++) {
        const dt_pull *p = &me->pull[j->phase][k];
        if (j->phase && p->src[0].party == j->party) continue; /* its own chunk, in a list that all share */
        dt_span_work *w = &d->work[d->n++];
        DT_TRY(pull_work(j, s, p, w));
        dt_span_choose(w);
    }
    return DT_OK;
}

static void fail_duty(job *j, duty *d, dt_status bad) {
    if (!d->error) d->error = dt_error_new(bad, 0, j->c->kind, dt_error_message());
    j->tools.idle = true;
}

/* One chunk. */
static void do_step(job *j, duty *d, dt_span_work *w) {
    for (int k = 0; k < w->n_op && !j->tools.idle; k++)
        if (w->op_list[k].lane && atomic_load_explicit(&w->op_list[k].lane->stream.failed, memory_order_acquire))
            fail_duty(j, d, dt_net_stream_wait(&w->op_list[k].lane->stream));
    dt_status bad = w->next == 0 ? dt_span_prepare(&j->tools, w) : DT_OK;
    if (bad) fail_duty(j, d, bad);
    bad = dt_span_step(&j->tools, w);
    if (bad) fail_duty(j, d, bad);
    if (w->next == w->n) dt_span_room_free(w);
}

/* Whatever can be done, until all is. */
static void work_off(job *j, stage *s, duty *d, bool late) {
    _Atomic uint32_t *event = &s->event[dt_span_here(j->c, j->party)];
    for (;;) {
        uint32_t seen = atomic_load_explicit(event, memory_order_acquire);
        bool moved = false, left = false;
        for (int i = 0; i < d->n; i++) {
            dt_span_work *w = &d->work[i];
            if (w->late != late || w->next >= w->n) continue;
            left = true;
            if (!dt_span_ready(w)) continue;
            moved = true;
            do_step(j, d, w);
        }
        if (!left) return;
        if (!moved) dt_futex_wait(event, seen, -1);
    }
}

static void duty_free(duty *d) {
    for (int i = 0; i < d->n; i++) dt_span_work_free(&d->work[i]);
    dt_free(d->work);
}

bool dt_span_leads(const dt_coll *c, int party, uint32_t *n) {
    *n = (uint32_t)dt_span_parties(c, party, dt_node_self);
    return dt_span_here(c, party) == 0;
}

dt_error_t *dt_span_local_error(const dt_coll *c, int party, const dt_rendezvous *r) {
    for (int i = 0; i < dt_comm_group(c, party); i++) {
        int m = dt_comm_member(c, party, i);
        if (dt_span_node(c, m) == dt_node_self && r->error[m]) return r->error[m];
    }
    return NULL;
}

/* One party's part of a phase. Returns an error that was made here, or NULL. */
static dt_error_t *party_phase(job *j, stage *s, dt_error_t *error, bool leads, uint32_t n) {
    duty d = {0};
    _Atomic uint32_t *meet = dt_comm_arrived(j->c, j->party, j->r, 6 + 2 * j->phase);
    j->tools.idle = error != NULL;
    dt_status bad = take_up(j, s, &d);
    if (bad) fail_duty(j, &d, bad);
    work_off(j, s, &d, false);
    if (s->relays) {
        dt_comm_meet(&meet[0], n);
        if (leads) word_around(j, s, RELAYED);
        dt_comm_meet(&meet[1], n);
        work_off(j, s, &d, true);
    }
    duty_free(&d);
    return d.error;
}

static dt_error_t *span_run(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, void *out, dt_error_t *error) {
    job j = {c, r, {b, team, c->kind, false}, 0, party};
    uint32_t n;
    bool leads = dt_span_leads(c, party, &n);
    if ((int)n == dt_comm_group(c, party)) return dt_transport_thread.run(c, party, r, b, team, in, out, error);
    _Atomic uint32_t *meet = dt_comm_arrived(c, party, r, 0);
    void **staging = dt_span_staging(c, party, r);
    r->in[party] = in;
    r->out[party] = out;
    r->error[party] = error;
    dt_comm_meet(&meet[0], n);
    dt_error_t *mine = NULL; /* made here; the others keep theirs */
    error = dt_span_local_error(c, party, r);
    for (j.phase = 0; j.phase <= c->two_phase; j.phase++) {
        if (j.phase) error = error ? error : dt_span_local_error(c, party, r);
        if (leads) staging[j.phase] = stage_new(&j, error);
        dt_comm_meet(&meet[1 + 2 * j.phase], n);
        stage *s = staging[j.phase];
        if (!error && s) error = s->error;
        dt_error_t *bad = s ? party_phase(&j, s, error, leads, n) : dt_error_new(DT_E_NOMEM, 0, c->kind, "out of host memory");
        if (bad && !error) mine = error = bad;
        if (bad && bad != mine) dt_error_unref(bad);
        if (mine) r->error[party] = mine; /* the next phase's message tells it to the other nodes */
        if (!c->two_phase || j.phase == 1) break;
        dt_comm_meet(&meet[2], n);
    }
    if (error && error != mine) dt_error_ref(error); /* before the last meeting: afterwards its owner may let go */
    dt_comm_meet(&meet[4], n);
    for (j.phase = 0; leads && j.phase < 2; j.phase++) {
        if (staging[j.phase]) word_around(&j, staging[j.phase], READ);
        stage_free(staging[j.phase]);
    }
    dt_comm_meet(&meet[5], n);
    return error;
}

const dt_transport dt_transport_span = {"span", span_run, dt_span_exchange, NULL};
