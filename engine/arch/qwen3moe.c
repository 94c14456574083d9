/* qwen3moe.c - Qwen 3 mixtures: qwen3's attention; softmax over all experts, the weights of the chosen divided by their sum.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts qwen3moe_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_QK_NORM | ENG_PART_FFN_NORM |
                                      ENG_PART_MOE};
}

const struct eng_arch eng_arch_qwen3moe = {
    .name = "qwen3moe",
    .parts = qwen3moe_parts,
    .layer = eng_layer_transformer,
};
