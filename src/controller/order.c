/* The order of work when the stream of calls goes over several meshes, as a pipeline's does. One mesh's programs never come here.
 *
 * The client's loop is sequential: forward of micro-batch 1 through all stages, its backward, then micro-batch 2. Run in that order, one stage would work
 * at a time. So the stream is cut where it changes meshes into *segments*, a window of them is kept, and they are dispatched in the order in which a
 * simulated machine would begin them: every device has a virtual clock, a segment can begin when those it reads from have ended and its devices are
 * free, and the earliest begins next, the older first among equals. Dispatching a segment commits it; workers run what they are given in order.
 *
 * That alone would give every stage forwards while it waits for its first backward, and hold the activations of all micro-batches. So:
 *   opener   a segment that another segment on its mesh reads from both directly and by way of other meshes: a forward, to whose saved values the
 *            gradient comes back (order_openers.c). It is recognised by its calls once the first such pair was seen since all was flushed.
 *   limit    as many openers of a mesh are open (their values alive) as there are meshes on that way, counting its own: p at the first stage, one at the
 *            last. It is what a stage needs to have work until the first gradient returns, and it is the memory of 1F1B.
 *   turn     a backward waits for the next opener on its mesh while the limit allows that one: a stage fills up, then goes backwards and forwards in turn.
 *            In whatever order they happen to be ready, two backwards would run in a row where a forward comes a little later, and all stages behind starve.
 *   stay     what has begun on a mesh goes on before anything else there, also where the rest of it is still being recorded.
 * Older first besides, and these make 1F1B of a plain loop.
 *
 * How long to wait for the future: a segment that begins without a gap on its devices is committed at once, since whatever comes later is younger and would
 * lose. So is a forward, or the first that comes to a mesh. Another that waits for other stages (a backward, the gradient of a tied weight) and begins after a gap
 * waits itself until a younger opener has been seen that could not fill the gap: it is held back by the limit or needs this very segment. What still waits is
 * forced by a read, by a full window, or when the client pauses and no worker has anything to do. The order is a function of the calls since the last flush and of
 * costs computed from shapes, except for the last of these: a flush forgets all, the clock begins at 0 again, and values from before are simply there.
 *
 * Activations made again (checkpointing) wait for nothing, but come behind the gradient's arrival in their stay, and are not dispatched before it: else all of
 * them would be made in the first gap.
 *
 * Correct for any order chosen: values are never changed, a segment is dispatched after those it reads from, so memory and keys of plans are as if it
 * had been recorded then. Workers follow one order, that of dispatch; every wait in a collective, for another device's memory or for its readers is for
 * something dispatched earlier: no deadlock.
 *
 * Plain calls (no mesh) between the stages' make segments of their own, beside the open one, so that a table of positions made on the first device does not cut a
 * stage's segment in two. Controller thread only. */
#include <math.h>
#include <string.h>

#include "controller/order_segments.h"
#include "controller/order_store.h"
#include "controller/round.h"
#include "passes/options.h"

/* The window holds as many micro-batches as there are stages, or their forwards cannot all be open: 16 stages of 8 layers, each cut into 15 segments and more. */
enum { WINDOW = SEGMENTS / 2, ABSORB_MAX = 64, NODES_PENDING = 1 << 21, QUIET_CALLS = 32, QUIET_STEPS = 3, MANY_CALLS = 32000 };

static uint32_t oldest = 1;                                     /* pending ones have ids in [oldest, next) */
static segment *open_main, *open_free, *open_side, *open_after; /* being recorded */
static const dt_mesh *stay_mesh;                                /* where the last call on a mesh was */
static uint32_t stay_run;                                       /* run of this stay's calls that depend on other meshes; 0 none yet */
static uint32_t stay_main;                                      /* the last closed segment of these; 0 none */
static uint32_t stay_before; /* run of the last stay's such calls: a gradient comes, something is done elsewhere, then it is used */
static struct {
    const dt_mesh *mesh;
    uint32_t run, id;
} last_away[64];                              /* by mesh: the last run of such calls */
static uint32_t can_run[SEGMENTS], n_can_run; /* closed, pending, and wait for no other segment: in the order of ids */
static uint32_t heads[SEGMENTS], n_heads;     /* closed and pending, the first of their stay, not beside it: in the order of ids */
#define latest_at(m) (&last_away[dt_hash_mix((m)->link.hash, 1) % 64])
static int nodes_pending;
static double base_time, latest; /* of the virtual clock, which begins anew at each flush: seconds before that; the last end since */
typedef struct mode {
    bool on, switched; /* switched: since the flush */
    uint64_t calls;    /* since the flush, or the last switch */
    uint32_t quiet;    /* how many flushes in a row ended so many calls on one mesh */
    const dt_mesh *last_mesh;
} mode;
static mode now, outside; /* outside: of what a simulation interrupts */

