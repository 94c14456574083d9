/* layout.c - cuts a model's layers into groups and says how big a page of each is.
 *
 * A page is the unit that travels, so its size decides the speed of a transfer more than the transport does: with no
 * order from the config a group takes as many layers as bring its page near 0.5 MiB, inside 0.25 .. 2 MiB, and every
 * group the same number where the layer count allows it. Smaller would cost throughput, larger would delay the first
 * page of a chunk that is being computed. A model too small for 0.25 MiB is one group; a layer over 2 MiB is a group of
 * its own. Where no equal cut fits, groups differ by one layer at most. An ordered group_layers is taken as it stands;
 * the last group then holds the rest.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvcache/layout.h"

#include "base/checked.h"
#include <string.h>

#define PAGE_BYTES_LOW (256ull << 10)
#define PAGE_BYTES_GOAL (512ull << 10)
#define PAGE_BYTES_EVEN \
    (1024ull << 10) /* an equal cut must stay under this: one group of everything overlaps nothing */
#define PAGE_BYTES_HIGH (2048ull << 10)
#define PAGE_BYTES_MAX (1ull << 30)
#define BLOCK_TOKENS_DEFAULT 64u
#define BLOCK_TOKENS_MAX 512u
#define LAYERS_MAX 512u
#define HEADS_MAX 65536u
#define DIM_MAX 65536u

_Static_assert(LAYERS_MAX <= sizeof((struct kvc_layout *)0)->layer_group, "every layer has a group entry");
_Static_assert(KVC_GROUPS_MAX <= 256, "a group index fits a byte");

uint32_t kvc_element_bytes(kvc_type t)
{
    return t == KVC_F32 ? 4 : 2;
}

const char *kvc_type_name(kvc_type t)
{
    return t == KVC_F32 ? "f32" : "f16";
}

static const char *kind_name(kvc_kind k)
{
    switch (k) {
    case KVC_FULL: return "full";
    case KVC_WINDOW: return "window";
    case KVC_LATENT: return "latent";
    case KVC_STATE: return "state";
    }
    return "unknown";
}

/* How far a page is from the goal, as a ratio in 1/1024: symmetric for too small and too big. */
static uint64_t distance(uint64_t page_bytes)
{
    uint64_t big = page_bytes > PAGE_BYTES_GOAL ? page_bytes : PAGE_BYTES_GOAL;
    uint64_t small = page_bytes > PAGE_BYTES_GOAL ? PAGE_BYTES_GOAL : page_bytes;
    return big * 1024 / small;
}

/* Best number of layers per group among those in range; 0: none. */
static uint32_t best_cut(uint32_t layers, uint64_t layer_bytes, uint32_t least, uint64_t most_bytes, bool equal)
{
    uint32_t best = 0;
    for (uint32_t n = least; n <= layers; n++) {
        uint64_t page = n * layer_bytes;
        if (page < PAGE_BYTES_LOW || page > most_bytes || (equal && layers % n != 0))
            continue;
        if (best == 0 || distance(page) < distance(best * layer_bytes))
            best = n;
    }
    return best;
}

static uint32_t choose_group_layers(uint32_t layers, uint64_t layer_bytes)
{
    uint32_t least = (layers + KVC_GROUPS_MAX - 1) / KVC_GROUPS_MAX;
    uint32_t n = best_cut(layers, layer_bytes, least, PAGE_BYTES_EVEN, true);
    if (n == 0)
        n = best_cut(layers, layer_bytes, least, PAGE_BYTES_HIGH, false);
    if (n == 0)
        n = layer_bytes * layers < PAGE_BYTES_LOW ? layers : least; /* tiny model, or layers too big to join */
    return n;
}

static kvs_status check_config(const struct kvc_layout_config *c, struct kvs_error *err)
{
    uint32_t b = c->block_tokens;
    if (c->layers == 0 || c->layers > LAYERS_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG, "a model with %u layers has no KV layout (1 to %u are supported)",
                        c->layers, LAYERS_MAX);
    if (c->kv_heads == 0 || c->kv_heads > HEADS_MAX || c->key_dim == 0 || c->key_dim > DIM_MAX || c->value_dim == 0 ||
        c->value_dim > DIM_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG, "no KV layout for %u kv heads of %u key and %u value dims", c->kv_heads,
                        c->key_dim, c->value_dim);
    if (c->kv_type != KVC_F32 && c->kv_type != KVC_F16)
        return kvs_fail(err, KVS_SELF_CONFIG, "unknown KV type; use f32 or f16");
    if (b > BLOCK_TOKENS_MAX || (b & (b - 1)) != 0)
        return kvs_fail(err, KVS_SELF_CONFIG, "block_tokens %u is not a power of two from 1 to %u", b,
                        BLOCK_TOKENS_MAX);
    if (c->group_layers > c->layers)
        return kvs_fail(err, KVS_SELF_CONFIG, "group_layers %u is more than the model's %u layers", c->group_layers,
                        c->layers);
    if (c->group_layers != 0 && (c->layers + c->group_layers - 1) / c->group_layers > KVC_GROUPS_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG,
                        "group_layers %u cuts %u layers into more than %d groups; use at least %u", c->group_layers,
                        c->layers, KVC_GROUPS_MAX, (c->layers + KVC_GROUPS_MAX - 1) / KVC_GROUPS_MAX);
    return KVS_OK;
}

