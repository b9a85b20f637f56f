/* Exchanges of rows between processes. Who reads which rows of whom follows from the counts, which all parties of a group have (exchange.c), so nothing is
 * asked. See span.h.
 *
 * The first local party of a group speaks for its node: it tells every other node whether an input failed, how many bytes go either way, which must agree, and
 * where the rows of its parties lie. Then each party works for itself. What it can reach it reads: of this process, or of one whose memory can be
 * read. To and from the others rows go in chunks, which their receiver grants (net.h: streams), a lane for each pair of parties:
 *
 *     runs of rows here ──pack──> ring of chunks ── under way ──> ring of chunks ──spread──> runs of rows there
 *
 * A side where the rows of a pair are one run has no ring: they leave from where they are, or arrive where they belong. To the experts that is the sender's
 * side, on the way back the receiver's. A party does whatever can be done, a chunk of a lane or else a block that it reaches, and sleeps only when nothing can be
 * done; so no order of lanes can deadlock. A lane without rows does not exist, which both sides know.
 *
 * Two nodes exchange rows when neither has told the other of an error, whatever they hear of third ones: both know this.
 *
 * Threads: the parties' worker threads. */
#include "base/arena.h"
#include "comm/span.h"

enum { RING = 4, RINGS = 32 /* chunks in all lanes of a party together, if one each is not more */, AT_ONCE = 64 };

typedef struct run { /* of rows, in bytes of the party's own buffer */
    int64_t at, bytes;
} run;

typedef struct lane { /* to or from one party of another node */
    dt_net_stream stream;
    run *run;
    size_t n, cap;
    size_t at; /* the next chunk begins with byte `in` of run `at` */
    int64_t in;
    uint32_t next; /* chunk to be packed or spread */
    char *ring;
    size_t ring_cap;
} lane;

typedef struct share { /* one party's part, known to the parties of its node when they have met */
    const dt_coll *c;
    int party;
    const dt_backend *b;
    dt_team *team;
    char *in, *out;
    lane *lane;               /* (2, groups): from the party at each position, to it */
    dt_exchange_block *block; /* that can be read, in the order of its own buffer */
    size_t n, cap, next;
    _Atomic uint32_t event; /* something happened to a lane */
    bool no_memory;
    dt_error_t *error; /* made here */
} share;

typedef struct message { /* to another node; then the addresses of its parties' rows */
    dt_span_head h;
    uint64_t give, take;
} message;

typedef struct rows_peer {
    int node;
    bool open; /* neither side has failed */
    message *out, *in;
    dt_net_req send, receive;
    dt_net_window sending, receiving;
} rows_peer;

typedef struct rows_stage { /* what the parties of a node share */
    dt_error_t *error;
    int n;
    rows_peer peer[];
} rows_stage;

static const dt_exchange_party *seat(const share *s) { return &s->c->exchange->party[s->party]; }
static lane *lane_of(const share *s, int at, bool sending) { return &s->lane[at + (sending ? s->c->exchange->groups : 0)]; }
static uint64_t *addresses(message *m) { return (uint64_t *)(m + 1); }

static void keep_error(dt_error_t **to, dt_error_t *e) { /* takes the reference; the first one stays */
    if (*to)
        dt_error_unref(e);
    else
        *to = e;
}

/* ---- what goes where ---------------------------------------------------------------------------------------------------------------------------- */
static bool grow(void **list, size_t n, size_t *cap, size_t each) {
    if (n < *cap) return true;
    size_t most = *cap ? *cap * 2 : 8;
    void *p = dt_realloc(*list, each * most);
    if (!p) return false;
    *list = p;
    *cap = most;
    return true;
}

static void add_run(share *s, lane *l, int64_t at, int64_t bytes) {
    l->stream.bytes += (size_t)bytes;
    if (l->n && l->run[l->n - 1].at + l->run[l->n - 1].bytes == at) {
        l->run[l->n - 1].bytes += bytes;
        return;
    }
    void *list = l->run;
    if (!grow(&list, l->n, &l->cap, sizeof *l->run)) s->no_memory = true;
    l->run = list;
    if (!s->no_memory) l->run[l->n++] = (run){at, bytes};
}

