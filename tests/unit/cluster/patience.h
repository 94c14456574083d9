/* patience.h - waits on a loop until something is true, without an allocation (the harness' wait_until makes some).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_CLUSTER_PATIENCE_H
#define KVS_TESTS_CLUSTER_PATIENCE_H

#include "sys/loop.h"
#include <stdbool.h>

struct patience {
    struct kvs_loop *loop;
    struct kvs_timer *timer;
    bool (*condition)(void);
    uint64_t until_us;
    bool met;
};

/* Allocates, here only. */
void patience_open(struct patience *p, struct kvs_loop *loop);
void patience_close(struct patience *p);
/* Runs the loop; the condition is looked at every millisecond. */
bool comes_true(struct patience *p, bool (*condition)(void), uint64_t wait_ms);

#endif
