/* checked.h - arithmetic that says when it would wrap, and little-endian loads and stores from unaligned bytes.
 * Used wherever a length or count comes from a file or a peer.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_BASE_CHECKED_H
#define KVS_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline bool kvs_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    *out = a + b;
    return *out >= a;
}
static inline bool kvs_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    *out = a * b;
    return a == 0 || *out / a == b;
}
static inline uint16_t kvs_load_u16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t kvs_load_u32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t kvs_load_u64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline float kvs_load_f32(const void *p) { float v; memcpy(&v, p, 4); return v; }
static inline void kvs_store_u16(void *p, uint16_t v) { memcpy(p, &v, 2); }
static inline void kvs_store_u32(void *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void kvs_store_u64(void *p, uint64_t v) { memcpy(p, &v, 8); }

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Kvasir's wire and page formats are little-endian; big-endian hosts are not supported"
#endif

#endif
