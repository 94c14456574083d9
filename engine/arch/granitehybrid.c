/* granitehybrid.c - Granite 4 hybrids: a layer either attends (mostly without rotation) or has Mamba 2's state, then a
 * feed-forward part or a mixture of experts; granite's four numbers (card.scale).
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts granitehybrid_parts(const struct mdl_card *card, uint32_t layer)
{
    uint32_t mix = (card->layer[layer] & MDL_LAYER_STATE) != 0
                       ? ENG_PART_STATE | ENG_PART_STATE_NORM | ENG_PART_CONV_BIAS
                       : ENG_PART_ATTENTION;
    uint32_t shared = card->experts.ff_shared != 0 ? ENG_PART_SHARED : 0;
    return (struct eng_parts){.must = ENG_PART_NORM | mix | ENG_PART_FFN_NORM |
                                      (card->experts.count != 0 ? ENG_PART_MOE | shared : ENG_PART_FFN)};
}

static void layer(struct eng_run *r, uint32_t l)
{
    const struct eng_layer *w = &r->m->layer[l];
    if ((r->card->layer[l] & MDL_LAYER_STATE) != 0) {
        eng_block_norm(r, w->attn_norm, eng_state_quantized(w));
        eng_block_state(r, l);
    } else {
        eng_block_norm(r, w->attn_norm, eng_attention_quantized(w));
        eng_block_attention(r, l);
    }
    eng_layer_feed_forward(r, l);
}

const struct eng_arch eng_arch_granitehybrid = {.name = "granitehybrid", .parts = granitehybrid_parts, .layer = layer};
