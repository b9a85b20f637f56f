/* What an out-of-memory error says besides the sizes: the largest tensors that live, and the lines that made them. Controller thread. */
#include <string.h>

#include "controller/engine.h"

enum { SHOWN = 3 };

/* Bytes of the buffers that a value lies in, on all devices. */
static size_t bytes_of(const dt_gvalue *v) {
    size_t n = 0;
    for (int i = 0; v->part && i < v->meta->mesh->n; i++)
        if (v->part[i] && v->part[i]->buf) n += v->part[i]->buf->bytes;
    return n;
}

static void add_line(dt_str *s, const dt_gvalue *v, size_t bytes) {
    const char *file, *func;
    int line;
    dt_str_add(s, "%s%s (", s->len ? "; " : "", dt_dtype_name((dt_dtype)v->meta->dtype));
    for (int d = 0; d < v->meta->ndim; d++) dt_str_add(s, "%s%lld", d ? ", " : "", (long long)v->meta->shape[d]);
    dt_str_add(s, ") of %.1f MiB", (double)bytes / 1048576);
    if (!dt_site_get(v->site, &file, &line, &func)) return;
    const char *slash = strrchr(file, '/');
    dt_str_add(s, " from %.40s:%d", slash ? slash + 1 : file, line);
}

/* Keeps the SHOWN largest, largest first. */
static void insert(const dt_gvalue *v, size_t n, const dt_gvalue **top, size_t *bytes) {
    for (int k = 0; n && k < SHOWN; k++) {
        if (n <= bytes[k]) continue;
        memmove(top + k + 1, top + k, sizeof *top * (size_t)(SHOWN - 1 - k));
        memmove(bytes + k + 1, bytes + k, sizeof *bytes * (size_t)(SHOWN - 1 - k));
        top[k] = v;
        bytes[k] = n;
        return;
    }
}

void dt_engine_explain_oom(void) {
    const dt_engine *e = &dt_the_engine;
    const dt_gvalue *top[SHOWN] = {0};
    size_t bytes[SHOWN] = {0};
    for (uint32_t id = 0; id < e->n_value; id++)
        if (e->value[id] && e->value[id]->ready) insert(e->value[id], bytes_of(e->value[id]), top, bytes);
    DT_STR(list, 280);
    for (int k = 0; k < SHOWN && top[k]; k++) add_line(&list, top[k], bytes[k]);
    if (!list.len) return;
    DT_STR(text, 640);
    dt_str_add(&text, "%s; largest live tensors: %s (on all devices together)", dt_error_message(), list.buf);
    dt_error_set(text.buf);
}
