/* listen.h - "HOST:PORT" as a place to listen: checked before anything is started, port 0 turned into a free one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_LISTEN_H
#define KVS_CLI_LISTEN_H

#include "cli/cli.h"

/* Splits text ("127.0.0.1:8080", "[::1]:8080", "localhost:0"). KVS_SELF_CONFIG with the remedy. */
KVS_MUST_CHECK kvs_status cli_listen_split(const char *text, char *host_out, size_t host_cap, uint16_t *port_out,
                                           struct kvs_error *err);
/* Binds there until *fd_out is closed. listen_out: the same address with the port that was free; a daemon may listen there meanwhile.
 * KVS_SELF_CONFIG when it is in use or not ours. */
KVS_MUST_CHECK kvs_status cli_listen_hold(const char *text, char *listen_out, size_t cap, int *fd_out, struct kvs_error *err);
/* The same for a moment. */
KVS_MUST_CHECK kvs_status cli_listen_check(const char *text, char *listen_out, size_t cap, struct kvs_error *err);

#endif
