/* The last lowering pass: which queue a collective runs on, which storages share memory, where temporaries lie, what waits for what.
 *
 * - A collective goes to the communication queue if some device has a compute step between it and the first use of its result, and it moves
 *   enough for what waking another thread costs.
 * - A kernel that may write in place takes over an input's storage when this is its last use and nobody outside sees it.
 * - Temporaries get offsets in one arena by first fit over their lifetimes, which are ranges of steps of both queues in program order. A storage
 *   remembers the tenants that its memory had before it.
 * - Across queues a step waits for the last step of the other queue that touched one of its storages, or an earlier tenant of its memory. All of
 *   a run's steps follow one global order, the same on every device, and every wait points backwards in it: no deadlock. */
#include <stdlib.h>
#include <string.h>

#include "passes/build.h"
#include "passes/look.h"
#include "passes/options.h"
#include "plan/backend.h"
#include "plan/fused.h"

typedef struct finish {
    dt_build *b;
    bool **escapes; /* per program, per storage root */
} finish;

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "plan: out of host memory"); }

static int root_of(dt_prog *p, int st) {
    while (p->st[st].root != st) st = p->st[st].root;
    return st;
}

static bool touches(const dt_step *s, int st) {
    for (int k = 0; k < s->in.n_in + s->in.n_out; k++)
        if (s->in.operand[k].slot == st) return true;
    return false;
}

/* ---- queues ------------------------------------------------------------------------------------------------------------------------ */
static bool overlaps(const dt_prog *p, int at) {
    const dt_step *s = &p->step[at];
    int out = s->in.n_out ? s->in.operand[s->in.n_in].slot : -1;
    bool compute = false;
    for (int i = at + 1; i < p->n_step; i++) {
        if (out >= 0 && touches(&p->step[i], out)) return compute;
        compute |= p->step[i].in.kind == DT_I_KERNEL;
    }
    return compute;
}

enum { WORTH_A_SWITCH = 128 << 10 }; /* bytes a device; some 10 us of copying */

/* The bucket of a step, -1: none. */
static int bucket_of(const dt_step *s) { return s->in.kind == DT_I_KERNEL || s->in.coll->index >= 0 ? s->bucket : -1; }

/* The first and last step of the bucket that step i is in; i itself outside of buckets. */
static void bucket_ends(const dt_prog *p, int i, int *first, int *last) {
    int k = bucket_of(&p->step[i]);
    *first = *last = i;
    if (k < 0) return;
    const uint8_t kind = p->step[i].in.kind;
    while (*first > 0 && p->step[*first - 1].in.kind == kind && bucket_of(&p->step[*first - 1]) == k) --*first;
    while (*last + 1 < p->n_step && p->step[*last + 1].in.kind == kind && bucket_of(&p->step[*last + 1]) == k) ++*last;
}

/* Bytes that all parties together are likely to move: of an exchange only the devices know, so even routing is assumed. */
static int64_t expected_bytes(const dt_coll *c) {
    const dt_exchange *x = c->exchange;
    int64_t bytes = c->bytes_moved;
    for (int i = 0; x && i < c->n; i++) bytes += x->party[i].shards * (x->rows_in < x->rows_out ? x->rows_in : x->rows_out) * x->party[i].row_bytes;
    return x ? bytes / x->groups * (x->groups - 1) : bytes;
}

static dt_status assign_queues(finish *f) {
    dt_build *b = f->b;
    bool *comm = DT_ARENA_ARRAY(&b->tmp, bool, 2 * b->n_colls + 1); /* by collective, then by bucket */
    int64_t *bytes = DT_ARENA_ARRAY(&b->tmp, int64_t, 2 * b->n_colls + 1);
    if (!comm || !bytes) return no_memory();
    for (int pass = 0; pass < 2; pass++)
        for (int q = 0; q < b->n_prog; q++)
            for (int i = 0; i < b->prog[q].n_step; i++) {
                dt_step *s = &b->prog[q].step[i];
                if (s->in.kind != DT_I_COLL || s->in.coll->index < 0) continue;
                int unit = s->bucket >= 0 ? b->n_colls + s->bucket : s->in.coll->index;
                if (pass == 0) {
                    comm[unit] |= overlaps(&b->prog[q], i);
                    bytes[unit] += expected_bytes(s->in.coll) / s->in.coll->n / s->in.coll->n; /* each of n parties adds its share */
                } else
                    s->in.queue = comm[unit] && bytes[unit] >= WORTH_A_SWITCH;
            }
    return DT_OK;
}

