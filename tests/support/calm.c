/* calm.c - see calm.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/calm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "sys/clock.h"

#define NAP_US 10000u

static pthread_t thread;
static atomic_bool over;
static uint64_t longest_us;

static void *look(void *unused)
{
    (void)unused;
    for (uint64_t before = kvs_now_us(), now; !atomic_load(&over); before = now) {
        kvs_sleep_us(NAP_US);
        now = kvs_now_us();
        if (now - before > NAP_US + longest_us)
            longest_us = now - before - NAP_US;
    }
    return NULL;
}

void tst_calm_begin(void)
{
    longest_us = 0;
    atomic_store(&over, false);
    if (pthread_create(&thread, NULL, look, NULL) != 0)
        abort();
}

uint64_t tst_calm_end(void)
{
    atomic_store(&over, true);
    if (pthread_join(thread, NULL) != 0)
        abort();
    return longest_us;
}
