/* What a gradient formula sees. It builds ordinary recorded ops through the public C calls of dtorch_ops.h, so placements, fusion and
 * higher-order gradients need nothing more.
 *
 *   static void grad(dt_grad *g) {                               y = exp(x)
 *       dt_grad_set(g, 0, dt_mul(g->s, dt_grad_gy(g, 0), DT_V(dt_grad_out(g, 0))));
 *   }
 *
 * Tensors returned by these functions are borrowed; those made on g->s are freed with the scope. A gradient may be broadcast-larger than
 * the input, of another dtype or placement: the engine sums, casts and (at leaves) redistributes. On an error calls return NULL, and every
 * call given NULL returns NULL: no checks are needed in formulas. */
#ifndef DT_OPS_GRAD_H
#define DT_OPS_GRAD_H

#include "dtorch.h"
#include "ops/op.h"

typedef struct dt_grad {
    dt_scope *s;
    const dt_call *call;
    struct dt_grad_node *node; /* opaque here */
    dt_tensor **gy;            /* (n_out,) NULL = undefined (zero) */
    dt_tensor **gx;            /* (n_in,) results */
    const bool *needs;         /* (n_in,) */
    dt_tensor **outer;         /* (n_in, 2) what dt_grad_set_outer was given */
} dt_grad;

static inline bool dt_grad_needs(const dt_grad *g, int i) { return g->needs[i]; }
static inline const void *dt_grad_attr(const dt_grad *g) { return g->call->attr; }
static inline const dt_meta *dt_grad_in_meta(const dt_grad *g, int i) { return g->call->in[i]; }
static inline const dt_meta *dt_grad_out_meta(const dt_grad *g, int i) { return g->call->out[i]; }
dt_tensor *dt_grad_in(dt_grad *g, int i);  /* saved input i (needs DT_SAVE_IN(i)); a number or absent input gives NULL */
dt_tensor *dt_grad_out(dt_grad *g, int i); /* saved output i (needs DT_SAVE_OUT(i)) */
dt_tensor *dt_grad_gy(dt_grad *g, int i);  /* gradient of output i; zeros made if undefined */
static inline bool dt_grad_gy_given(const dt_grad *g, int i) { return g->gy[i] != NULL; }
/* The run-time value of number i (a wrapped Value or a Scalar, the hidden seed and offset included). */
dt_value dt_grad_scalar(const dt_grad *g, int i);
/* An input that may be a tensor or a number, as a value to pass on. */
dt_value dt_grad_value(dt_grad *g, int i);
/* For `compose` functions that find a fault: dt_scope_fail(s, dt_fail(…)). */
void dt_scope_fail(dt_scope *s, dt_status status);
/* For formulas of gradients of gradients that build the operator once more out of differentiable ops: the gradients gx of `inputs` (borrowed,
 * NULL where a root does not depend on one), given those of the roots. */
void dt_grad_through(dt_grad *g, int n_roots, dt_tensor **roots, dt_tensor **gy, int n_inputs, dt_tensor **inputs, dt_tensor **gx);
void dt_grad_set(dt_grad *g, int i, dt_tensor *gx); /* borrows gx; NULL (no error pending) = no gradient */

/* gx of input i is outer_sum(a, b): of a (…, p) and b (…, q), summed over all leading dimensions. Several such products for one weight, of operands
 * smaller than it (a loop over cells), are made as one. */
void dt_grad_set_outer(dt_grad *g, int i, dt_tensor *a, dt_tensor *b);

#endif
