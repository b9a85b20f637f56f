/* DT_SHUFFLE(a, b, index): elements of two vectors chosen by an index vector, as gcc's __builtin_shuffle does; clang has none whose index may vary. */
#ifndef DT_BACKEND_CPU_SHUFFLE_H
#define DT_BACKEND_CPU_SHUFFLE_H

#if defined(__clang__)
#define DT_SHUFFLE(a, b, index)                                                              \
    ({                                                                                       \
        __typeof__((a) + (b)) a_ = (a), b_ = (b), r_; /* a sum is not const */               \
        __typeof__(index) i_ = (index);                                                      \
        enum { N_ = sizeof a_ / sizeof a_[0] };                                              \
        for (int l_ = 0; l_ < N_; l_++) r_[l_] = i_[l_] < N_ ? a_[i_[l_]] : b_[i_[l_] - N_]; \
        r_;                                                                                  \
    })
#else
#define DT_SHUFFLE(a, b, index) __builtin_shuffle(a, b, index)
#endif

#endif
