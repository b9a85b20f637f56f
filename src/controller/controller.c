/* The controller thread: reads the client's records, collects calls into a subgraph, decides when to dispatch it.
 *
 * When: at a read or a sync; when the subgraph is long; at a call whose hash, with those before it, says so; when the client pauses. The
 * third rule cuts a repeating stream at the same places each time (as content-defined chunking does), so that plans are found again; the
 * fourth keeps latency low. None of them changes a value. */
#include "controller/controller.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "comm/net.h"
#include "controller/engine.h"
#include "controller/remat.h"
#include "controller/remote.h"
#include "controller/repeat.h"
#include "controller/round.h"
#include "passes/options.h"
#include "plan/trace.h"

enum { RING_WORDS = 1 << 18, NODES_MIN = 48, NODES_LONG = 96, NODES_LOOP = 192, NODES_MAX = 768, NAP_US = 60, READ_US = 30 };
/* How long the client must have been silent, in ns. */
enum { QUIET_ASLEEP = 300000, QUIET_REPEAT = 10000000, QUIET_ORDER = 20000000 };

dt_engine dt_the_engine;
static pthread_t thread;
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int started; /* 1 running */
static bool forked, atfork_set;

static dt_gvalue *value_at(uint32_t id) { return id < dt_the_engine.n_value ? dt_the_engine.value[id] : NULL; }
dt_gvalue *dt_engine_value(uint32_t id) { return value_at(id); }

bool dt_engine_value_put(uint32_t id, dt_gvalue *v) {
    dt_engine *e = &dt_the_engine;
    if (id >= e->n_value) {
        uint32_t n = e->n_value ? e->n_value : 1024;
        while (n <= id) n *= 2;
        dt_gvalue **t = dt_realloc(e->value, n * sizeof *t);
        if (!t) return false;
        memset(t + e->n_value, 0, (n - e->n_value) * sizeof *t);
        e->value = t;
        e->n_value = n;
    }
    e->value[id] = v;
    return true;
}

/* ---- records ------------------------------------------------------------------------------------------------------------------------------ */
bool dt_engine_flush_now(void) {
    uint32_t flush = dt_options_get()->flush;
    if (DT_LIKELY(!flush)) return false;
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17; /* xorshift64 */
    return state % flush == 0;
}

/* g's last call is the same as the one before it, or two before: which of its inputs has the last call made? 0: none. */
static uint64_t chained(const dt_graph *g) {
    const dt_gnode *n = &g->node[g->n - 1];
    if (g->n < 2 || (n[-1].call != n->call && (g->n < 3 || n[-2].call != n->call))) return 0;
    uint64_t from = 0;
    for (int k = 0; k < n->call->n_in; k++)
        for (int j = 0; n->in[k] && j < n[-1].call->n_out; j++)
            if (n->in[k] == n[-1].out[j]) from += dt_hash_mix(11, (uint64_t)k);
    return from;
}

/* The hash's highest bits depend on the last nine calls and on nothing else, so two streams that were cut differently are soon cut alike. In a loop so short
 * that none of its places has five zeros, one that has three does, or one; where none has, chunks have one length, not too many calls for them to be equal soon.
 *
 * In a chain of equal calls all places are alike but the first one, which another value enters. So what is chained to what counts there as content, and a hash that does not
 * change is no place to cut: otherwise chunks would lie across the chain's beginning in as many ways as there are, and each needs a plan. */
bool dt_engine_cut(dt_engine *e, uint32_t n, const dt_call *c, const dt_graph *g) {
    uint64_t link = g ? chained(g) : 0, before = e->rolling;
    e->rolling = (e->rolling << 7) + c->content + link;
    bool same = link && (e->rolling == before || e->rolling == e->rolling2);
    e->rolling2 = before;
    int zeros = n < NODES_LONG ? 5 : n < NODES_LONG + NODES_MIN ? 3 : 1;
    return dt_engine_flush_now() || n >= (link ? NODES_MAX : NODES_LOOP) || (n >= NODES_MIN && !same && e->rolling >> (64 - zeros) == 0);
}

