/* qwen3.c - Qwen 3: as llama, with a norm of each head's query and key before rotation, and heads whose size is not
 * width / heads.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts qwen3_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_QK_NORM | ENG_PART_FFN_NORM |
                                      ENG_PART_FFN};
}

const struct eng_arch eng_arch_qwen3 = {
    .name = "qwen3",
    .parts = qwen3_parts,
    .layer = eng_layer_transformer,
};
