/* etcd_fixture.c - participants on one loop with a real etcd, for the conformance test. The server stays for all tests;
 * each test has a cluster name of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "discovery_fixture.h"
#include "etcd_fixture.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define TTL_US 2000000u

struct etcd_servers etcd_fixture_servers;
char etcd_fixture_cluster[32];
const char *etcd_fixture_user, *etcd_fixture_password;
static bool running;
static unsigned clusters;

static void fixture_start(struct kvs_loop *loop)
{
    fixture_loop = loop;
    if (!running) {
        etcd_start(&etcd_fixture_servers, 1);
        running = true;
    }
    (void)snprintf(etcd_fixture_cluster, sizeof etcd_fixture_cluster, "test-%u", ++clusters);
}

static void fixture_stop(void) {}

void etcd_fixture_end(void)
{
    if (running) {
        etcd_stop(&etcd_fixture_servers);
        running = false;
    }
}

static pid_t fixture_pid(void)
{
    return etcd_fixture_servers.pid[0];
}

static void fixture_kill(void)
{
    etcd_kill(&etcd_fixture_servers, 0);
}

static void fixture_run(bool keep_data)
{
    if (!keep_data) {
        etcd_wipe(&etcd_fixture_servers, 0);
    }
    etcd_run(&etcd_fixture_servers, 0);
}

struct participant *etcd_fixture_join(const struct msg_card *card, const char *url, uint64_t ttl_us)
{
    struct participant *p = calloc(1, sizeof *p);
    struct cls_events ev;
    struct kvs_error err = {0};
    const struct cls_etcd_config config = {.url = url,
                                           .cluster = etcd_fixture_cluster,
                                           .ttl_us = ttl_us,
                                           .user = etcd_fixture_user,
                                           .password = etcd_fixture_password};
    assert_non_null(p);
    participant_events(p, &ev);
    if (cls_etcd_create(fixture_loop, &config, &ev, &p->d, &err) != KVS_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(p->d->ops->join(p->d, card), KVS_OK);
    return p;
}

static struct participant *fixture_join(const struct msg_card *card)
{
    return etcd_fixture_join(card, etcd_fixture_servers.url, TTL_US);
}

static void fixture_cut(struct participant *p)
{
    p->d->ops->destroy(p->d); /* no leave: the process is gone */
    p->d = NULL;
}

/* Every connection of this process to the server breaks. */
static void fixture_glitch(struct participant *p)
{
    (void)p;
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in a;
        socklen_t n = sizeof a;
        if (getpeername(fd, (struct sockaddr *)&a, &n) == 0 && a.sin_family == AF_INET &&
            ntohs(a.sin_port) == etcd_fixture_servers.port[0]) {
            (void)shutdown(fd, SHUT_RDWR);
        }
    }
}

static void fixture_remove(struct participant *p)
{
    if (p->d != NULL) {
        p->d->ops->destroy(p->d);
    }
    free(p);
}

const struct fixture etcd_fixture = {
    .name = "etcd",
    .ttl_us = TTL_US,
    .start = fixture_start,
    .stop = fixture_stop,
    .server_pid = fixture_pid,
    .server_kill = fixture_kill,
    .server_run = fixture_run,
    .join = fixture_join,
    .join_router = fixture_join,
    .cut = fixture_cut,
    .glitch = fixture_glitch,
    .remove = fixture_remove,
    .many_routers = true,
};
