/* Calls: from arguments to a record in the ring.
 *
 *   dt_prepare   resolves the inputs (a stale view is re-read first, which makes calls of its own), writes the key on the way, and
 *                finds the interned call. A miss infers and places (build.c).
 *   dt_issue     makes the result handles, the gradient node if one is due, and writes the record.
 *
 * The key is: op, spec, kinds of the attributes (4 bits each) with the default dtype (which inference reads), then per parameter its
 * words: the meta of an input (a number's is the wrapped meta; 0 if absent), count and metas of a list, value words of an attribute.
 * Numbers are inputs, so their values are not part of it. Nothing here allocates once pools are warm. Everything that can fail is done
 * before the record is written. */
#include "client/internal.h"
#include "ops/random.h"
#include "plan/trace.h"

/* Encoding fails deep inside loops that count on in ints: the status waits here. */
static dt_status failure;
static int bad(dt_status s) {
    failure = s;
    return -1;
}

/* Attribute words. Returns the place after the last word, or NULL on an error. */
static uint64_t *encode_attr(const dt_prep *p, int i, const dt_arg *a, uint64_t *k) {
    switch (a->kind) {
    case DT_ARG_NONE: return k;
    case DT_ARG_FLOAT: memcpy(k, &a->f, 8); return k + 1;
    case DT_ARG_INT:
    case DT_ARG_BOOL:
    case DT_ARG_DTYPE: *k = (uint64_t)a->i; return k + 1;
    case DT_ARG_STR:
        *k = (uint64_t)(uintptr_t)dt_intern(a->s);
        if (!*k) bad(dt_fail(DT_E_NOMEM, "%s(): out of host memory", p->info->base));
        return *k ? k + 1 : NULL;
    case DT_ARG_INTS:
        if (a->n > DT_MAX_INTS) {
            bad(dt_fail(DT_E_VALUE, "%s(): argument '%s' has %d entries, at most %d are legal", p->info->base, p->info->param[i].name, a->n, DT_MAX_INTS));
            return NULL;
        }
        *k++ = (uint64_t)(int64_t)a->n;
        for (int j = 0; j < a->n; j++) *k++ = (uint64_t)a->ints[j];
        return k;
    default: bad(dt_arg_type_error(p, i, a)); return NULL;
    }
}

enum { LIST_MAX = 60000, NUMBERS = 1 << DT_ARG_FLOAT | 1 << DT_ARG_INT | 1 << DT_ARG_BOOL };

/* One tensor input; 1 if it had to be refreshed (start again), -1 on an error. */
static inline int put_tensor(dt_tensor *t, uint32_t n) {
    if (DT_UNLIKELY(dt_tensor_stale(t))) {
        dt_status s = dt_tensor_refresh(t);
        return s ? bad(s) : 1;
    }
    dt_val *v = dt_tensor_val(t);
    dt_c.in_word[n] = v->id;
    dt_c.in_meta[n] = v->meta;
    dt_c.in_tensor[n] = t;
    dt_c.any_grad |= dt_tensor_wants_grad(t);
    dt_c.any_source |= v->source != NULL;
    return 0;
}

static const dt_meta *number_meta(dt_arg_kind k) {
    static const dt_meta *cache[16];
    if (DT_LIKELY(cache[k] != NULL)) return cache[k];
    return cache[k] = dt_meta_wrapped(k == DT_ARG_FLOAT ? DT_float64 : k == DT_ARG_BOOL ? DT_bool : DT_int64);
}

/* Value and Scalar parameters, and Tensor ones: -1 error, 1 again, 0 fine. */
static inline int put_input(const dt_prep *p, int i, const dt_arg *a, uint32_t n) {
    if (DT_LIKELY(a->kind == DT_ARG_TENSOR && a->t)) return put_tensor(a->t, n);
    dt_c.in_tensor[n] = NULL;
    if (a->kind == DT_ARG_NONE) {
        dt_c.in_meta[n] = a->given ? NULL : p->def_meta[i];
        dt_c.in_word[n] = a->given ? 0 : p->def_word[i];
        return 0;
    }
    if (p->kind[i] == DT_PK_TENSOR || !(NUMBERS >> a->kind & 1)) return bad(dt_arg_type_error(p, i, a));
    dt_c.in_meta[n] = number_meta((dt_arg_kind)a->kind);
    memcpy(&dt_c.in_word[n], &a->i, 8);
    return dt_c.in_meta[n] ? 0 : bad(DT_E_NOMEM);
}

