/* index_bench.c - the router's index of cached blocks at its cap: what telling, asking and forgetting take, and what a location costs in memory.
 * Printed: nanoseconds a block told, microseconds a prompt of 832 blocks (53 k tokens) that is known to one worker, to all of 256 workers, to
 * nobody, milliseconds to forget a worker, and resident bytes a location beside the stated ones.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/index.h"
#include "sys/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORKERS = 256, PROMPT = 832, RUN = 64, ROUNDS = 500 };
#define MEMORY ((uint64_t)64 << 20)

static struct kvc_hash name(uint64_t i)
{
    struct kvc_hash h;
    uint64_t a = (i + 1) * 0x9e3779b97f4a7c15ull;
    a = (a ^ a >> 29) * 0xbf58476d1ce4e5b9ull;
    a ^= a >> 32;
    uint64_t b = a * 0x94d049bb133111ebull;
    memcpy(h.bytes, &a, 8);
    memcpy(h.bytes + 8, &b, 8);
    return h;
}

static uint64_t resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*u %lu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double ask(struct rtr_index *ix, const struct kvc_hash *chain, uint32_t want, uint32_t span)
{
    uint32_t got[WORKERS];
    uint64_t start = kvs_now_us();
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t at = span ? (uint32_t)(i * 7919ull * PROMPT % span) / PROMPT * PROMPT : 0;
        if (rtr_index_match(ix, chain + at, PROMPT, got) != want) {
            fprintf(stderr, "index_bench: a wrong answer\n");
            exit(1);
        }
    }
    return (double)(kvs_now_us() - start) / ROUNDS;
}

int main(void)
{
    struct rtr_index *ix = NULL;
    struct rtr_index_stats st;
    struct kvc_hash missing[PROMPT];
    uint64_t before = resident_bytes();
    if (rtr_index_create(WORKERS, MEMORY, &ix) != KVS_OK)
        return 1;
    rtr_index_stats(ix, &st);
    uint32_t n = (uint32_t)(st.locations_max / PROMPT * PROMPT);
    struct kvc_hash *chain = malloc(n * sizeof(*chain));
    if (!chain)
        return 1;
    for (uint32_t i = 0; i < n; i++)
        chain[i] = name(i);
    for (uint32_t i = 0; i < PROMPT; i++)
        missing[i] = name((1ull << 40) + i);
    uint64_t start = kvs_now_us(), with_names = resident_bytes();
    for (uint32_t i = 0; i < n; i += RUN) /* whole prompts, so each lies on one worker */
        rtr_index_add(ix, i / PROMPT % WORKERS, chain + i, RUN);
    rtr_index_stats(ix, &st);
    printf("tell          %8.0f ns a block (%llu blocks)\n", (double)(kvs_now_us() - start) * 1e3 / n,
           (unsigned long long)st.locations);
    printf("memory        %8.1f bytes a block resident, %u stated; created untouched in %llu KiB\n",
           (double)(resident_bytes() - with_names) / (double)st.locations, RTR_INDEX_LOCATION_BYTES,
           (unsigned long long)((with_names - before - n * sizeof(*chain)) / 1024));
    printf("one has it    %8.1f us a prompt of %d blocks\n", ask(ix, chain, PROMPT, n), PROMPT);
    printf("nobody has it %8.1f us\n", ask(ix, missing, 0, 0));
    for (uint32_t w = 0; w < WORKERS; w++)
        rtr_index_add(ix, w, chain, PROMPT);
    printf("all have it   %8.1f us (%d workers)\n", ask(ix, chain, PROMPT, 0), WORKERS);
    unsigned long long held = rtr_index_worker_blocks(ix, 3);
    start = kvs_now_us();
    rtr_index_drop(ix, 3);
    printf("forget        %8.2f ms a worker of %llu blocks\n", (double)(kvs_now_us() - start) / 1e3, held);
    free(chain);
    rtr_index_destroy(ix);
    return 0;
}