/* ---- lifetimes and escapes ------------------------------------------------------------------------------------------------------------- */
static void use(dt_prog *p, int st, int step, bool comm) {
    if (st < 0) return;
    dt_storage *s = &p->st[st];
    if (s->first < 0) s->first = step;
    s->last = step;
    p->has_comm |= comm;
}

static dt_status find_escapes(finish *f) {
    dt_build *b = f->b;
    f->escapes = DT_ARENA_ARRAY(&b->tmp, bool *, b->n_prog + 1);
    if (!f->escapes) return no_memory();
    for (int q = 0; q < b->n_prog; q++) {
        f->escapes[q] = DT_ARENA_ARRAY(&b->tmp, bool, b->prog[q].n_st + b->prog[q].n_step + 1); /* fusion may add a storage a step */
        if (!f->escapes[q]) return no_memory();
    }
    for (int i = 0; i < b->n_live; i++)
        for (int k = 0; k < b->g->node[i].call->n_out; k++)
            if (b->g->node[i].out[k]->named)
                for (int d = 0; d < b->out[i][k]->meta->mesh->n; d++) f->escapes[b->out[i][k]->loc[d].prog][b->out[i][k]->loc[d].storage] = true;
    return DT_OK;
}

static void lifetimes(finish *f) {
    dt_build *b = f->b;
    for (int q = 0; q < b->n_prog; q++) {
        dt_prog *p = &b->prog[q];
        for (int i = 0, first, last; i < p->n_step; i++) {
            dt_step *s = &p->step[i];
            bucket_ends(p, i, &first, &last); /* what a bucket touches is alive throughout */
            for (int k = 0; k < s->in.n_in + s->in.n_out; k++) {
                use(p, s->in.operand[k].slot, first, s->in.queue);
                use(p, s->in.operand[k].slot, last, s->in.queue);
            }
            use(p, s->in.scratch.slot, i, s->in.queue);
        }
    }
}

/* ---- in-place reuse ---------------------------------------------------------------------------------------------------------------------- */
static bool same_place(const dt_step *s, int i, int k) {
    const dt_view *a = &s->in.view[i], *c = &s->in.view[k];
    return s->in.operand[i].offset == s->in.operand[k].offset && a->ndim == c->ndim && a->dtype == c->dtype &&
           !memcmp(a->shape, c->shape, sizeof(int64_t) * (size_t)a->ndim) && !memcmp(a->stride, c->stride, sizeof(int64_t) * (size_t)a->ndim);
}

static bool can_take(finish *f, int prog, int at, int i, int o) {
    dt_prog *p = &f->b->prog[prog];
    const dt_step *s = &p->step[at];
    const dt_view *vi = &s->in.view[i], *vo = &s->in.view[o];
    if (s->in.operand[i].slot < 0 || vi->dtype != vo->dtype || s->in.operand[i].offset) return false;
    int r = root_of(p, s->in.operand[i].slot);
    const dt_storage *st = &p->st[r];
    if (st->last != at || f->escapes[prog][r] || (st->kind == DT_ST_EXT && !st->donate)) return false;
    size_t bytes = (size_t)dt_view_numel(vi) * dt_dtype_size(vi->dtype);
    if (!dt_view_contiguous(vi) || bytes != st->bytes || bytes != p->st[s->in.operand[o].slot].bytes || bytes == 0) return false;
    for (int k = 0; k < s->in.n_in; k++)
        if (k != i && s->in.operand[k].slot >= 0 && root_of(p, s->in.operand[k].slot) == r && !(s->inplace_any && same_place(s, i, k))) return false;
    return true;
}

static void take(finish *f, int prog, int at, int i, int o) {
    dt_prog *p = &f->b->prog[prog];
    int r = root_of(p, p->step[at].in.operand[i].slot), out = p->step[at].in.operand[o].slot;
    p->st[out].root = r;
    p->st[r].written = true;
    p->st[r].last = p->st[out].last > p->st[r].last ? p->st[out].last : p->st[r].last;
    f->escapes[prog][r] |= f->escapes[prog][out];
}

