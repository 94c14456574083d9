/* qwen2.c - Qwen 2 and 2.5: as llama, with biases on q, k and v and rotated pairs (i, i + dims / 2) (the card says so).
 * qwen2moe.c has its mixture.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts qwen2_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_QKV_BIAS | ENG_PART_FFN_NORM |
                                      ENG_PART_FFN};
}

const struct eng_arch eng_arch_qwen2 = {
    .name = "qwen2",
    .parts = qwen2_parts,
    .layer = eng_layer_transformer,
};
