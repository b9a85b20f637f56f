/* Simulated devices: programs run on virtual clocks, without data.
 *
 * There is no thread a device. The controller's thread hands over whole runs in the order of dispatch, and a run is gone through at once: what an
 * instruction would take is known from the cost model, so all there is to do is to add up and to wait as the worker does (worker/worker.c):
 *   - a program begins when its device has finished the one before, when memory of other devices that it reads has been written there, and when memory
 *     that it overwrites has been read everywhere;
 *   - its two queues run beside each other; an instruction waits for so many of the other queue's;
 *   - a collective begins when all its parties are there, a bucket counts as one; a one-sided transfer waits for nobody;
 *   - the program ends with its later queue.
 * A read by the client waits for its device, and what is dispatched afterwards begins after it. A run's dispatch takes no virtual time: the report gives
 * the controller's processor time beside the step's.
 *
 * Times are computed once per plan (`priced`, in the plan's arena). Programs whose instructions cost the same share a list; where all of a run's programs do,
 * meet at the same places and begin together, one is gone through for all. Devices for which one program stands and whose clocks are the same are a gang: it has their clock, and
 * what is added to each of them, until one of them does something else or is looked at.
 *
 * Addresses are numbers: the allocator is the real one, with its limits, caches and peaks. An error of an input (out of memory) fails all results of the run. */
#include "plan/sim.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/fusing.h"
#include "plan/backend.h"
#include "plan/nodes.h"

_Atomic bool dt_sim_on, dt_sim_failed;
static dt_sim_device *device; /* (n_devices,) */
static int n_devices;
static double host_at; /* nothing begins before: the client waited for a value */
static dt_sim_totals totals;
static bool serving; /* a node: memory is kept here, clocks are not */
static int64_t serving_limit;

/* ---- prices ------------------------------------------------------------------------------------------------------------------------------------ */
typedef struct price {
    double seconds;
    uint32_t wait;
    bool coll;     /* else a kernel */
    bool meets;    /* parties must be there */
    uint16_t also; /* how many instructions behind it are part of it */
} price;
typedef struct bytes_in {
    double in[DT_LINK_LEVELS];
} bytes_in;
typedef struct price_list { /* of one program, or of several that cost the same */
    int n[2], n_traffic;
    price *at[2];
    bytes_in *traffic;
    bytes_in all; /* of a run */
    double flops, ideal;
    struct price_list *next;
} price_list;
typedef struct coll_price {
    double latency, moving;
    dt_traffic *party; /* (n,) */
    int *program;      /* (n,) the parties' */
    int *arrived;      /* (n_groups,) of the run under way */
    double *last;      /* (n_groups,) */
} coll_price;
typedef struct priced {
    uint32_t hardware; /* whose prices: dt_hardware_generation */
    bool uniform;      /* one price list, and all meet at the same places */
    bool meets;        /* some collective is not a device's own affair */
    bool ready;        /* … and does so from the next run on */
    int stands;        /* the program that may stand for all, -1: none */
    struct gang *gang; /* the devices it stands for */
    price_list **list; /* (n_programs,) */
    coll_price *coll;  /* (n_colls,) */
    size_t parties;    /* of all collectives */
    size_t most;       /* times that going through a program notes */
} priced;

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "simulation: out of host memory"); }

static dt_status price_colls(const dt_hardware *h, dt_plan *p, priced *x) {
    for (int i = 0; i < p->n_colls; i++) {
        const dt_coll *c = p->coll[i];
        coll_price *y = &x->coll[i];
        if (c->pulled) continue; /* by the reader, who knows where it reads */
        x->parties += (size_t)c->n;
        y->party = DT_ARENA_ARRAY(&p->arena, dt_traffic, c->n);
        y->program = DT_ARENA_ARRAY(&p->arena, int, c->n);
        int *seen = dt_malloc(sizeof *seen * (size_t)(c->n + 1));
        y->arrived = DT_ARENA_ARRAY(&p->arena, int, c->n_groups);
        y->last = DT_ARENA_ARRAY(&p->arena, double, c->n_groups);
        if (!y->party || !y->program || !y->arrived || !y->last || !seen) {
            dt_free(seen);
            return no_memory();
        }
        dt_cost_traffic(h, c, y->party, seen);
        dt_free(seen);
        for (int k = 0, at = 0; k < c->n; k++) { /* parties lie in the order of programs, mostly */
            for (int z = 0; z < p->n_programs && p->program[at].device != c->party[k].device; z++) at = (at + 1) % p->n_programs;
            y->program[k] = at;
        }
        for (int k = 0; k < c->n; k++) {
            double latency, moving;
            dt_cost_transfer(h, c->kind, &y->party[k], &latency, &moving);
            y->latency = fmax(y->latency, latency);
            y->moving = fmax(y->moving, moving);
        }
    }
    return DT_OK;
}

