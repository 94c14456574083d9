/* gpt_oss.c - gpt-oss: a sink in every head's softmax, biases on everything, a window on every other layer, YaRN, experts
 * weighted by a softmax of the chosen ones' values, and a clamped gate.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts gpt_oss_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_QKV_BIAS | ENG_PART_O_BIAS |
                                      ENG_PART_SINKS | ENG_PART_LATE_NORM | ENG_PART_MOE | ENG_PART_MOE_BIAS};
}

const struct eng_arch eng_arch_gpt_oss = {
    .name = "gpt-oss",
    .parts = gpt_oss_parts,
    .layer = eng_layer_transformer,
    .activation = ENG_CLAMPED_SWIGLU,
};
