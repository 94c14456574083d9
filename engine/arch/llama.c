/* llama.c - the llama architecture (Llama, Mistral, SmolLM, TinyLlama): RMSNorm, rotated pairs (2i, 2i + 1), grouped-query
 * attention, SwiGLU, tied or untied output.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts llama_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_FFN_NORM | ENG_PART_FFN,
                              .may = ENG_PART_QKV_BIAS | ENG_PART_O_BIAS};
}

const struct eng_arch eng_arch_llama = {
    .name = "llama",
    .parts = llama_parts,
    .layer = eng_layer_transformer,
};