static void fill_group(struct kvc_layout *l, const struct kvc_layout_config *c, uint32_t first, uint32_t layers)
{
    struct kvc_group *g = &l->group[l->group_count];
    KVS_ASSERT(l->group_count < KVC_GROUPS_MAX);
    *g = (struct kvc_group){.kind = KVC_FULL,
                            .first_layer = first,
                            .layers = layers,
                            .kv_heads = c->kv_heads,
                            .key_dim = c->key_dim,
                            .value_dim = c->value_dim};
    g->head_bytes = (uint64_t)l->block_tokens * (c->key_dim + c->value_dim) * kvc_element_bytes(c->kv_type);
    g->layer_bytes = g->head_bytes * c->kv_heads;
    g->page_bytes = g->layer_bytes * layers;
    for (uint32_t i = first; i < first + layers; i++)
        l->layer_group[i] = (uint8_t)l->group_count;
    l->group_count++;
}

kvs_status kvc_layout_build(const struct kvc_layout_config *c, struct kvc_layout *out, struct kvs_error *err)
{
    KVS_ASSERT(c != NULL && out != NULL);
    kvs_status st = check_config(c, err);
    if (st != KVS_OK)
        return st;
    struct kvc_layout l;
    memset(&l, 0, sizeof l);
    l.block_tokens = c->block_tokens ? c->block_tokens : BLOCK_TOKENS_DEFAULT;
    l.kv_type = c->kv_type;
    l.layer_count = c->layers;
    /* 512 tokens x 131072 dims x 4 bytes x 65536 heads fits 64 bits: no overflow before the bound is asked. */
    uint64_t layer_bytes =
        (uint64_t)l.block_tokens * (c->key_dim + c->value_dim) * kvc_element_bytes(c->kv_type) * c->kv_heads;
    uint32_t each = c->group_layers;
    if (layer_bytes <= PAGE_BYTES_MAX && each == 0)
        each = choose_group_layers(c->layers, layer_bytes);
    if (layer_bytes > PAGE_BYTES_MAX || layer_bytes * each > PAGE_BYTES_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG,
                        "a KV page would be over 1 GiB; use a smaller block_tokens or group_layers");
    uint32_t count = (c->layers + each - 1) / each;
    for (uint32_t i = 0, first = 0; i < count; i++) {
        uint32_t n = c->layers / count + (i < c->layers % count ? 1 : 0); /* sizes differ by one at most */
        if (c->group_layers != 0)
            n = c->layers - first < each ? c->layers - first : each;
        fill_group(&l, c, first, n);
        first += n;
    }
    KVS_ASSERT(l.group[l.group_count - 1].first_layer + l.group[l.group_count - 1].layers == c->layers);
    *out = l;
    return KVS_OK;
}

static bool same_shape(const struct kvc_group *a, const struct kvc_group *b)
{
    return a->kind == b->kind && a->layers == b->layers && a->window == b->window && a->kv_heads == b->kv_heads &&
           a->key_dim == b->key_dim && a->value_dim == b->value_dim;
}

/* Runs of equal groups are written once with their number, so that the card stays small. */
size_t kvc_layout_text(const struct kvc_layout *l, char *out, size_t cap)
{
    KVS_ASSERT(l->group_count > 0 && l->group_count <= KVC_GROUPS_MAX);
    size_t n = kvs_format(out, cap, "kv1,type=%s,block=%u,layers=%u,k=dt,v=td", kvc_type_name(l->kv_type),
                          l->block_tokens, l->layer_count);
    for (uint32_t i = 0; i < l->group_count;) {
        const struct kvc_group *g = &l->group[i];
        uint32_t run = 1;
        while (i + run < l->group_count && same_shape(g, &l->group[i + run]))
            run++;
        n += kvs_format(out + n, cap - n, ",%ux%s:l%u:h%u:d%u+%u", run, kind_name(g->kind), g->layers, g->kv_heads,
                        g->key_dim, g->value_dim);
        if (g->window != 0)
            n += kvs_format(out + n, cap - n, ":w%u", g->window);
        i += run;
    }
    return n;
}

void kvc_page_copy_head(const struct kvc_layout *l, uint32_t group, const uint8_t *from, uint8_t *to, uint32_t tokens)
{
    KVS_ASSERT(group < l->group_count && tokens <= l->block_tokens && from != to);
    const struct kvc_group *g = &l->group[group];
    const size_t element = kvc_element_bytes(l->kv_type);
    const size_t row = l->block_tokens * element, head = tokens * element;
    for (uint64_t at = 0; at < g->page_bytes; at += g->head_bytes) {
        for (uint32_t d = 0; d < g->key_dim; d++) /* K: tokens side by side */
            memcpy(to + at + d * row, from + at + d * row, head);
        memcpy(to + at + g->key_dim * row, from + at + g->key_dim * row, g->value_dim * head); /* V: token by token */
    }
}
