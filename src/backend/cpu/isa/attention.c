/* Scaled dot product attention, tiled: y = softmax(scale q k' + mask) v without ever holding an L x S matrix.
 *
 * Forward: a task takes up to ATT_ROWS query rows of one head and walks the keys in blocks of ATT_WIDE (of ATT_BC, where heads are wide). A block of keys is transposed once into
 * a packed tile; then MICRO_MR rows at a time go scores -> softmax -> output while they sit in the first cache level:
 *
 *      q rows (6 x D) . kt (D x 64) -> x (6 x 64) -> running max, weights, running sum -> o (6 x E) += x . v (64 x E)
 *
 * Scores are in units of log 2 (q is scaled by scale * log2 e once), so weights are exp2. Keys that no row of a tile may see are skipped.
 * Saved for backward: logsumexp per row (-inf where a row sees nothing; that row's output is 0).
 * Backward: a task takes one key head; for each block of keys it walks the query rows in tiles of ATT_BR, makes the weights again from
 * logsumexp, and adds to dk, dv (in the task) and dq (in scratch; only this task touches these heads). Groups of query heads may share a
 * key head; every operand may have any strides. The places of q and k say where their rows and heads start in the whole (causal masks,
 * groups of heads that are cut, dropout).
 * Steps: the keys may come as several blocks, one call a block. A step starts from the output and logsumexp of the one before. */
#include "backend/cpu/isa/gemm.h"

#include <math.h>
#include <string.h>

#include "ops/attention.h"
#include "ops/random.h"

#ifdef __AVX512F__
enum { ATT_WIDE = 128 };
#else
enum { ATT_WIDE = 64 };
#endif
enum { ATT_BC = 64, ATT_BR = 48, ATT_MAX_GROUP = 64, ATT_BEHIND = 8 };
#define LOG2E 1.4426950408889634074

typedef struct att {
    dt_view q, k, v, mask, gy, o, lse, delta, gq;
    int nb;                           /* batch dimensions of the result */
    int64_t batch[DT_MAX_DIM], group; /* heads are the last batch dimension; `group` of them share a key head */
    int64_t L, S, D, E, mask_rs, mask_cs, rows_a_task, heads, kv_heads;
    int64_t d0;              /* global number of the first query row minus that of the first key: what causal masks look at */
    int64_t head0, kv_head0; /* global numbers of the first heads here */
    double scale;
    bool causal, resume, last, add; /* steps over several blocks of keys: see attention_step */
    void *acc, *dq, *gk, *gv;
    dt_dtype key_dtype; /* of gk, gv */
    double dropout;
    uint64_t seed, offset;
    const dt_geom *like; /* where the result's part lies in the whole */
    int64_t keys, key0;  /* of the whole; the first one here */
} att;
/* Where one head's operands start, in elements; row: the first of its rows among all rows of all heads; line: the same in the whole. */
typedef struct att_at {
    int64_t q, k, v, mask, gy, o, lse, delta, gq, row, line;
} att_at;

/* The key head of query head h, both counted here. */
static int64_t key_head(const att *s, int64_t h) { return (s->head0 + h) / s->group - s->kv_head0; }

/* The offset of batch item idx in v, whose last `tail` dimensions are not batch. */
static int64_t batch_offset(const att *s, const dt_view *v, int tail, const int64_t *idx, bool key) {
    int64_t o = 0;
    for (int d = 0; v->data && d < s->nb; d++) {
        int from = d - (s->nb - (v->ndim - tail));
        if (from < 0 || v->shape[from] == 1) continue;
        o += (key && d == s->nb - 1 ? key_head(s, idx[d]) : idx[d]) * v->stride[from];
    }
    return o;
}

