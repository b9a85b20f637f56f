/* The template behind conv.c, for T = float (SUF _f32) and T = double (SUF _f64). */
#include "backend/cpu/isa/micro.h"

#define CAT2_(a, b) a##b
#define CAT2(a, b) CAT2_(a, b)
#define OF(name) CAT2(name, SUF)
#define NR OF(MICRO_NR)

typedef T OF(chunk) __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));

/* n elements of the source, stride apart, from element `at`. */
static inline void OF(copy)(const product *p, int64_t at, int64_t stride, int64_t n, T *dst) {
    if (p->dtype != NATIVE) {
        LOAD(p->dtype, (const char *)p->src + (size_t)at * dt_dtype_size(p->dtype), stride, n, dst);
        return;
    }
    const T *s = (const T *)p->src + at;
    int64_t t = 0;
    if (stride == 1) { /* runs are short: a call of memcpy would cost more */
        for (; t + (int64_t)(32 / sizeof(T)) <= n; t += 32 / sizeof(T)) *(OF(chunk) *)(dst + t) = *(const OF(chunk) *)(s + t);
        for (; t < n; t++) *(volatile T *)(dst + t) = s[t]; /* volatile: or the compiler makes a memcpy of it */
        return;
    }
    for (; t < n; t++) dst[t] = s[t * stride];
}

/* The same for sources that must be converted, one row after the other. */
static void OF(pack_converted)(const product *p, int64_t group, int64_t k0, int64_t kc, const run *runs, int n_runs, int64_t cols, int64_t wide, T *dst,
                               int64_t ld) {
    int64_t t[3], c = k0 / p->taps, rest = k0 % p->taps, plane = p->in[0] * p->in[1] * p->in[2];
    t[2] = rest % p->nt[2];
    t[1] = rest / p->nt[2] % p->nt[1];
    t[0] = rest / p->nt[2] / p->nt[1];
    for (int64_t k = 0; k < kc; k++) {
        T *row = dst + k * ld;
        int64_t o0 = p->off[0] + t[0] * p->step[0], o1 = p->off[1] + t[1] * p->step[1], o2 = p->off[2] + t[2] * p->step[2];
        for (int r = 0; r < n_runs; r++) {
            const run *u = &runs[r];
            T *d = row + u->at;
            int64_t i0 = u->i[0] + o0, i1 = u->i[1] + o1, i2 = u->i[2] + o2, m = p->mult[2];
            if (i0 < 0 || i0 >= p->in[0] || i1 < 0 || i1 >= p->in[1]) {
                for (int64_t j = 0; j < u->len; j++) d[j] = 0;
                continue;
            }
            int64_t lo = i2 < 0 ? (-i2 + m - 1) / m : 0, hi = i2 + (u->len - 1) * m < p->in[2] ? u->len : i2 >= p->in[2] ? 0 : (p->in[2] - i2 + m - 1) / m;
            if (lo > u->len) lo = u->len;
            if (hi < lo) hi = lo;
            for (int64_t j = 0; j < lo; j++) d[j] = 0;
            OF(copy)(p, (u->n * p->src_channels + group * p->kc + c) * plane + (i0 * p->in[1] + i1) * p->in[2] + i2 + lo * m, m, hi - lo, d + lo);
            for (int64_t j = hi; j < u->len; j++) d[j] = 0;
        }
        for (int64_t j = cols; j < wide; j++) row[j] = 0;
        if (++t[2] == p->nt[2]) {
            t[2] = 0;
            if (++t[1] == p->nt[1]) {
                t[1] = 0;
                if (++t[0] == p->nt[0]) t[0] = 0, c++;
            }
        }
    }
}

/* A few columns of a run, for nc channels: one load (two, and a shuffle, when the source steps by 2), a mask and a store each. Columns outside
 * [lo, hi) lie in the padding: what is loaded for them is another element of the tensor, and masked away. */
