/* Runs: a plan bound to memory. See devices.h. */
#include <stddef.h>
#include <string.h>

#include "worker/devices.h"
#include "worker/inside.h"

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "dispatch: out of host memory"); }

typedef struct layout {
    char *at;
} layout;
static void *carve(layout *l, size_t bytes) {
    void *p = l->at;
    l->at += (bytes + 15) & ~(size_t)15;
    return p;
}

/* ---- memory of runs ----------------------------------------------------------------------------------------------------------------------------
 * A plan of many devices needs a large block for a run, and fresh pages cost more than all else: a few blocks are kept for the next runs. */
enum { SPARE = 4, SPARE_MIN = 1 << 16 };
static _Atomic(dt_run *) spare[SPARE];

static dt_run *run_take(size_t bytes) { /* not zeroed, but for the capacity */
    for (int i = 0; i < SPARE && bytes >= SPARE_MIN; i++) {
        dt_run *r = atomic_exchange(&spare[i], NULL), *none = NULL;
        if (!r) continue;
        if (r->capacity >= bytes && r->capacity / 4 <= bytes) return r;
        if (!atomic_compare_exchange_strong(&spare[i], &none, r)) dt_free(r);
    }
    dt_run *r = dt_malloc(bytes);
    if (r) r->capacity = bytes;
    return r;
}

void dt_run_free(dt_run *r) {
    for (int i = 0; i < SPARE && r->capacity >= SPARE_MIN; i++) {
        dt_run *none = NULL;
        if (atomic_compare_exchange_strong(&spare[i], &none, r)) return;
    }
    if (r->capacity >= SPARE_MIN) { /* the size in use now rather than an older one */
        dt_run *old = atomic_exchange(&spare[0], r);
        r = old;
    }
    dt_free(r);
}

/* Its device goes through runs as they are pushed: nothing waits, so nobody meets. */
static const dt_backend *at_once(const dt_plan *p) {
    const dt_backend *b = p->n_programs ? dt_backend_of(dt_device_kind(p->program[0].device)) : NULL;
    return b && b->run ? b : NULL;
}

/* First what must be zero, *zero bytes of it, then what is filled before it is read. */
static size_t run_carve(const dt_plan *p, char *base, dt_run **out, size_t *zero) {
    layout l = {base};
    const bool now = at_once(p) != NULL;
    const int n_colls = now ? 0 : p->n_colls;
    dt_run *r = carve(&l, sizeof *r);
    dt_run_part *part = carve(&l, sizeof *part * (size_t)p->n_programs);
    uint64_t *numbers = carve(&l, 8 * (size_t)(p->n_numbers + 1));
    uint32_t *site = carve(&l, 4 * (size_t)(p->n_nodes + 1));
    dt_rendezvous *meet = now ? NULL : carve(&l, sizeof *meet * (size_t)(n_colls + 1));
    if (base) *r = (dt_run){.capacity = r->capacity, .part = part, .numbers = numbers, .site = site, .meet = meet};
    for (int i = 0; i < p->n_programs; i++) {
        const dt_program *g = &p->program[i];
        dt_buf **buf = carve(&l, sizeof *buf * (size_t)(g->n_ext + g->n_out + 1));
        dt_error_t **error = carve(&l, now ? 0 : sizeof *error * (size_t)g->n_slots);
        if (base) part[i] = (dt_run_part){.run = r, .program = i, .buf = buf, .error = error};
    }
    for (int i = 0; i < n_colls; i++) { /* a node knows its own collectives only */
        void *arrived = carve(&l, p->coll[i] ? sizeof(uint32_t) * DT_MEETINGS * (size_t)p->coll[i]->n_groups : 0);
        void *staging = carve(&l, p->coll[i] && p->coll[i]->spans ? sizeof(void *) * 2 * (size_t)p->coll[i]->n_groups : 0);
        if (base) meet[i] = (dt_rendezvous){.arrived = arrived, .staging = staging};
    }
    *zero = (size_t)(l.at - base);
    for (int i = 0; i < p->n_programs; i++) {
        const dt_program *g = &p->program[i];
        void **b = carve(&l, sizeof *b * (size_t)g->n_slots);
        uint32_t *need = carve(&l, sizeof *need * (size_t)(g->n_ext + 1));
        if (!base) continue;
        part[i].base = b;
        part[i].need = need;
    }
    for (int i = 0; i < n_colls; i++) {
        size_t n = p->coll[i] ? sizeof(void *) * (size_t)p->coll[i]->n : 0;
        void *in = carve(&l, n), *o = carve(&l, n), *e = carve(&l, n);
        if (!base) continue;
        meet[i].in = in;
        meet[i].out = o;
        meet[i].error = e;
    }
    if (base) *out = r;
    return (size_t)(l.at - base);
}

