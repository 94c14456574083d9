/* digest.c - see digest.h. An event names a block and its parent; what they are now is asked of the tree, so that a block that came and went
 * between two looks leaves no trace, and the order of events does not matter.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/core/digest.h"

static bool belongs(const struct kvc_tree *t, const struct kvc_tree_block *b)
{
    return b->ends && (b->children != 1 || kvc_tree_has_states(t));
}

static void look(const struct kvc_tree *t, const struct kvc_hash *hash, struct cls_digest *d)
{
    struct kvc_tree_block b;
    if (kvc_tree_look(t, hash, &b) && belongs(t, &b))
        cls_digest_put(d, hash->bytes, b.depth);
    else
        cls_digest_remove(d, hash->bytes);
}

static bool walk(struct wrk_reader *r, const struct kvc_tree *t, uint32_t most, struct cls_digest *d)
{
    struct kvc_tree_block block[64];
    while (most > 0) {
        uint32_t want = most < 64 ? most : 64, n = kvc_tree_walk(t, &r->at, block, want);
        for (uint32_t i = 0; i < n; i++)
            if (belongs(t, &block[i]))
                cls_digest_put(d, block[i].hash.bytes, block[i].depth);
        most -= want;
        if (n < want) {
            cls_digest_drop_marked(d);
            r->walking = false;
            return true;
        }
    }
    return false;
}

bool wrk_digest_follow(struct wrk_digest *g, const struct wrk_events *e, const struct kvc_tree *t, uint32_t most,
                       struct cls_digest *d)
{
    struct wrk_reader *r = &g->reader;
    if (!r->begun || r->next < wrk_events_oldest(e)) {
        *r = (struct wrk_reader){.begun = true, .walking = true, .next = wrk_events_next(e)};
        cls_digest_mark_all(d);
    }
    if (r->walking && !walk(r, t, most, d))
        return false;
    for (; r->next < wrk_events_next(e) && most > 0; r->next++, most--) {
        const struct wrk_cache_event *ev = wrk_events_at(e, r->next);
        look(t, &ev->hash, d);
        if (ev->depth > 1)
            look(t, &ev->parent, d);
    }
    return r->next == wrk_events_next(e);
}
