/* Workers. See worker.h. The interpreter: patch addresses, check errors, call. */
#include "worker/worker.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/ring.h"
#include "plan/fused.h"
#include "plan/trace.h"
#include "worker/inside.h"

enum { SHORT_BYTES = 1 << 20 };

void dt_buf_unref(dt_buf *b) {
    if (!b || (atomic_load_explicit(&b->refs, memory_order_acquire) != 1 && atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1)) return;
    dt_error_unref(atomic_load(&b->error));
    dt_hostbuf_unref(b->host);
    if (!b->block)
        dt_free(b);
    else if (atomic_load_explicit(b->block, memory_order_acquire) == 1 || atomic_fetch_sub_explicit(b->block, 1, memory_order_acq_rel) == 1)
        dt_buf_block_free(b->block);
}

/* ---- one instruction ------------------------------------------------------------------------------------------------------------------ */
static void *address(const dt_run_part *p, dt_operand o) { return o.slot < 0 ? NULL : (char *)p->base[o.slot] + o.offset; }

static void set_error(dt_run_part *p, int slot, dt_error_t *e) { /* takes one reference */
    if (slot < 0 || p->error[slot]) {
        dt_error_unref(e);
        return;
    }
    p->error[slot] = e;
}

static dt_error_t *input_error(const dt_run_part *p, const dt_instr *s) {
    if (DT_UNLIKELY(p->failed != NULL)) return p->failed;
    for (int k = 0; k < s->n_in; k++)
        if (s->operand[k].slot >= 0 && p->error[s->operand[k].slot]) return p->error[s->operand[k].slot];
    return NULL;
}

/* Has a look-up of the group an index that is out of range? bad: of each, the error of its own call, referenced; NULL: none. */
static bool check_lookups(dt_worker *w, dt_run_part *p, const dt_instr *s, dt_error_t **bad) {
    bool any = false;
    for (int k = 0; k < s->fused->n_ops; k++) {
        const dt_fused_op *o = &s->fused->op[k];
        if (o->kind != DT_FUSED_LOOKUP) continue;
        int index = s->operand[o->in[1]].slot;
        dt_status r = index >= 0 && p->error[index] ? DT_OK : w->backend->check_lookup(o, &s->view[o->in[1]]);
        bad[o->lookup] = r ? dt_error_new(r, p->run->site[o->node], dt_op_name(o->op), dt_error_message()) : NULL;
        any |= r != DT_OK;
    }
    return any;
}

/* The error of output k, borrowed: of an input or a look-up that it depends on. */
static dt_error_t *spoilt_by(const dt_run_part *p, const dt_instr *s, int k, dt_error_t **bad) {
    uint32_t depends = s->fused->depends[k];
    for (int i = 0; i < s->n_in; i++)
        if (depends >> i & 1 && s->operand[i].slot >= 0 && p->error[s->operand[i].slot]) return p->error[s->operand[i].slot];
    for (int i = 0; i < s->fused->n_lookups; i++)
        if (depends >> (DT_FUSED_IN + i) & 1 && bad[i]) return bad[i];
    return NULL;
}

/* A group with a failed input still makes the outputs that do not depend on it: elementwise code bears any values, and a look-up any indices. Where
 * there is not even memory, zeros are read. */
static void run_spoilt(dt_worker *w, dt_run_part *p, dt_instr *s) {
    static _Alignas(64) char zeros[64];
    int64_t stride[DT_FUSED_IN][DT_MAX_DIM];
    bool absent[DT_FUSED_IN];
    dt_error_t *bad[DT_FUSED_LOOKUPS];
    for (int k = 0; k < s->n_in + s->n_out; k++) s->view[k].data = address(p, s->operand[k]);
    for (int k = 0; k < s->n_in; k++) {
        int slot = s->operand[k].slot;
        absent[k] = slot >= 0 && slot < p->run->plan->program[p->program].n_ext && p->error[slot] && !p->buf[slot]->data;
        if (!absent[k]) continue;
        memcpy(stride[k], s->view[k].stride, sizeof stride[k]);
        memset(s->view[k].stride, 0, sizeof stride[k]);
        s->view[k].data = zeros;
    }
    s->ctx.scratch = address(p, s->scratch);
    s->ctx.team = w->team;
    check_lookups(w, p, s, bad);
    dt_status status = s->fn(&s->ctx);
    for (int k = 0; k < s->n_in; k++)
        if (absent[k]) memcpy(s->view[k].stride, stride[k], sizeof stride[k]);
    for (int k = 0; k < s->n_out; k++) {
        dt_error_t *e = spoilt_by(p, s, k, bad);
        if (e)
            set_error(p, s->operand[s->n_in + k].slot, dt_error_ref(e));
        else if (status)
            set_error(p, s->operand[s->n_in + k].slot, dt_error_new(status, p->run->site[s->node], dt_op_name(s->ctx.op), dt_error_message()));
    }
    for (int i = 0; i < s->fused->n_lookups; i++) dt_error_unref(bad[i]);
}

