/* oracle.c - see oracle.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/oracle.h"

#include "sim/world.h"

#include <string.h>

uint64_t sim_history(uint64_t before, int32_t token, uint32_t position)
{
    return sim_mix(before, (uint64_t)position << 32 | (uint32_t)token);
}

uint64_t sim_cell(uint64_t history, uint32_t cache)
{
    return sim_mix(history, cache + 1) | 1; /* never what a zeroed page holds */
}

uint64_t sim_read_begin(void)
{
    return 0x726f77u;
}

uint64_t sim_read_cell(uint64_t read, uint64_t cell)
{
    return read + sim_mix(cell, 0x72u); /* groups of layers finish in any order */
}

int32_t sim_pick(uint64_t read, const struct msg_sampling *sampling, uint32_t choice, uint32_t position, uint32_t vocab)
{
    uint32_t bits[3];
    memcpy(&bits[0], &sampling->temperature, 4);
    memcpy(&bits[1], &sampling->top_p, 4);
    memcpy(&bits[2], &sampling->min_p, 4);
    uint64_t h = sim_mix(read, sampling->seed);
    for (int i = 0; i < 3; i++)
        h = sim_mix(h, bits[i]);
    h = sim_mix(h, (uint64_t)sampling->top_k << 32 | choice);
    return (int32_t)(sim_mix(h, position) % vocab);
}

uint32_t sim_answer(const int32_t *prompt, uint32_t count, uint32_t caches, const struct msg_sampling *sampling, uint32_t choice,
                    uint32_t max_tokens, bool ignore_eos, uint32_t vocab, int32_t *ids_out)
{
    uint64_t h = SIM_HISTORY_0;
    for (uint32_t i = 0; i < count; i++)
        h = sim_history(h, prompt[i], i);
    for (uint32_t n = 0; n < max_tokens; n++) {
        uint64_t read = sim_read_begin();
        for (uint32_t l = 0; l < caches; l++)
            read = sim_read_cell(read, sim_cell(h, l));
        ids_out[n] = sim_pick(read, sampling, choice, count + n, vocab);
        if (ids_out[n] == SIM_STOP_ID && !ignore_eos)
            return n + 1;
        h = sim_history(h, ids_out[n], count + n);
    }
    return max_tokens;
}
