/* cache.c - `kvasir cache flush [WORKER]`: workers forget their cached prefixes; what running requests hold stays theirs.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/order.h"

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define REPLY_MAX (256u << 10)

static const struct kvs_config_row rows[] = {CLI_ORDER_ROWS("cache")};

static kvs_status flush(const struct cli_order_config *c, const char *worker, json_t **out, struct kvs_error *err)
{
    char path[128], base[300];
    struct kvs_buf body;
    kvs_buf_init(&body, REPLY_MAX);
    (void)kvs_format(path, sizeof path, "/kvasir/cache/flush%s%s", worker[0] ? "/" : "", worker);
    kvs_status s = cli_order_reply(c, path, base, &body, err);
    *out = s == KVS_OK ? json_loadb(kvs_buf_text(&body), body.len, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (s == KVS_OK && !json_is_array(json_object_get(*out, "workers"))) {
        json_decref(*out);
        s = kvs_fail(err, KVS_PEER_PROTOCOL, "%s is no Kvasir router: its answer is not what was asked for", base);
    }
    kvs_buf_fini(&body);
    return s;
}

/* Exit code: 1 when a worker did not do it. */
static int print_reply(const json_t *reply)
{
    const json_t *w;
    size_t i;
    int code = 0;
    json_array_foreach(json_object_get(reply, "workers"), i, w)
    {
        const char *id = json_string_value(json_object_get(w, "id"));
        const char *why = json_string_value(json_object_get(w, "error"));
        if (why)
            printf("%s: %s\n", id ? id : "-", why);
        else
            printf("%s: %lld tokens forgotten\n", id ? id : "-",
                   (long long)json_integer_value(json_object_get(w, "tokens")));
        code = why ? CLI_EXIT_FAILED : code;
    }
    return code;
}

int cli_cache(int argc, char **argv)
{
    struct cli_order_config c = {0};
    struct kvs_error err = {0};
    json_t *reply = NULL;
    static const struct cli_usage usage = {.text = "usage: kvasir cache flush [WORKER] [--url HOST:PORT] [--auth-file FILE]",
                                           .positionals_max = 2};
    int rest, code = cli_flags(rows, sizeof rows / sizeof rows[0], &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    bool one = argc - rest == 2;
    kvs_status s = KVS_OK;
    if (rest == argc || strcmp(argv[rest], "flush") != 0)
        s = kvs_fail(&err, KVS_SELF_CONFIG, "use: kvasir cache flush, or kvasir cache flush WORKER");
    else if (one)
        s = cli_order_worker("cache flush", argv[rest + 1], &err);
    if (s == KVS_OK)
        s = flush(&c, one ? argv[rest + 1] : "", &reply, &err);
    if (s != KVS_OK)
        return cli_failed(&err);
    code = print_reply(reply);
    json_decref(reply);
    return code;
}
