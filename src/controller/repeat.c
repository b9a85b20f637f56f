/* Repeats are found, not declared.
 *
 * The stream is cut into chunks (controller.c), and a chunk that comes again finds its plan. To find it the usual way, a node and a value are made for every
 * call, and a key from them. Here that is left out: when a chunk's plan was found a second time, its records are kept as a *script*, and so is
 * which scripts came after it. When a chunk begins, the likely script is taken and the records are only compared with it, one by one:
 *
 *   record of a call:  the same interned call | each input: the value that the script has there | numbers and the line: bindings, just kept
 *   at the end:        the same results are still named, and the same external memory may be overwritten
 *
 * That is all that the plan's key consists of (passes/key.c), so equal records mean the same plan; it is bound and pushed at once. A value inside the chunk is
 * a word in a table (`slot`, by id): which value of the script it is, with a number that tells this attempt from earlier ones. It never becomes a dt_gvalue
 * unless it is still named at the end.
 *
 * A mismatch: another script that begins with the same words may go on (scripts that followed the same script are tried in the order of their merit);
 * otherwise the calls taken so far become nodes of the pending subgraph, exactly as if they had been recorded the usual way, and the stream goes on
 * there until its next cut. Values that other parts of the program drop meanwhile are dropped at once; drops of the chunk's own values need no
 * order, since only what is named at the end matters.
 *
 * A chunk ends where its content says so, or where the client read or paused. The latter says nothing about the next time: a script of one call, learnt from
 * `(x + 1).item()`, would take a loop of a thousand such calls to pieces of one. So a script of that kind (`open`) is only run before a read or a pause is
 * seen if such an end followed the last times; and when another call comes, it has not ended: a longer script goes on, or the usual way.
 *
 * Why chunks and not whole steps: docs/design/026. Controller thread only. */
#include "controller/repeat.h"

#include <string.h>

#include "controller/match.h"
#include "passes/options.h"

enum { FOLLOWERS = 32, SCORE_MAX = 7, ENDS_MAX = 2, LOST_MAX = 4, FIRSTS = 1024, SCRIPT_BYTES_MAX = 64 << 20 };

typedef struct script script;
typedef struct follower {
    script *s;
    int score;
} follower;
typedef struct named_out {
    uint32_t inner, node, out;
    const dt_meta *meta;
} named_out;
struct script {
    dt_plan *plan;
    const dt_mesh *mesh; /* where its calls ran, if not all were plain */
    uint32_t n_rec, n_word, n_ext, n_inner, n_number, n_call, n_gone, n_ext_gone, n_named, n_dead;
    uint64_t *word;
    uint64_t *ext_layout; /* (n_ext,) */
    uint8_t *ext_donate;  /* (n_ext,) may be overwritten: 0, 1; 2: no live call reads it */
    uint32_t *ext_at;     /* (plan's externals,) which external of the script */
    uint8_t *gone;        /* (n_inner,) not named at the end */
    named_out *named;     /* (n_named,) */
    int32_t *node_of;     /* (n_rec,) node of the plan, -1: dead */
    uint64_t **number_to; /* (n_number,) where in the graph, NULL: a dead call's */
    dt_call **call;       /* (n_call,) every call once, referenced */
    uint32_t *call_count;
    dt_graph graph; /* live nodes in the plan's order, without inputs: what binding needs */
    follower next[FOLLOWERS];
    size_t bytes;
    uint32_t tried; /* the attempt it was last compared in */
    bool open;      /* a read or a pause ended it, not its content */
    int8_t ends;    /* does it end there again? Below zero: wait and see */
    uint8_t lost;   /* how often its plan was found the usual way since it last was run: the records are others, around the same live calls */
};

/* The attempt under way: what was taken so far. */
static struct attempt {
    script *s; /* NULL: none */
    dt_match m;
    uint32_t n_dropped, n_ext_dropped;
    dt_gvalue **made; /* for hand_over */
    uint32_t cap_made;
} a;
static script *last;           /* of the chunk before */
static script *beaten;         /* it had all its records and yet did not run: if its own plan is found for them now, it is to be learnt again */
static script *hasty;          /* an open one that was run before its end was seen, if nothing came since */
static script *firsts[FIRSTS]; /* by first call: the script that began with it last */
static size_t bytes_all;

