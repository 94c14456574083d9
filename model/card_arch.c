/* card_arch.c - the architectures of this build as their metadata goes: which keys they may have, what is true of one
 * without a key saying so, and the readers of keys that only some have.
 *
 * A key with the architecture's own prefix that stands in none of the lists is refused: a model computed without
 * something its file asks for would talk plausible nonsense. Keys that are known but ask for what is not there are
 * accepted at the value that means "no".
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/card_int.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define EXPERTS_MAX 4096u

static const struct mdl_arch archs[] = {
    {.name = "llama", .keys = MDL_KEYS_EXPERTS, .gating = MDL_GATE_SOFTMAX, .expert_norm = true, .ff_is_expert = true},
    {.name = "qwen2", .neox = true},
    {.name = "qwen3", .neox = true},
    {.name = "smollm3"},
    {.name = "granite", .keys = MDL_KEYS_SCALES},
    {.name = "phi3", .neox = true},
    {.name = "qwen2moe", .keys = MDL_KEYS_EXPERTS, .neox = true, .needs_experts = true, .gating = MDL_GATE_SOFTMAX},
    {.name = "qwen3moe",
     .keys = MDL_KEYS_EXPERTS,
     .neox = true,
     .needs_experts = true,
     .gating = MDL_GATE_SOFTMAX,
     .expert_norm = true},
    {.name = "gpt-oss",
     .keys = MDL_KEYS_EXPERTS | MDL_KEYS_WINDOW,
     .neox = true,
     .needs_experts = true,
     .window_period = 2,
     .gating = MDL_GATE_SOFTMAX_CHOSEN,
     .ff_is_expert = true},
    {.name = "gemma3", .keys = MDL_KEYS_WINDOW | MDL_KEYS_GEMMA, .neox = true, .window_period = 6, .window_base = 10000, .gemma = true},
    {.name = "mamba", .memory = MDL_MEMORY_STATE_ONLY, .keys = MDL_KEYS_STATE | MDL_KEYS_STEPS},
    {.name = "mamba2", .memory = MDL_MEMORY_STATE_ONLY, .keys = MDL_KEYS_STATE},
    {.name = "falcon-h1", .memory = MDL_MEMORY_STATE_AND_ATTENTION, .keys = MDL_KEYS_STATE, .neox = true},
    {.name = "granitehybrid",
     .memory = MDL_MEMORY_STATE_OR_ATTENTION,
     .keys = MDL_KEYS_STATE | MDL_KEYS_SCALES | MDL_KEYS_EXPERTS,
     .gating = MDL_GATE_SOFTMAX,
     .expert_norm = true,
     .ff_is_expert = true},
    {.name = "deepseek2",
     .memory = MDL_MEMORY_LATENT,
     .keys = MDL_KEYS_LATENT | MDL_KEYS_EXPERTS,
     .gating = MDL_GATE_SOFTMAX},
};
#define ARCHS (sizeof archs / sizeof archs[0])

const struct mdl_arch *mdl_arch_find(struct mdl_str name)
{
    for (size_t i = 0; i < ARCHS; i++) {
        if (mdl_str_is(name, archs[i].name))
            return &archs[i];
    }
    return NULL;
}

size_t mdl_arch_names(char *out, size_t cap)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < ARCHS; i++)
        n += kvs_format(out + n, cap - n, "%s%s", i > 0 ? ", " : "", archs[i].name);
    return n;
}

/* --- keys --- */