static att_at locate(const att *s, int64_t head) {
    int64_t idx[DT_MAX_DIM] = {0}, rest = head;
    for (int d = s->nb - 1; d >= 0; d--) {
        idx[d] = rest % s->batch[d];
        rest /= s->batch[d];
    }
    att_at b = {.row = head * s->L};
    b.q = batch_offset(s, &s->q, 2, idx, false);
    b.k = batch_offset(s, &s->k, 2, idx, true);
    b.v = batch_offset(s, &s->v, 2, idx, true);
    b.mask = batch_offset(s, &s->mask, 2, idx, false);
    b.gy = batch_offset(s, &s->gy, 2, idx, false);
    b.o = batch_offset(s, &s->o, 2, idx, false);
    b.gq = batch_offset(s, &s->gq, 2, idx, false);
    b.lse = batch_offset(s, &s->lse, 1, idx, false);
    b.delta = batch_offset(s, &s->delta, 1, idx, false);
    for (int d = 0; d < s->nb; d++) b.line = b.line * s->like->shape[d] + s->like->lo[d] + idx[d];
    b.line = b.line * s->like->shape[s->nb] + s->like->lo[s->nb];
    return b;
}

/* Which of the weights of keys [j0, j0 + n) dropout keeps, in one row of a head: the bits that dropout of the whole (…, H, L, S) draws. */
static void drop_bits(const att *s, const att_at *b, int64_t row, int64_t j0, int64_t n, uint8_t *keep) {
    uint64_t g = (uint64_t)((b->line + row) * s->keys + s->key0 + j0);
    int32_t limit = (int32_t)(s->dropout * 0x1p31);
    uint32_t w[4];
    for (int64_t j = 0; j < n; j++, g++) {
        if (j == 0 || (g & 3) == 0) dt_philox(s->seed, s->offset + (g >> 2), 0, w);
        keep[j] = (int32_t)(w[g & 3] >> 1) >= limit;
    }
}

static void load_f64(const void *src, int64_t stride, int64_t n, double *dst) {
    const double *s = src;
    for (int64_t i = 0; i < n; i++) dst[i] = s[i * stride];
}

/* The larger of each pair; the second where one is NaN. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define MAX_f32(a, b) ((micro_vec_f32)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define MAX_f64(a, b) ((micro_vec_f64)_mm512_max_pd((__m512d)(a), (__m512d)(b)))
#define HMAX_f32(v) _mm512_reduce_max_ps((__m512)(v))
#define HMAX_f64(v) _mm512_reduce_max_pd((__m512d)(v))
#elif defined(__AVX2__)
#include <immintrin.h>
#define MAX_f32(a, b) ((micro_vec_f32)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define MAX_f64(a, b) ((micro_vec_f64)_mm256_max_pd((__m256d)(a), (__m256d)(b)))
#define HMAX_f32(v) hmax_f32((__m256)(v))
#define HMAX_f64(v) hmax_f64((__m256d)(v))
static inline float hmax_f32(__m256 v) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}
static inline double hmax_f64(__m256d v) {
    __m128d a = _mm_max_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_max_sd(a, _mm_unpackhi_pd(a, a)));
}
#else
#define MAX_f32(a, b)                                                \
    ({                                                               \
        micro_vec_f32 a_ = (a), b_ = (b);                            \
        ivec_f32 m_ = a_ > b_;                                       \
        (micro_vec_f32)((m_ & (ivec_f32)a_) | (~m_ & (ivec_f32)b_)); \
    })
#define MAX_f64(a, b)                                                \
    ({                                                               \
        micro_vec_f64 a_ = (a), b_ = (b);                            \
        ivec_f64 m_ = a_ > b_;                                       \
        (micro_vec_f64)((m_ & (ivec_f64)a_) | (~m_ & (ivec_f64)b_)); \
    })
#define HMAX_f32(v)                                                             \
    ({                                                                          \
        micro_vec_f32 v_ = (v);                                                 \
        float h_ = v_[0];                                                       \
        for (int i = 1; i < MICRO_LANES_f32; i++) h_ = h_ > v_[i] ? h_ : v_[i]; \
        h_;                                                                     \
    })
#define HMAX_f64(v)                                                             \
    ({                                                                          \
        micro_vec_f64 v_ = (v);                                                 \
        double h_ = v_[0];                                                      \
        for (int i = 1; i < MICRO_LANES_f64; i++) h_ = h_ > v_[i] ? h_ : v_[i]; \
        h_;                                                                     \
    })
#endif

#define T float
#define MAX MAX_f32
#define HMAX(v) HMAX_f32(v)
#define NATIVE DT_float32
#define INT int32_t
#define SUF _f32
#define TURN to_lanes_ld
#define LOAD(dtype, src, stride, n, dst) DT_ISA_FN(load_f32)(dtype, src, stride, n, dst)
#define STORE(dtype, src, n, dst) DT_ISA_FN(store_f32)(dtype, src, n, dst)
#define LOG2(x) log2f(x)
#define EXP2_MIN -126.0f
#define EXP2_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */
#define EXP2_SHIFT 23
#define EXP2_TOP 0.00015345811597634228
#define EXP2_COEF 0.0013399931216502919f, 0.009618488958617034f, 0.05550328776974741f, 0.2402264689062004f, 0.6931472057372615f, 1.0f
#include "backend/cpu/isa/attention_body.h"
#undef T
#undef MAX
#undef HMAX
#undef NATIVE
#undef INT
#undef SUF
#undef TURN
#undef LOAD
#undef STORE
#undef LOG2
#undef EXP2_MIN
#undef EXP2_MAGIC
#undef EXP2_SHIFT
#undef EXP2_TOP
#undef EXP2_COEF

