/* etcd.c - see etcd.h. libcurl's multi interface, driven by the loop: its sockets become watches, its timeout a timer.
 * libcurl may not be entered again from its own callbacks, so these only store bytes; what is complete is looked at in
 * harvest(), after curl_multi_socket_action has returned, and only there users are called.
 *
 *   call:  sent to endpoint i --200--> done(KVS_OK)
 *                             --400, 401, 404, 429--> done(what etcd decided)
 *                             --refused, reset, slow, 5xx, not understood--> endpoint i+1, or done(KVS_PEER_*) after all
 *   watch: POST --{"created":true} within 3 s--> lines ... --ended, or endpoint i found dead by a call--> on_watch_end
 *   both:  memory or descriptors lacking here (a socket that the loop cannot watch, for one) --> done, on_watch_end(KVS_SELF_*)
 * A transfer whose socket nobody watches would not stand still: libcurl's own timers may still read from it once or twice, enough for a
 * watch to begin well and then say nothing for ever. So it ends at once.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/etcd.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define ANSWER_MAX ((size_t)8 << 20)
#define BODY_MAX ((size_t)4 << 20)
#define ARENA_MAX ((size_t)32 << 20)
#define CONNECT_MS 1000L
#define WATCH_CREATED_US 3000000u
#define ENDPOINT_MAX 264
#define USER_MAX 256
#define TOKEN_MAX 1024

struct transfer { /* what calls and the watch have in common */
    CURL *easy;   /* NULL: not under way */
    bool finished;
    CURLcode result;
    kvs_status cause; /* not KVS_OK: what was lacking here, and it cannot go on */
    uint32_t endpoint;
    struct kvs_buf body, answer;
    struct curl_slist *headers; /* with a token: its own */
    char message[CURL_ERROR_SIZE];
};
struct call {
    struct transfer t;
    bool used;
    bool waits;    /* for a token */
    bool tried_in; /* a fresh token was fetched for it once */
    net_etcd_op op;
    uint32_t tries;
    net_etcd_done_fn done;
    void *user;
};
/* Owner thread: the loop's. */
struct net_etcd {
    struct kvs_loop *loop;
    struct net_etcd_events ev;
    CURLM *multi;
    bool global;
    struct kvs_timer *timer, *guard;
    char endpoint[NET_ETCD_ENDPOINTS_MAX][ENDPOINT_MAX];
    uint32_t endpoint_count, current;
    struct call call[NET_ETCD_CALLS_MAX + 1];                  /* the last one for NET_ETCD_AUTH */
    char user[USER_MAX], password[USER_MAX], token[TOKEN_MAX]; /* user "": no authentication */
    struct transfer watch;
    bool watch_created;
    bool watch_deaf;      /* by failpoint: what comes is thrown away */
    size_t watch_scanned; /* bytes of its buffer that hold no newline */
    uint64_t watch_id;    /* counts watches: one that a callback replaced is noticed */
};

static void harvest(struct net_etcd *e);

/* ---- libcurl and the loop ---- */

static void give_up(struct net_etcd *e, struct transfer *t)
{
    if (t->easy != NULL) {
        (void)curl_multi_remove_handle(e->multi, t->easy);
        t->cause = KVS_SELF_NOMEM;
    }
}

/* After libcurl has been at work. When it could not do all of it, it does not say whose sockets and times it has lost track of, and 7.88 may
 * divide by zero when it goes on. So nothing goes on there: all transfers end, and the next one makes a new multi handle. */
static void worked(struct net_etcd *e, CURLMcode result)
{
    if (result != CURLM_OK) {
        for (uint32_t i = 0; i <= NET_ETCD_CALLS_MAX; i++) {
            give_up(e, &e->call[i].t);
        }
        give_up(e, &e->watch);
        (void)curl_multi_cleanup(e->multi);
        e->multi = NULL;
        kvs_timer_set(e->timer, UINT64_MAX);
    }
    harvest(e);
}

