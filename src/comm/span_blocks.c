/* What goes from machine to machine in a collective: the list of blocks that a machine needs. See span.h.
 *
 * A block is a sum over sources that lie on one machine, formed there, for one pull here. Only sums that are part of the order which plan/backend.h
 * fixes may be formed elsewhere: 2^h neighbours that begin at a multiple of 2^h. So a machine with 2^h devices sends one block, and the result has the bits of one
 * process whatever lies where; sources in unlucky places travel as more blocks. What several pulls of a machine need alike travels once.
 *
 * Every node walks the parties in the same order, so all come to the same lists; nothing about them is sent. Pure but for the table of machines. */
#include <pthread.h>

#include "base/arena.h"
#include "comm/span.h"

static int machine_of[DT_NET_RANKS];
static void find_machines(void) {
    bool shared = dt_net_shares(dt_node_self);
    for (int r = 0; r < dt_nodes && r < DT_NET_RANKS; r++) {
        int first = r;
        for (int k = 0; shared && k < r && first == r; k++)
            if (!strcmp(dt_net_host(k), dt_net_host(r))) first = machine_of[k];
        machine_of[r] = first;
    }
}

int dt_span_machine(int node) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_machines);
    return machine_of[node];
}

static int place(const dt_coll *c, int party, bool machines) { return machines ? dt_span_machine(dt_span_node(c, party)) : dt_span_node(c, party); }

int dt_span_leaves(const dt_coll *c, const dt_pull *p, int k, bool machines, int machine, bool *there) {
    int from = place(c, p->src[k].party, machines), n = 1;
    *there = from != machine;
    while (*there && (k & (2 * n - 1)) == 0 && k + 2 * n <= p->n_src) {
        for (int i = k + n; i < k + 2 * n; i++)
            if (place(c, p->src[i].party, machines) != from) return n;
        n *= 2;
    }
    return n;
}

bool dt_span_whole(const dt_pull *p) { return p->n_src == 1 && dt_view_contiguous(p->dst); }

static bool same_view(const dt_view *a, const dt_view *b) {
    return a == b || (a->dtype == b->dtype && a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->ndim) &&
                      !memcmp(a->stride, b->stride, sizeof(int64_t) * (size_t)a->ndim));
}

static bool same_sources(const dt_pull *p, const dt_pull *q, int first, int q_first, int leaves) {
    for (int k = 0; k < leaves; k++) {
        const dt_pull_src *x = &p->src[first + k], *y = &q->src[q_first + k];
        if (x->party != y->party || x->from_out != y->from_out || dt_pull_offset(p, first + k) != dt_pull_offset(q, q_first + k) ||
            !same_view(dt_pull_view(p, first + k), dt_pull_view(q, q_first + k)))
            return false;
    }
    return true;
}

dt_span_block *dt_span_find(const dt_coll *c, const dt_span_list *l, const dt_pull *p, int first, int leaves, int node) {
    (void)c;
    for (int i = 0; i < l->n; i++) {
        dt_span_block *b = &l->block[i];
        if (b->leaves == leaves && (b->to == node || (dt_span_whole(b->pull) && dt_span_whole(p))) && same_sources(p, b->pull, first, b->first, leaves))
            return b;
    }
    return NULL;
}

/* Which of the nodes that hold the sources forms the sum: they take turns. */
static int maker(const dt_coll *c, const dt_pull *p, int first, int leaves, int turn) {
    int distinct = 0;
    for (int pass = 0, want = 0; pass < 2; pass++, want = turn % distinct, distinct = pass ? 0 : distinct)
        for (int k = 0; k < leaves; k++) {
            int node = dt_span_node(c, p->src[first + k].party), before = 0;
            while (before < k && dt_span_node(c, p->src[first + before].party) != node) before++;
            if (before < k) continue;
            if (pass && distinct == want) return node;
            distinct++;
        }
    return dt_span_node(c, p->src[first].party);
}

static dt_status add(const dt_coll *c, dt_span_list *l, int party, const dt_pull *p, int first, int leaves) {
    int node = dt_span_node(c, party);
    dt_span_block *b = dt_span_find(c, l, p, first, leaves, node);
    if (b) {
        b->users++;
        return DT_OK;
    }
    if (l->n == l->cap) {
        int cap = l->cap ? l->cap * 2 : 16;
        b = dt_realloc(l->block, sizeof *b * (size_t)cap);
        if (!b) return dt_fail(DT_E_NOMEM, "%s: out of host memory", c->kind);
        l->block = b;
        l->cap = cap;
    }
    dt_dtype t = leaves > 1 ? dt_reduce_partial(p->dst->dtype, c->reduce) : p->dst->dtype;
    int from = maker(c, p, first, leaves, party); /* evenly: parties ask for as much as each other */
    size_t bytes = (size_t)dt_view_numel(p->dst) * dt_dtype_size(t);
    l->block[l->n++] = (dt_span_block){p, first, leaves, 1, party, node, from, t, bytes, l->total[from], -1};
    l->total[from] += (bytes + DT_SPAN_ALIGN - 1) & ~(size_t)(DT_SPAN_ALIGN - 1);
    return DT_OK;
}

dt_status dt_span_blocks(const dt_coll *c, int party, int phase, bool machines, int machine, dt_span_list *out) {
    *out = (dt_span_list){.total = dt_calloc((size_t)dt_nodes, sizeof *out->total)};
    if (!out->total) return dt_fail(DT_E_NOMEM, "%s: out of host memory", c->kind);
    for (int m = 0; m < dt_comm_group(c, party); m++) {
        int i = dt_comm_member(c, party, m);
        if (place(c, i, machines) != machine) continue;
        for (int k = 0; k < c->party[i].n_pulls[phase]; k++) {
            const dt_pull *p = &c->party[i].pull[phase][k];
            bool there;
            if (!dt_view_numel(p->dst)) continue;
            for (int s = 0, n; s < p->n_src; s += n) {
                n = dt_span_leaves(c, p, s, machines, machine, &there);
                if (there) DT_TRY(add(c, out, i, p, s, n));
            }
        }
    }
    return DT_OK;
}

void dt_span_list_free(dt_span_list *l) {
    dt_free(l->block);
    dt_free(l->total);
    *l = (dt_span_list){0};
}
