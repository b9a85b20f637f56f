/* norm.c for one working type: T, S defined by the includer. Inputs contiguous T. No include guard. */
#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)
#define F(name) CAT(name, S)

/* y = (x - mean) rstd w + b; variance about the mean, so large offsets do no harm. */
static void F(ln_range)(void *arg, int64_t lo, int64_t hi) {
    const norm_job *j = arg;
    const T *w = j->w, *b = j->b;
    T buf[DT_BLOCK], *mean = j->mean, *rstd = j->rstd;
    int64_t n = j->n;
    for (int64_t i = lo; i < hi; i++) {
        const T *x = (const T *)j->x + i * n;
        double s = 0, v = 0;
        if (!j->rms) {
            for (int64_t k = 0; k < n; k += 4096) s += (double)F(dt_lanes_sum)(x + k, n - k < 4096 ? n - k : 4096);
            s /= (double)n;
        }
        T m = (T)s;
        for (int64_t k = 0; k < n; k += DT_BLOCK) {
            int64_t l = n - k < DT_BLOCK ? n - k : DT_BLOCK;
            for (int64_t c = 0; c < l; c++) buf[c] = x[k + c] - m;
            v += (double)F(dt_lanes_sumsq)(buf, l);
        }
        T r = (T)(1 / sqrt(v / (double)n + j->eps));
        if (mean) mean[i] = m;
        rstd[i] = r;
        for (int64_t k = 0; k < n; k += DT_BLOCK) {
            int64_t l = n - k < DT_BLOCK ? n - k : DT_BLOCK;
            T *y = j->direct ? (T *)j->y + i * n + k : buf;
            if (w && b)
                for (int64_t c = 0; c < l; c++) y[c] = (x[k + c] - m) * r * w[k + c] + b[k + c];
            else if (w)
                for (int64_t c = 0; c < l; c++) y[c] = (x[k + c] - m) * r * w[k + c];
            else if (b)
                for (int64_t c = 0; c < l; c++) y[c] = (x[k + c] - m) * r + b[k + c];
            else
                for (int64_t c = 0; c < l; c++) y[c] = (x[k + c] - m) * r;
            if (!j->direct) F(dt_store)(j->y + (i * n + k) * j->ysize, j->y_dtype, buf, l);
        }
    }
}

/* gx = rstd (h - mean(h) - xhat mean(h xhat)),  h = g w,  xhat = (x - mean) rstd; without the mean(h) term for rms. */
static void F(ln_back_row)(const norm_job *j, int64_t i) {
    int64_t n = j->n;
    const T *x = (const T *)j->x + i * n, *g = (const T *)j->g + i * n, *w = j->w;
    T m = j->mean ? ((const T *)j->mean)[i] : 0, r = ((const T *)j->rstd)[i], bh[DT_BLOCK], bx[DT_BLOCK];
    double sh = 0, sx = 0;
    for (int64_t k = 0; k < n; k += DT_BLOCK) {
        int64_t l = n - k < DT_BLOCK ? n - k : DT_BLOCK;
        for (int64_t c = 0; c < l; c++) {
            T h = w ? g[k + c] * w[k + c] : g[k + c];
            bh[c] = h;
            bx[c] = h * (x[k + c] - m);
        }
        sh += (double)F(dt_lanes_sum)(bh, l);
        sx += (double)F(dt_lanes_sum)(bx, l);
    }
    T a = j->rms ? 0 : (T)(sh / (double)n), q = (T)(sx / (double)n) * r * r;
    for (int64_t k = 0; k < n; k += DT_BLOCK) {
        int64_t l = n - k < DT_BLOCK ? n - k : DT_BLOCK;
        T *y = j->direct ? (T *)j->y + i * n + k : bh;
        for (int64_t c = 0; c < l; c++) {
            T h = w ? g[k + c] * w[k + c] : g[k + c];
            y[c] = r * (h - a - (x[k + c] - m) * q);
        }
        if (!j->direct) F(dt_store)(j->y + (i * n + k) * j->ysize, j->y_dtype, bh, l);
    }
}

/* One block of rows: gx, and this block's sums for the weight (sum g xhat) and the bias (sum g). */
static void F(ln_back_range)(void *arg, int64_t lo, int64_t hi) {
    const norm_job *j = arg;
    int64_t n = j->n;
    for (int64_t u = lo; u < hi; u++) {
        T *gw = j->part ? (T *)j->part + u * 2 * n : NULL, *gb = gw ? gw + n : NULL;
        if (gw) memset(gw, 0, (size_t)(2 * n) * sizeof(T));
        int64_t end = (u + 1) * j->block < j->rows ? (u + 1) * j->block : j->rows;
        for (int64_t i = u * j->block; i < end; i++) {
            F(ln_back_row)(j, i);
            if (!gw) continue;
            const T *restrict x = (const T *)j->x + i * n, *restrict g = (const T *)j->g + i * n;
            T m = j->mean ? ((const T *)j->mean)[i] : 0, r = ((const T *)j->rstd)[i];
            T *restrict pw = gw, *restrict pb = gb;
            for (int64_t c = 0; c < n; c++) pw[c] += g[c] * ((x[c] - m) * r);
            for (int64_t c = 0; c < n; c++) pb[c] += g[c];
        }
    }
}

static void F(ln_fold)(const norm_job *j, int64_t blocks) {
    double acc[2 * DT_BLOCK];
    const T *part = j->part;
    for (int64_t k = 0; k < j->n; k += DT_BLOCK) {
        int64_t l = j->n - k < DT_BLOCK ? j->n - k : DT_BLOCK;
        for (int which = 0; which < 2; which++) {
            for (int64_t c = 0; c < l; c++) acc[c] = 0;
            for (int64_t u = 0; u < blocks; u++)
                for (int64_t c = 0; c < l; c++) acc[c] += (double)part[(u * 2 + which) * j->n + k + c];
            char *dst = which ? j->gb : j->gw;
            if (dst) dt_store_f64(dst + k * j->gsize, j->g_dtype, acc, l);
        }
    }
}

#undef CAT_
#undef CAT
#undef F
#undef T
#undef S
