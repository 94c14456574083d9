/* wire_hostile_test.c - bytes that nobody honest sends: cut at every place, mutated at random, over each limit.
 * Inputs lie in exact-size heap copies, so that the address sanitizer sees a read past their end.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "wire_samples.h"
#include <stdio.h>
#include <stdlib.h>

static kvs_status decode_exact(const struct sample *s, const uint8_t *bytes, size_t n, size_t arena_max,
                               struct kvs_error *err)
{
    struct kvs_arena arena;
    kvs_arena_init(&arena, arena_max);
    uint8_t *copy = malloc(n == 0 ? 1 : n);
    if (n > 0) {
        memcpy(copy, bytes, n);
    }
    kvs_status status = s->decode(copy, n, &arena, err);
    assert_true(arena.used <= arena_max);
    free(copy);
    kvs_arena_fini(&arena);
    return status;
}

static void test_every_truncation_gets_an_answer(void **state)
{
    (void)state;
    for (size_t i = 0; i < sample_count; i++) {
        for (size_t n = 0; n <= samples[i].golden_bytes; n++) {
            struct kvs_error err = {0};
            kvs_status s = decode_exact(&samples[i], samples[i].golden, n, MSG_ARENA_BYTES, &err);
            if (s != KVS_OK && s != KVS_PEER_PROTOCOL) {
                fail_msg("%s cut at %zu: %s", samples[i].name, n, kvs_status_name(s));
            }
            if (s != KVS_OK) {
                assert_int_not_equal(strlen(err.text), 0);
            }
        }
        struct kvs_error err;
        assert_int_equal(decode_exact(&samples[i], samples[i].golden, samples[i].golden_bytes, MSG_ARENA_BYTES, &err),
                         KVS_OK);
    }
}

static void test_random_mutations_get_an_answer(void **state)
{
    (void)state;
    struct kvs_rng rng = {.state = 20260101};
    size_t refused = 0, taken = 0;
    for (size_t round = 0; round < 20000; round++) {
        const struct sample *s = &samples[kvs_rng_below(&rng, sample_count)];
        uint8_t bytes[2048];
        size_t n = s->golden_bytes;
        assert_true(n <= sizeof bytes);
        memcpy(bytes, s->golden, n);
        for (uint64_t k = 1 + kvs_rng_below(&rng, 4); k > 0; k--) {
            bytes[kvs_rng_below(&rng, n)] = (uint8_t)kvs_rng_next(&rng);
        }
        struct kvs_error err;
        kvs_status status = decode_exact(s, bytes, n, MSG_ARENA_BYTES, &err);
        if (status != KVS_OK && status != KVS_PEER_PROTOCOL) {
            fail_msg("seed 20260101 round %zu, %s: %s", round, s->name, kvs_status_name(status));
        }
        status == KVS_OK ? taken++ : refused++;
    }
    assert_true(refused > 1000 && taken > 1000); /* else the mutations test nothing */
}

/* Whatever the scan lets through must also pass protobuf-c in the memory we promise. */
static void test_random_garbage_of_every_size(void **state)
{
    (void)state;
    struct kvs_rng rng = {.state = 7};
    for (size_t round = 0; round < 5000; round++) {
        uint8_t bytes[256];
        size_t n = kvs_rng_below(&rng, sizeof bytes);
        for (size_t i = 0; i < n; i++) {
            bytes[i] = (uint8_t)kvs_rng_next(&rng);
        }
        struct kvs_error err;
        kvs_status status = decode_exact(&samples[round % sample_count], bytes, n, MSG_ARENA_BYTES, &err);
        assert_true(status == KVS_OK || status == KVS_PEER_PROTOCOL);
    }
}

