/* See options.h. */
#include "passes/options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef DT_VERIFY
enum { VERIFY = 1 };
#else
enum { VERIFY = 0 };
#endif

static dt_options options;

static const struct {
    const char *name;
    size_t offset;
} passes[] = {
    {"dead", offsetof(dt_options, dead)},   {"cse", offsetof(dt_options, cse)},         {"fuse", offsetof(dt_options, fuse)},
    {"reuse", offsetof(dt_options, reuse)}, {"overlap", offsetof(dt_options, overlap)}, {"cache", offsetof(dt_options, cache)},
    {"order", offsetof(dt_options, order)}, {"bucket", offsetof(dt_options, bucket)},   {"replay", offsetof(dt_options, replay)},
    {"many", offsetof(dt_options, many)},
};

static dt_status switch_off(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++)
        if (strlen(passes[i].name) == n && !memcmp(passes[i].name, name, n)) {
            *(bool *)((char *)&options + passes[i].offset) = false;
            return DT_OK;
        }
    return dt_fail(DT_E_VALUE, "DTORCH_OFF: '%.*s' is not a pass: dead, cse, fuse, reuse, overlap, cache, order, bucket, many, replay are", (int)n, name);
}

static dt_status read_number(const char *name, uint32_t *out) {
    const char *text = getenv(name);
    if (!text || !*text) return DT_OK;
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || n < 1 || n > 1000000) return dt_fail(DT_E_VALUE, "%s: '%s' is not legal: a number from 1 to 1000000 is", name, text);
    *out = (uint32_t)n;
    return DT_OK;
}

static dt_status read_dump(void) {
    const char *dir = getenv("DTORCH_DUMP"), *format = getenv("DTORCH_DUMP_FORMAT");
    struct stat st;
    if (!dir || !*dir) return DT_OK;
    mkdir(dir, 0777);
    if (stat(dir, &st) || !S_ISDIR(st.st_mode) || access(dir, W_OK))
        return dt_fail(DT_E_VALUE, "DTORCH_DUMP: '%s' is not a folder that can be written to", dir);
    options.dump = dir;
    options.dump_text = !format || !*format;
    while (format && *format) {
        size_t n = strcspn(format, ", ");
        bool *on = n == 4 && !memcmp(format, "text", 4)   ? &options.dump_text
                   : n == 3 && !memcmp(format, "dot", 3)  ? &options.dump_dot
                   : n == 4 && !memcmp(format, "html", 4) ? &options.dump_html
                                                          : NULL;
        if (n && !on) return dt_fail(DT_E_VALUE, "DTORCH_DUMP_FORMAT: '%.*s' is not legal: text, dot and html are", (int)n, format);
        if (n) *on = true;
        format += n + (format[n] != 0);
    }
    return DT_OK;
}

dt_status dt_options_load(void) {
    options = (dt_options){
        .dead = true, .cse = true, .bucket = true, .fuse = true, .reuse = true, .overlap = true, .cache = true, .order = true, .many = true, .replay = true};
    const char *off = getenv("DTORCH_OFF");
    while (off && *off) {
        size_t n = strcspn(off, ", ");
        if (n) DT_TRY(switch_off(off, n));
        off += n + (off[n] != 0);
    }
    options.replay &= options.cache;
    DT_TRY(read_number("DTORCH_FLUSH", &options.flush));
    DT_TRY(read_number("DTORCH_EVICT", &options.evict));
    const char *verify = getenv("DTORCH_VERIFY");
    options.verify = VERIFY || (verify && *verify && strcmp(verify, "0"));
    return read_dump();
}

const dt_options *dt_options_get(void) { return &options; }
