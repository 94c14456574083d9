/* sink_test.c - the receiving state machine against a naive model that keeps one word per page and decides from the whole list each
 * time; random orders: END before pages, doubles, bad pages, cancel in the middle. KVASIR_TEST_SEED takes another seed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kvtransfer/core/sink.h"

enum { WANTS_MAX = 12, EPOCH = 5, XFER = 6, NONCE = 7 };

typedef enum word { WANTED, RECEIVING, LANDED, BAD } word;

struct model {
    struct kvt_want want[WANTS_MAX];
    word word[WANTS_MAX];
    uint32_t count;
    bool ended, cancelled, failed;
    kvt_sink_state state;
};

static uint32_t count_of(const struct model *m, word w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->count; i++)
        n += m->word[i] == w;
    return n;
}

/* The rules as the header states them; what was decided once stays. */
static void decide(struct model *m)
{
    if (m->state != KVT_SINK_OPEN)
        return;
    if (m->cancelled)
        m->state = KVT_SINK_CANCELLED;
    else if (m->failed || (m->ended && count_of(m, WANTED) + count_of(m, BAD) > 0))
        m->state = KVT_SINK_FAILED;
    else if (m->ended && count_of(m, LANDED) == m->count)
        m->state = KVT_SINK_COMPLETE;
}

static struct kvt_header header_of(const struct kvt_want *w)
{
    return (struct kvt_header){.version = KVT_WIRE_VERSION,
                               .kind = w->block == KVT_LOGITS_BLOCK ? KVT_LOGITS : KVT_PAGE,
                               .sink_epoch = EPOCH,
                               .xfer = XFER,
                               .nonce = NONCE,
                               .block = w->block,
                               .group = w->group,
                               .shard = w->shard,
                               .bytes = w->bytes};
}

static struct kvt_sink *create(const struct kvt_want *wants, uint32_t n)
{
    struct kvt_sink *s;
    assert_int_equal(kvt_sink_create(&(struct kvt_sink_config){EPOCH, XFER, NONCE, wants, n}, &s), KVS_OK);
    return s;
}

static void random_wants(struct model *m, struct kvs_rng *r)
{
    memset(m, 0, sizeof *m);
    m->count = 1 + (uint32_t)kvs_rng_below(r, WANTS_MAX);
    for (uint32_t i = 0; i < m->count; i++)
        m->want[i] = (struct kvt_want){
            .block = i / 3 * 1000, .group = (uint16_t)(i % 3), .shard = (uint16_t)(i % 2), .bytes = 100 + i};
    if (m->count > 3 && kvs_rng_below(r, 2) == 0)
        m->want[m->count - 1] = (struct kvt_want){.block = KVT_LOGITS_BLOCK, .group = KVT_LOGITS_GROUP, .bytes = 4000};
}

static void compare(const struct kvt_sink *s, const struct model *m)
{
    uint32_t missing[WANTS_MAX], n = 0;
    uint32_t landed[2], in_group[3] = {0}; /* two of the three groups are asked for */
    uint64_t bytes = 0;
    assert_int_equal(kvt_sink_state_of(s), m->state);
    assert_int_equal(kvt_sink_receiving(s), count_of(m, RECEIVING));
    assert_int_equal(kvt_sink_landed_count(s), count_of(m, LANDED));
    assert_int_equal(kvt_sink_missing(s, missing, WANTS_MAX), m->count - count_of(m, LANDED));
    for (uint32_t i = 0; i < m->count; i++) {
        bytes += m->word[i] == LANDED && m->want[i].block != KVT_LOGITS_BLOCK ? m->want[i].bytes : 0;
        if (m->word[i] != LANDED)
            assert_int_equal(missing[n++], i);
        else if (m->want[i].block != KVT_LOGITS_BLOCK)
            in_group[m->want[i].group]++;
    }
    kvt_sink_landed_of(s, landed, 2);
    assert_memory_equal(landed, in_group, sizeof landed);
    assert_int_equal(kvt_sink_landed_bytes(s), bytes);
}

