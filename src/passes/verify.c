/* What must hold after each pass, checked independently of how the passes achieve it. See look.h.
 *
 *   always           operands name storages of their program; views lie inside their storages; nothing is read before a step has written it;
 *                    fused groups agree with their operands; collectives of one bucket stand together; kernels that run together do not depend on each other
 *   reuse            a storage whose memory another one took over is not read any more; inputs that may not be overwritten are not
 *   plan             temporaries alive at the same time do not overlap; a step that touches memory comes after all that touched it before and
 *                    conflict with it: earlier on its own queue, or waited for; every result has been written
 *
 * A violation is an error of this library (E_INTERNAL), which says where. Quadratic in places: it is for tests. */
#include <string.h>

#include "passes/look.h"
#include "passes/options.h"
#include "plan/fused.h"

typedef struct check {
    const dt_build *b;
    const dt_prog *p;
    const char *pass;
    int at; /* step */
} check;

#define BROKEN(c, fmt, ...)                                                                                                                         \
    dt_fail(DT_E_INTERNAL, "verify after %s, program of %s:%u, step %d (%s): " fmt, (c)->pass, dt_device_type_name(dt_device_kind((c)->p->device)), \
            dt_device_index((c)->p->device), (c)->at, dt_step_name(&(c)->p->step[(c)->at]), __VA_ARGS__)

static int root_of(const dt_prog *p, int st) {
    while (p->st[st].root != st) st = p->st[st].root;
    return st;
}

/* ---- steps over storages ------------------------------------------------------------------------------------------------------------------- */
static dt_status check_view(const check *c, int k) {
    const dt_instr *in = &c->p->step[c->at].in;
    const dt_view *v = &in->view[k];
    const dt_storage *s = &c->p->st[in->operand[k].slot];
    int64_t lo = 0, hi = 1, size = (int64_t)dt_dtype_size(v->dtype);
    if (s->kind == DT_ST_EXT && c->b->g->ext[s->ext]->layout) return DT_OK; /* a window into a larger buffer */
    for (int d = 0; d < v->ndim; d++) {
        if (v->shape[d] <= 0) return DT_OK;
        *(v->stride[d] < 0 ? &lo : &hi) += (v->shape[d] - 1) * v->stride[d];
    }
    if (in->operand[k].offset + lo * size < 0 || in->operand[k].offset + hi * size > (int64_t)s->bytes)
        return BROKEN(c, "operand %d reaches from byte %lld to %lld of storage %d, which has %zu", k, (long long)(in->operand[k].offset + lo * size),
                      (long long)(in->operand[k].offset + hi * size), in->operand[k].slot, s->bytes);
    return DT_OK;
}

static dt_status check_group(const check *c) {
    const dt_instr *in = &c->p->step[c->at].in;
    const dt_fused *f = in->fused;
    if (f->n_in != in->n_in || f->n_out != in->n_out)
        return BROKEN(c, "the group has %d inputs and %d outputs, the step %d and %d", f->n_in, f->n_out, in->n_in, in->n_out);
    for (int k = 0; k < f->n_ops; k++) {
        const dt_fused_op *o = &f->op[k];
        for (int i = 0; i < o->n_in; i++)
            if (o->in[i] >= f->n_in + k) return BROKEN(c, "op %d of the group reads value %d, which comes later", k, o->in[i]);
        if (o->out >= f->n_out) return BROKEN(c, "op %d of the group makes output %d of %d", k, o->out, f->n_out);
        if (o->out >= 0 && (f->made_by[o->out] != k || in->view[in->n_in + o->out].dtype != o->dtype))
            return BROKEN(c, "output %d of the group is not op %d's", o->out, k);
    }
    return DT_OK;
}

static dt_status check_bucket(const check *c) {
    const dt_step *s = &c->p->step[c->at];
    if (s->in.kind != DT_I_COLL || s->in.coll->index < 0 || s->bucket < 0 || c->at == 0) return DT_OK;
    const dt_step *before = s - 1;
    if (before->in.kind == DT_I_COLL && before->in.coll->index >= 0 && before->bucket == s->bucket) return DT_OK;
    for (int i = 0; i < c->at; i++)
        if (c->p->step[i].in.kind == DT_I_COLL && c->p->step[i].in.coll->index >= 0 && c->p->step[i].bucket == s->bucket)
            return BROKEN(c, "bucket %d began at step %d and was interrupted", s->bucket, i);
    return DT_OK;
}

