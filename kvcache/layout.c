/* layout.c - cuts a model's layers into groups and says how big a page of each is.
 *
 * Caches of equal kind and shape are a class; each class is cut by itself, so a page holds layers that are not
 * neighbours where kinds alternate. A page is the unit that travels, so its size decides the speed of a transfer more
 * than the transport does: with no order from the config a group takes as many layers as bring its page near 0.5 MiB,
 * inside 0.25 .. 2 MiB, and every group of the class the same number where the layer count allows it. Smaller would
 * cost throughput, larger would delay the first page of a chunk that is being computed. A class too small for 0.25 MiB
 * is one group; a layer over 2 MiB is a group of its own. Where no equal cut fits, groups differ by one layer at most.
 * An ordered group_layers is taken as it stands; the last group of a class then holds the rest.
 * The text of a layout with one class says all by its numbers ("kv1"); otherwise ("kv2") a pattern follows that names
 * each layer's classes by letter, in the order of their first groups; the cut follows by the rules above.
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
#define HEADS_MAX 65536u
#define DIM_MAX 65536u
#define WINDOW_MAX (1u << 24)
#define STATE_BYTES_MAX (1u << 30)
#define STATE_ALIGN 64u

_Static_assert(KVC_GROUPS_MAX < KVC_NO_GROUP, "a group index fits a byte and is never the mark for none");

/* Caches of one kind and shape, while the layout is built. */
struct class {
    struct kvc_cache cache;
    uint32_t layers, each, count; /* in all; in a group; groups */
    uint32_t groups, room;        /* begun so far; free slots of the last one */
    uint32_t group;               /* index of the last one */
};
struct builder {
    const struct kvc_layout_config *c;
    struct kvc_layout l;
    struct class class[KVC_CLASSES_MAX];
    uint32_t classes;
    struct kvc_layer uniform;
};

uint32_t kvc_element_bytes(kvc_type t)
{
    return t == KVC_F32 ? 4 : t == KVC_F16 ? 2 : 1;
}

const char *kvc_type_name(kvc_type t)
{
    return t == KVC_F32 ? "f32" : t == KVC_F16 ? "f16" : "q8_0";
}

const char *kvc_kind_name(kvc_kind k)
{
    switch (k) {
    case KVC_FULL: return "full";
    case KVC_WINDOW: return "window";
    case KVC_LATENT: return "latent";
    case KVC_STATE: return "state";
    }
    return "unknown";
}

bool kvc_layout_is_mixed(const struct kvc_layout *l)
{
    for (uint32_t g = 0; g < l->group_count; g++)
        if (l->group[g].kind == KVC_WINDOW || l->group[g].kind == KVC_STATE)
            return true;
    return false;
}

/* --- the cut --- */

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

static uint32_t choose_group_layers(uint32_t layers, uint64_t layer_bytes, uint32_t groups_max)
{
    uint32_t least = (layers + groups_max - 1) / groups_max;
    uint32_t n = best_cut(layers, layer_bytes, least, PAGE_BYTES_EVEN, true);
    if (n == 0)
        n = best_cut(layers, layer_bytes, least, PAGE_BYTES_HIGH, false);
    if (n == 0)
        n = layer_bytes * layers < PAGE_BYTES_LOW ? layers : least; /* tiny model, or layers too big to join */
    return n;
}

/* --- what the config says --- */

