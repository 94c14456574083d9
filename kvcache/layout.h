/* layout.h - how KV memory is laid out: groups of layers, page sizes, and where a head's keys and values lie inside a page.
 * Pure. The same layout must hold on both ends of a transfer; it is part of the member card (kvc_layout_text).
 *
 * A layer has no, one or two caches (a hybrid layer: attention and state). Caches of one kind and shape are a class; a group is a run of a
 * class' layers in rising order, which need not be neighbours (gemma3: every sixth layer is full). A page is one block of one group:
 *
 *   full, window   [layer slot][kv_head]{ K codes [key_dim][token], V codes [token][value_dim],
 *                                         q8_0 only: K scales [ceil(key_dim/32)][token], V scales [token][ceil(value_dim/32)] }
 *   latent         [layer slot]{ codes [token][key_dim], q8_0 only: scales [token][ceil(key_dim/32)] }      key_dim = rank + rope
 *   state          [layer slot][state_bytes, rounded up to 64]                                              one snapshot of f32
 *
 * Codes are f32, f16 or int8 (q8_0: value = f16 scale * code, one scale a token and 32 dims), little-endian; scales begin on an even byte.
 * K puts tokens side by side (lanes are keys when scores are computed), V puts dims side by side (lanes are dims when values are summed).
 * Groups have their own page size, pool and index space; nothing assumes pages to be adjacent.
 *
 * What a block table row holds for positions 0 .. n-1, and what a step at position n may read and writes:
 *   full, latent   every block                     window   blocks from kvc_first_visible(n) on, earlier ones may be NONE
 *   state          one page, in the entry of the newest block, (n-1) / block_tokens: the state after n tokens. A step over [n, n + count)
 *                  finds the state after n tokens (zeros for n = 0) in the entry of ITS last block, kvc_state_block(n + count), and leaves
 *                  the state after n + count tokens there; whoever composes the step moves or copies the page to that entry before.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVCACHE_LAYOUT_H
#define KVS_KVCACHE_LAYOUT_H

#include "base/error.h"

#define KVC_GROUPS_MAX 64
#define KVC_LAYERS_MAX 512
#define KVC_LAYER_CACHES_MAX 2
#define KVC_CLASSES_MAX 16
#define KVC_BLOCK_NONE UINT32_MAX
#define KVC_NO_GROUP 255u
#define KVC_SCALE_DIMS 32u         /* q8_0: dims that share a scale */
#define KVC_LAYOUT_TEXT_MAX 512u   /* bytes of kvc_layout_text, its end included */

typedef enum kvc_kind { KVC_FULL, KVC_WINDOW, KVC_LATENT, KVC_STATE } kvc_kind;
typedef enum kvc_type { KVC_F32, KVC_F16, KVC_Q8_0 } kvc_type;

/* One cache of one layer. Fields that a kind does not use are 0. */
struct kvc_cache {
    kvc_kind kind;
    uint32_t window;      /* KVC_WINDOW: keys visible, self included */
    uint32_t kv_heads;    /* full, window; latent: 1 */
    uint32_t key_dim;     /* latent: rank + rope */
    uint32_t value_dim;   /* full, window */
    uint32_t state_bytes; /* KVC_STATE: of one layer, a multiple of 4 */
};
struct kvc_layer {
    uint32_t count; /* 0: this layer keeps nothing */
    struct kvc_cache cache[KVC_LAYER_CACHES_MAX];
};

struct kvc_group {
    kvc_kind kind;
    uint32_t layers;                  /* slots in a page */
    uint32_t first_layer, last_layer; /* numbers of the first and the last of them */
    uint32_t window;
    uint32_t kv_heads, key_dim, value_dim, state_bytes; /* as in kvc_cache */
    uint64_t value_offset;                              /* of V's codes inside a head */
    uint64_t key_scale_offset, value_scale_offset;      /* q8_0: inside a head; latent has key scales only */
    uint64_t head_bytes;                                /* one kv head of one layer; state: one layer's */
    uint64_t layer_bytes;                               /* kv_heads * head_bytes */
    uint64_t page_bytes;                                /* layers * layer_bytes */
};
struct kvc_place {
    uint8_t group; /* KVC_NO_GROUP: the layer has no such cache */
    uint16_t slot; /* which of the group's layers */
};

