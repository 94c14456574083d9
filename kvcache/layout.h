/* layout.h - how KV memory is laid out: groups of layers, page sizes, and where a head's keys and values lie inside a page.
 * Pure. The same layout must hold on both ends of a transfer; it is part of the member card (kvc_layout_text).
 *
 *   page of a `full` group = one block of `block_tokens` tokens for `layers` consecutive layers:
 *     [layer][kv_head]{ K as [key_dim][block_tokens], V as [block_tokens][value_dim] }   elements of kv_type, little-endian
 *
 * K puts tokens side by side (lanes are keys when scores are computed), V puts dims side by side (lanes are dims when
 * values are summed). Groups have their own page size, pool and index space; nothing assumes pages to be adjacent.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVCACHE_LAYOUT_H
#define KVS_KVCACHE_LAYOUT_H

#include "base/error.h"

#define KVC_GROUPS_MAX 64
#define KVC_BLOCK_NONE UINT32_MAX

typedef enum kvc_kind { KVC_FULL, KVC_WINDOW, KVC_LATENT, KVC_STATE } kvc_kind;
typedef enum kvc_type { KVC_F32, KVC_F16 } kvc_type;

struct kvc_group {
    kvc_kind kind;
    uint32_t first_layer, layers;
    uint32_t window;      /* KVC_WINDOW: keys visible, self included */
    uint32_t kv_heads, key_dim, value_dim;
    uint64_t head_bytes;  /* one kv head of one layer: block_tokens * (key_dim + value_dim) * element */
    uint64_t layer_bytes; /* kv_heads * head_bytes */
    uint64_t page_bytes;  /* layers * layer_bytes */
};

struct kvc_layout {
    uint32_t block_tokens;
    kvc_type kv_type;
    uint32_t group_count;
    struct kvc_group group[KVC_GROUPS_MAX];
    uint32_t layer_count;
    uint8_t layer_group[512]; /* layer -> group */
};

struct kvc_layout_config {
    uint32_t layers, kv_heads, key_dim, value_dim;
    kvc_type kv_type;
    uint32_t block_tokens; /* 0: 64; a power of two from 1 to 512, else an error */
    uint32_t group_layers; /* 0: as many as make a page 0.25 to 2 MiB, groups of equal size where possible */
};

KVS_MUST_CHECK kvs_status kvc_layout_build(const struct kvc_layout_config *c, struct kvc_layout *out, struct kvs_error *err);
uint32_t kvc_element_bytes(kvc_type t);
const char *kvc_type_name(kvc_type t); /* "f32", "f16" */
/* Canonical text for the member card; equal texts = pages can be exchanged. Returns its length. */
size_t kvc_layout_text(const struct kvc_layout *l, char *out, size_t cap);
static inline uint32_t kvc_blocks_for(const struct kvc_layout *l, uint32_t tokens)
{
    return (tokens + l->block_tokens - 1) / l->block_tokens;
}
/* Copies the KV of a page's first `tokens` tokens, of all layers and heads of group g, into another page of that group; the rest stays. */
void kvc_page_copy_head(const struct kvc_layout *l, uint32_t group, const uint8_t *from, uint8_t *to, uint32_t tokens);
/* Byte offset of a (layer, kv head) inside a page of the layer's group; V begins block_tokens * key_dim elements later. */
static inline uint64_t kvc_head_offset(const struct kvc_group *g, uint32_t layer, uint32_t kv_head)
{
    return (uint64_t)(layer - g->first_layer) * g->layer_bytes + (uint64_t)kv_head * g->head_bytes;
}

#endif