static kvs_status check_cache(const struct kvc_cache *k, struct kvs_error *err)
{
    bool heads = k->kv_heads > 0 && k->kv_heads <= HEADS_MAX && k->key_dim > 0 && k->key_dim <= DIM_MAX;
    bool good = false;
    switch (k->kind) {
    case KVC_FULL:
    case KVC_WINDOW:
        good = heads && k->value_dim > 0 && k->value_dim <= DIM_MAX && k->state_bytes == 0 &&
               (k->kind == KVC_WINDOW ? k->window > 0 && k->window <= WINDOW_MAX : k->window == 0);
        break;
    case KVC_LATENT:
        good = heads && k->kv_heads == 1 && k->value_dim == 0 && k->state_bytes == 0 && k->window == 0;
        break;
    case KVC_STATE:
        good = k->state_bytes > 0 && k->state_bytes <= STATE_BYTES_MAX && k->state_bytes % 4 == 0 && k->kv_heads == 0 &&
               k->key_dim == 0 && k->value_dim == 0 && k->window == 0;
        break;
    }
    return good ? KVS_OK
                : kvs_fail(err, KVS_SELF_CONFIG,
                           "no KV layout for a %s cache of %u kv heads, %u key and %u value dims, window %u, %u state bytes",
                           kvc_kind_name(k->kind), k->kv_heads, k->key_dim, k->value_dim, k->window, k->state_bytes);
}

static kvs_status check_config(const struct kvc_layout_config *c, struct kvs_error *err)
{
    uint32_t b = c->block_tokens;
    if (c->layers == 0 || c->layers > KVC_LAYERS_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG, "a model with %u layers has no KV layout (1 to %u are supported)",
                        c->layers, KVC_LAYERS_MAX);
    if (c->kv_type != KVC_F32 && c->kv_type != KVC_F16 && c->kv_type != KVC_Q8_0)
        return kvs_fail(err, KVS_SELF_CONFIG, "unknown KV type; use f32, f16 or q8_0");
    if (b > BLOCK_TOKENS_MAX || (b & (b - 1)) != 0)
        return kvs_fail(err, KVS_SELF_CONFIG, "block_tokens %u is not a power of two from 1 to %u", b,
                        BLOCK_TOKENS_MAX);
    if (c->group_layers > c->layers)
        return kvs_fail(err, KVS_SELF_CONFIG, "group_layers %u is more than the model's %u layers", c->group_layers,
                        c->layers);
    return KVS_OK;
}

static const struct kvc_layer *layer_of(const struct builder *b, uint32_t layer)
{
    return b->c->layer ? &b->c->layer[layer] : &b->uniform;
}

static bool same_cache(const struct kvc_cache *a, const struct kvc_cache *b)
{
    return a->kind == b->kind && a->window == b->window && a->kv_heads == b->kv_heads && a->key_dim == b->key_dim &&
           a->value_dim == b->value_dim && a->state_bytes == b->state_bytes;
}

static struct class *class_of(struct builder *b, const struct kvc_cache *k)
{
    for (uint32_t i = 0; i < b->classes; i++)
        if (same_cache(&b->class[i].cache, k))
            return &b->class[i];
    return NULL;
}

static kvs_status count_classes(struct builder *b, struct kvs_error *err)
{
    for (uint32_t i = 0; i < b->c->layers; i++) {
        const struct kvc_layer *y = layer_of(b, i);
        if (y->count > KVC_LAYER_CACHES_MAX)
            return kvs_fail(err, KVS_SELF_CONFIG, "layer %u has %u caches; at most %d are supported", i, y->count,
                            KVC_LAYER_CACHES_MAX);
        if (y->count == 2 && same_cache(&y->cache[0], &y->cache[1]))
            return kvs_fail(err, KVS_SELF_CONFIG, "layer %u has two equal caches", i);
        for (uint32_t j = 0; j < y->count; j++) {
            kvs_status st = check_cache(&y->cache[j], err);
            if (st != KVS_OK)
                return st;
            struct class *k = class_of(b, &y->cache[j]);
            if (k == NULL && b->classes == KVC_CLASSES_MAX)
                return kvs_fail(err, KVS_SELF_CONFIG, "the layers have caches of more than %d shapes", KVC_CLASSES_MAX);
            if (k == NULL) {
                k = &b->class[b->classes++];
                k->cache = y->cache[j];
            }
            k->layers++;
        }
    }
    return b->classes > 0 ? KVS_OK : kvs_fail(err, KVS_SELF_CONFIG, "a model whose layers keep nothing has no KV layout");
}

