/* dt_host_call: a function of the host program among the calls. Inputs are brought to cpu:0, so that it runs once.
 *
 * A job's kernel does not run if an input carries a late error, so jobs are swept: once in a while a sync is sent, and when it is
 * complete, every job before it has run or never will. */
#include "client/internal.h"

static dt_host_job *jobs;    /* since the last sync */
static dt_host_job *waiting; /* before `mark` */
static dt_future *mark;
static int n_jobs;

static void job_end(dt_host_job *j) {
    if (!atomic_load(&j->ran) && j->free_fn) j->free_fn(j->ctx);
    dt_free(j);
}

static void sweep(void) {
    enum { MANY = 32 };
    if (mark && dt_future_done(mark)) {
        while (waiting) {
            dt_host_job *j = waiting;
            waiting = j->next;
            job_end(j);
        }
        dt_future_unref(mark);
        mark = NULL;
    }
    if (mark || n_jobs < MANY || dt_sync_async(&mark)) return; /* without memory: next time */
    waiting = jobs;
    jobs = NULL;
    n_jobs = 0;
}

static dt_status print_types(int n, const dt_type *types, char *buf, size_t cap) {
    dt_str s = {buf, cap, 0};
    buf[0] = 0;
    for (int i = 0; i < n; i++) {
        dt_str_add(&s, "%d:", types[i].dtype);
        for (int d = 0; d < types[i].ndim; d++) dt_str_add(&s, d ? ",%lld" : "%lld", (long long)types[i].shape[d]);
        dt_str_add(&s, ";");
    }
    return s.len + 1 < cap ? DT_OK : dt_fail(DT_E_VALUE, "host call: too many results");
}

static dt_status run(dt_scope *s, dt_host_job *j, int n_in, dt_tensor *const *ins, const char *types, dt_tensor **outs) {
    const dt_mesh *cpu = dt_mesh_single(dt_device_make(DT_CPU, 0));
    dt_tensor **local = DT_ARENA_ARRAY(&s->arena, dt_tensor *, n_in);
    if (!cpu || !local) return dt_fail(DT_E_NOMEM, "host call: out of host memory");
    for (int i = 0; i < n_in; i++) {
        DT_TRY(dt_tensor_fresh(ins[i]));
        local[i] = dt_util_redistribute(s, ins[i], cpu, (dt_placement[DT_MAX_MESH_DIM]){{0}});
        if (!local[i]) return s->status;
    }
    dt_args a = {0};
    dt_arg_list(&a.a[0], (dt_list){n_in, local});
    dt_arg_str(&a.a[1], types);
    dt_arg_int(&a.a[2], (int64_t)(intptr_t)j);
    dt_call *c;
    DT_TRY(dt_prepare(&dt_op__host_call, &a, &c));
    return dt_issue(c, &a, outs);
}

dt_status dt_host_call(dt_host_fn fn, void (*free_fn)(void *), void *ctx, int n_in, dt_tensor *const *ins, int n_out, const dt_type *types, dt_tensor **outs) {
    DT_TRY(dt_client_ready());
    sweep();
    dt_host_job *j = dt_calloc(1, sizeof *j);
    size_t cap = (size_t)n_out * 288 + 2;
    char *text = dt_malloc(cap);
    if (!j || !text) {
        dt_free(j);
        dt_free(text);
        return dt_fail(DT_E_NOMEM, "host call: out of host memory");
    }
    *j = (dt_host_job){.fn = fn, .free_fn = free_fn, .ctx = ctx};
    dt_scope s;
    dt_scope_init(&s);
    dt_status r = print_types(n_out, types, text, cap);
    if (!r) r = run(&s, j, n_in, ins, text, outs);
    dt_scope_fini(&s);
    dt_free(text);
    if (r) {
        dt_free(j); /* ctx stays the caller's */
        return r;
    }
    j->next = jobs;
    jobs = j;
    n_jobs++;
    return DT_OK;
}
