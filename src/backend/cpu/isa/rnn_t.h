/* rnn.c for one type: T, SUF, SIGMOID and TANH are defined by it. No include guard.
 *
 * r0, r1: sequences of the batch; u0, nu: the first unit (or output column) of a tile and how many there are; row: of the data. Tiles are computed
 * whole, with zeros where units are missing: loops over them have constant lengths. */
#include "backend/cpu/isa/micro.h"

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define F(name) CAT(name, SUF)

enum { F(RNN_KC) = 256 };

/* C[m][n] (+)= A[m][k] B[k][n]; B's and C's rows lie n apart. Rows are cut evenly: a last block of few rows would wait for B. */
static void F(multiply)(int64_t m, int64_t n, int64_t k, const T *a, const T *b, T *c, bool add) {
    int64_t blocks = (m + MICRO_MR - 1) / MICRO_MR;
    for (int64_t p = 0; p < k; p += F(RNN_KC))
        for (int64_t i = 0; i < blocks; i++) {
            int64_t lo = m * i / blocks, hi = m * (i + 1) / blocks;
            F(micro_tile)(hi - lo, n, smaller(k - p, F(RNN_KC)), a + lo * k + p, k, 1, b + p * n, n, c + lo * n, n, add || p > 0);
        }
}

/* n of the `of` units of a tile, the rest zeros; and back. */
static inline __attribute__((always_inline)) void F(get)(T *restrict to, const T *restrict from, int64_t n, int of) {
    if (n == of)
        memcpy(to, from, sizeof(T) * (size_t)of);
    else
        for (int u = 0; u < of; u++) to[u] = u < n ? from[u] : 0;
}
static inline __attribute__((always_inline)) void F(put)(T *restrict to, const T *restrict from, int64_t n, int of) {
    if (n == of)
        memcpy(to, from, sizeof(T) * (size_t)of);
    else
        for (int64_t u = 0; u < n; u++) to[u] = from[u];
}

/* ---- packing ---- */
/* Rows [j * units …) of all gates of w (G * n, k), turned: to[p][g * units + u]. */
static void F(pack_turned)(const T *w, int64_t G, int64_t n, int64_t k, int64_t units, int64_t j, T *to) {
    int64_t u0 = j * units, nu = smaller(units, n - u0), cols = G * units;
    for (int64_t p0 = 0; p0 < k; p0 += 16) {
        int64_t kc = smaller(k - p0, 16);
        for (int64_t c = 0; c < cols; c++) {
            const T *from = w + ((c / units) * n + u0 + c % units) * k + p0;
            T *at = to + p0 * cols + c;
            if (c % units >= nu)
                for (int64_t p = 0; p < kc; p++) at[p * cols] = 0;
            else if (kc == 16)
                for (int p = 0; p < 16; p++) at[p * cols] = from[p];
            else
                for (int64_t p = 0; p < kc; p++) at[p * cols] = from[p];
        }
    }
}

/* Columns [j * DT_RNN_OUT …) of w (k, n). */
static void F(pack_columns)(const T *w, int64_t n, int64_t k, int64_t j, T *to) {
    int64_t u0 = j * DT_RNN_OUT, nu = smaller(DT_RNN_OUT, n - u0);
    for (int64_t p = 0; p < k; p++, to += DT_RNN_OUT) {
        F(put)(to, w + p * n + u0, nu, DT_RNN_OUT);
        for (int64_t u = nu; u < DT_RNN_OUT; u++) to[u] = 0;
    }
}

static void F(pack_units)(rnn *s, int64_t i) {
    const dt_rnn_dims *d = &s->d;
    if (i < s->pack_w)
        F(pack_turned)(s->w, d->G, d->H, d->P, s->units, i, (T *)s->pack + i * s->cols * d->P);
    else
        F(pack_turned)(s->wr, 1, d->P, d->H, DT_RNN_OUT, i - s->pack_w, (T *)s->pack_r + (i - s->pack_w) * DT_RNN_OUT * d->H);
}

static void F(pack_outputs)(rnn *s, int64_t i) {
    const dt_rnn_dims *d = &s->d;
    if (i < s->pack_w)
        F(pack_columns)(s->w, d->P, d->G * d->H, i, (T *)s->pack + i * DT_RNN_OUT * d->G * d->H);
    else
        F(pack_columns)(s->wr, d->H, d->P, i - s->pack_w, (T *)s->pack_r + (i - s->pack_w) * DT_RNN_OUT * d->P);
}

