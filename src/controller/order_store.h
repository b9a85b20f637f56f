/* What order.c keeps beside its segments: spare graphs, the devices' virtual clocks, the log of what was committed, and ids in ascending order.
 * Controller thread only, but for dt_order_log and dt_order_log_reset (controller.h), which any thread may call. */
#ifndef DT_CONTROLLER_ORDER_STORE_H
#define DT_CONTROLLER_ORDER_STORE_H

#include "controller/engine.h"

dt_graph *dt_order_graph_get(void); /* an empty one; NULL: no memory */
void dt_order_graph_put(dt_graph *g);

double dt_clock_mesh_free(const dt_mesh *m); /* when all devices of a mesh are free, in seconds of the simulated machine since the reset */
void dt_clock_busy(dt_device d, double end);
void dt_clocks_reset(void); /* all are free, and it is 0 o'clock */

void dt_order_log_add(const dt_order_entry *e);
void dt_order_store_free(void);

/* Lists (n,) of ids in ascending order. Nothing is allocated: a list has room for all ids there are. */
void dt_ids_insert(uint32_t *list, uint32_t *n, uint32_t id);
uint32_t dt_ids_place(const uint32_t *list, uint32_t n, uint32_t id); /* where id stands, or would */
void dt_ids_remove(uint32_t *list, uint32_t *n, uint32_t id);         /* if it is there */

#endif
