/* Scaled dot product attention, tiled: y = softmax(scale q k' + mask) v without ever holding an L x S matrix.
 *
 * Forward: a task takes up to ATT_ROWS query rows of one head and walks the keys in blocks of ATT_BC. A block of keys is transposed once into
 * a packed tile; then MICRO_MR rows at a time go scores -> softmax -> output while they sit in the first cache level:
 *
 *      q rows (6 x D) . kt (D x 64) -> x (6 x 64) -> running max, weights, running sum -> o (6 x E) += x . v (64 x E)
 *
 * Scores are in units of log 2 (q is scaled by scale * log2 e once), so weights are exp2. Keys that no row of a tile may see are skipped.
 * Saved for backward: logsumexp per row (-inf where a row sees nothing; that row's output is 0).
 * Backward: a task takes one key head; for each block of keys it walks the query rows in tiles of ATT_BR, makes the weights again from
 * logsumexp, and adds to dk, dv (in the task) and dq (in scratch; only this task touches these heads). Groups of query heads may share a
 * key head; every operand may have any strides. With a sharded L the place of q says where the rows start (causal masks). */
#include "backend/cpu/isa/gemm.h"

#include <math.h>
#include <string.h>

#include "ops/attention.h"

enum { ATT_BC = 64, ATT_BR = 48, ATT_MAX_GROUP = 64 };
#define LOG2E 1.4426950408889634074

typedef struct att {
    dt_view q, k, v, mask, gy, o;
    int nb;                           /* batch dimensions of the result */
    int64_t batch[DT_MAX_DIM], group; /* heads are the last batch dimension; `group` of them share a key head */
    int64_t L, S, D, E, q0, mask_rs, mask_cs, rows_a_task, lse_stride, heads, kv_heads;
    double scale;
    bool causal;
    void *lse, *delta, *dq, *gq, *gk, *gv;
    const dt_view *lse_in;
} att;
/* Where one head's operands start, in elements; row: the first of its rows among all rows of all heads. */
typedef struct att_at {
    int64_t q, k, v, mask, gy, o, lse, row;
} att_at;

