/* etcd_fuzz.c - any bytes as an answer of etcd: answer, watch line, error object, and cards in the values.
 * With libFuzzer:  clang -g -fsanitize=fuzzer,address,undefined -DKVS_LIBFUZZER ... etcd_fuzz.c; without it, the program
 * replays the files it is given, or damages recorded answers a number of times: -n COUNT [SEED].
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"
#include "net/etcd_codec.h"
#include "proto/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look(const struct net_etcd_kv *kv, struct kvs_arena *arena)
{
    static struct msg_card card;
    if (strlen(kv->key) >= NET_ETCD_KEY_MAX || kv->key[0] == '\0')
        abort();
    if (msg_card_decode(kv->value, kv->value_bytes, arena, &card, NULL) == KVS_OK && card.group_count > MSG_GROUPS_MAX)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvs_arena arena;
    struct net_etcd_answer answer;
    struct net_etcd_watch_line line;
    struct kvs_error err;
    char text[128];
    kvs_arena_init(&arena, 8u << 20);
    if (net_etcd_answer_decode(data, size, &arena, &answer, &err) == KVS_OK) {
        for (uint32_t i = 0; i < answer.kv_count; i++)
            look(&answer.kvs[i], &arena);
    }
    if (net_etcd_watch_decode(data, size, &arena, &line, &err) == KVS_OK) {
        for (uint32_t i = 0; i < line.event_count; i++)
            look(&line.events[i].kv, &arena);
    }
    (void)net_etcd_error_decode(data, size, text, sizeof text);
    if (strlen(text) >= sizeof text)
        abort();
    kvs_arena_fini(&arena);
    return 0;
}

#ifndef KVS_LIBFUZZER
static void add_card(struct kvs_buf *out)
{
    struct msg_card card = {.id = "a", .role = MSG_ROLE_DECODE, .epoch = 5, .control_url = "tcp://h:1", .protocol_min = 1, .protocol_max = 1,
                            .block_tokens = 64, .group_count = 2, .group = {{1024, 10}, {2048, 10}}};
    struct kvs_buf value;
    kvs_buf_init(&value, 65536);
    if (msg_card_encode(&card, &value) != KVS_OK || net_base64_append(out, value.data, value.len) != KVS_OK)
        abort();
    kvs_buf_fini(&value);
}

static void damage_recorded(long count, uint64_t seed)
{
    static const char *const frame[][2] = {
        {"{\"header\":{\"cluster_id\":\"1\",\"revision\":\"9\"},\"kvs\":[{\"key\":\"YQ==\",\"mod_revision\":\"4\",\"lease\":\"7\",\"value\":\"",
         "\"}],\"more\":true,\"count\":\"3\"}"},
        {"{\"header\":{\"revision\":\"8\"},\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":\"YQ==\",\"value\":\"", "\"}],\"count\":\"1\"}}]}"},
        {"{\"result\":{\"header\":{\"revision\":\"9\"},\"events\":[{\"type\":\"DELETE\",\"kv\":{\"key\":\"YQ==\"}},{\"kv\":{\"key\":\"YQ==\",\"value\":\"",
         "\"}}]}}"},
        {"{\"error\":{\"grpc_code\":14,\"message\":\"", "\"}}"},
    };
    struct kvs_rng rng = {seed};
    for (long i = 0; i < count; i++) {
        const char *const *f = frame[kvs_rng_below(&rng, 4)];
        struct kvs_buf b;
        kvs_buf_init(&b, 1u << 20);
        if (kvs_buf_puts(&b, f[0]) != KVS_OK)
            abort();
        add_card(&b);
        if (kvs_buf_puts(&b, f[1]) != KVS_OK)
            abort();
        size_t size = kvs_rng_below(&rng, 4) == 0 ? (size_t)kvs_rng_below(&rng, b.len + 1) : b.len;
        uint8_t *copy = malloc(size + 1); /* exact: a sanitizer sees the byte after it */
        if (copy == NULL)
            abort();
        memcpy(copy, b.data, size);
        for (uint64_t k = kvs_rng_below(&rng, 6); size > 0 && k > 0; k--)
            copy[kvs_rng_below(&rng, size)] = (uint8_t)kvs_rng_next(&rng);
        copy = realloc(copy, size > 0 ? size : 1);
        (void)LLVMFuzzerTestOneInput(copy, size);
        free(copy);
        kvs_buf_fini(&b);
    }
}

static bool replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = f != NULL ? malloc(8u << 20) : NULL;
    size_t n = bytes != NULL ? fread(bytes, 1, 8u << 20, f) : 0;
    if (bytes != NULL)
        (void)LLVMFuzzerTestOneInput(bytes, n);
    free(bytes);
    if (f != NULL)
        (void)fclose(f);
    return f != NULL;
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "-n") == 0) {
        uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
        printf("seed %llu\n", (unsigned long long)seed);
        damage_recorded(strtol(argv[2], NULL, 10), seed);
        return 0;
    }
    for (int i = 1; i < argc; i++)
        if (!replay(argv[i]))
            return 1;
    return 0;
}
#endif