/* A one-sided transfer: its sources lie in buffers of the run. */
static void pulled_traffic(const dt_hardware *h, const dt_program *prog, const dt_instr *s, dt_traffic *t) {
    const dt_party *me = &s->coll->party[s->party];
    for (int i = 0; i < me->n_pulls[0]; i++)
        for (int k = 0; k < me->pull[0][i].n_src; k++) {
            int slot = s->operand[me->pull[0][i].src[k].party].slot;
            dt_device from = slot >= 0 && slot < prog->n_ext ? prog->ext[slot].device : prog->device;
            if (from == prog->device) continue;
            int l = dt_cost_level(h, from, prog->device);
            t->in[l] += (double)dt_view_numel(me->pull[0][i].dst) * (double)dt_dtype_size(me->pull[0][i].dst->dtype);
            t->peers[l]++;
        }
}

static price price_coll(const dt_hardware *h, const dt_program *prog, const priced *x, const dt_instr *s, bytes_in *in) {
    price y = {.coll = true, .wait = s->wait, .also = (uint16_t)s->also};
    double latency = 0;
    for (uint32_t k = 0; k <= s->also; k++) {
        const dt_coll *c = s[k].coll;
        dt_traffic own = {{0}};
        const dt_traffic *t = &own;
        double l = 0, m = 0;
        if (c->pulled) {
            pulled_traffic(h, prog, &s[k], &own);
            dt_cost_transfer(h, c->kind, t, &l, &m);
        } else if (c->index >= 0) {
            t = &x->coll[c->index].party[s[k].party];
            l = x->coll[c->index].latency;
            m = x->coll[c->index].moving;
            y.meets = true;
        } else /* fills its output with zeros */
            m = (double)dt_view_numel(&s[k].view[0]) * (double)dt_dtype_size(s[k].view[0].dtype) / h->bandwidth;
        latency = fmax(latency, l);
        y.seconds += m;
        for (int q = 0; q < DT_LINK_LEVELS; q++) in->in[q] += t->in[q];
    }
    y.seconds += latency + h->overhead;
    return y;
}

static dt_status price_program(const dt_hardware *h, dt_plan *p, const dt_program *prog, const priced *x, price_list *l) {
    *l = (price_list){.traffic = DT_ARENA_ARRAY(&p->arena, bytes_in, prog->n_instr[0] + prog->n_instr[1] + 1)};
    if (!l->traffic) return no_memory();
    for (int q = 0; q < 2; q++) {
        l->at[q] = DT_ARENA_ARRAY(&p->arena, price, prog->n_instr[q] + 1);
        if (!l->at[q]) return no_memory();
        for (int i = 0; i < prog->n_instr[q]; i += 1 + (int)prog->instr[q][i].also) {
            const dt_instr *s = &prog->instr[q][i];
            price *y = &l->at[q][l->n[q]++];
            if (s->kind == DT_I_COLL) {
                bytes_in in = {{0}};
                *y = price_coll(h, prog, x, s, &in);
                l->traffic[l->n_traffic++] = in;
                for (int k = 0; k < DT_LINK_LEVELS; k++) l->all.in[k] += in.in[k];
                continue;
            }
            dt_op_cost c;
            dt_cost_instr(h, s, &c);
            *y = (price){.seconds = c.seconds, .wait = s->wait};
            l->flops += c.flops;
            l->ideal += c.ideal;
        }
    }
    return DT_OK;
}

