/* Mixtures of experts: rows to tokens and back, and what experts compute on their rows. See ops/expert.h for the layout, ops/expert.c and
 * ops/expert_mm.c for the contracts. Operands are contiguous. Rows that are not used are neither read nor written. */
#include "ops/expert.h"

#include <string.h>

#include "backend/cpu/isa/group.h"
#include "backend/cpu/isa/vecmath.h"
#include "ops/op.h"

enum { COLUMNS = 512, WORK = 32768 }; /* elements of a row at a time; elements a task */

/* ---- tokens and rows ----------------------------------------------------------------------------------------------------------------------------- */
typedef struct tokens {
    const dt_kctx *c;
    const dt_view *rows;
    const dt_geom *place; /* of rows */
    const int64_t *slot;
    const void *weight; /* float or double, or NULL */
    int64_t k, width, n, n_a_task;
} tokens;

/* The row of a slot here, or -1: it is nobody's, or lies elsewhere. */
static int64_t row_of(const tokens *t, int64_t slot) {
    const int64_t *shape = t->rows->shape, *all = t->place->shape, *lo = t->place->lo;
    if (slot < 0) return -1;
    int64_t m = slot % all[2] - lo[2], g = slot / all[2] % all[1] - lo[1], p = slot / (all[2] * all[1]) - lo[0];
    if (m < 0 || m >= shape[2] || g < 0 || g >= shape[1] || p < 0 || p >= shape[0]) return -1;
    return (p * shape[1] + g) * shape[2] + m;
}

static tokens tokens_of(const dt_kctx *c, const dt_view *rows, const dt_geom *place, int slot, int weight) {
    tokens t = {.c = c, .rows = rows, .place = place, .slot = c->in[slot].data, .k = c->in[slot].shape[c->in[slot].ndim - 1], .width = rows->shape[3]};
    if (weight >= 0 && dt_view_given(&c->in[weight])) t.weight = c->in[weight].data;
    t.n = 1;
    for (int d = 0; d < c->in[slot].ndim - 1; d++) t.n *= c->in[slot].shape[d];
    t.n_a_task = 1 + WORK / (t.width * t.k + 1);
    return t;
}

static void over_tokens(tokens *t, dt_task_fn fn) { dt_team_run(t->c->team, fn, t, (t->n + t->n_a_task - 1) / t->n_a_task); }

static char *row_at(const dt_view *v, int64_t row, int64_t column) {
    return (char *)v->data + (size_t)(row * v->shape[v->ndim - 1] + column) * dt_dtype_size(v->dtype);
}

/* A part of a row as floats: where it lies, or converted into `line`. */
static const float *floats(const dt_view *v, int64_t row, int64_t column, int64_t n, float *line) {
    if (v->dtype == DT_float32) return (const float *)row_at(v, row, column);
    DT_ISA_FN(load_f32)(v->dtype, row_at(v, row, column), 1, n, line);
    return line;
}

static void pack_task(void *arg, int64_t i) {
    const tokens *t = arg;
    const dt_view *x = &t->c->in[0];
    size_t bytes = (size_t)t->width * dt_dtype_size(x->dtype);
    float line[COLUMNS], scaled[COLUMNS];
    for (int64_t s = i * t->n_a_task; s < (i + 1) * t->n_a_task && s < t->n; s++)
        for (int64_t k = 0; k < t->k; k++) {
            int64_t row = row_of(t, t->slot[s * t->k + k]);
            if (row < 0) continue;
            if (!t->weight) {
                memcpy(row_at(t->rows, row, 0), row_at(x, s, 0), bytes);
            } else if (x->dtype == DT_float64) {
                double w = ((const double *)t->weight)[s * t->k + k], *d = (double *)row_at(t->rows, row, 0);
                const double *from = (const double *)row_at(x, s, 0);
                for (int64_t j = 0; j < t->width; j++) d[j] = w * from[j];
            } else {
                float w = ((const float *)t->weight)[s * t->k + k];
                for (int64_t j = 0; j < t->width; j += COLUMNS) {
                    int64_t n = t->width - j < COLUMNS ? t->width - j : COLUMNS;
                    const float *from = floats(x, s, j, n, line);
                    for (int64_t q = 0; q < n; q++) scaled[q] = w * from[q];
                    DT_ISA_FN(store_f32)(x->dtype, scaled, n, row_at(t->rows, row, j));
                }
            }
        }
}