bool dt_repeat_active(void) { return a.s != NULL; }
bool dt_repeat_waits(void) { return a.s != NULL && a.m.at < a.s->n_word; }
static bool complete(void) { return a.m.at == a.s->n_word; }

/* Under a memory budget calls join that the stream does not have (remat.h): the plan is not a function of the records. */
static bool possible(const dt_engine *e) { return dt_options_get()->replay && !dt_options_get()->evict && !e->remat && !e->n_evicted; }

/* ---- learning a script ------------------------------------------------------------------------------------------------------------------- */
static void script_free(script *s) {
    for (uint32_t i = 0; i < s->n_call; i++) dt_call_unref(s->call[i]);
    bytes_all -= s->bytes;
    dt_graph_fini(&s->graph);
    dt_free(s);
}

static bool attempt_room(const script *s) {
    return dt_grow(&a.made, &a.cap_made, s->n_inner, sizeof *a.made) && dt_match_room(&a.m, s->n_ext, s->n_inner, s->n_rec, s->n_number);
}

/* The subgraph's nodes in the order of the stream (key.c moved dead ones behind the live). */
static bool in_order(const dt_graph *g, dt_arena *tmp, int **out) {
    int *at = DT_ARENA_ARRAY(tmp, int, g->n);
    if (!at) return false;
    for (int i = 0; i < g->n; i++) at[g->node[i].at] = i;
    *out = at;
    return true;
}

static void count_graph(const dt_graph *g, script *s) {
    for (int i = 0; i < g->n; i++) {
        const dt_call *c = g->node[i].call;
        s->n_rec++;
        s->n_word += 2 + c->n_in;
        s->n_inner += c->n_out;
        s->n_dead += !g->node[i].live;
        for (int k = 0; k < c->n_in; k++)
            if (c->in[k] && c->in[k]->wrapped)
                s->n_number++;
            else if (c->in[k])
                s->n_ext++; /* an upper limit */
        for (int k = 0; k < c->n_out; k++) s->n_named += g->node[i].out[k]->client;
        if (c->mesh->ndim) s->mesh = c->mesh;
    }
}

/* One block for the script and its arrays. */
static script *script_new(const script *count, int n_plan_ext) {
    const size_t n[] = {sizeof *count,
                        8 * (size_t)count->n_word,
                        8 * (size_t)count->n_ext,
                        8 * (size_t)count->n_number,
                        8 * (size_t)count->n_rec,
                        sizeof(named_out) * count->n_named,
                        4 * (size_t)count->n_rec,
                        4 * (size_t)count->n_rec,
                        4 * (size_t)n_plan_ext,
                        count->n_ext,
                        count->n_inner};
    size_t bytes = 0, k = 1;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) bytes += (n[i] + 7) & ~(size_t)7;
    size_t graph = sizeof(dt_gnode) * count->n_rec + 8 * (size_t)(count->n_word + count->n_inner + count->n_rec);
    if (bytes_all + bytes + graph > SCRIPT_BYTES_MAX) return NULL;
    char *at = dt_calloc(1, bytes);
    if (!at) return NULL;
    script *s = (script *)at;
    *s = *count;
    at += (n[0] + 7) & ~(size_t)7;
#define CARVE(field) s->field = (void *)at, at += (n[k++] + 7) & ~(size_t)7
    CARVE(word);
    CARVE(ext_layout);
    CARVE(number_to);
    CARVE(call);
    CARVE(named);
    CARVE(call_count);
    CARVE(node_of);
    CARVE(ext_at);
    CARVE(ext_donate);
    CARVE(gone);
#undef CARVE
    s->bytes = bytes + graph;
    return s;
}

/* Values get numbers: results in `inner` order through their node's first, externals through their index in the key; -1: none yet. */
typedef struct learner {
    script *s;
    dt_graph *g;
    int *first;  /* (n,) first result of node i */
    int *number; /* (plan's externals + others,) */
    int n_known;
    uint32_t word, n_ext, n_inner, n_number;
} learner;

static uint64_t learn_input(learner *l, dt_gvalue *v) {
    if (v->node >= 0) return DT_INNER + (uint32_t)(l->first[v->node] + (int)v->out);
    if (v->index < 0) v->index = l->n_known++; /* only dead calls read it */
    int *e = &l->number[v->index];
    if (*e >= 0) return (uint64_t)*e;
    *e = (int)l->n_ext++;
    bool live = v->index < l->g->n_ext;
    l->s->ext_layout[*e] = v->layout;
    l->s->ext_donate[*e] = live ? dt_gvalue_donatable(v) : 2;
    if (live) l->s->ext_at[v->index] = (uint32_t)*e;
    l->s->n_ext_gone += !v->client;
    return (uint64_t)DT_FIRST << 32 | (uint64_t)*e;
}

