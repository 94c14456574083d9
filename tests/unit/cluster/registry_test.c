/* registry_test.c - leases and changes by hand, a random life against a naive record, and which cards fit together.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cluster/core/registry.h"
#include <stdio.h>
#include <string.h>

static struct msg_card card(const char *id, uint64_t epoch)
{
    struct msg_card c = {.role = MSG_ROLE_DECODE, .epoch = epoch, .protocol_min = 1, .protocol_max = 1};
    (void)kvs_format(c.id, sizeof c.id, "%s", id);
    return c;
}

static void put(struct cls_registry *r, const char *id, uint64_t epoch, uint64_t now)
{
    struct msg_card c = card(id, epoch);
    struct kvs_error err;
    assert_int_equal(cls_registry_put(r, &c, now, &err), KVS_OK);
}

static void next_is(struct cls_registry *r, msg_member_change change, const char *id, uint64_t epoch)
{
    struct msg_member m;
    assert_true(cls_registry_next_change(r, &m));
    assert_int_equal(m.change, change);
    assert_string_equal(m.card.id, id);
    assert_int_equal(m.card.epoch, epoch);
}

static void nothing_more(struct cls_registry *r)
{
    struct msg_member m;
    assert_false(cls_registry_next_change(r, &m));
}

static void test_join_renew_expire(void **state)
{
    (void)state;
    struct cls_registry *r;
    assert_int_equal(cls_registry_create(4, 1000, &r), KVS_OK);
    assert_int_equal(cls_registry_deadline_us(r), UINT64_MAX);
    put(r, "a", 1, 0);
    put(r, "b", 2, 100);
    next_is(r, MSG_MEMBER_PUT, "a", 1);
    next_is(r, MSG_MEMBER_PUT, "b", 2);
    nothing_more(r);
    assert_int_equal(cls_registry_deadline_us(r), 1000);
    assert_true(cls_registry_renew(r, "a", 1, 999));
    assert_false(cls_registry_renew(r, "a", 7, 999)); /* somebody else's epoch */
    assert_false(cls_registry_renew(r, "c", 1, 999));
    cls_registry_tick(r, 1099);
    nothing_more(r);
    cls_registry_tick(r, 1100); /* to the microsecond */
    next_is(r, MSG_MEMBER_GONE, "b", 2);
    nothing_more(r);
    assert_int_equal(cls_registry_count(r), 1);
    assert_string_equal(cls_registry_at(r, 0)->id, "a");
    assert_null(cls_registry_at(r, 1));
    assert_false(cls_registry_renew(r, "a", 1, 1999)); /* its lease has ended though no tick has come */
    cls_registry_tick(r, 1999);
    next_is(r, MSG_MEMBER_GONE, "a", 1);
    assert_int_equal(cls_registry_count(r), 0);
    cls_registry_destroy(r);
}

static void test_same_epoch_keeps_identity_another_replaces(void **state)
{
    (void)state;
    struct cls_registry *r;
    struct kvs_error err;
    assert_int_equal(cls_registry_create(4, 1000, &r), KVS_OK);
    put(r, "a", 1, 0);
    next_is(r, MSG_MEMBER_PUT, "a", 1);
    put(r, "a", 1, 10);
    nothing_more(r); /* nothing has changed */
    struct msg_card c = card("a", 1);
    c.draining = true;
    assert_int_equal(cls_registry_put(r, &c, 20, &err), KVS_OK);
    next_is(r, MSG_MEMBER_PUT, "a", 1);
    nothing_more(r);
    put(r, "a", 9, 30);
    next_is(r, MSG_MEMBER_GONE, "a", 1);
    next_is(r, MSG_MEMBER_PUT, "a", 9);
    nothing_more(r);
    cls_registry_leave(r, "a", 1, 40); /* the old process says goodbye late */
    nothing_more(r);
    cls_registry_leave(r, "a", 9, 50);
    next_is(r, MSG_MEMBER_GONE, "a", 9);
    cls_registry_destroy(r);
}

static void test_what_was_not_seen_is_not_told(void **state)
{
    (void)state;
    struct cls_registry *r;
    assert_int_equal(cls_registry_create(4, 1000, &r), KVS_OK);
    put(r, "a", 1, 0);
    cls_registry_leave(r, "a", 1, 1);
    nothing_more(r);
    put(r, "a", 1, 0);
    next_is(r, MSG_MEMBER_PUT, "a", 1);
    cls_registry_leave(r, "a", 1, 1);
    put(r, "a", 2, 2);
    cls_registry_leave(r, "a", 2, 3);
    put(r, "a", 3, 4);
    next_is(r, MSG_MEMBER_GONE, "a", 1);
    next_is(r, MSG_MEMBER_PUT, "a", 3);
    nothing_more(r);
    cls_registry_destroy(r);
}

