/* etcd_fuzz.c - any bytes as an answer of etcd: answer, watch line, error object, and cards in the values.
 * With libFuzzer:  clang -g -fsanitize=fuzzer,address,undefined -DKVS_LIBFUZZER ... etcd_fuzz.c; without it see replay.h:
 * recorded answers are damaged.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/etcd_codec.h"
#include "proto/wire.h"
#include "tests/fuzz/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    struct msg_card card = {.id = "a",
                            .role = MSG_ROLE_DECODE,
                            .epoch = 5,
                            .control_url = "tcp://h:1",
                            .protocol_min = 1,
                            .protocol_max = 1,
                            .block_tokens = 64,
                            .group_count = 2,
                            .group = {{1024, 10}, {2048, 10}}};
    struct kvs_buf value;
    kvs_buf_init(&value, 65536);
    if (msg_card_encode(&card, &value) != KVS_OK || net_base64_append(out, value.data, value.len) != KVS_OK)
        abort();
    kvs_buf_fini(&value);
}

static void damage(struct kvs_rng *rng)
{
    static const char *const frame[][2] = {
        {"{\"header\":{\"cluster_id\":\"1\",\"revision\":\"9\"},\"kvs\":[{\"key\":\"YQ==\",\"mod_revision\":\"4\","
         "\"lease\":\"7\",\"value\":\"",
         "\"}],\"more\":true,\"count\":\"3\"}"},
        {"{\"header\":{\"revision\":\"8\"},\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":\"YQ==\",\"value\":\"",
         "\"}],\"count\":\"1\"}}]}"},
        {"{\"result\":{\"header\":{\"revision\":\"9\"},\"events\":[{\"type\":\"DELETE\",\"kv\":{\"key\":\"YQ==\"}},{"
         "\"kv\":{\"key\":\"YQ==\",\"value\":\"",
         "\"}}]}}"},
        {"{\"error\":{\"grpc_code\":14,\"message\":\"", "\"}}"},
    };
    const char *const *f = frame[kvs_rng_below(rng, 4)];
    struct kvs_buf b;
    kvs_buf_init(&b, 1u << 20);
    if (kvs_buf_puts(&b, f[0]) != KVS_OK)
        abort();
    add_card(&b);
    if (kvs_buf_puts(&b, f[1]) != KVS_OK)
        abort();
    size_t size = kvs_rng_below(rng, 4) == 0 ? (size_t)kvs_rng_below(rng, b.len + 1) : b.len;
    uint8_t *copy = malloc(size + 1);
    if (copy == NULL)
        abort();
    memcpy(copy, b.data, size);
    for (uint64_t k = kvs_rng_below(rng, 6); size > 0 && k > 0; k--)
        copy[kvs_rng_below(rng, size)] = (uint8_t)kvs_rng_next(rng);
    tst_fuzz_exact(copy, size);
    free(copy);
    kvs_buf_fini(&b);
}

int main(int argc, char **argv)
{
    return tst_fuzz_main(argc, argv, damage);
}
#endif