static dt_gvalue *output_new(const dt_call *c, int k, uint32_t site) {
    dt_gvalue *v = dt_gvalue_new(c->out[k]);
    if (!v) return NULL;
    v->client = true;
    v->site = site;
    v->out = (uint32_t)k;
    return v;
}

/* A call that cannot even be recorded: its values exist, with the error. */
static void fail_call(dt_call *c, uint32_t site, dt_gvalue **out) {
    dt_error_t *err = dt_error_new(DT_E_NOMEM, site, dt_op_name(c->op), "the controller is out of host memory");
    for (int k = 0; k < c->n_out; k++)
        if ((out[k] = output_new(c, k, site))) dt_gvalue_poison(out[k], err);
    dt_error_unref(err);
    dt_call_unref(c);
}

void dt_engine_node(dt_graph *g, dt_call *c, uint32_t site, dt_gvalue **in, const uint64_t *number, dt_gvalue **out) {
    dt_gnode *n = g ? dt_graph_add(g, c, site) : NULL;
    if (!n) {
        fail_call(c, site, out);
        return;
    }
    dt_the_engine.stats.nodes++;
    for (int k = 0; k < c->n_in; k++) {
        if (!c->in[k]) continue;
        if (c->in[k]->wrapped) {
            n->number[k] = number[k];
            continue;
        }
        n->in[k] = in[k];
        if (n->in[k]) n->in[k]->uses++;
    }
    for (int k = 0; k < c->n_out; k++) {
        n->out[k] = out[k] = output_new(c, k, site);
        if (out[k]) out[k]->node = g->n - 1;
    }
}

/* A run's programs are all simulated or all real. Both kinds come in one stream when a tensor of a simulation outlives it, or a real one is used inside. */
static void part_kinds(const dt_engine *e, const dt_call *c) {
    static bool any_sim, sim_in_order; /* in order: what waits in segments */
    bool sim = dt_device_kind(c->mesh->dev[0]) == DT_SIM;
    any_sim |= sim;
    if (DT_LIKELY(!any_sim)) return;
    bool other = e->graph.n && (dt_device_kind(e->graph.node[0].call->mesh->dev[0]) == DT_SIM) != sim;
    if (other || (sim_in_order != sim && dt_order_pending())) dt_engine_dispatch();
    sim_in_order = sim;
}

static void on_call(dt_engine *e, const uint64_t *w, uint32_t n_in, uint32_t n_out) {
    if (dt_round_active() ? dt_round_call(e, w) : dt_repeat_call(e, w) || (dt_order_is_on() && dt_round_call(e, w))) return;
    dt_call *c = (dt_call *)(uintptr_t)w[1];
    part_kinds(e, c);
    const uint64_t *in = w + 3, *id = in + n_in;
    dt_graph *g = &e->graph;
    uint32_t segment = 0, from[n_in + 1];
    dt_gvalue *v[n_in + 1], *out[n_out + 1];
    for (uint32_t k = 0; k < n_in; k++) {
        v[k] = c->in[k] && !c->in[k]->wrapped ? value_at((uint32_t)in[k]) : NULL;
        from[k] = v[k] ? v[k]->segment : 0;
    }
    if (DT_UNLIKELY(dt_order_active(c->mesh))) {
        dt_round_open();
        g = dt_order_graph(c, from, &segment);
    } else if (e->cut)
        dt_engine_dispatch();
    dt_engine_node(g, c, (uint32_t)w[2], v, in, out);
    for (uint32_t k = 0; k < n_out; k++) {
        if (!out[k]) continue;
        out[k]->segment = segment;
        dt_engine_value_put((uint32_t)id[k], out[k]);
    }
    if (!g) {
        dt_round_failed();
        return;
    }
    if (segment) {
        dt_round_record(w, &g->node[g->n - 1]);
        if (dt_engine_cut(e, dt_order_calls(segment), c, NULL)) dt_order_cut(segment);
    } else
        e->cut = dt_engine_cut(e, (uint32_t)g->n, c, g);
}

