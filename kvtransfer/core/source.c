/* source.c - sending end of one transfer: what was posted, what is in flight, when END is due, when pages may be
 * unpinned. Owner: the loop thread (or the simulator).
 *
 *   sending --all posted and completed--> END(ok) due     any --stop--> stopping --in flight = 0--> END(why) due
 *   closed (the sink needs nothing more) or past the deadline, and nothing in flight --> released
 *
 * A send that fails stops the transfer: what follows could not complete it, and END with the cause lets the sink act at
 * once. The first cause stands; later ones are its consequences.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvtransfer/core/source.h"

#include <stdlib.h>

/* Owner thread: the loop. */
struct kvt_source {
    struct kvt_source_config config;
    uint32_t posted, completed;
    kvs_status why; /* KVS_OK while not stopped */
    bool ended, closed;
};

kvs_status kvt_source_create(const struct kvt_source_config *c, struct kvt_source **out)
{
    KVS_ASSERT(c != NULL && out != NULL);
    if (c->message_count == 0)
        return KVS_REQ_INVALID;
    struct kvt_source *s = calloc(1, sizeof *s);
    if (s == NULL)
        return KVS_SELF_NOMEM;
    s->config = *c;
    *out = s;
    return KVS_OK;
}

void kvt_source_destroy(struct kvt_source *s)
{
    if (s == NULL)
        return;
    KVS_ASSERT(s->posted == s->completed); /* the transport still reads the pages */
    free(s);
}

kvs_status kvt_source_post(struct kvt_source *s, kvt_kind kind, uint32_t block, uint16_t group, uint16_t shard,
                           uint64_t bytes, struct kvt_header *out)
{
    KVS_ASSERT(s != NULL && out != NULL);
    KVS_ASSERT(kind != KVT_LOGITS || (block == KVT_LOGITS_BLOCK && group == KVT_LOGITS_GROUP));
    if (s->why != KVS_OK || s->closed)
        return KVS_BUSY_AGAIN;
    KVS_ASSERT(s->posted < s->config.message_count);
    *out = (struct kvt_header){.version = KVT_WIRE_VERSION,
                               .kind = (uint16_t)kind,
                               .sink_epoch = s->config.sink_epoch,
                               .xfer = s->config.xfer,
                               .nonce = s->config.nonce,
                               .block = block,
                               .group = group,
                               .shard = shard,
                               .bytes = bytes};
    s->posted++;
    return KVS_OK;
}

void kvt_source_sent(struct kvt_source *s, kvs_status status)
{
    KVS_ASSERT(s != NULL && s->completed < s->posted);
    s->completed++;
    if (status != KVS_OK)
        kvt_source_stop(s, status);
}

void kvt_source_stop(struct kvt_source *s, kvs_status why)
{
    KVS_ASSERT(s != NULL && why != KVS_OK);
    if (s->why == KVS_OK)
        s->why = why;
}

bool kvt_source_take_end(struct kvt_source *s, kvs_status *status_out, uint32_t *pages_sent_out)
{
    KVS_ASSERT(s != NULL && status_out != NULL && pages_sent_out != NULL);
    bool done = s->posted == s->config.message_count || s->why != KVS_OK;
    if (s->ended || s->closed || !done || kvt_source_in_flight(s) > 0)
        return false;
    s->ended = true;
    *status_out = s->why;
    *pages_sent_out = s->posted;
    return true;
}

void kvt_source_close(struct kvt_source *s)
{
    KVS_ASSERT(s != NULL);
    s->closed = true;
}

bool kvt_source_released(const struct kvt_source *s, uint64_t now_us)
{
    KVS_ASSERT(s != NULL);
    return (s->closed || now_us >= s->config.deadline_us) && kvt_source_in_flight(s) == 0;
}

uint32_t kvt_source_in_flight(const struct kvt_source *s)
{
    KVS_ASSERT(s != NULL && s->completed <= s->posted);
    return s->posted - s->completed;
}
