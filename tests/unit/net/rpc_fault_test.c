/* rpc_fault_test.c - peers that do not behave: hostile bytes over a plain socket, silence, slowness, refusals, busy
 * addresses.
 * The raw peer is a blocking TCP socket with hand-made frames; after each attack an honest peer must still be served.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/checked.h"
#include "base/rng.h"
#include "rpc_harness.h"
#include "sys/clock.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct endpoint e; /* the victim, listening on tcp */
static char e_url[256];
static uint16_t e_port;

static int setup(void **state)
{
    (void)state;
    endpoint_start(&e, "victim", MSG_ROLE_DECODE);
    listen_on(&e, "tcp://127.0.0.1:0", e_url, sizeof e_url);
    e_port = (uint16_t)strtoul(strrchr(e_url, ':') + 1, NULL, 10);
    assert_int_not_equal(e_port, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    endpoint_stop(&e);
    return 0;
}

/* ---- the raw peer ---- */

static int raw_connect(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(e_port)};
    struct timeval limit = {30, 0};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    return fd;
}

static void raw_send(int fd, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    while (n > 0) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0) {
            return; /* closed on us, which the test looks at by reading */
        }
        p += sent;
        n -= (size_t)sent;
    }
}

static void raw_frame(int fd, uint8_t type, uint32_t stream, const void *payload, uint32_t n)
{
    uint8_t head[12] = {0};
    kvs_store_u32(head, n);
    head[4] = type;
    kvs_store_u32(head + 8, stream);
    raw_send(fd, head, sizeof head);
    raw_send(fd, payload, n);
}

static void raw_hello(int fd, const char *id, uint32_t protocol)
{
    struct msg_hello hello = {.protocol_min = protocol, .protocol_max = protocol, .epoch = 1, .role = MSG_ROLE_CLIENT};
    struct kvs_buf b;
    (void)snprintf(hello.id, sizeof hello.id, "%s", id);
    kvs_buf_init(&b, 4096);
    assert_int_equal(msg_hello_encode(&hello, &b), KVS_OK);
    raw_frame(fd, MSG_HELLO, 0, b.data, (uint32_t)b.len);
    kvs_buf_fini(&b);
}

static bool raw_read(int fd, void *out, size_t n)
{
    uint8_t *p = out;
    while (n > 0) {
        ssize_t got = recv(fd, p, n, 0);
        if (got <= 0) {
            return false;
        }
        p += got;
        n -= (size_t)got;
    }
    return true;
}

/* Next frame that is no PING or PONG; 0 when the stream is at its end (or silent for 30 s). */
static uint8_t raw_next(int fd, uint8_t *payload, size_t cap, uint32_t *n_out)
{
    for (;;) {
        uint8_t head[12];
        if (!raw_read(fd, head, sizeof head)) {
            return 0;
        }
        uint32_t n = kvs_load_u32(head);
        assert_true(n <= cap);
        if (!raw_read(fd, payload, n)) {
            return 0;
        }
        if (head[4] != MSG_PING && head[4] != MSG_PONG) {
            *n_out = n;
            return head[4];
        }
    }
}

/* The victim must end the stream; GOAWAY may come first and then names the status. */
static kvs_status expect_closed(int fd)
{
    static uint8_t payload[MSG_PAYLOAD_MAX];
    kvs_status said = KVS_OK;
    uint32_t n;
    uint8_t type;
    while ((type = raw_next(fd, payload, sizeof payload, &n)) != 0) {
        if (type == MSG_GOAWAY) {
            struct kvs_arena arena;
            struct kvs_error err;
            struct msg_end end;
            kvs_arena_init(&arena, 65536);
            assert_int_equal(msg_end_decode(payload, n, &arena, &end, &err), KVS_OK);
            said = end.status;
            kvs_arena_fini(&arena);
        }
    }
    assert_int_not_equal(errno, EAGAIN); /* that was our own time-out */
    close(fd);
    return said;
}

static void honest_peer_is_served(void)
{
    struct endpoint honest = {0};
    endpoint_start(&honest, "honest", MSG_ROLE_ROUTER);
    assert_int_equal(dial(&honest, e_url), KVS_OK);
    net_conn conn = expect(&honest, EV_UP, 5000).conn;
    uint32_t s = call(&honest, conn, MSG_HEALTH, 5000, NULL, 0);
    while (strcmp(expect(&e, EV_UP, 5000).text, "honest") != 0) {
        /* an attacker's */
    }
    struct event c = expect(&e, EV_CALL, 5000);
    end_call(&e, c.conn, c.stream, KVS_OK, "");
    assert_int_equal(expect(&honest, EV_END, 5000).stream, s);
    endpoint_stop(&honest);
}

