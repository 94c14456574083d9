/* pair_world.h - what pair_random_test.c moves about: nodes with their cores, links with control messages, KV messages, transfers at the sink's
 * port, and a record of what each request may be told.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_PAIR_WORLD_H
#define KVS_TESTS_PAIR_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "decode-worker/core/decode.h"
#include "prefill-worker/core/prefill.h"
#include "tests/unit/worker/fake_device.h"

#define NODES 3
#define CONTEXT 96
#define REQUESTS 40
#define XFERS 64
#define QUEUE 4096
#define SEQS 12

enum control { C_CALL, C_END, C_ACK, C_NACK, C_CANCEL };
struct control_msg {
    enum control kind;
    uint64_t conn;
    uint32_t stream;
    struct msg_prefill prefill; /* tokens and wants owned */
    bool fetch;
    uint64_t deadline;
    struct msg_end end;
};
struct kv_msg {
    bool used, receiving, doubled;
    uint32_t from, to, slot, page; /* page: at the source, which is read when the message lands */
    uint64_t conn, cookie, row;
    struct kvt_header h;
};
struct xfer { /* at the sink: what the port and the rpc edge keep */
    bool used, port, sample_out;
    uint64_t xfer, conn, row;
    uint32_t node, peer, stream;
    bool call_open;
    struct kvt_sink *sink;
    uint32_t *page; /* by slot */
    uint32_t slots;
};
struct node {
    struct wrk_sched *s;
    struct fake_kv kv;
    struct pfw *p;
    struct dcw *d;
    struct wrk_result results[SEQS];
    uint64_t rows[SEQS];
    uint32_t layers;
    uint64_t router;               /* connection number */
    struct dcw_event local[QUEUE]; /* from the port and the sampler, in order */
    struct msg_end local_end[QUEUE];
    uint32_t *local_missing[QUEUE];
    uint32_t local_head, local_count;
};
struct link {
    uint64_t conn;   /* 0: down */
    bool closing[2]; /* [0]: smaller node's side is not CLOSED yet */
    struct control_msg q[2][256];
    uint32_t head[2], count[2];
};
struct request {
    bool used, ended, lost, last_entry;
    uint32_t node, stream, prompt, first, max, next, total, salt;
    uint64_t router;
    int32_t ids[CONTEXT + 1], want[CONTEXT];
};
struct world {
    struct kvs_rng rng;
    struct kvc_layout l;
    struct node node[NODES];
    struct link link[NODES][NODES];
    struct kv_msg kv[2048];
    struct xfer xfer[XFERS];
    struct request req[REQUESTS];
    uint64_t now, counter;
    uint32_t stream, asked;
    bool calm, tree;
    int32_t heads[3][CONTEXT]; /* what prompts have in common */
    uint64_t cached[2], evicted, subset, fetches, fetched; /* tokens found: by decode and by prefill sides; calls that want less than everything */
    uint64_t ends, tokens, pages, breaks, fallbacks, remote, preemptions, acks, nacks, errors, aborted;
};

#endif
