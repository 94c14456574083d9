/* arch.h - what an architecture file provides: the parts of its layers and one layer's pass composed of blocks.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_ARCH_ARCH_H
#define KVS_ENGINE_ARCH_ARCH_H

#include "engine/block/block.h"
#include "engine/block/tensors.h"

struct eng_arch {
    const char *name;
    /* Which tensors layer `layer` must and may have. */
    struct eng_parts (*parts)(const struct mdl_card *card, uint32_t layer);
    /* NULL or: refuses what the file asks for and this build has not, before any tensor is read. */
    kvs_status (*check)(const struct mdl_gguf *g, const struct mdl_card *card, struct kvs_error *err);
    /* NULL or: after all tensors and tables are there, the layers' settings (struct eng_attention) that differ from the
     * card's. */
    kvs_status (*setup)(struct eng_model *m, struct kvs_error *err);
    /* One layer on one member; all members call it together. */
    void (*layer)(struct eng_run *r, uint32_t layer);
    eng_activation activation; /* between gate and up */
};

extern const struct eng_arch eng_arch_gemma3;
extern const struct eng_arch eng_arch_gpt_oss;
extern const struct eng_arch eng_arch_granite;
extern const struct eng_arch eng_arch_llama;
extern const struct eng_arch eng_arch_mamba;
extern const struct eng_arch eng_arch_mamba2, eng_arch_deepseek2, eng_arch_falcon_h1, eng_arch_granitehybrid;
extern const struct eng_arch eng_arch_phi3;
extern const struct eng_arch eng_arch_qwen2;
extern const struct eng_arch eng_arch_qwen2moe;
extern const struct eng_arch eng_arch_qwen3;
extern const struct eng_arch eng_arch_qwen3moe;
extern const struct eng_arch eng_arch_smollm3;

/* The table of all of them; NULL: not there. names: their list for error messages. */
const struct eng_arch *eng_arch_find(const char *name);
size_t eng_arch_names(char *out, size_t cap);

#endif
