/* llama.c - the llama architecture (Llama, Mistral, SmolLM, TinyLlama): RMSNorm, rotated pairs (2i, 2i + 1), grouped-query
 * attention, SwiGLU or a mixture of them (Mixtral), tied or untied output. Rotation as the file asks: plain, divided by
 * factors (Llama 3), linear, YaRN.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts llama_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)layer;
    uint32_t feed = card->experts.count > 0 ? ENG_PART_MOE : ENG_PART_FFN;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_FFN_NORM | feed,
                              .may = ENG_PART_QKV_BIAS | ENG_PART_O_BIAS |
                                     (card->experts.count > 0 ? 0 : ENG_PART_FFN_BIAS)};
}

const struct eng_arch eng_arch_llama = {
    .name = "llama",
    .parts = llama_parts,
    .layer = eng_layer_transformer,
};