/* The offset of batch item idx in v, whose last `tail` dimensions are not batch; its head dimension is divided by `group`. */
static int64_t batch_offset(const att *s, const dt_view *v, int tail, const int64_t *idx, int64_t group) {
    int64_t o = 0;
    for (int d = 0; d < s->nb; d++) {
        int from = d - (s->nb - (v->ndim - tail));
        if (from < 0 || v->shape[from] == 1) continue;
        o += (d == s->nb - 1 ? idx[d] / group : idx[d]) * v->stride[from];
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
    b.q = batch_offset(s, &s->q, 2, idx, 1);
    b.k = batch_offset(s, &s->k, 2, idx, s->group);
    b.v = batch_offset(s, &s->v, 2, idx, s->group);
    if (s->mask.data) b.mask = batch_offset(s, &s->mask, 2, idx, 1);
    if (s->gy.data) b.gy = batch_offset(s, &s->gy, 2, idx, 1);
    if (s->gy.data) b.o = batch_offset(s, &s->o, 2, idx, 1);
    if (s->lse_in) b.lse = batch_offset(s, s->lse_in, 1, idx, 1);
    return b;
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
#define LOAD(dtype, src, stride, n, dst) DT_ISA_FN(load_f32)(dtype, src, stride, n, dst)
#define STORE(dtype, src, n, dst) DT_ISA_FN(store_f32)(dtype, src, n, dst)
#define LSE_AT(s, b, row) ((const float *)(s)->lse)[(b)->lse + (row) * (s)->lse_stride]
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
#undef LOAD
#undef STORE
#undef LSE_AT
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
#define LSE_AT(s, b, row) ((const double *)(s)->lse)[(b)->lse + (row) * (s)->lse_stride]
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

/* What both passes share: q, k, v, mask are inputs at, at + 1, … */
static att describe(const dt_kctx *c, int at, const dt_view *like) {
    const dt_attention_attr *a = c->attr;
    att s = {.q = c->in[at], .k = c->in[at + 1], .v = c->in[at + 2], .mask = c->in[at + 3], .nb = like->ndim - 2, .causal = a->is_causal};
    s.L = s.q.shape[s.q.ndim - 2];
    s.D = s.q.shape[s.q.ndim - 1];
    s.S = s.k.shape[s.k.ndim - 2];
    s.E = s.v.shape[s.v.ndim - 1];
    s.q0 = c->in_place[at].lo[s.q.ndim - 2];
    s.scale = a->scale == a->scale ? a->scale : 1 / sqrt((double)(s.D ? s.D : 1));
    s.heads = 1;
    for (int d = 0; d < s.nb; d++) s.heads *= s.batch[d] = like->shape[d];
    int64_t kh = s.k.ndim > 2 ? s.k.shape[s.k.ndim - 3] : 1;
    s.group = s.nb && kh && s.heads ? s.batch[s.nb - 1] / kh : 1;
    s.kv_heads = s.group ? s.heads / s.group : 0;
    if (s.mask.dtype == DT_DTYPE_NONE) s.mask.data = NULL;
    if (s.mask.data) {
        s.mask_rs = s.mask.shape[s.mask.ndim - 2] == 1 ? 0 : s.mask.stride[s.mask.ndim - 2];
        s.mask_cs = s.mask.shape[s.mask.ndim - 1] == 1 ? 0 : s.mask.stride[s.mask.ndim - 1];
    }
    return s;
}

dt_status DT_ISA_FN(attention)(const dt_kctx *c) {
    att s = describe(c, 0, &c->out[0]);
    s.o = c->out[0];
    s.lse = c->out[1].data;
    if (s.heads == 0 || s.L == 0) return DT_OK;
    int64_t widest = s.D > s.E ? s.D : s.E, fit = 16384 / (widest + 1) / 12 * 12;
    s.rows_a_task = fit > 252 ? 252 : fit < 12 ? 12 : fit;
    while (s.rows_a_task > 48 && s.heads * ((s.L + s.rows_a_task - 1) / s.rows_a_task) < 16) s.rows_a_task = (s.rows_a_task / 2 + 11) / 12 * 12;
    dt_team_run(c->team, forward_task, &s, s.heads * ((s.L + s.rows_a_task - 1) / s.rows_a_task));
    return DT_OK;
}

static void delta_task(void *arg, int64_t i) {
    const att *s = arg;
    att_at b = locate(s, i);
    if (s->q.dtype == DT_float64)
        delta_rows_f64(s, &b, 0, s->L);
    else
        delta_rows_f32(s, &b, 0, s->L);
}

static void backward_task(void *arg, int64_t i) {
    const att *s = arg;
    att_at b[ATT_MAX_GROUP];
    for (int h = 0; h < s->group; h++) b[h] = locate(s, i * s->group + h);
    if (s->q.dtype == DT_float64)
        backward_head_f64(s, b, (int)s->group, i * s->S);
    else
        backward_head_f32(s, b, (int)s->group, i * s->S);
}

/* in: gy, q, k, v, mask, out, logsumexp; out: gq, gk, gv. scratch: dq (rows, D rounded up to 16), delta (rows,) of the computing type */
dt_status DT_ISA_FN(attention_backward)(const dt_kctx *c) {
    att s = describe(c, 1, &c->in[0]);
    s.gy = c->in[0];
    s.o = c->in[5];
    s.lse = c->in[6].data;
    s.lse_in = &c->in[6];
    s.lse_stride = c->in[6].stride[c->in[6].ndim - 1];
    s.gq = c->out[0].data;
    s.gk = c->out[1].data;
    s.gv = c->out[2].data;
    if (s.heads == 0) return DT_OK;
    if (s.group > ATT_MAX_GROUP)
        return dt_fail(DT_E_NOTIMPL, "attention: at most %d query heads share a key head, got %lld", ATT_MAX_GROUP, (long long)s.group);
    size_t size = s.q.dtype == DT_float64 ? 8 : 4, rows = (size_t)(s.heads * s.L), dq = (rows * (size_t)((s.D + 15) / 16 * 16) * size + 63) / 64 * 64;
    s.dq = c->scratch;
    s.delta = (char *)c->scratch + dq;
    if (dq) memset(s.dq, 0, dq);
    dt_team_run(c->team, delta_task, &s, s.heads);
    dt_team_run(c->team, backward_task, &s, s.kv_heads);
    return DT_OK;
}