/* ---- the ring ---------------------------------------------------------------------------------------------------------------------------------- */
/* Where what segment id made is now; 0: it is known to be there. */
static uint32_t place_of(uint32_t id) {
    const segment *s = dt_segment_at(id);
    return !s || id < dt_the_window.settled ? 0 : s->into ? s->into : id;
}

static segment *segment_new(const dt_mesh *mesh, bool side, uint32_t run) {
    dt_graph *g = dt_order_graph_get();
    if (!g) return NULL;
    segment *s = &dt_the_ring[dt_the_window.next % SEGMENTS];
    uint32_t *dep = s->dep, cap = s->cap_dep;
    *s = (segment){.id = dt_the_window.next++, .mesh = mesh, .graph = g, .side = side, .kind = mesh->link.hash, .dep = dep, .cap_dep = cap};
    s->run = run ? run : s->id;
    if (side) return s;
    dt_the_engine.rolling = 0; /* cuts depend on the segment alone */
    dt_visit_note(s);
    return s;
}

static bool add_dep(segment *s, uint32_t id) {
    if (id == s->id) return true;
    for (uint32_t i = s->n_dep; i-- > 0;)
        if (s->dep[i] == id) return true;
    if (s->n_dep == s->cap_dep) {
        uint32_t cap = s->cap_dep ? s->cap_dep * 2 : 16, *d = dt_realloc(s->dep, cap * sizeof *d);
        if (!d) return false;
        s->dep = d;
        s->cap_dep = cap;
    }
    s->dep[s->n_dep++] = id;
    return true;
}

/* A closed segment waits for one of those it reads from, then for the next; at last it is ready. */
static void await(segment *s) {
    s->ready = 0;
    for (uint32_t i = 0; i < s->n_dep; i++) {
        segment *d = dt_segment_at(s->dep[i]);
        if (dt_segment_pending(d)) {
            s->next = d->waiting;
            d->waiting = s->id;
            return;
        }
        if (d) s->ready = fmax(s->ready, d->end);
    }
    s->listed = true;
    dt_ids_insert(can_run, &n_can_run, s->id);
}

static void wake_waiting(segment *s) {
    uint32_t id = s->waiting;
    s->waiting = 0;
    while (id) {
        segment *w = dt_segment_at(id);
        id = w->next;
        await(w);
    }
}

/* Does an opener hold values for a backward to come? Until the stream has shown its closer: if any of its values is alive. */
static bool holds(const segment *s) { return s->closer ? dt_segment_pending(dt_segment_at(s->closer)) : s->alive > 0; }

/* Dispatched segments that may, in the order of their ids. Which segment closes an opener may be learnt after its values are gone, but not long after: an old
 * one without a living value and without a closer that waits is taken out when it is met. */
enum { LEARNT_LATE = 4096 };
static uint32_t held[SEGMENTS], n_held;

static bool may_hold(const segment *s) { return s && (dt_the_window.next - s->id <= LEARNT_LATE || s->alive > 0 || holds(s)); }

static void hold(const segment *s) {
    if (s->side || s->cost <= 0 || !may_hold(s)) return;
    if (n_held == SEGMENTS) n_held--; /* cannot happen: they lie in a ring of as many */
    dt_ids_insert(held, &n_held, s->id);
}

/* Stays on the mesh that do. */
static uint32_t count_open(const dt_mesh *m) {
    uint32_t n = 0, run = 0, kept = 0;
    for (uint32_t i = 0; i < n_held; i++) {
        const segment *s = dt_segment_at(held[i]);
        if (!may_hold(s)) continue;
        held[kept++] = held[i];
        if (s->mesh != m || s->run == run || !dt_opener_limit(s->kind) || !holds(s)) continue;
        run = s->run;
        n++;
    }
    n_held = kept;
    return n;
}

