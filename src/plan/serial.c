/* Plans to bytes and back. See serial.h. Writer and reader of one thing stand next to each other. */
#include "plan/serial.h"

#include <string.h>

#include "plan/backend.h"

enum { MAX_LIST = 1 << 20, MAX_ATTR = 1 << 12 };

/* The reader's state: where the plan under construction lives and what its numbers may be. */
typedef struct reader {
    dt_unwire *u;
    dt_plan *p;
    int n_colls;
} reader;

#define NEW(r, type, n) DT_ARENA_ARRAY(&(r)->p->arena, type, (n) + 1)
static dt_status bad(const char *what) { return dt_fail(DT_E_INTERNAL, "a plan from another process is not legal: %s", what); }
static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "a plan from another process: out of host memory"); }

/* ---- views, operands, places ------------------------------------------------------------------------------------------------------------- */
static void put_view(dt_wire *w, const dt_view *v) {
    dt_wire_u64(w, v->dtype);
    dt_wire_u64(w, (uint64_t)v->ndim);
    for (int d = 0; d < v->ndim; d++) {
        dt_wire_i64(w, v->shape[d]);
        dt_wire_i64(w, v->stride[d]);
    }
}
static void get_view(dt_unwire *u, dt_view *v) {
    *v = (dt_view){.dtype = (dt_dtype)dt_unwire_count(u, 255)};
    v->ndim = (int32_t)dt_unwire_count(u, DT_MAX_DIM);
    if (v->dtype >= DT_DTYPE_COUNT && v->dtype != DT_DTYPE_NONE) u->bad = true;
    for (int d = 0; d < v->ndim; d++) {
        v->shape[d] = dt_unwire_i64(u);
        v->stride[d] = dt_unwire_i64(u);
        if (v->shape[d] < 0) u->bad = true;
    }
}

static void put_operand(dt_wire *w, dt_operand o) {
    dt_wire_i64(w, o.slot);
    dt_wire_i64(w, o.offset);
}
static dt_operand get_operand(dt_unwire *u, int n_slots) {
    dt_operand o = {(int32_t)dt_unwire_i64(u), 0};
    o.offset = dt_unwire_i64(u);
    if (o.slot < -1 || o.slot >= n_slots || o.offset < 0) u->bad = true;
    return o;
}

static void put_geom(dt_wire *w, const dt_geom *g, int ndim) {
    dt_wire_u64(w, g->first);
    for (int d = 0; d < ndim; d++) {
        dt_wire_i64(w, g->lo[d]);
        dt_wire_i64(w, g->shape[d]);
    }
}
static void get_geom(dt_unwire *u, dt_geom *g, int ndim) {
    g->first = dt_unwire_count(u, 1) != 0;
    for (int d = 0; d < ndim; d++) {
        g->lo[d] = dt_unwire_i64(u);
        g->shape[d] = dt_unwire_i64(u);
    }
}

/* ---- attributes: the struct, then its strings ---------------------------------------------------------------------------------------------- */
static void put_attr(dt_wire *w, const dt_op *op, const void *attr) {
    dt_wire_u64(w, attr ? op->attrs.size : 0);
    if (!attr || !op->attrs.size) return;
    const dt_op_info *info = dt_op_get_info(op);
    uint8_t plain[MAX_ATTR];
    if (op->attrs.size > sizeof plain) {
        w->failed = true; /* none is so large; the reader would refuse it */
        return;
    }
    memcpy(plain, attr, op->attrs.size);
    for (int k = 0; k < info->n_params; k++) /* no address leaves the process */
        if (info->param[k].kind == DT_PK_STR) memset(plain + info->param[k].offset, 0, sizeof(void *));
    dt_wire_put(w, plain, op->attrs.size);
    for (int k = 0; k < info->n_params; k++) {
        if (info->param[k].kind != DT_PK_STR) continue;
        const char *s;
        memcpy(&s, (const char *)attr + info->param[k].offset, sizeof s);
        dt_wire_text(w, s ? s : "");
    }
}
static dt_status get_attr(reader *r, const dt_op *op, const void **out) {
    *out = NULL;
    size_t n = dt_unwire_count(r->u, MAX_ATTR);
    if (n == 0) return DT_OK;
    if (n != op->attrs.size) return bad("the attributes of an operator have another size");
    char *attr = DT_ARENA_ARRAY(&r->p->arena, char, (n + 15) & ~(size_t)15);
    if (!attr) return no_memory();
    dt_unwire_get(r->u, attr, n);
    const dt_op_info *info = dt_op_get_info(op);
    for (int k = 0; k < info->n_params; k++) {
        if (info->param[k].kind != DT_PK_STR) continue;
        const char *s = dt_unwire_text(r->u);
        memcpy(attr + info->param[k].offset, &s, sizeof s);
    }
    *out = attr;
    return DT_OK;
}

