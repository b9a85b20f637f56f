/* Values in files. See source.h. */
#include "plan/source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "plan/backend.h"

static dt_status no_memory(void) { return dt_fail(DT_E_NOMEM, "reading a file: out of host memory"); }

/* ---- files ------------------------------------------------------------------------------------------------------------------------------ */
void (*dt_file_drop_elsewhere)(uint64_t id);
static _Atomic int n_open;
int dt_files_open(void) { return atomic_load(&n_open); }

static int64_t changed_of(const struct stat *s) { return (int64_t)s->st_mtim.tv_sec * 1000000000 + s->st_mtim.tv_nsec; }

/* n bytes at `at`, all of them. */
static dt_status read_at(const dt_file *f, void *to, size_t n, uint64_t at) {
    enum { ONCE = 1 << 30 };
    for (char *p = to; n;) {
        ssize_t got = pread(f->fd, p, n < ONCE ? n : ONCE, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return dt_fail(DT_E_VALUE, "%s: byte %llu cannot be read: %s", f->path, (unsigned long long)at, strerror(errno));
        if (!got)
            return dt_fail(DT_E_VALUE, "%s: the file ends at byte %llu; it had %llu bytes when it was opened: it was cut off meanwhile", f->path,
                           (unsigned long long)at, (unsigned long long)f->size);
        p += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return DT_OK;
}

/* The checksum of a stretch of the file, read in blocks. */
static dt_status checksum(const dt_file *f, uint64_t at, uint64_t bytes, uint32_t *out) {
    uint32_t crc = 0;
    char *block = dt_malloc(DT_READ_CHUNK);
    if (!block) return no_memory();
    dt_status s = DT_OK;
    while (bytes && !s) {
        size_t n = bytes < DT_READ_CHUNK ? (size_t)bytes : DT_READ_CHUNK;
        if ((s = read_at(f, block, n, at))) break;
        crc = dt_crc32(crc, block, n);
        at += n;
        bytes -= n;
    }
    dt_free(block);
    *out = crc;
    return s;
}

dt_status dt_file_new(int fd, const char *path, uint64_t head, dt_file **out) {
    struct stat st;
    size_t n = strlen(path) + 1;
    dt_file *f = dt_calloc(1, sizeof *f + n);
    dt_status s = f ? DT_OK : no_memory();
    if (!s && fstat(fd, &st)) s = dt_fail(DT_E_VALUE, "%s: %s", path, strerror(errno));
    if (!s && !S_ISREG(st.st_mode)) s = dt_fail(DT_E_VALUE, "%s: not a regular file", path);
    if (!s && head > (uint64_t)st.st_size) s = dt_fail(DT_E_VALUE, "%s: %lld bytes are too few", path, (long long)st.st_size);
    if (!s) {
        atomic_init(&f->refs, 1);
        f->fd = fd;
        f->size = (uint64_t)st.st_size;
        f->head = head;
        f->changed_ns = changed_of(&st);
        memcpy(f->path, path, n);
        s = checksum(f, 0, head, &f->head_crc);
    }
    if (s) {
        close(fd);
        dt_free(f);
        return s;
    }
    pthread_mutex_init(&f->lock, NULL);
    atomic_fetch_add(&n_open, 1);
    *out = f;
    return DT_OK;
}

dt_status dt_file_open(const char *path, uint64_t size, uint64_t head, uint32_t head_crc, dt_file **out) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe of that name keeps nobody waiting */
    if (fd < 0) return dt_fail(DT_E_VALUE, "%s: %s", path, strerror(errno));
    dt_file *f;
    DT_TRY(dt_file_new(fd, path, head, &f));
    if (f->size == size && f->head_crc == head_crc) {
        *out = f;
        return DT_OK;
    }
    dt_status s =
        dt_fail(DT_E_VALUE, "%s: another file: %llu bytes instead of %llu, or another header", path, (unsigned long long)f->size, (unsigned long long)size);
    dt_file_unref(f);
    return s;
}

dt_file *dt_file_ref(dt_file *f) {
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
}

void dt_file_unref(dt_file *f) {
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
    if (f->id && dt_file_drop_elsewhere) dt_file_drop_elsewhere(f->id);
    close(f->fd);
    atomic_fetch_sub(&n_open, 1);
    pthread_mutex_destroy(&f->lock);
    dt_free(f->verified);
    dt_free((void *)f->here);
    dt_free(f);
}

static dt_status unchanged(const dt_file *f) {
    struct stat st;
    if (fstat(f->fd, &st) == 0 && (uint64_t)st.st_size == f->size && changed_of(&st) == f->changed_ns) return DT_OK;
    return dt_fail(DT_E_VALUE, "%s: the file has been changed since it was opened", f->path);
}

static dt_status wrong(const dt_file *f, const dt_check *c) {
    return dt_fail(DT_E_VALUE, "%s: the checksum of bytes %llu to %llu is wrong: the file was changed or damaged", f->path, (unsigned long long)c->at,
                   (unsigned long long)(c->at + c->bytes));
}

/* A stretch that several parts need a piece of is read once to be checked; who comes meanwhile waits. */
static dt_status verify(dt_file *f, const dt_check *c) {
    dt_status s = DT_OK;
    pthread_mutex_lock(&f->lock);
    bool known = false;
    for (int i = 0; i < f->n_verified && !known; i++) known = f->verified[i] == c->at;
    if (!known) {
        uint32_t crc = 0;
        s = checksum(f, c->at, c->bytes, &crc);
        if (!s && crc != c->crc) s = wrong(f, c);
        if (!s && f->n_verified == f->cap_verified) {
            int cap = f->cap_verified ? f->cap_verified * 2 : 16;
            uint64_t *v = dt_realloc(f->verified, sizeof *v * (size_t)cap);
            if (v) {
                f->verified = v;
                f->cap_verified = cap;
            }
        }
        if (!s && f->n_verified < f->cap_verified) f->verified[f->n_verified++] = c->at; /* else it is checked again */
    }
    pthread_mutex_unlock(&f->lock);
    return s;
}

/* ---- sources ------------------------------------------------------------------------------------------------------------------------------ */
/* May the block be read? Sizes and strides are not negative and the last element ends at or before `limit`, counted in units of `unit` from `at`. */
static bool fits(int ndim, const int64_t *shape, const int64_t *stride, int64_t at, int64_t unit, uint64_t limit) {
    int64_t last = 1, step, size = unit;
    if (at < 0) return false;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0 || stride[d] < 0) return false;
        if (shape[d] == 0) return true;
    }
    for (int d = 0; d < ndim; d++)
        if (__builtin_mul_overflow(stride[d], shape[d] - 1, &step) || __builtin_add_overflow(last, step, &last)) return false;
    return !__builtin_mul_overflow(last, size, &last) && !__builtin_add_overflow(last, at, &last) && (uint64_t)last <= limit;
}

