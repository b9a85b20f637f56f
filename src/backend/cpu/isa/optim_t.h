/* optim.c for one working type: T, SQRT, FABS, S, DTYPE defined by the includer. No include guard.
 *
 * A block: in[0] the parameter, in[1] the gradient, in[2] … the states; out[0] the new parameter, out[1] … the new states. Tensors of the working
 * type are read and written where they lie, others through `buf`. The order of k is that of the op's numbers. */
#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)
#define F(name) CAT(name, S)

typedef struct F(block) {
    const T *in[2 + STATES];
    T *out[1 + STATES];
    T buf[2 + STATES][DT_BLOCK];
} F(block);

static inline void F(begin)(F(block) * b, const opt_job *j, int64_t i, int64_t n) {
    for (int k = 0; k < j->n; k++) {
        int o = k == 0 ? 0 : k - 1; /* the result that replaces operand k */
        int64_t at = i * (int64_t)dt_dtype_size(j->dtype[k]);
        bool plain = j->dtype[k] == DTYPE;
        b->in[k] = plain ? (const T *)(j->in[k] + at) : b->buf[k];
        if (k != 1) b->out[o] = plain ? (T *)(j->out[o] + at) : b->buf[k];
        if (!plain) F(dt_load)(b->buf[k], j->in[k] + at, j->dtype[k], 1, n);
    }
}
static inline void F(end)(const F(block) * b, const opt_job *j, int64_t i, int64_t n) {
    for (int k = 0; k < j->n; k++)
        if (k != 1 && j->dtype[k] != DTYPE) F(dt_store)(j->out[k == 0 ? 0 : k - 1] + i * (int64_t)dt_dtype_size(j->dtype[k]), j->dtype[k], b->buf[k], n);
}

#define STEP_FN(name) static void F(name)(const opt_job *j, int64_t i, int64_t n)
#define BEGIN                                                            \
    F(block) b;                                                          \
    F(begin)(&b, j, i, n);                                               \
    const double *k = j->k;                                              \
    const T *p = b.in[0], *g = b.in[1], sign = j->how.maximize ? -1 : 1; \
    T *op = b.out[0]
#define END F(end)(&b, j, i, n)
#define EACH _Pragma("GCC ivdep") for (int64_t q = 0; q < n; q++)

/* k: lr, beta1, beta2, eps, weight_decay, bias_correction1, bias_correction2 */
static inline void F(adam)(const opt_job *j, int64_t i, int64_t n, bool amsgrad) {
    BEGIN;
    const T *m = b.in[2], *v = b.in[3], *x = amsgrad ? b.in[4] : NULL;
    T *om = b.out[1], *ov = b.out[2], *ox = amsgrad ? b.out[3] : NULL;
    const T decay = j->how.decoupled ? (T)(1 - k[0] * k[4]) : 1, l2 = j->how.decoupled ? 0 : (T)k[4];
    const T w1 = (T)(1 - k[1]), b2 = (T)k[2], w2 = (T)(1 - k[2]), eps = (T)k[3], root = (T)sqrt(k[6]), step = (T)(k[0] / k[5]);
    EACH {
        T r = p[q] * decay, d = sign * g[q] + l2 * p[q];
        T a = m[q] + w1 * (d - m[q]), s = v[q] * b2 + w2 * d * d;
        om[q] = a;
        ov[q] = s;
        if (x) {
            s = x[q] > s ? x[q] : s;
            ox[q] = s;
        }
        op[q] = r - step * (a / (SQRT(s) / root + eps));
    }
    END;
}
STEP_FN(adam_step) { F(adam)(j, i, n, false); }
STEP_FN(adam_step_amsgrad) { F(adam)(j, i, n, true); }

/* k: lr, weight_decay */
STEP_FN(sgd_step) {
    BEGIN;
    const T lr = (T)k[0], l2 = (T)k[1];
    EACH op[q] = p[q] - lr * (sign * g[q] + l2 * p[q]);
    END;
}
/* k: lr, momentum, dampening, weight_decay */
STEP_FN(sgd_step_momentum) {
    BEGIN;
    const T *m = b.in[2], lr = (T)k[0], mom = (T)k[1], damp = (T)(1 - k[2]), l2 = (T)k[3];
    T *om = b.out[1];
    const bool nesterov = j->how.nesterov, first = j->how.first;
    EACH {
        T d = sign * g[q] + l2 * p[q], a = first ? d : mom * m[q] + damp * d;
        om[q] = a;
        op[q] = p[q] - lr * (nesterov ? d + mom * a : a);
    }
    END;
}