enum { NOT_COUNTED = UINT32_MAX };
typedef struct opened { /* what is known of meshes met so far, while nothing is committed */
    const dt_mesh *mesh;
    double free;    /* mesh_free */
    uint32_t count; /* count_open */
} opened;
typedef struct opened_list {
    opened at[32], other;
    int n;
} opened_list;

static opened *known_of(const dt_mesh *m, opened_list *l) {
    int i = 0;
    while (i < l->n && l->at[i].mesh != m) i++;
    if (i < l->n) return &l->at[i];
    opened *o = i < (int)(sizeof l->at / sizeof *l->at) ? &l->at[l->n++] : &l->other;
    *o = (opened){m, dt_clock_mesh_free(m), NOT_COUNTED};
    return o;
}

static bool over_limit(const segment *s, opened *known) {
    uint32_t limit = s->run == s->id ? dt_opener_limit(s->kind) : 0; /* what has begun goes on */
    if (limit && known->count == NOT_COUNTED) known->count = count_open(s->mesh);
    return limit && known->count >= limit;
}

/* ---- committing ------------------------------------------------------------------------------------------------------------------------------------- */
static void log_commit(const segment *s, double begin, bool forced) {
    dt_order_entry e = {s->id,
                        s->run,
                        s->mesh->dev[0],
                        (uint32_t)s->mesh->n,
                        base_time + begin,
                        base_time + s->end,
                        count_open(s->mesh),
                        s->closing,
                        dt_opener_limit(s->kind) != 0,
                        s->side,
                        forced,
                        (uint32_t)s->graph->n};
    dt_order_log_add(&e);
    dt_round_commit(&(dt_order_commit){e});
}

static void commit(segment *s, double ready, bool forced) {
    double begin = s->side || s->cost <= 0 ? ready : fmax(ready, dt_clock_mesh_free(s->mesh));
    s->end = begin + s->cost;
    latest = fmax(latest, s->end);
    if (!s->side && s->cost > 0) {
        for (int i = 0; i < s->mesh->n; i++) dt_clock_busy(s->mesh->dev[i], s->end);
        dt_visit *v = dt_visit_of(s->mesh);
        if (v) v->run = s->run;
    }
    if (s->graph->n) log_commit(s, begin, forced);
    dt_graph *g = s->graph;
    nodes_pending -= g->n;
    s->graph = NULL;
    dt_engine_dispatch_graph(g);
    dt_order_graph_put(g);
    hold(s);
    dt_ids_remove(can_run, &n_can_run, s->id);
    dt_ids_remove(heads, &n_heads, s->id);
    wake_waiting(s);
    while (oldest < dt_the_window.next && !dt_segment_pending(dt_segment_at(oldest))) oldest++;
}

/* Does s, which is none, read what an opener saved? */
static bool reads_opener(const segment *s) {
    for (uint32_t i = 0; i < s->n_dep; i++) {
        const segment *d = dt_segment_at(s->dep[i]);
        if (d && !d->side && d->mesh == s->mesh && dt_opener_limit(d->kind)) return true;
    }
    return false;
}

/* Has the stream shown an opener, younger than s, that cannot fill the gap before s? Before it has shown any on this mesh: whatever else waits for other stages. */
static bool nothing_fills_gap(const segment *s) {
    for (uint32_t i = n_heads; i > 0 && heads[i - 1] > s->id; i--) {
        const segment *z = dt_segment_at(heads[i - 1]);
        if (z->mesh == s->mesh && !z->closing && z->cost > 0 && (dt_opener_limit(z->kind) || (z->arrives && !dt_visit_openers(z->mesh)))) return true;
    }
    return false;
}

/* Is s, activations made again, to come behind a segment that is not dispatched yet? *from: when that one has ended. */
static bool comes_later(const segment *s, double *from) {
    if (!s->behind || dt_opener_limit(s->kind)) return false;
    const segment *b = dt_segment_at(s->behind);
    if (!b || (!dt_segment_pending(b) && b->end <= *from) || !reads_opener(s)) return false;
    *from = fmax(*from, b->end);
    return dt_segment_pending(b);
}