/* Written parameters (Tensor!): output k replaces the k-th given one. */
static void take_written(finish *f, int prog, int at) {
    dt_step *s = &f->b->prog[prog].step[at];
    const dt_op_info *info = dt_op_get_info(s->in.ctx.op);
    int in = 0, out = 0;
    for (int k = 0; k < info->n_params && out < s->in.n_out; k++) {
        if (info->param[k].kind > DT_PK_SCALAR) continue;
        if (info->param[k].written && dt_view_given(&s->in.view[in])) {
            if (can_take(f, prog, at, in, s->in.n_in + out)) take(f, prog, at, in, s->in.n_in + out);
            out++;
        }
        in++;
    }
}

/* A group writes outputs while it runs, block by block: an output may only take the memory of an input that it walks alike and that none of its
 * later ops reads. */
static bool read_after(dt_prog *p, const dt_step *s, int i, int k) {
    const dt_fused *x = s->in.fused;
    if ((x->rows_in >> i & 1) != (x->rows_out >> k & 1) || x->columns_out >> k & 1 || x->lookup_in >> i & 1) return true;
    int r = root_of(p, s->in.operand[i].slot);
    for (int j = 0; j < s->in.n_in; j++)
        if (s->in.operand[j].slot >= 0 && root_of(p, s->in.operand[j].slot) == r && (x->last_read[j] > x->made_by[k] || x->lookup_in >> j & 1)) return true;
    return false;
}

static void reuse_fused(finish *f, int prog, int at) {
    dt_step *s = &f->b->prog[prog].step[at];
    for (int k = 0; k < s->in.n_out; k++)
        for (int i = 0; i < s->in.n_in; i++)
            if (can_take(f, prog, at, i, s->in.n_in + k) && !read_after(&f->b->prog[prog], s, i, k)) {
                take(f, prog, at, i, s->in.n_in + k);
                break;
            }
}

static void reuse(finish *f, int prog) {
    dt_prog *p = &f->b->prog[prog];
    for (int at = 0; at < p->n_step; at++) {
        dt_step *s = &p->step[at];
        if (s->in.kind != DT_I_KERNEL || !s->in.n_out) continue;
        if (s->inplace_written) {
            take_written(f, prog, at);
            continue;
        }
        if (s->in.fused) {
            reuse_fused(f, prog, at);
            continue;
        }
        int tries = s->inplace_any ? s->in.n_in : s->inplace_first ? 1 : 0;
        for (int i = 0; i < tries; i++)
            if (can_take(f, prog, at, i, s->in.n_in)) {
                take(f, prog, at, i, s->in.n_in);
                break;
            }
    }
}

/* ---- slots and offsets --------------------------------------------------------------------------------------------------------------------- */
typedef struct hole {
    size_t offset, bytes;
    int last; /* occupied until this step */
} hole;

static size_t place_first_fit(hole *live, int *n, size_t bytes, int first, int last) {
    int kept = 0;
    for (int i = 0; i < *n; i++)
        if (live[i].last >= first) live[kept++] = live[i];
    *n = kept;
    size_t at = 0;
    int i = 0;
    for (; i < *n && live[i].offset < at + bytes; i++) /* sorted by offset */
        if (live[i].offset + live[i].bytes > at) at = live[i].offset + live[i].bytes;
    memmove(live + i + 1, live + i, sizeof *live * (size_t)(*n - i));
    live[i] = (hole){at, bytes, last};
    (*n)++;
    return at;
}

/* ---- who had the memory before: intervals of the arena and their latest tenants, by offset ---- */
typedef struct tenancy {
    size_t from, to;
    int st;
} tenancy;
typedef struct tenants {
    int n;
    tenancy *t;
} tenants;

static dt_status add_before(dt_build *b, dt_storage *s, int tenant) {
    dt_tenant *x = DT_ARENA_NEW(&b->tmp, dt_tenant);
    if (!x) return no_memory();
    *x = (dt_tenant){tenant, s->before};
    s->before = x;
    return DT_OK;
}

