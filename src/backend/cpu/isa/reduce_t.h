/* The reductions of reduce.c for one working type. Included with T (element), A (accumulator), LOWEST, HIGHEST, IS_NAN and S (suffix)
 * defined. No include guard. */
#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)
#define F(name) CAT(name, S)

static void F(map)(red_kind k, T *x, int64_t n) {
    if (k == RED_NONZERO)
        for (int64_t i = 0; i < n; i++) x[i] = x[i] != 0;
}

static A F(identity)(red_kind k) {
    switch (k) {
    case RED_PROD: return 1;
    case RED_MAX: return LOWEST;
    case RED_MIN: return HIGHEST;
    default: return 0;
    }
}

static A F(prod)(const T *x, int64_t n) {
    enum { L = 8 };
    A acc[L] = {1, 1, 1, 1, 1, 1, 1, 1};
    int64_t i = 0;
    for (; i + L <= n; i += L)
        for (int k = 0; k < L; k++) acc[k] *= x[i + k];
    A p = ((acc[0] * acc[4]) * (acc[1] * acc[5])) * ((acc[2] * acc[6]) * (acc[3] * acc[7]));
    for (; i < n; i++) p *= x[i];
    return p;
}

static A F(join)(red_kind k, A a, A b) {
    switch (k) {
    case RED_PROD: return a * b;
    case RED_MAX: return b > a || IS_NAN(b) ? b : a;
    case RED_MIN: return b < a || IS_NAN(b) ? b : a;
    default: return a + b;
    }
}

static A F(chunk)(red_kind k, A a, const T *x, int64_t n) {
    switch (k) {
    case RED_PROD: return a * F(prod)(x, n);
    case RED_MAX: return F(dt_lanes_max)(x, n, (T)a);
    case RED_MIN: return F(dt_lanes_min)(x, n, (T)a);
    default: return a + (A)F(dt_lanes_sum)(x, n);
    }
}

/* n elements, `stride` apart. Sums of f32 are taken in f32 over 1024 elements and in f64 above. */
static A F(line)(const red_job *j, A a, const char *p, int64_t stride, int64_t n) {
    T buf[DT_BLOCK];
    if (stride == 1 && j->direct) {
        for (int64_t i = 0; i < n; i += 1024) a = F(chunk)(j->kind, a, (const T *)p + i, n - i < 1024 ? n - i : 1024);
        return a;
    }
    for (int64_t i = 0; i < n; i += DT_BLOCK) {
        int64_t m = n - i < DT_BLOCK ? n - i : DT_BLOCK;
        F(dt_load)(buf, p + i * stride * j->esize, j->dtype, stride, m);
        F(map)(j->kind, buf, m);
        a = F(chunk)(j->kind, a, buf, m);
    }
    return a;
}

/* Reduce output `o` over segment `g`. */
static A F(output)(const red_job *j, int64_t o, int64_t g) {
    int64_t idx[DT_MAX_DIM], len[DT_MAX_DIM];
    const char *p = red_start(j, o, g, len);
    const dt_reduce_plan *q = &j->plan;
    A a = F(identity)(j->kind);
    int last = q->n_red - 1;
    memset(idx, 0, sizeof idx);
    for (;;) {
        int64_t off = 0;
        for (int d = 0; d < last; d++) off += idx[d] * q->red_stride[d];
        a = F(line)(j, a, p + off * j->esize, q->red_stride[last], len[last]);
        if (!red_next(idx, len, last)) return a;
    }
}

/* Row number `at` of a sum over rows: added to part, which folds into acc every 32 rows. */
static inline void F(add_row)(int64_t at, int64_t w, const T *x, T *part, A *acc) {
    for (int64_t c = 0; c < w; c++) part[c] += x[c];
    if ((at + 1) % 32) return;
    for (int64_t c = 0; c < w; c++) acc[c] += part[c], part[c] = 0;
}

