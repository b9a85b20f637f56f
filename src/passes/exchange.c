/* The exchange of rows between experts' devices becomes one collective: see ops/expert.h for what lies where, comm/exchange.c for who reads what.
 *
 * Its rows are cut by dimension 1 along the experts' mesh dimension and its counts are whole there; what comes in otherwise is brought to that
 * first. */
#include <string.h>

#include "ops/expert.h"
#include "passes/build.h"

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "exchange: out of host memory"); }

/* Rows sharded by their groups along ep, as they are elsewhere; with the shape of `like`. */
static dt_status rows_meta(const dt_meta *like, int ep, const dt_meta **out) {
    dt_placement p[DT_MAX_MESH_DIM];
    memcpy(p, like->place, sizeof p);
    p[ep] = DT_S(1);
    return dt_meta_with_spec(like, like->mesh, p, out);
}

static dt_status counts_meta(const dt_meta *counts, const dt_meta *rows, int ep, const dt_meta **out) {
    dt_placement p[DT_MAX_MESH_DIM] = {{0}};
    for (int k = 0; k < rows->mesh->ndim; k++)
        if (k != ep && rows->place[k].kind == DT_SHARD && rows->place[k].dim == 0) p[k] = DT_S(0);
    return dt_meta_with_spec(counts, rows->mesh, p, out);
}

static dt_status contiguous(dt_build *b, dt_loc *l) {
    if (dt_view_contiguous(&l->view)) return DT_OK;
    dt_loc from = *l;
    dt_view_set_contiguous(&l->view);
    return dt_build_unary(b, &dt_op_clone, &from, l);
}

static dt_status describe(dt_build *b, const dt_expert_attr *a, const dt_pval *rows, const dt_pval *counts, const dt_pval *out, dt_coll **made) {
    const dt_mesh *mesh = rows->meta->mesh;
    int groups = (int)mesh->dim[a->ep];
    dt_coll *c = DT_ARENA_NEW(b->arena, dt_coll);
    dt_exchange *x = DT_ARENA_NEW(b->arena, dt_exchange);
    int *kin = DT_ARENA_ARRAY(&b->tmp, int, mesh->n);
    if (!kin || !c || !x || !(c->party = DT_ARENA_ARRAY(b->arena, dt_party, mesh->n)) || !(x->party = DT_ARENA_ARRAY(b->arena, dt_exchange_party, mesh->n)))
        return no_memory();
    c->n = mesh->n;
    c->kind = "all_to_all";
    c->mesh_dim = mesh->name[a->ep];
    c->exchange = x;
    x->back = a->back;
    x->groups = groups;
    x->rows_in = rows->meta->shape[2];
    x->rows_out = out->meta->shape[2];
    x->n_experts = counts->meta->shape[2];
    for (int i = 0; i < mesh->n; i++) {
        dt_exchange_party *p = &x->party[i];
        const dt_view *v = &rows->loc[i].view;
        int64_t coords[DT_MAX_MESH_DIM];
        dt_mesh_coords(mesh, i, coords);
        p->at = (int)coords[a->ep];
        if (!(p->peer = DT_ARENA_ARRAY(b->arena, int, groups))) return no_memory();
        for (int g = 0; g < groups; g++) {
            coords[a->ep] = g;
            p->peer[g] = dt_mesh_index(mesh, coords);
        }
        p->shards = v->shape[0];
        p->row_bytes = v->shape[3] * (int64_t)dt_dtype_size(v->dtype);
        c->party[i] = (dt_party){.device = mesh->dev[i], .list = {i, i}};
        kin[i] = p->peer[0];
    }
    *made = c;
    DT_TRY(dt_build_groups(b, c, kin));
    return dt_build_coll(b, c);
}

dt_status dt_build_exchange(dt_build *b, const dt_call *call, dt_pval **in, dt_pval **out) {
    const dt_expert_attr *a = call->attr;
    const dt_meta *from, *to, *known;
    dt_pval *rows, *counts, *made;
    dt_coll *c = NULL;
    DT_TRY(rows_meta(in[0]->meta, (int)a->ep, &from));
    DT_TRY(rows_meta(call->out[0], (int)a->ep, &to));
    DT_TRY(counts_meta(in[1]->meta, from, (int)a->ep, &known));
    DT_TRY(dt_build_convert(b, in[0], from, &rows));
    DT_TRY(dt_build_convert(b, in[1], known, &counts));
    DT_TRY(dt_build_pval(b, to, &made));
    DT_TRY(dt_build_pval_alloc(b, made));
    DT_TRY(describe(b, a, rows, counts, made, &c));
    for (int i = 0; i < c->n; i++) {
        dt_loc operand[3] = {rows->loc[i], counts->loc[i], made->loc[i]};
        dt_step *s;
        DT_TRY(contiguous(b, &operand[0]));
        DT_TRY(contiguous(b, &operand[1]));
        DT_TRY(dt_build_step(b, operand[2].prog, 2, 1, &s));
        s->in.kind = DT_I_COLL;
        s->in.coll = c;
        s->in.party = i;
        for (int k = 0; k < 3; k++) {
            s->in.view[k] = operand[k].view;
            s->in.operand[k] = (dt_operand){operand[k].storage, operand[k].offset};
        }
    }
    return dt_build_convert(b, made, call->out[0], out);
}
