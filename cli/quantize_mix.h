/* quantize_mix.h - which type each tensor gets under a target of `kvasir quantize`.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_QUANTIZE_MIX_H
#define KVS_CLI_QUANTIZE_MIX_H

#include "model/gguf.h"

typedef enum cli_mix {
    CLI_MIX_NONE,
    CLI_MIX_3_M,
    CLI_MIX_3_L,
    CLI_MIX_4_S,
    CLI_MIX_4_M,
    CLI_MIX_5_M,
    CLI_MIX_HEAD
} cli_mix;

struct cli_quant_target {
    const char *name;
    mdl_type type;
    uint32_t file_type; /* general.file_type */
    cli_mix mix;        /* none: every matrix has the type */
};

#define CLI_QUANT_NAMES                                                                              \
    "f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, q3_k, q2_k, iq4_nl, iq4_xs, mxfp4, " \
    "or a mix: q5_k_m, q5_k_s, q4_k_m, q4_k_s, q3_k_l, q3_k_m, q3_k_s"

const struct cli_quant_target *cli_quant_target(const char *name); /* any case; NULL: no such name */

struct cli_quant_choice {
    mdl_type type;
    bool fell_back; /* the rows are no multiple of the wanted type's block, so a type of 32 stands in */
};
/* The type that stays where the tensor is no matrix to be made smaller, or where no block fits its rows. */
struct cli_quant_choice cli_quant_choose(const struct cli_quant_target *to, const struct mdl_gguf *g,
                                         const struct mdl_tensor *t);

#endif