dt_status dt_binding_new(const dt_plan *p, dt_binding *b) {
    size_t zero, bytes = run_carve(p, NULL, NULL, &zero), tail = (size_t)p->n_programs * (sizeof(size_t) + sizeof(void *)) + 16;
    char *mem = (char *)run_take(at_once(p) && bytes + tail < SPARE_MIN ? SPARE_MIN : bytes + tail); /* freed soon, and taken again */
    if (!mem) return no_memory();
    memset(mem + sizeof(dt_run), 0, zero - sizeof(dt_run));
    memset(mem + bytes, 0, tail);
    run_carve(p, mem, &b->run, &zero);
    b->arena = (void **)(mem + bytes);
    b->arena_bytes = (size_t *)(b->arena + p->n_programs);
    return DT_OK;
}

void dt_binding_undo(const dt_plan *p, dt_binding *b) {
    for (int i = 0; i < p->n_programs; i++) {
        const dt_program *g = &p->program[i];
        dt_device_state *s;
        if (!dt_device_here(g->device)) {
            for (int k = g->n_ext; k < g->n_ext + g->n_out; k++) {
                dt_buf *buf = b->run->part[i].buf[k];
                if (buf && dt_buf_undo_elsewhere) dt_buf_undo_elsewhere(buf);
                dt_buf_unref(buf);
            }
            continue;
        }
        if (dt_device_get(g->device, &s)) continue;
        if (b->arena[i]) dt_alloc_arena_put(&s->alloc, b->arena[i], b->arena_bytes[i]);
        for (int k = g->n_ext; k < g->n_ext + g->n_out; k++)
            if (b->run->part[i].buf[k]) {
                dt_buf *buf = b->run->part[i].buf[k];
                dt_alloc_put(&s->alloc, buf->data, buf->bytes);
                dt_buf_unref(buf);
            }
    }
    dt_run_free(b->run);
}

/* Results' buffers in blocks of up to BLOCK, which live as long as any of theirs. Blocks are kept for the next results of as many: malloc takes longer with such sizes than all else
 * that is done for them. Any thread gives them back, one takes them, all at once. */
enum { BLOCK = 16 };
typedef struct buf_block {
    _Alignas(64) _Atomic uint32_t left;
    uint32_t n;
    struct buf_block *next;
    void *memory; /* that it lies in */
    bool half;    /* all that was ever used of it are the buffers' first lines */
    union {
        _Alignas(64) dt_buf buf;
        char lines[(sizeof(dt_buf) + 63) / 64 * 64];
    } at[];
} buf_block;
_Static_assert(offsetof(dt_buf, host) == 64, "what simulated devices and binding look at is a cache line");
static _Atomic(buf_block *) returned;
static buf_block *ready[BLOCK + 1]; /* the taker's, by size */

static buf_block *block_alloc(int n) {
    size_t bytes = sizeof(buf_block) + sizeof(((buf_block *)0)->at[0]) * (size_t)n;
    void *memory = dt_calloc(1, bytes + 63);
    if (!memory) return NULL;
    buf_block *k = (buf_block *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    k->memory = memory;
    k->half = true;
    return k;
}

/* half: only first lines will be used. */
static buf_block *block_new(int n, bool half) {
    if (!ready[n] && atomic_load_explicit(&returned, memory_order_relaxed)) {
        buf_block *all = atomic_exchange_explicit(&returned, NULL, memory_order_acquire);
        for (buf_block *next; all; all = next) {
            next = all->next;
            all->next = ready[all->n];
            ready[all->n] = all;
        }
    }
    buf_block *k = ready[n];
    if (k) {
        ready[n] = k->next;
        for (int i = 0; i < n; i++) memset(&k->at[i], 0, k->half ? 64 : sizeof k->at[i]);
    } else if (!(k = block_alloc(n)))
        return NULL;
    k->half = half;
    k->n = (uint32_t)n;
    atomic_store_explicit(&k->left, (uint32_t)n, memory_order_relaxed);
    return k;
}

void dt_buf_block_free(_Atomic uint32_t *left) {
    buf_block *k = (buf_block *)left;
    k->next = atomic_load_explicit(&returned, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&returned, &k->next, k, memory_order_release, memory_order_relaxed)) {}
}

void dt_runs_forget(void) {
    for (int i = 0; i < SPARE; i++) dt_free(atomic_exchange(&spare[i], NULL));
    for (int n = 0; n <= BLOCK; n++) {
        for (buf_block *k = n ? ready[n] : atomic_exchange(&returned, NULL), *next; k; k = next) {
            next = k->next;
            dt_free(k->memory);
        }
        ready[n] = NULL;
    }
}

