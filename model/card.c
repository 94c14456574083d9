/* card.c - hyperparameters and special tokens out of the metadata, with the defaults of the format's reference sheet.
 * Everything that later sizes memory or divides is bounded here, so that the engine may trust a card. Shapes of the other
 * tensors are the engine's to check; token_embd is checked here because it decides vocabulary and width.
 * Numbers that the converters write for "none" (4294967295) count as absent.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/card_int.h"

#include <inttypes.h>
#include <string.h>

#define WIDTH_MAX 262144u
#define HEADS_MAX 4096u
#define VOCAB_MAX 16777216u
#define STATE_MAX 4096u

const char *mdl_card_key(const struct mdl_card_reader *r, const char *name, char out[MDL_KEY_CAP])
{
    kvs_format(out, MDL_KEY_CAP, "%s.%s", r->arch->name, name);
    return out;
}

static kvs_status check_range(const struct mdl_card_reader *r, const char *key, uint64_t v, uint32_t min, uint32_t max,
                              uint32_t *out)
{
    if (v < min || v > max)
        return kvs_fail(r->err, KVS_SELF_MODEL, "%s: %" PRIu64 " is not between %" PRIu32 " and %" PRIu32, key, v, min,
                        max);
    *out = (uint32_t)v;
    return KVS_OK;
}

static kvs_status absent(const struct mdl_card_reader *r, const char *key)
{
    return kvs_fail(r->err, KVS_SELF_MODEL, "%s: absent", key);
}

kvs_status mdl_card_need_u32(const struct mdl_card_reader *r, const char *name, uint32_t max, uint32_t *out)
{
    char key[MDL_KEY_CAP];
    uint64_t v = 0;
    bool there;
    kvs_status s = mdl_key_u64(r->g, mdl_card_key(r, name, key), &there, &v, r->err);
    if (s != KVS_OK)
        return s;
    return there ? check_range(r, key, v, 1, max, out) : absent(r, key);
}

/* A number, or an array with one number a layer that are all the same. */
kvs_status mdl_card_layered_u32(const struct mdl_card_reader *r, const char *name, uint32_t max, bool needed,
                                uint32_t layers, uint32_t *out)
{
    char key[MDL_KEY_CAP];
    uint64_t count;
    if (!mdl_gguf_array(r->g, mdl_card_key(r, name, key), &count))
        return needed ? mdl_card_need_u32(r, name, max, out) : mdl_card_optional_u32(r, name, max, out);
    int64_t first = 0, other;
    if (count < layers || !mdl_gguf_array_i64(r->g, key, 0, &first) || first < 0)
        return kvs_fail(r->err, KVS_SELF_MODEL, "%s: not one unsigned integer a layer", key);
    for (uint64_t i = 1; i < count; i++) {
        if (!mdl_gguf_array_i64(r->g, key, i, &other) || other != first)
            return kvs_fail(r->err, KVS_SELF_MODEL, "%s: layers that differ are not supported", key);
    }
    return check_range(r, key, (uint64_t)first, 1, max, out);
}

static kvs_status optional_from(const struct mdl_card_reader *r, const char *name, uint32_t min, uint32_t max,
                                uint32_t *inout)
{
    char key[MDL_KEY_CAP];
    uint64_t v = 0;
    bool there;
    kvs_status s = mdl_key_u64(r->g, mdl_card_key(r, name, key), &there, &v, r->err);
    return s == KVS_OK && there ? check_range(r, key, v, min, max, inout) : s;
}

kvs_status mdl_card_optional_u32(const struct mdl_card_reader *r, const char *name, uint32_t max, uint32_t *inout)
{
    return optional_from(r, name, 1, max, inout);
}

kvs_status mdl_card_optional_count(const struct mdl_card_reader *r, const char *name, uint32_t max, uint32_t *inout)
{
    return optional_from(r, name, 0, max, inout);
}

