/* A call that was not seen before: attributes, inference, placement, interning. Bounded by DT_CALLS_MAX with a clock hand.
 *
 * A call lives in its own arena, so that evicting one frees all of it. It is freed at once if nobody else holds it, or waits among `dying`
 * until the controller has given back all its references (op.h tells how they are counted). */
#include <stdlib.h>

#include "client/internal.h"

size_t dt_calls_count(void) { return dt_c.calls.count; }

static void call_free(dt_call *c) {
    if (c->lowered_free) c->lowered_free(c->lowered);
    dt_arena_fini(&c->arena);
    dt_free(c);
}

static bool call_idle(const dt_call *c) { return c->refs == 0 && atomic_load_explicit(&c->done, memory_order_acquire) == c->issued; }

/* The last reference of the client: free it, or keep it until the others are done. */
void dt_call_drop(dt_call *c) {
    if (--c->refs) return;
    if (call_idle(c)) {
        call_free(c);
        return;
    }
    if (dt_c.n_dying == dt_c.dying_cap) {
        uint32_t cap = dt_c.dying_cap ? dt_c.dying_cap * 2 : 64;
        dt_call **d = dt_realloc(dt_c.dying, cap * sizeof *d);
        if (!d) return; /* leaked, as the host has no memory left */
        dt_c.dying = d;
        dt_c.dying_cap = cap;
    }
    dt_c.dying[dt_c.n_dying++] = c;
}

static void bury(void) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < dt_c.n_dying; i++) {
        if (call_idle(dt_c.dying[i]))
            call_free(dt_c.dying[i]);
        else
            dt_c.dying[kept++] = dt_c.dying[i];
    }
    dt_c.n_dying = kept;
}

/* Second chance: the first call that was not used since the hand passed makes room. */
static void insert(dt_call *c) {
    if (dt_c.n_clock < DT_CALLS_MAX) {
        dt_c.clock[dt_c.n_clock++] = c;
        return;
    }
    while (dt_c.clock[dt_c.hand]->tick) {
        dt_c.clock[dt_c.hand]->tick = false;
        dt_c.hand = (dt_c.hand + 1) % DT_CALLS_MAX;
    }
    dt_call *old = dt_c.clock[dt_c.hand];
    dt_c.clock[dt_c.hand] = c;
    dt_c.hand = (dt_c.hand + 1) % DT_CALLS_MAX;
    dt_htab_remove(&dt_c.calls, &old->link);
    dt_call_drop(old);
    if (dt_c.n_dying) bury();
}

static dt_status no_memory(const dt_prep *p) { return dt_fail(DT_E_NOMEM, "%s(): out of host memory", p->info->base); }

/* Absent inputs are legal only where the signature says so. */
static dt_status check_required(const dt_prep *p, const dt_args *args) {
    for (int i = 0; i < p->n_params; i++) {
        const dt_param *q = &p->info->param[i];
        if (p->kind[i] > DT_PK_SCALAR || args->a[i].kind != DT_ARG_NONE || q->optional) continue;
        if (p->def_meta[i] && !args->a[i].given) continue;
        return dt_arg_type_error(p, i, &args->a[i]);
    }
    return DT_OK;
}

/* A tensor given for a run-time number must be one number. */
static dt_status check_scalars(const dt_prep *p, const dt_args *args) {
    for (int i = 0; i < p->n_params; i++) {
        if (p->kind[i] != DT_PK_SCALAR || args->a[i].kind != DT_ARG_TENSOR) continue;
        if (dt_tensor_meta_fast(args->a[i].t)->numel != 1 || dt_tensor_meta_fast(args->a[i].t)->ndim)
            return dt_fail(DT_E_TYPE, "%s(): argument '%s' must be a number or a tensor of zero dimensions", p->info->base, p->info->param[i].name);
    }
    return DT_OK;
}

/* What the key says, with what its words point to. */
static uint64_t content_of(const dt_call *c, const dt_prep *p, const dt_args *args) {
    uint64_t h = dt_hash_bytes(p->info->name, strlen(p->info->name), c->key[2]); /* no number: new ops move no cut */
    h = dt_hash_mix(h, c->spec ? c->spec->link.hash : dt_default_device);
    for (int i = 0; i < c->n_in; i++) h = dt_hash_mix(h, c->in[i] ? c->in[i]->link.hash : 0);
    for (int i = 0; i < p->n_params; i++) {
        const dt_arg *a = &args->a[i];
        if (p->kind[i] < DT_PK_INT || p->kind[i] == DT_PK_GENERATOR || a->kind == DT_ARG_NONE) continue;
        if (a->kind == DT_ARG_STR)
            h = dt_hash_bytes(a->s, strlen(a->s), h);
        else if (a->kind == DT_ARG_INTS)
            h = dt_hash_bytes(a->ints, sizeof *a->ints * (size_t)a->n, h);
        else
            h = dt_hash_mix(h, (uint64_t)a->i);
    }
    return h;
}

