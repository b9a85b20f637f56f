/* The template behind pool.c: T is the type of storage, A the type of arithmetic, GET and PUT convert, SUF names. One task is one plane. */
#define CAT2_(a, b) a##b
#define CAT2(a, b) CAT2_(a, b)
#define OF(name) CAT2(name, SUF)

static void OF(max_plane)(void *arg, int64_t plane) {
    const pool *s = arg;
    const dt_pool_geom *g = &s->g;
    const T *x = (const T *)s->x + plane * s->n_in;
    T *y = (T *)s->y + plane * s->n_out;
    int64_t *index = s->index + plane * s->n_out, o = 0;
    for (int64_t a = 0; a < g->out[0]; a++)
        for (int64_t b = 0; b < g->out[1]; b++)
            for (int64_t c = 0; c < g->out[2]; c++, o++) {
                dt_pool_window u = dt_pool_range(g, 0, a), v = dt_pool_range(g, 1, b), w = dt_pool_range(g, 2, c);
                int64_t best = (u.lo * g->in[1] + v.lo) * g->in[2] + w.lo;
                A top = -(A)INFINITY;
                for (int64_t i = u.lo; i < u.hi; i += u.step)
                    for (int64_t j = v.lo; j < v.hi; j += v.step)
                        for (int64_t k = w.lo; k < w.hi; k += w.step) {
                            int64_t at = (i * g->in[1] + j) * g->in[2] + k;
                            A e = GET(x[at]);
                            if (e > top || e != e) top = e, best = at;
                        }
                y[o] = PUT(top);
                index[o] = best;
            }
}

/* The number a window's sum is divided by. */
static A OF(divisor)(const pool *s, dt_pool_window u, dt_pool_window v, dt_pool_window w) {
    if (s->divisor) return (A)s->divisor;
    if (s->include_pad) return (A)(u.padded * v.padded * w.padded);
    return (A)((u.hi - u.lo) * (v.hi - v.lo) * (w.hi - w.lo));
}

static void OF(avg_plane)(void *arg, int64_t plane) {
    const pool *s = arg;
    const dt_pool_geom *g = &s->g;
    const T *x = (const T *)s->x + plane * s->n_in;
    T *y = (T *)s->y + plane * s->n_out;
    int64_t o = 0;
    for (int64_t a = 0; a < g->out[0]; a++)
        for (int64_t b = 0; b < g->out[1]; b++)
            for (int64_t c = 0; c < g->out[2]; c++, o++) {
                dt_pool_window u = dt_pool_range(g, 0, a), v = dt_pool_range(g, 1, b), w = dt_pool_range(g, 2, c);
                A sum = 0;
                for (int64_t i = u.lo; i < u.hi; i++)
                    for (int64_t j = v.lo; j < v.hi; j++) {
                        const T *row = x + (i * g->in[1] + j) * g->in[2];
                        for (int64_t k = w.lo; k < w.hi; k++) sum += GET(row[k]);
                    }
                bool none = u.hi <= u.lo || v.hi <= v.lo || w.hi <= w.lo;
                y[o] = PUT(none ? 0 : sum / OF(divisor)(s, u, v, w));
            }
}

/* The plane that a task adds into: the result itself, or scratch that is rounded at the end. */
static void OF(avg_back_plane)(void *arg, int64_t plane) {
    const pool *s = arg;
    const dt_pool_geom *g = &s->g;
    const T *y = (const T *)s->y + plane * s->n_out;
    T *x = (T *)s->x + plane * s->n_in;
    A *to = sizeof(A) == sizeof(T) ? (A *)(void *)x : (A *)s->scratch + plane * s->n_in;
    for (int64_t i = 0; i < s->n_in; i++) to[i] = 0;
    int64_t o = 0;
    for (int64_t a = 0; a < g->out[0]; a++)
        for (int64_t b = 0; b < g->out[1]; b++)
            for (int64_t c = 0; c < g->out[2]; c++, o++) {
                dt_pool_window u = dt_pool_range(g, 0, a), v = dt_pool_range(g, 1, b), w = dt_pool_range(g, 2, c);
                A part = GET(y[o]) / OF(divisor)(s, u, v, w);
                for (int64_t i = u.lo; i < u.hi; i++)
                    for (int64_t j = v.lo; j < v.hi; j++)
                        for (int64_t k = w.lo; k < w.hi; k++) to[(i * g->in[1] + j) * g->in[2] + k] += part;
            }
    if (sizeof(A) != sizeof(T))
        for (int64_t i = 0; i < s->n_in; i++) x[i] = PUT(to[i]);
}

static void OF(scatter_plane)(void *arg, int64_t plane) {
    const pool *s = arg;
    const T *y = (const T *)s->y + plane * s->n_out;
    const int64_t *index = s->index + plane * s->n_out;
    T *x = (T *)s->x + plane * s->n_in;
    A *to = sizeof(A) == sizeof(T) ? (A *)(void *)x : (A *)s->scratch + plane * s->n_in;
    for (int64_t i = 0; i < s->n_in; i++) to[i] = 0;
    for (int64_t o = 0; o < s->n_out; o++)
        if (index[o] >= 0 && index[o] < s->n_in) to[index[o]] += GET(y[o]);
    if (sizeof(A) != sizeof(T))
        for (int64_t i = 0; i < s->n_in; i++) x[i] = PUT(to[i]);
}

static void OF(gather_plane)(void *arg, int64_t plane) {
    const pool *s = arg;
    const T *x = (const T *)s->x + plane * s->n_in;
    const int64_t *index = s->index + plane * s->n_out;
    T *y = (T *)s->y + plane * s->n_out;
    for (int64_t o = 0; o < s->n_out; o++) y[o] = index[o] >= 0 && index[o] < s->n_in ? x[index[o]] : PUT(0);
}

#undef OF
#undef CAT2
#undef CAT2_