kvs_status mdl_card_optional_f64(const struct mdl_card_reader *r, const char *name, double min, double max,
                                 double *inout)
{
    char key[MDL_KEY_CAP];
    double v = 0;
    bool there;
    kvs_status s = mdl_key_f64(r->g, mdl_card_key(r, name, key), &there, &v, r->err);
    if (s != KVS_OK || !there)
        return s;
    if (!(v >= min && v <= max))
        return kvs_fail(r->err, KVS_SELF_MODEL, "%s: %g is not between %g and %g", key, v, min, max);
    *inout = v;
    return KVS_OK;
}

kvs_status mdl_card_optional_bool(const struct mdl_card_reader *r, const char *name, bool *inout)
{
    char key[MDL_KEY_CAP];
    return mdl_key_bool(r->g, mdl_card_key(r, name, key), inout, r->err);
}

/* Cut at cap, never inside a character that follows: only printable ASCII is kept. */
static void copy_text(char *out, size_t cap, struct mdl_str s)
{
    size_t n = s.len < cap - 1 ? s.len : cap - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = s.data[i] >= 32 && s.data[i] < 127 ? s.data[i] : '?';
    out[n] = '\0';
}

static kvs_status read_arch(struct mdl_card *c, const struct mdl_gguf *g, const struct mdl_arch **out,
                            struct kvs_error *err)
{
    struct mdl_str s;
    char names[192];
    if (!mdl_gguf_str(g, "general.architecture", &s))
        return kvs_fail(err, KVS_SELF_MODEL, "general.architecture: absent, or not a string");
    copy_text(c->arch, sizeof c->arch, s);
    *out = mdl_arch_find(s);
    if (*out != NULL)
        return KVS_OK;
    (void)mdl_arch_names(names, sizeof names);
    return kvs_fail(err, KVS_SELF_MODEL, "general.architecture: '%s' is not supported by this build (supported: %s)",
                    c->arch, names);
}

/* Keys of recurrent layers. */
static kvs_status read_state(struct mdl_card *c, const struct mdl_card_reader *r)
{
    uint32_t heads = 0;
    c->ssm.groups = 1;
    kvs_status s = mdl_card_need_u32(r, "ssm.conv_kernel", STATE_MAX, &c->ssm.conv_kernel);
    if (s == KVS_OK)
        s = mdl_card_need_u32(r, "ssm.inner_size", WIDTH_MAX, &c->ssm.inner);
    if (s == KVS_OK)
        s = mdl_card_need_u32(r, "ssm.state_size", STATE_MAX, &c->ssm.state_size);
    if (s == KVS_OK)
        s = mdl_card_need_u32(r, "ssm.time_step_rank", WIDTH_MAX, &heads);
    if (s == KVS_OK)
        s = mdl_card_optional_u32(r, "ssm.group_count", WIDTH_MAX, &c->ssm.groups);
    if (s != KVS_OK)
        return s;
    c->ssm.heads = heads;
    c->ssm.per_channel = strcmp(c->arch, "mamba") == 0;
    if (c->ssm.per_channel)
        s = mdl_card_optional_bool(r, "ssm.dt_b_c_rms", &c->ssm.normed_steps);
    if (s != KVS_OK)
        return s;
    if (!c->ssm.per_channel && (c->ssm.inner % heads != 0 || heads % c->ssm.groups != 0))
        return kvs_fail(r->err, KVS_SELF_MODEL,
                        "%s.ssm.time_step_rank: %" PRIu32 " heads do not divide %" PRIu32 " channels, or %" PRIu32
                        " groups them",
                        c->arch, heads, c->ssm.inner, c->ssm.groups);
    return KVS_OK;
}

