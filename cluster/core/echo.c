/* echo.c - see echo.h. Of several revisions that are owed the first one is kept: lines come in order, and a watch that has told it is alive.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/core/echo.h"

static uint64_t since(uint64_t then_us, uint64_t now_us)
{
    return now_us > then_us ? now_us - then_us : 0;
}

void cls_echo_start(struct cls_echo *e, int64_t revision, uint64_t now_us)
{
    *e = (struct cls_echo){.told = revision, .heard_us = now_us};
}

void cls_echo_heard(struct cls_echo *e, int64_t revision, uint64_t now_us)
{
    e->heard_us = now_us;
    e->told = revision > e->told ? revision : e->told;
    e->owed = e->owed > e->told ? e->owed : 0;
}

void cls_echo_owed(struct cls_echo *e, int64_t revision, uint64_t now_us)
{
    if (revision > e->told && (e->owed == 0 || revision < e->owed)) {
        e->owed_us = e->owed == 0 ? now_us : e->owed_us;
        e->owed = revision;
    }
}

cls_echo_verdict cls_echo_look(const struct cls_echo *e, int64_t revision, uint64_t now_us, uint64_t ttl_us)
{
    uint64_t silent_us = since(e->heard_us, now_us);
    if (e->owed != 0) {
        return silent_us > ttl_us && since(e->owed_us, now_us) > ttl_us ? CLS_ECHO_DEAD : CLS_ECHO_FINE;
    }
    return revision > e->told && silent_us > ttl_us / 2 ? CLS_ECHO_ASK : CLS_ECHO_FINE;
}
