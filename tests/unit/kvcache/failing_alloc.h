/* failing_alloc.h - an allocator whose n-th call fails, put in front of malloc and calloc by the linker (--wrap).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_FAILING_ALLOC_H
#define KVS_TESTS_FAILING_ALLOC_H

void failing_alloc_arm(int calls_before_failure); /* this many succeed, then all fail until disarmed */
void failing_alloc_disarm(void);

#endif
