/* box.h - what the transport tests share: a port with its wake-up, waiting for one kind of event with a deadline, page patterns.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_KVTRANSFER_BOX_H
#define KVS_TESTS_KVTRANSFER_BOX_H

#include "kvtransfer/port.h"
#include <pthread.h>

#define BOX_KEPT 512

struct box {
    struct kvt_port *port;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool woken;
    struct kvt_event *kept[BOX_KEPT]; /* events that nobody has asked for yet, oldest first */
    int kept_count;
};

/* Every failure here ends the program with a line on stderr: these are for tests and their helper programs alike. */
void box_open(struct box *b, const char *id, uint64_t epoch, bool loopback);
void box_close(struct box *b);
/* The next event of this kind for this peer (UINT32_MAX: any), within 20 s; others are kept for later. */
struct kvt_event box_wait(struct box *b, kvt_event_kind kind, uint32_t peer);
/* The same, but false when it has not come within timeout_us. */
bool box_try(struct box *b, kvt_event_kind kind, uint32_t peer, uint64_t timeout_us, struct kvt_event *out);
void box_check(kvs_status st, const char *what);

/* Byte patterns that differ between transfers and blocks. */
void pattern_fill(uint8_t *p, size_t n, uint64_t xfer, uint32_t block, uint16_t group);
bool pattern_is(const uint8_t *p, size_t n, uint64_t xfer, uint32_t block, uint16_t group);

#endif