dt_status DT_ISA_FN(expert_pack)(const dt_kctx *c) {
    tokens t = tokens_of(c, &c->out[0], &c->out_place[0], 1, 2);
    over_tokens(&t, pack_task);
    return DT_OK;
}

static void combine_f64(const tokens *t, int64_t s) {
    double *d = (double *)row_at(&t->c->out[0], s, 0);
    memset(d, 0, (size_t)t->width * sizeof *d);
    for (int64_t k = 0; k < t->k; k++) {
        int64_t row = row_of(t, t->slot[s * t->k + k]);
        if (row < 0) continue;
        double w = t->weight ? ((const double *)t->weight)[s * t->k + k] : 1;
        const double *from = (const double *)row_at(t->rows, row, 0);
        for (int64_t j = 0; j < t->width; j++) d[j] += w * from[j];
    }
}

static void combine_task(void *arg, int64_t i) {
    const tokens *t = arg;
    float line[COLUMNS], sum[COLUMNS];
    for (int64_t s = i * t->n_a_task; s < (i + 1) * t->n_a_task && s < t->n; s++) {
        if (t->rows->dtype == DT_float64) {
            combine_f64(t, s);
            continue;
        }
        for (int64_t j = 0; j < t->width; j += COLUMNS) {
            int64_t n = t->width - j < COLUMNS ? t->width - j : COLUMNS;
            memset(sum, 0, sizeof *sum * (size_t)n);
            for (int64_t k = 0; k < t->k; k++) {
                int64_t row = row_of(t, t->slot[s * t->k + k]);
                if (row < 0) continue;
                float w = t->weight ? ((const float *)t->weight)[s * t->k + k] : 1;
                const float *from = floats(t->rows, row, j, n, line);
                for (int64_t q = 0; q < n; q++) sum[q] += w * from[q];
            }
            DT_ISA_FN(store_f32)(t->rows->dtype, sum, n, row_at(&t->c->out[0], s, j));
        }
    }
}

dt_status DT_ISA_FN(expert_combine)(const dt_kctx *c) {
    tokens t = tokens_of(c, &c->in[0], &c->in_place[0], 1, 2);
    over_tokens(&t, combine_task);
    return DT_OK;
}

static double dot_f32(const float *a, const float *b, int64_t n) {
    float lane[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) lane[j] += a[i + j] * b[i + j];
    for (int j = 0; i < n; i++, j++) lane[j] += a[i] * b[i];
    for (int w = 8; w; w /= 2)
        for (int j = 0; j < w; j++) lane[j] += lane[j + w];
    return lane[0];
}

static void dot_task(void *arg, int64_t i) {
    const tokens *t = arg;
    const dt_view *x = &t->c->in[1];
    float line[COLUMNS], other[COLUMNS];
    for (int64_t s = i * t->n_a_task; s < (i + 1) * t->n_a_task && s < t->n; s++)
        for (int64_t k = 0; k < t->k; k++) {
            int64_t row = row_of(t, t->slot[s * t->k + k]);
            double sum = 0;
            if (row >= 0 && x->dtype == DT_float64) {
                const double *a = (const double *)row_at(t->rows, row, 0), *b = (const double *)row_at(x, s, 0);
                for (int64_t j = 0; j < t->width; j++) sum += a[j] * b[j];
            } else
                for (int64_t j = 0; row >= 0 && j < t->width; j += COLUMNS) {
                    int64_t n = t->width - j < COLUMNS ? t->width - j : COLUMNS;
                    sum += dot_f32(floats(t->rows, row, j, n, line), floats(x, s, j, n, other), n);
                }
            dt_element_set_f64(t->c->out[0].dtype, (char *)t->c->out[0].data + (size_t)(s * t->k + k) * dt_dtype_size(t->c->out[0].dtype), sum);
        }
}

dt_status DT_ISA_FN(expert_dot)(const dt_kctx *c) {
    tokens t = tokens_of(c, &c->in[0], &c->in_place[0], 2, -1);
    over_tokens(&t, dot_task);
    return DT_OK;
}

