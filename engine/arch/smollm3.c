/* smollm3.c - SmolLM 3: llama, but every fourth layer attends without rotation, by content alone (NoPE).
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

#define PERIOD 4u

static struct eng_parts smollm3_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_ATTENTION | ENG_PART_FFN_NORM | ENG_PART_FFN,
                              .may = ENG_PART_QKV_BIAS | ENG_PART_O_BIAS};
}

static kvs_status smollm3_setup(struct eng_model *m, struct kvs_error *err)
{
    (void)err;
    for (uint32_t l = PERIOD - 1; l < m->card.layers; l += PERIOD) {
        m->layer[l].attention.rotation = ENG_ROTATION_NONE;
    }
    return KVS_OK;
}

const struct eng_arch eng_arch_smollm3 = {
    .name = "smollm3",
    .parts = smollm3_parts,
    .setup = smollm3_setup,
    .layer = eng_layer_transformer,
};