/* Members of a group of kernels run at the same time: none touches what an earlier one writes, or writes what an earlier one touches. */
static dt_status check_many(const check *c) {
    const dt_instr *in = &c->p->step[c->at].in;
    if (in->kind != DT_I_KERNEL || c->p->step[c->at].bucket < 0) return DT_OK;
    for (int i = c->at - 1; i >= 0 && c->at - i < 64; i--) { /* a window: all pairs of thousands would take seconds */
        const dt_instr *a = &c->p->step[i].in;
        if (a->kind != DT_I_KERNEL || c->p->step[i].bucket != c->p->step[c->at].bucket) break;
        if (a->fn != in->fn) return BROKEN(c, "it runs together with step %d, another kernel", i);
        for (int k = 0; k < in->n_in + in->n_out; k++)
            for (int o = k < in->n_in ? a->n_in : 0; o < a->n_in + a->n_out; o++)
                if (in->operand[k].slot >= 0 && a->operand[o].slot >= 0 && root_of(c->p, in->operand[k].slot) == root_of(c->p, a->operand[o].slot))
                    return BROKEN(c, "it runs together with step %d, on which it depends", i);
    }
    return DT_OK;
}

/* tenant: by root, the storage whose value lies in that memory now; -1 nobody has written it. */
static dt_status check_step(const check *c, int *tenant) {
    const dt_instr *in = &c->p->step[c->at].in;
    for (int k = 0; k < in->n_in + in->n_out; k++) {
        int st = in->operand[k].slot;
        if (st < 0) continue;
        if (st >= c->p->n_st) return BROKEN(c, "operand %d is storage %d of %d", k, st, c->p->n_st);
        DT_TRY(check_view(c, k));
        int r = root_of(c->p, st);
        const dt_storage *s = &c->p->st[r];
        if (k >= in->n_in) {
            if (s->kind == DT_ST_EXT && !s->donate) return BROKEN(c, "it writes into input %u, which is not given away", s->ext);
            tenant[r] = st;
        } else if (tenant[r] != st && c->p->st[st].bytes && dt_view_numel(&in->view[k]))
            return BROKEN(c, "it reads storage %d, %s", st, tenant[r] < 0 ? "which nobody has written" : "whose memory another one has taken over");
    }
    if (in->fused) DT_TRY(check_group(c));
    DT_TRY(check_many(c));
    return check_bucket(c);
}

static dt_status check_steps(check *c, dt_arena *tmp) {
    int *tenant = DT_ARENA_ARRAY(tmp, int, c->p->n_st + 1);
    if (!tenant) return dt_fail(DT_E_NOMEM, "verify: out of host memory");
    for (int i = 0; i < c->p->n_st; i++) tenant[i] = c->p->st[i].kind == DT_ST_EXT ? i : -1;
    for (c->at = 0; c->at < c->p->n_step; c->at++) DT_TRY(check_step(c, tenant));
    return DT_OK;
}

/* ---- the finished plan -------------------------------------------------------------------------------------------------------------------------- */
typedef struct access { /* the last instructions of each queue that touched and wrote it, counted from 1 */
    uint32_t touched[2], written[2];
} access;
typedef struct plan_check {
    check c;
    int *st_of;        /* by slot */
    access *last;      /* by storage */
    uint32_t n[2];     /* instructions so far */
    uint32_t known[2]; /* of the other queue, what this queue has waited for */
} plan_check;

static bool share_memory(const dt_storage *a, const dt_storage *b) {
    return a == b ||
           (a->kind == DT_ST_TEMP && b->kind == DT_ST_TEMP && a->bytes && b->bytes && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes);
}