/* Might an older stay on the mesh of s begin before `begin`? Not if it is known to be ready later only. */
static bool older_waits(const segment *s, double begin) {
    for (uint32_t i = 0; i < n_heads && heads[i] < s->id; i++) {
        const segment *z = dt_segment_at(heads[i]);
        if (z->mesh == s->mesh && z->cost > 0 && (!z->listed || z->ready < begin)) return true;
    }
    return false;
}

/* Of two that could begin together, s is the younger one. What has begun goes on: the next stage waits for its end. */
static bool goes_first(const segment *s, const segment *older) {
    const dt_visit *v = dt_visit_of(s->mesh);
    return s->mesh == older->mesh && v && s->run == v->run && older->run != s->run;
}

/* Is s a backward that comes after the next opener on its mesh? A stage fills up to its limit, then goes backwards and forwards in turn: what came in the order in
 * which it happens to be ready would go two backwards in a row where a forward comes a little later, and all stages behind would wait for that. */
static bool comes_after_opener(const segment *s, opened *known) {
    if (!s->closing || s->run != s->id) return false;
    for (uint32_t i = n_heads; i > 0 && heads[i - 1] > s->id; i--) {
        const segment *z = dt_segment_at(heads[i - 1]);
        uint32_t limit = z->mesh == s->mesh && !z->closing ? dt_opener_limit(z->kind) : 0;
        if (limit) return !over_limit(z, known);
    }
    return false;
}

/* Is s to wait for the rest of a stay on its mesh that has begun, and is being recorded? */
static bool stay_goes_on(const segment *s) {
    if (!stay_run || s->mesh != stay_mesh || s->run == stay_run) return false;
    const dt_visit *v = dt_visit_of(s->mesh);
    return v && v->run == stay_run;
}

/* Commits the segment that begins next; false if none may be committed yet. What would begin after a gap, and after one that is held back for its own, is held
 * back too where an older stay waits: that one may come of what is held back, and belong into the gap. */
static bool commit_next(bool force) {
    segment *first = NULL, *sure = NULL, *after_gap = NULL;
    double first_ready = 0, sure_begin = 0, sure_ready = 0, gap_begin = 0, gap_ready = 0, held_from = INFINITY;
    opened_list known;
    known.n = 0;
    for (uint32_t i = 0; i < n_can_run; i++) {
        segment *s = dt_segment_at(can_run[i]);
        double from = s->ready;
        if (!force && comes_later(s, &from)) continue;
        if (!first) first = s, first_ready = from;
        if (s->side || s->cost <= 0) { /* takes no time: as early as can be */
            commit(s, from, force);
            return true;
        }
        if (!force && stay_goes_on(s)) continue;
        opened *at = known_of(s->mesh, &known);
        if (!force && comes_after_opener(s, at)) continue;
        double begin = fmax(from, at->free);
        if (begin > at->free && !force) {
            if ((after_gap && begin >= gap_begin) || (begin > held_from && older_waits(s, begin)) || over_limit(s, at)) continue;
            bool backward = s->closing || (s->staged && !dt_opener_limit(s->kind) && dt_segment_again(s));
            if (backward && !nothing_fills_gap(s))
                held_from = begin;
            else
                after_gap = s, gap_begin = begin, gap_ready = from;
        } else if (!(sure && (begin > sure_begin || (begin == sure_begin && !goes_first(s, sure)))) && !over_limit(s, at))
            sure = s, sure_begin = begin, sure_ready = from;
    }
    if (after_gap && (gap_begin <= held_from || !older_waits(after_gap, gap_begin)) &&
        !(sure && (sure_begin < gap_begin || (sure_begin == gap_begin && sure->id < after_gap->id))))
        sure = after_gap, sure_ready = gap_ready;
    if (!sure && force) sure = first, sure_ready = first_ready;
    if (sure) commit(sure, sure_ready, force);
    return sure != NULL;
}

static bool full(void) { return nodes_pending > NODES_PENDING || dt_the_window.next - oldest > WINDOW; }

/* ---- what a replayed round has done already (controller/round.c) ------------------------------------------------------------------------------------ */
static struct {
    bool on;
    const dt_order_commit *const *due; /* in the order in which they were made */
    uint32_t n_due, base;              /* base: what their ids count from */
} ghosts;

