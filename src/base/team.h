/* Thread team: a worker's fixed set of helper threads that split one large kernel at a time.
 *
 * dt_team_run calls fn(arg, i) for i in [0, n_tasks), each exactly once, on the caller and the helpers; returns when all are done. Each member begins
 * with a run of neighbouring tasks of its own, the same share each time, and then helps the others: what one kernel left in a core's cache, the
 * next one finds there. Which thread runs a task must not change a result: fix the block size by the problem, not by the team (design: results
 * do not depend on the team's size). One run at a time; only the owner calls. */
#ifndef DT_BASE_TEAM_H
#define DT_BASE_TEAM_H

#include "base/status.h"

typedef struct dt_team dt_team;
typedef void (*dt_task_fn)(void *arg, int64_t i);

dt_status dt_team_new(int size, const char *name, dt_team **out) DT_WUR; /* size >= 1, the caller included */
void dt_team_free(dt_team *t);
int dt_team_size(const dt_team *t); /* NULL counts as 1 */
void dt_team_run(dt_team *t, dt_task_fn fn, void *arg, int64_t n_tasks);
/* The same, and tasks begin in order: when a task begins, all before it have begun. So a task may wait for earlier ones. */
void dt_team_run_in_order(dt_team *t, dt_task_fn fn, void *arg, int64_t n_tasks);
/* The size may be lowered and raised again (never above what it was made with): cores are shared out among the devices that started. */
void dt_team_limit(dt_team *t, int size);

#endif