static void learn_call(script *s, dt_call *c) {
    for (uint32_t i = s->n_call; i-- > 0;)
        if (s->call[i] == c) {
            s->call_count[i]++;
            return;
        }
    dt_call_ref(c);
    s->call[s->n_call] = c;
    s->call_count[s->n_call++] = 1;
}

static bool learn_node(learner *l, int i, uint32_t rec) {
    script *s = l->s;
    const dt_gnode *n = &l->g->node[i];
    dt_call *c = n->call;
    dt_gnode *to = NULL;
    s->node_of[rec] = -1;
    if (n->live) {
        s->node_of[rec] = s->graph.n; /* live nodes keep their order */
        if (!(to = dt_graph_add(&s->graph, c, 0))) return false;
    }
    learn_call(s, c);
    s->word[l->word++] = DT_REC_HEADER(DT_REC_CALL, c->n_in, c->n_out);
    s->word[l->word++] = (uint64_t)(uintptr_t)c;
    for (int k = 0; k < c->n_in; k++) {
        uint64_t w = (uint64_t)DT_NOTHING << 32;
        if (c->in[k] && c->in[k]->wrapped) {
            w = (uint64_t)DT_NUMBER << 32;
            s->number_to[l->n_number++] = to ? &to->number[k] : NULL;
        } else if (c->in[k]) {
            if (!n->in[k]) return false;
            w = learn_input(l, n->in[k]);
        }
        s->word[l->word++] = w;
    }
    for (int k = 0; k < c->n_out; k++, l->n_inner++) {
        if (!n->out[k]) return false;
        s->gone[l->n_inner] = !n->out[k]->client;
        s->n_gone += !n->out[k]->client;
        if (n->out[k]->client) s->named[s->n_named++] = (named_out){l->n_inner, (uint32_t)s->node_of[rec], (uint32_t)k, c->out[k]};
    }
    return true;
}

static bool learn_graph(script *s, dt_graph *g, dt_arena *tmp) {
    int *order, inner = 0;
    learner l = {.s = s, .g = g, .first = DT_ARENA_ARRAY(tmp, int, g->n), .number = DT_ARENA_ARRAY(tmp, int, s->n_ext + 1), .n_known = g->n_ext};
    if (!l.first || !l.number || !in_order(g, tmp, &order)) return false;
    memset(l.number, 0xff, sizeof *l.number * (s->n_ext + 1));
    for (int r = 0; r < g->n; r++) {
        dt_gnode *n = &g->node[order[r]];
        l.first[order[r]] = inner;
        inner += n->call->n_out;
        for (int k = 0; k < n->call->n_out; k++) n->out[k]->node = order[r]; /* also of dead ones */
    }
    s->n_named = 0;
    for (int r = 0; r < g->n; r++)
        if (!learn_node(&l, order[r], (uint32_t)r)) return false;
    s->n_ext = l.n_ext;
    return true;
}

void dt_repeat_learn(dt_engine *e, dt_graph *g, dt_plan *p) {
    if (!possible(e) || g != &e->graph) return;
    script *old = p->script;
    const bool wrong = old && old == beaten;
    beaten = NULL;
    if (old && !wrong && ++old->lost < LOST_MAX) return;
    script count = {.plan = p};
    count_graph(g, &count);
    if (old) dt_repeat_forget(p);
    script *s = script_new(&count, g->n_ext);
    if (!s) return;
    bytes_all += s->bytes;
    dt_arena tmp;
    dt_arena_init(&tmp);
    bool ok = dt_graph_init(&s->graph) == DT_OK && learn_graph(s, g, &tmp) && attempt_room(s);
    dt_arena_fini(&tmp);
    if (!ok) {
        script_free(s);
        return;
    }
    s->open = !e->cut;
    p->script = s;
}

/* ---- which script comes next ------------------------------------------------------------------------------------------------------------ */
static script **first_of(const dt_call *call) { return &firsts[dt_hash_mix(7, call->content) % FIRSTS]; }

