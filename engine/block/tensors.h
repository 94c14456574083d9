/* tensors.h - from names in the file to fields of a layer: one table for all architectures, cut into parts.
 *
 * An architecture says which parts a layer must have and which it may have. A tensor of a part that the layer cannot have
 * is an error by name; so is a missing one. Fused tensors (attn_qkv, ffn_up with the gate in its first half) are taken
 * apart by rows, so that nothing behind this file knows them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_BLOCK_TENSORS_H
#define KVS_ENGINE_BLOCK_TENSORS_H

#include "engine/model.h"

enum {
    ENG_PART_NORM = 1u << 0,           /* attn_norm: input norm of the layer */
    ENG_PART_ATTENTION = 1u << 1,      /* attn_q, attn_k, attn_v or attn_qkv; attn_output */
    ENG_PART_QKV_BIAS = 1u << 2,       /* their biases, or attn_qkv.bias */
    ENG_PART_O_BIAS = 1u << 3,         /* attn_output.bias */
    ENG_PART_QK_NORM = 1u << 4,        /* attn_q_norm, attn_k_norm [head dim] */
    ENG_PART_FFN_NORM = 1u << 5,       /* ffn_norm */
    ENG_PART_FFN = 1u << 6,            /* ffn_gate, ffn_up, ffn_down */
    ENG_PART_FFN_FUSED = 1u << 7,      /* ffn_up with 2 * ff rows, gate first; ffn_down */
    ENG_PART_POST_NORMS = 1u << 8,     /* post_attention_norm, post_ffw_norm: of a branch before it is added */
    ENG_PART_LATE_NORM = 1u << 9,      /* ffn_norm, called post_attention_norm */
    ENG_PART_SINKS = 1u << 10,         /* attn_sinks [heads] */
    ENG_PART_MOE = 1u << 11,           /* ffn_gate_inp; ffn_{gate,up,down}_exps, or ffn_gate_up_exps */
    ENG_PART_MOE_BIAS = 1u << 12,      /* biases of all of these */
    ENG_PART_CHOICE_BIAS = 1u << 13,   /* exp_probs_b.bias: for the selection only */
    ENG_PART_SHARED = 1u << 14,        /* ffn_{gate,up,down}_shexp */
    ENG_PART_SHARED_ROUTER = 1u << 15, /* ffn_gate_inp_shexp: a factor for the shared expert */
    ENG_PART_STATE = 1u << 16,         /* ssm_in, ssm_conv1d, ssm_dt.bias, ssm_a, ssm_d, ssm_out */
    ENG_PART_STATE_STEP = 1u << 17,    /* mamba: ssm_x, ssm_dt */
    ENG_PART_STATE_NORM = 1u << 18,    /* mamba2: ssm_norm, by group */
    ENG_PART_CONV_BIAS = 1u << 19,     /* ssm_conv1d.bias */
    ENG_PART_LATENT = 1u << 21, /* attn_kv_a_mqa, attn_kv_a_norm, attn_k_b and attn_v_b or attn_kv_b, attn_output */
    ENG_PART_LATENT_ONE_STEP = 1u << 22,  /* attn_q */
    ENG_PART_LATENT_TWO_STEPS = 1u << 23, /* attn_q_a, attn_q_a_norm, attn_q_b */
    ENG_PART_FFN_BIAS = 1u << 24,         /* ffn_gate.bias, ffn_up.bias, ffn_down.bias */
    ENG_PART_BARE_FFN_NORM = 1u << 20,    /* falcon-h1: the norm is called ffn_norm, without .weight */
};

struct eng_parts {
    uint32_t must, may;
};

/* Takes one tensor of the file; a name that the layer's parts do not have is an error. */
KVS_MUST_CHECK kvs_status eng_tensor_take(struct eng_model *m, const struct mdl_tensor *t, struct kvs_error *err);
/* After the last tensor: everything there? Sets m->head. */
KVS_MUST_CHECK kvs_status eng_tensors_complete(struct eng_model *m, struct kvs_error *err);
void eng_tensors_free(struct eng_model *m);

#endif
