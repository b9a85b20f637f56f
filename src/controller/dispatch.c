/* From the pending subgraph to runs: find or build the plan, bind memory, push to the workers.
 *
 * A subgraph that fails as a whole (no memory, no kernel) is dispatched again node by node, so that only the calls that cannot run, and what
 * depends on them, fail. After dt_engine_dispatch every value of the subgraph is ready: its parts lie in buffers, or hold an error. */
#include <stdlib.h>
#include <string.h>

#include "controller/match.h"
#include "controller/remat.h"
#include "controller/remote.h"
#include "controller/repeat.h"
#include "controller/round.h"
#include "passes/options.h"
#include "plan/sim.h"
#include "plan/trace.h"

/* ---- the plan ---------------------------------------------------------------------------------------------------------------------------- */
/* The graph's plan, from the cache or new; borrowed from the cache. */
static dt_status plan_of(dt_engine *e, dt_graph *g, dt_plan **out) {
    dt_pass_dead(g);
    DT_TRY(dt_pass_key(g));
    if (DT_UNLIKELY(dt_options_get()->verify)) DT_TRY(dt_graph_verify(g));
    uint64_t hash = dt_hash_words(g->key, g->n_key, 11);
    dt_plan *p = dt_cache_find(e, g, hash);
    if (p) {
        dt_cache_used(e, p);
        dt_repeat_learn(e, g, p);
        *out = p;
        return DT_OK;
    }
    dt_cache_missed(e, g);
    uint64_t begin = dt_tracing() ? dt_trace_now() : 0;
    DT_TRY(dt_pass_lower(g, &p));
    if (DT_UNLIKELY(begin != 0)) dt_trace_add(DT_TRACE_PLAN, "plan", g->node[0].site, begin, (uint64_t)g->n, 0);
    dt_status s = dt_cache_add(e, g, p, hash);
    if (s) {
        dt_plan_unref(p);
        return s;
    }
    *out = p;
    return DT_OK;
}

/* ---- binding a plan to memory ------------------------------------------------------------------------------------------------------------ */
static dt_status bind_program(const dt_io *io, const dt_plan *p, int i, dt_binding *b) {
    const dt_program *prog = &p->program[i];
    dt_run_part *part = &b->run->part[i];
    if (DT_LIKELY(dt_device_here(prog->device)))
        DT_TRY(dt_binding_program(p, i, b));
    else
        DT_TRY(dt_remote_bind(p, i, b));
    if (io->held) {
        for (int k = 0; k < prog->n_ext; k++) {
            const dt_held *h = &io->held[p->shared_ext[k]];
            part->buf[k] = h->buf;
            part->base[k] = h->at;
        }
        return DT_OK;
    }
    for (int k = 0; k < prog->n_ext; k++) {
        const dt_gvalue *v = io->ext[prog->ext[k].value];
        const dt_part *x = v->one ? v->one : v->part[prog->ext[k].pos];
        part->buf[k] = x->buf;
        part->base[k] = (char *)x->buf->data + x->offset;
    }
    return DT_OK;
}

static void bind_numbers(const dt_io *io, const dt_plan *p, dt_run *r) {
    for (int k = 0; k < p->n_numbers; k++) {
        const dt_number_plan *n = &p->number[k];
        uint64_t w = io->number[k];
        if (n->from == DT_float64) {
            double d;
            memcpy(&d, &w, 8);
            dt_element_set_f64((dt_dtype)n->to, &r->numbers[k], d);
        } else
            dt_element_set_i64((dt_dtype)n->to, &r->numbers[k], (int64_t)w);
    }
    if (p->n_nodes) memcpy(r->site, io->site, sizeof *r->site * (size_t)p->n_nodes);
}

/* Of devices that do the same: one part stands for all. */
static dt_status make_shared_parts(const dt_io *io, const dt_plan *p, const dt_run *r) {
    for (int o = 0; o < p->n_outs && io->held; o++) {
        int32_t slot = p->shared[o].slot;
        io->made[o] = (dt_held){r->part[0].buf[slot], {(char *)r->part[0].base[slot] + p->shared[o].offset}};
        io->made[o].buf->live++;
    }
    if (io->held) return DT_OK;
    for (int o = 0; o < p->n_outs; o++) DT_TRY(dt_gvalue_parts_shared(io->out[o]));
    const dt_program *prog = &p->program[0];
    for (int o = 0; o < p->n_outs; o++) {
        const dt_out_plan *op = &p->out[o];
        dt_gvalue *v = io->out[o];
        const dt_part_plan *pp = dt_part_shared(p, o);
        dt_part *x = dt_gvalue_part_shared(v, pp->stride);
        x->buf = r->part[0].buf[pp->slot];
        x->buf->live++;
        x->offset = pp->offset;
        if (pp->slot < prog->n_ext) x->offset += io->ext[prog->ext[pp->slot].value]->part[prog->ext[pp->slot].pos]->offset;
        v->layout = op->layout;
        v->ready = true;
    }
    return DT_OK;
}