static void on_drop(dt_engine *e, uint32_t id) {
    if (dt_round_active() ? dt_round_drop(e, id) : dt_repeat_drop(e, id) || dt_round_drop(e, id)) return;
    dt_gvalue *v = value_at(id);
    if (!v) return;
    e->value[id] = NULL;
    v->client = false;
    dt_gvalue_release(v);
}

static void on_host(const uint64_t *w) {
    dt_hostbuf *h = (dt_hostbuf *)(uintptr_t)w[4];
    dt_gvalue *v = dt_gvalue_new((const dt_meta *)(uintptr_t)w[1]);
    if (v && dt_engine_value_put((uint32_t)w[3], v)) {
        v->client = true;
        v->site = (uint32_t)w[2];
        dt_status s = dt_gvalue_from_host(v, h);
        if (s) {
            dt_error_t *err = dt_error_new(s, (uint32_t)w[2], "from_host", dt_error_message());
            dt_gvalue_poison(v, err);
            dt_error_unref(err);
        }
    }
    dt_hostbuf_unref(h);
}

static void on_file(const uint64_t *w) {
    dt_source *s = (dt_source *)(uintptr_t)w[4];
    dt_future *f = (dt_future *)(uintptr_t)w[5];
    dt_gvalue *v = dt_gvalue_new((const dt_meta *)(uintptr_t)w[1]);
    bool known = v && dt_engine_value_put((uint32_t)w[3], v);
    if (f) atomic_store(&f->parts, (uint32_t)(known ? v->meta->mesh->n : 0) + 1);
    dt_error_t *err = NULL;
    if (known) {
        v->client = true;
        v->site = (uint32_t)w[2];
        dt_status st = dt_gvalue_from_files(v, s, f);
        if (st) {
            err = dt_error_new(st, (uint32_t)w[2], "read", dt_error_message());
            dt_gvalue_poison(v, err);
        }
    }
    if (f) dt_future_part(f, err);
    dt_error_unref(err);
    dt_future_unref(f);
    dt_source_unref(s);
    if (DT_UNLIKELY(dt_nodes > 1) && f) dt_remote_flush();
}

static void on_open(dt_file *file, dt_future *f) {
    atomic_store(&f->parts, 1);
    if (dt_nodes > 1) dt_remote_open(file, f);
    dt_future_part(f, NULL);
    dt_future_unref(f);
    dt_file_unref(file);
}

static void part_failed(dt_future *f, dt_status s, uint32_t site, const char *text) {
    dt_error_t *err = dt_error_new(s, site, "read", text);
    dt_future_part(f, err);
    dt_error_unref(err);
}

/* The part as it lies and where its box goes in the whole; a dimension held in rows counts as two. Returns the box's offset in elements. */
static int64_t fetch_views(const dt_meta *m, const dt_box *box, const dt_part *p, dt_fetch *x) {
    int64_t part[DT_MAX_DIM], whole[DT_MAX_DIM], offset = 0, a = 1, b = 1;
    for (int d = m->ndim - 1; d >= 0; d--) {
        part[d] = p->contiguous ? a : p->stride[d];
        whole[d] = b;
        a *= box->len[d];
        b *= m->shape[d];
        offset += box->lo[d] * whole[d];
    }
    dt_view *src = &x->src, *dst = &x->dst;
    *src = *dst = (dt_view){.dtype = (dt_dtype)m->dtype};
    for (int d = 0; d < m->ndim; d++) {
        int64_t run = box->len[d] / box->rows[d];
        if (box->rows[d] > 1 && src->ndim < DT_MAX_DIM) {
            src->shape[src->ndim] = box->rows[d];
            src->stride[src->ndim++] = run * part[d];
            dst->stride[dst->ndim++] = box->step[d] * whole[d];
        }
        src->shape[src->ndim] = run;
        src->stride[src->ndim++] = part[d];
        dst->stride[dst->ndim++] = whole[d];
    }
    memcpy(dst->shape, src->shape, sizeof dst->shape);
    return offset;
}

