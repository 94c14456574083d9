/* drain.c - `kvasir drain WORKER`: the router tells the worker to take nothing new, to let its sequences move or finish, and to end.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/http_client.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct drain_config {
    char url[256];
};
static const struct kvs_config_row rows[] = {
    {"drain.url", "url", KVS_CFG_STRING, "127.0.0.1:8080", 0, 256, NULL, "the router's HOST:PORT", offsetof(struct drain_config, url)},
};

/* What stands in a URL as it is; worker names consist of such characters. */
static bool is_name(const char *text)
{
    bool good = text[0] != 0 && strlen(text) < 64;
    for (const char *c = text; good && *c; c++)
        good = isalnum((unsigned char)*c) || strchr("-_.", *c) != NULL;
    return good;
}

static kvs_status order(const char *base, const char *worker, struct kvs_error *err)
{
    char url[400], text[256];
    struct kvs_buf body;
    kvs_buf_init(&body, 65536);
    (void)kvs_format(url, sizeof url, "%s/kvasir/drain/%s", base, worker);
    struct cli_http h = {.url = url, .body = "{}", .timeout_ms = 5000, .connect_ms = 5000, .out = &body};
    kvs_status s = cli_http(&h, err);
    if (s == KVS_OK && h.status != 200) {
        cli_http_error_text(&h, &body, text, sizeof text);
        s = kvs_fail(err, KVS_PEER_REFUSED, "%s", text);
    }
    kvs_buf_fini(&body);
    return s;
}

int cli_drain(int argc, char **argv)
{
    struct drain_config c = {0};
    struct kvs_error err = {0};
    char base[300];
    static const struct cli_usage usage = {.text = "usage: kvasir drain WORKER [--url HOST:PORT]", .positionals_max = 1};
    int rest, code = cli_flags(rows, sizeof rows / sizeof rows[0], &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    if (rest == argc || !is_name(argv[rest])) {
        (void)kvs_fail(&err, KVS_SELF_CONFIG, "drain needs the name of a worker; kvasir status lists them");
        return cli_failed(&err);
    }
    kvs_status s = cli_base_url(c.url, base, sizeof base, &err);
    if (s == KVS_OK)
        s = order(base, argv[rest], &err);
    if (s != KVS_OK)
        return cli_failed(&err);
    printf("%s drains: it takes nothing new, and ends when what it has is done or has moved\n", argv[rest]);
    return 0;
}