/* ---- products: one a buffer held here and an expert of it ---------------------------------------------------------------------------------------- */
/* Walks the buffers held here and their experts. */
typedef struct walker {
    const dt_view *rows, *counts;
    const dt_geom *rows_place, *counts_place;
    int64_t e_lo, e_n; /* experts held here */
} walker;

/* Rows of expert e in buffers of shard p (local in counts); what all senders of the shard have for it. */
static int64_t rows_for(const walker *w, int64_t p, int64_t e) {
    int64_t groups = w->counts->shape[1], experts = w->counts->shape[2], n = 0;
    const int64_t *counts = (const int64_t *)w->counts->data + p * groups * experts;
    for (int64_t g = 0; g < groups; g++) n += counts[g * experts + e];
    return n;
}

/* The products of all buffers held here: group[i] gets the first row (of the buffers as one matrix) in .k, the number of rows in .m and the
 * expert (of those held) in .n. Returns how many. */
static int64_t walk_experts(const walker *w, dt_group *group) {
    int64_t n = 0, n_groups = w->rows_place->shape[1];
    for (int64_t p = 0; p < w->rows->shape[0]; p++)
        for (int64_t g = 0; g < w->rows->shape[1]; g++) {
            int64_t lo, len, at = (p * w->rows->shape[1] + g) * w->rows->shape[2];
            dt_layout_chunk(w->counts->shape[2], n_groups, w->rows_place->lo[1] + g, &lo, &len);
            for (int64_t e = lo; e < lo + len; e++) {
                int64_t m = rows_for(w, w->rows_place->lo[0] + p - w->counts_place->lo[0], e);
                if (e >= w->e_lo && e < w->e_lo + w->e_n) group[n++] = (dt_group){.k = at, .m = m, .n = e - w->e_lo};
                at += m;
            }
        }
    return n;
}

static walker walker_of(const dt_kctx *c, int counts) {
    return (walker){.rows = &c->in[0], .counts = &c->in[counts], .rows_place = &c->in_place[0], .counts_place = &c->in_place[counts]};
}

static int64_t elements_between(const dt_view *a, const dt_view *b) { return ((intptr_t)b->data - (intptr_t)a->data) / (intptr_t)dt_dtype_size(a->dtype); }

/* out = rows w (or w'), one product an expert; with a second product added: two summed terms, the second one lies where a2, w2 do. */
static void products(const dt_kctx *c, const walker *at, const dt_view *w, const dt_view *a2, const dt_view *w2, const dt_view *out, bool trans) {
    const dt_view *a = &c->in[0];
    dt_group *group = c->scratch;
    walker k = *at;
    size_t size = dt_dtype_size(a->dtype);
    int64_t din = a->shape[3], dout = out->shape[3], n;
    k.e_n = w->shape[0];
    n = walk_experts(&k, group);
    dt_gemm like = {.dtype = a->dtype, .ars = din, .acs = 1, .brs = trans ? 1 : dout, .bcs = trans ? din : 1, .ldc = dout};
    if (a2) {
        like.nt = 1;
        like.terms[0] = 2;
        like.ats[0] = elements_between(a, a2);
        like.bts[0] = elements_between(w, w2);
    }
    for (int64_t i = 0; i < n; i++) {
        dt_group *q = &group[i];
        q->a = (const char *)a->data + (size_t)(q->k * din) * size;
        q->b = (const char *)w->data + (size_t)(q->n * din * dout) * size;
        q->c = (char *)out->data + (size_t)(q->k * dout) * size;
        q->k = din;
        q->n = dout;
    }
    DT_ISA_FN(group_run)(&like, group, n, c->team);
}

dt_status DT_ISA_FN(expert_mm)(const dt_kctx *c) {
    walker k = walker_of(c, 2);
    bool two = dt_view_given(&c->in[3]);
    k.e_lo = c->in_place[1].lo[0];
    products(c, &k, &c->in[1], two ? &c->in[3] : NULL, two ? &c->in[4] : NULL, &c->out[0], ((const dt_expert_attr *)c->attr)->trans);
    return DT_OK;
}

dt_status DT_ISA_FN(expert_mm_pair)(const dt_kctx *c) {
    walker k = walker_of(c, 3);
    for (int i = 0; i < 2; i++) {
        k.e_lo = c->in_place[1 + i].lo[0];
        products(c, &k, &c->in[1 + i], NULL, NULL, &c->out[i], false);
    }
    return DT_OK;
}