/* --- sizes --- */

static uint64_t even(uint64_t n)
{
    return n + (n & 1);
}

static uint32_t scales(uint32_t dims)
{
    return (dims + KVC_SCALE_DIMS - 1) / KVC_SCALE_DIMS;
}

/* Everything but the layers. 512 tokens x 131072 dims x 4 bytes x 65536 heads fits 64 bits: no overflow before the bound is asked. */
static struct kvc_group shape(const struct kvc_layout *l, const struct kvc_cache *k)
{
    struct kvc_group g = {.kind = k->kind,
                          .window = k->window,
                          .kv_heads = k->kv_heads,
                          .key_dim = k->key_dim,
                          .value_dim = k->value_dim,
                          .state_bytes = k->state_bytes};
    if (k->kind == KVC_STATE) {
        g.head_bytes = g.layer_bytes = ((uint64_t)k->state_bytes + STATE_ALIGN - 1) / STATE_ALIGN * STATE_ALIGN;
        return g;
    }
    uint64_t element = kvc_element_bytes(l->kv_type), tokens = l->block_tokens;
    g.value_offset = tokens * k->key_dim * element;
    g.head_bytes = tokens * (k->key_dim + k->value_dim) * element;
    if (l->kv_type == KVC_Q8_0) {
        g.key_scale_offset = even(g.head_bytes);
        g.value_scale_offset = g.key_scale_offset + 2 * tokens * scales(k->key_dim);
        g.head_bytes = g.value_scale_offset + 2 * tokens * scales(k->value_dim);
    }
    g.layer_bytes = g.head_bytes * k->kv_heads;
    return g;
}

static kvs_status cut_classes(struct builder *b, struct kvs_error *err)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < b->classes; i++) {
        struct class *k = &b->class[i];
        uint64_t layer_bytes = shape(&b->l, &k->cache).layer_bytes;
        k->each = b->c->group_layers < k->layers ? b->c->group_layers : k->layers;
        if (layer_bytes <= PAGE_BYTES_MAX && k->each == 0)
            k->each = choose_group_layers(k->layers, layer_bytes, KVC_GROUPS_MAX / b->classes);
        if (layer_bytes > PAGE_BYTES_MAX || layer_bytes * k->each > PAGE_BYTES_MAX)
            return kvs_fail(err, KVS_SELF_CONFIG,
                            "a KV page would be over 1 GiB; use a smaller block_tokens or group_layers");
        k->count = (k->layers + k->each - 1) / k->each;
        total += k->count;
    }
    if (total > KVC_GROUPS_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG,
                        "group_layers %u cuts %u layers into more than %d groups; use at least %u", b->c->group_layers,
                        b->c->layers, KVC_GROUPS_MAX,
                        (b->c->layers * b->classes + KVC_GROUPS_MAX - 1) / KVC_GROUPS_MAX);
    return KVS_OK;
}

static void begin_group(struct builder *b, struct class *k, uint32_t layer)
{
    KVS_ASSERT(b->l.group_count < KVC_GROUPS_MAX && k->groups < k->count);
    k->room = k->layers / k->count + (k->groups < k->layers % k->count ? 1 : 0); /* sizes differ by one at most */
    if (b->c->group_layers != 0) {
        uint32_t left = k->layers - k->groups * k->each;
        k->room = left < k->each ? left : k->each;
    }
    k->groups++;
    k->group = b->l.group_count++;
    b->l.group[k->group] = shape(&b->l, &k->cache);
    b->l.group[k->group].first_layer = layer;
}

