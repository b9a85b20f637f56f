/* The template behind attention.c, for T = float (SUF _f32) and T = double (SUF _f64). What the two passes do is told there. */
#include "backend/cpu/isa/micro.h"
#ifdef TURN
#include "backend/cpu/isa/transpose.h"
#endif

#define CAT2_(a, b) a##b
#define CAT2(a, b) CAT2_(a, b)
#define OF(name) CAT2(name, SUF)
#define LANES OF(MICRO_LANES)
#define V OF(micro_vec)

typedef INT OF(ivec) __attribute__((vector_size(MICRO_BYTES)));

/* 2^x for x up to ATT_BEHIND, exactly 0 below the range, NaN for NaN: 2^n by the exponent bits, 2^f by a polynomial (f in [-1/2, 1/2]). */
static inline V OF(exp2_vec)(V x) {
    static const T coef[] = {EXP2_COEF};
    V low = (V){0} + EXP2_MIN, c = MAX(low, x), p = (V){0} + (T)EXP2_TOP;
    V t = c + EXP2_MAGIC, f = c - (t - EXP2_MAGIC);
#pragma GCC unroll 16
    for (int i = 0; i < (int)(sizeof coef / sizeof *coef); i++) p = p * f + coef[i];
    OF(ivec) bits = (OF(ivec))p + ((OF(ivec))t << EXP2_SHIFT);
    return (V)(bits & ~(OF(ivec))(x <= low));
}

static inline T OF(hsum)(V v) {
    union {
        V v;
        T a[LANES];
    } u = {v};
    for (int w = LANES / 2; w; w /= 2)
        for (int j = 0; j < w; j++) u.a[j] += u.a[j + w];
    return u.a[0];
}

/* Rows of a matrix to T, times `by`, ld apart and zero-padded to ld columns. */
static void OF(load_rows)(const att *s, const dt_view *v, int64_t at, int64_t rows, int64_t cols, T by, T *dst, int64_t ld) {
    int64_t rs = v->stride[v->ndim - 2], cs = v->stride[v->ndim - 1];
    for (int64_t r = 0; r < rows; r++) {
        T *d = dst + r * ld;
        LOAD(v->dtype, (const char *)v->data + (size_t)(at + r * rs) * dt_dtype_size(v->dtype), cs, cols, d);
        if (by != 1)
            for (int64_t j = 0; j < cols; j++) d[j] *= by;
        for (int64_t j = cols; j < ld; j++) d[j] = 0;
    }
    (void)s;
}

/* Rows of a matrix (at most ld), transposed: dst[c * ld + r], zero-padded to ld columns. */
static void OF(load_transposed)(const dt_view *v, int64_t at, int64_t rows, int64_t cols, T *dst, int64_t ld) {
    int64_t rs = v->stride[v->ndim - 2], cs = v->stride[v->ndim - 1];
#ifdef TURN
    for (int64_t r0 = 0; v->dtype == NATIVE && cs == 1 && r0 < ld; r0 += LANES) { /* in registers */
        int64_t n = rows - r0 < 0 ? 0 : rows - r0 < LANES ? rows - r0 : LANES;
        TURN((const T *)v->data + at + (n ? r0 * rs : 0), rs, n, cols, n ? (n - 1) * rs + cols : 0, dst + r0, ld);
    }
    if (v->dtype == NATIVE && cs == 1) return;
#endif
    T line[16 * 16];
    for (int64_t c0 = 0; c0 < cols; c0 += 16) {
        int64_t nc = cols - c0 < 16 ? cols - c0 : 16;
        for (int64_t r0 = 0; r0 < ld; r0 += 16) {
            for (int64_t r = 0; r < 16; r++) {
                if (r0 + r < rows)
                    LOAD(v->dtype, (const char *)v->data + (size_t)(at + (r0 + r) * rs + c0 * cs) * dt_dtype_size(v->dtype), cs, nc, line + r * 16);
                else
                    for (int64_t c = 0; c < 16; c++) line[r * 16 + c] = 0;
            }
            for (int64_t c = 0; c < nc; c++)
                for (int64_t r = 0; r < 16; r++) dst[(c0 + c) * ld + r0 + r] = line[r * 16 + c];
        }
    }
}