static void test_every_unbounded_field_has_a_limit(void **state)
{
    (void)state;
    size_t fields = 0;
    for (size_t i = 0; i < msg_limits_count; i++) {
        const ProtobufCMessageDescriptor *d = msg_limits_table[i].message;
        assert_true(d->n_fields <= 32);
        for (unsigned f = 0; f < d->n_fields; f++) {
            const ProtobufCFieldDescriptor *field = &d->fields[f];
            bool unbounded = field->label == PROTOBUF_C_LABEL_REPEATED || field->type == PROTOBUF_C_TYPE_STRING ||
                             field->type == PROTOBUF_C_TYPE_BYTES;
            uint32_t max;
            if (unbounded && !msg_limit_of(d, field->name, &max)) {
                fail_msg("%s.%s has no limit", d->short_name, field->name);
            }
            fields += unbounded;
        }
        for (size_t r = 0; r < msg_limits_table[i].row_count; r++) { /* and no row is misspelt */
            assert_non_null(protobuf_c_message_descriptor_get_field_by_name(d, msg_limits_table[i].rows[r].field));
        }
    }
    assert_true(fields > 40);
}

static const struct sample *find(const char *name)
{
    for (size_t i = 0; i < sample_count; i++) {
        if (strcmp(samples[i].name, name) == 0) {
            return &samples[i];
        }
    }
    fail_msg("no sample %s", name);
    return NULL;
}

/* count empty entries of two bytes: a megabyte of them would be half a million structs. */
static kvs_status decode_many(const char *name, uint8_t tag, size_t count)
{
    uint8_t *bytes = malloc(count * 2);
    for (size_t i = 0; i < count; i++) {
        bytes[2 * i] = tag;
        bytes[2 * i + 1] = 0;
    }
    struct kvs_error err;
    kvs_status s = decode_exact(find(name), bytes, count * 2, MSG_ARENA_BYTES, &err);
    free(bytes);
    return s;
}

static void test_floods_of_small_things(void **state)
{
    (void)state;
    assert_int_equal(decode_many("tokens", 0x0a, MSG_ENTRIES_MAX), KVS_OK);
    assert_int_equal(decode_many("tokens", 0x0a, MSG_ENTRIES_MAX + 1), KVS_PEER_PROTOCOL);
    assert_int_equal(decode_many("tokens", 0x0a, 500000), KVS_PEER_PROTOCOL);
    assert_int_equal(decode_many("load", 5 << 3 | 2, MSG_GROUPS_MAX), KVS_OK);
    assert_int_equal(decode_many("load", 5 << 3 | 2, MSG_GROUPS_MAX + 1), KVS_PEER_PROTOCOL);
    assert_int_equal(decode_many("load", 6 << 3 | 2, MSG_PEERS_MAX + 1), KVS_PEER_PROTOCOL);
    assert_int_equal(decode_many("generate", 4 << 3 | 2, 500000), KVS_PEER_PROTOCOL); /* packed field in empty pieces */
    assert_int_equal(decode_many("pause", 15 << 3 | 2, 200), KVS_OK);                 /* unknown: a later version */
    assert_int_equal(decode_many("pause", 15 << 3 | 2, 500000), KVS_PEER_PROTOCOL);
    assert_int_equal(decode_many("end", 2 << 3 | 2, 2), KVS_PEER_PROTOCOL); /* a singular field twice */
}

static void expect_refused(const char *name, const void *bytes, size_t n, const char *field)
{
    struct kvs_error err = {0};
    assert_int_equal(decode_exact(find(name), bytes, n, MSG_ARENA_BYTES, &err), KVS_PEER_PROTOCOL);
    if (strstr(err.text, field) == NULL) {
        fail_msg("\"%s\" does not name %s", err.text, field);
    }
}
#define REFUSED(name, text, field) expect_refused(name, text, sizeof(text) - 1, field)

