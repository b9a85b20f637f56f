/* Bells: how the progress threads of one host wake each other. MPI has none, so a thread that waits for a message would have to look for it again and again,
 * and where many processes share few cores they keep each other from working by looking.
 *
 * A process's bell is a page of memory without a name (memfd: nothing is left of it, however the process ends), which the others open through /proc where
 * they may read its memory anyway. The page says whose it is, since a process's number may be used again or be another's in another container; it must
 * be sealed, so that it cannot shrink under the mapping. Who has sent a message counts up and, if the owner sleeps, wakes it (a futex). Nothing in the page is
 * trusted: ringing too often costs a look, and a ring that is missed costs a nap (net.c), since messages are looked for all the same.
 *
 * Threads: the own bell is rung by any; the others, and sleeping, are the progress thread's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/progress.h"

enum { BYTES = 4096 };
typedef struct bell {
    _Atomic uint32_t rung; /* the futex word */
    _Atomic uint32_t asleep;
    uint64_t owner;
} bell;

static bell alone; /* until there is one that others can reach, or for ever */
static bell *_Atomic mine = &alone;
static bell *other[DT_NET_RANKS];

static bell *map(int fd) {
    void *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

int64_t dt_bell_make(uint64_t owner) {
    enum { NOEXEC_SEAL = 8 }; /* kernels from 6.3; some are told to insist on it */
    int fd = memfd_create("dtorch-bell", MFD_CLOEXEC | MFD_ALLOW_SEALING | NOEXEC_SEAL);
    if (fd < 0) fd = memfd_create("dtorch-bell", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    bell *b = ftruncate(fd, BYTES) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ? NULL : map(fd);
    if (!b) {
        close(fd);
        return -1;
    }
    b->owner = owner;
    atomic_store(&mine, b); /* nobody sleeps yet */
    return fd;
}

bool dt_bell_find(int rank, int64_t pid, int64_t fd, uint64_t owner) {
    char path[64];
    struct stat s;
    if (fd < 0) return false;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)pid, (long long)fd);
    int there = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (there < 0) return false;
    int seals = fcntl(there, F_GET_SEALS); /* files have none: nothing but such a page is mapped */
    bell *b = seals > 0 && seals & F_SEAL_SHRINK && !fstat(there, &s) && s.st_size == BYTES ? map(there) : NULL;
    close(there);
    if (b && b->owner != owner) {
        munmap(b, BYTES);
        b = NULL;
    }
    other[rank] = b;
    return b != NULL;
}

static void ring(bell *b) {
    atomic_fetch_add(&b->rung, 1);
    if (atomic_load(&b->asleep)) syscall(SYS_futex, &b->rung, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void dt_bell_ring(void) { ring(atomic_load(&mine)); }
void dt_bell_ring_at(int rank) {
    if (other[rank]) ring(other[rank]);
}

uint32_t dt_bell_rung(void) { return atomic_load(&atomic_load(&mine)->rung); }

void dt_bell_sleep(uint32_t rung, int64_t usec) {
    struct timespec t = {usec / 1000000, usec % 1000000 * 1000};
    bell *b = atomic_load(&mine);
    atomic_store(&b->asleep, 1); /* before the kernel compares: who rings after that sees it */
    syscall(SYS_futex, &b->rung, FUTEX_WAIT, rung, &t, NULL, 0);
    atomic_store(&b->asleep, 0);
}
