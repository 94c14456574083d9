/* role.c - `kvasir role WORKER prefill|decode|both`: the router tells the worker what to be from now on; then this waits until the router sees it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/cluster_view.h"
#include "cli/order.h"
#include "sys/clock.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SEEN_US 10000000u
#define LOOK_NS 100000000

static const struct kvs_config_row rows[] = {CLI_ORDER_ROWS("role")};

/* Whether the router's view has it in that role. */
static kvs_status look(const char *base, const char *worker, const char *role, bool *seen, struct kvs_error *err)
{
    json_t *view = NULL;
    const json_t *w;
    size_t i;
    kvs_status s = cli_cluster_view(base, 5000, &view, err);
    *seen = false;
    if (s != KVS_OK)
        return s;
    const json_t *workers = json_object_get(view, "workers");
    json_array_foreach(workers, i, w)
    {
        const char *id = json_string_value(json_object_get(w, "id")), *is = json_string_value(json_object_get(w, "role"));
        *seen = *seen || (id && is && strcmp(id, worker) == 0 && strcmp(is, role) == 0);
    }
    json_decref(view);
    return KVS_OK;
}

static kvs_status wait_until_seen(const char *base, const char *worker, const char *role, struct kvs_error *err)
{
    uint64_t until = kvs_now_us() + SEEN_US;
    bool seen = false;
    kvs_status s = look(base, worker, role, &seen, err);
    while (s == KVS_OK && !seen && kvs_now_us() < until) {
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        s = look(base, worker, role, &seen, err);
    }
    if (s != KVS_OK || seen)
        return s;
    return kvs_fail(err, KVS_PEER_TIMEOUT, "%s was told, but is not seen as %s after 10 s; a worker that drains takes no other role, its log says more",
                    worker, role);
}

int cli_role(int argc, char **argv)
{
    struct cli_order_config c = {0};
    struct kvs_error err = {0};
    char base[300], path[128];
    static const struct cli_usage usage = {.text = "usage: kvasir role WORKER prefill|decode|both [--url HOST:PORT] [--auth-file FILE]",
                                           .positionals_max = 2};
    int rest, code = cli_flags(rows, sizeof rows / sizeof rows[0], &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    const char *worker = rest < argc ? argv[rest] : NULL, *role = rest + 1 < argc ? argv[rest + 1] : "";
    kvs_status s = cli_order_worker("role", worker, &err);
    if (s == KVS_OK && strcmp(role, "prefill") && strcmp(role, "decode") && strcmp(role, "both"))
        s = kvs_fail(&err, KVS_SELF_CONFIG, "role needs what the worker is to be: prefill, decode or both");
    if (s == KVS_OK) {
        (void)kvs_format(path, sizeof path, "/kvasir/role/%s/%s", worker, role);
        s = cli_order(&c, path, base, &err);
    }
    if (s == KVS_OK)
        s = wait_until_seen(base, worker, role, &err);
    if (s != KVS_OK)
        return cli_failed(&err);
    printf("%s is %s from now on; what it decodes moves first, its cache stays\n", worker, role);
    return 0;
}