static void on_socket_ready(void *user, int fd, uint32_t events)
{
    struct net_etcd *e = user;
    int running;
    int bits = (events & EPOLLIN ? CURL_CSELECT_IN : 0) | (events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
               (events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_IN | CURL_CSELECT_ERR : 0);
    if (e->multi == NULL) {
        return;
    }
    worked(e, curl_multi_socket_action(e->multi, fd, bits, &running));
}

static void on_time(void *user, uint64_t now_us)
{
    struct net_etcd *e = user;
    int running;
    (void)now_us;
    worked(e, curl_multi_socket_action(e->multi, CURL_SOCKET_TIMEOUT, 0, &running));
}

/* A socket that cannot be watched ends its transfer, in harvest(): telling libcurl of it (-1) would make its multi handle fail every
 * transfer from then on, for as long as this process lives. */
static int socket_callback(CURL *easy, curl_socket_t fd, int what, void *user, void *socket_user)
{
    struct net_etcd *e = user;
    struct kvs_watch *w = socket_user;
    uint32_t events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    void *t = NULL;
    kvs_status s = KVS_OK;
    if (what == CURL_POLL_REMOVE) {
        if (w != NULL) {
            kvs_watch_remove(w);
        }
        (void)curl_multi_assign(e->multi, fd, NULL);
    } else if (w != NULL) {
        s = kvs_watch_events(w, events);
    } else {
        s = KVS_FAILPOINT("etcd.unwatched_socket") ? KVS_SELF_NOMEM
                                                   : kvs_loop_watch(e->loop, fd, events, on_socket_ready, e, &w);
        if (s == KVS_OK && curl_multi_assign(e->multi, fd, w) != CURLM_OK) {
            kvs_watch_remove(w);
            s = KVS_SELF_NOMEM;
        }
    }
    if (s != KVS_OK && curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&t) == CURLE_OK && t != NULL) {
        ((struct transfer *)t)->cause = s;
    }
    return 0;
}

static int timer_callback(CURLM *multi, long timeout_ms, void *user)
{
    struct net_etcd *e = user;
    (void)multi;
    kvs_timer_set(e->timer, timeout_ms < 0 ? UINT64_MAX : kvs_now_us() + (uint64_t)timeout_ms * 1000);
    return 0;
}

static size_t store(char *bytes, size_t size, size_t count, void *user)
{
    struct transfer *t = user;
    kvs_status s = kvs_buf_append(&t->answer, bytes, size * count);
    t->cause = kvs_is_self(s) ? s : t->cause;
    return s == KVS_OK ? size * count : 0; /* 0 ends the transfer */
}

/* Unless there is one. */
static bool make_multi(struct net_etcd *e)
{
    if (e->multi == NULL) {
        CURLM *m = curl_multi_init();
        bool ok = m != NULL && curl_multi_setopt(m, CURLMOPT_SOCKETFUNCTION, socket_callback) == CURLM_OK &&
                  curl_multi_setopt(m, CURLMOPT_SOCKETDATA, e) == CURLM_OK &&
                  curl_multi_setopt(m, CURLMOPT_TIMERFUNCTION, timer_callback) == CURLM_OK &&
                  curl_multi_setopt(m, CURLMOPT_TIMERDATA, e) == CURLM_OK;
        if (ok) {
            e->multi = m;
        } else if (m != NULL) {
            (void)curl_multi_cleanup(m);
        }
    }
    return e->multi != NULL;
}

/* ---- transfers ---- */

static void transfer_stop(struct net_etcd *e, struct transfer *t)
{
    if (t->easy != NULL) {
        (void)curl_multi_remove_handle(e->multi, t->easy);
        curl_easy_cleanup(t->easy);
        t->easy = NULL;
    }
    curl_slist_free_all(t->headers);
    t->headers = NULL;
    t->finished = false;
    t->result = CURLE_OK;
    t->cause = KVS_OK;
    kvs_buf_clear(&t->answer);
}