/* Those that were made at this place of the stream, as far as their segments have ended. */
static void commit_ghosts(void) {
    uint32_t kept = 0;
    for (; kept < ghosts.n_due; kept++) {
        segment *s = dt_segment_at(ghosts.base + ghosts.due[kept]->entry.id);
        if (!dt_segment_pending(s) || s->graph->n) continue;
        uint32_t at = dt_ids_place(can_run, n_can_run, s->id);
        if (at == n_can_run || can_run[at] != s->id) break; /* it is open */
        commit(s, s->ready, false);
    }
    ghosts.due += kept;
    ghosts.n_due -= kept;
}

static void advance(void) {
    if (DT_UNLIKELY(ghosts.on)) {
        commit_ghosts();
        return;
    }
    while (commit_next(false)) {}
    while (full() && commit_next(true)) {}
}

/* ---- recording -------------------------------------------------------------------------------------------------------------------------------------- */
static void close_sides(void) {
    if (open_side) await(open_side);
    if (open_after) await(open_after);
    open_side = open_after = NULL;
}

static void close_one(segment **s) {
    segment *x = *s;
    *s = NULL;
    if (!x) return;
    close_sides(); /* x may read from them: what comes may read from x, so it goes elsewhere */
    dt_openers_find(x);
    if (dt_opener_limit(x->kind)) dt_opener_seen(x);
    if (x->run == x->id) dt_ids_insert(heads, &n_heads, x->id);
    await(x);
}

static void close_segments(void) {
    close_sides();
    close_one(&open_free);
    close_one(&open_main);
}

static bool reads(const dt_call *c, const uint32_t *from, const segment *s) {
    for (int k = 0; s && k < c->n_in; k++)
        if (from[k] == s->id) return true;
    return false;
}

/* Is what s makes part of a pipeline's work, for a reader on mesh m? Data and tables that lie on the whole mesh, of which a stage takes its part, are not. */
static bool from_stages(const segment *s, const dt_mesh *m) {
    if (s->side) return s->after;
    return s->mesh != m && (s->staged || !dt_mesh_encloses(s->mesh, m));
}

/* Did s bring a gradient to m in the stay before this one? */
static bool went_on(const segment *s, const dt_mesh *m) { return s && !s->side && s->mesh == m && s->run == stay_before && s->arrives; }

/* Does the call depend on what came from another mesh? */
static bool reads_away(const dt_call *c, const uint32_t *from) {
    for (int k = 0; k < c->n_in; k++) {
        const segment *s = dt_segment_at(from[k]);
        if (s && (from_stages(s, c->mesh) || (!s->side && s->mesh == c->mesh && s->run == stay_run) || went_on(s, c->mesh))) return true;
    }
    return false;
}

/* Moves the nodes of the open free segment behind those of main: one of main's reads them. */
static bool absorb(segment *main, segment *free) {
    dt_graph *from = free->graph, *to = main->graph;
    for (uint32_t i = 0; i < free->n_dep; i++)
        if (!add_dep(main, free->dep[i])) return false;
    for (int i = 0; i < from->n; i++) {
        const dt_gnode *n = &from->node[i];
        dt_gnode *m = dt_graph_add(to, n->call, n->site);
        if (!m) { /* the rest stays where it is */
            memmove(from->node, from->node + i, sizeof *n * (size_t)(from->n - i));
            from->n -= i;
            for (int q = 0; q < from->n; q++)
                for (int k = 0; k < from->node[q].call->n_out; k++) from->node[q].out[k]->node = q;
            return false;
        }
        m->rec = n->rec;
        memcpy(m->in, n->in, sizeof *n->in * n->call->n_in);
        memcpy(m->number, n->number, sizeof *n->number * n->call->n_in);
        memcpy(m->out, n->out, sizeof *n->out * n->call->n_out);
        for (int k = 0; k < n->call->n_out; k++) {
            m->out[k]->node = to->n - 1;
            m->out[k]->segment = main->id;
        }
    }
    free->into = main->id;
    main->kind = dt_hash_mix(main->kind, free->kind);
    main->staged |= free->staged;
    main->arrives |= free->arrives;
    main->cost += free->cost;
    main->alive += free->alive;
    main->n += free->n;
    dt_graph_clear(from);
    dt_order_graph_put(from);
    free->graph = NULL;
    free->alive = 0;
    wake_waiting(free);
    return true;
}

