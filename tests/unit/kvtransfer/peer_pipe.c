/* peer_pipe.c - starting helper programs and talking to them; see peer_helper.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/kvtransfer/peer_helper.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

bool helper_read_fd(int fd, void *p, size_t n)
{
    for (size_t got = 0; got < n;) {
        ssize_t r = read(fd, (char *)p + got, n - got);
        if (r == 0 || (r < 0 && errno != EINTR))
            return false;
        got += r > 0 ? (size_t)r : 0;
    }
    return true;
}

void helper_write_fd(int fd, const void *p, size_t n)
{
    for (size_t put = 0; put < n;) {
        ssize_t r = write(fd, (const char *)p + put, n - put);
        if (r < 0 && errno != EINTR)
            return; /* it is gone: whoever waits for its answer will see */
        put += r > 0 ? (size_t)r : 0;
    }
}

static void run_child(const char *path, const char *lane, const char *faults, int in, int out)
{
    char *argv[] = {(char *)path, (char *)lane, NULL};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("KVASIR_FAILPOINTS_SET", faults, 1);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0)
        _exit(8);
    close_range(3, UINT_MAX, 0); /* UCX's descriptors are not close-on-exec */
    execv(path, argv);
    _exit(8);
}

void helper_start(struct helper *h, const char *name, const char *lane, const char *faults)
{
    char path[PATH_MAX];
    int to[2], from[2];
    signal(SIGPIPE, SIG_IGN);
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0 || pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
        abort();
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    snprintf(slash + 1, sizeof path - (size_t)(slash + 1 - path), "%s", name);
    fflush(NULL);
    h->pid = fork();
    if (h->pid < 0)
        abort();
    if (h->pid == 0)
        run_child(path, lane, faults, to[0], from[1]);
    close(to[0]);
    close(from[1]);
    h->in = to[1];
    h->out = from[0];
}

void helper_write(const struct helper *h, const void *p, size_t n)
{
    helper_write_fd(h->in, p, n);
}

bool helper_read(const struct helper *h, void *p, size_t n)
{
    return helper_read_fd(h->out, p, n);
}

void helper_kill(struct helper *h)
{
    kill(h->pid, SIGKILL);
}

int helper_reap(struct helper *h)
{
    int status = -1;
    close(h->in);
    close(h->out);
    while (waitpid(h->pid, &status, 0) < 0 && errno == EINTR)
        ;
    h->pid = 0;
    return status;
}