static int put_list(const dt_prep *p, int i, const dt_arg *a, uint32_t *n) {
    int count = a->kind == DT_ARG_NONE ? 0 : a->n;
    if (a->kind != DT_ARG_TENSORS && a->kind != DT_ARG_NONE) return bad(dt_arg_type_error(p, i, a));
    if (count > LIST_MAX)
        return bad(dt_fail(DT_E_VALUE, "%s(): argument '%s' has %d tensors, at most %d are legal", p->info->base, p->info->param[i].name, count, LIST_MAX));
    for (int j = 0; j < count; j++, ++*n) {
        dt_tensor *t = a->list[j];
        int r = 0;
        if (t)
            r = put_tensor(t, *n);
        else if (p->info->param[i].optional) {
            dt_c.in_meta[*n] = NULL;
            dt_c.in_tensor[*n] = NULL;
            dt_c.in_word[*n] = 0;
        } else
            r = bad(dt_fail(DT_E_TYPE, "%s(): expected Tensor as element %d in argument '%s', but got None", p->info->base, j, p->info->param[i].name));
        if (r) return r;
    }
    return 0;
}

/* Resolve and encode; 1: a view was refreshed, so the buffers are void: start again. */
static int encode(const dt_prep *p, const dt_args *args) {
    uint64_t *k = dt_c.key + 3, kinds = 0;
    uint32_t n = 0;
    dt_c.any_grad = dt_c.any_source = false;
    for (int i = 0; i < p->n_params; i++) {
        const dt_arg *a = &args->a[i];
        int r = 0;
        if (p->kind[i] >= DT_PK_INT) {
            if (p->kind[i] == DT_PK_GENERATOR) continue;
            uint64_t nibble = a->kind == DT_ARG_NONE && a->given ? 15 : a->kind;
            kinds = kinds << 4 | nibble;
            if (!(k = encode_attr(p, i, a, k))) return -1;
        } else if (p->kind[i] == DT_PK_TENSORS) {
            uint32_t first = n;
            r = put_list(p, i, a, &n);
            if (r) return r;
            *k++ = n - first;
            for (uint32_t j = first; j < n; j++) *k++ = (uint64_t)(uintptr_t)dt_c.in_meta[j];
        } else {
            r = put_input(p, i, a, n);
            if (r) return r;
            *k++ = (uint64_t)(uintptr_t)dt_c.in_meta[n++];
        }
    }
    dt_c.key[0] = (uint64_t)(uintptr_t)p->op ^ dt_c.wires << 48;
    dt_c.key[1] = args->spec ? (uint64_t)(uintptr_t)args->spec : dt_default_device;
    dt_c.key[2] = kinds | (uint64_t)dt_default_dtype() << 60;
    dt_c.n_key = (uint32_t)(k - dt_c.key);
    dt_c.n_in = n;
    return 0;
}

static dt_status room_for_lists(const dt_prep *p, const dt_args *args) {
    int list = p->info->list_param;
    if (list < 0 || args->a[list].kind != DT_ARG_TENSORS || args->a[list].n < 0) return DT_OK;
    uint32_t n = (uint32_t)args->a[list].n;
    return dt_client_room(n + 32, n + 640);
}

static inline bool key_equal(const dt_call *c) {
    if (c->n_key != dt_c.n_key) return false;
    for (uint32_t i = 0; i < c->n_key; i++)
        if (c->key[i] != dt_c.key[i]) return false;
    return true;
}

dt_status dt_prepare(const dt_op *op, const dt_args *args, dt_call **call) {
    DT_TRY(dt_client_ready());
    const dt_prep *p = dt_prep_get(op);
    if (DT_UNLIKELY(!p)) return dt_c.prep_status;
    if (DT_UNLIKELY(op->flags & DT_F_FACTORY) && !args->spec && dt_m.spec && !p->has_tensors) {
        dt_args with = *args;
        with.spec = dt_m.spec;
        return dt_prepare(op, &with, call);
    }
    int r;
    do {
        DT_TRY(room_for_lists(p, args));
        r = encode(p, args);
    } while (r > 0);
    if (DT_UNLIKELY(r < 0)) return failure;
    uint64_t hash = dt_hash_words(dt_c.key, dt_c.n_key, 0);
    for (dt_hlink *l = dt_htab_first(&dt_c.calls, hash); l; l = l->next)
        if (DT_LIKELY(l->hash == hash) && DT_LIKELY(key_equal((dt_call *)l))) {
            *call = (dt_call *)l;
            (*call)->tick = true;
            return DT_UNLIKELY((*call)->implied && dt_m.policy) ? dt_policy_check(*call) : DT_OK;
        }
    return dt_call_build(p, args, hash, call);
}

/* The hidden inputs of a random op. */
static void put_seed(const dt_call *c, const dt_args *args) {
    uint64_t seed, offset;
    dt_generator_take(args->generator ? args->generator : dt_generator_default(), dt_random_counters(c->out[0]->numel), &seed, &offset);
    dt_c.in_word[c->n_in - 2] = seed;
    dt_c.in_word[c->n_in - 1] = offset;
}

