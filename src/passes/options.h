/* Switches of the engine, read once from the environment when it starts. Every one is neutral: values are bitwise the same either way.
 *
 *   DTORCH_OFF=fuse,cse      names of passes to leave out: dead, cse, fuse, reuse, overlap, cache, order, bucket, many, replay
 *   DTORCH_FLUSH=N           cut the stream at random, after N calls on average, besides the usual places
 *   DTORCH_EVICT=N           before each dispatch, take the memory of one in N values that can be made again (controller/remat.h)
 *   DTORCH_VERIFY=1          check what must hold after each pass (passes/verify.c); always in builds with -Dverify=true
 *   DTORCH_DUMP=folder       write each subgraph that is planned there, in DTORCH_DUMP_FORMAT=text,dot,html (text if not given)
 *
 * Threads: set before the controller's thread starts, constant afterwards. */
#ifndef DT_PASSES_OPTIONS_H
#define DT_PASSES_OPTIONS_H

#include "base/status.h"

typedef struct dt_options {
    bool dead;    /* leave out calls whose results nobody names */
    bool cse;     /* calls that are equal are computed once */
    bool bucket;  /* collectives move, and small ones meet together */
    bool many;    /* small kernels of a kind share the team */
    bool fuse;    /* elementwise calls work tile by tile */
    bool reuse;   /* results take over the memory of inputs that die */
    bool overlap; /* collectives run beside compute */
    bool cache;   /* plans are found again */
    bool order;   /* work on several meshes is interleaved (controller/order.c) */
    bool replay;  /* records of a chunk that came before are only compared (controller/repeat.c) */
    uint32_t flush, evict;
    bool verify;      /* check each pass */
    const char *dump; /* folder, NULL: none */
    bool dump_text, dump_dot, dump_html;
} dt_options;

dt_status dt_options_load(void) DT_WUR;
const dt_options *dt_options_get(void);

#endif