/* A box of part `pos` into the future's buffer, which begins with row `first` of the value. False: nothing was pushed and the box is still owed. */
static bool push_fetch(const dt_gvalue *v, int pos, const dt_box *box, int64_t skip, int64_t first, dt_future *f) {
    const dt_meta *m = v->meta;
    const dt_part *p = v->part[pos];
    dt_device_state *s;
    dt_fetch *x = dt_calloc(1, sizeof *x);
    if (!x) return false;
    int64_t size = (int64_t)dt_dtype_size((dt_dtype)m->dtype), offset = fetch_views(m, box, p, x), row = m->ndim && m->shape[0] ? m->numel / m->shape[0] : 0;
    x->dst.data = (char *)f->buf->data + (offset - first * row) * size;
    if (DT_UNLIKELY(!dt_device_here(m->mesh->dev[pos]))) {
        dt_part from = {.buf = p->buf, .offset = p->offset + skip * size};
        dt_status r = dt_remote_fetch(&from, &x->src, &x->dst, f);
        dt_free(x);
        return r == DT_OK;
    }
    if (dt_device_get(m->mesh->dev[pos], &s)) {
        dt_free(x);
        return false;
    }
    x->src.data = (char *)p->buf->data + p->offset + skip * size;
    x->future = f;
    x->buf = p->buf;
    dt_future_ref(f);
    atomic_fetch_add(&p->buf->refs, 1);
    dt_device_push(s, (dt_item){DT_ITEM_FETCH, x});
    return true;
}

/* Pushes what device `pos` holds of rows [lo, hi) (lo < 0: of all); f NULL: only counts the parts. A part that holds its rows in runs gives a part for each run. */
static uint32_t fetch_part(const dt_gvalue *v, int pos, int64_t lo, int64_t hi, dt_future *f, uint32_t site) {
    const dt_meta *m = v->meta;
    dt_box box, b;
    dt_layout_box(m, pos, &box);
    if (!dt_layout_is_first(m, pos) || dt_box_numel(&box, m->ndim) == 0) return 0;
    uint32_t n = 0;
    int64_t runs = lo < 0 ? 1 : box.rows[0], run = lo < 0 ? 0 : box.len[0] / runs, stride = 1;
    for (int d = m->ndim - 1; d > 0; d--) stride *= box.len[d];
    if (v->part[pos] && !v->part[pos]->contiguous && m->ndim) stride = v->part[pos]->stride[0];
    for (int64_t r = 0; r < runs; r++) {
        int64_t skip = 0;
        b = box;
        if (lo >= 0) {
            int64_t from = box.lo[0] + (runs > 1 ? r * box.step[0] : 0), to = from + run;
            if (from < lo) from = lo;
            if (to > hi) to = hi;
            if (from >= to) continue;
            skip = dt_box_local(&box, 0, from) * stride;
            b.lo[0] = from;
            b.len[0] = to - from;
            b.rows[0] = 1;
        }
        n++;
        if (f && !(v->part[pos] && v->part[pos]->buf && push_fetch(v, pos, &b, skip, lo < 0 ? 0 : lo, f)))
            part_failed(f, DT_E_NOMEM, site, "the value cannot be read: out of host memory, or its node is lost");
    }
    return n;
}

static void on_fetch(const uint64_t *w) {
    dt_future *f = (dt_future *)(uintptr_t)w[2];
    uint32_t site = (uint32_t)w[3];
    int64_t lo = (int64_t)w[4], hi = (int64_t)w[5];
    dt_engine_dispatch();
    dt_gvalue *v = value_at((uint32_t)w[1]);
    dt_status again = v && v->evicted ? dt_remat_bring(v) : DT_OK;
    if (again || !v || !v->ready || !v->part) {
        atomic_store(&f->parts, 1);
        part_failed(f, DT_E_NOMEM, site, "the value could not be made: out of host memory");
        dt_future_unref(f);
        return;
    }
    uint32_t parts = 0;
    for (int i = 0; i < v->meta->mesh->n; i++) parts += fetch_part(v, i, lo, hi, NULL, site);
    atomic_store(&f->parts, parts + 1); /* one for this loop: nothing completes before all is pushed, empty tensors complete here */
    for (int i = 0; i < v->meta->mesh->n; i++) (void)fetch_part(v, i, lo, hi, f, site);
    dt_error_t *lost = NULL; /* an empty tensor may still be a failed one */
    if (!parts && v->part[0] && v->part[0]->buf) lost = atomic_load(&v->part[0]->buf->error);
    dt_future_part(f, lost);
    dt_future_unref(f);
    if (DT_UNLIKELY(dt_nodes > 1)) dt_remote_flush();
}

