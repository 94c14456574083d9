/* mamba.c - the state-space architectures without attention: mamba (a time step for every channel) and mamba2 (one for
 * every head, norm by group). A layer is a norm and a recurrent block; there is no feed-forward part.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"

static struct eng_parts mamba_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_STATE | ENG_PART_STATE_STEP | ENG_PART_CONV_BIAS};
}

static struct eng_parts mamba2_parts(const struct mdl_card *card, uint32_t layer)
{
    (void)card;
    (void)layer;
    return (struct eng_parts){.must = ENG_PART_NORM | ENG_PART_STATE | ENG_PART_STATE_NORM | ENG_PART_CONV_BIAS};
}

/* FalconMamba norms dt, B and C. */
static kvs_status mamba_check(const struct mdl_gguf *g, const struct mdl_card *card, struct kvs_error *err)
{
    (void)card;
    bool normed = false;
    if (mdl_gguf_bool(g, "mamba.ssm.dt_b_c_rms", &normed) && normed) {
        return kvs_fail(err, KVS_SELF_UNSUPPORTED, "mamba.ssm.dt_b_c_rms: norms of dt, B and C are not in this build");
    }
    return KVS_OK;
}

static void layer(struct eng_run *r, uint32_t l)
{
    eng_block_norm(r, r->m->layer[l].attn_norm, eng_state_quantized(&r->m->layer[l]));
    eng_block_state(r, l);
}

const struct eng_arch eng_arch_mamba = {.name = "mamba", .parts = mamba_parts, .check = mamba_check, .layer = layer};
const struct eng_arch eng_arch_mamba2 = {.name = "mamba2", .parts = mamba2_parts, .layer = layer};