/* Are the indices of the group's look-ups legal? Its views have addresses. */
static bool lookups_fine(dt_worker *w, dt_run_part *p, const dt_instr *s) {
    dt_error_t *bad[DT_FUSED_LOOKUPS];
    if (!check_lookups(w, p, s, bad)) return true;
    for (int i = 0; i < s->fused->n_lookups; i++) dt_error_unref(bad[i]);
    return false;
}

static void run_kernel(dt_worker *w, dt_run_part *p, dt_instr *s, dt_team *team) {
    dt_error_t *e = input_error(p, s);
    if (DT_LIKELY(!e)) {
        for (int k = 0; k < s->n_in + s->n_out; k++) s->view[k].data = address(p, s->operand[k]);
        if (s->fused && s->fused->n_lookups && DT_UNLIKELY(!lookups_fine(w, p, s))) {
            run_spoilt(w, p, s);
            return;
        }
        s->ctx.scratch = address(p, s->scratch);
        s->ctx.team = team;
        dt_status status = s->fn(&s->ctx);
        if (DT_LIKELY(status == DT_OK)) return;
        e = dt_error_new(status, p->run->site[s->node], dt_op_name(s->ctx.op), dt_error_message());
    } else if (s->fused && !p->failed) {
        run_spoilt(w, p, s);
        return;
    } else
        dt_error_ref(e);
    for (int k = 0; k < s->n_out; k++) set_error(p, s->operand[s->n_in + k].slot, dt_error_ref(e));
    dt_error_unref(e);
}

/* Small kernels that do not depend on each other (passes/many.c): s and the s->also instructions behind it. Neighbours are a task until there is as
 * much to do as waking another thread is worth; each kernel runs on one thread. */
typedef struct group {
    dt_worker *w;
    dt_run_part *p;
    dt_instr *s;
    const uint16_t *first; /* of each task, and one behind the last */
} group;
enum { TASK_ELEMENTS = 16384, MOST_IN_GROUP = 4096 };

static void run_some(void *arg, int64_t t) {
    const group *g = arg;
    for (int i = g->first[t]; i < g->first[t + 1]; i++) run_kernel(g->w, g->p, g->s + i, NULL);
}

static void run_group(dt_worker *w, dt_run_part *p, dt_instr *s) {
    uint16_t first[MOST_IN_GROUP + 1];
    int n = (int)s->also + 1, tasks = 0;
    if (n > MOST_IN_GROUP || dt_team_size(w->team) < 2) {
        for (int i = 0; i < n; i++) run_kernel(w, p, s + i, w->team);
        return;
    }
    int64_t filled = TASK_ELEMENTS;
    for (int i = 0; i < n; i++) {
        int64_t some = dt_view_numel(&s[i].view[s[i].n_in]) + 512; /* what a call costs besides */
        if (filled + some / 2 > TASK_ELEMENTS) {
            first[tasks++] = (uint16_t)i;
            filled = 0;
        }
        filled += some;
    }
    first[tasks] = (uint16_t)n;
    group g = {w, p, s, first};
    if (tasks > 1)
        dt_team_run(w->team, run_some, &g, tasks);
    else
        run_some(&g, 0);
}

void dt_part_kernel(dt_worker *w, dt_run_part *p, dt_instr *s) {
    if (s->also)
        run_group(w, p, s);
    else
        run_kernel(w, p, s, w->team);
}

