/* gguf_fuzz.c - any bytes as a model file: parse, card, tokenizer, template, and a text through the tokenizer.
 * With libFuzzer:  clang -g -fsanitize=fuzzer,address,undefined -DKVS_LIBFUZZER ... gguf_fuzz.c; without it see replay.h: a small
 * generated model is damaged.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/card.h"
#include "model/parts.h"
#include "model/template.h"
#include "model/tokenizer.h"
#include "tests/fuzz/replay.h"
#include "tests/support/gguf_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As the parts of a split model: each begins with its magic. Copies of exactly their size, so that a byte too many is seen. */
static void join(const uint8_t *data, size_t size)
{
    struct mdl_part part[4];
    uint8_t *copy[4], *header;
    struct mdl_gguf *g;
    struct kvs_error err;
    uint32_t n = 0;
    for (size_t begin = 0, at = 1; n < 4 && begin < size; at++) {
        bool last = at + 4 > size || n == 3;
        if (!last && memcmp(data + at, "GGUF", 4) != 0)
            continue;
        size_t end = last ? size : at;
        copy[n] = malloc(end - begin);
        memcpy(copy[n], data + begin, end - begin);
        part[n] = (struct mdl_part){copy[n], end - begin, "x"};
        n++;
        begin = end;
    }
    if (n > 0 && mdl_parts_join(part, n, &header, &g, &err) == KVS_OK) {
        for (uint64_t i = 0; i < mdl_gguf_tensor_count(g); i++) {
            const struct mdl_tensor *t = mdl_gguf_tensor_at(g, i);
            volatile uint8_t end = t->data[t->bytes - 1];
            (void)end;
        }
        mdl_gguf_destroy(g);
        free(header);
    }
    while (n > 0)
        free(copy[--n]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "Once upon a time, 12  \xe6\x97\xa5 <s> \xff\n\n the";
    struct mdl_gguf *g;
    struct mdl_card card;
    struct mdl_tokenizer *t;
    struct mdl_template *chat;
    struct mdl_ids ids = {0};
    struct kvs_error err;
    if (mdl_gguf_parse(data, size, false, &g, &err) == KVS_OK) /* with its tensors: fewer pass, the rest is the same */
        mdl_gguf_destroy(g);
    join(data, size);
    if (mdl_gguf_parse(data, size, true, &g, &err) != KVS_OK)
        return 0;
    if (mdl_card_read(g, &card, &err) == KVS_OK && card.kv_heads == 0)
        abort();
    if (mdl_template_create(g, &chat, &err) == KVS_OK)
        mdl_template_destroy(chat);
    if (mdl_tokenizer_create(g, &t, &err) == KVS_OK) {
        struct mdl_detok d;
        struct kvs_buf out;
        kvs_buf_init(&out, (size_t)1 << 24);
        mdl_detok_init(&d, t, true, true);
        if (mdl_encode(t, text, sizeof text, MDL_ADD_SPECIAL | MDL_PARSE_SPECIAL, 1000, &ids, &err) == KVS_OK) {
            for (size_t i = 0; i < ids.count; i++) {
                if (ids.ids[i] < 0 || (uint32_t)ids.ids[i] >= mdl_vocab_size(t) ||
                    mdl_detok_push(&d, ids.ids[i], &out) != KVS_OK)
                    abort();
            }
        }
        mdl_ids_fini(&ids);
        kvs_buf_fini(&out);
        mdl_tokenizer_destroy(t);
    }
    mdl_gguf_destroy(g);
    return 0;
}

#ifndef KVS_LIBFUZZER
static uint8_t *generated;
static size_t generated_size;

static void damage(struct kvs_rng *rng)
{
    size_t size = generated_size, n = kvs_rng_below(rng, 4) == 0 ? (size_t)kvs_rng_below(rng, size) : size;
    uint8_t *copy = malloc(n + 1);
    memcpy(copy, generated, n);
    for (uint64_t k = kvs_rng_below(rng, 6); n > 0 && k > 0; k--)
        copy[kvs_rng_below(rng, n < 9000 ? n : 9000)] = (uint8_t)kvs_rng_next(rng);
    tst_fuzz_exact(copy, n);
    free(copy);
}

int main(int argc, char **argv)
{
    const struct tst_llama_options o = {
        .layers = 1, .width = 32, .heads = 2, .kv_heads = 1, .ff = 32, .type = MDL_Q8_0};
    generated = tst_llama_make(&o, &generated_size);
    int rc = tst_fuzz_main(argc, argv, damage);
    free(generated);
    return rc;
}
#endif
