/* gemma3.c - Gemma 3 (text): embedding times sqrt(width), norms of q and k heads, a norm on each branch before it is added,
 * GELU gate, five windowed layers with their own rope base to one that sees all keys. The card knows the numbers; norm
 * weights are stored with their 1 added.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts gemma3_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_QK_NORM | ENG_PART_POST_NORMS |
                                      ENG_PART_FFN_NORM | ENG_PART_FFN};
}

const struct eng_arch eng_arch_gemma3 = {
    .name = "gemma3",
    .parts = gemma3_parts,
    .layer = eng_layer_transformer,
    .activation = ENG_GELU,
};
