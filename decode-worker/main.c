/* main.c - kvasir-decode-worker: a worker daemon with the decode role. It has the machines of both, since its role can be changed and others may fetch what
 * it has cached.
 * SPDX-License-Identifier: Apache-2.0 */
#include "decode-worker/edge/sink.h"
#include "prefill-worker/edge/source.h"
#include "worker/edge/worker.h"

int main(int argc, char **argv)
{
    const struct wrk_role_ops *roles[] = {&pfw_role, &dcw_role};
    return wrk_main(argc, argv, MSG_ROLE_DECODE, roles, 2);
}
