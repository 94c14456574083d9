/* wire_test.c - every message against bytes that Python's protobuf library wrote, both ways, and the sizes at the edge.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "proto/frame.h"
#include "wire_samples.h"
#include <stdio.h>
#include <stdlib.h>

/* What we write means what Python wrote: protobuf-c reads ours and writes it again in field order. */
static void test_encoding_equals_another_implementation(void **state)
{
    (void)state;
    for (size_t i = 0; i < sample_count; i++) {
        struct kvs_buf out;
        kvs_buf_init(&out, MSG_PAYLOAD_MAX);
        assert_int_equal(samples[i].encode_sample(&out), KVS_OK);
        ProtobufCMessage *m = protobuf_c_message_unpack(samples[i].descriptor, NULL, out.len, out.data);
        assert_non_null(m);
        size_t n = protobuf_c_message_get_packed_size(m);
        uint8_t *again = malloc(n);
        assert_int_equal(protobuf_c_message_pack(m, again), n);
        if (n != samples[i].golden_bytes || memcmp(again, samples[i].golden, n) != 0) {
            fail_msg("%s: %zu bytes differ from the golden %zu", samples[i].name, n, samples[i].golden_bytes);
        }
        free(again);
        protobuf_c_message_free_unpacked(m, NULL);
        kvs_buf_fini(&out);
    }
}

static void test_decoding_another_implementation_loses_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sample_count; i++) {
        struct kvs_buf ours, again;
        struct kvs_arena arena;
        struct kvs_error err = {0};
        kvs_buf_init(&ours, MSG_PAYLOAD_MAX);
        kvs_buf_init(&again, MSG_PAYLOAD_MAX);
        kvs_arena_init(&arena, MSG_ARENA_BYTES);
        assert_int_equal(samples[i].encode_sample(&ours), KVS_OK);
        if (samples[i].decode_encode(samples[i].golden, samples[i].golden_bytes, &arena, &again, &err) != KVS_OK) {
            fail_msg("%s: %s", samples[i].name, err.text);
        }
        assert_int_equal(again.len, ours.len);
        assert_memory_equal(again.data, ours.data, ours.len);
        kvs_arena_fini(&arena);
        kvs_buf_fini(&again);
        kvs_buf_fini(&ours);
    }
}

/* Zeros are absent on the wire and come back as zeros and "". */
static void test_defaults_come_back(void **state)
{
    (void)state;
    struct kvs_arena arena;
    struct kvs_error err;
    kvs_arena_init(&arena, MSG_ARENA_BYTES);
    struct msg_generate g;
    assert_int_equal(msg_generate_decode(NULL, 0, &arena, &g, &err), KVS_OK);
    assert_string_equal(g.prompt, "");
    assert_string_equal(g.tenant, "");
    assert_int_equal(g.token_count, 0);
    struct msg_load l;
    assert_int_equal(msg_load_decode(NULL, 0, &arena, &l, &err), KVS_OK);
    assert_string_equal(l.metrics, "");
    struct msg_prefill p;
    assert_int_equal(msg_prefill_decode(NULL, 0, &arena, &p, &err), KVS_OK);
    assert_non_null(p.wants);
    struct msg_tokens t;
    assert_int_equal(msg_tokens_decode(NULL, 0, &arena, &t, &err), KVS_OK);
    assert_int_equal(t.count, 0);
    kvs_arena_fini(&arena);
}

static void test_full_lists_and_what_does_not_fit(void **state)
{
    (void)state;
    struct kvs_buf out;
    struct kvs_arena arena;
    struct kvs_error err;
    kvs_buf_init(&out, 4u << 20);
    kvs_arena_init(&arena, MSG_ARENA_BYTES);
    int32_t *ids = calloc(MSG_TOKENS_MAX + 1, sizeof *ids);
    struct msg_want *wants = calloc(MSG_WANTS_MAX, sizeof *wants);
    for (uint32_t i = 0; i < MSG_TOKENS_MAX; i++) {
        ids[i] = (int32_t)(i % 16000); /* two bytes each at most */
    }
    for (uint32_t i = 0; i < MSG_WANTS_MAX; i++) {
        wants[i] = (struct msg_want){i / 16, i % 16};
    }
    struct msg_prefill p = {.tokens = ids, .token_count = MSG_TOKENS_MAX, .wants = wants, .want_count = MSG_WANTS_MAX},
                       q;
    assert_int_equal(msg_prefill_encode(&p, &out), KVS_OK);
    assert_int_equal(msg_prefill_decode(out.data, out.len, &arena, &q, &err), KVS_OK);
    assert_int_equal(q.token_count, MSG_TOKENS_MAX);
    assert_memory_equal(q.tokens, ids, MSG_TOKENS_MAX * sizeof *ids);
    assert_memory_equal(q.wants, wants, MSG_WANTS_MAX * sizeof *wants);

    size_t before = out.len;
    for (uint32_t i = 0; i < MSG_TOKENS_MAX; i++) {
        ids[i] = INT32_MAX; /* five bytes each: over a frame */
    }
    assert_int_equal(msg_prefill_encode(&p, &out), KVS_REQ_TOO_LARGE);
    p.token_count = MSG_TOKENS_MAX + 1;
    assert_int_equal(msg_prefill_encode(&p, &out), KVS_REQ_TOO_LARGE);
    struct msg_generate g = {.tokens = ids, .token_count = MSG_TOKENS_MAX};
    assert_int_equal(msg_generate_encode(&g, &out), KVS_REQ_TOO_LARGE);
    assert_int_equal(out.len, before); /* failures leave the buffer alone */
    free(ids);
    free(wants);
    kvs_arena_fini(&arena);
    kvs_buf_fini(&out);
}

