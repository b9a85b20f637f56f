/* optim.c for one working type: T, SQRT, S defined by the includer. No include guard. */
#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)
#define F(name) CAT(name, S)

/* Element i of operand v on, as T: in place if it has that type, else converted into buf. */
static const T *F(in)(const dt_view *v, int64_t i, int64_t n, T *buf) {
    char *p = (char *)v->data + i * (int64_t)dt_dtype_size(v->dtype);
    if (v->dtype == DTYPE) return (const T *)p;
    F(dt_load)(buf, p, v->dtype, 1, n);
    return buf;
}
static T *F(out)(const dt_view *v, int64_t i, T *buf) { return v->dtype == DTYPE ? (T *)v->data + i : buf; }
static void F(put)(const dt_view *v, int64_t i, int64_t n, const T *buf) {
    if (v->dtype != DTYPE) F(dt_store)((char *)v->data + i * (int64_t)dt_dtype_size(v->dtype), v->dtype, buf, n);
}

static void F(adam_block)(const opt_job *j, int64_t i, int64_t n) {
    T bp[DT_BLOCK], bg[DT_BLOCK], bm[DT_BLOCK], bv[DT_BLOCK], bx[DT_BLOCK];
    const dt_view *in = j->c->in, *out = j->c->out;
    const T *p = F(in)(&in[0], i, n, bp), *g = F(in)(&in[1], i, n, bg), *m = F(in)(&in[2], i, n, bm), *v = F(in)(&in[3], i, n, bv);
    const T *x = j->amsgrad ? F(in)(&in[4], i, n, bx) : NULL;
    T *op = F(out)(&out[0], i, bp), *om = F(out)(&out[1], i, bm), *ov = F(out)(&out[2], i, bv), *ox = j->amsgrad ? F(out)(&out[3], i, bx) : NULL;
    const T sign = j->maximize ? -1 : 1, decay = j->decoupled ? (T)(1 - j->lr * j->weight_decay) : 1, l2 = j->decoupled ? 0 : (T)j->weight_decay;
    const T w1 = (T)(1 - j->beta1), b2 = (T)j->beta2, w2 = (T)(1 - j->beta2), eps = (T)j->eps, root = (T)sqrt(j->bias2), step = (T)(j->lr / j->bias1);
#pragma GCC ivdep
    for (int64_t k = 0; k < n; k++) {
        T q = p[k] * decay, d = sign * g[k] + l2 * p[k];
        T a = m[k] + w1 * (d - m[k]), b = v[k] * b2 + w2 * d * d;
        om[k] = a;
        ov[k] = b;
        if (x) {
            b = x[k] > b ? x[k] : b;
            ox[k] = b;
        }
        op[k] = q - step * (a / (SQRT(b) / root + eps));
    }
    F(put)(&out[0], i, n, bp);
    F(put)(&out[1], i, n, bm);
    F(put)(&out[2], i, n, bv);
    if (j->amsgrad) F(put)(&out[3], i, n, bx);
}

static void F(sgd_block)(const opt_job *j, int64_t i, int64_t n) {
    T bp[DT_BLOCK], bg[DT_BLOCK], bm[DT_BLOCK];
    const dt_view *in = j->c->in, *out = j->c->out;
    const T *p = F(in)(&in[0], i, n, bp), *g = F(in)(&in[1], i, n, bg), *m = j->buffer ? F(in)(&in[2], i, n, bm) : NULL;
    T *op = F(out)(&out[0], i, bp), *om = m ? F(out)(&out[1], i, bm) : NULL;
    const T sign = j->maximize ? -1 : 1, l2 = (T)j->weight_decay, mom = (T)j->momentum, damp = (T)(1 - j->dampening), lr = (T)j->lr;
    const bool nesterov = j->nesterov, first = j->first;
    if (!m) {
#pragma GCC ivdep
        for (int64_t k = 0; k < n; k++) op[k] = p[k] - lr * (sign * g[k] + l2 * p[k]);
    } else {
#pragma GCC ivdep
        for (int64_t k = 0; k < n; k++) {
            T d = sign * g[k] + l2 * p[k], b = first ? d : mom * m[k] + damp * d;
            om[k] = b;
            op[k] = p[k] - lr * (nesterov ? d + mom * b : b);
        }
    }
    F(put)(&out[0], i, n, bp);
    if (m) F(put)(&out[1], i, n, bm);
}

#undef CAT_
#undef CAT
#undef F
#undef T
#undef S
#undef SQRT
#undef DTYPE