static void take_block(void *ctx, const dt_exchange_block *k) {
    share *s = ctx;
    int node = dt_span_node(s->c, k->peer);
    if (node != dt_node_self && !dt_net_shares(node)) {
        add_run(s, lane_of(s, s->c->exchange->party[k->peer].at, false), k->to, k->bytes);
        return;
    }
    void *list = s->block;
    if (!grow(&list, s->n, &s->cap, sizeof *s->block)) s->no_memory = true;
    s->block = list;
    if (!s->no_memory) s->block[s->n++] = *k;
}

typedef struct giving {
    share *s;
    lane *l;
} giving;
static void give_block(void *ctx, const dt_exchange_block *k) {
    giving *g = ctx;
    add_run(g->s, g->l, k->from, k->bytes);
}

static dt_status share_find(share *s, const int64_t *counts) {
    const dt_exchange *x = s->c->exchange;
    s->lane = dt_calloc(2 * (size_t)x->groups, sizeof *s->lane);
    if (!s->lane) return dt_fail(DT_E_NOMEM, "%s: out of host memory", s->c->kind);
    bool fits = dt_exchange_walk(x, s->party, counts, take_block, s);
    for (int at = 0; at < x->groups && fits; at++) {
        int node = dt_span_node(s->c, seat(s)->peer[at]);
        giving g = {s, lane_of(s, at, true)};
        if (node != dt_node_self && !dt_net_shares(node)) fits = dt_exchange_given(x, s->party, at, counts, give_block, &g);
    }
    if (s->no_memory) return dt_fail(DT_E_NOMEM, "%s: out of host memory", s->c->kind);
    return fits ? DT_OK : dt_fail(DT_E_INTERNAL, "exchange: the counts are of more rows than there is room for");
}

static void share_free(share *s) {
    for (int i = 0; s->lane && i < 2 * s->c->exchange->groups; i++) {
        dt_span_memory_put(s->lane[i].ring, s->lane[i].ring_cap);
        dt_free(s->lane[i].run);
    }
    dt_free(s->lane);
    dt_free(s->block);
    dt_error_unref(s->error);
}

/* ---- nodes meet --------------------------------------------------------------------------------------------------------------------------------- */
/* Bytes of the lanes between this node's parties and p's, and the addresses of ours. */
static void fill_message(const share *s, const dt_rendezvous *r, rows_peer *p) {
    const dt_exchange *x = s->c->exchange;
    uint64_t *to = addresses(p->out);
    for (int k = 0; k < dt_comm_group(s->c, s->party); k++) {
        int m = dt_comm_member(s->c, s->party, k);
        if (dt_span_node(s->c, m) != dt_node_self) continue;
        const share *mine = r->out[m];
        *to++ = (uint64_t)(uintptr_t)mine->in;
        for (int at = 0; at < x->groups && mine->lane; at++) {
            if (dt_span_node(s->c, x->party[m].peer[at]) != p->node) continue;
            p->out->give += lane_of(mine, at, true)->stream.bytes;
            p->out->take += lane_of(mine, at, false)->stream.bytes;
        }
    }
}

static void send_message(const share *s, const dt_rendezvous *r, rows_stage *g, rows_peer *p) {
    size_t out = sizeof(message) + sizeof(uint64_t) * (size_t)dt_span_parties(s->c, s->party, dt_node_self);
    size_t in = sizeof(message) + sizeof(uint64_t) * (size_t)dt_span_parties(s->c, s->party, p->node);
    uint64_t key = dt_span_key(s->c, s->party, r);
    p->out = dt_calloc(1, out);
    p->in = dt_calloc(1, in);
    if (p->in) dt_net_recv_bulk(&p->receive, p->node, key, p->in, in);
    if (!p->out) return;
    fill_message(s, r, p);
    dt_span_head_write((char *)&p->out->h, g->error);
    dt_net_send_bulk(&p->send, p->node, key, p->out, out);
}

