/* memory.h - large zero-filled allocations of the engine: 64-byte aligned, on huge pages where that pays.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_MEMORY_H
#define KVS_ENGINE_MEMORY_H

#include <stddef.h>

void *eng_alloc(size_t bytes); /* NULL: no memory. free() it. */
/* What such an allocation makes resident at most: it is rounded up and zero-filled, and the allocator has its own header. */
size_t eng_alloc_resident(size_t bytes);

#endif