static dt_status fill(dt_call *c, const dt_prep *p, const dt_args *args) {
    const dt_op *op = p->op;
    bool random = op->flags & DT_F_RANDOM;
    uint32_t n_in = dt_c.n_in + (random ? 2 : 0);
    if (n_in > UINT16_MAX) return dt_fail(DT_E_VALUE, "%s(): %u inputs are too many", p->info->base, n_in);
    DT_TRY(dt_client_room(n_in, dt_c.n_key));
    c->op = op;
    c->n_in = (uint16_t)n_in;
    c->n_key = dt_c.n_key;
    c->key = dt_arena_copy(&c->arena, dt_c.key, dt_c.n_key * sizeof *c->key);
    c->in = DT_ARENA_ARRAY(&c->arena, const dt_meta *, n_in);
    c->used = DT_ARENA_ARRAY(&c->arena, const dt_meta *, n_in);
    void *attr = op->attrs.size ? dt_arena_alloc(&c->arena, op->attrs.size) : NULL;
    if (!c->key || !c->in || !c->used || (op->attrs.size && !attr)) return no_memory(p);
    memcpy(c->in, dt_c.in_meta, dt_c.n_in * sizeof *c->in);
    if (random) c->in[n_in - 2] = c->in[n_in - 1] = dt_meta_wrapped(DT_int64);
    if (attr) DT_TRY(dt_args_decode(p, args, attr));
    c->attr = attr;
    c->spec = args->spec;
    c->op_id = p->info->id;
    c->content = content_of(c, p, args);
    return DT_OK;
}

static dt_status infer(dt_call *c, const dt_prep *p) {
    dt_node n = {.op = c->op, .attr = (void *)c->attr, .n_in = c->n_in, .in = c->in, .spec = c->spec, .arena = &c->arena};
    n.n_out = p->info->n_returns > 0 ? p->info->n_returns : 0;
    n.out = DT_ARENA_ARRAY(&c->arena, dt_type, n.n_out);
    n.cast = DT_ARENA_ARRAY(&c->arena, uint8_t, c->n_in);
    if (!n.out || !n.cast) return no_memory(p);
    memset(n.cast, DT_DTYPE_NONE, c->n_in);
    DT_TRY(c->op->infer(&n));
    if (n.n_out > 60000) return dt_fail(DT_E_VALUE, "%s(): %d results are too many", p->info->base, n.n_out);
    c->n_out = (uint16_t)n.n_out;
    c->out = DT_ARENA_ARRAY(&c->arena, const dt_meta *, n.n_out);
    if (!c->out) return no_memory(p);
    return dt_choose(c, &n);
}

static void set_flags(dt_call *c, const dt_prep *p) {
    bool floats = false, moved = false;
    for (int i = 0; i < c->n_out; i++) {
        floats |= dt_dtype_is_float((dt_dtype)c->out[i]->dtype);
        moved |= (c->op->flags & DT_F_FACTORY) && c->spec &&
                 (c->out[i]->mesh != c->spec->mesh || memcmp(c->out[i]->place, c->spec->place, sizeof c->out[i]->place) != 0);
    }
    if (c->op->grad && floats) c->flags |= DT_CALL_GRAD;
    if (p->info->n_written) c->flags |= DT_CALL_SPECIAL;
    if (c->op->alias && c->n_in == 1 && c->in[0] && !c->in[0]->wrapped) c->flags |= DT_CALL_VIEW;
    if (moved) c->flags |= DT_CALL_RESPEC;
    if (!(c->flags & (DT_CALL_SPECIAL | DT_CALL_VIEW)) && !(c->op->flags & DT_F_LOWERED) && dt_call_sums(c)) c->flags |= DT_CALL_SUMS;
}

dt_status dt_call_build(const dt_prep *p, const dt_args *args, uint64_t hash, dt_call **out) {
    if (!p->op->infer || p->op->compose) return dt_fail(DT_E_INTERNAL, "%s() is composed of other operators: there is no call to prepare", p->info->base);
    DT_TRY(check_required(p, args));
    DT_TRY(check_scalars(p, args));
    if (!dt_c.clock && !(dt_c.clock = dt_calloc(DT_CALLS_MAX, sizeof *dt_c.clock))) return no_memory(p);
    void *probe = dt_malloc(1); /* the tests' failing allocator knows nothing of aligned memory */
    dt_call *c = probe ? aligned_alloc(64, sizeof *c) : NULL;
    dt_free(probe);
    if (!c) return no_memory(p);
    memset(c, 0, sizeof *c);
    dt_status s = fill(c, p, args);
    if (!s) s = infer(c, p);
    if (!s) set_flags(c, p);
    if (!s && c->implied && dt_m.policy) s = dt_policy_check(c);
    if (!s) s = dt_htab_add(&dt_c.calls, &c->link, hash);
    if (s) {
        call_free(c);
        return s;
    }
    c->refs = 1;
    c->tick = true;
    insert(c);
    *out = c;
    return DT_OK;
}