/* After the wait for its message: may rows go to and from p? */
static void read_message(const share *s, rows_stage *g, rows_peer *p, bool failed) {
    const char *kind = s->c->kind;
    dt_status in = p->in ? dt_net_wait(&p->receive) : dt_fail(DT_E_NOMEM, "%s: out of host memory", kind);
    dt_error_t *e = in ? dt_error_new(in, 0, kind, dt_error_message()) : dt_span_head_read((char *)&p->in->h);
    dt_status out = p->out ? dt_net_wait(&p->send) : dt_fail(DT_E_NOMEM, "%s: out of host memory", kind);
    if (!e && out) e = dt_error_new(out, 0, kind, dt_error_message());
    if (!e && !failed && (p->in->give != p->out->take || p->in->take != p->out->give))
        e = dt_error_new(DT_E_INTERNAL, 0, kind, "two nodes disagree on how many rows go between them");
    p->open = !e && !failed;
    if (e) keep_error(&g->error, e);
}

/* NULL: there is not even memory for that. */
static rows_stage *stage_new(const share *s, const dt_rendezvous *r, dt_error_t *error) {
    int node[dt_nodes], n = dt_span_other_nodes(s->c, s->party, node);
    rows_stage *g = dt_calloc(1, sizeof *g + sizeof *g->peer * (size_t)n);
    if (!g) return NULL;
    uint32_t window = dt_span_window(s->c);
    g->n = n;
    if (error) g->error = dt_error_ref(error);
    for (int i = 0; i < n; i++) {
        g->peer[i] = (rows_peer){.node = node[i], .sending.most = window, .receiving.most = window};
        send_message(s, r, g, &g->peer[i]);
    }
    for (int i = 0; i < n; i++) read_message(s, g, &g->peer[i], error != NULL);
    return g;
}

/* When all parties here are through: nobody reads this node's memory any more. A lost node answers no more. */
static void stage_end(const share *s, const dt_rendezvous *r, rows_stage *g) {
    uint8_t word[2] = {1, 0};
    uint64_t key = dt_span_key(s->c, s->party, r) | DT_SPAN_READ;
    for (int i = 0; g && i < g->n; i++) {
        rows_peer *p = &g->peer[i];
        if (!p->open || !dt_net_shares(p->node)) continue;
        dt_net_recv_bulk(&p->receive, p->node, key, &word[1], 1);
        dt_net_send_bulk(&p->send, p->node, key, &word[0], 1);
        dt_status a = dt_net_wait(&p->receive), b = dt_net_wait(&p->send);
        (void)a, (void)b;
    }
    for (int i = 0; g && i < g->n; i++) {
        dt_free(g->peer[i].in);
        dt_free(g->peer[i].out);
    }
    if (g) dt_error_unref(g->error);
    dt_free(g);
}

static rows_peer *peer_of(rows_stage *g, int node) {
    for (int i = 0; i < g->n; i++)
        if (g->peer[i].node == node) return &g->peer[i];
    return NULL;
}

/* ---- lanes ---------------------------------------------------------------------------------------------------------------------------------------- */
static void lane_begin(share *s, const dt_rendezvous *r, rows_stage *g, int at, bool sending, uint32_t slots) {
    lane *l = lane_of(s, at, sending);
    rows_peer *p = l->stream.bytes ? peer_of(g, dt_span_node(s->c, seat(s)->peer[at])) : NULL;
    if (!p || !p->open) {
        l->stream.bytes = 0;
        return;
    }
    int there = seat(s)->peer[at], to = sending ? there : s->party, from = sending ? s->party : there;
    size_t bytes = l->stream.bytes, whole = (bytes + DT_SPAN_ALIGN - 1) & ~(size_t)(DT_SPAN_ALIGN - 1);
    l->stream = (dt_net_stream){.peer = p->node,
                                .receive = !sending,
                                .lane = (uint32_t)to * (uint32_t)s->c->n + (uint32_t)from,
                                .key = dt_span_key(s->c, s->party, r),
                                .bytes = bytes,
                                .chunk = whole < dt_net_chunk() ? whole : dt_net_chunk(),
                                .window = sending ? &p->sending : &p->receiving,
                                .event = &s->event,
                                .n_events = 1};
    dt_net_stream *x = &l->stream;
    if (l->n == 1)
        x->base = (sending ? s->in : s->out) + l->run[0].at;
    else {
        uint32_t n = (uint32_t)((bytes + x->chunk - 1) / x->chunk);
        x->slots = slots < n ? slots : n;
        l->ring = x->base = dt_span_memory_get(x->slots * x->chunk, &l->ring_cap);
    }
    atomic_store(&x->open, l->n == 1 ? UINT32_MAX : sending ? 0 : x->slots);
    if (!x->base) { /* no memory at all: the other side waits until this node is given up */
        keep_error(&s->error, dt_error_new(DT_E_NOMEM, 0, s->c->kind, "out of host memory"));
        x->bytes = 0;
        return;
    }
    dt_net_stream_begin(x);
}

