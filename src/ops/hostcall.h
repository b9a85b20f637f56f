/* A user's function called on a worker, in program order, with host views of its inputs and outputs. See client.h: dt_host_call. */
#ifndef DT_OPS_HOSTCALL_H
#define DT_OPS_HOSTCALL_H

#include <stdatomic.h>

#include "ops/op.h"

typedef dt_status (*dt_host_fn)(void *ctx, int n_in, const dt_view *in, int n_out, const dt_view *out);

/* Travels to the kernel as a number. The kernel frees ctx when the function has run; the client frees the rest. */
typedef struct dt_host_job {
    dt_host_fn fn;
    void (*free_fn)(void *ctx);
    void *ctx;
    _Atomic bool ran;
    struct dt_host_job *next;
} dt_host_job;

#endif
