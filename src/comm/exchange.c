/* Which rows go where in an exchange, from the counts. See plan/program.h and ops/expert.h.
 *
 * Pure: the same walk serves any transport. By sender a buffer holds its rows by expert; by receiver it holds, for each expert of the receiver, the
 * rows of sender 0, of sender 1, …; so whatever goes from one party to another lies in one run of rows for each expert on both sides. Runs that follow
 * each other on both sides are joined.
 *
 * Counts are the same on all parties of a group, so a sender knows, too, what is read of it (dt_exchange_given): rows in the order in which the reader walks. */
#include "comm/comm.h"
#include "tensor/layout.h"

typedef struct walk {
    const dt_exchange *x;
    const dt_exchange_party *me;
    const int64_t *counts; /* (groups, experts) of the shard at hand */
    int64_t shard;
    bool given; /* only one side counts */
    bool bad;
    void (*fn)(void *ctx, const dt_exchange_block *block);
    void *ctx;
    dt_exchange_block open; /* not handed over yet; bytes 0: none */
} walk;

static int64_t count(const walk *w, int64_t g, int64_t e) { return w->counts[g * w->x->n_experts + e]; }

static void flush(walk *w) {
    if (w->open.bytes) w->fn(w->ctx, &w->open);
    w->open.bytes = 0;
}

/* n rows from row `from` of peer g's buffer to row `to` of the own. */
static void rows(walk *w, int64_t g, int64_t from, int64_t to, int64_t n) {
    int64_t size = w->me->row_bytes;
    if (n < 0 || from < 0 || to < 0 || n > w->x->rows_in - from || n > w->x->rows_out - to) { /* counts that no sender has */
        w->bad = true;
        return;
    }
    dt_exchange_block k = {w->me->peer[g], (w->shard * w->x->rows_in + from) * size, (w->shard * w->x->rows_out + to) * size, n * size};
    if (!k.bytes) return;
    bool follows = w->open.bytes && w->open.peer == k.peer && w->open.from + w->open.bytes == k.from;
    if (follows && (w->given || w->open.to + w->open.bytes == k.to)) {
        w->open.bytes += k.bytes;
        return;
    }
    flush(w);
    w->open = k;
}

/* Rows that sender g has before those of expert e. */
static int64_t sent_before(const walk *w, int64_t g, int64_t e) {
    int64_t n = 0;
    for (int64_t i = 0; i < e; i++) n += count(w, g, i);
    return n;
}

/* To the receivers: mine are the experts of my position. */
static int64_t receive(walk *w, bool dry) {
    int64_t lo, len, to = 0, before[w->x->groups]; /* rows that each sender has before the ones at hand */
    dt_layout_chunk(w->x->n_experts, w->x->groups, w->me->at, &lo, &len);
    for (int64_t g = 0; g < w->x->groups && !dry; g++) before[g] = sent_before(w, g, lo);
    for (int64_t e = lo; e < lo + len; e++)
        for (int64_t g = 0; g < w->x->groups; g++) {
            int64_t n = count(w, g, e);
            if (!dry) {
                rows(w, g, before[g], to, n);
                before[g] += n;
            }
            to += n;
        }
    return to;
}

/* Back to the senders: for each expert what its owner holds of mine. */
static int64_t give_back(walk *w, bool dry) {
    int64_t to = 0;
    for (int64_t owner = 0; owner < w->x->groups; owner++) {
        int64_t lo, len, held = 0; /* rows that the owner has before the ones at hand */
        dt_layout_chunk(w->x->n_experts, w->x->groups, owner, &lo, &len);
        for (int64_t e = lo; e < lo + len; e++)
            for (int64_t g = 0; g < w->x->groups; g++) {
                int64_t n = count(w, g, e);
                if (g == w->me->at) {
                    if (!dry) rows(w, owner, held, to, n);
                    to += n;
                }
                held += n;
            }
    }
    return to;
}

static bool is_bad(walk *w) {
    flush(w);
    return w->bad;
}

bool dt_exchange_walk(const dt_exchange *x, int party, const int64_t *counts, void (*fn)(void *ctx, const dt_exchange_block *block), void *ctx) {
    walk w = {.x = x, .me = &x->party[party], .fn = fn, .ctx = ctx};
    for (int dry = 1; dry >= 0; dry--)
        for (w.shard = 0; w.shard < w.me->shards; w.shard++) {
            w.counts = counts + w.shard * x->groups * x->n_experts;
            int64_t need = x->back ? give_back(&w, dry) : receive(&w, dry);
            if (need > x->rows_out) return false;
        }
    return !is_bad(&w);
}

/* What of mine goes to the one at position `to`. */
static void give(walk *w, int64_t to) {
    int64_t lo, len;
    dt_layout_chunk(w->x->n_experts, w->x->groups, w->x->back ? w->me->at : to, &lo, &len);
    int64_t held = w->x->back ? 0 : sent_before(w, w->me->at, lo);
    for (int64_t e = lo; e < lo + len; e++)
        for (int64_t g = w->x->back ? 0 : w->me->at; g < w->x->groups; g++) {
            int64_t n = count(w, g, e);
            if (!w->x->back || g == to) rows(w, to, held, 0, n);
            held += n;
            if (!w->x->back) break;
        }
}

bool dt_exchange_given(const dt_exchange *x, int party, int at, const int64_t *counts, void (*fn)(void *ctx, const dt_exchange_block *block), void *ctx) {
    walk w = {.x = x, .me = &x->party[party], .fn = fn, .ctx = ctx, .given = true};
    for (w.shard = 0; w.shard < w.me->shards; w.shard++) {
        w.counts = counts + w.shard * x->groups * x->n_experts;
        give(&w, at);
    }
    return !is_bad(&w);
}
