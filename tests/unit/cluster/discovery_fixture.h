/* discovery_fixture.h - what a discovery backend must offer so that conformance_test.c can put it to the test.
 * Everything runs on one thread: members share a loop, which wait_until() turns.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TEST_DISCOVERY_FIXTURE_H
#define KVS_TEST_DISCOVERY_FIXTURE_H

#include "cluster/discovery.h"
#include <sys/types.h>

#define SEEN_MAX 256

/* One participant: its discovery, and what it was told. */
struct participant {
    struct cls_discovery *d;
    struct msg_member seen[SEEN_MAX];
    uint32_t seen_count, snapshots, backend_ups, backend_downs;
    bool up;
    char backend_text[256];
    void *backend; /* the fixture's */
};

struct fixture {
    const char *name;
    uint64_t ttl_us;
    void (*start)(struct kvs_loop *loop); /* an empty cluster, served */
    void (*stop)(void);
    /* The server's side: the one process that the backend stands on. */
    pid_t (*server_pid)(void);
    void (*server_kill)(void);
    void (*server_run)(bool keep_data); /* again; false: it has forgotten all (embedded discovery always has) */
    struct participant *(*join)(const struct msg_card *card);        /* a worker */
    struct participant *(*join_router)(const struct msg_card *card); /* another router that tries */
    void (*cut)(struct participant *p);                              /* its process dies: no goodbye */
    void (*glitch)(struct participant *p); /* its connection breaks and comes back by itself */
    void (*remove)(struct participant *p); /* frees it */
    bool many_routers;                     /* else a second one is refused */
};
extern const struct fixture embedded_fixture, etcd_fixture;

extern struct kvs_loop *fixture_loop;
bool wait_until(bool (*condition)(void *arg), void *arg, unsigned limit_ms); /* turns the loop */
void participant_events(struct participant *p, struct cls_events *out);

void pass(unsigned ms);
/* The events put together: who is there now? 0: not there. Also checks that they make sense one after another. */
uint64_t epoch_known(const struct participant *p, const char *id);
void wait_known(struct participant *p, const char *id, uint64_t epoch, unsigned limit_ms);
uint32_t count(const struct participant *p, const char *id, msg_member_change change);
struct msg_card card(const char *id, msg_role role, uint64_t epoch);
bool has_snapshot(void *participant); /* conditions for wait_until */
bool was_told_off(void *participant);
bool is_up(void *participant); /* the backend's last word */
bool is_down(void *participant);

void server_stop(const struct fixture *fx); /* it hangs: alive, and says nothing */
void server_continue(const struct fixture *fx);
/* From now on it only answers now and then: it hangs for so long again and again, with 100 ms between. 0: no more. */
void server_slow(const struct fixture *fx, unsigned ms);

#endif
