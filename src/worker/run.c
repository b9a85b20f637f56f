/* Runs: a plan bound to memory. See devices.h. */
#include <string.h>

#include "worker/devices.h"

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "dispatch: out of host memory"); }

typedef struct layout {
    char *at;
} layout;
static void *carve(layout *l, size_t bytes) {
    void *p = l->at;
    l->at += (bytes + 15) & ~(size_t)15;
    return p;
}

static size_t run_carve(const dt_plan *p, char *base, dt_run **out) {
    layout l = {base};
    dt_run *r = carve(&l, sizeof *r);
    dt_run_part *part = carve(&l, sizeof *part * (size_t)p->n_programs);
    uint64_t *numbers = carve(&l, 8 * (size_t)(p->n_numbers + 1));
    uint32_t *site = carve(&l, 4 * (size_t)(p->n_nodes + 1));
    dt_rendezvous *meet = carve(&l, sizeof *meet * (size_t)(p->n_colls + 1));
    if (base) *r = (dt_run){.part = part, .numbers = numbers, .site = site, .meet = meet};
    for (int i = 0; i < p->n_programs; i++) {
        const dt_program *g = &p->program[i];
        void **b = carve(&l, sizeof *b * (size_t)g->n_slots);
        dt_buf **buf = carve(&l, sizeof *buf * (size_t)(g->n_ext + g->n_out + 1));
        dt_error_t **error = carve(&l, sizeof *error * (size_t)g->n_slots);
        uint32_t *need = carve(&l, sizeof *need * (size_t)(g->n_ext + 1));
        if (base) part[i] = (dt_run_part){.run = r, .program = i, .base = b, .buf = buf, .need = need, .error = error};
    }
    for (int i = 0; i < p->n_colls; i++) {
        size_t n = p->coll[i] ? sizeof(void *) * (size_t)p->coll[i]->n : 0; /* a node knows its own collectives only */
        void *in = carve(&l, n), *o = carve(&l, n), *e = carve(&l, n);
        void *arrived = carve(&l, p->coll[i] ? sizeof(uint32_t) * DT_MEETINGS * (size_t)p->coll[i]->n_groups : 0);
        if (base) meet[i] = (dt_rendezvous){.arrived = arrived, .in = in, .out = o, .error = e};
    }
    if (base) *out = r;
    return (size_t)(l.at - base);
}

dt_status dt_binding_new(const dt_plan *p, dt_binding *b) {
    size_t bytes = run_carve(p, NULL, NULL), tail = (size_t)p->n_programs * (sizeof(size_t) + sizeof(void *)) + 16;
    char *mem = dt_calloc(1, bytes + tail);
    if (!mem) return no_memory();
    run_carve(p, mem, &b->run);
    b->arena = (void **)(mem + bytes);
    b->arena_bytes = (size_t *)(b->arena + p->n_programs);
    return DT_OK;
}

void dt_binding_undo(const dt_plan *p, dt_binding *b) {
    for (int i = 0; i < p->n_programs; i++) {
        const dt_program *g = &p->program[i];
        dt_device_state *s;
        if (!dt_device_here(g->device)) {
            for (int k = g->n_ext; k < g->n_ext + g->n_out; k++) dt_buf_unref(b->run->part[i].buf[k]);
            continue;
        }
        if (dt_device_get(g->device, &s)) continue;
        if (b->arena[i]) dt_alloc_put(&s->alloc, b->arena[i], b->arena_bytes[i]);
        for (int k = g->n_ext; k < g->n_ext + g->n_out; k++)
            if (b->run->part[i].buf[k]) {
                dt_buf *buf = b->run->part[i].buf[k];
                dt_alloc_put(&s->alloc, buf->data, buf->bytes);
                dt_buf_unref(buf);
            }
    }
    dt_free(b->run);
}

dt_status dt_binding_program(const dt_plan *p, int i, dt_binding *b) {
    const dt_program *prog = &p->program[i];
    dt_run_part *part = &b->run->part[i];
    dt_device_state *s;
    DT_TRY(dt_device_get(prog->device, &s));
    for (int k = 0; k < prog->n_out; k++) {
        size_t bytes = prog->out_bytes[k];
        void *data;
        DT_TRY(dt_alloc_get(&s->alloc, &bytes, &data));
        dt_buf *buf = dt_buf_new(prog->device, bytes, data);
        if (!buf) {
            dt_alloc_put(&s->alloc, data, bytes);
            return no_memory();
        }
        part->buf[prog->n_ext + k] = buf;
        part->base[prog->n_ext + k] = data;
    }
    if (prog->n_temp) {
        b->arena_bytes[i] = prog->arena_bytes;
        DT_TRY(dt_alloc_get(&s->alloc, &b->arena_bytes[i], &b->arena[i]));
        for (int k = 0; k < prog->n_temp; k++) part->base[prog->n_ext + prog->n_out + k] = (char *)b->arena[i] + prog->temp_offset[k];
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
    for (int i = 0; i < p->n_programs; i++) { /* one reference a buffer for the run; escaping ones have the controller's besides */
        const dt_program *prog = &p->program[i];
        for (int k = 0; k < prog->n_ext + prog->n_out; k++) atomic_fetch_add_explicit(&r->part[i].buf[k]->refs, 1, memory_order_relaxed);
    }
    const dt_backend *whole = p->n_programs ? dt_backend_of(dt_device_kind(p->program[0].device)) : NULL;
    whole = whole && whole->run ? whole : NULL;
    for (int i = 0; i < p->n_programs; i++) {
        dt_device_state *s;
        if (!dt_device_here(p->program[i].device) || dt_device_get(p->program[i].device, &s)) continue; /* cannot fail: it was started to be bound */
        if (b->arena[i]) dt_alloc_put(&s->alloc, b->arena[i], b->arena_bytes[i]);                       /* reused only by later programs of this device */
        if (!whole && runs_here(&p->program[i])) count_accesses(&p->program[i], &r->part[i]);
    }
    for (int i = 0; i < p->n_colls; i++) r->meet[i].key = r->seq << 20 | (uint64_t)i << 1;
    if (whole) whole->run(r);
    if (!pushed || whole) {
        dt_run_end(r);
        return all;
    }
    for (int i = 0, n = p->n_programs; i < n && pushed; i++) { /* the last one pushed may end the run, and the plan with it */
        dt_device_state *s;
        const dt_program *prog = &p->program[i];
        if (!runs_here(prog) || dt_device_get(prog->device, &s)) continue;
        pushed--;
        dt_device_push(s, (dt_item){DT_ITEM_RUN, &r->part[i]});
    }
    return all;
}
