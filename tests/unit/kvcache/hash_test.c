/* hash_test.c - the hash chain against vectors computed with Python's hashlib:
 *   L = lambda b: struct.pack('<I', len(b)) + b
 *   root  = sha256(b'kvasir-root-1' + L(fingerprint) + L(numerics) + L(tenant) + L(salt) + L(kv) + L(rope) + L(adapter)
 *                  + L(struct.pack('<I', block_tokens))).digest()[:16]
 *   block = sha256(parent + struct.pack('<I', n) + struct.pack('<%di' % n, *ids) + L(extra)).digest()[:16]
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "kvcache/hash.h"

#define TEXT(s) ((struct kvc_bytes){s, sizeof(s) - 1})

static void assert_hash(const struct kvc_hash *h, const char *hex)
{
    char text[33];
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", h->bytes[i]);
    assert_string_equal(text, hex);
}

static struct kvc_root_fields fields(const uint8_t fingerprint[32])
{
    return (struct kvc_root_fields){.fingerprint = {fingerprint, 32},
                                    .numerics = TEXT("kvasir-1,a16,cpu-fma,tp1,k=f16,v=f16"),
                                    .kv_types = TEXT("k=f16,v=f16"),
                                    .rope = TEXT("neox,base=10000,ctx=2048"),
                                    .block_tokens = 64};
}

static void test_root_equals_hashlib(void **state)
{
    (void)state;
    uint8_t fingerprint[32];
    for (int i = 0; i < 32; i++)
        fingerprint[i] = (uint8_t)i;
    struct kvc_root_fields f = fields(fingerprint);
    struct kvc_hash h;
    assert_int_equal(kvc_hash_root(&f, &h), KVS_OK);
    assert_hash(&h, "68f640590ab30b4781805310b3003b40");
    f.tenant = TEXT("acme");
    f.cache_salt = TEXT("pepper");
    f.adapter = TEXT("lora-7");
    f.block_tokens = 16;
    assert_int_equal(kvc_hash_root(&f, &h), KVS_OK);
    assert_hash(&h, "366d96487b07fd8cc6bc16203b567a70");
    f.tenant = TEXT("acmep"); /* the same bytes in other fields are another root */
    f.cache_salt = TEXT("epper");
    assert_int_equal(kvc_hash_root(&f, &h), KVS_OK);
    assert_hash(&h, "8170d1cd5a779c58e8924868f9693223");
}

static void test_chain_equals_hashlib(void **state)
{
    (void)state;
    uint8_t fingerprint[32];
    for (int i = 0; i < 32; i++)
        fingerprint[i] = (uint8_t)i;
    struct kvc_root_fields f = fields(fingerprint);
    struct kvc_hash h, next;
    int32_t ids[64];
    assert_int_equal(kvc_hash_root(&f, &h), KVS_OK);
    for (int i = 0; i < 64; i++)
        ids[i] = i;
    assert_int_equal(kvc_hash_block(&h, ids, 64, NULL, 0, &h), KVS_OK); /* in place */
    assert_hash(&h, "188fcd5bc1c3497922aeb5c756e0fdd9");
    for (int i = 0; i < 64; i++)
        ids[i] = 49151 - i * 7;
    assert_int_equal(kvc_hash_block(&h, ids, 64, NULL, 0, &next), KVS_OK);
    assert_hash(&next, "c0f23d745f9083707de6f358ba729087");
    const int32_t odd[] = {5, -1, 2147483647};
    assert_int_equal(kvc_hash_block(&next, odd, 3, "\0img\xff", 5, &h), KVS_OK);
    assert_hash(&h, "365dec4623b0dc9df26f18cc331b5cd5");
    assert_int_equal(kvc_hash_block(&h, NULL, 0, NULL, 0, &next), KVS_OK);
    assert_hash(&next, "68ef7c6fbe835644ab7cca36b70e9746");
    assert_true(kvc_hash_equal(&h, &h));
    assert_false(kvc_hash_equal(&h, &next));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_root_equals_hashlib),
        cmocka_unit_test(test_chain_equals_hashlib),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
