/* ring_test.c - order and bounds on one thread; nothing lost, doubled or torn under four producers.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/ring.h"
#include <pthread.h>
#include <sched.h>

enum { PRODUCERS = 4, PER_PRODUCER = 50000 };

struct item {
    uint32_t producer, number;
    uint64_t check[3]; /* derived from the two above: a torn copy shows */
};

static uint64_t check_of(uint32_t producer, uint32_t number, uint64_t k)
{
    return (((uint64_t)producer << 32 | number) + k) * 0x9E3779B97F4A7C15u;
}

static void test_order_and_full_on_one_thread(void **state)
{
    (void)state;
    struct kvs_ring *r = NULL;
    assert_int_equal(kvs_ring_create(4, sizeof(uint32_t), &r), KVS_OK);
    uint32_t v = 0, next_in = 0, next_out = 0;
    assert_false(kvs_ring_pop(r, &v));
    for (int lap = 0; lap < 100; lap++) {
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(kvs_ring_count(r), i);
            assert_int_equal(kvs_ring_push(r, &next_in), KVS_OK);
            next_in++;
        }
        assert_int_equal(kvs_ring_push(r, &next_in), KVS_BUSY_QUEUE);
        assert_int_equal(kvs_ring_count(r), 4);
        for (int i = 0; i < 3 + lap % 2; i++) {
            assert_true(kvs_ring_pop(r, &v));
            assert_int_equal(v, next_out++);
        }
        while (kvs_ring_pop(r, &v)) {
            assert_int_equal(v, next_out++);
        }
        assert_int_equal(next_out, next_in);
    }
    kvs_ring_destroy(r);
    kvs_ring_destroy(NULL);
}

struct producer {
    struct kvs_ring *ring;
    uint32_t id;
    uint64_t refused;
};

static void *produce(void *arg)
{
    struct producer *p = arg;
    for (uint32_t i = 0; i < PER_PRODUCER; i++) {
        struct item it = {.producer = p->id, .number = i};
        for (uint64_t k = 0; k < 3; k++) {
            it.check[k] = check_of(p->id, i, k);
        }
        while (kvs_ring_push(p->ring, &it) != KVS_OK) {
            p->refused++;
            sched_yield();
        }
    }
    return NULL;
}

static void test_four_producers(void **state)
{
    (void)state;
    struct kvs_ring *r = NULL;
    assert_int_equal(kvs_ring_create(64, sizeof(struct item), &r), KVS_OK);
    struct producer p[PRODUCERS];
    pthread_t t[PRODUCERS];
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        p[i] = (struct producer){.ring = r, .id = i};
        assert_int_equal(pthread_create(&t[i], NULL, produce, &p[i]), 0);
    }
    uint32_t next[PRODUCERS] = {0};
    for (uint32_t got = 0; got < PRODUCERS * PER_PRODUCER;) {
        struct item it;
        if (!kvs_ring_pop(r, &it)) {
            sched_yield();
            continue;
        }
        assert_true(it.producer < PRODUCERS);
        assert_int_equal(it.number, next[it.producer]); /* each producer's own order holds */
        next[it.producer]++;
        for (uint64_t k = 0; k < 3; k++) {
            assert_true(it.check[k] == check_of(it.producer, it.number, k));
        }
        got++;
    }
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        assert_int_equal(pthread_join(t[i], NULL), 0);
        assert_int_equal(next[i], PER_PRODUCER);
    }
    struct item it;
    assert_false(kvs_ring_pop(r, &it));
    assert_int_equal(kvs_ring_count(r), 0);
    kvs_ring_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_full_on_one_thread),
        cmocka_unit_test(test_four_producers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