static void put_op(dt_wire *w, const dt_op *op) { dt_wire_u64(w, dt_op_get_info(op)->id); }
static const dt_op *get_op(dt_unwire *u) {
    size_t id = dt_unwire_count(u, (size_t)dt_ops_count() - 1);
    return dt_ops_at((int)id);
}

/* ---- fused groups ------------------------------------------------------------------------------------------------------------------------------ */
static void put_fused(dt_wire *w, const dt_fused *x) {
    if (dt_like_shared(w, x)) return;
    dt_fused plain = *x;
    plain.name = NULL;
    for (int k = 0; k < DT_FUSED_OPS; k++) plain.op[k].op = plain.op[k].params = NULL; /* no address leaves the process */
    dt_wire_put(w, &plain, sizeof plain);
    dt_wire_text(w, x->name);
    for (int k = 0; k < x->n_ops; k++) {
        put_op(w, x->op[k].op);
        put_attr(w, x->op[k].op, x->op[k].params);
    }
    dt_like_ended(w, x);
}
/* A table and indices that no other op walks. */
static bool lookup_legal(const dt_fused *x, const dt_fused_op *o) {
    if (o->n_in != 2 || o->in[0] >= x->n_in || o->in[1] >= x->n_in || o->code < 1 || o->code >= DT_LOOKUPS || o->key != o->dtype) return false;
    if (o->out >= 0 && x->columns_out >> o->out & 1) return false;
    return x->lookup_in >> o->in[0] & 1 && x->lookup_in >> o->in[1] & 1 && dt_dtype_size(o->dtype) <= 8 && o->limit >= 0 && o->lookup < DT_FUSED_LOOKUPS;
}
static bool fused_legal(const dt_fused *x) {
    if (x->n_ops < 1 || x->n_ops > DT_FUSED_OPS || x->n_in < 0 || x->n_in > DT_FUSED_IN || x->n_out < 1 || x->n_out > DT_FUSED_OUT) return false;
    if (x->n_tiles < 0 || x->n_tiles > DT_FUSED_OPS || x->n_row_tiles < 0 || x->n_row_tiles > DT_FUSED_OPS) return false;
    if (x->size < 0 || x->row < 0 || x->row == 1 || (x->row && x->size % x->row)) return false;
    int columns = 0, lookups = 0;
    if (x->seg < 0 || (x->seg && !x->row) || x->n_columns < 0 || (x->n_columns > 0) != (x->seg > 0)) return false;
    for (int k = 0; k < x->n_ops; k++) {
        const dt_fused_op *o = &x->op[k];
        if (o->kind >= DT_FUSED_KINDS || o->rows > 1 || (o->rows && !x->row)) return false;
        if (o->n_in > DT_PW_MAX_IN || o->out >= x->n_out || o->key >= DT_DTYPE_COUNT || o->dtype >= DT_DTYPE_COUNT) return false;
        if (o->tile >= (o->rows ? x->n_row_tiles : x->n_tiles) || (o->out < 0 && o->tile < 0)) return false;
        if (o->kind == DT_FUSED_LOOKUP) {
            if (!lookup_legal(x, o) || o->lookup != lookups++) return false;
            continue;
        }
        if (o->kind == DT_FUSED_DROPOUT && (o->n_in != 3 || o->key != dt_pw_tile_dtype(o->dtype) || !dt_dtype_is_float(o->dtype))) return false;
        if (o->kind != DT_FUSED_CODE && o->kind != DT_FUSED_DROPOUT && (o->n_in != 1 || o->rows != (o->kind != DT_FUSED_SPREAD && o->kind != DT_FUSED_COLUMNS)))
            return false;
        if (o->kind == DT_FUSED_COLUMNS && (o->code != columns++ || columns > x->n_columns || o->out < 0 || o->tile < 0)) return false;
        if (o->out >= 0 && (x->columns_out >> o->out & 1) != (o->kind == DT_FUSED_COLUMNS)) return false;
        uint8_t read; /* a bool may hold any byte here */
        memcpy(&read, &o->read, 1);
        if (read > 1) return false;
        for (int i = 0; i < o->n_in; i++) { /* ops and reductions of full tensors must not read past a row's element */
            if (o->in[i] >= x->n_in + k || (o->in[i] < x->n_in && x->lookup_in >> o->in[i] & 1)) return false;
            if (o->in[i] >= x->n_in && x->op[o->in[i] - x->n_in].kind == DT_FUSED_COLUMNS) return false;
            bool rows = o->in[i] < x->n_in ? x->rows_in >> o->in[i] & 1 : x->op[o->in[i] - x->n_in].rows;
            if (rows != (o->kind == DT_FUSED_SPREAD || ((o->kind == DT_FUSED_CODE || o->kind == DT_FUSED_DROPOUT) && o->rows)) &&
                !(o->in[i] < x->n_in && !rows))
                return false;
        }
    }
    for (int i = 0; i < x->n_in; i++)
        if (x->last_read[i] >= x->n_ops) return false;
    for (int i = 0; i < x->n_out; i++)
        if (x->made_by[i] >= x->n_ops) return false;
    return lookups == x->n_lookups;
}
static bool lookup_walks(const dt_fused *x, const dt_fused_op *o, const dt_instr *s) {
    const dt_view *table = &s->view[o->in[0]], *index = &s->view[o->in[1]];
    int64_t n = o->rows ? x->size / x->row : x->size, m = dt_view_numel(index);
    if (table->ndim != 2 || table->dtype != o->dtype || (index->dtype != DT_int64 && index->dtype != DT_int32)) return false;
    if (o->code == DT_LOOKUP_GATHER) return index->ndim == 2 && table->shape[0] == index->shape[0] && m == n;
    return n == 0 || (table->shape[1] > 0 && n % table->shape[1] == 0 && n / table->shape[1] == m);
}
/* Are the instruction's operands of the sizes that the group walks? */
static bool fused_walks(const dt_fused *x, const dt_instr *s) {
    if (x->n_in != s->n_in || x->n_out != s->n_out) return false;
    for (int i = 0; i < s->n_in + s->n_out; i++) {
        bool rows = (i < s->n_in ? x->rows_in >> i : x->rows_out >> (i - s->n_in)) & 1;
        int64_t n = dt_view_numel(&s->view[i]);
        if (i < s->n_in && x->lookup_in >> i & 1) continue;
        if (i >= s->n_in && x->columns_out >> (i - s->n_in) & 1) {
            if (n != x->row) return false;
            continue;
        }
        if (n != (rows ? x->size / (x->row ? x->row : 1) : x->size) && (n != 1 || i >= s->n_in)) return false;
    }
    for (int k = 0; k < x->n_ops; k++)
        if (x->op[k].kind == DT_FUSED_LOOKUP && !lookup_walks(x, &x->op[k], s)) return false;
    return true;
}
static dt_status get_fused(reader *r, const dt_fused **out) {
    dt_fused *x = DT_ARENA_NEW(&r->p->arena, dt_fused);
    if (!x) return no_memory();
    dt_unwire_get(r->u, x, sizeof *x);
    x->name = dt_unwire_text(r->u);
    if (r->u->bad || !fused_legal(x)) return bad("a fused group");
    for (int k = 0; k < x->n_ops; k++) {
        x->op[k].op = get_op(r->u);
        DT_TRY(get_attr(r, x->op[k].op, &x->op[k].params));
        bool dropout = x->op[k].op == &dt_op__dropout || x->op[k].op == &dt_op__dropout_backward;
        if (x->op[k].kind == DT_FUSED_DROPOUT && (!dropout || !x->op[k].params)) return bad("a fused dropout");
    }
    *out = x;
    return DT_OK;
}