/* The values that the client still names get their parts. Every buffer of the run has its reference already. */
static dt_status make_parts(const dt_io *io, const dt_plan *p, const dt_run *r) {
    if (DT_UNLIKELY(p->n_alike != 0)) return make_shared_parts(io, p, r);
    for (int o = 0; o < p->n_outs; o++) {
        const dt_out_plan *op = &p->out[o];
        dt_gvalue *v = io->out[o];
        DT_TRY(dt_gvalue_parts(v));
        for (int d = 0; d < v->meta->mesh->n; d++) dt_gvalue_part(v, d, op->part[d].stride);
    }
    for (int o = 0; o < p->n_outs; o++) {
        const dt_out_plan *op = &p->out[o];
        dt_gvalue *v = io->out[o];
        for (int d = 0; d < v->meta->mesh->n; d++) {
            const dt_part_plan *pp = &op->part[d];
            const dt_program *prog = &p->program[pp->program];
            v->part[d]->buf = r->part[pp->program].buf[pp->slot];
            v->part[d]->buf->live++;
            v->part[d]->offset = pp->offset;
            if (pp->slot < prog->n_ext) v->part[d]->offset += io->ext[prog->ext[pp->slot].value]->part[prog->ext[pp->slot].pos]->offset;
        }
        v->layout = op->layout;
        v->ready = true;
    }
    return DT_OK;
}

static void drop_parts(const dt_io *io, const dt_plan *p) {
    for (int o = 0; o < p->n_outs && !io->held; o++) {
        dt_gvalue *v = io->out[o];
        dt_gvalue_parts_forget(v);
    }
}

bool dt_engine_alike(dt_plan *p) {
    if (DT_LIKELY(!p->sim)) return false;
    dt_sim_ran(p); /* its runs so far are over: a simulation goes through them at once */
    if (p->n_alike) p->n_programs = 1;
    return p->n_alike != 0;
}

static dt_status bind_run(const dt_io *io, dt_plan *p, dt_binding *b) {
    (void)dt_engine_alike(p);
    DT_TRY(dt_binding_new(p, b));
    dt_status s = DT_OK;
    for (int i = 0; i < p->n_programs && !s; i++) s = bind_program(io, p, i, b);
    if (!s && (s = make_parts(io, p, b->run))) drop_parts(io, p);
    if (!s && DT_UNLIKELY(dt_nodes > 1)) {
        bind_numbers(io, p, b->run);
        if ((s = dt_remote_run(io, p, b))) drop_parts(io, p);
    }
    if (s) dt_binding_undo(p, b);
    return s;
}

static void push_run(dt_engine *e, const dt_io *io, dt_plan *p, dt_binding *b) {
    if (dt_nodes == 1 && !io->held) bind_numbers(io, p, b->run);
    dt_comm_count(p, io->site, io->held ? io->rec : NULL, b->run->meet);
    e->stats.programs_run += (uint64_t)dt_binding_push(p, b);
}

static void trace_memory(const dt_plan *p) {
    for (int i = 0; i < p->n_programs; i++) {
        dt_device d = p->program[i].device;
        dt_device_state *s;
        if (dt_device_here(d) && !dt_device_get(d, &s))
            dt_trace_memory(dt_device_type_name(dt_device_kind(d)), (int)dt_device_index(d), (uint64_t)s->alloc.stats.allocated,
                            (uint64_t)s->alloc.stats.reserved);
    }
}

/* Who wants a value besides the nodes of this subgraph: the client, or nodes of other subgraphs that wait. */
static void mark_named(const dt_graph *g) {
    for (int i = 0; i < g->n; i++) {
        for (int k = 0; k < g->node[i].call->n_in; k++)
            if (g->node[i].in[k]) g->node[i].in[k]->inner = 0;
        for (int k = 0; k < g->node[i].call->n_out; k++) g->node[i].out[k]->inner = 0;
    }
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->node[i].call->n_in; k++)
            if (g->node[i].in[k]) g->node[i].in[k]->inner++;
    for (int i = 0; i < g->n; i++) {
        for (int k = 0; k < g->node[i].call->n_in; k++) {
            dt_gvalue *v = g->node[i].in[k];
            if (v) v->named = v->client || v->uses > v->inner || v->wanted;
        }
        for (int k = 0; k < g->node[i].call->n_out; k++) {
            dt_gvalue *v = g->node[i].out[k];
            v->named = v->client || v->uses > v->inner || v->wanted;
        }
    }
}