/* The open segment of a call on a mesh. What depends on other meshes and what does not are kept apart, since the client may go from one micro-batch's last
 * backward straight to the next one's first forward, on one mesh: the one waits for the pipeline, the other for nothing. */
static segment *place_on_mesh(const dt_call *c, const uint32_t *from) {
    if (stay_mesh != c->mesh) {
        close_segments();
        stay_run = stay_main = 0;
        advance();
        stay_mesh = c->mesh;
        stay_before = latest_at(c->mesh)->mesh == c->mesh ? latest_at(c->mesh)->run : 0;
        const segment *s = stay_before ? dt_segment_at(latest_at(c->mesh)->id) : NULL;
        if (dt_segment_pending(s) && s->arrives) stay_main = s->id;
    }
    if (!reads_away(c, from)) {
        if (!open_free && (open_free = segment_new(c->mesh, false, 0))) open_free->behind = stay_main;
        if (open_free && open_main && open_free->n > ABSORB_MAX) { /* too much to be a constant in passing */
            open_free->behind = stay_main = open_main->id;
            close_one(&open_main);
        }
        return open_free;
    }
    bool uses_free = reads(c, from, open_free);
    if (!open_main && !stay_run && stay_before)
        for (int k = 0; k < c->n_in && !stay_run; k++) {
            const segment *s = dt_segment_at(from[k]);
            if (went_on(s, c->mesh)) stay_run = stay_before; /* what it began goes on */
        }
    if (!open_main && (open_main = segment_new(c->mesh, false, stay_run))) {
        stay_run = open_main->run;
        latest_at(c->mesh)->mesh = c->mesh;
        latest_at(c->mesh)->run = stay_run;
        latest_at(c->mesh)->id = open_main->id;
    }
    if (open_main && uses_free) {
        if (open_free->n <= ABSORB_MAX && absorb(open_main, open_free))
            open_free = NULL;
        else
            close_one(&open_free);
    }
    return open_main;
}

static segment *place_plain(const dt_call *c, const uint32_t *from) {
    if (reads(c, from, open_main) || reads(c, from, open_free)) {
        close_segments();
        advance();
    }
    bool after = false; /* a loss that is brought to the host must not hold up the next micro-batch's slice of the data */
    for (int k = 0; k < c->n_in && !after; k++) {
        const segment *s = dt_segment_at(from[k]);
        after = s && (!s->side || s->after);
    }
    segment **s = after ? &open_after : &open_side;
    if (!*s && (*s = segment_new(c->mesh, true, 0))) (*s)->after = after;
    return *s;
}

dt_graph *dt_order_graph(dt_call *c, const uint32_t *made_by, uint32_t *id) {
    uint32_t from[c->n_in + 1];
    for (int k = 0; k < c->n_in; k++) from[k] = place_of(made_by[k]);
    segment *s = c->mesh->ndim ? place_on_mesh(c, from) : place_plain(c, from);
    bool ok = s != NULL;
    for (int k = 0; ok && k < c->n_in; k++) {
        const segment *d = dt_segment_at(from[k]);
        if (!d) continue;
        ok = add_dep(s, d->id);
        s->arrives |= d != s && d->mesh != s->mesh && from_stages(d, c->mesh);
        s->staged |= d != s && (d->staged || from_stages(d, c->mesh));
    }
    if (!ok) { /* out of host memory: everything in order, and the call fails */
        dt_order_flush();
        now.on = false;
        return NULL;
    }
    s->kind = dt_hash_mix(s->kind, c->op_id);
    s->cost += dt_call_cost(c);
    if (s->arrives && s->cost <= 0) s->cost = 1e-9; /* its devices wait for what it reads: it has its turn */
    s->alive += c->n_out;
    s->n++;
    nodes_pending++;
    *id = s->id;
    return s->graph;
}

void dt_order_cut(uint32_t id) {
    if ((open_side && open_side->id == id) || (open_after && open_after->id == id)) {
        close_sides();
        advance();
        return;
    }
    segment **s = open_main && open_main->id == id ? &open_main : open_free && open_free->id == id ? &open_free : NULL;
    if (!s) return;
    const dt_mesh *m = (*s)->mesh;
    uint32_t run = (*s)->run;
    bool main = s == &open_main;
    if (main) {
        close_one(&open_free); /* it may have been read */
        stay_main = id;
    }
    close_one(s);
    advance();
    *s = segment_new(m, false, run); /* NULL: the next call tries again */
    if (*s && !main) (*s)->behind = stay_main;
}

