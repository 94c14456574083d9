/* load.h - from a GGUF file to a model that is ready to serve: card, packed weights, KV layout, pool sizes, member card.
 * Everything that can be wrong with file, settings or machine is found here, before the daemon opens a port.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_EDGE_LOAD_H
#define KVS_WORKER_EDGE_LOAD_H

#include "engine/engine.h"
#include "proto/msg.h"
#include "worker/edge/config.h"

struct wrk_loaded {
    struct mdl_card card;
    struct eng_model *model;
    struct kvc_layout layout;
    uint32_t context;
    uint32_t pages[KVC_GROUPS_MAX]; /* per group */
    uint32_t blocks;                /* of full and latent groups; the prefix tree's bound */
    uint64_t slab[KVC_GROUPS_MAX];  /* byte offset of a group's pages in the KV region */
    uint64_t kv_bytes;              /* of the whole region */
    uint8_t *header;                /* the GGUF's header bytes, for routers */
    uint64_t header_bytes;
    struct msg_card member; /* all but URLs, epoch and pid */
};

KVS_MUST_CHECK kvs_status wrk_load(const struct wrk_config *c, msg_role role, struct wrk_loaded *out, struct kvs_error *err);
void wrk_unload(struct wrk_loaded *l);

#endif
