/* Many small kernels together: neighbouring steps of one kind that do not depend on each other become one group, which a worker's team divides by
 * what each has to do. A step for each of a thousand small parameters is the case: alone none is worth waking the team for.
 *
 *      adam_update p0 ┐                            team:  | p0 p1 p2 p3 | p4 p5 | p6 p7 … |   a task: neighbours, some 16,000 elements
 *      adam_update p1 │  one group: head and two
 *      adam_update p2 ┘  behind it (dt_instr.also)
 *
 * It runs after memory was reused, so dependence is a matter of storages alone: no member touches what another one writes. What a group touches
 * lives throughout. A member's results outlive the plan or lie in what it overwrites, so that a group needs no more memory than its members
 * one after the other. A member that fails, or whose inputs have, spoils its own results only.
 *
 * Every kernel runs as it would alone, on one thread, and its results do not depend on the team's size: no bit changes.
 *
 * Rejected: one instruction with a table of tensors. A worker spends 0.15 us on a small member, views patched and kernel run; the client and the
 * controller spend ten times that on its record. What a table saves cannot be seen (docs/design/043). */
#include "ops/op.h"
#include "passes/build.h"
#include "plan/backend.h"
#include "plan/fused.h"

enum { SMALL = 32768, MEMBERS = 4096 }; /* elements: larger ones divide themselves */

typedef struct many {
    dt_prog *p;
    const dt_backend *backend;
    bool *escapes;
    int *wrote, *touched; /* (n_st,) the group that last wrote a root, or touched it */
    int group, first, n;
} many;

static int root_of(const dt_prog *p, int st) {
    while (p->st[st].root != st) st = p->st[st].root;
    return st;
}

static bool outlives(const many *m, int st) {
    int r = root_of(m->p, st);
    return m->p->st[r].kind != DT_ST_TEMP || m->escapes[r];
}

/* A step that a group may have: it walks its elements once, is small, and needs no memory of its own. */
static bool fits(const many *m, const dt_step *s) {
    const dt_instr *in = &s->in;
    if (in->kind != DT_I_KERNEL || in->queue || in->scratch.slot >= 0 || !in->n_out) return false;
    bool walks = in->fused ? !in->fused->n_lookups : s->inplace_written || in->fn == m->backend->elementwise;
    if (!walks) return false;
    for (int k = 0; k < in->n_in + in->n_out; k++)
        if (dt_view_given(&in->view[k]) && dt_view_numel(&in->view[k]) >= SMALL) return false;
    for (int k = in->n_in; k < in->n_in + in->n_out; k++)
        if (in->operand[k].slot < 0 || !outlives(m, in->operand[k].slot)) return false;
    return true;
}

/* Does s touch what a member writes, or write what a member touches? */
static bool depends(const many *m, const dt_step *s) {
    for (int k = 0; k < s->in.n_in + s->in.n_out; k++) {
        int st = s->in.operand[k].slot, r = st < 0 ? -1 : root_of(m->p, st);
        if (r >= 0 && (m->wrote[r] == m->group || (k >= s->in.n_in && m->touched[r] == m->group))) return true;
    }
    return false;
}

static void join(many *m, dt_step *s) {
    for (int k = 0; k < s->in.n_in + s->in.n_out; k++) {
        int st = s->in.operand[k].slot, r = st < 0 ? -1 : root_of(m->p, st);
        if (r < 0) continue;
        m->touched[r] = m->group;
        if (k >= s->in.n_in) m->wrote[r] = m->group;
    }
    m->n++;
}

/* The group's steps are members of one bucket from now on, if there are several. */
static void end(many *m, int at) {
    for (int i = m->first; m->n > 1 && i < at; i++) {
        m->p->step[i].bucket = m->group;
        for (int k = 0; k < m->p->step[i].in.n_in + m->p->step[i].in.n_out; k++) {
            int st = m->p->step[i].in.operand[k].slot;
            if (st < 0) continue;
            dt_storage *r = &m->p->st[root_of(m->p, st)];
            if (r->first > m->first) r->first = m->first;
            if (r->last < at - 1) r->last = at - 1;
        }
    }
    m->group++;
    m->first = at;
    m->n = 0;
}

static dt_status program(dt_build *b, dt_prog *p, bool *escapes) {
    many m = {.p = p, .backend = dt_backend_of(dt_device_kind(p->device)), .escapes = escapes, .group = 1};
    if (!m.backend || m.backend->run) return DT_OK; /* nothing runs there */
    m.wrote = DT_ARENA_ARRAY(&b->tmp, int, p->n_st + 1);
    m.touched = DT_ARENA_ARRAY(&b->tmp, int, p->n_st + 1);
    if (!m.wrote || !m.touched) return dt_fail(DT_E_NOMEM, "many: out of host memory");
    for (int i = 0; i < p->n_step; i++) {
        dt_step *s = &p->step[i];
        bool fit = fits(&m, s);
        if (m.n && (!fit || s->in.fn != p->step[m.first].in.fn || m.n == MEMBERS || depends(&m, s))) end(&m, i);
        if (!fit) continue;
        if (!m.n) m.first = i;
        join(&m, s);
    }
    end(&m, p->n_step);
    return DT_OK;
}

dt_status dt_build_many(dt_build *b, bool **escapes) {
    for (int q = 0; q < b->n_prog; q++) DT_TRY(program(b, &b->prog[q], escapes[q]));
    return DT_OK;
}
