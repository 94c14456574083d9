/* phi3.c - Phi 3 and 4 mini: q, k, v in one tensor and gate, up in one, and longrope: two sets of divisors of the rotation's
 * frequencies, chosen by the context that a sequence may have. The file's window is not applied (nor is it elsewhere).
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts phi3_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_FFN_NORM | ENG_PART_FFN_FUSED};
}

const struct eng_arch eng_arch_phi3 = {
    .name = "phi3",
    .parts = phi3_parts,
    .layer = eng_layer_transformer,
};
