/* real.h - a fetched model against its exact answer: what smollm2_test.c and gemma3_test.c share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_ENGINE_REAL_H
#define KVS_TESTS_ENGINE_REAL_H

/* Mean negative log likelihood over the four contexts that `ppl` (a .ppl.json) holds, within 0.05 % of the exact one. */
void real_perplexity(const char *model, const char *ppl);

#endif
