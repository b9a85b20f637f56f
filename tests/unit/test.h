/* A small test harness: include it in one file of tests/unit, write TEST(name) { ... } blocks, and that file is a program.
 *
 *     #include "test.h"
 *     TEST(add_is_commutative) { CHECK_INT(1 + 2, 2 + 1); }
 *
 * Every test runs in a process of its own: a crash or a hang fails that test and no other. A failed CHECK prints its place and
 * both values, marks the test as failed and goes on; REQUIRE also returns from the function it stands in (use it before a pointer is
 * followed).
 * The program's arguments are substrings: only tests whose name holds one of them run. DT_TEST_FORK=0 keeps all in one process (for
 * a debugger). Exit code 0 when all passed, 1 otherwise.
 */
#ifndef DT_TEST_H
#define DT_TEST_H

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"

typedef struct test_case {
    const char *name;
    void (*run)(void);
    struct test_case *next;
} test_case;

static test_case *test_first, **test_last = &test_first;
static int test_failures; /* of the running test; touched from any thread that fails */

#define TEST(NAME)                                                        \
    static void test_##NAME(void);                                        \
    __attribute__((constructor)) static void test_register_##NAME(void) { \
        static test_case self = {#NAME, test_##NAME, NULL};               \
        *test_last = &self;                                               \
        test_last = &self.next;                                           \
    }                                                                     \
    static void test_##NAME(void)

#define TEST_FAIL(...)                                           \
    do {                                                         \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);          \
        fprintf(stderr, __VA_ARGS__);                            \
        fputc('\n', stderr);                                     \
        __atomic_add_fetch(&test_failures, 1, __ATOMIC_RELAXED); \
    } while (0)

#define CHECK(COND)                                  \
    do {                                             \
        if (!(COND)) TEST_FAIL("failed: %s", #COND); \
    } while (0)

#define REQUIRE(COND)                       \
    do {                                    \
        if (!(COND)) {                      \
            TEST_FAIL("failed: %s", #COND); \
            return;                         \
        }                                   \
    } while (0)

/* A dt_status; the message of the failure is printed. */
#define CHECK_OK(EXPR)                                                                                       \
    do {                                                                                                     \
        int test_s_ = (int)(EXPR);                                                                           \
        if (test_s_) TEST_FAIL("%s: %s: %s", #EXPR, dt_status_name((dt_status)test_s_), dt_error_message()); \
    } while (0)

#define REQUIRE_OK(EXPR)                                                                            \
    do {                                                                                            \
        int test_s_ = (int)(EXPR);                                                                  \
        if (test_s_) {                                                                              \
            TEST_FAIL("%s: %s: %s", #EXPR, dt_status_name((dt_status)test_s_), dt_error_message()); \
            return;                                                                                 \
        }                                                                                           \
    } while (0)

#define CHECK_STATUS(EXPR, CODE)                                                                                           \
    do {                                                                                                                   \
        int test_s_ = (int)(EXPR), test_c_ = (int)(CODE);                                                                  \
        if (test_s_ != test_c_) TEST_FAIL("%s: status %s, expected %s", #EXPR, dt_status_name((dt_status)test_s_), #CODE); \
    } while (0)

#define CHECK_INT(A, B)                                                                                          \
    do {                                                                                                         \
        int64_t test_a_ = (int64_t)(A), test_b_ = (int64_t)(B);                                                  \
        if (test_a_ != test_b_) TEST_FAIL("%s = %" PRId64 ", expected %s = %" PRId64, #A, test_a_, #B, test_b_); \
    } while (0)

#define CHECK_PTR(A, B)                                                                           \
    do {                                                                                          \
        const void *test_a_ = (A), *test_b_ = (B);                                                \
        if (test_a_ != test_b_) TEST_FAIL("%s = %p, expected %s = %p", #A, test_a_, #B, test_b_); \
    } while (0)

#define CHECK_STR(A, B)                                                                                                \
    do {                                                                                                               \
        const char *test_a_ = (A), *test_b_ = (B);                                                                     \
        if (!test_a_ || !test_b_ || strcmp(test_a_, test_b_))                                                          \
            TEST_FAIL("%s = \"%s\", expected \"%s\"", #A, test_a_ ? test_a_ : "(null)", test_b_ ? test_b_ : "(null)"); \
    } while (0)

/* The string A holds the text B somewhere. */
#define CHECK_HAS(A, B)                                                                                                                      \
    do {                                                                                                                                     \
        const char *test_a_ = (A), *test_b_ = (B);                                                                                           \
        if (!test_a_ || !strstr(test_a_, test_b_)) TEST_FAIL("%s = \"%s\" does not hold \"%s\"", #A, test_a_ ? test_a_ : "(null)", test_b_); \
    } while (0)

/* |A - B| <= TOL; two NaNs are near, NaN and a number are not. */
#define CHECK_NEAR(A, B, TOL)                                                                                                                                \
    do {                                                                                                                                                     \
        double test_a_ = (double)(A), test_b_ = (double)(B), test_t_ = (double)(TOL);                                                                        \
        bool test_same_ = test_a_ == test_b_ || (isnan(test_a_) && isnan(test_b_));                                                                          \
        if (!test_same_ && !(fabs(test_a_ - test_b_) <= test_t_)) TEST_FAIL("%s = %.17g, expected %s = %.17g within %g", #A, test_a_, #B, test_b_, test_t_); \
    } while (0)

/* Seconds a single test may take; a test that hangs is ended by SIGALRM. Define it before the include for a slow one. */
#ifndef TEST_SECONDS
#define TEST_SECONDS 120
#endif

static bool test_run_forked(const test_case *t) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        return false;
    }
    if (pid == 0) {
        alarm(TEST_SECONDS);
        t->run();
        exit(test_failures ? 1 : 0);
    }
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) return false;
    if (WIFSIGNALED(status)) fprintf(stderr, "%s: ended by signal %d (%s)\n", t->name, WTERMSIG(status), strsignal(WTERMSIG(status)));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool test_run_here(const test_case *t) {
    test_failures = 0;
    t->run();
    return test_failures == 0;
}

static bool test_wanted(const test_case *t, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strstr(t->name, argv[i])) return true;
    return argc < 2;
}

int main(int argc, char **argv) {
    const char *fork_env = getenv("DT_TEST_FORK");
    bool forked = !fork_env || strcmp(fork_env, "0") != 0;
    int ran = 0, failed = 0;
    for (const test_case *t = test_first; t; t = t->next) {
        if (!test_wanted(t, argc, argv)) continue;
        bool ok = forked ? test_run_forked(t) : test_run_here(t);
        printf("%s %s\n", ok ? "ok  " : "FAIL", t->name);
        ran++;
        failed += !ok;
    }
    printf("%d tests, %d failed\n", ran, failed);
    if (!ran) fprintf(stderr, "no test has such a name\n");
    return failed || !ran;
}

#endif