/* Storage st moves into [from, to): what was there is noted, and cut off or taken out. */
static dt_status move_in(dt_build *b, dt_prog *p, tenants *all, int st, size_t from, size_t to) {
    int lo = 0, hi;
    while (lo < all->n && all->t[lo].to <= from) lo++;
    for (hi = lo; hi < all->n && all->t[hi].from < to; hi++)
        if (p->has_comm) DT_TRY(add_before(b, &p->st[st], all->t[hi].st));
    tenancy keep[3];
    int n = 0;
    if (lo < hi && all->t[lo].from < from) keep[n++] = (tenancy){all->t[lo].from, from, all->t[lo].st};
    keep[n++] = (tenancy){from, to, st};
    if (lo < hi && all->t[hi - 1].to > to) keep[n++] = (tenancy){to, all->t[hi - 1].to, all->t[hi - 1].st};
    memmove(all->t + lo + n, all->t + hi, sizeof *all->t * (size_t)(all->n - hi));
    memcpy(all->t + lo, keep, sizeof *keep * (size_t)n);
    all->n += n - (hi - lo);
    return DT_OK;
}

static size_t rounded(const dt_storage *s) { return s->bytes ? (s->bytes + 63) & ~(size_t)63 : 64; }

typedef struct item { /* a temporary to be placed */
    int st, order;
    size_t bytes;
} item;

static int larger_first(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->order - y->order;
}

/* Offsets by size: the largest first, each as low as those allow that live at the same time. Returns the top. placed: room for n, sorted by offset. */
static size_t place_by_size(const dt_prog *p, item *it, int n, int *placed, size_t *offset) {
    size_t top = 0;
    qsort(it, (size_t)n, sizeof *it, larger_first);
    for (int i = 0; i < n; i++) {
        const dt_storage *s = &p->st[it[i].st];
        size_t at = 0;
        for (int k = 0; k < i; k++) {
            const dt_storage *o = &p->st[placed[k]];
            if (o->last < s->first || o->first > s->last) continue;
            if (offset[placed[k]] >= at + it[i].bytes) break;
            if (offset[placed[k]] + rounded(o) > at) at = offset[placed[k]] + rounded(o);
        }
        offset[it[i].st] = at;
        int k = i;
        for (; k > 0 && offset[placed[k - 1]] > at; k--) placed[k] = placed[k - 1];
        placed[k] = it[i].st;
        if (at + it[i].bytes > top) top = at + it[i].bytes;
    }
    return top;
}

/* First fit in the order of time is quick and mostly tight; where it wastes more than a twentieth, placing by size is tried as well. */
static dt_status improve_offsets(dt_build *b, dt_prog *p, const int *head, const int *next, size_t *top) {
    enum { MOST = 2048 };
    item *it = DT_ARENA_ARRAY(&b->tmp, item, p->n_st + 1);
    int *placed = DT_ARENA_ARRAY(&b->tmp, int, p->n_st + 1), n = 0;
    size_t *offset = DT_ARENA_ARRAY(&b->tmp, size_t, p->n_st + 1), alive = 0, most = 0;
    size_t *ends = DT_ARENA_ARRAY(&b->tmp, size_t, p->n_step + 2);
    if (!it || !placed || !offset || !ends) return no_memory();
    for (int at = 0; at < p->n_step; at++) {
        alive -= ends[at];
        for (int i = head[at]; i >= 0; i = next[i]) {
            it[n] = (item){i, n, rounded(&p->st[i])};
            alive += it[n++].bytes;
            ends[p->st[i].last + 1] += rounded(&p->st[i]);
        }
        if (alive > most) most = alive;
    }
    if (n > MOST || *top - most <= most / 20) return DT_OK;
    size_t other = place_by_size(p, it, n, placed, offset);
    if (other >= *top) return DT_OK;
    for (int i = 0; i < n; i++) p->st[it[i].st].offset = offset[it[i].st];
    *top = other;
    return DT_OK;
}

