/* box.c - see box.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/kvtransfer/box.h"

#include "base/rng.h"
#include "sys/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WAIT_US 60000000u

static _Noreturn void give_up(const char *what, const char *detail)
{
    fprintf(stderr, "pid %d: %s: %s\n", (int)getpid(), what, detail);
    exit(9);
}

void box_check(kvs_status st, const char *what)
{
    if (st != KVS_OK)
        give_up(what, kvs_status_name(st));
}

static void wake(void *user)
{
    struct box *b = user;
    pthread_mutex_lock(&b->lock);
    b->woken = true;
    pthread_cond_signal(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

void box_open(struct box *b, const char *id, uint64_t epoch, bool loopback)
{
    pthread_condattr_t attr;
    struct kvs_error err = {0};
    memset(b, 0, sizeof *b);
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&b->cond, &attr);
    pthread_condattr_destroy(&attr);
    const struct kvt_port_config c = {.epoch = epoch, .id = id, .loopback = loopback, .wake = wake, .wake_user = b};
    if (kvt_port_create(&c, &b->port, &err) != KVS_OK)
        give_up("port", err.text);
}

void box_close(struct box *b)
{
    kvt_port_destroy(b->port);
    for (int i = 0; i < b->kept_count; i++)
        free(b->kept[i]);
    pthread_cond_destroy(&b->cond);
    pthread_mutex_destroy(&b->lock);
}

static void collect(struct box *b)
{
    struct kvt_event e;
    while (kvt_port_next(b->port, &e)) {
        if (b->kept_count == BOX_KEPT)
            give_up("events", "too many kept");
        struct kvt_event *copy = malloc(sizeof *copy);
        if (copy == NULL)
            give_up("events", "no memory");
        *copy = e;
        b->kept[b->kept_count++] = copy;
    }
}

static bool take(struct box *b, kvt_event_kind kind, uint32_t peer, struct kvt_event *out)
{
    for (int i = 0; i < b->kept_count; i++) {
        if (b->kept[i]->kind != kind || (peer != UINT32_MAX && b->kept[i]->peer != peer))
            continue;
        *out = *b->kept[i];
        free(b->kept[i]);
        b->kept_count--;
        memmove(&b->kept[i], &b->kept[i + 1], (size_t)(b->kept_count - i) * sizeof *b->kept);
        return true;
    }
    return false;
}

bool box_try(struct box *b, kvt_event_kind kind, uint32_t peer, uint64_t timeout_us, struct kvt_event *out)
{
    uint64_t end_us = kvs_now_us() + timeout_us;
    const struct timespec end = {(time_t)(end_us / 1000000), (long)(end_us % 1000000) * 1000};
    for (;;) {
        collect(b);
        if (take(b, kind, peer, out))
            return true;
        if (kvs_now_us() >= end_us)
            return false;
        pthread_mutex_lock(&b->lock);
        while (!b->woken && kvs_now_us() < end_us)
            pthread_cond_timedwait(&b->cond, &b->lock, &end);
        b->woken = false;
        pthread_mutex_unlock(&b->lock);
    }
}

struct kvt_event box_wait(struct box *b, kvt_event_kind kind, uint32_t peer)
{
    struct kvt_event e;
    if (box_try(b, kind, peer, WAIT_US, &e))
        return e;
    fprintf(stderr, "waiting for event %d of peer %u; kept:", (int)kind, peer);
    for (int i = 0; i < b->kept_count; i++)
        fprintf(stderr, " %d/%u/%s", (int)b->kept[i]->kind, b->kept[i]->peer, kvs_status_name(b->kept[i]->status));
    fprintf(stderr, "\n");
    give_up("event", "did not come within 60 s");
}

static uint64_t pattern_seed(uint64_t xfer, uint32_t block, uint16_t group)
{
    return xfer * 0x9e3779b97f4a7c15ull ^ (uint64_t)block << 20 ^ group;
}

void pattern_fill(uint8_t *p, size_t n, uint64_t xfer, uint32_t block, uint16_t group)
{
    struct kvs_rng r = {pattern_seed(xfer, block, group)};
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = kvs_rng_next(&r);
        memcpy(p + i, &v, n - i < 8 ? n - i : 8);
    }
}

bool pattern_is(const uint8_t *p, size_t n, uint64_t xfer, uint32_t block, uint16_t group)
{
    struct kvs_rng r = {pattern_seed(xfer, block, group)};
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = kvs_rng_next(&r);
        if (memcmp(p + i, &v, n - i < 8 ? n - i : 8) != 0)
            return false;
    }
    return true;
}
