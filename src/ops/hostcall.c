/* host_call: a user's function as an operator. Its results' types are text, so that any number of them is part of the key:
 * "8:2,3;5:" is a float32 (2, 3) and an int64 () (dtype code, sizes). The job's address is a run-time number. */
#include "ops/hostcall.h"

#include <stdlib.h>

typedef struct host_call_attr {
    const char *types;
} host_call_attr;

static dt_status host_call_infer(dt_node *n) {
    const char *p = ((const host_call_attr *)n->attr)->types;
    int count = 0;
    for (const char *q = p; *q; q++) count += *q == ';';
    DT_TRY(dt_node_outs(n, count));
    for (int i = 0; i < count; i++, p++) {
        dt_type *o = &n->out[i];
        *o = (dt_type){.dtype = (dt_dtype)strtol(p, (char **)&p, 10)};
        if (*p++ != ':' || o->dtype >= DT_DTYPE_COUNT) return dt_fail(DT_E_INTERNAL, "host_call: bad types '%s'", ((const host_call_attr *)n->attr)->types);
        while (*p != ';') {
            if (o->ndim == DT_MAX_DIM) return dt_fail(DT_E_VALUE, "host_call: a result of more than %d dimensions", DT_MAX_DIM);
            char *end;
            o->shape[o->ndim++] = strtoll(p, &end, 10);
            if (end == p) return dt_fail(DT_E_INTERNAL, "host_call: bad types '%s'", ((const host_call_attr *)n->attr)->types);
            p = *end == ',' ? end + 1 : end;
        }
    }
    return DT_OK;
}

static dt_status host_call_kernel(const dt_kctx *c) {
    dt_host_job *j = (dt_host_job *)(intptr_t)dt_view_i64(&c->in[c->n_in - 1]);
    dt_status s = j->fn(j->ctx, c->n_in - 1, c->in, c->n_out, c->out);
    void (*free_fn)(void *) = j->free_fn;
    void *ctx = j->ctx;
    atomic_store(&j->ran, true); /* the client may free j from here on */
    if (free_fn) free_fn(ctx);
    return s;
}

const dt_op dt_op__host_call = {
    .sig = "_host_call(Tensor[] input, str types, Scalar job) -> Tensor[]",
    .doc = "Calls a function of the host program in order with the other work; its failure is a late error of the results.",
    .where = DT_HIDDEN,
    .flags = DT_F_NO_CSE,
    .attrs = DT_ATTRS(host_call_attr, DT_FIELD(host_call_attr, types)),
    .infer = host_call_infer,
    .place = dt_place_replicate,
    .kernels = {{DT_CPU, DT_ANY, host_call_kernel, DT_K_CONTIGUOUS}},
};