static dt_status layout_arena(finish *f, dt_prog *p, dt_program *out) {
    dt_build *b = f->b;
    size_t top = 0;
    int n = 0;
    hole *live = DT_ARENA_ARRAY(&b->tmp, hole, p->n_st + 1);
    tenants all = {0, DT_ARENA_ARRAY(&b->tmp, tenancy, 2 * p->n_st + 3)};
    int *by_first = DT_ARENA_ARRAY(&b->tmp, int, p->n_st + 1), *head = DT_ARENA_ARRAY(&b->tmp, int, p->n_step + 1);
    if (!live || !all.t || !by_first || !head) return no_memory();
    for (int i = 0; i <= p->n_step; i++) head[i] = -1;
    for (int i = p->n_st - 1; i >= 0; i--) {
        dt_storage *s = &p->st[i];
        if (s->root != i || s->kind != DT_ST_TEMP || s->first < 0) continue;
        by_first[i] = head[s->first];
        head[s->first] = i;
    }
    for (int at = 0; at < p->n_step; at++)
        for (int i = head[at]; i >= 0; i = by_first[i]) {
            dt_storage *s = &p->st[i];
            s->offset = place_first_fit(live, &n, rounded(s), s->first, s->last);
            if (s->offset + rounded(s) > top) top = s->offset + rounded(s);
        }
    DT_TRY(improve_offsets(b, p, head, by_first, &top));
    for (int at = 0; at < p->n_step; at++)
        for (int i = head[at]; i >= 0; i = by_first[i]) DT_TRY(move_in(b, p, &all, i, p->st[i].offset, p->st[i].offset + rounded(&p->st[i])));
    out->arena_bytes = top + 64;
    return DT_OK;
}

static dt_status number_slots(finish *f, int prog, dt_program *out) {
    dt_build *b = f->b;
    dt_prog *p = &b->prog[prog];
    for (int i = 0; i < p->n_st; i++) {
        dt_storage *s = &p->st[i];
        if (s->root != i) continue;
        bool used = s->first >= 0 || f->escapes[prog][i];
        if (s->kind == DT_ST_EXT)
            out->n_ext += used;
        else if (f->escapes[prog][i]) {
            s->kind = DT_ST_OUT;
            out->n_out++;
        } else
            out->n_temp += used;
    }
    out->n_slots = out->n_ext + out->n_out + out->n_temp + 1;
    out->ext = DT_ARENA_ARRAY(b->arena, dt_bind_in, out->n_ext + 1);
    out->out_bytes = DT_ARENA_ARRAY(b->arena, size_t, out->n_out + 1);
    out->temp_offset = DT_ARENA_ARRAY(b->arena, size_t, out->n_temp + 1);
    if (!out->ext || !out->out_bytes || !out->temp_offset) return no_memory();
    DT_TRY(layout_arena(f, p, out));
    int next[3] = {out->n_ext + out->n_out, out->n_ext, 0}; /* temp, out, ext */
    for (int i = 0; i < p->n_st; i++) {
        dt_storage *s = &p->st[i];
        if (s->root != i || (s->first < 0 && !f->escapes[prog][i])) continue;
        s->slot = next[s->kind]++;
        if (s->kind == DT_ST_EXT)
            out->ext[s->slot] = (dt_bind_in){s->ext, s->pos, s->written, b->ext[s->ext]->meta->mesh->dev[s->pos]};
        else if (s->kind == DT_ST_OUT)
            out->out_bytes[s->slot - out->n_ext] = s->bytes;
        else
            out->temp_offset[s->slot - out->n_ext - out->n_out] = s->offset;
    }
    return DT_OK;
}

static int slot_of(dt_prog *p, const dt_program *out, int st) {
    if (st == -2) return out->n_slots - 1;
    return st < 0 ? -1 : p->st[root_of(p, st)].slot;
}

/* ---- programs ------------------------------------------------------------------------------------------------------------------------------ */
/* Per storage and queue: the last step that touched it, and the last one that wrote it. Readers wait for writers only. */
typedef struct seen {
    int touched[2], written[2];
} seen;

static void wait_for(dt_prog *p, int st, int queue, bool writes, const seen *last, uint32_t *wait) {
    if (st < 0) return;
    const seen *s = &last[root_of(p, st)];
    int other = writes ? s->touched[!queue] : s->written[!queue];
    if ((uint32_t)other > *wait) *wait = (uint32_t)other;
}

