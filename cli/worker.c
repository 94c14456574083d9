/* worker.c - `kvasir worker`: one worker process with both roles, prefill and decode. It serves a whole model by itself, and pairs with
 * others of its kind or with the single-role daemons.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "decode-worker/edge/sink.h"
#include "prefill-worker/edge/source.h"
#include "worker/edge/worker.h"

int cli_worker(int argc, char **argv)
{
    const struct wrk_role_ops *roles[] = {&pfw_role, &dcw_role};
    kvt_prepare_process(argc + 1, argv - 1); /* it may run the program anew: with the command's name in front */
    return wrk_main(argc, argv, MSG_ROLE_BOTH, roles, 2);
}
