/* One-sided transfers between meshes: who needs a part of a tensor reads it where it lies; who holds it takes no part and waits for nobody.
 *
 * That is possible where everything that is read from other devices lies in external buffers, made by earlier runs: then the readers have all they need
 * to know, namely when that memory was written (dt_buf's counters), and the holder's later writes wait for the reader instead. A stage of a pipeline thus
 * sends without stopping, and no order of transfers can deadlock: every wait is for a run that was pushed earlier.
 *
 * Anything else (the same mesh, values of this very subgraph) is a collective where all parties meet, collect.c. */
#include <string.h>

#include "passes/build.h"
#include "plan/nodes.h"

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "redistribute: out of host memory"); }

static dt_storage *storage_of(const dt_build *b, const dt_loc *l) { return &b->prog[l->prog].st[l->storage]; }

bool dt_build_can_pull(const dt_build *b, const dt_pval *v, const dt_meta *to, const dt_reshard *r) {
    const dt_mesh *from = v->meta->mesh;
    if (from == to->mesh) return false;
    for (int i = 0; i < to->mesh->n; i++)
        for (int p = 0; p < r->dev[i].n; p++)
            for (int k = 0; k < r->dev[i].piece[p].n_src; k++) {
                int src = r->dev[i].piece[p].src[k];
                if (from->dev[src] == to->mesh->dev[i]) continue;
                if (dt_device_node(from->dev[src]) != dt_device_node(to->mesh->dev[i])) return false;
                if (v->loc[src].storage < 0 || storage_of(b, &v->loc[src])->kind != DT_ST_EXT) return false;
            }
    return true;
}

/* Another device's external memory as a storage of program `prog`. It may not be overwritten in this run. */
static dt_status foreign(dt_build *b, int prog, const dt_loc *l, int *out) {
    dt_storage *there = storage_of(b, l);
    there->donate = false;
    const dt_prog *p = &b->prog[prog];
    for (int i = 0; i < p->n_st; i++)
        if (p->st[i].kind == DT_ST_EXT && p->st[i].ext == there->ext && p->st[i].pos == there->pos) {
            *out = i;
            return DT_OK;
        }
    uint32_t ext = there->ext, pos = there->pos;
    DT_TRY(dt_build_storage(b, prog, there->bytes, out));
    dt_storage *s = &b->prog[prog].st[*out];
    s->kind = DT_ST_EXT;
    s->ext = ext;
    s->pos = pos;
    return DT_OK;
}

typedef struct emit {
    dt_build *b;
    const dt_pval *from;
    dt_pval *to;
    const dt_reshard *r;
    dt_coll *c;
    int *number; /* (from's mesh,) operand number of a source on the device being done, or -1 */
} emit;

/* Numbers the sources of device i in the order they are met; *n of them. */
static void number_sources(emit *e, int i, int *n) {
    const dt_reshard_dev *d = &e->r->dev[i];
    *n = 0;
    for (int k = 0; k < e->from->meta->mesh->n; k++) e->number[k] = -1;
    for (int p = 0; p < d->n; p++)
        for (int k = 0; k < d->piece[p].n_src; k++)
            if (e->number[d->piece[p].src[k]] < 0) e->number[d->piece[p].src[k]] = (*n)++;
}

static dt_status add_pull(emit *e, int i, const dt_piece *p, dt_pull *q) {
    dt_box mine, have;
    const dt_meta *to = e->to->meta;
    dt_layout_box(to, i, &mine);
    q->dst = dt_build_sub_view(&e->to->loc[i], &mine, &p->box, &q->offset);
    q->n_src = p->n_src;
    if (!(q->src = DT_ARENA_ARRAY(e->b->arena, dt_pull_src, p->n_src + 1))) return no_memory();
    for (int k = 0; k < p->n_src; k++) {
        int src = p->src[k];
        dt_layout_box(e->from->meta, src, &have);
        q->src[k].party = e->number[src];
        q->src[k].view = dt_build_sub_view(&e->from->loc[src], &have, &p->box, &q->src[k].offset);
        if (e->from->meta->mesh->dev[src] != to->mesh->dev[i]) e->c->bytes_moved += dt_box_numel(&p->box, to->ndim) * (int64_t)dt_dtype_size(q->dst.dtype);
    }
    return DT_OK;
}

static dt_status device_step(emit *e, int i) {
    const dt_reshard_dev *d = &e->r->dev[i];
    dt_build *b = e->b;
    dt_party *me = &e->c->party[i];
    int n, prog = e->to->loc[i].prog;
    *me = (dt_party){.device = e->to->meta->mesh->dev[i], .in = {-1, 0}, .out = {-1, 0}};
    if (!d->n) return DT_OK; /* an empty part */
    number_sources(e, i, &n);
    if (!(me->pull[0] = DT_ARENA_ARRAY(b->arena, dt_pull, d->n))) return no_memory();
    for (int p = 0; p < d->n; p++) DT_TRY(add_pull(e, i, &d->piece[p], &me->pull[0][me->n_pulls[0]++]));
    dt_step *s;
    DT_TRY(dt_build_step(b, prog, n, 1, &s));
    s->in.kind = DT_I_COLL;
    s->in.coll = e->c;
    s->in.party = i;
    for (int src = 0; src < e->from->meta->mesh->n; src++) {
        int k = e->number[src];
        if (k < 0) continue;
        const dt_loc *l = &e->from->loc[src];
        int st = l->storage;
        if (l->prog != prog) DT_TRY(foreign(b, prog, l, &st));
        s->in.view[k] = l->view;
        s->in.operand[k] = (dt_operand){st, l->offset};
    }
    s->in.view[n] = e->to->loc[i].view;
    s->in.operand[n] = (dt_operand){e->to->loc[i].storage, 0};
    return DT_OK;
}

dt_status dt_build_pull(dt_build *b, const dt_pval *v, const dt_reshard *r, dt_pval *out) {
    emit e = {b, v, out, r, DT_ARENA_NEW(b->arena, dt_coll), DT_ARENA_ARRAY(&b->tmp, int, v->meta->mesh->n)};
    char *along = DT_ARENA_ARRAY(b->arena, char, strlen(r->mesh_dim) + 1); /* r's is in memory that the plan outlives */
    if (!e.c || !e.number || !along) return no_memory();
    memcpy(along, r->mesh_dim, strlen(r->mesh_dim));
    *e.c = (dt_coll){.n = out->meta->mesh->n, .pulled = true, .reduce = r->reduce, .kind = r->kind, .mesh_dim = along};
    if (!(e.c->party = DT_ARENA_ARRAY(b->arena, dt_party, e.c->n))) return no_memory();
    DT_TRY(dt_build_pval_alloc(b, out));
    for (int i = 0; i < e.c->n; i++) DT_TRY(device_step(&e, i));
    DT_TRY(dt_build_coll(b, e.c));
    e.c->index = -1; /* listed for reports; nobody meets */
    return DT_OK;
}