/* A one-sided transfer: inputs by number, nobody to meet. */
static dt_error_t *run_pulled(dt_worker *w, dt_run_part *p, dt_instr *s, void *out) {
    void *in[s->n_in + 1];
    for (int k = 0; k < s->n_in; k++) in[k] = address(p, s->operand[k]);
    dt_rendezvous r = {.in = in};
    return w->transport->run(s->coll, s->party, &r, w->backend, w->team, NULL, out, input_error(p, s));
}

/* A transport does not know whose call it serves. Takes a reference, returns one. */
static dt_error_t *with_site(dt_error_t *e, uint32_t site) {
    dt_error_t *named = dt_error_new(e->status, site, "", e->text);
    dt_error_unref(e);
    return named;
}

static void run_coll(dt_worker *w, dt_run_part *p, dt_instr *s) {
    void *in = s->n_in ? address(p, s->operand[0]) : NULL, *out = s->n_out ? address(p, s->operand[s->n_in]) : NULL;
    dt_rendezvous *r = s->coll->index >= 0 ? &p->run->meet[s->coll->index] : NULL;
    const dt_transport *t = s->coll->spans ? &dt_transport_span : w->transport;
    dt_error_t *e;
    if (s->coll->pulled)
        e = run_pulled(w, p, s, out);
    else if (s->coll->exchange)
        e = t->exchange(s->coll, s->party, r, w->backend, w->team, in, address(p, s->operand[1]), out, input_error(p, s));
    else
        e = t->run(s->coll, s->party, r, w->backend, w->team, in, out, input_error(p, s));
    if (!e) return;
    if (!e->site) e = with_site(e, p->run->site[s->node]);
    if (s->n_out)
        set_error(p, s->operand[s->n_in].slot, e);
    else
        dt_error_unref(e);
}

static void bucket_parts(const dt_run_part *p, const dt_instr *s, dt_comm_part *x, int n) {
    for (int k = 0; k < n; k++) {
        const dt_instr *i = s + k;
        void *in = i->n_in ? address(p, i->operand[0]) : NULL, *out = i->n_out ? address(p, i->operand[i->n_in]) : NULL;
        x[k] = (dt_comm_part){i->coll, i->party, &p->run->meet[i->coll->index], in, out, input_error(p, i)};
    }
}

static void bucket_errors(dt_run_part *p, const dt_instr *s, const dt_comm_part *x, int n) {
    for (int k = 0; k < n; k++) {
        dt_error_t *e = x[k].error;
        if (e && !e->site) e = with_site(e, p->run->site[s[k].node]);
        if (e) set_error(p, s[k].n_out ? s[k].operand[s[k].n_in].slot : -1, e);
    }
}

/* A bucket: s and the s->also instructions behind it. */
static void run_bucket(dt_worker *w, dt_run_part *p, dt_instr *s) {
    int n = (int)s->also + 1;
    if (!w->transport->run_bucket || s->coll->spans) {
        for (int k = 0; k < n; k++) run_coll(w, p, s + k);
        return;
    }
    dt_comm_part x[n];
    bucket_parts(p, s, x, n);
    w->transport->run_bucket(x, n, w->backend, w->team);
    bucket_errors(p, s, x, n);
}

bool dt_part_meet(dt_worker *w, dt_run_part *p, dt_instr *s, int *phase) {
    int n = (int)s->also + 1, before = *phase;
    dt_comm_part x[n];
    bucket_parts(p, s, x, n);
    bool done = dt_comm_bucket_step(x, n, w->backend, w->team, phase);
    if (*phase == DT_COMM_LAST && before != DT_COMM_LAST) bucket_errors(p, s, x, n);
    return done;
}

static void trace(const dt_run_part *p, const dt_instr *s, uint64_t begin) {
    uint32_t site = p->run->site[s->node];
    if (s->kind == DT_I_COLL) {
        dt_trace_add(DT_TRACE_COMM, s->coll->kind, site, begin, (uint64_t)s->coll->bytes_moved, 0);
        return;
    }
    uint64_t bytes = 0;
    for (int k = 0; k < s->n_in + s->n_out; k++)
        if (dt_view_given(&s->view[k])) bytes += (uint64_t)dt_view_numel(&s->view[k]) * dt_dtype_size(s->view[k].dtype);
    dt_trace_add(DT_TRACE_KERNEL, s->fused ? s->fused->name : dt_op_name(s->ctx.op), site, begin, bytes, 0);
}

