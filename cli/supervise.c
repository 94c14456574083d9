/* supervise.c - see supervise.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/supervise.h"

#include "cli/process.h"
#include "sys/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH_CAP (CLI_PATH_MAX + 64)
#define DRAIN_US 35000000u /* a router's own bound is 30 s */

static uint32_t find_router(const struct cli_up_plan *plan)
{
    uint32_t i = 0;
    while (i < plan->count && strcmp(plan->daemon[i].name, "router") != 0)
        i++;
    return i;
}

kvs_status cli_supervisor_init(struct cli_supervisor *s, const struct cli_up_plan *plan, const char *run_dir,
                               bool restart, struct kvs_error *err)
{
    *s = (struct cli_supervisor){.plan = plan, .run_dir = run_dir, .restart = restart, .signal_fd = -1};
    s->only_router = find_router(plan);
    if (plan->routers_elsewhere)
        s->only_router = plan->count;
    static const int signals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        sigaddset(&set, signals[i]);
        (void)signal(signals[i], SIG_DFL); /* a shell starts background jobs with SIGINT ignored */
    }
    (void)signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) == 0)
        s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd >= 0 ? KVS_OK : kvs_fail(err, KVS_SELF_IO, "cannot watch for signals: %s", strerror(errno));
}

static void pid_path(const struct cli_supervisor *s, uint32_t i, char *out, size_t cap)
{
    (void)kvs_format(out, cap, "%s/%s.pid", s->run_dir, s->plan->daemon[i].name);
}

static kvs_status write_pid(const struct cli_supervisor *s, uint32_t i, struct kvs_error *err)
{
    char path[PATH_CAP], fresh[PATH_CAP];
    pid_path(s, i, path, sizeof path);
    (void)kvs_format(fresh, sizeof fresh, "%s/.%s.pid", s->run_dir, s->plan->daemon[i].name);
    FILE *f = fopen(fresh, "we");
    bool ok = f && fprintf(f, "%ld\n", (long)s->child[i].pid) > 0;
    ok = f && fclose(f) == 0 && ok && rename(fresh, path) == 0;
    return ok ? KVS_OK : kvs_fail(err, KVS_SELF_IO, "cannot write '%.160s': %s", path, strerror(errno));
}

static kvs_status start_one(struct cli_supervisor *s, uint32_t i, struct kvs_error *err)
{
    const struct cli_daemon *d = &s->plan->daemon[i];
    struct cli_child *c = &s->child[i];
    char log[PATH_CAP];
    (void)kvs_format(log, sizeof log, "%s/%s.log", s->run_dir, d->name);
    if (d->socket[0])
        (void)unlink(d->socket); /* left by a life that was killed */
    if (c->starts == 0)
        (void)unlink(log);
    kvs_status st = cli_spawn(&(struct cli_spawn){.argv = d->argv, .log = log, .own_group = true}, &c->pid, err);
    if (st != KVS_OK)
        return st;
    c->starts++;
    c->restart_at_us = 0;
    c->refused = false;
    cli_pace_started(&c->pace, kvs_now_us());
    return write_pid(s, i, err);
}

kvs_status cli_supervisor_start(struct cli_supervisor *s, struct kvs_error *err)
{
    for (uint32_t i = 0; i < s->plan->count; i++) {
        kvs_status st = start_one(s, i, err);
        if (st != KVS_OK)
            return st;
    }
    return KVS_OK;
}

static void ended(struct cli_supervisor *s, uint32_t i, int status, bool restart)
{
    struct cli_child *c = &s->child[i];
    char path[PATH_CAP];
    pid_path(s, i, path, sizeof path);
    (void)unlink(path);
    c->pid = 0;
    c->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    c->refused = WIFEXITED(status) && WEXITSTATUS(status) != 0;
    if (c->code == 0 && i == s->only_router) {
        s->router_left = true; /* nobody is left whom clients could ask */
        return;
    }
    if (!restart || (c->refused && !s->ready))
        return;
    if (c->code == 0) {
        fprintf(stderr, "kvasir: %s has drained and ended; it is not started again\n", s->plan->daemon[i].name);
        return;
    }
    fprintf(stderr, "kvasir: %s ended (%s %d), starting it again\n", s->plan->daemon[i].name,
            WIFEXITED(status) ? "code" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    c->restart_at_us = cli_pace_next_us(&c->pace, kvs_now_us());
}

/* Every child that ended, whether or not its signal was merged with another's. Returns how many. */
static uint32_t reap(struct cli_supervisor *s, bool restart)
{
    uint32_t n = 0;
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        for (uint32_t i = 0; i < s->plan->count; i++) {
            if (s->child[i].pid != pid)
                continue;
            ended(s, i, status, restart);
            n++;
        }
    }
    return n;
}

