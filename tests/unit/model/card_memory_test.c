/* card_memory_test.c - cards of architectures that remember otherwise than by keys and values: which layers attend, which have
 * a state, what a latent caches; and what is refused, with the key in the text.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/card.h"
#include "tests/support/gguf_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* name, value; a name of NULL ends. Later pairs replace earlier ones of the same name; value 0 takes a key away. */
struct pair {
    const char *name;
    uint32_t v;
};
static const struct pair mamba2[] = {{"block_count", 3},     {"embedding_length", 64},  {"context_length", 256},
                                     {"ssm.conv_kernel", 4}, {"ssm.inner_size", 128},   {"ssm.state_size", 16},
                                     {"ssm.group_count", 2}, {"ssm.time_step_rank", 8}, {NULL, 0}};
static const struct pair hybrid[] = {{"attention.head_count", 4}, {"feed_forward_length", 96}, {NULL, 0}};
static const struct pair deepseek[] = {{"block_count", 3},
                                       {"embedding_length", 64},
                                       {"context_length", 256},
                                       {"attention.head_count", 4},
                                       {"attention.head_count_kv", 1},
                                       {"attention.key_length", 48},
                                       {"attention.value_length", 32},
                                       {"attention.key_length_mla", 24},
                                       {"attention.value_length_mla", 16},
                                       {"attention.kv_lora_rank", 32},
                                       {"rope.dimension_count", 16},
                                       {"feed_forward_length", 96},
                                       {NULL, 0}};

#define KEYS_MAX 40u
struct head {
    const char *arch;
    struct pair key[KEYS_MAX];
    uint32_t count;
    int32_t kv_heads[8]; /* with kv_count: an array */
    uint32_t kv_count;
    int rotates; /* -1: no key */
};

static void set(struct head *h, const char *name, uint32_t v)
{
    uint32_t i = 0;
    while (i < h->count && strcmp(h->key[i].name, name) != 0)
        i++;
    assert_true(i < KEYS_MAX);
    h->key[i] = (struct pair){name, v};
    h->count += i == h->count;
}

static struct head head_of(const char *arch, const struct pair *a, const struct pair *b)
{
    struct head h = {.arch = arch, .rotates = -1};
    for (; a != NULL && a->name != NULL; a++)
        set(&h, a->name, a->v);
    for (; b != NULL && b->name != NULL; b++)
        set(&h, b->name, b->v);
    return h;
}

static kvs_status read(const struct head *h, struct mdl_card *c, struct kvs_error *err)
{
    struct tst_gguf *w = tst_gguf_create(3, 0);
    char text[96];
    tst_gguf_str(w, "general.architecture", h->arch);
    for (uint32_t i = 0; i < h->count; i++) {
        (void)snprintf(text, sizeof text, "%s.%s", h->arch, h->key[i].name);
        if (h->key[i].v != 0)
            tst_gguf_u32(w, text, h->key[i].v);
    }
    (void)snprintf(text, sizeof text, "%s.attention.head_count_kv", h->arch);
    if (h->kv_count > 0)
        tst_gguf_i32s(w, text, h->kv_heads, h->kv_count);
    (void)snprintf(text, sizeof text, "%s.rope.scaling.finetuned", h->arch);
    if (h->rotates >= 0)
        tst_gguf_bool(w, text, h->rotates != 0);
    void *data = calloc(64 * 100, 4);
    tst_gguf_tensor(w, "token_embd.weight", MDL_F32, 2, (const uint64_t[]){64, 100}, data, 64 * 100 * 4);
    free(data);
    return tst_card_read(w, c, err);
}

static struct mdl_card taken(const struct head *h)
{
    struct mdl_card c;
    struct kvs_error err = {0};
    if (read(h, &c, &err) != KVS_OK)
        fail_msg("%s", err.text);
    return c;
}

static void refused(const struct head *h, const char *word)
{
    struct mdl_card c;
    struct kvs_error err = {0};
    kvs_status s = read(h, &c, &err);
    if (s != KVS_SELF_MODEL || strstr(err.text, word) == NULL)
        fail_msg("expected '%s', got %d: %s", word, (int)s, err.text);
}

static void refused_with(struct head h, const char *name, uint32_t v, const char *word)
{
    set(&h, name, v);
    refused(&h, word);
}

