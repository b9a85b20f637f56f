/* Mixtures of experts: counting and numbering assignments. See ops/expert.c. One pass or two over small integers: not worth a team. */
#include "ops/expert.h"
#include "ops/op.h"

#include <string.h>

DT_CPU_KERNEL(expert_limit);
DT_CPU_KERNEL(expert_count);
DT_CPU_KERNEL(expert_route);

static dt_status check(const dt_kctx *c, int64_t expert) {
    const dt_expert_attr *a = c->attr;
    if (expert >= -1 && expert < a->n_experts) return DT_OK;
    return dt_fail(DT_E_INDEX, "%s: expert %lld, legal are 0 to %lld, and -1 for none", dt_op_name(c->op), (long long)expert, (long long)a->n_experts - 1);
}

static dt_status count(const dt_kctx *c, int64_t *counts) {
    const int64_t *index = c->in[0].data;
    memset(counts, 0, (size_t)((const dt_expert_attr *)c->attr)->n_experts * sizeof *counts);
    for (int64_t i = 0, n = dt_view_numel(&c->in[0]); i < n; i++) {
        DT_TRY(check(c, index[i]));
        if (index[i] >= 0) counts[index[i]]++;
    }
    return DT_OK;
}

dt_status dt_cpu_expert_count(const dt_kctx *c) { return count(c, c->out[0].data); }

dt_status dt_cpu_expert_limit(const dt_kctx *c) {
    const dt_expert_attr *a = c->attr;
    const int64_t *index = c->in[0].data;
    int64_t *out = c->out[0].data, *seen = c->scratch;
    memset(seen, 0, (size_t)a->n_experts * sizeof *seen);
    for (int64_t i = 0, n = dt_view_numel(&c->in[0]); i < n; i++) {
        DT_TRY(check(c, index[i]));
        out[i] = index[i] >= 0 && seen[index[i]]++ < a->capacity ? index[i] : -1;
    }
    return DT_OK;
}

/* A counting sort: rows of one expert stand in the order of the tokens. */
dt_status dt_cpu_expert_route(const dt_kctx *c) {
    const dt_expert_attr *a = c->attr;
    const dt_view *counts = &c->out[1];
    const int64_t *index = c->in[0].data, *place = c->out_place[1].lo;
    int64_t *slot = c->out[0].data, *next = c->scratch, n = dt_view_numel(&c->in[0]);
    if (counts->shape[0] != 1 || counts->shape[1] != 1)
        return dt_fail(DT_E_NOTIMPL, "_expert_route: %lld shards of tokens on one device", (long long)(counts->shape[0] * counts->shape[1]));
    DT_TRY(count(c, counts->data));
    int64_t first = (place[0] * a->groups + place[1]) * a->rows, used = 0;
    for (int64_t e = 0; e < a->n_experts; e++) {
        next[e] = first + used;
        used += ((const int64_t *)counts->data)[e];
    }
    if (used > a->rows) return dt_fail(DT_E_INTERNAL, "_expert_route: %lld rows for a buffer of %lld", (long long)used, (long long)a->rows);
    for (int64_t i = 0; i < n; i++) slot[i] = index[i] < 0 ? -1 : next[index[i]]++;
    return DT_OK;
}