/* ---- collectives ---------------------------------------------------------------------------------------------------------------------------------- */
static void put_pull(dt_wire *w, const dt_pull *q) {
    put_view(w, q->dst);
    dt_wire_i64(w, q->offset);
    dt_wire_u64(w, (uint64_t)q->n_src);
    for (int k = 0; k < q->n_src; k++) {
        dt_wire_u64(w, (uint64_t)q->src[k].party);
        bool alike = k && dt_pull_view(q, k) == dt_pull_view(q, k - 1);
        dt_wire_u64(w, q->src[k].from_out | (unsigned)alike << 1);
        if (!alike) put_view(w, dt_pull_view(q, k));
        dt_wire_i64(w, dt_pull_offset(q, k));
    }
}
static dt_status get_pull(reader *r, const dt_coll *c, dt_pull *q) {
    dt_view *v = DT_ARENA_NEW(&r->p->arena, dt_view);
    if (!v) return no_memory();
    get_view(r->u, v);
    q->dst = v;
    q->offset = dt_unwire_i64(r->u);
    q->n_src = (int)dt_unwire_count(r->u, DT_MAX_DEVICES);
    dt_pull_src *src = NEW(r, dt_pull_src, q->n_src);
    if (!src) return no_memory();
    q->src = src;
    for (int k = 0; k < q->n_src && !r->u->bad; k++) {
        src[k].party = (int32_t)dt_unwire_count(r->u, c->pulled ? UINT16_MAX : (size_t)c->n - 1);
        size_t flags = dt_unwire_count(r->u, 3);
        src[k].from_out = flags & 1;
        if (flags & 2 && k)
            src[k].view = src[k - 1].view;
        else {
            if (!(v = DT_ARENA_NEW(&r->p->arena, dt_view))) return no_memory();
            get_view(r->u, v);
            src[k].view = v;
        }
        src[k].offset = dt_unwire_i64(r->u);
        if (src[k].offset < 0) r->u->bad = true;
    }
    if (q->offset < 0) r->u->bad = true;
    return r->u->bad ? bad("a transfer") : DT_OK;
}

