/* Rank 0's messages: the tree along which it tells many nodes the same, and the order in which a node takes them.
 *
 * A message along the tree carries the list of its targets, with the number that it has among rank 0's messages to each; neighbours with one number are one
 * entry, so that the list of all is short. Rank 0 cuts the list into as many parts as the tree has branches; the first target of a part gets it, and passes it
 * on to the parts of what follows. Small messages go by eight, since what counts is how many processes must be scheduled one after the other, large ones by
 * two, since rank 0 copies them for each. So a message may be overtaken by a later one that came straight or by another tree: a node keeps those that come
 * too early.
 *
 * Threads: dt_net_multicast and dt_tree_number are rank 0's, one thread at a time; the rest is the progress thread's. */
#include <pthread.h>
#include <string.h>

#include "base/arena.h"
#include "comm/progress.h"

enum { TREE_BYTES = 64 << 20, TREE_MIN = 6, SMALL = 16 << 10, SMALL_BRANCHES = 8 };

typedef struct target {
    int rank;
    uint64_t seq; /* of rank 0's messages to it */
} target;
typedef struct targets { /* as they are sent: `n` ranks from the first one on */
    int32_t first, n;
    uint64_t seq;
} targets;

typedef struct held { /* a message that came before its predecessor */
    struct held *next;
    uint64_t seq;
    size_t bytes;
    uint8_t data[];
} held;

static struct {
    uint64_t sent_to[DT_NET_RANKS]; /* rank 0: messages to each */
    pthread_mutex_t lock;
    int last[DT_NET_RANKS], n_last, branches; /* rank 0: whom the last message along a tree went to, in order; with `lock` */
    uint64_t expected;                        /* the number of rank 0's next message */
    held *held;                               /* later ones that came first */
} tree = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- rank 0 ---------------------------------------------------------------------------------------------------------------------------------------- */
uint64_t dt_tree_number(int to) { return tree.sent_to[to]++; }

/* To the first of n targets, with the list of all. False: out of host memory. */
static bool to_first(const target *t, size_t n, int branches, const void *data, size_t bytes, bool here) {
    targets *list = dt_malloc(sizeof *list * n);
    size_t m = 0;
    if (!list) return false;
    for (size_t i = 0; i < n; i++) {
        if (m && t[i].rank == list[m - 1].first + list[m - 1].n && t[i].seq == list[m - 1].seq)
            list[m - 1].n++;
        else
            list[m++] = (targets){t[i].rank, 1, t[i].seq};
    }
    bool sent = dt_progress_along_tree(t->rank, (uint32_t)branches, (uint32_t)m, list, sizeof *list * m, data, bytes, here);
    dt_free(list);
    return sent;
}

/* To the first ones of n targets' parts. */
static bool to_parts(const target *t, size_t n, int branches, const void *data, size_t bytes, bool here) {
    bool sent = true;
    for (int k = 0; k < branches; k++) {
        size_t from = dt_net_part(n, branches, k), to = dt_net_part(n, branches, k + 1);
        if (to > from) sent &= to_first(t + from, to - from, branches, data, bytes, here);
    }
    return sent;
}

dt_status dt_net_multicast(const int *to, int n, const void *data, size_t bytes) {
    if (n < TREE_MIN || bytes > TREE_BYTES || dt_mpi_tolerant(dt_progress_mpi())) { /* who is lost must not take others with it */
        for (int i = 0; i < n; i++) DT_TRY(dt_net_send(to[i], data, bytes));
        return DT_OK;
    }
    target *t = dt_malloc(sizeof *t * (size_t)n);
    if (!t) return dt_fail(DT_E_NOMEM, "a message to %d nodes: out of host memory", n);
    pthread_mutex_lock(&tree.lock);
    int branches = tree.branches = bytes <= SMALL ? SMALL_BRANCHES : 2;
    tree.n_last = n;
    for (int i = 0; i < n; i++) {
        t[i] = (target){to[i], dt_tree_number(to[i])};
        tree.last[i] = to[i];
    }
    pthread_mutex_unlock(&tree.lock);
    bool sent = to_parts(t, (size_t)n, branches, data, bytes, false);
    dt_free(t);
    dt_progress_count(n, bytes * (size_t)n);
    return sent ? DT_OK : dt_fail(DT_E_NOMEM, "a message to %d nodes: out of host memory", n);
}

