/* region.c - KV memory. On tcp and cma UCX needs no registration, so a region is plain zero-filled memory, 2 MiB aligned and offered
 * to the kernel for huge pages: a page that travels is read and written once, in order. Untouched parts cost nothing.
 * Where registration is dear (RDMA, CUDA) the handle will hold it; callers go through these two calls for that reason.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvtransfer/port.h"

#include <string.h>
#include <sys/mman.h>

#define ALIGN (2ull << 20)

kvs_status kvt_region_create(struct kvt_port *p, uint64_t bytes, struct kvt_region *out)
{
    (void)p;
    KVS_ASSERT(out != NULL);
    if (bytes == 0 || bytes > (uint64_t)SIZE_MAX / 2)
        return KVS_REQ_INVALID;
    uint64_t mapped = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    uint8_t *raw = mmap(NULL, (size_t)(mapped + ALIGN), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return KVS_SELF_NOMEM;
    uint64_t head = (ALIGN - (uint64_t)(uintptr_t)raw % ALIGN) % ALIGN, tail = ALIGN - head;
    if (head > 0)
        munmap(raw, (size_t)head);
    if (tail > 0)
        munmap(raw + head + mapped, (size_t)tail);
    (void)madvise(raw + head, (size_t)mapped, MADV_HUGEPAGE); /* a wish */
    *out = (struct kvt_region){.base = raw + head, .bytes = bytes};
    return KVS_OK;
}

void kvt_region_destroy(struct kvt_port *p, struct kvt_region *r)
{
    (void)p;
    if (r == NULL || r->base == NULL)
        return;
    munmap(r->base, (size_t)((r->bytes + ALIGN - 1) / ALIGN * ALIGN));
    memset(r, 0, sizeof *r);
}
