/* patience.c - see patience.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "patience.h"
#include "sys/clock.h"

static void look(void *user, uint64_t now_us)
{
    struct patience *p = user;
    p->met = p->condition();
    if (p->met || now_us >= p->until_us) {
        kvs_loop_stop(p->loop);
    } else {
        kvs_timer_set(p->timer, now_us + 1000);
    }
}

void patience_open(struct patience *p, struct kvs_loop *loop)
{
    p->loop = loop;
    assert_int_equal(kvs_timer_create(loop, look, p, &p->timer), KVS_OK);
}

void patience_close(struct patience *p)
{
    kvs_timer_destroy(p->timer);
}

bool comes_true(struct patience *p, bool (*condition)(void), uint64_t wait_ms)
{
    p->condition = condition;
    p->until_us = kvs_now_us() + wait_ms * 1000;
    kvs_timer_set(p->timer, kvs_now_us());
    kvs_loop_run(p->loop);
    return p->met;
}
