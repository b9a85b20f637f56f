/* The tree of messages: who is reached through whom, against the halving spelled out. */
#include "comm/net.h"
#include "test.h"

enum { MOST = 70 };
static int above[MOST]; /* by position: through which position a target is reached; -1: from rank 0 */

static void spread(int lo, int hi, int by) { /* a subtree: its first one, then the halves of what follows */
    if (lo == hi) return;
    above[lo] = by;
    int mid = lo + 1 + (hi - lo) / 2;
    if (mid > hi) mid = hi;
    spread(lo + 1, mid, lo);
    spread(mid, hi, lo);
}

TEST(below_a_node_is_who_is_reached_through_it) {
    for (int n = 1; n < MOST; n++) {
        int rank[MOST], below[MOST];
        for (int i = 0; i < n; i++) rank[i] = 1000 - 7 * i;
        spread(0, (n + 1) / 2, -1);
        spread((n + 1) / 2, n, -1);
        for (int k = 0; k < n; k++) {
            bool expected[MOST] = {false};
            int n_expected = 0;
            for (int i = 0; i < n; i++) {
                int a = above[i];
                while (a >= 0 && a != k) a = above[a];
                n_expected += expected[i] = a == k;
            }
            int got = dt_net_below(rank, n, rank[k], below);
            CHECK_INT(got, n_expected);
            for (int i = 0; i < got; i++) CHECK((1000 - below[i]) % 7 == 0 && expected[(1000 - below[i]) / 7]);
        }
        CHECK_INT(dt_net_below(rank, n, 5, below), 0); /* is not among them */
    }
}