/* head_count_kv of a hybrid says which layers attend: those where it is not 0. */
static kvs_status read_hybrid_heads(struct mdl_card *c, const struct mdl_card_reader *r)
{
    char key[MDL_KEY_CAP];
    uint64_t count;
    int64_t v;
    uint32_t most = 0;
    if (!mdl_gguf_array(r->g, mdl_card_key(r, "attention.head_count_kv", key), &count) || count != c->layers)
        return kvs_fail(r->err, KVS_SELF_MODEL, "%s: not one unsigned integer a layer", key);
    for (uint32_t i = 0; i < c->layers; i++) {
        if (!mdl_gguf_array_i64(r->g, key, i, &v) || v < 0 || v > HEADS_MAX || (v != 0 && most != 0 && v != most))
            return kvs_fail(r->err, KVS_SELF_MODEL, "%s: layers that differ are not supported", key);
        c->layer[i] = v != 0 ? MDL_LAYER_ATTENTION : MDL_LAYER_STATE;
        most = v != 0 ? (uint32_t)v : most;
    }
    c->kv_heads = most;
    return most != 0 ? KVS_OK : kvs_fail(r->err, KVS_SELF_MODEL, "%s: no layer attends", key);
}

/* heads, kv_heads, and what each layer remembers. */
static kvs_status read_layers(struct mdl_card *c, const struct mdl_card_reader *r)
{
    static const uint8_t remembers[] = {MDL_LAYER_ATTENTION, MDL_LAYER_ATTENTION, MDL_LAYER_STATE, 0,
                                        MDL_LAYER_ATTENTION | MDL_LAYER_STATE};
    memset(c->layer, remembers[r->arch->memory], c->layers);
    kvs_status s = r->arch->memory >= MDL_MEMORY_STATE_ONLY ? read_state(c, r) : KVS_OK;
    if (s != KVS_OK || r->arch->memory == MDL_MEMORY_STATE_ONLY)
        return s;
    s = mdl_card_layered_u32(r, "attention.head_count", HEADS_MAX, true, c->layers, &c->heads);
    if (s != KVS_OK)
        return s;
    c->kv_heads = c->heads;
    s = r->arch->memory == MDL_MEMORY_STATE_OR_ATTENTION
            ? read_hybrid_heads(c, r)
            : mdl_card_layered_u32(r, "attention.head_count_kv", HEADS_MAX, false, c->layers, &c->kv_heads);
    if (s == KVS_OK && c->heads % c->kv_heads != 0)
        return kvs_fail(r->err, KVS_SELF_MODEL,
                        "%s.attention.head_count_kv: %" PRIu32 " does not divide head_count %" PRIu32, c->arch,
                        c->kv_heads, c->heads);
    return s;
}

/* A latent: what is cached is a row of kv_rank + rope.dims numbers, as if there were one KV head. */
static kvs_status read_latent(struct mdl_card *c, const struct mdl_card_reader *r)
{
    uint32_t key = c->key_dim, value = c->value_dim, rope = 0;
    kvs_status s = mdl_card_need_u32(r, "attention.kv_lora_rank", MDL_HEAD_DIM_MAX, &c->latent.kv_rank);
    if (s == KVS_OK)
        s = mdl_card_need_u32(r, "rope.dimension_count", MDL_HEAD_DIM_MAX, &rope);
    if (s == KVS_OK)
        s = mdl_card_optional_u32(r, "attention.q_lora_rank", WIDTH_MAX, &c->latent.q_rank);
    if (s == KVS_OK)
        s = mdl_card_optional_u32(r, "attention.key_length_mla", MDL_HEAD_DIM_MAX, &key);
    if (s == KVS_OK)
        s = mdl_card_optional_u32(r, "attention.value_length_mla", MDL_HEAD_DIM_MAX, &value);
    if (s == KVS_OK)
        s = mdl_card_optional_f64(r, "rope.scaling.yarn_log_multiplier", 0, 100, &c->latent.log_multiplier);
    if (s != KVS_OK)
        return s;
    if (key <= rope)
        return kvs_fail(r->err, KVS_SELF_MODEL,
                        "%s.rope.dimension_count: %" PRIu32 " leaves nothing of heads of %" PRIu32, c->arch, rope, key);
    c->latent.nope_dim = key - rope;
    c->latent.value_dim = value;
    c->kv_heads = 1;
    c->key_dim = c->latent.kv_rank + rope;
    c->value_dim = c->latent.kv_rank;
    return KVS_OK;
}

