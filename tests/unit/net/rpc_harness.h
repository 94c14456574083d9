/* rpc_harness.h - endpoints with a loop thread each, and a log of what their handlers were told.
 * Tests run code on an endpoint's loop with on_loop() and wait for events with expect(); every wait has a limit.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TEST_RPC_HARNESS_H
#define KVS_TEST_RPC_HARNESS_H

#include "net/rpc.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "sys/thread.h"
#include <pthread.h>

typedef enum event_kind {
    EV_UP = 1,
    EV_DOWN,
    EV_DIAL_FAILED,
    EV_SUSPECT,
    EV_CALL,
    EV_CANCEL,
    EV_ACK,
    EV_NACK,
    EV_ITEM,
    EV_END,
    EV_PAUSE,
    EV_WRITABLE,
} event_kind;

struct event {
    event_kind kind;
    net_conn conn;
    uint32_t stream;
    kvs_status status;
    uint32_t number; /* method, remaining ms, length, flag */
    uint64_t at_us;
    char text[256];
};

#define EVENTS_MAX 65536
struct endpoint {
    struct kvs_loop *loop;
    struct net_rpc *rpc;
    struct kvs_thread *thread;
    struct msg_hello self;
    char refuse[128]; /* not empty: check_hello says KVS_REQ_DENIED with this text */
    void (*serve)(struct endpoint *e, net_conn conn, uint32_t stream,
                  const struct msg_call *call); /* runs inside on_call */
    void (*writable)(struct endpoint *e, net_conn conn, uint32_t stream);
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct event *events; /* guarded by lock */
    size_t event_count, taken;
    uint64_t items, item_bytes;
};

extern char test_dir[64]; /* a fresh directory of this process */
void test_dir_make(void);
void test_dir_remove(void);

void endpoint_start(struct endpoint *e, const char *id, msg_role role);
void refuse_with(struct endpoint *e, const char *text); /* "": accept again */
void endpoint_stop(struct endpoint *e);
void on_loop(struct endpoint *e, void (*fn)(void *arg),
             void *arg); /* runs fn(arg) on the loop thread, returns when done */
/* Takes the next event of that kind (others before it are skipped); fails the test when none comes in time. */
struct event expect(struct endpoint *e, event_kind kind, unsigned limit_ms);
bool happened(struct endpoint *e, event_kind kind, unsigned wait_ms); /* without taking it */
size_t count_events(struct endpoint *e, event_kind kind);

void listen_on(struct endpoint *e, const char *url, char *url_out, size_t cap);
kvs_status dial(struct endpoint *e, const char *url);
void undial(struct endpoint *e, const char *url);
uint32_t call(struct endpoint *e, net_conn conn, msg_method method, uint32_t ms, const void *body, size_t n);
kvs_status item(struct endpoint *e, net_conn conn, uint32_t stream, const void *payload, size_t n);
void end_call(struct endpoint *e, net_conn conn, uint32_t stream, kvs_status status, const char *text);
void cancel(struct endpoint *e, net_conn conn, uint32_t stream);
void close_conn(struct endpoint *e, net_conn conn, kvs_status why, const char *text);
/* Two endpoints, b listening on url, a dialing; the connections on both sides. */
void connect_pair(struct endpoint *a, struct endpoint *b, const char *url, net_conn *at_a, net_conn *at_b);

#endif