#define PIECE(name, bytes)                                                                                                                                  \
    typedef T OF(name##_vec) __attribute__((vector_size(bytes)));                                                                                           \
    typedef T OF(name##_any) __attribute__((vector_size(bytes), aligned(sizeof(T)), may_alias));                                                            \
    typedef MASK OF(name##_mask) __attribute__((vector_size(bytes)));                                                                                       \
    static inline __attribute__((always_inline)) void OF(name)(const T *s, int64_t plane, int64_t nc, bool two, int64_t lo, int64_t hi, T *d, int64_t ld) { \
        enum { L = bytes / sizeof(T) };                                                                                                                     \
        OF(name##_mask) mask = {0}, even = {0};                                                                                                             \
        for (int l = 0; l < L; l++) mask[l] = l >= lo && l < hi ? -1 : 0, even[l] = 2 * l;                                                                  \
        if (two)                                                                                                                                            \
            for (int64_t c = 0; c < nc; c++) {                                                                                                              \
                OF(name##_vec) a = *(const OF(name##_any) *)(s + c * plane), b = *(const OF(name##_any) *)(s + c * plane + L - 1);                          \
                *(OF(name##_any) *)(d + c * ld) = (OF(name##_vec))((OF(name##_mask))DT_SHUFFLE(a, b, even - (even >= L)) & mask);                           \
            }                                                                                                                                               \
        else                                                                                                                                                \
            for (int64_t c = 0; c < nc; c++)                                                                                                                \
                *(OF(name##_any) *)(d + c * ld) = (OF(name##_vec))((OF(name##_mask)) * (const OF(name##_any) *)(s + c * plane) & mask);                     \
    }
PIECE(piece64, 64)
PIECE(piece32, 32)
PIECE(piece16, 16)
#undef PIECE

/* Columns [0, len) of one run at one tap, for nc channels; `at`: the source of column 0 and the first channel, perhaps outside of the tensor.
 * `room` columns may be written: what is written beyond len belongs to runs that follow, or to nobody. */
static void OF(pack_run)(const product *p, int64_t at, int64_t plane, int64_t nc, const int64_t *inside, int64_t len, int64_t room, T *d, int64_t ld) {
    enum { L64 = 64 / sizeof(T), L32 = 32 / sizeof(T), L16 = 16 / sizeof(T) };
    const T *src = p->src;
    int64_t m = p->mult[2], last = (nc - 1) * plane;
    for (int64_t j = 0, n; j < len; j += n) {
        int64_t s = at + j * m, lo = inside[0] - j, hi = inside[1] - j;
        n = len - j > L32 && j + L64 <= room ? L64 : len - j > L16 && j + L32 <= room ? L32 : j + L16 <= room ? L16 : 1;
        if (n == 1 || m > 2 || s < 0 || s + last + n * m > p->src_total) { /* the last: no more than is read, so that no load leaves the tensor */
            if (n > len - j) n = len - j;
            for (int64_t c = 0; c < nc; c++)
                for (int64_t l = 0; l < n; l++) d[c * ld + j + l] = l >= lo && l < hi ? src[s + c * plane + l * m] : 0;
        } else if (n == L64)
            OF(piece64)(src + s, plane, nc, m == 2, lo, hi, d + j, ld);
        else if (n == L32)
            OF(piece32)(src + s, plane, nc, m == 2, lo, hi, d + j, ld);
        else
            OF(piece16)(src + s, plane, nc, m == 2, lo, hi, d + j, ld);
    }
}

/* Rows [k0, k0 + kc) of the patch matrix at the columns of the runs: dst[row * ld + column]; columns up to `wide` are zeroed. Tap by tap and run by
 * run, so that what lies in the padding is worked out once for all channels. */
static void OF(pack)(const product *p, int64_t group, int64_t k0, int64_t kc, const run *runs, int n_runs, int64_t cols, int64_t wide, T *dst, int64_t ld) {
    if (p->dtype != NATIVE) {
        OF(pack_converted)(p, group, k0, kc, runs, n_runs, cols, wide, dst, ld);
        return;
    }
    int64_t plane = p->in[0] * p->in[1] * p->in[2], m = p->mult[2], skip = k0 % p->taps;
    int64_t step = PACK_CHANNELS * p->taps;
    if (plane * (int64_t)sizeof(T) >= FAR && kc > step) { /* channels so far apart fall into one set of the first cache level: few at a time */
        for (int64_t k = 0; k < kc; k += step) OF(pack)(p, group, k0 + k, kc - k < step ? kc - k : step, runs, n_runs, cols, wide, dst + k * ld, ld);
        return;
    }
    for (int64_t t = 0; t < p->taps; t++) {
        int64_t first = t >= skip ? t - skip : t - skip + p->taps, c = (k0 + first) / p->taps, nc = (kc - first + p->taps - 1) / p->taps;
        if (first >= kc) continue;
        int64_t o0 = p->off[0] + t / p->nt[2] / p->nt[1] * p->step[0], o1 = p->off[1] + t / p->nt[2] % p->nt[1] * p->step[1],
                o2 = p->off[2] + t % p->nt[2] * p->step[2];
        for (int r = 0; r < n_runs; r++) {
            const run *u = &runs[r];
            int64_t i0 = u->i[0] + o0, i1 = u->i[1] + o1, i2 = u->i[2] + o2, inside[2] = {0, 0}, at = 0;
            if (i0 >= 0 && i0 < p->in[0] && i1 >= 0 && i1 < p->in[1]) {
                valid(i2, m, p->in[2], u->len, &inside[0], &inside[1]);
                at = (u->n * p->src_channels + group * p->kc + c) * plane + (i0 * p->in[1] + i1) * p->in[2] + i2;
            }
            OF(pack_run)(p, at, plane, nc, inside, u->len, ld - u->at, dst + first * ld + u->at, p->taps * ld);
        }
    }
    for (int64_t k = 0; k < kc; k++)
        for (int64_t j = cols; j < wide; j++) dst[k * ld + j] = 0;
}

/* Weights of rows [m0, m0 + m) and reduction indices [k0, k0 + kc): dst[k * MB + row]. */
static void OF(pack_weights)(const product *p, int64_t group, int64_t m0, int64_t m, int64_t k0, int64_t kc, T *dst) {
    for (int64_t k = 0; k < kc; k++) {
        int64_t c = (k0 + k) / p->taps, rest = (k0 + k) % p->taps;
        int64_t t2 = rest % p->nt[2], t1 = rest / p->nt[2] % p->nt[1], t0 = rest / p->nt[2] / p->nt[1];
        int64_t tap = ((p->w0[0] + t0 * p->ws[0]) * p->k[1] + p->w0[1] + t1 * p->ws[1]) * p->k[2] + p->w0[2] + t2 * p->ws[2];
        int64_t at = group * p->w_group + c * p->w_c + m0 * p->w_m + tap;
        if (p->dtype == NATIVE)
            for (int64_t i = 0; i < m; i++) dst[k * MB + i] = ((const T *)p->w)[at + i * p->w_m];
        else
            LOAD(p->dtype, (const char *)p->w + (size_t)at * dt_dtype_size(p->dtype), p->w_m, m, dst + k * MB);
    }
}

/* The weights of a phase of conv_input, channels and taps exchanged: row (input channel), columns (output channel, tap). */
static void OF(arrange_task)(void *arg, int64_t i) {
    const arrange *s = arg;
    const product *p = &s->p;
    int64_t blocks = (p->M + ARRANGE_ROWS - 1) / ARRANGE_ROWS, group = i / blocks, m0 = i % blocks * ARRANGE_ROWS, K = p->kc * p->taps;
    int64_t m1 = p->M - m0 < ARRANGE_ROWS ? p->M : m0 + ARRANGE_ROWS;
    for (int64_t c = 0; c < p->kc; c++)
        for (int64_t m = m0; m < m1; m++) {
            T *to = (T *)s->to + (group * p->M + m) * K + c * p->taps;
            int64_t from = group * p->w_group + c * p->w_c + m * p->w_m + p->w0[2];
            for (int64_t t0 = 0; t0 < p->nt[0]; t0++)
                for (int64_t t1 = 0; t1 < p->nt[1]; t1++, to += p->nt[2]) {
                    int64_t at = from + ((p->w0[0] + t0 * p->ws[0]) * p->k[1] + p->w0[1] + t1 * p->ws[1]) * p->k[2];
                    if (p->dtype == NATIVE)
                        for (int64_t t2 = 0; t2 < p->nt[2]; t2++) to[t2] = ((const T *)p->w)[at + t2 * p->ws[2]];
                    else
                        LOAD(p->dtype, (const char *)p->w + (size_t)at * dt_dtype_size(p->dtype), p->ws[2], p->nt[2], to);
                }
        }
}

/* A finished tile, rows x columns of the runs, to the destination. */
static void OF(unpack)(const product *p, int64_t group, int64_t m0, int64_t m, const run *runs, int n_runs, const T *c, int64_t ld) {
    int64_t plane = p->dst_size[0] * p->dst_size[1] * p->dst_size[2];
    size_t size = dt_dtype_size(p->dtype);
    for (int64_t i = 0; i < m; i++) {
        int64_t channel = group * p->M + m0 + i;
        T bias = 0, line[DT_CONV_COLS];
        if (p->bias) LOAD(p->dtype, (const char *)p->bias + (size_t)channel * size, 1, 1, &bias);
        for (int r = 0; r < n_runs; r++) {
            const run *u = &runs[r];
            for (int64_t j = 0; j < u->len; j++) line[j] = c[i * ld + u->at + j] + bias;
            int64_t at = (u->n * p->dst_channels + channel) * plane;
            at += ((p->dst0[0] + u->j[0] * p->dst_step[0]) * p->dst_size[1] + p->dst0[1] + u->j[1] * p->dst_step[1]) * p->dst_size[2];
            at += p->dst0[2] + u->j[2] * p->dst_step[2];
            if (p->dst_step[2] == 1) {
                STORE(p->dtype, line, u->len, (char *)p->dst + (size_t)at * size);
                continue;
            }
            if (p->dtype == NATIVE) {
                for (int64_t j = 0; j < u->len; j++) ((T *)p->dst)[at + j * p->dst_step[2]] = line[j];
                continue;
            }
            for (int64_t j = 0; j < u->len; j++) STORE(p->dtype, line + j, 1, (char *)p->dst + (size_t)(at + j * p->dst_step[2]) * size);
        }
    }
}

static void OF(product_task)(void *arg, int64_t i) {
    const product *p = arg;
    T bp[DT_CONV_K * DT_CONV_COLS] __attribute__((aligned(64))), ct[DT_CONV_ROWS * DT_CONV_COLS] __attribute__((aligned(64)));
    T ap[MB * DT_CONV_K] __attribute__((aligned(64)));
    run runs[DT_CONV_COLS];
    int64_t cb = i % p->col_blocks, rb = i / p->col_blocks % p->row_blocks, group = i / p->col_blocks / p->row_blocks;
    int64_t col0 = cb * p->cols_a_task, cols = p->cols - col0 < p->cols_a_task ? p->cols - col0 : p->cols_a_task;
    int64_t row0 = rb * DT_CONV_ROWS, rows = p->M - row0 < DT_CONV_ROWS ? p->M - row0 : DT_CONV_ROWS, K = p->kc * p->taps;
    if (K == 0) memset(ct, 0, sizeof ct);
    for (int64_t k0 = 0; k0 < K; k0 += DT_CONV_K) {
        int64_t kc = K - k0 < DT_CONV_K ? K - k0 : DT_CONV_K;
        for (int64_t j = 0; j < cols; j += NR) {
            int64_t nc = cols - j < NR ? cols - j : NR;
            int n = runs_of(p, col0 + j, nc, runs);
            OF(pack)(p, group, k0, kc, runs, n, nc, NR, bp + j * DT_CONV_K, NR);
        }
        for (int64_t m0 = 0; m0 < rows; m0 += MB) {
            int64_t m = rows - m0 < MB ? rows - m0 : MB;
            bool direct = p->arranged || (p->dtype == NATIVE && p->rows_contiguous);
            const T *a = direct ? (const T *)p->w + group * p->w_group + (row0 + m0) * p->w_m + k0 : ap;
            int64_t ars = direct ? p->w_m : 1, acs = direct ? 1 : MB;
            if (!direct) OF(pack_weights)(p, group, row0 + m0, m, k0, kc, ap);
            for (int64_t j = 0; j < cols; j += NR) OF(micro_panel)
            (m, cols - j < NR ? (cols - j + OF(MICRO_LANES) - 1) / OF(MICRO_LANES) * OF(MICRO_LANES) : NR, kc, a, ars, acs, bp + j * DT_CONV_K, NR,
             ct + m0 * DT_CONV_COLS + j, DT_CONV_COLS, k0 > 0);
        }
    }
    int n = runs_of(p, col0, cols, runs);
    OF(unpack)(p, group, row0, rows, runs, n, ct, DT_CONV_COLS);
}

/* ---- the gradient of the weight: (taps x pixels) . (pixels x output channels) ---- */
typedef T OF(quad) __attribute__((vector_size(4 * sizeof(T))));
typedef T OF(quad_any) __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));
typedef MASK OF(quad_index) __attribute__((vector_size(4 * sizeof(T))));

/* dst[k * NR + j] = src[j * plane + k] for 4 channels j and len pixels k. */
static void OF(transpose4)(const T *src, int64_t plane, int64_t len, T *dst) {
    const OF(quad_index) low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5}, second = {2, 3, 6, 7};
    int64_t k = 0;
    for (; k + 4 <= len; k += 4) {
        OF(quad)
        a = *(const OF(quad_any) *)(src + k), b = *(const OF(quad_any) *)(src + plane + k), c = *(const OF(quad_any) *)(src + 2 * plane + k),
        d = *(const OF(quad_any) *)(src + 3 * plane + k);
        OF(quad) ab = DT_SHUFFLE(a, b, low), cd = DT_SHUFFLE(c, d, low), ab2 = DT_SHUFFLE(a, b, high), cd2 = DT_SHUFFLE(c, d, high);
        *(OF(quad_any) *)(dst + k * NR) = DT_SHUFFLE(ab, cd, first);
        *(OF(quad_any) *)(dst + (k + 1) * NR) = DT_SHUFFLE(ab, cd, second);
        *(OF(quad_any) *)(dst + (k + 2) * NR) = DT_SHUFFLE(ab2, cd2, first);
        *(OF(quad_any) *)(dst + (k + 3) * NR) = DT_SHUFFLE(ab2, cd2, second);
    }
    for (; k < len; k++)
        for (int j = 0; j < 4; j++) dst[k * NR + j] = src[j * plane + k];
}

static void OF(pack_channels)(const weight_sum *s, int64_t group, int64_t o0, int64_t no, int64_t p0, int64_t kc, T *dst) {
    int64_t plane = s->plane;
    T line[DT_CONV_K];
    int64_t quads = s->p.dtype == NATIVE ? no / 4 * 4 : 0;
    for (int64_t j = 0; j < quads; j += 4)
        for (int64_t k = 0, len; k < kc; k += len) {
            int64_t n = (p0 + k) / plane, at = (p0 + k) % plane;
            len = plane - at < kc - k ? plane - at : kc - k;
            OF(transpose4)((const T *)s->y + (n * s->O + group * s->Og + o0 + j) * plane + at, plane, len, dst + k * NR + j);
        }
    for (int64_t j = quads; j < NR; j++) {
        if (j >= no) {
            for (int64_t k = 0; k < kc; k++) dst[k * NR + j] = 0;
            continue;
        }
        for (int64_t k = 0; k < kc;) {
            int64_t n = (p0 + k) / plane, at = (p0 + k) % plane, len = plane - at < kc - k ? plane - at : kc - k;
            int64_t from = (n * s->O + group * s->Og + o0 + j) * plane + at;
            const T *run = line;
            if (s->p.dtype == NATIVE)
                run = (const T *)s->y + from;
            else
                LOAD(s->p.dtype, (const char *)s->y + (size_t)from * dt_dtype_size(s->p.dtype), 1, len, line);
            for (int64_t t = 0; t < len; t++) dst[(k + t) * NR + j] = run[t];
            k += len;
        }
    }
}

static void OF(weight_task)(void *arg, int64_t i) {
    const weight_sum *s = arg;
    T bp[DT_CONV_K * DT_CONV_COLS] __attribute__((aligned(64))), ct[DT_CONV_ROWS * DT_CONV_COLS] __attribute__((aligned(64)));
    T ap[MB * DT_CONV_K] __attribute__((aligned(64)));
    run runs[DT_CONV_K];
    int64_t chunk = i % s->chunks, ob = i / s->chunks % s->col_blocks, rb = i / s->chunks / s->col_blocks % s->row_blocks,
            group = i / s->chunks / s->col_blocks / s->row_blocks;
    int64_t o0 = ob * DT_CONV_COLS, cols = s->Og - o0 < DT_CONV_COLS ? s->Og - o0 : DT_CONV_COLS, taps = s->p.kc * s->p.taps;
    int64_t row0 = rb * DT_CONV_ROWS, rows = taps - row0 < DT_CONV_ROWS ? taps - row0 : DT_CONV_ROWS;
    int64_t blocks = (s->p.cols + DT_CONV_K - 1) / DT_CONV_K, first = blocks * chunk / s->chunks, last = blocks * (chunk + 1) / s->chunks;
    if (first == last) memset(ct, 0, sizeof ct);
    for (int64_t b = first; b < last; b++) {
        int64_t p0 = b * DT_CONV_K, kc = s->p.cols - p0 < DT_CONV_K ? s->p.cols - p0 : DT_CONV_K;
        for (int64_t j = 0; j < cols; j += NR) OF(pack_channels)(s, group, o0 + j, cols - j < NR ? cols - j : NR, p0, kc, bp + j * DT_CONV_K);
        int n = runs_of(&s->p, p0, kc, runs);
        for (int64_t m0 = 0; m0 < rows; m0 += MB) {
            int64_t m = rows - m0 < MB ? rows - m0 : MB;
            OF(pack)(&s->p, group, row0 + m0, m, runs, n, kc, kc, ap, DT_CONV_K);
            for (int64_t j = 0; j < cols; j += NR) OF(micro_panel)
            (m, cols - j < NR ? (cols - j + OF(MICRO_LANES) - 1) / OF(MICRO_LANES) * OF(MICRO_LANES) : NR, kc, ap, DT_CONV_K, 1, bp + j * DT_CONV_K, NR,
             ct + m0 * DT_CONV_COLS + j, DT_CONV_COLS, b > first);
        }
    }
    T *to = (T *)s->partial + chunk * s->O * taps;
    for (int64_t j = 0; j < cols; j++)
        for (int64_t m = 0; m < rows; m++) to[(group * s->Og + o0 + j) * taps + row0 + m] = ct[m * DT_CONV_COLS + j];
}

/* Chunks are added in their order; then the result is rounded. */
static void OF(weight_total)(void *arg, int64_t i) {
    const weight_sum *s = arg;
    int64_t total = s->O * s->p.kc * s->p.taps, at = i * SUM_BLOCK, n = total - at < SUM_BLOCK ? total - at : SUM_BLOCK;
    T line[SUM_BLOCK];
    const T *from = (const T *)s->partial + at;
    memcpy(line, from, sizeof(T) * (size_t)n);
    for (int64_t c = 1; c < s->chunks; c++)
        for (int64_t j = 0; j < n; j++) line[j] += from[c * total + j];
    STORE(s->p.dtype, line, n, (char *)s->p.dst + (size_t)at * dt_dtype_size(s->p.dtype));
}

/* ---- depthwise: one channel to one channel; rows of pixels at a time ---- */
static void OF(depth_forward)(void *arg, int64_t i) {
    const depth *s = arg;
    const dt_conv_geom *g = s->g;
    int64_t c = i % g->C, W = g->in[2], OW = g->out[2], m = g->stride[2];
    size_t size = dt_dtype_size(s->dtype);
    T wt[DEPTH_TAPS], x[DEPTH_WIDTH], y[DEPTH_WIDTH], bias = 0;
    LOAD(s->dtype, (const char *)s->w + (size_t)(c * s->taps) * size, 1, s->taps, wt);
    if (s->bias) LOAD(s->dtype, (const char *)s->bias + (size_t)c * size, 1, 1, &bias);
    for (int64_t o = 0; o < g->out[0] * g->out[1]; o++) {
        for (int64_t j = 0; j < OW; j++) y[j] = bias;
        for (int64_t t = 0; t < g->k[0] * g->k[1]; t++) {
            int64_t i0 = o / g->out[1] * g->stride[0] - g->pad[0] + t / g->k[1] * g->dil[0],
                    i1 = o % g->out[1] * g->stride[1] - g->pad[1] + t % g->k[1] * g->dil[1];
            if (i0 < 0 || i0 >= g->in[0] || i1 < 0 || i1 >= g->in[1]) continue;
            const T *row = x;
            int64_t from = (i * g->in[0] + i0) * g->in[1] * W + i1 * W;
            if (s->dtype == NATIVE)
                row = (const T *)s->x + from;
            else
                LOAD(s->dtype, (const char *)s->x + (size_t)from * size, 1, W, x);
            for (int64_t k = 0; k < g->k[2]; k++) {
                int64_t at = k * g->dil[2] - g->pad[2], lo, hi;
                T f = wt[t * g->k[2] + k];
                valid(at, m, W, OW, &lo, &hi);
                if (m == 1)
                    for (int64_t j = lo; j < hi; j++) y[j] += f * row[j + at];
                else
                    for (int64_t j = lo; j < hi; j++) y[j] += f * row[j * m + at];
            }
        }
        STORE(s->dtype, y, OW, (char *)s->y + (size_t)((i * g->out[0] * g->out[1] + o) * OW) * size);
    }
}

static void OF(depth_input)(void *arg, int64_t i) {
    const depth *s = arg;
    const dt_conv_geom *g = s->g;
    int64_t c = i % g->C, W = g->in[2], OW = g->out[2], m = g->stride[2];
    size_t size = dt_dtype_size(s->dtype);
    T wt[DEPTH_TAPS], x[DEPTH_WIDTH], y[DEPTH_WIDTH];
    LOAD(s->dtype, (const char *)s->w + (size_t)(c * s->taps) * size, 1, s->taps, wt);
    for (int64_t r = 0; r < g->in[0] * g->in[1]; r++) {
        for (int64_t j = 0; j < W; j++) x[j] = 0;
        for (int64_t t = 0; t < g->k[0] * g->k[1]; t++) {
            int64_t a0 = r / g->in[1] + g->pad[0] - t / g->k[1] * g->dil[0], a1 = r % g->in[1] + g->pad[1] - t % g->k[1] * g->dil[1];
            if (a0 < 0 || a1 < 0 || a0 % g->stride[0] || a1 % g->stride[1]) continue;
            int64_t o0 = a0 / g->stride[0], o1 = a1 / g->stride[1];
            if (o0 >= g->out[0] || o1 >= g->out[1]) continue;
            LOAD(s->dtype, (const char *)s->y + (size_t)(((i * g->out[0] + o0) * g->out[1] + o1) * OW) * size, 1, OW, y);
            for (int64_t k = 0; k < g->k[2]; k++) {
                int64_t at = k * g->dil[2] - g->pad[2], lo, hi;
                T f = wt[t * g->k[2] + k];
                valid(at, m, W, OW, &lo, &hi);
                if (m == 1)
                    for (int64_t j = lo; j < hi; j++) x[j + at] += f * y[j];
                else
                    for (int64_t j = lo; j < hi; j++) x[j * m + at] += f * y[j];
            }
        }
        STORE(s->dtype, x, W, (char *)s->x + (size_t)((i * g->in[0] * g->in[1] + r) * W) * size);
    }
}

static void OF(depth_weight)(void *arg, int64_t c) {
    const depth *s = arg;
    const dt_conv_geom *g = s->g;
    int64_t W = g->in[2], OW = g->out[2], m = g->stride[2];
    size_t size = dt_dtype_size(s->dtype);
    T wt[DEPTH_TAPS] = {0}, x[DEPTH_WIDTH], y[DEPTH_WIDTH];
    for (int64_t n = 0; n < g->N; n++)
        for (int64_t o = 0; o < g->out[0] * g->out[1]; o++) {
            int64_t i = n * g->C + c;
            LOAD(s->dtype, (const char *)s->y + (size_t)((i * g->out[0] * g->out[1] + o) * OW) * size, 1, OW, y);
            for (int64_t t = 0; t < g->k[0] * g->k[1]; t++) {
                int64_t i0 = o / g->out[1] * g->stride[0] - g->pad[0] + t / g->k[1] * g->dil[0],
                        i1 = o % g->out[1] * g->stride[1] - g->pad[1] + t % g->k[1] * g->dil[1];
                if (i0 < 0 || i0 >= g->in[0] || i1 < 0 || i1 >= g->in[1]) continue;
                LOAD(s->dtype, (const char *)s->x + (size_t)((i * g->in[0] + i0) * g->in[1] * W + i1 * W) * size, 1, W, x);
                for (int64_t k = 0; k < g->k[2]; k++) {
                    int64_t at = k * g->dil[2] - g->pad[2], lo, hi;
                    valid(at, m, W, OW, &lo, &hi);
                    T lane[16] = {0}, sum = 0;
                    int64_t j = lo;
                    for (; j + 16 <= hi; j += 16)
                        for (int l = 0; l < 16; l++) lane[l] += y[j + l] * x[(j + l) * m + at];
                    for (; j < hi; j++) sum += y[j] * x[j * m + at];
                    for (int l = 0; l < 16; l++) sum += lane[l];
                    wt[t * g->k[2] + k] += sum;
                }
            }
        }
    STORE(s->dtype, wt, s->taps, (char *)s->w_out + (size_t)(c * s->taps) * size);
}

#undef OF
#undef CAT2
#undef CAT2_
#undef NR
