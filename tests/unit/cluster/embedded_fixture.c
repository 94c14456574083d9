/* embedded_fixture.c - workers on one loop and a router in a process of its own, connected over ipc, for the conformance test.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "embedded_fixture.h"
#include "embedded_router.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the router ---- */

static pid_t router;
static unsigned long epoch;
static char dir[64], url[128];

static void exec_router(int ready)
{
    char number[24], fd_text[16];
    char *const args[] = {(char *)"router", (char *)embedded_router_word, url, number, fd_text, NULL};
    (void)snprintf(number, sizeof number, "%lu", epoch);
    (void)snprintf(fd_text, sizeof fd_text, "%d", ready);
    for (int fd = 3; fd < 1024; fd++) { /* streams of the members: they are not this process' */
        if (fd != ready) {
            (void)close(fd);
        }
    }
    (void)execv("/proc/self/exe", args);
    _exit(127);
}

/* Without data: an embedded registry has none. Waits until it listens. */
static void router_run(bool keep_data)
{
    int ready[2];
    char byte;
    (void)keep_data;
    assert_int_equal(router, 0);
    assert_int_equal(pipe(ready), 0);
    epoch++;
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(127);
        }
        exec_router(ready[1]);
    }
    router = pid;
    (void)close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
}

static void router_kill(void)
{
    if (router != 0) {
        (void)kill(router, SIGKILL);
        (void)waitpid(router, NULL, 0);
        router = 0;
    }
}

static pid_t router_pid(void)
{
    return router;
}

static void embedded_start(struct kvs_loop *loop)
{
    fixture_loop = loop;
    (void)snprintf(dir, sizeof dir, "/tmp/kvs-cls-XXXXXX");
    assert_non_null(mkdtemp(dir));
    (void)snprintf(url, sizeof url, "ipc://%s/router.sock", dir);
    router_run(false);
}

static void embedded_stop(void)
{
    router_kill();
    (void)unlink(url + 6);
    (void)rmdir(dir);
}

/* ---- workers ---- */

struct worker {
    struct net_rpc *rpc;
    net_conn conn;
};

static void worker_up(void *user, net_conn conn, const struct msg_hello *hello, bool we_dialed, const char *at)
{
    struct participant *p = user;
    (void)hello;
    (void)we_dialed;
    (void)at;
    ((struct worker *)p->backend)->conn = conn;
    cls_embedded_client_up(p->d, conn);
}

static void worker_down(void *user, net_conn conn, kvs_status why, const char *text)
{
    struct participant *p = user;
    (void)why;
    (void)text;
    ((struct worker *)p->backend)->conn = 0;
    cls_embedded_client_down(p->d, conn);
}

static void worker_item(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    (void)cls_embedded_client_item(((struct participant *)user)->d, conn, stream, payload, n);
}

static void worker_end(void *user, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    (void)cls_embedded_client_end(((struct participant *)user)->d, conn, stream, end);
}

static struct participant *embedded_join(const struct msg_card *card)
{
    struct participant *p = calloc(1, sizeof *p);
    struct worker *w = calloc(1, sizeof *w);
    struct net_rpc_handlers h = {
        .user = p, .on_up = worker_up, .on_down = worker_down, .on_item = worker_item, .on_end = worker_end};
    struct msg_hello hello = {.protocol_min = 1, .protocol_max = 1, .epoch = card->epoch, .role = card->role};
    struct cls_events ev;
    struct kvs_error err;
    assert_true(p != NULL && w != NULL);
    memcpy(hello.id, card->id, sizeof hello.id);
    p->backend = w;
    participant_events(p, &ev);
    assert_int_equal(net_rpc_create(fixture_loop, &hello, &h, &w->rpc, &err), KVS_OK);
    assert_int_equal(cls_embedded_client_create(fixture_loop, w->rpc, &ev, &p->d), KVS_OK);
    assert_int_equal(p->d->ops->join(p->d, card), KVS_OK);
    assert_int_equal(net_rpc_dial(w->rpc, url), KVS_OK);
    return p;
}

static void embedded_cut(struct participant *p)
{
    struct worker *w = p->backend;
    net_rpc_destroy(w->rpc);
    w->rpc = NULL;
}

static void embedded_glitch(struct participant *p)
{
    struct worker *w = p->backend;
    assert_int_not_equal(w->conn, 0);
    net_rpc_close(w->rpc, w->conn, KVS_PEER_LOST, "glitch");
}

void embedded_fixture_stay_away(struct participant *p)
{
    struct worker *w = p->backend;
    net_rpc_undial(w->rpc, url);
    if (w->conn != 0) {
        net_rpc_close(w->rpc, w->conn, KVS_PEER_LOST, "away");
    }
}

void embedded_fixture_come_back(struct participant *p)
{
    assert_int_equal(net_rpc_dial(((struct worker *)p->backend)->rpc, url), KVS_OK);
}

static void embedded_remove(struct participant *p)
{
    struct worker *w = p->backend;
    net_rpc_destroy(w->rpc);
    p->d->ops->destroy(p->d);
    free(w);
    free(p);
}

const struct fixture embedded_fixture = {
    .name = "embedded",
    .ttl_us = CLS_EMBEDDED_TTL_US,
    .start = embedded_start,
    .stop = embedded_stop,
    .server_pid = router_pid,
    .server_kill = router_kill,
    .server_run = router_run,
    .join = embedded_join,
    .join_router = embedded_join,
    .cut = embedded_cut,
    .glitch = embedded_glitch,
    .remove = embedded_remove,
};
