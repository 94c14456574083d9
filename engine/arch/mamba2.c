/* mamba2.c - Mamba 2: as mamba, with a time step for every head and a norm by group.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts mamba2_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_STATE | ENG_PART_STATE_NORM | ENG_PART_CONV_BIAS};
}

const struct eng_arch eng_arch_mamba2 = {.name = "mamba2", .parts = mamba2_parts, .layer = eng_layer_state};