/* acc[c] = reduction over segment g of outputs o .. o + w, which are neighbours in memory. f32 sums fold into f64 every 32 rows. */
static void F(column_block)(const red_job *j, int64_t o, int64_t w, int64_t g, A *acc) {
    int64_t idx[DT_MAX_DIM], len[DT_MAX_DIM];
    const char *p = red_start(j, o, g, len);
    const dt_reduce_plan *q = &j->plan;
    T part[DT_BLOCK], buf[DT_BLOCK];
    for (int64_t c = 0; c < w; c++) acc[c] = F(identity)(j->kind), part[c] = 0;
    memset(idx, 0, sizeof idx);
    bool sum = j->kind == RED_SUM || j->kind == RED_NONZERO;
    int64_t rows = 0;
    do {
        int64_t off = 0;
        for (int d = 0; d < q->n_red; d++) off += idx[d] * q->red_stride[d];
        const T *x = (const T *)(p + off * j->esize);
        if (!j->direct) {
            F(dt_load)(buf, x, j->dtype, 1, w);
            F(map)(j->kind, buf, w);
            x = buf;
        }
        if (sum)
            F(add_row)(rows++, w, x, part, acc);
        else if (j->kind == RED_PROD)
            for (int64_t c = 0; c < w; c++) acc[c] *= x[c];
        else if (j->kind == RED_MAX)
            for (int64_t c = 0; c < w; c++) acc[c] = (x[c] > acc[c]) | IS_NAN(x[c]) ? x[c] : acc[c];
        else
            for (int64_t c = 0; c < w; c++) acc[c] = (x[c] < acc[c]) | IS_NAN(x[c]) ? x[c] : acc[c];
    } while (red_next(idx, len, q->n_red));
    if (sum)
        for (int64_t c = 0; c < w; c++) acc[c] += part[c];
}

static void F(put)(const red_job *j, int64_t o, A *acc, int64_t n) {
    char *dst = (char *)j->out->data + o * (int64_t)dt_dtype_size(j->out->dtype);
    if (j->mean)
        for (int64_t c = 0; c < n; c++) acc[c] = acc[c] / (A)j->count;
    F(put_acc)(j, dst, acc, n);
}

static void F(unit)(void *arg, int64_t lo, int64_t hi) {
    const red_job *j = arg;
    A acc[DT_BLOCK];
    for (int64_t u = lo; u < hi; u++) {
        int64_t g = u % j->plan.segs, v = u / j->plan.segs, o, w;
        red_unit(j, v, &o, &w);
        if (j->plan.columns)
            F(column_block)(j, o, w, g, acc);
        else
            for (int64_t c = 0; c < w; c++) acc[c] = F(output)(j, o + c, g);
        if (j->plan.segs > 1)
            memcpy((A *)j->scratch + g * j->plan.outs + o, acc, (size_t)w * sizeof(A));
        else
            F(put)(j, o, acc, w);
    }
}

static void F(combine)(const red_job *j) {
    A acc[DT_BLOCK];
    const A *part = j->scratch;
    for (int64_t o = 0; o < j->plan.outs; o += DT_BLOCK) {
        int64_t w = j->plan.outs - o < DT_BLOCK ? j->plan.outs - o : DT_BLOCK;
        for (int64_t c = 0; c < w; c++) acc[c] = part[o + c];
        for (int64_t g = 1; g < j->plan.segs; g++)
            for (int64_t c = 0; c < w; c++) acc[c] = F(join)(j->kind, acc[c], part[g * j->plan.outs + o + c]);
        F(put)(j, o, acc, w);
    }
}

static void F(run)(red_job *j, dt_team *team) {
    dt_range_run(team, j->units * j->plan.segs, j->unit_cost, F(unit), j);
    if (j->plan.segs > 1) F(combine)(j);
}

#undef CAT_
#undef CAT
#undef F
#undef T
#undef A
#undef S
#undef LOWEST
#undef HIGHEST
#undef IS_NAN
