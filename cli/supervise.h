/* supervise.h - the children of `kvasir up`: started, watched, started again with pacing, and ended without exception.
 * One thread. A child that ends is reaped as soon as its SIGCHLD is read, so no zombie and no stale pid file stays.
 *
 *   stopped --start--> running --ended--> waiting (paced) --time--> running        --no-restart, or exit code 0 (drained): stopped;
 *                                                                                 the last router drained: all stop
 *   running --stop: SIGTERM--> ... bound passed: SIGKILL --> stopped
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_SUPERVISE_H
#define KVS_CLI_SUPERVISE_H

#include "cli/pace.h"
#include "cli/up_plan.h"
#include <sys/types.h>

struct cli_child {
    pid_t pid;              /* 0: not running */
    uint64_t restart_at_us; /* 0: none planned */
    uint32_t starts;
    struct cli_pace pace;
    bool refused; /* it ended by itself with a code that is not 0 */
    int code;     /* of its last end: exit code, or 128 + signal */
};
struct cli_supervisor {
    const struct cli_up_plan *plan;
    const char *run_dir;
    bool restart;
    bool ready; /* the cluster has been up once; before, a daemon that refuses to start is not tried again */
    uint32_t only_router;    /* of the plan; when it drains, nobody is left to ask. plan->count: clients may have others elsewhere */
    bool router_left;
    int signal_fd;
    int stop_signal;         /* that asked us to stop; 0: none did */
    struct cli_child child[CLI_UP_DAEMONS_MAX];
};
typedef enum cli_wake { CLI_WAKE_TIME, CLI_WAKE_CHILD, CLI_WAKE_STOP } cli_wake;

/* Blocks SIGCHLD, SIGINT, SIGTERM and SIGHUP in this process and reads them from a descriptor. */
KVS_MUST_CHECK kvs_status cli_supervisor_init(struct cli_supervisor *s, const struct cli_up_plan *plan,
                                              const char *run_dir, bool restart, struct kvs_error *err);
KVS_MUST_CHECK kvs_status cli_supervisor_start(struct cli_supervisor *s,
                                               struct kvs_error *err); /* all of them, router first */
/* Waits for a signal or until_us, restarts what is due, reaps what ended. STOP: SIGINT, SIGTERM or SIGHUP came, or the
 * last router has drained. */
cli_wake cli_supervisor_wait(struct cli_supervisor *s, uint64_t until_us);
/* Ends all. After SIGTERM or SIGHUP the router first drains (it ends when its requests have); after SIGINT, or without a signal, nobody waits
 * for anything. Then the rest: SIGTERM, after grace_us SIGKILL; a further stop signal kills at once. Removes pid files and sockets. */
void cli_supervisor_stop(struct cli_supervisor *s, uint64_t grace_us);

#endif