/* ---- a program: two queues that wait for each other by counting ------------------------------------------------------------------------- */
/* done[q] is twice the number of finished instructions, plus one while the other queue sleeps on it: only then a system call wakes it. */
static void await_queue(dt_run_part *p, int q, uint32_t need) {
    if (atomic_load_explicit(&p->done[q], memory_order_acquire) >> 1 >= need) return;
    for (uint32_t d; (d = atomic_fetch_or(&p->done[q], 1) | 1) >> 1 < need;) dt_futex_wait(&p->done[q], d, -1);
    atomic_fetch_and(&p->done[q], ~1u);
}

/* The last thing that queue q does with the run: the other queue may let it go at once. */
static void count_queue(dt_run_part *p, int q, uint32_t n) {
    if (atomic_fetch_add_explicit(&p->done[q], 2 * n, memory_order_acq_rel) & 1) dt_futex_wake(&p->done[q], 1);
}

static void run_queue(dt_worker *w, dt_run_part *p, int q) {
    const dt_program *prog = &p->run->plan->program[p->program];
    bool two = prog->n_instr[1] > 0;
    int n = prog->n_instr[q]; /* the program may be gone after the last one */
    for (int i = 0; i < n;) {
        dt_instr *s = &prog->instr[q][i];
        i += 1 + (int)s->also;
        if (s->wait) await_queue(p, !q, s->wait);
        uint64_t begin = dt_tracing() ? dt_trace_now() : 0;
        if (s->kind == DT_I_KERNEL)
            dt_part_kernel(w, p, s);
        else if (s->also)
            run_bucket(w, p, s);
        else
            run_coll(w, p, s);
        for (uint32_t k = 0; DT_UNLIKELY(begin != 0) && k <= s->also; k++) trace(p, s + k, begin);
        if (two) count_queue(p, q, 1 + s->also);
    }
}

static void *comm_main(void *arg) {
    dt_worker *w = arg;
    uint32_t seen = 0;
    char name[16], lane[32];
    snprintf(name, sizeof name, "dt-comm-%u", dt_device_index(w->device));
    snprintf(lane, sizeof lane, "%s:%u comm", dt_device_type_name(dt_device_kind(w->device)), dt_device_index(w->device));
    pthread_setname_np(pthread_self(), name);
    dt_trace_lane(lane);
    for (;;) {
        uint32_t s;
        while ((s = atomic_load_explicit(&w->comm_seq, memory_order_acquire)) == seen) dt_futex_wait(&w->comm_seq, seen, -1);
        seen = s;
        if (atomic_load(&w->comm_stop)) return NULL;
        run_queue(w, atomic_load(&w->comm_part), 1);
    }
}

static bool comm_start(dt_worker *w) {
    if (!w->comm_started) w->comm_started = pthread_create(&w->comm_thread, NULL, comm_main, w) == 0;
    return w->comm_started;
}

/* ---- memory that other devices read, or that is another device's: see dt_buf ----------------------------------------------------------- */
static void count_done(dt_buf *b, _Atomic uint32_t *word) {
    atomic_fetch_add(word, 1);
    if (DT_UNLIKELY(atomic_load(&b->waiting))) dt_futex_wake(word, INT_MAX);
}

static void wait_done(dt_buf *b, _Atomic uint32_t *word, uint32_t need) {
    uint32_t done = atomic_load_explicit(word, memory_order_acquire);
    if ((int32_t)(done - need) >= 0) return;
    atomic_fetch_add(&b->waiting, 1);
    while ((int32_t)((done = atomic_load(word)) - need) < 0) dt_futex_wait(word, done, -1);
    atomic_fetch_sub(&b->waiting, 1);
}

static void await_memory(const dt_worker *w, dt_run_part *p, const dt_program *prog) {
    for (int i = 0; i < prog->n_ext; i++) {
        dt_buf *b = p->buf[i];
        if (DT_UNLIKELY(b->device != w->device))
            wait_done(b, &b->written, p->need[i]);
        else if (prog->ext[i].written)
            wait_done(b, &b->read, p->need[i]);
    }
}