static void do_message(struct kvt_sink *s, struct model *m, uint32_t i, uint64_t checksum)
{
    struct kvt_header h = header_of(&m->want[i]);
    uint32_t slot = 99;
    kvt_verdict v = kvt_sink_check(s, &h, h.bytes, &slot);
    kvt_verdict want = m->state != KVT_SINK_OPEN ? KVT_DECLINE_CLOSED
                       : m->word[i] != WANTED    ? KVT_DECLINE_DOUBLE
                                                 : KVT_ACCEPT;
    assert_int_equal(v, want);
    if (v != KVT_ACCEPT) {
        assert_int_equal(slot, 99);
        return;
    }
    assert_int_equal(slot, i);
    kvt_sink_begin(s, i, checksum);
    assert_int_equal(kvt_sink_checksum(s, i), checksum);
    m->word[i] = RECEIVING;
}

static void step(struct kvt_sink *s, struct model *m, struct kvs_rng *r)
{
    uint32_t i = (uint32_t)kvs_rng_below(r, m->count);
    switch (kvs_rng_below(r, 40)) {
    case 0:
        kvt_sink_cancel(s);
        m->cancelled = m->state == KVT_SINK_OPEN;
        break;
    case 1:
        kvt_sink_end(s, KVS_PEER_LOST, 0);
        m->ended = m->failed = true;
        break;
    case 2:
    case 3:
        kvt_sink_end(s, KVS_OK, m->count);
        m->ended = true;
        break;
    case 4:
        if (m->word[i] == RECEIVING)
            kvt_sink_landed(s, i, false), m->word[i] = BAD;
        break;
    default:
        if (kvs_rng_below(r, 2) == 0)
            do_message(s, m, i, kvs_rng_next(r));
        else if (m->word[i] == RECEIVING)
            kvt_sink_landed(s, i, true), m->word[i] = LANDED;
        break;
    }
    decide(m);
}

static void test_random_orders_equal_the_model(void **state)
{
    (void)state;
    const char *text = getenv("KVASIR_TEST_SEED");
    struct kvs_rng r = {text != NULL ? strtoull(text, NULL, 10) : 20261130u};
    print_message("KVASIR_TEST_SEED=%llu\n", (unsigned long long)r.state);
    uint32_t seen[4] = {0};
    for (int run = 0; run < 5000; run++) {
        struct model m;
        random_wants(&m, &r);
        struct kvt_sink *s = create(m.want, m.count);
        for (int i = 0; i < 120; i++) {
            step(s, &m, &r);
            compare(s, &m);
        }
        seen[m.state]++;
        for (uint32_t i = 0; i < m.count; i++) /* what is on its way must end before the sink may go */
            if (m.word[i] == RECEIVING)
                kvt_sink_landed(s, i, false);
        kvt_sink_destroy(s);
    }
    for (int i = KVT_SINK_COMPLETE; i <= KVT_SINK_CANCELLED; i++)
        assert_true(seen[i] > 50);
}

static void test_each_field_is_checked(void **state)
{
    (void)state;
    const struct kvt_want wants[] = {{.block = 4, .group = 1, .shard = 2, .bytes = 64},
                                     {.block = KVT_LOGITS_BLOCK, .group = KVT_LOGITS_GROUP, .bytes = 32}};
    struct kvt_sink *s = create(wants, 2);
    const struct kvt_header good = header_of(&wants[0]);
    struct kvt_header h = good;
    uint32_t slot;
    assert_int_equal(kvt_sink_check(s, &h, 64, &slot), KVT_ACCEPT);
#define BAD_FIELD(field, value, verdict)                             \
    do {                                                             \
        h = good;                                                    \
        h.field = (value);                                           \
        assert_int_equal(kvt_sink_check(s, &h, 64, &slot), verdict); \
    } while (0)
    BAD_FIELD(version, 0, KVT_DECLINE_VERSION);
    BAD_FIELD(version, 2, KVT_DECLINE_VERSION);
    BAD_FIELD(kind, 2, KVT_DECLINE_VERSION);
    BAD_FIELD(flags, 1, KVT_DECLINE_VERSION);
    BAD_FIELD(sink_epoch, EPOCH + 1, KVT_DECLINE_EPOCH);
    BAD_FIELD(xfer, XFER + 1, KVT_DECLINE_XFER);
    BAD_FIELD(nonce, 0, KVT_DECLINE_NONCE);
    BAD_FIELD(kind, KVT_LOGITS, KVT_DECLINE_INDEX);
    BAD_FIELD(block, 5, KVT_DECLINE_INDEX);
    BAD_FIELD(block, UINT32_MAX, KVT_DECLINE_INDEX);
    BAD_FIELD(group, 0, KVT_DECLINE_INDEX);
    BAD_FIELD(shard, 0, KVT_DECLINE_INDEX);
    BAD_FIELD(bytes, 63, KVT_DECLINE_LENGTH);
    BAD_FIELD(bytes, UINT64_MAX, KVT_DECLINE_LENGTH);
#undef BAD_FIELD
    h = good;
    const uint64_t length[] = {0, 1, 63, 65, 128, UINT64_MAX};
    for (int i = 0; i < 6; i++)
        assert_int_equal(kvt_sink_check(s, &h, length[i], &slot), KVT_DECLINE_LENGTH);
    h = header_of(&wants[1]);
    assert_int_equal(kvt_sink_check(s, &h, 32, &slot), KVT_ACCEPT);
    assert_int_equal(slot, 1);
    h.kind = KVT_PAGE;
    assert_int_equal(kvt_sink_check(s, &h, 32, &slot), KVT_DECLINE_INDEX);
    kvt_sink_destroy(s);
}