#define T double
#define MAX MAX_f64
#define HMAX(v) HMAX_f64(v)
#define NATIVE DT_float64
#define INT int64_t
#define SUF _f64
#define LOAD(dtype, src, stride, n, dst) load_f64(src, stride, n, dst)
#define STORE(dtype, src, n, dst) memcpy(dst, src, (size_t)(n)*8)
#define LOG2(x) log2(x)
#define EXP2_MIN -1022.0
#define EXP2_MAGIC 6755399441055744.0
#define EXP2_SHIFT 52
#define EXP2_TOP 2.5678435993488196e-11
#define EXP2_COEF                                                                                                                                \
    4.44553827187081e-10, 7.054911620801121e-09, 1.0178086009239696e-07, 1.3215486790144305e-06, 1.5252733804059838e-05, 0.00015403530393381606, \
        0.0013333558146428441, 0.009618129107628477, 0.055504108664821576, 0.2402265069591007, 0.6931471805599453, 1.0
#include "backend/cpu/isa/attention_body.h"

static void forward_task(void *arg, int64_t i) {
    const att *s = arg;
    int64_t tiles = (s->L + s->rows_a_task - 1) / s->rows_a_task, tile = tiles - 1 - i % tiles; /* causal: the long ones first */
    att_at b = locate(s, i / tiles);
    int64_t i0 = tile * s->rows_a_task, rows = s->L - i0 < s->rows_a_task ? s->L - i0 : s->rows_a_task;
    if (s->q.dtype == DT_float64)
        forward_tile_f64(s, &b, i0, rows);
    else
        forward_tile_f32(s, &b, i0, rows);
}