static void put_exchange(dt_wire *w, const dt_coll *c) {
    const dt_exchange *x = c->exchange;
    dt_wire_u64(w, x ? (uint64_t)x->groups : 0);
    if (!x) return;
    dt_wire_u64(w, x->back);
    dt_wire_i64(w, x->rows_in);
    dt_wire_i64(w, x->rows_out);
    dt_wire_i64(w, x->n_experts);
    for (int i = 0; i < c->n; i++) {
        dt_wire_u64(w, (uint64_t)x->party[i].at);
        for (int g = 0; g < x->groups; g++) dt_wire_u64(w, (uint64_t)x->party[i].peer[g]);
        dt_wire_i64(w, x->party[i].shards);
        dt_wire_i64(w, x->party[i].row_bytes);
    }
}
static dt_status get_exchange(reader *r, dt_coll *c) {
    int groups = (int)dt_unwire_count(r->u, DT_MAX_DEVICES);
    if (r->u->bad || !groups) return r->u->bad ? bad("an exchange") : DT_OK;
    dt_exchange *x = DT_ARENA_NEW(&r->p->arena, dt_exchange);
    if (!x || !(x->party = NEW(r, dt_exchange_party, c->n))) return no_memory();
    c->exchange = x;
    x->groups = groups;
    x->back = dt_unwire_count(r->u, 1) != 0;
    x->rows_in = dt_unwire_i64(r->u);
    x->rows_out = dt_unwire_i64(r->u);
    x->n_experts = dt_unwire_i64(r->u);
    bool fits = x->rows_in >= 0 && x->rows_out >= 0 && x->n_experts >= 0;
    for (int i = 0; i < c->n && !r->u->bad; i++) {
        dt_exchange_party *y = &x->party[i];
        y->at = (int)dt_unwire_count(r->u, (size_t)groups - 1);
        if (!(y->peer = NEW(r, int, groups))) return no_memory();
        for (int g = 0; g < groups; g++) y->peer[g] = (int)dt_unwire_count(r->u, (size_t)c->n - 1);
        y->shards = dt_unwire_i64(r->u);
        y->row_bytes = dt_unwire_i64(r->u);
        fits &= y->shards >= 0 && y->row_bytes >= 0;
    }
    return r->u->bad || !fits ? bad("an exchange") : DT_OK;
}