static void attack(const void *bytes, size_t n, bool hello_first)
{
    int fd = raw_connect();
    if (hello_first) {
        raw_hello(fd, "raw", 1);
    }
    raw_send(fd, bytes, n);
    errno = 0;
    assert_int_equal(expect_closed(fd), KVS_PEER_PROTOCOL);
    if (hello_first) {
        assert_int_equal(expect(&e, EV_DOWN, 2000).status, KVS_PEER_PROTOCOL);
    }
}

static void frame_attack(uint8_t type, uint32_t stream, const void *payload, uint32_t n, bool hello_first)
{
    uint8_t bytes[256] = {0};
    assert_true(n + 12 <= sizeof bytes);
    kvs_store_u32(bytes, n);
    bytes[4] = type;
    kvs_store_u32(bytes + 8, stream);
    if (n > 0) {
        memcpy(bytes + 12, payload, n);
    }
    attack(bytes, 12 + n, hello_first);
}

static const uint8_t health_call[] = {0x08, MSG_HEALTH};

static void test_bytes_of_other_protocols(void **state)
{
    (void)state;
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    static const uint8_t zeros[64] = {0};
    uint8_t garbage[4096];
    struct kvs_rng rng = {.state = 99};
    attack(http, sizeof http - 1, false);
    attack(zeros, sizeof zeros, false);
    for (int i = 0; i < 20; i++) {
        for (size_t k = 0; k < sizeof garbage; k++) {
            garbage[k] = (uint8_t)kvs_rng_next(&rng);
        }
        attack(garbage, sizeof garbage, i % 2 != 0);
    }
    honest_peer_is_served();
}

static void test_huge_length_and_unknown_type(void **state)
{
    (void)state;
    static const uint8_t huge[12] = {0xff, 0xff, 0xff, 0x7f, MSG_ITEM, 0, 0, 0, 1, 0, 0, 0};
    static const uint8_t over[12] = {1, 0, 0x10, 0, MSG_CALL, 0, 0, 0, 1, 0, 0, 0};
    attack(huge, sizeof huge, true);
    attack(over, sizeof over, true);
    frame_attack(14, 1, NULL, 0, true);
    frame_attack(0, 1, NULL, 0, true);
    frame_attack(255, 0, NULL, 0, false);
    honest_peer_is_served();
}

static void test_frames_before_hello(void **state)
{
    (void)state;
    frame_attack(MSG_CALL, 1, health_call, sizeof health_call, false);
    frame_attack(MSG_PING, 0, "12345678", 8, false);
    frame_attack(MSG_HELLO, 0, "\xff\xff", 2, false);
    frame_attack(MSG_HELLO, 0, NULL, 0, false);
    assert_int_equal(count_events(&e, EV_UP) + count_events(&e, EV_CALL), 0);
    honest_peer_is_served();
}

static void test_wrong_streams(void **state)
{
    (void)state;
    frame_attack(MSG_CALL, 2, health_call, sizeof health_call, true); /* even is the listener's */
    frame_attack(MSG_ITEM, 2, "x", 1, true);                          /* never given */
    frame_attack(MSG_END, 4, NULL, 0, true);
    frame_attack(MSG_ITEM, 1, "x", 1, true);
    frame_attack(MSG_ACK, 1, NULL, 0, true);
    frame_attack(MSG_CANCEL, 99, NULL, 0, true);
    frame_attack(MSG_CREDIT, 2, "1234", 4, true);
    frame_attack(MSG_CALL, 1, "\xff", 1, true); /* an envelope that does not decode */
    frame_attack(MSG_CALL, 1, NULL, 0, true);   /* no method */
    frame_attack(MSG_HELLO, 0, NULL, 0, true);  /* a second one */
    honest_peer_is_served();
}

