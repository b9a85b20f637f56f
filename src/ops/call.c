/* References on interned calls that are held outside the client. See dt_call in op.h: `done` is only ever counted here, so that the client's
 * cache lines stay with the client. */
#include <stdatomic.h>

#include "ops/op.h"

void dt_call_ref(dt_call *c) { atomic_fetch_sub_explicit(&c->done, 1, memory_order_relaxed); }
void dt_call_unref(dt_call *c) { atomic_fetch_add_explicit(&c->done, 1, memory_order_release); }
void dt_call_unref_many(dt_call *c, uint32_t n) { atomic_fetch_add_explicit(&c->done, n, memory_order_release); }