dt_status DT_ISA_FN(expert_mm_w)(const dt_kctx *c) {
    const dt_view *a = &c->in[0], *b = &c->in[1], *out = &c->out[0];
    dt_group *group = c->scratch;
    walker k = walker_of(c, 2);
    size_t size = dt_dtype_size(a->dtype);
    int64_t da = a->shape[3], db = b->shape[3];
    if (a->shape[0] != 1) return dt_fail(DT_E_NOTIMPL, "_expert_mm_w: %lld shards of tokens on one device", (long long)a->shape[0]);
    k.e_lo = c->out_place[0].lo[0];
    k.e_n = out->shape[0];
    int64_t n = walk_experts(&k, group);
    dt_gemm like = {.dtype = a->dtype, .ars = 1, .acs = da, .brs = db, .bcs = 1, .ldc = db};
    for (int64_t i = 0; i < n; i++) {
        dt_group *q = &group[i];
        int64_t rows = q->m;
        q->a = (const char *)a->data + (size_t)(q->k * da) * size;
        q->b = (const char *)b->data + (size_t)(q->k * db) * size;
        q->c = (char *)out->data + (size_t)(q->n * da * db) * size;
        q->m = da;
        q->n = db;
        q->k = rows;
    }
    DT_ISA_FN(group_run)(&like, group, n, c->team);
    return DT_OK;
}

/* ---- activations of the used rows ---------------------------------------------------------------------------------------------------------------- */
#define ACTS(T, S)                                                                                                                                     \
    VM T gelu_s_##S(T x) { return M_SIGMOID((T)1.59576912160573071176 * (x + (T)0.044715 * x * x * x)); }                                              \
    VM T act_##S(int kind, T x) {                                                                                                                      \
        switch (kind) {                                                                                                                                \
        case DT_EXPERT_SILU: return x * M_SIGMOID(x);                                                                                                  \
        case DT_EXPERT_GELU: return x * M_PHI(x);                                                                                                      \
        case DT_EXPERT_GELU_TANH: return x * gelu_s_##S(x);                                                                                            \
        default: return (x > 0) | (x != x) ? x : (T)0;                                                                                                 \
        }                                                                                                                                              \
    }                                                                                                                                                  \
    VM T slope_##S(int kind, T x) {                                                                                                                    \
        T t;                                                                                                                                           \
        switch (kind) {                                                                                                                                \
        case DT_EXPERT_SILU: t = M_SIGMOID(x); return t * ((T)1 + x * ((T)1 - t));                                                                     \
        case DT_EXPERT_GELU: return M_PHI(x) + x * M_EXP((T)-0.5 * x * x) * (T)0.39894228040143267794;                                                 \
        case DT_EXPERT_GELU_TANH: t = gelu_s_##S(x); return t + x * (t * ((T)1 - t)) * (T)1.59576912160573071176 * ((T)1 + (T)(3 * 0.044715) * x * x); \
        default: return x <= 0 ? (T)0 : (T)1;                                                                                                          \
        }                                                                                                                                              \
    }                                                                                                                                                  \
    VM void blocks_##S(int kind, int what, const T *const *in, T *const *out, int64_t n) {                                                             \
        switch (what) { /* act(x), act'(x) g, act(x) u, and the gradients of that */                                                                   \
        case 0:                                                                                                                                        \
            for (int64_t i = 0; i < n; i++) out[0][i] = act_##S(kind, in[0][i]);                                                                       \
            break;                                                                                                                                     \
        case 1:                                                                                                                                        \
            for (int64_t i = 0; i < n; i++) out[0][i] = in[0][i] * slope_##S(kind, in[1][i]);                                                          \
            break;                                                                                                                                     \
        case 2:                                                                                                                                        \
            for (int64_t i = 0; i < n; i++) out[0][i] = act_##S(kind, in[0][i]) * in[1][i];                                                            \
            break;                                                                                                                                     \
        default:                                                                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                                                                          \
                out[0][i] = in[0][i] * in[2][i] * slope_##S(kind, in[1][i]);                                                                           \
                out[1][i] = in[0][i] * act_##S(kind, in[1][i]);                                                                                        \
            }                                                                                                                                          \
        }                                                                                                                                              \
    }                                                                                                                                                  \
    static void block_##S(int kind, int what, const T *const *in, T *const *out, int64_t n) { /* kind known: loops without branches */                 \
        switch (kind) {                                                                                                                                \
        case DT_EXPERT_SILU: blocks_##S(DT_EXPERT_SILU, what, in, out, n); break;                                                                      \
        case DT_EXPERT_GELU: blocks_##S(DT_EXPERT_GELU, what, in, out, n); break;                                                                      \
        case DT_EXPERT_GELU_TANH: blocks_##S(DT_EXPERT_GELU_TANH, what, in, out, n); break;                                                            \
        default: blocks_##S(DT_EXPERT_RELU, what, in, out, n);                                                                                         \
        }                                                                                                                                              \
    }