static void test_frames_in_the_wrong_order(void **state)
{
    (void)state;
    int fd = raw_connect();
    raw_hello(fd, "raw", 1);
    raw_frame(fd, MSG_CALL, 5, health_call, sizeof health_call);
    raw_frame(fd, MSG_CALL, 3, health_call, sizeof health_call); /* goes back */
    errno = 0;
    assert_int_equal(expect_closed(fd), KVS_PEER_PROTOCOL);
    expect(&e, EV_DOWN, 2000);
    fd = raw_connect();
    raw_hello(fd, "raw", 1);
    raw_frame(fd, MSG_CALL, 1, health_call, sizeof health_call);
    raw_frame(fd, MSG_ACK, 1, NULL, 0); /* before END */
    errno = 0;
    assert_int_equal(expect_closed(fd), KVS_PEER_PROTOCOL);
    fd = raw_connect();
    raw_hello(fd, "raw", 1);
    raw_frame(fd, MSG_CALL, 1, health_call, sizeof health_call);
    raw_frame(fd, MSG_PAUSE, 1, "12345678", 8); /* not on Tokens */
    errno = 0;
    assert_int_equal(expect_closed(fd), KVS_PEER_PROTOCOL);
    honest_peer_is_served();
}

static void test_one_byte_at_a_time_is_fine(void **state)
{
    (void)state;
    struct msg_hello hello = {.protocol_min = 1, .protocol_max = 9, .epoch = 1, .role = MSG_ROLE_CLIENT, .id = "slow"};
    struct kvs_buf payload, frame;
    uint8_t reply[4096];
    uint32_t n;
    kvs_buf_init(&payload, 4096);
    kvs_buf_init(&frame, 4096);
    assert_int_equal(msg_hello_encode(&hello, &payload), KVS_OK);
    assert_int_equal(msg_frame_append(&frame, MSG_HELLO, 0, payload.data, (uint32_t)payload.len), KVS_OK);
    assert_int_equal(msg_frame_append(&frame, MSG_CALL, 1, health_call, sizeof health_call), KVS_OK);
    int fd = raw_connect();
    for (size_t i = 0; i < frame.len; i++) {
        raw_send(fd, frame.data + i, 1);
        kvs_sleep_us(500);
    }
    assert_int_equal(raw_next(fd, reply, sizeof reply, &n), MSG_HELLO);
    struct event c = expect(&e, EV_CALL, 2000);
    end_call(&e, c.conn, c.stream, KVS_OK, "fine");
    assert_int_equal(raw_next(fd, reply, sizeof reply, &n), MSG_END);
    close(fd);
    expect(&e, EV_DOWN, 2000);
    kvs_buf_fini(&payload);
    kvs_buf_fini(&frame);
}

static void test_no_hello_is_closed_after_three_seconds(void **state)
{
    (void)state;
    int fd = raw_connect();
    uint64_t before = kvs_now_us();
    errno = 0;
    (void)expect_closed(fd);
    assert_in_range(kvs_now_us() - before, 2500000, 25000000);
    assert_int_equal(count_events(&e, EV_UP) + count_events(&e, EV_DOWN), 0);
}

static void test_a_peer_that_goes_silent_is_suspect_then_dead(void **state)
{
    (void)state;
    int fd = raw_connect();
    raw_hello(fd, "mute", 1);
    struct event up = expect(&e, EV_UP, 2000);
    net_conn conn = up.conn;
    uint32_t s = call(&e, conn, MSG_GENERATE, 0, NULL, 0);
    struct event suspect = expect(&e, EV_SUSPECT, 2000);
    assert_int_equal(suspect.number, 1);
    assert_in_range(suspect.at_us - up.at_us, 800000, 20000000);
    struct event end = expect(&e, EV_END, 3000);
    assert_int_equal(end.stream, s);
    assert_int_equal(end.status, KVS_PEER_TIMEOUT);
    struct event down = expect(&e, EV_DOWN, 1000);
    assert_int_equal(down.status, KVS_PEER_TIMEOUT);
    assert_in_range(down.at_us - up.at_us, 1800000, 20000000);
    close(fd);
}