static void release_memory(const dt_worker *w, dt_run_part *p, const dt_program *prog) {
    for (int i = 0; i < prog->n_ext + prog->n_out; i++) {
        dt_buf *b = p->buf[i];
        if (DT_UNLIKELY(b->device != w->device))
            count_done(b, &b->read);
        else if (i >= prog->n_ext || prog->ext[i].written)
            count_done(b, &b->written);
    }
}

void dt_part_begin(dt_run_part *p, const dt_program *prog) {
    for (int i = 0; i < prog->n_ext; i++) {
        dt_error_t *e = atomic_load_explicit(&p->buf[i]->error, memory_order_relaxed);
        if (DT_UNLIKELY(e != NULL)) p->error[i] = dt_error_ref(e);
    }
}

static void store_errors(dt_run_part *p, const dt_program *prog) {
    for (int i = 0; i < prog->n_slots; i++) {
        if (DT_LIKELY(!p->error[i])) continue;
        dt_error_t *none = NULL;
        if (i < prog->n_ext + prog->n_out && atomic_compare_exchange_strong(&p->buf[i]->error, &none, p->error[i])) continue; /* the buffer has it now */
        dt_error_unref(p->error[i]);
    }
}

/* How long a program takes decides who may run it (dt_worker_help); once it was short it is not measured again. */
static bool prog_is_short(const dt_program *prog) {
    uint32_t ns = atomic_load_explicit(&prog->ns, memory_order_relaxed);
    return ns && ns <= DT_SHORT_NS;
}

static void note_time(dt_program *prog, uint64_t ns) {
    for (int i = 0; i < prog->n_instr[0] && ns <= DT_SHORT_NS; i++)
        if (!strcmp(dt_op_name(prog->instr[0][i].ctx.op), "_host_call")) ns = UINT32_MAX;
    atomic_store_explicit(&prog->ns, ns > UINT32_MAX ? UINT32_MAX : ns ? (uint32_t)ns : 1, memory_order_relaxed);
}

bool dt_part_ready(const dt_worker *w, const dt_run_part *p, const dt_program *prog) {
    for (int i = 0; i < prog->n_ext; i++) {
        dt_buf *b = p->buf[i];
        if (b->device != w->device || (prog->ext[i].written && atomic_load(&b->read) != p->need[i])) return false;
    }
    return true;
}

void dt_part_end(dt_worker *w, dt_run_part *p, const dt_program *prog) {
    store_errors(p, prog);
    release_memory(w, p, prog);
    atomic_fetch_add_explicit(&w->runs, 1, memory_order_relaxed);
}

static void run_program(dt_worker *w, dt_run_part *p) {
    dt_program *prog = &p->run->plan->program[p->program];
    if (atomic_load_explicit(&p->run->together, memory_order_relaxed) && dt_worker_together(w, p)) return;
    await_memory(w, p, prog);
    dt_part_begin(p, prog);
    if (prog->n_instr[1]) {
        if (!comm_start(w)) { /* no thread to be had: one queue after the other would wait for ever, so fail loudly and early */
            for (int i = 0; i < prog->n_slots; i++) set_error(p, i, dt_error_new(DT_E_NOMEM, 0, "communication", "cannot start the communication thread"));
        }
        atomic_store(&w->comm_part, p);
        atomic_fetch_add_explicit(&w->comm_seq, 1, memory_order_release);
        dt_futex_wake(&w->comm_seq, 1);
    }
    bool known = prog_is_short(prog);
    uint64_t begin = known ? 0 : dt_now_ns();
    run_queue(w, p, 0);
    await_queue(p, 1, (uint32_t)prog->n_instr[1]);
    if (!known) note_time(prog, dt_now_ns() - begin);
    dt_part_end(w, p, prog);
    dt_run_part_done(p);
}

void dt_run_part_done(dt_run_part *p) {
    if (atomic_fetch_sub_explicit(&p->run->parts, 1, memory_order_acq_rel) == 1) dt_run_end(p->run);
}

void dt_run_end(dt_run *r) {
    for (int i = 0; i < r->plan->n_programs; i++) {
        const dt_program *prog = &r->plan->program[i];
        for (int k = 0; k < prog->n_ext + prog->n_out; k++) dt_buf_unref(r->part[i].buf[k]);
    }
    dt_plan_unref(r->plan);
    dt_run_free(r);
}

