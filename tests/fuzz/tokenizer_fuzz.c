/* tokenizer_fuzz.c - any bytes as a text: the first byte chooses a way of cutting, the rest is cut by us and by the published expression
 * (PCRE2), which have to agree.
 * With libFuzzer:  clang -g -fsanitize=fuzzer,address,undefined -DKVS_LIBFUZZER ... tokenizer_fuzz.c; without it see replay.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "model/tokenizer_int.h"
#include "tests/fuzz/replay.h"
#include "tests/support/pcre_split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 4096u
#define KINDS_MAX 32u

static size_t want[TEXT_MAX], got[TEXT_MAX], got_count;
static const uint8_t *subject;

static kvs_status take(void *user, const uint8_t *piece, size_t n)
{
    (void)user;
    if (got_count == TEXT_MAX || n == 0)
        abort();
    got[got_count++] = (size_t)(piece + n - subject);
    return KVS_OK;
}

static void compare(const char *name, struct tst_split *oracle, const uint8_t *text, size_t n)
{
    const struct mdl_pretok *p;
    struct kvs_error err;
    subject = text;
    got_count = 0;
    if (mdl_pretok_find((struct mdl_str){name, strlen(name)}, &p, &err) != KVS_OK ||
        mdl_pretok_split(p, text, n, take, NULL) != KVS_OK)
        abort();
    if (!kvs_utf8_valid(text, n)) { /* the expressions want valid text; ours has to cover it without a gap */
        if (n > 0 && got[got_count - 1] != n)
            abort();
        return;
    }
    size_t count = tst_split_run(oracle, text, n, want, TEXT_MAX);
    if (count != got_count || memcmp(want, got, count * sizeof *want) != 0) {
        (void)fprintf(stderr, "%s cuts elsewhere than its expression\n", name);
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tst_split *oracle[KINDS_MAX]; /* compiled once; freed by the process's end */
    if (size == 0 || size > TEXT_MAX)
        return 0;
    size_t kind = data[0] % tst_pretok_count;
    if (oracle[kind] == NULL)
        oracle[kind] = tst_split_create(tst_pretok_names[kind]);
    compare(tst_pretok_names[kind], oracle[kind], data + 1, size - 1);
    return 0;
}

#ifndef KVS_LIBFUZZER
static void damage(struct kvs_rng *rng)
{
    static const char *const bits[] = {"a",
                                       "Z",
                                       "'s",
                                       "'LL",
                                       " ",
                                       "  ",
                                       "\n",
                                       "\r",
                                       "\t",
                                       "7",
                                       "123",
                                       "!",
                                       "/",
                                       "$",
                                       "\xc2\xa0",
                                       "\xc3\xa9",
                                       "\xc7\x85",
                                       "\xca\xb0",
                                       "\xcc\x81",
                                       "\xe6\x97\xa5",
                                       "\xea\xb0\x80",
                                       "\xe3\x80\x82",
                                       "\xf0\x9f\xa6\x99"};
    uint8_t text[512];
    size_t n = 1, pieces = (size_t)kvs_rng_below(rng, 60);
    text[0] = (uint8_t)kvs_rng_next(rng);
    for (size_t i = 0; i < pieces; i++) {
        if (kvs_rng_below(rng, 12) == 0) {
            n += (size_t)kvs_utf8_encode((uint32_t)kvs_rng_below(rng, 0x20000), text + n);
            continue;
        }
        const char *bit = bits[kvs_rng_below(rng, sizeof bits / sizeof bits[0])];
        memcpy(text + n, bit, strlen(bit));
        n += strlen(bit);
    }
    if (n > 1 && kvs_rng_below(rng, 8) == 0)
        text[kvs_rng_below(rng, n)] = (uint8_t)kvs_rng_next(rng);
    tst_fuzz_exact(text, n);
}

int main(int argc, char **argv)
{
    return tst_fuzz_main(argc, argv, damage);
}
#endif