static void test_a_frame_that_never_ends(void **state)
{
    (void)state;
    static const uint8_t head[12] = {0xe8, 3, 0, 0, MSG_CALL, 0, 0, 0, 1, 0, 0, 0}; /* 1000 bytes are promised */
    int fd = raw_connect();
    raw_hello(fd, "drip", 1);
    expect(&e, EV_UP, 2000);
    uint64_t before = kvs_now_us();
    raw_send(fd, head, sizeof head);
    while (!happened(&e, EV_DOWN, 300)) {
        raw_send(fd, "x", 1); /* alive all the time */
        assert_true(kvs_now_us() - before < 30000000);
    }
    assert_int_equal(expect(&e, EV_DOWN, 10).status, KVS_PEER_TIMEOUT);
    assert_true(kvs_now_us() - before > 4500000);
    close(fd);
}

static void flood(struct endpoint *victim, net_conn conn, uint32_t stream, const struct msg_call *c)
{
    static const uint8_t piece[60000];
    (void)c;
    for (int i = 0; i < 400; i++) { /* 24 MB on a call without credit */
        if (net_rpc_item(victim->rpc, conn, stream, piece, sizeof piece) != KVS_OK) {
            return;
        }
    }
}

static void test_a_peer_that_does_not_read_is_closed_at_8_mib(void **state)
{
    (void)state;
    static const uint8_t tokens_call[] = {0x08, MSG_TOKENS};
    e.serve = flood;
    int fd = raw_connect();
    raw_hello(fd, "full", 1);
    raw_frame(fd, MSG_CALL, 1, tokens_call, sizeof tokens_call);
    struct event down = expect(&e, EV_DOWN, 3000);
    assert_int_equal(down.status, KVS_BUSY_QUEUE);
    close(fd);
    e.serve = NULL;
    honest_peer_is_served();
}

static void test_a_peer_that_gives_no_credit_stalls_only_its_call(void **state)
{
    (void)state;
    static const uint8_t piece[60000];
    static const uint8_t generate_call[] = {0x08, MSG_GENERATE};
    int fd = raw_connect();
    raw_hello(fd, "stingy", 1);
    raw_frame(fd, MSG_CALL, 1, generate_call, sizeof generate_call);
    struct event c = expect(&e, EV_CALL, 2000);
    int sent = 0;
    kvs_status s;
    while ((s = item(&e, c.conn, 1, piece, sizeof piece)) == KVS_OK) {
        sent++;
    }
    assert_int_equal(s, KVS_BUSY_QUEUE);
    assert_int_equal(sent, 5); /* 4 x 60000 < 256 KiB, and one that overdraws */
    raw_frame(fd, MSG_CALL, 3, health_call, sizeof health_call);
    assert_int_equal(expect(&e, EV_CALL, 2000).stream, 3);
    uint8_t credit[4];
    kvs_store_u32(credit, 100000);
    raw_frame(fd, MSG_CREDIT, 1, credit, 4);
    assert_int_equal(expect(&e, EV_WRITABLE, 2000).stream, 1);
    assert_int_equal(item(&e, c.conn, 1, piece, sizeof piece), KVS_OK);
    close(fd);
    expect(&e, EV_DOWN, 2000);
    assert_int_equal(item(&e, c.conn, 1, piece, sizeof piece), KVS_PEER_LOST);
}

static void test_too_many_calls(void **state)
{
    (void)state;
    int fd = raw_connect();
    raw_hello(fd, "greedy", 1);
    struct kvs_buf frames;
    kvs_buf_init(&frames, 2u << 20);
    for (uint32_t i = 0; i < 65537; i++) {
        assert_int_equal(msg_frame_append(&frames, MSG_CALL, 2 * i + 1, health_call, sizeof health_call), KVS_OK);
    }
    raw_send(fd, frames.data, frames.len);
    uint8_t reply[4096];
    uint32_t n;
    assert_int_equal(raw_next(fd, reply, sizeof reply, &n), MSG_HELLO);
    assert_int_equal(raw_next(fd, reply, sizeof reply, &n), MSG_END); /* for the one too many */
    assert_int_equal(reply[1] | (reply[2] & 0x7f) << 7, (KVS_BUSY_FULL & 0x7f) | 0x80 | (KVS_BUSY_FULL >> 7) << 7);
    close(fd);
    kvs_buf_fini(&frames);
}

static void test_a_flood_of_connections_leaves_room_afterwards(void **state)
{
    (void)state;
    int fds[60];
    for (int i = 0; i < 60; i++) {
        fds[i] = raw_connect();
        raw_hello(fds[i], "many", 1);
    }
    for (int i = 0; i < 60; i++) {
        expect(&e, EV_UP, 5000);
    }
    for (int i = 0; i < 60; i++) {
        close(fds[i]);
    }
    for (int i = 0; i < 60; i++) {
        kvs_status why = expect(&e, EV_DOWN, 5000).status;
        assert_true(why == KVS_PEER_LOST || why == KVS_PEER_TIMEOUT); /* where this took long enough to call them silent */
    }
    honest_peer_is_served();
}