static void put_coll(dt_wire *w, const dt_coll *c) {
    if (dt_like_shared(w, c)) return; /* it is whole, whoever takes part */
    dt_wire_u64(w, (uint64_t)c->n);
    dt_wire_i64(w, c->index);
    dt_wire_u64(w, c->node);
    dt_wire_u64(w, c->reduce);
    dt_wire_u64(w, c->two_phase);
    dt_wire_u64(w, c->spans);
    dt_wire_u64(w, c->pulled);
    dt_wire_text(w, c->kind);
    dt_wire_text(w, c->mesh_dim);
    dt_wire_i64(w, c->bytes_moved);
    dt_wire_u64(w, (uint64_t)c->n_groups);
    for (int i = 0; i < c->n; i++) {
        const dt_party *y = &c->party[i];
        dt_wire_u64(w, y->device);
        dt_wire_u64(w, (uint64_t)y->group);
        for (int phase = 0; phase < 2; phase++) {
            dt_wire_u64(w, (uint64_t)y->list[phase]);
            if (y->list[phase] != i) continue;
            dt_wire_u64(w, (uint64_t)y->n_pulls[phase]);
            for (int k = 0; k < y->n_pulls[phase]; k++) put_pull(w, &y->pull[phase][k]);
        }
    }
    put_exchange(w, c);
    dt_like_ended(w, c);
}
/* Whom a party reads from, it must meet; and in the second phase every pull has its one source. */
static dt_status check_groups(const dt_coll *c) {
    for (int i = 0; i < c->n && !c->pulled; i++) {
        const dt_party *y = &c->party[i];
        for (int phase = 0; phase < 2; phase++)
            for (int k = 0; k < y->n_pulls[phase]; k++) {
                const dt_pull *p = &y->pull[phase][k];
                if (phase && p->n_src != 1) return bad("a transfer");
                for (int s = 0; s < p->n_src; s++)
                    if (c->party[p->src[s].party].group != y->group) return bad("a collective's groups");
            }
        for (int g = 0; c->exchange && g < c->exchange->groups; g++)
            if (c->party[c->exchange->party[i].peer[g]].group != y->group) return bad("a collective's groups");
    }
    return DT_OK;
}
static dt_status get_coll(reader *r, dt_coll **out) {
    dt_coll *c = DT_ARENA_NEW(&r->p->arena, dt_coll);
    if (!c) return no_memory();
    c->n = (int)dt_unwire_count(r->u, DT_MAX_DEVICES);
    c->index = (int)dt_unwire_i64(r->u);
    c->node = (uint32_t)dt_unwire_count(r->u, (size_t)r->p->n_nodes);
    c->reduce = (dt_reduce)dt_unwire_count(r->u, DT_MIN);
    c->two_phase = dt_unwire_count(r->u, 1) != 0;
    c->spans = dt_unwire_count(r->u, 1) != 0;
    c->pulled = dt_unwire_count(r->u, 1) != 0;
    c->kind = dt_unwire_text(r->u);
    c->mesh_dim = dt_unwire_text(r->u);
    c->bytes_moved = dt_unwire_i64(r->u);
    if (r->u->bad || c->n < 1 || c->index < -1 || c->index >= r->n_colls) return bad("a collective");
    c->n_groups = (int)dt_unwire_count(r->u, (size_t)c->n);
    c->party = NEW(r, dt_party, c->n);
    if (!c->party) return no_memory();
    for (int i = 0; i < c->n; i++) {
        dt_party *y = &c->party[i];
        y->device = (dt_device)dt_unwire_count(r->u, UINT32_MAX);
        y->group = (int32_t)dt_unwire_count(r->u, (size_t)c->n - 1);
        if (y->group >= c->n_groups) return bad("a collective's groups");
        for (int phase = 0; phase < 2; phase++) {
            y->list[phase] = (int32_t)dt_unwire_count(r->u, (size_t)i);
            const dt_party *other = &c->party[y->list[phase]];
            if (y->list[phase] != i) {
                y->n_pulls[phase] = other->n_pulls[phase];
                y->pull[phase] = other->pull[phase];
                continue;
            }
            y->n_pulls[phase] = (int)dt_unwire_count(r->u, MAX_LIST);
            if (r->u->bad || (size_t)y->n_pulls[phase] > r->u->n) return bad("a collective");
            y->pull[phase] = NEW(r, dt_pull, y->n_pulls[phase]);
            if (!y->pull[phase]) return no_memory();
            for (int k = 0; k < y->n_pulls[phase]; k++) DT_TRY(get_pull(r, c, &y->pull[phase][k]));
        }
    }
    DT_TRY(get_exchange(r, c));
    DT_TRY(check_groups(c));
    *out = c;
    return dt_coll_group(c, &r->p->arena);
}

/* ---- instructions ------------------------------------------------------------------------------------------------------------------------------------ */
/* Kernels by number: those of the op's list, then the two of its stages. */
enum { KERNELS = sizeof((dt_op *)0)->kernels / sizeof(dt_kernel), PART = KERNELS, JOIN };
static int kernel_number(const dt_instr *s) {
    const dt_op *op = s->ctx.op;
    for (size_t k = 0; k < sizeof op->kernels / sizeof *op->kernels; k++)
        if (op->kernels[k].fn == s->fn) return (int)k;
    if (op->staged && s->fn == op->staged->part) return PART;
    if (op->staged && s->fn == op->staged->join) return JOIN;
    return -1;
}