static bool add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);
    *list = longer != NULL ? longer : *list;
    return longer != NULL;
}

static bool make_headers(const struct net_etcd *e, struct transfer *t, bool watch)
{
    char line[TOKEN_MAX + 32];
    bool ok = add_header(&t->headers, "Content-Type: application/json") && add_header(&t->headers, "Expect:");
    if (watch) {
        ok = ok && add_header(&t->headers, "Grpc-Metadata-hasleader: true");
    }
    if (e->token[0] != '\0') {
        kvs_format(line, sizeof line, "Authorization: %s", e->token);
        ok = ok && add_header(&t->headers, line);
    }
    return ok;
}

/* An easy handle with all its options; false: out of memory, there is none. */
static bool transfer_make(struct net_etcd *e, struct transfer *t, const char *path, bool watch)
{
    char url[ENDPOINT_MAX + 64];
    t->easy = curl_easy_init();
    if (t->easy == NULL) {
        return false;
    }
    CURL *c = t->easy;
    kvs_format(url, sizeof url, "http://%s%s", e->endpoint[t->endpoint], path);
    bool ok = make_headers(e, t, watch) && curl_easy_setopt(c, CURLOPT_URL, url) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_HTTPHEADER, t->headers) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE, (long)t->body.len) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_POSTFIELDS, kvs_buf_text(&t->body)) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_PROXY, "") == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http") == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, watch ? 0L : (long)NET_ETCD_TRY_MS) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_TCP_KEEPIDLE, 2L) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_TCP_KEEPINTVL, 1L) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, store) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_WRITEDATA, t) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_ERRORBUFFER, t->message) == CURLE_OK;
    ok = ok && curl_easy_setopt(c, CURLOPT_PRIVATE, t) == CURLE_OK;
    t->message[0] = '\0';
    if (!ok) {
        curl_easy_cleanup(c);
        curl_slist_free_all(t->headers);
        t->easy = NULL;
        t->headers = NULL;
    }
    return ok;
}

static kvs_status transfer_start(struct net_etcd *e, struct transfer *t, const char *path, bool watch)
{
    transfer_stop(e, t);
    if (!make_multi(e) || !transfer_make(e, t, path, watch)) {
        return KVS_SELF_NOMEM;
    }
    if (curl_multi_add_handle(e->multi, t->easy) != CURLM_OK) {
        curl_easy_cleanup(t->easy);
        curl_slist_free_all(t->headers);
        t->easy = NULL;
        t->headers = NULL;
        return KVS_SELF_NOMEM;
    }
    return KVS_OK;
}

/* ---- calls ---- */

static const char *path_of(net_etcd_op op)
{
    switch (op) {
    case NET_ETCD_GRANT: return "/v3/lease/grant";
    case NET_ETCD_KEEPALIVE: return "/v3/lease/keepalive";
    case NET_ETCD_REVOKE: return "/v3/lease/revoke";
    case NET_ETCD_RANGE: return "/v3/kv/range";
    case NET_ETCD_PUT: return "/v3/kv/put";
    case NET_ETCD_DELETE: return "/v3/kv/deleterange";
    case NET_ETCD_TXN: return "/v3/kv/txn";
    case NET_ETCD_AUTH: return "/v3/auth/authenticate";
    }
    return "";
}

static void call_end(struct net_etcd *e, struct call *c, kvs_status s, const char *text,
                     const struct net_etcd_answer *answer)
{
    net_etcd_done_fn done = c->done;
    void *user = c->user;
    transfer_stop(e, &c->t);
    kvs_buf_fini(&c->t.body);
    kvs_buf_fini(&c->t.answer);
    c->used = false;
    done(user, s, text, answer);
}

