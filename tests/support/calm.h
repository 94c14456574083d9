/* calm.h - how long this machine keeps a thread waiting. What is promised within a second or two cannot be seen on a machine that lets a thread wait
 * for as long: a test that asserts such a thing looks here first, and tries again in calmer times.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_CALM_H
#define KVS_TESTS_CALM_H

#include <stdint.h>

/* From now on a thread wakes up every 10 ms and looks at how late it is. One at a time. */
void tst_calm_begin(void);
/* The longest time since tst_calm_begin by which it was late. */
uint64_t tst_calm_end(void);

#endif