static void push_sync(void *f, dt_device_state *s) {
    if (!dt_worker_pending(s->worker)) { /* is not woken to say so */
        dt_future_part(f, NULL);
        return;
    }
    dt_future_ref(f);
    dt_device_push(s, (dt_item){DT_ITEM_SYNC, f});
}

static void on_sync(dt_future *f, uint32_t trace) {
    dt_engine_dispatch();
    atomic_store(&f->parts, (uint32_t)dt_the_devices.n_started + 1);
    dt_devices_each(push_sync, f);
    if (DT_UNLIKELY(dt_nodes > 1)) dt_remote_sync(f);
    dt_future_part(f, NULL);
    dt_future_unref(f);
}

static void on_trace(dt_future *f, uint32_t trace) {
    dt_engine_dispatch();
    atomic_store(&f->parts, 1);
    if (DT_UNLIKELY(dt_nodes > 1)) dt_remote_trace(f, trace == 1);
    dt_future_part(f, NULL);
    dt_future_unref(f);
}

static void on_limit(dt_device d, int64_t bytes, uint32_t what) {
    dt_engine_dispatch();
    if (what)
        dt_budget_set(d, bytes, what == 2);
    else
        dt_limit_set(d, bytes);
}

static void on_stats(dt_device d, dt_memory_stats *out, dt_future *f, bool new_peaks) {
    dt_device_state *s;
    dt_engine_dispatch();
    atomic_store(&f->parts, 1);
    if (dt_remote_stats(d, out, f, new_peaks)) {
        dt_remote_flush();
        return;
    }
    if (dt_device_get(d, &s) == DT_OK) {
        dt_memory_stats *m = &s->alloc.stats;
        *out = *m;
        if (new_peaks) {
            m->allocated_peak = m->allocated;
            m->reserved_peak = m->reserved;
        }
    }
    dt_future_part(f, NULL);
    dt_future_unref(f);
}

/* One record at w; returns its length in words, 0 for STOP. */
static size_t on_record(dt_engine *e, const uint64_t *w) {
    uint32_t n_in = dt_rec_n_in(w[0]), n_out = dt_rec_n_out(w[0]);
    switch (dt_rec_kind(w[0])) {
    case DT_REC_CALL: on_call(e, w, n_in, n_out); return 3 + n_in + n_out;
    case DT_REC_DROP: on_drop(e, (uint32_t)(w[0] >> 8)); return 1;
    case DT_REC_HOST: on_host(w); return 5;
    case DT_REC_FILE: on_file(w); return 6;
    case DT_REC_OPEN: on_open((dt_file *)(uintptr_t)w[1], (dt_future *)(uintptr_t)w[2]); return 3;
    case DT_REC_FETCH: on_fetch(w); return 6;
    case DT_REC_SYNC: (n_in ? on_trace : on_sync)((dt_future *)(uintptr_t)w[1], n_in); return 2;
    case DT_REC_LIMIT: on_limit((dt_device)w[1], (int64_t)w[2], n_in); return 3;
    case DT_REC_STATS: on_stats((dt_device)w[1], (dt_memory_stats *)(uintptr_t)w[2], (dt_future *)(uintptr_t)w[3], n_in); return 4;
    case DT_REC_STOP: break;
    }
    return 0;
}

/* ---- the loop -------------------------------------------------------------------------------------------------------------------------------- */
bool dt_engine_drain(dt_engine *e, uint64_t until) {
    const uint64_t *w;
    size_t n;
    while ((n = dt_ring_peek(&e->ring, &w))) {
        uint64_t head = atomic_load_explicit(&e->ring.head, memory_order_relaxed);
        size_t at = 0, len = 1;
        if (head >= until) return true;
        if (n > until - head) n = (size_t)(until - head);
        while (at < n && w[at] != DT_RING_WRAP && (len = on_record(e, w + at))) at += len;
        dt_ring_consume(&e->ring, at);
        if (!len) return false;   /* STOP stays: it is the controller thread's */
        if (at == 0) return true; /* cannot happen: peek skips a leading WRAP */
    }
    return true;
}