/* What an answer that is not 200 means; a KVS_PEER_ one is worth another endpoint. */
static kvs_status judge(long http, int code)
{
    enum {
        GRPC_DEADLINE = 4,
        GRPC_NOT_FOUND = 5,
        GRPC_DENIED = 7,
        GRPC_EXHAUSTED = 8,
        GRPC_UNAVAILABLE = 14,
        GRPC_UNAUTHENTICATED = 16
    };
    if (http >= 500 || code == GRPC_UNAVAILABLE || code == GRPC_DEADLINE) {
        return KVS_PEER_LOST;
    }
    if (http == 401 || http == 403 || code == GRPC_DENIED || code == GRPC_UNAUTHENTICATED) {
        return KVS_REQ_DENIED;
    }
    if (http == 404 && code == GRPC_NOT_FOUND) {
        return KVS_REQ_NOT_FOUND;
    }
    if (http == 429 || code == GRPC_EXHAUSTED) {
        return KVS_BUSY_FULL;
    }
    return http == 400 ? KVS_REQ_INVALID : KVS_PEER_PROTOCOL; /* a redirect, a 404 of something that is no etcd */
}

/* ---- tokens ---- */

/* The calls that waited when the login ended; what their callbacks start is none of them. */
static void end_wait(struct net_etcd *e, kvs_status s, const char *text)
{
    bool waited[NET_ETCD_CALLS_MAX];
    for (uint32_t i = 0; i < NET_ETCD_CALLS_MAX; i++) {
        waited[i] = e->call[i].used && e->call[i].waits;
        e->call[i].waits = false;
    }
    for (uint32_t i = 0; i < NET_ETCD_CALLS_MAX; i++) {
        struct call *c = &e->call[i];
        if (!waited[i]) {
            continue;
        }
        kvs_status started = s == KVS_OK ? transfer_start(e, &c->t, path_of(c->op), false) : s;
        if (started != KVS_OK) {
            call_end(e, c, started, s == KVS_OK ? "out of memory" : text, NULL);
        }
    }
}

static void login_done(void *user, kvs_status s, const char *text, const struct net_etcd_answer *answer)
{
    struct net_etcd *e = user;
    if (s == KVS_OK) {
        size_t n = strlen(answer->token);
        bool plain = n > 0 && n < sizeof e->token && strpbrk(answer->token, "\r\n") == NULL;
        s = plain ? KVS_OK : KVS_PEER_PROTOCOL;
        text = "etcd gave no token that can be used";
        memcpy(e->token, plain ? answer->token : "", plain ? n + 1 : 1);
    }
    end_wait(e, s == KVS_REQ_INVALID ? KVS_REQ_DENIED : s, text);
}

/* Fetches a token, unless that is under way. */
static kvs_status login(struct net_etcd *e)
{
    struct call *c = &e->call[NET_ETCD_CALLS_MAX];
    if (c->used) {
        return KVS_OK;
    }
    *c = (struct call){.op = NET_ETCD_AUTH, .done = login_done, .user = e, .t.endpoint = e->current};
    kvs_buf_init(&c->t.body, BODY_MAX);
    kvs_buf_init(&c->t.answer, ANSWER_MAX);
    e->token[0] = '\0';
    kvs_status s = net_etcd_put_login(&c->t.body, e->user, e->password);
    if (s == KVS_OK) {
        s = transfer_start(e, &c->t, path_of(c->op), false);
    }
    c->used = s == KVS_OK;
    if (s != KVS_OK) {
        kvs_buf_fini(&c->t.body);
    }
    return s;
}

kvs_status net_etcd_login(struct net_etcd *e, const char *user, const char *password, struct kvs_error *err)
{
    if (strlen(user) >= sizeof e->user || strlen(password) >= sizeof e->password) {
        return kvs_fail(err, KVS_SELF_CONFIG, "user and password of etcd have at most %u bytes", USER_MAX - 1);
    }
    memcpy(e->user, user, strlen(user) + 1);
    memcpy(e->password, password, strlen(password) + 1);
    return KVS_OK;
}