/* ---- forward ---- */
/* The input's share and the bias; of a GRU's third gate the bias alone, for its two shares do not simply add up. */
static inline __attribute__((always_inline)) void F(load_some)(const rnn *s, int64_t t, int64_t r0, int64_t r1, int64_t u0, int64_t nu, T *c, int units) {
    int64_t H = s->d.H, GH = s->d.G * H;
    const T *x = (const T *)s->x + s->off[t] * GH, *b = s->b, *direct = s->d.direct ? s->product : NULL;
    for (int64_t i = r0; i < r1; i++, c += s->cols)
        for (int64_t g = 0; g < s->d.G; g++) {
            const T *xi = x + i * GH + g * H + u0;
            T *ci = c + g * units;
            if (s->d.mode == DT_RNN_GRU && g == 2)
                for (int u = 0; u < units; u++) ci[u] = 0;
            else
                F(get)(ci, xi, nu, units);
            for (int64_t u = 0; b && u < nu; u++) ci[u] += b[g * H + u0 + u];
            for (int64_t u = 0; direct && u < nu; u++) ci[u] += direct[i * GH + g * H + u0 + u];
        }
}

static void F(load_gates)(const rnn *s, int64_t t, int64_t r0, int64_t r1, int64_t u0, int64_t nu, T *c) {
    if (s->units == DT_RNN_UNITS)
        F(load_some)(s, t, r0, r1, u0, nu, c, DT_RNN_UNITS);
    else
        F(load_some)(s, t, r0, r1, u0, nu, c, 64);
}

/* c += the state before step t, times tile j. */
static void F(recur)(const rnn *s, int64_t t, int64_t r0, int64_t r1, int64_t j, T *c) {
    int64_t P = s->d.P, was = before_of(s, t), old = is_step(s, was) ? smaller(r1, rows_of(s, was)) : 0;
    const T *tile = (const T *)s->pack + j * s->cols * P;
    if (old > r0) F(multiply)(old - r0, s->cols, P, (const T *)s->y + (s->off[was] + r0) * P, tile, c, true);
    if (old < r0) old = r0;
    if (old < r1) F(multiply)(r1 - old, s->cols, P, (const T *)s->h0 + old * P, tile, c + (old - r0) * s->cols, true);
}

/* One sequence's h of a tile: to the output and the running state, or to what a projection takes. */
static inline __attribute__((always_inline)) void F(give)(const rnn *s, int64_t t, int64_t i, int64_t u0, int64_t nu, const T *h, int of) {
    if (s->d.projected) {
        F(put)((T *)s->inner + i * s->d.H + u0, h, nu, of);
        return;
    }
    F(put)((T *)s->y + (s->off[t] + i) * s->d.H + u0, h, nu, of);
    F(put)((T *)s->hn + i * s->d.H + u0, h, nu, of);
}

static void F(lstm_gates)(const rnn *s, int64_t t, int64_t r0, int64_t r1, int64_t u0, int64_t nu, T *x) {
    enum { U = DT_RNN_UNITS };
    int64_t H = s->d.H;
    for (int64_t i = r0; i < r1; i++, x += 4 * U) {
        T *state = (T *)s->cn + i * H + u0, c[U], h[U];
        F(get)(c, state, nu, U);
        for (int u = 0; u < U; u++) x[u] = SIGMOID(x[u]);
        for (int u = 0; u < U; u++) x[U + u] = SIGMOID(x[U + u]);
        for (int u = 0; u < U; u++) x[2 * U + u] = TANH(x[2 * U + u]);
        for (int u = 0; u < U; u++) x[3 * U + u] = SIGMOID(x[3 * U + u]);
        for (int u = 0; u < U; u++) c[u] = x[U + u] * c[u] + x[u] * x[2 * U + u];
        for (int u = 0; u < U; u++) h[u] = x[3 * U + u] * TANH(c[u]);
        F(put)(state, c, nu, U);
        F(give)(s, t, i, u0, nu, h, U);
        if (!s->kept) continue;
        T *kept = (T *)s->kept + (s->off[t] + i) * 5 * H + u0;
        for (int g = 0; g < 4; g++) F(put)(kept + g * H, x + g * U, nu, U);
        F(put)(kept + 4 * H, c, nu, U);
    }
}