static dt_status put_kernel(dt_wire *w, const dt_instr *s) {
    put_op(w, s->ctx.op);
    dt_wire_u64(w, s->fused != NULL);
    if (s->fused) {
        put_fused(w, s->fused);
        return DT_OK;
    }
    int k = kernel_number(s);
    if (k < 0) return dt_fail(DT_E_INTERNAL, "%s: its kernel is not in its list", dt_op_name(s->ctx.op));
    dt_wire_u64(w, (uint64_t)k);
    put_attr(w, s->ctx.op, s->ctx.attr);
    for (int i = 0; i < s->n_in + s->n_out; i++) {
        const dt_geom *g = i < s->n_in ? (s->ctx.in_place ? &s->ctx.in_place[i] : NULL) : s->ctx.out_place ? &s->ctx.out_place[i - s->n_in] : NULL;
        dt_wire_u64(w, g != NULL);
        if (g) put_geom(w, g, s->view[i].ndim);
    }
    return DT_OK;
}
static dt_status get_kernel(reader *r, dt_instr *s, dt_device device) {
    dt_kctx *c = &s->ctx;
    c->op = get_op(r->u);
    c->n_in = s->n_in;
    c->n_out = s->n_out;
    c->in = s->view;
    c->out = s->view + s->n_in;
    if (dt_unwire_count(r->u, 1)) {
        const dt_backend *b = dt_backend_of(dt_device_kind(device));
        DT_TRY(get_fused(r, &s->fused));
        if (!b || !b->fused || !fused_walks(s->fused, s)) return bad("a fused group");
        c->attr = s->fused;
        s->fn = b->fused;
        return DT_OK;
    }
    size_t k = dt_unwire_count(r->u, JOIN);
    const dt_staged *staged = c->op->staged;
    s->fn = k < KERNELS ? c->op->kernels[k].fn : !staged ? NULL : k == PART ? staged->part : staged->join;
    if (r->u->bad || !s->fn) return bad("a kernel");
    DT_TRY(get_attr(r, c->op, &c->attr));
    dt_geom *g = NEW(r, dt_geom, s->n_in + s->n_out);
    if (!g) return no_memory();
    for (int i = 0; i < s->n_in + s->n_out; i++)
        if (dt_unwire_count(r->u, 1)) get_geom(r->u, &g[i], s->view[i].ndim);
    c->in_place = g;
    c->out_place = g + s->n_in;
    return DT_OK;
}

static dt_status put_instr(dt_wire *w, const dt_instr *s) {
    dt_wire_u64(w, s->kind);
    dt_wire_u64(w, s->queue);
    dt_wire_u64(w, s->n_in);
    dt_wire_u64(w, s->n_out);
    dt_wire_u64(w, s->node);
    dt_wire_u64(w, s->wait);
    dt_wire_u64(w, s->also);
    for (int k = 0; k < s->n_in + s->n_out; k++) {
        put_view(w, &s->view[k]);
        put_operand(w, s->operand[k]);
    }
    put_operand(w, s->scratch);
    if (s->kind == DT_I_KERNEL) return put_kernel(w, s);
    dt_wire_u64(w, (uint64_t)s->party);
    dt_wire_i64(w, s->coll->index);
    if (s->coll->index < 0) put_coll(w, s->coll);
    return DT_OK;
}
static dt_status get_instr(reader *r, const dt_program *prog, dt_instr *s) {
    dt_unwire *u = r->u;
    s->kind = (uint8_t)dt_unwire_count(u, DT_I_COLL);
    s->queue = (uint8_t)dt_unwire_count(u, 1);
    s->n_in = (uint16_t)dt_unwire_count(u, UINT16_MAX);
    s->n_out = (uint16_t)dt_unwire_count(u, UINT16_MAX);
    s->node = (uint32_t)dt_unwire_count(u, (size_t)r->p->n_nodes);
    s->wait = (uint32_t)dt_unwire_count(u, MAX_LIST);
    s->also = (uint32_t)dt_unwire_count(u, MAX_LIST);
    int n = s->n_in + s->n_out;
    if (u->bad || (size_t)n > u->n) return bad("an instruction");
    s->view = NEW(r, dt_view, n);
    s->operand = NEW(r, dt_operand, n);
    if (!s->view || !s->operand) return no_memory();
    for (int k = 0; k < n; k++) {
        get_view(u, &s->view[k]);
        s->operand[k] = get_operand(u, prog->n_slots);
    }
    s->scratch = get_operand(u, prog->n_slots);
    if (u->bad) return bad("an instruction's operands");
    if (s->kind == DT_I_KERNEL) return get_kernel(r, s, prog->device);
    s->party = (int)dt_unwire_count(u, DT_MAX_DEVICES);
    int64_t index = dt_unwire_i64(u);
    if (u->bad || index < -1 || index >= r->n_colls) return bad("an instruction's collective");
    if (index < 0) {
        dt_coll *own;
        DT_TRY(get_coll(r, &own));
        s->coll = own;
    } else
        s->coll = r->p->coll[index];
    if (!s->coll || s->party >= s->coll->n || s->coll->party[s->party].device != prog->device) return bad("an instruction's place in a collective");
    return DT_OK;
}

