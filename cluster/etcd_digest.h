/* etcd_digest.h - digests of prefix caches in etcd: a worker writes its own, a router that is new reads everybody's. Edge; loop thread.
 *   /kvasir/v1/<cluster>/cache/<model>/<id>/seg/<n>     msg_cache_digest, on the lease of the member's card
 * (Characters of the model's name other than letters, digits, '.', '-' and '_' are written as %XX.)
 * Both have a connection to etcd of their own: membership never waits for them, and what fails is tried again later or left: a digest is a
 * hint. Writing: once a second at most, the segments that changed, at most CLS_DIGEST_WRITES of them; with a new lease all of them again.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLUSTER_ETCD_DIGEST_H
#define KVS_CLUSTER_ETCD_DIGEST_H

#include "cluster/core/digest.h"
#include "cluster/discovery.h"

#define CLS_DIGEST_WRITES 4u /* segments a second */

struct cls_digest_writer;
struct cls_digest_writer_config {
    struct kvs_loop *loop;
    const struct cls_etcd_config *etcd;
    struct cls_discovery *membership; /* etcd's; it has the lease. Outlives the writer */
    const struct msg_card *card;      /* id, epoch and model are copied */
    struct cls_digest *digest;        /* outlives the writer */
    void (*refresh)(void *user);      /* before every look at the digest: bring it up to date */
    void *user;
};
struct cls_digest_writer_stats {
    uint64_t written, bytes, failures;
};
KVS_MUST_CHECK kvs_status cls_digest_writer_create(const struct cls_digest_writer_config *c,
                                                   struct cls_digest_writer **out, struct kvs_error *err);
void cls_digest_writer_destroy(struct cls_digest_writer *w);
void cls_digest_writer_stats(const struct cls_digest_writer *w, struct cls_digest_writer_stats *out);

struct cls_digest_reader;
/* One segment of the digest of that life of a member; several for one read, or none. */
typedef void (*cls_digest_fn)(void *user, const char *id, uint64_t epoch, const struct msg_cache_digest *d);
KVS_MUST_CHECK kvs_status cls_digest_reader_create(struct kvs_loop *loop, const struct cls_etcd_config *etcd,
                                                   cls_digest_fn fn, void *user, struct cls_digest_reader **out,
                                                   struct kvs_error *err);
void cls_digest_reader_destroy(struct cls_digest_reader *r);
/* Reads a member's segments once, after those that were asked for before. KVS_BUSY_FULL: too many are waiting. */
KVS_MUST_CHECK kvs_status cls_digest_read(struct cls_digest_reader *r, const struct msg_card *card);

#endif
