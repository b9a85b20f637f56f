/* The template behind conv.c's flat kernels, for T = float and T = double: groups of few channels (depthwise above all) at unit steps.
 *
 * Planes are copied with their padding around them, rows P apart. Then output pixel i of a plane, counted in that same pitch, reads tap t at i + off[t]:
 * one offset for all pixels. So whole vectors run over the plane regardless of its width; what is computed between its rows is not stored.
 *
 *     0 0 0 0 0 0      conv         out[o][i]  = sum over c, t of w[o][c][t] in[c][i + off[t]]
 *     0 a b c d 0      conv_input   the same with channels exchanged and the kernel turned round
 *     0 e f g h 0      conv_weight  w[o][c][t] = sum over images and i of out[o][i] in[c][i + off[t]], out's rows P apart with zeros between */
#define FLAT_CAT_(a, b) a##b
#define FLAT_CAT(a, b) FLAT_CAT_(a, b)
#define OF(name) FLAT_CAT(name, SUF)
#define VEC OF(micro_vec)
#define VECU OF(micro_vecu)
#define L OF(MICRO_LANES)

/* n elements; whole vectors, of which the last may overlap the one before. */
static inline void OF(flat_row)(T *to, const T *from, int64_t n) {
    int64_t j = 0;
    for (; j + L <= n; j += L) *(VECU *)(to + j) = *(const VECU *)(from + j);
    if (j == n) return;
    if (n >= L)
        *(VECU *)(to + n - L) = *(const VECU *)(from + n - L);
    else
        for (; j < n; j++) to[j] = from[j];
}

/* One plane into the middle of a padded one, which is zero elsewhere. */
static void OF(flat_plane)(const flat *s, const void *src, int64_t plane, const int64_t *size, const int64_t *pad, T *to) {
    memset(to, 0, sizeof(T) * (size_t)s->size);
    int64_t from = plane * size[0] * size[1] * size[2];
    for (int64_t z = 0; z < size[0]; z++)
        for (int64_t y = 0; y < size[1]; y++, from += size[2]) {
            T *row = to + ((z + pad[0]) * s->pitch[1] + y + pad[1]) * s->pitch[2] + pad[2];
            if (s->dtype != NATIVE)
                LOAD(s->dtype, (const char *)src + (size_t)from * dt_dtype_size(s->dtype), 1, size[2], row);
            else
                OF(flat_row)(row, (const T *)src + from, size[2]);
        }
}

/* The rows of an output plane to where they belong, one after the other. */
static void OF(flat_store)(const flat *s, const T *out, int64_t plane) {
    int64_t to = plane * s->out[0] * s->out[1] * s->out[2];
    for (int64_t z = 0; z < s->out[0]; z++)
        for (int64_t y = 0; y < s->out[1]; y++, to += s->out[2]) {
            const T *row = out + (z * s->pitch[1] + y) * s->pitch[2];
            if (s->dtype != NATIVE)
                STORE(s->dtype, row, s->out[2], (char *)s->dst + (size_t)to * dt_dtype_size(s->dtype));
            else
                OF(flat_row)((T *)s->dst + to, row, s->out[2]);
        }
}

/* R output planes, V vectors each from pixel i on. */
static inline __attribute__((always_inline)) void OF(flat_body)(int R, int V, const flat *s, int64_t i, const T *in, const T *w, const T *bias, T *out) {
    VEC acc[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) acc[r][v] = (VEC){0} + bias[r];
    for (int64_t c = 0; c < s->Cin; c++)
        for (int64_t t = 0; t < s->taps; t++) {
            const T *at = in + c * FLAT_SIZE + i + s->off[t];
            VEC x[4];
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) x[v] = *(const VECU *)(at + v * L);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++)
#pragma GCC unroll 4
                for (int v = 0; v < V; v++) acc[r][v] += w[(r * s->Cin + c) * s->taps + t] * x[v];
        }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) *(VECU *)(out + r * FLAT_SIZE + i + v * L) = acc[r][v];
}