static void follow(script *before, script *s, int by) {
    follower *f = before->next, *worst = f;
    for (int i = 0; i < FOLLOWERS; i++, f++) {
        if (f->s == s) {
            f->score = f->score + by > SCORE_MAX ? SCORE_MAX : f->score + by < -SCORE_MAX ? -SCORE_MAX : f->score + by;
            return;
        }
        if (!f->s || (worst->s && f->score < worst->score)) worst = f;
    }
    if (by > 0) *worst = (follower){s, by};
}

void dt_repeat_ran(dt_plan *p) {
    beaten = NULL;
    script *s = p ? p->script : NULL;
    if (s) {
        *first_of((dt_call *)(uintptr_t)s->word[1]) = s;
        if (last) follow(last, s, 1);
    }
    last = s;
}

void dt_repeat_forget(dt_plan *p) {
    script *s = p->script;
    if (!s) return;
    p->script = NULL;
    if (last == s) last = NULL;
    if (hasty == s) hasty = NULL;
    if (beaten == s) beaten = NULL;
    for (int i = 0; i < FIRSTS; i++)
        if (firsts[i] == s) firsts[i] = NULL;
    dt_engine *e = &dt_the_engine;
    for (size_t i = 0; i <= e->plans.mask; i++)
        for (dt_hlink *l = e->plans.slot[i]; l; l = l->next) {
            script *o = ((dt_plan *)l)->script;
            for (int k = 0; o && k < FOLLOWERS; k++)
                if (o->next[k].s == s) o->next[k] = (follower){0};
        }
    script_free(s);
}

void dt_repeat_free(void) {
    dt_free(a.made);
    dt_match_free(&a.m);
    memset(&a, 0, sizeof a);
    last = hasty = beaten = NULL;
}

/* ---- comparing --------------------------------------------------------------------------------------------------------------------------- */
/* Could s have been the script so far? */
static bool begins_alike(const script *s) {
    if (s->n_word < a.m.at || memcmp(s->word, a.s->word, a.m.at * sizeof *s->word) != 0) return false;
    for (uint32_t e = 0; e < a.m.n_ext; e++)
        if (!dt_match_lies(s->ext_layout, s->ext_donate, e, a.m.ext[e])) return false;
    for (uint32_t i = 0; i < a.m.n_inner; i++)
        if (!s->gone[i] && !dt_match_named(&a.m, i)) return false;
    return true;
}

static void expect(script *s) {
    a.s = s;
    a.m.word = s->word;
    a.m.ext_layout = s->ext_layout;
    a.m.ext_any = s->ext_donate;
}

static bool worth(const script *s) { return s && s->tried != a.m.epoch && (!s->mesh || dt_order_same(s->mesh)); }

/* The best script not yet tried: of those that followed the last one, else the last that began with this call. */
static script *candidate(const dt_call *call) {
    script *best = NULL;
    int score = -SCORE_MAX - 1;
    for (int i = 0; last && i < FOLLOWERS; i++) {
        const follower *f = &last->next[i];
        if (!worth(f->s) || (uintptr_t)f->s->word[1] != (uintptr_t)call) continue;
        if (f->score < score || (f->score == score && f->s->n_word <= best->n_word)) continue;
        best = f->s;
        score = f->score;
    }
    if (best) return best;
    script *s = *first_of(call);
    return worth(s) && (uintptr_t)s->word[1] == (uintptr_t)call ? s : NULL;
}

/* Another script that agrees with all that was taken. */
static bool switch_script(void) {
    if (last) follow(last, a.s, -2);
    for (script *s; (s = candidate((dt_call *)(uintptr_t)a.s->word[1]));) {
        s->tried = a.m.epoch;
        if (!begins_alike(s)) continue;
        expect(s);
        return true;
    }
    return false;
}

