/* Exchanges of rows between processes: who needs which rows of whom is known to the receivers only, so they ask first. See span.h and exchange.c.
 *
 * The first local party speaks for its node: it asks every other node for what the node's parties need, answers their questions, and receives; then each party fills its
 * own buffer.
 *
 * Threads: the parties' worker threads. */
#include "base/arena.h"
#include "comm/span.h"

typedef struct job {
    const dt_coll *c;
    dt_rendezvous *r;
    const dt_backend *b;
    dt_team *team;
} job;

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
    if (dt_span_node(a->c, k->peer) != a->node) return;
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
    dt_span_head h;
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
    if (w->peer < 0 || w->peer >= c->n || dt_span_node(c, (int)w->peer) != dt_node_self || w->from < 0 || w->bytes < 0) return false;
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
        if (dt_span_node(j->c, i) != dt_node_self) continue;
        p->start[i] = p->mine.bytes;
        if (!dt_exchange_walk(j->c->exchange, i, j->r->out[i], ask, &p->mine))
            rows_fail(s, dt_error_new(DT_E_INTERNAL, 0, "exchange", "more rows than the receiver has room for"));
    }
    if (p->mine.failed) rows_fail(s, dt_error_new(DT_E_NOMEM, 0, j->c->kind, "out of host memory"));
}

/* Three rounds: how much is asked for (and whether anything failed, which all nodes then know), what, and the rows. */
static rows_staging *rows_exchange(job *j, dt_error_t *error) {
    int node[j->c->n + 1], n = dt_span_other_nodes(j->c, node);
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
        dt_span_head_write((char *)&p->out.h, s->error);
        p->out.count = s->error ? 0 : p->mine.n;
        p->out.bytes = s->error ? 0 : p->mine.bytes;
        rows_swap(p, j->r->key, &p->out, sizeof p->out, &p->in, sizeof p->in);
    }
    rows_wait(s, j->c);
    for (int i = 0; i < n; i++) rows_fail(s, dt_span_head_read((char *)&s->peer[i].in.h));
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
    int node = dt_span_node(f->j->c, k->peer), i = 0;
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

dt_error_t *dt_span_exchange(const dt_coll *c, int party, dt_rendezvous *r, const dt_backend *b, dt_team *team, void *in, const int64_t *counts, void *out,
                             dt_error_t *error) {
    job j = {c, r, b, team};
    uint32_t n;
    bool leader = dt_span_leads(c, party, &n);
    r->in[party] = in;
    r->out[party] = (void *)(uintptr_t)counts;
    r->error[party] = error;
    dt_comm_meet(&r->arrived[0], n);
    error = dt_span_local_error(c, r);
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
