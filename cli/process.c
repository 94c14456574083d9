/* process.c - fork and exec for `up`, `model pull` and `doctor`.
 * Between fork and exec only async-signal-safe calls are made. PR_SET_PDEATHSIG ties a child's life to ours: it is set in the child, so the
 * parent may have died before; the child then sees another parent and leaves.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/process.h"

#include "sys/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

union argv_cast {
    const char *const *in;
    char *const *out; /* execvp's type; it does not write */
};

static _Noreturn void child(const struct cli_spawn *s, pid_t parent, int out_fd, int null_fd)
{
    sigset_t none;
    sigemptyset(&none);
    for (int sig = 1; sig < 32; sig++)
        (void)signal(sig, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (s->own_group)
        (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(125);
    (void)dup2(null_fd, 0);
    if (out_fd >= 0) {
        (void)dup2(out_fd, 1);
        if (s->log)
            (void)dup2(out_fd, 2);
    }
    (void)close_range(3, ~0U, 0);
    execvp(s->argv[0], ((union argv_cast){.in = s->argv}).out);
    _exit(127);
}

static kvs_status spawn_with(const struct cli_spawn *s, int out_fd, pid_t *pid_out, struct kvs_error *err)
{
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd < 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot open /dev/null: %s", strerror(errno));
    /* setenv is not safe after fork, so the parent's environment changes for the moment of the fork. */
    char *old = s->tmpdir && getenv("TMPDIR") ? strdup(getenv("TMPDIR")) : NULL;
    if (s->tmpdir)
        (void)setenv("TMPDIR", s->tmpdir, 1);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        child(s, parent, out_fd, null_fd);
    int fork_errno = errno;
    if (s->tmpdir && old)
        (void)setenv("TMPDIR", old, 1);
    else if (s->tmpdir)
        (void)unsetenv("TMPDIR");
    free(old);
    close(null_fd);
    if (pid < 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot start '%s': %s", s->argv[0], strerror(fork_errno));
    *pid_out = pid;
    return KVS_OK;
}

kvs_status cli_spawn(const struct cli_spawn *s, pid_t *pid_out, struct kvs_error *err)
{
    int fd = -1;
    if (s->log) {
        fd = open(s->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (fd < 0)
            return kvs_fail(err, KVS_SELF_IO, "cannot write '%.160s': %s", s->log, strerror(errno));
    }
    kvs_status st = spawn_with(s, fd, pid_out, err);
    if (fd >= 0)
        close(fd);
    return st;
}

/* Waits for the child until the deadline; true and the wait status when it ended. */
static bool wait_until(pid_t pid, uint64_t deadline_us, int *status_out)
{
    for (;;) {
        pid_t r = waitpid(pid, status_out, WNOHANG);
        if (r == pid)
            return true;
        if (r < 0 && errno != EINTR)
            return false;
        if (kvs_now_us() >= deadline_us)
            return false;
        kvs_sleep_us(2000);
    }
}

/* Reads what the child writes until it closes its end, the bound of out is reached or the time is up. */
static void drain(int fd, uint64_t deadline_us, struct kvs_buf *out)
{
    for (uint64_t now = kvs_now_us(); now < deadline_us; now = kvs_now_us()) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = poll(&p, 1, (int)((deadline_us - now) / 1000 + 1));
        if (ready < 0 && errno == EINTR)
            continue;
        char chunk[4096];
        ssize_t n = ready > 0 ? read(fd, chunk, sizeof chunk) : 0;
        if (n <= 0)
            return;
        if (out && kvs_buf_append(out, chunk, (size_t)n) != KVS_OK)
            out = NULL; /* full: the rest is read and dropped, so that the child can end */
    }
}

kvs_status cli_run(const char *const *argv, uint32_t timeout_ms, struct kvs_buf *out, int *code_out,
                   struct kvs_error *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot make a pipe: %s", strerror(errno));
    uint64_t deadline = kvs_now_us() + (uint64_t)timeout_ms * 1000;
    pid_t pid = 0;
    kvs_status s = spawn_with(&(struct cli_spawn){.argv = argv}, ends[1], &pid, err);
    close(ends[1]);
    if (s == KVS_OK)
        drain(ends[0], deadline, out);
    close(ends[0]);
    if (s != KVS_OK)
        return s;
    int status = 0;
    if (!wait_until(pid, deadline, &status)) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, &status, 0);
        return kvs_fail(err, KVS_PEER_TIMEOUT, "'%s' did not end within %u ms and was killed", argv[0], timeout_ms);
    }
    *code_out = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return KVS_OK;
}

kvs_status cli_sibling(const char *program, char *out, size_t cap, struct kvs_error *err)
{
    char self[CLI_PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot read /proc/self/exe: %s", strerror(errno));
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    int len = snprintf(out, cap, "%s/%s", self, program);
    if (len < 0 || (size_t)len >= cap)
        return kvs_fail(err, KVS_SELF_CONFIG, "the path of %s is too long", program);
    if (access(out, X_OK) != 0)
        return kvs_fail(err, KVS_SELF_CONFIG, "%s is missing beside kvasir; build it with: ./dev build", program);
    return KVS_OK;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    (void)remove(path);
    return 0;
}

void cli_remove_tree(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

kvs_status cli_make_dirs(const char *path, struct kvs_error *err)
{
    char part[CLI_PATH_MAX];
    int n = snprintf(part, sizeof part, "%s", path);
    if (n <= 0 || (size_t)n >= sizeof part)
        return kvs_fail(err, KVS_SELF_CONFIG, "a folder's path is empty or too long");
    for (char *c = part + 1;; c++) {
        if (*c && *c != '/')
            continue;
        char end = *c;
        *c = '\0';
        if (mkdir(part, 0755) != 0 && errno != EEXIST)
            return kvs_fail(err, KVS_SELF_CONFIG, "cannot make the folder '%.160s': %s", part, strerror(errno));
        if (!end)
            return KVS_OK;
        *c = end;
    }
}
