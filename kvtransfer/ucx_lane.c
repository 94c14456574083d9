/* ucx_lane.c - reads from UCX's description of an endpoint which transport carries rendezvous data.
 * UCX falls back in silence (peer-failure mode without UCX_CMA_MEMORY_INVALIDATE drops cma without a word), and offers no call that
 * names a lane; the text of ucp_ep_print_info does:
 *     lane[0]:  1:tcp/lo.0 md[1]      -> md[1]/tcp/sysdev[255] am am_bw#0 keepalive wireup
 *     lane[1]:  2:cma/memory.0 md[2]  -> md[2]/cma/sysdev[255] rma_bw#0
 * A lane for rma_bw takes rendezvous reads; without one the pages go as active messages over the am_bw lane, or the am lane.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvtransfer/ucx_lane.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool begins(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

static const char *family(const char *name)
{
    static const char *const rdma[] = {"rc", "ud", "dc"};
    static const char *const plain[] = {"cma", "tcp", "sysv", "posix", "self"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (begins(name, plain[i]))
            return plain[i];
    for (size_t i = 0; i < sizeof rdma / sizeof *rdma; i++)
        if (begins(name, rdma[i]))
            return "rdma";
    return "unknown";
}

static bool has(const char *line, const char *end, const char *word)
{
    const char *at = strstr(line, word);
    return at != NULL && at < end;
}

const char *kvt_ucx_transport_of_text(const char *text)
{
    const char *best = "unknown";
    int rank = 0;
    for (const char *line = strstr(text, "lane["); line != NULL; line = strstr(line + 1, " lane[")) {
        const char *end = strchr(line, '\n');
        const char *name = strchr(line, ':');
        end = end == NULL ? line + strlen(line) : end;
        name = name == NULL || name > end ? NULL : strchr(name + 1, ':'); /* "lane[0]:  1:tcp/lo.0" */
        if (name == NULL || name > end)
            continue;
        int r = has(line, end, " rma_bw") ? 3 : has(line, end, " am_bw") ? 2 : 1;
        if (r > rank) {
            rank = r;
            best = family(name + 1);
        }
    }
    return best;
}

const char *kvt_ucx_transport(ucp_ep_h ep)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (f == NULL)
        return "unknown";
    ucp_ep_print_info(ep, f);
    if (fclose(f) != 0) {
        free(text);
        return "unknown";
    }
    const char *name = kvt_ucx_transport_of_text(text);
    free(text);
    return name;
}
