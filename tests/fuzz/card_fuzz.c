/* card_fuzz.c - a model file's header of any architecture with any of the known keys, each with a value of any kind: parse (header alone, and
 * with its tensors), card, KV layout, and the loading code told to count (eng_memory_predict). A header that is accepted has to be one that the
 * rest can live with. The input says which: the architecture, then three bytes a key. Without libFuzzer random bytes do (replay.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"
#include "model/card.h"
#include "tests/fuzz/replay.h"
#include "tests/support/gguf_writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_MAX 64u
#define INPUT_MAX (1 + 3 * KEYS_MAX)

enum { EXPERTS = 1, STATE = 2, LATENT = 4, WINDOW = 8, HEADS = 16 };
static const struct {
    const char *name;
    uint32_t sets;
} archs[] = {{"llama", EXPERTS}, {"llama", 0}, {"qwen2", 0}, {"qwen3", 0}, {"smollm3", 0}, {"granite", 0}, {"phi3", 0}, {"qwen2moe", EXPERTS},
             {"qwen3moe", EXPERTS}, {"gpt-oss", EXPERTS | WINDOW}, {"gemma3", WINDOW}, {"mamba", STATE}, {"mamba2", STATE}, {"falcon-h1", STATE},
             {"granitehybrid", STATE | EXPERTS}, {"granitehybrid", STATE}, {"deepseek2", LATENT | EXPERTS | HEADS}, {"deepseek2", LATENT | HEADS},
             {"unknown", 0}};
/* What models of these sets have, so that reading comes further than the first missing key; an input may say each of them again, otherwise. */
static const struct {
    const char *name;
    uint32_t value, set;
} usual[] = {{"context_length", 512, 0}, {"embedding_length", 64, 0}, {"block_count", 6, 0}, {"feed_forward_length", 96, 0},
             {"attention.head_count", 4, 0}, {"attention.head_count_kv", 2, 0}, {"rope.dimension_count", 16, 0}, {"vocab_size", 320, 0},
             {"attention.sliding_window", 32, WINDOW}, {"expert_count", 4, EXPERTS}, {"expert_used_count", 2, EXPERTS},
             {"expert_feed_forward_length", 32, EXPERTS}, {"leading_dense_block_count", 1, EXPERTS}, {"ssm.conv_kernel", 4, STATE},
             {"ssm.inner_size", 128, STATE}, {"ssm.state_size", 16, STATE}, {"ssm.time_step_rank", 8, STATE}, {"ssm.group_count", 1, STATE},
             {"attention.kv_lora_rank", 32, LATENT}, {"attention.q_lora_rank", 48, LATENT}, {"attention.key_length", 48, HEADS},
             {"attention.value_length", 32, HEADS}, {"attention.key_length_mla", 32, HEADS}, {"attention.value_length_mla", 16, HEADS}};
static const char *const others[] = {
    "attention.causal", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.attn_factor", "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier", "final_logit_softcapping", "attn_logit_softcapping", "expert_shared_feed_forward_length", "expert_shared_count",
    "expert_group_count", "expert_group_used_count", "expert_weights_scale", "expert_weights_norm", "expert_gating_func",
    "attention.sliding_window_pattern", "rope.freq_base_swa", "embedding_scale", "residual_scale", "attention.scale", "logit_scale",
    "nextn_predict_layers", "no_such_key", "ssm.dt_b_c_rms"};
#define ARCHS (sizeof archs / sizeof archs[0])
#define KV_HEADS 5u /* in `usual` */
#define USUAL (sizeof usual / sizeof usual[0])
#define NAMES (USUAL + sizeof others / sizeof others[0])

static void put_number(struct tst_gguf *w, const char *key, uint8_t how)
{
    static const uint64_t ints[] = {0, 1, 2, 3, 4, 6, 8, 15, 16, 17, 32, 48, 64, 96, 128, 256, 512, 1000, 4096, 65536, 1u << 20, INT32_MAX, UINT32_MAX,
                                    (uint64_t)1 << 40, UINT64_MAX};
    static const float reals[] = {0, -0.0f, 1, -1, 0.5f, 1e-6f, 10000, 1e6f, 1e30f, 16, 1e-30f, INFINITY, NAN};
    uint64_t v = ints[how % (sizeof ints / sizeof ints[0])];
    double d = reals[how % (sizeof reals / sizeof reals[0])];
    switch (how % 5) {
    case 0: tst_gguf_u32(w, key, (uint32_t)v); break;
    case 1: tst_gguf_u64(w, key, v); break;
    case 2: tst_gguf_f32(w, key, (float)d); break;
    case 3: tst_gguf_raw(w, key, 12, &d, 8); break; /* f64 */
    default: tst_gguf_raw(w, key, how % 2 ? 5 : 11, &v, how % 2 ? 4 : 8); break; /* i32, i64 */
    }
}

