/* Reading another process's memory. The kernel checks the right to, and that the addresses exist; nothing here follows a pointer of another process.
 *
 * Threads: any. */
#include <errno.h>
#include <sys/uio.h>

#include "comm/net.h"

enum { AT_ONCE = 64 };

static size_t read_some(int64_t pid, char *to, const dt_net_run *run, int n) {
    struct iovec theirs[AT_ONCE], mine = {to, 0};
    for (int i = 0; i < n; i++) {
        theirs[i] = (struct iovec){(void *)(uintptr_t)run[i].address, run[i].bytes};
        mine.iov_len += run[i].bytes;
    }
    ssize_t got;
    do got = process_vm_readv((pid_t)pid, &mine, 1, theirs, (unsigned long)n, 0);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)mine.iov_len ? mine.iov_len : 0;
}

size_t dt_process_read(int64_t pid, void *to, const dt_net_run *run, int n) {
    size_t total = 0;
    for (int i = 0; i < n; i += AT_ONCE) {
        size_t got = read_some(pid, (char *)to + total, run + i, n - i < AT_ONCE ? n - i : AT_ONCE);
        if (!got) return 0;
        total += got;
    }
    return total;
}
