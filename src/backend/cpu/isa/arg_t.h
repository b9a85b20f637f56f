/* arg.c for one working type: T, IS_NAN, S defined by the includer. No include guard. */
#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)
#define F(name) CAT(name, S)

/* First index of the extreme of n elements of dtype t at p; a NaN is the extreme of all. */
static int64_t F(row)(const arg_job *j, const char *p, int64_t n) {
    T buf[DT_BLOCK], best = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i += DT_BLOCK) {
        int64_t w = n - i < DT_BLOCK ? n - i : DT_BLOCK;
        const T *x = (const T *)(p + i * j->esize);
        if (!j->direct) {
            F(dt_load)(buf, x, j->dtype, 1, w);
            x = buf;
        }
        T m = j->largest ? F(dt_lanes_max)(x, w, x[0]) : F(dt_lanes_min)(x, w, x[0]);
        if (i && !(IS_NAN(m) || (j->largest ? m > best : m < best))) continue;
        best = m;
        int64_t k = 0;
        while (!(x[k] == m || (IS_NAN(m) && IS_NAN(x[k])))) k++;
        at = i + k;
        if (IS_NAN(m)) return at;
    }
    return at;
}

static void F(cols)(const arg_job *j, const char *p, int64_t n, int64_t inner, int64_t w, int64_t *at) {
    T best[DT_BLOCK], x[DT_BLOCK];
    for (int64_t i = 0; i < n; i++) {
        F(dt_load)(x, p + i * inner * j->esize, j->dtype, 1, w);
        for (int64_t k = 0; k < w; k++) {
            bool take = i == 0 || ((j->largest ? x[k] > best[k] : x[k] < best[k]) | IS_NAN(x[k]));
            if (i && IS_NAN(best[k])) take = false;
            at[k] = take ? i : at[k];
            best[k] = take ? x[k] : best[k];
        }
    }
}

/* Products of all other elements along the row: from the left, then from the right; right where there are zeros. */
static DT_MAYBE void F(others)(const arg_job *j, const char *p, char *q, int64_t n, int64_t inner) {
    double a = 1;
    for (int64_t i = 0; i < n; i++) {
        T x;
        F(dt_load)(&x, p + i * inner * j->esize, j->dtype, 1, 1);
        dt_store_f64(q + i * inner * j->esize, j->dtype, &a, 1);
        a *= (double)x;
    }
    a = 1;
    for (int64_t i = n - 1; i >= 0; i--) {
        T x, l;
        F(dt_load)(&x, p + i * inner * j->esize, j->dtype, 1, 1);
        F(dt_load)(&l, q + i * inner * j->esize, j->dtype, 1, 1);
        double v = a * (double)l;
        dt_store_f64(q + i * inner * j->esize, j->dtype, &v, 1);
        a *= (double)x;
    }
}

#undef CAT_
#undef CAT
#undef F
#undef T
#undef S
#undef IS_NAN