static void test_states_alone(void **state)
{
    (void)state;
    struct head h = head_of("mamba2", mamba2, NULL);
    struct mdl_card c = taken(&h);
    assert_true(c.heads == 0 && c.kv_heads == 0 && c.key_dim == 0 && c.ff == 0 && c.rope.dims == 0);
    assert_true(c.ssm.conv_kernel == 4 && c.ssm.inner == 128 && c.ssm.state_size == 16 && c.ssm.heads == 8 &&
                c.ssm.groups == 2 && !c.ssm.per_channel);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(c.layer[i], MDL_LAYER_STATE);
    refused_with(h, "ssm.time_step_rank", 7, "mamba2.ssm.time_step_rank: 7 heads do not divide 128");
    refused_with(h, "ssm.group_count", 3, "or 3 groups them");
    refused_with(h, "ssm.inner_size", 0, "mamba2.ssm.inner_size: absent");
    refused_with(h, "ssm.state_size", 100000, "mamba2.ssm.state_size: 100000 is not between");
    h.arch = "mamba";
    set(&h, "ssm.group_count", 0);
    set(&h, "ssm.time_step_rank", 5); /* a rank divides nothing */
    c = taken(&h);
    assert_true(c.ssm.per_channel && c.ssm.groups == 1 && c.ssm.heads == 5);
}

static void test_hybrids(void **state)
{
    (void)state;
    struct head h = head_of("granitehybrid", mamba2, hybrid);
    h.kv_count = 3;
    h.kv_heads[1] = 2;
    struct mdl_card c = taken(&h);
    assert_true(c.layer[0] == MDL_LAYER_STATE && c.layer[1] == MDL_LAYER_ATTENTION && c.layer[2] == MDL_LAYER_STATE);
    assert_true(c.heads == 4 && c.kv_heads == 2 && c.key_dim == 16 && c.rope.dims == 16);
    h.rotates = 0;
    assert_int_equal(taken(&h).rope.dims, 0);
    h.rotates = 1;
    assert_int_equal(taken(&h).rope.dims, 16);
    h.kv_heads[2] = 4;
    refused(&h, "granitehybrid.attention.head_count_kv: layers that differ");
    h.kv_heads[1] = h.kv_heads[2] = 0;
    refused(&h, "granitehybrid.attention.head_count_kv: no layer attends");
    h.kv_heads[1] = -2;
    refused(&h, "granitehybrid.attention.head_count_kv: ");
    h.kv_heads[1] = 3;
    refused(&h, "3 does not divide head_count 4");
    h.kv_count = 2;
    refused(&h, "granitehybrid.attention.head_count_kv: not one unsigned integer a layer");
    h = head_of("falcon-h1", mamba2, hybrid);
    set(&h, "attention.head_count_kv", 2);
    h.rotates = 0; /* says nothing where every layer has both */
    c = taken(&h);
    assert_true(c.layer[0] == (MDL_LAYER_ATTENTION | MDL_LAYER_STATE) && c.layer[2] == c.layer[0]);
    assert_true(c.kv_heads == 2 && c.ff == 96 && c.ssm.heads == 8 && c.rope.dims == 16);
    refused_with(h, "feed_forward_length", 0, "falcon-h1.feed_forward_length: absent");
}

static void test_latents(void **state)
{
    (void)state;
    struct head h = head_of("deepseek2", deepseek, NULL);
    struct mdl_card c = taken(&h);
    assert_true(c.kv_heads == 1 && c.key_dim == 48 && c.value_dim == 32 && c.layer[0] == MDL_LAYER_ATTENTION);
    assert_true(c.latent.kv_rank == 32 && c.latent.q_rank == 0 && c.latent.nope_dim == 8 && c.latent.value_dim == 16);
    set(&h, "attention.q_lora_rank", 24);
    assert_int_equal(taken(&h).latent.q_rank, 24);
    /* How files were before the projections were split: lengths of the heads, as many KV heads as heads. */
    set(&h, "attention.head_count_kv", 4);
    set(&h, "attention.key_length", 24);
    set(&h, "attention.value_length", 16);
    set(&h, "attention.key_length_mla", 0);
    set(&h, "attention.value_length_mla", 0);
    struct mdl_card old = taken(&h);
    assert_true(old.kv_heads == 1 && old.key_dim == 48 && old.value_dim == 32 && old.latent.nope_dim == 8 &&
                old.latent.value_dim == 16);
    refused_with(h, "attention.kv_lora_rank", 0, "deepseek2.attention.kv_lora_rank: absent");
    refused_with(h, "rope.dimension_count", 24, "deepseek2.rope.dimension_count: 24 leaves nothing of heads of 24");
    refused_with(h, "rope.dimension_count", 0, "deepseek2.rope.dimension_count: absent");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_alone),
        cmocka_unit_test(test_hybrids),
        cmocka_unit_test(test_latents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
