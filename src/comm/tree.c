/* The tree along which rank 0 tells many nodes the same: the list of targets in two halves, whose first ones get it and pass it on to the halves of
 * what follows them; net.c does so (dt_net_multicast, pass_on). Here: who is reached through whom.
 *
 * Threads: any; nothing is kept. */
#include "comm/net.h"

int dt_net_below(const int *tree, int n_tree, int rank, int *below) {
    int n = 0;
    for (int lo = 0, hi = n_tree, first = 1; lo < hi;) { /* descend towards it; the root's two subtrees have no head of their own */
        int from = first ? lo : lo + 1, mid = first ? (lo + hi + 1) / 2 : lo + 1 + (hi - lo) / 2;
        if (!first && tree[lo] == rank) {
            for (int i = from; i < hi; i++) below[n++] = tree[i];
            break;
        }
        bool left = false;
        for (int i = from; i < mid && i < hi; i++) left |= tree[i] == rank;
        first = 0;
        if (left)
            lo = from, hi = mid < hi ? mid : hi;
        else
            lo = mid;
    }
    return n;
}