static bool same_prices(const price_list *a, const price_list *b) {
    if (a->n[0] != b->n[0] || a->n[1] != b->n[1] || a->n_traffic != b->n_traffic || a->flops != b->flops) return false;
    for (int q = 0; q < 2; q++)
        for (int i = 0; i < a->n[q]; i++) {
            const price *x = &a->at[q][i], *y = &b->at[q][i];
            if (x->seconds != y->seconds || x->wait != y->wait || x->coll != y->coll || x->meets != y->meets || x->also != y->also) return false;
        }
    return !memcmp(a->traffic, b->traffic, sizeof *a->traffic * (size_t)a->n_traffic);
}

static bool is_empty(const dt_program *p) { return p->n_instr[0] + p->n_instr[1] + p->n_out == 0; } /* others read its memory, that is all */

/* Does every collective stand at the same place in all programs that do anything? They have one price list. */
static bool meet_alike(const dt_plan *p) {
    int first = 0;
    while (first + 1 < p->n_programs && is_empty(&p->program[first])) first++;
    const dt_program *a = &p->program[first];
    for (int q = 0; q < 2; q++)
        for (int i = 0; i < a->n_instr[q]; i++) {
            if (a->instr[q][i].kind != DT_I_COLL || a->instr[q][i].coll->index < 0) continue;
            for (int k = first + 1; k < p->n_programs; k++) {
                if (is_empty(&p->program[k])) continue;
                const dt_instr *s = &p->program[k].instr[q][i];
                if (s->kind != DT_I_COLL || s->coll->index < 0) return false;
            }
        }
    return true;
}

static bool bound_alike(const dt_program *a, const dt_program *b) {
    if (a->n_ext != b->n_ext || a->n_out != b->n_out || a->arena_bytes != b->arena_bytes) return false;
    for (int k = 0; k < a->n_out; k++)
        if (a->out_bytes[k] != b->out_bytes[k]) return false;
    for (int k = 0; k < a->n_ext; k++)
        if (a->ext[k].value != b->ext[k].value || a->ext[k].written != b->ext[k].written) return false;
    return true;
}

/* May one program's buffers and times stand for all that do something? Then they cost the same, their memory and results are alike, and every result has
 * one part in each of them at the same place. The number of that program, or -1. */
static int stands_for_all(const dt_plan *p, const priced *x) {
    int first = -1, n = 0;
    bool meets = false;
    for (int i = 0; i < p->n_programs; i++) {
        if (is_empty(&p->program[i])) continue;
        if (first < 0) first = i;
        if (x->list[i] != x->list[first] || !bound_alike(&p->program[first], &p->program[i])) return -1;
        n++;
    }
    if (n < 2) return -1;
    const price_list *l = x->list[first];
    for (int q = 0; q < 2; q++)
        for (int i = 0; i < l->n[q]; i++) meets |= l->at[q][i].meets;
    if (meets && !meet_alike(p)) return -1;
    for (int o = 0; o < p->n_outs; o++) {
        const dt_out_plan *y = &p->out[o];
        if (p->call[y->node]->out[y->out]->mesh->n != n) return -1;
        for (int d = 0; d < n; d++)
            if (y->part[d].slot != y->part[0].slot || y->part[d].offset != y->part[0].offset || (d && y->part[d].program == y->part[0].program)) return -1;
    }
    return first;
}

/* ---- gangs ------------------------------------------------------------------------------------------------------------------------------------------ */
typedef struct gang {
    struct gang *next;
    bool live;         /* the members' clocks are here */
    dt_sim_device sum; /* free_at: of all; the rest is still to be added to each */
    int n;
    uint32_t member[]; /* ascending */
} gang;
static gang *gangs;                   /* kept as long as the process */
static gang *gang_of[DT_MAX_DEVICES]; /* a live one, or NULL */

static void add(dt_sim_device *d, const dt_sim_device *x) {
    d->busy += x->busy;
    d->comm += x->comm;
    d->exposed += x->exposed;
    d->flops += x->flops;
    d->ideal += x->ideal;
    for (int k = 0; k < DT_LINK_LEVELS; k++) d->bytes[k] += x->bytes[k];
    d->kernels += x->kernels;
    d->transfers += x->transfers;
}

/* Each member has its own clock again. */
static void gang_part(gang *g) {
    for (int i = 0; i < g->n; i++) {
        dt_sim_device *d = &device[g->member[i]];
        d->free_at = g->sum.free_at;
        add(d, &g->sum);
        gang_of[g->member[i]] = NULL;
    }
    g->live = false;
}