/* The plan, and memory for it where a budget says how much there is. What is evicted wants its inputs to stay: then names are others. */
static dt_status find_plan(dt_engine *e, dt_graph *g, dt_plan **p) {
    if (DT_UNLIKELY(dt_options_get()->evict && !g->later)) dt_budget_shake();
    mark_named(g);
    if (DT_UNLIKELY(e->n_evicted)) {
        dt_pass_dead(g);
        DT_TRY(dt_remat_restore(g));
        mark_named(g);
    }
    DT_TRY(plan_of(e, g, p));
    for (bool evicted = e->remat; evicted;) {
        DT_TRY(dt_budget_fit(g, *p, &evicted));
        if (!evicted) break;
        mark_named(g);
        DT_TRY(plan_of(e, g, p));
    }
    return DT_OK;
}

dt_status dt_engine_run_plan(dt_engine *e, const dt_io *io, dt_plan *p, bool found) {
    dt_binding b = {0};
    uint64_t begin = dt_tracing() ? dt_trace_now() : 0;
    if (dt_the_devices.n_held) dt_bufs_throttle();
    dt_status s = bind_run(io, p, &b);
    if (s == DT_E_NOMEM && dt_the_devices.n_held) { /* memory that was only waiting for its readers */
        dt_devices_quiesce();
        dt_bufs_sweep();
        s = bind_run(io, p, &b);
    }
    if (s) return s;
    if (DT_UNLIKELY(begin != 0)) trace_memory(p);
    e->wide = p->n_programs;
    push_run(e, io, p, &b);
    if (DT_UNLIKELY(begin != 0)) dt_trace_add(DT_TRACE_RUN, "dispatch", io->site[io->rec ? io->rec[0] : 0], begin, (uint64_t)io->n_calls, found);
    return DT_OK;
}

static struct {
    dt_gvalue **out;
    uint32_t *site;
    uint64_t *number;
    uint32_t cap_out, cap_site, cap_number;
} scratch; /* of bind_graph */

void dt_dispatch_free(void) {
    dt_free(scratch.out);
    dt_free(scratch.site);
    dt_free(scratch.number);
    memset(&scratch, 0, sizeof scratch);
}

dt_status dt_engine_bind_graph(const dt_graph *g, const dt_plan *p, dt_io *io) {
    if (!dt_grow(&scratch.out, &scratch.cap_out, (uint32_t)p->n_outs + 1, sizeof *scratch.out) ||
        !dt_grow(&scratch.site, &scratch.cap_site, (uint32_t)p->n_nodes + 1, sizeof *scratch.site) ||
        !dt_grow(&scratch.number, &scratch.cap_number, (uint32_t)p->n_numbers + 1, sizeof *scratch.number))
        return dt_fail(DT_E_NOMEM, "dispatch: out of host memory");
    *io = (dt_io){.ext = g->ext, .out = scratch.out, .site = scratch.site, .number = scratch.number, .n_calls = (uint32_t)g->n};
    for (int o = 0; o < p->n_outs; o++) scratch.out[o] = g->node[p->out[o].node].out[p->out[o].out];
    scratch.site[0] = g->n ? g->node[0].site : 0;
    for (int i = 0; i < p->n_nodes; i++) scratch.site[i] = g->node[i].site;
    for (int k = 0; k < p->n_numbers; k++) scratch.number[k] = g->node[p->number[k].node].number[p->number[k].in];
    return DT_OK;
}

static dt_status run_graph(dt_engine *e, dt_graph *g) {
    dt_plan *p;
    dt_io io;
    uint64_t built = e->stats.plans_built;
    dt_status s = find_plan(e, g, &p);
    if (!s) dt_round_plan(g, p);
    if (!s) s = dt_engine_bind_graph(g, p, &io);
    if (!s) s = dt_engine_run_plan(e, &io, p, e->stats.plans_built == built);
    if (!s && DT_UNLIKELY(e->remat || e->n_evicted)) dt_remat_record(g, p);
    if (g == &e->graph) dt_repeat_ran(s ? NULL : p);
    if (s) dt_round_failed();
    return s;
}

