/* See options.h. */
#include "passes/options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static dt_options options;

static const struct {
    const char *name;
    size_t offset;
} passes[] = {
    {"dead", offsetof(dt_options, dead)},   {"cse", offsetof(dt_options, cse)},         {"fuse", offsetof(dt_options, fuse)},
    {"reuse", offsetof(dt_options, reuse)}, {"overlap", offsetof(dt_options, overlap)}, {"cache", offsetof(dt_options, cache)},
    {"order", offsetof(dt_options, order)}, {"bucket", offsetof(dt_options, bucket)},   {"replay", offsetof(dt_options, replay)},
};

static dt_status switch_off(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++)
        if (strlen(passes[i].name) == n && !memcmp(passes[i].name, name, n)) {
            *(bool *)((char *)&options + passes[i].offset) = false;
            return DT_OK;
        }
    return dt_fail(DT_E_VALUE, "DTORCH_OFF: '%.*s' is not a pass: dead, cse, fuse, reuse, overlap, cache, order, bucket, replay are", (int)n, name);
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

dt_status dt_options_load(void) {
    options = (dt_options){true, true, true, true, true, true, true, true, true, 0, 0};
    const char *off = getenv("DTORCH_OFF");
    while (off && *off) {
        size_t n = strcspn(off, ", ");
        if (n) DT_TRY(switch_off(off, n));
        off += n + (off[n] != 0);
    }
    options.replay &= options.cache;
    DT_TRY(read_number("DTORCH_FLUSH", &options.flush));
    return read_number("DTORCH_EVICT", &options.evict);
}

const dt_options *dt_options_get(void) { return &options; }