static dt_status check_order(plan_check *k, int slot, bool writes) {
    const dt_prog *p = k->c.p;
    int q = p->step[k->c.at].in.queue;
    if (slot < 0 || k->st_of[slot] < 0) return DT_OK;
    const dt_storage *s = &p->st[k->st_of[slot]];
    for (int i = 0; i < p->n_st; i++) {
        const dt_storage *o = &p->st[i];
        if (o->root != i || o->slot < 0 || !share_memory(s, o)) continue;
        uint32_t need = writes || s != o ? k->last[i].touched[!q] : k->last[i].written[!q];
        if (need > k->known[q])
            return BROKEN(&k->c, "it touches memory that instruction %u of the other queue touched, and has waited for %u only", need, k->known[q]);
        if (s != o && o->first <= s->first && o->last >= s->first)
            return BROKEN(&k->c, "slots %d and %d live at the same time in the same memory", s->slot, o->slot);
    }
    return DT_OK;
}

static void note(plan_check *k, int slot, bool writes, int q) {
    if (slot < 0 || k->st_of[slot] < 0) return;
    access *a = &k->last[k->st_of[slot]];
    a->touched[q] = k->n[q];
    if (writes) a->written[q] = k->n[q];
}

/* A bucket's first instruction waits for what all of them need, and they run as one. */
static uint32_t waits_for(const dt_prog *p, int at) {
    uint32_t wait = p->step[at].in.wait;
    for (int i = at + 1; i < p->n_step; i++) {
        const dt_step *a = &p->step[i - 1], *s = &p->step[i];
        if (a->in.kind != s->in.kind || a->bucket < 0 || a->bucket != s->bucket) break;
        if (s->in.wait > wait) wait = s->in.wait;
    }
    return wait;
}

static dt_status check_plan_step(plan_check *k) {
    const dt_instr *in = &k->c.p->step[k->c.at].in;
    int q = in->queue, n = in->n_in + in->n_out;
    uint32_t wait = waits_for(k->c.p, k->c.at);
    k->n[q]++;
    if (wait > k->known[q]) k->known[q] = wait;
    if (wait > k->n[!q]) return BROKEN(&k->c, "it waits for instruction %u of the other queue, of which %u come before it", wait, k->n[!q]);
    for (int i = 0; i < n; i++) DT_TRY(check_order(k, in->operand[i].slot, i >= in->n_in));
    DT_TRY(check_order(k, in->scratch.slot, true));
    for (int i = 0; i < n; i++) note(k, in->operand[i].slot, i >= in->n_in, q);
    note(k, in->scratch.slot, true, q);
    return DT_OK;
}

static dt_status check_plan(const check *c, dt_arena *tmp) {
    plan_check k = {.c = *c, .st_of = DT_ARENA_ARRAY(tmp, int, c->p->n_st + 2), .last = DT_ARENA_ARRAY(tmp, access, c->p->n_st + 1)};
    if (!k.st_of || !k.last) return dt_fail(DT_E_NOMEM, "verify: out of host memory");
    for (int i = 0; i < c->p->n_st + 2; i++) k.st_of[i] = -1;
    for (int i = 0; i < c->p->n_st; i++)
        if (c->p->st[i].root == i && c->p->st[i].slot >= 0) k.st_of[c->p->st[i].slot] = i;
    for (k.c.at = 0; k.c.at < c->p->n_step; k.c.at++) DT_TRY(check_plan_step(&k));
    for (int i = 0; i < c->p->n_st && c->p->n_step; i++) {
        const dt_storage *s = &c->p->st[i];
        k.c.at = c->p->n_step - 1;
        if (s->root == i && s->kind == DT_ST_OUT && s->bytes && !k.last[i].written[0] && !k.last[i].written[1])
            return BROKEN(&k.c, "slot %d, a result, is never written", s->slot);
    }
    return DT_OK;
}

dt_status dt_verify(const dt_build *b, const char *name) {
    dt_arena tmp;
    dt_arena_init(&tmp);
    dt_status s = DT_OK;
    for (int q = 0; q < b->n_prog && !s; q++) {
        check c = {b, &b->prog[q], name, 0};
        s = strcmp(name, "plan") ? check_steps(&c, &tmp) : check_plan(&c, &tmp);
        dt_arena_reset(&tmp);
    }
    dt_arena_fini(&tmp);
    return s;
}

dt_status dt_look(const dt_build *b, const char *name) {
    const dt_options *o = dt_options_get();
    if (DT_UNLIKELY(o->dump != NULL)) dt_dump_pass(b, name);
    return DT_UNLIKELY(o->verify) ? dt_verify(b, name) : DT_OK;
}
