/* Host buffers and futures. See record.h.
 *
 * A future's state is a futex word that goes from 0 to 1 or 2 once. `notified` makes sure that notify runs once, whoever comes last: the
 * completing
 * side or dt_future_on_done. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/ring.h"
#include "plan/record.h"

static void free_aligned(void *data) { free(data); }

dt_status dt_hostbuf_wrap(void *data, size_t bytes, void (*free_fn)(void *), void *ctx, dt_hostbuf **out) {
    dt_hostbuf *b = dt_malloc(sizeof *b);
    if (!b) return dt_fail(DT_E_NOMEM, "a host buffer: out of host memory");
    *b = (dt_hostbuf){.refs = 1, .data = data, .bytes = bytes, .free_fn = free_fn, .ctx = ctx};
    *out = b;
    return DT_OK;
}

dt_status dt_hostbuf_new(size_t bytes, dt_hostbuf **out) {
    /* The tests' failing allocator is asked too, as aligned memory does not come from it. */
    void *probe = dt_malloc(1), *data = NULL;
    size_t size = bytes ? (bytes + 63) & ~(size_t)63 : 64;
    if (probe && size >= bytes) data = aligned_alloc(64, size);
    dt_free(probe);
    if (!data) return dt_fail(DT_E_NOMEM, "a host buffer of %zu bytes: out of host memory", bytes);
    dt_status s = dt_hostbuf_wrap(data, bytes, free_aligned, data, out);
    if (s) free(data);
    return s;
}

dt_hostbuf *dt_hostbuf_ref(dt_hostbuf *b) {
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

void dt_hostbuf_unref(dt_hostbuf *b) {
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) return;
    if (b->free_fn) b->free_fn(b->ctx);
    dt_free(b);
}

dt_status dt_future_new(dt_hostbuf *buf, const dt_meta *meta, dt_future **out) {
    dt_future *f = dt_malloc(sizeof *f);
    if (!f) {
        dt_hostbuf_unref(buf);
        return dt_fail(DT_E_NOMEM, "a future: out of host memory");
    }
    memset(f, 0, sizeof *f);
    atomic_init(&f->refs, 1);
    atomic_init(&f->parts, 1);
    f->buf = buf;
    f->meta = meta;
    *out = f;
    return DT_OK;
}

void dt_future_ref(dt_future *f) { atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed); }

void dt_future_unref(dt_future *f) {
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
    dt_hostbuf_unref(f->buf);
    dt_error_unref(atomic_load(&f->error));
    dt_free(f);
}

bool dt_future_done(const dt_future *f) { return atomic_load_explicit(&f->state, memory_order_acquire) != 0; }

bool dt_future_wait(dt_future *f, int64_t usec) {
    for (int i = 0; i < 64; i++) { /* a value that is nearly there costs no system call */
        if (dt_future_done(f)) return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    /* One sleep: woken without being done means a signal or the time is up; the caller looks and comes again. */
    atomic_fetch_add(&f->sleepers, 1);
    if (!atomic_load(&f->state)) dt_futex_wait(&f->state, 0, usec);
    atomic_fetch_sub(&f->sleepers, 1);
    return dt_future_done(f);
}

static void notify(dt_future *f) {
    if (f->notify && !atomic_exchange(&f->notified, 1)) f->notify(f->notify_ctx);
}

void dt_future_part(dt_future *f, dt_error_t *e) {
    if (e) {
        struct dt_error *none = NULL;
        dt_error_t *mine = dt_error_ref(e);
        if (!atomic_compare_exchange_strong(&f->error, &none, mine)) dt_error_unref(mine);
    }
    if (atomic_fetch_sub(&f->parts, 1) != 1) return;
    dt_future_ref(f); /* the waiter may drop the last reference as soon as it sees the state */
    atomic_store(&f->state, atomic_load(&f->error) ? 2 : 1);
    if (atomic_load(&f->sleepers)) dt_futex_wake(&f->state, INT32_MAX);
    notify(f);
    dt_future_unref(f);
}

void dt_future_on_done(dt_future *f, void (*fn)(void *), void *ctx) {
    f->notify_ctx = ctx;
    __atomic_store_n(&f->notify, fn, __ATOMIC_SEQ_CST);
    if (atomic_load(&f->state)) notify(f);
}

dt_status dt_future_status(dt_future *f) {
    uint32_t state = atomic_load_explicit(&f->state, memory_order_acquire);
    if (state == 1) return DT_OK;
    if (state == 0) return dt_fail(DT_E_STATE, "the value is not there yet");
    dt_error_t *e = atomic_load(&f->error);
    dt_error_set(e->text);
    return e->status;
}