int dt_net_below(const int *ranks, int n, int branches, int rank, int *below) {
    int lo = 0, n_below = 0;
    while (n > 0) { /* lo, n: what one process cuts into parts; descend into the one that has it */
        int k = 0, from = 0, to = 0;
        for (bool found = false; k < branches && !found; k++) {
            from = lo + (int)dt_net_part((size_t)n, branches, k);
            to = lo + (int)dt_net_part((size_t)n, branches, k + 1);
            for (int i = from; i < to; i++) found |= ranks[i] == rank;
            if (found) break;
        }
        if (k == branches) return 0;
        lo = from + 1;
        n = to - lo;
        if (ranks[from] != rank) continue;
        for (int i = lo; i < to; i++) below[n_below++] = ranks[i];
        break;
    }
    return n_below;
}

/* The nodes that the last message along the tree reached through `rank` may have missed it, and will miss whatever is said in order after it. */
int dt_tree_below(int rank, int *below) {
    pthread_mutex_lock(&tree.lock);
    int n = dt_net_below(tree.last, tree.n_last, tree.branches, rank, below);
    pthread_mutex_unlock(&tree.lock);
    return n;
}

/* ---- the others ------------------------------------------------------------------------------------------------------------------------------------ */
void dt_tree_deliver(uint64_t seq, const uint8_t *data, size_t bytes) {
    if (seq != tree.expected) {
        held *x = seq > tree.expected ? dt_malloc(sizeof *x + bytes) : NULL;
        if (!x) return;
        *x = (held){tree.held, seq, bytes};
        if (bytes) memcpy(x->data, data, bytes);
        tree.held = x;
        return;
    }
    tree.expected++;
    dt_progress_hand_over(0, data, bytes);
    for (held **p = &tree.held; *p;) {
        held *x = *p;
        if (x->seq != tree.expected) {
            p = &x->next;
            continue;
        }
        *p = x->next;
        tree.expected++;
        dt_progress_hand_over(0, x->data, x->bytes);
        dt_free(x);
        p = &tree.held; /* the next one may stand before it */
    }
}

/* The targets of a message; NULL: they are not legal, or out of host memory. */
static target *read_list(const uint8_t *message, size_t entries, size_t *n) {
    size_t most = (size_t)dt_progress_size();
    target *t = dt_malloc(sizeof *t * most);
    *n = 0;
    for (size_t i = 0; t && i < entries; i++) {
        targets x;
        memcpy(&x, message + sizeof x * i, sizeof x);
        if (x.first < 0 || x.n < 1 || (size_t)x.n > most - *n || (size_t)x.first + (size_t)x.n > most) {
            dt_free(t);
            return NULL;
        }
        for (int k = 0; k < x.n; k++) t[(*n)++] = (target){x.first + k, x.seq};
    }
    return t;
}

/* The first target is this process; what follows is cut into parts, whose first ones get the message next. */
void dt_tree_pass_on(uint64_t branches, size_t entries, uint64_t data_bytes, const uint8_t *message, size_t bytes) {
    size_t list = sizeof(targets) * entries, n;
    if (branches < 2 || branches > SMALL_BRANCHES || entries == 0 || entries > (size_t)dt_progress_size() || data_bytes > bytes || bytes - data_bytes != list)
        return;
    target *t = read_list(message, entries, &n);
    if (!t) return;
    if (t->rank == dt_progress_self()) {
        const uint8_t *data = message + list;
        bool sent = to_parts(t + 1, n - 1, (int)branches, data, data_bytes, true);
        if (sent) dt_tree_deliver(t->seq, data, data_bytes); /* without memory nobody below gets it: rank 0 will notice */
    }
    dt_free(t);
}
