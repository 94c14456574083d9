/* oracle.h - the model that the simulated workers "run": what a token's KV is, and which token follows a history.
 * The KV of a token at a layer is a hash of all tokens up to it and of the layer. A step writes these numbers into pages, a message carries
 * them to another worker, a later step compares what it reads with what must stand there. The token that follows is picked from the
 * numbers that were READ, by the request's own sampling fields, choice and position; the expected answer is computed from the prompt alone.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_ORACLE_H
#define KVS_SIM_ORACLE_H

#include "proto/msg.h"

#define SIM_HISTORY_0 0x6b76617369723031u
#define SIM_STOP_ID 3

uint64_t sim_history(uint64_t before, int32_t token, uint32_t position);
uint64_t sim_cell(uint64_t history, uint32_t cache); /* caches are counted over all layers */
/* What attention over all layers gives for the last row: a function of its cells. */
uint64_t sim_read_begin(void);
uint64_t sim_read_cell(uint64_t read, uint64_t cell);
int32_t sim_pick(uint64_t read, const struct msg_sampling *sampling, uint32_t choice, uint32_t position, uint32_t vocab);

/* The whole answer of one choice; ids_out has room for max_tokens. Ends with SIM_STOP_ID unless ignore_eos. Returns its length. */
uint32_t sim_answer(const int32_t *prompt, uint32_t count, uint32_t caches, const struct msg_sampling *sampling, uint32_t choice,
                    uint32_t max_tokens, bool ignore_eos, uint32_t vocab, int32_t *ids_out);

#endif