static void ping_all(const int *fds, int count)
{
    static uint64_t last_us;
    if (kvs_now_us() - last_us < 200000) {
        return;
    }
    last_us = kvs_now_us();
    for (int i = 0; i < count; i++) {
        raw_frame(fds[i], MSG_PING, 0, "12345678", 8); /* the silent ones would make room after two seconds */
    }
}

/* 1024 are served; more are closed at once, and there is room again when some have gone. */
static void test_connections_are_bounded(void **state)
{
    (void)state;
    enum { WANTED = 1030, SERVED = 1024 };
    static int fds[WANTED];
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    if (files.rlim_max < 3 * WANTED || setrlimit(RLIMIT_NOFILE, &files) != 0) {
        print_message("skipped: fewer than %d descriptors are allowed here\n", 3 * WANTED);
        return;
    }
    for (int i = 0; i < WANTED; i++) {
        fds[i] = raw_connect();
        raw_hello(fds[i], "crowd", 1);
        ping_all(fds, i);
        for (int k = 0; k < 30000 && i < SERVED && count_events(&e, EV_UP) + 60 < (size_t)i; k++) { /* a full backlog stops us for seconds */
            ping_all(fds, i);
            kvs_sleep_us(1000);
        }
    }
    for (int i = 0; i < 300 && count_events(&e, EV_UP) < SERVED; i++) {
        ping_all(fds, WANTED);
        kvs_sleep_us(100000);
    }
    kvs_sleep_us(200000);
    assert_int_equal(count_events(&e, EV_UP), SERVED);
    assert_int_equal(count_events(&e, EV_DOWN), 0);
    for (int i = 0; i < WANTED; i++) {
        close(fds[i]);
    }
    honest_peer_is_served();
}

/* ---- refusals ---- */

static void test_a_refused_dialer_learns_why(void **state)
{
    (void)state;
    struct endpoint d = {0};
    refuse_with(&e, "wrong key: set --control-key");
    endpoint_start(&d, "stranger", MSG_ROLE_PREFILL);
    assert_int_equal(dial(&d, e_url), KVS_OK);
    struct event failed = expect(&d, EV_DIAL_FAILED, 3000);
    assert_int_equal(failed.status, KVS_REQ_DENIED);
    assert_string_equal(failed.text, "wrong key: set --control-key");
    assert_int_equal(count_events(&d, EV_UP) + count_events(&e, EV_UP), 0);
    refuse_with(&e, "");
    expect(&d, EV_UP, 5000); /* it went on dialing */
    endpoint_stop(&d);
}

static void test_a_dialer_may_refuse_too(void **state)
{
    (void)state;
    struct endpoint d = {0};
    (void)snprintf(d.refuse, sizeof d.refuse, "another model");
    endpoint_start(&d, "picky", MSG_ROLE_PREFILL);
    assert_int_equal(dial(&d, e_url), KVS_OK);
    struct event failed = expect(&d, EV_DIAL_FAILED, 3000);
    assert_int_equal(failed.status, KVS_REQ_DENIED);
    struct event down = expect(&e, EV_DOWN, 3000);
    assert_int_equal(down.status, KVS_REQ_DENIED);
    assert_string_equal(down.text, "another model");
    endpoint_stop(&d);
}

static void test_protocol_versions_must_meet(void **state)
{
    (void)state;
    int fd = raw_connect();
    raw_hello(fd, "future", MSG_PROTOCOL_MAX + 1);
    errno = 0;
    assert_int_equal(expect_closed(fd), KVS_PEER_MISMATCH);
    assert_int_equal(count_events(&e, EV_UP), 0);
}

/* ---- addresses ---- */

struct listening {
    const char *url;
    kvs_status status;
    struct kvs_error err;
};

static void try_listen(void *arg)
{
    struct listening *l = arg;
    char url[256];
    l->status = net_rpc_listen(e.rpc, l->url, url, sizeof url, &l->err);
}