bool dt_order_active(const dt_mesh *m) {
    if (!dt_options_get()->order) return false;
    now.calls++;
    if (m->ndim && m != now.last_mesh) {
        if (now.last_mesh) {
            if (!now.on) dt_engine_dispatch();
            now.calls = 0;
            now.on = now.switched = true;
        }
        now.last_mesh = m;
    }
    if (DT_UNLIKELY(now.on && now.calls > MANY_CALLS) && !ghosts.on) dt_engine_dispatch(); /* one mesh, and no read */
    return now.on;
}

bool dt_order_is_on(void) { return now.on; }
bool dt_order_same(const dt_mesh *m) { return m == now.last_mesh; }
bool dt_order_pending(void) { return oldest < dt_the_window.next; }

/* Nothing that was learnt goes beyond a flush: what comes is ordered as if it was the first. Nothing but whether it goes to segments at all. */
static void settle(double seconds) {
    oldest = dt_the_window.settled = dt_the_window.next;
    base_time += seconds;
    latest = 0;
    dt_clocks_reset();
    stay_mesh = NULL;
    memset(last_away, 0, sizeof last_away);
    dt_visits_reset();
    n_held = 0;
}

void dt_order_flush(void) {
    close_segments();
    stay_run = 0;
    while (commit_next(false) || commit_next(true)) {}
    settle(latest);
    if (now.switched) now.quiet = 0;
    if (!now.switched && now.calls >= QUIET_CALLS) now.quiet++;
    if (now.quiet >= QUIET_STEPS) now.on = false; /* another program: its chunks are replayed (repeat.c) */
    now.switched = false;
    now.calls = 0;
}

void dt_order_sim(bool begin) {
    if (begin) outside = now;
    now = begin ? (mode){0} : outside;
}

uint32_t dt_order_calls(uint32_t id) { return dt_segment_at(id)->n; }

void dt_order_place(dt_order_state *s) { *s = (dt_order_state){dt_the_window.next, base_time}; }

void dt_order_replayed(const dt_order_state *from, const dt_order_commit *c) {
    dt_order_entry e = c->entry;
    e.id += from->id;
    e.run += from->id;
    e.begin += from->time;
    e.end += from->time;
    dt_order_log_add(&e);
}

void dt_order_skip(uint32_t n_segments, double seconds, uint32_t n_calls, const dt_mesh *mesh, bool switched) {
    now.switched |= switched || (mesh && mesh != now.last_mesh);
    now.calls = now.switched ? 0 : now.calls + n_calls;
    if (mesh) now.last_mesh = mesh;
    dt_the_window.next += n_segments;
    settle(seconds);
}

void dt_order_ghosts(bool begin) {
    ghosts.on = begin;
    ghosts.n_due = 0;
}

void dt_order_due(const dt_order_commit *const *due, uint32_t n, uint32_t base) {
    if (ghosts.n_due) { /* some wait for their segments' ends still */
        ghosts.n_due += n;
        return;
    }
    ghosts.due = due;
    ghosts.n_due = n;
    ghosts.base = base;
}

void dt_order_ghost(uint32_t id, uint32_t n_gone) {
    segment *s = dt_segment_at(id);
    s->alive -= n_gone;
    nodes_pending--;
}

void dt_order_idle(void) {
    dt_round_failed(); /* what is done now depends on time */
    close_segments();
    advance();
    if (!dt_devices_pending()) commit_next(true);
}

void dt_order_value_freed(const dt_gvalue *v) {
    segment *s = dt_segment_at(place_of(v->segment));
    if (s && s->alive) s->alive--;
}

void dt_order_free(void) {
    for (int i = 0; i < SEGMENTS; i++) dt_free(dt_the_ring[i].dep);
    memset(dt_the_ring, 0, sizeof dt_the_ring);
    dt_order_store_free();
    now = outside = (mode){0};
    n_can_run = n_heads = 0;
    settle(0);
}