/* A storage that begins at step `at` waits for whoever had its memory. */
static void wait_for_tenants(dt_prog *p, int st, int at, int queue, const seen *last, uint32_t *wait) {
    if (st < 0) return;
    const dt_storage *s = &p->st[root_of(p, st)];
    if (s->first != at) return;
    for (const dt_tenant *t = s->before; t; t = t->next)
        if ((uint32_t)last[t->st].touched[!queue] > *wait) *wait = (uint32_t)last[t->st].touched[!queue];
}

static void touched(dt_prog *p, int st, int queue, bool writes, seen *last, int count) {
    if (st < 0) return;
    seen *s = &last[root_of(p, st)];
    s->touched[queue] = count;
    if (writes) s->written[queue] = count;
}

/* s, which begins at step `first`, waits for the other queue. */
static void waits(dt_prog *p, dt_instr *s, int first, seen *last) {
    for (int k = 0; k < s->n_in + s->n_out; k++) {
        wait_for(p, s->operand[k].slot, s->queue, k >= s->n_in, last, &s->wait);
        wait_for_tenants(p, s->operand[k].slot, first, s->queue, last, &s->wait);
    }
    wait_for(p, s->scratch.slot, s->queue, true, last, &s->wait);
    wait_for_tenants(p, s->scratch.slot, first, s->queue, last, &s->wait);
}

/* ---- what a finished instruction points to: the first program's where it is equal, else a copy in the plan -------------------------------- */
/* Nobody writes into a group or a place, so all devices may share them. Views hold addresses while a kernel runs; a device that runs none shares those too. */
static const void *keep(dt_build *b, const void *mine, const void *first, size_t bytes) {
    return first && !memcmp(mine, first, bytes) ? first : dt_arena_copy(b->arena, mine, bytes);
}

static dt_status keep_instr(dt_build *b, dt_instr *s, const dt_instr *first, bool dataless) {
    size_t n = (size_t)s->n_in + s->n_out;
    if (first && (first->kind != s->kind || first->n_in != s->n_in || first->n_out != s->n_out || !first->fused != !s->fused)) first = NULL;
    s->operand = dt_arena_copy(b->arena, s->operand, sizeof *s->operand * n);
    s->view = (dt_view *)keep(b, s->view, first && dataless ? first->view : NULL, sizeof *s->view * n);
    if (!s->operand || !s->view) return no_memory();
    if (s->kind != DT_I_KERNEL) return DT_OK;
    s->ctx.in = s->view;
    s->ctx.out = s->view + s->n_in;
    if (s->fused) {
        if (!(s->fused = keep(b, s->fused, first ? first->fused : NULL, sizeof *s->fused))) return no_memory();
        s->ctx.attr = s->fused;
    }
    if (s->ctx.in_place && dataless) s->ctx.in_place = s->ctx.out_place = NULL;
    if (!s->ctx.in_place) return DT_OK;
    const dt_geom *g = keep(b, s->ctx.in_place, first ? first->ctx.in_place : NULL, sizeof *g * n);
    if (!g) return no_memory();
    s->ctx.in_place = g;
    s->ctx.out_place = g + s->n_in;
    return DT_OK;
}

static dt_status emit_program(finish *f, int prog, dt_program *out) {
    dt_build *b = f->b;
    dt_prog *p = &b->prog[prog];
    seen *last = DT_ARENA_ARRAY(&b->tmp, seen, p->n_st + 1);
    const dt_backend *backend = dt_backend_of(dt_device_kind(p->device));
    int total[2] = {0, 0};
    if (!last) return no_memory();
    for (int i = 0; i < p->n_step; i++) total[p->step[i].in.queue]++;
    for (int q = 0; q < 2; q++) {
        out->instr[q] = DT_ARENA_ARRAY(b->arena, dt_instr, total[q] + 1);
        if (!out->instr[q]) return no_memory();
    }
    for (int i = 0, head = -1, first = 0, end = -1; i < p->n_step; i++) {
        dt_instr *s = &p->step[i].in;
        int q = s->queue, count = out->n_instr[q] + 1;
        if (i > end) bucket_ends(p, i, &first, &end);
        waits(p, s, first, last);
        for (int k = 0; k < s->n_in + s->n_out; k++) touched(p, s->operand[k].slot, q, k >= s->n_in, last, count);
        touched(p, s->scratch.slot, q, true, last, count);
        for (int k = 0; k < s->n_in + s->n_out; k++) s->operand[k].slot = slot_of(p, out, s->operand[k].slot);
        s->scratch.slot = slot_of(p, out, s->scratch.slot);
        if (first == i) head = out->n_instr[q];
        const dt_program *one = &b->plan->program[0];
        const dt_instr *like = prog && out->n_instr[q] < one->n_instr[q] ? &one->instr[q][out->n_instr[q]] : NULL;
        DT_TRY(keep_instr(b, s, like, backend && backend->run));
        out->instr[q][out->n_instr[q]++] = *s;
        if (first != i) { /* the head runs the whole bucket, so it waits for what any of it needs */
            dt_instr *h = &out->instr[q][head];
            h->also++;
            if (s->wait > h->wait) h->wait = s->wait;
        }
    }
    return DT_OK;
}

