/* main.c - kvasir-prefill-worker: a worker daemon with the prefill role.
 * SPDX-License-Identifier: Apache-2.0 */
#include "prefill-worker/edge/source.h"
#include "worker/edge/worker.h"

int main(int argc, char **argv)
{
    const struct wrk_role_ops *roles[] = {&pfw_role};
    return wrk_main(argc, argv, MSG_ROLE_PREFILL, roles, 1);
}