dt_status dt_source_new(const dt_type *type, uint32_t site, int n, const dt_file_box *piece, dt_source **out) {
    int64_t size = (int64_t)dt_dtype_size(type->dtype);
    for (int i = 0; i < n; i++) {
        const dt_file_box *p = &piece[i];
        bool inside = p->check.bytes <= p->file->size && p->check.at <= p->file->size - p->check.bytes;
        for (int d = 0; d < type->ndim && inside; d++) inside = p->lo[d] >= 0 && p->len[d] >= 0 && p->lo[d] <= type->shape[d] - p->len[d];
        if (!inside || !fits(type->ndim, p->len, p->stride, p->at, size, p->file->size))
            return dt_fail(DT_E_VALUE, "%s: a tensor lies outside of the file, or a piece outside of the tensor", p->file->path);
    }
    dt_source *s = dt_malloc(sizeof *s + sizeof *piece * (size_t)n);
    if (!s) return no_memory();
    atomic_init(&s->refs, 1);
    s->site = site;
    s->type = *type;
    s->n = n;
    for (int i = 0; i < n; i++) {
        s->piece[i] = piece[i];
        dt_file_ref(piece[i].file);
    }
    *out = s;
    return DT_OK;
}

dt_source *dt_source_ref(dt_source *s) {
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void dt_source_unref(dt_source *s) {
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    for (int i = 0; i < s->n; i++) dt_file_unref(s->piece[i].file);
    dt_free(s);
}

/* ---- what a part reads ---------------------------------------------------------------------------------------------------------------------- */
dt_load *dt_load_alloc(int n) {
    dt_load *r = dt_calloc(1, sizeof *r + sizeof *r->op * (size_t)n);
    if (r) r->op = (dt_load_op *)(r + 1);
    return r;
}

void dt_load_free(dt_load *r) {
    if (!r) return;
    for (int i = 0; i < r->n; i++) dt_file_unref(r->op[i].file);
    dt_free(r);
}

/* The next run of a box whose dimensions are held in rows; false after the last. */
static bool next_run(const dt_box *b, int ndim, int64_t *at) {
    for (int d = ndim - 1; d >= 0; d--) {
        if (++at[d] < b->rows[d]) return true;
        at[d] = 0;
    }
    return false;
}

static dt_box run_of(const dt_box *b, int ndim, const int64_t *at) {
    dt_box r;
    for (int d = 0; d < ndim; d++) {
        bool plain = b->rows[d] <= 1;
        r.lo[d] = plain ? b->lo[d] : b->lo[d] + at[d] * b->step[d];
        r.len[d] = plain ? b->len[d] : b->len[d] / b->rows[d];
        r.rows[d] = 1;
    }
    return r;
}

static void fill_op(dt_load_op *o, const dt_file_box *p, const dt_box *meet, const dt_box *box, int ndim, int64_t size) {
    int64_t stride = 1, skip = 0;
    *o = (dt_load_op){.file = dt_file_ref(p->file), .ndim = ndim, .check = p->check};
    for (int d = ndim - 1; d >= 0; d--) {
        o->shape[d] = meet->len[d];
        o->from[d] = p->stride[d];
        o->into[d] = stride;
        o->to += dt_box_local(box, d, meet->lo[d]) * stride;
        skip += (meet->lo[d] - p->lo[d]) * p->stride[d];
        stride *= box->len[d];
    }
    o->at = p->at + skip * size;
}

/* One pass counts (r NULL), one fills. */
static int64_t each_op(const dt_source *s, const dt_box *box, dt_load *r, int *n) {
    int ndim = s->type.ndim;
    int64_t covered = 0, at[DT_MAX_DIM] = {0};
    *n = 0;
    do {
        dt_box run = run_of(box, ndim, at), meet;
        for (int i = 0; i < s->n; i++) {
            dt_box piece;
            memcpy(piece.lo, s->piece[i].lo, sizeof piece.lo);
            memcpy(piece.len, s->piece[i].len, sizeof piece.len);
            if (!dt_box_intersect(&run, &piece, ndim, &meet)) continue;
            covered += dt_box_numel(&meet, ndim);
            if (r) fill_op(&r->op[*n], &s->piece[i], &meet, box, ndim, (int64_t)dt_dtype_size(s->type.dtype));
            ++*n;
        }
    } while (next_run(box, ndim, at));
    return covered;
}

static dt_status read_of_box(const dt_source *s, const dt_box *box, dt_load **out) {
    int n = 0;
    int64_t want = dt_box_numel(box, s->type.ndim), covered = want ? each_op(s, box, NULL, &n) : 0;
    if (covered != want)
        return dt_fail(DT_E_VALUE, "%s: the pieces hold %lld of the %lld elements that are wanted", s->n ? s->piece[0].file->path : "a file",
                       (long long)covered, (long long)want);
    dt_load *r = dt_load_alloc(n);
    if (!r) return no_memory();
    r->site = s->site;
    r->dtype = s->type.dtype;
    r->numel = want;
    if (n) each_op(s, box, r, &r->n);
    *out = r;
    return DT_OK;
}

dt_status dt_load_new(const dt_source *s, const dt_meta *m, int pos, dt_load **out) {
    dt_box box;
    dt_layout_box(m, pos, &box);
    return read_of_box(s, &box, out);
}

dt_status dt_source_read(const dt_source *s, void *to) {
    dt_box box;
    dt_load *r = NULL;
    for (int d = 0; d < s->type.ndim; d++) {
        box.lo[d] = 0;
        box.len[d] = s->type.shape[d];
        box.rows[d] = 1;
    }
    DT_TRY(read_of_box(s, &box, &r));
    dt_status st = dt_load_run(r, to);
    dt_load_free(r);
    return st;
}

dt_status dt_load_check(const dt_load *r) {
    int64_t size = (int64_t)dt_dtype_size(r->dtype);
    for (int i = 0; i < r->n; i++) {
        const dt_load_op *o = &r->op[i];
        const dt_check *c = &o->check;
        if (!fits(o->ndim, o->shape, o->from, o->at, size, o->file->size) || !fits(o->ndim, o->shape, o->into, o->to, 1, (uint64_t)r->numel) ||
            c->bytes > o->file->size || c->at > o->file->size - c->bytes)
            return dt_fail(DT_E_INTERNAL, "a read of %s beyond the end of the file, or of the memory", o->file->path);
    }
    return DT_OK;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------------------------------- */
typedef struct block { /* dimensions by their stride in the file, the widest first; those of one index are gone, those that go on in both are one */
    int ndim;
    int64_t shape[DT_MAX_DIM], from[DT_MAX_DIM], into[DT_MAX_DIM];
} block;

static bool block_of(const dt_load_op *o, block *b) { /* false: nothing to read */
    b->ndim = 0;
    for (int d = 0; d < o->ndim; d++) {
        if (o->shape[d] == 0) return false;
        if (o->shape[d] == 1) continue;
        int k = b->ndim++;
        for (; k > 0 && b->from[k - 1] < o->from[d]; k--) {
            b->shape[k] = b->shape[k - 1];
            b->from[k] = b->from[k - 1];
            b->into[k] = b->into[k - 1];
        }
        b->shape[k] = o->shape[d];
        b->from[k] = o->from[d];
        b->into[k] = o->into[d];
    }
    for (int k = b->ndim - 2; k >= 0; k--) {
        int64_t n = b->shape[k + 1];
        if (b->from[k] != b->from[k + 1] * n || b->into[k] != b->into[k + 1] * n) continue;
        b->shape[k] *= n;
        b->from[k] = b->from[k + 1];
        b->into[k] = b->into[k + 1];
        for (int j = k + 1; j + 1 < b->ndim; j++) {
            b->shape[j] = b->shape[j + 1];
            b->from[j] = b->from[j + 1];
            b->into[j] = b->into[j + 1];
        }
        b->ndim--;
    }
    return true;
}

/* Elements from the first to the last of dimensions d and up. */
static int64_t span_of(const block *b, int d) {
    int64_t n = 1;
    for (; d < b->ndim; d++) n += (b->shape[d] - 1) * b->from[d];
    return n;
}

typedef struct reader {
    const dt_file *file;
    const block *b;
    dt_dtype dtype;
    int64_t size, each; /* bytes of an element; elements that fit into `chunk` */
    bool runs;          /* innermost runs are long, or far apart: one by one, straight into place */
    char *chunk;        /* NULL until needed */
} reader;

/* `count` indices of dimension d, through the chunk. */
static dt_status read_chunk(reader *r, int d, int64_t count, char *to, int64_t at) {
    const block *b = r->b;
    if (!r->chunk && !(r->chunk = dt_malloc(DT_READ_CHUNK))) return no_memory();
    int64_t span = span_of(b, d + 1) + (count - 1) * b->from[d];
    DT_TRY(read_at(r->file, r->chunk, (size_t)(span * r->size), (uint64_t)at));
    dt_view src = {.data = r->chunk, .dtype = r->dtype, .ndim = b->ndim - d}, dst = src;
    dst.data = to;
    for (int k = d; k < b->ndim; k++) {
        src.shape[k - d] = dst.shape[k - d] = k == d ? count : b->shape[k];
        src.stride[k - d] = b->from[k];
        dst.stride[k - d] = b->into[k];
    }
    dt_backend_of(DT_CPU)->copy(&dst, &src, NULL);
    return DT_OK;
}

/* Dimensions d and up: as many indices at a time as fit into the chunk; one at a time where not even one does. */
static dt_status read_dims(reader *r, int d, char *to, int64_t at) {
    const block *b = r->b;
    if (d == b->ndim) return read_at(r->file, to, (size_t)r->size, (uint64_t)at);
    if (d == b->ndim - 1 && b->from[d] == 1 && b->into[d] == 1) return read_at(r->file, to, (size_t)(b->shape[d] * r->size), (uint64_t)at);
    int64_t row = span_of(b, d + 1), k = 0;
    if (row <= r->each && !(r->runs && d < b->ndim - 1)) k = b->from[d] ? (r->each - row) / b->from[d] + 1 : b->shape[d];
    for (int64_t i = 0, n; i < b->shape[d]; i += n) {
        n = k > b->shape[d] - i ? b->shape[d] - i : k;
        char *p = to + i * b->into[d] * r->size;
        int64_t q = at + i * b->from[d] * r->size;
        if (n)
            DT_TRY(read_chunk(r, d, n, p, q));
        else {
            DT_TRY(read_dims(r, d + 1, p, q));
            n = 1;
        }
    }
    return DT_OK;
}

static dt_status run_op(const dt_load *r, const dt_load_op *o, char *to) {
    enum { LONG = 64 << 10, SHORT = 4 << 10, FAR = 16 };
    block b;
    reader x = {o->file, &b, r->dtype, (int64_t)dt_dtype_size(r->dtype), 0, false, NULL};
    bool any = block_of(o, &b), dense = any && (b.ndim == 0 || (b.ndim == 1 && b.from[0] == 1 && b.into[0] == 1));
    uint64_t bytes = (uint64_t)x.size * (uint64_t)(!any ? 0 : b.ndim ? b.shape[0] : 1);
    bool whole = dense && o->check.at == (uint64_t)o->at && o->check.bytes == bytes; /* it is checked where it lies */
    if (o->check.bytes && !whole) DT_TRY(verify(o->file, &o->check));
    if (!any) return DT_OK;
    if (b.ndim > 1 && b.from[b.ndim - 1] == 1 && b.into[b.ndim - 1] == 1) {
        int64_t run = b.shape[b.ndim - 1] * x.size, gap = b.from[b.ndim - 2] * x.size;
        x.runs = run >= LONG || (run >= SHORT && gap / run >= FAR);
    }
    x.each = DT_READ_CHUNK / x.size;
    to += o->to * x.size;
    dt_status s = read_dims(&x, 0, to, o->at);
    dt_free(x.chunk);
    if (!s && whole && o->check.bytes && dt_crc32(0, to, bytes) != o->check.crc) s = wrong(o->file, &o->check);
    return s ? s : unchanged(o->file);
}

dt_status dt_load_run(const dt_load *r, void *to) {
    for (int i = 0; i < r->n; i++) DT_TRY(run_op(r, &r->op[i], to));
    return DT_OK;
}
