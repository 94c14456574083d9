/* frame_test.c - heads written by hand, every cut, every broken field.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "proto/frame.h"
#include <stdlib.h>
#include <string.h>

static const uint8_t item[] = {3, 0, 0, 0, MSG_ITEM, 0, 0, 0, 0x07, 0, 0, 0x80, 'a', 'b', 'c'};

static kvs_status parse(const uint8_t *bytes, size_t n)
{
    struct msg_frame f;
    size_t used;
    uint8_t *copy = malloc(n == 0 ? 1 : n);
    memcpy(copy, bytes, n);
    kvs_status s = msg_frame_parse(copy, n, &f, &used);
    free(copy);
    return s;
}

static void test_golden_frame(void **state)
{
    (void)state;
    struct kvs_buf out;
    kvs_buf_init(&out, 4096);
    assert_int_equal(msg_frame_append(&out, MSG_ITEM, 0x80000007u, "abc", 3), KVS_OK);
    assert_int_equal(msg_frame_append(&out, MSG_ACK, 5, NULL, 0), KVS_OK);
    assert_int_equal(out.len, sizeof item + 12);
    assert_memory_equal(out.data, item, sizeof item);
    struct msg_frame f;
    size_t used;
    assert_int_equal(msg_frame_parse(out.data, out.len, &f, &used), KVS_OK);
    assert_int_equal(used, sizeof item);
    assert_int_equal(f.type, MSG_ITEM);
    assert_int_equal(f.stream, 0x80000007u);
    assert_int_equal(f.length, 3);
    assert_memory_equal(f.payload, "abc", 3);
    kvs_buf_fini(&out);
}

static void test_a_cut_frame_wants_more(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof item; n++) {
        assert_int_equal(parse(item, n), KVS_BUSY_AGAIN);
    }
    assert_int_equal(parse(item, sizeof item), KVS_OK);
}

static kvs_status parse_changed(size_t at, uint8_t value)
{
    uint8_t bytes[sizeof item];
    memcpy(bytes, item, sizeof item);
    bytes[at] = value;
    return parse(bytes, sizeof bytes);
}

static void test_broken_heads_are_refused(void **state)
{
    (void)state;
    assert_int_equal(parse_changed(4, 0), KVS_PEER_PROTOCOL); /* type */
    assert_int_equal(parse_changed(4, 14), KVS_PEER_PROTOCOL);
    assert_int_equal(parse_changed(4, MSG_PING), KVS_PEER_PROTOCOL);   /* on a stream, and 3 bytes */
    assert_int_equal(parse_changed(4, MSG_CREDIT), KVS_PEER_PROTOCOL); /* 3 bytes, not 4 */
    assert_int_equal(parse_changed(4, MSG_CANCEL), KVS_PEER_PROTOCOL); /* has no payload */
    assert_int_equal(parse_changed(5, 1), KVS_PEER_PROTOCOL);          /* flags */
    assert_int_equal(parse_changed(6, 1), KVS_PEER_PROTOCOL);
    assert_int_equal(parse_changed(7, 1), KVS_PEER_PROTOCOL);
    assert_int_equal(parse_changed(3, 1), KVS_PEER_PROTOCOL);    /* 16 MiB */
    assert_int_equal(parse_changed(2, 0x10), KVS_PEER_PROTOCOL); /* 1 MiB + 3 */
    uint8_t zero_stream[sizeof item];
    memcpy(zero_stream, item, sizeof item);
    memset(zero_stream + 8, 0, 4);
    assert_int_equal(parse(zero_stream, sizeof zero_stream), KVS_PEER_PROTOCOL);
    uint8_t full[12] = {0, 0, 0x10, 0, MSG_ITEM, 0, 0, 0, 1, 0, 0, 0};
    assert_int_equal(parse(full, sizeof full), KVS_BUSY_AGAIN); /* exactly 1 MiB may come */
    full[0] = 1;
    assert_int_equal(parse(full, sizeof full), KVS_PEER_PROTOCOL);
}

static void test_a_full_buffer_takes_no_half_frame(void **state)
{
    (void)state;
    struct kvs_buf out;
    kvs_buf_init(&out, 20);
    assert_int_equal(msg_frame_append(&out, MSG_ITEM, 1, "123456789", 9), KVS_BUSY_FULL);
    assert_int_equal(out.len, 0);
    assert_int_equal(msg_frame_append(&out, MSG_ITEM, 1, "12345678", 8), KVS_OK);
    kvs_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_frame),
        cmocka_unit_test(test_a_cut_frame_wants_more),
        cmocka_unit_test(test_broken_heads_are_refused),
        cmocka_unit_test(test_a_full_buffer_takes_no_half_frame),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