/* The client pauses and the workers are idle: what is pending is worth more to them than a longer subgraph would be. A chunk that came before is
 * waited for a little longer, as its end is known. */
static void on_idle(dt_engine *e, uint64_t quiet) {
    if (e->graph.n || (dt_repeat_active() && (quiet >= QUIET_REPEAT || !dt_repeat_waits()))) dt_engine_dispatch();
    if (dt_round_complete() && quiet >= QUIET_REPEAT) dt_engine_dispatch();
    if (dt_order_pending() && quiet >= QUIET_ORDER) dt_order_idle();
}

/* Is there something that a pause of the client would dispatch? Not under a budget: what is given up is a function of the stream alone. */
static bool waits_for_pause(const dt_engine *e) { return !e->remat && (e->graph.n || dt_repeat_active() || dt_round_complete() || dt_order_pending()); }

/* Leave the engine's inside and wait. The client's calls wake nobody while it is busy calling: a short nap sees them soon enough. While workers have something to do, the nap ends
 * when they fall idle. When the client has been silent for long, its next call wakes. */
static void wait_for_records(dt_engine *e, uint64_t quiet, bool waits) {
    bool asleep = quiet > QUIET_ASLEEP;
    atomic_store(&dt_devices_tell, 1);
    int64_t nap = 16 * NAP_US;
    if (dt_nodes > 1 || !dt_devices_pending()) { /* nodes are told what they shall do after some naps */
        atomic_store(&dt_devices_tell, 0);
        nap = asleep && dt_nodes == 1 ? 4 * NAP_US : NAP_US;
    }
    dt_engine_leave();
    dt_ring_wait(&e->ring, asleep && !waits ? -1 : nap, asleep);
}

/* While reads follow each other closely and whoever waits for them does the work (help.c): sleep, longer each time, unless somebody asks. *seen: how often they had. */
static void stay_away(dt_engine *e, uint64_t *seen) {
    for (int64_t nap = NAP_US; !dt_ring_woken(&e->ring); dt_ring_nap(&e->ring, nap)) {
        uint64_t n = dt_engine_helped(), more = n - *seen;
        *seen = n;
        if (more < (uint64_t)nap / READ_US) return;
        if (nap < 16 * NAP_US) nap *= 2;
    }
}

static void *controller_main(void *arg) {
    dt_engine *e = arg;
    pthread_setname_np(pthread_self(), "dt-controller");
    dt_trace_lane("controller");
    uint64_t seen = 0, since = 0, helped = 0;
    for (;;) {
        stay_away(e, &helped);
        dt_engine_enter();
        if (!dt_engine_drain(e, UINT64_MAX)) {
            dt_engine_leave();
            return NULL;
        }
        uint64_t head = atomic_load_explicit(&e->ring.head, memory_order_relaxed), now = dt_now_ns();
        if (head != seen)
            since = now;
        else {
            dt_repeat_pause();
            if (waits_for_pause(e) && !dt_devices_pending()) on_idle(e, now - since);
        }
        seen = head;
        if (DT_UNLIKELY(dt_nodes > 1) && dt_stream_pump()) dt_remote_flush();
        if (DT_UNLIKELY(dt_nodes > 1)) dt_remote_flush_some(now - since > 2000 * NAP_US);
        wait_for_records(e, now - since, waits_for_pause(e));
    }
}

/* ---- start and stop: the client's side --------------------------------------------------------------------------------------------------------- */
static void in_child(void) { forked = atomic_load(&started) != 0; }

/* What an engine that was stopped has left: its ring, which handles may still write their drops to, and values that somebody named to the end. Their memory
 * went with the devices. */