/* What all passes share: q, k, v, mask are inputs at, at + 1, …; seed and offset of dropout are the last two inputs. */
static att describe(const dt_kctx *c, int at, const dt_view *like, const dt_geom *like_place) {
    const dt_attention_attr *a = c->attr;
    att s = {.q = c->in[at], .k = c->in[at + 1], .v = c->in[at + 2], .mask = c->in[at + 3], .nb = like->ndim - 2, .causal = a->is_causal, .last = true};
    const dt_geom *qp = &c->in_place[at], *kp = &c->in_place[at + 1];
    s.L = s.q.shape[s.q.ndim - 2];
    s.D = s.q.shape[s.q.ndim - 1];
    s.S = s.k.shape[s.k.ndim - 2];
    s.E = s.v.shape[s.v.ndim - 1];
    s.like = like_place;
    s.keys = kp->shape[s.k.ndim - 2];
    s.key0 = kp->lo[s.k.ndim - 2];
    s.d0 = qp->lo[s.q.ndim - 2] - s.key0;
    s.scale = a->scale == a->scale ? a->scale : 1 / sqrt((double)(s.D ? s.D : 1));
    s.heads = 1;
    for (int d = 0; d < s.nb; d++) s.heads *= s.batch[d] = like->shape[d];
    int64_t all_heads = s.nb ? like_place->shape[s.nb - 1] : 1, all_kv = s.k.ndim > 2 ? kp->shape[s.k.ndim - 3] : 1;
    s.group = all_kv && all_heads >= all_kv ? all_heads / all_kv : 1;
    s.head0 = s.nb ? like_place->lo[s.nb - 1] : 0;
    s.kv_head0 = s.k.ndim > 2 ? kp->lo[s.k.ndim - 3] : 0;
    if (s.mask.dtype == DT_DTYPE_NONE) s.mask.data = NULL;
    if (s.mask.data) {
        s.mask_rs = s.mask.shape[s.mask.ndim - 2] == 1 ? 0 : s.mask.stride[s.mask.ndim - 2];
        s.mask_cs = s.mask.shape[s.mask.ndim - 1] == 1 ? 0 : s.mask.stride[s.mask.ndim - 1];
    }
    if (a->dropout > 0 && dt_view_given(&c->in[c->n_in - 1])) {
        s.dropout = a->dropout;
        s.seed = (uint64_t)dt_view_i64(&c->in[c->n_in - 2]);
        s.offset = (uint64_t)dt_view_i64(&c->in[c->n_in - 1]);
    }
    return s;
}

static dt_status forward(const dt_kctx *c, att *s) {
    if (s->heads == 0 || s->L == 0) return DT_OK;
    int64_t widest = s->D > s->E ? s->D : s->E, fit = 17280 / (widest + 1) / 12 * 12;
    s->rows_a_task = fit > 264 ? 264 : fit < 12 ? 12 : fit;
    int64_t tiles = (s->L + s->rows_a_task - 1) / s->rows_a_task; /* of one height: each turns all keys that it sees */
    s->rows_a_task = ((s->L + tiles - 1) / tiles + 11) / 12 * 12;
    while (s->rows_a_task > 48 && s->heads * ((s->L + s->rows_a_task - 1) / s->rows_a_task) < 16) s->rows_a_task = (s->rows_a_task / 2 + 11) / 12 * 12;
    dt_team_run(c->team, forward_task, s, s->heads * ((s->L + s->rows_a_task - 1) / s->rows_a_task));
    return DT_OK;
}

dt_status DT_ISA_FN(attention)(const dt_kctx *c) {
    att s = describe(c, 0, &c->out[0], &c->out_place[0]);
    s.o = c->out[0];
    s.lse = c->out[1];
    return forward(c, &s);
}

/* One block of keys out of several. out: y, logsumexp, and for 16-bit y the same in the computing type, contiguous. With `resume` they hold
 * what the blocks before gave; y is right after each step (in the third output until the last). */
dt_status DT_ISA_FN(attention_step)(const dt_kctx *c) {
    const dt_attention_attr *a = c->attr;
    att s = describe(c, 0, &c->out[0], &c->out_place[0]);
    s.o = c->out[0];
    s.lse = c->out[1];
    s.acc = dt_view_given(&c->out[2]) ? c->out[2].data : NULL;
    s.resume = a->resume;
    s.last = a->last;
    return forward(c, &s);
}

static void delta_task(void *arg, int64_t i) {
    const att *s = arg;
    att_at b = locate(s, i);
    if (s->q.dtype == DT_float64)
        delta_rows_f64(s, &b, 0, s->L);
    else
        delta_rows_f32(s, &b, 0, s->L);
}

