/* softmax.c for one working type: T, VEXP, VLOG, S defined by the includer. Inputs are contiguous T; outputs any float dtype. No include
 * guard. */
#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)
#define F(name) CAT(name, S)

/* y = exp(x - m), n of them. */
static void F(exp_sub)(T *restrict y, const T *restrict x, T m, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = VEXP(x[i] - m);
}

static T F(sum_exp)(const T *x, T m, int64_t n) {
    T buf[DT_BLOCK];
    double s = 0;
    for (int64_t i = 0; i < n; i += DT_BLOCK) {
        int64_t w = n - i < DT_BLOCK ? n - i : DT_BLOCK;
        F(exp_sub)(buf, x + i, m, w);
        s += (double)F(dt_lanes_sum)(buf, w);
    }
    return (T)s;
}

static void F(softmax_row)(const sm_job *j, const T *x, char *dst, int64_t n) {
    T m = F(dt_lanes_max)(x, n, -INFINITY);
    if (j->direct && !j->log) {
        T *y = (T *)dst;
        double s = 0;
        for (int64_t i = 0; i < n; i += DT_BLOCK) {
            int64_t w = n - i < DT_BLOCK ? n - i : DT_BLOCK;
            F(exp_sub)(y + i, x + i, m, w);
            s += (double)F(dt_lanes_sum)(y + i, w);
        }
        T r = 1 / (T)s;
        for (int64_t i = 0; i < n; i++) y[i] *= r;
        return;
    }
    T buf[DT_BLOCK], s = F(sum_exp)(x, m, n), r = 1 / s, l = VLOG(s);
    for (int64_t i = 0; i < n; i += DT_BLOCK) {
        int64_t w = n - i < DT_BLOCK ? n - i : DT_BLOCK;
        T *y = j->direct ? (T *)dst + i : buf;
        if (j->log)
            for (int64_t k = 0; k < w; k++) y[k] = (x[i + k] - m) - l;
        else {
            F(exp_sub)(y, x + i, m, w);
            for (int64_t k = 0; k < w; k++) y[k] *= r;
        }
        if (!j->direct) F(dt_store)(dst + i * j->osize, j->out_dtype, buf, w);
    }
}

/* w neighbouring columns, each softmaxed over n rows `inner` apart. */
static void F(softmax_cols)(const sm_job *j, const T *x, char *dst, int64_t n, int64_t inner, int64_t w) {
    T m[DT_BLOCK], s[DT_BLOCK], buf[DT_BLOCK];
    for (int64_t k = 0; k < w; k++) m[k] = -INFINITY, s[k] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < w; k++) m[k] = (x[i * inner + k] > m[k]) | (x[i * inner + k] != x[i * inner + k]) ? x[i * inner + k] : m[k];
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < w; k++) s[k] += VEXP(x[i * inner + k] - m[k]);
    for (int64_t k = 0; k < w; k++) s[k] = j->log ? VLOG(s[k]) : 1 / s[k];
    for (int64_t i = 0; i < n; i++) {
        if (j->log)
            for (int64_t k = 0; k < w; k++) buf[k] = (x[i * inner + k] - m[k]) - s[k];
        else
            for (int64_t k = 0; k < w; k++) buf[k] = VEXP(x[i * inner + k] - m[k]) * s[k];
        F(dt_store)(dst + i * inner * j->osize, j->out_dtype, buf, w);
    }
}

static void F(softmax_range)(void *arg, int64_t lo, int64_t hi) {
    const sm_job *j = arg;
    const T *x = j->a;
    char *y = j->out;
    int64_t n = j->r.n, inner = j->r.inner;
    if (inner == 1) {
        for (int64_t i = lo; i < hi; i++) F(softmax_row)(j, x + i * n, y + i * n * j->osize, n);
        return;
    }
    for (int64_t u = lo; u < hi; u++) {
        int64_t c = u % j->per * DT_BLOCK, at = u / j->per * n * inner + c, w = inner - c < DT_BLOCK ? inner - c : DT_BLOCK;
        F(softmax_cols)(j, x + at, y + at * j->osize, n, inner, w);
    }
}

/* gx = y (g - sum(g y)), or for log-softmax g - exp(y) sum(g). a = g, b = y. */
static void F(back_row)(const sm_job *j, const T *g, const T *y, char *dst, int64_t n) {
    T buf[DT_BLOCK];
    double s = 0;
    for (int64_t i = 0; i < n; i += DT_BLOCK) {
        int64_t w = n - i < DT_BLOCK ? n - i : DT_BLOCK;
        if (!j->log)
            for (int64_t k = 0; k < w; k++) buf[k] = g[i + k] * y[i + k];
        s += (double)F(dt_lanes_sum)(j->log ? g + i : buf, w);
    }
    T t = (T)s;
    for (int64_t i = 0; i < n; i += DT_BLOCK) {
        int64_t w = n - i < DT_BLOCK ? n - i : DT_BLOCK;
        T *o = j->direct ? (T *)dst + i : buf;
        if (j->log)
            for (int64_t k = 0; k < w; k++) o[k] = g[i + k] - VEXP(y[i + k]) * t;
        else
            for (int64_t k = 0; k < w; k++) o[k] = y[i + k] * (g[i + k] - t);
        if (!j->direct) F(dt_store)(dst + i * j->osize, j->out_dtype, buf, w);
    }
}

static void F(back_cols)(const sm_job *j, const T *g, const T *y, char *dst, int64_t n, int64_t inner, int64_t w) {
    T s[DT_BLOCK], buf[DT_BLOCK];
    for (int64_t k = 0; k < w; k++) s[k] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < w; k++) s[k] += j->log ? g[i * inner + k] : g[i * inner + k] * y[i * inner + k];
    for (int64_t i = 0; i < n; i++) {
        const T *gi = g + i * inner, *yi = y + i * inner;
        if (j->log)
            for (int64_t k = 0; k < w; k++) buf[k] = gi[k] - VEXP(yi[k]) * s[k];
        else
            for (int64_t k = 0; k < w; k++) buf[k] = yi[k] * (gi[k] - s[k]);
        F(dt_store)(dst + i * inner * j->osize, j->out_dtype, buf, w);
    }
}

static void F(back_range)(void *arg, int64_t lo, int64_t hi) {
    const sm_job *j = arg;
    const T *g = j->a, *y = j->b;
    char *dst = j->out;
    int64_t n = j->r.n, inner = j->r.inner;
    if (inner == 1) {
        for (int64_t i = lo; i < hi; i++) F(back_row)(j, g + i * n, y + i * n, dst + i * n * j->osize, n);
        return;
    }
    for (int64_t u = lo; u < hi; u++) {
        int64_t c = u % j->per * DT_BLOCK, at = u / j->per * n * inner + c, w = inner - c < DT_BLOCK ? inner - c : DT_BLOCK;
        F(back_cols)(j, g + at, y + at, dst + at * j->osize, n, inner, w);
    }
}

#undef CAT_
#undef CAT
#undef F
#undef T
#undef S
#undef VEXP
#undef VLOG
