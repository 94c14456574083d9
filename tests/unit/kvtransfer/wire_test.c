/* wire_test.c - the header's bytes written by hand, and the checksum: the golden numbers come from the Python package xxhash
 *   pieces = b''.join(xxhash.xxh3_64(d[i:i+4096]).intdigest().to_bytes(8, 'little') for i in range(0, len(d), 4096))
 *   xxhash.xxh3_64(pieces).intdigest()       with d = bytes((i * 131 + (i >> 8) * 7 + 5) & 255 for i in range(n))
 * and for any other length from libxxhash in one shot over the whole array of pieces.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kvtransfer/core/wire.h"

static void test_header_bytes(void **state)
{
    (void)state;
    const struct kvt_header h = {.version = 0x0201,
                                 .kind = 0x0403,
                                 .flags = 0x08070605,
                                 .sink_epoch = 0x100f0e0d0c0b0a09,
                                 .xfer = 0x1817161514131211,
                                 .nonce = 0x201f1e1d1c1b1a19,
                                 .block = 0x24232221,
                                 .group = 0x2625,
                                 .shard = 0x2827,
                                 .bytes = 0x302f2e2d2c2b2a29,
                                 .checksum = 0x3837363534333231};
    uint8_t wire[KVT_HEADER_BYTES], want[KVT_HEADER_BYTES];
    for (int i = 0; i < KVT_HEADER_BYTES; i++)
        want[i] = (uint8_t)(i + 1); /* every byte in its place */
    kvt_header_encode(&h, wire);
    assert_memory_equal(wire, want, sizeof want);
    struct kvt_header back;
    uint8_t odd[KVT_HEADER_BYTES + 1]; /* at an odd address */
    memcpy(odd + 1, wire, sizeof wire);
    assert_true(kvt_header_decode(odd + 1, KVT_HEADER_BYTES, &back));
    kvt_header_encode(&back, wire);
    assert_memory_equal(wire, want, sizeof want);
    assert_int_equal(back.shard, 0x2827);
    assert_int_equal(back.checksum, 0x3837363534333231);
}

static void test_only_56_bytes_are_a_header(void **state)
{
    (void)state;
    struct kvt_header h;
    for (size_t n = 0; n < 200; n++) {
        uint8_t *exact = calloc(1, n ? n : 1); /* exact size: a sanitizer sees one byte too far */
        assert_non_null(exact);
        assert_int_equal(kvt_header_decode(exact, n, &h), n == 56);
        free(exact);
    }
    assert_false(kvt_header_decode(NULL, 0, &h));
    assert_false(kvt_header_decode(NULL, 56, &h));
}

static uint8_t *data(size_t n)
{
    uint8_t *d = malloc(n ? n : 1);
    assert_non_null(d);
    for (size_t i = 0; i < n; i++)
        d[i] = (uint8_t)(i * 131 + (i >> 8) * 7 + 5);
    return d;
}

static void test_checksum_golden(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        uint64_t sum;
    } golden[] = {
        {0, 0x2d06800538d394c2u},       {1, 0x59fb2d184024d850u},       {100, 0xeb59c914aa4726fau},
        {4096, 0x2f91bdc283c490ffu},    {4097, 0xc8b7bbd5cf119a91u},    {81920, 0xdc7809bc0adbf661u},
        {491520, 0x2dd410d94d49a6cau},  {1048576, 0x378f4f446494f029u}, {2097153, 0x6faa68707efbfc39u},
        {3000000, 0x3e89ef69d0e73220u},
    };
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        uint8_t *d = data(golden[i].n);
        assert_int_equal(kvt_checksum(d, golden[i].n), golden[i].sum);
        free(d);
    }
    assert_int_equal(kvt_checksum(NULL, 0), golden[0].sum);
}

static void test_checksum_against_one_shot_over_pieces(void **state)
{
    (void)state;
    const size_t length[] = {2,      4095,       4098,           8191,        16384,           65536,
                             491520, 512 * 4096, 512 * 4096 + 9, 1024 * 4096, 1025 * 4096 + 1, 8388608};
    for (size_t k = 0; k < sizeof length / sizeof *length; k++) {
        size_t n = length[k], pieces = (n + 4095) / 4096;
        uint8_t *d = data(n);
        XXH64_hash_t *h = malloc(pieces * sizeof *h);
        assert_non_null(h);
        for (size_t i = 0; i < pieces; i++)
            h[i] = XXH3_64bits(d + i * 4096, i + 1 < pieces ? 4096 : n - i * 4096);
        assert_int_equal(kvt_checksum(d, n), XXH3_64bits(h, pieces * sizeof *h));
        d[n - 1] ^= 1;
        assert_int_not_equal(kvt_checksum(d, n), XXH3_64bits(h, pieces * sizeof *h));
        free(h);
        free(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header_bytes),
        cmocka_unit_test(test_only_56_bytes_are_a_header),
        cmocka_unit_test(test_checksum_golden),
        cmocka_unit_test(test_checksum_against_one_shot_over_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
