/* mamba.c - Mamba: state-space layers without attention, a time step for every channel. A layer is a norm and a recurrent
 * block; there is no feed-forward part.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts mamba_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_STATE | ENG_PART_STATE_STEP | ENG_PART_CONV_BIAS};
}

const struct eng_arch eng_arch_mamba = {.name = "mamba", .parts = mamba_parts, .layer = eng_layer_state};