/* ---- programs -------------------------------------------------------------------------------------------------------------------------------------------- */
static dt_status put_program(dt_wire *w, const dt_program *p) {
    dt_wire_u64(w, p->device);
    dt_wire_u64(w, (uint64_t)p->n_ext);
    dt_wire_u64(w, (uint64_t)p->n_out);
    dt_wire_u64(w, (uint64_t)p->n_temp);
    for (int k = 0; k < p->n_ext; k++) dt_wire_u64(w, p->ext[k].written);
    for (int k = 0; k < p->n_out; k++) dt_wire_u64(w, p->out_bytes[k]);
    for (int k = 0; k < p->n_temp; k++) dt_wire_u64(w, p->temp_offset[k]);
    dt_wire_u64(w, p->arena_bytes);
    for (int q = 0; q < 2; q++) {
        dt_wire_u64(w, (uint64_t)p->n_instr[q]);
        for (int i = 0; i < p->n_instr[q]; i++) DT_TRY(put_instr(w, &p->instr[q][i]));
    }
    return DT_OK;
}
/* A bucket is a run of collectives that others meet, or of kernels, within the queue. */
static dt_status check_buckets(const dt_program *p, int q) {
    for (int i = 0; i < p->n_instr[q]; i++) {
        uint32_t also = p->instr[q][i].also;
        if (also >= (uint32_t)(p->n_instr[q] - i)) return bad("a bucket of collectives");
        for (uint32_t k = 0; also && k <= also; k++) {
            const dt_instr *s = &p->instr[q][(uint32_t)i + k];
            if (s->kind == DT_I_KERNEL && p->instr[q][i].kind == DT_I_KERNEL && q == 0) continue;
            if (s->kind != DT_I_COLL || p->instr[q][i].kind != DT_I_COLL || s->coll->index < 0 || !dt_coll_meet_alike(s->coll, p->instr[q][i].coll))
                return bad("a bucket of collectives");
        }
    }
    return DT_OK;
}
static dt_status get_program(reader *r, dt_program *p) {
    dt_unwire *u = r->u;
    p->device = (dt_device)dt_unwire_count(u, UINT32_MAX);
    p->n_ext = (int)dt_unwire_count(u, MAX_LIST);
    p->n_out = (int)dt_unwire_count(u, MAX_LIST);
    p->n_temp = (int)dt_unwire_count(u, MAX_LIST);
    p->n_slots = p->n_ext + p->n_out + p->n_temp + 1;
    if (u->bad || (size_t)(p->n_ext + p->n_out + p->n_temp) > u->n) return bad("a program");
    p->ext = NEW(r, dt_bind_in, p->n_ext);
    p->out_bytes = NEW(r, size_t, p->n_out);
    p->temp_offset = NEW(r, size_t, p->n_temp);
    if (!p->ext || !p->out_bytes || !p->temp_offset) return no_memory();
    for (int k = 0; k < p->n_ext; k++) p->ext[k].written = dt_unwire_count(u, 1) != 0;
    for (int k = 0; k < p->n_out; k++) p->out_bytes[k] = (size_t)dt_unwire_u64(u);
    for (int k = 0; k < p->n_temp; k++) p->temp_offset[k] = (size_t)dt_unwire_u64(u);
    p->arena_bytes = (size_t)dt_unwire_u64(u);
    for (int k = 0; k < p->n_temp; k++)
        if (p->temp_offset[k] >= p->arena_bytes) return bad("a program's memory");
    for (int q = 0; q < 2; q++) {
        p->n_instr[q] = (int)dt_unwire_count(u, MAX_LIST);
        if (u->bad || (size_t)p->n_instr[q] > u->n) return bad("a program");
        p->instr[q] = NEW(r, dt_instr, p->n_instr[q]);
        if (!p->instr[q]) return no_memory();
        for (int i = 0; i < p->n_instr[q]; i++) DT_TRY(get_instr(r, p, &p->instr[q][i]));
        DT_TRY(check_buckets(p, q));
    }
    return DT_OK;
}

static bool coll_here(const dt_coll *c, dt_device_fn here, void *ctx) {
    for (int i = 0; i < c->n; i++)
        if (here(ctx, c->party[i].device)) return true;
    return false;
}

dt_status dt_plan_write(const dt_plan *p, dt_device_fn here, void *ctx, dt_wire *w) {
    uint64_t n = 0;
    for (int i = 0; i < p->n_programs; i++) n += here(ctx, p->program[i].device);
    dt_wire_u64(w, (uint64_t)p->n_nodes);
    dt_wire_u64(w, (uint64_t)p->n_numbers);
    dt_wire_u64(w, (uint64_t)p->n_colls);
    for (int i = 0; i < p->n_colls; i++) {
        bool want = p->coll[i] && p->coll[i]->index >= 0 && coll_here(p->coll[i], here, ctx); /* others stand with their instruction */
        dt_wire_u64(w, want);
        if (want) put_coll(w, p->coll[i]);
    }
    dt_wire_u64(w, n);
    for (int i = 0; i < p->n_programs; i++)
        if (here(ctx, p->program[i].device)) DT_TRY(put_program(w, &p->program[i]));
    return w->failed ? dt_fail(DT_E_NOMEM, "a plan for another process: out of host memory") : DT_OK;
}