struct kvc_layout {
    uint32_t block_tokens;
    kvc_type kv_type; /* of full, window and latent groups */
    uint32_t group_count;
    struct kvc_group group[KVC_GROUPS_MAX]; /* in the order of their first layers; at one layer: in that of its caches */
    uint32_t layer_count;
    struct kvc_place place[KVC_LAYERS_MAX][KVC_LAYER_CACHES_MAX];
};

struct kvc_layout_config {
    uint32_t layers;
    const struct kvc_layer *layer;         /* [layers]; NULL: each has one full cache of the next three */
    uint32_t kv_heads, key_dim, value_dim;
    kvc_type kv_type;
    uint32_t block_tokens; /* 0: 64; a power of two from 1 to 512, else an error */
    uint32_t group_layers; /* most layers of a group; 0: as many as make a page 0.25 to 2 MiB, groups of equal size where possible */
};

KVS_MUST_CHECK kvs_status kvc_layout_build(const struct kvc_layout_config *c, struct kvc_layout *out, struct kvs_error *err);
uint32_t kvc_element_bytes(kvc_type t); /* of a code: 4, 2, 1 */
const char *kvc_type_name(kvc_type t);  /* "f32", "f16", "q8_0" */
const char *kvc_kind_name(kvc_kind k);
/* Canonical text for the member card; equal texts = pages can be exchanged. Returns its length, less than KVC_LAYOUT_TEXT_MAX. */
size_t kvc_layout_text(const struct kvc_layout *l, char *out, size_t cap);
static inline uint32_t kvc_blocks_for(const struct kvc_layout *l, uint32_t tokens)
{
    return (tokens + l->block_tokens - 1) / l->block_tokens;
}
/* Copies the KV of a page's first `tokens` tokens, of all layers and heads of group g, into another page of that group; the rest stays.
 * A state cannot be cut: the whole page is copied, and tokens must be block_tokens. */
void kvc_page_copy_head(const struct kvc_layout *l, uint32_t group, const uint8_t *from, uint8_t *to, uint32_t tokens);
/* Where cache number `cache` (order of kvc_layer) of a layer lies. */
static inline struct kvc_place kvc_layer_place(const struct kvc_layout *l, uint32_t layer, uint32_t cache)
{
    return l->place[layer][cache];
}
/* Byte offset of a (layer slot, kv head) inside a page of the group. State and latent: kv_head 0. */
static inline uint64_t kvc_head_offset(const struct kvc_group *g, uint32_t slot, uint32_t kv_head)
{
    return (uint64_t)slot * g->layer_bytes + (uint64_t)kv_head * g->head_bytes;
}
/* First block that a query at position `pos` or later can see in this group (state groups: pos's newest state is elsewhere, 0). */
static inline uint32_t kvc_first_visible(const struct kvc_layout *l, const struct kvc_group *g, uint32_t pos)
{
    return g->kind == KVC_WINDOW && pos >= g->window ? (pos - g->window + 1) / l->block_tokens : 0;
}
/* First block whose page a prefix of `blocks` (> 0) whole blocks needs to be gone on with: all, those of the last W tokens, the last one. */
static inline uint32_t kvc_first_needed(const struct kvc_layout *l, const struct kvc_group *g, uint32_t blocks)
{
    uint64_t tokens = (uint64_t)blocks * l->block_tokens;
    if (g->kind == KVC_STATE)
        return blocks - 1;
    return g->kind == KVC_WINDOW && tokens > g->window ? (uint32_t)((tokens - g->window) / l->block_tokens) : 0;
}
/* Entry of a state group's row that holds the state after `tokens` (> 0) tokens. */
static inline uint32_t kvc_state_block(const struct kvc_layout *l, uint32_t tokens)
{
    return (tokens - 1) / l->block_tokens;
}
/* Layouts with window or state groups: a prefix of n tokens is not simply its first n / block_tokens blocks. */
bool kvc_layout_is_mixed(const struct kvc_layout *l);

#endif
