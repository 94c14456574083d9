/* encode_fuzz.c - any bytes as a text for two generated vocabularies, SentencePiece with bytes to fall back on and byte-level BPE: ids with the
 * tokenizer's short cuts are those without, every id is one of the vocabulary, and what BPE encodes decodes to the same bytes.
 * The first byte chooses vocabulary and flags. With libFuzzer as in gguf_fuzz.c; without it see replay.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "model/tokenizer_int.h"
#include "tests/fuzz/replay.h"
#include "tests/support/gguf_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 8192u
#define MERGES 40u

static struct mdl_tokenizer *from(struct tst_gguf *w)
{
    struct kvs_error err = {0};
    struct mdl_gguf *g;
    struct mdl_tokenizer *t = NULL;
    size_t size;
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    if (mdl_gguf_parse(bytes, size, true, &g, &err) != KVS_OK || mdl_tokenizer_create(g, &t, &err) != KVS_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        abort();
    }
    mdl_gguf_destroy(g);
    free(bytes);
    return t;
}

/* GPT-2's letters for bytes: those that print stand for themselves, the others for U+0100 and on. */
static size_t letter(uint32_t byte, char *out)
{
    uint32_t code = byte, others = 0;
    for (uint32_t b = 0; b <= byte; b++) {
        bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte && !prints)
            code = 256 + others;
        others += !prints;
    }
    return kvs_utf8_encode(code, (uint8_t *)out);
}

/* All bytes, and merges of random neighbours, of merges too. */
static struct mdl_tokenizer *byte_pairs(void)
{
    static char text[256 + MERGES][64], merge[MERGES][130];
    struct mdl_str tokens[256 + MERGES], merges[MERGES];
    struct kvs_rng rng = {7};
    static const char likely[] = " etaoin\n0123shrdlu\xc3\xa9\xe6\x97";
    uint32_t count = 256;
    for (uint32_t b = 0; b < 256; b++)
        tokens[b] = (struct mdl_str){text[b], letter(b, text[b])};
    for (uint32_t m = 0; m < MERGES;) {
        uint32_t pair[2];
        for (int i = 0; i < 2; i++)
            pair[i] = count > 256 && kvs_rng_below(&rng, 3) == 0 ? 256 + (uint32_t)kvs_rng_below(&rng, count - 256)
                                                                 : (uint8_t)likely[kvs_rng_below(&rng, sizeof likely - 1)];
        size_t n = tokens[pair[0]].len + tokens[pair[1]].len;
        if (n >= sizeof text[0])
            continue;
        memcpy(text[count], tokens[pair[0]].data, tokens[pair[0]].len);
        memcpy(text[count] + tokens[pair[0]].len, tokens[pair[1]].data, tokens[pair[1]].len);
        bool known = false;
        for (uint32_t k = 0; k < count; k++)
            known = known || (tokens[k].len == n && memcmp(tokens[k].data, text[count], n) == 0);
        if (known)
            continue;
        merges[m] = (struct mdl_str){merge[m], n + 1};
        snprintf(merge[m], sizeof merge[m], "%.*s %.*s", (int)tokens[pair[0]].len, tokens[pair[0]].data, (int)tokens[pair[1]].len, tokens[pair[1]].data);
        tokens[count] = (struct mdl_str){text[count], n};
        m++, count++;
    }
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_gguf_str(w, "tokenizer.ggml.model", "gpt2");
    tst_gguf_str(w, "tokenizer.ggml.pre", "llama-bpe");
    tst_gguf_strs(w, "tokenizer.ggml.tokens", tokens, count);
    tst_gguf_strs(w, "tokenizer.ggml.merges", merges, MERGES);
    return from(w);
}

static struct mdl_tokenizer *pieces(void)
{
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_llama_vocab(w);
    return from(w);
}

static void check_back(const struct mdl_tokenizer *t, const struct mdl_ids *ids, const uint8_t *text, size_t n)
{
    struct mdl_detok d;
    struct kvs_buf out;
    kvs_buf_init(&out, (size_t)1 << 20);
    mdl_detok_init(&d, t, true, true);
    for (size_t i = 0; i < ids->count; i++)
        if (mdl_detok_push(&d, ids->ids[i], &out) != KVS_OK)
            abort();
    if (kvs_utf8_valid(text, n) && (out.len != n || memcmp(kvs_buf_text(&out), text, n) != 0))
        abort();
    kvs_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mdl_tokenizer *kinds[2]; /* freed by the process's end */
    struct mdl_ids fast = {0}, plain = {0};
    struct kvs_error err;
    if (size == 0 || size > TEXT_MAX)
        return 0;
    if (!kinds[0]) {
        kinds[0] = byte_pairs();
        kinds[1] = pieces();
    }
    const struct mdl_tokenizer *t = kinds[data[0] & 1];
    uint32_t flags = (data[0] & 2 ? MDL_ADD_SPECIAL : 0) | (data[0] & 4 ? MDL_PARSE_SPECIAL : 0);
    size_t most = data[0] & 8 ? data[0] >> 4 : SIZE_MAX;
    kvs_status a = mdl_encode(t, (const char *)data + 1, size - 1, flags, most, &fast, &err);
    kvs_status b = mdl_encode(t, (const char *)data + 1, size - 1, flags | MDL_ENCODE_PLAIN, most, &plain, &err);
    if (a != b || fast.count != plain.count || fast.count > most)
        abort();
    for (size_t i = 0; i < fast.count; i++)
        if (fast.ids[i] != plain.ids[i] || fast.ids[i] < 0 || (uint32_t)fast.ids[i] >= mdl_vocab_size(t))
            abort();
    if (a == KVS_OK && t == kinds[0])
        check_back(t, &fast, data + 1, size - 1);
    mdl_ids_fini(&fast);
    mdl_ids_fini(&plain);
    return 0;
}

#ifndef KVS_LIBFUZZER
static void damage(struct kvs_rng *rng)
{
    static const char *const bits[] = {"e", "t", " the", "in", "  ", "\n", "12", "<s>", "</s>", "\xc3\xa9", "\xe6\x97\xa5", "\xe2\x96\x81", "\xff", "\xf0\x9f\xa6\x99", "hello", "0"};
    uint8_t text[600];
    size_t n = 1, count = (size_t)kvs_rng_below(rng, 90);
    text[0] = (uint8_t)kvs_rng_next(rng);
    for (size_t i = 0; i < count; i++) {
        const char *bit = bits[kvs_rng_below(rng, sizeof bits / sizeof bits[0])];
        memcpy(text + n, bit, strlen(bit));
        n += strlen(bit);
        if (kvs_rng_below(rng, 20) == 0)
            text[n++] = (uint8_t)kvs_rng_next(rng);
    }
    tst_fuzz_exact(text, n);
}

int main(int argc, char **argv)
{
    return tst_fuzz_main(argc, argv, damage);
}
#endif