static dt_status bind_results(const dt_program *prog, dt_alloc *a, dt_run_part *part) {
    const bool half = a->backend->run && dt_nodes == 1 && !a->stats.budget; /* nothing there counts accesses, is of a host or looked for */
    buf_block *k = NULL;
    for (int i = 0; i < prog->n_out; i++) {
        int at = i % BLOCK;
        if (at == 0) {
            int n = prog->n_out - i < BLOCK ? prog->n_out - i : BLOCK;
            if (!(k = block_new(n, half))) return no_memory();
        }
        size_t bytes = prog->out_bytes[i];
        void *data;
        dt_status s = dt_alloc_get(a, &bytes, &data);
        if (s) { /* the block's rest will not be made */
            int all = prog->n_out - (i - at) < BLOCK ? prog->n_out - (i - at) : BLOCK;
            uint32_t rest = (uint32_t)(all - at);
            if (atomic_fetch_sub(&k->left, rest) == rest) dt_buf_block_free(&k->left);
            return s;
        }
        dt_buf *b = &k->at[at].buf;
        atomic_store_explicit(&b->refs, 1, memory_order_relaxed);
        b->device = prog->device;
        b->bytes = bytes;
        b->data = data;
        b->block = &k->left;
        part->buf[prog->n_ext + i] = b;
        part->base[prog->n_ext + i] = data;
    }
    return DT_OK;
}

dt_status dt_binding_program(const dt_plan *p, int i, dt_binding *b) {
    const dt_program *prog = &p->program[i];
    dt_run_part *part = &b->run->part[i];
    dt_device_state *s;
    DT_TRY(dt_device_get(prog->device, &s));
    DT_TRY(bind_results(prog, &s->alloc, part));
    if (prog->n_temp) {
        b->arena_bytes[i] = prog->arena_bytes;
        DT_TRY(dt_alloc_arena(&s->alloc, &b->arena_bytes[i], &b->arena[i]));
        for (int k = 0; k < prog->n_temp && !s->alloc.backend->run; k++) part->base[prog->n_ext + prog->n_out + k] = (char *)b->arena[i] + prog->temp_offset[k];
    }
    part->base[prog->n_slots - 1] = b->run->numbers;
    return DT_OK;
}

static bool runs_here(const dt_program *p) { return p->n_instr[0] + p->n_instr[1] > 0 && dt_device_here(p->device); }

/* Order against other devices' runs: what this program must wait for, and what others will wait for (dt_buf in plan/program.h). */
static void count_accesses(const dt_program *p, dt_run_part *part) {
    for (int k = 0; k < p->n_ext + p->n_out; k++) {
        dt_buf *b = part->buf[k];
        if (b->device != p->device) {
            part->need[k] = b->n_written;
            b->n_read++;
        } else if (k >= p->n_ext || p->ext[k].written) {
            if (k < p->n_ext) part->need[k] = b->n_read;
            b->n_written++;
        }
    }
}

int dt_binding_push(dt_plan *p, dt_binding *b) {
    dt_run *r = b->run;
    r->plan = p;
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    uint32_t pushed = 0;
    for (int i = 0; i < p->n_programs; i++) pushed += runs_here(&p->program[i]);
    int all = (int)pushed;
    atomic_store(&r->parts, pushed ? pushed : 1);
    const dt_backend *whole = at_once(p);
    for (int i = 0; i < p->n_programs && !whole; i++) { /* one reference a buffer for the run; escaping ones have the controller's besides */
        const dt_program *prog = &p->program[i];
        for (int k = 0; k < prog->n_ext + prog->n_out; k++) atomic_fetch_add_explicit(&r->part[i].buf[k]->refs, 1, memory_order_relaxed);
    }
    for (int i = 0; i < p->n_programs; i++) {
        dt_device_state *s;
        if (!dt_device_here(p->program[i].device) || dt_device_get(p->program[i].device, &s)) continue; /* cannot fail: it was started to be bound */
        if (b->arena[i]) dt_alloc_arena_put(&s->alloc, b->arena[i], b->arena_bytes[i]);                 /* reused only by later programs of this device */
        if (!whole && runs_here(&p->program[i])) count_accesses(&p->program[i], &r->part[i]);
    }
    for (int i = 0; i < p->n_colls && !whole; i++) r->meet[i].key = r->seq << (64 - DT_KEY_GROUP + DT_KEY_RUN) >> (64 - DT_KEY_GROUP) | (uint64_t)i << 1;
    if (whole) { /* at once: it needs no references of its own */
        whole->run(r);
        dt_plan_unref(p);
        dt_run_free(r);
        return all;
    }
    if (!pushed) {
        dt_run_end(r);
        return all;
    }
    bool together = dt_plan_together(p); /* then only the first, pushed last, is told */
    atomic_store(&r->together, false);
    for (int k = 0, n = p->n_programs; k < n && pushed; k++) { /* the last one pushed may end the run, and the plan with it */
        int i = together ? n - 1 - k : k;
        dt_device_state *s;
        const dt_program *prog = &p->program[i];
        dt_item item = {DT_ITEM_RUN, &r->part[i]};
        if (!runs_here(prog) || dt_device_get(prog->device, &s)) continue;
        pushed--;
        if (together && i == 0) atomic_store(&r->together, true); /* not before all others have their parts: who gives it up wakes them, once */
        if (!together || i == 0 || !dt_worker_push(s->worker, item, false)) dt_device_push(s, item);
    }
    return all;
}
