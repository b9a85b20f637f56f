/* loss.c for one working type: T, VEXP, VLOG, S defined by the includer. Inputs are contiguous T, targets int64. No include guard. */
#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)
#define F(name) CAT(name, S)

/* Per column k of w: m = max over classes, s = log sum exp(x - m). x: (classes, inner), w of the inner columns. */
static void F(lse_cols)(const loss_job *j, const T *x, int64_t w, T *m, T *s) {
    int64_t n = j->n, inner = j->inner;
    for (int64_t k = 0; k < w; k++) m[k] = -INFINITY, s[k] = 0;
    for (int64_t c = 0; c < n; c++)
        for (int64_t k = 0; k < w; k++) m[k] = (x[c * inner + k] > m[k]) | (x[c * inner + k] != x[c * inner + k]) ? x[c * inner + k] : m[k];
    for (int64_t c = 0; c < n; c++)
        for (int64_t k = 0; k < w; k++) s[k] += VEXP(x[c * inner + k] - m[k]);
    for (int64_t k = 0; k < w; k++) s[k] = VLOG(s[k]);
}

static void F(lse_row)(const T *x, int64_t n, T *m, T *l) {
    T buf[DT_BLOCK], mm = F(dt_lanes_max)(x, n, -INFINITY);
    double s = 0;
    for (int64_t i = 0; i < n; i += DT_BLOCK) {
        int64_t w = n - i < DT_BLOCK ? n - i : DT_BLOCK;
        for (int64_t k = 0; k < w; k++) buf[k] = VEXP(x[i + k] - mm);
        s += (double)F(dt_lanes_sum)(buf, w);
    }
    *m = mm;
    *l = VLOG((T)s);
}

/* sum over classes of w_c (lse - x_c), lse = m + l: the part of label smoothing. */
static T F(smooth)(const loss_job *j, const T *x, T m, T l) {
    const T *wt = j->weight;
    double s = 0;
    for (int64_t c = 0; c < j->n; c++) s += (double)((wt ? wt[c] : 1) * ((m - x[c * j->inner]) + l));
    return (T)s;
}

/* Rows of cross-entropy: loss, the weight its row counts with, log-sum-exp. Ignored rows have loss 0 and weight 0. */
static void F(ce_range)(void *arg, int64_t lo, int64_t hi) {
    loss_job *j = arg;
    const T *wt = j->weight;
    T m[DT_BLOCK], l[DT_BLOCK], loss[DT_BLOCK], rw[DT_BLOCK], keep = (T)(1 - j->smooth), share = (T)(j->smooth / (double)j->n);
    for (int64_t u = lo; u < hi; u++) {
        int64_t at = u / j->per, col = u % j->per * DT_BLOCK, w = j->inner - col < DT_BLOCK ? j->inner - col : DT_BLOCK;
        const T *x = (const T *)j->x + at * j->n * j->inner + col;
        if (j->inner == 1)
            F(lse_row)(x, j->n, m, l);
        else
            F(lse_cols)(j, x, w, m, l);
        for (int64_t k = 0; k < w; k++) {
            int64_t row = at * j->inner + col + k, t = loss_target(j, row);
            loss[k] = rw[k] = 0;
            if (t >= 0) {
                rw[k] = wt ? wt[t] : 1;
                loss[k] = rw[k] * ((m[k] - x[t * j->inner + k]) + l[k]);
                if (j->smooth != 0) loss[k] = keep * loss[k] + share * F(smooth)(j, x + k, m[k], l[k]);
            }
            l[k] += m[k];
        }
        int64_t row = at * j->inner + col;
        F(dt_store)(j->out[0] + row * j->osize, j->out_dtype, loss, w);
        memcpy((T *)j->out[1] + row, rw, (size_t)w * sizeof(T));
        memcpy((T *)j->out[2] + row, l, (size_t)w * sizeof(T));
    }
}