static kvs_status read_shape(struct mdl_card *c, const struct mdl_card_reader *r)
{
    double eps = 1e-5;
    kvs_status s = mdl_card_need_u32(r, "block_count", MDL_LAYERS_MAX, &c->layers);
    if (s == KVS_OK)
        s = mdl_card_need_u32(r, "embedding_length", WIDTH_MAX, &c->width);
    if (s == KVS_OK)
        s = read_layers(c, r);
    if (s == KVS_OK && r->arch->memory == MDL_MEMORY_STATE_ONLY)
        s = mdl_card_optional_count(r, "feed_forward_length", MDL_FF_MAX, &c->ff);
    else if (s == KVS_OK)
        s = mdl_card_layered_u32(r, "feed_forward_length", MDL_FF_MAX, true, c->layers, &c->ff);
    if (s == KVS_OK)
        s = mdl_card_need_u32(r, "context_length", MDL_CONTEXT_MAX, &c->context_length);
    if (s == KVS_OK)
        s = mdl_card_optional_f64(r, "attention.layer_norm_rms_epsilon", 0, 1, &eps);
    c->norm_eps = (float)eps;
    if (s != KVS_OK || c->heads == 0)
        return s;
    c->key_dim = c->value_dim = c->width / c->heads;
    s = mdl_card_optional_u32(r, "attention.key_length", MDL_HEAD_DIM_MAX, &c->key_dim);
    if (s == KVS_OK)
        s = mdl_card_optional_u32(r, "attention.value_length", MDL_HEAD_DIM_MAX, &c->value_dim);
    if (s == KVS_OK && r->arch->memory == MDL_MEMORY_LATENT)
        s = read_latent(c, r);
    if (s == KVS_OK &&
        (c->key_dim < 1 || c->key_dim > MDL_HEAD_DIM_MAX || c->value_dim < 1 || c->value_dim > MDL_HEAD_DIM_MAX))
        return kvs_fail(r->err, KVS_SELF_MODEL,
                        "%s.attention.head_count: heads of %" PRIu32 " dimensions are not possible", c->arch,
                        c->key_dim);
    return s;
}

/* What the keys say, and what tensors of divisors say besides: rope_freqs divides every frequency before a linear factor or
 * YaRN is applied; one of the two of longrope is enough to mean it, the other one's absence is found when it is needed. */
static kvs_status read_rope_type(struct mdl_card *c, const struct mdl_card_reader *r)
{
    char key[MDL_KEY_CAP], text[40];
    struct mdl_str type;
    bool tables = mdl_gguf_tensor(r->g, "rope_factors_long.weight") != NULL ||
                  mdl_gguf_tensor(r->g, "rope_factors_short.weight") != NULL;
    c->rope.divided = mdl_gguf_tensor(r->g, "rope_freqs.weight") != NULL;
    kvs_status s = mdl_key_str(r->g, mdl_card_key(r, "rope.scaling.type", key), &type, r->err);
    if (s != KVS_OK)
        return s;
    if (type.data == NULL) { /* a factor alone is a linear one, as elsewhere */
        c->rope.scaling = tables ? MDL_ROPE_LONGROPE : MDL_ROPE_LINEAR;
    } else if (mdl_str_is(type, "none")) {
        c->rope.scaling = tables ? MDL_ROPE_LONGROPE : MDL_ROPE_NONE;
    } else if (mdl_str_is(type, "linear")) {
        c->rope.scaling = MDL_ROPE_LINEAR;
    } else if (mdl_str_is(type, "yarn")) {
        c->rope.scaling = MDL_ROPE_YARN;
    } else if (mdl_str_is(type, "longrope")) {
        c->rope.scaling = MDL_ROPE_LONGROPE;
    } else {
        copy_text(text, sizeof text, type);
        return kvs_fail(r->err, KVS_SELF_MODEL, "%s: '%s' is not known (none, linear, yarn, longrope are)", key, text);
    }
    if (c->rope.scaling == MDL_ROPE_LINEAR && c->rope.factor == 1)
        c->rope.scaling = MDL_ROPE_NONE;
    if (c->rope.scaling == MDL_ROPE_NONE)
        c->rope.factor = 1;
    if (c->rope.divided && (tables || c->rope.scaling == MDL_ROPE_LONGROPE))
        return kvs_fail(r->err, KVS_SELF_MODEL, "rope_freqs.weight: beside longrope it is not supported");
    if (tables && c->rope.scaling != MDL_ROPE_LONGROPE) {
        copy_text(text, sizeof text, type);
        return kvs_fail(r->err, KVS_SELF_MODEL, "%s: '%s' beside rope_factors_*.weight is not supported", key, text);
    }
    if (c->rope.divided && c->rope.scaling == MDL_ROPE_NONE)
        c->rope.scaling = MDL_ROPE_FACTORS;
    return KVS_OK;
}

