/* falcon_h1.c - Falcon H1: every layer attends and has Mamba 2's state, both on the same normed input; then a feed-forward
 * part. Its multipliers are in the weights already.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts falcon_h1_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_STATE | ENG_PART_BARE_FFN_NORM |
                                      ENG_PART_FFN,
                              .may = ENG_PART_QKV_BIAS | ENG_PART_O_BIAS | ENG_PART_STATE_NORM | ENG_PART_CONV_BIAS};
}

static void layer(struct eng_run *r, uint32_t l)
{
    const struct eng_layer *w = &r->m->layer[l];
    eng_block_norm(r, w->attn_norm, eng_attention_quantized(w));
    eng_block_attention(r, l);
    eng_block_norm(r, NULL, eng_state_quantized(w)); /* adds; h stays, its 16-bit blocks are made anew */
    eng_block_state(r, l);
    eng_layer_feed_forward(r, l);
}

const struct eng_arch eng_arch_falcon_h1 = {.name = "falcon-h1", .parts = falcon_h1_parts, .layer = layer};