/* Add the mask to a row of scores (in units of log 2); columns that must not be seen become -inf, and those from cols to wide. */
static void OF(mask_row)(const att *s, int64_t mask_at, int64_t row, int64_t j0, int64_t cols, int64_t wide, T *x) {
    if (s->mask.data) {
        int64_t cs = s->mask_cs;
        const char *m = (const char *)s->mask.data + (size_t)(mask_at + row * s->mask_rs + j0 * cs) * dt_dtype_size(s->mask.dtype);
        if (s->mask.dtype == DT_bool) {
            for (int64_t j = 0; j < cols; j++)
                if (!((const uint8_t *)m)[j * cs]) x[j] = -(T)INFINITY;
        } else {
            T line[ATT_WIDE];
            LOAD(s->mask.dtype, m, cs, cols, line);
            for (int64_t j = 0; j < cols; j++) x[j] += line[j] * (T)LOG2E;
        }
    }
    if (s->causal) /* key j0 + j is seen by rows from it on */
        for (int64_t j = s->d0 + row - j0 + 1 < 0 ? 0 : s->d0 + row - j0 + 1; j < cols; j++) x[j] = -(T)INFINITY;
    for (int64_t j = cols; j < wide; j++) x[j] = -(T)INFINITY;
}

/* One row of scores (wide of them, whole vectors) to weights; sum and output row follow. Weights are 2^(score - *max), where *max is a maximum that was
 * met before, not always the last: it follows when it has fallen behind by ATT_BEHIND, so that few blocks scale the output row again. */
static inline void OF(softmax_row)(T *x, int64_t wide, T *max, V *sum, T *o, int64_t ep) {
    V top = *(const V *)x;
    for (int64_t j = LANES; j < wide; j += LANES) top = MAX(top, *(const V *)(x + j));
    T m = HMAX(top);
    if (DT_UNLIKELY(m > *max + ATT_BEHIND)) {
        if (*max != -(T)INFINITY) {
            V shrink = OF(exp2_vec)((V){0} + (*max - m));
            *sum *= shrink;
            for (int64_t j = 0; j < ep; j += LANES) *(V *)(o + j) *= shrink;
        }
        *max = m;
    }
    V base = (V){0} + (*max == -(T)INFINITY ? 0 : *max), total = {0};
    for (int64_t j = 0; j < wide; j += LANES) {
        V p = OF(exp2_vec)(*(const V *)(x + j) - base);
        *(V *)(x + j) = p;
        total += p;
    }
    *sum += total;
}

static inline T *OF(lse_at)(const att *s, const att_at *b, int64_t row) { return (T *)s->lse.data + b->lse + row * s->lse.stride[s->lse.ndim - 1]; }

/* Dropout of weights (or of their gradients): what is not kept becomes 0, the rest grows. */
static void OF(drop_row)(const att *s, const att_at *b, int64_t row, int64_t j0, int64_t n, T *x) {
    uint8_t keep[ATT_WIDE];
    T grow = (T)(1 / (1 - s->dropout));
    drop_bits(s, b, row, j0, n, keep);
    for (int64_t j = 0; j < n; j++) x[j] = keep[j] ? x[j] * grow : 0;
}

/* Go on where an earlier step stopped: its output counts as one key of weight 2^lse. */
static void OF(resume_rows)(const att *s, const att_at *b, int64_t i0, int64_t rows, T *o, int64_t ep, T *max, V *sum) {
    int64_t E = s->E;
    for (int64_t i = 0; i < rows; i++) {
        T l = *OF(lse_at)(s, b, i0 + i);
        max[i] = l * (T)LOG2E;
        sum[i] = (V){0};
        *(T *)&sum[i] = l == -(T)INFINITY ? 0 : 1;
        if (s->acc)
            memcpy(o + i * ep, (T *)s->acc + (b->row + i0 + i) * E, (size_t)E * sizeof(T));
        else
            memcpy(o + i * ep, (T *)s->o.data + b->o + (i0 + i) * s->o.stride[s->o.ndim - 2], (size_t)E * sizeof(T));
        for (int64_t j = E; j < ep; j++) o[i * ep + j] = 0;
    }
}