/* k: weight_decay, rate, eps */
STEP_FN(adagrad_step) {
    BEGIN;
    const T *s = b.in[2], l2 = (T)k[0], rate = (T)k[1], eps = (T)k[2];
    T *os = b.out[1];
    EACH {
        T d = sign * g[q] + l2 * p[q], a = s[q] + d * d;
        os[q] = a;
        op[q] = p[q] - rate * (d / (SQRT(a) + eps));
    }
    END;
}
/* k: weight_decay, lr, rho, eps */
STEP_FN(adadelta_step) {
    BEGIN;
    const T *v = b.in[2], *u = b.in[3], l2 = (T)k[0], lr = (T)k[1], rho = (T)k[2], w = (T)(1 - k[2]), eps = (T)k[3];
    T *ov = b.out[1], *ou = b.out[2];
    EACH {
        T d = sign * g[q] + l2 * p[q], a = v[q] * rho + w * d * d;
        T x = SQRT(u[q] + eps) / SQRT(a + eps) * d;
        ov[q] = a;
        ou[q] = u[q] * rho + w * x * x;
        op[q] = p[q] - lr * x;
    }
    END;
}
/* k: weight_decay, rate, beta1, beta2, eps */
STEP_FN(adamax_step) {
    BEGIN;
    const T *m = b.in[2], *u = b.in[3], l2 = (T)k[0], rate = (T)k[1], w1 = (T)(1 - k[2]), b2 = (T)k[3], eps = (T)k[4];
    T *om = b.out[1], *ou = b.out[2];
    EACH {
        T d = sign * g[q] + l2 * p[q], a = m[q] + w1 * (d - m[q]), x = u[q] * b2, y = FABS(d) + eps;
        y = x > y || x != x ? x : y;
        om[q] = a;
        ou[q] = y;
        op[q] = p[q] - rate * (a / y);
    }
    END;
}
/* k: weight_decay, shrink, beta1, beta2, eps, bias_correction2, rate_grad, rate_avg */
STEP_FN(nadam_step) {
    BEGIN;
    const T *m = b.in[2], *v = b.in[3], l2 = (T)k[0], shrink = (T)k[1], w1 = (T)(1 - k[2]), b2 = (T)k[3], w2 = (T)(1 - k[3]), eps = (T)k[4];
    const T bias = (T)k[5], of_grad = (T)k[6], of_avg = (T)k[7];
    T *om = b.out[1], *ov = b.out[2];
    EACH {
        T d = sign * g[q] + l2 * p[q], a = m[q] + w1 * (d - m[q]), s = v[q] * b2 + w2 * d * d, under = SQRT(s / bias) + eps;
        om[q] = a;
        ov[q] = s;
        op[q] = p[q] * shrink - of_grad * (d / under) - of_avg * (a / under);
    }
    END;
}
/* k: weight_decay, shrink, beta1, beta2, eps, rate, rectified */
STEP_FN(radam_step) {
    BEGIN;
    const T *m = b.in[2], *v = b.in[3], l2 = (T)k[0], shrink = (T)k[1], w1 = (T)(1 - k[2]), b2 = (T)k[3], w2 = (T)(1 - k[3]), eps = (T)k[4];
    const T rate = (T)k[5];
    T *om = b.out[1], *ov = b.out[2];
    const bool rectified = k[6] != 0;
    EACH {
        T d = sign * g[q] + l2 * p[q], a = m[q] + w1 * (d - m[q]), s = v[q] * b2 + w2 * d * d;
        om[q] = a;
        ov[q] = s;
        op[q] = p[q] * shrink - rate * (rectified ? a / (SQRT(s) + eps) : a);
    }
    END;
}
/* k: weight_decay, lr, alpha, eps, momentum */
static inline void F(rmsprop)(const opt_job *j, int64_t i, int64_t n, bool centered, bool momentum) {
    BEGIN;
    const T *v = b.in[2], *c = centered ? b.in[3] : NULL, *m = momentum ? b.in[3 + centered] : NULL;
    T *ov = b.out[1], *oc = centered ? b.out[2] : NULL, *om = momentum ? b.out[2 + centered] : NULL;
    const T l2 = (T)k[0], lr = (T)k[1], alpha = (T)k[2], w = (T)(1 - k[2]), eps = (T)k[3], mom = (T)k[4];
    EACH {
        T d = sign * g[q] + l2 * p[q], s = v[q] * alpha + w * d * d, under = s;
        ov[q] = s;
        if (c) {
            T a = c[q] + w * (d - c[q]);
            oc[q] = a;
            under = s - a * a;
        }
        T x = d / (SQRT(under) + eps);
        if (m) om[q] = x = m[q] * mom + x;
        op[q] = p[q] - lr * x;
    }
    END;
}
STEP_FN(rmsprop_step) { F(rmsprop)(j, i, n, false, false); }
STEP_FN(rmsprop_step_momentum) { F(rmsprop)(j, i, n, false, true); }
STEP_FN(rmsprop_step_centered) { F(rmsprop)(j, i, n, true, false); }
STEP_FN(rmsprop_step_centered_momentum) { F(rmsprop)(j, i, n, true, true); }

/* k: weight_decay, shrink, eta, mu */
STEP_FN(asgd_step) {
    BEGIN;
    const T *m = b.in[2], l2 = (T)k[0], shrink = (T)k[1], eta = (T)k[2], mu = (T)k[3];
    T *om = b.out[1];
    const bool average = k[3] != 1;
    EACH {
        T x = p[q] * shrink - eta * (sign * g[q] + l2 * p[q]);
        om[q] = average ? m[q] + (x - m[q]) * mu : x;
        op[q] = x;
    }
    END;
}
/* k: shorter, longer, lowest, highest */
STEP_FN(rprop_step) {
    BEGIN;
    const T *before = b.in[2], *size = b.in[3], shorter = (T)k[0], longer = (T)k[1], lowest = (T)k[2], highest = (T)k[3];
    T *ob = b.out[1], *os = b.out[2];
    EACH {
        T d = sign * g[q], same = d * before[q], s = size[q] * (same > 0 ? longer : same < 0 ? shorter : 1);
        s = s < lowest ? lowest : s > highest ? highest : s;
        d = same < 0 ? 0 : d;
        ob[q] = d;
        os[q] = s;
        op[q] = p[q] - (d > 0 ? s : d < 0 ? -s : d * s);
    }
    END;
}

#undef STEP_FN
#undef BEGIN
#undef END
#undef EACH
#undef CAT_
#undef CAT
#undef F
#undef T
#undef S
#undef SQRT
#undef FABS
#undef DTYPE