/* Task i is local key head i % n of batch item i / n: its query heads, as far as they are here. */
static void backward_task(void *arg, int64_t i) {
    const att *s = arg;
    att_at b[ATT_MAX_GROUP];
    int64_t here = s->nb ? s->batch[s->nb - 1] : 1, outer = i / s->kv_heads, kv = i % s->kv_heads + s->kv_head0;
    int64_t lo = kv * s->group - s->head0, hi = lo + s->group;
    if (lo < 0) lo = 0;
    if (hi > here) hi = here;
    int n = 0;
    for (int64_t h = lo; h < hi; h++) b[n++] = locate(s, outer * here + h);
    if (n == 0) { /* nobody here looks at these keys */
        size_t size = dt_dtype_size(s->key_dtype), keys = (size_t)s->S;
        if (!s->add && s->D) memset((char *)s->gk + (size_t)i * keys * (size_t)s->D * size, 0, keys * (size_t)s->D * size);
        if (!s->add && s->E) memset((char *)s->gv + (size_t)i * keys * (size_t)s->E * size, 0, keys * (size_t)s->E * size);
        return;
    }
    if (s->q.dtype == DT_float64)
        backward_head_f64(s, b, n, i * s->S);
    else
        backward_head_f32(s, b, n, i * s->S);
}

static dt_status backward(const dt_kctx *c, att *s) {
    if (s->group > ATT_MAX_GROUP)
        return dt_fail(DT_E_NOTIMPL, "attention: at most %d query heads share a key head, got %lld", ATT_MAX_GROUP, (long long)s->group);
    int64_t outer = 1;
    for (int d = 0; d + 1 < s->nb; d++) outer *= s->batch[d];
    s->kv_heads = s->k.ndim > 2 ? s->k.shape[s->k.ndim - 3] : 1;
    if (!s->resume && s->heads * s->L > 0) memset(s->dq, 0, dt_attention_dq_bytes(s->heads * s->L, s->D, s->q.dtype));
    dt_team_run(c->team, backward_task, s, outer * s->kv_heads);
    return DT_OK;
}

/* in: gy, q, k, v, mask, out, logsumexp, seed, offset; out: gq, gk, gv. scratch: dq (rows, D rounded up to 16), delta (rows,) of the computing type */
dt_status DT_ISA_FN(attention_backward)(const dt_kctx *c) {
    att s = describe(c, 1, &c->in[0], &c->in_place[0]);
    s.gy = c->in[0];
    s.o = c->in[5];
    s.lse = c->in[6];
    s.gq = c->out[0];
    s.gk = c->out[1].data;
    s.gv = c->out[2].data;
    s.key_dtype = c->out[1].dtype;
    s.delta = s.lse;
    dt_view_set_contiguous(&s.delta);
    s.dq = c->scratch;
    s.delta.data = (char *)c->scratch + dt_attention_dq_bytes(s.heads * s.L, s.D, s.q.dtype);
    dt_team_run(c->team, delta_task, &s, s.heads);
    return backward(c, &s);
}

/* in: gy, y; out: delta = sum of gy y along the last dimension, as attention_backward_step reads it */
dt_status DT_ISA_FN(attention_delta)(const dt_kctx *c) {
    att s = {.gy = c->in[0], .o = c->in[1], .delta = c->out[0], .nb = c->in[0].ndim - 2, .like = &c->in_place[0], .heads = 1, .group = 1};
    s.q.dtype = c->in[0].dtype;
    s.L = s.gy.shape[s.nb];
    s.E = s.gy.shape[s.nb + 1];
    for (int d = 0; d < s.nb; d++) s.heads *= s.batch[d] = s.gy.shape[d];
    if (s.heads && s.L) dt_team_run(c->team, delta_task, &s, s.heads);
    return DT_OK;
}

/* One block of keys out of several. in: gy, q, k, v, mask, logsumexp, delta, seed, offset; out: gq (written by the last step), dq, which gathers
 * over the steps, gk and gv of this block, contiguous (`add`: summed to what is there). */
dt_status DT_ISA_FN(attention_backward_step)(const dt_kctx *c) {
    const dt_attention_attr *a = c->attr;
    att s = describe(c, 1, &c->in[0], &c->in_place[0]);
    s.gy = c->in[0];
    s.lse = c->in[5];
    s.delta = c->in[6];
    s.gq = c->out[0];
    s.dq = c->out[1].data;
    s.gk = c->out[2].data;
    s.gv = c->out[3].data;
    s.key_dtype = c->out[2].dtype;
    s.resume = a->resume;
    s.last = a->last;
    s.add = a->add;
    return backward(c, &s);
}