/* The parties of a collective learn their operands' slots only for checks; addresses meet in the run's rendezvous. */
static dt_status emit_outs(finish *f) {
    dt_build *b = f->b;
    int n = 0;
    for (int i = 0; i < b->n_live; i++)
        for (int k = 0; k < b->g->node[i].call->n_out; k++) n += b->g->node[i].out[k]->named;
    b->plan->out = DT_ARENA_ARRAY(b->arena, dt_out_plan, n + 1);
    if (!b->plan->out) return no_memory();
    for (int i = 0; i < b->n_live; i++)
        for (int k = 0; k < b->g->node[i].call->n_out; k++) {
            if (!b->g->node[i].out[k]->named) continue;
            const dt_pval *v = b->out[i][k];
            dt_out_plan *o = &b->plan->out[b->plan->n_outs++];
            *o = (dt_out_plan){(uint32_t)i, (uint32_t)k, v->layout, DT_ARENA_ARRAY(b->arena, dt_part_plan, v->meta->mesh->n)};
            if (!o->part) return no_memory();
            for (int d = 0; d < v->meta->mesh->n; d++) {
                const dt_loc *l = &v->loc[d];
                dt_prog *p = &b->prog[l->prog];
                bool dense = dt_view_contiguous(&l->view);
                o->part[d] = (dt_part_plan){l->prog, p->st[root_of(p, l->storage)].slot, l->offset, dense, NULL};
                if (!dense) o->part[d].stride = dt_arena_copy(b->arena, l->view.stride, sizeof(int64_t) * (size_t)(v->meta->ndim + 1));
            }
        }
    return DT_OK;
}

dt_status dt_build_finish(dt_build *b) {
    finish f = {.b = b};
    dt_plan *p = b->plan;
    DT_TRY(find_escapes(&f));
    DT_TRY(dt_look(b, "lower"));
    if (dt_options_get()->bucket) {
        DT_TRY(dt_build_bucket(b));
        DT_TRY(dt_look(b, "bucket"));
    }
    if (dt_options_get()->fuse) {
        DT_TRY(dt_build_fuse(b, f.escapes));
        DT_TRY(dt_look(b, "fuse"));
    }
    if (dt_options_get()->overlap) DT_TRY(assign_queues(&f));
    lifetimes(&f);
    for (int q = 0; q < b->n_prog && dt_options_get()->reuse; q++) reuse(&f, q);
    DT_TRY(dt_look(b, "reuse"));
    if (dt_options_get()->many) {
        DT_TRY(dt_build_many(b, f.escapes));
        DT_TRY(dt_look(b, "many"));
    }
    p->program = DT_ARENA_ARRAY(b->arena, dt_program, b->n_prog + 1);
    if (!p->program) return no_memory();
    p->n_programs = b->n_prog;
    for (int q = 0; q < b->n_prog; q++) {
        p->program[q].device = b->prog[q].device;
        DT_TRY(number_slots(&f, q, &p->program[q]));
    }
    DT_TRY(emit_outs(&f));
    for (int q = 0; q < b->n_prog; q++) DT_TRY(emit_program(&f, q, &p->program[q]));
    p->n_nodes = b->n_live;
    p->n_numbers = b->n_numbers;
    p->number = b->number;
    p->n_colls = b->n_colls;
    p->coll = b->coll;
    p->n_ext = b->g->n_ext;
    return dt_look(b, "plan");
}