static void test_end_may_overtake_pages_being_received(void **state)
{
    (void)state;
    const struct kvt_want wants[] = {{.block = 0, .bytes = 1}, {.block = 1, .bytes = 1}};
    struct kvt_sink *s = create(wants, 2);
    kvt_sink_begin(s, 0, 0);
    kvt_sink_begin(s, 1, 0);
    kvt_sink_landed(s, 0, true);
    kvt_sink_end(s, KVS_OK, 2);
    assert_int_equal(kvt_sink_state_of(s), KVT_SINK_OPEN);
    kvt_sink_landed(s, 1, true);
    assert_int_equal(kvt_sink_state_of(s), KVT_SINK_COMPLETE);
    kvt_sink_destroy(s);
}

static void test_bad_configurations_are_refused(void **state)
{
    (void)state;
    struct kvt_sink *s = NULL;
    const struct kvt_want twice[] = {
        {.block = 1, .group = 2, .bytes = 1}, {.block = 2, .bytes = 1}, {.block = 1, .group = 2, .bytes = 9}};
    const struct kvt_want empty[] = {{.block = 1, .bytes = 0}};
    struct kvt_sink_config c = {EPOCH, XFER, NONCE, twice, 3};
    assert_int_equal(kvt_sink_create(&c, &s), KVS_REQ_INVALID);
    c.want_count = 0;
    assert_int_equal(kvt_sink_create(&c, &s), KVS_REQ_INVALID);
    c.want_count = 65537;
    assert_int_equal(kvt_sink_create(&c, &s), KVS_REQ_INVALID);
    c.wants = empty;
    c.want_count = 1;
    assert_int_equal(kvt_sink_create(&c, &s), KVS_REQ_INVALID);
    assert_null(s);
    kvt_sink_destroy(NULL);
}

static void test_many_wants(void **state)
{
    (void)state;
    struct kvt_want *wants = calloc(65536, sizeof *wants);
    assert_non_null(wants);
    for (uint32_t i = 0; i < 65536; i++)
        wants[i] = (struct kvt_want){.block = i / 16, .group = (uint16_t)(i % 16), .bytes = 1 + i};
    struct kvt_sink *s = create(wants, 65536);
    for (uint32_t i = 0; i < 65536; i++) {
        struct kvt_header h = header_of(&wants[i]);
        uint32_t slot;
        assert_int_equal(kvt_sink_check(s, &h, 1 + i, &slot), KVT_ACCEPT);
        assert_int_equal(slot, i);
        assert_int_equal(kvt_sink_want(s, i)->bytes, 1 + i);
    }
    kvt_sink_destroy(s);
    free(wants);
}

static void test_verdicts_have_names(void **state)
{
    (void)state;
    for (int i = 0; i < KVT_VERDICTS; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(kvt_verdict_name((kvt_verdict)i), kvt_verdict_name((kvt_verdict)k));
    assert_string_equal(kvt_verdict_name(KVT_DECLINE_NONCE), "nonce");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_orders_equal_the_model),
        cmocka_unit_test(test_each_field_is_checked),
        cmocka_unit_test(test_end_may_overtake_pages_being_received),
        cmocka_unit_test(test_bad_configurations_are_refused),
        cmocka_unit_test(test_many_wants),
        cmocka_unit_test(test_verdicts_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
