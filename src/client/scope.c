/* Scopes: see scope.h. A scope owns what is made through it; the first failure stays and silences the calls after it. */
#include "client/internal.h"

enum { INLINE = sizeof((dt_scope *)0)->inline_own / sizeof(dt_tensor *) };

void dt_scope_init(dt_scope *s) {
    s->status = DT_OK;
    s->n = 0;
    s->cap = INLINE;
    s->own = s->inline_own;
    dt_arena_init(&s->arena);
}

static void release(dt_scope *s) {
    for (int i = 0; i < s->n; i++) dt_tensor_unref(s->own[i]);
    s->n = 0;
}

void dt_scope_fini(dt_scope *s) {
    release(s);
    if (s->own != s->inline_own) dt_free(s->own);
    dt_arena_fini(&s->arena);
}

dt_scope *dt_scope_new(void) {
    dt_scope *s = dt_malloc(sizeof *s);
    if (s)
        dt_scope_init(s);
    else
        (void)dt_fail(DT_E_NOMEM, "a scope: out of host memory");
    return s;
}

void dt_scope_free(dt_scope *s) {
    if (!s) return;
    dt_scope_fini(s);
    dt_free(s);
}

void dt_scope_clear(dt_scope *s) {
    if (!s) return;
    release(s);
    dt_arena_reset(&s->arena);
    s->status = DT_OK;
}

int dt_scope_status(dt_scope *s) { return s ? (int)s->status : (int)DT_E_NOMEM; } /* dt_scope_new found no memory */

void dt_scope_fail(dt_scope *s, dt_status status) {
    if (!s->status) s->status = status;
}

dt_tensor *dt_scope_own(dt_scope *s, dt_tensor *t) {
    if (!t) return NULL;
    if (DT_UNLIKELY(s->n == s->cap)) {
        dt_tensor **own = dt_malloc(2 * (size_t)s->cap * sizeof *own);
        if (!own) {
            dt_tensor_unref(t);
            dt_scope_fail(s, dt_fail(DT_E_NOMEM, "a scope: out of host memory"));
            return NULL;
        }
        memcpy(own, s->own, (size_t)s->n * sizeof *own);
        if (s->own != s->inline_own) dt_free(s->own);
        s->own = own;
        s->cap *= 2;
    }
    s->own[s->n++] = t;
    return t;
}

dt_tensor *dt_scope_call1(dt_scope *s, const dt_op *op, const dt_args *a) {
    dt_tensor *out[8];
    int n = 0;
    if (s->status) return NULL;
    dt_status r = dt_invoke(op, a, 8, out, &n);
    if (r) {
        dt_scope_fail(s, r);
        return NULL;
    }
    for (int i = 1; i < n; i++) dt_tensor_unref(out[i]);
    return dt_scope_own(s, out[0]);
}

int dt_scope_calln(dt_scope *s, const dt_op *op, const dt_args *a, int n, dt_tensor **out) {
    int got = 0;
    for (int i = 0; i < n; i++) out[i] = NULL;
    if (s->status) return -1;
    dt_status r = dt_invoke(op, a, n, out, &got);
    if (r) dt_scope_fail(s, r);
    for (int i = 0; i < got && !r; i++) out[i] = dt_scope_own(s, out[i]);
    return s->status ? -1 : 0;
}

dt_tensor **dt_scope_call_list(dt_scope *s, const dt_op *op, const dt_args *a, int *n_out) {
    enum { COMPOSED_MAX = 4096 };
    *n_out = 0;
    if (s->status) return NULL;
    dt_call *c = NULL;
    int n = 0, cap = COMPOSED_MAX;
    dt_status r = DT_OK;
    if (!op->compose) {
        r = dt_prepare(op, a, &c);
        if (!r) cap = c->n_out;
    }
    dt_tensor **out = r ? NULL : DT_ARENA_ARRAY(&s->arena, dt_tensor *, cap);
    if (!r && !out) r = dt_fail(DT_E_NOMEM, "a scope: out of host memory");
    if (!r && c) {
        n = cap;
        r = dt_issue(c, a, out);
    } else if (!r)
        r = dt_invoke(op, a, cap, out, &n);
    if (r) {
        dt_scope_fail(s, r);
        return NULL;
    }
    for (int i = 0; i < n; i++) out[i] = dt_scope_own(s, out[i]);
    *n_out = s->status ? 0 : n;
    return s->status ? NULL : out;
}
