/* drain.c - `kvasir drain WORKER`: the router tells the worker to take nothing new, to let its sequences move or finish, and to end.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/order.h"

#include <stddef.h>
#include <stdio.h>

static const struct kvs_config_row rows[] = {CLI_ORDER_ROWS("drain")};

int cli_drain(int argc, char **argv)
{
    struct cli_order_config c = {0};
    struct kvs_error err = {0};
    char base[300], path[128];
    static const struct cli_usage usage = {.text = "usage: kvasir drain WORKER [--url HOST:PORT] [--auth-file FILE]", .positionals_max = 1};
    int rest, code = cli_flags(rows, sizeof rows / sizeof rows[0], &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    kvs_status s = cli_order_worker("drain", rest < argc ? argv[rest] : NULL, &err);
    if (s == KVS_OK) {
        (void)kvs_format(path, sizeof path, "/kvasir/drain/%s", argv[rest]);
        s = cli_order(&c, path, base, &err);
    }
    if (s != KVS_OK)
        return cli_failed(&err);
    printf("%s drains: it takes nothing new, and ends when what it has is done or has moved\n", argv[rest]);
    return 0;
}
