/* peer_helper.c - a source in a process of its own: opens a port, connects to the test, sends what it is ordered to send.
 * Argument: the lane, "near" or "tcp". Ends when its stdin does.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/kvtransfer/peer_helper.h"

#include "kvtransfer/core/source.h"
#include "tests/unit/kvtransfer/box.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEER = 0, EPOCH_BASE = 1000 };

static uint8_t *pages; /* [group][block] */

static void send_one(struct box *b, struct kvt_source *s, const struct helper_order *o, uint16_t group, uint32_t block,
                     uint8_t *at)
{
    struct kvt_header h;
    bool logits = group == KVT_LOGITS_GROUP;
    uint64_t bytes = logits ? o->logits_bytes : o->page_bytes;
    pattern_fill(at, (size_t)bytes, o->xfer, block, group);
    box_check(kvt_source_post(s, logits ? KVT_LOGITS : KVT_PAGE, block, group, 0, bytes, &h), "post");
    box_check(kvt_send(b->port, PEER, &h, at, block), "send");
}

static void serve(struct box *b, const struct helper_order *o)
{
    struct kvt_source *s;
    uint32_t count = o->blocks * o->groups + (o->logits_bytes > 0);
    size_t bytes = (size_t)(o->blocks * o->groups * o->page_bytes + o->logits_bytes);
    box_check(kvt_source_create(&(struct kvt_source_config){o->sink_epoch, o->xfer, o->nonce, count, UINT64_MAX}, &s),
              "source");
    pages = malloc(bytes);
    if (pages == NULL)
        exit(9);
    for (uint32_t g = 0; g < o->groups; g++)
        for (uint32_t i = 0; i < o->blocks; i++)
            send_one(b, s, o, (uint16_t)g, i, pages + (size_t)(g * o->blocks + i) * o->page_bytes);
    if (o->logits_bytes > 0)
        send_one(b, s, o, KVT_LOGITS_GROUP, KVT_LOGITS_BLOCK, pages + (size_t)(o->blocks * o->groups) * o->page_bytes);
    struct helper_done done = {.xfer = o->xfer};
    kvs_status status;
    while (!kvt_source_take_end(s, &status, &done.pages_sent))
        kvt_source_sent(s, box_wait(b, KVT_EV_SENT, PEER).status);
    done.status = status;
    helper_write_fd(1, &done, sizeof done);
    kvt_source_destroy(s);
    free(pages);
}

/* UCX must not have taken over the signals of crashes (UCX_ERROR_SIGNALS); the sanitizers may. */
static bool signals_untouched(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const int signals[] = {SIGILL, SIGBUS, SIGFPE, SIGSEGV};
    for (int i = 0; i < 4; i++) {
        struct sigaction a;
        if (sigaction(signals[i], NULL, &a) != 0 || a.sa_handler != SIG_DFL)
            return false;
    }
#endif
    return true;
}

int main(int argc, char **argv)
{
    struct box b;
    struct helper_hello mine = {.epoch = EPOCH_BASE}, theirs;
    kvt_prepare_process(argc, argv);
    bool near = argc > 1 && strcmp(argv[1], "near") == 0;
    box_open(&b, "helper", EPOCH_BASE, false);
    box_check(kvt_peer_open(b.port, PEER, near ? KVT_LANE_NEAR : KVT_LANE_TCP), "open");
    struct kvt_event e = box_wait(&b, KVT_EV_ADDRESS, PEER);
    memcpy(mine.address, e.address, e.address_bytes);
    mine.address_bytes = e.address_bytes;
    kvt_probe_self(&mine.probe);
    helper_write_fd(1, &mine, sizeof mine);
    if (!helper_read_fd(0, &theirs, sizeof theirs))
        return 3;
    if (near && !kvt_probe_try(&theirs.probe))
        return 4;
    box_check(kvt_peer_connect(b.port, PEER, theirs.epoch, theirs.address, theirs.address_bytes), "connect");
    struct kvt_event up = box_wait(&b, KVT_EV_UP, PEER);
    if (strcmp(up.transport, near ? "cma" : "tcp") != 0)
        return 5;
    if (!signals_untouched())
        return 6;
    struct helper_order o;
    while (helper_read_fd(0, &o, sizeof o))
        serve(&b, &o);
    box_close(&b);
    return 0;
}
