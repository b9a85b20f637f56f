/* Modes, per thread: gradient recording, inference, what implied redistributions do, call site, default mesh of factories. */
#include <stdio.h>

#include "client/internal.h"

_Thread_local dt_modes dt_m __attribute__((tls_model("initial-exec")));
static void warn_stderr(const char *text) { fprintf(stderr, "dtorch: %s\n", text); }
void (*dt_warn_fn)(const char *text) = warn_stderr;

bool dt_mode_grad(void) { return !dt_m.grad_off; }
bool dt_mode_grad_set(bool on) {
    bool was = !dt_m.grad_off;
    dt_m.grad_off = !on;
    return was;
}
bool dt_mode_inference(void) { return dt_m.inference; }
bool dt_mode_inference_set(bool on) {
    bool was = dt_m.inference;
    dt_m.inference = on;
    return was;
}
bool dt_mode_recipe_set(bool on) {
    bool was = dt_m.recipe;
    dt_m.recipe = on;
    return was;
}
dt_policy dt_mode_policy(void) { return (dt_policy)dt_m.policy; }
void dt_mode_policy_set(dt_policy p) { dt_m.policy = (uint8_t)p; }
void dt_mode_warn_fn(void (*fn)(const char *text)) { dt_warn_fn = fn ? fn : warn_stderr; }
void dt_mode_site_set(uint32_t site) { dt_m.site = site; }
const dt_spec *dt_mode_spec(void) { return dt_m.spec; }
void dt_mode_spec_set(const dt_spec *s) { dt_m.spec = s; }

void dt_link_set(const dt_mesh *m, int d, dt_link w) {
    dt_mesh_link_set(m, d, w);
    dt_c.wires++;
}