static void F(gru_gates)(const rnn *s, int64_t t, int64_t r0, int64_t r1, int64_t u0, int64_t nu, T *x) {
    enum { U = DT_RNN_UNITS };
    int64_t H = s->d.H;
    for (int64_t i = r0; i < r1; i++, x += 3 * U) {
        T xn[U], n[U], h[U];
        F(get)(xn, (const T *)s->x + ((s->off[t] + i) * 3 + 2) * H + u0, nu, U);
        F(get)(h, (const T *)s->hn + i * H + u0, nu, U);
        for (int u = 0; u < U; u++) x[u] = SIGMOID(x[u]);
        for (int u = 0; u < U; u++) x[U + u] = SIGMOID(x[U + u]);
        for (int u = 0; u < U; u++) n[u] = TANH(xn[u] + x[u] * x[2 * U + u]);
        for (int u = 0; u < U; u++) h[u] = n[u] + x[U + u] * (h[u] - n[u]);
        F(give)(s, t, i, u0, nu, h, U);
        if (!s->kept) continue;
        T *kept = (T *)s->kept + (s->off[t] + i) * 4 * H + u0;
        F(put)(kept, x, nu, U);
        F(put)(kept + H, x + U, nu, U);
        F(put)(kept + 2 * H, n, nu, U);
        F(put)(kept + 3 * H, x + 2 * U, nu, U);
    }
}

static void F(plain_gates)(const rnn *s, int64_t t, int64_t r0, int64_t r1, int64_t u0, int64_t nu, T *x) {
    enum { U = 64 };
    for (int64_t i = r0; i < r1; i++, x += U) {
        if (s->d.mode == DT_RNN_TANH)
            for (int u = 0; u < U; u++) x[u] = TANH(x[u]);
        else
            for (int u = 0; u < U; u++) x[u] = x[u] < 0 ? 0 : x[u];
        F(give)(s, t, i, u0, nu, x, U);
    }
}

static void F(forward)(rnn *s, int64_t step, int64_t r0, int64_t r1, int64_t j, bool second) {
    int64_t t = s->reverse ? s->d.steps - 1 - step : step, H = s->d.H, P = s->d.P;
    r1 = smaller(r1, rows_of(s, t));
    if (r0 >= r1) return;
    T c[DT_RNN_ROWS * 64] __attribute__((aligned(64)));
    if (second) { /* columns of a projection */
        int64_t u0 = j * DT_RNN_OUT, nu = smaller(DT_RNN_OUT, P - u0);
        F(multiply)(r1 - r0, DT_RNN_OUT, H, (const T *)s->inner + r0 * H, (const T *)s->pack_r + j * DT_RNN_OUT * H, c, false);
        for (int64_t i = r0; i < r1; i++) {
            F(put)((T *)s->y + (s->off[t] + i) * P + u0, c + (i - r0) * DT_RNN_OUT, nu, DT_RNN_OUT);
            F(put)((T *)s->hn + i * P + u0, c + (i - r0) * DT_RNN_OUT, nu, DT_RNN_OUT);
        }
        return;
    }
    int64_t u0 = j * s->units, nu = smaller(s->units, H - u0);
    F(load_gates)(s, t, r0, r1, u0, nu, c);
    if (!s->d.direct) F(recur)(s, t, r0, r1, j, c);
    if (s->d.mode == DT_RNN_LSTM)
        F(lstm_gates)(s, t, r0, r1, u0, nu, c);
    else if (s->d.mode == DT_RNN_GRU)
        F(gru_gates)(s, t, r0, r1, u0, nu, c);
    else
        F(plain_gates)(s, t, r0, r1, u0, nu, c);
}

/* ---- backward ---- */
/* What state the step before t left in sequence i: in `data`, `row` numbers from row to row, where
 * there was one, else in the initial state, whose rows are `width` long. */
static inline const T *F(state_before)(const rnn *s, int64_t t, int64_t i, const T *data, int64_t row, const T *initial, int64_t width) {
    int64_t was = before_of(s, t);
    return is_step(s, was) && i < rows_of(s, was) ? data + (s->off[was] + i) * row : initial + i * width;
}