static dt_status read_plan(reader *r) {
    dt_unwire *u = r->u;
    dt_plan *p = r->p;
    p->n_nodes = (int)dt_unwire_count(u, MAX_LIST);
    p->n_numbers = (int)dt_unwire_count(u, MAX_LIST);
    p->n_colls = r->n_colls = (int)dt_unwire_count(u, MAX_LIST);
    if (u->bad || (size_t)p->n_colls > u->n) return bad("its head");
    p->coll = NEW(r, dt_coll *, p->n_colls);
    if (!p->coll) return no_memory();
    for (int i = 0; i < p->n_colls; i++) {
        if (!dt_unwire_count(u, 1)) continue;
        DT_TRY(get_coll(r, &p->coll[i]));
        if (p->coll[i]->index != i) return bad("a collective's number");
    }
    p->n_programs = (int)dt_unwire_count(u, DT_MAX_DEVICES);
    if (u->bad) return bad("its programs");
    p->program = NEW(r, dt_program, p->n_programs);
    if (!p->program) return no_memory();
    for (int i = 0; i < p->n_programs; i++) DT_TRY(get_program(r, &p->program[i]));
    return u->bad ? bad("it ends too early") : DT_OK;
}

dt_status dt_plan_read(dt_unwire *u, dt_plan **out) {
    dt_plan *p = dt_calloc(1, sizeof *p);
    if (!p) return no_memory();
    dt_arena_init(&p->arena);
    atomic_store(&p->refs, 1);
    reader r = {u, p, 0};
    dt_status s = read_plan(&r);
    if (s) {
        dt_plan_unref(p);
        return s;
    }
    *out = p;
    return DT_OK;
}

static dt_status last_run(dt_plan *p) {
    if (p->last_site) return DT_OK;
    p->last_numbers = DT_ARENA_ARRAY(&p->arena, uint64_t, p->n_numbers + 1);
    uint32_t *site = DT_ARENA_ARRAY(&p->arena, uint32_t, p->n_nodes + 1);
    if (!p->last_numbers || !site) return no_memory();
    memset(p->last_numbers, 0, sizeof *p->last_numbers * (size_t)p->n_numbers);
    memset(site, 0, sizeof *site * (size_t)p->n_nodes);
    p->last_site = site;
    return DT_OK;
}

/* Pairs (distance to the one before, new value), closed by a zero. */
dt_status dt_plan_changes(dt_plan *p, const dt_run *r, dt_wire *out) {
    DT_TRY(last_run(p));
    for (int i = 0, last = -1; i < p->n_numbers; i++) {
        if (r->numbers[i] == p->last_numbers[i]) continue;
        dt_wire_u64(out, (uint64_t)(i - last));
        dt_wire_put(out, &r->numbers[i], 8);
        p->last_numbers[i] = r->numbers[i];
        last = i;
    }
    dt_wire_u64(out, 0);
    for (int i = 0, last = -1; i < p->n_nodes; i++) {
        if (r->site[i] == p->last_site[i]) continue;
        dt_wire_u64(out, (uint64_t)(i - last));
        dt_wire_u64(out, r->site[i]);
        p->last_site[i] = r->site[i];
        last = i;
    }
    dt_wire_u64(out, 0);
    return out->failed ? no_memory() : DT_OK;
}

dt_status dt_plan_changes_read(dt_plan *p, dt_run *r, dt_unwire *u) {
    DT_TRY(last_run(p));
    int64_t at = -1;
    for (size_t d; (d = dt_unwire_count(u, (size_t)p->n_numbers)) != 0;) {
        if ((at += (int64_t)d) >= p->n_numbers) return dt_fail(DT_E_INTERNAL, "a run with more numbers than its plan");
        dt_unwire_get(u, &p->last_numbers[at], 8);
    }
    at = -1;
    for (size_t d; (d = dt_unwire_count(u, (size_t)p->n_nodes)) != 0;) {
        if ((at += (int64_t)d) >= p->n_nodes) return dt_fail(DT_E_INTERNAL, "a run with more sites than its plan");
        p->last_site[at] = (uint32_t)dt_unwire_count(u, UINT32_MAX);
    }
    memcpy(r->numbers, p->last_numbers, sizeof *r->numbers * (size_t)p->n_numbers);
    memcpy(r->site, p->last_site, sizeof *r->site * (size_t)p->n_nodes);
    return DT_OK;
}