static void lanes_begin(share *s, const dt_rendezvous *r, rows_stage *g) {
    uint32_t rings = 0;
    int groups = s->c->exchange->groups;
    for (int i = 0; i < 2 * groups; i++) rings += s->lane[i].n > 1;
    uint32_t slots = rings * RING <= RINGS ? RING : rings < RINGS ? RINGS / rings : 1;
    for (int k = 1; k < groups; k++) { /* neighbours first, so that not all begin with the same */
        lane_begin(s, r, g, (seat(s)->at + k) % groups, true, slots);
        lane_begin(s, r, g, (seat(s)->at + groups - k) % groups, false, slots);
    }
}

static void copy_bytes(const share *s, char *to, const char *from, int64_t n) {
    dt_view dst = {.data = to, .dtype = DT_uint8, .ndim = 1, .shape = {n}, .stride = {1}}, src = dst;
    src.data = (void *)(uintptr_t)from;
    s->b->copy(&dst, &src, s->team);
}

/* Runs of rows to the next chunk, or from it. */
static void pass_chunk(share *s, lane *l) {
    dt_net_stream *x = &l->stream;
    char *ring = l->ring + (size_t)(l->next % x->slots) * x->chunk;
    int64_t left = (int64_t)(l->next + 1 < x->n ? x->chunk : x->bytes - (size_t)l->next * x->chunk);
    while (left) {
        const run *u = &l->run[l->at];
        int64_t n = u->bytes - l->in < left ? u->bytes - l->in : left;
        if (x->receive)
            copy_bytes(s, s->out + u->at + l->in, ring, n);
        else
            copy_bytes(s, ring, s->in + u->at + l->in, n);
        ring += n;
        left -= n;
        l->in += n;
        if (l->in < u->bytes) continue;
        l->at++;
        l->in = 0;
    }
}

static bool lane_step(share *s, lane *l) {
    dt_net_stream *x = &l->stream;
    uint32_t done = atomic_load_explicit(&x->done, memory_order_acquire);
    if (x->receive ? done <= l->next : l->next >= done + x->slots) return false;
    if (!atomic_load_explicit(&x->failed, memory_order_acquire)) pass_chunk(s, l); /* else there is nothing to spread, and nobody to pack for */
    l->next++;
    dt_net_stream_open(x, x->receive ? l->next + x->slots : l->next);
    return true;
}

/* ---- a party ------------------------------------------------------------------------------------------------------------------------------------- */
/* Blocks of another process, as many at once as follow each other here. */
static void read_blocks(share *s, rows_peer *p) {
    const dt_exchange_block *k = &s->block[s->next];
    dt_net_run run[AT_ONCE];
    int n = 0, before = 0;
    for (int i = 0; i < dt_comm_group(s->c, s->party) && dt_comm_member(s->c, s->party, i) < k->peer; i++)
        before += dt_span_node(s->c, dt_comm_member(s->c, s->party, i)) == p->node;
    int64_t to = k->to;
    for (const dt_exchange_block *q = k; n < AT_ONCE && q < s->block + s->n && q->peer == k->peer && q->to == to; q++) {
        run[n++] = (dt_net_run){addresses(p->in)[before] + (uint64_t)q->from, (size_t)q->bytes};
        to += q->bytes;
    }
    s->next += (size_t)n;
    dt_status bad = p->open ? dt_net_read(p->node, s->out + k->to, run, n) : DT_OK;
    if (bad) keep_error(&s->error, dt_error_new(bad, 0, s->c->kind, dt_error_message()));
}