static void test_bounds(void **state)
{
    (void)state;
    struct cls_registry *r;
    struct kvs_error err;
    struct msg_card c = card("c", 1);
    assert_int_equal(cls_registry_create(2, 1000, &r), KVS_OK);
    put(r, "a", 1, 0);
    put(r, "b", 1, 0);
    assert_int_equal(cls_registry_put(r, &c, 0, &err), KVS_BUSY_FULL);
    put(r, "a", 2, 0); /* those inside may still change */
    cls_registry_leave(r, "b", 1, 0);
    assert_int_equal(cls_registry_put(r, &c, 0, &err), KVS_OK);
    cls_registry_destroy(r);
    assert_int_equal(cls_registry_create(2, CLS_FOREVER, &r), KVS_OK);
    put(r, "a", 1, 5);
    cls_registry_tick(r, UINT64_MAX - 1);
    assert_int_equal(cls_registry_count(r), 1);
    cls_registry_destroy(r);
}

static void test_a_view_told_anew(void **state)
{
    (void)state;
    struct cls_registry *r;
    assert_int_equal(cls_registry_create(8, CLS_FOREVER, &r), KVS_OK);
    put(r, "a", 1, 0);
    put(r, "b", 1, 0);
    put(r, "c", 1, 0);
    for (int i = 0; i < 3; i++) {
        struct msg_member m;
        assert_true(cls_registry_next_change(r, &m));
    }
    cls_registry_mark_all(r);
    put(r, "a", 1, 100);
    cls_registry_lease_marked(r, 500);
    nothing_more(r);
    assert_int_equal(cls_registry_deadline_us(r), 500);
    put(r, "b", 1, 400); /* comes back in time */
    cls_registry_tick(r, 500);
    next_is(r, MSG_MEMBER_GONE, "c", 1);
    nothing_more(r);
    assert_int_equal(cls_registry_count(r), 2);
    cls_registry_destroy(r);
}

/* Whom it was told missing, and then there was nobody to ask until 700: they have until 900, and no longer. */
static void test_a_view_that_is_held(void **state)
{
    (void)state;
    struct cls_registry *r;
    struct msg_member m;
    assert_int_equal(cls_registry_create(8, CLS_FOREVER, &r), KVS_OK);
    put(r, "a", 1, 0);
    put(r, "b", 1, 0);
    assert_true(cls_registry_next_change(r, &m) && cls_registry_next_change(r, &m));
    cls_registry_mark_all(r);
    put(r, "a", 1, 100);
    cls_registry_lease_marked(r, 500);
    cls_registry_hold(r, 900);
    cls_registry_hold(r, 800); /* takes nothing back */
    cls_registry_mark_all(r);  /* told missing again */
    put(r, "a", 1, 700);
    cls_registry_lease_marked(r, 900);
    assert_int_equal(cls_registry_deadline_us(r), 900);
    cls_registry_tick(r, 899);
    nothing_more(r);
    cls_registry_tick(r, 900);
    next_is(r, MSG_MEMBER_GONE, "b", 1);
    assert_int_equal(cls_registry_deadline_us(r), UINT64_MAX); /* who is there is there for good */
    cls_registry_destroy(r);
}