ACTS(float, f32)
ACTS(double, f64)

typedef struct acting {
    const dt_kctx *c;
    int kind, what, n_in;
    int64_t at, n; /* elements of one buffer's used rows */
} acting;
enum { ACT_TASK = 16 * COLUMNS };

static void act_task(void *arg, int64_t task) {
    const acting *j = arg;
    dt_dtype type = j->c->out[0].dtype;
    size_t size = dt_dtype_size(type);
    float in_line[3][COLUMNS], out_line[2][COLUMNS];
    int64_t end = (task + 1) * ACT_TASK < j->n ? (task + 1) * ACT_TASK : j->n;
    for (int64_t i = task * ACT_TASK; i < end; i += COLUMNS) {
        int64_t n = end - i < COLUMNS ? end - i : COLUMNS;
        const void *in[3] = {0};
        void *out[2] = {0};
        bool direct = type == DT_float32 || type == DT_float64;
        for (int k = 0; k < j->n_in; k++) {
            const char *p = (const char *)j->c->in[k].data + (size_t)(j->at + i) * size;
            if (!direct) DT_ISA_FN(load_f32)(type, p, 1, n, in_line[k]);
            in[k] = direct ? (const void *)p : in_line[k];
        }
        for (int k = 0; k < j->c->n_out; k++) out[k] = direct ? (char *)j->c->out[k].data + (size_t)(j->at + i) * size : (void *)out_line[k];
        if (type == DT_float64)
            block_f64(j->kind, j->what, (const double *const *)in, (double *const *)out, n);
        else
            block_f32(j->kind, j->what, (const float *const *)in, (float *const *)out, n);
        for (int k = 0; k < j->c->n_out && !direct; k++) DT_ISA_FN(store_f32)(type, out_line[k], n, (char *)j->c->out[k].data + (size_t)(j->at + i) * size);
    }
}

static dt_status act(const dt_kctx *c, int what) {
    walker k = walker_of(c, c->n_in - 1);
    dt_expert_act kind;
    DT_TRY(dt_expert_act_find(((const dt_expert_attr *)c->attr)->kind, &kind));
    for (int64_t p = 0; p < k.rows->shape[0]; p++)
        for (int64_t g = 0; g < k.rows->shape[1]; g++) {
            int64_t lo, len, used = 0;
            dt_layout_chunk(k.counts->shape[2], k.rows_place->shape[1], k.rows_place->lo[1] + g, &lo, &len);
            for (int64_t e = lo; e < lo + len; e++) used += rows_for(&k, k.rows_place->lo[0] + p - k.counts_place->lo[0], e);
            acting j = {c, (int)kind, what, c->n_in - 1, (p * k.rows->shape[1] + g) * k.rows->shape[2] * k.rows->shape[3], used * k.rows->shape[3]};
            if (j.n) dt_team_run(c->team, act_task, &j, (j.n + ACT_TASK - 1) / ACT_TASK);
        }
    return DT_OK;
}

dt_status DT_ISA_FN(expert_act)(const dt_kctx *c) { return act(c, 0); }
dt_status DT_ISA_FN(expert_act_backward)(const dt_kctx *c) { return act(c, 1); }
dt_status DT_ISA_FN(expert_glu)(const dt_kctx *c) { return act(c, 2); }
dt_status DT_ISA_FN(expert_glu_backward)(const dt_kctx *c) { return act(c, 3); }
