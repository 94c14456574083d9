/* deepseek2.c - DeepSeek V2, V2 Lite, V3, R1: latent attention; dense layers first, then mixtures of experts with a shared
 * one, chosen by softmax or by a logistic function with a bias and groups (card.experts).
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"
#include "engine/rope.h"
#include <math.h>

static struct eng_parts deepseek2_parts(const struct mdl_card *card, uint32_t layer)
{
    uint32_t query = card->latent.q_rank != 0 ? ENG_PART_LATENT_TWO_STEPS : ENG_PART_LATENT_ONE_STEP;
    struct eng_parts p = {.must = ENG_PART_NORM | ENG_PART_LATENT | query | ENG_PART_FFN_NORM};
    if (card->experts.count == 0 || layer < card->experts.dense_layers) {
        p.must |= ENG_PART_FFN;
    } else {
        p.must |= ENG_PART_MOE | (card->experts.ff_shared != 0 ? ENG_PART_SHARED : 0);
        p.may = ENG_PART_CHOICE_BIAS;
    }
    return p;
}

static kvs_status deepseek2_check(const struct mdl_gguf *g, const struct mdl_card *card, struct kvs_error *err)
{
    (void)g;
    if (card->latent.kv_rank % ENG_STRIP != 0 || card->latent.value_dim % ENG_STRIP != 0) {
        return kvs_fail(err, KVS_SELF_UNSUPPORTED,
                        "a latent of %u and values of %u dimensions: this build wants multiples of %u",
                        card->latent.kv_rank, card->latent.value_dim, ENG_STRIP);
    }
    return KVS_OK;
}

/* Scores are scaled for heads as the model was trained, not for the rows that are compared; a stretched context adds the
 * square of a magnitude. */
static kvs_status deepseek2_setup(struct eng_model *m, struct kvs_error *err)
{
    (void)err;
    const struct mdl_card *c = &m->card;
    double magnitude = 1.0 + c->latent.log_multiplier * eng_log64(c->rope.factor);
    float dims = (float)(c->latent.nope_dim + c->rope.dims);
    for (uint32_t l = 0; l < c->layers; l++) {
        m->layer[l].attention.scale = (float)(magnitude * magnitude) / sqrtf(dims);
    }
    return KVS_OK;
}

static void layer(struct eng_run *r, uint32_t l)
{
    const struct eng_layer *w = &r->m->layer[l];
    eng_block_norm(r, w->attn_norm, eng_latent_quantized(w));
    eng_block_latent(r, l);
    eng_layer_feed_forward(r, l);
}

const struct eng_arch eng_arch_deepseek2 = {
    .name = "deepseek2", .parts = deepseek2_parts, .check = deepseek2_check, .setup = deepseek2_setup, .layer = layer};