static kvs_status call_start(struct net_etcd *e, struct call *c)
{
    if (e->user[0] == '\0' || e->token[0] != '\0') {
        return transfer_start(e, &c->t, path_of(c->op), false);
    }
    c->waits = true;
    return login(e);
}

/* ---- how transfers end ---- */

static void watch_end(struct net_etcd *e, kvs_status why, const char *text)
{
    transfer_stop(e, &e->watch);
    e->watch_id++;
    kvs_timer_set(e->guard, UINT64_MAX);
    e->ev.on_watch_end(e->ev.user, why, text);
}

/* It is over: with the server's answer or without. */
static bool is_over(const struct transfer *t)
{
    return t->easy != NULL && (t->finished || t->cause != KVS_OK);
}

/* false: it is over, and there is no answer. */
static bool has_answer(const struct transfer *t)
{
    return t->finished && t->result == CURLE_OK;
}

static void transfer_fault(const struct transfer *t, kvs_status *s_out, char *text_out, size_t cap,
                           const struct net_etcd *e)
{
    bool timed_out = t->result == CURLE_OPERATION_TIMEDOUT, too_large = t->result == CURLE_WRITE_ERROR;
    *s_out = t->cause != KVS_OK ? t->cause
             : timed_out        ? KVS_PEER_TIMEOUT
             : too_large        ? KVS_PEER_PROTOCOL
                                : KVS_PEER_LOST;
    const char *cause = t->cause != KVS_OK        ? "memory or descriptors are lacking here"
                        : too_large               ? "its answer is larger than this client takes"
                        : t->message[0] != '\0' ? t->message
                                                  : curl_easy_strerror(t->result);
    kvs_format(text_out, cap, "etcd at %s: %s", e->endpoint[t->endpoint], cause);
}

/* Looks at a finished try. KVS_OK or what etcd decided: over; KVS_PEER_*: this endpoint is no good. */
static kvs_status look_at_answer(struct net_etcd *e, struct call *c, struct kvs_arena *arena,
                                 struct net_etcd_answer *answer, char *text, size_t cap)
{
    long http = 0;
    kvs_status s;
    if (!has_answer(&c->t)) {
        transfer_fault(&c->t, &s, text, cap, e);
        return s;
    }
    (void)curl_easy_getinfo(c->t.easy, CURLINFO_RESPONSE_CODE, &http);
    if (http == 200) {
        struct kvs_error err = {0};
        s = net_etcd_answer_decode(kvs_buf_text(&c->t.answer), c->t.answer.len, arena, answer, &err);
        if (s == KVS_OK) {
            return s;
        }
        if (kvs_is_self(s)) {
            kvs_format(text, cap, "%s", err.text);
            return s;
        }
        int code = net_etcd_error_decode(kvs_buf_text(&c->t.answer), c->t.answer.len, text, cap);
        if (code != 0) { /* what streams tells its errors under 200 */
            return judge(400, code);
        }
        kvs_format(text, cap, "etcd at %s: %s", e->endpoint[c->t.endpoint], err.text);
        return KVS_PEER_PROTOCOL;
    }
    char cause[192];
    int code = net_etcd_error_decode(kvs_buf_text(&c->t.answer), c->t.answer.len, cause, sizeof cause);
    kvs_format(text, cap, "etcd at %s: %s (HTTP %ld)", e->endpoint[c->t.endpoint], cause, http);
    return judge(http, code);
}

