/* order.c - see order.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/order.h"

#include "sys/secret.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* What stands in a URL as it is; worker names consist of such characters. */
static bool is_name(const char *text)
{
    bool good = text[0] != 0 && strlen(text) < 64;
    for (const char *c = text; good && *c; c++)
        good = isalnum((unsigned char)*c) || strchr("-_.", *c) != NULL;
    return good;
}

kvs_status cli_order_worker(const char *command, const char *name, struct kvs_error *err)
{
    if (name != NULL && is_name(name))
        return KVS_OK;
    return kvs_fail(err, KVS_SELF_CONFIG, "%s needs the name of a worker; kvasir status lists them", command);
}

kvs_status cli_order(const struct cli_order_config *c, const char *path, char *base_out, struct kvs_error *err)
{
    struct kvs_buf body;
    kvs_buf_init(&body, 65536);
    kvs_status s = cli_order_reply(c, path, base_out, &body, err);
    kvs_buf_fini(&body);
    return s;
}

kvs_status cli_order_reply(const struct cli_order_config *c, const char *path, char *base_out, struct kvs_buf *body, struct kvs_error *err)
{
    char url[500], text[256], key[KVS_SECRET_MAX];
    kvs_status s = cli_base_url(c->url, base_out, 300, err);
    if (s == KVS_OK)
        s = kvs_secret_load(c->auth_file, key, err);
    if (s != KVS_OK)
        return s;
    (void)kvs_format(url, sizeof url, "%s%s", base_out, path);
    struct cli_http h = {.url = url, .body = "{}", .bearer = key, .timeout_ms = 10000, .connect_ms = 5000, .out = body};
    s = cli_http(&h, err);
    if (s == KVS_OK && h.status != 200) {
        cli_http_error_text(&h, body, text, sizeof text);
        s = kvs_fail(err, KVS_PEER_REFUSED, "%s", text);
    }
    return s;
}
