/* rig.h - a router in this process and scripted workers that speak the real protocol over real control streams, for tests of the edge.
 * Each has a thread and a loop of its own; tests look at counters and set the script through the calls below (any thread).
 * A worker's answer to any prompt is the script's text, one byte a token (vocabulary of the tiny test model), then EOS.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_ROUTER_RIG_H
#define KVS_TESTS_ROUTER_RIG_H

#include "router/edge/dispatch.h"
#include "router/edge/http.h"

#include <stdatomic.h>

struct rig_router;
struct rig_options {
    struct rtr_config core;
    uint64_t head_after_us, comment_every_us, client_stall_us;
};
struct rig_router *rig_router_start(const struct rig_options *o);
void rig_router_stop(struct rig_router *r);
const char *rig_http_host_port(const struct rig_router *r); /* "127.0.0.1:12345" */
const char *rig_control_url(const struct rig_router *r);

struct rig_script {
    char text[65536];
    _Atomic uint32_t token_us;     /* between two tokens */
    _Atomic int32_t hang_after;    /* tokens; -1: never */
    _Atomic int32_t die_after;     /* closes its connection after so many tokens of a sequence; -1: never */
    _Atomic int32_t refuse;        /* status of END instead of taking a Generate; 0: takes it */
    _Atomic int32_t repeat;        /* sends each entry so many times more */
    /* what was seen */
    _Atomic uint32_t generates, aborts, cancels, pauses, resumes, running;
    _Atomic uint32_t last_placement, last_prompt_tokens, last_max_tokens, last_first_index;
    _Atomic bool tokens_open;
    _Atomic uint32_t lives; /* times its Tokens call was opened: more than once means that the router had lost it */
};
struct rig_worker;
struct rig_worker *rig_worker_start(const char *control_url, const char *id, msg_role role, const char *linked_to, struct rig_script *script);
void rig_worker_stop(struct rig_worker *w);
void rig_script_init(struct rig_script *s, const char *text);

/* Raw HTTP over a socket. Returns the descriptor. */
int rig_connect(const struct rig_router *r);
void rig_send(int fd, const char *text);
/* Reads until the other side closes, or `until` was seen (NULL: only close), or timeout_ms passed: false. */
bool rig_read(int fd, struct kvs_buf *out, const char *until, int timeout_ms);
struct rig_reply {
    int status;
    char head[8192];
    struct kvs_buf body; /* chunked coding undone */
};
/* One request on a connection of its own. */
void rig_request(const struct rig_router *r, const char *method, const char *path, const char *body, struct rig_reply *out);
void rig_reply_fini(struct rig_reply *p);
bool rig_wait(bool (*cond)(void *), void *arg, int timeout_ms);
/* Waits until /health/ready says so. */
void rig_wait_ready(const struct rig_router *r);
/* The joined text of a stream of events (chat or completions); *done_out: [DONE] was seen; *error_out: an error event was. */
void rig_join_stream(const struct kvs_buf *body, char *text_out, size_t cap, bool *done_out, bool *error_out);

#endif