static void call_finished(struct net_etcd *e, struct call *c)
{
    struct kvs_arena arena;
    struct net_etcd_answer answer = {0};
    char text[320] = "";
    uint32_t failed = c->t.endpoint;
    kvs_arena_init(&arena, ARENA_MAX);
    kvs_status s = look_at_answer(e, c, &arena, &answer, text, sizeof text);
    bool bad_endpoint = kvs_is_peer(s);
    if (bad_endpoint && e->current == failed) {
        e->current = (failed + 1) % e->endpoint_count;
    }
    if (s == KVS_REQ_DENIED && c->op != NET_ETCD_AUTH && e->user[0] != '\0' && !c->tried_in) {
        c->tried_in = c->waits = true; /* a token dies with its server, or of disuse */
        transfer_stop(e, &c->t);
        if (login(e) != KVS_OK) {
            call_end(e, c, KVS_SELF_NOMEM, "out of memory", NULL);
        }
    } else if (bad_endpoint && ++c->tries < e->endpoint_count) {
        c->t.endpoint = (failed + 1) % e->endpoint_count;
        if (transfer_start(e, &c->t, path_of(c->op), false) != KVS_OK) {
            call_end(e, c, KVS_SELF_NOMEM, "out of memory", NULL);
        }
    } else {
        call_end(e, c, s, text, s == KVS_OK ? &answer : NULL);
    }
    kvs_arena_fini(&arena);
    if (bad_endpoint && e->watch.easy != NULL && e->watch.endpoint == failed) {
        watch_end(e, s, text);
    }
}

kvs_status net_etcd_call(struct net_etcd *e, net_etcd_op op, const struct kvs_buf *body, net_etcd_done_fn done,
                         void *user)
{
    struct call *c = NULL;
    for (uint32_t i = 0; c == NULL && i < NET_ETCD_CALLS_MAX; i++) {
        c = e->call[i].used ? NULL : &e->call[i];
    }
    if (c == NULL) {
        return KVS_BUSY_QUEUE;
    }
    *c = (struct call){.op = op, .done = done, .user = user, .t.endpoint = e->current};
    kvs_buf_init(&c->t.body, BODY_MAX);
    kvs_buf_init(&c->t.answer, ANSWER_MAX);
    kvs_status s = kvs_buf_append(&c->t.body, kvs_buf_text(body), body->len);
    if (s == KVS_OK) {
        s = call_start(e, c);
    }
    if (s != KVS_OK) {
        kvs_buf_fini(&c->t.body);
        return s == KVS_BUSY_FULL ? KVS_REQ_TOO_LARGE : s;
    }
    c->used = true;
    return KVS_OK;
}

void net_etcd_revoke_now(struct net_etcd *e, int64_t lease, uint32_t limit_ms)
{
    struct transfer t = {.endpoint = e->current};
    kvs_buf_init(&t.body, BODY_MAX);
    kvs_buf_init(&t.answer, ANSWER_MAX);
    if (net_etcd_put_lease(&t.body, lease) == KVS_OK && transfer_make(e, &t, path_of(NET_ETCD_REVOKE), false)) {
        (void)curl_easy_setopt(t.easy, CURLOPT_TIMEOUT_MS, (long)limit_ms);
        (void)curl_easy_perform(t.easy);
        curl_easy_cleanup(t.easy);
    }
    curl_slist_free_all(t.headers);
    kvs_buf_fini(&t.body);
    kvs_buf_fini(&t.answer);
}

/* ---- the watch ---- */

/* false: the watch is another one now, or none. */
static bool take_line(struct net_etcd *e, size_t n)
{
    struct kvs_arena arena;
    struct net_etcd_watch_line line;
    struct kvs_error err = {0};
    uint64_t id = e->watch_id;
    kvs_arena_init(&arena, ARENA_MAX);
    kvs_status s = net_etcd_watch_decode(e->watch.answer.data, n, &arena, &line, &err);
    if (s != KVS_OK) {
        watch_end(e, s, err.text);
    } else {
        if (line.created) {
            e->watch_created = true;
            kvs_timer_set(e->guard, UINT64_MAX);
        }
        e->ev.on_line(e->ev.user, &line);
    }
    kvs_arena_fini(&arena);
    return e->watch_id == id;
}

