/* quantize_mix.c - which tensors of a model get which type.
 *
 * Matrices (names ending in .weight, two dimensions or more) get the target's type, the embedding and the output too; norms, biases,
 * routers of experts and short convolutions stay as they are. Mixes follow llama.cpp's common rules: the output (or the embedding that
 * serves as one) in Q6_K, and more bits for values, the way down and a fused q, k, v in some layers, where errors cost most. Its rules
 * for single model sizes and with activation statistics are left out.
 * Rows that are no multiple of 256 get a type of 32-blocks with about the same bits, as there: Q2_K, Q3_K, IQ4_XS -> IQ4_NL,
 * Q4_K -> Q5_0, Q5_K -> Q5_1, Q6_K -> Q8_0. Rows that fit no block at all stay.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/quantize_mix.h"
#include "base/error.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const struct cli_quant_target targets[] = {
    {"f32", MDL_F32, 0, CLI_MIX_NONE},        {"f16", MDL_F16, 1, CLI_MIX_NONE},
    {"bf16", MDL_BF16, 32, CLI_MIX_NONE},
    {"q8_0", MDL_Q8_0, 7, CLI_MIX_NONE},      {"q4_0", MDL_Q4_0, 2, CLI_MIX_NONE},
    {"q4_1", MDL_Q4_1, 3, CLI_MIX_NONE},      {"q5_0", MDL_Q5_0, 8, CLI_MIX_NONE},
    {"q5_1", MDL_Q5_1, 9, CLI_MIX_NONE},      {"q2_k", MDL_Q2_K, 10, CLI_MIX_NONE},
    {"q3_k", MDL_Q3_K, 11, CLI_MIX_NONE},     {"q4_k", MDL_Q4_K, 14, CLI_MIX_NONE},
    {"q5_k", MDL_Q5_K, 16, CLI_MIX_NONE},     {"q6_k", MDL_Q6_K, 18, CLI_MIX_NONE},
    {"iq4_nl", MDL_IQ4_NL, 25, CLI_MIX_NONE}, {"iq4_xs", MDL_IQ4_XS, 30, CLI_MIX_NONE},
    {"mxfp4", MDL_MXFP4, 38, CLI_MIX_NONE},   {"q3_k_s", MDL_Q3_K, 11, CLI_MIX_HEAD},
    {"q3_k_m", MDL_Q3_K, 12, CLI_MIX_3_M},    {"q3_k_l", MDL_Q3_K, 13, CLI_MIX_3_L},
    {"q4_k_s", MDL_Q4_K, 14, CLI_MIX_4_S},    {"q4_k_m", MDL_Q4_K, 15, CLI_MIX_4_M},
    {"q5_k_s", MDL_Q5_K, 16, CLI_MIX_HEAD},   {"q5_k_m", MDL_Q5_K, 17, CLI_MIX_5_M},
};

const struct cli_quant_target *cli_quant_target(const char *name)
{
    char low[16];
    size_t n = strlen(name);
    for (size_t i = 0; n < sizeof low && i <= n; i++)
        low[i] = (char)tolower((unsigned char)name[i]);
    for (size_t i = 0; n < sizeof low && i < sizeof targets / sizeof targets[0]; i++)
        if (!strcmp(low, targets[i].name))
            return &targets[i];
    return NULL;
}

static bool contains(struct mdl_str s, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= s.len; i++)
        if (memcmp(s.data + i, word, n) == 0)
            return true;
    return false;
}

static bool is(struct mdl_str s, const char *name)
{
    return s.len == strlen(name) && memcmp(s.data, name, s.len) == 0;
}

static bool changes(const struct mdl_tensor *t)
{
    static const char *const kept[] = {"norm", "ffn_gate_inp", "ssm_conv1d"};
    bool matrix = t->dims >= 2 && t->name.len > 7 && memcmp(t->name.data + t->name.len - 7, ".weight", 7) == 0;
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        matrix = matrix && !contains(t->name, kept[i]);
    return matrix;
}

/* The layer's number out of blk.N.; and how many layers there are. False: not of a layer. */
static bool layer_of(const struct mdl_gguf *g, struct mdl_str name, uint64_t *layer_out, uint64_t *layers_out)
{
    char key[96];
    struct mdl_str arch;
    size_t i = 4;
    *layer_out = 0;
    if (name.len < 6 || memcmp(name.data, "blk.", 4) != 0 || !mdl_gguf_str(g, "general.architecture", &arch) ||
        arch.len > 64)
        return false;
    for (; i < name.len && i < 10 && name.data[i] >= '0' && name.data[i] <= '9'; i++)
        *layer_out = *layer_out * 10 + (uint64_t)(name.data[i] - '0');
    (void)kvs_format(key, sizeof key, "%.*s.block_count", (int)arch.len, arch.data);
    return mdl_gguf_u64(g, key, layers_out) && *layer_out < *layers_out;
}

/* The first and the last eighth, and every third between. */
static bool more_bits(uint64_t layer, uint64_t layers)
{
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

static mdl_type mixed(const struct cli_quant_target *to, const struct mdl_gguf *g, const struct mdl_tensor *t)
{
    uint64_t layer, layers;
    bool tied = !mdl_gguf_tensor(g, "output.weight");
    if (is(t->name, "output.weight") || (tied && is(t->name, "token_embd.weight")))
        return MDL_Q6_K;
    if (!layer_of(g, t->name, &layer, &layers))
        return to->type;
    bool value = contains(t->name, ".attn_v."), down = contains(t->name, ".ffn_down"), more = more_bits(layer, layers);
    bool fused = contains(t->name, ".attn_qkv."), out = contains(t->name, ".attn_output.");
    switch (to->mix) {
    case CLI_MIX_3_M:
        if ((value && layer < 2) || (down && layer < layers / 16))
            return MDL_Q5_K;
        return value || down || fused || out ? MDL_Q4_K : to->type;
    case CLI_MIX_3_L: return value || down || out ? MDL_Q5_K : fused ? MDL_Q4_K : to->type;
    case CLI_MIX_4_S: return (value && layer < 4) || (down && layer < layers / 8) ? MDL_Q5_K : to->type;
    case CLI_MIX_4_M: return (value || down) && more ? MDL_Q6_K : fused ? MDL_Q5_K : to->type;
    case CLI_MIX_5_M: return ((value || down) && more) || fused ? MDL_Q6_K : to->type;
    default: return to->type;
    }
}

static mdl_type of_32(mdl_type type)
{
    switch (type) {
    case MDL_Q2_K:
    case MDL_Q3_K:
    case MDL_IQ4_XS: return MDL_IQ4_NL;
    case MDL_Q4_K: return MDL_Q5_0;
    case MDL_Q5_K: return MDL_Q5_1;
    case MDL_Q6_K: return MDL_Q8_0;
    default: return type;
    }
}

static bool fits(const struct mdl_tensor *t, mdl_type type)
{
    uint32_t weights, bytes;
    return mdl_type_block(type, &weights, &bytes) && t->shape[0] % weights == 0;
}

struct cli_quant_choice cli_quant_choose(const struct cli_quant_target *to, const struct mdl_gguf *g,
                                         const struct mdl_tensor *t)
{
    if (!changes(t))
        return (struct cli_quant_choice){t->type, false};
    mdl_type type = to->mix == CLI_MIX_NONE ? to->type : mixed(to, g, t);
    if (fits(t, type))
        return (struct cli_quant_choice){type, false};
    type = of_32(type);
    return fits(t, type) ? (struct cli_quant_choice){type, true} : (struct cli_quant_choice){t->type, false};
}
