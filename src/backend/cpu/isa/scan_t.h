/* scan.c for one accumulator: A, S, LOAD, STORE defined by the includer. No include guard. */
#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)
#define F(name) CAT(name, S)

static A F(step)(scan_kind k, A acc, A x) {
    switch (k) {
    case SCAN_PROD: return acc * x;
    case SCAN_LSE: return (A)log_add((double)acc, (double)x);
    default: return acc + x;
    }
}
static A F(start)(scan_kind k) { return k == SCAN_PROD ? 1 : k == SCAN_LSE ? (A)-INFINITY_OF : 0; }

/* One line along memory, in blocks. */
static void F(line)(const scan_job *j, int64_t row) {
    A x[DT_BLOCK], acc = F(start)(j->kind);
    const char *p = j->x + row * j->r.n * j->isize;
    char *q = j->y + row * j->r.n * j->osize;
    for (int64_t i = 0; i < j->r.n; i += DT_BLOCK) {
        int64_t w = j->r.n - i < DT_BLOCK ? j->r.n - i : DT_BLOCK, at = j->reverse ? j->r.n - i - w : i;
        LOAD(x, p + at * j->isize, j->in, 1, w);
        if (j->reverse)
            for (int64_t k = w - 1; k >= 0; k--) x[k] = acc = F(step)(j->kind, acc, x[k]);
        else
            for (int64_t k = 0; k < w; k++) x[k] = acc = F(step)(j->kind, acc, x[k]);
        STORE(q + at * j->osize, j->out, x, w);
    }
}

/* w neighbouring columns at once. */
static void F(cols)(const scan_job *j, int64_t at, int64_t w) {
    A x[DT_BLOCK], acc[DT_BLOCK];
    for (int64_t k = 0; k < w; k++) acc[k] = F(start)(j->kind);
    for (int64_t i = 0; i < j->r.n; i++) {
        int64_t off = at + (j->reverse ? j->r.n - 1 - i : i) * j->r.inner;
        LOAD(x, j->x + off * j->isize, j->in, 1, w);
        for (int64_t k = 0; k < w; k++) acc[k] = F(step)(j->kind, acc[k], x[k]);
        STORE(j->y + off * j->osize, j->out, acc, w);
    }
}

/* Running extreme and where it stands last; a NaN stays. */
static void F(extreme)(const scan_job *j, int64_t at, int64_t w) {
    A x[DT_BLOCK], acc[DT_BLOCK];
    int64_t idx[DT_BLOCK];
    for (int64_t i = 0; i < j->r.n; i++) {
        int64_t off = at + i * j->r.inner;
        LOAD(x, j->x + off * j->isize, j->in, 1, w);
        for (int64_t k = 0; k < w; k++) {
            bool take = i == 0 || IS_NAN(x[k]) || (!IS_NAN(acc[k]) && (j->kind == SCAN_MAX ? x[k] >= acc[k] : x[k] <= acc[k]));
            if (take) acc[k] = x[k], idx[k] = i;
        }
        STORE(j->y + off * j->osize, j->out, acc, w);
        memcpy(j->index + off, idx, (size_t)w * sizeof *idx);
    }
}

static void F(units)(void *arg, int64_t lo, int64_t hi) {
    const scan_job *j = arg;
    for (int64_t u = lo; u < hi; u++) {
        int64_t col = u % j->per * DT_BLOCK, w = j->r.inner - col < DT_BLOCK ? j->r.inner - col : DT_BLOCK;
        int64_t at = u / j->per * j->r.n * j->r.inner + col;
        if (j->kind == SCAN_MAX || j->kind == SCAN_MIN)
            F(extreme)(j, at, w);
        else if (j->r.inner == 1)
            F(line)(j, u);
        else
            F(cols)(j, at, w);
    }
}

#undef CAT_
#undef CAT
#undef F
#undef A
#undef S
#undef LOAD
#undef STORE
#undef IS_NAN
#undef INFINITY_OF