static kvs_status read_rope_scaling(struct mdl_card *c, const struct mdl_card_reader *r)
{
    double factor = 0;
    c->rope.original_context = c->context_length;
    kvs_status s =
        mdl_card_optional_u32(r, "rope.scaling.original_context_length", MDL_CONTEXT_MAX, &c->rope.original_context);
    if (s == KVS_OK)
        s = mdl_card_optional_f64(r, "rope.scale_linear", 1e-6, 1e6,
                                  &factor); /* how files before 2024 write a linear factor */
    if (s == KVS_OK)
        s = mdl_card_optional_f64(r, "rope.scaling.factor", 0, 1e6, &factor);
    if (s == KVS_OK)
        s = mdl_card_optional_f64(r, "rope.scaling.attn_factor", 1e-6, 1e6, &c->rope.attn_factor);
    if (s == KVS_OK)
        s = mdl_card_optional_f64(r, "rope.scaling.yarn_beta_fast", 0, 1e6, &c->rope.beta_fast);
    if (s == KVS_OK)
        s = mdl_card_optional_f64(r, "rope.scaling.yarn_beta_slow", 0, 1e6, &c->rope.beta_slow);
    c->rope.factor = factor != 0 ? factor : 1;
    c->rope.beta_fast = c->rope.beta_fast > 0 ? c->rope.beta_fast : 32;
    c->rope.beta_slow = c->rope.beta_slow > 0 ? c->rope.beta_slow : 1;
    return s == KVS_OK ? read_rope_type(c, r) : s;
}

static kvs_status read_rope(struct mdl_card *c, const struct mdl_card_reader *r)
{
    c->rope.dims = c->key_dim;
    c->rope.base = 10000;
    c->rope.attn_factor = c->rope.factor = 1;
    c->rope.neox = r->arch->neox;
    if (c->heads == 0)
        return KVS_OK;
    kvs_status s = mdl_card_optional_u32(r, "rope.dimension_count", MDL_HEAD_DIM_MAX, &c->rope.dims);
    if (s == KVS_OK)
        s = mdl_card_optional_f64(r, "rope.freq_base", 1, 1e12, &c->rope.base);
    if (s != KVS_OK)
        return s;
    if (c->rope.dims > c->key_dim || c->rope.dims % 2 != 0)
        return kvs_fail(r->err, KVS_SELF_MODEL,
                        "%s.rope.dimension_count: %" PRIu32 " is odd or more than the head's %" PRIu32, c->arch,
                        c->rope.dims, c->key_dim);
    bool rotates = true; /* hybrids of both kinds of layers say here that positions come from the states alone */
    if (r->arch->memory == MDL_MEMORY_STATE_OR_ATTENTION)
        s = mdl_card_optional_bool(r, "rope.scaling.finetuned", &rotates);
    if (!rotates)
        c->rope.dims = 0;
    return s == KVS_OK ? read_rope_scaling(c, r) : s;
}