static const struct known_key {
    const char *name;
    uint32_t keys; /* sets it belongs to; 0: common */
    enum { ANY, ONLY } takes;
    double only; /* ONLY: the one value, as a number or a truth value, that asks for nothing */
} known_keys[] = {
    {"vocab_size", 0, ANY, 0},
    {"context_length", 0, ANY, 0},
    {"embedding_length", 0, ANY, 0},
    {"block_count", 0, ANY, 0},
    {"feed_forward_length", 0, ANY, 0},
    {"tensor_data_layout", 0, ANY, 0},
    {"attention.head_count", 0, ANY, 0},
    {"attention.head_count_kv", 0, ANY, 0},
    {"attention.key_length", 0, ANY, 0},
    {"attention.value_length", 0, ANY, 0},
    {"attention.layer_norm_rms_epsilon", 0, ANY, 0},
    {"attention.sliding_window", 0, ANY,
     0}, /* not applied where the architecture has no windowed layers, as elsewhere */
    {"attention.causal", 0, ONLY, 1},
    {"rope.dimension_count", 0, ANY, 0},
    {"rope.freq_base", 0, ANY, 0},
    {"rope.scale_linear", 0, ANY, 0},
    {"rope.scaling.type", 0, ANY, 0},
    {"rope.scaling.factor", 0, ANY, 0},
    {"rope.scaling.attn_factor", MDL_KEYS_LATENT, ONLY, 1}, /* their magnitude is the yarn_log_multiplier's */
    {"rope.scaling.attn_factor", 0, ANY, 0},
    {"rope.scaling.original_context_length", 0, ANY, 0},
    {"rope.scaling.finetuned", 0, ANY, 0},
    {"rope.scaling.yarn_beta_fast", 0, ANY, 0},
    {"rope.scaling.yarn_beta_slow", 0, ANY, 0},
    {"rope.scaling.yarn_ext_factor", 0, ONLY, 1},
    {"rope.scaling.yarn_attn_factor", 0, ONLY, 1},
    {"use_parallel_residual", 0, ONLY, 0},
    {"attn_logit_softcapping", MDL_KEYS_GEMMA, ANY, 0},
    {"attn_logit_softcapping", 0, ONLY, 0},
    {"final_logit_softcapping", MDL_KEYS_GEMMA, ANY, 0},
    {"mm.tokens_per_image", MDL_KEYS_GEMMA, ANY, 0}, /* says nothing about text */
    {"final_logit_softcapping", 0, ONLY, 0},
    {"attention.temperature_scale", 0, ONLY, 0},
    {"attention.max_alibi_bias", 0, ONLY, 0},
    {"attention.clamp_kqv", 0, ONLY, 0},
    {"expert_count", MDL_KEYS_EXPERTS, ANY, 0},
    {"expert_used_count", MDL_KEYS_EXPERTS, ANY, 0},
    {"expert_feed_forward_length", MDL_KEYS_EXPERTS, ANY, 0},
    {"expert_shared_feed_forward_length", MDL_KEYS_EXPERTS, ANY, 0},
    {"expert_shared_count", MDL_KEYS_EXPERTS, ANY, 0},
    {"expert_group_count", MDL_KEYS_EXPERTS, ANY, 0},
    {"expert_group_used_count", MDL_KEYS_EXPERTS, ANY, 0},
    {"expert_weights_scale", MDL_KEYS_EXPERTS, ANY, 0},
    {"expert_weights_norm", MDL_KEYS_EXPERTS, ANY, 0},
    {"expert_gating_func", MDL_KEYS_EXPERTS, ANY, 0},
    {"leading_dense_block_count", MDL_KEYS_EXPERTS, ANY, 0},
    {"interleave_moe_layer_step", MDL_KEYS_EXPERTS, ONLY, 1},
    {"expert_count", 0, ONLY, 0},
    {"expert_used_count", 0, ONLY, 0},
    {"attention.sliding_window_pattern", MDL_KEYS_WINDOW, ANY, 0},
    {"rope.freq_base_swa", MDL_KEYS_WINDOW, ANY, 0},
    {"embedding_scale", MDL_KEYS_SCALES, ANY, 0},
    {"residual_scale", MDL_KEYS_SCALES, ANY, 0},
    {"attention.scale", MDL_KEYS_SCALES, ANY, 0},
    {"logit_scale", MDL_KEYS_SCALES, ANY, 0},
    {"ssm.conv_kernel", MDL_KEYS_STATE, ANY, 0},
    {"ssm.inner_size", MDL_KEYS_STATE, ANY, 0},
    {"ssm.state_size", MDL_KEYS_STATE, ANY, 0},
    {"ssm.time_step_rank", MDL_KEYS_STATE, ANY, 0},
    {"ssm.group_count", MDL_KEYS_STATE, ANY, 0},
    {"ssm.dt_b_c_rms", MDL_KEYS_STEPS, ANY, 0},
    {"ssm.dt_b_c_rms", MDL_KEYS_STATE, ONLY, 0},
    {"nextn_predict_layers", MDL_KEYS_LATENT, ONLY, 0},
    {"attention.q_lora_rank", MDL_KEYS_LATENT, ANY, 0},
    {"attention.kv_lora_rank", MDL_KEYS_LATENT, ANY, 0},
    {"attention.key_length_mla", MDL_KEYS_LATENT, ANY, 0},
    {"attention.value_length_mla", MDL_KEYS_LATENT, ANY, 0},
    {"rope.scaling.yarn_log_multiplier", MDL_KEYS_LATENT, ANY, 0},
    {"embedding_scale", 0, ONLY, 1},
    {"residual_scale", 0, ONLY, 1},
    {"logit_scale", 0, ONLY, 1},
};

static const struct known_key *known(const struct mdl_card_reader *r, struct mdl_str name)
{
    for (size_t i = 0; i < sizeof known_keys / sizeof known_keys[0]; i++) {
        const struct known_key *k = &known_keys[i];
        if ((k->keys == 0 || (k->keys & r->arch->keys) != 0) && mdl_str_is(name, k->name))
            return k;
    }
    return NULL;
}