static void expect_no_listening(const char *url, const char *part)
{
    struct listening l = {.url = url};
    on_loop(&e, try_listen, &l);
    assert_int_equal(l.status, KVS_SELF_CONFIG);
    if (strstr(l.err.text, part) == NULL) {
        fail_msg("%s: \"%s\" does not say %s", url, l.err.text, part);
    }
}

static void test_addresses_in_use_and_impossible_ones(void **state)
{
    (void)state;
    char path[200], url[256], bound[256], longer[400];
    expect_no_listening(e_url, "in use");
    expect_no_listening("tcp://127.0.0.1", "tcp://HOST:PORT");
    expect_no_listening("udp://127.0.0.1:5", "tcp://HOST:PORT");
    expect_no_listening("ipc:///no/such/folder/x.sock", "cannot listen");
    (void)snprintf(url, sizeof url, "ipc://%s/busy.sock", test_dir);
    listen_on(&e, url, bound, sizeof bound);
    assert_string_equal(bound, url);
    expect_no_listening(url, "in use");
    memset(longer, 'a', sizeof longer - 1);
    longer[150] = '\0';
    memcpy(longer, "ipc:///", 7);
    expect_no_listening(longer, "longer");
    (void)snprintf(path, sizeof path, "%s/file", test_dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    (void)snprintf(url, sizeof url, "ipc://%s", path);
    expect_no_listening(url, "no socket");
    honest_peer_is_served();
}

static void test_a_stale_socket_file_is_removed(void **state)
{
    (void)state;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char url[256], bound[256];
    (void)snprintf(at.sun_path, sizeof at.sun_path, "%.80s/stale.sock", test_dir);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 1), 0);
    close(fd); /* the file stays, as after kill -9 */
    assert_int_equal(access(at.sun_path, F_OK), 0);
    (void)snprintf(url, sizeof url, "ipc://%s", at.sun_path);
    listen_on(&e, url, bound, sizeof bound);
    struct endpoint d = {0};
    endpoint_start(&d, "d", MSG_ROLE_PREFILL);
    assert_int_equal(dial(&d, url), KVS_OK);
    expect(&d, EV_UP, 3000);
    endpoint_stop(&d);
}

static void block_the_loop(void *arg)
{
    (void)arg;
    kvs_sleep_us(5000000); /* d finds out after two seconds, or somewhat later on a crowded machine */
}

/* Our own stall must not cost us our peers: the clocks start anew. */
static void test_own_stall(void **state)
{
    (void)state;
    struct endpoint d = {0};
    endpoint_start(&d, "d", MSG_ROLE_PREFILL);
    assert_int_equal(dial(&d, e_url), KVS_OK);
    expect(&d, EV_UP, 3000);
    expect(&e, EV_UP, 3000);
    on_loop(&e, block_the_loop, NULL);
    assert_false(happened(&e, EV_SUSPECT, 300));
    /* d has rightly given e up meanwhile (silent for over 2 s), which e learns as a close, not as a time-out */
    struct event down = expect(&e, EV_DOWN, 2000);
    assert_int_equal(down.status, KVS_PEER_LOST);
    assert_int_equal(expect(&d, EV_DOWN, 2000).status, KVS_PEER_TIMEOUT);
    expect(&d, EV_UP, 5000);
    endpoint_stop(&d);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_bytes_of_other_protocols),
        T(test_huge_length_and_unknown_type),
        T(test_frames_before_hello),
        T(test_wrong_streams),
        T(test_frames_in_the_wrong_order),
        T(test_one_byte_at_a_time_is_fine),
        T(test_no_hello_is_closed_after_three_seconds),
        T(test_a_peer_that_goes_silent_is_suspect_then_dead),
        T(test_a_frame_that_never_ends),
        T(test_a_peer_that_does_not_read_is_closed_at_8_mib),
        T(test_a_peer_that_gives_no_credit_stalls_only_its_call),
        T(test_too_many_calls),
        T(test_a_flood_of_connections_leaves_room_afterwards),
        T(test_connections_are_bounded),
        T(test_a_refused_dialer_learns_why),
        T(test_a_dialer_may_refuse_too),
        T(test_protocol_versions_must_meet),
        T(test_addresses_in_use_and_impossible_ones),
        T(test_a_stale_socket_file_is_removed),
        T(test_own_stall),
    };
    test_dir_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_dir_remove();
    return failed;
}