/* gx_c = a exp(x_c - lse) - b w_c - [c == t] d,   with  d = g (1 - smooth) w_t,  b = g smooth / C,  a = d + b sum w. */
static void F(ce_back_range)(void *arg, int64_t lo, int64_t hi) {
    loss_job *j = arg;
    const T *wt = j->weight, *g = j->g, *lse = j->lse;
    T a[DT_BLOCK], b[DT_BLOCK], d[DT_BLOCK], buf[DT_BLOCK], keep = (T)(1 - j->smooth), share = (T)(j->smooth / (double)j->n), sumw = (T)j->sum_weight;
    int64_t tt[DT_BLOCK], n = j->n, inner = j->inner;
    for (int64_t u = lo; u < hi; u++) {
        int64_t at = u / j->per, col = u % j->per * DT_BLOCK, w = inner - col < DT_BLOCK ? inner - col : DT_BLOCK, row = at * inner + col;
        const T *x = (const T *)j->x + at * n * inner + col;
        char *dst = j->out[0] + (at * n * inner + col) * j->osize;
        for (int64_t k = 0; k < w; k++) {
            int64_t t = tt[k] = loss_target(j, row + k);
            d[k] = t < 0 ? 0 : g[row + k] * keep * (wt ? wt[t] : 1);
            b[k] = t < 0 ? 0 : g[row + k] * share;
            a[k] = d[k] + b[k] * sumw;
        }
        if (inner == 1) {
            T a0 = a[0], b0 = b[0], l0 = lse[row];
            for (int64_t c = 0; c < n; c += DT_BLOCK) {
                int64_t v = n - c < DT_BLOCK ? n - c : DT_BLOCK;
                T *y = j->direct ? (T *)dst + c : buf;
                for (int64_t k = 0; k < v; k++) y[k] = a0 * VEXP(x[c + k] - l0);
                if (b0 != 0)
                    for (int64_t k = 0; k < v; k++) y[k] -= b0 * (wt ? wt[c + k] : 1);
                if (tt[0] >= c && tt[0] < c + v) y[tt[0] - c] -= d[0];
                if (a0 == 0) memset(y, 0, (size_t)v * sizeof(T)); /* ignored: also where exp overflowed */
                if (!j->direct) F(dt_store)(dst + c * j->osize, j->out_dtype, buf, v);
            }
            continue;
        }
        for (int64_t c = 0; c < n; c++) {
            T wc = wt ? wt[c] : 1;
            for (int64_t k = 0; k < w; k++) {
                T y = a[k] * VEXP(x[c * inner + k] - lse[row + k]) - b[k] * wc - (tt[k] == c ? d[k] : 0);
                buf[k] = tt[k] < 0 ? 0 : y;
            }
            F(dt_store)(dst + c * inner * j->osize, j->out_dtype, buf, w);
        }
    }
}

/* loss = -w_t x_t; 0 on devices that hold other classes. */
static void F(nll_range)(void *arg, int64_t lo, int64_t hi) {
    loss_job *j = arg;
    const T *wt = j->weight;
    for (int64_t row = lo; row < hi; row++) {
        int64_t t = loss_target(j, row), o = row / j->inner, k = row % j->inner;
        T w = t < 0 ? 0 : wt ? wt[t] : 1, loss = 0;
        int64_t at = t - j->lo;
        if (t >= 0 && at >= 0 && at < j->n) loss = -w * ((const T *)j->x)[(o * j->n + at) * j->inner + k];
        F(dt_store)(j->out[0] + row * j->osize, j->out_dtype, &loss, 1);
        ((T *)j->out[1])[row] = w;
    }
}

static void F(nll_back_range)(void *arg, int64_t lo, int64_t hi) {
    loss_job *j = arg;
    const T *wt = j->weight, *g = j->g;
    for (int64_t row = lo; row < hi; row++) {
        int64_t t = loss_target(j, row), o = row / j->inner, k = row % j->inner;
        int64_t at = t - j->lo;
        if (t < 0 || at < 0 || at >= j->n) continue;
        T v = -g[row] * (wt ? wt[t] : 1);
        F(dt_store)(j->out[0] + ((o * j->n + at) * j->inner + k) * j->osize, j->out_dtype, &v, 1);
    }
}

#undef CAT_
#undef CAT
#undef F
#undef T
#undef S
#undef VEXP
#undef VLOG