/* As a number: false for what is none. */
static bool number(const struct mdl_gguf *g, const char *key, double *out)
{
    bool b;
    if (mdl_gguf_number(g, key, out))
        return true;
    if (mdl_gguf_bool(g, key, &b)) {
        *out = b ? 1 : 0;
        return true;
    }
    return false;
}

kvs_status mdl_card_check_keys(const struct mdl_card_reader *r)
{
    struct mdl_str key;
    char text[48];
    size_t prefix = strlen(r->arch->name);
    for (uint64_t i = 0; mdl_gguf_key_at(r->g, i, &key, text, sizeof text); i++) {
        char whole[MDL_KEY_CAP];
        double v;
        if (key.len <= prefix || memcmp(key.data, r->arch->name, prefix) != 0 || key.data[prefix] != '.')
            continue;
        const struct mdl_str name = {key.data + prefix + 1, key.len - prefix - 1};
        const struct known_key *k = known(r, name);
        if (k == NULL)
            return kvs_fail(r->err, KVS_SELF_MODEL, "%.*s: not known to this build; it might change the result",
                            (int)(key.len < 90 ? key.len : 90), key.data);
        if (k->takes == ONLY && (!number(r->g, mdl_card_key(r, k->name, whole), &v) || v != k->only))
            return kvs_fail(r->err, KVS_SELF_MODEL, "%s: %s is not supported for this architecture by this build",
                            whole, text);
    }
    return KVS_OK;
}

/* --- keys that only some have --- */

static kvs_status read_gating(struct mdl_card *c, const struct mdl_card_reader *r)
{
    uint32_t gating = (uint32_t)r->arch->gating;
    double scale = 1;
    kvs_status s = mdl_card_optional_u32(r, "expert_gating_func", MDL_GATE_SOFTMAX_CHOSEN, &gating);
    if (s == KVS_OK)
        s = mdl_card_optional_f64(r, "expert_weights_scale", 0, 1e6, &scale);
    if (s != KVS_OK)
        return s;
    c->experts.gating = (mdl_gating)gating;
    c->experts.scale = scale != 0 ? (float)scale : 1.0f;
    c->experts.normalise = r->arch->expert_norm;
    return mdl_card_optional_bool(r, "expert_weights_norm", &c->experts.normalise);
}

static kvs_status read_expert_groups(struct mdl_card *c, const struct mdl_card_reader *r)
{
    c->experts.groups = c->experts.groups_used = 1;
    kvs_status s = mdl_card_optional_u32(r, "expert_group_count", EXPERTS_MAX, &c->experts.groups);
    if (s == KVS_OK)
        s = mdl_card_optional_u32(r, "expert_group_used_count", EXPERTS_MAX, &c->experts.groups_used);
    if (s == KVS_OK && (c->experts.count % c->experts.groups != 0 || c->experts.groups_used > c->experts.groups ||
                        c->experts.count / c->experts.groups * c->experts.groups_used < c->experts.used))
        return kvs_fail(r->err, KVS_SELF_MODEL,
                        "%s.expert_group_count: %" PRIu32 " groups, %" PRIu32 " used, do not fit %" PRIu32 " experts",
                        c->arch, c->experts.groups, c->experts.groups_used, c->experts.count);
    return s;
}

static kvs_status read_expert_widths(struct mdl_card *c, const struct mdl_card_reader *r)
{
    uint32_t shared = 0;
    c->experts.ff = r->arch->ff_is_expert ? c->ff : c->ff / c->experts.used;
    kvs_status s = mdl_card_optional_u32(r, "expert_feed_forward_length", MDL_FF_MAX, &c->experts.ff);
    if (s == KVS_OK)
        s = mdl_card_optional_count(r, "expert_shared_count", EXPERTS_MAX, &shared);
    if (s != KVS_OK)
        return s;
    if (c->experts.ff == 0 || (uint64_t)c->experts.ff * shared > MDL_FF_MAX)
        return kvs_fail(r->err, KVS_SELF_MODEL, "%s.expert_feed_forward_length: %" PRIu32 " does not fit", c->arch,
                        c->experts.ff);
    c->experts.ff_shared = c->experts.ff * shared;
    return mdl_card_optional_count(r, "expert_shared_feed_forward_length", MDL_FF_MAX, &c->experts.ff_shared);
}

