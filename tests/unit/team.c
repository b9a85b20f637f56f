/* base/team: every task once, whatever the size; runs one after the other; limits. */
#include "test.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/team.h"

enum { TASKS = 1000 };
typedef struct {
    _Atomic int seen[TASKS];
    int64_t plain; /* written by task 0 only, read after the run: the run orders them */
} record;

static void mark(void *arg, int64_t i) {
    record *r = arg;
    atomic_fetch_add_explicit(&r->seen[i], 1, memory_order_relaxed);
    if (i == 0) r->plain++;
}

static void check_runs(int size, int64_t tasks) {
    dt_team *team = NULL;
    REQUIRE_OK(dt_team_new(size, "test", &team));
    static record r;
    memset(&r, 0, sizeof r);
    for (int run = 1; run <= 50; run++) {
        dt_team_run(team, mark, &r, tasks);
        for (int64_t i = 0; i < tasks; i++) REQUIRE(atomic_load_explicit(&r.seen[i], memory_order_relaxed) == run);
        if (tasks) REQUIRE(r.plain == run);
    }
    dt_team_free(team);
}

TEST(every_task_runs_once) {
    for (int size = 1; size <= 5; size++)
        for (int64_t tasks = 0; tasks <= TASKS; tasks = tasks * 10 + 1) check_runs(size, tasks);
}

TEST(no_team_is_a_team_of_one) {
    record *r = calloc(1, sizeof *r);
    dt_team_run(NULL, mark, r, 10);
    CHECK_INT(r->plain, 1);
    CHECK_INT(dt_team_size(NULL), 1);
    free(r);
}

TEST(limit_stays_between_one_and_the_size) {
    dt_team *team = NULL;
    REQUIRE_OK(dt_team_new(3, "test", &team));
    CHECK_INT(dt_team_size(team), 3);
    dt_team_limit(team, 9);
    CHECK_INT(dt_team_size(team), 3);
    dt_team_limit(team, 0);
    CHECK_INT(dt_team_size(team), 1);
    record *r = calloc(1, sizeof *r);
    dt_team_run(team, mark, r, TASKS);
    CHECK_INT(r->seen[TASKS - 1], 1);
    free(r);
    dt_team_free(team);
}

TEST(a_team_that_never_ran_can_be_freed) {
    dt_team *team = NULL;
    REQUIRE_OK(dt_team_new(4, "test", &team));
    dt_team_free(team);
    dt_team_free(NULL);
}

/* A task that waits for the one before it: there is no standstill, whatever the size. */
typedef struct chain {
    _Atomic int64_t done;
    int64_t order[TASKS];
} chain;

static void link_up(void *arg, int64_t i) {
    chain *c = arg;
    while (atomic_load_explicit(&c->done, memory_order_acquire) < i) sched_yield();
    c->order[i] = i;
    atomic_fetch_add_explicit(&c->done, 1, memory_order_acq_rel);
}

TEST(tasks_in_order_may_wait_for_earlier_ones) {
    for (int size = 1; size <= 5; size++) {
        dt_team *team = NULL;
        REQUIRE_OK(dt_team_new(size, "test", &team));
        for (int run = 0; run < 20; run++) {
            chain *c = calloc(1, sizeof *c);
            dt_team_run_in_order(team, link_up, c, TASKS);
            CHECK_INT(c->done, TASKS);
            CHECK_INT(c->order[TASKS - 1], TASKS - 1);
            free(c);
        }
        dt_team_free(team);
    }
}

/* Limits change between runs, while helpers sleep or look for the next run. */
TEST(limits_change_between_runs) {
    dt_team *team = NULL;
    REQUIRE_OK(dt_team_new(4, "test", &team));
    record *r = calloc(1, sizeof *r);
    for (int run = 1; run <= 200; run++) {
        dt_team_limit(team, 1 + run % 4);
        dt_team_run(team, mark, r, 1 + run % 7);
        CHECK_INT(r->plain, run);
        if (run % 50 == 0) usleep(2000);
    }
    free(r);
    dt_team_free(team);
}