/* A follower who only hears the changes must at every look know exactly the registry's members and epochs. */
static void test_random_lives(void **state)
{
    (void)state;
    struct kvs_rng rng = {.state = 4711};
    struct cls_registry *r;
    uint64_t now = 0, follower[6] = {0}, truth[6] = {0}, lease[6] = {0};
    assert_int_equal(cls_registry_create(6, 50, &r), KVS_OK);
    for (int step = 0; step < 100000; step++) {
        uint32_t i = (uint32_t)kvs_rng_below(&rng, 6);
        char id[8];
        (void)kvs_format(id, sizeof id, "m%u", i);
        now += kvs_rng_below(&rng, 10);
        cls_registry_tick(r, now);
        for (int k = 0; k < 6; k++) {
            truth[k] = truth[k] != 0 && now >= lease[k] ? 0 : truth[k];
        }
        switch (kvs_rng_below(&rng, 4)) {
        case 0:
            truth[i] = 1 + kvs_rng_below(&rng, 3);
            lease[i] = now + 50;
            put(r, id, truth[i], now);
            break;
        case 1:
            if (cls_registry_renew(r, id, 2, now)) {
                assert_int_equal(truth[i], 2);
                lease[i] = now + 50;
            } else {
                assert_int_not_equal(truth[i], 2);
            }
            break;
        case 2:
            cls_registry_leave(r, id, 1, now);
            truth[i] = truth[i] == 1 ? 0 : truth[i];
            break;
        default: {
            struct msg_member m;
            while (cls_registry_next_change(r, &m)) {
                uint64_t *f = &follower[m.card.id[1] - '0'];
                if (m.change == MSG_MEMBER_GONE) {
                    assert_int_equal(*f, m.card.epoch); /* GONE names what was told */
                    *f = 0;
                } else {
                    assert_true(*f == 0 || *f == m.card.epoch);
                    *f = m.card.epoch;
                }
            }
            assert_memory_equal(follower, truth, sizeof truth);
        }
        }
    }
    cls_registry_destroy(r);
}

/* ---- cards ---- */

static struct msg_card full_card(const char *id)
{
    struct msg_card c = card(id, 5);
    (void)kvs_format(c.model, sizeof c.model, "smollm2");
    memset(c.fingerprint, 7, sizeof c.fingerprint);
    (void)kvs_format(c.numerics, sizeof c.numerics, "f32-seq-v1");
    (void)kvs_format(c.layout, sizeof c.layout, "g0:full:0-9");
    (void)kvs_format(c.kv_types, sizeof c.kv_types, "k=f16,v=f16");
    (void)kvs_format(c.rope, sizeof c.rope, "base=10000");
    c.block_tokens = 64;
    c.vocab = 49152;
    c.context = 2048;
    c.group_count = 2;
    c.group[0] = (struct msg_group_info){1 << 20, 100};
    c.group[1] = (struct msg_group_info){1 << 19, 100};
    return c;
}

static void differ(struct msg_card *b, const char *field)
{
    struct msg_card a = full_card("prefill-0");
    struct kvs_error err = {0};
    assert_int_equal(cls_cards_compatible(&a, b, &err), KVS_PEER_MISMATCH);
    assert_non_null(strstr(err.text, "prefill-0"));
    assert_non_null(strstr(err.text, "decode-0"));
    if (strstr(err.text, field) == NULL) {
        fail_msg("\"%s\" does not name %s", err.text, field);
    }
    assert_int_equal(cls_cards_compatible(b, &a, &err), KVS_PEER_MISMATCH);
    *b = full_card("decode-0");
}

static void test_cards_that_differ_are_told_apart(void **state)
{
    (void)state;
    struct msg_card a = full_card("prefill-0"), b = full_card("decode-0");
    struct kvs_error err;
    b.role = MSG_ROLE_PREFILL; /* what may differ */
    b.epoch = 6;
    b.context = 4096;
    b.group[0].pages = 5;
    b.pid = 9;
    b.draining = true;
    b.protocol_max = 3;
    assert_int_equal(cls_cards_compatible(&a, &b, &err), KVS_OK);
    b = full_card("decode-0");
    b.fingerprint[31] = 8;
    differ(&b, "fingerprint");
    b.numerics[0] = 'x';
    differ(&b, "numerics");
    b.layout[1] = '9';
    differ(&b, "layout");
    (void)kvs_format(b.kv_types, sizeof b.kv_types, "k=f32,v=f32");
    differ(&b, "KV types: k=f16,v=f16 and k=f32,v=f32");
    b.rope[5] = '2';
    differ(&b, "rope");
    b.block_tokens = 16;
    differ(&b, "block tokens: 64 and 16");
    b.vocab = 1;
    differ(&b, "vocabulary");
    b.group_count = 1;
    differ(&b, "number of groups: 2 and 1");
    b.group[1].page_bytes = 77;
    differ(&b, "page bytes");
    b.protocol_min = b.protocol_max = 2;
    differ(&b, "protocol");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join_renew_expire),
        cmocka_unit_test(test_same_epoch_keeps_identity_another_replaces),
        cmocka_unit_test(test_what_was_not_seen_is_not_told),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_a_view_told_anew),
        cmocka_unit_test(test_a_view_that_is_held),
        cmocka_unit_test(test_random_lives),
        cmocka_unit_test(test_cards_that_differ_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