static uint64_t restart_due(struct cli_supervisor *s, uint64_t until_us)
{
    for (uint32_t i = 0; i < s->plan->count; i++) {
        struct cli_child *c = &s->child[i];
        struct kvs_error err = {0};
        if (!c->restart_at_us)
            continue;
        if (c->restart_at_us <= kvs_now_us() && start_one(s, i, &err) != KVS_OK) {
            fprintf(stderr, "kvasir: error: %s\n", err.text);
            c->restart_at_us = cli_pace_next_us(&c->pace, kvs_now_us());
        }
        if (c->restart_at_us && c->restart_at_us < until_us)
            until_us = c->restart_at_us;
    }
    return until_us;
}

/* Reads what signals came; true when one of them asks us to stop. */
static bool stop_asked(struct cli_supervisor *s)
{
    struct signalfd_siginfo info;
    bool stop = false;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        stop = true;
        s->stop_signal = (int)info.ssi_signo;
    }
    return stop;
}

static void wait_signal(const struct cli_supervisor *s, uint64_t until_us)
{
    uint64_t now = kvs_now_us();
    uint64_t left = until_us > now ? until_us - now : 0;
    int ms = left > 3600000000u ? 3600000 : (int)((left + 999) / 1000);
    struct pollfd p = {.fd = s->signal_fd, .events = POLLIN};
    (void)poll(&p, 1, ms);
}

cli_wake cli_supervisor_wait(struct cli_supervisor *s, uint64_t until_us)
{
    for (;;) {
        uint64_t until = restart_due(s, until_us);
        wait_signal(s, until);
        if (stop_asked(s))
            return CLI_WAKE_STOP; /* before reaping: what ended may have been told to */
        bool ended_some = reap(s, s->restart) > 0;
        if (s->router_left && s->ready) {
            fprintf(stderr, "kvasir: the router has drained and ended, and it was the only one: all end\n");
            s->stop_signal = SIGTERM;
            return CLI_WAKE_STOP;
        }
        if (ended_some)
            return CLI_WAKE_CHILD;
        if (kvs_now_us() >= until_us)
            return CLI_WAKE_TIME;
    }
}

static uint32_t send_all(const struct cli_supervisor *s, int sig)
{
    uint32_t running = 0;
    for (uint32_t i = 0; i < s->plan->count; i++) {
        if (s->child[i].pid > 0) {
            (void)kill(s->child[i].pid, sig);
            running++;
        }
    }
    return running;
}

static uint32_t count_running(const struct cli_supervisor *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->plan->count; i++)
        n += s->child[i].pid > 0;
    return n;
}

/* Waits until the router has let its requests finish, while the workers still serve them. False: a second stop signal came. */
static bool drain_router(struct cli_supervisor *s)
{
    uint64_t until_us = kvs_now_us() + DRAIN_US;
    uint32_t router = find_router(s->plan);
    if (router == s->plan->count || s->child[router].pid <= 0)
        return true;
    (void)kill(s->child[router].pid, SIGTERM);
    (void)kill(s->child[router].pid, SIGCONT);
    while (s->child[router].pid > 0 && kvs_now_us() < until_us) {
        wait_signal(s, until_us);
        if (stop_asked(s))
            return false;
        (void)reap(s, false);
    }
    return true;
}

void cli_supervisor_stop(struct cli_supervisor *s, uint64_t grace_us)
{
    int asked = s->stop_signal;
    bool killed = (asked == SIGTERM || asked == SIGHUP) && !drain_router(s);
    uint64_t kill_at = kvs_now_us() + grace_us;
    (void)send_all(s, killed ? SIGKILL : asked == SIGINT ? SIGINT : SIGTERM);
    (void)send_all(s, SIGCONT); /* a stopped process cannot leave */
    while (count_running(s) > 0) {
        wait_signal(s, killed ? kvs_now_us() + 100000 : kill_at);
        bool again = stop_asked(s);
        (void)reap(s, false);
        if (!killed && (again || kvs_now_us() >= kill_at))
            killed = send_all(s, SIGKILL) > 0;
    }
    for (uint32_t i = 0; i < s->plan->count; i++)
        if (s->plan->daemon[i].socket[0])
            (void)unlink(s->plan->daemon[i].socket);
    if (s->signal_fd >= 0)
        close(s->signal_fd);
    s->signal_fd = -1;
}