/* d (rows, DT_RNN_OUT): the gradient of h before any projection. */
static void F(lstm_backward)(const rnn *s, int64_t t, int64_t r0, int64_t r1, int64_t u0, int64_t nu, const T *d) {
    enum { U = DT_RNN_OUT };
    int64_t H = s->d.H;
    for (int64_t k = r0; k < r1; k++, d += U) {
        int64_t row = s->off[t] + k;
        const T *kept = (const T *)s->kept + row * 5 * H + u0, *was = F(state_before)(s, t, k, (const T *)s->kept + 4 * H, 5 * H, s->c0, H) + u0;
        T *state = (T *)s->dc + k * H + u0, *to = (T *)s->dx + row * 4 * H + u0;
        T i[U], f[U], g[U], o[U], c[U], cp[U], dc[U];
        F(get)(i, kept, nu, U);
        F(get)(f, kept + H, nu, U);
        F(get)(g, kept + 2 * H, nu, U);
        F(get)(o, kept + 3 * H, nu, U);
        F(get)(c, kept + 4 * H, nu, U);
        F(get)(cp, was, nu, U);
        F(get)(dc, state, nu, U);
        for (int u = 0; u < U; u++) c[u] = TANH(c[u]);
        if (s->d.projected) {
            T h[U];
            for (int u = 0; u < U; u++) h[u] = o[u] * c[u];
            F(put)((T *)s->inner_out + row * H + u0, h, nu, U);
        }
        for (int u = 0; u < U; u++) {
            T dcu = dc[u] + d[u] * o[u] * (1 - c[u] * c[u]), iu = i[u], fu = f[u], gu = g[u];
            o[u] = d[u] * c[u] * o[u] * (1 - o[u]);
            i[u] = dcu * gu * iu * (1 - iu);
            f[u] = dcu * cp[u] * fu * (1 - fu);
            g[u] = dcu * iu * (1 - gu * gu);
            dc[u] = dcu * fu;
        }
        F(put)(to, i, nu, U);
        F(put)(to + H, f, nu, U);
        F(put)(to + 2 * H, g, nu, U);
        F(put)(to + 3 * H, o, nu, U);
        F(put)(state, dc, nu, U);
    }
}

static void F(gru_backward)(const rnn *s, int64_t t, int64_t r0, int64_t r1, int64_t u0, int64_t nu, const T *d) {
    enum { U = DT_RNN_OUT };
    int64_t H = s->d.H;
    for (int64_t k = r0; k < r1; k++, d += U) {
        int64_t row = s->off[t] + k;
        const T *kept = (const T *)s->kept + row * 4 * H + u0, *was = F(state_before)(s, t, k, s->y, H, s->h0, H) + u0;
        T *to = (T *)s->dx + row * 3 * H + u0, *to_h = (T *)s->dxh + row * 3 * H + u0;
        T r[U], z[U], n[U], hn[U], h[U], dh[U];
        F(get)(r, kept, nu, U);
        F(get)(z, kept + H, nu, U);
        F(get)(n, kept + 2 * H, nu, U);
        F(get)(hn, kept + 3 * H, nu, U);
        F(get)(h, was, nu, U);
        for (int u = 0; u < U; u++) {
            T dn = d[u] * (1 - z[u]) * (1 - n[u] * n[u]), dz = d[u] * (h[u] - n[u]) * z[u] * (1 - z[u]), dr = dn * hn[u] * r[u] * (1 - r[u]);
            dh[u] = d[u] * z[u];
            n[u] = dn;
            hn[u] = dn * r[u];
            z[u] = dz;
            r[u] = dr;
        }
        F(put)(to, r, nu, U);
        F(put)(to + H, z, nu, U);
        F(put)(to + 2 * H, n, nu, U);
        F(put)(to_h, r, nu, U);
        F(put)(to_h + H, z, nu, U);
        F(put)(to_h + 2 * H, hn, nu, U);
        F(put)((T *)s->dh + k * H + u0, dh, nu, U);
    }
}

static void F(plain_backward)(const rnn *s, int64_t t, int64_t r0, int64_t r1, int64_t u0, int64_t nu, const T *d) {
    enum { U = DT_RNN_OUT };
    int64_t H = s->d.H;
    for (int64_t k = r0; k < r1; k++, d += U) {
        T y[U];
        F(get)(y, (const T *)s->y + (s->off[t] + k) * H + u0, nu, U);
        if (s->d.mode == DT_RNN_TANH)
            for (int u = 0; u < U; u++) y[u] = d[u] * (1 - y[u] * y[u]);
        else
            for (int u = 0; u < U; u++) y[u] = y[u] > 0 ? d[u] : 0;
        F(put)((T *)s->dx + (s->off[t] + k) * H + u0, y, nu, U);
    }
}

