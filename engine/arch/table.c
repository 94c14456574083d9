/* table.c - the architectures of this build by name.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"
#include <string.h>

static const struct eng_arch *const archs[] = {
    &eng_arch_deepseek2, &eng_arch_falcon_h1, &eng_arch_granitehybrid, &eng_arch_gemma3,   &eng_arch_gpt_oss,
    &eng_arch_granite,   &eng_arch_llama,     &eng_arch_mamba,         &eng_arch_mamba2,   &eng_arch_phi3,
    &eng_arch_qwen2,     &eng_arch_qwen2moe,  &eng_arch_qwen3,         &eng_arch_qwen3moe, &eng_arch_smollm3,
};

const struct eng_arch *eng_arch_find(const char *name)
{
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        if (strcmp(archs[i]->name, name) == 0) {
            return archs[i];
        }
    }
    return NULL;
}

size_t eng_arch_names(char *out, size_t cap)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        n += kvs_format(out + n, cap - n, "%s%s", i > 0 ? ", " : "", archs[i]->name);
    }
    return n;
}
