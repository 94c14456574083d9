/* process.c - the UCX environment of a process, set before UCX is loaded.
 * UCX is configured through the environment only: ucp_config_modify takes any name in silence. Lanes differ per peer within one process,
 * and setenv is no call for a threaded program, so both sets stand in the environment from the start under prefixes of their own:
 * ucp_config_read("KVNEAR") reads KVNEAR_UCX_TLS before UCX_TLS. Settings of a memory domain (UCX_CMA_*) do not follow the prefix
 * (tried with 1.13) and are harmless where cma is not in the list, so they are set plainly.
 *
 * UCX_ERROR_SIGNALS is read by UCX's constructor, before main: the program is executed once more with it in place. Otherwise UCX
 * would take over SIGILL, SIGSEGV, SIGBUS and SIGFPE. What the user has set himself is left as it is.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvtransfer/port_private.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX_NEAR "KVNEAR"
#define PREFIX_TCP "KVTCP"

static const struct {
    const char *name, *value;
} settings[] = {
    {PREFIX_NEAR "_UCX_TLS", "cma,tcp,self"},
    {PREFIX_NEAR "_UCX_RNDV_SCHEME", "get_zcopy"},
    {PREFIX_TCP "_UCX_TLS", "tcp,self"},
    {"UCX_CMA_MEMORY_INVALIDATE", "y"}, /* else peer-failure mode drops cma without a word */
    {"UCX_POSIX_ERROR_HANDLING", "y"},  /* for whoever puts posix into a list */
    {"UCX_KEEPALIVE_INTERVAL", "500ms"},
    {"UCX_NET_DEVICES", "lo"}, /* workers listen on loopback unless told otherwise: keep pages off other networks */
    {"UCX_MEM_MMAP_HOOK_MODE",
     "none"}, /* no patched mmap: tcp and cma cache no registrations; RDMA will want it back */
    /* A connect that blocks would stop every peer's transfers, and one that is refused at once (a peer that died before we came)
     * sometimes aborts UCX 1.13 by an assertion: 4 of 117 wire-ups with a dying peer, none of 280 with this. */
    {"UCX_TCP_CONN_NB", "y"},
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    {"UCX_LOG_LEVEL", "error"},
    {"UCX_ERROR_SIGNALS", ""},
};

const char *kvt_lane_prefix(kvt_lane lane)
{
    return lane == KVT_LANE_NEAR ? PREFIX_NEAR : PREFIX_TCP;
}

bool kvt_process_prepared(void)
{
    return getenv(PREFIX_NEAR "_UCX_TLS") != NULL && getenv(PREFIX_TCP "_UCX_TLS") != NULL;
}

void kvt_prepare_process(int argc, char **argv)
{
    KVS_ASSERT(argc >= 0 && argv != NULL);
    bool late = false; /* the log level and some others are read by the constructor, too */
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        late = late || getenv(settings[i].name) == NULL;
        int r = setenv(settings[i].name, settings[i].value, 0);
        KVS_ASSERT(r == 0);
    }
    if (!late)
        return;
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return; /* no /proc: UCX keeps its signal handlers, everything else works */
    self[n] = '\0';
    execv(self, argv); /* the path, not the link: the process keeps its name */
}