static void F(units_backward)(const rnn *s, int64_t t, int64_t r0, int64_t r1, int64_t u0, int64_t nu, const T *d) {
    if (s->d.mode == DT_RNN_LSTM)
        F(lstm_backward)(s, t, r0, r1, u0, nu, d);
    else if (s->d.mode == DT_RNN_GRU)
        F(gru_backward)(s, t, r0, r1, u0, nu, d);
    else
        F(plain_backward)(s, t, r0, r1, u0, nu, d);
}

/* dh of a tile, once step `later` is done: its gates' gradients through the weights, and what a GRU passes on by itself. */
static void F(recur_backward)(const rnn *s, int64_t later, int64_t r0, int64_t r1, int64_t j, int64_t u0, int64_t nu, T *c) {
    int64_t P = s->d.P, GH = s->d.G * s->d.H;
    r1 = smaller(r1, rows_of(s, later));
    if (r0 >= r1) return;
    if (!s->d.direct) F(multiply)(r1 - r0, DT_RNN_OUT, GH, (const T *)s->dxh + (s->off[later] + r0) * GH, (const T *)s->pack + j * DT_RNN_OUT * GH, c, false);
    for (int64_t i = r0; i < r1; i++) {
        T *to = (T *)s->dh + i * P + u0;
        const T *from = s->d.direct ? (const T *)s->product + i * P + u0 : c + (i - r0) * DT_RNN_OUT;
        if (s->d.mode == DT_RNN_GRU)
            for (int64_t u = 0; u < nu; u++) to[u] += from[u];
        else
            F(put)(to, from, nu, DT_RNN_OUT);
    }
}

/* c = gy + dh of a tile, and the state before the step, which the weights' gradient will need. */
static void F(meet)(const rnn *s, int64_t t, int64_t r0, int64_t r1, int64_t u0, int64_t nu, T *c) {
    int64_t P = s->d.P;
    for (int64_t i = r0; i < r1; i++, c += DT_RNN_OUT) {
        int64_t at = (s->off[t] + i) * P + u0;
        const T *gy = (const T *)s->gy + at, *dh = (const T *)s->dh + i * P + u0;
        for (int64_t u = 0; u < DT_RNN_OUT; u++) c[u] = u < nu ? gy[u] + dh[u] : 0;
        F(put)((T *)s->before + at, F(state_before)(s, t, i, s->y, P, s->h0, P) + u0, nu, DT_RNN_OUT);
        if (s->d.projected) F(put)((T *)s->dy + at, c, nu, DT_RNN_OUT);
    }
}

/* Steps are counted from the last on; after them all comes one that only finishes dh. */
static void F(backward)(rnn *s, int64_t step, int64_t r0, int64_t r1, int64_t j, bool second) {
    int64_t t = s->reverse ? step : s->d.steps - 1 - step, H = s->d.H, P = s->d.P, u0 = j * DT_RNN_OUT, nu = smaller(DT_RNN_OUT, (second ? H : P) - u0);
    T c[DT_RNN_ROWS * DT_RNN_OUT] __attribute__((aligned(64)));
    if (step > 0 && !second) F(recur_backward)(s, s->reverse ? t - 1 : t + 1, r0, r1, j, u0, nu, c);
    if (step == s->d.steps) return;
    r1 = smaller(r1, rows_of(s, t));
    if (r0 >= r1) return;
    if (!second) {
        F(meet)(s, t, r0, r1, u0, nu, c);
        if (!s->d.projected) F(units_backward)(s, t, r0, r1, u0, nu, c);
        return;
    }
    if (s->d.direct)
        for (int64_t i = r0; i < r1; i++) F(get)(c + (i - r0) * DT_RNN_OUT, (const T *)s->inner + i * H + u0, nu, DT_RNN_OUT);
    else
        F(multiply)(r1 - r0, DT_RNN_OUT, P, (const T *)s->dy + (s->off[t] + r0) * P, (const T *)s->pack_r + j * DT_RNN_OUT * P, c, false);
    F(units_backward)(s, t, r0, r1, u0, nu, c);
}

#undef F
#undef CAT
#undef CAT_
