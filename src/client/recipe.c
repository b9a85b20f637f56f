/* Recipes: values that are cheaper to make again than to keep, such as a weight gathered from its shards.
 *
 *   shard ──redistribute──> whole ──t()──> whole.t()        whole->recipe = (redistribute, shard)
 *                                                           whole.t()->recipe = (t, recipe of whole)
 *
 * Between dt_mode_recipe_set(true) and (false) every call of one tensor to one tensor gives its result a recipe; a view or a cast of such a
 * value gets one by itself. What autograd saves of a value with a recipe is the recipe: the value goes when the forward pass is done with it
 * and is made once more when the backward pass first asks for it. It is then kept until the last saved use is gone, or the backward pass
 * ends. Values are never changed, so what is made again is what was saved, bit for bit.
 *
 * Rejected: hooks in Python that pack and unpack what is saved (a Python call for each saved tensor); letting the controller decide (it sees
 * one subgraph at a time, and the value crosses many). Client's thread only. */
#include "client/internal.h"

void dt_recipe_unref(dt_recipe *r) {
    while (r && --r->refs == 0) {
        dt_recipe *from = r->from;
        dt_recipe_forget(r);
        dt_val_unref(r->src);
        dt_call_drop(r->call);
        dt_free(r);
        r = from;
    }
}

static bool makes_again(const dt_call *c) { return c->n_in == 1 && c->n_out == 1 && c->in[0] && !c->in[0]->wrapped && !(c->flags & DT_CALL_RESPEC); }

dt_status dt_recipe_attach(dt_call *c, dt_val *in, dt_val *out) {
    if (!makes_again(c) || out->recipe) return DT_OK;
    dt_recipe *r = dt_calloc(1, sizeof *r);
    if (!r) return dt_fail(DT_E_NOMEM, "recipe: out of host memory");
    r->refs = 1;
    r->call = c;
    c->refs++;
    if (in->recipe)
        r->from = dt_recipe_ref(in->recipe);
    else
        r->src = dt_val_ref(in);
    out->recipe = r;
    return DT_OK;
}

void dt_recipe_use(dt_recipe *r) {
    dt_recipe_ref(r);
    r->users++;
}

void dt_recipe_done(dt_recipe *r) {
    if (--r->users == 0) dt_recipe_forget(r);
    dt_recipe_unref(r);
}

/* ---- making it again ---- */
static void remember(dt_recipe *r, dt_val *v) {
    r->again = v;
    r->next = dt_c.again;
    r->prev = NULL;
    if (r->next) r->next->prev = r;
    dt_c.again = r;
}

void dt_recipe_forget(dt_recipe *r) {
    if (!r->again) return;
    dt_val *v = r->again;
    r->again = NULL;
    if (r->next) r->next->prev = r->prev;
    if (r->prev)
        r->prev->next = r->next;
    else
        dt_c.again = r->next;
    r->next = r->prev = NULL;
    dt_val_unref(v);
}

void dt_recipes_forget(void) {
    while (dt_c.again) dt_recipe_forget(dt_c.again);
}

static dt_status issue_again(dt_call *c, const dt_val *in, dt_val **out) {
    DT_TRY(dt_client_ready());
    dt_val *v = dt_val_new();
    if (!v) return DT_E_NOMEM;
    uint64_t *w = dt_ring_reserve(dt_c.ring, 5);
    w[0] = DT_REC_HEADER(DT_REC_CALL, 1, 1);
    w[1] = (uint64_t)(uintptr_t)c;
    w[2] = dt_m.site;
    w[3] = in->id;
    w[4] = v->id;
    v->meta = c->out[0];
    c->issued++;
    dt_ring_publish(dt_c.ring);
    *out = v;
    return DT_OK;
}

dt_status dt_recipe_make(dt_recipe *r, dt_val **out) {
    if (!r->again) {
        dt_val *in = r->src, *v;
        if (r->from) DT_TRY(dt_recipe_make(r->from, &in));
        DT_TRY(issue_again(r->call, in, &v));
        v->recipe = dt_recipe_ref(r); /* what a second backward pass saves of it is the recipe again */
        remember(r, v);
        if (r->from && !r->from->users) dt_recipe_forget(r->from);
    }
    *out = r->again;
    return DT_OK;
}
