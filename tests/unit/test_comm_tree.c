/* The tree of messages: who is reached through whom, against the halving spelled out. */
#include "comm/net.h"
#include "test.h"

enum { MOST = 70 };
static int above[MOST]; /* by position: through which position a target is reached; -1: from rank 0 */

static void spread(int lo, int hi, int branches, int by) { /* what one process passes on: in parts as equal as they can be, larger ones anywhere */
    int n = hi - lo, taken = 0;
    for (int k = 0; k < branches; k++) {
        int end = 0; /* of part k: the least whole number that is not below its share */
        while (end * branches < n * (k + 1)) end++;
        if (end == taken) continue;
        above[lo + taken] = by;
        spread(lo + taken + 1, lo + end, branches, lo + taken);
        taken = end;
    }
}

static void check(int n, int branches) {
    int rank[MOST], below[MOST];
    for (int i = 0; i < n; i++) rank[i] = 1000 - 7 * i;
    for (int i = 0; i < n; i++) above[i] = -2;
    spread(0, n, branches, -1);
    for (int k = 0; k < n; k++) {
        bool expected[MOST] = {false};
        int n_expected = 0;
        CHECK(above[k] >= -1 && above[k] < k); /* everybody is reached, by somebody before it */
        for (int i = 0; i < n; i++) {
            int a = above[i];
            while (a >= 0 && a != k) a = above[a];
            n_expected += expected[i] = a == k;
        }
        int got = dt_net_below(rank, n, branches, rank[k], below);
        CHECK_INT(got, n_expected);
        for (int i = 0; i < got; i++) CHECK((1000 - below[i]) % 7 == 0 && expected[(1000 - below[i]) / 7]);
    }
    CHECK_INT(dt_net_below(rank, n, branches, 5, below), 0); /* is not among them */
}

TEST(below_a_node_is_who_is_reached_through_it) {
    for (int n = 1; n < MOST; n++)
        for (int branches = 2; branches <= 8; branches += 3) check(n, branches);
}
