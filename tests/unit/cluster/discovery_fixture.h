/* discovery_fixture.h - what a discovery backend must offer so that conformance_test.c can put it to the test.
 * Everything runs on one thread: members share a loop, which wait_until() turns.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TEST_DISCOVERY_FIXTURE_H
#define KVS_TEST_DISCOVERY_FIXTURE_H

#include "cluster/discovery.h"

#define SEEN_MAX 256

/* One participant: its discovery, and what it was told. */
struct participant {
    struct cls_discovery *d;
    struct msg_member seen[SEEN_MAX];
    uint32_t seen_count, snapshots, backend_ups, backend_downs;
    char backend_text[256];
    void *backend; /* the fixture's */
};

struct fixture {
    const char *name;
    uint64_t ttl_us;
    void (*start)(struct kvs_loop *loop); /* an empty cluster, served */
    void (*stop)(void);
    void (*restart)(
        void); /* the backend forgets everything (a router that died); members find it again by themselves */
    struct participant *(*join)(const struct msg_card *card);        /* a worker */
    struct participant *(*join_router)(const struct msg_card *card); /* another router that tries */
    void (*cut)(struct participant *p);                              /* its process dies: no goodbye */
    void (*glitch)(struct participant *p); /* its connection breaks and comes back by itself */
    void (*remove)(struct participant *p); /* frees it */
};
extern const struct fixture embedded_fixture;

extern struct kvs_loop *fixture_loop;
bool wait_until(bool (*condition)(void *arg), void *arg, unsigned limit_ms); /* turns the loop */
void participant_events(struct participant *p, struct cls_events *out);

#endif
