/* Reading another process's memory, and ending it. The kernel checks the right to, and that the addresses exist; nothing here follows a pointer of another process.
 *
 * Threads: any. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "comm/progress.h"

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

static bool is_stopped(int64_t pid) { /* proc(5): the letter behind the name, which stands in parentheses and may hold some */
    char file[64], text[512];
    snprintf(file, sizeof file, "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(file, "rb");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' && (end[2] == 'T' || end[2] == 't');
}

void dt_process_end(int64_t pid, const dt_net_run *run, uint64_t value, bool stopped) {
    uint64_t got = 0;
    if (pid <= 1 || !dt_process_read(pid, &got, run, 1) || got != value || (stopped && !is_stopped(pid))) return;
    kill((pid_t)pid, SIGKILL);
}

bool dt_process_readable(const dt_progress_member *member, int n, int self) {
    for (int r = 0; r < n; r++) {
        uint64_t got = 0;
        dt_net_run run = {member[r].probe, sizeof got};
        bool here = !strcmp(member[r].host, member[self].host);
        if (r != self && here && (!dt_process_read(member[r].pid, &got, &run, 1) || got != member[r].value)) return false;
    }
    return true;
}
