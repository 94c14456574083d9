/* discovery_harness.c - what tests of discovery share: turning the loop, and what participants have been told.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "discovery_fixture.h"
#include "sys/clock.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvs_loop *fixture_loop;

/* ---- turning the loop ---- */

struct waiting {
    bool (*condition)(void *arg);
    void *arg;
    uint64_t until_us;
    bool met;
    struct kvs_timer *timer;
};

static void look(void *user, uint64_t now_us)
{
    struct waiting *w = user;
    w->met = w->condition(w->arg);
    if (w->met || now_us >= w->until_us) {
        kvs_loop_stop(fixture_loop);
    } else {
        kvs_timer_set(w->timer, now_us + 2000);
    }
}

bool wait_until(bool (*condition)(void *arg), void *arg, unsigned limit_ms)
{
    struct waiting w = {condition, arg, kvs_now_us() + limit_ms * UINT64_C(1000), false, NULL};
    assert_int_equal(kvs_timer_create(fixture_loop, look, &w, &w.timer), KVS_OK);
    kvs_timer_set(w.timer, kvs_now_us());
    kvs_loop_run(fixture_loop);
    kvs_timer_destroy(w.timer);
    return w.met;
}

static bool never(void *arg)
{
    (void)arg;
    return false;
}

void pass(unsigned ms)
{
    (void)wait_until(never, NULL, ms);
}

/* ---- what participants see ---- */

static void on_member(void *user, const struct msg_member *m)
{
    struct participant *p = user;
    if (m->change == MSG_MEMBER_SNAPSHOT_END) {
        p->snapshots++;
        return;
    }
    if (m->change == MSG_MEMBER_PUT && m->card.role == MSG_ROLE_ROUTER) {
        return; /* a backend may or may not list the router */
    }
    if (m->change == MSG_MEMBER_GONE && strcmp(m->card.id, "router") == 0) {
        return;
    }
    assert_true(p->seen_count < SEEN_MAX);
    p->seen[p->seen_count++] = *m;
}

static void on_backend(void *user, bool up, const char *text)
{
    struct participant *p = user;
    p->up = up;
    *(up ? &p->backend_ups : &p->backend_downs) += 1;
    (void)snprintf(p->backend_text, sizeof p->backend_text, "%s", text);
}

void participant_events(struct participant *p, struct cls_events *out)
{
    *out = (struct cls_events){.user = p, .on_member = on_member, .on_backend = on_backend};
}

/* The events put together: who is there now? Also checks that they make sense one after another. */
uint64_t epoch_known(const struct participant *p, const char *id)
{
    uint64_t epoch = 0;
    for (uint32_t i = 0; i < p->seen_count; i++) {
        const struct msg_member *m = &p->seen[i];
        if (strcmp(m->card.id, id) != 0) {
            continue;
        }
        if (m->change == MSG_MEMBER_GONE) {
            assert_int_equal(m->card.epoch, epoch); /* GONE only for what was PUT */
            epoch = 0;
        } else {
            assert_true(epoch == 0 || epoch == m->card.epoch); /* a new epoch comes after GONE */
            epoch = m->card.epoch;
        }
    }
    return epoch;
}

struct view {
    const struct participant *p;
    const char *id;
    uint64_t epoch;
};

static bool knows(void *arg)
{
    const struct view *v = arg;
    return epoch_known(v->p, v->id) == v->epoch;
}

void wait_known(struct participant *p, const char *id, uint64_t epoch, unsigned limit_ms)
{
    struct view v = {p, id, epoch};
    if (!wait_until(knows, &v, limit_ms)) {
        fail_msg("%s is known with epoch %llu, not %llu, after %u ms", id, (unsigned long long)epoch_known(p, id),
                 (unsigned long long)epoch, limit_ms);
    }
}

bool has_snapshot(void *arg)
{
    return ((struct participant *)arg)->snapshots > 0;
}

bool was_told_off(void *arg)
{
    return ((struct participant *)arg)->backend_downs > 0;
}

bool is_up(void *arg)
{
    const struct participant *p = arg;
    return p->up;
}

bool is_down(void *arg)
{
    return !is_up(arg);
}

uint32_t count(const struct participant *p, const char *id, msg_member_change change)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->seen_count; i++) {
        n += p->seen[i].change == change && strcmp(p->seen[i].card.id, id) == 0;
    }
    return n;
}

struct msg_card card(const char *id, msg_role role, uint64_t epoch)
{
    struct msg_card c = {.role = role,
                         .epoch = epoch,
                         .control_url = "ipc:///x",
                         .protocol_min = 1,
                         .protocol_max = 1,
                         .block_tokens = 64,
                         .group_count = 1,
                         .group = {{1024, 10}}};
    (void)kvs_format(c.id, sizeof c.id, "%s", id);
    return c;
}

/* ---- the server's side ---- */

void server_stop(const struct fixture *fx)
{
    assert_true(fx->server_pid() > 0);
    assert_int_equal(kill(fx->server_pid(), SIGSTOP), 0);
}

void server_continue(const struct fixture *fx)
{
    assert_int_equal(kill(fx->server_pid(), SIGCONT), 0);
}

static struct {
    pthread_t thread;
    atomic_uint stopped_ms; /* 0: no more */
    pid_t pid;
} slow;

static void *slow_down(void *unused)
{
    unsigned ms;
    (void)unused;
    while ((ms = atomic_load(&slow.stopped_ms)) != 0) {
        (void)kill(slow.pid, SIGSTOP);
        kvs_sleep_us(ms * UINT64_C(1000));
        (void)kill(slow.pid, SIGCONT);
        kvs_sleep_us(100000);
    }
    return NULL;
}

void server_slow(const struct fixture *fx, unsigned ms)
{
    bool was_slow = atomic_exchange(&slow.stopped_ms, ms) != 0;
    if (was_slow && ms == 0) {
        assert_int_equal(pthread_join(slow.thread, NULL), 0);
    } else if (!was_slow && ms != 0) {
        slow.pid = fx->server_pid();
        assert_int_equal(pthread_create(&slow.thread, NULL, slow_down, NULL), 0);
    }
}