/* ---- the compute thread -------------------------------------------------------------------------------------------------------------------- */
static void fetch(dt_worker *w, dt_fetch *f) {
    dt_error_t *e = atomic_load(&f->buf->error);
    uint64_t begin = dt_tracing() ? dt_trace_now() : 0;
    if (!e) w->backend->copy(&f->dst, &f->src, w->team);
    if (DT_UNLIKELY(begin != 0)) dt_trace_add(DT_TRACE_FETCH, "fetch", 0, begin, (uint64_t)dt_view_numel(&f->src) * dt_dtype_size(f->src.dtype), 0);
    dt_future_part(f->future, e);
    dt_buf_unref(f->buf);
    dt_future_unref(f->future);
    dt_free(f);
}

/* A part from a file. Those who read the part wait for it as for a program's result. */
static void read_file(dt_load *r) {
    uint64_t begin = dt_tracing() ? dt_trace_now() : 0;
    dt_error_t *e = atomic_load(&r->buf->error), *none = NULL;
    if (!e && dt_load_run(r, r->buf->data)) {
        e = dt_error_new(DT_E_VALUE, r->site, "read", dt_error_message());
        if (!atomic_compare_exchange_strong(&r->buf->error, &none, e)) dt_error_unref(e);
        e = atomic_load(&r->buf->error);
    }
    if (DT_UNLIKELY(begin != 0)) dt_trace_add(DT_TRACE_FETCH, "read a file", r->site, begin, (uint64_t)r->numel * dt_dtype_size(r->dtype), 0);
    count_done(r->buf, &r->buf->written);
    if (r->done) {
        dt_future_part(r->done, e);
        dt_future_unref(r->done);
    }
    dt_buf_unref(r->buf);
    dt_load_free(r);
}

static bool run_item(dt_worker *w, dt_item it) {
    switch (it.kind) {
    case DT_ITEM_RUN: run_program(w, it.p); break;
    case DT_ITEM_FETCH: fetch(w, it.p); break;
    case DT_ITEM_READ: read_file(it.p); break;
    case DT_ITEM_SYNC:
        dt_future_part(it.p, NULL);
        dt_future_unref(it.p);
        break;
    case DT_ITEM_STOP: return false;
    }
    return true;
}

void dt_worker_item_done(dt_worker *w) {
    uint32_t head = atomic_load_explicit(&w->head, memory_order_relaxed);
    atomic_store_explicit(&w->head, head + 1, memory_order_release);
    uint32_t left = atomic_load_explicit(&w->tail, memory_order_acquire) - (head + 1);
    if (w->wake && (left == 0 || left == DT_QUEUE / 2)) w->wake(); /* idle; or there is room again for who found the queue full */
}

/* The item at the head, which there is; holding the role. */
static bool run_next(dt_worker *w) {
    bool go = run_item(w, w->item[atomic_load_explicit(&w->head, memory_order_relaxed) % DT_QUEUE]);
    dt_worker_item_done(w);
    return go;
}

static void *worker_main(void *arg) {
    dt_worker *w = arg;
    char name[16], lane[32];
    snprintf(lane, sizeof lane, "%s:%u", dt_device_type_name(dt_device_kind(w->device)), dt_device_index(w->device));
    dt_trace_lane(lane);
    snprintf(name, sizeof name, "dt-%s-%u", dt_device_type_name(dt_device_kind(w->device)), dt_device_index(w->device));
    pthread_setname_np(pthread_self(), name);
    pthread_mutex_lock(&w->role);
    for (bool go = true; go;) {
        uint32_t tail;
        while ((tail = atomic_load_explicit(&w->tail, memory_order_acquire)) == atomic_load_explicit(&w->head, memory_order_relaxed)) {
            pthread_mutex_unlock(&w->role);
            atomic_store(&w->asleep, 1);
            if (atomic_load(&w->tail) == tail) dt_futex_wait(&w->tail, tail, -1);
            atomic_store(&w->asleep, 0);
            pthread_mutex_lock(&w->role);
        }
        go = run_next(w);
    }
    pthread_mutex_unlock(&w->role);
    return NULL;
}

