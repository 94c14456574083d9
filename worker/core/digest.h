/* digest.h - which blocks of the prefix tree stand in the worker's digest, kept up to date from the cache events. Pure; loop thread.
 * A digest leaves out what its other entries imply: a block with exactly one block after it. What is left are the ends of what was said and the
 * places where prompts part, which is where a new prompt can be expected to leave a known path. With a state group every snapshot stands
 * there: a prefix cannot end between two of them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_CORE_DIGEST_H
#define KVS_WORKER_CORE_DIGEST_H

#include "cluster/core/digest.h"
#include "worker/core/events.h"

struct wrk_digest { /* zeros: nothing followed yet */
    struct wrk_reader reader;
};

/* Brings the digest up to date, in at most `most` steps (places of the tree, or events); false: there is more. */
bool wrk_digest_follow(struct wrk_digest *g, const struct wrk_events *e, const struct kvc_tree *t, uint32_t most,
                       struct cls_digest *d);

#endif