/* ---- a script comes to its end ------------------------------------------------------------------------------------------------------------ */
/* What was taken becomes nodes of the pending subgraph. */
static void hand_over(dt_engine *e) {
    script *s = a.s;
    a.s = NULL;
    const uint64_t *w = s->word;
    dt_gvalue **made = a.made;
    uint32_t inner = 0, number = 0;
    for (uint32_t r = 0; r < a.m.rec; r++, w += 2 + dt_rec_n_in(w[0])) {
        dt_call *c = (dt_call *)(uintptr_t)w[1];
        uint64_t in[c->n_in + 1];
        dt_gvalue *v[c->n_in + 1];
        for (int k = 0; k < c->n_in; k++) {
            uint32_t value = (uint32_t)w[2 + k];
            uint64_t what = w[2 + k] >> 32;
            in[k] = what == DT_NUMBER ? a.m.number[number++] : 0;
            v[k] = what >= DT_NUMBER ? NULL : value & DT_INNER ? made[value - DT_INNER] : a.m.ext[value];
        }
        dt_engine_node(&e->graph, c, a.m.site[r], v, in, made + inner);
        for (int k = 0; k < c->n_out; k++, inner++) {
            bool named = dt_match_named(&a.m, inner);
            if (made[inner]) made[inner]->client = named && dt_engine_value_put(a.m.out_id[inner], made[inner]);
        }
        e->cut = dt_engine_cut(e, (uint32_t)e->graph.n, c, &e->graph);
    }
    for (uint32_t i = 0; i < inner; i++)
        if (made[i]) dt_gvalue_release(made[i]); /* only if it failed already */
    for (uint32_t i = 0; i < a.m.n_ext; i++) {
        a.m.ext[i]->uses--;
        dt_gvalue_release(a.m.ext[i]);
    }
}

/* Everything that the comparison of records could not tell. NULL: the plan may run. */
static const char *check_end(const script *s) {
    if (a.n_dropped != s->n_gone) return "a result is still named";
    for (uint32_t i = 0; i < s->n_ext; i++) {
        dt_gvalue *v = a.m.ext[i];
        v->named = v->client || v->uses > 1 || v->wanted;
        if (s->ext_donate[i] == 2 || s->ext_donate[i] == dt_gvalue_donatable(v)) continue;
        return s->ext_donate[i] ? "an input's memory may not be overwritten" : "an input's memory may be overwritten";
    }
    return NULL;
}

static bool fill_graph(script *s) {
    dt_graph *g = &s->graph;
    for (uint32_t r = 0; r < s->n_rec; r++)
        if (s->node_of[r] >= 0) g->node[s->node_of[r]].site = a.m.site[r];
    for (uint32_t i = 0; i < s->n_number; i++)
        if (s->number_to[i]) *s->number_to[i] = a.m.number[i];
    if (g->cap_ext < s->plan->n_ext) {
        dt_gvalue **ext = dt_realloc(g->ext, sizeof *ext * (size_t)s->plan->n_ext);
        if (!ext) return false;
        g->ext = ext;
        g->cap_ext = s->plan->n_ext;
    }
    g->n_ext = s->plan->n_ext;
    for (int i = 0; i < g->n_ext; i++) g->ext[i] = a.m.ext[s->ext_at[i]];
    for (uint32_t i = 0; i < s->n_named; i++) {
        const named_out *o = &s->named[i];
        dt_gvalue *v = dt_gvalue_new(o->meta);
        g->node[o->node].out[o->out] = v;
        if (!v) {
            while (i-- > 0) dt_gvalue_free(g->node[s->named[i].node].out[s->named[i].out]);
            return false;
        }
        v->client = true;
        v->site = g->node[o->node].site;
    }
    return true;
}

static void release(dt_engine *e, script *s) {
    for (uint32_t i = 0; i < s->n_named; i++) {
        const named_out *o = &s->named[i];
        if (!dt_engine_value_put(a.m.out_id[o->inner], s->graph.node[o->node].out[o->out])) dt_gvalue_free(s->graph.node[o->node].out[o->out]);
    }
    for (uint32_t i = 0; i < s->n_ext; i++) {
        a.m.ext[i]->uses--;
        dt_gvalue_release(a.m.ext[i]);
    }
    for (uint32_t i = 0; i < s->n_call; i++) dt_call_unref_many(s->call[i], s->call_count[i]);
    e->stats.nodes += s->n_rec;
    e->stats.nodes_dead += s->n_dead;
}

/* All records are there: run the plan. NULL, or why it cannot be. */
static const char *finish(dt_engine *e) {
    script *s = a.s;
    const char *text = check_end(s);
    if (text) return text;
    dt_io io;
    if (!fill_graph(s)) return "out of host memory";
    if (dt_engine_bind_graph(&s->graph, s->plan, &io) || dt_engine_run_plan(e, &io, s->plan, true)) {
        for (uint32_t i = 0; i < s->n_named; i++) dt_gvalue_free(s->graph.node[s->named[i].node].out[s->named[i].out]);
        return "out of memory";
    }
    a.s = NULL;
    s->lost = 0;
    release(e, s);
    dt_cache_used(e, s->plan);
    dt_cache_replayed(s->n_rec);
    dt_repeat_ran(s->plan);
    return NULL;
}