static void forget(dt_engine *e) {
    for (uint32_t id = 0; id < e->n_value; id++) {
        dt_gvalue *v = e->value[id];
        if (!v) continue;
        for (int i = 0; v->part && i < v->meta->mesh->n; i++)
            if (v->part[i] && !(i && v->part[i] == v->part[0])) dt_buf_unref(v->part[i]->buf);
        dt_gvalue_parts_forget(v);
    }
    dt_gvalues_forget();
    dt_free(e->value);
    dt_graph_fini(&e->graph);
    dt_ring_fini(&e->ring);
}

dt_status dt_engine_start(void) {
    if (DT_LIKELY(atomic_load_explicit(&started, memory_order_acquire) == 1 && !forked)) return DT_OK;
    if (forked)
        return dt_fail(DT_E_STATE, "dtorch was used before this process was forked; its threads do not exist here. Use multiprocessing's "
                                   "\"spawn\" method, or fork before the first dtorch call");
    dt_engine *e = &dt_the_engine;
    dt_status s = DT_OK;
    pthread_mutex_lock(&start_lock);
    if (!atomic_load(&started)) {
        forget(e);
        memset(e, 0, sizeof *e);
        e->fp_mode = dt_cpu_fp_mode(); /* the threads made from here on inherit it */
        s = dt_options_load();
        if (!s) s = dt_ops_init();
        if (!s) s = dt_ring_init(&e->ring, RING_WORDS);
        if (!s) s = dt_remote_start();
        if (!s) s = dt_graph_init(&e->graph);
        if (!s) s = dt_htab_init(&e->plans, 256);
        dt_devices_idle = dt_engine_flush; /* before the thread: one that waits may do its work before it runs at all */
        dt_devices_wait = dt_nodes > 1 ? dt_remote_flush : NULL;
        if (!s && pthread_create(&thread, NULL, controller_main, e)) s = dt_fail(DT_E_NOMEM, "cannot start the controller's thread");
        if (!s && !atfork_set) atfork_set = pthread_atfork(NULL, NULL, in_child) == 0;
        if (!s) dt_engine_help_begin();
        if (!s) atomic_store_explicit(&started, 1, memory_order_release);
    }
    pthread_mutex_unlock(&start_lock);
    return s;
}

dt_ring *dt_engine_ring(void) { return &dt_the_engine.ring; }
void dt_engine_flush(void) { dt_ring_wake(&dt_the_engine.ring); }
bool dt_engine_is_forked(void) { return forked; }
dt_status dt_engine_mpi(char *text, size_t cap) { return dt_net_probe(text, cap); }
void dt_engine_nodes_init(void) { dt_nodes_init(); }
void dt_engine_threads_set(int n) { dt_devices_threads_set(n); }
int dt_engine_threads(void) { return dt_devices_threads(); }
double dt_engine_cpu_seconds(void) {
    clockid_t id;
    struct timespec t;
    if (!atomic_load(&started) || forked || pthread_getcpuclockid(thread, &id) || clock_gettime(id, &t)) return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
void dt_engine_stats_get(dt_engine_stats *out) { *out = dt_the_engine.stats; }

void dt_engine_stop(void) {
    dt_engine *e = &dt_the_engine;
    if (forked || !atomic_load(&started)) return;
    pthread_mutex_lock(&start_lock);
    if (atomic_load(&started)) {
        dt_engine_help_end();
        uint64_t *w = dt_ring_reserve(&e->ring, 1);
        w[0] = DT_REC_HEADER(DT_REC_STOP, 0, 0);
        dt_ring_publish(&e->ring);
        dt_ring_wake(&e->ring);
        pthread_join(thread, NULL);
        if (DT_UNLIKELY(dt_nodes > 1)) dt_remote_flush(); /* other nodes have their part of what was dispatched, or its collectives would wait for ever */
        dt_devices_quiesce();
        dt_stream_free();
        dt_remote_stop();
        dt_order_free();
        while (e->with_recipe) dt_remat_forget(e->with_recipe);
        dt_bufs_sweep();
        dt_devices_free();
        dt_round_free();
        dt_cache_free(e);
        dt_repeat_free();
        dt_dispatch_free();
        dt_gvalues_free();
        atomic_store(&started, 0);
    }
    pthread_mutex_unlock(&start_lock);
}