/* Results that were made for a record that is not written. */
static void discard(dt_tensor **out, int n) {
    for (int i = 0; i < n; i++) {
        dt_tensor_unref(out[i]);
        out[i] = NULL;
    }
}

/* Views: out[i] gets its value now and shares in[0]'s cell. */
static dt_status make_views(dt_call *c, dt_tensor **out) {
    dt_tensor *base = dt_c.in_tensor[0];
    for (int i = 0; i < c->n_out; i++) {
        dt_tensor *t = out[i] = dt_tensor_alloc();
        if (!t || !(t->val = dt_val_new()) || dt_view_attach(t, base, c, i)) {
            discard(out, i + 1);
            return DT_E_NOMEM;
        }
    }
    return DT_OK;
}

static dt_status make_results(dt_call *c, dt_tensor **out) {
    for (int i = 0; i < c->n_out; i++) {
        out[i] = dt_result_new();
        if (DT_UNLIKELY(!out[i])) {
            discard(out, i);
            return DT_E_NOMEM;
        }
    }
    return DT_OK;
}

static void set_history(dt_call *c, dt_tensor **out, dt_grad_node *node) {
    for (int i = 0; i < c->n_out; i++) {
        if (!dt_dtype_is_float((dt_dtype)c->out[i]->dtype)) continue;
        dt_tensor *t = out[i];
        dt_grad_node_ref(node);
        if (t->is_view) {
            t->grad_fn = node;
            t->out_nr = (uint32_t)i;
        } else {
            t->cell->grad_fn = node;
            t->cell->out_nr = (uint32_t)i;
            t->cell->requires_grad = true;
        }
    }
    dt_grad_node_unref(node);
}

/* A value that is made again when it is saved passes that on to its views and casts. */
static inline bool wants_recipe(const dt_call *c, bool view) {
    if (DT_UNLIKELY(dt_m.recipe)) return true;
    return (view || c->op == &dt_op_to_dtype) && dt_c.in_tensor[0] && DT_UNLIKELY(dt_tensor_val(dt_c.in_tensor[0])->recipe != NULL);
}

/* A view, or another place, of what lies in files lies in files. *done: nothing is left to do. */
static dt_status issue_on_source(dt_call *c, dt_tensor **out, bool *done) {
    bool view = c->flags & DT_CALL_VIEW;
    dt_source *s[c->n_out + 1];
    *done = dt_call_on_source(c, s);
    dt_status st = *done ? view ? make_views(c, out) : make_results(c, out) : DT_OK;
    if (!*done) dt_call_announce();
    for (int i = 0; *done && i < c->n_out; i++) {
        if (st) {
            dt_source_unref(s[i]);
            continue;
        }
        dt_val *v = dt_tensor_val(out[i]);
        v->meta = c->out[i];
        v->source = s[i];
        if (view) continue; /* elsewhere: that is where it is wanted */
        out[i]->cell->inference = dt_m.inference;
        dt_val_announce(v);
    }
    return st;
}

static dt_status issue(dt_call *c, const dt_args *args, dt_tensor **out) {
    uint64_t begin = dt_tracing() ? dt_trace_now() : 0;
    bool view = DT_UNLIKELY(c->flags & DT_CALL_VIEW), done = false;
    if (DT_UNLIKELY(dt_c.any_source)) DT_TRY(issue_on_source(c, out, &done));
    if (DT_UNLIKELY(done)) return DT_OK;
    DT_TRY(view ? make_views(c, out) : make_results(c, out));
    if (DT_UNLIKELY(c->op->flags & DT_F_RANDOM)) put_seed(c, args); /* before the history, which keeps the numbers */
    if (DT_UNLIKELY(wants_recipe(c, view)) && c->n_in == 1) {
        dt_status s = dt_recipe_attach(c, dt_tensor_val(dt_c.in_tensor[0]), dt_tensor_val(out[0]));
        if (s) {
            discard(out, c->n_out);
            return s;
        }
    }
    dt_grad_node *node = NULL;
    if (dt_c.any_grad && (c->flags & DT_CALL_GRAD) && dt_recording()) {
        dt_status s = dt_grad_record(c, out, &node);
        if (DT_UNLIKELY(s)) {
            discard(out, c->n_out);
            return s;
        }
    }
    uint32_t n_in = c->n_in, n_out = c->n_out;
    uint64_t *w = dt_ring_reserve(dt_c.ring, 3 + n_in + n_out);
    w[0] = DT_REC_HEADER(DT_REC_CALL, n_in, n_out);
    w[1] = (uint64_t)(uintptr_t)c;
    w[2] = dt_m.site;
    w += 3;
    for (uint32_t i = 0; i < n_in; i++) w[i] = dt_c.in_word[i];
    w += n_in;
    for (uint32_t i = 0; i < n_out; i++) {
        dt_val *v = dt_tensor_val(out[i]);
        v->meta = c->out[i];
        w[i] = v->id;
    }
    c->issued++;
    dt_ring_publish(dt_c.ring);
    if (node) set_history(c, out, node);
    if (DT_UNLIKELY(dt_m.inference) && !view)
        for (uint32_t i = 0; i < n_out; i++) out[i]->cell->inference = true;
    if (DT_UNLIKELY(begin != 0)) dt_trace_add(DT_TRACE_CALL, dt_op_name(c->op), dt_m.site, begin, 0, 0);
    return DT_OK;
}