/* Calls went on after s, or a read or a pause came. */
static void learn_end(script *s, bool ended) {
    if (!ended)
        s->ends = -ENDS_MAX;
    else if (s->ends < ENDS_MAX)
        s->ends++;
}

static void was_hasty(bool ended) {
    if (DT_LIKELY(!hasty)) return;
    learn_end(hasty, ended);
    hasty = NULL;
}

void dt_repeat_pause(void) { was_hasty(true); }

/* The last call was taken and so were all the drops that the script had: no need to wait for the next call. */
static void finish_early(dt_engine *e) {
    script *s = a.s;
    if (s->open && s->ends < 0) return;
    if (a.n_dropped != s->n_gone || a.n_ext_dropped != s->n_ext_gone) return;
    if (check_end(s)) return; /* maybe later */
    if (!finish(e) && s->open) hasty = s;
}

static void mismatch(dt_engine *e, const char *text, const dt_call *was, const dt_call *is, int input, uint32_t site) {
    dt_cache_mismatch(text, was, is, input, site);
    hand_over(e);
}

static uint32_t last_site(void) { return a.m.rec ? a.m.site[a.m.rec - 1] : 0; }

/* Something else than the script's next call comes. more: calls, so that a longer script may go on; otherwise what was taken is all there is. */
static void end(dt_engine *e, const char *text, bool more) {
    for (;;) {
        if (complete()) {
            if (!(text = finish(e))) return;
        } else if (more)
            return;
        script *s = a.s;
        if (switch_script()) continue;
        beaten = complete() ? s : NULL;
        mismatch(e, text, NULL, NULL, -1, last_site());
        return;
    }
}

/* ---- records -------------------------------------------------------------------------------------------------------------------------------- */
static bool begin(dt_engine *e, const dt_call *call) {
    if (!possible(e) || e->graph.n || dt_order_is_on()) return false;
    dt_match_begin(&a.m);
    script *s = candidate(call);
    if (!s) return false;
    s->tried = a.m.epoch;
    e->rolling = 0;
    a.n_dropped = a.n_ext_dropped = 0;
    expect(s);
    return true;
}

bool dt_repeat_call(dt_engine *e, const uint64_t *w) {
    dt_why y = {"another call", -1};
    was_hasty(false);
    if (a.s && complete()) {
        if (a.s->open)
            learn_end(a.s, false);
        else
            end(e, NULL, true);
    }
    if (!a.s) {
        if (e->cut) dt_engine_dispatch();
        if (!begin(e, (dt_call *)(uintptr_t)w[1])) return false;
    }
    if (DT_UNLIKELY(dt_engine_flush_now())) {
        hand_over(e);
        dt_engine_dispatch();
        return false;
    }
    while (DT_UNLIKELY(complete() || !dt_match_call(&a.m, w, &y))) {
        const dt_call *was = complete() ? NULL : (const dt_call *)(uintptr_t)a.s->word[a.m.at + 1];
        if (switch_script()) {
            y = (dt_why){"another call", -1};
            continue;
        }
        mismatch(e, y.text, was, (const dt_call *)(uintptr_t)w[1], y.input, (uint32_t)w[2]);
        return false;
    }
    if (DT_UNLIKELY(complete())) finish_early(e);
    return true;
}

bool dt_repeat_drop(dt_engine *e, uint32_t id) {
    if (!a.s || !dt_match_knows(&a.m, id)) return false;
    uint32_t value = (uint32_t)a.m.slot[id];
    a.m.slot[id] = 0;
    if (value & DT_INNER) {
        a.n_dropped++;
        if (DT_UNLIKELY(!a.s->gone[value - DT_INNER]) && !switch_script()) {
            mismatch(e, "a result is no longer named", NULL, NULL, -1, last_site());
            return true;
        }
    } else {
        a.n_ext_dropped++;
        e->value[id] = NULL;
        a.m.ext[value]->client = false;
    }
    if (DT_UNLIKELY(complete())) finish_early(e);
    return true;
}

void dt_repeat_settle(dt_engine *e, const char *text) {
    was_hasty(true);
    if (a.s && complete() && a.s->open) learn_end(a.s, true);
    if (a.s) end(e, text, false);
}