static void take_lines(struct net_etcd *e)
{
    for (;;) {
        struct kvs_buf *b = &e->watch.answer;
        const uint8_t *end =
            b->len > e->watch_scanned ? memchr(b->data + e->watch_scanned, '\n', b->len - e->watch_scanned) : NULL;
        if (end == NULL) {
            e->watch_scanned = b->len;
            return;
        }
        size_t n = (size_t)(end - b->data);
        e->watch_scanned = 0;
        if (n > 0 && !take_line(e, n)) {
            return;
        }
        kvs_buf_consume(b, n + 1);
    }
}

static void watch_finished(struct net_etcd *e)
{
    char text[320], cause[192];
    kvs_status s = KVS_PEER_LOST;
    long http = 0;
    (void)curl_easy_getinfo(e->watch.easy, CURLINFO_RESPONSE_CODE, &http);
    if (!has_answer(&e->watch)) {
        transfer_fault(&e->watch, &s, text, sizeof text, e);
    } else if (http != 200) {
        int code = net_etcd_error_decode(kvs_buf_text(&e->watch.answer), e->watch.answer.len, cause, sizeof cause);
        kvs_format(text, sizeof text, "etcd at %s: %s (HTTP %ld)", e->endpoint[e->watch.endpoint], cause, http);
        s = judge(http, code);
    } else {
        kvs_format(text, sizeof text, "etcd at %s ended the watch", e->endpoint[e->watch.endpoint]);
    }
    if (kvs_is_peer(s) && e->current == e->watch.endpoint) {
        e->current = (e->current + 1) % e->endpoint_count;
    }
    watch_end(e, s, text);
}

static void on_guard(void *user, uint64_t now_us)
{
    struct net_etcd *e = user;
    (void)now_us;
    if (e->watch.easy != NULL && !e->watch_created) {
        if (e->current == e->watch.endpoint) {
            e->current = (e->current + 1) % e->endpoint_count;
        }
        watch_end(e, KVS_PEER_TIMEOUT, "etcd does not begin the watch");
    }
}

kvs_status net_etcd_watch(struct net_etcd *e, const char *prefix, int64_t start_revision)
{
    net_etcd_unwatch(e);
    kvs_buf_clear(&e->watch.body);
    kvs_status s = net_etcd_put_watch(&e->watch.body, prefix, start_revision);
    e->watch.endpoint = e->current;
    e->watch_created = e->watch_deaf = false;
    e->watch_scanned = 0;
    if (s == KVS_OK) {
        s = transfer_start(e, &e->watch, "/v3/watch", true);
    }
    if (s == KVS_OK) {
        kvs_timer_set(e->guard, kvs_now_us() + WATCH_CREATED_US);
    }
    return s;
}

void net_etcd_unwatch(struct net_etcd *e)
{
    transfer_stop(e, &e->watch);
    e->watch_id++;
    kvs_timer_set(e->guard, UINT64_MAX);
}

/* ---- after libcurl has moved bytes ---- */

static void harvest(struct net_etcd *e)
{
    CURLMsg *m;
    int left;
    while (e->multi != NULL && (m = curl_multi_info_read(e->multi, &left)) != NULL) {
        void *t = NULL;
        if (m->msg == CURLMSG_DONE && curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t) == CURLE_OK) {
            ((struct transfer *)t)->finished = true;
            ((struct transfer *)t)->result = m->data.result;
        }
    }
    for (uint32_t i = 0; i <= NET_ETCD_CALLS_MAX; i++) {
        if (e->call[i].used && is_over(&e->call[i].t)) {
            call_finished(e, &e->call[i]);
        }
    }
    uint64_t id = e->watch_id;
    if (e->watch.easy != NULL && e->watch_created) {
        e->watch_deaf = e->watch_deaf || KVS_FAILPOINT("etcd.deaf_watch");
    }
    if (e->watch_deaf) {
        kvs_buf_clear(&e->watch.answer);
        e->watch_scanned = 0;
    } else if (e->watch.easy != NULL && e->watch_id == id) {
        take_lines(e);
    }
    if (e->watch_id == id && is_over(&e->watch)) {
        watch_finished(e);
    }
}

