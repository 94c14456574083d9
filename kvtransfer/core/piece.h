/* piece.h - XXH3-64 of one piece of a page (at most 4 KiB) for processors with AVX2; the caller asks for them first. Pure, any thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVTRANSFER_CORE_PIECE_H
#define KVS_KVTRANSFER_CORE_PIECE_H

#include <stddef.h>
#include <stdint.h>

uint64_t kvt_piece_avx2(const void *bytes, size_t n);

#endif
