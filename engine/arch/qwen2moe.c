/* qwen2moe.c - Qwen 1.5 and 2 mixtures: qwen2's attention; experts with a softmax over all of them, weights as they are;
 * a shared expert times a logistic function of its own router.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts qwen2moe_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_QKV_BIAS | ENG_PART_FFN_NORM |
                                      ENG_PART_MOE | ENG_PART_SHARED | ENG_PART_SHARED_ROUTER};
}

const struct eng_arch eng_arch_qwen2moe = {
    .name = "qwen2moe",
    .parts = qwen2moe_parts,
    .layer = eng_layer_transformer,
};
