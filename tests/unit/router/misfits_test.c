/* misfits_test.c - who is remembered as not fitting, against whom, how many and for how long.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "router/edge/misfits.h"

#include <string.h>

static struct msg_card card(const char *id, uint64_t epoch, const char *model, uint32_t block_tokens)
{
    struct msg_card c = {.epoch = epoch, .block_tokens = block_tokens, .protocol_min = 1, .protocol_max = 1};
    kvs_format(c.id, sizeof(c.id), "%s", id);
    kvs_format(c.model, sizeof(c.model), "%s", model);
    return c;
}

static void json_is(const struct rtr_misfits *m, uint64_t now_us, const char *want)
{
    struct kvs_buf b;
    struct kvs_json j;
    kvs_buf_init(&b, 65536);
    kvs_json_begin(&j, &b);
    rtr_misfits_json(m, now_us, &j);
    assert_int_equal(kvs_json_end(&j), KVS_OK);
    assert_string_equal(kvs_buf_text(&b), want);
    kvs_buf_fini(&b);
}

static void test_only_who_differs_from_its_own_model_is_one(void **state)
{
    (void)state;
    struct rtr_misfits m = {0};
    struct msg_card members[4] = {card("a", 1, "m", 64), card("b", 2, "n", 16)};
    struct msg_card good = card("c", 3, "m", 64), other = card("d", 4, "n", 16), again = card("a", 5, "m", 32), bad = card("e", 6, "m", 16);
    rtr_misfits_look(&m, members, 2, &good, 1);
    rtr_misfits_look(&m, members, 2, &other, 1);
    rtr_misfits_look(&m, members, 2, &again, 1); /* its own old life is no measure */
    assert_int_equal(m.count, 0);
    json_is(&m, 1, "[]");
    rtr_misfits_look(&m, members, 2, &bad, 1000000);
    json_is(&m, 3500000, "[{\"id\":\"e\",\"model\":\"m\",\"field\":\"block tokens\",\"value\":\"16\",\"other\":\"a\",\"other_value\":\"64\",\"age_s\":2.5}]");
    members[2] = bad; /* its lease may live a little longer */
    rtr_misfits_look(&m, members + 2, 1, &good, 2000000);
    assert_int_equal(m.count, 1); /* and good is not blamed for it */
    bad.epoch = 7;
    bad.block_tokens = 64; /* it comes back as it should */
    rtr_misfits_look(&m, members, 2, &bad, 3000000);
    json_is(&m, 3000000, "[]");
}

static void test_few_are_kept_and_not_for_long(void **state)
{
    (void)state;
    struct rtr_misfits m = {0};
    const struct msg_card there = card("there", 1, "m", 64);
    for (uint32_t i = 0; i < RTR_MISFITS_MAX + 4; i++) {
        char id[16];
        kvs_format(id, sizeof(id), "w%u", i);
        struct msg_card c = card(id, i + 2, "m", 16);
        rtr_misfits_look(&m, &there, 1, &c, 100 + i);
        rtr_misfits_look(&m, &there, 1, &c, 100 + i); /* its card is put again: no second row */
    }
    assert_int_equal(m.count, RTR_MISFITS_MAX);
    assert_string_equal(m.row[0].id, "w4");
    assert_string_equal(m.row[RTR_MISFITS_MAX - 1].id, "w19");
    uint64_t late = 100 + RTR_MISFITS_KEEP_US;
    json_is(&m, late + RTR_MISFITS_MAX + 3, "[]");
    struct msg_card one = card("one", 99, "m", 16);
    rtr_misfits_look(&m, &there, 1, &one, late + 5);
    assert_int_equal(m.count, RTR_MISFITS_MAX - 1); /* w4 and w5 were old */
    assert_string_equal(m.row[0].id, "w6");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_who_differs_from_its_own_model_is_one),
        cmocka_unit_test(test_few_are_kept_and_not_for_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