static void put_key(struct tst_gguf *w, const char *key, uint8_t kind, uint8_t how)
{
    static const char *const words[] = {"none", "linear", "yarn", "longrope", "", "\xff\xfe"};
    static const int32_t layers[] = {0, 1, 2, -1, INT32_MAX, 0, 4, 2};
    static const float each[] = {0, 1, NAN, -3};
    switch (kind % 8) {
    case 0: tst_gguf_str(w, key, words[how % 6]); break;
    case 1: tst_gguf_bool(w, key, how & 1); break;
    case 2: tst_gguf_i32s(w, key, layers, how % 9); break;
    case 3: tst_gguf_f32s(w, key, each, how % 5); break;
    case 4: tst_gguf_raw(w, key, how % 14, layers, how % 12); break;
    default: put_number(w, key, how); break;
    }
}

/* The names that the input says anew, as bits. */
static uint64_t named(const uint8_t *data, size_t size)
{
    uint64_t set = 0;
    for (size_t i = 1; i + 3 <= size; i += 3)
        set |= (uint64_t)1 << data[i] % NAMES;
    return set;
}

static uint8_t *header_of(const uint8_t *data, size_t size, size_t *size_out)
{
    struct tst_gguf *w = tst_gguf_create(3, 0);
    const char *arch = archs[data[0] % ARCHS].name;
    char key[96];
    uint64_t again = named(data, size), done = 0;
    tst_gguf_str(w, "general.architecture", arch);
    tst_llama_vocab(w);
    if (data[0] < 250) {
        snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
        tst_gguf_f32(w, key, 1e-5f);
    }
    for (size_t i = 0; i < USUAL; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, usual[i].name);
        if (i == KV_HEADS && !(again >> i & 1) && !strcmp(arch, "granitehybrid")) { /* which layers attend */
            tst_gguf_i32s(w, key, (const int32_t[]){0, 2, 0, 0, 2, 0}, 6);
            continue;
        }
        if (!(again >> i & 1) && (!usual[i].set || usual[i].set & archs[data[0] % ARCHS].sets))
            tst_gguf_u32(w, key, usual[i].value);
    }
    for (size_t i = 1; i + 3 <= size; i += 3) {
        size_t name = data[i] % NAMES;
        if (done >> name & 1)
            continue;
        done |= (uint64_t)1 << name;
        snprintf(key, sizeof key, "%s.%s", arch, name < USUAL ? usual[name].name : others[name - USUAL]);
        put_key(w, key, data[i + 1], data[i + 2]);
    }
    static const float ones[64 * 320] = {1};
    tst_gguf_tensor(w, "token_embd.weight", MDL_F32, 2, (uint64_t[]){64, 320}, ones, sizeof ones);
    tst_gguf_tensor(w, "output_norm.weight", MDL_F32, 1, (uint64_t[]){64}, ones, 256);
    return tst_gguf_finish(w, size_out, NULL);
}

static unsigned long accepted, refused;

static void look(const struct mdl_gguf *g)
{
    struct mdl_card card;
    struct kvc_layout layout;
    struct eng_memory memory;
    struct kvs_error err = {0};
    if (mdl_card_read(g, &card, &err) != KVS_OK) {
        refused++;
        if (err.text[0] == 0)
            abort(); /* refused without a word */
        return;
    }
    accepted++;
    if (card.layers == 0 || card.width == 0 || card.context_length == 0)
        abort();
    for (int type = 0; type < 3; type++) {
        static const uint32_t blocks[] = {64, 16, 512};
        struct eng_load_options load = {.context = 256};
        struct eng_ctx_options step = {.threads = 1, .batch_tokens = 32, .batch_seqs = 4};
        if (eng_kv_layout(&card, (kvc_type)type, blocks[type], (uint32_t)type, &layout, &err) != KVS_OK)
            continue;
        for (uint32_t i = 0; i < layout.group_count; i++)
            if (layout.group[i].page_bytes == 0)
                abort();
        (void)!eng_memory_predict(g, &card, &load, &layout, &step, &memory, &err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mdl_gguf *g;
    struct kvs_error err;
    size_t n;
    if (size == 0 || size > INPUT_MAX)
        return 0;
    uint8_t *bytes = header_of(data, size, &n);
    for (int header_only = 0; header_only < 2; header_only++)
        if (mdl_gguf_parse(bytes, n, header_only, &g, &err) == KVS_OK) {
            look(g);
            mdl_gguf_destroy(g);
        }
    free(bytes);
    return 0;
}

#ifndef KVS_LIBFUZZER
static void damage(struct kvs_rng *rng)
{
    uint8_t input[INPUT_MAX];
    size_t keys = (size_t)kvs_rng_below(rng, kvs_rng_below(rng, 4) == 0 ? KEYS_MAX : 5);
    for (size_t i = 0; i < 1 + 3 * keys; i++)
        input[i] = (uint8_t)kvs_rng_next(rng);
    tst_fuzz_exact(input, 1 + 3 * keys);
}

int main(int argc, char **argv)
{
    int rc = tst_fuzz_main(argc, argv, damage);
    if (argc > 1 && argv[1][0] == '-' && accepted * 8 < refused) { /* what is behind the card would hardly be reached */
        (void)fprintf(stderr, "only %lu of %lu headers were accepted\n", accepted, accepted + refused);
        return 1;
    }
    return rc;
}
#endif