static void place_layers(struct builder *b)
{
    memset(b->l.place, 0xff, sizeof b->l.place); /* KVC_NO_GROUP */
    for (uint32_t i = 0; i < b->c->layers; i++)
        for (uint32_t j = 0; j < layer_of(b, i)->count; j++) {
            struct class *k = class_of(b, &layer_of(b, i)->cache[j]);
            if (k->room == 0)
                begin_group(b, k, i);
            struct kvc_group *g = &b->l.group[k->group];
            b->l.place[i][j] = (struct kvc_place){.group = (uint8_t)k->group, .slot = (uint16_t)g->layers};
            g->layers++;
            g->last_layer = i;
            g->page_bytes += g->layer_bytes;
            k->room--;
        }
}

kvs_status kvc_layout_build(const struct kvc_layout_config *c, struct kvc_layout *out, struct kvs_error *err)
{
    KVS_ASSERT(c != NULL && out != NULL);
    kvs_status st = check_config(c, err);
    if (st != KVS_OK)
        return st;
    struct builder b = {.c = c,
                        .uniform = {.count = 1,
                                    .cache = {{.kind = KVC_FULL,
                                               .kv_heads = c->kv_heads,
                                               .key_dim = c->key_dim,
                                               .value_dim = c->value_dim}}}};
    b.l.block_tokens = c->block_tokens ? c->block_tokens : BLOCK_TOKENS_DEFAULT;
    b.l.kv_type = c->kv_type;
    b.l.layer_count = c->layers;
    st = count_classes(&b, err);
    if (st == KVS_OK)
        st = cut_classes(&b, err);
    if (st != KVS_OK)
        return st;
    place_layers(&b);
    char text[KVC_LAYOUT_TEXT_MAX];
    if (kvc_layout_text(&b.l, text, sizeof text) + 1 >= sizeof text)
        return kvs_fail(err, KVS_SELF_CONFIG, "the layers' caches differ too irregularly to be described");
    *out = b.l;
    return KVS_OK;
}

/* --- text --- */

static bool same_shape(const struct kvc_group *a, const struct kvc_group *b)
{
    return a->kind == b->kind && a->layers == b->layers && a->window == b->window && a->kv_heads == b->kv_heads &&
           a->key_dim == b->key_dim && a->value_dim == b->value_dim && a->state_bytes == b->state_bytes;
}

static bool same_class(const struct kvc_layout *l, uint32_t a, uint32_t b)
{
    if (a == KVC_NO_GROUP || b == KVC_NO_GROUP)
        return a == b;
    struct kvc_group x = l->group[a], y = l->group[b];
    x.layers = y.layers;
    return same_shape(&x, &y);
}

static bool same_layer(const struct kvc_layout *l, uint32_t a, uint32_t b)
{
    return same_class(l, l->place[a][0].group, l->place[b][0].group) &&
           same_class(l, l->place[a][1].group, l->place[b][1].group);
}

static char class_letter(const struct kvc_layout *l, uint32_t group)
{
    char letter = 'a';
    for (uint32_t g = 0; g < l->group_count; g++) { /* classes are numbered by their first groups */
        uint32_t first = 0;
        while (!same_class(l, first, g))
            first++;
        if (first == g && g > 0)
            letter++;
        if (same_class(l, g, group))
            break;
    }
    return letter;
}

/* What each layer has, a letter a class, two of them in brackets, - for nothing; runs with their number; of a repeating pattern one period. */
static size_t pattern_text(const struct kvc_layout *l, char *out, size_t cap)
{
    uint32_t period = 1;
    for (uint32_t i = 0; i < l->layer_count; i++)
        if (i >= period && !same_layer(l, i, i - period)) {
            period++;
            i = 0;
        }
    size_t n = kvs_format(out, cap, ",of=");
    for (uint32_t i = 0, run; i < period; i += run) {
        for (run = 1; i + run < period && same_layer(l, i, i + run);)
            run++;
        if (run > 1)
            n += kvs_format(out + n, cap - n, "%u", run);
        uint32_t a = l->place[i][0].group, b = l->place[i][1].group;
        if (a == KVC_NO_GROUP)
            n += kvs_format(out + n, cap - n, "-");
        else if (b == KVC_NO_GROUP)
            n += kvs_format(out + n, cap - n, "%c", class_letter(l, a));
        else
            n += kvs_format(out + n, cap - n, "[%c%c]", class_letter(l, a), class_letter(l, b));
    }
    return n;
}