static kvs_status read_vocab(struct mdl_card *c, const struct mdl_card_reader *r)
{
    const struct mdl_tensor *embd = mdl_gguf_tensor(r->g, "token_embd.weight");
    uint64_t n;
    if (embd == NULL)
        return kvs_fail(r->err, KVS_SELF_MODEL, "token_embd.weight: absent (is this a vocabulary-only file?)");
    if (embd->dims > 2 || embd->shape[0] != c->width || embd->shape[1] > VOCAB_MAX)
        return kvs_fail(r->err, KVS_SELF_MODEL,
                        "token_embd.weight: shape %" PRIu64 " x %" PRIu64 ", expected %" PRIu32 " x vocabulary",
                        embd->shape[0], embd->shape[1], c->width);
    c->vocab = (uint32_t)embd->shape[1];
    c->tied = mdl_gguf_tensor(r->g, "output.weight") == NULL;
    if (mdl_gguf_array(r->g, "tokenizer.ggml.tokens", &n) && n > c->vocab)
        return kvs_fail(r->err, KVS_SELF_MODEL,
                        "tokenizer.ggml.tokens: %" PRIu64 " tokens for %" PRIu32 " rows of token_embd.weight", n,
                        c->vocab);
    return KVS_OK;
}

static void add_eog(struct mdl_card *c, int32_t id)
{
    for (uint32_t i = 0; i < c->eog_count; i++) {
        if (c->eog[i] == id)
            return;
    }
    if (id >= 0 && c->eog_count < sizeof c->eog / sizeof c->eog[0])
        c->eog[c->eog_count++] = id;
}

static void drop_eog(struct mdl_card *c, int32_t id)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->eog_count; i++) {
        if (c->eog[i] != id)
            c->eog[kept++] = c->eog[i];
    }
    c->eog_count = kept;
}

/* Chat models often name only one end in their keys and use another, so tokens with these texts end a turn too: of whatever kind, since
 * files disagree about that; but texts that also occur in ordinary writing (a tag of HTML) as control tokens only. Where answers come in
 * channels (gpt-oss: <|return|> and <|call|> beside <|end|>) <|end|> ends one message of the answer and the next one follows. */
static void find_eog_by_text(struct mdl_card *c, const struct mdl_gguf *g)
{
    enum { END = 1, RETURN = 2, CALL = 4, CALLS = 8, FLUSH = 16, TAG = 32 };
    static const struct {
        const char *text;
        uint32_t what;
    } texts[] = {{"<|eot_id|>", 0},
                 {"<|im_end|>", 0},
                 {"<|end|>", END},
                 {"<end_of_turn>", 0},
                 {"<|endoftext|>", 0},
                 {"<|end_of_text|>", 0},
                 {"<|eom_id|>", 0},
                 {"<|return|>", RETURN},
                 {"<|call|>", CALL},
                 {"<|calls|>", CALLS},
                 {"<|flush|>", FLUSH},
                 {"<EOT>", 0},
                 {"_<EOT>", 0},
                 {"<end_of_utterance>", 0},
                 {"<turn|>", 0},
                 {"</s>", TAG},
                 {"<eos>", TAG},
                 {"[EOS]", TAG},
                 {"<\xef\xbd\x9c"
                  "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
                  0}};
    int32_t end = -1;
    uint32_t seen = 0;
    uint64_t n;
    if (!mdl_gguf_array(g, "tokenizer.ggml.tokens", &n))
        return;
    for (uint64_t i = 0; i < n; i++) {
        struct mdl_str s;
        int64_t type = 0;
        if (!mdl_gguf_array_str(g, "tokenizer.ggml.tokens", i, &s) || s.len < 4 || s.len > 32)
            continue;
        (void)mdl_gguf_array_i64(g, "tokenizer.ggml.token_type", i, &type);
        for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
            if (!mdl_str_is(s, texts[t].text) || (texts[t].what == TAG && type != 3))
                continue;
            seen |= texts[t].what;
            if (texts[t].what == END)
                end = (int32_t)i;
            else
                add_eog(c, (int32_t)i);
        }
    }
    if ((seen & (RETURN | CALL)) == (RETURN | CALL) || (seen & (CALLS | FLUSH)) == (CALLS | FLUSH))
        drop_eog(c, end);
    else
        add_eog(c, end);
}