/* Rows [i0, i0 + rows) of one head, at most ATT_ROWS. */
static void OF(forward_tile)(const att *s, const att_at *b, int64_t i0, int64_t rows) {
    int64_t D = s->D, E = s->E, ep = (E + LANES - 1) / LANES * LANES, bc = D <= 128 && E <= 128 ? ATT_WIDE : ATT_BC;
    T qs[rows * D] __attribute__((aligned(64))), o[rows * ep] __attribute__((aligned(64)));
    T kt[D * bc] __attribute__((aligned(64))), vp[bc * ep] __attribute__((aligned(64))), x[MICRO_MR * bc] __attribute__((aligned(64)));
    T max[rows];
    V sum[rows];
    OF(load_rows)(s, &s->q, b->q + i0 * s->q.stride[s->q.ndim - 2], rows, D, (T)(s->scale * LOG2E), qs, D);
    if (s->resume)
        OF(resume_rows)(s, b, i0, rows, o, ep, max, sum);
    else {
        memset(o, 0, sizeof o);
        for (int64_t i = 0; i < rows; i++) max[i] = -(T)INFINITY, sum[i] = (V){0};
    }
    bool in_place = s->v.dtype == NATIVE && ep == E && s->v.stride[s->v.ndim - 1] == 1 && s->v.stride[s->v.ndim - 2] == E; /* rows one after the other */
    int64_t end = s->causal ? s->d0 + i0 + rows : s->S;
    if (end > s->S) end = s->S;
    for (int64_t j0 = 0; j0 < end; j0 += bc) {
        int64_t nk = s->S - j0 < bc ? s->S - j0 : bc;
        OF(load_transposed)(&s->k, b->k + j0 * s->k.stride[s->k.ndim - 2], nk, D, kt, bc);
        int64_t v_at = b->v + j0 * s->v.stride[s->v.ndim - 2];
        const T *values = vp;
        if (in_place)
            values = (const T *)s->v.data + v_at;
        else
            OF(load_rows)(s, &s->v, v_at, nk, E, 1, vp, ep);
        int64_t first = s->causal ? j0 - s->d0 - i0 : 0; /* rows above see none of these keys */
        if (first < 0) first = 0;
        first -= first % MICRO_MR;
        for (int64_t i = first; i < rows; i += MICRO_MR) {
            int64_t m = rows - i < MICRO_MR ? rows - i : MICRO_MR, seen = nk;
            if (s->causal && s->d0 + i0 + i + m - j0 < nk) seen = s->d0 + i0 + i + m - j0; /* keys that any of these rows sees */
            int64_t wide = (seen + LANES - 1) / LANES * LANES;
            OF(micro_tile)(m, wide, D, qs + i * D, D, 1, kt, bc, x, bc, false);
            bool plain = !s->mask.data && nk == bc && (!s->causal || s->d0 + i0 + i - j0 + 1 >= bc);
            for (int64_t r = 0; r < m; r++) {
                if (!plain) OF(mask_row)(s, b->mask, i0 + i + r, j0, seen, wide, x + r * bc);
                OF(softmax_row)(x + r * bc, wide, &max[i + r], &sum[i + r], o + (i + r) * ep, ep);
                if (s->dropout > 0) OF(drop_row)(s, b, i0 + i + r, j0, seen, x + r * bc);
            }
            OF(micro_tile)(m, ep, seen, x, bc, 1, values, ep, o + i * ep, ep, true);
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        T l = OF(hsum)(sum[i]), inverse = l == 0 ? 0 : 1 / l; /* a row that sees nothing is 0 */
        for (int64_t j = 0; j < E; j++) o[i * ep + j] *= inverse;
        if (s->acc) memcpy((T *)s->acc + (b->row + i0 + i) * E, o + i * ep, (size_t)E * sizeof(T));
        if (!s->acc || s->last)
            STORE(s->o.dtype, o + i * ep, E, (char *)s->o.data + (size_t)(b->o + (i0 + i) * s->o.stride[s->o.ndim - 2]) * dt_dtype_size(s->o.dtype));
        *(T *)OF(lse_at)(s, b, i0 + i) = l == 0 ? -(T)INFINITY : (max[i] + (T)LOG2(l)) * (T)(1 / LOG2E);
    }
}

/* ---- backward ---- */
static inline T *OF(delta_at)(const att *s, const att_at *b, int64_t row) { return (T *)s->delta.data + b->delta + row * s->delta.stride[s->delta.ndim - 1]; }
/* delta[i] = gy_i . y_i for rows [i0, i0 + rows) of one head */
static void OF(delta_rows)(const att *s, const att_at *b, int64_t i0, int64_t rows) {
    int64_t E = s->E;
    T g[E], o[E];
    for (int64_t i = i0; i < i0 + rows; i++) {
        OF(load_rows)(s, &s->gy, b->gy + i * s->gy.stride[s->gy.ndim - 2], 1, E, 1, g, E);
        OF(load_rows)(s, &s->o, b->o + i * s->o.stride[s->o.ndim - 2], 1, E, 1, o, E);
        T sum = 0;
        for (int64_t j = 0; j < E; j++) sum += g[j] * o[j];
        *OF(delta_at)(s, b, i) = sum;
    }
}

/* One block of keys of one key head: the query rows of one query head. p, ds: weights and their gradients, ATT_BR x ATT_BC, of which the first
 * `seen` columns count (`wide` in whole vectors): no row of the tile sees the others. */
typedef struct OF(block) {
    const T *kt, *vt, *kp;
    T *dk, *dv, *qs, *gs, *p, *ds;
    int64_t j0, nk, dp, ep, seen, wide;
} OF(block);

static void OF(weights_row)(const att *s, const att_at *b, const OF(block) * w, int64_t row, T *p, T *ds) {
    T lse = *OF(lse_at)(s, b, row) * (T)LOG2E, delta = *OF(delta_at)(s, b, row);
    if (lse == -(T)INFINITY) lse = 0;
    bool plain = !s->mask.data && w->nk == ATT_BC && (!s->causal || s->d0 + row - w->j0 + 1 >= ATT_BC);
    if (!plain) OF(mask_row)(s, b->mask, row, w->j0, w->seen, w->wide, p);
    if (s->dropout > 0) OF(drop_row)(s, b, row, w->j0, w->seen, ds);
    for (int64_t j = 0; j < w->wide; j += LANES) {
        V e = OF(exp2_vec)(*(const V *)(p + j) - lse);
        *(V *)(p + j) = e;
        *(V *)(ds + j) = e * (*(const V *)(ds + j) - delta);
    }
    if (s->dropout > 0) OF(drop_row)(s, b, row, w->j0, w->seen, p);
}

static void OF(backward_rows)(const att *s, const att_at *b, OF(block) * w, int64_t i0, int64_t rows) {
    w->seen = w->nk;
    if (s->causal && s->d0 + i0 + rows - w->j0 < w->nk) w->seen = s->d0 + i0 + rows - w->j0;
    w->wide = (w->seen + LANES - 1) / LANES * LANES;
    OF(load_rows)(s, &s->q, b->q + i0 * s->q.stride[s->q.ndim - 2], rows, s->D, (T)(s->scale * LOG2E), w->qs, w->dp);
    OF(load_rows)(s, &s->gy, b->gy + i0 * s->gy.stride[s->gy.ndim - 2], rows, s->E, 1, w->gs, w->ep);
    OF(micro_tile)(rows, w->wide, s->D, w->qs, w->dp, 1, w->kt, ATT_BC, w->p, ATT_BC, false);
    OF(micro_tile)(rows, w->wide, s->E, w->gs, w->ep, 1, w->vt, ATT_BC, w->ds, ATT_BC, false);
    for (int64_t i = 0; i < rows; i++) OF(weights_row)(s, b, w, i0 + i, w->p + i * ATT_BC, w->ds + i * ATT_BC);
    OF(micro_tile)(w->seen, w->ep, rows, w->p, 1, ATT_BC, w->gs, w->ep, w->dv, w->ep, true);
    OF(micro_tile)(w->seen, w->dp, rows, w->ds, 1, ATT_BC, w->qs, w->dp, w->dk, w->dp, true);
    OF(micro_tile)(rows, w->dp, w->seen, w->ds, ATT_BC, 1, w->kp, w->dp, (T *)s->dq + (b->row + i0) * w->dp, w->dp, true);
}

/* A row of a key's gradients to its place: stored, or added to what an earlier step left there (then g is of type T). */
static void OF(store_key_row)(const att *s, const T *x, int64_t n, void *g, int64_t row) {
    T *to = (T *)g + row * n;
    if (s->add)
        for (int64_t d = 0; d < n; d++) to[d] += x[d];
    else
        STORE(s->key_dtype, x, n, (char *)g + (size_t)(row * n) * dt_dtype_size(s->key_dtype));
}

/* Everything of one key head: its query heads are those of rows b[0 … group). */
static void OF(backward_head)(const att *s, const att_at *b, int group, int64_t kv_row) {
    int64_t D = s->D, E = s->E, dp = (D + LANES - 1) / LANES * LANES, ep = (E + LANES - 1) / LANES * LANES;
    T kt[D * ATT_BC] __attribute__((aligned(64))), vt[E * ATT_BC] __attribute__((aligned(64))), kp[ATT_BC * dp] __attribute__((aligned(64)));
    T dk[ATT_BC * dp] __attribute__((aligned(64))), dv[ATT_BC * ep] __attribute__((aligned(64)));
    T qs[ATT_BR * dp] __attribute__((aligned(64))), gs[ATT_BR * ep] __attribute__((aligned(64)));
    T p[ATT_BR * ATT_BC] __attribute__((aligned(64))), ds[ATT_BR * ATT_BC] __attribute__((aligned(64)));
    OF(block) w = {kt, vt, kp, dk, dv, qs, gs, p, ds, 0, 0, dp, ep, 0, 0};
    for (w.j0 = 0; w.j0 < s->S; w.j0 += ATT_BC) {
        w.nk = s->S - w.j0 < ATT_BC ? s->S - w.j0 : ATT_BC;
        int64_t krs = s->k.stride[s->k.ndim - 2];
        OF(load_transposed)(&s->k, b->k + w.j0 * krs, w.nk, D, kt, ATT_BC);
        OF(load_transposed)(&s->v, b->v + w.j0 * s->v.stride[s->v.ndim - 2], w.nk, E, vt, ATT_BC);
        OF(load_rows)(s, &s->k, b->k + w.j0 * krs, w.nk, D, (T)s->scale, kp, dp);
        memset(dk, 0, sizeof dk);
        memset(dv, 0, sizeof dv);
        int64_t first = s->causal && w.j0 > s->d0 ? w.j0 - s->d0 : 0;
        for (int h = 0; h < group; h++)
            for (int64_t i = first, n; i < s->L; i += n) {
                n = s->causal && s->d0 + i < w.j0 + w.nk ? ATT_BR / 3 : ATT_BR; /* low tiles along the diagonal: they see fewer keys */
                if (n > s->L - i) n = s->L - i;
                OF(backward_rows)(s, &b[h], &w, i, n);
            }
        for (int64_t j = 0; j < w.nk; j++) {
            for (int64_t d = 0; d < D; d++) dk[j * dp + d] *= (T)(1 / LOG2E);
            OF(store_key_row)(s, dk + j * dp, D, s->gk, kv_row + w.j0 + j);
            OF(store_key_row)(s, dv + j * ep, E, s->gv, kv_row + w.j0 + j);
        }
    }
    for (int h = 0; s->last && h < group; h++)
        for (int64_t i = 0; i < s->L; i++)
            STORE(s->q.dtype, (T *)s->dq + (b[h].row + i) * dp, D,
                  (char *)s->gq.data + (size_t)(b[h].gq + i * s->gq.stride[s->gq.ndim - 2]) * dt_dtype_size(s->q.dtype));
}

#undef OF
#undef CAT2
#undef CAT2_
#undef LANES
#undef V
