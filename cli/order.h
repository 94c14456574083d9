/* order.h - what the commands share that tell a router to change something: the worker's name, the key, the POST.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_ORDER_H
#define KVS_CLI_ORDER_H

#include "cli/http_client.h"

/* First fields of such a command's configuration, and their rows. */
struct cli_order_config {
    char url[256], auth_file[512];
};
#define CLI_ORDER_ROWS(name)                                                                                                                \
    {name ".url", "url", KVS_CFG_STRING, "127.0.0.1:8080", 0, 256, NULL, "the router's HOST:PORT", offsetof(struct cli_order_config, url)}, \
    {name ".auth_file", "auth-file", KVS_CFG_STRING, NULL, 0, 512, NULL, "file with the cluster's key (or KVASIR_AUTH)",                     \
     offsetof(struct cli_order_config, auth_file)}

/* Could be a worker's name; otherwise says so, with the command's name. */
KVS_MUST_CHECK kvs_status cli_order_worker(const char *command, const char *name, struct kvs_error *err);
/* POST to path ("/kvasir/..."); anything but a 200 is an error with the router's text. base_out (300 bytes) gets the router's URL. */
KVS_MUST_CHECK kvs_status cli_order(const struct cli_order_config *c, const char *path, char *base_out, struct kvs_error *err);
/* The same; the answer is appended to body. */
KVS_MUST_CHECK kvs_status cli_order_reply(const struct cli_order_config *c, const char *path, char *base_out, struct kvs_buf *body,
                                          struct kvs_error *err);

#endif
