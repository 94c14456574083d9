/* limits.c - see limits.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sys/limits.h"

#include "sys/log.h"

#include <inttypes.h>
#include <malloc.h>
#include <sys/resource.h>

#define MAPPED_FROM (128 << 10)

bool kvs_descriptors_raise(uint64_t needed, uint64_t *have_out)
{
    struct rlimit r;
    *have_out = UINT64_MAX;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return true; /* nobody knows of a limit */
    if (r.rlim_cur != r.rlim_max) {
        struct rlimit raised = {.rlim_cur = r.rlim_max, .rlim_max = r.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
            r = raised;
    }
    if (r.rlim_cur != RLIM_INFINITY)
        *have_out = r.rlim_cur;
    return *have_out >= needed;
}

void kvs_descriptors_check(uint64_t needed, const char *lower)
{
    uint64_t have;
    if (kvs_descriptors_raise(needed, &have))
        KVS_DEBUG("descriptors", "have=%" PRIu64 " needed=%" PRIu64, have, needed);
    else
        KVS_WARN("descriptors may run out", "have=%" PRIu64 " needed=%" PRIu64 " remedy=\"raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=), or lower %s\"",
                 have, needed, lower);
}

void kvs_memory_give_back(void)
{
#ifdef M_MMAP_THRESHOLD
    (void)mallopt(M_MMAP_THRESHOLD, MAPPED_FROM); /* naming it is what ends its growth; it fails for values beyond 32 MiB only */
#endif
}