static void test_cache_messages_of_every_size(void **state)
{
    (void)state;
    static uint8_t hashes[(MSG_CACHE_BLOCKS_MAX + 1) * MSG_BLOCK_HASH_BYTES];
    static uint32_t depths[MSG_CACHE_BLOCKS_MAX + 1];
    struct kvs_buf out;
    struct kvs_arena arena;
    struct kvs_error err;
    kvs_buf_init(&out, MSG_PAYLOAD_MAX);
    kvs_arena_init(&arena, MSG_ARENA_BYTES);
    for (uint32_t i = 0; i <= MSG_CACHE_BLOCKS_MAX; i++) {
        hashes[i * MSG_BLOCK_HASH_BYTES] = (uint8_t)i;
        depths[i] = i + 1;
    }
    struct msg_cache_events e = {.first_sequence = 7,
                                 .hashes = hashes,
                                 .depths = depths,
                                 .count = MSG_CACHE_BLOCKS_MAX},
                            f;
    assert_int_equal(msg_cache_events_encode(&e, &out), KVS_OK);
    assert_in_range(out.len, 0, 128 * 1024); /* half of what a call may have on its way */
    assert_int_equal(msg_cache_events_decode(out.data, out.len, &arena, &f, &err), KVS_OK);
    assert_int_equal(f.count, MSG_CACHE_BLOCKS_MAX);
    assert_memory_equal(f.hashes, hashes, MSG_CACHE_BLOCKS_MAX * MSG_BLOCK_HASH_BYTES);
    assert_memory_equal(f.depths, depths, MSG_CACHE_BLOCKS_MAX * sizeof *depths);
    e.count++;
    assert_int_equal(msg_cache_events_encode(&e, &out), KVS_REQ_TOO_LARGE);
    kvs_buf_clear(&out);
    e.count = 0;
    assert_int_equal(msg_cache_events_encode(&e, &out), KVS_OK);
    assert_int_equal(msg_cache_events_decode(out.data, out.len, &arena, &f, &err), KVS_OK);
    assert_int_equal(f.count, 0);
    assert_int_equal(f.first_sequence, 7);
    struct msg_cache_digest d = {.epoch = 1, .hashes = hashes, .blocks = depths, .count = MSG_DIGEST_BLOCKS_MAX + 1};
    assert_int_equal(msg_cache_digest_encode(&d, &out), KVS_REQ_TOO_LARGE);
    kvs_arena_fini(&arena);
    kvs_buf_fini(&out);
}

static void test_text_that_a_peer_would_refuse_is_not_sent(void **state)
{
    (void)state;
    struct kvs_buf out;
    kvs_buf_init(&out, 4096);
    struct msg_health h = {.text = "\xff\xfe"};
    assert_int_equal(msg_health_encode(&h, &out), KVS_REQ_INVALID);
    struct msg_chunk c = {.text = "a\0b", .text_bytes = 3};
    assert_int_equal(msg_chunk_encode(&c, &out), KVS_REQ_INVALID);
    assert_int_equal(out.len, 0);
    kvs_buf_fini(&out);
}

static void test_a_card_is_small_on_the_wire(void **state)
{
    (void)state;
    struct kvs_buf out;
    kvs_buf_init(&out, 4096);
    for (size_t i = 0; i < sample_count; i++) {
        if (strcmp(samples[i].name, "card") == 0) {
            assert_int_equal(samples[i].encode_sample(&out), KVS_OK);
        }
    }
    assert_in_range(out.len, 100, 1024);
    kvs_buf_fini(&out);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(msg_role_name(MSG_ROLE_ROUTER), "router");
    assert_string_equal(msg_role_name(MSG_ROLE_BOTH), "both");
    assert_string_equal(msg_role_name((msg_role)99), "unknown");
    for (int i = MSG_GENERATE; i <= MSG_METHOD_LAST; i++) {
        assert_string_not_equal(msg_method_name((msg_method)i), "unknown");
    }
    assert_string_equal(msg_method_name((msg_method)(MSG_METHOD_LAST + 1)), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encoding_equals_another_implementation),
        cmocka_unit_test(test_decoding_another_implementation_loses_nothing),
        cmocka_unit_test(test_defaults_come_back),
        cmocka_unit_test(test_full_lists_and_what_does_not_fit),
        cmocka_unit_test(test_cache_messages_of_every_size),
        cmocka_unit_test(test_text_that_a_peer_would_refuse_is_not_sent),
        cmocka_unit_test(test_a_card_is_small_on_the_wire),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
