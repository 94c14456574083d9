/* tokenizer_bench.c - how fast text becomes ids, on one core.
 *
 *   tokenizer_bench VOCABULARY.gguf TEXT [--repeat N] [--ids FILE]
 *
 * Prints megabytes a second of the thread's own time, best of the repeats: the whole text in one call, in pieces of 4 KiB as prompts are, and the
 * whole text the very first time, when no word is known yet. --ids writes the ids of the whole text as int32, so that tokenizer_bench.py can
 * compare them with those of other tokenizers, which it times on the same text.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PROMPT_BYTES 4096u

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "tokenizer_bench: %s\n", what);
    exit(1);
}

static uint8_t *read_file(const char *path, size_t *size_out)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0)
        die(path);
    long size = ftell(f);
    uint8_t *bytes = size > 0 ? malloc((size_t)size) : NULL;
    rewind(f);
    if (bytes == NULL || fread(bytes, 1, (size_t)size, f) != (size_t)size)
        die(path);
    (void)fclose(f);
    *size_out = (size_t)size;
    return bytes;
}

static double cpu_seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Encodes the text in parts of `part` bytes (cut at line ends, so that no character is); seconds. */
static double encode(const struct mdl_tokenizer *t, const char *text, size_t n, size_t part, struct mdl_ids *ids)
{
    struct kvs_error err;
    double begin = cpu_seconds();
    ids->count = 0;
    for (size_t at = 0; at < n;) {
        size_t end = n - at > part ? at + part : n;
        while (end < n && text[end - 1] != '\n')
            end++;
        if (mdl_encode(t, text + at, end - at, 0, SIZE_MAX, ids, &err) != KVS_OK)
            die(err.text);
        at = end;
    }
    return cpu_seconds() - begin;
}

static double best(const struct mdl_tokenizer *t, const char *text, size_t n, size_t part, int repeat,
                   struct mdl_ids *ids)
{
    double least = 1e9;
    for (int i = 0; i < repeat; i++) {
        double s = encode(t, text, n, part, ids);
        least = s < least ? s : least;
    }
    return (double)n / least * 1e-6;
}

int main(int argc, char **argv)
{
    struct kvs_error err = {0};
    struct mdl_gguf *g;
    struct mdl_tokenizer *t;
    struct mdl_ids ids = {0};
    const char *ids_path = NULL;
    size_t file_size, n;
    int repeat = 5;
    if (argc < 3)
        die("usage: tokenizer_bench VOCABULARY.gguf TEXT [--repeat N] [--ids FILE]");
    for (int i = 3; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--repeat") == 0)
            repeat = (int)strtol(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--ids") == 0)
            ids_path = argv[i + 1];
        else
            die(argv[i]);
    }
    uint8_t *file = read_file(argv[1], &file_size), *text = read_file(argv[2], &n);
    if (mdl_gguf_parse(file, file_size, true, &g, &err) != KVS_OK || mdl_tokenizer_create(g, &t, &err) != KVS_OK)
        die(err.text);
    double first = best(t, (const char *)text, n, n, 1, &ids); /* no word is known yet */
    double prompts = best(t, (const char *)text, n, PROMPT_BYTES, repeat, &ids);
    double whole = best(t, (const char *)text, n, n, repeat, &ids);
    (void)printf("kvasir: %.1f MB/s (whole text), %.1f MB/s (prompts of %u bytes), %.1f MB/s (first time), %zu ids of "
                 "%zu bytes\n",
                 whole, prompts, PROMPT_BYTES, first, ids.count, n);
    FILE *out = ids_path != NULL ? fopen(ids_path, "wb") : NULL;
    if (ids_path != NULL &&
        (out == NULL || fwrite(ids.ids, sizeof *ids.ids, ids.count, out) != ids.count || fclose(out) != 0))
        die(ids_path);
    mdl_ids_fini(&ids);
    mdl_tokenizer_destroy(t);
    mdl_gguf_destroy(g);
    free(file);
    free(text);
    return 0;
}
