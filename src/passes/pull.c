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
                int src = r->dev[i].piece[p].src + r->step[k];
                if (from->dev[src] == to->mesh->dev[i]) continue;
                if (dt_devices_apart(from->dev[src], to->mesh->dev[i])) return false;
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
    int *met;    /* (from's mesh,) its sources by operand number */
    dt_kept_view keep;
} emit;

/* Numbers the sources of device i in the order they are met; *n of them. */
static void number_sources(emit *e, int i, int *n) {
    const dt_reshard_dev *d = &e->r->dev[i];
    *n = 0;
    for (int p = 0; p < d->n; p++)
        for (int k = 0; k < d->piece[p].n_src; k++)
            if (e->number[d->piece[p].src + e->r->step[k]] < 0) {
                e->number[d->piece[p].src + e->r->step[k]] = *n;
                e->met[(*n)++] = d->piece[p].src + e->r->step[k];
            }
}

static dt_status add_pull(emit *e, int i, const dt_piece *p, dt_pull *q) {
    dt_box mine, have;
    const dt_meta *to = e->to->meta;
    dt_layout_box(to, i, &mine);
    dt_view view = dt_build_sub_view(&e->to->loc[i], &mine, &p->box, &q->offset);
    dt_pull_src *from = DT_ARENA_ARRAY(e->b->arena, dt_pull_src, p->n_src + 1);
    q->dst = dt_build_keep_view(&e->keep, e->b, &view);
    q->n_src = p->n_src;
    q->src = from;
    if (!q->dst || !from) return no_memory();
    for (int k = 0; k < p->n_src; k++) {
        int src = p->src + e->r->step[k];
        dt_layout_box(e->from->meta, src, &have);
        from[k].party = e->number[src];
        view = dt_build_sub_view(&e->from->loc[src], &have, &p->box, &from[k].offset);
        if (!(from[k].view = dt_build_keep_view(&e->keep, e->b, &view))) return no_memory();
        if (e->from->meta->mesh->dev[src] != to->mesh->dev[i]) e->c->bytes_moved += dt_box_numel(&p->box, to->ndim) * (int64_t)dt_dtype_size(view.dtype);
    }
    return DT_OK;
}

static dt_status device_step(emit *e, int i) {
    const dt_reshard_dev *d = &e->r->dev[i];
    dt_build *b = e->b;
    dt_party *me = &e->c->party[i];
    int n, prog = e->to->loc[i].prog;
    *me = (dt_party){.device = e->to->meta->mesh->dev[i], .list = {i, i}};
    if (!d->n) return DT_OK; /* an empty part */
    number_sources(e, i, &n);
    if (!(me->pull[0] = DT_ARENA_ARRAY(b->arena, dt_pull, d->n))) return no_memory();
    for (int p = 0; p < d->n; p++) DT_TRY(add_pull(e, i, &d->piece[p], &me->pull[0][me->n_pulls[0]++]));
    dt_step *s;
    DT_TRY(dt_build_step(b, prog, n, 1, &s));
    s->in.kind = DT_I_COLL;
    s->in.coll = e->c;
    s->in.party = i;
    for (int k = 0; k < n; k++) {
        int src = e->met[k];
        e->number[src] = -1;
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
    int n_from = v->meta->mesh->n;
    emit e = {b, v, out, r, DT_ARENA_NEW(b->arena, dt_coll), DT_ARENA_ARRAY(&b->tmp, int, n_from), DT_ARENA_ARRAY(&b->tmp, int, n_from), {{NULL}}};
    char *along = DT_ARENA_ARRAY(b->arena, char, strlen(r->mesh_dim) + 1); /* r's is in memory that the plan outlives */
    if (!e.c || !e.number || !e.met || !along) return no_memory();
    for (int k = 0; k < n_from; k++) e.number[k] = -1;
    memcpy(along, r->mesh_dim, strlen(r->mesh_dim));
    *e.c = (dt_coll){.n = out->meta->mesh->n, .n_groups = 1, .pulled = true, .reduce = r->reduce, .kind = r->kind, .mesh_dim = along};
    if (!(e.c->party = DT_ARENA_ARRAY(b->arena, dt_party, e.c->n))) return no_memory();
    DT_TRY(dt_build_pval_alloc(b, out));
    for (int i = 0; i < e.c->n; i++) DT_TRY(device_step(&e, i));
    DT_TRY(dt_build_coll(b, e.c));
    e.c->index = -1; /* listed for reports; nobody meets */
    return DT_OK;
}