/* Written parameters: check the targets first, then let them take the results. */
static dt_status issue_written(dt_call *c, const dt_args *args, dt_tensor **out) {
    const dt_prep *p = dt_prep_get(c->op);
    dt_tensor *target[DT_MAX_PARAMS];
    int n = 0;
    for (int i = 0; i < p->n_params; i++)
        if (p->info->param[i].written && args->a[i].kind == DT_ARG_TENSOR) target[n++] = args->a[i].t;
    for (int i = 0; i < n; i++) DT_TRY(dt_inplace_check(target[i]));
    DT_TRY(issue(c, args, out));
    int n_out = c->n_out;
    for (int i = 0; i < n && i < n_out; i++) {
        dt_status s = dt_tensor_write(target[i], out[i]);
        if (s) {
            discard(out, n_out);
            return s;
        }
        dt_tensor_unref(out[i]);
        out[i] = dt_tensor_ref(target[i]);
    }
    return DT_OK;
}

/* A factory whose kernels cannot make the placements asked for: it made what it can, now move it. */
static dt_status respec(const dt_spec *spec, dt_tensor **out, int n_out) {
    dt_scope s;
    dt_scope_init(&s);
    for (int i = 0; i < n_out && !s.status; i++) {
        dt_tensor *t = dt_util_redistribute(&s, out[i], spec->mesh, spec->place);
        if (!t || t == out[i]) continue;
        dt_tensor_unref(out[i]);
        out[i] = dt_tensor_ref(t);
    }
    dt_status r = s.status;
    dt_scope_fini(&s);
    if (r) discard(out, n_out);
    return r;
}

dt_status dt_issue(dt_call *c, const dt_args *args, dt_tensor **out) {
    if (DT_LIKELY(!(c->flags & (DT_CALL_SPECIAL | DT_CALL_RESPEC | DT_CALL_SUMS)))) return issue(c, args, out);
    c->refs++; /* the calls made below may evict it */
    int n_out = c->n_out;
    dt_status s = c->flags & DT_CALL_SUMS ? dt_issue_summed(c, args, out) : c->flags & DT_CALL_SPECIAL ? issue_written(c, args, out) : issue(c, args, out);
    if (!s && (c->flags & DT_CALL_RESPEC) && !(c->flags & DT_CALL_SUMS)) s = respec(c->spec, out, n_out);
    dt_call_drop(c);
    return s;
}

static dt_status compose(const dt_op *op, const dt_args *args, int cap, dt_tensor **out, int *n_out) {
    const dt_prep *p = dt_prep_get(op);
    if (!p) return dt_c.prep_status;
    dt_args full;
    dt_ints_store store;
    DT_TRY(dt_args_fill(p, args, &full, &store));
    dt_scope s;
    dt_scope_init(&s);
    for (int i = 0; i < cap; i++) out[i] = NULL;
    *n_out = cap;
    op->compose(&s, &full, out, n_out);
    if (p->info->n_returns >= 0) *n_out = p->info->n_returns;
    for (int i = 0; i < *n_out && !s.status; i++)
        if (!out[i]) dt_scope_fail(&s, dt_fail(DT_E_INTERNAL, "%s(): result %d is missing", p->info->base, i));
    dt_status r = s.status;
    dt_scope_fini(&s);
    if (r) discard(out, *n_out < cap ? *n_out : cap);
    return r;
}

dt_status dt_invoke(const dt_op *op, const dt_args *args, int cap, dt_tensor **out, int *n_out) {
    return DT_UNLIKELY(dt_m.autocast) ? dt_autocast_invoke(op, args, cap, out, n_out) : dt_invoke_as_is(op, args, cap, out, n_out);
}

dt_status dt_invoke_as_is(const dt_op *op, const dt_args *args, int cap, dt_tensor **out, int *n_out) {
    if (DT_UNLIKELY(op->compose != NULL)) {
        DT_TRY(dt_client_ready());
        return compose(op, args, cap, out, n_out);
    }
    dt_call *c;
    DT_TRY(dt_prepare(op, args, &c));
    if (DT_UNLIKELY(c->n_out > cap)) return dt_fail(DT_E_INTERNAL, "%s(): %d results, room for %d", dt_op_name(op), c->n_out, cap);
    *n_out = c->n_out;
    return dt_issue(c, args, out);
}