/* ---- after a subgraph -------------------------------------------------------------------------------------------------------------------- */
/* Inputs lose a use; external values that nobody needs any more go. Then the subgraph's own values: those neither named nor used go too. */
static void release_nodes(dt_engine *e, dt_graph *g, int from) {
    for (int i = from; i < g->n; i++)
        for (int k = 0; k < g->node[i].call->n_in; k++) {
            dt_gvalue *v = g->node[i].in[k];
            if (!v) continue;
            v->uses--;
            if (v->node < 0) dt_gvalue_release(v);
        }
    for (int i = from; i < g->n; i++) {
        dt_gnode *n = &g->node[i];
        for (int k = 0; k < n->call->n_out; k++) {
            n->out[k]->node = -1;
            dt_gvalue_release(n->out[k]);
        }
        e->stats.nodes_dead += !n->live;
        dt_call_unref(n->call);
    }
    g->n = from;
}

static void poison_node(dt_gnode *n, dt_status s) {
    dt_error_t *err = dt_error_new(s, n->site, dt_op_name(n->call->op), dt_error_message());
    for (int k = 0; k < n->call->n_out; k++) dt_gvalue_poison(n->out[k], err);
    dt_error_unref(err);
}

/* One node as a subgraph of its own; its outputs are kept while later nodes use them. */
static void run_single(dt_engine *e, dt_gnode *n) {
    dt_graph one;
    bool named[n->call->n_out + 1];
    for (int k = 0; k < n->call->n_out; k++) {
        named[k] = n->out[k]->client;
        n->out[k]->client |= n->out[k]->uses > 0;
    }
    bool dead = n->call->n_out > 0;
    for (int k = 0; k < n->call->n_out; k++) dead &= !n->out[k]->client;
    dt_status s = dead ? DT_OK : dt_graph_init(&one);
    if (!s && !dead) {
        one.node[0] = *n;
        one.n = 1;
        bool keep[n->call->n_in + 1]; /* no donation of what later nodes read */
        for (int k = 0; k < n->call->n_in; k++)
            if (n->in[k]) {
                keep[k] = n->in[k]->client;
                n->in[k]->client |= n->in[k]->uses > 1;
            }
        s = run_graph(e, &one);
        for (int k = n->call->n_in - 1; k >= 0; k--)
            if (n->in[k]) n->in[k]->client = keep[k];
        dt_graph_fini(&one);
    }
    if (s == DT_E_NOMEM) dt_engine_explain_oom();
    if (s) poison_node(n, s);
    for (int k = 0; k < n->call->n_out; k++) n->out[k]->client = named[k];
}

static void run_one_by_one(dt_engine *e, dt_graph *g) {
    for (int i = 0; i < g->n; i++) { /* key.c moved the live nodes to the front, in order; dead ones made nothing */
        dt_gnode *n = &g->node[i];
        if (n->live) run_single(e, n);
    }
}

static void poison_all(dt_graph *g, dt_status s) {
    if (s == DT_E_NOMEM) dt_engine_explain_oom();
    for (int i = 0; i < g->n; i++)
        if (g->node[i].live) poison_node(&g->node[i], s);
}

/* Under a budget a subgraph that does not fit is dispatched in two parts, and these again, so that what is needed between them may be evicted and
 * made again. False: it cannot be cut. */
static bool run_halves(dt_engine *e, dt_graph *g) {
    int live = 0;
    dt_graph rest;
    while (live < g->n && g->node[live].live) live++;
    for (int i = live; i < g->n; i++)
        if (g->node[i].live) return false; /* it failed before its nodes were sorted: out of host memory */
    if (live < 2 || dt_graph_init(&rest)) return false;
    if (dt_graph_split(g, live / 2, live, &rest)) {
        dt_graph_fini(&rest);
        return false;
    }
    release_nodes(e, g, live / 2); /* dead ones */
    rest.later = g->later;
    g->later = &rest;
    dt_engine_dispatch_graph(g);
    g->later = rest.later;
    dt_engine_dispatch_graph(&rest);
    dt_graph_fini(&rest);
    return true;
}

void dt_engine_dispatch(void) {
    dt_engine *e = &dt_the_engine;
    dt_repeat_settle(e, "a read or a pause in the middle");
    dt_round_settle(e, "a read in the middle");
    dt_engine_dispatch_graph(&e->graph);
    e->cut = false;
    e->rolling = 0;
    if (dt_order_is_on()) dt_order_flush();
    dt_round_end(e);
}

void dt_engine_dispatch_graph(dt_graph *g) {
    dt_engine *e = &dt_the_engine;
    if (!g->n) return;
    dt_status s = run_graph(e, g);
    if (s && e->remat) {
        if (run_halves(e, g)) return;
        poison_all(g, s);
    } else if (s && g->n == 1) {
        if (s == DT_E_NOMEM) dt_engine_explain_oom();
        poison_node(&g->node[0], s);
    } else if (s)
        run_one_by_one(e, g);
    release_nodes(e, g, 0);
    dt_graph_clear(g);
}
