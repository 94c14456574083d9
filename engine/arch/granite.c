/* granite.c - Granite 3 (dense): llama with four numbers of its own (card.scale): the embedding is multiplied, each branch
 * is multiplied before it is added, scores have their own factor, logits are divided.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts granite_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_FFN_NORM | ENG_PART_FFN,
                              .may = ENG_PART_QKV_BIAS | ENG_PART_O_BIAS};
}

const struct eng_arch eng_arch_granite = {
    .name = "granite",
    .parts = granite_parts,
    .layer = eng_layer_transformer,
};