static dt_sim_device *device_at(uint32_t i) {
    if (gang_of[i]) gang_part(gang_of[i]);
    return &device[i];
}

/* The members' clocks become one, if they are the same. */
static bool gang_meet(gang *g) {
    if (g->live) return true;
    double at = device_at(g->member[0])->free_at;
    bool same = true;
    for (int i = 1; i < g->n; i++) same &= device_at(g->member[i])->free_at == at;
    if (!same) return false;
    for (int i = 0; i < g->n; i++) gang_of[g->member[i]] = g;
    g->sum = (dt_sim_device){.free_at = at};
    return g->live = true;
}

static void gangs_reset(void) {
    for (gang *g = gangs; g; g = g->next) g->live = false;
    memset(gang_of, 0, sizeof gang_of);
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Of the plan's programs that do anything. NULL: out of host memory. */
static gang *gang_find(const dt_plan *p) {
    gang *g = dt_malloc(sizeof *g + sizeof *g->member * (size_t)p->n_programs);
    if (!g) return NULL;
    *g = (gang){.next = gangs};
    for (int i = 0; i < p->n_programs; i++)
        if (!is_empty(&p->program[i])) g->member[g->n++] = dt_device_index(p->program[i].device);
    qsort(g->member, (size_t)g->n, sizeof *g->member, ascending);
    for (gang *o = gangs; o; o = o->next)
        if (o->n == g->n && !memcmp(o->member, g->member, sizeof *g->member * (size_t)g->n)) {
            dt_free(g);
            return o;
        }
    return gangs = g;
}

static void swap_programs(dt_plan *p, int k) {
    dt_program first = p->program[0];
    p->program[0] = p->program[k];
    p->program[k] = first;
}

/* From the next run on the program stands for all: it is made the first. */
static void let_one_stand(dt_plan *p, priced *x) {
    const dt_program *one = &p->program[x->stands];
    x->gang = gang_find(p);
    p->shared = dt_arena_alloc(&p->arena, sizeof *p->shared * (size_t)(p->n_outs + 1));
    p->shared_ext = DT_ARENA_ARRAY(&p->arena, uint32_t, one->n_ext + 1);
    if (!x->gang || !p->shared || !p->shared_ext) return;
    for (int k = 0; k < one->n_ext; k++) p->shared_ext[k] = one->ext[k].value;
    for (int o = 0; o < p->n_outs; o++) { /* the same slot and offset in all */
        p->shared[o].slot = p->out[o].part[0].slot;
        p->shared[o].offset = p->out[o].part[0].offset;
    }
    swap_programs(p, x->stands);
    x->list[0] = x->list[x->stands]; /* all others' that do anything */
    p->stands = x->stands;
    x->uniform = true;
    p->n_alike = p->n_programs;
}

/* Back again. */
static void each_stands(dt_plan *p) {
    swap_programs(p, p->stands);
    p->n_programs = p->n_alike;
    p->n_alike = 0;
}

static dt_status price_plan(dt_plan *p, priced **out) {
    const dt_hardware *h = dt_hardware_get();
    priced *x = DT_ARENA_NEW(&p->arena, priced);
    if (!x) return no_memory();
    x->list = DT_ARENA_ARRAY(&p->arena, price_list *, p->n_programs + 1);
    x->coll = DT_ARENA_ARRAY(&p->arena, coll_price, p->n_colls + 1);
    if (!x->list || !x->coll) return no_memory();
    x->hardware = dt_hardware_generation;
    DT_TRY(price_colls(h, p, x));
    price_list *known = NULL;
    for (int i = 0; i < p->n_programs; i++) {
        price_list *l = DT_ARENA_NEW(&p->arena, price_list), *same = known;
        if (!l) return no_memory();
        DT_TRY(price_program(h, p, &p->program[i], x, l));
        while (same && !same_prices(same, l)) same = same->next;
        if (!same) {
            l->next = known;
            known = same = l;
        }
        x->list[i] = same;
        size_t times = (size_t)p->program[i].n_instr[0] + 2 * (size_t)p->program[i].n_instr[1];
        x->most = times > x->most ? times : x->most;
    }
    x->uniform = known && !known->next && meet_alike(p);
    for (const price_list *l = known; l; l = l->next)
        for (int q = 0; q < 2; q++)
            for (int i = 0; i < l->n[q]; i++) x->meets |= l->at[q][i].meets;
    x->stands = dt_nodes > 1 ? -1 : stands_for_all(p, x); /* a node binds its own */
    *out = x;
    return DT_OK;
}

/* ---- one run --------------------------------------------------------------------------------------------------------------------------------------- */
typedef struct queue { /* of a program, while its run is gone through */
    int next, instr;   /* of the price list, of the program */
    double at;         /* this far in time */
    double *end;       /* (instructions,) when each was done */
    double *took;      /* of the communication queue: how long the transfer that ended there was */
} queue;
typedef struct going {
    queue q[2];
    double begin, busy, comm, exposed;
    bool stuck[2]; /* arrived at a collective: counted there */
} going;

typedef struct room { /* grows; kept between runs */
    going *g;
    double *time;
    int *woken; /* programs that a collective held up */
    size_t n_g, n_time, n_woken;
} room;
static room the_room;

static void *grown(void *p, size_t *have, size_t want, size_t each) {
    if (*have >= want && p) return p;
    void *n = dt_realloc(p, want * each);
    if (n) *have = want;
    return n;
}

/* When the memory that it reads and overwrites is there. */
static double data_at(const dt_program *prog, const dt_run_part *part) {
    double t = host_at;
    for (int k = 0; k < prog->n_ext; k++) {
        const dt_buf *b = part->buf[k];
        if (prog->ext[k].device != prog->device)
            t = fmax(t, b->written_at);
        else if (prog->ext[k].written)
            t = fmax(t, b->read_until);
    }
    return t;
}

static double starts_at(const dt_program *prog, const dt_run_part *part) {
    return fmax(device_at(dt_device_index(prog->device))->free_at, data_at(prog, part));
}

/* An instruction that begins at `from` and waits for nobody; the queue has been waiting for the other one until `other_end`, whose last transfer took `took`. */
static void advance(going *g, int q, const price *y, double from, double end) {
    queue *x = &g->q[q];
    if (y->coll) {
        g->comm += end - from;
        if (!q) g->exposed += end - from;
    } else
        g->busy += end - from;
    x->at = end;
    for (int k = 0; k <= y->also; k++) {
        x->end[x->instr] = end;
        if (q) x->took[x->instr] = end - from;
        x->instr++;
    }
    x->next++;
}

/* Time at which queue q's next instruction can begin as far as its own device is concerned; false: the other queue is not that far. */
static bool ready(going *g, int q, const price *y, double *at) {
    queue *x = &g->q[q], *other = &g->q[!q];
    *at = x->at;
    if (!y->wait) return true;
    if (other->instr < (int)y->wait) return false;
    double e = other->end[y->wait - 1];
    if (e > *at) {
        if (!q) g->exposed += fmin(e - *at, other->took[y->wait - 1]);
        *at = e;
    }
    return true;
}

/* What a program adds to its device; free_at: when it ends. */
static dt_sim_device account(const going *g, const price_list *l) {
    double end = fmax(g->q[0].at, g->q[1].at), exposed = g->exposed;
    if (g->q[1].at > g->q[0].at) exposed += fmin(g->q[1].at - g->q[0].at, l->n[1] ? g->q[1].took[g->q[1].instr - 1] : 0);
    double taken = (1 - dt_hardware_get()->overlap) * fmax(0, g->comm - exposed); /* what runs beside computation takes some of its time from it */
    end += taken;
    dt_sim_device d = {.free_at = end, .busy = g->busy, .comm = g->comm, .exposed = exposed + taken, .flops = l->flops, .ideal = l->ideal};
    memcpy(d.bytes, l->all.in, sizeof d.bytes);
    d.kernels = (uint64_t)(l->n[0] + l->n[1] - l->n_traffic);
    d.transfers = (uint64_t)l->n_traffic;
    return d;
}

static void finish_device(dt_sim_device *d, const dt_sim_device *x, double end) {
    d->free_at = end;
    add(d, x);
    if (end > totals.now) totals.now = end;
}

static void finish_memory(double end, const dt_program *prog, dt_run_part *part) {
    for (int k = 0; k < prog->n_ext + prog->n_out; k++) {
        dt_buf *b = part->buf[k];
        if (k < prog->n_ext && prog->ext[k].device != prog->device)
            b->read_until = fmax(b->read_until, end);
        else if (k >= prog->n_ext || prog->ext[k].written)
            b->written_at = end;
    }
}

static void finish(const dt_sim_device *x, const dt_program *prog, dt_run_part *part) {
    finish_device(device_at(dt_device_index(prog->device)), x, x->free_at);
    finish_memory(x->free_at, prog, part);
}

/* Real devices would wait for ever here: say so, rather than give the time until then. */
static dt_status at_end(const going *g, const dt_program *prog, const price_list *l) {
    for (int q = 0; q < 2; q++)
        if (g->q[q].next < l->n[q])
            return dt_fail(DT_E_INTERNAL, "simulation: sim:%u waits for ever at instruction %d of its queue %d", dt_device_index(prog->device), g->q[q].instr,
                           q);
    return DT_OK;
}

/* Every program of the run alike: one is gone through. Its queues wait for each other only backwards in one order, so going as far as possible on one and then
 * on the other comes to an end. */
static dt_status go_together(dt_run *r, const priced *x, going *g, double data) {
    const price_list *l = x->list[0];
    for (bool moved = true; moved;) {
        moved = false;
        for (int q = 0; q < 2; q++) {
            double at;
            while (g->q[q].next < l->n[q] && ready(g, q, &l->at[q][g->q[q].next], &at)) {
                const price *y = &l->at[q][g->q[q].next];
                advance(g, q, y, at, at + y->seconds);
                moved = true;
            }
        }
    }
    DT_TRY(at_end(g, &r->plan->program[0], l));
    const dt_sim_device all = account(g, l);
    if (!r->plan->n_alike)
        for (int i = 0; i < r->plan->n_programs; i++) finish(&all, &r->plan->program[i], &r->part[i]);
    else {
        if (x->gang->live)
            finish_device(&x->gang->sum, &all, all.free_at);
        else
            for (int i = 0; i < x->gang->n; i++) {
                dt_sim_device *d = device_at(x->gang->member[i]);
                finish_device(d, &all, x->meets ? all.free_at : all.free_at + (fmax(d->free_at, data) - g->begin));
            }
        finish_memory(all.free_at, &r->plan->program[0], &r->part[0]);
    }
    return DT_OK;
}

static void go_one(dt_run *r, priced *x, going *all, int i, int *woken, int *n_woken) {
    const dt_program *prog = &r->plan->program[i];
    const price_list *l = x->list[i];
    going *g = &all[i];
    for (bool moved = true; moved;) {
        moved = false;
        for (int q = 0; q < 2; q++)
            while (g->q[q].next < l->n[q]) {
                const price *y = &l->at[q][g->q[q].next];
                const dt_instr *s = &prog->instr[q][g->q[q].instr];
                const dt_coll *c = y->meets ? s->coll : NULL;
                coll_price *m = c ? &x->coll[c->index] : NULL;
                int group = c ? c->party[s->party].group : 0, first = c && c->member ? c->first[group] : 0;
                int size = !c ? 0 : c->member ? c->first[group + 1] - first : c->n;
                double at;
                if (!g->stuck[q]) {
                    if (!ready(g, q, y, &at)) break;
                    if (!m) {
                        advance(g, q, y, at, at + y->seconds);
                        moved = true;
                        continue;
                    }
                    g->q[q].at = at;
                    m->last[group] = m->arrived[group]++ ? fmax(m->last[group], at) : at;
                    g->stuck[q] = true;
                    if (m->arrived[group] < size) break;
                    for (int k = 0; k < size; k++) { /* the last one: all go on */
                        int who = m->program[c->member ? c->member[first + k] : k];
                        if (who != i) woken[(*n_woken)++] = who;
                    }
                }
                if (!m || m->arrived[group] < size) break;
                g->stuck[q] = false;
                advance(g, q, y, m->last[group], m->last[group] + y->seconds);
                moved = true;
            }
    }
}

static bool begin_together(const dt_plan *p, const going *g, int first) {
    for (int i = 0; i < p->n_programs; i++)
        if (!is_empty(&p->program[i]) && g[i].begin != g[first].begin) return false;
    return true;
}

static dt_status go(dt_run *r, priced *x) {
    const dt_plan *p = r->plan;
    room *m = &the_room;
    size_t n = (size_t)p->n_programs, each = x->most;
    m->g = grown(m->g, &m->n_g, n, sizeof *m->g);
    m->woken = grown(m->woken, &m->n_woken, x->parties + 1, sizeof *m->woken);
    if (!m->g || !m->woken) return no_memory();
    bool together = x->uniform;
    double data = 0;
    if (p->n_alike) {
        data = data_at(&p->program[0], &r->part[0]);
        bool one = gang_meet(x->gang);
        double free_at = one ? x->gang->sum.free_at : device_at(dt_device_index(p->program[0].device))->free_at;
        for (int i = 0; !one && x->meets && i < x->gang->n; i++) free_at = fmax(free_at, device_at(x->gang->member[i])->free_at);
        m->g[0] = (going){.begin = fmax(free_at, data)};
    }
    for (size_t i = 0; !p->n_alike && i < n; i++) {
        m->g[i] = (going){.begin = starts_at(&p->program[i], &r->part[i])};
        together &= m->g[i].begin == m->g[0].begin;
    }
    size_t sets = together ? 1 : n;
    m->time = grown(m->time, &m->n_time, sets * each + 1, sizeof *m->time);
    if (!m->time) return no_memory();
    for (size_t i = 0; i < sets; i++) {
        double *t = m->time + i * each;
        const dt_program *prog = &p->program[i];
        m->g[i].q[0] = (queue){.at = m->g[i].begin, .end = t};
        m->g[i].q[1] = (queue){.at = m->g[i].begin, .end = t + prog->n_instr[0], .took = t + prog->n_instr[0] + prog->n_instr[1]};
    }
    bool stand = x->stands >= 0 && !p->n_alike && (!x->meets || begin_together(p, m->g, x->stands));
    if (together) {
        DT_TRY(go_together(r, x, &m->g[0], data));
        if (stand) x->ready = true;
        return DT_OK;
    }
    for (int i = 0; i < p->n_colls; i++)
        if (x->coll[i].arrived) memset(x->coll[i].arrived, 0, sizeof(int) * (size_t)p->coll[i]->n_groups);
    int n_woken = 0;
    for (int i = 0; i < p->n_programs; i++) {
        go_one(r, x, m->g, i, m->woken, &n_woken);
        while (n_woken) {
            int who = m->woken[--n_woken];
            go_one(r, x, m->g, who, m->woken, &n_woken);
        }
    }
    for (int i = 0; i < p->n_programs; i++) DT_TRY(at_end(&m->g[i], &p->program[i], x->list[i]));
    for (int i = 0; i < p->n_programs; i++) {
        const dt_sim_device one = account(&m->g[i], x->list[i]);
        finish(&one, &p->program[i], &r->part[i]);
    }
    if (stand) x->ready = true;
    return DT_OK;
}

/* ---- errors ------------------------------------------------------------------------------------------------------------------------------------------ */
static dt_error_t *input_error(const dt_run *r) {
    if (DT_LIKELY(!serving && !atomic_load_explicit(&dt_sim_failed, memory_order_relaxed))) return NULL;
    for (int i = 0; i < r->plan->n_programs; i++)
        for (int k = 0; k < r->plan->program[i].n_ext; k++) {
            dt_error_t *e = atomic_load_explicit(&r->part[i].buf[k]->error, memory_order_relaxed);
            if (DT_UNLIKELY(e != NULL)) return e;
        }
    return NULL;
}

static void fail_results(dt_run *r, dt_error_t *e) {
    atomic_store(&dt_sim_failed, true);
    for (int i = 0; i < r->plan->n_programs; i++) {
        const dt_program *g = &r->plan->program[i];
        for (int k = 0; k < g->n_ext + g->n_out; k++) {
            if (k < g->n_ext && !g->ext[k].written) continue;
            dt_error_t *none = NULL, *mine = dt_error_ref(e);
            if (!atomic_compare_exchange_strong(&r->part[i].buf[k]->error, &none, mine)) dt_error_unref(mine);
        }
    }
}

/* The run has ended: nothing is bound to the plan now. On other hardware devices may no longer do the same: prices will tell. */
void dt_sim_ran(dt_plan *p) {
    priced *x = p->sim;
    bool valid = x->hardware == dt_hardware_generation;
    if (p->n_alike && !valid)
        each_stands(p);
    else if (!p->n_alike && valid && x->ready)
        let_one_stand(p, x);
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void dt_sim_run(dt_run *r) {
    double begin = serving ? 0 : cpu_seconds();
    dt_status s = DT_OK;
    dt_error_t *e = input_error(r);
    if (DT_UNLIKELY(e != NULL)) fail_results(r, e);
    if (serving) return; /* times are the controller's */
    if (!e) {
        priced *x = r->plan->sim;
        if ((!x || x->hardware != dt_hardware_generation) && !(s = price_plan(r->plan, &x))) r->plan->sim = x;
        if (!s) s = go(r, x);
        if (s) {
            e = dt_error_new(s, 0, "simulation", dt_error_message());
            fail_results(r, e);
            dt_error_unref(e);
        }
    }
    totals.runs++;
    totals.seconds += cpu_seconds() - begin;
}

void dt_sim_awaited(dt_device d) {
    if (device && dt_device_index(d) < (uint32_t)n_devices) host_at = fmax(host_at, device_at(dt_device_index(d))->free_at);
}

void dt_sim_read(dt_device d, const dt_view *dst) {
    dt_backend_cpu.zero(dst);
    dt_sim_awaited(d);
}

/* ---- start and stop -------------------------------------------------------------------------------------------------------------------------------------- */
dt_status dt_sim_start(const dt_hardware *h, int n) {
    if (n < 1 || n > DT_MAX_DEVICES) return dt_fail(DT_E_VALUE, "simulate: %d devices; 1 to %d are possible", n, DT_MAX_DEVICES);
    dt_sim_device *d = dt_calloc(DT_MAX_DEVICES, sizeof *d); /* tensors of an earlier simulation may still be there */
    if (!d) return no_memory();
    dt_free(device);
    device = d;
    gangs_reset();
    n_devices = n;
    host_at = 0;
    totals = (dt_sim_totals){0};
    dt_hardware_set(h);
    dt_default_device = dt_device_make(DT_SIM, 0);
    atomic_store(&dt_sim_on, true);
    return DT_OK;
}

void dt_sim_stop(void) {
    atomic_store(&dt_sim_on, false);
    dt_default_device = dt_device_make(DT_CPU, 0);
    dt_hardware_set(NULL);
}

int dt_sim_devices(void) { return atomic_load(&dt_sim_on) ? n_devices : 0; }
const dt_sim_device *dt_sim_device_get(int i) { return device_at((uint32_t)i); }
void dt_sim_totals_get(dt_sim_totals *out) { *out = totals; }
int64_t dt_sim_memory(void) { return serving ? serving_limit : dt_hardware_get()->memory; }

void dt_sim_serve(int64_t memory) {
    serving = true;
    serving_limit = memory;
}

/* ---- the backend's table ----------------------------------------------------------------------------------------------------------------------------------- */
static void *sim_alloc(size_t bytes) { /* an address that nobody follows; the limit is the allocator's */
    static uintptr_t next = 1 << 20;
    uintptr_t at = next;
    next += (bytes + 63) & ~(size_t)63;
    return (void *)at;
}
static void sim_free(void *p, size_t bytes) {
    (void)p;
    (void)bytes;
}
static void sim_copy(const dt_view *dst, const dt_view *src, dt_team *team) {
    (void)dst;
    (void)src;
    (void)team;
}
static void sim_zero(const dt_view *dst) { (void)dst; }
static void sim_reduce(const dt_view *dst, const dt_view *src, const int *leaves, int n, dt_reduce op) {
    (void)dst;
    (void)src;
    (void)leaves;
    (void)n;
    (void)op;
}

const dt_backend dt_backend_sim = {
    /* kernels are cpu's, chosen as there and never called: the plans are the same */
    .name = "sim",        .alloc = sim_alloc, .free = sim_free,  .copy = sim_copy,    .zero = sim_zero,
    .reduce = sim_reduce, DT_CPU_FUSING,      .run = dt_sim_run, .read = dt_sim_read, .memory = dt_sim_memory,
};
