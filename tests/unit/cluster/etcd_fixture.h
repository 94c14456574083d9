/* etcd_fixture.h - the etcd fixture's inside, for tests of what only etcd has.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TEST_ETCD_FIXTURE_H
#define KVS_TEST_ETCD_FIXTURE_H

#include "discovery_fixture.h"
#include "etcd_server.h"

extern struct etcd_servers etcd_fixture_servers;
extern char etcd_fixture_cluster[32];                         /* the current test's */
extern const char *etcd_fixture_user, *etcd_fixture_password; /* NULL: none */
struct participant *etcd_fixture_join(const struct msg_card *card, const char *url, uint64_t ttl_us);
void etcd_fixture_end(void); /* the server, after the last test */

#endif
