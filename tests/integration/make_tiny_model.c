/* make_tiny_model.c - writes a tiny random llama model to a file: make_tiny_model FILE TYPE SEED. For integration tests that have to run where
 * no model is at hand. Its shape is that of stories260K (5 layers, 8 heads, 4 KV heads of 8), so the same arithmetic of pages holds.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/gguf_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        mdl_type type;
    } types[] = {{"f32", MDL_F32}, {"q8_0", MDL_Q8_0}, {"q4_0", MDL_Q4_0}, {"q4_1", MDL_Q4_1}};
    struct tst_llama_options o = {.layers = 5, .width = 64, .heads = 8, .kv_heads = 4, .ff = 96, .context = 512};
    if (argc != 4)
        return 2;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (!strcmp(argv[2], types[i].name))
            o.type = types[i].type;
    o.seed = strtoull(argv[3], NULL, 10);
    size_t size;
    uint8_t *bytes = tst_llama_make(&o, &size);
    FILE *f = fopen(argv[1], "wb");
    bool ok = f && fwrite(bytes, 1, size, f) == size;
    ok = f && fclose(f) == 0 && ok;
    free(bytes);
    return ok ? 0 : 1;
}
