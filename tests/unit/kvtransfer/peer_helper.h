/* peer_helper.h - what a test says to its helper programs over their stdin, and hears from their stdout.
 * A helper is another process with a port of its own (peer_helper.c) or a raw UCX sender (hostile_helper.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_KVTRANSFER_PEER_HELPER_H
#define KVS_TESTS_KVTRANSFER_PEER_HELPER_H

#include "kvtransfer/port.h"
#include <sys/types.h>

struct helper_hello { /* both ways, first */
    uint64_t epoch;
    uint64_t victim; /* address of a word in the test, for the put that must not succeed */
    uint32_t address_bytes;
    uint8_t address[KVT_ADDRESS_MAX];
    struct kvt_probe probe;
    uint32_t near; /* test to helper: use the near lane */
    uint64_t address_sum; /* kvt_checksum of the address; hostile_helper only, for tests/integration/stranger_test.py */
};
struct helper_order {
    uint64_t sink_epoch, xfer, nonce, page_bytes;
    uint32_t blocks, groups;
    uint64_t logits_bytes; /* 0: none */
    uint32_t hostile;      /* hostile_helper: 0 only good pages; 1 a burst of nonsense first; 2 the burst, then a page of block 0 with
                            * a wrong checksum, twice, and the last block's, twice; 3 sends big messages and stops in their midst */
};
struct helper_done {
    uint64_t xfer;
    uint32_t status, pages_sent;
};

struct helper {
    pid_t pid; /* 0: gone */
    int in, out;
    struct helper_hello hello;
};

/* Starts build/<preset>/tests/NAME with KVASIR_FAILPOINTS_SET = faults ("" for none). */
void helper_start(struct helper *h, const char *name, const char *lane, const char *faults);
void helper_write(const struct helper *h, const void *p, size_t n);
bool helper_read(const struct helper *h, void *p, size_t n); /* false: end of stream */
void helper_kill(struct helper *h);                          /* SIGKILL, not reaped */
int helper_reap(struct helper *h);                           /* closes its stdin and waits; the wait status */

/* The helpers' own side. */
bool helper_read_fd(int fd, void *p, size_t n);
void helper_write_fd(int fd, const void *p, size_t n);

#endif