/* One image and group: conv, or conv_input if turned. */
static void OF(flat_task)(void *arg, int64_t i) {
    const flat *s = arg;
    int64_t n = i / s->G, g = i % s->G, count = s->taps * s->Cin;
    T in[FLAT_CHANNELS * FLAT_SIZE] __attribute__((aligned(64))), out[4 * FLAT_SIZE] __attribute__((aligned(64)));
    T line[FLAT_TAPS * FLAT_CHANNELS * FLAT_CHANNELS], w[FLAT_TAPS * FLAT_CHANNELS * FLAT_CHANNELS], bias[FLAT_CHANNELS] = {0};
    size_t size = dt_dtype_size(s->dtype);
    LOAD(s->dtype, (const char *)s->w + (size_t)(g * s->Cout * count) * size, 1, s->Cout * count, line);
    if (s->bias) LOAD(s->dtype, (const char *)s->bias + (size_t)(g * s->Cout) * size, 1, s->Cout, bias);
    for (int64_t o = 0; o < s->Cout; o++)
        for (int64_t c = 0; c < s->Cin; c++)
            for (int64_t t = 0; t < s->taps; t++)
                w[(o * s->Cin + c) * s->taps + t] = s->turned ? line[(c * s->Cout + o) * s->taps + s->taps - 1 - t] : line[(o * s->Cin + c) * s->taps + t];
    for (int64_t c = 0; c < s->Cin; c++) OF(flat_plane)(s, s->src, (n * s->G + g) * s->Cin + c, s->in, s->pad, in + c * FLAT_SIZE);
    for (int64_t o = 0, rows; o < s->Cout; o += rows) {
        rows = s->Cout - o >= 4 ? 4 : 1;
        for (int64_t p = 0; p < s->pixels; p += 4 * L) {
            if (rows == 4) {
                OF(flat_body)(4, 2, s, p, in, w + o * count, bias + o, out);
                OF(flat_body)(4, 2, s, p + 2 * L, in, w + o * count, bias + o, out);
            } else
                OF(flat_body)(1, 4, s, p, in, w + o * count, bias + o, out);
        }
        for (int64_t q = 0; q < rows; q++) OF(flat_store)(s, out + q * FLAT_SIZE, (n * s->G + g) * s->Cout + o + q);
    }
}

/* sums[t] += out . in at R taps from t on. */
static inline __attribute__((always_inline)) void OF(flat_dots)(int R, const flat *s, int64_t t, const T *in, const T *out, T *sums) {
    VEC acc[4];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) acc[r] = (VEC){0};
    for (int64_t i = 0; i < s->pixels; i += L) {
        VEC y = *(const VECU *)(out + i);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) acc[r] += y * *(const VECU *)(in + i + s->off[t + r]);
    }
    for (int r = 0; r < R; r++) {
        for (int d = L / 2; d; d /= 2)
            for (int l = 0; l < d; l++) acc[r][l] += acc[r][l + d];
        sums[t + r] += acc[r][0];
    }
}

/* One group: conv_weight, image after image. */
static void OF(flat_weight)(void *arg, int64_t g) {
    const flat *s = arg;
    const int64_t none[3] = {0, 0, 0};
    T in[FLAT_CHANNELS * FLAT_SIZE] __attribute__((aligned(64))), out[FLAT_SIZE] __attribute__((aligned(64)));
    T w[FLAT_TAPS * FLAT_CHANNELS * FLAT_CHANNELS] = {0};
    int64_t count = s->Cin * s->taps;
    for (int64_t n = 0; n < s->N; n++) {
        for (int64_t c = 0; c < s->Cin; c++) OF(flat_plane)(s, s->src, (n * s->G + g) * s->Cin + c, s->in, s->pad, in + c * FLAT_SIZE);
        for (int64_t o = 0; o < s->Cout; o++) {
            OF(flat_plane)(s, s->grad, (n * s->G + g) * s->Cout + o, s->out, none, out);
            for (int64_t c = 0; c < s->Cin; c++) {
                T *sums = w + o * count + c * s->taps;
                int64_t t = 0;
                for (; t + 4 <= s->taps; t += 4) OF(flat_dots)(4, s, t, in + c * FLAT_SIZE, out, sums);
                for (; t < s->taps; t++) OF(flat_dots)(1, s, t, in + c * FLAT_SIZE, out, sums);
            }
        }
    }
    STORE(s->dtype, w, s->Cout * count, (char *)s->dst + (size_t)(g * s->Cout * count) * dt_dtype_size(s->dtype));
}

#undef OF
#undef VEC
#undef VECU
#undef L