static void test_refusals_name_the_field(void **state)
{
    (void)state;
    uint8_t text[2 + 64] = {0x52, 64}; /* TokenEntry's text is field 10; GenerateRequest's adapter is 12 */
    text[0] = 12 << 3 | 2;
    memset(text + 2, 'a', 64);
    expect_refused("generate", text, sizeof text, "adapter"); /* 64 bytes where 63 are allowed */
    REFUSED("health", "\x1a\x02\xc3\x28", "text");            /* not UTF-8 */
    REFUSED("health", "\x1a\x01\x00", "text");                /* NUL */
    REFUSED("health",
            "\x1a\x05"
            "ab",
            "HealthCheckResponse");                                                       /* length past the end */
    REFUSED("health", "\x08\x02", "ready");                                               /* a bool of 2 */
    REFUSED("generate", "\x88\x01\x07", "placement");                                     /* enum out of range */
    REFUSED("generate", "\x22\x05\xff\xff\xff\xff\x1f", "token_ids");                     /* over 32 bits */
    REFUSED("generate", "\x22\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "token_ids"); /* -1 */
    REFUSED("generate", "\x28\x01", "prompt_token_count");                                /* 1 of 0 tokens */
    REFUSED("generate", "\x20\x01", "token_ids");                                         /* not packed */
    REFUSED("generate", "\x09\x01\x02", "GenerateRequest");                               /* half a fixed64 */
    REFUSED("generate", "\x0b\x0c", "GenerateRequest");                                   /* a group */
    REFUSED("hello",
            "\x08\x01\x10\x01\x1a\x01"
            "a\x28\x01\x32\x01x",
            "fingerprint");
    REFUSED("hello", "\x08\x01\x10\x01\x28\x01", "id");
    REFUSED("hello",
            "\x08\x02\x10\x01\x1a\x01"
            "a\x28\x01",
            "protocol");
    REFUSED("hello",
            "\x08\x01\x10\x01\x1a\x01"
            "a",
            "role");
    REFUSED("hello",
            "\x08\x01\x10\x01\x1a\x03"
            "a\"b\x28\x01",
            "Hello.id"); /* would need quoting wherever it stands */
    REFUSED("members", "\x0a\x09\x08\x01\x12\x05\x0a\x01 \x10\x02", "MemberCard.id");
    REFUSED("generate", "\x42\x05\x0d\x00\x00\xc0\x7f", "temperature"); /* not a number */
    REFUSED("generate", "\x42\x05\x0d\x00\x00\x80\x7f", "temperature"); /* infinite */
    REFUSED("generate", "\x42\x05\x15\x00\x00\xc0\x3f", "top_p");       /* 1.5 */
    REFUSED("generate", "\x42\x05\x1d\x00\x00\x80\xbf", "min_p");       /* -1 */
    REFUSED("call", "\x10\x01", "method");
    REFUSED("end", "\x08\x63", "status");
    REFUSED("nack", "\x0a\x01\x01", "Nack");
    REFUSED("cache_events", "\x2a\x01\x01", "hashes"); /* a depth without a hash */
    REFUSED("cache_events",
            "\x22\x03"
            "abc\x2a\x01\x01",
            "hashes"); /* of three bytes */
    REFUSED("cache_digest",
            "\x12\x10"
            "0123456789abcdef",
            "hashes"); /* a hash without a length */
    REFUSED("cache_digest",
            "\x12\x10"
            "0123456789abcdef\x1a\x01\x00",
            "blocks"); /* a prefix of nothing */
    REFUSED("prefill", "\x32\x01\x01", "wants");
    REFUSED("members", "\x0a\x02\x08\x01", "card");
    REFUSED("members", "\x0a\x00", "change");
    REFUSED("model_info_piece", "\x08\x05\x10\x04", "GetModelInfoResponse");
    REFUSED("pause", "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02\x00", "SequenceRef"); /* a tag over 64 bits */
    REFUSED("pause", "\x00\x00", "SequenceRef");                                     /* field 0 */
    REFUSED("pause", "\x08\x01", "request_id");                                      /* wire type */
}

static void test_a_small_arena_is_an_answer(void **state)
{
    (void)state;
    for (size_t i = 0; i < sample_count; i++) {
        for (size_t max = 0; max < 4096; max += 64) {
            struct kvs_error err;
            kvs_status s = decode_exact(&samples[i], samples[i].golden, samples[i].golden_bytes, max, &err);
            assert_true(s == KVS_OK || s == KVS_SELF_NOMEM);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_truncation_gets_an_answer),
        cmocka_unit_test(test_random_mutations_get_an_answer),
        cmocka_unit_test(test_random_garbage_of_every_size),
        cmocka_unit_test(test_every_unbounded_field_has_a_limit),
        cmocka_unit_test(test_floods_of_small_things),
        cmocka_unit_test(test_refusals_name_the_field),
        cmocka_unit_test(test_a_small_arena_is_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