bool dt_worker_push(dt_worker *w, dt_item item, bool wake) {
    uint32_t tail = atomic_load_explicit(&w->tail, memory_order_relaxed);
    if (tail - atomic_load_explicit(&w->head, memory_order_acquire) >= DT_QUEUE) return false;
    w->item[tail % DT_QUEUE] = item;
    atomic_store(&w->tail, tail + 1);
    if (wake) dt_worker_wake(w);
    return true;
}

bool dt_worker_asleep(const dt_worker *w) { return atomic_load_explicit(&w->asleep, memory_order_relaxed); }

void dt_worker_wake(dt_worker *w) {
    if (atomic_load(&w->asleep)) dt_futex_wake(&w->tail, 1);
}

/* ---- in the compute thread's place --------------------------------------------------------------------------------------------------------- */
/* The caller looks at signals between two calls only, so it takes nothing long: no program that has not shown to be short, nothing that waits for
 * another device, no user's function (it might want the interpreter, at whose end threads vanish). */
static bool is_short(const dt_worker *w, const dt_item *it) {
    if (it->kind == DT_ITEM_FETCH) {
        const dt_fetch *f = it->p;
        return f->future->buf->bytes <= SHORT_BYTES;
    }
    if (it->kind != DT_ITEM_RUN) return it->kind == DT_ITEM_SYNC;
    const dt_run_part *p = it->p;
    const dt_program *prog = &p->run->plan->program[p->program];
    uint32_t ns = atomic_load_explicit(&prog->ns, memory_order_relaxed);
    return ns && ns <= DT_SHORT_NS && !prog->n_instr[1] && dt_part_ready(w, p, prog);
}

void dt_worker_help(dt_worker *w, const dt_future *f) {
    if (pthread_mutex_trylock(&w->role)) {
        dt_worker_wake(w);
        return;
    }
    bool more;
    while ((more = atomic_load_explicit(&w->head, memory_order_relaxed) != atomic_load_explicit(&w->tail, memory_order_acquire)) && !dt_future_done(f) &&
           is_short(w, &w->item[atomic_load_explicit(&w->head, memory_order_relaxed) % DT_QUEUE]))
        run_next(w);
    pthread_mutex_unlock(&w->role);
    if (more) dt_worker_wake(w);
}

uint32_t dt_worker_pending(const dt_worker *w) {
    return atomic_load_explicit(&w->tail, memory_order_relaxed) - atomic_load_explicit(&w->head, memory_order_acquire);
}
void dt_worker_team(dt_worker *w, int size) { dt_team_limit(w->team, size); }
uint64_t dt_worker_runs(const dt_worker *w) { return atomic_load_explicit(&w->runs, memory_order_relaxed); }

dt_status dt_worker_new(dt_device d, int team_max, int team, void (*wake)(void), dt_worker **out) {
    dt_worker *w = NULL;
    if (posix_memalign((void **)&w, 64, sizeof *w)) return dt_fail(DT_E_NOMEM, "worker: out of host memory");
    memset(w, 0, sizeof *w);
    w->device = d;
    w->backend = dt_backend_of(dt_device_kind(d));
    w->transport = &dt_transport_thread;
    w->wake = wake;
    pthread_mutex_init(&w->role, NULL);
    dt_status s = w->backend ? dt_team_new(team_max, "dt-team", &w->team)
                             : dt_fail(DT_E_NOTIMPL, "device %s: this build has no such backend", dt_device_type_name(dt_device_kind(d)));
    if (!s) {
        dt_team_limit(w->team, team);
        if (pthread_create(&w->thread, NULL, worker_main, w)) s = dt_fail(DT_E_NOMEM, "worker: cannot start a thread");
    }
    if (s) {
        dt_team_free(w->team);
        free(w);
        return s;
    }
    *out = w;
    return DT_OK;
}

void dt_worker_free(dt_worker *w) {
    if (!w) return;
    while (!dt_worker_push(w, (dt_item){DT_ITEM_STOP, NULL}, true)) dt_futex_wait(&w->head, atomic_load(&w->head), 1000);
    pthread_join(w->thread, NULL);
    if (w->comm_started) {
        atomic_store(&w->comm_stop, true);
        atomic_fetch_add(&w->comm_seq, 1);
        dt_futex_wake(&w->comm_seq, 1);
        pthread_join(w->comm_thread, NULL);
    }
    dt_team_free(w->team);
    free(w);
}