static void reach_block(share *s, const dt_rendezvous *r, rows_stage *g) {
    const dt_exchange_block *k = &s->block[s->next];
    int node = dt_span_node(s->c, k->peer);
    if (node != dt_node_self) {
        read_blocks(s, peer_of(g, node));
        return;
    }
    copy_bytes(s, s->out + k->to, (const char *)r->in[k->peer] + k->from, k->bytes);
    s->next++;
}

static void work_off(share *s, const dt_rendezvous *r, rows_stage *g) {
    int n = 2 * s->c->exchange->groups;
    for (;;) {
        uint32_t seen = atomic_load_explicit(&s->event, memory_order_acquire);
        bool moved = false, left = false;
        for (int i = 0; i < n; i++) {
            lane *l = &s->lane[i];
            if (!l->ring || l->next >= l->stream.n) continue;
            left = true;
            moved |= lane_step(s, l);
        }
        if (!moved && s->next < s->n) {
            reach_block(s, r, g);
            moved = true;
        }
        if (!left && s->next >= s->n) break;
        if (!moved) dt_futex_wait(&s->event, seen, -1);
    }
    for (int i = 0; i < n; i++)
        if (s->lane[i].stream.bytes && dt_net_stream_wait(&s->lane[i].stream))
            keep_error(&s->error, dt_error_new(DT_E_NODE, 0, s->c->kind, dt_error_message()));
}

static void count_moved(const share *s, const dt_rendezvous *r) {
    const dt_exchange *x = s->c->exchange;
    uint64_t bytes[x->groups];
    for (int at = 0; at < x->groups; at++) bytes[at] = lane_of(s, at, false)->stream.bytes;
    for (size_t i = 0; i < s->n; i++) bytes[x->party[s->block[i].peer].at] += (uint64_t)s->block[i].bytes;
    for (int at = 0; at < x->groups; at++)
        if (bytes[at] && at != seat(s)->at) r->moved(r->moved_ctx, s->c->party[seat(s)->peer[at]].device, bytes[at]);
}

dt_error_t *dt_span_exchange(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, const int64_t *counts, void *out,
                             dt_error_t *error) {
    uint32_t n;
    bool leads = dt_span_leads(c, party, &n);
    if ((int)n == dt_comm_group(c, party)) return dt_transport_thread.exchange(c, party, r, b, team, in, counts, out, error);
    _Atomic uint32_t *meet = dt_comm_arrived(c, party, r, 0);
    void **staging = dt_span_staging(c, party, r);
    share s = {.c = c, .party = party, .b = b, .team = team, .in = in, .out = out};
    dt_status bad = error ? DT_OK : share_find(&s, counts);
    if (bad) s.error = dt_error_new(bad, 0, c->kind, dt_error_message());
    r->in[party] = in;
    r->out[party] = &s;
    r->error[party] = error ? error : s.error;
    dt_comm_meet(&meet[0], n);
    error = dt_span_local_error(c, party, r);
    if (leads) staging[0] = stage_new(&s, r, error);
    dt_comm_meet(&meet[1], n);
    rows_stage *g = staging[0];
    if (g && !error) { /* an error that others told does not keep this node from serving those who have not heard of it */
        lanes_begin(&s, r, g);
        work_off(&s, r, g);
        error = g->error;
    } else if (!g && !s.error)
        s.error = dt_error_new(DT_E_NOMEM, 0, c->kind, "out of host memory");
    if (!error) error = s.error;
    if (error)
        dt_error_ref(error); /* before the last meeting: afterwards its owner may let go */
    else if (r->moved)
        count_moved(&s, r);
    dt_comm_meet(&meet[2], n);
    if (leads) stage_end(&s, r, g);
    dt_comm_meet(&meet[3], n);
    share_free(&s);
    return error;
}