static bool one_class(const struct kvc_layout *l)
{
    for (uint32_t i = 1; i < l->layer_count; i++)
        if (!same_layer(l, 0, i))
            return false;
    return l->place[0][1].group == KVC_NO_GROUP;
}

/* Runs of equal groups are written once with their number, so that the card stays small. */
size_t kvc_layout_text(const struct kvc_layout *l, char *out, size_t cap)
{
    KVS_ASSERT(l->group_count > 0 && l->group_count <= KVC_GROUPS_MAX);
    bool plain = one_class(l);
    size_t n = kvs_format(out, cap, "kv%d,type=%s,block=%u,layers=%u,k=dt,v=td", plain ? 1 : 2,
                          kvc_type_name(l->kv_type), l->block_tokens, l->layer_count);
    if (!plain)
        n += pattern_text(l, out + n, cap - n);
    for (uint32_t i = 0; i < l->group_count;) {
        const struct kvc_group *g = &l->group[i];
        uint32_t run = 1;
        while (i + run < l->group_count && same_shape(g, &l->group[i + run]))
            run++;
        n += kvs_format(out + n, cap - n, ",%ux%s:l%u", run, kvc_kind_name(g->kind), g->layers);
        if (g->kind == KVC_STATE)
            n += kvs_format(out + n, cap - n, ":s%u", g->state_bytes);
        else
            n += kvs_format(out + n, cap - n, ":h%u:d%u+%u", g->kv_heads, g->key_dim, g->value_dim);
        if (g->window != 0)
            n += kvs_format(out + n, cap - n, ":w%u", g->window);
        i += run;
    }
    return n;
}

/* --- copies --- */

/* rows of `row` bytes, of which the first `head` bytes are wanted */
static void copy_rows(const uint8_t *from, uint8_t *to, uint64_t rows, size_t row, size_t head)
{
    for (uint64_t i = 0; i < rows; i++)
        memcpy(to + i * row, from + i * row, head);
}

void kvc_page_copy_head(const struct kvc_layout *l, uint32_t group, const uint8_t *from, uint8_t *to, uint32_t tokens)
{
    KVS_ASSERT(group < l->group_count && tokens <= l->block_tokens && from != to);
    const struct kvc_group *g = &l->group[group];
    if (g->kind == KVC_STATE) {
        KVS_ASSERT(tokens == l->block_tokens);
        memcpy(to, from, g->page_bytes);
        return;
    }
    const size_t element = kvc_element_bytes(l->kv_type), head = tokens * element;
    const size_t key_scales = scales(g->key_dim), value_scales = scales(g->value_dim);
    for (uint64_t at = 0; at < g->page_bytes; at += g->head_bytes) {
        const uint8_t *f = from + at;
        uint8_t *t = to + at;
        if (g->kind == KVC_LATENT) { /* token by token */
            memcpy(t, f, g->key_dim * head);
            if (l->kv_type == KVC_Q8_0)
                memcpy(t + g->key_scale_offset, f + g->key_scale_offset, key_scales * tokens * 2);
            continue;
        }
        copy_rows(f, t, g->key_dim, l->block_tokens * element, head); /* K: tokens side by side */
        memcpy(t + g->value_offset, f + g->value_offset, g->value_dim * head); /* V: token by token */
        if (l->kv_type == KVC_Q8_0) {
            copy_rows(f + g->key_scale_offset, t + g->key_scale_offset, key_scales, (size_t)l->block_tokens * 2,
                      (size_t)tokens * 2);
            memcpy(t + g->value_scale_offset, f + g->value_scale_offset, value_scales * tokens * 2);
        }
    }
}
