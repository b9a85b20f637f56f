/* Large parts of other nodes come in pieces: of all that are asked for, WINDOW are under way at a time, so that a read takes the memory of its result and of
 * these, here and there, however large it is.
 *
 *   part   [ piece | piece | … ]   a piece: some indices of one dimension, of one index each of the dimensions before it
 *
 * While a part is being read, its buffer counts one value more: it is neither freed nor overwritten. The node has the pieces read in the order in which they are
 * asked for, between whatever else it does.
 *
 * The controller's, but for dt_stream_returned. */
#include "controller/remote.h"

enum { PIECE = 2 << 20, WINDOW = 6 };

typedef struct stream {
    struct stream *next;
    dt_part part; /* its buffer and offset: contiguous is not looked at */
    dt_view src, dst;
    dt_future *future;
    int k;         /* pieces are of this dimension */
    int64_t count; /* so many indices */
    int64_t at[DT_MAX_DIM];
    uint32_t left; /* parts of the future that are still owed */
} stream;

static stream *first, **last = &first;
static _Atomic int under_way;

static void append(stream *s) {
    s->next = NULL;
    *last = s;
    last = &s->next;
}

static stream *take(void) {
    stream *s = first;
    first = s->next;
    if (!first) last = &first;
    return s;
}

static void end(stream *s) {
    dt_error_t *lost = s->left ? atomic_load(&s->future->error) : NULL;
    while (s->left) {
        s->left--;
        dt_future_part(s->future, lost);
    }
    dt_buf_drop(s->part.buf);
    dt_future_unref(s->future);
    dt_free(s);
}

/* The next piece of s; false: that was the last. */
static bool next(stream *s) {
    s->at[s->k] += s->count;
    if (s->at[s->k] < s->src.shape[s->k]) return true;
    s->at[s->k] = 0;
    for (int d = s->k - 1; d >= 0; d--) {
        if (++s->at[d] < s->src.shape[d]) return true;
        s->at[d] = 0;
    }
    return false;
}

/* Asks for the piece at `at`. */
static dt_status ask(stream *s) {
    int64_t size = (int64_t)dt_dtype_size(s->src.dtype), from = 0, to = 0, rest = s->src.shape[s->k] - s->at[s->k];
    dt_part part = s->part;
    dt_view src = s->src, dst = s->dst;
    for (int d = 0; d <= s->k; d++) {
        from += s->at[d] * src.stride[d];
        to += s->at[d] * dst.stride[d];
        src.shape[d] = dst.shape[d] = d < s->k ? 1 : rest < s->count ? rest : s->count;
    }
    part.offset += from * size;
    dst.data = (char *)dst.data + to * size;
    return dt_remote_ask(&part, &src, &dst, s->future, true);
}

void dt_stream_returned(void) {
    atomic_fetch_sub(&under_way, 1);
    dt_engine_flush();
}

bool dt_stream_pump(void) {
    bool any = false;
    while (first && atomic_load(&under_way) < WINDOW) {
        stream *s = take();
        bool more = false;
        atomic_fetch_add(&under_way, 1);
        dt_status st = atomic_load(&s->future->error) ? DT_E_STATE : ask(s);
        if (st) {
            atomic_fetch_sub(&under_way, 1);
            if (!atomic_load(&s->future->error)) { /* the node is lost, or memory is short */
                dt_error_t *e = dt_error_new(st, 0, "read", dt_error_message());
                s->left--;
                dt_future_part(s->future, e);
                dt_error_unref(e);
            }
        } else {
            s->left--;
            more = next(s);
        }
        any = true;
        if (more)
            append(s); /* all that are read get on */
        else
            end(s);
    }
    return any;
}

void dt_stream_free(void) {
    while (first) {
        stream *s = take();
        dt_future_unref(s->future);
        dt_free(s);
    }
}

dt_status dt_remote_fetch(const dt_part *p, const dt_view *src, const dt_view *dst, dt_future *f) {
    int64_t size = (int64_t)dt_dtype_size(src->dtype), inner = size, pieces = 1;
    if (dt_view_numel(src) * size <= PIECE) return dt_remote_ask(p, src, dst, f, false);
    stream *s = dt_calloc(1, sizeof *s);
    if (!s) return dt_fail(DT_E_NOMEM, "a read from another node: out of host memory");
    int k = src->ndim - 1;
    while (k > 0 && inner * src->shape[k] <= PIECE) inner *= src->shape[k--];
    *s = (stream){.part = {.buf = p->buf, .offset = p->offset}, .src = *src, .dst = *dst, .future = f, .k = k, .count = inner < PIECE ? PIECE / inner : 1};
    for (int d = 0; d < k; d++) pieces *= src->shape[d];
    s->left = (uint32_t)(pieces * ((src->shape[k] + s->count - 1) / s->count));
    p->buf->live++;
    dt_future_ref(f);
    atomic_fetch_add(&f->parts, s->left - 1);
    append(s);
    (void)dt_stream_pump();
    return DT_OK;
}