/* ---- life ---- */

bool net_etcd_is_url(const char *url)
{
    return strncmp(url, "etcd://", 7) == 0;
}

static bool plain_host_port(const char *text, size_t n)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]";
    size_t colon = n;
    uint32_t port = 0;
    for (size_t i = 0; i < n; i++) {
        if (strchr(allowed, text[i]) == NULL) {
            return false;
        }
        colon = text[i] == ':' ? i : colon;
    }
    for (size_t i = colon + 1; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || port > 65535) {
            return false;
        }
        port = port * 10 + (uint32_t)(text[i] - '0');
    }
    bool bracketed = n > 0 && text[0] == '[' && colon < n && colon > 1 && text[colon - 1] == ']';
    return colon > 0 && colon < n && port > 0 && port <= 65535 && (bracketed || memchr(text, ':', colon) == NULL);
}

static kvs_status read_endpoints(struct net_etcd *e, const char *url, struct kvs_error *err)
{
    const char *at = net_etcd_is_url(url) ? url + 7 : NULL;
    while (at != NULL) {
        size_t n = strcspn(at, ",/");
        if (!plain_host_port(at, n) || n >= ENDPOINT_MAX || e->endpoint_count == NET_ETCD_ENDPOINTS_MAX) {
            break;
        }
        kvs_format(e->endpoint[e->endpoint_count++], ENDPOINT_MAX, "%.*s", (int)n, at);
        at += n;
        if (*at == '\0' || strcmp(at, "/") == 0) {
            return KVS_OK;
        }
        if (*at++ != ',') {
            break;
        }
    }
    return kvs_fail(err, KVS_SELF_CONFIG, "\"%.100s\" is not etcd://HOST:PORT[,HOST:PORT] (at most %u endpoints)", url,
                    NET_ETCD_ENDPOINTS_MAX);
}

kvs_status net_etcd_create(struct kvs_loop *loop, const char *url, const struct net_etcd_events *ev,
                           struct net_etcd **out, struct kvs_error *err)
{
    struct net_etcd *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    }
    e->loop = loop;
    e->ev = *ev;
    kvs_buf_init(&e->watch.body, BODY_MAX);
    kvs_buf_init(&e->watch.answer, ANSWER_MAX);
    e->global = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
    kvs_status s = read_endpoints(e, url, err);
    if (s == KVS_OK && (kvs_timer_create(loop, on_time, e, &e->timer) != KVS_OK ||
                        kvs_timer_create(loop, on_guard, e, &e->guard) != KVS_OK || !e->global || !make_multi(e))) {
        s = kvs_fail(err, KVS_SELF_NOMEM, "out of memory for the etcd client");
    }
    if (s != KVS_OK) {
        net_etcd_destroy(e);
        return s;
    }
    e->current = (uint32_t)(kvs_random_u64() % e->endpoint_count); /* clients spread over the members */
    *out = e;
    return KVS_OK;
}

void net_etcd_destroy(struct net_etcd *e)
{
    if (e == NULL) {
        return;
    }
    for (uint32_t i = 0; i <= NET_ETCD_CALLS_MAX; i++) {
        if (e->call[i].used) {
            transfer_stop(e, &e->call[i].t);
            kvs_buf_fini(&e->call[i].t.body);
            kvs_buf_fini(&e->call[i].t.answer);
        }
    }
    transfer_stop(e, &e->watch);
    kvs_buf_fini(&e->watch.body);
    kvs_buf_fini(&e->watch.answer);
    if (e->multi != NULL) {
        (void)curl_multi_cleanup(e->multi);
    }
    kvs_timer_destroy(e->timer);
    kvs_timer_destroy(e->guard);
    if (e->global) {
        curl_global_cleanup();
    }
    free(e);
}