static kvs_status read_ids(struct mdl_card *c, const struct mdl_card_reader *r)
{
    struct mdl_str model;
    int32_t eom = -1;
    bool spm = mdl_gguf_str(r->g, "tokenizer.ggml.model", &model) && mdl_str_is(model, "llama");
    kvs_status s = mdl_key_id(r->g, "tokenizer.ggml.bos_token_id", spm ? 1 : -1, c->vocab, &c->bos, r->err);
    if (s == KVS_OK)
        s = mdl_key_id(r->g, "tokenizer.ggml.eos_token_id", spm ? 2 : -1, c->vocab, &c->eos, r->err);
    if (s == KVS_OK)
        s = mdl_key_id(r->g, "tokenizer.ggml.unknown_token_id", spm ? 0 : -1, c->vocab, &c->unk, r->err);
    if (s == KVS_OK)
        s = mdl_key_id(r->g, "tokenizer.ggml.eot_token_id", -1, c->vocab, &c->eot, r->err);
    if (s == KVS_OK)
        s = mdl_key_id(r->g, "tokenizer.ggml.eom_token_id", -1, c->vocab, &eom, r->err);
    if (s == KVS_OK)
        s = mdl_key_id(r->g, "tokenizer.ggml.padding_token_id", -1, c->vocab, &c->pad, r->err);
    if (s != KVS_OK)
        return s;
    add_eog(c, c->eos);
    add_eog(c, c->eot);
    add_eog(c, eom);
    find_eog_by_text(c, r->g);
    return KVS_OK;
}

kvs_status mdl_card_read(const struct mdl_gguf *g, struct mdl_card *out, struct kvs_error *err)
{
    static kvs_status (*const steps[])(struct mdl_card *, const struct mdl_card_reader *) = {
        read_shape, read_rope, mdl_card_read_experts, mdl_card_read_window, mdl_card_read_scales, read_vocab, read_ids};
    struct mdl_card c;
    struct mdl_str name;
    memset(&c, 0, sizeof c);
    struct mdl_card_reader r = {g, NULL, err};
    kvs_status s = read_arch(&c, g, &r.arch, err);
    if (s == KVS_OK)
        s = mdl_card_check_keys(&r);
    if (mdl_gguf_str(g, "general.name", &name))
        copy_text(c.name, sizeof c.name, name);
    for (size_t i = 0; s == KVS_OK && i < sizeof steps / sizeof steps[0]; i++)
        s = steps[i](&c, &r);
    if (s == KVS_OK)
        *out = c;
    return s;
}

size_t mdl_card_rope_text(const struct mdl_card *c, uint32_t context, char *out, size_t cap)
{
    static const char *const names[] = {"none", "linear", "yarn", "longrope", "factors"};
    size_t n = kvs_format(out, cap, "base=%.17g,dims=%" PRIu32 ",scaling=%s", c->rope.base, c->rope.dims,
                          names[c->rope.scaling]);
    if (c->rope.scaling == MDL_ROPE_LINEAR || c->rope.scaling == MDL_ROPE_YARN || c->rope.scaling == MDL_ROPE_LONGROPE)
        n += kvs_format(out + n, cap - n, ",factor=%.17g,attn=%.17g,original=%" PRIu32, c->rope.factor,
                        c->rope.attn_factor, c->rope.original_context);
    if (c->rope.divided && c->rope.scaling != MDL_ROPE_FACTORS)
        n += kvs_format(out + n, cap - n, ",divided");
    if (c->window.tokens != 0 && c->rope.window_base != 0)
        n += kvs_format(out + n, cap - n, ",window_base=%.17g", c->rope.window_base);
    n += kvs_format(out + n, cap - n, ",context=%" PRIu32, context);
    return n;
}