kvs_status mdl_card_read_experts(struct mdl_card *c, const struct mdl_card_reader *r)
{
    kvs_status s = r->arch->needs_experts ? mdl_card_need_u32(r, "expert_count", EXPERTS_MAX, &c->experts.count)
                                          : mdl_card_optional_count(r, "expert_count", EXPERTS_MAX, &c->experts.count);
    if (s != KVS_OK || c->experts.count == 0)
        return s;
    s = mdl_card_need_u32(r, "expert_used_count", EXPERTS_MAX, &c->experts.used);
    if (s == KVS_OK && c->experts.used > c->experts.count)
        s = kvs_fail(r->err, KVS_SELF_MODEL, "%s.expert_used_count: %" PRIu32 " of %" PRIu32 " experts", c->arch,
                     c->experts.used, c->experts.count);
    if (s == KVS_OK)
        s = mdl_card_optional_count(r, "leading_dense_block_count", c->layers, &c->experts.dense_layers);
    if (s == KVS_OK)
        s = read_expert_widths(c, r);
    if (s == KVS_OK)
        s = read_gating(c, r);
    return s == KVS_OK ? read_expert_groups(c, r) : s;
}

/* Which layers have the window: all but every so-manieth, or those that an array says. */
static kvs_status read_pattern(struct mdl_card *c, const struct mdl_card_reader *r)
{
    static const char name[] = "attention.sliding_window_pattern";
    char key[MDL_KEY_CAP];
    uint32_t period = r->arch->window_period;
    uint64_t count;
    bool listed = mdl_gguf_array(r->g, mdl_card_key(r, name, key), &count);
    kvs_status s = listed ? KVS_OK : mdl_card_optional_u32(r, name, MDL_LAYERS_MAX, &period);
    if (listed && count != c->layers)
        s = kvs_fail(r->err, KVS_SELF_MODEL, "%s: %" PRIu64 " values for %" PRIu32 " layers", key, count, c->layers);
    for (uint32_t l = 0; s == KVS_OK && l < c->layers; l++) {
        int64_t v = (l + 1) % period != 0;
        if (listed && (!mdl_gguf_array_i64(r->g, key, l, &v) || (v != 0 && v != 1)))
            s = kvs_fail(r->err, KVS_SELF_MODEL, "%s: not one truth value a layer", key);
        c->layer[l] |= v == 1 ? MDL_LAYER_WINDOW : 0;
    }
    return s;
}

kvs_status mdl_card_read_window(struct mdl_card *c, const struct mdl_card_reader *r)
{
    double base = r->arch->window_base != 0 ? r->arch->window_base : c->rope.base;
    if (r->arch->window_period == 0)
        return KVS_OK;
    kvs_status s = mdl_card_need_u32(r, "attention.sliding_window", MDL_CONTEXT_MAX, &c->window.tokens);
    if (s == KVS_OK)
        s = read_pattern(c, r);
    if (s == KVS_OK)
        s = mdl_card_optional_f64(r, "rope.freq_base_swa", 1, 1e12, &base);
    if (s == KVS_OK && r->arch->window_base == 0 && base != c->rope.base)
        return kvs_fail(r->err, KVS_SELF_MODEL,
                        "%s.rope.freq_base_swa: another base for the windowed layers is not supported", c->arch);
    c->rope.window_base = r->arch->window_base != 0 ? base : 0;
    return s;
}

kvs_status mdl_card_read_scales(struct mdl_card *c, const struct mdl_card_reader *r)
{
    double embedding = 1, residual = 1, attention = 0, logit = 1, softcap = 0, score_cap = 0;
    kvs_status s = KVS_OK;
    if ((r->arch->keys & MDL_KEYS_SCALES) != 0) {
        s = mdl_card_optional_f64(r, "embedding_scale", 1e-6, 1e6, &embedding);
        if (s == KVS_OK)
            s = mdl_card_optional_f64(r, "residual_scale", 1e-6, 1e6, &residual);
        if (s == KVS_OK)
            s = mdl_card_optional_f64(r, "attention.scale", 1e-6, 1e6, &attention);
        if (s == KVS_OK)
            s = mdl_card_optional_f64(r, "logit_scale", 1e-6, 1e6, &logit);
    }
    if (r->arch
            ->gemma) { /* the 27B, known by its layers, divides scores by what heads of equal parts of the width would have */
        embedding = sqrt((double)c->width);
        attention = c->layers == 62 ? 1.0 / sqrt((double)c->width / c->heads) : 0;
        s = mdl_card_optional_f64(r, "final_logit_softcapping", 0, 1e6, &softcap);
        if (s == KVS_OK)
            s = mdl_card_optional_f64(r, "attn_logit_softcapping", 0, 1e6, &score_cap);
    }
    c->scale.embedding = (float)embedding;
    c->scale.residual = (float)residual;
    c->scale.attention = (float)attention;
    c->scale.logit = (float)logit;
    c->scale.softcap = (float)softcap;
    c->scale.score_cap = (float)score_cap;
    return s;
}
